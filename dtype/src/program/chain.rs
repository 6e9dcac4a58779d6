//! The maximal merged runs of a program, counted without running it.
//!
//! Consecutive runs merge exactly when the first one's end is the next one's start, so the merged runs of
//! a sequence are those of its pieces less the seams that close. Units: bytes.

/// The maximal merged runs of a part of the packed order, as lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// How many.
    pub(crate) blocks: u64,
    /// Length of the first; all of it when there is one.
    pub(crate) head: u64,
    /// Length of the last.
    pub(crate) tail: u64,
    /// Shortest and longest of those between, if any.
    pub(crate) inner: Option<(u64, u64)>,
}

impl Chain {
    pub(crate) fn run(len: u64) -> Chain {
        Chain { blocks: 1, head: len, tail: len, inner: None }
    }

    /// `self`, then `next`; `adjacent` says that the seam closes.
    pub(crate) fn then(self, next: Chain, adjacent: bool) -> Chain {
        let mut inner = Widest(self.inner);
        inner.include(next.inner);
        if !adjacent {
            if self.blocks > 1 {
                inner.add(self.tail);
            }
            if next.blocks > 1 {
                inner.add(next.head);
            }
            return Chain {
                blocks: self.blocks + next.blocks,
                head: self.head,
                tail: next.tail,
                inner: inner.0,
            };
        }
        let joined = self.tail + next.head;
        if self.blocks > 1 && next.blocks > 1 {
            inner.add(joined);
        }
        Chain {
            blocks: self.blocks + next.blocks - 1,
            head: if self.blocks == 1 { joined } else { self.head },
            tail: if next.blocks == 1 { joined } else { next.tail },
            inner: inner.0,
        }
    }

    /// Runs of `len` bytes; of each seam between two, whether it closes. All bytes together fit `u64`.
    pub(crate) fn of_runs(len: u64, mut seams: impl Iterator<Item = bool>) -> Chain {
        let mut head = len;
        loop {
            match seams.next() {
                None => return Chain::run(head),
                Some(true) => head += len,
                Some(false) => break,
            }
        }
        let (mut blocks, mut run) = (2, len);
        let (mut least, mut most) = (u64::MAX, 0);
        // Whether a seam closes cannot be foreseen: selections, not branches.
        for closes in seams {
            let ended = if closes { (u64::MAX, 0) } else { (run, run) };
            (least, most) = (least.min(ended.0), most.max(ended.1));
            blocks += u64::from(!closes);
            run = len + if closes { run } else { 0 };
        }
        Chain { blocks, head, tail: run, inner: (blocks > 2).then_some((least, most)) }
    }

    /// `count` copies, each seam closing or none. `count × bytes` fits `u64`.
    pub(crate) fn repeated(self, count: u64, adjacent: bool) -> Chain {
        if count <= 1 {
            return self;
        }
        if adjacent && self.blocks == 1 {
            return Chain::run(self.head * count);
        }
        // From the third copy on no new length appears.
        let twice = self.then(self, adjacent);
        if count == 2 {
            return twice;
        }
        let closed = if adjacent { count - 1 } else { 0 };
        Chain { blocks: self.blocks * count - closed, ..twice.then(self, adjacent) }
    }

    pub(crate) fn min(&self) -> u64 {
        let ends = self.head.min(self.tail);
        self.inner.map_or(ends, |(min, _)| min.min(ends))
    }

    pub(crate) fn max(&self) -> u64 {
        let ends = self.head.max(self.tail);
        self.inner.map_or(ends, |(_, max)| max.max(ends))
    }
}

/// Shortest and longest of some lengths.
struct Widest(Option<(u64, u64)>);

impl Widest {
    fn add(&mut self, len: u64) {
        self.include(Some((len, len)));
    }

    fn include(&mut self, other: Option<(u64, u64)>) {
        self.0 = match (self.0, other) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (a, b) => a.or(b),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merged run lengths, written out.
    fn merged(runs: &[(i64, u64)]) -> Vec<u64> {
        let mut lens: Vec<u64> = Vec::new();
        let mut end = None;
        for &(disp, len) in runs {
            match lens.last_mut() {
                Some(last) if end == Some(disp) => *last += len,
                _ => lens.push(len),
            }
            end = Some(disp + i64::try_from(len).unwrap());
        }
        lens
    }

    #[test]
    fn chains_agree_with_runs_written_out() {
        // Bodies of one to three runs over a small alphabet, one to five times, at every small stride.
        let mut bodies: Vec<Vec<(i64, u64)>> = Vec::new();
        let places = [(0, 1), (1, 1), (2, 2), (4, 1), (5, 3), (-3, 3)];
        for &a in &places {
            bodies.push(vec![a]);
            for &b in &places {
                bodies.push(vec![a, b]);
                for &c in &places {
                    bodies.push(vec![a, b, c]);
                }
            }
        }
        for body in &bodies {
            let chain =
                body[1..].iter().fold((Chain::run(body[0].1), body[0]), |(chain, last), run| {
                    let adjacent = last.0 + i64::try_from(last.1).unwrap() == run.0;
                    (chain.then(Chain::run(run.1), adjacent), *run)
                });
            let (chain, last) = chain;
            let len = body[0].1;
            if body.iter().all(|run| run.1 == len) {
                let end = |run: &(i64, u64)| run.0 + i64::try_from(run.1).unwrap();
                let seams = body.windows(2).map(|pair| end(&pair[0]) == pair[1].0);
                assert_eq!(Chain::of_runs(len, seams), chain, "{body:?}");
            }
            for stride in -6..10 {
                for count in 1..6 {
                    let runs: Vec<_> = (0..count)
                        .flat_map(|i| body.iter().map(move |r| (r.0 + i * stride, r.1)))
                        .collect();
                    let lens = merged(&runs);
                    let adjacent = last.0 + i64::try_from(last.1).unwrap() == body[0].0 + stride;
                    let got = chain.repeated(count.cast_unsigned(), adjacent);
                    assert_eq!(got.blocks, lens.len() as u64, "{body:?} {stride} {count}");
                    assert_eq!(Some(got.min()), lens.iter().copied().min());
                    assert_eq!(Some(got.max()), lens.iter().copied().max());
                    assert_eq!(Some(&got.head), lens.first());
                    assert_eq!(Some(&got.tail), lens.last());
                }
            }
        }
    }
}
