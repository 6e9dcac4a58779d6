//! Whether an algorithm does a call, and if not, why.
use crate::algorithm::{Algorithm, Method};
use crate::call::Call;
use crate::error::{CHILDREN_MAX, Misfit};
use crate::level::Within;
use crate::locality::Locality;
use crate::operation::Operation;
use crate::tree::Tree;

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
    if algorithm.method == Method::Shared {
        return Some(Misfit::Shared);
    }
    let operation = call.operation();
    let commutative = call.reduction().is_none_or(|of| of.commutative);
    let consecutive_only = operation.keeps_groups_together() || !commutative;
    let ungrouped = consecutive_only && !locality.is_consecutive(&algorithm.within);
    let general = algorithm.misfit(operation, commutative);
    general
        .or_else(|| locality.missing(&algorithm.within).map(Misfit::Unknown))
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
        let flat = Self { within: Within::NONE, ..*self };
        let finer = self.within.is_shared() && self.within != Within::SHARED;
        if finer || (self.method == Method::Shared && flat.segmented(0).does(operation, true)) {
            return Some(Misfit::Whole);
        }
        Some(match () {
            () if !is_sound(self) => Misfit::Number,
            () if self.does(operation, true) => Misfit::Order,
            () if !self.within.is_empty() && flat.does(operation, true) => Misfit::Levels,
            () => Misfit::Operation,
        })
    }
}

/// Whether its numbers have a meaning.
fn is_sound(algorithm: &Algorithm) -> bool {
    algorithm.within.levels().all(|(_, tree)| tree.is_sound()) && algorithm.method.is_sound()
}

/// Up a tree and down again, the root's messages to its children all wait for those from its children, if these are
/// messages of their own: dependencies grow with the square of the children. A reduction joins them.
fn is_narrow(operation: Operation, locality: &Locality, algorithm: &Algorithm) -> bool {
    use Operation::{Allgather, Allgatherv, Barrier};
    if !matches!(operation, Barrier | Allgather | Allgatherv) {
        return true;
    }
    let narrow =
        |tree: Tree, n: usize| n <= CHILDREN_MAX || tree.node(0, n).children.len() <= CHILDREN_MAX;
    let (top, within) = sizes(locality, algorithm);
    within.into_iter().all(|(tree, n)| narrow(tree, n))
        && !matches!(algorithm.method, Method::Tree(tree) if !narrow(tree, top))
}

/// Among how many ranks the method is, and each level's tree at most.
fn sizes(locality: &Locality, algorithm: &Algorithm) -> (usize, Vec<(Tree, usize)>) {
    let used: Vec<_> = locality.used(&algorithm.within).collect();
    let top = used.first().map_or(locality.ranks(), |(groups, _)| groups.all().len());
    let each = used.iter().enumerate().map(|(index, (groups, tree))| {
        let mut members = vec![0; groups.all().len()];
        match used.get(index + 1) {
            None => groups.all().iter().zip(&mut members).for_each(|(it, n)| *n = it.len()),
            Some((finer, _)) => {
                finer.all().iter().for_each(|it| members[groups.of(it[0])] += 1);
            }
        }
        (*tree, members.into_iter().max().unwrap_or(0))
    });
    (top, each.collect())
}

/// How much memory of its own a rank may take for an algorithm to be proposed: so many times the bytes that the rank
/// with the largest buffers sends and receives,
const SCRATCH_TIMES_MAX: u64 = 4;
/// and so many bytes more.
const SCRATCH_MORE_MAX: u64 = 1 << 20;

/// Whether no rank takes more memory than that. What costs much is whole operands that come to a rank at once; whatever
/// else there is takes less.
pub(crate) fn is_frugal(call: &Call<'_>, locality: &Locality, algorithm: &Algorithm) -> bool {
    let ranks = locality.ranks() as u64;
    let (vector, block) = match *call {
        Call::Reduce { len, .. } | Call::Allreduce { len, .. } => (len, len),
        Call::ReduceScatterBlock { len, .. } => (len.saturating_mul(ranks), len),
        Call::ReduceScatter { lens, .. } => {
            (call.bytes().unwrap_or(u64::MAX), lens.iter().copied().max().unwrap_or(0))
        }
        // Each rank has once what its group gets, and a leader three times that: what the group sends, the same in the
        // order of the groups, and what comes.
        Call::Alltoall { len, .. } => {
            let groups = locality.used(&algorithm.within).next();
            let largest = groups.map(|(groups, _)| groups.all().iter().map(Vec::len).max());
            let scratch = 3 * largest.flatten().unwrap_or(0) as u64;
            let buffer = len.saturating_mul(ranks);
            let more = scratch.saturating_sub(2 * SCRATCH_TIMES_MAX);
            return buffer.saturating_mul(more) <= SCRATCH_MORE_MAX;
        }
        _ => return true,
    };
    let operands = operands(locality, algorithm);
    if operands == 0 {
        return true;
    }
    let operand = match algorithm.segment {
        0 => vector,
        segment => vector.min(segment.saturating_mul(2)),
    };
    // And what the rank makes of them, which in the end may be scattered.
    let scratch =
        operand.saturating_mul(operands as u64 + 1).saturating_add(vector.saturating_mul(2));
    let buffers = vector.saturating_add(block);
    scratch <= buffers.saturating_mul(SCRATCH_TIMES_MAX).saturating_add(SCRATCH_MORE_MAX)
}

/// The most operands that come to a rank at once, from other ranks.
fn operands(locality: &Locality, algorithm: &Algorithm) -> usize {
    let children = |tree: Tree, n: usize| tree.node(0, n).children.len();
    let (top, within) = sizes(locality, algorithm);
    let among = match algorithm.method {
        Method::Linear => top.saturating_sub(1),
        Method::Tree(tree) => children(tree, top),
        _ => 0,
    };
    among + within.into_iter().map(|(tree, n)| children(tree, n)).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Exchange;
    use crate::call::Reduction;
    use gapless_bml::Level;

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
        for call in [&allgather, &Call::Gather { root: 1, len: 64, in_place: false }] {
            assert_eq!(why(call, &by_turns, "binomial over flat"), Some(Misfit::Groups));
        }
        assert_eq!(why(&Call::Barrier, &flat, "flat"), Some(Misfit::Wide));
        let unknown = Some(Misfit::Unknown(Level::Numa));
        assert_eq!(why(&Call::Barrier, &flat, "bruck over numa flat"), unknown);
        let halves = vec![(0..50).collect(), (50..100).collect()];
        let nodes = flat.clone().with(Level::Numa, halves).expect("parts of a host");
        assert_eq!(why(&Call::Barrier, &nodes, "bruck over numa flat"), None);
        let singles = (0..100).map(|rank| vec![rank]).collect();
        let caches = nodes.with(Level::L3, singles).expect("parts of nodes");
        assert_eq!(
            why(&Call::Barrier, &caches, "bruck over flat over l3 flat"),
            Some(Misfit::Wide)
        );
        let none = Algorithm::new(Method::Exchange(Exchange::Pat { blocks: 0 }));
        assert_eq!(misfit(&allgather, &flat, &none), Some(Misfit::Number));
    }
}
