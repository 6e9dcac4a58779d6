//! `xtq9`: Figure 9 of LeBeane et al. 2016 on the simulated machine: an accumulate (a) and a reduction (b) between two
//! nodes by length, and an all-reduce (c) by the number of nodes, each CPU, HSA and XTQ.
//!
//! All-reduces are the schedules of `coll`, in place. What is judged is the ring, of 4 MiB that all nodes hold together:
//! only so is there a number of nodes at which more messages outweigh less computation. Beside it, not judged: recursive
//! halving and doubling, and vectors of 4 MiB in each node.

use gapless_report::{Bytes, Growth, Mark, PlotError, Report, Row, Time, growth};
use gapless_xtq_sim::experiments::{accumulate, is_sum, reduce};
use gapless_xtq_sim::{Configuration, Options, SimOutcome, Program, Ps, Ready, initial};
use serde_json::Value;

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, gathered};
use crate::sim::{allreduce, gain, judged, median, programs, row, simulate, summary, within};
use crate::table::{head, line};

/// The experiment.
pub struct Xtq9;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options9 {
    /// Bytes of a piece, where an operation is done in pieces
    #[arg(long, value_name = "BYTES", default_value_t = 65536)]
    piece: u64,
}

const LENGTHS: std::ops::RangeInclusive<u32> = 6..=22;
/// Lengths above this one: there the gain shrinks, and pieces restore it.
const TURN: u64 = 64 << 10;
const NODES: [usize; 9] = [2, 4, 8, 12, 16, 24, 32, 48, 64];
const VECTOR: u64 = 4 << 20;
const NODES_KEY: &str = "nodes";

/// Times of the three configurations, and whether all results were right.
struct Three {
    times: [Ps; 3],
    /// How long the second rank's application was at work.
    busy: [Ps; 3],
    right: [bool; 3],
}

impl Three {
    fn of(each: impl Fn(Configuration) -> Result<(SimOutcome, bool), Failure>) -> Result<Three, Failure> {
        let mut three = Three { times: [Ps::ZERO; 3], busy: [Ps::ZERO; 3], right: [false; 3] };
        for (at, configuration) in Configuration::ALL.into_iter().enumerate() {
            let (outcome, right) = each(configuration)?;
            three.times[at] = outcome.time();
            three.busy[at] = outcome.busy.get(1).copied().unwrap_or_default();
            three.right[at] = right && outcome.is_whole();
        }
        Ok(three)
    }

    /// How much less time XTQ takes than HSA, and than CPU.
    fn gains(&self) -> (f64, f64) {
        let [cpu, hsa, xtq] = self.times;
        (gain(xtq, hsa), gain(xtq, cpu))
    }

    /// A row a configuration, compared with those before it.
    fn rows(&self, case: &str, op: &str, bytes: u64) -> Result<Vec<Row>, Failure> {
        let mut rows = Vec::new();
        for (at, configuration) in Configuration::ALL.into_iter().enumerate() {
            let case = format!("{} {case}", configuration.name());
            let mut row = row(&case, op, configuration, bytes, self.times[at])?
                .with("target_cpu_ns", self.busy[at].seconds() * 1e9)
                .verified(self.right[at]);
            for before in (0..at).rev() {
                row = row.against(Configuration::ALL[before].name(), summary(self.times[before])?);
            }
            rows.push(row);
        }
        Ok(rows)
    }
}

/// An operation between two nodes, over lengths.
struct Sweep {
    op: String,
    points: Vec<(u64, Three)>,
}

impl Sweep {
    fn of(
        op: &str,
        lengths: &[u64],
        seed: u64,
        build: impl Fn(Configuration, u64) -> Vec<Program>,
    ) -> Result<Sweep, Failure> {
        let mut points = Vec::new();
        for &bytes in lengths {
            let three = Three::of(|configuration| {
                let options = Options { seed, ..Options::new(configuration) };
                let outcome = simulate(&build(configuration, bytes), &options)?;
                let right = is_sum(&outcome.memory, seed, bytes);
                Ok((outcome, right))
            })?;
            points.push((bytes, three));
        }
        Ok(Sweep { op: op.to_owned(), points })
    }

    fn rows(&self) -> Result<Vec<Row>, Failure> {
        let mut rows = Vec::new();
        for (bytes, three) in &self.points {
            rows.extend(three.rows(&format!("bytes={bytes}"), &self.op, *bytes)?);
        }
        Ok(rows)
    }

    /// Gains over HSA up to 64 KiB, and above.
    fn gains(&self) -> (Vec<f64>, Vec<f64>) {
        let part = |above: bool| {
            let these = self.points.iter().filter(|(bytes, _)| (*bytes > TURN) == above);
            these.map(|(_, three)| three.gains().0).collect()
        };
        (part(false), part(true))
    }

    fn at(&self, bytes: u64) -> f64 {
        self.points.iter().find(|(it, _)| *it == bytes).map_or(f64::NAN, |(_, three)| three.gains().0)
    }
}

