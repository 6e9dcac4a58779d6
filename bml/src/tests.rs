//! Several ranks in one thread, over loopback hubs; some with faults, some traced.

mod atomics;
mod death;
mod directory;
mod leaving;
mod offered;
mod rails;
mod shifty;
mod traffic;

use crate::{Bml, BmlError, Handler, PeerState, Rank, RankEvent, TokenSpace};
use gapless_btl::loopback::{Config, Hub, Loopback};
use gapless_btl::{Access, AmTag, LinkError, ReserveError, Token};
use gapless_btl_testkit::trace::{Record, Recorder, Trace};
use gapless_mem::Lease;
use std::sync::{Arc, Mutex};

/// Keeps what it is given.
#[derive(Default)]
struct Log(Vec<RankEvent>);

impl Handler for Log {
    fn handle(&mut self, bml: &mut Bml, event: RankEvent) {
        assert_eq!(bml.poll(&mut Log::default()), 0, "handlers do not poll");
        self.0.push(event);
    }
}

/// A registered handler's log, which its test can see.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<RankEvent>>>);

impl Handler for Shared {
    fn handle(&mut self, _: &mut Bml, event: RankEvent) {
        self.0.lock().unwrap().push(event);
    }
}

impl Shared {
    fn take(&self) -> Vec<RankEvent> {
        std::mem::take(&mut self.0.lock().unwrap())
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

fn connect(a: &mut Bml, b: &mut Bml) {
    a.connect(b.me(), &b.addresses()).unwrap();
    b.connect(a.me(), &a.addresses()).unwrap();
}

fn pair(hubs: &[(&Hub, Config)]) -> (Bml, Bml) {
    let (mut a, mut b) = (rank(hubs, 0, 2), rank(hubs, 1, 2));
    connect(&mut a, &mut b);
    (a, b)
}

fn say(bml: &mut Bml, to: u32, tag: u8, text: &[u8], done: Token) {
    let mut slot = bml.reserve(Rank(to), text.len()).unwrap();
    slot.write(0, text).unwrap();
    bml.send(slot, AmTag(tag), done);
}

fn poll(bml: &mut Bml) -> Vec<RankEvent> {
    let mut log = Log::default();
    bml.poll(&mut log);
    log.0
}

#[test]
fn messages_reach_their_rank() {
    let hub = Hub::new();
    let (mut a, mut b) = pair(&[(&hub, named("x", 100))]);
    say(&mut a, 1, 3, b"hello", Token(5));
    assert!(matches!(&poll(&mut a)[..], [RankEvent::Sent { token: Token(5), result: Ok(()) }]));
    let events = poll(&mut b);
    let [RankEvent::Arrived { from: Rank(0), tag: AmTag(3), fragment }] = &events[..] else {
        panic!()
    };
    assert_eq!(fragment.to_vec().unwrap(), b"hello");
    assert_eq!(a.state(Rank(1)), &PeerState::Up);
    assert_eq!(a.limits(Rank(1)).unwrap().name, "x");
    assert_eq!((a.me(), a.size()), (Rank(0), 2));
}

#[test]
fn the_better_of_two_rails_carries_everything() {
    let (slow_hub, fast_hub) = (Hub::new(), Hub::new());
    let recorders = [Recorder::new(1000), Recorder::new(1000)];
    let (mut a, mut b) = (Bml::new(Rank(0), 2), rank(&[], 1, 2));
    // Found by what they promise, not by when they were added.
    for (hub, config, recorder) in [
        (&slow_hub, named("slow", 9000), &recorders[0]),
        (&fast_hub, named("fast", 90), &recorders[1]),
    ] {
        a.add(Box::new(Trace::new(Loopback::with(hub, config.clone()), recorder.listener())));
        b.add(Box::new(Loopback::with(hub, config)));
    }
    connect(&mut a, &mut b);
    assert_eq!(a.limits(Rank(1)).unwrap().name, "fast");
    for text in [&b"one"[..], b"two"] {
        say(&mut a, 1, 0, text, Token::NONE);
    }
    assert_eq!(poll(&mut b).len(), 2);
    let sends = |recorder: &Recorder| {
        recorder.records().iter().filter(|record| matches!(record, Record::Send { .. })).count()
    };
    assert_eq!(recorders.each_ref().map(sends), [0, 2]);
}

#[test]
fn a_rail_that_keeps_no_order_carries_messages_if_no_other_does() {
    let (x, y) = (Hub::new(), Hub::new());
    let loose = |name| Config { ordered: false, ..named(name, 10) };
    let mut a = rank(&[(&x, loose("x")), (&y, named("y", 900))], 0, 3);
    let mut b = rank(&[(&x, loose("x")), (&y, named("y", 900))], 1, 3);
    let mut c = rank(&[(&x, loose("x"))], 2, 3);
    connect(&mut a, &mut b);
    assert_eq!(a.limits(Rank(1)).unwrap().name, "y");
    a.connect(Rank(2), &c.addresses()).unwrap();
    c.connect(Rank(0), &a.addresses()).unwrap();
    assert!(!a.limits(Rank(2)).unwrap().ordered);
    say(&mut a, 2, 0, b"one", Token::NONE);
    assert_eq!(poll(&mut c).len(), 1);
}

#[test]
fn only_rails_that_both_have_are_used() {
    let (x, y) = (Hub::new(), Hub::new());
    let mut a = rank(&[(&x, named("x", 10)), (&y, named("y", 900))], 0, 3);
    let mut b = rank(&[(&y, named("y", 900))], 1, 3);
    connect(&mut a, &mut b);
    assert_eq!(a.limits(Rank(1)).unwrap().name, "y");
    let mut c = rank(&[(&Hub::new(), named("x", 10))], 2, 3);
    let error = a.connect(Rank(2), &c.addresses()).unwrap_err();
    let BmlError::NoRail { peer: Rank(2), tried } = &error else { panic!("{error:?}") };
    assert!(matches!(&tried[..], [(name, LinkError::Unreachable { .. })] if name == "x"));
    assert!(error.to_string().starts_with("no transport reaches rank 2; x: "), "{error}");
    let error = c.connect(Rank(1), &b.addresses()).unwrap_err();
    assert_eq!(error, BmlError::NoRail { peer: Rank(1), tried: vec![] });
    assert_eq!(a.state(Rank(2)), &PeerState::Unknown);
    assert!(a.limits(Rank(2)).is_none());
}

#[test]
fn bad_ranks_and_addresses_are_refused() {
    let hub = Hub::new();
    let hubs = [(&hub, named("x", 10))];
    let (mut a, b) = (rank(&hubs, 0, 3), rank(&hubs, 1, 3));
    let error = a.connect(Rank(3), &b.addresses()).unwrap_err();
    assert_eq!(error, BmlError::NoSuchRank { rank: Rank(3), size: 3 });
    assert_eq!(a.state(Rank(3)), &PeerState::Unknown);
    for rank in [1, 3, u32::MAX] {
        let error = a.reserve(Rank(rank), 1).unwrap_err();
        assert!(matches!(error, ReserveError::Link(LinkError::Unreachable { .. })), "{error}");
        assert!(a.rdma(Rank(rank)).is_none());
        assert!(a.mapped(Rank(rank)).is_none());
    }
    a.connect(Rank(1), &b.addresses()).unwrap();
    a.connect(Rank(1), &b.addresses()).unwrap();
    let error = a.connect(Rank(2), &b.addresses()).unwrap_err();
    assert!(
        matches!(error, BmlError::AddressInUse { peer: Rank(2), other: Rank(1), .. }),
        "{error}"
    );
    let max = a.limits(Rank(1)).unwrap().max_fragment_bytes;
    let error = a.reserve(Rank(1), max + 1).unwrap_err();
    assert_eq!(error, ReserveError::TooLong { len: max + 1, max });
}

#[test]
fn what_comes_before_connect_waits() {
    let hub = Hub::new();
    let hubs = [(&hub, named("x", 10))];
    let (mut a, mut b) = (rank(&hubs, 0, 2), rank(&hubs, 1, 2));
    a.connect(Rank(1), &b.addresses()).unwrap();
    say(&mut a, 1, 4, b"early", Token::NONE);
    assert!(poll(&mut b).is_empty(), "from a rank that was never connected");
    b.connect(Rank(0), &a.addresses()).unwrap();
    assert!(matches!(&poll(&mut b)[..], [RankEvent::Arrived { from: Rank(0), .. }]));
}

#[test]
fn overlapping_tags_are_refused() {
    let mut bml = Bml::new(Rank(0), 1);
    bml.register(10..=20, Box::new(Shared::default())).unwrap();
    for tags in [20..=30, 0..=10, 12..=13, 0..=40] {
        let error = bml.register(tags.clone(), Box::new(Shared::default())).unwrap_err();
        assert_eq!(error, BmlError::TagsTaken { tags, taken: 10..=20 });
    }
    #[expect(clippy::reversed_empty_ranges, reason = "bad input")]
    for tags in [250..=255, 9..=8] {
        assert!(matches!(
            bml.register(tags, Box::new(Shared::default())),
            Err(BmlError::BadTags { .. })
        ));
    }
    bml.register(21..=254, Box::new(Shared::default())).unwrap();
    assert_eq!(bml.token_space(AmTag(9)), TokenSpace::REST);
}

#[test]
fn as_many_handlers_as_tags_fit() {
    let mut bml = Bml::new(Rank(0), 1);
    let registered =
        (0..=254).filter(|&tag| bml.register(tag..=tag, Box::new(Shared::default())).is_ok());
    assert_eq!(registered.count(), 254);
}

#[test]
fn events_go_to_the_handler_of_their_tag_or_token() {
    let hub = Hub::new();
    let (mut a, mut b) = pair(&[(&hub, named("x", 100))]);
    let (at_a, at_b, other) = (Shared::default(), Shared::default(), Shared::default());
    a.register(100..=109, Box::new(other.clone())).unwrap();
    a.register(50..=59, Box::new(at_a.clone())).unwrap();
    b.register(50..=59, Box::new(at_b.clone())).unwrap();
    say(&mut a, 1, 50, b"theirs", Token(1));
    say(&mut a, 1, 60, b"rest", Token(2));
    say(&mut a, 1, 59, b"unnamed", Token::NONE);
    assert!(matches!(&poll(&mut a)[..], [RankEvent::Sent { token: Token(2), .. }]));
    assert!(matches!(&at_a.take()[..], [RankEvent::Sent { token: Token(1), .. }]));
    assert!(matches!(&poll(&mut b)[..], [RankEvent::Arrived { tag: AmTag(60), .. }]));
    assert!(matches!(
        &at_b.take()[..],
        [RankEvent::Arrived { tag: AmTag(50), .. }, RankEvent::Arrived { tag: AmTag(59), .. }]
    ));
    assert!(other.take().is_empty());
}

#[test]
#[allow(unsafe_code, reason = "calls Rdma")]
fn one_sided_operations_end_at_the_handler_that_stamped() {
    let hub = Hub::new();
    let (mut a, mut b) = pair(&[(&hub, named("x", 100))]);
    let log = Shared::default();
    let space = a.register(7..=7, Box::new(log.clone())).unwrap();
    assert_eq!(a.token_space(AmTag(7)), space);
    let far: &'static mut [u8] = Box::leak(Box::new([3; 8]));
    let near: &'static mut [u8] = Box::leak(Box::new([0; 8]));
    let region = gapless_mem::Region::of_mut(far);
    // SAFETY: the memory is leaked, and no reference to it is used any more.
    let key = unsafe { b.rdma(Rank(0)).unwrap().1.register(region, Access::Write) }.unwrap();
    let local = [gapless_mem::Region::of_mut(near)];
    let remote = [gapless_btl::Extent { offset: 0, len: 8 }];
    for token in [space.token(9).unwrap(), TokenSpace::REST.token(9).unwrap()] {
        let (peer, rdma) = a.rdma(Rank(1)).unwrap();
        // SAFETY: as above; the events are taken below.
        unsafe { rdma.get(peer, &local, &key, &remote, token) }.unwrap();
    }
    assert!(matches!(
        &poll(&mut a)[..],
        [RankEvent::Completed { token: Token(9), result: Ok(()) }]
    ));
    assert!(matches!(&log.take()[..], [RankEvent::Completed { token: Token(9), result: Ok(()) }]));
    let mut back = [0; 8];
    // SAFETY: as above; the operations have ended.
    unsafe { gapless_mem::read(&local[0], 0, &mut back) }.unwrap();
    assert_eq!(back, [3; 8]);
}

#[test]
fn memory_comes_from_the_best_rail_that_maps() {
    let (x, y) = (Hub::new(), Hub::new());
    let hubs = [(&x, Config { mapped: false, ..named("x", 10) }), (&y, named("y", 900))];
    let (mut a, mut b) = pair(&hubs);
    let memory = a.allocate(100).unwrap().unwrap();
    let (peer, mapped) = a.mapped(Rank(1)).unwrap();
    let key = mapped.key(peer, memory.lease()).expect("allocated by the rail that maps");
    let (peer, mapped) = b.mapped(Rank(0)).unwrap();
    assert_eq!(mapped.map(peer, &key).unwrap().region().len(), 100);
    // Connected to itself over the same transport, a process maps its own memory.
    let own = a.addresses();
    a.connect(Rank(0), &own).unwrap();
    assert_eq!(a.limits(Rank(0)).unwrap().name, "self");
    let (peer, mapped) = a.mapped(Rank(0)).unwrap();
    let key = mapped.key(peer, memory.lease()).unwrap();
    assert!(mapped.map(peer, &key).is_ok());
    // Without any other transport the loopback gives memory.
    let mut single = Bml::new(Rank(0), 1);
    let memory = single.allocate(10).unwrap().unwrap();
    let (peer, mapped) = single.mapped(Rank(0)).unwrap();
    assert!(mapped.key(peer, memory.lease()).is_some());
}

#[test]
fn devices_reach_every_rail() {
    let hub = Hub::new();
    let (recorder, mut bml) = (Recorder::new(9), Bml::new(Rank(0), 1));
    bml.add(Box::new(Trace::new(Loopback::new(&hub), recorder.listener())));
    let device: Arc<dyn gapless_mem::Device> = Arc::new(gapless_mem::fake::FakeDevice::new(0));
    bml.attach(&device).unwrap();
    assert_eq!(recorder.text(), "attach fake:0 -> ok\n");
    // Those that are added later, too.
    bml.add(Box::new(Trace::new(Loopback::new(&hub), recorder.listener())));
    assert_eq!(recorder.text(), "attach fake:0 -> ok\nattach fake:0 -> ok\n");
    assert_eq!(bml.devices().len(), 1);
}

#[test]
#[allow(unsafe_code, reason = "vouches for memory of a device")]
fn device_memory_is_mapped_and_invalidated_over_the_rail() {
    let mut bml = Bml::new(Rank(0), 1);
    let device: Arc<dyn gapless_mem::Device> = Arc::new(gapless_mem::fake::FakeDevice::new(0));
    let memory = device.allocate(64).unwrap();
    // SAFETY: the device has just given it, and nobody frees it.
    let lease = unsafe { Lease::kept_by_caller(memory) };
    let key = |bml: &mut Bml| {
        let (peer, mapped) = bml.mapped(Rank(0)).unwrap();
        mapped.key(peer, &lease).map(|key| mapped.map(peer, &key).unwrap())
    };
    assert!(key(&mut bml).is_none(), "not attached");
    bml.attach(&device).unwrap();
    let mapping = key(&mut bml).unwrap();
    assert_eq!(mapping.region(), memory);
    assert!(bml.invalidate(memory), "it is mapped");
    drop(mapping);
    assert!(!bml.invalidate(memory));
}
