use super::*;
use crate::datatype::Datatype;
use crate::layout::LayoutBounds;
use crate::limits::MAX_PROGRAM_DEPTH;
use crate::primitive::Primitive;
use crate::program::{Program, ProgramError, ProgramPart};
use crate::run::in_memory;
use crate::transfer::transfer;

fn byte() -> Datatype {
    Primitive::Byte.into()
}

/// One layout of every op, and nests of them; instances fit 0..4096 with the origin at 1024.
fn samples() -> Vec<(Layout, u64)> {
    let vector = Datatype::vector(5, 3, 7, &byte()).unwrap();
    let transpose =
        Datatype::resized(0, 8, &Datatype::hvector(16, 1, 96, &Primitive::Double.into()).unwrap());
    let blocks = Datatype::indexed_block(4, &[40, 8, 0, 60, 61], &byte()).unwrap();
    let list = Datatype::indexed(&[3, 1, 7, 2], &[50, 9, 20, -6], &byte()).unwrap();
    let affine = Datatype::indexed(&[9, 7, 5, 3], &[0, 20, 40, 60], &byte()).unwrap();
    let each =
        Datatype::indexed_block(1, &[5, 0, 2], &Datatype::resized(0, 64, &list).unwrap()).unwrap();
    let types = [list.clone(), vector.clone(), each.clone(), byte()];
    let seq = Datatype::structure(&[1, 2, 1, 5], &[0, 100, 300, 90], &types).unwrap();
    let backwards = Datatype::resized(0, -100, &seq).unwrap();
    let overlapping = Datatype::resized(0, 3, &blocks).unwrap();
    let gap = Datatype::resized(0, 70, &Datatype::indexed(&[4, 30], &[0, 40], &byte()).unwrap());
    [
        (byte(), 100),
        (vector.clone(), 1),
        (vector, 4),
        (transpose.unwrap(), 9),
        (blocks, 3),
        (overlapping, 4),
        (list, 5),
        (affine, 6),
        (each, 2),
        (seq.clone(), 1),
        (seq, 3),
        (backwards, 3),
        (gap.unwrap(), 7),
        (Datatype::contiguous(0, &byte()).unwrap(), 3),
    ]
    .into_iter()
    .map(|(datatype, count)| (datatype.commit().unwrap(), count))
    .collect()
}

const ORIGIN: usize = 1024;

fn memory() -> Vec<u8> {
    (0..4096u32).map(|i| u8::try_from(i * 31 % 251).unwrap()).collect()
}

/// Runs listed one at a time: the reference for everything else.
fn runs(layout: &Layout, count: u64) -> Vec<Run> {
    let mut convertor = Convertor::new(layout, count).unwrap();
    let mut runs = Vec::new();
    loop {
        let mut one = [Run::default()];
        match convertor.iov(&mut one, u64::MAX) {
            (0, 0) => return runs,
            (used, bytes) => {
                assert_eq!((used, bytes), (1, one[0].len));
                runs.push(one[0]);
            }
        }
    }
}

fn gathered(runs: &[Run], memory: &[u8]) -> Vec<u8> {
    runs.iter()
        .flat_map(|run| {
            let at = usize::try_from(ORIGIN as i64 + run.displacement).unwrap();
            memory[at..at + in_memory(run.len)].to_vec()
        })
        .collect()
}

#[test]
fn packs_any_range_of_every_op() {
    let memory = memory();
    for (layout, count) in samples() {
        let expected = gathered(&runs(&layout, count), &memory);
        let mut convertor = Convertor::new(&layout, count).unwrap();
        assert_eq!(convertor.packed_size(), expected.len() as u64);
        for step in [1, 2, 3, 5, 8, 13, 64, 100, 1000, 4096] {
            for start in (0..=expected.len()).step_by(step.min(7)) {
                let mut packed = vec![0; step];
                convertor.seek(start as u64).unwrap();
                let n = convertor.pack(&memory, ORIGIN, &mut packed).unwrap();
                assert_eq!(n, step.min(expected.len() - start));
                assert_eq!(packed[..n], expected[start..start + n], "{layout:?} {start}+{n}");
                assert_eq!(convertor.position(), (start + n) as u64);
            }
        }
    }
}

