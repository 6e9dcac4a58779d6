//! The last choices. A program sends the same messages again and again, and predicting the time of every protocol
//! costs microseconds. So equal situations reuse the last choice.
//!
//! Pure: the answer is that of [`choose`] as long as tuning and wishes stay the same. A caller that changes them must
//! [forget](Recent::forget) the choices.

use super::{Protocol, Situation, choose};
use crate::hash::WordHasher;
use crate::protocol::Protocols;
use crate::tuning::Tuning;
use std::hash::{Hash, Hasher};

/// Situations that are remembered at most, in sets of [`WAYS`]. A program that sends 16 layouts in turn, in both
/// directions, has some 100: what an offer would be, what one is, what a receiver makes of it.
const KEPT: usize = 512;

/// Situations of a set at most.
const WAYS: usize = 8;

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
    /// None before the first choice.
    sets: Vec<Vec<Choice>>,
    /// Choices made so far; modulo [`WAYS`], which of a full set the next one replaces.
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
        if self.sets.is_empty() {
            self.sets.resize_with(KEPT / WAYS, Vec::new);
        }
        let set = &mut self.sets[set_of(situation, protocols)];
        let same =
            |choice: &&Choice| choice.protocols == protocols && choice.situation == *situation;
        if let Some(known) = set.iter().find(same) {
            return known.protocol;
        }
        let protocol = choose(situation, tuning, force, |protocol| protocols.has(protocol));
        let choice = Choice { situation: *situation, protocols, protocol };
        match set.len() {
            ..WAYS => set.push(choice),
            _ => set[self.next % WAYS] = choice,
        }
        self.next = self.next.wrapping_add(1);
        protocol
    }

    /// Tuning or wishes have changed.
    pub(crate) fn forget(&mut self) {
        self.sets.clear();
    }
}

/// Which set a situation belongs to. What differs between two situations of one message counts as well.
fn set_of(s: &Situation, protocols: Protocols) -> usize {
    let flags = [
        s.local,
        s.mapped,
        s.grants,
        s.cached,
        s.devices.is_some_and(|ends| ends.sender),
        s.devices.is_some_and(|ends| ends.receiver),
        s.devices.is_some_and(|ends| ends.one_device),
        s.devices.is_some_and(|ends| ends.locked),
        s.single_copy.is_some(),
        s.staged_read.is_some(),
        s.touched.is_some(),
        s.staged.is_some(),
    ];
    let flags = flags.iter().fold(0, |word, &flag| word << 1 | u64::from(flag));
    let lengths = [s.bytes, s.sender_blocks, s.receiver_blocks, s.sender_span];
    let layouts = [s.layout_fetch_bytes, s.layout_uses];
    let mut hasher = WordHasher::default();
    let others = [
        s.link_eager_bytes,
        s.latency_ns.to_bits(),
        s.layout_fetch_max,
        s.touched.map_or(0, |touched| touched.read_sectors),
        flags,
    ];
    for word in lengths.into_iter().chain(layouts).chain(others) {
        hasher.write_u64(word);
    }
    protocols.hash(&mut hasher);
    // The upper half is the better mixed one.
    (hasher.finish() >> 40) as usize % (KEPT / WAYS)
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
            assert!(recent.sets.iter().all(|set| set.len() <= WAYS));
        }
        assert!(seen.iter().filter(|&&seen| seen).count() > 2, "{seen:?}");
    }

    /// As many layouts in turn as programs have stay known, and all that one message is asked about.
    #[test]
    fn situations_in_turn_are_remembered() {
        let variant = |s: Situation, bits: u32| {
            let has = |bit: u32| bits & 1 << bit != 0;
            Situation { mapped: has(0), cached: has(1), grants: has(2), local: has(3), ..s }
        };
        for (sizes, variants, forgotten_max) in [(64, 1, 0), (1, 16, 0), (16, 16, 64)] {
            let (mut recent, tuning) = (Recent::default(), Tuning::default());
            let mut ask_all = || {
                let before = recent.next;
                for (n, bits) in (1..=sizes).flat_map(|n| (0..variants).map(move |it| (n, it))) {
                    let s = variant(situation(n * 4096), bits);
                    recent.choose(&s, &tuning, None, Protocols::ALL);
                }
                recent.next - before
            };
            ask_all();
            let forgotten = ask_all();
            assert!(forgotten <= forgotten_max, "{forgotten} of {sizes} · {variants}");
        }
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
