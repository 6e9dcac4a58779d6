//! What Gapless takes for the work that `peers.c` does with an MPI library: the same layouts, sizes, places and
//! measures. `cargo xtask peers` starts both, gives each a command in turn, and compares.
//!
//! `gapless-peers FOLDER [ROTATION_BYTES]` under a launcher: rank r reads commands, a line each, from the fifo
//! `FOLDER/r`, and rank 0 answers each on the fifo `FOLDER/answers` with two medians in seconds: of the work,
//! and of `memcpy` of as many bytes, by rank 0 alone; and with the number of cache lines that the layout
//! touches. Meanwhile everybody else is blocked, not spinning.
//!
//! Units: bytes and seconds.

#![forbid(unsafe_code)]

mod arena;
mod collective;
mod layouts;
mod window;

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use gapless::{View, ViewMut, World};
use gapless_cli::collectives::Mixture;
use gapless_dtype::{Convertor, Datatype, Primitive};

use crate::arena::{Arena, ArenaMemory};
use crate::layouts::{Laid, PageTurns, Random};

/// Bytes that the places of each side touch before the first one's turn comes again, unless told.
const ROTATION: u64 = 64 << 20;
/// A sample takes as many operations as move this many bytes.
const SAMPLE_BYTES: u64 = 1 << 18;
/// Round trips in a sample at most.
const TRIPS_MAX: u64 = 2000;
/// Windows in a sample of the message rate.
const WINDOWS: u32 = 100;
/// Rounds at least, the first of which does not count.
const ROUNDS_MIN: u32 = 4;

/// Lists and layouts that are kept at most.
const KEPT_MAX: u32 = 16;

type Anything = Box<dyn Error>;

fn main() -> Result<(), Anything> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: gapless-peers FOLDER [ROTATION_BYTES]")?;
    let rotation = arguments.next().map_or(Ok(ROTATION), |bytes| bytes.parse())?;
    let world = World::init()?;
    let folder = Path::new(&folder);
    let commands = File::open(folder.join(world.rank().to_string()))?;
    let mut answers = match world.rank() {
        0 => Some(OpenOptions::new().write(true).open(folder.join("answers"))?),
        _ => None,
    };
    let mut bench = Bench { world, rotation, current: None };
    for command in BufReader::new(commands).lines() {
        let medians = bench.obey(&command?)?;
        if let Some(answers) = &mut answers {
            let lines = bench.current.as_ref().map_or(0, |subject| subject.laid.lines);
            writeln!(answers, "{:.9e} {:.9e} {lines}", medians.ours, medians.memcpy)?;
        }
    }
    bench.current = None;
    bench.world.finalize()?;
    Ok(())
}

/// What a command is answered with.
struct Medians {
    ours: f64,
    memcpy: f64,
}

/// Samples of the work, and of `memcpy` in turn with it.
#[derive(Default)]
struct Samples {
    ours: Vec<f64>,
    memcpy: Vec<f64>,
}

impl Samples {
    fn add(&mut self, round: u32, ours: f64, memcpy: f64) {
        if round > 0 {
            self.ours.push(ours);
            self.memcpy.push(memcpy);
        }
    }

    fn medians(mut self) -> Medians {
        let median = |samples: &mut Vec<f64>| {
            samples.sort_by(f64::total_cmp);
            samples.get(samples.len() / 2).copied().unwrap_or(0.0)
        };
        Medians { ours: median(&mut self.ours), memcpy: median(&mut self.memcpy) }
    }
}

struct Bench {
    world: World,
    rotation: u64,
    current: Option<Subject>,
}

/// A layout and the memory that it is measured on.
struct Subject {
    key: String,
    laid: Laid,
    user: Arena,
    wire: Arena,
    from: Arena,
    to: Arena,
}

impl Subject {
    /// Seconds of one `memcpy`.
    fn copied(&mut self) -> f64 {
        let bytes = layouts::index(self.laid.payload);
        let (source, target) = (self.from.turn(), self.to.turn());
        let source = &self.from.bytes()[source..source + bytes];
        let target = &mut self.to.bytes_mut()[target..target + bytes];
        let start = Instant::now();
        target.copy_from_slice(black_box(source));
        let took = start.elapsed().as_secs_f64();
        black_box(target);
        took
    }
}

