//! Memory of a device as a window's: the processor cannot touch it, so engines copy it in and out.
//!
//! Whoever has mapped it (`device/near.rs`) or owns it works on it by these calls: reads, writes, and changes of elements,
//! which are read, combined by the processor and written back while the caller has the mutexes of their stripes. Work is
//! waited for, or is a [`Work`] that somebody asks again (`job.rs`). Units: bytes.

mod near;

pub(crate) use near::Near;

use crate::arithmetic::{Arithmetic, read, write};
use crate::{Fault, Header};
use gapless_dtype::Datatype;
use gapless_engine::{Engine, EngineError, ReduceOp, Reducer, Typed};
use gapless_mem::{Lease, Outstanding, Region};
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
pub(crate) struct Work {
    /// Dropped first: nothing touches the rest then.
    work: Option<Outstanding>,
    buffer: Vec<u8>,
    _memory: Lease,
}

impl Work {
    /// The buffer, if the work is over. Not to be asked again then.
    pub(crate) fn poll(&mut self) -> Option<Result<Vec<u8>, Fault>> {
        let ended = match self.work.as_ref().map(|work| work.work().poll()) {
            Some(Ok(false)) => return None,
            Some(Err(error)) => Err(failed(&error)),
            Some(Ok(true)) | None => Ok(()),
        };
        self.work = None;
        Some(ended.map(|()| std::mem::take(&mut self.buffer)))
    }
}

