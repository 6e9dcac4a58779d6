//! `gapless explain --coll`: the schedule of a collective, which rule chose its algorithm, and what the alternatives
//! would take. Nothing is measured: times are predicted by a cost model with typical numbers.

mod gpu;
mod groups;

use crate::check_writable;
use crate::failure::Failure;
use crate::lines::tell;
use crate::spaces::counted;
use gapless::tuning::coll::{self, Rule, Settings, Table};
use gapless_coll::choose::{
    Alternative, alternatives, candidates, choose, rule_for, shared_rule_for,
};
use gapless_coll::sm::{Explanation, SharedSegment};
use gapless_coll::{
    Algorithm, BuildError, Cost, GoalRank, Level, Locality, Method, Operation, Sample, Wire,
    predict,
};
use gapless_report::{Align, Bytes, Table as Columns, Time, terminal_columns};
use groups::{groups, joined};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

/// Schedules of all ranks with more steps together are not played: a step takes about 200 bytes.
const STEPS_MAX: usize = 1 << 20;

/// Steps that are shown of a schedule.
const SHOWN_MAX: usize = 100;

/// Which collective to explain.
#[derive(Debug, clap::Args)]
pub(super) struct Collective {
    /// Explain a collective among --n ranks instead of a message: barrier, bcast, allreduce, …
    #[arg(long, value_name = "OPERATION",
        conflicts_with_all = ["layouts", "files", "depth", "space", "memory", "turns"])]
    pub(super) coll: Option<String>,
    /// The ranks' hosts: how many there are, or the ranks of each: 0-3/4-7
    #[arg(long, value_name = "HOSTS", requires = "coll")]
    hosts: Option<String>,
    /// The sockets of the hosts, likewise: how many there are in all, or the ranks that are kept on each
    #[arg(long, value_name = "SOCKETS", requires = "coll")]
    sockets: Option<String>,
    /// The NUMA nodes, likewise
    #[arg(long, value_name = "NODES", requires = "coll")]
    numa: Option<String>,
    /// The last-level caches, likewise
    #[arg(long, value_name = "CACHES", requires = "coll")]
    l3: Option<String>,
    /// Explain what goes by messages also where the ranks could share memory
    #[arg(long, requires = "coll")]
    messages: bool,
    /// Explain this algorithm, whatever the table chooses: "ring", "chain in 64K", "doubling over binomial over numa
    /// flat"
    #[arg(long, value_name = "NAME", requires = "coll")]
    algorithm: Option<String>,
    /// The root of a rooted operation
    #[arg(long, value_name = "RANK", default_value_t = 0, requires = "coll")]
    root: usize,
    /// Whose schedule is shown
    #[arg(long, value_name = "RANK", default_value_t = 0, requires = "coll")]
    rank: usize,
    /// Write the schedules of all ranks to a file, in the language GOAL, which LogGOPSim plays
    #[arg(long, value_name = "FILE", requires = "coll")]
    goal: Option<PathBuf>,
}

/// Through memory that the ranks share.
const SHARED: Algorithm = Algorithm::new(Method::Shared);

/// Who runs tasks.
const BY_WHOM: &str =
    "tasks: run where the rank at which they are put makes progress, or on its threads\n";

/// A collective and where it takes place.
struct Subject {
    sample: Sample,
    locality: Locality,
    len: u64,
    root: usize,
}

