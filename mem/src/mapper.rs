//! Memory of accelerators at addresses of the processor.
//!
//! A driver maps it. That takes half a millisecond, and some tenths of a second if the driver must be opened first. So
//! nobody waits for it: whoever wants memory gets a [`ProcessorMapping`], which has the memory later; the mapper gets
//! the [`Answer`] that it is to give.

use crate::{DeviceError, Export, Lease, Region};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maps memory that other processes have exported from accelerators, so that the processor of this one stores there: a few
/// words that the accelerator is to find near. Stores go over the bus, several at once and in any order, until
/// [`settle_stores`](crate::settle_stores); loads take a microsecond each, and whether they see what the accelerator has
/// just written is not said.
///
/// # Safety
/// Transports hand the memory out on the strength of what this answers. So an implementation keeps these rules:
///
/// 1. The region in an [`Answer`] is memory that lies at its address for reads and writes, overlaps nothing else of this
///    process's, and covers no more than was exported, until it is unmapped or the mapper is gone, whatever the exporting
///    process does.
/// 2. If a call panics, nobody has what it has mapped.
pub unsafe trait Mapper: Send + Sync {
    /// Maps what another process exported, and answers whether and where: from within this call, or from a thread of the
    /// mapper's. It does not wait for a driver. Whoever wants the memory calls [`ProcessorMapping::begin`].
    fn map(&self, export: Export, answer: Answer);

    /// Unmaps what it has answered with; it may still be mapped for a moment when this returns.
    ///
    /// # Safety
    /// `region` came from this mapper, and nothing uses it any more.
    ///
    /// # Errors
    /// The driver's failure.
    unsafe fn unmap(&self, region: Region) -> Result<(), DeviceError>;
}

/// What one side waits for and the other gives.
enum State {
    Asked,
    Answered(Result<Region, DeviceError>),
    /// Taken, or nobody wants it any more.
    Over,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mapper's answer. If it is dropped, the answer is that the mapper has given up.
pub struct Answer {
    state: Arc<Mutex<State>>,
    bell: Arc<dyn Fn() + Send + Sync>,
}

impl Answer {
    /// Where the memory lies, or why it is not mapped; then the bell rings. Gives back a region that nobody wants any more:
    /// it is the mapper's.
    #[must_use = "a region that comes back is to be unmapped"]
    pub fn give(self, answer: Result<Region, DeviceError>) -> Option<Region> {
        self.put(answer)
    }

    fn put(&self, answer: Result<Region, DeviceError>) -> Option<Region> {
        let mut state = lock(&self.state);
        if !matches!(*state, State::Asked) {
            return answer.ok();
        }
        *state = State::Answered(answer);
        drop(state);
        (self.bell)();
        None
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if matches!(*lock(&self.state), State::Asked) {
            let reason = "the mapper has given up".to_owned();
            let device = "the processor".to_owned();
            let operation = "mapping memory";
            _ = self.put(Err(DeviceError::Failed { device, operation, reason }));
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}

/// Memory of another process's accelerator that is being mapped. What comes of it when this is gone is unmapped.
pub struct ProcessorMapping {
    state: Arc<Mutex<State>>,
    by: Arc<dyn Mapper>,
    len: u64,
}

impl ProcessorMapping {
    /// Has `by` map what was exported: `len` bytes, or another process has not told the truth. The bell rings once, when
    /// [`take`](ProcessorMapping::take) has something to give, on any thread and perhaps before this returns. It must not
    /// wait.
    #[must_use]
    pub fn begin(
        by: &Arc<dyn Mapper>,
        export: Export,
        len: u64,
        bell: Arc<dyn Fn() + Send + Sync>,
    ) -> ProcessorMapping {
        let state = Arc::new(Mutex::new(State::Asked));
        let mapping = ProcessorMapping { state: Arc::clone(&state), by: Arc::clone(by), len };
        by.map(export, Answer { state, bell });
        mapping
    }

    /// How many bytes it is to be.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// Whether there is something to take.
    #[must_use]
    pub fn is_known(&self) -> bool {
        matches!(*lock(&self.state), State::Answered(_))
    }

    /// The memory, which is unmapped when the last clone of the lease is gone. `None`: it is not known yet, or was taken.
    ///
    /// # Errors
    /// The mapper refuses, or has mapped another length.
    pub fn take(&mut self) -> Option<Result<Lease, DeviceError>> {
        let mut state = lock(&self.state);
        if matches!(*state, State::Asked) {
            return None;
        }
        let State::Answered(answer) = std::mem::replace(&mut *state, State::Over) else {
            return None;
        };
        drop(state);
        Some(answer.and_then(|region| {
            let owner = Arc::new(Mapped { region, by: Arc::clone(&self.by) });
            if region.len() != self.len {
                let (src_len, dst_len) = (region.len(), self.len);
                return Err(DeviceError::LengthMismatch { src_len, dst_len });
            }
            // SAFETY: the mapper has mapped the region, and keeps it until its owner unmaps it.
            Ok(unsafe { Lease::new(region, owner) })
        }))
    }
}

impl Drop for ProcessorMapping {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut *lock(&self.state), State::Over);
        if let State::Answered(Ok(region)) = state {
            drop(Mapped { region, by: Arc::clone(&self.by) });
        }
    }
}

impl fmt::Debug for ProcessorMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessorMapping of {} bytes", self.len)
    }
}

/// What a mapper has mapped, until it is dropped.
struct Mapped {
    region: Region,
    by: Arc<dyn Mapper>,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapper gave the region to this alone, and whatever uses it holds this.
        // An error: it stays mapped, which harms nobody.
        _ = unsafe { self.by.unmap(self.region) };
    }
}
