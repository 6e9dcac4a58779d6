//! A transport over TCP on the loopback interface, for the parts of the conformance suite that need
//! processes: written with the pool alone, without `unsafe`, as one outside this project would be.
//!
//! Each end listens. A link is two streams: each end opens one to the other and sends on it; it
//! begins with a greeting (magic, own port). A message is its length (4 bytes, big-endian), its tag
//! (1) and its bytes. A receiver without free buffers stops reading, which fills the stream and
//! then the sender's pool. The end of the incoming stream is the death of the peer; once the peer reads no
//! more, what it said is read into buffers beyond the pool's.
#![forbid(unsafe_code)]

use gapless_btl::pool::{Buffer, HeapPool};
use gapless_btl::{
    Address, AmTag, Btl, Event, Limits, LinkError, PeerId, ReserveError, Sink, Slot, Token,
    hand_out,
};
use gapless_btl_testkit::conformance::Fixture;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const MAGIC: [u8; 6] = *b"stream";
const MAX: usize = 4096;
const BUFFERS: usize = 32;
/// How long a dropped end waits for peers that are slow to take what it sent.
const LINGER: Duration = Duration::from_millis(300);

/// Bytes on their way out: a header, then a message.
struct Outgoing {
    head: Vec<u8>,
    body: Option<Buffer>,
    written: usize,
    done: Token,
}

/// What an end is in the middle of reading.
struct Incoming {
    stream: TcpStream,
    /// The greeting's port, once it has been read.
    port: Option<u16>,
    head: [u8; 8],
    head_got: usize,
    body: Option<(AmTag, Buffer, usize)>,
    ended: Option<LinkError>,
}

struct Link {
    port: u16,
    stream: TcpStream,
    queue: VecDeque<Outgoing>,
    send_pool: HeapPool,
    receive_pool: HeapPool,
    /// The peer reads no more: what it has said is read to its end, whoever holds the buffers.
    dying: bool,
    lost: Option<LinkError>,
}

struct Streams {
    limits: Limits,
    listener: TcpListener,
    links: Vec<Link>,
    incoming: Vec<Incoming>,
    ready: VecDeque<Event>,
}

fn gone(reason: &str) -> LinkError {
    LinkError::PeerGone { reason: reason.to_owned() }
}

/// What a read or write that did not work means: nothing yet, or the end.
fn verdict(error: &std::io::Error) -> Option<LinkError> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => None,
        _ => Some(gone(&error.to_string())),
    }
}

impl Streams {
    fn new() -> Streams {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        Streams {
            limits: Limits {
                name: "streams",
                eager_bytes: 1024,
                max_fragment_bytes: MAX,
                ordered: true,
                latency_ns: 10_000,
                bandwidth_mb_s: 1_000,
                // Megabytes that the system holds are read before the end is seen.
                death_notice_ms: 6_000,
            },
            listener,
            links: Vec::new(),
            incoming: Vec::new(),
            ready: VecDeque::new(),
        }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().expect("a bound socket").port()
    }

    fn link(&self, id: PeerId) -> Result<&Link, LinkError> {
        let link = self.links.get(id.0 as usize);
        let link = link.ok_or(LinkError::Unreachable { reason: format!("{id} is nobody") })?;
        link.lost.clone().map_or(Ok(link), Err)
    }

    fn lose(&mut self, at: usize, error: LinkError) {
        let link = &mut self.links[at];
        if link.lost.is_some() {
            return;
        }
        link.lost = Some(error.clone());
        for Outgoing { done, .. } in link.queue.drain(..) {
            if done != Token::NONE {
                self.ready.push_back(Event::Sent { token: done, result: Err(error.clone()) });
            }
        }
        let peer = PeerId(u32::try_from(at).expect("few peers"));
        self.ready.push_back(Event::Lost { peer, error });
    }