#[test]
fn listed_runs_are_maximal_in_any_batch() {
    for (layout, count) in samples() {
        let expected = runs(&layout, count);
        assert_eq!(Some(expected.len() as u64), layout.blocks_of(count), "{layout:?}");
        assert!(expected.windows(2).all(|pair| pair[0].end() != pair[1].displacement));
        for batch in [2, 3, 7, 1000] {
            let mut convertor = Convertor::new(&layout, count).unwrap();
            let mut all = Vec::new();
            let mut some = vec![Run::default(); batch];
            while let (used, 1..) = convertor.iov(&mut some, u64::MAX) {
                all.extend_from_slice(&some[..used]);
            }
            assert_eq!(all, expected);
        }
        // Cut by bytes, the pieces still cover the same bytes in the same order.
        let mut convertor = Convertor::new(&layout, count).unwrap();
        let mut cut = Vec::new();
        let mut some = [Run::default(); 5];
        while let (used, 1..) = convertor.iov(&mut some, 6) {
            cut.extend_from_slice(&some[..used]);
        }
        let bytes = |runs: &[Run]| -> Vec<i64> {
            runs.iter().flat_map(|run| run.displacement..run.end()).collect()
        };
        assert_eq!(bytes(&cut), bytes(&expected));
    }
}

#[test]
fn unpacks_fragments_in_any_order_and_leaves_gaps_alone() {
    for (layout, count) in samples() {
        let runs = runs(&layout, count);
        let mut convertor = Convertor::new(&layout, count).unwrap();
        let size = in_memory(convertor.packed_size());
        let packed: Vec<u8> = (0..size).map(|i| u8::try_from(i % 255).unwrap()).collect();
        let mut expected = vec![255; 4096];
        let mut next = 0;
        for run in &runs {
            let at = usize::try_from(ORIGIN as i64 + run.displacement).unwrap();
            expected[at..at + in_memory(run.len)]
                .copy_from_slice(&packed[next..next + in_memory(run.len)]);
            next += in_memory(run.len);
        }
        let mut got = vec![255; 4096];
        assert_eq!(convertor.unpack(&packed, &mut got, ORIGIN), Ok(size));
        assert_eq!(got, expected, "{layout:?}");
        let covered: u64 = runs.iter().map(|run| run.len).sum();
        let mut touched: Vec<i64> =
            runs.iter().flat_map(|run| run.displacement..run.end()).collect();
        touched.sort_unstable();
        touched.dedup();
        if touched.len() as u64 != covered {
            continue;
        }
        let mut got = vec![255; 4096];
        for start in (0..size).step_by(11).rev() {
            let end = size.min(start + 11);
            convertor.seek(start as u64).unwrap();
            assert_eq!(convertor.unpack(&packed[start..end], &mut got, ORIGIN), Ok(end - start));
        }
        assert_eq!(got, expected, "{layout:?}");
    }
}

/// Fragments of a large copy may go around the cache: all of it arrives, and gaps stay.
#[test]
fn unpacks_large_copies_by_fragments() {
    let double = Datatype::from(Primitive::Double);
    let rows = Datatype::vector(300, 2000, 2200, &double).unwrap();
    let lens: Vec<u64> = (1..=1100).collect();
    let at: Vec<i64> = (0..1100).map(|row| row * 1101).collect();
    let triangle = Datatype::indexed(&lens, &at, &double).unwrap();
    let column = Datatype::resized(0, 8, &Datatype::vector(800, 1, 800, &double).unwrap());
    let transpose = Datatype::contiguous(800, &column.unwrap()).unwrap();
    let apart = Datatype::vector(70_000, 8, 200, &double).unwrap();
    let places: Vec<i64> = (0..900).map(|i| i * 7 % 900 * 700).collect();
    let blocks = Datatype::indexed_block(600, &places, &double).unwrap();
    let lens: Vec<u64> = (0..900).map(|i| 10 + i * 37 % 1200).collect();
    let places: Vec<i64> = (0..900).map(|i| i * 7 % 900 * 1300).collect();
    let list = Datatype::indexed(&lens, &places, &double).unwrap();
    for datatype in [rows, triangle, transpose, apart, blocks, list] {
        let layout = datatype.commit().unwrap();
        let mut convertor = Convertor::new(&layout, 1).unwrap();
        let size = in_memory(convertor.packed_size());
        let span = in_memory(convertor.bounds().unwrap().1.cast_unsigned());
        let packed: Vec<u8> = (0..251).cycle().take(size).collect();
        let mut expected = vec![0xee; span];
        let plain = Method::FORCED[0];
        assert_eq!(convertor.unpack_in(plain, &packed, &mut expected, 0), Ok(size));
        for (method, fragment) in [(Method::BEST, 1 << 16), (Method::COLD, 50_001)] {
            assert!(!method.may_stream(fragment as u64));
            let mut got = vec![0xee; span];
            for (i, part) in packed.chunks(fragment).enumerate() {
                assert!(i > 0 || method.may_stream_part(part.len() as u64, size as u64));
                convertor.seek((i * fragment) as u64).unwrap();
                assert_eq!(convertor.unpack_in(method, part, &mut got, 0), Ok(part.len()));
            }
            assert!(got == expected, "{layout:?} {fragment}");
        }
    }
}

