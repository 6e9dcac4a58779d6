//! The staged protocols, where everything goes well: every protocol, layout, length and depth, many
//! messages at a time, and what is done where a protocol is impossible.

use crate::common::lab::{FRAGMENT, Lab, config, layout};
use crate::common::{Buffer, Home, bytes, link};
use gapless_btl::Btl;
use gapless_btl::loopback::{self, Loopback};
use gapless_btl_testkit::fault::{Fault, Plan};
use gapless_dtype::testkit::Rng;
use gapless_engine::testkit::FakeEngine;
use gapless_pml::{Bounds, Config, PmlError, Protocol, Source, TagSel, Tuning};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const SIZES: [u64; 6] = {
    let fragment = FRAGMENT as u64;
    [1, fragment - 1, fragment, fragment + 1, 2 * fragment, 23 * fragment + 7]
};

#[test]
fn every_way_layout_length_and_depth() {
    for protocol in Protocol::STAGED {
        for depth in [1, 2, 4, 64] {
            let mut lab = Lab::new(config(protocol, depth), depth % 3);
            let mut with_gaps = [0; 2];
            for size in SIZES {
                for gaps in 0..4 {
                    let what = format!("{size} bytes by {protocol}, depth {depth}, gaps {gaps}");
                    let (a, b) = (layout(size, gaps & 1 == 1), layout(size, gaps & 2 == 2));
                    let from = Buffer::source_in(&a, 1, size, lab.home(true));
                    let to = Buffer::target_in(&b, 1, lab.home(true));
                    for (all, end) in with_gaps.iter_mut().zip([&from, &to]) {
                        let gaps = end.typed().as_contiguous().is_none();
                        *all += u64::from(gaps) * size.div_ceil(FRAGMENT.into());
                    }
                    let status = lab.carry(&from, &to, &what);
                    assert_eq!((status.protocol, status.bytes), (protocol, size), "{what}");
                }
            }
            let (out, back) = (lab.job.pml(0).counters(), lab.job.pml(1).counters());
            let (out, back) = (out.of(protocol), back.of(protocol));
            let fragments: u64 = SIZES.iter().map(|size| 4 * size.div_ceil(FRAGMENT.into())).sum();
            let bytes: u64 = SIZES.iter().map(|size| 4 * size).sum();
            for counts in [out, back] {
                assert_eq!((counts.messages, counts.bytes), (24, bytes), "{protocol}: {counts:?}");
                let moved = (counts.fragments, counts.staged_bytes);
                assert_eq!(moved, (fragments, bytes), "{protocol}: {counts:?}");
                assert!(counts.depth_max <= depth, "{protocol}, depth {depth}: {counts:?}");
            }
            assert_eq!(out.depth_max, depth.min(24), "{protocol}: {out:?}");
            assert_eq!((out.unpacks, back.packs), (0, 0), "{protocol}");
            let copies = [out.copies, back.copies].map(|copies| copies > 0);
            let expected = match protocol {
                Protocol::StagedPutCopy => [true, false],
                Protocol::StagedGetCopy => [false, true],
                Protocol::CopyInOut => [true, true],
                _ => [false, false],
            };
            assert_eq!(copies, expected, "{protocol}: {out:?} {back:?}");
            // A copy engine takes every fragment, and a kernel before or behind it those with gaps.
            let kernels = [out.packs, back.unpacks];
            let ends = expected.into_iter().zip(with_gaps).zip([out.copies, back.copies]);
            for (((copied, with_gaps), copies), kernels) in ends.zip(kernels) {
                let right = if copied { (with_gaps, fragments) } else { (fragments, 0) };
                assert_eq!((kernels, copies), right, "{protocol}: {out:?} {back:?}");
            }
        }
    }
}

