//! Both sides of the argument structures agree: sizes and offsets, told by a compiled kernel.

use crate::bench::Bench;
use gapless_kernels::args::LAYOUT;
use gapless_kernels::opencl_layout_source;

#[test]
fn both_sides_agree_on_the_layout_of_arguments() {
    let Some(mut bench) = Bench::open() else { return };
    let told = bench.numbers(&opencl_layout_source(), "layout", LAYOUT.len());
    assert!(LAYOUT.len() > 60);
    for (entry, told) in LAYOUT.iter().zip(told) {
        assert_eq!(entry.bytes as u64, told, "{}.{}", entry.structure, entry.field);
    }
}
