//! Random reductions of host memory against the oracle: any operation and type, one to nine sources, layouts that
//! differ, ranges, pieces, and targets that are one of the sources.
//!
//! `GAPLESS_SEED` repeats a run.

use gapless_dtype::naive::Typemap;
use gapless_dtype::testkit::Rng;
use gapless_dtype::{Datatype, Primitive};
use gapless_engine::testkit::oracle;
use gapless_engine::{HostEngine, Op, ReduceOp, Reducer, Typed};
use gapless_mem::Region;
use gapless_testkit::{fresh, seed};

const CASES: u64 = 6000;

/// A pair as a Rust program describes its struct, whose fields have types of the same size that C calls otherwise.
fn structure(pair: Primitive) -> Datatype {
    let (types, places): (Vec<_>, Vec<_>) = pair.parts().unzip();
    let types: Vec<Datatype> = types
        .into_iter()
        .map(|part| match part {
            Primitive::Short => Primitive::Int16.into(),
            Primitive::Int => Primitive::Int32.into(),
            Primitive::Long => Primitive::Int64.into(),
            other => other.into(),
        })
        .collect();
    let places: Vec<i64> = places.into_iter().map(u64::cast_signed).collect();
    let fields = Datatype::structure(&[1, 1], &places, &types).unwrap();
    Datatype::resized(0, pair.extent_bytes().cast_signed(), &fields).unwrap()
}

/// A type of so many elements of one primitive, lying in memory in some way of its own; no byte occurs twice.
fn layout(rng: &mut Rng, primitive: Primitive, elements: u64) -> Datatype {
    let one = match primitive.is_pair() && rng.chance(50) {
        true => structure(primitive),
        false => Datatype::from(primitive),
    };
    let (extent, gap) = (one.extent(), rng.between(0, 3));
    let far = i64::try_from(elements).unwrap();
    match rng.below(6) {
        0 => Datatype::contiguous(elements, &one).unwrap(),
        1 => Datatype::vector(elements, 1, 2, &one).unwrap(),
        2 => Datatype::vector(elements, 1, -1 - gap, &one).unwrap(),
        3 => Datatype::hvector(elements, 1, extent + 3 * gap, &one).unwrap(),
        4 => {
            // In any order, some apart.
            let mut places: Vec<i64> = (0..far).map(|place| place * extent).collect();
            rng.shuffle(&mut places);
            Datatype::hindexed_block(1, &places, &one).unwrap()
        }
        _ => {
            let head = rng.below(elements + 1);
            let (halves, places) = ([head, elements - head], [8, 16 + far * extent]);
            Datatype::structure(&halves, &places, &[one.clone(), one]).unwrap()
        }
    }
}

/// A buffer of the test's: memory, where displacement 0 is, and what says where elements lie.
struct Buffer {
    memory: Vec<u8>,
    origin: usize,
    datatype: Datatype,
    /// Nothing but bytes to the reducer.
    is_raw: bool,
}

impl Buffer {
    fn new(rng: &mut Rng, primitive: Primitive, elements: u64, is_raw: bool) -> Buffer {
        let datatype = match is_raw {
            true => {
                Datatype::contiguous(elements * primitive.size_bytes(), &Primitive::Byte.into())
                    .unwrap()
            }
            false => layout(rng, primitive, elements),
        };
        let (low, high) = (datatype.true_lb().min(0), datatype.true_ub().max(0));
        let origin = usize::try_from(-low).unwrap() + if is_raw { 0 } else { rng.index(20) };
        let slack = if is_raw { 0 } else { rng.index(20) };
        let memory = vec![0xEE; origin + usize::try_from(high).unwrap() + slack];
        Buffer { memory, origin, datatype, is_raw }
    }

    fn typed(&mut self) -> Typed {
        let region = Region::of_mut(&mut self.memory);
        match self.is_raw {
            true => Typed::contiguous(region),
            false => {
                Typed::new(region, self.origin as u64, &self.datatype.commit().unwrap(), 1).unwrap()
            }
        }
    }

    fn packed(&self) -> Vec<u8> {
        Typemap::of(&self.datatype).unwrap().pack(1, &self.memory, self.origin).unwrap()
    }

    fn unpack(&mut self, packed: &[u8]) {
        let typemap = Typemap::of(&self.datatype).unwrap();
        typemap.unpack(1, packed, &mut self.memory, self.origin).unwrap();
    }
}

/// Bytes with small numbers among them, so that values tie and logical operands are false.
fn fill(rng: &mut Rng, primitive: Primitive, elements: u64) -> Vec<u8> {
    let size = usize::try_from(primitive.size_bytes()).unwrap();
    let mut bytes = vec![0; size * usize::try_from(elements).unwrap()];
    for element in bytes.chunks_mut(size) {
        match rng.below(3) {
            0 => rng.fill(element),
            1 => element[0] = u8::try_from(rng.below(3)).unwrap(),
            _ => {}
        }
        if primitive == Primitive::Bool {
            element[0] &= 1;
        }
    }
    bytes
}

