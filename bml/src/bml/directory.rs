//! Peers whose addresses are looked up when they are first needed: by a message, a call, or a check whether they live.
//!
//! Until then such a peer costs a row, and no transport knows of it. If it calls, the transport says so
//! ([`Btl::callers`](gapless_btl::Btl::callers)), it is looked up, and its call is answered.

use super::Bml;
use crate::{BmlError, PeerState, RailSlot, Rank};
use gapless_btl::{Address, LinkError, ReserveError};

/// Every so many rounds of polls, transports are asked who has called.
pub(super) const CALLERS_EVERY: u32 = 8;

/// Where the addresses of peers are, such as a launcher's store.
pub trait Directory: Send {
    /// What [`Bml::addresses`] gave at `peer`. May wait for the answer, for a bounded time.
    fn look_up(&mut self, peer: Rank) -> FoundPeer;

    /// Whether the memory of `peer` may be mapped, as far as that is known without its address. If not, it is not looked
    /// up for that.
    fn may_be_mapped(&self, peer: Rank) -> bool {
        let _ = peer;
        true
    }
}

/// What a [`Directory`] says of a peer.
#[derive(Debug)]
pub enum FoundPeer {
    /// Where it can be called, by the names of transports.
    Addresses(Vec<(String, Address)>),
    /// The same, and its rails are not to be used together ([`Bml::introduce_apart`]).
    Apart(Vec<(String, Address)>),
    /// It cannot be asked now. It is asked again with the next poll.
    Later,
    /// There are no addresses: the peer is lost. Nothing is said of its process, which may live, unless the error is that
    /// it has [departed](LinkError::Departed).
    Nothing(LinkError),
}

impl Bml {
    /// Marks all peers that are neither connected nor [introduced](Bml::introduce) as `Up`; they are introduced when
    /// they are needed, with what the directory says. Gives whether that was done: it is not if one of the transports
    /// does not tell who calls. Call it once all transports were [added](Bml::add).
    pub fn set_directory(&mut self, directory: Box<dyn Directory>) -> bool {
        let mut called = Vec::new();
        for rail in self.rails.iter_mut().filter(|rail| !rail.is_own()) {
            let Some(callers) = rail.btl.callers() else { return false };
            called.extend(callers);
        }
        self.endpoints.iter_mut().for_each(crate::endpoint::Endpoint::list);
        self.directory = Some(directory);
        for number in called {
            if self.is_listed(Rank(number)) {
                self.look_up(Rank(number));
            }
        }
        true
    }

    /// Has a peer introduced that is in the [directory](Bml::set_directory), if that was not done. Gives whether it is
    /// by now: if not, it cannot be looked up at present, and polls go on trying; or it is lost or unknown.
    #[inline]
    pub fn look_up(&mut self, peer: Rank) -> bool {
        if self.is_listed(peer) {
            self.look_up_now(peer)
        } else {
            matches!(self.state(peer), PeerState::Up)
        }
    }

    /// Whether a peer is only in the directory.
    #[inline]
    pub(super) fn is_listed(&self, peer: Rank) -> bool {
        self.endpoints.get(peer.0 as usize).is_some_and(crate::endpoint::Endpoint::is_listed)
    }

    #[cold]
    #[inline(never)]
    fn look_up_now(&mut self, peer: Rank) -> bool {
        // It is taken out, because what it finds may lead to more look-ups.
        let Some(mut directory) = self.directory.take() else { return false };
        let found = directory.look_up(peer);
        self.directory = Some(directory);
        let error = match found {
            FoundPeer::Nothing(LinkError::Departed) => {
                self.lose_departed(peer);
                return false;
            }
            FoundPeer::Addresses(_) | FoundPeer::Apart(_) => {
                match self.introduce_found(peer, &found) {
                    Ok(()) => return true,
                    Err(error) => LinkError::Unreachable { reason: error.to_string() },
                }
            }
            FoundPeer::Later => {
                self.sought.insert(peer);
                self.owing = true;
                return false;
            }
            FoundPeer::Nothing(error) => error,
        };
        // Nobody else is told, and no other neighbour is looked for: where one address is not to be had, the next one may
        // not be either, and each attempt may take its time.
        tracing::info!(%peer, %error, "the peer cannot be looked up");
        self.lose_endpoint(peer, &error);
        match self.gossip.has_departed(peer) {
            // A peer has said so: that is a fact now.
            true => self.note_loss(peer, &error),
            false => self.gossip.settle(peer),
        }
        self.given_up.push((peer, error));
        false
    }

    /// Has a peer introduced whose addresses were found, in the way that was found; nothing if there are none.
    ///
    /// # Errors
    /// As [`introduce`](Bml::introduce).
    pub fn introduce_found(&mut self, peer: Rank, found: &FoundPeer) -> Result<(), BmlError> {
        match found {
            FoundPeer::Addresses(addresses) => self.introduce(peer, addresses),
            FoundPeer::Apart(addresses) => self.introduce_apart(peer, addresses),
            FoundPeer::Later | FoundPeer::Nothing(_) => Ok(()),
        }
    }

    /// Whether a peer is only in the directory, which knows that its memory cannot be mapped.
    pub(super) fn is_far(&self, peer: Rank) -> bool {
        let directory = self.directory.as_ref().filter(|_| self.is_listed(peer));
        directory.is_some_and(|directory| !directory.may_be_mapped(peer))
    }

    /// [`reserve`](Bml::reserve) for a peer that is only in the directory.
    pub(super) fn reserve_in_directory(
        &mut self,
        to: Rank,
        len: usize,
    ) -> Result<RailSlot, ReserveError> {
        match self.look_up(to) {
            true => self.reserve(to, len),
            false if self.is_listed(to) => Err(ReserveError::Full),
            false => Err(self.unreachable(to)),
        }
    }

    /// Looks up those once more that could not be looked up before: all of them need a link.
    pub(super) fn seek_again(&mut self) {
        for peer in std::mem::take(&mut self.sought) {
            self.reach(peer);
        }
    }

    /// Has those introduced that have called, and are only in the directory. Gives whether there were any.
    #[inline]
    pub(super) fn hear_callers(&mut self) -> bool {
        self.directory.is_some() && self.look_up_callers()
    }

    #[inline(never)]
    fn look_up_callers(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.rails.len() {
            for number in self.rails[at].btl.callers().unwrap_or_default() {
                if self.is_listed(Rank(number)) {
                    self.rails[at].mark_active();
                    any |= self.look_up(Rank(number));
                }
            }
        }
        any
    }
}
