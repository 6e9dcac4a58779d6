//! What a hostile process is made of: [`Memory`], its own, which it overwrites behind its own back;
//! [`Scribbler`], which does so to every segment that it has mapped; [`Liar`], a transport that
//! changes messages in flight; [`Mask`], which makes the others take it for shared memory.
//!
//! Whatever is mapped here is shared with a victim: the rings, flags and slots that the victim reads,
//! those that it writes, and memory that messages were sent out of.

use gapless::btl::{AmTag, Btl, Event, Limits, PeerId, Queue, Sink, Slot, Token};
use gapless::wireup::{Wireup, WireupError};
use gapless_btl_sm::Sm;
use gapless_dtype::testkit::Rng;
use gapless_tests::launcher::segments;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

/// This process's memory as a file.
#[derive(Debug)]
pub(crate) struct Memory(File);

impl Memory {
    pub(crate) fn open() -> Memory {
        let file = OpenOptions::new().read(true).write(true).open("/proc/self/mem");
        Memory(file.expect("a process may write to its own memory"))
    }

    /// What was not mapped any more is not there.
    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let read = self.0.read_at(&mut bytes, at).unwrap_or(0);
        bytes.truncate(read);
        bytes
    }

    /// Gives how many bytes were there to be written.
    fn write(&self, at: u64, bytes: &[u8]) -> u64 {
        self.0.write_at(bytes, at).map_or(0, |written| written as u64)
    }
}

/// Bytes of a segment in front of its ring: flags and counters.
const FRONT: u64 = 4096;
/// Lines of a ring, and bytes of each, unless set otherwise.
const LINES: u64 = 512;
const LINE: u64 = 64;
/// Bytes of the smaller slots, which follow the ring, and how many there are.
const SLOT: u64 = 8448;
const SLOTS: u64 = 32;
/// The same of the larger slots behind them.
const LARGE_SLOT: u64 = 65_792;
const LARGE_SLOTS: u64 = 16;
/// Numbers that are wrong in many places.
const LONG: [u64; 9] = [u64::MAX, 1 << 63, 1 << 62, 1 << 40, 1 << 32, 1 << 31, 70_000, SLOT + 1, 0];

/// Overwrites segments.
pub(crate) struct Scribbler {
    memory: Memory,
    rng: Rng,
    /// Pages as they were earlier, by address.
    old: BTreeMap<u64, Vec<u8>>,
    /// Bytes written.
    pub(crate) bytes: u64,
    /// How often every byte of every segment was written.
    pub(crate) sweeps: u64,
    /// Messages written into rings by hand, in bursts.
    pub(crate) forged: u64,
}

impl Scribbler {
    pub(crate) fn new(seed: u64) -> Scribbler {
        let (memory, rng) = (Memory::open(), Rng::new(seed));
        Scribbler { memory, rng, old: BTreeMap::new(), bytes: 0, sweeps: 0, forged: 0 }
    }

    /// One deed.
    pub(crate) fn act(&mut self) {
        let all = segments("self");
        if all.is_empty() {
            return;
        }
        let (start, end) = *self.rng.pick(&all);
        let pages = (end - start) / 4096;
        let page = start + 4096 * self.rng.below(pages);
        // Where rings are; the slots behind are the larger part.
        let early = start + 4096 * self.rng.below(pages.min(10));
        match self.rng.below(16) {
            11.. => self.forge(start),
            0 => self.put(page, 256, Rng::next_u64),
            1 => self.put(early, 512, |_| u64::MAX),
            2 => self.put(early, 512, |_| 0),
            3 => self.flip(start, FRONT),
            4 => self.flip(start, 10 * 4096),
            5 => {
                // A counter, a flag or what a slot's return says.
                let word = start + 8 * self.rng.below(FRONT / 8);
                self.number(word);
            }
            6 => self.mark(start),
            7 => {
                let was = self.memory.read(early, 4096);
                self.old.insert(early, was);
            }
            8 | 9 => {
                // An old lap's lines, slots or counters.
                let known: Vec<u64> = self.old.keys().copied().collect();
                if !known.is_empty() {
                    let at = *self.rng.pick(&known);
                    self.bytes += self.memory.write(at, &self.old[&at]);
                }
            }
            _ => self.sweep(&all),
        }
    }

