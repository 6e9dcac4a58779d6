//! What a rank does in a collective through shared memory, in words: for people who ask before they run it. Pure.

use std::fmt;
use std::ops::Range;

use gapless_sync::mailboxes::Readers;

use super::long_plan::{self, SLOTS, SlotPiece};
use super::short_plan::{self, Content, Round, Span, Then};
use super::{SharedSegment, exchange_plan};
use crate::schedule::Buffer;
use crate::{BuildError, Call};

/// What a rank does in a collective through shared memory, if its buffers are plain memory of the host and no two ranks
/// differ in what they call. `Display` says it step by step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    rank: usize,
    ranks: usize,
    plan: Explained,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Explained {
    Short(short_plan::ShortPlan),
    Long(long_plan::LongPlan),
    Exchange(exchange_plan::ExchangePlan),
}

impl SharedSegment {
    /// What rank `rank` of `ranks` does in a call that goes this way; none if it does [not](SharedSegment::takes).
    ///
    /// # Errors
    /// Arguments that do not fit, as for [`build`](crate::build()).
    pub fn explain(
        call: &Call<'_>,
        rank: usize,
        ranks: usize,
    ) -> Result<Option<Explanation>, BuildError> {
        call.check(rank, ranks)?;
        let plan = match () {
            () if short_plan::fits(call, ranks) => {
                Some(Explained::Short(short_plan::ShortPlan::new(call, rank, ranks)))
            }
            () if exchange_plan::fits(call, ranks) => {
                exchange_plan::ExchangePlan::new(call, rank, ranks, true).map(Explained::Exchange)
            }
            () => long_plan::LongPlan::new(call, rank, ranks).map(Explained::Long),
        };
        Ok(plan.map(|plan| Explanation { rank, ranks, plan }))
    }
}

impl Explanation {
    /// Bytes that the rank writes into the shared memory, but for the bytes by which ranks wait for each other.
    #[must_use]
    pub fn written(&self) -> u64 {
        match &self.plan {
            Explained::Short(plan) => {
                let published = plan.rounds.iter().flatten().filter(|it| it.publish.is_some());
                published.map(|round| round.entry_bytes(self.rank) as u64).sum()
            }
            Explained::Long(plan) => {
                let combined = |at| plan.combines(at).map_or(0, |it| it.end - it.start);
                let filled = |at| fills(plan, at).map(|it| it.len()).sum::<u64>();
                (0..plan.fragments).map(|at| filled(at) + combined(at)).sum()
            }
            Explained::Exchange(plan) => plan.receivers().map(|it| plan.out.bytes(it)).sum(),
        }
    }

    /// Bytes that it reads of what other ranks have written there.
    #[must_use]
    pub fn read(&self) -> u64 {
        let others = |sources: Range<usize>| sources.filter(|it| *it != self.rank);
        match &self.plan {
            Explained::Short(plan) => {
                let read = |round: &Round| -> u64 {
                    others(round.sources.clone()).map(|it| round.part(it).len() as u64).sum()
                };
                plan.rounds.iter().flatten().map(read).sum()
            }
            Explained::Long(plan) => {
                let from = others(0..self.ranks).count() as u64;
                let combined = |at| plan.combines(at).map_or(0, |it| (it.end - it.start) * from);
                let taken = |at| {
                    let pieces = (0..).map_while(move |index| plan.output(at, index));
                    let others = pieces.filter(|(holder, ..)| plan.holder(*holder) != self.rank);
                    others.map(|(.., piece)| piece.len()).sum::<u64>()
                };
                (0..plan.fragments).map(|at| combined(at) + taken(at)).sum()
            }
            Explained::Exchange(plan) => others(0..self.ranks).map(|it| plan.into.bytes(it)).sum(),
        }
    }
}

/// What a rank puts into its slot: what only it reads stays where it is, unless it might be replaced there.
fn fills(plan: &long_plan::LongPlan, fragment: u64) -> impl Iterator<Item = SlotPiece> + '_ {
    let pieces = plan.input(fragment, plan.own_input.is_none());
    pieces.filter(|_| plan.exposes())
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Lines { f, next: 0 };
        match &self.plan {
            Explained::Short(plan) => lines.short(self, plan),
            Explained::Long(plan) => lines.long(self, plan),
            Explained::Exchange(plan) => lines.exchange(self, plan),
        }
    }
}

