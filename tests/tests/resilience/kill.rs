//! Processes killed (SIGKILL) at random moments: before they have joined, while they meet, in the
//! middle of messages by any protocol. Whoever is left gets an error that names the dead within
//! [`WATCHDOG`], goes on with those who live, leaves, and holds nothing of the job any more; when all
//! have ended there is no process, no socket and no file of it.

use crate::traffic::Traffic;
use crate::{WATCHDOG, number, seed, words};
use gapless::{Config, Error, Protocol, Source, TagSel, World};
use gapless_dtype::testkit::Rng;
use gapless_tests::launcher::{
    Member, Said, TestLauncher, descriptors, processes_of, say, segments, shared_files,
};
use std::collections::BTreeSet;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::time::{Duration, Instant};

const TEST: &str = "kill::killed_at_any_moment_nobody_hangs_and_nothing_remains";
const BYTES_MAX: u64 = 600 << 10;

#[test]
fn killed_at_any_moment_nobody_hangs_and_nothing_remains() {
    if let Some(member) = Member::of_launcher() {
        return rank(member);
    }
    let wanted = number("GAPLESS_KILLS", 200);
    let seed = seed(TEST);
    // Names of sockets have any bytes, and other programs bind theirs.
    let name = [&[0xFF, 0xC3], format!("{TEST} {}", std::process::id()).as_bytes()].concat();
    let stranger = SocketAddr::from_abstract_name(name).and_then(|at| UnixListener::bind_addr(&at));
    let stranger = stranger.expect("a name that nobody else has");
    let begin = Instant::now();
    let (mut killed, mut rounds) = (0, 0);
    let mut figures = Figures::default();
    while killed < wanted {
        killed += round(seed.wrapping_add(rounds), &mut figures);
        rounds += 1;
    }
    drop(stranger);
    let took = begin.elapsed().as_secs_f64();
    println!("{killed} killed in {rounds} jobs, {took:.1} s: {figures:?}");
    assert!(figures.lost > 0 && figures.compared > 0, "nothing was tested");
}

/// What happened, over all rounds.
#[derive(Debug, Default)]
struct Figures {
    /// Losses that survivors were told of.
    lost: u64,
    /// Survivors that could not join, because the dead never came.
    refused: u64,
    /// Messages that survivors compared.
    compared: u64,
    /// Longest from the last kill until a survivor had the errors of all.
    slowest_ms: u128,
}

/// One job, in which some are killed. Gives how many.
fn round(seed: u64, figures: &mut Figures) -> u64 {
    let mut rng = Rng::new(seed);
    let size = u32::try_from(2 + rng.below(3)).expect("small");
    let mut ranks: Vec<u32> = (0..size).collect();
    rng.shuffle(&mut ranks);
    let victims = ranks.split_off(1 + rng.index(ranks.len() - 1));
    let survivors = ranks;
    let list = |ranks: &[u32]| ranks.iter().map(|rank| format!(" {rank}")).collect::<String>();
    let protocol = rng.below(5);
    let part = format!("rank {seed} {protocol}{}", list(&victims));
    let folder = tempfile::tempdir().expect("a folder");
    let mut launcher = TestLauncher::start(TEST, &vec![part; size as usize], |_, command| {
        command.current_dir(folder.path()).env("TMPDIR", folder.path());
    });
    let mut book = Book::default();
    if rng.chance(75) {
        let all = |book: &Book| (0..size).all(|rank| book.joined.contains(&rank));
        book.listen(&mut launcher, Duration::from_secs(60), "all have joined", all);
    }
    for &victim in &victims {
        let longest = *rng.pick(&[3_000, 30_000, 150_000]);
        let micros = rng.below(longest);
        let until = Instant::now() + Duration::from_micros(micros);
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            book.hear(&mut launcher, left);
        }
        // Other programs' files come and go there; ours would stay.
        let files = shared_files(&launcher.pid(victim).to_string());
        assert_eq!(files, [""; 0], "seed {seed}: in the hands of rank {victim}, who is killed");
        launcher.kill(victim);
    }
    let dead = Instant::now();
    let done = |book: &Book| survivors.iter().all(|rank| book.knows(*rank, &victims));
    book.listen(&mut launcher, WATCHDOG, "the survivors know", done);
    figures.slowest_ms = figures.slowest_ms.max(dead.elapsed().as_millis());
    let ended = |book: &Book| (0..size).all(|rank| book.ended.contains(&rank));
    book.listen(&mut launcher, 2 * WATCHDOG, "all have ended", ended);
    for (by, whom, error) in &book.lost {
        let fair = victims.contains(whom) || book.refused.contains(whom);
        assert!(fair, "seed {seed}: {by} blames {whom}: {error}");
    }
    for rank in &survivors {
        assert!(book.clean.contains(rank), "seed {seed}: rank {rank} failed: {book:?}");
    }
    figures.lost += book.lost.len() as u64;
    figures.refused += survivors.iter().filter(|rank| book.refused.contains(rank)).count() as u64;
    figures.compared += book.compared;
    nothing_remains(&launcher, folder.path(), seed);
    victims.len() as u64
}

