//! Whole jobs in one thread, over the loopback, besides the threads that run tasks. Time is virtual.

mod answers;
mod contract;
mod direct_put;
mod ends;
mod gathered;
#[allow(unsafe_code, reason = "looks at memory of a worker that does nothing")]
mod gpu;
mod hostile;
mod kernels;
#[allow(unsafe_code, reason = "launches what touches no memory but the payload")]
mod launched;
mod limits;
mod order;
mod quick;
mod room;
mod scene;
mod suite;
mod worker;

use super::{Config, QueueOptions, Xtq};
use crate::error::{Refusal, XtqError};
use crate::packet::Launch;
use crate::put::{Put, PutHandle, Retry};
use crate::{
    Function, Gather, GatherInto, GroupLimits, Kernel, KernelTask, Launcher, Payload, RefusedTask,
    Signal, TargetBuffer,
};
use gapless_bml::{Bml, Handler, Rank, RankEvent};
use gapless_btl::loopback::{self, Hub, Loopback};
#[cfg(feature = "ib")]
use gapless_btl_ib::{Ib, IbConfig, Secret};
use gapless_btl_testkit::fault::{Fault, Plan};
use gapless_mem::{Completion, DeviceError};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Longer than anything takes here, and shorter than a test may.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the longest message, so that payloads of some KiB come in pieces.
const FRAGMENT: usize = 1024;

/// The same put, to another rank.
fn to(target: Rank, mut put: Put) -> Put {
    put.order.target = target;
    put
}

struct Rest;

impl Handler for Rest {
    fn handle(&mut self, _: &mut Bml, _: RankEvent) {}
}

/// One rank.
struct End {
    bml: Bml,
    xtq: Xtq,
}

/// Ranks that know each other. With a seed, the transport has storms, delays, disorder and doubles.
struct Job {
    ends: Vec<End>,
    now_ns: u64,
}

impl Job {
    fn new(size: u32, seed: Option<u64>) -> Job {
        Job::with(size, seed, None)
    }

    /// As [`new`](Job::new); messages for the bare rank reach nobody.
    fn with(size: u32, seed: Option<u64>, bare: Option<u32>) -> Job {
        Job::configured(size, seed, bare, &Config::default())
    }

    fn configured(size: u32, seed: Option<u64>, bare: Option<u32>, tasks: &Config) -> Job {
        Job::over(size, seed, bare, tasks, true)
    }

    /// `mapped`: whether ranks map each other's memory. If not, operations reach it: those of the loopback, or of two
    /// adapters with the feature `ib`.
    fn over(size: u32, seed: Option<u64>, bare: Option<u32>, tasks: &Config, mapped: bool) -> Job {
        let hub = Hub::new();
        let config = loopback::Config {
            max_fragment_bytes: FRAGMENT,
            eager_bytes: FRAGMENT,
            slots: 8,
            ordered: seed.is_none(),
            mapped,
            ..loopback::Config::default()
        };
        let mut bmls: Vec<Bml> = (0..size).map(|rank| Bml::new(Rank(rank), size)).collect();
        for bml in &mut bmls {
            #[cfg(feature = "ib")]
            if !mapped {
                bml.add(Box::new(adapter(bml.me().0)));
                continue;
            }
            let loopback = Loopback::with(&hub, config.clone());
            let plan = Plan {
                seed: seed.unwrap_or_default() + u64::from(bml.me().0),
                full_per_mille: 50,
                full_calls_max: 5,
                delay_polls_max: 5,
                reorder_per_mille: 200,
                duplicate_per_mille: 100,
                ..Plan::default()
            };
            match seed {
                None => bml.add(Box::new(loopback)),
                Some(_) => bml.add(Box::new(Fault::new(loopback, plan))),
            }
        }
        let addresses: Vec<_> = bmls.iter().map(Bml::addresses).collect();
        let mut ends = Vec::new();
        for mut bml in bmls {
            for (rank, addresses) in (0u32..).zip(&addresses) {
                if Rank(rank) != bml.me() {
                    bml.connect(Rank(rank), addresses).unwrap();
                }
            }
            let mut apart = Bml::new(bml.me(), size);
            let attached = if bare == Some(bml.me().0) { &mut apart } else { &mut bml };
            let xtq = Xtq::attach(attached, tasks.clone()).unwrap();
            ends.push(End { bml, xtq });
        }
        Job { ends, now_ns: 0 }
    }

