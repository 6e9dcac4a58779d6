use super::*;
use gapless_dtype::{Datatype, Layout, Primitive};

mod recorded;
mod scattered;
mod staged;
mod staged_terms;
mod terms;

use staged::{cut, list};

/// A message of eight bytes within a node.
pub(super) fn node() -> Situation {
    Situation {
        bytes: 8,
        sender_blocks: 1,
        sender_span: 0,
        receiver_blocks: 1,
        devices: None,
        local: false,
        link_eager_bytes: 8192,
        latency_ns: 100.0,
        bandwidth_mb_s: 25_000.0,
        mapped: false,
        grants: false,
        single_copy: Some(SingleCopyCosts {
            operation_ns: 1000.0,
            piece_ns: 350.0,
            bandwidth_mb_s: 15_000.0,
            pieces_max: 1024,
            devices: false,
            register_ns: [0.0; 2],
        }),
        cached: false,
        layout_fetch_bytes: 0,
        layout_uses: 0,
        layout_fetch_max: 1 << 20,
        touched: None,
        staged: None,
        staged_read: None,
    }
}

fn winner(situation: &Situation) -> Protocol {
    choose(situation, &Tuning::default(), None, |_| true)
}

#[test]
fn what_caches_have_is_copied_once() {
    for bytes in [128 << 10, 512 << 10, 1 << 20] {
        let far = Situation { bytes, sender_span: bytes, ..node() };
        assert_eq!(winner(&far), Protocol::Pipeline, "{bytes}");
        assert_eq!(winner(&Situation { cached: true, ..far }), Protocol::SingleCopy, "{bytes}");
        assert_eq!(winner(&Situation { cached: true, mapped: true, ..far }), Protocol::Mapped);
        let nothing = Situation { cached: true, single_copy: None, ..far };
        assert_eq!(winner(&nothing), Protocol::Pipeline, "{bytes}");
    }
}

#[test]
fn small_is_eager_and_mappable_is_mapped() {
    assert_eq!(winner(&node()), Protocol::Eager);
    let large = Situation { bytes: 1 << 20, sender_blocks: 128, ..node() };
    assert_eq!(winner(&large), Protocol::Pipeline);
    assert_eq!(winner(&Situation { mapped: true, ..large }), Protocol::Mapped);
    assert_eq!(winner(&Situation { local: true, ..large }), Protocol::Local);
    // Runs of a byte take long however they are moved, and longer if they are moved twice.
    let bytes = Situation { sender_blocks: 1 << 20, receiver_blocks: 1 << 20, ..large };
    assert_eq!(winner(&Situation { local: true, ..bytes }), Protocol::Local);
}

#[test]
fn what_a_slot_holds_is_eager_unless_a_longer_part_can_be_mapped() {
    let ring = |bytes, mapped| {
        let s =
            Situation { bytes, sender_span: bytes, link_eager_bytes: 1 << 16, mapped, ..node() };
        winner(&Situation { sender_blocks: 1, receiver_blocks: 1, ..s })
    };
    for bytes in [2 << 10, 8 << 10, 32 << 10, 64 << 10] {
        assert_eq!(ring(bytes, false), Protocol::Eager, "{bytes} bytes");
    }
    assert_eq!(ring(8 << 10, true), Protocol::Eager);
    assert_eq!(ring(32 << 10, true), Protocol::Mapped);
}

#[test]
fn what_fits_one_fragment_does_not_gain_by_being_asked_for() {
    // Doubles apart: nothing overlaps, and the offer costs a rendezvous.
    for (bytes, blocks) in [(12_900, 3225), (18_432, 2304), (32_768, 4096)] {
        let sides = Situation { bytes, sender_blocks: blocks, receiver_blocks: blocks, ..node() };
        let s = Situation { link_eager_bytes: 1 << 16, sender_span: 64 * blocks, ..sides };
        assert_eq!(winner(&s), Protocol::Eager, "{blocks} blocks");
    }
}

#[test]
fn a_slow_ring_makes_single_copy_win_for_few_blocks_only() {
    let slow = Situation { bytes: 1 << 20, bandwidth_mb_s: 5_000.0, ..node() };
    assert_eq!(winner(&slow), Protocol::SingleCopy);
    assert_eq!(winner(&Situation { sender_blocks: 100_000, ..slow }), Protocol::Pipeline);
    let ends = DeviceEnds {
        locked: false,
        copies_only: false,
        sender: true,
        receiver: true,
        one_device: false,
        turns: false,
        sender_keeps: false,
    };
    assert_eq!(winner(&Situation { devices: Some(ends), ..slow }), Protocol::Pipeline);
}

