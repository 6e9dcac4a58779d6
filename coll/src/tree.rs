//! The shapes of trees: parent, children, and whom each subtree holds.
//!
//! Nodes are positions of a team; the root is position 0. A subtree holds consecutive positions, beginning
//! with its root, so that a reduction over it keeps the order of the positions.
use crate::team::{Runs, run};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::team::runs;

    /// Parent and children agree, subtrees are what they say, and everybody is below the root once.
    #[test]
    fn every_shape_is_a_tree_of_all_positions() {
        let shapes = [Tree::Flat, Tree::Chain, Tree::Binomial]
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
                    assert!(child.span == run(child.at..child.span[0].end));
                }
                let count = below.len();
                let span = runs(below);
                assert_eq!(span.iter().map(ExactSizeIterator::len).sum::<usize>(), count);
                assert_eq!(span, node.span, "{shape:?} of {n}, node {at}");
            }
        }
    }
}
