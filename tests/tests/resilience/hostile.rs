//! Hostile neighbours: two victims and two processes that meet them like any other, exchange
//! messages by any protocol, and then overwrite all shared memory that they can reach, or send what
//! is not true, or both, until they are killed. Between each victim and each of them: errors that name
//! the culprit, no crash, nothing outside a receive's buffer touched, and an end in time. Between the
//! victims: every byte right, all the time.

use crate::liar::{LIAR, Liar, Mask, Scribbler};
use crate::traffic::{Letter, Traffic};
use crate::{WATCHDOG, number, seed, words};
use gapless::{Communicator, Config, Error, Failure, PmlError, Protocol, View, ViewMut, World};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_dtype::testkit::Rng;
use gapless_tests::launcher::{Member, Said, TestLauncher, descriptors, say, segments};
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TEST: &str = "hostile::hostile_neighbours_harm_nobody_but_themselves";
const VICTIMS: u32 = 2;
const SIZE: u32 = 4;
const BYTES_MAX: u64 = 300 << 10;

#[test]
fn hostile_neighbours_harm_nobody_but_themselves() {
    if let Some(member) = Member::of_launcher() {
        return match member.rank < VICTIMS {
            true => victim(member),
            false => hostile(member),
        };
    }
    let rounds = number("GAPLESS_HOSTILE_ROUNDS", 40);
    let seed = seed(TEST);
    let mut sum = Figures::default();
    let begin = Instant::now();
    for round in 0..rounds {
        job(seed.wrapping_add(round), &mut sum);
    }
    let took = begin.elapsed().as_secs_f64();
    println!("{rounds} jobs with {} hostile processes, {took:.1} s: {sum:?}", SIZE - VICTIMS);
    let lost = u64::from(VICTIMS * (SIZE - VICTIMS)) * rounds;
    assert_eq!(sum.lost, lost);
    assert!(sum.scribbled + sum.lies > 0, "nobody was hostile");
    assert!(sum.compared > 0, "nothing was tested");
    let many = sum.scribbled > 0 && sum.lies > 0 && sum.sweeps > 0 && sum.broken > 0;
    assert!(many || rounds < 16, "some of it was not tested");
}

/// What happened in all jobs.
#[derive(Debug, Default)]
struct Figures {
    /// Bytes that were overwritten.
    scribbled: u64,
    /// How often every byte of all that a process shares was.
    sweeps: u64,
    /// Bursts of messages written into rings by hand.
    forged: u64,
    /// Messages that were changed or sent again.
    lies: u64,
    /// Hostile processes lost, by each victim.
    lost: u64,
    /// Of these, because they were caught breaking the rules.
    broken: u64,
    /// Messages with hostile processes that ended, in success or not.
    chatted: u64,
    /// Of these, with an error other than the loss.
    complaints: u64,
    /// Messages between victims, every byte compared.
    compared: u64,
}

/// What each rank of a job has said.
#[derive(Debug, Default)]
struct Heard {
    joined: BTreeSet<u32>,
    lost: BTreeSet<(u32, u32)>,
    ended: BTreeSet<u32>,
    scribblers: BTreeSet<u32>,
    /// The last report of each: bytes, sweeps, bursts, lies.
    deeds: [[u64; 4]; SIZE as usize],
    all: Vec<String>,
}

fn job(seed: u64, sum: &mut Figures) {
    let mut rng = Rng::new(seed);
    let part = format!("rank {seed} {}", rng.below(5));
    let under = |rank: u32| match std::env::var("GAPLESS_VICTIMS_UNDER") {
        Ok(words) if rank < VICTIMS => words.split_whitespace().map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    // Under an emulator everything takes its time.
    let slow = std::env::var_os("GAPLESS_VICTIMS_UNDER").is_some();
    let millisecond = Duration::from_millis(if slow { 20 } else { 1 });
    let mut launcher =
        TestLauncher::start_under(TEST, &vec![part; SIZE as usize], under, |_, _| {});
    let mut heard = Heard::default();
    let mut listen = |launcher: &mut TestLauncher, within, what, is_so: &dyn Fn(&Heard) -> bool| {
        let until = Instant::now() + within;
        while !is_so(&heard) {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "seed {seed}: waiting until {what}: {heard:?}");
            if let Some((rank, said)) = launcher.hear(left) {
                heard.note(rank, said, sum, seed);
            }
        }
    };
    let minute = Duration::from_secs(60);
    let whole = |heard: &Heard| heard.joined.len() == SIZE as usize;
    listen(&mut launcher, minute, "all have joined", &whole);
    for rank in VICTIMS..SIZE {
        launcher.tell(rank, "go");
    }
    for rank in VICTIMS..SIZE {
        std::thread::sleep(millisecond * u32::try_from(30 + rng.below(150)).expect("small"));
        launcher.kill(rank);
    }
    let known = |heard: &Heard| heard.lost.len() == (VICTIMS * (SIZE - VICTIMS)) as usize;
    listen(&mut launcher, WATCHDOG, "the victims know", &known);
    launcher.tell(0, "stop");
    let over = |heard: &Heard| heard.ended.len() == SIZE as usize;
    listen(&mut launcher, WATCHDOG, "all have ended", &over);
    for [bytes, sweeps, forged, lies] in heard.deeds {
        sum.forged += forged;
        sum.scribbled += bytes;
        sum.sweeps += sweeps;
        sum.lies += lies;
    }
}

