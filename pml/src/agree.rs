//! Making communicators: each member tells the others its number for the new one.
//!
//! ```text
//! members                 leader                        leader of the other side
//!   | entry -------------> | from each                   |  (intercommunicators only)
//!   |                      | preface, table ----------> |
//!   |                      | <---------- preface, table |
//!   | <-- preface, table - | to each                    |
//! ```
//!
//! Every member then comes to the same conclusion (`table.rs`). The messages travel in the collective context of the
//! parent communicator, each agreement with a tag of its own. So any number can be in flight, in any order, and all
//! make progress whenever this process does. A member may use the new communicator before others know it: they have
//! reserved their identifiers already, and keep its messages.
//!
//! If a member is lost before all have been heard, all others are told which.

mod calls;
mod survivors;
mod table;

pub use calls::CommRequest;
pub use survivors::{Survivors, SurvivorsRequest};

use crate::comm::Comm;
use crate::comm::group::Group;
use crate::error::PmlError;
use crate::matching::{Source, TagSel};
use crate::pml::Pml;
use crate::status::RequestId;
use gapless_bml::LinkError;
use gapless_engine::Typed;
use gapless_mem::Region;
use slab::Slab;
use std::mem::ManuallyDrop;
use survivors::Survey;
use table::{ENTRY_BYTES, NO_ID, PREFACE_BYTES, Preface, Purpose, TableEntry};
use zerocopy::IntoBytes;

/// Agreements in flight or concluded. They own the buffers of their messages until these have ended.
#[derive(Debug, Default)]
pub(crate) struct Agreements {
    all: Slab<Entered>,
    /// Those among survivors, also after they have ended; none while one is looked at.
    surveys: Slab<Option<Box<Survey>>>,
    /// How many are not concluded, with those communicators that are leaving.
    pub(crate) open: usize,
    /// Communicators that were freed while they were in use.
    leaving: Vec<Comm>,
    /// Calls to skip before it is checked again whether they are in use, which takes as long as there are requests.
    pause: usize,
    next: u64,
}

#[derive(Debug)]
struct Entered {
    number: u64,
    /// Ends when it is concluded.
    request: RequestId,
    state: AgreeState,
}

#[derive(Debug)]
enum AgreeState {
    Open(Box<Agreement>),
    Concluded(Result<Option<Comm>, PmlError>),
    /// Being looked at.
    Away,
}

#[derive(Debug)]
struct Agreement {
    purpose: Purpose,
    /// What those of this side talk in.
    over: Comm,
    /// Those of this side who take part, in the order of the table, and which of them leads.
    members: Group,
    leader: u32,
    tag: i32,
    /// Where this side's leader reaches the other's, if there is one: and what both say it with.
    bridge: Option<Bridge>,
    mine: TableEntry,
    step: AgreeStep,
    requests: Vec<RequestId>,
    preface: Vec<u8>,
    table: Vec<u8>,
    /// What the other side's leader tells.
    other_preface: Vec<u8>,
    other_table: Vec<u8>,
    failure: Option<PmlError>,
}

/// How one side's leader reaches the other's.
#[derive(Clone, Debug)]
struct Bridge {
    comm: Comm,
    rank: u32,
    tag: i32,
}

/// What an agreement waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AgreeStep {
    /// Leader: the members' entries.
    Gather,
    /// Leader: whether the other side is fine.
    Meet,
    /// Leader: the other side's table.
    Swap,
    /// Leader: that the members' messages have left.
    Tell,
    /// Member: whether all went well.
    Hear,
    /// Member: the table.
    Read,
}

impl Agreement {
    fn note(&mut self, request: Result<RequestId, PmlError>) {
        match request {
            Ok(request) => self.requests.push(request),
            Err(error) => self.failure = Some(error),
        }
    }

    /// Whether its messages travel in `comm`, or in this side of it.
    fn talks_in(&self, comm: &Comm) -> bool {
        let bridge = self.bridge.as_ref().is_some_and(|bridge| bridge.comm.same(comm));
        bridge || self.over.same(comm) || self.over.same(comm.side())
    }

