//! The last choices. A program sends the same messages again and again, and predicting the time of every protocol
//! costs microseconds. So equal situations reuse the last choice.
//!
//! Pure: the answer is that of [`choose`] as long as tuning and wishes stay the same. A caller that changes them must
//! [forget](Recent::forget) the choices.

use super::{Protocol, Situation, choose};
use crate::protocol::Protocols;
use crate::tuning::Tuning;

/// Situations that are remembered: a few layouts, in both directions.
const KEPT: usize = 16;

/// What was chosen, and of what.
#[derive(Debug)]
struct Choice {
    situation: Situation,
    protocols: Protocols,
    protocol: Protocol,
}

/// The last choices.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    choices: Vec<Choice>,
    /// The entry that the next choice replaces.
    next: usize,
}

impl Recent {
    /// The answer of [`choose`], with the same tuning and force as at all calls since the last `forget`.
    pub(crate) fn choose(
        &mut self,
        situation: &Situation,
        tuning: &Tuning,
        force: Option<Protocol>,
        protocols: Protocols,
    ) -> Protocol {
        let same =
            |choice: &&Choice| choice.protocols == protocols && choice.situation == *situation;
        if let Some(known) = self.choices.iter().find(same) {
            return known.protocol;
        }
        let protocol = choose(situation, tuning, force, |protocol| protocols.has(protocol));
        let choice = Choice { situation: *situation, protocols, protocol };
        if self.choices.len() < KEPT {
            self.choices.push(choice);
        } else {
            self.choices[self.next] = choice;
            self.next = (self.next + 1) % KEPT;
        }
        protocol
    }

    /// Tuning or wishes have changed.
    pub(crate) fn forget(&mut self) {
        self.choices.clear();
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::node;
    use super::*;

    fn situation(bytes: u64) -> Situation {
        let sender_blocks = 1 + bytes / 4096;
        Situation {
            bytes,
            sender_blocks,
            sender_span: bytes,
            mapped: true,
            single_copy: None,
            ..node()
        }
    }

    #[test]
    fn what_is_remembered_is_what_would_be_chosen() {
        let (mut recent, tuning) = (Recent::default(), Tuning::default());
        let sets =
            [Protocols::ALL, Protocols::ALL.without(Protocol::Eager).without(Protocol::Mapped)];
        let mut seen = [false; Protocol::ALL.len()];
        for round in 0..3 * KEPT as u64 {
            // Some again, some for the first time, more than are kept.
            for bytes in [8, 1 << 12, 1 << 20, round << 10, (round / 2) << 16] {
                for protocols in sets {
                    let s = situation(bytes);
                    let expected = choose(&s, &tuning, None, |protocol| protocols.has(protocol));
                    assert_eq!(recent.choose(&s, &tuning, None, protocols), expected);
                    seen[expected.index()] = true;
                }
            }
            assert!(recent.choices.len() <= KEPT);
        }
        assert!(seen.iter().filter(|&&seen| seen).count() > 2, "{seen:?}");
    }

    #[test]
    fn other_wishes_are_heard_once_the_former_choices_are_forgotten() {
        let (mut recent, tuning) = (Recent::default(), Tuning::default());
        let s = situation(1 << 20);
        assert_eq!(recent.choose(&s, &tuning, None, Protocols::ALL), Protocol::Mapped);
        recent.forget();
        let force = Some(Protocol::Pipeline);
        assert_eq!(recent.choose(&s, &tuning, force, Protocols::ALL), Protocol::Pipeline);
    }
}
