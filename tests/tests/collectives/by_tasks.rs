//! Reductions by tasks (`xtq` in the table): all forms and operations; what the table leaves to others; a communicator
//! that is revoked; training by each way in which gradients can be summed.

use crate::collectives::reduced::reductions;
use crate::collectives::windows::worker::{attach as attach_to_windows, play};
use crate::collectives::{Case, Form};
use gapless::Device;
use gapless::btl::Btl;
use gapless::btl::loopback::{Config as LoopbackConfig, Hub, Loopback};
use gapless::coll::Operation;
use gapless::tuning::coll::{Rule, Table};
use gapless::xtq::Life;
use gapless::{
    Collective, Communicator, Datatype, InPlace, Lock, Primitive, ReduceOp, Region, Space, UserOp,
    World,
};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_mem::HostDevice;
use gapless_sgd::{Options, SumMode, Workers, train, train_by};
use gapless_tests::job_of;
use gapless_xtq::device::mock_worker::MockWorker;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// All reductions whose operation commutes go by tasks, one of them in pieces.
pub(crate) fn table() -> Table {
    use Operation::{Allreduce, Reduce, ReduceScatter, ReduceScatterBlock};
    let rule = |operation, bytes_max, name: &str| {
        let (ranks_max, algorithm) = (usize::MAX, name.parse().unwrap());
        Rule { operation, ranks_max, bytes_max, algorithm }
    };
    let by = [
        (Reduce, "xtq in 4K"),
        (Allreduce, "xtq"),
        (ReduceScatter, "xtq"),
        (ReduceScatterBlock, "xtq"),
    ];
    let none = by.map(|(operation, _)| rule(operation, 0, "shared"));
    let tasks = by.map(|(operation, name)| rule(operation, u64::MAX, name));
    Table::with(none.into_iter().chain(tasks).collect())
}

/// Runs `body` as each of `size` ranks with that table; even numbers of them share memory, others map nothing.
fn ranks(size: u32, body: impl Fn(&World) + Sync) {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let number = JOBS.fetch_add(1, Ordering::Relaxed);
    let name = format!("by tasks {} {number}", std::process::id());
    let hub = Hub::new();
    let bare = LoopbackConfig { rdma: false, mapped: false, ..LoopbackConfig::default() };
    let builder = |rank: u32| {
        let transport: Box<dyn Btl> = match size % 2 {
            0 => Box::new(Sm::new(SmConfig::new(name.clone(), format!("rank {rank}"))).unwrap()),
            _ => Box::new(Loopback::with(&hub, bare.clone())),
        };
        let only = [transport.limits().name];
        World::builder().only(only).transport(transport).coll_table(table())
    };
    job_of(size, builder, body);
}

#[test]
fn all_forms_and_operations_by_tasks() {
    for size in 1..=4 {
        ranks(size, |world| {
            for form in [Form::Blocking, Form::NonBlocking, Form::Left] {
                for (round, len) in [3, 0, 1, 700, 20_000].into_iter().enumerate() {
                    let stride = 1 + (round + world.rank() as usize) % 3;
                    reductions(&Case { comm: world.comm(), form, stride, len });
                }
            }
        });
    }
}

#[test]
fn persistent_ones_and_many_at_once_by_tasks() {
    ranks(3, |world| {
        let (comm, ours) = (world.comm(), vec![world.rank(); 500]);
        let mut sum = comm
            .collective_init(ours.clone(), vec![0u32; 500], |send, recv| {
                Collective::allreduce(send, recv, ReduceOp::Sum)
            })
            .unwrap();
        for _ in 0..4 {
            sum.start().unwrap();
            let mut sums = vec![vec![0u32; 500]; 20];
            comm.scope(|s| {
                for (at, sums) in sums.iter_mut().enumerate() {
                    let root = u32::try_from(at).unwrap() % comm.size();
                    let _ = match at % 2 {
                        0 => {
                            s.begin(Collective::allreduce(&ours[..], &mut sums[..], ReduceOp::Sum))?
                        }
                        _ => s.begin(Collective::reduce(
                            &ours[..],
                            &mut sums[..],
                            ReduceOp::Sum,
                            root,
                        ))?,
                    };
                }
                Ok(())
            })
            .unwrap();
            sum.wait().unwrap();
            assert!(sum.buffers().unwrap().1.iter().all(|it| *it == 3));
            for (at, sums) in sums.iter().enumerate() {
                let has = at % 2 == 0 || at % 3 == world.rank() as usize;
                assert!(!has || sums.iter().all(|it| *it == 3), "{at}");
            }
        }
    });
}

