//! `pages`: pages at indices, out of memory of one GPU into that of another: by puts, whose lists are the origin's, and
//! by messages; with indices of the device and of the host, the same list again and lists never seen before; beside the
//! driver's copy of as many bytes.
//!
//! With `--host`, between one GPU and page-locked memory of the host instead (`host.rs`); with `--ranks`, between as
//! many GPUs at once (`many.rs`).
//!
//! Processes of this program measure. What lies at the target's pages then is compared, page by page, for a sample
//! of them.

mod host;
mod many;

use std::cell::RefCell;
use std::ops::Range;

use gapless::{
    CudaDriver, Datatype, DeviceBuf, Layout, Lock, Pages as PagesAt, Place, Primitive, Space, Window, World,
};
use gapless_report::{Mark, PlotError, Report, Row, Samples, Summary, curves};

use super::osc::by_way;
use crate::check::same;
use crate::clock::race;
use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::gpu::{GpusOfRanks, copied, paged};
use crate::processes::{Processes, RankOf};
use crate::random::Random;

/// The experiment.
pub struct Pages;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Bytes of a page; repeatable, or separated by commas
    #[arg(long = "page", value_name = "BYTES", value_delimiter = ',', default_value = "4096,8192,32768,65536,576,24,8",
        value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pages: Vec<u64>,
    /// Pages of a list; fewer of long ones where memory is short, more of short ones
    #[arg(long, value_name = "PAGES", default_value_t = 120_000, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    count: u64,
    /// Processes. More than two: half of them put into the pages of as many others, and of half as many, all at once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=16))]
    ranks: u32,
    #[command(flatten)]
    gpus: GpusOfRanks,
    /// Messages by TCP alone, and nothing else
    #[arg(long)]
    tcp: bool,
    /// Between the first GPU and page-locked memory of the host, and nothing else
    #[arg(long, conflicts_with = "tcp")]
    host: bool,
}

/// Lists that calls take in turn.
const LISTS: u64 = 6;
/// Bytes of short pages in a message, at least.
const SHORT_BYTES: u64 = 96 << 20;
/// Source pages after which contents repeat.
const PATTERN: u64 = 509;

/// How a put or a message says which pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Indices in memory of the device, the same list each time.
    SameOnDevice,
    /// The same, of lists that come in turn.
    OnDevice,
    /// Indices in memory of the host, of lists that come in turn.
    OnHost,
    /// A committed layout, the same each time.
    Committed,
    /// Lists that come in turn, each committed anew.
    CommittedAnew,
    /// One page after the other, at both ends.
    Contiguous,
}

impl Way {
    const PUT: [Way; 4] = [Way::SameOnDevice, Way::OnDevice, Way::OnHost, Way::Committed];
    const SENT: [Way; 5] = [Way::OnHost, Way::OnDevice, Way::Committed, Way::CommittedAnew, Way::Contiguous];

    fn name(self) -> &'static str {
        match self {
            Way::SameOnDevice => "indices on the device, the same list",
            Way::OnDevice => "indices on the device",
            Way::OnHost => "indices on the host",
            Way::Committed => "committed, the same list",
            Way::CommittedAnew => "committed anew",
            Way::Contiguous => "contiguous",
        }
    }
}

impl Experiment for Pages {
    type Options = Options;

    const NAME: &'static str = "pages";
    const ABOUT: &'static str = "pages at indices from GPU to GPU, by puts and messages, beside the driver's copy";

    fn run(options: &Options, _: &Common) -> Result<Findings, Failure> {
        let only_two = options.tcp || options.host;
        if options.ranks > 2 && (only_two || !options.ranks.is_multiple_of(2)) {
            let why = "an even number of processes; two, with --tcp and --host".to_owned();
            return Err(Failure::Option { option: "--ranks", why });
        }
        let (environment, _service) = options.gpus.check(options.ranks)?;
        let processes = Processes { environment, ..Processes::new(Self::NAME, options.ranks) };
        let rows = processes.found(Self::NAME, ())?;
        let notes = "time: all pages are at the target; ÷: speed relative to the driver's copy of as many contiguous \
                     bytes between the same memories.\nWhere a way does not say `the same list`, the lists of both \
                     ends are other ones than those of the call before.\n";
        Ok(Findings::new(rows, notes.to_owned()))
    }

    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        let world = match options.tcp {
            true => World::builder().only(["tcp"]).init()?,
            false => World::init()?,
        };
        let devices = CudaDriver::load()?.devices();
        let device = options.gpus.of(world.rank(), devices);
        let mut rows = Vec::new();
        for &page in &options.pages {
            let orders: &[bool] = if page < 512 && options.ranks == 2 { &[false, true] } else { &[true] };
            for &shuffled in orders {
                let count = match common.quick {
                    true => options.count.min(300),
                    false => options.count.max(SHORT_BYTES / page).min((8 << 30) / page),
                };
                let work = Work { page, count, shuffled, seed: common.seed };
                let other = |me: u32| options.gpus.of(1 - me, devices);
                rows.extend(match options.host {
                    _ if options.ranks > 2 => many::measure(&world, common, &work, (&options.gpus, devices))?,
                    true => host::measure(&world, common, &work, device)?,
                    false => measure(&world, common, &work, (device, other(world.rank())), options.tcp)?,
                });
                if world.rank() == 0 {
                    // Whatever hangs later, this much is known.
                    rank.leave(&rows)?;
                }
            }
        }
        rank.finalize(world, &rows)
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        Drawing::alone(curves("pages from GPU to GPU", "bytes", &by_way(report.rows.iter())))
    }
}

