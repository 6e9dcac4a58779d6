//! How long collectives take between the ranks of a job: what `gapless tune --coll` and other programs measure with.
//!
//! Each call is timed from a moment that rank 0 names, and that all ranks wait for, to the end of the last rank. So the
//! ranks share a host, and its clock. Between calls every rank writes its buffers, and goes on to others, until those
//! have left the caches; then it comes back to the first. What the first call of each algorithm gives is compared with
//! what it should.

mod mixture;
mod work;

use gapless::tuning::coll::{Rule, Table};
use gapless::{
    Collective, Communicator, Error, PersistentCollective, RecvBuffer, ReduceOp, SendBuffer, World,
};
use gapless_coll::sm::SharedSegment;
use gapless_coll::{Algorithm, Locality, Method, Operation, Sample, Schedule, choose};
use gapless_report::last_level_cache_bytes;
pub use mixture::Mixture;
use std::collections::HashMap;
use std::time::{Instant, SystemTime};
pub use work::CollectiveWork;

/// Bytes of an element: `double`.
pub const ELEMENT: u64 = 8;

/// What the last-level cache is taken to be where the kernel does not tell.
const CACHE_BYTES_ASSUMED: u64 = 32 << 20;

/// Bytes of a rank's buffers, at least and at most, unless one call needs more.
const ARENA: (u64, u64) = (8 << 20, 256 << 20);

/// Calls of each algorithm that show how long it takes about.
const TRIALS: usize = 3;

/// Calls of one algorithm before the next has its turn.
const TURN: usize = 4;

/// Nanoseconds between rank 0's naming a moment and the moment, at first and at most.
const LEAD: (u64, u64) = (20_000, 2_000_000);

/// How long and how often algorithms of a collective are measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Seconds for all algorithms of one operation and length.
    pub seconds: f64,
    /// Calls of each algorithm, at least.
    pub least: usize,
    /// What takes so many times as long as the quickest is not called further.
    pub hopeless: f64,
}

/// How long calls by one algorithm took, and whether their results were right.
#[derive(Clone, Debug)]
pub struct Timed {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Seconds of each call, to the last rank's end.
    pub seconds: Vec<f64>,
    /// Whether every rank received what it should.
    pub right: bool,
}

impl Timed {
    /// The middle one.
    #[must_use]
    pub fn median(&self) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::INFINITY)
    }
}

/// How long one call of a collective took the ranks, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallTimes {
    /// Seconds from the common begin to a rank's end, on average over the ranks.
    pub average: f64,
    /// The same to the last rank's end.
    pub longest: f64,
}

/// In which form collectives are called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// A call that waits
    #[default]
    Blocking,
    /// Begun, and waited for at once
    Nonblocking,
    /// Described before, started, and waited for at once; always in the same buffers
    Persistent,
    /// Begun, and waited for after as much other work as it takes alone: what part of it that hides
    Overlap,
}

/// A persistent collective, and whose.
type KeptCollectives =
    HashMap<(Option<Algorithm>, CollectiveWork), PersistentCollective<Vec<f64>, Vec<f64>>>;

/// The ranks of a job that measure. All of them do the same, in the same order.
#[derive(Debug)]
pub struct Bench<'w> {
    world: &'w World,
    /// For what is not measured.
    control: Communicator,
    /// One for each algorithm, and for what the world's table chooses.
    ways: HashMap<Option<Algorithm>, Communicator>,
    /// The same ranks in a ring, once that was needed.
    ring: Option<Communicator>,
    form: Form,
    /// Seconds of other work between the begin of a nonblocking call and the wait for it.
    computing: f64,
    kept: KeptCollectives,
    arena: Vec<f64>,
    /// The buffers that come next.
    slot: usize,
    lead: u64,
}

