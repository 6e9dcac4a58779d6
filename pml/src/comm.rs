//! Communicators: a group of processes (or two) and contexts of their own (MPI 4.1 §7.2).
//!
//! A context keeps messages of one communicator from being received in another. Every process gives its own number to
//! a communicator, and its peers put that number into the messages that they send it. So making a communicator needs
//! no search for a number that is free everywhere, and any number of communicators can be made at once. Identifier
//! `i` stands for the contexts `2i` (point to point) and `2i + 1` (collective).

pub(crate) mod group;

pub use group::{Comparison, Group};

use crate::error::PmlError;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How many communicators a process can have at once.
pub const COMMS_MAX: u32 = 1 << INDEX_BITS;

/// An identifier is a place in the table and, above it, how often that place was used before. So a late message for a
/// freed communicator differs from one for a communicator that never existed.
const INDEX_BITS: u32 = 14;
const GENERATION_BITS: u32 = 17;
const GENERATIONS: u32 = 1 << GENERATION_BITS;
/// No identifier is as large.
pub(crate) const IDS_END: u32 = 1 << (INDEX_BITS + GENERATION_BITS);

/// The identifiers that the peers have given a communicator.
#[derive(Debug)]
enum Ids {
    /// All peers gave the same one.
    Same(u32),
    /// By rank.
    Each(Box<[u32]>),
}

#[derive(Debug)]
struct Inner {
    id: u32,
    rank: u32,
    group: Group,
    /// An intercommunicator's other side, and a communicator of this side alone.
    inter: Option<(Group, Comm)>,
    /// At those that messages go to.
    ids: Ids,
    /// How many communicators were started to be made of this one; the same in all members.
    agreements: AtomicU32,
    /// The same of agreements among survivors.
    surveys: AtomicU32,
    revoked: AtomicBool,
}

/// A communicator. Cheap to clone; all clones are the same communicator.
///
/// Messages go to and come from the members of an intracommunicator's only group, or of an
/// intercommunicator's other, remote, group (MPI 4.1 §7.6).
#[derive(Clone, Debug)]
pub struct Comm {
    inner: Arc<Inner>,
    /// [`COLLECTIVE`], [`SURVIVES`].
    uses: u8,
}

/// The collective context.
const COLLECTIVE: u8 = 1;
/// For agreements among survivors, which go on when the communicator is revoked.
const SURVIVES: u8 = 2;

impl Comm {
    fn make((id, ids): (u32, Ids), rank: u32, group: Group, inter: Option<(Group, Comm)>) -> Comm {
        let (agreements, surveys, revoked) = Default::default();
        let inner = Inner { id, rank, group, inter, ids, agreements, surveys, revoked };
        Comm { inner: Arc::new(inner), uses: 0 }
    }

    pub(crate) fn world(rank: u32, size: u32) -> Comm {
        Comm::make((0, Ids::Same(0)), rank, Group::all(size), None)
    }

    pub(crate) fn myself(process: u32) -> Comm {
        Comm::make((1, Ids::Same(1)), 0, Group::listed([process]), None)
    }

    /// A communicator whose members have given it `ids`.
    pub(crate) fn intra(id: u32, rank: u32, group: Group, ids: Vec<u32>) -> Comm {
        Comm::make((id, Ids::Each(ids.into())), rank, group, None)
    }

    /// An intercommunicator of the side that `local` is of, and of `remote`, whose members have given
    /// it `ids`.
    pub(crate) fn inter(id: u32, local: Comm, remote: Group, ids: Vec<u32>) -> Comm {
        let (rank, group) = (local.rank(), local.group());
        Comm::make((id, Ids::Each(ids.into())), rank, group, Some((remote, local)))
    }

