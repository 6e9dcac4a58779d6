use super::*;
use crate::{Contents, Shape};

/// Five bytes of eight: 0 and 4..8.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Gapped {
    pub(crate) kind: u8,
    pub(crate) mass: f32,
}

// SAFETY: 1 to 3: its two fields at their offsets: a byte and a float, without the padding between them. 4: `layout`
// is the provided one.
unsafe impl Equivalence for Gapped {
    fn datatype() -> Datatype {
        let kind = (std::mem::offset_of!(Gapped, kind), u8::datatype());
        let mass = (std::mem::offset_of!(Gapped, mass), f32::datatype());
        Self::derived_datatype(&[kind, mass])
    }
}

// SAFETY: numbers, which may have any bits.
unsafe impl AnyBits for Gapped {}

/// What every implementation promises, as far as it can be seen from outside.
fn keeps_its_bounds<T: Equivalence>() {
    let (datatype, layout) = (T::datatype(), T::layout());
    let bytes = i64::try_from(size_of::<T>()).unwrap();
    assert_eq!((datatype.lb(), datatype.extent()), (0, bytes));
    assert!(datatype.true_lb() >= 0 && datatype.true_ub() <= bytes);
    assert_eq!(layout, &datatype.commit().unwrap());
    assert!(std::ptr::eq(layout, T::layout()), "made once");
    if let Some(basic) = T::BASIC {
        assert_eq!(datatype, Datatype::from(basic));
    }
    let (count, element) = T::as_elements();
    assert_eq!(count as u64 * element.bytes(), size_of::<T>() as u64);
}

#[test]
fn values_are_within_their_bounds() {
    keeps_its_bounds::<f64>();
    keeps_its_bounds::<usize>();
    keeps_its_bounds::<bool>();
    keeps_its_bounds::<char>();
    keeps_its_bounds::<num_complex::Complex<f32>>();
    keeps_its_bounds::<[half::bf16; 5]>();
    keeps_its_bounds::<[[char; 3]; 2]>();
    keeps_its_bounds::<[f64; 0]>();
    keeps_its_bounds::<PhantomData<f64>>();
    keeps_its_bounds::<[PhantomData<()>; 9]>();
}

#[test]
fn arrays_are_contiguous() {
    assert!(<[f64; 3]>::layout().is_contiguous());
    assert!(matches!(<[f64; 3]>::datatype().contents(), Contents::Contiguous { count: 3, .. }));
    assert_eq!(<[PhantomData<u8>; 4]>::layout().shape(), &Shape::Empty);
    assert_ne!(<[f64; 3]>::layout(), <[f64; 4]>::layout());
}

#[test]
fn bits_are_looked_at() {
    assert!((0..=255u8).all(|bits| bool::is_valid(&[bits]) == (bits < 2)));
    assert!(!bool::is_valid(&[]) && !bool::is_valid(&[0, 0]));
    for (point, due) in [(0, true), (0xD7FF, true), (0xD800, false), (0xDFFF, false)] {
        assert_eq!(char::is_valid(&u32::to_ne_bytes(point)), due, "{point:x}");
    }
    assert!(!char::is_valid(&0x11_0000u32.to_ne_bytes()));
    assert!(<[bool; 3]>::is_valid(&[0, 1, 0]) && !<[bool; 3]>::is_valid(&[0, 1, 2]));
    assert!(<[PhantomData<bool>; 3]>::is_valid(&[]));
    assert!(f32::is_valid(&f32::NAN.to_ne_bytes()));
}

#[test]
fn threads_that_ask_first_get_one_layout() {
    let asked: Vec<_> = std::thread::scope(|threads| {
        let all: Vec<_> = (0..8).map(|_| threads.spawn(<[i16; 77]>::layout)).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(asked.windows(2).all(|pair| std::ptr::eq(pair[0], pair[1])));
}
