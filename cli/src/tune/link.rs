//! What messages between two processes of this host cost, protocol by protocol: each is forced upon
//! messages that go back and forth.
//!
//! ```text
//! rank 0                                  rank 1
//!   | order: protocol, bytes, fragment, count -> | sets the same
//!   | message ---------------------------> |  count times
//!   | <--------------------------- message |
//! ```

use super::clock::{copy_seconds, repeats, settled, slope_mb_s};
use super::found::Found;
use crate::failure::Failure;
use gapless::Error;
use gapless::SharedBuf;
use gapless::World;
use gapless_pml::{Config, Protocol, Tuning};
use std::time::{Duration, Instant};

const ORDER: i32 = 1;
const DATA: i32 = 2;

/// Lengths between which a protocol's bandwidth is measured, in bytes.
const SHORT: u64 = 256 << 10;
const LONG: u64 = 2 << 20;

/// Of a message whose data hardly counts.
const TINY: u64 = 8;
const SMALL: u64 = 4 << 10;

/// Fragments that are tried.
const FRAGMENTS: [u32; 4] = [8 << 10, 16 << 10, 32 << 10, 64 << 10];

/// By how much another fragment size must be better than the default to be taken.
const WORTH: f64 = 0.97;

/// Parts of the time: as many as there are readings below.
const PARTS: f64 = 20.0;

/// One end of the two.
pub(super) struct Link<'w> {
    world: &'w World,
    peer: u32,
    /// Memory that the peer can map, where there is some.
    out: SharedBuf,
    inbox: SharedBuf,
    heap: Vec<u8>,
    /// When nothing new is started any more: the machine is slower than anybody thought.
    end: Option<Instant>,
}

/// What rank 1 is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Done,
    Devices,
    Bounce(Probe, usize),
}

/// How messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Probe {
    protocol: Protocol,
    bytes: u64,
    fragment: u32,
}

impl Order {
    fn words(self) -> [u64; 5] {
        match self {
            Order::Done => [0; 5],
            Order::Devices => [1, 0, 0, 0, 0],
            Order::Bounce(Probe { protocol, bytes, fragment }, count) => {
                let protocol =
                    Protocol::ALL.iter().position(|known| *known == protocol).unwrap_or(0);
                [2, protocol as u64, bytes, fragment.into(), count as u64]
            }
        }
    }

    fn read([kind, protocol, bytes, fragment, count]: [u64; 5]) -> Order {
        let index = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        match kind {
            0 => Order::Done,
            1 => Order::Devices,
            _ => {
                let protocol =
                    Protocol::ALL.get(index(protocol)).copied().unwrap_or(Protocol::Pipeline);
                let fragment = u32::try_from(fragment).unwrap_or(u32::MAX);
                Order::Bounce(Probe { protocol, bytes, fragment }, index(count))
            }
        }
    }
}

