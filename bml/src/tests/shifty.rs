//! Transports without `unsafe` that show other abilities than memory was granted to, report the ends of others'
//! operations, or give a peer a second name: nothing that was granted comes back on their word.

use super::{connect, poll, rank};
use crate::{Bml, Rank, RankEvent, TokenSpace};
use gapless_btl::loopback::{Config, Hub, Loopback};
use gapless_btl::{
    Access, Address, Btl, Extent, LinkError, Mapped, PeerId, Rdma, Sink, Token, delegate,
};
use gapless_mem::{Device, Lease, Region, fake::FakeDevice};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Whose abilities are shown.
const FIRST: usize = 0;
const SECOND: usize = 1;
const NOBODY: usize = 2;

/// Two ends in one transport. Messages are the first one's.
struct Shifty {
    ends: [Loopback; 2],
    shown: Arc<AtomicUsize>,
    /// Whose events are reported, too.
    other: Option<Arc<Mutex<Loopback>>>,
    /// Who is connected to in the place of whoever is asked for first.
    decoy: Option<Address>,
}

impl Shifty {
    fn new(hub: &Hub) -> Shifty {
        let end = |_| Loopback::with(hub, named());
        Shifty { ends: [0, 1].map(end), shown: Arc::default(), other: None, decoy: None }
    }

    fn end(&mut self) -> Option<&mut Loopback> {
        self.ends.get_mut(self.shown.load(Ordering::Relaxed))
    }
}

impl Btl for Shifty {
    delegate!(self => self.ends[FIRST]; limits address reserve send);

    fn connect(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        let decoy = self.decoy.take();
        let peer = decoy.as_ref().unwrap_or(peer);
        self.ends[SECOND].connect(peer)?;
        self.ends[FIRST].connect(peer)
    }
    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        let own: usize = self.ends.iter_mut().map(|end| end.poll(only, sink)).sum();
        own + self.other.as_ref().map_or(0, |other| other.lock().unwrap().poll(only, sink))
    }
    fn attach(&mut self, device: &Arc<dyn Device>) -> Result<(), LinkError> {
        self.ends.iter_mut().try_for_each(|end| end.attach(device))
    }
    fn rdma(&mut self) -> Option<&mut dyn Rdma> {
        self.end()?.rdma()
    }
    fn mapped(&mut self) -> Option<&mut dyn Mapped> {
        self.end()?.mapped()
    }
}

fn named() -> Config {
    Config { name: "shifty", ..Config::default() }
}

/// Rank 0 over the transport, and an honest rank 1.
fn pair(hub: &Hub, shifty: Shifty) -> (Bml, Bml) {
    let mut a = Bml::new(Rank(0), 2);
    a.add(Box::new(shifty));
    let mut b = rank(&[(hub, named())], 1, 2);
    connect(&mut a, &mut b);
    (a, b)
}

#[test]
#[allow(unsafe_code, reason = "vouches for memory of a device")]
fn what_was_granted_to_one_ability_is_asked_back_of_no_other() {
    let hub = Hub::new();
    let shifty = Shifty::new(&hub);
    let shown = Arc::clone(&shifty.shown);
    let (mut a, mut b) = pair(&hub, shifty);
    let device: Arc<dyn Device> = Arc::new(FakeDevice::new(0));
    a.attach(&device).unwrap();
    b.attach(&device).unwrap();
    let host = a.allocate(64).unwrap().unwrap();
    let far = device.allocate(64).unwrap();
    let mut map = |lease: &Lease| {
        let (peer, mapped) = a.mapped(Rank(1)).unwrap();
        let key = mapped.key(peer, lease).unwrap();
        let (peer, mapped) = b.mapped(Rank(0)).unwrap();
        mapped.map(peer, &key).unwrap()
    };
    // SAFETY: the device has just given it, and nobody frees it.
    let lease = unsafe { Lease::kept_by_caller(far) };
    let mappings = [map(host.lease()), map(&lease)];
    for whose in [SECOND, NOBODY] {
        shown.store(whose, Ordering::Relaxed);
        assert!(a.mapped(Rank(1)).is_none(), "it is another one");
        assert!(a.revoke_access(Rank(1), host.region()) && a.invalidate(far), "they are mapped");
    }
    shown.store(FIRST, Ordering::Relaxed);
    assert!(a.revoke_access(Rank(1), host.region()) && a.invalidate(far));
    drop(mappings);
    assert!(!a.revoke_access(Rank(1), host.region()) && !a.invalidate(far));
    shown.store(NOBODY, Ordering::Relaxed);
    assert!(a.revoke_access(Rank(1), host.region()) && a.invalidate(far), "nobody can say");
}

