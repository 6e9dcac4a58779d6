//! Pages: instances at indices that are data, in memory of the host or of the device.

use crate::bench::{Alignments, Bench, Verdict, alignments, any, noise, same};
use crate::gpu::Gpu;
use crate::memory::{Buffer, Own, index, waited, wide};
use crate::sample::{Indices, Sample, range};
use crate::seed::{cases, fail, rng};
use gapless_dtype::testkit::{Params, Rng, random_datatype};
use gapless_dtype::{Datatype, Pages, Primitive};
use gapless_engine::{Engine as _, EngineError, Op, ReduceOp, Reducer as _, Typed};
use gapless_kernels::{Family, Kernel, Width};
use gapless_mem::HostDevice;
use std::num::NonZeroU32;
use std::sync::Arc;

/// A number as indices of 32 or 64 bits are.
fn bytes_of(indices: &[u64], wide: bool) -> Vec<u8> {
    let len = if wide { 8 } else { 4 };
    indices.iter().flat_map(|index| index.to_ne_bytes().into_iter().take(len)).collect()
}

fn pages(one: &Sample, stride: u64, indices: &[u64], wide: bool) -> Pages {
    match wide {
        true => Pages::new(&one.layout, stride, indices).unwrap(),
        false => {
            let narrow: Vec<u32> = indices.iter().map(|&it| u32::try_from(it).unwrap()).collect();
            Pages::new(&one.layout, stride, narrow).unwrap()
        }
    }
}

/// Words of so many bytes: one block, rows, rows of rows.
fn page(rng: &mut Rng, word: &Datatype) -> Datatype {
    let bytes = word.size().cast_signed();
    let len = *rng.pick(&[1, 3, 16, 40, 129]);
    let block = Datatype::contiguous(len, word).unwrap();
    let row = (len.cast_signed() + rng.between(0, 3)) * bytes;
    let rows = 2 + rng.below(5);
    match rng.below(3) {
        0 => block,
        1 => Datatype::hvector(rows, 1, row, &block).unwrap(),
        _ => {
            let plane = Datatype::hvector(rows, 1, row, &block).unwrap();
            let apart = row * rows.cast_signed() + rng.between(0, 2) * bytes;
            Datatype::hvector(2, 1, apart, &plane).unwrap()
        }
    }
}

fn word(width: Width) -> Datatype {
    Datatype::contiguous(width.bytes().into(), &Primitive::Byte.into()).unwrap()
}

/// Pages of `one` at some of `all` places, in any order, and the memory of the indices if that is the device's.
fn paged<'a>(
    gpu: &'a Gpu,
    rng: &mut Rng,
    one: &Sample,
    count: u64,
    on_device: bool,
) -> (Sample, Option<Buffer<'a>>) {
    let grain = *rng.pick(&[1, 4, 16]);
    let stride = (one.span() + rng.below(3) * grain).next_multiple_of(grain);
    let mut places: Vec<u64> = (0..count + rng.below(count + 1)).collect();
    rng.shuffle(&mut places);
    places.truncate(index(count));
    let is_wide = rng.chance(50);
    if !on_device {
        let pages = pages(one, stride, &places, is_wide);
        return (Sample::paged(one, stride, &places, Indices::Host(pages)), None);
    }
    // The list does not begin where the memory does.
    let bytes = bytes_of(&places, is_wide);
    let memory = Buffer::new(&*gpu.memory, wide(bytes.len()) + 16);
    memory.write(8, &bytes);
    let list = memory.part(8, wide(bytes.len()));
    let indices = Indices::Device(stride, list, is_wide);
    (Sample::paged(one, stride, &places, indices), Some(memory))
}

fn check(bench: &Bench, sample: &Sample, align: Alignments, rng: &mut Rng) -> Verdict {
    let part = range(rng, sample.size());
    bench.pack(sample, &part, align, rng)?;
    let part = range(rng, sample.size());
    bench.unpack(sample, &part, align, rng)
}

