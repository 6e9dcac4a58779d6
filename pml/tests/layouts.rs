//! Any pair of layouts, by every protocol, over links with short fragments, also ones that misbehave
//! as far as transports may: every byte arrives and every gap stays.

use crate::common::{Buffer, Home, Job, bytes, link, strided};
use gapless_btl::loopback::{self, Loopback};
use gapless_btl_testkit::fault::{Fault, Plan};
use gapless_dtype::testkit::{Params, Rng, random_datatype};
use gapless_dtype::{Convertor, Datatype, Layout, Primitive, Run};
use gapless_pml::{Bounds, Config, PmlError, Protocol, Source, TagSel, Tuning};

const PROTOCOLS: [Option<Protocol>; 6] = [
    None,
    Some(Protocol::Eager),
    Some(Protocol::Pipeline),
    Some(Protocol::Mapped),
    Some(Protocol::MappedPut),
    Some(Protocol::SingleCopy),
];

/// The same bytes as `datatype`'s instances, untyped: fits any message in bytes.
fn untyped(layout: &Layout, count: u64) -> Layout {
    let mut convertor = Convertor::new(layout, count).unwrap();
    let (mut lens, mut places) = (Vec::new(), Vec::new());
    let mut runs = [Run::default(); 64];
    while convertor.remaining() > 0 {
        let (n, _) = convertor.iov(&mut runs, u64::MAX);
        lens.extend(runs[..n].iter().map(|run| run.len));
        places.extend(runs[..n].iter().map(|run| run.displacement));
    }
    let byte = Primitive::Byte.into();
    Datatype::hindexed(&lens, &places, &byte).unwrap().commit().unwrap()
}

/// A link on which every message is long.
fn narrow(slots: usize) -> loopback::Config {
    loopback::Config { eager_bytes: 128, max_fragment_bytes: 256, slots, ..link() }
}

