use super::*;
use crate::Datatype;
use crate::Primitive as P;
use crate::equivalence::tests::Gapped;
use num_complex::Complex;

fn every_other(basic: P) -> Layout {
    Datatype::vector(3, 1, 2, &basic.into()).unwrap().commit().unwrap()
}

#[test]
fn a_layout_has_the_elements_types_or_bytes() {
    let fits = |basic, element: ElementType| {
        let refused = element.check(&every_other(basic), 1).err();
        let expected = FitError::Type { basic, element: element.name() };
        assert!(refused.as_ref().is_none_or(|error| *error == expected), "{refused:?}");
        refused.is_none()
    };
    for (element, welcome) in [
        (ElementType::of::<i8>(), &[P::Int8, P::SignedChar, P::Char, P::Byte, P::Packed][..]),
        (ElementType::of::<i32>(), &[P::Int32, P::Int, P::Wchar, P::Byte]),
        (ElementType::of::<u32>(), &[P::Uint32, P::Unsigned, P::Wchar, P::Byte]),
        (ElementType::of::<char>(), &[P::Uint32, P::Unsigned, P::Wchar, P::Byte]),
        (
            ElementType::of::<i64>(),
            &[P::Int64, P::Long, P::LongLong, P::Aint, P::Count, P::Offset, P::Byte],
        ),
        (ElementType::of::<f64>(), &[P::Double, P::DoubleComplex, P::Byte]),
        (ElementType::of::<[f64; 3]>(), &[P::Double, P::DoubleComplex, P::Byte]),
        (ElementType::of::<bool>(), &[P::Bool, P::Byte]),
        (ElementType::of::<Complex<f32>>(), &[P::FloatComplex, P::Float, P::Byte]),
        (ElementType::of::<u8>(), &P::ALL),
    ] {
        for basic in P::ALL.into_iter().filter(|basic| !basic.is_pair()) {
            let due = welcome.contains(&basic) || basic == P::Packed;
            assert_eq!(fits(basic, element), due, "{basic} in {}", element.name());
        }
    }
    let pairs = every_other(P::DoubleInt);
    assert!(ElementType::of::<f64>().check(&pairs, 1).is_err());
    assert!(ElementType::of::<u8>().check(&pairs, 1).is_ok(), "bytes lie anywhere");
    assert!(ElementType::of::<f32>().check(&pairs, 0).is_ok(), "there is none");
}

#[test]
fn elements_lie_where_elements_lie() {
    let (double, doubles) = (Datatype::from(P::Double), ElementType::of::<f64>());
    let at =
        |places: &[i64]| Datatype::hindexed_block(1, places, &double).unwrap().commit().unwrap();
    let misaligned = FitError::Misaligned { element: "f64", alignment: 8 };
    for (places, due) in [(&[0, 16][..], true), (&[8], true), (&[4, 16], false), (&[3], false)] {
        let refused = doubles.check(&at(places), 1).err();
        assert_eq!(refused, (!due).then(|| misaligned.clone()), "{places:?}");
    }
    let narrow = Datatype::resized(0, 12, &double).unwrap().commit().unwrap();
    assert!(doubles.check(&narrow, 1).is_ok(), "there is no second one");
    assert_eq!(doubles.check(&narrow, 2).err(), Some(misaligned));
    // Complex numbers lie as their parts may.
    let imaginary = Datatype::hvector(4, 1, 8, &P::Float.into()).unwrap();
    let imaginary = Datatype::hindexed_block(1, &[4], &imaginary).unwrap().commit().unwrap();
    assert!(ElementType::of::<Complex<f32>>().check(&imaginary, 1).is_ok());
    // Bytes between numbers may lie anywhere.
    let types = [double.clone(), P::Byte.into()];
    let tagged = Datatype::structure(&[1, 3], &[0, 8], &types).unwrap().commit().unwrap();
    assert!(doubles.check(&tagged, 1).is_ok());
}

/// As by marking the bytes that elements have.
#[test]
fn gaps_of_elements_are_in_no_layout() {
    let element = ElementType::of::<Gapped>();
    assert!(element.check(Gapped::layout(), 7).is_ok());
    let own = Gapped::datatype();
    let column = Datatype::vector(4, 2, 5, &own).unwrap().commit().unwrap();
    assert!(element.check(&column, 3).is_ok());
    let floats = every_other(P::Double);
    let wrong = FitError::Type { basic: P::Double, element: element.name() };
    assert_eq!(element.check(&floats, 1), Err(wrong));
    let is_data = |at: i64| matches!(at.rem_euclid(8), 0 | 4..8);
    let byte = Datatype::from(P::Byte);
    for start in -9..9i64 {
        for len in 0..12u64 {
            for stride in [-8i64, 1, 4, 5, 8, 16] {
                let block = Datatype::contiguous(len, &byte).unwrap();
                let blocks = Datatype::hvector(2, 1, stride, &block).unwrap();
                let placed = Datatype::hindexed_block(1, &[start], &blocks).unwrap();
                let refused = element.check(&placed.commit().unwrap(), 1);
                let long = i64::try_from(len).unwrap();
                let mut all = (0..long).flat_map(|i| [start + i, start + stride + i]);
                let due = all.all(is_data);
                assert_eq!(refused.is_ok(), due, "{len} at {start} and {stride} on: {refused:?}");
                if let Err(FitError::Gap { byte, .. }) = refused {
                    assert!(!is_data(i64::try_from(byte).unwrap()));
                }
            }
        }
    }
}

/// 8 bytes of 16, all of one type.
#[repr(C, align(16))]
struct Aligned(f64);

