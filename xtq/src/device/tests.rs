//! The host's side of a worker, and rings, with a thread that plays the kernel.

mod code;
mod rings;

use super::mock_worker::{MockTask, MockWorker, memory};
use super::*;
use crate::Refusal;
use crate::packet::{Command, Flags, Launch, Packet, TaskWork};
use gapless_mem::{DeviceError, Lease, Worker, WorkerLimits};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const SHAPE: RingShape = RingShape { arena_bytes: 4096 };

type Log = Arc<Mutex<Vec<MockTask>>>;

/// A worker that stays, and notes what it runs.
fn noting() -> (Arc<MockWorker>, Log) {
    let log = Log::default();
    let theirs = Arc::clone(&log);
    let mock = MockWorker::new(move |task| {
        theirs.lock().unwrap().push(task.clone());
        if task.payload == b"fail" { Err(1) } else { Ok(()) }
    });
    (mock, log)
}

/// What holds a mock worker's tasks up.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    has_task: bool,
    is_open: bool,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.has_task = true;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.is_open).unwrap());
    }

    fn await_task(&self) {
        let state = self.state.lock().unwrap();
        let came = self.changed.wait_timeout_while(state, PATIENCE, |state| !state.has_task);
        assert!(!came.unwrap().1.timed_out(), "no task comes");
    }

    fn open(&self) {
        self.state.lock().unwrap().is_open = true;
        self.changed.notify_all();
    }
}

/// A worker that stays, and whose tasks wait at a gate.
fn gated() -> (Arc<MockWorker>, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let theirs = Arc::clone(&gate);
    let play = move |_: &MockTask| {
        theirs.pass();
        Ok(())
    };
    (MockWorker::new(play), gate)
}

fn always() -> Life {
    Life { idle: None, longest: PATIENCE }
}

fn target(worker: Arc<impl Worker + 'static>, life: Life) -> WorkerTarget {
    let mut target = WorkerTarget::new(worker, life).unwrap();
    let kernel = DeviceKernel::new(DeviceFunction::Copy, 2048).grid_max([1024, 1, 1]);
    register(&mut target, 7, Some(kernel.buffer(memory(64).unwrap()).signal(3))).unwrap();
    target.register_queue(2, 1).unwrap();
    target
}

fn register(
    target: &mut WorkerTarget,
    index: u8,
    kernel: Option<DeviceKernel>,
) -> Result<(), TargetError> {
    // SAFETY: the mock worker touches no buffers, nor does anybody else.
    unsafe { target.register_kernel(index, kernel) }
}

fn post(target: &mut WorkerTarget, bytes: u64) {
    // SAFETY: likewise.
    unsafe { target.post(memory(bytes).unwrap()) }.unwrap();
}

fn lane(target: &mut WorkerTarget) -> (Lane, Lease) {
    let ring = memory(SHAPE.bytes()).unwrap();
    // SAFETY: the memory is new, and the ring's.
    unsafe { target.add_ring(ring.clone(), SHAPE) }.unwrap();
    // SAFETY: likewise.
    let lane = unsafe { Lane::new(ring.clone(), SHAPE) };
    (lane.unwrap(), ring)
}

fn command(payload: usize) -> Command {
    Command {
        index: 7,
        queue: 2,
        flags: Flags::empty(),
        object: 0,
        signal: 0,
        payload_bytes: u32::try_from(payload).unwrap(),
        work: TaskWork::Kernel(Launch::linear(1, 32, 24)),
    }
}

/// Puts a task whose third argument is `number`.
fn put(lane: &mut Lane, number: u64, payload: &[u8]) -> Result<u64, RingError> {
    put_as(lane, &command(payload.len()), number, payload)
}

fn put_as(
    lane: &mut Lane,
    command: &Command,
    number: u64,
    payload: &[u8],
) -> Result<u64, RingError> {
    let packet = Packet::new(command).unwrap();
    let arguments = [u64::MAX, u64::MAX, number].map(u64::to_le_bytes).concat();
    let put = lane.put(&packet, [&arguments, payload])?;
    lane.announce();
    Ok(put)
}

