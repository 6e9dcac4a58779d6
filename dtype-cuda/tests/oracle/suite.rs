//! What every engine must do, whatever memory it works on. Each function is a test, stamped for each
//! engine by [`stamp`].

use crate::bench::{Alignments, Bench, Verdict, alignments, noise, packed, same, side};
use crate::directed::directed;
use crate::memory::{Buffer, index, wait, waited};
use crate::sample::{Sample, range};
use crate::seed::{cases, fail, rng};
use gapless_dtype::testkit::{Params, Rng, minimise};
use gapless_dtype::{Datatype, Primitive};
use gapless_engine::Typed;
use gapless_kernels::{Direction, Family, Width};
use gapless_layouts::{Case, Options, documented_cases, families};
use gapless_mem::{Completion, Device, Region, fake::FakeDevice};
use std::ops::Range;
use std::sync::Arc;

/// A test of every function named, on what `$open` gives; without it they are skipped.
macro_rules! stamp {
    ($open:path: $($module:ident::$test:ident),+ $(,)?) => {
        $(
            #[test]
            fn $test() {
                if let Some(bench) = $open(stringify!($test)) {
                    crate::$module::$test(&bench);
                }
            }
        )+
    };
}
pub(crate) use stamp;

/// What every engine must do, for the engine that `$open` gives.
macro_rules! stamp_every_engines {
    ($open:path) => {
        crate::suite::stamp!($open:
            suite::random_types_pack_and_unpack,
            suite::random_pairs_transfer,
            suite::every_alignment,
            suite::ranges_inside_elements,
            suite::nothing_at_all,
            suite::fragments_in_any_order,
            suite::layouts_of_applications,
            suite::neighbours_do_not_disturb_each_other,
            suite::completions_chain,
            suite::threads_share_an_engine,
            refusals::misfits_are_refused,
            refusals::foreign_memory_is_refused,
            refusals::failures_are_passed_on,
            refusals::layouts_stay_in_their_memory,
        );
    };
}
pub(crate) use stamp_every_engines;

/// What GPU engines must do besides.
macro_rules! stamp_gpus {
    ($open:path) => {
        crate::suite::stamp!($open:
            kernels::every_kernel_runs,
            kernels::every_pair_of_families_transfers,
            kernels::equal_layouts_share_a_lookup,
            kernels::transposed_matrices_change_their_pitch,
            kernels::long_contiguous_spans_move,
            kernels::budgets_are_kept,
            batch::batches_are_their_requests,
            batch::every_fused_kernel_runs,
            batch::small_requests_are_fused,
            batch::a_batch_with_a_misfit_does_nothing,
            pages::pages_are_found_by_their_indices,
            pages::long_lists_go_up_in_pieces,
            pages::bad_indices_are_told_and_skipped,
            pages::an_index_twice_spoils_one_page,
            pages::pages_are_reduced,
            pages::every_kernel_of_pages_runs,
            plans::plans_are_evicted_under_running_work,
            plans::threads_evict_each_others_plans,
            plans::threads_meet_at_a_new_plan,
            plans::oversized_plans_are_not_kept,
            plans::plans_are_prepared_and_forgotten,
            plans::plans_of_dropped_layouts_make_room,
            plans::first_uses_are_right_however_prepared,
            reductions::every_operation_is_the_oracles,
            reductions::random_reductions_are_the_oracles,
            reductions::long_ranges_go_in_chunks,
            reductions::what_does_not_fit_is_refused,
        );
    };
}
pub(crate) use stamp_gpus;

/// Random types; `kind` picks how large.
fn params(kind: u64, overlaps: bool) -> Params {
    let params = Params { overlaps, ..Params::default() };
    match kind {
        0 => Params {
            depth_max: 3,
            bytes_max: 1 << 15,
            span_max: 1 << 18,
            copies_max: 200,
            ..params
        },
        1 => params,
        _ => Params { blocks_min: 2, ..params },
    }
}

