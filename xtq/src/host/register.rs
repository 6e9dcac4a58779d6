//! Registrations (LeBeane et al. 2016, §IV.B): what an index stands for here, from now on.
//!
//! Registering anew replaces what was there: a put that arrives meanwhile gets the old or the new, as a whole. Tasks
//! that are in queues keep what they were accepted with.

use super::queue::{Queue, QueueOptions};
use super::run::lay_down;
use super::target::Registered;
use super::{Inner, Xtq, XtqState};
use crate::error::XtqError;
use crate::launcher::Kernel;
use crate::packet::check_arguments;
use crate::tables::{NoSuchIndex, QueueEntry, TaskEntry};
use crate::task::Function;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names of what is registered, in tables and rewritten packets; 0 is none.
static NEXT: AtomicU64 = AtomicU64::new(1);

fn name() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Inner {
    /// Registers a value, or takes one out, in the table and here, under the lock under which packets are looked up.
    fn register<T>(
        &self,
        (index, mut value): (u8, Option<(u64, Arc<T>)>),
        place: impl FnOnce(&mut XtqState) -> &mut Registered<T>,
        table: impl FnOnce() -> Result<(), NoSuchIndex>,
    ) -> Result<(), XtqError> {
        let registered = self.with(|state| {
            if state.left {
                // It would be kept, and perhaps keep this end, for ever.
                return if value.is_some() { Err(XtqError::Closed) } else { Ok(()) };
            }
            let place = place(state).get_mut(usize::from(index)).ok_or(NoSuchIndex { index })?;
            table()?;
            std::mem::swap(place, &mut value);
            Ok(())
        });
        // It may be a user's last hold on what was there, or was not registered.
        lay_down(value);
        registered
    }
}

impl Xtq {
    /// Registers a function by a coordinated index, in the place of what was there.
    ///
    /// # Errors
    /// There is no such index.
    pub fn register_function(&self, index: u8, function: Function) -> Result<(), XtqError> {
        let buffer = function.buffer.as_ref().filter(|buffer| !buffer.is_empty());
        let entry = TaskEntry {
            object: name(),
            buffer: buffer.map_or(0, |buffer| buffer.address()),
            buffer_bytes: buffer.map_or(0, |buffer| buffer.len()),
            signal: 0,
            payload_max: function.payload_max,
            argument_bytes: 0,
        };
        let value = Some((entry.object, Arc::new(function)));
        self.set_function((index, value), Some(entry))
    }

    /// Takes a function out: from now on it is refused.
    ///
    /// # Errors
    /// There is no such index.
    pub fn unregister_function(&self, index: u8) -> Result<(), XtqError> {
        self.set_function((index, None), None)
    }

    fn set_function(
        &self,
        value: (u8, Option<(u64, Arc<Function>)>),
        entry: Option<TaskEntry>,
    ) -> Result<(), XtqError> {
        let index = value.0;
        let table = || self.inner.tables.set_function(index, entry);
        self.inner.register(value, |state| &mut state.target.functions, table)
    }

    /// Registers a kernel by a coordinated index, in the place of what was there.
    ///
    /// # Safety
    /// With any arguments, of which the first two are replaced as [`rewrite`](crate::rewrite) says, any launch within
    /// the launcher's limits and [`Kernel::grid_max`], and any payload of up to the registered length, the kernel stays
    /// inside its registered memory (and what a registered table of pointers leads to) and the payload, does not write
    /// the payload, and terminates. While it is registered, and while tasks of it are in queues or run, its registered
    /// memory stays allocated, and nothing else touches it but what the caller orders after them by signals. Tasks that
    /// run go on after [`abandon`](Xtq::abandon), also when a peer was lost, or the layer below dropped: only when
    /// [`has_settled`](Xtq::has_settled) says so after that does none touch the memory any more. A [`Lease`] that owns
    /// its memory keeps it until then.
    ///
    /// If the kernel is a worker's, dropping its lease must not call this crate: a lock may be held then.
    ///
    /// [`Lease`]: gapless_mem::Lease
    ///
    /// # Errors
    /// There is no such index; arguments of a length that no packet has; this process has left. Of a worker's kernel:
    /// there is no worker; payloads that do not fit into a ring; another `Xtq`'s signal. After
    /// [`Busy`](crate::device::TargetError::Busy) it is registered all the same, and the worker will find it.
    pub unsafe fn register_kernel(&self, index: u8, kernel: Kernel) -> Result<(), XtqError> {
        check_arguments(kernel.argument_bytes)?;
        let _turn = self.inner.turn();
        // SAFETY: the caller's promise.
        let (kernel, busy) = unsafe { self.inner.tell_worker(index, kernel) }?;
        let entry = kernel.entry(name());
        let signal = kernel.signal.clone();
        let of_worker = kernel.is_of_worker();
        let value = Some((entry.object, Arc::new(kernel)));
        self.set_kernel((index, value), Some(entry), of_worker)?;
        if let Some(signal) = signal {
            self.inner.with(|state| state.watch(&signal));
        }
        busy.map_or(Ok(()), |busy| Err(busy.into()))
    }

    /// Takes a kernel out: from now on it is refused.
    ///
    /// # Errors
    /// There is no such index.
    pub fn unregister_kernel(&self, index: u8) -> Result<(), XtqError> {
        let _turn = self.inner.turn();
        self.set_kernel((index, None), None, false)
    }

    fn set_kernel(
        &self,
        value: (u8, Option<(u64, Arc<Kernel>)>),
        entry: Option<TaskEntry>,
        of_worker: bool,
    ) -> Result<(), XtqError> {
        let index = value.0;
        let table = || self.inner.tables.set_kernel(index, entry);
        self.inner.register(value, |state| &mut state.target.kernels, table)?;
        self.inner.tell_initiators(index, of_worker)
    }

    /// Registers a queue by a coordinated index, in the place of what was there. It takes tasks from every initiator.
    /// Tasks in the old one still run, beside those of the new one: order and barriers do not reach from one to the
    /// other.
    ///
    /// # Errors
    /// There is no such index; a queue without room.
    pub fn register_queue(&self, index: u8, options: QueueOptions) -> Result<(), XtqError> {
        options.check()?;
        let QueueOptions { capacity, width } = options;
        let _turn = self.inner.turn();
        let queue = Queue::new(name(), options);
        let entry = QueueEntry { base: queue.name, capacity };
        self.set_queue((index, Some((queue.name, Arc::new(queue)))), Some(entry))?;
        self.inner.tell_worker_of_queue(index, width)
    }

    /// Takes a queue out: from now on it is refused. Its tasks still run.
    ///
    /// # Errors
    /// There is no such index.
    pub fn unregister_queue(&self, index: u8) -> Result<(), XtqError> {
        let _turn = self.inner.turn();
        self.set_queue((index, None), None)?;
        self.inner.tell_worker_of_queue(index, 0)
    }

    fn set_queue(
        &self,
        value: (u8, Option<(u64, Arc<Queue>)>),
        entry: Option<QueueEntry>,
    ) -> Result<(), XtqError> {
        let index = value.0;
        let table = || self.inner.tables.set_queue(index, entry);
        self.inner.register(
            value,
            |state| {
                state.target.retire_queue(index);
                &mut state.target.queues
            },
            table,
        )
    }
}
