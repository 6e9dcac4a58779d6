//! Answers: what tasks leave for whoever put them. They come before the end of their put, in pieces if they are long.

use super::{Initiator, Outgoing, PutStage};
use crate::error::XtqError;
use crate::host::Xtq;
use crate::put::Ask;
use gapless_bml::Rank;

/// How a put has ended that [asked](crate::Put::asks) for an answer, and the name by which it did.
pub type PutAnswer = (u64, Result<Vec<u8>, XtqError>);

/// What a put has asked for, and has of it.
#[derive(Debug)]
pub(super) struct AnswerAsked {
    ask: Ask,
    /// `None`: it is longer than was asked for.
    answer: Option<Vec<u8>>,
}

impl AnswerAsked {
    pub(super) fn new(ask: Ask) -> AnswerAsked {
        AnswerAsked { ask, answer: Some(Vec::new()) }
    }

    fn add(&mut self, mut piece: Vec<u8>) {
        let Some(answer) = &mut self.answer else { return };
        match answer.len().saturating_add(piece.len()) > self.ask.bytes_max {
            true => self.answer = None,
            false if answer.is_empty() => *answer = piece,
            false => answer.append(&mut piece),
        }
    }

    /// The put at this target has ended.
    pub(super) fn end(self, target: Rank, result: &Result<(), XtqError>) -> PutAnswer {
        let Ask { name, bytes_max: max } = self.ask;
        let answer = self.answer.ok_or(XtqError::AnswerTooLong { target, max });
        (name, result.clone().and(answer))
    }
}

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
        piece: Vec<u8>,
    ) -> Result<(), String> {
        let put = self.running(from, id)?;
        if let Some(asked) = &mut put.ask {
            asked.add(piece);
        }
        Ok(())
    }

    /// Whether puts have ended that asked, and nobody was told.
    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }
}

impl Xtq {
    /// How puts that [ask](crate::Put::asks) for an answer have ended since the last call. Until this was called, this
    /// end is not [quiet](Xtq::is_quiet).
    #[must_use]
    pub fn take_answers(&self) -> Vec<PutAnswer> {
        self.inner.with(|state| std::mem::take(&mut state.initiator.answers))
    }
}
