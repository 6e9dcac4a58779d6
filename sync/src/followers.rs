//! Of the threads that wait in one process, one leads: it polls, and handles what comes for all. The others follow:
//! they sleep until their own request has ended, or until it is their turn to lead.
//!
//! ```text
//!              lead           stop_waiting: wakes a follower
//! newcomer ───────────▶ leader ───────────────────────────────▶ gone
//!    │ ▲                 │  ▲
//!    │ └── told ──┐ arm  │  │ lead
//!    ▼   follow   │      ▼  │
//!    follower ────┘    asleep: a message wakes it; a newcomer that would poll may take its place
//! ```
//!
//! [`Followers`] belongs under the lock that the leader polls with, so that nobody falls asleep unseen. Whoever stops
//! waiting calls [`Followers::stop_waiting`] before it releases that lock, and then wakes whom that names: so there are
//! never only followers. loom explores this for leaders that do not sleep: `models`, below.

use crate::Parker;
use std::collections::VecDeque;
use std::sync::Arc;

/// Names a leader. A leader that was replaced has an old id, and so knows that it leads no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaderId(u64);

/// Who leads, and who follows.
#[derive(Debug, Default)]
pub struct Followers {
    /// The id that was given out last; 0 is none.
    last: u64,
    /// Who leads.
    leader: Option<LeaderId>,
    /// The leader is asleep.
    asleep: bool,
    /// Those who sleep, the longest first.
    sleeping: VecDeque<Arc<Parker>>,
}

impl Followers {
    /// Makes the caller lead, if nobody else does; whether it leads. `id` is the caller's own, at first the
    /// default. A leader that sleeps is replaced if the caller is `eager`.
    #[inline]
    pub fn lead(&mut self, id: &mut LeaderId, eager: bool) -> bool {
        if self.leads(*id) {
            self.asleep = false;
            return true;
        }
        if self.leader.is_some() && !(self.asleep && eager) {
            return false;
        }
        self.last += 1;
        *id = LeaderId(self.last);
        self.leader = Some(*id);
        self.asleep = false;
        true
    }

    /// The leader falls asleep, where a message wakes it.
    pub fn arm(&mut self, id: LeaderId) {
        self.asleep |= self.leads(id);
    }

    /// The caller will sleep until it is told. It has checked that it has to wait, with the lock held since.
    pub fn follow(&mut self, parker: &Arc<Parker>) {
        self.sleeping.push_back(Arc::clone(parker));
    }

    /// The caller has woken.
    pub fn rise(&mut self, parker: &Arc<Parker>) {
        self.sleeping.retain(|other| !Arc::ptr_eq(other, parker));
    }

    /// The caller stops waiting, as a leader or not. If nobody leads now, gives a follower to wake.
    #[inline]
    #[must_use = "otherwise nobody leads"]
    pub fn stop_waiting(&mut self, id: LeaderId) -> Option<Arc<Parker>> {
        if self.leads(id) {
            self.leader = None;
        }
        if self.leader.is_some() { None } else { self.sleeping.pop_front() }
    }

    /// Whether somebody leads, awake or asleep.
    #[inline]
    #[must_use]
    pub fn are_led(&self) -> bool {
        self.leader.is_some()
    }

    /// Whether the leader is asleep.
    #[must_use]
    pub fn are_led_asleep(&self) -> bool {
        self.leader.is_some() && self.asleep
    }

    /// How many sleep.
    #[inline]
    #[must_use]
    pub fn sleeping(&self) -> usize {
        self.sleeping.len()
    }

