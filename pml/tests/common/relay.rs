//! A fake device that relays: each half of a message does a step whenever its completion is polled, over the
//! flags and places that a device would use.

use super::engine::FakeEngine;
use super::lab::{config, layout};
use super::{Buffer, Home, Job, link};
use gapless_btl::loopback::{Hub, Loopback};
use gapless_btl::{Btl, loopback};
use gapless_engine::{
    Engine, EngineError, HostEngine, Relay, RelayEnd, RelayMemory, RelayOutcome, RelayShape,
    Relays, Typed,
};
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Completion, Device, DeviceError, Pending, Region, Space};
use gapless_pml::{Config, Protocol, Source, Status, TagSel};
use std::any::Any;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BROKEN: u64 = u64::MAX;
/// Polls without a step after which a half gives up.
const PATIENCE: u32 = 300;

/// What a test does to the halves of one rank.
#[derive(Debug, Default)]
pub(crate) struct Whims {
    /// Its halves are never resident: they do nothing, and give up only when they are told to.
    pub(crate) absent: AtomicBool,
    /// The device fails after so many halves; negative: never.
    pub(crate) fails_after: AtomicI64,
    /// Nothing can be begun.
    pub(crate) refuses: AtomicBool,
    /// Who is told to stop says so to nobody, like a process that was killed.
    pub(crate) vanishes: AtomicBool,
    /// Nothing of it ever ends, as far as anybody can tell.
    pub(crate) stuck: AtomicBool,
    /// Lanes that it has.
    pub(crate) lanes: AtomicU32,
    /// Halves that have not ended.
    pub(crate) under_way: AtomicI64,
    /// Halves that were begun.
    pub(crate) begun: AtomicU32,
}

/// An engine that relays, too.
pub(crate) struct RelayEngine {
    pub(crate) inner: Arc<FakeEngine>,
    pub(crate) whims: Arc<Whims>,
}

impl RelayEngine {
    pub(crate) fn new(inner: &Arc<FakeEngine>, lanes: u32) -> RelayEngine {
        let whims = Whims::default();
        whims.lanes.store(lanes, Ordering::Relaxed);
        whims.fails_after.store(-1, Ordering::Relaxed);
        RelayEngine { inner: Arc::clone(inner), whims: Arc::new(whims) }
    }
}

impl Relays for RelayEngine {
    fn lanes(&self, space: Space, _: bool) -> u32 {
        if self.serves(space) { self.whims.lanes.load(Ordering::Relaxed) } else { 0 }
    }

    fn relay(&self, end: RelayEnd, _: Space, lanes: u32) -> Result<Arc<dyn Relay>, EngineError> {
        assert!(lanes > 0, "a ring without lanes");
        Ok(Arc::new(Station {
            end,
            lanes,
            device: Arc::clone(&self.inner.device),
            whims: Arc::clone(&self.whims),
            stop: Arc::default(),
            last: Mutex::default(),
        }))
    }
}

struct Station {
    end: RelayEnd,
    lanes: u32,
    device: Arc<FakeDevice>,
    whims: Arc<Whims>,
    stop: Arc<AtomicBool>,
    last: Mutex<Option<Arc<Half>>>,
}

struct Lane {
    number: u64,
    turn: u64,
    ended: bool,
}

struct State {
    lanes: Vec<Lane>,
    idle: u32,
    outcome: Option<RelayOutcome>,
}

/// One half of a message.
struct Half {
    packs: bool,
    typed: Typed,
    end: u64,
    shape: RelayShape,
    first: u64,
    places: Region,
    /// The flags that it waits for, and those that it raises.
    waits: Region,
    tells: Region,
    fails: bool,
    whims: Arc<Whims>,
    stop: Arc<AtomicBool>,
    state: Mutex<State>,
}

