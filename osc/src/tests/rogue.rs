//! Peers that say anything at all, on the whole way in: numbers of messages, credit, answers, and every window of the
//! process. Whatever they say, nothing outside the windows changes, what is kept stays bounded, and a peer that keeps to
//! the rules is served. `fuzz/src/windows.rs` does the same by the million.

use super::{
    LOCK, LOCK_WORDS, Memory, Nobody, Random, WORDS, addition, atomics, connected, flat, header,
    memory,
};
use crate::core::{AM_TAG, Offered};
use crate::header::Patience;
use crate::landing::Landing;
use crate::peer::{ANSWERS, CREDIT, SLACK};
use crate::wire::{HEADER, Head, READ_MAX, WindowMessage};
use crate::{Exposure, Fault, Header, Lock, Osc, WindowHandle};
use gapless_bml::{Bml, LinkError, PeerState, Rank, ReserveError, Token};
use gapless_btl::loopback::Config;
use gapless_dtype::Primitive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The process whose windows these are, one that says anything, and one that keeps to the rules.
const TARGET: Rank = Rank(0);
const ROGUE: Rank = Rank(1);
const HONEST: usize = 2;
/// What lies around the windows.
const AROUND: u64 = 77;
/// Words of the windows: of the ordinary one, and of two pieces of the dynamic one.
const PLAIN: std::ops::Range<usize> = 8..24;
const PIECES: [std::ops::Range<usize>; 2] = [26..30, 32..39];
/// Messages that one peer says; several peers in turn.
const MESSAGES: u64 = 120;
const PEERS: u64 = 150;
/// Turns in which a peer that keeps to the rules is served.
const TURNS: usize = 1000;

struct Scene {
    memory: Memory,
    ends: Vec<Bml>,
    osc: Osc,
    honest: Osc,
    /// Of the rogue: an ordinary window, a dynamic one, and one that it is not in.
    handles: [WindowHandle; 3],
    /// Questions to the rogue.
    asked: [u64; 3],
    sequence: u32,
    flat: Vec<u8>,
}

impl Scene {
    fn new(flat: &[u8]) -> Scene {
        let mut ends = connected(3, &Config::default());
        let osc = Osc::register(&mut ends[0]).unwrap();
        let honest = Osc::register(&mut ends[HONEST]).unwrap();
        let memory = memory(WORDS, AROUND);
        let lock = LOCK..LOCK + LOCK_WORDS + 1;
        memory[lock.clone()].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let window = |words| atomics(&memory, words);
        let plain = Exposure::new(window(PLAIN), header(&memory, lock, 3));
        let plain = osc.host(plain, &[0, 1, 2], 0);
        let dynamic = osc.host(Exposure::new(window(PLAIN), lock_of_three()), &[2, 0, 1], 1);
        let others = osc.host(Exposure::new(window(PLAIN), lock_of_three()), &[0, 2], 0);
        let mut core = osc.core();
        let hosted = core.windows.get_mut(&dynamic.id()).unwrap();
        hosted.make_dynamic();
        for piece in PIECES {
            assert!(hosted.attach(window(piece)).is_some());
        }
        // One that waits for bytes, one that waits for more questions, and one for two answers.
        let asked = [(0, 64), (1 << 40, 32), (0, 0)]
            .map(|(base, bytes)| core.questions.ask(1, base, Landing::kept(bytes)));
        core.questions.expect(asked[0], 1, false);
        core.questions.expect(asked[1], 2, true);
        core.questions.expect(asked[2], 2, false);
        // So much it may have done.
        core.post(&mut ends[0], 1, Head::new(WindowMessage::Flush, 0, 0), &[]).unwrap();
        drop(core);
        let handles = [plain, dynamic, others];
        let flat = flat.to_vec();
        Scene { memory, ends, osc, honest, handles, asked, sequence: 0, flat }
    }

    fn is_lost(&self) -> bool {
        matches!(self.ends[0].state(ROGUE), PeerState::Lost(_))
    }

    fn turn(&mut self) {
        for bml in &mut self.ends {
            bml.poll(&mut Nobody);
        }
        self.osc.advance(&mut self.ends[0]);
        self.honest.advance(&mut self.ends[HONEST]);
    }

    fn say(&mut self, message: &[u8]) {
        for _ in 0..TURNS {
            match self.ends[1].reserve(TARGET, message.len()) {
                Ok(mut slot) => {
                    slot.write(0, message).unwrap();
                    self.ends[1].send(slot, AM_TAG, Token::NONE);
                    return self.turn();
                }
                Err(ReserveError::Full) => self.turn(),
                Err(_) => return,
            }
        }
    }

