//! The steps of an agreement among survivors, and what its members tell each other.

use super::super::table::{ENTRY_BYTES, NO_ID, TableEntry};
use super::{Survey, SurveyStage, Survivors};
use crate::comm::group::Group;
use crate::comm::{Comm, IDS_END};
use crate::error::PmlError;
use crate::matching::{Source, TagSel};
use crate::pml::Pml;
use crate::status::RequestId;
use gapless_engine::Typed;
use gapless_mem::Region;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What members tell each other.
///
/// ```text
/// 0      4       8       12      36
/// | kind | flags | count | entry |
///   u32    u32     u32
/// ```
///
/// A report of a member that does not know the outcome ends there. Other words have four bytes more, and `count` entries
/// follow as a message of their own. A call is one byte. So the lengths of all these messages differ, and are enough for
/// whoever has ended the agreement.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Word {
    kind: U32,
    flags: U32,
    count: U32,
    entry: TableEntry,
}

const WORD_BYTES: usize = 36;
const _: () = assert!(size_of::<Word>() == WORD_BYTES);
/// Of a word whose sender has ended the agreement.
pub(super) const ENDED_BYTES: usize = WORD_BYTES + 4;
/// Of a leader that follows others, to all: whoever knows the outcome reports.
const CALL_BYTES: usize = 1;
const _: () = assert!(!WORD_BYTES.is_multiple_of(ENTRY_BYTES));
const _: () = assert!(!ENDED_BYTES.is_multiple_of(ENTRY_BYTES));

/// To the leader: this is what I am, and the outcome if I know it.
const REPORT: u32 = 1;
/// To a member: the outcome.
const OUTCOME: u32 = 2;
/// The agreement has ended here without an outcome.
const GONE: u32 = 3;

impl Pml {
    /// Takes all steps that can be taken; whether it is over.
    pub(super) fn advance_survey(&mut self, survey: &mut Survey) -> bool {
        loop {
            let next = match survey.stage {
                SurveyStage::Elect => Some(self.elect(survey)),
                SurveyStage::Gather => self.gather_reports(survey),
                SurveyStage::Fetch { from, flags, id } => match self.core.requests.collect(id) {
                    Ok(None) => None,
                    Ok(Some(_)) => Some(self.adopt_table(survey, from, flags)),
                    // It died; somebody else may know.
                    Err(_) => Some(SurveyStage::Gather),
                },
                SurveyStage::Hear { id } => match self.core.requests.collect(id) {
                    Ok(None) => None,
                    Ok(Some(status)) => Some(self.hear_word(survey, status.bytes)),
                    Err(failure) => Some(self.after(survey, failure.error)),
                },
                SurveyStage::Read { flags, id } => match self.core.requests.collect(id) {
                    Ok(None) => None,
                    Ok(Some(_)) => Some(self.adopt_table(survey, survey.leader, flags)),
                    Err(failure) => Some(self.after(survey, failure.error)),
                },
                SurveyStage::Drain => self.drain_reports(survey),
                SurveyStage::Settled => return true,
            };
            match next {
                None => return false,
                Some(stage) => survey.stage = stage,
            }
        }
    }

    fn is_left(&self, over: &Comm, rank: u32) -> bool {
        over.process(rank).is_ok_and(|process| self.core.links[process].lost.is_none())
    }

    /// The first member that is not lost.
    fn first_left(&self, over: &Comm) -> u32 {
        (0..over.rank()).find(|rank| self.is_left(over, *rank)).unwrap_or(over.rank())
    }

