//! The convertor allocates nothing: making one, positioning, packing, unpacking and listing runs take no memory from the
//! heap, whatever the type. Nor does moving 4 KiB at most between layouts. Fragments of the eager path depend on it.

use gapless_dtype::testkit::{Params, Rng, random_datatype};
use gapless_dtype::{Convertor, Datatype, Primitive, Run, transfer};
use gapless_testkit::Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = gapless_testkit::allocations();
    work();
    gapless_testkit::allocations() - before
}

#[test]
fn the_counter_counts() {
    let made = allocations(|| drop(std::hint::black_box(Box::new(7))));
    assert_eq!(made, 1);
}

#[test]
fn convertors_do_not_allocate() {
    // Reads a variable of the tests' own, once; that is not the convertor's allocation.
    #[cfg(target_arch = "x86_64")]
    gapless_dtype::testkit::without_avx512();
    let mut rng = Rng::new(21);
    let params = Params { depth_max: 7, blocks_min: 2, ..Params::disjoint() };
    for case in 0..2_000 {
        let layout = random_datatype(&mut rng, &params).commit().unwrap();
        let peer = Datatype::vector(layout.size(), 1, 2, &Primitive::Byte.into()).unwrap();
        let peer = peer.commit().unwrap();
        let (mut source, mut other) = (vec![0_u8; 1 << 16], vec![0_u8; 1 << 12]);
        let mut packed = vec![0_u8; 1 << 10];
        let mut runs = [Run::default(); 16];
        let place = rng.below(layout.size() + 1);
        let made = allocations(|| {
            let origin = 1 << 15;
            let mut convertor = Convertor::new(&layout, 1).unwrap();
            convertor.pack(&source, origin, &mut packed[..7]).unwrap();
            convertor.seek(place).unwrap();
            convertor.pack(&source, origin, &mut packed).unwrap();
            convertor.seek(place).unwrap();
            convertor.iov(&mut runs, u64::MAX);
            convertor.seek(0).unwrap();
            convertor.unpack(&packed, &mut source, origin).unwrap();
            convertor.seek(0).unwrap();
            let mut to = Convertor::new(&peer, 1).unwrap();
            transfer(&mut convertor, &source, origin, &mut to, &mut other, 0, u64::MAX).unwrap();
        });
        assert_eq!(made, 0, "case {case}, of seed 21: {layout:?}");
    }
}