    fn xtq(&self, rank: usize) -> &Xtq {
        &self.ends[rank].xtq
    }

    /// Gives how much happened.
    fn step(&mut self) -> usize {
        self.now_ns += 20_000;
        let now_ns = self.now_ns;
        let step = |End { bml, xtq }: &mut End| bml.poll(&mut Rest) + xtq.advance(bml, now_ns);
        self.ends.iter_mut().map(step).sum()
    }

    /// Progress of one rank.
    fn step_one(&mut self, rank: usize) -> usize {
        self.now_ns += 20_000;
        let End { bml, xtq } = &mut self.ends[rank];
        bml.poll(&mut Rest) + xtq.advance(bml, self.now_ns)
    }

    /// Makes progress everywhere until `ready` says so.
    fn until<T>(&mut self, mut ready: impl FnMut(&Job) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(value) = ready(self) {
                return value;
            }
            assert!(start.elapsed() < PATIENCE, "it never came");
            if self.step() == 0 {
                // A task may need this processor.
                std::thread::yield_now();
            }
        }
    }

    fn outcome(&mut self, handle: &PutHandle) -> Result<(), XtqError> {
        self.until(|_| handle.outcome())
    }

    fn end_of(&mut self, signal: &Signal) -> Result<(), XtqError> {
        self.until(|_| signal.poll())
    }

    fn settle(&mut self) {
        self.until(|job| job.ends.iter().all(|end| end.xtq.has_settled()).then_some(()));
    }
}

/// A rank's port, of the two that `GAPLESS_IB_PORTS` names: every other rank has the other one.
#[cfg(feature = "ib")]
fn adapter(rank: u32) -> Ib {
    let ports = std::env::var("GAPLESS_IB_PORTS").unwrap_or_else(|_| "rxe0,rxe1".to_owned());
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let (first, second) = ports.split_once(',').expect("two devices with a comma between them");
    if rank == 0 {
        JOBS.fetch_add(1, Ordering::Relaxed);
    }
    let job = format!("tests of xtq {} {}", std::process::id(), JOBS.load(Ordering::Relaxed));
    let mut config = IbConfig::new(&job, rank, Secret::new([0x5a; 32]));
    config.device = Some(if rank.is_multiple_of(2) { first } else { second }.to_owned());
    config.buffers = 32;
    Ib::new(config).unwrap_or_else(|error| panic!("{error}: these tests need two ports"))
}

/// A function that appends the payload's length and its arguments to a list, and adds the payload to its buffer.
fn adds(buffer: &TargetBuffer, seen: &Arc<AtomicU64>) -> Function {
    let seen = Arc::clone(seen);
    let add = Function::new(1 << 20, move |task| {
        let [buffer_at, payload_at, third, fourth] = task.arguments();
        let (payload, buffer) = task.parts();
        for (at, bytes) in [(buffer_at, &*buffer), (payload_at, payload)] {
            let lies = if bytes.is_empty() { 0 } else { bytes.as_ptr().addr() as u64 };
            assert_eq!(at, lies);
        }
        buffer.iter_mut().zip(payload).for_each(|(sum, more)| *sum = sum.wrapping_add(*more));
        seen.fetch_add(third * fourth, Ordering::Relaxed);
        Ok(())
    });
    add.buffer(buffer)
}

