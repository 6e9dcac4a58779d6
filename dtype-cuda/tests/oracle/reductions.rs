//! Reductions of device memory against the engine's oracle: any operation and type, up to twenty sources, layouts that
//! differ, ranges, pieces, alignments, and targets that are one of the sources. All bytes of all buffers are compared.

use crate::bench::{Verdict, noise};
use crate::gpu::Gpu;
use crate::memory::{Buffer, index, wait, wide};
use crate::seed::{cases, fail, rng};
use gapless_dtype::naive::Typemap;
use gapless_dtype::testkit::Rng;
use gapless_dtype::{Datatype, Primitive};
use gapless_engine::testkit::oracle;
use gapless_engine::{Engine, EngineError, Op, Operand, ReduceOp, Reducer, Typed, UserOp};
use gapless_mem::{Device, fake::FakeDevice};
use std::ops::Range;

/// How elements lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lies {
    /// One behind the other.
    Packed,
    /// In blocks of so many elements, with as many elements between.
    Blocks(u64),
    /// Backwards, with gaps.
    Backwards,
    /// In any order.
    Scattered,
    /// As bytes, which stand for anything.
    Raw,
}

/// `elements` elements of a type.
fn datatype(rng: &mut Rng, lies: Lies, primitive: Primitive, elements: u64) -> Datatype {
    let one = Datatype::from(primitive);
    let extent = one.extent();
    let far = i64::try_from(elements).unwrap();
    match lies {
        Lies::Packed => Datatype::contiguous(elements, &one).unwrap(),
        Lies::Raw => {
            Datatype::contiguous(elements * primitive.size_bytes(), &Primitive::Byte.into())
                .unwrap()
        }
        Lies::Blocks(block) => {
            let (blocks, rest) = (elements / block, elements % block);
            let stride = i64::try_from(2 * block).unwrap();
            let blocks_of = Datatype::vector(blocks, block, stride, &one).unwrap();
            if rest == 0 {
                return blocks_of;
            }
            let after = i64::try_from(blocks).unwrap() * stride * extent;
            let tail = Datatype::contiguous(rest, &one).unwrap();
            Datatype::structure(&[1, 1], &[0, after], &[blocks_of, tail]).unwrap()
        }
        Lies::Backwards => Datatype::vector(elements, 1, -3, &one).unwrap(),
        Lies::Scattered => {
            let mut places: Vec<i64> = (0..far).map(|place| place * extent).collect();
            rng.shuffle(&mut places);
            Datatype::hindexed_block(1, &places, &one).unwrap()
        }
    }
}

/// Bytes with small numbers and zeros of both signs among them, so that values tie and logical operands are false.
fn fill(rng: &mut Rng, primitive: Primitive, elements: u64) -> Vec<u8> {
    let size = index(primitive.size_bytes());
    let mut bytes = vec![0; size * index(elements)];
    for element in bytes.chunks_mut(size) {
        match rng.below(4) {
            0 | 1 => rng.fill(element),
            2 => element[0] = u8::try_from(rng.below(3)).unwrap(),
            _ => element[size - 1] = if rng.chance(50) { 0x80 } else { 0 },
        }
        if primitive == Primitive::Bool {
            element[0] &= 1;
        }
    }
    bytes
}

/// A side: its memory on the device and what it held, and where elements lie.
struct Side<'a> {
    buffer: Buffer<'a>,
    held: Vec<u8>,
    origin: u64,
    datatype: Datatype,
    is_raw: bool,
    /// The elements of its stream that take part.
    window: Range<u64>,
}

impl Side<'_> {
    fn typed(&self) -> Typed {
        match self.is_raw {
            true => {
                let bytes = self.datatype.size();
                Typed::contiguous(self.buffer.part(self.origin, bytes))
            }
            false => {
                let layout = self.datatype.commit().unwrap();
                Typed::new(self.buffer.region(), self.origin, &layout, 1).unwrap()
            }
        }
    }

    /// Its stream, out of what it held, or holds.
    fn stream(&self, memory: &[u8]) -> Vec<u8> {
        Typemap::of(&self.datatype).unwrap().pack(1, memory, index(self.origin)).unwrap()
    }
}