    /// The calling process's rank (in its own side).
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.inner.rank
    }

    /// Number of processes (of this side).
    #[must_use]
    pub fn size(&self) -> u32 {
        self.inner.group.size()
    }

    /// The group of processes (of this side) (`MPI_Comm_group`).
    #[must_use]
    pub fn group(&self) -> Group {
        self.inner.group.clone()
    }

    /// Whether it has two sides (`MPI_Comm_test_inter`).
    #[must_use]
    pub fn is_inter(&self) -> bool {
        self.inner.inter.is_some()
    }

    /// The group that messages go to: the other side of an intercommunicator
    /// (`MPI_Comm_remote_group`), or the only one.
    #[must_use]
    #[inline]
    pub fn peers(&self) -> &Group {
        self.inner.inter.as_ref().map_or(&self.inner.group, |(remote, _)| remote)
    }

    /// The communicator of an intercommunicator's own side; an intracommunicator itself. It is there for the messages
    /// that collectives on the intercommunicator need among this side's members, and lives as long as that.
    #[must_use]
    pub fn side(&self) -> &Comm {
        self.inner.inter.as_ref().map_or(self, |(_, local)| local)
    }

    /// The same communicator's collective context: its messages never meet those of users. Negative tags and
    /// those from 2³⁰ on are this crate's there.
    #[must_use]
    pub fn collective(&self) -> Comm {
        Comm { inner: Arc::clone(&self.inner), uses: self.uses | COLLECTIVE }
    }

    /// Whether this is the collective context.
    pub(crate) fn is_collective(&self) -> bool {
        self.uses & COLLECTIVE != 0
    }

    /// The same communicator's collective context, usable also when it is revoked.
    pub(crate) fn surviving(&self) -> Comm {
        Comm { inner: Arc::clone(&self.inner), uses: COLLECTIVE | SURVIVES }
    }

    /// Whether a revoked communicator can be used by this handle.
    pub(crate) fn survives(&self) -> bool {
        self.uses & SURVIVES != 0
    }

    /// Whether it was [revoked](crate::Pml::revoke), as far as this process knows.
    #[must_use]
    #[inline]
    pub fn is_revoked(&self) -> bool {
        self.inner.revoked.load(Ordering::Relaxed)
    }

    /// Whether both are one communicator (`MPI_IDENT`), whatever the context.
    #[must_use]
    pub fn same(&self, other: &Comm) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// How alike the two are (`MPI_Comm_compare`, MPI 4.1 §7.4.1).
    #[must_use]
    pub fn compare(&self, other: &Comm) -> Comparison {
        if self.same(other) {
            return Comparison::Identical;
        }
        if self.is_inter() != other.is_inter() {
            return Comparison::Unequal;
        }
        let local = self.inner.group.compare(&other.inner.group);
        match (local, self.peers().compare(other.peers())) {
            (Comparison::Identical, Comparison::Identical) => Comparison::Congruent,
            (Comparison::Unequal, _) | (_, Comparison::Unequal) => Comparison::Unequal,
            _ => Comparison::Similar,
        }
    }

    /// The number in the job of the process that messages to `rank` go to.
    ///
    /// # Errors
    /// [`PmlError::InvalidRank`].
    #[inline]
    pub fn process(&self, rank: u32) -> Result<u32, PmlError> {
        self.process_of(rank, "the rank asked for")
    }

    /// As [`process`](Comm::process); an error says what the rank was given as.
    #[inline]
    pub(crate) fn process_of(&self, rank: u32, what: &'static str) -> Result<u32, PmlError> {
        let peers = self.peers();
        peers.process(rank).ok_or(PmlError::InvalidRank { what, rank, size: peers.size() })
    }

    /// The rank that messages of a process of the job come from, if it is a member.
    #[must_use]
    #[inline]
    pub fn rank_of(&self, process: u32) -> Option<u32> {
        self.peers().rank_of(process)
    }

    pub(crate) fn id(&self) -> u32 {
        self.inner.id
    }

    /// What messages to this process carry: no other communicator of it has the same, as long as this one exists.
    #[must_use]
    pub fn context(&self) -> u32 {
        2 * self.inner.id + u32::from(self.is_collective())
    }

    /// What messages to `rank` carry: the [`context`](Self::context) there.
    #[must_use]
    #[inline]
    pub fn context_at(&self, rank: u32) -> u32 {
        let id = match &self.inner.ids {
            Ids::Same(id) => *id,
            // Whoever asks has looked the process up.
            Ids::Each(ids) => ids.get(rank as usize).copied().unwrap_or(self.inner.id),
        };
        2 * id + u32::from(self.is_collective())
    }

    /// Numbers the agreements of the members; all have the same numbers, because they start agreements in the same
    /// order.
    pub(crate) fn next_agreement(&self) -> u32 {
        self.inner.agreements.fetch_add(1, Ordering::Relaxed)
    }

    /// Numbers the agreements among survivors, apart from others: of those members may have started other numbers when
    /// the communicator was revoked.
    pub(crate) fn next_survey(&self) -> u32 {
        self.inner.surveys.fetch_add(1, Ordering::Relaxed)
    }
}

