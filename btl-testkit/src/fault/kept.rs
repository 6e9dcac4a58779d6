//! What the wrapped transport retains, so that it can be given back if the link is cut here and lives there.

use super::Fault;
use gapless_btl::{AmTag, Btl, LinkError, PeerId, Slot, Token, Unacknowledged};
use std::collections::VecDeque;

/// The messages of a link that the other end is not known to have had.
#[derive(Clone, Debug, Default)]
pub(super) struct KeptFragments {
    /// Tokens are stand-ins while the link lives, and the caller's afterwards.
    messages: VecDeque<Unacknowledged>,
    bytes: u64,
}

impl KeptFragments {
    pub(super) fn push(&mut self, tag: AmTag, slot: &Slot, done: Token) {
        let message = slot.to_vec().expect("slots are memory that the CPU may touch");
        self.add(Unacknowledged { tag, message, done });
    }

    fn add(&mut self, message: Unacknowledged) {
        self.bytes += message.message.len() as u64;
        self.messages.push_back(message);
    }

    /// So many bytes are still retained.
    fn look(&mut self, outstanding: u64) {
        while self.bytes > outstanding || outstanding == 0 {
            let Some(first) = self.messages.pop_front() else { return };
            self.bytes -= first.message.len() as u64;
        }
    }

    pub(super) fn take(&mut self) -> Vec<Unacknowledged> {
        self.bytes = 0;
        self.messages.drain(..).collect()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl<B: Btl> Fault<B> {
    fn kept(&mut self, peer: PeerId) -> Option<&mut KeptFragments> {
        self.link(peer)?.kept.as_mut()
    }

    /// A message is about to be given to the wrapped transport.
    pub(super) fn keep(&mut self, peer: PeerId, tag: AmTag, slot: &Slot, stand_in: Token) {
        let outstanding = self.inner.btl.outstanding(peer);
        if let Some(kept) = self.kept(peer) {
            kept.look(outstanding);
            kept.push(tag, slot, stand_in);
        }
    }

    /// The link is cut here: what is retained will be given back, so it does not end.
    pub(super) fn keep_at_cut(&mut self, peer: PeerId) {
        let outstanding = self.inner.btl.outstanding(peer);
        let Some(kept) = self.kept(peer) else { return };
        kept.look(outstanding);
        let left = kept.take();
        self.keep_again(peer, left);
    }

    /// The wrapped transport has lost the link, unless that was cut here before.
    pub(super) fn keep_at_loss(&mut self, peer: PeerId, error: &LinkError) {
        if self.cut_of(peer).is_some() || self.kept(peer).is_none() {
            return;
        }
        let left = self.inner.btl.unacknowledged(peer);
        if let Some(kept) = self.kept(peer) {
            kept.take();
        }
        self.keep_again(peer, left);
        if let Some(link) = self.link(peer) {
            link.cut = Some(error.clone());
        }
    }

    /// Keeps messages with the caller's tokens, of those that have not come back.
    fn keep_again(&mut self, peer: PeerId, left: Vec<Unacknowledged>) {
        for message in left {
            let stand_in = Some(message.done).filter(|it| *it != Token::NONE);
            let ended = stand_in.and_then(|it| self.ended(it, Ok(())));
            let done = ended.map_or(Token::NONE, |(operation, _)| operation.token);
            if let Some(kept) = self.kept(peer) {
                kept.add(Unacknowledged { done, ..message });
            }
        }
    }
}