#[test]
fn blocks_and_users_functions_by_tasks() {
    ranks(4, |world| {
        let (comm, rank) = (world.comm(), world.rank());
        let number = Datatype::from(Primitive::Uint32).commit().unwrap();
        let op = UserOp::packed("or", true, &number, |vectors| {
            vectors.inoutvec.iter_mut().zip(vectors.invec).for_each(|(one, other)| *one |= other);
        });
        let mut bits = vec![1u32 << rank; 9];
        comm.allreduce(InPlace, &mut bits, op).unwrap();
        assert_eq!(bits, [15; 9]);
        let ours: Vec<u32> = (0..8).map(|at| at + rank).collect();
        let mut block = [0; 2];
        comm.reduce_scatter_block(&ours, &mut block, ReduceOp::Sum).unwrap();
        assert_eq!(block, [0, 1].map(|at| 4 * (2 * rank + at) + 6));
        let counts = [1, 0, 4, 3];
        let mut part = vec![0; usize::try_from(counts[rank as usize]).unwrap()];
        comm.reduce_scatter(&ours, &mut part, &counts, ReduceOp::Sum).unwrap();
        let first = [0, 1, 1, 5][rank as usize];
        let right: Vec<u32> = (first..).take(part.len()).map(|at| 4 * at + 6).collect();
        assert_eq!(part, right);
    });
}

#[test]
fn whoever_waits_for_a_task_hears_that_the_communicator_is_revoked() {
    ranks(3, |world| {
        let comm = world.comm().dup().unwrap();
        let mut sum = [1u32; 100];
        comm.allreduce(InPlace, &mut sum, ReduceOp::Sum).unwrap();
        // Nobody is in that one any more.
        world.comm().barrier().unwrap();
        if world.rank() == 1 {
            comm.revoke().unwrap();
        }
        let error = comm.allreduce(InPlace, &mut sum, ReduceOp::Sum).unwrap_err();
        assert!(error.is_revoked(), "{error}");
        // Longer ones: what comes late for the revoked one needs no receive buffer of theirs.
        for len in [7, 1000, 100, 1000] {
            let mut sum = vec![1u32; len];
            world.comm().allreduce(InPlace, &mut sum, ReduceOp::Sum).unwrap();
            assert!(sum.iter().all(|it| *it == 3));
        }
    });
}

#[test]
fn training_gives_the_same_losses_whoever_sums_the_gradients() {
    let options = Options { steps: 12, batch: 24, rate: 0.3 };
    for size in [2, 3, 4] {
        ranks(size, |world| {
            let [default, messages, tasks] =
                SumMode::ALL.map(|way| train(world, way, options).unwrap());
            let bits = |losses: &[f32]| losses.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&messages.losses), bits(&tasks.losses));
            assert_eq!(messages.network, tasks.network);
            for (one, other) in default.losses.iter().zip(&tasks.losses) {
                assert!((one - other).abs() < 1e-3, "{one} and {other}");
            }
            let workers = Workers::new(world, adder(), Arc::new(HostDevice::new())).unwrap();
            let workers = train_by(world, &workers, options).unwrap();
            assert_eq!(bits(&messages.losses), bits(&workers.losses));
            let (first, last) = (tasks.losses[0], tasks.losses[options.steps - 1]);
            assert!(last < 0.9 * first, "{:?}", tasks.losses);
            assert_eq!(tasks.sizes, [8192, 128, 1280, 40, 4]);
        });
    }
}

/// Gives the rank a worker that a thread plays. Counts the tasks that it combines.
fn attach(world: &World) -> Arc<AtomicU32> {
    let ran = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&ran);
    let mock = MockWorker::new(move |task| {
        count.fetch_add(1, Ordering::Relaxed);
        play(task)
    });
    // It leaves often.
    let life = Life { idle: Some(Duration::from_micros(300)), ..Life::default() };
    let host: Arc<dyn Device> = Arc::new(HostDevice::new());
    world.attach_collective_worker(mock.clone(), &host, life).unwrap();
    let error = world.attach_collective_worker(mock, &host, life).unwrap_err();
    assert!(error.to_string().contains("worker"), "{error}");
    ran
}

