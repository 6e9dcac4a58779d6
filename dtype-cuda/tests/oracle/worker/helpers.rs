//! Workers of several blocks: long tasks that blocks share do what the host does, and all of it can be seen when the task
//! has ended; lives begin and end with all blocks; what is stopped ends.

use super::users::{counts_each_byte, examples};
use super::*;
use gapless_mem::WorkerCode;

/// Bytes of each buffer: more than a task touches.
const ROOM: u64 = 2 << 20;
/// Numbers of blocks: one alone, fewer and more than a task has parts.
const HELPER_BLOCKS: [u32; 4] = [1, 2, 7, 16];

/// Long payloads of every length, element and operation, at every place that elements can have: all of the buffer is
/// compared, so what no task should touch, too.
#[test]
fn blocks_that_share_a_task_do_what_the_host_does() {
    let Some(device) = device("worker, helper blocks") else { return };
    let mut rng = rng("worker, helper blocks");
    for blocks in HELPER_BLOCKS {
        let mut bench = Bench::with_blocks(&device, LIFE, 1, blocks);
        let payload_max = 1 << 19;
        let buffers = [DeviceFunction::Accumulate, DeviceFunction::Combine, DeviceFunction::Copy]
            .map(|function| {
                (function, bench.register(function as u8, function, ROOM, payload_max))
            });
        let reduced = bench.register(3, DeviceFunction::Reduce, ROOM, 0);
        bench.post(pinned(&device, payload_max.into()));
        for round in 0..cases(12) {
            let (kind, size) = ELEMENTS[rng.index(6)];
            let what = Accumulate(OPERATIONS[rng.index(4)], kind);
            let bytes =
                [200, 4096, 16 << 10, 32 << 10, 65_536, 100_000, 300_000, 500_000][rng.index(8)];
            let count = (bytes + rng.index(64)) / size;
            let from = rng.index(40) * size;
            let launch = Launch::linear(1, [1, 64, 256, 512][rng.index(4)], 0);
            let name = format!("{blocks} blocks, round {round}: {what:?} of {count} at {from}");
            let before = random(&mut rng, kind, size, usize::try_from(ROOM).unwrap() / size);
            let more = random(&mut rng, kind, size, count);
            let sum = |old: &[u8], new: &[u8]| combined_bytes(what, size, old, new);
            for (function, words) in &buffers {
                set(words, &before);
                let copies = *function == DeviceFunction::Copy;
                // Copies may begin and end at any byte.
                let (at, len) =
                    if copies { (from + 1, more.len() - 3) } else { (from, more.len()) };
                let words_of = [at as u64, what.word()];
                let put = Put {
                    index: *function as u8,
                    queue: 1,
                    launch,
                    words: if copies { &words_of[..1] } else { &words_of },
                    payload: &more[..len],
                };
                assert_eq!(bench.run(&put), PutOutcome::Ended, "{function:?}, {name}");
                let mut expected = before.clone();
                let new =
                    if copies { more[..len].to_vec() } else { sum(&before[at..at + len], &more) };
                expected[at..at + len].copy_from_slice(&new);
                let found = bytes_of(words);
                let wrong = found.iter().zip(&expected).position(|(a, b)| a != b);
                assert_eq!(wrong, None, "{function:?}, {name}");
            }
            set(&reduced, &before);
            let other = usize::try_from(ROOM).unwrap() / 2 + rng.index(40) * size;
            let words_of = [from as u64, other as u64, count as u64, what.word()];
            let put = Put { index: 3, queue: 1, launch, words: &words_of, payload: &[] };
            assert_eq!(bench.run(&put), PutOutcome::Ended, "reduce, {name}");
            let mut expected = before.clone();
            let new = sum(&before[from..from + more.len()], &before[other..other + more.len()]);
            expected[from..from + more.len()].copy_from_slice(&new);
            let wrong = bytes_of(&reduced).iter().zip(&expected).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "reduce, {name}");
        }
    }
}

/// Work-items of a large grid run once each, whoever runs their groups; and functions of users beside them.
#[test]
fn blocks_that_share_a_grid_run_each_work_item_once() {
    let Some(device) = device("worker, helper blocks, grids") else { return };
    let mut rng = rng("worker, helper blocks, grids");
    let code = examples();
    for blocks in HELPER_BLOCKS {
        let mut bench = Bench::with_blocks(&device, LIFE, 1, blocks);
        let numbered = bench.register(0, DeviceFunction::Number, 1 << 20, 0);
        bench.post(pinned(&device, 65536));
        for round in 0..cases(12) {
            let items = [1u16, 32, 64, 500, 512][rng.index(5)];
            let groups = u32::try_from(1 + rng.index(400)).unwrap();
            let launch = Launch::linear(groups, items, 0);
            let name = format!("{blocks} blocks, round {round}: {groups} groups of {items}");
            set(&numbered, &vec![0; 1 << 20]);
            let put = Put { index: 0, queue: 1, launch, words: &[], payload: &[] };
            assert_eq!(bench.run(&put), PutOutcome::Ended, "{name}");
            let all = usize::try_from(groups).unwrap() * usize::from(items);
            for (at, found) in elements_of(&bytes_of(&numbered), 4).into_iter().enumerate() {
                assert_eq!(found, u64::from(at < all), "item {at}, {name}");
            }
        }
        // With functions of users the worker has one block, whatever it was given.
        let kernel = DeviceKernel::of_code(&code, "example_count", 16, 65536);
        let counts = bench.link(1, kernel, 1024).unwrap();
        for round in 0..cases(12) {
            let items = [1u16, 32, 64, 500, 512][rng.index(5)];
            let groups = u32::try_from(1 + rng.index(400)).unwrap();
            let launch = Launch::linear(groups, items, 0);
            let name = format!("{blocks} blocks, round {round}: {groups} groups of {items}");
            // In its slot, and beyond.
            let mut payload = vec![0; [7, 100, 3000, 60_000][rng.index(4)]];
            rng.fill(&mut payload);
            let put = Put { index: 1, queue: 1, launch, words: &[], payload: &payload };
            counts_each_byte(&mut bench, &counts, &put, &name);
        }
    }
}

