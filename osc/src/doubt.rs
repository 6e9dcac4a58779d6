//! A lock that somebody is said to have who has not got it. Every rank that maps the lock's words can write them: a
//! hostile or dying one may write that another has the lock, and that one lives, so whoever waits would wait for
//! ever.
//!
//! So the words are believed only as far as the named rank confirms them. Whoever waits and finds the same rank there
//! for a while asks its process; for one that waits by messages the lock's owner does. *No* proves the words false if
//! they have not changed meanwhile: a rank says no only outside of all calls that take or give back that lock, and with
//! a new lock word 0 has a new number. A rank that shares the lock is asked only under the claim of whoever asks: until
//! that has gone, nobody begins to share it.
//! Then the words are put right. Who wrote them cannot be seen; a rank that is lost is believed to have, and may have
//! left the window half changed.

use crate::header::{Header, Named};
use crate::questions::Questions;
use crate::wire::{Head, WindowMessage};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// How long a rank has the lock before it is asked whether it has, and how long after its answer again.
#[cfg(not(test))]
fn believed() -> std::time::Duration {
    std::time::Duration::from_millis(100)
}

/// After so long without an answer it is asked again.
#[cfg(not(test))]
fn patience() -> std::time::Duration {
    std::time::Duration::from_secs(3)
}

#[cfg(test)]
pub(crate) use tests::{believed, patience};

/// By target: whether this rank has its lock, or is in a call that takes it or gives it back.
pub(crate) type Mine = Arc<[AtomicBool]>;

/// Of none of so many.
pub(crate) fn nobodys(ranks: usize) -> Mine {
    (0..ranks).map(|_| AtomicBool::new(false)).collect()
}

/// What one who waits thinks of the rank that is said to have the lock.
#[derive(Debug)]
pub(crate) struct Doubt {
    /// Whose lock it is.
    target: u32,
    /// The last one named, and since when it is believed.
    named: Option<(Named, Instant)>,
    /// The question to it, and when it was asked.
    asked: Option<(u64, Instant)>,
}

/// What has come of a look.
pub(crate) enum Suspect {
    /// This rank is to be asked.
    Rank(u32),
    /// The words were false, and this process is lost, which may have written them.
    Lost(u32),
}

impl Doubt {
    pub(crate) fn new(target: u32) -> Doubt {
        Doubt { target, named: None, asked: None }
    }

    /// Looks at who is named, for the rank that `waits`. `lost`: a process that is.
    pub(crate) fn look(
        &mut self,
        questions: &mut Questions,
        (header, waits): (&Header, u32),
        lost: impl Fn() -> Option<u32>,
    ) -> Option<Suspect> {
        let named = header.named(waits);
        let Some(now) = named.filter(|now| self.named.is_some_and(|(old, _)| old == *now)) else {
            self.forget(questions);
            self.named = named.map(|named| (named, Instant::now()));
            return None;
        };
        if let Some((token, since)) = self.asked {
            let Some(answer) = questions.answered(token) else {
                // It may have been dropped: see `target.rs`.
                if since.elapsed() >= patience() {
                    self.forget(questions);
                }
                return None;
            };
            self.asked = None;
            self.named = Some((now, Instant::now()));
            let denied = answer.is_ok_and(|it| it.fault.is_none() && it.into_kept() == [NO]);
            // As if it had died with the lock.
            if denied && let Some(process) = lost() {
                return Some(Suspect::Lost(process));
            }
            if denied && header.disprove(now) {
                tracing::warn!(
                    rank = now.rank,
                    target_rank = self.target,
                    "the lock of a window named a rank that has not got it: somebody has written over its words"
                );
            }
            return None;
        }
        let is_believed = self.named.is_none_or(|(_, since)| since.elapsed() < believed());
        (!is_believed).then_some(Suspect::Rank(now.rank))
    }

    /// Whether a rank of window `window` has the lock, as rank `asks` asks it.
    pub(crate) fn question(&self, token: u64, window: u32, asks: u32) -> Head {
        Head {
            token,
            origin: u64::from(self.target),
            ..Head::new(WindowMessage::Holds, window, asks)
        }
    }

    /// The rank that is named was asked.
    pub(crate) fn was_asked(&mut self, token: u64) {
        self.asked = Some((token, Instant::now()));
    }

    /// Nobody wants the answer any more.
    pub(crate) fn forget(&mut self, questions: &mut Questions) {
        if let Some((token, _)) = self.asked.take() {
            questions.forget(token);
        }
    }
}

