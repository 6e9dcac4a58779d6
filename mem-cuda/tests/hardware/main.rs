//! Tests on real CUDA devices. Where there is none, each says so and counts as skipped: a line on the
//! standard error and in the file that `GAPLESS_SKIP_LOG` names.
//!
//! The binary needs nothing beside it, so it can be carried to a machine that has a GPU and no cargo.
//! Tests that need another process run this binary once more (see `kin`).

mod capture;
mod copies;
mod failing;
mod gate;
mod gpu;
mod kin;
mod launch;
mod memory;
mod mps;
mod order;
mod peers;
mod share;
