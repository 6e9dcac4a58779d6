//! Random shapes that a given family takes at a given width. No two bytes of one lie at one place, so that
//! unpacking has one outcome.

use super::cases::{Case, Random, blocks_case, planned_case, runs_case, spread, strided_case};
use gapless_kernels::launch::{Blocks, Grid, GridDim, Planned, Runs, TransferSide};
use gapless_kernels::plan::Encoder;
use gapless_kernels::{Family, Width};
use smallvec::SmallVec;

/// A displacement that no wider word divides.
fn odd(width: Width, random: &mut Random) -> i64 {
    let word = i64::from(width.bytes());
    (2 * random.below(10).cast_signed() - 9) * word
}

pub(crate) fn case(family: Family, width: Width, random: &mut Random) -> Case {
    let word = u64::from(width.bytes());
    match family {
        Family::Copy => {
            let displacement = odd(width, random);
            let len = random.between(1500, 6000) * word;
            let truth = spread(std::iter::once((displacement, len)));
            Case { side: TransferSide::Contiguous(displacement), truth, plan: vec![0; 8] }
        }
        Family::Strided1 => {
            grid(random.between(1, 5) * word, &[random.between(300, 900)], width, random)
        }
        Family::Strided => {
            let dims = random.between(2, 6);
            let counts: Vec<u64> = (0..dims).map(|_| random.between(2, 12 - dims)).collect();
            grid(random.between(2, 4) * word, &counts, width, random)
        }
        Family::Rows => {
            // Nine tenths of a tile of the smallest blocks, or of three.
            let tile = u64::from(64 * width.items());
            let len = (tile * (1 + 2 * random.below(2)) - random.below(tile / 11)) * word;
            let counts = [random.between(2, 3), random.between(2, 4)];
            grid(len, &counts[..usize::try_from(random.between(1, 2)).unwrap()], width, random)
        }
        Family::Transposed => transposed(width, random),
        Family::Affine | Family::AffineShort => triangle(family, width, random),
        Family::Listed => list(width, random),
        Family::Mapped => plan(width, random),
        Family::SameStrided1 => case(Family::Strided1, width, random),
        Family::SameStrided => case(Family::Strided, width, random),
        Family::SameRows => case(Family::Rows, width, random),
        Family::SameAffine => case(Family::Affine, width, random),
        Family::SameAffineShort => case(Family::AffineShort, width, random),
        Family::SameListed => case(Family::Listed, width, random),
        Family::SameMapped => case(Family::Mapped, width, random),
        Family::Transfer | Family::Pages | Family::Fused => unreachable!("have tests of their own"),
    }
}

/// A grid whose dimensions are nested in memory in another order than in the stream, some backwards.
fn grid(len: u64, counts: &[u64], width: Width, random: &mut Random) -> Case {
    let word = u64::from(width.bytes());
    let mut order: Vec<usize> = (0..counts.len()).collect();
    random.shuffle(&mut order);
    let mut strides = vec![0i64; counts.len()];
    let mut extent = len;
    for at in order {
        let stride = extent + random.between(1, 3) * word;
        extent = stride * counts[at];
        let sign = if random.below(3) == 0 { -1 } else { 1 };
        strides[at] = stride.cast_signed() * sign;
    }
    let dims = counts.iter().zip(&strides).map(|(&count, &stride)| GridDim { count, stride });
    let grid = Grid { displacement: odd(width, random), len, dims: dims.collect() };
    strided_case(grid)
}

fn transposed(width: Width, random: &mut Random) -> Case {
    let word = u64::from(width.bytes());
    let (dense, fast) = (random.between(8, 70), random.between(8, 70));
    let near = if 2 * word <= 32 && random.below(2) == 0 { 2 * word } else { word };
    let sign = if random.below(3) == 0 { -1 } else { 1 };
    let far = (near * dense).next_multiple_of(word) + random.below(3) * word;
    let mut dims: SmallVec<[GridDim; 6]> = SmallVec::new();
    let mut extent = far * fast;
    // Other dimensions outside, and one between the two.
    let outer = GridDim { count: random.between(1, 3), stride: extent.cast_signed() };
    extent *= outer.count;
    let between = GridDim { count: random.between(1, 2), stride: -extent.cast_signed() };
    dims.push(outer);
    dims.push(GridDim { count: dense, stride: near.cast_signed() * sign });
    dims.push(between);
    dims.push(GridDim { count: fast, stride: far.cast_signed() });
    strided_case(Grid { displacement: odd(width, random), len: word, dims })
}

