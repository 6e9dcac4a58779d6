//! Known layouts with known numbers: the papers' shapes in small, and where blocks lie that merge or go backwards. Size,
//! blocks and extent are literals; every type also goes through all checks against the oracle. So do the layouts of the
//! catalogue, in `layouts/tests/documented.rs`.

use gapless_dtype::testkit::check_datatype;
use gapless_dtype::{Datatype, Primitive, Shape, TypeError};

type Built = Result<Datatype, TypeError>;

fn int() -> Datatype {
    Primitive::Int.into()
}

fn float() -> Datatype {
    Primitive::Float.into()
}

fn double() -> Datatype {
    Primitive::Double.into()
}

/// Holds a type against literal numbers and against the oracle with 1 to 3 instances.
fn expect(datatype: Built, size: u64, blocks: u64, extent: i64) -> Datatype {
    let datatype = datatype.expect("a legal type");
    assert_eq!(datatype.size(), size, "size");
    assert_eq!(datatype.extent(), extent, "extent");
    let layout = datatype.commit().expect("commits");
    assert_eq!(layout.blocks(), blocks, "blocks");
    for count in 1..=3 {
        check_datatype(&datatype, count, 0x1a70 + count);
    }
    datatype
}

#[test]
fn indexed_gap() {
    let built = || {
        let inner = Datatype::structure(&[2, 1], &[0, 8], &[int(), float()])?;
        let three = Datatype::contiguous(3, &inner)?;
        let outer = Datatype::structure(&[1, 1], &[0, 8], &[int(), three])?;
        Datatype::contiguous(10, &outer)
    };
    let datatype = expect(built(), 400, 11, 440);
    // 4, then nine of 40 (a tail merges with the next int), then 36.
    let mut convertor = gapless_dtype::Convertor::new(&datatype.commit().unwrap(), 1).unwrap();
    let mut runs = [gapless_dtype::Run::default(); 12];
    assert_eq!(convertor.iov(&mut runs, u64::MAX), (11, 400));
    let lengths: Vec<u64> = runs[..11].iter().map(|run| run.len).collect();
    assert_eq!(lengths, [4, 40, 40, 40, 40, 40, 40, 40, 40, 40, 36]);
}

#[test]
fn adverse_extents() {
    let two = Datatype::contiguous(2, &int()).unwrap();
    let backwards = expect(Datatype::resized(0, -8, &two), 8, 1, -8);
    let layout = backwards.commit().unwrap();
    let mut convertor = gapless_dtype::Convertor::new(&layout, 4).unwrap();
    assert_eq!(convertor.bounds(), Some((-24, 8)));
    let mut runs = [gapless_dtype::Run::default(); 5];
    assert_eq!(convertor.iov(&mut runs, u64::MAX), (4, 32));
    let places: Vec<i64> = runs[..4].iter().map(|run| run.displacement).collect();
    assert_eq!(places, [0, -8, -16, -24]);
}

/// The papers' sub-matrix V, lower triangle T, stair triangle and transpose X.
#[test]
fn the_papers_shapes() {
    let n: i64 = 24;
    let count = n.unsigned_abs();
    let v = Datatype::vector(count, count, 2 * n, &double());
    let v = expect(v, 8 * count * count, count, 8 * (2 * n * (n - 1) + n));
    assert!(matches!(v.commit().unwrap().shape(), Shape::Strided { len: 192, dims, .. }
        if dims.len() == 1 && dims[0].count == count && dims[0].stride == 16 * n));

    let lengths: Vec<u64> = (0..count).map(|j| count - j).collect();
    let displacements: Vec<i64> = (0..n).map(|j| j * (n + 1)).collect();
    let t = Datatype::indexed(&lengths, &displacements, &double());
    let t = expect(t, 4 * count * (count + 1), count, 8 * n * n);
    let layout = t.commit().unwrap();
    let Shape::Affine { count: runs, displacement0, displacement_step, len0, len_step } =
        *layout.shape()
    else {
        panic!("a triangle is affine, not {:?}", layout.shape());
    };
    let closed = (runs, displacement0, displacement_step, len0, len_step);
    assert_eq!(closed, (count, 0, 8 * (n + 1), 8 * count, -8));

    let nb = 4;
    let step = |j: i64| nb * (j / nb);
    let lengths: Vec<u64> = (0..n).map(|j| (n - step(j)).unsigned_abs()).collect();
    let displacements: Vec<i64> = (0..n).map(|j| j * n + step(j)).collect();
    let stair = Datatype::indexed(&lengths, &displacements, &double());
    let blocks = count - nb.unsigned_abs() + 1;
    expect(stair, 4 * count * (count + nb.unsigned_abs()), blocks, 8 * n * n);

    let column = Datatype::vector(count, 1, n, &double()).unwrap();
    let column = Datatype::resized(0, 8, &column).unwrap();
    let x = expect(Datatype::contiguous(count, &column), 8 * count * count, count * count, 8 * n);
    assert_eq!(x.true_extent(), 8 * n * n);
    assert!(matches!(x.commit().unwrap().shape(), Shape::Strided { len: 8, dims, .. }
        if dims.len() == 2 && dims[0].stride == 8 && dims[1].stride == 8 * n));
}

#[test]
fn listed_blocks_are_recognised() {
    let list: Vec<i64> = (0..40).map(|i| (37 * i) % 101).collect();
    let particles = Datatype::indexed_block(1, &list, &float());
    let particles = expect(particles, 160, 40, 404);
    let layout = particles.commit().unwrap();
    let Shape::EqualBlocks { displacement, len: 4, displacements } = layout.shape() else {
        panic!("not {:?}", layout.shape());
    };
    let places: Vec<i64> = displacements.iter().map(|at| displacement + at).collect();
    let expected: Vec<i64> = list.iter().map(|at| 4 * at).collect();
    assert_eq!(places, expected);
}

#[test]
fn nothing_at_all() {
    for empty in [
        Datatype::contiguous(0, &int()),
        Datatype::vector(3, 0, 2, &int()),
        Datatype::structure(&[], &[], &[]),
        Datatype::indexed(&[0, 0], &[5, -5], &double()),
    ] {
        let layout = expect(empty, 0, 0, 0).commit().unwrap();
        assert_eq!(*layout.shape(), Shape::Empty);
    }
    // Markers without data still make an extent.
    let hollow = Datatype::contiguous(0, &int()).unwrap();
    let hollow = Datatype::resized(-4, 12, &hollow).unwrap();
    let three = expect(Datatype::contiguous(3, &hollow), 0, 0, 36);
    assert_eq!((three.lb(), three.true_lb(), three.true_ub()), (-4, 0, 0));
}
