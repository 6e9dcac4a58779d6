//! Both sides of the argument structures agree: sizes and offsets, told by a compiled kernel.

use crate::bench::Bench;
use gapless_kernels::{args, opencl_layout_source, peers};

#[test]
fn both_sides_agree_on_the_layout_of_arguments() {
    let Some(mut bench) = Bench::open() else { return };
    let entries = || args::LAYOUT.iter().copied().chain(peers::layout());
    let told = bench.numbers(&opencl_layout_source(), "layout", entries().count());
    assert!(args::LAYOUT.len() > 60 && peers::layout().count() > 20);
    for (entry, told) in entries().zip(told) {
        assert_eq!(entry.bytes as u64, told, "{}.{}", entry.structure, entry.field);
    }
}
