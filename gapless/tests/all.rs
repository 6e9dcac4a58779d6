//! All tests in one program, which links once; `allocations.rs` replaces the allocator, so it is another.

mod alone;
mod check_kinds;
mod examples;
mod panics;
mod reentry;