    /// A head that is nearly right: of any kind, to any window, from any rank. `careful`: nothing that ends its link.
    fn head(&mut self, random: &mut Random, careful: bool) -> Head {
        let narrow = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap();
        let small = |random: &mut Random, bound| u8::try_from(random.below(bound)).unwrap();
        let kind = match careful {
            false => WindowMessage::ALL[usize::try_from(random.below(13)).unwrap()],
            true => HARMLESS[usize::try_from(random.below(HARMLESS.len() as u64)).unwrap()],
        };
        let which = usize::try_from(random.below(3)).unwrap();
        let (window, rank) = match random.below(12) {
            0..3 if careful => (u32::MAX, 9),
            0 => (narrow(random.number()), 1),
            1 => (self.handles[which].id(), narrow(random.number())),
            2 => (self.handles[which].id(), narrow(random.below(4))),
            _ => (self.handles[which % 2].id(), 1 + u32::from(which % 2 == 1)),
        };
        let address = self.memory.as_ptr().expose_provenance() as u64;
        let origin = match (random.below(4), window == self.handles[1].id()) {
            (0, _) => random.number(),
            (1, false) | (2.., true) => address + random.below(8 * LOCK as u64),
            _ => random.below(130),
        };
        Head {
            op: small(random, 16),
            primitive: small(random, 42),
            flag: small(random, 4),
            token: match random.below(4) {
                0 => random.number(),
                which => self.asked[usize::try_from(which - 1).unwrap()],
            },
            origin,
            layout: narrow(random.below(3)),
            value: narrow(random.number()),
            count: if kind.is_request() { random.number() } else { random.below(200) },
            start: random.number(),
            length: random.number(),
            sequence: self.sequence,
            ..Head::new(kind, window, rank)
        }
    }

    /// What the rogue says next.
    fn message(&mut self, random: &mut Random, careful: bool) -> Vec<u8> {
        let mut head = self.head(random, careful);
        if head.kind.is_request() && random.below(2) == 0 {
            // As it lies there, all of it.
            let length = 8 * (1 + random.below(4));
            let origin = head.origin & !7;
            head = Head { origin, layout: 0, count: length, start: 0, length, ..head };
        }
        let mut bytes = vec![3; usize::try_from(random.below(70)).unwrap()];
        if random.below(2) == 0 && head.length < 300 {
            let twice = if head.kind == WindowMessage::Compare { 2 } else { 1 };
            bytes.resize(twice * usize::try_from(head.length).unwrap(), 5);
        }
        match head.kind {
            WindowMessage::Layout if random.below(4) > 0 => {
                (head.start, head.count) = (0, self.flat.len() as u64);
                bytes.clone_from(&self.flat);
                let at = usize::try_from(random.below(bytes.len() as u64)).unwrap();
                bytes[at] ^= u8::try_from(random.below(2)).unwrap() << random.below(8);
            }
            WindowMessage::Layout | WindowMessage::Forget if random.below(4) > 0 => {
                head.layout %= 3
            }
            WindowMessage::Accumulate | WindowMessage::Compare => {
                head.primitive = Primitive::Int64 as u8
            }
            _ => {}
        }
        match random.below(40) + if careful { 2 } else { 0 } {
            0 => head.sequence = head.sequence.wrapping_add(u32::MAX),
            1 => head.sequence = head.sequence.wrapping_add(1 << random.below(32)),
            _ => self.sequence = self.sequence.wrapping_add(1),
        }
        let mut message = [&head.write()[..], &bytes].concat();
        match random.below(60) + if careful { 3 } else { 0 } {
            0 => message.truncate(usize::try_from(random.below(HEADER as u64)).unwrap()),
            1 => message[0] = u8::try_from(random.below(256)).unwrap(),
            2 => message[usize::try_from(random.below(HEADER as u64)).unwrap()] ^= 0x80,
            _ => {}
        }
        message
    }

    /// Nothing but windows has changed, and what is kept of the rogue is bounded.
    fn check(&self, said: &[u8]) {
        let inside = |at: &usize| {
            PLAIN.contains(at)
                || PIECES.iter().any(|piece| piece.contains(at))
                || (LOCK..=LOCK + LOCK_WORDS).contains(at)
        };
        for at in (0..WORDS).filter(|at| !inside(at)) {
            assert_eq!(self.memory[at].load(Ordering::Relaxed), AROUND, "word {at}: {said:?}");
        }
        let mut core = self.osc.core();
        let peer = core.peer(1);
        assert!(peer.held.bytes() as u64 <= CREDIT + SLACK, "{said:?}");
        assert!(peer.outbox.bytes() as u64 <= ANSWERS as u64 + READ_MAX + 4096, "{said:?}");
    }

    /// What the peer that keeps to the rules is told: whether all that it has sent is done, or a lock is its own.
    fn answer(&mut self, head: Head) -> Option<Fault> {
        let token = self.honest.core().questions.ask(TARGET.0, 0, Landing::kept(0));
        self.honest.core().questions.expect(token, 1, false);
        self.honest.post(&mut self.ends[HONEST], TARGET.0, Head { token, ..head }).unwrap();
        for _ in 0..TURNS {
            self.turn();
            if let Some(answer) = self.honest.core().answered(token) {
                return answer.unwrap().fault;
            }
        }
        panic!("{head:?} is not answered");
    }

