//! How threads wait: one leads, the others follow (`gapless_sync::Followers`).
//!
//! The leader polls, and handles what comes for all. It spins as long as that is likely to pay (`gapless_bml::Spin`),
//! and then sleeps where the transports wake it. A follower that waits for one request sleeps until that has ended or
//! it is its turn to lead. Whoever waits for anything else sleeps on the alarm, which is signalled when something was
//! handled.

use super::stuck::{self, WaitHistory};
use super::{Shared, StateGuard, WorldStage, WorldState};
use crate::error::Error;
use gapless_bml::{Waiter, now_ns, switches};
use gapless_pml::{Doing, RequestId, WaitingCall};
use gapless_sync::{LeaderId, Parker};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;
use std::time::Duration;

/// Quick checks in a row that a leader makes without releasing the lock, unless others want it.
const LOOKS_PER_TURN: u32 = 32;

/// Quick checks in a row if others follow, and how long the leader then pauses without the lock: a leader that the
/// system interrupts while it has the lock holds up all threads.
const SHARED_TURN: (u32, u32) = (8, 32);

/// One of this many quick checks is a full poll in any case.
const LOOKS_PER_POLL: u32 = 8;

/// How long a follower sleeps at a time, at most. In tests of this crate a lost wake-up is a hang.
const NAP: Duration =
    if cfg!(test) { Duration::from_secs(3600) } else { Duration::from_millis(50) };

/// How often a leader checks whether the threads that want the lock have had it, and after how many checks the leader
/// yields in between.
const GIVE_WAY: (u32, u32) = (64, 48);

/// What a waiting caller finds.
#[derive(Debug)]
pub(crate) enum Look<T> {
    /// What the caller waits for.
    Found(T),
    /// Nothing before this request has ended.
    Until(RequestId),
    /// Nothing yet; anything may change that.
    NotYet,
}

impl<T> Look<T> {
    /// The request that is waited for, if it is one.
    fn until(&self) -> Option<RequestId> {
        match self {
            Look::Until(id) => Some(*id),
            Look::Found(_) | Look::NotYet => None,
        }
    }
}

impl<T> From<Option<T>> for Look<T> {
    fn from(found: Option<T>) -> Look<T> {
        found.map_or(Look::NotYet, Look::Found)
    }
}

/// What comes after a leader's turn.
enum AfterTurn {
    /// Another turn.
    Another,
    /// Another turn, once others have had the processor.
    Yield,
    Sleep,
}

/// A waiting thread, if waiting threads are counted.
struct Waiting<'s>(Option<&'s AtomicU32>);

impl Waiting<'_> {
    fn new(shared: &Shared) -> Waiting<'_> {
        let counted = shared.has_thread.load(Ordering::Relaxed).then_some(&shared.waiting);
        if let Some(waiting) = counted {
            waiting.fetch_add(1, Ordering::Relaxed);
        }
        Waiting(counted)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.0 {
            waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// One wait.
pub(super) struct Wait<'w> {
    leader_id: LeaderId,
    waiter: Waiter,
    /// Turns in a row after which the leader yielded.
    yields: u32,
    /// Where the thread sleeps as a follower; made when it first follows.
    parker: Option<Arc<Parker>>,
    /// Says which call it is; asked only of waits that take long.
    pub(super) what: &'w dyn Fn() -> Doing,
    /// The request whose end the caller waits for, as of its last look.
    pub(super) until: Option<RequestId>,
    pub(super) history: WaitHistory,
}

impl Shared {
    /// Makes progress until `ready` gives something.
    ///
    /// # Errors
    /// A panic in another thread; the world has been left before.
    pub(crate) fn wait_until<T>(
        &self,
        ready: impl FnMut(&mut WorldState) -> Option<T>,
    ) -> Result<T, Error> {
        self.wait_in(&|| stuck::of(WaitingCall::Other), ready)
    }

