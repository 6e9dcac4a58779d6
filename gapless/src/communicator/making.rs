//! Communicators made of communicators (MPI 4.1 §7.4, §7.6). All of these calls are collective and wait for the other
//! members; several threads may be in them at once, each with its own parent. If a member dies, all members are told
//! which: see [`Error::lost_rank`].

use super::Communicator;
use crate::error::Error;
use crate::shared::{WorldState, stuck};
use gapless_coll::runtime::Blocking;
use gapless_pml::{CommRequest, Comparison, Group, Pml, PmlError, WaitingCall};

impl Communicator {
    /// Starts to make a communicator, as `start` says.
    fn start_making(
        &self,
        start: impl FnOnce(&mut Pml) -> Result<CommRequest, PmlError>,
    ) -> Result<CommRequest, Error> {
        self.shared.with(|state| {
            let request = start(state.open()?)?;
            self.shared.rouse(state);
            Ok(request)
        })
    }

    /// Starts what `start` says, and waits for it.
    fn make(
        &self,
        start: impl FnOnce(&mut Pml) -> Result<CommRequest, PmlError>,
    ) -> Result<Option<Communicator>, Error> {
        let request = self.start_making(start)?;
        let made = self.shared.wait_in(&|| stuck::on(self, WaitingCall::Making), |state| {
            state.open().and_then(|pml| Ok(pml.collect_comm(request)?)).transpose()
        })??;
        Ok(made.map(|comm| Communicator::new(&self.shared, comm)))
    }

    /// Starts to make a duplicate (`MPI_Comm_idup`).
    pub(crate) fn start_dup(&self) -> Result<CommRequest, Error> {
        self.start_making(|pml| pml.start_dup(&self.comm))
    }

    /// The duplicate that was made of this communicator.
    pub(crate) fn duplicate(&self, made: Option<Communicator>) -> Result<Communicator, Error> {
        let made = made.ok_or(PmlError::Bug { what: "a duplicate for nobody" })?;
        Ok(made.arranged(self.topology().cloned()))
    }

    /// A new communicator of the same processes and the same topology, whose messages never meet this one's
    /// (`MPI_Comm_dup`, MPI 4.1 §7.4.2). Collective: every member calls it, in the same order among
    /// the collective calls on this communicator.
    ///
    /// # Errors
    /// A member is lost; a member has no identifier left.
    pub fn dup(&self) -> Result<Communicator, Error> {
        let made = self.make(|pml| pml.start_dup(&self.comm))?;
        self.duplicate(made)
    }

    /// A communicator of those members that give the same `color`, in the order of their keys, and of their ranks if
    /// keys are equal (`MPI_Comm_split`, MPI 4.1 §7.4.2); `None` for members that give no color. Collective as
    /// [`dup`](Communicator::dup).
    ///
    /// ```
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = gapless::World::init()?;
    /// let comm = world.comm();
    /// // Rows of a grid of four columns.
    /// let row = comm.split(Some(comm.rank() / 4), 0)?.expect("everybody is in a row");
    /// assert_eq!(row.rank(), comm.rank() % 4);
    /// world.finalize()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`dup`](Communicator::dup).
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Communicator>, Error> {
        self.make(|pml| pml.start_split(&self.comm, color, key))
    }

    /// A communicator of those members that share memory with this process
    /// (`MPI_Comm_split_type` with `MPI_COMM_TYPE_SHARED`). Collective as
    /// [`dup`](Communicator::dup).
    ///
    /// # Errors
    /// As [`dup`](Communicator::dup); this is an intercommunicator.
    pub fn split_shared(&self, key: i32) -> Result<Communicator, Error> {
        let made = self.make(|pml| pml.start_split_shared(&self.comm, key))?;
        Ok(made.ok_or(PmlError::Bug { what: "a set of processes without its own" })?)
    }

    /// A communicator of the members that are in `group`; `None` for the others, who call this, too
    /// (`MPI_Comm_create`, MPI 4.1 §7.4.2). Of an intercommunicator, each side gives a group of its own members,
    /// and the new communicator has the groups of both sides; without members on one of them there is none.
    /// Collective as [`dup`](Communicator::dup).
    ///
    /// # Errors
    /// As [`dup`](Communicator::dup); the group has somebody who is no member (of this side).
    pub fn create(&self, group: &Group) -> Result<Option<Communicator>, Error> {
        self.make(|pml| pml.start_create(&self.comm, group))
    }

