//! Eight processes, everyone with everyone, random layouts and sizes, out of heap and of mapped
//! memory, for as long as one likes; every byte compared. Memory and descriptors of every process are
//! sampled: what they take at most in the last third may exceed what they took at most in the
//! middle third by no more than a bound that does not grow with time.

use crate::traffic::Traffic;
use crate::{number, seed, words};
use gapless::World;
use gapless_tests::launcher::{Member, Said, TestLauncher, descriptors, say, segments};
use std::time::{Duration, Instant};

const TEST: &str = "soak::eight_processes_exchange_everything_in_flat_memory";
const RANKS: usize = 8;
const BYTES_MAX: u64 = 400 << 10;
/// However slow the machine is.
const STEPS_MIN: u64 = 12;
/// How much more of its own the last third may take than the middle one, in KiB: what the allocator
/// keeps of the buffers of a step (seven peers, a few times [`BYTES_MAX`]).
const KIB_MORE: u64 = 8 << 10;
/// The same of shared memory: slots of fourteen lanes that were not touched before.
const SHARED_KIB_MORE: u64 = 20 << 10;
/// The same in descriptors and in mappings: allocations of some steps whose end is still to be
/// told.
const OPEN_MORE: u64 = 64;

#[test]
fn eight_processes_exchange_everything_in_flat_memory() {
    if let Some(member) = Member::of_launcher() {
        return rank(member);
    }
    let seconds = number("GAPLESS_SOAK_SECONDS", 5);
    let seed = seed(TEST);
    let part = format!("rank {seed} {seconds}");
    let mut launcher = TestLauncher::start(TEST, &vec![part; RANKS], |_, _| {});
    let until = Instant::now() + Duration::from_secs(seconds * 2 + 120);
    let mut samples = vec![Vec::<Sample>::new(); RANKS];
    let (mut compared, mut bytes, mut ended) = (0, 0, 0);
    while ended < RANKS {
        let left = until.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "seed {seed}: somebody hangs");
        match launcher.hear(left) {
            None => {}
            Some((rank, Said::Ended(status))) => {
                assert!(status.success(), "seed {seed}: rank {rank}: {status}");
                ended += 1;
            }
            Some((rank, Said::Line(line))) => {
                let numbers = words(&line);
                match numbers[..] {
                    [anonymous_kib, shared_kib, descriptors, mappings] => samples[rank as usize]
                        .push(Sample { anonymous_kib, shared_kib, descriptors, mappings }),
                    [messages, volume] => {
                        compared += messages;
                        bytes += volume;
                    }
                    _ => panic!("rank {rank}: {line}"),
                }
            }
        }
    }
    println!("{compared} messages, {:.1} GB compared in {seconds} s", bytes as f64 / 1e9);
    for (rank, samples) in samples.iter().enumerate() {
        let third = samples.len() / 3;
        assert!(third > 0, "seed {seed}: rank {rank} was sampled {} times", samples.len());
        let middle = Sample::most(&samples[third..2 * third]);
        let last = Sample::most(&samples[2 * third..]);
        println!("rank {rank}: {} samples, middle {middle:?}, last {last:?}", samples.len());
        let flat = last.anonymous_kib <= middle.anonymous_kib + KIB_MORE
            && last.shared_kib <= middle.shared_kib + SHARED_KIB_MORE
            && last.descriptors <= middle.descriptors + OPEN_MORE
            && last.mappings <= middle.mappings + OPEN_MORE;
        assert!(flat, "seed {seed}: rank {rank} grows from {middle:?} to {last:?}");
    }
    assert!(compared >= (RANKS * (RANKS - 1)) as u64, "too little traffic");
}

/// What a process takes at a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    anonymous_kib: u64,
    /// Shared memory that it has touched.
    shared_kib: u64,
    descriptors: u64,
    mappings: u64,
}

impl Sample {
    fn take() -> Sample {
        let status = std::fs::read_to_string("/proc/self/status").expect("readable");
        let line = |name| {
            let rest = status.lines().find_map(|line: &str| line.strip_prefix(name));
            let kib = rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
            kib.unwrap_or_else(|| panic!("no {name} in {status}"))
        };
        Sample {
            anonymous_kib: line("RssAnon:"),
            shared_kib: line("RssShmem:"),
            descriptors: descriptors("self").len() as u64,
            mappings: segments("self").len() as u64,
        }
    }

    fn most(samples: &[Sample]) -> Sample {
        samples.iter().fold(Sample::default(), |most, sample| Sample {
            anonymous_kib: most.anonymous_kib.max(sample.anonymous_kib),
            shared_kib: most.shared_kib.max(sample.shared_kib),
            descriptors: most.descriptors.max(sample.descriptors),
            mappings: most.mappings.max(sample.mappings),
        })
    }
}

fn rank(mut member: Member) {
    let [seed, seconds] = words(&member.part)[..] else { panic!("a part of no sense") };
    let before = descriptors("self");
    let world = World::builder().wireup(member.wireup()).init().expect("all join");
    let me = world.rank();
    let mut traffic = Traffic::new(seed, BYTES_MAX, (0..world.size()).filter(|&rank| rank != me));
    let length = Duration::from_secs(seconds);
    let (begin, every) = (Instant::now(), length / 120);
    let mut sampled = begin;
    loop {
        // Rank 0 looks at the clock for all.
        let over = me == 0 && begin.elapsed() >= length && traffic.step >= STEPS_MIN;
        let outcome = traffic.step(&world, world.comm(), over.into());
        if let Some((rank, error)) = outcome.lost.first() {
            panic!("rank {rank} is lost: {error}");
        }
        if sampled.elapsed() >= every || traffic.step <= STEPS_MIN {
            sampled = Instant::now();
            let Sample { anonymous_kib, shared_kib, descriptors, mappings } = Sample::take();
            say(&format!("sample {anonymous_kib} {shared_kib} {descriptors} {mappings}"));
        }
        if over || outcome.words.iter().any(|&(rank, word)| rank == 0 && word == 1) {
            break;
        }
    }
    say(&format!("done {} {}", traffic.compared, traffic.bytes));
    world.finalize().expect("all leave");
    assert_eq!(segments("self"), [], "segments are mapped");
    assert_eq!(descriptors("self"), before, "descriptors are open");
}
