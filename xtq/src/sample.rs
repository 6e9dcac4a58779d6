//! Random packets and tables, the same wherever they are made, and a digest of what the packets are rewritten to: by
//! this all back ends are compared.
//!
//! About six packets in seven are tasks; the others are refused, for most reasons that there are.

use crate::error::Refusal;
use crate::packet::{PACKET_BYTES, Packet};
use crate::rewrite::{Places, RewriteError, Rewritten};
use crate::tables::{QueueEntry, Tables, TaskEntry};
use zerocopy::IntoBytes;

/// How many packets the known digest is of.
pub const PACKETS: usize = 100_000;
/// How many of them are tasks, and the digest of all.
pub const KNOWN: (usize, u64) = (85_076, 10_976_491_148_471_496_955);

const SEED: u64 = 0x5EED_0018;
/// Tables have entries below this index; those of queues below half of it.
const REGISTERED: u8 = 60;

/// SplitMix64 (Steele et al. 2014).
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    /// Below `bound`; one in 20 below `bound + beyond`.
    fn mostly_below(&mut self, bound: u64, beyond: u64) -> u64 {
        let beyond = if self.one_in(20) { beyond } else { 0 };
        self.below(bound + beyond)
    }
}

fn low_u16(value: u64) -> u16 {
    let [a, b, ..] = value.to_le_bytes();
    u16::from_le_bytes([a, b])
}

/// The arguments that kernel `index` of [`tables`] takes, in bytes.
fn argument_bytes(index: u8) -> u16 {
    16 + 8 * u16::from(index % 16)
}

/// The tables that the packets are for: some entries have a buffer, some a signal, some are missing.
#[must_use]
pub fn tables() -> Tables {
    let (tables, mut random) = (Tables::new(), Random(SEED));
    for index in 0..REGISTERED {
        let mut entry = || TaskEntry {
            object: random.next() | 1,
            buffer: if random.one_in(3) { 0 } else { random.next() },
            buffer_bytes: random.next() >> 40,
            signal: if random.one_in(2) { 0 } else { random.next() },
            payload_max: 1 << 20,
            argument_bytes: argument_bytes(index),
        };
        let (function, kernel) = (entry(), entry());
        let function = TaskEntry { argument_bytes: 0, ..function };
        let queue = QueueEntry { base: random.next() | 1, capacity: 1 + u32::from(index) };
        let registered = tables
            .set_function(index, Some(function))
            .and_then(|()| tables.set_kernel(index, Some(kernel)))
            .and_then(|()| tables.set_queue(index / 2, Some(queue)));
        debug_assert_eq!(registered, Ok(()));
    }
    tables
}

/// The first `count` packets, and where each target puts what comes with them.
pub fn packets(count: usize) -> impl Iterator<Item = (Packet, Places)> {
    let mut random = Random(SEED ^ u64::MAX);
    (0..count).map(move |_| {
        let bytes = packet(&mut random);
        let places = Places { arguments: random.next(), payload: random.next() };
        (Packet::read(&bytes).unwrap_or_else(|_| unreachable!("as long as a packet")), places)
    })
}

/// Written byte by byte after the picture in `packet.rs`, and not by its code.
fn packet(random: &mut Random) -> [u8; PACKET_BYTES] {
    let mut bytes = [0; PACKET_BYTES];
    let mut put = |at: usize, value: u64, len: usize| {
        bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
    };
    let sequence = 1 + random.below(0xFFFF);
    for part in 0..4 {
        // One part in so many is another packet's.
        put(16 * part, if random.one_in(200) { random.next() } else { sequence }, 2);
    }
    let kernel = random.one_in(2);
    put(2, if random.one_in(100) { random.next() } else { 1 + u64::from(kernel) }, 1);
    put(3, if random.one_in(100) { random.next() } else { random.below(4) }, 1);
    let index = random.mostly_below(REGISTERED.into(), 10);
    put(4, index, 1);
    put(5, random.mostly_below(u64::from(REGISTERED / 2), 60), 1);
    put(34, random.next(), 6);
    put(50, random.next(), 2);
    put(52, random.mostly_below(1 << 20, 1 << 24), 4);
    if random.one_in(10) {
        put(52, 0, 4);
    }
    if random.one_in(100) {
        put(18, random.next(), 6);
    }
    if kernel {
        let arguments = argument_bytes(u8::try_from(index).unwrap_or(u8::MAX));
        for at in 0..3 {
            let group = 1 + random.below(1 << 9);
            let groups = 1 + random.below(1 << 20);
            let over = u64::from(random.one_in(200));
            put([24, 28, 40][at], group * groups + over, 4);
            put(56 + 2 * at, group, 2);
        }
        let bytes = if random.one_in(50) { random.below(5000) } else { arguments.into() };
        put(44, bytes, 2);
        put(46, random.next(), 2);
        if random.one_in(100) {
            put(62, random.next(), 2);
        }
        if random.one_in(100) {
            put(8, random.next(), 8);
        }
    } else {
        for at in [8, 24, 40, 56] {
            put(at, random.next(), 8);
        }
    }
    bytes
}

