//! Messages that both ends copy: every pair of layouts, a sender that does not help, engines that fail, peers that die
//! at every stage, and peers that write to the shared word, or say, what they may not.

mod common;

use common::rogue::{Inbox, VERSION, serial_of, short, word};
use common::{Buffer, Home, Job, bytes, link, strided};
use gapless_bml::{Bml, Mapping, Rank};
use gapless_btl::loopback::{Hub, Loopback};
use gapless_btl::{Allocation, Btl, RemoteKey, Token};
use gapless_dtype::testkit::Rng;
use gapless_dtype::{Datatype, Layout, Primitive};
use gapless_engine::{Engine, EngineError, HostEngine, Typed};
use gapless_mem::{Completion, DeviceError, Region, exchange_word, load_word};
use gapless_pml::{AM_TAG, Config, Pml, PmlError, Protocol, RequestId, Source, TagSel};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const SIZE: u64 = 600_000;
/// On the wire.
const HELP: u8 = 21;

/// Each call copies little, so that both have their turns.
fn config() -> Config {
    let mut config = Config { force: Some(Protocol::Mapped), help: true, ..Config::default() };
    config.tuning.single_copy_batch_bytes = 40_000;
    config
}

fn job() -> Job {
    Job::with(2, config(), link())
}

/// `size` bytes in blocks of 8 in irregular places: a layout that is long when it is flattened.
fn list(size: u64, seed: u64) -> Layout {
    let mut rng = Rng::new(seed);
    let gap = |rng: &mut Rng| i64::try_from(rng.below(3)).unwrap();
    let at: Vec<i64> =
        (0..i64::try_from(size / 8).unwrap()).map(|i| 11 * i + gap(&mut rng)).collect();
    let byte: Datatype = Primitive::UnsignedChar.into();
    Datatype::hindexed_block(8, &at, &byte).unwrap().commit().unwrap()
}

fn copies(job: &mut Job, rank: u32) -> u64 {
    job.pml(rank).counters().of(Protocol::Mapped).copies
}

/// Whether the sender copied anything of a message from rank 0 to rank 1.
fn carry(job: &mut Job, from: &Buffer, to: &Buffer, what: &str) -> bool {
    let before = copies(job, 0);
    let send = job.isend(0, from, 1, 0);
    let recv = job.irecv(1, to, Source::Rank(0), TagSel::Is(0));
    let status = job.finish(1, recv).unwrap();
    assert_eq!(status.protocol, Protocol::Mapped, "{what}");
    assert_eq!(job.finish(0, send).unwrap().protocol, Protocol::Mapped, "{what}");
    to.assert_received(&from.packed(), what);
    job.settle();
    assert!(!job.pml(0).is_busy() && !job.pml(1).is_busy(), "{what}");
    copies(job, 0) > before
}

#[test]
fn both_ends_copy_whatever_the_layouts() {
    let shape = |which| match which {
        0 => bytes(SIZE),
        1 => strided(SIZE / 40, 40, 90),
        _ => list(SIZE, 1),
    };
    for shapes in 0..9 {
        let (ours, theirs) = (shape(shapes % 3), shape(shapes / 3));
        let mut job = job();
        for round in 0..3 {
            let home = job.mappable(0, &ours, 1);
            let from = Buffer::source_in(&ours, 1, round, home);
            let home = job.mappable(1, &theirs, 1);
            let to = Buffer::target_in(&theirs, 1, home);
            let what = format!("shapes {shapes}, round {round}");
            // A long layout is not sent along; one that the sender has need not be.
            let known = shapes / 3 != 2 || shapes % 3 == 2;
            assert_eq!(carry(&mut job, &from, &to, &what), known, "{what}");
        }
    }
}

#[test]
fn a_long_layout_that_is_almost_the_senders_is_not_taken_for_it() {
    let (ours, theirs) = (list(SIZE, 1), list(SIZE, 2));
    assert_eq!(ours.flatten().len(), theirs.flatten().len());
    assert!(ours.flatten().len() > 1024);
    let mut job = job();
    for _ in 0..2 {
        let home = job.mappable(0, &ours, 1);
        let from = Buffer::source_in(&ours, 1, 3, home);
        let home = job.mappable(1, &theirs, 1);
        let to = Buffer::target_in(&theirs, 1, home);
        assert!(!carry(&mut job, &from, &to, "another list"));
    }
}

