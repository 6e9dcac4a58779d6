//! Who is gone and because of whom: what this process is sure of, what others say, and who is told.
//!
//! ```text
//!  a link ends ──► fact ──► to the neighbours: ranks r ± 2^k, or the next ones that are not gone
//!                   ▲
//!  a peer's fact ──► rumour ──► a link of one's own, which ends or cannot be made
//! ```
//!
//! Nobody is taken for gone on another's word: a rumour only has this process try a link of its own, and says whom
//! to blame once that has ended. Of a rank that is said to have departed the link need not end: if none can be made,
//! that is enough. On the word of one peer, links to few ranks are tried at a time: the next one when
//! one of those has shown the peer right.
//!
//! Each rank has links to the next one up and the next one down that are not gone, so the survivors form a ring,
//! whoever dies; the other neighbours make the way short. A neighbour is told all facts, those too that are older than
//! the link. Each process passes on one fact a rank at most, so the gossip ends.
//!
//! The ring has two gaps. A rank that broke a protocol may live on: whoever has given it up looks for another
//! neighbour, but the rank's other neighbours do not, and it may pass nothing on. A rank that has left in good order
//! stays a neighbour: a job's ranks leave so together.
//!
//! Pure: losses and messages come in, facts and neighbours go out.

use crate::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// Ranks to which links are tried at a time because one peer says that they are gone.
const CHECKS: usize = 16;

/// A rank that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fact {
    pub(crate) rank: Rank,
    /// Because of whom: the rank itself, or the one whose loss made it leave.
    pub(crate) culprit: Rank,
    /// Whether both have departed, and nobody has died.
    pub(crate) departed: bool,
    /// What became of the culprit.
    pub(crate) why: Box<str>,
}

/// What becomes of a message about a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Nobody who keeps the rules says so.
    Nonsense,
    /// There is nothing to do: it is known, cannot be, is being checked, or waits for its turn.
    Stale,
    /// A link of our own has to show it.
    Rumour,
    /// The rank says so of itself, and is gone as of now.
    Testimony,
}

/// The ranks that one peer says are gone, and whose links have not ended.
#[derive(Debug, Default)]
struct Claims {
    /// At most [`CHECKS`].
    checked: BTreeSet<Rank>,
    /// Those that are checked later.
    waiting: BTreeSet<Rank>,
}

/// All that is known of ranks that are gone.
#[derive(Debug)]
pub(crate) struct FailureGossip {
    me: Rank,
    size: u32,
    /// In the order in which they were learned; one a rank at most.
    facts: Vec<Fact>,
    /// Where in `facts` a rank is.
    gone: BTreeMap<Rank, usize>,
    /// What others say of ranks whose links have not ended here.
    rumours: BTreeMap<Rank, Fact>,
    /// Who says so.
    claims: BTreeMap<Rank, Claims>,
    /// Ranks whose turn to be checked has come.
    due: Vec<Rank>,
    /// Ranks that have left in good order.
    left: BTreeSet<Rank>,
    /// Ranks that were given up, or have given this one up, though they may live.
    cut_off: BTreeSet<Rank>,
    /// How many facts each peer has been told.
    told: BTreeMap<Rank, usize>,
    /// Whom to tell.
    neighbours: Vec<Rank>,
}

impl FailureGossip {
    pub(crate) fn new(me: Rank, size: u32) -> FailureGossip {
        let mut gossip = FailureGossip {
            me,
            size,
            facts: Vec::new(),
            gone: BTreeMap::new(),
            rumours: BTreeMap::new(),
            claims: BTreeMap::new(),
            due: Vec::new(),
            left: BTreeSet::new(),
            cut_off: BTreeSet::new(),
            told: BTreeMap::new(),
            neighbours: Vec::new(),
        };
        gossip.look_for_neighbours();
        gossip
    }

    /// The ranks that this one keeps links to, lowest first.
    pub(crate) fn neighbours(&self) -> &[Rank] {
        &self.neighbours
    }

    fn look_for_neighbours(&mut self) {
        let (me, size) = (u64::from(self.me.0), u64::from(self.size));
        let mut found = BTreeSet::new();
        let mut step = 1;
        while step < size {
            for up in [true, false] {
                let at = |offset: u64| if up { me + offset } else { me + size - offset };
                let ranks = (step..size).map(|offset| at(offset) % size);
                let mut ranks = ranks.map(|rank| Rank(u32::try_from(rank).expect("below size")));
                let none =
                    |rank: &Rank| self.gone.contains_key(rank) || self.cut_off.contains(rank);
                found.extend(ranks.find(|rank| !none(rank)));
            }
            step *= 2;
        }
        self.neighbours = found.into_iter().collect();
    }

    /// What is known of a rank that is gone.
    pub(crate) fn fact(&self, rank: Rank) -> Option<&Fact> {
        self.gone.get(&rank).map(|&at| &self.facts[at])
    }