/// The algorithms worth comparing among `n` ranks that are equally near: what the built-in rules choose for blocking
/// calls, and all whose schedules differ from those before; through shared memory, if the call can go that way.
///
/// # Errors
/// There is no such call.
pub fn different(
    operation: Operation,
    n: usize,
    len: u64,
) -> Result<Vec<Algorithm>, gapless_coll::BuildError> {
    /// What has so many steps is not compared.
    const STEPS_MAX: usize = 1 << 20;
    let (sample, locality) = (Sample::new(operation, n, 0, len)?, Locality::flat(n));
    let of = sample.of(0);
    let built_in = choose::choose(&Table::default(), &of.call(), &locality);
    let mut known: Vec<Vec<Schedule>> = Vec::new();
    let mut found = Vec::new();
    for algorithm in [built_in].into_iter().chain(choose::candidates(&of.call(), &locality)) {
        let is_known = |all: &Vec<Schedule>| {
            let same = |other: &Vec<Schedule>| {
                all.iter().zip(other).all(|(one, other)| one.has_steps_of(other))
            };
            known.iter().any(same)
        };
        match sample.build_all(&locality, &algorithm, STEPS_MAX)? {
            Some(schedules) if is_known(&schedules) => {}
            Some(schedules) => {
                known.push(schedules);
                found.push(algorithm);
            }
            None if found.is_empty() => found.push(algorithm),
            None => {}
        }
    }
    let shared = Algorithm::new(Method::Shared);
    match SharedSegment::takes(&of.call(), n) {
        true if choose::shared_rule_for(&Table::default(), &of.call(), &locality).is_some() => {
            found.insert(0, shared);
        }
        true => found.push(shared),
        false => {}
    }
    Ok(found)
}

impl<'w> Bench<'w> {
    /// The ranks of a world, ready to measure.
    ///
    /// # Errors
    /// A peer is lost.
    pub fn new(world: &'w World) -> Result<Self, Error> {
        let cache = last_level_cache_bytes().unwrap_or(CACHE_BYTES_ASSUMED);
        let bytes = (4 * cache / u64::from(world.size())).clamp(ARENA.0, ARENA.1);
        let arena = vec![0.0; elements(bytes)];
        let control = world.comm().dup()?;
        let (ways, ring, form, computing, kept) = Default::default();
        let (slot, lead) = (0, LEAD.0);
        Ok(Self { world, control, ways, ring, form, computing, kept, arena, slot, lead })
    }

    /// The same with calls of another form than blocking ones.
    #[must_use]
    pub fn form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    /// From now on nonblocking calls are waited for after so many seconds of other work.
    pub fn compute(&mut self, seconds: f64) {
        self.computing = seconds;
    }

    /// Measures the algorithms by turns. All ranks get the same.
    ///
    /// # Errors
    /// A collective fails.
    pub fn compare(
        &mut self,
        work: &CollectiveWork,
        algorithms: &[Algorithm],
        effort: Effort,
    ) -> Result<Vec<Timed>, Error> {
        let begun = now();
        let mut all = Vec::new();
        for algorithm in algorithms {
            let right = self.check(work, Some(*algorithm))?;
            all.push(Timed { algorithm: *algorithm, seconds: Vec::new(), right });
        }
        for timed in &mut all {
            timed.seconds = self.longest(work, timed.algorithm, TRIALS)?;
        }
        let best = all.iter().map(Timed::median).fold(f64::INFINITY, f64::min);
        let mut going: Vec<_> =
            all.iter_mut().filter(|it| it.median() <= effort.hopeless * best).collect();
        // What was spent so far, checks and the writing of buffers included, is what it costs.
        let spent = self.most([seconds_since(begun)])?[0];
        let each = spent / (algorithms.len() * (TRIALS + 1)) as f64;
        let turns = (effort.seconds - spent).max(0.0) / (each * (going.len() * TURN) as f64);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in bounds")]
        let turns = turns.clamp(effort.least.div_ceil(TURN) as f64, 500.0) as usize;
        for _ in 0..turns {
            for timed in &mut going {
                let more = self.longest(work, timed.algorithm, TURN)?;
                timed.seconds.extend(more);
            }
        }
        // The first calls touched everything for the first time.
        going.iter_mut().for_each(|timed| drop(timed.seconds.drain(..TRIALS)));
        Ok(all)
    }