    /// Who is to blame for a failure.
    fn culprit(&self) -> Option<u32> {
        match self.failure {
            Some(PmlError::PeerLost { rank, .. } | PmlError::CommFailed { rank }) => Some(rank),
            _ => None,
        }
    }

    fn tables(&self) -> Result<(&[TableEntry], &[TableEntry]), String> {
        Ok((table::entries(&self.table)?, table::entries(&self.other_table)?))
    }
}

impl Pml {
    /// Drives all agreements; gives how many steps were taken.
    #[inline]
    pub(crate) fn agree(&mut self) -> usize {
        let called = self.core.called && !self.agreements.surveys.is_empty();
        if self.agreements.open == 0 && !called { 0 } else { self.agree_all() }
    }

    #[cold]
    fn agree_all(&mut self) -> usize {
        let mut steps = self.survey_all();
        let keys: Vec<usize> = self.agreements.all.iter().map(|(key, _)| key).collect();
        for key in keys {
            let Some(entered) = self.agreements.all.get_mut(key) else { continue };
            let state = std::mem::replace(&mut entered.state, AgreeState::Away);
            let state = match state {
                AgreeState::Open(agreement) => {
                    // A panic leaks it: messages may still be written to its tables.
                    let mut agreement = ManuallyDrop::new(agreement);
                    let result = self.advance(&mut agreement, &mut steps);
                    let agreement = ManuallyDrop::into_inner(agreement);
                    match result {
                        None => AgreeState::Open(agreement),
                        Some(result) => {
                            self.agreements.open -= 1;
                            AgreeState::Concluded(self.settle(&agreement, result))
                        }
                    }
                }
                state => state,
            };
            if let Some(entered) = self.agreements.all.get_mut(key) {
                let (request, over) = (entered.request, matches!(state, AgreeState::Concluded(_)));
                entered.state = state;
                if over {
                    // Unless it was ended, and perhaps released, before.
                    let _ = self.end_general(request);
                }
            }
        }
        steps + self.let_go()
    }

    /// Frees what was freed while it was in use, and is not any more; gives how many communicators.
    fn let_go(&mut self) -> usize {
        if self.agreements.leaving.is_empty() {
            return 0;
        }
        if self.agreements.pause > 0 {
            self.agreements.pause -= 1;
            return 0;
        }
        let leaving = std::mem::take(&mut self.agreements.leaving);
        let before = leaving.len();
        let kept: Vec<Comm> = leaving.into_iter().filter(|comm| !self.forget(comm)).collect();
        let freed = before - kept.len();
        self.agreements.open -= freed;
        self.agreements.pause = self.core.requests.places() * kept.len();
        self.agreements.leaving = kept;
        freed
    }

    /// Forgets a communicator that nothing uses; otherwise answers `false`.
    fn forget(&mut self, comm: &Comm) -> bool {
        let made_of_it = self.agreements.all.iter().any(|(_, entered)| match &entered.state {
            AgreeState::Open(agreement) => agreement.talks_in(comm),
            _ => false,
        });
        let in_use = made_of_it || self.agreements.surveys_in(comm);
        let forgotten = !in_use && self.core.forget(&mut self.bml, comm);
        if forgotten {
            self.agreements.forget_surveys(comm);
            self.core.asks.forget(comm);
        }
        forgotten
    }

    /// Takes all steps that can be taken.
    fn advance(
        &mut self,
        agreement: &mut Agreement,
        steps: &mut usize,
    ) -> Option<Result<Option<Comm>, PmlError>> {
        loop {
            // Also after a failure, an agreement is kept until every request has ended.
            while let Some(&request) = agreement.requests.last() {
                match self.core.requests.collect(request) {
                    Ok(None) => return None,
                    Ok(Some(_)) => {}
                    // A member that dies while it receives the answer has already been heard.
                    Err(_) if agreement.step == AgreeStep::Tell => {}
                    Err(failure) => agreement.failure = Some(failure.error),
                }
                agreement.requests.pop();
            }
            *steps += 1;
            if let Some(result) = self.step(agreement) {
                return Some(result);
            }
        }
    }

