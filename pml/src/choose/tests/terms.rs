//! The cost model, term by term: numbers that make every term of a formula different, and the sums written out. Other
//! tests compare protocols and would not see a term that is wrong in all of them, or wrong by little.

use super::*;
use crate::cost::device_fragment;

const BYTES: u64 = 1_000_000;

/// Nanoseconds for all bytes of the message, at so many MB/s.
pub(super) const fn copy(mb_s: f64) -> f64 {
    1e9 / mb_s
}

pub(super) fn tuning() -> Tuning {
    Tuning {
        rendezvous_ns: 1_000.0,
        map_ns: 7_000.0,
        block_ns: 10.0,
        pipeline_mb_s: 10_000.0,
        mapped_mb_s: 4_000.0,
        single_copy_mb_s: 8_000.0,
        single_copy_batch_bytes: 250_000,
        layout_mb_s: 500.0,
        fragment_bytes: 100_000,
        depth: 4,
        device_fragment_bytes: 100_000,
        device_fragment_least_bytes: 100_000,
        staged_least_bytes: 1 << 20,
        device_rendezvous_ns: 1_300.0,
        device_map_ns: 8_000.0,
        device_host_mb_s: 4_500.0,
        device_host_block_ns: 11.0,
        launch_ns: 4_000.0,
        launch_wait_ns: 30_000.0,
        copy_gap_ns: 6_000.0,
        turn_ns: 400_000.0,
        device_mb_s: 5_000.0,
        device_block_ns: 20.0,
        device_copy_mb_s: 6_000.0,
        peer_store_mb_s: 2_000.0,
        peer_load_mb_s: 1_600.0,
        peer_copy_mb_s: 2_500.0,
        copy_bytes_min: BYTES,
        to_host_mb_s: 3_000.0,
        from_host_mb_s: 3_200.0,
        store_host_mb_s: 1_000.0,
        load_host_mb_s: 1_250.0,
        import_ns: 900.0,
        import_same_ns: 600.0,
        import_uses: 3,
        ..Tuning::default()
    }
}

/// 3 runs at the sender, 5 at the receiver, in memory of hosts; two cache lines of the sender's are not filled.
fn host() -> Situation {
    Situation {
        bytes: BYTES,
        sender_blocks: 3,
        receiver_blocks: 5,
        sender_span: BYTES + 128,
        latency_ns: LATENCY,
        bandwidth_mb_s: 5_000.0,
        layout_fetch_bytes: 100,
        layout_uses: 4,
        ..node()
    }
}

#[track_caller]
pub(super) fn takes(s: &Situation, t: &Tuning, protocol: Protocol, terms: &[f64]) {
    let ns = protocol.cost(s, t);
    let sum: f64 = terms.iter().sum();
    assert!((ns - sum).abs() < 1e-3, "{protocol}: {ns}, not {sum}: {terms:?}");
}

pub(super) const LATENCY: f64 = 3.0;
/// Two latencies and a rendezvous, between hosts.
const HANDSHAKE: f64 = 1_000.0 + 2.0 * LATENCY;
const MAP: f64 = 7_000.0;
/// The same with a device.
pub(super) const DEVICE_RENDEZVOUS: f64 = 1_300.0;
pub(super) const DEVICE_HANDSHAKE: f64 = DEVICE_RENDEZVOUS + 2.0 * LATENCY;
pub(super) const DEVICE_MAP: f64 = 8_000.0;
/// Two latencies and 100 bytes, for one message of four.
const FETCH: f64 = (2.0 * LATENCY + 200.0) / 4.0;

