//! Tasks between hosts: functions that run in a line and in any order, reductions by tasks, and windows whose accumulations are
//! tasks. Over TCP, encrypted or not; over rails of which one is cut meanwhile; at a rank that is killed in the middle.
//!
//! `GAPLESS_SEED` says when a rail is cut, and in which round the rank dies.

use super::namespaces::{Namespaces, interface};
use super::rails::{Random, SEED, all_say, cut_after, first_seed, job, number_of, rails_left};
use super::shared::rule;
use super::{on_two_hosts, together::expect_links};
use crate::common::{self, await_flag, flag, is_rank, meeting_folder, pattern};
use gapless::tuning::coll::Table;
use gapless::xtq::{Function, Put, QueueOptions, Rank, Retry, Task, TaskError, Tasks};
use gapless::{
    Accumulations, Communicator, Datatype, Error, Primitive, ReduceOp, UserOp, Window, World,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Indices of functions, and of their queues.
const IN_LINE: u8 = 5;
const IN_ANY_ORDER: u8 = 6;
/// Tasks that a rank puts at each target in a round, in each of the two orders.
const EACH: u64 = 10;
const LENGTHS: [usize; 5] = [0, 8, 300, 5_000, 70_000];
const ELEMENTS: usize = 600;

fn payload(from: u32, number: u64) -> Vec<u8> {
    let len = LENGTHS[usize::try_from(number).unwrap() % LENGTHS.len()];
    pattern(len, u64::from(from) << 32 | number)
}

/// What one initiator's tasks have done here.
#[derive(Clone, Copy, Default)]
struct Seen {
    in_line: u64,
    in_any_order: u64,
    sum: u64,
}

impl Seen {
    /// What is seen of an initiator that has put so many rounds, each of them once.
    fn assert_all(self, rounds: u64, from: u32) {
        let puts = rounds * EACH;
        assert_eq!((self.in_line, self.in_any_order), (puts, puts), "tasks of rank {from}");
        assert_eq!(self.sum, (0..puts).sum::<u64>(), "tasks of rank {from}");
    }

    fn note(&mut self, task: &Task<'_>) -> Result<(), TaskError> {
        let (from, [_, _, number, _]) = (task.initiator().0, task.arguments());
        if task.payload() != payload(from, number) {
            return Err(format!("the payload of task {number} of rank {from} is wrong").into());
        }
        if task.index() == IN_ANY_ORDER {
            (self.in_any_order, self.sum) = (self.in_any_order + 1, self.sum + number);
        } else if self.in_line == number {
            self.in_line += 1;
        } else {
            return Err(
                format!("task {number} of rank {from} came as number {}", self.in_line).into()
            );
        }
        Ok(())
    }
}

/// A rank, and what others may have done there.
struct Site {
    comm: Communicator,
    tasks: Tasks,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Rounds of tasks that it has put.
    rounds: u64,
    /// A communicator that was made before its world was told to reduce by tasks.
    plain: Communicator,
    /// Adds; says whether that was on another thread than the caller's, as tasks do it.
    op: UserOp,
    on_another_thread: Arc<AtomicBool>,
    /// Whether it was, in each of the last reductions with it.
    by_tasks: Vec<u8>,
    window: Window<u64>,
    /// What everybody has accumulated everywhere.
    accumulated: u64,
}

impl Site {
    /// Of all ranks, together.
    fn new(world: &World) -> Site {
        let plain = world.comm().dup().unwrap();
        let rules = ["allreduce", "reduce"].map(|it| rule((it, "xtq")));
        world.set_coll_table(Table::with(rules.to_vec()));
        let (comm, tasks) = (world.comm().dup().unwrap(), world.xtq());
        let seen = Arc::new(Mutex::new(vec![Seen::default(); comm.size() as usize]));
        for index in [IN_LINE, IN_ANY_ORDER] {
            let seen = Arc::clone(&seen);
            let function = Function::new(70_000, move |task| {
                let from = task.initiator().0 as usize;
                seen.lock().unwrap()[from].note(task)
            });
            tasks.register_function(index, function).unwrap();
        }
        // Few places: puts are refused, and come again.
        tasks.register_queue(IN_LINE, QueueOptions { capacity: 8, width: 1 }).unwrap();
        tasks.register_queue(IN_ANY_ORDER, QueueOptions { capacity: 4, width: 2 }).unwrap();
        [300, 300, 70_000, 70_000].into_iter().for_each(|len| tasks.post(vec![0; len]));
        let caller = std::thread::current().id();
        let on_another_thread = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&on_another_thread);
        let word = Datatype::from(Primitive::Uint64).commit().unwrap();
        let op = UserOp::packed("add", true, &word, move |vectors| {
            let pairs = vectors.invec.as_chunks::<8>().0.iter();
            for (other, one) in pairs.zip(vectors.inoutvec.as_chunks_mut::<8>().0) {
                *one = (u64::from_ne_bytes(*one) + u64::from_ne_bytes(*other)).to_ne_bytes();
            }
            flag.fetch_or(std::thread::current().id() != caller, Ordering::Relaxed);
        });
        let window: Window<u64> = comm.window().accumulate_by_tasks().allocate(ELEMENTS).unwrap();
        assert_eq!(window.accumulations(), Accumulations::Tasks);
        comm.barrier().unwrap();
        let (rounds, accumulated, by_tasks) = (0, 0, Vec::new());
        Site {
            comm,
            tasks,
            seen,
            rounds,
            plain,
            op,
            on_another_thread,
            by_tasks,
            window,
            accumulated,
        }
    }

    /// A round of everything, and whether it was right.
    fn round(&mut self) {
        self.put().unwrap();
        self.reduce().unwrap();
        // By a communicator that knows no tasks: some rank has combined on another thread than the caller's.
        let mut by_tasks = vec![0u8; self.by_tasks.len()];
        self.plain.allreduce(&self.by_tasks, &mut by_tasks, ReduceOp::Max).unwrap();
        assert_eq!(by_tasks, [1; 6], "which reductions were tasks");
        self.accumulate().unwrap();
        self.comm.barrier().unwrap();
        self.assert_seen(&self.comm);
        let all = self.accumulated * u64::from(self.comm.size());
        for at in 0..ELEMENTS {
            assert_eq!(self.window.load(at).unwrap(), all * (1 + at as u64 % 2), "element {at}");
        }
        self.comm.barrier().unwrap();
    }

    /// Puts tasks at everybody, at the last rank last, and waits for all.
    fn put(&mut self) -> Result<(), Error> {
        let (from, first) = (self.comm.rank(), self.rounds * EACH);
        self.rounds += 1;
        let done = self.tasks.signal(2 * EACH * u64::from(self.comm.size()));
        for target in 0..self.comm.size() {
            for number in first..first + EACH {
                let orders = [(IN_LINE, Retry::InOrder), (IN_ANY_ORDER, Retry::InAnyOrder)];
                for (index, retry) in orders {
                    let put = Put::function(Rank(target), index, index, [number, 0]);
                    let put = put.payload(payload(from, number)).retry(retry);
                    self.tasks.put(put.signal(&done))?;
                }
            }
        }
        self.tasks.wait(&done)
    }

    /// All tasks of these ranks, which have put theirs and waited, have run here once, and in order.
    fn assert_seen(&self, comm: &Communicator) {
        let size = comm.size() as usize;
        let (mut ranks, mut rounds) = (vec![0; size], vec![0; size]);
        comm.allgather(&[self.comm.rank()], &mut ranks).unwrap();
        comm.allgather(&[self.rounds], &mut rounds).unwrap();
        for (from, rounds) in ranks.into_iter().zip(rounds) {
            self.seen.lock().unwrap()[from as usize].assert_all(rounds, from);
        }
    }

    /// Reductions of several lengths, by a predefined operation and by one that notes who combines. Each is begun, whatever
    /// became of those before: who does not call is waited for.
    fn reduce(&mut self) -> Result<(), Error> {
        let (comm, me, size) = (&self.comm, self.comm.rank(), self.comm.size());
        let mut failed = Ok(());
        self.by_tasks.clear();
        for len in [1usize, 100, 9_000] {
            let mine: Vec<u64> = (0..len as u64).map(|at| u64::from(me) * 1000 + at).collect();
            let right = |sums: &[u64]| {
                let all = u64::from(size * (size - 1) / 2) * 1000;
                sums.iter().zip(0..).all(|(sum, at): (_, u64)| *sum == all + at * u64::from(size))
            };
            for way in 0..3 {
                let (mut sums, root) = (vec![0; len], size - 1);
                let ended = match way {
                    0 => comm.allreduce(&mine, &mut sums, ReduceOp::Sum),
                    1 => comm.allreduce(&mine, &mut sums, self.op.clone()),
                    _ => comm.reduce(&mine, &mut sums, self.op.clone(), root),
                };
                let elsewhere = self.on_another_thread.swap(false, Ordering::Relaxed);
                self.by_tasks.extend((way > 0).then_some(u8::from(elsewhere)));
                match ended {
                    Ok(()) => assert!(way == 2 && me != root || right(&sums), "{way}, {len}"),
                    Err(error) => failed = Err(error),
                }
            }
        }
        failed
    }

    /// Adds to everybody's part of the window: odd elements get twice as much.
    fn accumulate(&mut self) -> Result<(), Error> {
        let ones: Vec<u64> = (0..ELEMENTS as u64).map(|at| 1 + at % 2).collect();
        self.window.lock_all()?;
        let added = (0..self.comm.size()).try_for_each(|target| {
            self.window.accumulate(&ones, target, 0, ReduceOp::Sum)?;
            self.window.flush(target)
        });
        self.accumulated += 1;
        // Of a target that is lost, too.
        let unlocked = self.window.unlock_all();
        added.and(unlocked)
    }

    fn free(self) {
        self.window.free().unwrap();
    }
}

