//! Who hangs: a call that has waited for long asks the process that it waits for which call that process is in, and
//! says once what it has heard.
//!
//! Nothing is recorded while calls begin and end. A thread that has slept for a while notes which call it is in, so
//! that peers that ask are told. It looks at the call again whenever it wakes, which is at least every 50 ms.

use super::waiting::Wait;
use super::{Shared, WorldState};
use crate::communicator::Communicator;
use gapless_boot::wireup::{WireupError, asked, seconds};
use gapless_coll::Operation;
use gapless_pml::{Answer, Doing, RequestId, Source, TagSel, WaiterId, WaitingCall};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// After how many seconds a call that waits says so.
const VARIABLE: &str = "GAPLESS_STUCK";
/// What holds if `GAPLESS_STUCK` is not set.
const AFTER: Duration = Duration::from_secs(10);

/// After how long a thread that sleeps notes which call it is in.
const NOTED: Duration = Duration::from_millis(50);
/// After how long a thread that sleeps asks its peer, or sooner if it is to speak sooner.
const ASKS: Duration = Duration::from_secs(1);

/// How many lines of a process go to standard error, where nobody listens to the log.
const LINES_MAX: u32 = 8;

/// When this process speaks of calls that wait.
#[derive(Debug)]
pub(crate) struct Stuck {
    /// `None`: never.
    after: Option<Duration>,
    /// Lines on standard error so far.
    lines: AtomicU32,
    /// Where the launcher asks before it ends the job.
    asked: Option<&'static OwnedFd>,
}

impl Stuck {
    /// As this process's environment says.
    ///
    /// # Errors
    /// `GAPLESS_STUCK` is set, but is no number from 0 to 86,400.
    pub(crate) fn from_environment() -> Result<Stuck, WireupError> {
        let after = match std::env::var_os(VARIABLE) {
            None => Some(AFTER),
            Some(text) => after(&text.to_string_lossy())?,
        };
        Ok(Stuck { after, lines: AtomicU32::new(0), asked: asked() })
    }

    /// Whether the launcher wants to know: it has hung up, which is seen by all and for good.
    fn is_asked(&self) -> bool {
        let Some(socket) = self.asked else { return false };
        let mut readable = [PollFd::new(socket, PollFlags::IN)];
        poll(&mut readable, Some(&Timespec::default())) == Ok(1)
    }

    /// Tells the launcher.
    fn tell(&self, me: u32, line: &str) {
        if let Some(socket) = self.asked {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            // Where it has gone, or does not read, there is nobody to be told.
            let _ = send(socket, format!("{me} {line}").as_bytes(), flags);
        }
    }

    /// Says a line, in the log if somebody listens there.
    fn say(&self, line: &str) {
        if tracing::enabled!(tracing::Level::WARN) {
            tracing::warn!("{line}");
            return;
        }
        let more = match self.lines.fetch_add(1, Ordering::Relaxed) + 1 {
            LINES_MAX => "; more such lines are in the log only",
            line if line > LINES_MAX => return,
            _ => "",
        };
        // Whoever has closed it does not want to know.
        let _ = std::io::stderr().write_all(format!("gapless: {line}{more}\n").as_bytes());
    }
}

fn after(text: &str) -> Result<Option<Duration>, WireupError> {
    seconds(VARIABLE, text).map(|after| Some(after).filter(|after| !after.is_zero()))
}

/// How long a call has waited, and whom it has told of that.
#[derive(Debug, Default)]
pub(super) struct WaitHistory {
    /// When it slept for the first time.
    since: Option<u64>,
    /// The note of the call, once there is one.
    pub(super) waiter: Option<WaiterId>,
    said: bool,
    /// Whether the launcher was told.
    told: bool,
}

/// A call on a communicator.
pub(crate) fn on(comm: &Communicator, call: WaitingCall) -> Doing {
    Doing { context: Some(comm.comm.context()), ..of(call) }
}

