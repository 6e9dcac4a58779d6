//! Messages that both ends can work out from a seed, and what came of them.

use crate::gear::{Gear, Held};
use crate::side::Side;
use gapless::{
    Communicator, Error, Failure, PmlError, Protocol, Request, Scope, Status, View, ViewMut, World,
};
use gapless_dtype::testkit::Rng;
use std::collections::BTreeMap;

/// A message, as both its ends know it.
pub(crate) struct Letter {
    pub(crate) seed: u64,
    pub(crate) send: Side,
    pub(crate) recv: Side,
    pub(crate) from_device: bool,
    pub(crate) to_device: bool,
}

impl Letter {
    /// The message from one rank to another at a step, of at most `bytes_max` bytes.
    pub(crate) fn of(seed: u64, from: u32, to: u32, step: u64, bytes_max: usize) -> Letter {
        let mut rng = Rng::new(seed ^ u64::from(from) << 48 ^ u64::from(to) << 32 ^ step);
        let seed = rng.next_u64();
        // Device memory at both ends more often than not.
        let (from_device, to_device) =
            *rng.pick(&[(true, true), (true, true), (true, true), (true, false), (false, true)]);
        // As many short as long ones.
        let limit = [0, 300, 9 << 10, 70 << 10, bytes_max, bytes_max][rng.index(6)].min(bytes_max);
        let limit = rng.index(limit + 1);
        let send = if rng.chance(30) {
            let mut kind = Rng::new(rng.next_u64());
            let repeats = 1 + rng.index(1 + limit / 700);
            let send = Side::random(&mut rng, &mut kind.clone(), repeats);
            if rng.chance(50) {
                // The same type at the other end, at other distances, and perhaps some more of them.
                let repeats = repeats + rng.index(2) * rng.index(20);
                let recv = Side::random(&mut rng, &mut kind, repeats);
                return Letter { seed, send, recv, from_device, to_device };
            }
            send
        } else {
            Side::any(&mut rng, limit)
        };
        // As much, more, or (seldom) less than what is sent.
        let room = match rng.below(10) {
            0 => send.bytes() + rng.index(5000),
            1 if rng.chance(30) => rng.index(send.bytes() + 1),
            _ => send.bytes(),
        };
        let recv = Side::any(&mut rng, room);
        Letter { seed, send, recv, from_device, to_device }
    }

    /// `bytes` bytes from device to device.
    pub(crate) fn long(seed: u64, bytes: usize) -> Letter {
        let mut rng = Rng::new(seed);
        let send = Side::any(&mut rng, bytes);
        let recv = Side::any(&mut rng, bytes);
        Letter { seed, send, recv, from_device: true, to_device: true }
    }

    /// `bytes` bytes without gaps from device to device.
    pub(crate) fn row(seed: u64, bytes: usize) -> Letter {
        let (send, recv) = (Side::row(bytes), Side::row(bytes));
        Letter { seed, send, recv, from_device: true, to_device: true }
    }

    /// About `bytes` bytes with gaps at both ends, from device to device.
    pub(crate) fn comb(seed: u64, bytes: usize) -> Letter {
        let (send, recv) = (Side::comb(bytes, 64), Side::comb(bytes, 16));
        Letter { seed, send, recv, from_device: true, to_device: true }
    }

    fn fits(&self) -> bool {
        self.send.bytes() <= self.recv.bytes()
    }
}

/// How often each protocol carried a message.
pub(crate) type Carried = BTreeMap<&'static str, u64>;

/// The buffers of one message in each direction.
pub(crate) struct Exchange {
    pub(crate) out: Held,
    pub(crate) inn: Held,
}

impl Exchange {
    pub(crate) fn prepare(gear: &Gear, out: &Letter, inn: &Letter) -> Exchange {
        Exchange {
            out: gear.hold(out.send.image(out.seed, out.send.bytes()), out.from_device),
            inn: gear.hold(inn.recv.image(0, 0), inn.to_device),
        }
    }

    /// Both messages at once: the send is in flight before the receive is posted, if `late`. How each ended; the
    /// error is that of a message that could not be started.
    ///
    /// # Errors
    /// As those of `isend` and `irecv`.
    pub(crate) fn run(
        &self,
        comm: &Communicator,
        peer: u32,
        tag: i32,
        letters: [&Letter; 2],
        late: bool,
    ) -> Result<[Result<Status, Error>; 2], Error> {
        comm.scope(|s| {
            let early = if late { None } else { Some(self.receive(s, peer, tag, letters[1])?) };
            let send = self.send(s, peer, tag, letters[0])?;
            let receive = match early {
                Some(receive) => receive,
                None => self.receive(s, peer, tag, letters[1])?,
            };
            Ok([s.wait(send), s.wait(receive)])
        })
    }

