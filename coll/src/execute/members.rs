//! Who takes part: the ranks of a schedule, and by which communicator messages reach each of them.
use gapless_pml::{Comm, Group};

use crate::between::Between;

/// The members of a communicator as schedules number them.
#[derive(Clone, Debug)]
pub(super) struct Members {
    /// Reaches the only group, or the other one.
    comm: Comm,
    /// Of an intercommunicator: what reaches this process's group, and how both groups are numbered.
    own: Option<(Comm, Between)>,
}

/// How schedules number the two groups of an intercommunicator: first the group that has the first process of the job.
/// `None` if it has one group only.
#[must_use]
pub fn between(comm: &Comm) -> Option<Between> {
    if !comm.is_inter() {
        return None;
    }
    let first_process = |group: &Group| group.processes().min();
    let (own, other) = (comm.group(), comm.peers());
    let (rank, size, others) = (comm.rank() as usize, own.size() as usize, other.size() as usize);
    Some(match first_process(&own) < first_process(other) {
        true => Between { rank, first: size, second: others },
        false => Between { rank: others + rank, first: others, second: size },
    })
}

impl Members {
    pub(super) fn new(comm: &Comm) -> Self {
        let own = between(comm).map(|between| (comm.side().collective(), between));
        Self { comm: comm.collective(), own }
    }

    /// The communicator, if it has one group.
    pub(super) fn only_group(&self) -> Option<&Comm> {
        self.own.is_none().then_some(&self.comm)
    }

    /// What messages to this process carry.
    pub(super) fn context(&self) -> u32 {
        self.comm.context()
    }

    /// Whether the communicator was revoked.
    pub(super) fn is_revoked(&self) -> bool {
        self.comm.is_revoked()
    }

    /// This process's rank.
    pub(super) fn rank(&self) -> u32 {
        self.own.as_ref().map_or(self.comm.rank(), |(_, between)| number(between.rank))
    }

    /// How many ranks there are.
    pub(super) fn size(&self) -> u32 {
        let both = |between: &Between| number(between.first.saturating_add(between.second));
        self.own.as_ref().map_or(self.comm.size(), |(_, between)| both(between))
    }

    /// The communicator by which messages go to a rank and come from it, and its rank there.
    pub(super) fn reach(&self, rank: u32) -> (&Comm, u32) {
        let Some((side, between)) = &self.own else { return (&self.comm, rank) };
        let (local, remote) = (between.local(), between.remote());
        if local.contains(&(rank as usize)) {
            (side, rank - number(local.start))
        } else {
            (&self.comm, rank.saturating_sub(number(remote.start)))
        }
    }

    /// The rank of a process of the job.
    pub(super) fn rank_of(&self, process: u32) -> Option<u32> {
        let Some((side, between)) = &self.own else { return self.comm.rank_of(process) };
        let local = side.rank_of(process).map(|rank| rank + number(between.local().start));
        local.or_else(|| Some(self.comm.rank_of(process)? + number(between.remote().start)))
    }
}

fn number(rank: usize) -> u32 {
    // Groups are no larger.
    u32::try_from(rank).unwrap_or(u32::MAX)
}