    /// Whether every rank receives what it should. By this algorithm, or by the one that the world's table chooses.
    ///
    /// # Errors
    /// The collective fails.
    pub fn check(
        &mut self,
        work: &CollectiveWork,
        algorithm: Option<Algorithm>,
    ) -> Result<bool, Error> {
        let (rank, n) = (self.rank(), self.size());
        let comm = self.communicator_for(work, algorithm)?;
        let (send, recv) = self.buffers(work);
        work.write(rank, send, recv);
        comm.perform(call(work, n, &*send, &mut *recv))?;
        let right = work.is_right(rank, n, recv);
        Ok(self.most([if right { 0.0 } else { 1.0 }])?[0] < 0.5)
    }

    /// Seconds of some calls, to the last rank's end.
    fn longest(
        &mut self,
        work: &CollectiveWork,
        algorithm: Algorithm,
        count: usize,
    ) -> Result<Vec<f64>, Error> {
        let calls = self.calls(work, Some(algorithm), count)?;
        Ok(calls.into_iter().map(|call| call.longest).collect())
    }

    /// What so many calls took; without those for which a rank was late, unless most were. All ranks get the same.
    ///
    /// # Errors
    /// The collective fails.
    pub fn calls(
        &mut self,
        work: &CollectiveWork,
        algorithm: Option<Algorithm>,
        count: usize,
    ) -> Result<Vec<CallTimes>, Error> {
        let (rank, n) = (self.rank(), self.size());
        let comm = self.communicator_for(work, algorithm)?;
        let mut kept = match self.form {
            Form::Persistent => Some(self.take_kept(work, algorithm)?),
            Form::Blocking | Form::Nonblocking | Form::Overlap => None,
        };
        let mut took = vec![0.0; 2 * count];
        for at in 0..count {
            let (lead, form, computing) = (self.lead, self.form, self.computing);
            match &mut kept {
                Some(kept) => {
                    let (send, recv) = kept.buffers_mut()?;
                    work.write(rank, send, recv);
                }
                None => {
                    let (send, recv) = self.buffers(work);
                    work.write(rank, send, recv);
                }
            }
            let mut begin = [now() + lead];
            self.control.bcast(&mut begin, 0)?;
            let [begin] = begin;
            let late = now() >= begin;
            while now() < begin {
                std::hint::spin_loop();
            }
            let (send, recv) = self.last_buffers(work);
            match (&mut kept, form) {
                (Some(kept), _) => {
                    kept.start()?;
                    kept.wait()?;
                }
                (None, Form::Nonblocking | Form::Overlap) => comm.scope(|s| {
                    let request = s.begin(call(work, n, &*send, recv))?;
                    compute(computing);
                    request.wait()
                })?,
                (None, _) => comm.perform(call(work, n, &*send, recv))?,
            }
            took[at] = seconds_since(begin);
            took[count + at] = if late { 1.0 } else { 0.0 };
        }
        self.kept.extend(kept.map(|kept| ((algorithm, *work), kept)));
        let mut sums = vec![0.0; count];
        self.control.allreduce(&took[..count], &mut sums, ReduceOp::Sum)?;
        let took = self.most(took)?;
        let (took, late) = took.split_at(count);
        let ranks = f64::from(self.control.size());
        let calls = took.iter().zip(sums).map(|(longest, sum)| CallTimes {
            average: (sum / ranks).min(*longest),
            longest: *longest,
        });
        let punctual: Vec<CallTimes> =
            calls.clone().zip(late).filter(|(_, late)| **late < 0.5).map(|(it, _)| it).collect();
        if 2 * punctual.len() < count {
            // All ranks see that, and wait longer from now on. A busy machine keeps nobody's time.
            self.lead = (2 * self.lead).min(LEAD.1);
            return Ok(calls.collect());
        }
        Ok(punctual)
    }

