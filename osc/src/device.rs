//! Device memory as a window's. The processor cannot touch it, so engines copy it in and out. An engine also transfers
//! data between a window and an origin in one step, if either lies in memory of a device.
//!
//! Whoever has mapped the memory (`near_device.rs`), or owns it, works on it by these calls. They wait for their work,
//! or return a [`DeviceWork`] to be asked again. `device_job.rs` changes elements that way: they are read, combined by
//! the processor and written back. Units: bytes.

use crate::arithmetic::Arithmetic;
use crate::error::Fault;
use crate::header::Header;
use crate::place::AccessKind;
use gapless_dtype::Datatype;
use gapless_engine::{Engine, EngineError, REACHED_BYTES_MIN, ReduceOp, Reducer, Typed};
use gapless_mem::{Completion, Lease, OutOfRange, Outstanding, Region};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Memory of a device, which windows of processes share, and the engine that works on it.
#[derive(Clone)]
pub struct DeviceMemory {
    lease: Lease,
    engine: Arc<dyn Engine>,
    reducer: Arc<dyn Reducer>,
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMemory({:?})", self.lease.region())
    }
}

/// Memory of a device at one rank, and its lock, which is in memory of the host.
#[derive(Clone, Debug)]
pub struct DeviceExposure {
    pub(crate) memory: DeviceMemory,
    pub(crate) header: Header,
}

impl DeviceExposure {
    /// Memory of which this process knows that it is a window's: its own, or a peer's that it has mapped.
    #[must_use]
    pub fn new(memory: DeviceMemory, header: Header) -> DeviceExposure {
        DeviceExposure { memory, header }
    }

    /// Bytes of the memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.len()
    }
}

/// A copy between memory of a device and a buffer of the host's, under way. Dropping it waits for it.
#[derive(Debug)]
pub(crate) struct DeviceWork {
    /// Dropped first: nothing touches the rest then.
    work: Option<Outstanding>,
    buffer: Vec<u8>,
    _memory: Lease,
}

impl DeviceWork {
    /// The buffer, if the work is over. Not to be asked again then.
    pub(crate) fn poll(&mut self) -> Option<Result<Vec<u8>, EngineError>> {
        let ended = match self.work.as_ref().map(|work| work.work().poll()) {
            Some(Ok(false)) => return None,
            Some(Err(error)) => Err(error.into()),
            Some(Ok(true)) | None => Ok(()),
        };
        self.work = None;
        Some(ended.map(|()| std::mem::take(&mut self.buffer)))
    }
}

/// Waits for work, if it was started.
fn ended(started: Result<Completion, EngineError>) -> Result<(), EngineError> {
    Ok(Outstanding::new(started?).wait()?)
}

/// What a target tells others of it; the log has the reason.
pub(crate) fn fault(error: &EngineError) -> Fault {
    match error {
        EngineError::OutsideBuffer { .. } | EngineError::RangeOutside { .. } => Fault::Outside,
        error => {
            tracing::error!(%error, "work on a window in memory of a device");
            Fault::Device
        }
    }
}

/// What `target` describes from a window's first byte on, in the window's memory itself.
fn in_memory(memory: Region, target: &Typed) -> Result<Typed, EngineError> {
    let window = target.region();
    let region = memory.sub(window.offset(), window.len())?;
    match target.own_layout() {
        None => Ok(Typed::contiguous(region)),
        Some(_) => target.moved(region, target.origin()),
    }
}

/// Begins to write all that `origin` describes to a window's `memory`, or to read it from there, in one step from
/// layout to layout. `None`: no device can do that, nothing was done, and the data has to be packed.
///
/// One step is possible within memory of one device; between that and host memory that is page-locked for the device;
/// and between a device's window and an origin that is one span of any host memory.
///
/// # Safety
/// Until the work is over, `origin` describes memory that is valid for reads, and that nobody writes; of a read, valid
/// for writes, without a byte twice, and nobody else's. `memory` is a window's, which no reference of this process
/// covers, and somebody keeps it.
pub(crate) unsafe fn start_transfer(
    engine: &dyn Engine,
    (memory, target): (Region, &Typed),
    origin: &Typed,
    way: AccessKind,
) -> Result<Option<Outstanding>, EngineError> {
    let (theirs, all) = (in_memory(memory, target)?, 0..origin.packed_bytes());
    let is_host = |typed: &Typed| typed.space().cpu_accessible();
    let lists = origin.has_device_indices() || theirs.has_device_indices();
    // The engine that has the device itself do it, and no processor: others may access the memory of a window by atomic
    // accesses at the same time.
    let own = |device: &Typed, host: &Typed| {
        let asks = lists || all.end >= REACHED_BYTES_MIN;
        let (_, touched) = host.touched().filter(|_| asks)?;
        engine.reaches(touched, Some(device.space())).map(|(own, _)| own)
    };
    let span = origin.as_contiguous().filter(|_| is_host(origin));
    let by = match (is_host(origin), is_host(&theirs)) {
        (true, true) => None,
        (true, false) if span.is_some() => Some(engine),
        (true, false) => own(&theirs, origin),
        (false, true) => own(origin, &theirs),
        (false, false) => (origin.space() == theirs.space()).then_some(engine),
    };
    let Some(by) = by else { return Ok(None) };
    let begun = match (way, span) {
        // SAFETY: the caller's promise. Where the two overlap, bytes are arbitrary: MPI forbids it, and no reference
        // covers them. If the window's memory is the host's, its device alone accesses it.
        (AccessKind::Write, Some(span)) => unsafe { by.unpack(span, &theirs, all, &[]) },
        // SAFETY: as above.
        (AccessKind::Write, None) => unsafe { by.transfer(origin, &theirs, all, &[]) },
        // SAFETY: as above.
        (AccessKind::Read, Some(span)) => unsafe { by.pack(&theirs, all, span, &[]) },
        // SAFETY: as above.
        (AccessKind::Read, None) => unsafe { by.transfer(&theirs, origin, all, &[]) },
        (AccessKind::Change, _) => return Ok(None),
    };
    match begun {
        Err(error) if error.is_of_memory() => Ok(None),
        begun => Ok(Some(Outstanding::new(begun?))),
    }
}