impl Heard {
    fn note(&mut self, rank: u32, said: Said, sum: &mut Figures, seed: u64) {
        let line = match said {
            Said::Line(line) => line,
            Said::Ended(status) => {
                // Who scribbles may fall over what it did to its own memory, which moves meanwhile.
                let fine = match rank {
                    0..VICTIMS => status.success(),
                    _ => status.signal() == Some(9) || self.scribblers.contains(&rank),
                };
                assert!(fine, "seed {seed}: rank {rank}: {status}: {self:?}");
                self.ended.insert(rank);
                return;
            }
        };
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match verb {
            "joined" => drop(self.joined.insert(rank)),
            "scribbles" => drop(self.scribblers.insert(rank)),
            "lost" => {
                let (whom, error) = rest.split_once(' ').expect("a rank and an error");
                self.lost.insert((rank, whom.parse().expect("a rank")));
                sum.lost += 1;
                let closed = "its end of the socket was closed";
                sum.broken += u64::from(!error.contains(closed) && !error.contains("given up"));
            }
            "deeds" => {
                let numbers = words(&line);
                self.deeds[rank as usize] = numbers.try_into().expect("four numbers");
                return;
            }
            "done" => {
                let [compared, chatted, complaints] = words(&line)[..] else {
                    panic!("rank {rank}: {line}")
                };
                sum.compared += compared;
                sum.chatted += chatted;
                sum.complaints += complaints;
            }
            _ => {}
        }
        self.all.push(format!("rank {rank}: {line}"));
    }
}

fn config(member: &Member) -> (u64, Config) {
    let [seed, protocol] = words(&member.part)[..] else { panic!("a part of no sense") };
    let force =
        [None, Some(Protocol::Pipeline), Some(Protocol::SingleCopy), Some(Protocol::Mapped)];
    let force = force.into_iter().nth(usize::try_from(protocol).expect("small")).flatten();
    (seed, Config { force, ..Config::default() })
}

/// What came of the messages with one peer.
#[derive(Default)]
struct Chat {
    ended: u64,
    complaints: u64,
    lost: Option<Error>,
}

/// One message in each direction. Whatever comes of them, bytes beside the receive's are as before; not so in
/// a hostile process, whose heap may have moved to where it still scribbles.
fn chat(world: &World, comm: &Communicator, peer: u32, seed: u64, step: u64, chat: &mut Chat) {
    let me = comm.rank();
    let out = Letter::of(seed, me, peer, step, BYTES_MAX);
    let inn = Letter::of(seed, peer, me, step, BYTES_MAX);
    let outbox = out.outbox(world);
    let mut inbox = inn.inbox();
    let tag = i32::try_from(step % 1_000_000).expect("small");
    let mut results = Vec::new();
    let scoped = comm.scope(|s| {
        let (layout, side) = inn.recv()?;
        let into = ViewMut::typed(&mut inbox, side.0, &layout, side.1)?;
        let received = s.irecv(into, peer, tag);
        let (layout, side) = out.send()?;
        let sent = s.isend(View::typed(&outbox[..], side.0, &layout, side.1)?, peer, tag);
        for started in [received, sent] {
            results.push(started.and_then(|request| s.wait(request)).map(|_| ()));
        }
        Ok(())
    });
    scoped.expect("both were waited for");
    if me < VICTIMS {
        inn.assert_gaps(&inbox, step, peer);
    }
    for result in results {
        chat.ended += 1;
        let Err(error) = result else { continue };
        match error.lost_rank() {
            Some(rank) => {
                assert_eq!(rank, peer, "somebody else is blamed: {error}");
                chat.lost = Some(error);
            }
            None => {
                let expected = matches!(
                    error,
                    Error::Message(Failure {
                        error: PmlError::Truncated { .. }
                            | PmlError::SignatureMismatch { .. }
                            | PmlError::SenderFailed { .. }
                            | PmlError::NotReady { .. }
                            | PmlError::Unreceived { .. }
                            // It says that it has revoked the communicator.
                            | PmlError::Revoked,
                        ..
                    })
                );
                assert!(expected, "an error of another kind: {error:?}");
                chat.complaints += 1;
            }
        }
    }
}

