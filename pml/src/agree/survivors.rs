//! Agreement among those who are left, although members die while they agree (as `MPIX_Comm_shrink` and
//! `MPIX_Comm_agree`, which MPI's working group for fault tolerance has defined).
//!
//! ```text
//! members                       leader: the first member that is not lost
//!   | report ------------------->| from each that is not lost
//!   | <--------- outcome, table -| to each that has reported
//! ```
//!
//! The leader decides who is left: those whose reports have come and who are not lost. If it dies, the next member leads.
//! It calls all others, and hears everybody who is left anew. Those who know the outcome already give it, and then it is
//! what it was. Nobody else can know it: so all survivors come to the same. Therefore whoever has ended an agreement keeps
//! the outcome until the communicator is freed, and answers calls and reports.
//!
//! A member that has lost its link to the leader, though both live, is not among those left: it hears so from whoever
//! knows the outcome.

mod steps;

use super::Agreements;
use super::table::{NO_ID, TableEntry};
use crate::comm::Comm;
use crate::comm::group::Group;
use crate::error::PmlError;
use crate::pml::Pml;
use crate::status::RequestId;
use std::mem::ManuallyDrop;
use steps::{ENDED_BYTES, Word};

/// What the members of a communicator that are left have agreed on.
#[derive(Clone, Debug)]
pub struct Survivors {
    /// Those who are left, in the order of their ranks.
    pub group: Group,
    /// The flags that all of them have given: the bitwise "and".
    pub flags: u32,
    /// A communicator of the group, if one was asked for.
    pub comm: Option<Comm>,
}

/// An agreement among survivors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SurvivorsRequest {
    index: usize,
    number: u64,
}

/// One agreement of one member.
#[derive(Debug)]
pub(super) struct Survey {
    number: u64,
    /// What members talk in.
    over: Comm,
    tag: i32,
    mine: TableEntry,
    flags: u32,
    makes_comm: bool,
    stage: SurveyStage,
    /// The rank that leads, as far as this member knows.
    leader: u32,
    /// Leader: receives under way, by rank.
    waiting: Vec<(u32, RequestId)>,
    /// Room for words, one a rank. A member uses the first.
    words: Vec<u8>,
    /// Leader: who has reported, and with which flags.
    reported: Vec<(u32, u32, TableEntry)>,
    /// Leader: who knows the outcome, and how many entries it has.
    knowing: Vec<(u32, Word)>,
    /// Room for a table.
    table: Vec<u8>,
    outcome: Option<(u32, Vec<TableEntry>)>,
    result: Option<Result<Survivors, PmlError>>,
}

impl Survey {
    fn is_settled(&self) -> bool {
        matches!(self.stage, SurveyStage::Settled)
    }
}

#[derive(Clone, Copy, Debug)]
enum SurveyStage {
    /// It is to be found out who leads.
    Elect,
    /// Leader: the others report.
    Gather,
    /// Leader: the table of somebody who knows the outcome.
    Fetch {
        from: u32,
        flags: u32,
        id: RequestId,
    },
    /// Member: what the leader says.
    Hear {
        id: RequestId,
    },
    /// Member: its table.
    Read {
        flags: u32,
        id: RequestId,
    },
    /// The result is known; receives that nobody needs any more end.
    Drain,
    Settled,
}

impl Pml {
    /// Starts to make a communicator of those members of `parent` that are left (`MPIX_Comm_shrink`): all survivors
    /// get the same group, in the order of their ranks, whoever dies meanwhile. Members whose death was known to the
    /// one that led the agreement are not in it; who dies later may be.
    ///
    /// All members that are left start this and [`start_agree`](Pml::start_agree) in the same order; other calls may
    /// come in between, at each in another order. It works on a communicator that was [revoked](Pml::revoke). Do not free `parent` before all survivors have the result, which
    /// a collective on the new communicator shows.
    ///
    /// # Errors
    /// The parent is not a communicator of this endpoint, or is an intercommunicator.
    pub fn start_shrink(&mut self, parent: &Comm) -> Result<SurvivorsRequest, PmlError> {
        self.start_survey(parent, u32::MAX, true)
    }

