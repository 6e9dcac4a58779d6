//! Events as completions, and completions as what a command waits for.

use crate::device::OpenClDevice;
use crate::sys::Event;
use gapless_mem::{Completion, DeviceError, Pending};
use opencl3::types::cl_event;
use std::any::Any;
use std::sync::Arc;

/// A command in flight.
pub(crate) struct Command {
    event: Event,
    context: u64,
    device: Arc<str>,
}

// SAFETY: the numbers are those of the contract.
// 1. The event is the command's own, and the queue is in order: what the command waits for ended before it.
// 2. `Event::ended` waits for an event that has ended: a point of synchronisation.
// 3. The state of an event ends with 0 or an error, and stays. `is_known_over` is the default.
// 4. `as_any` gives `self`.
// 5. `export` is the default, which refuses.
unsafe impl Pending for Command {
    fn poll(&self) -> Result<bool, DeviceError> {
        self.event.ended().map_err(|error| error.on(&self.device, 0))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What one command waits for: the events of its own context; everything else has ended.
pub(crate) struct WaitList {
    raw: Vec<cl_event>,
    /// Keeps the events alive.
    _commands: Vec<Completion>,
}

impl WaitList {
    /// Waits, yielding, for what OpenCL does not know; keeps the rest.
    pub(crate) fn of(device: &OpenClDevice, after: &[Completion]) -> Result<WaitList, DeviceError> {
        let mut list = WaitList { raw: Vec::new(), _commands: Vec::new() };
        for earlier in after {
            match earlier.ordering::<Command>() {
                Some(command) if command.context == device.context_number() => {
                    list.raw.push(command.event.raw());
                    list._commands.push(earlier.clone());
                }
                _ => earlier.wait()?,
            }
        }
        Ok(list)
    }

    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.raw.len()).unwrap_or(u32::MAX)
    }

    /// The events, or null if there are none, as OpenCL wants it.
    pub(crate) fn as_ptr(&self) -> *const cl_event {
        if self.raw.is_empty() { std::ptr::null() } else { self.raw.as_ptr() }
    }
}

impl OpenClDevice {
    /// Whether the device orders its commands after this by itself. What it does not, the calls that take
    /// it as `after` wait for.
    #[must_use]
    pub fn orders(&self, completion: &Completion) -> bool {
        match completion {
            Completion::Ready => true,
            Completion::Pending(_) => completion
                .ordering::<Command>()
                .is_some_and(|command| command.context == self.context_number()),
        }
    }

    /// The completion of a command just enqueued, which is also flushed. After an error the command has
    /// ended.
    pub(crate) fn started(&self, event: cl_event) -> Result<Completion, DeviceError> {
        let command = Command {
            event: Event::owned(event),
            context: self.context_number(),
            device: self.name(),
        };
        if let Err(error) = self.queue().flush() {
            // It is enqueued all the same, and would begin later.
            command.event.wait();
            return Err(error.on(&self.name(), 0));
        }
        Ok(Completion::Pending(Arc::new(command)))
    }
}