#[test]
fn tasks_reductions_and_windows_of_two_hosts() {
    on_two_hosts("tasks::tasks_reductions_and_windows_of_two_hosts", &[], |builder| {
        let world = builder.only(["sm", "tcp"]).init().unwrap();
        let mut site = Site::new(&world);
        (0..3).for_each(|_| site.round());
        expect_links(&world, "tcp");
        site.free();
        world.finalize().unwrap();
    });
}

#[test]
fn tasks_reductions_and_windows_over_encrypted_links() {
    on_two_hosts("tasks::tasks_reductions_and_windows_over_encrypted_links", &[], |builder| {
        let world = builder.only(["sm", "tcp"]).encrypt(true).init().unwrap();
        let mut site = Site::new(&world);
        (0..2).for_each(|_| site.round());
        site.free();
        world.finalize().unwrap();
    });
}

const CUT: &str = "tasks::a_rail_that_is_cut_under_tasks_costs_nothing";

#[test]
fn a_rail_that_is_cut_under_tasks_costs_nothing() {
    if is_rank(CUT) {
        return over_rails(number_of(SEED).expect("the test gives it"));
    }
    let seed = first_seed();
    println!("{SEED}={seed}");
    let Some(hosts) = Namespaces::with_cables(CUT, 2) else { return };
    job(CUT, &hosts, seed, &[]);
}

