//! What the messages mean, by the oracle alone: which byte goes where, and in how long runs.
//!
//! Sizes are small, so the oracle can write every byte out.

use std::collections::BTreeMap;

use gapless_dtype::naive::Typemap;
use gapless_layouts::{
    Axis, Case, IndexList, Options, Side, cases, cases_with, cube, dispatch, documented_cases,
    families, fft, lammps, nas,
    pages::{self, Cache, KeysValues},
    papers, wrf,
};

/// The index in the buffer of every byte that travels, in packed order.
fn places(side: &Side) -> Vec<u64> {
    let typemap = Typemap::of(&side.datatype).unwrap();
    let origin = i64::try_from(side.origin).unwrap();
    let list = typemap.displacements(side.count).unwrap();
    list.into_iter().map(|d| u64::try_from(d + origin).unwrap()).collect()
}

/// Where each element of `bytes` bytes comes from and goes to, as element indices.
fn moves(case: &Case, bytes: u64) -> Vec<(u64, u64)> {
    let (from, to) = (places(&case.send), places(&case.recv));
    assert_eq!(from.len(), to.len(), "{}", case.name);
    let chunks = |list: &[u64]| -> Vec<u64> {
        let step = usize::try_from(bytes).unwrap();
        list.chunks(step)
            .map(|element| {
                assert!(element[0] % bytes == 0, "{}", case.name);
                assert!(element.windows(2).all(|w| w[0] + 1 == w[1]), "{}", case.name);
                element[0] / bytes
            })
            .collect()
    };
    chunks(&from).into_iter().zip(chunks(&to)).collect()
}

/// How many runs of which length one instance has.
fn lengths(side: &Side) -> BTreeMap<u64, u64> {
    let mut histogram = BTreeMap::new();
    for run in Typemap::of(&side.datatype).unwrap().runs(1).unwrap() {
        *histogram.entry(run.len).or_default() += 1;
    }
    histogram
}

/// The documented cases that the oracle writes out in a moment.
fn small() -> Vec<Case> {
    let options = Options::default();
    let all = families().iter().flat_map(|info| documented_cases(info.family, &options).unwrap());
    all.filter(|case| case.payload_bytes <= 300 << 10).collect()
}

#[test]
fn the_oracle_counts_the_same_blocks() {
    let cases = small();
    assert!(cases.len() > 70, "{}", cases.len());
    for case in cases {
        for (side, blocks) in
            [(&case.send, case.expected_send_blocks), (&case.recv, case.expected_recv_blocks)]
        {
            let runs = Typemap::of(&side.datatype).unwrap().runs(1).unwrap();
            assert_eq!(Some(runs.len() as u64), blocks, "{}", case.name);
            let touched = places(side);
            let (lo, hi) = (touched.iter().min().unwrap(), touched.iter().max().unwrap());
            let expected = (i64::try_from(*lo).unwrap(), i64::try_from(*hi + 1).unwrap());
            assert_eq!(side.touched(), Some(expected), "{}", case.name);
            assert!(*hi < side.buffer_bytes, "{}", case.name);
        }
        assert!(Typemap::of(&case.recv.datatype).unwrap().is_disjoint(case.recv.count));
    }
}

#[test]
fn the_oracle_sees_the_same_elements_on_both_sides() {
    for case in small().into_iter().chain(cases("openmpi", Some(3)).unwrap()) {
        let elements = |side: &Side| {
            let once: Vec<_> = Typemap::of(&side.datatype).unwrap().signature().collect();
            once.repeat(usize::try_from(side.count).unwrap())
        };
        assert_eq!(elements(&case.send), elements(&case.recv), "{}", case.name);
    }
}

