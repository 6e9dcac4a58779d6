//! All tests in one program, which links once.

mod collectives;
mod seeds;
mod survivors;
