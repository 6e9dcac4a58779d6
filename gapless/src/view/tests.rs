use super::*;
use crate::{Error, Owned, Parts, World};
use gapless_dtype::{Datatype, FitError, Primitive};

#[test]
fn slices_are_their_elements() {
    let list = [1.0f64; 5];
    assert_eq!(View::of(&list).packed_bytes(), 40);
    let layout = View::from(&list).typed.layout().clone();
    assert_eq!(layout.id(), f64::layout().id());
    assert_eq!(View::of::<i32>(&[]).packed_bytes(), 0);
    let mut bytes = vec![0u8; 3];
    let mut view = ViewMut::from(&mut bytes);
    assert_eq!(view.reborrow().packed_bytes(), 3);
    assert_eq!((&mut view).into_view().packed_bytes(), 3);
}

/// As the operations take them: how many elements, and packed bytes.
fn shape<'v>(buffer: impl SendBuffer<'v>) -> (u64, u64) {
    let view = buffer.into_view();
    (view.typed.count(), view.packed_bytes())
}

#[test]
fn values_arrays_and_lists_are_sent() {
    assert_eq!(shape(&1.5f64), (1, 8));
    assert_eq!(shape(&true), (1, 1));
    assert_eq!(shape(&['a', 'b']), (2, 8));
    assert_eq!(shape(&[[1.5f64; 3]; 2]), (2, 48));
    assert_eq!(shape(&vec![[1u8; 16]; 4]), (4, 64));
    assert_eq!(shape(&vec![1u8; 16]), (16, 16));
    assert_eq!(shape(&[1i32, 2, 3][1..]), (2, 8));
    assert_eq!(shape(b"bytes"), (5, 5));
    assert_eq!(shape("a text".as_bytes()), (6, 6));
    let view = View::of(&[1i16; 3]);
    assert_eq!((shape(&view), shape(view)), ((3, 6), (3, 6)));
}

#[test]
fn a_layout_must_fit_the_slice() {
    let mut list = [0i32; 8];
    let every_other = Datatype::vector(4, 1, 2, &Primitive::Int.into()).unwrap().commit().unwrap();
    assert!(View::typed(&list, 1, &every_other, 1).is_ok());
    assert!(View::typed(&list, 2, &every_other, 1).is_err());
    assert!(ViewMut::typed(&mut list, 0, &every_other, 2).is_err());
    assert!(View::typed(&list, u64::MAX, &every_other, 1).is_err());
    assert!(View::typed(&list, 0, &every_other, u64::MAX).is_err());
    let triples = [[0f64; 3]; 4];
    let all = <[f64; 3]>::datatype();
    let odd = Datatype::vector(2, 1, 2, &all).unwrap().commit().unwrap();
    assert_eq!(View::typed(&triples, 1, &odd, 1).unwrap().typed.origin(), 24);
    assert!(View::typed(&triples, 2, &odd, 1).is_err());
}

#[test]
fn whatever_describes_memory_asks_the_same() {
    let every_other =
        |basic: Primitive| Datatype::vector(3, 1, 2, &basic.into()).unwrap().commit().unwrap();
    let (floats, mut list) = (every_other(Primitive::Float), vec![0f64; 8]);
    let wrong = Error::Fit(FitError::Type { basic: Primitive::Float, element: "f64" });
    assert_eq!(View::typed(&list, 0, &floats, 1).unwrap_err(), wrong);
    assert_eq!(ViewMut::typed(&mut list, 0, &floats, 1).unwrap_err(), wrong);
    let mut parts = Parts::of(&mut list);
    assert_eq!(parts.view(0, &floats, 1).unwrap_err(), wrong);
    assert_eq!(parts.view_mut(0, &floats, 1).unwrap_err(), wrong);
    parts.view_mut(2, &every_other(Primitive::Double), 1).unwrap();
    assert_eq!(
        parts.view(6, &Datatype::from(Primitive::Double).commit().unwrap(), 1).unwrap_err(),
        Error::InUse { start: 48, end: 56 }
    );
    let world = World::init().unwrap();
    let refused = world.comm().isend_owned(Owned::typed(list, 0, &floats, 1), 0, 0);
    assert_eq!(refused.unwrap_err().error, wrong);
}
