//! Matching against an oracle that searches two lists from the front.

use super::*;
use crate::arrival::Body;
use crate::protocol::Protocol;
use crate::wire::Rts;
use crate::wire::tests::{envelope, rts};
use gapless_btl_testkit::Random;

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
    let mut random = Random::new(seed);
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
                let at = random.below(places.len());
                let (request, place) = places.swap_remove(at);
                posted.remove(place);
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

/// A message of process 1 that is found by `tag`: an offer of that name, or an eager one.
fn arrival(offer: Option<u64>) -> Arrival {
    match offer {
        Some(serial) => Arrival::Rts(Box::new(Rts { serial, ..rts() }), Vec::new()),
        None => Arrival::Eager(envelope(1), Body::Copied(vec![0; 40])),
    }
}

fn label(tag: i32) -> Label {
    Label { context: 0, source: 1, tag }
}

fn pattern(tag: i32) -> Pattern {
    Pattern { context: 0, source: Some(1), tag: Some(tag) }
}

const STATUS: Status = Status { source: 1, tag: 0, bytes: 8, protocol: Protocol::Eager };

#[test]
fn an_offer_is_found_by_its_name_until_it_is_taken_claimed_or_not() {
    let mut matching = Matching::new(2);
    for (tag, serial) in [(0, 5), (1, 6)] {
        matching.keep(label(tag), arrival(Some(serial)), 4).unwrap();
    }
    assert!(matching.keep(label(2), arrival(Some(5)), 4).is_err(), "one name for two");
    assert!(matching.held_offer(1, 5).is_some() && matching.held_offer(0, 5).is_none());
    let claim = matching.claim(pattern(1), STATUS).unwrap();
    assert!(matching.held_offer(1, 6).is_some(), "a probe has claimed it");
    let (_, status, held) = matching.unclaim(&claim).unwrap();
    assert_eq!((status, held.and_then(|held| held.offer())), (STATUS, Some(6)));
    assert!(matching.held_offer(1, 6).is_none() && matching.unclaim(&claim).is_none());
    matching.take(pattern(0)).unwrap();
    assert!(matching.held_offer(1, 5).is_none());
}

#[test]
fn data_takes_the_place_of_its_offer() {
    let mut matching = Matching::new(2);
    matching.keep(label(0), arrival(Some(5)), 4).unwrap();
    matching.keep(label(0), arrival(None), 4).unwrap();
    matching.replace_offer(1, 5, arrival(None)).unwrap();
    assert!(matching.held_offer(1, 5).is_none());
    let first = matching.take(pattern(0)).unwrap().1;
    assert_eq!(first.envelope(), &envelope(1), "it has kept its place");
    assert!(matching.take(pattern(0)).is_some() && matching.is_empty());
}

#[test]
fn a_claim_without_its_message_stays_until_somebody_asks_for_it() {
    let mut matching = Matching::new(2);
    for tag in 0..3 {
        matching
            .keep(label(tag), arrival((tag > 0).then_some(7 + u64::from(tag.unsigned_abs()))), 4)
            .unwrap();
    }
    let [first, second] = [0, 1].map(|tag| matching.claim(pattern(tag), STATUS).unwrap());
    let voided = matching.void_claims(|_, held| held.offer().is_some());
    assert_eq!(voided.len(), 1, "only what is claimed");
    assert!(matching.has_claims_of(&[0]) && !matching.has_claims_of(&[1]));
    assert!(matching.unclaim(&second).unwrap().2.is_none());
    assert_eq!(matching.drain_claims().len(), 1);
    assert!(matching.unclaim(&first).is_none() && !matching.has_claims_of(&[0]));
    assert_eq!(matching.remove_if(|label, _| label.tag == 2).len(), 1);
    assert!(matching.held_offer(1, 9).is_none() && matching.is_empty());
}
