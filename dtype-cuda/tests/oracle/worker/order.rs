//! The order in which tasks run and memory is seen, lives, chains, the ledger.

use super::*;

/// At width 1 tasks run in the order in which they came, each after the one before; at more, all run, once each; several
/// rings are served, whoever is busy.
#[test]
fn queues_keep_their_order_and_rings_take_turns() {
    let Some(device) = device("worker, order") else { return };
    let mut bench = Bench::new(&device, LIFE, 5);
    let last = bench.register(0, DeviceFunction::Copy, 64, 64);
    let sums = bench.register(1, DeviceFunction::Accumulate, 4096, 2048);
    bench.post(pinned(&device, 4096));
    let launch = Launch::linear(1, 16, 0);
    let word = Accumulate(Combine::Sum, Element::U64).word();
    let (mut put, mut ended) = ([0u64; 5], [0u64; 5]);
    let total = cases(5000);
    let (mut next, mut counts, mut fars) = (0u64, 0u64, 0u64);
    while ended.iter().any(|&ended| ended < total) {
        for lane in 0..5 {
            while put[lane] < total {
                let number = put[lane].to_le_bytes();
                let (order, count) = (
                    Put { index: 0, queue: 0, launch, words: &[8 * lane as u64], payload: &number },
                    Put {
                        index: 1,
                        queue: 1,
                        launch,
                        words: &[8 * lane as u64, word],
                        payload: &1u64.to_le_bytes(),
                    },
                );
                next += 1;
                let (long, words) = ([1u64.to_le_bytes(); 30].concat(), [512, word]);
                let far = Put { words: &words, payload: &long, ..count };
                let which = match (put[lane].is_multiple_of(2), next.is_multiple_of(50)) {
                    (true, _) => &order,
                    (false, true) => &far,
                    (false, false) => &count,
                };
                if !bench.try_put(lane, which) {
                    break;
                }
                put[lane] += 1;
                counts += u64::from(std::ptr::eq(which, &count));
                fars += u64::from(std::ptr::eq(which, &far));
            }
            while let Some((number, outcome)) = bench.lanes[lane].next() {
                assert_eq!((number, outcome), (ended[lane], PutOutcome::Ended));
                if number.is_multiple_of(2) {
                    // This one's, or that of one behind it.
                    let seen = last.all()[lane].load(Ordering::Acquire);
                    assert!(
                        seen >= number && seen.is_multiple_of(2),
                        "lane {lane}: {seen} after {number}"
                    );
                }
                ended[lane] += 1;
            }
            bench.lanes[lane].is_served();
        }
        bench.target.advance().unwrap();
    }
    for lane in 0..5 {
        assert_eq!(last.all()[lane].load(Ordering::Acquire), total - 2 + total % 2);
    }
    bench.comes_to(WorkerTarget::tasks, 5 * total);
    bench.comes_to(|target| target.counted(0) + target.counted(1), 5 * total);
    let sum = |words: &[std::sync::atomic::AtomicU64]| {
        words.iter().map(|sum| sum.load(Ordering::Acquire)).sum::<u64>()
    };
    let (near, far) = sums.all().split_at(64);
    assert_eq!((sum(near), sum(far)), (counts, 30 * fars), "each once");
}

