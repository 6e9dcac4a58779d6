//! Every kernel, run through OpenCL against a byte-by-byte reference; in CI that is PoCL, on the host's
//! processor. Gaps and surroundings are canaries: what should not be touched is looked at as well.
//!
//! Without an OpenCL device the tests are skipped, aloud; where the variable `CI` is set they fail instead.

mod bench;
mod cases;
mod layouts;
mod machine;
mod pages;
mod shapes;

use bench::Bench;

#[test]
fn every_kernel_moves_every_byte_to_its_place() {
    let Some(mut bench) = Bench::open() else { return };
    machine::every_kernel_moves_every_byte_to_its_place(&mut bench);
}

#[test]
fn layouts_move_into_layouts() {
    let Some(mut bench) = Bench::open() else { return };
    machine::layouts_move_into_layouts(&mut bench);
}

#[test]
fn rows_move_into_columns() {
    let Some(mut bench) = Bench::open() else { return };
    machine::rows_move_into_columns(&mut bench);
}

#[test]
fn equal_layouts_move_into_each_other() {
    let Some(mut bench) = Bench::open() else { return };
    machine::equal_layouts_move_into_each_other(&mut bench);
}

#[test]
fn many_requests_move_at_once() {
    let Some(mut bench) = Bench::open() else { return };
    machine::many_requests_move_at_once(&mut bench);
}

#[test]
fn twins_move_as_if_they_were_alone() {
    let Some(mut bench) = Bench::open() else { return };
    machine::twins_move_as_if_they_were_alone(&mut bench);
}

#[test]
fn a_range_may_lie_inside_a_word() {
    let Some(mut bench) = Bench::open() else { return };
    machine::a_range_may_lie_inside_a_word(&mut bench);
}

#[test]
fn pages_move_to_where_their_indices_say() {
    let Some(mut bench) = Bench::open() else { return };
    pages::pages_move_to_where_their_indices_say(&mut bench);
}