/// Writes numbered steps.
struct Lines<'a, 'f> {
    f: &'a mut fmt::Formatter<'f>,
    next: usize,
}

impl Lines<'_, '_> {
    fn step(&mut self, what: fmt::Arguments<'_>) -> fmt::Result {
        self.next += 1;
        writeln!(self.f, "{:>3}  {what}", self.next - 1)
    }

    fn short(&mut self, of: &Explanation, plan: &short_plan::ShortPlan) -> fmt::Result {
        let rounds: Vec<_> = plan.rounds.iter().flatten().collect();
        let count = if rounds.len() == 1 { "one round" } else { "two rounds" };
        writeln!(
            self.f,
            "rank {} of {}, by mailboxes in shared memory, {count}",
            of.rank, of.ranks
        )?;
        for (number, round) in rounds.iter().enumerate() {
            if let Some((content, readers)) = round.publish {
                let bytes = round.entry_bytes(of.rank);
                let content = match (content, &plan.input) {
                    (Content::Input, Some(span)) if bytes > 0 => format!(" = {}", spanned(span)),
                    (Content::Input, _) => String::new(),
                    (Content::Result, _) => " = what it has combined".to_owned(),
                };
                let whom = told(readers);
                self.step(format_args!(
                    "write    entry {number} of {bytes} B{content}  -> {whom}"
                ))?;
            }
            // What it has itself needs no entry.
            let others = round.sources.clone().filter(|it| *it != of.rank);
            let parts: Vec<_> = others.map(|it| (it, round.part(it))).collect();
            let mut rest = &parts[..];
            while let Some((first, bytes)) = rest.first() {
                let alike = rest.iter().take_while(|(_, other)| other == bytes).count();
                let (ranks, of) = (listed(*first, rest[alike - 1].0, of.rank), bytes);
                match bytes.is_empty() {
                    true => self.step(format_args!("await    entry {number} of {ranks}"))?,
                    false => {
                        self.step(format_args!("read     entry {number}[{of:?}] of {ranks}"))?
                    }
                }
                rest = &rest[alike..];
            }
            if round.then == Then::Combine
                && !round.sources.is_empty()
                && round.entry_bytes(of.rank) > 0
            {
                let ranks = listed(round.sources.start, round.sources.end - 1, usize::MAX);
                self.step(format_args!("combine  those of {ranks}, in this order"))?;
            }
        }
        match &plan.output {
            Some(span) => self.step(format_args!("unpack   {} = the result", spanned(span))),
            None => Ok(()),
        }
    }

    fn long(&mut self, of: &Explanation, plan: &long_plan::LongPlan) -> fmt::Result {
        let (slot, fragments) = (plan.slot(), plan.fragments);
        let count = if fragments == 1 {
            "one fragment".to_owned()
        } else {
            format!("{fragments} fragments")
        };
        writeln!(
            self.f,
            "rank {} of {}, by {SLOTS} slots of {slot} B a rank in shared memory, {count}",
            of.rank, of.ranks
        )?;
        self.fragment(of, plan, 0)?;
        if fragments > 2 {
            let more = fragments - 2;
            writeln!(
                self.f,
                "  …  {more} more {} like this",
                if more == 1 { "fragment" } else { "fragments" }
            )?;
        }
        if fragments > 1 {
            self.fragment(of, plan, fragments - 1)?;
        }
        writeln!(
            self.f,
            "long buffers without gaps in memory that peers can map (World::alloc) are read where they lie, and fill no slot"
        )
    }