#[test]
fn a_buffer_without_gaps_is_written_where_it_is() {
    for protocol in [Protocol::StagedPut, Protocol::StagedPutCopy] {
        for depth in [1, 3] {
            let config = Config { share_device_buffers: true, ..config(protocol, depth) };
            let mut lab = Lab::new(config, 2);
            for size in SIZES {
                for gaps in [false, true] {
                    let what = format!("{size} bytes by {protocol}, depth {depth}, gaps {gaps}");
                    let from = Buffer::source_in(&layout(size, gaps), 1, size, lab.home(true));
                    let to = Buffer::target_in(&layout(size, false), 1, lab.home(true));
                    assert_eq!(lab.carry(&from, &to, &what).protocol, protocol, "{what}");
                    lab.job.pml(1).bml_mut().invalidate(to.region());
                }
            }
            assert_eq!(lab.job.pml(1).staging_bytes(), (0, 0), "{protocol}");
            assert_eq!(lab.job.pml(1).counters().of(protocol).staged_bytes, 0, "{protocol}");
        }
    }
}

#[test]
fn host_and_device_memory_meet_in_host_memory() {
    for protocol in [Protocol::CopyInOut, Protocol::ZeroCopyInOut] {
        let mut lab = Lab::new(config(protocol, 4), 2);
        for size in SIZES.into_iter().chain([200_000]) {
            for spaces in 1..3 {
                for gaps in 0..4 {
                    let what = format!("{size} bytes by {protocol}, spaces {spaces}, gaps {gaps}");
                    let (a, b) = (layout(size, gaps & 1 == 1), layout(size, gaps & 2 == 2));
                    let from = Buffer::source_in(&a, 1, size, lab.home(spaces == 1));
                    let to = Buffer::target_in(&b, 1, lab.home(spaces == 2));
                    let status = lab.carry(&from, &to, &what);
                    // A sender of host memory cannot know, and sends little eagerly.
                    assert!(
                        status.protocol == protocol || (spaces == 2 && size < 20_000),
                        "{what}: {status:?}"
                    );
                }
            }
        }
        assert!(lab.job.pml(0).counters().of(protocol).messages >= 28);
    }
}

/// The receiver's device works on the first fragment while the sender's processor copies the next one.
#[test]
fn a_processor_tells_of_each_fragment_before_it_copies_the_next() {
    for protocol in [Protocol::CopyInOut, Protocol::ZeroCopyInOut] {
        const DEPTH: u32 = 8;
        let mut lab = Lab::new(config(protocol, DEPTH), 2);
        let layout = layout(60 * u64::from(FRAGMENT), false);
        let from = Buffer::source_in(&layout, 1, 5, lab.home(false));
        let to = Buffer::target_in(&layout, 1, lab.home(true));
        let send = lab.job.isend(0, &from, 1, 0);
        let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Is(0));
        let copied = lab.job.until("the first fragment", |job| {
            let [sent, taken] = [0, 1].map(|rank| job.pml(rank).counters().of(protocol).fragments);
            (taken > 0).then_some(sent)
        });
        assert!(copied < u64::from(DEPTH) / 2, "{protocol}: {copied} were copied before");
        lab.job.finish(1, recv).unwrap();
        lab.job.finish(0, send).unwrap();
        to.assert_received(&from.packed(), protocol.name());
    }
}

#[test]
fn without_a_word_the_cost_model_stages() {
    let config = Config { share_device_buffers: false, ..Config::default() };
    let mut lab = Lab::new(config, 1);
    let size = 8 << 20;
    let from = Buffer::source_in(&layout(size, true), 1, size, lab.home(true));
    let to = Buffer::target_in(&layout(size, true), 1, lab.home(true));
    let status = lab.carry(&from, &to, "by choice");
    assert!(status.protocol.is_staged(), "{status:?}");
    assert!(lab.job.pml(0).counters().depth_max() >= 2);
}