#[test]
fn between_hosts() {
    let (s, t) = (host(), tuning());
    let copies = [copy(5_000.0), copy(10_000.0)];
    takes(&s, &t, Protocol::Eager, &[LATENCY, 8.0 * 10.0, copies[0], copies[1], 2.0 * 10.0]);
    // A tenth is the first fragment, with 0.3 blocks; in it, bytes and runs do not overlap.
    let first = [HANDSHAKE, LATENCY, 1.1 * copy(5_000.0), 0.1 * 5.3 * 10.0, 2.0 * 10.0];
    takes(&s, &t, Protocol::Pipeline, &first);
    let blocks = Tuning { block_ns: 100_000.0, ..t };
    let bytes = 0.1 * 1.1 * copy(5_000.0);
    let first = [HANDSHAKE, LATENCY, 5.3 * 100_000.0, bytes, 2.0 * 100_000.0];
    takes(&s, &blocks, Protocol::Pipeline, &first);
    // The ring is no quicker than the processor.
    let quick = Situation { bandwidth_mb_s: 1e6, ..s };
    let first = [HANDSHAKE, LATENCY, 1.1 * copy(10_000.0), 0.1 * 5.3 * 10.0, 2.0 * 10.0];
    takes(&quick, &t, Protocol::Pipeline, &first);
    let moved = copy(4_000.0) + 5.0 * 0.17 * 10.0 + 2.0 * 6.5 * 10.0;
    takes(&s, &t, Protocol::Mapped, &[LATENCY, 1_000.0, MAP, FETCH, moved]);
    takes(&s, &t, Protocol::MappedPut, &[HANDSHAKE, LATENCY, MAP, moved]);
    takes(&s, &t, Protocol::Local, &[HANDSHAKE, 5.0 * 10.0, copy(4_000.0)]);
    // No more lines are touched in part than there are runs, or than the buffer spans.
    let lines = |sender_span| {
        let moved = Protocol::Mapped.cost(&Situation { sender_span, ..s }, &t);
        (moved - LATENCY - 1_000.0 - MAP - FETCH - copy(4_000.0) - 8.5) / 65.0
    };
    for (span, wasted) in [(0, 0.0), (BYTES + 63, 0.0), (BYTES + 64, 1.0), (BYTES + 640, 3.0)] {
        assert!((lines(span) - wasted).abs() < 1e-3, "{span}: {}", lines(span));
    }
}

#[test]
fn by_single_copies() {
    let (t, before) = (tuning(), LATENCY + 1_000.0 + FETCH);
    let costs = SingleCopyCosts {
        operation_ns: 100.0,
        piece_ns: 7.0,
        bandwidth_mb_s: 2_000.0,
        pieces_max: 2,
        devices: false,
        register_ns: [0.0; 2],
    };
    let s = Situation { single_copy: Some(costs), ..host() };
    // Four batches of bytes; three of runs, if all bytes fit into one.
    let pieces = 5.0 * 7.0 + copy(2_000.0);
    takes(&s, &t, Protocol::SingleCopy, &[before, 400.0, pieces]);
    let long = Tuning { single_copy_batch_bytes: BYTES, ..t };
    takes(&s, &long, Protocol::SingleCopy, &[before, 300.0, pieces]);
    let none = Situation { single_copy: None, ..s };
    takes(&none, &t, Protocol::SingleCopy, &[before, copy(8_000.0)]);
}

#[test]
fn short_runs_of_unlike_layouts_are_copied_twice() {
    let t = tuning();
    let copies = |sender_blocks, receiver_blocks: u64| {
        let s = Situation { sender_blocks, receiver_blocks, sender_span: 0, ..host() };
        let more = f64::from(u32::try_from(receiver_blocks.max(sender_blocks)).unwrap());
        let moved = Protocol::Mapped.cost(&s, &t);
        (moved - LATENCY - 1_000.0 - MAP - FETCH - more * 1.7) / copy(4_000.0)
    };
    // 511 and 512 bytes a run; alike; without gaps on one side.
    for (from, to, expected) in
        [(1953, 1954, 2.0), (1954, 2, 2.0), (1952, 1953, 1.0), (1954, 1954, 1.0), (1, 1954, 1.0)]
    {
        let copies = copies(from, to);
        assert!((copies - expected).abs() < 1e-6, "{from} runs to {to}: {copies}");
    }
}

/// The same message with an end in device memory, or both.
pub(super) fn ends(sender: bool, receiver: bool) -> Situation {
    let ends = DeviceEnds {
        sender,
        receiver,
        one_device: false,
        turns: false,
        sender_keeps: false,
        locked: false,
        copies_only: false,
    };
    let staged = Staging {
        sender_device: sender,
        receiver_device: receiver,
        shared: true,
        one_device: false,
        direct: false,
        fragment_bytes: 1 << 20,
        depth: 2,
    };
    Situation { devices: Some(ends), staged: Some(staged), ..host() }
}

pub(super) fn with(s: Situation, change: impl Fn(&mut DeviceEnds)) -> Situation {
    let devices = s.devices.map(|mut ends| {
        change(&mut ends);
        ends
    });
    Situation { devices, ..s }
}

