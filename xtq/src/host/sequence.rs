//! Puts that keep their order: those of one initiator to one queue of one target.
//!
//! The target takes number `n` only when it has taken, or finally refused, all before. So if it refuses one for now, it
//! refuses all that are behind it on the way. When all that were sent are answered, they are sent again from the
//! first that was not taken, with the same numbers: as in go-back-n, nothing is taken twice or out of turn.

use std::collections::VecDeque;

/// Target and queue.
pub(super) type SequenceKey = (u32, u8);

/// Puts on their way at a time, at most.
pub(super) const WINDOW_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// It was taken, or finally refused: its number is used up.
    Final,
    /// It is to be sent again, after so many nanoseconds.
    Again(u64),
}

#[derive(Clone, Debug)]
pub(super) struct PutSequence {
    /// The number of the first put in `puts`.
    first: u64,
    puts: VecDeque<u64>,
    /// Of the first puts, those that were sent.
    answers: VecDeque<Option<Answer>>,
    window: usize,
    paused: bool,
}

impl Default for PutSequence {
    fn default() -> PutSequence {
        let (puts, answers) = (VecDeque::new(), VecDeque::new());
        PutSequence { first: 0, puts, answers, window: WINDOW_MAX, paused: false }
    }
}

impl PutSequence {
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

    /// Takes out a put that was refused for now and is not sent again, or whose time is over and that was not given away.
    /// Its number is not used up: the target refuses those behind it that are on their way, and the next that is sent has
    /// its number.
    pub(super) fn leave(&mut self, put: u64) {
        if let Some(at) = self.puts.iter().position(|&one| one == put) {
            self.puts.remove(at);
            self.answers.remove(at);
        }
    }

    /// Takes out the puts in front that are done with. If all that were sent are answered and some are to be sent again,
    /// the sequence pauses: gives for how long. An error says what is wrong with the answers.
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
            return Err("a put was taken before an earlier one of its sequence".to_owned());
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

#[cfg(test)]
mod model {
    //! Every way in which a few puts of a sequence may go: what the target says to each, how messages overlap, which
    //! puts give up, and when the time of one is over: it is taken back if its message has not left, or goes with its
    //! answer.

    use super::*;

    const PUTS: usize = 3;
    /// Refusals of one put for now, at most.
    const REFUSALS: usize = 2;

    #[derive(Clone, Copy, PartialEq)]
    enum Said {
        Taken,
        Refused,
        /// For now; the put gives up, or is sent again.
        ForNow {
            gives_up: bool,
        },
        OutOfTurn,
    }

    #[derive(Clone)]
    struct World {
        sequence: PutSequence,
        to_target: VecDeque<(u64, u64)>,
        to_initiator: VecDeque<(u64, Said)>,
        expected: u64,
        taken: Vec<u64>,
        over: Vec<u64>,
        refusals: [usize; PUTS],
        /// Whose time will be over.
        expires: Option<u64>,
        /// Whose time was over when it had left.
        late: Option<u64>,
    }

    impl World {
        fn pump(&mut self) {
            while let Some((put, number)) = self.sequence.next_to_send() {
                self.to_target.push_back((put, number));
            }
        }

        /// The target says something to the put that has come.
        fn arrive(mut self, choose: Option<Said>) -> Option<World> {
            let (put, number) = self.to_target.pop_front()?;
            let said = match (number == self.expected, choose) {
                (false, None) => Said::OutOfTurn,
                (true, Some(said)) => said,
                _ => return None,
            };
            match said {
                Said::Taken => self.taken.push(put),
                Said::ForNow { .. } => {
                    let refusals = &mut self.refusals[usize::try_from(put).unwrap()];
                    *refusals += 1;
                    if *refusals > REFUSALS {
                        return None;
                    }
                }
                Said::Refused | Said::OutOfTurn => {}
            }
            self.expected += u64::from(matches!(said, Said::Taken | Said::Refused));
            self.to_initiator.push_back((put, said));
            Some(self)
        }

        fn answer(mut self) -> Option<World> {
            let (put, said) = self.to_initiator.pop_front()?;
            let passes = matches!(said, Said::ForNow { .. } | Said::OutOfTurn);
            let gives_up = said == Said::ForNow { gives_up: true } || self.late == Some(put);
            let again = (passes && !gives_up).then_some(1);
            match passes && gives_up {
                true => self.sequence.leave(put),
                false => self.sequence.answer(put, again).unwrap(),
            }
            if again.is_none() {
                self.over.push(put);
            }
            self.sequence.settle().unwrap();
            self.pump();
            Some(self)
        }

        /// The time of a put is over.
        fn expire(mut self, has_left: bool) -> Option<World> {
            let put = self.expires.take()?;
            let at = self.sequence.puts.iter().position(|&one| one == put)?;
            let is_sent = self.sequence.answers.get(at) == Some(&None);
            if has_left {
                self.late = Some(put);
                return is_sent.then_some(self);
            }
            let on_its_way = self.to_target.iter().position(|&(sent, _)| sent == put);
            if is_sent {
                self.to_target.remove(on_its_way?);
            }
            self.sequence.leave(put);
            self.over.push(put);
            self.sequence.settle().unwrap();
            self.pump();
            Some(self)
        }

        fn go_on(mut self) -> Option<World> {
            if !self.sequence.paused {
                return None;
            }
            self.sequence.go_on();
            self.pump();
            Some(self)
        }
    }

    #[test]
    fn a_sequence_is_taken_in_order_and_comes_to_its_end() {
        let mut sequence = PutSequence::default();
        (0..PUTS as u64).for_each(|put| sequence.join(put));
        let mut first = World {
            sequence,
            to_target: VecDeque::new(),
            to_initiator: VecDeque::new(),
            expected: 0,
            taken: Vec::new(),
            over: Vec::new(),
            refusals: [0; PUTS],
            expires: None,
            late: None,
        };
        first.pump();
        let says = [Said::Taken, Said::Refused]
            .into_iter()
            .chain([true, false].map(|gives_up| Said::ForNow { gives_up }));
        let says: Vec<_> = says.map(Some).chain([None]).collect();
        let each = [None, Some(0), Some(1), Some(2)];
        let first = each.map(|expires| World { expires, ..first.clone() });
        let (mut open, mut ends) = (Vec::from(first), 0);
        while let Some(world) = open.pop() {
            assert!(world.taken.is_sorted_by(|a, b| a < b), "{:?}", world.taken);
            let before = open.len();
            open.extend(says.iter().filter_map(|&said| world.clone().arrive(said)));
            open.extend(world.clone().answer());
            open.extend(world.clone().go_on());
            open.extend([true, false].into_iter().filter_map(|left| world.clone().expire(left)));
            if open.len() == before {
                // Nothing is on its way, so nothing may be left.
                assert!(world.sequence.puts.is_empty() && world.sequence.answers.is_empty());
                assert_eq!(world.over.len(), PUTS);
                ends += 1;
            }
        }
        assert!(ends > 1000, "{ends} ends");
    }
}
