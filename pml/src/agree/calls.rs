//! The calls that make and free communicators.

use super::table::{NO_ID, PREFACE_BYTES, Purpose, TableEntry};
use super::{AgreeState, AgreeStep, Agreement, Bridge};
use crate::comm::Comm;
use crate::comm::group::Group;
use crate::error::PmlError;
use crate::pml::Pml;
use crate::status::RequestId;
use crate::wire::Label;
use gapless_bml::Rank;

/// The request of a communicator that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommRequest {
    pub(super) index: usize,
    pub(super) number: u64,
    pub(super) request: RequestId,
}

impl CommRequest {
    /// Ends when it is known what was made, and is gone when that was collected.
    #[must_use]
    pub fn request(&self) -> RequestId {
        self.request
    }
}

impl Pml {
    /// What this process tells, with identifiers reserved.
    fn entry(&mut self, inter: bool) -> TableEntry {
        let id = self.core.comms.reserve().unwrap_or(NO_ID);
        let side = if inter { self.core.comms.reserve().unwrap_or(NO_ID) } else { NO_ID };
        let full = inter && side == NO_ID && id != NO_ID;
        if full {
            self.core.comms.remove(id);
        }
        TableEntry {
            process: self.core.me.into(),
            id: if full { NO_ID } else { id }.into(),
            side: side.into(),
            key: 0.into(),
            color: 0.into(),
            how: 0.into(),
        }
    }

    /// The tag of the next agreement of all members of `parent`.
    pub(super) fn next_tag(parent: &Comm) -> i32 {
        Label::agreement(parent.next_agreement())
    }

    /// The tag of the next agreement among those members of `parent` that are left.
    pub(super) fn next_survey_tag(parent: &Comm) -> i32 {
        Label::survey(parent.next_survey())
    }

    /// Starts an agreement of all members of `parent`, on both its sides.
    fn begin(&mut self, purpose: Purpose, parent: &Comm, mine: TableEntry) -> CommRequest {
        let tag = Pml::next_tag(parent);
        let bridge = parent.is_inter().then(|| Bridge { comm: parent.collective(), rank: 0, tag });
        let (over, members) = (parent.side().clone(), parent.group());
        let leader = members.process(0).unwrap_or(self.core.me);
        self.enter_with(purpose, (over, members, leader, tag), bridge, mine)
    }

    fn enter_with(
        &mut self,
        purpose: Purpose,
        (over, members, leader, tag): (Comm, Group, u32, i32),
        bridge: Option<Bridge>,
        mine: TableEntry,
    ) -> CommRequest {
        let leads = leader == self.core.me;
        self.enter(Agreement {
            purpose,
            over,
            members,
            leader,
            tag,
            bridge: bridge.filter(|_| leads),
            mine,
            step: if leads { AgreeStep::Gather } else { AgreeStep::Hear },
            requests: Vec::new(),
            preface: vec![0xEE; PREFACE_BYTES],
            table: Vec::new(),
            other_preface: Vec::new(),
            other_table: Vec::new(),
            failure: None,
        })
    }

    /// Starts to make a communicator of the same group or groups with contexts of its own
    /// (`MPI_Comm_idup`, MPI 4.1 §7.4.2). Collective: all members start these calls in the same order
    /// for each parent; any number may be in flight, for one parent and for several.
    ///
    /// # Errors
    /// The parent is not a communicator of this endpoint. A member that is lost is what
    /// [`test_comm`](Pml::test_comm) reports, as [`PmlError::PeerLost`] or [`PmlError::CommFailed`].
    pub fn start_dup(&mut self, parent: &Comm) -> Result<CommRequest, PmlError> {
        self.core.comms.check(parent)?;
        let mine = self.entry(parent.is_inter());
        Ok(self.begin(Purpose::Dup, parent, mine))
    }

    /// Starts to make a communicator for each color of those members that gave it, in the order of
    /// their keys, and of their ranks where keys are equal (`MPI_Comm_split`, MPI 4.1 §7.4.2). Without
    /// a color (`MPI_UNDEFINED`) a member gets none. Collective as [`start_dup`](Pml::start_dup).
    ///
    /// # Errors
    /// As [`start_dup`](Pml::start_dup).
    pub fn start_split(
        &mut self,
        parent: &Comm,
        color: Option<u32>,
        key: i32,
    ) -> Result<CommRequest, PmlError> {
        self.core.comms.check(parent)?;
        let mut mine = self.entry(parent.is_inter());
        mine.key = key.into();
        if let Some(color) = color {
            mine.color = color.into();
            mine.how = TableEntry::COLORED.into();
        }
        Ok(self.begin(Purpose::Split, parent, mine))
    }