#[test]
#[allow(unsafe_code, reason = "calls Rdma on memory that is never freed")]
fn the_end_of_anothers_operation_ends_nothing() {
    let hub = Hub::new();
    let other = Arc::new(Mutex::new(Loopback::with(&hub, named())));
    let mut shifty = Shifty::new(&hub);
    shifty.other = Some(Arc::clone(&other));
    let (mut a, mut b) = pair(&hub, shifty);
    let leaked = || Region::of_mut(Box::leak(Box::new([0u8; 8])));
    // SAFETY: leaked memory, without references.
    let key = unsafe { b.rdma(Rank(0)).unwrap().1.register(leaked(), Access::Read) }.unwrap();
    let remote = [Extent { offset: 0, len: 8 }];
    let token = TokenSpace::REST.token(9).unwrap();
    let to_b = other.lock().unwrap().connect(&b.addresses()[0].1).unwrap();
    // The memory of this one is granted to another transport; its token is nobody's business here.
    // SAFETY: as above.
    unsafe { other.lock().unwrap().get(to_b, &[leaked()], &key, &remote, token) }.unwrap();
    assert!(poll(&mut a).is_empty());
    let (peer, rdma) = a.rdma(Rank(1)).unwrap();
    // SAFETY: as above.
    unsafe { rdma.get(peer, &[leaked()], &key, &remote, token) }.unwrap();
    assert!(matches!(
        &poll(&mut a)[..],
        [RankEvent::Completed { token: Token(9), result: Ok(()) }]
    ));
}

#[test]
fn access_is_revoked_from_a_peer_by_all_its_names() {
    let hub = Hub::new();
    let decoy = Loopback::with(&hub, named());
    let mut shifty = Shifty::new(&hub);
    shifty.decoy = Some(decoy.address());
    let (mut a, mut b) = pair(&hub, shifty);
    a.connect(Rank(1), &b.addresses()).unwrap();
    let memory = a.allocate(64).unwrap().unwrap();
    let (peer, mapped) = a.mapped(Rank(1)).unwrap();
    assert_eq!(peer, PeerId(1), "the name that it was given later");
    let key = mapped.key(peer, memory.lease()).unwrap();
    let (peer, mapped) = b.mapped(Rank(0)).unwrap();
    let mapping = mapped.map(peer, &key).unwrap();
    assert!(a.revoke_access(Rank(1), memory.region()), "it is mapped");
    drop(mapping);
    assert!(!a.revoke_access(Rank(1), memory.region()));
}

#[test]
#[allow(unsafe_code, reason = "vouches for memory of a device")]
fn what_is_taken_back_is_nobody_elses_or_it_is_said_that_it_is() {
    let hub = Hub::new();
    let (mut a, mut b) = pair(&hub, Shifty::new(&hub));
    let device: Arc<dyn Device> = Arc::new(FakeDevice::new(0));
    a.attach(&device).unwrap();
    b.attach(&device).unwrap();
    let far = device.allocate(64).unwrap();
    // SAFETY: the device has just given it, and nobody frees it.
    let lease = unsafe { Lease::kept_by_caller(far) };
    assert!(a.take_back(Rank(1), far), "nobody was granted it");
    let (peer, mapped) = a.mapped(Rank(1)).unwrap();
    let key = mapped.key(peer, &lease).unwrap();
    let (peer, mapped) = b.mapped(Rank(0)).unwrap();
    let mapping = mapped.map(peer, &key).unwrap();
    assert!(!a.take_back(Rank(1), far), "a device's memory has no other pages");
    drop(mapping);
    assert!(a.take_back(Rank(1), far));
}

/// In a process of its own, which ends.
#[test]
#[allow(unsafe_code, reason = "calls Rdma on memory that is never freed")]
fn memory_that_cannot_be_taken_back_ends_the_process() {
    const CHILD: &str = "GAPLESS_TEST_HIDES_ITS_ABILITY";
    if std::env::var_os(CHILD).is_some() {
        let hub = Hub::new();
        let shifty = Shifty::new(&hub);
        let shown = Arc::clone(&shifty.shown);
        let (mut a, _b) = pair(&hub, shifty);
        let rail = a.rdma_rail(Rank(1)).unwrap();
        let memory = Region::of_mut(Box::leak(Box::new([0u8; 8])));
        // SAFETY: leaked memory, without references.
        let key = unsafe { a.rdma(Rank(1)).unwrap().1.register(memory, Access::Read) }.unwrap();
        shown.store(SECOND, Ordering::Relaxed);
        a.deregister(rail, &key);
        // Whoever gets here would free the memory.
        return;
    }
    let name = "tests::shifty::memory_that_cannot_be_taken_back_ends_the_process";
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(!child.status.success() && said.contains("transport shifty hides"), "{said}");
}
