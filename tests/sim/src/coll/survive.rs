//! What is left of a world agrees who is left, although ranks go on dying.
//!
//! Or each rank waits for a message of the next, which never comes, and one rank revokes the world. Who hears of that, or
//! of its neighbour's death, revokes it as well, and then agrees with the others. So all must hear of it, whoever dies.

use super::program::Program;
use super::world::{CollWorld, number};
use crate::journal::Failure;
use crate::rail::lock;
use crate::story::Story;
use gapless_coll::Sequencer;
use gapless_engine::Typed;
use gapless_mem::{Region, Space};
use gapless_pml::{PmlError, RequestId, Source, Survivors, SurvivorsRequest, TagSel};

/// What a rank does about it.
#[derive(Default)]
pub(crate) enum Part {
    #[default]
    Nothing,
    /// It starts at this time.
    Soon(u64),
    /// It waits for a message that nobody sends, and agrees after that.
    Waits(RequestId),
    Agreeing {
        flags: Option<SurvivorsRequest>,
        shrunk: SurvivorsRequest,
    },
}

/// The flags that a rank gives: all but one.
fn flags(rank: u32) -> u32 {
    !(1 << (rank % 32))
}

impl CollWorld {
    /// A world of so many ranks, each of `deaths` of which dies when it has sent so many more messages.
    pub(crate) fn of_survivors(seed: u64, size: u32, deaths: &[(u32, u64)]) -> CollWorld {
        let program = Program::without_collectives(seed, size, deaths);
        CollWorld::of(seed, program, Story::default())
    }

    /// As [`survive`](Self::survive), and this rank revokes the world first, while all others wait.
    pub(crate) fn survive_revoked(&mut self, agrees: bool, by: u32) -> Result<(), Failure> {
        self.revoker = Some(by);
        let size = number(self.procs.len());
        for (rank, proc) in (0..).zip(&mut self.procs).filter(|(rank, _)| *rank != by) {
            let Some(pml) = &mut proc.pml else { continue };
            let (world, nothing) =
                (pml.world(), Typed::contiguous(Region::new(Space::Host, 0, 0, 0)));
            let next = Source::Rank((rank + 1) % size);
            // SAFETY: no bytes.
            let waits = unsafe { pml.irecv(&world, &nothing, next, TagSel::Is(1)) };
            let waits =
                waits.map_err(|error| Failure::new(format!("waiting: {error}"), &[rank]))?;
            proc.survival = Part::Waits(waits);
        }
        self.survive(agrees)?;
        let alive = self.procs.iter().filter_map(|proc| proc.pml.as_ref());
        match alive.filter(|pml| !pml.world().is_revoked()).count() {
            0 => Ok(()),
            ignorant => Err(Failure::new(format!("{ignorant} have not heard of it"), &[])),
        }
    }

    /// All that are left shrink the world, and agree on flags too, if `agrees`; then they use what they have got.
    pub(crate) fn survive(&mut self, agrees: bool) -> Result<(), Failure> {
        let before = lock(&self.wire).dead.clone();
        for (rank, parcels) in self.program.late.clone() {
            lock(&self.wire).last_words.insert(rank, parcels);
        }
        (self.made, self.agrees) = (true, agrees);
        let now = self.now();
        for rank in 0..self.procs.len() {
            let at_ns = now + 1 + self.rng.below(3_000);
            if !matches!(self.procs[rank].survival, Part::Waits(_)) {
                self.procs[rank].survival = Part::Soon(at_ns);
            }
            self.schedule_turn(at_ns, rank);
        }
        self.run()?;
        let mut first: Option<Survivors> = None;
        let dead = lock(&self.wire).dead.clone();
        for rank in 0..self.procs.len() {
            let wrong = |what: String| Err(Failure::new(what, &[number(rank)]));
            let proc = &mut self.procs[rank];
            let Some(pml) = &mut proc.pml else { continue };
            let Part::Agreeing { flags: agreed, shrunk } = std::mem::take(&mut proc.survival)
            else {
                return wrong(format!("rank {rank} has not begun to agree who is left"));
            };
            let shrunk = match pml.collect_survivors(shrunk) {
                Ok(Some(survivors)) => survivors,
                other => return wrong(format!("rank {rank}: who is left? {other:?}")),
            };
            if let Some(agreed) = agreed {
                match pml.collect_survivors(agreed) {
                    Ok(Some(Survivors { group, flags: all, comm: None })) => {
                        let right = group.processes().fold(u32::MAX, |all, it| all & flags(it));
                        if all != right {
                            return wrong(format!("{all:#x} is agreed on, not {right:#x}"));
                        }
                        self.agreed.push(all);
                    }
                    other => return wrong(format!("rank {rank}: which flags? {other:?}")),
                }
            }
            let Some(comm) = shrunk.comm.clone() else {
                return wrong(format!("rank {rank} has no communicator"));
            };
            proc.comms.push((comm.clone(), Sequencer::new(&comm)));
            let first = first.get_or_insert_with(|| shrunk.clone());
            if !shrunk.group.processes().eq(first.group.processes()) {
                let groups = (&shrunk.group, &first.group);
                return wrong(format!("rank {rank} and another disagree who is left: {groups:?}"));
            }
        }
        let Some(Survivors { group, .. }) = first else { return Ok(()) };
        if self.agreed.windows(2).any(|two| two[0] != two[1]) {
            return Err(Failure::new("survivors disagree on flags", &[]));
        }
        let all = 0..number(self.procs.len());
        for rank in all.filter(|rank| !dead.contains(rank)) {
            if group.rank_of(rank).is_none() {
                return Err(Failure::new("a living rank is left out", &[rank]));
            }
        }
        if let Some(rank) = before.iter().find(|rank| group.rank_of(**rank).is_some()) {
            return Err(Failure::new("a rank that was dead before is among those left", &[*rank]));
        }
        self.play_again(group.processes().collect())
    }

    /// A rank begins to agree, once it is time.
    pub(super) fn begin_to_agree(&mut self, rank: usize) -> Result<(), Failure> {
        let now = self.now();
        let proc = &mut self.procs[rank];
        let Some(pml) = proc.pml.as_mut() else { return Ok(()) };
        let wrong = |error: PmlError| Failure::new(format!("agreeing: {error}"), &[number(rank)]);
        match proc.survival {
            Part::Soon(at_ns) if at_ns <= now => {}
            Part::Waits(id) => match pml.collect(id).map_err(PmlError::from) {
                Ok(None) => return Ok(()),
                Err(PmlError::Revoked | PmlError::PeerLost { .. }) => {}
                Ok(Some(_)) => return Err(wrong(PmlError::Bug { what: "nobody sends" })),
                Err(other) => return Err(wrong(other)),
            },
            _ => return Ok(()),
        }
        let world = pml.world();
        if self.revoker.is_some() {
            pml.revoke(&world).map_err(wrong)?;
        }
        let agreed = self.agrees.then(|| pml.start_agree(&world, flags(number(rank))));
        let flags = agreed.transpose().map_err(wrong)?;
        let shrunk = pml.start_shrink(&world).map_err(wrong)?;
        proc.survival = Part::Agreeing { flags, shrunk };
        Ok(())
    }
}
