//! Which protocol was chosen lately for offers like one, between memory of devices. Gathering what the choice depends on
//! takes longer than the rest of a short message at its receiver.

use crate::choose::Lately;
use crate::cost::Situation;
use crate::protocol::{Protocol, Protocols};
use crate::rndv::PeerFacts;
use crate::rndv::incoming::Incoming;
use crate::wire::StagedOffer;
use gapless_engine::Typed;

/// What was chosen for a peer's offers.
pub(crate) type Decided = Lately<OfferFacts, (Protocol, Situation)>;

/// What the choice depends on, beside the receiver's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OfferFacts {
    /// Bytes that are received.
    room: u64,
    /// As in the offer, from here on.
    count: u64,
    blocks: u64,
    span: u64,
    layout_id: u64,
    staged: StagedOffer,
    /// Protocols that are impossible with the peer.
    closed: Protocols,
}

impl OfferFacts {
    /// Of an offer that is answered as others like it: of memory that can be mapped and that no adapter reads, by a peer
    /// to whom this end grants memory of devices. `None`: the choice depends on more.
    pub(crate) fn of(incoming: &Incoming, buffer: &Typed, peer: &PeerFacts) -> Option<OfferFacts> {
        let rts = &incoming.rts;
        let between_devices = !rts.host && !buffer.space().cpu_accessible();
        let adapters = rts.rdma.is_some() || rts.staged.readable;
        let known = incoming.gapless() || incoming.layout.is_some();
        let fresh = incoming.protocols == Protocols::ALL.without(Protocol::Eager)
            && peer.granting.grants_devices();
        let plain = between_devices && rts.mapped.is_some() && !adapters && known && fresh;
        plain.then_some(OfferFacts {
            room: incoming.room,
            count: rts.count,
            blocks: rts.blocks,
            span: rts.span,
            layout_id: rts.layout_id,
            staged: rts.staged,
            closed: peer.closed_protocols(),
        })
    }
}

impl PeerFacts {
    fn closed_protocols(&self) -> Protocols {
        let closed = Protocol::ALL.into_iter().filter(|protocol| self.closed[protocol.index()]);
        closed.fold(Protocols::default(), Protocols::with)
    }

    /// Tuning or wishes have changed.
    pub(crate) fn forget_choices(&mut self) {
        self.offering.pays.forget();
        self.decided.forget();
    }
}