#[derive(Debug)]
enum SlotState {
    Free,
    /// Its members are agreeing; those that are done may use it.
    Reserved,
    Known(Comm),
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    state: SlotState,
}

/// What the context of a message stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// A communicator, or one that is being made.
    Here,
    /// One that was freed.
    Gone,
    /// Nothing: the sender invented it.
    Never,
}

/// The communicators that a process knows, by identifier.
#[derive(Debug, Default)]
pub(crate) struct Comms {
    slots: Vec<Slot>,
    /// Free places, the one that was freed longest ago first.
    free: VecDeque<u32>,
    /// Communicators that are being made here and are revoked already: by their identifiers, and who says so.
    pub(crate) early_revokes: Vec<(u32, u32)>,
    /// The last answers for known communicators, by rank.
    pub(crate) routes: [Route; ROUTES],
}

/// How many answers are remembered: enough for programs that exchange with their neighbours in turn.
const ROUTES: usize = 8;

/// Who is behind a rank of a communicator, and the contexts of messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Route {
    /// The communicator (its object's address, and what it is used for; never 0) and the rank.
    key: (usize, u32),
    /// The process's number in the job.
    pub(crate) process: u32,
    /// What messages from there carry.
    pub(crate) here: u32,
    /// What messages to there carry.
    pub(crate) there: u32,
}

/// Place and generation of an identifier.
fn parts(id: u32) -> (u32, u32) {
    (id % COMMS_MAX, id / COMMS_MAX)
}

impl Comms {
    /// The world and myself, whose identifiers are known without agreeing.
    pub(crate) fn predefined(comms: [Comm; 2]) -> Comms {
        let known = |comm| Slot { generation: 0, state: SlotState::Known(comm) };
        Comms { slots: comms.into_iter().map(known).collect(), ..Comms::default() }
    }

    /// A new identifier.
    pub(crate) fn reserve(&mut self) -> Option<u32> {
        if let Some(at) = self.free.pop_front() {
            let slot = &mut self.slots[at as usize];
            slot.state = SlotState::Reserved;
            return Some(slot.generation * COMMS_MAX + at);
        }
        let at = u32::try_from(self.slots.len()).ok().filter(|at| *at < COMMS_MAX)?;
        self.slots.push(Slot { generation: 0, state: SlotState::Reserved });
        Some(at)
    }

    #[inline]
    fn slot(&self, id: u32) -> Option<&Slot> {
        let (at, generation) = parts(id);
        self.slots.get(at as usize).filter(|slot| slot.generation == generation)
    }

    /// Makes a communicator known by its identifier, which was reserved.
    pub(crate) fn insert(&mut self, comm: &Comm) {
        let (at, _) = parts(comm.id());
        self.routes = Default::default();
        if let Some(slot) = self.slots.get_mut(at as usize) {
            slot.state = SlotState::Known(comm.clone());
        }
    }

