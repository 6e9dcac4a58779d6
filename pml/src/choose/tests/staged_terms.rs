//! The formulas of staged protocols, term by term: see `terms.rs`.

use super::terms::*;
use super::*;

/// A device's work on all bytes where it packs, and where it unpacks.
const PACK: f64 = SENT + copy(5_000.0);
const UNPACK: f64 = RECEIVED + copy(5_000.0);
/// What every staged message begins with.
const BEFORE: f64 = DEVICE_HANDSHAKE + DEVICE_MAP + LATENCY + DEVICE_RENDEZVOUS;
/// RING and FREE, or READY.
const ASKED: f64 = DEVICE_HANDSHAKE;

/// One end launches so many kernels and copies a fragment, and waits for the first.
fn launched(each: f64) -> f64 {
    each * 4_000.0 + 26_000.0
}

fn staging(s: Situation, change: impl Fn(&mut Staging)) -> Situation {
    let staged = s.staged.map(|mut staging| {
        change(&mut staging);
        staging
    });
    Situation { staged, ..s }
}

/// Fragments of 256 KiB: three, and one that is shorter.
fn in_four(s: Situation) -> (Situation, Tuning) {
    let least = Tuning { staged_least_bytes: 1 << 18, ..tuning() };
    (staging(s, |staging| staging.fragment_bytes = 1 << 18), least)
}

/// The share of the first of those four, and of the last.
const FIRST: f64 = 0.262_144;
const LAST: f64 = 0.213_568;

#[test]
fn one_fragment_passes_stage_after_stage() {
    let (s, t) = (ends(true, true), tuning());
    let two = 2.0 * launched(1.0);
    takes(&s, &t, Protocol::StagedPut, &[BEFORE, two, copy(2_000.0), UNPACK]);
    let three = launched(2.0) + launched(1.0);
    takes(&s, &t, Protocol::StagedPutCopy, &[BEFORE, three, PACK, copy(2_500.0), UNPACK]);
    // Get waits for another launch before it begins.
    takes(&s, &t, Protocol::StagedGet, &[BEFORE, ASKED, WAIT, two, PACK, copy(1_600.0)]);
    let get_copy = [BEFORE, ASKED, WAIT, three, PACK, copy(2_500.0), UNPACK];
    takes(&s, &t, Protocol::StagedGetCopy, &get_copy);
    let through = [BEFORE, ASKED, PACK, copy(3_000.0), copy(3_200.0), UNPACK];
    takes(&s, &t, Protocol::CopyInOut, &[&through[..], &[2.0 * launched(2.0)]].concat());
    takes(&s, &t, Protocol::ZeroCopyInOut, &[BEFORE, ASKED, two, copy(1_000.0), copy(1_250.0)]);
    let none = Situation { staged: None, ..s };
    assert!(Protocol::StagedPut.cost(&none, &t) >= f64::MAX);
    // Without gaps nothing is packed before a copy.
    let gapless = Situation { sender_blocks: 1, receiver_blocks: 1, ..s };
    let through = [BEFORE, ASKED, 2.0 * launched(1.0), copy(3_000.0), copy(3_200.0)];
    takes(&gapless, &t, Protocol::CopyInOut, &through);
    // A device whose runs take longer than the link.
    let slow = Tuning { device_block_ns: 1e6, ..t };
    let (pack, unpack) = (3e6 + copy(5_000.0), 5e6 + copy(5_000.0));
    takes(&s, &slow, Protocol::StagedPut, &[BEFORE, two, pack, unpack]);
    takes(&s, &slow, Protocol::StagedGet, &[BEFORE, ASKED, WAIT, two, pack, unpack]);
    takes(&s, &slow, Protocol::ZeroCopyInOut, &[BEFORE, ASKED, two, pack, unpack]);
}

#[test]
fn the_processor_is_a_stage_where_its_memory_is() {
    let t = tuning();
    // Five share the runs.
    let (sent, received) = (33.0 / 5.0 + copy(4_500.0), 55.0 / 5.0 + copy(4_500.0));
    let from = [BEFORE, ASKED, launched(2.0), sent, copy(3_200.0), UNPACK];
    takes(&ends(false, true), &t, Protocol::CopyInOut, &from);
    let to = [BEFORE, ASKED, launched(2.0), PACK, copy(3_000.0), received];
    takes(&ends(true, false), &t, Protocol::CopyInOut, &to);
    let from = [BEFORE, ASKED, launched(1.0), sent, copy(1_250.0)];
    takes(&ends(false, true), &t, Protocol::ZeroCopyInOut, &from);
    // Fragments cost the processor 1 us each, where it sets the pace.
    let (s, t) = in_four(ends(false, true));
    let slow = Tuning { device_host_mb_s: 500.0, ..t };
    let sent = 33.0 / 5.0 + copy(500.0);
    let behind = LAST * (copy(3_200.0) + UNPACK);
    takes(&s, &slow, Protocol::CopyInOut, &[BEFORE, ASKED, launched(2.0), sent, 3_000.0, behind]);
    // Copy engines are slower beside it than between devices.
    let quick =
        Tuning { from_host_mb_s: 80_000.0, to_host_mb_s: 80_000.0, device_host_mb_s: 1e9, ..slow };
    let pace = [BEFORE, ASKED, launched(1.0), copy(20_000.0)];
    let s = Situation { sender_blocks: 1, receiver_blocks: 1, ..ends(false, true) };
    let host = 11.0 / 5.0 + copy(1e9);
    takes(&s, &quick, Protocol::CopyInOut, &[pace.as_slice(), &[host]].concat());
}