/// The next outcome; `target` starts workers meanwhile.
fn outcome(lane: &mut Lane, target: &mut WorkerTarget) -> PutOutcome {
    let start = Instant::now();
    loop {
        if let Some((_, outcome)) = lane.next() {
            return outcome;
        }
        lane.is_served();
        target.advance().unwrap();
        assert!(start.elapsed() < PATIENCE, "it never came: {:?}", target.why_gone());
        std::thread::yield_now();
    }
}

#[test]
fn tasks_come_with_their_bodies_and_their_ends_go_back() {
    let (mock, log) = noting();
    let mut target = target(mock, always());
    let (mut lane, _) = lane(&mut target);
    post(&mut target, 2048);
    target.start().unwrap();
    // In the slot, at its limit, in the arena, none, over and over, so that slots and arena are used again.
    let lengths = [3, 144, 145, 1000, 0, 64, 2048];
    let (mut expected, mut ended) = (Vec::new(), 0);
    for number in 0..700u64 {
        let len = lengths[usize::try_from(number % 7).unwrap()];
        let payload: Vec<u8> =
            (0..len).map(|at: usize| (at as u64 * 7 + number).to_le_bytes()[0]).collect();
        while put(&mut lane, number, &payload).is_err() {
            assert_eq!(outcome(&mut lane, &mut target), PutOutcome::Ended);
            ended += 1;
        }
        expected.push((number, payload));
    }
    while lane.pending() > 0 {
        assert_eq!(outcome(&mut lane, &mut target), PutOutcome::Ended);
        ended += 1;
    }
    assert_eq!((ended, target.tasks(), target.counted(3)), (700, 700, 700));
    let log = log.lock().unwrap();
    assert_eq!(log.len(), expected.len());
    for (task, (number, payload)) in log.iter().zip(expected) {
        assert_eq!((task.object, task.arguments[2]), (DeviceFunction::Copy as u64, number));
        assert_ne!(
            (task.arguments[0], task.arguments[1]),
            (u64::MAX, u64::MAX),
            "an initiator names no address"
        );
        assert!(task.payload == payload && task.buffer_bytes == 64, "task {number}");
    }
    assert!(matches!(put(&mut lane, 0, &[0; 4096]), Err(RingError::TooLong { max: 4096, .. })));
    assert_eq!(target.starts(), 1);
}

