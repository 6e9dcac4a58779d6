//! What both processes do: check a message, or bounce it, at rank 0's word.
//!
//! ```text
//! rank 0                              rank 1
//!   | order: verify, subject ---------> |
//!   | message ------------------------> | fills its buffer before, compares after
//!   | <------------------------ message |
//!   | <------------------------ verdict |
//!   | order: bounce, subject, count --> |
//!   | message ------------------------> |  count times
//!   | <------------------------ message |
//! ```

use super::pass::Effort;
use super::setting::Setting;
use super::show::Protocols;
use crate::failure::Failure;
use crate::memory::{
    Boxes, Budget, Devices, Ends, Locked, Places, Sent, Sided, Source, Where, Wrong,
};
use crate::sampling;
use gapless::Communicator;
use gapless::Error;
use gapless::World;
use gapless_dtype::{Datatype, Primitive};
use gapless_layouts::{Case, Side};
use gapless_pml::{Config, Protocol, ProtocolCounts};
use gapless_report::{Samples, Summary};
use std::time::{Duration, Instant};

mod plain;

pub(super) use plain::Plain;

/// Messages by which it shows how those that are timed go, and up to which length so many are compared.
const SETTLING: u32 = 6;
const SETTLED_BYTES: u64 = 256 << 10;
const ORDER: i32 = 1;
const DATA: i32 = 2;
const VERDICT: i32 = 3;

/// Round trips before the clock starts.
const WARM: u64 = 2;
/// Blocks of messages so large are not walked to find places for them, if they are dense enough.
const LARGE_BYTES: u64 = 32 << 20;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// A case of the selection.
    Case(usize),
    /// This many contiguous bytes.
    Contiguous(u64),
}

/// What rank 1 is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Verify(Subject),
    Bounce { subject: Subject, resident: bool, count: u64 },
    Done,
}

impl Order {
    fn words(self) -> [u64; 5] {
        let subject = |subject| match subject {
            Subject::Case(index) => [0, index as u64],
            Subject::Contiguous(bytes) => [1, bytes],
        };
        match self {
            Order::Done => [0; 5],
            Order::Verify(what) => [1, subject(what)[0], subject(what)[1], 0, 0],
            Order::Bounce { subject: what, resident, count } => {
                [2, subject(what)[0], subject(what)[1], u64::from(resident), count]
            }
        }
    }

    fn read([kind, what, value, resident, count]: [u64; 5]) -> Order {
        let subject = match what {
            0 => Subject::Case(usize::try_from(value).unwrap_or(usize::MAX)),
            _ => Subject::Contiguous(value),
        };
        match kind {
            1 => Order::Verify(subject),
            2 => Order::Bounce { subject, resident: resident != 0, count },
            _ => Order::Done,
        }
    }
}

/// A subject with its layouts committed and its places found.
pub(super) struct Prepared {
    pub(super) subject: Subject,
    pub(super) send: Sided,
    pub(super) recv: Sided,
}

/// What is measured with, and of what: equal in both processes.
#[derive(Clone, Copy)]
pub(super) struct RunSpec<'a> {
    pub(super) cases: &'a [Case],
    /// How each case is carried; all as the world was told, if there are none.
    pub(super) settings: &'a [Setting],
    pub(super) ends: Ends,
    /// Where host memory comes from.
    pub(super) source: Source,
    pub(super) arena_bytes: u64,
    /// Bytes that the places of each side should touch together, at least.
    pub(super) wanted_bytes: u64,
    pub(super) seed: u64,
}