    /// Writes what the stream takes; why it has ended, if it has.
    fn flush(link: &mut Link, ready: &mut VecDeque<Event>) -> Option<LinkError> {
        while let Some(out) = link.queue.front_mut() {
            let body = out.body.as_deref().unwrap_or(&[]);
            let rest = match out.written.checked_sub(out.head.len()) {
                Some(at) => &body[at..],
                None => &out.head[out.written..],
            };
            if !rest.is_empty() {
                match link.stream.write(rest) {
                    Ok(count) => out.written += count,
                    Err(error) => return verdict(&error),
                }
                continue;
            }
            if out.written >= out.head.len() + body.len() {
                if out.done != Token::NONE {
                    ready.push_back(Event::Sent { token: out.done, result: Ok(()) });
                }
                link.queue.pop_front();
            }
        }
        // Nothing is ever sent back on it, so what can be read is its end.
        match link.stream.read(&mut [0]) {
            Ok(0) => Some(gone("it closed the stream")),
            Ok(_) => Some(LinkError::Corrupt { what: "bytes the wrong way".to_owned() }),
            Err(error) => verdict(&error),
        }
    }

    /// Reads what is there, up to a few messages.
    fn read(incoming: &mut Incoming, links: &[Link], ready: &mut VecDeque<Event>) {
        for _ in 0..16 {
            if let Err(error) = Streams::read_one(incoming, links, ready) {
                incoming.ended = error;
                return;
            }
        }
    }

    /// Reads a piece; an error of `None` means to try again later.
    fn read_one(
        incoming: &mut Incoming,
        links: &[Link],
        ready: &mut VecDeque<Event>,
    ) -> Result<(), Option<LinkError>> {
        let ended = || Some(gone("it closed the stream"));
        let corrupt = |what: &str| Some(LinkError::Corrupt { what: what.to_owned() });
        // Messages of those that we have not connected to stay in the stream.
        let from = match incoming.port {
            None => None,
            Some(port) => Some(links.iter().position(|link| link.port == port).ok_or(None)?),
        };
        if let (Some(from), Some((tag, body, got))) = (from, &mut incoming.body) {
            if *got < body.len() {
                match incoming.stream.read(&mut body[*got..]) {
                    Ok(0) => return Err(ended()),
                    Ok(count) => *got += count,
                    Err(error) => return Err(verdict(&error)),
                }
            }
            if *got == body.len() {
                let (from, tag) = (PeerId(u32::try_from(from).expect("few peers")), *tag);
                let (_, body, _) = incoming.body.take().expect("matched");
                ready.push_back(Event::Arrived { from, tag, fragment: body.into_fragment() });
            }
            return Ok(());
        }
        let want = if from.is_none() { 8 } else { 5 };
        if incoming.head_got < want {
            let head = &mut incoming.head[incoming.head_got..want];
            match incoming.stream.read(head) {
                Ok(0) => return Err(ended()),
                Ok(count) => incoming.head_got += count,
                Err(error) => return Err(verdict(&error)),
            }
            return Ok(());
        }
        let [a, b, c, d, e, _, g, h] = incoming.head;
        let Some(from) = from else {
            if incoming.head[..6] != MAGIC {
                return Err(corrupt("a greeting without the magic"));
            }
            incoming.port = Some(u16::from_be_bytes([g, h]));
            incoming.head_got = 0;
            return Ok(());
        };
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if len > MAX {
            return Err(corrupt("a message longer than a fragment"));
        }
        // No buffer: the receiver has them all.
        let Link { receive_pool, dying, .. } = &links[from];
        let spare = || dying.then(|| HeapPool::new(1, MAX).buffer(len)).flatten();
        let body = receive_pool.buffer(len).or_else(spare).ok_or(None)?;
        incoming.head_got = 0;
        incoming.body = Some((AmTag(e), body, 0));
        Ok(())
    }
}

impl Btl for Streams {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> Address {
        Address::new(&[&MAGIC[..], &self.port().to_be_bytes()].concat()).expect("short")
    }