    fn put(&mut self, at: u64, words: usize, mut word: impl FnMut(&mut Rng) -> u64) {
        let rng = &mut self.rng;
        let bytes: Vec<u8> = (0..words).flat_map(|_| word(rng).to_ne_bytes()).collect();
        self.bytes += self.memory.write(at, &bytes);
    }

    fn flip(&mut self, start: u64, within: u64) {
        for _ in 0..4 {
            let at = start + self.rng.below(within);
            if let [byte] = self.memory.read(at, 1)[..] {
                let flipped = byte ^ 1 << self.rng.below(8);
                self.bytes += self.memory.write(at, &[flipped]);
            }
        }
    }

    /// A number that is about right, or much too large.
    fn number(&mut self, at: u64) {
        let was = self.memory.read(at, 8).try_into().map_or(0, u64::from_ne_bytes);
        let numbers = [
            u64::MAX,
            1 << 63,
            1 << 32,
            was.wrapping_add(1),
            was.wrapping_sub(1),
            was.wrapping_add(1 << 20),
            !was,
        ];
        let number = *self.rng.pick(&numbers);
        self.bytes += self.memory.write(at, &number.to_ne_bytes());
    }

    /// A line of a ring that claims to be there: its sequence is kept, or moved on by a lap, its
    /// kind, tag and length are made up, as is a slot's descriptor.
    fn mark(&mut self, start: u64) {
        let at = start + FRONT + LINE * self.rng.below(LINES);
        let was = self.memory.read(at, 8).try_into().map_or(0, u64::from_ne_bytes);
        let sequence = was.wrapping_add(*self.rng.pick(&[0, 0, LINES])) & 0xFFFF_FFFF;
        let kind = self.rng.below(4);
        let len = *self.rng.pick(&[0, 16, 16, 32, 224, 225, 0xFFFF]);
        let tag = if self.rng.chance(50) { was >> 32 & 0xFF } else { self.rng.below(256) };
        let slot = self.rng.below(64) | self.rng.below(1 << 32) << 32;
        let bytes = *self.rng.pick(&[0, 225, 8448, 8449, 65_792, 1 << 31, 1 << 62, u64::MAX]);
        let words = [sequence | tag << 32 | kind << 40 | len << 48, slot, bytes];
        let line: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        // The mark last, as a sender would.
        self.bytes += self.memory.write(at + 8, &line[8..]);
        self.bytes += self.memory.write(at, &line[..8]);
    }