    /// Gives an identifier back.
    pub(crate) fn remove(&mut self, id: u32) {
        let (at, generation) = parts(id);
        self.routes = Default::default();
        self.early_revokes.retain(|(early, _)| *early != id);
        if let Some(slot) = self.slots.get_mut(at as usize)
            && slot.generation == generation
            && !matches!(slot.state, SlotState::Free)
        {
            slot.state = SlotState::Free;
            slot.generation = (generation + 1) % GENERATIONS;
            self.free.push_back(at);
        }
    }

    /// Who is behind `rank` of `comm`, if there is such a rank and `comm` is one of ours.
    #[inline]
    pub(crate) fn route(&mut self, comm: &Comm, rank: u32) -> Option<Route> {
        // Objects lie at multiples of four. One that a route names is known and not revoked, so it lives.
        let key = (Arc::as_ptr(&comm.inner).addr() | usize::from(comm.uses), rank);
        let route = self.routes[rank as usize % ROUTES];
        if route.key == key { Some(route) } else { self.find_route(comm, rank, key) }
    }

    #[inline(never)]
    fn find_route(&mut self, comm: &Comm, rank: u32, key: (usize, u32)) -> Option<Route> {
        self.check(comm).ok().filter(|()| !comm.survives())?;
        let process = comm.process(rank).ok()?;
        let route = Route { key, process, here: comm.context(), there: comm.context_at(rank) };
        self.routes[rank as usize % ROUTES] = route;
        Some(route)
    }

    /// `Ok` if `comm` is one of ours that can be used.
    #[inline]
    pub(crate) fn check(&self, comm: &Comm) -> Result<(), PmlError> {
        self.check_known(comm)?;
        if comm.is_revoked() && !comm.survives() { Err(PmlError::Revoked) } else { Ok(()) }
    }

    /// `Ok` if `comm` is one of ours, be it revoked.
    #[inline]
    pub(crate) fn check_known(&self, comm: &Comm) -> Result<(), PmlError> {
        match self.slot(comm.id()) {
            Some(Slot { state: SlotState::Known(known), .. }) if known.same(comm) => Ok(()),
            _ => Err(PmlError::NoSuchComm),
        }
    }

    /// The communicator that a context belongs to.
    #[inline]
    pub(crate) fn of_context(&self, context: u32) -> Option<&Comm> {
        match self.slot(context / 2)? {
            Slot { state: SlotState::Known(comm), .. } => Some(comm),
            _ => None,
        }
    }

    /// The rank of a process in the communicator of a context.
    pub(crate) fn rank_in(&self, context: u32, process: u32) -> u32 {
        self.of_context(context).and_then(|comm| comm.rank_of(process)).unwrap_or(process)
    }

    /// What a context stands for.
    pub(crate) fn lookup(&self, context: u32) -> Lookup {
        let (at, generation) = parts(context / 2);
        let Some(slot) = self.slots.get(at as usize) else { return Lookup::Never };
        // How often the place has been freed since, modulo their number.
        let since = (slot.generation + GENERATIONS - generation) % GENERATIONS;
        match (since, &slot.state) {
            (0, SlotState::Free) => Lookup::Never,
            (0, _) => Lookup::Here,
            (since, _) if since <= GENERATIONS / 2 => Lookup::Gone,
            _ => Lookup::Never,
        }
    }
}

impl Comm {
    /// Marks it, both sides of an intercommunicator; whether it was not marked before.
    pub(crate) fn mark_revoked(&self) -> bool {
        let marked = self.inner.revoked.swap(true, Ordering::Relaxed);
        self.side().inner.revoked.store(true, Ordering::Relaxed);
        !marked
    }
}