#[test]
fn what_is_short_or_transposed_or_ordinary_is_copied_by_the_receiver() {
    let side = 300;
    let double: Datatype = Primitive::Double.into();
    let column = Datatype::vector(side, 1, 300, &double).unwrap();
    let narrow = Datatype::resized(0, 8, &column).unwrap();
    let transposed = Datatype::contiguous(side, &narrow).unwrap().commit().unwrap();
    let mut job = job();
    for (layout, mappable) in [(bytes(60_000), true), (transposed, true), (bytes(SIZE), false)] {
        let home = job.mappable(0, &layout, 1);
        let from = Buffer::source_in(&layout, 1, 3, home);
        let home = if mappable { job.mappable(1, &layout, 1) } else { Home::Heap };
        let to = Buffer::target_in(&layout, 1, home);
        assert!(!carry(&mut job, &from, &to, "the receiver alone"));
    }
}

#[test]
fn a_sender_that_makes_no_progress_is_not_waited_for() {
    let mut job = job();
    let home = job.mappable(0, &bytes(SIZE), 1);
    let from = Buffer::source_in(&bytes(SIZE), 1, 3, home);
    let home = job.mappable(1, &bytes(SIZE), 1);
    let to = Buffer::target_in(&bytes(SIZE), 1, home);
    let send = job.isend(0, &from, 1, 0);
    let recv = job.irecv(1, &to, Source::Any, TagSel::Any);
    let done = (0..1000).any(|_| job.pml(1).test(recv).unwrap().is_some());
    assert!(done, "the receiver waits");
    to.assert_received(&from.packed(), "alone");
    job.finish(0, send).unwrap();
    assert_eq!(copies(&mut job, 0), 0);
    job.settle();
}

#[test]
fn a_short_receive_is_truncated_and_many_messages_at_once_arrive() {
    let mut job = job();
    let room = usize::try_from(SIZE - 700).unwrap();
    let shapes = [bytes(SIZE - 700), strided(room as u64, 1, 2)];
    for shape in shapes {
        let home = job.mappable(0, &bytes(SIZE), 1);
        let from = Buffer::source_in(&bytes(SIZE), 1, 1, home);
        let home = job.mappable(1, &shape, 1);
        let to = Buffer::target_in(&shape, 1, home);
        let send = job.isend(0, &from, 1, 0);
        let recv = job.irecv(1, &to, Source::Rank(0), TagSel::Any);
        let truncated = PmlError::Truncated { sent: SIZE, room: room as u64 };
        assert_eq!(job.finish(1, recv), Err(truncated));
        assert!(job.finish(0, send).is_ok());
        to.assert_received(&from.packed()[..room], "truncated");
    }
    let mut rng = Rng::new(5);
    let mut messages = Vec::new();
    for at in 0..12u32 {
        let (rank, size) = (at % 2, 50_000 + rng.below(SIZE));
        let home = job.mappable(rank, &bytes(size), 1);
        let from = Buffer::source_in(&bytes(size), 1, u64::from(at), home);
        let home = job.mappable(1 - rank, &bytes(size), 1);
        let to = Buffer::target_in(&bytes(size), 1, home);
        let tag = i32::try_from(at).unwrap();
        let send = job.isend(rank, &from, 1 - rank, tag);
        let recv = job.irecv(1 - rank, &to, Source::Any, TagSel::Is(tag));
        messages.push((rank, send, recv, from, to));
    }
    for (rank, send, recv, from, to) in messages {
        job.finish(rank, send).unwrap();
        job.finish(1 - rank, recv).unwrap();
        to.assert_received(&from.packed(), "one of many");
    }
    assert!(copies(&mut job, 0) > 0 && copies(&mut job, 1) > 0);
}

