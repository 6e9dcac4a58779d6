//! Communicators are revoked while collectives are under way there: each ends, well or because of that.
use super::*;
use crate::job::Job;
use crate::sm::calls::{any, short};
use crate::sm::{advance, collective, job};
use gapless_coll::CollError;
use gapless_coll::choose::candidates;
use gapless_pml::{Config, Protocol};
use gapless_testkit::{rounds, sample};
use std::task::Poll;

/// One rank takes no part, and revokes after some turns of the others.
#[test]
fn collectives_by_messages_end_when_a_rank_revokes() {
    let mut random = Random(60);
    let n = 5;
    let of = sum(Arithmetic::Sum);
    let (mut failed, mut well) = (0, 0);
    for config in
        [Config::default(), Config { force: Some(Protocol::Pipeline), ..Config::default() }]
    {
        for call in [
            Call::Barrier,
            Call::Bcast { root: 0, len: 6000 },
            Call::Allreduce { len: 6000, of, in_place: false },
            Call::Alltoall { len: 400, in_place: false },
            Call::Gather { root: 2, len: 600, in_place: false },
        ] {
            let calls = vec![call; n as usize];
            for algorithm in candidates(&call, &Locality::flat(n as usize)) {
                for turns in [0, 1, 2, 4, 9] {
                    let how = (Arithmetic::Sum, &[Lie::Gaps, Lie::Plain][..]);
                    let mut collective = Collective::new(&calls, &algorithm, how, &mut random);
                    let mut job = Job::with(n, &config);
                    let comms = job.dup();
                    let sequencers = Job::sequencers(&comms);
                    let mut executors = collective.start(&sequencers);
                    let absent = n - 1;
                    for _ in 0..turns {
                        for (rank, executor) in &mut executors[..absent as usize] {
                            let _ = job.advance(*rank, executor);
                        }
                        job.progress();
                    }
                    job.pml(absent).revoke(&comms[absent as usize]).unwrap();
                    let results = job.finish(&mut executors).into_iter().map(Option::unwrap);
                    for (rank, result) in results.enumerate() {
                        let (what, (_, recv)) = (&collective.what, &collective.held[rank]);
                        match result {
                            Ok(()) => {
                                assert_eq!(
                                    recv.holds(&collective.expected[rank]),
                                    Ok(()),
                                    "{what}"
                                );
                                well += 1;
                            }
                            Err(error) => {
                                assert_eq!(error, CollError::Revoked, "{what}: rank {rank}");
                                failed += 1;
                            }
                        }
                    }
                    // Some may have ended well without having heard of it.
                    (0..20).for_each(|_| job.progress());
                    let mut late = collective.start(&sequencers);
                    for result in job.finish(&mut late) {
                        assert_eq!(result, Some(Err(CollError::Revoked)));
                    }
                    for (rank, comm) in (0..n).zip(&comms) {
                        job.pml(rank).free(comm).unwrap();
                        assert!(!job.pml(rank).has_requests(), "rank {rank}");
                    }
                }
            }
        }
    }
    assert!(failed > 500 && well > 100, "{failed} failed, {well} ended well");
}

/// Ranks go through a program by mailboxes and slots, each at its own pace; then one revokes.
#[test]
fn collectives_through_shared_memory_end_when_a_rank_revokes() {
    let mut random = Random(61);
    let (mut failed, mut well) = (0, 0);
    for choose in [short, any] {
        for ranks in [2, 3, 8] {
            let n = ranks as usize;
            for (round, by) in sample(40).map(|round| (round, round % ranks)) {
                let (mut job, mut segments) = job(ranks);
                let worlds = job.worlds();
                let of = sum(Arithmetic::Sum);
                let program: Vec<Vec<Call<'_>>> =
                    (0..8).map(|_| choose(n, of, &mut random)).collect();
                let mut all: Vec<Collective> = program
                    .iter()
                    .map(|calls| {
                        let lies = [Lie::Plain, Lie::Gaps];
                        collective(calls, Arithmetic::Sum, &lies, &mut random)
                    })
                    .collect();
                let mut at = vec![(0, false); n];
                for turn in 0.. {
                    assert!(turn < 2000, "{at:?} of {program:?}");
                    if turn == round / 3 {
                        job.pml(by).revoke(&worlds[by as usize]).unwrap();
                    }
                    for (rank, segment) in segments.iter_mut().enumerate() {
                        let (index, going) = &mut at[rank];
                        let Some(calls) = program.get(*index) else { continue };
                        if !*going {
                            match all[*index].begin((rank, segment), *index, &calls[rank]) {
                                Ok(()) => *going = true,
                                Err(error) => {
                                    assert_eq!(error, CollError::Revoked);
                                    assert!(worlds[rank].is_revoked());
                                    *index = program.len();
                                    failed += 1;
                                    continue;
                                }
                            }
                        }
                        let looked = segment.look();
                        let Poll::Ready(result) =
                            advance(segment, job.ranks[rank].as_mut().unwrap())
                        else {
                            continue;
                        };
                        *going = false;
                        match result {
                            Ok(()) => {
                                let (one, wrong) = (&all[*index], &program[*index]);
                                let holds = one.held[rank].1.holds(&one.expected[rank]);
                                assert_eq!(holds, Ok(()), "{wrong:?}");
                                *index += 1;
                                well += 1;
                            }
                            Err(error) => {
                                // Or of whoever has heard of it, of whose memory this one has read.
                                let gave_up = matches!(error, CollError::GaveUp { .. });
                                assert!(error == CollError::Revoked || gave_up, "{error}");
                                assert!(looked, "whoever looks sees it");
                                *index = program.len();
                                failed += 1;
                            }
                        }
                    }
                    if turn > round / 3 && at.iter().all(|(index, _)| *index == program.len()) {
                        break;
                    }
                    job.progress();
                }
                (0..20).for_each(|_| job.progress());
                let mut one = collective(
                    &vec![Call::Barrier; n],
                    Arithmetic::Sum,
                    &[Lie::Plain],
                    &mut random,
                );
                for (rank, segment) in segments.iter_mut().enumerate() {
                    assert!(worlds[rank].is_revoked());
                    let with = (&Call::Barrier, job.ranks[rank].as_mut().unwrap());
                    assert_ne!(one.attempt((rank, segment), 100, with, 5), Some(true));
                    let begun = one.begin((rank, segment), 100, &Call::Barrier);
                    assert_eq!(begun, Err(CollError::Revoked));
                }
                drop(segments);
            }
        }
    }
    let least = rounds(300);
    assert!(failed > least && well > least, "{failed} failed, {well} ended well");
}