impl Bench {
    fn obey(&mut self, command: &str) -> Result<Medians, Anything> {
        let words: Vec<&str> = command.split_whitespace().collect();
        let within = |text: &str| text.parse().map(Duration::from_secs_f64);
        match words[..] {
            ["pack", name, bytes, seconds] => {
                self.pack(true, name, bytes.parse()?, within(seconds)?)
            }
            ["unpack", name, bytes, seconds] => {
                self.pack(false, name, bytes.parse()?, within(seconds)?)
            }
            ["commit", blocks, seconds] => commit(false, blocks.parse()?, within(seconds)?),
            ["create", blocks, seconds] => commit(true, blocks.parse()?, within(seconds)?),
            [verb @ ("message" | "message-alloc" | "anew"), name, bytes, seconds] => {
                let how = (verb.ends_with("-alloc"), verb.starts_with("anew"));
                self.message(how, name, bytes.parse()?, within(seconds)?)
            }
            ["rate", bytes, window, seconds] => {
                self.rate(bytes.parse()?, window.parse()?, within(seconds)?)
            }
            ["mixture", which, seconds] => self.mixture(which == "repeated", within(seconds)?),
            ["window", operation, layout, bytes, seconds] => {
                let (bytes, within) = (bytes.parse()?, within(seconds)?);
                self.window(&window::WindowWork { operation, layout, bytes, within })
            }
            [verb @ ("coll" | "coll-alloc"), operation, layout, bytes, seconds] => {
                let (allocated, bytes) = (verb == "coll-alloc", bytes.parse()?);
                let (within, rotation) = (within(seconds)?, self.rotation);
                let work = collective::CollectiveWork {
                    allocated,
                    operation,
                    layout,
                    bytes,
                    within,
                    rotation,
                };
                self.collective(&work)
            }
            _ => Err(format!("no such command: {command}").into()),
        }
    }

    /// The layout of that name and memory for it, the last command's if it was the same.
    fn subject(
        &mut self,
        allocated: bool,
        name: &str,
        bytes: u64,
    ) -> Result<&mut Subject, Anything> {
        let key = format!("{allocated} {name} {bytes}");
        if self.current.as_ref().is_none_or(|current| current.key != key) {
            self.current = None;
            let laid = layouts::named(name, bytes, self.world.rank())?;
            let flat = layouts::contiguous(laid.payload)?;
            let rotation = self.rotation;
            let heap =
                |laid: &Laid| Arena::new(laid, rotation, |len| Ok(ArenaMemory::Heap(vec![0; len])));
            let user = match allocated {
                true => Arena::new(&laid, rotation, |len| {
                    Ok(ArenaMemory::Shared(self.world.alloc(len)?))
                })?,
                false => heap(&laid)?,
            };
            let (wire, from, to) = (heap(&flat)?, heap(&flat)?, heap(&flat)?);
            self.current = Some(Subject { key, laid, user, wire, from, to });
        }
        self.current.as_mut().ok_or_else(|| "it was made above".into())
    }

    fn pack(
        &mut self,
        packing: bool,
        name: &str,
        bytes: u64,
        within: Duration,
    ) -> Result<Medians, Anything> {
        let subject = self.subject(false, name, bytes)?;
        let mut convertor = Convertor::new(&subject.laid.layout, subject.laid.count)?;
        let payload = layouts::index(subject.laid.payload);
        let times = batch(subject.laid.payload);
        let mut samples = Samples::default();
        let start = Instant::now();
        let mut round = 0;
        while round < ROUNDS_MIN || start.elapsed() < within {
            let (mut took, mut copying) = (0.0, 0.0);
            for _ in 0..times {
                let (place, slot) = (subject.user.turn(), subject.wire.turn());
                convertor.seek(0)?;
                let (user, wire) = (&mut subject.user, &mut subject.wire);
                let start = Instant::now();
                let moved = if packing {
                    let to = &mut wire.bytes_mut()[slot..slot + payload];
                    convertor.pack(black_box(user.bytes()), place, to)?
                } else {
                    let from = &wire.bytes()[slot..slot + payload];
                    convertor.unpack(black_box(from), user.bytes_mut(), place)?
                };
                took += start.elapsed().as_secs_f64();
                debug_assert_eq!(moved, payload);
            }
            for _ in 0..times {
                copying += subject.copied();
            }
            samples.add(round, took / f64::from(times), copying / f64::from(times));
            round += 1;
        }
        Ok(samples.medians())
    }

