//! Whether a layout fits elements of a Rust type: it has no other basic types, and places them where elements may lie.
//! Both follow from facts that a committed layout knows, whatever its length.

use crate::error::Error;
use gapless_dtype::{Layout, Primitive, SignatureKind};
use gapless_engine::Typed;
use gapless_mem::Region;

/// `count` instances of a layout in memory of such elements; displacement 0 is `origin` elements into it. `Uint8`
/// stands for bytes, which every layout fits.
pub(crate) fn typed_in(
    region: Region,
    element: Primitive,
    origin: u64,
    layout: &Layout,
    count: u64,
) -> Result<Typed, Error> {
    // So far outside that no region reaches there.
    let origin = origin.saturating_mul(element.size_bytes());
    let typed = Typed::new(region, origin, layout, count)?;
    if element != Primitive::Uint8 && typed.packed_bytes() > 0 {
        same_types(element, layout)?;
        aligned(element, layout, count)?;
    }
    Ok(typed)
}

fn same_types(element: Primitive, layout: &Layout) -> Result<(), Error> {
    let own = kind(element);
    let others = |basic: &Primitive| {
        let (sort, bytes) = kind(*basic);
        let alike = sort == own.0 || sort == Sort::EitherSign && own.0.is_integer();
        sort != Sort::Untyped && (!alike || bytes != own.1)
    };
    match layout.signature().types().find(others) {
        None => Ok(()),
        Some(basic) => Err(Error::ElementType { basic, element }),
    }
}

/// Origins are multiples of elements, so only displacements count.
fn aligned(element: Primitive, layout: &Layout, count: u64) -> Result<(), Error> {
    if layout.signature().kind() != SignatureKind::Typed {
        return Ok(());
    }
    let alignment = element.alignment_bytes();
    let multiple = |bytes: u64| bytes.is_multiple_of(alignment);
    let next = if count > 1 { layout.extent() } else { 0 };
    // Powers of two divide negative numbers as they divide their bits.
    if multiple(layout.granularity()) && multiple(next.cast_unsigned()) {
        return Ok(());
    }
    Err(Error::Misaligned { element, alignment })
}

/// What the bits of a number mean.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    Signed,
    Unsigned,
    /// It depends on the C compiler which.
    EitherSign,
    Float,
    BFloat,
    LongDouble,
    Bool,
    /// Bytes, which may be anything.
    Untyped,
    /// No number: signatures have its two parts.
    Pair,
}

impl Sort {
    fn is_integer(self) -> bool {
        matches!(self, Sort::Signed | Sort::Unsigned)
    }
}

/// The sort of a basic type, and its size in bytes; of a complex number, those of its parts.
fn kind(basic: Primitive) -> (Sort, u64) {
    use Primitive as P;
    let sort = match basic {
        P::SignedChar | P::Short | P::Int | P::Long | P::LongLong => Sort::Signed,
        P::Int8 | P::Int16 | P::Int32 | P::Int64 | P::Aint | P::Count | P::Offset => Sort::Signed,
        P::UnsignedChar | P::UnsignedShort | P::Unsigned => Sort::Unsigned,
        P::UnsignedLong | P::UnsignedLongLong => Sort::Unsigned,
        P::Uint8 | P::Uint16 | P::Uint32 | P::Uint64 => Sort::Unsigned,
        P::Char | P::Wchar => Sort::EitherSign,
        P::Float16 | P::Float | P::Double => Sort::Float,
        P::BFloat16 => Sort::BFloat,
        P::LongDouble | P::LongDoubleComplex => Sort::LongDouble,
        P::FloatComplex => return kind(P::Float),
        P::DoubleComplex => return kind(P::Double),
        P::Bool => Sort::Bool,
        P::Byte | P::Packed => Sort::Untyped,
        P::TwoInt | P::FloatInt | P::DoubleInt | P::LongInt | P::ShortInt | P::LongDoubleInt => {
            Sort::Pair
        }
    };
    (sort, basic.size_bytes())
}

#[cfg(test)]
mod tests {
    use crate::{Error, Owned, Parts, View, ViewMut, World};
    use gapless_dtype::{Datatype, Layout, Primitive as P};
    use num_complex::Complex;

    fn every_other(basic: P) -> Layout {
        Datatype::vector(3, 1, 2, &basic.into()).unwrap().commit().unwrap()
    }

