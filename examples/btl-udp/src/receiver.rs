//! The receiving side of one direction of a link: puts messages in order, drops what comes twice,
//! and promises the peer no more room than there is.
//!
//! Room is promised message by message, and each promise is backed by a buffer taken out of the
//! pool beforehand; a receiver that parks its fragments leaves the pool empty, so nothing is
//! promised until it lets go of one.

use crate::seq::{Seq, WINDOW_MAX};
use crate::wire::Acks;
use gapless_btl::AmTag;
use gapless_btl::pool::{Buffer, HeapPool};
use std::collections::VecDeque;

pub(crate) struct Receiver {
    /// The first message that has not arrived.
    next: Seq,
    /// What has arrived of those from `next` on; as long as the room promised.
    window: VecDeque<Option<(AmTag, Buffer)>>,
    /// One buffer for each empty place of the window.
    spare: Vec<Buffer>,
    /// How long the window may be.
    depth: usize,
    /// The first message without room, as the peer was told last.
    told: Seq,
}

/// What became of a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It was taken.
    New,
    /// It was taken, and the one before it is missing.
    Early,
    /// It had come before.
    Again,
}

impl Receiver {
    /// With room for up to `depth` messages. The numbers come with [`begin`](Receiver::begin).
    pub(crate) fn new(depth: u32) -> Receiver {
        let depth = depth.clamp(1, WINDOW_MAX) as usize;
        Receiver {
            next: Seq(0),
            window: VecDeque::with_capacity(depth),
            spare: Vec::with_capacity(depth),
            depth,
            told: Seq(0),
        }
    }

    /// How many messages there is room for.
    pub(crate) fn room(&self) -> u32 {
        u32::try_from(self.window.len()).unwrap_or(WINDOW_MAX)
    }

    /// The peer numbers its messages from `first` on, and was told of `room`.
    pub(crate) fn begin(&mut self, first: Seq) {
        self.next = first;
        self.told = self.edge();
    }

    /// Takes buffers for as much room as can be promised.
    pub(crate) fn make_room(&mut self, pool: &HeapPool) {
        while self.window.len() < self.depth {
            let Some(buffer) = pool.buffer(pool.buffer_bytes()) else { return };
            self.spare.push(buffer);
            self.window.push_back(None);
        }
    }

    /// The buffer that the next datagram goes into; `None` if no message is to be expected.
    pub(crate) fn spare(&mut self) -> Option<&mut Buffer> {
        self.spare.last_mut()
    }

    fn edge(&self) -> Seq {
        self.next.plus(self.room())
    }

    /// How much more room there is than the peer knows of.
    pub(crate) fn untold(&self) -> u32 {
        u32::try_from(self.edge().since(self.told)).unwrap_or(0)
    }

    /// Whether the peer may believe that there is no room at all.
    pub(crate) fn seems_full(&self) -> bool {
        !self.next.is_before(self.told)
    }

    /// What the peer is to know; the caller tells it.
    pub(crate) fn acks(&mut self) -> Acks {
        self.told = self.edge();
        let sack = self.window.iter().skip(1).enumerate();
        let sack = sack.filter(|(_, place)| place.is_some());
        let sack = sack.fold(0, |sack, (bit, _)| sack | 1 << bit);
        Acks { ack: self.next, sack, edge: self.told }
    }

    #[cfg(test)]
    pub(crate) fn next(&self) -> Seq {
        self.next
    }

