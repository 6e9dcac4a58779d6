//! Communicators: a group of processes and two context identifiers (MPI 4.1 §7.2).
//!
//! Identifier `i` of a communicator stands for the contexts `2i` (point to point) and `2i + 1`
//! (collective); what is sent in one is never received in the other.

use crate::error::PmlError;
use crate::hash::FastMap;
use std::sync::Arc;

/// How many communicators a process can have at once.
pub const COMMS_MAX: u32 = 16_384;

/// Processes of the job, in the order of their ranks in a communicator.
#[derive(Clone, Debug)]
enum Group {
    /// Every process, with the rank it has in the job.
    World(u32),
    /// These processes.
    Members { world: Vec<u32>, ranks: FastMap<u32, u32> },
}

#[derive(Debug)]
struct Inner {
    id: u32,
    rank: u32,
    group: Group,
}

/// A communicator. Cheap to clone; all clones are the same communicator.
#[derive(Clone, Debug)]
pub struct Comm {
    inner: Arc<Inner>,
    collective: bool,
}

impl Comm {
    pub(crate) fn world(rank: u32, size: u32) -> Comm {
        Comm::make(0, rank, Group::World(size))
    }

    pub(crate) fn myself(rank: u32) -> Comm {
        let ranks = [(rank, 0)].into_iter().collect();
        Comm::make(1, 0, Group::Members { world: vec![rank], ranks })
    }

    pub(crate) fn with_id(&self, id: u32) -> Comm {
        Comm::make(id, self.inner.rank, self.inner.group.clone())
    }

    fn make(id: u32, rank: u32, group: Group) -> Comm {
        Comm { inner: Arc::new(Inner { id, rank, group }), collective: false }
    }

    /// The calling process's rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.inner.rank
    }

    /// Number of processes.
    #[must_use]
    pub fn size(&self) -> u32 {
        match &self.inner.group {
            Group::World(size) => *size,
            Group::Members { world, .. } => u32::try_from(world.len()).unwrap_or(u32::MAX),
        }
    }

    /// The same communicator's collective context: its messages never meet those of users.
    #[must_use]
    pub fn collective(&self) -> Comm {
        Comm { inner: Arc::clone(&self.inner), collective: true }
    }

    /// Whether both are one communicator (`MPI_IDENT`), whatever the context.
    #[must_use]
    pub fn same(&self, other: &Comm) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The number in the job of the process with `rank`.
    ///
    /// # Errors
    /// [`PmlError::InvalidRank`].
    pub fn process(&self, rank: u32) -> Result<u32, PmlError> {
        let process = match &self.inner.group {
            Group::World(size) => (rank < *size).then_some(rank),
            Group::Members { world, .. } => world.get(rank as usize).copied(),
        };
        process.ok_or(PmlError::InvalidRank { rank, size: self.size() })
    }

    /// The rank of a process of the job, if it is a member.
    #[must_use]
    pub fn rank_of(&self, process: u32) -> Option<u32> {
        match &self.inner.group {
            Group::World(size) => (process < *size).then_some(process),
            Group::Members { ranks, .. } => ranks.get(&process).copied(),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.inner.id
    }

    pub(crate) fn context(&self) -> u32 {
        2 * self.inner.id + u32::from(self.collective)
    }
}

/// The communicators that a process knows, by identifier.
#[derive(Debug, Default)]
pub(crate) struct Comms {
    known: Vec<Option<Comm>>,
}

impl Comms {
    pub(crate) fn insert(&mut self, comm: &Comm) {
        let at = comm.id() as usize;
        if self.known.len() <= at {
            self.known.resize(at + 1, None);
        }
        self.known[at] = Some(comm.clone());
    }

    pub(crate) fn remove(&mut self, comm: &Comm) {
        if let Some(place) = self.known.get_mut(comm.id() as usize) {
            *place = None;
        }
    }

    /// `Ok` if `comm` is one of ours.
    pub(crate) fn check(&self, comm: &Comm) -> Result<(), PmlError> {
        match self.known.get(comm.id() as usize) {
            Some(Some(known)) if known.same(comm) => Ok(()),
            _ => Err(PmlError::NoSuchComm),
        }
    }

    /// The communicator that a context belongs to.
    pub(crate) fn of_context(&self, context: u32) -> Option<&Comm> {
        self.known.get(context as usize / 2)?.as_ref()
    }

    /// Whether no communicator has this identifier.
    pub(crate) fn is_free(&self, id: u32) -> bool {
        self.known.get(id as usize).is_none_or(Option::is_none)
    }

    /// A bit for every identifier in use, 8 to a byte.
    pub(crate) fn used(&self) -> Vec<u8> {
        let mut bits = vec![0; self.known.len().div_ceil(8)];
        for (id, _) in self.known.iter().enumerate().filter(|(_, known)| known.is_some()) {
            bits[id / 8] |= 1 << (id % 8);
        }
        bits
    }
}

/// The smallest identifier that `used` leaves free.
pub(crate) fn smallest_free(used: &[u8]) -> Option<u32> {
    let free = |id: &u32| used.get(*id as usize / 8).is_none_or(|bits| bits >> (id % 8) & 1 == 0);
    (0..COMMS_MAX).find(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_world_and_myself() {
        let (world, me) = (Comm::world(2, 5), Comm::myself(2));
        assert_eq!((world.rank(), world.size(), me.rank(), me.size()), (2, 5, 0, 1));
        assert_eq!(me.process(0), Ok(2));
        assert_eq!(me.process(1), Err(PmlError::InvalidRank { rank: 1, size: 1 }));
        assert_eq!((me.rank_of(2), me.rank_of(0), world.rank_of(5)), (Some(0), None, None));
        assert_eq!([&world, &world.collective(), &me].map(Comm::context), [0, 1, 2]);
    }

    #[test]
    fn identifiers_are_found_and_come_back() {
        let mut comms = Comms::default();
        let world = Comm::world(0, 1);
        comms.insert(&world);
        comms.insert(&Comm::myself(0));
        assert_eq!(comms.used(), [0b11]);
        assert_eq!(smallest_free(&comms.used()), Some(2));
        let ninth = world.with_id(8);
        comms.insert(&ninth);
        assert!(comms.check(&ninth).is_ok());
        assert!(comms.check(&world.with_id(8)).is_err());
        assert_eq!(comms.used(), [0b11, 1]);
        comms.remove(&ninth);
        assert_eq!(comms.check(&ninth), Err(PmlError::NoSuchComm));
        assert_eq!(smallest_free(&vec![0xFF; COMMS_MAX as usize / 8]), None);
    }
}
