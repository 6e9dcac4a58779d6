//! What a GPU leader does with the buffers of all ranks on its GPU: no other process does anything there, so nothing
//! waits for a turn.
//!
//! ```text
//! one GPU:   map ─► combine into its own buffer ─► copy to the others
//! several:   map ─► combine into memory that they share ─► all have: combine what all have ─► copy to the others
//! ```
//!
//! On one GPU, too, what could overwrite what others give goes through memory of the GPU leader's
//! ([`is_led_through_memory`](crate::hyperq::Frame::is_led_through_memory)). Copies that need not wait for each other
//! are started together, because each one takes as long to start as it takes.
//!
//! It touches other ranks' buffers, and they wait until it does so no more: whoever has a `GpuLeader` says when its
//! [work](GpuLeader::settle) is over.

use std::collections::BTreeMap;

use gapless_engine::EngineError;
use gapless_mem::{Completion, Region};

use super::copies::{Works, reduce_all};
use super::space::{MappedLeader, RankBuffers};
use super::{CallPart, Tools};
use crate::execute::CollError;
use crate::hyperq::Group;
use crate::operation::Operation;

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GpuLeaderStage {
    Opening,
    Mapping,
    /// Of what its own GPU has.
    Combining,
    /// Other GPU leaders may read that.
    Combined,
    /// What all have, and to all.
    Spreading,
    Over,
}

/// A GPU leader's part of a call.
#[derive(Debug)]
pub(super) struct GpuLeader {
    stage: GpuLeaderStage,
    groups: Vec<Group>,
    /// Which group is its own.
    own: usize,
    /// By rank: buffers of its group.
    lent: BTreeMap<usize, RankBuffers>,
    works: Works,
}

/// A rank's block of a buffer.
fn block(of: Region, rank: usize, len: u64) -> Result<Region, EngineError> {
    Ok(of.sub(rank as u64 * len, len)?)
}

impl GpuLeader {
    /// `None`: this rank is none, or its buffers are not plain.
    pub(super) fn new(part: &CallPart, groups: Vec<Group>) -> Option<GpuLeader> {
        let own = groups.iter().position(|group| group.gpu_leader == part.me)?;
        let lent = BTreeMap::from([(part.me, RankBuffers::own(part)?)]);
        Some(GpuLeader {
            stage: GpuLeaderStage::Opening,
            groups,
            own,
            lent,
            works: Works::default(),
        })
    }

    pub(super) fn stage(&self) -> GpuLeaderStage {
        self.stage
    }

