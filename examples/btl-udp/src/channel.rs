//! The pair of sockets of a link, and the bad wire that tests may put in between.

use crate::faults::{Fate, Wire};
use crate::socket::{Send, Socket};
use crate::wire::{HEADER_BYTES, Header};

pub(crate) struct Channel {
    pub(crate) socket: Socket,
    wire: Option<Wire>,
}

impl Channel {
    pub(crate) fn new(socket: Socket, wire: Option<Wire>) -> Channel {
        Channel { socket, wire }
    }

    /// Sends to the peer, or does what the bad wire would.
    pub(crate) fn send(&mut self, header: &Header, payload: &[u8]) -> Send {
        let header = header.encode();
        let Some(wire) = &mut self.wire else { return self.socket.send(&header, payload) };
        let times = match wire.fate() {
            Fate::Drop => return Send::Gone,
            Fate::Delay if wire.delayed.is_none() => {
                wire.delayed = Some([&header[..], payload].concat());
                return Send::Gone;
            }
            Fate::Double => 2,
            Fate::Pass | Fate::Delay => 1,
        };
        let mut outcome = Send::Gone;
        for _ in 0..times {
            outcome = self.socket.send(&header, payload);
        }
        if outcome == Send::Gone
            && let Some(late) = wire.delayed.take()
            && let Some((header, payload)) = late.split_first_chunk::<HEADER_BYTES>()
        {
            let _ = self.socket.send(header, payload);
        }
        outcome
    }

    /// Whether the bad wire swallows a datagram that is not sent through this channel.
    pub(crate) fn swallows(&mut self) -> bool {
        self.wire.as_mut().is_some_and(|wire| wire.fate() == Fate::Drop)
    }
}
