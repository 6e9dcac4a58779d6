//! The lock of a world: a mutex that costs its first owner next to nothing until somebody else wants it.
//!
//! Most programs use a world from one thread. A mutex makes it pay two locked instructions for each
//! call, which also wait until the stores of the message before have reached the peer's cache. So the gate
//! is biased to the thread that made it:
//!
//! ```text
//! owner, not revoked yet              another thread
//!   inside = true                       takes the mutex
//!   (compiler fence)                    revoked = true
//!   revoked? then inside = false,       membarrier(2): every processor, the owner's too
//!            and take the mutex         waits while inside
//! ```
//!
//! Of the two stores that are each followed by a load of the other's word, the barrier has one seen:
//! either the owner sees `revoked`, or the other sees `inside`. Once revoked, the gate is a mutex for ever.
//! Where the system has no such barrier it is one from the start.

use gapless_btl_sm::membarrier;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A number that no other thread has, or will have.
#[inline]
fn this_thread() -> u64 {
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// A value, and who may touch it.
pub(crate) struct Gate<T> {
    /// The thread that made it.
    owner: u64,
    /// The owner has it without the mutex. Only the owner writes this.
    inside: AtomicBool,
    /// From now on everybody takes the mutex.
    revoked: AtomicBool,
    /// Somebody has panicked inside.
    poisoned: AtomicBool,
    mutex: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time gets at the value (the module's text says why), each after the one before
// has let go: with release and acquire by `inside`, or by the mutex.
unsafe impl<T: Send> Sync for Gate<T> {}

// A value that a panic has left in disorder is known by `is_poisoned`.
impl<T> UnwindSafe for Gate<T> {}
impl<T> RefUnwindSafe for Gate<T> {}

/// The gate, held. Not to be sent to another thread.
#[derive(Debug)]
pub(crate) struct Pass<'g, T> {
    gate: &'g Gate<T>,
    /// `None` for the owner while the gate is its own.
    mutex: Option<MutexGuard<'g, ()>>,
    /// The thread was panicking when it came.
    panicking: bool,
    thread: PhantomData<*const ()>,
}

impl<T> Gate<T> {
    /// Biased to this thread.
    pub(crate) fn new(value: T) -> Gate<T> {
        Gate {
            owner: this_thread(),
            inside: AtomicBool::new(false),
            revoked: AtomicBool::new(!membarrier::register()),
            poisoned: AtomicBool::new(false),
            mutex: Mutex::new(()),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the gate if that takes no waiting.
    #[inline]
    pub(crate) fn try_enter(&self) -> Option<Pass<'_, T>> {
        if !self.revoked.load(Ordering::Relaxed) {
            return self.enter_as_owner();
        }
        match self.mutex.try_lock() {
            Ok(guard) => Some(self.pass(Some(guard))),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.pass(Some(poisoned.into_inner()))),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[inline]
    fn enter_as_owner(&self) -> Option<Pass<'_, T>> {
        // Whoever has it already and asks again waits for itself in `enter`, as with a mutex.
        if self.owner != this_thread() || self.inside.load(Ordering::Relaxed) {
            return None;
        }
        self.inside.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if self.revoked.load(Ordering::Acquire) {
            self.inside.store(false, Ordering::Release);
            return None;
        }
        Some(self.pass(None))
    }

    /// Takes the gate, and waits until it can.
    #[cold]
    pub(crate) fn enter(&self) -> Pass<'_, T> {
        if let Some(pass) = self.try_enter() {
            return pass;
        }
        let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.revoked.load(Ordering::Relaxed) {
            self.revoked.store(true, Ordering::SeqCst);
            if !membarrier::barrier() {
                // It worked when this gate was made. Two threads might be inside: nothing is sound any more.
                std::process::abort();
            }
            while self.inside.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
        self.pass(Some(guard))
    }

    /// Whether a thread has panicked inside.
    #[inline]
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed)
    }

    #[inline]
    fn pass<'g>(&'g self, mutex: Option<MutexGuard<'g, ()>>) -> Pass<'g, T> {
        Pass { gate: self, mutex, panicking: std::thread::panicking(), thread: PhantomData }
    }
}

impl<T> Deref for Pass<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this pass is the only one there is, and lends the value only as it is borrowed itself.
        unsafe { &*self.gate.value.get() }
    }
}

impl<T> DerefMut for Pass<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.gate.value.get() }
    }
}

impl<T> Drop for Pass<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if !self.panicking && std::thread::panicking() {
            self.gate.poisoned.store(true, Ordering::Relaxed);
        }
        if self.mutex.is_none() {
            self.gate.inside.store(false, Ordering::Release);
        }
    }
}

impl<T> std::fmt::Debug for Gate<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let revoked = self.revoked.load(Ordering::Relaxed);
        f.debug_struct("Gate").field("owner", &self.owner).field("revoked", &revoked).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn take<T>(gate: &Gate<T>) -> Pass<'_, T> {
        gate.try_enter().unwrap_or_else(|| gate.enter())
    }

    #[test]
    fn one_thread_at_a_time_whenever_the_others_come() {
        for round in 0..50u64 {
            let gate = Gate::new((0u64, 0u64));
            let add = || {
                let mut pass = take(&gate);
                let before = pass.0;
                std::hint::black_box(&mut pass.1);
                pass.0 = before + 1;
                pass.1 += 1;
            };
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| (0..500).for_each(|_| add()));
                }
                // The owner, before, while and after it loses its privilege.
                (0..20 * round).for_each(|_| add());
                (0..500).for_each(|_| add());
            });
            let total = 1500 + 20 * round;
            assert_eq!(*take(&gate), (total, total));
            assert!(gate.revoked.load(Ordering::Relaxed), "somebody else came");
        }
    }

    #[test]
    fn it_is_taken_once() {
        let gate = Gate::new(1);
        let pass = take(&gate);
        assert!(gate.try_enter().is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(gate.try_enter().is_none()));
        });
        drop(pass);
        assert!(gate.try_enter().is_some());
        std::thread::scope(|scope| {
            scope.spawn(|| drop(gate.enter()));
        });
        let pass = take(&gate);
        assert!(pass.mutex.is_some(), "it is a mutex now");
        assert!(gate.try_enter().is_none());
    }

    #[test]
    fn a_panic_inside_poisons() {
        let gate = Gate::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _pass = take(&gate);
            panic!("inside");
        }));
        assert!(panicked.is_err() && gate.is_poisoned());
        assert_eq!(*take(&gate), 1);
    }
}