pub(super) const WAIT: f64 = 30_000.0;
pub(super) const TURN: f64 = 400_000.0;
/// A device's runs: three at the sender, five at the receiver.
pub(super) const SENT: f64 = 3.0 * 20.0;
pub(super) const RECEIVED: f64 = 5.0 * 20.0;

#[test]
fn through_the_ring_with_devices() {
    let t = tuning();
    let (out, into) = (SENT + copy(1_000.0), RECEIVED + copy(1_250.0));
    let both = ends(true, true);
    takes(&both, &t, Protocol::Eager, &[LATENCY, 2.0 * WAIT, out, into]);
    let turns = with(both, |ends| ends.turns = true);
    takes(&turns, &t, Protocol::Eager, &[LATENCY, 2.0 * WAIT, TURN, out, into]);
    let gapless = Situation { sender_blocks: 1, receiver_blocks: 1, ..turns };
    let copies = [LATENCY, 2.0 * WAIT, copy(1_000.0), copy(1_250.0)];
    takes(&gapless, &t, Protocol::Eager, &copies);
    for (sender_blocks, receiver_blocks) in [(1, 5), (3, 1)] {
        let s = Situation { sender_blocks, receiver_blocks, ..turns };
        let runs = if sender_blocks > 1 { SENT } else { RECEIVED };
        let kernels = [LATENCY, 2.0 * WAIT, TURN, copy(1_000.0), copy(1_250.0), runs];
        takes(&s, &t, Protocol::Eager, &kernels);
    }
    let host_out = 3.0 * 11.0 + copy(4_500.0);
    takes(&ends(false, true), &t, Protocol::Eager, &[LATENCY, WAIT, host_out, into]);
    let host_in = 5.0 * 11.0 + copy(4_500.0);
    takes(&ends(true, false), &t, Protocol::Eager, &[LATENCY, WAIT, out, host_in]);
    // One of the two copies of a slow rail.
    let slow = Situation { bandwidth_mb_s: 2_000.0, ..ends(true, false) };
    let host_in = 5.0 * 11.0 + copy(4_000.0);
    takes(&slow, &t, Protocol::Eager, &[LATENCY, WAIT, out, host_in]);

    // Ten fragments, four at a time: three rounds.
    let fill = into / 10.0;
    takes(&both, &t, Protocol::Pipeline, &[DEVICE_HANDSHAKE, LATENCY, 2.0 * WAIT, out, fill]);
    let rounds = [DEVICE_HANDSHAKE, LATENCY, 2.0 * WAIT, 6.0 * TURN, out, fill];
    takes(&turns, &t, Protocol::Pipeline, &rounds);
    let slow = Tuning { launch_ns: 90_000.0, ..t };
    let launches = [DEVICE_HANDSHAKE, LATENCY, 2.0 * WAIT, out, 90_000.0];
    takes(&both, &slow, Protocol::Pipeline, &launches);
    let alone = [DEVICE_HANDSHAKE, LATENCY, WAIT, into, host_out / 10.0];
    takes(
        &ends(false, true),
        &slow,
        Protocol::Pipeline,
        &[&alone[..], &[900_000.0 - into]].concat(),
    );
    takes(&ends(false, true), &t, Protocol::Pipeline, &alone);
    takes(&both, &t, Protocol::Local, &[DEVICE_HANDSHAKE, WAIT, SENT, RECEIVED, copy(5_000.0)]);
}

#[test]
fn over_a_network_with_devices() {
    let t = tuning();
    let (out, into) = (SENT + copy(1_000.0), RECEIVED + copy(1_250.0));
    // A quick one, which sets no pace, and a slow one.
    let quick = Situation { staged: None, ..ends(true, true) };
    let eager = [LATENCY, 2.0 * WAIT, out, into, copy(5_000.0)];
    takes(&quick, &t, Protocol::Eager, &eager);
    let before = [DEVICE_HANDSHAKE, LATENCY, 2.0 * WAIT];
    takes(&quick, &t, Protocol::Pipeline, &[&before[..], &[out, into / 10.0]].concat());
    let slow = Situation { bandwidth_mb_s: 500.0, ..quick };
    // The receiver waits for the first of ten fragments; each costs a launch and its way.
    let wire = [copy(500.0), copy(500.0) / 10.0, 10.0 * (4_000.0 + LATENCY), into / 10.0];
    takes(&slow, &t, Protocol::Pipeline, &[&before[..], &wire].concat());
}

