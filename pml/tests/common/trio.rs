//! An endpoint that shares a device with two peers, which say whatever a test likes.

use super::rogue::Inbox;
use super::{Buffer, Home, lease_of};
use gapless_bml::{Bml, Rank};
use gapless_btl::loopback::{Hub, Loopback};
use gapless_btl::{Btl, RemoteKey, Token};
use gapless_engine::testkit::FakeEngine;
use gapless_engine::{Engine, HostEngine};
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Device, Lease, Space};
use gapless_pml::{AM_TAG, Config, Pml, PmlError, RequestId, SendMode, Source, TagSel};
use std::sync::Arc;

/// An honest endpoint, rank 0, and bare transports behind ranks 1 and 2; all know the device.
pub(crate) struct Trio {
    pub(crate) pml: Pml,
    rogues: [Bml; 2],
    inboxes: [Inbox; 2],
    pub(crate) device: Arc<FakeDevice>,
}

impl Trio {
    pub(crate) fn new(config: Config) -> Trio {
        let hub = Hub::new();
        let mut bmls = [0, 1, 2].map(|rank| Bml::new(Rank(rank), 3));
        let device = Arc::new(FakeDevice::with_delay(3, 1));
        for bml in &mut bmls {
            bml.add(Box::new(Loopback::new(&hub)) as Box<dyn Btl>);
            bml.attach(&(Arc::clone(&device) as Arc<dyn Device>)).unwrap();
        }
        let addresses = bmls.each_ref().map(Bml::addresses);
        let [mut honest, mut first, mut second] = bmls;
        honest.connect(Rank(1), &addresses[1]).unwrap();
        honest.connect(Rank(2), &addresses[2]).unwrap();
        first.connect(Rank(0), &addresses[0]).unwrap();
        second.connect(Rank(0), &addresses[0]).unwrap();
        let engines: Vec<Arc<dyn Engine>> =
            vec![Arc::new(HostEngine), Arc::new(FakeEngine::new(&device, 1))];
        let pml = Pml::new(honest, engines, config);
        Trio { pml, rogues: [first, second], inboxes: Default::default(), device }
    }

    /// A rogue's transport.
    pub(crate) fn rogue(&mut self, rank: u32) -> &mut Bml {
        &mut self.rogues[rank as usize - 1]
    }

    pub(crate) fn inbox(&mut self, rank: u32) -> &mut Inbox {
        &mut self.inboxes[rank as usize - 1]
    }

    /// Has a rogue say something.
    pub(crate) fn inject(&mut self, rank: u32, message: &[u8]) {
        let rogue = self.rogue(rank);
        // Once it was given up, it can say no more.
        if let Ok(mut slot) = rogue.reserve(Rank(0), message.len()) {
            slot.write(0, message).unwrap();
            rogue.send(slot, AM_TAG, Token::NONE);
        }
        self.turn();
    }

    pub(crate) fn turn(&mut self) {
        for _ in 0..30 {
            self.pml.progress();
            for (rogue, inbox) in self.rogues.iter_mut().zip(&mut self.inboxes) {
                rogue.poll(inbox);
            }
        }
    }

    pub(crate) fn recv(&mut self, to: &Buffer, from: Source) -> RequestId {
        let world = self.pml.world();
        // SAFETY: tests keep the buffer until the request has ended or the endpoint is dropped.
        unsafe { self.pml.irecv(&world, &to.typed(), from, TagSel::Any) }.unwrap()
    }

    /// Sends to rank 1.
    pub(crate) fn send(&mut self, from: &Buffer, mode: SendMode) -> RequestId {
        let world = self.pml.world();
        // SAFETY: as above.
        let id = unsafe { self.pml.isend_mode(&world, &from.typed(), 1, 0, mode) }.unwrap();
        self.turn();
        id
    }

    pub(crate) fn device_space(&self) -> Space {
        self.device.space()
    }

    pub(crate) fn home(&self) -> Home {
        Home::Fake(Arc::clone(&self.device))
    }

    /// The last message of a kind that a rogue was told.
    pub(crate) fn heard(&mut self, rank: u32, kind: u8) -> Vec<u8> {
        let inbox = &mut self.inbox(rank).0;
        let at = inbox.iter().rposition(|message| message[0] == kind);
        inbox.swap_remove(at.unwrap_or_else(|| panic!("no {kind}: {inbox:?}")))
    }

    /// A rogue's key for memory of its own.
    pub(crate) fn key(&mut self, rank: u32, memory: &Lease) -> RemoteKey {
        let (peer, mapped) = self.rogue(rank).mapped(Rank(0)).unwrap();
        mapped.key(peer, memory).unwrap()
    }

    /// A rogue's key for some memory of the device.
    pub(crate) fn some_key(&mut self, rank: u32, len: u64) -> RemoteKey {
        let region = self.device.allocate(len).unwrap();
        self.key(rank, &lease_of(region))
    }

    /// A rogue is lost to the endpoint, and was told so.
    pub(crate) fn assert_lost(&mut self, rank: u32, what: &str) {
        assert!(self.inbox(rank).1, "{what}: rank {rank} was not told");
        let world = self.pml.world();
        match self.pml.iprobe(&world, Source::Rank(rank), TagSel::Any) {
            Err(PmlError::PeerLost { rank: lost, .. }) => assert_eq!(lost, rank, "{what}"),
            other => panic!("{what}: {other:?}"),
        }
    }
}