impl Relay for Station {
    unsafe fn run(
        &self,
        typed: &Typed,
        range: Range<u64>,
        shape: &RelayShape,
        memory: &RelayMemory,
        turn: u64,
        patience: Duration,
    ) -> Result<Completion, EngineError> {
        assert!(patience <= Duration::from_secs(30), "no wait is without bounds");
        assert_eq!((shape.lanes, range.start), (self.lanes, 0));
        if self.whims.refuses.load(Ordering::Relaxed) {
            return Err(DeviceError::Unsupported { what: "relaying now" }.into());
        }
        let busy = self.last.lock().unwrap().as_ref().is_some_and(|half| !half.has_ended());
        assert!(!busy, "two messages on one ring");
        let left = self.whims.fails_after.load(Ordering::Relaxed);
        if left > 0 {
            self.whims.fails_after.store(left - 1, Ordering::Relaxed);
        }
        let alias = |region: Region, len: u64| self.device.alias(region.sub(0, len)?);
        let places = alias(memory.fragments, shape.ring_bytes().unwrap())?;
        let ready = alias(memory.ready, shape.flag_bytes())?;
        let credit = alias(memory.credit, shape.flag_bytes())?;
        let packs = self.end == RelayEnd::Sender;
        let (waits, tells) = if packs { (credit, ready) } else { (ready, credit) };
        let typed = Typed::new(
            self.device.alias(typed.region())?,
            typed.origin(),
            typed.layout(),
            typed.count(),
        )?;
        let lane = |number: u32| Lane { number: number.into(), turn, ended: false };
        let lanes = (0..shape.lanes).map(lane).collect();
        let half = Arc::new(Half {
            packs,
            typed,
            end: range.end,
            shape: *shape,
            first: turn,
            places,
            waits,
            tells,
            fails: left == 0,
            whims: Arc::clone(&self.whims),
            stop: Arc::clone(&self.stop),
            state: Mutex::new(State { lanes, idle: 0, outcome: None }),
        });
        *self.last.lock().unwrap() = Some(Arc::clone(&half));
        self.whims.under_way.fetch_add(1, Ordering::Relaxed);
        self.whims.begun.fetch_add(1, Ordering::Relaxed);
        Ok(Completion::Pending(half))
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn has_ended(&self) -> bool {
        !self.whims.stuck.load(Ordering::Relaxed)
            && self.last.lock().unwrap().as_ref().is_none_or(|half| half.has_ended())
    }

    fn outcome(&self) -> RelayOutcome {
        let last = self.last.lock().unwrap();
        let outcome = last.as_ref().and_then(|half| half.state.lock().unwrap().outcome);
        outcome.unwrap_or(RelayOutcome::PeerGone)
    }
}

impl Half {
    fn has_ended(&self) -> bool {
        self.state.lock().unwrap().outcome.is_some()
    }

    fn flag(&self, flags: Region, lane: usize) -> &AtomicU64 {
        let at = usize::try_from(flags.start()).unwrap() + lane * 64;
        // SAFETY: a flag of the ring, aligned, in memory that is mapped until the half has ended, and that
        // both halves access as whole words only.
        unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(at)) }
    }

    /// A step of a lane, if it has one.
    fn step(&self, lane: &mut Lane, at: usize) -> Option<Result<(), RelayOutcome>> {
        let fragments = self.end.div_ceil(self.shape.fragment.into());
        let lanes = u64::from(self.shape.lanes);
        if lane.ended {
            return None;
        }
        if lane.number >= fragments {
            lane.ended = true;
            if !self.packs {
                let next = self.first + fragments.div_ceil(lanes);
                self.flag(self.tells, at).store(next, Ordering::Release);
            }
            return Some(Ok(()));
        }
        let depth = u64::from(self.shape.depth);
        let wanted = if self.packs { (lane.turn + 1).wrapping_sub(depth) } else { lane.turn + 1 };
        let now = self.flag(self.waits, at).load(Ordering::Acquire);
        if now == BROKEN {
            return Some(Err(RelayOutcome::PeerGone));
        }
        if now.wrapping_sub(wanted).cast_signed() < 0 {
            return None;
        }
        let fragment = u64::from(self.shape.fragment);
        let begin = lane.number * fragment;
        let range = begin..(begin + fragment).min(self.end);
        let place = (at as u64 * depth + lane.turn % depth) * fragment;
        let place = self.places.sub(place, range.end - range.start).unwrap();
        let typed = &self.typed;
        let moved = match self.packs {
            // SAFETY: the place is this lane's until the flag says otherwise; the buffer is promised.
            true => unsafe { HostEngine.pack(typed, range, place, &[]) },
            // SAFETY: as above.
            false => unsafe { HostEngine.unpack(place, typed, range, &[]) },
        };
        moved.unwrap();
        lane.turn += 1;
        lane.number += lanes;
        self.flag(self.tells, at).store(lane.turn, Ordering::Release);
        Some(Ok(()))
    }

    fn give_up(&self, state: &mut State, why: RelayOutcome) {
        state.outcome = Some(why);
        self.whims.under_way.fetch_sub(1, Ordering::Relaxed);
        if why == RelayOutcome::Done || self.whims.vanishes.load(Ordering::Relaxed) {
            return;
        }
        for (at, lane) in state.lanes.iter().enumerate() {
            if !lane.ended {
                self.flag(self.tells, at).store(BROKEN, Ordering::Release);
            }
        }
    }
}