#[test]
fn fragments_of_devices_are_as_long_as_launches_cost() {
    let t = Tuning { launch_ns: 4_000.0, ..Tuning::default() };
    let of = |bytes, bandwidth_mb_s, t: &Tuning| {
        let s = Situation { bytes, bandwidth_mb_s, staged: None, ..ends(true, true) };
        device_fragment(&s, t)
    };
    // On one host they are as long as all.
    assert_eq!(device_fragment(&ends(true, true), &t), t.fragment_bytes);
    // The root of 10 kB a fragment times the bytes goes 9.99 times into them, and 3.16 times: 9 and 3 fragments alike,
    // in whole grains. What is not worth two is one.
    assert_eq!(of(1_000_000, 2_500.0, &t), 114_688);
    assert_eq!(of(100_000, 2_500.0, &t), 36_864);
    assert_eq!(of(39_000, 2_500.0, &t), 40_960);
    let bounds = [t.device_fragment_least_bytes, t.device_fragment_bytes];
    assert_eq!([1, 1 << 40].map(|bytes| of(bytes, 2_500.0, &t)), bounds);
    assert_eq!(of(1_000_000, 0.0, &t), 16 << 10);
    let forced = t.clone().in_fragments(1000);
    assert_eq!([1, 1 << 20, u64::MAX].map(|bytes| of(bytes, 2_500.0, &forced)), [1000; 3]);
    let crossed = Tuning { device_fragment_bytes: 5, device_fragment_least_bytes: 9, ..t };
    assert_eq!(of(1 << 20, 2_500.0, &crossed), 5);
}

#[test]
fn mapped_memory_of_devices() {
    let t = tuning();
    let before = LATENCY + DEVICE_RENDEZVOUS + DEVICE_MAP + WAIT;
    let put = DEVICE_HANDSHAKE + LATENCY + DEVICE_MAP + WAIT;
    let short = Tuning { copy_bytes_min: BYTES + 1, ..t };
    let same = |s| with(s, |ends| ends.one_device = true);
    let runs = SENT + RECEIVED;
    // With gaps, or short: kernels. Without gaps and long: copy engines.
    for (s, get_mb_s, put_mb_s, [get_copy, put_copy], import) in [
        (ends(true, true), 1_600.0, 2_000.0, [2_500.0; 2], 300.0),
        (same(ends(true, true)), 5_000.0, 5_000.0, [6_000.0; 2], 200.0),
    ] {
        let gapless = Situation { sender_blocks: 1, receiver_blocks: 1, ..s };
        takes(&s, &t, Protocol::Mapped, &[before, import, runs, copy(get_mb_s)]);
        takes(&s, &t, Protocol::MappedPut, &[put, import, runs, copy(put_mb_s)]);
        takes(&gapless, &t, Protocol::Mapped, &[before, import, copy(get_copy)]);
        takes(&gapless, &t, Protocol::MappedPut, &[put, import, copy(put_copy)]);
        takes(&gapless, &short, Protocol::Mapped, &[before, import, copy(get_mb_s)]);
        takes(&gapless, &short, Protocol::MappedPut, &[put, import, copy(put_mb_s)]);
        for (sender_blocks, receiver_blocks, run) in [(3, 1, SENT), (1, 5, RECEIVED)] {
            let s = Situation { sender_blocks, receiver_blocks, ..s };
            takes(&s, &t, Protocol::Mapped, &[before, import, run, copy(get_mb_s)]);
            takes(&s, &t, Protocol::MappedPut, &[put, import, run, copy(put_mb_s)]);
        }
    }
    // Memory of the host is never imported.
    let gapless = |s| Situation { sender_blocks: 1, receiver_blocks: 1, ..s };
    let from_host = ends(false, true);
    takes(&from_host, &t, Protocol::Mapped, &[before, runs, copy(1_250.0)]);
    takes(&gapless(from_host), &t, Protocol::Mapped, &[before, copy(3_200.0)]);
    let to_host = ends(true, false);
    takes(&to_host, &t, Protocol::MappedPut, &[put, runs, copy(1_000.0)]);
    takes(&gapless(to_host), &t, Protocol::MappedPut, &[put, copy(3_000.0)]);
}

