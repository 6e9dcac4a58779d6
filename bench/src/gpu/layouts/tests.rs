//! Blocks of transposes, packed and unpacked by the host, are the transposes, also where n is no multiple of the ranks.

use super::*;

/// Where element (i, j, k) lies at each side of a rank, if it is there: its planes begin at `at`, and are `len`.
fn places(cut: Cut, n: u64, [i, j, k]: [u64; 3], (at, len): (u64, u64)) -> [Option<u64>; 2] {
    let own = |index: u64| (at..at + len).contains(&index).then(|| index - at);
    let planes = own(i).map(|i| (i * n + j) * n + k);
    let thirds = own(k).map(|k| (i * n + j) * len + k);
    match cut {
        Cut::Planes => [planes, own(j).map(|j| (i * len + j) * n + k)],
        Cut::Rows => [planes, thirds],
        Cut::Pencils => [own(j).map(|j| (i * len + j) * n + k), thirds],
        Cut::Turned => [planes, own(k).map(|k| (k * n + j) * n + i)],
    }
}

#[test]
fn a_transpose_may_have_parts_of_different_lengths() {
    for (n, ranks, starts) in
        [(4u64, 2u32, &[0u64, 2, 4][..]), (5, 3, &[0, 2, 4, 5]), (7, 4, &[0, 2, 4, 6, 7])]
    {
        for cut in Cut::ALL {
            let all: Vec<Exchange> =
                (0..ranks).map(|rank| Exchange::transpose(n, cut, ranks, rank).unwrap()).collect();
            let fill = |side: usize, rank: usize| {
                let mut floats = vec![-1.0f32; (all[rank].bytes / 4) as usize];
                let own = (starts[rank], starts[rank + 1] - starts[rank]);
                for number in 0..n * n * n {
                    let element = [number / (n * n), number / n % n, number % n];
                    if let Some(at) = places(cut, n, element, own)[side] {
                        floats[2 * at as usize..][..2].fill(number as f32);
                    }
                }
                floats
            };
            let block = |rank: usize, side: usize, peer: usize| {
                let exchange = &all[rank];
                let at = exchange.displacements[side][peer] / 4;
                (at as usize, &exchange.layouts[side][peer])
            };
            for (to, exchange) in all.iter().enumerate() {
                let mut found = vec![-1.0f32; (exchange.bytes / 4) as usize];
                for from in 0..ranks as usize {
                    let (at, layout) = block(from, 0, to);
                    let sent = pack(&fill(0, from), at, layout, 1).unwrap();
                    let (at, layout) = block(to, 1, from);
                    unpack(&sent, &mut found, at, layout, 1).unwrap();
                }
                assert!(found == fill(1, to), "{cut:?}, {n}³ at rank {to} of {ranks}");
            }
        }
    }
}
