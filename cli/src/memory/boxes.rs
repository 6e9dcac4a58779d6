//! What a rank sends from and receives into, and whether what arrived is right.

use super::arena::{Arena, Source};
use super::content::{self, Lying, Wrong, mix};
use super::devices::{Budget, Devices};
use super::ends::Where;
use super::place::Places;
use crate::failure::Failure;
use gapless::World;
use gapless_dtype::{Convertor, Layout};

/// One side of a message, with its layout committed and its places found.
pub(crate) struct Sided {
    pub(crate) layout: Layout,
    pub(crate) count: u64,
    pub(crate) places: Places,
}

/// What a rank has sent out of the first of its places: instances of a layout.
#[derive(Clone, Copy)]
pub(crate) struct Sent<'a> {
    pub(crate) side: &'a Sided,
    pub(crate) from: u32,
    /// Instances before those that were sent, and how many these are.
    pub(crate) first: u64,
    pub(crate) count: u64,
}

impl<'a> Sent<'a> {
    /// All of it.
    pub(crate) fn all(side: &'a Sided, from: u32) -> Sent<'a> {
        Sent { side, from, first: 0, count: side.count }
    }
}

/// Two arenas of one rank.
pub(crate) struct Boxes {
    pub(crate) outbox: Arena,
    pub(crate) inbox: Arena,
    rank: u32,
    seed: u64,
    /// What a place should hold.
    scratch: Vec<u8>,
    /// What a place of a device holds.
    looked: Vec<u8>,
}

impl Boxes {
    /// Arenas of `len` bytes each in the memory of `place`, which comes from `source`. What they hold derives from
    /// `seed` and the rank.
    pub(crate) fn open(
        world: &World,
        devices: &mut Devices,
        (place, source): (Where, Source),
        len: u64,
        seed: u64,
    ) -> Result<Boxes, Failure> {
        let (rank, len) = (world.rank(), usize::try_from(len).unwrap_or(usize::MAX));
        let seeds = [outbox_seed, inbox_seed].map(|of| of(seed, rank));
        let first = devices.first();
        let [outbox, inbox] = match devices.open(place, Budget::default())? {
            Some(opened) => Arena::pair(world, source, opened, len, seeds)?,
            None => {
                let from = (source, first.as_ref());
                [Arena::new(world, from, len, seeds[0])?, Arena::new(world, from, len, seeds[1])?]
            }
        };
        Ok(Boxes { outbox, inbox, rank, seed, scratch: Vec::new(), looked: Vec::new() })
    }

    /// Puts a packed stream where a message is sent from. Of host memory only.
    pub(crate) fn put(&mut self, send: &Sided, packed: &[u8]) -> Result<(), Failure> {
        let into = self.outbox.place_mut(&send.places, 0);
        unpack(packed, send, into)
    }

    /// Whether the first place holds a packed stream where the layout has it, and nothing else has changed since
    /// [`refill`](Boxes::refill). Of host memory only.
    pub(crate) fn holds(
        &mut self,
        recv: &Sided,
        packed: &[u8],
    ) -> Result<Result<(), Wrong>, Failure> {
        let received = self.inbox.place(&recv.places, 0);
        self.scratch.resize(received.len(), 0);
        let seed = inbox_seed(self.seed, self.rank);
        content::fill_large(&mut self.scratch, recv.places.starts[0], seed);
        if !packed.is_empty() {
            unpack(packed, recv, &mut self.scratch)?;
        }
        Ok(content::compared(received, &self.scratch))
    }

    /// Makes a place to receive into hold what it holds when nothing has been received.
    pub(crate) fn refill(&mut self, recv: &Sided, at: usize) -> Result<(), Failure> {
        let seed = inbox_seed(self.seed, self.rank);
        self.inbox.refill(&recv.places, at, seed, &mut self.scratch)
    }

    /// Whether a place holds what was sent, one after another, and nothing else has changed since
    /// [`refill`](Boxes::refill). All ranks must have found the same places.
    pub(crate) fn check(
        &mut self,
        sent: &[Sent<'_>],
        recv: &Sided,
        at: usize,
    ) -> Result<Result<(), Wrong>, Failure> {
        let start = recv.places.starts[at];
        let into = Lying {
            layout: &recv.layout,
            count: recv.count,
            origin: start + recv.places.origin,
            seed: inbox_seed(self.seed, self.rank),
        };
        let from = sent.iter().map(|Sent { side, from, first, count }| {
            let moved = side.layout.extent().wrapping_mul(first.cast_signed());
            Lying {
                layout: &side.layout,
                count: *count,
                origin: (side.places.starts[0] + side.places.origin).wrapping_add_signed(moved),
                seed: outbox_seed(self.seed, *from),
            }
        });
        let from: Vec<Lying<'_>> = from.collect();
        let received = self.inbox.look(&recv.places, at, &mut self.looked)?;
        Ok(content::check(received, start, into, &from, &mut self.scratch))
    }
}

/// Puts a packed stream where a side's layout has it.
fn unpack(packed: &[u8], side: &Sided, into: &mut [u8]) -> Result<(), Failure> {
    let origin = usize::try_from(side.places.origin).unwrap_or(usize::MAX);
    Convertor::new(&side.layout, side.count)?.unpack(packed, into, origin)?;
    Ok(())
}

fn outbox_seed(seed: u64, rank: u32) -> u64 {
    mix(seed ^ mix(1 + u64::from(rank)))
}

/// As long as there are no 2^31 ranks, no other seed.
fn inbox_seed(seed: u64, rank: u32) -> u64 {
    mix(seed ^ mix((1 << 32) + u64::from(rank)))
}