/// What the rewrite is to give, after the paper's Figure 5 and the picture in `packet.rs`; `None` if it is to refuse.
#[must_use]
pub fn expected(packet: &Packet, tables: &Tables, places: Places) -> Option<Rewritten> {
    let mut bytes: [u8; PACKET_BYTES] = packet.as_bytes().try_into().ok()?;
    let get = |at: usize, len: usize| {
        let mut value = [0; 8];
        value[..len].copy_from_slice(&bytes[at..at + len]);
        u64::from_le_bytes(value)
    };
    let sequence = get(0, 2);
    let whole = sequence != 0 && (1..4).all(|part| get(16 * part, 2) == sequence);
    let (kind, flags, payload) = (get(2, 1), get(3, 1), get(52, 4));
    let kernel = kind == 2;
    if !whole || !(1..=2).contains(&kind) || flags > 3 || get(6, 2) | get(18, 6) != 0 {
        return None;
    }
    let entry = if kernel { tables.kernel(bytes[4]) } else { tables.function(bytes[4]) }?;
    let queue = tables.queue(bytes[5])?;
    if payload > u64::from(entry.payload_max) {
        return None;
    }
    if kernel {
        let fits = |grid, group| {
            get(group, 2) != 0 && get(grid, 4) != 0 && get(grid, 4) % get(group, 2) == 0
        };
        let launchable = fits(24, 56) && fits(28, 58) && fits(40, 60);
        let arguments = get(44, 2) == u64::from(entry.argument_bytes);
        if !launchable || !arguments || get(62, 2) != 0 || get(8, 8) != 0 {
            return None;
        }
    }
    let first = [entry.buffer, if payload == 0 { 0 } else { places.payload }];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let object = entry.object.to_le_bytes();
    put(6, &object[6..]);
    put(18, &object[..6]);
    if entry.signal != 0 {
        let signal = entry.signal.to_le_bytes();
        put(34, &signal[..6]);
        put(50, &signal[6..]);
        put(3, &[low_u16(flags).to_le_bytes()[0] | 0x80]);
    }
    if kernel {
        put(8, &places.arguments.to_le_bytes());
    } else {
        put(8, &first[0].to_le_bytes());
        put(24, &first[1].to_le_bytes());
    }
    Some(Rewritten { packet: Packet::read(&bytes).ok()?, first, queue })
}

/// FNV-1a over what packets are rewritten to: packet, first two arguments, queue; for one that is refused one byte, the
/// reason's code on the wire, 0 if it is no packet.
#[derive(Clone, Debug)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Digest {
        Digest::new()
    }
}

impl Digest {
    /// Of nothing.
    #[must_use]
    pub fn new() -> Digest {
        Digest(0xCBF2_9CE4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }

    /// Adds the next packet's.
    pub fn add(&mut self, rewritten: &Result<Rewritten, RewriteError>) {
        match rewritten {
            Ok(Rewritten { packet, first, queue }) => {
                self.bytes(packet.as_bytes());
                for word in [first[0], first[1], queue.base] {
                    self.bytes(&word.to_le_bytes());
                }
            }
            Err(error) => self.bytes(&[Refusal::of(error).map_or(0, |refusal| refusal.encode().0)]),
        }
    }

    /// The digest.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0
    }
}