    /// Turns to whoever leads.
    fn elect(&mut self, survey: &mut Survey) -> SurveyStage {
        let own = survey.over.rank();
        survey.leader = self.first_left(&survey.over);
        if survey.leader == own {
            if own > 0 {
                self.call(survey);
            }
            for rank in (0..survey.over.size()).filter(|rank| *rank != own) {
                if self.is_left(&survey.over, rank)
                    && let Ok(id) = self.hear_from(survey, rank, rank as usize)
                {
                    survey.waiting.push((rank, id));
                }
            }
            return SurveyStage::Gather;
        }
        let leader = survey.leader;
        match self.hear_from(survey, leader, 0) {
            Ok(id) => {
                self.say(survey, leader, REPORT);
                SurveyStage::Hear { id }
            }
            Err(error) => self.after(survey, error),
        }
    }

    /// Receives a word from a rank into this place.
    fn hear_from(
        &mut self,
        survey: &mut Survey,
        rank: u32,
        place: usize,
    ) -> Result<RequestId, PmlError> {
        let room = &mut survey.words[place * ENDED_BYTES..][..ENDED_BYTES];
        let room = Typed::contiguous(Region::of_mut(room));
        let (source, tag) = (Source::Rank(rank), TagSel::Is(survey.tag));
        // SAFETY: the words live in the survey, which is kept until this request has ended, and this place is not looked
        // at before.
        unsafe { self.irecv(&survey.over, &room, source, tag) }
    }

    /// Receives a table of so many entries from a rank.
    fn table_from(
        &mut self,
        survey: &mut Survey,
        rank: u32,
        count: usize,
    ) -> Result<RequestId, PmlError> {
        survey.table = vec![0; count * ENTRY_BYTES];
        let room = Typed::contiguous(Region::of_mut(&mut survey.table[..]));
        let (source, tag) = (Source::Rank(rank), TagSel::Is(survey.tag));
        // SAFETY: as in `hear_from`; nothing else is received into the table.
        unsafe { self.irecv(&survey.over, &room, source, tag) }
    }

    /// Tells a rank something; to whoever is lost, nothing.
    fn say(&mut self, survey: &Survey, to: u32, kind: u32) {
        let ended = survey.result.is_some() || survey.outcome.is_some() || survey.is_settled();
        let (kind, flags, table) = match &survey.outcome {
            Some((flags, table)) => (kind, *flags, &table[..]),
            None if ended => (GONE, 0, &[][..]),
            None => (kind, survey.flags, &[][..]),
        };
        let count = u32::try_from(table.len()).unwrap_or(u32::MAX);
        let entry = survey.mine;
        let word = Word { kind: kind.into(), flags: flags.into(), count: count.into(), entry };
        let mut bytes = word.as_bytes().to_vec();
        if ended {
            bytes.resize(ENDED_BYTES, 0);
        }
        self.send_part(survey, to, &bytes);
        if !table.is_empty() {
            self.send_part(survey, to, table.as_bytes());
        }
    }

    fn send_part(&mut self, survey: &Survey, to: u32, part: &[u8]) {
        let part = Typed::contiguous(Region::of(part));
        // SAFETY: the part is borrowed until this returns.
        let sent = unsafe { self.isend_copy(&survey.over, &part, to, survey.tag) };
        if let Ok(id) = sent {
            // Its fate does not matter, and it is there to be released.
            let _ = self.core.requests.release(id);
        }
    }

    /// Leader that follows others: whoever knows the outcome is to report.
    fn call(&mut self, survey: &Survey) {
        for rank in survey.over.rank() + 1..survey.over.size() {
            if self.is_left(&survey.over, rank) {
                self.send_part(survey, rank, &[0; CALL_BYTES]);
            }
        }
    }

    /// After the end: answers those who do not know the outcome, and drops what is not for anybody any more.
    pub(super) fn answer_calls(&mut self, survey: &Survey) {
        let tag = TagSel::Is(survey.tag);
        while let Ok(Some((message, status))) = self.claim(&survey.over, Source::Any, tag) {
            self.drop_message(&message);
            if status.bytes == CALL_BYTES as u64 {
                self.say(survey, status.source, REPORT);
            } else if status.bytes == WORD_BYTES as u64 {
                self.say(survey, status.source, OUTCOME);
            }
        }
    }

