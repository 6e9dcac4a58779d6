//! All tests in one program, which links once; `allocation.rs` replaces the allocator, so it is another.

mod bounds;
mod exhaustive;
mod hostile;
mod layouts;
mod random;