    /// Goes on where the ring's sender has stopped, as if it were that sender: messages with old headers in
    /// which a number is too large, in the ring or in a slot, and descriptors of what no slot holds.
    fn forge(&mut self, start: u64) {
        let ring = self.memory.read(start + FRONT, usize::try_from(LINES * LINE).expect("32 KiB"));
        let lines: Vec<[u64; 8]> = ring
            .chunks_exact(64)
            .map(|line| {
                let mut words = [0; 8];
                for (word, bytes) in words.iter_mut().zip(line.chunks_exact(8)) {
                    *word = bytes.try_into().map_or(0, u64::from_ne_bytes);
                }
                words
            })
            .collect();
        let sequence =
            |at: u64| lines.get(usize::try_from(at % LINES).ok()?).map(|l| l[0] & 0xFFFF_FFFF);
        // Line p bears p + LINES; the newest one is where that breaks off.
        let follows = |at: &u64| {
            let Some(here) = sequence(*at) else { return false };
            here % LINES == *at
                && here >= LINES
                && (here == LINES || sequence(at + LINES - 1) == Some(here - 1))
        };
        let newest = (0..LINES).filter(follows).filter_map(sequence).max().unwrap_or(LINES - 1);
        let old: Vec<&[u64; 8]> = lines.iter().filter(|line| line[0] >> 40 & 0xFF == 1).collect();
        for next in newest + 1..newest + 2 + self.rng.below(4) {
            let mut line = match old.is_empty() {
                true => [u64::from(self.rng.below(2) == 0) << 32; 8],
                false => **self.rng.pick(&old),
            };
            let tag = line[0] >> 32 & 0xFF;
            let (mut kind, mut len) = (1, line[0] >> 48);
            if self.rng.chance(70) {
                // Numbers of the header: 64 bits each, the first ones two or more fields.
                let at = 1 + self.rng.index(7);
                line[at] = *self.rng.pick(&LONG);
                len = len.clamp(32, 56);
            }
            if self.rng.chance(50) {
                let slot = self.rng.below(SLOTS + LARGE_SLOTS + 4);
                let slots = start + FRONT + LINES * LINE;
                let place = match slot.checked_sub(SLOTS) {
                    None => slots + slot * SLOT,
                    Some(large) => slots + SLOTS * SLOT + large * LARGE_SLOT,
                };
                let header: Vec<u8> =
                    line[1..].iter().flat_map(|word| word.to_ne_bytes()).collect();
                self.bytes += self.memory.write(place, &header);
                let bytes = if self.rng.chance(50) { SLOT } else { *self.rng.pick(&LONG) };
                (kind, len) = (2, 16);
                line[1] = slot | self.rng.below(1 << 32) << 32;
                line[2] = bytes;
            }
            line[0] = next & 0xFFFF_FFFF | tag << 32 | kind << 40 | len << 48;
            let bytes: Vec<u8> = line.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let at = start + FRONT + next % LINES * LINE;
            // The mark last, as a sender would.
            self.bytes += self.memory.write(at + 8, &bytes[8..]);
            self.bytes += self.memory.write(at, &bytes[..8]);
        }
        self.forged += 1;
    }

    /// Every byte of every segment, from some place on.
    fn sweep(&mut self, all: &[(u64, u64)]) {
        let mut pages: Vec<u64> = Vec::new();
        for &(start, end) in all {
            pages.extend((start..end).step_by(4096));
        }
        let first = self.rng.index(pages.len());
        pages.rotate_left(first);
        let pattern = self.rng.below(3);
        for page in pages {
            match pattern {
                0 => self.put(page, 512, Rng::next_u64),
                1 => self.put(page, 512, |_| u64::MAX),
                _ => self.put(page, 512, |rng| rng.below(70_000)),
            }
        }
        self.sweeps += 1;
    }
}

/// The kind of a note (`PROTOCOL.md`), what a note says in its third byte that revokes, and what no note says.
const NOTE: u8 = 9;
const REVOKE: u8 = 6;
const NOTHING: u8 = 200;

/// Most of a message that is kept to be sent again.
const KEPT_BYTES: usize = 1200;
const KEPT: usize = 64;

/// Shared memory whose messages are not always what was sent.
pub(crate) struct Liar {
    sm: Sm,
    limits: Limits,
    memory: Memory,
    rng: Rng,
    /// Of a thousand messages, how many are changed.
    per_mille: u64,
    /// Messages that went or came earlier, with their tags.
    kept: Vec<(AmTag, Vec<u8>)>,
    lies: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

/// What the transport is called at home.
pub(crate) const LIAR: &str = "liar";

impl Liar {
    pub(crate) fn new(
        sm: Sm,
        seed: u64,
        per_mille: u64,
        lies: std::sync::Arc<std::sync::atomic::AtomicU64>,
    ) -> Liar {
        let limits = Limits { name: LIAR, ..sm.limits().clone() };
        let (memory, rng) = (Memory::open(), Rng::new(seed));
        Liar { sm, limits, memory, rng, per_mille, kept: Vec::new(), lies }
    }

    fn keep(&mut self, tag: AmTag, bytes: Vec<u8>) {
        if self.kept.len() < KEPT {
            self.kept.push((tag, bytes));
        } else {
            let at = self.rng.index(KEPT);
            self.kept[at] = (tag, bytes);
        }
    }

