//! Memory that lives long, and what is attached to it and must end before it is freed.

use crate::{Lease, Region};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is attached to memory.
type Attached = Arc<dyn Any + Send + Sync>;

/// Memory that somebody allocates for many messages, and keeps. Adapters register it once, and attach the registration,
/// which is dropped before the memory is freed.
///
/// Whoever attaches something keeps only a weak pointer to it, except while a caller promises that the memory lives.
pub struct Lasting {
    attached: Mutex<Vec<Attached>>,
    /// Dropped after `attached`: fields are dropped in this order.
    lease: Lease,
}

impl Lasting {
    /// Memory that `lease` keeps.
    #[must_use]
    pub fn new(lease: Lease) -> Arc<Lasting> {
        Arc::new(Lasting { attached: Mutex::default(), lease })
    }

    /// Where the memory is.
    #[must_use]
    pub fn region(&self) -> Region {
        self.lease.region()
    }

    /// The memory, as long as somebody has this lease: what is attached stays, too.
    #[must_use]
    pub fn lease(self: &Arc<Lasting>) -> Lease {
        self.lease.kept_by(Arc::clone(self) as Attached)
    }

    fn attached(&self) -> MutexGuard<'_, Vec<Attached>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps `what` as long as the memory, and drops it before that goes.
    pub fn attach(&self, what: Attached) {
        self.attached().push(what);
    }

    /// Forgets what was attached. Gives whether it was.
    pub fn detach(&self, what: &Attached) -> bool {
        let mut attached = self.attached();
        let at = attached.iter().position(|it| Arc::ptr_eq(it, what));
        let found = at.map(|at| attached.swap_remove(at));
        // Its `Drop` may take long.
        drop(attached);
        found.is_some()
    }
}

impl fmt::Debug for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lasting memory: {:?}", self.region())
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "makes leases of memory that nothing touches")]
mod tests {
    use super::*;
    use crate::Space;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Looks, when it is dropped, whether the memory is still there.
    struct Witness(Arc<AtomicBool>, Arc<AtomicBool>);

    impl Drop for Witness {
        fn drop(&mut self) {
            self.1.store(self.0.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Says when it is gone.
    struct Owner(Arc<AtomicBool>);

    impl Drop for Owner {
        fn drop(&mut self) {
            self.0.store(false, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_attached_ends_before_the_memory_and_not_before_its_last_user() {
        let (there, seen) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let region = Region::new(Space::Host, 4096, 0, 100);
        // SAFETY: nothing touches the memory.
        let lease = unsafe { Lease::new(region, Arc::new(Owner(Arc::clone(&there)))) };
        let memory = Lasting::new(lease);
        let witness: Attached = Arc::new(Witness(Arc::clone(&there), Arc::clone(&seen)));
        let weak = Arc::downgrade(&witness);
        memory.attach(witness);
        let part = memory.lease().sub(10, 20).unwrap();
        assert_eq!((part.region().start(), part.region().len()), (4106, 20));
        drop(memory);
        assert!(weak.upgrade().is_some() && there.load(Ordering::Relaxed), "a part is in use");
        drop(part);
        assert!(weak.upgrade().is_none() && !there.load(Ordering::Relaxed));
        assert!(seen.load(Ordering::Relaxed), "it ended while the memory was there");
    }

    #[test]
    fn what_was_attached_can_be_taken_off_once() {
        let region = Region::new(Space::Host, 4096, 0, 100);
        // SAFETY: nothing touches the memory.
        let memory = Lasting::new(unsafe { Lease::kept_by_caller(region) });
        let [one, other]: [Attached; 2] = [Arc::new(1), Arc::new(2)];
        memory.attach(Arc::clone(&one));
        memory.attach(Arc::clone(&other));
        assert!(memory.detach(&one) && !memory.detach(&one));
        assert_eq!((Arc::strong_count(&one), Arc::strong_count(&other)), (1, 2));
        drop(memory);
        assert_eq!(Arc::strong_count(&other), 1);
    }
}
