//! What is wrong is named: plans that do not fit, kernels that take what is not there, ranks that stay away or die.

use super::{Code, plan, register};
use crate::{POISON, Rank, WATCHDOG, launcher};
use gapless::{DeviceBuf, Error, StreamComm, StreamError, StreamPartitions};
use gapless_tests::launcher::{Member, say};
use std::time::{Duration, Instant};

/// Messages of a rank: one to the next, one from the one before.
struct Circle<'a> {
    code: &'a Code,
    rank: &'a Rank,
    on: StreamComm<'a>,
    send: u64,
    recv: u64,
    seen: &'a DeviceBuf,
}

impl<'a> Circle<'a> {
    const PARTITIONS: u32 = 4;
    const BYTES: u64 = 64;

    fn new(rank: &'a Rank, code: &'a Code, memory: &DeviceBuf, seen: &'a DeviceBuf) -> Circle<'a> {
        let (n, me) = (rank.comm().size(), rank.comm().rank());
        let mut on = rank.on();
        let shared = register(&mut on, memory);
        let end = |rank, at: u64| StreamPartitions {
            rank,
            buffer: shared.at(at * u64::from(Self::PARTITIONS) * Self::BYTES),
            partitions: Self::PARTITIONS,
            bytes: Self::BYTES,
        };
        let planned = plan(&mut on, &[end((me + 1) % n, 0)], &[end((me + n - 1) % n, 1)]).unwrap();
        let (send, recv) = (planned.sends()[0], planned.recvs()[0]);
        Circle { code, rank, on, send, recv, seen }
    }

    fn start(&self) {
        self.code.start(self.rank, [self.recv, 0]).unwrap();
    }

    fn wait(&self, partition: u32) {
        self.code.wait(self.rank, self.recv, partition, 1, self.seen);
    }
}

#[test]
fn a_kernel_that_is_wrong_is_named_and_harms_nothing() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher(
            "partitioned::wrong::a_kernel_that_is_wrong_is_named_and_harms_nothing",
            None,
        );
    };
    let mut rank = Rank::new(&mut member);
    let code = Code::load(&rank);
    let (n, me) = (rank.comm().size(), rank.comm().rank());
    let (next, before) = (1, n - 1);
    let (memory, seen) = (rank.memory(4096), rank.memory(16));
    let none = |rank| StreamError::NoSuchPartition { rank };
    type Wrong = fn(&Circle<'_>);
    let cases: [(Wrong, StreamError); 6] = [
        (|it| it.code.ready(it.rank, it.send, Circle::PARTITIONS, 1), none(next)),
        (|it| it.code.ready(it.rank, it.send, u32::MAX, 1), none(next)),
        (|it| it.code.ready(it.rank, it.recv, 0, 1), none(before)),
        (|it| it.wait(Circle::PARTITIONS), none(before)),
        (|it| it.code.start(it.rank, [it.send, 0]).unwrap(), none(next)),
        (
            |it| {
                it.start();
                it.start();
            },
            StreamError::StartedEarly { rank: before },
        ),
    ];
    for (case, (wrong, error)) in cases.into_iter().enumerate() {
        rank.write(memory.region(), &[POISON; 4096]);
        let it = Circle::new(&rank, &code, &memory, &seen);
        if me == 0 {
            wrong(&it);
            assert_eq!(it.on.wait(), Err(error), "{case}");
            // And so does every later one.
            it.code.ready(&rank, it.send, 0, 1);
            assert!(it.on.wait().is_err(), "{case}");
            // Nor does a wait find what an epoch before has brought.
            rank.write(seen.region(), &[0; 16]);
            it.wait(0);
            assert!(it.on.wait().is_err(), "{case}");
            assert_eq!(rank.read(seen.region(), 8)[4..], [0; 4], "{case}");
        } else {
            it.start();
            it.wait(0);
            assert_eq!(it.on.wait(), Err(StreamError::Failed { rank: 0 }), "{case}");
        }
        rank.comm().barrier().unwrap();
        assert!(rank.read(memory.region(), 4096).iter().all(|byte| *byte == POISON), "{case}");
    }
    // What nobody sends, and what nobody receives, is waited for no longer than allowed.
    rank.options.patience = Duration::from_millis(200);
    for sends in [true, false] {
        let it = Circle::new(&rank, &code, &memory, &seen);
        if me == 0 {
            if sends {
                it.code.ready(&rank, it.send, 0, 4);
            } else {
                it.start();
                it.wait(1);
            }
            let late = StreamError::Late { rank: if sends { next } else { before } };
            assert_eq!(it.on.wait(), Err(late));
        }
        rank.comm().barrier().unwrap();
        if me != 0 {
            it.start();
            assert_eq!(it.on.wait(), Err(StreamError::Failed { rank: 0 }));
        }
    }
    rank.world.finalize().unwrap();
}

