//! Reductions by tasks (`xtq` in the table): all forms and operations; what the table leaves to others; a communicator
//! that is revoked; training by each way in which gradients can be summed.

use crate::collectives::reduced::reductions;
use crate::collectives::{Case, Form};
use gapless::btl::Btl;
use gapless::btl::loopback::{Config as LoopbackConfig, Hub, Loopback};
use gapless::coll::Operation;
use gapless::tuning::coll::{Rule, Table};
use gapless::{Collective, Datatype, InPlace, Primitive, ReduceOp, Region, Space, UserOp, World};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_mem::HostDevice;
use gapless_sgd::{Options, SumMode, Workers, train, train_by};
use gapless_tests::job_of;
use gapless_xtq::device::mock_worker::MockWorker;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

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

/// What was posted for payloads that do not come is taken back: later ones find receive buffers of their own.
#[test]
fn lengths_that_do_not_fit_are_refused_and_later_ones_are_right() {
    ranks(2, |world| {
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