/// Packs and unpacks a type in a way that the seed determines.
fn both_ways(bench: &Bench, datatype: &Datatype, count: u64, seed: u64) -> Verdict {
    let mut rng = Rng::new(seed);
    let sample = Sample::of(datatype, count)?;
    let (part, align) = (range(&mut rng, sample.size()), alignments(&mut rng));
    bench.pack(&sample, &part, align, &mut rng)?;
    if sample.is_disjoint() {
        let (part, align) = (range(&mut rng, sample.size()), alignments(&mut rng));
        bench.unpack(&sample, &part, align, &mut rng)?;
    }
    Ok(())
}

/// Random types × ranges × alignments, both ways. A failure is reported for the simplest type found.
pub(crate) fn random_types_pack_and_unpack(bench: &Bench) {
    const TEST: &str = "random types";
    let mut rng = rng(TEST);
    let (mut unpacked, mut gaps, mut negative, mut empty) = (0, 0, 0, 0);
    let cases = cases(300);
    for case in 0..cases {
        // A third may overlap: those are only packed.
        let params = params(case % 8, case.is_multiple_of(3));
        let sample = Sample::random(&mut rng, &params);
        let checks = rng.next_u64();
        unpacked += u64::from(sample.is_disjoint());
        gaps += u64::from(sample.span() > sample.size());
        negative += u64::from(sample.low() < 0);
        empty += u64::from(sample.size() == 0);
        let Err(what) = both_ways(bench, &sample.datatype, sample.count, checks) else { continue };
        let fails =
            |candidate: &Datatype| both_ways(bench, candidate, sample.count, checks).is_err();
        let simplest = minimise(&sample.datatype, 300, |candidate: &Datatype| {
            params.admit(candidate) && fails(candidate)
        });
        let simplest = both_ways(bench, &simplest, sample.count, checks).err().unwrap_or_default();
        fail(TEST, &format!("case {case}: {what}\nsimplest: {simplest}"));
    }
    // The generator has not degenerated.
    for (what, seen, least) in [
        ("unpacked", unpacked, 55),
        ("gaps", gaps, 50),
        ("negative", negative, 15),
        ("empty", empty, 1),
    ] {
        assert!(seen * 100 >= cases * least, "GAPLESS_SEED: {what}: {seen} of {cases} types");
    }
}

/// Two random samples whose streams are equally long, if a few instances make them so.
fn pair(rng: &mut Rng, case: u64) -> (Sample, Sample) {
    let source = Sample::random(rng, &params(1 + case % 3, case.is_multiple_of(3)));
    let target = Sample::random(rng, &params(1 + case % 2, false));
    let (a, b) = (source.layout.size(), target.layout.size());
    if a > 0 && b > 0 {
        let (mut x, mut y) = (a, b);
        while y != 0 {
            (x, y) = (y, x % y);
        }
        let common = a / x * b;
        // Far apart instances may overlap where near ones did not; the target must not.
        if common <= 1 << 15 {
            let same = (
                Sample::of(&source.datatype, common / a),
                Sample::of(&target.datatype, common / b),
            );
            if let (Ok(source), Ok(target)) = same
                && target.is_disjoint()
                && source.span().max(target.span()) < 1 << 20
            {
                return (source, target);
            }
        }
    }
    (source, target)
}

/// Random pairs of layouts, moved from one to the other.
pub(crate) fn random_pairs_transfer(bench: &Bench) {
    const TEST: &str = "random pairs";
    let mut rng = rng(TEST);
    let (mut equal, cases) = (0, cases(150));
    for case in 0..cases {
        let (source, target) = pair(&mut rng, case);
        equal += u64::from(source.size() == target.size() && source.size() > 0);
        let part = range(&mut rng, source.size().min(target.size()));
        let align = alignments(&mut rng);
        if let Err(what) = bench.transfer(&source, &target, &part, align, &mut rng) {
            fail(TEST, &format!("case {case}: {what}"));
        }
    }
    assert!(equal * 3 > cases, "{equal} of {cases} pairs have one length");
}

