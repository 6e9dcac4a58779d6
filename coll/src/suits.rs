//! Whether an algorithm does a call, and if not, why.
use crate::tree::Tree;
use crate::{Algorithm, Call, Locality, Method, Operation};

/// Why an algorithm does not do a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misfit {
    /// It is for other operations.
    #[error("it is for other operations")]
    Operation,
    /// It combines operands in another order than that of the ranks.
    #[error("it does not keep the order of operands, and the operation is not commutative")]
    Order,
    /// Only some operations go on two levels.
    #[error("only barrier, bcast, reduce, allreduce and allgather go on two levels")]
    Levels,
    /// The ranks of a group do not follow each other.
    #[error("on two levels, it needs groups of ranks that follow each other")]
    Groups,
    /// A rank would have too many children: what comes from each is waited for before anything goes to any.
    #[error("a rank would have more than {CHILDREN_MAX} children")]
    Wide,
    /// Its number has no meaning: trees of no children, no partners at a time.
    #[error("its number has no meaning")]
    Number,
}

/// Whether an algorithm does a call with these groups of ranks: all ranks agree.
pub(crate) fn suits(call: &Call<'_>, locality: &Locality, algorithm: &Algorithm) -> bool {
    misfit(call, locality, algorithm).is_none()
}

/// Why it does not, if it does not.
pub(crate) fn misfit(
    call: &Call<'_>,
    locality: &Locality,
    algorithm: &Algorithm,
) -> Option<Misfit> {
    let operation = call.operation();
    let commutative = call.reduction().is_none_or(|of| of.commutative);
    let consecutive_only = operation == Operation::Allgather || !commutative;
    let ungrouped = algorithm.within.is_some() && consecutive_only && !locality.is_consecutive();
    let general = algorithm.misfit(operation, commutative);
    general
        .or(ungrouped.then_some(Misfit::Groups))
        .or_else(|| (!is_narrow(operation, locality, algorithm)).then_some(Misfit::Wide))
}

impl Algorithm {
    /// Why it does not [do](Self::does) an operation, whatever the ranks and their groups are; none if it does.
    #[must_use]
    pub fn misfit(&self, operation: Operation, commutative: bool) -> Option<Misfit> {
        if self.does(operation, commutative) {
            return None;
        }
        let flat = Self { within: None, ..*self };
        Some(match () {
            () if !is_sound(self) => Misfit::Number,
            () if self.does(operation, true) => Misfit::Order,
            () if self.within.is_some() && flat.does(operation, true) => Misfit::Levels,
            () => Misfit::Operation,
        })
    }
}

/// Whether its numbers have a meaning.
fn is_sound(algorithm: &Algorithm) -> bool {
    algorithm.within.is_none_or(Tree::is_sound)
        && match algorithm.method {
            Method::Tree(tree) => tree.is_sound(),
            Method::Exchange(how) => how.is_sound(),
            Method::Pairwise(at_once) => at_once > 0,
            Method::Linear | Method::Doubling(_) | Method::Halving(_) => true,
        }
}

/// The most children of a node whose every child waits for what comes from every child.
const CHILDREN_MAX: usize = 64;

/// Up a tree and down again, the root's messages to its children all wait for those from its children, if these are
/// messages of their own: dependencies grow with the square of the children. A reduction joins them.
fn is_narrow(operation: Operation, locality: &Locality, algorithm: &Algorithm) -> bool {
    use Operation::{Allgather, Allgatherv, Barrier};
    if !matches!(operation, Barrier | Allgather | Allgatherv) {
        return true;
    }
    let narrow =
        |tree: Tree, n: usize| n <= CHILDREN_MAX || tree.node(0, n).children.len() <= CHILDREN_MAX;
    let groups = locality.groups();
    let (tops, within) = match algorithm.within {
        None => (locality.ranks(), true),
        Some(tree) => (groups.len(), groups.iter().all(|group| narrow(tree, group.len()))),
    };
    within && !matches!(algorithm.method, Method::Tree(tree) if !narrow(tree, tops))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Exchange, Reduction};

    #[test]
    fn what_does_not_fit_says_why() {
        let of = |commutative| Reduction { unit: 8, commutative };
        let allreduce =
            |commutative| Call::Allreduce { len: 64, of: of(commutative), in_place: false };
        let by_turns = Locality::new(vec![vec![0, 2], vec![1, 3]]).expect("all ranks");
        let why = |call: &Call<'_>, locality: &Locality, name: &str| {
            misfit(call, locality, &name.parse().expect("an algorithm"))
        };
        let flat = Locality::flat(100);
        let scan = Call::Scan { len: 64, of: of(true), in_place: false };
        let allgather = Call::Allgather { len: 64, in_place: false };
        assert_eq!(why(&scan, &flat, "ring"), Some(Misfit::Operation));
        assert_eq!(why(&allreduce(true), &flat, "ring"), None);
        assert_eq!(why(&allreduce(false), &flat, "ring"), Some(Misfit::Order));
        assert_eq!(why(&scan, &flat, "doubling over flat"), Some(Misfit::Levels));
        assert_eq!(why(&allgather, &by_turns, "ring over flat"), Some(Misfit::Groups));
        assert_eq!(why(&Call::Barrier, &flat, "flat"), Some(Misfit::Wide));
        let none = Algorithm::new(Method::Exchange(Exchange::Pat { blocks: 0 }));
        assert_eq!(misfit(&allgather, &flat, &none), Some(Misfit::Number));
    }
}