    /// Something else than `was`, of the same length.
    fn lie(&mut self, mut was: Vec<u8>) -> Vec<u8> {
        if was.is_empty() {
            return was;
        }
        let header = was.len().min(if self.rng.chance(70) { 48 } else { 112 });
        match self.rng.below(7) {
            0 | 1 => {
                let at = self.rng.index(header);
                was[at] ^= 1 << self.rng.below(8);
            }
            2 | 3 => {
                // A number of the header: lengths, offsets, serials, counts.
                let at = self.rng.index(header.div_ceil(8)) * 8;
                let number = self.rng.pick(&LONG).to_le_bytes();
                for (to, byte) in was.iter_mut().skip(at).zip(number) {
                    *to = byte;
                }
            }
            4 => {
                let at = self.rng.index(header.div_ceil(4)) * 4;
                was.iter_mut().skip(at).take(4).for_each(|byte| *byte = 0xFF);
            }
            5 => was[0] = self.rng.below(11).to_le_bytes()[0],
            _ => {
                let other = self.kept.get(self.rng.index(self.kept.len())).cloned();
                for (to, byte) in was.iter_mut().zip(other.map_or(Vec::new(), |(_, all)| all)) {
                    *to = byte;
                }
            }
        }
        if was.starts_with(&[NOTE]) && was.get(2) == Some(&REVOKE) {
            // Any member may revoke a communicator: nobody could tell that from a lie.
            was[2] = NOTHING;
        }
        was
    }

    /// An old message once more.
    fn replay(&mut self, to: PeerId) {
        let Some((tag, bytes)) = self.kept.get(self.rng.index(self.kept.len())).cloned() else {
            return;
        };
        if let Ok(mut slot) = self.sm.reserve(to, bytes.len())
            && slot.write(0, &bytes).is_ok()
        {
            self.sm.send(slot, tag, Token::NONE);
        }
    }
}

impl Btl for Liar {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    gapless::btl::delegate!(self => self.sm; address connect reserve arm rdma mapped);

    fn send(&mut self, mut slot: Slot, tag: AmTag, done: Token) {
        let (to, region) = (slot.peer(), slot.region());
        let was = self.memory.read(region.address() + region.offset(), slot.len().min(KEPT_BYTES));
        self.keep(tag, was.clone());
        let dice = self.rng.below(1000);
        if dice < self.per_mille {
            self.lies.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let lie = self.lie(was);
            slot.write(0, &lie).expect("as long as before");
        }
        // Now and then for somebody else: a layer that is not there, or bml itself.
        let elsewhere = dice < self.per_mille && self.rng.chance(5);
        let number = if self.rng.chance(20) { 255 } else { self.rng.below(256).to_le_bytes()[0] };
        self.sm.send(slot, if elsewhere { AmTag(number) } else { tag }, done);
        if dice.is_multiple_of(10) && dice < 10 * self.per_mille {
            self.lies.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.replay(to);
        }
    }

    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        if sink.room() == 0 {
            return 0;
        }
        let mut own = Queue::with_capacity(sink.room());
        let polled = self.sm.poll(only, &mut own);
        for event in own.drain() {
            if let Event::Arrived { tag, fragment, .. } = &event
                && fragment.len() <= KEPT_BYTES
                && let Ok(bytes) = fragment.to_vec()
            {
                self.keep(*tag, bytes);
            }
            sink.event(event);
        }
        polled
    }
}

/// A wire-up in which a [`Liar`] is called what others call their shared memory.
pub(crate) struct Mask(pub(crate) Box<dyn Wireup>);

impl Wireup for Mask {
    fn rank(&self) -> u32 {
        self.0.rank()
    }

    fn size(&self) -> u32 {
        self.0.size()
    }

    fn local_size(&self) -> Option<u32> {
        self.0.local_size()
    }

    fn job(&self) -> &str {
        self.0.job()
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), WireupError> {
        match value.strip_prefix("liar:") {
            Some(address) => self.0.put(key, &format!("sm:{address}")),
            None => self.0.put(key, value),
        }
    }

    fn fence(&mut self) -> Result<(), WireupError> {
        self.0.fence()
    }

    fn get(&mut self, from: u32, key: &str) -> Result<String, WireupError> {
        let value = self.0.get(from, key)?;
        Ok(match value.strip_prefix("sm:") {
            Some(address) => format!("{LIAR}:{address}"),
            None => value,
        })
    }

    fn finalize(&mut self) -> Result<(), WireupError> {
        self.0.finalize()
    }
}
