//! The one currency of asynchronous work: every engine and device call takes what it must come
//! `after` and returns a [`Completion`].

use crate::{DeviceError, abort_on_unwind};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Work in flight on some device; implemented by devices.
///
/// # Safety
/// Whoever was told that work is over frees or reuses the memory that was granted to it. So an
/// implementation keeps these rules:
///
/// 1. [`poll`](Pending::poll) answers `Ok(true)`, or an error, only once the work is over: no part of
///    it, and nothing that it had to wait for, touches memory that it was given from then on. A
///    question that could not be answered is `Ok(false)`.
/// 2. What the work wrote can be seen by the thread that was told `Ok(true)`.
/// 3. Over is over: no later `poll` answers `Ok(false)`, and [`is_known_over`](Pending::is_known_over) is
///    `true` only of work that is over.
/// 4. [`as_any`](Pending::as_any) gives `self`, and no other work.
/// 5. What another process makes of [`export`](Pending::export)'s bytes while this value lives is over
///    no sooner than this work.
/// 6. A panic says nothing of the work: it may go on, and may be asked again.
/// 7. While this value lives, the work that [`ordered_by`](Pending::ordered_by) gives keeps to these rules for all that
///    this work touches: whatever comes behind that comes behind this. That work is ordered by none other.
///
/// ```compile_fail,E0200
/// # use gapless_mem::{DeviceError, Pending};
/// # use std::any::Any;
/// struct Work;
/// // Without `unsafe` nobody has vouched for the answers.
/// impl Pending for Work {
///     fn poll(&self) -> Result<bool, DeviceError> {
///         Ok(true)
///     }
///     fn as_any(&self) -> &dyn Any {
///         self
///     }
/// }
/// ```
pub unsafe trait Pending: Send + Sync {
    /// Whether the work is over. Never blocks.
    ///
    /// # Errors
    /// The work failed, and is over; asking again gives the same error.
    fn poll(&self) -> Result<bool, DeviceError>;

    /// Whether it is known without asking the device that the work is over, well or not: because
    /// [`poll`](Pending::poll) has found it. `false` is always right.
    fn is_known_over(&self) -> bool {
        false
    }

    /// The implementation's own type, so that its device can order streams without the CPU.
    fn as_any(&self) -> &dyn Any;

    /// The other work whose end orders this, if this only tells more of it, such as a verdict on what it did: a device
    /// can put work of its own behind that one without the CPU, whatever there is to tell.
    fn ordered_by(&self) -> Option<&dyn Pending> {
        None
    }

    /// Bytes that another process can turn into the same completion, where the device can.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where it cannot.
    fn export(&self) -> Result<Vec<u8>, DeviceError> {
        Err(DeviceError::Unsupported { what: "exporting a completion" })
    }
}

/// The end of one piece of asynchronous work. Cheap to clone.
#[derive(Clone, Default)]
pub enum Completion {
    /// Nothing is outstanding.
    #[default]
    Ready,
    /// A device is still working.
    Pending(Arc<dyn Pending>),
}

impl Completion {
    /// Whether the work has ended. Never blocks.
    ///
    /// # Errors
    /// The work failed.
    pub fn poll(&self) -> Result<bool, DeviceError> {
        match self {
            Completion::Ready => Ok(true),
            Completion::Pending(work) => work.poll(),
        }
    }

    /// Whether it is known without asking the device that the work is over, well or not. A guess on the
    /// side of `false`, for those who would rather not ask.
    #[must_use]
    pub fn is_known_over(&self) -> bool {
        match self {
            Completion::Ready => true,
            Completion::Pending(work) => work.is_known_over(),
        }
    }

    /// The work of a device's own type that this is, or that [orders](Pending::ordered_by) it, so that the device need
    /// not have the CPU wait.
    #[must_use]
    pub fn ordering<W: Pending + 'static>(&self) -> Option<&W> {
        let Completion::Pending(work) = self else { return None };
        work.ordered_by().unwrap_or(&**work).as_any().downcast_ref()
    }

    /// Waits until the work has ended, well or not; never unwinds. For whoever takes memory back: if the work
    /// cannot even be asked (its [`poll`](Pending::poll) panics), the process aborts with one line.
    pub fn drain(&self) {
        if let Completion::Pending(work) = self {
            abort_on_unwind("work on memory that is taken back cannot be waited for", || {
                let mut pause = Pause::default();
                while let Ok(false) = work.poll() {
                    pause.step();
                }
            });
        }
    }

    /// Asks until the work has ended, and yields the processor in between if that takes long: for tests and set-up, not
    /// for progress loops.
    ///
    /// # Errors
    /// The work failed.
    pub fn wait(&self) -> Result<(), DeviceError> {
        let mut pause = Pause::default();
        while !self.poll()? {
            pause.step();
        }
        Ok(())
    }
}

/// Between two questions to work that is waited for. The first few come at once: short work ends meanwhile, and where
/// others want the processor, who yields it waits for the time slices of all of them.
#[derive(Default)]
struct Pause(u32);

impl Pause {
    const AT_ONCE: u32 = 64;

    fn step(&mut self) {
        if self.0 < Pause::AT_ONCE {
            self.0 += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Completion::Ready => "Ready",
            Completion::Pending(_) => "Pending",
        })
    }
}

/// Work in flight that nobody looks after yet: unless it is [handed on](Outstanding::hand_on), dropping this waits for
/// it ([`Completion::drain`]). So what is called in between may panic, and the memory of the work is still granted no
/// longer than the work lasts.
#[derive(Debug)]
#[must_use = "dropping it waits for the work"]
pub struct Outstanding(Completion);

impl Outstanding {
    /// Work that was just started.
    #[inline]
    pub fn new(work: Completion) -> Outstanding {
        Outstanding(work)
    }

    /// The work, to be asked.
    #[must_use]
    #[inline]
    pub fn work(&self) -> &Completion {
        &self.0
    }

    /// As [`Completion::wait`].
    ///
    /// # Errors
    /// The work failed.
    pub fn wait(mut self) -> Result<(), DeviceError> {
        let ended = self.0.wait();
        // It is over, and need not say so again.
        self.0 = Completion::Ready;
        ended
    }

    /// The work, for whoever looks after it from now on.
    #[must_use]
    #[inline]
    pub fn hand_on(mut self) -> Completion {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Outstanding {
    #[inline]
    fn drop(&mut self) {
        self.0.drain();
    }
}
