//! The engine on a stream of the lab's, and many requests at once.

use std::ops::Range;

use gapless_dtype_cuda::{BatchItem, OnStream};
use gapless_engine::{ReduceOp, Typed};
use gapless_kernels::Direction;

use super::{Laid, Spot};
use crate::error::Failure;

/// An engine on a stream: enqueues, and does not wait.
pub struct Queue<'a>(pub(super) OnStream<'a>);

impl Queue<'_> {
    /// Enqueues packing `range`.
    ///
    /// # Errors
    /// What the engine refuses.
    pub fn pack(&self, from: &Laid, range: Range<u64>, to: &Spot) -> Result<(), Failure> {
        // SAFETY: memory of the lab's, which it frees after all work has ended.
        Ok(unsafe { self.0.pack(&from.0, range, to.0) }?)
    }

    /// Enqueues unpacking `range`.
    ///
    /// # Errors
    /// What the engine refuses.
    pub fn unpack(&self, from: &Spot, to: &Laid, range: Range<u64>) -> Result<(), Failure> {
        // SAFETY: as in `pack`.
        Ok(unsafe { self.0.unpack(from.0, &to.0, range) }?)
    }

    /// Enqueues one direction of the whole stream.
    ///
    /// # Errors
    /// What the engine refuses.
    pub fn go(&self, direction: Direction, laid: &Laid, packed: &Spot) -> Result<(), Failure> {
        match direction {
            Direction::Pack => self.pack(laid, 0..laid.payload(), packed),
            Direction::Unpack => self.unpack(packed, laid, 0..laid.payload()),
        }
    }

    /// Enqueues moving the whole stream from layout to layout.
    ///
    /// # Errors
    /// What the engine refuses.
    pub fn transfer(&self, from: &Laid, to: &Laid) -> Result<(), Failure> {
        // SAFETY: as in `pack`.
        Ok(unsafe { self.0.transfer(&from.0, &to.0, 0..from.payload()) }?)
    }

    /// Enqueues combining all of each source, from left to right, into a target.
    ///
    /// # Errors
    /// What the engine refuses.
    pub fn reduce(&self, op: ReduceOp, sources: &[Laid], target: &Laid) -> Result<(), Failure> {
        let all: Vec<Typed> = sources.iter().map(|source| source.0.clone()).collect();
        let range = 0..target.payload();
        // SAFETY: as in `pack`.
        Ok(unsafe { self.0.reduce(&op.into(), &all, &target.0, range) }?)
    }

    /// Enqueues many requests, fused.
    ///
    /// # Errors
    /// What the engine refuses.
    pub fn batch(&self, direction: Direction, parts: &Parts) -> Result<(), Failure> {
        // SAFETY: as in `pack`; only the lab's memory is in `Parts`.
        Ok(unsafe { self.0.batch(direction, &parts.0) }?)
    }
}

/// Requests to be fused.
pub struct Parts(Vec<BatchItem>);

impl Parts {
    /// Whole subjects and where their packed bytes go.
    #[must_use]
    pub fn of(parts: impl IntoIterator<Item = (Laid, Spot)>) -> Parts {
        let request = |(laid, packed): (Laid, Spot)| BatchItem {
            range: 0..laid.payload(),
            typed: laid.0,
            packed: packed.0,
        };
        Parts(parts.into_iter().map(request).collect())
    }

    /// The requests, for asking what they would launch.
    #[must_use]
    pub fn requests(&self) -> &[BatchItem] {
        &self.0
    }
}
