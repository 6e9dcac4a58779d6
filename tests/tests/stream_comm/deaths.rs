//! Ranks that are killed (SIGKILL), or stopped for a while (SIGSTOP), while persistent kernels carry out short device
//! messages and blocking calls. Who is left names the dead, its GPU goes on, and nothing of the dead remains in the
//! GPU's memory or its ledger.
//!
//! `GAPLESS_STREAM_DEATHS` says how many jobs, `GAPLESS_SEED` repeats what is done to whom, and when.

use super::{Rank, WATCHDOG, alone, bytes, launcher, obstacle};
use gapless::{
    CudaDevice, CudaDriver, Datatype, DeviceBuf, Error, Layout, Primitive, ReduceOp, Source,
    StreamComm, StreamError, TagSel, Workers,
};
use gapless_dtype::testkit::Rng;
use gapless_dtype_cuda::reserved;
use gapless_tests::launcher::{Member, Said, TestLauncher, say};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[test]
fn the_death_of_a_rank_ends_waits_and_is_named() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher("deaths::the_death_of_a_rank_ends_waits_and_is_named", Some(1));
    };
    let rank = Rank::new(&mut member);
    let memory = rank.memory(4096);
    let mut on = rank.on();
    let mut call = || {
        // SAFETY: it outlives `on`, and nothing else uses it.
        unsafe {
            on.allreduce(memory.region(), memory.region(), 64, Primitive::Float, ReduceOp::Sum)
        }?;
        on.wait()
    };
    call().unwrap();
    if rank.comm().rank() == 1 {
        say("kill");
        std::thread::sleep(WATCHDOG);
    }
    let begun = Instant::now();
    let error = call().unwrap_err();
    assert_eq!(error.lost_rank(), Some(1), "{error}");
    assert!(begun.elapsed() < WATCHDOG / 2, "patience is longer than that");
    drop(on);
}

const TEST: &str = "deaths::killed_or_stopped_at_any_moment_nobody_hangs_and_nothing_remains";
/// Memory that a rank sends from, which its peer may have mapped: so much that it is missed.
const SENT: usize = 256 << 20;
/// What the driver may keep for itself.
const SLACK: u64 = 96 << 20;
/// The longest message.
const MESSAGE_MAX: usize = 32 << 10;
/// The longest vector.
const NUMBERS_MAX: usize = 2048;
/// Rounds between two looks at the results.
const LOOK: u64 = 16;

/// A number from the environment.
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}")))
}

#[test]
fn killed_or_stopped_at_any_moment_nobody_hangs_and_nothing_remains() {
    if let Some(member) = Member::of_launcher() {
        return rank(member);
    }
    if let Some(why) = obstacle() {
        return gapless_btl_testkit::conformance::skip(TEST, &why);
    }
    let _alone = alone();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    let fresh = u64::try_from(now & u128::from(u64::MAX >> 8)).unwrap();
    let seed = number("GAPLESS_SEED").unwrap_or(fresh);
    println!("{TEST}: GAPLESS_SEED={seed}");
    let driver = CudaDriver::load().unwrap();
    let gpus = (0..driver.devices().min(2)).map(|ordinal| driver.device(ordinal).unwrap());
    let gpus: Vec<Gpu> = gpus.map(Gpu::new).collect();
    let (jobs, begun) = (number("GAPLESS_STREAM_DEATHS").unwrap_or(4), Instant::now());
    let mut figures = Figures::default();
    for number in 0..jobs {
        Job::run(seed.wrapping_add(number), &gpus, &mut figures);
    }
    figures.kept = gpus.iter().map(|gpu| gpu.free.saturating_sub(gpu.free_now())).sum();
    println!("{jobs} jobs in {:.1} s: {figures:?}", begun.elapsed().as_secs_f64());
    assert!(figures.calls > 0, "no kernel stayed");
}

