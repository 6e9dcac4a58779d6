//! How fast reductions in host memory are, beside a plain loop over slices of `f64` that moves as many bytes: the
//! last column is plain time / reduction's time, so 1 is as fast, 2 twice as fast.
//!
//! `cargo run --release -p gapless-engine --example reduce` measures sums; with `-- all`, every operation on every type
//! as well.

use gapless_dtype::{Datatype, Layout, Primitive};
use gapless_engine::{EngineError, HostEngine, Op, ReduceOp, Reducer, Typed, UserOp};
use gapless_mem::{Region, Space};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Samples of each side, taken in turns; the best counts.
const SAMPLES: usize = 60;

/// What a sample lasts at least.
const SAMPLE: Duration = Duration::from_micros(500);

/// Four sources and a target.
struct Buffers(Vec<Vec<f64>>);

impl Buffers {
    /// Elements of the value 1, as far as the type has one.
    fn new(primitive: Primitive, bytes: usize) -> Buffers {
        let one: Vec<u8> = match primitive {
            Primitive::Double => 1f64.to_ne_bytes().to_vec(),
            Primitive::Float => 1f32.to_ne_bytes().to_vec(),
            Primitive::Float16 => 0x3c00u16.to_ne_bytes().to_vec(),
            Primitive::BFloat16 => 0x3f80u16.to_ne_bytes().to_vec(),
            other => vec![1; usize::try_from(other.size_bytes()).expect("a few bytes")],
        };
        let word: Vec<u8> = one.iter().copied().cycle().take(8).collect();
        let word = f64::from_ne_bytes(word.try_into().expect("eight bytes"));
        Buffers(vec![vec![word; bytes / 8]; 5])
    }

    fn typed(&mut self, buffer: usize, layout: &Layout, count: u64) -> Result<Typed, EngineError> {
        let memory = &mut self.0[buffer];
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        let region = Region::new(Space::Host, address, 0, 8 * memory.len() as u64);
        Typed::new(region, 0, layout, count)
    }

    fn plain(&mut self, sources: usize) {
        let (target, from) = self.0.split_last_mut().expect("five buffers");
        match sources {
            2 => plain2(&from[0], &from[1], target),
            _ => plain4([&from[0], &from[1], &from[2], &from[3]], target),
        }
    }
}

#[inline(never)]
fn plain2(a: &[f64], b: &[f64], to: &mut [f64]) {
    for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
        *to = a + b;
    }
}

#[inline(never)]
fn plain4([a, b, c, d]: [&[f64]; 4], to: &mut [f64]) {
    for ((((to, a), b), c), d) in to.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        *to = a + b + c + d;
    }
}

/// Seconds that a call takes, as the mean of as many as fill a sample.
fn sample(calls: u32, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..calls).for_each(|_| call());
    start.elapsed().as_secs_f64() / f64::from(calls)
}

/// How many calls fill a sample.
fn calls(mut call: impl FnMut()) -> u32 {
    let mut calls = 1;
    loop {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        if start.elapsed() >= SAMPLE || calls >= 1 << 20 {
            return calls;
        }
        calls *= 2;
    }
}

/// What is measured.
struct Case<'a> {
    name: String,
    op: Op,
    primitive: Primitive,
    layout: &'a Layout,
    /// Packed bytes of a buffer, and those that its layout spreads over.
    bytes: usize,
    spread: usize,
    sources: usize,
    /// Into the second source.
    in_place: bool,
}

