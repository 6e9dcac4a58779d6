//! A call to a peer, at all its places.
//!
//! The places are called in their order. The next one's turn comes when the one before has failed, when somebody hung
//! up there, or when it has taken longer than a host may be silent. Whoever listens there and says nothing may be the
//! peer, busy, or somebody else: so that call goes on meanwhile. The first place where the peer proves itself wins, and
//! the other calls are dropped. Only when all places have failed the peer is lost.

use crate::attempt::{self, Attempt, Blame, Caller};
use crate::connection::Connection;
use gapless_btl::LinkError;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A call that has failed is looked at so often before its peer is lost, while the peer may be calling.
const LOOKS: u32 = 4;

/// How a call goes.
#[derive(Debug)]
pub(crate) enum CallState {
    Going,
    /// The link stands, over this connection.
    Made(Connection),
    /// No place of the peer is left, for so long as this process has looked.
    Failed(LinkError, Duration),
}

/// A call to one peer.
pub(crate) struct OutgoingCall {
    /// Whose turn has not come, last first.
    places: Vec<SocketAddr>,
    attempts: Vec<Attempt>,
    /// When the last attempt began.
    turn: Option<Instant>,
    /// Since all places have failed: when that was last looked at, and for how long.
    failed: Option<(Instant, Duration)>,
}

impl OutgoingCall {
    /// To these places, in this order.
    pub(crate) fn new(mut places: Vec<SocketAddr>) -> OutgoingCall {
        places.reverse();
        OutgoingCall { places, attempts: Vec::new(), turn: None, failed: None }
    }

    /// Goes on as far as it can.
    pub(crate) fn go_on(&mut self, caller: &Caller<'_>) -> CallState {
        let mut all_over = true;
        // Whether the last place has had its turn.
        let mut next = true;
        for attempt in &mut self.attempts {
            let state = attempt.go_on(caller);
            next = !matches!(state, attempt::AttemptState::Going);
            all_over &= matches!(state, attempt::AttemptState::Over);
            if let attempt::AttemptState::Made(connection) = state {
                return CallState::Made(connection);
            }
        }
        next |= self.turn.is_some_and(|since| caller.now.duration_since(since) >= caller.patience);
        while next && let Some(place) = self.places.pop() {
            let mut attempt = Attempt::new(place);
            self.turn = Some(caller.now);
            let state = attempt.go_on(caller);
            self.attempts.push(attempt);
            next = !matches!(state, attempt::AttemptState::Going);
            all_over &= matches!(state, attempt::AttemptState::Over);
            if let attempt::AttemptState::Made(connection) = state {
                return CallState::Made(connection);
            }
        }
        if !all_over || !self.places.is_empty() {
            return CallState::Going;
        }
        let (looked, waited) = self.failed.unwrap_or((caller.now, Duration::ZERO));
        // If this process did not poll for long, whoever has called meanwhile was not heard.
        let step = caller.now.duration_since(looked).min(caller.patience / LOOKS);
        self.failed = Some((caller.now, waited + step));
        CallState::Failed(self.verdict(&caller.peer.places), waited + step)
    }

    /// Whether no place is left.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Whether our proof is with somebody who may welcome us.
    pub(crate) fn is_proving(&self) -> bool {
        self.attempts.iter().any(Attempt::is_proving)
    }

    /// Why a peer with these places is lost.
    fn verdict(&self, places: &[SocketAddr]) -> LinkError {
        let failures: Vec<_> = self.attempts.iter().filter_map(Attempt::failure).collect();
        let reasons: Vec<&str> = failures.iter().map(|(why, _)| *why).collect();
        let reason = reasons.join("; ");
        let all = |blame| failures.iter().all(|(_, it)| *it == blame);
        if failures.is_empty() {
            let reason = format!("this process itself listens at all of its addresses: {places:?}");
            return LinkError::Unreachable { reason };
        }
        if failures.iter().any(|(_, blame)| *blame == Blame::Corrupt) {
            return LinkError::Corrupt { what: reason };
        }
        if all(Blame::Gone) {
            return LinkError::PeerGone { reason };
        }
        if all(Blame::Ours) {
            return LinkError::System { operation: "connect", reason };
        }
        LinkError::Unreachable { reason }
    }
}