#[test]
fn fragments_overlap_and_have_gaps_between() {
    let (s, t) = in_four(ends(true, true));
    let two = 2.0 * launched(1.0);
    let kernels = [BEFORE, two, copy(2_000.0), 3.0 * 800.0, LAST * UNPACK];
    takes(&s, &t, Protocol::StagedPut, &kernels);
    let three = launched(2.0) + launched(1.0);
    let beside = FIRST * PACK + LAST * UNPACK;
    takes(&s, &t, Protocol::StagedPutCopy, &[BEFORE, three, copy(2_500.0), 18_000.0, beside]);
    // Where packing is the slowest, each kernel waits for the copy before it.
    let slow = Tuning { device_block_ns: 1e6, ..t };
    let s = Situation { receiver_blocks: 2, ..s };
    let behind = LAST * (copy(2_500.0) + 2e6 + copy(5_000.0));
    let pack = 3e6 + copy(5_000.0);
    takes(&s, &slow, Protocol::StagedPutCopy, &[BEFORE, three, pack, 9_000.0, behind]);
    // The processor that launches sets the pace.
    let slow = Tuning { launch_ns: 1e6, ..t };
    takes(&s, &slow, Protocol::StagedPutCopy, &[BEFORE, 3e6, 8e6]);
    takes(&s, &slow, Protocol::StagedGetCopy, &[BEFORE, ASKED, WAIT, 3e6, 8e6]);
}

#[test]
fn a_buffer_that_is_a_ring_is_imported_and_not_unpacked() {
    let t = tuning();
    let direct = staging(ends(true, true), |staging| staging.direct = true);
    takes(&direct, &t, Protocol::StagedPut, &[BEFORE, launched(1.0), copy(2_000.0), 300.0]);
    let two = 2.0 * launched(1.0);
    takes(&direct, &t, Protocol::StagedGet, &[BEFORE, ASKED, WAIT, two, PACK, copy(1_600.0)]);
    let near = staging(direct, |staging| staging.one_device = true);
    takes(&near, &t, Protocol::StagedPut, &[BEFORE, launched(1.0), PACK, 200.0]);
    let copied = [BEFORE, launched(2.0), PACK, copy(6_000.0), 200.0];
    takes(&near, &t, Protocol::StagedPutCopy, &copied);
    let none = Tuning { import_uses: 0, ..t };
    takes(&near, &none, Protocol::StagedPutCopy, &[&copied[..4], &[600.0]].concat());
}

#[test]
fn on_one_device_stages_add_up() {
    let t = Tuning { staged_least_bytes: 1, ..tuning() };
    let near = staging(ends(true, true), |staging| staging.one_device = true);
    let two = 2.0 * launched(1.0);
    assert!(cut(Protocol::StagedPut, &near, &t).total() > 1);
    takes(&near, &t, Protocol::StagedPut, &[BEFORE, two, PACK, UNPACK]);
    takes(&near, &t, Protocol::StagedGet, &[BEFORE, ASKED, WAIT, two, PACK, UNPACK]);
}

#[test]
fn in_turns_every_round_waits_twice() {
    let t = Tuning { staged_least_bytes: 1, ..tuning() };
    let turns = |s| with(s, |ends| ends.turns = true);
    let s = turns(ends(true, true));
    let two = 2.0 * launched(1.0);
    let once = [BEFORE, two, copy(2_000.0), UNPACK, 2.0 * TURN];
    takes(&s, &t, Protocol::StagedPut, &once);
    assert_eq!(cut(Protocol::StagedPut, &s, &t).total(), 2);
    let narrow = staging(s, |staging| (staging.fragment_bytes, staging.depth) = (1 << 18, 1));
    takes(&narrow, &t, Protocol::StagedPut, &[BEFORE, two, copy(2_000.0), UNPACK, 8.0 * TURN]);
    // Only the sender's kernels fill a buffer that is a ring.
    let direct = staging(narrow, |staging| staging.direct = true);
    let filled = [BEFORE, launched(1.0), copy(2_000.0), 3.0 * 800.0, 300.0, TURN];
    takes(&direct, &t, Protocol::StagedPut, &filled);
    // Copies to and from the host wait for no turn, unless something is packed.
    let through = |sender_blocks, receiver_blocks, terms: &[f64]| {
        let s = Situation { sender_blocks, receiver_blocks, ..narrow };
        takes(&s, &t, Protocol::CopyInOut, &[&[BEFORE, ASKED], terms].concat());
    };
    let behind = LAST * copy(3_200.0);
    through(1, 1, &[two, copy(3_000.0), 18_000.0, behind]);
    let once = launched(2.0) + launched(1.0);
    let work = copy(3_000.0) + copy(3_200.0) + 8.0 * TURN;
    through(3, 1, &[once, PACK, work]);
    through(1, 5, &[once, UNPACK, work]);
}
