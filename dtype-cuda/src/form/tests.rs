//! Forms are read as the kernels read them and held against the oracle.

use super::*;
use gapless_dtype::naive::Typemap;
use gapless_dtype::testkit::{Params, Rng, random_sample};
use gapless_dtype::{Datatype, Primitive};
use std::collections::BTreeMap;

/// Where a byte of the stream lies; `None` where that takes a plan, whose tests are its own.
fn find(form: &Form, byte: u64) -> Option<i64> {
    match form {
        Form::Empty => panic!("byte {byte} of nothing"),
        Form::Contiguous { displacement } => Some(displacement + byte.cast_signed()),
        Form::Strided(grid) => {
            let (mut row, column) = (byte / grid.len, byte % grid.len);
            let mut at = grid.displacement + column.cast_signed();
            for dim in grid.dims.iter().rev() {
                at += (row % dim.count).cast_signed() * dim.stride;
                row /= dim.count;
            }
            assert_eq!(row, 0, "byte {byte} of {grid:?}");
            Some(at)
        }
        Form::Affine(runs) => {
            let len = |j: u64| runs.len.strict_add_signed(j.cast_signed() * runs.grow);
            let size: u64 = (0..runs.count).map(len).sum();
            let (instance, mut rest) = (byte / size, byte % size);
            assert!(instance < runs.instances);
            let mut j = 0;
            while rest >= len(j) {
                rest -= len(j);
                j += 1;
            }
            let (instance, j) = (instance.cast_signed(), j.cast_signed());
            let run = runs.displacement + instance * runs.extent + j * runs.step;
            Some(run + rest.cast_signed())
        }
        Form::Spans(spans) => {
            let holds = |s: &&ContiguousSpan| (s.at..s.at + s.len).contains(&byte);
            let span = spans.iter().find(holds).unwrap();
            assert_eq!(span.origin(), span.displacement - span.at.cast_signed());
            Some(span.origin() + byte.cast_signed())
        }
        Form::Listed(_) | Form::Mapped(_) => None,
    }
}

fn name(form: &Form) -> &'static str {
    match form {
        Form::Empty => "empty",
        Form::Contiguous { .. } => "contiguous",
        Form::Strided(_) => "strided",
        Form::Affine(_) => "affine",
        Form::Spans(_) => "spans",
        Form::Listed(_) => "listed",
        Form::Mapped(_) => "mapped",
    }
}

#[test]
fn random_types_are_found() {
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 0..8000 {
        let mut rng = Rng::new(seed);
        let params = Params { bytes_max: 1 << (4 + rng.below(6)), ..Params::default() };
        let (datatype, typemap) = random_sample(&mut rng, &params);
        let count = rng.below(5);
        let layout = datatype.commit().unwrap();
        let form = Form::of(&layout, count);
        *seen.entry(name(&form)).or_default() += 1;
        let truth = typemap.displacements(count).unwrap();
        assert_eq!(form == Form::Empty, truth.is_empty());
        for (byte, &at) in (0..).zip(&truth) {
            let found = find(&form, byte).unwrap_or(at);
            assert_eq!(found, at, "seed {seed}: byte {byte} of {count} × {datatype:?}: {form:?}");
        }
        if let Form::Strided(grid) = &form {
            assert!(grid.dims.len() <= DIMS_MAX && grid.dims.iter().all(|dim| dim.count > 1));
            let last = grid.dims.last();
            assert!(last.is_none_or(|dim| dim.stride.cast_unsigned() != grid.len), "{grid:?}");
        }
    }
    for (form, least) in
        [("empty", 100), ("contiguous", 100), ("strided", 500), ("affine", 50), ("listed", 50)]
    {
        assert!(seen[form] >= least, "{seen:?}");
    }
    assert!(seen["mapped"] >= 500 && seen.len() == 6, "{seen:?}");
}

