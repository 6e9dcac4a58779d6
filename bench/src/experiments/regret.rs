//! `regret`: how much longer messages take as the cost model chooses than by the best protocol that could have
//! carried them, layout by layout, between buffers in host memory, in GPUs, and one of each.
//!
//! Every message goes by choice, then by each protocol in turn, then by choice again; of the two by choice the faster
//! counts. A forced protocol that cannot carry a message leaves it to the cost model: that row is one of a choice
//! then, and does no harm. *Regret* is the time by choice over the shortest time.

use std::collections::BTreeMap;

use gapless::Protocol;
use gapless_cli::pingpong::Ends;
use gapless_report::{Mark, PlotError, Point, Report, Row, Series, lines};
use serde_json::json;

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, grouped};
use crate::p2p::item::{MessageItem, Shape, Sites, Size, catalogue};
use crate::p2p::job::{self, Between, Options, Pair};
use crate::processes::RankOf;

/// The experiment.
pub struct Regret;

/// What is asked: a regret of this at most, as far as the spread lets it be seen.
const AT_MOST: f64 = 1.1;
/// What the mark is called.
const SEEN: &str = "regret beyond the spread";
/// What the shortest time is called where a row is held against it.
const BEST: &str = "best protocol";
/// The kernel takes about 350 ns for each block, so that a message of a million lasts a third of a second: nothing
/// would choose it.
const SINGLE_COPY_BLOCKS_MAX: u64 = 1 << 16;
/// Payloads of shapes that come in every size.
const PAYLOADS: [u64; 5] = [8, 1 << 10, 16 << 10, 256 << 10, 4 << 20];

impl Experiment for Regret {
    type Options = Options;

    const NAME: &'static str = "regret";
    const ABOUT: &'static str = "what the cost model's choice costs, beside the best protocol";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        let sites = match options.space {
            Some(ends) => Sites::of(ends),
            None => job::sites(options).unwrap_or(Sites::of(Ends::HOST)),
        };
        let notes = "time: median of half a round trip between two processes as the cost model chooses, rotating \
                     buffers; ÷ best protocol: the same by the best of all\nprotocols, each forced in turn. The \
                     mark takes the first quartile of the time by choice over the third of the best: less than \
                     the spread is not seen\n";
        let findings = job::run_between(&Between::Processes, sites, Self::NAME, (options, common), plan, "")?;
        let rows = regrets(findings.rows);
        let mut notes = notes.to_owned();
        notes.extend(summary(&rows));
        Ok(Findings { rows, notes, absent: findings.absent })
    }

    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        job::rank(options, common, rank, plan)
    }

    /// By payload, a line a place.
    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let mut places: BTreeMap<&str, Vec<Point>> = BTreeMap::new();
        for row in &report.rows {
            let point = Point { payload_bytes: row.payload_bytes, gbps: row.gbps, spread: None };
            places.entry(pair(row)).or_default().push(point);
        }
        let series: Vec<Series> = places
            .into_iter()
            .map(|(name, mut points)| {
                points.sort_by_key(|point| point.payload_bytes);
                Series { name: name.to_owned(), points }
            })
            .collect();
        let title = format!("as the cost model chooses ({})", report.machine.cpu);
        Drawing::alone(lines(&title, &series))
    }
}

/// The pair of processes that a row is of.
fn pair(row: &Row) -> &str {
    row.extra.get("pair").and_then(|pair| pair.as_str()).unwrap_or_default()
}

fn plan(options: &Options, sites: &Sites) -> Vec<Pair> {
    let brief = options.brief;
    let mut pairs = vec![
        Pair::new("alloc", items(brief, Ends::HOST)),
        Pair::new("heap", items(brief, Ends::HOST).into_iter().map(MessageItem::on_heap).collect()),
    ];
    if sites.two.involve_device() {
        pairs.push(Pair::new("link", items(brief, sites.two)));
        pairs.push(Pair::new("bus", items(brief, sites.bus())));
        pairs.push(Pair::new("bus-heap", items(brief, sites.bus()).into_iter().map(MessageItem::on_heap).collect()));
    }
    if sites.are_two() {
        pairs.push(Pair::new("one", items(brief, sites.one)));
    }
    pairs
}

/// Every message by choice, by each protocol, and by choice again.
fn items(brief: bool, ends: Ends) -> Vec<MessageItem> {
    let device = ends.involve_device();
    let mut items = Vec::new();
    for (shape, size) in subjects(brief) {
        let chosen = MessageItem::new(shape, size, ends);
        items.push(chosen);
        for protocol in Protocol::ALL {
            let never = match protocol {
                Protocol::Local | Protocol::StagedRead => true,
                Protocol::SingleCopy => device || blocks(&chosen) > SINGLE_COPY_BLOCKS_MAX,
                _ => !device && protocol.is_staged(),
            };
            if !never {
                items.push(chosen.by(protocol));
            }
        }
        items.push(chosen);
    }
    items
}

/// Blocks of a message; many, if that is not known.
fn blocks(item: &MessageItem) -> u64 {
    let case = item.shape.case(item.size);
    case.ok().and_then(|case| case.expected_send_blocks).unwrap_or(u64::MAX)
}

/// What is sent.
fn subjects(brief: bool) -> Vec<(Shape, Size)> {
    if brief {
        return vec![(Shape::Contiguous, Size::Bytes(8)), (Shape::V, Size::Bytes(16 << 10))];
    }
    let mut all: Vec<_> =
        (0..catalogue().len()).map(|at| (Shape::Catalogued(at), Size::Own)).collect();
    for bytes in PAYLOADS {
        all.push((Shape::Contiguous, Size::Bytes(bytes)));
        if bytes >= 1 << 10 {
            let shapes = [Shape::V, Shape::T, Shape::X, Shape::List, Shape::Shuffled];
            all.extend(shapes.map(|shape| (shape, Size::Bytes(bytes))));
        }
    }
    all.push((Shape::Named("stair"), Size::Edge(2048)));
    all
}

