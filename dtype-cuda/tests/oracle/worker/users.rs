//! Functions of users on hardware: linked, replaced, stopped, refused by the linker; and kernels of users that put tasks.

use super::*;
use gapless_kernels::worker::{EXAMPLE_PUTS, EXAMPLE_TASKS, LANES};
use gapless_mem::{DeviceError, WorkerCode};
use gapless_xtq::device::{RingPlaces, TargetError};

pub(super) fn examples() -> WorkerCode {
    // SAFETY: CUDA's tools made the text from `example_tasks.cu`, whose functions keep the rules.
    unsafe { WorkerCode::new(EXAMPLE_TASKS.as_bytes()) }
}

impl Bench {
    /// As `register`, of a user's function.
    pub(super) fn link(
        &mut self,
        index: u8,
        kernel: DeviceKernel,
        buffer: u64,
    ) -> Result<Words, TargetError> {
        let lease = pinned(&self.device, buffer);
        let kernel = kernel.buffer(lease.clone()).signal(index);
        // SAFETY: the buffer is new, and looked at as words alone.
        unsafe { self.target.register_kernel(index, Some(kernel)) }?;
        Ok(words(&lease))
    }
}

/// Runs `example_count`, which counts each byte of the payload. Its groups meet in shared memory; if they cannot, it
/// fails.
pub(super) fn counts_each_byte(bench: &mut Bench, counts: &Words, put: &Put<'_>, name: &str) {
    set(counts, &[0; 1024]);
    let (outcome, items) = (bench.run(put), put.launch.group[0]);
    if items > 32 && !items.is_multiple_of(32) {
        assert_eq!(outcome, PutOutcome::Failed(Failure::Said(1)), "{name}");
        return;
    }
    assert_eq!(outcome, PutOutcome::Ended, "{name}");
    let found = elements_of(&bytes_of(counts), 4);
    for (byte, found) in (0u8..=255).zip(found) {
        let expected = put.payload.iter().filter(|other| **other == byte).count();
        assert_eq!(found, expected as u64, "byte {byte}, {name}");
    }
}

#[test]
fn functions_of_users_run_by_the_grid_and_fail_by_their_numbers() {
    let Some(device) = device("worker, users") else { return };
    let mut rng = rng("worker, users");
    let mut bench = Bench::new(&device, LIFE, 1);
    let code = examples();
    let begun = Instant::now();
    let kernel = |name: &str, bytes| DeviceKernel::of_code(&code, name, bytes, 65536);
    let floats = bench.link(0, kernel("example_scale", 24), 4096).unwrap();
    println!("linked in {:?}", begun.elapsed());
    let counts = bench.link(1, kernel("example_count", 16), 1024).unwrap();
    bench.post(pinned(&device, 65536));
    for round in 0..cases(60) {
        let before: Vec<u8> =
            (0..1024u32).flat_map(|at| (at as f32).to_bits().to_le_bytes()).collect();
        set(&floats, &before);
        let len = [1, 10, 36, 300, 4000][rng.index(5)];
        let groups = u32::try_from(1 + rng.below(4)).unwrap();
        let items = [1u16, 32, 33, 64, 512][rng.index(5)];
        let launch = Launch::linear(groups, items, 0);
        // Each float once at most: nothing is atomic.
        let which: Vec<u32> =
            (0..u32::try_from(len).unwrap().min(1024)).map(|at| at * 7 % 1024).collect();
        let payload: Vec<u8> = which.iter().flat_map(|at| at.to_le_bytes()).collect();
        let by = 2f32.powi(i32::try_from(round % 5).unwrap());
        let put =
            Put { index: 0, queue: 0, launch, words: &[by.to_bits().into()], payload: &payload };
        assert_eq!(bench.run(&put), PutOutcome::Ended, "round {round}");
        let found = elements_of(&bytes_of(&floats), 4);
        for (at, found) in (0u32..).zip(found) {
            let scaled = if which.contains(&at) { at as f32 * by } else { at as f32 };
            assert_eq!(found, u64::from(scaled.to_bits()), "round {round}, {at}");
        }
        let mut bytes = vec![0; len];
        rng.fill(&mut bytes);
        let put = Put { index: 1, queue: 0, launch, words: &[], payload: &bytes };
        let name = format!("round {round}, {groups} groups of {items}");
        counts_each_byte(&mut bench, &counts, &put, &name);
    }
    // Outside: the function's own number; then one that a host's order ends.
    let put = Put {
        index: 0,
        queue: 0,
        launch: Launch::linear(1, 1, 0),
        words: &[0],
        payload: &1024u32.to_le_bytes(),
    };
    assert_eq!(bench.run(&put), PutOutcome::Failed(Failure::Said(7)));
    bench.link(2, kernel("example_wait", 16), 64).unwrap();
    let put =
        Put { index: 2, queue: 0, launch: Launch::linear(1, 512, 0), words: &[], payload: &[] };
    let outcome = bench.abort_in(&put);
    assert!(matches!(outcome, PutOutcome::Failed(Failure::Said(2))), "{outcome:?}");
    assert_eq!(bench.run(&Put { index: 0, words: &[0], ..put }), PutOutcome::Ended);
}

