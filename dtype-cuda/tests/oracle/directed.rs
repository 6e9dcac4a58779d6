//! Types that a given family of kernels takes in words of a given width: large enough for several
//! tiles, every number a multiple of the width and one of them of no wider word.

use gapless_dtype::testkit::Rng;
use gapless_dtype::{Datatype, Primitive};
use gapless_kernels::{Family, Width};

/// Runs of one word.
fn word(width: Width) -> Datatype {
    Datatype::contiguous(u64::from(width.bytes()), &Primitive::Byte.into()).unwrap()
}

/// A number of words that a wider word does not divide, in bytes.
fn odd(width: Width, rng: &mut Rng) -> i64 {
    rng.between(-5, 4) * 2 * i64::from(width.bytes()) + i64::from(width.bytes())
}

/// The type, moved by an odd number of words.
fn moved(datatype: &Datatype, width: Width, rng: &mut Rng) -> Datatype {
    Datatype::hindexed_block(1, &[odd(width, rng)], datatype).unwrap()
}

fn sign(rng: &mut Rng) -> i64 {
    if rng.chance(30) { -1 } else { 1 }
}

/// One, two or three times `datatype`, one beside the other with an odd gap.
fn again(datatype: Datatype, width: Width, rng: &mut Rng) -> (Datatype, u64) {
    let (count, bytes) = (1 + rng.below(3), i64::from(width.bytes()));
    // An odd number of words, whatever the extent of one.
    let extent = (datatype.true_extent() / (2 * bytes) + 1) * 2 * bytes + bytes;
    let lb = datatype.true_lb();
    (Datatype::resized(lb, extent * sign(rng), &datatype).unwrap(), count)
}

/// A type for a family of kernels at a width, and how many instances; `None` for families that no
/// single type leads to.
pub(crate) fn directed(family: Family, width: Width, rng: &mut Rng) -> Option<(Datatype, u64)> {
    let word = word(width);
    let bytes = i64::from(width.bytes());
    Some(match family {
        Family::Copy => {
            let span = Datatype::contiguous(4_500 + rng.below(3_000), &word).unwrap();
            (moved(&span, width, rng), 1)
        }
        Family::Strided1 => {
            let len = rng.between(1, 5);
            let stride = (len + rng.between(1, 3)) * bytes * sign(rng);
            let count = 4_500 / len.unsigned_abs() + rng.below(600);
            let vector = Datatype::hvector(count, len.unsigned_abs(), stride, &word).unwrap();
            (moved(&vector, width, rng), 1)
        }
        Family::Strided => {
            // Some two thousand blocks, whatever the dimensions.
            let dims = rng.index(4);
            let least = [45_u64, 13, 7, 5][dims];
            let counts: Vec<u64> = (0..dims + 2).map(|_| least + rng.below(3)).collect();
            let grid = grid(rng.between(2, 4), &counts, &word, rng);
            (moved(&grid, width, rng), 1)
        }
        Family::Rows => {
            // Nine tenths of a tile of the smallest blocks, or of three.
            let tile = i64::from(64 * width.items());
            let len = tile * (1 + 2 * rng.between(0, 1)) - rng.between(0, tile / 11);
            let one = [8 + rng.below(4)];
            let two = [3 + rng.below(2), 3 + rng.below(2)];
            let counts = if rng.chance(50) { &one[..] } else { &two[..] };
            let grid = grid(len, counts, &word, rng);
            (moved(&grid, width, rng), 1)
        }
        Family::Transposed => {
            let (rows, columns) = (40 + rng.below(60), 40 + rng.below(60));
            // The stream goes down the columns of a matrix that lies row by row.
            let row = (columns.cast_signed() + 2 * rng.between(0, 3) + 1) * bytes;
            let column = Datatype::hvector(rows, 1, row, &word).unwrap();
            let matrix = Datatype::hvector(columns, 1, bytes * sign(rng), &column).unwrap();
            let planes = Datatype::hvector(1 + rng.below(2), 1, row * 101, &matrix).unwrap();
            (moved(&planes, width, rng), 1)
        }
        Family::Affine => {
            let runs = triangle(
                10 + rng.below(50),
                rng.between(0, 100),
                15 + rng.between(0, 15),
                &word,
                rng,
            );
            again(runs, width, rng)
        }
        Family::AffineShort => {
            // Less than 64 words a run on average.
            let (grow, tip) = (rng.between(1, 2), rng.between(0, 3));
            let count = (100 + rng.below(16)) / grow.unsigned_abs();
            again(triangle(count, tip, grow, &word, rng), width, rng)
        }
        Family::Listed => {
            let len = rng.between(1, 9);
            let blocks = 4_500 / len.unsigned_abs() + rng.below(300);
            // Blocks that touched would be one, and longer.
            let mut places = cells(blocks, rng, |_| len + 1, bytes);
            rng.shuffle(&mut places);
            let list = Datatype::hindexed_block(len.unsigned_abs(), &places, &word).unwrap();
            again(list, width, rng)
        }
        Family::Mapped => {
            // Of shorter blocks on average, those of one word would be listed.
            let longest = *rng.pick(&[4_i64, 9, 100]);
            let lens: Vec<i64> = (0..9_000 / (longest + 1) + rng.between(0, 99))
                .map(|_| rng.between(1, longest))
                .collect();
            let places = cells(lens.len() as u64, rng, |at| lens[at], bytes);
            let mut blocks: Vec<(i64, u64)> =
                places.into_iter().zip(lens.iter().map(|len| len.unsigned_abs())).collect();
            rng.shuffle(&mut blocks);
            let (places, lens): (Vec<i64>, Vec<u64>) = blocks.into_iter().unzip();
            again(Datatype::hindexed(&lens, &places, &word).unwrap(), width, rng)
        }
        _ => return None,
    })
}