/// What is moved.
#[derive(Clone, Copy)]
struct Work {
    page: u64,
    count: u64,
    shuffled: bool,
    seed: u64,
}

impl Work {
    /// Pages in the memory of an end.
    fn pool(&self) -> u64 {
        if self.page < 512 { 2 * self.count } else { self.count }
    }

    fn bytes(&self) -> u64 {
        self.page * self.count
    }

    /// A list of an end.
    fn list(&self, number: u64, end: u64) -> Vec<u32> {
        let mut random = Random::new(self.seed ^ (number << 8) ^ (end << 4) ^ self.page);
        let apart = self.pool() / self.count;
        let mut list: Vec<u32> =
            (0..self.count).map(|at| u32::try_from(at * apart + random.below(apart)).unwrap_or(0)).collect();
        if self.shuffled {
            random.shuffle(&mut list);
        }
        list
    }

    fn case(&self) -> String {
        let order = if self.shuffled { "shuffled" } else { "ascending" };
        format!("{} pages of {} B, {order}", self.count, self.page)
    }
}

/// One end's memory and lists.
struct End {
    pool: DeviceBuf,
    /// Its own lists, and the other end's, as words of a table on its device; then in memory of the host.
    table: DeviceBuf,
    lists: [Vec<Vec<u32>>; 2],
    page: Layout,
    stride: u64,
    /// The first list of this end, and of the other, as ordinary layouts.
    committed: [Layout; 2],
    whole: Layout,
}

impl End {
    fn new(world: &World, space: Space, work: &Work) -> Result<End, Failure> {
        let byte = Datatype::from(Primitive::Byte);
        let end = u64::from(world.rank());
        let lists = [end, 1 - end].map(|end| (0..LISTS).map(|number| work.list(number, end)).collect::<Vec<_>>());
        let words: Vec<u8> = lists.iter().flatten().flatten().flat_map(|index| index.to_ne_bytes()).collect();
        let mut table = world.alloc_device(space, words.len() as u64)?;
        copied::down(&mut table, &words)?;
        let mut pool = world.alloc_device(space, work.pool() * work.page)?;
        if end == 0 {
            fill(&mut pool, work)?;
        }
        let page = Datatype::contiguous(work.page, &byte)?;
        let committed = [commit(&lists[0][0], work.page)?, commit(&lists[1][0], work.page)?];
        let whole = Datatype::contiguous(work.bytes(), &byte)?.commit()?;
        Ok(End { pool, table, lists, page: page.commit()?, stride: work.page, committed, whole })
    }

    /// Words of the table that a list is.
    fn words(&self, of: usize, number: u64) -> Range<u64> {
        let len = self.lists[0][0].len() as u64;
        let start = (of as u64 * LISTS + number % LISTS) * len;
        start..start + len
    }

    fn pages(&self, of: usize, number: u64) -> Result<PagesAt, Failure> {
        let list = &self.lists[of][usize::try_from(number % LISTS).unwrap_or(0)];
        Ok(PagesAt::new(&self.page, self.stride, &list[..]).map_err(gapless::Error::from)?)
    }

    /// Gives the seconds of the call that begins it.
    fn put(&self, window: &Window<u8, DeviceBuf>, way: Way, number: u64) -> Result<f64, Failure> {
        let call = match way {
            Way::SameOnDevice | Way::OnDevice => {
                let number = if way == Way::SameOnDevice { 0 } else { number };
                let mine = self.table.indices_u32(self.words(0, number))?;
                let view = self.pool.pages_at(0, &self.page, self.stride, mine)?;
                let theirs = (&self.table, self.words(1, number));
                paged::put(window, &view, (1, 0), (&self.page, self.stride), theirs)?
            }
            Way::OnHost => {
                let began = std::time::Instant::now();
                let (mine, theirs) = (self.pages(0, number)?, self.pages(1, number)?);
                let made = began.elapsed().as_secs_f64();
                made + paged::begun(window, &self.pool.pages(0, &mine)?, 1, Place::pages(0, &theirs))?
            }
            _ => {
                let view = self.pool.view(0, &self.committed[0], 1)?;
                paged::begun(window, &view, 1, Place::typed(0, &self.committed[1], 1))?
            }
        };
        Ok(call)
    }

