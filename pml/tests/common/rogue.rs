//! An endpoint that shares a device with a peer which says whatever a test likes.

use super::lab::{FRAGMENT, config};
use super::{Buffer, Home, lease_of};
use gapless_bml::{Bml, Handler, Rank, RankEvent};
use gapless_btl::loopback::{Hub, Loopback};
use gapless_btl::{Btl, RemoteKey, Token};
use gapless_engine::testkit::FakeEngine;
use gapless_engine::{Engine, HostEngine};
use gapless_mem::Device;
use gapless_mem::fake::FakeDevice;
use gapless_pml::{AM_TAG, Failure, Pml, PmlError, Protocol, RequestId, Source, TagSel};
use std::sync::Arc;

/// Keeps what arrives, and whether the link was ended.
#[derive(Default)]
pub(crate) struct Inbox(pub(crate) Vec<Vec<u8>>, pub(crate) bool);

impl Handler for Inbox {
    fn handle(&mut self, _: &mut Bml, event: RankEvent) {
        match event {
            RankEvent::Arrived { fragment, .. } => self.0.push(fragment.to_vec().unwrap()),
            RankEvent::Lost { .. } => self.1 = true,
            _ => {}
        }
    }
}

/// An honest endpoint, rank 0, and a bare transport behind rank 1; both know the device.
pub(crate) struct Pair {
    pub(crate) pml: Pml,
    pub(crate) rogue: Bml,
    pub(crate) inbox: Inbox,
    pub(crate) device: Arc<FakeDevice>,
}

pub(crate) const VERSION: u8 = 12;
/// Numbers on the wire.
pub(crate) const PUT: u8 = 6;
pub(crate) const GET: u8 = 8;
pub(crate) const HOST: u8 = 10;

impl Pair {
    pub(crate) fn new(protocol: Protocol) -> Pair {
        Pair::with(protocol, |device| Arc::new(FakeEngine::new(device, 1)))
    }

    /// With another engine of the device.
    pub(crate) fn with(
        protocol: Protocol,
        engine: impl Fn(&Arc<FakeDevice>) -> Arc<dyn Engine>,
    ) -> Pair {
        let hub = Hub::new();
        let mut bmls = [Bml::new(Rank(0), 2), Bml::new(Rank(1), 2)];
        let device = Arc::new(FakeDevice::with_delay(3, 1));
        for bml in &mut bmls {
            bml.add(Box::new(Loopback::new(&hub)) as Box<dyn Btl>);
            bml.attach(&(Arc::clone(&device) as Arc<dyn Device>)).unwrap();
        }
        let addresses = bmls.each_ref().map(Bml::addresses);
        let [mut honest, mut rogue] = bmls;
        honest.connect(Rank(1), &addresses[1]).unwrap();
        rogue.connect(Rank(0), &addresses[0]).unwrap();
        let engines: Vec<Arc<dyn Engine>> = vec![Arc::new(HostEngine), engine(&device)];
        let pml = Pml::new(honest, engines, config(protocol, 3));
        Pair { pml, rogue, inbox: Inbox::default(), device }
    }

    pub(crate) fn inject(&mut self, message: &[u8]) {
        if let Ok(mut slot) = self.rogue.reserve(Rank(0), message.len()) {
            slot.write(0, message).unwrap();
            self.rogue.send(slot, AM_TAG, Token::NONE);
        }
        self.turn();
    }

    pub(crate) fn turn(&mut self) {
        for _ in 0..30 {
            self.pml.progress();
            self.rogue.poll(&mut self.inbox);
        }
    }

    pub(crate) fn recv(&mut self, to: &Buffer) -> RequestId {
        let world = self.pml.world();
        // SAFETY: tests keep the buffer until the request has ended or the endpoint is dropped.
        unsafe { self.pml.irecv(&world, &to.typed(), Source::Rank(1), TagSel::Any) }.unwrap()
    }

    pub(crate) fn send(&mut self, from: &Buffer) -> RequestId {
        let world = self.pml.world();
        // SAFETY: as above.
        unsafe { self.pml.isend(&world, &from.typed(), 1, 0) }.unwrap()
    }

    pub(crate) fn home(&self) -> Home {
        Home::Fake(Arc::clone(&self.device))
    }

