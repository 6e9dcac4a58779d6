//! What is simulated, and how: the program's command line.

use crate::compute::DeviceKind;
use crate::population::{Population, Synthetic};
use std::fmt;
use std::str::FromStr;

/// How visits get from the ranks that compute them into one contiguous buffer in memory of the device: Figure 5 of the
/// paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// 5a: fragments are received into page-locked memory of the host, packed there, and copied to the device.
    Basic,
    /// 5b: fragments are received into page-locked memory of the host, and each is copied to its place on the device
    /// while others come.
    Advanced,
    /// 5c: fragments are received into memory of the device by Gapless, and packed there.
    Direct,
}

impl Scheme {
    /// All there are.
    pub const ALL: [Scheme; 3] = [Scheme::Basic, Scheme::Advanced, Scheme::Direct];
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Scheme::Basic => "5a",
            Scheme::Advanced => "5b",
            Scheme::Direct => "5c",
        })
    }
}

impl FromStr for Scheme {
    type Err = String;

    fn from_str(text: &str) -> Result<Scheme, String> {
        let known = Scheme::ALL.into_iter().find(|scheme| scheme.to_string() == text);
        known.ok_or_else(|| format!("{text:?}, not 5a, 5b or 5c"))
    }
}

impl FromStr for DeviceKind {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceKind, String> {
        match text {
            "host" => Ok(DeviceKind::Host),
            "cuda" => Ok(DeviceKind::Cuda),
            "opencl" => Ok(DeviceKind::OpenCl),
            _ => Err(format!("{text:?}, not host, cuda or opencl")),
        }
    }
}

/// What is simulated, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Of whom.
    pub population: Population,
    /// How visits are moved.
    pub scheme: Scheme,
    /// Where interactions are computed.
    pub device: DeviceKind,
    /// Whether visits are computed there, too, and not on the CPU.
    pub visits_there: bool,
    /// Whether the curve is compared with what one process computes.
    pub check: bool,
    /// The file that the curve is drawn into.
    pub svg: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            population: Population { synthetic: Synthetic::DELAWARE, seed: 1 },
            scheme: Scheme::Direct,
            device: DeviceKind::Host,
            visits_there: false,
            check: false,
            svg: None,
        }
    }
}

impl Options {
    /// How the program is called.
    pub const USAGE: &str = "usage: episim [--device host|cuda|opencl] [--move 5a|5b|5c] [--visits cpu|device] \
        [--synthetic PERSONS,LOCATIONS,VISITS,HOUSEHOLD,TAIL,TRANSMISSIBILITY,INFECTED,DAYS] [--days N] [--seed N] \
        [--check] [--svg FILE]";

    /// Reads a command line.
    ///
    /// # Errors
    /// Which argument is wrong, and how.
    pub fn parse<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<Options, String> {
        let (mut options, mut days) = (Options::default(), None);
        let mut arguments = arguments.into_iter();
        while let Some(name) = arguments.next() {
            if name == "--check" {
                options.check = true;
                continue;
            }
            let known =
                ["--device", "--move", "--visits", "--synthetic", "--days", "--seed", "--svg"];
            if !known.contains(&name) {
                return Err(format!("there is no argument {name:?}; {}", Options::USAGE));
            }
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            options.set(name, value).map_err(|why| format!("{name}: {why}"))?;
            if name == "--days" {
                days = Some(options.population.synthetic.days);
            }
        }
        // They stand for those of `--synthetic`, whichever comes first.
        if let Some(days) = days {
            options.population.synthetic.days = days;
        }
        options.population.synthetic.check().map_err(|why| format!("--days: {why}"))?;
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = |what: &str| format!("{value:?}, not {what}");
        match name {
            "--device" => self.device = value.parse()?,
            "--move" => self.scheme = value.parse()?,
            "--visits" => {
                self.visits_there = match value {
                    "cpu" => false,
                    "device" => true,
                    _ => return Err(number("cpu or device")),
                }
            }
            "--synthetic" => self.population.synthetic = Synthetic::parse(value)?,
            "--days" => {
                let days = value.parse().map_err(|_| number("a number of days"))?;
                self.population.synthetic.days = days;
            }
            "--seed" => {
                self.population.seed = value.parse().map_err(|_| number("a number below 2^64"))?;
            }
            _ => self.svg = Some(value.to_owned()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_read() {
        let words = "--device opencl --move 5b --visits device --seed 9 --days 3 --check --svg a";
        let options = Options::parse(words.split(' ')).unwrap();
        assert_eq!((options.device, options.scheme), (DeviceKind::OpenCl, Scheme::Advanced));
        assert!(options.visits_there && options.check && options.svg.as_deref() == Some("a"));
        assert_eq!((options.population.seed, options.population.synthetic.days), (9, 3));
        assert_eq!(Options::parse([]), Ok(Options::default()));
    }

    #[test]
    fn days_stand_for_those_of_the_population_in_any_order() {
        let synthetic = "9,30,40,2,3,1500,1,55";
        for words in [
            format!("--days 3 --synthetic {synthetic}"),
            format!("--synthetic {synthetic} --days 3"),
            format!("--days 4 --synthetic {synthetic} --days 3"),
        ] {
            let options = Options::parse(words.split(' ')).unwrap();
            let Synthetic { persons, days, .. } = options.population.synthetic;
            assert_eq!((persons, days), (9, 3), "{words}");
        }
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (words, said) in [
            ("--nonsense", "there is no argument \"--nonsense\"; usage: episim"),
            ("--seed", "--seed needs a value"),
            ("--seed -1", "--seed: \"-1\", not a number below 2^64"),
            ("--device gpu", "--device: \"gpu\", not host, cuda or opencl"),
            ("--move 5d", "--move: \"5d\", not 5a, 5b or 5c"),
            ("--visits gpu", "--visits: \"gpu\", not cpu or device"),
            ("--days 0", "--days: days is 0, not from 1 to 10000"),
            ("--days many", "--days: \"many\", not a number of days"),
            ("--synthetic 9,3", "--synthetic: 2 numbers in \"9,3\", not the eight persons,"),
            ("--synthetic 9,3,9,1,1,1,1,1", "--synthetic: locations is 3, not from 10 to"),
        ] {
            let error = Options::parse(words.split(' ')).unwrap_err();
            assert!(error.starts_with(said), "{error}");
        }
    }
}
