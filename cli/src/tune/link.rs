//! What messages between two processes of this host cost, protocol by protocol: each is forced upon
//! messages that go back and forth.
//!
//! All are timed in turn, again and again, and every number is put together of the times of one round: while a
//! neighbour of a virtual machine is busy, a cache line may take five times as long from one processor to the other,
//! and a bandwidth made of a short message before that and a long one after it is no bandwidth at all. The median of
//! the rounds counts.
//!
//! ```text
//! rank 0                                  rank 1
//!   | order: protocol, bytes, fragment, count -> | sets the same
//!   | message ---------------------------> |  count times
//!   | <--------------------------- message |
//! ```

use super::clock::{copy_seconds, median, real, repeats, settled, slope_mb_s};
use super::found::TunedNumbers;
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

/// Lengths of which it is asked whether eager or the pipeline is quicker.
const EAGER: [u64; 5] = [TINY, 1 << 10, 2 << 10, 4 << 10, 8 << 10];

/// Every message is timed in so many rounds, if the time is long enough.
const ROUNDS: u32 = 11;

/// One end of the two.
pub(super) struct LinkTuner<'w> {
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

impl<'w> LinkTuner<'w> {
    pub(super) fn new(world: &'w World) -> Result<LinkTuner<'w>, Failure> {
        let len = usize::try_from(LONG).unwrap_or(usize::MAX);
        let (mut out, inbox) = (world.alloc(len)?, world.alloc(len)?);
        out.fill(1);
        Ok(LinkTuner { world, peer: 1 - world.rank(), out, inbox, heap: vec![1; len], end: None })
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

    #[cfg(feature = "cuda")]
    pub(super) fn world(&self) -> &World {
        self.world
    }

    #[cfg(feature = "cuda")]
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
        let len = LinkTuner::len(probe);
        let from =
            if probe.protocol == Protocol::Mapped { &self.out[..len] } else { &self.heap[..len] };
        Ok(self.world.comm().send(from, self.peer, DATA)?.protocol)
    }

    fn receive(&mut self, probe: Probe) -> Result<Protocol, Error> {
        let into = &mut self.inbox[..LinkTuner::len(probe)];
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
        found: &mut TunedNumbers,
    ) -> Result<LinkTuner<'w>, Failure> {
        let times = self.times(time)?;
        if let Ok(tiny) = times.median(usual(Protocol::Eager, TINY)) {
            found.latency(tiny);
        }
        // What the model counts for a message's journey, whatever is measured here.
        let latency = self.latency()?;

        let ring = times.rates(Protocol::Pipeline);
        let rate = found.settle_rate("pipeline_mb_s", ring.clone());
        // One fragment: nothing of it is unpacked before it is packed.
        let small = times.of(usual(Protocol::Pipeline, SMALL));
        let rendezvous = apart(small.clone(), ring, |small, rate| {
            small - 3.0 * latency - 2.0 * copy_seconds(SMALL, rate)
        });
        let rendezvous = found.settle_rest("rendezvous_ns", rendezvous, small);
        if rate.is_some() {
            times.best_fragment(found);
        }
        let mapped = times.rates(Protocol::Mapped);
        let _ = found.settle_rate("mapped_mb_s", mapped.clone());
        let small = times.of(usual(Protocol::Mapped, SMALL));
        let rendezvous = rendezvous.unwrap_or_default() * 1e-9;
        let mapping = apart(small.clone(), mapped, |small, rate| {
            small - latency - rendezvous - copy_seconds(SMALL, rate)
        });
        let _ = found.settle_rest("map_ns", mapping, small);
        let _ = found.settle_rate("single_copy_mb_s", times.rates(Protocol::SingleCopy));
        times.eager(found);
        Ok(self)
    }

    /// What all messages took, round by round.
    fn times(&mut self, time: Duration) -> Result<Times, Failure> {
        let start = Instant::now();
        self.end = Some(start + time * 2);
        let mut times = Times(probes().into_iter().map(|probe| (probe, Ok(Vec::new()))).collect());
        let each = time.div_f64(f64::from(ROUNDS) * real(times.0.len() as u64));
        for round in 0..ROUNDS {
            if round > 0 && start.elapsed() > time {
                break;
            }
            for (probe, took) in &mut times.0 {
                let Ok(rounds) = took else { continue };
                match self.one_way(*probe, each)? {
                    Ok(seconds) => rounds.push(seconds),
                    Err(why) if rounds.is_empty() => *took = Err(why),
                    Err(_) => {}
                }
            }
        }
        Ok(times)
    }