    pub(super) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The other GPU leaders.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + '_ {
        let own = self.own;
        let others = self.groups.iter().enumerate().filter(move |(at, _)| *at != own);
        others.map(|(_, group)| group.gpu_leader)
    }

    /// Whether data goes from buffer to buffer.
    fn goes_straight(&self, part: &CallPart) -> bool {
        self.groups.len() == 1 && !part.frame.is_led_through_memory()
    }

    /// Whether all that it has started is over, well or not.
    pub(super) fn settle(&mut self) -> bool {
        self.works.settle()
    }

    /// Waits for that.
    pub(super) fn drain(&mut self) {
        self.works.drain();
    }

    /// Goes on as far as it can; `join`: all GPU leaders have combined what their GPUs have.
    ///
    /// # Errors
    /// [`CollError::NotMapped`]: no buffer was written.
    pub(super) fn advance(
        &mut self,
        part: &CallPart,
        join: bool,
        tools: &mut Tools<'_>,
    ) -> Result<(), CollError> {
        let rank = u32::try_from(part.me).unwrap_or(u32::MAX);
        let engine = |error: EngineError| CollError::Engine { rank, error };
        loop {
            let before = self.stage;
            match before {
                GpuLeaderStage::Opening => {
                    self.open(part, tools)?;
                    self.stage = GpuLeaderStage::Mapping;
                }
                GpuLeaderStage::Mapping if self.map(part, tools)? => {
                    self.stage = match self.goes_straight(part) {
                        true => {
                            self.alone(part, tools).map_err(engine)?;
                            GpuLeaderStage::Spreading
                        }
                        false => {
                            self.combine(part, tools).map_err(engine)?;
                            GpuLeaderStage::Combining
                        }
                    };
                }
                GpuLeaderStage::Combining
                    if self.works.poll().map_err(|error| engine(error.into()))? =>
                {
                    self.stage = GpuLeaderStage::Combined;
                }
                GpuLeaderStage::Combined if join => {
                    self.join(part, tools).map_err(engine)?;
                    self.stage = GpuLeaderStage::Spreading;
                }
                GpuLeaderStage::Spreading
                    if self.works.poll().map_err(|error| engine(error.into()))? =>
                {
                    self.stage = GpuLeaderStage::Over;
                }
                _ => {}
            }
            if self.stage == before {
                return Ok(());
            }
        }
    }

    /// Makes memory that other GPU leaders read, and gives them its keys.
    fn open(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Result<(), CollError> {
        if self.goes_straight(part) {
            return Ok(());
        }
        let rank = u32::try_from(part.me).unwrap_or(u32::MAX);
        let not = |reason: &str| CollError::NotMapped { rank, reason: reason.to_owned() };
        let Tools { pml, control, members, lead, .. } = tools;
        let (ranks, bytes) = (members.ranks, (part.frame.bytes(), 0));
        let held = lead.ensure(&part.device, bytes, ranks, pml.bml_mut());
        let held = held.ok_or_else(|| not("there is no memory for it"))?;
        for other in self.others() {
            let given = held.give((part.me, other), &members.comm, control, pml.bml_mut());
            given.ok_or_else(|| not("there is no key for this rank's memory"))?;
            control.lend((part.me, other), part.number, []);
        }
        Ok(())
    }

    /// Maps what its group and the other GPU leaders have, as they lend it; whether it has all.
    fn map(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Result<bool, CollError> {
        let Tools { pml, control, members, mapped, .. } = tools;
        let not = |rank: usize| {
            move |reason| CollError::NotMapped {
                rank: u32::try_from(rank).unwrap_or(u32::MAX),
                reason,
            }
        };
        let mut all = true;
        for &rank in &self.groups[self.own].ranks {
            if self.lent.contains_key(&rank) {
                continue;
            }
            if !control.has_lent(rank, part.me, part.number) {
                all = false;
                continue;
            }
            let lent = RankBuffers::of(part, rank, (&members.comm, control), pml.bml_mut());
            self.lent.insert(rank, lent.map_err(not(rank))?);
        }
        for gpu_leader in self.others() {
            if !control.has_lent(gpu_leader, part.me, part.number) {
                return Ok(false);
            }
            let memory = (&part.device, (part.frame.bytes(), 0));
            let by = (&members.comm, *control);
            let found = MappedLeader::of(
                &mut mapped[gpu_leader],
                (gpu_leader, part.me),
                memory,
                by,
                pml.bml_mut(),
            );
            found.map_err(not(gpu_leader))?;
        }
        Ok(all)
    }

    /// Of its group, itself included.
    fn ranks(&self) -> impl Iterator<Item = usize> + '_ {
        self.groups[self.own].ranks.iter().copied()
    }

    fn gives(&self, rank: usize) -> Option<Region> {
        self.lent.get(&rank).and_then(|lent| lent.gives)
    }

    fn takes(&self, rank: usize) -> Option<Region> {
        self.lent.get(&rank).and_then(|lent| lent.takes)
    }

    /// Who of its group gives something, and what.
    fn given(&self) -> Vec<(usize, Region)> {
        self.ranks().filter_map(|rank| Some((rank, self.gives(rank)?))).collect()
    }

    /// Who of its group gets something, and where.
    fn taken(&self) -> Vec<(usize, Region)> {
        self.ranks().filter_map(|rank| Some((rank, self.takes(rank)?))).collect()
    }

    /// Combines what all of its group give.
    fn reduce_given(
        &mut self,
        part: &CallPart,
        tools: &Tools<'_>,
        into: Region,
    ) -> Result<Vec<Completion>, EngineError> {
        let all: Vec<Region> = self.given().into_iter().map(|(_, from)| from).collect();
        self.reduce(part, tools, (&all, into))
    }

    fn reduce(
        &mut self,
        part: &CallPart,
        tools: &Tools<'_>,
        (all, into): (&[Region], Region),
    ) -> Result<Vec<Completion>, EngineError> {
        let Some(combine) = &part.combine else { return Ok(Vec::new()) };
        let done = reduce_all(tools.reducer, combine, all, into)?;
        self.works.push(done.clone());
        Ok(vec![done])
    }

    /// Copies, each pair when all of `after` has ended: where to, and where from.
    fn copy(
        &mut self,
        tools: &Tools<'_>,
        pairs: &[(Region, Region)],
        after: &[Completion],
    ) -> Result<Vec<Completion>, EngineError> {
        let done = tools.mover.across_all(pairs, after)?;
        done.iter().for_each(|work| self.works.push(work.clone()));
        Ok(done)
    }

    /// Copies a result to all of its group that get it.
    fn spread(
        &mut self,
        part: &CallPart,
        tools: &Tools<'_>,
        from: Region,
        after: &[Completion],
    ) -> Result<(), EngineError> {
        let others = self.taken().into_iter().filter(|(rank, _)| *rank != part.me);
        let pairs: Vec<(Region, Region)> = others.map(|(_, into)| (into, from)).collect();
        self.copy(tools, &pairs, after).map(|_| ())
    }

    /// All of it, where all buffers are on its GPU, and none is overwritten too early.
    fn alone(&mut self, part: &CallPart, tools: &Tools<'_>) -> Result<(), EngineError> {
        let (gives, takes) = (self.gives(part.me), self.takes(part.me));
        match (part.frame.operation(), gives, takes) {
            (Operation::Bcast, Some(from), _) => self.spread(part, tools, from, &[]),
            (Operation::Gather | Operation::Allgather, _, Some(into)) => {
                self.gather(part, tools, &self.given(), into)
            }
            (Operation::Scatter, Some(from), _) => self.deal(part, tools, from),
            (Operation::Alltoall, ..) => self.exchange(part, tools, &self.given()),
            (_, _, Some(into)) => {
                let after = self.reduce_given(part, tools, into)?;
                self.spread(part, tools, into, &after)
            }
            _ => Ok(()),
        }
    }

    /// Gathers what all ranks give into its own buffer; all of its group get that in an all-gather.
    fn gather(
        &mut self,
        part: &CallPart,
        tools: &Tools<'_>,
        all: &[(usize, Region)],
        into: Region,
    ) -> Result<(), EngineError> {
        let len = part.frame.gather_bytes();
        let pair = |&(rank, from): &(usize, Region)| Ok((block(into, rank, len)?, from));
        let pairs: Vec<_> = all.iter().map(pair).collect::<Result<_, EngineError>>()?;
        let after = self.copy(tools, &pairs, &[])?;
        match part.frame.operation() {
            Operation::Gather => Ok(()),
            _ => self.spread(part, tools, into, &after),
        }
    }

    /// Gives each of its group its block of what the root gives.
    fn deal(
        &mut self,
        part: &CallPart,
        tools: &Tools<'_>,
        from: Region,
    ) -> Result<(), EngineError> {
        let len = part.frame.scatter_bytes();
        let taken = self.taken().into_iter();
        let pairs = taken.map(|(rank, into)| Ok((into, block(from, rank, len)?)));
        let pairs: Vec<_> = pairs.collect::<Result<_, EngineError>>()?;
        self.copy(tools, &pairs, &[]).map(|_| ())
    }

    /// Gives each of its group its block of what all ranks give.
    fn exchange(
        &mut self,
        part: &CallPart,
        tools: &Tools<'_>,
        all: &[(usize, Region)],
    ) -> Result<(), EngineError> {
        let len = part.frame.gather_bytes() / tools.members.ranks as u64;
        let taken = self.taken();
        let mut pairs = Vec::with_capacity(all.len() * taken.len());
        for (rank, into) in taken {
            for &(giver, from) in all {
                pairs.push((block(into, giver, len)?, block(from, rank, len)?));
            }
        }
        self.copy(tools, &pairs, &[]).map(|_| ())
    }

    /// What its GPU has, into memory that other GPU leaders read.
    fn combine(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Result<(), EngineError> {
        let Some(held) = tools.lead.held() else { return Ok(()) };
        let buffer = held.buffer();
        let len = part.frame.gather_bytes();
        if part.frame.reduces() {
            return self.reduce_given(part, tools, buffer.sub(0, len)?).map(|_| ());
        }
        let given = self.given().into_iter();
        let pairs = given.map(|(rank, from)| Ok((buffer.sub(part.frame.slot(rank), len)?, from)));
        let pairs: Vec<_> = pairs.collect::<Result<_, EngineError>>()?;
        self.copy(tools, &pairs, &[]).map(|_| ())
    }

    /// What all GPU leaders have, to all of its group.
    fn join(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Result<(), EngineError> {
        let Some(own) = tools.lead.held().map(|held| held.buffer()) else { return Ok(()) };
        let (me, len) = (part.me, part.frame.gather_bytes());
        let there = |group: &Group| match group.gpu_leader {
            gpu_leader if gpu_leader == me => Some(own),
            gpu_leader => tools.mapped[gpu_leader].as_ref().map(MappedLeader::buffer),
        };
        let all: Vec<(Region, Vec<usize>)> =
            self.groups.iter().filter_map(|it| Some((there(it)?, it.ranks.clone()))).collect();
        let (gives, takes) = (self.gives(me), self.takes(me));
        let by_leader = all.iter().find(|(_, ranks)| ranks.contains(&part.frame.leader));
        let slots = || {
            let each = all.iter().flat_map(|(from, ranks)| ranks.iter().map(move |it| (from, *it)));
            each.map(|(from, rank)| Ok((rank, from.sub(part.frame.slot(rank), len)?)))
                .collect::<Result<Vec<(usize, Region)>, EngineError>>()
        };
        match (part.frame.operation(), takes) {
            // Its root has it.
            (Operation::Bcast, None) => match gives {
                Some(from) => self.spread(part, tools, from, &[]),
                None => Ok(()),
            },
            (Operation::Bcast, Some(into)) => {
                let Some((from, _)) = by_leader else { return Ok(()) };
                let after = self.copy(tools, &[(into, from.sub(0, len)?)], &[])?;
                self.spread(part, tools, into, &after)
            }
            (Operation::Scatter, _) => match by_leader {
                Some((from, _)) => self.deal(part, tools, *from),
                None => Ok(()),
            },
            (Operation::Gather | Operation::Allgather, Some(into)) => {
                self.gather(part, tools, &slots()?, into)
            }
            (Operation::Alltoall, _) => self.exchange(part, tools, &slots()?),
            (Operation::ReduceScatterBlock, _) => {
                let len = part.frame.scatter_bytes();
                let mut pairs = Vec::new();
                for (rank, into) in self.taken() {
                    let of = |(from, _): &(Region, _)| block(*from, rank, len);
                    let blocks: Vec<Region> = all.iter().map(of).collect::<Result<_, _>>()?;
                    match blocks[..] {
                        [from] => pairs.push((into, from)),
                        _ => drop(self.reduce(part, tools, (&blocks, into))?),
                    }
                }
                self.copy(tools, &pairs, &[]).map(|_| ())
            }
            (_, Some(into)) => {
                let all: Vec<Region> =
                    all.iter().map(|(from, _)| from.sub(0, len)).collect::<Result<_, _>>()?;
                let after = self.reduce(part, tools, (&all, into))?;
                self.spread(part, tools, into, &after)
            }
            (_, None) => Ok(()),
        }
    }
}