/// Waits as a program would that has a processor of its own.
fn wait(pml: &mut Pml, id: RequestId) -> gapless_pml::Outcome {
    let start = std::time::Instant::now();
    loop {
        if let Some(outcome) = pml.test(id).transpose() {
            return outcome;
        }
        assert!(start.elapsed().as_secs() < 60, "a request does not end");
        std::thread::yield_now();
    }
}

#[test]
fn both_ends_copy_at_the_same_time_on_threads_of_their_own() {
    let mut helped = 0;
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut job = job();
        let batch = 40_000 + rng.below(400_000);
        let shapes: Vec<Layout> = (0..4)
            .map(|_| match rng.below(3) {
                0 => bytes(SIZE),
                1 => strided(SIZE / 40, 40, 90),
                _ => strided(SIZE / 6000, 6000, 6100),
            })
            .collect();
        let mut sides = [Vec::new(), Vec::new()];
        for (at, shape) in shapes.iter().enumerate() {
            let home = job.mappable(0, shape, 1);
            sides[0].push(Buffer::source_in(shape, 1, seed + 100 * at as u64, home));
            let other = &shapes[(at + 1) % shapes.len()];
            let home = job.mappable(1, other, 1);
            sides[1].push(Buffer::target_in(other, 1, home));
        }
        let mut ends = [0, 1].map(|rank: usize| {
            let mut pml = job.ranks[rank].take().unwrap();
            pml.config_mut().tuning.single_copy_batch_bytes = batch;
            pml
        });
        let [sender, receiver] = &mut ends;
        let [sources, targets] = &sides;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let world = sender.world();
                for from in sources {
                    // SAFETY: the buffer is kept until the request has ended.
                    let id = unsafe { sender.isend(&world, &from.typed(), 1, 0) }.unwrap();
                    assert_eq!(wait(sender, id).unwrap().protocol, Protocol::Mapped);
                }
            });
            scope.spawn(move || {
                let world = receiver.world();
                for to in targets {
                    // SAFETY: as above.
                    let id = unsafe {
                        receiver.irecv(&world, &to.typed(), Source::Rank(0), TagSel::Any)
                    };
                    assert_eq!(wait(receiver, id.unwrap()).unwrap().protocol, Protocol::Mapped);
                }
            });
        });
        for (from, to) in sides[0].iter().zip(&sides[1]) {
            to.assert_received(&from.packed(), &format!("seed {seed}"));
        }
        helped += ends[0].counters().of(Protocol::Mapped).copies;
    }
    assert!(helped > 0, "no sender ever copied");
}

/// The host's engine, which fails from the transfer of this number on.
#[derive(Default)]
struct Failing(AtomicI64);

impl Engine for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }

    fn serves(&self, space: gapless_mem::Space) -> bool {
        HostEngine.serves(space)
    }

    unsafe fn pack(
        &self,
        src: &Typed,
        range: Range<u64>,
        dst: Region,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: the caller's guarantee.
        unsafe { HostEngine.pack(src, range, dst, after) }
    }

    unsafe fn unpack(
        &self,
        src: Region,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: the caller's guarantee.
        unsafe { HostEngine.unpack(src, dst, range, after) }
    }

    unsafe fn transfer(
        &self,
        src: &Typed,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        if self.0.fetch_sub(1, Ordering::Relaxed) <= 0 {
            return Err(DeviceError::Unsupported { what: "a test's transfer" }.into());
        }
        // SAFETY: the caller's guarantee.
        unsafe { HostEngine.transfer(src, dst, range, after) }
    }
}

