#![doc = include_str!("../README.md")]
//!
//! ## What is here
//!
//! A program that measures fills [`Row`]s from [`Samples`]. It puts them in a [`Report`] with the [`Machine`] it ran
//! on and the [`commit`] it was built from. Then it prints [`Report::table`], no wider than the terminal, and writes
//! [`Report::write_json`] and [`Report::write_svg`]. [`Report::read_json`] validates such a file: a ratio that does not
//! follow from the times beside it is an error, not a figure.
//!
//! - what is kept: [`Report`], [`Row`], [`Samples`], [`Machine`]; what is wrong with a file: [`Invalid`],
//!   [`FileError`];
//! - what is shown: [`Table`], [`Compared`] (libraries side by side), plots as SVG ([`bars`], [`curves`], [`ratios`]
//!   and their like), [`html()`] (a page of reports), [`Bytes`], [`Time`] and [`Rate`] (numbers with their units).
//!
//! Units, everywhere: bytes are `u64`, times are seconds in `f64`, rates are GB/s of *payload*
//! (10⁹ bytes a second, each payload byte counted once). A ratio is ours over the reference in
//! speed: above 1 Gapless is faster, for latencies too.
//!
//! This crate knows nothing of datatypes, transports or peers, and needs none of the other crates.

#![forbid(unsafe_code)]

#[cfg(test)]
#[allow(dead_code, reason = "the build script's own `main`")]
#[path = "../build.rs"]
mod build;
mod compared;
mod file;
mod html;
mod human;
mod machine;
mod plot;
mod samples;
mod schema;
mod table;
mod terminal;
mod validate;

pub use compared::{Compared, ComparedWork};
pub use file::{FileError, write_atomically};
pub use html::{Document, html};
pub use human::{Bytes, Rate, Time};
pub use machine::{Cache, CacheKind, Container, Gpu, Machine, last_level_cache_bytes};
pub use plot::{
    Axis, BarGroup, Curve, Growth, PlotError, Point, RatioRow, Series, Spread, bars, course,
    curves, growth, latency, lines, lines_by, ratios,
};
pub use samples::{NoSamples, Samples, Summary};
pub use schema::{Absent, Comparison, Mark, Report, Row};
pub use table::{Align, Growing, Table, folded};
pub use terminal::terminal_columns;
pub use validate::{Fault, Invalid};

/// The commit that this program was built of: abbreviated, with `-dirty` after it if sources had changed; `unknown` if
/// there was no repository. `GAPLESS_COMMIT`, if it was set at build time, says another text. Where the program runs
/// does not matter.
#[must_use]
pub const fn commit() -> &'static str {
    env!("GAPLESS_REPORT_COMMIT")
}