    /// Many of them at once.
    ///
    /// # Errors
    /// As those of `isend` and `irecv`.
    pub(crate) fn run_all(
        all: &[Exchange],
        comm: &Communicator,
        peer: u32,
        letters: &[(Letter, Letter)],
    ) -> Result<Vec<[Result<Status, Error>; 2]>, Error> {
        comm.scope(|s| {
            let mut requests = Vec::new();
            for ((both, (out, inn)), tag) in all.iter().zip(letters).zip(0..) {
                requests.push((both.send(s, peer, tag, out)?, both.receive(s, peer, tag, inn)?));
            }
            let wait = |(send, receive)| [s.wait(send), s.wait(receive)];
            Ok(requests.into_iter().map(wait).collect())
        })
    }

    fn send<'scope>(
        &self,
        s: &'scope Scope<'scope, '_>,
        peer: u32,
        tag: i32,
        out: &Letter,
    ) -> Result<Request<'scope>, Error> {
        let (region, side) = (self.out.region(), &out.send);
        // SAFETY: the buffer outlives the scope, which joins the message, and nobody writes it.
        let view = unsafe { View::of_region(region, side.origin, &side.layout(), side.count) }?;
        s.isend(view, peer, tag)
    }

    fn receive<'scope>(
        &self,
        s: &'scope Scope<'scope, '_>,
        peer: u32,
        tag: i32,
        inn: &Letter,
    ) -> Result<Request<'scope>, Error> {
        let (region, side) = (self.inn.region(), &inn.recv);
        // SAFETY: as above, and nobody else touches it.
        let view = unsafe { ViewMut::of_region(region, side.origin, &side.layout(), side.count) }?;
        s.irecv(view, peer, tag)
    }

    /// Whether what arrived is what was sent, and nothing beside it has changed.
    ///
    /// # Panics
    /// It is not, or something has.
    pub(crate) fn compare(&self, out: &Letter, inn: &Letter, what: &str) {
        inn.compare(&self.inn.fetch(), what);
        let (kept, whole) = (self.out.fetch(), out.send.image(out.seed, out.send.bytes()));
        assert!(kept == whole, "{what}: the sender's buffer has changed");
    }
}

impl Letter {
    /// Whether `got`, all of the receiver's buffer, is as it has to be.
    ///
    /// # Panics
    /// It is not.
    pub(crate) fn compare(&self, got: &[u8], what: &str) {
        let bytes = self.send.bytes().min(self.recv.bytes());
        let right = self.recv.image(self.seed, bytes);
        let wrong = (0..right.len()).find(|&at| got[at] != right[at]);
        if let Some(at) = wrong {
            let all = (0..right.len()).filter(|&at| got[at] != right[at]).count();
            let (got, right, len) = (got[at], right[at], right.len());
            panic!(
                "{what}: byte {at} of {len} is {got:#04x}, not {right:#04x}; {all} bytes are wrong"
            );
        }
    }
}

/// One message in each direction with a peer (or with oneself), compared in every byte. Gives the protocol of the one
/// that arrived.
///
/// # Panics
/// A wrong byte, a wrong length, or any error but that of a receive that is too short.
pub(crate) fn exchange(
    world: &World,
    gear: &Gear,
    peer: Option<u32>,
    letters: [&Letter; 2],
    step: u64,
    what: &str,
) -> Protocol {
    let [out, inn] = letters;
    let both = Exchange::prepare(gear, out, inn);
    let (comm, peer) = match peer {
        Some(peer) => (world.comm(), peer),
        None => (world.self_comm(), 0),
    };
    let tag = i32::try_from(step % 1_000_000).expect("small");
    let ended = both.run(comm, peer, tag, letters, step.is_multiple_of(2));
    let [sent, received] = ended.unwrap_or_else(|error| panic!("{what}: {error}"));
    let sent = sent.unwrap_or_else(|error| panic!("{what}: sending: {error}"));
    let protocol = match received {
        Ok(status) => {
            assert!(inn.fits(), "{what}: a receive that is too short was not told so");
            assert_eq!(status.bytes, inn.send.bytes() as u64, "{what}");
            status.protocol
        }
        Err(Error::Message(Failure { error: PmlError::Truncated { .. }, .. })) if !inn.fits() => {
            sent.protocol
        }
        Err(error) => panic!("{what}: receiving: {error}"),
    };
    both.compare(out, inn, what);
    both.out.free(world);
    both.inn.free(world);
    protocol
}