    /// `from` says this of a rank that is gone.
    pub(crate) fn hear(&mut self, from: Rank, fact: Fact) -> Heard {
        let rank = fact.rank;
        if rank.0 >= self.size || fact.culprit.0 >= self.size {
            return Heard::Nonsense;
        }
        if rank == self.me || self.gone.contains_key(&rank) {
            return Heard::Stale;
        }
        if from == rank {
            self.rumours.insert(rank, fact);
            return Heard::Testimony;
        }
        if self.cut_off.contains(&rank) || self.left.contains(&rank) {
            // There is no link left that would tell.
            return Heard::Stale;
        }
        // The first word counts: the others only repeat it. But a peer that names another culprit knows more than one
        // that came too late to be told.
        if self.rumours.get(&rank).is_none_or(|known| known.culprit == rank && !known.departed) {
            self.rumours.insert(rank, fact);
        }
        if self.claims.values().any(|claims| claims.checked.contains(&rank)) {
            return Heard::Stale;
        }
        let claims = self.claims.entry(from).or_default();
        if claims.checked.len() == CHECKS {
            claims.waiting.insert(rank);
            return Heard::Stale;
        }
        claims.checked.insert(rank);
        Heard::Rumour
    }

    /// The link to `rank` has ended, or cannot be made: whoever said that it is gone is believed another word.
    pub(crate) fn settle(&mut self, rank: Rank) {
        for claims in self.claims.values_mut() {
            claims.waiting.remove(&rank);
            if claims.checked.remove(&rank)
                && let Some(next) = claims.waiting.pop_first()
            {
                claims.checked.insert(next);
                self.due.push(next);
            }
        }
    }

    /// Whether a peer has said why `rank` is gone.
    pub(crate) fn is_explained(&self, rank: Rank) -> bool {
        self.rumours.contains_key(&rank)
    }

    /// The ranks whose turn to be checked has come since this was last asked.
    pub(crate) fn take_due(&mut self) -> Vec<Rank> {
        std::mem::take(&mut self.due)
    }

    /// The link to `rank` has ended, as `why` says. Gives whether that is to be passed on.
    pub(crate) fn lose(&mut self, rank: Rank, why: &str) -> bool {
        self.settle(rank);
        if self.left.contains(&rank) || self.gone.contains_key(&rank) {
            return false;
        }
        let seen = || Fact { rank, culprit: rank, departed: false, why: why.into() };
        let fact = self.rumours.remove(&rank).unwrap_or_else(seen);
        self.add(fact);
        self.told.remove(&rank);
        self.look_for_neighbours();
        true
    }

    /// This process has given `rank` up, or was given up by it, or no link can be made, as `why` says: it may live. But
    /// if a peer has said that it departed, that is believed: nothing shows otherwise, and others must not wait for it.
    /// Gives whether that is to be passed on.
    pub(crate) fn cut_off(&mut self, rank: Rank, why: &str) -> bool {
        if self.has_departed(rank) {
            return self.lose(rank, why);
        }
        self.settle(rank);
        if self.cut_off.insert(rank) {
            self.look_for_neighbours();
        }
        false
    }

    /// This process leaves: because of the first death that it knows of, or else because of itself, as `why` says.
    pub(crate) fn leave(&mut self, why: &str) {
        if !self.gone.contains_key(&self.me) {
            let rank = self.me;
            let own = || Fact { rank, culprit: rank, departed: false, why: why.into() };
            let first = self.facts.iter().find(|fact| !fact.departed);
            let fact = first.map_or_else(own, |first| Fact { rank, ..first.clone() });
            self.add(fact);
        }
    }

    /// This process departs: because of `culprit`, if that one has departed, or else because of itself.
    pub(crate) fn depart(&mut self, culprit: Option<Rank>) {
        if !self.gone.contains_key(&self.me) {
            let rank = self.me;
            let culprit = culprit.filter(|&it| self.has_departed(it)).unwrap_or(rank);
            self.add(Fact { rank, culprit, departed: true, why: Box::default() });
        }
    }

    /// Whether `rank` is gone because it departed, as far as is known or said.
    pub(crate) fn has_departed(&self, rank: Rank) -> bool {
        let known = self.fact(rank).or_else(|| self.rumours.get(&rank));
        known.is_some_and(|fact| fact.departed)
    }

    /// The others that are gone.
    pub(crate) fn gone(&self) -> impl Iterator<Item = Rank> {
        self.gone.keys().copied().filter(|&rank| rank != self.me)
    }

    fn add(&mut self, fact: Fact) {
        self.gone.insert(fact.rank, self.facts.len());
        self.facts.push(fact);
    }

    /// Whether this process has said that it leaves.
    pub(crate) fn is_leaving(&self) -> bool {
        self.gone.contains_key(&self.me)
    }

    /// `rank` has said that it leaves in good order: its end is nobody's fault.
    pub(crate) fn leaves_well(&mut self, rank: Rank) {
        self.left.insert(rank);
    }

    pub(crate) fn has_left(&self, rank: Rank) -> bool {
        self.left.contains(&rank)
    }

    /// The next fact that `peer` has not been told.
    pub(crate) fn owed(&self, peer: Rank) -> Option<&Fact> {
        self.facts.get(self.told.get(&peer).copied().unwrap_or(0))
    }

    /// `peer` has been told what it was [owed](FailureGossip::owed).
    pub(crate) fn tell(&mut self, peer: Rank) {
        *self.told.entry(peer).or_insert(0) += 1;
    }
}

#[cfg(test)]
mod tests;
