//! A rank's part of the epidemic, day by day.

use crate::Failure;
use crate::agreement::agree;
use crate::compute::{Argument, Buffer, Compute, Kernel, bytes, bytes_mut, copy};
use crate::exchange::Exchange;
use crate::health::{Day, State};
use crate::host::{Sends, VISIT};
use crate::options::Options;
use crate::population::{Population, SLOTS};
use gapless::{Communicator, InPlace, ReduceOp, World};
use std::fmt;
use std::time::Instant;

/// The tag of doses.
const DOSES: i32 = 2;

/// A part of a day that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Receive buffers are made empty.
    Create,
    /// The visits of a rank's persons are computed.
    Compute,
    /// Visits are sent and received; in 5b they are copied meanwhile.
    Exchange,
    /// Fragments are packed.
    Pack,
    /// Visits are copied to the device; in 5b what is left of that when all have come.
    Copy,
    /// All of computeVisits, until the last rank is through.
    Visits,
    /// All of computeInteractions, likewise.
    Interactions,
    /// Doses go back, and persons are infected.
    Infections,
    /// The whole day.
    Whole,
}

impl Phase {
    /// All there are, in the order of a day's times.
    pub const ALL: [Phase; 9] = [
        Phase::Create,
        Phase::Compute,
        Phase::Exchange,
        Phase::Pack,
        Phase::Copy,
        Phase::Visits,
        Phase::Interactions,
        Phase::Infections,
        Phase::Whole,
    ];
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Phase::Create => "create buffers",
            Phase::Compute => "compute visits",
            Phase::Exchange => "exchange",
            Phase::Pack => "pack",
            Phase::Copy => "copy",
            Phase::Visits => "computeVisits",
            Phase::Interactions => "computeInteractions",
            Phase::Infections => "infections",
            Phase::Whole => "whole day",
        })
    }
}

/// Seconds of each phase of a day.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stopwatch([f64; Phase::ALL.len()]);

impl Stopwatch {
    /// As long as it is since then.
    pub(crate) fn add(&mut self, phase: Phase, since: Instant) {
        self.0[phase as usize] += since.elapsed().as_secs_f64();
    }
}

/// What came of it: the same at all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The numbers of each day.
    pub days: Vec<Day>,
    /// Seconds of each phase, in the order of [`Phase::ALL`], of each day: of the rank that took longest.
    pub seconds: Vec<[f64; Phase::ALL.len()]>,
    /// Seconds that making the receive buffers took once, likewise.
    pub created: f64,
    /// Visits of all ranks and days.
    pub visits: u64,
    /// Bytes of a visit.
    pub visit_bytes: u64,
}

impl Summary {
    /// Seconds of a phase, of each day.
    pub fn times(&self, phase: Phase) -> impl Iterator<Item = f64> + '_ {
        self.seconds.iter().map(move |day| day[phase as usize])
    }
}

/// Simulates the epidemic on all processes of a world. All call this alike. `progress` is told of each day's end.
///
/// # Errors
/// There is no such population, or no such device: all other ranks get [`Refused`](crate::Refused). The ranks' options
/// differ, in others than `check` and `svg`: all ranks get `Refused`. A process is lost.
pub fn run(
    world: &World,
    options: &Options,
    progress: &mut dyn FnMut(u32),
) -> Result<Summary, Failure> {
    let population = options.population;
    let checked = population.synthetic.check().map_err(Failure::from);
    let opened = checked.and_then(|()| options.device.open(world.rank()));
    let agreed = agree(world.comm(), options, opened.is_err());
    let compute = opened?;
    agreed?;
    // Nobody else sends on it.
    let comm = world.comm().dup()?;
    let mut rank = Rank::new((world, &comm), &*compute, options)?;
    let mut summary = Summary {
        days: Vec::new(),
        seconds: Vec::new(),
        created: rank.created,
        visits: 0,
        visit_bytes: 4 * VISIT as u64,
    };
    comm.barrier()?;
    for day in 0..population.synthetic.days {
        let (numbers, seconds) = rank.day(day)?;
        summary.days.push(numbers);
        summary.seconds.push(seconds.0);
        progress(day + 1);
    }
    let mut visits = [rank.received];
    comm.allreduce(InPlace, &mut visits, ReduceOp::Sum)?;
    summary.visits = visits[0];
    let mut seconds = summary.seconds.concat();
    seconds.push(summary.created);
    comm.allreduce(InPlace, &mut seconds, ReduceOp::Max)?;
    summary.created = seconds.pop().unwrap_or(0.0);
    summary.seconds = seconds.as_chunks().0.to_vec();
    drop(rank);
    comm.free()?;
    Ok(summary)
}