/// What a target tells of it; the log has the reason.
fn failed(error: &dyn fmt::Display) -> Fault {
    tracing::error!(%error, "work on a window in memory of a device");
    Fault::Device
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

    /// What `target` describes from the window's first byte on, in the memory itself.
    fn typed(&self, target: &Typed) -> Result<Typed, Fault> {
        let window = target.region();
        let region = self.lease.region().sub(window.offset(), window.len());
        let region = region.map_err(|_| Fault::Outside)?;
        match target.own_layout() {
            None => Ok(Typed::contiguous(region)),
            Some(layout) => Typed::new(region, target.origin(), layout, target.count())
                .map_err(|_| Fault::Outside),
        }
    }

    /// Begins to read a range of the target's packed stream.
    pub(crate) fn begin_load(&self, target: &Typed, range: Range<u64>) -> Result<Work, Fault> {
        let typed = self.typed(target)?;
        let len = usize::try_from(range.end - range.start).map_err(|_| Fault::Outside)?;
        let (mut buffer, lease) = (vec![0; len], self.lease.clone());
        if len == 0 {
            return Ok(Work { work: None, buffer, _memory: lease });
        }
        let into = Region::of_mut(&mut buffer);
        // SAFETY: the lease keeps the memory, which others may touch meanwhile: no reference covers it (`new`). The buffer
        // is the work's own, and does not move. `Work` keeps both until the work is over.
        let work = unsafe { self.engine.pack(&typed, range, into, &[]) };
        let work = Some(Outstanding::new(work.map_err(|error| refused(&error))?));
        Ok(Work { work, buffer, _memory: lease })
    }

    /// Begins to write a range of the target's packed stream.
    pub(crate) fn begin_store(
        &self,
        target: &Typed,
        range: Range<u64>,
        buffer: Vec<u8>,
    ) -> Result<Work, Fault> {
        let (typed, lease) = (self.typed(target)?, self.lease.clone());
        if buffer.is_empty() {
            return Ok(Work { work: None, buffer, _memory: lease });
        }
        // SAFETY: as in `begin_load`.
        let work = unsafe { self.engine.unpack(Region::of(&buffer), &typed, range, &[]) };
        let work = Some(Outstanding::new(work.map_err(|error| refused(&error))?));
        Ok(Work { work, buffer, _memory: lease })
    }

    /// Reads a range of the target's packed stream.
    pub(crate) fn load(
        &self,
        target: &Typed,
        range: Range<u64>,
        into: &mut [u8],
    ) -> Result<(), Fault> {
        if into.is_empty() {
            return Ok(());
        }
        let typed = self.typed(target)?;
        // SAFETY: as in `begin_load`; `into` is borrowed exclusively, and the work is waited for.
        let work = unsafe { self.engine.pack(&typed, range, Region::of_mut(into), &[]) };
        let work = Outstanding::new(work.map_err(|error| refused(&error))?);
        work.wait().map_err(|error| failed(&error))
    }

    /// Writes a range of the target's packed stream.
    pub(crate) fn store(
        &self,
        target: &Typed,
        range: Range<u64>,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        if bytes.is_empty() {
            return Ok(());
        }
        let typed = self.typed(target)?;
        // SAFETY: as in `load`; `bytes` are borrowed.
        let work = unsafe { self.engine.unpack(Region::of(bytes), &typed, range, &[]) };
        let work = Outstanding::new(work.map_err(|error| refused(&error))?);
        work.wait().map_err(|error| failed(&error))
    }

    /// Writes all that `origin` describes, from where it lies. `false`: it has to be packed first, and nothing was done.
    ///
    /// # Safety
    /// During the call, `origin` describes memory that is valid for reads, and that nobody writes.
    pub(crate) unsafe fn store_from(&self, target: &Typed, origin: &Typed) -> Result<bool, Fault> {
        let (typed, all) = (self.typed(target)?, 0..origin.packed_bytes());
        let stretch = origin.as_contiguous().filter(|it| it.space().cpu_accessible());
        let work = if all.is_empty() {
            return Ok(true);
        } else if let Some(stretch) = stretch {
            // SAFETY: the caller's promise, and as in `load`.
            unsafe { self.engine.unpack(stretch, &typed, all, &[]) }
        } else if origin.space() == typed.space() {
            // SAFETY: as above. Where the two overlap, bytes are arbitrary: MPI forbids it, and no reference covers them.
            unsafe { self.engine.transfer(origin, &typed, all, &[]) }
        } else {
            return Ok(false);
        };
        let work = Outstanding::new(work.map_err(|error| refused(&error))?);
        work.wait().map_err(|error| failed(&error))?;
        Ok(true)
    }

    /// Reads all that `origin` describes, to where it lies. `false`: it has to be unpacked last, and nothing was done.
    ///
    /// # Safety
    /// During the call, `origin` describes memory that is valid for reads and writes, has no byte twice, and nobody else
    /// touches it.
    pub(crate) unsafe fn load_into(&self, target: &Typed, origin: &Typed) -> Result<bool, Fault> {
        let (typed, all) = (self.typed(target)?, 0..origin.packed_bytes());
        let stretch = origin.as_contiguous().filter(|it| it.space().cpu_accessible());
        let work = if all.is_empty() {
            return Ok(true);
        } else if let Some(stretch) = stretch {
            // SAFETY: the caller's promise, and as in `load`.
            unsafe { self.engine.pack(&typed, all, stretch, &[]) }
        } else if origin.space() == typed.space() {
            // SAFETY: as in `store_from`.
            unsafe { self.engine.transfer(&typed, origin, all, &[]) }
        } else {
            return Ok(false);
        };
        let work = Outstanding::new(work.map_err(|error| refused(&error))?);
        work.wait().map_err(|error| failed(&error))?;
        Ok(true)
    }

    /// Changes the elements of `range`, of which the caller has the stripes; as [`change`](crate::exposure::change).
    pub(crate) fn change(
        &self,
        target: &Typed,
        range: Range<u64>,
        (arithmetic, operand): (&Arithmetic, &[u8]),
        result: Option<&mut [u8]>,
    ) -> Result<(), Fault> {
        if arithmetic.op() == ReduceOp::Replace && result.is_none() {
            return self.store(target, range, operand);
        }
        let len = usize::try_from(range.end - range.start).map_err(|_| Fault::Outside)?;
        let mut old = vec![0; len];
        self.load(target, range.clone(), &mut old)?;
        if let Some(result) = result {
            result.copy_from_slice(&old);
        }
        if arithmetic.op() == ReduceOp::NoOp {
            return Ok(());
        }
        arithmetic.combine(&mut old, operand);
        self.store(target, range, &old)
    }

    /// What [`change_from`](DeviceMemory::change_from) changes: the target as elements, not as bytes.
    pub(crate) fn elements(
        &self,
        target: &Typed,
        arithmetic: &Arithmetic,
    ) -> Result<Typed, EngineError> {
        let Some(bytes) = target.as_contiguous() else {
            let region =
                self.lease.region().sub(target.region().offset(), target.region().len())?;
            return Typed::new(region, target.origin(), target.layout(), target.count());
        };
        let region = self.lease.region().sub(bytes.offset(), bytes.len())?;
        let primitive = arithmetic.primitive();
        let element = Datatype::from(primitive).commit();
        let element = element.map_err(|_| EngineError::NoArithmetic { primitive })?;
        Typed::new(region, 0, &element, bytes.len() / arithmetic.width() as u64)
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
    ) -> Result<(), Fault> {
        let work = if op == ReduceOp::Replace {
            // SAFETY: the caller's promise, and as in `begin_load`.
            unsafe { self.engine.transfer(origin, elements, range, &[]) }
        } else {
            let both = [elements.clone(), origin.clone()];
            // SAFETY: as above; the target is the first source, and nobody else changes those elements.
            unsafe { self.reducer.reduce_into(&op.into(), &both, elements, range, &[]) }
        };
        let work = Outstanding::new(work.map_err(|error| refused(&error))?);
        work.wait().map_err(|error| failed(&error))
    }

    /// Replaces the one element that `target` is by `swap` if it is `compare`, bit by bit; gives what was there. The caller
    /// has its stripe.
    pub(crate) fn compare_swap(
        &self,
        target: &Typed,
        width: usize,
        (compare, swap): (u64, u64),
    ) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        let bytes = bytes.get_mut(..width).ok_or(Fault::Elements)?;
        self.load(target, 0..width as u64, bytes)?;
        let old = read(bytes);
        if old == compare {
            write(swap, bytes);
            self.store(target, 0..width as u64, bytes)?;
        }
        Ok(old)
    }
}

/// Why an engine has started nothing.
fn refused(error: &EngineError) -> Fault {
    match error {
        EngineError::OutsideBuffer { .. } | EngineError::RangeOutside { .. } => Fault::Outside,
        error => failed(error),
    }
}