/// Random pages × ranges × alignments × places of indices: to and from packed memory of the device and of the host, to
/// and from other pages and other layouts.
pub(crate) fn pages_are_found_by_their_indices(gpu: &Gpu) {
    const TEST: &str = "pages";
    let mut rng = rng(TEST);
    let bench = gpu.bench();
    let host = Bench { packed: Arc::new(Own(Arc::new(HostDevice::new()))), ..gpu.bench() };
    for case in 0..cases(80) {
        let width = *rng.pick(&Width::ALL);
        let mut side = |on_device| {
            // Pages that kernels of pages do not take, some of them.
            let irregular = Params { bytes_max: 1 << 9, span_max: 1 << 11, ..Params::disjoint() };
            let one = match on_device || rng.chance(80) {
                true => page(&mut rng, &word(width)),
                false => random_datatype(&mut rng, &irregular),
            };
            let one = Sample::of(&one, 1).unwrap();
            let count = 1 + rng.below(40);
            paged(gpu, &mut rng, &one, count, on_device)
        };
        let ((one, _indices), (two, _others)) = (side(case % 2 == 0), side(case % 4 < 2));
        let align = alignments(&mut rng);
        let layout = any(&mut rng);
        let mut moved = |bench: &Bench, from: &Sample, to: &Sample| {
            let part = range(&mut rng, from.size().min(to.size()));
            bench.transfer(from, to, &part, align, &mut rng)
        };
        let mut verdict = moved(&bench, &one, &two).and_then(|()| moved(&bench, &one, &one));
        if layout.is_disjoint() {
            verdict = verdict.and_then(|()| moved(&bench, &one, &layout));
        }
        verdict
            .and_then(|()| moved(&bench, &layout, &two))
            .and_then(|()| check(&bench, &one, align, &mut rng))
            .and_then(|()| check(&host, &two, align, &mut rng))
            .unwrap_or_else(|what| fail(TEST, &format!("case {case}: {what}")));
    }
}

/// Indices that take several pieces of staging memory, and moves in chunks.
pub(crate) fn long_lists_go_up_in_pieces(gpu: &Gpu) {
    const TEST: &str = "long lists";
    let mut rng = rng(TEST);
    let small = gpu.engine_with(|config| {
        (config.piece_bytes, config.chunk_bytes) = (4096, 4096);
    });
    let one = Sample::of(&word(Width::W16), 1).unwrap();
    let two = Sample::of(&page(&mut rng, &word(Width::W4)), 1).unwrap();
    for (engine, pages) in [(&small, 5_000), (&gpu.engine, 20_000)] {
        let bench = gpu.bench_of(engine);
        let host = Bench { packed: Arc::new(Own(Arc::new(HostDevice::new()))), ..bench.clone() };
        let (one, _) = paged(gpu, &mut rng, &one, pages, false);
        let count = one.size() / two.size();
        let (two, _) = paged(gpu, &mut rng, &two, count, false);
        let irregular =
            Datatype::hindexed(&[1, 3, 2], &[0, 20, 48], &Primitive::Int.into()).unwrap();
        let other = Sample::of(&irregular, one.size() / irregular.size()).unwrap();
        for _ in 0..3 {
            let part = range(&mut rng, two.size().min(other.size()));
            check(&bench, &one, (0, 0), &mut rng)
                .and_then(|()| check(&host, &one, (0, 0), &mut rng))
                .and_then(|()| bench.transfer(&one, &two, &part, (0, 0), &mut rng))
                .and_then(|()| bench.transfer(&two, &other, &part, (0, 0), &mut rng))
                .and_then(|()| bench.transfer(&other, &one, &part, (0, 0), &mut rng))
                .unwrap_or_else(|what| fail(TEST, &what));
        }
    }
}

