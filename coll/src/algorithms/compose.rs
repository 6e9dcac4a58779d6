//! Operations among a team, by method: what a method has no pattern of its own for is made of two phases.
//!
//! Which methods an operation has, `Algorithm::does` says; others do not come here.
use crate::algorithm::{Exchange, Method};
use crate::algorithms::over_tree::{self, Spread};
use crate::algorithms::{butterfly, exchange, tasks};
use crate::area::{Area, Cuts};
use crate::builder::Builder;
use crate::call::Reduction;
use crate::team::Team;
use crate::tree::Tree;

/// All wait for all.
pub(crate) fn barrier(b: &mut Builder, team: &Team, method: Method) {
    match method {
        Method::Tree(tree) => over_tree::barrier(b, team, tree),
        Method::Exchange(_) => dissemination(b, team),
        _ => {
            let others =
                |team: &Team| (0..team.len()).filter(|p| *p != team.me).collect::<Vec<_>>();
            others(team).into_iter().for_each(|other| b.tell(team.rank(other)));
            others(team).into_iter().for_each(|other| b.hear(team.rank(other)));
        }
    }
}

/// In round `i` each tells the one `2^i` on.
fn dissemination(b: &mut Builder, team: &Team) {
    let (me, n) = (team.me, team.len());
    let mut distance = 1;
    while distance < n {
        b.tell(team.rank((me + distance) % n));
        b.hear(team.rank((me + n - distance) % n));
        distance *= 2;
    }
}

/// Position 0 has the bytes of `area`; in the end all have.
pub(crate) fn bcast(b: &mut Builder, team: &Team, method: Method, area: Area, segment: u64) {
    match method {
        Method::Exchange(how) => {
            let cuts = Cuts::even(team.len(), area.len, b.unit());
            let own = area.cut(cuts.range(team.me..team.me + 1));
            let spread = Spread { cuts: &cuts, shift: 0 };
            over_tree::scatter(b, team, Tree::Binomial, Some(area), own, &spread);
            b.set_segment(segment);
            exchange::allgather_from_full(b, team, how, area, &cuts);
            b.set_segment(0);
        }
        Method::Tree(tree) => over_tree::bcast(b, team, tree, area, segment),
        _ => over_tree::bcast(b, team, Tree::Binomial, area, segment),
    }
}

/// Combines the inputs at position `root`, where `result` is, which may be the input.
pub(crate) fn reduce(
    b: &mut Builder,
    team: &Team,
    root: usize,
    (method, segment): (Method, u64),
    (input, result): (Area, Option<Area>),
    of: Reduction,
) {
    // Operands that may not change places are combined from position 0 on, whoever the root is.
    let turned = if of.commutative { team.from(root) } else { team.clone() };
    let first = if of.commutative { root } else { 0 };
    match method {
        Method::Halving => {
            let sum = result.unwrap_or_else(|| b.scratch(input.len));
            butterfly::reduce(b, team, root, input, sum);
        }
        Method::Xtq => {
            b.set_segment(segment);
            tasks::reduce(b, &turned, input, result);
            b.set_segment(0);
        }
        Method::Exchange(how) => {
            let cuts = Cuts::even(team.len(), input.len, b.unit());
            let own = b.scratch(cuts.len(turned.me));
            b.set_segment(segment);
            exchange::reduce_scatter(b, &turned, how, input, &cuts, own);
            b.set_segment(0);
            let spread = Spread { cuts: &cuts, shift: 0 };
            // Pieces lie by position: any tree whose root is the root will do.
            let to_root = turned.from((root + team.len() - first) % team.len());
            let spread = Spread { shift: (root + team.len() - first) % team.len(), ..spread };
            over_tree::gather(b, &to_root, Tree::Binomial, own, result, &spread);
        }
        _ => {
            let tree = if let Method::Tree(tree) = method { tree } else { Tree::Binomial };
            if of.commutative || root == 0 {
                return over_tree::reduce(b, &turned, tree, input, result, segment);
            }
            let sum = (team.me == 0).then(|| b.scratch(input.len));
            over_tree::reduce(b, team, tree, input, sum, segment);
            b.set_segment(segment);
            if let Some(sum) = sum {
                b.send(team.rank(root), sum);
            } else if let Some(result) = result.filter(|_| team.me == root) {
                b.receive(team.rank(0), result);
            }
            b.set_segment(0);
        }
    }
}