/// What a rank has.
struct Rank<'w> {
    comm: &'w Communicator,
    compute: &'w dyn Compute,
    population: Population,
    /// Of its persons, in their order.
    states: Vec<State>,
    /// What kernels know of them.
    statuses: Vec<u32>,
    /// The activities of its persons, as `kernels.cl-cu` has them.
    activities: Vec<[u32; 3]>,
    /// Visits from one rank to another on a day, at most.
    capacity: u32,
    /// Visits that go, in memory of the host, and how many to each rank.
    sends: Buffer,
    counts: Vec<u32>,
    there: Option<There>,
    exchange: Exchange<'w>,
    created: f64,
    received: u64,
    /// For each slot of each of its locations, in memory of the device.
    slots: Buffer,
    /// Doses to each rank, and how many, in memory of the device.
    doses: Buffer,
    dose_counts: Buffer,
    /// Doses that go and that come, in memory of the host; and what each person gets in all.
    given: Vec<u32>,
    taken: Vec<u32>,
    sums: Vec<u64>,
}

/// What computing visits on the device takes there.
struct There {
    activities: Buffer,
    statuses: Buffer,
    sends: Buffer,
    counts: Buffer,
    /// Visits leave from there, and not from memory of the host.
    direct: bool,
}

impl<'w> Rank<'w> {
    fn new(
        (world, comm): (&World, &'w Communicator),
        compute: &'w dyn Compute,
        options: &Options,
    ) -> Result<Rank<'w>, Failure> {
        let population = options.population;
        let (me, ranks) = (world.rank(), world.size());
        let synthetic = population.synthetic;
        let own = (me..synthetic.persons).step_by(ranks as usize);
        let mut states = vec![State::Susceptible; own.len()];
        for person in population.first().filter(|person| person % ranks == me) {
            states[(person / ranks) as usize] = population.latent(person);
        }
        let (mut activities, mut counts) = (Vec::new(), vec![0u32; ranks as usize]);
        for (number, person) in (0..).zip(own) {
            for activity in population.day(person) {
                counts[(activity.location % ranks) as usize] += 1;
                let what = activity.kind | activity.start << 8 | activity.end << 16;
                activities.push([number, activity.location, what]);
            }
        }
        // As many as on a day on which nobody stays at home.
        let mut most = [counts.iter().copied().max().unwrap_or(0).max(1)];
        comm.allreduce(InPlace, &mut most, ReduceOp::Max)?;
        let [capacity] = most;
        let (all, per_rank) = (ranks as usize, capacity as usize);
        if u32::try_from(all * per_rank * VISIT).is_err() {
            let why = format!("{capacity} visits from each of {ranks} ranks are too many for one");
            return Err(why.into());
        }
        let buffer = |words: usize| Buffer::of_kernels(world, compute, words.next_multiple_of(4));
        let there = options.visits_there.then(|| -> Result<There, Failure> {
            let flat = activities.as_flattened();
            let device = buffer(flat.len().max(1))?;
            // SAFETY: nothing else uses either.
            unsafe { copy(compute, device.part(0, flat.len())?, bytes(flat)) }?;
            Ok(There {
                activities: device,
                statuses: buffer(states.len().max(1))?,
                sends: buffer(all * per_rank * VISIT)?,
                counts: buffer(all)?,
                direct: options.scheme == crate::Scheme::Direct,
            })
        });
        let there = there.transpose()?;
        let began = Instant::now();
        let exchange = Exchange::new((world, comm), compute, options.scheme, per_rank)?;
        let created = began.elapsed().as_secs_f64();
        let locations = synthetic.locations.div_ceil(ranks) as usize;
        Ok(Rank {
            comm,
            compute,
            population,
            statuses: vec![0; states.len()],
            sums: vec![0; states.len()],
            states,
            activities,
            capacity,
            sends: Buffer::shared(world, all * per_rank * VISIT)?,
            counts,
            there,
            exchange,
            created,
            received: 0,
            slots: buffer(locations * 2 * SLOTS as usize)?,
            doses: buffer(all * per_rank * 2)?,
            dose_counts: buffer(all)?,
            given: vec![0; all * per_rank * 2],
            taken: vec![0; all * per_rank * 2],
        })
    }