#[test]
fn what_is_forced_wins_where_it_is_possible() {
    let tuning = Tuning::default();
    for force in [Protocol::Eager, Protocol::Pipeline, Protocol::SingleCopy] {
        assert_eq!(choose(&node(), &tuning, Some(force), |_| true), force);
    }
    // Mapping is impossible here: a rendezvous it stays.
    let chosen = choose(&node(), &tuning, Some(Protocol::Mapped), |_| true);
    assert_ne!(chosen, Protocol::Eager);
}

#[test]
fn below_the_sure_size_nothing_beats_eager() {
    let tuning = Tuning::default();
    for bytes in 0..=tuning.eager_bytes_sure {
        for blocks in [1, 2, bytes / 8 + 1] {
            let s = Situation {
                bytes,
                sender_blocks: blocks,
                receiver_blocks: blocks,
                mapped: true,
                ..node()
            };
            let eager = Protocol::Eager.cost(&s, &tuning);
            let pipeline = Protocol::Pipeline.cost(&s, &tuning);
            assert!(eager < pipeline, "{bytes} bytes in {blocks} blocks");
        }
    }
}

#[test]
fn short_runs_with_gaps_are_better_shared_by_two_processors() {
    let mapped = |bytes: u64, blocks, span| {
        let large = Situation { bytes, sender_blocks: blocks, receiver_blocks: blocks, ..node() };
        winner(&Situation { sender_span: span, mapped: true, ..large })
    };
    for bytes in [1 << 20, 8 << 20, 64 << 20] {
        // Half the rows of a matrix; its columns, which fill its memory; runs of 24 bytes, 28 of gaps between.
        assert_eq!(mapped(bytes, 362, 2 * bytes), Protocol::Mapped);
        assert_eq!(mapped(bytes, bytes / 8, bytes), Protocol::Mapped);
        assert_eq!(mapped(bytes, bytes / 24, bytes * 13 / 6), Protocol::Pipeline);
    }
    // A few runs touch few lines in part, however far apart they lie.
    assert_eq!(mapped(1 << 20, 362, u64::MAX), Protocol::Mapped);
}

/// Between two devices, whose memory can be mapped.
fn devices(bytes: u64, blocks: u64) -> Situation {
    let tuning = Tuning::default();
    let staged = Staging {
        sender_device: true,
        receiver_device: true,
        shared: true,
        one_device: false,
        direct: blocks == 1,
        fragment_bytes: tuning.staged_fragment_bytes,
        depth: tuning.staged_depth,
    };
    let ends = DeviceEnds {
        locked: false,
        copies_only: false,
        sender: true,
        receiver: true,
        one_device: false,
        turns: false,
        sender_keeps: false,
    };
    Situation {
        bytes,
        sender_blocks: blocks,
        receiver_blocks: blocks,
        devices: Some(ends),
        mapped: true,
        grants: true,
        single_copy: None,
        staged: Some(staged),
        ..node()
    }
}

/// The same where users' memory is not shared.
fn unshared(bytes: u64, blocks: u64) -> Situation {
    let s = devices(bytes, blocks);
    let staged = s.staged.map(|staging| Staging { direct: false, ..staging });
    Situation { mapped: false, grants: false, staged, ..s }
}

/// On one device.
fn together(s: Situation, turns: bool) -> Situation {
    Situation {
        devices: s.devices.map(|ends| DeviceEnds { one_device: true, turns, ..ends }),
        staged: s.staged.map(|staging| Staging { one_device: true, ..staging }),
        ..s
    }
}

fn time(s: &Situation, protocol: Protocol) -> f64 {
    candidates(s, &Tuning::default())[protocol.index()].predicted_ns
}

/// Payload over time, in GB/s.
fn rate(s: &Situation) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "short of 2^53")]
    let bytes = s.bytes as f64;
    bytes / time(s, winner(s))
}