#[test]
fn blocks_have_the_documented_lengths() {
    let check = |name: &str, n: u64, sent: &[(u64, u64)], received: &[(u64, u64)]| {
        let case = &cases(name, Some(n)).unwrap()[0];
        let expected = |list: &[(u64, u64)]| list.iter().map(|&(b, n)| (b, n)).collect();
        assert_eq!(lengths(&case.send), expected(sent), "{}", case.name);
        assert_eq!(lengths(&case.recv), expected(received), "{}", case.name);
    };
    let same = |name: &str, n: u64, blocks: &[(u64, u64)]| check(name, n, blocks, blocks);
    // (length, number of)
    same("v", 64, &[(512, 64)]);
    check("vc", 64, &[(512, 64)], &[(32768, 1)]);
    same("t", 4, &[(8, 1), (16, 1), (24, 1), (32, 1)]);
    check("x", 16, &[(8, 256)], &[(2048, 1)]);
    same("wrf-x-vec", 8, &[(12, 5264)]);
    same("wrf-x-sa", 4, &[(12, 8554)]);
    same("wrf-y-vec", 8, &[(44, 987)]);
    same("wrf-y-sa", 2, &[(92, 987)]);
    same("milc", 1, &[(768, 16)]);
    same("milc", 2, &[(768, 32)]);
    same("milc", 3, &[(1536, 32)]);
    same("milc", 4, &[(3072, 32)]);
    same("nas-lu-x", 33, &[(1320, 1)]);
    same("nas-lu-y", 33, &[(40, 33)]);
    same("nas-mg-x", 18, &[(8, 256)]);
    same("nas-mg-y", 66, &[(1024, 64)]);
    same("nas-mg-z", 130, &[(2048, 128)]);
    check("lammps-full", 1, &[(8, 5 * 1662), (24, 1662)], &[(13296, 5), (39888, 1)]);
    check("lammps-atomic", 3, &[(8, 3 * 243), (24, 243)], &[(1944, 3), (5832, 1)]);
    same("specfem3d-oc", 1, &[(4, 493)]);
    same("specfem3d-cm", 1, &[(12, 2202)]);
    check("specfem3d-mt", 5600, &[(12, 5600)], &[(67200, 1)]);
    check("fft2d", 256, &[(2048, 128)], &[(16, 16384)]);
    same("indexed_gap", 1, &[(4, 1), (36, 1), (40, 9)]);
    same("optimized_indexed_gap", 1, &[(4, 1), (36, 1), (40, 9)]);
    same("constant_gap", 1, &[(800, 80)]);
    same("complex_hvector", 1, &[(24, 2048)]);
    let face = |axis, blocks: &[(u64, u64)]| {
        let case = cube::face(axis, 16, 3).unwrap();
        assert_eq!(lengths(&case.send), blocks.iter().copied().collect(), "{}", case.name);
    };
    face(Axis::X, &[(8 * 3, 256)]);
    face(Axis::Y, &[(8 * 16 * 3, 16)]);
    face(Axis::Z, &[(8 * 256 * 3, 1)]);
}

#[test]
fn formulas_hold_at_the_smallest_sizes_too() {
    let mut all = Vec::new();
    for n in 1..8 {
        for name in ["v", "vc", "t", "x", "nas-lu-x", "nas-lu-y", "specfem3d-mt"] {
            all.extend(cases(name, Some(n)).unwrap());
        }
        for m in 1..8 {
            all.push(papers::x_rectangle(n, m).unwrap());
            all.extend(papers::stair(n, m).ok().filter(|_| n % m == 0));
            all.extend(fft::transpose(n, m).ok().filter(|_| n % m == 0));
            if m <= n {
                all.push(cube::halo26(n, m).unwrap());
                for axis in [Axis::X, Axis::Y, Axis::Z] {
                    all.push(cube::face(axis, n + 4, m).unwrap());
                    all.push(nas::mg(axis, n + 2, m + 2, n + m + 2).unwrap());
                }
            }
        }
    }
    assert!(all.len() > 200);
    for case in all {
        let blocks = |side: &Side| Some(lengths(side).values().sum::<u64>());
        assert_eq!(blocks(&case.send), case.expected_send_blocks, "{}", case.name);
        assert_eq!(blocks(&case.recv), case.expected_recv_blocks, "{}", case.name);
        assert_eq!(places(&case.send).len() as u64, case.payload_bytes, "{}", case.name);
        assert_eq!(places(&case.recv).len() as u64, case.payload_bytes, "{}", case.name);
    }
}