/// What a case reduces.
struct Case {
    op: ReduceOp,
    primitive: Primitive,
    elements: u64,
    /// Elements of the range.
    range: Range<u64>,
    /// The target, then the sources: how they lie, bytes past a multiple of 16, whether the range's piece alone.
    sides: Vec<(Lies, u64, bool)>,
    /// Which source the target is, too.
    alias: Option<usize>,
}

/// Reduces, and compares every byte of every buffer.
fn check(gpu: &Gpu, case: &Case, rng: &mut Rng) -> Verdict {
    let size = case.primitive.size_bytes();
    let Range { start: first, end: last } = case.range;
    let mut sides: Vec<Side<'_>> = Vec::new();
    for (number, &(lies, past, piece)) in case.sides.iter().enumerate() {
        let piece = piece && first < last;
        let elements = if piece { last - first } else { case.elements };
        let window = if piece { 0..elements } else { case.range.clone() };
        // The target says what the elements are.
        let is_raw = lies == Lies::Raw && number > 0;
        let lies = if lies == Lies::Raw && !is_raw { Lies::Packed } else { lies };
        let datatype = datatype(rng, lies, case.primitive, elements);
        let (low, high) = (datatype.true_lb().min(0), datatype.true_ub().max(0));
        let origin = (64 + low.unsigned_abs()).next_multiple_of(16) + past;
        let mut held = noise(rng, origin + high.unsigned_abs() + 64);
        let stream = fill(rng, case.primitive, elements);
        let typemap = Typemap::of(&datatype).unwrap();
        typemap.unpack(1, &stream, &mut held, index(origin)).unwrap();
        let buffer = Buffer::holding(&*gpu.memory, &held);
        sides.push(Side { buffer, held, origin, datatype, is_raw, window });
    }
    let target = sides[0].typed();
    let mut sources: Vec<Typed> = sides[1..].iter().map(Side::typed).collect();
    if let Some(alias) = case.alias {
        sources[alias] = target.clone();
    }
    let pieces = |number: usize| {
        let side = match case.alias {
            Some(alias) if alias + 1 == number => &sides[0],
            _ => &sides[number],
        };
        let window = index(side.window.start * size)..index(side.window.end * size);
        side.stream(&side.held)[window].to_vec()
    };
    let streams: Vec<Vec<u8>> = (1..sides.len()).map(pieces).collect();
    let want = oracle::folded(case.op, case.primitive, &streams).unwrap();
    let op = Op::from(case.op);
    let range = first * size..last * size;
    // SAFETY: all buffers live until the wait below has ended, and nothing else touches them; a source that overlaps
    // the target is the target.
    let done = unsafe { gpu.engine.reduce_into(&op, &sources, &target, range, &[]) };
    wait(&done.map_err(|error| error.to_string())?);
    for (number, side) in sides.iter().enumerate() {
        let got = side.buffer.bytes();
        let mut wanted = side.held.clone();
        if number == 0 {
            // NaNs are as good as others; all other bytes are those that the oracle says, or that were there.
            let window = index(side.window.start * size)..index(side.window.end * size);
            let stream = side.stream(&got);
            if !oracle::agree(case.primitive, &stream[window.clone()], &want) {
                let at = stream[window.clone()].chunks(index(size)).zip(want.chunks(index(size)));
                let wrong = at
                    .enumerate()
                    .find(|(_, (got, want))| !oracle::agree(case.primitive, got, want));
                let operands: Vec<&[u8]> = streams
                    .iter()
                    .map(|stream| {
                        let at = wrong.map_or(0, |(at, _)| at) * index(size);
                        &stream[at..at + index(size)]
                    })
                    .collect();
                return Err(format!("element, got, want: {wrong:02x?} of {operands:02x?}"));
            }
            let mut all = side.stream(&side.held);
            all[window.clone()].copy_from_slice(&stream[window]);
            let typemap = Typemap::of(&side.datatype).unwrap();
            typemap.unpack(1, &all, &mut wanted, index(side.origin)).unwrap();
        }
        crate::bench::same(&format!("side {number}"), &got, &wanted, side.origin)?;
    }
    Ok(())
}

