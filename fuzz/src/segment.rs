//! What a process can do to another by the memory, the sockets and the keys that they share: words stored
//! anywhere in both lanes, packets and greetings with files of its own, keys, also of memory of a (fake)
//! device, and honest messages between.
//! Both ends live here in one thread; whatever happens, the honest one comes back with an event or an
//! error.

use crate::input::Input;
use gapless_btl::{AmTag, Btl, Event, Extent, Fragment, PeerId, Queue, RemoteKey, Token};
use gapless_btl_sm::{SlotClass, Sm, SmConfig};
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Device, Region};
use std::sync::Arc;

/// Most steps of one run: each may take system calls.
const STEPS: usize = 48;
/// Fragments that the honest end keeps at a time.
const KEPT: usize = 8;
/// Longest message of a lane, in bytes.
const LONGEST: usize = 1024;

struct Pair {
    ends: [Sm; 2],
    peers: [PeerId; 2],
    kept: Vec<Fragment>,
    events: Queue,
}

fn end(name: &str) -> Option<Sm> {
    let mut config = SmConfig::new("fuzz", name);
    config.ring_lines = 16;
    config.classes =
        vec![SlotClass { bytes: 256, count: 4 }, SlotClass { bytes: LONGEST, count: 3 }];
    config.eager_bytes = LONGEST;
    config.parked = 6;
    Sm::new(config).ok()
}

impl Pair {
    fn new() -> Option<Pair> {
        let mut ends = [end("honest")?, end("rogue")?];
        // It imports what the rogue says that a device exported.
        let device: Arc<dyn Device> = Arc::new(FakeDevice::new(7));
        ends[0].attach(&device).ok()?;
        let addresses = ends.each_ref().map(Btl::address);
        let peers = [ends[0].connect(&addresses[1]).ok()?, ends[1].connect(&addresses[0]).ok()?];
        let mut pair = Pair { ends, peers, kept: Vec::new(), events: Queue::with_capacity(8) };
        for _ in 0..8 {
            pair.poll(0);
            pair.poll(1);
        }
        Some(pair)
    }

    fn poll(&mut self, who: usize) {
        // Sockets are looked at when the descriptor is asked for, rings always.
        self.ends[who].arm();
        self.ends[who].poll(None, &mut self.events);
        for event in self.events.drain() {
            let Event::Arrived { fragment, .. } = event else { continue };
            let bytes = fragment.to_vec().expect("host memory can be read");
            assert!(bytes.len() <= LONGEST, "{} bytes, which no slot holds", bytes.len());
            if who == 0 && self.kept.len() < KEPT {
                self.kept.push(fragment);
            }
        }
    }

    fn send(&mut self, who: usize, len: usize, fill: u8) {
        let peer = self.peers[who];
        if let Ok(mut slot) = self.ends[who].reserve(peer, len) {
            assert_eq!(slot.len(), len);
            slot.write(0, &vec![fill; len]).expect("as long as was asked for");
            // Some are dropped unsent.
            if fill != 0xEE {
                self.ends[who].send(slot, AmTag(fill), Token::NONE);
            }
        }
    }

    /// The nonce that all keys of the rogue begin with.
    fn nonce(&mut self) -> Vec<u8> {
        let (peer, mapped) = (self.peers[1], self.ends[1].mapped());
        let key = mapped.and_then(|mapped| {
            let home = mapped.allocate(1).ok()?;
            mapped.key(peer, home.lease())
        });
        key.map_or(Vec::new(), |key| key.as_bytes()[..16].to_vec())
    }

    /// The honest end maps, and reads, the memory that the rogue's key names.
    fn use_key(&mut self, key: &[u8], input: &mut Input<'_>) {
        let Some(key) = RemoteKey::new(key) else { return };
        let peer = self.peers[0];
        if let Some(mapped) = self.ends[0].mapped()
            && let Ok(mapping) = mapped.map(peer, &key)
        {
            let region = mapping.region();
            assert!(region.len() < 1 << 40, "more than was ever shared");
        }
        let mut into = [0u8; 64];
        let len = u64::from(input.byte() & 63);
        let pieces = [Extent { offset: input.number(), len }];
        let local = Region::of_mut(&mut into).sub(0, len);
        if let Some(rdma) = self.ends[0].rdma()
            && let Ok(local) = local
        {
            // SAFETY: `into` outlives the poll below, in which the operation ends; the key may name
            // any memory of this process, which is only read.
            let _ = unsafe { rdma.get(peer, &[local], &key, &pieces, Token::NONE) };
        }
        self.poll(0);
    }
}

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let Some(mut pair) = Pair::new() else { return };
    for _ in 0..STEPS {
        if input.is_over() {
            break;
        }
        let what = input.byte();
        match what % 10 {
            0 => pair.send(1, usize::from(input.short()) % (LONGEST + 1), what),
            1 => pair.send(0, usize::from(input.short()) % (LONGEST + 1), what),
            // The first page (counters), then ring and slots.
            2 => scribble(&pair, what, usize::from(input.byte()), input.number()),
            3 => scribble(&pair, what, usize::from(input.short()), input.number()),
            // A line header as the ring's picture has it: sequence, tag, kind, length.
            4 => {
                let (line, lap) = (usize::from(input.byte() & 15), u64::from(input.byte()));
                let header = (line as u64 + 16 * (1 + (lap & 3)))
                    | (lap >> 2) << 32
                    | u64::from(input.byte()) << 40
                    | u64::from(input.short()) << 48;
                scribble(&pair, 0, 512 + 8 * line, header);
            }
            5 => {
                let len = usize::from(input.byte());
                say(&pair, input.take(len), what);
            }
            6 => greet(&pair, &mut input),
            7 => {
                let len = usize::from(input.byte() % 81);
                let key = input.take(len);
                // Only keys with its own nonce in front are looked at any closer.
                let nonce =
                    if what >= 10 && what / 10 % 2 == 1 { pair.nonce() } else { Vec::new() };
                pair.use_key(&[&nonce, key].concat(), &mut input);
            }
            8 => drop(pair.kept.pop()),
            _ => pair.poll(usize::from(what >> 4 & 1)),
        }
        if what & 0x80 == 0 {
            pair.poll(0);
        }
    }
    // Whatever was broken, a peer's end is noticed and everything can be dropped.
    let Pair { ends: [mut honest, rogue], mut events, kept, .. } = pair;
    drop(rogue);
    for _ in 0..16 {
        honest.arm();
        honest.poll(None, &mut events);
        events.drain().for_each(drop);
    }
    drop(honest);
    for fragment in kept {
        let _ = fragment.to_vec();
    }
}

