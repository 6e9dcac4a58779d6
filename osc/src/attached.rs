//! The memory of a dynamic window: what was attached to it, piece by piece.

use crate::error::Fault;
use crate::memory::{WindowBytes, for_each_run};
use gapless_engine::Typed;
use gapless_mem::Atomics;
use std::ops::Range;

/// Pieces by their addresses, which are the offsets. An operation may be on several, also on both sides of where they meet.
#[derive(Debug, Default)]
pub(crate) struct Attached(Vec<(u64, Atomics)>);

impl Attached {
    /// Gives the piece's address.
    pub(crate) fn add(&mut self, memory: Atomics) -> u64 {
        let address = memory.lease().region().start();
        self.0.push((address, memory));
        address
    }

    /// Takes the piece at an address; whether it was there.
    pub(crate) fn take(&mut self, address: u64) -> Option<Atomics> {
        let at = self.0.iter().position(|(start, _)| *start == address)?;
        Some(self.0.swap_remove(at).1)
    }

    /// Whether all that an operation touches is there, before any of it is touched.
    pub(crate) fn check(&self, target: &Typed, range: Range<u64>) -> Result<(), Fault> {
        for_each_run(target, range, |offset, _, len| self.parts(offset, len, |_, _, _| Ok(())))
    }

    /// Visits the parts of some bytes, in their order: the piece, where in it, and which of the bytes.
    fn parts(
        &self,
        offset: u64,
        len: usize,
        mut visit: impl FnMut(&Atomics, u64, Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut at = 0;
        while at < len {
            let address = offset.checked_add(at as u64).ok_or(Fault::Outside)?;
            let piece = self.0.iter().find_map(|(start, memory)| {
                let inside = address.checked_sub(*start)?;
                Some((memory, inside, memory.len().checked_sub(inside).filter(|left| *left > 0)?))
            });
            let (memory, inside, left) = piece.ok_or(Fault::Outside)?;
            let end = len.min(at.saturating_add(usize::try_from(left).unwrap_or(usize::MAX)));
            visit(memory, inside, at..end)?;
            at = end;
        }
        Ok(())
    }
}

impl WindowBytes for Attached {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.parts(offset, into.len(), |memory, at, part| {
            WindowBytes::load(memory, at, &mut into[part])
        })
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.parts(offset, bytes.len(), |memory, at, part| {
            WindowBytes::store(memory, at, &bytes[part])
        })
    }

    fn misalignment(&self, offset: u64, alignment: u64) -> u64 {
        offset & (alignment - 1)
    }

    fn one(&self) -> Option<&Atomics> {
        None
    }
}
