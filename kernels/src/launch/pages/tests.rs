//! What the kernel computes, done here: every word of the range goes once, to where its page is.

use super::*;
use crate::divide;
use smallvec::smallvec;

/// Where word `word` of a side lies, by the indices of the user's list, and whether that is touched.
fn page_at(side: &args::PagesSide, index: &dyn Fn(u64) -> u64, word: u32, w: i64) -> (i64, bool) {
    let shape = &side.shape;
    let mut row = divide(word, shape.by_len);
    let mut at = i64::from(word - row * shape.len) * w;
    for dim in shape.dim[1..shape.dims as usize].iter().rev() {
        let rest = divide(row, dim.by);
        at += i64::from(row - rest * dim.count) * dim.stride;
        row = rest;
    }
    let step = match side.bytes {
        0 => u64::from(row),
        bytes => index(side.list / u64::from(bytes) + u64::from(row)),
    };
    let place = step.wrapping_mul(shape.dim[0].stride.cast_unsigned()).cast_signed();
    (at.wrapping_add(place), side.bytes == 0 || step <= side.last)
}

/// Where byte `byte` of a side's stream lies.
fn truth(side: &PageSide, index: &dyn Fn(u64) -> u64, byte: u64) -> i64 {
    let grid_at = |grid: &Grid, byte: u64| {
        let mut row = byte / grid.len;
        let mut at = grid.displacement + (byte % grid.len).cast_signed();
        for dim in grid.dims.iter().rev() {
            at += (row % dim.count).cast_signed() * dim.stride;
            row /= dim.count;
        }
        at
    };
    match side {
        PageSide::Contiguous(displacement) => displacement + byte.cast_signed(),
        PageSide::Grid(grid) => grid_at(grid, byte),
        PageSide::Listed(list) => {
            let size = list.page.size().unwrap();
            let page = index(byte / size).wrapping_mul(list.stride).cast_signed();
            page + grid_at(&list.page, byte % size)
        }
    }
}

struct Ends<'a> {
    from: PageSide,
    to: PageSide,
    index: &'a dyn Fn(u64) -> u64,
}

impl Ends<'_> {
    /// Checks the words at both ends of every strip that `looks` chooses, and that strips cover the range.
    fn check(&self, range: Range<u64>, budget: Option<Budget>, every: u32) -> Launches {
        let place = KernelAddress { address: 0, offset: 64 };
        let launches = pages(&range, (&self.from, place), (&self.to, place), budget).unwrap();
        let mut stream = range.start;
        for launch in &launches {
            let Args::Pages(a) = &launch.args else { panic!("{launch:?}") };
            let w = i64::from(launch.kernel.width.bytes());
            let (head, tail) = (u64::from(a.span.edges & 255), u64::from(a.span.edges >> 8 & 255));
            let strips = ((launch.args.span().tiles - u32::from(head + tail > 0)) * launch.threads)
                >> a.lanes;
            let items = Family::Pages.items(launch.kernel.width, launch.kernel.few);
            assert!(a.piece <= items << a.lanes && launch.threads >> a.lanes > 0, "{launch:?}");
            let mut next = 0;
            for strip in 0..strips {
                let row = divide(strip, a.by_pieces);
                let number = strip - row * a.pieces;
                let begin = row * a.unit + number * a.piece;
                let end = if number + 1 == a.pieces { (row + 1) * a.unit } else { begin + a.piece };
                let begin = begin.saturating_sub(a.into);
                let end = end.saturating_sub(a.into).min(a.span.words);
                if begin >= end {
                    continue;
                }
                assert_eq!(begin, next, "{launch:?}");
                next = end;
                if strip % every != 0 && end < a.span.words {
                    continue;
                }
                for word in [begin, end - 1] {
                    let byte = stream + head + u64::from(word) * w.cast_unsigned();
                    let sides =
                        [(&a.from, a.span.typed, &self.from), (&a.to, a.span.packed, &self.to)];
                    for (side, at, whole) in sides {
                        // Of the strip's first word, all others are counted from it.
                        let (first, moved) = page_at(side, self.index, side.first + begin, w);
                        assert!(moved);
                        let there = at + first + i64::from(word - begin) * w;
                        assert_eq!(
                            there,
                            64 + truth(whole, self.index, byte),
                            "{byte}: {launch:?}"
                        );
                    }
                }
            }
            assert_eq!(next, a.span.words, "{launch:?}");
            stream += head + u64::from(a.span.words) * w.cast_unsigned() + tail;
        }
        assert_eq!(stream, range.end);
        launches
    }
}

fn listed(page: Grid, stride: u64, count: u64, index_bytes: u32) -> PageSide {
    PageSide::Listed(PageList { page, stride, count, list: 0, index_bytes, last: u64::MAX })
}

fn block(len: u64) -> Grid {
    Grid { displacement: 0, len, dims: smallvec![] }
}

