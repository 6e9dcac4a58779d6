//! Pieces of work, their marks, and what was measured of them.

use serde_json::{Value, json};

/// Medians of one round of one library, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Times {
    pub(super) work: f64,
    pub(super) memcpy: f64,
}

impl Times {
    /// As the programs write them.
    pub(super) fn read(line: &str) -> Option<Times> {
        let (work, memcpy) = line.split_once(' ')?;
        let seconds = |text: &str| text.trim().parse().ok().filter(|s: &f64| *s > 0.0);
        Some(Times { work: seconds(work)?, memcpy: seconds(memcpy)? })
    }
}

/// A ratio over several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    pub(super) median: f64,
    /// Half the distance between the quartiles, relative to the median.
    pub(super) spread: f64,
}

impl Ratio {
    fn of(ratios: impl Iterator<Item = f64>) -> Ratio {
        let mut sorted: Vec<f64> = ratios.collect();
        sorted.sort_by(f64::total_cmp);
        let at = |quarter: usize| {
            sorted.get((sorted.len().max(1) - 1) * quarter / 4).copied().unwrap_or(f64::NAN)
        };
        Ratio { median: at(2), spread: (at(3) - at(1)) / 2.0 / at(2) }
    }
}

/// What was measured of a piece of work: ours over others, in speed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ratios {
    /// Our median time, in seconds.
    seconds: f64,
    memcpy: Ratio,
    openmpi: Ratio,
    mpich: Ratio,
}

impl Ratios {
    /// Of some rounds, each with ours, Open MPI's and MPICH's times.
    pub(super) fn of(rounds: &[Vec<Times>]) -> Ratios {
        let over = |who: usize| Ratio::of(rounds.iter().map(|r| r[who].work / r[0].work));
        Ratios {
            seconds: Ratio::of(rounds.iter().map(|r| r[0].work)).median,
            memcpy: Ratio::of(rounds.iter().map(|r| r[0].memcpy / r[0].work)),
            openmpi: over(1),
            mpich: over(2),
        }
    }

    /// Over the better of the two peers.
    fn best(&self) -> Ratio {
        if self.openmpi.median < self.mpich.median { self.openmpi } else { self.mpich }
    }
}

/// What is asked of the ratios.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mark {
    /// Not behind the best peer, and a fifth ahead or as fast as `memcpy`.
    Pack,
    /// So many times as fast as the best peer.
    Best(f64),
    /// At most three times as long as copying the list.
    Commit,
    /// 0.85 of `memcpy`, and a fifth ahead of both peers.
    Contiguous,
    /// Half as fast again as the best peer, or 0.9 of `memcpy`.
    Message,
}

impl Mark {
    fn met(self, ratios: &Ratios) -> bool {
        let (best, memcpy) = (ratios.best().median, ratios.memcpy.median);
        match self {
            Mark::Pack => best >= 1.0 && (best >= 1.2 || memcpy >= 0.98),
            Mark::Best(times) => best >= times,
            Mark::Commit => memcpy >= 1.0 / 3.0,
            Mark::Contiguous => memcpy >= 0.85 && best >= 1.2,
            Mark::Message => best >= 1.5 || memcpy >= 0.9,
        }
    }

    fn text(self) -> String {
        match self {
            Mark::Pack => ">= 1 x best, and >= 1.2 x or >= 0.98 memcpy".to_owned(),
            Mark::Best(times) => format!(">= {times:.2} x best"),
            Mark::Commit => "<= 3 x copying the list".to_owned(),
            Mark::Contiguous => ">= 0.85 memcpy and >= 1.2 x both".to_owned(),
            Mark::Message => ">= 1.5 x best or >= 0.9 memcpy".to_owned(),
        }
    }
}

/// A piece of work.
#[derive(Clone, Debug)]
pub(super) struct Work {
    verb: &'static str,
    what: String,
    pub(super) mark: Option<Mark>,
}

impl Work {
    fn new(verb: &'static str, what: String, mark: Option<Mark>) -> Work {
        Work { verb, what, mark }
    }

    /// What Gapless is told.
    pub(super) fn command(&self) -> String {
        format!("{} {}", self.verb, self.what)
    }

    /// What peers are told: all their memory is ordinary.
    pub(super) fn peers_command(&self) -> String {
        self.command().replacen("message-alloc", "message", 1)
    }

    /// Whether the mark is met, if there is one.
    pub(super) fn met(&self, ratios: &Ratios) -> Option<bool> {
        self.mark.map(|mark| mark.met(ratios))
    }

    /// A line of the table.
    pub(super) fn line(&self, ratios: &Ratios) -> String {
        let verdict = match self.met(ratios) {
            Some(true) => "met   ",
            Some(false) => "MISSED",
            None => "      ",
        };
        let part = |ratio: Ratio| format!("{:6.2} ±{:<3.0}%", ratio.median, 100.0 * ratio.spread);
        format!(
            "{:32} {:9.2} µs  memcpy {}  Open MPI {}  MPICH {}  {verdict} {}",
            self.command(),
            1e6 * ratios.seconds,
            part(ratios.memcpy),
            part(ratios.openmpi),
            part(ratios.mpich),
            self.mark.map_or_else(String::new, Mark::text),
        )
    }