    /// A persistent collective, which is made and started twice for the first call: after that nothing is new to it.
    fn take_kept(
        &mut self,
        work: &CollectiveWork,
        algorithm: Option<Algorithm>,
    ) -> Result<PersistentCollective<Vec<f64>, Vec<f64>>, Error> {
        if let Some(kept) = self.kept.remove(&(algorithm, *work)) {
            return Ok(kept);
        }
        let n = self.size();
        let (send, recv) = work.lens(self.rank(), n);
        let comm = self.communicator_for(work, algorithm)?;
        let made = comm.collective_init(vec![0.0; send], vec![0.0; recv], |send, recv| {
            call(work, n, send, recv)
        });
        let mut made = made.map_err(|refused| refused.error)?;
        for _ in 0..2 {
            made.start()?;
            made.wait()?;
        }
        Ok(made)
    }

    /// A communicator whose collectives go by an algorithm, or as the world's table chooses; all ranks call this.
    ///
    /// # Errors
    /// A peer is lost.
    pub fn communicator(&mut self, algorithm: Option<Algorithm>) -> Result<Communicator, Error> {
        if let Some(known) = self.ways.get(&algorithm) {
            return Ok(known.clone());
        }
        let Some(algorithm) = algorithm else {
            let made = self.world.comm().dup()?;
            self.ways.insert(None, made.clone());
            return Ok(made);
        };
        let rule =
            |operation| Rule { operation, ranks_max: usize::MAX, bytes_max: u64::MAX, algorithm };
        let before = self.world.coll_table();
        let rules = Operation::ALL.map(rule).to_vec();
        self.world.set_coll_table(Table { rules, ..(*before).clone() });
        let made = self.world.comm().dup();
        self.world.set_coll_table((*before).clone());
        let made = made?;
        self.ways.insert(Some(algorithm), made.clone());
        Ok(made)
    }

    /// The same for an operation: neighbours are in a ring.
    fn communicator_for(
        &mut self,
        work: &CollectiveWork,
        algorithm: Option<Algorithm>,
    ) -> Result<Communicator, Error> {
        match work.operation() {
            Operation::NeighborAllgather | Operation::NeighborAlltoall => {}
            _ => return self.communicator(algorithm),
        }
        if self.ring.is_none() {
            let comm = self.world.comm();
            self.ring = comm.cart_create(&[comm.size()], &[true], false)?;
        }
        Ok(self.ring.clone().unwrap_or_else(|| self.world.comm().clone()))
    }

    /// Buffers that were not used for long.
    fn buffers(&mut self, work: &CollectiveWork) -> (&mut [f64], &mut [f64]) {
        self.slot += 1;
        self.last_buffers(work)
    }

    /// The same as before.
    fn last_buffers(&mut self, work: &CollectiveWork) -> (&mut [f64], &mut [f64]) {
        /// Elements of a page.
        const PAGE: usize = 512;
        let (send, recv) = work.lens(self.rank(), self.size());
        let stride = send.next_multiple_of(PAGE) + recv.next_multiple_of(PAGE).max(PAGE);
        if self.arena.len() < 2 * stride {
            self.arena.resize(2 * stride, 0.0);
        }
        let places = self.arena.len() / stride;
        let slot = &mut self.arena[self.slot % places * stride..][..stride];
        let (out, into) = slot.split_at_mut(send.next_multiple_of(PAGE));
        (&mut out[..send], &mut into[..recv])
    }

    /// Of each number, the largest of all ranks.
    fn most<N: AsMut<[f64]> + AsRef<[f64]> + Clone>(&self, mine: N) -> Result<N, Error> {
        let mut all = mine.clone();
        self.control.allreduce(mine.as_ref(), all.as_mut(), ReduceOp::Max)?;
        Ok(all)
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.control.rank() as usize
    }