    /// Such a peer adds to a number, and is told that this is done.
    fn serves(&mut self) {
        let add = addition(Primitive::Int64, self.handles[0].id(), 2);
        let memory = Arc::clone(&self.memory);
        let number = || memory[PLAIN.start].load(Ordering::Relaxed);
        let before = number();
        let offered =
            self.honest.offer(&mut self.ends[HONEST], 0, (add, &5u64.to_ne_bytes()), false);
        assert!(matches!(offered, Offered::Sent));
        assert_eq!(self.answer(Head { kind: WindowMessage::Flush, ..add }), None);
        assert_eq!(number(), before.wrapping_add(5));
    }
}

/// What a peer may say in any way: nothing of this ends its link.
const HARMLESS: [WindowMessage; 6] = [
    WindowMessage::Put,
    WindowMessage::Get,
    WindowMessage::Accumulate,
    WindowMessage::Compare,
    WindowMessage::Flush,
    WindowMessage::Complete,
];

fn lock_of_three() -> Header {
    header(&memory(WORDS, 0), 0..WORDS, 3)
}

fn seed() -> u64 {
    // Of 0 these numbers make nothing else.
    gapless_testkit::seed(11).max(1)
}

#[test]
fn whatever_a_peer_says_others_are_served() {
    let mut random = Random(seed());
    let flat = flat();
    let (mut given_up, mut stayed, mut changed) = (0, 0, [0; 2]);
    for _ in 0..PEERS {
        let mut scene = Scene::new(&flat);
        // Some say nothing that ends their links, and get further.
        let careful = random.below(2) == 0;
        for _ in 0..MESSAGES {
            let message = scene.message(&mut random, careful);
            scene.say(&message);
            scene.check(&message);
            if scene.is_lost() {
                break;
            }
        }
        let is_changed = |range: &std::ops::Range<usize>| {
            scene.memory[range.clone()].iter().any(|word| word.load(Ordering::Relaxed) != AROUND)
        };
        changed[0] += usize::from(is_changed(&PLAIN));
        changed[1] += usize::from(PIECES.iter().any(is_changed));
        scene.serves();
        match scene.ends[0].state(ROGUE) {
            PeerState::Lost(LinkError::Corrupt { .. }) if !careful => given_up += 1,
            PeerState::Up => {
                stayed += 1;
                let why = LinkError::Corrupt { what: "the test ends".to_owned() };
                scene.ends[0].give_up(ROGUE, why);
            }
            other => panic!("{other:?}"),
        }
        scene.turn();
        // What was asked of it ends, too.
        for token in scene.asked {
            assert!(scene.osc.core().questions.is_answered(token));
        }
        scene.serves();
        // A lock that nobody has is given, and one that a lost rank has is refused.
        let lock = Head { flag: 1, ..Head::new(WindowMessage::Lock, scene.handles[0].id(), 2) };
        assert!(matches!(scene.answer(lock), None | Some(Fault::Holder(1))));
    }
    println!("{given_up} given up, {stayed} not; windows that were changed: {changed:?}");
    assert!(given_up > 20 && stayed > 20 && changed.iter().all(|count| *count > 5));
}

/// Words of a lock that hold anything: each step ends, and says who holds it only if such a rank exists.
#[test]
fn a_lock_of_any_words() {
    let mut random = Random(seed());
    let memory = memory(WORDS, 0);
    let header = header(&memory, LOCK..LOCK + LOCK_WORDS + 1, 3);
    let mut patience = Patience::default();
    for _ in 0..20_000 {
        for _ in 0..random.below(4) {
            let at = match random.below(3) {
                0 => 0,
                1 => 520 + usize::try_from(random.below(3)).unwrap(),
                _ => usize::try_from(random.below(LOCK_WORDS as u64)).unwrap(),
            };
            let states = [0, 1 << 24, 2 << 24, 3 << 24];
            let state = states[usize::try_from(random.below(4)).unwrap()];
            let word = if at == 0 { state | random.below(6) } else { random.below(5) };
            let word = if random.below(4) == 0 { random.number() } else { word };
            memory[LOCK + at].store(word, Ordering::Relaxed);
        }
        let rank = u32::try_from(random.below(3)).unwrap();
        let kind = if random.below(2) == 0 { Lock::Shared } else { Lock::Exclusive };
        let lost = u32::try_from(random.below(5)).unwrap();
        if header.try_lock(rank, kind, random.below(2) == 0, |it| it == lost) {
            header.unlock(rank, kind);
        }
        header.look(rank, &mut patience);
        if random.below(4) == 0 {
            header.cancel(rank);
        }
        if let Some(holder) = header.lost_holder(|it| it == lost || it > 2) {
            assert!(holder == lost || (3..1 << 24).contains(&holder));
        }
    }
}
