//! Non-blocking and persistent collectives through shared memory: in lines, waited for in any order, mixed with blocking
//! ones, messages and other communicators.

use crate::collectives::ranks;
use gapless::btl::Btl;
use gapless::btl::loopback::{Hub, Loopback};
use gapless::{
    Blocks, BlocksMut, Collective, CollectiveError, Communicator, Config, Error, InPlace,
    OwnedCollective, PersistentCollective, ReduceOp,
};
use gapless_btl_testkit::Random;
use gapless_btl_testkit::trace::{Record, Trace};
use gapless_tests::job;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// What a rank contributes to the `call`th collective.
fn given(call: usize, rank: usize, count: usize) -> Vec<u64> {
    (0..count).map(|at| (call * 1009 + rank * 31 + at % 97) as u64).collect()
}

const KINDS: usize = 8;

/// One collective of all ranks: its kind, root and length.
#[derive(Clone, Copy, Debug)]
struct Step {
    call: usize,
    kind: usize,
    root: usize,
    len: usize,
}

impl Step {
    /// How many numbers rank `from` has for rank `to`.
    fn block(self, from: usize, to: usize) -> usize {
        self.len / 8 + (from * 3 + to * 5 + self.call) % 4
    }

    fn counts(self, ranks: usize, count: impl Fn(usize) -> usize) -> Vec<u64> {
        (0..ranks).map(|rank| count(rank) as u64).collect()
    }

    /// What this rank gives and has room for.
    fn buffers(self, me: usize, ranks: usize) -> (Vec<u64>, Vec<u64>) {
        let all = |count: &dyn Fn(usize) -> usize| (0..ranks).map(count).sum();
        let (out, room) = match self.kind {
            0 => (self.len, self.len),
            1 => (0, self.len),
            2 | 4 => (self.len * ranks, self.len * ranks),
            3 => (all(&|to| self.block(me, to)), all(&|from| self.block(from, me))),
            5 => (self.len, if me == self.root { self.len } else { 0 }),
            6 => (self.len, self.len),
            _ => (0, 0),
        };
        let mut room = vec![u64::MAX; room];
        match self.kind {
            1 if me == self.root => room = given(self.call, me, self.len),
            // In place.
            4 => room[me * self.len..][..self.len].copy_from_slice(&given(self.call, me, self.len)),
            _ => {}
        }
        (given(self.call, me, out), room)
    }

    fn describe<'b>(
        self,
        (me, ranks): (usize, usize),
        send: impl gapless::SendBuffer<'b>,
        recv: impl gapless::RecvBuffer<'b>,
    ) -> Collective<'b> {
        let root = u32::try_from(self.root).unwrap();
        match self.kind {
            0 => Collective::allreduce(send, recv, ReduceOp::Sum),
            1 => Collective::bcast(recv, root),
            2 => Collective::alltoall(send, recv),
            3 => {
                let out = self.counts(ranks, |to| self.block(me, to));
                let into = self.counts(ranks, |from| self.block(from, me));
                let send = Blocks::packed(send, &out).unwrap();
                Collective::alltoallv(send, BlocksMut::packed(recv, &into).unwrap())
            }
            4 => Collective::allgather(InPlace, recv),
            5 => Collective::reduce(send, recv, ReduceOp::Max, root),
            6 => Collective::scan(send, recv, ReduceOp::Sum),
            _ => Collective::barrier(),
        }
    }

    /// What this rank has received in the end.
    fn due(self, me: usize, ranks: usize) -> Vec<u64> {
        let each = |count: usize| (0..ranks).map(move |rank| given(self.call, rank, count));
        let sum = |last: usize| {
            let add = |sum: Vec<u64>, next: Vec<u64>| {
                sum.iter().zip(next).map(|(one, other)| one + other).collect()
            };
            each(self.len).take(last + 1).fold(vec![0; self.len], add)
        };
        match self.kind {
            0 => sum(ranks - 1),
            1 => given(self.call, self.root, self.len),
            2 => each(self.len * ranks)
                .flat_map(|all| all[me * self.len..][..self.len].to_vec())
                .collect(),
            3 => (0..ranks)
                .flat_map(|from| {
                    let count = |to: usize| self.block(from, to);
                    let start: usize = (0..me).map(count).sum();
                    let all = given(self.call, from, (0..ranks).map(count).sum());
                    all[start..start + count(me)].to_vec()
                })
                .collect(),
            4 => each(self.len).flatten().collect(),
            5 if me == self.root => given(self.call, ranks - 1, self.len),
            6 => sum(me),
            _ => Vec::new(),
        }
    }
}

