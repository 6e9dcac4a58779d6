use super::*;
use crate::naive::Typemap;
use crate::testkit::{INSTANCES_MAX, Params, Rng, random_datatype};
use gapless_testkit::{fresh, seed};

fn external(primitive: Primitive, native: &[u8]) -> Vec<u8> {
    let mut out = vec![0; in_memory(primitive.external_bytes())];
    encode(primitive, native, &mut out);
    out
}

fn native(primitive: Primitive, external: &[u8]) -> Vec<u8> {
    let mut out = vec![0xAA; in_memory(primitive.size_bytes())];
    decode(primitive, external, &mut out);
    out
}

#[test]
fn items_are_big_endian_in_mpis_sizes() {
    for (primitive, here, there) in [
        (P::Int, (-2i32).to_ne_bytes().to_vec(), vec![0xff, 0xff, 0xff, 0xfe]),
        (P::Short, 0x1234i16.to_ne_bytes().to_vec(), vec![0x12, 0x34]),
        (P::Double, 1.0f64.to_ne_bytes().to_vec(), vec![0x3f, 0xf0, 0, 0, 0, 0, 0, 0]),
        (P::Byte, vec![7], vec![7]),
        (P::Bool32, 1i32.to_ne_bytes().to_vec(), vec![0, 0, 0, 1]),
        (P::Aint, 0x0102isize.to_ne_bytes().to_vec(), vec![0, 0, 0, 0, 0, 0, 1, 2]),
        (
            P::FloatComplex,
            [1.0f32, -2.0].map(f32::to_ne_bytes).concat(),
            vec![0x3f, 0x80, 0, 0, 0xc0, 0, 0, 0],
        ),
        (P::Long, std::ffi::c_long::from(-3i8).to_ne_bytes().to_vec(), vec![255, 255, 255, 253]),
        (P::UnsignedLong, std::ffi::c_ulong::MAX.to_ne_bytes().to_vec(), vec![255; 4]),
        (P::Wchar, 0x20ACi32.to_ne_bytes().to_vec(), vec![0x20, 0xAC]),
        (P::Wchar, 0x1F600i32.to_ne_bytes().to_vec(), vec![0xff, 0xfd]),
    ] {
        assert_eq!(external(primitive, &here), there, "{primitive}");
        let back = native(primitive, &there);
        match primitive {
            P::UnsignedLong if here.len() == 8 => {
                assert_eq!(back, 0xffff_ffffu64.to_ne_bytes(), "no sign");
            }
            P::Wchar if there[0] == 0xff => assert_eq!(back, 0xfffdi32.to_ne_bytes()),
            _ => assert_eq!(back, here, "{primitive}"),
        }
    }
    assert_eq!(P::LongInt.external_bytes(), 8);
    assert_eq!(P::LongDoubleInt.external_bytes(), 20);
    for primitive in P::ALL {
        let longest = primitive.size_bytes().max(primitive.external_bytes());
        assert!(primitive.is_pair() || in_memory(longest) <= ELEMENT_MAX, "{primitive}");
    }
}

/// Numbers as both formats write them down.
#[cfg(target_arch = "x86_64")]
#[test]
fn long_doubles_become_binary128_and_come_back_rounded() {
    let x87 = |head: u16, significand: u64| {
        let mut bytes = vec![0; 16];
        bytes[..8].copy_from_slice(&significand.to_le_bytes());
        bytes[8..10].copy_from_slice(&head.to_le_bytes());
        bytes
    };
    let quad =
        |head: u16, fraction: u128| (u128::from(head) << 112 | fraction).to_be_bytes().to_vec();
    let top = 1u64 << 63;
    for (what, here, there) in [
        ("0", x87(0, 0), quad(0, 0)),
        ("-0", x87(0x8000, 0), quad(0x8000, 0)),
        ("1", x87(0x3fff, top), quad(0x3fff, 0)),
        ("-1.5", x87(0xbfff, top | top >> 1), quad(0xbfff, 1 << 111)),
        ("1 + 2^-63", x87(0x3fff, top | 1), quad(0x3fff, 1 << 49)),
        ("the least", x87(0, 1), quad(0, 1 << 49)),
        ("infinity", x87(0x7fff, top), quad(0x7fff, 0)),
        ("a NaN", x87(0x7fff, top | top >> 1), quad(0x7fff, 1 << 111)),
    ] {
        assert_eq!(external(P::LongDouble, &here), there, "{what}");
        assert_eq!(native(P::LongDouble, &there), here, "{what}");
        let (two, twice) = ([&here[..], &here].concat(), [&there[..], &there].concat());
        assert_eq!(external(P::LongDoubleComplex, &two), twice, "{what}");
        assert_eq!(native(P::LongDoubleComplex, &twice), two, "{what}");
    }
    for (what, there, here) in [
        ("a tie goes to even", quad(0x3fff, 1 << 48), x87(0x3fff, top)),
        ("from odd, too", quad(0x3fff, 3 << 48), x87(0x3fff, top | 2)),
        ("above a tie", quad(0x3fff, 1 << 48 | 1), x87(0x3fff, top | 1)),
        ("a carry", quad(0x3fff, (1 << 112) - 1), x87(0x4000, top)),
        ("the least normal", quad(0, (1 << 112) - 1), x87(1, top)),
        ("to infinity", quad(0x7ffe, (1 << 112) - 1), x87(0x7fff, top)),
        ("a NaN of low bits", quad(0x7fff, 1), x87(0x7fff, top | top >> 1)),
    ] {
        assert_eq!(native(P::LongDouble, &there), here, "{what}");
    }
    assert_eq!(external(P::LongDouble, &x87(0, top)), quad(1, 0), "a pseudo-denormal");
}