/// Stores a word in one of the lanes: by the rogue, so in the honest end's memory as well.
fn scribble(pair: &Pair, which: u8, at: usize, value: u64) {
    #[cfg(fuzzing)]
    gapless_btl_sm::fuzzing::scribble(&pair.ends[1], pair.peers[1], which & 16 == 0, at, value);
    #[cfg(not(fuzzing))]
    let _ = (pair, which, at, value);
}

/// Says a packet to the honest end; files of a few pages come along now and then.
fn say(pair: &Pair, packet: &[u8], how: u8) {
    let with = (how & 0x60 != 0).then_some((how >> 5, how & 16 == 0));
    #[cfg(fuzzing)]
    gapless_btl_sm::fuzzing::say(&pair.ends[1], pair.peers[1], packet, with);
    #[cfg(not(fuzzing))]
    let _ = (pair, packet, with);
}

/// Greets the honest end with a changed greeting.
fn greet(pair: &Pair, input: &mut Input<'_>) {
    #[cfg(fuzzing)]
    {
        let mut hello = gapless_btl_sm::fuzzing::greeting(&pair.ends[1], pair.peers[1]);
        for _ in 0..input.byte() % 8 {
            let (at, value) = (usize::from(input.byte()), input.byte());
            if let Some(byte) = hello.get_mut(at) {
                *byte = value;
            }
        }
        let how = input.byte();
        let with = (how & 1 == 0).then_some((how >> 4, how & 2 == 0));
        gapless_btl_sm::fuzzing::greet(&pair.ends[0].address(), &hello, with);
    }
    #[cfg(not(fuzzing))]
    let _ = (pair, input);
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    vec![
        // Honest messages both ways, kept and dropped.
        vec![0, 30, 0, 9, 0, 200, 0, 0, 0, 3, 8, 8, 1, 10, 1, 0, 0, 4, 9, 9],
        // A line header out of nowhere, then a length too long, then a slot.
        vec![4, 0, 0, 1, 8, 0, 9, 4, 1, 0, 1, 0xFF, 0xFF, 9, 4, 2, 0, 2, 16, 0, 9],
        // A descriptor of 5,000 bytes in slot 0, then its line header.
        vec![
            133, 1, 2, 0xC0, 0, 0, 0, 0, 1, 0, 0, 0, 133, 2, 2, 0xC0, 0x88, 0x13, 0, 0, 0, 0, 0, 0,
            4, 0, 0, 2, 16, 0, 9,
        ],
        // One of 64 bytes, which is right.
        vec![
            133, 1, 2, 0xC0, 0, 0, 0, 0, 1, 0, 0, 0, 133, 2, 2, 0xC0, 64, 0, 0, 0, 0, 0, 0, 0, 4,
            0, 0, 2, 16, 0, 9,
        ],
        // Head, flag and generations.
        vec![2, 0, 0xC0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 18, 8, 63, 9, 2, 16, 0x81, 1, 30, 0],
        // A device's buffer offered without and with a file, released, its key used.
        [
            &[
                5, 27, 4, 3, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6,
                7, 8, 9,
            ][..],
            &[0x2D, 61, 4, 3, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0],
            b"GFK1\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\x09\0\0\0\0\0\0\0",
            &[
                9, 17, 24, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0,
                9,
            ],
        ]
        .concat(),
        // An allocation offered, freed; a greeting; a key.
        vec![
            37, 17, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 9, 5, 9, 3, 1, 0, 0, 0, 0,
            0, 0, 0, 6, 1, 40, 7, 0x10, 7, 24, 1, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 9,
        ],
    ]
}
