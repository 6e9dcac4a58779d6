//! Reductions by tasks (LeBeane et al., *Extended Task Queuing*, SC 2016, §V.C.2): what a member would receive only to
//! combine it is put as a task that combines it there. Before the first task a target says that it is ready.
//!
//! Sums are made in scratch memory, where a task finds whole elements without gaps whatever the user's layout is. Tasks
//! of one place follow each other, in an order that the schedule gives: results do not depend on which comes first.
use crate::area::{Area, Cuts};
use crate::builder::Builder;
use crate::team::Team;
use crate::tree::Tree;

/// Combines the members' inputs at position 0, up a binomial tree. `result` is position 0's and may be its input.
///
/// The operation must be commutative. A member asks its children one after the other, the one with the fewest below it
/// first: when that one's task has ended, the next is ready about as early as it is asked.
pub(crate) fn reduce(b: &mut Builder, team: &Team, input: Area, result: Option<Area>) {
    let node = Tree::Binomial.node(team.me, team.len());
    let mut children: Vec<_> = node.children.iter().map(|child| child.start).collect();
    children.sort_unstable();
    let mut sum = input;
    if !children.is_empty() && !input.is_empty() {
        sum = b.scratch(input.len);
        b.copy(input, sum);
    }
    for child in children.into_iter().filter(|_| !input.is_empty()) {
        let child = team.rank(child);
        b.tell_ready(child, sum);
        b.task(child, sum);
    }
    if let Some(parent) = node.parent.filter(|_| !input.is_empty()) {
        let parent = team.rank(parent);
        b.hear_ready(parent);
        b.put(parent, sum);
    }
    if let Some(result) = result {
        b.copy(sum, result);
    }
}

/// Each member has an input of all blocks; gives where this one has the combination of all members' block of its
/// position. The operation must be commutative.
///
/// Sums go round a ring: a task adds what comes for a block to this member's part of it, and when it has ended, the sum
/// is put at the next member. All blocks but the first that is put get one task each, so one message says for all of
/// them that this member is ready.
pub(crate) fn reduce_scatter(b: &mut Builder, team: &Team, input: Area, cuts: &Cuts) -> Area {
    let (me, n) = (team.me, team.len());
    let block = |distance: usize| cuts.range((me + distance) % n..(me + distance) % n + 1);
    if n == 1 || input.is_empty() {
        return input.cut(block(n));
    }
    let (next, before) = (team.rank((me + 1) % n), team.rank((me + n - 1) % n));
    let sums = b.scratch(input.len);
    b.copy_all((2..=n).map(|distance| (input.cut(block(distance)), sums.cut(block(distance)))));
    b.hear_ready(before);
    b.tell_ready(next, sums);
    let mut partial = input.cut(block(1));
    for distance in 2..=n {
        b.put(before, partial);
        partial = sums.cut(block(distance));
        b.task(next, partial);
    }
    partial
}
