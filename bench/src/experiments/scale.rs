//! `scale`: how the schedules of collectives grow with the number of ranks: messages and memory of a rank, how long it
//! takes to build one, and what the cost model says of all ranks together.
//!
//! No process is started and no message sent: schedules are data. Each operation is built by every algorithm that can
//! do it, for some of the ranks: the first, the root, the middle, the last, and others evenly between. Of those the
//! largest figures count. If the schedules of all ranks together have few enough steps, they are built and played. Ranks
//! are on hosts of 16; of the algorithms on levels only what the table chooses is built.

use std::collections::BTreeMap;
use std::time::Instant;

use gapless_coll::choose::{Table, candidates, choose};
use gapless_coll::{Algorithm, Cost, Locality, Operation, Sample, build, predict};
use gapless_report::{Bytes, Growth, Mark, PlotError, Report, Row, Samples, Time, growth};
use serde_json::Value;

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, gathered};
use crate::table::{head, line};

/// The experiment.
pub struct Scale;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Numbers of ranks; repeatable, or separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "16,128,1024,10000",
        value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    ranks: Vec<u32>,
    /// Bytes of the vector, or of one rank's block; repeatable, or separated by commas
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "64,1048576")]
    sizes: Vec<u64>,
    /// Only these operations; repeatable, or separated by commas
    #[arg(long, value_name = "OPERATION", value_delimiter = ',')]
    operations: Vec<Operation>,
    /// Play the schedules of all ranks by the algorithm that the table chooses if they have no more steps together; a step
    /// takes about 200 bytes, and a million steps some seconds
    #[arg(long, value_name = "STEPS", default_value_t = 1_000_000)]
    steps: usize,
    /// The same for all other algorithms, of which there are ten times as many
    #[arg(long, value_name = "STEPS", default_value_t = 30_000)]
    other_steps: usize,
}

/// Ranks of a host.
const HOST: usize = 16;
/// Ranks whose schedules are looked at.
const LOOKED_AT: usize = 32;
/// How often each is built: the shortest time counts, since others may have the processor meanwhile.
const REPEATS: u32 = 3;
/// Seconds after which no further rank of a slow algorithm is looked at.
const PATIENCE: f64 = 2.0;
/// What is asked: one rank's schedule is built in a second.
const BUILD_SECONDS: f64 = 1.0;
const BUILT: &str = "slowest build of one rank's schedule, s";

impl Experiment for Scale {
    type Options = Options;

    const NAME: &'static str = "scale";
    const ABOUT: &'static str = "messages and memory of a rank in collectives, to 10,000 ranks";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        let quick = common.quick;
        let ranks: &[u32] = if quick { &[5, 33] } else { &options.ranks };
        let sizes: &[u64] = if quick { &[64] } else { &options.sizes };
        let all = &Operation::ALL[..];
        let operations = if options.operations.is_empty() { all } else { &options.operations };
        let progress = common.progress(operations.len() * sizes.len() * ranks.len());
        let mut rows = Vec::new();
        for &operation in operations {
            // A barrier has no bytes.
            let sizes = if operation == Operation::Barrier { &[0][..] } else { sizes };
            for (&size, &ranks) in sizes.iter().flat_map(|size| ranks.iter().map(move |n| (size, n))) {
                progress.set_message(format!("{operation} of {size} B, {ranks} ranks"));
                let ranks = usize::try_from(ranks).unwrap_or(usize::MAX);
                let of = Subject::new(operation, ranks, size)?;
                for algorithm in of.algorithms() {
                    let is_chosen = algorithm == of.chosen;
                    let steps = if is_chosen { options.steps } else { options.other_steps };
                    rows.push(of.row(algorithm, steps)?);
                }
                progress.inc(1);
            }
        }
        progress.finish_and_clear();
        let notes = notes(&rows, [options.steps, options.other_steps]);
        Ok(Findings::new(rows, notes))
    }

    /// Messages and memory by the number of ranks, as the table chooses; a picture a size.
    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let mut sizes: Vec<u64> = chosen(report).map(|row| row.payload_bytes).filter(|it| *it > 0).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut drawings = Vec::new();
        for size in sizes {
            for (what, key, axis) in [
                ("messages", MESSAGES, "messages that a rank sends"),
                ("memory", MEMORY, "bytes of scratch and schedule of a rank"),
            ] {
                let lines = by_operation(report, size, key);
                let title = format!("{axis}, as the table chooses, {}", Bytes(size));
                let svg = growth(&title, "ranks", axis, &lines)?;
                drawings.push(Drawing { suffix: format!("-{what}-{size}"), svg });
            }
        }
        Ok(drawings)
    }

    /// What the table chooses at the largest number of ranks, for people.
    fn summary(report: &Report) -> String {
        let most = chosen(report).map(|row| number(row, RANKS)).fold(0.0, f64::max);
        let mut text = format!("As the table chooses, for {most} ranks; the report has all algorithms.\n\n");
        text += &head(&["operation", "bytes", "algorithm", "messages", "scratch", "schedule", "built in", "predicted"]);
        let bytes = |row: &Row, key: &str| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
            let bytes = number(row, key) as u64;
            Bytes(bytes).to_string()
        };
        for row in chosen(report).filter(|row| number(row, RANKS) >= most) {
            let predicted = row.extra.get(PREDICTED).and_then(Value::as_f64);
            text += &line(&[
                operation(row).to_owned(),
                Bytes(row.payload_bytes).to_string(),
                row.protocol.clone(),
                number(row, MESSAGES).to_string(),
                bytes(row, "scratch_bytes"),
                bytes(row, "schedule_bytes"),
                Time(row.seconds.max).to_string(),
                predicted.map_or("-".to_owned(), |seconds| Time(seconds).to_string()),
            ]);
        }
        text
    }
}