/// What the device has; on OpenCL, where a kernel is compiled at its first use, so many of all.
fn pairs(gpu: &Gpu, some: u64, rng: &mut Rng) -> Vec<(ReduceOp, Primitive)> {
    let all = ReduceOp::ALL.into_iter().flat_map(|op| Primitive::ALL.map(|p| (op, p)));
    let known = all.filter(|(op, p)| op.is_defined_for(*p) && oracle::knows(*op, *p));
    let supported = |op: ReduceOp, p: Primitive| {
        let layout = Datatype::from(p).commit().unwrap();
        gpu.engine.supports(&Op::from(op), &layout)
    };
    let mut all: Vec<_> = known.filter(|&(op, p)| supported(op, p)).collect();
    assert!(all.len() > 100, "{}", all.len());
    rng.shuffle(&mut all);
    if gpu.engine.name() == "opencl" {
        all.truncate(index(cases(some)));
    }
    all
}

fn run(gpu: &Gpu, test: &str, case: &Case, rng: &mut Rng) {
    check(gpu, case, rng).unwrap_or_else(|what| {
        let Case { op, primitive, elements, range, sides, alias } = case;
        let what = format!(
            "{op:?} of {elements} {primitive}, {range:?}, {sides:?}, in place {alias:?}: {what}"
        );
        fail(test, &what)
    });
}

/// Each operation on each type, cut at odd elements.
pub(crate) fn every_operation_is_the_oracles(gpu: &Gpu) {
    const TEST: &str = "every operation";
    let mut rng = rng(TEST);
    for (turn, (op, primitive)) in pairs(gpu, 12, &mut rng).into_iter().enumerate() {
        let forms = [Lies::Packed, Lies::Blocks(16), Lies::Blocks(3)];
        let sources = 2 + rng.index(3);
        let elements = 400;
        let lies = forms[turn % 3];
        let sides = vec![(lies, 0, false); sources + 1];
        let alias = rng.chance(30).then(|| rng.index(sources));
        let cut = rng.below(5)..elements - rng.below(5);
        run(gpu, TEST, &Case { op, primitive, elements, range: cut, sides, alias }, &mut rng);
    }
}

/// Anything.
pub(crate) fn random_reductions_are_the_oracles(gpu: &Gpu) {
    const TEST: &str = "random reductions";
    let mut rng = rng(TEST);
    let all = pairs(gpu, 2, &mut rng);
    for _ in 0..cases(150) {
        let (op, primitive) = *rng.pick(&all);
        let sources = if rng.chance(80) { 1 + rng.index(4) } else { 1 + rng.index(20) };
        let longest = if rng.chance(10) { 4_000 } else { 200 };
        let elements = 1 + rng.below(longest);
        let (a, b) = (rng.below(elements + 1), rng.below(elements + 1));
        let range = if rng.chance(30) { 0..elements } else { a.min(b)..a.max(b) };
        // Mostly alike, as collectives have them.
        let (usual, aligned) = (any(&mut rng), rng.chance(60));
        let sides: Vec<(Lies, u64, bool)> = (0..=sources)
            .map(|_| {
                let lies = if rng.chance(60) { usual } else { any(&mut rng) };
                let past = if aligned { 0 } else { rng.below(16) };
                (lies, past, rng.chance(20))
            })
            .collect();
        let alias = rng.chance(25).then(|| rng.index(sources));
        run(gpu, TEST, &Case { op, primitive, elements, range, sides, alias }, &mut rng);
    }
}

fn any(rng: &mut Rng) -> Lies {
    match rng.below(8) {
        0..=2 => Lies::Packed,
        3 => Lies::Blocks(16),
        4 => Lies::Blocks(1 + rng.below(8)),
        5 => Lies::Backwards,
        6 => Lies::Scattered,
        _ => Lies::Raw,
    }
}

/// Ranges longer than a chunk: with lists, misplaced elements, and more sources than a kernel takes.
pub(crate) fn long_ranges_go_in_chunks(gpu: &Gpu) {
    const TEST: &str = "long reductions";
    let mut rng = rng(TEST);
    let elements = 540_000;
    for (lies, past, sources) in [(Lies::Packed, 2, 2), (Lies::Blocks(3), 0, 9)] {
        let (op, primitive) = (ReduceOp::Sum, Primitive::Double);
        let mut sides = vec![(Lies::Packed, 0, false); sources + 1];
        sides[1] = (lies, past, false);
        let range = 5..elements - 3;
        run(gpu, TEST, &Case { op, primitive, elements, range, sides, alias: None }, &mut rng);
    }
}