    /// How many there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.control.size() as usize
    }
}

fn call<'b>(
    work: &CollectiveWork,
    n: usize,
    send: impl SendBuffer<'b>,
    recv: impl RecvBuffer<'b>,
) -> Collective<'b> {
    match work.operation() {
        Operation::Bcast => Collective::bcast(recv, 0),
        Operation::Gather => Collective::gather(send, recv, 0),
        Operation::Scatter => Collective::scatter(send, recv, 0),
        Operation::Allgather => Collective::allgather(send, recv),
        Operation::Alltoall => Collective::alltoall(send, recv),
        Operation::Reduce => Collective::reduce(send, recv, ReduceOp::Sum, 0),
        Operation::Allreduce => Collective::allreduce(send, recv, ReduceOp::Sum),
        Operation::ReduceScatterBlock => {
            Collective::reduce_scatter_block(send, recv, ReduceOp::Sum)
        }
        Operation::Scan => Collective::scan(send, recv, ReduceOp::Sum),
        Operation::Exscan => Collective::exscan(send, recv, ReduceOp::Sum),
        // A buffer that is not divided has blocks of one length.
        Operation::Gatherv => Collective::gatherv(send, recv, 0),
        Operation::Scatterv => Collective::scatterv(send, recv, 0),
        Operation::Allgatherv => Collective::allgatherv(send, recv),
        Operation::Alltoallv => Collective::alltoallv(send, recv),
        Operation::ReduceScatter => {
            Collective::reduce_scatter(send, recv, &vec![work.len(); n], ReduceOp::Sum)
        }
        Operation::NeighborAllgather => Collective::neighbor_allgather(send, recv),
        Operation::NeighborAlltoall => Collective::neighbor_alltoall(send, recv),
        Operation::Barrier => Collective::barrier(),
    }
}

fn elements(bytes: u64) -> usize {
    usize::try_from(bytes / ELEMENT).unwrap_or(usize::MAX)
}

/// Nanoseconds of the clock that all processes of a host share.
/// Other work, of so many seconds.
pub(crate) fn compute(seconds: f64) {
    let begun = Instant::now();
    while begun.elapsed().as_secs_f64() < seconds {
        std::hint::spin_loop();
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "calls are short")]
fn seconds_since(begin: u64) -> f64 {
    // Clocks have a resolution: nothing takes no time.
    now().saturating_sub(begin).max(1) as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithms_with_equal_schedules_are_compared_once() {
        let names = |operation, n| -> Vec<String> {
            let all = different(operation, n, 1 << 10).unwrap();
            all.iter().map(ToString::to_string).collect()
        };
        // Two ranks: every tree has one edge.
        assert_eq!(names(Operation::Gather, 2), ["shared", "binomial"]);
        assert!(names(Operation::Bcast, 2).len() < names(Operation::Bcast, 9).len());
        for operation in CollectiveWork::OPERATIONS {
            assert!(!names(operation, 4).is_empty(), "{operation}");
        }
    }

    /// A rank alone goes through all of it.
    #[test]
    fn one_rank_measures() {
        let builder = World::builder().coll_table(Table::default());
        let world = builder.init().unwrap();
        let mut bench = Bench::new(&world).unwrap();
        let effort = Effort { seconds: 0.001, least: 4, hopeless: 1e9 };
        for operation in CollectiveWork::OPERATIONS {
            let work = CollectiveWork::new(operation, 64).unwrap();
            let algorithm = choose::fallback(operation);
            let [timed] = &bench.compare(&work, &[algorithm], effort).unwrap()[..] else {
                panic!()
            };
            assert!(timed.right && !timed.seconds.is_empty(), "{timed:?}");
        }
        for operation in Operation::ALL {
            let work = CollectiveWork::new(operation, 64).unwrap();
            assert!(bench.check(&work, None).unwrap(), "{operation}");
        }
        drop(bench);
        world.finalize().unwrap();
    }
}