/// Registered anew while others put: old or new, each once; what does not link says why, and changes nothing.
#[test]
fn functions_of_users_are_replaced_under_puts_and_the_linker_says_why_not() {
    let Some(device) = device("worker, relinking") else { return };
    let mut bench = Bench::new(&device, LIFE, 1);
    let text = |by: u32| {
        format!(
            ".version 7.0\n.target sm_80\n.address_size 64\n\
             .visible .func (.param .b32 said) add_some (.param .b64 task, .param .b64 item)\n{{\n\
             .reg .b64 %a, %b;\n.reg .b32 %r;\nld.param.u64 %a, [task];\nld.u64 %b, [%a];\n\
             atom.add.u32 %r, [%b], {by};\nmov.u32 %r, 0;\nst.param.b32 [said], %r;\nret;\n}}\n"
        )
    };
    // SAFETY: it adds to the buffer's first word, which every buffer here has.
    let code = |text: String| unsafe { WorkerCode::new(text.into_bytes()) };
    let kernel = |code: &WorkerCode, name: &str| DeviceKernel::of_code(code, name, 16, 0);
    let sum = pinned(&device, 64);
    let found = words(&sum);
    let register = |bench: &mut Bench, kernel: DeviceKernel| {
        // SAFETY: the buffer is looked at as words alone.
        unsafe { bench.target.register_kernel(0, Some(kernel.buffer(sum.clone()))) }
    };
    let codes = [code(text(1)), code(text(1000))];
    register(&mut bench, kernel(&codes[0], "add_some")).unwrap();
    let put = Put { index: 0, queue: 0, launch: Launch::linear(1, 1, 0), words: &[], payload: &[] };
    let (mut sent, mut ended) = (0u64, 0u64);
    let mut took = Vec::new();
    for round in 0..cases(8) {
        for _ in 0..100 {
            sent += u64::from(bench.try_put(0, &put));
        }
        let begun = Instant::now();
        register(&mut bench, kernel(&codes[usize::from(round % 2 == 0)], "add_some")).unwrap();
        took.push(begun.elapsed());
        while ended < sent {
            assert_eq!(bench.outcome(0), PutOutcome::Ended);
            ended += 1;
        }
    }
    took.sort_unstable();
    println!("registered anew under puts: median {:?} of {}", took[took.len() / 2], took.len());
    let sums = found.all()[0].load(Ordering::Acquire);
    assert_eq!(sums % 1000 + sums / 1000, sent, "{sums}: each once, by one of both");
    let why = |result: Result<(), TargetError>| match result {
        Err(TargetError::Device(DeviceError::Link { log })) => log,
        other => panic!("{other:?}"),
    };
    let log = why(register(&mut bench, kernel(&codes[0], "not_there")));
    assert!(log.contains("not_there"), "{log}");
    println!("the linker: {log}");
    let log = why(register(&mut bench, kernel(&code("no PTX .version".to_owned()), "some")));
    println!("the linker: {log}");
    let before = found.all()[0].load(Ordering::Acquire);
    assert_eq!(bench.run(&put), PutOutcome::Ended);
    assert_ne!(found.all()[0].load(Ordering::Acquire), before);
}