#[test]
fn the_death_of_a_sender_ends_waits_and_is_named() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher(
            "partitioned::wrong::the_death_of_a_sender_ends_waits_and_is_named",
            Some(1),
        );
    };
    let rank = Rank::new(&mut member);
    let code = Code::load(&rank);
    let (memory, seen) = (rank.memory(4096), rank.memory(16));
    let it = Circle::new(&rank, &code, &memory, &seen);
    it.start();
    if rank.comm().rank() == 1 {
        it.on.wait().unwrap();
        say("kill");
        std::thread::sleep(WATCHDOG);
    }
    // Those that rank 1 sends nothing to learn it, too.
    it.wait(0);
    let begun = Instant::now();
    let error = it.on.wait().unwrap_err();
    assert_eq!(error.lost_rank(), Some(1), "{error}");
    assert!(begun.elapsed() < WATCHDOG / 2, "patience is longer than that");
}

#[test]
fn messages_that_do_not_fit_are_errors_at_all_ranks() {
    let Some(mut member) = Member::of_launcher() else {
        let test = "partitioned::wrong::messages_that_do_not_fit_are_errors_at_all_ranks";
        return launcher(test, None);
    };
    let rank = Rank::new(&mut member);
    let (n, me) = (rank.comm().size(), rank.comm().rank());
    let memory = rank.memory(4096);
    let mut on = rank.on();
    let shared = register(&mut on, &memory);
    let end = |rank, at| StreamPartitions { rank, buffer: shared.at(at), partitions: 4, bytes: 64 };
    let out = end(1, 0);
    // Rank 1 receives one from rank 0.
    let mut planned = |sends: Vec<StreamPartitions>| match me {
        0 => plan(&mut on, &sends, &[]),
        1 => plan(&mut on, &[], &[end(0, 1024)]),
        _ => plan(&mut on, &[], &[]),
    };
    let (from, to) = (0, 1);
    let messages = |sent| StreamError::MessagesDiffer { from, to, sent, received: 1 };
    let loose = memory.region().into();
    let differ = [
        (vec![], messages(0)),
        (vec![out; 2], messages(2)),
        (
            vec![StreamPartitions { partitions: 5, ..out }],
            StreamError::PartitionsDiffer { from, to, sent: 5, received: 4 },
        ),
        (
            vec![StreamPartitions { bytes: 63, ..out }],
            StreamError::LengthsDiffer { from, to, sent: 252, received: 256 },
        ),
    ];
    for (sends, error) in differ {
        assert_eq!(planned(sends).unwrap_err(), Error::Stream(error));
    }
    let its_own = [
        (end(1, 4096 - 255), StreamError::Outside { argument: "sends", rank: 1 }),
        (end(n, 0), StreamError::NoSuchRank { rank: n, size: n }),
        (
            StreamPartitions { buffer: loose, ..out },
            StreamError::NotRegistered { operation: "plan", argument: "sends" },
        ),
    ];
    for (send, reason) in its_own {
        let error = if me == 0 { reason } else { StreamError::Refused { rank: 0 } };
        assert_eq!(planned(vec![send]).unwrap_err(), Error::Stream(error));
    }
    // What is right is planned after that; and nothing is no error.
    let right = planned(vec![out]).unwrap();
    let counts = (right.sends().len(), right.recvs().len());
    assert_eq!(counts, (usize::from(me == 0), usize::from(me == 1)));
    plan(&mut on, &[], &[]).unwrap();
    rank.comm().barrier().unwrap();
    drop(on);
    rank.world.finalize().unwrap();
}
