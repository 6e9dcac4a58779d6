//! An engine for the memory of a [`FakeDevice`]: the host's engine, on what the device shows of its memory, some
//! polls after it was asked; and a device that does not share.

use gapless_engine::{Engine, EngineError, HostEngine, Typed};
use gapless_mem::fake::FakeDevice;
use gapless_mem::{
    Completion, Device, DeviceError, DeviceProperties, Export, Pending, Region, Space,
};
use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Works on a fake device's memory, and on what that device has imported or registered.
pub(crate) struct FakeEngine {
    pub(crate) device: Arc<FakeDevice>,
    /// How often work is polled before it is done.
    pub(crate) polls: u32,
}

type Work = Box<dyn FnOnce() -> Result<(), DeviceError> + Send>;

/// Work that has been asked for.
struct Later(Mutex<State>);

struct State {
    left: u32,
    after: Vec<Completion>,
    work: Option<Work>,
    end: Result<(), DeviceError>,
}

// SAFETY: the work is done by whoever polls, under a lock, once all that it comes after has ended well; it is taken
// out before, so that it is done once, and its end stays. An error of what it comes after stays, too, and the
// work is never done. `as_any` gives `self`; `export` refuses.
unsafe impl Pending for Later {
    fn poll(&self) -> Result<bool, DeviceError> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for earlier in &state.after {
            if !earlier.poll()? {
                return Ok(false);
            }
        }
        if state.left > 0 {
            state.left -= 1;
            return Ok(false);
        }
        if let Some(work) = state.work.take() {
            state.end = work();
        }
        state.end.clone().map(|()| true)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl FakeEngine {
    fn alias(&self, typed: &Typed) -> Result<Typed, EngineError> {
        let region = self.device.alias(typed.region())?;
        Typed::new(region, typed.origin(), typed.layout(), typed.count())
    }

    fn later(
        &self,
        after: &[Completion],
        work: impl FnOnce() -> Result<Completion, EngineError> + Send + 'static,
    ) -> Result<Completion, EngineError> {
        let failed = |_| DeviceError::Unsupported { what: "such a request" };
        let work: Work = Box::new(move || work().map(|_| ()).map_err(failed));
        let state =
            State { left: self.polls, after: after.to_vec(), work: Some(work), end: Ok(()) };
        Ok(Completion::Pending(Arc::new(Later(Mutex::new(state)))))
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

    unsafe fn pack(
        &self,
        src: &Typed,
        range: Range<u64>,
        dst: Region,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let (src, dst) = (self.alias(src)?, self.device.alias(dst)?);
        // SAFETY: the caller's promise holds until the completion, which runs this.
        self.later(after, move || unsafe { HostEngine.pack(&src, range, dst, &[]) })
    }

    unsafe fn unpack(
        &self,
        src: Region,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let (src, dst) = (self.device.alias(src)?, self.alias(dst)?);
        // SAFETY: as above.
        self.later(after, move || unsafe { HostEngine.unpack(src, &dst, range, &[]) })
    }

    unsafe fn transfer(
        &self,
        src: &Typed,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let (src, dst) = (self.alias(src)?, self.alias(dst)?);
        // SAFETY: as above.
        self.later(after, move || unsafe { HostEngine.transfer(&src, &dst, range, &[]) })
    }
}

/// A pretended device that refuses to share its memory, or to map what others share.
pub(crate) struct Unwilling {
    pub(crate) device: Arc<FakeDevice>,
    pub(crate) exports: bool,
    pub(crate) imports: bool,
}

// SAFETY: what is not refused is the fake device's answer, by which the contract holds.
unsafe impl Device for Unwilling {
    fn properties(&self) -> &DeviceProperties {
        self.device.properties()
    }

    fn space(&self) -> Space {
        self.device.space()
    }

    fn reaches(&self, space: Space) -> bool {
        self.device.reaches(space)
    }

    fn allocate(&self, len: u64) -> Result<Region, DeviceError> {
        self.device.allocate(len)
    }

    unsafe fn free(&self, region: Region) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.device.free(region) }
    }

    unsafe fn copy(
        &self,
        dst: Region,
        src: Region,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.device.copy(dst, src, after) }
    }

    unsafe fn copy_2d(
        &self,
        dst: Region,
        dst_pitch: u64,
        src: Region,
        src_pitch: u64,
        width: u64,
        rows: u64,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.device.copy_2d(dst, dst_pitch, src, src_pitch, width, rows, after) }
    }

    unsafe fn register(&self, host: Region) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.device.register(host) }
    }

    unsafe fn unregister(&self, host: Region) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.device.unregister(host) }
    }

    fn export(&self, region: Region) -> Result<Export, DeviceError> {
        if self.exports {
            return self.device.export(region);
        }
        Err(DeviceError::Unsupported { what: "sharing its memory" })
    }

    fn import(&self, export: Export) -> Result<Region, DeviceError> {
        if self.imports {
            return self.device.import(export);
        }
        Err(DeviceError::Unsupported { what: "mapping what others share" })
    }

    unsafe fn release(&self, region: Region) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.device.release(region) }
    }

    fn buffer_id(&self, region: Region) -> Option<u64> {
        self.device.buffer_id(region)
    }

    fn allocation(&self, region: Region) -> Option<Region> {
        self.device.allocation(region)
    }

    fn locate(&self, address: u64) -> Option<Space> {
        self.device.locate(address)
    }
}
