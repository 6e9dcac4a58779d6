//! Calls that GPU leaders carry out: one rank on each GPU works on the buffers of all that are there.
use super::trouble::{allreduce, held_back, results};
use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ranks on these GPUs, whose devices map each other's memory.
fn on(gpus: &[u128], delay: u32) -> Vec<Gear> {
    let first = Arc::new(FakeDevice::with_delay(86, delay).identified(GPU, delay % 2 == 1));
    let fakes: Vec<Arc<FakeDevice>> =
        (0..=4).map(|number| Arc::new(first.beside(GPU + number))).collect();
    gpus.iter().map(|gpu| Gear::of(&fakes[usize::try_from(*gpu).unwrap()], delay)).collect()
}

/// Ranks with plain buffers.
fn plain(call: Call<'static>, how: Arithmetic, ranks: &Ranks, random: &mut Random) -> Trial {
    let mut trial = Trial::new(call, how, &ranks.gears, random);
    alike(&mut trial, &ranks.gears, None);
    trial
}

#[test]
fn heads_give_what_each_operation_is_defined_to_give() {
    let mut random = Random(180);
    let places: [&[u128]; 8] = [
        &[0, 0],
        &[0; 11],
        &[0, 1],
        &[0, 0, 1, 1],
        &[0, 1, 0, 1],
        &[0, 0, 0, 1],
        &[0, 1, 2, 3],
        &[2, 2, 1, 0, 0, 0],
    ];
    for gpus in places {
        for delay in [0, 3] {
            let mut ranks = Ranks::of(on(gpus, delay), &settings(Mode::Led));
            ranks.fuses = delay == 3;
            let n = gpus.len();
            let is_woven = gpus == [0, 1, 0, 1];
            // Of eleven ranks, a hundred blocks.
            for len in [1, 700, if n > 6 { 5_000 } else { 150_000 }] {
                // Operands of one are in the order of the ranks.
                for how in [Arithmetic::Sum, Arithmetic::Affine] {
                    for call in calls(n, how, len, &mut random) {
                        let trial = plain(call, how, &ranks, &mut random);
                        let ordered = call.reduction().is_some_and(|of| !of.commutative);
                        let all = ranks.play(std::slice::from_ref(&trial), &mut random);
                        let right = match is_woven && ordered {
                            true => Outcome::Elsewhere,
                            false => Outcome::Done,
                        };
                        assert!(
                            all.iter().flatten().all(|it| *it == Ok(right)),
                            "{call:?} {all:?}"
                        );
                        if right == Outcome::Done {
                            (0..n).for_each(|rank| trial.check(rank));
                            let leader = (0..n).find(|rank| ranks.all[*rank].gpus().is_some());
                            assert!(leader.is_some(), "GPU leaders did it");
                        }
                    }
                }
            }
            for rank in 0..n {
                let pml = ranks.job.ranks[rank].as_mut().unwrap();
                let _ = ranks.all[rank].close(pml);
            }
        }
    }
}

/// On a GPU that the table does not know, or several, GPU leaders do it without being told to.
#[test]
fn heads_are_chosen_where_they_should_be_quickest() {
    let mut random = Random(181);
    let how = Arithmetic::Sum;
    for (gpus, delay, led) in [
        (&[0, 0, 0], 1, Some(1)),
        (&[0, 0, 0], 2, Some(1)),
        (&[0, 1, 1], 1, Some(2)),
        (&[0, 1, 1], 2, Some(2)),
    ] {
        let mut ranks = Ranks::of(on(gpus, delay), &settings(Mode::Auto));
        for number in 0..3 {
            let trial = plain(allreduce(8000, number == 1), how, &ranks, &mut random);
            let all = results(&mut ranks, number, &trial, |_, _| {});
            assert_eq!(all, vec![Some(Ok(Outcome::Done)); 3]);
            (0..3).for_each(|rank| trial.check(rank));
            assert_eq!(ranks.all[0].gpus(), led, "{gpus:?} {delay}");
        }
        // Buffers with gaps: on one GPU they are copied.
        let mut trial = plain(allreduce(8000, false), how, &ranks, &mut random);
        alike(&mut trial, &ranks.gears, Some(4));
        let all = results(&mut ranks, 3, &trial, |_, _| {});
        let several = led == Some(2);
        let right = if several { Outcome::Elsewhere } else { Outcome::Done };
        assert_eq!(all, vec![Some(Ok(right)); 3]);
        assert_eq!(ranks.all[0].gpus(), None);
    }
}