/// What a kernel is registered with may be a table of pointers, by which its function finds more than one buffer.
#[test]
fn a_function_of_a_users_follows_a_table_of_pointers() {
    let Some(device) = device("worker, pointers") else { return };
    let mut bench = Bench::new(&device, LIFE, 1);
    // Adds the third argument to the first word behind each of the table's two pointers.
    let text = ".version 7.0\n.target sm_80\n.address_size 64\n\
         .visible .func (.param .b32 said) add_both (.param .b64 task, .param .b64 item)\n{\n\
         .reg .b64 %a, %table, %to, %by, %old;\n.reg .b32 %r;\nld.param.u64 %a, [task];\n\
         ld.u64 %table, [%a];\nld.u64 %by, [%a+32];\nld.u64 %by, [%by+16];\n\
         ld.u64 %to, [%table];\natom.add.u64 %old, [%to], %by;\n\
         ld.u64 %to, [%table+8];\natom.add.u64 %old, [%to], %by;\n\
         mov.u32 %r, 0;\nst.param.b32 [said], %r;\nret;\n}\n";
    // SAFETY: it touches what the table leads to, of which every table here has two.
    let code = unsafe { WorkerCode::new(text.as_bytes()) };
    let buffers = [pinned(&device, 64), pinned(&device, 64)];
    let table = pinned(&device, 64);
    for (pointer, buffer) in words(&table).all().iter().zip(&buffers) {
        pointer.store(device.device_address(buffer.region()).unwrap(), Ordering::Release);
    }
    let kernel = DeviceKernel::of_code(&code, "add_both", 24, 0).buffer(table.clone());
    // SAFETY: table and buffers are touched as words alone, and kept.
    unsafe { bench.target.register_kernel(0, Some(kernel)) }.unwrap();
    let launch = Launch::linear(1, 1, 0);
    for by in 1..=10 {
        let put = Put { index: 0, queue: 0, launch, words: &[by], payload: &[] };
        assert_eq!(bench.run(&put), PutOutcome::Ended);
    }
    let sums = buffers.each_ref().map(|buffer| words(buffer).all()[0].load(Ordering::Acquire));
    assert_eq!(sums, [55, 55]);
}

/// Three workers, of one block and of several, hand a task on by a function of a user's; no host has a part in it.
#[test]
fn a_chain_of_functions_of_users_goes_around() {
    let Some(device) = device("worker, chain of users") else { return };
    for blocks in [1, 8] {
        chain(&device, blocks);
    }
}