    /// All that an agreement was waiting for has ended.
    fn step(&mut self, agreement: &mut Agreement) -> Option<Result<Option<Comm>, PmlError>> {
        match agreement.step {
            AgreeStep::Gather => {
                if agreement.failure.is_none() {
                    self.check_gathered(agreement);
                }
                if agreement.bridge.is_some() {
                    self.meet(agreement)
                } else {
                    self.tell(agreement)
                }
                None
            }
            AgreeStep::Meet => {
                self.swap(agreement);
                None
            }
            AgreeStep::Swap => {
                self.tell(agreement);
                None
            }
            AgreeStep::Hear => match agreement.failure.take() {
                Some(error) => Some(Err(error)),
                None => self.hear(agreement),
            },
            AgreeStep::Tell | AgreeStep::Read => Some(match agreement.failure.take() {
                Some(error) => Err(error),
                None => self.conclude(agreement),
            }),
        }
    }

    /// Starts an agreement.
    fn enter(&mut self, agreement: Agreement) -> CommRequest {
        // As in `agree_all`.
        let mut agreement = ManuallyDrop::new(Box::new(agreement));
        if agreement.leader == self.core.me {
            self.gather(&mut agreement);
        } else {
            self.contribute(&mut agreement);
        }
        let number = self.agreements.next;
        self.agreements.next += 1;
        self.agreements.open += 1;
        let (state, request) =
            (AgreeState::Open(ManuallyDrop::into_inner(agreement)), self.begin_general());
        let index = self.agreements.all.insert(Entered { number, request, state });
        CommRequest { index, number, request }
    }

    fn rank_in(over: &Comm, process: u32) -> u32 {
        over.rank_of(process).unwrap_or(u32::MAX)
    }

    /// Leader: hears the members.
    fn gather(&mut self, agreement: &mut Agreement) {
        let count = agreement.members.size() as usize;
        agreement.table = vec![0; count * ENTRY_BYTES];
        let mine = agreement.members.rank_of(agreement.leader).unwrap_or(0) as usize;
        agreement.table[mine * ENTRY_BYTES..][..ENTRY_BYTES]
            .copy_from_slice(agreement.mine.as_bytes());
        let context = agreement.over.collective();
        let places: Vec<Region> =
            agreement.table.chunks_exact_mut(ENTRY_BYTES).map(Region::of_mut).collect();
        let members: Vec<u32> = agreement.members.processes().collect();
        for (process, place) in members.into_iter().zip(places) {
            if process == agreement.leader {
                continue;
            }
            let from = Source::Rank(Pml::rank_in(&context, process));
            let place = Typed::contiguous(place);
            // SAFETY: the table lives in the agreement, which is kept until this request has ended,
            // and is not looked at before.
            let request = unsafe { self.irecv(&context, &place, from, TagSel::Is(agreement.tag)) };
            agreement.note(request);
        }
    }

    /// Member: tells its entry, and waits for the answer.
    fn contribute(&mut self, agreement: &mut Agreement) {
        let context = agreement.over.collective();
        let leader = Pml::rank_in(&context, agreement.leader);
        let (from, tag) = (Source::Rank(leader), TagSel::Is(agreement.tag));
        let answer = Typed::contiguous(Region::of_mut(&mut agreement.preface[..]));
        // SAFETY: the preface lives in the agreement, which is kept until this request has ended, and
        // is not looked at before.
        let request = unsafe { self.irecv(&context, &answer, from, tag) };
        agreement.note(request);
        agreement.table = agreement.mine.as_bytes().to_vec();
        let entry = Typed::contiguous(Region::of(&agreement.table[..]));
        // SAFETY: the entry lives in the agreement, which is kept until this request has ended, and
        // nobody writes it.
        let request = unsafe { self.isend(&context, &entry, leader, agreement.tag) };
        agreement.note(request);
    }