impl<'w> Link<'w> {
    pub(super) fn new(world: &'w World) -> Result<Link<'w>, Failure> {
        let len = usize::try_from(LONG).unwrap_or(usize::MAX);
        let (mut out, inbox) = (world.alloc(len)?, world.alloc(len)?);
        out.fill(1);
        Ok(Link { world, peer: 1 - world.rank(), out, inbox, heap: vec![1; len], end: None })
    }

    /// Rank 1: does what it is told; `devices` when it is the devices' turn.
    pub(super) fn obey(
        mut self,
        mut devices: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        loop {
            let mut words = [0u64; 5];
            self.world.comm().recv(&mut words, self.peer, ORDER)?;
            match Order::read(words) {
                Order::Done => return Ok(()),
                Order::Devices => devices()?,
                Order::Bounce(probe, count) => {
                    self.apply(probe)?;
                    for _ in 0..count {
                        self.receive(probe)?;
                        self.send(probe)?;
                    }
                }
            }
        }
    }

    #[cfg(any(feature = "cuda", feature = "opencl"))]
    pub(super) fn world(&self) -> &World {
        self.world
    }

    #[cfg(any(feature = "cuda", feature = "opencl"))]
    pub(super) fn peer(&self) -> u32 {
        self.peer
    }

    /// Rank 0: has rank 1 stop.
    pub(super) fn done(&self) -> Result<(), Failure> {
        self.order(Order::Done)
    }

    fn order(&self, order: Order) -> Result<(), Failure> {
        self.world.comm().send(&order.words()[..], self.peer, ORDER)?;
        Ok(())
    }

    fn apply(&self, probe: Probe) -> Result<(), Error> {
        let tuning = Tuning { fragment_bytes: probe.fragment, ..Tuning::default() };
        // Its limit is what is to be found. What is sure to be eager goes by the quickest code.
        let sure = if probe.protocol == Protocol::Eager { u64::MAX } else { 0 };
        let tuning = Tuning { eager_bytes_max: u64::MAX, eager_bytes_sure: sure, ..tuning };
        self.world.set_config(Config {
            force: Some(probe.protocol),
            tuning,
            ..self.world.config()?
        })
    }

    fn len(probe: Probe) -> usize {
        usize::try_from(probe.bytes.min(LONG)).unwrap_or(usize::MAX)
    }

    fn send(&self, probe: Probe) -> Result<Protocol, Error> {
        let len = Link::len(probe);
        let from =
            if probe.protocol == Protocol::Mapped { &self.out[..len] } else { &self.heap[..len] };
        Ok(self.world.comm().send(from, self.peer, DATA)?.protocol)
    }

    fn receive(&mut self, probe: Probe) -> Result<Protocol, Error> {
        let into = &mut self.inbox[..Link::len(probe)];
        Ok(self.world.comm().recv(into, self.peer, DATA)?.protocol)
    }

    /// Seconds that one message takes one way, and the protocol that carried it.
    fn bounce(&mut self, probe: Probe, count: usize) -> Result<(Vec<f64>, Protocol), Failure> {
        self.order(Order::Bounce(probe, count))?;
        self.apply(probe)?;
        let (mut readings, mut carried) = (Vec::with_capacity(count), probe.protocol);
        for _ in 0..count {
            let start = Instant::now();
            self.send(probe)?;
            carried = self.receive(probe)?;
            readings.push(start.elapsed().as_secs_f64() / 2.0);
        }
        Ok((readings, carried))
    }

    /// The same, as often as fits. An error if another protocol carried it.
    fn one_way(&mut self, probe: Probe, time: Duration) -> Result<Result<f64, String>, Failure> {
        if self.end.is_some_and(|end| Instant::now() > end) {
            return Ok(Err("the time ran out: the machine is busy".to_owned()));
        }
        let (warm, carried) = self.bounce(probe, 3)?;
        if carried != probe.protocol {
            return Ok(Err(format!(
                "{} is not possible here: {carried} took its place",
                probe.protocol
            )));
        }
        let each = 2.0 * settled(warm).unwrap_or(1e-3);
        let (readings, _) = self.bounce(probe, repeats(time, each))?;
        Ok(Ok(settled(readings).unwrap_or(each)))
    }

    /// Rank 0: measures for about so long.
    pub(super) fn measure(
        mut self,
        time: Duration,
        found: &mut Found,
    ) -> Result<Link<'w>, Failure> {
        let part = time.div_f64(PARTS);
        self.end = Some(Instant::now() + time * 2);
        let fragment = Tuning::default().fragment_bytes;
        let probe = |protocol, bytes| Probe { protocol, bytes, fragment };
        if let Ok(tiny) = self.one_way(probe(Protocol::Eager, TINY), part)? {
            found.latency(tiny);
        }
        // What the model counts for a message's journey, whatever is measured here.
        let latency = self.latency()?;

        if let Ok(rate) = self.rate(Protocol::Pipeline, part, found, "pipeline_mb_s")? {
            if let Ok(small) = self.one_way(probe(Protocol::Pipeline, SMALL), part)? {
                // One fragment: nothing of it is unpacked before it is packed.
                let rest = small - 3.0 * latency - 2.0 * copy_seconds(SMALL, rate);
                found.set("host", "rendezvous_ns", rest.max(0.0) * 1e9);
            }
            self.best_fragment(part, found)?;
        }
        if let Ok(rate) = self.rate(Protocol::Mapped, part, found, "mapped_mb_s")? {
            match self.one_way(probe(Protocol::Mapped, SMALL), part)? {
                Ok(small) => {
                    let rendezvous = found.get("host", "rendezvous_ns").unwrap_or_default() * 1e-9;
                    let rest = small - latency - rendezvous - copy_seconds(SMALL, rate);
                    found.set("host", "map_ns", rest.max(0.0) * 1e9);
                }
                Err(why) => found.miss("host", "map_ns", why),
            }
        } else {
            found.miss("host", "map_ns", "memory cannot be mapped here");
        }
        let _ = self.rate(Protocol::SingleCopy, part, found, "single_copy_mb_s")?;
        self.eager(part, found)?;
        Ok(self)
    }