/// Combines the inputs at all. `result` may be the input.
pub(crate) fn allreduce(
    b: &mut Builder,
    team: &Team,
    (method, segment): (Method, u64),
    (input, result): (Area, Area),
    of: Reduction,
) {
    match method {
        Method::Doubling => butterfly::doubling(b, team, input, result),
        Method::Halving => butterfly::allreduce(b, team, input, result),
        Method::Exchange(how) => {
            let cuts = Cuts::even(team.len(), input.len, b.unit());
            let place = result.cut(cuts.range(team.me..team.me + 1));
            b.set_segment(segment);
            let out = if input == result { b.scratch(place.len) } else { place };
            exchange::reduce_scatter(b, team, how, input, &cuts, out);
            b.copy(out, place);
            exchange::allgather(b, team, how, result, &cuts);
            b.set_segment(0);
        }
        Method::Xtq => {
            let cuts = Cuts::even(team.len(), input.len, b.unit());
            b.set_segment(segment);
            let sum = tasks::reduce_scatter(b, team, input, &cuts);
            b.copy(sum, result.cut(cuts.range(team.me..team.me + 1)));
            exchange::allgather(b, team, Exchange::Ring, result, &cuts);
            b.set_segment(0);
        }
        Method::Linear => {
            let n = team.len();
            let mut sources = vec![input; n];
            for distance in 1..n {
                let (to, from) = ((team.me + distance) % n, (team.me + n - distance) % n);
                b.send(team.rank(to), input);
                sources[from] = b.scratch(input.len);
                b.receive(team.rank(from), sources[from]);
            }
            b.reduce(&sources, result);
        }
        method => {
            let at_root = (team.me == 0).then_some(result);
            reduce(b, team, 0, (method, segment), (input, at_root), of);
            bcast(b, team, method, result, segment);
        }
    }
}

/// Each has its block of `area`; in the end each has all.
pub(crate) fn allgather(
    b: &mut Builder,
    team: &Team,
    (method, segment): (Method, u64),
    area: Area,
    cuts: &Cuts,
) {
    b.set_segment(segment);
    match method {
        Method::Tree(tree) => {
            let own = area.cut(cuts.range(team.me..team.me + 1));
            let spread = Spread { cuts, shift: 0 };
            over_tree::gather(b, team, tree, own, Some(area), &spread);
            over_tree::bcast(b, team, tree, area, segment);
        }
        Method::Exchange(how) => exchange::allgather(b, team, how, area, cuts),
        _ => exchange::allgather(b, team, Exchange::Ring, area, cuts),
    }
    b.set_segment(0);
}

/// Combines the inputs; each gets its block. `out` must not be part of the input.
pub(crate) fn reduce_scatter(
    b: &mut Builder,
    team: &Team,
    (method, segment): (Method, u64),
    (input, cuts, out): (Area, &Cuts, Area),
    of: Reduction,
) {
    match method {
        Method::Exchange(how) => {
            b.set_segment(segment);
            exchange::reduce_scatter(b, team, how, input, cuts, out);
            b.set_segment(0);
        }
        Method::Halving => butterfly::reduce_scatter(b, team, input, cuts, out),
        Method::Xtq => {
            b.set_segment(segment);
            let sum = tasks::reduce_scatter(b, team, input, cuts);
            b.copy(sum, out);
            b.set_segment(0);
        }
        method => {
            let tree = if let Method::Tree(tree) = method { tree } else { Tree::Binomial };
            let sum = (team.me == 0).then(|| b.scratch(input.len));
            reduce(b, team, 0, (method, segment), (input, sum), of);
            let spread = Spread { cuts, shift: 0 };
            over_tree::scatter(b, team, tree, sum, out, &spread);
        }
    }
}
