//! Reads that are under way, and their ends.

use crate::core::Osc;
use crate::error::{Fault, WindowError};
use crate::window::{Driver, Window};

/// A read that is under way. To be given to [`Window::collect`], or dropped.
#[derive(Debug)]
pub struct Reading {
    pub(crate) rank: u32,
    pub(crate) state: ReadState,
    pub(crate) osc: Osc,
}

#[derive(Debug)]
pub(crate) enum ReadState {
    Here(Vec<u8>),
    Asked(u64),
}

impl Reading {
    /// The question's number; 0 if there is none.
    pub(crate) fn token(&self) -> u64 {
        match self.state {
            ReadState::Asked(token) => token,
            ReadState::Here(_) => 0,
        }
    }

    /// What is there already.
    pub(crate) fn take_here(&mut self) -> Vec<u8> {
        match &mut self.state {
            ReadState::Here(found) => std::mem::take(found),
            ReadState::Asked(_) => Vec::new(),
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let ReadState::Asked(token) = self.state {
            self.osc.core().questions.forget(token);
        }
    }
}

impl Window {
    /// Whether what was read is there.
    #[must_use]
    pub fn is_read(reading: &Reading) -> bool {
        match reading.state {
            ReadState::Asked(token) => reading.osc.core().questions.is_answered(token),
            ReadState::Here(_) => true,
        }
    }

    /// Waits for what was read.
    ///
    /// # Errors
    /// The target is lost, or refuses.
    pub fn collect<D: Driver>(&self, driver: &D, reading: Reading) -> Result<Vec<u8>, D::Error> {
        collect(driver, reading).map_err(|error| match error {
            Failed::Driver(error) => error,
            Failed::Loss(error) => error.into(),
            Failed::Fault(rank, why) => self.refused(rank, why).into(),
        })
    }
}

/// Why what was read does not come.
#[derive(Debug)]
pub enum Failed<E> {
    /// No progress is possible.
    Driver(E),
    /// The target is lost.
    Loss(WindowError),
    /// The target, by rank, has refused it.
    Fault(u32, Fault),
}

/// Waits for what was read, after the window perhaps.
///
/// # Errors
/// [`Failed`].
pub fn collect<D: Driver>(driver: &D, mut reading: Reading) -> Result<Vec<u8>, Failed<D::Error>> {
    let ReadState::Asked(token) = reading.state else { return Ok(reading.take_here()) };
    let (osc, rank) = (&reading.osc, reading.rank);
    let whom = || osc.core().questions.asks(token);
    // Whatever becomes of this, the question is forgotten with the reading.
    let answered = driver.until(false, whom, |_| osc.core().answered(token));
    match answered {
        Err(error) => Err(Failed::Driver(error)),
        Ok(Err(loss)) => Err(Failed::Loss(loss)),
        Ok(Ok(asked)) => match asked.fault {
            Some(fault) => Err(Failed::Fault(rank, fault)),
            None => Ok(asked.into_kept()),
        },
    }
}
