//! Mapped: the receiver maps the sender's memory and moves from layout to layout with one copy.
//!
//! ```text
//! sender                          receiver
//!   | RTS(mapped key, layout) ---> | map, Engine::transfer
//!   | <-------------------- FIN -- | complete
//!   | complete                     |
//! ```
//!
//! The key stands for the bytes that the sender's buffer touches. Its layout is checked to touch just these before
//! anything is read ([`Remote`]). Of pages whose indices lie in memory of the sender's device, the layout has a key for
//! the indices. Then the check is that the page begins where the bytes do, and that one page fits into them; the kernel
//! that reads the indices checks each against the bytes. If one is bad, at either end, another protocol is chosen, by
//! which that end finds it itself: its error is that end's.

use super::{Cx, Heard, Opened, ProtocolKind, RndvEnd, RndvStep, unexpected};
use crate::buffer::{HeldMemory, Mover, Remote, RemoteShape, Transfer};
use crate::cost::{Excluded, Model, Situation};
use crate::protocol::Protocol;
use gapless_engine::EngineError;
use gapless_mem::Space;

pub(super) const KIND: ProtocolKind = ProtocolKind {
    wants_layout: true,
    exclude,
    cost: |model, _| model.by_ends(Model::mapped, Model::direct),
    // Memory of the host can be mapped although that of devices cannot.
    stays_closed: |s| s.devices.is_some(),
    open_recv,
    ..ProtocolKind::NONE
};

fn exclude(s: &Situation, _: &crate::tuning::Tuning) -> Option<Excluded> {
    if !s.mapped {
        return Some(Excluded::NotMappable);
    }
    if let Some(ends) = &s.devices {
        // The sender's own device would have to do it, and a copy down is as quick.
        let far = ends.sender && !ends.receiver && !ends.locked;
        // Copies move what has no gaps in memory of the host.
        let gaps = !ends.sender && ends.copies_only && s.sender_blocks > 1;
        if far || gaps || maps_nothing_between(s) {
            return Some(Excluded::DeviceMemory);
        }
    }
    (s.layout_fetch_bytes > s.layout_fetch_max).then_some(Excluded::LayoutTooLong)
}

/// Whether both ends are in memory of devices that map none of the other's.
pub(super) fn maps_nothing_between(s: &Situation) -> bool {
    let both = s.devices.is_some_and(|ends| ends.sender && ends.receiver);
    both && s.staged.is_some_and(|staging| !staging.shared)
}

/// Maps the memory of an offer. An error says whether other messages would fail, too.
fn start(cx: &mut Cx<'_>) -> Result<Remote, (String, bool)> {
    let once = |why: String| (why, false);
    let rts = cx.rts;
    let key = rts.mapped.as_ref().ok_or_else(|| once("no key".to_owned()))?;
    let layout = match rts.blocks == 1 {
        true => None,
        false => {
            let known = cx.at_receiver.as_ref().and_then(|at| at.layout);
            Some(known.ok_or_else(|| once("an unknown layout".to_owned()))?)
        }
    };
    let mapped = cx.link.map_buffer(key, layout, cx.moving_engine().1);
    let mapped = mapped.map_err(|(error, lasts)| (error.to_string(), lasts))?;
    let shape = RemoteShape { low: rts.low, span: rts.span, count: rts.count, layout };
    Remote::new(shape, mapped).map_err(once)
}

/// What moves `bytes` bytes between this end's buffer and the other's. If neither has gaps, a copy engine does it where
/// it is quicker than a kernel. For host memory that its device does not know it would need a detour.
pub(super) fn mover<'a>(cx: &mut Cx<'a>, by: Protocol, remote: &Remote, bytes: u64) -> Mover<'a> {
    let (engine, space) = cx.moving_engine();
    let own = cx.buffer.typed();
    let gapless = [own, remote.typed()].iter().all(|side| side.as_contiguous().is_some());
    let known = remote.typed().space() != Space::Host;
    let pays = gapless && known && bytes >= cx.config.tuning.copy_bytes_min;
    let copier = cx.link.device(space).filter(|_| pays);
    cx.counters.counts_of(by).copies += u64::from(copier.is_some());
    Mover { engine: &*cx.engines[engine], copier }
}

/// Moves the data out of the sender's memory.
fn open_recv(cx: &mut Cx<'_>, _: Protocol, _: &Situation) -> Opened {
    let (_, room) = cx.receipt();
    let remote = match start(cx) {
        Ok(remote) => remote,
        Err((why, lasts)) => {
            if lasts && !cx.rts.host {
                cx.close(Protocol::Mapped, &why);
            }
            return Opened::Refused(why);
        }
    };
    let mover = mover(cx, Protocol::Mapped, &remote, room);
    let moved = cx.buffer.copy_from_remote(&mover, remote, room);
    opened(cx, Protocol::Mapped, moved)
}

/// The start of a protocol whose receiver has an engine move the whole message.
pub(super) fn opened<M: Into<HeldMemory>>(
    cx: &mut Cx<'_>,
    by: Protocol,
    moved: Result<Transfer<M>, EngineError>,
) -> Opened {
    match moved.map(Transfer::now) {
        Ok(Ok(_)) => {
            cx.received(by);
            Opened::Done(by)
        }
        Ok(Err(moving)) => {
            cx.follow(0, moving);
            Opened::going(Moving(by))
        }
        Err(error) => Opened::Refused(error.to_string()),
    }
}

/// An engine moves the whole message.
#[derive(Debug)]
struct Moving(Protocol);

impl RndvEnd for Moving {
    fn heard(&mut self, _: &mut Cx<'_>, heard: Heard<'_>) -> RndvStep {
        unexpected(&heard.message)
    }

    fn landed(
        &mut self,
        cx: &mut Cx<'_>,
        _: u64,
        result: Result<HeldMemory, EngineError>,
    ) -> RndvStep {
        match result {
            Ok(_) => {
                cx.received(self.0);
                RndvStep::Done(self.0)
            }
            Err(error) => RndvStep::Refused(error.to_string()),
        }
    }

    /// All the data is at hand.
    fn lost(&mut self, _: &mut Cx<'_>) -> RndvStep {
        RndvStep::Going
    }
}
