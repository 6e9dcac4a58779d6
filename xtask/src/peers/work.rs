//! Pieces of work, their marks, and what was measured of them.

use serde::{Deserialize, Serialize};

/// Medians of one round of one library, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Times {
    pub(super) work: f64,
    pub(super) memcpy: f64,
    /// Cache lines that the layout touches; 0 from programs that do not say.
    pub(super) lines: u64,
}

impl Times {
    /// As the programs write them.
    pub(super) fn read(line: &str) -> Option<Times> {
        let mut words = line.split_whitespace();
        let mut seconds = || words.next()?.parse().ok().filter(|s: &f64| *s > 0.0);
        let (work, memcpy) = (seconds()?, seconds()?);
        let lines = words.next().map_or(Some(0), |text| text.parse().ok())?;
        Some(Times { work, memcpy, lines })
    }
}

/// A ratio over several rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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
        // Of two rounds, or four, neither of the middle ones is worth more than the other.
        let upper = sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN);
        let median = f64::midpoint(at(2), upper);
        Ratio { median, spread: (at(3) - at(1)) / 2.0 / median }
    }
}

/// What was measured of a piece of work: ours over others, in speed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Ratios {
    /// Our median time, in seconds.
    pub(super) seconds: f64,
    #[serde(rename = "over_memcpy")]
    pub(super) memcpy: Ratio,
    #[serde(rename = "over_openmpi")]
    pub(super) openmpi: Ratio,
    #[serde(rename = "over_mpich")]
    pub(super) mpich: Ratio,
    /// Cache lines that the layout touches.
    pub(super) lines: u64,
}

impl Ratios {
    /// Of some rounds, each with ours, Open MPI's and MPICH's times. All three time the same `memcpy`; which pages
    /// a process was given makes up to a factor of two, so a round counts the middle one.
    pub(super) fn of(rounds: &[Vec<Times>]) -> Ratios {
        let over = |who: usize| Ratio::of(rounds.iter().map(|r| r[who].work / r[0].work));
        let copied = |round: &[Times]| Ratio::of(round.iter().map(|times| times.memcpy)).median;
        Ratios {
            seconds: Ratio::of(rounds.iter().map(|r| r[0].work)).median,
            memcpy: Ratio::of(rounds.iter().map(|r| copied(r) / r[0].work)),
            openmpi: over(1),
            mpich: over(2),
            lines: rounds.iter().flatten().map(|times| times.lines).max().unwrap_or(0),
        }
    }

    /// The same of work in which each library copies a list of its own (MPI's displacements are ints): only
    /// our `memcpy` counts.
    pub(super) fn of_own_lists(rounds: &[Vec<Times>]) -> Ratios {
        let memcpy = Ratio::of(rounds.iter().map(|r| r[0].memcpy / r[0].work));
        Ratios { memcpy, ..Ratios::of(rounds) }
    }

    /// Over the better of the two peers.
    fn best(&self) -> Ratio {
        if self.openmpi.median < self.mpich.median { self.openmpi } else { self.mpich }
    }
}

/// What is asked of the ratios.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PeerMark {
    /// No slower than the best peer; and a fifth faster, or as fast as `memcpy`.
    Pack,
    /// So many times as fast as the best peer.
    Best(f64),
    /// At most three times as long as copying the list.
    Commit,
    /// 0.85 of `memcpy`, and a fifth faster than both peers.
    Contiguous,
    /// Half as fast again as the best peer, or 0.9 of `memcpy`.
    Message,
}

impl PeerMark {
    /// Whether so much over the best peer and over `memcpy` is enough.
    fn met(self, best: f64, memcpy: f64) -> bool {
        match self {
            PeerMark::Pack => best >= 1.0 && (best >= 1.2 || memcpy >= 0.98),
            PeerMark::Best(times) => best >= times,
            PeerMark::Commit => memcpy >= 1.0 / 3.0,
            PeerMark::Contiguous => memcpy >= 0.85 && best >= 1.2,
            PeerMark::Message => best >= 1.5 || memcpy >= 0.9,
        }
    }

