//! What a datatype says of a pointer's memory is checked where a program asks for that. The switch is the process's, so
//! this stands alone.

use gapless::{Datatype, Error, Layout, Primitive, Space, View, ViewMut, check_kinds, in_space};

#[test]
#[expect(unsafe_code, reason = "views of pointers")]
fn a_datatype_that_lies_is_refused_once_a_program_asks() {
    let int = Datatype::from(Primitive::Int);
    let device = in_space(&int, Space::Cuda { device: 0 }).unwrap().commit().unwrap();
    let mut numbers = [7i32; 4];
    let pointer = numbers.as_mut_ptr();
    // SAFETY: nothing follows the views but their description.
    let view = |layout: &Layout, count| unsafe {
        View::of_pointer(pointer.cast_const().cast(), layout, count)
    };
    assert!(view(&device, 4).is_ok());
    check_kinds(true);
    let refused = view(&device, 4).unwrap_err();
    let Error::WrongMemory { address, named, found } = refused else { panic!("{refused}") };
    assert_eq!((address, found), (pointer.addr() as u64, Space::Host));
    assert_eq!(named, Space::Cuda { device: 0 });
    // SAFETY: as above.
    let refused = unsafe { ViewMut::of_pointer(pointer.cast(), &device, 4) };
    assert!(matches!(refused, Err(Error::WrongMemory { .. })), "{refused:?}");
    // What touches nothing lies nowhere; what is true passes.
    assert!(view(&device, 0).is_ok());
    assert!(view(&int.commit().unwrap(), 4).is_ok());
    check_kinds(false);
    assert!(view(&device, 4).is_ok());
}