fn triangle(family: Family, width: Width, random: &mut Random) -> Case {
    let word = u64::from(width.bytes());
    let (count, grow) = match family {
        Family::Affine => (random.between(10, 60), random.between(15, 30)),
        _ => (random.between(2, 60), random.between(1, 2)),
    };
    let tip = match family {
        Family::Affine => random.between(0, 100),
        _ => random.between(0, 3),
    };
    let long = tip + grow * (count - 1);
    let narrows = random.below(2) == 0;
    let step = (long + random.between(0, 3)) * word;
    let forward = random.below(3) != 0;
    let grow = (grow * word).cast_signed();
    let instances = random.between(1, 4);
    runs_case(Runs {
        count,
        displacement: odd(width, random),
        step: if forward { step.cast_signed() } else { -step.cast_signed() },
        len: if narrows { long } else { tip } * word,
        grow: if narrows { -grow } else { grow },
        instances,
        extent: (step * count + word).cast_signed(),
    })
}

fn list(width: Width, random: &mut Random) -> Case {
    let word = u64::from(width.bytes());
    let (count, len) = (random.between(1, 400), random.between(1, 9));
    let cell = len + random.between(0, 2);
    let mut list: Vec<i64> = (0..count).map(|i| (i * cell).cast_signed() - 500).collect();
    random.shuffle(&mut list);
    let entry_bytes = if random.below(2) == 0 { 4 } else { 8 };
    // Some entries count words, some bytes.
    let (list, scale): (Vec<i64>, i64) = if random.below(2) == 0 {
        (list, word.cast_signed())
    } else {
        (list.iter().map(|entry| entry * word.cast_signed()).collect(), 1)
    };
    // The list does not begin where the plan does.
    let mut plan = vec![0u8; 16];
    for &entry in &list {
        if entry_bytes == 8 {
            plan.extend_from_slice(&entry.to_ne_bytes());
        } else {
            plan.extend_from_slice(&i32::try_from(entry).unwrap().to_ne_bytes());
        }
    }
    let bits = list.iter().fold(0, |bits, entry| bits | (entry * scale).cast_unsigned());
    let blocks = Blocks {
        displacement: odd(width, random),
        len: len * word,
        count,
        list: 16,
        entry_bytes,
        scale,
        bits,
        instances: random.between(1, 4),
        extent: ((count * cell + 1) * word).cast_signed(),
    };
    blocks_case(blocks, &list, plan)
}

fn plan(width: Width, random: &mut Random) -> Case {
    let word = u64::from(width.bytes());
    let longest = [2, 5, 100][usize::try_from(random.below(3)).unwrap()];
    let mut at = 0;
    let mut blocks: Vec<(i64, u64)> = (0..random.between(1, 300))
        .map(|_| {
            let len = random.between(1, longest);
            let begin = at;
            at += len + random.between(0, 2);
            ((begin * word).cast_signed(), len * word)
        })
        .collect();
    random.shuffle(&mut blocks);
    let mut encoder = Encoder::new(width);
    for &(begin, len) in &blocks {
        encoder.push(begin, len).unwrap();
    }
    // Wide shifts where they are not needed work as well.
    let shift_bytes = if random.below(2) == 0 { encoder.shift_bytes() } else { 8 };
    let mut plan = Vec::new();
    encoder.write_shifts(0, shift_bytes, &mut plan).unwrap();
    plan.resize(plan.len().next_multiple_of(8), 0);
    let units = plan.len() as u64;
    for unit in encoder.units() {
        plan.extend_from_slice(&unit.block.to_ne_bytes());
        plan.extend_from_slice(&unit.begins.to_ne_bytes());
    }
    let displacement = odd(width, random);
    let planned = Planned {
        displacement,
        size: encoder.size(),
        width,
        units,
        shifts: 0,
        shift_bytes,
        instances: random.between(1, 4),
        extent: ((at + 1) * word).cast_signed(),
    };
    let one = spread(blocks.iter().map(|&(begin, len)| (begin + displacement, len)));
    planned_case(planned, &one, plan)
}
