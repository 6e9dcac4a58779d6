//! What a collective that stands in a line has to do: by the page of all ranks, by that of this host, or by messages.
//!
//! When it is described, it may not be known which pages there are. So it keeps what each way needs until it begins.

use super::Tools;
use super::desk::Desk;
use super::live::Entry;
use super::prepare::Schedules;
use super::remembered::Plain;
use gapless_coll::page::{Known, Page, Task};
use gapless_coll::{CollError, Combine, Executor, Rows, Schedule, Ticket};
use gapless_pml::Pml;
use std::sync::Arc;
use std::task::Poll;

/// What a collective does through shared memory.
#[derive(Debug)]
pub(super) struct Errand {
    pub(super) desk: Arc<Desk>,
    /// Its number at the desk.
    pub(super) number: u64,
    /// Gone when it has begun, unless it is persistent.
    task: Option<Task>,
    begun: bool,
    /// As [`Prepared::asks`](super::prepare::Prepared).
    pub(super) asks: bool,
    /// What is known of a persistent one that is short, and its memory.
    pub(super) known: Option<(Known, Plain)>,
    /// What it does if the ranks have no page in common.
    instead: Option<Instead>,
    /// What carries it out with the page of this host.
    executor: Option<Executor>,
    /// The ranks of this host, if there are several hosts; of a persistent one.
    pub(super) mates: Option<Box<[usize]>>,
}

/// What a collective does if the ranks have no page in common.
#[derive(Debug)]
pub(super) struct Instead {
    schedules: Schedules,
    /// Of one that is not persistent.
    ticket: Option<Ticket>,
    /// Of one that is not persistent, and has no task.
    parts: Option<(Rows, Option<Combine>)>,
}

impl Instead {
    pub(super) fn new(schedules: Schedules, ticket: Ticket) -> Instead {
        Instead { schedules, ticket: Some(ticket), parts: None }
    }
}

/// By what the first in a line goes.
pub(super) enum By {
    Page,
    /// Its executor, with the page of this host.
    Host,
    Messages,
}

impl Errand {
    /// One that goes through shared memory in any case.
    pub(super) fn new(desk: &Arc<Desk>, number: u64, task: impl Into<Option<Task>>) -> Errand {
        let desk = Arc::clone(desk);
        Errand {
            desk,
            number,
            task: task.into(),
            begun: false,
            asks: false,
            known: None,
            instead: None,
            executor: None,
            mates: None,
        }
    }

    /// One that goes otherwise if the communicator gets no page.
    pub(super) fn or(desk: &Arc<Desk>, task: Task, instead: Instead) -> Errand {
        let number = instead.ticket.as_ref().map_or(0, Ticket::number);
        Errand { instead: Some(instead), ..Errand::new(desk, number, Some(task)) }
    }

    /// One that goes by the page of this host, if there is one.
    pub(super) fn of_host(
        desk: &Arc<Desk>,
        parts: (Rows, Option<Combine>),
        instead: Instead,
    ) -> Errand {
        let number = instead.ticket.as_ref().map_or(0, Ticket::number);
        let instead = Instead { parts: Some(parts), ..instead };
        Errand { instead: Some(instead), ..Errand::new(desk, number, None) }
    }

    /// Of a persistent collective, which has a desk of its own. Without a task it has no use for a page of all ranks.
    pub(super) fn persistent(task: Option<Task>, known: Option<(Known, Plain)>) -> Errand {
        Errand { known, ..Errand::new(&Arc::default(), 0, task) }
    }

    /// What a persistent collective does with the page of this host; `mates`: the ranks there, if there are several hosts.
    pub(super) fn again_by(self, schedules: Schedules, mates: Option<&[usize]>) -> Errand {
        let instead = Some(Instead { schedules, ticket: None, parts: None });
        Errand { instead, mates: mates.map(Box::from), ..self }
    }

    /// What carries it out with the page of this host, if something does.
    pub(super) fn executor(&self) -> Option<&Executor> {
        self.executor.as_ref()
    }

    /// The same, to be changed.
    pub(super) fn executor_mut(&mut self) -> Option<&mut Executor> {
        self.executor.as_mut()
    }

    /// The same; nothing goes on with it afterwards.
    pub(super) fn take_executor(&mut self) -> Option<Executor> {
        self.executor.take()
    }

    /// By what it goes, if there is this page.
    pub(super) fn by(&self, page: &Page) -> By {
        let shares = |instead: &Instead| instead.schedules.shares();
        match page.is_whole() {
            true if self.begun || self.task.is_some() => By::Page,
            false if self.executor.is_some() || self.instead.as_ref().is_some_and(shares) => {
                By::Host
            }
            _ => By::Messages,
        }
    }

    /// Whether there is something that it does by the page of all ranks.
    pub(super) fn has_task(&self) -> bool {
        self.task.is_some()
    }

    /// What it is to do, if it has not begun.
    pub(super) fn into_task(self) -> Option<Task> {
        self.task
    }

    /// The next start.
    pub(super) fn again(&mut self) {
        (self.number, self.begun) = (self.number + 1, false);
    }
}

impl Entry {
    /// Its number, if it has not begun, and ranks may ask whether its buffers lie on one GPU: those of a line go by the
    /// page.
    pub(super) fn asks(&self) -> Option<u64> {
        let errand = self.errand.as_ref()?;
        (errand.asks && !errand.begun).then_some(errand.number)
    }

