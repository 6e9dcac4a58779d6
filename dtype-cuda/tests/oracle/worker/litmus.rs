//! Arguments of docs/worker.md, "What is seen when", that no other test here shows on hardware: counts (4), tables (6), chains
//! (8), what a GPU writes before it puts; barriers; and `Combine` against the host.

use super::users::Caller;
use super::*;
use gapless_kernels::worker::LANES;

/// The worker's row changes under puts: each task finds the old function, buffer and signal or the new ones, as a whole,
/// or nothing at all.
#[test]
fn rows_that_change_under_puts_are_old_or_new() {
    let Some(device) = device("worker, changing rows") else { return };
    let mut rng = rng("worker, changing rows");
    let mut bench = Bench::new(&device, LIFE, 1);
    let buffers = [pinned(&device, 64), pinned(&device, 128)];
    let found = buffers.each_ref().map(words);
    let word = Accumulate(Combine::Sum, Element::U64).word();
    let payload = [1u64, 1].map(u64::to_le_bytes).concat();
    let launch = Launch::linear(1, 16, 0);
    let put = Put { index: 0, queue: 1, launch, words: &[48, word], payload: &payload };
    bench.post(pinned(&device, 4096));
    let (mut put_so_far, mut ended, mut refused) = (0u64, 0u64, 0u64);
    for turn in 0..cases(600) {
        for _ in 0..1 + rng.below(12) {
            put_so_far += u64::from(bench.try_put(0, &put));
        }
        let pause = Duration::from_nanos(rng.below(20_000));
        let start = Instant::now();
        while start.elapsed() < pause {
            std::hint::spin_loop();
        }
        // Function, buffer and signal are one row: a mixed one would copy over the sums, add to the copy, or count the
        // other's.
        let kernel = match turn % 3 {
            0 => Some((DeviceFunction::Copy, 0u8)),
            1 => Some((DeviceFunction::Accumulate, 1)),
            _ => None,
        };
        let kernel = kernel.map(|(function, which)| {
            let kernel = DeviceKernel::new(function, 16).argument_bytes(32).signal(which);
            kernel.buffer(buffers[usize::from(which)].clone())
        });
        // SAFETY: the buffers are looked at as words alone.
        unsafe { bench.target.register_kernel(0, kernel) }.unwrap();
        while ended + refused < put_so_far {
            match bench.outcome(0) {
                PutOutcome::Ended => ended += 1,
                PutOutcome::Refused(Refusal::NotRegistered) => refused += 1,
                other => panic!("turn {turn}: {other:?}"),
            }
        }
    }
    bench.comes_to(|target| target.counted(0) + target.counted(1), ended);
    let word = |which: usize, at: usize| found[which].all()[at].load(Ordering::Acquire);
    let (copies, sums) = (bench.target.counted(0), bench.target.counted(1));
    println!("{copies} copies, {sums} sums, {refused} refused");
    assert!(copies > 0 && sums > 0 && refused > 0, "they do not change under puts");
    assert_eq!([word(0, 6), word(0, 7)], [1, 1], "what was copied");
    assert_eq!([word(1, 6), word(1, 7)], [sums, sums], "what was added");
    for (which, words) in [(0, 8), (1, 16)] {
        let elsewhere = (0..words).filter(|at| ![6, 7].contains(at));
        assert!(elsewhere.into_iter().all(|at| word(which, at) == 0), "buffer {which}");
    }
}

