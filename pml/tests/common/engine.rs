//! An engine for the memory of a fake device: its work happens some polls after it was asked for, once
//! what it must come after has ended.

use gapless_engine::{Engine, EngineError, HostEngine, Typed};
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Completion, Device, DeviceError, Pending, Region, Space};
use std::any::Any;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

/// Works on a fake device's memory.
pub(crate) struct FakeEngine {
    pub(crate) device: Arc<FakeDevice>,
    /// How often work is polled before it is done.
    pub(crate) polls: u32,
    /// Work fails from now on.
    pub(crate) broken: AtomicBool,
    /// Work fails after so many pieces; negative: never.
    pub(crate) fails_after: AtomicI64,
    /// Whether its device is attached to the transports.
    pub(crate) attaches: bool,
    /// Pieces of work that have not ended.
    pub(crate) under_way: Arc<AtomicI64>,
    /// The most there were of them.
    pub(crate) most: AtomicI64,
    /// All pieces, in their order.
    pub(crate) pieces: Mutex<Vec<Piece>>,
    /// How often was asked whether a piece has ended.
    pub(crate) asked: Arc<AtomicI64>,
}

/// What an engine was asked for.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) bytes: u64,
    /// How many were under way.
    pub(crate) others: i64,
    /// After which it comes, by their numbers; copies are left out.
    pub(crate) after: Vec<usize>,
}

type Work = Box<dyn FnOnce() -> Result<(), DeviceError> + Send>;

struct State {
    polls: u32,
    after: Vec<Completion>,
    work: Option<Work>,
    result: Result<(), DeviceError>,
}

struct Later {
    /// How many the engine was asked for before.
    number: usize,
    state: Mutex<State>,
    under_way: Arc<AtomicI64>,
    asked: Arc<AtomicI64>,
}

impl Later {
    /// The number of an engine's piece; `None` of a device's copy.
    fn number(work: &Completion) -> Option<usize> {
        let Completion::Pending(work) = work else { return None };
        work.as_any().downcast_ref::<Later>().map(|later| later.number)
    }
}

// SAFETY: the work is done by whoever polls, under a lock, once all that it comes after has ended; it is taken out
// before, so that it is done once or, after an error, never, and its result stays. `as_any` gives `self`; `export`
// refuses.
unsafe impl Pending for Later {
    fn poll(&self) -> Result<bool, DeviceError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock().unwrap();
        for at in 0..state.after.len() {
            match state.after[at].poll() {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => {
                    if state.work.take().is_some() {
                        state.result = Err(error);
                        self.under_way.fetch_sub(1, Ordering::Relaxed);
                    }
                    break;
                }
            }
        }
        if state.work.is_none() {
            return state.result.clone().map(|()| true);
        }
        if state.polls > 0 {
            state.polls -= 1;
            return Ok(false);
        }
        if let Some(work) = state.work.take() {
            state.result = work();
            state.after.clear();
            self.under_way.fetch_sub(1, Ordering::Relaxed);
        }
        state.result.clone().map(|()| true)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl FakeEngine {
    pub(crate) fn new(device: &Arc<FakeDevice>, polls: u32) -> FakeEngine {
        FakeEngine {
            device: Arc::clone(device),
            polls,
            broken: AtomicBool::new(false),
            fails_after: AtomicI64::new(-1),
            attaches: true,
            under_way: Arc::default(),
            most: AtomicI64::new(0),
            pieces: Mutex::default(),
            asked: Arc::default(),
        }
    }

    fn alias(&self, typed: &Typed) -> Result<Typed, EngineError> {
        let region = self.device.alias(typed.region())?;
        Typed::new(region, typed.origin(), typed.layout(), typed.count())
    }

    fn later(
        &self,
        bytes: u64,
        after: &[Completion],
        work: impl FnOnce() -> Result<Completion, EngineError> + Send + 'static,
    ) -> Result<Completion, EngineError> {
        let left = self.fails_after.load(Ordering::Relaxed);
        if left > 0 {
            self.fails_after.store(left - 1, Ordering::Relaxed);
        }
        let broken = left == 0 || self.broken.load(Ordering::Relaxed);
        let work = move || {
            if broken {
                return Err(DeviceError::Unsupported { what: "working while broken" });
            }
            work().map(|_| ()).map_err(|_| DeviceError::Unsupported { what: "such a request" })
        };
        let state = State {
            polls: self.polls,
            after: after.to_vec(),
            work: Some(Box::new(work)),
            result: Ok(()),
        };
        let others = self.under_way.fetch_add(1, Ordering::Relaxed);
        self.most.fetch_max(others + 1, Ordering::Relaxed);
        let mut pieces = self.pieces.lock().unwrap();
        let number = pieces.len();
        let after = after.iter().filter_map(Later::number).collect();
        pieces.push(Piece { bytes, others, after });
        let later = Later {
            number,
            state: Mutex::new(state),
            under_way: Arc::clone(&self.under_way),
            asked: Arc::clone(&self.asked),
        };
        Ok(Completion::Pending(Arc::new(later)))
    }
}

// SAFETY: the host's engine does the work, by which the contract holds, on what the device shows of its memory: when
// its completion is polled, after all of `after`. `alias` refuses what is not in live memory, and the rest, if it
// does not fit, is refused then.
unsafe impl Engine for FakeEngine {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn serves(&self, space: Space) -> bool {
        space == self.device.space()
    }

    fn device(&self, _: Space) -> Option<Arc<dyn Device>> {
        self.attaches.then(|| Arc::clone(&self.device) as _)
    }

    unsafe fn pack(
        &self,
        src: &Typed,
        range: Range<u64>,
        dst: Region,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let (src, dst) = (self.alias(src)?, self.device.alias(dst)?);
        let bytes = range.end - range.start;
        // SAFETY: the caller's guarantees hold until the completion, which runs this.
        self.later(bytes, after, move || unsafe { HostEngine.pack(&src, range, dst, &[]) })
    }

    unsafe fn unpack(
        &self,
        src: Region,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let (src, dst) = (self.device.alias(src)?, self.alias(dst)?);
        let bytes = range.end - range.start;
        // SAFETY: as above.
        self.later(bytes, after, move || unsafe { HostEngine.unpack(src, &dst, range, &[]) })
    }

    unsafe fn transfer(
        &self,
        src: &Typed,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let (src, dst) = (self.alias(src)?, self.alias(dst)?);
        let bytes = range.end - range.start;
        // SAFETY: as above.
        self.later(bytes, after, move || unsafe { HostEngine.transfer(&src, &dst, range, &[]) })
    }
}
