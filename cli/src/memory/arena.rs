//! The memory that messages of one process lie in: one arena to send from, one to receive into; in
//! host memory or in a device's.

use super::content;
use super::devices::{self, Locked, Opened};
use super::place::Places;
use crate::failure::Failure;
use gapless::DeviceBuf;
use gapless::Error;
use gapless::SharedBuf;
use gapless::World;
use gapless::{View, ViewMut};
use gapless_dtype::Layout;
use gapless_mem::{Device, Region};
use std::sync::Arc;

/// Bytes that are filled and sent to a device at a time.
const PIECE_BYTES: usize = 64 << 20;

/// Where memory comes from: the host's; a device's is an arena, unless it is to be allocated to size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// From [`World::alloc`]: peers can map it.
    #[default]
    Alloc,
    /// Ordinary memory.
    Heap,
    /// Ordinary memory, page-locked for a device of this process, if there is one that does that.
    Locked,
    /// As long as the buffers of the message, from [`World::alloc_device`] or [`World::alloc`].
    ToSize,
    /// The same, from the device itself (`cudaMalloc`), or ordinary memory.
    ForeignToSize,
}

impl Source {
    /// As tables and reports name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Source::Alloc => "alloc",
            Source::Heap => "heap",
            Source::Locked => "page-locked",
            Source::ToSize => "to size",
            Source::ForeignToSize => "foreign, to size",
        }
    }

    /// Whether each message has memory of its own length.
    pub(crate) fn is_to_size(self) -> bool {
        matches!(self, Source::ToSize | Source::ForeignToSize)
    }
}

/// Bytes, filled once.
pub(crate) enum Arena {
    Alloc(SharedBuf),
    Heap(Vec<u8>),
    Locked(Locked),
    /// A device's; it lives as long as the process ([`Opened::arenas`]), or is kept by what comes with it.
    Device(
        Arc<dyn Device>,
        Region,
        #[expect(dead_code, reason = "it keeps memory")] Option<DeviceBuf>,
    ),
}

impl Arena {
    /// `len` bytes, all of them touched and filled from `seed`. `device` is what memory is page-locked for.
    pub(crate) fn new(
        world: &World,
        (source, device): (Source, Option<&Arc<dyn Device>>),
        len: usize,
        seed: u64,
    ) -> Result<Arena, Error> {
        let mut arena = match (source, device) {
            (Source::Alloc | Source::ToSize, _) => Arena::Alloc(world.alloc(len)?),
            (Source::Locked, Some(device)) => Arena::Locked(Locked::new(device, len)),
            (Source::Heap | Source::Locked | Source::ForeignToSize, _) => Arena::Heap(vec![0; len]),
        };
        content::fill_large(arena.bytes_mut(), 0, seed);
        Ok(arena)
    }

    /// `len` bytes of a device's memory to send from, and as many to receive into, filled from `seeds`.
    pub(crate) fn pair(
        world: &World,
        source: Source,
        opened: &mut Opened,
        len: usize,
        seeds: [u64; 2],
    ) -> Result<[Arena; 2], Failure> {
        let bytes = len as u64;
        let arenas = match source {
            Source::ToSize => {
                let space = opened.device.space();
                [world.alloc_device(space, bytes)?, world.alloc_device(space, bytes)?]
                    .map(|memory| (memory.region(), Some(memory)))
            }
            Source::ForeignToSize => opened.foreign(world, bytes)?.map(|region| (region, None)),
            _ => opened.arenas(bytes)?.map(|region| (region, None)),
        };
        let mut piece = vec![0; len.min(PIECE_BYTES)];
        for (&(region, _), seed) in arenas.iter().zip(seeds) {
            let mut at = 0;
            while at < len {
                let part = &mut piece[..(len - at).min(PIECE_BYTES)];
                content::fill_large(part, at as u64, seed);
                let into = region.sub(at as u64, part.len() as u64);
                let into = into.map_err(gapless_mem::DeviceError::from)?;
                // SAFETY: the region is the arena's, which no view is of yet; `part` is borrowed until
                // the call returns.
                unsafe { devices::copy(&*opened.device, into, Region::of(part)) }?;
                at += part.len();
            }
        }
        let device = &opened.device;
        Ok(arenas.map(|(region, kept)| Arena::Device(Arc::clone(device), region, kept)))
    }