/// Nobody's call ends while a GPU leader works on its buffers.
#[test]
fn what_a_head_does_is_waited_for() {
    let mut random = Random(182);
    for (gpus, who) in [(&[0, 0, 0, 0], 0), (&[0, 0, 1, 1], 2), (&[0, 0, 1, 1], 0)] {
        let held = Arc::new(AtomicBool::new(true));
        let mut gears = on(gpus, 0);
        let hold = Arc::clone(&held);
        let device = Wrapped::new(Arc::clone(&gears[who].device), |_| Ok(()));
        // SAFETY: what it returns ends no sooner than the copy.
        let device = unsafe {
            device.around_copies(move |after, start| {
                let copy = start(after)?;
                Ok(held_back(copy, &hold))
            })
        };
        gears[who].device = Arc::new(device);
        let mut ranks = Ranks::of(gears, &settings(Mode::Led));
        let trial = plain(allreduce(40_000, true), Arithmetic::Sum, &ranks, &mut random);
        let mut ended = [None; 4];
        (0..4).for_each(|rank| assert!(ranks.begin(rank, 1, &trial).unwrap()));
        for turn in 0..TURNS_MAX {
            for (rank, end) in ended.iter_mut().enumerate().filter(|(_, end)| end.is_none()) {
                if let Poll::Ready(result) = ranks.advance(rank, turn) {
                    assert_eq!(result, Ok(Outcome::Done));
                    *end = Some(turn);
                }
            }
            if turn == 500 {
                assert_eq!(ended, [None; 4]);
                held.store(false, Ordering::Release);
            }
            if ended.iter().all(Option::is_some) {
                break;
            }
            ranks.job.progress();
        }
        assert!(ended.iter().all(Option::is_some), "{ended:?}");
        (0..4).for_each(|rank| trial.check(rank));
    }
}

/// A rank whose buffers cannot be lent, or a GPU leader that cannot map them, or memory of another GPU leader: all go
/// another way, and after some calls on one GPU they are copied.
#[test]
fn what_heads_cannot_do_is_done_without_them() {
    let mut random = Random(183);
    // That rank's device has a memory of its own, and says that it is the same.
    for (gpus, who) in
        [(&[0, 0, 0, 0], 0), (&[0, 0, 0, 0], 2), (&[0, 0, 1, 1], 1), (&[0, 0, 1, 1], 2)]
    {
        let mut gears = on(gpus, 1);
        gears[who] = Gear::alone(87, GPU + gpus[who]);
        let mut ranks = Ranks::of(gears, &settings(Mode::Led));
        for number in 0..8 {
            let trial = plain(allreduce(5000, true), Arithmetic::Sum, &ranks, &mut random);
            let all = results(&mut ranks, number, &trial, |_, _| {});
            assert_eq!(all, vec![Some(Ok(Outcome::Elsewhere)); 4], "{gpus:?} {who}");
            // Nothing was written.
            for rank in 0..4 {
                assert!(trial.places[rank][1].bytes(5000) == trial.before[rank].recv);
            }
        }
    }
}