    /// What comes after an error of a request: another leader, if this one is lost.
    fn after(&mut self, survey: &mut Survey, error: PmlError) -> SurveyStage {
        if !self.is_left(&survey.over, survey.leader) {
            return SurveyStage::Elect;
        }
        self.end(survey, Err(error))
    }

    /// A word of a rank, unless it is nonsense, and then the rank is lost.
    fn word(&mut self, survey: &Survey, rank: u32, place: usize) -> Option<Word> {
        let word =
            Word::read_from_bytes(&survey.words[place * ENDED_BYTES..][..WORD_BYTES]).ok()?;
        let process = survey.over.process(rank).ok()?;
        let id = word.entry.id.get();
        let sound = (REPORT..=GONE).contains(&word.kind.get())
            && word.entry.process.get() == process
            && word.count.get() <= survey.over.size()
            && (id < IDS_END || id == NO_ID);
        if !sound {
            self.distrust(process);
        }
        sound.then_some(word)
    }

    fn distrust(&mut self, process: u32) {
        let what = "a word of an agreement that makes no sense".to_owned();
        self.core.give_up(&mut self.bml, process, what);
    }

    /// Leader: hears the others, until all that are left have reported, or one knows the outcome.
    fn gather_reports(&mut self, survey: &mut Survey) -> Option<SurveyStage> {
        for (rank, id) in std::mem::take(&mut survey.waiting) {
            match self.core.requests.collect(id) {
                Ok(None) => survey.waiting.push((rank, id)),
                // Another leader, which has lost this one.
                Ok(Some(status)) if status.bytes == CALL_BYTES as u64 => {
                    let again = self.hear_from(survey, rank, rank as usize);
                    survey.waiting.extend(again.ok().map(|id| (rank, id)));
                }
                Ok(Some(_)) => match self.word(survey, rank, rank as usize) {
                    Some(word) if word.kind.get() == GONE => {}
                    Some(word) if word.count.get() > 0 => survey.knowing.push((rank, word)),
                    Some(word) => survey.reported.push((rank, word.flags.get(), word.entry)),
                    None => {}
                },
                // It is dead.
                Err(_) => {}
            }
        }
        while let Some((rank, word)) = survey.knowing.pop() {
            if let Ok(id) = self.table_from(survey, rank, word.count.get() as usize) {
                return Some(SurveyStage::Fetch { from: rank, flags: word.flags.get(), id });
            }
        }
        if !survey.waiting.is_empty() {
            return None;
        }
        let own = survey.over.rank();
        let mut members = std::mem::take(&mut survey.reported);
        members.retain(|(rank, ..)| self.is_left(&survey.over, *rank));
        members.push((own, survey.flags, survey.mine));
        members.sort_unstable_by_key(|(rank, ..)| *rank);
        let flags = members.iter().fold(u32::MAX, |all, (_, flags, _)| all & flags);
        let table = members.into_iter().map(|(.., entry)| entry).collect();
        Some(self.decided(survey, flags, table))
    }

    /// Member: what the leader has said.
    fn hear_word(&mut self, survey: &mut Survey, bytes: u64) -> SurveyStage {
        let leader = survey.leader;
        if bytes == CALL_BYTES as u64 {
            // It has been told already.
            return match self.hear_from(survey, leader, 0) {
                Ok(id) => SurveyStage::Hear { id },
                Err(error) => self.after(survey, error),
            };
        }
        match self.word(survey, leader, 0) {
            Some(word) if word.kind.get() == OUTCOME => {
                match self.table_from(survey, leader, word.count.get() as usize) {
                    Ok(id) => SurveyStage::Read { flags: word.flags.get(), id },
                    Err(error) => self.after(survey, error),
                }
            }
            Some(word) if word.kind.get() == GONE => {
                self.end(survey, Err(PmlError::CommFailed { rank: self.core.me }))
            }
            // A report, or nonsense.
            _ => self.deceived(survey, leader),
        }
    }

