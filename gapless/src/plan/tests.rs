use super::*;
use crate::{Parts, Space, World};
use gapless_btl_testkit::Random;
use gapless_dtype::{Datatype, Layout, Primitive};
use std::sync::mpsc;
use std::time::Duration;

/// Gives what `act` gives, unless it waits for ever.
fn soon<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(act()));
    result.recv_timeout(Duration::from_secs(60)).expect("it ends")
}

fn doubles(count: u64, len: u64, stride: i64) -> Layout {
    let double = Datatype::from(Primitive::Double);
    Datatype::vector(count, len, stride, &double).unwrap().commit().unwrap()
}

/// The elements that a message touches, in its order.
fn touched(origin: u64, (count, len, stride): (u64, u64, i64)) -> Vec<usize> {
    let signed = |number: u64| i64::try_from(number).unwrap();
    let block = |block: u64| (0..len).map(move |at| (block, at));
    let place = |(block, at)| signed(origin + at) + signed(block) * stride;
    (0..count).flat_map(block).map(|pair| usize::try_from(place(pair)).unwrap()).collect()
}

#[test]
fn random_plans_move_what_copying_element_by_element_moves() {
    const LEN: u32 = 400;
    let seed = 20_261_123;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut below = |bound: usize| random.below(bound) as u64;
    let world = World::init().unwrap();
    let comm = world.comm();
    let mut tried = 0;
    for _ in 0..100 {
        let first: Vec<f64> = (0..LEN).map(f64::from).collect();
        let (mut array, mut parts) = (first.clone(), first.clone());
        let mut parts = Parts::of(&mut parts);
        let mut plan = comm.plan(&array);
        let mut moves: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
        for tag in 0..6 {
            // Pairs of parts as long as each other; those that fit and are apart take part.
            let (count, len) = (1 + below(12), 1 + below(3));
            let mut side = || {
                let stride = i64::try_from(len + below(9)).unwrap();
                let backwards = below(3) == 0;
                let stride = if backwards { -stride } else { stride };
                (below(LEN as usize), stride)
            };
            let (out, into) = (side(), side());
            let layouts = [out, into].map(|(_, stride)| doubles(count, len, stride));
            if parts.view(out.0, &layouts[0], 1).is_err()
                || parts.view_mut(into.0, &layouts[1], 1).is_err()
            {
                continue;
            }
            plan = plan.recv(into.0, &layouts[1], 1, Source::Any, tag).unwrap();
            plan = plan.send(out.0, &layouts[0], 1, 0, tag).unwrap();
            moves
                .push((touched(out.0, (count, len, out.1)), touched(into.0, (count, len, into.1))));
        }
        let mut plan = plan.build().unwrap();
        assert_eq!((plan.len(), plan.is_empty()), (2 * moves.len(), moves.is_empty()));
        tried += plan.len();
        let bytes: usize = moves.iter().map(|(from, _)| 8 * from.len()).sum();
        assert_eq!(plan.sent_bytes(), bytes as u64);
        let (mut other, mut expected) = (first.clone(), first.clone());
        for step in 0..4 {
            let before = expected.clone();
            for (from, to) in &moves {
                from.iter().zip(to).for_each(|(from, to)| expected[*to] = before[*from]);
            }
            let statuses = match step % 2 {
                0 => plan.exchange(&mut array).unwrap().to_vec(),
                _ => {
                    plan.exchange_while(&mut array[..], || ()).unwrap();
                    plan.statuses().to_vec()
                }
            };
            for (pair, (from, _)) in statuses.chunks(2).zip(&moves) {
                assert_eq!([pair[0].bytes, pair[1].bytes], [8 * from.len() as u64; 2]);
                assert_eq!((pair[0].source, pair[0].tag), (0, pair[1].tag));
            }
            assert!(array == expected, "{plan:?}");
            expected.iter_mut().for_each(|number| *number += 1.0);
            other.copy_from_slice(&expected);
            std::mem::swap(&mut array, &mut other);
        }
    }
    assert!(tried > 400, "{tried}");
    world.finalize().unwrap();
}