#[test]
fn tasks_run_at_other_ranks_and_at_ones_own() {
    for seed in [None, Some(11)] {
        println!("seed {seed:?}");
        let mut job = Job::new(2, seed);
        let (sum, seen) = (TargetBuffer::new(vec![1; 100_000]), Arc::new(AtomicU64::new(0)));
        for rank in 0..2 {
            job.xtq(rank).register_function(7, adds(&sum, &seen)).unwrap();
            job.xtq(rank).register_queue(0, QueueOptions::default()).unwrap();
            job.xtq(rank).post(vec![9; 100_000]);
        }
        // Inline, in pieces, and none; to the other rank and to this one.
        let lengths = [3, FRAGMENT, 100_000, 0];
        let mut puts = Vec::new();
        for (at, len) in (1u64..).zip(lengths) {
            for target in [1, 0] {
                let put = Put::function(Rank(target), 7, 0, [10, at]).payload(vec![2; len]);
                let put = put.retry(Retry::InAnyOrder).acknowledged();
                puts.push(job.xtq(0).put(put).unwrap());
            }
        }
        for put in puts {
            assert_eq!((job.outcome(&put), put.accepted()), (Ok(()), Some(Ok(()))));
        }
        assert_eq!(seen.load(Ordering::Relaxed), 2 * 10 * (1 + 2 + 3 + 4));
        sum.with(|sum| {
            assert_eq!((sum[0], sum[3], sum[FRAGMENT], sum[99_999]), (13, 9, 5, 5));
        });
        // The one buffer of each was used again and again, and is posted now.
        job.settle();
        assert_eq!(job.xtq(1).take_posted().iter().map(Vec::len).collect::<Vec<_>>(), [100_000]);
        assert_eq!(job.xtq(0).take_posted().len(), 1);
    }
}

#[test]
fn a_task_may_keep_its_receive_buffer() {
    let mut job = Job::new(2, None);
    let (kept, buffers) = mpsc::channel();
    let keep = Function::new(64, move |task| {
        assert_eq!(task.initiator(), Rank(0));
        kept.send(task.take_payload()).map_err(|error| error.to_string())?;
        assert!(task.payload().is_empty());
        Ok(())
    });
    job.xtq(1).register_function(0, keep).unwrap();
    job.xtq(1).register_queue(0, QueueOptions::default()).unwrap();
    job.xtq(1).post(vec![0; 64]);
    let put = Put::function(Rank(1), 0, 0, [0, 0]).payload(&b"mine"[..]).acknowledged();
    let handle = job.xtq(0).put(put).unwrap();
    job.outcome(&handle).unwrap();
    let taken = buffers.try_recv().unwrap();
    assert_eq!(taken, b"mine");
    assert!(job.xtq(1).take_posted().is_empty());
    // Posted again, it is as long as it was.
    job.xtq(1).post(taken);
    let put = Put::function(Rank(1), 0, 0, [0, 0]).payload(vec![7; 64]).acknowledged();
    let handle = job.xtq(0).put(put).unwrap();
    job.outcome(&handle).unwrap();
    assert_eq!(buffers.try_recv().unwrap(), [7; 64]);
}