fn exchange(job: &mut Job, from: &Buffer, to: &Buffer, what: &str) -> Option<Protocol> {
    let (sent, room) = (from.typed().packed_bytes(), to.typed().packed_bytes());
    let late = sent % 2 == 0;
    let mut recv = None;
    if !late {
        recv = Some(job.irecv(1, to, Source::Rank(0), TagSel::Is(3)));
    }
    let send = job.isend(0, from, 1, 3);
    if late {
        job.settle();
    }
    let recv = recv.unwrap_or_else(|| job.irecv(1, to, Source::Any, TagSel::Any));
    let outcome = job.finish(1, recv);
    job.finish(0, send).unwrap();
    let fits = usize::try_from(sent.min(room)).unwrap();
    to.assert_received(&from.packed()[..fits], what);
    match outcome {
        Ok(status) => {
            assert!(sent <= room && status.bytes == sent, "{what}");
            Some(status.protocol)
        }
        Err(PmlError::Truncated { .. }) => {
            assert!(sent > room, "{what}");
            None
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

/// Random pairs over one job; which protocols ran.
fn pairs(job: &mut Job, seed: u64, cases: u32, force: Option<Protocol>) -> [u32; 6] {
    let mut rng = Rng::new(seed);
    let mut ran = [0; 6];
    for case in 0..cases {
        let any = Params::default();
        let disjoint = Params::disjoint();
        let left = random_datatype(&mut rng, &any).commit().unwrap();
        let right = random_datatype(&mut rng, &disjoint).commit().unwrap();
        let left_count = 1 + rng.below(6);
        // Several instances of a type may overlap though one does not.
        let right = untyped(&right, 1);
        let home = if case % 4 < 3 { Home::Heap } else { job.mappable(1, &right, 1) };
        let to = Buffer::target_in(&right, 1, home);
        let home = if case % 3 == 0 { Home::Heap } else { job.mappable(0, &left, left_count) };
        let from = Buffer::source_in(&left, left_count, seed, home);
        job.pml(0).config_mut().force = force;
        job.pml(1).config_mut().force = force;
        let what = format!("seed {seed}, case {case}, {force:?}");
        if let Some(protocol) = exchange(job, &from, &to, &what) {
            ran[Protocol::ALL.iter().position(|known| *known == protocol).unwrap()] += 1;
        }
    }
    ran
}

#[test]
fn random_pairs_by_every_protocol() {
    let mut ran = [0; 6];
    for (seed, force) in (1..).zip(PROTOCOLS) {
        for slots in [1, 3, 32] {
            let mut job = Job::with(2, Config::default(), narrow(slots));
            let some = pairs(&mut job, seed * 100 + slots as u64, 400, force);
            ran.iter_mut().zip(some).for_each(|(all, one)| *all += one);
        }
    }
    // Everything but `Local`, which two processes never use.
    assert!(ran[..5].iter().all(|&times| times > 50), "{ran:?}");
}

#[test]
fn random_pairs_over_links_that_misbehave() {
    for seed in 1..=30u64 {
        let plan = Plan {
            seed,
            full_per_mille: 200,
            full_calls_max: 6,
            delay_polls_max: 4,
            rdma_refused_per_mille: 150,
            mapped_refused_per_mille: 150,
            ..Plan::default()
        };
        let mut job = Job::build(2, Config::default(), &mut |rank, hub| {
            let plan = Plan { seed: seed * 2 + u64::from(rank), ..plan.clone() };
            Box::new(Fault::new(Loopback::with(hub, narrow(4)), plan))
        });
        for force in PROTOCOLS {
            pairs(&mut job, seed, 12, force);
        }
    }
}

/// Blocks at irregular places: no short program describes them.
fn irregular(blocks: u64, seed: u64) -> Layout {
    let mut rng = Rng::new(seed);
    let mut at = 0;
    let mut places = Vec::new();
    for _ in 0..blocks {
        places.push(at);
        at += i64::try_from(3 + rng.below(40)).unwrap();
    }
    let lens = vec![3; places.len()];
    Datatype::hindexed(&lens, &places, &Primitive::UnsignedChar.into()).unwrap().commit().unwrap()
}

#[test]
fn a_long_layout_is_fetched_once_and_kept() {
    for protocol in [Protocol::Mapped, Protocol::SingleCopy] {
        let config = Config { force: Some(protocol), ..Config::default() };
        let mut job = Job::with(2, config, narrow(4));
        let layout = irregular(2000, 7);
        assert!(layout.flatten().len() > 10_000);
        for round in 0..3 {
            let home = job.mappable(0, &layout, 2);
            let from = Buffer::source_in(&layout, 2, round, home);
            let to = Buffer::target(&crate::common::strided(4000, 3, 5), 1);
            assert_eq!(exchange(&mut job, &from, &to, "a long layout"), Some(protocol));
        }
    }
}

#[test]
fn a_layout_beyond_the_bound_takes_the_pipeline() {
    let bounds = Bounds { layout_cache_bytes: 5000, ..Bounds::default() };
    let config = Config { force: Some(Protocol::Mapped), bounds, ..Config::default() };
    let mut job = Job::with(2, config, narrow(4));
    let layout = irregular(2000, 8);
    let home = job.mappable(0, &layout, 1);
    let from = Buffer::source_in(&layout, 1, 1, home);
    let to = Buffer::target(&crate::common::bytes(6000), 1);
    assert_eq!(exchange(&mut job, &from, &to, "too long"), Some(Protocol::Pipeline));
}

#[test]
fn caches_stay_within_their_bounds() {
    let bounds =
        Bounds { layout_cache_bytes: 30_000, layout_cache_entries: 3, ..Bounds::default() };
    let config = Config { force: Some(Protocol::SingleCopy), bounds, ..Config::default() };
    let mut job = Job::with(2, config, narrow(4));
    let layouts: Vec<Layout> = (0..6).map(|seed| irregular(600, seed)).collect();
    for round in 0..12 {
        let layout = &layouts[round % 6];
        let from = Buffer::source(layout, 1, round as u64);
        let to = Buffer::target(&crate::common::bytes(1800), 1);
        let protocol = exchange(&mut job, &from, &to, "many layouts");
        assert_eq!(protocol, Some(Protocol::SingleCopy));
    }
}

#[test]
fn single_copy_in_many_small_batches() {
    let tuning = Tuning { single_copy_batch_bytes: 100, ..Tuning::default() };
    let config = Config { force: Some(Protocol::SingleCopy), tuning, ..Config::default() };
    let mut job = Job::with(2, config, link());
    for (blocks, block) in [(1u64, 50_000u64), (5000, 1), (300, 123)] {
        let from = Buffer::source(
            &crate::common::strided(blocks, block, 200_000 / blocks.cast_signed()),
            1,
            1,
        );
        let to = Buffer::target(&crate::common::strided(blocks * block / 10, 10, 11), 1);
        let what = format!("{blocks} blocks of {block}");
        let protocol = exchange(&mut job, &from, &to, &what);
        assert!(protocol.is_none_or(|protocol| protocol == Protocol::SingleCopy), "{protocol:?}");
    }
}

#[test]
fn a_receive_refuses_a_layout_that_names_a_byte_twice_and_a_send_takes_it() {
    let mut job = Job::new(1);
    let comm = job.pml(0).world();
    let int = Datatype::from(Primitive::Int);
    let near = Datatype::hindexed_block(1, &[0, 40, 2], &int).unwrap();
    // Four columns of a 4 × 4 matrix lie in each other's gaps, five do not.
    let column = Datatype::vector(4, 1, 4, &int).unwrap();
    let column = Datatype::resized(0, 4, &column).unwrap().commit().unwrap();
    for (layout, count) in [(near.commit().unwrap(), 1), (column.clone(), 5)] {
        let to = Buffer::target(&layout, count);
        let refused = Err(PmlError::OverlappingReceive { count });
        // SAFETY: the buffer lives until the end of the block, and nothing was started.
        let posted = unsafe { job.pml(0).irecv(&comm, &to.typed(), Source::Any, TagSel::Any) };
        assert_eq!(posted, refused.clone());
        let send = job.isend(0, &Buffer::source(&layout, count, 1), 0, 3);
        job.finish(0, send).unwrap();
        let (message, status) = job.pml(0).mprobe(&comm, Source::Any, TagSel::Any).unwrap();
        assert_eq!(status.bytes, layout.size() * count);
        // SAFETY: as above.
        let claimed = unsafe { job.pml(0).imrecv(&message, &to.typed()) };
        assert_eq!(claimed.map_err(PmlError::from), refused);
        // The message is still there.
        let to = Buffer::target(&column, 4);
        // SAFETY: the buffer lives until the request has ended.
        let recv = unsafe { job.pml(0).imrecv(&message, &to.typed()) }.unwrap();
        let (sent, room) = (status.bytes, 4 * column.size());
        let expected = if sent > room { Err(PmlError::Truncated { sent, room }) } else { Ok(sent) };
        assert_eq!(job.finish(0, recv).map(|status| status.bytes), expected);
    }
}

/// Both ends of a short message work at a time, with gaps or without: neither waits until all of it is packed.
#[test]
fn short_messages_are_cut_into_fragments() {
    let wide = loopback::Config { max_fragment_bytes: 128 << 10, slots: 32, ..link() };
    let config = Config { force: Some(Protocol::Pipeline), ..Config::default() };
    for (layout, fragments) in [
        (bytes(48 << 10), 3),
        (bytes(64 << 10), 2),
        (bytes(256 << 10), 8),
        (strided(64, 1 << 10, 2 << 10), 2),
        (strided(96, 1 << 10, 2 << 10), 2),
        (strided(256, 1 << 10, 2 << 10), 4),
    ] {
        let mut job = Job::with(2, config.clone(), wide.clone());
        let (from, to) = (Buffer::source(&layout, 1, 7), Buffer::target(&layout, 1));
        let what = format!("{layout:?}");
        assert_eq!(exchange(&mut job, &from, &to, &what), Some(Protocol::Pipeline));
        let counts = job.pml(1).counters().of(Protocol::Pipeline);
        assert_eq!(counts.fragments, fragments, "{what}");
    }
}

/// Lines that are touched only in part cost whoever maps or fetches them: the sender says so of its own memory.
#[test]
fn a_sender_expects_gaps_like_its_own() {
    let mut job = Job::new(2);
    for (layout, count, span) in [(strided(10, 4, 100), 1, 904), (strided(1, 50, 60), 3, 150)] {
        let buffer = Buffer::target(&layout, count);
        let world = job.pml(0).world();
        let situation = job.pml(0).situation(&world, &buffer.typed(), 1).unwrap();
        assert_eq!((situation.bytes, situation.sender_span), (buffer.typed().packed_bytes(), span));
    }
}
