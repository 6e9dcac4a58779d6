//! What was measured, and why the rest was not.

use super::clock::{median, middle_half};
use super::link::Rounds;
use gapless::tuning::{KEYS, Key, Unit, Value, write_with};
use gapless_pml::Tuning;
use gapless_report::{Align, Table, Time};
use std::collections::BTreeMap;

/// Why nobody measures a number, unless something else is said.
const BY_CHOICE: &str = "a choice, not a cost";

/// The same of a cost: some have defaults that go with the model's formulas, and are no cost of one thing alone.
const KEPT: &str = "the default goes with the model's formulas";

/// How far the middle half of the rounds may lie apart, relative to what was timed: what varies more is written nowhere.
const APART_MAX: f64 = 0.5;

/// Two processes that have a processor each are quicker by far.
const BUSY_SECONDS: f64 = 20e-6;

/// A cost that is so many times the default, or a bandwidth that is so small a part of it, is a mistake; by table. GPUs
/// differ more than processors: the defaults are of two H200s and the link between them, and PCIe has a thirtieth of that.
const FAR: [(&str, f64); 2] = [("host", 10.0), ("device", 50.0)];

/// Numbers by name.
#[derive(Debug, Default)]
pub(super) struct TunedNumbers {
    values: BTreeMap<String, Result<f64, String>>,
    /// By how much the middle half of the rounds lies above or below, as a part of what was timed.
    spreads: BTreeMap<String, f64>,
    /// Seconds that a tiny message took one way.
    latency: Option<f64>,
}

impl TunedNumbers {
    /// A number was measured. It is brought into its bounds: a clock that stood still measures nothing.
    pub(super) fn set(&mut self, table: &str, name: &str, value: f64) {
        let key = known(table, name);
        let value = if value.is_nan() { key.least } else { value.clamp(key.least, key.most) };
        self.values.insert(key.path(), Ok(value));
    }

    /// The host's bandwidth of this name, in MB/s, is the median of so many rounds; `None` if they do not agree.
    pub(super) fn settle_rate(&mut self, name: &str, rounds: Rounds) -> Option<f64> {
        let timed = rounds.clone().ok().and_then(median).unwrap_or_default();
        self.settle(name, rounds, timed)
    }

    /// The host's time of this name, in ns, is what is left of longer times, all in seconds and round by round.
    pub(super) fn settle_rest(&mut self, name: &str, rest: Rounds, of: Rounds) -> Option<f64> {
        let ns = |rounds: Vec<f64>| rounds.into_iter().map(|seconds| seconds.max(0.0) * 1e9);
        let timed = of.ok().and_then(|rounds| median(ns(rounds).collect())).unwrap_or_default();
        self.settle(name, rest.map(|rounds| ns(rounds).collect()), timed)
    }

    fn settle(&mut self, name: &str, rounds: Rounds, timed: f64) -> Option<f64> {
        let key = known("host", name);
        let settled = rounds.and_then(|rounds| {
            let middle = median(rounds.clone()).zip(middle_half(rounds));
            let (value, [low, high]) = middle.ok_or("it was not tried")?;
            let apart = high - low;
            if apart > APART_MAX * timed {
                let [low, high] = [low, high].map(rounded);
                return Err(format!(
                    "{low} to {high} {}: this machine is not steady",
                    key.unit.name()
                ));
            }
            Ok((value, apart / timed.max(f64::MIN_POSITIVE) / 2.0))
        });
        match settled {
            Ok((value, spread)) => {
                self.set("host", name, value);
                self.spreads.insert(key.path(), spread);
                Some(value)
            }
            Err(why) => {
                self.miss("host", name, why);
                None
            }
        }
    }

    /// A tiny message took so many seconds one way: no number of the model, but it tells how busy the machine
    /// was.
    pub(super) fn latency(&mut self, seconds: f64) {
        self.latency = Some(seconds);
    }

