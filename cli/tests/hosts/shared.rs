//! Collectives on two hosts, where the table says so, go through the memory that the ranks of each host share: all forms,
//! uneven hosts, orders of ranks; and what happens if a rank revokes.

use super::{on_two_hosts, under_launchers};
use gapless::tuning::coll::{Rule, Table};
use gapless::{
    Collective, Communicator, Datatype, Error, InPlace, Primitive, ReduceOp, UserOp, View, ViewMut,
    World,
};

fn value(rank: u32, at: usize) -> u64 {
    u64::from(rank) * 1_000_003 + at as u64
}

fn sum(comm: &Communicator, at: usize) -> u64 {
    (0..comm.size()).map(|rank| value(rank, at)).sum()
}

/// In place, to a root that leads no host, and not blocking.
fn forms(comm: &Communicator, len: usize) {
    let me = comm.rank();
    let mine: Vec<u64> = (0..len).map(|at| value(me, at)).collect();
    let (mut all, mut word) = (mine.clone(), vec![u64::from(me) + 7; len]);
    comm.allreduce(InPlace, &mut all, ReduceOp::Sum).unwrap();
    assert!((0..len).all(|at| all[at] == sum(comm, at)), "in place, {len}");
    let root = comm.size() - 1;
    let mut one = vec![0; len];
    comm.reduce(&mine, &mut one, ReduceOp::Sum, root).unwrap();
    assert!(me != root || (0..len).all(|at| one[at] == sum(comm, at)), "reduce to {root}, {len}");
    // Many at once; the barrier is the last that begins, and the first that is waited for.
    let mut sums = vec![vec![0u64; len]; 5];
    comm.scope(|s| {
        for recv in &mut sums {
            let _ = s.begin(Collective::allreduce(&mine, recv, ReduceOp::Sum))?;
        }
        let _ = s.begin(Collective::bcast(&mut word, root))?;
        s.begin(Collective::barrier())?.wait()
    })
    .unwrap();
    assert!(sums.iter().flatten().zip((0..len).cycle()).all(|(it, at)| *it == sum(comm, at)));
    assert!(word.iter().all(|it| *it == u64::from(root) + 7));
}

/// A persistent one, whose ranks get their own page in the second start.
fn persistent(comm: &Communicator, len: usize) {
    let mut kept = comm
        .collective_init(vec![0u64; len], vec![0u64; len], |send, recv| {
            Collective::allreduce(send, recv, ReduceOp::Sum)
        })
        .unwrap();
    for start in 0..5 {
        let (send, recv) = kept.buffers_mut().unwrap();
        (0..len).for_each(|at| send[at] = value(comm.rank(), at) + start);
        recv.fill(0);
        kept.start().unwrap();
        kept.wait().unwrap();
        let (_, recv) = kept.buffers_mut().unwrap();
        let due = |at: usize| sum(comm, at) + start * u64::from(comm.size());
        assert!((0..len).all(|at| recv[at] == due(at)), "start {start}, {len}");
    }
}

/// Every second element is sent, and the result goes to every third.
fn with_gaps(comm: &Communicator, len: usize) {
    let every = |step: i64| {
        let long = Datatype::from(Primitive::Uint64);
        Datatype::resized(0, 8 * step, &long).unwrap().commit().unwrap()
    };
    let (two, three) = (every(2), every(3));
    let mine: Vec<u64> = (0..2 * len).map(|at| value(comm.rank(), at / 2)).collect();
    let mut got = vec![u64::MAX; 3 * len];
    let send = View::typed(&mine, 0, &two, len as u64).unwrap();
    let recv = ViewMut::typed(&mut got, 0, &three, len as u64).unwrap();
    comm.allreduce(send, recv, ReduceOp::Sum).unwrap();
    let due = |at: usize| if at.is_multiple_of(3) { sum(comm, at / 3) } else { u64::MAX };
    assert!((0..3 * len).all(|at| got[at] == due(at)), "with gaps, {len}");
}

