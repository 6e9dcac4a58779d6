//! Puts that only a ring knows. Each lies in the place of its slot: it is built there, and left there when its task has
//! ended, so nothing is allocated and little is copied. A body that lies in its slot lies here, too: the one in the ring
//! is the target's to write.

use super::{Outgoing, Stage, limit};
use crate::buffer::{Bytes, Payload};
use crate::device::{Lane, RingError, SLOTS, Short};
use crate::gather::Part;
use crate::packet::{ARGUMENTS_MAX, Flags, Packet};
use crate::put::{Put, PutHandle, Retry};
use crate::signal::Signal;
use gapless_bml::Rank;

/// A place for each slot of a ring.
#[derive(Debug, Default)]
pub(super) struct Kept(Box<[Record]>);

/// A put; what is left of it, if its task has ended.
#[derive(Debug)]
pub(super) struct Record {
    /// The next put of this place has it, too, if nobody else has it by then.
    handle: PutHandle,
    pub(super) signal: Option<Signal>,
    target: Rank,
    attempts_max: u32,
    retry: Retry,
    acknowledged: bool,
    /// Whether its body is `short`.
    is_short: bool,
    packet: Packet,
    short: Short,
    /// A longer body, or one that is gathered.
    arguments: Bytes,
    payload: Payload,
}

impl Kept {
    /// The place of a slot.
    #[inline]
    pub(super) fn at(&mut self, slot: u8) -> Option<&mut Record> {
        if self.0.is_empty() {
            self.0 = (0..SLOTS).map(|_| Record::empty()).collect();
        }
        self.0.get_mut(usize::from(slot))
    }
}

impl Record {
    fn empty() -> Record {
        Record {
            handle: PutHandle::default(),
            signal: None,
            target: Rank(0),
            attempts_max: 0,
            retry: Retry::Never,
            acknowledged: false,
            is_short: false,
            packet: Packet::none(),
            short: Short::default(),
            arguments: Bytes::none(),
            payload: Payload::none(),
        }
    }

    /// Keeps a put, and writes it into the ring, which has this slot free. If that refuses it, `put` is as it was.
    pub(super) fn put(
        &mut self,
        lane: &mut Lane,
        put: &mut Put,
        packet: Packet,
    ) -> Result<(u64, PutHandle), RingError> {
        // What takes a bus lock comes before the stores that others wait for.
        let handle = self.handle.renew();
        self.target = put.target;
        self.attempts_max = put.attempts_max;
        self.retry = put.retry;
        self.acknowledged = put.command.flags.contains(Flags::ACKNOWLEDGE);
        self.packet = packet;
        let (arguments, payload) = (put.arguments.bytes(), put.payload.part());
        self.is_short = match payload {
            Part::One(payload) => self.short.fill(arguments, payload),
            Part::Gathered(..) => false,
        };
        let number = match self.is_short {
            true => lane.put_short(&packet, &self.short),
            false => lane.put_part(&packet, arguments, payload),
        }?;
        if !self.is_short {
            std::mem::swap(&mut self.arguments, &mut put.arguments);
            std::mem::swap(&mut self.payload, &mut put.payload);
        }
        self.signal = put.signal.take();
        Ok((number, handle))
    }

    /// Its task has ended well; whoever calls this has taken its signal.
    #[inline]
    pub(super) fn end_well(&mut self) {
        self.handle.accept(true);
        if !self.is_short {
            (self.arguments, self.payload) = (Bytes::none(), Payload::none());
        }
    }

    /// Takes the put out, for the initiator.
    pub(super) fn take(&mut self) -> Outgoing {
        let (arguments, payload) = if self.is_short {
            let [arguments, payload] = self.short.parts().map(Payload::from);
            (arguments.into_one(ARGUMENTS_MAX), payload)
        } else {
            (
                std::mem::replace(&mut self.arguments, Bytes::none()),
                std::mem::replace(&mut self.payload, Payload::none()),
            )
        };
        Outgoing {
            target: self.target,
            packet: self.packet,
            arguments,
            payload,
            stage: Stage::InRing,
            whole: false,
            line: None,
            retry: self.retry,
            attempts: 0,
            attempts_max: self.attempts_max,
            acknowledged: self.acknowledged,
            signal: self.signal.take(),
            handle: self.handle.clone(),
            refusal: None,
            limit: limit::Limit::None,
        }
    }
}
