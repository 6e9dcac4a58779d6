//! Payloads that lie in several places, for all back ends as in `suite.rs`: a task finds them as if they had lain in one.

use super::launched::PAYLOAD_MAX;
use super::scene::{PLAIN, SIMULATED, Scene, all};
use super::*;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// Numbers that look random.
struct Random(u64);

impl Random {
    /// Those of `GAPLESS_SEED`, or of a fixed one.
    fn new() -> Random {
        let given = std::env::var("GAPLESS_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or(18);
        println!("GAPLESS_SEED={seed}");
        Random(seed)
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        let random = BuildHasherDefault::<DefaultHasher>::default().hash_one(self.0);
        usize::try_from(random >> 32).unwrap() % end
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| u8::try_from(self.below(256)).unwrap()).collect()
    }
}

/// Every so many bytes one block of so many, as a layout with holes has them; how often it was gathered.
struct Blocks {
    bytes: Vec<u8>,
    block: usize,
    stride: usize,
    gathered: Arc<AtomicU32>,
}

impl Blocks {
    fn packed(&self) -> Vec<u8> {
        self.bytes
            .chunks_exact(self.stride)
            .flat_map(|chunk| &chunk[..self.block])
            .copied()
            .collect()
    }
}

impl Gather for Blocks {
    fn bytes(&self) -> usize {
        self.bytes.len() / self.stride * self.block
    }

    fn gather(&self, from: usize, into: &mut GatherInto<'_>) {
        self.gathered.fetch_add(1, Ordering::Relaxed);
        let mut skip = from % self.block;
        for chunk in self.bytes.chunks_exact(self.stride).skip(from / self.block) {
            into.write(&chunk[skip..self.block]);
            skip = 0;
        }
    }
}

/// A payload of so many bytes in pieces of all kinds, and its bytes.
fn pieces(random: &mut Random, len: usize) -> (Payload, Vec<u8>) {
    let (mut list, mut expected) = (Vec::new(), Vec::new());
    while expected.len() < len {
        let left = len - expected.len();
        // Mostly short ones, and now and then all the rest.
        let most = if random.below(4) == 0 { left } else { left.min(40) };
        let bytes = {
            let len = random.below(most + 1);
            random.bytes(len)
        };
        let piece = match random.below(6) {
            0 => bytes.clone().into(),
            1 => Payload::from(&bytes[..]),
            2 => Payload::from(Arc::<[u8]>::from(bytes.clone())),
            3 => {
                let around = [&[0; 3], &bytes[..], &[0; 2]].concat();
                Payload::part_of(&Arc::from(around), 3..3 + bytes.len()).unwrap()
            }
            4 => Payload::pieces([&bytes[..bytes.len() / 2], &[], &bytes[bytes.len() / 2..]]),
            _ => {
                let stride = 2 + random.below(6);
                let block = 1 + random.below(stride - 1);
                let mut memory = Vec::new();
                for chunk in bytes.chunks_exact(block) {
                    memory.extend_from_slice(chunk);
                    memory.resize(memory.len() + stride - block, 0xEE);
                }
                let blocks = Blocks { bytes: memory, block, stride, gathered: Arc::default() };
                expected.extend(blocks.packed());
                list.push(Payload::gathered(Arc::new(blocks)));
                continue;
            }
        };
        expected.extend(&bytes);
        list.push(piece);
    }
    list.push(Payload::none());
    let payload = Payload::pieces(list);
    assert_eq!(payload.to_vec(), expected);
    (payload, expected)
}