    /// Host memory as bytes; none of a device's.
    fn bytes(&self) -> &[u8] {
        match self {
            Arena::Alloc(memory) => memory,
            Arena::Heap(memory) => memory,
            Arena::Locked(memory) => memory.bytes(),
            Arena::Device(..) => &[],
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Arena::Alloc(memory) => memory,
            Arena::Heap(memory) => memory,
            Arena::Locked(memory) => memory.bytes_mut(),
            Arena::Device(..) => &mut [],
        }
    }

    /// The buffer of one place in a device's memory.
    fn part(region: &Region, places: &Places, at: usize) -> Result<Region, Error> {
        let part = region.sub(places.starts[at], places.buffer_bytes);
        Ok(part.map_err(gapless_engine::EngineError::from)?)
    }

    /// Fills the buffer of one place as all of the arena was filled from `seed`.
    pub(crate) fn refill(
        &mut self,
        places: &Places,
        at: usize,
        seed: u64,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let start = places.starts[at];
        let Arena::Device(device, region, _) = self else {
            content::fill_large(self.place_mut(places, at), start, seed);
            return Ok(());
        };
        let (_, len) = extent(places, at);
        scratch.resize(len, 0);
        content::fill_large(scratch, start, seed);
        // SAFETY: the arena is borrowed exclusively, so no view of it is in use.
        unsafe { devices::copy(&**device, Arena::part(region, places, at)?, Region::of(scratch)) }
    }

    /// The bytes of one place; in `scratch`, if the host cannot look at them where they are.
    pub(crate) fn look<'a>(
        &'a self,
        places: &Places,
        at: usize,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], Failure> {
        let Arena::Device(device, region, _) = self else { return Ok(self.place(places, at)) };
        let (_, len) = extent(places, at);
        scratch.resize(len, 0);
        let from = Arena::part(region, places, at)?;
        // SAFETY: views that write need the arena exclusively, so nothing writes it; `scratch` is
        // borrowed until the call returns.
        unsafe { devices::copy(&**device, Region::of_mut(scratch), from) }?;
        Ok(scratch)
    }

    /// The buffer of one place.
    pub(crate) fn place(&self, places: &Places, at: usize) -> &[u8] {
        let (start, len) = extent(places, at);
        &self.bytes()[start..start + len]
    }

    /// The buffer of one place.
    pub(crate) fn place_mut(&mut self, places: &Places, at: usize) -> &mut [u8] {
        let (start, len) = extent(places, at);
        &mut self.bytes_mut()[start..start + len]
    }

    /// A view of each of the first `limit` places, for sending.
    pub(crate) fn views(
        &self,
        places: &Places,
        layout: &Layout,
        count: u64,
        limit: usize,
    ) -> Result<Vec<View<'_>>, Error> {
        let all = (0..places.starts.len().min(limit)).map(|at| match self {
            Arena::Device(_, region, _) => {
                let region = Arena::part(region, places, at)?;
                // SAFETY: the arena lives as long as the process; what writes it (`refill`,
                // `views_mut`) borrows it exclusively, and this view borrows it.
                unsafe { View::of_region(region, places.origin, layout, count) }
            }
            _ => View::typed(self.place(places, at), places.origin, layout, count),
        });
        all.collect()
    }

    /// A view of each of the first `limit` places, for receiving. Their buffers interleave, their
    /// bytes do not.
    pub(crate) fn views_mut(
        &mut self,
        places: &Places,
        layout: &Layout,
        count: u64,
        limit: usize,
    ) -> Result<Vec<ViewMut<'_>>, Error> {
        let whole = match self {
            Arena::Device(_, region, _) => *region,
            host => Region::of_mut(host.bytes_mut()),
        };
        let all = (0..places.starts.len().min(limit)).map(|at| {
            let region = Arena::part(&whole, places, at)?;
            // SAFETY: the region lies in the arena, which is borrowed exclusively for as long as
            // the views live. What the layout touches there lies in cache lines that belong to
            // this place alone (`Places::find`, and its test; `Places::side_by_side` and
            // `Places::in_a_row` let no two buffers overlap), and a view touches nothing else.
            unsafe { ViewMut::of_region(region, places.origin, layout, count) }
        });
        all.collect()
    }
}

fn extent(places: &Places, at: usize) -> (usize, usize) {
    let number = |n: u64| usize::try_from(n).expect("an arena fits the address space");
    (number(places.starts[at]), number(places.buffer_bytes))
}