/// One process's end of the ping-pong, with arenas from one source.
pub(super) struct Bench<'a> {
    world: &'a World,
    comm: &'a Communicator,
    devices: &'a mut Devices,
    spec: RunSpec<'a>,
    peer: u32,
    boxes: Boxes,
    /// Page-locked memory for plain copies, once there were any.
    locked: Option<Locked>,
    /// How the world carries messages of which nothing is asked.
    base: Config,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        world: &'a World,
        devices: &'a mut Devices,
        spec: RunSpec<'a>,
    ) -> Result<Bench<'a>, Failure> {
        let place = (spec.ends.of(world.rank()), spec.source);
        if place == (Where::Host, Source::Locked) {
            devices.open(spec.ends.of(1 - world.rank()), Budget::default())?;
        }
        let boxes = Boxes::open(world, devices, place, spec.arena_bytes, spec.seed)?;
        let (comm, peer) = (world.comm(), 1 - world.rank());
        let base = world.config()?;
        Ok(Bench { world, comm, devices, spec, peer, boxes, locked: None, base })
    }

    /// Commits a subject's layouts and finds its places; from now on messages go as its setting says.
    pub(super) fn prepare(&self, subject: Subject) -> Result<Prepared, Failure> {
        let spec = &self.spec;
        let (send, recv) = match subject {
            Subject::Case(index) => {
                if let Some(setting) = spec.settings.get(index) {
                    self.carry(setting.over(self.base.clone()))?;
                }
                let case = spec.cases.get(index).expect("both processes have the same cases");
                (case.send.clone(), case.recv.clone())
            }
            Subject::Contiguous(bytes) => (contiguous(bytes), contiguous(bytes)),
        };
        let sided = |side: &Side, salt: u64| {
            let layout = side.datatype.commit()?;
            let (arena, wanted) = (spec.arena_bytes, spec.wanted_bytes);
            // Both processes must find the same: each knows from which bytes the other sends.
            let large = spec.ends.involve_device() || side.payload_bytes() >= LARGE_BYTES;
            let apart = large.then(|| Places::side_by_side(side, arena, wanted));
            let places = match apart.flatten() {
                Some(places) => Some(places),
                None => Places::find(side, &layout, arena, wanted),
            };
            let mut places = places.expect("arenas are as large as the largest buffer");
            places.shuffle(spec.seed ^ salt);
            Ok::<_, Failure>(Sided { layout, count: side.count, places })
        };
        Ok(Prepared { subject, send: sided(&send, 1)?, recv: sided(&recv, 2)? })
    }

    /// The time of the least launch on this process's device; `None` if it has none.
    pub(super) fn launch_and_wait(&mut self) -> Result<Option<Summary>, Failure> {
        match self.devices.open(self.spec.ends.of(1 - self.peer), Budget::default())? {
            Some(opened) => opened.launch_and_wait(),
            None => Ok(None),
        }
    }

    /// What this process has done so far by the protocols of a round trip.
    pub(super) fn counts(&self, protocols: Protocols) -> Result<ProtocolCounts, Error> {
        let counters = self.world.counters()?;
        let sum =
            protocols.all().map(|protocol| counters.of(protocol)).reduce(|a, b| ProtocolCounts {
                messages: a.messages + b.messages,
                bytes: a.bytes + b.bytes,
                fragments: a.fragments + b.fragments,
                packs: a.packs + b.packs,
                unpacks: a.unpacks + b.unpacks,
                copies: a.copies + b.copies,
                staged_bytes: a.staged_bytes + b.staged_bytes,
                depth_max: a.depth_max.max(b.depth_max),
            });
        Ok(sum.unwrap_or_default())
    }

    fn carry(&self, as_told: Config) -> Result<(), Error> {
        self.world.set_config(as_told)
    }

    /// Rank 1: does what it is told until there is no more. `before` hears which case comes.
    pub(super) fn obey(&mut self, before: &mut dyn FnMut(usize)) -> Result<(), Failure> {
        let mut prepared: Option<Prepared> = None;
        loop {
            let mut words = [0u64; 5];
            self.comm.recv(&mut words, self.peer, ORDER)?;
            let order = Order::read(words);
            let subject = match order {
                Order::Done => return Ok(self.carry(self.base.clone())?),
                Order::Verify(subject) | Order::Bounce { subject, .. } => subject,
            };
            if prepared.as_ref().is_none_or(|known| known.subject != subject) {
                if let Subject::Case(index) = subject {
                    before(index);
                }
                prepared = Some(self.prepare(subject)?);
            }
            let prepared = prepared.as_ref().expect("made just now");
            match order {
                Order::Bounce { resident, count, .. } => {
                    self.bounce(prepared, resident, |turn| (0..count).try_for_each(|_| turn()))?;
                }
                _ => {
                    self.boxes.refill(&prepared.recv, 0)?;
                    self.comm.send(&[0u64; 0], self.peer, VERDICT)?;
                    self.receive(prepared)?;
                    self.send_one(prepared)?;
                    let words = match self.check(prepared)? {
                        Ok(()) => [0, 0, 0, 0],
                        Err(Wrong { offset, found, expected }) => {
                            [1, offset, u64::from(found), u64::from(expected)]
                        }
                    };
                    self.comm.send(&words, self.peer, VERDICT)?;
                }
            }
        }
    }

    /// Rank 0: tells rank 1 that there is no more.
    pub(super) fn dismiss(&self) -> Result<(), Error> {
        self.comm.send(&Order::Done.words(), self.peer, ORDER)?;
        self.carry(self.base.clone())
    }

    /// Rank 0: sends messages there and back, and has both ends compare every byte. Several, where they are
    /// short or a user's page-locked memory is at one end: the first ones make what later ones go by, a ring between two
    /// devices for instance.
    pub(super) fn verify(
        &mut self,
        prepared: &Prepared,
    ) -> Result<(Protocols, Result<(), Wrong>), Failure> {
        let bytes = prepared.send.layout.size().saturating_mul(prepared.send.count);
        let mut found = self.verify_once(prepared)?;
        let times = match self.spec.source {
            _ if bytes <= SETTLED_BYTES => SETTLING,
            Source::Locked => 2,
            _ => 1,
        };
        for _ in 1..times {
            if found.1.is_err() {
                break;
            }
            found = self.verify_once(prepared)?;
        }
        Ok(found)
    }

    /// One message there and back, compared at both ends at the same time.
    fn verify_once(
        &mut self,
        prepared: &Prepared,
    ) -> Result<(Protocols, Result<(), Wrong>), Failure> {
        self.comm.send(&Order::Verify(prepared.subject).words(), self.peer, ORDER)?;
        self.boxes.refill(&prepared.recv, 0)?;
        self.comm.recv(&mut [0u64; 0], self.peer, VERDICT)?;
        let ping = self.send_one(prepared)?;
        let protocols = Protocols { ping, pong: self.receive(prepared)? };
        let here = self.check(prepared)?;
        let mut words = [0u64; 4];
        self.comm.recv(&mut words, self.peer, VERDICT)?;
        let byte = |word: u64| word.to_le_bytes()[0];
        let there = match words {
            [0, ..] => Ok(()),
            [_, offset, found, expected] => {
                Err(Wrong { offset, found: byte(found), expected: byte(expected) })
            }
        };
        Ok((protocols, here.and(there)))
    }

    fn send_one(&self, prepared: &Prepared) -> Result<Protocol, Error> {
        let Sided { layout, count, places } = &prepared.send;
        let view = self.boxes.outbox.views(places, layout, *count, 1)?;
        Ok(self.comm.send(&view[0], self.peer, DATA)?.protocol)
    }

    fn receive(&mut self, prepared: &Prepared) -> Result<Protocol, Error> {
        let Sided { layout, count, places } = &prepared.recv;
        let mut views = self.boxes.inbox.views_mut(places, layout, *count, 1)?;
        Ok(self.comm.recv(&mut views[0], self.peer, DATA)?.protocol)
    }

    fn check(&mut self, prepared: &Prepared) -> Result<Result<(), Wrong>, Failure> {
        self.boxes.check(&[Sent::all(&prepared.send, self.peer)], &prepared.recv, 0)
    }

    /// Gives `work` a function that does one turn of the exchange: a round trip at rank 0, an echo
    /// at rank 1; at another place each time unless `resident`.
    fn bounce<T>(
        &mut self,
        prepared: &Prepared,
        resident: bool,
        work: impl FnOnce(&mut dyn FnMut() -> Result<(), Error>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let limit = if resident { 1 } else { usize::MAX };
        let Prepared { send, recv, .. } = prepared;
        let sends = self.boxes.outbox.views(&send.places, &send.layout, send.count, limit)?;
        let mut recvs =
            self.boxes.inbox.views_mut(&recv.places, &recv.layout, recv.count, limit)?;
        let (comm, peer) = (self.comm, self.peer);
        let (mut out, mut into) = (0, 0);
        work(&mut || {
            if peer == 1 {
                comm.send(&sends[out], peer, DATA)?;
                comm.recv(&mut recvs[into], peer, DATA)?;
            } else {
                comm.recv(&mut recvs[into], peer, DATA)?;
                comm.send(&sends[out], peer, DATA)?;
            }
            out = if out + 1 == sends.len() { 0 } else { out + 1 };
            into = if into + 1 == recvs.len() { 0 } else { into + 1 };
            Ok(())
        })
    }

    /// Rank 0: the one-way time, from half of round trips over buffers that rotate, or the same ones every time: as many
    /// round trips as the effort says.
    pub(super) fn time(
        &mut self,
        prepared: &Prepared,
        resident: bool,
        effort: Effort,
    ) -> Result<Summary, Failure> {
        let tries = 4;
        let Effort { rotating: seconds, iterations, pause, .. } = effort;
        let estimate = self.rounds(prepared, resident, (tries, 1), Duration::ZERO)?;
        let one = estimate.summary().map_or(1e-6, |summary| summary.median).max(1e-9);
        let (samples, batch) = match pause.is_zero() {
            true => plan(one, seconds, iterations),
            false => (sampling::samples(seconds, one + pause.as_secs_f64()), 1),
        };
        let samples = self.rounds(prepared, resident, (samples, batch), pause)?;
        let summary = samples.summary().map_err(|error| Failure::NoSamples {
            what: format!("{:?}", prepared.subject),
            error,
        })?;
        Ok(summary.divided_by(u32::try_from(2 * batch).unwrap_or(u32::MAX)))
    }

    /// Times of `batch` round trips each, with a pause between two, in which this thread computes.
    fn rounds(
        &mut self,
        prepared: &Prepared,
        resident: bool,
        (samples, batch): (u64, u64),
        pause: Duration,
    ) -> Result<Samples, Error> {
        let count = WARM + samples * batch;
        let order = Order::Bounce { subject: prepared.subject, resident, count };
        self.comm.send(&order.words(), self.peer, ORDER)?;
        self.bounce(prepared, resident, |turn| {
            (0..WARM).try_for_each(|_| turn())?;
            let mut times = Vec::with_capacity(usize::try_from(samples).unwrap_or(0));
            for _ in 0..samples {
                let begun = Instant::now();
                while begun.elapsed() < pause {
                    std::hint::spin_loop();
                }
                times.push(sampling::time(batch, &mut *turn)?);
            }
            Ok(times.into_iter().collect())
        })
    }
}