#[test]
fn what_was_not_registered_is_refused_and_both_ends_learn_it() {
    let mut job = Job::new(2, None);
    let nothing = || Function::new(10, |_| Ok(()));
    job.xtq(1).watch_refusals(true);
    let refused = |job: &mut Job, put: Put| {
        let (index, queue) = (put.order.command.index, put.order.command.queue);
        let handle = job.xtq(0).put(put.acknowledged()).unwrap();
        let Err(XtqError::Refused { target: Rank(1), refusal }) = job.outcome(&handle) else {
            panic!("{handle:?}")
        };
        assert_eq!(handle.accepted(), handle.outcome());
        let told = RefusedTask { initiator: Rank(0), index, queue, refusal };
        assert_eq!(job.xtq(1).take_refusals(), [told]);
        refusal
    };
    let put = |payload: usize| Put::function(Rank(1), 5, 6, [0, 0]).payload(vec![0; payload]);
    assert_eq!(refused(&mut job, put(0)), Refusal::NotRegistered);
    job.xtq(1).register_function(5, nothing()).unwrap();
    assert_eq!(refused(&mut job, put(0)), Refusal::NoQueue);
    job.xtq(1).register_queue(6, QueueOptions::default()).unwrap();
    assert_eq!(refused(&mut job, put(11)), Refusal::PayloadTooLong { max: 10 });
    assert_eq!(refused(&mut job, put(5000)), Refusal::PayloadTooLong { max: 10 });
    assert_eq!(refused(&mut job, put(10)), Refusal::NoReceiveBuffer);
    job.xtq(1).post(vec![0; 9]);
    assert_eq!(refused(&mut job, put(10)), Refusal::ReceiveBufferTooSmall { largest: 9 });
    job.xtq(1).post(vec![0; 10]);
    let handle = job.xtq(0).put(put(10)).unwrap();
    job.outcome(&handle).unwrap();
    job.xtq(1).unregister_function(5).unwrap();
    assert_eq!(refused(&mut job, put(0)), Refusal::NotRegistered);
    // What no packet can express is no put at all.
    let error = |put| job.xtq(0).put(put).unwrap_err();
    let nobody = error(Put::function(Rank(2), 0, 0, [0, 0]));
    assert_eq!(nobody, XtqError::NoSuchRank { rank: Rank(2), size: 2 });
    assert!(matches!(error(Put::function(Rank(1), 64, 0, [0, 0])), XtqError::Packet(_)));
    assert!(job.xtq(1).register_function(64, nothing()).is_err());
    // The last 256 are kept, the others counted.
    for _ in 0..260 {
        job.xtq(0).put(put(0)).unwrap();
    }
    job.settle();
    assert_eq!((job.xtq(1).take_refusals().len(), job.xtq(1).forgotten_refusals()), (256, 4));
    let none = job.xtq(1).register_queue(0, QueueOptions { capacity: 0, width: 1 });
    assert_eq!(none, Err(XtqError::NoRoom { capacity: 0, width: 1 }));
}

#[test]
fn registering_anew_takes_the_place_of_the_old_and_is_never_mixed_with_it() {
    let mut job = Job::new(2, None);
    let runs: Arc<AtomicU32> = Arc::default();
    // Each version knows which buffer belongs to it.
    let version = |number: u8| {
        let buffer = TargetBuffer::new(vec![number; 4]);
        let runs = Arc::clone(&runs);
        let function = Function::new(0, move |task| {
            runs.fetch_add(1, Ordering::Relaxed);
            // The address is the table's, the buffer the function's.
            let same = task.arguments()[0] == task.buffer().as_ptr().addr() as u64;
            if same && task.buffer() == [number; 4] { Ok(()) } else { Err("mixed".into()) }
        });
        function.buffer(&buffer)
    };
    let target = job.xtq(1).clone();
    target.register_function(1, version(0)).unwrap();
    target.register_queue(1, QueueOptions { capacity: 4, width: 2 }).unwrap();
    let registering = std::thread::spawn({
        let versions: Vec<Function> = (1..=100).map(version).collect();
        move || {
            for function in versions {
                target.register_function(1, function).unwrap();
                std::thread::yield_now();
            }
        }
    });
    let mut handles = Vec::new();
    for _ in 0..200 {
        let put = Put::function(Rank(1), 1, 1, [0, 0]).retry(Retry::InAnyOrder).acknowledged();
        handles.push(job.xtq(0).put(put).unwrap());
        job.step();
    }
    for handle in handles {
        assert_eq!(job.outcome(&handle), Ok(()));
    }
    registering.join().unwrap();
    assert_eq!(runs.load(Ordering::Relaxed), 200);
}