    fn text(self) -> String {
        match self {
            PeerMark::Pack => ">= 1 x best, and >= 1.2 x or >= 0.98 memcpy".to_owned(),
            PeerMark::Best(times) => format!(">= {times:.2} x best"),
            PeerMark::Commit => "<= 3 x copying the list".to_owned(),
            PeerMark::Contiguous => ">= 0.85 memcpy and >= 1.2 x both".to_owned(),
            PeerMark::Message => ">= 1.5 x best or >= 0.9 memcpy".to_owned(),
        }
    }
}

/// What memory allows where runs are shorter than cache lines: lines are moved whole.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Floor {
    /// Payload, in bytes.
    pub(super) payload: u64,
    /// Cache lines that it lies in, on the side with gaps.
    pub(super) lines: u64,
    /// The most that any library could reach, over `memcpy` of the payload, which moves as much as lies in a line.
    pub(super) over_memcpy: f64,
    /// The same over the best peer, as it was measured here.
    pub(super) over_best: f64,
}

/// A piece of work and what was measured of it, as in the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) work: String,
    #[serde(flatten)]
    pub(super) ratios: Ratios,
    /// Where runs are short.
    pub(super) floor: Option<Floor>,
    pub(super) mark: Option<String>,
    pub(super) met: Option<bool>,
    /// That the mark is missed and that `floor` is below it, by which nobody could meet it.
    pub(super) beyond_floor: bool,
}

impl Row {
    pub(super) fn new(work: &PeerWork, ratios: Ratios) -> Row {
        let (best, memcpy) = (ratios.best().median, ratios.memcpy.median);
        let floor = work.floor(&ratios);
        let met = work.mark.map(|mark| mark.met(best, memcpy));
        let possible = |floor: Floor| {
            work.mark.is_none_or(|mark| mark.met(floor.over_best, floor.over_memcpy))
        };
        Row {
            work: work.label(),
            ratios,
            floor,
            mark: work.mark.map(PeerMark::text),
            met,
            beyond_floor: met == Some(false) && !floor.is_none_or(possible),
        }
    }

    /// In words.
    pub(super) fn verdict(&self) -> &'static str {
        match (self.met, self.beyond_floor) {
            (Some(true), _) => "met",
            (Some(false), false) => "MISSED",
            (Some(false), true) => "MISSED (beyond what memory allows)",
            (None, _) => "",
        }
    }

    /// A line of the table.
    pub(super) fn line(&self) -> String {
        let part = |ratio: Ratio| format!("{:6.2} ±{:<3.0}%", ratio.median, 100.0 * ratio.spread);
        let floor = self.floor.map_or_else(String::new, |floor| {
            format!(
                "  (floor: {} bytes in {} lines, at most {:.2} memcpy, {:.2} x best)",
                floor.payload, floor.lines, floor.over_memcpy, floor.over_best
            )
        });
        format!(
            "{:32} {:9.2} µs  memcpy {}  Open MPI {}  MPICH {}  {:6} {}{floor}",
            self.work,
            1e6 * self.ratios.seconds,
            part(self.ratios.memcpy),
            part(self.ratios.openmpi),
            part(self.ratios.mpich),
            self.verdict(),
            self.mark.as_deref().unwrap_or_default(),
        )
    }
}

/// A piece of work.
#[derive(Clone, Debug)]
pub(super) struct PeerWork {
    verb: &'static str,
    what: String,
    /// Of a collective: how many take part.
    ranks: Option<usize>,
    pub(super) mark: Option<PeerMark>,
}

impl PeerWork {
    fn new(verb: &'static str, what: String, mark: Option<PeerMark>) -> PeerWork {
        PeerWork { verb, what, ranks: None, mark }
    }

    /// Whether what is made is a type, out of a list.
    pub(super) fn makes_types(&self) -> bool {
        matches!(self.verb, "commit" | "create")
    }