    /// As [`wait_until`](Shared::wait_until), in a call that `what` says.
    pub(crate) fn wait_in<T>(
        &self,
        what: &dyn Fn() -> Doing,
        mut ready: impl FnMut(&mut WorldState) -> Option<T>,
    ) -> Result<T, Error> {
        let state = self.lock()?;
        self.wait_held_in(state, what, |state| ready(state).into())
    }

    /// As [`wait_until`](Shared::wait_until), if the caller has the lock already, and `ready` may say what it waits
    /// for.
    pub(crate) fn wait_held<'s, T>(
        &'s self,
        state: StateGuard<'s>,
        ready: impl FnMut(&mut WorldState) -> Look<T>,
    ) -> Result<T, Error> {
        self.wait_held_in(state, &|| stuck::of(WaitingCall::Other), ready)
    }

    /// As [`wait_held`](Shared::wait_held), in a call that `what` says.
    pub(crate) fn wait_held_in<'s, T>(
        &'s self,
        state: StateGuard<'s>,
        what: &dyn Fn() -> Doing,
        mut ready: impl FnMut(&mut WorldState) -> Look<T>,
    ) -> Result<T, Error> {
        let waiter = Waiter::with(self.patience);
        let (leader_id, history) = Default::default();
        let mut wait =
            Wait { leader_id, waiter, yields: 0, parker: None, what, until: None, history };
        let found = self.wait_as(state, &mut wait, &mut ready);
        if let Some(waiter) = wait.history.waiter {
            self.with_anyway(|state| state.pml.waits_no_more(waiter));
        }
        found
    }

    fn wait_as<'s, T>(
        &'s self,
        state: StateGuard<'s>,
        wait: &mut Wait<'_>,
        ready: &mut impl FnMut(&mut WorldState) -> Look<T>,
    ) -> Result<T, Error> {
        let _waiting = Waiting::new(self);
        let mut held = Some(state);
        loop {
            let mut state = match held.take() {
                Some(state) => state,
                None => self.lock()?,
            };
            let eager = self.patience.spins() && !state.spin.is_shy();
            let before = wait.leader_id;
            if state.followers.lead(&mut wait.leader_id, eager) {
                if wait.leader_id != before {
                    state.spin.start();
                }
                if let Some(found) = self.lead(state, wait, ready)? {
                    return Ok(found);
                }
                continue;
            }
            // Before it looks: who ends what it waits for without the lock wakes it from now on.
            let asleep = self.fall_asleep();
            let look = ready(&mut state);
            if let Look::Found(found) = look {
                drop(asleep);
                self.stop_waiting(state, wait);
                return Ok(found);
            }
            if state.stage == WorldStage::Left {
                drop(asleep);
                self.stop_waiting(state, wait);
                return Err(Error::Finalized);
            }
            wait.until = look.until();
            if self.linger(&mut state, wait, now_ns()) {
                drop(asleep);
                state.done();
                continue;
            }
            if let Look::Until(id) = look {
                drop(asleep);
                self.follow(state, wait, id)?;
            } else {
                self.listen(state, wait)?;
            }
        }
    }

    /// One turn of the leader, and the pause after it.
    fn lead<T>(
        &self,
        mut state: StateGuard<'_>,
        wait: &mut Wait<'_>,
        ready: &mut impl FnMut(&mut WorldState) -> Look<T>,
    ) -> Result<Option<T>, Error> {
        let spins = self.patience.spins();
        let alone = state.followers.sleeping() == 0;
        let looks = match (spins, alone) {
            (true, true) => LOOKS_PER_TURN,
            (true, false) => SHARED_TURN.0,
            (false, _) => 1,
        };
        let mut quiet = true;
        for turn in 0..looks {
            // Between polls a quick check is enough: while the lock is held, no other thread changes anything.
            if turn.is_multiple_of(LOOKS_PER_POLL) || !state.is_quiet() {
                if self.drive(&mut state) > 0 {
                    quiet = false;
                    state.spin.found();
                }
                match ready(&mut state) {
                    Look::Found(found) => {
                        state.spin.found();
                        self.stop_waiting(state, wait);
                        return Ok(Some(found));
                    }
                    look => wait.until = look.until(),
                }
                if state.stage == WorldStage::Left {
                    self.stop_waiting(state, wait);
                    return Err(Error::Finalized);
                }
                if state.owes() {
                    // Others are to be told.
                    break;
                }
            }
            if self.is_wanted() {
                break;
            }
            std::hint::spin_loop();
        }
        let wanted = self.is_wanted();
        let mut next = if !quiet {
            wait.yields = 0;
            AfterTurn::Another
        } else if spins {
            let goes_on = state.spin.look(now_ns(), switches);
            if wanted {
                // Waiting for the lock is no sign that the processor is wanted.
                state.spin.pause();
            }
            match goes_on {
                true if state.want_processor(self.cores) => {
                    state.spin.pause();
                    AfterTurn::Yield
                }
                true => AfterTurn::Another,
                false => AfterTurn::Sleep,
            }
        } else {
            wait.yields += 1;
            if wait.yields <= self.patience.yields { AfterTurn::Yield } else { AfterTurn::Sleep }
        };
        if matches!(next, AfterTurn::Sleep) && self.linger(&mut state, wait, now_ns()) {
            next = AfterTurn::Another;
        }
        if matches!(next, AfterTurn::Sleep) && state.is_busy() {
            // Our own work waits for room at a peer, or for an engine: only polling moves it.
            next = AfterTurn::Yield;
        }
        match next {
            _ if state.owes() => {
                self.tell(state, wait);
                // Those who were told may need this processor.
                std::thread::yield_now();
            }
            AfterTurn::Another => {
                state.done();
                if wanted {
                    self.give_way();
                } else if !alone {
                    (0..SHARED_TURN.1).for_each(|_| std::hint::spin_loop());
                }
            }
            AfterTurn::Yield => {
                state.done();
                std::thread::yield_now();
            }
            AfterTurn::Sleep => self.sleep(state, wait)?,
        }
        Ok(None)
    }

    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanting.load(Ordering::Relaxed) > 0
    }

    /// Lets threads have the lock that want it: a mutex favours who has just released it.
    fn give_way(&self) {
        let (looks, tight) = GIVE_WAY;
        for look in 0..looks {
            if !self.is_wanted() {
                return;
            }
            if look < tight {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// The leader sleeps until a transport has something, another thread signals, or patience ends.
    fn sleep(&self, mut state: StateGuard<'_>, wait: &mut Wait<'_>) -> Result<(), Error> {
        if !state.arm_collectives() || state.pml.arm(&mut wait.waiter) > 0 || state.is_busy() {
            state.spin.found();
            self.rouse(&state);
            self.tell(state, wait);
            return Ok(());
        }
        if state.owes() {
            self.tell(state, wait);
            return Ok(());
        }
        let Some(_asleep) = self.fall_asleep_if_idle(&state) else {
            state.done();
            return Ok(());
        };
        state.followers.arm(wait.leader_id);
        self.block(state, wait)
    }

    /// Sleeps until the leader signals: what the caller waits for is not one request.
    fn listen(&self, state: StateGuard<'_>, wait: &mut Wait<'_>) -> Result<(), Error> {
        if state.owes() || state.polled > 0 {
            state.done();
            std::thread::yield_now();
            return Ok(());
        }
        wait.waiter.rest();
        self.block(state, wait)
    }

    /// Sleeps on the alarm and whatever else is armed.
    fn block(&self, mut state: StateGuard<'_>, wait: &mut Wait<'_>) -> Result<(), Error> {
        wait.waiter.watch(self.wakeups.alarm.as_raw_fd());
        state.sleepers += 1;
        state.done();
        wait.waiter.block();
        self.with(|state| {
            state.sleepers -= 1;
            self.clear_alarm(state);
            state.spin.slept(now_ns());
            Ok(())
        })
    }

    /// Sleeps until the request has ended, or it is this thread's turn to lead.
    fn follow(
        &self,
        mut state: StateGuard<'_>,
        wait: &mut Wait<'_>,
        id: RequestId,
    ) -> Result<(), Error> {
        if state.owes() {
            // Users' code, which may wait itself: not as one who may be asked to lead.
            state.done();
            return Ok(());
        }
        let parker = wait.parker.get_or_insert_default();
        let mut waker = Some(Waker::from(Arc::clone(parker)));
        // A request that is not there is over as well: the caller looks again.
        // One that was replaced is an earlier one of a thread that waited here.
        let goes_on = matches!(state.pml.notify_sleeper(id, &mut waker), Ok(true));
        if goes_on {
            state.followers.follow(parker);
        }
        state.done();
        if goes_on {
            parker.park(NAP);
            self.with(|state| {
                state.followers.rise(parker);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The leader tells others what has ended. Users' code may take long, and may wait itself: another leads meanwhile.
    fn tell(&self, state: StateGuard<'_>, wait: &Wait<'_>) {
        if state.owes_users() { self.stop_waiting(state, wait) } else { state.done() }
    }

    /// The caller stops waiting: if it led, another does from now on.
    #[inline]
    fn stop_waiting(&self, mut state: StateGuard<'_>, wait: &Wait<'_>) {
        match state.followers.stop_waiting(wait.leader_id) {
            Some(next) => next.unpark(),
            // Whoever sleeps on the alarm may lead as well.
            None if state.sleepers > 0 && !state.followers.are_led() => self.signal(),
            None => {}
        }
        state.done();
    }
}

#[cfg(test)]
mod tests {
    use crate::World;
    use crate::communicator::Communicator;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;
    use std::thread::yield_now;
    use std::time::Duration;

    const THREADS: i32 = 4;

    /// Gives what `act` gives, unless a wake-up is lost.
    fn soon<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        std::thread::spawn(move || done.send(act()));
        result.recv_timeout(Duration::from_secs(60)).expect("no wake-up is lost")
    }

    /// Waits until so many threads sleep, and one more leads. A leader that fell asleep and was replaced sleeps on the
    /// alarm, until there is something for it.
    fn gathered(comm: &Communicator, count: usize) {
        let ready = |comm: &Communicator| {
            let seen = comm.shared.with(|state| {
                let asleep = state.followers.sleeping() + state.sleepers as usize;
                let leader = usize::from(state.followers.are_led_asleep());
                Ok(state.followers.are_led() && asleep == count + leader)
            });
            seen.unwrap()
        };
        while !ready(comm) {
            yield_now();
        }
    }

    /// Threads that each wait for a message of their own; the messages come when all wait, in the order of `tags`.
    fn wait_for(world: &World, tags: &[i32]) {
        let comm = world.comm();
        let (over, ended) = mpsc::channel();
        std::thread::scope(|threads| {
            for tag in 0..THREADS {
                let over = over.clone();
                threads.spawn(move || {
                    let mut received = [0i32];
                    comm.recv(&mut received, comm.rank(), tag).unwrap();
                    assert_eq!(received, [tag]);
                    over.send(tag).unwrap();
                });
            }
            for (sent, tag) in tags.iter().enumerate() {
                gathered(comm, tags.len() - sent - 1);
                comm.send(&[*tag], comm.rank(), *tag).unwrap();
                // A sleeper is told of its request's end, and a leader's departure makes another lead.
                assert_eq!(ended.recv().unwrap(), *tag);
            }
        });
        let left = comm.shared.with(|state| {
            Ok((state.followers.are_led(), state.followers.sleeping(), state.sleepers))
        });
        assert_eq!(left.unwrap(), (false, 0, 0));
    }

    #[test]
    fn one_thread_polls_the_others_sleep_and_every_one_is_told() {
        soon(|| {
            let world = World::init().unwrap();
            wait_for(&world, &[0, 1, 2, 3]);
            wait_for(&world, &[3, 2, 1, 0]);
            wait_for(&world, &[2, 0, 3, 1]);
            world.finalize().unwrap();
        });
    }

    #[test]
    fn who_waits_for_one_of_several_is_told_while_another_leads() {
        soon(|| {
            let world = World::init().unwrap();
            let comm = world.comm();
            std::thread::scope(|threads| {
                threads.spawn(|| comm.recv(&mut [0u8], comm.rank(), 0).unwrap());
                gathered(comm, 0);
                let any = threads.spawn(|| {
                    let start = |tag| comm.irecv_owned(vec![0u8], comm.rank(), tag).unwrap();
                    let mut each = Vec::from([1, 2].map(start));
                    let (index, (bytes, result)) =
                        crate::OwnedRequest::wait_any(&mut each).unwrap();
                    result.unwrap();
                    comm.send(&[1u8], comm.rank(), 1).unwrap();
                    each.remove(0).wait().1.unwrap();
                    (index, bytes)
                });
                while comm.shared.with(|state| Ok(state.sleepers)).unwrap() == 0 {
                    yield_now();
                }
                comm.send(&[9u8], comm.rank(), 2).unwrap();
                assert_eq!(any.join().unwrap(), (1, vec![9]));
                comm.send(&[7u8], comm.rank(), 0).unwrap();
            });
            world.finalize().unwrap();
        });
    }

    /// Whichever thread calls it, a function may wait: another leads meanwhile.
    #[test]
    fn users_code_may_wait_while_others_lead() {
        soon(|| {
            let world = World::init().unwrap();
            let comm = world.comm();
            let (start, started) = mpsc::channel();
            let inner = comm.clone();
            comm.irecv_owned(vec![0u8], comm.rank(), 0).unwrap().on_done(move |_, _| {
                start.send(()).unwrap();
                inner.recv(&mut [0u8], 0, 5).unwrap();
            });
            std::thread::scope(|threads| {
                threads.spawn(|| comm.recv(&mut [0u8], comm.rank(), 1).unwrap());
                gathered(comm, 0);
                threads.spawn(|| comm.recv(&mut [0u8], comm.rank(), 2).unwrap());
                gathered(comm, 1);
                threads.spawn(|| comm.send(&[1u8], comm.rank(), 0).unwrap());
                started.recv().unwrap();
                for tag in [5, 2, 1] {
                    comm.send(&[1u8], comm.rank(), tag).unwrap();
                }
            });
            world.finalize().unwrap();
        });
    }

    /// The function of a request is called, although a thread waits for the same request.
    #[test]
    fn a_function_is_called_although_a_follower_waits_for_its_request() {
        soon(|| {
            let world = World::init().unwrap();
            let comm = world.comm();
            let called = AtomicU32::new(0);
            let (say, hear) = mpsc::channel();
            std::thread::scope(|threads| {
                threads.spawn(|| comm.recv(&mut [0u8], comm.rank(), 1).unwrap());
                gathered(comm, 0);
                threads.spawn(|| {
                    let mut byte = [0u8];
                    comm.scope(|s| {
                        let request = s.irecv(&mut byte, comm.rank(), 2)?;
                        s.when_done(&request, move || say.send(()).unwrap())?;
                        Ok(())
                    })
                    .unwrap();
                    called.fetch_add(1, Ordering::Relaxed);
                });
                gathered(comm, 1);
                comm.send(&[1u8], comm.rank(), 2).unwrap();
                hear.recv().unwrap();
                comm.send(&[1u8], comm.rank(), 1).unwrap();
            });
            assert_eq!(called.load(Ordering::Relaxed), 1);
            world.finalize().unwrap();
        });
    }
}