#[test]
fn an_engine_that_fails_at_either_end_has_the_message_go_another_way() {
    for broken in [0, 1] {
        for after in 0..6 {
            let engines = [0, 1].map(|rank| {
                let pieces = if rank == broken { after } else { 1000 };
                Arc::new(Failing(AtomicI64::new(pieces)))
            });
            let mut job = Job::with_engines(
                2,
                config(),
                &mut |_, hub| Box::new(Loopback::with(hub, link())),
                &[],
            );
            for (rank, engine) in (0..).zip(&engines) {
                job.pml(rank).add_engine(Arc::clone(engine) as _);
            }
            let shape = strided(SIZE / 40, 40, 90);
            let home = job.mappable(0, &shape, 1);
            let from = Buffer::source_in(&shape, 1, 1, home);
            let home = job.mappable(1, &shape, 1);
            let to = Buffer::target_in(&shape, 1, home);
            let send = job.isend(0, &from, 1, 0);
            let recv = job.irecv(1, &to, Source::Rank(0), TagSel::Any);
            let received = job.finish(1, recv).unwrap();
            job.finish(0, send).unwrap();
            assert_ne!(received.protocol, Protocol::Mapped, "rank {broken} after {after}");
            to.assert_received(&from.packed(), "another way");
            job.settle();
            assert!(!job.pml(0).is_busy() && !job.pml(1).is_busy());
        }
    }
}

#[test]
fn a_peer_that_dies_at_any_stage() {
    for steps in 0..40 {
        for dead in [0u32, 1] {
            let what = format!("{dead} after {steps}");
            let mut job = job();
            let shape = strided(SIZE / 40, 40, 90);
            let home = job.mappable(0, &shape, 1);
            let from = Buffer::source_in(&shape, 1, 1, home);
            let home = job.mappable(1, &shape, 1);
            let to = Buffer::target_in(&shape, 1, home);
            let ids = [job.isend(0, &from, 1, 0), job.irecv(1, &to, Source::Rank(0), TagSel::Any)];
            for step in 0..steps {
                job.pml(step % 2).progress();
            }
            job.kill(dead);
            let alive = 1 - dead;
            match job.finish(alive, ids[alive as usize]) {
                Ok(_) if alive == 1 => to.assert_received(&from.packed(), &what),
                Ok(_) => {}
                Err(PmlError::PeerLost { rank, .. }) => assert_eq!(rank, dead, "{what}"),
                Err(error) => panic!("{what}: {error}"),
            }
            job.settle();
            assert!(!job.pml(alive).is_busy(), "{what}");
        }
    }
}

/// An honest endpoint, rank 0, and a bare transport behind rank 1, of one host.
struct Pair {
    pml: Pml,
    rogue: Bml,
    inbox: Inbox,
    /// The rogue's buffer.
    memory: Allocation,
}

impl Pair {
    fn new() -> Pair {
        let hub = Hub::new();
        let mut bmls = [Bml::new(Rank(0), 2), Bml::new(Rank(1), 2)];
        for bml in &mut bmls {
            bml.add(Box::new(Loopback::new(&hub)) as Box<dyn Btl>);
        }
        let addresses = bmls.each_ref().map(Bml::addresses);
        let [mut honest, mut rogue] = bmls;
        honest.connect(Rank(1), &addresses[1]).unwrap();
        rogue.connect(Rank(0), &addresses[0]).unwrap();
        let memory = rogue.allocate(SIZE).unwrap().unwrap();
        let pml = Pml::new(honest, vec![Arc::new(HostEngine)], config());
        Pair { pml, rogue, inbox: Inbox::default(), memory }
    }

    fn inject(&mut self, message: &[u8]) {
        if let Ok(mut slot) = self.rogue.reserve(Rank(0), message.len()) {
            slot.write(0, message).unwrap();
            self.rogue.send(slot, AM_TAG, Token::NONE);
        }
    }

    /// The rogue hears what has been said.
    fn heard(&mut self, kind: u8) -> Vec<u8> {
        for _ in 0..10 {
            self.rogue.poll(&mut self.inbox);
        }
        let at = self.inbox.0.iter().rposition(|message| message[0] == kind);
        self.inbox.0.swap_remove(at.unwrap_or_else(|| panic!("no {kind}: {:?}", self.inbox.0)))
    }

    fn key(&mut self, region: Region) -> RemoteKey {
        let (peer, mapped) = self.rogue.mapped(Rank(0)).unwrap();
        mapped.key(peer, region).unwrap()
    }

