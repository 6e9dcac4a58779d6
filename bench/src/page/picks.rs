//! Which rows of which reports are on the page.

use super::{PageRows, Pick};
use crate::table::{self, Column, OVER_FLOOR, OVER_MEMCPY, PAYLOAD, PROTOCOL, RATE, SPREAD};

const TIME: Column = ("time", |row| format!("{} {}", (table::TIME.1)(row), (SPREAD.1)(row)));
/// The ratio to whatever this row was compared with, which it names. The last comparison is the one that it is about.
const REFERENCE: Column = ("÷ reference", |row| match row.others.last() {
    Some(other) => format!("{} {:.2}", other.reference, other.ratio),
    None => {
        let ratio = row.ratio.map_or("-".to_owned(), |it| format!("{it:.2}"));
        format!("{} {ratio}", row.reference.as_deref().unwrap_or("-"))
    }
});

const fn pick(
    said: &'static str,
    case: &'static str,
    op: &'static str,
    space: &'static str,
) -> Pick {
    Pick { said, case, op, space }
}

const GPU: &str = "cuda:0";
const LINK: &str = "cuda:0->cuda:1";

pub(super) const PARTS: &[PageRows] = &[
    PageRows {
        section: "matching",
        report: "cpu/matching.json",
        columns: &[TIME, REFERENCE],
        picks: &[
            pick("posted receives: 10", "posted outstanding=10", "same", "host"),
            pick("posted receives: 100,000", "posted outstanding=100000", "same", "host"),
            pick("the same, a random one each time", "posted outstanding=100000", "random", "host"),
            pick("unexpected messages: 10", "unexpected outstanding=10", "same", "host"),
            pick("unexpected messages: 100,000", "unexpected outstanding=100000", "same", "host"),
            pick(
                "the same, a random one each time",
                "unexpected outstanding=100000",
                "random",
                "host",
            ),
        ],
    },
    PageRows {
        section: "gpu",
        report: "h200/gpu.json",
        columns: &[PAYLOAD, TIME, RATE, OVER_MEMCPY, OVER_FLOOR],
        picks: &[
            pick("sub-matrix (V), pack", "V n=4096", "pack", GPU),
            pick("sub-matrix (V), unpack", "V n=4096", "unpack", GPU),
            pick("the same, one block longer, pack", "V perturbed n=4096", "pack", GPU),
            pick("triangle (T), pack", "T n=4096", "pack", GPU),
            pick("triangle (T), unpack", "T n=4096", "unpack", GPU),
            pick("transposed matrix (X), pack", "X n=4096", "pack", GPU),
            pick("transposed matrix (X), unpack", "X n=4096", "unpack", GPU),
            pick("8 of every 16 B, pack", "blocks 8@16", "pack", GPU),
            pick("8 of every 16 B, unpack", "blocks 8@16", "unpack", GPU),
            pick("64 of every 128 B, unpack", "blocks 64@128", "unpack", GPU),
            pick("list of 24 B blocks, pack", "list 3 doubles blocks=4194304", "pack", GPU),
            pick("list of 24 B blocks, unpack", "list 3 doubles blocks=4194304", "unpack", GPU),
            pick("shuffled list, pack", "list 3 doubles shuffled blocks=4194304", "pack", GPU),
            pick("shuffled list, unpack", "list 3 doubles shuffled blocks=4194304", "unpack", GPU),
            pick("x face of 512³, pack", "face x n=512 h=3", "pack", GPU),
            pick("26 faces, edges, corners of 512³, pack", "halo26 n=512 h=3", "pack", GPU),
            pick("the same in one launch of 26 requests", "halo fused n=512 h=3", "pack", GPU),
        ],
    },
    PageRows {
        section: "two-gpus",
        report: "h200x2/p2p.json",
        columns: &[PAYLOAD, PROTOCOL, TIME, RATE, REFERENCE],
        picks: &[
            pick("contiguous", "contiguous bytes=268435456", "oneway", LINK),
            pick("sub-matrix (V)", "V n=5796", "oneway", LINK),
            pick("sub-matrix (V)", "V n=2900", "oneway", LINK),
            pick("sub-matrix (V)", "V n=728", "oneway", LINK),
            pick("triangle (T)", "T n=8192", "oneway", LINK),
            pick("triangle (T)", "T n=4096", "oneway", LINK),
            pick("transposed matrix (X)", "X n=5796", "oneway", LINK),
            pick("Fourier transform", "FFT 2D n=4096 P=2", "oneway", LINK),
            pick("list of 24 B blocks", "list3 blocks=2796203", "oneway", LINK),
            pick("shuffled list", "list3-shuffled blocks=2796203", "oneway", LINK),
            pick("contiguous", "contiguous bytes=8", "oneway", LINK),
            pick("V, 8 thread blocks", "V n=5796", "oneway, 8 blocks", LINK),
            pick("V, half of the GPU busy", "V n=2000", "oneway, 50 % occupied", LINK),
            pick("V, through the host", "V n=5796", "oneway, copy-in-out", LINK),
            pick("V, two processes on one GPU", "V n=5796", "oneway, MPS off", GPU),
            pick("the same, with MPS", "V n=5796", "oneway, MPS on", GPU),
        ],
    },
];