    /// Goes on with it by the page, as the first in the line.
    pub(super) fn advance_by(
        &mut self,
        page: &mut Page,
        pml: &mut Pml,
        tools: &Tools,
    ) -> Poll<Result<(), CollError>> {
        let Some(errand) = &mut self.errand else { return Poll::Ready(Err(CollError::Abandoned)) };
        if !std::mem::replace(&mut errand.begun, true) {
            // It needs no messages.
            errand.instead = None;
            let task = if self.persistent { errand.task.clone() } else { errand.task.take() };
            let Some(task) = task else { return Poll::Ready(Err(CollError::Abandoned)) };
            // SAFETY: whoever made the entry grants its memory until it has ended, or was given up (`Entry::new`, and
            // `Live::start` for each start); the page is given up then.
            let begun = unsafe { page.begin_task(errand.number, task) };
            if let Err(error) = begun {
                page.refuse(errand.number, pml);
                return Poll::Ready(Err(error));
            }
        }
        page.advance(pml, tools, tools)
    }

    /// Goes on with it by messages and the page of this host, as the first in the line.
    pub(super) fn advance_on_host(
        &mut self,
        page: &mut Page,
        pml: &mut Pml,
        tools: &Tools,
    ) -> Poll<Result<(), CollError>> {
        match self.host_executor(tools) {
            Ok((executor, number)) => executor.advance_with((page, number), pml, tools, tools),
            Err(error) => {
                if let Some(errand) = &self.errand {
                    page.refuse(errand.number, pml);
                }
                Poll::Ready(Err(error))
            }
        }
    }

    /// What carries it out with the page of this host.
    fn host_executor(&mut self, tools: &Tools) -> Result<(&mut Executor, u64), CollError> {
        let Entry { executor: first, errand, .. } = self;
        let Some(errand) = errand else { return Err(CollError::Abandoned) };
        let Errand { number, task, begun, instead, executor, .. } = &mut **errand;
        let is_first = !std::mem::replace(begun, true);
        match (&mut *executor, instead, first) {
            (Some(executor), ..) if is_first => {
                // SAFETY: as in `advance_by`: this is the start that was granted memory, and it has not begun.
                unsafe { executor.restart() }?;
            }
            (Some(_), ..) => {}
            (None, Some(Instead { schedules, ticket: None, .. }), Some(first)) => {
                // SAFETY: as in `advance_by`.
                *executor = Some(unsafe { first.by(Arc::clone(&schedules.schedule)) }?);
            }
            (None, Some(Instead { schedules, ticket, parts }), _) => {
                let parts = parts.take().or_else(|| task.take().map(Task::into_parts));
                let (Some(parts), Some(ticket)) = (parts, ticket.take()) else {
                    return Err(CollError::Abandoned);
                };
                let schedule = Arc::clone(&schedules.schedule);
                // SAFETY: as in `advance_by`.
                *executor = Some(unsafe { carrier(schedule, parts, ticket, tools) }?);
            }
            (None, None, _) => return Err(CollError::Abandoned),
        }
        match executor {
            Some(executor) => Ok((executor, *number)),
            None => Err(CollError::Abandoned),
        }
    }

    /// There is no page: it goes by messages.
    pub(super) fn go_by_messages(&mut self, tools: &Tools) -> Result<(), CollError> {
        if let Some(executor) = &mut self.executor {
            // SAFETY: as in `advance_by`: this is the start that was granted memory, and it has not begun.
            return unsafe { executor.restart() };
        }
        let Some(errand) = self.errand.take() else { return Err(CollError::Abandoned) };
        let Errand { task, instead, .. } = *errand;
        let operation = task.as_ref().map(Task::operation);
        let Some(Instead { schedules, ticket: Some(ticket), parts }) = instead else {
            // The communicator was freed.
            return Err(operation
                .map_or(CollError::Abandoned, |operation| CollError::NotShared { operation }));
        };
        let parts = parts.or_else(|| task.map(Task::into_parts));
        let Some(parts) = parts else { return Err(CollError::Abandoned) };
        // SAFETY: as in `advance_by`.
        self.executor = Some(unsafe { carrier(schedules.by_messages(), parts, ticket, tools) }?);
        Ok(())
    }
}

/// What carries a schedule out, with memory of the device on which its elements are combined; tasks combine them in
/// that of the host.
///
/// # Safety
/// As for [`Executor::new`].
pub(super) unsafe fn carrier(
    schedule: Arc<Schedule>,
    (rows, combine): (Rows, Option<Combine>),
    ticket: Ticket,
    tools: &Tools,
) -> Result<Executor, CollError> {
    let has_tasks = schedule.has_tasks();
    let lender = combine.as_ref().filter(|_| !has_tasks);
    let lender = lender.and_then(|combine| tools.lender(&rows, combine));
    // SAFETY: the caller's promise.
    let mut made = unsafe { Executor::new(schedule, rows, combine, ticket) }?;
    if has_tasks {
        made = made.with_tasks(tools.tasks());
    }
    Ok(match lender {
        Some(lender) => made.with_lender(lender),
        None => made,
    })
}