    fn map(&mut self, key: &[u8]) -> Mapping {
        let (peer, mapped) = self.rogue.mapped(Rank(0)).unwrap();
        mapped.map(peer, &RemoteKey::new(key).unwrap()).unwrap()
    }

    fn home(&mut self) -> Home {
        Home::Mapped(self.pml.bml_mut().allocate(SIZE + 100).unwrap().unwrap())
    }

    fn is_lost(&mut self, id: RequestId) -> bool {
        for _ in 0..10 {
            self.pml.progress();
        }
        match self.pml.test(id) {
            Ok(None) => false,
            Err(PmlError::PeerLost { rank: 1, .. }) => true,
            other => panic!("{other:?}"),
        }
    }
}

/// A receive that the rogue is asked to help with, after one step of the receiver; and the message.
fn asked(pair: &mut Pair, to: &Buffer) -> (RequestId, Vec<u8>) {
    let mut offer = common::rogue::offer(SIZE);
    let key = pair.key(pair.memory.region());
    offer[106] = u8::try_from(key.as_bytes().len()).unwrap();
    offer[108..120].fill(0);
    offer.extend(key.as_bytes());
    pair.inject(&offer);
    let world = pair.pml.world();
    // SAFETY: the buffer is kept until the request has ended or the endpoint is dropped.
    let id = unsafe { pair.pml.irecv(&world, &to.typed(), Source::Rank(1), TagSel::Any) }.unwrap();
    pair.pml.progress();
    (id, pair.heard(HELP))
}

/// The same with a buffer of its own, which is to be kept.
fn asked_pair() -> (Pair, Buffer, RequestId, Vec<u8>) {
    let mut pair = Pair::new();
    let home = pair.home();
    let to = Buffer::target_in(&bytes(SIZE), 1, home);
    let (id, help) = asked(&mut pair, &to);
    (pair, to, id, help)
}

/// The keys of a HELP: of the buffer and of the word.
fn keys(help: &[u8]) -> (&[u8], &[u8]) {
    let (first, second) = (usize::from(help[2]), usize::from(help[3]));
    (&help[72..72 + first], &help[72 + first..72 + first + second])
}

/// The first piece that a sender takes, and that it is at work.
fn take(word: u64) -> u64 {
    let back = (word >> 16) & 0xffff;
    (word & !(0xffff << 16)) | (back - 1) << 16 | 1 << 62
}

#[test]
fn a_receive_ends_no_sooner_than_its_sender_is_at_rest() {
    let (mut pair, _to, id, help) = asked_pair();
    let word = pair.map(keys(&help).1);
    // SAFETY: the mapping is held, and touched by these functions only.
    let old = unsafe { load_word(&word.region(), 0) }.unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { exchange_word(&word.region(), 0, old, take(old)) }, Ok(old));
    for _ in 0..100 {
        assert_eq!(pair.pml.test(id), Ok(None), "a piece is not there yet");
    }
    // SAFETY: as above.
    let now = unsafe { load_word(&word.region(), 0) }.unwrap();
    assert_eq!(now & 0xffff, now >> 16 & 0xffff, "nothing is left");
    // SAFETY: as above.
    unsafe { exchange_word(&word.region(), 0, now, now & !(1 << 62)) }.unwrap();
    pair.pml.progress();
    assert_eq!(pair.pml.test(id).unwrap().unwrap().bytes, SIZE);
    assert_eq!(pair.heard(5)[2], 3, "FIN: mapped");
}

#[test]
fn a_sender_that_breaks_the_word_or_speaks_out_of_turn_is_lost() {
    type Lie = fn(u64) -> u64;
    let lies: [(&str, Lie); 7] = [
        ("another turn", |word| word ^ 1 << 40),
        ("the receiver's pieces", |word| word + 1),
        ("pieces that were taken", |word| word & !(0xffff << 16)),
        ("more pieces", |word| word + (1 << 16)),
        ("closed", |word| word | 1 << 63),
        ("at work on nothing", |word| word | 1 << 62),
        ("noise", |_| u64::MAX),
    ];
    for (what, lie) in lies {
        let (mut pair, _to, id, help) = asked_pair();
        let word = pair.map(keys(&help).1);
        // SAFETY: as above.
        let old = unsafe { load_word(&word.region(), 0) }.unwrap();
        // SAFETY: as above.
        unsafe { exchange_word(&word.region(), 0, old, lie(old)) }.unwrap();
        assert!(pair.is_lost(id), "{what}");
    }
    for message in [short(14, 1, 0), common::rogue::ready(0, 0), short(8, 0, 0)] {
        let (mut pair, _to, id, help) = asked_pair();
        let mut message = message;
        message[8..16].copy_from_slice(&help[24..32]);
        pair.inject(&message);
        assert!(pair.is_lost(id), "{message:?}");
    }
}

