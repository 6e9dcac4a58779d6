//! The shapes of trees: parent, children, and whom each subtree holds.
//!
//! Nodes are positions of a team; the root is position 0. A subtree holds consecutive positions, beginning
//! with its root, so that a reduction over it keeps the order of the positions.
use std::ops::Range;

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
}

/// A node and what hangs on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) parent: Option<usize>,
    /// The children's subtrees, in the order in which data should be sent to them.
    pub(crate) children: Vec<Range<usize>>,
    /// The positions of its subtree, with its own.
    pub(crate) span: Range<usize>,
}

impl Tree {
    /// Whether its parameter has a meaning.
    pub(crate) fn is_sound(self) -> bool {
        !matches!(self, Self::KNomial(0 | 1))
    }

    /// A node of the tree over `n` positions.
    pub(crate) fn node(self, at: usize, n: usize) -> Node {
        match self {
            Self::Flat if at == 0 => {
                let children = (1..n).map(|child| child..child + 1).collect();
                Node { parent: None, children, span: 0..n }
            }
            Self::Flat => Node { parent: Some(0), children: Vec::new(), span: at..at + 1 },
            Self::Chain => {
                let next = (at + 1 < n).then_some(at + 1..n);
                Node {
                    parent: at.checked_sub(1),
                    children: next.into_iter().collect(),
                    span: at..n,
                }
            }
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
            children.push(child..end.min(child + weight));
        }
    }
    Node { parent, children, span: at..end }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parent and children agree, subtrees are what they say, and everybody is below the root once.
    #[test]
    fn every_shape_is_a_tree_of_all_positions() {
        let shapes =
            [Tree::Flat, Tree::Chain, Tree::Binomial].into_iter().chain((2..7).map(Tree::KNomial));
        for (shape, n) in shapes.flat_map(|shape| (1..140).map(move |n| (shape, n))) {
            assert_eq!(shape.node(0, n).span, 0..n, "{shape:?} of {n}");
            for at in 0..n {
                let mut node = shape.node(at, n);
                assert_eq!(node.parent.is_none(), at == 0);
                for child in &node.children {
                    let it = shape.node(child.start, n);
                    assert_eq!((it.parent, &it.span), (Some(at), child), "{shape:?} of {n}");
                }
                // The node, and behind it its children's subtrees, one after the other.
                node.children.sort_unstable_by_key(|child| child.start);
                let end = node.children.iter().fold(at + 1, |end, child| {
                    assert_eq!(child.start, end, "{shape:?} of {n}, node {at}");
                    child.end
                });
                assert_eq!(node.span, at..end, "{shape:?} of {n}, node {at}");
            }
        }
    }
}