/// One row for each message and place: the faster by choice, with what every protocol took.
fn regrets(rows: Vec<Row>) -> Vec<Row> {
    let messages = rows.into_iter().map(|row| ((pair(&row).to_owned(), row.case.clone()), row));
    grouped(messages).into_iter().filter_map(|(_, rows)| regret(rows)).collect()
}

/// The row of one message, of all that were measured of it.
fn regret(rows: Vec<Row>) -> Option<Row> {
    let shorter = |one: &&Row, other: &&Row| one.seconds.median.total_cmp(&other.seconds.median);
    let best = rows.iter().min_by(shorter)?;
    let chosen = rows.iter().filter(|row| row.op == "oneway").min_by(shorter)?;
    let mut micros = BTreeMap::new();
    for row in &rows {
        let asked = row.op.strip_prefix("oneway, ").unwrap_or("choice");
        // A protocol that was forced and did not carry it says nothing.
        if asked == "choice" || row.protocol.split('+').all(|carried| carried == asked) {
            let time = micros.entry(asked.to_owned()).or_insert(f64::INFINITY);
            *time = time.min((row.seconds.median * 1e8).round() / 100.0);
        }
    }
    let quartile = |of: Option<f64>, median: f64| of.unwrap_or(median);
    let first = quartile(chosen.seconds.q1, chosen.seconds.median);
    let third = quartile(best.seconds.q3, best.seconds.median);
    let mut row = chosen.clone();
    row.op = format!("oneway, {}", pair(chosen));
    (row.reference, row.ratio, row.reference_seconds) = (None, None, None);
    row.others.clear();
    let row = row
        .against(BEST, best.seconds)
        .with("best", best.protocol.clone())
        .with("micros", json!(micros))
        .mark(Mark::at_most(SEEN, AT_MOST, (first / third).max(1.0)));
    Some(row)
}

/// How many marks are met at each place, and what was missed most.
fn summary(rows: &[Row]) -> Vec<String> {
    let mut places: Vec<&str> = rows.iter().map(pair).collect();
    places.dedup();
    let mut lines = Vec::new();
    for place in places {
        let mut here: Vec<(f64, &Row)> = rows
            .iter()
            .filter(|row| pair(row) == place)
            .map(|row| (1.0 / row.ratio_to(BEST).unwrap_or(1.0), row))
            .collect();
        here.sort_by(|one, other| other.0.total_cmp(&one.0));
        let met = here.iter().filter(|(_, row)| row.met() == Some(true)).count();
        let plainly = here.iter().filter(|(regret, _)| *regret <= AT_MOST).count();
        lines.push(format!(
            "{place}: {met} of {} within {AT_MOST} less the spread, {plainly} by the medians\n",
            here.len()
        ));
        for (regret, row) in here.iter().filter(|(_, row)| row.met() == Some(false)).take(12) {
            let best = row.extra.get("best").and_then(|best| best.as_str()).unwrap_or_default();
            lines.push(format!("- {regret:.2} {}: {}, best {best}\n", row.case, row.protocol));
        }
    }
    lines
}

#[cfg(test)]
mod choices;

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_report::Samples;

    fn row(op: &str, protocol: &str, micros: [f64; 3]) -> Row {
        let time = Samples::from_seconds(micros.map(|time| time * 1e-6)).summary().unwrap();
        Row::new("V n=8", op, "host", protocol, 512, time).with("pair", "alloc")
    }

    #[test]
    fn the_best_of_all_is_what_a_choice_is_held_against() {
        let rows = vec![
            row("oneway", "eager", [3.0, 3.0, 3.0]),
            row("oneway, eager", "eager", [2.9, 2.9, 2.9]),
            row("oneway, mapped", "mapped", [2.0, 2.0, 2.0]),
            row("oneway, mapped-put", "eager", [1.9, 1.9, 1.9]),
            row("oneway", "eager", [2.5, 2.5, 2.5]),
        ];
        let rows = regrets(rows);
        let [one] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(one.protocol, "eager");
        assert!((one.ratio_to(BEST).unwrap() - 1.9 / 2.5).abs() < 1e-9);
        assert_eq!(one.met(), Some(false));
        assert_eq!(one.extra["micros"], json!({"choice": 2.5, "eager": 2.9, "mapped": 2.0}));
        assert!(summary(&rows)[1].starts_with("- 1.32 V n=8: eager"), "{:?}", summary(&rows));
    }

    #[test]
    fn what_the_spread_hides_is_not_regretted() {
        let rows = vec![
            row("oneway", "eager", [1.0, 1.5, 2.0]),
            row("oneway, mapped", "mapped", [0.9, 1.0, 1.5]),
        ];
        assert_eq!(regrets(rows)[0].met(), Some(true));
    }

    #[test]
    fn every_place_has_every_message_twice_by_choice() {
        let sites = Sites::of("cuda:0,cuda:1".parse().unwrap());
        for pair in items(false, sites.two).chunk_by(|a, b| {
            (a.shape, a.size) == (b.shape, b.size)
        }) {
            let chosen = pair.iter().filter(|item| item.setting.force.is_none()).count();
            assert_eq!(chosen, 2, "{pair:?}");
            assert!(pair.len() > 6);
        }
    }
}
