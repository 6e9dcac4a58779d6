//! What a rank does to make communicators.

use super::{Made, Rank};
use crate::comms::CommPlan;
use crate::journal::Failure;
use crate::plan::Plan;
use gapless_pml::{Comm, CommRequest, PmlError};

/// Tags of communicators that say theirs are told apart by the communicator's number.
fn tag_of(comm: usize) -> i32 {
    i32::try_from(comm).expect("few communicators")
}

impl Rank {
    pub(super) fn make_comm(&mut self, plan: &Plan, comm: usize) -> Result<(), Failure> {
        self.tell(None, || format!("begins to make communicator {comm}: {:?}", plan.comms[comm]));
        let rank = self.rank;
        if !plan.is_in(comm, rank) {
            return Ok(());
        }
        match self.begin(plan, comm) {
            Some(Ok(request)) => self.comms[comm] = Made::Soon(request),
            // What it is made of was cut away.
            None => {}
            Some(Err(error)) => {
                let what = format!("communicator {comm} cannot be started: {error}");
                return Err(Failure::new(what, &[rank]));
            }
        }
        Ok(())
    }

    fn here(&self, comm: usize) -> Option<Comm> {
        match &self.comms[comm] {
            Made::Here(made) => Some(made.clone()),
            _ => None,
        }
    }

    fn begin(&mut self, plan: &Plan, comm: usize) -> Option<Result<CommRequest, PmlError>> {
        let rank = self.rank;
        let parent = self.here(plan.comms[comm].parent().unwrap_or(0))?;
        let world = self.here(0)?;
        Some(match plan.comms[comm] {
            CommPlan::Dup => self.pml().start_dup(&world),
            CommPlan::Split { colors, reversed } => {
                let key = if reversed { -i32::try_from(rank).expect("a small job") } else { 0 };
                self.pml().start_split(&world, Some(rank % colors), key)
            }
            CommPlan::Group { .. } => {
                let group = world.group().incl(&plan.members(comm, rank));
                group.and_then(|group| self.pml().start_create_group(&world, &group, tag_of(comm)))
            }
            CommPlan::Inter { .. } => {
                let leader = plan.members(comm, rank)[0];
                self.pml().start_intercomm(&parent, 0, (&world, leader), tag_of(comm))
            }
            CommPlan::Merge { .. } => self.pml().start_merge(&parent, rank % 2 == 1),
        })
    }
}