    /// Half a round trip; both ends rotate. Anew: each message has a list of pages of its own, at both ends.
    fn message(
        &mut self,
        (allocated, anew): (bool, bool),
        name: &str,
        bytes: u64,
        within: Duration,
    ) -> Result<Medians, Anything> {
        self.subject(allocated, name, bytes)?;
        let Some(subject) = &mut self.current else { return Err("it was made above".into()) };
        let (comm, rank) = (self.world.comm(), self.world.rank());
        let (layout, count) = (subject.laid.layout.clone(), subject.laid.count);
        let mut lists = match anew {
            true if name != "pages" => return Err("only lists of pages are made anew".into()),
            true => Some(PageTurns::new(bytes, rank)?),
            false => None,
        };
        let times = batch(subject.laid.payload).min(u32::try_from(TRIPS_MAX)?);
        let mut samples = Samples::default();
        let (start, mut round, mut more) = (Instant::now(), 0, true);
        while more {
            barrier(&self.world)?;
            let trip = Instant::now();
            for _ in 0..times {
                let (out, back) = (subject.user.turn() as u64, subject.user.turn() as u64);
                let (first, second) = if rank == 0 { (out, back) } else { (back, out) };
                for receives in [rank == 1, rank == 0] {
                    let pages = lists.as_mut().map(PageTurns::turn).transpose()?;
                    let user = &mut subject.user;
                    match (receives, &pages) {
                        (true, None) => {
                            let into = ViewMut::typed(user.bytes_mut(), second, &layout, count)?;
                            comm.recv(into, 1 - rank, 1)?
                        }
                        (true, Some(pages)) => comm.recv(
                            ViewMut::pages(user.bytes_mut(), second, pages)?,
                            1 - rank,
                            1,
                        )?,
                        (false, None) => {
                            let view = View::typed(user.bytes(), first, &layout, count)?;
                            comm.send(view, 1 - rank, 1)?
                        }
                        (false, Some(pages)) => {
                            comm.send(View::pages(user.bytes(), first, pages)?, 1 - rank, 1)?
                        }
                    };
                }
            }
            let took = trip.elapsed().as_secs_f64() / f64::from(times) / 2.0;
            samples.add(round, took, if rank == 0 { subject.copied() } else { 0.0 });
            more = agreed(&self.world, round + 1 < ROUNDS_MIN || start.elapsed() < within)?;
            round += 1;
        }
        Ok(samples.medians())
    }

    /// Time of a message, of many in flight at once.
    fn rate(&mut self, bytes: u64, window: usize, within: Duration) -> Result<Medians, Anything> {
        self.subject(false, "contiguous", bytes)?;
        let Some(subject) = &mut self.current else { return Err("it was made above".into()) };
        let (comm, rank) = (self.world.comm(), self.world.rank());
        let mut memory = vec![1u8; window * layouts::index(bytes)];
        let mut samples = Samples::default();
        let (start, mut round, mut more) = (Instant::now(), 0, true);
        while more {
            barrier(&self.world)?;
            let began = Instant::now();
            for _ in 0..WINDOWS {
                comm.scope(|scope| {
                    for part in memory.chunks_mut(layouts::index(bytes)) {
                        if rank == 0 {
                            let _ = scope.isend(View::of(&*part), 1, 2)?;
                        } else {
                            let _ = scope.irecv(ViewMut::of(part), 0, 2)?;
                        }
                    }
                    Ok(())
                })?;
                let mut token = [0u8];
                if rank == 0 {
                    comm.recv(ViewMut::of(&mut token), 1, 3)?;
                } else {
                    comm.send(View::of(&token), 0, 3)?;
                }
            }
            let each = f64::from(WINDOWS) * f64::from(u32::try_from(window)?);
            let copied = if rank == 0 { subject.copied() } else { 0.0 };
            samples.add(round, began.elapsed().as_secs_f64() / each, copied);
            more = agreed(&self.world, round + 1 < ROUNDS_MIN || start.elapsed() < within)?;
            round += 1;
        }
        Ok(samples.medians())
    }
}

