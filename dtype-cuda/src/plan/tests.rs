//! Plans are written in pieces of many sizes, read as the kernels read them, and held against the oracle:
//! after every piece, all that it says can be moved must be found by what was patched so far.

use super::*;
use gapless_dtype::naive::Typemap;
use gapless_dtype::testkit::{Params, Rng, random_sample};
use gapless_dtype::{Convertor, Datatype, Primitive, Run};
use gapless_kernels::plan::Encoder;
use gapless_testkit::rounds;

/// Writes a plan from its beginning to its end, by whichever can.
enum Writer {
    /// The next one's number, and the blocks that those before have numbered for themselves.
    Pieces(Pieces, usize, u64),
    Map(Box<MapWriter>),
}

impl Writer {
    fn new(layout: &Layout, spec: &PlanSpec, piece_bytes: usize) -> Writer {
        match (Pieces::of(layout, spec, piece_bytes), spec.kind) {
            (Some(pieces), _) => Writer::Pieces(pieces, 0, 0),
            (None, PlanKind::Mapped(map)) => {
                Writer::Map(Box::new(MapWriter::new(layout, spec, map)))
            }
            (None, PlanKind::Listed(list)) => panic!("{list:?} cannot be written"),
        }
    }

    fn next(&mut self, staging: &mut [u8], patches: &mut Patches) -> Option<u64> {
        match self {
            Writer::Map(writer) => writer.next(staging, patches),
            Writer::Pieces(pieces, number, before) if *number < pieces.count() => {
                let Wrote { ready, blocks } = pieces.write(*number, staging, patches);
                pieces.settle(*before, blocks, staging, patches);
                *number += 1;
                *before += blocks;
                Some(ready)
            }
            Writer::Pieces(..) => None,
        }
    }
}

/// A plan in (pretended) device memory.
struct Device {
    bytes: Vec<u8>,
}

impl Device {
    /// As much as the plan takes, of bytes that lead nowhere.
    fn of(spec: &PlanSpec) -> Device {
        Device { bytes: vec![0xA5; usize::try_from(spec.bytes).unwrap()] }
    }

    fn patch(&mut self, staging: &[u8], patches: &Patches) {
        for Patch { staged, at } in patches {
            let at = usize::try_from(*at).unwrap();
            self.bytes[at..at + staged.len()].copy_from_slice(&staging[staged.clone()]);
        }
    }

    fn number(&self, at: u64, bytes: u32) -> i64 {
        let at = usize::try_from(at).unwrap();
        match bytes {
            4 => i32::from_ne_bytes(self.bytes[at..at + 4].try_into().unwrap()).into(),
            _ => i64::from_ne_bytes(self.bytes[at..at + 8].try_into().unwrap()),
        }
    }
}

/// Where a byte of the stream lies: what the kernels compute (`lookup.h`).
fn find(side: &TransferSide, device: &Device, byte: u64) -> i64 {
    match side {
        TransferSide::Listed(blocks) => {
            let (row, column) = (byte / blocks.len, byte % blocks.len);
            let (instance, index) = (row / blocks.count, row % blocks.count);
            assert!(instance < blocks.instances);
            let at = blocks.list + index * u64::from(blocks.entry_bytes);
            let entry = device.number(at, blocks.entry_bytes).wrapping_mul(blocks.scale);
            blocks
                .displacement
                .wrapping_add(instance.cast_signed().wrapping_mul(blocks.extent))
                .wrapping_add(entry)
                .wrapping_add(column.cast_signed())
        }
        TransferSide::Mapped(plan) => {
            let (instance, rest) = (byte / plan.size, byte % plan.size);
            assert!(instance < plan.instances);
            let word = rest >> plan.width.log2();
            let unit = plan.units + word / 32 * 8;
            let block = device.number(unit, 4);
            let begins = device.number(unit + 4, 4).cast_unsigned() & 0xffff_ffff;
            assert_eq!(begins & 1, 0, "bit 0 is not set");
            let started = begins & (0xffff_ffff >> (31 - word % 32));
            let block = (block.cast_unsigned() & 0xffff_ffff) + u64::from(started.count_ones());
            let shift =
                device.number(plan.shifts + block * u64::from(plan.shift_bytes), plan.shift_bytes);
            plan.displacement
                .wrapping_add(instance.cast_signed().wrapping_mul(plan.extent))
                .wrapping_add(shift.wrapping_mul(plan.width.bytes().into()))
                .wrapping_add(rest.cast_signed())
        }
        other => panic!("{other:?} is no plan"),
    }
}

