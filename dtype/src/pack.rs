//! Packing and unpacking slices of elements: the typed form of the convertor's methods.

use crate::convertor::Convertor;
use crate::equivalence::{AnyBits, CheckedBits, Equivalence};
use crate::fit::{ElementType, FitError};
use crate::layout::Layout;

/// The packed bytes of `count` instances of a layout in a slice (`MPI_Pack`, MPI 4.1 §5.2); displacement 0 is `origin`
/// *elements* into it.
///
/// ```
/// use gapless_dtype::{Datatype, Equivalence, pack, unpack};
///
/// // The second column of a row-major 3 × 4 matrix.
/// let matrix: Vec<f64> = (0..12).map(f64::from).collect();
/// let column = Datatype::vector(3, 1, 4, &f64::datatype())?.commit()?;
/// let packed = pack(&matrix, 1, &column, 1)?;
/// assert_eq!(packed.len(), 24);
///
/// // It becomes the first one of another.
/// let mut other = vec![0.0f64; 12];
/// unpack(&packed, &mut other, 0, &column, 1)?;
/// assert_eq!([other[0], other[4], other[8]], [1.0, 5.0, 9.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The instances reach out of the slice ([`FitError::Instances`]); the layout does not fit the elements
/// ([`ElementType::check`]).
///
/// # Panics
/// The packed bytes are more than a `Vec` can have, as they may be of a layout that names bytes again and again.
pub fn pack<T: Equivalence>(
    slice: &[T],
    origin: usize,
    layout: &Layout,
    count: u64,
) -> Result<Vec<u8>, FitError> {
    let (mut convertor, start) = place::<T>(slice.len(), origin, layout, count)?;
    let size = convertor.packed_size();
    // They lie in memory, if not once for each time that they are named.
    let mut packed = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
    let from = slice.as_ptr().cast::<u8>().wrapping_add(start);
    // SAFETY: `place` found all runs inside the slice, and in bytes that the elements' datatype describes, which are
    // initialised; the packed bytes are this call's own, and as many as there are.
    unsafe { convertor.pack_raw(from, packed.as_mut_ptr(), size) };
    Ok(packed)
}

/// Unpacks what [`pack`] gave into a slice (`MPI_Unpack`); displacement 0 is `origin` *elements* into it. Gaps stay
/// untouched. Returns how many bytes that took, which is less than there are if the instances end before, and less than
/// the instances have if the bytes do.
///
/// # Errors
/// As [`pack`]; nothing has happened.
pub fn unpack<T: AnyBits>(
    packed: &[u8],
    slice: &mut [T],
    origin: usize,
    layout: &Layout,
    count: u64,
) -> Result<usize, FitError> {
    let (mut convertor, start) = place::<T>(slice.len(), origin, layout, count)?;
    let to = slice.as_mut_ptr().cast::<u8>().wrapping_add(start);
    // SAFETY: `place` found all runs inside the slice, which is borrowed exclusively, and in bytes that the elements'
    // datatype describes: these may have any value, as `AnyBits` says. No more bytes are read than are packed.
    let taken = unsafe { convertor.unpack_raw(packed.as_ptr(), to, packed.len() as u64) };
    // No more than `packed` has.
    Ok(usize::try_from(taken).unwrap_or(packed.len()))
}

/// Unpacks exactly `count` values, and checks the bits of each. `None` if there are more or fewer bytes than these take,
/// or if those of one are no value.
///
/// ```
/// use gapless_dtype::{Equivalence, pack, unpack_checked};
/// let packed = pack(&[true, false], 0, bool::layout(), 2)?;
/// assert_eq!(unpack_checked::<bool>(&packed, 2), Some(vec![true, false]));
/// assert_eq!(unpack_checked::<bool>(&[2], 1), None);
/// # Ok::<(), gapless_dtype::FitError>(())
/// ```
#[must_use]
pub fn unpack_checked<T: CheckedBits>(packed: &[u8], count: usize) -> Option<Vec<T>> {
    let layout = T::layout();
    let mut convertor = Convertor::new(layout, count as u64).ok()?;
    if convertor.packed_size() != packed.len() as u64 {
        return None;
    }
    let mut scratch = vec![0u8; count.checked_mul(size_of::<T>())?];
    // SAFETY: what a layout describes of its type's values lies in them; the scratch memory is as long as so many
    // values, and this call's own. No more bytes are read than are packed.
    unsafe { convertor.unpack_raw(packed.as_ptr(), scratch.as_mut_ptr(), packed.len() as u64) };
    let are_valid = match size_of::<T>() {
        0 => count == 0 || T::is_valid(&[]),
        size => scratch.chunks_exact(size).all(T::is_valid),
    };
    if !are_valid {
        return None;
    }
    let mut values = Vec::<T>::with_capacity(count);
    let to = values.as_mut_ptr().cast::<u8>();
    // SAFETY: there is room for `count` values, which is as long as the scratch memory, and is apart from it.
    unsafe { std::ptr::copy_nonoverlapping(scratch.as_ptr(), to, scratch.len()) };
    // SAFETY: the bytes of so many values are there, and `is_valid` has said of each that it is one.
    unsafe { values.set_len(count) };
    Some(values)
}