/// Every alignment of either side, for one type of every family; and, for one of them, every pair.
pub(crate) fn every_alignment(bench: &Bench) {
    const TEST: &str = "alignments";
    let mut rng = rng(TEST);
    let try_at = |sample: &Sample, align: Alignments, rng: &mut Rng| {
        let part = range(rng, sample.size());
        let verdict = bench.pack(sample, &part, align, rng);
        verdict
            .and_then(|()| bench.unpack(sample, &part, align, rng))
            .unwrap_or_else(|what| fail(TEST, &what));
    };
    for family in Family::ALL {
        let Some((datatype, count)) = directed(family, Width::W8, &mut rng) else { continue };
        let sample = Sample::of(&datatype, count).unwrap();
        for align in 0..16 {
            try_at(&sample, (align, 0), &mut rng);
            try_at(&sample, (0, align), &mut rng);
        }
    }
    let narrow = Datatype::vector(40, 3, 5, &Primitive::Short.into()).unwrap();
    let sample = Sample::of(&narrow, 2).unwrap();
    for align in 0..256 {
        try_at(&sample, (align / 16, align % 16), &mut rng);
    }
}

/// Ranges of every length up to three words and every begin in the first two, of a type of each width.
pub(crate) fn ranges_inside_elements(bench: &Bench) {
    const TEST: &str = "short ranges";
    let mut rng = rng(TEST);
    for width in [Width::W1, Width::W4, Width::W16] {
        let bytes = u64::from(width.bytes());
        let element = Datatype::contiguous(bytes, &Primitive::Byte.into()).unwrap();
        let vector = Datatype::vector(9, 2, -3, &element).unwrap();
        let sample = Sample::of(&vector, 1).unwrap();
        for begin in 0..=2 * bytes {
            for len in (0..=3 * bytes).filter(|len| begin + len <= sample.size()) {
                // All of them for narrow words, some of the many for wide ones.
                if bytes == 16 && !rng.chance(12) {
                    continue;
                }
                let (part, align) = (begin..begin + len, (0, rng.below(2) * rng.below(16)));
                let verdict = bench.pack(&sample, &part, align, &mut rng);
                let verdict = verdict.and_then(|()| bench.unpack(&sample, &part, align, &mut rng));
                verdict.unwrap_or_else(|what| fail(TEST, &what));
            }
        }
    }
}

/// No instances, no blocks, blocks of no length, none of any bytes: nothing moves, nothing fails.
pub(crate) fn nothing_at_all(bench: &Bench) {
    const TEST: &str = "empty types";
    let mut rng = rng(TEST);
    let int = Datatype::from(Primitive::Int);
    let empty = [
        (Datatype::contiguous(0, &int), 3),
        (Datatype::vector(0, 4, 8, &int), 2),
        (Datatype::vector(4, 0, 8, &int), 2),
        (Datatype::hvector(9, 0, -8, &int), 2),
        (Datatype::indexed(&[], &[], &int), 1),
        (Datatype::indexed(&[0, 0, 0], &[5, -9, 2], &int), 2),
        (Datatype::indexed_block(0, &[1, 2, 3], &int), 2),
        (Datatype::structure(&[0, 0], &[-8, 16], &[int.clone(), int.clone()]), 4),
        (Datatype::structure(&[], &[], &[]), 4),
        (Datatype::resized(-8, 64, &Datatype::contiguous(0, &int).unwrap()), 4),
        (Datatype::vector(3, 2, 4, &int), 0),
    ];
    for (datatype, count) in empty {
        let sample = Sample::of(&datatype.unwrap(), count).unwrap();
        assert_eq!(sample.size(), 0);
        let verdict = bench.pack(&sample, &(0..0), (0, 0), &mut rng);
        let verdict = verdict.and_then(|()| bench.unpack(&sample, &(0..0), (3, 1), &mut rng));
        let verdict =
            verdict.and_then(|()| bench.transfer(&sample, &sample, &(0..0), (0, 2), &mut rng));
        verdict.unwrap_or_else(|what| fail(TEST, &what));
    }
    // Blocks of no length between others.
    let holes = Datatype::indexed(&[0, 3, 0, 0, 2, 0], &[9, 4, 0, -7, -3, 100], &int).unwrap();
    both_ways(bench, &holes, 3, 1).unwrap_or_else(|what| fail(TEST, &what));
}