    /// Leader: whether everybody has spoken for itself.
    fn check_gathered(&mut self, agreement: &mut Agreement) {
        let entries = table::entries(&agreement.table).unwrap_or(&[]);
        let liar = agreement
            .members
            .processes()
            .zip(entries)
            .find(|(process, entry)| entry.process.get() != *process);
        if let Some((rank, _)) = liar {
            let what = "an entry that speaks for another process".to_owned();
            self.core.give_up(&mut self.bml, rank, what.clone());
            agreement.failure =
                Some(PmlError::PeerLost { rank, error: LinkError::Corrupt { what } });
        }
    }

    /// Leader: tells the other side's leader how it went here, and asks how it went there.
    fn meet(&mut self, agreement: &mut Agreement) {
        let Some(bridge) = agreement.bridge.clone() else { return };
        agreement.step = AgreeStep::Meet;
        let preface = match &agreement.failure {
            None => Preface::fine(agreement.table.len() / ENTRY_BYTES, 0),
            Some(_) => Preface::failed(agreement.culprit().unwrap_or(self.core.me)),
        };
        agreement.preface = preface.as_bytes().to_vec();
        agreement.other_preface = vec![0xEE; PREFACE_BYTES];
        let (from, tag) = (Source::Rank(bridge.rank), TagSel::Is(bridge.tag));
        let into = Typed::contiguous(Region::of_mut(&mut agreement.other_preface[..]));
        // SAFETY: as in `contribute`.
        let request = unsafe { self.irecv(&bridge.comm, &into, from, tag) };
        let heard = request.is_ok();
        agreement.note(request);
        let preface = Typed::contiguous(Region::of(&agreement.preface[..]));
        // SAFETY: as in `contribute`.
        let request = unsafe { self.isend(&bridge.comm, &preface, bridge.rank, bridge.tag) };
        if heard {
            agreement.note(request);
        } else if let Ok(request) = request {
            agreement.requests.push(request);
        }
    }

    /// Leader: swaps tables with the other side's leader, if both are fine.
    fn swap(&mut self, agreement: &mut Agreement) {
        agreement.step = AgreeStep::Swap;
        let Some(bridge) = agreement.bridge.clone() else { return };
        if agreement.failure.is_some() {
            return;
        }
        let theirs = match Preface::read(&agreement.other_preface, self.bml.size()) {
            Ok(Ok((theirs, _))) => theirs,
            Ok(Err(rank)) => {
                agreement.failure = Some(PmlError::CommFailed { rank });
                return;
            }
            Err(what) => {
                agreement.failure = Some(self.corrupt(&bridge.comm, bridge.rank, what));
                return;
            }
        };
        agreement.other_table = vec![0; theirs * ENTRY_BYTES];
        let (from, tag) = (Source::Rank(bridge.rank), TagSel::Is(bridge.tag));
        let into = Typed::contiguous(Region::of_mut(&mut agreement.other_table[..]));
        // SAFETY: as in `contribute`.
        let request = unsafe { self.irecv(&bridge.comm, &into, from, tag) };
        agreement.note(request);
        let table = Typed::contiguous(Region::of(&agreement.table[..]));
        // SAFETY: as in `contribute`.
        let request = unsafe { self.isend(&bridge.comm, &table, bridge.rank, bridge.tag) };
        agreement.note(request);
    }

    /// Leader: tells the members.
    fn tell(&mut self, agreement: &mut Agreement) {
        agreement.step = AgreeStep::Tell;
        let (local, remote) = (agreement.table.len(), agreement.other_table.len());
        let preface = match &agreement.failure {
            None => Preface::fine(local / ENTRY_BYTES, remote / ENTRY_BYTES),
            Some(_) => Preface::failed(agreement.culprit().unwrap_or(self.core.me)),
        };
        agreement.preface = preface.as_bytes().to_vec();
        let mut parts = vec![Region::of(&agreement.preface[..])];
        if agreement.failure.is_none() {
            parts.push(Region::of(&agreement.table[..]));
            if remote > 0 {
                parts.push(Region::of(&agreement.other_table[..]));
            }
        }
        let context = agreement.over.collective();
        let leader = agreement.leader;
        let members: Vec<u32> = agreement.members.processes().filter(|p| *p != leader).collect();
        for process in members {
            let to = Pml::rank_in(&context, process);
            for part in &parts {
                let part = Typed::contiguous(*part);
                // SAFETY: the parts live in the agreement, which is kept until these requests have
                // ended, and nobody writes them any more.
                let request = unsafe { self.isend(&context, &part, to, agreement.tag) };
                // Whoever is lost by now has been heard.
                agreement.requests.extend(request);
            }
        }
    }

