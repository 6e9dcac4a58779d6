//! Buffers elsewhere, memory that cannot be mapped, copies that are held back, engines that fail, ranks that die.
use super::*;
use gapless_mem::DeviceError;
use gapless_mem::testkit::pretended;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

pub(super) fn allreduce(len: u64, in_place: bool) -> Call<'static> {
    Call::Allreduce { len, of: sum(Arithmetic::Sum), in_place }
}

/// All living ranks' results of one call. `each`: what happens before each turn.
pub(super) fn results(
    ranks: &mut Ranks,
    number: u64,
    trial: &Trial,
    mut each: impl FnMut(&mut Ranks, u32),
) -> Vec<Option<Result<Outcome, CollError>>> {
    let n = ranks.gears.len();
    let mut results: Vec<Option<Result<Outcome, CollError>>> = vec![None; n];
    for (rank, result) in results.iter_mut().enumerate() {
        *result = match ranks.begin(rank, number, trial) {
            Ok(true) => None,
            Ok(false) => Some(Ok(Outcome::Elsewhere)),
            Err(error) => Some(Err(error)),
        };
    }
    for turn in 0..TURNS_MAX {
        each(ranks, turn);
        for (rank, result) in results.iter_mut().enumerate() {
            if ranks.job.ranks[rank].is_none() || result.is_some() {
                continue;
            }
            if let Poll::Ready(ended) = ranks.advance(rank, turn) {
                *result = Some(ended);
            }
        }
        if (0..n).all(|rank| ranks.job.ranks[rank].is_none() || results[rank].is_some()) {
            return results;
        }
        ranks.job.progress();
    }
    panic!("{results:?}: {:?}", ranks.all);
}

#[test]
fn if_one_ranks_buffers_are_elsewhere_all_go_another_way() {
    let mut random = Random(170);
    for who in 0..3 {
        for settings in copying() {
            let mut ranks = Ranks::new(3, &settings, 2);
            let trial =
                Trial::new(allreduce(70_000, true), Arithmetic::Sum, &ranks.gears, &mut random);
            // It says so at once, and goes on with other calls.
            ranks.all[who].decline(4);
            ranks.all[who].decline(9);
            let others: Vec<usize> = (0..3).filter(|rank| *rank != who).collect();
            others.iter().for_each(|rank| assert!(ranks.begin(*rank, 4, &trial).unwrap()));
            let mut left = others.clone();
            for turn in 0.. {
                assert!(turn < TURNS_MAX, "{left:?} wait");
                left.retain(|rank| match ranks.advance(*rank, turn) {
                    Poll::Ready(result) => {
                        assert_eq!(result, Ok(Outcome::Elsewhere));
                        false
                    }
                    Poll::Pending => true,
                });
                if left.is_empty() {
                    break;
                }
                ranks.job.progress();
            }
            // Nothing was written.
            for rank in others {
                assert!(trial.places[rank][1].bytes(70_000) == trial.before[rank].recv);
            }
            // All are on the device again.
            let done = results(&mut ranks, 10, &trial, |_, _| {});
            assert_eq!(done, vec![Some(Ok(Outcome::Done)); 3]);
            (0..3).for_each(|rank| trial.check(rank));
        }
    }
}

#[test]
fn several_gpus_and_unknown_ones_go_another_way() {
    let mut random = Random(171);
    let mut gears = one_gpu(3, 0);
    gears[2] = Gear::alone(87, GPU + 1);
    let mut ranks = Ranks::of(gears, &settings(Mode::Dynamic));
    let trial = Trial::new(allreduce(5000, false), Arithmetic::Sum, &ranks.gears, &mut random);
    for number in 0..3 {
        let all = results(&mut ranks, number, &trial, |_, _| {});
        assert_eq!(all, vec![Some(Ok(Outcome::Elsewhere)); 3]);
    }
    let unknown = |number| Gear::of(&Arc::new(FakeDevice::new(number)), 0);
    let mut ranks = Ranks::of((0..2).map(unknown).collect(), &settings(Mode::Dynamic));
    let trial = Trial::new(allreduce(5000, false), Arithmetic::Sum, &ranks.gears, &mut random);
    assert_eq!(ranks.begin(0, 1, &trial), Ok(false));
    assert_eq!(ranks.begin(1, 1, &trial), Ok(false));
}

/// Ranks of which one cannot map the others' memory, nor they its.
fn apart(who: usize) -> Ranks {
    let mut gears = one_gpu(3, 1);
    gears[who] = Gear::alone(87, GPU);
    Ranks::of(gears, &settings(Mode::Dynamic))
}

