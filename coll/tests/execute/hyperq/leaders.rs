//! Calls of several leaders, each of which carries out a slice.
use super::trouble::{HeldBack, allreduce, results};
use super::*;
use gapless_mem::DeviceError;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const MODES: [Mode; 3] = [Mode::Static, Mode::Staged, Mode::Ipc];

fn led_by(mode: Mode, leaders: usize) -> Settings {
    Settings { leaders, ..settings(mode) }
}

#[test]
fn slices_make_what_each_operation_is_defined_to_give() {
    let mut random = Random(190);
    for mode in MODES {
        for (n, leaders) in [(2, 2), (3, 2), (3, 4), (5, 2), (6, 4)] {
            let settings = led_by(mode, leaders);
            let mut ranks = Ranks::new(n, &settings, u32::from(leaders == 2));
            for len in [1, 700, 3000, 150_000] {
                let how = if random.below(2) == 0 { Arithmetic::Sum } else { Arithmetic::Affine };
                let calls = calls(n as usize, how, len, &mut random);
                let trials: Vec<Trial> = calls
                    .into_iter()
                    .map(|call| Trial::new(call, how, &ranks.gears, &mut random))
                    .collect();
                let results = ranks.play(&trials, &mut random);
                assert!(
                    results.iter().flatten().all(|result| *result == Ok(Outcome::Done)),
                    "{results:?}"
                );
                trials.iter().for_each(|trial| (0..n as usize).for_each(|rank| trial.check(rank)));
            }
        }
    }
}

/// Copies of many chunks, by every leader; and the entries of as many leaders hold.
#[test]
fn each_leader_has_copies_of_its_own() {
    let mut random = Random(191);
    for (leaders, len) in [(2, 3_300_004), (4, 4000)] {
        for staged in [0, 1, 3] {
            let entry =
                |step, leaders, staged| Entry { step, processes: 4, leaders, bytes: 1, staged };
            let both = [Step::Gather, Step::Scatter];
            let own = both.map(|step| entry(step, leaders, staged));
            let others = both.map(|step| entry(step, 1, 2));
            let entries = own.into_iter().chain(others).collect();
            let gpu = Gpu { model: "fake:86".to_owned(), mps: true, entries };
            let table = Table { gpus: vec![gpu] };
            let settings = Settings { table, ..led_by(Mode::Static, leaders) };
            let mut ranks = Ranks::new(4, &settings, 0);
            let call = allreduce(len, true);
            let trial = Trial::new(call, Arithmetic::Sum, &ranks.gears, &mut random);
            let all = ranks.play(std::slice::from_ref(&trial), &mut random);
            assert!(all.iter().flatten().all(|result| *result == Ok(Outcome::Done)), "{all:?}");
            (0..4).for_each(|rank| trial.check(rank));
            let counts = [[staged, 3 - staged]; 2];
            let copied: Vec<_> = ranks.all.iter().map(HyperQ::copied).collect();
            let expected: Vec<_> =
                (0..4).map(|rank| (rank % (4 / leaders) == 0).then_some(counts)).collect();
            assert_eq!(copied, expected, "{leaders} leaders");
        }
    }
}

/// A rank whose copies begin, but of which this one, by number, is over when the test says so.
fn holding(gears: &mut [Gear], who: usize, number: u32) -> Arc<AtomicBool> {
    let held = Arc::new(AtomicBool::new(true));
    let (copies, hold) = (AtomicU32::new(0), Arc::clone(&held));
    let device = Wrapped::new(Arc::clone(&gears[who].device), |_| Ok(()));
    // SAFETY: what it returns ends no sooner than the copy.
    let device = unsafe {
        device.around_copies(move |after, start| {
            let copy = start(after)?;
            Ok(match copies.fetch_add(1, Ordering::Relaxed) == number {
                true => Completion::Pending(Arc::new(HeldBack { copy, held: Arc::clone(&hold) })),
                false => copy,
            })
        })
    };
    gears[who].device = Arc::new(device);
    held
}

