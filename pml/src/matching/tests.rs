//! Matching against an oracle that searches two lists from the front.

use super::*;

/// A small generator, so that a failure is reproduced by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

fn matches(pattern: &Pattern, label: &Label) -> bool {
    pattern.context == label.context
        && pattern.source.is_none_or(|source| source == label.source)
        && pattern.tag.is_none_or(|tag| tag == label.tag)
}

#[derive(Default)]
struct Oracle {
    posted: Vec<(Pattern, u32)>,
    unexpected: Vec<(Label, u32)>,
}

impl Oracle {
    fn receive(&mut self, pattern: Pattern, request: u32) -> Option<u32> {
        match self.unexpected.iter().position(|(label, _)| matches(&pattern, label)) {
            Some(at) => Some(self.unexpected.remove(at).1),
            None => {
                self.posted.push((pattern, request));
                None
            }
        }
    }

    fn arrive(&mut self, label: Label, message: u32) -> Option<u32> {
        match self.posted.iter().position(|(pattern, _)| matches(pattern, &label)) {
            Some(at) => Some(self.posted.remove(at).1),
            None => {
                self.unexpected.push((label, message));
                None
            }
        }
    }
}

fn random_run(seed: u64, steps: u32) {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut oracle = Oracle::default();
    let mut posted = Posted::default();
    let mut unexpected = Unexpected::default();
    let mut places: Vec<(u32, PostedPlace)> = Vec::new();
    for step in 0..steps {
        let label = Label {
            context: u32::try_from(random.below(2)).unwrap(),
            source: u32::try_from(random.below(3)).unwrap(),
            tag: i32::try_from(random.below(3)).unwrap(),
        };
        match random.below(9) {
            0..=3 => {
                let pattern = Pattern {
                    context: label.context,
                    source: (random.below(3) > 0).then_some(label.source),
                    tag: (random.below(3) > 0).then_some(label.tag),
                };
                let expected = oracle.receive(pattern, step);
                assert_eq!(
                    unexpected.probe(pattern).map(|(_, message)| *message),
                    expected,
                    "seed {seed}, step {step}"
                );
                let got = unexpected.take(pattern).map(|(_, message)| message);
                assert_eq!(got, expected, "seed {seed}, step {step}");
                if got.is_none() {
                    places.push((step, posted.post(pattern, step)));
                }
            }
            4..=7 => {
                let expected = oracle.arrive(label, step);
                let got = posted.take(label);
                assert_eq!(got, expected, "seed {seed}, step {step}");
                match got {
                    Some(request) => places.retain(|(waiting, _)| *waiting != request),
                    None => {
                        unexpected.hold(label, step);
                    }
                }
            }
            _ if !places.is_empty() => {
                let at = usize::try_from(random.below(places.len() as u64)).unwrap();
                let (request, place) = places.swap_remove(at);
                posted.withdraw(place);
                oracle.posted.retain(|(_, waiting)| *waiting != request);
            }
            _ => {
                let gone = unexpected.remove_if(|label, _| label.source == 2);
                let before = oracle.unexpected.len();
                oracle.unexpected.retain(|(label, _)| label.source != 2);
                assert_eq!(gone.len(), before - oracle.unexpected.len(), "seed {seed}");
            }
        }
    }
}

#[test]
fn random_operations_agree_with_the_oracle() {
    for seed in 1..=200 {
        random_run(seed, 600);
    }
}

#[test]
fn an_exact_receive_posted_later_does_not_overtake_a_wildcard() {
    let mut posted = Posted::default();
    let label = Label { context: 0, source: 4, tag: 9 };
    posted.post(Pattern { context: 0, source: None, tag: None }, 1);
    posted.post(Pattern { context: 0, source: Some(4), tag: Some(9) }, 2);
    posted.post(Pattern { context: 0, source: Some(4), tag: None }, 3);
    assert_eq!(posted.take(label), Some(1));
    assert_eq!(posted.take(label), Some(2));
    assert_eq!(posted.take(label), Some(3));
    assert_eq!(posted.take(label), None);
}

#[test]
fn a_hundred_thousand_receives_match_in_reverse_order() {
    let mut posted = Posted::default();
    let tags = 0..100_000;
    for tag in tags.clone() {
        let request = u32::try_from(tag).unwrap();
        posted.post(Pattern { context: 0, source: Some(1), tag: Some(tag) }, request);
    }
    for tag in tags.rev() {
        let label = Label { context: 0, source: 1, tag };
        assert_eq!(posted.take(label), Some(u32::try_from(tag).unwrap()));
    }
}

#[test]
fn the_wildcard_index_is_dropped_with_the_last_message() {
    let mut unexpected = Unexpected::default();
    let label = Label { context: 0, source: 1, tag: 2 };
    let any = Pattern { context: 0, source: None, tag: None };
    unexpected.hold(label, 'a');
    unexpected.hold(label, 'b');
    assert_eq!(unexpected.take(any), Some((label, 'a')));
    assert!(unexpected.wild);
    assert_eq!(unexpected.take(any), Some((label, 'b')));
    assert!(!unexpected.wild);
    assert_eq!(unexpected.classes.each_ref().map(Index::len), [0; 4]);
}