#[test]
fn memory_that_cannot_be_had_or_mapped_is_done_without() {
    let mut random = Random(172);
    let mut poor = one_gpu(3, 1);
    let refuse = |call: DeviceCall| match call {
        DeviceCall::Allocate(_) => Err(DeviceError::Unsupported { what: "that" }),
        _ => Ok(()),
    };
    poor[0].device = Arc::new(Wrapped::new(Arc::clone(&poor[0].device), refuse));
    let poor = Ranks::of(poor, &settings(Mode::Dynamic));
    for mut ranks in [poor, apart(0), apart(2)] {
        let trial = Trial::new(allreduce(5000, false), Arithmetic::Sum, &ranks.gears, &mut random);
        for number in 0..3 {
            let all = results(&mut ranks, number, &trial, |_, _| {});
            assert_eq!(all, vec![Some(Ok(Outcome::Elsewhere)); 3]);
        }
    }
    // In a scatter the others may have what they get: that is an error.
    let mut ranks = apart(2);
    let call = Call::Bcast { root: 0, len: 5000 };
    let trial = Trial::new(call, Arithmetic::Sum, &ranks.gears, &mut random);
    let all = results(&mut ranks, 0, &trial, |_, _| {});
    assert!(matches!(all[2], Some(Err(CollError::NotMapped { rank: 0, .. }))), "{all:?}");
    assert_eq!(all[0], Some(Err(CollError::GaveUp { rank: 2 })));
}

/// A copy that is over no sooner than the test says so.
pub(super) fn held_back(copy: Completion, held: &Arc<AtomicBool>) -> Completion {
    let held = Arc::clone(held);
    pretended(move || if held.load(Ordering::Acquire) { Ok(false) } else { copy.poll() })
}

/// An IPC copy of the gather that was sent again ends late, in place, too: nothing of the result is spoilt, and its
/// rank's call, and the leader's, end no sooner.
#[test]
fn a_copy_that_is_held_back_is_waited_for() {
    let mut random = Random(173);
    for in_place in [false, true] {
        let held = Arc::new(AtomicBool::new(true));
        let mut gears = one_gpu(3, 0);
        // Rank 2's first copy is by IPC.
        let (first, hold) = (AtomicU32::new(0), Arc::clone(&held));
        let device = Wrapped::new(Arc::clone(&gears[2].device), |_| Ok(()));
        // SAFETY: what it returns ends no sooner than the copy.
        let device = unsafe {
            device.around_copies(move |after, start| {
                let copy = start(after)?;
                Ok(match first.fetch_add(1, Ordering::Relaxed) {
                    0 => held_back(copy, &hold),
                    _ => copy,
                })
            })
        };
        gears[2].device = Arc::new(device);
        let mut ranks = Ranks::of(gears, &settings(Mode::Dynamic));
        let call = allreduce(40_000, in_place);
        let mut trial = Trial::new(call, Arithmetic::Sum, &ranks.gears, &mut random);
        // So that the device copies, and not the engine.
        alike(&mut trial, &ranks.gears, None);
        let mut ended = [None; 3];
        (0..3).for_each(|rank| assert!(ranks.begin(rank, 1, &trial).unwrap()));
        for turn in 0..TURNS_MAX {
            for (rank, end) in ended.iter_mut().enumerate().filter(|(_, end)| end.is_none()) {
                if let Poll::Ready(result) = ranks.advance(rank, turn) {
                    assert_eq!(result, Ok(Outcome::Done));
                    *end = Some(turn);
                }
            }
            if turn == 500 {
                let is_over = ended.map(|turn| turn.is_some());
                assert_eq!(is_over, [false, true, false], "in place: {in_place}");
                trial.check(1);
                held.store(false, Ordering::Release);
            }
            if ended.iter().all(Option::is_some) {
                break;
            }
            ranks.job.progress();
        }
        assert!(ended.iter().all(Option::is_some), "{ended:?}");
        (0..3).for_each(|rank| trial.check(rank));
        // The scatter has not tried what was slow in the gather.
        assert_eq!(ranks.all[0].copied(), Some([[2, 0], [2, 0]]));
        // The next call finds nothing of it.
        let again = Trial::new(call, Arithmetic::Sum, &ranks.gears, &mut random);
        let all = results(&mut ranks, 2, &again, |_, _| {});
        assert_eq!(all, vec![Some(Ok(Outcome::Done)); 3]);
        (0..3).for_each(|rank| again.check(rank));
    }
}