/// The arguments of docs/worker.md on hardware: a payload is there when its packet is, and what a task wrote when its status
/// is; in the slot and through the arena; a packet is whole.
#[test]
fn payloads_come_before_packets_and_results_before_statuses() {
    let Some(device) = device("worker, litmus") else { return };
    let mut bench = Bench::new(&device, LIFE, 1);
    let copied = bench.register(0, DeviceFunction::Copy, 65536, 4096);
    bench.post(pinned(&device, 4096));
    let region = device.allocate(4096).unwrap();
    // SAFETY: it is never freed.
    let device_buffer = unsafe { Lease::kept_by_caller(region) };
    for (place, len) in [(0, 8), (0, 64), (0, 144), (0, 256), (0, 4096), (1, 512)] {
        if place == 1 {
            // Payloads pass through memory of the device.
            drop(bench.target.take_posted().unwrap());
            bench.post(device_buffer.clone());
        }
        // Side by side, or by the whole block.
        let launch = Launch::linear(1, if len < 100 { 16 } else { 512 }, 0);
        let (mut put, mut ended) = (0u64, 0u64);
        let total = cases(20_000);
        while ended < total {
            // As many on their way as keep places apart.
            while put < total && put - ended < 16 {
                let stamp = (put.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes();
                let payload = stamp.repeat(len / 8);
                let words = [put % 16 * 4096];
                assert!(bench.try_put(
                    0,
                    &Put { index: 0, queue: 1, launch, words: &words, payload: &payload }
                ));
                put += 1;
            }
            let outcome = bench.outcome(0);
            assert_eq!(outcome, PutOutcome::Ended);
            let stamp = ended.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let at = usize::try_from(ended % 16 * 512).unwrap();
            let all = copied.all()[at..at + len / 8]
                .iter()
                .all(|word| word.load(Ordering::Relaxed) == stamp);
            assert!(all, "task {ended} of {len} bytes has ended, and its result is not there");
            ended += 1;
        }
    }
}

/// Workers that leave while puts come: none is lost, whenever they meet.
#[test]
fn puts_that_meet_a_worker_that_leaves_are_not_lost() {
    let Some(device) = device("worker, leaving") else { return };
    let mut rng = rng("worker, leaving");
    let life = Life { idle: Some(Duration::from_micros(5)), longest: PATIENCE };
    let mut bench = Bench::new(&device, life, 2);
    bench.register(0, DeviceFunction::Number, 64, 0);
    let put = Put { index: 0, queue: 0, launch: Launch::linear(1, 1, 0), words: &[], payload: &[] };
    for number in 0..cases(3000) {
        // However slow the worker is, it leaves often.
        let start = Instant::now();
        while number % 50 == 0 && bench.target.is_running() {
            assert!(start.elapsed() < PATIENCE, "it does not leave");
        }
        let pause = Duration::from_nanos(rng.below(80_000));
        let start = Instant::now();
        while start.elapsed() < pause {
            std::hint::spin_loop();
        }
        let lane = usize::try_from(rng.below(2)).unwrap();
        assert!(bench.try_put(lane, &put));
        assert_eq!(bench.outcome(lane), PutOutcome::Ended);
    }
    let starts = bench.target.starts();
    bench.comes_to(WorkerTarget::tasks, cases(3000));
    println!("{starts} lives for {} tasks", cases(3000));
    assert!(starts > 1, "it never left for good");
}

/// What is told to leave or to stop does, whatever runs; what waits for the device waits no longer than the idle time.
#[test]
fn lives_end_in_time() {
    let Some(device) = device("worker, lives") else { return };
    let mut bench = Bench::new(&device, Life { idle: None, longest: PATIENCE }, 1);
    bench.register(0, DeviceFunction::Pause, 64, 0);
    let numbered = bench.register(1, DeviceFunction::Number, 64, 0);
    let one = Launch::linear(1, 1, 0);
    let long = [20_000_000_000u64];
    let long = Put { index: 0, queue: 0, launch: one, words: &long, payload: &[] };
    let short = Put { index: 1, queue: 0, launch: one, words: &[], payload: &[] };
    bench.target.start().unwrap();
    assert_eq!(bench.run(&short), PutOutcome::Ended);
    let before = Instant::now();
    bench.target.leave().unwrap();
    println!("it left after {:?}", before.elapsed());
    assert_eq!(bench.target.why_gone(), Some("it was asked to"));
    // A task of 20 s is aborted.
    bench.target.start().unwrap();
    assert!(bench.try_put(0, &long));
    std::thread::sleep(Duration::from_millis(20));
    assert!(bench.target.leave().is_err(), "it does not leave while a task runs");
    let before = Instant::now();
    bench.target.abort().unwrap();
    println!("it was aborted after {:?}", before.elapsed());
    assert_eq!(
        (bench.outcome(0), bench.target.why_gone()),
        (PutOutcome::Failed(Failure::Stopped), Some("it was aborted"))
    );
    // The longest life ends a task, too; the next one goes on behind it.
    bench.target.set_life(Life { idle: None, longest: Duration::from_millis(50) });
    bench.target.start().unwrap();
    assert!(bench.try_put(0, &long) && bench.try_put(0, &short));
    assert_eq!(bench.outcome(0), PutOutcome::Failed(Failure::Stopped));
    assert_eq!(bench.outcome(0), PutOutcome::Ended);
    assert_eq!(numbered.all()[0].load(Ordering::Acquire) & 0xFFFF_FFFF, 2);
    bench.target.leave().unwrap();
    // While one that stays has nothing to do, freeing memory waits for the end of its life; while one that leaves by
    // itself lives, for the idle time.
    bench.target.set_life(Life { idle: Some(Duration::from_micros(100)), longest: PATIENCE });
    let mut waits = Vec::new();
    for _ in 0..20 {
        let region = device.allocate(1 << 20).unwrap();
        bench.target.start().unwrap();
        assert_eq!(bench.run(&short), PutOutcome::Ended);
        let before = Instant::now();
        // SAFETY: nobody uses it.
        unsafe { device.free(region) }.unwrap();
        waits.push(before.elapsed());
    }
    println!("freeing memory beside a worker: {waits:?}");
    assert!(waits.iter().all(|wait| *wait < Duration::from_secs(1)), "a delay, and no hang");
}

/// Three targets on one device: each task puts the next, and no processor is asked.
#[test]
fn tasks_put_on_without_the_host() {
    let Some(device) = device("worker, chain") else { return };
    let life = Life { idle: Some(Duration::from_secs(2)), longest: PATIENCE };
    let mut benches: Vec<Bench> = (0..3).map(|_| Bench::new(&device, life, 1)).collect();
    // The ring from each to the next; the first put comes from here.
    for at in 0..2 {
        let ring = pinned(&device, SHAPE.bytes());
        // SAFETY: the memory is new, and the ring's.
        unsafe { benches[at + 1].target.add_ring(ring.clone(), SHAPE) }.unwrap();
        // SAFETY: likewise.
        let out = unsafe { benches[at].target.add_out(ring, SHAPE) };
        assert_eq!(out.unwrap(), 0);
        benches[at].register(0, DeviceFunction::Forward, 0, 1024);
    }
    let sums = benches[2].register(1, DeviceFunction::Accumulate, 64, 64);
    // Memory is page-locked before any worker lives.
    benches.iter_mut().for_each(|bench| bench.post(pinned(&device, 4096)));
    benches.iter_mut().for_each(|bench| bench.target.start().unwrap());
    let word = Accumulate(Combine::Sum, Element::U64).word();
    let launch = Launch::linear(1, 8, 0);
    let payload: Vec<u8> = (1..=5u64).flat_map(u64::to_le_bytes).collect();
    let last = Put { index: 1, queue: 0, launch, words: &[0, word], payload: &payload };
    let whole = |put: &Put<'_>| [put.packet().as_bytes(), &put.arguments(), put.payload].concat();
    let inner = whole(&last);
    let second = Put { index: 0, queue: 0, launch, words: &[0], payload: &inner };
    let outer = whole(&second);
    let first = Put { index: 0, queue: 0, launch, words: &[0], payload: &outer };
    for round in 1..=cases(2000) {
        let start = Instant::now();
        assert_eq!(benches[0].run(&first), PutOutcome::Ended);
        // The end of a chain is its last task's signal, which the last target counts.
        while benches[2].target.counted(1) < round {
            assert!(
                start.elapsed() < PATIENCE,
                "round {round}: {:?}",
                benches[1].target.take_refusals()
            );
            std::hint::spin_loop();
        }
    }
    let seen: Vec<u64> = sums.all()[..5].iter().map(|sum| sum.load(Ordering::Acquire)).collect();
    assert_eq!(seen, (1..=5).map(|n| n * cases(2000)).collect::<Vec<_>>());
    assert!(benches.iter().all(|bench| bench.target.starts() == 1));
}

#[test]
fn two_workers_are_counted_in_the_ledger() {
    let Some(device) = device("worker, ledger") else { return };
    use gapless_dtype_cuda::{Ask, Holder, LedgerError, Reservation, WorkerError};
    let reserved = || {
        let all = gapless_dtype_cuda::reserved(device.uuid()).unwrap();
        let own = all.into_iter().filter(|holding| holding.process == std::process::id());
        own.flat_map(|holding| holding.claims).map(|claim| claim.blocks).sum::<u32>()
    };
    let before = reserved();
    let worker = CudaWorker::new(Arc::clone(&device)).unwrap();
    assert_eq!(reserved(), before + 1);
    let several = CudaWorker::with_blocks(Arc::clone(&device), 5).unwrap();
    assert_eq!((several.blocks(), reserved()), (5, before + 6));
    drop(several);
    let too_many = CudaWorker::with_blocks(Arc::clone(&device), 1000);
    assert!(matches!(too_many, Err(WorkerError::Ledger(LedgerError::NoRoom { .. }))));
    assert!(matches!(
        CudaWorker::with_blocks(Arc::clone(&device), 0),
        Err(WorkerError::Blocks { wanted: 0 })
    ));
    assert_eq!(reserved(), before + 1);
    // All that is left of a kernel of which the device holds few.
    let ask =
        Ask { holder: Holder::Stream, blocks: 3, room: before + 4, together: false, handed: 0 };
    let all = Reservation::new(device.uuid(), ask).unwrap();
    match CudaWorker::new(Arc::clone(&device)) {
        Err(WorkerError::Ledger(LedgerError::NoRoom { wanted, room, .. })) => {
            assert_eq!(room, before + 4);
            assert!(wanted >= before + 5, "other processes may have more");
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("there is no room"),
    }
    drop((worker, all));
    assert_eq!(reserved(), before);
    if devices_alone("worker, ledger").len() < 2 {
        skip("worker, ledger, of two devices", "only one device");
    }
}