impl DeviceMemory {
    /// The memory of `lease`, which `engine` and `reducer` work on.
    ///
    /// # Safety
    /// While a clone of the lease lives, its region describes memory that is valid for reads and writes by both, that
    /// no reference of this process covers, and whose contents nobody relies on. It is touched through values like this
    /// alone, here or in other processes that have it mapped; except for times in which nobody uses any of them.
    #[must_use]
    pub unsafe fn new(
        lease: Lease,
        engine: Arc<dyn Engine>,
        reducer: Arc<dyn Reducer>,
    ) -> DeviceMemory {
        DeviceMemory { lease, engine, reducer }
    }

    /// Bytes of it.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.lease.region().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory, and what keeps it.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The engine that works on it.
    pub(crate) fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    /// What `target` describes from the window's first byte on, in the memory itself.
    fn typed(&self, target: &Typed) -> Result<Typed, EngineError> {
        in_memory(self.lease.region(), target)
    }

    /// The same as elements, of which engines see only bytes where they lie in one contiguous span.
    pub(crate) fn elements(
        &self,
        target: &Typed,
        arithmetic: &Arithmetic,
    ) -> Result<Typed, EngineError> {
        let typed = self.typed(target)?;
        let Some(bytes) = typed.as_contiguous() else { return Ok(typed) };
        let primitive = arithmetic.primitive();
        let element = Datatype::from(primitive).commit();
        let element = element.map_err(|_| EngineError::NoArithmetic { primitive })?;
        Typed::new(bytes, 0, &element, bytes.len() / arithmetic.width() as u64)
    }

    /// Begins to read a range of the target's packed stream.
    pub(crate) fn begin_load(
        &self,
        target: &Typed,
        range: Range<u64>,
    ) -> Result<DeviceWork, EngineError> {
        let typed = self.typed(target)?;
        typed.check_range(&range)?;
        let bytes = range.end - range.start;
        let len = usize::try_from(bytes).map_err(|_| self.outside(bytes))?;
        let (mut buffer, lease) = (vec![0; len], self.lease.clone());
        if len == 0 {
            return Ok(DeviceWork { work: None, buffer, _memory: lease });
        }
        let into = Region::of_mut(&mut buffer);
        // SAFETY: the lease keeps the memory, which others may touch meanwhile: no reference covers it (`new`). The buffer
        // is the work's own, and does not move. `DeviceWork` keeps both until the work is over.
        let work = unsafe { self.engine.pack(&typed, range, into, &[]) }?;
        Ok(DeviceWork { work: Some(Outstanding::new(work)), buffer, _memory: lease })
    }

    fn outside(&self, len: u64) -> EngineError {
        let region = self.lease.region();
        OutOfRange { offset: 0, len, region_len: region.len(), space: region.space() }.into()
    }

    /// Begins to write a range of the target's packed stream.
    pub(crate) fn begin_store(
        &self,
        target: &Typed,
        range: Range<u64>,
        buffer: Vec<u8>,
    ) -> Result<DeviceWork, EngineError> {
        let (typed, lease) = (self.typed(target)?, self.lease.clone());
        if buffer.is_empty() {
            return Ok(DeviceWork { work: None, buffer, _memory: lease });
        }
        // SAFETY: as in `begin_load`.
        let work = unsafe { self.engine.unpack(Region::of(&buffer), &typed, range, &[]) }?;
        Ok(DeviceWork { work: Some(Outstanding::new(work)), buffer, _memory: lease })
    }

    /// Reads a range of the target's packed stream.
    pub(crate) fn load(
        &self,
        target: &Typed,
        range: Range<u64>,
        into: &mut [u8],
    ) -> Result<(), EngineError> {
        if into.is_empty() {
            return Ok(());
        }
        let typed = self.typed(target)?;
        // SAFETY: as in `begin_load`; `into` is borrowed exclusively, and the work is waited for.
        ended(unsafe { self.engine.pack(&typed, range, Region::of_mut(into), &[]) })
    }

    /// Writes a range of the target's packed stream.
    pub(crate) fn store(
        &self,
        target: &Typed,
        range: Range<u64>,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let typed = self.typed(target)?;
        // SAFETY: as in `load`; `bytes` are borrowed.
        ended(unsafe { self.engine.unpack(Region::of(bytes), &typed, range, &[]) })
    }

    /// Changes the elements of `range` by those of `origin`, in one step if that lies in memory of the same device. The
    /// caller has their stripes; `elements` is of [`elements`](DeviceMemory::elements).
    ///
    /// # Safety
    /// During the call, `origin` describes memory that is valid for reads, and that nobody writes.
    pub(crate) unsafe fn change_from(
        &self,
        elements: &Typed,
        range: Range<u64>,
        (op, origin): (ReduceOp, &Typed),
    ) -> Result<(), EngineError> {
        if op == ReduceOp::Replace {
            // SAFETY: the caller's promise, and as in `load`.
            return ended(unsafe { self.engine.transfer(origin, elements, range, &[]) });
        }
        let both = [elements.clone(), origin.clone()];
        // SAFETY: as above; the target is the first source, and nobody else changes those elements.
        ended(unsafe { self.reducer.reduce_into(&op.into(), &both, elements, range, &[]) })
    }
}