/// Rounds go on until one of two rails has gone at all ranks, and two more over the other.
fn over_rails(seed: u64) {
    let builder = World::builder().wireup(common::folder_wireup());
    let list = [0, 1].map(interface).join(",");
    let world = builder.only(["sm", "tcp"]).tcp_interfaces(list).init().unwrap();
    assert_eq!(rails_left(&world), 2);
    let (mut site, mut moments) = (Site::new(&world), Random::new(seed));
    site.round();
    let pause = Duration::from_millis(moments.below(60) as u64);
    let (cable, how) = (moments.below(2), moments.below(3));
    let cutter: Option<JoinHandle<()>> =
        (world.rank() == 0).then(|| cut_after(pause, cable, how, false));
    while !all_say(&world, rails_left(&world) == 1) {
        site.round();
    }
    if let Some(cutter) = cutter {
        cutter.join().unwrap();
    }
    (0..2).for_each(|_| site.round());
    assert_eq!(rails_left(&world), 1);
    site.free();
    world.finalize().unwrap();
}

/// Rounds in which rank 3 takes part if it lives so long, and in which it does not.
const ROUNDS: usize = 30;
const LAST: usize = 3;

/// Rank 3 is killed in the middle of reductions: the others' fail, and name it; then they put tasks at each other.
#[test]
fn a_rank_that_is_killed_in_reductions_by_tasks_is_named() {
    let name = "tasks::a_rank_that_is_killed_in_reductions_by_tasks_is_named";
    on_two_hosts(name, &[3], |builder| {
        let world = builder.only(["sm", "tcp"]).init().unwrap();
        let mut site = Site::new(&world);
        let rest = world.comm().split((world.rank() != 3).then_some(0), 0).unwrap();
        site.round();
        let over = |what: &str, ranks: u32| {
            let name = |rank| format!("{what}-{rank}");
            flag(&meeting_folder(), &name(world.rank()));
            (0..ranks).for_each(|rank| await_flag(&meeting_folder(), &name(rank)));
        };
        over("met", 4);
        // Rank 3 is killed when it has begun so many rounds, and a moment later.
        let begun = Arc::new(AtomicUsize::new(0));
        if world.rank() == 3 {
            let (seed, begun) = (first_seed(), Arc::clone(&begun));
            println!("{SEED}={seed}");
            let mut moments = Random::new(seed);
            let (last, pause) = (1 + moments.below(ROUNDS), moments.below(5) as u64);
            std::thread::spawn(move || {
                while begun.load(Ordering::Relaxed) < last {
                    std::thread::sleep(Duration::from_micros(200));
                }
                std::thread::sleep(Duration::from_millis(pause));
                let me = rustix::process::getpid();
                rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
            });
        }
        // All call as many reductions, for who has not called one is waited for: the last ones cannot end well.
        let mut is_lost = false;
        for at in 0..ROUNDS + LAST {
            while world.rank() == 3 && at >= ROUNDS {
                std::thread::park_timeout(Duration::from_secs(1));
            }
            begun.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = site.reduce() {
                assert_eq!(error.lost_rank(), Some(3), "{error}");
                is_lost = true;
            }
        }
        assert!(is_lost);
        let rest = rest.expect("the last one is dead");
        rest.barrier().unwrap();
        let error = site.put().expect_err("one of the targets is dead");
        assert_eq!(error.lost_rank(), Some(3), "{error}");
        // Those at ranks that live may still run.
        while !site.tasks.has_settled() {
            site.tasks.progress().unwrap();
            std::thread::sleep(Duration::from_micros(100));
        }
        rest.barrier().unwrap();
        site.assert_seen(&rest);
        over("over", 3);
        std::mem::forget((world, site));
    });
}