/// A persistent one.
type Kept = (Step, PersistentCollective<Vec<u64>, Vec<u64>>);

/// What is in flight: one that is waited for once, or one that is started again.
enum Flight {
    Once(OwnedCollective<Vec<u64>, Vec<u64>>),
    Kept(usize),
}

/// All ranks run the same program of random calls on several communicators, as blocking, non-blocking and persistent ones;
/// each waits for what is in flight in an order of its own, and sends messages to itself and others meanwhile.
#[test]
fn random_programs_give_what_they_are_defined_to_give() {
    let most = std::env::var("GAPLESS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = most.map_or(1..gapless_testkit::rounds(12) + 1, |seed: u64| seed..seed + 1);
    for seed in seeds {
        // An even number of ranks is of a host's processes, an odd one of loopbacks.
        for size in [2, 3, 4] {
            println!("GAPLESS_SEED={seed}, {size} ranks");
            ranks(size, |comm| program(comm, seed));
        }
    }
}

fn program(comm: &Communicator, seed: u64) {
    const CALLS: usize = 60;
    let (me, n) = (comm.rank() as usize, comm.size() as usize);
    let mut common = Random::new(seed * 7919 + 1);
    let mut own = Random::new(seed * 104_729 + comm.rank() as u64 + 2);
    let comms: Vec<Communicator> = (0..3).map(|_| comm.dup().unwrap()).collect();
    let lens = [0, 1, 3, 40, 700, 6000, 40_000];
    let step = |call: usize, common: &mut Random| Step {
        call,
        kind: common.below(KINDS),
        root: common.below(n),
        len: lens[common.below(lens.len())],
    };
    let describe = |step: Step, comm: &Communicator| {
        let (send, recv) = step.buffers(me, n);
        let made =
            comm.collective_init(send, recv, |send, recv| step.describe((me, n), send, recv));
        made.map_err(|refused| refused.error).unwrap()
    };
    let mut kept: Vec<Kept> = (0..4)
        .map(|call| {
            let step = step(call, &mut common);
            (step, describe(step, &comms[call % 3]))
        })
        .collect();
    let mut flights: Vec<(Step, Flight)> = Vec::new();
    let check = |step: Step, received: &[u64]| {
        assert!(received == step.due(me, n), "seed {seed}, rank {me}: {step:?}");
    };
    let finish = |(step, flight): (Step, Flight), kept: &mut [Kept]| match flight {
        Flight::Once(one) => {
            let ((_, received), result) = one.wait();
            result.unwrap();
            check(step, &received);
        }
        Flight::Kept(which) => {
            let one = &mut kept[which].1;
            one.wait().unwrap();
            check(step, one.buffers().unwrap().1);
        }
    };
    for call in 10..10 + CALLS {
        let (form, which) = (common.below(8), common.below(3));
        let (comm, step) = (&comms[which], step(call, &mut common));
        match form {
            // Some messages come in between: to the next rank, of whose collectives this one may be ahead.
            0 => {
                let (next, before) = ((me + 1) % n, (me + n - 1) % n);
                let tag = i32::try_from(call).unwrap();
                comm.send(&[call as u64], u32::try_from(next).unwrap(), tag).unwrap();
                let mut word = [0u64];
                comm.recv(&mut word, u32::try_from(before).unwrap(), tag).unwrap();
                assert_eq!(word, [call as u64]);
            }
            1 => {
                let (send, mut recv) = step.buffers(me, n);
                comm.perform(step.describe((me, n), &send, &mut recv)).unwrap();
                check(step, &recv);
            }
            // A persistent one: it may have to end first.
            2 | 3 => {
                let which = common.below(kept.len());
                let active =
                    flights.iter().position(|it| matches!(it.1, Flight::Kept(w) if w == which));
                if let Some(at) = active {
                    finish(flights.remove(at), &mut kept);
                }
                let (step, one) = &mut kept[which];
                let (send, recv) = step.buffers(me, n);
                let buffers = one.buffers_mut().unwrap();
                buffers.0.copy_from_slice(&send);
                buffers.1.copy_from_slice(&recv);
                one.start().unwrap();
                flights.push((*step, Flight::Kept(which)));
            }
            _ => {
                let (send, recv) = step.buffers(me, n);
                let begun = comm
                    .begin_owned(send, recv, |send, recv| step.describe((me, n), send, recv))
                    .map_err(|refused| refused.error)
                    .unwrap();
                flights.push((step, Flight::Once(begun)));
            }
        }
        if flights.len() > 12 || own.below(4) == 0 {
            while flights.len() > 4 && own.below(5) > 0 {
                finish(flights.remove(own.below(flights.len())), &mut kept);
            }
        }
    }
    while !flights.is_empty() {
        finish(flights.swap_remove(own.below(flights.len())), &mut kept);
    }
}

/// To begin is local, also the first time, when the ranks have no memory in common yet: rank 1 begins when it has a message
/// that rank 0 sends after it has begun.
#[test]
fn to_begin_waits_for_nobody() {
    for size in [2, 3] {
        ranks(size, |comm| {
            for round in 0..5u64 {
                if comm.rank() == 1 {
                    comm.recv(&mut [0u8], 0, 0).unwrap();
                }
                let begun: Vec<_> = (0..3)
                    .map(|at| {
                        let mine = vec![round + at; 2000];
                        comm.begin_owned((), mine, |_, recv| {
                            Collective::allreduce(InPlace, recv, ReduceOp::Sum)
                        })
                        .unwrap()
                    })
                    .collect();
                if comm.rank() == 0 {
                    comm.send(&[1u8], 1, 0).unwrap();
                }
                for (at, one) in [0u64, 1, 2].into_iter().zip(begun).rev() {
                    let ((_, sum), result) = one.wait();
                    result.unwrap();
                    assert_eq!(sum, vec![u64::from(size) * (round + at); 2000]);
                }
            }
        });
    }
}

/// Thousands in flight on many communicators, which come to their ends in another order at each rank.
#[test]
fn thousands_in_flight_on_many_communicators() {
    const COMMS: usize = 40;
    const EACH: usize = 60;
    for size in [2, 3] {
        ranks(size, |comm| {
            let comms: Vec<_> = (0..COMMS).map(|_| comm.dup().unwrap()).collect();
            let mut flights = Vec::new();
            for round in 0..EACH {
                for (at, comm) in comms.iter().enumerate() {
                    let mine = vec![(round * at) as u64; if round % 20 == 7 { 900 } else { 2 }];
                    let begun = comm.begin_owned((), mine, |_, recv| {
                        Collective::allreduce(InPlace, recv, ReduceOp::Sum)
                    });
                    flights.push((round * at, begun.unwrap()));
                }
            }
            let mut random = Random::new(u64::from(comm.rank()) + 5);
            while !flights.is_empty() {
                let (each, one) = flights.swap_remove(random.below(flights.len()));
                let ((_, sum), result) = one.wait();
                result.unwrap();
                assert!(sum.iter().all(|sum| *sum == u64::from(size) * each as u64));
            }
        });
    }
}

/// Once the ranks share memory, collectives in all forms send no data by messages.
#[test]
fn no_form_sends_data_by_messages() {
    /// Bytes of all vectors and blocks. Messages that wake sleepers have none.
    const BYTES: usize = 240;
    let sent = Arc::new(AtomicUsize::new(0));
    let hub = Hub::new();
    let transports = |_| -> Vec<Box<dyn Btl>> {
        let sent = Arc::clone(&sent);
        let listener = move |record: Record| {
            if matches!(record, Record::Send { len, .. } if len >= BYTES) {
                sent.fetch_add(1, Ordering::Relaxed);
            }
        };
        vec![Box::new(Trace::new(Loopback::new(&hub), Box::new(listener)))]
    };
    job(2, &Config::default(), transports, |world| {
        let comm = world.comm();
        let mut kept = comm
            .collective_init((), vec![1u64; BYTES / 8], |_, recv| {
                Collective::allreduce(InPlace, recv, ReduceOp::Max)
            })
            .unwrap();
        let mut round = |count: usize| {
            for _ in 0..count {
                let (mine, mut all, mut sum) =
                    ([1u64; BYTES / 8], [0u64; BYTES / 4], [0u64; BYTES / 8]);
                comm.scope(|s| {
                    let _ = s.iallgather(&mine, &mut all)?;
                    s.iallreduce(&mine, &mut sum, ReduceOp::Sum)?.wait()
                })
                .unwrap();
                assert_eq!((all, sum), ([1; BYTES / 4], [2; BYTES / 8]));
                kept.start().unwrap();
                while kept.test().unwrap().is_none() {}
            }
        };
        round(3);
        comm.barrier().unwrap();
        let before = sent.load(Ordering::Relaxed);
        assert!(before > 0, "the first start of a persistent one goes by messages");
        comm.barrier().unwrap();
        round(50);
        comm.barrier().unwrap();
        assert_eq!(sent.load(Ordering::Relaxed), before);
    });
}

/// A rank that is refused a non-blocking one tells those that need it, in its turn.
#[test]
fn others_learn_of_a_refusal_in_the_line() {
    ranks(3, |comm| {
        let (mine, mut sums, mut bad) = ([1u64; 4], [[0u64; 4]; 2], [0u64; 3]);
        let [first, last] = &mut sums;
        comm.scope(|s| {
            let first = s.iallreduce(&mine, first, ReduceOp::Sum)?;
            if comm.rank() == 2 {
                assert!(s.iallreduce(&mine, &mut bad, ReduceOp::Sum).is_err());
            } else {
                let mut sum = [0u64; 4];
                let failed = comm.scope(|s| s.iallreduce(&mine, &mut sum, ReduceOp::Sum)?.wait());
                let Err(Error::Collective { error, .. }) = failed else { panic!("{failed:?}") };
                assert!(matches!(*error, CollectiveError::Failed { .. }), "{error}");
            }
            let last = s.iallreduce(&mine, last, ReduceOp::Sum)?;
            first.wait()?;
            last.wait()
        })
        .unwrap();
        assert_eq!(sums, [[3; 4]; 2]);
    });
}

/// A function that a thread calls while it waits in a blocking collective may begin a non-blocking one there.
#[test]
fn functions_begin_collectives_while_a_blocking_one_is_under_way() {
    let (waits, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    ranks(2, |comm| {
        for round in 1..=3 {
            let begin = move |comm: &Communicator| {
                comm.begin_owned((), vec![round; 9], |_, recv| {
                    Collective::allreduce(InPlace, recv, ReduceOp::Sum)
                })
                .unwrap()
            };
            let then = move |ended: Arc<AtomicU32>| {
                move |(_, sum): ((), Vec<u32>), result: Result<(), Error>| {
                    result.unwrap();
                    assert_eq!(sum, [2 * round; 9]);
                    ended.fetch_add(1, Ordering::Release);
                }
            };
            if comm.rank() == 0 {
                let (inner, ended) = (comm.clone(), Arc::clone(&ended));
                let request = comm.irecv_owned(vec![0u8], 1, 5).unwrap();
                request.on_done(move |_, _| begin(&inner).on_done(then(ended)));
                waits.store(round, Ordering::Release);
                // Rank 1 comes when this one has begun the other.
                comm.barrier().unwrap();
            } else {
                while waits.load(Ordering::Acquire) < round {
                    std::thread::yield_now();
                }
                comm.send(&[1u8], 0, 5).unwrap();
                comm.barrier().unwrap();
                begin(comm).on_done(then(Arc::clone(&ended)));
            }
            while ended.load(Ordering::Acquire) < 2 * round {
                let _ = comm.iprobe(0, 9).unwrap();
                std::thread::yield_now();
            }
        }
    });
}

/// Persistent ones are dropped, made and started in the midst of others; those of other ranks do not mind.
#[test]
fn persistent_ones_come_and_go() {
    for size in [2, 3] {
        ranks(size, |comm| {
            for round in 0..30u64 {
                let mut several: Vec<_> = (0..4)
                    .map(|at| {
                        comm.collective_init((), vec![round + at; 300], |_, recv| {
                            Collective::allreduce(InPlace, recv, ReduceOp::Max)
                        })
                        .unwrap()
                    })
                    .collect();
                for start in 0..4 {
                    let from = comm.rank() as usize + start;
                    (0..4).for_each(|at| several[(from + at) % 4].start().unwrap());
                    if start == 3 && round % 2 == 0 {
                        // In flight.
                        break;
                    }
                    for (at, one) in [0u64, 1, 2, 3].into_iter().zip(&mut several).rev() {
                        one.wait().unwrap();
                        assert_eq!(one.buffers().unwrap().1, [round + at; 300]);
                    }
                }
            }
            comm.barrier().unwrap();
        });
    }
}