#[test]
fn workers_combine_all_forms_at_some_ranks_or_at_all() {
    // By rings where memory is shared, else by messages; at last rank 0 alone has a worker.
    for (size, all) in [(2, true), (3, true), (4, true), (2, false)] {
        ranks(size, |world| {
            let ran = (all || world.rank() == 0).then(|| attach(world));
            assert_eq!(world.has_collective_worker(), ran.is_some());
            for form in [Form::Blocking, Form::NonBlocking, Form::Left] {
                for (round, len) in [3, 0, 1, 700, 20_000].into_iter().enumerate() {
                    let stride = 1 + (round + world.rank() as usize) % 3;
                    reductions(&Case { comm: world.comm(), form, stride, len });
                }
            }
            let ran = || ran.as_ref().map(|ran| ran.load(Ordering::Relaxed));
            let before = ran();
            let mut sum = vec![1.5f64; 100];
            world.comm().allreduce(InPlace, &mut sum, ReduceOp::Sum).unwrap();
            assert!(sum.iter().all(|it| *it == 1.5 * f64::from(size)));
            // A thread has run none of those that the worker knows.
            assert_eq!(ran(), before.map(|before| before + size - 1));
        });
    }
}

#[test]
fn persistent_ones_and_more_at_once_than_workers_have_seats() {
    ranks(2, |world| {
        let (comm, ran) = (world.comm(), attach(world));
        let mut sum = comm
            .collective_init(vec![1u32; 500], vec![0u32; 500], |send, recv| {
                Collective::allreduce(send, recv, ReduceOp::Sum)
            })
            .unwrap();
        for _ in 0..3 {
            sum.start().unwrap();
            let mut sums = vec![vec![0u64; 50]; 60];
            comm.scope(|s| {
                for sums in &mut sums {
                    let sum = Collective::allreduce(&[2u64; 50], &mut sums[..], ReduceOp::Sum);
                    let _ = s.begin(sum)?;
                }
                Ok(())
            })
            .unwrap();
            sum.wait().unwrap();
            assert!(sum.buffers().unwrap().1.iter().all(|it| *it == 2));
            assert!(sums.iter().flatten().all(|it| *it == 4));
        }
        assert!(ran.load(Ordering::Relaxed) > 0);
    });
}

#[test]
fn what_fails_beside_a_worker_is_told_and_later_ones_are_right() {
    ranks(2, |world| {
        let ran = attach(world);
        let mut sum = vec![1i32; 100];
        world.comm().allreduce(InPlace, &mut sum, ReduceOp::Sum).unwrap();
        // Lengths that do not fit.
        for round in 0..5usize {
            let comm = world.comm().dup().unwrap();
            let mut sum = vec![1i32; 10 + 10 * world.rank() as usize + round];
            comm.allreduce(InPlace, &mut sum, ReduceOp::Sum).unwrap_err();
        }
        for len in [1000, 7, 100] {
            let mut sum = vec![1i32; len];
            world.comm().allreduce(InPlace, &mut sum, ReduceOp::Sum).unwrap();
            assert!(sum.iter().all(|it| *it == 2));
        }
        assert!(ran.load(Ordering::Relaxed) > 0);
        // A collective that is revoked.
        let comm = world.comm().dup().unwrap();
        comm.allreduce(InPlace, &mut sum, ReduceOp::Sum).unwrap();
        world.comm().barrier().unwrap();
        if world.rank() == 1 {
            comm.revoke().unwrap();
        }
        let error = comm.allreduce(InPlace, &mut sum, ReduceOp::Sum).unwrap_err();
        assert!(error.is_revoked(), "{error}");
        let mut sum = vec![1i32; 100];
        world.comm().allreduce(InPlace, &mut sum, ReduceOp::Sum).unwrap();
        assert!(sum.iter().all(|it| *it == 2));
    });
}