/// Of one end of one message: every kernel comes after the one before the last, or if it is shorter after the last,
/// too; beside copies after the last. Gives how many were begun while others were under way, long ones and
/// short ones.
fn assert_in_order(engine: &FakeEngine, copies: bool, what: &str) -> [usize; 2] {
    let pieces = engine.pieces.lock().unwrap();
    let longest = pieces.iter().map(|piece| piece.bytes).max();
    // How many were begun since none was under way.
    let (mut since, mut ordered) = (0, [0; 2]);
    for (number, piece) in pieces.iter().enumerate() {
        if piece.others == 0 && piece.after.is_empty() {
            since = 0;
        }
        let short = Some(piece.bytes) < longest;
        let (last, before) = (since > 0 && (copies || short), since > 1 && !copies);
        let expected: Vec<usize> = [(last, 1), (before, 2)]
            .into_iter()
            .filter(|of| of.0)
            .map(|of| number - of.1)
            .collect();
        assert_eq!(piece.after, expected, "{what}: fragment {number} of {} bytes", piece.bytes);
        ordered[usize::from(short)] += usize::from(!expected.is_empty());
        since += 1;
    }
    ordered
}

#[test]
fn fragments_come_after_earlier_ones_and_only_the_first_is_asked_about() {
    const POLLS: u32 = 9;
    for protocol in Protocol::STAGED {
        for gaps in [false, true] {
            let mut lab = Lab::new(config(protocol, 16), POLLS);
            let size = 60 * u64::from(FRAGMENT);
            let from = Buffer::source_in(&layout(size, gaps), 1, 7, lab.home(true));
            let to = Buffer::target_in(&layout(size, gaps), 1, lab.home(true));
            assert_eq!(lab.carry(&from, &to, protocol.name()).protocol, protocol);
            let packs = lab.job.pml(0).counters().of(protocol).packs;
            let read = |number: &AtomicI64| number.load(Ordering::Relaxed);
            assert!(read(&lab.engines[0].most) >= 2 || packs == 0, "{protocol}: launched ahead");
            for (rank, engine) in (0..).zip(&lab.engines) {
                let copies = lab.job.pml(rank).counters().of(protocol).copies > 0;
                let what = format!("{protocol}, gaps {gaps}, rank {rank}");
                let [long, short] = assert_in_order(engine, copies, &what);
                assert!(short == 0 && (rank > 0 || packs == 0 || long > 40), "{what}: {long}");
                // Each until it has ended, by its message and by the piece that comes after it.
                let most = 3 * 60 * i64::from(POLLS + 2);
                assert!(
                    read(&engine.asked) <= most,
                    "{protocol}: asked {} times",
                    read(&engine.asked)
                );
            }
        }
    }
}

#[test]
fn ramps_are_gone_at_both_ends() {
    for protocol in Protocol::STAGED {
        for size in [999, 1000, 5000, 23_900, 61_234] {
            let mut lab = Lab::new(config(protocol, 3), 2);
            for rank in 0..2 {
                let tuning = &mut lab.job.pml(rank).config_mut().tuning;
                (tuning.staged_least_bytes, tuning.launch_wait_ns) = (128, 0.0);
                tuning.device_block_ns = 0.0;
                // So slow that what the other end does with the last fragment is worth more of them.
                (tuning.device_mb_s, tuning.peer_store_mb_s) = (20.0, 5.0);
            }
            let from = Buffer::source_in(&layout(size, true), 1, size, lab.home(true));
            let to = Buffer::target_in(&layout(size, true), 1, lab.home(true));
            let what = format!("{size} bytes by {protocol}");
            assert_eq!(lab.carry(&from, &to, &what).protocol, protocol);
            let fragments = [0, 1].map(|rank| lab.job.pml(rank).counters().of(protocol).fragments);
            assert!(fragments[0] == fragments[1] && fragments[0] >= size / 1000, "{what}");
            // Of little, none is as long as fragments are to be.
            if size >= 5000 {
                let copies =
                    [0, 1].map(|rank| lab.job.pml(rank).counters().of(protocol).copies > 0);
                let in_order =
                    |rank: usize| assert_in_order(&lab.engines[rank], copies[rank], &what);
                let short = in_order(0)[1] + in_order(1)[1];
                assert!(short > 0 || size != 23_900 || protocol.name() != "staged-put", "{what}");
            }
            // Of one length they would be 24.
            assert!(
                size != 23_900 || protocol.name() != "staged-put" || fragments[0] == 26,
                "{what}"
            );
        }
    }
}