    fn own(&self) -> impl Iterator<Item = u32> + use<> {
        (self.comm.rank()..self.population.synthetic.persons).step_by(self.comm.size() as usize)
    }

    /// Gives the numbers of all ranks, and the times of this one.
    fn day(&mut self, day: u32) -> Result<(Day, Stopwatch), Failure> {
        let comm = self.comm;
        let mut watch = Stopwatch::default();
        let began = Instant::now();
        let received = self.visits(day, &mut watch)?;
        self.received += u64::from(received);
        comm.barrier()?;
        watch.add(Phase::Visits, began);
        let since = Instant::now();
        self.interactions(received)?;
        comm.barrier()?;
        watch.add(Phase::Interactions, since);
        let since = Instant::now();
        self.exchange_doses()?;
        let own = self.own();
        let ended = self.population.end_day(day, own, &mut self.states, &self.sums);
        self.sums.fill(0);
        let mut numbers = ended.numbers();
        comm.allreduce(InPlace, &mut numbers, ReduceOp::Sum)?;
        watch.add(Phase::Infections, since);
        watch.add(Phase::Whole, began);
        Ok((Day::of(numbers), watch))
    }

    /// computeVisits: gives how many visits have come.
    fn visits(&mut self, day: u32, watch: &mut Stopwatch) -> Result<u32, Failure> {
        let began = Instant::now();
        self.exchange.create()?;
        watch.add(Phase::Create, began);
        let began = Instant::now();
        let own = self.own();
        for ((status, person), state) in self.statuses.iter_mut().zip(own).zip(&self.states) {
            *status = self.population.status(person, *state).word();
        }
        self.counts.fill(0);
        let (rank, ranks) = (self.comm.rank(), self.comm.size());
        let from = match &self.there {
            None => {
                // SAFETY: the sends of the day before have ended.
                let words = unsafe { self.sends.words() };
                let sends = Sends { rank, ranks, day, capacity: self.capacity, words };
                sends.visits(&self.activities, &self.statuses, &mut self.counts);
                self.sends.region()
            }
            Some(_) => self.visits_there(day)?,
        };
        watch.add(Phase::Compute, began);
        // SAFETY: the next to write the visits is this function.
        unsafe { self.exchange.exchange(from, &self.counts, watch) }
    }

    /// Computes visits on the device; gives where they are.
    fn visits_there(&mut self, day: u32) -> Result<gapless::Region, Failure> {
        let Some(there) = &self.there else { return Ok(self.sends.region()) };
        let compute = self.compute;
        let status = there.statuses.part(0, self.statuses.len())?;
        let counts = there.counts.part(0, self.counts.len())?;
        // SAFETY: no kernel uses either now.
        unsafe { copy(compute, status, bytes(&self.statuses)) }?;
        // SAFETY: likewise.
        unsafe { copy(compute, counts, bytes(&self.counts)) }?;
        let items = u32::try_from(self.activities.len())?;
        let arguments = [
            Argument::Memory(there.activities.region()),
            Argument::Word(items),
            Argument::Memory(there.statuses.region()),
            Argument::Word(self.comm.rank()),
            Argument::Word(self.comm.size()),
            Argument::Word(day),
            Argument::Word(self.capacity),
            Argument::Memory(there.sends.region()),
            Argument::Memory(there.counts.region()),
        ];
        // SAFETY: a person's number is below that of statuses; to no rank there are more visits than its capacity,
        // which the activities alone bound; the sends of the day before have ended.
        unsafe { compute.launch(Kernel::Visits, items, &arguments) }?;
        compute.finish()?;
        // SAFETY: the kernel has ended.
        unsafe { copy(compute, bytes_mut(&mut self.counts), counts) }?;
        if there.direct {
            return Ok(there.sends.region());
        }
        for (to, visits) in self.counts.iter().enumerate() {
            let (at, words) = (to * self.capacity as usize * VISIT, *visits as usize * VISIT);
            let (from, into) = (there.sends.part(at, words)?, self.sends.part(at, words)?);
            // SAFETY: nothing else uses either.
            unsafe { copy(compute, into, from) }?;
        }
        Ok(self.sends.region())
    }

