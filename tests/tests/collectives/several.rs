//! Many collectives at once: on one communicator and on several, waited for in any order, by any thread.

use crate::collectives::{rank_of, ranks};
use gapless::{Collective, Error, ReduceOp};

#[test]
fn a_thousand_at_once_waited_for_backwards() {
    ranks(3, |comm| {
        let me = comm.rank();
        let other = comm.dup().unwrap();
        let ours: Vec<[u32; 4]> = (0..1000).map(|at| [at, me, at * me, 1]).collect();
        let mut sums = vec![[0u32; 4]; 1000];
        let mut words = vec![[0u32; 1]; 1000];
        for (at, word) in (0..).zip(&mut words).filter(|(at, _)| at % 3 == me) {
            *word = [at];
        }
        comm.scope(|s| {
            other.scope(|t| {
                let (mut here, mut there) = (Vec::new(), Vec::new());
                for (at, ((ours, sum), word)) in
                    (0..).zip(ours.iter().zip(&mut sums).zip(&mut words))
                {
                    here.push(s.iallreduce(ours, sum, ReduceOp::Sum)?);
                    there.push(t.ibcast(word, at % 3)?);
                }
                while let (Some(one), Some(other)) = (here.pop(), there.pop()) {
                    one.wait()?;
                    other.wait()?;
                }
                Ok(())
            })
        })
        .unwrap();
        for (at, (sum, word)) in (0..).zip(sums.iter().zip(&words)) {
            assert_eq!((*sum, *word), ([3 * at, 3, 3 * at, 3], [at]));
        }
    });
}

#[test]
fn requests_are_tested_until_they_have_ended() {
    ranks(2, |comm| {
        let (mine, mut sum) = ([rank_of(comm)], [0]);
        comm.scope(|s| {
            let mut request = s.iallreduce(&mine, &mut sum, ReduceOp::Sum)?;
            loop {
                match request.test() {
                    Ok(result) => break result,
                    Err(again) => request = again,
                }
            }
        })
        .unwrap();
        assert_eq!(sum, [1]);
    });
}

#[test]
fn a_barrier_ends_when_the_last_has_come() {
    ranks(3, |comm| {
        // Rank 0 comes when the others have been in the barrier for a while, as far as they can tell.
        if comm.rank() == 0 {
            for from in 1..3 {
                comm.recv(&mut [0u8], from, 0).unwrap();
            }
            return comm.scope(|s| s.ibarrier()?.wait()).unwrap();
        }
        comm.scope(|s| {
            let mut request = s.ibarrier()?;
            for _ in 0..1000 {
                request = request.test().expect_err("rank 0 has not come");
            }
            comm.send(&[1u8], 0, 0)?;
            request.wait()
        })
        .unwrap();
    });
}

#[test]
fn a_scope_that_fails_waits_for_its_collectives() {
    ranks(2, |comm| {
        let mut word = [if comm.rank() == 0 { 7u32 } else { 0 }];
        let failed: Result<(), Error> = comm.scope(|s| {
            let _ = s.ibcast(&mut word, 0)?;
            Err(Error::Inactive)
        });
        assert_eq!((failed, word), (Err(Error::Inactive), [7]));
    });
}

#[test]
fn threads_share_a_world_and_each_has_a_communicator() {
    ranks(2, |comm| {
        let comms: Vec<_> = (0..4).map(|_| comm.dup().unwrap()).collect();
        std::thread::scope(|threads| {
            for comm in &comms {
                threads.spawn(move || {
                    for round in 0..200u32 {
                        let mut all = [0; 2];
                        comm.allgather(&[comm.rank() + round], &mut all).unwrap();
                        assert_eq!(all, [round, round + 1]);
                        comm.perform(Collective::barrier()).unwrap();
                    }
                });
            }
        });
    });
}
