//! Every path through the engine once, on whatever OpenCL device there is (PoCL in CI), byte by byte
//! against the host's engine. The large suite is in `tests/`.

use crate::engine::*;
use crate::{BatchItem, Config};
use gapless_dtype::{Datatype, Primitive};
use gapless_engine::HostEngine;
use gapless_kernels::Family;
use gapless_mem_opencl::{OpenClDevice, OpenClError};
use std::io::Write;

const SPAN: usize = 1 << 16;

fn engine(config: Config) -> Option<GpuEngine> {
    match OpenClDevice::open(0) {
        Ok(device) => Some(GpuEngine::opencl_with(Arc::new(device), config).unwrap()),
        Err(
            error @ (OpenClError::NoLibrary { .. }
            | OpenClError::NoPlatform
            | OpenClError::NoDevice { .. }),
        ) => {
            assert!(std::env::var_os("CI").is_none(), "in CI, PoCL must run: {error}");
            let line = format!("SKIPPED: the engine on OpenCL: {error}\n");
            eprint!("{line}");
            if let Some(path) = std::env::var_os("GAPLESS_SKIP_LOG") {
                let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
                file.and_then(|mut file| file.write_all(line.as_bytes())).unwrap();
            }
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn noise(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

fn upload(device: &dyn Device, bytes: &[u8]) -> Region {
    let region = device.allocate(bytes.len() as u64).unwrap();
    // SAFETY: both live until the wait ends.
    unsafe { device.copy(region, Region::of(bytes), &[]) }.unwrap().wait().unwrap();
    region
}

fn download(device: &dyn Device, region: Region) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(region.len()).unwrap()];
    let to = Region::of_mut(&mut bytes);
    // SAFETY: both live until the wait ends.
    unsafe { device.copy(to, region, &[]) }.unwrap().wait().unwrap();
    // SAFETY: nothing is in flight.
    unsafe { device.free(region) }.unwrap();
    bytes
}

fn double() -> Datatype {
    Primitive::Double.into()
}

/// A matrix half, a triangle, a transposed matrix, lists, structures, long blocks.
fn layouts() -> Vec<(&'static str, Layout, u64)> {
    let triangle_lengths: Vec<u64> = (0..32).map(|j| 32 - j).collect();
    let triangle_at: Vec<i64> = (0..32).map(|j| j * 33).collect();
    let column = Datatype::vector(24, 1, 24, &double()).unwrap();
    let column = Datatype::resized(0, 8, &column).unwrap();
    let listed: Vec<i64> = (0..60).map(|j| (j * 37 % 61) * 5).collect();
    let lengths: Vec<u64> = (0..200).map(|j| 1 + j * 7 % 5).collect();
    let places: Vec<i64> = (0..200).map(|j| (j * 83 % 211) * 7).collect();
    let layout = |datatype: Datatype| datatype.commit().unwrap();
    vec![
        ("one contiguous span", layout(Datatype::contiguous(100, &double()).unwrap()), 3),
        ("V", layout(Datatype::vector(32, 32, 64, &double()).unwrap()), 1),
        ("V twice", layout(Datatype::vector(16, 3, 7, &double()).unwrap()), 5),
        ("T", layout(Datatype::indexed(&triangle_lengths, &triangle_at, &double()).unwrap()), 2),
        ("X", layout(Datatype::contiguous(24, &column).unwrap()), 1),
        ("list", layout(Datatype::indexed_block(3, &listed, &double()).unwrap()), 4),
        (
            "general",
            layout(Datatype::indexed(&lengths, &places, &Primitive::Int.into()).unwrap()),
            3,
        ),
        (
            "bytes",
            layout(Datatype::indexed(&lengths, &places, &Primitive::Byte.into()).unwrap()),
            2,
        ),
    ]
}

#[test]
fn every_path_moves_every_byte() {
    let config = Config { piece_bytes: 4096, chunk_bytes: 4096, ..Config::default() };
    let Some(engine) = engine(config) else { return };
    let device = engine.device();
    for (number, (name, layout, count)) in layouts().into_iter().enumerate() {
        let seed = u32::try_from(number).unwrap();
        let (memory, wire) = (noise(SPAN, seed), noise(SPAN, seed + 100));
        let whole = layout.size() * count;
        for range in [0..whole, 13..whole - 5, 64..65, whole..whole] {
            for budget in [None, NonZeroU32::new(2)] {
                let engine = engine.with_budget(budget);
                let (at, len) = (8 + range.start % 3, range.end - range.start);
                let typed = upload(&*device, &memory);
                let packed = upload(&*device, &wire);
                let gpu = Typed::new(typed, 16, &layout, count).unwrap();
                let part = packed.sub(at, len).unwrap();
                let say = format!("{name}, {range:?}, {budget:?}");

                // From device to device, and to the host.
                let mut expected = wire.clone();
                let host = Typed::new(Region::of(&memory), 16, &layout, count).unwrap();
                let to = Region::of_mut(&mut expected).sub(at, len).unwrap();
                // SAFETY: both live, and do not overlap.
                unsafe { HostEngine.pack(&host, range.clone(), to, &[]) }.unwrap();
                let mut here = wire.clone();
                let to = Region::of_mut(&mut here).sub(at, len).unwrap();
                // SAFETY: all live until the waits end.
                let done = unsafe { engine.pack(&gpu, range.clone(), part, &[]) }.unwrap();
                // SAFETY: as above.
                let staged = unsafe { engine.pack(&gpu, range.clone(), to, &[done]) }.unwrap();
                staged.wait().unwrap();
                assert!(here == expected, "packing to the host: {say}");
                assert!(download(&*device, packed) == expected, "packing: {say}");

                // And back, over other bytes.
                let mut expected = memory.clone();
                let from = Region::of(&wire).sub(at, len).unwrap();
                let into = Typed::new(Region::of_mut(&mut expected), 16, &layout, count).unwrap();
                // SAFETY: both live, and do not overlap.
                unsafe { HostEngine.unpack(from, &into, range.clone(), &[]) }.unwrap();
                let packed = upload(&*device, &wire);
                let part = packed.sub(at, len).unwrap();
                // SAFETY: all live until the waits end.
                let done = unsafe { engine.unpack(part, &gpu, range.clone(), &[]) }.unwrap();
                done.wait().unwrap();
                assert!(download(&*device, typed) == expected, "unpacking: {say}");
                let typed = upload(&*device, &memory);
                let gpu = Typed::new(typed, 16, &layout, count).unwrap();
                // SAFETY: as above.
                let done = unsafe { engine.unpack(from, &gpu, range.clone(), &[]) }.unwrap();
                done.wait().unwrap();
                assert!(download(&*device, typed) == expected, "unpacking from the host: {say}");
                assert!(download(&*device, packed) == wire, "the packed side: {say}");
            }
        }
    }
    let plans = engine.plans();
    assert_eq!((plans.entries, plans.misses, plans.evictions), (3, 3, 0));
    assert!(plans.hits > 20 && plans.bytes > 0, "{plans:?}");
}

#[test]
fn layouts_move_into_layouts() {
    let Some(engine) = engine(Config::default()) else { return };
    let device = engine.device();
    let (memory, other) = (noise(SPAN, 1), noise(SPAN, 2));
    for (name, source, count) in layouts() {
        for (to, target, times) in layouts() {
            let len = (source.size() * count).min(target.size() * times);
            for range in [0..len, 24..len - 8, 7..len - 3] {
                let from = upload(&*device, &memory);
                let into = upload(&*device, &other);
                let src = Typed::new(from, 8, &source, count).unwrap();
                let dst = Typed::new(into, 32, &target, times).unwrap();
                // SAFETY: both live until the wait ends.
                let done = unsafe { engine.transfer(&src, &dst, range.clone(), &[]) }.unwrap();
                let mut expected = other.clone();
                let src = Typed::new(Region::of(&memory), 8, &source, count).unwrap();
                let dst = Typed::new(Region::of_mut(&mut expected), 32, &target, times).unwrap();
                // SAFETY: both live, and do not overlap.
                unsafe { HostEngine.transfer(&src, &dst, range.clone(), &[]) }.unwrap();
                done.wait().unwrap();
                assert!(download(&*device, into) == expected, "{name} to {to}, {range:?}");
                assert!(download(&*device, from) == memory, "{name} to {to}: the source");
            }
        }
    }
}

#[test]
fn a_word_is_looked_up_once_between_memories_of_one_layout() {
    let Some(engine) = engine(Config::default()) else { return };
    let device = engine.device();
    let (from, into) = (upload(&*device, &noise(SPAN, 1)), upload(&*device, &noise(SPAN, 2)));
    let mut seen = std::collections::BTreeSet::new();
    // The layouts are made twice, as a receiver makes a sender's again.
    for ((name, one, count), (_, two, _)) in layouts().into_iter().zip(layouts()) {
        assert_ne!(one.id(), two.id());
        let src = Typed::new(from, 8, &one, count).unwrap();
        let dst = Typed::new(into, 32, &two, count).unwrap();
        let plans = engine.plans().entries;
        for range in [0..src.packed_bytes(), 8..src.packed_bytes() - 8] {
            let told = engine.transfer_launches(&src, &dst, range.clone()).unwrap();
            let families = told.iter().map(|launched| launched.kernel.family);
            for family in families {
                assert!(family.is_same() || family == Family::Copy, "{name}: {family:?}");
                seen.insert(format!("{family:?}"));
            }
            // SAFETY: both live until the wait ends.
            let done = unsafe { engine.transfer(&src, &dst, range, &[]) }.unwrap();
            done.wait().unwrap();
        }
        assert!(engine.plans().entries <= plans + 1, "{name}: a plan for both");
    }
    assert!(seen.len() >= 5, "{seen:?}");
    download(&*device, from);
    download(&*device, into);
}

#[test]
fn a_transposed_matrix_goes_to_one_of_another_pitch_row_by_row() {
    let Some(engine) = engine(Config::default()) else { return };
    let device = engine.device();
    let n = 100;
    let transposed = |pitch: i64| {
        let column = Datatype::vector(n, 1, pitch, &double()).unwrap();
        let column = Datatype::resized(0, 8, &column).unwrap();
        Datatype::contiguous(n, &column).unwrap().commit().unwrap()
    };
    let (source, target) = (noise(2 * SPAN, 1), noise(2 * SPAN, 2));
    for (one, other) in [(101, 130), (100, 100), (110, 100)] {
        let (one, other) = (transposed(one), transposed(other));
        for range in [0..one.size(), 0..one.size() - 8] {
            let (from, into) = (upload(&*device, &source), upload(&*device, &target));
            let src = Typed::new(from, 8, &one, 1).unwrap();
            let dst = Typed::new(into, 24, &other, 1).unwrap();
            // SAFETY: both live until the wait ends.
            let done = unsafe { engine.transfer(&src, &dst, range.clone(), &[]) }.unwrap();
            let mut expected = target.clone();
            let src = Typed::new(Region::of(&source), 8, &one, 1).unwrap();
            let dst = Typed::new(Region::of_mut(&mut expected), 24, &other, 1).unwrap();
            // SAFETY: both live, and do not overlap.
            unsafe { HostEngine.transfer(&src, &dst, range.clone(), &[]) }.unwrap();
            done.wait().unwrap();
            assert!(download(&*device, into) == expected, "{range:?}");
            download(&*device, from);
        }
    }
}

#[test]
fn batches_are_fused() {
    let Some(engine) = engine(Config::default()) else { return };
    let device = engine.device();
    let memory = noise(SPAN, 5);
    let typed = upload(&*device, &memory);
    let packed = upload(&*device, &vec![0; SPAN]);
    let mut requests = Vec::new();
    let mut expected = vec![0u8; SPAN];
    let mut at = 0;
    for (_, layout, count) in layouts() {
        for range in [0..layout.size() * count, 3..40, 5..5] {
            let len = range.end - range.start;
            let host = Typed::new(Region::of(&memory), 0, &layout, count).unwrap();
            let to = Region::of_mut(&mut expected).sub(at, len).unwrap();
            // SAFETY: both live, and do not overlap.
            unsafe { HostEngine.pack(&host, range.clone(), to, &[]) }.unwrap();
            let typed = Typed::new(typed, 0, &layout, count).unwrap();
            requests.push(BatchItem { typed, range, packed: packed.sub(at, len).unwrap() });
            at = (at + len).next_multiple_of(8) + 8;
        }
    }
    let told = engine.batch_launches(Direction::Pack, &requests).unwrap();
    assert!(told.len() <= 12, "{told:?}");
    assert!(told.iter().all(|launched| launched.kernel.family == Family::Fused), "{told:?}");
    for _ in 0..3 {
        // SAFETY: everything lives until the wait ends; nothing overlaps.
        let done = unsafe { engine.batch(Direction::Pack, &requests, &[]) }.unwrap();
        done.wait().unwrap();
    }
    assert!(download(&*device, packed) == expected);
    assert!(download(&*device, typed) == memory);
}

#[test]
fn plans_are_made_once_kept_within_bounds_and_made_for_one_call_beyond() {
    let config = Config { plan_bytes: 600, piece_bytes: 4096, ..Config::default() };
    let Some(engine) = engine(config) else { return };
    let device = engine.device();
    let memory = noise(SPAN, 9);
    let typed = upload(&*device, &memory);
    let packed = upload(&*device, &vec![0; SPAN]);
    let mut expected = vec![0; SPAN];
    for (name, layout, count) in layouts().into_iter().filter(|(name, ..)| *name != "V") {
        let len = layout.size() * count;
        engine.prepare(&layout).unwrap().wait().unwrap();
        let host = Typed::new(Region::of(&memory), 0, &layout, count).unwrap();
        let to = Region::of_mut(&mut expected).sub(0, len).unwrap();
        // SAFETY: both live, and do not overlap.
        unsafe { HostEngine.pack(&host, 0..len, to, &[]) }.unwrap();
        let gpu = Typed::new(typed, 0, &layout, count).unwrap();
        // SAFETY: everything lives until the wait ends.
        let done = unsafe { engine.pack(&gpu, 0..len, packed.sub(0, len).unwrap(), &[]) };
        done.unwrap().wait().unwrap();
        let mut here = vec![0; usize::try_from(len).unwrap()];
        let to = Region::of_mut(&mut here);
        // SAFETY: as above.
        unsafe { device.copy(to, packed.sub(0, len).unwrap(), &[]) }.unwrap().wait().unwrap();
        assert!(here == expected[..here.len()], "{name}");
        engine.forget(&layout);
    }
    let plans = engine.plans();
    assert_eq!((plans.entries, plans.bytes, plans.misses), (0, 0, 1), "{plans:?}");
    download(&*device, typed);
    download(&*device, packed);
}

#[test]
fn what_does_not_fit_is_refused_and_reports_say_what_is_launched() {
    let Some(engine) = engine(Config::default()) else { return };
    let device = engine.device();
    let typed = device.allocate(4096).unwrap();
    let layout = Datatype::vector(16, 1, 2, &double()).unwrap().commit().unwrap();
    let gpu = Typed::new(typed, 0, &layout, 1).unwrap();
    let mut wire = [0u8; 128];
    let here = Region::of_mut(&mut wire);
    // SAFETY: refused before anything is touched, here and below.
    let error = unsafe { engine.pack(&gpu, 0..127, here, &[]) }.unwrap_err();
    assert_eq!(error, EngineError::LengthMismatch { region: 128, range: 127 });
    // SAFETY: as above.
    let error = unsafe { engine.pack(&gpu, 1..129, here, &[]) }.unwrap_err();
    assert!(matches!(error, EngineError::RangeOutside { end: 129, .. }));
    let memory = [0u8; 4096];
    let host = Typed::new(Region::of(&memory), 0, &layout, 1).unwrap();
    // SAFETY: as above.
    let error = unsafe { engine.pack(&host, 0..128, here, &[]) }.unwrap_err();
    assert!(matches!(error, EngineError::WrongSpace { engine: "opencl", space: Space::Host }));
    let far = Region::new(Space::Cuda { device: 0 }, 64, 0, 128);
    // SAFETY: as above.
    let error = unsafe { engine.pack(&gpu, 0..128, far, &[]) }.unwrap_err();
    assert!(matches!(error, EngineError::WrongSpace { space: Space::Cuda { .. }, .. }));
    assert!(Engine::serves(&engine, device.space()) && !Engine::serves(&engine, Space::Host));
    let told = engine.launches(Direction::Pack, &gpu, 0..128, here).unwrap();
    assert_eq!((told.len(), told[0].kernel.family), (1, Family::Strided1));
    // SAFETY: nothing uses it.
    unsafe { device.free(typed) }.unwrap();
}
