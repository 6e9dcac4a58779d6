//! How windows are made and freed. What ranks tell each other then is in `gapless-osc`.

use super::Window;
use crate::communicator::Communicator;
use crate::communicator::ranks::Members;
use crate::error::Error;
use crate::page_locked::PageLocked;
use crate::shared_buf::SharedBuf;
use crate::window::{Registration, WindowBuilder, WindowFlavor};
use gapless_dtype::SignatureDigest;
use gapless_engine::{Engine, REACHED_BYTES_MIN, ReduceOp, Reducer};
use gapless_mem::{Lease, Region};
use gapless_osc::{Flavor, Header, Making, WindowError, contiguous_parts};
use gapless_pml::PmlError;
use std::sync::Arc;

impl<'c> From<&'c Communicator> for WindowBuilder<'c> {
    /// Without choices.
    fn from(comm: &'c Communicator) -> WindowBuilder<'c> {
        comm.window()
    }
}

/// What a window is made of, at this rank.
pub(crate) struct Made {
    pub(crate) flavor: Flavor,
    /// Bytes of a unit of displacements.
    pub(crate) unit: u64,
    pub(crate) elements: Option<SignatureDigest>,
    /// By rank, if all are mapped already.
    pub(crate) parts: Option<Vec<Lease>>,
}

impl Made {
    fn bytes(flavor: Flavor, unit: u64) -> Made {
        Made { flavor, unit, elements: None, parts: None }
    }
}