/// An answer of a rogue receiver.
fn help(serial: u64, (end, span): (u64, u64), piece: u32, keys: [&RemoteKey; 2]) -> Vec<u8> {
    let mut message = vec![0; 72];
    let [key, theirs] = keys.map(RemoteKey::as_bytes);
    let lens = [key, theirs].map(|key| u8::try_from(key.len()).unwrap());
    message[..4].copy_from_slice(&[HELP, VERSION, lens[0], lens[1]]);
    message[12..16].copy_from_slice(&piece.to_le_bytes());
    for (at, value) in [(16, serial), (24, 55), (32, end), (40, 1), (56, span)] {
        word(&mut message, at, value);
    }
    [&message[..], key, theirs].concat()
}

#[test]
fn a_receiver_that_lies_is_lost_and_overruns_nothing() {
    let pieces = SIZE.div_ceil(1 << 15);
    type Case = (&'static str, (u64, u64), u64, u64, bool);
    let cases: [Case; 8] = [
        ("honest", (SIZE, SIZE), pieces << 16, 0, false),
        ("nothing left", (SIZE, SIZE), 3 << 16 | 3, 0, false),
        ("another turn", (SIZE, SIZE), pieces << 16 | 1 << 32, 0, false),
        ("more than was offered", (SIZE + 1, SIZE + 1), pieces << 16, 0, true),
        ("more than the key is for", (SIZE, SIZE + 4000), pieces << 16, 0, true),
        ("pieces that are not", (SIZE, SIZE), (pieces + 1) << 16, 0, true),
        ("more in front than behind", (SIZE, SIZE), 3 << 16 | 4, 0, true),
        ("a word that is none", (SIZE, SIZE), pieces << 16, 4, true),
    ];
    for (what, sizes, said, crooked, lost) in cases {
        let mut pair = Pair::new();
        let home = pair.home();
        let from = Buffer::source_in(&bytes(SIZE), 1, 7, home);
        let world = pair.pml.world();
        // SAFETY: the buffer is kept until the request has ended or the endpoint is dropped.
        let send = unsafe { pair.pml.isend(&world, &from.typed(), 1, 0) }.unwrap();
        let serial = serial_of(&pair.heard(2));
        let home = pair.rogue.allocate(16).unwrap().unwrap();
        // SAFETY: the rogue's own memory, which nobody else knows yet.
        unsafe { exchange_word(&home.region(), 0, 0, said) }.unwrap();
        let keys = [pair.memory.region(), home.region().sub(crooked, 8).unwrap()]
            .map(|region| pair.key(region));
        pair.inject(&help(serial, sizes, 1 << 15, [&keys[0], &keys[1]]));
        assert_eq!(pair.is_lost(send), lost, "{what}");
        if !lost {
            let all = what == "honest";
            assert_eq!(pair.pml.counters().of(Protocol::Mapped).copies > 0, all, "{what}");
            let mut got = vec![0; usize::try_from(SIZE).unwrap()];
            // SAFETY: the sender has ended its work, and nobody else writes there.
            unsafe { gapless_mem::read(&pair.memory.region(), 0, &mut got) }.unwrap();
            assert_eq!(got == from.packed(), all, "{what}");
            // Once more for the same message: it has helped.
            pair.inject(&help(serial, sizes, 1 << 15, [&keys[0], &keys[1]]));
            assert!(pair.is_lost(send), "{what}, twice");
        }
    }
}
