//! The rows: what is to be fast, in the order in which the goals name it.

use crate::row::Row;
use gapless_kernels::Width;
use gapless_kernels::launch::{Grid, GridDim, Runs};

/// What few blocks reach.
const FEW: &[u32] = &[0, 8, 64];
/// What it takes to saturate the bus to the host.
const FEWEST: &[u32] = &[0, 2, 4];

fn dim(count: u64, stride: u64) -> GridDim {
    GridDim { count, stride: stride.cast_signed() }
}

fn grid(displacement: u64, len: u64, dims: &[GridDim]) -> Grid {
    let dims = dims.iter().copied().filter(|dim| dim.count > 1).collect();
    Grid { displacement: displacement.cast_signed(), len, dims }
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for mib in [1u64, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048] {
        let budgets = if mib == 256 { FEW } else { &[0] };
        rows.push(Row::contiguous(format!("contiguous {mib} MiB"), mib << 20).budgets(budgets));
    }
    for n in [512u64, 1024, 2048, 4096, 8192, 16384] {
        rows.extend(sub_matrix(n));
    }
    for n in [1024u64, 2048, 4096, 5001, 8192, 16384] {
        rows.extend(triangle(n));
    }
    for (r, c) in [512u64, 1024, 2048, 4096, 8192, 16384].map(|n| (n, n)).into_iter().chain([
        (1000, 9000),
        (20_000, 500),
        (64, 1 << 20),
    ]) {
        let name = if r == c { format!("X {r}") } else { format!("X {r} × {c}") };
        let row = Row::grid(name, grid(0, 8, &[dim(r, 8), dim(c, r * 8)]));
        let blocks =
            || (0..r * c).map(|i| ((i / c * 8 + i % c * r * 8).cast_signed(), 8)).collect();
        rows.push(if r == 1024 { row.checked(&Vec::from_iter::<Vec<_>>(blocks())) } else { row });
    }
    for (len, stride) in [
        (4u64, 8u64),
        (8, 16),
        (12, 24),
        (16, 32),
        (24, 48),
        (32, 64),
        (64, 128),
        (4, 12),
        (8, 24),
        (12, 20),
        (16, 48),
        (24, 40),
        (32, 48),
        (64, 72),
        (4, 7),
        (8, 17),
        (24, 41),
    ] {
        let count = (256 << 20) / len;
        rows.push(Row::grid(
            format!("blocks {len} at {stride}"),
            grid(0, len, &[dim(count, stride)]),
        ));
    }
    let blocks = (0..4 << 20).map(|i| (i * 48, 24)).collect();
    rows.push(Row::general("blocks 24 at 48 general".to_owned(), blocks, Width::W8));
    rows.extend(faces());
    rows.extend(small());
    rows.extend(lists());
    let host = |row: Row| row.pinned().budgets(FEWEST);
    rows.push(host(Row::contiguous("contiguous 64 MiB".to_owned(), 64 << 20)));
    rows.extend(sub_matrix(4096).into_iter().take(1).map(host));
    rows.extend(triangle(4096).into_iter().take(1).map(host));
    rows
}

/// N columns of N doubles, N doubles apart.
fn sub_matrix(n: u64) -> [Row; 2] {
    let column = n * 8;
    let blocks: Vec<_> = (0..n).map(|j| ((j * 2 * column).cast_signed(), column)).collect();
    let mut row = Row::grid(format!("V {n}"), grid(0, column, &[dim(n, 2 * column)]));
    if n == 1024 {
        row = row.checked(&blocks);
    }
    if n == 4096 {
        row = row.budgets(FEW);
    }
    [row, Row::general(format!("V {n} general"), perturbed(blocks), Width::W8)]
}

/// The lower triangle of N by N doubles.
fn triangle(n: u64) -> [Row; 2] {
    let step = (n + 1) * 8;
    let runs = Runs {
        count: n,
        displacement: 0,
        step: step.cast_signed(),
        len: n * 8,
        grow: -8,
        instances: 1,
        extent: 0,
    };
    let blocks: Vec<_> = (0..n).map(|j| ((j * step).cast_signed(), (n - j) * 8)).collect();
    let mut row = Row::runs(format!("T {n}"), runs, n * n * 8, n * (n + 1) / 2 * 8);
    if n == 4096 || n == 1024 {
        row = row.checked(&blocks);
    }
    if n == 8192 {
        row = row.budgets(FEW);
    }
    [row, Row::general(format!("T {n} general"), perturbed(blocks), Width::W8)]
}