/// A bad index in memory of the device: its page is not moved, all others are, and the end of the work names the first.
pub(crate) fn bad_indices_are_told_and_skipped(gpu: &Gpu) {
    const TEST: &str = "bad indices";
    let mut rng = rng(TEST);
    let host = Own(Arc::new(HostDevice::new()));
    for case in 0..cases(24) {
        let word = word(*rng.pick(&Width::ALL));
        let one = Sample::of(&page(&mut rng, &word), 1).unwrap();
        let (stride, all, size) = (one.span() + 8, 30, one.size());
        let last = all - 1;
        let mut places: Vec<u64> = (0..all).collect();
        rng.shuffle(&mut places);
        places.truncate(20);
        let is_wide = rng.chance(50);
        for _ in 0..1 + rng.below(3) {
            let far = if is_wide { 1 << 62 } else { u64::from(u32::MAX) };
            places[rng.index(20)] = *rng.pick(&[all, 1 << 31, far]);
        }
        let list = Buffer::holding(&*gpu.memory, &bytes_of(&places, is_wide));
        let before = noise(&mut rng, last * stride + one.span());
        let memory = Buffer::holding(&*gpu.memory, &before);
        let indices = (list.region(), is_wide);
        let origin = 0;
        let typed =
            Typed::device_pages(memory.region(), origin, &one.layout, stride, indices).unwrap();
        let stream = noise(&mut rng, 20 * size);
        let space: &dyn crate::memory::Provider = if case % 3 == 0 { &host } else { &*gpu.memory };
        let packed = Buffer::holding(space, &stream);
        let first = places.iter().position(|place| *place > last).unwrap();
        let all_of = 0..20 * size;
        // SAFETY: the buffers live until the work has been waited for.
        let done =
            unsafe { gpu.engine.unpack(packed.region(), &typed, all_of.clone(), &[]) }.unwrap();
        // Work that comes after it is put in order behind it.
        let other = Buffer::holding(&*gpu.memory, &stream);
        // SAFETY: as above.
        let after = unsafe {
            gpu.engine.pack(&typed, all_of.clone(), other.region(), std::slice::from_ref(&done))
        };
        let after = after.unwrap();
        for (work, side) in [(&done, "target"), (&after, "source")] {
            let told = waited(work).unwrap_err();
            let want = format!("position {first} of the {side}'s pages is above {last},");
            assert!(told.contains(&want), "case {case}: {told}");
            assert_eq!(waited(work), Err(told), "over is over");
        }
        let mut want = before;
        for (place, bytes) in places.iter().zip(stream.chunks(index(size))) {
            if *place <= last {
                one.scatter(&(0..size), bytes, &mut want, place * stride);
            }
        }
        let verdict = same("the pages", &memory.bytes(), &want, 0);
        // What was packed is what was there before, or has come back.
        verdict
            .and_then(|()| same("the stream", &other.bytes(), &stream, 0))
            .unwrap_or_else(|what| fail(TEST, &format!("case {case}: {what}")));
        // A part without bad ones ends well.
        if first > 0 {
            let part = 0..wide(first) * size;
            let region = other.part(0, part.end);
            // SAFETY: as above.
            let done = unsafe { gpu.engine.pack(&typed, part, region, &[]) }.unwrap();
            waited(&done).unwrap_or_else(|what| fail(TEST, &what));
        }
    }
    // Pages that only a processor could walk.
    let irregular = Datatype::hindexed(&[1, 3, 2], &[0, 20, 48], &Primitive::Int.into()).unwrap();
    let irregular = irregular.commit().unwrap();
    let memory = Buffer::new(&*gpu.memory, 4096);
    let list = (memory.part(0, 16), false);
    let typed = Typed::device_pages(memory.region(), 0, &irregular, 64, list).unwrap();
    let packed = Buffer::new(&*gpu.memory, typed.packed_bytes());
    let all = 0..typed.packed_bytes();
    // SAFETY: nothing is enqueued, as is tested.
    let refused = unsafe { gpu.engine.pack(&typed, all, packed.region(), &[]) };
    assert!(matches!(refused, Err(EngineError::DeviceIndices)), "{refused:?}");
}