/// Whoever sees a count sees what the counted tasks have written, without a look at their statuses.
#[test]
fn counts_come_after_what_was_counted() {
    let Some(device) = device("worker, counts") else { return };
    let mut bench = Bench::new(&device, LIFE, 1);
    let copied = bench.register(0, DeviceFunction::Copy, 65536, 4096);
    bench.post(pinned(&device, 4096));
    for (len, items) in [(64, 16), (1024, 512)] {
        let launch = Launch::linear(1, items, 0);
        let (before, total) = (bench.target.counted(0), cases(20_000));
        let (mut put, mut looked) = (0u64, 0u64);
        let stamp = |number: u64| (number ^ len as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let start = Instant::now();
        while looked < total {
            // At width 1 they end in order, so a count says which.
            while put < total && put - looked < 16 {
                let payload = stamp(put).to_le_bytes().repeat(len / 8);
                let words = [put % 16 * 4096];
                let one = Put { index: 0, queue: 0, launch, words: &words, payload: &payload };
                if !bench.try_put(0, &one) {
                    break;
                }
                put += 1;
            }
            let counted = bench.target.counted(0) - before;
            assert!(start.elapsed() < 3 * PATIENCE, "{counted} of {total}");
            if counted == looked {
                // A status may wake nobody: a worker that has left is started here.
                while bench.lanes[0].next().is_some() {}
                bench.lanes[0].is_served();
                bench.target.advance().unwrap();
            }
            for number in looked..counted {
                let at = usize::try_from(number % 16 * 512).unwrap();
                let all = copied.all()[at..at + len / 8]
                    .iter()
                    .all(|word| word.load(Ordering::Relaxed) == stamp(number));
                assert!(
                    all,
                    "task {number} of {len} bytes is counted, and its result is not there"
                );
            }
            looked = counted;
        }
        while bench.lanes[0].pending() > 0 {
            assert_eq!(bench.outcome(0), PutOutcome::Ended);
        }
    }
}

/// A task puts on, and the next one reads what an earlier task of the first worker wrote to memory: in page-locked memory,
/// and in that of the first worker's GPU, which is another one than the second's if there is one.
#[test]
fn what_a_chain_has_written_the_next_task_sees() {
    let all = devices_alone("worker, chain's memory");
    let [Some(first), Some(second)] = [all.first().cloned(), all.last().cloned()] else { return };
    if all.len() < 2 {
        skip("worker, chain's memory over two devices", "only one device: both workers are there");
    }
    const WORDS: usize = 64;
    let life = Life { idle: Some(Duration::from_secs(2)), longest: PATIENCE };
    for on_device in [false, true] {
        let mut benches = [Bench::new(&first, life, 1), Bench::new(&second, life, 1)];
        let ring = pinned(&first, SHAPE.bytes());
        // SAFETY: the memory is new, and the ring's.
        unsafe { benches[1].target.add_ring(ring.clone(), SHAPE) }.unwrap();
        // SAFETY: likewise.
        unsafe { benches[0].target.add_out(ring, SHAPE) }.unwrap();
        benches[0].register(1, DeviceFunction::Forward, 0, 1024);
        // Numbers, and behind them their sums.
        let shared = if on_device {
            let (region, zeros) = (first.allocate(16 * WORDS as u64).unwrap(), [0u8; 16 * WORDS]);
            // SAFETY: both live until the wait ends.
            unsafe { first.copy(region, Region::of(&zeros), &[]) }.unwrap().wait().unwrap();
            // SAFETY: it is never freed.
            unsafe { Lease::kept_by_caller(region) }
        } else {
            pinned(&first, 16 * WORDS as u64)
        };
        for (bench, function) in
            benches.iter_mut().zip([DeviceFunction::Copy, DeviceFunction::Reduce])
        {
            let kernel = DeviceKernel::new(function, 4096).buffer(shared.clone()).signal(0);
            // SAFETY: the buffer is touched by tasks alone until they have ended.
            unsafe { bench.target.register_kernel(0, Some(kernel)) }.unwrap();
            bench.post(pinned(&first, 4096));
        }
        benches.iter_mut().for_each(|bench| bench.target.start().unwrap());
        let word = Accumulate(Combine::Sum, Element::U64).word();
        let launch = Launch::linear(1, 64, 0);
        let sum_up = [8 * WORDS as u64, 0, WORDS as u64, word];
        let sum_up = Put { index: 0, queue: 0, launch, words: &sum_up, payload: &[] };
        let inner = [sum_up.packet().as_bytes(), &sum_up.arguments()].concat();
        let forward = Put { index: 1, queue: 0, launch, words: &[0], payload: &inner };
        let rounds = cases(2000);
        for round in 1..=rounds {
            let numbers: Vec<u8> =
                (0..WORDS as u64).flat_map(|at| (round * (at + 1)).to_le_bytes()).collect();
            let write = Put { index: 0, queue: 0, launch, words: &[0], payload: &numbers };
            assert!(benches[0].try_put(0, &write) && benches[0].try_put(0, &forward));
            let start = Instant::now();
            while benches[1].target.counted(0) < round {
                let refused = benches[1].target.take_refusals();
                assert!(start.elapsed() < PATIENCE, "round {round}: {refused:?}");
                std::hint::spin_loop();
            }
            assert_eq!([benches[0].outcome(0), benches[0].outcome(0)], [PutOutcome::Ended; 2]);
        }
        benches.iter_mut().for_each(|bench| bench.target.leave().unwrap());
        let mut found = [0u8; 16 * WORDS];
        // SAFETY: both live until the wait ends, and all tasks have ended.
        unsafe { first.copy(Region::of_mut(&mut found), shared.region(), &[]) }
            .unwrap()
            .wait()
            .unwrap();
        let expected = (1..=WORDS as u64).map(|at| at * rounds * (rounds + 1) / 2);
        assert_eq!(
            elements_of(&found[8 * WORDS..], 8),
            expected.collect::<Vec<_>>(),
            "memory on a device: {on_device}"
        );
    }
}

/// A warp writes another body before each put, without waiting for the last: eight words behind the arguments, each the
/// put's number times its own. `out`: puts that ended; the outcome of the last one that did not.
const STAMPS: &str = r"
.version 7.0
.target sm_80
.address_size 64
.extern .func (.param .b64 ticket) gapless_put_by_warp
    (.param .b64 lane, .param .b64 packet, .param .b64 body, .param .b32 bytes);
.extern .func (.param .b32 code) gapless_wait
    (.param .b64 lane, .param .b64 ticket, .param .b64 patience, .param .b64 value);

.visible .entry stamps(.param .u64 lane, .param .u64 packet, .param .u64 body, .param .u64 count, .param .u64 out)
{
    .reg .pred %writes, %p;
    .reg .b32 %thread, %code;
    .reg .b64 %lane, %packet, %body, %count, %out, %number, %own, %value, %ticket, %ended, %patience, %none, %at, %bad;
    ld.param.u64 %lane, [lane];
    ld.param.u64 %packet, [packet];
    ld.param.u64 %body, [body];
    ld.param.u64 %count, [count];
    ld.param.u64 %out, [out];
    mov.u32 %thread, %tid.x;
    setp.lt.u32 %writes, %thread, 8;
    cvt.u64.u32 %own, %thread;
    shl.b64 %at, %own, 3;
    add.u64 %at, %body, %at;
    add.u64 %own, %own, 1;
    mov.u64 %number, 1;
    mov.u64 %ended, 0;
    mov.u64 %bad, 0;
    mov.u64 %none, 0;
    mov.u64 %patience, 5000000000;
NEXT:
    mul.lo.u64 %value, %number, %own;
    @%writes st.global.u64 [%at + 32], %value;
    bar.warp.sync 0xffffffff;
    {
        .param .b64 a; .param .b64 b; .param .b64 c; .param .b32 d; .param .b64 r;
        st.param.b64 [a], %lane;
        st.param.b64 [b], %packet;
        st.param.b64 [c], %body;
        st.param.b32 [d], 96;
        call.uni (r), gapless_put_by_warp, (a, b, c, d);
        ld.param.b64 %ticket, [r];
    }
    bar.warp.sync 0xffffffff;
    // The first two of each four are not waited for: bodies change while their puts are on their way.
    and.b64 %value, %number, 3;
    setp.lt.u64 %p, %value, 2;
    @%p bra STEP;
    {
        .param .b64 a; .param .b64 b; .param .b64 c; .param .b64 d; .param .b32 r;
        st.param.b64 [a], %lane;
        st.param.b64 [b], %ticket;
        st.param.b64 [c], %patience;
        st.param.b64 [d], %none;
        call.uni (r), gapless_wait, (a, b, c, d);
        ld.param.b32 %code, [r];
    }
    setp.ne.u32 %p, %code, 64;
    @%p cvt.u64.u32 %bad, %code;
    @!%p add.u64 %ended, %ended, 1;
STEP:
    add.u64 %number, %number, 1;
    setp.le.u64 %p, %number, %count;
    @%p bra NEXT;
    setp.ne.u32 %p, %thread, 0;
    @%p bra DONE;
    st.global.u64 [%out], %ended;
    st.global.u64 [%out + 8], %bad;
DONE:
    ret;
}
";

/// What a kernel has written before it puts, the task sees: bodies differ from put to put, so a slot that is torn, or an old
/// one, leaves other sums.
#[test]
fn what_a_gpu_writes_before_it_puts_the_task_sees() {
    let all = devices_alone("worker, a GPU's bodies");
    let [Some(device), Some(initiator)] = [all.first().cloned(), all.last().cloned()] else {
        return;
    };
    if all.len() < 2 {
        skip("worker, bodies of another GPU", "only one device: a kernel of the same GPU puts");
    }
    let mut bench = Bench::new(&device, LIFE, 1);
    let sums = bench.register(0, DeviceFunction::Accumulate, 64, 64);
    bench.post(pinned(&device, 4096));
    let caller = Caller::new(&mut bench, &initiator);
    let word = Accumulate(Combine::Sum, Element::U64).word();
    let launch = Launch::linear(1, 8, 0);
    let put = Put { index: 0, queue: 1, launch, words: &[0, word], payload: &[0; 64] };
    let packet = caller.upload(put.packet().as_bytes());
    let body = caller.upload(&[&put.arguments()[..], put.payload].concat());
    let out = caller.upload(&[0; 16]);
    let images: [(&std::ffi::CStr, &[u8]); 2] = [(c"lanes", LANES), (c"stamps", STAMPS.as_bytes())];
    // SAFETY: CUDA's tools made the first; the second is the text above.
    let module = unsafe { Module::link(&initiator, &images, 128) }.unwrap();
    let function = module.function(c"stamps").unwrap();
    let stream = initiator.stream().unwrap();
    bench.target.start().unwrap();
    let count = 4 * cases(5000) + 3;
    let parameters = [caller.lane(), packet.start(), body.start(), count, out.start()];
    // SAFETY: five parameters of 8 bytes; memory that is never freed.
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
    bench.comes_to(WorkerTarget::tasks, count);
    let mut found = [0u64; 2];
    // SAFETY: the kernel has ended; the copy is waited for.
    unsafe { initiator.copy(Region::of_mut(found.as_mut_bytes()), out, &[]) }
        .unwrap()
        .wait()
        .unwrap();
    // Of each four, those with the numbers 2 and 3 are waited for.
    assert_eq!(found, [2 * (count / 4) + 2, 0], "ended, and the outcome of one that did not");
    let seen: Vec<u64> = sums.all()[..8].iter().map(|sum| sum.load(Ordering::Acquire)).collect();
    assert_eq!(seen, (1..=8).map(|n| n * count * (count + 1) / 2).collect::<Vec<_>>());
    // SAFETY: nothing of it runs.
    unsafe { module.unload() }.unwrap();
}

/// A barrier in a ring begins when all tasks that came before it have ended, in a queue whose tasks run side by side.
#[test]
fn a_barrier_in_a_ring_waits_for_all_before_it() {
    let Some(device) = device("worker, barrier") else { return };
    let mut rng = rng("worker, barrier");
    let mut bench = Bench::new(&device, LIFE, 1);
    let buffer = pinned(&device, 8192);
    let found = words(&buffer);
    for (index, function) in [(0, DeviceFunction::Accumulate), (1, DeviceFunction::Reduce)] {
        let kernel = DeviceKernel::new(function, 4096).buffer(buffer.clone());
        // SAFETY: the buffer is looked at as words alone.
        unsafe { bench.target.register_kernel(index, Some(kernel)) }.unwrap();
    }
    bench.register(2, DeviceFunction::Pause, 64, 0);
    bench.post(pinned(&device, 4096));
    let word = Accumulate(Combine::Sum, Element::U64).word();
    let one = 1u64.to_le_bytes();
    let (mut put, mut expected) = (0u64, 0u64);
    for round in 0..cases(400) {
        // Short ones by teams, long ones by the whole block, pauses: all add to the first word, but the pauses.
        for _ in 0..1 + rng.below(30) {
            let ns = [rng.below(20_000)];
            let far = [4096, word];
            let many = one.repeat(300);
            let task = match rng.below(8) {
                0 => Put {
                    index: 2,
                    queue: 1,
                    launch: Launch::linear(1, 1, 0),
                    words: &ns,
                    payload: &[],
                },
                1 => Put {
                    index: 0,
                    queue: 1,
                    launch: Launch::linear(1, 512, 0),
                    words: &far,
                    payload: &many,
                },
                _ => Put {
                    index: 0,
                    queue: 1,
                    launch: Launch::linear(1, 16, 0),
                    words: &[0, word],
                    payload: &one,
                },
            };
            let adds = task.index == 0 && task.words[0] == 0;
            assert!(bench.try_put(0, &task));
            put += u64::from(adds);
        }
        let last = Put {
            index: 1,
            queue: 1,
            launch: Launch::linear(1, 1, 0),
            words: &[8, 0, 1, word],
            payload: &[],
        };
        let command = last.packet().sent().unwrap();
        let command = Command { flags: command.flags | Flags::BARRIER, ..command };
        bench.lanes[0].put(&Packet::new(&command).unwrap(), [&last.arguments(), &[]]).unwrap();
        bench.lanes[0].announce();
        // What it has found in the first word.
        expected += put;
        while bench.lanes[0].pending() > 0 {
            assert_eq!(bench.outcome(0), PutOutcome::Ended, "round {round}");
        }
        assert_eq!(found.all()[1].load(Ordering::Acquire), expected, "round {round}: {put} before");
    }
}

/// `Combine`, by which reductions between ranks go, of every element and operation: whole pieces of 16 bytes, and heads and
/// tails that are none; NaN and infinities, too.
#[test]
fn combining_does_what_the_host_does() {
    let Some(device) = device("worker, combine") else { return };
    let mut rng = rng("worker, combine");
    let mut bench = Bench::new(&device, LIFE, 1);
    let buffer = bench.register(4, DeviceFunction::Combine, 16384, 16384);
    bench.post(pinned(&device, 16384));
    let odd = |rng: &mut Rng, kind: Element| match (kind, rng.below(12)) {
        (Element::F32, 0) => u64::from(f32::NAN.to_bits()),
        (Element::F32, 1) => u64::from(f32::INFINITY.to_bits()),
        (Element::F32, 2) => u64::from((-0f32).to_bits()),
        (Element::F64, 0) => f64::NAN.to_bits(),
        (Element::F64, 1) => f64::NEG_INFINITY.to_bits(),
        (Element::F64, 2) => (-0f64).to_bits(),
        _ => element(rng, kind),
    };
    let is_nan = |kind: Element, bits: u64| match kind {
        Element::F32 => f32::from_bits(u32::try_from(bits).unwrap()).is_nan(),
        Element::F64 => f64::from_bits(bits).is_nan(),
        _ => false,
    };
    let every =
        ELEMENTS.iter().flat_map(|element| OPERATIONS.map(|operation| (operation, *element)));
    for (operation, (kind, size)) in every {
        let what = Accumulate(operation, kind);
        for _ in 0..cases(12) {
            let count = [1, 2, 3, 7, 16, 17, 60, 300, 1000][rng.index(9)];
            let from = rng.index(16) * size;
            let launch = Launch::linear(
                u32::try_from(1 + rng.below(3)).unwrap(),
                [1u16, 16, 64, 512][rng.index(4)],
                0,
            );
            let mut random = |count: usize| -> Vec<u8> {
                (0..count)
                    .flat_map(|_| odd(&mut rng, kind).to_le_bytes()[..size].to_vec())
                    .collect()
            };
            let (before, more) = (random(16384 / size), random(count));
            set(&buffer, &before);
            let words = [from as u64, what.word()];
            let put = Put { index: 4, queue: 0, launch, words: &words, payload: &more };
            let name = format!("{what:?} of {count} at {from}, {launch:?}");
            assert_eq!(bench.run(&put), PutOutcome::Ended, "{name}");
            let found = elements_of(&bytes_of(&buffer), size);
            let (old, more) = (elements_of(&before, size), elements_of(&more, size));
            for (at, (&found, &old)) in found.iter().zip(&old).enumerate() {
                let right = match at.checked_sub(from / size).and_then(|at| more.get(at)) {
                    // As the host's: a NaN wins.
                    Some(_) if is_nan(kind, old) => old,
                    Some(&more) if is_nan(kind, more) => more,
                    Some(&more) => combined(what, old, more),
                    None => old,
                };
                let alike = found == right || is_nan(kind, found) && is_nan(kind, right);
                assert!(alike, "{name}: element {at} is {found:#x}, not {right:#x}, of {old:#x}");
            }
        }
    }
    // What is not whole elements, or leaves the buffer, touches nothing.
    let sum = Accumulate(Combine::Sum, Element::U64).word();
    for (words, payload) in
        [([4, sum], &[0u8; 8][..]), ([16384 - 8, sum], &[0; 16]), ([0, sum], &[0; 12])]
    {
        let put =
            Put { index: 4, queue: 0, launch: Launch::linear(1, 16, 0), words: &words, payload };
        assert!(matches!(bench.run(&put), PutOutcome::Failed(_)), "{words:?}");
    }
}
