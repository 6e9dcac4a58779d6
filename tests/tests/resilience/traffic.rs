//! Messages that both ends can work out from a seed: sizes, layouts on either side, memory and
//! bytes. So every byte that arrives, and every byte that must not be touched, is compared.

use crate::filled;
use gapless::{Communicator, Datatype, Error, Layout, Primitive, SharedBuf, View, ViewMut, World};
use gapless_dtype::testkit::{Params, Rng, random_sample};
use std::collections::BTreeSet;

/// What a receiver's buffer is full of before.
const UNTOUCHED: u8 = 0xA5;

/// Where the bytes of a message lie at one end.
struct Side {
    datatype: Datatype,
    count: u64,
    origin: u64,
    buffer: usize,
    /// Where each stretch of the packed bytes lies in the buffer, and how long it is.
    runs: Vec<(usize, usize)>,
}

impl Side {
    /// `bytes` in some shape, with gaps in front, between and behind.
    fn any(rng: &mut Rng, bytes: usize) -> Side {
        let byte = Datatype::from(Primitive::Byte);
        let origin = rng.index(64);
        let (datatype, mut runs): (Datatype, Vec<(usize, usize)>) = match rng.below(3) {
            0 => {
                let all = Datatype::contiguous(bytes as u64, &byte).expect("a short row");
                (all, vec![(0, bytes)])
            }
            1 => {
                let rows = [1usize, 2, 3, 5, 8, 16, 64, 100, 256]
                    .into_iter()
                    .filter(|rows| bytes.is_multiple_of(*rows))
                    .nth(rng.index(4))
                    .unwrap_or(1);
                let (row, stride) = (bytes / rows, bytes / rows + rng.index(40));
                let pitch = i64::try_from(stride).expect("a short row");
                let all = Datatype::vector(rows as u64, row as u64, pitch, &byte);
                let runs = (0..rows).map(|at| (at * stride, row)).collect();
                (all.expect("a small matrix"), runs)
            }
            _ => {
                let mut lengths = Vec::new();
                let mut left = bytes;
                while left > 0 && lengths.len() < 100 {
                    let len = (1 + rng.index(2 * bytes.div_ceil(60))).min(left);
                    lengths.push(len);
                    left -= len;
                }
                lengths.push(left);
                let mut at = 0;
                let mut blocks: Vec<(usize, usize)> = Vec::new();
                for len in lengths {
                    blocks.push((at, len));
                    at += len + rng.index(30);
                }
                // Packed order is not the order in memory.
                rng.shuffle(&mut blocks);
                let lengths: Vec<u64> = blocks.iter().map(|&(_, len)| len as u64).collect();
                let starts: Vec<i64> =
                    blocks.iter().map(|&(at, _)| i64::try_from(at).expect("small")).collect();
                let all = Datatype::hindexed(&lengths, &starts, &byte).expect("a short list");
                (all, blocks)
            }
        };
        let end = runs.iter().map(|(at, len)| at + len).max().unwrap_or(0);
        runs.iter_mut().for_each(|(at, _)| *at += origin);
        let buffer = origin + end + rng.index(64);
        Side { datatype, count: 1, origin: origin as u64, buffer, runs }
    }

    /// A random type of up to five constructors.
    fn random(rng: &mut Rng) -> Side {
        let (datatype, typemap) = random_sample(rng, &Params::disjoint());
        let count = rng.below(4);
        let all = typemap.runs(count).expect("a small type");
        let low = all.iter().map(|run| run.displacement).min().unwrap_or(0).min(0).unsigned_abs();
        let small = |n: u64| usize::try_from(n).expect("a small type");
        let origin = small(low) + rng.index(64);
        let place = |displacement: i64| {
            let displacement = isize::try_from(displacement).expect("a small type");
            origin.checked_add_signed(displacement).expect("inside")
        };
        let runs: Vec<_> =
            all.iter().map(|run| (place(run.displacement), small(run.len))).collect();
        let end = runs.iter().map(|(at, len)| at + len).max().unwrap_or(0);
        let buffer = end.max(origin) + rng.index(64);
        Side { datatype, count, origin: origin as u64, buffer, runs }
    }

    /// Bytes of the message.
    fn bytes(&self) -> usize {
        self.runs.iter().map(|(_, len)| len).sum()
    }

