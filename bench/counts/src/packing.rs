//! Steps of the convertor: 256 packed bytes at a time, on from where the last step ended, and jumps.

use gapless_dtype::{Convertor, Datatype, Layout, Primitive};

/// Bytes of a step.
const STEP: usize = 256;

fn commit(datatype: Result<Datatype, impl std::fmt::Display>) -> Layout {
    let datatype = datatype.unwrap_or_else(|error| panic!("a plain type: {error}"));
    datatype.commit().unwrap_or_else(|error| panic!("it commits: {error}"))
}

fn double() -> Datatype {
    Primitive::Double.into()
}

/// Steps through `layout`, from the beginning again at the end.
fn steps(layout: &Layout, count: &mut dyn FnMut(&mut dyn FnMut())) {
    let mut convertor = Convertor::new(layout, 1).expect("one instance");
    let (low, high) = convertor.bounds().expect("it has bytes");
    assert!(low >= 0, "displacements from 0 on");
    let source = vec![1u8; usize::try_from(high).expect("it fits memory")];
    let mut packed = [0u8; STEP];
    count(&mut || {
        let n = convertor.pack(&source, 0, &mut packed).expect("in bounds");
        if n < STEP {
            convertor.seek(0).expect("the beginning");
        }
        std::hint::black_box(&mut packed);
    });
}

/// Columns of a matrix: 1,024 blocks of 3 doubles.
pub(crate) fn vector(count: &mut dyn FnMut(&mut dyn FnMut())) {
    steps(&commit(Datatype::vector(1024, 3, 8, &double())), count);
}

/// Displacements in no order that could be made out.
fn scattered() -> Layout {
    let disps: Vec<i64> = (0..2048i64).map(|i| (i * 7919 % 2048) * 2 + i % 2).collect();
    commit(Datatype::indexed_block(1, &disps, &double()))
}

/// Single doubles by a list.
pub(crate) fn indexed(count: &mut dyn FnMut(&mut dyn FnMut())) {
    steps(&scattered(), count);
}

/// Records of two doubles and an int, one of eight left out.
pub(crate) fn structure(count: &mut dyn FnMut(&mut dyn FnMut())) {
    let record = Datatype::structure(&[2, 1], &[0, 20], &[double(), Primitive::Int.into()]);
    let record = record.unwrap_or_else(|error| panic!("a plain struct: {error}"));
    steps(&commit(Datatype::vector(128, 7, 8, &record)), count);
}

/// Jumps to anywhere in a list.
pub(crate) fn seek(count: &mut dyn FnMut(&mut dyn FnMut())) {
    let layout = scattered();
    let mut convertor = Convertor::new(&layout, 1).expect("one instance");
    let (size, mut place) = (convertor.packed_size(), 0);
    count(&mut || {
        place = (place + 7919) % size;
        convertor.seek(place).expect("a place of the stream");
        std::hint::black_box(&mut convertor);
    });
}