    fn exchange(&mut self, of: &Explanation, plan: &exchange_plan::ExchangePlan) -> fmt::Result {
        let fragments = match plan.sends {
            0 | 1 => String::new(),
            more => format!(", {more} fragments"),
        };
        writeln!(
            self.f,
            "rank {} of {}, by mailboxes and cells of slots in shared memory{fragments}",
            of.rank, of.ranks
        )?;
        for rank in plan.receivers() {
            let (bytes, place) =
                (plan.out.bytes(rank), if plan.is_inline() { "entry" } else { "cell" });
            self.step(format_args!("fill     {place} of {bytes} B  -> {rank}"))?;
        }
        for rank in 0..of.ranks {
            match (plan.into.bytes(rank), rank == of.rank) {
                (0, _) => {}
                (bytes, true) => self.step(format_args!("copy     {bytes} B of its own"))?,
                (bytes, false) => self.step(format_args!("unpack   {bytes} B  <- {rank}"))?,
            }
        }
        Ok(())
    }

    fn fragment(
        &mut self,
        of: &Explanation,
        plan: &long_plan::LongPlan,
        fragment: u64,
    ) -> fmt::Result {
        for piece in fills(plan, fragment) {
            let bytes = piece.in_slot();
            let whom = told(plan.readers());
            self.step(format_args!("fill     slot[{bytes:?}] = {}  -> {whom}", placed(&piece)))?;
        }
        if let Some(slice) = plan.combines(fragment) {
            let ranks = listed(0, of.ranks - 1, usize::MAX);
            match plan.is_scan() {
                true => self.step(format_args!(
                    "combine  slot[{slice:?}] of {ranks}, in this order, into each: what it and those before it have"
                ))?,
                false => self.step(format_args!(
                    "combine  slot[{slice:?}] of {ranks}, in this order, into the own one"
                ))?,
            }
        }
        for (from, _, piece) in (0..).map_while(|index| plan.output(fragment, index)) {
            let bytes = piece.in_slot();
            if !piece.is_empty() {
                let (into, holder) = (placed(&piece), plan.holder(from));
                self.step(format_args!("unpack   {into} = slot[{bytes:?}]  <- {holder}"))?;
            }
        }
        Ok(())
    }
}

fn told(readers: Readers) -> String {
    match readers {
        Readers::One(rank) => rank.to_string(),
        Readers::All => "all".to_owned(),
    }
}

/// Ranks from the first to the last, but for one.
fn listed(first: usize, last: usize, without: usize) -> String {
    let but =
        if (first..last).contains(&without) { format!(" but {without}") } else { String::new() };
    match last - first {
        0 => format!("rank {first}"),
        _ => format!("ranks {first} to {last}{but}"),
    }
}

fn spanned(span: &Span) -> String {
    let Span { buffer, block, range } = span;
    named(*buffer, *block, &(range.start as u64..range.end as u64))
}

fn placed(piece: &SlotPiece) -> String {
    named(piece.buffer, piece.block, &(piece.start..piece.start + piece.len()))
}