impl Bench {
    fn window(&mut self, work: &window::WindowWork<'_>) -> Result<Medians, Anything> {
        let ours = window::measure(&self.world, work)?;
        let subject = self.subject(false, "contiguous", work.bytes as u64)?;
        let memcpy = (0..8).map(|_| subject.copied()).collect();
        Ok(Samples { ours, memcpy }.medians())
    }

    /// Different short collectives in turn, or each repeated.
    fn mixture(&mut self, repeats: bool, within: Duration) -> Result<Medians, Anything> {
        let mut all = Mixture::new(&self.world)?;
        let mut samples = Samples::default();
        let (start, mut round, mut more) = (Instant::now(), 0, [1u8]);
        while more != [0] {
            let ours = match repeats {
                true => all.repeated(Mixture::TIMES)?,
                false => all.mixture(Mixture::TIMES)?,
            };
            let subject = self.subject(false, "contiguous", 8)?;
            samples.add(round, ours, subject.copied());
            round += 1;
            more = [u8::from(round < ROUNDS_MIN || start.elapsed() < within)];
            self.world.comm().bcast(&mut more, 0)?;
        }
        Ok(samples.medians())
    }

    fn collective(&mut self, work: &collective::CollectiveWork<'_>) -> Result<Medians, Anything> {
        let ours = collective::measure(&self.world, work)?;
        let subject = self.subject(false, "contiguous", work.bytes)?;
        let memcpy = (0..8).map(|_| subject.copied()).collect();
        Ok(Samples { ours, memcpy }.medians())
    }
}

/// Operations in a sample.
fn batch(payload: u64) -> u32 {
    u32::try_from((SAMPLE_BYTES / payload.max(1)).max(1)).unwrap_or(u32::MAX)
}

/// Nobody goes on before both are here.
fn barrier(world: &World) -> Result<(), Anything> {
    agreed(world, true).map(|_| ())
}

/// Both do what rank 0 says.
fn agreed(world: &World, said: bool) -> Result<bool, Anything> {
    let comm = world.comm();
    let mut word = [u8::from(said)];
    let mut echo = [0u8];
    if world.rank() == 0 {
        comm.send(View::of(&word), 1, 4)?;
        comm.recv(ViewMut::of(&mut echo), 1, 5)?;
    } else {
        comm.recv(ViewMut::of(&mut word), 0, 4)?;
        comm.send(View::of(&word), 0, 5)?;
    }
    Ok(word[0] == 1)
}

/// Committing an index list (with `created`, making the type too), and copying the list to fresh memory. What
/// was made is kept, so that the allocator has no memory that was touched before.
fn commit(created: bool, blocks: u64, within: Duration) -> Result<Medians, Anything> {
    let mut random = Random::new(blocks);
    let mut next = 0;
    let list: Vec<i64> = (0..blocks)
        .map(|_| {
            let here = next;
            next += 2 + random.below(2).cast_signed();
            here
        })
        .collect();
    let double = Datatype::from(Primitive::Double);
    let mut samples = Samples::default();
    let mut kept = Vec::new();
    let (start, mut round) = (Instant::now(), 0);
    while round < ROUNDS_MIN || (start.elapsed() < within && round < KEPT_MAX) {
        let making = Instant::now();
        let datatype = Datatype::indexed_block(1, &list, &double)?;
        let made = making.elapsed().as_secs_f64();
        let committing = Instant::now();
        let layout = datatype.commit()?;
        let committed = committing.elapsed().as_secs_f64();
        let copying = Instant::now();
        let copy = black_box(list.clone());
        let copied = copying.elapsed().as_secs_f64();
        kept.push((layout, datatype, copy));
        samples.add(round, if created { made + committed } else { committed }, copied);
        round += 1;
    }
    Ok(samples.medians())
}
