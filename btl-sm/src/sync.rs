//! The one switch between the standard library's atomics and loom's.
//!
//! Built with `--cfg loom`, only this file, [`ring`](crate::ring), [`arm`](crate::arm),
//! [`credit`](crate::credit) and [`recycle`](crate::recycle) exist: the algorithms that loom explores.

pub(crate) use gapless_sync::Fences;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