/// A stream cut into random fragments, in random order, makes the message again; both ways.
pub(crate) fn fragments_in_any_order(bench: &Bench) {
    const TEST: &str = "fragments";
    let mut rng = rng(TEST);
    for case in 0..cases(24) {
        let sample = Sample::random(&mut rng, &Params { blocks_min: 2, ..params(case % 3, false) });
        if let Err(what) = fragments(bench, &sample, &mut rng) {
            fail(TEST, &format!("case {case}, {}: {what}", sample.describe()));
        }
    }
}

/// Random consecutive pieces of `0..size`, in random order, some of them empty.
fn pieces(rng: &mut Rng, size: u64) -> Vec<Range<u64>> {
    let most = 1 + size / (1 + rng.below(12));
    let (mut all, mut at) = (Vec::new(), 0);
    while at < size {
        let end = size.min(at + rng.below(most + 1));
        all.push(at..end);
        at = end;
    }
    rng.shuffle(&mut all);
    all
}

fn fragments(bench: &Bench, sample: &Sample, rng: &mut Rng) -> Verdict {
    let whole = 0..sample.size();
    let (align, other) = (alignments(rng), alignments(rng));
    let from = side(&*bench.typed, sample, align.0, rng)?;
    let stream = packed(&*bench.packed, &whole, align.1, rng);
    let to = side(&*bench.typed, sample, other.0, rng)?;
    let text = |error: gapless_engine::EngineError| error.to_string();
    let mut ends = Vec::new();
    for piece in pieces(rng, sample.size()) {
        let at =
            stream.region.sub(piece.start, piece.end - piece.start).map_err(|e| e.to_string())?;
        bench.count(Direction::Pack, &from.typed, &piece, at);
        // SAFETY: the buffers live until all of these have been waited for; pieces do not overlap.
        ends.push(unsafe { bench.engine.pack(&from.typed, piece, at, &[]) }.map_err(text)?);
    }
    let mut last = Vec::new();
    for piece in pieces(rng, sample.size()) {
        let at =
            stream.region.sub(piece.start, piece.end - piece.start).map_err(|e| e.to_string())?;
        // SAFETY: as above; what is unpacked has been packed, which it comes after.
        last.push(unsafe { bench.engine.unpack(at, &to.typed, piece, &ends) }.map_err(text)?);
    }
    ends.iter().chain(&last).try_for_each(waited)?;
    let message = sample.gather(&whole, &from.noise, from.origin);
    let mut want = stream.noise.clone();
    want[index(stream.at)..][..message.len()].copy_from_slice(&message);
    same("the stream", &stream.buffer.bytes(), &want, stream.at)?;
    let mut want = to.noise.clone();
    sample.scatter(&whole, &message, &mut want, to.origin);
    same("the other side", &to.buffer.bytes(), &want, to.origin)
}

/// The catalogue's messages that are not too large, sent and received, as their applications do.
pub(crate) fn layouts_of_applications(bench: &Bench) {
    const TEST: &str = "application layouts";
    let mut rng = rng(TEST);
    let options = Options::default();
    let all = families().iter().flat_map(|info| documented_cases(info.family, &options).unwrap());
    // As much as is done in a moment, and whatever is asked for on top.
    let most = (4 << 20) * cases(1);
    let moderate = |case: &Case| {
        case.payload_bytes <= most && case.send.buffer_bytes.max(case.recv.buffer_bytes) <= 4 * most
    };
    let mut done = 0;
    for case in all.filter(moderate) {
        let sample = |side: &gapless_layouts::Side| {
            Sample::of(&side.datatype, side.count)
                .or_else(|_| Sample::large(&side.datatype, side.count))
                .unwrap_or_else(|what| fail(TEST, &format!("{}: {what}", case.name)))
        };
        let (sent, received) = (sample(&case.send), sample(&case.recv));
        assert_eq!(sent.size(), case.payload_bytes, "{}", case.name);
        let (whole, part) = (0..sent.size(), range(&mut rng, sent.size()));
        let verdict = bench.pack(&sent, &whole, (0, 0), &mut rng);
        let verdict = verdict.and_then(|()| bench.unpack(&received, &whole, (0, 0), &mut rng));
        let align = alignments(&mut rng);
        let verdict = verdict.and_then(|()| bench.unpack(&received, &part, align, &mut rng));
        let verdict =
            verdict.and_then(|()| bench.transfer(&sent, &received, &part, (0, 0), &mut rng));
        verdict.unwrap_or_else(|what| fail(TEST, &format!("{}: {what}", case.name)));
        done += 1;
    }
    assert!(done >= 75, "only {done} of the catalogue's cases are small enough");
    println!("{done} cases of the catalogue");
}