/// Writes the plan in pieces; checks after each that the part of the stream it completes is found, by
/// `look` at the plan and the bytes that are new. Returns the plan, and how many pieces it took.
fn write(
    layout: &Layout,
    spec: &PlanSpec,
    mut room: impl FnMut() -> usize,
    mut look: impl FnMut(&Device, Range<u64>),
) -> (Device, usize) {
    let mut device = Device::of(spec);
    let mut written = vec![false; device.bytes.len()];
    let piece_bytes = room();
    let mut writer = Writer::new(layout, spec, piece_bytes);
    let (mut ready, mut pieces) = (0, 0);
    loop {
        // Pieces that are written in any order have one length.
        let any = matches!(writer, Writer::Pieces(..));
        let mut staging = vec![0x5A; if any { piece_bytes } else { room() }];
        let mut patches = Patches::new();
        let Some(next) = writer.next(&mut staging, &mut patches) else { break };
        pieces += 1;
        assert!(next >= ready, "{next} bytes after {ready}");
        assert!(!patches.is_empty() || next > ready, "a piece of nothing");
        for patch in &patches {
            assert!(patch.staged.end <= staging.len() && !patch.staged.is_empty());
            let at = usize::try_from(patch.at).unwrap();
            for seen in &mut written[at..at + patch.staged.len()] {
                assert!(!std::mem::replace(seen, true), "written twice, of {spec:?}");
            }
        }
        device.patch(&staging, &patches);
        look(&device, ready..next);
        ready = next;
    }
    assert_eq!(ready, spec.size, "all is ready at the end, of {spec:?}");
    assert!(written.iter().all(|&seen| seen), "all is written, of {spec:?}");
    let mut patches = Patches::new();
    assert_eq!(writer.next(&mut [0; 4096], &mut patches), None, "and stays so");
    assert!(patches.is_empty());
    (device, pieces)
}

/// Holds the plan of `datatype` against its typemap; returns how many pieces it took.
fn check(datatype: &Datatype, typemap: &Typemap, count: u64, rng: &mut Rng, about: &str) -> usize {
    let layout = datatype.commit().unwrap();
    let spec = PlanSpec::of(&layout);
    let truth = typemap.displacements(count).unwrap();
    let at = |byte: u64| truth[usize::try_from(byte).unwrap()];
    let offset = rng.below(3) * 8;
    let side = spec.side(&layout, count, offset);
    let moved = match side.clone() {
        TransferSide::Listed(mut blocks) => {
            blocks.list -= offset;
            TransferSide::Listed(blocks)
        }
        TransferSide::Mapped(mut plan) => {
            plan.units -= offset;
            plan.shifts -= offset;
            TransferSide::Mapped(plan)
        }
        other => panic!("{other:?} is no plan"),
    };
    let most = if rng.chance(50) { 300 } else { 4000 };
    let (device, pieces) = write(
        &layout,
        &spec,
        || STAGING_MIN + rng.index(most),
        |device, new| {
            if count > 0 {
                for byte in new {
                    assert_eq!(find(&moved, device, byte), at(byte), "byte {byte} of {about}");
                }
            }
        },
    );
    for byte in 0..truth.len() as u64 {
        assert_eq!(find(&moved, &device, byte), at(byte), "byte {byte} of {count} × {about}");
    }
    pieces
}

#[test]
fn random_types_are_found() {
    let (mut listed, mut mapped, mut parts) = (0, 0, 0);
    for seed in 0..6000 {
        let mut rng = Rng::new(seed);
        let params = Params { bytes_max: 1 << (6 + rng.below(6)), ..Params::default() };
        let (datatype, typemap) = random_sample(&mut rng, &params);
        let count = rng.below(5);
        check(&datatype, &typemap, count, &mut rng, &format!("seed {seed}: {datatype:?}"));
        let spec = PlanSpec::of(&datatype.commit().unwrap());
        listed += u32::from(matches!(spec.kind, PlanKind::Listed(_)));
        mapped += u32::from(matches!(spec.kind, PlanKind::Mapped(_)));
        parts += u32::from(spec.parts > 1);
    }
    assert!(listed > 100 && mapped > 1000 && parts > 20, "{listed}, {mapped}, {parts}");
}