    /// Member: reads how it went; `None` if a table follows.
    fn hear(&mut self, agreement: &mut Agreement) -> Option<Result<Option<Comm>, PmlError>> {
        let context = agreement.over.collective();
        let leader = Pml::rank_in(&context, agreement.leader);
        let (local, remote) = match Preface::read(&agreement.preface, self.bml.size()) {
            Ok(Ok(counts)) => counts,
            Ok(Err(rank)) => return Some(Err(PmlError::CommFailed { rank })),
            Err(what) => return Some(Err(self.corrupt(&context, leader, what))),
        };
        agreement.step = AgreeStep::Read;
        agreement.table = vec![0; local * ENTRY_BYTES];
        agreement.other_table = vec![0; remote * ENTRY_BYTES];
        let (from, tag) = (Source::Rank(leader), TagSel::Is(agreement.tag));
        let mut parts = vec![Region::of_mut(&mut agreement.table[..])];
        if remote > 0 {
            parts.push(Region::of_mut(&mut agreement.other_table[..]));
        }
        for part in parts {
            // SAFETY: the parts live in the agreement, which is kept until these requests have
            // ended, and are not looked at before.
            let request = unsafe { self.irecv(&context, &Typed::contiguous(part), from, tag) };
            agreement.note(request);
        }
        None
    }

    /// Makes the communicator that the table says.
    fn conclude(&mut self, agreement: &Agreement) -> Result<Option<Comm>, PmlError> {
        let Agreement { purpose, over, members, mine, .. } = agreement;
        let checked = agreement.tables().and_then(|(local, remote)| {
            table::check(local, remote, members, mine, self.bml.size())?;
            Ok((local, remote))
        });
        match checked {
            Ok(tables) => table::conclude(purpose, over, tables, mine),
            Err(what) => {
                let leader = Pml::rank_in(over, agreement.leader);
                Err(self.corrupt(over, leader, what))
            }
        }
    }

    /// What was reserved is used, or given back.
    fn settle(
        &mut self,
        agreement: &Agreement,
        result: Result<Option<Comm>, PmlError>,
    ) -> Result<Option<Comm>, PmlError> {
        let made = result.as_ref().ok().and_then(Option::as_ref);
        let mine = [agreement.mine.id.get(), agreement.mine.side.get()];
        let used: Vec<&Comm> = match made {
            Some(comm) if comm.is_inter() => vec![comm, comm.side()],
            Some(comm) => vec![comm],
            None => Vec::new(),
        };
        for comm in &used {
            self.core.adopt(&mut self.bml, comm);
        }
        for id in mine.into_iter().filter(|&id| id != NO_ID) {
            if !used.iter().any(|comm| comm.id() == id) {
                self.core.disown(&mut self.bml, id);
            }
        }
        result
    }

    /// A member that sends nonsense is lost: it would invalidate the communicator.
    fn corrupt(&mut self, comm: &Comm, rank: u32, what: String) -> PmlError {
        let Ok(process) = comm.process(rank) else {
            return PmlError::Bug { what: "an answer of nobody" };
        };
        if process == self.core.me {
            return PmlError::Bug { what: "a leader that contradicts itself" };
        }
        self.core.give_up(&mut self.bml, process, what.clone());
        PmlError::PeerLost { rank: process, error: LinkError::Corrupt { what } }
    }
}