fn rows(displacement: i64, len: u64, dims: &[(u64, i64)]) -> Grid {
    let dims = dims.iter().map(|&(count, stride)| GridDim { count, stride }).collect();
    Grid { displacement, len, dims }
}

#[test]
fn every_word_goes_where_its_page_is() {
    let index = |position: u64| position * 7 % 1009;
    let sides = [
        listed(block(4096), 4096, 300, 4),
        listed(block(65536), 70000 * 16, 40, 8),
        listed(rows(32, 256, &[(16, 1024)]), 16384, 200, 4),
        listed(rows(0, 48, &[(3, 4096), (5, 96)]), 16384, 200, 8),
        listed(block(37), 41, 3000, 4),
        PageSide::Contiguous(16),
        PageSide::Grid(rows(8, 24, &[(2000, 40)])),
    ];
    for (from, to) in sides.iter().flat_map(|from| sides.iter().map(move |to| (from, to))) {
        let size = from.size().unwrap().min(to.size().unwrap()).min(48_000);
        let ends = Ends { from: from.clone(), to: to.clone(), index: &index };
        for range in [0..size, 0..16, 5..size - 3, size / 3..size / 2 + 1, 4096..4097] {
            for budget in [None, Budget::new(1), Budget::new(5)] {
                ends.check(range.clone(), budget, 1);
            }
        }
    }
}

#[test]
fn long_pages_are_found_once_a_strip_of_whole_lines() {
    let index = |position: u64| position;
    for (len, pieces, lanes) in
        [(65536, 32, 5), (4096, 2, 5), (128, 1, 3), (16, 1, 0), (1040, 1, 5)]
    {
        let (from, to) = (listed(block(len), len, 64, 4), PageSide::Contiguous(0));
        let launches = Ends { from, to, index: &index }.check(0..64 * len, None, 1);
        let [Launch { kernel, args: Args::Pages(args), .. }] = &launches[..] else { panic!() };
        assert_eq!((kernel.width, args.pieces, args.lanes), (Width::W16, pieces, lanes), "{len}");
    }
}

#[test]
fn what_is_too_long_for_a_launch_is_cut() {
    // Indices that have no sign, and pages farther apart than 32 bits say.
    let index = |position: u64| (1 << 31) + position * 3;
    let far = listed(block(1 << 20), 1 << 20, 1 << 16, 4);
    let ends = Ends { from: far, to: PageSide::Contiguous(0), index: &index };
    let launches = ends.check((5 << 30) + 16..(30 << 30) + 7, None, 50_000);
    assert!(launches.len() >= 4, "{}", launches.len());
    // One page, and two, that are longer than a launch; a page of rows, likewise.
    for page in [block(3 << 31), rows(0, 1 << 31, &[(3, 1 << 33)]), rows(0, 3, &[(1 << 33, 5)])] {
        let size = page.size().unwrap();
        let ends =
            Ends { from: listed(page, 1 << 40, 2, 8), to: PageSide::Contiguous(0), index: &index };
        ends.check(size - 1000..size + 1000, None, 1);
        ends.check(size / 2 - 7..size / 2 + (1 << 21), None, 1000);
    }
}

#[test]
fn positions_count_from_the_users_list() {
    let last = |count: u64, last| {
        let list = PageList {
            page: block(64),
            stride: 64,
            count,
            list: 8u64.wrapping_sub(40),
            index_bytes: 4,
            last,
        };
        let place = KernelAddress { address: 0, offset: 0 };
        let side = PageSide::Listed(list);
        pages(&(640..1280), (&side, place), (&PageSide::Contiguous(0), place), None).map(
            |launches| match &launches[0].args {
                Args::Pages(args) => (args.from.before, args.from.list, args.from.last),
                other => panic!("{other:?}"),
            },
        )
    };
    assert_eq!(last(20, 9), Ok((10, 8, 9)));
    assert_eq!(last(19, 9), Err(Unfit::Range { end: 1280, size: 19 * 64 }));
}

#[test]
fn misfits_are_refused() {
    let place = KernelAddress { address: 0, offset: 0 };
    let try_it = |side: &PageSide, range: Range<u64>| {
        pages(&range, (side, place), (&PageSide::Contiguous(0), place), None)
    };
    let six = listed(
        rows(0, 8, &[(2, 1000), (2, 500), (2, 250), (2, 100), (2, 50), (2, 20)]),
        2000,
        4,
        4,
    );
    assert!(matches!(try_it(&six, 0..2048), Err(Unfit::Dims { dims: 7, .. })));
    assert!(try_it(&six, 0..0).unwrap().is_empty());
    let none = listed(block(0), 8, 4, 4);
    assert_eq!(try_it(&none, 0..8), Err(Unfit::Numbers));
    let many = PageSide::Listed(PageList {
        page: block(16),
        stride: 16,
        count: 1 << 40,
        list: 0,
        index_bytes: 8,
        last: 5,
    });
    let far = 1 << 37;
    assert_eq!(try_it(&many, far..far + 64), Err(Unfit::Numbers), "no position of 32 bits");
}
