//! Leaving a job with all others: in good order, or with an error once a peer is known to have died.
//!
//! The launcher's fences are entered only when all processes are known, by links, to leave together
//! ([`Bml::is_together`](gapless_bml::Bml::is_together)). Once one has departed they would never open: then the rest
//! agree over links alone.

use super::World;
use crate::error::Error;
use crate::shared::guard::caught;
use crate::shared::{Within, WorldState};
use gapless_bml::LinkError;
use gapless_boot::directory::Connection;
use gapless_boot::wireup::{Questions, Wireup, WireupError};
use gapless_pml::PmlError;
use gapless_xtq::XtqError;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long peers are given to make room for our last word, once we leave because of a loss. Those that look have
/// it at once.
const LAST_WORD: Duration = Duration::from_millis(500);
/// How long, if we leave in good order: whoever is not told takes us for dead.
pub(super) const GOODBYE: Duration = Duration::from_secs(5);

/// After so long it is said who is waited for.
const LONG: Duration = Duration::from_secs(1);
/// So many processes are named, at most.
const NAMED: usize = 8;

/// Says once who is waited for, if that takes [long](LONG).
struct Late {
    started: Instant,
    said: bool,
}

impl Late {
    fn new() -> Late {
        Late { started: Instant::now(), said: false }
    }

    fn look(&mut self, state: &WorldState) {
        if self.said || self.started.elapsed() < LONG {
            return;
        }
        self.said = true;
        tracing::info!("finalize {}", waits(&state.pml.not_left().collect::<Vec<_>>()));
    }
}

/// Who is waited for, in words.
fn waits(processes: &[u32]) -> String {
    if processes.is_empty() {
        return "waits for processes that it has no link with, or for the launcher".to_owned();
    }
    let named = processes.iter().take(NAMED).map(u32::to_string).collect::<Vec<_>>().join(", ");
    let more = match processes.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let noun = if processes.len() == 1 { "process" } else { "processes" };
    format!("waits for {noun} {named}{more} to finalize or leave")
}

impl World {
    /// Leaves the job in good order (`MPI_Finalize`, MPI 4.1 §11.2.2): waits until every process of the job is here,
    /// ends all operations in flight, and tells the launcher. Nobody waits for a process that has dropped its world.
    ///
    /// Every operation ends. Messages that match are received and sent in full; receives that no message matches are
    /// cancelled ([`PmlError::Cancelled`]); sends that no receive matches end with [`PmlError::Unreceived`], unless
    /// they ended before. Communicators and requests that outlive this call get [`Error::Finalized`] for anything
    /// new. Collectives in flight are waited for, so all their ranks must have called them, as MPI demands.
    ///
    /// # Errors
    /// Another process died, or left because one did: the error names the one that died. Then nobody is waited for,
    /// under any launcher, but for memory that a lost peer may still write (RELIABILITY.md). Operations in flight end
    /// with an error here and at the peers. Or the launcher is gone. A task calls this, which waits until all tasks have
    /// ended ([`XtqError::InTask`](crate::xtq::XtqError::InTask)), or a function inside
    /// [`TargetBuffer::with`](crate::xtq::TargetBuffer::with), whose buffer a task may need
    /// ([`XtqError::Holding`](crate::xtq::XtqError::Holding)): the world is given up.
    pub fn finalize(mut self) -> Result<(), Error> {
        if self.is_within() {
            gapless_xtq::Xtq::may_wait()?;
            return Err(XtqError::InTask.into());
        }
        self.leave()
    }

    /// Whether a function of the user's that this world runs is the caller, or one that has a target buffer: leaving
    /// would wait for it.
    pub(super) fn is_within(&self) -> bool {
        let holds = || gapless_xtq::Xtq::may_wait().is_err();
        let tasks = || self.xtq.runs_here() || self.calls.xtq().runs_here();
        let runs = || tasks() || self.shared.runs_here() != Within::Nothing;
        self.wireup.is_some() && (runs() || holds())
    }

    /// A function that this world runs has dropped it: it is given up, as by a panic.
    pub(super) fn give_up_from_within(&mut self) {
        tracing::error!("a function that its world runs has dropped it: the world is given up");
        let shared = Arc::clone(&self.shared);
        if shared.runs_here() != Within::Lock && gapless_xtq::Xtq::may_wait().is_ok() {
            shared.abandon();
            return self.end_thread();
        }
        // Once the function has ended.
        let thread = std::thread::Builder::new().name("gapless-leave".to_owned());
        if let Err(error) = thread.spawn(move || shared.abandon()) {
            tracing::error!(%error, "it stays as it is");
        }
        // Nobody waits for the thread that makes progress: it may wait for the lock, or for the target buffer.
        drop(self.thread.take());
    }