/// Of several blocks, any may have the work-item that puts on.
fn chain(device: &Arc<CudaDevice>, blocks: u32) {
    let life = Life { idle: None, longest: 6 * PATIENCE };
    let mut benches: Vec<Bench> =
        (0..3).map(|_| Bench::with_blocks(device, life, 1, blocks)).collect();
    let code = examples();
    let kernel = DeviceKernel::of_code(&code, "example_pass", 32, 1024);
    let mut words = Vec::new();
    for at in 0..3 {
        let ring = pinned(device, SHAPE.bytes());
        // SAFETY: the memory is new, and the ring's.
        unsafe { benches[(at + 1) % 3].target.add_ring(ring.clone(), SHAPE) }.unwrap();
        // SAFETY: likewise.
        unsafe { benches[at].target.add_out(ring, SHAPE) }.unwrap();
        words.push(benches[at].link(0, kernel.clone(), 128).unwrap());
    }
    benches.iter_mut().for_each(|bench| bench.post(pinned(device, 4096)));
    benches.iter_mut().for_each(|bench| bench.target.start().unwrap());
    let payload: Vec<u8> = (0..16u64).flat_map(u64::to_le_bytes).collect();
    let mut times = Vec::new();
    for round in 0..cases(200) {
        let hops = 3 * (1 + round % 5);
        let groups = 1 + u32::try_from(round % 20).unwrap() * (blocks - 1).min(1);
        let launch = Launch::linear(groups, 32, 0);
        let put = Put { index: 0, queue: 0, launch, words: &[hops, 0], payload: &payload };
        let (begun, counted) = (Instant::now(), benches[0].target.counted(0));
        assert_eq!(benches[0].run(&put), PutOutcome::Ended);
        // The last task is the first worker's again: its own count is the first task's, and each round's.
        let own = 1 + hops / 3;
        while benches[0].target.counted(0) < counted + own {
            if begun.elapsed() > PATIENCE {
                let refused = benches.iter_mut().map(|bench| bench.target.take_refusals());
                let refused: Vec<String> = refused.map(|it| format!("{it:?}")).collect();
                panic!("round {round}: {refused:?}");
            }
            std::hint::spin_loop();
        }
        times.push(begun.elapsed() / u32::try_from(hops + 1).unwrap());
        for (at, word) in words[0].all()[..16].iter().enumerate() {
            assert_eq!(word.load(Ordering::Acquire), at as u64 + hops + 1, "round {round}");
        }
    }
    times.sort_unstable();
    println!("a hop of the chain, of {blocks} blocks: median {:?}", times[times.len() / 2]);
    assert!(benches.iter().all(|bench| bench.target.starts() == 1));
}

/// The end of a ring for kernels of a GPU: slots and bodies in the memory of the worker's, statuses in its own.
pub(super) struct Caller {
    device: Arc<CudaDevice>,
    lane: Region,
}

impl Caller {
    pub(super) fn new(bench: &mut Bench, initiator: &Arc<CudaDevice>) -> Caller {
        let caller =
            Caller { device: Arc::clone(initiator), lane: initiator.allocate(128).unwrap() };
        let device = Arc::clone(&bench.device);
        let ring = upload(&device, &vec![0; usize::try_from(SHAPE.bytes()).unwrap()]);
        let status = caller.upload(&[0; 8 * 256]);
        let head = pinned(&device, 4096);
        let at = |of: &CudaDevice, region| of.device_address(region).unwrap();
        let theirs = RingPlaces::at(at(&device, ring), SHAPE);
        let places =
            RingPlaces { head: at(&device, head.region()), status: at(&device, status), ..theirs };
        // SAFETY: it is never freed.
        let kept = unsafe { Lease::kept_by_caller(ring) };
        // SAFETY: new memory, zeroed, for the ring alone.
        unsafe { bench.target.add_ring_at(kept, Some(head.clone()), places) }.unwrap();
        let mine = RingPlaces::at(at(initiator, ring), SHAPE);
        let list = caller.lane();
        let head = at(initiator, head.region());
        let element = [head, mine.slots, status.start(), mine.arena.0, mine.arena.1.into(), 0];
        let bytes = [&element[..], &[list + 64, 0], &element, &[0, 0]].concat();
        // SAFETY: both live until the wait ends.
        unsafe { initiator.copy(caller.lane, Region::of(bytes.as_bytes()), &[]) }
            .unwrap()
            .wait()
            .unwrap();
        caller
    }

    /// What kernels are told.
    pub(super) fn lane(&self) -> u64 {
        self.lane.start()
    }

    /// These bytes in memory of the device, which is never freed.
    pub(super) fn upload(&self, bytes: &[u8]) -> Region {
        upload(&self.device, bytes)
    }
}