/// Blocks of some lengths at random places.
fn long(rng: &mut Rng, blocks: usize, lengths: &[u64], unit: i64) -> Datatype {
    let lens: Vec<u64> = (0..blocks).map(|_| *rng.pick(lengths)).collect();
    let places: Vec<i64> = (0..blocks).map(|_| rng.between(-5000, 50_000) * unit).collect();
    let old = match unit {
        8 => Primitive::Double,
        4 => Primitive::Int,
        _ => Primitive::Byte,
    };
    Datatype::hindexed(&lens, &places, &old.into()).unwrap()
}

#[test]
fn long_lists_are_found_in_many_pieces() {
    let alphabets: [&[u64]; 7] = [
        &[3],
        &[1, 2, 3],
        &[1],
        &[32, 31, 33],
        &[1, 1, 1, 1, 1, 1, 1, 900],
        &[64, 96, 5000],
        &[2000],
    ];
    let mut tabled = [0, 0];
    let rounds = rounds(160);
    for seed in 0..rounds {
        let mut rng = Rng::new(seed);
        let alphabet = *rng.pick(&alphabets);
        let blocks = if alphabet.iter().any(|&n| n > 100) { 150 } else { 1500 };
        let blocks = blocks / 2 + rng.index(blocks);
        let unit = *rng.pick(&[1, 4, 8]);
        let mut datatype = long(&mut rng, blocks, alphabet, unit);
        if rng.chance(50) {
            // Two lists are no table: their blocks come from the convertor.
            let more = long(&mut rng, blocks / 2, &[1, 2, 70], unit);
            let types = [datatype, more];
            datatype = Datatype::structure(&[1, 1], &[0, 64], &types).unwrap();
        }
        let typemap = Typemap::of(&datatype).unwrap();
        let count = 1 + rng.below(2);
        let about = format!("seed {seed}: {blocks} blocks of {alphabet:?} × {unit}");
        let pieces = check(&datatype, &typemap, count, &mut rng, &about);
        let layout = datatype.commit().unwrap();
        let spec = PlanSpec::of(&layout);
        assert!(pieces as u64 >= spec.bytes / 5100, "{pieces} pieces of {spec:?}, {about}");
        if matches!(spec.kind, PlanKind::Mapped(_)) {
            tabled[usize::from(layout.run_table().is_some())] += 1;
        }
    }
    assert!(tabled.iter().all(|&n| n > rounds * 25 / 160), "{tabled:?}");
}

#[test]
fn uneven_lists_take_no_more_than_twice_the_pieces() {
    // First all long blocks, whose plan is units; then all short ones, whose plan is shifts.
    let (mut lens, mut places) = (vec![400u64; 500], Vec::new());
    lens.extend((0..20_000).map(|i| 1 + i % 2));
    let mut at = 0i64;
    for &len in &lens {
        places.push(at);
        at += len.cast_signed() * 8 + 8;
    }
    let layout = Datatype::hindexed(&lens, &places, &Primitive::Double.into()).unwrap();
    let layout = layout.commit().unwrap();
    let spec = PlanSpec::of(&layout);
    let (_, pieces) = write(&layout, &spec, || 16_384, |_, _| {});
    assert!(
        pieces as u64 <= 2 * spec.bytes / 16_384 + 2,
        "{pieces} pieces of {} bytes",
        spec.bytes
    );
}

#[test]
fn the_plan_is_the_encoders() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let datatype = long(&mut rng, 700, &[1, 2, 3, 50], 8);
        let layout = datatype.commit().unwrap();
        let spec = PlanSpec::of(&layout);
        let PlanKind::Mapped(map) = spec.kind else { panic!("{spec:?}") };
        let mut encoder = Encoder::new(map.width);
        let mut runs = vec![Run::default(); 2000];
        let (used, _) = Convertor::new(&layout, 1).unwrap().iov(&mut runs, u64::MAX);
        for run in &runs[..used] {
            encoder.push(run.displacement - layout.true_lb(), run.len).unwrap();
        }
        let (want, shifts_at) = encoder.to_bytes().unwrap();
        let (device, _) = write(&layout, &spec, || 1024 + rng.index(9000), |_, _| {});
        assert_eq!((shifts_at, encoder.shift_bytes()), (map.shifts_at, map.shift_bytes));
        assert!(device.bytes == want, "seed {seed}");
    }
}