    fn connect(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        let bad = || LinkError::BadAddress { what: format!("{:x?}", peer.as_bytes()) };
        let port = peer.as_bytes().strip_prefix(&MAGIC).ok_or_else(bad)?;
        let port = u16::from_be_bytes(port.try_into().map_err(|_| bad())?);
        let known = self.links.iter().position(|link| link.port == port);
        let id = PeerId(u32::try_from(known.unwrap_or(self.links.len())).expect("few peers"));
        if known.is_some() {
            return Ok(id);
        }
        let unreachable =
            |error: std::io::Error| LinkError::Unreachable { reason: error.to_string() };
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(unreachable)?;
        stream.set_nonblocking(true).map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let head = self.address().as_bytes().to_vec();
        let greeting = Outgoing { head, body: None, written: 0, done: Token::NONE };
        self.links.push(Link {
            port,
            stream,
            queue: VecDeque::from([greeting]),
            send_pool: HeapPool::new(BUFFERS, MAX),
            receive_pool: HeapPool::new(BUFFERS, MAX),
            dying: false,
            lost: None,
        });
        Ok(id)
    }

    fn reserve(&mut self, to: PeerId, len: usize) -> Result<Slot, ReserveError> {
        let link = self.link(to)?;
        if len <= MAX && self.ready.len() > 8 * BUFFERS {
            return Err(ReserveError::Full);
        }
        link.send_pool.slot(to, len)
    }

    fn send(&mut self, slot: Slot, tag: AmTag, done: Token) {
        let id = slot.peer();
        if let Err(error) = self.link(id) {
            if done != Token::NONE {
                self.ready.push_back(Event::Sent { token: done, result: Err(error) });
            }
            return;
        }
        let link = &mut self.links[id.0 as usize];
        let body = link.send_pool.open(slot).expect("a slot of this transport");
        let len = u32::try_from(body.len()).expect("fragments are short");
        let head = [&len.to_be_bytes()[..], &[tag.0]].concat();
        link.queue.push_back(Outgoing { head, body: Some(body), written: 0, done });
        // What cannot go now goes with a later poll; so does the news of an end.
        let _ = Streams::flush(link, &mut self.ready);
    }

    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                let (head, head_got) = ([0; 8], 0);
                self.incoming.push(Incoming {
                    stream,
                    port: None,
                    head,
                    head_got,
                    body: None,
                    ended: None,
                });
            }
        }
        if self.ready.len() < 8 * BUFFERS {
            for incoming in self.incoming.iter_mut().filter(|incoming| incoming.ended.is_none()) {
                Streams::read(incoming, &self.links, &mut self.ready);
            }
        }
        for at in 0..self.links.len() {
            if self.links[at].lost.is_some() {
                continue;
            }
            let dead = Streams::flush(&mut self.links[at], &mut self.ready);
            self.links[at].dying |= dead.is_some();
            let port = self.links[at].port;
            let incoming = self.incoming.iter().find(|incoming| incoming.port == Some(port));
            // What it said is read to its end before it is given up.
            let ended = incoming.map_or(dead, |incoming| incoming.ended.clone());
            if let Some(error) = ended {
                self.lose(at, error);
            }
        }
        hand_out(&mut self.ready, only, sink)
    }
}

impl Drop for Streams {
    /// Waits a moment for the streams to take what was sent.
    fn drop(&mut self) {
        let until = Instant::now() + LINGER;
        loop {
            let mut owes = false;
            for link in self.links.iter_mut().filter(|link| link.lost.is_none() && !link.dying) {
                link.lost = Streams::flush(link, &mut self.ready);
                owes |= link.lost.is_none() && !link.queue.is_empty();
            }
            if !owes || std::thread::panicking() || Instant::now() > until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

struct Tcp;

impl Fixture for Tcp {
    type Btl = Streams;

    fn pair(&mut self) -> (Streams, Streams) {
        (Streams::new(), Streams::new())
    }

    fn process_end(&mut self) -> Option<Streams> {
        Some(Streams::new())
    }

    fn garbage(&mut self, from: &mut Streams, to: PeerId, variant: u32) -> bool {
        let bytes: &[u8] = match variant {
            0 => &[0xff; 64],
            1 => &[0, 0, 0x10, 1, 7],
            2 => &[0, 0, 0, 9, 7, 1, 2],
            3 => &[0, 0],
            _ => return false,
        };
        let link = &mut from.links[to.0 as usize];
        link.stream.write_all(bytes).expect("room in the stream");
        true
    }
}

gapless_btl_testkit::conformance!(tcp, Tcp);