/// No process of the job, no name of its sockets, no file.
fn nothing_remains(launcher: &TestLauncher, folder: &Path, seed: u64) {
    let remain = processes_of(launcher.job());
    assert_eq!(remain, [""; 0], "seed {seed}: processes of the job remain");
    let names = std::fs::read("/proc/net/unix").expect("readable by everybody");
    for (rank, rail) in launcher.published("gapless-rails") {
        // The address's bytes 48 … 63 name the listener.
        let name = rail.strip_prefix("sm:").and_then(|digits| digits.get(96..128));
        let name = name.unwrap_or_else(|| panic!("an address of another kind: {rail}"));
        let remains = names.windows(name.len()).any(|bytes| bytes == name.as_bytes());
        assert!(!remains, "seed {seed}: the socket of rank {rank} remains");
    }
    let files: Vec<_> = std::fs::read_dir(folder).expect("ours").flatten().collect();
    assert!(files.is_empty(), "seed {seed}: files remain: {files:?}");
}

/// What the ranks have said.
#[derive(Debug, Default)]
struct Book {
    joined: BTreeSet<u32>,
    refused: BTreeSet<u32>,
    clean: BTreeSet<u32>,
    ended: BTreeSet<u32>,
    /// Who lost whom, and how.
    lost: Vec<(u32, u32, String)>,
    compared: u64,
    others: Vec<String>,
}

impl Book {
    /// Whether a survivor has been told of all victims, or of some at start-up.
    fn knows(&self, rank: u32, victims: &[u32]) -> bool {
        let lost =
            |victim: &u32| self.lost.iter().any(|(by, whom, _)| (*by, whom) == (rank, victim));
        self.refused.contains(&rank) || victims.iter().all(lost)
    }

    fn hear(&mut self, launcher: &mut TestLauncher, within: Duration) {
        match launcher.hear(within) {
            None => {}
            Some((rank, Said::Ended(status))) => {
                self.ended.insert(rank);
                self.others.push(format!("rank {rank}: {status}"));
            }
            Some((rank, Said::Line(line))) => {
                let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
                match verb {
                    "joined" => drop(self.joined.insert(rank)),
                    "refused" => {
                        self.joined.insert(rank);
                        self.refused.insert(rank);
                    }
                    "clean" => drop(self.clean.insert(rank)),
                    "compared" => self.compared += rest.parse::<u64>().expect("a number"),
                    "lost" => {
                        let (whom, error) = rest.split_once(' ').expect("a rank and an error");
                        let whom = whom.parse().expect("a rank");
                        self.lost.push((rank, whom, error.to_owned()));
                        return;
                    }
                    _ => {}
                }
                self.others.push(format!("rank {rank}: {line}"));
            }
        }
    }

    /// Hears until it is so.
    fn listen(
        &mut self,
        launcher: &mut TestLauncher,
        within: Duration,
        what: &str,
        is_so: impl Fn(&Book) -> bool,
    ) {
        let until = Instant::now() + within;
        while !is_so(self) {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waiting until {what}: {self:?}");
            self.hear(launcher, left);
        }
    }
}