    /// What cannot be right, if anything: a tiny message that took long, and costs that are far from the defaults, which
    /// were measured on usual machines.
    pub(super) fn doubts(&self) -> Vec<String> {
        let slow = self.latency.filter(|seconds| *seconds > BUSY_SECONDS);
        let slow = slow.map(|latency| {
            format!("a tiny message took {}: other work kept this machine busy", Time(latency))
        });
        let (mut default, mut here) = (Tuning::default(), self.tuning());
        let far = KEYS.iter().filter_map(|key| {
            let (_, far) = *FAR.iter().find(|(table, _)| key.table == *table)?;
            let value = *self.values.get(&key.path())?.as_ref().ok()?;
            let usual = match (key.value)(&mut default) {
                Value::Real(usual) => *usual,
                Value::Whole(_) | Value::Short(_) => return None,
            };
            let how = match (key.unit, value / usual) {
                (Unit::Ns | Unit::MbS, times) if times > far => format!("{times:.0} times"),
                // What is left of a longer time may come to nothing.
                (Unit::MbS, part) if part < 1.0 / far => format!("1/{:.0} of", 1.0 / part),
                _ => return None,
            };
            let [value, usual] = [&mut here, &mut default].map(|tuning| shown(key, tuning));
            let unit = key.unit.name();
            Some(format!("{} is {value} {unit}, {how} the default of {usual}", key.path()))
        });
        slow.into_iter().chain(far).collect()
    }

    /// A number could not be measured.
    pub(super) fn miss(&mut self, table: &str, name: &str, why: impl Into<String>) {
        self.values.insert(known(table, name).path(), Err(why.into()));
    }

    /// No number of a table could be measured, those excepted that were.
    pub(super) fn miss_table(&mut self, table: &str, why: &str) {
        for key in KEYS.iter().filter(|key| key.table == table && key.unit != Unit::Count) {
            self.values.entry(key.path()).or_insert_with(|| Err(why.to_owned()));
        }
    }

    /// The number, if it was measured.
    pub(super) fn get(&self, table: &str, name: &str) -> Option<f64> {
        self.values.get(&known(table, name).path())?.as_ref().ok().copied()
    }

    fn why_not(&self, key: &Key) -> Option<String> {
        match self.values.get(&key.path()) {
            Some(Ok(_)) => None,
            Some(Err(why)) => Some(why.clone()),
            None if matches!(key.unit, Unit::Ns | Unit::MbS) => Some(KEPT.to_owned()),
            None => Some(BY_CHOICE.to_owned()),
        }
    }

    /// The defaults, with what was measured in their place.
    pub(super) fn tuning(&self) -> Tuning {
        let mut tuning = Tuning::default();
        for key in KEYS {
            let Some(Ok(value)) = self.values.get(&key.path()) else { continue };
            match (key.value)(&mut tuning) {
                // More digits than were measured only look exact.
                Value::Real(slot) => *slot = rounded(*value).clamp(key.least, key.most),
                Value::Whole(slot) => *slot = whole(*value),
                Value::Short(slot) => *slot = u32::try_from(whole(*value)).unwrap_or(u32::MAX),
            }
        }
        tuning
    }

    /// The tuning file.
    pub(super) fn text(&self) -> String {
        write_with(&self.tuning(), |key| self.why_not(key))
    }

    /// For people, in at most so many columns: every number that is a cost, its default, and what was found.
    pub(super) fn table(&self, columns: Option<usize>) -> String {
        let mut table = Table::new([
            ("number", Align::Left),
            ("default", Align::Right),
            ("here", Align::Right),
            ("spread", Align::Right),
            ("", Align::Left),
        ])
        .expendable(["default", "spread"]);
        let (mut default, mut here) = (Tuning::default(), self.tuning());
        for key in KEYS {
            let why = self.why_not(key);
            if why.as_deref().is_some_and(|why| [BY_CHOICE, KEPT].contains(&why)) {
                continue;
            }
            let spread = self.spreads.get(&key.path());
            let spread =
                spread.map_or_else(String::new, |spread| format!("±{:.0}%", 100.0 * spread));
            let [default, here] = [&mut default, &mut here].map(|tuning| shown(key, tuning));
            let here = if why.is_some() { "-".to_owned() } else { here };
            let remark = why
                .map_or_else(|| key.unit.name().to_owned(), |why| format!("not measured: {why}"));
            table.push([key.path(), default, here, spread, remark]);
        }
        let latency = self.latency.map_or_else(String::new, |seconds| {
            format!("a tiny message one way: {}\n", Time(seconds))
        });
        format!("{latency}{}", table.within(columns))
    }
}

fn known(table: &str, name: &str) -> &'static Key {
    Key::find(table, name).expect("the tuner names keys that there are")
}

fn shown(key: &Key, tuning: &mut Tuning) -> String {
    match (key.value)(tuning) {
        Value::Real(value) => value.to_string(),
        Value::Whole(value) => value.to_string(),
        Value::Short(value) => value.to_string(),
    }
}