#[test]
fn transfers_between_any_two_layouts() {
    let memory = memory();
    let samples = samples();
    for (from, from_count) in &samples {
        for (to, to_count) in &samples {
            let mut src = Convertor::new(from, *from_count).unwrap();
            let mut dst = Convertor::new(to, *to_count).unwrap();
            let size = in_memory(src.packed_size().min(dst.packed_size()));
            let mut packed = vec![0; size];
            src.pack(&memory, ORIGIN, &mut packed).unwrap();
            let mut expected = vec![0; 4096];
            dst.unpack(&packed, &mut expected, ORIGIN).unwrap();
            for step in [7, 100, 10_000] {
                src.seek(0).unwrap();
                dst.seek(0).unwrap();
                let mut got = vec![0; 4096];
                let mut moved = 0;
                while let 1.. =
                    transfer(&mut src, &memory, ORIGIN, &mut dst, &mut got, ORIGIN, step)
                        .inspect(|n| moved += n)
                        .unwrap()
                {}
                assert_eq!((moved, src.position()), (size as u64, size as u64));
                assert_eq!(dst.position(), size as u64);
                assert_eq!(got, expected, "{from:?} to {to:?}");
            }
        }
    }
}

/// Long enough for several pieces in the cache, and for one that is cut off.
#[test]
fn long_transfers_between_layouts_of_short_runs() {
    let edge = 300;
    let matrix =
        |inner: &Datatype| Datatype::vector(edge, 1, 2 * edge.cast_signed(), inner).unwrap();
    let column = Datatype::resized(0, 24, &matrix(&Primitive::Double.into())).unwrap();
    let across = Datatype::contiguous(edge, &column).unwrap().commit().unwrap();
    let row = Datatype::vector(edge, 1, 2, &Primitive::Double.into()).unwrap();
    let row = Datatype::resized(0, 16 * edge.cast_signed(), &row).unwrap();
    let along = Datatype::contiguous(edge, &row).unwrap().commit().unwrap();
    let reach = in_memory(16 * edge * edge + 24 * edge);
    let memory: Vec<u8> = (0..reach).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect();
    for (from, to) in [(&along, &across), (&across, &along)] {
        let mut src = Convertor::new(from, 1).unwrap();
        let mut dst = Convertor::new(to, 1).unwrap();
        let mut packed = vec![0; in_memory(src.packed_size())];
        src.pack(&memory, 0, &mut packed).unwrap();
        let mut expected = vec![255; reach];
        dst.unpack(&packed, &mut expected, 0).unwrap();
        for step in [u64::MAX, 300_001] {
            src.seek(0).unwrap();
            dst.seek(0).unwrap();
            let mut got = vec![255; reach];
            while let 1.. = transfer(&mut src, &memory, 0, &mut dst, &mut got, 0, step).unwrap() {}
            assert!(got == expected, "{from:?} to {to:?}");
        }
    }
}

/// 100 runs of 600 bytes and more, listed twice and a third time with another end.
#[test]
fn long_lists_of_long_runs_are_compared_and_of_short_ones_not() {
    let listed = |last: i64, len: u64| {
        let lens: Vec<u64> = (0..100).map(|at| len + at % 3).collect();
        let mut disps: Vec<i64> = (0..100).map(|at| at * 700 + at % 7).collect();
        disps[99] += last;
        Datatype::indexed(&lens, &disps, &byte()).unwrap().commit().unwrap()
    };
    let cursor = |layout: &Layout| Convertor::new(layout, 1).unwrap();
    let alike = |one: &Layout, other: &Layout| {
        cursor(one).mirrors(&cursor(other), cursor(one).packed_size())
    };
    let (one, same, other) = (listed(0, 600), listed(0, 600), listed(1, 600));
    assert!(alike(&one, &same));
    assert!(!alike(&one, &other));
    assert!(!alike(&listed(0, 60), &listed(0, 60)));
    let memory: Vec<u8> = (0..80_000u32).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect();
    for to in [&same, &other] {
        let mut packed = vec![0; in_memory(cursor(&one).packed_size())];
        cursor(&one).pack(&memory, 0, &mut packed).unwrap();
        let (mut expected, mut got) = (vec![255; 80_000], vec![255; 80_000]);
        cursor(to).unpack(&packed, &mut expected, 0).unwrap();
        let (mut src, mut dst) = (cursor(&one), cursor(to));
        transfer(&mut src, &memory, 0, &mut dst, &mut got, 0, u64::MAX).unwrap();
        assert!(got == expected);
    }
}