/// A rank: victims and survivors do the same.
fn rank(mut member: Member) {
    let numbers = words(&member.part);
    let [seed, protocol, ref victims @ ..] = numbers[..] else { panic!("a part of no sense") };
    let victims: BTreeSet<u32> =
        victims.iter().map(|&rank| u32::try_from(rank).expect("a rank")).collect();
    let force =
        [None, Some(Protocol::Pipeline), Some(Protocol::SingleCopy), Some(Protocol::Mapped)]
            .into_iter()
            .nth(usize::try_from(protocol).expect("small"))
            .flatten();
    let before = descriptors("self");
    let config = Config { force, ..Config::default() };
    match World::builder().wireup(member.wireup()).config(config).init() {
        Err(error) => say(&format!("refused {error}")),
        Ok(world) => {
            say("joined");
            let me = world.rank();
            let others = (0..world.size()).filter(|&rank| rank != me);
            let mut traffic = Traffic::new(seed, BYTES_MAX, others);
            let mut dead = BTreeSet::new();
            loop {
                let outcome = traffic.step(&world, world.comm(), dead.len() as u64);
                // Everyone sees the same words of those who are left, so all stop at the same step.
                let settled = |(rank, word): &(u32, u64)| {
                    !victims.contains(rank) && *word == victims.len() as u64
                };
                if dead.len() == victims.len() && outcome.words.iter().all(settled) {
                    break;
                }
                for (rank, error) in outcome.lost {
                    say(&format!("lost {rank} {error}"));
                    if victims.contains(&rank) {
                        dead.insert(rank);
                    }
                }
            }
            if traffic.live.is_empty() {
                // What has come in full before its sender died stays until somebody receives it.
                // Memory that a dead peer has mapped is let go of when its process is known to be gone.
                let until = Instant::now() + WATCHDOG;
                while segments("self").len() > dead.len() {
                    let mapped = segments("self");
                    assert!(Instant::now() < until, "mapped, and nobody lives: {mapped:?}");
                    // Nobody is left to send anything; what is asked for is progress.
                    let _ = world.comm().iprobe(Source::Any, TagSel::Any);
                }
            }
            say(&format!("compared {}", traffic.compared));
            assert_eq!(shared_files("self"), [""; 0], "files of /dev/shm are in use");
            let left = world.finalize();
            assert!(left.is_err() || dead.is_empty(), "somebody died");
        }
    }
    // Nothing of the job is held any more.
    assert_eq!(segments("self"), [], "segments are mapped");
    let after = descriptors("self");
    assert_eq!(after, before, "descriptors are open");
    say("clean");
}

const AFTER: &str = "kill::what_came_before_the_end_is_delivered";
/// What the victim of [`AFTER`] sends.
const LAST: [u8; 10] = [7, 1, 8, 2, 8, 1, 8, 2, 8, 4];

/// What the dead sent in full is received. Then all calls that need them fail and name them, and those that do not go on.
#[test]
fn what_came_before_the_end_is_delivered() {
    if let Some(member) = Member::of_launcher() {
        return after_the_end(member);
    }
    let mut launcher = TestLauncher::start(AFTER, &[""; 3], |_, _| {});
    let mut book = Book::default();
    let met = |book: &Book| book.joined.len() == 3;
    book.listen(&mut launcher, Duration::from_secs(60), "all have sent", met);
    launcher.kill(1);
    let clean = |book: &Book| book.clean == BTreeSet::from([0, 2]);
    book.listen(&mut launcher, 2 * WATCHDOG, "the survivors have gone on", clean);
}

fn after_the_end(mut member: Member) {
    let world = World::builder().wireup(member.wireup()).init().expect("all live");
    let comm = world.comm();
    if world.rank() == 1 {
        for byte in LAST {
            comm.send(&[byte], 0, 0).expect("all live");
        }
    }
    say("joined");
    let mut byte = [0u8];
    if world.rank() == 1 {
        // Killed before anything comes.
        let _ = comm.recv(&mut byte, 0, 9);
    }
    let lost = |error: Error| assert_eq!(error.lost_rank(), Some(1), "{error}");
    lost(comm.recv(&mut byte, 1, 9).expect_err("it is dead"));
    lost(comm.send(&vec![0u8; 1 << 20], 1, 0).expect_err("it is dead"));
    lost(comm.dup().expect_err("a member is dead"));
    if world.rank() == 0 {
        for expected in LAST {
            comm.recv(&mut byte, 1, 0).expect("it was sent in full");
            assert_eq!(byte, [expected]);
        }
        lost(comm.probe(1, 0).expect_err("all of it was received"));
    }
    // From any source: the other one lives.
    let other = 2 - world.rank();
    let left = comm.group().excl(&[1]).expect("a member");
    let rest = comm.create_group(&left, 0).expect("its members live");
    rest.send(&[9u8], other / 2, 0).expect("it lives");
    rest.recv(&mut byte, Source::Any, 0).expect("it lives");
    comm.send(&[9u8], other, 0).expect("it lives");
    comm.recv(&mut byte, Source::Any, 0).expect("it lives");
    // That somebody died is worth an error.
    let _ = world.finalize();
    say("clean");
}
