//! The shapes of trees: parent, children, and whom each subtree holds.
//!
//! Nodes are positions of a team; the root is position 0. But for [`Tree::Bine`] a subtree holds consecutive
//! positions, beginning with its root, so that a reduction over it keeps the order of the positions.
use crate::team::{Fold, Part, Runs, run, runs};

/// The shape of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tree {
    /// All others are children of the root.
    Flat,
    /// Each node has one child: for long messages, in segments.
    Chain,
    /// In round `i` of `log2(n)`, each node that has the data sends it to one more.
    Binomial,
    /// As binomial, to `k - 1` more in each round (`k` is 2 at least): less deep.
    KNomial(usize),
    /// Each node has up to `k` children, with about equal subtrees (`k` is 1 at least): for long messages, in segments.
    KAry(usize),
    /// A binomial tree whose partners are nearer (De Sensi et al., arXiv 2508.17311: distances are sums of powers of
    /// -2). The paper's construction is for powers of two; surplus positions are leaves of their neighbours here.
    /// Subtrees are not consecutive, so it serves commutative operations only.
    Bine,
}

/// A node and what hangs on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) parent: Option<usize>,
    /// In the order in which data should be sent to them.
    pub(crate) children: Vec<Child>,
    /// The positions of its subtree, with its own.
    pub(crate) span: Runs,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) at: usize,
    /// The positions of its subtree, with its own.
    pub(crate) span: Runs,
}

impl Child {
    fn consecutive(at: usize, end: usize) -> Self {
        Self { at, span: run(at..end) }
    }
}

impl Tree {
    /// Whether subtrees hold consecutive positions.
    pub(crate) fn is_ordered(self) -> bool {
        self != Self::Bine
    }

    /// Whether its parameter has a meaning.
    pub(crate) fn is_sound(self) -> bool {
        !matches!(self, Self::KNomial(0 | 1) | Self::KAry(0))
    }

    /// A node of the tree over `n` positions.
    pub(crate) fn node(self, at: usize, n: usize) -> Node {
        match self {
            Self::Flat if at == 0 => Node {
                parent: None,
                children: (1..n).map(|child| Child::consecutive(child, child + 1)).collect(),
                span: run(0..n),
            },
            Self::Flat => Node { parent: Some(0), children: Vec::new(), span: run(at..at + 1) },
            Self::Chain => k_ary(1, at, n),
            Self::KAry(k) => k_ary(k, at, n),
            Self::Binomial => k_nomial(2, at, n),
            Self::KNomial(k) => k_nomial(k, at, n),
            Self::Bine => bine_node(at, n),
        }
    }
}

/// Positions to base `k`: the parent's has the lowest digit that is not 0 cleared.
fn k_nomial(k: usize, at: usize, n: usize) -> Node {
    let mut weight = 1usize;
    while weight < n && (at / weight).is_multiple_of(k) {
        weight = weight.saturating_mul(k);
    }
    let parent = (at > 0).then(|| at - at / weight % k * weight);
    let end = n.min(at.saturating_add(weight));
    let mut children = Vec::new();
    while weight > 1 {
        weight /= k;
        for digit in 1..k {
            let child = at.saturating_add(digit.saturating_mul(weight));
            if child >= end {
                break;
            }
            children.push(Child::consecutive(child, end.min(child + weight)));
        }
    }
    Node { parent, children, span: run(at..end) }
}

/// What is below a node is split evenly among its children.
fn k_ary(k: usize, at: usize, n: usize) -> Node {
    let (mut node, mut end, mut parent) = (0, n, None);
    loop {
        let children = split(k, node, end);
        if node == at {
            return Node { parent, children, span: run(node..end) };
        }
        let Some(child) = children.iter().rev().find(|child| child.at <= at) else {
            unreachable!("position {at} of {n} is in a subtree");
        };
        (parent, node, end) = (Some(node), child.at, child.span[0].end);
    }
}

fn split(k: usize, node: usize, end: usize) -> Vec<Child> {
    let below = end - node - 1;
    let mut at = node + 1;
    let parts = k.min(below);
    (0..parts)
        .map(|part| {
            let start = at;
            at += below / parts + usize::from(part < below % parts);
            Child::consecutive(start, at)
        })
        .collect()
}

/// Numbers to base -2, and the partners of Bine trees and butterflies over `2^rounds` numbers.
pub(crate) mod bine {
    const ODD_BITS: u64 = 0xAAAA_AAAA_AAAA_AAAA;

    /// The digits of a number to base -2, the lowest `rounds` of them: they tell the number modulo `2^rounds`.
    fn digits(number: usize, rounds: u32) -> u64 {
        (ODD_BITS.wrapping_add(number as u64) ^ ODD_BITS) & ((1 << rounds) - 1)
    }

