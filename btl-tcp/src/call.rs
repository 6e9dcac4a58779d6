//! A call to a peer, at all its places.
//!
//! The places are called in their order. The next one's turn comes when the one before has failed, when somebody hung
//! up there, or when it has taken longer than a host may be silent. Whoever listens there and says nothing may be the
//! peer, busy, or somebody else: so that call goes on meanwhile. The first place where the peer proves itself wins, and
//! the other calls are dropped. Only when all places have failed the peer is lost.

use crate::attempt::{self, Attempt, Caller};
use crate::socket::Socket;
use gapless_btl::LinkError;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How a call goes.
#[derive(Debug)]
pub(crate) enum Course {
    Going,
    /// The link stands, over this connection.
    Made(Socket),
    /// No place of the peer is left, for so long.
    Failed(LinkError, Duration),
}

/// A call to one peer.
pub(crate) struct Call {
    /// Whose turn has not come, last first.
    places: Vec<SocketAddr>,
    attempts: Vec<Attempt>,
    /// When the last attempt began.
    turn: Option<Instant>,
    /// When the last place failed.
    failed: Option<Instant>,
}

impl Call {
    /// To these places, in this order.
    pub(crate) fn new(mut places: Vec<SocketAddr>) -> Call {
        places.reverse();
        Call { places, attempts: Vec::new(), turn: None, failed: None }
    }

    /// Goes on as far as it can.
    pub(crate) fn go_on(&mut self, caller: &Caller<'_>) -> Course {
        let mut all_over = true;
        // Whether the last place has had its turn.
        let mut next = true;
        for attempt in &mut self.attempts {
            let course = attempt.go_on(caller);
            next = !matches!(course, attempt::Course::Going);
            all_over &= matches!(course, attempt::Course::Over);
            if let attempt::Course::Made(socket) = course {
                return Course::Made(socket);
            }
        }
        next |= self.turn.is_some_and(|since| caller.now.duration_since(since) >= caller.patience);
        while next && let Some(place) = self.places.pop() {
            let mut attempt = Attempt::new(place);
            self.turn = Some(caller.now);
            let course = attempt.go_on(caller);
            self.attempts.push(attempt);
            next = !matches!(course, attempt::Course::Going);
            all_over &= matches!(course, attempt::Course::Over);
            if let attempt::Course::Made(socket) = course {
                return Course::Made(socket);
            }
        }
        if !all_over || !self.places.is_empty() {
            return Course::Going;
        }
        let since = *self.failed.get_or_insert(caller.now);
        Course::Failed(self.verdict(), caller.now.duration_since(since))
    }

    fn verdict(&self) -> LinkError {
        let failures: Vec<_> = self.attempts.iter().filter_map(Attempt::failure).collect();
        let reasons: Vec<&str> = failures.iter().map(|(why, _)| *why).collect();
        let reason = reasons.join("; ");
        if reason.is_empty() || failures.iter().any(|(_, unclear)| *unclear) {
            return LinkError::Unreachable { reason };
        }
        LinkError::PeerGone { reason }
    }
}
