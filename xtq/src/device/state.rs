//! Whether a worker lives, and who starts it again: three words, and the order in which they are touched.
//!
//! | word | written by | says |
//! |---|---|---|
//! | the control block's state | target (STARTING), worker | GONE, STARTING, RUNNING, LEAVING |
//! | the ring's state | likewise | the same, for the ring's initiator |
//! | the ring's `wanted` | initiator, target | whether the initiator has put something that no worker may see |
//!
//! An initiator writes a packet, fences, and reads the ring's state. A worker that leaves writes LEAVING, fences, and
//! looks at all rings once more. Both fences are sequentially consistent, so one of them sees the other: either the
//! worker finds the packet, and goes on; or the initiator finds a worker that leaves or is gone, and wants one. The
//! target starts it, once however many want it: only who turns GONE into STARTING does. loom explores this (below).

use primitive::{AtomicU64, Ordering, fence};

#[cfg(not(loom))]
mod primitive {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
}
#[cfg(loom)]
mod primitive {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

pub(crate) const GONE: u64 = 0;
pub(crate) const STARTING: u64 = 1;
pub(crate) const RUNNING: u64 = 2;
pub(crate) const LEAVING: u64 = 3;

/// The initiator has written packets. Whether a worker sees them; if not, one is wanted now.
pub(crate) fn announce(state: &AtomicU64, wanted: &AtomicU64) -> bool {
    fence(Ordering::SeqCst);
    insist(state, wanted)
}

/// Whether a worker is there, or is being started.
pub(crate) fn is_here(state: &AtomicU64) -> bool {
    matches!(state.load(Ordering::Acquire), STARTING | RUNNING)
}

/// The same as [`announce`], for packets that were announced before.
pub(crate) fn insist(state: &AtomicU64, wanted: &AtomicU64) -> bool {
    let here = is_here(state);
    if !here {
        wanted.store(1, Ordering::Release);
    }
    here
}

/// The target makes itself the one who starts the worker. Once nothing is wanted any more, it does.
pub(crate) fn claim(state: &AtomicU64) -> bool {
    state.compare_exchange(GONE, STARTING, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// The worker leaves, unless `look` finds something. `others` are the rings' states. Whether it has left.
///
/// The kernel does the same (`kernels/cuda/worker.cu`).
#[cfg_attr(not(any(test, loom, feature = "testkit")), allow(dead_code, reason = "a GPU does it"))]
pub(crate) fn leave<'s>(
    state: &AtomicU64,
    others: impl Iterator<Item = &'s AtomicU64> + Clone,
    look: impl FnOnce() -> bool,
) -> bool {
    let say = |value, order| others.clone().for_each(|other| other.store(value, order));
    say(LEAVING, Ordering::Relaxed);
    state.store(LEAVING, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    if look() {
        say(RUNNING, Ordering::Relaxed);
        state.store(RUNNING, Ordering::Relaxed);
        return false;
    }
    say(GONE, Ordering::Release);
    state.store(GONE, Ordering::Release);
    true
}

/// ```sh
/// RUSTFLAGS="--cfg loom" cargo test -p gapless-xtq --lib --release --target-dir target/loom
/// ```
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    #[derive(Default)]
    struct Words {
        state: AtomicU64,
        ring: AtomicU64,
        wanted: AtomicU64,
        packet: AtomicU64,
        /// Rings in the list, where one is added.
        rings: AtomicU64,
        started: AtomicU64,
    }

    /// The target's turn: starts a worker if one is wanted. Whether it did.
    fn turn(words: &Words) -> bool {
        if words.state.load(Ordering::Acquire) != GONE || words.wanted.load(Ordering::Acquire) == 0
        {
            return false;
        }
        let mine = claim(&words.state);
        if mine {
            words.wanted.store(0, Ordering::Relaxed);
            words.ring.store(STARTING, Ordering::Release);
            words.started.fetch_add(1, Ordering::Relaxed);
        }
        mine
    }

    fn running() -> Arc<Words> {
        let words = Arc::new(Words::default());
        words.state.store(RUNNING, Ordering::Relaxed);
        words.ring.store(RUNNING, Ordering::Relaxed);
        words
    }

    #[test]
    fn no_packet_is_left_behind_by_a_worker_that_leaves() {
        loom::model(|| {
            let words = running();
            let theirs = Arc::clone(&words);
            let worker = thread::spawn(move || {
                let look = || theirs.packet.load(Ordering::Relaxed) != 0;
                leave(&theirs.state, std::iter::once(&theirs.ring), look)
            });
            words.packet.store(1, Ordering::Release);
            let seen = announce(&words.ring, &words.wanted);
            let left = worker.join().unwrap();
            // It was found; or somebody wants a worker, and the target starts one.
            assert!(!left || !seen && turn(&words));
            assert!(!turn(&words), "it is started once");
        });
    }

    /// A ring is added while the worker leaves: it may find it before, and says so, or not.
    #[test]
    fn no_packet_is_left_behind_in_a_ring_that_is_added() {
        loom::model(|| {
            let words = Arc::new(Words::default());
            words.state.store(RUNNING, Ordering::Relaxed);
            let theirs = Arc::clone(&words);
            let worker = thread::spawn(move || {
                let has = theirs.rings.load(Ordering::Acquire) != 0;
                if has {
                    theirs.ring.store(RUNNING, Ordering::Release);
                }
                let look = || has && theirs.packet.load(Ordering::Relaxed) != 0;
                leave(&theirs.state, has.then_some(&theirs.ring).into_iter(), look)
            });
            words.rings.store(1, Ordering::Release);
            words.packet.store(1, Ordering::Release);
            let seen = announce(&words.ring, &words.wanted);
            let left = worker.join().unwrap();
            // It was found; or somebody wants a worker, and the next life has the ring.
            assert!(!left || !seen && turn(&words));
        });
    }

    #[test]
    fn two_who_want_a_worker_start_one() {
        loom::model(|| {
            let words = Arc::new(Words::default());
            let [one, other] = [(); 2].map(|()| {
                let words = Arc::clone(&words);
                thread::spawn(move || {
                    words.packet.fetch_add(1, Ordering::Release);
                    announce(&words.ring, &words.wanted);
                    turn(&words)
                })
            });
            let began = [one, other].map(|thread| u32::from(thread.join().unwrap()));
            let late = u32::from(turn(&words));
            assert_eq!(began.iter().sum::<u32>() + late, 1);
            assert_eq!(words.started.load(Ordering::Relaxed), 1);
        });
    }
}
