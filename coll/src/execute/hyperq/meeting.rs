//! Whether all ranks' buffers lie in memory of devices, for calls that do not stay on a GPU: then they go by messages,
//! which move such memory from layout to layout, and not through memory of the host that all ranks share.
//!
//! Rank 0 leads: it waits until all have come, or one has said that it goes by other means, and tells the others. It
//! ends its call when all have read that they go by messages, because orders of later calls are written to the same
//! place. A leader that goes another way, or fails, waits for nobody: whoever finds it past the call knows that.
//!
//! If the leader dies while it tells the others, some go by messages and learn of its death there.

use gapless_pml::Pml;

use super::control::{Control, ELSEWHERE, FAILED, MESSAGES, Presence, SEEN};
use super::{Ended, Members};
use crate::execute::CollError;

/// Who tells the others.
const LEADER: usize = 0;
/// The GPU that is named where none matters.
const NO_GPU: u128 = 0;

/// A rank's part in finding out.
#[derive(Debug)]
pub(super) struct Meeting {
    number: u64,
    /// The leader has told the others that all are there.
    told: bool,
}

impl Meeting {
    /// This rank has come.
    pub(super) fn new(number: u64, me: usize, control: &Control) -> Meeting {
        control.arrive(me, number, Some(NO_GPU), false);
        Meeting { number, told: false }
    }

    /// Goes on as far as it can; how it has ended, if it has.
    pub(super) fn advance(
        &mut self,
        members: &Members,
        control: &Control,
        pml: &mut Pml,
    ) -> Option<Ended> {
        match members.me == LEADER {
            true => self.lead(members, control, pml),
            false => self.follow(members, control, pml),
        }
    }

    fn lead(&mut self, members: &Members, control: &Control, pml: &mut Pml) -> Option<Ended> {
        let (number, order) = (self.number, |orders| {
            members.others().for_each(|rank| control.order(LEADER, rank, self.number, orders));
        });
        let presence = |rank| control.presence(rank, number);
        if self.told {
            // One that has read it may be in a later call, or lost.
            let has_read = |rank: usize, pml: &mut Pml| {
                control.reports(rank, number) & SEEN != 0
                    || presence(rank) == Presence::Elsewhere
                    || members.loss(pml, rank).is_some()
            };
            return members.others().all(|rank| has_read(rank, pml)).then_some(Ended::ByMessages);
        }
        if members.others().any(|rank| presence(rank) == Presence::Elsewhere) {
            order(ELSEWHERE);
            return Some(Ended::Elsewhere);
        }
        let away = members.others().filter(|rank| presence(*rank) == Presence::Away);
        let mut all = true;
        for rank in away {
            all = false;
            if let Some(loss) = members.loss(pml, rank) {
                for other in members.others() {
                    let (culprit, is_lost) = loss.blames(0);
                    control.blame(LEADER, other, culprit, is_lost);
                    control.fail(LEADER, other, number);
                }
                order(FAILED);
                return Some(Ended::Failed(loss));
            }
        }
        if all {
            order(MESSAGES);
            self.told = true;
        }
        None
    }

    fn follow(&self, members: &Members, control: &Control, pml: &mut Pml) -> Option<Ended> {
        let (me, number) = (members.me, self.number);
        // Before the orders: of a leader that is past the call nothing more comes.
        let is_past = control.presence(LEADER, number) == Presence::Elsewhere;
        let orders = control.orders(LEADER, me, number);
        if orders & MESSAGES != 0 {
            control.report(me, number, SEEN);
            return Some(Ended::ByMessages);
        }
        if orders & FAILED != 0 || is_past && control.failed(LEADER, me, number) {
            let blamed = control.blamed(LEADER, me);
            return Some(Ended::Failed(CollError::blamed(blamed, members.size(), LEADER)));
        }
        // That order may have been overwritten by a later call's.
        if orders & ELSEWHERE != 0 || is_past {
            return Some(Ended::Elsewhere);
        }
        let loss = members.loss(pml, LEADER)?;
        // It may have told this rank before it was lost.
        if control.orders(LEADER, me, number) != 0 {
            return None;
        }
        // A leader that this rank alone has lost is not to wait for it.
        control.arrive(me, number, None, false);
        Some(Ended::Failed(loss))
    }

    /// Whether [`advance`](Meeting::advance) would get on, as far as a few loads tell.
    pub(super) fn look(&self, members: &Members, control: &Control) -> bool {
        let presence = |rank| control.presence(rank, self.number);
        match members.me == LEADER {
            true => {
                self.told
                    || members.others().all(|rank| presence(rank) != Presence::Away)
                    || members.others().any(|rank| presence(rank) == Presence::Elsewhere)
            }
            false => {
                control.orders(LEADER, members.me, self.number) != 0
                    || presence(LEADER) == Presence::Elsewhere
            }
        }
    }
}