    /// Starts to agree on flags among those members of `parent` that are left (`MPIX_Comm_agree`): all survivors get
    /// the bitwise "and" of what the members in the same group have given, whoever dies meanwhile. As
    /// [`start_shrink`](Pml::start_shrink) otherwise.
    ///
    /// # Errors
    /// As there.
    pub fn start_agree(&mut self, parent: &Comm, flags: u32) -> Result<SurvivorsRequest, PmlError> {
        self.start_survey(parent, flags, false)
    }

    fn start_survey(
        &mut self,
        parent: &Comm,
        flags: u32,
        makes_comm: bool,
    ) -> Result<SurvivorsRequest, PmlError> {
        self.core.comms.check_known(parent)?;
        if parent.is_inter() {
            return Err(PmlError::InterComm);
        }
        let tag = Pml::next_survey_tag(parent);
        let id = if makes_comm { self.core.comms.reserve().unwrap_or(NO_ID) } else { NO_ID };
        let mine = TableEntry::of(self.core.me, id);
        let number = self.agreements.next;
        self.agreements.next += 1;
        self.agreements.open += 1;
        let survey = Survey {
            number,
            over: parent.surviving(),
            tag,
            mine,
            flags,
            makes_comm,
            stage: SurveyStage::Elect,
            leader: parent.rank(),
            waiting: Vec::new(),
            words: vec![0; parent.size() as usize * ENDED_BYTES],
            reported: Vec::new(),
            knowing: Vec::new(),
            table: Vec::new(),
            outcome: None,
            result: None,
        };
        let index = self.agreements.surveys.insert(Some(Box::new(survey)));
        self.agree();
        Ok(SurvivorsRequest { index, number })
    }

    /// What was agreed on, once it is. Makes no progress.
    ///
    /// # Errors
    /// The other members have agreed without this one, because a link between them was lost; a member has no identifier
    /// left; there is no such request. Either way it is over then.
    pub fn collect_survivors(
        &mut self,
        request: SurvivorsRequest,
    ) -> Result<Option<Survivors>, PmlError> {
        let survey = self.agreements.surveys.get_mut(request.index).and_then(Option::as_mut);
        let survey = survey.filter(|survey| survey.number == request.number);
        let survey = survey.ok_or(PmlError::NoSuchRequest)?;
        match (survey.stage, survey.result.take()) {
            (SurveyStage::Settled, Some(result)) => result.map(Some),
            (SurveyStage::Settled, None) => Err(PmlError::NoSuchRequest),
            (_, result) => {
                survey.result = result;
                Ok(None)
            }
        }
    }

    /// Drives all agreements among survivors; gives how many have ended.
    pub(super) fn survey_all(&mut self) -> usize {
        let called = std::mem::take(&mut self.core.called);
        let mut ended = 0;
        let keys: Vec<usize> = self.agreements.surveys.iter().map(|(key, _)| key).collect();
        for key in keys {
            let Some(survey) = self.agreements.surveys.get_mut(key).and_then(Option::take) else {
                continue;
            };
            // A panic leaks it: messages may still be written to its tables.
            let mut survey = ManuallyDrop::new(survey);
            if survey.is_settled() {
                if called {
                    self.answer_calls(&survey);
                }
            } else if self.advance_survey(&mut survey) {
                ended += 1;
                self.agreements.open -= 1;
            }
            if let Some(place) = self.agreements.surveys.get_mut(key) {
                *place = Some(ManuallyDrop::into_inner(survey));
            }
        }
        ended
    }
}

impl Agreements {
    /// Whether members talk in a communicator about who is left.
    pub(super) fn surveys_in(&self, comm: &Comm) -> bool {
        let open = |survey: &Survey| !survey.is_settled();
        let mut all = self.surveys.iter().filter_map(|(_, survey)| survey.as_ref());
        all.any(|survey| survey.over.same(comm) && open(survey))
    }

    /// A communicator is gone: nobody asks for outcomes of its agreements any more, but for this process's own result.
    pub(super) fn forget_surveys(&mut self, comm: &Comm) {
        self.surveys.retain(|_, survey| {
            let Some(survey) = survey.as_mut().filter(|survey| survey.over.same(comm)) else {
                return true;
            };
            survey.outcome = None;
            survey.result.is_some()
        });
    }
}