const RANKS: &str = "ranks";
const MESSAGES: &str = "messages";
const MEMORY: &str = "memory_bytes";
const PREDICTED: &str = "predicted_seconds";
const PLAYING: &str = "playing_seconds";
const CHOSEN: &str = "chosen";

/// A collective of so many ranks.
struct Subject {
    sample: Sample,
    locality: Locality,
    size: u64,
    chosen: Algorithm,
}

impl Subject {
    fn new(operation: Operation, ranks: usize, size: u64) -> Result<Self, Failure> {
        let sample = Sample::new(operation, ranks, 0, size)?;
        let hosts = (0..ranks).step_by(HOST).map(|first| (first..ranks.min(first + HOST)).collect());
        let locality = Locality::new(hosts.collect())?;
        // The ranks that are played share no memory.
        let chosen = choose(&Table::default(), &sample.of(0).call(), &locality).by_messages();
        Ok(Self { sample, locality, size, chosen })
    }

    fn algorithms(&self) -> Vec<Algorithm> {
        let mut all = candidates(&self.sample.of(0).call(), &self.locality);
        all.retain(|it| it.within.is_empty() && *it != self.chosen);
        all.insert(0, self.chosen);
        all
    }

    /// The ranks that are looked at, those that differ from others first.
    fn ranks(&self) -> Vec<usize> {
        let n = self.sample.ranks();
        let mut ranks = vec![0, 1, n / 2, n - 1];
        ranks.extend((0..LOOKED_AT).map(|at| at * n / LOOKED_AT));
        let mut seen = std::collections::BTreeSet::new();
        ranks.retain(|rank| seen.insert(*rank));
        ranks
    }

    fn row(&self, algorithm: Algorithm, steps_max: usize) -> Result<Row, Failure> {
        let Self { sample, locality, size, chosen } = self;
        let mut times = Samples::default();
        let mut most: BTreeMap<&str, u64> = BTreeMap::new();
        let begin = Instant::now();
        for rank in self.ranks() {
            if times.seconds().len() >= 4 && begin.elapsed().as_secs_f64() > PATIENCE {
                break;
            }
            let of = sample.of(rank);
            let call = of.call();
            let (mut shortest, mut built) = (f64::INFINITY, 0);
            let schedule = loop {
                let before = Instant::now();
                let schedule = build(rank, locality, &call, &algorithm)?;
                shortest = shortest.min(before.elapsed().as_secs_f64()).max(1e-9);
                built += 1;
                if built == REPEATS {
                    break schedule;
                }
            };
            times.push(shortest);
            let (messages, sent) = schedule.sent();
            let memory = schedule.memory() as u64;
            for (key, value) in [
                (MESSAGES, messages as u64),
                ("sent_bytes", sent),
                ("steps", schedule.len() as u64),
                ("scratch_bytes", schedule.scratch()),
                ("schedule_bytes", memory),
                (MEMORY, memory + schedule.scratch()),
            ] {
                let slot = most.entry(key).or_default();
                *slot = value.max(*slot);
            }
        }
        let (operation, n) = (sample.operation(), sample.ranks());
        let time = times.summary().map_err(Failure::samples(format!("{operation} of {n} ranks")))?;
        let mut row = Row::new(
            format!("{operation} n={n}"),
            "build",
            "host",
            algorithm.to_string(),
            *size,
            time,
        )
        .with(RANKS, n)
        .with(CHOSEN, algorithm == *chosen)
        .mark(Mark::at_most(BUILT, BUILD_SECONDS, time.max))
        .verified(true);
        for (key, value) in most {
            row = row.with(key, value);
        }
        let before = Instant::now();
        if let Some(schedules) = sample.build_all(locality, &algorithm, steps_max)? {
            let predicted = predict(&schedules, locality, &Cost::TYPICAL);
            // Infinite, if messages had no other end.
            row = row.verified(predicted.is_finite()).with(PREDICTED, predicted);
            row = row.with(PLAYING, before.elapsed().as_secs_f64());
        }
        Ok(row)
    }
}