/// As a schedule names it: `recv[3][0..8]`.
fn named(buffer: Buffer, block: usize, range: &Range<u64>) -> String {
    format!("{buffer}[{block}][{range:?}]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reduction;

    const OF: Reduction = Reduction { unit: 8, commutative: true };

    fn explain(call: &Call<'_>, rank: usize, ranks: usize) -> Explanation {
        SharedSegment::explain(call, rank, ranks).unwrap().unwrap()
    }

    #[test]
    fn notes_are_told_round_by_round() {
        let call = Call::Allreduce { len: 64, of: OF, in_place: false };
        let short = explain(&call, 1, 4);
        assert_eq!(
            short.to_string(),
            "rank 1 of 4, by mailboxes in shared memory, one round\n  \
             0  write    entry 0 of 64 B = send[0][0..64]  -> all\n  \
             1  read     entry 0[0..64] of ranks 0 to 3 but 1\n  \
             2  combine  those of ranks 0 to 3, in this order\n  \
             3  unpack   recv[0][0..64] = the result\n"
        );
        assert_eq!((short.written(), short.read()), (64, 3 * 64));
        let bcast = Call::Bcast { root: 2, len: 8 };
        assert_eq!(
            explain(&bcast, 0, 3).to_string(),
            "rank 0 of 3, by mailboxes in shared memory, one round\n  \
             0  read     entry 0[0..8] of rank 2\n  \
             1  unpack   recv[0][0..8] = the result\n"
        );
        let barrier = explain(&Call::Barrier, 0, 3).to_string();
        assert!(barrier.contains("write    entry 0 of 0 B  -> all\n"), "{barrier}");
        assert!(barrier.contains("await    entry 0 of ranks 1 to 2\n"), "{barrier}");
        let sliced = explain(&Call::Allreduce { len: 1024, of: OF, in_place: true }, 3, 16);
        let text = sliced.to_string();
        assert!(text.contains("two rounds\n"), "{text}");
        assert!(text.contains("read     entry 0[192..256] of ranks 0 to 15 but 3\n"), "{text}");
        assert!(
            text.contains("write    entry 1 of 64 B = what it has combined  -> all\n"),
            "{text}"
        );
        assert_eq!((sliced.written(), sliced.read()), (1024 + 64, 2 * 15 * 64));
    }

    #[test]
    fn slots_are_told_fragment_by_fragment() {
        let call = Call::Allreduce { len: 1 << 20, of: OF, in_place: false };
        let long = explain(&call, 1, 4);
        let text = long.to_string();
        for line in [
            "rank 1 of 4, by 2 slots of 131072 B a rank in shared memory, 8 fragments\n",
            "fill     slot[0..32768] = send[0][0..32768]  -> all\n",
            "combine  slot[32768..65536] of ranks 0 to 3, in this order, into the own one\n",
            "unpack   recv[0][98304..131072] = slot[98304..131072]  <- 3\n",
            "  …  6 more fragments like this\n",
            "unpack   recv[0][1015808..1048576] = slot[98304..131072]  <- 3\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        // Three quarters are read by others, a quarter is combined here; of the result three quarters are others'.
        assert_eq!(long.written(), 1 << 20);
        assert_eq!(long.read(), (3 << 18) + (3 << 18));
        let scan = explain(&Call::Scan { len: 1 << 16, of: OF, in_place: false }, 2, 4).to_string();
        assert!(scan.contains("into each: what it and those before it have\n"), "{scan}");
        let gather = Call::Gather { root: 0, len: 4096, in_place: false };
        let leaf = explain(&gather, 3, 4);
        assert_eq!((leaf.written(), leaf.read()), (4096, 0));
        let root = explain(&gather, 0, 4);
        assert_eq!(root.read(), 3 * 4096);
        assert!(root.to_string().contains("unpack   recv[3][0..4096] = slot[0..4096]  <- 3\n"));
    }

    #[test]
    fn exchanges_are_told_rank_by_rank() {
        let call = |send, recv| Call::Alltoallv { send, recv, in_place: false };
        let inline = explain(&call(&[8, 0, 24], &[8, 16, 0]), 0, 3);
        assert_eq!(
            inline.to_string(),
            "rank 0 of 3, by mailboxes and cells of slots in shared memory\n  \
             0  fill     entry of 24 B  -> 2\n  \
             1  copy     8 B of its own\n  \
             2  unpack   16 B  <- 1\n"
        );
        assert_eq!((inline.written(), inline.read()), (24, 16));
        let long = explain(&call(&[0, 1 << 20], &[0, 0]), 0, 2);
        let text = long.to_string();
        assert!(
            text.contains(" fragments\n") && text.contains("fill     cell of 1048576 B  -> 1\n")
        );
        assert_eq!((long.written(), long.read()), (1 << 20, 0));
    }

    #[test]
    fn what_does_not_go_this_way_has_no_explanation() {
        let of = Reduction { unit: 1 << 20, commutative: true };
        let huge = Call::Allreduce { len: 2 << 20, of, in_place: false };
        assert_eq!(
            SharedSegment::explain(&huge, 0, 2),
            Ok(None),
            "an element is longer than a slot"
        );
        assert_eq!(SharedSegment::explain(&Call::Barrier, 0, 1), Ok(None));
        let wrong = SharedSegment::explain(&Call::Bcast { root: 2, len: 8 }, 0, 2);
        assert_eq!(wrong, Err(BuildError::NoSuchRank { rank: 2, ranks: 2 }));
    }
}