impl Communicator {
    /// A probe here.
    pub(crate) fn probes(&self, source: Source, tag: TagSel) -> Doing {
        let tag = match tag {
            TagSel::Is(tag) => Some(tag),
            TagSel::Any => None,
        };
        let whom = match source {
            Source::Rank(rank) => self.comm.process(rank).ok(),
            Source::Any => None,
        };
        Doing { whom, ..on(self, WaitingCall::Probe { tag }) }
    }

    /// A collective here.
    pub(crate) fn in_call(&self, operation: Operation, number: u64) -> Doing {
        let call = WaitingCall::Collective { operation: operation.code(), number };
        Doing { context: Some(self.comm.collective().context()), ..of(call) }
    }
}

/// A call.
pub(crate) const fn of(call: WaitingCall) -> Doing {
    Doing { call, ..Doing::NOTHING }
}

pub(crate) const WINDOW: Doing = of(WaitingCall::Window);
pub(crate) const TASK: Doing = of(WaitingCall::Task);

impl Shared {
    /// A thread that waits for `wait.what` is about to sleep, or to let others run. `true`: it is to look again first.
    #[inline]
    pub(super) fn linger(&self, state: &mut WorldState, wait: &mut Wait<'_>, now_ns: u64) -> bool {
        let since = *wait.history.since.get_or_insert(now_ns);
        let waited = Duration::from_nanos(now_ns.saturating_sub(since));
        waited >= NOTED && self.has_waited(state, wait, waited)
    }

    #[cold]
    fn has_waited(&self, state: &mut WorldState, wait: &mut Wait<'_>, waited: Duration) -> bool {
        if state.has_left() {
            return false;
        }
        let millis = u32::try_from(waited.as_millis()).unwrap_or(u32::MAX);
        let doing = Doing { millis, ..describe(state, &(wait.what)(), wait.until) };
        state.pml.waits_in(&mut wait.history.waiter, &doing);
        let me = state.pml.world().rank();
        let asks = self.stuck.after.map_or(ASKS, |after| ASKS.min(after / 2));
        let whom = doing.whom.filter(|whom| *whom != me && waited >= asks);
        let heard = whom.map(|whom| state.pml.ask(whom, &doing));
        if !wait.history.told && self.stuck.is_asked() {
            wait.history.told = true;
            self.stuck.tell(me, &line(me, &doing, heard));
        }
        if !wait.history.said && self.stuck.after.is_some_and(|after| waited >= after) {
            wait.history.said = true;
            self.stuck.say(&line(me, &doing, heard));
        }
        let WorldState { pml, collectives, .. } = state;
        collectives.differs(pml, &doing)
    }
}

/// Which call a thread waits in: its caller says `what`; the request that the thread waits `until` the end of says
/// more.
fn describe(state: &WorldState, what: &Doing, until: Option<RequestId>) -> Doing {
    let awaited = until.and_then(|id| state.collectives.doing(id).or_else(|| state.pml.awaits(id)));
    let doing = match (what.call, awaited) {
        (WaitingCall::Other, Some(awaited)) => awaited,
        (_, awaited) => Doing { whom: what.whom.or(awaited.and_then(|it| it.whom)), ..*what },
    };
    if doing.call == WaitingCall::Other && state.is_leaving() {
        let whom = state.pml.not_left().next();
        return Doing { whom, ..of(WaitingCall::Leaving) };
    }
    doing
}

/// What is said of a call that waits.
fn line(me: u32, doing: &Doing, heard: Option<Answer>) -> String {
    let after = seconds_of(doing.millis);
    let begin = format!("rank {me} has waited {after} in {}", call(doing));
    let Some(whom) = doing.whom else { return begin };
    let says = match heard {
        // It is this process itself.
        None => return format!("{begin} for itself"),
        Some(Answer::Said(theirs, _)) => says(&theirs),
        Some(Answer::Silent(since)) if since < ASKS => "which has not answered yet".to_owned(),
        Some(Answer::Silent(_)) => {
            "which does not answer: it is outside of calls of Gapless, or stopped".to_owned()
        }
        Some(Answer::Unlinked) => "with which there is no link".to_owned(),
        Some(Answer::Lost) => "which is lost".to_owned(),
    };
    format!("{begin} for rank {whom}, {says}")
}