impl Pending for Half {
    fn poll(&self) -> Result<bool, DeviceError> {
        let mut state = self.state.lock().unwrap();
        let failed = || DeviceError::Unsupported { what: "working while broken" };
        if state.outcome.is_some() {
            return if self.fails { Err(failed()) } else { Ok(true) };
        }
        if self.stop.load(Ordering::Relaxed) {
            self.give_up(&mut state, RelayOutcome::Stopped);
            return Ok(true);
        }
        if self.whims.absent.load(Ordering::Relaxed) {
            return Ok(false);
        }
        if self.fails {
            self.give_up(&mut state, RelayOutcome::Stopped);
            return Err(failed());
        }
        let mut stepped = None;
        let count = state.lanes.len();
        // Another lane first each time.
        let first = state.idle as usize + state.lanes.iter().filter(|lane| lane.ended).count();
        for at in (0..count).map(|k| (first + k) % count) {
            stepped = self.step(&mut state.lanes[at], at);
            if stepped.is_some() {
                break;
            }
        }
        match stepped {
            Some(Ok(())) => state.idle = 0,
            Some(Err(why)) => self.give_up(&mut state, why),
            None if state.lanes.iter().all(|lane| lane.ended) => {
                self.give_up(&mut state, RelayOutcome::Done);
            }
            None => {
                state.idle += 1;
                if state.idle > PATIENCE {
                    self.give_up(&mut state, RelayOutcome::Late);
                }
            }
        }
        Ok(state.outcome.is_some())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Engine for RelayEngine {
    fn name(&self) -> &'static str {
        "fake, relaying"
    }

    fn serves(&self, space: Space) -> bool {
        self.inner.serves(space)
    }

    fn device(&self, space: Space) -> Option<Arc<dyn Device>> {
        self.inner.device(space)
    }

    fn relays(&self) -> Option<&dyn Relays> {
        Some(self)
    }

    unsafe fn pack(
        &self,
        src: &Typed,
        range: Range<u64>,
        dst: Region,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: the caller's promise; so below.
        unsafe { self.inner.pack(src, range, dst, after) }
    }

    unsafe fn unpack(
        &self,
        src: Region,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: as above.
        unsafe { self.inner.unpack(src, dst, range, after) }
    }

    unsafe fn transfer(
        &self,
        src: &Typed,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: as above.
        unsafe { self.inner.transfer(src, dst, range, after) }
    }
}

/// Lanes of both devices.
pub(crate) const LANES: u32 = 3;
/// Bytes of the shortest fragments.
pub(crate) const FRAGMENT: u64 = 16 << 10;

/// Two ranks whose devices relay.
pub(crate) struct RelayLab {
    pub(crate) job: Job,
    pub(crate) device: Arc<FakeDevice>,
    pub(crate) whims: [Arc<Whims>; 2],
}

impl RelayLab {
    pub(crate) fn new(config: Config) -> RelayLab {
        RelayLab::over(config, link())
    }

    pub(crate) fn over(config: Config, link: loopback::Config) -> RelayLab {
        let device = Arc::new(FakeDevice::with_delay(3, 1));
        let mut rail = |_, hub: &Hub| Box::new(Loopback::with(hub, link.clone())) as Box<dyn Btl>;
        let mut job = Job::with_engines(2, config, &mut rail, &[Arc::new(HostEngine)]);
        let whims = [0, 1].map(|rank| {
            let engine = RelayEngine::new(&Arc::new(FakeEngine::new(&device, 1)), LANES);
            let whims = Arc::clone(&engine.whims);
            job.pml(rank).add_engine(Arc::new(engine));
            whims
        });
        RelayLab { job, device, whims }
    }

    pub(crate) fn forced() -> RelayLab {
        RelayLab::new(config(Protocol::Relay, 3))
    }

    pub(crate) fn home(&self) -> Home {
        Home::Fake(Arc::clone(&self.device))
    }

    pub(crate) fn source(&self, size: u64, gaps: bool, seed: u64) -> Buffer {
        Buffer::source_in(&layout(size, gaps), 1, seed, self.home())
    }

    pub(crate) fn target(&self, size: u64, gaps: bool) -> Buffer {
        Buffer::target_in(&layout(size, gaps), 1, self.home())
    }

    /// Sends a message from one rank to the other.
    pub(crate) fn carry(&mut self, out: u32, from: &Buffer, to: &Buffer, what: &str) -> Status {
        let send = self.job.isend(out, from, 1 - out, 0);
        let recv = self.job.irecv(1 - out, to, Source::Rank(out), TagSel::Is(0));
        let status = self.job.finish(1 - out, recv).unwrap();
        let sent = self.job.finish(out, send).unwrap();
        assert_eq!(sent.protocol, status.protocol, "{what}");
        to.assert_received(&from.packed(), what);
        self.assert_idle(what);
        status
    }

    /// No half works, and nothing but rings is in use.
    pub(crate) fn assert_idle(&mut self, what: &str) {
        self.job.settle();
        for rank in 0..2 {
            let under_way = self.whims[rank].under_way.load(Ordering::Relaxed);
            assert_eq!(under_way, 0, "{what}: rank {rank}");
            if let Some(pml) = &mut self.job.ranks[rank] {
                assert!(!pml.has_requests() && !pml.is_busy(), "{what}: rank {rank}");
                if pml.relay_rings() == (0, 0) {
                    assert_eq!(pml.staging_bytes().1, 0, "{what}: rank {rank}");
                }
            }
        }
    }

    pub(crate) fn rings(&mut self) -> [(usize, usize); 2] {
        [0, 1].map(|rank| self.job.pml(rank).relay_rings())
    }

    pub(crate) fn begun(&self) -> [u32; 2] {
        self.whims.each_ref().map(|whims| whims.begun.load(Ordering::Relaxed))
    }
}