#[test]
fn wrf_means_the_same_in_both_styles() {
    for (towards, patches) in
        [(wrf::Towards::X, wrf::X.as_slice()), (wrf::Towards::Y, wrf::Y.as_slice())]
    {
        for patch in patches {
            let entries = |style| {
                let case = wrf::halo(towards, style, *patch).unwrap();
                Typemap::of(&case.send.datatype).unwrap().entries().to_vec()
            };
            assert!(entries(wrf::Style::Vectors) == entries(wrf::Style::Subarrays), "{patch:?}");
        }
    }
}

#[test]
fn wrf_boxes_lie_where_the_arrays_are() {
    let patch = wrf::Patch { grid: 1, d1: 7, d3: 6, i0: 2, j0: 1, s1: 3, s3: 4 };
    let case = wrf::halo(wrf::Towards::X, wrf::Style::Vectors, patch).unwrap();
    let (mut expected, mut base) = (Vec::new(), 0);
    for (levels, scalars) in [(1, 1); 4].into_iter().chain([(65, 1); 3]).chain([(65, 2); 2]) {
        for y in 1..5 {
            for z in 0..levels {
                for x in 2..5 {
                    // Of two scalars the second is sent.
                    expected.push(base + x + 7 * (z + levels * (y + 6 * (scalars - 1))));
                }
            }
        }
        base += 7 * levels * 6 * scalars;
    }
    let sent: Vec<u64> = moves(&case, 4).into_iter().map(|(from, _)| from).collect();
    assert!(sent == expected);
    assert_eq!(case.send.buffer_bytes, 4 * base);
}

#[test]
fn nas_edges_and_faces_land_in_the_ghost_cells() {
    let (n, width) = (5, 7);
    let cells = |case: &Case| moves(case, 40);
    let x: Vec<_> = (1..=n).map(|i| (i + n * width, i)).collect();
    assert_eq!(cells(&nas::lu_x(n).unwrap()), x);
    let y: Vec<_> = (1..=n).map(|j| (n + j * width, j * width)).collect();
    assert_eq!(cells(&nas::lu_y(n).unwrap()), y);

    let (a, b, c) = (8, 6, 5);
    let at = |i: u64, j: u64, k: u64| i + a * (j + b * k);
    let face = |axis| moves(&nas::mg(axis, a, b, c).unwrap(), 8);
    let pairs = |outer: u64, inner: u64| {
        (1..outer - 1).flat_map(move |o| (1..inner - 1).map(move |i| (o, i)))
    };
    let x: Vec<_> = pairs(c, b).map(|(k, j)| (at(a - 2, j, k), at(a - 1, j, k))).collect();
    assert_eq!(face(Axis::X), x);
    let y: Vec<_> = pairs(c, a).map(|(k, i)| (at(i, b - 2, k), at(i, b - 1, k))).collect();
    assert_eq!(face(Axis::Y), y);
    let z: Vec<_> = pairs(b, a).map(|(j, i)| (at(i, j, 1), at(i, j, 0))).collect();
    assert_eq!(face(Axis::Z), z);
}

#[test]
fn matrices_are_transposed() {
    let (rows, columns) = (5, 3);
    let case = papers::x_rectangle(rows, columns).unwrap();
    let expected: Vec<_> =
        (0..rows * columns).map(|cell| (cell / columns + rows * (cell % columns), cell)).collect();
    assert_eq!(moves(&case, 8), expected);

    // Rank 0 holds columns 0..b, rank 1 receives rows 0..b of the transpose.
    let (n, b) = (12, 4);
    let mut pairs = moves(&fft::transpose(n, 3).unwrap(), 16);
    let block = |i: u64| (0..b).map(move |j| (b + i + n * j, j + n * i));
    let mut expected: Vec<_> = (0..b).flat_map(block).collect();
    pairs.sort_unstable();
    expected.sort_unstable();
    assert_eq!(pairs, expected);
}