/// Pages that two positions of a list name hold anything afterwards, and all others what they should.
pub(crate) fn an_index_twice_spoils_one_page(gpu: &Gpu) {
    const TEST: &str = "an index twice";
    let mut rng = rng(TEST);
    let one = Sample::of(&page(&mut rng, &word(Width::W8)), 1).unwrap();
    let (stride, places) = (one.span() + 8, [5u64, 0, 3, 5, 1]);
    let pages = pages(&one, stride, &places, false);
    let before = noise(&mut rng, 6 * stride);
    let memory = Buffer::holding(&*gpu.memory, &before);
    let typed = Typed::pages(memory.region(), 0, &pages).unwrap();
    let stream = noise(&mut rng, typed.packed_bytes());
    let packed = Buffer::holding(&*gpu.memory, &stream);
    // SAFETY: the buffers live until the work has been waited for.
    let done = unsafe { gpu.engine.unpack(packed.region(), &typed, 0..wide(stream.len()), &[]) };
    waited(&done.unwrap()).unwrap();
    let (mut want, got) = (before, memory.bytes());
    for (place, bytes) in places.iter().zip(stream.chunks(index(one.size()))) {
        let bytes = match place {
            5 => one.gather(&(0..one.size()), &got, 5 * stride),
            _ => bytes.to_vec(),
        };
        one.scatter(&(0..one.size()), &bytes, &mut want, place * stride);
    }
    same("all but the page", &got, &want, 0).unwrap_or_else(|what| fail(TEST, &what));
}

/// Elements of pages are combined through memory of the engine's own.
pub(crate) fn pages_are_reduced(gpu: &Gpu) {
    const TEST: &str = "pages reduced";
    let mut rng = rng(TEST);
    let ints = Datatype::contiguous(50, &Primitive::Int.into()).unwrap();
    let one = Sample::of(&ints, 1).unwrap();
    for on_device in [false, true] {
        let sides: Vec<_> = (0..3).map(|_| paged(gpu, &mut rng, &one, 30, on_device)).collect();
        let filled: Vec<Vec<u8>> =
            sides.iter().map(|(side, _)| noise(&mut rng, side.span())).collect();
        let buffers: Vec<Buffer<'_>> =
            filled.iter().map(|bytes| Buffer::holding(&*gpu.memory, bytes)).collect();
        let typed: Vec<Typed> = (sides.iter().zip(&buffers))
            .map(|((side, _), buffer)| side.typed(buffer.region(), 0).unwrap())
            .collect();
        let all = 0..typed[0].packed_bytes();
        let sum = Op::Predefined(ReduceOp::Sum);
        // SAFETY: the buffers live until the work has been waited for, and do not overlap.
        let done =
            unsafe { gpu.engine.reduce_into(&sum, &typed[1..], &typed[0], all.clone(), &[]) };
        waited(&done.unwrap()).unwrap();
        let [one, other] = [1, 2].map(|at| sides[at].0.gather(&all, &filled[at], 0));
        let int = |bytes: &[u8]| i32::from_ne_bytes(bytes.try_into().unwrap());
        let summed = one.chunks(4).zip(other.chunks(4));
        let stream: Vec<u8> =
            summed.flat_map(|(a, b)| int(a).wrapping_add(int(b)).to_ne_bytes()).collect();
        let mut want = filled[0].clone();
        sides[0].0.scatter(&all, &stream, &mut want, 0);
        let verdict = same("the target", &buffers[0].bytes(), &want, 0);
        verdict.unwrap_or_else(|what| fail(TEST, &what));
    }
}

/// Each width, with and without a budget; reports name the kernels.
pub(crate) fn every_kernel_of_pages_runs(gpu: &Gpu) {
    const TEST: &str = "kernels of pages";
    let mut rng = rng(TEST);
    let mut benches = Vec::new();
    for width in Width::ALL {
        let block = Datatype::contiguous(700, &word(width)).unwrap();
        let one = Sample::of(&block, 1).unwrap();
        let indices: Vec<u64> = (0..30).rev().collect();
        let stride = one.span() + u64::from(width.bytes());
        let pages = pages(&one, stride, &indices, false);
        let sample = Sample::paged(&one, stride, &indices, Indices::Host(pages));
        for budget in [None, NonZeroU32::new(1)] {
            let bench = gpu.bench_of(&gpu.engine.with_budget(budget));
            let verdict = bench.pack(&sample, &(0..sample.size()), (0, 0), &mut rng);
            verdict.unwrap_or_else(|what| fail(TEST, &what));
            benches.push(bench);
        }
    }
    for kernel in Kernel::all().filter(|kernel| kernel.family == Family::Pages) {
        let ran: u64 = benches.iter().map(|bench| bench.counts.of(&kernel.to_string())).sum();
        assert!(ran > 0, "{kernel} did not run");
    }
}
