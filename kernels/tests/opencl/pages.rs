//! Pages at listed indices: on either side or both, strided or not, good indices and bad.

use crate::bench::Bench;
use crate::cases::{MARGIN, Random, grid_truth, place};
use crate::machine::same;
use gapless_kernels::launch::{Budget, Grid, GridDim, PageList, PageSide, pages};
use gapless_kernels::{Family, Kernel, Width};
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// A side, its list, and where each byte of its stream lies; `None` of what is not to be touched.
struct Side {
    side: PageSide,
    list: Vec<u8>,
    truth: Vec<Option<usize>>,
    memory: u64,
}

fn index(n: u64) -> usize {
    usize::try_from(n).unwrap()
}

/// `count` pages of rows, or of one block, among more in memory; some indices bad, if there is a bound.
fn listed(width: Width, bounded: bool, random: &mut Random) -> Side {
    let word = u64::from(width.bytes());
    let len = [random.between(1, 9), random.between(10, 300), 4096 / word][index(random.below(3))];
    let dims = index(random.below(3));
    let mut page = Grid { displacement: 0, len: len * word, dims: SmallVec::new() };
    let mut extent = len * word;
    for _ in 0..dims {
        let stride = extent + random.below(3) * word;
        let count = random.between(2, 4);
        page.dims.insert(0, GridDim { count, stride: stride.cast_signed() });
        extent = stride * count;
    }
    page.displacement = (random.below(4) * word).cast_signed();
    let stride = extent + random.between(5, 7) * word;
    let (all, count) = (random.between(20, 60), random.between(1, 19));
    let mut indices: Vec<u64> = (0..all).collect();
    random.shuffle(&mut indices);
    indices.truncate(index(count));
    let last = if bounded { all - 1 } else { u64::MAX };
    for page in indices.iter_mut().filter(|_| bounded) {
        if random.below(5) == 0 {
            *page = [all, u64::from(u32::MAX), 1 << 31][index(random.below(3))];
        }
    }
    let index_bytes = if random.below(2) == 0 { 4 } else { 8 };
    let mut list = vec![0u8; 8];
    for &page in &indices {
        list.extend_from_slice(&page.to_ne_bytes()[..index(u64::from(index_bytes))]);
    }
    let one = grid_truth(&page);
    let truth = indices.iter().flat_map(|&at| {
        one.iter().map(move |&byte| {
            (at <= last).then(|| index(MARGIN + at * stride) + index(byte.unsigned_abs()))
        })
    });
    let truth: Vec<_> = truth.collect();
    let side = PageList { page, stride, count, list: 8, index_bytes, last };
    Side { side: PageSide::Listed(side), list, truth, memory: all * stride }
}

fn plain(width: Width, random: &mut Random) -> Side {
    let word = u64::from(width.bytes());
    let displacement = (random.below(9) * word).cast_signed();
    let (side, truth, memory) = if random.below(2) == 0 {
        let truth = (0..1 << 18).map(|byte| byte + displacement).collect();
        (PageSide::Contiguous(displacement), truth, (1 << 18) + 16 * word)
    } else {
        let len = random.between(1, 300) * word;
        let stride = len + word;
        let dims = [GridDim { count: 1 << 12, stride: stride.cast_signed() }].into_iter().collect();
        let grid = Grid { displacement, len, dims };
        (PageSide::Grid(grid.clone()), grid_truth(&grid), (stride << 12) + 16 * word)
    };
    let truth = truth.iter().map(|at: &i64| Some(index(MARGIN) + index(at.unsigned_abs())));
    Side { side, list: vec![0; 8], truth: truth.collect(), memory }
}

pub(crate) fn pages_move_to_where_their_indices_say(bench: &mut Bench) {
    let (mut ran, mut skipped) = (BTreeSet::new(), 0);
    for width in Width::ALL {
        for round in 0..gapless_testkit::rounds(48) {
            let mut random = Random::new(1 << 52 | round << 8 | width as u64);
            let bounded = round % 4 == 0;
            let from = if round % 3 == 0 {
                plain(width, &mut random)
            } else {
                listed(width, bounded, &mut random)
            };
            let to = if round % 3 == 1 {
                plain(width, &mut random)
            } else {
                listed(width, bounded, &mut random)
            };
            let size = from.truth.len().min(to.truth.len()) as u64;
            let (a, b) = (random.below(size), random.below(size));
            let range = if round % 2 == 0 { 0..size } else { a.min(b)..a.max(b) + 1 };
            let budget =
                if round % 5 == 4 { Budget::new(1 + round.is_multiple_of(2) as u32) } else { None };
            let at = place(MARGIN.cast_signed());
            let launches = pages(&range, (&from.side, at), (&to.side, at), budget).unwrap();
            let mut noise = |len: u64| -> Vec<u8> {
                (0..len).map(|_| u8::try_from(random.below(256)).unwrap()).collect()
            };
            let source = noise(from.memory + 2 * MARGIN);
            let mut target = noise(to.memory + 2 * MARGIN);
            let pointers = [
                bench.upload(&source),
                bench.upload(&target),
                bench.upload(&from.list),
                bench.upload(&to.list),
                bench.upload(&[0xff; 8]),
            ];
            ran.extend(bench.run(&launches, &pointers).iter().map(Kernel::to_string));
            for byte in index(range.start)..index(range.end) {
                match (from.truth[byte], to.truth[byte]) {
                    (Some(here), Some(there)) => target[there] = source[here],
                    _ => skipped += 1,
                }
            }
            let say = format!("{width:?}, round {round}, {range:?}, by {launches:?}");
            let [got_source, got_target, _, _, report] = pointers.map(|region| bench.take(region));
            same(&got_source, &source, &format!("source, {say}"));
            same(&got_target, &target, &format!("destination, {say}"));
            // Of a part, only its own indices count.
            let first = |side: &Side| match &side.side {
                PageSide::Listed(list) => {
                    let size = grid_truth(&list.page).len() as u64;
                    let bad = (range.start / size..range.end.div_ceil(size))
                        .find(|page| side.truth[index(page * size)].is_none());
                    bad.map_or(u32::MAX, |page| u32::try_from(page).unwrap())
                }
                _ => u32::MAX,
            };
            let told = report.chunks(4).map(|four| u32::from_ne_bytes(four.try_into().unwrap()));
            assert_eq!(told.collect::<Vec<_>>(), [first(&from), first(&to)], "{say}");
        }
    }
    assert!(skipped > 10_000, "{skipped} bytes of bad pages");
    for kernel in Kernel::all().filter(|kernel| kernel.family == Family::Pages) {
        assert!(ran.contains(&kernel.to_string()), "{kernel} did not run");
    }
}