#[test]
fn tasks_find_pieces_as_if_they_had_lain_in_one() {
    for (way, seed) in all().into_iter().map(|way| (way, None)).chain([(PLAIN, Some(3))]) {
        let (mut scene, mut random) = (Scene::new(way, 2, seed), Random::new());
        (0..64).for_each(|_| scene.post(PAYLOAD_MAX));
        let (mut expected, mut handles) = (Vec::new(), Vec::new());
        // In a slot, about its limit, in the arena, none, in pieces of messages; the first of them before there is a ring.
        for (number, len) in (0..48).zip([3, 144, 145, 900, 0, 3000, 4096, 63].into_iter().cycle())
        {
            let (payload, bytes) = pieces(&mut random, len);
            let put = scene.task(number, &[]).payload(payload);
            handles.push(scene.put(put.acknowledged()));
            expected.push((number, bytes));
            scene.step();
        }
        for handle in &handles {
            assert_eq!(scene.outcome(handle), Ok(()), "{way:?}");
        }
        let mut ran = scene.ran();
        ran.sort();
        assert_eq!(ran, expected, "{way:?}");
        scene.settle();
        assert_eq!(scene.take_posted(), 64);
    }
}

#[test]
fn what_is_refused_for_now_is_gathered_again_when_it_is_sent_again() {
    for way in all() {
        let mut scene = Scene::new(way, 2, None);
        scene.warm();
        let gathered = Arc::new(AtomicU32::new(0));
        let bytes: Vec<u8> = (0..=255).collect();
        let blocks = Blocks { bytes, block: 3, stride: 8, gathered: Arc::clone(&gathered) };
        let packed = blocks.packed();
        let put = scene.task(5, &[]).payload(Payload::gathered(Arc::new(blocks)));
        let put = scene.put(put.retry(Retry::InAnyOrder).acknowledged());
        scene.until(|| (put.refusals() > 2).then_some(()));
        scene.post(PAYLOAD_MAX);
        assert_eq!(scene.outcome(&put), Ok(()), "{way:?}");
        assert_eq!(scene.ran(), [(5, packed)], "{way:?}");
        // It was sent more than twice, but on the simulated machine only what has a place lands.
        let times = gathered.load(Ordering::Relaxed);
        assert!(times > if SIMULATED { 0 } else { 2 }, "{way:?}: {times}");
    }
}

#[test]
fn pieces_that_are_too_long_together_are_refused_as_one_is() {
    let mebibyte = Payload::from(Arc::<[u8]>::from(vec![0; 1 << 20]));
    let all_of = |count| Payload::pieces(vec![mebibyte.clone(); count]);
    // And more than an address has bits for.
    let mut endless = all_of(4096);
    for _ in 0..4 {
        endless = Payload::pieces(vec![endless; 4096]);
    }
    for way in all() {
        let mut scene = Scene::new(way, 2, None);
        scene.warm();
        scene.post(PAYLOAD_MAX);
        let (half, more) = (vec![0; 2049], [0; 2048]);
        let pieces = Payload::pieces([Payload::from(half), more[..].into()]);
        let put = scene.put(scene.task(0, &[]).payload(pieces));
        let refusal = Refusal::PayloadTooLong { max: PAYLOAD_MAX };
        let refused = XtqError::Refused { target: Rank(1), refusal };
        assert_eq!(scene.outcome(&put), Err(refused), "{way:?}");
        for (payload, bytes) in [(all_of(4096), 1 << 32), (endless.clone(), usize::MAX)] {
            let put = scene.task(0, &[]).payload(payload);
            assert_eq!(put.to_bytes(), Err(XtqError::PayloadTooLong { bytes }));
            let refused = scene.try_put_from(0, put).unwrap_err();
            assert_eq!(refused, XtqError::PayloadTooLong { bytes }, "{way:?}");
        }
        assert_eq!(scene.ran(), [], "{way:?}");
    }
}

/// Arguments lie behind the packet, in one piece.
#[test]
fn arguments_in_pieces_are_arguments() {
    let mut scene = Scene::new(PLAIN, 2, None);
    let launch = Launch::linear(1, 32, 24);
    let arguments = Payload::pieces([vec![0xFF; 16], 9u64.to_le_bytes().to_vec()]);
    let put = scene.put(Put::kernel(Rank(1), 7, 2, launch, arguments).acknowledged());
    assert_eq!(scene.outcome(&put), Ok(()));
    assert_eq!(scene.ran(), [(9, vec![])]);
}