/// Layouts whose gaps are the other's bytes are unpacked at once by several threads: each writes its own
/// bytes and no others, not even what was there.
pub(crate) fn neighbours_do_not_disturb_each_other(bench: &Bench) {
    const TEST: &str = "neighbours";
    let mut rng = rng(TEST);
    for bytes in [1, 2, 3, 4, 8, 12] {
        for _ in 0..cases(2) {
            let element = Datatype::contiguous(bytes, &Primitive::Byte.into()).unwrap();
            let strip = Datatype::vector(3_000, 1, 4, &element).unwrap();
            let size = strip.size();
            let memory = Buffer::holding(&*bench.typed, &noise(&mut rng, 4 * size + 64));
            let layout = strip.commit().unwrap();
            let streams: Vec<Vec<u8>> = (0..4).map(|_| noise(&mut rng, size)).collect();
            let buffers: Vec<Buffer<'_>> =
                streams.iter().map(|stream| Buffer::holding(&*bench.packed, stream)).collect();
            let before = memory.bytes();
            std::thread::scope(|scope| {
                for (turn, buffer) in (0..).zip(&buffers) {
                    let (memory, layout, engine) = (&memory, &layout, &bench.engine);
                    scope.spawn(move || {
                        let to = Typed::new(memory.region(), turn * bytes, layout, 1).unwrap();
                        let middle = size / 2 + turn;
                        for part in [0..middle, middle..size] {
                            let from = buffer.part(part.start, part.end - part.start);
                            // SAFETY: buffers live until the wait; the strips are disjoint.
                            let done = unsafe { engine.unpack(from, &to, part, &[]) };
                            wait(&done.unwrap());
                        }
                    });
                }
            });
            let mut want = before;
            for (turn, stream) in streams.iter().enumerate() {
                for (block, piece) in stream.chunks(index(bytes)).enumerate() {
                    let at = (4 * block + turn) * index(bytes);
                    want[at..at + piece.len()].copy_from_slice(piece);
                }
            }
            same("the strips", &memory.bytes(), &want, 0).unwrap_or_else(|what| fail(TEST, &what));
        }
    }
}