#[test]
fn an_engine_that_fails_is_named() {
    let mut random = Random(174);
    let mut errors = 0;
    for who in 0..3 {
        for after in 0..4 {
            for settings in copying() {
                let mut ranks = Ranks::new(3, &settings, 1);
                let call = allreduce(8000, false);
                let mut trial = Trial::new(call, Arithmetic::Sum, &ranks.gears, &mut random);
                // So that all copies of buffers are the engine's.
                alike(&mut trial, &ranks.gears, Some(4));
                ranks.gears[who].engine.fails_after.store(after, Ordering::Relaxed);
                let culprit = u32::try_from(who).ok();
                let all = results(&mut ranks, 1, &trial, |_, _| {});
                for (rank, result) in all.into_iter().enumerate() {
                    match result {
                        Some(Ok(Outcome::Done)) => trial.check(rank),
                        Some(Err(error)) => {
                            errors += 1;
                            assert_eq!(error.culprit(), culprit, "{error}");
                        }
                        other => panic!("{other:?}"),
                    }
                }
                // The next call is not disturbed.
                ranks.gears[who].engine.fails_after.store(-1, Ordering::Relaxed);
                ranks.gears[who].engine.broken.store(false, Ordering::Relaxed);
                let again = Trial::new(call, Arithmetic::Sum, &ranks.gears, &mut random);
                let all = results(&mut ranks, 2, &again, |_, _| {});
                assert_eq!(all, vec![Some(Ok(Outcome::Done)); 3], "rank {who} after {after}");
                (0..3).for_each(|rank| again.check(rank));
            }
        }
    }
    assert!(errors > 30, "{errors}");
}

#[test]
fn a_rank_that_dies_ends_the_call_with_its_name() {
    let mut random = Random(175);
    let (mut errors, mut ends) = (0, 0);
    for who in 0..3 {
        for when in 0..14 {
            for settings in copying() {
                let mut ranks = Ranks::new(3, &settings, 2);
                let call = match when % 2 {
                    0 => allreduce(9000, when % 4 == 0),
                    _ => Call::Gather { root: 1, len: 900_000, in_place: false },
                };
                let trial = Trial::new(call, Arithmetic::Sum, &ranks.gears, &mut random);
                let all = results(&mut ranks, 1, &trial, |ranks, turn| {
                    if turn == when {
                        ranks.all[who].give_up();
                        ranks.job.kill(u32::try_from(who).unwrap());
                    }
                });
                let elsewhere = all.contains(&Some(Ok(Outcome::Elsewhere)));
                for (rank, result) in all.into_iter().enumerate() {
                    match result {
                        // Its loss was not known when memory could not be shared with it.
                        Some(Ok(Outcome::Elsewhere)) => {}
                        Some(Ok(Outcome::Done)) => {
                            ends += 1;
                            assert!(!elsewhere, "all, or none");
                            trial.check(rank);
                        }
                        Some(Err(error)) => {
                            errors += 1;
                            assert_eq!(error.culprit(), u32::try_from(who).ok(), "{error}");
                        }
                        Some(Ok(Outcome::ByMessages)) => panic!("it stays on the GPU"),
                        None => assert_eq!(rank, who),
                    }
                }
            }
        }
    }
    assert!(errors > 50 && ends > 20, "{errors} {ends}");
}

#[test]
fn what_is_revoked_ends() {
    let mut random = Random(176);
    let mut ranks = Ranks::new(3, &settings(Mode::Dynamic), 2);
    let trial = Trial::new(allreduce(9000, true), Arithmetic::Sum, &ranks.gears, &mut random);
    let world = ranks.job.worlds()[0].clone();
    let all = results(&mut ranks, 1, &trial, |ranks, turn| {
        if turn == 1 {
            ranks.job.pml(0).revoke(&world).unwrap();
        }
    });
    assert!(all.iter().all(|result| *result == Some(Err(CollError::Revoked))), "{all:?}");
    assert_eq!(ranks.begin(0, 2, &trial), Err(CollError::Revoked));
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut random = Random(177);
    let mut ranks = Ranks::new(2, &settings(Mode::Dynamic), 0);
    let mut trial = Trial::new(allreduce(4000, false), Arithmetic::Sum, &ranks.gears, &mut random);
    trial.call = allreduce(4004, false);
    assert!(matches!(ranks.begin(0, 1, &trial), Err(CollError::Row { .. })));
    trial.call = Call::Scan { len: 4000, of: sum(Arithmetic::Sum), in_place: false };
    assert!(matches!(ranks.begin(0, 1, &trial), Err(CollError::NotShared { .. })));
    trial.call = allreduce(4000, false);
    assert!(ranks.begin(0, 1, &trial).is_ok());
    assert_eq!(ranks.begin(0, 2, &trial), Err(CollError::Abandoned));
}