fn victim(mut member: Member) {
    let (seed, config) = config(&member);
    let before = descriptors("self");
    let world = World::builder().wireup(member.wireup()).config(config).init().expect("it joins");
    say("joined");
    let (me, comm) = (world.rank(), world.comm());
    let stop = AtomicBool::new(false);
    let (ended, complaints) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut traffic = Traffic::new(seed, BYTES_MAX, (0..VICTIMS).filter(|&rank| rank != me));
    traffic.first_tag = 1_000_000;
    std::thread::scope(|threads| {
        for peer in VICTIMS..SIZE {
            let (world, ended, complaints) = (&world, &ended, &complaints);
            threads.spawn(move || {
                let mut all = Chat::default();
                let mut step = 0;
                while all.lost.is_none() {
                    chat(world, comm, peer, seed, step, &mut all);
                    step += 1;
                }
                ended.fetch_add(all.ended, Ordering::Relaxed);
                complaints.fetch_add(all.complaints, Ordering::Relaxed);
                let error = all.lost.map_or(String::new(), |error| error.to_string());
                say(&format!("lost {peer} {error}"));
            });
        }
        let (world, traffic, stop) = (&world, &mut traffic, &stop);
        threads.spawn(move || {
            loop {
                // Rank 0 hears when it is over, and tells.
                let over = stop.load(Ordering::Relaxed);
                let outcome = traffic.step(world, comm, over.into());
                assert!(outcome.lost.is_empty(), "victims do not lose each other");
                if over || outcome.words.iter().any(|&(rank, word)| rank == 0 && word == 1) {
                    return;
                }
            }
        });
        if me == 0 {
            let line = member.lines.recv().expect("the launcher lives");
            assert_eq!(line, "stop");
            stop.store(true, Ordering::Relaxed);
        }
    });
    let (ended, complaints) = (ended.into_inner(), complaints.into_inner());
    say(&format!("done {} {ended} {complaints}", traffic.compared));
    assert!(world.finalize().is_err(), "two have died");
    assert_eq!(segments("self"), [], "segments are mapped");
    assert_eq!(descriptors("self"), before, "descriptors are open");
}

/// Never ends by itself.
fn hostile(mut member: Member) {
    let (seed, config) = config(&member);
    let seed = seed ^ u64::from(member.rank) << 20;
    let mut rng = Rng::new(seed);
    // Some scribble, some lie, some do both.
    let (scribbles, lies) = [(true, false), (false, true), (true, true)][rng.index(3)];
    let per_mille = if lies { *rng.pick(&[5, 50, 300]) } else { 0 };
    let told = Arc::new(AtomicU64::new(0));
    let name = format!("rank {}", member.rank);
    let sm = Sm::new(SmConfig::new(&*member.job, &name)).expect("a transport");
    let liar = Liar::new(sm, rng.next_u64(), per_mille, Arc::clone(&told));
    let world = World::builder()
        .wireup(Box::new(Mask(member.wireup())))
        .config(config)
        .transport(Box::new(liar))
        .only([LIAR])
        .init()
        .expect("it joins");
    if scribbles {
        say("scribbles");
    }
    say("joined");
    let (chat_seed, _) = self::config(&member);
    std::thread::scope(|threads| {
        for peer in 0..VICTIMS {
            let world = &world;
            threads.spawn(move || {
                // Its own message layer may well fall over what it does to itself.
                let talk = || {
                    let mut all = Chat::default();
                    let mut step = 0;
                    while all.lost.is_none() {
                        chat(world, world.comm(), peer, chat_seed, step, &mut all);
                        step += 1;
                    }
                };
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(talk));
            });
        }
        let _ = member.lines.recv();
        let mut scribbler = Scribbler::new(rng.next_u64());
        let mut told_at = Instant::now();
        loop {
            if scribbles {
                scribbler.act();
                std::thread::sleep(Duration::from_micros(rng.below(2000)));
            } else {
                std::thread::sleep(Duration::from_millis(5));
            }
            if told_at.elapsed() > Duration::from_millis(10) {
                told_at = Instant::now();
                let told = told.load(Ordering::Relaxed);
                let Scribbler { bytes, sweeps, forged, .. } = &scribbler;
                say(&format!("deeds {bytes} {sweeps} {forged} {told}"));
            }
        }
    });
}