impl Collective {
    /// Explains an operation among `n` ranks.
    pub(super) fn explain(
        &self,
        operation: &str,
        n: Option<u64>,
        size: Option<u64>,
    ) -> Result<(), Failure> {
        let operation: Operation = operation.parse()?;
        if let Some(path) = &self.goal {
            check_writable("--goal", path)?;
        }
        let subject = self.subject(operation, n, size)?;
        let (own, hyperq) = match coll::location().path().filter(|path| path.exists()) {
            Some(path) => coll::read_table(path).map_err(gapless::Error::from)?,
            None => (coll::load().map_err(gapless::Error::from)?, Settings::default()),
        };
        let Chosen { explained, by_messages, why } = self.algorithm(&subject, own)?;
        let (sample, locality, cost) = (&subject.sample, &subject.locality, Cost::TYPICAL);
        let mut text = format!("{}\n{why}\n{}\n\n", subject.describe(), described(&cost, locality));
        if explained == SHARED {
            text += &gpu::on_one_gpu(&hyperq, &sample.of(self.rank).call(), sample.ranks());
        }
        match self.explanation(&subject)?.filter(|_| explained == SHARED) {
            Some(explanation) => {
                let _ =
                    writeln!(text, "{explained}: no prediction, as the model knows messages only");
                text += &shown(&explanation.to_string(), "");
            }
            None => {
                let seconds = self.seconds(&subject, &explained)?;
                let _ = writeln!(text, "{explained}: {}", predicted(seconds));
                let schedule = sample.build(self.rank, locality, &explained)?;
                text += &shown(&schedule.to_string(), WHOLE);
                if schedule.has_tasks() {
                    text += BY_WHOM;
                }
            }
        }
        tell(&text)?;
        if let Some(path) = &self.goal {
            write_goal(path, &subject, &by_messages, &cost)?;
            let path = path.display();
            tell(&format!("schedules of all ranks written to {path}, by {by_messages}\n"))?;
        }
        let mut all = alternatives(sample, locality, &cost, STEPS_MAX)?;
        if explained != SHARED && !all.iter().any(|it| it.algorithm == explained) {
            let time = |it: &Alternative| it.seconds.unwrap_or(f64::INFINITY);
            let seconds = self.seconds(&subject, &explained)?;
            let explained = Alternative { algorithm: explained, seconds };
            let at = all.partition_point(|it| time(it) <= time(&explained));
            all.insert(at, explained);
        }
        tell(&self.compared(&subject, &all, &explained)?)
    }

    /// What the model says of an algorithm by messages.
    fn seconds(&self, subject: &Subject, algorithm: &Algorithm) -> Result<Option<f64>, Failure> {
        let Subject { sample, locality, .. } = subject;
        let all = sample.build_all(locality, algorithm, STEPS_MAX)?;
        Ok(all.map(|schedules| predict(&schedules, locality, &Cost::TYPICAL)))
    }

    /// What the rank does through shared memory; none if such a call does not go that way.
    fn explanation(&self, subject: &Subject) -> Result<Option<Explanation>, Failure> {
        let Subject { sample, locality, .. } = subject;
        if locality.hosts().len() > 1 || self.messages {
            return Ok(None);
        }
        Ok(SharedSegment::explain(&sample.of(self.rank).call(), self.rank, sample.ranks())?)
    }

    fn subject(
        &self,
        operation: Operation,
        n: Option<u64>,
        size: Option<u64>,
    ) -> Result<Subject, Failure> {
        let n = match n {
            Some(0) => return Err(bad("--n", 0, "a collective has one rank at least")),
            Some(n) => usize::try_from(n).unwrap_or(usize::MAX),
            None => return Err(bad("--coll", operation, "it needs --n RANKS")),
        };
        let len = match (size, operation) {
            (Some(size), _) => size,
            (None, Operation::Barrier) => 0,
            (None, _) => return Err(bad("--coll", operation, "it needs --size BYTES")),
        };
        let (rank, root) = (self.rank, self.root);
        if rank >= n {
            return Err(bad("--rank", rank, &format!("ranks are 0 to {}", n - 1)));
        }
        let sample = Sample::new(operation, n, root, len).map_err(|error| match error {
            BuildError::NoSuchRank { .. } => {
                bad("--root", root, &format!("ranks are 0 to {}", n - 1))
            }
            BuildError::TooMany { most, .. } => bad("--n", n, &format!("{most} at most")),
            error => bad("--size", len, &error.to_string()),
        })?;
        if root > 0 && !sample.is_rooted() {
            return Err(bad("--root", root, &format!("{operation} has no root")));
        }
        let locality = self.locality(n)?;
        Ok(Subject { sample, locality, len, root })
    }

    /// Which ranks are near each other, as the options say.
    fn locality(&self, n: usize) -> Result<Locality, Failure> {
        let mut locality = match &self.hosts {
            None => Locality::flat(n),
            Some(text) => {
                let hosts = groups(text, n).and_then(|it| joined(Locality::new(it)));
                hosts.map_err(|why| bad("--hosts", text, &why))?
            }
        };
        for (option, level, given) in [
            ("--sockets", Level::Socket, &self.sockets),
            ("--numa", Level::Numa, &self.numa),
            ("--l3", Level::L3, &self.l3),
        ] {
            if let Some(text) = given {
                let with = |it| joined(locality.clone().with(level, it));
                let finer = groups(text, n).and_then(with);
                locality = finer.map_err(|why| bad(option, text, &why))?;
            }
        }
        Ok(locality)
    }