fn form(datatype: &Datatype, count: u64) -> Form {
    let layout = datatype.commit().unwrap();
    let form = Form::of(&layout, count);
    // Whatever it is, it is right.
    if let Ok(truth) =
        Typemap::with_steps(datatype, 1 << 16).and_then(|map| map.displacements(count))
    {
        for (byte, &at) in (0..).zip(&truth) {
            assert_eq!(find(&form, byte).unwrap_or(at), at, "byte {byte} of {form:?}");
        }
    }
    form
}

fn double() -> Datatype {
    Primitive::Double.into()
}

fn dims(form: &Form) -> Vec<(u64, i64)> {
    match form {
        Form::Strided(grid) => grid.dims.iter().map(|dim| (dim.count, dim.stride)).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn instances_are_one_more_dimension_or_none() {
    let six = Datatype::contiguous(6, &double()).unwrap();
    assert_eq!(form(&six, 100), Form::Contiguous { displacement: 0 });
    let extent = |bytes| Datatype::resized(0, bytes, &six).unwrap();
    assert_eq!(dims(&form(&extent(-48), 3)), [(3, -48)]);
    assert_eq!(dims(&form(&extent(0), 3)), [(3, 0)]);
    assert_eq!(form(&extent(0), 1), Form::Contiguous { displacement: 0 });
    let column = Datatype::vector(10, 1, 4, &double()).unwrap();
    assert_eq!(dims(&form(&column, 1)), [(10, 32)]);
    assert_eq!(dims(&form(&column, 2)), [(2, 296), (10, 32)]);
    let whole = Datatype::resized(0, 320, &column).unwrap();
    assert_eq!(dims(&form(&whole, 7)), [(70, 32)]);
    let backwards = Datatype::hvector(10, 1, -32, &double()).unwrap();
    let on = Datatype::resized(0, -320, &backwards).unwrap();
    assert_eq!(dims(&form(&on, 7)), [(70, -32)]);
    // One long block.
    let long = Datatype::resized(0, 1 << 40, &Datatype::contiguous(1 << 32, &double()).unwrap());
    assert_eq!(dims(&form(&long.unwrap(), 2)), [(2, 1 << 40)]);
    assert_eq!(form(&six, 0), Form::Empty);
}

#[test]
fn more_dimensions_than_arguments_have_take_a_plan() {
    let mut nested = double();
    for level in 0..6 {
        nested = Datatype::hvector(2, 1, 24 << (2 * level), &nested).unwrap();
    }
    assert_eq!(dims(&form(&nested, 1)).len(), 6);
    assert!(matches!(form(&nested, 2), Form::Mapped(_)));
    let seven = Datatype::hvector(2, 1, 1 << 20, &nested).unwrap();
    assert!(matches!(form(&seven, 1), Form::Mapped(_)));
}

#[test]
fn triangles_and_arrays_of_them_are_affine() {
    let lens: Vec<u64> = (0..20).map(|j| 20 - j).collect();
    let places: Vec<i64> = (0..20).map(|j| j * 21).collect();
    let triangle = Datatype::indexed(&lens, &places, &double()).unwrap();
    let triangle = Datatype::resized(0, 4000, &triangle).unwrap();
    let array = Datatype::contiguous(5, &triangle).unwrap();
    for (datatype, count, instances) in
        [(&triangle, 1, 1), (&triangle, 3, 3), (&array, 1, 5), (&array, 2, 10)]
    {
        match form(datatype, count) {
            Form::Affine(runs) => assert_eq!((runs.instances, runs.count), (instances, 20)),
            other => panic!("{other:?}"),
        }
    }
    // Arrays that do not continue each other have two more dimensions, not one.
    let apart = Datatype::resized(0, 50_000, &array).unwrap();
    assert!(matches!(form(&apart, 1), Form::Affine(_)));
    assert!(matches!(form(&apart, 2), Form::Mapped(_)));
}

#[test]
fn short_lists_that_are_grids_take_no_plan() {
    let block = |places: &[i64]| Datatype::hindexed_block(1, places, &double()).unwrap();
    let grid = block(&[8, 24, 40, 108, 124, 140]);
    let wide = Datatype::resized(0, 200, &grid).unwrap();
    assert_eq!(dims(&form(&wide, 1)), [(2, 100), (3, 16)]);
    assert_eq!(dims(&form(&wide, 2)), [(4, 100), (3, 16)]);
    assert_eq!(dims(&form(&grid, 2)), [(2, 144), (2, 100), (3, 16)]);
    for places in [
        &[0, 16, 100, 117][..],
        &[0, 16, 32, 100, 116],
        &[0, 16, 100, 116, 300, 316],
        &[0, 100, 116],
        &[-3 << 60, 3 << 60, 0, 16],
    ] {
        assert!(matches!(form(&block(places), 1), Form::Listed(_)), "{places:?}");
    }
    // Longer ones are not read again on every call.
    let long: Vec<i64> = (0..100).map(|i| i / 2 * 100 + i % 2 * 16).collect();
    assert!(matches!(form(&block(&long), 1), Form::Listed(_)));
    assert_eq!(dims(&form(&block(&long[..64]), 1)), [(32, 100), (2, 16)]);
}

/// Pages at random places, some of them one behind the other: 4 bytes a page, and not a unit for 512 bytes.
#[test]
fn lists_whose_blocks_are_partly_adjacent_are_listed() {
    let (mut rng, pages) = (Rng::new(43), 2000u32);
    for len in [8, 24, 4096, 1 << 20] {
        let mut places: Vec<i64> = (0..2 * i64::from(pages)).collect();
        rng.shuffle(&mut places);
        places.truncate(places.len() / 2);
        for at in (1..places.len()).step_by(5) {
            places[at] = places[at - 1] + 1;
        }
        let block = Datatype::contiguous(len, &Primitive::Byte.into()).unwrap();
        let list = Datatype::indexed_block(1, &places, &block).unwrap();
        let Form::Listed(spec) = form(&list, 1) else { panic!("blocks of {len} are no list") };
        assert_eq!((spec.len, spec.count, spec.entry_bytes), (len, pages.into(), 4));
    }
}

#[test]
fn long_blocks_are_spans_where_their_plan_would_cost_more() {
    let byte = Primitive::Byte.into();
    let blocks = |lens: &[u64], align: i64| {
        let places: Vec<i64> = (0..).zip(lens).map(|(i, _)| (i << 36) + align).collect();
        Datatype::hindexed(lens, &places, &byte).unwrap()
    };
    let mib = 1 << 20;
    let aligned = blocks(&[200 * mib, 130 * mib, 150 * mib], 0);
    match form(&aligned, 1) {
        Form::Spans(all) => {
            let at: Vec<u64> = all.iter().map(|span| span.at).collect();
            assert_eq!(at, [0, 200 * mib, 330 * mib]);
            assert_eq!(all[2].displacement, 2 << 36);
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(form(&blocks(&[20 * mib, 13 * mib, 15 * mib], 0), 1), Form::Mapped(_)));
    assert!(matches!(form(&blocks(&[20 * mib, 13 * mib, 15 * mib], 1), 1), Form::Spans(_)));
    assert!(matches!(form(&blocks(&[2 * mib, 3 * mib, 2 * mib], 1), 1), Form::Mapped(_)));
    // Instances are contiguous spans too, up to a number.
    match form(&Datatype::resized(0, 1 << 40, &aligned).unwrap(), 300) {
        Form::Spans(all) => {
            assert_eq!(all.len(), 900);
            assert_eq!(all[899].displacement, 299 * (1 << 40) + (2 << 36));
            assert_eq!(all[899].at + all[899].len, 300 * 480 * mib);
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(form(&Datatype::resized(0, 0, &aligned).unwrap(), 400), Form::Mapped(_)));
    // Equal blocks of more words than a kernel numbers.
    let equal = |len| Datatype::hindexed_block(len, &[0, 9 << 36, 1 << 36], &byte).unwrap();
    assert!(matches!(form(&equal(2000 * mib), 1), Form::Listed(_)));
    assert!(matches!(form(&equal(3000 * mib), 1), Form::Spans(_)));
}