    /// What Gapless is told.
    pub(super) fn command(&self) -> String {
        format!("{} {}", self.verb, self.what)
    }

    /// What peers are told: all their memory is ordinary.
    pub(super) fn peers_command(&self) -> String {
        format!("{} {}", self.verb.trim_end_matches("-alloc"), self.what)
    }

    /// What the reader is told.
    pub(super) fn label(&self) -> String {
        match self.ranks {
            Some(ranks) => format!("{}, {ranks} ranks", self.command()),
            None => self.command(),
        }
    }

    /// What memory allows. A copy reads the payload and writes it; with gaps on one side (or, in a message, on
    /// both) every line that is touched counts whole. Writing may read the line first, in a copy as well.
    #[expect(clippy::cast_precision_loss, reason = "sizes of buffers")]
    fn floor(&self, ratios: &Ratios) -> Option<Floor> {
        let mut words = self.what.split(' ');
        let (layout, payload) = (words.next()?, words.next()?.parse::<u64>().ok()?);
        let (lines, moved) = (ratios.lines, ratios.lines * LINE);
        // Rows and columns that do not begin with a line touch a few more; that is no floor.
        if !(layout.contains("list") || layout.contains("block") || layout == "xface")
            || moved <= payload
        {
            return None;
        }
        let other = if self.verb.starts_with("message") { moved } else { payload };
        let over_memcpy = 2.0 * payload as f64 / (moved + other) as f64;
        let peer = ratios.memcpy.median / ratios.best().median;
        Some(Floor { payload, lines, over_memcpy, over_best: over_memcpy / peer })
    }
}

const LINE: u64 = 64;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Collectives of so many ranks. Their bytes are those of the longer of a rank's two buffers.
pub(super) fn collectives(ranks: usize, quick: bool) -> Vec<PeerWork> {
    /// Those that are to be much faster from 32 KiB on.
    const LONG: [&str; 5] = ["bcast", "reduce", "allreduce", "reduce_scatter_block", "alltoall"];
    const OTHERS: [&str; 4] = ["gather", "scatter", "allgather", "scan"];

    let least = 8 * ranks as u64;
    let sizes: &[u64] = match quick {
        true => &[KIB, 64 * KIB],
        false => &[8, KIB, 8 * KIB, 32 * KIB, 256 * KIB, MIB, 4 * MIB],
    };
    let mut list = Vec::new();
    for (which, mark) in [("turns", Some(PeerMark::Best(1.0))), ("repeated", None)] {
        list.push(PeerWork {
            ranks: Some(ranks),
            ..PeerWork::new("mixture", which.to_owned(), mark)
        });
    }
    let mut add = |verb, operation: &str, layout: &str, bytes: u64, times| {
        let what = format!("{operation} {layout} {bytes}");
        list.push(PeerWork {
            ranks: Some(ranks),
            ..PeerWork::new(verb, what, Some(PeerMark::Best(times)))
        });
    };
    add("coll", "barrier", "contiguous", 8, 1.0);
    for operation in LONG.iter().chain(&OTHERS) {
        // Of some, a rank's block is an element at least.
        let vectors = matches!(*operation, "bcast" | "reduce" | "allreduce" | "scan");
        let least = if vectors { 8 } else { least };
        let mut sizes: Vec<u64> = sizes.iter().map(|bytes| *bytes.max(&least)).collect();
        sizes.dedup();
        for bytes in sizes {
            let fast = LONG.contains(operation) && bytes >= 32 * KIB;
            add("coll", operation, "contiguous", bytes, if fast { 1.6 } else { 1.0 });
        }
    }
    for operation in ["bcast", "gather", "scatter", "allgather", "alltoall"] {
        for bytes in [64 * KIB, MIB] {
            add("coll", operation, "comb", bytes, 3.0);
        }
    }
    add("coll-alloc", "allreduce", "contiguous", 2 * MIB, if ranks == 4 { 4.0 } else { 1.6 });
    list
}