/// One block a word shorter, so that no closed form describes them.
fn perturbed(mut blocks: Vec<(i64, u64)>) -> Vec<(i64, u64)> {
    let middle = blocks.len() / 2;
    blocks[middle].1 -= 8;
    blocks
}

/// What applications send: some hundred KiB, bounded by latency.
fn small() -> Vec<Row> {
    let mut rows = Vec::new();
    for n in [16u64, 64, 128, 256] {
        let (line, plane) = ((n + 2) * 8, (n + 2) * (n + 2) * 8);
        let x = grid(plane + line + 8, 8, &[dim(n, plane), dim(n, line)]);
        rows.push(Row::grid(format!("small face x of {n}³"), x));
    }
    for count in [1000i64, 5000, 15_000, 40_000] {
        // Of one to five floats, some apart.
        let blocks = |word: i64| {
            let len = move |i: i64| (i * 7 % 5 + 1) * word;
            (0..count).map(|i| (i * 11 * word, len(i).cast_unsigned())).collect::<Vec<_>>()
        };
        rows.push(Row::general(format!("small {count} of floats"), blocks(4), Width::W4));
        rows.push(Row::general(format!("small {count} of doubles"), blocks(8), Width::W8));
        let list: Vec<i32> = (0..count).map(|i| i32::try_from(i * 3).expect("small")).collect();
        rows.push(Row::list(format!("small list of {count} floats"), &list, 4, 4));
    }
    rows
}

/// Of 512³ doubles: faces, and what all 26 neighbours of a box with ghosts get.
fn faces() -> Vec<Row> {
    let n = 512u64;
    let (line, plane) = (n * 8, n * n * 8);
    let mut rows = Vec::new();
    for h in [1u64, 3] {
        let x = grid(4 * 8, 8 * h, &[dim(n, plane), dim(n, line)]);
        rows.push(Row::grid(format!("face x of 512³, depth {h}"), x));
        rows.push(Row::grid(
            format!("face y of 512³, depth {h}"),
            grid(4 * line, line * h, &[dim(n, plane)]),
        ));
        rows.push(Row::grid(format!("face z of 512³, depth {h}"), grid(4 * plane, plane * h, &[])));
    }
    for h in [1u64, 3] {
        let side = n + 2 * h;
        let (line, plane) = (side * 8, side * side * 8);
        let along = |to: i32| match to {
            -1 => (h, h),
            0 => (h, n),
            _ => (n, h),
        };
        let mut parts = Vec::new();
        for z in -1..=1 {
            for y in -1..=1 {
                for x in -1..=1 {
                    if (x, y, z) != (0, 0, 0) {
                        let ((x, w), (y, d), (z, t)) = (along(x), along(y), along(z));
                        let at = x * 8 + y * line + z * plane;
                        parts.push(grid(at, w * 8, &[dim(t, plane), dim(d, line)]));
                    }
                }
            }
        }
        let span = side * plane;
        rows.push(Row::fused(format!("halo of 512³, depth {h}"), span, parts));
    }
    rows
}

fn shuffle(list: &mut [i32]) {
    let mut state = 1u64;
    for at in (1..list.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let other = usize::try_from((state >> 20) % (at as u64 + 1)).expect("small");
        list.swap(at, other);
    }
}

fn lists() -> Vec<Row> {
    let mut rows = Vec::new();
    for shuffled in [false, true] {
        let order = if shuffled { "shuffled" } else { "ascending" };
        for millions in [1, 4] {
            let count = millions << 20;
            let mut list: Vec<i32> = (0..count).collect();
            if shuffled {
                shuffle(&mut list);
            }
            let apart = |by: i32| list.iter().map(|at| at * by).collect::<Vec<_>>();
            let row = Row::list(format!("list {millions} M × 24 {order}"), &apart(5), 8, 24);
            let blocks = || apart(5).into_iter().map(|at| i64::from(at) * 8);
            let plain: Vec<_> = blocks().map(|at| (at, 24)).collect();
            rows.push(if shuffled { row } else { row.checked(&plain) });
            let lengths = blocks().zip([8, 16, 24].into_iter().cycle()).collect();
            let name = format!("list {millions} M × 8 to 24 {order}");
            rows.push(Row::general(name, lengths, Width::W8));
            if millions == 1 {
                rows.push(Row::list(format!("list 1 M floats {order}"), &apart(3), 4, 4));
            }
        }
    }
    rows
}
