//! One of two processes that send each other messages of a GPU: measures the items that it was started for,
//! and leaves each row in a file at once. A watchdog kills the process when an item takes too long.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gapless::World;
use gapless_cli::pingpong::{Ends, Party, Trial, TrialStep, Where};
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};

use super::item::{MessageItem, Pair, Sites};
use super::occupier::Occupier;
use crate::error::Failure;
use crate::experiment::Common;
use gapless_report::Row;

/// What two processes measure.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PairPart {
    /// The pair's name.
    pub(crate) pair: String,
    /// The item to begin with.
    pub(crate) from: usize,
    /// Seconds in all.
    pub(crate) limit: u64,
    /// Where messages lie.
    pub(crate) space: String,
}

impl PairPart {
    pub(crate) fn sites(&self) -> Result<Sites, Failure> {
        let ends = self.space.parse().map_err(|why| Failure::Option { option: "--space", why })?;
        Ok(Sites::of(ends))
    }
}

/// What rank 0 writes down, a line each.
#[derive(Debug, Serialize, Deserialize)]
pub enum ProgressLine {
    /// This item comes next.
    Started(usize),
    /// Its figures.
    Measured(usize, Box<Row>),
    /// No more come.
    Ended,
}

/// How long setting up may take, with drivers and contexts.
const SETTING_UP: Duration = Duration::from_secs(45);
/// How long where processors compile the kernels, for the first time perhaps and busy with something else.
const SETTING_UP_ELSEWHERE: Duration = Duration::from_secs(240);
/// How long one item may take on a GPU.
const ITEM: Duration = Duration::from_secs(8);
/// How long where devices are as slow as processors.
const ITEM_ELSEWHERE: Duration = Duration::from_secs(120);

/// Kills this process when it is not told otherwise in time.
#[derive(Clone)]
pub(crate) struct Watchdog(Arc<Mutex<(Instant, String)>>);

impl Watchdog {
    /// With `time` for setting up, and an end that is the same whatever is allowed meanwhile.
    pub(crate) fn start(time: Duration, end: Instant) -> Watchdog {
        let watchdog = Watchdog(Arc::new(Mutex::new((Instant::now(), String::new()))));
        watchdog.allow("setting up", time);
        let watched = watchdog.clone();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_millis(50));
                let (until, what) =
                    watched.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let now = Instant::now();
                if now > until.min(end) {
                    let why = if now > end { "no time is left" } else { "takes too long" };
                    eprintln!("figures: {what}: {why}; these processes are ended");
                    // Not by an exit, which waits for the driver.
                    let _ = kill_process(getpid(), Signal::KILL);
                }
            }
        });
        watchdog
    }

    pub(crate) fn allow(&self, what: &str, time: Duration) {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = (Instant::now() + time, what.to_owned());
    }
}

/// Kernels that keep this process's GPUs busy.
#[derive(Default)]
struct Occupiers(BTreeMap<u32, Occupier>);

/// A row has this field if the kernel that was to keep the GPU busy had ended before the row was measured.
const OCCUPIED_NO_MORE: &str = "occupied_no_more";

impl Occupiers {
    /// Whether one of them has ended too early.
    fn are_over(&self) -> bool {
        self.0.values().any(|occupier| occupier.is_over().unwrap_or(true))
    }

    /// As an item wants it at this rank.
    fn set(&mut self, item: &MessageItem, rank: u32) -> Result<(), Failure> {
        let here = match item.ends.of(rank) {
            Where::Cuda(ordinal) if item.occupied > 0 => Some(ordinal),
            _ => None,
        };
        for occupier in self.0.values_mut() {
            occupier.set(0)?;
        }
        let Some(ordinal) = here else { return Ok(()) };
        let occupier = match self.0.entry(ordinal) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Occupier::new(ordinal)?),
        };
        occupier.set(item.occupied)
    }
}

/// Measures a pair's items from the one that it was told to begin with.
///
/// # Errors
/// Whatever makes it impossible to go on; the processes are then started again without what failed.
pub(crate) fn run(
    part: &PairPart,
    common: &Common,
    pair: &Pair,
    file: &Path,
) -> Result<(), Failure> {
    let items = pair.items.get(part.from..).unwrap_or_default();
    let on_gpu =
        |item: &MessageItem| item.ends.0.iter().any(|place| matches!(place, Where::Cuda(_)));
    let setting_up = if items.iter().any(on_gpu) { SETTING_UP } else { SETTING_UP_ELSEWHERE };
    let end = Instant::now() + Duration::from_secs(part.limit);
    let watchdog = Watchdog::start(setting_up, end);
    let seconds = common.seconds() * pair.share;
    let trials = items.iter().map(|item| item.trial(seconds)).collect::<Result<Vec<Trial>, _>>()?;
    let mut ends: Vec<Ends> = items.iter().map(|item| item.ends).collect();
    ends.sort_unstable();
    ends.dedup();
    let builder = || match pair.tcp {
        true => World::builder().only(["tcp"]),
        false => World::builder(),
    };
    let mut party = common.with_quick_buffers(Party::join(&builder, &ends, pair.budget)?);
    let rank = party.rank();
    let open = || File::options().append(true).create(true).open(file);
    let mut out = (rank == 0).then(open).transpose().map_err(Failure::io("open", file))?;
    let mut occupiers = Occupiers::default();
    let mut failed = None;
    party.measure(&trials, common.seed, &mut |step| {
        let line = match step {
            TrialStep::Before(at) => {
                let item = &items[at];
                watchdog.allow(&item.label(), if on_gpu(item) { ITEM } else { ITEM_ELSEWHERE });
                if let Err(failure) = occupiers.set(item, rank) {
                    failed.get_or_insert(failure);
                }
                ProgressLine::Started(part.from + at)
            }
            TrialStep::Row(at, mut row) => {
                if occupiers.are_over() {
                    row.extra.insert(OCCUPIED_NO_MORE.to_owned(), true.into());
                }
                ProgressLine::Measured(part.from + at, row)
            }
        };
        if let Err(failure) = write(out.as_mut(), &line) {
            failed.get_or_insert(failure);
        }
    })?;
    watchdog.allow("leaving", SETTING_UP);
    drop(occupiers);
    write(out.as_mut(), &ProgressLine::Ended)?;
    failed.map_or(Ok(()), Err)?;
    Ok(party.leave()?)
}

fn write(out: Option<&mut File>, line: &ProgressLine) -> Result<(), Failure> {
    let Some(out) = out else { return Ok(()) };
    let text = serde_json::to_string(line)? + "\n";
    out.write_all(text.as_bytes()).map_err(Failure::io("write", "the rows' file"))
}