/// Everything that one process does, or that two do.
pub(super) fn list(ranks: usize, quick: bool) -> Vec<PeerWork> {
    let sizes: &[u64] = if quick { &[64 * KIB] } else { &[64 * KIB, MIB, 8 * MIB, 64 * MIB] };
    let mut list = Vec::new();
    if ranks == 1 {
        let both = ["pack", "unpack"];
        let mut add = |layout: &str, bytes: u64, mark: Option<PeerMark>| {
            list.extend(both.map(|verb| PeerWork::new(verb, format!("{layout} {bytes}"), mark)));
        };
        for layout in ["V", "T", "yface", "struct"] {
            sizes.iter().for_each(|bytes| add(layout, *bytes, Some(PeerMark::Pack)));
        }
        for &bytes in sizes {
            add("X", bytes, (bytes >= 8 * MIB).then_some(PeerMark::Best(3.0)));
        }
        for layout in ["list1", "list3", "list3s", "block1", "block3", "block3s"] {
            for &bytes in sizes.iter().filter(|bytes| quick || **bytes >= 8 * MIB) {
                let marked = bytes == 8 * MIB && matches!(layout, "list1" | "list3");
                add(layout, bytes, marked.then_some(PeerMark::Best(2.0)));
            }
        }
        if !quick {
            add("xface", 2 * MIB, None);
            add("xface", 8 * MIB, Some(PeerMark::Best(2.0)));
        }
        let blocks = if quick { 1000 } else { 1_000_000 };
        list.push(PeerWork::new("commit", format!("{blocks}"), Some(PeerMark::Commit)));
        list.push(PeerWork::new("create", format!("{blocks}"), None));
        return list;
    }
    for bytes in [1, KIB] {
        let mark = Some(PeerMark::Best(1.0 / 0.9));
        list.push(PeerWork::new("message", format!("contiguous {bytes}"), mark));
    }
    list.push(PeerWork::new("rate", "8 64".to_owned(), Some(PeerMark::Best(1.5))));
    // Pages of 8 KiB: the same list each time, and one that was never seen before.
    let pages = format!("pages {}", if quick { MIB } else { 128 * MIB });
    for verb in ["message", "anew"] {
        list.push(PeerWork::new(verb, pages.clone(), Some(PeerMark::Best(1.3))));
    }
    windows(quick, &mut list);
    for verb in ["message", "message-alloc"] {
        let allocated = verb == "message-alloc";
        for bytes in sizes {
            list.push(PeerWork::new(
                verb,
                format!("contiguous {bytes}"),
                Some(PeerMark::Contiguous),
            ));
        }
        for layout in ["V", "T", "X", "list1", "list3"] {
            for bytes in sizes.iter().filter(|bytes| quick || **bytes >= MIB) {
                let mark = if allocated { PeerMark::Message } else { PeerMark::Best(1.0) };
                list.push(PeerWork::new(verb, format!("{layout} {bytes}"), Some(mark)));
            }
        }
    }
    list
}

