//! Ranks find out whether all have buffers on devices: they all come to the same, however far ahead of each other they
//! are, and one that dies holds nobody up.

use super::*;

/// Ranks go through calls; `on_device` says which rank has buffers there in which call.
fn go_through(
    ranks: &mut Ranks,
    on_device: &[Vec<bool>],
    random: &mut Random,
    mut disturb: impl FnMut(&mut Ranks, u32),
) -> Vec<Vec<Option<Result<Outcome, CollError>>>> {
    let n = ranks.gears.len();
    let (mut at, mut met) = (vec![0; n], vec![false; n]);
    let mut results = vec![Vec::new(); n];
    for turn in 0.. {
        disturb(ranks, turn);
        let is_gone = |rank: usize, ranks: &Ranks| ranks.job.ranks[rank].is_none();
        if (0..n).all(|rank| at[rank] == on_device.len() || is_gone(rank, ranks)) {
            break;
        }
        assert!(turn < TURNS_MAX, "ranks are at {at:?}, {:?}", ranks.all);
        let rank = random.index(n);
        for _ in 0..=random.below(4) * 2 {
            if at[rank] == on_device.len() || is_gone(rank, ranks) {
                break;
            }
            // Numbers are left out by other collectives.
            let number = 1 + 2 * at[rank] as u64;
            if !on_device[at[rank]][rank] {
                ranks.all[rank].decline(number);
                results[rank].push(None);
                at[rank] += 1;
                continue;
            }
            if !met[rank] {
                ranks.all[rank].meet(number).unwrap();
                assert!(ranks.all[rank].meet(number).is_err(), "one at a time");
                met[rank] = true;
            }
            if let Poll::Ready(result) = ranks.advance(rank, turn) {
                results[rank].push(Some(result));
                (at[rank], met[rank]) = (at[rank] + 1, false);
            }
        }
        ranks.job.progress();
    }
    results
}

#[test]
fn ranks_that_meet_all_go_by_messages_or_none_does() {
    let mut random = Random(181);
    for n in [2, 3, 5] {
        let mut ranks = Ranks::new(n, &settings(Mode::Auto), 1);
        let calls: Vec<Vec<bool>> =
            (0..60).map(|_| (0..n).map(|_| random.below(2 * u64::from(n)) > 0).collect()).collect();
        let results = go_through(&mut ranks, &calls, &mut random, |_, _| {});
        for (call, on_device) in calls.iter().enumerate() {
            let expected = match on_device.iter().all(|it| *it) {
                true => Outcome::ByMessages,
                false => Outcome::Elsewhere,
            };
            for (rank, results) in results.iter().enumerate() {
                let met = on_device[rank].then_some(Ok(expected));
                assert_eq!(results[call], met, "{n} ranks, call {call}, rank {rank}");
            }
        }
    }
}

#[test]
fn a_rank_that_dies_holds_up_no_meeting() {
    let mut random = Random(182);
    let mut errors = 0;
    for who in 0..3 {
        for when in 0..20 {
            let mut ranks = Ranks::new(3, &settings(Mode::Auto), 1);
            let results = go_through(&mut ranks, &[vec![true; 3]], &mut random, |ranks, turn| {
                if turn == when && ranks.job.ranks[who].is_some() {
                    ranks.all[who].give_up();
                    ranks.job.kill(u32::try_from(who).unwrap());
                }
            });
            for (rank, results) in results.iter().enumerate().filter(|(rank, _)| *rank != who) {
                match &results[..] {
                    [Some(Ok(Outcome::ByMessages | Outcome::Elsewhere))] => {}
                    [Some(Err(error))] => {
                        errors += 1;
                        assert_eq!(error.culprit(), u32::try_from(who).ok(), "{error}");
                    }
                    other => panic!("rank {rank}: {other:?}"),
                }
            }
        }
    }
    assert!(errors > 3, "{errors}");
}
