//! `gapless tune --coll`: measures the algorithms of collectives between processes of this machine, and writes the
//! [table](gapless::tuning::coll) by which worlds choose.
//!
//! There is a job for each number of ranks: 2, 4, 8 and so on, up to a processor each. Rank 0 leaves its rules in a
//! file, which the tuner puts together.

use super::clock::settled;
use super::{heading, parts, write_or_say};
use crate::collectives::{Bench, CollectiveWork, Effort, Timed, different};
use crate::failure::Failure;
use crate::{Worlds, complain, say};
use gapless::tuning::coll::{self, Rule, Table};
use gapless_coll::{Algorithm, Method, Operation};
use gapless_pml::Tuning;
use gapless_report::{Align, Bytes, Table as Columns, Time, terminal_columns, write_atomically};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Lengths that are measured, in bytes.
const SIZES: [u64; 7] = [8, 128, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20];

/// An algorithm that is chosen for a length is kept for the next, unless another is quicker by more than this.
const WORTH_A_CHANGE: f64 = 1.05;

/// Through memory that the ranks share.
const SHARED: Algorithm = Algorithm::new(Method::Shared);

/// Ranks that have a processor each take less for a barrier, by far.
const BUSY_SECONDS: f64 = 100e-6;

/// What one length of an operation showed: the built-in rules' choice first.
#[derive(Clone, Debug)]
struct Point {
    bytes: u64,
    all: Vec<(Algorithm, f64)>,
}

impl Point {
    /// The time of an algorithm; endless, if it was not measured.
    fn time(&self, algorithm: Algorithm) -> f64 {
        let found = self.all.iter().find(|(it, _)| *it == algorithm);
        found.map_or(f64::INFINITY, |(_, seconds)| *seconds)
    }

    /// What goes by messages; the built-in choice first.
    fn by_messages(&self) -> impl Iterator<Item = &(Algorithm, f64)> {
        self.all.iter().filter(|(algorithm, _)| *algorithm != SHARED)
    }

    /// How much longer shared memory takes than the best algorithm by messages, as a logarithm; none: the call cannot go
    /// that way.
    fn shared_loses(&self) -> Option<f64> {
        let best = self.by_messages().map(|(_, seconds)| *seconds).fold(f64::INFINITY, f64::min);
        let shared = self.all.iter().find(|(algorithm, _)| *algorithm == SHARED)?.1;
        // What was not measured well says nothing.
        let loses = (shared / best).ln();
        Some(if loses.is_nan() { 0.0 } else { loses.clamp(-10.0, 10.0) })
    }

    /// The quickest by messages, unless `before` or the built-in choice is about as quick.
    fn best(&self, before: Option<Algorithm>) -> Option<Algorithm> {
        let quickest = self.by_messages().min_by(|one, other| one.1.total_cmp(&other.1))?;
        let will_do = |it: &Algorithm| self.time(*it) <= quickest.1 * WORTH_A_CHANGE;
        let built_in = self.by_messages().next().map(|(it, _)| *it);
        let known = [before, built_in].into_iter().flatten().find(will_do);
        Some(known.unwrap_or(quickest.0))
    }
}

/// Starts the jobs, and writes what they found.
pub(super) fn run(budget: f64, target: Option<&Path>, force: bool) -> Result<ExitCode, Failure> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let sizes: Vec<u32> = (1..)
        .map(|power| 1u32 << power)
        .take_while(|n| *n == 2 || usize::try_from(*n).is_ok_and(|n| n <= processors))
        .collect();
    if processors < 2 {
        complain("there is one processor: ranks take turns, and the times show it");
    }
    let mut rules = Vec::new();
    let more: Vec<OsString> = force.then(|| "--force".into()).into_iter().collect();
    let code = parts::run("--coll", &sizes, budget, &more, |part| {
        rules.extend(coll::read(part).map_err(gapless::Error::from)?);
        Ok(())
    })?;
    if code != ExitCode::SUCCESS {
        return Ok(code);
    }
    let rest = "What has no rule here goes by the built-in ones.";
    // What is known of copies on one GPU stays.
    let hyperq = match target.filter(|path| path.exists()) {
        Some(path) => {
            coll::read_table(path).map_or_else(|_| String::new(), |it| coll::write_hyperq(&it.1))
        }
        None => String::new(),
    };
    let heading = heading("The rules of collectives", rest);
    let text = format!("{heading}{}{hyperq}", coll::write(&rules));
    write_or_say(target, &text, "").map(|()| ExitCode::SUCCESS)
}

