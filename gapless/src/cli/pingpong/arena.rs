//! The memory that messages of one process lie in: one arena to send from, one to receive into.

use super::Source;
use super::content;
use super::place::Places;
use crate::error::Error;
use crate::shared_buf::SharedBuf;
use crate::view::{View, ViewMut};
use crate::world::World;
use gapless_dtype::Layout;
use gapless_mem::Region;

/// Bytes, filled once.
pub(super) enum Arena {
    Alloc(SharedBuf),
    Heap(Vec<u8>),
}

impl Arena {
    /// `len` bytes, all of them touched and filled from `seed`.
    pub(super) fn new(
        world: &World,
        source: Source,
        len: usize,
        seed: u64,
    ) -> Result<Arena, Error> {
        let mut arena = match source {
            Source::Alloc => Arena::Alloc(world.alloc(len)?),
            Source::Heap => Arena::Heap(vec![0; len]),
        };
        content::fill(arena.bytes_mut(), 0, seed);
        Ok(arena)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Arena::Alloc(memory) => memory,
            Arena::Heap(memory) => memory,
        }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Arena::Alloc(memory) => memory,
            Arena::Heap(memory) => memory,
        }
    }

    /// The buffer of one place.
    pub(super) fn place(&self, places: &Places, at: usize) -> &[u8] {
        let (start, len) = extent(places, at);
        &self.bytes()[start..start + len]
    }

    /// The buffer of one place.
    pub(super) fn place_mut(&mut self, places: &Places, at: usize) -> &mut [u8] {
        let (start, len) = extent(places, at);
        &mut self.bytes_mut()[start..start + len]
    }

    /// A view of each of the first `limit` places, for sending.
    pub(super) fn views(
        &self,
        places: &Places,
        layout: &Layout,
        count: u64,
        limit: usize,
    ) -> Result<Vec<View<'_>>, Error> {
        let all = (0..places.starts.len().min(limit))
            .map(|at| View::typed(self.place(places, at), places.origin, layout, count));
        all.collect()
    }

    /// A view of each of the first `limit` places, for receiving. Their buffers interleave, their
    /// bytes do not.
    pub(super) fn views_mut(
        &mut self,
        places: &Places,
        layout: &Layout,
        count: u64,
        limit: usize,
    ) -> Result<Vec<ViewMut<'_>>, Error> {
        let whole = Region::of_mut(self.bytes_mut());
        let all = (0..places.starts.len().min(limit)).map(|at| {
            let region = whole
                .sub(places.starts[at], places.buffer_bytes)
                .map_err(gapless_engine::EngineError::from)?;
            // SAFETY: the region lies in the arena, which is borrowed exclusively for as long as
            // the views live. What the layout touches there lies in cache lines that belong to
            // this place alone (`Places::find`, and its test), and a view touches nothing else.
            unsafe { ViewMut::of_region(region, places.origin, layout, count) }
        });
        all.collect()
    }
}

fn extent(places: &Places, at: usize) -> (usize, usize) {
    let number = |n: u64| usize::try_from(n).expect("an arena fits the address space");
    (number(places.starts[at]), number(places.buffer_bytes))
}
