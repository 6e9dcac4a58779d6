//! Work of an engine or a device, and the memory that it reads or writes.

use super::{Buffer, Remote, StagingMemory};
use crate::arrival::Body;
use gapless_bml::RailSlot;
use gapless_mem::{Completion, DeviceError, Outstanding};
use smallvec::SmallVec;

/// Work on a buffer and on `memory`, which it keeps until the work is over: dropping it waits for the work. So code
/// that holds one cannot let memory go too soon.
#[derive(Debug)]
#[must_use = "dropping it waits for the work"]
pub(crate) struct Transfer<M> {
    /// The first field: it is dropped, and so waited for, before what it touches.
    work: Outstanding,
    /// `None` if the work was over at once.
    buffer: Option<Buffer>,
    memory: M,
}

impl<M> Transfer<M> {
    /// Work on `buffer` and `memory` that was just started.
    #[inline]
    pub(super) fn new(work: Outstanding, buffer: &Buffer, memory: M) -> Transfer<M> {
        let buffer = matches!(work.work(), Completion::Pending(_)).then(|| buffer.clone());
        Transfer { work, buffer, memory }
    }

    /// No work.
    #[inline]
    pub(crate) fn over(memory: M) -> Transfer<M> {
        Transfer { work: Outstanding::new(Completion::Ready), buffer: None, memory }
    }

    /// The work, for other work to wait for.
    pub(crate) fn work(&self) -> &Completion {
        self.work.work()
    }

    /// Whether it is over. Never blocks.
    ///
    /// # Errors
    /// It failed, and is over.
    pub(crate) fn poll(&mut self) -> Result<bool, DeviceError> {
        let ended = self.work.work().poll();
        if ended != Ok(false) {
            // It need not be asked again.
            drop(std::mem::replace(&mut self.work, Outstanding::new(Completion::Ready)).hand_on());
        }
        ended
    }

    /// Whether it may go on, without asking.
    pub(crate) fn is_pending(&self) -> bool {
        matches!(self.work.work(), Completion::Pending(_))
    }

    /// Waits until it is over, well or not; never unwinds.
    pub(crate) fn drain(&self) {
        self.work.work().drain();
    }

    /// The memory, if no work was left when it was started, or last asked for.
    #[inline]
    #[expect(clippy::result_large_err, reason = "no error, but the same work, which goes on")]
    pub(crate) fn now(self) -> Result<M, Transfer<M>> {
        match self.work.work() {
            Completion::Ready => Ok(self.end()),
            Completion::Pending(_) => Err(self),
        }
    }

    /// The memory. Waits for work that is not over.
    #[inline]
    pub(crate) fn end(self) -> M {
        let Transfer { work, buffer, memory } = self;
        drop(work);
        drop(buffer);
        memory
    }
}

impl<M: Into<HeldMemory>> Transfer<M> {
    /// The same work, as a part of a rendezvous.
    pub(crate) fn part(self) -> Transfer<HeldMemory> {
        let Transfer { work, buffer, memory } = self;
        Transfer { work, buffer, memory: memory.into() }
    }
}

/// What a part of a rendezvous touches besides its request's buffer.
#[derive(Debug)]
#[expect(dead_code, reason = "most of it is only kept")]
pub(crate) enum HeldMemory {
    /// The memory of a one-sided operation is the request's buffer alone.
    Nothing,
    Slot(RailSlot),
    Body(Body),
    /// One or two, of a fragment between them.
    Staging(SmallVec<[StagingMemory; 2]>),
    Remote(Remote),
    /// Another buffer of this process.
    Buffer(Buffer),
}

macro_rules! held {
    ($($name:ident($from:ty)),+) => {
        $(impl From<$from> for HeldMemory {
            fn from(memory: $from) -> HeldMemory {
                HeldMemory::$name(memory)
            }
        })+
    };
}

held!(
    Slot(RailSlot),
    Body(Body),
    Staging(SmallVec<[StagingMemory; 2]>),
    Remote(Remote),
    Buffer(Buffer)
);

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_engine::Typed;
    use gapless_mem::{Pending, Region};
    use std::any::Any;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Work that is over when it has been asked often enough.
    struct Slow(AtomicU32);

    // SAFETY: it touches nothing, and is over once it says so: `Slow` counts down to 0 and stays there.
    unsafe impl Pending for Slow {
        fn poll(&self) -> Result<bool, DeviceError> {
            let less = |left: u32| left.checked_sub(1);
            Ok(self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err())
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    /// Looks, when it is dropped, how often the work would still say that it goes on.
    struct Memory {
        work: Arc<Slow>,
        left: Arc<AtomicU32>,
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            self.left.store(self.work.0.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn transfer(asks: u32) -> (Transfer<Memory>, Arc<AtomicU32>) {
        let (work, left) = (Arc::new(Slow(AtomicU32::new(asks))), Arc::new(AtomicU32::new(99)));
        let memory = Memory { work: Arc::clone(&work), left: Arc::clone(&left) };
        let nothing = Typed::contiguous(Region::of(&[]));
        // SAFETY: there is no memory.
        let buffer = unsafe { Buffer::promised(&nothing, 0) };
        let work = Outstanding::new(Completion::Pending(work));
        (Transfer::new(work, &buffer, memory), left)
    }

    #[test]
    fn memory_stays_until_the_work_is_over() {
        let (dropped, left) = transfer(5);
        drop(dropped);
        assert_eq!(left.load(Ordering::Relaxed), 0);
        let (ended, left) = transfer(5);
        let memory = ended.end();
        assert_eq!(memory.work.0.load(Ordering::Relaxed), 0);
        assert_eq!(left.load(Ordering::Relaxed), 99);
    }

    #[test]
    fn work_that_was_found_over_is_not_asked_again() {
        let (transfer, _) = transfer(1);
        let Err(mut transfer) = transfer.now() else { panic!("nobody has asked it") };
        assert_eq!((transfer.poll(), transfer.poll()), (Ok(false), Ok(true)));
        transfer.memory.work.0.store(7, Ordering::Relaxed);
        let Ok(memory) = transfer.now() else { panic!("it was found over") };
        assert_eq!(memory.work.0.load(Ordering::Relaxed), 7);
    }
}