/// What a rank of such a job does.
pub(super) fn measure(
    worlds: Worlds<'_>,
    budget: f64,
    part: &Path,
    force: bool,
) -> Result<ExitCode, Failure> {
    // What is built in: no file must change the numbers, and a broken one must not stop this.
    let builder = worlds.builder()?.tuning(Tuning::default()).coll_table(Table::default());
    let world = builder.init()?;
    let mut bench = Bench::new(&world)?;
    let n = bench.size();
    let count = CollectiveWork::OPERATIONS.len() * SIZES.len();
    let effort = Effort { seconds: budget / count as f64, least: 8, hopeless: 3.0 };
    let mut rules = Vec::new();
    let mut doubt = None;
    let mut shown = Columns::new([
        ("operation", Align::Left),
        ("ranks", Align::Right),
        ("bytes", Align::Right),
        ("algorithm", Align::Left),
        ("time", Align::Right),
        ("÷ built-in", Align::Right),
    ])
    .expendable(["÷ built-in"]);
    for operation in CollectiveWork::OPERATIONS {
        let mut points = Vec::new();
        let sizes = if operation == Operation::Barrier { &[0][..] } else { &SIZES };
        for work in sizes.iter().filter_map(|bytes| CollectiveWork::new(operation, *bytes)) {
            let algorithms = different(operation, n, work.bytes())?;
            let all = bench.compare(&work, &algorithms, effort)?;
            if let Some(wrong) = all.iter().find(|timed| !timed.right) {
                let first = format!("{operation} of {} B by {}", work.bytes(), wrong.algorithm);
                return Err(Failure::WrongBytes { cases: 1, all: all.len(), first });
            }
            let time =
                |timed: Timed| (timed.algorithm, settled(timed.seconds).unwrap_or(f64::INFINITY));
            let all = all.into_iter().map(time).collect();
            points.push(Point { bytes: work.bytes(), all });
        }
        let chosen = choices(&points);
        let shared = shared_rule(operation, n, &points);
        for (point, algorithm) in points.iter().zip(&chosen) {
            let goes_shared = |rule: &Rule| point.bytes <= rule.bytes_max;
            let is_shared =
                point.shared_loses().is_some() && shared.is_none_or(|it| goes_shared(&it));
            let algorithm = if is_shared { &SHARED } else { algorithm };
            let (built_in, time) = (point.all[0].1, point.time(*algorithm));
            shown.push([
                operation.to_string(),
                n.to_string(),
                Bytes(point.bytes).to_string(),
                algorithm.to_string(),
                Time(time).to_string(),
                format!("{:.2}", built_in / time),
            ]);
        }
        rules.extend(shared);
        rules.extend(rules_of(operation, n, &points, &chosen));
        let barrier = points.iter().zip(&chosen).map(|(point, it)| point.time(*it)).next();
        if operation == Operation::Barrier
            && bench.rank() == 0
            && let Some(seconds) = barrier.filter(|seconds| *seconds > BUSY_SECONDS)
        {
            doubt = Some(format!(
                "a barrier of {n} ranks took {}: other work kept this machine busy",
                Time(seconds)
            ));
        }
    }
    if bench.rank() == 0 {
        write_atomically(part, coll::write(&rules).as_bytes())?;
        say(&format!("{}\n", shown.within(terminal_columns())))?;
    }
    drop(bench);
    world.finalize()?;
    match doubt {
        Some(doubt) if !force => return Err(Failure::Implausible { why: vec![doubt] }),
        Some(doubt) => complain(&doubt),
        None => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Up to which length calls go through shared memory: where all lengths together lose least. So one length that other work
/// has disturbed does not decide for those behind it. A barrier always goes that way.
fn shared_rule(operation: Operation, n: usize, points: &[Point]) -> Option<Rule> {
    let loses: Vec<f64> = points.iter().map_while(Point::shared_loses).collect();
    if operation == Operation::Barrier || loses.is_empty() {
        return None;
    }
    // Up to each length: what is lost there by shared memory, less a gain that is not worth a change.
    let mut lost = vec![0.0];
    for more in &loses {
        lost.push(lost[lost.len() - 1] + more - WORTH_A_CHANGE.ln());
    }
    let least = lost.iter().copied().fold(f64::INFINITY, f64::min);
    let count = lost.iter().rposition(|it| *it <= least).unwrap_or(0);
    let bytes_max = match (count, points.get(count)) {
        (_, None) => u64::MAX,
        (0, _) => 0,
        (at, Some(next)) => between(&points[at - 1], next),
    };
    Some(Rule { operation, ranks_max: n, bytes_max, algorithm: SHARED })
}

/// Lengths are powers of two: so is what is in the middle of them, or just below.
fn between(point: &Point, next: &Point) -> u64 {
    1 << ((point.bytes.ilog2() + next.bytes.ilog2()) / 2)
}

/// The algorithm for each length.
fn choices(points: &[Point]) -> Vec<Algorithm> {
    let mut chosen: Vec<Algorithm> = Vec::new();
    for point in points {
        chosen.extend(point.best(chosen.last().copied()));
    }
    chosen
}

/// Rules for up to `n` ranks: an algorithm holds up to the middle between its last length and the next.
fn rules_of(operation: Operation, n: usize, points: &[Point], chosen: &[Algorithm]) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for (at, (point, algorithm)) in points.iter().zip(chosen).enumerate() {
        let bytes_max = match points.get(at + 1) {
            Some(next) => between(point, next),
            None => u64::MAX,
        };
        match rules.last_mut() {
            Some(last) if last.algorithm == *algorithm => last.bytes_max = bytes_max,
            _ => rules.push(Rule { operation, ranks_max: n, bytes_max, algorithm: *algorithm }),
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(bytes: u64, times: [f64; 3]) -> Point {
        let names = ["doubling", "ring", "halving"].map(|name| name.parse().unwrap());
        Point { bytes, all: names.into_iter().zip(times).collect() }
    }

    #[test]
    fn rules_follow_the_quickest_and_change_only_for_a_gain() {
        let points = [
            point(8, [1.0, 0.99, 2.0]),
            point(128, [1.0, 0.98, 2.0]),
            point(1 << 10, [2.0, 1.0, 1.5]),
            point(8 << 10, [2.0, 1.0, 0.96]),
            point(64 << 10, [2.0, 1.0, 0.5]),
        ];
        let chosen = choices(&points);
        let rules = rules_of(Operation::Allreduce, 4, &points, &chosen);
        let text = coll::write(&rules);
        assert_eq!(
            text,
            "version = 1\n\nallreduce = [\n    \
             { ranks_max = 4, bytes_max = 256, algorithm = \"doubling\" },\n    \
             { ranks_max = 4, bytes_max = 16384, algorithm = \"ring\" },\n    \
             { ranks_max = 4, algorithm = \"halving\" },\n]\n"
        );
        assert_eq!(coll::parse(&text, Path::new("x")).unwrap(), rules);
        // Shared memory up to a length, whatever the others are.
        let shared = |at: usize, seconds: f64| {
            let mut point = points[at].clone();
            point.all.insert(0, (SHARED, seconds));
            point
        };
        let with = [shared(0, 0.5), shared(1, 1.02), shared(2, 2.0), points[3].clone()];
        let rule = shared_rule(Operation::Allreduce, 4, &with).unwrap();
        assert_eq!((rule.bytes_max, rule.algorithm), (256, SHARED));
        assert_eq!(choices(&with), choices(&points[..4]));
        let rule =
            |points: &[Point]| shared_rule(Operation::Scan, 4, points).map(|it| it.bytes_max);
        assert_eq!(rule(&[shared(0, 0.5), shared(1, 0.5)]), Some(u64::MAX));
        assert_eq!(rule(&[shared(0, 1.1), shared(1, 1.1)]), Some(0));
        assert_eq!(rule(&points), None);
        // One length that was disturbed does not decide for those behind it, nor one that is won by chance.
        let disturbed = [shared(0, 1.3), shared(1, 0.5), shared(2, 0.5), shared(3, 2.0)];
        assert_eq!(rule(&disturbed), Some(2048));
        let by_chance = [shared(0, 0.5), shared(1, 2.0), shared(2, 2.0), shared(3, 0.95)];
        assert_eq!(rule(&by_chance), Some(32));
        // A barrier has no bytes.
        let alone = [point(0, [1.0, 0.5, 1.0])];
        let rules = rules_of(Operation::Barrier, 2, &alone, &choices(&alone));
        assert_eq!((rules.len(), rules[0].bytes_max), (1, u64::MAX));
    }
}