#[test]
fn device_memory_that_can_be_mapped_is_moved_at_once() {
    for blocks in [1, 4096] {
        for shift in 14..=30 {
            let s = devices(1 << shift, blocks);
            // A copy engine that is fed by a local kernel is a little ahead of a kernel in the end.
            let best = time(&s, winner(&s));
            let mapped = time(&s, Protocol::Mapped);
            assert!(mapped <= 1.03 * best, "{} bytes, {blocks} blocks: {mapped} ns", s.bytes);
            assert!(shift > 28 || winner(&s) == Protocol::Mapped, "{} bytes", s.bytes);
            assert_eq!(winner(&together(s, false)), Protocol::Mapped);
            assert_eq!(winner(&together(s, true)), Protocol::Mapped, "the receiver has the device");
        }
    }
    // Whether it can be mapped is known only to the receiver, and then short ones have gone eagerly.
    assert_eq!(winner(&unshared(8, 1)), Protocol::Eager);
}

/// Where processes take turns, and the sender's is the one that moves everything.
fn kept_by_sender(s: Situation) -> Situation {
    let s = together(s, true);
    Situation { devices: s.devices.map(|ends| DeviceEnds { sender_keeps: true, ..ends }), ..s }
}

#[test]
fn a_device_that_is_shared_in_turns_stays_with_one_process() {
    let turn = Tuning::default().turn_ns;
    for blocks in [1, 4096] {
        for shift in 14..=30 {
            let here = kept_by_sender(devices(1 << shift, blocks));
            let there = together(devices(1 << shift, blocks), true);
            let what = format!("{} bytes, {blocks} blocks", here.bytes);
            assert_eq!(winner(&here), Protocol::MappedPut, "{what}");
            assert_eq!(winner(&there), Protocol::Mapped, "{what}");
            for (s, kept, other) in [
                (here, Protocol::MappedPut, Protocol::Mapped),
                (there, Protocol::Mapped, Protocol::MappedPut),
            ] {
                let saved = time(&s, other) - time(&s, kept);
                assert!(saved > 0.9 * turn, "{what}: {saved} ns");
            }
            // Where its memory is all that can be mapped, the other process has to.
            let alone = Situation { grants: false, ..here };
            // Copies through the host wait for nobody, as long as they are short.
            if blocks > 1 || shift >= 24 {
                assert_eq!(winner(&alone), Protocol::Mapped, "{what}");
            } else if shift <= 21 {
                assert_eq!(winner(&alone), Protocol::CopyInOut, "{what}");
            }
        }
    }
}

#[test]
fn memory_that_is_granted_is_written_where_it_is() {
    // Out of ordinary memory into memory that can be mapped.
    let large = Situation { bytes: 1 << 20, sender_blocks: 128, grants: true, ..node() };
    assert_eq!(winner(&large), Protocol::MappedPut);
    assert_eq!(winner(&Situation { mapped: true, ..large }), Protocol::Mapped);
    assert_eq!(winner(&Situation { local: true, ..large }), Protocol::Local);
    assert_eq!(winner(&Situation { bytes: 8, sender_blocks: 1, ..large }), Protocol::Eager);
    // A device writes the host's memory; the host writes no device's.
    for (bytes, blocks) in [(64 << 20, 1), (64 << 20, 4096), (1 << 20, 64)] {
        for device_sends in [true, false] {
            let s = devices(bytes, blocks);
            let ends = s.devices.map(|ends| DeviceEnds {
                sender: device_sends,
                receiver: !device_sends,
                ..ends
            });
            let staged = s.staged.map(|staging| Staging {
                sender_device: device_sends,
                receiver_device: !device_sends,
                direct: false,
                ..staging
            });
            let best = if device_sends { Protocol::MappedPut } else { Protocol::Mapped };
            let s = Situation { devices: ends, staged, ..s };
            assert_eq!(winner(&s), best, "{bytes} in {blocks}");
        }
    }
}

#[test]
fn the_model_comes_near_what_is_asked_of_two_devices() {
    // Of a peer copy, which takes 5.4 us and then 396 GB/s.
    for (shift, least) in [(20, 0.45), (22, 0.65), (24, 0.8), (26, 0.9), (28, 0.92), (30, 0.93)] {
        for blocks in [1, 4096] {
            let s = devices(1 << shift, blocks);
            #[expect(clippy::cast_precision_loss, reason = "short of 2^53")]
            let bytes = s.bytes as f64;
            let copy = bytes / (5400.0 + bytes / 396.0);
            let reached = rate(&s) / copy;
            assert!(reached >= least, "{reached} of a copy at {} bytes", s.bytes);
        }
    }
}