    /// What the transport promises, in seconds.
    fn latency(&self) -> Result<f64, Error> {
        let limits = self.world.link(self.peer)?.limits;
        Ok(limits.map_or(0.0, |limits| f64::from(limits.latency_ns) * 1e-9))
    }

    /// Rank 0: has rank 1 help with devices.
    #[cfg(feature = "cuda")]
    pub(super) fn turn_to_devices(&self) -> Result<(), Failure> {
        self.order(Order::Devices)
    }
}

/// In fragments of the usual length.
fn usual(protocol: Protocol, bytes: u64) -> Probe {
    Probe { protocol, bytes, fragment: Tuning::default().fragment_bytes }
}

/// A long message in such fragments.
fn in_fragments(fragment: u32) -> Probe {
    Probe { fragment, ..usual(Protocol::Pipeline, LONG) }
}

/// All that is timed, each once. What a number is made of stands together.
fn probes() -> Vec<Probe> {
    let mut probes = vec![usual(Protocol::Eager, TINY)];
    for protocol in [Protocol::Pipeline, Protocol::Mapped, Protocol::SingleCopy] {
        probes.extend([SHORT, LONG, SMALL].map(|bytes| usual(protocol, bytes)));
    }
    probes.extend(FRAGMENTS.map(in_fragments));
    for bytes in EAGER {
        probes.extend([Protocol::Eager, Protocol::Pipeline].map(|protocol| usual(protocol, bytes)));
    }
    let mut seen = Vec::new();
    probes.retain(|probe| {
        let first = !seen.contains(probe);
        seen.push(*probe);
        first
    });
    probes
}

/// What something came to in each round, or why nothing did.
pub(super) type Rounds = Result<Vec<f64>, String>;

/// Of two things that were measured in the same rounds, a third in each of them.
fn apart(one: Rounds, other: Rounds, of: impl Fn(f64, f64) -> f64) -> Rounds {
    Ok(one?.into_iter().zip(other?).map(|(one, other)| of(one, other)).collect())
}

/// Seconds that messages took one way.
struct Times(Vec<(Probe, Rounds)>);

impl Times {
    fn of(&self, probe: Probe) -> Rounds {
        let known = self.0.iter().find(|(known, _)| *known == probe);
        known.map_or_else(|| Err("it was not tried".to_owned()), |(_, rounds)| rounds.clone())
    }

    fn median(&self, probe: Probe) -> Result<f64, String> {
        median(self.of(probe)?).ok_or_else(|| "it was not tried".to_owned())
    }

    /// A protocol's bandwidth in MB/s.
    fn rates(&self, protocol: Protocol) -> Rounds {
        let of = |bytes| self.of(usual(protocol, bytes));
        apart(of(SHORT), of(LONG), |short, long| slope_mb_s((SHORT, short), (LONG, long)))
    }

    /// The fragment size with which a long message is quickest.
    fn best_fragment(&self, found: &mut TunedNumbers) {
        let default = Tuning::default().fragment_bytes;
        let Ok(usual) = self.median(in_fragments(default)) else { return };
        let mut best = (default, usual);
        for fragment in FRAGMENTS.into_iter().filter(|fragment| *fragment != default) {
            match self.median(in_fragments(fragment)) {
                Ok(seconds) if seconds < best.1 * WORTH => best = (fragment, seconds),
                _ => {}
            }
        }
        found.set("host", "fragment_bytes", best.0.into());
    }

    /// Up to where eager is quicker than the pipeline.
    fn eager(&self, found: &mut TunedNumbers) {
        let mut most = TINY;
        for bytes in EAGER {
            let one = |protocol| self.median(usual(protocol, bytes));
            match (one(Protocol::Eager), one(Protocol::Pipeline)) {
                (Ok(eager), Ok(pipeline)) if eager > pipeline => {
                    let sure = real(Tuning::default().eager_bytes_sure.min(most));
                    found.set("host", "eager_bytes_max", sure.max(real(most)));
                    // Below which nothing else is considered.
                    found.set("host", "eager_bytes_sure", sure);
                    return;
                }
                (Ok(_), Ok(_)) => most = bytes,
                // Longer than the transport takes.
                _ => break,
            }
        }
        // It was best as far as the transport takes it: its limit holds.
        let default = Tuning::default();
        found.set("host", "eager_bytes_max", real(default.eager_bytes_max.max(most)));
    }
}
