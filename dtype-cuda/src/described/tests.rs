use super::*;
use gapless_dtype::naive::Typemap;
use gapless_dtype::testkit::{Params, Rng, random_datatype};
use gapless_dtype::{Datatype, Primitive, Subarray};
use gapless_kernels::Width;
use gapless_kernels::args::{Args, TransferArgs};
use gapless_kernels::launch::{KernelAddress, transfer};
use gapless_kernels::lookup::side_at;

/// Displacement of every byte of the stream, in its order, by what kernels would compute.
fn places(described: &Described) -> Vec<i64> {
    const PLAN: u64 = 1 << 40;
    let bytes = described.plan().unwrap();
    assert_eq!(bytes.len() as u64, described.plan_bytes());
    let read = |at: u64, len: u32| {
        let at = usize::try_from(at - PLAN).unwrap();
        let number = &bytes[at..at + len as usize];
        match *number {
            [a, b, c, d] => i64::from(i32::from_ne_bytes([a, b, c, d])),
            _ => i64::from_ne_bytes(number.try_into().unwrap()),
        }
    };
    let side = described.side(PLAN);
    let here = KernelAddress { address: 0, offset: 0 };
    let range = 0..described.bytes();
    let launches =
        transfer(&range, (&side, here), (&TransferSide::Contiguous(0), here), None).unwrap();
    let mut places = Vec::new();
    for launch in launches {
        let (w, Args::Transfer(args)) = (launch.kernel.width, launch.args) else { panic!() };
        let TransferArgs { span, from, .. } = *args;
        let mut word = |number: u32, bytes: u32| {
            let at = span.typed + side_at(&from, &read, from.first.wrapping_add(number), w.bytes());
            places.extend((0..i64::from(bytes)).map(|byte| at + byte));
        };
        (0..span.words).for_each(|number| word(number, w.bytes()));
        word(span.words, span.edges >> 8 & 255);
    }
    places
}

fn expected(datatype: &Datatype, count: u64) -> Vec<i64> {
    let map = Typemap::of(datatype).unwrap();
    let instance = |at: i64| {
        map.entries().iter().flat_map(move |entry| {
            let first = entry.displacement + at;
            first..first + entry.primitive.size_bytes().cast_signed()
        })
    };
    (0..count.cast_signed()).flat_map(|number| instance(number * map.extent())).collect()
}

#[test]
fn bytes_are_found_where_the_typemap_has_them() {
    let seed = 20_261_126;
    let mut rng = Rng::new(seed);
    for round in 0..1500 {
        let datatype = random_datatype(&mut rng, &Params::disjoint());
        let Ok(layout) = datatype.commit() else { continue };
        let count = 1 + round % 3;
        let described = Described::of(&layout, count);
        if described.bytes() == 0 || described.bytes() > 1 << 16 {
            continue;
        }
        let right = expected(&datatype, count);
        assert_eq!(places(&described), right, "seed {seed}, round {round}: {datatype:?}");
        let planned = described.planned();
        assert_eq!(places(&planned), right, "seed {seed}, round {round}, planned: {datatype:?}");
    }
}

#[test]
fn long_plans_are_written_in_pieces() {
    let lens: Vec<u64> = (0..200_000).map(|n| 1 + n % 3).collect();
    let at: Vec<i64> = (0..200_000).map(|n| n * 5 + n % 2).collect();
    let many = Datatype::indexed(&lens, &at, &Primitive::Int.into()).unwrap();
    let list = Datatype::indexed_block(1, &at, &Primitive::Int.into()).unwrap();
    for datatype in [many, list] {
        let described = Described::of(&datatype.commit().unwrap(), 1).planned();
        assert!(described.plan_bytes() > 700_000);
        assert_eq!(places(&described), expected(&datatype, 1));
    }
}

#[test]
fn runs_are_what_follows_each_other() {
    let double: Datatype = Primitive::Double.into();
    let part = |subsizes: [u64; 3]| {
        let all = Subarray::of(&double).sizes([8, 8, 8]);
        Described::of(&all.subsizes(subsizes).starts([0; 3]).build().unwrap().commit().unwrap(), 1)
    };
    assert_eq!(part([4, 8, 8]).run(), 8 * 8 * 4 * 8);
    assert_eq!(part([4, 4, 8]).run(), 4 * 8 * 8);
    assert_eq!(part([4, 4, 1]).run(), 8);
    // Rows to columns: in the order of the columns' addresses these are contiguous spans.
    let rows = Datatype::vector(8, 8, 8, &double).unwrap().commit().unwrap();
    let column = Datatype::vector(8, 1, 8, &double).unwrap();
    let columns = Datatype::resized(0, 8, &column).unwrap().commit().unwrap();
    let (from, to) = (Described::of(&rows, 1), Described::of(&columns, 8));
    assert_eq!((from.run(), to.run()), (512, 8));
    assert_eq!(in_one_order(&from, &to).unwrap().runs, [8, 512]);
    let narrow = Datatype::vector(8, 4, 8, &double).unwrap().commit().unwrap();
    let (from, to) = (Described::of(&narrow, 1), Described::of(&columns, 4));
    let [_, written] = in_one_order(&from, &to).unwrap().runs;
    assert_eq!(written, 32);
    assert!(Width::dividing(written) >= Width::W16);
}