    /// What the transport promises, in seconds.
    fn latency(&self) -> Result<f64, Error> {
        let limits = self.world.link(self.peer)?.limits;
        Ok(limits.map_or(0.0, |limits| f64::from(limits.latency_ns) * 1e-9))
    }

    /// A protocol's bandwidth in MB/s.
    fn rate(
        &mut self,
        protocol: Protocol,
        time: Duration,
        found: &mut Found,
        name: &str,
    ) -> Result<Result<f64, String>, Failure> {
        let fragment = Tuning::default().fragment_bytes;
        let short = self.one_way(Probe { protocol, bytes: SHORT, fragment }, time)?;
        let long = self.one_way(Probe { protocol, bytes: LONG, fragment }, time)?;
        let rate = short.and_then(|short| Ok(slope_mb_s((SHORT, short), (LONG, long?))));
        match &rate {
            Ok(rate) => found.set("host", name, *rate),
            Err(why) => found.miss("host", name, why.clone()),
        }
        Ok(rate)
    }

    /// The fragment size with which a long message is quickest.
    fn best_fragment(&mut self, time: Duration, found: &mut Found) -> Result<(), Failure> {
        let usual = Tuning::default().fragment_bytes;
        let mut best = (usual, f64::INFINITY);
        let sizes = FRAGMENTS.into_iter().filter(|size| *size != usual);
        for fragment in std::iter::once(usual).chain(sizes) {
            let probe = Probe { protocol: Protocol::Pipeline, bytes: LONG, fragment };
            let Ok(seconds) = self.one_way(probe, time)? else { continue };
            let enough = if best.1.is_finite() { best.1 * WORTH } else { f64::INFINITY };
            if seconds < enough {
                best = (fragment, seconds);
            }
        }
        found.set("host", "fragment_bytes", best.0.into());
        Ok(())
    }

    /// Up to where eager is quicker than the pipeline.
    fn eager(&mut self, time: Duration, found: &mut Found) -> Result<(), Failure> {
        let fragment = Tuning::default().fragment_bytes;
        let mut most = TINY;
        for bytes in [TINY, 1 << 10, 2 << 10, 4 << 10, 8 << 10] {
            let mut one = |protocol| self.one_way(Probe { protocol, bytes, fragment }, time);
            let (eager, pipeline) = (one(Protocol::Eager)?, one(Protocol::Pipeline)?);
            match (eager, pipeline) {
                (Ok(eager), Ok(pipeline)) if eager > pipeline => {
                    let sure = found_sure(most);
                    found.set("host", "eager_bytes_max", sure.max(super::clock::real(most)));
                    found.set("host", "eager_bytes_sure", sure);
                    return Ok(());
                }
                (Ok(_), Ok(_)) => most = bytes,
                // Longer than the transport takes.
                _ => break,
            }
        }
        // It was best as far as the transport takes it: its limit holds.
        let default = Tuning::default();
        found.set("host", "eager_bytes_max", super::clock::real(default.eager_bytes_max.max(most)));
        Ok(())
    }

    /// Rank 0: has rank 1 help with devices.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    pub(super) fn turn_to_devices(&self) -> Result<(), Failure> {
        self.order(Order::Devices)
    }
}

/// Below which nothing else is considered, if eager was best up to `most`.
fn found_sure(most: u64) -> f64 {
    super::clock::real(Tuning::default().eager_bytes_sure.min(most))
}
