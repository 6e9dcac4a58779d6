//! Entry points for fuzzing, which only exist with `--cfg fuzzing`: what unauthenticated processes and peers may send,
//! read as it is when it comes over a network.

use crate::address::TcpAddress;
use crate::connection::Connection;
use crate::inbound::{Inbound, Stop};
use crate::proof::{HELLO_BYTES, Keys};
use crate::socket::Socket;
use crate::wire::{HEADER_BYTES, Header};
use crate::{ListenAddress, Secret, TcpConfig};
use gapless_btl::{Address, Event, LinkError, PeerId, Sink};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddr};

const JOB: &str = "fuzz";
const SECRET: [u8; 32] = [0x5a; 32];

/// Reads bytes as an address; what is read is written as it was.
pub fn address(bytes: &[u8]) {
    let Some(address) = Address::new(bytes) else { return };
    if let Ok(parsed) = TcpAddress::read(&address) {
        assert_eq!(parsed.to_bytes(), address, "what is written is not what is read");
    }
}

/// Reads bytes as a greeting; if `knows`, of somebody who knows the secret and lies about all the rest.
pub fn hello(bytes: &[u8], knows: bool) {
    let mut said = [0; HELLO_BYTES];
    let len = bytes.len().min(HELLO_BYTES);
    said[..len].copy_from_slice(&bytes[..len]);
    let keys = Keys::new(&SECRET, JOB);
    if knows {
        keys.sign(&mut said);
    }
    match keys.hear(&said) {
        Ok(hello) => {
            assert!(knows || keys.say(&hello) == said, "nobody else can have said it");
            assert_eq!(keys.say(&hello), said, "what is said is not what was heard");
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

/// The way from a peer, and the peer's end of it.
#[derive(Debug)]
pub struct Stream {
    inbound: Inbound,
    here: Connection,
    there: Option<Socket>,
}

impl Stream {
    /// Messages have at most so many bytes, 256 at least, and few have buffers at a time. `None`: the system has no
    /// descriptors.
    #[must_use]
    pub fn new(fragment_bytes: usize) -> Option<Stream> {
        let here = ListenAddress::alone(Ipv4Addr::LOCALHOST.into());
        let config = TcpConfig {
            fragment_bytes: fragment_bytes.max(256),
            buffers: 2,
            ..TcpConfig::new(JOB, 0, Secret::new(SECRET), [here])
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let [here, there] = [here, there].map(|fd| Socket::of(fd, at));
        let here = Connection::bare(here);
        Some(Stream { inbound: Inbound::new(&config), here, there: Some(there) })
    }

    /// The peer writes as much as there is room for; how many bytes.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let there = self.there.as_ref();
        there.map_or(0, |there| there.write(&[IoSlice::new(bytes)]).unwrap_or(0))
    }

    /// The peer is gone.
    pub fn end(&mut self) {
        self.there = None;
    }

    /// Takes at most so many messages; how the stream ended, if it has. If `closing`, buffers are not limited.
    pub fn receive(
        &mut self,
        sink: &mut dyn Sink,
        batch: usize,
        closing: bool,
    ) -> Option<LinkError> {
        let Stream { inbound, here, .. } = self;
        let mut offers = true;
        match inbound.receive(here, PeerId(0), sink, batch, &mut offers, closing).2 {
            Stop::End(error) => Some(error),
            Stop::Dry | Stop::More | Stop::NoBuffer => None,
        }
    }
}

/// What a stream says, read slowly: tags and bodies of all messages before its first wrong header.
#[must_use]
pub fn messages(mut bytes: &[u8], fragment_bytes: usize) -> Vec<(u8, Vec<u8>)> {
    let (mut found, mut retained) = (Vec::new(), false);
    while let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let (tag, len) = match Header::read(*head, fragment_bytes.max(256)) {
            Ok(Header::Message { tag, len }) if !retained => (tag, len),
            Ok(Header::Retained { tag, len, .. }) => {
                retained = true;
                (tag, len)
            }
            Ok(Header::Count(_)) => {
                bytes = rest;
                continue;
            }
            _ => break,
        };
        let Some((body, behind)) = rest.split_at_checked(len) else { break };
        found.push((tag.0, body.to_vec()));
        bytes = behind;
    }
    found
}

/// The header of a message.
#[must_use]
pub fn header(tag: u8, len: usize) -> [u8; 8] {
    Header::Message { tag: gapless_btl::AmTag(tag), len }.write()
}

/// A greeting and an address as honest processes send them.
#[must_use]
pub fn honest() -> [Vec<u8>; 2] {
    let places = ["10.0.0.1:77", "[fd00::1]:65535"].map(|place| place.parse().expect("a place"));
    let job = crate::proof::job_digest(JOB);
    let address =
        TcpAddress { rank: 3, id: [7; 16], job, encrypts: false, places: places.to_vec() };
    let hello = crate::attempt::hello(crate::proof::Purpose::Call, &address, &address);
    let hello = hello.expect("the system has randomness");
    [Keys::new(&SECRET, JOB).say(&hello).to_vec(), address.to_bytes().as_bytes().to_vec()]
}

/// Keeps messages as they come: whoever looks at them has to say what is right.
#[must_use]
pub fn message(event: Event) -> Option<(u8, Vec<u8>)> {
    match event {
        Event::Arrived { tag, fragment, .. } => Some((tag.0, fragment.to_vec().ok()?)),
        _ => None,
    }
}
