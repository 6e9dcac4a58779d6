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
//! Each side stores its own word, then loads the other's. The barrier ensures that at least one of them sees the
//! other's store. Once revoked, the gate is a mutex for ever. Where the system has no such barrier it is one from the
//! start.
//!
//! loom explores it: `models`, below.

pub use primitive::this_thread;
use primitive::{AtomicBool, Mutex, MutexGuard, Ordering, membarrier, owners_fence};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::AtomicU64;
use std::sync::{PoisonError, TryLockError};

/// What it is made of.
#[cfg(not(loom))]
mod primitive {
    pub(super) use crate::membarrier;
    use std::cell::Cell;
    pub(super) use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::atomic::{AtomicU64, compiler_fence};
    pub(super) use std::sync::{Mutex, MutexGuard};
    pub(super) use std::thread::yield_now;

    /// A number of this thread, that no other thread has, or will have; not 0.
    #[inline]
    #[must_use]
    pub fn this_thread() -> u64 {
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

    /// The owner's side of the barrier: the other pays for both.
    #[inline]
    pub(super) fn owners_fence() {
        compiler_fence(Ordering::SeqCst);
    }
}

/// The same as loom has it. Of membarrier(2) it knows nothing: a fence on either side models it, since
/// the barrier acts as a fence on the other processor.
#[cfg(loom)]
mod primitive {
    use loom::sync::atomic::fence;
    pub(super) use loom::sync::atomic::{AtomicBool, Ordering};
    pub(super) use loom::sync::{Mutex, MutexGuard};
    pub(super) use loom::thread::yield_now;
    use std::cell::Cell;

    pub(super) mod membarrier {
        pub(in super::super) fn register() -> bool {
            true
        }

        pub(in super::super) fn barrier() -> bool {
            super::fence(super::Ordering::SeqCst);
            true
        }
    }

    loom::thread_local! {
        static NUMBER: Cell<u64> = Cell::new(0);
    }

    /// The number of the calling thread.
    pub fn this_thread() -> u64 {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        NUMBER.with(|number| {
            if number.get() == 0 {
                number.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            number.get()
        })
    }

    pub(super) fn owners_fence() {
        fence(Ordering::SeqCst);
    }
}

/// A value that one thread at a time may touch.
///
/// A thread that holds the gate and calls [`enter`](Gate::enter) again would wait for itself: that panics.
pub struct Gate<T> {
    /// The thread that made it.
    owner: u64,
    /// The owner has it without the mutex. Only the owner writes this.
    inside: AtomicBool,
    /// From now on everybody takes the mutex.
    revoked: AtomicBool,
    /// Somebody has panicked inside.
    poisoned: AtomicBool,
    mutex: Mutex<()>,
    /// Who has the mutex: [`this_thread`] there, else 0. Only to know oneself, so nothing is ordered by it.
    holder: AtomicU64,
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
pub struct Pass<'g, T> {
    gate: &'g Gate<T>,
    /// `None` for the owner while the gate is its own.
    mutex: Option<MutexGuard<'g, ()>>,
    /// What was done is done.
    done: bool,
    thread: PhantomData<*const ()>,
}

impl<T> Gate<T> {
    /// A gate around `value`, biased to this thread.
    pub fn new(value: T) -> Gate<T> {
        Gate {
            owner: this_thread(),
            inside: AtomicBool::new(false),
            revoked: AtomicBool::new(!membarrier::register()),
            poisoned: AtomicBool::new(false),
            mutex: Mutex::new(()),
            holder: AtomicU64::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the gate if that takes no waiting. Also `None` while the gate is still biased to another thread: call
    /// [`enter`](Gate::enter).
    #[inline(always)] // its result is moved about if it is not
    pub fn try_enter(&self) -> Option<Pass<'_, T>> {
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
        // Whoever has it already and asks again is told so by `enter`.
        if self.owner != this_thread() || self.inside.load(Ordering::Relaxed) {
            return None;
        }
        self.inside.store(true, Ordering::Relaxed);
        owners_fence();
        if self.revoked.load(Ordering::Acquire) {
            self.inside.store(false, Ordering::Release);
            return None;
        }
        Some(self.pass(None))
    }

    /// Whether this thread has the gate.
    #[must_use]
    pub fn is_mine(&self) -> bool {
        let me = this_thread();
        self.holder.load(std::sync::atomic::Ordering::Relaxed) == me
            || (self.owner == me && self.inside.load(Ordering::Relaxed))
    }

    /// Takes the gate, and waits until it can.
    ///
    /// # Panics
    /// This thread has it already.
    #[cold]
    pub fn enter(&self) -> Pass<'_, T> {
        if let Some(pass) = self.try_enter() {
            return pass;
        }
        assert!(
            !self.is_mine(),
            "a thread that has a lock asks for it again: it would wait for itself"
        );
        let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.revoked.load(Ordering::Relaxed) {
            self.revoked.store(true, Ordering::SeqCst);
            if !membarrier::barrier() {
                // It worked when this gate was made. Two threads might be inside: nothing is sound any more.
                std::process::abort();
            }
            while self.inside.load(Ordering::Acquire) {
                primitive::yield_now();
            }
        }
        self.pass(Some(guard))
    }

    /// Whether a thread has panicked inside.
    #[inline]
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed)
    }