    fn send(&self, world: &World, way: Way, number: u64) -> Result<(), Failure> {
        let comm = world.comm();
        let _ = match way {
            Way::OnHost => comm.send(self.pool.pages(0, &self.pages(0, number)?)?, 1, 1)?,
            Way::SameOnDevice | Way::OnDevice => {
                let mine = self.table.indices_u32(self.words(0, number))?;
                comm.send(self.pool.pages_at(0, &self.page, self.stride, mine)?, 1, 1)?
            }
            Way::Committed => comm.send(self.pool.view(0, &self.committed[0], 1)?, 1, 1)?,
            Way::CommittedAnew => {
                let list = &self.lists[0][usize::try_from(number % LISTS).unwrap_or(0)];
                comm.send(self.pool.view(0, &commit(list, self.stride)?, 1)?, 1, 1)?
            }
            Way::Contiguous => comm.send(self.pool.view(0, &self.whole, 1)?, 1, 1)?,
        };
        comm.recv(&mut [0u8], 1, 2)?;
        Ok(())
    }

    fn receive(&mut self, world: &World, way: Way, number: u64) -> Result<(), Failure> {
        let comm = world.comm();
        match way {
            Way::OnHost => {
                let pages = self.pages(0, number)?;
                comm.recv(self.pool.pages_mut(0, &pages)?, 0, 1)?;
            }
            Way::SameOnDevice | Way::OnDevice => {
                let words = self.words(0, number);
                let mine = self.table.indices_u32(words)?;
                comm.recv(self.pool.pages_at_mut(0, &self.page, self.stride, mine)?, 0, 1)?;
            }
            Way::Committed => {
                let layout = self.committed[0].clone();
                comm.recv(self.pool.view_mut(0, &layout, 1)?, 0, 1)?;
            }
            Way::CommittedAnew => {
                let list = &self.lists[0][usize::try_from(number % LISTS).unwrap_or(0)];
                let layout = commit(list, self.stride)?;
                comm.recv(self.pool.view_mut(0, &layout, 1)?, 0, 1)?;
            }
            Way::Contiguous => {
                let whole = self.whole.clone();
                comm.recv(self.pool.view_mut(0, &whole, 1)?, 0, 1)?;
            }
        }
        comm.send(&[1u8], 0, 2)?;
        Ok(())
    }
}

/// The same places as an ordinary layout.
fn commit(list: &[u32], page: u64) -> Result<Layout, Failure> {
    let places: Vec<i64> = list.iter().map(|index| i64::from(*index) * i64::try_from(page).unwrap_or(0)).collect();
    Ok(Datatype::hindexed_block(page, &places, &Primitive::Byte.into())?.commit()?)
}

/// Byte `at` of page `page` of the origin's pool.
fn content(work: &Work, page: u64) -> Vec<u8> {
    let mut random = Random::new((page % PATTERN + 1) ^ (work.seed << 32));
    let mut bytes = vec![0; usize::try_from(work.page).unwrap_or(0)];
    random.fill(&mut bytes);
    bytes
}

fn fill(pool: &mut DeviceBuf, work: &Work) -> Result<(), Failure> {
    let pattern: Vec<u8> = (0..PATTERN.min(work.pool())).flat_map(|page| content(work, page)).collect();
    // Long enough that few copies do it.
    let times = (64usize << 20).div_ceil(pattern.len()).max(1);
    let pattern = pattern.repeat(times);
    let (mut at, all) = (0, pool.region().len());
    while at < all {
        let len = (all - at).min(pattern.len() as u64);
        copied::down_at(pool, at, &pattern[..usize::try_from(len).unwrap_or(0)])?;
        at += len;
    }
    Ok(())
}

/// Compares some pages of the target, which list `number` was put into last.
fn check(end: &End, work: &Work, window: &Window<u8, DeviceBuf>, number: u64) -> Result<(), Failure> {
    let at = usize::try_from(number % LISTS).unwrap_or(0);
    let mut random = Random::new(work.seed + number);
    for _ in 0..200 {
        let sampled = usize::try_from(random.below(work.count)).unwrap_or(0);
        let (from, to) = (end.lists[0][at][sampled], end.lists[1][at][sampled]);
        let mut found = vec![0u8; usize::try_from(work.page).unwrap_or(0)];
        window.get(&mut found, 1, u64::from(to) * work.page)?;
        let right = content(work, from.into());
        same(&found, &right).map_err(|wrong| Failure::Wrong { case: work.case(), op: "pages", wrong })?;
    }
    Ok(())
}