/// A grid whose dimensions are nested in memory in another order than in the stream, some backwards.
fn grid(len: i64, counts: &[u64], word: &Datatype, rng: &mut Rng) -> Datatype {
    let bytes = word.size().cast_signed();
    let mut order: Vec<usize> = (0..counts.len()).collect();
    rng.shuffle(&mut order);
    let mut strides = vec![0; counts.len()];
    let mut extent = len * bytes;
    for at in order {
        let stride = extent + rng.between(1, 3) * bytes;
        extent = stride * counts[at].cast_signed();
        strides[at] = stride * sign(rng);
    }
    let block = Datatype::contiguous(len.unsigned_abs(), word).unwrap();
    counts
        .iter()
        .zip(strides)
        .rev()
        .fold(block, |inner, (&count, stride)| Datatype::hvector(count, 1, stride, &inner).unwrap())
}

/// Runs from `tip` words on, each `grow` longer than the one before, or the other way round.
fn triangle(count: u64, tip: i64, grow: i64, word: &Datatype, rng: &mut Rng) -> Datatype {
    let long = tip + grow * count.cast_signed();
    let step = (long + rng.between(1, 3)) * word.size().cast_signed() * sign(rng);
    let narrows = rng.chance(50);
    let (mut lens, mut places) = (Vec::new(), Vec::new());
    for at in 0..count.cast_signed() {
        lens.push((if narrows { long - at * grow } else { tip + at * grow }).unsigned_abs());
        places.push(at * step);
    }
    Datatype::hindexed(&lens, &places, word).unwrap()
}

/// Where blocks of these lengths in words lie that do not overlap, some with gaps, in bytes.
fn cells(count: u64, rng: &mut Rng, len: impl Fn(usize) -> i64, bytes: i64) -> Vec<i64> {
    let mut at = -500;
    let mut places = Vec::new();
    for block in 0..usize::try_from(count).unwrap() {
        places.push(at * bytes);
        at += len(block) + rng.between(0, 2);
    }
    places
}