#[test]
fn both_send_before_either_waits() {
    for protocol in Protocol::STAGED {
        let mut lab = Lab::new(config(protocol, 4), 3);
        let size = 300_000;
        let make = |lab: &Lab, seed, fill: fn(&gapless_dtype::Layout, u64, Home) -> Buffer| {
            fill(&layout(size, true), seed, lab.home(true))
        };
        let source = |layout: &_, seed, home| Buffer::source_in(layout, 1, seed, home);
        let target = |layout: &_, _, home| Buffer::target_in(layout, 1, home);
        let from = [make(&lab, 1, source), make(&lab, 2, source)];
        let to = [make(&lab, 0, target), make(&lab, 0, target)];
        let sends = [lab.job.isend(0, &from[0], 1, 0), lab.job.isend(1, &from[1], 0, 0)];
        lab.job.settle();
        let any = (Source::Any, TagSel::Any);
        let recvs = [0, 1].map(|rank| lab.job.irecv(rank, &to[rank as usize], any.0, any.1));
        for rank in [0, 1] {
            lab.job.finish(rank, sends[rank as usize]).unwrap();
            let status = lab.job.finish(rank, recvs[rank as usize]).unwrap();
            assert_eq!(status.protocol, protocol);
            to[rank as usize].assert_received(&from[1 - rank as usize].packed(), protocol.name());
        }
        lab.assert_idle(protocol.name());
    }
}

#[test]
fn many_at_once_each_by_another_way() {
    let seed = 0x57A6;
    let mut rng = Rng::new(seed);
    for round in 0..6 {
        let mut lab = Lab::new(config(Protocol::StagedPut, 1 + round), round);
        let mut messages = Vec::new();
        for tag in 0..40u32 {
            let protocol = Protocol::STAGED[rng.index(6)];
            let (size, gaps) = (1 + rng.below(20_000), rng.below(4));
            let sender = rng.index(2);
            let (a, b) = (layout(size, gaps & 1 == 1), layout(size, gaps & 2 == 2));
            let from = Buffer::source_in(&a, 1, u64::from(tag), lab.home(true));
            let to = Buffer::target_in(&b, 1, lab.home(true));
            for rank in 0..2 {
                lab.job.pml(rank).config_mut().force = Some(protocol);
            }
            let (a, b) = (u32::try_from(sender).unwrap(), u32::try_from(1 - sender).unwrap());
            let tag = i32::try_from(tag).unwrap();
            let recv = lab.job.irecv(b, &to, Source::Rank(a), TagSel::Is(tag));
            let send = lab.job.isend(a, &from, b, tag);
            for _ in 0..rng.below(4) {
                lab.job.progress();
            }
            messages.push((from, to, (a, send), (b, recv)));
        }
        for (at, (from, to, (a, send), (b, recv))) in messages.iter().enumerate() {
            let what = format!("seed {seed}, round {round}, message {at}");
            let status = lab.job.finish(*b, *recv).unwrap();
            lab.job.finish(*a, *send).unwrap();
            assert!(status.protocol.is_staged(), "{what}: {status:?}");
            to.assert_received(&from.packed(), &what);
        }
        lab.assert_idle("many");
    }
}

