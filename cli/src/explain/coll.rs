//! `gapless explain --coll`: the schedule of a collective, which rule chose its algorithm, and what the alternatives
//! would take. Nothing is measured: times are predicted by a cost model with typical numbers.

use crate::failure::Failure;
use crate::lines::tell;
use crate::spaces::counted;
use gapless::tuning::coll::{self, Rule, Table};
use gapless_coll::choose::{
    Alternative, alternatives, candidates, choose, rule_for, shared_rule_for,
};
use gapless_coll::{
    Algorithm, BuildError, Cost, GoalRank, Locality, Operation, Sample, Schedule, predict,
};
use gapless_report::{Align, Bytes, Table as Columns, Time, terminal_columns};
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
    /// Explain this algorithm, whatever the table chooses: "ring", "chain in 64K", "doubling over binomial"
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
            check_folder(path)?;
        }
        let subject = self.subject(operation, n, size)?;
        let own = coll::load().map_err(gapless::Error::from)?;
        let (algorithm, why) = self.algorithm(&subject, own)?;
        let Subject { sample, locality, .. } = &subject;
        let schedule = sample.build(self.rank, locality, &algorithm)?;
        let cost = Cost::TYPICAL;
        let seconds = sample
            .build_all(locality, &algorithm, STEPS_MAX)?
            .map(|schedules| predict(&schedules, locality, &cost));
        let mut text = format!("{}\n{why}\n{}\n\n", subject.describe(), described(&cost));
        let _ = writeln!(text, "{algorithm}: {}", predicted(seconds));
        text += &shown(&schedule);
        tell(&text)?;
        if let Some(path) = &self.goal {
            write_goal(path, &subject, &algorithm, &cost)?;
            tell(&format!("schedules of all ranks written to {}\n", path.display()))?;
        }
        let mut all = alternatives(sample, locality, &cost, STEPS_MAX)?;
        if !all.iter().any(|it| it.algorithm == algorithm) {
            let time = |it: &Alternative| it.seconds.unwrap_or(f64::INFINITY);
            let explained = Alternative { algorithm, seconds };
            let at = all.partition_point(|it| time(it) <= time(&explained));
            all.insert(at, explained);
        }
        tell(&self.compared(&subject, &all, &algorithm)?)
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
        let locality = match &self.hosts {
            None => Locality::flat(n),
            Some(text) => hosts(text, n).map_err(|why| bad("--hosts", text, &why))?,
        };
        Ok(Subject { sample, locality, len, root })
    }

    /// The algorithm to explain, and why it is that one.
    fn algorithm(&self, subject: &Subject, own: Vec<Rule>) -> Result<(Algorithm, String), Failure> {
        let Subject { sample, locality, .. } = subject;
        let of = sample.of(self.rank);
        let call = of.call();
        if let Some(name) = &self.algorithm {
            let algorithm: Algorithm = name.parse()?;
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
                _ => Ok((algorithm, "as --algorithm says".to_owned())),
            };
        }
        let from_file = own.len();
        let table = Table::with(own);
        let mut why = match rule_for(&table, &call, locality) {
            None => "no rule of the table fits: by what does it always".to_owned(),
            Some(index) => by_rule(&table, index, from_file),
        };
        if locality.groups().len() == 1
            && let Some(index) = shared_rule_for(&table, &call, locality)
        {
            let rule = by_rule(&table, index, from_file);
            why = format!("blocking calls: {rule}\nothers: {why}");
        }
        Ok((choose(&table, &call, locality), why))
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
        let about =
            format!("\nall algorithms that do it; messages, bytes and scratch are rank {rank}'s\n");
        Ok(format!("{about}{}", table.within(terminal_columns())))
    }
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
        let groups = locality.groups().len();
        let _ = write!(text, ", {} on {}", count(sample.ranks(), "rank"), count(groups, "host"));
        text
    }
}

fn described(cost: &Cost) -> String {
    let rate = |byte: f64| format!("{:.1} GB/s", 1e-9 / byte);
    format!(
        "model, not measured: {} and {} within a host, {} and {} between hosts, {} a message",
        Time(cost.near.latency),
        rate(cost.near.byte),
        Time(cost.far.latency),
        rate(cost.far.byte),
        Time(cost.message),
    )
}

