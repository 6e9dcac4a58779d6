//! Arrays that change from one sharding to another: the messages of a [`Reshard`], out of one array and into another.

#[cfg(test)]
mod tests;

use super::buffer::{ArrayShape, PlanBuffer};
use super::{Plan, Planned, PlannedMessage, check_rank, check_served, check_tag};
use crate::communicator::Communicator;
use crate::error::Error;
use crate::view::typed_in;
use gapless_coll::reshard::{Move, Reshard};
use gapless_dtype::ElementType;
use gapless_mem::Region;
use gapless_pml::{Source, TagSel};
use std::fmt;
use std::sync::Arc;

/// One rank's part of a [`Reshard`]: messages out of its source array and into its target array, to be exchanged any
/// number of times. Made by [`Communicator::reshard_plan`].
///
/// A [`Plan`] of two arrays, of which one is only read, and the other only written.
pub struct ReshardPlan {
    /// Its shape is that of the target, which all of its receives lie in. Its sends lie in the source.
    plan: Plan,
    source: ArrayShape,
}

impl Communicator {
    /// Plans this rank's part of a reshard; the ranks are the communicator's. `source` and `target` are its local
    /// arrays at both ends, or others of their element types, lengths and memory: they are not borrowed. A rank that is
    /// not in a mesh has an array of no elements there. Local; all ranks of both meshes plan the same reshard with the
    /// same `tag`, and exchange it as often.
    ///
    /// Rows of a matrix become columns:
    ///
    /// ```
    /// use gapless::World;
    /// use gapless::coll::reshard::{ReshardEnd, Placement, Reshard, Sharding};
    /// use gapless::{Datatype, Primitive};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let world = World::init()?;
    /// let (comm, me) = (world.comm(), world.rank());
    /// let sharded = |axis| Sharding::new(&[comm.size()], 0..comm.size(), &[Placement::Block { axis }]);
    /// let double = Datatype::from(Primitive::Double);
    /// let reshard = Reshard::new(&[60, 80], &double, &sharded(0)?, &sharded(1)?)?;
    /// let array = |end| vec![f64::from(me); reshard.local_elements(end, me) as usize];
    /// let (rows, mut columns) = (array(ReshardEnd::Source), array(ReshardEnd::Target));
    /// let mut plan = comm.reshard_plan(&reshard, &rows, &columns, 0)?;
    /// plan.exchange(&rows, &mut columns)?;
    /// // They begin with those of rank 0.
    /// assert_eq!(columns[0], 0.0);
    /// world.finalize()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// An array is shorter than the rank's local array ([`Error::Buffer`]) or has other elements ([`Error::Fit`]); a
    /// layout cannot be made; a rank that the communicator does not have; a negative tag; no engine serves the memory;
    /// the world was finalized.
    pub fn reshard_plan<S: PlanBuffer + ?Sized, T: PlanBuffer + ?Sized>(
        &self,
        reshard: &Reshard,
        source: &S,
        target: &T,
        tag: i32,
    ) -> Result<ReshardPlan, Error> {
        self.plan_reshard(reshard, source.place(), target.place(), tag)
    }

    /// As [`reshard_plan`](Communicator::reshard_plan), for memory that the borrow checker does not know. See
    /// [`ReshardPlan::exchange_regions`].
    ///
    /// # Errors
    /// As there.
    pub fn reshard_plan_regions(
        &self,
        reshard: &Reshard,
        source: Region,
        target: Region,
        tag: i32,
    ) -> Result<ReshardPlan, Error> {
        let byte = ElementType::of::<u8>();
        self.plan_reshard(reshard, (source, byte), (target, byte), tag)
    }

