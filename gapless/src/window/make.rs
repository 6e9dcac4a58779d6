//! How programs make windows, and free them. What ranks tell each other then is in `gapless-osc`.

use super::Window;
use super::attributes::Hints;
use super::memory::{WindowMemory, clear};
use crate::communicator::Communicator;
use crate::device_buf::DeviceBuf;
use crate::error::Error;
use crate::raw;
use crate::shared_buf::SharedBuf;
use gapless_dtype::AnyBits;
use gapless_mem::Space;
#[cfg(doc)]
use gapless_osc::WindowError;
use gapless_osc::{Accumulations, Flavor};
use std::marker::PhantomData;

/// Choices for a window, made by [`Communicator::window`].
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is made yet"]
pub struct WindowBuilder<'c> {
    pub(crate) comm: &'c Communicator,
    pub(crate) messages: bool,
    pub(crate) profiled: bool,
    pub(crate) accumulations: Accumulations,
    pub(crate) notices: u32,
    pub(crate) hints: Hints,
    /// Memory is given for it, which was there before.
    pub(crate) given: bool,
}

impl Communicator {
    /// A window of `count` elements, zeroed, at this rank (`MPI_Win_allocate`, MPI 4.1 §12.2.2); other ranks may give
    /// other counts. Collective.
    ///
    /// # Errors
    /// No memory at some rank; the ranks' elements have different types; a member is lost; this is an intercommunicator.
    pub fn window_allocate<T: AnyBits>(&self, count: usize) -> Result<Window<T>, Error> {
        self.window().allocate(count)
    }

    /// A window, with choices.
    pub fn window(&self) -> WindowBuilder<'_> {
        let (accumulations, hints) = Default::default();
        let (messages, profiled, given, notices) = (false, false, false, 0);
        WindowBuilder { comm: self, messages, profiled, accumulations, notices, hints, given }
    }
}