/// A long message to oneself, of which parts are read while it is in flight.
#[test]
fn what_no_message_writes_is_read_meanwhile() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let (rows, width) = (64, 1000);
    let column = doubles(rows, 2, 1000);
    let mut array: Vec<f64> = (0..64_000u32).map(f64::from).collect();
    let plan = comm.plan(&array).send(10, &column, 1, 0, 0).unwrap();
    let mut plan = plan.recv(500, &column, 1, 0, 0).unwrap().build().unwrap();
    let sum = plan.exchange_beside(&mut array, |rest| {
        // By elements: columns 500 and 501 are written.
        for (range, written) in [
            (0..500, None),
            (502..1500, None),
            (499..501, Some(4000..4008)),
            (501..502, Some(4008..4016)),
            (63_501..63_600, Some(508_008..508_016)),
            (63_502..64_000, None),
            (500..500, None),
            (501..501, None),
            (0..64_000, Some(4000..4016)),
        ] {
            let expected = written.map(|it| Error::InUse { start: it.start, end: it.end });
            assert_eq!(rest.get(range.clone()).err(), expected, "{range:?}");
        }
        let outside = catch_unwind(AssertUnwindSafe(|| rest.get(63_999..64_001).map(<[f64]>::len)));
        assert!(outside.is_err());
        std::thread::scope(|threads| {
            let each = [0, 502].map(|at| {
                threads.spawn(move || {
                    (0..64)
                        .map(|row| {
                            rest.get(row * width + at..row * width + at + 498)
                                .unwrap()
                                .iter()
                                .sum::<f64>()
                        })
                        .sum::<f64>()
                })
            });
            each.map(|it| it.join().unwrap()).into_iter().sum::<f64>()
        })
    });
    let inner = |at: &u32| !(498..502).contains(&(at % 1000));
    assert_eq!(sum, Ok((0..64_000).filter(inner).map(f64::from).sum::<f64>()));
    for (at, number) in (0..).zip(&array) {
        let expected = if [500, 501].contains(&(at % 1000)) { at - 490 } else { at };
        assert_eq!(*number, f64::from(expected));
    }
    let lost = PmlError::CommFailed { rank: 3 };
    let error = plan.messages[0].failed(0, lost.into());
    assert_eq!(error.lost_rank(), Some(3), "{error}");
    world.finalize().unwrap();
}

#[test]
fn what_does_not_fit_is_refused_when_it_is_described() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let array = [0f64; 12];
    let plan = || comm.plan(&array);
    let four = doubles(1, 4, 4);
    let error = plan().send(9, &four, 1, 0, 0).unwrap_err();
    assert!(matches!(error, Error::Buffer(_)), "{error}");
    let ints = Datatype::from(Primitive::Int32).commit().unwrap();
    assert!(matches!(plan().recv(0, &ints, 1, 0, 0), Err(Error::Fit(_))));
    let refused = |result: Result<PlanBuilder, Error>| match result {
        Err(Error::Message(failure)) => failure.error,
        other => panic!("{other:?}"),
    };
    for rank in [1, u32::MAX] {
        assert!(
            matches!(refused(plan().send(0, &four, 1, rank, 0)), PmlError::InvalidRank { rank: r, .. } if r == rank)
        );
        assert!(matches!(refused(plan().recv(0, &four, 1, rank, 0)), PmlError::InvalidRank { .. }));
    }
    assert_eq!(refused(plan().send(0, &four, 1, 0, -1)), PmlError::InvalidTag { tag: -1 });
    assert_eq!(refused(plan().recv(0, &four, 1, 0, -7)), PmlError::InvalidTag { tag: -7 });
    let twice = doubles(2, 2, 1);
    assert_eq!(refused(plan().recv(0, &twice, 1, 0, 0)), PmlError::OverlappingReceive { count: 1 });
    assert!(plan().send(0, &twice, 1, 0, 0).is_ok());
    let begun = || plan().recv(0, &four, 1, 0, 0).unwrap().send(8, &four, 1, 0, 0).unwrap();
    assert!(begun().send(6, &four, 1, 0, 1).is_ok());
    assert_eq!(begun().send(3, &four, 1, 0, 1).unwrap_err(), Error::InUse { start: 24, end: 32 });
    assert_eq!(begun().recv(5, &four, 1, 0, 1).unwrap_err(), Error::InUse { start: 64, end: 72 });
    let nowhere = Region::new(Space::Device { kind: "fake", device: 9 }, 64, 0, 64);
    let bytes = Datatype::from(Primitive::Byte).commit().unwrap();
    let plan = comm.plan_region(nowhere).send(0, &bytes, 64, 0, 0).unwrap();
    assert!(matches!(refused(plan.build().map(|_| begun())), PmlError::NoEngine { .. }));
    let late = begun();
    world.finalize().unwrap();
    assert_eq!(late.build().unwrap_err(), Error::Finalized);
}

#[test]
fn only_arrays_of_its_kind_are_exchanged() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let one = Datatype::from(Primitive::Double).commit().unwrap();
    let mut array = vec![1.0, 0.0];
    let plan = comm.plan(&array).recv(1, &one, 1, 0, 0).unwrap();
    let mut plan = plan.send(0, &one, 1, 0, 0).unwrap().build().unwrap();
    assert!(plan.statuses().is_empty());
    plan.exchange(&mut array).unwrap();
    plan.exchange(&mut [3.0, 0.0]).unwrap();
    let mut boxed = vec![2.0, 0.0].into_boxed_slice();
    assert_eq!(plan.exchange(&mut boxed[..]).unwrap().len(), 2);
    assert_eq!((&array[..], &boxed[..]), (&[1.0, 1.0][..], &[2.0, 2.0][..]));
    let other = |error: Error| {
        assert!(matches!(error, Error::OtherArray { .. }), "{error}");
        error.to_string()
    };
    let said = other(plan.exchange(&mut [0.0; 3]).unwrap_err());
    assert_eq!(
        said,
        "the plan was made for 16 bytes of f64 in host, not for 24 bytes of f64 in host"
    );
    assert!(plan.statuses().is_empty());
    other(plan.exchange(&mut [0u64; 2]).unwrap_err());
    other(plan.exchange_while(&mut [0u8; 16], || panic!("not called")).unwrap_err());
    let device = Region::new(Space::Device { kind: "fake", device: 0 }, 64, 0, 16);
    // SAFETY: it is refused before it is looked at.
    other(unsafe { plan.exchange_region(device) }.map(drop).unwrap_err());
    plan.exchange(&mut array).unwrap();
    world.finalize().unwrap();
    assert!(matches!(plan.exchange(&mut array), Err(Error::Finalized)));
}