    /// A buffer full of `rest`, save the message's bytes.
    fn buffer(&self, seed: u64, rest: u8) -> Vec<u8> {
        let mut buffer = vec![rest; self.buffer];
        let bytes = filled(seed, self.bytes());
        let mut from = 0;
        for &(at, len) in &self.runs {
            buffer[at..at + len].copy_from_slice(&bytes[from..from + len]);
            from += len;
        }
        buffer
    }
}

/// A message, as both its ends know it.
pub(crate) struct Letter {
    seed: u64,
    send: Side,
    recv: Side,
    /// Whether it goes out of memory that peers can map.
    mapped: bool,
}

impl Letter {
    /// The message from one rank to another at a step.
    pub(crate) fn of(seed: u64, from: u32, to: u32, step: u64, bytes_max: u64) -> Letter {
        let mix = seed ^ u64::from(from) << 48 ^ u64::from(to) << 32 ^ step;
        let mut rng = Rng::new(mix);
        let seed = rng.next_u64();
        if rng.chance(25) {
            let state = rng.clone();
            let send = Side::random(&mut rng);
            let recv = Side::random(&mut state.clone());
            return Letter { seed, send, recv, mapped: false };
        }
        // As many short as long ones.
        let limit = [0, 224, 8 << 10, 70 << 10, bytes_max][rng.index(5)].min(bytes_max);
        let bytes = usize::try_from(rng.below(limit + 1)).expect("small");
        let send = Side::any(&mut rng, bytes);
        let recv = Side::any(&mut rng, bytes);
        Letter { seed, send, recv, mapped: bytes > 4096 && rng.chance(30) }
    }

    /// Filled memory to send it from.
    pub(crate) fn outbox(&self, world: &World) -> Outbox {
        let bytes = self.send.buffer(self.seed, 0x5A);
        if !self.mapped {
            return Outbox::Heap(bytes);
        }
        let mut shared = world.alloc(bytes.len()).expect("memory");
        shared.copy_from_slice(&bytes);
        Outbox::Shared(shared)
    }

    /// Memory to receive it into.
    pub(crate) fn inbox(&self) -> Vec<u8> {
        vec![UNTOUCHED; self.recv.buffer]
    }

    /// The sender's layout, its origin and count.
    ///
    /// # Errors
    /// None for what is made here.
    pub(crate) fn send(&self) -> Result<(Layout, (u64, u64)), Error> {
        Ok((self.send.datatype.commit()?, (self.send.origin, self.send.count)))
    }

    /// The receiver's layout, its origin and count.
    ///
    /// # Errors
    /// None for what is made here.
    pub(crate) fn recv(&self) -> Result<(Layout, (u64, u64)), Error> {
        Ok((self.recv.datatype.commit()?, (self.recv.origin, self.recv.count)))
    }

    /// Whatever was received: what lies between the layout's blocks is as before.
    ///
    /// # Panics
    /// It is not.
    pub(crate) fn assert_gaps(&self, inbox: &[u8], step: u64, peer: u32) {
        let mut gaps = vec![true; inbox.len()];
        for &(at, len) in &self.recv.runs {
            gaps[at..at + len].fill(false);
        }
        let touched = (0..inbox.len()).find(|&at| gaps[at] && inbox[at] != UNTOUCHED);
        assert_eq!(touched, None, "step {step} from {peer}: a byte beside the message is changed");
    }
}

/// A sender's memory.
pub(crate) enum Outbox {
    Heap(Vec<u8>),
    Shared(SharedBuf),
}

impl std::ops::Deref for Outbox {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Outbox::Heap(bytes) => bytes,
            Outbox::Shared(bytes) => bytes,
        }
    }
}

/// The traffic of one rank with others, step by step.
pub(crate) struct Traffic {
    pub(crate) seed: u64,
    pub(crate) bytes_max: u64,
    /// Added to every tag.
    pub(crate) first_tag: i32,
    /// Those it goes on with.
    pub(crate) live: BTreeSet<u32>,
    pub(crate) step: u64,
    /// Messages received and compared.
    pub(crate) compared: u64,
    /// Bytes in them.
    pub(crate) bytes: u64,
}

/// What a step brought.
pub(crate) struct Outcome {
    /// The word that each peer sent along.
    pub(crate) words: Vec<(u32, u64)>,
    /// Those who were lost, and the error.
    pub(crate) lost: Vec<(u32, Error)>,
}