    /// The last message of a kind.
    pub(crate) fn heard(&mut self, kind: u8) -> Vec<u8> {
        let at = self.inbox.0.iter().rposition(|message| message[0] == kind);
        self.inbox.0.swap_remove(at.unwrap_or_else(|| panic!("no {kind}: {:?}", self.inbox.0)))
    }

    /// A key of the rogue's for memory of its own.
    pub(crate) fn rogue_key(&mut self, len: u64) -> RemoteKey {
        let region = self.device.allocate(len).unwrap();
        let (peer, mapped) = self.rogue.mapped(Rank(0)).unwrap();
        mapped.key(peer, &lease_of(region)).unwrap()
    }

    pub(crate) fn assert_lost(&mut self, id: RequestId, what: &str) {
        self.turn();
        match self.pml.test(id) {
            Err(Failure { error: PmlError::PeerLost { rank: 1, .. }, .. }) => {}
            other => panic!("{what}: {other:?}"),
        }
        // The ring is back once the rogue has let go of it.
        for _ in 0..10 {
            self.turn();
        }
        assert!(!self.pml.is_busy(), "{what}");
    }
}

pub(crate) fn word(message: &mut [u8], at: usize, value: u64) {
    message[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn words(kind: u8, first: u64, second: u64) -> Vec<u8> {
    let mut message = vec![0; 32];
    message[..2].copy_from_slice(&[kind, VERSION]);
    word(&mut message, 8, first);
    word(&mut message, 16, second);
    message
}

pub(crate) fn ready(reply: u64, index: u64) -> Vec<u8> {
    words(12, reply, index)
}

pub(crate) fn free(serial: u64, limit: u64) -> Vec<u8> {
    words(13, serial, limit)
}

pub(crate) fn short(kind: u8, code: u8, name: u64) -> Vec<u8> {
    let mut message = vec![0; 16];
    message[..3].copy_from_slice(&[kind, VERSION, code]);
    word(&mut message, 8, name);
    message
}

pub(crate) fn ring(reply: u64, depth: u32, key: &RemoteKey) -> Vec<u8> {
    let mut message = vec![0; 16];
    let len = u8::try_from(key.as_bytes().len()).unwrap();
    message[..3].copy_from_slice(&[11, VERSION, len]);
    message[4..8].copy_from_slice(&depth.to_le_bytes());
    word(&mut message, 8, reply);
    message.extend(key.as_bytes());
    message
}

pub(crate) fn open(
    protocol: u8,
    serial: u64,
    end: u64,
    depth: u32,
    key: Option<&RemoteKey>,
) -> Vec<u8> {
    let mut message = vec![0; 40];
    let key = key.map_or(&[][..], RemoteKey::as_bytes);
    message[..4].copy_from_slice(&[10, VERSION, protocol, 0]);
    message[4..8].copy_from_slice(&depth.to_le_bytes());
    message[8..12].copy_from_slice(&FRAGMENT.to_le_bytes());
    message[12] = u8::try_from(key.len()).unwrap();
    word(&mut message, 16, serial);
    word(&mut message, 24, 55);
    word(&mut message, 32, end);
    message.extend(key);
    message
}

/// An offer of untyped bytes without gaps in memory of a device.
pub(crate) fn offer(bytes: u64) -> Vec<u8> {
    let mut message = vec![0; 128];
    message[..2].copy_from_slice(&[2, VERSION]);
    word(&mut message, 16, 1 << 61);
    word(&mut message, 24, bytes);
    for (at, value) in [(32, bytes), (40, 77), (48, 1), (64, bytes), (72, 1)] {
        word(&mut message, at, value);
    }
    message[96..100].copy_from_slice(&4096u32.to_le_bytes());
    message[100] = 4;
    // A device's, that can stage both ways.
    message[108..110].copy_from_slice(&[1, 3]);
    // Its device shares memory with those that say the same.
    message[111] = 3;
    message[112..116].copy_from_slice(&FRAGMENT.to_le_bytes());
    message[116] = 3;
    message
}

/// The name that an OPEN gives its receive.
pub(crate) fn reply_of(open: &[u8]) -> u64 {
    u64::from_le_bytes(open[24..32].try_into().unwrap())
}

/// The name of an offer.
pub(crate) fn serial_of(rts: &[u8]) -> u64 {
    u64::from_le_bytes(rts[40..48].try_into().unwrap())
}