#[test]
fn lammps_atoms_arrive_behind_the_local_ones() {
    let (local, sent) = (50, 20);
    for lists in [IndexList::Step37, IndexList::Shuffled { seed: 3 }] {
        let list = lists.take("lammps-atomic", local, sent, 0).unwrap();
        let case = lammps::atomic(local, sent, lists).unwrap();
        let mut expected = Vec::new();
        for (field, base) in [3, 1, 1, 1].into_iter().zip([0, 3, 4, 5]) {
            let base = base * (local + sent);
            for (arrived, &atom) in list.iter().enumerate() {
                let (from, to) = (u64::try_from(atom).unwrap(), local + arrived as u64);
                expected
                    .extend((0..field).map(|i| (base + field * from + i, base + field * to + i)));
            }
        }
        assert_eq!(moves(&case, 8), expected);
        assert_eq!(case.send.buffer_bytes, 8 * 6 * (local + sent));
    }
}

#[test]
fn halos_fill_every_ghost_cell_from_the_opposite_side() {
    for (edge, depth) in [(4, 1), (4, 2), (3, 3), (1, 1)] {
        let case = cube::halo26(edge, depth).unwrap();
        let width = edge + 2 * depth;
        let wrap = |g: u64| match g {
            g if g < depth => g + edge,
            g if g >= edge + depth => g - edge,
            g => g,
        };
        let mut expected = Vec::new();
        for cell in 0..width * width * width {
            let at = [cell / width / width, cell / width % width, cell % width];
            let from = at.map(wrap);
            if from != at {
                expected.push(((from[0] * width + from[1]) * width + from[2], cell));
            }
        }
        let mut pairs = moves(&case, 8);
        pairs.sort_unstable();
        expected.sort_unstable();
        assert_eq!(pairs, expected, "{}", case.name);
    }
}

#[test]
fn shuffled_lists_give_the_blocks_they_claim() {
    let mut options = Options::default();
    options.lists = IndexList::Shuffled { seed: 20_161 };
    for name in ["lammps-full", "lammps-atomic", "specfem3d-oc", "specfem3d-cm"] {
        for (case, exact) in
            cases_with(name, None, &options).unwrap().iter().zip(cases(name, None).unwrap())
        {
            assert!(case.name.ends_with("shuffled seed=20161"), "{}", case.name);
            assert_eq!(case.payload_bytes, exact.payload_bytes);
            let blocks = lengths(&case.send).values().sum();
            assert_eq!(case.expected_send_blocks, Some(blocks), "{}", case.name);
            assert!(case.expected_send_blocks <= exact.expected_send_blocks, "{}", case.name);
        }
    }
}

/// Every cache against every other of a few, each element from where it is to where it belongs.
#[test]
fn pages_arrive_with_their_heads() {
    let lists = IndexList::Shuffled { seed: 5 };
    let mut caches = Vec::new();
    for keys_values in [KeysValues::Together, KeysValues::Apart, KeysValues::Latent] {
        for (pages, tokens) in [(5, 1), (4, 3)] {
            for heads in 1..=3 {
                for heads_first in [false, true] {
                    let (layers, width) = (2, 2);
                    caches.push(Cache {
                        layers,
                        pages,
                        tokens,
                        heads,
                        width,
                        keys_values,
                        heads_first,
                    });
                }
            }
        }
    }
    let element = |it: &Cache, page, [layer, value, token, head, at]: [u64; 5]| {
        let head = it.heads - 1 - head;
        let plane = match it.keys_values {
            KeysValues::Together => 2 * (layer * it.pages + page) + value,
            KeysValues::Apart => (2 * layer + value) * it.pages + page,
            KeysValues::Latent => layer * it.pages + page,
        };
        let vector =
            if it.heads_first { head * it.tokens + token } else { token * it.heads + head };
        (plane * it.tokens * it.heads + vector) * it.width + at
    };
    let (mut checked, listed) = (0, 3);
    for from in &caches {
        for to in &caches {
            let Ok(case) = pages::pages(from, to, listed, lists) else { continue };
            let list = |cache: &Cache, stream| {
                lists.take("kv-pages", cache.pages, listed, stream).unwrap()
            };
            let values = if from.keys_values == KeysValues::Latent { 1 } else { 2 };
            let mut expected = Vec::new();
            for (source, target) in list(from, 0).into_iter().zip(list(to, 1)) {
                let [source, target] = [source, target].map(|page| u64::try_from(page).unwrap());
                let sides =
                    [from.layers, values, from.tokens, from.heads.min(to.heads), from.width];
                for mut number in 0..sides.iter().product() {
                    let index = sides.map(|side| {
                        let at = number % side;
                        number /= side;
                        at
                    });
                    expected.push((element(from, source, index), element(to, target, index)));
                }
            }
            let mut pairs = moves(&case, 2);
            pairs.sort_unstable();
            expected.sort_unstable();
            assert_eq!(pairs, expected, "{from:?} to {to:?}");
            let blocks = |side: &Side| Some(lengths(side).values().sum::<u64>());
            assert_eq!(blocks(&case.send), case.expected_send_blocks, "{from:?} to {to:?}");
            assert_eq!(blocks(&case.recv), case.expected_recv_blocks, "{from:?} to {to:?}");
            checked += 1;
        }
    }
    assert_eq!(checked, 3 * (9 * 2 + 9 * 2 + 2 * 2));
}