    /// A rank has broken the protocol: it is lost, and whoever is left goes on.
    fn deceived(&mut self, survey: &Survey, by: u32) -> SurveyStage {
        if let Ok(process) = survey.over.process(by) {
            self.distrust(process);
        }
        if survey.leader == by { SurveyStage::Elect } else { SurveyStage::Gather }
    }

    /// A table has come from somebody who knows the outcome.
    fn adopt_table(&mut self, survey: &mut Survey, from: u32, flags: u32) -> SurveyStage {
        let entries = <[TableEntry]>::ref_from_bytes(&survey.table[..]).unwrap_or(&[]).to_vec();
        let ranks = entries.iter().map(|entry| survey.over.rank_of(entry.process.get()));
        let ranks: Option<Vec<u32>> = ranks.collect();
        let ascending = ranks.is_some_and(|ranks| ranks.is_sorted_by(|one, other| one < other));
        let sound = entries.iter().all(|entry| entry.id.get() < IDS_END || entry.id.get() == NO_ID);
        if ascending && sound {
            return self.decided(survey, flags, entries);
        }
        self.deceived(survey, from)
    }

    /// The outcome is known here.
    fn decided(&mut self, survey: &mut Survey, flags: u32, table: Vec<TableEntry>) -> SurveyStage {
        let group = Group::listed(table.iter().map(|entry| entry.process.get()));
        let ids: Vec<u32> = table.iter().map(|entry| entry.id.get()).collect();
        // Whoever tells of an entry that this process has not given may have been told so itself.
        let own = group.rank_of(self.core.me).filter(|_| table.contains(&survey.mine));
        survey.outcome = Some((flags, table));
        if survey.leader == survey.over.rank() {
            self.spread_outcome(survey);
        }
        let result = match own {
            None => Err(PmlError::CommFailed { rank: self.core.me }),
            Some(_) if !survey.makes_comm => Ok(Survivors { group, flags, comm: None }),
            Some(_) if ids.contains(&NO_ID) => {
                Err(PmlError::TooManyComms { max: crate::comm::COMMS_MAX })
            }
            Some(rank) => {
                let comm = Comm::intra(survey.mine.id.get(), rank, group.clone(), ids);
                self.core.adopt(&mut self.bml, &comm);
                Ok(Survivors { group, flags, comm: Some(comm) })
            }
        };
        self.end(survey, result)
    }

    /// Leader: tells everybody who is left.
    fn spread_outcome(&mut self, survey: &Survey) {
        let own = survey.over.rank();
        let table = survey.outcome.as_ref().map_or(&[][..], |(_, table)| table);
        let ranks = table.iter().filter_map(|entry| survey.over.rank_of(entry.process.get()));
        let ranks: Vec<u32> = ranks.filter(|rank| *rank != own).collect();
        for rank in ranks {
            if self.is_left(&survey.over, rank) {
                self.say(survey, rank, OUTCOME);
            }
        }
    }

    fn end(&mut self, survey: &mut Survey, result: Result<Survivors, PmlError>) -> SurveyStage {
        let id = survey.mine.id.get();
        if result.as_ref().map_or(true, |made| made.comm.is_none()) && id != NO_ID {
            self.core.disown(&mut self.bml, id);
        }
        survey.result = Some(result);
        SurveyStage::Drain
    }

    /// Receives that nobody needs any more end.
    fn drain_reports(&mut self, survey: &mut Survey) -> Option<SurveyStage> {
        for (rank, id) in std::mem::take(&mut survey.waiting) {
            // If it is too late, it ends by itself.
            let _ = self.core.cancel(id);
            if let Ok(None) = self.core.requests.collect(id) {
                survey.waiting.push((rank, id));
            }
        }
        if !survey.waiting.is_empty() {
            return None;
        }
        self.answer_calls(survey);
        Some(SurveyStage::Settled)
    }
}