    /// The algorithm to explain, and why it is that one.
    fn algorithm(&self, subject: &Subject, own: Vec<Rule>) -> Result<Chosen, Failure> {
        let Subject { sample, locality, .. } = subject;
        let of = sample.of(self.rank);
        let call = of.call();
        let from_file = own.len();
        let table = Table::with(own);
        let by_messages = choose(&table, &call, locality);
        if let Some(name) = &self.algorithm {
            let algorithm: Algorithm = name.parse()?;
            let why = "as --algorithm says".to_owned();
            if algorithm == SHARED && self.explanation(subject)?.is_some() {
                return Ok(Chosen { explained: algorithm, by_messages, why });
            }
            return match sample.build(self.rank, locality, &algorithm) {
                Err(BuildError::Unsuited { operation, why, .. }) => {
                    let able: Vec<_> =
                        candidates(&call, locality).iter().map(ToString::to_string).collect();
                    let why = format!(
                        "it does not do this {operation}: {why}; these do: {}",
                        able.join(", ")
                    );
                    Err(bad("--algorithm", algorithm, &why))
                }
                _ => Ok(Chosen { explained: algorithm, by_messages: algorithm, why }),
            };
        }
        let mut why = match rule_for(&table, &call, locality) {
            None => "no rule of the table fits: by what does it always".to_owned(),
            Some(index) => by_rule(&table, index, from_file),
        };
        let mut explained = by_messages;
        if self.explanation(subject)?.is_some()
            && let Some(index) = shared_rule_for(&table, &call, locality)
        {
            let rule = by_rule(&table, index, from_file);
            why = format!("through shared memory: {rule}\nby messages: {why}");
            explained = SHARED;
        }
        Ok(Chosen { explained, by_messages, why })
    }

    /// The algorithms that do it, the quickest first.
    fn compared(
        &self,
        subject: &Subject,
        all: &[Alternative],
        explained: &Algorithm,
    ) -> Result<String, Failure> {
        let mut table = Columns::new([
            ("algorithm", Align::Left),
            ("predicted", Align::Right),
            ("messages", Align::Right),
            ("sent", Align::Right),
            ("scratch", Align::Right),
            ("", Align::Left),
        ]);
        if let Some(explanation) = self.explanation(subject)? {
            let remark = if *explained == SHARED { "above" } else { "if ranks share memory" };
            table.push([
                SHARED.to_string(),
                "-".to_owned(),
                "0".to_owned(),
                Bytes(explanation.written()).to_string(),
                "-".to_owned(),
                format!("{remark}; reads {}", Bytes(explanation.read())),
            ]);
        }
        for Alternative { algorithm, seconds } in all {
            let schedule = subject.sample.build(self.rank, &subject.locality, algorithm)?;
            let (messages, bytes) = schedule.sent();
            let remark = match seconds {
                None => "too many steps to play",
                Some(_) if algorithm == explained => "above",
                Some(_) => "",
            };
            table.push([
                algorithm.to_string(),
                seconds.map_or("-".to_owned(), |seconds| Time(seconds).to_string()),
                messages.to_string(),
                Bytes(bytes).to_string(),
                Bytes(schedule.scratch()).to_string(),
                remark.to_owned(),
            ]);
        }
        let rank = self.rank;
        let mut about =
            format!("\nall algorithms that do it; messages, bytes and scratch are rank {rank}'s\n");
        if *explained == SHARED {
            about += "--messages explains what goes by messages\n";
        }
        Ok(format!("{about}{}", table.within(terminal_columns())))
    }
}

/// What is explained, and why.
struct Chosen {
    explained: Algorithm,
    /// The same, or what is in its place if the ranks cannot go through shared memory.
    by_messages: Algorithm,
    why: String,
}

/// Which rule it is, and where it stands; those of the file come first.
fn by_rule(table: &Table, index: usize, from_file: usize) -> String {
    let rule = &table.rules[index];
    let operation = rule.operation;
    let before = table.rules[..index].iter().filter(|it| it.operation == operation).count();
    let place = match index < from_file {
        true => {
            let file = coll::location().path().map(|path| path.display().to_string());
            format!("by rule {} of {operation} in {}", before + 1, file.unwrap_or_default())
        }
        false => format!("by a built-in rule of {operation}"),
    };
    format!("{place}: {}", coll::write_rule(rule))
}