fn number(row: &Row, key: &str) -> f64 {
    row.extra.get(key).and_then(Value::as_f64).unwrap_or(0.0)
}

fn chosen(report: &Report) -> impl Iterator<Item = &Row> {
    report.rows.iter().filter(|row| row.extra.get(CHOSEN).and_then(Value::as_bool) == Some(true))
}

fn operation(row: &Row) -> &str {
    row.case.split(' ').next().unwrap_or_default()
}

/// A line an operation: how a figure of the chosen algorithm grows with the ranks.
fn by_operation(report: &Report, size: u64, key: &str) -> Vec<Growth> {
    let rows = chosen(report).filter(|row| row.payload_bytes == size || row.payload_bytes == 0);
    gathered(rows.map(|row| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let point = (number(row, RANKS) as u64, number(row, key));
        (operation(row).to_owned(), point)
    }))
}

/// What was slow, and what was too large to be played.
fn notes(rows: &[Row], [steps, other_steps]: [usize; 2]) -> String {
    let mut text = format!(
        "time: building one rank's schedule (of some ranks, the shortest of {REPEATS}; GB/s says nothing here); \"verified\": played, or too many \
         steps to be played ({steps}; {other_steps} of algorithms that the table does not choose);\nthe bytes are the matter of coll's proof, for all sizes to 33 ranks. The JSON has \
         messages, bytes and memory of a rank\n"
    );
    let about = |row: &Row| format!("{} of {}, {}", row.case, Bytes(row.payload_bytes), row.protocol);
    let slowest = |time: &dyn Fn(&Row) -> f64| -> Vec<String> {
        let mut slow: Vec<&Row> = rows.iter().collect();
        slow.sort_by(|one, other| time(other).total_cmp(&time(one)));
        slow.into_iter().take(5).map(|row| format!("- {}: {}\n", Time(time(row)), about(row))).collect()
    };
    text += "slowest to build, one rank:\n";
    text.extend(slowest(&|row| row.seconds.max));
    text += "slowest to build for all ranks and to play:\n";
    text.extend(slowest(&|row| number(row, PLAYING)));
    let unplayed: Vec<&Row> = rows.iter().filter(|row| !row.extra.contains_key(PREDICTED)).collect();
    let mut cases: Vec<&str> = unplayed.iter().map(|row| row.case.as_str()).collect();
    cases.dedup();
    text += &format!("not played: {} of {} rows, of {} cases\n", unplayed.len(), rows.len(), cases.len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_and_every_algorithm_have_a_row() {
        let of = Subject::new(Operation::Allreduce, 40, 64).unwrap();
        let all = of.algorithms();
        assert_eq!(all[0].to_string(), "doubling over binomial");
        assert!(all.len() > 10 && all[1..].iter().all(|it| it.within.is_empty()));
        let row = of.row("ring".parse().unwrap(), usize::MAX).unwrap();
        // 39 rounds of reduce-scatter and as many of all-gather; the vector has 8 elements.
        assert_eq!(row.extra[MESSAGES], 16);
        assert!(number(&row, PREDICTED) > 0.0 && row.verified);
        let unplayed = of.row("ring".parse().unwrap(), 10).unwrap();
        assert!(!unplayed.extra.contains_key(PREDICTED));
    }

    #[test]
    fn lines_are_those_of_chosen_algorithms() {
        let mut rows = Vec::new();
        for (n, size) in [(4, 64), (8, 64), (8, 1 << 20)] {
            let of = Subject::new(Operation::Bcast, n, size).unwrap();
            rows.extend(of.algorithms().into_iter().map(|it| of.row(it, 0).unwrap()));
        }
        let report = Report::new("scale", gapless_report::Machine::default(), "figures", rows);
        let lines = by_operation(&report, 64, MESSAGES);
        // A root sends to log2(n).
        let points = vec![(4, 2.0), (8, 3.0)];
        assert_eq!(lines, [Growth { name: "bcast".to_owned(), points }]);
        assert_eq!(Scale::draw(&report).unwrap().len(), 4);
        let text = Scale::summary(&report);
        assert!(text.contains("| bcast | 64 B | binomial | 3 |"), "{text}");
        assert_eq!(text.lines().count(), 6, "{text}");
    }
}