#[test]
fn where_nothing_is_shared_small_messages_are_stored_and_large_ones_copied() {
    assert_eq!(winner(&unshared(4096, 16)), Protocol::Eager);
    for blocks in [1, 4096] {
        for shift in 20..=30 {
            let chosen = winner(&unshared(1 << shift, blocks));
            assert!(chosen.is_staged() && !chosen.through_host(), "{chosen}");
        }
    }
    let kernels = [Protocol::StagedPut, Protocol::StagedGet];
    assert!(kernels.contains(&winner(&unshared(1 << 20, 4096))));
    let copies = [Protocol::StagedPutCopy, Protocol::StagedGetCopy];
    let quick = Tuning { copy_gap_ns: 1_000.0, ..Tuning::default() };
    assert!(copies.contains(&choose(&unshared(1 << 30, 4096), &quick, None, |_| true)));
}

/// A message from one layout to another between devices that map each other's memory.
fn between(from: &Layout, to: &Layout) -> Situation {
    let blocks = |layout: &Layout| layout.blocks_of(1).unwrap();
    let staged = devices(from.size(), 2).staged;
    Situation {
        sender_blocks: blocks(from),
        receiver_blocks: blocks(to),
        touched: Some(Touched::between((from, 1), (to, 1))),
        staged,
        ..devices(from.size(), 2)
    }
}

/// `rows` doubles of every column of a matrix of `n` columns, column by column where the rows lie.
fn transposed(rows: u64, n: u64) -> Layout {
    let double = Datatype::from(Primitive::Double);
    let column = Datatype::vector(n, 1, n.cast_signed(), &double).unwrap();
    let column = Datatype::resized(0, 8, &column).unwrap();
    Datatype::contiguous(rows, &column).unwrap().commit().unwrap()
}

#[test]
fn layouts_that_are_dense_in_memory_go_at_once() {
    // All of the matrix, as X, and half of each row, as in a distributed FFT.
    for rows in [2900, 1450] {
        let layout = transposed(rows, 2900);
        let s = between(&layout, &layout);
        assert_eq!(winner(&s), Protocol::Mapped, "{rows} rows");
        assert!(rate(&s) > 0.88 * 372.0, "{rows} rows: {} GB/s", rate(&s));
        // An equal one is as good, and one of another order is not.
        assert_eq!(between(&layout, &transposed(rows, 2900)).touched, s.touched);
        assert!(!between(&layout, &transposed(2 * rows, 1450)).touched.unwrap().alike);
    }
}

#[test]
fn in_turns_the_fewest_launches_win() {
    let s = together(unshared(64 << 20, 512), true);
    let gain = time(&s, Protocol::StagedPut)
        / time(&together(devices(64 << 20, 512), true), Protocol::Mapped);
    assert!(gain > 1.8, "{gain}");
}

#[test]
fn between_host_and_device_the_host_is_staged_through() {
    for device_sends in [true, false] {
        for blocks in [1, 4096] {
            let s = unshared(64 << 20, blocks);
            let staged = s.staged.map(|staging| Staging {
                sender_device: device_sends,
                receiver_device: !device_sends,
                ..staging
            });
            let ends = s.devices.map(|ends| DeviceEnds {
                sender: device_sends,
                receiver: !device_sends,
                ..ends
            });
            let s = Situation { staged, devices: ends, ..s };
            assert!(winner(&s).through_host(), "{}", winner(&s));
            for protocol in Protocol::STAGED {
                let found = candidates(&s, &Tuning::default())[protocol.index()].excluded;
                assert_eq!(found.is_none(), protocol.through_host(), "{protocol}");
            }
            // To map a device's memory takes another device.
            let mapped = candidates(&Situation { mapped: true, ..s }, &Tuning::default())[2];
            let refused = Some(Excluded::DeviceMemory).filter(|_| device_sends);
            assert_eq!(mapped.excluded, refused);
            let put = candidates(&Situation { grants: true, ..s }, &Tuning::default());
            let refused = Some(Excluded::DeviceMemory).filter(|_| !device_sends);
            assert_eq!(put[Protocol::MappedPut.index()].excluded, refused);
        }
    }
}

