//! Meeting: each end says Hello to the other's listener, naming the port of its own socket of this pair,
//! until the other has been heard; a listener answers a Hello that says "I have not heard you".
//!
//! A socket of a pair is bound before its port is named and accepts from anywhere until it is
//! connected, so what an eager peer sends is kept by the kernel. Hellos go out through a socket
//! that is connected to the listener (the dialer), so that the kernel tells when nobody is behind it.

use super::{Around, LinkStage, REFUSALS, UdpLink, gone};
use crate::channel::Channel;
use crate::seq::Seq;
use crate::socket::{Receive, Send, Socket, system};
use crate::wire::{Acks, HEADER_BYTES, HELLO_BYTES, Header, Hello, PacketKind, Sessions};
use gapless_btl::LinkError;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::time::Duration;

/// The first and the longest pause between Hellos.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

impl UdpLink {
    fn hello(&self, heard: bool, around: &Around<'_>) -> (Header, [u8; Hello::BYTES]) {
        let hello = Hello {
            port: self.socket().map_or(0, Socket::port),
            heard,
            window: u8::try_from(around.config.window).unwrap_or(1),
            max_fragment_bytes: u32::try_from(around.config.max_fragment_bytes).unwrap_or(0),
        };
        let header = Header {
            kind: PacketKind::Hello,
            tag: 0,
            sessions: self.sessions(around),
            seq: self.first,
            acks: Acks::NONE,
            payload_bytes: HELLO_BYTES,
        };
        (header, hello.encode())
    }

    /// Says Hello if it is time; `listener_is_empty` says that no Hello of the peer waits to be read.
    pub(super) fn say_hello(&mut self, listener_is_empty: bool, around: &mut Around<'_>) {
        let (header, hello) = self.hello(false, around);
        let swallowed = self.channel.as_mut().is_some_and(Channel::swallows);
        let own_sessions = self.sessions(around);
        let LinkStage::Meeting { dialer, hello_at, pause } = &mut self.stage else { return };
        if around.now < *hello_at {
            return;
        }
        let mut refused = None;
        loop {
            let mut bytes = [0; HEADER_BYTES];
            match dialer.receive(&mut bytes, &mut []) {
                Receive::Empty => break,
                Receive::Foreign => {}
                Receive::Refused => self.refusals += 1,
                Receive::Datagram { bytes: len, .. } => {
                    if let Ok(header) = Header::decode(&bytes, len)
                        && header.kind == PacketKind::Refuse
                        && header.sessions
                            == (Sessions { to: own_sessions.from, from: own_sessions.to })
                    {
                        refused = Some("another process has its port now");
                    }
                }
            }
        }
        if self.refusals >= REFUSALS && listener_is_empty {
            refused = Some("nobody has its port any more");
        }
        if let Some(reason) = refused {
            return self.end(gone(reason), around);
        }
        if !swallowed && dialer.send(&header.encode(), &hello) == Send::Refused {
            self.refusals += 1;
        }
        // Whoever was refused once asks again at once.
        if self.refusals == 0 {
            *hello_at = around.now + *pause;
            *pause = (*pause * 2).min(PAUSE_MAX);
        }
    }

    /// A Hello of the peer came to our listener.
    pub(crate) fn greeted(&mut self, header: &Header, hello: Hello, around: &mut Around<'_>) {
        match &self.stage {
            LinkStage::Ended(_) => return,
            LinkStage::Up { port, first } if (*port, *first) != (hello.port, header.seq) => return,
            LinkStage::Up { .. } => {}
            LinkStage::Meeting { .. } => {
                if let Err(error) = self.rise(header.seq, hello, around) {
                    return self.end(error, around);
                }
            }
        }
        if !hello.heard {
            let (header, hello) = self.hello(true, around);
            if !self.channel.as_mut().is_some_and(Channel::swallows) {
                around.listener.send_to(self.address.listener, &header.encode(), &hello);
            }
        }
    }

    fn rise(&mut self, first: Seq, hello: Hello, around: &Around<'_>) -> Result<(), LinkError> {
        let ours = around.config.max_fragment_bytes;
        if usize::try_from(hello.max_fragment_bytes).ok() != Some(ours) {
            return Err(LinkError::Incompatible {
                what: format!("messages of {} bytes there, {ours} here", hello.max_fragment_bytes),
            });
        }
        if let Some(socket) = self.socket() {
            socket.connect(hello.port)?;
            let name = EventData::new_u64(u64::from(self.id.0));
            epoll::add(around.epoll, socket, name, EventFlags::IN)
                .map_err(|error| system("epoll_ctl")(error.into()))?;
        }
        self.sender.open(u32::from(hello.window));
        self.receiver.begin(first);
        self.refusals = 0;
        self.probe_at = around.now;
        self.stage = LinkStage::Up { port: hello.port, first };
        Ok(())
    }
}