/// Windows are made by reductions, too: who has sent the worker away to have another one there does not wait for it.
#[test]
fn threads_combine_while_a_worker_is_kept_away() {
    ranks(2, |world| {
        let (comm, ran) = (world.comm(), attach(world));
        let reduce = || {
            let mut sum = vec![1i32; 100];
            comm.allreduce(InPlace, &mut sum, ReduceOp::Sum).unwrap();
            assert!(sum.iter().all(|it| *it == 2));
        };
        reduce();
        world.keep_collective_worker(false).unwrap();
        let before = ran.load(Ordering::Relaxed);
        assert!(before > 0 && world.has_collective_worker());
        reduce();
        attach_to_windows(world, &Arc::default());
        let builder = comm.window().accumulate_by_worker();
        let mut window = builder.allocate::<f64>(512).unwrap();
        if comm.rank() == 0 {
            window.lock(1, Lock::Shared).unwrap();
            for _ in 0..3 {
                window.accumulate(&[1.5; 512], 1, 0, ReduceOp::Sum).unwrap();
                window.flush(1).unwrap();
            }
            window.unlock(1).unwrap();
        }
        comm.barrier().unwrap();
        assert_eq!(window.load(511).unwrap(), 4.5 * f64::from(comm.rank()));
        window.free().unwrap();
        assert_eq!(ran.load(Ordering::Relaxed), before);
        // Tasks of another rank that is further do not go to the worker before.
        comm.barrier().unwrap();
        world.keep_collective_worker(true).unwrap();
        reduce();
        assert!(ran.load(Ordering::Relaxed) > before);
    });
}

/// What its worker was to combine may fail; threads do all that comes later.
#[test]
fn threads_combine_when_a_worker_is_lost_and_no_other_takes_its_place() {
    ranks(2, |world| {
        let host: Arc<dyn Device> = Arc::new(HostDevice::new());
        let life = Life { idle: None, ..Life::default() };
        let mock = MockWorker::new(play);
        world.attach_collective_worker(mock.clone(), &host, life).unwrap();
        let reduce = |comm: &Communicator| {
            let mut sum = vec![1i32; 100];
            let summed = comm.allreduce(InPlace, &mut sum, ReduceOp::Sum);
            summed.map(|()| assert!(sum.iter().all(|it| *it == 2)))
        };
        reduce(world.comm()).unwrap();
        let comms: Vec<_> = (0..200).map(|_| world.comm().dup().unwrap()).collect();
        world.comm().barrier().unwrap();
        if world.rank() == 0 {
            mock.die();
        }
        // Both call each once, whatever became of the one before, until both have seen the loss; what that needs goes by
        // messages, as the worker may be lost in the middle of a reduction.
        let mut comms = comms.iter();
        loop {
            let comm = comms.next().expect("the loss is noticed by one of so many");
            let _ = reduce(comm);
            let mut lost = [u8::from(!world.has_collective_worker())];
            world.comm().bcast(&mut lost, 0).unwrap();
            if lost == [1] {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(world.has_collective_worker(), world.rank() == 1);
        for _ in 0..3 {
            reduce(world.comm()).unwrap();
        }
        let error = world.attach_collective_worker(MockWorker::new(play), &host, life).unwrap_err();
        assert!(error.to_string().contains("worker"), "{error}");
        assert_eq!(world.has_collective_worker(), world.rank() == 1);
        reduce(world.comm()).unwrap();
    });
}

/// A worker that a thread plays: it adds floats to the registered buffer.
fn adder() -> Arc<MockWorker> {
    MockWorker::new(|task| {
        let [buffer, offset] = [task.arguments[0], task.arguments[2]];
        let sums = Region::new(Space::Host, buffer, offset, task.payload.len() as u64);
        let mut bytes = vec![0; task.payload.len()];
        // SAFETY: the arguments are the rewritten ones: the buffer that was registered, and an offset in it. Nothing else
        // touches it while the task runs.
        unsafe { gapless_mem::read(&sums, 0, &mut bytes) }.unwrap();
        let floats = bytes.as_chunks_mut::<4>().0.iter_mut();
        for (sum, more) in floats.zip(task.payload.as_chunks::<4>().0) {
            *sum = (f32::from_ne_bytes(*sum) + f32::from_ne_bytes(*more)).to_ne_bytes();
        }
        // SAFETY: as above.
        unsafe { gapless_mem::write(&sums, 0, &bytes) }.unwrap();
        Ok(())
    })
}