#[test]
fn tokens_go_to_their_slots_and_come_back() {
    let lists = IndexList::Shuffled { seed: 9 };
    let [there, back] = dispatch::dispatch(20, 13, 4, 3, lists).unwrap();
    let mut tokens = lists.take("dispatch", 20, 13, 0).unwrap();
    tokens.sort_unstable();
    let slots = lists.take("dispatch", 60, 13, 1).unwrap();
    let rows: Vec<_> = tokens.iter().zip(&slots).collect();
    let pairs: Vec<_> = moves(&there, 8).into_iter().collect();
    let place = |row: &i64| u64::try_from(*row).unwrap();
    assert_eq!(pairs, rows.iter().map(|(a, b)| (place(a), place(b))).collect::<Vec<_>>());
    assert_eq!(moves(&back, 8), rows.iter().map(|(a, b)| (place(b), place(a))).collect::<Vec<_>>());
    assert!(dispatch::dispatch(20, 21, 4, 3, lists).is_err());
}

/// Where an element of the whole is at the rank that has the last part of everything.
#[test]
fn weights_go_where_the_other_sharding_has_them() {
    for n in [8, 16] {
        let all = cases("reshard", Some(n)).unwrap();
        let (quarter, eighth) = (n / 4, n / 8);
        // (expert, row, column) of an array, from the first that the rank has.
        type At<'a> = &'a dyn Fn(u64, u64, u64) -> u64;
        let columns: At<'_> = &|_, r, c| r * quarter + c - 3 * quarter;
        let rows: At<'_> = &|_, r, c| (r - 3 * quarter) * n + c;
        let sharded: At<'_> = &|_, r, c| (r - 7 * eighth) * n + c;
        let experts: At<'_> = &|e, r, c| ((e - 6) * n + r) * (n / 2) + c;
        let tensor: At<'_> = &|e, r, c| (e * n + r) * eighth + c - 3 * eighth;
        let square = (0..1, 3 * quarter..n, 3 * quarter..n);
        let stack = (6..8, 0..n, 3 * eighth..n / 2);
        let due = [
            (columns, rows, square.clone()),
            (rows, columns, square),
            (sharded, columns, (0..1, 7 * eighth..n, 3 * quarter..n)),
            (experts, tensor, stack.clone()),
            (tensor, experts, stack),
        ];
        assert_eq!(all.len(), due.len());
        for (case, (from, to, (experts, rows, columns))) in all.iter().zip(due) {
            let mut expected = Vec::new();
            for e in experts {
                for r in rows.clone() {
                    expected.extend(columns.clone().map(|c| (from(e, r, c), to(e, r, c))));
                }
            }
            assert_eq!(moves(case, 2), expected, "{}", case.name);
            let blocks = |side: &Side| Some(lengths(side).values().sum::<u64>());
            assert_eq!(blocks(&case.send), case.expected_send_blocks, "{}", case.name);
            assert_eq!(blocks(&case.recv), case.expected_recv_blocks, "{}", case.name);
        }
    }
}