#[test]
fn what_was_not_registered_is_refused_and_both_ends_learn_why() {
    let (mock, log) = noting();
    let mut target = target(mock, always());
    let (mut lane, _) = lane(&mut target);
    target.start().unwrap();
    let kernel = |launch| TaskWork::Kernel(launch);
    let mut refused = |target: &mut WorkerTarget, command: &Command, payload: &[u8]| {
        put_as(&mut lane, command, 0, payload).unwrap();
        let PutOutcome::Refused(refusal) = outcome(&mut lane, target) else { panic!() };
        refusal
    };
    let base = command(0);
    assert_eq!(refused(&mut target, &Command { index: 8, ..base }, &[]), Refusal::NotRegistered);
    assert_eq!(refused(&mut target, &Command { queue: 3, ..base }, &[]), Refusal::NoQueue);
    assert_eq!(refused(&mut target, &command(100), &[0; 100]), Refusal::NoReceiveBuffer);
    post(&mut target, 64);
    post(&mut target, 8);
    let small = Refusal::ReceiveBufferTooSmall { largest: 64 };
    assert_eq!(refused(&mut target, &command(100), &[0; 100]), small);
    assert_eq!(
        refused(&mut target, &command(2049), &[0; 2049]),
        Refusal::PayloadTooLong { max: 2048 }
    );
    let wide = Command { work: kernel(Launch::linear(33, 32, 24)), ..base };
    assert_eq!(refused(&mut target, &wide, &[]), Refusal::Grid);
    let large = Command { work: kernel(Launch::linear(1, 513, 24)), ..base };
    assert_eq!(refused(&mut target, &large, &[]), Refusal::Group { items_max: 512 });
    let local =
        Command { work: kernel(Launch { local_bytes: 16, ..Launch::linear(1, 32, 24) }), ..base };
    assert_eq!(refused(&mut target, &local, &[]), Refusal::Group { items_max: 512 });
    register(&mut target, 7, None).unwrap();
    assert_eq!(refused(&mut target, &base, &[]), Refusal::NotRegistered);
    let (list, forgotten) = target.take_refusals();
    assert_eq!((list.len(), forgotten), (9, 0));
    assert_eq!((list[3].ring, list[3].index, list[3].queue), (0, 7, 2));
    assert_eq!(list[3].outcome, PutOutcome::Refused(small));
    assert!(log.lock().unwrap().is_empty());
    // As many as are kept, and more.
    for _ in 0..100 {
        refused(&mut target, &base, &[]);
    }
    assert_eq!((target.take_refusals().0.len(), target.take_refusals().1), (64, 0));
    assert_eq!(target.take_posted().unwrap().len(), 2);
    for bytes in [8, 16, 20, 5000] {
        let kernel = DeviceKernel::new(DeviceFunction::Copy, 0).argument_bytes(bytes);
        assert!(
            matches!(register(&mut target, 0, Some(kernel)), Err(TargetError::Arguments { .. })),
            "{bytes}"
        );
    }
    let kernel = DeviceKernel::new(DeviceFunction::Copy, 0).signal(64);
    assert!(matches!(register(&mut target, 0, Some(kernel)), Err(TargetError::TooMany { .. })));
    assert!(matches!(register(&mut target, 64, None), Err(TargetError::NoSuchIndex(_))));
    assert!(matches!(target.register_queue(64, 1), Err(TargetError::NoSuchIndex(_))));
}

#[test]
fn tasks_that_fail_say_so_and_nonsense_hurts_nobody() {
    let (mock, _) = noting();
    let mut target = target(mock, always());
    let (mut lane, ring) = lane(&mut target);
    post(&mut target, 2048);
    target.start().unwrap();
    put(&mut lane, 0, b"fail").unwrap();
    assert_eq!(outcome(&mut lane, &mut target), PutOutcome::Failed(Failure::Outside));
    // Whatever an initiator writes over its slots, the worker goes on: whole packets of nonsense, and bodies elsewhere.
    #[allow(unsafe_code, reason = "views memory as words")]
    // SAFETY: the memory is never freed, and touched as words alone.
    let words = unsafe { gapless_mem::Words::new(ring) }.unwrap();
    let mut random = 0x5EED_0018u64;
    for position in 1..300u64 {
        let slot = layout::slot_of(position) * layout::SLOT_BYTES + RingShape::SLOTS_AT;
        for unit in 0..16 {
            for half in [1, 0] {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let mut word = random ^ random >> 29;
                // Most of them as packets are.
                match (unit, half) {
                    (0, 0) if !position.is_multiple_of(5) => {
                        word = word & 0x3F_01 << 24 | 2 << 16 | 7 << 32 | 2 << 40
                    }
                    (1, 0) if !position.is_multiple_of(7) => word = 0,
                    (0, 1) if !position.is_multiple_of(7) => word = 0,
                    _ => {}
                }
                if half == 0 {
                    word = word & !0xFFFF | u64::from(layout::sequence_of(position));
                }
                words.all()[slot / 8 + 2 * unit + half].store(word, Ordering::Release);
            }
        }
        let status = (RingShape::STATUS_AT + 8 * layout::slot_of(position)) / 8;
        let start = Instant::now();
        while words.all()[status].load(Ordering::Acquire) & 0xFFFF
            != u64::from(layout::sequence_of(position))
        {
            assert!(start.elapsed() < PATIENCE, "position {position}");
            std::thread::yield_now();
        }
    }
    assert!(target.is_running());
    assert_eq!(target.tasks(), 0);
}