/// All ways of one work; rows at rank 0 alone.
fn measure(
    world: &World,
    common: &Common,
    work: &Work,
    (device, other): (u32, u32),
    tcp: bool,
) -> Result<Vec<Row>, Failure> {
    let (comm, space) = (world.comm(), Space::Cuda { device });
    let mut end = End::new(world, space, work)?;
    let mut rows = Vec::new();
    let row = |op: &str, way: Way, times: [Summary; 2]| {
        let spaces = format!("cuda {device} to {other}");
        let row = Row::new(work.case(), op, spaces, way.name(), work.bytes(), times[0]);
        row.verified(true).against("cudaMemcpyPeer", times[1])
    };
    if !tcp {
        let len = usize::try_from(work.pool() * work.page).unwrap_or(0);
        let mut window: Window<u8, DeviceBuf> = comm.window().allocate_on(space, len)?;
        if comm.rank() == 0 {
            let mut far = world.alloc_device(Space::Cuda { device: other }, work.bytes())?;
            window.lock(1, Lock::Shared)?;
            let mut same_list = None;
            for way in Way::PUT {
                let (mut number, failed) = (0, RefCell::new(None));
                let mut calls = Samples::with_capacity(1000);
                let mut once = || {
                    number += 1;
                    match end.put(&window, way, number) {
                        Ok(call) => calls.push(call),
                        Err(why) => {
                            failed.borrow_mut().get_or_insert(why);
                        }
                    }
                };
                let mut copy = || {
                    if let Err(why) = copied::between(&mut far, &end.pool, work.bytes()) {
                        failed.borrow_mut().get_or_insert(why.into());
                    }
                };
                let times = race(common.seconds(), [&mut once, &mut copy]);
                if let Some(why) = failed.take() {
                    return Err(why);
                }
                let times = times.map_err(Failure::samples("put"))?;
                let last = if matches!(way, Way::OnDevice | Way::OnHost) { number } else { 0 };
                check(&end, work, &window, last)?;
                let call = calls.summary().map_err(Failure::samples("call"))?;
                let mut found = row("put", way, times).with("call_seconds", call.median);
                match way {
                    Way::SameOnDevice => {
                        same_list = Some(times[0].median);
                        let asked = if work.page == 4096 { 0.90 } else { 0.94 };
                        found = found.mark(Mark::at_least("cudaMemcpyPeer", asked, times[1].median / times[0].median));
                    }
                    Way::OnDevice => {
                        let of_same = same_list.map_or(0.0, |same| same / times[0].median);
                        let asked = if work.page < 4096 { 0.85 } else { 0.97 };
                        found = found.mark(Mark::at_least("the same list's rate", asked, of_same));
                    }
                    _ => {}
                }
                rows.push(found);
            }
            window.unlock(1)?;
        }
        comm.barrier()?;
        window.free()?;
    }
    rows.extend(messages(world, common, work, &mut end, other)?.into_iter().map(|(way, times)| row("message", way, times)));
    Ok(rows)
}

/// The same by messages.
fn messages(
    world: &World,
    common: &Common,
    work: &Work,
    end: &mut End,
    other: u32,
) -> Result<Vec<(Way, [Summary; 2])>, Failure> {
    let comm = world.comm();
    let mut found = Vec::new();
    for way in Way::SENT {
        if comm.rank() == 1 {
            // Which list, and whether there is one.
            let mut next = [0u64; 2];
            loop {
                comm.recv(&mut next, 0, 0)?;
                let [more, number] = next;
                if more == 0 {
                    break;
                }
                end.receive(world, way, number)?;
            }
            continue;
        }
        let mut far = world.alloc_device(Space::Cuda { device: other }, work.bytes())?;
        let (mut number, failed) = (0u64, RefCell::new(None));
        let mut once = || {
            number += 1;
            let sent = comm.send(&[1, number], 1, 0).map_err(Failure::from);
            if let Err(why) = sent.and_then(|_| end.send(world, way, number)) {
                failed.borrow_mut().get_or_insert(why);
            }
        };
        let mut copy = || {
            if let Err(why) = copied::between(&mut far, &end.pool, work.bytes()) {
                failed.borrow_mut().get_or_insert(why.into());
            }
        };
        let times = race(common.seconds(), [&mut once, &mut copy]);
        comm.send(&[0u64, 0], 1, 0)?;
        if let Some(why) = failed.take() {
            return Err(why);
        }
        found.push((way, times.map_err(Failure::samples("message"))?));
    }
    Ok(found)
}