impl Traffic {
    pub(crate) fn new(seed: u64, bytes_max: u64, live: impl IntoIterator<Item = u32>) -> Traffic {
        let live = live.into_iter().collect();
        Traffic { seed, bytes_max, first_tag: 0, live, step: 0, compared: 0, bytes: 0 }
    }

    /// One message in each direction, and one with a word, with everyone who lives. Whoever is lost is
    /// lost for all further steps.
    ///
    /// # Panics
    /// A wrong byte, a wrong length, any error but the loss of that very peer.
    pub(crate) fn step(&mut self, world: &World, comm: &Communicator, word: u64) -> Outcome {
        let me = comm.rank();
        let tag = self.first_tag + 2 * i32::try_from(self.step % 1_000_000).expect("small");
        let peers: Vec<u32> = self.live.iter().copied().collect();
        let letter = |from, to| Letter::of(self.seed, from, to, self.step, self.bytes_max);
        let out: Vec<Letter> = peers.iter().map(|&peer| letter(me, peer)).collect();
        let inn: Vec<Letter> = peers.iter().map(|&peer| letter(peer, me)).collect();
        let outboxes: Vec<Outbox> = out.iter().map(|letter| letter.outbox(world)).collect();
        let mut inboxes: Vec<Vec<u8>> = inn.iter().map(Letter::inbox).collect();
        let mine = [word];
        let mut theirs = vec![[0u64]; peers.len()];
        let mut failed: Vec<Option<Error>> = vec![None; peers.len()];
        let done = comm.scope(|s| {
            let mut requests = Vec::new();
            let mut note = |at: usize, what: &str, result: Result<_, Error>| match result {
                Ok(value) => Some(value),
                Err(error) => {
                    let lost = error.lost_rank();
                    assert_eq!(lost, Some(peers[at]), "step {} {what}: {error}", self.step);
                    failed[at] = Some(error);
                    None
                }
            };
            let mut places = inboxes.iter_mut().zip(&mut theirs);
            for (at, &peer) in peers.iter().enumerate() {
                let (inbox, their) = places.next().expect("one for each peer");
                let (layout, (origin, count)) = inn[at].recv()?;
                let into = ViewMut::typed(inbox, origin, &layout, count)?;
                for started in [s.irecv(into, peer, tag + 1), s.irecv(their, peer, tag)] {
                    requests.push((at, note(at, "irecv", started)));
                }
            }
            for (at, &peer) in peers.iter().enumerate() {
                let (layout, (origin, count)) = out[at].send()?;
                let from = View::typed(&outboxes[at][..], origin, &layout, count)?;
                for started in [s.isend(&mine, peer, tag), s.isend(from, peer, tag + 1)] {
                    requests.push((at, note(at, "isend", started)));
                }
            }
            for (at, request) in requests {
                if let Some(request) = request {
                    let ended = s.wait(request).map(|_| ());
                    note_end(&mut failed, &peers, at, self.step, ended);
                }
            }
            Ok(())
        });
        done.unwrap_or_else(|error| panic!("step {}: {error}", self.step));
        let mut outcome = Outcome { words: Vec::new(), lost: Vec::new() };
        for (at, &peer) in peers.iter().enumerate() {
            if let Some(error) = failed[at].take() {
                self.live.remove(&peer);
                outcome.lost.push((peer, error));
                continue;
            }
            let expected = inn[at].recv.buffer(inn[at].seed, UNTOUCHED);
            if let Some(wrong) = (0..expected.len()).find(|&i| inboxes[at][i] != expected[i]) {
                panic!(
                    "step {} from {peer}: byte {wrong} of {} is {:#04x}, not {:#04x}",
                    self.step,
                    expected.len(),
                    inboxes[at][wrong],
                    expected[wrong]
                );
            }
            self.compared += 1;
            self.bytes += inn[at].recv.bytes() as u64;
            outcome.words.push((peer, theirs[at][0]));
        }
        self.step += 1;
        outcome
    }
}

/// Keeps the first loss of a peer.
fn note_end(
    failed: &mut [Option<Error>],
    peers: &[u32],
    at: usize,
    step: u64,
    ended: Result<(), Error>,
) {
    if let Err(error) = ended {
        assert_eq!(error.lost_rank(), Some(peers[at]), "step {step}: {error}");
        failed[at] = Some(error);
    }
}
