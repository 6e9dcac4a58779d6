//! What a peer says to a message layer: messages made up, changed and out of turn, while the layer sends,
//! receives and cancels. Then the peer dies, and every request must end.

use crate::input::Input;
use gapless_bml::{Bml, Handler, Rank, RankEvent};
use gapless_btl::{Allocation, RemoteKey, Token};
use gapless_dtype::{Datatype, Layout, Primitive};
use gapless_engine::{HostEngine, Typed};
use gapless_mem::Region;
use gapless_pml::{AM_TAG, Config, Pml, Protocol, RequestId, Source, TagSel};
use std::sync::{Arc, OnceLock};

/// Most steps of one run.
const STEPS: usize = 64;
/// Longest message of the rogue's, in bytes.
const SAID_MAX: usize = 2048;
/// Messages of the honest end that are kept for quoting.
const HEARD_MAX: usize = 16;
/// Turns in which everything ends once the peer is gone: each request takes a few.
const TURNS: usize = 10_000;

/// Keeps what arrives.
#[derive(Default)]
struct Inbox(Vec<Vec<u8>>);

impl Handler for Inbox {
    fn handle(&mut self, _: &mut Bml, event: RankEvent) {
        if let RankEvent::Arrived { fragment, .. } = event
            && let Ok(bytes) = fragment.to_vec()
        {
            self.0.push(bytes);
        }
    }
}

/// An honest endpoint of rank 0, and a bare transport behind rank 1.
struct Pair {
    pml: Pml,
    rogue: Bml,
    inbox: Inbox,
    requests: Vec<RequestId>,
    /// What requests work on: dropped last.
    buffers: Vec<Vec<u8>>,
    /// The same, in memory that the rogue may be granted.
    grantable: Vec<Allocation>,
    /// Memory of the rogue's, which it may grant.
    own: Allocation,
    key: RemoteKey,
}

/// Bytes of a buffer.
const BUFFER: usize = 3200 + 144 * 32;
/// An offer, whose name is at byte 40.
const OFFER: u8 = 2;
/// A message that grants a buffer, and where its key is.
const GRANT: u8 = 15;
const GRANT_KEY: usize = 72;

/// Layouts to send and receive by: dense, and with gaps.
fn layouts() -> &'static [Layout; 2] {
    static LAYOUTS: OnceLock<[Layout; 2]> = OnceLock::new();
    LAYOUTS.get_or_init(|| {
        let byte = Datatype::from(Primitive::UnsignedChar);
        let gaps = Datatype::vector(16, 4, 9, &byte).expect("a plain vector");
        [byte, gaps].map(|datatype| datatype.commit().expect("it commits"))
    })
}

impl Pair {
    fn new() -> Pair {
        let [honest, mut rogue] = crate::ends::two();
        let mut config = Config::default();
        config.tuning.eager_bytes_max = 512;
        config.tuning.eager_bytes_sure = 64;
        // What can be granted is, however short.
        config.tuning.map_ns = 0.0;
        let pml = Pml::new(honest, vec![Arc::new(HostEngine)], config);
        let (requests, buffers, grantable) = (Vec::new(), Vec::new(), Vec::new());
        let own = rogue.allocate(BUFFER as u64).expect("a rail maps").expect("memory");
        let (peer, mapped) = rogue.mapped(Rank(0)).expect("a rail maps");
        let key = mapped.key(peer, own.lease()).expect("its own memory");
        let inbox = Inbox::default();
        Pair { pml, rogue, inbox, requests, buffers, grantable, own, key }
    }

    fn turn(&mut self) {
        for _ in 0..3 {
            self.pml.progress();
            self.rogue.poll(&mut self.inbox);
        }
        let heard = self.inbox.0.len();
        if heard > HEARD_MAX {
            self.inbox.0.drain(..heard - HEARD_MAX);
        }
    }

    fn say(&mut self, message: &[u8]) {
        if let Ok(mut slot) = self.rogue.reserve(Rank(0), message.len()) {
            slot.write(0, message).expect("as long as was asked for");
            self.rogue.send(slot, AM_TAG, Token::NONE);
        }
        self.turn();
    }

    /// Posts a receive, or sends.
    fn post(&mut self, send: bool, input: &mut Input<'_>) {
        let which = input.byte();
        let layout = &layouts()[usize::from(which & 1)];
        let count = u64::from(input.short() % 3000) / if layout.is_contiguous() { 1 } else { 100 };
        let tag = i32::from(input.byte() & 3);
        // Memory of the host is granted only to who asks for it.
        let grants = !send && which & 2 != 0;
        self.pml.config_mut().force = grants.then_some(Protocol::MappedPut);
        let region = if which & 2 == 0 {
            let mut buffer = vec![0x5A; BUFFER];
            let region = Region::of_mut(&mut buffer);
            // The buffer's bytes do not move with it.
            self.buffers.push(buffer);
            region
        } else {
            let allocated = self.pml.bml_mut().allocate(BUFFER as u64);
            let Some(Ok(memory)) = allocated else { return };
            let region = memory.region();
            self.grantable.push(memory);
            region
        };
        let Ok(typed) = Typed::new(region, 0, layout, count) else { return };
        let world = self.pml.world();
        let started = match send {
            // SAFETY: the buffer lives until the endpoint is gone, and nobody else touches it.
            true => unsafe { self.pml.isend(&world, &typed, 1, tag) },
            false => {
                let tag = if tag == 3 { TagSel::Any } else { TagSel::Is(tag) };
                // SAFETY: as above.
                unsafe { self.pml.irecv(&world, &typed, Source::Any, tag) }
            }
        };
        self.requests.extend(started.ok());
    }