/// How many samples of how many operations each, if one operation takes `one` second.
fn plan(one: f64, seconds: f64, iterations: Option<u32>) -> (u64, u64) {
    let batch = sampling::batch(one);
    match iterations.map(u64::from) {
        Some(count) => (count.div_ceil(batch).max(1), batch.min(count)),
        #[expect(clippy::cast_precision_loss, reason = "at most a million")]
        None => (sampling::samples(seconds, one * batch as f64), batch),
    }
}

fn contiguous(bytes: u64) -> Side {
    Side { datatype: Datatype::from(Primitive::Byte), count: bytes, origin: 0, buffer_bytes: bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{SAMPLES_MAX, SAMPLES_MIN};

    #[test]
    fn orders_survive_as_words() {
        for order in [
            Order::Done,
            Order::Verify(Subject::Case(7)),
            Order::Verify(Subject::Contiguous(1 << 40)),
            Order::Bounce { subject: Subject::Case(0), resident: true, count: 9 },
            Order::Bounce { subject: Subject::Contiguous(5), resident: false, count: u64::MAX },
        ] {
            assert_eq!(Order::read(order.words()), order);
        }
    }

    #[test]
    fn plans_keep_their_bounds() {
        assert_eq!(plan(1e-3, 0.1, None), (100, 1));
        assert_eq!(plan(1e-5, 0.1, None), (SAMPLES_MAX, 2));
        assert_eq!(plan(10.0, 0.1, None), (SAMPLES_MIN, 1));
        assert_eq!(plan(1e-3, 0.1, Some(3)), (3, 1));
        assert_eq!(plan(1e-6, 0.1, Some(3)), (1, 3));
        assert_eq!(plan(1e-12, 1e9, None), (SAMPLES_MAX, 1_000_000));
    }
}
