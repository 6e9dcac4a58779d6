//! Local: sender and receiver are one process, and one engine moves from layout to layout.
//!
//! ```text
//! RTS to myself ---> | Engine::transfer; FIN: both complete
//! ```

use super::mapped::opened;
use super::{Cx, Opened, ProtocolKind};
use crate::cost::{Excluded, Model, Situation};
use crate::protocol::Protocol;

pub(super) const KIND: ProtocolKind = ProtocolKind {
    exclude: |s, _| (!s.local).then_some(Excluded::OtherProcess),
    cost: |model, _| model.by_ends(Model::local, Model::device_local),
    open_recv,
    ..ProtocolKind::NONE
};

/// Moves the data out of another buffer of this process.
fn open_recv(cx: &mut Cx<'_>, _: Protocol, _: &Situation) -> Opened {
    let (_, room) = cx.receipt();
    let source = cx.at_receiver.as_ref().and_then(|at| at.source);
    let Some(source) = source else {
        return Opened::Refused("its send is not in flight".to_owned());
    };
    let moved = cx.buffer.fetch_local(cx.engines, source.clone(), 0..room);
    opened(cx, Protocol::Local, moved)
}