/// Lives follow each other at once, some with a task that blocks share, some without any. Then some are stopped in a task that
/// blocks share and that never ends by itself.
#[test]
fn lives_of_several_blocks_begin_and_end_and_stop() {
    let Some(device) = device("worker, helper blocks, lives") else { return };
    // What begins only after the order to stop is stopped by the life's end.
    let life = Life { idle: Some(Duration::from_micros(50)), longest: Duration::from_secs(2) };
    let mut bench = Bench::with_blocks(&device, life, 1, 8);
    let sums = bench.register(0, DeviceFunction::Combine, 1 << 17, 1 << 17);
    bench.post(pinned(&device, 1 << 17));
    let payload: Vec<u8> = (0..1u64 << 14).flat_map(u64::to_le_bytes).collect();
    let word = Accumulate(Combine::Sum, Element::U64).word();
    let put = Put {
        index: 0,
        queue: 0,
        launch: Launch::linear(1, 512, 0),
        words: &[0, word],
        payload: &payload,
    };
    let rounds = cases(200);
    for round in 0..rounds {
        match round % 3 {
            0 => bench.target.leave().unwrap(),
            1 => bench.target.start().unwrap(),
            _ => {}
        }
        assert_eq!(bench.run(&put), PutOutcome::Ended, "round {round}");
    }
    for (at, found) in (0u64..).zip(sums.all()) {
        assert_eq!(found.load(Ordering::Acquire), at * rounds, "{at}");
    }
    let kernel = DeviceKernel::of_code(&examples(), "example_wait", 16, 0);
    // SAFETY: it has no buffer.
    unsafe { bench.target.register_kernel(1, Some(kernel)) }.unwrap();
    let wait =
        Put { index: 1, queue: 0, launch: Launch::linear(64, 32, 0), words: &[], payload: &[] };
    for round in 0..cases(10) {
        let outcome = bench.abort_in(&wait);
        assert!(
            matches!(outcome, PutOutcome::Failed(Failure::Said(2))),
            "round {round}: {outcome:?}"
        );
        assert_eq!(bench.run(&put), PutOutcome::Ended, "round {round}");
    }
}

/// Each group of a function of a user's runs once, whichever block has it; which blocks had some is printed.
#[test]
fn groups_of_a_function_of_a_users_run_once_each_in_any_block() {
    let Some(device) = device("worker, helper blocks, groups") else { return };
    // Adds to the first word the bit of its block, and 1 to the word of its group behind that, after some time.
    let text = ".version 7.0\n.target sm_80\n.address_size 64\n\
         .visible .func (.param .b32 said) note_block (.param .b64 task, .param .b64 item)\n{\n\
         .reg .pred %p;\n.reg .b64 %a, %b, %i, %old, %from, %now;\n.reg .b32 %r, %one;\n\
         ld.param.u64 %a, [task];\nld.u64 %b, [%a];\nld.param.u64 %i, [item];\n\
         mov.u32 %r, %ctaid.x;\nmov.u32 %one, 1;\nshl.b32 %one, %one, %r;\ncvt.u64.u32 %now, %one;\n\
         atom.or.b64 %old, [%b], %now;\nshl.b64 %i, %i, 3;\nadd.u64 %b, %b, %i;\n\
         atom.add.u64 %old, [%b+8], 1;\nmov.u64 %from, %globaltimer;\n\
         AGAIN:\nmov.u64 %now, %globaltimer;\nsub.u64 %now, %now, %from;\n\
         setp.lt.u64 %p, %now, 5000;\n@%p bra AGAIN;\n\
         mov.u32 %r, 0;\nst.param.b32 [said], %r;\nret;\n}\n";
    // SAFETY: it touches as many words of the buffer as the grid has work-items, and one: at most 1,025 here.
    let code = unsafe { WorkerCode::new(text.as_bytes()) };
    for blocks in HELPER_BLOCKS {
        let mut bench = Bench::with_blocks(&device, LIFE, 1, blocks);
        let kernel = DeviceKernel::of_code(&code, "note_block", 16, 0).grid_max([1024, 1, 1]);
        let found = bench.link(0, kernel, 8 * 1025).unwrap();
        let mut who = 0;
        for round in 0..cases(20) {
            set(&found, &[0; 8 * 1025]);
            let groups = [1, 2, 3, 64, 200][usize::try_from(round % 5).unwrap()];
            let launch = Launch::linear(groups, 1, 0);
            let put = Put { index: 0, queue: 0, launch, words: &[], payload: &[] };
            assert_eq!(bench.run(&put), PutOutcome::Ended, "{blocks} blocks, round {round}");
            for (at, word) in (0..1024).zip(&found.all()[1..]) {
                let expected = u64::from(at < groups);
                assert_eq!(word.load(Ordering::Acquire), expected, "{blocks} blocks, group {at}");
            }
            who |= found.all()[0].load(Ordering::Acquire);
        }
        println!("of {blocks} blocks {} ran groups", who.count_ones());
    }
}
