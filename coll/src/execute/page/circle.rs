//! Whose page it is: that of all ranks of a communicator, or of those that are on one host. On the page each has a seat;
//! messages, errors and notices name ranks of the communicator.

use std::sync::Arc;

use gapless_pml::Comm;

/// The ranks of a page, in the order of their seats.
#[derive(Clone, Debug)]
pub(super) struct Circle {
    comm: Comm,
    /// Of each seat; none: all ranks of the communicator.
    ranks: Option<Arc<[u32]>>,
    /// This rank's.
    seat: usize,
    size: usize,
}

impl Circle {
    /// All ranks.
    pub(super) fn all(comm: Comm) -> Circle {
        let (seat, size) = (comm.rank() as usize, comm.size() as usize);
        Circle { comm, ranks: None, seat, size }
    }

    /// Some ranks, which ascend; `None`: this one is not among them, or one of them is none.
    pub(super) fn of(comm: Comm, ranks: &[usize]) -> Option<Circle> {
        let number = |rank: &usize| u32::try_from(*rank).ok().filter(|rank| *rank < comm.size());
        let ranks: Arc<[u32]> = ranks.iter().map(number).collect::<Option<_>>()?;
        let seat = ranks.iter().position(|rank| *rank == comm.rank())?;
        let size = ranks.len();
        Some(Circle { comm, ranks: Some(ranks), seat, size })
    }

    /// Whether it is all ranks of the communicator.
    pub(super) fn is_whole(&self) -> bool {
        self.ranks.is_none()
    }

    pub(super) fn comm(&self) -> &Comm {
        &self.comm
    }

    /// This rank's seat.
    #[inline]
    pub(super) fn seat(&self) -> usize {
        self.seat
    }

    /// How many seats there are.
    #[inline]
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// This rank.
    pub(super) fn own(&self) -> u32 {
        self.comm.rank()
    }

    /// The rank that has a seat; of no seat that there is, none that there is.
    pub(super) fn rank(&self, seat: usize) -> u32 {
        let found = match &self.ranks {
            Some(ranks) => ranks.get(seat).copied(),
            None => u32::try_from(seat).ok(),
        };
        found.unwrap_or(u32::MAX)
    }

    /// The process that has a seat, by its number in the job.
    pub(super) fn process(&self, seat: usize) -> Option<u32> {
        self.comm.process(self.rank(seat)).ok()
    }
}