    #[test]
    fn a_layout_has_the_elements_types_or_bytes() {
        let fits = |basic, element| {
            let layout = every_other(basic);
            let refused = match element {
                P::Int8 => View::typed(&[0i8; 512], 1, &layout, 1).err(),
                P::Int32 => View::typed(&[0i32; 128], 1, &layout, 1).err(),
                P::Uint32 => View::typed(&[0u32; 128], 1, &layout, 1).err(),
                P::Int64 => View::typed(&[0i64; 64], 1, &layout, 1).err(),
                P::Double => View::typed(&[0f64; 64], 1, &layout, 1).err(),
                P::FloatComplex => {
                    View::typed(&[Complex::<f32>::default(); 64], 1, &layout, 1).err()
                }
                _ => View::typed(&[0u8; 512], 1, &layout, 1).err(),
            };
            let expected = Error::ElementType { basic, element };
            assert!(refused.as_ref().is_none_or(|error| *error == expected), "{refused:?}");
            refused.is_none()
        };
        for (element, welcome) in [
            (P::Int8, &[P::Int8, P::SignedChar, P::Char, P::Byte, P::Packed][..]),
            (P::Int32, &[P::Int32, P::Int, P::Wchar, P::Byte]),
            (P::Uint32, &[P::Uint32, P::Unsigned, P::Wchar, P::Byte]),
            (P::Int64, &[P::Int64, P::Long, P::LongLong, P::Aint, P::Count, P::Offset, P::Byte]),
            (P::Double, &[P::Double, P::DoubleComplex, P::Byte]),
            (P::FloatComplex, &[P::FloatComplex, P::Float, P::Byte]),
            (P::Uint8, &P::ALL),
        ] {
            for basic in P::ALL.into_iter().filter(|basic| !basic.is_pair()) {
                let due = welcome.contains(&basic) || basic == P::Packed;
                assert_eq!(fits(basic, element), due, "{basic} in {element}");
            }
        }
        let pairs = every_other(P::DoubleInt);
        assert!(View::typed(&[0f64; 64], 0, &pairs, 1).is_err());
        assert!(View::typed(&[0u8; 512], 3, &pairs, 1).is_ok(), "bytes lie anywhere");
    }

    #[test]
    fn elements_lie_where_elements_lie() {
        let double = Datatype::from(P::Double);
        let at = |places: &[i64]| {
            Datatype::hindexed_block(1, places, &double).unwrap().commit().unwrap()
        };
        let slice = [0f64; 16];
        let misaligned = Error::Misaligned { element: P::Double, alignment: 8 };
        for (places, due) in [(&[0, 16][..], true), (&[8], true), (&[4, 16], false), (&[3], false)]
        {
            let refused = View::typed(&slice, 1, &at(places), 1).err();
            assert_eq!(refused, (!due).then(|| misaligned.clone()), "{places:?}");
        }
        let narrow = Datatype::resized(0, 12, &double).unwrap().commit().unwrap();
        assert!(View::typed(&slice, 0, &narrow, 1).is_ok(), "there is no second one");
        assert_eq!(View::typed(&slice, 0, &narrow, 2).err(), Some(misaligned.clone()));
        // Complex numbers lie as their parts may.
        let imaginary = Datatype::hvector(4, 1, 8, &P::Float.into()).unwrap();
        let imaginary = Datatype::hindexed_block(1, &[4], &imaginary).unwrap().commit().unwrap();
        assert!(View::typed(&[Complex::<f32>::default(); 4], 0, &imaginary, 1).is_ok());
        // Bytes between numbers may lie anywhere.
        let types = [double.clone(), P::Byte.into()];
        let tagged = Datatype::structure(&[1, 3], &[0, 8], &types).unwrap().commit().unwrap();
        assert!(View::typed(&slice, 2, &tagged, 1).is_ok());
    }

    #[test]
    fn whatever_describes_memory_asks_the_same() {
        let (floats, mut list) = (every_other(P::Float), vec![0f64; 8]);
        let wrong = Error::ElementType { basic: P::Float, element: P::Double };
        assert_eq!(ViewMut::typed(&mut list, 0, &floats, 1).unwrap_err(), wrong);
        let mut parts = Parts::of(&mut list);
        assert_eq!(parts.view(0, &floats, 1).unwrap_err(), wrong);
        assert_eq!(parts.view_mut(0, &floats, 1).unwrap_err(), wrong);
        parts.view_mut(2, &every_other(P::Double), 1).unwrap();
        assert_eq!(
            parts.view(6, &Datatype::from(P::Double).commit().unwrap(), 1).unwrap_err(),
            Error::InUse { start: 48, end: 56 }
        );
        let world = World::init().unwrap();
        let refused = world.comm().isend_owned(Owned::typed(list, 0, &floats, 1), 0, 0);
        assert_eq!(refused.unwrap_err().error, wrong);
    }
}