fn predicted(seconds: Option<f64>) -> String {
    match seconds {
        Some(seconds) => format!("{} predicted", Time(seconds)),
        None => "too many steps to play".to_owned(),
    }
}

/// A schedule, as far as anybody reads it.
fn shown(schedule: &Schedule) -> String {
    let text = schedule.to_string();
    let mut lines = text.split_inclusive('\n');
    // The first line is about the schedule.
    let mut shown: String = lines.by_ref().take(SHOWN_MAX + 1).collect();
    let more = lines.count();
    if more > 0 {
        let _ = writeln!(shown, "  …  {more} more steps; --goal FILE writes all");
    }
    shown
}

fn check_folder(path: &Path) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.is_none_or(Path::is_dir) {
        true => Ok(()),
        false => Err(Failure::NoFolder { option: "goal", path: path.to_owned() }),
    }
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
        let schedule = &subject.sample.build(rank, &subject.locality, algorithm)?;
        write!(out, "{}", GoalRank { schedule, cost }).map_err(failed)?;
    }
    out.flush().map_err(failed)
}

/// How `n` ranks are spread over hosts: so many of about equally many ranks, or as listed.
fn hosts(text: &str, n: usize) -> Result<Locality, String> {
    const HOW: &str = "give the number of hosts, or the ranks of each: 0-3/4-7";
    if let Ok(count) = text.parse::<usize>() {
        if count == 0 || count > n {
            return Err(format!("{} are on 1 to {n} hosts", counted(n as u64, "rank")));
        }
        let start = |host: usize| host * (n / count) + host.min(n % count);
        let groups = (0..count).map(|host| (start(host)..start(host + 1)).collect());
        return Locality::new(groups.collect()).map_err(|error| error.to_string());
    }
    let mut groups = Vec::new();
    for host in text.split('/') {
        let mut ranks = Vec::new();
        for run in host.split(',') {
            let (first, last) = run.split_once('-').unwrap_or((run, run));
            let number = |text: &str| text.parse::<usize>().map_err(|_| HOW.to_owned());
            let (first, last) = (number(first)?, number(last)?);
            if last >= n || first > last {
                return Err(format!("{run} is not among the ranks 0 to {}", n - 1));
            }
            ranks.extend(first..=last);
        }
        groups.push(ranks);
    }
    let locality = Locality::new(groups).map_err(|error| error.to_string())?;
    match locality.ranks() {
        all if all == n => Ok(locality),
        all => Err(format!("{all} ranks are listed, and there are {n}")),
    }
}

fn bad(option: &'static str, value: impl ToString, why: &str) -> Failure {
    Failure::BadOption { option, value: value.to_string(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_counted_or_listed() {
        let groups = |text, n| hosts(text, n).unwrap().groups().to_vec();
        assert_eq!(groups("2", 5), [vec![0, 1, 2], vec![3, 4]]);
        assert_eq!(groups("3", 3), [[0], [1], [2]]);
        assert_eq!(groups("0-1,4/2-3", 5), [vec![0, 1, 4], vec![2, 3]]);
        for (text, why) in [
            ("0", "on 1 to 5 hosts"),
            ("6", "on 1 to 5 hosts"),
            ("two", "the number of hosts"),
            ("0-4/", "the number of hosts"),
            ("0-5", "0-5 is not among the ranks 0 to 4"),
            ("3-1", "3-1 is not among"),
            ("0-3/3-4", "exactly once"),
            ("0-3", "4 ranks are listed, and there are 5"),
            ("0-18446744073709551615", "not among the ranks"),
        ] {
            let error = hosts(text, 5).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn long_schedules_are_cut() {
        let sample = Sample::new(Operation::Alltoall, 200, 0, 8).unwrap();
        let schedule = sample.build(3, &Locality::flat(200), &"linear".parse().unwrap()).unwrap();
        let text = shown(&schedule);
        assert_eq!(text.lines().count(), SHOWN_MAX + 2);
        assert!(text.ends_with(&format!(
            "{} more steps; --goal FILE writes all\n",
            schedule.len() - SHOWN_MAX
        )));
    }
}