    pub(super) fn json(&self, ratios: &Ratios) -> Value {
        let part = |ratio: Ratio| json!({ "median": ratio.median, "spread": ratio.spread });
        json!({
            "work": self.command(),
            "seconds": ratios.seconds,
            "over_memcpy": part(ratios.memcpy),
            "over_openmpi": part(ratios.openmpi),
            "over_mpich": part(ratios.mpich),
            "mark": self.mark.map(Mark::text),
            "met": self.met(ratios),
        })
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Everything that one process does, or that two do.
pub(super) fn list(ranks: usize, quick: bool) -> Vec<Work> {
    let sizes: &[u64] = if quick { &[64 * KIB] } else { &[64 * KIB, MIB, 8 * MIB, 64 * MIB] };
    let mut list = Vec::new();
    if ranks == 1 {
        let both = ["pack", "unpack"];
        let mut add = |layout: &str, bytes: u64, mark: Option<Mark>| {
            list.extend(both.map(|verb| Work::new(verb, format!("{layout} {bytes}"), mark)));
        };
        for layout in ["V", "T", "yface", "struct"] {
            sizes.iter().for_each(|bytes| add(layout, *bytes, Some(Mark::Pack)));
        }
        for &bytes in sizes {
            add("X", bytes, (bytes >= 8 * MIB).then_some(Mark::Best(3.0)));
        }
        for layout in ["list1", "list3", "list3s", "block1", "block3", "block3s"] {
            for &bytes in sizes.iter().filter(|bytes| quick || **bytes >= 8 * MIB) {
                let marked = bytes == 8 * MIB && matches!(layout, "list1" | "list3");
                add(layout, bytes, marked.then_some(Mark::Best(2.0)));
            }
        }
        if !quick {
            add("xface", 2 * MIB, None);
            add("xface", 8 * MIB, Some(Mark::Best(2.0)));
        }
        let blocks = if quick { 1000 } else { 1_000_000 };
        list.push(Work::new("commit", format!("{blocks}"), Some(Mark::Commit)));
        list.push(Work::new("create", format!("{blocks}"), None));
        return list;
    }
    for bytes in [1, KIB] {
        let mark = Some(Mark::Best(1.0 / 0.9));
        list.push(Work::new("message", format!("contiguous {bytes}"), mark));
    }
    list.push(Work::new("rate", "8 64".to_owned(), Some(Mark::Best(1.5))));
    for verb in ["message", "message-alloc"] {
        let allocated = verb == "message-alloc";
        for bytes in sizes {
            let mark = allocated.then_some(Mark::Contiguous);
            list.push(Work::new(verb, format!("contiguous {bytes}"), mark));
        }
        for layout in ["V", "T", "X", "list1", "list3"] {
            for bytes in sizes.iter().filter(|bytes| quick || **bytes >= MIB) {
                let mark = if allocated { Mark::Message } else { Mark::Best(1.0) };
                list.push(Work::new(verb, format!("{layout} {bytes}"), Some(mark)));
            }
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(ours: f64, openmpi: f64, mpich: f64) -> Vec<Vec<Times>> {
        let round = |slow: f64| {
            [ours, openmpi, mpich].map(|work| Times { work: work * slow, memcpy: slow }).to_vec()
        };
        vec![round(1.0), round(3.0), round(2.0)]
    }

    #[test]
    fn ratios_hold_however_the_rounds_differ() {
        let ratios = Ratios::of(&rounds(0.5, 1.0, 2.0));
        assert_eq!((ratios.memcpy.median, ratios.memcpy.spread), (2.0, 0.0));
        assert_eq!((ratios.openmpi.median, ratios.mpich.median), (2.0, 4.0));
        assert_eq!((ratios.best().median, ratios.seconds), (2.0, 1.0));
    }

    #[test]
    fn marks_are_what_they_say() {
        let of = |ours, openmpi, mpich| Ratios::of(&rounds(ours, openmpi, mpich));
        assert!(Mark::Pack.met(&of(1.0, 1.0, 9.0)) && !Mark::Pack.met(&of(1.1, 1.2, 1.3)));
        assert!(Mark::Pack.met(&of(2.0, 2.5, 2.5)) && !Mark::Pack.met(&of(0.9, 0.8, 2.0)));
        assert!(
            Mark::Best(3.0).met(&of(1.0, 3.0, 4.0)) && !Mark::Best(3.0).met(&of(1.0, 2.9, 4.0))
        );
        assert!(Mark::Commit.met(&of(2.9, 1.0, 1.0)) && !Mark::Commit.met(&of(3.1, 9.0, 9.0)));
        assert!(Mark::Contiguous.met(&of(1.0, 1.2, 1.2)));
        assert!(!Mark::Contiguous.met(&of(1.2, 2.0, 2.0)));
        assert!(Mark::Message.met(&of(1.0, 0.5, 0.5)) && !Mark::Message.met(&of(2.0, 2.0, 3.0)));
    }

    #[test]
    fn answers_are_read_or_refused() {
        assert_eq!(Times::read("1e-6 2.5e-6\n"), Some(Times { work: 1e-6, memcpy: 2.5e-6 }));
        for wrong in ["", "1", "a b", "0 1", "1 nan", "-1 2"] {
            assert_eq!(Times::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn peers_are_told_of_ordinary_memory() {
        for ranks in [1, 2] {
            for work in list(ranks, false) {
                assert!(!work.peers_command().contains("alloc"), "{}", work.peers_command());
            }
        }
    }
}
