//! Reads that are under way, and their ends.

use crate::core::Osc;
use crate::error::WindowError;
use crate::window::Driver;

/// A read that is under way. To be [waited for](Reading::wait), or dropped.
#[derive(Debug)]
pub struct Reading(pub(crate) ReadState);

#[derive(Debug)]
pub(crate) enum ReadState {
    Here(Vec<u8>),
    Asked(Question),
}

impl Reading {
    /// Whether what was read is there.
    #[must_use]
    pub fn is_there(&self) -> bool {
        match &self.0 {
            ReadState::Here(_) => true,
            ReadState::Asked(question) => question.is_answered(),
        }
    }

    /// Waits for what was read, after the window perhaps.
    ///
    /// # Errors
    /// The target is lost, or refuses.
    pub fn wait<D: Driver>(self, driver: &D) -> Result<Vec<u8>, D::Error> {
        match self.0 {
            ReadState::Here(found) => Ok(found),
            ReadState::Asked(question) => {
                wait_for_answer(driver, &question.osc, question.token)?;
                Ok(question.end()?)
            }
        }
    }
}

/// A question to a target, which is forgotten with this.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) rank: u32,
    pub(crate) token: u64,
    pub(crate) osc: Osc,
}

impl Question {
    pub(crate) fn is_answered(&self) -> bool {
        self.osc.core().questions.is_answered(self.token)
    }

    /// The bytes of the answer, which is there, if they were kept.
    pub(crate) fn end(self) -> Result<Vec<u8>, WindowError> {
        let answered = self.osc.core().answered(self.token);
        let asked = answered.unwrap_or(Err(WindowError::Freed { rank: self.rank }))?;
        match asked.fault {
            Some(why) => Err(self.osc.refused(self.rank, why)),
            None => Ok(asked.into_kept()),
        }
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        self.osc.core().questions.forget(self.token);
    }
}

/// Waits until a question is answered, or never will be.
pub(crate) fn wait_for_answer<D: Driver>(
    driver: &D,
    osc: &Osc,
    token: u64,
) -> Result<(), D::Error> {
    let whom = || osc.core().questions.asks(token);
    driver.until(false, whom, |_| osc.core().questions.is_answered(token).then_some(()))
}