    pub(super) fn leave(&mut self) -> Result<(), Error> {
        let Some(connection) = self.wireup.take() else { return Ok(()) };
        self.close()?;
        let left = self.leave_with_all(&connection);
        self.say_why(left.as_ref().err());
        let culprit = left.as_ref().err().and_then(Error::lost_rank);
        self.go(left, culprit, &connection)
    }

    /// Nothing starts from now on.
    pub(super) fn close(&self) -> Result<(), Error> {
        self.shared.with(|state| {
            state.close();
            Ok(())
        })
    }

    /// The end of leaving: what was said is said, and nothing moves any more. Whoever did not finalize says because of
    /// which process.
    pub(super) fn go(
        &mut self,
        left: Result<(), Error>,
        culprit: Option<u32>,
        connection: &Connection,
    ) -> Result<(), Error> {
        self.shared.abandon();
        self.end_thread();
        let mut launcher = connection.launcher();
        if let Some(culprit) = culprit {
            launcher.leave_because(culprit);
        }
        left?;
        Ok(launcher.finalize()?)
    }

    fn leave_with_all(&self, connection: &Connection) -> Result<(), Error> {
        let late = &mut Late::new();
        // After the first fence nobody starts anything. Farewells then tell each process that all messages for it have
        // arrived. By the second fence all requests have ended everywhere. What was started here and still waits for
        // room is sent before, and collectives come to their end. A death ends both waits: who died never comes.
        let together = self
            .wait_unless_lost(late, |state| {
                state.end_tasks();
                state.has_settled().then_some(())
            })
            .and_then(|()| self.gather(0, late))?;
        let fence = |late: &mut Late| if together { self.fence(connection, late) } else { Ok(()) };
        fence(late)
            // Tasks that came before it.
            .and_then(|()| {
                self.wait_unless_lost(late, |state| state.have_tasks_settled().then_some(()))
            })
            // Some launchers do not count the dead; this does.
            .and_then(|()| self.end_requests(late))
            .and_then(|()| if together { fence(late) } else { self.gather(1, late).map(drop) })
    }

    /// Waits, over links, until all processes are at this step that have not departed; gives whether nobody has.
    fn gather(&self, step: usize, late: &mut Late) -> Result<bool, Error> {
        self.shared.with(|state| {
            state.pml.bml_mut().leave_together(step);
            Ok(())
        })?;
        self.wait_unless_lost(late, |state| {
            state.pml.say_farewell();
            state.pml.bml_mut().is_together(step)
        })
    }

    /// Makes progress until `ready` says so.
    ///
    /// # Errors
    /// A process has died meanwhile, or before.
    fn wait_unless_lost<T>(
        &self,
        late: &mut Late,
        mut ready: impl FnMut(&mut WorldState) -> Option<T>,
    ) -> Result<T, Error> {
        self.shared.wait_until(|state| match casualty(state) {
            Some(loss) => Some(Err(loss.into())),
            None => {
                late.look(state);
                ready(state).map(Ok)
            }
        })?
    }

    /// Tells the peers why this end of their links ends now: it takes the loss that it leaves because of with it.
    pub(super) fn say_why(&self, error: Option<&Error>) {
        let limit = if error.is_some() { LAST_WORD } else { GOODBYE };
        self.say(limit, |state| {
            let bml = state.pml.bml_mut();
            match error {
                None => bml.leave_well(),
                Some(error) => {
                    bml.leave_because(&LinkError::PeerGone { reason: error.to_string() })
                }
            }
        });
    }

    /// Has a last word said, for which peers have so long to make room. Then waits for memory that a lost peer may write.
    pub(super) fn say(&self, limit: Duration, word: impl FnOnce(&mut WorldState)) {
        let started = Instant::now();
        let said = self.shared.with(|state| {
            word(state);
            Ok(())
        });
        if said.is_err() {
            return;
        }
        let told = self.shared.wait_until(|state| {
            let told = state.pml.bml_mut().has_told_all();
            (told || started.elapsed() >= limit).then_some(told)
        });
        if !matches!(told, Ok(true)) {
            tracing::info!("not every peer could be told why this process leaves");
        }
        // Memory that a lost peer may still write is not given back. In good order there is none.
        if let Err(error) =
            self.shared.wait_until(|state| (!state.pml.fears_the_lost()).then_some(()))
        {
            tracing::info!(%error, "memory that lost peers may write is given back");
        }
    }

