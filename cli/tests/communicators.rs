//! Communicators of real processes: made, used, merged, and made by several threads at once.

use crate::common::ranks;
use gapless::{Comparison, World};

/// Everybody sends its rank in the job to everybody, itself included.
fn gossip(comm: &gapless::Communicator, me: u32) {
    let mine = [me];
    let peers: Vec<u32> = comm.peers().processes().collect();
    let mut heard = vec![0u32; peers.len()];
    comm.scope(|s| {
        for (rank, place) in (0u32..).zip(heard.chunks_mut(1)) {
            let _ = s.irecv(place, rank, 1)?;
            let _ = s.isend(&mine, rank, 1)?;
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(heard, peers);
}

#[test]
fn processes_split_and_meet_again() {
    ranks(4, "communicators::processes_split_and_meet_again", |world: World| {
        let (comm, me) = (world.comm(), world.rank());
        let half = comm.split(Some(me % 2), -i32::try_from(me).unwrap()).unwrap().unwrap();
        assert_eq!((half.size(), half.rank()), (2, u32::from(me < 2)));
        gossip(&half, me);
        let none = comm.split((me == 3).then_some(0), 0).unwrap();
        assert_eq!(none.is_some(), me == 3);
        let together = comm.split_shared(0).unwrap();
        assert_eq!(together.compare(comm), Comparison::Congruent);

        let inter = half.intercomm(0, comm, 2 + (me + 1) % 2, 5).unwrap();
        assert!(inter.is_inter());
        gossip(&inter, me);
        let merged = inter.merge(me % 2 == 0).unwrap();
        assert_eq!(merged.group().processes().collect::<Vec<_>>(), [3, 1, 2, 0]);
        gossip(&merged, me);

        let pair = comm.group().range_incl(&[(3, 0, -3)]).unwrap();
        if me % 3 == 0 {
            gossip(&comm.create_group(&pair, 9).unwrap(), me);
        }
        let created = comm.create(&comm.group().excl(&[1]).unwrap()).unwrap();
        assert_eq!(created.is_none(), me == 1);
        if let Some(created) = created {
            gossip(&created, me);
            created.clone().free().unwrap();
            assert!(created.send(&[1u8], 0, 0).is_err());
        }
        world.finalize().unwrap();
    });
}

#[test]
fn threads_make_communicators_at_once() {
    ranks(3, "communicators::threads_make_communicators_at_once", |world: World| {
        let (comm, me) = (world.comm(), world.rank());
        let own: Vec<_> = (0..4).map(|_| comm.dup().unwrap()).collect();
        std::thread::scope(|threads| {
            for comm in &own {
                threads.spawn(move || {
                    let mut comms = vec![comm.clone()];
                    for _ in 0..20 {
                        let next = comms.last().unwrap().dup().unwrap();
                        gossip(&next, me);
                        comms.push(next);
                    }
                });
            }
        });
        world.finalize().unwrap();
    });
}
