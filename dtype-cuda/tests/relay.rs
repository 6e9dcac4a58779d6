//! Messages that two kernels hand on to each other: between two streams of one device, and between two
//! devices where there are two. Every byte of the destination is compared, gaps included; and when one end
//! does not come, or is told to stop, the other does not stay.
//!
//! A program of its own, and one test at a time: kernels that wait for each other must not wait for what
//! other tests do to the device. Skipped aloud where there is no device.
#![cfg(feature = "cuda")]

use gapless_dtype::{Datatype, Layout, Primitive};
use gapless_dtype_cuda::{GpuEngine, Relay, RelayOutcome, RelayWatch};
use gapless_engine::{Engine as _, HostEngine, RelayEnd, RelayMemory, RelayShape, Typed};
use gapless_kernels::Direction;
use gapless_kernels::launch::{PATIENCE_MAX, REST_NS, RelayRing, RelayTurn};
use gapless_mem::{Device, Region};
use gapless_mem_cuda::{CudaDevice, CudaDriver, CudaError, Stream};
use std::io::Write as _;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

static ALONE: Mutex<()> = Mutex::new(());

/// What no wait of these tests should take.
const LONG: Duration = Duration::from_secs(20);

fn skip(test: &str, why: &str) {
    let line = format!("SKIPPED: relays, {test}: {why}\n");
    eprint!("{line}");
    if let Some(path) = std::env::var_os("GAPLESS_SKIP_LOG") {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(path);
        log.unwrap().write_all(line.as_bytes()).unwrap();
    }
}

fn driver(test: &str) -> Option<(CudaDriver, MutexGuard<'static, ()>)> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    match CudaDriver::load() {
        Ok(driver) => Some((driver, alone)),
        Err(why @ (CudaError::NoDriver { .. } | CudaError::NoDevice)) => {
            skip(test, &why.to_string());
            None
        }
        Err(error) => panic!("there is a driver and it fails: {error}"),
    }
}

/// The first two devices, if they reach each other; otherwise says why not.
fn two_devices(test: &str) -> Option<([Arc<CudaDevice>; 2], MutexGuard<'static, ()>)> {
    let (driver, alone) = driver(test)?;
    if driver.devices() < 2 {
        skip(test, "there is only one device");
        return None;
    }
    let devices = [0, 1].map(|ordinal| Arc::new(driver.device(ordinal).unwrap()));
    let reaches = |from: usize, to: usize| devices[from].can_access(devices[to].ordinal()).unwrap();
    if reaches(0, 1) && reaches(1, 0) {
        return Some((devices, alone));
    }
    skip(test, "the devices do not reach each other");
    None
}

/// Device memory that is given back.
struct Memory {
    device: Arc<CudaDevice>,
    region: Region,
}

impl Memory {
    fn holding(device: &Arc<CudaDevice>, bytes: &[u8]) -> Memory {
        let region = device.allocate(bytes.len() as u64).unwrap();
        // SAFETY: both live until the wait ends.
        unsafe { device.copy(region, Region::of(bytes), &[]) }.unwrap().wait().unwrap();
        Memory { device: Arc::clone(device), region }
    }

    fn zeros(device: &Arc<CudaDevice>, len: u64) -> Memory {
        Memory::holding(device, &vec![0; usize::try_from(len).unwrap()])
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.region.len()).unwrap()];
        let to = Region::of_mut(&mut bytes);
        // SAFETY: both live until the wait ends.
        unsafe { self.device.copy(to, self.region, &[]) }.unwrap().wait().unwrap();
        bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the tests wait for their work.
        unsafe { self.device.free(self.region) }.unwrap();
    }
}

struct End {
    device: Arc<CudaDevice>,
    engine: GpuEngine,
    stream: Stream,
}

impl End {
    fn on(device: &Arc<CudaDevice>) -> End {
        let engine = GpuEngine::cuda(Arc::clone(device)).unwrap();
        End { device: Arc::clone(device), engine, stream: device.stream().unwrap() }
    }

    /// Waits until the stream is done, or much longer than it may take.
    fn wait(&self) {
        let begin = Instant::now();
        while !self.stream.is_idle().unwrap() {
            assert!(begin.elapsed() < LONG, "a kernel stays on the device");
            std::thread::yield_now();
        }
    }
}

/// Two ends, and the memory between them.
struct Wire {
    _ring: [Memory; 3],
    relay: Relay,
    watches: [RelayWatch; 2],
    turn: u64,
}

