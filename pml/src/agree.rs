//! Making and freeing communicators: members agree on an identifier that is free in all of them.
//!
//! ```text
//! members                      rank 0
//!   | identifiers in use ------> | the smallest that nobody uses
//!   | <---------- identifier --- |
//! ```
//!
//! The messages travel in the parent's collective context, so they never meet a user's. A member may
//! use the new communicator while others do not know it yet: its messages are held for them.

use crate::comm::{COMMS_MAX, Comm, smallest_free};
use crate::error::PmlError;
use crate::pml::Pml;
use crate::recv::{Source, TagSel};
use crate::request::RequestId;
use gapless_bml::LinkError;
use gapless_engine::Typed;
use gapless_mem::Region;
use slab::Slab;

/// Bytes of the list of identifiers in use: a bit each.
const USED_BYTES: usize = COMMS_MAX as usize / 8;
/// The answer when there is no identifier for all.
const NONE: u32 = u32::MAX;
/// The answer when rank 0 could not hear everybody.
const FAILED: u32 = u32::MAX - 1;
/// What stands where an answer will be: none that is ever given, nor the start of one.
const UNHEARD: u8 = 0xEE;
/// Tag of both messages.
const TAG: i32 = i32::MAX;

/// A `dup` under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DupId(usize);

/// Those under way. They own the buffers of their messages until these have ended.
#[derive(Debug, Default)]
pub(crate) struct Dups {
    under_way: Slab<Dup>,
}

#[derive(Debug)]
struct Dup {
    parent: Comm,
    step: Step,
    requests: Vec<RequestId>,
    /// Identifiers in use: mine, or one list per member.
    used: Vec<u8>,
    answer: Vec<u8>,
    failure: Option<PmlError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Rank 0: the others' lists are coming.
    Gather,
    /// Rank 0: the answer is on its way.
    Tell,
    /// The others: waiting for the answer.
    Hear,
}

impl Pml {
    /// A communicator with the same group and contexts of its own (`MPI_Comm_dup`, MPI 4.1 §7.4.2).
    /// All members call it, in the same order for each parent. Waits for the others.
    ///
    /// # Errors
    /// A member is lost; no identifier is free in all members.
    pub fn dup(&mut self, parent: &Comm) -> Result<Comm, PmlError> {
        let dup = self.start_dup(parent)?;
        self.wait_for(|pml| pml.core_test_dup(dup))
    }

    /// Starts a [`dup`](Pml::dup) without waiting (`MPI_Comm_idup`). A process has one under way at
    /// a time.
    ///
    /// # Errors
    /// As [`dup`](Pml::dup); another one is under way.
    pub fn start_dup(&mut self, parent: &Comm) -> Result<DupId, PmlError> {
        self.core.comms.check(parent)?;
        if !self.dups.under_way.is_empty() {
            return Err(PmlError::DupUnderWay);
        }
        let size = parent.size() as usize;
        let root = parent.rank() == 0;
        let mut used = vec![0; if root { USED_BYTES * size } else { USED_BYTES }];
        let mine = self.core.comms.used();
        used[..mine.len()].copy_from_slice(&mine);
        let mut dup = Dup {
            parent: parent.clone(),
            step: if root { Step::Gather } else { Step::Hear },
            requests: Vec::new(),
            used,
            answer: vec![UNHEARD; 4],
            failure: None,
        };
        let context = parent.collective();
        if root {
            let lists = dup.used.chunks_exact_mut(USED_BYTES).map(Region::of_mut);
            let lists: Vec<Region> = lists.collect();
            for (rank, list) in (0u32..).zip(lists).skip(1) {
                let buffer = Typed::contiguous(list);
                let from = Source::Rank(rank);
                // SAFETY: the list lives in `dup`, which is kept until this request has ended, and
                // is not looked at before.
                let request = unsafe { self.irecv(&context, &buffer, from, TagSel::Is(TAG)) };
                dup.note(request);
            }
        } else {
            let answer = Typed::contiguous(Region::of_mut(&mut dup.answer[..]));
            // SAFETY: the answer lives in `dup`, which is kept until this request has ended.
            let request =
                unsafe { self.irecv(&context, &answer, Source::Rank(0), TagSel::Is(TAG)) };
            dup.note(request);
            let list = Typed::contiguous(Region::of(&dup.used));
            // SAFETY: the list lives in `dup`, which is kept until this request has ended, and
            // nobody writes it.
            let request = unsafe { self.isend(&context, &list, 0, TAG) };
            dup.note(request);
        }
        self.core.agreeing = true;
        Ok(DupId(self.dups.under_way.insert(dup)))
    }

