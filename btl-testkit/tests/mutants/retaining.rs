//! What a broken transport retains, and what it gives back when its link is cut.

use crate::mutants::broken::Broken;
use crate::mutants::flaws::Flaw;
use gapless_btl::{AmTag, Event, LinkError, PeerId, Slot, Token, Unacknowledged};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What both ends of a pair know at once.
#[derive(Default)]
struct Wire {
    cut: AtomicBool,
    /// How many messages each end was given.
    had: [AtomicUsize; 2],
    /// How many of these it has told, if it tells of them late.
    told: [AtomicUsize; 2],
}

/// The messages of an end to its only peer.
pub(crate) struct Kept {
    wire: Arc<Wire>,
    me: usize,
    pub(crate) wanted: bool,
    sent: VecDeque<Unacknowledged>,
    /// How many before these were given back.
    before: usize,
    /// The loss is told.
    lost: bool,
    /// Polls since a message came.
    idle: u32,
}

/// After so many polls in a row without a message, an end that tells of messages late tells of them.
const LATE: u32 = 1000;

impl Kept {
    pub(crate) fn pair() -> [Kept; 2] {
        let wire = Arc::new(Wire::default());
        [0, 1].map(|me| {
            let (wire, sent) = (Arc::clone(&wire), VecDeque::new());
            Kept { wire, me, wanted: false, sent, before: 0, lost: false, idle: 0 }
        })
    }

    pub(crate) fn cut(&self) {
        self.wire.cut.store(true, Ordering::Relaxed);
    }

    /// How many of the messages here the peer has had, as far as is known.
    fn known(&self, flaw: Flaw) -> usize {
        let late = flaw == Flaw::TellsReceiptLate;
        let counts = if late { &self.wire.told } else { &self.wire.had };
        let had = counts[1 - self.me].load(Ordering::Relaxed).saturating_sub(self.before);
        match flaw {
            Flaw::NeverKnowsReceipt => 0,
            Flaw::ForgetsOne if self.lost => had + 1,
            _ => had,
        }
    }

    /// A poll begins.
    pub(crate) fn polled(&mut self) {
        self.idle += 1;
        if self.idle >= LATE {
            let had = self.wire.had[self.me].load(Ordering::Relaxed);
            self.wire.told[self.me].store(had, Ordering::Relaxed);
        }
    }

    pub(crate) fn outstanding(&self, flaw: Flaw) -> u64 {
        self.sent.iter().skip(self.known(flaw)).map(|it| it.message.len() as u64).sum()
    }
}

impl Broken {
    /// Keeps a message that is sent now; whether nobody will have it.
    pub(crate) fn keep(&mut self, slot: &Slot, tag: AmTag, done: Token) -> bool {
        if !self.kept.wanted {
            return false;
        }
        let message = slot.to_vec().expect("host memory");
        self.kept.sent.push_back(Unacknowledged { tag, message, done });
        self.kept.wire.cut.load(Ordering::Relaxed)
    }

    /// Counts what has come, and notes which tokens have come back.
    pub(crate) fn note(&mut self, event: &Event) {
        match event {
            Event::Arrived { .. } if self.kept.wanted => {
                self.kept.wire.had[self.kept.me].fetch_add(1, Ordering::Relaxed);
                self.kept.idle = 0;
            }
            Event::Sent { token, .. } if self.flaw != Flaw::GivesBackTold => {
                let sent = self.kept.sent.iter_mut().filter(|it| it.done == *token);
                sent.for_each(|it| it.done = Token::NONE);
            }
            _ => {}
        }
    }

    /// Whether the link was cut, of which the loss is told then.
    pub(crate) fn is_cut(&mut self) -> bool {
        let cut = self.kept.wanted && self.kept.wire.cut.load(Ordering::Relaxed);
        if cut && !std::mem::replace(&mut self.kept.lost, true) {
            let (peer, reason) = (PeerId(0), "the link was cut".to_owned());
            let error = LinkError::Unreachable { reason };
            if self.flaw == Flaw::FailsRetained {
                let tokens = self.kept.sent.iter().map(|it| it.done);
                let failed = tokens.filter(|token| *token != Token::NONE);
                let fail = |token| Event::Sent { token, result: Err(error.clone()) };
                self.ready.extend(failed.map(fail));
            }
            self.ready.push_back(Event::Lost { peer, error });
            self.ended.insert(peer);
        }
        cut
    }

    pub(crate) fn give_back(&mut self) -> Vec<Unacknowledged> {
        if !self.kept.lost {
            return Vec::new();
        }
        let known = self.kept.known(self.flaw);
        if self.flaw == Flaw::GivesBackTwice {
            return self.kept.sent.iter().skip(known).cloned().collect();
        }
        self.kept.before += self.kept.sent.len();
        self.kept.sent.drain(..).skip(known).collect()
    }
}
