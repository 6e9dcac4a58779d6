//! Several ranks in one thread, over loopback hubs.

use crate::{Bml, BmlError, Event, Handler, PeerState, Rank, TokenSpace};
use gapless_btl::loopback::{Config, Hub, Loopback};
use gapless_btl::{AmTag, Token};

/// Keeps what it is given.
#[derive(Default)]
struct Log(Vec<Event>);

impl Handler for Log {
    fn handle(&mut self, bml: &mut Bml, event: Event) {
        assert_eq!(bml.poll(&mut Log::default()), 0, "handlers do not poll");
        self.0.push(event);
    }
}

fn rank(hubs: &[(&Hub, Config)], me: u32, size: u32) -> Bml {
    let mut bml = Bml::new(Rank(me), size);
    for (hub, config) in hubs {
        bml.add(Box::new(Loopback::with(hub, config.clone())));
    }
    bml
}

fn named(name: &'static str, latency_ns: u32) -> Config {
    Config { name, latency_ns, ..Config::default() }
}

fn pair(hubs: &[(&Hub, Config)]) -> (Bml, Bml) {
    let (mut a, mut b) = (rank(hubs, 0, 2), rank(hubs, 1, 2));
    a.connect(Rank(1), &b.addresses()).unwrap();
    b.connect(Rank(0), &a.addresses()).unwrap();
    (a, b)
}

fn say(bml: &mut Bml, to: u32, tag: u8, text: &[u8], done: Token) {
    let mut slot = bml.reserve(Rank(to), text.len()).unwrap();
    slot.write(0, text).unwrap();
    bml.send(slot, AmTag(tag), done);
}

#[test]
fn messages_reach_their_rank() {
    let hub = Hub::new();
    let (mut a, mut b) = pair(&[(&hub, named("x", 100))]);
    say(&mut a, 1, 3, b"hello", Token(5));
    let (mut at_a, mut at_b) = (Log::default(), Log::default());
    assert_eq!(a.poll(&mut at_a), 1);
    assert_eq!(b.poll(&mut at_b), 1);
    assert!(matches!(&at_a.0[..], [Event::Sent { token: Token(5), result: Ok(()) }]));
    let [Event::Arrived { from: Rank(0), tag: AmTag(3), fragment }] = &at_b.0[..] else { panic!() };
    assert_eq!(fragment.to_vec().unwrap(), b"hello");
    assert_eq!(a.state(Rank(1)), &PeerState::Up);
    assert_eq!(a.limits(Rank(1)).unwrap().name, "x");
}

#[test]
fn overlapping_tags_are_refused() {
    let mut bml = Bml::new(Rank(0), 1);
    bml.register(10..=20, Box::new(Log::default())).unwrap();
    for tags in [20..=30, 0..=10, 12..=13, 0..=40] {
        let error = bml.register(tags.clone(), Box::new(Log::default())).unwrap_err();
        assert_eq!(error, BmlError::TagsTaken { tags, taken: 10..=20 });
    }
    #[expect(clippy::reversed_empty_ranges, reason = "bad input")]
    for tags in [250..=255, 9..=8] {
        assert!(matches!(
            bml.register(tags, Box::new(Log::default())),
            Err(BmlError::BadTags { .. })
        ));
    }
    bml.register(21..=254, Box::new(Log::default())).unwrap();
    assert_eq!(bml.token_space(AmTag(9)), TokenSpace::REST);
}