/// The marks of what happens above 64 KiB: of an operation in one, and of the same in pieces.
fn above(whole: &Sweep, pieces: &Sweep) -> Vec<Mark> {
    let (_, shrunk) = whole.gains();
    let most = shrunk.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (_, restored) = pieces.gains();
    let least = restored.iter().copied().fold(f64::INFINITY, f64::min);
    let at_turn = whole.at(TURN);
    let (one, cut) = (&whole.op, &pieces.op);
    vec![
        Mark::at_most(format!("{one}: largest gain over HSA above 64 KiB"), at_turn, most),
        Mark::at_least(format!("{cut}: least gain over HSA above 64 KiB"), at_turn.max(0.0), least),
    ]
}

/// An all-reduce of some kind over numbers of nodes.
struct Scaling {
    op: String,
    points: Vec<(usize, u64, Three)>,
}

impl Scaling {
    fn of(op: &str, algorithm: &str, nodes: &[usize], each: impl Fn(usize) -> u64, seed: u64) -> Result<Scaling, Failure> {
        // `coll` has the ring as tasks; what halving would be with tasks is derived from its messages.
        let by_tasks = (algorithm == "ring").then(|| "xtq".parse()).transpose()?;
        let algorithm = algorithm.parse()?;
        let mut points = Vec::new();
        for &n in nodes {
            let bytes = each(n);
            let two_sided = allreduce(n, bytes, 4, &algorithm)?;
            let sums: Vec<u32> = (0..bytes / 4)
                .map(|at| (0..n).map(|rank| initial(seed, rank, at)).fold(0u32, u32::wrapping_add))
                .collect();
            let three = Three::of(|configuration| {
                let options = Options { seed, ..Options::new(configuration) };
                let programs = match (configuration, &by_tasks) {
                    (Configuration::Xtq, Some(by_tasks)) => allreduce(n, bytes, 4, by_tasks)?,
                    (Configuration::Xtq, None) => programs(&two_sided, Some(Ready::Message)),
                    _ => two_sided.clone(),
                };
                let outcome = simulate(&programs, &options)?;
                let right = outcome.memory.iter().all(|memory| memory.starts_with(&sums));
                Ok((outcome, right))
            })?;
            points.push((n, bytes, three));
        }
        Ok(Scaling { op: op.to_owned(), points })
    }

    fn rows(&self) -> Result<Vec<Row>, Failure> {
        let mut rows = Vec::new();
        for (n, bytes, three) in &self.points {
            let of = three.rows(&format!("nodes={n}"), &self.op, *bytes)?;
            rows.extend(of.into_iter().map(|row| row.with(NODES_KEY, *n)));
        }
        Ok(rows)
    }

    /// The number of nodes at which a configuration takes the least time.
    fn turn(&self, configuration: usize) -> f64 {
        let least = self.points.iter().min_by_key(|(_, _, three)| three.times[configuration]);
        least.map_or(f64::NAN, |(n, _, _)| *n as f64)
    }

    fn marks(&self) -> Vec<Mark> {
        let ahead = |at: usize, of: &Three| of.times[0].seconds() / of.times[at].seconds();
        let few = || self.points.iter().filter(|(n, _, _)| *n <= 8);
        let mut marks = Vec::new();
        for (at, name) in [(1, "HSA"), (2, "XTQ")] {
            let least = few().map(|(_, _, three)| ahead(at, three)).fold(f64::INFINITY, f64::min);
            marks.push(Mark::at_least(format!("{name}'s speed ÷ CPU's at 2 to 8 nodes, the least"), 1.0, least));
        }
        marks.push(within("XTQ's turning point, nodes,", 8.0, 16.0, self.turn(2)));
        if let Some((_, _, most)) = self.points.iter().find(|(n, _, _)| *n == 64) {
            marks.push(Mark::at_most("HSA's speed ÷ CPU's at 64 nodes", 1.0, ahead(1, most)));
            marks.push(Mark::at_least("XTQ's speed ÷ CPU's at 64 nodes", 1.0, ahead(2, most)));
        }
        marks
    }
}

impl Experiment for Xtq9 {
    type Options = Options9;

    const NAME: &'static str = "xtq9";
    const ABOUT: &'static str = "accumulate, reduce and all-reduce by CPU, HSA and XTQ, simulated";