impl Subject {
    /// What all ranks do, in a line.
    fn describe(&self) -> String {
        let Subject { sample, locality, len, root } = self;
        let mut text = sample.operation().to_string();
        if sample.is_ragged() {
            let of = |third: usize| Bytes(sample.block(third)).to_string();
            let _ = write!(text, " of {}, {} and {} a rank in turn", of(0), of(1), of(2));
        } else if sample.operation() != Operation::Barrier {
            let _ = write!(text, " of {}", Bytes(*len));
            text += if sample.has_blocks() { " a rank" } else { "" };
        }
        if let Some(unit) = sample.unit() {
            let _ = write!(text, " in elements of {unit} B");
        }
        if sample.is_rooted() {
            let _ = write!(text, ", root {root}");
        }
        if let Some(grid) = sample.grid() {
            let sides: Vec<_> = grid.iter().map(u32::to_string).collect();
            let _ = write!(text, ", neighbours of a periodic grid {}", sides.join(" × "));
        }
        let count = |number: usize, what| counted(number as u64, what);
        let hosts = locality.hosts().len();
        let _ = write!(text, ", {} on {}", count(sample.ranks(), "rank"), count(hosts, "host"));
        for level in Level::INSIDE {
            if let Some(groups) = locality.groups(level) {
                let _ = write!(text, ", {}", count(groups.len(), level.title()));
            }
        }
        text
    }
}

fn described(cost: &Cost, locality: &Locality) -> String {
    let wire = |wire: Wire| format!("{} and {:.1} GB/s", Time(wire.latency), 1e-9 / wire.byte);
    let (within, between) = (wire(cost.near), wire(cost.apart[Level::Host as usize]));
    let mut text = format!(
        "model, not measured: {within} within a host, {between} between hosts, {} a message",
        Time(cost.message)
    );
    let known = |level: &Level| locality.groups(*level).is_some();
    let inside = Level::INSIDE.into_iter().filter(known);
    let inside = inside
        .map(|level| format!("{} between {}s", wire(cost.apart[level as usize]), level.title()));
    let inside: Vec<_> = inside.collect();
    if !inside.is_empty() {
        let _ = write!(text, "\nin a host: {}", inside.join(", "));
    }
    text
}

fn predicted(seconds: Option<f64>) -> String {
    match seconds {
        Some(seconds) => format!("{} predicted", Time(seconds)),
        None => "too many steps to play".to_owned(),
    }
}

/// Where to find what is not shown of a schedule.
const WHOLE: &str = "; --goal FILE writes all";

/// Steps of a rank, as far as anybody reads them, and where the others are.
fn shown(text: &str, rest: &str) -> String {
    let mut lines = text.split_inclusive('\n');
    // The first line is about all of them.
    let mut shown: String = lines.by_ref().take(SHOWN_MAX + 1).collect();
    let more = lines.count();
    if more > 0 {
        let _ = writeln!(shown, "  …  {more} more lines{rest}");
    }
    shown
}

fn write_goal(
    path: &Path,
    subject: &Subject,
    algorithm: &Algorithm,
    cost: &Cost,
) -> Result<(), Failure> {
    let failed =
        |error: io::Error| bad("--goal", path.display(), &format!("it cannot be written: {error}"));
    // Rank by rank: together they may be larger than memory.
    let mut out = BufWriter::new(File::create(path).map_err(failed)?);
    writeln!(out, "num_ranks {}", subject.sample.ranks()).map_err(failed)?;
    for rank in 0..subject.sample.ranks() {
        // GOAL has messages alone.
        let algorithm = algorithm.by_messages();
        let schedule = &subject.sample.build(rank, &subject.locality, &algorithm)?;
        write!(out, "{}", GoalRank { schedule, cost }).map_err(failed)?;
    }
    out.flush().map_err(failed)
}

fn bad(option: &'static str, value: impl ToString, why: &str) -> Failure {
    Failure::BadOption { option, value: value.to_string(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_schedules_are_cut() {
        let sample = Sample::new(Operation::Alltoall, 200, 0, 8).unwrap();
        let schedule = sample.build(3, &Locality::flat(200), &"linear".parse().unwrap()).unwrap();
        let text = shown(&schedule.to_string(), WHOLE);
        assert_eq!(text.lines().count(), SHOWN_MAX + 2);
        assert!(text.ends_with(&format!(
            "{} more lines; --goal FILE writes all\n",
            schedule.len() - SHOWN_MAX
        )));
    }
}