    /// Starts to make a communicator for each set of members that can share memory
    /// (`MPI_Comm_split_type` with `MPI_COMM_TYPE_SHARED`). Collective as
    /// [`start_dup`](Pml::start_dup).
    ///
    /// # Errors
    /// As [`start_dup`](Pml::start_dup); the parent is an intercommunicator.
    pub fn start_split_shared(&mut self, parent: &Comm, key: i32) -> Result<CommRequest, PmlError> {
        self.core.comms.check(parent)?;
        if parent.is_inter() {
            return Err(PmlError::InterComm);
        }
        let me = self.core.me;
        // Sharing goes both ways and on, so the first process of each set is the same for all in it.
        let members: Vec<u32> = parent.group().processes().collect();
        let first = members
            .into_iter()
            .find(|&process| process == me || self.bml.mapped(Rank(process)).is_some());
        self.start_split(parent, first, key)
    }

    /// Starts to make a communicator of those members of `parent` that are in `group`
    /// (`MPI_Comm_create`, MPI 4.1 §7.4.2). Collective as [`start_dup`](Pml::start_dup), also for those
    /// who are in no group and get none; members may give groups that are disjoint.
    ///
    /// # Errors
    /// As [`start_dup`](Pml::start_dup); the group is not of the parent's members; of an
    /// intercommunicator, of this side's.
    pub fn start_create(&mut self, parent: &Comm, group: &Group) -> Result<CommRequest, PmlError> {
        self.check_group(parent, group)?;
        // A color for each group, and the ranks in it as keys: so those outside learn, too, if it was not made. Both sides
        // of an intercommunicator have one color.
        let rank = group.rank_of(self.core.me);
        let color = if parent.is_inter() { 0 } else { group.process(0).unwrap_or(0) };
        self.start_split(parent, rank.map(|_| color), rank.map_or(0, u32::cast_signed))
    }

    /// Starts to make a communicator of `group`, whose members alone call this
    /// (`MPI_Comm_create_group`, MPI 4.1 §7.4.2). The tag tells calls apart that are in flight at once
    /// in the same processes.
    ///
    /// # Errors
    /// The group is not of the parent's members, or this process is not in it; the parent is not a
    /// communicator of this endpoint, or is an intercommunicator; the tag is negative.
    pub fn start_create_group(
        &mut self,
        parent: &Comm,
        group: &Group,
        tag: i32,
    ) -> Result<CommRequest, PmlError> {
        self.check_group(parent, group)?;
        if parent.is_inter() {
            return Err(PmlError::InterComm);
        }
        let tag = user_tag(tag)?;
        let leader = group.process(0).filter(|_| group.rank_of(self.core.me).is_some());
        let leader = leader.ok_or(PmlError::NotAMember)?;
        let mine = self.entry(false);
        let talk = (parent.clone(), group.clone(), leader, tag);
        Ok(self.enter_with(Purpose::Group, talk, None, mine))
    }

    fn check_group(&self, parent: &Comm, group: &Group) -> Result<(), PmlError> {
        self.core.comms.check(parent)?;
        let members = parent.group();
        match group.processes().find(|&process| members.rank_of(process).is_none()) {
            Some(_) => Err(PmlError::NotAMember),
            None => Ok(()),
        }
    }

    /// Starts to make an intercommunicator of the members of `local` and of another communicator,
    /// whose leader is `remote.1` in `remote.0` (`MPI_Intercomm_create`, MPI 4.1 §7.6.2). `leader`
    /// leads this side; only there does `remote` matter. Collective over both communicators;
    /// `tag` tells apart what the leaders say in `remote.0` at once. The groups are disjoint.
    ///
    /// # Errors
    /// A rank that is not there; a communicator that is not of this endpoint; `local` is an
    /// intercommunicator; the tag is negative or 2²⁸ or more.
    pub fn start_intercomm(
        &mut self,
        local: &Comm,
        leader: u32,
        remote: (&Comm, u32),
        tag: i32,
    ) -> Result<CommRequest, PmlError> {
        self.core.comms.check(local)?;
        let tag = user_tag(tag)?;
        if local.is_inter() {
            return Err(PmlError::InterComm);
        }
        let first = local.process_of(leader, "the leader of this side of an intercommunicator")?;
        let mut bridge = None;
        if local.rank() == leader {
            let (comm, rank) = (remote.0.collective(), remote.1);
            self.core.comms.check(&comm)?;
            comm.process_of(rank, "the leader of the other side of an intercommunicator")?;
            bridge = Some(Bridge { comm, rank, tag });
        }
        let mine = self.entry(true);
        let talk = (local.clone(), local.group(), first, Pml::next_tag(local));
        Ok(self.enter_with(Purpose::Inter, talk, bridge, mine))
    }