fn measure(case: &Case<'_>) -> Result<(), EngineError> {
    let Case { op, primitive, layout, bytes, sources, .. } = case;
    let count = *bytes as u64 / layout.size();
    let mut plain = Buffers::new(Primitive::Double, *bytes);
    let mut buffers = Buffers::new(*primitive, case.spread);
    let typed: Result<Vec<Typed>, _> =
        (0..5).map(|buffer| buffers.typed(buffer, layout, count)).collect();
    let typed = typed?;
    let target = &typed[if case.in_place { 1 } else { 4 }];
    let range = 0..target.packed_bytes();
    let mut reduce = || {
        // SAFETY: the buffers live as long as this function, and do not overlap; nothing else touches them.
        let done =
            unsafe { HostEngine.reduce_into(op, &typed[..*sources], target, range.clone(), &[]) };
        black_box(done.is_ok());
    };
    let mut straight = || plain.plain(black_box(*sources));
    let (ours, theirs) = (calls(&mut reduce), calls(&mut straight));
    let (mut best, mut mark) = (f64::MAX, f64::MAX);
    for _ in 0..SAMPLES {
        best = best.min(sample(ours, &mut reduce));
        mark = mark.min(sample(theirs, &mut straight));
    }
    let rate = (sources + 1) as f64 * *bytes as f64 / best / 1e9;
    let name = &case.name;
    println!("{name:<44} {sources} x {bytes:>8} B {rate:>8.1} GB/s {:>8.2}", mark / best);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let doubles = Datatype::from(Primitive::Double).commit()?;
    println!("{:<44} sources, memory moved, plain f64 loop's time / time", "");
    let plain = |op: ReduceOp, primitive: Primitive, sources, bytes| {
        let layout = Datatype::from(primitive).commit()?;
        let name = format!("{} {primitive}", op.name());
        let spread: usize =
            bytes * usize::try_from(layout.extent())? / usize::try_from(layout.size())?;
        let case = Case {
            name,
            op: op.into(),
            primitive,
            layout: &layout,
            bytes: bytes / 8 * 8,
            spread: spread.next_multiple_of(8),
            sources,
            in_place: false,
        };
        Ok::<(), Box<dyn std::error::Error>>(measure(&case)?)
    };
    for bytes in [64, 1 << 10, 4 << 10, 64 << 10, 8 << 20] {
        for primitive in [
            Primitive::Double,
            Primitive::Float,
            Primitive::Int,
            Primitive::Float16,
            Primitive::BFloat16,
        ] {
            for sources in [2, 4] {
                plain(ReduceOp::Sum, primitive, sources, bytes)?;
            }
        }
    }
    let every_other = Datatype::vector(512, 1, 2, &Primitive::Double.into())?.commit()?;
    let rows = Datatype::vector(64, 8, 16, &Primitive::Double.into())?.commit()?;
    let users = UserOp::packed("a user's sum", true, &doubles, |vectors| {
        for (left, right) in vectors.invec.chunks_exact(8).zip(vectors.inoutvec.chunks_exact_mut(8))
        {
            let sum = f64::from_ne_bytes(left.try_into().expect("eight bytes"))
                + f64::from_ne_bytes((&*right).try_into().expect("eight bytes"));
            right.copy_from_slice(&sum.to_ne_bytes());
        }
    });
    for bytes in [64 << 10, 8 << 20] {
        let case = |name: &str, op: Op, layout, spread, in_place| {
            let (name, primitive) = (name.to_owned(), Primitive::Double);
            measure(&Case { name, op, primitive, layout, bytes, spread, sources: 2, in_place })
        };
        let sum = || Op::from(ReduceOp::Sum);
        case("MPI_SUM MPI_DOUBLE in place", sum(), &doubles, bytes, true)?;
        case("MPI_SUM MPI_DOUBLE, every other", sum(), &every_other, 2 * bytes, false)?;
        case("MPI_SUM MPI_DOUBLE, 8 of 16", sum(), &rows, 2 * bytes, false)?;
        case("a user's sum of MPI_DOUBLE", users.clone().into(), &doubles, bytes, false)?;
    }
    if std::env::args().nth(1).as_deref() == Some("all") {
        for (op, primitive) in
            ReduceOp::ALL.iter().flat_map(|op| Primitive::ALL.map(|primitive| (*op, primitive)))
        {
            if op.is_commutative() && op.is_defined_for(primitive) {
                plain(op, primitive, 2, 60 << 10)?;
            }
        }
    }
    Ok(())
}