/// In place: while one copy to one leader is held back, no leader gives a result to anybody.
#[test]
fn nothing_is_written_before_all_leaders_have_gathered() {
    let mut random = Random(192);
    for mode in [Mode::Staged, Mode::Ipc] {
        // Each rank's first copies: to both leaders, one of which it may be.
        for (who, number) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)] {
            let mut gears = one_gpu(3, 0);
            let held = holding(&mut gears, who, number);
            let mut ranks = Ranks::of(gears, &led_by(mode, 2));
            let call = allreduce(40_000, true);
            let mut trial = Trial::new(call, Arithmetic::Sum, &ranks.gears, &mut random);
            // So that the device copies, and not the engine.
            alike(&mut trial, &ranks.gears, None);
            let all = results(&mut ranks, 1, &trial, |_, turn| {
                if turn == 500 {
                    for (place, before) in trial.places.iter().zip(&trial.before) {
                        assert!(place[1].bytes(40_000) == before.recv, "{mode:?} {who} {number}");
                    }
                    held.store(false, Ordering::Release);
                }
            });
            assert!(!held.load(Ordering::Acquire), "it went on without the copy");
            assert_eq!(all, vec![Some(Ok(Outcome::Done)); 3]);
            (0..3).for_each(|rank| trial.check(rank));
        }
    }
}

/// A rank without memory for a leader's buffer.
fn poor(gears: &mut [Gear], who: usize) {
    let refuse = |call: DeviceCall| match call {
        DeviceCall::Allocate(_) => Err(DeviceError::Unsupported { what: "that" }),
        _ => Ok(()),
    };
    gears[who].device = Arc::new(Wrapped::new(Arc::clone(&gears[who].device), refuse));
}

/// If one leader has no memory, or one rank cannot map one leader's, or has its buffers elsewhere, all go another way, in
/// place, too.
#[test]
fn one_slice_takes_the_others_with_it() {
    let mut random = Random(193);
    for mode in MODES {
        for who in 0..4 {
            let mut gears = one_gpu(4, 1);
            match who {
                0 | 2 => poor(&mut gears, who),
                _ => gears[who] = Gear::alone(87, GPU),
            }
            let mut ranks = Ranks::of(gears, &led_by(mode, 2));
            let call = allreduce(9000, true);
            let trial = Trial::new(call, Arithmetic::Sum, &ranks.gears, &mut random);
            for number in 0..3 {
                let all = results(&mut ranks, number, &trial, |_, _| {});
                assert_eq!(all, vec![Some(Ok(Outcome::Elsewhere)); 4], "{mode:?} {who}");
            }
            for (place, before) in trial.places.iter().zip(&trial.before) {
                assert!(place[1].bytes(9000) == before.recv, "{mode:?} {who}");
            }
        }
        let mut ranks = Ranks::new(3, &led_by(mode, 2), 2);
        let trial = Trial::new(allreduce(70_000, true), Arithmetic::Sum, &ranks.gears, &mut random);
        ranks.all[2].decline(4);
        for rank in 0..2 {
            assert!(ranks.begin(rank, 4, &trial).unwrap());
        }
        let mut left = vec![0, 1];
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
        let done = results(&mut ranks, 10, &trial, |_, _| {});
        assert_eq!(done, vec![Some(Ok(Outcome::Done)); 3]);
        (0..3).for_each(|rank| trial.check(rank));
    }
}

/// Leaders that went another way are in later calls, whose orders stand where those were that a late rank has not read.
#[test]
fn a_late_rank_learns_that_all_went_another_way() {
    let mut random = Random(194);
    for mode in MODES {
        for moment in 0..30 {
            let mut gears = one_gpu(3, 2);
            poor(&mut gears, 1);
            let mut ranks = Ranks::of(gears, &led_by(mode, 2));
            let call =
                Call::Reduce { root: 0, len: 7000, of: sum(Arithmetic::Sum), in_place: false };
            let trial = Trial::new(call, Arithmetic::Sum, &ranks.gears, &mut random);
            let mut ended = [false; 3];
            let turn = |ranks: &mut Ranks, who: &[usize], ended: &mut [bool], now: u32| {
                for &rank in who.iter().filter(|rank| !ended[**rank]).collect::<Vec<_>>() {
                    if let Poll::Ready(result) = ranks.advance(rank, now) {
                        assert_eq!(result, Ok(Outcome::Elsewhere));
                        ended[rank] = true;
                    }
                }
                ranks.job.progress();
            };
            (0..3).for_each(|rank| assert!(ranks.begin(rank, 1, &trial).unwrap()));
            (0..moment).for_each(|now| turn(&mut ranks, &[0, 1, 2], &mut ended, now));
            (0..200).for_each(|now| turn(&mut ranks, &[0, 1], &mut ended, now));
            assert!(ended[0] && ended[1]);
            // Calls of either leader alone: each tells all, rank 2, too.
            for (number, who) in [(2, 0), (3, 1)] {
                ranks.all[1 - who].decline(number);
                assert!(ranks.begin(who, number, &trial).unwrap());
                let mut next = [false; 3];
                (0..200).for_each(|now| turn(&mut ranks, &[who], &mut next, now));
                assert!(next[who], "{who}");
            }
            (0..200).for_each(|now| turn(&mut ranks, &[2], &mut ended, now));
            assert!(ended[2], "{mode:?} after {moment} turns: {:?}", ranks.all[2]);
        }
    }
}