#[test]
fn a_worker_that_left_is_started_by_the_next_burst_once() {
    let (mock, log) = noting();
    let life = Life { idle: Some(Duration::from_micros(1)), longest: PATIENCE };
    let mut target = target(mock, life);
    let mut lanes: Vec<Lane> = (0..8).map(|_| lane(&mut target).0).collect();
    assert!(!target.advance().unwrap(), "nobody wants it");
    for burst in 1..=20 {
        for (number, lane) in (0u64..).zip(&mut lanes) {
            put(lane, number, &[]).unwrap();
        }
        for lane in &mut lanes {
            assert_eq!(outcome(lane, &mut target), PutOutcome::Ended);
        }
        let start = Instant::now();
        while !target.is_gone() {
            assert!(start.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
        // A life may end between two puts of a burst; each that began was wanted by one of its 8.
        assert!((burst..=8 * burst).contains(&target.starts()), "{} in {burst}", target.starts());
        assert_eq!(target.why_gone(), Some("it had nothing to do"));
    }
    assert_eq!(log.lock().unwrap().len(), 160);
    // While the application has the accelerator to itself, a put waits; it runs afterwards.
    target.pause().unwrap();
    let before = target.starts();
    put(&mut lanes[0], 1, &[]).unwrap();
    assert!(!target.advance().unwrap() && lanes[0].next().is_none() && !lanes[0].is_served());
    assert_eq!(target.starts(), before);
    target.resume();
    assert_eq!(outcome(&mut lanes[0], &mut target), PutOutcome::Ended);
}

#[test]
fn a_life_ends_when_it_is_told_to_and_after_its_time() {
    let (mock, _) = noting();
    let mut target = target(mock, always());
    let (mut lane, _) = lane(&mut target);
    target.start().unwrap();
    put(&mut lane, 1, &[]).unwrap();
    assert_eq!(outcome(&mut lane, &mut target), PutOutcome::Ended);
    target.leave().unwrap();
    assert_eq!((target.is_running(), target.why_gone()), (false, Some("it was asked to")));
    target.start().unwrap();
    target.abort().unwrap();
    assert_eq!(target.why_gone(), Some("it was aborted"));
    target.set_life(Life { idle: None, longest: Duration::from_micros(1) });
    put(&mut lane, 2, &[]).unwrap();
    assert_eq!(outcome(&mut lane, &mut target), PutOutcome::Ended);
    let start = Instant::now();
    while target.is_running() || target.why_gone() != Some("its life was over") {
        assert!(start.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

#[test]
fn registering_anew_is_old_or_new_and_holds_when_it_returns() {
    let seen = Arc::new(AtomicU64::new(0));
    let theirs = Arc::clone(&seen);
    let mock = MockWorker::new(move |task| {
        // Buffers differ in length, and functions in number.
        let pair = (task.object, task.buffer_bytes);
        assert!(pair == (2, 64) || pair == (1, 128), "{pair:?}");
        theirs.store(task.buffer_bytes, Ordering::Release);
        Ok(())
    });
    let mut target = target(mock, always());
    let (mut lane, _) = lane(&mut target);
    target.start().unwrap();
    for turn in 0..50u64 {
        let (function, len) = if turn.is_multiple_of(2) {
            (DeviceFunction::Accumulate, 128)
        } else {
            (DeviceFunction::Copy, 64)
        };
        for _ in 0..10 {
            let _ = put_as(
                &mut lane,
                &Command { work: TaskWork::Kernel(Launch::linear(1, 1, 24)), ..command(0) },
                0,
                &[],
            );
        }
        let kernel = DeviceKernel::new(function, 0).argument_bytes(32).buffer(memory(len).unwrap());
        let short = DeviceKernel::new(DeviceFunction::Copy, 0).buffer(memory(len).unwrap());
        let kernel = if function == DeviceFunction::Copy { short } else { kernel };
        register(&mut target, 7, Some(kernel)).unwrap();
        while lane.pending() > 0 {
            outcome(&mut lane, &mut target);
        }
        let bytes = function.argument_bytes();
        let now = Command { work: TaskWork::Kernel(Launch::linear(1, 1, bytes)), ..command(0) };
        let packet = Packet::new(&now).unwrap();
        lane.put(&packet, [&vec![0; bytes.into()], &[]]).unwrap();
        lane.announce();
        assert_eq!(outcome(&mut lane, &mut target), PutOutcome::Ended);
        assert_eq!(seen.load(Ordering::Acquire), len);
    }
}

#[test]
fn a_worker_that_is_busy_is_waited_for_in_bounded_time() {
    let (mock, gate) = gated();
    let mut target = target(mock, always());
    let (mut lane, _) = lane(&mut target);
    target.start().unwrap();
    put(&mut lane, 0, &[]).unwrap();
    gate.await_task();
    target.set_patience(Duration::from_millis(20));
    assert!(matches!(target.register_queue(5, 1), Err(TargetError::Busy(_))));
    target.set_patience(PATIENCE);
    gate.open();
    assert_eq!(outcome(&mut lane, &mut target), PutOutcome::Ended);
    target.register_queue(5, 1).unwrap();
}

/// Memory that tells when nobody keeps it any more; `elsewhere`: of an accelerator, which the CPU must not touch.
fn told(dropped: &Arc<AtomicU64>, elsewhere: bool) -> Lease {
    struct Tells(Arc<AtomicU64>);
    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::AcqRel);
        }
    }
    let host = memory(64).unwrap().region();
    let space = if elsewhere { gapless_mem::Space::Cuda { device: 0 } } else { host.space() };
    let region = gapless_mem::Region::new(space, host.start(), 0, 64);
    // SAFETY: `memory` is never freed.
    unsafe { Lease::new(region, Arc::new(Tells(Arc::clone(dropped)))) }
}

#[test]
fn what_a_row_names_is_kept_until_no_worker_uses_it() {
    let (mock, gate) = gated();
    let mut target = target(Arc::clone(&mock), always());
    let (mut lane, _) = lane(&mut target);
    let (old, new) = (Arc::default(), Arc::default());
    let copy = || DeviceKernel::new(DeviceFunction::Copy, 0);
    register(&mut target, 9, Some(copy().buffer(told(&old, true)))).unwrap();
    let memory_of_the_mock = mock.reached();
    target.start().unwrap();
    put(&mut lane, 0, &[]).unwrap();
    gate.await_task();
    target.set_patience(Duration::from_millis(20));
    let busy = register(&mut target, 9, Some(copy().buffer(told(&new, true))));
    assert!(matches!(busy, Err(TargetError::Busy(_))), "{busy:?}");
    // The worker may have either now.
    let dropped = || [&old, &new].map(|count: &Arc<AtomicU64>| count.load(Ordering::Acquire));
    assert_eq!(dropped(), [0, 0]);
    target.set_patience(PATIENCE);
    gate.open();
    assert_eq!(outcome(&mut lane, &mut target), PutOutcome::Ended);
    register(&mut target, 10, None).unwrap();
    assert_eq!(dropped(), [1, 0]);
    register(&mut target, 9, None).unwrap();
    assert_eq!(dropped(), [1, 1]);
    // Of the host's nothing stays behind, whatever is refused.
    let host = Arc::default();
    let signal = copy().buffer(told(&host, false)).signal(64);
    register(&mut target, 9, Some(signal)).unwrap_err();
    register(&mut target, 9, Some(copy().buffer(told(&host, false)))).unwrap();
    register(&mut target, 9, None).unwrap();
    // SAFETY: the mock worker touches no buffers.
    unsafe { target.post(told(&host, false)) }.unwrap();
    assert_eq!(target.take_posted().unwrap().len(), 1);
    assert_eq!(host.load(Ordering::Acquire), 3);
    assert_eq!(mock.reached(), memory_of_the_mock);
    // The worker had to leave for these; it comes back.
    assert!(target.advance().unwrap());
    drop(target);
    assert_eq!(mock.reached(), 1, "the control block alone");
}

#[test]
fn a_worker_that_is_sent_away_leaves_no_packet_behind() {
    let (mock, gate) = gated();
    let mut target = target(mock, always());
    let (mut lane, _) = lane(&mut target);
    target.start().unwrap();
    let start = Instant::now();
    while !target.is_running() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    // More than it takes at once: all find a worker that runs.
    for number in 0..100 {
        put(&mut lane, number, &[]).unwrap();
    }
    gate.await_task();
    target.set_patience(Duration::from_millis(1));
    assert!(matches!(target.leave(), Err(TargetError::Busy(_))));
    gate.open();
    target.set_patience(PATIENCE);
    // Nobody announces them again.
    while lane.pending() > 0 {
        target.advance().unwrap();
        if let Some((_, outcome)) = lane.next() {
            assert_eq!(outcome, PutOutcome::Ended);
        }
        assert!(start.elapsed() < PATIENCE, "{} wait: {:?}", lane.pending(), target.why_gone());
        std::thread::yield_now();
    }
    assert_eq!((target.starts(), target.tasks()), (2, 100));
}

/// A mock worker whose end takes its time, as that of blocks for which an accelerator has no room.
struct Slow(Arc<MockWorker>, AtomicBool);

// SAFETY: all is the mock worker's, but that it may be over later than it is said to be; what waits not, as the
// contract has it: memory of the host may always wait.
unsafe impl Worker for Slow {
    fn limits(&self) -> WorkerLimits {
        self.0.limits()
    }
    fn control(&self, len: u64) -> Result<(Lease, u64), DeviceError> {
        self.0.control(len)
    }
    fn reach(&self, memory: &Lease) -> Result<u64, DeviceError> {
        self.0.reach(memory)
    }
    unsafe fn forget(&self, memory: &Lease) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.forget(memory) }
    }
    unsafe fn start(&self, control: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.start(control) }
    }
    fn is_over(&self) -> Result<bool, DeviceError> {
        Ok(self.0.is_over()? && !self.1.load(Ordering::Acquire))
    }
}