    /// Waits for all processes, and serves their requests meanwhile.
    fn fence(&self, connection: &Connection, late: &mut Late) -> Result<(), Error> {
        // Whoever needs an address meanwhile has it asked for at the fence.
        let mut launcher = connection.launcher();
        let wireup: &mut dyn Wireup = &mut **launcher;
        if wireup.size() == 1 {
            return Ok(wireup.fence()?);
        }
        let shared = &self.shared;
        let (passed, hopeless) = (AtomicBool::new(false), AtomicBool::new(false));
        let mut loss = None;
        let done = std::thread::scope(|threads| {
            let thread = std::thread::Builder::new().name("gapless-fence".to_owned());
            let fence = thread.spawn_scoped(threads, || {
                let go_on = || !hopeless.load(Ordering::Acquire);
                let result = wireup.fence_answering(&go_on, &connection.questions);
                passed.store(true, Ordering::Release);
                shared.signal();
                result
            });
            let fence = fence.ok()?;
            let waited = shared.wait_until(|state| {
                // Whoever has met us since it was said is told, too.
                state.pml.say_farewell();
                late.look(state);
                if loss.is_none() {
                    loss = casualty(state).or_else(|| deserter(state));
                    hopeless.store(loss.is_some(), Ordering::Release);
                }
                passed.load(Ordering::Acquire).then_some(())
            });
            // A process that cannot serve messages any more does not wait for others for ever.
            hopeless.fetch_or(waited.is_err(), Ordering::AcqRel);
            let fenced = caught(fence.join()).unwrap_or_else(|| {
                let reason = "its thread panicked".to_owned();
                Err(WireupError::LauncherGone { doing: "fence", reason })
            });
            Some(waited.and(match (fenced, loss) {
                (Err(WireupError::GivenUp), Some(loss)) => Err(loss.into()),
                (fenced, _) => fenced.map_err(Error::from),
            }))
        });
        done.unwrap_or_else(|| self.fence_alone(wireup, &connection.questions, late))
    }

    /// The same where the system gives no thread: serves the others as often as the launcher is asked for its answer.
    fn fence_alone(
        &self,
        wireup: &mut dyn Wireup,
        questions: &Questions,
        late: &mut Late,
    ) -> Result<(), Error> {
        let (loss, late) = (RefCell::new(Ok(())), RefCell::new(late));
        let goes_on = || {
            let served = self.shared.with(|state| {
                self.shared.drive(state);
                state.pml.say_farewell();
                late.borrow_mut().look(state);
                let loss = casualty(state).or_else(|| deserter(state));
                loss.map_or(Ok(()), |loss| Err(loss.into()))
            });
            let goes_on = served.is_ok();
            *loss.borrow_mut() = served;
            goes_on
        };
        let fenced = wireup.fence_answering(&goes_on, questions);
        match (fenced, loss.into_inner()) {
            (Err(WireupError::GivenUp), Err(loss)) => Err(loss),
            (fenced, _) => fenced.map_err(Error::from),
        }
    }

    /// Ends all requests: matched ones by completing them, the others by cancelling them.
    fn end_requests(&self, late: &mut Late) -> Result<(), Error> {
        self.wait_unless_lost(late, |state| {
            state.pml.say_farewell();
            state.pml.all_farewells().then_some(())
        })?;
        self.shared.with(|state| {
            state.pml.cancel_unmatched_receives();
            state.pml.refuse_unreceived();
            Ok(())
        })?;
        self.shared.signal();
        self.wait_unless_lost(late, |state| {
            (!state.pml.is_busy() && !state.pml.has_requests()).then_some(())
        })
    }

    /// Ends the progress thread, if there is one.
    pub(super) fn end_thread(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.end(&self.shared);
        }
    }
}

/// The process that is to blame for the first loss, if any: whoever left in good order, or departed, is none.
pub(super) fn casualty(state: &mut WorldState) -> Option<PmlError> {
    let (rank, error) = state.pml.bml_mut().casualty()?;
    Some(PmlError::PeerLost { rank: rank.0, error })
}

/// A process that has departed although all were said to leave together: somebody has lied.
fn deserter(state: &mut WorldState) -> Option<PmlError> {
    let (rank, error) = state.pml.bml_mut().deserter()?;
    Some(PmlError::PeerLost { rank: rank.0, error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_waited_for_in_words() {
        assert_eq!(waits(&[3]), "waits for process 3 to finalize or leave");
        assert_eq!(waits(&[0, 2]), "waits for processes 0, 2 to finalize or leave");
        let many: Vec<u32> = (0..20).collect();
        let all = "waits for processes 0, 1, 2, 3, 4, 5, 6, 7 and 12 more to finalize or leave";
        assert_eq!(waits(&many), all);
        assert!(waits(&[]).contains("no link"));
    }
}