#[test]
fn a_rank_that_dies_while_heads_work_is_named() {
    let mut random = Random(184);
    let (mut errors, mut ends) = (0, 0);
    for gpus in [&[0, 0, 0, 0], &[0, 0, 1, 1]] {
        for who in 0..4 {
            for when in 0..12 {
                let mut ranks = Ranks::of(on(gpus, 2), &settings(Mode::Led));
                let call = match when % 3 {
                    0 => Call::Bcast { root: 1, len: 9000 },
                    _ => allreduce(9000, when % 2 == 0),
                };
                let trial = plain(call, Arithmetic::Sum, &ranks, &mut random);
                let all = results(&mut ranks, 1, &trial, |ranks, turn| {
                    if turn == when {
                        ranks.all[who].give_up();
                        ranks.job.kill(u32::try_from(who).unwrap());
                    }
                });
                for (rank, result) in all.into_iter().enumerate() {
                    match result {
                        // Its loss was not known when memory could not be shared with it.
                        Some(Ok(Outcome::Elsewhere)) => {}
                        Some(Ok(Outcome::Done)) => {
                            ends += 1;
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

/// A GPU leader whose device fails is named by all; the next call is not disturbed.
#[test]
fn a_head_that_fails_is_named() {
    let mut random = Random(185);
    let mut errors = 0;
    for (gpus, who) in [(&[0, 0, 0, 0], 0), (&[0, 0, 1, 1], 2), (&[0, 0, 1, 1], 0)] {
        for after in 0..4 {
            let mut gears = on(gpus, 1);
            let left = Arc::new(Mutex::new(after));
            let count = Arc::clone(&left);
            let fail = move |call: DeviceCall| match call {
                DeviceCall::Copy(_) => {
                    let mut left = count.lock().unwrap();
                    *left -= 1;
                    if *left == -1 {
                        return Err(gapless_mem::DeviceError::Unsupported { what: "that" });
                    }
                    Ok(())
                }
                _ => Ok(()),
            };
            gears[who].device = Arc::new(Wrapped::new(Arc::clone(&gears[who].device), fail));
            let mut ranks = Ranks::of(gears, &settings(Mode::Led));
            let call = Call::Allgather { len: 3000, in_place: after % 2 == 0 };
            let trial = plain(call, Arithmetic::Sum, &ranks, &mut random);
            for (rank, result) in results(&mut ranks, 1, &trial, |_, _| {}).into_iter().enumerate()
            {
                match result {
                    Some(Ok(Outcome::Done)) => trial.check(rank),
                    Some(Err(error)) => {
                        errors += 1;
                        assert_eq!(error.culprit(), u32::try_from(who).ok(), "{error}");
                    }
                    other => panic!("{other:?}"),
                }
            }
            *left.lock().unwrap() = i32::MAX;
            let again = plain(call, Arithmetic::Sum, &ranks, &mut random);
            let all = results(&mut ranks, 2, &again, |_, _| {});
            assert_eq!(all, vec![Some(Ok(Outcome::Done)); 4], "{gpus:?}, rank {who} after {after}");
            (0..4).for_each(|rank| again.check(rank));
        }
    }
    assert!(errors > 20, "{errors}");
}

/// Ranks that have lent their buffers to GPU leaders end when these have stopped, and not before.
#[test]
fn what_is_revoked_ends_where_heads_work() {
    let mut random = Random(178);
    let mut revoked = 0;
    for gpus in [&[0, 0, 0, 0], &[0, 0, 1, 1]] {
        for when in 0..12 {
            let mut ranks = Ranks::of(on(gpus, 2), &settings(Mode::Led));
            let trial = plain(allreduce(9000, true), Arithmetic::Sum, &ranks, &mut random);
            let world = ranks.job.worlds()[0].clone();
            let all = results(&mut ranks, 1, &trial, |ranks, turn| {
                if turn == when {
                    ranks.job.pml(0).revoke(&world).unwrap();
                }
            });
            for result in &all {
                revoked += u32::from(*result == Some(Err(CollError::Revoked)));
                assert!(result.is_some(), "{gpus:?}, turn {when}: {all:?}");
            }
        }
    }
    assert!(revoked > 20, "some are in time: {revoked}");
}

/// A rank that leaves a call has its buffers back only when its GPU leader has given up or ended.
#[test]
fn what_is_lent_is_free_when_its_head_has_stopped() {
    let mut random = Random(179);
    let mut lent = 0;
    for when in 1..10 {
        let mut ranks = Ranks::of(on(&[0, 0, 0], 2), &settings(Mode::Led));
        let trial = plain(allreduce(9000, true), Arithmetic::Sum, &ranks, &mut random);
        let mut held = false;
        let _ = results(&mut ranks, 1, &trial, |ranks, turn| {
            if turn == when {
                held = !ranks.all[2].give_up();
                lent += u32::from(held);
                // The GPU leader is the leader.
                ranks.all[0].give_up();
                assert!(ranks.all[2].give_up(), "turn {when}");
                (0..3).for_each(|rank| ranks.job.kill(rank));
            }
        });
    }
    assert!(lent > 0, "some are in time");
}