#[test]
fn a_short_receive_is_truncated_and_other_types_are_refused() {
    use gapless_dtype::{Datatype, Primitive};
    for protocol in Protocol::STAGED {
        let mut lab = Lab::new(config(protocol, 2), 1);
        let size = 9500;
        let from = Buffer::source_in(&layout(size, true), 1, 5, lab.home(true));
        for room in [0, 1, 999, 1000, 4321] {
            let to = Buffer::target_in(&layout(room, true), 1, lab.home(true));
            let send = lab.job.isend(0, &from, 1, 0);
            let recv = lab.job.irecv(1, &to, Source::Any, TagSel::Any);
            let truncated = PmlError::Truncated { sent: size, room };
            assert_eq!(lab.job.finish(1, recv), Err(truncated), "{protocol}, {room}");
            lab.job.finish(0, send).unwrap();
            to.assert_received(&from.packed()[..usize::try_from(room).unwrap()], protocol.name());
            lab.assert_idle(protocol.name());
        }
        let ints = Datatype::contiguous(4000, &Primitive::Int.into()).unwrap().commit().unwrap();
        let doubles = Datatype::contiguous(2000, &Primitive::Double.into()).unwrap();
        let from = Buffer::source_in(&ints, 1, 5, lab.home(true));
        let to = Buffer::target_in(&doubles.commit().unwrap(), 1, lab.home(true));
        let send = lab.job.isend(0, &from, 1, 0);
        let recv = lab.job.irecv(1, &to, Source::Any, TagSel::Any);
        let error = lab.job.finish(1, recv).unwrap_err();
        assert!(matches!(error, PmlError::SignatureMismatch { .. }), "{error}");
        lab.job.finish(0, send).unwrap();
        to.assert_received(&[], protocol.name());
        lab.assert_idle(protocol.name());
    }
}

#[test]
fn staging_memory_that_is_exhausted_fails_nothing() {
    for protocol in Protocol::STAGED {
        // None at all, and one slab, of the device and of the host.
        for (staging_bytes, most) in [(0, 0), (2 << 20, 1)] {
            let bounds = Bounds { staging_bytes, ..Bounds::default() };
            let mut lab = Lab::new(Config { bounds, ..config(protocol, 4) }, 3);
            let messages: Vec<_> = (0..5)
                .map(|tag| {
                    let size = 30_000 + tag;
                    let from = Buffer::source_in(&layout(size, true), 1, tag, lab.home(true));
                    let to = Buffer::target_in(&layout(size, true), 1, lab.home(true));
                    let tag = i32::try_from(tag).unwrap();
                    let recv = lab.job.irecv(1, &to, Source::Any, TagSel::Is(tag));
                    let send = lab.job.isend(0, &from, 1, tag);
                    (from, to, send, recv)
                })
                .collect();
            let mut staged = 0;
            for (from, to, send, recv) in &messages {
                let status = lab.job.finish(1, *recv).unwrap();
                lab.job.finish(0, *send).unwrap();
                to.assert_received(&from.packed(), protocol.name());
                staged += usize::from(status.protocol.is_staged());
            }
            lab.assert_idle(protocol.name());
            for rank in 0..2 {
                assert!(lab.job.pml(rank).staging_bytes().0 <= 2 * staging_bytes, "{protocol}");
            }
            assert!(staged > 0 || most == 0, "{protocol}: something fits {staging_bytes} bytes");
            assert!(staged < 5, "{protocol}: {staged} staged");
            let without = [0, 1].map(|rank| lab.job.pml(rank).counters().without_staging());
            assert!(without.iter().sum::<u64>() > 0, "{protocol}: {staged} staged, {without:?}");
            // Whatever protocols a message tries.
            assert!(without.iter().all(|count| *count <= 5), "{protocol}: 5 messages, {without:?}");
        }
    }
}

#[test]
fn without_ipc_messages_between_devices_pass_memory_of_the_host() {
    for device_ipc in [true, false] {
        let mut lab = Lab::new(Config { device_ipc, ..Config::default() }, 1);
        let from = Buffer::source_in(&bytes(200_000), 1, 7, lab.home(true));
        let to = Buffer::target_in(&bytes(200_000), 1, lab.home(true));
        let protocol = lab.carry(&from, &to, "by IPC or not").protocol;
        let maps = matches!(protocol, Protocol::Mapped | Protocol::MappedPut);
        let through = matches!(protocol, Protocol::CopyInOut | Protocol::ZeroCopyInOut);
        assert_eq!((maps, through), (device_ipc, !device_ipc), "{protocol}");
    }
}