    /// computeInteractions, of so many visits. The doses are then in memory of the host.
    fn interactions(&mut self, visits: u32) -> Result<(), Failure> {
        let compute = self.compute;
        let (ranks, capacity) = (self.comm.size(), self.capacity);
        for (buffer, words) in
            [(&self.slots, self.slots.region().len() / 4), (&self.dose_counts, u64::from(ranks))]
        {
            let fours = u32::try_from(words.div_ceil(4))?;
            let arguments =
                [Argument::Memory(buffer.region()), Argument::Word(fours), Argument::Word(0)];
            // SAFETY: buffers are of whole fours; nothing else uses this one.
            unsafe { compute.launch(Kernel::Fill, fours, &arguments) }?;
        }
        let arguments = [
            Argument::Memory(self.exchange.packed()),
            Argument::Word(visits),
            Argument::Word(ranks),
            Argument::Memory(self.slots.region()),
        ];
        // SAFETY: so many visits have come. `run` alone sends on this communicator, and at all ranks for the same
        // population (`agree`): each rank has sent visits of its persons, as often as its activities say at most, to
        // locations of this rank, which have slots.
        unsafe { compute.launch(Kernel::Crowd, visits, &arguments) }?;
        let arguments = [
            Argument::Memory(self.exchange.packed()),
            Argument::Word(visits),
            Argument::Word(ranks),
            Argument::Word(capacity),
            Argument::Memory(self.slots.region()),
            Argument::Memory(self.doses.region()),
            Argument::Memory(self.dose_counts.region()),
        ];
        // SAFETY: as above; no rank's persons get more doses than they made visits here, which the capacity bounds: all
        // ranks have the same.
        unsafe { compute.launch(Kernel::Doses, visits, &arguments) }?;
        compute.finish()?;
        let counts = self.dose_counts.part(0, ranks as usize)?;
        // SAFETY: the kernels have ended.
        unsafe { copy(compute, bytes_mut(&mut self.counts), counts) }?;
        let given = self.given.chunks_mut(2 * capacity as usize);
        for ((to, doses), given) in self.counts.iter().enumerate().zip(given) {
            let words = 2 * *doses as usize;
            let from = self.doses.part(2 * to * capacity as usize, words)?;
            // SAFETY: as above.
            unsafe { copy(compute, bytes_mut(&mut given[..words]), from) }?;
        }
        Ok(())
    }

    /// Sends doses to the ranks of the persons, and adds up those that come.
    fn exchange_doses(&mut self) -> Result<(), Failure> {
        let comm = self.comm;
        let (ranks, part) = (comm.size(), 2 * self.capacity as usize);
        let mut words = vec![0; ranks as usize];
        comm.scope(|s| {
            let receives = self.taken.chunks_mut(part).zip(0..ranks);
            let receives: Result<Vec<_>, _> =
                receives.map(|(into, source)| s.irecv(into, source, DOSES)).collect();
            for ((given, doses), to) in self.given.chunks(part).zip(&self.counts).zip(0..ranks) {
                let _ = s.isend(&given[..2 * *doses as usize], to, DOSES)?;
            }
            for (words, status) in words.iter_mut().zip(s.wait_all(receives?)) {
                *words = status?.bytes as usize / 4;
            }
            Ok(())
        })?;
        for (taken, words) in self.taken.chunks(part).zip(words) {
            for [person, dose] in taken[..words].as_chunks().0 {
                self.sums[(person / ranks) as usize] += u64::from(*dose);
            }
        }
        Ok(())
    }
}
