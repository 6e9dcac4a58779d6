//! An engine for the memory of a fake device: its work happens some polls after it was asked for, once
//! what it must come after has ended.

use super::{Work, Wrapper};
use crate::{EngineError, HostEngine, PagesOf, Typed};
use gapless_dtype::{PageIndices, Pages};
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Completion, Device, DeviceError, Pending, Region, Space};
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Works on a fake device's memory, and on what that device has imported or registered.
#[derive(Debug)]
pub struct FakeEngine {
    /// The device.
    pub device: Arc<FakeDevice>,
    /// How often work is polled before it is done.
    pub polls: u32,
    /// Work fails from now on.
    pub broken: AtomicBool,
    /// Work fails after so many pieces; negative: never.
    pub fails_after: AtomicI64,
    /// Whether its device is attached to the transports.
    pub attaches: bool,
    /// Whether its device reaches all memory of the host by itself.
    pub reaches_host: AtomicBool,
    /// Pieces of work that have not ended.
    pub under_way: Arc<AtomicI64>,
    /// The most there were of them.
    pub most: AtomicI64,
    /// All pieces, in their order.
    pub pieces: Mutex<Vec<FakePiece>>,
    /// Polls of pieces.
    pub asked: Arc<AtomicI64>,
}

/// What an engine was asked for.
#[derive(Debug)]
pub struct FakePiece {
    /// Bytes that it moves.
    pub bytes: u64,
    /// How many others were in flight.
    pub others: i64,
    /// Numbers of the pieces that it waits for; copies are left out.
    pub after: Vec<usize>,
}

type Job = Box<dyn FnOnce() -> Result<(), DeviceError> + Send>;

struct FakeState {
    polls: u32,
    after: Vec<Completion>,
    work: Option<Job>,
    result: Result<(), DeviceError>,
}

struct Later {
    /// How many the engine was asked for before.
    number: usize,
    state: Mutex<FakeState>,
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
        // Nothing has changed where another's work panicked.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
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
    /// An engine whose work takes so many polls, and which attaches its device.
    #[must_use]
    pub fn new(device: &Arc<FakeDevice>, polls: u32) -> FakeEngine {
        FakeEngine {
            device: Arc::clone(device),
            polls,
            broken: AtomicBool::new(false),
            fails_after: AtomicI64::new(-1),
            attaches: true,
            reaches_host: AtomicBool::new(false),
            under_way: Arc::default(),
            most: AtomicI64::new(0),
            pieces: Mutex::default(),
            asked: Arc::default(),
        }
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
            work().map(|_| ()).map_err(|error| match error {
                EngineError::Device(error) => error,
                _ => DeviceError::Unsupported { what: "such a request" },
            })
        };
        let state = FakeState {
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
        pieces.push(FakePiece { bytes, others, after });
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
unsafe impl Wrapper for FakeEngine {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn serves(&self, space: Space) -> bool {
        space == self.device.space()
    }

    fn device(&self, space: Space) -> Option<Arc<dyn Device>> {
        (self.attaches && self.serves(space)).then(|| Arc::clone(&self.device) as _)
    }

    fn reaches(&self, host: Region, from: Option<Space>) -> Option<Arc<dyn Device>> {
        let known = || self.device.has_registered(host);
        let asked = host.space().cpu_accessible() && from.is_none_or(|from| self.serves(from));
        let reaches = asked && (self.reaches_host.load(Ordering::Relaxed) || known());
        reaches.then(|| Arc::clone(&self.device) as _)
    }

    unsafe fn work(&self, work: Work, after: &[Completion]) -> Result<Completion, EngineError> {
        let bytes = work.bytes();
        let work = work.elsewhere(|region| self.device.alias(region))?;
        let device = Arc::clone(&self.device);
        self.later(bytes, after, move || {
            // SAFETY: the caller's guarantees hold until the completion, which runs this.
            let listed = |typed, side| unsafe { listed(&device, typed, side) };
            let work = match work {
                Work::Pack(src, range, dst) => Work::Pack(listed(src, "source")?, range, dst),
                Work::Unpack(src, dst, range) => Work::Unpack(src, listed(dst, "target")?, range),
                Work::Transfer(src, dst, range) => {
                    Work::Transfer(listed(src, "source")?, listed(dst, "target")?, range)
                }
            };
            // SAFETY: as above.
            unsafe { work.run(&HostEngine, &[]) }
        })
    }
}

/// The same, with indices as they are in the device's memory now.
///
/// # Safety
/// Memory of the device that has the indices is valid for reads.
unsafe fn listed(
    device: &FakeDevice,
    typed: Typed,
    side: &'static str,
) -> Result<Typed, EngineError> {
    let Some(PagesOf::Device(pages)) = typed.as_pages() else { return Ok(typed) };
    let indices = pages.indices();
    let mut bytes = vec![0u8; usize::try_from(indices.len()).unwrap_or(0)];
    let (shown, room) = (device.alias(indices)?, Region::of_mut(&mut bytes));
    let read = Work::Pack(Typed::contiguous(shown), 0..indices.len(), room);
    // SAFETY: the caller's promise; the device shows the region where it is, as long as it is.
    unsafe { read.run(&HostEngine, &[]) }?;
    let indices: PageIndices = match pages.is_wide() {
        true => {
            bytes.as_chunks().0.iter().map(|it| u64::from_ne_bytes(*it)).collect::<Vec<_>>().into()
        }
        false => {
            bytes.as_chunks().0.iter().map(|it| u32::from_ne_bytes(*it)).collect::<Vec<_>>().into()
        }
    };
    let last = pages.last();
    if let Some((position, _)) = indices.first_above(last) {
        return Err(DeviceError::PageOutside { side, position, last }.into());
    }
    let pages = Pages::new(pages.page(), pages.stride(), indices);
    // As many bytes as were counted before, at places that are inside.
    let pages = pages.map_err(|_| EngineError::DeviceIndices)?;
    Typed::pages(typed.region(), typed.origin(), &pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;
    use gapless_dtype::{Datatype, Primitive};

    #[test]
    fn a_bad_index_of_the_devices_is_the_works_error_as_on_real_ones() {
        let device = Arc::new(FakeDevice::new(0));
        let engine = FakeEngine::new(&device, 0);
        let [pool, list] = [64, 12].map(|len| device.allocate(len).unwrap());
        let indices: Vec<u8> = [1u32, 9, 8].iter().flat_map(|it| it.to_ne_bytes()).collect();
        // SAFETY: both are there, and nobody else's; the copy is waited for.
        unsafe { device.copy(list, Region::of(&indices), &[]) }.unwrap().wait().unwrap();
        let page = Datatype::from(Primitive::Double).commit().unwrap();
        let typed = Typed::device_pages(pool, 0, &page, 8, (list, false)).unwrap();
        let mut packed = [0u8; 24];
        let packed = Region::of_mut(&mut packed);
        // SAFETY: both are there, and nobody else's, until the work is over.
        let pack = unsafe { engine.pack(&typed, 0..24, packed, &[]) };
        let from = pack.unwrap().wait().unwrap_err();
        // SAFETY: as above.
        let unpack = unsafe { engine.unpack(packed, &typed, 0..24, &[]) };
        let into = unpack.unwrap().wait().unwrap_err();
        for (error, side) in [(from, "source"), (into, "target")] {
            assert_eq!(error, DeviceError::PageOutside { side, position: 1, last: 7 });
        }
    }
}
