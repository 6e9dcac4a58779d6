//! The basic items of instances one by one: what each is, and where it lies.
//!
//! The runs come from the layout's program, the types from its signature; both are in packed order, and no item is in
//! two runs, because an item is contiguous and runs are maximal.

use crate::convertor::{Convertor, ConvertorError};
use crate::layout::Layout;
use crate::primitive::Primitive;
use crate::run::Run;
use crate::signature::Signature;

/// Basic items of one type that follow each other in the packed stream, and lie in memory without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ItemRun {
    /// Bytes from the origin to the first item; may be negative.
    pub(crate) displacement: i64,
    /// What the items are; never a pair type.
    pub(crate) primitive: Primitive,
    /// How many there are, at least one.
    pub(crate) items: u64,
}

impl ItemRun {
    /// Bytes of all items.
    const fn bytes(&self) -> u64 {
        self.items * self.primitive.size_bytes()
    }
}

/// The basic items of `count` instances of a layout, in packed order: their typemap, in runs.
#[derive(Clone, Debug)]
pub(crate) struct Items {
    convertor: Convertor,
    signature: Signature,
    /// Runs that were listed last; those before `next` are done.
    runs: [Run; RUNS],
    listed: usize,
    next: usize,
    /// What is left of the run in hand.
    run: Run,
    /// Items that came before.
    place: u64,
}

const RUNS: usize = 16;

impl Items {
    /// All items of `count` instances, from the first on.
    ///
    /// # Errors
    ///
    /// As [`Convertor::new`].
    pub(crate) fn new(layout: &Layout, count: u64) -> Result<Items, ConvertorError> {
        Ok(Items {
            convertor: Convertor::new(layout, count)?,
            signature: layout.signature().clone(),
            runs: [Run::default(); RUNS],
            listed: 0,
            next: 0,
            run: Run::default(),
            place: 0,
        })
    }
}

impl Iterator for Items {
    type Item = ItemRun;

    fn next(&mut self) -> Option<ItemRun> {
        if self.run.len == 0 {
            if self.next == self.listed {
                (self.listed, _) = self.convertor.iov(&mut self.runs, u64::MAX);
                self.next = 0;
            }
            self.run = *self.runs[..self.listed].get(self.next)?;
            self.next += 1;
        }
        let (primitive, alike) = self.signature.stretch_at(self.convertor.count(), self.place)?;
        let items = alike.min(self.run.len / primitive.size_bytes());
        if items == 0 {
            // A peer's layout whose signature is not that of its runs: nothing more can be said of it.
            self.run.len = 0;
            self.listed = 0;
            self.next = 0;
            self.place = u64::MAX;
            return None;
        }
        let found = ItemRun { displacement: self.run.displacement, primitive, items };
        self.place += items;
        self.run.displacement = self.run.displacement.wrapping_add_unsigned(found.bytes());
        self.run.len -= found.bytes();
        Some(found)
    }
}