/// To three digits.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    format!("{value:.2e}").parse().unwrap_or(value)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "inside a key's bounds"
)]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless::tuning::parse;

    #[test]
    fn what_was_found_stands_in_the_file_and_the_rest_is_a_comment() {
        let mut found = TunedNumbers::default();
        found.set("host", "block_ns", 1.234_56);
        found.set("host", "fragment_bytes", 65_536.0);
        found.set("host", "mapped_mb_s", f64::NAN);
        found.miss("host", "single_copy_mb_s", "forbidden");
        let text = found.text();
        let read = parse(&text, "x".as_ref()).unwrap();
        assert_eq!(read, found.tuning(), "{text}");
        assert_eq!(read.block_ns, 1.23);
        assert_eq!(read.fragment_bytes, 65_536);
        assert_eq!(read.mapped_mb_s, 1.0);
        let commented = text.lines().find(|line| line.contains("single_copy_mb_s")).unwrap();
        assert!(commented.starts_with('#') && commented.contains("forbidden"), "{commented}");
        assert!(found.table(None).contains("not measured: forbidden"));
    }

    #[test]
    fn rounds_that_do_not_agree_are_written_nowhere() {
        let mut found = TunedNumbers::default();
        let steady = vec![10_000.0, 11_000.0, 9_000.0, 99_000.0, 10_500.0, 100.0, 9_500.0];
        assert_eq!(found.settle_rate("pipeline_mb_s", Ok(steady)), Some(10_000.0));
        // Half of the time each.
        let two_states = vec![3_500.0, 12_400.0, 3_600.0, 12_300.0, 3_400.0, 12_500.0, 12_400.0];
        assert_eq!(found.settle_rate("mapped_mb_s", Ok(two_states)), None);
        assert_eq!(found.settle_rate("single_copy_mb_s", Err("forbidden".to_owned())), None);
        // What is left of 3 µs may vary more than itself: little of what was timed.
        let rest = vec![100e-9, -50e-9, 400e-9, 200e-9, 0.0];
        assert_eq!(found.settle_rest("map_ns", Ok(rest), Ok(vec![3e-6; 5])), Some(100.0));
        let text = found.text();
        let read = parse(&text, "x".as_ref()).unwrap();
        assert_eq!(read.mapped_mb_s, Tuning::default().mapped_mb_s);
        assert_eq!((read.pipeline_mb_s, read.map_ns), (10_000.0, 100.0));
        let table = found.table(None);
        assert!(table.contains("±10%") && table.contains("3500 to 12400 MB/s"), "{table}");
    }

    #[test]
    fn what_cannot_be_right_is_named() {
        let mut found = TunedNumbers::default();
        let usual = Tuning::default();
        found.set("host", "rendezvous_ns", usual.rendezvous_ns * 5.0);
        found.set("host", "map_ns", 0.0);
        found.set("host", "pipeline_mb_s", usual.pipeline_mb_s / 5.0);
        found.set("host", "fragment_bytes", 256.0);
        // A small GPU behind PCIe.
        found.set("device", "peer_copy_mb_s", usual.peer_copy_mb_s / 33.0);
        found.set("device", "launch_ns", usual.launch_ns * 20.0);
        found.latency(2e-6);
        assert_eq!(found.doubts(), Vec::<String>::new());
        found.set("host", "rendezvous_ns", usual.rendezvous_ns * 74.0);
        found.set("host", "pipeline_mb_s", usual.pipeline_mb_s / 20.0);
        found.set("device", "launch_ns", usual.launch_ns * 60.0);
        found.latency(40e-6);
        let [slow, rendezvous, pipeline, launch] = &found.doubts()[..] else {
            panic!("{:?}", found.doubts())
        };
        assert!(slow.starts_with("a tiny message took 40.0 µs"), "{slow}");
        let end = format!(" ns, 74 times the default of {}", usual.rendezvous_ns);
        assert!(
            rendezvous.starts_with("host.rendezvous_ns is ") && rendezvous.ends_with(&end),
            "{rendezvous}"
        );
        assert!(pipeline.contains("MB/s, 1/20 of the default of "), "{pipeline}");
        assert!(launch.starts_with("device.launch_ns is "), "{launch}");
    }

    #[test]
    fn three_digits_are_kept() {
        assert_eq!(rounded(25_349.7), 25_300.0);
        assert_eq!(rounded(0.012_349), 0.0123);
        assert_eq!(rounded(0.0), 0.0);
        assert_eq!(rounded(f64::INFINITY), 0.0);
    }
}
