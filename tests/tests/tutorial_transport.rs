//! The transport of [the tutorial](../../docs/tutorial/4-own-transport.md), which shows it piece by piece: the last test
//! here compares the two.
#![forbid(unsafe_code)]

use gapless::{Config, World};
use gapless_btl::pool::{Buffer, HeapPool};
use gapless_btl::{
    Address, AmTag, Btl, Event, Limits, LinkError, PeerId, ReserveError, Sink, Slot, Token,
    hand_out,
};
use gapless_btl_testkit::conformance::Fixture;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What was sent to an end and has not been taken out yet.
#[derive(Default)]
struct Mailbox {
    letters: Mutex<VecDeque<Letter>>,
    /// Its end was dropped.
    closed: AtomicBool,
}

struct Letter {
    from: u64,
    tag: AmTag,
    body: Buffer,
}

/// All ends of this process, by their numbers.
static ENDS: Mutex<BTreeMap<u64, Arc<Mailbox>>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(0);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A peer: where its letters go, and the buffers for them.
struct Link {
    number: u64,
    mailbox: Arc<Mailbox>,
    pool: HeapPool,
    lost: Option<LinkError>,
}

/// One end.
struct Post {
    limits: Limits,
    number: u64,
    mailbox: Arc<Mailbox>,
    links: Vec<Link>,
    ready: VecDeque<Event>,
}

const MAGIC: [u8; 4] = *b"post";
const MESSAGE_BYTES: usize = 16 << 10;
const BUFFERS: usize = 32;

impl Post {
    fn new() -> Post {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mailbox = Arc::new(Mailbox::default());
        lock(&ENDS).insert(number, Arc::clone(&mailbox));
        let limits = Limits {
            name: "post",
            eager_bytes: 4 << 10,
            max_fragment_bytes: MESSAGE_BYTES,
            ordered: true,
            latency_ns: 500,
            bandwidth_mb_s: 5_000,
            death_notice_ms: 100,
        };
        Post { limits, number, mailbox, links: Vec::new(), ready: VecDeque::new() }
    }

    fn link(&self, peer: PeerId) -> Result<&Link, LinkError> {
        let link = self.links.get(peer.0 as usize);
        let link =
            link.ok_or_else(|| LinkError::Unreachable { reason: format!("{peer} is nobody") })?;
        link.lost.clone().map_or(Ok(link), Err)
    }

    /// Takes letters out of the mailbox, and looks who has left.
    fn collect(&mut self) {
        // Before the letters are looked at: whoever has left has sent all of them by then.
        let closed: Vec<bool> =
            self.links.iter().map(|link| link.mailbox.closed.load(Ordering::Acquire)).collect();
        let name = |from| self.links.iter().position(|link| link.number == from);
        let mut letters = lock(&self.mailbox.letters);
        // Letters of peers that are not connected to stay where they are.
        for letter in std::mem::take(&mut *letters) {
            match name(letter.from) {
                Some(at) => self.ready.push_back(Event::Arrived {
                    from: PeerId(u32::try_from(at).expect("connect counts in 32 bits")),
                    tag: letter.tag,
                    fragment: letter.body.into_fragment(),
                }),
                None => letters.push_back(letter),
            }
        }
        drop(letters);
        for (peer, (link, closed)) in (0..).zip(self.links.iter_mut().zip(closed)) {
            if closed && link.lost.is_none() {
                let error = LinkError::PeerGone { reason: "its end was dropped".to_owned() };
                link.lost = Some(error.clone());
                self.ready.push_back(Event::Lost { peer: PeerId(peer), error });
            }
        }
    }
}

impl Btl for Post {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> Address {
        let bytes = [&MAGIC[..], &self.number.to_be_bytes()].concat();
        Address::new(&bytes).expect("twelve bytes are few")
    }

    fn connect(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        let bad = || LinkError::BadAddress { what: format!("{:02x?}", peer.as_bytes()) };
        let number = peer.as_bytes().strip_prefix(&MAGIC).ok_or_else(bad)?;
        let number = u64::from_be_bytes(number.try_into().map_err(|_| bad())?);
        let unreachable = |reason: &str| LinkError::Unreachable { reason: reason.to_owned() };
        let known = self.links.iter().position(|link| link.number == number);
        let at = known.unwrap_or(self.links.len());
        let id = PeerId(u32::try_from(at).map_err(|_| unreachable("there are 2³² peers"))?);
        if known.is_none() {
            let mailbox = lock(&ENDS).get(&number).cloned();
            let mailbox = mailbox.ok_or_else(|| unreachable("nobody here has that number"))?;
            let pool = HeapPool::new(BUFFERS, MESSAGE_BYTES);
            self.links.push(Link { number, mailbox, pool, lost: None });
        }
        Ok(id)
    }

    fn reserve(&mut self, to: PeerId, len: usize) -> Result<Slot, ReserveError> {
        self.link(to)?.pool.slot(to, len)
    }

    fn send(&mut self, slot: Slot, tag: AmTag, done: Token) {
        let to = slot.peer();
        let result = self.link(to).map(|link| {
            let body = link.pool.open(slot).expect("a slot of this end");
            lock(&link.mailbox.letters).push_back(Letter { from: self.number, tag, body });
        });
        if done != Token::NONE {
            self.ready.push_back(Event::Sent { token: done, result });
        }
    }

    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        self.collect();
        hand_out(&mut self.ready, only, sink)
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.mailbox.closed.store(true, Ordering::Release);
        lock(&ENDS).remove(&self.number);
    }
}

struct Ends;

impl Fixture for Ends {
    type Btl = Post;

    fn pair(&mut self) -> (Post, Post) {
        (Post::new(), Post::new())
    }
}

gapless_btl_testkit::conformance!(post, Ends);

#[test]
fn four_threads_exchange_numbers_over_it() {
    let transports = |_| vec![Box::new(Post::new()) as Box<dyn Btl>];
    gapless_tests::job(4, &Config::default(), transports, |world: &World| {
        let comm = world.comm();
        let (right, left) = ((comm.rank() + 1) % 4, (comm.rank() + 3) % 4);
        let out = vec![comm.rank(); 100_000];
        let mut into = vec![u32::MAX; 100_000];
        comm.sendrecv(&out, (right, 0), &mut into, (left, 0)).unwrap();
        assert!(into.iter().all(|&from| from == left));
    });
}

#[test]
fn the_tutorial_shows_this_file() {
    let chapter = include_str!("../../docs/tutorial/4-own-transport.md");
    let here = include_str!("tutorial_transport.rs");
    let mut shown = 0;
    for block in chapter.split("```rust\n").skip(1) {
        let code = block.split("```").next().unwrap_or_default();
        assert!(here.contains(code), "this is in the chapter, but not in the file:\n{code}");
        shown += 1;
    }
    assert!(shown >= 5, "the chapter shows {shown} pieces");
}
