//! What tests of executors need, here and in other crates: what the operations mean on packed bytes, and buffers of
//! random layouts. They panic where a test is wrong.
#![allow(clippy::missing_panics_doc, reason = "every panic is a test that is wrong")]

mod held;
mod model;
mod tasks;

pub use held::{Held, Lie, Random};
pub use model::{Arithmetic, Content, after, after_between};
pub use tasks::Hub;
