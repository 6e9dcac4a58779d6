//! What is asked of lanes for pages: copies of indices, where they are the host's, and launches that read them.

use super::bench::{Bench, UPLOADS, launches};
use crate::engine::*;
use crate::tests::mock::Op;
use gapless_dtype::{Datatype, Pages, Primitive};

fn page() -> Layout {
    Datatype::contiguous(2, &Primitive::Double.into()).unwrap().commit().unwrap()
}

fn host(bench: &Bench, count: u32) -> Typed {
    let indices: Vec<u32> = (0..count).map(|number| number * 7 % count).collect();
    Typed::pages(bench.typed, 0, &Pages::new(&page(), 16, indices).unwrap()).unwrap()
}

/// `count` indices in memory of the device, at its begin.
fn device(bench: &Bench, count: u64) -> Typed {
    let list = bench.packed.sub(0, count * 4).unwrap();
    Typed::device_pages(bench.typed, 0, &page(), 16, (list, false)).unwrap()
}

fn unpack(bench: &Bench, typed: &Typed, after: &[Completion]) -> Result<Completion, EngineError> {
    let from = bench.packed.sub(0, typed.packed_bytes()).unwrap();
    // SAFETY: the pretend vendor touches nothing.
    unsafe { bench.engine.unpack(from, typed, 0..typed.packed_bytes(), after) }
}

#[test]
fn few_indices_are_copied_before_their_kernel_on_its_lane() {
    let bench = Bench::new(Config::default());
    unpack(&bench, &host(&bench, 5000), &[]).unwrap();
    let ops = bench.ops();
    let lane = ops[0].0;
    let [(_, Op::Copy(list, _)), (_, Op::Launch(pointers)), (_, Op::Record(_))] = &ops[..] else {
        panic!("{ops:?}")
    };
    assert!(lane != UPLOADS && ops.iter().all(|(on, _)| *on == lane), "{ops:?}");
    assert_eq!((pointers.len(), pointers[3]), (5, *list), "the list of the target");
    assert_eq!(bench.engine.plans().entries, 0);
    bench.mock.log().end_all();
    bench.engine.shared.collect();
    assert_eq!(bench.blocks(), 0, "held until the work is over");
}

#[test]
fn many_go_up_in_pieces_with_kernels_behind_each() {
    let bench = Bench::new(Config { piece_bytes: 64 << 10, ..Config::default() });
    unpack(&bench, &host(&bench, 45_000), &[]).unwrap();
    let ops = bench.ops();
    let lane = ops.iter().find(|(lane, _)| *lane != UPLOADS).unwrap().0;
    // 32 KiB of 180,000 bytes, then 64 KiB each.
    assert_eq!(launches(&ops), 4, "{ops:?}");
    let steps = ops.chunks_exact(4);
    assert!(matches!(steps.remainder(), [(on, Op::Record(_))] if *on == lane));
    for step in steps {
        let [(a, Op::Copy(..)), (b, Op::Record(sent)), (c, Op::Wait(waited)), (d, Op::Launch(_))] =
            step
        else {
            panic!("{step:?}")
        };
        assert_eq!((*a, *b, *c, *d, sent), (UPLOADS, UPLOADS, lane, lane, waited));
    }
}

#[test]
fn indices_of_the_device_are_one_launch_however_many() {
    let bench = Bench::new(Config::default());
    for count in [3, 60_000] {
        let typed = device(&bench, count);
        let done = unpack(&bench, &typed, &[]).unwrap();
        let ops = bench.ops();
        // The report goes there and comes back.
        let [(_, Op::Copy(to, _)), (_, Op::Launch(pointers)), (_, Op::Copy(_, from)), _] = &ops[..]
        else {
            panic!("{ops:?}")
        };
        assert_eq!(pointers[3], bench.packed.start());
        assert_eq!((pointers[4], to), (*to, from));
        // Work behind it is put there by the device: this one's never ends.
        unpack(&bench, &typed, &[done]).unwrap();
        let behind = bench.ops();
        assert_eq!(behind[0].0, ops[0].0, "on its lane");
        assert_eq!(launches(&behind), 1);
    }
}

#[test]
fn what_fails_half_way_is_waited_for() {
    for many in [false, true] {
        for step in 0.. {
            let bench = Bench::new(Config { piece_bytes: 4096, ..Config::default() });
            let typed = if many { host(&bench, 3500) } else { device(&bench, 10) };
            bench.mock.log().fails_in = Some(step);
            let done = unpack(&bench, &typed, &[]);
            bench.mock.log().fails_in = None;
            if done.is_ok() {
                assert!(step > 3, "{step}");
                break;
            }
            assert!(bench.mock.log().busy().is_empty(), "step {step}: {:?}", bench.mock.log().ops);
            bench.mock.log().end_all();
            bench.engine.shared.collect();
            assert_eq!(bench.blocks(), 0, "step {step}");
        }
    }
}