fn upload(device: &CudaDevice, bytes: &[u8]) -> Region {
    let region = device.allocate(bytes.len() as u64).unwrap();
    // SAFETY: both live until the wait ends.
    unsafe { device.copy(region, Region::of(bytes), &[]) }.unwrap().wait().unwrap();
    region
}

/// A kernel of a user's puts tasks at a worker, of another GPU if there is one: slots and bodies in the worker's memory,
/// statuses in the initiator's.
#[test]
fn kernels_of_users_put_tasks() {
    let all = devices_alone("worker, initiators");
    let Some(device) = all.first().cloned() else { return };
    let initiator = all.last().cloned().unwrap_or_else(|| Arc::clone(&device));
    if all.len() < 2 {
        skip("worker, initiators on another GPU", "only one device: a kernel of the same GPU puts");
    }
    let mut bench = Bench::new(&device, LIFE, 1);
    let sums = bench.register(0, DeviceFunction::Accumulate, 64, 64);
    bench.post(pinned(&device, 4096));
    let caller = Caller::new(&mut bench, &initiator);
    let word = Accumulate(Combine::Sum, Element::U64).word();
    let payload: Vec<u8> = (1..=8u64).flat_map(u64::to_le_bytes).collect();
    let put = Put {
        index: 0,
        queue: 1,
        launch: Launch::linear(1, 8, 0),
        words: &[0, word],
        payload: &payload,
    };
    let body = [&put.arguments()[..], &payload].concat();
    let packet = caller.upload(put.packet().as_bytes());
    let body_at = caller.upload(&body);
    let out = caller.upload(&[0; 64]);
    let images: [(&std::ffi::CStr, &[u8]); 2] =
        [(c"lanes", LANES), (c"puts", EXAMPLE_PUTS.as_bytes())];
    // SAFETY: CUDA's tools made both.
    let module = unsafe { Module::link(&initiator, &images, 128) }.unwrap();
    let function = module.function(c"example_initiate").unwrap();
    let stream = initiator.stream().unwrap();
    bench.target.start().unwrap();
    let mut total = 0;
    for (count, window) in [(1u64, 1u64), (2000, 1), (20_000, 128), (300, 256), (1000, 1000)] {
        let parameters = [
            caller.lane(),
            packet.start(),
            body_at.start(),
            body.len() as u64,
            count,
            window,
            5_000_000_000,
            out.start(),
        ];
        // SAFETY: eight parameters of 8 bytes; memory that is never freed.
        unsafe {
            function.launch(&stream, Grid::line(1, 32), &parameters.each_ref().map(Argument::of))
        }
        .unwrap();
        let done = stream.record().unwrap();
        let begun = Instant::now();
        while !done.poll().unwrap() {
            bench.target.advance().unwrap();
            assert!(begun.elapsed() < 2 * PATIENCE);
        }
        let mut found = [0u64; 3];
        // SAFETY: the kernel has ended; the copy is waited for.
        unsafe {
            initiator.copy(Region::of_mut(found.as_mut_bytes()), out.sub(0, 24).unwrap(), &[])
        }
        .unwrap()
        .wait()
        .unwrap();
        let target = &bench.target;
        assert_eq!(
            found[..2],
            [0, count],
            "{count} with {window} on their way; {} ran, worker {} after {} starts: {:?}",
            target.tasks(),
            if target.is_running() { "runs" } else { "is gone" },
            target.starts(),
            target.why_gone()
        );
        total += count;
        println!(
            "a kernel puts {count}, {window} on their way: {:.2} us each",
            found[2] as f64 / count as f64 / 1000.0
        );
    }
    let seen: Vec<u64> = sums.all()[..8].iter().map(|sum| sum.load(Ordering::Acquire)).collect();
    assert_eq!(seen, (1..=8).map(|n| n * total).collect::<Vec<_>>());
    // SAFETY: nothing of it runs.
    unsafe { module.unload() }.unwrap();
}
