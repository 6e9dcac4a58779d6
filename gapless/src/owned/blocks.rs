//! A buffer that a collective owns, with a block of it for each rank.

use super::{OwnedBuffer, Park, Refused};
use crate::error::Error;
use crate::parts::UsedBytes;
use crate::view::typed_in;
use gapless_dtype::Layout;
use gapless_engine::Typed;

/// A buffer, and a block of it for each rank, or each neighbour, with a layout of its own: what `MPI_Alltoallw_init`
/// and `MPI_Neighbor_alltoallw_init` take as counts, displacements and datatypes (MPI 4.1 §6.13.8, §8.8.5).
///
/// ```
/// use gapless::{Collective, Equivalence, OwnedBlocks, World};
/// # fn main() -> Result<(), gapless::Error> {
/// let world = World::init()?;
/// let comm = world.comm();
/// let number = f64::datatype().commit()?;
/// // Two numbers for each rank, and room for theirs.
/// let blocks = || (0..u64::from(comm.size())).map(|rank| (2 * rank, &number, 2));
/// let memory = vec![f64::from(comm.rank()); 2 * comm.size() as usize];
/// let mut swap = comm.collective_init_blocks(
///     OwnedBlocks::new(memory.clone(), blocks()),
///     OwnedBlocks::new(memory, blocks()),
///     |send, recv| Collective::alltoallw(send, recv),
/// )?;
/// for _ in 0..3 {
///     swap.start()?;
///     swap.wait()?;
/// }
/// assert_eq!(swap.buffers()?.1[0], 0.0); // from rank 0
/// world.finalize()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct OwnedBlocks<B> {
    pub(crate) buffer: B,
    /// Of each block: origin in elements, layout, count.
    blocks: Vec<(u64, Layout, u64)>,
}

impl<B: OwnedBuffer> OwnedBlocks<B> {
    /// Each block is `(origin, layout, count)`: `count` instances of `layout`; displacement 0 is `origin` *elements*
    /// into the buffer. Whether they fit, as [`View::typed`](crate::View::typed) says, is checked when the collective
    /// is described, and so is whether blocks that are received into overlap.
    #[must_use]
    pub fn new<'l>(
        buffer: B,
        blocks: impl IntoIterator<Item = (u64, &'l Layout, u64)>,
    ) -> OwnedBlocks<B> {
        let own = |(origin, layout, count): (u64, &Layout, u64)| (origin, layout.clone(), count);
        OwnedBlocks { buffer, blocks: blocks.into_iter().map(own).collect() }
    }

    /// Takes the buffer apart, and describes blocks to be sent.
    pub(crate) fn park_sent(self) -> Result<(B::Parked, Vec<Typed>), Refused<B>> {
        self.park(|_| Ok(()))
    }

    /// Takes the buffer apart, and describes blocks to be received into: no two have a byte in common.
    pub(crate) fn park_received(self) -> Result<(B::Parked, Vec<Typed>), Refused<B>> {
        let mut taken = UsedBytes::default();
        self.park(|block| taken.write(block))
    }

    fn park(
        self,
        mut admit: impl FnMut(&Typed) -> Result<(), Error>,
    ) -> Result<(B::Parked, Vec<Typed>), Refused<B>> {
        let parked = B::Parked::park(self.buffer);
        let (region, element) = (parked.region(), B::element());
        let one = |(origin, layout, count): &(u64, Layout, u64)| {
            let typed = typed_in(region, element, *origin, layout, *count)?;
            admit(&typed).map(|()| typed)
        };
        match self.blocks.iter().map(one).collect() {
            Ok(each) => Ok((parked, each)),
            Err(error) => Err(Refused { error, buffer: parked.unpark() }),
        }
    }
}

/// No blocks: for an argument that is [in place](crate::InPlace), or does not matter at this rank.
impl From<()> for OwnedBlocks<()> {
    fn from((): ()) -> OwnedBlocks<()> {
        OwnedBlocks { buffer: (), blocks: Vec::new() }
    }
}