/// The answer of a rank that has not got the lock.
const NO: u8 = 0;

/// The answer: whether this rank has the lock of that one, or may be about to.
pub(crate) fn answer(mine: &Mine, target: u64) -> u8 {
    let of = usize::try_from(target).ok().and_then(|target| mine.get(target));
    u8::from(of.is_some_and(|mine| mine.load(Ordering::SeqCst)))
}

#[cfg(test)]
mod tests {
    use super::Doubt;
    use crate::error::WindowError;
    use crate::header::Lock;
    use crate::questions::Questions;
    use crate::tests::net::Net;
    use gapless_btl::loopback::Config;
    use std::cell::Cell;
    use std::time::Duration;

    thread_local! {
        /// No test takes so long that asks nobody.
        static BELIEVED: Cell<Duration> = const { Cell::new(Duration::from_secs(3600)) };
        static PATIENCE: Cell<Duration> = const { Cell::new(Duration::from_secs(3600)) };
    }

    pub(crate) fn believed() -> Duration {
        BELIEVED.get()
    }

    pub(crate) fn patience() -> Duration {
        PATIENCE.get()
    }

    #[test]
    fn a_question_without_an_answer_is_asked_again() {
        BELIEVED.set(Duration::ZERO);
        let net = Net::new(3, &Config::default());
        let header = &net.exposures[0].header;
        assert!(header.try_lock(1, Lock::Exclusive, false, never));
        // Rank 1 makes no progress, and says nothing.
        let mut doubt = Doubt::new(0);
        let mut look = || {
            let members = |rank| Some((rank, 0));
            let (core, bml) = (&mut net.oscs[2].core(), &mut net.bml(2));
            assert_eq!(core.look_at(bml, &mut doubt, (header, 2, 2), members, || None), None);
            doubt.asked.map(|(token, _)| token)
        };
        assert_eq!(look(), None, "it is only named");
        let first = look();
        assert!(first.is_some() && look() == first, "there is time");
        PATIENCE.set(Duration::ZERO);
        assert_eq!(look(), None);
        assert!(look().is_some_and(|again| Some(again) != first));
    }

    fn never(_: u32) -> bool {
        false
    }

    #[test]
    fn a_lock_is_its_holders_only_if_that_says_so() {
        BELIEVED.set(Duration::ZERO);
        for (named, wanted) in [
            (Lock::Exclusive, Lock::Exclusive),
            (Lock::Exclusive, Lock::Shared),
            (Lock::Shared, Lock::Exclusive),
        ] {
            // Each reaches rank 0 by messages, or maps it.
            let by: [&[u32]; 2] = [&[], &[0]];
            for (maps, also) in by.iter().flat_map(|maps| by.map(|also| (maps, also))) {
                let net = Net::new(4, &Config::default());
                let header = &net.exposures[0].header;
                let _target = net.window(0, &[]);
                let (first, second) = (net.window(1, maps), net.window(2, also));
                let (theirs, ours) = (net.driver(1, 200, &|| ()), net.driver(2, 200, &|| ()));
                // It says so.
                first.lock(&theirs, 0, named).unwrap();
                let waited = second.lock(&ours, 0, wanted);
                assert!(matches!(waited, Err(WindowError::Transport { .. })), "{waited:?}");
                if also.is_empty() {
                    // The target does not know that nobody waits any more.
                    net.oscs[0]
                        .core()
                        .windows
                        .get_mut(&0)
                        .unwrap()
                        .forget(2, &mut Questions::default());
                }
                first.unlock(&theirs, 0).unwrap();
                second.lock(&ours, 0, wanted).unwrap();
                second.unlock(&ours, 0).unwrap();
                // Somebody else does; of the owner of the lock, too.
                for rank in [1, 0] {
                    assert!(header.try_lock(rank, named, false, never));
                    second.lock(&ours, 0, wanted).unwrap();
                    second.unlock(&ours, 0).unwrap();
                }
                // A process is lost that may have done that.
                assert!(header.try_lock(1, named, false, never));
                net.oscs[2].departed().set_lost(3, true);
                net.oscs[0].departed().set_lost(3, true);
                let lost = second.lock(&ours, 0, wanted);
                assert!(matches!(lost, Err(WindowError::Lost { process: 3, .. })), "{lost:?}");
            }
        }
    }
}
