//! The engine against what the host's engine does, and against what it must not do.

mod bench;
mod gathered;
mod hostile;
mod order;
mod pages;
mod peers;