impl Wire {
    fn between(sender: &End, receiver: &End, ring: RelayRing) -> Wire {
        let fragments = Memory::zeros(&receiver.device, ring.bytes().unwrap());
        let ready = Memory::zeros(&receiver.device, ring.flag_bytes());
        let credit = Memory::zeros(&sender.device, ring.flag_bytes());
        let relay = Relay::new(ring, fragments.region, ready.region, credit.region).unwrap();
        let watches = [sender, receiver].map(|end| end.engine.relay_watch(&ring).unwrap());
        Wire { _ring: [fragments, ready, credit], relay, watches, turn: 0 }
    }

    fn outcomes(&self) -> [RelayOutcome; 2] {
        self.watches.each_ref().map(RelayWatch::outcome)
    }
}

fn ring(lanes: u32, depth: u32, fragment: u32) -> RelayRing {
    let number = |n| NonZeroU32::new(n).unwrap();
    RelayRing { lanes: number(lanes), depth: number(depth), fragment: number(fragment) }
}

fn double() -> Datatype {
    Primitive::Double.into()
}

fn commit(datatype: Datatype) -> Arc<Layout> {
    Arc::new(datatype.commit().unwrap())
}

/// Layouts with as many bytes each: a grid, runs, a list, a stretch.
fn layouts() -> Vec<Arc<Layout>> {
    let n = 96i64;
    let lengths: Vec<u64> = (0..n.unsigned_abs()).rev().map(|len| len + 1).collect();
    let starts: Vec<i64> = (0..n).map(|j| j * (n + 1)).collect();
    let doubles = lengths.iter().sum::<u64>();
    let places: Vec<i64> = (0..doubles.cast_signed()).map(|at| at * 7 % 4657 * 3).collect();
    vec![
        commit(Datatype::vector(doubles / 8, 8, 12, &double()).unwrap()),
        commit(Datatype::vector(doubles, 1, 2, &double()).unwrap()),
        commit(Datatype::indexed(&lengths, &starts, &double()).unwrap()),
        commit(Datatype::indexed_block(1, &places, &double()).unwrap()),
        commit(Datatype::contiguous(doubles, &double()).unwrap()),
    ]
}