/// What happened, in all jobs.
#[derive(Debug, Default)]
struct Figures {
    killed: u64,
    stopped: u64,
    /// Rounds of those who were left.
    rounds: u64,
    /// Calls of theirs that a persistent kernel has run.
    calls: u64,
    /// The longest from a death until the other, which was not stopped, was told.
    told_ms: u128,
    /// Deaths after which what the dead had sent from was free while the survivor lived.
    let_go: u64,
    /// Bytes of the GPUs that were free before, and are not any more.
    kept: u64,
}

/// A GPU, and how much of it was free before anybody came.
struct Gpu {
    device: CudaDevice,
    free: u64,
}

impl Gpu {
    fn new(device: CudaDevice) -> Gpu {
        let free = device.memory_now().unwrap().0;
        Gpu { device, free }
    }

    fn free_now(&self) -> u64 {
        self.device.memory_now().unwrap().0
    }

    /// Waits until so much is free.
    fn frees(&self, bytes: u64, what: &str) {
        let until = Instant::now() + WATCHDOG;
        loop {
            let free = self.free_now();
            if free >= bytes {
                return;
            }
            assert!(Instant::now() < until, "{what}: {free} bytes are free, of {bytes}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A job of two ranks.
struct Job {
    launcher: TestLauncher,
    seed: u64,
    said: [Vec<String>; 2],
    ended: [Option<ExitStatus>; 2],
}

impl Job {
    fn run(seed: u64, gpus: &[Gpu], figures: &mut Figures) {
        let mut rng = Rng::new(seed);
        let part = format!("rank {seed}");
        let launcher = TestLauncher::start(TEST, &[&part, &part], |_, _| {});
        let mut job = Job { launcher, seed, said: Default::default(), ended: [None; 2] };
        job.until("both have joined", |job| job.both_said("joined"));
        for _ in 0..rng.below(3) {
            job.pause(*rng.pick(&[10_000, 100_000, 400_000]), &mut rng);
            let rank = u32::from(rng.chance(50));
            job.launcher.stop(rank);
            job.pause(80_000, &mut rng);
            job.launcher.go_on(rank);
            figures.stopped += 1;
        }
        if rng.chance(15) {
            job.tell_both("leave");
        } else {
            job.pause(*rng.pick(&[10_000, 100_000, 400_000]), &mut rng);
            let victim = usize::from(rng.chance(50));
            job.dies(victim, &mut rng, gpus, figures);
        }
        job.until("both have ended", |job| job.ended.iter().all(Option::is_some));
        for gpu in gpus {
            gpu.frees(gpu.free - SLACK, &format!("seed {seed}: when all have ended"));
            let ranks = [0, 1].map(|rank| job.launcher.pid(rank));
            let mut holders = reserved(gpu.device.uuid()).unwrap().into_iter();
            let dead = holders.find(|holding| ranks.contains(&holding.process));
            assert_eq!(dead, None, "seed {seed}: the ledger counts the dead");
        }
        for said in job.said.iter().flatten() {
            if let Some(did) = said.strip_prefix("did ") {
                let [rounds, calls] = words(did);
                figures.rounds += rounds;
                figures.calls += calls;
            }
        }
    }

    /// Kills a rank; the other says that it knows, and lets go of what it has mapped.
    fn dies(&mut self, victim: usize, rng: &mut Rng, gpus: &[Gpu], figures: &mut Figures) {
        let gpu = &gpus[victim % gpus.len()];
        let going = self.both_said("going").then(|| gpu.free_now());
        let ranks = [victim, 1 - victim].map(|rank| u32::try_from(rank).unwrap());
        // One of them may be stopped just then. On one GPU not the survivor: a kernel of the dead may wait for it, and
        // then MPS may end the work of both (docs/gpu.md).
        let survivor = (gpus.len() > 1).then_some(ranks[1]);
        let stopped = *rng.pick(&[None, None, Some(ranks[0]), survivor]);
        if let Some(rank) = stopped {
            self.launcher.stop(rank);
            self.pause(30_000, rng);
            figures.stopped += 1;
        }
        self.launcher.kill(ranks[0]);
        figures.killed += 1;
        if stopped == Some(ranks[1]) {
            self.pause(80_000, rng);
            self.launcher.go_on(ranks[1]);
        }
        let begun = Instant::now();
        self.until("the survivor knows", |job| job.has_said(1 - victim, "lost"));
        figures.told_ms = figures.told_ms.max(begun.elapsed().as_millis());
        self.until("the dead is dead", |job| job.ended[victim].is_some());
        assert_eq!(self.ended[victim].unwrap().signal(), Some(9), "seed {}", self.seed);
        if let Some(going) = going {
            let what = format!("seed {}: beside the survivor", self.seed);
            gpu.frees(going + SENT as u64 - SLACK, &what);
            figures.let_go += 1;
        }
        self.tell_both("leave");
    }

    fn tell_both(&mut self, line: &str) {
        (0..2).for_each(|rank| self.launcher.tell(rank, line));
    }

    fn has_said(&self, rank: usize, line: &str) -> bool {
        self.said[rank].iter().any(|said| said == line)
    }

    fn both_said(&self, line: &str) -> bool {
        self.has_said(0, line) && self.has_said(1, line)
    }

    /// Lets up to so many microseconds pass.
    fn pause(&mut self, longest: u64, rng: &mut Rng) {
        let until = Instant::now() + Duration::from_micros(rng.below(longest));
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            self.hear(left);
        }
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Job) -> bool) {
        let until = Instant::now() + WATCHDOG;
        while !is_so(self) {
            let left = until.saturating_duration_since(Instant::now());
            let Job { seed, said, ended, .. } = self;
            assert!(!left.is_zero(), "seed {seed}: waiting until {what}: {said:?}, {ended:?}");
            self.hear(left);
        }
    }

    fn hear(&mut self, within: Duration) {
        match self.launcher.hear(within) {
            Some((rank, Said::Line(line))) => self.said[rank as usize].push(line),
            Some((rank, Said::Ended(status))) => {
                let fine = status.success() || status.signal() == Some(9);
                assert!(fine, "seed {}: rank {rank} failed: {status}", self.seed);
                self.ended[rank as usize] = Some(status);
            }
            None => {}
        }
    }
}

/// As many numbers.
fn words<const N: usize>(text: &str) -> [u64; N] {
    let mut words = text.split_whitespace();
    std::array::from_fn(|_| words.next().unwrap().parse().unwrap())
}

/// How an exchange has ended: who is lost, as far as the error says, and the error.
struct Loss(Option<u32>, String);

impl From<Error> for Loss {
    fn from(error: Error) -> Loss {
        Loss(error.lost_rank(), format!("a message: {error}"))
    }
}

impl From<StreamError> for Loss {
    fn from(error: StreamError) -> Loss {
        Loss(error.lost_rank(), format!("a call: {error}"))
    }
}

fn rank(mut member: Member) {
    let [seed] = words(member.part.strip_prefix("rank ").unwrap());
    let rank = Rank::with(&mut member, Workers::Idle(Duration::from_micros(300)));
    say("joined");
    let peer = 1 - rank.world.rank();
    let outcome = Exchange::new(&rank, seed).run(&member);
    if let Err(Loss(lost, error)) = outcome {
        assert_eq!(lost, Some(peer), "{error}");
        say("lost");
        // Memory of the dead is let go of by and by.
        while member.lines.try_recv().is_err() {
            let _ = rank.comm().iprobe(Source::Any, TagSel::Any);
        }
        // The GPU goes on.
        let (memory, right) = (rank.memory(1 << 20), bytes(1 << 20, seed));
        rank.write(memory.region(), &right);
        assert!(rank.read(memory.region(), 1 << 20) == right);
        drop(memory);
        // That somebody died is worth an error.
        let _ = rank.world.finalize();
    } else {
        rank.world.finalize().unwrap();
    }
}

/// What two ranks do all the time.
struct Exchange<'a> {
    rank: &'a Rank,
    rng: Rng,
    byte: Layout,
    /// What the peer sends.
    theirs: Vec<u8>,
    sent: DeviceBuf,
    received: DeviceBuf,
    /// What is added up, and the sums.
    numbers: [DeviceBuf; 2],
    rounds: u64,
}

impl Exchange<'_> {
    fn new(rank: &Rank, seed: u64) -> Exchange<'_> {
        let [ours, theirs] = [0, 1].map(|of| {
            let of = u64::from(rank.world.rank()) ^ of;
            bytes(2 * MESSAGE_MAX, seed ^ of)
        });
        let (sent, received) = (rank.memory(SENT), rank.memory(MESSAGE_MAX));
        rank.write(sent.region(), &ours);
        let numbers = [0, 1].map(|_| rank.memory(8 * NUMBERS_MAX));
        let ours = i64::from(rank.world.rank()) + 1;
        rank.write(numbers[0].region(), &ours.to_ne_bytes().repeat(NUMBERS_MAX));
        let byte = Datatype::from(Primitive::Byte).commit().unwrap();
        // What is sent and received is the same at both ranks.
        Exchange { rank, rng: Rng::new(seed), byte, theirs, sent, received, numbers, rounds: 0 }
    }

    /// Goes on until the launcher says that it is enough.
    fn run(mut self, member: &Member) -> Result<(), Loss> {
        let mut on = self.rank.comm().on_with(&self.rank.stream, self.rank.options)?;
        let outcome = loop {
            match self.round(&mut on, member) {
                Ok(false) => {}
                Ok(true) => break Ok(()),
                Err(loss) => break Err(loss),
            }
        };
        if outcome.is_err() {
            let again = on.blocking().barrier().unwrap_err();
            assert_eq!(again.lost_rank(), Some(1 - self.rank.world.rank()), "{again}");
        }
        say(&format!("did {} {}", self.rounds, on.calls_without_launch()));
        outcome
    }

    /// Whether it was the last round.
    fn round(&mut self, on: &mut StreamComm<'_>, member: &Member) -> Result<bool, Loss> {
        let (comm, peer) = (self.rank.comm(), 1 - self.rank.world.rank());
        let at = self.rng.index(MESSAGE_MAX);
        let (len, count) = (1 + self.rng.index(MESSAGE_MAX), 1 + self.rng.index(NUMBERS_MAX));
        let out = self.sent.view(at as u64, &self.byte, len as u64)?;
        let into = self.received.view_mut(0, &self.byte, len as u64)?;
        comm.sendrecv(out, (peer, 0), into, (peer, 0))?;
        on.blocking().barrier()?;
        let [from, to] = self.numbers.each_ref().map(DeviceBuf::region);
        let (element, op) = (Primitive::Int64, ReduceOp::Sum);
        // SAFETY: the memory outlives `on`, and nothing else uses it until this returns.
        unsafe { on.blocking().allreduce(from, to, count as u64, element, op) }?;
        self.rounds += 1;
        if self.rounds == 1 {
            say("going");
        }
        if !self.rounds.is_multiple_of(LOOK) {
            return Ok(false);
        }
        let found = self.rank.read(self.received.region(), len);
        assert!(found == self.theirs[at..at + len], "round {}: {len} from {at}", self.rounds);
        let sums = self.rank.read(to, 8 * count);
        assert!(sums == 3i64.to_ne_bytes().repeat(count), "round {}: {count}", self.rounds);
        let mut enough = [0u32];
        comm.allreduce(&[u32::from(member.lines.try_recv().is_ok())], &mut enough, ReduceOp::Max)?;
        Ok(enough != [0])
    }
}