#[test]
fn who_makes_progress_does_not_wait_for_a_worker_that_has_left_and_not_ended() {
    let slow = Arc::new(Slow(noting().0, AtomicBool::new(false)));
    let mut target = target(Arc::clone(&slow), always());
    let (mut lane, _) = lane(&mut target);
    target.start().unwrap();
    put(&mut lane, 0, &[]).unwrap();
    assert_eq!(outcome(&mut lane, &mut target), PutOutcome::Ended);
    slow.1.store(true, Ordering::Release);
    target.set_patience(Duration::from_millis(1));
    target.leave().unwrap_err();
    let start = Instant::now();
    while lane.is_served() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    put(&mut lane, 1, &[]).unwrap();
    // It would wait so long.
    target.set_patience(10 * PATIENCE);
    for _ in 0..3 {
        assert_eq!(target.advance(), Ok(false));
    }
    assert_eq!((target.starts(), lane.pending()), (1, 1));
    slow.1.store(false, Ordering::Release);
    assert_eq!(outcome(&mut lane, &mut target), PutOutcome::Ended);
    assert_eq!(target.starts(), 2);
}

#[test]
fn a_worker_that_died_is_noticed_once_and_started_anew() {
    let (mock, _) = noting();
    let mut target = target(Arc::clone(&mock), always());
    let (mut lane, _) = lane(&mut target);
    target.start().unwrap();
    put(&mut lane, 0, &[]).unwrap();
    assert_eq!(outcome(&mut lane, &mut target), PutOutcome::Ended);
    mock.die();
    let start = Instant::now();
    while mock.is_over() == Ok(false) {
        assert!(start.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    // It has said nothing, so whoever puts takes it for running.
    put(&mut lane, 1, &[]).unwrap();
    assert!(target.is_running() && lane.is_served());
    assert_eq!(target.advance(), Err(TargetError::Died));
    assert!(!target.is_running() && !lane.is_served());
    assert_eq!(outcome(&mut lane, &mut target), PutOutcome::Ended);
    assert_eq!(target.starts(), 2);
}
