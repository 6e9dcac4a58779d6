//! Answers: what tasks leave for whoever put them. They come before the end of their put, in pieces if they are long.

use super::{Initiator, Outgoing, PutStage};
use crate::error::XtqError;
use crate::host::{Tried, Xtq};
use crate::put::Put;
use gapless_bml::Rank;

/// Bytes of an answer, at most.
pub const ANSWER_MAX: usize = (1 << 20) + 64;

/// How a put has ended that [asked](Xtq::ask) for an answer, and the name by which it did.
pub type PutAnswer = (u64, Result<Vec<u8>, XtqError>);

impl Initiator {
    /// The put, whose task runs at this rank and is to say when it has ended. An error says that it does not.
    pub(super) fn running(&mut self, at: Rank, id: u64) -> Result<&mut Outgoing, String> {
        let runs = |put: &&mut Outgoing| {
            put.target == at && put.stage == PutStage::Running && put.acknowledged
        };
        let put = self.puts.get_mut(&id).filter(runs);
        put.ok_or_else(|| format!("an answer or the end of put {id}, which does not run there"))
    }

    /// A piece of an answer has come; nobody may have asked.
    pub(in crate::host) fn piece(
        &mut self,
        from: Rank,
        id: u64,
        mut piece: Vec<u8>,
    ) -> Result<(), String> {
        let Some((_, answer)) = &mut self.running(from, id)?.ask else { return Ok(()) };
        if answer.len() + piece.len() > ANSWER_MAX {
            return Err(format!("an answer of more than {ANSWER_MAX} bytes"));
        }
        match answer.is_empty() {
            true => *answer = piece,
            false => answer.append(&mut piece),
        }
        Ok(())
    }

    /// Whether puts have ended that asked, and nobody was told.
    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }
}

impl Xtq {
    /// As [`try_put`](Xtq::try_put), and asks for the task's [answer](crate::Task::answer):
    /// [`take_answers`](Xtq::take_answers) gives how the put has ended, by this name. Implies
    /// [`acknowledged`](Put::acknowledged). Only tasks of functions leave answers; those of kernels end with an empty
    /// one.
    ///
    /// # Errors
    /// As [`put`](Xtq::put).
    pub fn ask(&self, put: Put, name: u64) -> Result<Tried, XtqError> {
        let mut put = put.acknowledged();
        put.order.ask = Some(name);
        self.try_put(put)
    }

    /// How puts that [ask](Xtq::ask) for an answer have ended since the last call. Until this was called, this end is
    /// not [quiet](Xtq::is_quiet).
    #[must_use]
    pub fn take_answers(&self) -> Vec<PutAnswer> {
        self.inner.with(|state| std::mem::take(&mut state.initiator.answers))
    }
}