#[test]
fn a_task_that_fails_or_panics_is_told_to_whoever_waits_and_the_next_one_runs() {
    let mut job = Job::new(2, None);
    let fails = Function::new(0, |task| match task.arguments()[2] {
        0 => Err(format!("no {}", "é".repeat(300)).into()),
        1 => panic!("it is one"),
        2 => std::panic::panic_any(7),
        _ => Ok(()),
    });
    job.xtq(1).register_function(0, fails.buffer(&TargetBuffer::new(vec![0]))).unwrap();
    job.xtq(1).register_queue(0, QueueOptions::default()).unwrap();
    let mut run = |argument| {
        let signal = job.xtq(0).signal(1);
        let put = Put::function(Rank(1), 0, 0, [argument, 0]).signal(&signal);
        let handle = job.xtq(0).put(put).unwrap();
        let end = job.end_of(&signal);
        assert_eq!((handle.accepted(), handle.outcome()), (Some(Ok(())), Some(end.clone())));
        end
    };
    let failed = |reason: &str| Err(XtqError::Failed { target: Rank(1), reason: reason.into() });
    assert_eq!(run(0), failed(&format!("no {}", "é".repeat(98))));
    assert_eq!(run(1), failed("it panicked: it is one"));
    assert_eq!(run(2), failed("it panicked: without a text"));
    assert_eq!(run(3), Ok(()));
}

#[test]
fn tasks_lead_to_tasks_over_three_ranks() {
    let mut job = Job::new(3, Some(5));
    let all = job.xtq(0).signal(1);
    // Each rank adds its number and puts on from within the task; the last one tells rank 0.
    for rank in 0..3 {
        let all = all.clone();
        let on = Function::new(64, move |task| {
            let (me, mut text) = (task.xtq().me(), task.take_payload());
            text.push(b'0' + u8::try_from(me.0).unwrap());
            if text.len() == 6 {
                assert_eq!(text, b"120120");
                all.count_down();
                return Ok(());
            }
            task.xtq().post(vec![0; 64]);
            let next = Rank((me.0 + 1) % task.xtq().size());
            task.put(Put::function(next, 3, 3, [0, 0]).payload(text).retry(Retry::InOrder))?;
            Ok(())
        });
        job.xtq(rank).register_function(3, on).unwrap();
        job.xtq(rank).register_queue(3, QueueOptions::default()).unwrap();
        job.xtq(rank).post(vec![0; 64]);
    }
    let first = Put::function(Rank(1), 3, 3, [0, 0]);
    job.xtq(0).put(first).unwrap();
    assert_eq!(job.end_of(&all), Ok(()));
}

#[test]
fn a_put_may_wait_for_a_signal_and_fails_with_it() {
    let mut job = Job::new(2, None);
    let seen: Arc<AtomicU64> = Arc::default();
    let sum = TargetBuffer::new(Vec::new());
    job.xtq(1).register_function(0, adds(&sum, &seen)).unwrap();
    job.xtq(1).register_queue(0, QueueOptions::default()).unwrap();
    let (first, second) = (job.xtq(0).signal(2), job.xtq(0).signal(1));
    let put = |factor: u64| Put::function(Rank(1), 0, 0, [factor, 1]);
    job.xtq(0).put(put(100).after(&first).signal(&second)).unwrap();
    (0..20).for_each(|_| _ = job.step());
    assert_eq!((seen.load(Ordering::Relaxed), job.xtq(0).is_quiet()), (0, true));
    job.xtq(0).put(put(1).signal(&first)).unwrap();
    job.xtq(0).put(put(2).signal(&first)).unwrap();
    assert_eq!((job.end_of(&second), seen.load(Ordering::Relaxed)), (Ok(()), 103));
    // A task that is refused ends its signal, and what waits for that.
    let (first, second) = (job.xtq(0).signal(1), job.xtq(0).signal(1));
    job.xtq(0).put(put(1).after(&first).signal(&second)).unwrap();
    job.xtq(0).put(Put::function(Rank(1), 9, 0, [0, 0]).signal(&first)).unwrap();
    let refused = Err(XtqError::Refused { target: Rank(1), refusal: Refusal::NotRegistered });
    assert_eq!((job.end_of(&second), seen.load(Ordering::Relaxed)), (refused, 103));
}