    /// A communicator of `group`, whose members alone call this (`MPI_Comm_create_group`, MPI 4.1
    /// §7.4.2). Threads that make several at once in the same processes tell them apart by `tag`,
    /// which is not negative.
    ///
    /// # Errors
    /// As [`create`](Communicator::create); this process is not in the group; this is an intercommunicator.
    pub fn create_group(&self, group: &Group, tag: i32) -> Result<Communicator, Error> {
        let made = self.make(|pml| pml.start_create_group(&self.comm, group, tag))?;
        Ok(made.ok_or(PmlError::NotAMember)?)
    }

    /// An intercommunicator of this communicator's members and those of another one, whose leader is
    /// `remote_leader` in `bridge` (`MPI_Intercomm_create`, MPI 4.1 §7.6.2). `leader` is this side's
    /// leader; only there do `bridge` and `remote_leader` matter. Collective over both communicators,
    /// whose groups have nobody in common.
    ///
    /// Messages through it go to ranks of the other side. Its [`size`](Communicator::size) and
    /// [`rank`](Communicator::rank) are those of this side.
    ///
    /// # Errors
    /// As [`dup`](Communicator::dup); a rank that is not there; this is an intercommunicator already.
    pub fn intercomm(
        &self,
        leader: u32,
        bridge: &Communicator,
        remote_leader: u32,
        tag: i32,
    ) -> Result<Communicator, Error> {
        let remote = (&bridge.comm, remote_leader);
        let made = self.make(|pml| pml.start_intercomm(&self.comm, leader, remote, tag))?;
        Ok(made.ok_or(PmlError::Bug { what: "an intercommunicator of one side" })?)
    }

    /// One communicator of both sides of this intercommunicator; the side that says `high` comes
    /// last (`MPI_Intercomm_merge`, MPI 4.1 §7.6.2). Collective as [`dup`](Communicator::dup).
    ///
    /// # Errors
    /// As [`dup`](Communicator::dup); this is no intercommunicator.
    pub fn merge(&self, high: bool) -> Result<Communicator, Error> {
        let made = self.make(|pml| pml.start_merge(&self.comm, high))?;
        Ok(made.ok_or(PmlError::Bug { what: "a union without its members" })?)
    }

    /// Frees this communicator in this process (`MPI_Comm_free`, MPI 4.1 §7.4.3), for all clones: at once, or when
    /// the last operation on it has ended. Waits for a blocking collective on it in another thread. Messages that come
    /// for it after that are dropped. Never needed for correctness: a process can have 16,384 of them.
    ///
    /// # Errors
    /// It is predefined; it was freed already; [`Error::CollectiveUnderWay`].
    pub fn free(self) -> Result<(), Error> {
        self.shared.wait_until(|state| {
            if let Err(error) = state.open() {
                return Some(Err(error));
            }
            let WorldState { pml, collectives, .. } = &mut *state;
            match self.common.blocking() {
                Blocking::Here => Some(Err(Error::CollectiveUnderWay)),
                Blocking::Elsewhere => None,
                Blocking::None => {
                    let both = (&self.comm, self.common.persistent_comms.comms());
                    let freed = collectives.free(pml, both, self.common.queue());
                    Some(freed.map_err(Error::from))
                }
            }
        })??;
        self.await_closing();
        Ok(())
    }

    /// The group of its processes (of this side) (`MPI_Comm_group`).
    #[must_use]
    pub fn group(&self) -> Group {
        self.comm.group()
    }

    /// The group that messages go to: the other side of an intercommunicator
    /// (`MPI_Comm_remote_group`), or the only one.
    #[must_use]
    pub fn peers(&self) -> &Group {
        self.comm.peers()
    }

    /// Whether it has two sides (`MPI_Comm_test_inter`).
    #[must_use]
    pub fn is_inter(&self) -> bool {
        self.comm.is_inter()
    }

    /// How alike two communicators are (`MPI_Comm_compare`, MPI 4.1 §7.4.1).
    #[must_use]
    pub fn compare(&self, other: &Communicator) -> Comparison {
        self.comm.compare(&other.comm)
    }
}
