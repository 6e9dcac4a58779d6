//! Whose turn the GPUs are: tests that keep a kernel there, as a worker is, have them alone; all others share them.
//!
//! Allocating, freeing and registering memory wait for all kernels of the process, and hold up what other threads want of
//! the driver meanwhile. A test that starts a second worker behind such a call waits until the first one's longest life is
//! over, which is a minute in some. So a test has its turn before it gets a device, until its thread ends: nobody can
//! forget it.

use std::cell::RefCell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Far longer than all tests together.
const PATIENCE: Duration = Duration::from_secs(3600);

#[derive(Default)]
struct Users {
    shared: usize,
    alone: bool,
}

struct Gate {
    users: Mutex<Users>,
    changed: Condvar,
}

static GATE: Gate = Gate::new();

impl Gate {
    const fn new() -> Gate {
        Gate { users: Mutex::new(Users { shared: 0, alone: false }), changed: Condvar::new() }
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&'static self, alone: bool) -> Turn {
        let may_not = |users: &mut Users| users.alone || alone && users.shared > 0;
        let entered = self.changed.wait_timeout_while(self.users(), PATIENCE, may_not);
        let (mut users, timeout) = entered.unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "the GPUs never became free");
        match alone {
            true => users.alone = true,
            false => users.shared += 1,
        }
        Turn { gate: self, alone }
    }
}

struct Turn {
    gate: &'static Gate,
    alone: bool,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut users = self.gate.users();
        match self.alone {
            true => users.alone = false,
            false => users.shared -= 1,
        }
        drop(users);
        self.gate.changed.notify_all();
    }
}

thread_local! {
    /// This test's turn, until its thread ends.
    static TURN: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

/// The calling test may use GPUs beside others.
pub(crate) fn share() {
    TURN.with_borrow_mut(|turn| _ = turn.get_or_insert_with(|| GATE.enter(false)));
}

/// The calling test has the GPUs alone.
pub(crate) fn be_alone() {
    TURN.with_borrow_mut(|turn| {
        if turn.as_ref().is_none_or(|turn| !turn.alone) {
            // Where all tests run on one thread, an earlier one may have shared them.
            *turn = None;
            *turn = Some(GATE.enter(true));
        }
    });
}

#[test]
fn who_is_alone_is_with_nobody() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static OWN: Gate = Gate::new();
    const ALONE: u32 = 1000;
    let inside = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let inside = &inside;
            scope.spawn(move || {
                for round in 0..200 {
                    let alone = (thread + round) % 3 == 0;
                    let turn = OWN.enter(alone);
                    let weight = if alone { ALONE } else { 1 };
                    let found = inside.fetch_add(weight, Ordering::SeqCst);
                    assert!(if alone { found == 0 } else { found < 4 }, "{found}");
                    std::thread::yield_now();
                    inside.fetch_sub(weight, Ordering::SeqCst);
                    drop(turn);
                }
            });
        }
    });
}