#[test]
fn without_staging_device_memory_goes_through_the_ring() {
    for bytes in [1 << 20, 1 << 28] {
        let s = Situation { staged: None, ..unshared(bytes, 64) };
        assert_eq!(winner(&s), Protocol::Pipeline);
    }
    for protocol in Protocol::STAGED {
        let s = Situation { staged: None, ..devices(1 << 20, 1) };
        assert_eq!(
            candidates(&s, &Tuning::default())[protocol.index()].excluded,
            Some(Excluded::NoStaging)
        );
        assert!(
            candidates(&node(), &Tuning::default())[protocol.index()].excluded.is_some(),
            "{protocol}"
        );
    }
}

/// But for fragments that come out a little longer or shorter.
#[test]
fn longer_messages_and_more_blocks_never_take_less() {
    let shapes: [fn(u64, u64) -> Situation; 4] = [
        devices,
        unshared,
        |bytes, blocks| together(unshared(bytes, blocks), true),
        |bytes, blocks| Situation { bytes, sender_blocks: blocks, mapped: true, ..node() },
    ];
    for shape in shapes {
        for protocol in Protocol::ALL {
            // Blocks of equal length, or one.
            for length in [8u64, 64, 4096, 1 << 40] {
                let mut before = 0.0;
                for shift in 4..36 {
                    let bytes = 1u64 << shift;
                    let blocks = (bytes / length).max(1);
                    let here = time(&shape(bytes, blocks), protocol);
                    let split = time(&shape(bytes, 2 * blocks), protocol);
                    assert!(
                        here >= 0.97 * before,
                        "{protocol}: {bytes} bytes in blocks of {length}"
                    );
                    assert!(
                        split >= 0.97 * here,
                        "{protocol}: {bytes} bytes in {blocks} blocks, or twice so many"
                    );
                    before = here;
                }
            }
        }
    }
}

#[test]
fn quicker_parts_never_make_a_message_slower() {
    let quicker: [fn(&mut Tuning); 6] = [
        |t| t.launch_wait_ns /= 2.0,
        |t| t.copy_gap_ns = 0.0,
        |t| t.peer_copy_mb_s *= 2.0,
        |t| t.device_mb_s *= 2.0,
        |t| t.import_ns = 0.0,
        |t| t.to_host_mb_s *= 2.0,
    ];
    for change in quicker {
        let mut tuning = Tuning::default();
        change(&mut tuning);
        for shift in 3..32 {
            for s in [devices(1 << shift, 100), unshared(1 << shift, 100)] {
                let before = candidates(&s, &Tuning::default());
                for (after, before) in candidates(&s, &tuning).iter().zip(&before) {
                    assert!(after.predicted_ns <= 1.03 * before.predicted_ns, "{}", after.protocol);
                }
            }
        }
    }
}

#[test]
fn numbers_that_a_peer_makes_up_do_no_harm() {
    let most = u64::MAX;
    let s = Situation {
        bytes: most,
        sender_blocks: most,
        receiver_blocks: most,
        mapped: true,
        grants: true,
        layout_fetch_bytes: most,
        layout_fetch_max: most,
        staged: devices(most, most).staged,
        devices: together(devices(most, most), true).devices,
        ..node()
    };
    let times = candidates(&s, &Tuning::default()).map(|candidate| candidate.predicted_ns);
    assert!(times.iter().all(|ns| ns.is_finite()), "{times:?}");
}

#[test]
fn a_layout_that_is_used_again_and_again_is_fetched_in_the_end() {
    let once = Situation { bytes: 1 << 20, mapped: true, layout_fetch_bytes: 100_000, ..node() };
    assert_eq!(winner(&once), Protocol::Pipeline);
    assert_eq!(winner(&Situation { layout_uses: 1, ..once }), Protocol::Pipeline);
    assert_eq!(winner(&Situation { layout_uses: 8, ..once }), Protocol::Mapped);
}

#[test]
fn a_layout_beyond_the_bound_is_not_fetched() {
    let s = Situation { bytes: 1 << 30, mapped: true, layout_fetch_bytes: 2 << 20, ..node() };
    assert_eq!(winner(&s), Protocol::Pipeline);
    let mapped = candidates(&s, &Tuning::default())[2];
    assert_eq!(mapped.excluded, Some(Excluded::LayoutTooLong));
}
