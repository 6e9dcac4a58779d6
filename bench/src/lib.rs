//! Benches and the programs that redo the papers' figures.