    fn plan_reshard(
        &self,
        reshard: &Reshard,
        source: (Region, ElementType),
        target: (Region, ElementType),
        tag: i32,
    ) -> Result<ReshardPlan, Error> {
        check_tag(tag)?;
        check_served(self, source.0)?;
        check_served(self, target.0)?;
        let me = self.rank();
        let (mut sends, mut messages) = (Vec::new(), Vec::new());
        for it in reshard.for_rank(me) {
            let (from, to) = (it.from(), it.to());
            check_rank(self, from.max(to), "a rank of the reshard")?;
            if to == me {
                let typed = typed_in(target.0, target.1, 0, &it.recv_layout()?, 1)?;
                let (source, tag) = (Source::Rank(from), TagSel::Is(tag));
                messages.push(Planned { typed, what: PlannedMessage::Recv { source, tag } });
            }
            if from == me {
                sends.push(it);
            }
        }
        // Not all to rank 0 first.
        let next = sends.partition_point(|it| it.to() <= me);
        sends.rotate_left(next);
        let send = |it: Move| {
            let typed = typed_in(source.0, source.1, 0, &it.send_layout()?, 1)?;
            let what = PlannedMessage::Send { dest: it.to(), tag };
            Ok::<_, Error>(Planned { typed, what })
        };
        for it in sends {
            messages.push(send(it)?);
        }
        let [source, shape] = [source, target].map(|(region, it)| ArrayShape::new(region, it));
        // Nobody asks what is written: there is no work beside an exchange that could read it.
        let plan = Plan::of(self.clone(), shape, target.0, messages, Arc::default());
        Ok(ReshardPlan { plan, source })
    }
}

impl ReshardPlan {
    /// Sends what others get of `source`, receives `target`, and waits until all of that is done: if all ranks plan the
    /// same reshard, `target` has all its elements then. What lies behind them is untouched. The arrays are those that
    /// the plan was made for, or others of the same element types, lengths and spaces.
    ///
    /// # Errors
    /// As [`Plan::exchange`].
    pub fn exchange<S: PlanBuffer + ?Sized, T: PlanBuffer + ?Sized>(
        &mut self,
        source: &S,
        target: &mut T,
    ) -> Result<(), Error> {
        self.bind(source.place(), target.place_mut())?;
        // SAFETY: sends lie in `source` and receives in `target` (`bind`). Until this call has returned, the one is
        // borrowed, so that nobody writes it, and the other exclusively. No two receives have a byte in common: local
        // elements lie apart, and a reshard gives each of them once.
        unsafe { self.plan.run() }.map(drop)
    }

    /// As [`exchange`](ReshardPlan::exchange), and does other work between the start and the wait, as
    /// [`Plan::exchange_while`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn exchange_while<S: PlanBuffer + ?Sized, T: PlanBuffer + ?Sized, R>(
        &mut self,
        source: &S,
        target: &mut T,
        work: impl FnOnce() -> R,
    ) -> Result<R, Error> {
        self.bind(source.place(), target.place_mut())?;
        // SAFETY: as in `exchange`.
        unsafe { self.plan.around(work) }
    }

    /// As [`exchange`](ReshardPlan::exchange), in memory that the borrow checker does not know. The plan is one of
    /// [`Communicator::reshard_plan_regions`] (or of arrays of bytes), and the regions are as long as its own, in the
    /// same spaces.
    ///
    /// # Safety
    /// As [`Plan::exchange_region`], for both regions. They have no byte in common.
    ///
    /// # Errors
    /// As [`exchange`](ReshardPlan::exchange).
    pub unsafe fn exchange_regions(&mut self, source: Region, target: Region) -> Result<(), Error> {
        let byte = ElementType::of::<u8>();
        self.bind((source, byte), (target, byte))?;
        // SAFETY: sends lie in `source` and receives in `target` (`bind`), and the caller vouches for both; receives
        // are apart from each other as in `exchange`.
        unsafe { self.plan.run() }.map(drop)
    }

    /// How many messages there are, sent and received.
    #[must_use]
    pub fn len(&self) -> usize {
        self.plan.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.plan.is_empty()
    }

    /// Bytes that an exchange sends, those to this rank itself included.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.plan.sent_bytes()
    }

    /// Has all messages lie in this memory.
    fn bind(
        &mut self,
        source: (Region, ElementType),
        target: (Region, ElementType),
    ) -> Result<(), Error> {
        let Plan { shape, messages, complete, .. } = &mut self.plan;
        *complete = false;
        self.source.check(source.0, source.1)?;
        shape.check(target.0, target.1)?;
        for message in messages {
            message.typed.rebase(match message.what {
                PlannedMessage::Send { .. } => source.0,
                PlannedMessage::Recv { .. } => target.0,
            })?;
        }
        Ok(())
    }
}

impl fmt::Debug for ReshardPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReshardPlan").field(&self.plan).finish()
    }
}