/// Maps one after the other: the order matters.
fn in_order(comm: &Communicator) {
    let pair = Datatype::contiguous(2, &Primitive::Uint64.into()).unwrap().commit().unwrap();
    let then = |a: [u64; 2], b: [u64; 2]| [a[0] * b[0], a[0] * b[1] + a[1]];
    let op = UserOp::packed("then", false, &pair, move |vectors| {
        let read = |bytes: &[u8]| {
            let half = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
            [half(0), half(8)]
        };
        let pairs = vectors.invec.chunks_exact(16).zip(vectors.inoutvec.chunks_exact_mut(16));
        for (left, right) in pairs {
            let [a, b] = then(read(left), read(right)).map(u64::to_ne_bytes);
            right[..8].copy_from_slice(&a);
            right[8..].copy_from_slice(&b);
        }
    });
    let map = |rank: u32| [u64::from(rank) * 2 + 3, u64::from(rank) + 5];
    let due = (1..comm.size()).map(map).fold(map(0), then);
    let (mine, mut got) = (map(comm.rank()), [0u64; 2]);
    let send = View::typed(&mine, 0, &pair, 1).unwrap();
    let recv = ViewMut::typed(&mut got, 0, &pair, 1).unwrap();
    comm.allreduce(send, recv, op).unwrap();
    assert_eq!(got, due);
}

pub(super) fn rule((name, algorithm): (&str, &str)) -> Rule {
    Rule {
        operation: name.parse().unwrap(),
        ranks_max: usize::MAX,
        bytes_max: u64::MAX,
        algorithm: algorithm.parse().unwrap(),
    }
}

/// Communicators that are made from now on go through shared memory on each host.
fn over_shared(world: &World) {
    let rules = [
        ("barrier", "bruck over shared"),
        ("bcast", "binomial over shared"),
        ("reduce", "binomial over shared"),
        ("allreduce", "halving over shared"),
        ("allgather", "ring over shared"),
    ];
    world.set_coll_table(Table::with(rules.map(rule).to_vec()));
}

fn everything(world: &World) {
    over_shared(world);
    let whole = world.comm().dup().unwrap();
    // Two ranks of one host and one of the other; and all in an order that is no host's.
    let uneven = world.comm().split((world.rank() != 3).then_some(0), 0).unwrap();
    let turn = [0, 2, 1, 3][world.rank() as usize];
    let crossed = world.comm().split(Some(0), turn).unwrap();
    for comm in [Some(whole), uneven, crossed].into_iter().flatten() {
        for len in [1, 100, 5000, 100_000] {
            forms(&comm, len);
            persistent(&comm, len);
            with_gaps(&comm, len);
        }
        in_order(&comm);
    }
}

/// A persistent collective that asks for no page of all ranks: one that is alone on its host takes part in the opening all the
/// same.
fn alone_on_its_host(world: &World) {
    let none = Rule { bytes_max: 0, ..rule(("allreduce", "shared")) };
    let near = rule(("allreduce", "halving over shared"));
    world.set_coll_table(Table::with(vec![none, near]));
    let uneven = world.comm().split((world.rank() != 3).then_some(0), 0).unwrap();
    if let Some(comm) = uneven {
        persistent(&comm, 1);
        persistent(&comm, 5000);
    }
}

#[test]
fn all_forms_give_what_they_are_defined_to_give() {
    under_launchers("shared::all_forms_give_what_they_are_defined_to_give", |world| {
        everything(&world);
        alone_on_its_host(&world);
        world.finalize().unwrap();
    });
}

/// A rank calls nothing, and revokes: the others end, on the page and beyond.
#[test]
fn a_rank_that_revokes_ends_what_the_others_wait_for() {
    on_two_hosts("shared::a_rank_that_revokes_ends_what_the_others_wait_for", &[], |builder| {
        let world = builder.init().unwrap();
        over_shared(&world);
        let comm = world.comm().dup().unwrap();
        comm.barrier().unwrap();
        // Nobody is in that barrier any more when it is revoked.
        world.comm().barrier().unwrap();
        if world.rank() == 1 {
            comm.revoke().unwrap();
        } else {
            let mut sums = [0u64; 3];
            let error = comm.allreduce(&[1u64; 3], &mut sums, ReduceOp::Sum).unwrap_err();
            assert!(matches!(error, Error::Collective { .. }) && error.is_revoked(), "{error}");
        }
        world.comm().barrier().unwrap();
        world.finalize().unwrap();
    });
}