impl WindowBuilder<'_> {
    /// Has all operations of this rank go by messages, also where memory could be mapped. For tests, and to measure what
    /// mapping is worth.
    pub fn by_messages(self) -> Self {
        WindowBuilder { messages: true, ..self }
    }

    /// Has this rank count and time its calls on the window: [`Window::profile`]. That costs two looks at the clock a call.
    pub fn profiled(self) -> Self {
        WindowBuilder { profiled: true, ..self }
    }

    /// Has accumulations carried out as tasks on threads of their targets, which acknowledge each ([`crate::xtq`]; LeBeane et
    /// al. 2016, §V.C.1): the origin does not wait for the target's mutexes, and the target's progress hands them to a
    /// thread. All ranks do the same. Not in dynamic windows.
    pub fn accumulate_by_tasks(self) -> Self {
        WindowBuilder { accumulations: Accumulations::Tasks, ..self }
    }

    /// The same by the [worker](crate::World::attach_window_worker) of each rank's accelerator, which reaches the window's
    /// memory.
    /// Of accumulations there are [`Window::accumulate`] and [`Window::raccumulate`], of sums, products, minima and maxima
    /// of numbers of 4 and 8 bytes; others are refused ([`WindowError::NotByWorker`]).
    pub fn accumulate_by_worker(self) -> Self {
        WindowBuilder { accumulations: Accumulations::Worker, ..self }
    }

    /// Gives each rank so many notice counters, of 64 bits: [`Window::put_notify`]. All ranks say the same number.
    pub fn notices(self, counters: u32) -> Self {
        WindowBuilder { notices: counters, ..self }
    }

    /// A hint (an info key of MPI 4.1 §12.2.1). `same_size` with `true` at any rank: the window is made only if all ranks
    /// give as many bytes, else all get [`WindowError::Differs`]. All others are without effect, as what they promise
    /// or ask for is so anyway or saves nothing: accumulations are atomic and in order whatever operations are mixed
    /// (`accumulate_ops`, `accumulate_ordering`), mutexes are of 4 KiB (`mpi_accumulate_granularity`), displacements are in
    /// elements of one type (`same_disp_unit`), and locks are there (`no_locks`). Unknown keys are ignored, as MPI says.
    /// [`Window::info`] tells what a window keeps to.
    pub fn info(self, key: &str, value: &str) -> Self {
        WindowBuilder { hints: self.hints.with(key, value), ..self }
    }

    /// See [`Communicator::window_allocate`].
    ///
    /// # Errors
    /// As there.
    pub fn allocate<T: AnyBits>(self, count: usize) -> Result<Window<T>, Error> {
        self.make(Flavor::Plain, self.elements::<T>(count))
    }

    /// The same in memory of a device: some ranks may call this, and others [`allocate`](WindowBuilder::allocate). Ranks of
    /// one host whose devices map each other's memory (CUDA) have their own device do operations, in one step. For all
    /// others the target's progress engine has its device do them. `docs/windows.md` says what differs from memory of
    /// the host.
    ///
    /// # Errors
    /// As [`allocate`](WindowBuilder::allocate); there is no such device.
    pub fn allocate_on<T: AnyBits>(
        self,
        space: Space,
        count: usize,
    ) -> Result<Window<T, DeviceBuf>, Error> {
        let bytes = (count as u64).saturating_mul(size_of::<T>() as u64);
        let shared = &self.comm.shared;
        let device = shared.with(|state| state.device(space));
        let memory = device.and_then(|device| {
            let mut memory = DeviceBuf::allocate(shared, device, bytes)?;
            clear(shared, &mut memory)?;
            Ok(memory)
        });
        self.make(Flavor::Plain, memory)
    }

    /// A window of memory that the ranks give, of the host or of a device (`MPI_Win_create`, MPI 4.1 §12.2.1).
    /// [`Window::free`] gives it back. Collective.
    ///
    /// ```
    /// # fn main() -> Result<(), gapless::Error> {
    /// # let world = gapless::World::init()?;
    /// let mut window = world.comm().window().create(vec![0.0f64; 100])?;
    /// window.fence()?;
    /// window.put(&[1.5, 2.5], 0, 98)?;
    /// window.fence_last()?;
    /// let values = window.free()?;
    /// assert_eq!(values[97..], [0.0, 1.5, 2.5]);
    /// # world.finalize()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`allocate`](WindowBuilder::allocate); elements of a `Vec` have padding.
    pub fn create<M: WindowMemory>(self, memory: M) -> Result<Window<M::Element, M>, Error> {
        WindowBuilder { given: true, ..self }.make(Flavor::Plain, Ok(memory))
    }

    /// A window that all ranks map (`MPI_Win_allocate_shared`, MPI 4.1 §12.2.3): besides one-sided operations there are
    /// loads and stores of all ranks' memory, without epochs ([`Window::part`]). Each rank's memory is an allocation of
    /// its own, so parts do not follow each other; one rank may give all, and the others 0 elements. Collective.
    ///
    /// # Errors
    /// As [`allocate`](WindowBuilder::allocate); a rank cannot map another's memory: then no rank has the window. To find
    /// those that can: [`Communicator::split_shared`].
    pub fn allocate_shared<T: AnyBits>(self, count: usize) -> Result<Window<T>, Error> {
        self.make(Flavor::Shared, self.elements::<T>(count))
    }

    /// A window of memory that ranks [attach](Window::attach) as they like (`MPI_Win_create_dynamic`, MPI 4.1 §12.2.4).
    /// Displacements are addresses, in bytes; operations go by messages. Collective.
    ///
    /// # Errors
    /// As [`allocate`](WindowBuilder::allocate).
    pub fn dynamic(self) -> Result<Window<u8>, Error> {
        self.make(Flavor::Dynamic, SharedBuf::heap(0))
    }

    /// A window of numbers of 64 bits: integers or floating-point numbers, of which nothing else is accumulated. Where all
    /// ranks reach each other over adapters that have atomic operations (InfiniBand, RoCE), these carry out accumulations
    /// ([`Window::is_by_adapter`]): the target need not make progress. Elsewhere, and where [tasks](Self::accumulate_by_tasks) or
    /// a [worker](Self::accumulate_by_worker) are asked for, it is as if made by
    /// [`allocate`](WindowBuilder::allocate). MPI says such things by info keys (`accumulate_ops`, MPI 4.1 §12.2.1).
    /// Collective.
    ///
    /// # Errors
    /// As [`allocate`](WindowBuilder::allocate).
    pub fn allocate_numbers<T: AnyBits>(self, count: usize) -> Result<Window<T>, Error> {
        self.make(Flavor::Numbers, self.elements::<T>(count))
    }

    fn elements<T>(&self, count: usize) -> Result<SharedBuf, Error> {
        self.bytes((count as u64).saturating_mul(size_of::<T>() as u64))
    }

    /// Memory of the host, zeroed.
    pub(crate) fn bytes(&self, bytes: u64) -> Result<SharedBuf, Error> {
        SharedBuf::allocate(&self.comm.shared, usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    fn make<T: AnyBits, M: WindowMemory>(
        self,
        flavor: Flavor,
        memory: Result<M, Error>,
    ) -> Result<Window<T, M>, Error> {
        let made = raw::Made {
            flavor,
            unit: if flavor == Flavor::Dynamic { 1 } else { size_of::<T>().max(1) as u64 },
            elements: Some(T::layout().signature().digest(1)),
            parts: None,
        };
        let memory = memory.and_then(|memory| memory.lend());
        let (raw, memory) = raw::Window::made(self, made, memory)?;
        let (attached, name, element) = (Vec::new(), String::new(), PhantomData);
        Ok(Window { raw, memory, attached, hints: self.hints, name, element })
    }
}

impl<T: AnyBits, M: WindowMemory> Window<T, M> {
    /// Frees the window (`MPI_Win_free`, MPI 4.1 §12.2.5). Collective; waits for the other ranks. Gives the memory back,
    /// which nobody else touches any more.
    ///
    /// # Errors
    /// As [`raw::Window::free`]. Then the window is gone all the same, at all ranks, and its memory with it.
    pub fn free(self) -> Result<M, Error> {
        self.raw.free()?;
        Ok((self.memory)())
    }
}