// SAFETY: 1 to 3: its field at its offset. 4: `layout` is the provided one.
unsafe impl Equivalence for Aligned {
    fn datatype() -> Datatype {
        let number = (std::mem::offset_of!(Aligned, 0), f64::datatype());
        Self::derived_datatype(&[number])
    }
}

#[test]
fn elements_of_one_type_may_have_gaps() {
    let element = ElementType::of::<Aligned>();
    let double = Datatype::from(P::Double);
    let every = |stride| Datatype::vector(3, 1, stride, &double).unwrap().commit().unwrap();
    assert_eq!(
        element.check(&every(2), 2),
        Err(FitError::Gap { byte: 8, element: element.name() })
    );
    assert!(element.check(&every(2), 1).is_ok() && element.check(&every(4), 1).is_ok());
    assert!(element.check(&every(1), 1).is_err() && element.check(&every(3), 1).is_err());
    assert!(ElementType::of::<[Aligned; 2]>().check(&every(2), 1).is_ok());
    assert!(ElementType::of::<[Aligned; 2]>().check(&every(1), 1).is_err());
    assert_eq!(Aligned(1.0).0, 1.0);
}

/// As `Gapped`, and a byte behind, described from the end.
#[repr(C)]
struct Backwards {
    kind: u8,
    mass: f32,
    last: u8,
}

// SAFETY: 1 to 3: its fields at their offsets. 4: `layout` is the provided one.
unsafe impl Equivalence for Backwards {
    fn datatype() -> Datatype {
        let last = (std::mem::offset_of!(Backwards, last), u8::datatype());
        let mass = (std::mem::offset_of!(Backwards, mass), f32::datatype());
        let kind = (std::mem::offset_of!(Backwards, kind), u8::datatype());
        Self::derived_datatype(&[last, mass, kind])
    }
}

#[test]
fn fields_may_be_described_in_any_order() {
    let element = ElementType::of::<Backwards>();
    for at in 0..24 {
        let byte = Datatype::hindexed_block(1, &[at], &P::Byte.into()).unwrap();
        let due = matches!(at % 12, 0 | 4..=8);
        assert_eq!(element.check(&byte.commit().unwrap(), 1).is_ok(), due, "{at}");
    }
    let Backwards { kind, mass, last } = Backwards { kind: 1, mass: 2.0, last: 3 };
    assert_eq!((kind, mass, last), (1, 2.0, 3));
}

/// A pair as a user describes it, whose last four bytes are nobody's.
#[repr(C)]
struct Best {
    value: f64,
    index: i32,
}

// SAFETY: `DOUBLE_INT` is a double and an integer, as here; the rest of the extent is a gap.
unsafe impl Equivalence for Best {
    const BASIC: Option<P> = Some(P::DoubleInt);

    fn datatype() -> Datatype {
        P::DoubleInt.into()
    }
}

#[test]
fn the_gap_of_a_pair_is_not_read() {
    let best = ElementType::of::<Best>();
    let bytes = |count| Datatype::contiguous(count, &P::Byte.into()).unwrap().commit().unwrap();
    assert!(best.check(&bytes(12), 1).is_ok());
    assert!(
        matches!(best.check(&bytes(16), 1), Err(FitError::Gap { .. })),
        "{:?}",
        best.check(&bytes(16), 1)
    );
    assert!(best.check(&Datatype::from(P::Double).commit().unwrap(), 1).is_ok());
    assert!(best.check(&Datatype::from(P::DoubleInt).commit().unwrap(), 2).is_ok());
    let Best { value, index } = Best { value: 1.0, index: 2 };
    assert_eq!((value, index), (1.0, 2));
}

/// As of the ordinary layout that has the same bytes, for every small page, stride and list.
#[test]
fn pages_fit_as_their_bytes_do() {
    let (byte, float) = (Datatype::from(P::Byte), Datatype::from(P::Float));
    let page = |of: &Datatype, at: i64, len: u64| {
        let block = Datatype::contiguous(len, of).unwrap();
        Datatype::hindexed_block(1, &[at], &block).unwrap().commit().unwrap()
    };
    let element = ElementType::of::<Gapped>();
    let mut refused = 0;
    for (at, len) in (0..8).flat_map(|at| (0..5).map(move |len| (at, len))) {
        for stride in 0..20u64 {
            for page in [page(&byte, at, len), page(&float, at, 1)] {
                let pages = crate::Pages::new(&page, stride, &[0u32, 1, 2, 5][..]).unwrap();
                let fits = element.check(&pages.to_layout().unwrap(), 1).is_ok();
                let found = element.check_pages(&page, stride);
                // Pages between elements are refused even if they meet no gap.
                assert!(fits || found.is_err(), "{at}, {len}, {stride}: {found:?}");
                assert!(found.is_ok() || !fits || stride % 8 != 0, "{at}, {len}, {stride}");
                refused += u32::from(found.is_err());
            }
        }
    }
    assert!(refused > 0);
    let (floats, four) = (ElementType::of::<f32>(), page(&float, 0, 1));
    let wrong = FitError::Stride { stride: 6, step: 4, element: "f32" };
    assert_eq!(floats.check_pages(&four, 6), Err(wrong.clone()));
    assert_eq!(ElementType::of::<[f32; 3]>().check_pages(&four, 4), Ok(()));
    assert!(wrong.to_string().contains("6 bytes apart"), "{wrong}");
    // Bytes lie anywhere, and so do pages without any.
    assert_eq!(floats.check_pages(&page(&byte, 0, 3), 3), Ok(()));
    assert_eq!(ElementType::of::<u8>().check_pages(&four, 3), Ok(()));
    assert_eq!(floats.check_pages(&page(&float, 0, 0), 3), Ok(()));
    let doubles = page(&P::Double.into(), 0, 1);
    assert!(matches!(floats.check_pages(&doubles, 8), Err(FitError::Type { .. })));
}