impl Comms {
    /// The communicator that is known by an identifier, or by that of its side.
    pub(crate) fn whole(&self, part: &Comm) -> Comm {
        let inter = self.slots.iter().find_map(|slot| match &slot.state {
            SlotState::Known(comm) if comm.is_inter() && comm.side().same(part) => {
                Some(comm.clone())
            }
            _ => None,
        });
        inter.unwrap_or_else(|| part.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comms() -> Comms {
        Comms::predefined([Comm::world(2, 5), Comm::myself(2)])
    }

    #[test]
    fn the_world_and_myself() {
        let (world, me) = (Comm::world(2, 5), Comm::myself(2));
        assert_eq!((world.rank(), world.size(), me.rank(), me.size()), (2, 5, 0, 1));
        assert_eq!(me.process(0), Ok(2));
        let what = "the rank asked for";
        assert_eq!(me.process(1), Err(PmlError::InvalidRank { what, rank: 1, size: 1 }));
        assert_eq!((me.rank_of(2), me.rank_of(0), world.rank_of(5)), (Some(0), None, None));
        assert_eq!([&world, &world.collective(), &me].map(Comm::context), [0, 1, 2]);
        assert_eq!((world.context_at(3), me.collective().context_at(0)), (0, 3));
    }

    #[test]
    fn identifiers_are_told_apart_from_those_before_them() {
        let mut comms = comms();
        let first = comms.reserve().unwrap();
        assert_eq!(first, 2);
        assert_eq!(comms.lookup(2 * first), Lookup::Here);
        assert!(comms.of_context(2 * first).is_none());
        let comm = Comm::intra(first, 0, Group::all(1), vec![first]);
        comms.insert(&comm);
        assert!(comms.check(&comm).is_ok());
        assert!(comms.of_context(2 * first + 1).is_some_and(|known| known.same(&comm)));
        comms.remove(first);
        comms.remove(first);
        assert_eq!(comms.check(&comm), Err(PmlError::NoSuchComm));
        assert_eq!(comms.lookup(2 * first), Lookup::Gone);
        let second = comms.reserve().unwrap();
        assert_eq!(second, first + COMMS_MAX);
        assert_eq!(comms.lookup(2 * first), Lookup::Gone);
        assert_eq!(comms.lookup(2 * second), Lookup::Here);
        assert_eq!(comms.lookup(2 * (second + COMMS_MAX)), Lookup::Never);
        assert_eq!(comms.lookup(2 * 3), Lookup::Never);
        assert_eq!(comms.lookup(u32::MAX), Lookup::Never);
    }

    #[test]
    fn generations_come_round_and_places_run_out() {
        let mut comms = comms();
        for _ in 0..GENERATIONS {
            let id = comms.reserve().unwrap();
            assert!(id < IDS_END);
            comms.remove(id);
        }
        assert_eq!(comms.reserve(), Some(2));
        assert_eq!(comms.lookup(2 * 2), Lookup::Here);
        assert_eq!(comms.lookup(2 * (IDS_END - COMMS_MAX + 2)), Lookup::Gone);
        for _ in 3..COMMS_MAX {
            assert!(comms.reserve().is_some());
        }
        assert_eq!(comms.reserve(), None);
    }

    #[test]
    fn communicators_compare() {
        let world = Comm::world(2, 3);
        let again = Comm::intra(5, 2, Group::listed([0, 1, 2]), vec![5; 3]);
        let turned = Comm::intra(6, 0, Group::listed([2, 1, 0]), vec![6; 3]);
        assert_eq!(world.compare(&world.collective()), Comparison::Identical);
        assert_eq!(world.compare(&again), Comparison::Congruent);
        assert_eq!(world.compare(&turned), Comparison::Similar);
        assert_eq!(world.compare(&Comm::myself(2)), Comparison::Unequal);
        let inter = Comm::inter(7, Comm::myself(2), Group::listed([0]), vec![7]);
        assert_eq!((inter.size(), inter.peers().size(), inter.process(0)), (1, 1, Ok(0)));
        assert_eq!(inter.compare(&Comm::myself(2)), Comparison::Unequal);
    }
}