#[test]
fn refuses_slices_that_are_too_small() {
    let layout = Datatype::vector(5, 3, 7, &byte()).unwrap().commit().unwrap();
    let mut convertor = Convertor::new(&layout, 2).unwrap();
    assert_eq!(convertor.bounds(), Some((0, 62)));
    let mut packed = [0; 30];
    assert_eq!(convertor.pack(&[0; 62], 0, &mut packed), Ok(30));
    convertor.seek(0).unwrap();
    for (len, origin) in [(61, 0), (62, 1), (0, 0), (62, usize::MAX)] {
        let refused = convertor.pack(&vec![0; len], origin, &mut packed);
        assert!(matches!(refused, Err(ConvertorError::OutOfBounds { .. })));
        let refused = convertor.unpack(&packed, &mut vec![0; len], origin);
        assert!(matches!(refused, Err(ConvertorError::OutOfBounds { .. })));
    }
    assert_eq!(convertor.position(), 0);
    assert_eq!(convertor.seek(31), Err(ConvertorError::Position { position: 31, size: 30 }));
    convertor.seek(30).unwrap();
    assert_eq!(convertor.pack(&[0; 62], 0, &mut packed), Ok(0));
}

#[test]
fn refuses_counts_that_overflow() {
    let layout = Datatype::resized(0, i64::MAX, &byte()).unwrap().commit().unwrap();
    assert!(Convertor::new(&layout, 1).is_ok());
    assert!(matches!(Convertor::new(&layout, 3), Err(ConvertorError::Overflow { .. })));
    let dense = byte().commit().unwrap();
    assert!(matches!(Convertor::new(&dense, u64::MAX), Err(ConvertorError::Overflow { .. })));
    assert!(Convertor::new(&dense, i64::MAX.cast_unsigned()).is_ok());
}

#[test]
fn absolute_addresses_from_a_null_origin() {
    let data = [1u8, 2, 3, 4];
    let address = i64::try_from(data.as_ptr().expose_provenance()).unwrap();
    let layout =
        Datatype::hindexed(&[1, 1], &[address + 3, address], &byte()).unwrap().commit().unwrap();
    let mut packed = [0; 2];
    let null = std::ptr::with_exposed_provenance(0);
    // SAFETY: both runs are bytes of `data`, whose provenance is exposed.
    let n = unsafe { Convertor::new(&layout, 1).unwrap().pack_raw(null, packed.as_mut_ptr(), 2) };
    assert_eq!((n, packed), (2, [4, 1]));
}

#[test]
fn the_deepest_program_fits_a_thread() {
    // Each level puts a byte with a gap before all of the one below, so none can be merged away.
    let mut program = Program::default();
    let run = program.push(Op::Run { len: 1 }).unwrap();
    let mut below = program.push(Op::Loop { count: 3, stride: 2, body: run }).unwrap();
    let mut levels = 2;
    while levels < MAX_PROGRAM_DEPTH {
        let size = program.facts(below).size;
        let parts = [ProgramPart { disp: 0, op: run }, ProgramPart { disp: 2, op: below }];
        let op = Op::Seq { parts: parts.into(), starts: [0, 1, 1 + size].into() };
        below = program.push(op).unwrap();
        levels += 1;
    }
    let parts = [ProgramPart { disp: 0, op: run }, ProgramPart { disp: 2, op: below }];
    let starts = [0, 1, 1 + program.facts(below).size].into();
    assert_eq!(program.push(Op::Seq { parts: parts.into(), starts }), Err(ProgramError::TooDeep));
    program.set_root(Some(ProgramPart { disp: 0, op: below })).unwrap();
    let (size, (lo, hi)) = (program.root_facts().unwrap().size, program.bounds().unwrap());
    let bounds = LayoutBounds { lb: lo, ub: hi, true_lb: lo, true_ub: hi };
    let bytes = Datatype::contiguous(size, &byte()).unwrap();
    let layout = Layout::from_parts(program, bounds, bytes.signature().clone());
    let layout = Layout::unflatten(&layout.flatten()).unwrap();
    let memory = memory();
    let expected: Vec<u8> = (0..in_memory(size)).map(|i| memory[ORIGIN + 2 * i]).collect();
    let mut packed = vec![0; in_memory(size)];
    Convertor::new(&layout, 1).unwrap().pack(&memory, ORIGIN, &mut packed).unwrap();
    assert_eq!(packed, expected);
    let mut one = [0];
    let mut convertor = Convertor::new(&layout, 1).unwrap();
    convertor.seek(size - 1).unwrap();
    convertor.pack(&memory, ORIGIN, &mut one).unwrap();
    assert_eq!(Some(&one[0]), expected.last());
}