#[test]
fn slabs_are_used_again_and_their_keys_stay() {
    for protocol in Protocol::STAGED {
        let mut lab = Lab::new(config(protocol, 4), 1);
        let mut kept = None;
        for round in 0..20 {
            let size = 5000 + 700 * round;
            let from = Buffer::source_in(&layout(size, true), 1, round, lab.home(true));
            let to = Buffer::target_in(&layout(size, true), 1, lab.home(true));
            lab.carry(&from, &to, protocol.name());
            let now = [0, 1].map(|rank| lab.job.pml(rank).staging_bytes().0);
            assert_eq!(*kept.get_or_insert(now), now, "{protocol}, round {round}");
        }
        let [a, b] = kept.unwrap();
        assert!(a.max(b) == 2 << 20 || protocol == Protocol::CopyInOut, "{protocol}: {a} and {b}");
    }
}

/// Transports that refuse some keys, mappings and allocations.
fn reluctant(per_mille: u16, seed: u64) -> Lab {
    let mut rail = |rank: u32, hub: &loopback::Hub| {
        let seed = seed + u64::from(rank);
        let plan = Plan { mapped_refused_per_mille: per_mille, seed, ..Plan::default() };
        Box::new(Fault::new(Loopback::with(hub, link()), plan)) as Box<dyn Btl>
    };
    Lab::over(config(Protocol::StagedPut, 3), 1, &mut rail)
}

#[test]
fn what_a_transport_refuses_is_done_another_way() {
    let seed = 77;
    for per_mille in [1000, 500, 100] {
        let mut lab = reluctant(per_mille, seed);
        let mut staged = 0;
        for round in 0..60 {
            let protocol = Protocol::STAGED[round % 6];
            for rank in 0..2 {
                lab.job.pml(rank).config_mut().force = Some(protocol);
            }
            let size = 20_000 + round as u64;
            let from = Buffer::source_in(&layout(size, true), 1, size, lab.home(true));
            let to = Buffer::target_in(&layout(size, true), 1, lab.home(true));
            let what = format!("seed {seed}, {per_mille} in 1000, round {round}");
            staged += u32::from(lab.carry(&from, &to, &what).protocol.is_staged());
        }
        assert_eq!(staged == 0, per_mille == 1000, "{staged} at {per_mille}");
    }
}

#[test]
fn a_link_that_maps_nothing_streams() {
    let link = loopback::Config { mapped: false, ..link() };
    let mut rail =
        |_, hub: &loopback::Hub| Box::new(Loopback::with(hub, link.clone())) as Box<dyn Btl>;
    let mut lab = Lab::over(config(Protocol::StagedPut, 3), 1, &mut rail);
    let from = Buffer::source_in(&layout(50_000, true), 1, 3, lab.home(true));
    let to = Buffer::target_in(&layout(50_000, true), 1, lab.home(true));
    assert_eq!(lab.carry(&from, &to, "unmapped").protocol, Protocol::Pipeline);
}

#[test]
fn wishes_differ_and_the_smaller_holds() {
    let mut lab = Lab::new(config(Protocol::StagedGet, 7), 1);
    let tuning = Tuning { staged_fragment_bytes: 700, staged_depth: 3, ..Tuning::default() };
    lab.job.pml(1).config_mut().tuning = tuning;
    let from = Buffer::source_in(&layout(21_000, true), 1, 3, lab.home(true));
    let to = Buffer::target_in(&layout(21_000, true), 1, lab.home(true));
    lab.carry(&from, &to, "wishes");
    let counts = lab.job.pml(0).counters().of(Protocol::StagedGet);
    assert_eq!((counts.fragments, counts.depth_max), (30, 3));
}

#[test]
fn an_endpoint_that_ends_frees_its_staging_memory() {
    for protocol in Protocol::STAGED {
        let mut lab = Lab::new(config(protocol, 4), 1);
        let from = Buffer::source_in(&layout(9000, true), 1, 1, lab.home(true));
        let to = Buffer::target_in(&layout(9000, true), 1, lab.home(true));
        lab.carry(&from, &to, protocol.name());
        let device = lab.attached();
        drop(lab);
        // Ours and the two buffers'.
        assert_eq!(Arc::strong_count(&device), 3, "{protocol}");
    }
}