    /// Takes the message of `len` bytes that lies in the spare buffer; gives all that are in order
    /// now to `deliver`.
    ///
    /// # Errors
    /// There was no room for it, and the peer knew.
    pub(crate) fn arrived(
        &mut self,
        seq: Seq,
        tag: AmTag,
        len: usize,
        mut deliver: impl FnMut(AmTag, Buffer),
    ) -> Result<Arrival, String> {
        if seq.is_before(self.next) {
            return Ok(Arrival::Again);
        }
        let place = seq.within(self.next, WINDOW_MAX);
        let place = place.and_then(|place| self.window.get_mut(place as usize));
        let Some(place) = place else {
            return Err(format!("message {seq:?}, but room was given up to {:?}", self.edge()));
        };
        if place.is_some() {
            return Ok(Arrival::Again);
        }
        let mut buffer = match self.spare.last() {
            Some(buffer) if len <= buffer.len() => self.spare.pop().expect("it was there"),
            spare => {
                let max = spare.map_or(0, |buffer| buffer.len());
                return Err(format!("a message of {len} bytes, but at most {max} were agreed on"));
            }
        };
        buffer.truncate(len);
        *place = Some((tag, buffer));
        let early = seq != self.next;
        while let Some((tag, buffer)) = self.window.front_mut().and_then(Option::take) {
            self.window.pop_front();
            self.next = self.next.plus(1);
            deliver(tag, buffer);
        }
        Ok(if early { Arrival::Early } else { Arrival::New })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(receiver: &mut Receiver, seq: u32) -> Result<(Arrival, Vec<u8>), String> {
        let mut tags = Vec::new();
        let tag = AmTag(seq.to_le_bytes()[0]);
        let arrival = receiver.arrived(Seq(seq), tag, 1, |tag, buffer| {
            assert_eq!(buffer.len(), 1);
            tags.push(tag.0);
        })?;
        Ok((arrival, tags))
    }

    #[test]
    fn messages_come_out_once_and_in_order_across_the_wrap() {
        let pool = HeapPool::new(8, 16);
        let first = u32::MAX; // tag 255
        let mut receiver = Receiver::new(4);
        receiver.make_room(&pool);
        assert_eq!(receiver.room(), 4);
        receiver.begin(Seq(first));
        assert_eq!(receiver.untold(), 0);
        assert_eq!(receiver.acks(), Acks { ack: Seq(first), sack: 0, edge: Seq(3) });
        assert_eq!(take(&mut receiver, 1).unwrap(), (Arrival::Early, vec![]));
        assert_eq!(receiver.acks().sack, 0b10);
        assert_eq!(take(&mut receiver, 1).unwrap(), (Arrival::Again, vec![]));
        assert_eq!(take(&mut receiver, first).unwrap(), (Arrival::New, vec![255]));
        assert_eq!(receiver.acks(), Acks { ack: Seq(0), sack: 0b1, edge: Seq(3) });
        assert_eq!(take(&mut receiver, 0).unwrap(), (Arrival::New, vec![0, 1]));
        assert_eq!(take(&mut receiver, first).unwrap(), (Arrival::Again, vec![]));
        assert_eq!(receiver.acks(), Acks { ack: Seq(2), sack: 0, edge: Seq(3) });
        receiver.make_room(&pool);
        assert_eq!(receiver.untold(), 3);
        assert!(!receiver.seems_full());
    }

    #[test]
    fn the_promised_room_is_there_and_no_more() {
        let pool = HeapPool::new(3, 16);
        let mut receiver = Receiver::new(64);
        receiver.begin(Seq(7));
        receiver.make_room(&pool);
        assert_eq!(receiver.untold(), 3);
        assert_eq!(receiver.acks().edge, Seq(10));
        assert!(pool.buffer(1).is_none());
        let mut parked = Vec::new();
        for seq in 7..10 {
            receiver.arrived(Seq(seq), AmTag(0), 1, |_, buffer| parked.push(buffer)).unwrap();
        }
        receiver.make_room(&pool);
        assert!(receiver.spare().is_none() && receiver.seems_full());
        assert!(take(&mut receiver, 10).unwrap_err().contains("room"));
        assert_eq!(take(&mut receiver, 9).unwrap().0, Arrival::Again);
        parked.remove(1);
        receiver.make_room(&pool);
        assert_eq!((receiver.untold(), receiver.acks().edge), (1, Seq(11)));
        assert!(take(&mut receiver, 11).is_err());
        assert!(take(&mut receiver, 10u32.wrapping_add(0x7fff_ffff)).is_err());
        assert!(receiver.arrived(Seq(10), AmTag(0), 17, |_, _| panic!("too long")).is_err());
        assert_eq!(take(&mut receiver, 10).unwrap(), (Arrival::New, vec![10]));
    }

    #[test]
    fn a_full_window_of_early_messages_fits_the_acknowledgement() {
        let pool = HeapPool::new(64, 4);
        let mut receiver = Receiver::new(64);
        receiver.make_room(&pool);
        for seq in (1..64).rev() {
            take(&mut receiver, seq).unwrap();
        }
        assert_eq!(receiver.acks(), Acks { ack: Seq(0), sack: u64::MAX >> 1, edge: Seq(64) });
        assert_eq!(take(&mut receiver, 0).unwrap().1.len(), 64);
    }
}