#[test]
fn a_lost_peer_ends_puts_and_signals_and_gives_receive_buffers_back() {
    let mut job = Job::new(3, None);
    let seen: Arc<AtomicU64> = Arc::default();
    let sum = TargetBuffer::new(Vec::new());
    for rank in 0..2 {
        job.xtq(rank).register_function(0, adds(&sum, &seen)).unwrap();
        job.xtq(rank).register_queue(0, QueueOptions::default()).unwrap();
        job.xtq(rank).post(vec![0; 100_000]);
    }
    // Rank 2 begins to send a body to rank 0, and dies in the middle of it.
    job.step();
    let put = Put::function(Rank(0), 0, 0, [1, 1]).payload(vec![0; 100_000]);
    job.xtq(2).put(put).unwrap();
    job.until(|job| job.xtq(0).inner.with(|state| state.target.awaits_data().then_some(())));
    let mine = job.xtq(0).signal(1);
    let refused = job.xtq(0).put(Put::function(Rank(2), 0, 0, [0, 0]).signal(&mine)).unwrap();
    let held = job.xtq(0).put(Put::function(Rank(1), 0, 0, [1, 1]).after(&mine).acknowledged());
    let theirs = job.xtq(0).signal_from(5, &[Rank(2)]);
    let others = job.xtq(0).signal_from(5, &[Rank(1)]);
    drop(job.ends.pop());
    let held = held.unwrap();
    let outcome = job.outcome(&held).unwrap_err();
    for error in [outcome, job.end_of(&mine).unwrap_err(), job.end_of(&theirs).unwrap_err()] {
        assert!(matches!(error, XtqError::Lost { rank: Rank(2), .. }), "{error}");
        assert!(error.to_string().starts_with("process 2 is lost"), "{error}");
    }
    assert_eq!((refused.outcome(), others.poll()), (Some(mine.poll().unwrap()), None));
    assert_eq!(job.xtq(0).take_posted().len(), 1);
    // A later put fails at once, and others go on.
    let late = job.xtq(0).put(Put::function(Rank(2), 0, 0, [0, 0])).unwrap();
    assert!(matches!(job.outcome(&late), Err(XtqError::Lost { rank: Rank(2), .. })));
    let on = job.xtq(0).put(Put::function(Rank(1), 0, 0, [3, 1]).acknowledged()).unwrap();
    assert_eq!((job.outcome(&on), seen.load(Ordering::Relaxed)), (Ok(()), 3));
}

#[test]
fn leaving_ends_what_is_held_back_and_waits_for_what_runs() {
    let mut job = Job::new(2, None);
    let (go, gate) = mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let wait = Function::new(1, move |_| {
        gate.lock().unwrap().recv_timeout(PATIENCE).map_err(|error| error.to_string().into())
    });
    job.xtq(1).register_function(0, wait).unwrap();
    job.xtq(1).register_queue(0, QueueOptions { capacity: 1, width: 1 }).unwrap();
    let put = || Put::function(Rank(1), 0, 0, [0, 0]).acknowledged();
    let runs = job.xtq(0).put(put()).unwrap();
    job.until(|_| runs.accepted()).unwrap();
    let never = job.xtq(0).signal(1);
    let held = job.xtq(0).put(put().after(&never)).unwrap();
    let buffer = Put::function(Rank(1), 0, 0, [0, 0]).payload(vec![0]).retry(Retry::InOrder);
    let unfit = job.xtq(0).put(buffer).unwrap();
    job.until(|_| (unfit.refusals() > 0).then_some(()));
    job.xtq(0).close();
    assert_eq!(held.outcome(), Some(Err(XtqError::Closed)));
    assert_eq!(job.xtq(0).put(put()).unwrap_err(), XtqError::Closed);
    assert!(!job.xtq(0).has_settled());
    go.send(()).unwrap();
    job.settle();
    assert_eq!(runs.outcome(), Some(Ok(())));
    assert!(matches!(unfit.outcome(), Some(Err(_))));
    // What has not begun when a process is given up is dropped.
    let first = job.xtq(1).put(put()).unwrap();
    job.until(|job| (job.xtq(1).inner.live.load(Ordering::Relaxed) == 1).then_some(()));
    drop(job.xtq(1).abandon());
    assert_eq!(first.outcome(), Some(Err(XtqError::Closed)));
    // The function is gone if it has not begun.
    let _ = go.send(());
    job.settle();
}