    fn cancel(&mut self, which: u8) {
        if let Some(&id) = self.requests.get(usize::from(which) % self.requests.len().max(1)) {
            let _ = self.pml.cancel_recv(id);
        }
    }

    /// The peer is gone: everything ends.
    fn finish(self) {
        let Pair { mut pml, rogue, requests, buffers, grantable, own, .. } = self;
        drop(rogue);
        let mut left = requests;
        for _ in 0..TURNS {
            pml.progress();
            left.retain(|&id| matches!(pml.test(id), Ok(None)));
            if left.is_empty() {
                break;
            }
            // Receives from anybody do not mind that one peer is gone.
            for &id in &left {
                let _ = pml.cancel_recv(id);
            }
        }
        assert!(left.is_empty(), "{} requests outlive their peer", left.len());
        drop(pml);
        drop((buffers, grantable, own));
    }
}

/// What the honest end says of its own accord, by which versions and kinds are known.
fn honest() -> &'static Vec<Vec<u8>> {
    static HONEST: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    HONEST.get_or_init(|| {
        let mut said = Vec::new();
        let mut pair = Pair::new();
        for post in [[0, 40, 0, 1], [0, 0, 8, 2], [1, 200, 7, 0]] {
            pair.post(true, &mut Input(&post));
            pair.turn();
            said.append(&mut pair.inbox.0);
        }
        pair.finish();
        // Answers to its own offers: to ordinary memory, and to what can be granted.
        let offers = said.clone();
        for which in [0, 2, 3] {
            let mut pair = Pair::new();
            for offer in &offers {
                pair.post(false, &mut Input(&[which, 0, 8, 3]));
                pair.say(offer);
                said.append(&mut pair.inbox.0);
            }
            pair.finish();
        }
        said
    })
}

pub(crate) fn run(bytes: &[u8]) {
    let version = honest().first().and_then(|message| message.get(1)).copied().unwrap_or(0);
    let mut input = Input(bytes);
    let mut pair = Pair::new();
    let mut last: Vec<u8> = Vec::new();
    for _ in 0..STEPS {
        if input.is_over() {
            break;
        }
        let what = input.byte();
        match what % 8 {
            0 | 1 => {
                let len = usize::from(input.short()) % SAID_MAX;
                last = input.take(len).to_vec();
                if let Some(byte) = last.get_mut(1).filter(|_| what & 8 == 0) {
                    *byte = version;
                }
                pair.say(&last);
            }
            // What the honest end says itself, with bytes changed.
            2 => {
                let known = honest();
                last = known[usize::from(input.byte()) % known.len()].clone();
                change(&mut last, &mut input);
                pair.say(&last);
            }
            // The last one again, with words of what was heard in it.
            3 => {
                let heard = pair.inbox.0.last().cloned().unwrap_or_default();
                let (from, to) = (usize::from(input.byte()), usize::from(input.byte()));
                if let Some(word) = heard.get(from..from + 8)
                    && let Some(place) = last.get_mut(to..to + 8)
                {
                    place.copy_from_slice(word);
                }
                change(&mut last, &mut input);
                pair.say(&last);
            }
            4 => pair.post(false, &mut input),
            5 => pair.post(true, &mut input),
            6 => pair.cancel(input.byte()),
            // Memory is granted to the last offer that was heard.
            7 if what & 8 != 0 => {
                let known = honest().iter().filter(|message| message[0] == GRANT);
                let known: Vec<_> = known.collect();
                last = known[usize::from(input.byte()) % known.len()].clone();
                let offer = pair.inbox.0.iter().rfind(|message| message[0] == OFFER);
                if let Some(serial) = offer.and_then(|offer| offer.get(40..48)) {
                    last[8..16].copy_from_slice(serial);
                }
                let key = pair.key.as_bytes();
                last[GRANT_KEY..GRANT_KEY + key.len()].copy_from_slice(key);
                change(&mut last, &mut input);
                pair.say(&last);
            }
            _ => pair.turn(),
        }
    }
    pair.finish();
}

/// Up to seven bytes, or a word, elsewhere.
fn change(message: &mut [u8], input: &mut Input<'_>) {
    let how = input.byte();
    for _ in 0..how & 7 {
        let (at, value) = (usize::from(input.byte()), input.byte());
        if let Some(byte) = message.get_mut(at) {
            *byte = value;
        }
    }
    if how & 8 != 0 {
        let (at, word) = (usize::from(input.byte()), input.number().to_le_bytes());
        if let Some(place) = message.get_mut(at..at + 8) {
            place.copy_from_slice(&word);
        }
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let honest = honest();
    let said = honest.iter().filter_map(|message| {
        let len = u16::try_from(message.len()).ok().filter(|&len| usize::from(len) < SAID_MAX)?;
        // A receive, the message, an answer's words, the end.
        let [low, high] = len.to_le_bytes();
        Some([&[4, 0, 0, 8, 3, 0, low, high], &message[..], &[7, 5, 0, 0, 8, 1, 6, 0]].concat())
    });
    let quoted = (0..honest.len()).map(|which| {
        let which = which.to_le_bytes()[0];
        vec![4, 0, 0, 8, 3, 2, which, 0, 5, 1, 0, 2, 1, 3, 24, 8, 0, 2, which, 1, 4, 1, 7, 6, 0]
    });
    // Sent, then granted to, whole or with gaps; with the layout on its own; with what is too long.
    let granted = (0..4).map(|which| vec![5, 0, 0, 8, 1, 15, which, 0, 7, 6, 0]);
    let fetched = [(24, 17), (40, 255), (64, 200), (2, 3)]
        .map(|(at, value)| vec![5, 1, 0, 8, 1, 15, 1, 1, at, value, 3, 8, 16, 0, 7, 6, 0]);
    said.chain(quoted).chain(granted).chain(fetched).collect()
}