#[test]
fn a_switch_of_the_device_is_paid_by_who_does_not_keep_it() {
    let t = tuning();
    let moved = SENT + RECEIVED + copy(5_000.0) + 200.0;
    let before = LATENCY + DEVICE_RENDEZVOUS + DEVICE_MAP + WAIT + moved;
    let put = DEVICE_HANDSHAKE + LATENCY + DEVICE_MAP + WAIT + moved;
    for (sender_keeps, [get_turns, put_turns]) in [(true, [1.0, 0.05]), (false, [0.05, 1.0])] {
        let s = with(ends(true, true), |ends| {
            *ends = DeviceEnds { one_device: true, turns: true, sender_keeps, ..*ends };
        });
        takes(&s, &t, Protocol::Mapped, &[before, get_turns * TURN]);
        takes(&s, &t, Protocol::MappedPut, &[put, put_turns * TURN]);
    }
}

#[test]
fn sectors_across_a_link() {
    let t = tuning();
    let before = LATENCY + DEVICE_RENDEZVOUS + DEVICE_MAP + WAIT + 300.0;
    let put = DEVICE_HANDSHAKE + LATENCY + DEVICE_MAP + WAIT + 300.0;
    let touched =
        Touched { read_sectors: 50_000, written_sectors: 62_500, rows: 3_907, alike: false };
    let s = |touched| Situation { touched: Some(touched), ..ends(true, true) };
    // Scattered: 32 bytes a sector, 1.6 and 2 MB.
    takes(&s(touched), &t, Protocol::Mapped, &[before, 1.6 * copy(1_600.0)]);
    takes(&s(touched), &t, Protocol::MappedPut, &[put, 2.0 * copy(2_000.0)]);
    // Dense: all bytes.
    let dense = Touched { read_sectors: 31_250, written_sectors: 1, ..touched };
    takes(&s(dense), &t, Protocol::Mapped, &[before, copy(1_600.0)]);
    takes(&s(dense), &t, Protocol::MappedPut, &[put, copy(2_000.0)]);
    // Rows of 256 bytes are copied, if there are enough bytes.
    let rows = Touched { rows: 3_906, ..touched };
    takes(&s(rows), &t, Protocol::Mapped, &[before, copy(2_500.0)]);
    takes(&s(rows), &t, Protocol::MappedPut, &[put, copy(2_500.0)]);
    let short = Tuning { copy_bytes_min: BYTES + 1, ..t };
    takes(&s(rows), &short, Protocol::Mapped, &[before, 1.6 * copy(1_600.0)]);
    // The near side's runs take long: unless both sides are alike, and any order will do.
    let slow = Tuning { device_block_ns: 1e6, ..t };
    takes(&s(touched), &slow, Protocol::Mapped, &[before, 8e6, copy(5_000.0)]);
    let alike = Touched { alike: true, ..touched };
    takes(&s(alike), &slow, Protocol::Mapped, &[before, 1.6 * copy(1_600.0)]);
    // Within one device, or to the host, runs count.
    let within = with(s(touched), |ends| ends.one_device = true);
    let runs = SENT + RECEIVED + copy(5_000.0) - 100.0;
    takes(&within, &t, Protocol::Mapped, &[before, runs]);
    let to_host = Situation { touched: Some(touched), ..ends(true, false) };
    takes(&to_host, &t, Protocol::MappedPut, &[put - 300.0, SENT + RECEIVED, copy(1_000.0)]);
}

/// What a host measures is of no account where a device's memory is an end.
#[test]
fn numbers_of_the_host_leave_messages_of_devices_alone() {
    let t = Tuning::default();
    let other = Tuning {
        rendezvous_ns: 9e5,
        pipeline_mb_s: 17.0,
        mapped_mb_s: 19.0,
        map_ns: 9e4,
        single_copy_mb_s: 23.0,
        block_ns: 900.0,
        ..t.clone()
    };
    for (sender, receiver) in [(true, true), (true, false), (false, true)] {
        for s in [ends(sender, receiver), with(ends(sender, receiver), |ends| ends.turns = true)] {
            for protocol in Protocol::ALL.into_iter().filter(|one| *one != Protocol::SingleCopy) {
                let [here, there] = [&t, &other].map(|t| protocol.cost(&s, t));
                assert_eq!(here.to_bits(), there.to_bits(), "{protocol}");
            }
        }
    }
}