#[test]
fn random_reductions_are_those_of_the_oracle() {
    let seed = seed(fresh());
    println!("GAPLESS_SEED={seed}");
    let mut rng = Rng::new(seed);
    let pairs: Vec<(ReduceOp, Primitive)> = ReduceOp::ALL
        .into_iter()
        .flat_map(|op| Primitive::ALL.map(|primitive| (op, primitive)))
        .filter(|(op, primitive)| oracle::knows(*op, *primitive))
        .collect();
    let (mut aliased, mut pieces, mut mixed, mut many) = (0, 0, 0, 0);
    for case in 0..CASES {
        let (op, primitive) = *rng.pick(&pairs);
        let sources = if rng.chance(70) { 1 + rng.index(4) } else { 1 + rng.index(9) };
        let long = if rng.chance(10) { 3000 } else { 60 };
        let elements = 1 + rng.below(long);
        let size = primitive.size_bytes();
        let (a, b) = (rng.below(elements + 1), rng.below(elements + 1));
        let (first, last) = (a.min(b), a.max(b));
        let range = first * size..last * size;
        let what = format!(
            "seed {seed}, case {case}: {op:?} of {sources} x {elements} {primitive}, {range:?}"
        );

        // The target comes last and says what the elements are.
        let is_alone = |rng: &mut Rng| first < last && rng.chance(20);
        let mut spans = Vec::new();
        let mut buffers: Vec<Buffer> = (0..=sources)
            .map(|number| {
                let is_piece = is_alone(&mut rng);
                spans.push(if is_piece { (0, last - first) } else { (first, last) });
                let length = if is_piece { last - first } else { elements };
                let is_raw = number < sources && rng.chance(20);
                mixed += u64::from(is_raw);
                pieces += u64::from(is_piece);
                Buffer::new(&mut rng, primitive, length, is_raw)
            })
            .collect();
        for buffer in &mut buffers {
            let packed = fill(&mut rng, primitive, buffer.datatype.size() / size);
            buffer.unpack(&packed);
        }
        let cut = |packed: &[u8], (from, to): (u64, u64)| {
            let at = |element: u64| usize::try_from(element * size).unwrap();
            packed[at(from)..at(to)].to_vec()
        };
        let into = if rng.chance(40) { rng.index(sources) } else { sources };
        let known = into == sources || buffers[..sources].iter().any(|buffer| !buffer.is_raw);
        let operands: Vec<Vec<u8>> = buffers[..sources]
            .iter()
            .zip(&spans)
            .map(|(buffer, span)| cut(&buffer.packed(), *span))
            .collect();
        let wanted = oracle::folded(op, primitive, &operands).unwrap();
        let before: Vec<(Vec<u8>, Vec<u8>)> =
            buffers.iter().map(|buffer| (buffer.memory.clone(), buffer.packed())).collect();

        let typed: Vec<Typed> = buffers.iter_mut().map(Buffer::typed).collect();
        let op_of = Op::from(op);
        // SAFETY: buffers of this test, which live through the call; the target is apart or one of them.
        #[allow(unsafe_code, reason = "reducers take descriptions of memory")]
        let done = unsafe {
            HostEngine.reduce_into(&op_of, &typed[..sources], &typed[into], range.clone(), &[])
        };
        if !known {
            continue;
        }
        done.unwrap_or_else(|error| panic!("{what}: {error}"));
        aliased += u64::from(into < sources);
        many += u64::from(sources > 4);
        for (number, (buffer, (memory, packed))) in buffers.iter().zip(&before).enumerate() {
            if number != into {
                assert!(buffer.memory == *memory, "{what}: buffer {number} has changed");
                continue;
            }
            let span = spans[number];
            let result = cut(&buffer.packed(), span);
            assert!(
                oracle::agree(primitive, &result, &wanted),
                "{what}: {result:?}, not {wanted:?}"
            );
            // Put back what was there: then nothing else may differ.
            let mut restored = Buffer {
                memory: buffer.memory.clone(),
                origin: buffer.origin,
                datatype: buffer.datatype.clone(),
                is_raw: buffer.is_raw,
            };
            let mut all = restored.packed();
            let at = |element: u64| usize::try_from(element * size).unwrap();
            let bytes = at(span.0)..at(span.1);
            all[bytes.clone()].copy_from_slice(&packed[bytes]);
            restored.unpack(&all);
            assert!(restored.memory == *memory, "{what}: bytes outside the range have changed");
        }
    }
    for (seen, what) in
        [(aliased, "in place"), (pieces, "pieces"), (mixed, "bytes"), (many, "many")]
    {
        assert!(seen > 200, "only {seen} cases of: {what}");
    }
}
