//! Programs that are built before a message needs them, on a thread of their own.
//!
//! It begins a little after the first command of a device, which builds what it needs by itself: copies need no kernel.
//! So a context that is gone soon costs no program. The thread ends with the accelerator, which waits for the program
//! that is just being built: a driver's compiler must not run on while a process ends.

use super::programs::Programs;
use gapless_kernels::{Direction, Kernel, Width};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// From the first command to the first program.
const GRACE: Duration = Duration::from_millis(100);

/// The thread of an accelerator.
pub(super) struct Preparation {
    /// Those of each lane; none if nothing is prepared.
    programs: Vec<Arc<Programs>>,
    begun: Once,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Which kernels' programs are prepared, in this order: words that layouts of numbers consist of, both directions.
fn likely() -> impl Iterator<Item = Kernel> {
    let widths = [Width::W16, Width::W8, Width::W4];
    let directions = [Direction::Pack, Direction::Unpack];
    let of = move |width| {
        let fits = move |kernel: &Kernel| kernel.width == width && !kernel.family.is_same();
        directions.into_iter().filter_map(move |direction| {
            Kernel::all().find(|kernel| fits(kernel) && kernel.direction == direction)
        })
    };
    widths.into_iter().flat_map(of)
}

fn build_likely(programs: &[Arc<Programs>], stop: &AtomicBool) {
    for kernel in likely() {
        for programs in programs {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            // Whoever needs it tries again, and hears of it.
            if let Err(error) = programs.prepare(kernel) {
                return tracing::debug!(%error, "a program cannot be prepared");
            }
        }
    }
}

impl Preparation {
    pub(super) fn new(programs: Vec<Arc<Programs>>) -> Preparation {
        let (stop, thread) = (Arc::default(), Mutex::default());
        Preparation { programs, begun: Once::new(), stop, thread }
    }

    /// Starts the thread, the first time.
    #[inline]
    pub(super) fn begin(&self) {
        if !self.begun.is_completed() && !self.programs.is_empty() {
            self.begun.call_once(|| self.start());
        }
    }

    #[cold]
    fn start(&self) {
        let (programs, stop) = (self.programs.clone(), Arc::clone(&self.stop));
        let build = move || {
            let until = Instant::now() + GRACE;
            while !stop.load(Ordering::Relaxed) {
                match until.checked_duration_since(Instant::now()) {
                    Some(left) if !left.is_zero() => std::thread::park_timeout(left),
                    _ => return build_likely(&programs, &stop),
                }
            }
        };
        let thread = std::thread::Builder::new().name("gapless-opencl".to_owned()).spawn(build);
        match thread {
            Ok(thread) => {
                *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
            }
            // Programs are built when they are needed.
            Err(error) => tracing::debug!(%error, "no thread prepares programs"),
        }
    }
}

impl Drop for Preparation {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            thread.thread().unpark();
            // A panic there was its own.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::likely;
    use std::collections::BTreeSet;

    #[test]
    fn each_program_is_prepared_once() {
        let programs: BTreeSet<usize> = likely().map(|kernel| kernel.program()).collect();
        assert_eq!((programs.len(), likely().count()), (6, 6));
    }
}