/// Upload, pack, transfer, unpack, download and other devices' work, chained by completions alone: only
/// the end is waited for.
pub(crate) fn completions_chain(bench: &Bench) {
    const TEST: &str = "chains";
    let mut rng = rng(TEST);
    let copier = bench.typed.copier();
    // Another vendor's device, whose work ends when it has been asked often enough.
    let slow = FakeDevice::with_delay(7, 40);
    for case in 0..cases(12) {
        let sample = Sample::random(&mut rng, &Params { blocks_min: 2, ..params(case % 3, false) });
        let (size, span) = (sample.size(), sample.span());
        let origin = sample.low().unsigned_abs();
        let typed = |buffer: &Buffer<'_>| {
            Typed::new(buffer.region(), origin, &sample.layout, sample.count).unwrap()
        };
        let (first, second) = (noise(&mut rng, span), noise(&mut rng, span));
        let (mut staged, mut out, mut copied) =
            (vec![0; index(span)], vec![0; index(span)], vec![0; index(span)]);
        let from = Buffer::holding(&*bench.typed, &noise(&mut rng, span));
        let middle = Buffer::holding(&*bench.other, &second);
        let wire = Buffer::holding(&*bench.packed, &noise(&mut rng, size));
        let to = Buffer::holding(&*bench.typed, &second);
        let (staged_at, out_at) = (Region::of_mut(&mut staged), Region::of_mut(&mut out));
        let copied_at = Region::of_mut(&mut copied);
        let (mut here, mut there) = (vec![0; index(size)], vec![0; index(size)]);
        let (here_at, there_at) = (Region::of_mut(&mut here), Region::of_mut(&mut there));
        let engine = &bench.engine;
        let then = |step: Result<Completion, gapless_engine::EngineError>| [step.unwrap()];
        // SAFETY: all memory lives until the last completion, which comes after all others.
        let filled = unsafe { slow.copy(staged_at, Region::of(&first), &[]) }.unwrap();
        // SAFETY: as above.
        let up = unsafe { copier.copy(from.region(), staged_at, &[filled]) }.unwrap();
        // SAFETY: as above; so for all that follow.
        let moved =
            then(unsafe { engine.transfer(&typed(&from), &typed(&middle), 0..size, &[up]) });
        // SAFETY: as above.
        let packed = then(unsafe { engine.pack(&typed(&middle), 0..size, wire.region(), &moved) });
        // SAFETY: as above.
        let here = unsafe { copier.copy(here_at, wire.region(), &packed) }.unwrap();
        // SAFETY: as above.
        let there = [unsafe { slow.copy(there_at, here_at, &[here]) }.unwrap()];
        // The engine itself comes after another vendor's work, and takes the stream from the host.
        // SAFETY: as above.
        let unpacked = then(unsafe { engine.unpack(there_at, &typed(&to), 0..size, &there) });
        // SAFETY: as above.
        let down = unsafe { copier.copy(out_at, to.region(), &unpacked) }.unwrap();
        // SAFETY: as above.
        let last = unsafe { slow.copy(copied_at, out_at, &[down]) }.unwrap();
        wait(&last);
        let whole = 0..size;
        let mut want = second.clone();
        sample.scatter(&whole, &sample.gather(&whole, &first, origin), &mut want, origin);
        let verdict = same("what came out", &copied, &want, origin);
        verdict.unwrap_or_else(|what| fail(TEST, &format!("{}: {what}", sample.describe())));
    }
}

/// Several threads share one engine, each with types and memory of its own and types that all use.
pub(crate) fn threads_share_an_engine(bench: &Bench) {
    const TEST: &str = "threads";
    let seeds: Vec<u64> = {
        let mut rng = rng(TEST);
        (0..4).map(|_| rng.next_u64()).collect()
    };
    let common: Vec<Sample> = {
        let mut rng = rng(TEST);
        let mut make = |family| directed(family, Width::W4, &mut rng).unwrap();
        [Family::Listed, Family::Mapped, Family::Strided, Family::Affine]
            .map(&mut make)
            .map(|(datatype, count)| Sample::of(&datatype, count).unwrap())
            .into()
    };
    let common = Arc::new(common);
    std::thread::scope(|scope| {
        let workers: Vec<_> = seeds
            .into_iter()
            .map(|seed| {
                let common = Arc::clone(&common);
                scope.spawn(move || -> Verdict {
                    let mut rng = Rng::new(seed);
                    for case in 0..cases(20) {
                        let own;
                        let sample = if case % 2 == 0 {
                            rng.pick(&common)
                        } else {
                            own = Sample::random(&mut rng, &params(1, false));
                            &own
                        };
                        let (part, align) = (range(&mut rng, sample.size()), alignments(&mut rng));
                        bench.pack(sample, &part, align, &mut rng)?;
                        bench.unpack(sample, &part, align, &mut rng)?;
                        bench.transfer(sample, sample, &part, align, &mut rng)?;
                    }
                    Ok(())
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap().unwrap_or_else(|what| fail(TEST, &what));
        }
    });
}