    /// Starts to make one communicator of both sides of an intercommunicator
    /// (`MPI_Intercomm_merge`, MPI 4.1 §7.6.2). The side whose members say `high` comes last; where
    /// both say the same, the side that has the first process of the job comes first. Collective as
    /// [`start_dup`](Pml::start_dup).
    ///
    /// # Errors
    /// As [`start_dup`](Pml::start_dup); it is no intercommunicator.
    pub fn start_merge(&mut self, inter: &Comm, high: bool) -> Result<CommRequest, PmlError> {
        self.core.comms.check(inter)?;
        if !inter.is_inter() {
            return Err(PmlError::IntraComm);
        }
        let mut mine = self.entry(false);
        mine.how = if high { TableEntry::HIGH } else { 0 }.into();
        Ok(self.begin(Purpose::Merge, inter, mine))
    }

    /// What was made, once it is: `Some(None)` where this process is in no new communicator. Makes
    /// progress otherwise.
    ///
    /// # Errors
    /// A member is lost; a member has no identifier left; there is no such request. Either way it is
    /// over then.
    pub fn test_comm(&mut self, request: CommRequest) -> Result<Option<Option<Comm>>, PmlError> {
        if let Some(made) = self.collect_comm(request)? {
            return Ok(Some(made));
        }
        self.progress();
        self.collect_comm(request)
    }

    /// As [`test_comm`](Pml::test_comm), without making progress.
    ///
    /// # Errors
    /// As [`test_comm`](Pml::test_comm).
    pub fn collect_comm(&mut self, request: CommRequest) -> Result<Option<Option<Comm>>, PmlError> {
        match self.agreements.all.get(request.index) {
            Some(entered) if entered.number == request.number => match entered.state {
                AgreeState::Concluded(_) => {}
                _ => return Ok(None),
            },
            _ => return Err(PmlError::NoSuchRequest),
        }
        let _ = self.release(request.request);
        match self.agreements.all.remove(request.index).state {
            AgreeState::Concluded(result) => result.map(Some),
            _ => Err(PmlError::Bug { what: "an agreement that concluded and did not" }),
        }
    }

    /// Waits for what a `start_…` call makes; `None` where this process is in no new communicator.
    ///
    /// # Errors
    /// As [`test_comm`](Pml::test_comm).
    pub fn wait_comm(&mut self, request: CommRequest) -> Result<Option<Comm>, PmlError> {
        self.wait_for(|pml| pml.collect_comm(request))
    }

    /// [`start_dup`](Pml::start_dup), waited for (`MPI_Comm_dup`).
    ///
    /// # Errors
    /// As [`start_dup`](Pml::start_dup) and [`test_comm`](Pml::test_comm).
    pub fn dup(&mut self, parent: &Comm) -> Result<Comm, PmlError> {
        let request = self.start_dup(parent)?;
        let made = self.wait_comm(request)?;
        made.ok_or(PmlError::Bug { what: "a duplicate for nobody" })
    }

    /// Frees a communicator here (`MPI_Comm_free`): at once, or when the last operation on it has ended (a request,
    /// a claimed message, the making of a communicator). Then messages that nobody has received are dropped,
    /// as are those that come later; sends that wait for an answer end with
    /// [`PmlError::Unreceived`]. Not collective.
    ///
    /// # Errors
    /// It is predefined; it was freed before.
    pub fn free(&mut self, comm: &Comm) -> Result<(), PmlError> {
        self.core.comms.check_known(comm)?;
        if comm.same(&self.world()) || comm.same(&self.self_comm()) {
            return Err(PmlError::PredefinedComm);
        }
        if self.agreements.leaving.iter().any(|leaving| leaving.same(comm)) {
            return Err(PmlError::NoSuchComm);
        }
        if !self.forget(comm) {
            self.agreements.leaving.push(comm.clone());
            self.agreements.open += 1;
        }
        Ok(())
    }

    /// Revokes a communicator at all its members (`MPIX_Comm_revoke`). Not collective: any member may do it, at any time,
    /// and several may. Returns at once.
    ///
    /// As soon as a member learns of it, [`PmlError::Revoked`] is what its calls on the communicator give, and how its
    /// requests there end, except those whose message has been matched: these go on, and end as ever. A send that waits
    /// for its receive ends when the receiver has learned of it, or is lost. What goes on working are
    /// [`start_agree`](Pml::start_agree), [`start_shrink`](Pml::start_shrink) and [`free`](Pml::free).
    ///
    /// # Errors
    /// It is not a communicator of this endpoint, or was freed.
    pub fn revoke(&mut self, comm: &Comm) -> Result<(), PmlError> {
        self.core.comms.check_known(comm)?;
        let whole = self.core.comms.whole(comm);
        self.core.revoke(&mut self.bml, &whole);
        Ok(())
    }
}

/// The tag of an agreement that the user numbers: negative, which no other is.
fn user_tag(tag: i32) -> Result<i32, PmlError> {
    if tag < 0 { Err(PmlError::InvalidTag { tag }) } else { Ok(!tag) }
}