    /// The new communicator, once all members have agreed; makes progress otherwise.
    ///
    /// # Errors
    /// As [`dup`](Pml::dup). Either way it is over then.
    pub fn test_dup(&mut self, dup: DupId) -> Result<Option<Comm>, PmlError> {
        self.progress();
        self.core_test_dup(dup)
    }

    fn core_test_dup(&mut self, id: DupId) -> Result<Option<Comm>, PmlError> {
        let Some(dup) = self.dups.under_way.get_mut(id.0) else {
            return Err(PmlError::NoSuchRequest);
        };
        // Also in failure, nothing is given up before every request has ended.
        while let Some(&request) = dup.requests.last() {
            match self.core.requests.collect(request) {
                Ok(None) => return Ok(None),
                Ok(Some(_)) => {}
                Err(error) => dup.failure = Some(error),
            }
            dup.requests.pop();
        }
        match dup.step {
            Step::Gather => {
                let chosen = match dup.failure {
                    None => smallest_free(&dup.union()).unwrap_or(NONE),
                    Some(_) => FAILED,
                };
                self.tell(id, chosen);
                self.core_test_dup(id)
            }
            Step::Tell | Step::Hear => {
                let Dup { parent, answer, failure, .. } = self.dups.under_way.remove(id.0);
                self.core.agreeing = false;
                match failure {
                    Some(error) => Err(error),
                    None => self.conclude(&parent, &answer).map(Some),
                }
            }
        }
    }

    /// What rank 0 has answered: checked, because whatever it says would take the place of a
    /// communicator that is here already.
    fn conclude(&mut self, parent: &Comm, answer: &[u8]) -> Result<Comm, PmlError> {
        let chosen = answer.try_into().map_or(NONE, u32::from_le_bytes);
        match chosen {
            NONE => Err(PmlError::TooManyComms { size: parent.size(), max: COMMS_MAX }),
            FAILED => Err(PmlError::DupFailed),
            _ if chosen < COMMS_MAX && self.core.comms.is_free(chosen) => {
                let comm = parent.with_id(chosen);
                self.core.adopt(&comm);
                Ok(comm)
            }
            _ => {
                let what = format!("communicator identifier {chosen}, which is not free here");
                let rank = parent.process(0)?;
                self.core.give_up(&mut self.bml, rank, what.clone());
                Err(PmlError::PeerLost { rank, error: LinkError::Corrupt { what } })
            }
        }
    }

    /// Rank 0 tells the others.
    fn tell(&mut self, id: DupId, chosen: u32) {
        let Some(dup) = self.dups.under_way.get_mut(id.0) else { return };
        dup.step = Step::Tell;
        dup.answer.copy_from_slice(&chosen.to_le_bytes());
        let context = dup.parent.collective();
        let answer = Typed::contiguous(Region::of(&dup.answer[..]));
        for rank in 1..context.size() {
            // SAFETY: the answer lives in the list of those under way until this request has ended,
            // and nobody writes it any more.
            let request = unsafe { self.isend(&context, &answer, rank, TAG) };
            if let Some(dup) = self.dups.under_way.get_mut(id.0) {
                dup.note(request);
            }
        }
    }

    /// Frees a communicator here (`MPI_Comm_free`). Messages that nobody has received are dropped.
    /// The identifier is used again once it is free in all members of some later parent.
    ///
    /// # Errors
    /// It is predefined, or requests of it are under way.
    pub fn free(&mut self, comm: &Comm) -> Result<(), PmlError> {
        self.core.comms.check(comm)?;
        if comm.same(&self.world()) || comm.same(&self.self_comm()) {
            return Err(PmlError::PredefinedComm);
        }
        self.core.forget(comm)
    }
}

impl Dup {
    fn note(&mut self, request: Result<RequestId, PmlError>) {
        match request {
            Ok(request) => self.requests.push(request),
            Err(error) => self.failure = Some(error),
        }
    }

    /// What is in use anywhere.
    fn union(&self) -> Vec<u8> {
        let mut union = vec![0; USED_BYTES];
        for list in self.used.chunks_exact(USED_BYTES) {
            union.iter_mut().zip(list).for_each(|(all, one)| *all |= one);
        }
        union
    }
}