/// Whether an all-to-all is in place says how many leaders it has. Ranks that do not agree go another way, and wait for no
/// copies that nobody makes.
#[test]
fn ranks_that_were_called_differently_go_another_way() {
    let mut random = Random(197);
    for odd in 0..4 {
        let mut ranks = Ranks::new(4, &led_by(Mode::Ipc, 2), 1);
        let trials = [false, true].map(|in_place| {
            let call = Call::Alltoall { len: 500, in_place };
            Trial::new(call, Arithmetic::Sum, &ranks.gears, &mut random)
        });
        for rank in 0..4 {
            assert!(ranks.begin(rank, 1, &trials[usize::from(rank == odd)]).unwrap());
        }
        let mut left = vec![0, 1, 2, 3];
        for turn in 0..2000 {
            left.retain(|rank| match ranks.advance(*rank, turn) {
                Poll::Ready(result) => {
                    assert_eq!(result, Ok(Outcome::Elsewhere));
                    false
                }
                Poll::Pending => true,
            });
            ranks.job.progress();
        }
        assert!(left.is_empty(), "{left:?} wait, and {odd} is in place");
    }
}

#[test]
fn who_fails_or_dies_is_named() {
    let mut random = Random(195);
    let (mut errors, mut ends) = (0, 0);
    for mode in MODES {
        for who in 0..4 {
            for when in 0..16 {
                let mut ranks = Ranks::new(4, &led_by(mode, 2), 2);
                let call = match when % 3 {
                    0 => allreduce(9000, when % 2 == 0),
                    1 => Call::Gather { root: 1, len: 300_000, in_place: false },
                    _ => Call::Bcast { root: 3, len: 5000 },
                };
                let trial = Trial::new(call, Arithmetic::Sum, &ranks.gears, &mut random);
                let culprit = u32::try_from(who).unwrap();
                let all = results(&mut ranks, 1, &trial, |ranks, turn| {
                    if turn == when {
                        ranks.all[who].give_up();
                        ranks.job.kill(culprit);
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
                            assert_eq!(error.culprit(), Some(culprit), "{error}");
                        }
                        None => assert_eq!(rank, who),
                    }
                }
            }
            for after in 0..6 {
                let mut ranks = Ranks::new(4, &led_by(mode, 2), 1);
                let call = allreduce(8000, false);
                let mut trial = Trial::new(call, Arithmetic::Sum, &ranks.gears, &mut random);
                // So that all copies of buffers are the engine's.
                alike(&mut trial, &ranks.gears, Some(4));
                ranks.gears[who].engine.fails_after.store(after, Ordering::Relaxed);
                for result in results(&mut ranks, 1, &trial, |_, _| {}).into_iter().flatten() {
                    let Err(error) = result else { continue };
                    errors += 1;
                    assert_eq!(error.culprit(), u32::try_from(who).ok(), "{error}");
                }
                // The next call is not disturbed.
                ranks.gears[who].engine.fails_after.store(-1, Ordering::Relaxed);
                ranks.gears[who].engine.broken.store(false, Ordering::Relaxed);
                let again = Trial::new(call, Arithmetic::Sum, &ranks.gears, &mut random);
                let all = results(&mut ranks, 2, &again, |_, _| {});
                assert_eq!(all, vec![Some(Ok(Outcome::Done)); 4], "rank {who} after {after}");
                (0..4).for_each(|rank| again.check(rank));
            }
        }
    }
    assert!(errors > 100 && ends > 20, "{errors} {ends}");
}

#[test]
fn slices_of_a_revoked_communicator_end() {
    let mut random = Random(196);
    let mut ranks = Ranks::new(3, &led_by(Mode::Ipc, 2), 2);
    let trial = Trial::new(allreduce(9000, true), Arithmetic::Sum, &ranks.gears, &mut random);
    let world = ranks.job.worlds()[0].clone();
    let all = results(&mut ranks, 1, &trial, |ranks, turn| {
        if turn == 1 {
            ranks.job.pml(0).revoke(&world).unwrap();
        }
    });
    assert!(all.iter().all(|result| *result == Some(Err(CollError::Revoked))), "{all:?}");
}