    #[inline]
    fn pass<'g>(&'g self, mutex: Option<MutexGuard<'g, ()>>) -> Pass<'g, T> {
        if mutex.is_some() {
            self.holder.store(this_thread(), std::sync::atomic::Ordering::Relaxed);
        }
        Pass { gate: self, mutex, done: false, thread: PhantomData }
    }
}

impl<T> Pass<'_, T> {
    /// Lets go of the gate with its value in order. A pass that is dropped without `done` poisons the gate, also if the
    /// thread was already unwinding.
    #[inline]
    pub fn done(mut self) {
        self.done = true;
    }
}

impl<T> Deref for Pass<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this pass is the only one there is, and the reference borrows it.
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
        if !self.done {
            self.gate.poisoned.store(true, Ordering::Relaxed);
        }
        match &self.mutex {
            None => self.gate.inside.store(false, Ordering::Release),
            Some(_) => self.gate.holder.store(0, std::sync::atomic::Ordering::Relaxed),
        }
    }
}

impl<T> std::fmt::Debug for Gate<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let revoked = self.revoked.load(Ordering::Relaxed);
        f.debug_struct("Gate").field("owner", &self.owner).field("revoked", &revoked).finish()
    }
}

#[cfg(all(test, not(loom)))]
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
                pass.done();
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
        pass.done();
        assert!(gate.try_enter().map(Pass::done).is_some());
        std::thread::scope(|scope| {
            scope.spawn(|| gate.enter().done());
        });
        assert!(!gate.is_poisoned());
        let pass = take(&gate);
        assert!(pass.mutex.is_some(), "it is a mutex now");
        assert!(gate.try_enter().is_none());
    }

    #[test]
    fn who_has_it_and_asks_again_is_told_so() {
        let gate = Gate::new(1);
        for _ in 0..2 {
            assert!(!gate.is_mine());
            let pass = take(&gate);
            assert!(gate.is_mine());
            let again = catch_unwind(AssertUnwindSafe(|| drop(gate.enter())));
            assert!(again.is_err() && gate.is_mine());
            pass.done();
            // Another thread waits as before; the second time it is a mutex.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    gate.enter().done();
                    assert!(!gate.is_mine());
                });
            });
        }
        assert!(!gate.is_poisoned());
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

    #[test]
    fn a_panic_inside_poisons_although_the_thread_was_unwinding_before() {
        struct Last<'g>(&'g Gate<i32>);

        impl Drop for Last<'_> {
            fn drop(&mut self) {
                let inside = catch_unwind(AssertUnwindSafe(|| {
                    let _pass = take(self.0);
                    panic!("inside");
                }));
                assert!(inside.is_err());
            }
        }

        let gate = Gate::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _last = Last(&gate);
            panic!("outside");
        }));
        assert!(panicked.is_err() && gate.is_poisoned());
    }
}

/// Interleavings of threads that take a gate: every one of the last model, those of up to three preemptions of
/// the others:
///
/// ```text
/// RUSTFLAGS="--cfg loom" cargo test -p gapless-sync --lib --release --target-dir target/loom
/// ```
///
/// Each weakening was made, one at a time, and every model failed: the owner's fence left out; the barrier
/// left out; `inside` cleared relaxed, or read relaxed by who revokes; `revoked` not looked at again by the
/// owner when it is inside; no wait for the owner.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::cell::Cell;
    use loom::sync::Arc;
    use loom::thread;

    /// A count that loom sees races on.
    fn add(gate: &Gate<Cell<u32>>) {
        let pass = gate.try_enter().unwrap_or_else(|| gate.enter());
        pass.set(pass.get() + 1);
        pass.done();
    }

    /// The same, if that takes no waiting; whether it did not.
    fn count(gate: &Gate<Cell<u32>>) -> bool {
        let pass = gate.try_enter();
        pass.map(|pass| {
            pass.set(pass.get() + 1);
            pass.done();
        })
        .is_some()
    }

    fn model(others: usize, owners: u32, each: u32) {
        let mut explored = loom::model::Builder::new();
        explored.preemption_bound = Some(3);
        explored.check(move || {
            let gate = Arc::new(Gate::new(Cell::new(0)));
            let others: Vec<_> = (0..others)
                .map(|_| {
                    let gate = Arc::clone(&gate);
                    thread::spawn(move || (0..each).for_each(|_| add(&gate)))
                })
                .collect();
            (0..owners).for_each(|_| add(&gate));
            let count = u32::try_from(others.len()).unwrap();
            others.into_iter().for_each(|other| other.join().unwrap());
            let pass = gate.try_enter().expect("nobody has it");
            assert_eq!(pass.get(), owners + count * each);
        });
    }

    #[test]
    fn gate_of_the_owner_and_another() {
        model(1, 2, 2);
    }

    #[test]
    fn gate_of_the_owner_and_two_others() {
        model(2, 1, 1);
    }

    #[test]
    fn gate_is_held_by_one_thread_however_they_try() {
        loom::model(|| {
            let gate = Arc::new(Gate::new(Cell::new(0)));
            let other = {
                let gate = Arc::clone(&gate);
                thread::spawn(move || {
                    gate.enter().done();
                    count(&gate)
                })
            };
            let taken = count(&gate);
            let also = other.join().unwrap();
            let pass = gate.try_enter().expect("nobody has it");
            assert_eq!(pass.get(), u32::from(taken) + u32::from(also));
        });
    }
}
