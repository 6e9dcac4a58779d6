//! A deterministic model of the lock: ranks are threads of which one runs at a time, from one access to a word to the next.
//! Which one runs is drawn from a seed, so every run can be repeated; time plays no part.

use super::*;
use gapless_mem::{Lease, Region, Space};
use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

thread_local! {
    static RUNNER: RefCell<Option<(Arc<Baton>, usize)>> = const { RefCell::new(None) };
}

/// Called before each access to a word.
pub(super) fn step() {
    RUNNER.with_borrow(|runner| {
        if let Some((baton, me)) = runner {
            baton.give(*me, true);
        }
    });
}

struct Turns {
    random: u64,
    runs: usize,
    alive: Vec<bool>,
    steps: u64,
}

impl Turns {
    fn draw(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) as usize % below
    }
}

/// Who runs.
struct Baton {
    turns: Mutex<Turns>,
    wakeup: Condvar,
}

/// Steps of a run at most: more is a lock that nobody gets.
const STEPS_MAX: u64 = 2_000_000;

impl Baton {
    /// Also after a panic: the others are to end, too.
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw(&self, below: usize) -> usize {
        self.turns().draw(below)
    }

    fn is_alive(&self, rank: u32) -> bool {
        self.turns().alive[rank as usize]
    }

    fn wait(&self, turns: MutexGuard<'_, Turns>, me: usize) {
        let waited = self.wakeup.wait_while(turns, |turns| turns.runs != me);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Draws who runs next, and waits for the own turn, unless this rank is over.
    fn give(&self, me: usize, goes_on: bool) {
        let mut turns = self.turns();
        turns.steps += 1;
        assert!(!goes_on || turns.steps < STEPS_MAX, "nobody gets the lock");
        turns.alive[me] &= goes_on;
        let alive: Vec<usize> = (0..turns.alive.len()).filter(|at| turns.alive[*at]).collect();
        // Mostly the same one: some are far behind others then.
        if !goes_on || turns.draw(3) == 0 {
            turns.runs = match alive.len() {
                0 => usize::MAX,
                count => alive[turns.draw(count)],
            };
            self.wakeup.notify_all();
        }
        if goes_on {
            self.wait(turns, me);
        }
    }
}

/// What the ranks see of each other, outside the lock.
#[derive(Default)]
struct Seen {
    sharing: u32,
    alone: u32,
    entries: Vec<u32>,
    /// The most that another rank has entered while one waited.
    passed: u32,
    /// Ranks that died while they claimed the lock.
    died_claiming: u32,
}

/// How the last rank ends.
#[derive(Clone, Copy, PartialEq)]
enum LastRankEnd {
    Lives,
    DiesWaiting,
    DiesInside,
}

fn header(ranks: usize) -> Header {
    let memory: Arc<Vec<AtomicU64>> =
        Arc::new((0..first_notice(ranks)).map(|_| AtomicU64::new(0)).collect());
    let start = memory.as_ptr().expose_provenance() as u64;
    let region = Region::new(Space::Host, start, 0, 8 * memory.len() as u64);
    // SAFETY: the list is kept by the Arc.
    let lease = unsafe { Lease::new(region, memory as _) };
    // SAFETY: it is initialised, and touched by atomics only.
    Header::new(unsafe { Words::new(lease) }.unwrap(), ranks, 0).unwrap()
}

/// One rank: enters so often, and checks that it is alone, or only with those that share. Gives whether it was told of a
/// death.
fn rank(
    me: u32,
    times: u32,
    end: LastRankEnd,
    (header, baton, seen): (&Header, &Baton, &Mutex<Seen>),
) -> bool {
    let is_lost = |rank: u32| !baton.is_alive(rank);
    let by_claim = baton.draw(2) == 0;
    for time in 0..times {
        let kind = if baton.draw(2) == 0 { Lock::Shared } else { Lock::Exclusive };
        let last = time + 1 == times;
        // Some only try, and are not waiting while they do.
        let mut patience = baton.draw(4);
        let gives_up = baton.draw(8) == 0;
        let mut before: Option<Vec<u32>> = None;
        let mut tries = 0;
        let entered = loop {
            let waits = patience == 0;
            if header.try_lock(me, kind, waits, is_lost) {
                break true;
            }
            patience = patience.saturating_sub(1);
            tries += 1;
            if waits && before.is_none() {
                before = Some(seen.lock().unwrap().entries.clone());
            }
            // Also one that claims the lock still waits.
            let claims = waits && header.gate().holder() == Some(me);
            let dies = if by_claim { claims } else { waits && last && !claims };
            if dies && end == LastRankEnd::DiesWaiting {
                seen.lock().unwrap().died_claiming += u32::from(claims);
                return false;
            }
            if waits && header.lost_holder(is_lost).is_some() {
                header.cancel(me);
                return true;
            }
            if gives_up && tries > 5 {
                header.cancel(me);
                break false;
            }
        };
        if !entered {
            continue;
        }
        {
            let mut seen = seen.lock().unwrap();
            seen.entries[me as usize] += 1;
            if let Some(before) = before {
                let most = seen.entries.iter().zip(&before).map(|(now, then)| now - then).max();
                seen.passed = seen.passed.max(most.unwrap_or(0));
            }
            match kind {
                Lock::Shared => seen.sharing += 1,
                Lock::Exclusive => seen.alone += 1,
            }
            assert!(seen.alone == 0 || seen.alone == 1 && seen.sharing == 0, "others are inside");
        }
        if last && end == LastRankEnd::DiesInside {
            return false;
        }
        for _ in 0..baton.draw(6) {
            step();
        }
        {
            let mut seen = seen.lock().unwrap();
            match kind {
                Lock::Shared => seen.sharing -= 1,
                Lock::Exclusive => seen.alone -= 1,
            }
        }
        header.unlock(me, kind);
    }
    false
}

/// Gives what was seen, and how many were told of a death.
fn run(seed: u64, ranks: u32, end: LastRankEnd) -> (Seen, usize) {
    let turns = Turns {
        random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        runs: 0,
        alive: vec![true; ranks as usize],
        steps: 0,
    };
    let baton = Arc::new(Baton { turns: Mutex::new(turns), wakeup: Condvar::new() });
    let header = header(ranks as usize);
    let seen = Mutex::new(Seen { entries: vec![0; ranks as usize], ..Seen::default() });
    let told = std::thread::scope(|threads| {
        let ranks = (0..ranks).map(|me| {
            let (baton, header, seen) = (Arc::clone(&baton), &header, &seen);
            let (times, end) = if me == 0 { (12, end) } else { (60, LastRankEnd::Lives) };
            threads.spawn(move || {
                let at = me as usize;
                RUNNER.set(Some((Arc::clone(&baton), at)));
                baton.wait(baton.turns(), at);
                // Nobody waits for a thread that has panicked.
                let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    rank(me, times, end, (header, &baton, seen))
                }));
                RUNNER.set(None);
                baton.give(at, false);
                told.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| usize::from(rank.join().unwrap())).sum()
    });
    (seen.into_inner().unwrap(), told)
}

fn seeds() -> std::ops::Range<u64> {
    let seed = gapless_testkit::seed(1);
    seed..seed + 12
}

/// Neither those that share the lock keep one that wants it alone from it, nor the other way round. Another rank may be
/// inside, about to enter, and have its turn. That is so in these seeds: in others one that looks at the right moment,
/// while it is nobody's turn, may enter more often (`header.rs`).
#[test]
fn whoever_waits_is_passed_three_times_by_each_at_most() {
    for seed in seeds() {
        let (Seen { passed, .. }, told) =
            run(seed, 2 + u32::try_from(seed % 3).unwrap(), LastRankEnd::Lives);
        assert!(passed <= 3, "seed {seed}: passed {passed} times");
        assert_eq!(told, 0);
    }
}

/// Who dies waiting keeps nobody from the lock, and is not named; who dies inside is.
#[test]
fn deaths_end_no_ones_turn() {
    let (mut all, mut died_claiming) = (0, 0);
    for seed in seeds() {
        let (seen, told) = run(seed, 3, LastRankEnd::DiesWaiting);
        died_claiming += seen.died_claiming;
        assert_eq!(told, 0, "seed {seed}");
        all += run(seed, 3, LastRankEnd::DiesInside).1;
    }
    assert!(all > 6, "told {all} times");
    assert!(died_claiming > 1, "{died_claiming} have died claiming");
}

/// A claim is no lock yet: who dies with it keeps nobody out, and one that is only taken for dead does not enter by it.
#[test]
fn a_claim_of_the_dead_is_taken_over() {
    let header = header(3);
    let none = |_| false;
    let first_is_lost = |rank| rank == 1;
    assert!(header.try_lock(0, Lock::Shared, false, none));
    assert!(!header.try_lock(1, Lock::Exclusive, true, none));
    assert_eq!(header.lost_holder(first_is_lost), None);
    header.try_lock(2, Lock::Exclusive, true, first_is_lost);
    assert!(!header.try_lock(2, Lock::Exclusive, true, first_is_lost), "rank 0 shares it");
    assert!(!header.try_lock(1, Lock::Exclusive, true, none));
    header.unlock(0, Lock::Shared);
    assert!(!header.try_lock(1, Lock::Exclusive, true, none), "it is rank 2's");
    assert!(header.try_lock(2, Lock::Exclusive, true, first_is_lost));
    assert_eq!(header.lost_holder(|rank| rank == 2), Some(2), "now it has the lock");
    header.unlock(2, Lock::Exclusive);
    assert!(header.try_lock(1, Lock::Exclusive, true, none));
}

/// Whatever somebody has scribbled into the words, nothing panics, and ranks that do not exist keep nobody out.
#[test]
fn rubbish_in_the_words_does_no_harm() {
    let header = header(2);
    for round in 0..1u32 << 12 {
        let rubbish = u64::from(round).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(round % 64);
        header.word(LOCK).store(rubbish, Ordering::Relaxed);
        header.word(RANKS + 1).store(rubbish % 5, Ordering::Relaxed);
        let rank = round % 2;
        let kind = if round % 3 == 0 { Lock::Shared } else { Lock::Exclusive };
        let took = header.try_lock(rank, kind, round % 5 != 0, |_| round % 7 == 0);
        header.lost_holder(|_| true);
        if took { header.unlock(rank, kind) } else { header.cancel(rank) }
    }
    for state in 0..4u64 {
        for rank in [3, 1000, MASK] {
            header.word(RANKS + 1).store(NOTHING, Ordering::Relaxed);
            header.word(LOCK).store(state << BITS | rank, Ordering::Relaxed);
            let took = (0..4).any(|_| header.try_lock(0, Lock::Exclusive, true, |_| false));
            assert!(took, "state {state}, rank {rank}");
            header.unlock(0, Lock::Exclusive);
        }
    }
}

/// Whoever waits knows that it has not got the lock, whatever the words say.
#[test]
fn words_that_name_the_one_who_waits_are_not_believed() {
    for kind in [Lock::Shared, Lock::Exclusive] {
        for state in [CLAIMS, INSIDE] {
            for own in [NOTHING, SHARES] {
                let header = header(3);
                header.word(LOCK).store(Gate(0).next(state, Some(1)).0, Ordering::Relaxed);
                header.say(1, own);
                let took = (0..4).any(|_| header.try_lock(1, kind, true, |_| false));
                assert!(took, "{kind:?}, state {state}, own word {own}");
            }
        }
    }
    // Its own word is written over while it waits for another that shares the lock.
    let header = header(3);
    assert!(header.try_lock(0, Lock::Shared, false, |_| false));
    assert!(!header.try_lock(1, Lock::Exclusive, true, |_| false));
    header.say(1, SHARES);
    assert!(!header.try_lock(1, Lock::Exclusive, true, |_| false), "rank 0 shares it");
    assert_eq!(header.named(1).map(|named| named.rank), Some(0));
    header.unlock(0, Lock::Shared);
    assert!(header.try_lock(1, Lock::Exclusive, true, |_| false));
}

/// Somebody has written that a rank shares the lock; before that is disproved, the rank comes to share it.
#[test]
fn a_share_that_has_begun_since_is_not_disproved() {
    let header = header(3);
    let never = |_: u32| false;
    header.say(0, SHARES);
    assert!(!header.try_lock(1, Lock::Exclusive, true, never), "rank 0 seems to share it");
    let named = header.named(1).unwrap();
    // It asks for the lock, and so says otherwise; the claim goes.
    assert!(!header.try_lock(0, Lock::Shared, true, never));
    header.cancel(1);
    assert!(header.try_lock(0, Lock::Shared, true, never));
    assert!(!header.disprove(named));
    assert!(!header.try_lock(1, Lock::Exclusive, true, never), "rank 0 shares it");
    let named = header.named(1).unwrap();
    assert!(header.disprove(named) && header.try_lock(1, Lock::Exclusive, true, never));
}

/// The mutex of a living rank stays its own, and one that is taken over is not given back by who had it before.
#[test]
fn mutexes_have_one_holder() {
    let header = header(3);
    let stripe = Stripes::default().with(0, 8);
    assert!(header.try_stripes(0, stripe, |_| false));
    assert!(!header.try_stripes(1, stripe, |_| false));
    assert_eq!(header.lost_in_stripes(stripe, |rank| rank == 0), Some(0));
    assert_eq!(header.lost_in_stripes(Stripes::default().with(4096, 8), |_| true), None);
    assert!(header.try_stripes(1, stripe, |rank| rank == 0));
    header.release_stripes(0, stripe);
    assert!(!header.try_stripes(2, stripe, |_| false), "rank 1 has it");
    header.release_stripes(1, stripe);
    assert!(header.try_stripes(2, stripe, |_| false));
}

/// A mutex that names no rank of the window was written by nobody who has it: it is taken over, and not waited for.
#[test]
fn mutexes_that_name_no_rank_are_taken_over() {
    let header = header(3);
    let stripe = Stripes::default().with(0, 8);
    for rubbish in [4, 1000, u64::from(u32::MAX), 1 << 32, (1 << 32) + 1, u64::MAX] {
        header.mutex(0).store(rubbish, Ordering::Relaxed);
        assert!(header.try_stripes(1, stripe, |_| false), "{rubbish}");
        assert!(!header.try_stripes(2, stripe, |_| false), "rank 1 has it");
        header.release_stripes(1, stripe);
    }
}

/// A turn, or a claim that nobody is in the way of, is passed over if its rank does not take it. It is not forgotten.
#[test]
fn turns_that_nobody_takes_are_passed_over() {
    let header = header(3);
    let none = |_| false;
    let look = |times: u32| {
        let mut patience = Patience::default();
        (0..=times).for_each(|_| header.look(2, &mut patience));
        header.try_lock(2, Lock::Exclusive, true, none)
    };
    assert!(header.try_lock(0, Lock::Exclusive, false, none));
    assert!(!header.try_lock(1, Lock::Exclusive, true, none));
    assert!(!look(2 * LOOKS), "rank 0 has it");
    header.unlock(0, Lock::Exclusive);
    assert!(!look(LOOKS - 1), "it is rank 1's turn");
    assert!(look(LOOKS));
    header.unlock(2, Lock::Exclusive);
    assert!(header.try_lock(1, Lock::Exclusive, true, none), "it waits still");
    header.unlock(1, Lock::Exclusive);
    assert!(header.try_lock(0, Lock::Shared, false, none));
    assert!(!header.try_lock(1, Lock::Exclusive, true, none));
    assert!(!look(2 * LOOKS), "rank 1 cannot take it yet");
    header.unlock(0, Lock::Shared);
    assert!(look(LOOKS));
    header.unlock(2, Lock::Exclusive);
    assert!(!header.try_lock(1, Lock::Exclusive, true, none) || header.gate().is_inside());
}