/// Bytes that differ.
fn noise(len: u64, salt: u64) -> Vec<u8> {
    (0..len).map(|at| ((at ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn span(layout: &Layout) -> u64 {
    layout.extent().unsigned_abs().next_multiple_of(64) + 64
}

/// One message; what the destination should hold, and where it is.
fn message(
    (sender, from): (&End, &Layout),
    (receiver, to): (&End, &Layout),
    range: &Range<u64>,
    wire: &mut Wire,
    patience: Duration,
) -> Result<(), [RelayOutcome; 2]> {
    let (source, mut want) = (noise(span(from), 1), noise(span(to), !0));
    let here = Memory::holding(&sender.device, &source);
    let there = Memory::holding(&receiver.device, &want);
    let mut packed = vec![0; usize::try_from(range.end - range.start).unwrap()];
    let of = Typed::new(Region::of(&source), 0, from, 1).unwrap();
    let wire_bytes = Region::of_mut(&mut packed);
    // SAFETY: all of it lives, and is nobody else's; so below.
    unsafe { HostEngine.pack(&of, range.clone(), wire_bytes, &[]) }.unwrap().wait().unwrap();
    let into = Typed::new(Region::of_mut(&mut want), 0, to, 1).unwrap();
    // SAFETY: as above.
    unsafe { HostEngine.unpack(wire_bytes, &into, range.clone(), &[]) }.unwrap().wait().unwrap();
    // Plans are made before: that allocates.
    sender.engine.prepare(from).unwrap().wait().unwrap();
    receiver.engine.prepare(to).unwrap().wait().unwrap();
    let of = Typed::new(here.region, 0, from, 1).unwrap();
    let into = Typed::new(there.region, 0, to, 1).unwrap();
    let out = sender.engine.on(&sender.stream).unwrap();
    let back = receiver.engine.on(&receiver.stream).unwrap();
    // Whoever enqueues second must not have to load a kernel first.
    sender.engine.relay_lanes_max(Direction::Pack).unwrap();
    receiver.engine.relay_lanes_max(Direction::Unpack).unwrap();
    let turn = RelayTurn { turn: wire.turn, patience, rest_ns: REST_NS };
    let (relay, [ours, theirs]) = (&wire.relay, &wire.watches);
    // SAFETY: everything lives until both streams have been waited for.
    let next = unsafe { back.relay(Direction::Unpack, &into, range.clone(), relay, theirs, turn) };
    // SAFETY: as above.
    let sent = unsafe { out.relay(Direction::Pack, &of, range.clone(), relay, ours, turn) };
    sender.wait();
    receiver.wait();
    assert_eq!(next, sent);
    wire.turn = next.unwrap();
    if wire.outcomes() != [RelayOutcome::Done; 2] {
        return Err(wire.outcomes());
    }
    let got = there.bytes();
    if let Some(at) = got.iter().zip(&want).position(|(a, b)| a != b) {
        panic!("{range:?}: byte {at} is {}, not {}", got[at], want[at]);
    }
    Ok(())
}

/// Two ends on one device whose streams run at the same time. Not any two do: a device has a number of
/// queues, and streams share them.
fn neighbours(device: &Arc<CudaDevice>) -> (End, End) {
    let (sender, mut receiver) = (End::on(device), End::on(device));
    let layout = layouts().pop().unwrap();
    let mut others = Vec::new();
    for _ in 0..20 {
        let mut wire = Wire::between(&sender, &receiver, ring(2, 2, 1024));
        let size = layout.size();
        let some = (&sender, &*layout);
        // Long enough for a launch on a device that is busy otherwise; who waits in vain waits as long.
        let patience = Duration::from_secs(2);
        match message(some, (&receiver, &layout), &(0..size), &mut wire, patience) {
            Ok(()) => return (sender, receiver),
            Err(outcomes) => assert!(outcomes.contains(&RelayOutcome::Late), "{outcomes:?}"),
        }
        others.push(std::mem::replace(&mut receiver.stream, device.stream().unwrap()));
    }
    panic!("no two streams of the device run at the same time");
}

/// Messages of every form, over one ring each, of several messages.
fn exchange(sender: &End, receiver: &End) {
    let layouts = layouts();
    let size = layouts[0].size();
    for (lanes, depth, fragment) in [(1, 2, 16), (3, 2, 1024), (8, 4, 4096), (4, 3, 1 << 16)] {
        let mut wire = Wire::between(sender, receiver, ring(lanes, depth, fragment));
        for from in &layouts {
            for to in &layouts {
                // All of it, whole doubles, and bytes.
                for range in [0..size, 8 * 11..size - 8 * 7, 13..size / 2] {
                    message((sender, from), (receiver, to), &range, &mut wire, LONG).unwrap();
                }
            }
        }
    }
}

/// Many messages over one ring, of lengths that change: of fewer fragments than lanes, of more, and back.
fn follow(sender: &End, receiver: &End) {
    let layouts = layouts();
    let size = layouts[0].size();
    for (lanes, depth) in [(7, 2), (16, 3)] {
        let mut wire = Wire::between(sender, receiver, ring(lanes, depth, 512));
        for at in 0..150usize {
            let begin = at as u64 * 8;
            let fragments = [1, 1, 2, 5, 1, u64::from(lanes) + 1, 3, 40][at % 8];
            let range = begin..(begin + fragments * 512 - begin % 40).min(size);
            let (from, to) = (&layouts[at % 5], &layouts[at / 5 % 5]);
            message((sender, from), (receiver, to), &range, &mut wire, LONG).unwrap();
        }
    }
}

#[test]
fn messages_are_handed_on_between_two_streams() {
    let Some((driver, _alone)) = driver("between two streams") else { return };
    let (sender, receiver) = neighbours(&Arc::new(driver.device(0).unwrap()));
    exchange(&sender, &receiver);
    follow(&sender, &receiver);
}

#[test]
fn messages_are_handed_on_between_two_devices() {
    const TEST: &str = "between two devices";
    let Some((devices, _alone)) = two_devices(TEST) else { return };
    let [one, other] = &devices;
    let (sender, receiver) = (End::on(one), End::on(other));
    exchange(&sender, &receiver);
    exchange(&receiver, &sender);
    follow(&sender, &receiver);
}

#[test]
fn message_layers_relay_between_two_devices() {
    const TEST: &str = "as message layers do";
    let Some((devices, _alone)) = two_devices(TEST) else { return };
    let [one, other] = &devices;
    let ends = devices.each_ref().map(End::on);
    let relays = ends.each_ref().map(|end| end.engine.relays().unwrap());
    let [lanes, theirs] = [0, 1].map(|at| relays[at].lanes(devices[at].space(), false));
    let lanes = lanes.min(theirs).min(64);
    assert!(lanes > 0, "both relay");
    let whole = RelayShape { lanes, depth: 4, fragment: 64 << 10 };
    let (flags, bytes) = whole.receiver_bytes().unwrap();
    let ring = Memory::zeros(other, bytes);
    let credit = Memory::zeros(one, whole.flag_bytes());
    let memory = RelayMemory {
        fragments: ring.region.sub(0, flags).unwrap(),
        ready: ring.region.sub(flags, whole.flag_bytes()).unwrap(),
        credit: credit.region,
    };
    let half = |end, at: usize| relays[at].relay(end, devices[at].space(), lanes).unwrap();
    let halves = [half(RelayEnd::Sender, 0), half(RelayEnd::Receiver, 1)];
    let layout = layouts().pop().unwrap();
    let mut turn = 0;
    for round in 0..20u32 {
        let source = noise(span(&layout), round.into());
        let here = Memory::holding(one, &source);
        let there = Memory::zeros(other, span(&layout));
        // Fragments change from message to message.
        let shape = RelayShape { fragment: 1024 << (round % 4), ..whole };
        let range = 0..layout.size() - u64::from(round) * 8;
        let ended: Vec<_> = [&here, &there]
            .iter()
            .zip(&halves)
            .map(|(memory_of, half)| {
                let typed = Typed::new(memory_of.region, 0, &layout, 1).unwrap();
                let range = range.clone();
                // SAFETY: everything lives until both completions have been waited for.
                unsafe { half.run(&typed, range, &shape, &memory, turn, LONG) }.unwrap()
            })
            .collect();
        for completion in ended {
            completion.wait().unwrap();
        }
        let outcomes = halves.each_ref().map(|half| half.outcome());
        assert_eq!(outcomes, [gapless_engine::RelayOutcome::Done; 2], "message {round}");
        turn += shape.turns(range.end);
        let end = usize::try_from(range.end).unwrap();
        assert!(there.bytes()[..end] == source[..end], "message {round}");
    }
    // Told to stop, a half ends, and the other one finds out.
    halves[0].stop();
    let memory_of = Memory::holding(one, &noise(span(&layout), 1));
    let typed = Typed::new(memory_of.region, 0, &layout, 1).unwrap();
    let range = 0..layout.size();
    let shape = RelayShape { fragment: 16, ..whole };
    // SAFETY: as above.
    let ended = unsafe { halves[0].run(&typed, range, &shape, &memory, turn, LONG) }.unwrap();
    ended.wait().unwrap();
    assert_eq!(halves[0].outcome(), gapless_engine::RelayOutcome::Stopped);
}

#[test]
fn what_fits_the_ring_is_packed_without_a_receiver() {
    const TEST: &str = "messages begun ahead";
    let Some((devices, _alone)) = two_devices(TEST) else { return };
    let [one, other] = &devices;
    let ends = devices.each_ref().map(End::on);
    let relays = ends.each_ref().map(|end| end.engine.relays().unwrap());
    let shape = RelayShape { lanes: 8, depth: 2, fragment: 16 << 10 };
    let (flags, bytes) = shape.receiver_bytes().unwrap();
    let ring = Memory::zeros(other, bytes);
    let credit = Memory::zeros(one, shape.flag_bytes());
    let memory = RelayMemory {
        fragments: ring.region.sub(0, flags).unwrap(),
        ready: ring.region.sub(flags, shape.flag_bytes()).unwrap(),
        credit: credit.region,
    };
    let half = |end, at: usize| relays[at].relay(end, devices[at].space(), shape.lanes).unwrap();
    let [sender, receiver] = [half(RelayEnd::Sender, 0), half(RelayEnd::Receiver, 1)];
    assert!(sender.has_ended() && receiver.has_ended(), "nothing was begun");
    let lengths = [1u64, 8, 4095, 16 << 10, (16 << 10) + 1, 128 << 10];
    for turn in 0..60u64 {
        let len = lengths[usize::try_from(turn).unwrap() % lengths.len()];
        let source = noise(len, turn);
        let here = Memory::holding(one, &source);
        let there = Memory::zeros(other, len);
        let begin = |half: &Arc<dyn gapless_engine::Relay>, memory_of: &Memory| {
            let typed = Typed::contiguous(memory_of.region);
            // SAFETY: everything lives until both completions have been waited for.
            unsafe { half.run(&typed, 0..len, &shape, &memory, turn, LONG) }.unwrap()
        };
        let packed = begin(&sender, &here);
        if turn % 2 == 0 {
            packed.wait().unwrap();
            assert!(sender.has_ended() && packed.is_known_over(), "turn {turn}");
            assert_eq!(sender.outcome(), gapless_engine::RelayOutcome::Done, "turn {turn}");
        }
        let unpacked = begin(&receiver, &there);
        for completion in [packed, unpacked] {
            completion.wait().unwrap();
        }
        let outcomes = [sender.outcome(), receiver.outcome()];
        assert_eq!(outcomes, [gapless_engine::RelayOutcome::Done; 2], "turn {turn}");
        assert!(there.bytes() == source, "turn {turn}, {len} bytes");
    }
}

#[test]
fn nobody_stays_where_the_other_end_does_not_come() {
    let Some((driver, _alone)) = driver("one end alone") else { return };
    let end = End::on(&Arc::new(driver.device(0).unwrap()));
    let layout = layouts().pop().unwrap();
    let memory = Memory::holding(&end.device, &noise(span(&layout), 3));
    let typed = Typed::new(memory.region, 0, &layout, 1).unwrap();
    for direction in [Direction::Pack, Direction::Unpack] {
        for stopped in [false, true] {
            let wire = Wire::between(&end, &end, ring(4, 2, 1024));
            let watch = &wire.watches[0];
            let patience = if stopped { PATIENCE_MAX } else { Duration::from_millis(50) };
            let turn = RelayTurn { turn: 0, patience, rest_ns: REST_NS };
            let on = end.engine.on(&end.stream).unwrap();
            let range = 0..layout.size();
            // SAFETY: everything lives until the stream has been waited for.
            unsafe { on.relay(direction, &typed, range, &wire.relay, watch, turn) }.unwrap();
            if stopped {
                assert_eq!(watch.outcome(), RelayOutcome::Pending);
                watch.stop();
            }
            end.wait();
            let why = if stopped { RelayOutcome::Stopped } else { RelayOutcome::Late };
            assert_eq!(watch.outcome(), why, "{direction:?}");
            // Nor is any wait without bounds begun.
            let endless = RelayTurn { patience: Duration::MAX, ..turn };
            let range = 0..layout.size();
            // SAFETY: as above.
            let refused =
                unsafe { on.relay(direction, &typed, range, &wire.relay, watch, endless) };
            assert!(refused.is_err(), "{direction:?} without bounds");
            // Who comes now finds the ring broken, and leaves at once.
            let opposite = match direction {
                Direction::Pack => Direction::Unpack,
                Direction::Unpack => Direction::Pack,
            };
            let turn = RelayTurn { turn: 0, patience: PATIENCE_MAX, rest_ns: REST_NS };
            let (range, other) = (0..layout.size(), &wire.watches[1]);
            // SAFETY: as above.
            unsafe { on.relay(opposite, &typed, range, &wire.relay, other, turn) }.unwrap();
            end.wait();
            assert_eq!(other.outcome(), RelayOutcome::PeerGone, "{opposite:?}");
        }
    }
}

#[test]
fn what_cannot_be_a_relay_is_refused() {
    let device = |len| Region::new(gapless_mem::Space::Cuda { device: 0 }, 4096, 0, len);
    let good = ring(2, 2, 64);
    assert!(Relay::new(good, device(256), device(128), device(128)).is_ok());
    assert!(Relay::new(good, device(255), device(128), device(128)).is_err(), "a short ring");
    assert!(Relay::new(good, device(256), device(128), device(127)).is_err(), "short flags");
    assert!(Relay::new(ring(2, 1, 64), device(256), device(128), device(128)).is_err());
    assert!(Relay::new(ring(2, 2, 24), device(256), device(128), device(128)).is_err());
    let crooked = device(300).sub(8, 256).unwrap();
    assert!(Relay::new(good, crooked, device(128), device(128)).is_err());
    let mut host = [0u64; 64];
    let host = Region::of_mut(bytes_of(&mut host));
    assert!(Relay::new(good, device(256), host, device(128)).is_err(), "flags in host memory");
}

fn bytes_of(words: &mut [u64]) -> &mut [u8] {
    let len = size_of_val(words);
    // SAFETY: any bytes are words, and words are as many bytes.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), len) }
}