/// Instances of random types, against their typemap written out; what was packed unpacks to the same bytes.
#[test]
fn random_types_are_packed_item_by_item() {
    let seed = seed(fresh());
    println!("GAPLESS_SEED={seed}");
    let mut rng = Rng::new(seed);
    let (mut checked, mut narrowed) = (0, 0);
    while checked < 2000 {
        let datatype = random_datatype(&mut rng, &Params::default());
        let typemap = Typemap::of(&datatype).unwrap();
        let count = rng.below(INSTANCES_MAX + 1);
        if typemap.size() == 0 || typemap.size() > 4000 || !typemap.is_disjoint(count) {
            continue;
        }
        let layout = datatype.commit().unwrap();
        let convertor = crate::Convertor::new(&layout, count).unwrap();
        let (low, high) = convertor.bounds().unwrap_or((0, 0));
        if high - low > 1 << 20 {
            continue;
        }
        checked += 1;
        let origin = usize::try_from(-low.min(0)).unwrap();
        let mut memory = vec![0; origin + usize::try_from(high.max(0)).unwrap()];
        rng.fill(&mut memory);
        let mut expected = Vec::new();
        let items = (0..count).flat_map(|instance| {
            let base = i64::try_from(instance).unwrap() * typemap.extent();
            typemap.entries().iter().map(move |entry| (base + entry.displacement, entry.primitive))
        });
        for (at, primitive) in items {
            let at = usize::try_from(i64::try_from(origin).unwrap() + at).unwrap();
            let here = &memory[at..at + in_memory(primitive.size_bytes())];
            expected.extend(external(primitive, here));
            narrowed += u32::from(primitive == P::Long);
        }
        let (signature, size) = (layout.signature(), expected.len());
        assert_eq!(external_size(signature, count), size as u64, "seed {seed}: {datatype:?}");
        let mut packed = vec![0xEE; size + 3];
        let from = memory.as_ptr().wrapping_add(origin);
        // SAFETY: the memory holds the instances.
        let written = unsafe { pack_external(&layout, count, from, &mut packed) };
        assert_eq!(written, Ok(size), "seed {seed}: {datatype:?}");
        assert_eq!(packed[..size], expected, "seed {seed}: {datatype:?}");
        assert_eq!(packed[size..], [0xEE; 3], "seed {seed}: {datatype:?}");

        // What comes back packs to the same again, and the gaps are as they were.
        let gaps = {
            let mut marks = vec![0u8; memory.len()];
            let to = marks.as_mut_ptr().wrapping_add(origin);
            let ones = vec![1; in_memory(convertor.packed_size())];
            // SAFETY: as above.
            unsafe { convertor.clone().unpack_raw(ones.as_ptr(), to, ones.len() as u64) };
            marks
        };
        let mut copy = vec![0xC3; memory.len()];
        let to = copy.as_mut_ptr().wrapping_add(origin);
        // SAFETY: as above.
        let read = unsafe { unpack_external(&packed, &layout, count, to) };
        assert_eq!(read, Ok(size), "seed {seed}: {datatype:?}");
        let gap = |(at, byte): (usize, &u8)| gaps[at] == 1 || *byte == 0xC3;
        assert!(copy.iter().enumerate().all(gap), "seed {seed}: {datatype:?}");
        let mut again = vec![0; size];
        // SAFETY: as above.
        unsafe { pack_external(&layout, count, to, &mut again) }.unwrap();
        let exact = |p: &Primitive| !matches!(p, P::LongDouble | P::LongDoubleComplex);
        if typemap.signature().all(|primitive| exact(&primitive)) {
            assert_eq!(again, expected, "seed {seed}: {datatype:?}");
        }
        if size > 0 {
            // SAFETY: as above.
            let short = unsafe { pack_external(&layout, count, from, &mut again[1..]) };
            let (needed, found) = (size as u64, size as u64 - 1);
            assert_eq!(short, Err(ExternalError::Room { needed, found }));
        }
    }
    assert!(narrowed > 100, "{narrowed}");
}
