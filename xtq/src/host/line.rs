//! Puts that keep their order: those of one initiator to one queue of one target.
//!
//! The target takes number `n` only when it has taken, or finally refused, all before. So if it refuses one for now, it
//! refuses all that are behind it on the way. When all that were sent are answered, they are sent again from the
//! first that was not taken, with the same numbers: as in go-back-n, nothing is taken twice or out of turn.

use std::collections::VecDeque;

/// Target and queue.
pub(super) type LineKey = (u32, u8);

/// Puts on their way at a time, at most.
pub(super) const WINDOW_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// It was taken, or finally refused: its number is used up.
    Final,
    /// It is to be sent again, after so many nanoseconds.
    Again(u64),
}

#[derive(Debug)]
pub(super) struct Line {
    /// The number of the first put in `puts`.
    first: u64,
    puts: VecDeque<u64>,
    /// Of the first puts, those that were sent.
    answers: VecDeque<Option<Answer>>,
    window: usize,
    paused: bool,
}

impl Default for Line {
    fn default() -> Line {
        let (puts, answers) = (VecDeque::new(), VecDeque::new());
        Line { first: 0, puts, answers, window: WINDOW_MAX, paused: false }
    }
}

impl Line {
    pub(super) fn join(&mut self, put: u64) {
        self.puts.push_back(put);
    }

    /// The next put to send and its number, if one may be sent; it counts as sent.
    pub(super) fn next_to_send(&mut self) -> Option<(u64, u64)> {
        let sent = self.answers.len();
        let held = self.paused || self.answers.iter().any(|a| matches!(a, Some(Answer::Again(_))));
        if held || sent >= self.window {
            return None;
        }
        let put = *self.puts.get(sent)?;
        self.answers.push_back(None);
        Some((put, self.first.wrapping_add(sent as u64)))
    }

    /// The answer to a put that was sent.
    pub(super) fn answer(&mut self, put: u64, again_ns: Option<u64>) -> Result<(), String> {
        let at = self.puts.iter().position(|&one| one == put);
        let place = at.and_then(|at| self.answers.get_mut(at)).filter(|place| place.is_none());
        let Some(place) = place else { return Err(format!("put {put} was answered twice")) };
        *place = Some(again_ns.map_or(Answer::Final, Answer::Again));
        Ok(())
    }

    /// Takes out a put that was refused for now and is not sent again. Its number is not used up: the target refuses
    /// those behind it that are on their way, and the next that is sent has its number.
    pub(super) fn leave(&mut self, put: u64) {
        if let Some(at) = self.puts.iter().position(|&one| one == put) {
            self.puts.remove(at);
            self.answers.remove(at);
        }
    }

    /// Takes out the puts in front that are done with. If all that were sent are answered and some are to be sent again,
    /// the line pauses: gives for how long. An error says what is wrong with the answers.
    pub(super) fn settle(&mut self) -> Result<Option<u64>, String> {
        while self.answers.front() == Some(&Some(Answer::Final)) {
            self.answers.pop_front();
            self.puts.pop_front();
            self.first = self.first.wrapping_add(1);
            self.window = (2 * self.window).min(WINDOW_MAX);
        }
        let Some(Some(Answer::Again(wait_ns))) = self.answers.front().copied() else {
            return Ok(None);
        };
        if self.answers.iter().any(Option::is_none) {
            return Ok(None);
        }
        if self.answers.contains(&Some(Answer::Final)) {
            return Err("a put was taken before an earlier one of its line".to_owned());
        }
        self.answers.clear();
        self.window = 1;
        self.paused = true;
        Ok(Some(wait_ns))
    }

    /// The pause is over.
    pub(super) fn go_on(&mut self) {
        self.paused = false;
    }

    pub(super) fn into_puts(self) -> VecDeque<u64> {
        self.puts
    }
}
