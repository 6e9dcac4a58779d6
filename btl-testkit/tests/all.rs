//! All tests in one program, which links once, and where what waits does not keep the others waiting.

mod loopback;
mod mutants;
mod streams;