fn irregular(places: &[i64], len: u64) -> Layout {
    Datatype::hindexed_block(len, places, &Primitive::Byte.into()).unwrap().commit().unwrap()
}

#[test]
fn numbers_are_32_bits_wide_where_they_fit() {
    let listed = |places: &[i64], len| match PlanSpec::of(&irregular(places, len)).kind {
        PlanKind::Listed(list) => (list.entry_bytes, list.scale),
        PlanKind::Mapped(map) => panic!("{map:?}"),
    };
    let most = i64::from(i32::MAX);
    assert_eq!(listed(&[0, 3, most], 1), (4, 1));
    assert_eq!(listed(&[0, 3, most + 1], 1), (8, 1));
    // Only how far they are apart counts, in units of what divides all.
    assert_eq!(listed(&[-3, 3 - most, 0], 1), (4, 1));
    assert_eq!(listed(&[1 << 60, (1 << 60) + 24, (1 << 60) + 8 * most], 8), (4, 8));
    assert_eq!(listed(&[0, 3 << 20, most << 20], 1 << 20), (4, 1 << 20));
    // As far apart as bounds may be.
    let (low, high) = (-3 << 60, 9 << 59);
    let far = [low, 0, high];
    assert_eq!(listed(&far, 8), (8, 8));
    let layout = irregular(&far, 8);
    let spec = PlanSpec::of(&layout);
    let (device, _) = write(&layout, &spec, || 4096, |_, _| {});
    for (block, place) in (0..).zip(far) {
        assert_eq!(find(&spec.side(&layout, 1, 0), &device, block * 8 + 3), place + 3);
    }
    let uneven = Datatype::hindexed(&[1, 2, 5], &far, &Primitive::Double.into()).unwrap();
    let layout = uneven.commit().unwrap();
    let spec = PlanSpec::of(&layout);
    let PlanKind::Mapped(map) = spec.kind else { panic!("{spec:?}") };
    assert_eq!((map.width, map.shift_bytes), (Width::W8, 8));
    let (device, _) = write(&layout, &spec, || 4096, |_, _| {});
    let at = |byte| find(&spec.side(&layout, 1, 0), &device, byte);
    assert_eq!((at(0), at(8), at(63)), (low, 0, high + 39));
    // And what fits.
    let lens = [2, 4, 6];
    let byte = Primitive::Byte.into();
    for (place, bytes) in [(2 * most - 20, 4), (2 * most + 40, 8)] {
        let near = Datatype::hindexed(&lens, &[-20, 0, place - 20], &byte).unwrap();
        let PlanKind::Mapped(map) = PlanSpec::of(&near.commit().unwrap()).kind else { panic!() };
        assert_eq!((map.width, map.shift_bytes), (Width::W2, bytes), "{place}");
    }
}

#[test]
fn plans_are_no_larger_than_promised() {
    // A gigabyte in aligned blocks of 16 MiB and more.
    let lens: Vec<u64> = (0..40).map(|i| (16 << 20) + i % 3 * 4096).collect();
    let places: Vec<i64> = (0..40).map(|i| i << 26).collect();
    let aligned = Datatype::hindexed(&lens, &places, &Primitive::Byte.into()).unwrap();
    let spec = PlanSpec::of(&aligned.commit().unwrap());
    assert!(spec.bytes * 50 <= spec.size, "{spec:?}");
    // Equal blocks take an entry each, however long.
    let spec = PlanSpec::of(&irregular(&[0, 1 << 30, 5 << 30], 999_999_999));
    assert_eq!(spec.bytes, 24);
    // 2³³ blocks in one instance have no plan.
    let float = Datatype::from(Primitive::Float);
    let column = Datatype::hvector(1 << 32, 1, 8, &float).unwrap();
    let two = Datatype::hindexed_block(1, &[0, 1 << 40, 3 << 40], &column).unwrap();
    let layout = two.commit().unwrap();
    let spec = PlanSpec::of(&layout);
    assert_eq!(spec.bytes, u64::MAX);
    let mut patches = Patches::new();
    assert_eq!(Writer::new(&layout, &spec, 4096).next(&mut [0; 4096], &mut patches), None);
}