#[test]
fn a_failure_names_its_message_and_the_plan_can_be_used_again() {
    soon(|| {
        let world = World::init().unwrap();
        let comm = world.comm();
        let (one, two) = (doubles(1, 1, 1), doubles(1, 2, 2));
        let mut array = [1.0, 2.0, 0.0, 0.0, 0.0, 0.0];
        let plan = comm.plan(&array).send(0, &two, 1, 0, 1).unwrap();
        let plan = plan.recv(2, &two, 1, 0, 1).unwrap().recv(4, &one, 1, 0, 2).unwrap();
        let mut plan = plan.build().unwrap();
        for _ in 0..3 {
            let sent = comm.isend_owned(vec![8.0, 9.0], 0, 2).unwrap();
            let error = plan.exchange(&mut array).unwrap_err();
            let said = error.to_string();
            assert!(said.starts_with("message 2 of the plan, from rank 0 with tag 2: "), "{said}");
            assert_eq!(error.status().map(|status| (status.tag, status.bytes)), Some((2, 8)));
            sent.wait().1.unwrap();
            assert!(plan.statuses().is_empty());
            // The others have ended well.
            assert_eq!(array[..4], [1.0, 2.0, 1.0, 2.0]);
            array[2..].fill(0.0);
            let sent = comm.isend_owned(vec![7.0], 0, 2).unwrap();
            assert_eq!(plan.exchange(&mut array).unwrap()[2].bytes, 8);
            sent.wait().1.unwrap();
            assert_eq!(array, [1.0, 2.0, 1.0, 2.0, 7.0, 0.0]);
        }
        // One that cannot be started: the others are, and end.
        plan.messages[0].what = PlannedMessage::Send { dest: 1, tag: 1 };
        for while_working in [false, true] {
            let sent = [(vec![5.0, 6.0], 1), (vec![7.0], 2)]
                .map(|(numbers, tag)| comm.isend_owned(numbers, 0, tag).unwrap());
            let error = match while_working {
                false => plan.exchange(&mut array).unwrap_err(),
                true => plan.exchange_while(&mut array, || panic!("not called")).unwrap_err(),
            };
            assert!(matches!(&error, Error::Planned { index: 0, .. }), "{error}");
            assert!(plan.statuses().is_empty());
            assert_eq!(array[2..5], [5.0, 6.0, 7.0]);
            array[2..].fill(0.0);
            for request in sent {
                request.wait().1.unwrap();
            }
            let gone = |(_, id): &(usize, RequestId)| {
                comm.shared.look(|pml| pml.is_done(*id)).unwrap().is_err()
            };
            assert!(plan.started.len() == 2 && plan.started.iter().all(gone));
        }
        world.finalize().unwrap();
    });
}

#[test]
fn a_panic_waits_for_all_messages_and_leaves_none() {
    soon(|| {
        let world = World::init().unwrap();
        let comm = world.comm();
        let long = doubles(1, 1 << 18, 1 << 18);
        // A message that is received, a receive that nobody sends to, a send that nobody receives.
        let mut array = vec![1.0; 4 << 18];
        let at = |part: u64| part << 18;
        let plan = comm.plan(&array).recv(at(2), &long, 1, 0, 0).unwrap();
        let plan = plan.recv(at(3), &long, 1, 0, 1).unwrap().send(at(0), &long, 1, 0, 0).unwrap();
        let mut plan = plan.send(at(1), &long, 1, 0, 2).unwrap().build().unwrap();
        for _ in 0..2 {
            let ended = catch_unwind(AssertUnwindSafe(|| {
                plan.exchange_while(&mut array, || panic!("while messages are in flight"))
            }));
            let payload = ended.unwrap_err();
            assert_eq!(payload.downcast_ref(), Some(&"while messages are in flight"));
            let gone = |(_, id): &(usize, RequestId)| {
                comm.shared.look(|pml| pml.is_done(*id)).unwrap().is_err()
            };
            assert!(plan.started.iter().all(gone) && plan.statuses().is_empty());
        }
        assert_eq!(comm.iprobe(Source::Any, TagSel::Any).unwrap(), None);
        world.finalize().unwrap();
    });
}