    /// How far partners of a round are apart: `1 - 2 + 4 - …`, `round + 1` terms, modulo `2^rounds`.
    fn distance(round: u32, rounds: u32) -> usize {
        let n = 1usize << rounds;
        let sum = (0..=round).fold(0usize, |sum, digit| {
            if digit % 2 == 0 { sum.wrapping_add(1 << digit) } else { sum.wrapping_sub(1 << digit) }
        });
        sum & (n - 1)
    }

    /// With whom a number exchanges in a round of the butterfly: even ones upwards, odd ones downwards.
    pub(crate) fn partner(number: usize, round: u32, rounds: u32) -> usize {
        let (n, distance) = (1usize << rounds, distance(round, rounds));
        if number.is_multiple_of(2) { (number + distance) % n } else { (number + n - distance) % n }
    }

    /// Which half a number keeps in a round, if vectors are halved in rounds that count up: the partner of the round
    /// keeps the other, and agrees on all rounds before.
    pub(crate) fn side(number: usize, round: u32, rounds: u32) -> bool {
        let signed = if number.is_multiple_of(2) { number.wrapping_neg() } else { number };
        let digits = digits(signed, rounds);
        (digits ^ digits >> 1) >> round & 1 == 1
    }

    /// In which round a number other than 0 receives in the tree, whose rounds count down: the lowest digits up to
    /// that round are equal. 0 has the data before the first.
    pub(crate) fn receives(number: usize, rounds: u32) -> u32 {
        if number == 0 {
            return rounds;
        }
        let digits = digits(number, rounds);
        let equal =
            if digits.is_multiple_of(2) { digits.trailing_zeros() } else { digits.trailing_ones() };
        equal.min(rounds) - 1
    }
}

fn bine_node(at: usize, n: usize) -> Node {
    let fold = Fold::new(n);
    match fold.part(at) {
        Part::Follower { leader } => {
            Node { parent: Some(leader), children: Vec::new(), span: run(at..at + 1) }
        }
        Part::Active { number, follower } => {
            let rounds = fold.rounds();
            let round = bine::receives(number, rounds);
            let below = (0..round).rev().map(|round| {
                let child = bine::partner(number, round, rounds);
                Child { at: fold.member(child), span: bine_span(child, round, fold) }
            });
            let leaf = follower.map(|leaf| Child::consecutive(leaf, leaf + 1));
            let parent = (number > 0).then(|| fold.member(bine::partner(number, round, rounds)));
            Node {
                parent,
                children: below.chain(leaf).collect(),
                span: bine_span(number, round, fold),
            }
        }
    }
}

/// The members below an active number that received in a round.
fn bine_span(number: usize, round: u32, fold: Fold) -> Runs {
    let (mut items, mut open) = (Vec::new(), vec![(number, round)]);
    while let Some((number, round)) = open.pop() {
        items.extend(fold.members(number..number + 1));
        open.extend((0..round).map(|below| (bine::partner(number, below, fold.rounds()), below)));
    }
    runs(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parent and children agree, subtrees are what they say, and everybody is below the root once.
    #[test]
    fn every_shape_is_a_tree_of_all_positions() {
        let shapes = [Tree::Flat, Tree::Chain, Tree::Binomial, Tree::Bine]
            .into_iter()
            .chain((2..7).map(Tree::KNomial))
            .chain((1..5).map(Tree::KAry));
        for (shape, n) in shapes.flat_map(|shape| (1..140).map(move |n| (shape, n))) {
            assert_eq!(shape.node(0, n).span, run(0..n), "{shape:?} of {n}");
            for at in 0..n {
                let node = shape.node(at, n);
                assert_eq!(node.parent.is_none(), at == 0);
                let mut below = vec![at];
                for child in &node.children {
                    let it = shape.node(child.at, n);
                    assert_eq!((it.parent, &it.span), (Some(at), &child.span), "{shape:?} of {n}");
                    below.extend(child.span.iter().cloned().flatten());
                    assert!(!shape.is_ordered() || child.span == run(child.at..child.span[0].end));
                }
                let count = below.len();
                let span = runs(below);
                assert_eq!(span.iter().map(ExactSizeIterator::len).sum::<usize>(), count);
                assert_eq!(span, node.span, "{shape:?} of {n}, node {at}");
            }
        }
    }

    /// Distances are 1, 1, 3, 5, 11 where they are 1, 2, 4, 8, 16 with binary numbers.
    #[test]
    fn bine_partners_are_nearer_than_binary_ones() {
        let apart = |round| {
            let other = bine::partner(0, round, 5);
            other.min(32 - other)
        };
        assert_eq!((0..5).map(apart).collect::<Vec<_>>(), [1, 1, 3, 5, 11]);
        for rounds in 1..8 {
            for round in 0..rounds {
                for number in 0..1usize << rounds {
                    let other = bine::partner(number, round, rounds);
                    assert_eq!(bine::partner(other, round, rounds), number);
                    assert_ne!(other, number);
                    let agree = |before| {
                        bine::side(number, before, rounds) == bine::side(other, before, rounds)
                    };
                    assert!(!agree(round) && (0..round).all(agree));
                }
            }
        }
    }
}