#[test]
fn an_array_of_structures_has_the_plan_of_one() {
    let types = [Primitive::Int.into(), Primitive::Double.into()];
    let one = Datatype::structure(&[3, 2], &[4, 24], &types).unwrap();
    let padded = Datatype::resized(0, 48, &one).unwrap();
    let many = Datatype::contiguous(1 << 40, &padded).unwrap().commit().unwrap();
    let spec = PlanSpec::of(&many);
    assert_eq!((spec.bytes, spec.size, spec.instances(3)), (8 + 2 * 4, 28 << 40, 3 << 40));
    let (device, pieces) = write(&many, &spec, || 1024, |_, _| {});
    assert_eq!(pieces, 1);
    let side = spec.side(&many, 2, 0);
    let last = (28 << 41) - 1;
    assert_eq!(find(&side, &device, last), ((48 << 40) * 2) - 48 + 24 + 15);
    // Their list likewise.
    let list = Datatype::hindexed_block(1, &[0, 8, 24], &Primitive::Int.into()).unwrap();
    let list = Datatype::resized(-8, 40, &list).unwrap();
    let lists = Datatype::contiguous(1000, &list).unwrap().commit().unwrap();
    assert_eq!(PlanSpec::of(&lists).bytes, 12);
    // Where instances do not continue the parts, the plan is of all parts.
    let odd = Datatype::resized(0, 7, &Datatype::contiguous(5, &padded).unwrap()).unwrap();
    let odd = odd.commit().unwrap();
    assert_eq!(PlanSpec::of(&odd).instances(3), 3);
}

#[test]
fn nothing_has_an_empty_plan() {
    let layout = Datatype::contiguous(0, &Primitive::Int.into()).unwrap().commit().unwrap();
    let spec = PlanSpec::of(&layout);
    assert_eq!((spec.bytes, spec.size), (0, 0));
    assert_eq!(Writer::new(&layout, &spec, 4096).next(&mut [0; 4096], &mut Patches::new()), None);
}

#[test]
#[should_panic(expected = "to stage in")]
fn too_little_staging_memory_is_a_mistake_of_ours() {
    let layout = irregular(&[0, 8, 24], 4);
    Writer::new(&layout, &PlanSpec::of(&layout), 100).next(&mut [0; 100], &mut Patches::new());
}

#[test]
fn pieces_are_the_same_in_any_order() {
    let (mut several, mut tables) = (0, 0);
    for seed in 0..120 {
        let mut rng = Rng::new(seed);
        let alphabets: [&[u64]; 5] =
            [&[3], &[1, 2, 3], &[31, 32, 33], &[1, 1, 1, 1, 900], &[64, 65, 9000]];
        let alphabet = *rng.pick(&alphabets);
        let unit = *rng.pick(&[1, 4, 8]);
        let blocks = 40 + rng.index(900);
        let layout = long(&mut rng, blocks, alphabet, unit).commit().unwrap();
        let spec = PlanSpec::of(&layout);
        let piece_bytes = STAGING_MIN + rng.index(3000);
        let pieces = Pieces::of(&layout, &spec, piece_bytes).unwrap();
        let (want, count) = write(&layout, &spec, || piece_bytes, |_, _| {});
        assert_eq!(count, pieces.count());
        let mut order: Vec<usize> = (0..count).collect();
        rng.shuffle(&mut order);
        let mut device = Device::of(&spec);
        let mut staging = vec![0x3C; piece_bytes];
        for number in order {
            let mut patches = Patches::new();
            pieces.write(number, &mut staging, &mut patches);
            device.patch(&staging, &patches);
        }
        assert!(device.bytes == want.bytes, "seed {seed}: {count} pieces of {piece_bytes}");
        several += usize::from(count > 2);
        tables += usize::from(matches!(spec.kind, PlanKind::Mapped(_)));
    }
    assert!(several > 60 && tables > 60, "{several}, {tables}");
}