/// What does not fit is refused by a typed error, and nothing is touched.
pub(crate) fn what_does_not_fit_is_refused(gpu: &Gpu) {
    const TEST: &str = "refused reductions";
    let mut rng = rng(TEST);
    let bytes = noise(&mut rng, 256);
    let (one, other) =
        (Buffer::holding(&*gpu.memory, &bytes), Buffer::holding(&*gpu.memory, &bytes));
    let of = |buffer: &Buffer<'_>, primitive: Primitive, count: u64| {
        let layout = Datatype::from(primitive).commit().unwrap();
        Typed::new(buffer.region(), 0, &layout, count).unwrap()
    };
    let (floats, ints) = (of(&one, Primitive::Float, 16), of(&other, Primitive::Int, 16));
    let target = of(&other, Primitive::Float, 16);
    let refused = |op: ReduceOp, srcs: &[Typed], dst: &Typed, range: Range<u64>| {
        // SAFETY: refused; everything lives all the same.
        unsafe { gpu.engine.reduce_into(&Op::from(op), srcs, dst, range, &[]) }.unwrap_err()
    };
    let two = [floats.clone(), floats.clone()];
    assert_eq!(refused(ReduceOp::Sum, &[], &target, 0..64), EngineError::NoSource);
    let mixed = refused(ReduceOp::Sum, &[floats.clone(), ints], &target, 0..64);
    assert!(
        matches!(mixed, EngineError::NotUniform { operand: Operand::Source(1), .. }),
        "{mixed}"
    );
    let undefined = refused(ReduceOp::Band, &two, &target, 0..64);
    assert!(matches!(undefined, EngineError::UndefinedOp { .. }), "{undefined}");
    let split = refused(ReduceOp::Sum, &two, &target, 2..64);
    assert!(matches!(split, EngineError::SplitElement { element_bytes: 4, .. }), "{split}");
    let outside = refused(ReduceOp::Sum, &two, &target, 4..72);
    assert!(matches!(outside, EngineError::RangeOutside { end: 72, .. }), "{outside}");
    let long = of(&one, Primitive::LongDouble, 4);
    let arithmetic = refused(ReduceOp::Sum, &[long.clone(), long.clone()], &long, 0..32);
    assert!(matches!(arithmetic, EngineError::NoArithmetic { .. }), "{arithmetic}");
    assert!(!gpu.engine.supports(&ReduceOp::Sum.into(), long.layout()));
    let fake = FakeDevice::new(3);
    let foreign = fake.allocate(64).unwrap();
    let layout = Datatype::from(Primitive::Float).commit().unwrap();
    let far = Typed::new(foreign, 0, &layout, 16).unwrap();
    assert!(!Reducer::serves(&gpu.engine, foreign.space()));
    for (srcs, dst) in [([floats.clone(), far.clone()], &target), (two.clone(), &far)] {
        let error = refused(ReduceOp::Sum, &srcs, dst, 0..64);
        let wanted = matches!(error, EngineError::WrongSpace { space, .. } if space == foreign.space())
            || matches!(error, EngineError::Device(_));
        assert!(wanted, "{error}");
    }
    // SAFETY: nothing uses it.
    unsafe { fake.free(foreign) }.unwrap();
    let user = Op::from(UserOp::packed("mine", true, &layout, |_| {}));
    assert!(!gpu.engine.supports(&user, &layout));
    // SAFETY: as above.
    let error = unsafe { gpu.engine.reduce_into(&user, &two, &target, 0..64, &[]) }.unwrap_err();
    assert!(matches!(error, EngineError::Device(_)), "{error}");
    for buffer in [&one, &other] {
        crate::bench::same("memory", &buffer.bytes(), &bytes, 0)
            .unwrap_or_else(|what| fail(TEST, &what));
    }
    assert_eq!(wide(bytes.len()), 256);
}
