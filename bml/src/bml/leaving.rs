//! Leaving with the others, or without them: the part of a `Bml` that asks who leaves, and departs.

use super::Bml;
use super::deaths::LEAVING;
use crate::Rank;
use crate::failure_gossip::Fact;
use gapless_btl::LinkError;

impl Bml {
    /// Tells all peers that are linked, now or later, that this process leaves although others may need it: it departs.
    /// That may be because of another one, if that has departed. Those peers lose this process as soon as they read that,
    /// and it is no [casualty](Bml::casualty). Gives because of whom.
    pub fn depart(&mut self, because: Option<Rank>) -> Rank {
        self.gossip.depart(because);
        self.owing = true;
        self.settle();
        self.gossip.fact(self.me).map_or(self.me, |fact| fact.culprit)
    }

    /// Says that this process is at a step of leaving together with the others: 0 or 1. It must not depart any more.
    ///
    /// # Panics
    /// There is no such step.
    pub fn leave_together(&mut self, step: usize) {
        if self.roll_call.enter(step, self.me) {
            self.owing = true;
            self.settle();
        }
    }

    /// Whether all processes that are not lost are at this step; then, whether none is lost. If so, all others will find
    /// the same.
    ///
    /// # Panics
    /// There is no such step.
    #[must_use]
    pub fn is_together(&self, step: usize) -> Option<bool> {
        self.roll_call.is_over(step, self.gossip.gone())
    }

    /// A peer without a link has departed, and says so where its address was.
    pub(super) fn lose_departed(&mut self, peer: Rank) {
        let why = Box::default();
        self.gossip.hear(peer, Fact { rank: peer, culprit: peer, departed: true, why });
        self.lose_endpoint(peer, &LinkError::Departed);
        self.note_loss(peer, &LinkError::Departed);
        self.given_up.push((peer, LinkError::Departed));
    }

    /// A process that has departed, if any, and why it counts as lost.
    #[must_use]
    pub fn deserter(&self) -> Option<(Rank, LinkError)> {
        let rank = self.gossip.gone().find(|&rank| self.gossip.has_departed(rank))?;
        self.blame(rank)
    }

    /// Tells neighbours who leaves. Gives whether all of them were told.
    pub(super) fn call_roll(&mut self) -> bool {
        let neighbours: Vec<Rank> = self.gossip.neighbours().to_vec();
        let mut all = true;
        for peer in neighbours {
            if !self.is_linked(peer) {
                continue;
            }
            while let Some((word, count)) = self.roll_call.owed(peer) {
                if !self.say_to(peer, &[&[LEAVING], &word[..]].concat()) {
                    all = false;
                    break;
                }
                self.roll_call.tell(peer, &word, count);
            }
        }
        all
    }
}