    fn run(options: &Options9, common: &Common) -> Result<Findings, Failure> {
        let (quick, seed, piece) = (common.quick, common.seed, options.piece);
        let all: Vec<u64> = LENGTHS.map(|power| 1 << power).collect();
        let lengths: &[u64] = if quick { &[64, TURN, 4 * TURN] } else { &all };
        let nodes: &[usize] = if quick { &NODES[..2] } else { &NODES };
        let sweep = |op: &str, build: &dyn Fn(Configuration, u64) -> Vec<Program>| {
            Sweep::of(op, lengths, seed, build)
        };
        let a = sweep("accumulate", &|of, bytes| accumulate(of, bytes, 0))?;
        let a_pieces = sweep("accumulate in pieces", &|of, bytes| accumulate(of, bytes, piece))?;
        let b = sweep("reduce", &|of, bytes| reduce(of, bytes, 0, Ready::Message))?;
        let b_pieces = sweep("reduce in pieces", &|of, bytes| reduce(of, bytes, piece, Ready::Message))?;
        let b_ahead = sweep("reduce, ready ahead", &|of, bytes| reduce(of, bytes, 0, Ready::Ahead))?;
        let b_ahead_pieces =
            sweep("reduce in pieces, ready ahead", &|of, bytes| reduce(of, bytes, piece, Ready::Ahead))?;
        let together = |n: usize| VECTOR / n as u64 / 4 * 4;
        let c = Scaling::of("all-reduce, 4 MiB in all", "ring", nodes, together, seed)?;

        let mut rows = a.rows()?;
        let slowest = a.points.iter().map(|(_, three)| three.gains().0).fold(f64::INFINITY, f64::min);
        let smallest = a.points.first().map_or(f64::NAN, |(_, three)| three.gains().1);
        let mut marks = vec![
            Mark::at_least("9a: least gain over HSA", 0.0, slowest),
            Mark::at_least("9a: gain over CPU at the smallest", 0.0, smallest),
        ];
        marks.extend(above(&a, &a_pieces));
        judge(&mut rows, marks);
        rows.extend(a_pieces.rows()?);
        for (whole, pieces) in [(&b, &b_pieces), (&b_ahead, &b_ahead_pieces)] {
            let mut of = whole.rows()?;
            let what = format!("9b ({}): median gain over HSA to 64 KiB", whole.op);
            let mut marks = vec![within(&what, 0.10, 0.15, median(whole.gains().0))];
            marks.extend(above(whole, pieces));
            judge(&mut of, marks);
            rows.extend(of);
            rows.extend(pieces.rows()?);
        }
        let mut of = c.rows()?;
        judge(&mut of, c.marks());
        rows.extend(of);
        if !quick {
            let some = powers(nodes);
            let halving = "all-reduce, 4 MiB in all, halving";
            rows.extend(Scaling::of(halving, "halving", &some, together, seed)?.rows()?);
            let each = "all-reduce, 4 MiB each";
            rows.extend(Scaling::of(each, "ring", &some, |_| VECTOR, seed)?.rows()?);
        }
        let turns: Vec<String> = (0..3).map(|at| format!("{} {}", Configuration::ALL[at].name(), c.turn(at))).collect();
        let notes = format!(
            "simulated, on the machine of Table I; pieces of {}; a mark stands at the last row that it is about\n\
             9c: least time at {} nodes\n{}",
            Bytes(piece),
            turns.join(", "),
            judged(&rows)
        );
        Ok(Findings::new(rows, notes))
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let picture = |(suffix, op): (&str, &str)| {
            let lines = gathered(report.rows.iter().filter(|row| row.op == op).map(|row| {
                let nodes = row.extra.get(NODES_KEY).and_then(Value::as_u64);
                let at = nodes.unwrap_or(row.payload_bytes);
                (row.protocol.clone(), (at, row.seconds.median * 1e6))
            }));
            (suffix.to_owned(), format!("{op}, simulated"), lines)
        };
        let by_bytes = [("-a", "accumulate"), ("-b", "reduce"), ("-b-ahead", "reduce, ready ahead")].map(picture);
        let by_nodes = [("-c", "all-reduce, 4 MiB in all")].map(picture);
        let draw = |number: &'static str| {
            move |title: &str, lines: &[Growth]| growth(title, number, "time, µs", lines)
        };
        Ok([Drawing::each(by_bytes, draw("bytes"))?, Drawing::each(by_nodes, draw("nodes"))?].concat())
    }

    /// Times by configuration, a table an operation, and the marks, for people.
    fn summary(report: &Report) -> String {
        let mut ops: Vec<&str> = report.rows.iter().map(|row| row.op.as_str()).collect();
        ops.dedup();
        let mut text = String::new();
        for op in ops {
            text += &format!("{op}:\n\n");
            text += &head(&["", "CPU", "HSA", "XTQ", "XTQ's speed ÷ HSA's", "÷ CPU's"]);
            for row in report.rows.iter().filter(|row| row.op == op && row.protocol == "XTQ") {
                let times = [row.others.first().and_then(|it| it.seconds), row.reference_seconds, Some(row.seconds)];
                let mut cells = vec![row.case.trim_start_matches("XTQ ").to_owned()];
                cells.extend(times.map(|time| time.map_or("-".to_owned(), |time| Time(time.median).to_string())));
                cells.extend(["HSA", "CPU"].map(|name| format!("{:.2}", row.ratio_to(name).unwrap_or(0.0))));
                text += &line(&cells);
            }
            text.push('\n');
        }
        text + &judged(&report.rows)
    }
}

/// Puts marks at the last of some rows.
fn judge(rows: &mut [Row], marks: Vec<Mark>) {
    if let Some(row) = rows.last_mut() {
        row.marks.extend(marks);
    }
}

fn powers(nodes: &[usize]) -> Vec<usize> {
    nodes.iter().copied().filter(|n| n.is_power_of_two()).collect()
}