/// One-sided operations of one process on another's memory.
fn windows(quick: bool, list: &mut Vec<PeerWork>) {
    let mut add = |operation: &str, layout: &str, bytes: u64| {
        let what = format!("{operation} {layout} {bytes}");
        list.push(PeerWork::new("window", what, Some(PeerMark::Best(1.0))));
    };
    for operation in ["fetch", "lock"] {
        add(operation, "contiguous", 8);
    }
    for operation in ["put", "get", "accumulate"] {
        add(operation, "contiguous", 8);
        if quick {
            continue;
        }
        add(&format!("idle-{operation}"), "contiguous", 8);
        for bytes in [KIB, 64 * KIB, MIB] {
            add(operation, "contiguous", bytes);
        }
        for layout in ["rows", "comb"] {
            add(operation, layout, 64 * KIB);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(ours: f64, openmpi: f64, mpich: f64) -> Vec<Vec<Times>> {
        let round = |slow: f64| {
            [ours, openmpi, mpich]
                .map(|work| Times { work: work * slow, memcpy: slow, lines: 0 })
                .to_vec()
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
    fn who_makes_types_is_held_against_its_own_list() {
        let mut rounds = rounds(0.5, 1.0, 2.0);
        // Theirs are half as long.
        rounds.iter_mut().flat_map(|round| &mut round[1..]).for_each(|peer| peer.memcpy /= 2.0);
        assert_eq!(Ratios::of(&rounds).memcpy.median, 1.0);
        let own = Ratios::of_own_lists(&rounds);
        assert_eq!((own.memcpy.median, own.openmpi.median), (2.0, 2.0));
    }

    #[test]
    fn marks_are_what_they_say() {
        for (mark, best, memcpy, met) in [
            (PeerMark::Pack, 1.0, 1.0, true),
            (PeerMark::Pack, 1.1, 0.97, false),
            (PeerMark::Pack, 1.25, 0.5, true),
            (PeerMark::Pack, 0.9, 2.0, false),
            (PeerMark::Best(3.0), 3.0, 0.1, true),
            (PeerMark::Best(3.0), 2.9, 9.0, false),
            (PeerMark::Commit, 0.1, 0.34, true),
            (PeerMark::Commit, 9.0, 0.33, false),
            (PeerMark::Contiguous, 1.2, 0.85, true),
            (PeerMark::Contiguous, 1.2, 0.84, false),
            (PeerMark::Contiguous, 1.1, 0.9, false),
            (PeerMark::Message, 0.5, 0.9, true),
            (PeerMark::Message, 1.5, 0.1, true),
            (PeerMark::Message, 1.4, 0.8, false),
        ] {
            assert_eq!(mark.met(best, memcpy), met, "{mark:?} {best} {memcpy}");
        }
    }

    #[test]
    fn what_memory_allows_is_told_of_short_runs() {
        let row = |verb, what: &str, mark, lines, times: [f64; 3]| {
            let mut rounds = rounds(times[0], times[1], times[2]);
            rounds[0][0].lines = lines;
            Row::new(&PeerWork::new(verb, what.to_owned(), mark), Ratios::of(&rounds))
        };
        let mark = Some(PeerMark::Best(2.0));
        // 64 bytes read for 8, and 8 written: 16 of 72 that a copy moves. The best peer is at 0.2 of memcpy.
        let face = row("pack", "xface 8192", mark, 1024, [5.5, 5.0, 9.0]);
        let floor = face.floor.unwrap();
        assert_eq!((floor.payload, floor.lines), (8192, 1024));
        assert!((floor.over_memcpy - 2.0 / 9.0).abs() < 1e-12);
        assert!((floor.over_best - 10.0 / 9.0).abs() < 1e-12);
        assert!(face.met == Some(false) && face.beyond_floor);
        assert!(face.line().contains("MISSED") && face.line().contains("at most 0.22 memcpy"));
        // A peer so slow that twice its speed is possible.
        let face = row("pack", "xface 8192", mark, 1024, [11.0, 10.0, 19.0]);
        assert!(face.met == Some(false) && !face.beyond_floor);
        // In a message both sides have gaps; rows have a few lines more than their bytes, and no floor.
        let list = row("message", "list1 8192", mark, 1024, [5.5, 5.0, 9.0]);
        assert!((list.floor.unwrap().over_memcpy - 1.0 / 8.0).abs() < 1e-12);
        assert_eq!(row("pack", "V 8192", mark, 1024, [1.0, 1.0, 1.0]).floor, None);
    }

    #[test]
    fn answers_are_read_or_refused() {
        let answer = Times { work: 1e-6, memcpy: 2.5e-6, lines: 0 };
        assert_eq!(Times::read("1e-6 2.5e-6\n"), Some(answer));
        assert_eq!(Times::read("1e-6 2.5e-6 17"), Some(Times { lines: 17, ..answer }));
        for wrong in ["", "1", "a b", "0 1", "1 nan", "-1 2", "1 2 x"] {
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