impl Window {
    /// A window of memory of the host or of a device (`MPI_Win_create`, MPI 4.1 §12.2.1). Displacements that others name
    /// here are in units of `unit` bytes; ranks may differ. Collective.
    ///
    /// # Errors
    /// No memory at some rank; no engine here for the device; this is an intercommunicator; a member is lost.
    ///
    /// # Safety
    /// Until the window is freed, or this process has left the world after it was dropped, the region describes initialised
    /// memory that is valid for reads and writes. Where others may access it at the same time, this process does so by
    /// atomic accesses alone; where nobody else does, as it likes.
    pub unsafe fn create<'c>(
        on: impl Into<WindowBuilder<'c>>,
        memory: Region,
        unit: u64,
    ) -> Result<Window, Error> {
        // SAFETY: the caller's promise. Whoever has the lease is in the window, or maps its memory while others have it.
        let lease = unsafe { Lease::kept_by_caller(memory) };
        let on = WindowBuilder { given: true, ..on.into() };
        Window::made(on, Made::bytes(Flavor::Plain, unit), Ok((lease, ()))).map(|made| made.0)
    }

    /// A window of `bytes` bytes, zeroed, at this rank (`MPI_Win_allocate`, MPI 4.1 §12.2.2). Collective.
    ///
    /// # Errors
    /// No memory at some rank; this is an intercommunicator; a member is lost.
    pub fn allocate<'c>(
        on: impl Into<WindowBuilder<'c>>,
        bytes: u64,
        unit: u64,
    ) -> Result<Window, Error> {
        let on = on.into();
        Window::of(on, Made::bytes(Flavor::Plain, unit), on.bytes(bytes))
    }

    /// A window that all ranks map (`MPI_Win_allocate_shared`, MPI 4.1 §12.2.3), of `bytes` bytes, zeroed, at this rank.
    /// [`shared_query`](Window::shared_query) tells where the parts are. If `contiguous`, each follows the one of the rank
    /// before; all ranks say so, or none. Else each lies at the beginning of a page. Collective.
    ///
    /// # Errors
    /// As [`allocate`](Window::allocate); a rank cannot map another's memory: then no rank has the window.
    pub fn allocate_shared<'c>(
        on: impl Into<WindowBuilder<'c>>,
        bytes: u64,
        unit: u64,
        contiguous: bool,
    ) -> Result<Window, Error> {
        let on = on.into();
        let made = Made::bytes(Flavor::Shared, unit);
        if !contiguous {
            return Window::of(on, made, on.bytes(bytes));
        }
        if on.comm.is_inter() {
            return Err(PmlError::InterComm.into());
        }
        let mut whole = None;
        let parts = contiguous_parts(&Members(on.comm.clone()), bytes, |bytes| {
            whole.insert(on.bytes(bytes)?).lease()
        })?;
        let own = parts.get(on.comm.rank() as usize).cloned();
        let own = own.ok_or(WindowError::NoMemory { rank: on.comm.rank() })?;
        let made = Made { parts: Some(parts), ..made };
        let (window, memory) = Window::made(on, made, Ok((own, whole)))?;
        Ok(Window { memory, ..window })
    }

    /// A window of memory that ranks [attach](Window::attach) as they like (`MPI_Win_create_dynamic`, MPI 4.1 §12.2.4).
    /// Displacements are addresses. Operations go by messages. Collective.
    ///
    /// # Errors
    /// As [`allocate`](Window::allocate).
    pub fn dynamic<'c>(on: impl Into<WindowBuilder<'c>>) -> Result<Window, Error> {
        Window::of(on.into(), Made::bytes(Flavor::Dynamic, 1), SharedBuf::heap(0))
    }

    /// A window that keeps its memory.
    fn of(
        on: WindowBuilder<'_>,
        made: Made,
        memory: Result<SharedBuf, Error>,
    ) -> Result<Window, Error> {
        let memory = memory.and_then(|memory| Ok((memory.lease()?, memory)));
        let (window, memory) = Window::made(on, made, memory)?;
        Ok(Window { memory: Some(memory), ..window })
    }

    /// Makes a window of memory, or of the reason why this rank has none, which the others are told. `kept` is given back
    /// beside it: as long as it lives, and the window, nobody touches the memory but by the lease.
    pub(crate) fn made<K>(
        on: WindowBuilder<'_>,
        made: Made,
        memory: Result<(Lease, K), Error>,
    ) -> Result<(Window, K), Error> {
        if on.comm.is_inter() {
            return Err(PmlError::InterComm.into());
        }
        let Made { flavor, unit, elements, parts } = made;
        let comm = on.comm.dup()?;
        let shared = &*comm.shared;
        let mut bytes = Header::bytes(comm.size() as usize, on.notices);
        if on.notices > 0 {
            // Of which devices can register it.
            bytes = bytes.max(REACHED_BYTES_MIN);
        }
        let header = SharedBuf::allocate(shared, usize::try_from(bytes).unwrap_or(usize::MAX));
        let lend = |(memory, kept)| -> Result<_, Error> {
            let header = header?;
            Ok(((memory, header.lease()?), (kept, header)))
        };
        // Ranks without memory tell the others so.
        let (leases, kept) = match memory.and_then(lend) {
            Ok((leases, kept)) => (Ok(leases), Some(kept)),
            Err(error) => (Err(error), None),
        };
        let (engine, reducer) = (Arc::clone(&shared.tools), Arc::clone(&shared.tools));
        let making = Making {
            osc: &shared.windows,
            tasks: &shared.window_tasks,
            engine: engine as Arc<dyn Engine>,
            reducer: reducer as Arc<dyn Reducer>,
            flavor,
            accumulations: on.accumulations,
            notices: on.notices,
            by_messages: on.messages,
            same_size: on.hints.same_size,
            unit,
            elements,
            parts,
        };
        let mut numbers = Registration::new(&comm);
        // SAFETY: the window keeps both buffers to itself while it exists, and nobody looks at their bytes, unless the caller
        // of `create` vouches for that. After that, leases are held by peers' mappings alone; or, in the same process, by
        // other ranks' windows, which are not used any more when `free` has returned.
        let inner = unsafe {
            making.window((shared, &Members(comm.clone())), leases, &mut numbers.registered)
        }?;
        let (kept, header) = kept.ok_or(WindowError::NoMemory { rank: comm.rank() })?;
        let region = header.region();
        // SAFETY: the buffer has it until it is dropped.
        let header = unsafe { PageLocked::new(header, region) };
        let flavor = match flavor {
            Flavor::Plain if on.given => WindowFlavor::Created,
            Flavor::Plain | Flavor::Numbers => WindowFlavor::Allocated,
            Flavor::Shared => WindowFlavor::Shared,
            Flavor::Dynamic => WindowFlavor::Dynamic,
        };
        let window = Window {
            inner,
            comm,
            memory: None,
            header,
            numbers: Some(numbers).filter(Registration::is_some),
            profile: on.profiled.then(Box::default),
            flavor,
            owed: Default::default(),
        };
        Ok((window, kept))
    }

    /// Frees the window (`MPI_Win_free`, MPI 4.1 §12.2.5). Collective; waits for the other ranks. Nobody else touches its
    /// memory any more.
    ///
    /// # Errors
    /// An epoch is open here, or at another rank ([`WindowError::Elsewhere`]); operations were begun after the last fence; a
    /// member is lost; a [worker](WindowBuilder::accumulate_by_worker) of this rank does not answer. Then the window is gone
    /// all the same, at all ranks.
    pub fn free(self) -> Result<(), Error> {
        let refused = self.inner.may_free().err();
        if refused.is_some() {
            // The others take their memory back when they have met.
            self.inner.drop_transfers();
        }
        let mut all = [0];
        self.comm.allreduce(&[self.refusal(refused.is_some())], &mut all, ReduceOp::Min)?;
        let Window { mut inner, comm, memory, header, numbers, .. } = self;
        // Freed or not, no rank has the window any more.
        if let Some(numbers) = numbers {
            numbers.end();
        }
        if all != [i32::MAX] {
            let elsewhere = WindowError::Elsewhere { call: "free", rank: all[0].unsigned_abs() };
            return Err(refused.unwrap_or(elsewhere).into());
        }
        let ended = inner.end_kernel();
        drop((inner, header));
        comm.free()?;
        // What a worker may still change is nobody's.
        ended?;
        drop(memory);
        Ok(())
    }
}