/// The instances, and the byte of the slice that displacement 0 is.
fn place<T: Equivalence>(
    len: usize,
    origin: usize,
    layout: &Layout,
    count: u64,
) -> Result<(Convertor, usize), FitError> {
    let convertor = Convertor::new(layout, count)?;
    // So far outside that no slice reaches there.
    let start = origin.saturating_mul(size_of::<T>());
    convertor.check(start, len * size_of::<T>())?;
    ElementType::of::<T>().check(layout, count)?;
    Ok((convertor, start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::equivalence::tests::Gapped;
    use crate::{ConvertorError, Datatype, Primitive};

    #[test]
    fn origins_count_elements() {
        let pairs: Vec<[i16; 2]> = (0..8).map(|i| [i, -i]).collect();
        let every_other = Datatype::vector(3, 1, 2, &<[i16; 2]>::datatype()).unwrap();
        let layout = every_other.commit().unwrap();
        let packed = pack(&pairs, 1, &layout, 1).unwrap();
        let due: Vec<u8> =
            [1, 3, 5].iter().flat_map(|i| [*i, -i]).flat_map(i16::to_ne_bytes).collect();
        assert_eq!(packed, due);
        let mut other = vec![[9i16; 2]; 8];
        assert_eq!(unpack(&packed, &mut other, 3, &layout, 1), Ok(12));
        assert_eq!((other[3], other[4], other[7]), ([1, -1], [9, 9], [5, -5]));
        // Part of it, and more than it.
        let mut other = vec![[9i16; 2]; 8];
        assert_eq!(unpack(&packed[..2], &mut other, 0, &layout, 1), Ok(2));
        assert_eq!((other[0], other[2]), ([1, 9], [9, 9]));
        assert_eq!(unpack(&[0; 99], &mut other, 0, &layout, 1), Ok(12));
    }

    /// Memcheck sees, too, if anything is made of bytes that are not initialised.
    #[test]
    fn padding_is_neither_read_nor_written() {
        for count in [1u16, 2, 5, 3000] {
            let number = |i: u16| Gapped { kind: i.to_le_bytes()[0], mass: f32::from(i) };
            let mut values = Vec::<Gapped>::with_capacity(usize::from(count));
            for i in 0..count {
                let Gapped { kind, mass } = number(i);
                let value = values.as_mut_ptr().wrapping_add(usize::from(i)).cast::<u8>();
                let field = value.wrapping_add(std::mem::offset_of!(Gapped, mass)).cast::<f32>();
                // SAFETY: there is room for `count` values; the first field of one of them.
                unsafe { value.write(kind) };
                // SAFETY: the other one.
                unsafe { field.write(mass) };
            }
            // SAFETY: so many values have both of their fields.
            unsafe { values.set_len(usize::from(count)) };
            let packed = pack(&values, 0, Gapped::layout(), u64::from(count)).unwrap();
            let due = (0..count)
                .map(number)
                .flat_map(|Gapped { kind, mass }| std::iter::once(kind).chain(mass.to_ne_bytes()));
            assert!(due.eq(packed.iter().copied()), "{count}");

            let mut marked = vec![0xAAu8; 8 * usize::from(count) + 4];
            // A `Vec` of bytes may begin anywhere.
            let skip = marked.as_ptr().align_offset(align_of::<Gapped>());
            let start = marked[skip..].as_mut_ptr().cast::<Gapped>();
            // SAFETY: initialised memory for `count` values, aligned; any bytes are values.
            let room = unsafe { std::slice::from_raw_parts_mut(start, usize::from(count)) };
            unpack(&packed, room, 0, Gapped::layout(), u64::from(count)).unwrap();
            assert!(room.iter().zip(0..).all(|(value, i)| value.mass == number(i).mass));
            for (i, bytes) in (0..count).zip(marked[skip..].chunks_exact(8)) {
                assert_eq!((bytes[0], &bytes[1..4]), (number(i).kind, &[0xAA; 3][..]), "{i}");
            }
        }
    }

    #[test]
    fn checked_values_are_whole_and_valid() {
        use std::marker::PhantomData;
        let letters = ['a', '\u{10FFFF}', 'ß'];
        let packed = pack(&letters, 0, char::layout(), 3).unwrap();
        assert_eq!(unpack_checked::<char>(&packed, 3).as_deref(), Some(&letters[..]));
        for count in [0, 2, 4, usize::MAX] {
            assert_eq!(unpack_checked::<char>(&packed, count), None);
        }
        assert_eq!(unpack_checked::<char>(&[0xFF; 4], 1), None);
        assert_eq!(unpack_checked::<f64>(&[], 0), Some(Vec::new()));
        assert_eq!(unpack_checked::<PhantomData<u8>>(&[], 3), Some(vec![PhantomData; 3]));
        assert_eq!(
            unpack_checked::<[bool; 2]>(&[1, 0, 0, 1], 2),
            Some(vec![[true, false], [false, true]])
        );
        assert_eq!(unpack_checked::<[bool; 2]>(&[1, 0, 0, 3], 2), None);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let every_other = Datatype::vector(3, 1, 2, &f64::datatype()).unwrap().commit().unwrap();
        let numbers = [0f64; 8];
        assert!(pack(&numbers, 3, &every_other, 1).is_ok());
        let outside = |origin| {
            let refused = pack(&numbers, origin, &every_other, 1);
            matches!(refused, Err(FitError::Instances(ConvertorError::OutOfBounds { .. })))
        };
        assert!(outside(4) && outside(usize::MAX));
        let wrong = FitError::Type { basic: Primitive::Double, element: "f32" };
        assert_eq!(pack(&[0f32; 99], 0, &every_other, 1).unwrap_err(), wrong);
        assert_eq!(unpack(&[], &mut [0f32; 99], 0, &every_other, 1).unwrap_err(), wrong);
        assert_eq!(pack::<u8>(&[7; 40], 0, &every_other, 1).unwrap(), [7; 24]);
        assert_eq!(pack(&numbers, 9, &every_other, 0).unwrap(), [0u8; 0]);
    }
}