    #[inline]
    fn leads(&self, id: LeaderId) -> bool {
        self.leader == Some(id)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_leads_at_a_time() {
        let mut followers = Followers::default();
        let (mut first, mut second) = (LeaderId::default(), LeaderId::default());
        assert!(followers.lead(&mut first, true) && followers.lead(&mut first, true));
        assert!(!followers.lead(&mut second, true), "the leader is awake");
        assert_eq!(followers.sleeping(), 0);
        assert!(followers.stop_waiting(second).is_none() && followers.are_led());
        assert!(followers.stop_waiting(first).is_none() && !followers.are_led());
        assert!(followers.lead(&mut second, false));
        assert!(!followers.lead(&mut first, false), "its id is void");
    }

    #[test]
    fn a_leader_that_sleeps_is_replaced_by_who_would_poll_and_knows_it_when_it_wakes() {
        let mut followers = Followers::default();
        let (mut first, mut second) = (LeaderId::default(), LeaderId::default());
        assert!(followers.lead(&mut first, true));
        followers.arm(first);
        assert!(followers.are_led_asleep() && !followers.lead(&mut second, false));
        assert!(followers.lead(&mut second, true) && !followers.are_led_asleep());
        assert!(!followers.lead(&mut first, true));
        followers.arm(first);
        assert!(
            !followers.lead(&mut first, true),
            "who does not lead does not fall asleep as the leader"
        );
        followers.arm(second);
        assert!(followers.lead(&mut second, false), "it was not replaced");
        assert!(!followers.lead(&mut first, true), "it is awake again");
    }

    #[test]
    fn who_retires_hands_on_to_who_has_slept_longest() {
        let mut followers = Followers::default();
        let parkers: Vec<_> = (0..3).map(|_| Arc::new(Parker::default())).collect();
        let mut id = LeaderId::default();
        assert!(followers.lead(&mut id, true));
        parkers.iter().for_each(|parker| followers.follow(parker));
        followers.rise(&parkers[1]);
        assert!(followers.stop_waiting(LeaderId::default()).is_none(), "there is a leader");
        let next = followers.stop_waiting(id).unwrap();
        assert!(Arc::ptr_eq(&next, &parkers[0]));
        // Its own wait has ended meanwhile: the role goes on.
        followers.rise(&next);
        let next = followers.stop_waiting(LeaderId::default()).unwrap();
        assert!(Arc::ptr_eq(&next, &parkers[2]));
        assert!(followers.stop_waiting(LeaderId::default()).is_none());
    }
}

/// Threads that each wait for a message of their own, while a poll brings one message, of whomever's turn it is:
///
/// ```text
/// RUSTFLAGS="--cfg loom" cargo test -p gapless-sync --lib --release --target-dir target/loom
/// ```
///
/// Each weakening was made, one at a time, and a model failed: a leader, or a follower that was to lead next, ends
/// without handing on; a call that comes before the sleep is forgotten.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Mutex;
    use loom::thread;
    use std::time::Duration;

    struct World {
        followers: Followers,
        /// Whose message comes next, if any does.
        order: Vec<Option<usize>>,
        come: Vec<bool>,
        told: Vec<Option<Arc<Parker>>>,
    }

    fn wait(world: &Mutex<World>, me: usize) {
        let (mut id, parker) = (LeaderId::default(), Arc::new(Parker::default()));
        let mut state = world.lock().unwrap();
        while !state.come[me] {
            if state.followers.lead(&mut id, true) {
                // A poll; the lock is let go of between two.
                let whose = state.order.pop().expect("a message for everybody");
                let told = whose.and_then(|whose| {
                    state.come[whose] = true;
                    state.told[whose].take()
                });
                drop(state);
                if let Some(told) = told {
                    told.unpark();
                }
            } else {
                state.told[me] = Some(Arc::clone(&parker));
                state.followers.follow(&parker);
                drop(state);
                parker.park(Duration::MAX);
                world.lock().unwrap().followers.rise(&parker);
            }
            state = world.lock().unwrap();
        }
        let next = state.followers.stop_waiting(id);
        drop(state);
        if let Some(next) = next {
            next.unpark();
        }
    }

    /// Messages come from the back of `order`; at `NOBODY` none does.
    fn model(count: usize, order: &'static [usize]) {
        let mut explored = loom::model::Builder::new();
        explored.preemption_bound = Some(3);
        explored.check(move || {
            let world = Arc::new(Mutex::new(World {
                followers: Followers::default(),
                order: order.iter().map(|&whose| (whose < count).then_some(whose)).collect(),
                come: vec![false; count],
                told: vec![None; count],
            }));
            let others: Vec<_> = (1..count)
                .map(|me| {
                    let world = Arc::clone(&world);
                    thread::spawn(move || wait(&world, me))
                })
                .collect();
            wait(&world, 0);
            others.into_iter().for_each(|other| other.join().unwrap());
            let state = world.lock().unwrap();
            assert!(state.come.iter().all(|come| *come) && !state.followers.are_led());
        });
    }

    const NOBODY: usize = usize::MAX;

    #[test]
    fn followers_two_in_either_order() {
        model(2, &[0, 1]);
        model(2, &[1, 0]);
    }

    #[test]
    fn followers_three_of_which_one_is_woken_to_lead() {
        model(3, &[0, 1, 2]);
        model(3, &[2, 1, 0]);
        // Who is to lead next has its message already.
        model(3, &[2, 0, 1, NOBODY]);
    }
}