/// What a peer says.
fn says(theirs: &Doing) -> String {
    match theirs.call {
        WaitingCall::Nothing => "which says that it waits in no call".to_owned(),
        WaitingCall::Was { .. } => format!("which says that it is past {}", call(theirs)),
        _ => {
            let since = seconds_of(theirs.millis);
            let whom = theirs.whom.map(|whom| format!(" for rank {whom}")).unwrap_or_default();
            format!("which says that it has waited {since} in {}{whom}", call(theirs))
        }
    }
}

fn seconds_of(millis: u32) -> String {
    format!("{:.1} s", f64::from(millis) / 1000.0)
}

/// A call in words.
fn call(doing: &Doing) -> String {
    let with = |tag: Option<i32>| tag.map_or("any tag".to_owned(), |tag| format!("tag {tag}"));
    let (name, which) = match doing.call {
        WaitingCall::Nothing => ("no call", None),
        WaitingCall::Other => ("a call", None),
        // Messages of collectives have no tags of users'.
        _ if is_internal(doing) => ("a collective", None),
        WaitingCall::Send { tag } => ("send", Some(with(Some(tag)))),
        WaitingCall::Receive { tag } => ("recv", Some(with(tag))),
        WaitingCall::Probe { tag } => ("probe", Some(with(tag))),
        WaitingCall::Collective { operation, number } | WaitingCall::Was { operation, number } => {
            let name = Operation::from_code(operation).map_or("a collective", Operation::name);
            (name, Some(number_of(number)))
        }
        WaitingCall::Window => ("a window's operation", None),
        WaitingCall::Task => ("a wait for a task", None),
        WaitingCall::Making => ("the making of a communicator", None),
        WaitingCall::Leaving => ("finalize", None),
    };
    let on = doing.context.map(communicator);
    let details: Vec<String> = which.into_iter().chain(on).collect();
    if details.is_empty() { name.to_owned() } else { format!("{name} ({})", details.join(", ")) }
}

fn is_internal(doing: &Doing) -> bool {
    let is_message = matches!(doing.call, WaitingCall::Send { .. } | WaitingCall::Receive { .. });
    is_message && doing.context.is_some_and(|context| context % 2 == 1)
}

/// A collective's number in words.
fn number_of(number: u64) -> String {
    match number & !(1 << 63) {
        same if same == number => format!("collective {number}"),
        persistent => format!("persistent collective {persistent}"),
    }
}

fn communicator(context: u32) -> String {
    match context / 2 {
        0 => "the world".to_owned(),
        1 => "this process alone".to_owned(),
        id => format!("communicator {id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_number_of_seconds_is_refused_by_name() {
        assert_eq!(after("0").unwrap(), None);
        assert_eq!(after("2.5").unwrap(), Some(Duration::from_millis(2500)));
        for text in ["", "soon", "-1", "1e9", "inf", "NaN"] {
            let error = after(text).unwrap_err().to_string();
            assert!(error.contains(VARIABLE) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn a_line_names_the_call_its_communicator_and_whom_it_waits_for() {
        let recv = Doing {
            call: WaitingCall::Receive { tag: Some(7) },
            context: Some(0),
            whom: Some(2),
            millis: 10_040,
        };
        let line = |heard| line(1, &recv, Some(heard));
        let begin = "rank 1 has waited 10.0 s in recv (tag 7, the world) for rank 2, ";
        let allreduce =
            WaitingCall::Collective { operation: Operation::Allreduce.code(), number: 3 };
        let theirs = Doing { call: allreduce, context: Some(1), whom: Some(0), millis: 9000 };
        let said = Answer::Said(theirs, Duration::ZERO);
        let says =
            "which says that it has waited 9.0 s in allreduce (collective 3, the world) for rank 0";
        assert_eq!(line(said), format!("{begin}{says}"));
        let silent = line(Answer::Silent(Duration::from_secs(2)));
        assert!(silent.starts_with(begin) && silent.contains("does not answer"), "{silent}");
        let nothing = line(Answer::Said(Doing::NOTHING, Duration::ZERO));
        assert!(nothing.starts_with(begin) && nothing.contains("no call"), "{nothing}");
    }
}
