//! Layouts on their way: `rndv/layouts.rs` says which and why.

use crate::drive::core::Core;
use crate::drive::flush::Attempt;
use crate::links::{AM_TAG, Outgoing, fragment_max};
use crate::rndv::incoming::Stage;
use crate::rndv::layouts::Fetch;
use crate::status::RequestId;
use crate::wire::{self, LAYOUT_BYTES};
use gapless_bml::{Bml, Fragment, Token};
use std::sync::Arc;

impl Core {
    /// Asks the sender for its layout.
    pub(crate) fn fetch_layout(&mut self, bml: &mut Bml, id: RequestId) {
        let Some((incoming, _)) = self.incoming(id) else { return };
        let from = incoming.from;
        let piece = fragment_max(bml, from).saturating_sub(LAYOUT_BYTES) as u64;
        // The sender can put this much into one slot, by its own fragment wish.
        let piece = piece.min(u64::from(incoming.rts.fragment)).max(1);
        let length = incoming.rts.layout_bytes;
        // `choose` has compared the length with the bound.
        incoming.stage = Stage::Fetching(Fetch::new(length, piece));
        let message = wire::layout_request(incoming.rts.serial, incoming.reply, piece);
        self.send_control(bml, from, &message);
    }

    /// Sends as much of a layout as there is room for.
    pub(crate) fn attempt_layout(
        &mut self,
        bml: &mut Bml,
        peer: u32,
        (reply, mut next, piece): (u64, usize, usize),
        bytes: Arc<[u8]>,
    ) -> Attempt {
        while next < bytes.len() {
            let part = &bytes[next..bytes.len().min(next + piece)];
            let Some(mut slot) = self.reserve(bml, peer, LAYOUT_BYTES + part.len()) else {
                return Attempt::Waits(Outgoing::Layout { reply, next, piece, bytes });
            };
            let header = wire::layout_data(reply, next as u64, bytes.len() as u64);
            let written = slot.write(0, &header).and_then(|()| slot.write(LAYOUT_BYTES, part));
            if let Err(error) = written {
                tracing::error!(%error, "a slot that cannot be written");
            }
            next += part.len();
            bml.send(slot, AM_TAG, Token::NONE);
        }
        Attempt::Sent
    }

    /// A piece of the sender's layout has arrived.
    pub(crate) fn layout_fetched(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        (offset, length): (u64, u64),
        fragment: &Fragment,
    ) -> Result<(), String> {
        let Some((incoming, _)) = self.incoming(id) else { return Ok(()) };
        let (from, layout_id) = (incoming.from, incoming.rts.layout_id);
        let Stage::Fetching(fetch) = &mut incoming.stage else { return Ok(()) };
        if let Some(flat) = fetch.take(offset, length, fragment)? {
            incoming.stage = Stage::Choosing;
            let layouts = &mut self.rndv.facts(from).layouts;
            layouts.unknown.paid(layout_id);
            let layout = layouts.insert(layout_id, &flat, &self.config.bounds)?;
            self.set_layout(id, layout)?;
            self.proceed(bml, id)?;
        }
        Ok(())
    }
}
