//! A leader that is done with a call before some rank has read how it ended, and whose next call ends at once.
use super::*;
use std::sync::atomic::Ordering;

type Ended = Option<Result<Outcome, CollError>>;

/// Ranks after which a rank is frozen at every possible moment, and then some.
const MOMENTS: u32 = 40;
/// More turns than anything takes here.
const MANY: u32 = 200;

/// Advances some ranks once each, if they have not ended.
fn turn(ranks: &mut Ranks, who: &[usize], ended: &mut [Ended], now: u32) {
    for &rank in who {
        if ended[rank].is_none()
            && let Poll::Ready(result) = ranks.advance(rank, now)
        {
            ended[rank] = Some(result);
        }
    }
    ranks.job.progress();
}

/// A rank that only gives may read late that all was gathered. The leader waits for it, or its next orders would stand
/// where those were.
#[test]
fn a_leader_goes_on_when_all_know_that_all_was_gathered() {
    let mut random = Random(180);
    let (mut waited, mut went_on) = (0, 0);
    for settings in copying() {
        for moment in 0..MOMENTS {
            let mut ranks = Ranks::new(3, &settings, 2);
            let call =
                Call::Reduce { root: 0, len: 7000, of: sum(Arithmetic::Sum), in_place: false };
            let trial = Trial::new(call, Arithmetic::Sum, &ranks.gears, &mut random);
            let mut ended: Vec<Ended> = vec![None; 3];
            (0..3).for_each(|rank| assert!(ranks.begin(rank, 1, &trial).unwrap()));
            (0..moment).for_each(|now| turn(&mut ranks, &[0, 1, 2], &mut ended, now));
            // Nothing is heard of rank 2 for a while.
            (0..MANY).for_each(|now| turn(&mut ranks, &[0, 1], &mut ended, now));
            if ended[0].is_some() {
                went_on += 1;
                // The next call goes another way, and the leader tells all.
                ranks.all[1].decline(2);
                assert!(ranks.begin(0, 2, &trial).unwrap());
                let mut next: Vec<Ended> = vec![None; 3];
                (0..MANY).for_each(|now| turn(&mut ranks, &[0], &mut next, now));
                assert_eq!(next[0], Some(Ok(Outcome::Elsewhere)));
            } else {
                waited += 1;
            }
            (0..MANY).for_each(|now| turn(&mut ranks, &[0, 1, 2], &mut ended, now));
            assert_eq!(
                ended,
                vec![Some(Ok(Outcome::Done)); 3],
                "{settings:?} after {moment} turns"
            );
            (0..3).for_each(|rank| trial.check(rank));
        }
    }
    assert!(waited > 0 && went_on > 0, "{waited} {went_on}");
}

/// A leader that has failed waits for nobody, and the next call may go another way. A rank that is late, or has not read
/// its end, does not take that for the end of the first.
#[test]
fn a_failure_is_not_overwritten() {
    let mut random = Random(181);
    let (mut late, mut on_time) = (0, 0);
    for settings in copying() {
        for moment in 0..MOMENTS {
            let mut ranks = Ranks::new(3, &settings, 2);
            let call = Call::Allreduce { len: 7000, of: sum(Arithmetic::Sum), in_place: false };
            let mut trial = Trial::new(call, Arithmetic::Sum, &ranks.gears, &mut random);
            // So that the engine copies, which fails at rank 1.
            alike(&mut trial, &ranks.gears, Some(4));
            ranks.gears[1].engine.broken.store(true, Ordering::Relaxed);
            let mut ended: Vec<Ended> = vec![None; 3];
            let there: &[usize] = if moment == 0 { &[0, 1] } else { &[0, 1, 2] };
            there.iter().for_each(|rank| assert!(ranks.begin(*rank, 1, &trial).unwrap()));
            (0..moment).for_each(|now| turn(&mut ranks, there, &mut ended, now));
            (0..MANY).for_each(|now| turn(&mut ranks, &[0, 1], &mut ended, now));
            let is_named = |ended: &Ended| match ended {
                Some(Err(error)) => error.culprit() == Some(1),
                _ => false,
            };
            assert!(is_named(&ended[0]) && is_named(&ended[1]), "{settings:?} {moment}: {ended:?}");
            match ended[2] {
                Some(_) => on_time += 1,
                None => late += 1,
            }
            ranks.all[1].decline(2);
            assert!(ranks.begin(0, 2, &trial).unwrap());
            let mut next: Vec<Ended> = vec![None; 3];
            (0..MANY).for_each(|now| turn(&mut ranks, &[0], &mut next, now));
            assert_eq!(next[0], Some(Ok(Outcome::Elsewhere)));
            if moment == 0 {
                assert!(ranks.begin(2, 1, &trial).unwrap());
            }
            (0..MANY).for_each(|now| turn(&mut ranks, &[2], &mut ended, now));
            assert!(is_named(&ended[2]), "{settings:?} after {moment} turns: {ended:?}");
            assert!(ranks.begin(2, 2, &trial).unwrap());
            (0..MANY).for_each(|now| turn(&mut ranks, &[2], &mut next, now));
            assert_eq!(next[2], Some(Ok(Outcome::Elsewhere)));
        }
    }
    assert!(late > 0 && on_time > 0, "{late} {on_time}");
}
