//! A rendezvous at its receiver.

use crate::arrival::Matched;
use crate::buffer::{OneSidedRead, packed_size};
use crate::cost::Touched;
use crate::error::PmlError;
use crate::links::WireLayout;
use crate::protocol::{Protocol, Protocols};
use crate::rndv::RndvEnd;
use crate::rndv::layouts::Fetch;
use crate::wire::Rts;
use gapless_engine::Typed;

/// A rendezvous at its receiver.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) from: u32,
    pub(crate) rts: Rts,
    /// Its number here.
    pub(crate) reply: u64,
    /// Whether both buffers were used lately.
    pub(crate) cached: bool,
    /// Bytes that are received: as many as were sent, or as there is room for; none if the types differ.
    pub(crate) room: u64,
    /// The result at the end, although everything possible is received.
    pub(crate) failure: Option<PmlError>,
    /// The sender's layout, once it is known.
    pub(crate) layout: Option<WireLayout>,
    pub(crate) protocol: Protocol,
    /// Those that have not failed.
    pub(crate) protocols: Protocols,
    pub(crate) stage: IncomingStage,
    /// It found no staging memory, and was counted.
    pub(crate) without_staging: bool,
    /// Its one-sided read, if one is under way.
    pub(crate) read: OneSidedRead,
}

/// What a rendezvous waits for at its receiver.
#[derive(Debug)]
pub(crate) enum IncomingStage {
    /// A decision.
    Choosing,
    /// The sender's word that the data is there.
    Deferred,
    /// The sender's layout.
    Fetching(Fetch),
    /// The end of the chosen protocol.
    Going(Box<dyn RndvEnd>),
}

/// Whether a request fails for another reason than truncation: data that still arrives is dropped.
pub(crate) fn is_failure(failure: Option<&PmlError>) -> bool {
    !matches!(failure, None | Some(PmlError::Truncated { .. }))
}

impl Incoming {
    /// Whether the sender's buffer has no gaps.
    pub(crate) fn gapless(&self) -> bool {
        self.rts.blocks == 1
    }

    /// Whether it fails for another reason than truncation: data that still arrives is dropped.
    pub(crate) fn is_failed(&self) -> bool {
        is_failure(self.failure.as_ref())
    }

    /// How it ended.
    pub(crate) fn matched(&mut self) -> Matched {
        Matched {
            from: self.from,
            tag: self.rts.envelope.tag,
            sent: self.rts.envelope.digest.bytes,
            protocol: self.protocol,
            failure: self.failure.take(),
        }
    }

    /// How moving the message from layout to layout would touch memory. Of pages, that the sender's runs do not follow
    /// each other is all that is looked at.
    pub(crate) fn touched(&self, to: &Typed) -> Touched {
        let into = (to.layout(), to.count());
        match &self.layout {
            Some(WireLayout::Layout(layout)) if to.as_pages().is_none() => {
                Touched::between((layout, self.rts.count), into)
            }
            _ => Touched::unseen((self.room, self.rts.blocks, self.rts.span), into),
        }
    }

    /// Checks the sender's layout against what it told of its buffer.
    pub(crate) fn check_layout(&self, layout: &WireLayout) -> Result<(), String> {
        let rts = &self.rts;
        let packed = packed_size(layout, rts.count, rts.low, rts.span)?;
        if packed != rts.envelope.digest.bytes {
            return Err("a layout that is not the one of the offer".to_owned());
        }
        Ok(())
    }
}
