//! The module `schedule`: messages and tasks, as a [`Schedule`](crate::Schedule) says. It takes everything, and is the
//! last. Where ranks are on several hosts, the ranks of one host may share a segment, by which schedules have
//! [steps](crate::Action::Share): such calls go one after the other. All others go beside each other.

use std::task::Poll;

use super::CollOp;
use super::module::{Armed, Begun, Cx, Module};
use crate::sm::SharedSegment;
use crate::{CollError, Outcome};

/// The module.
#[derive(Debug)]
pub(super) struct ScheduleModule {
    /// The segment of this host's ranks, if there are several hosts.
    host: Option<Box<SharedSegment>>,
}

impl ScheduleModule {
    pub(super) fn new(host: Option<Box<SharedSegment>>) -> ScheduleModule {
        ScheduleModule { host }
    }

    /// The segment, if it is at work: otherwise messages get the call on.
    fn at_work(&mut self) -> Option<&mut SharedSegment> {
        self.host.as_deref_mut().filter(|segment| segment.is_at_work())
    }
}

// SAFETY: it works on the buffers by the operation's executor alone, which keeps that promise, and by the segment that
// it is advanced with: that is given up first.
unsafe impl Module for ScheduleModule {
    fn name(&self) -> &'static str {
        "schedule"
    }

    fn takes(&self, _: &CollOp) -> bool {
        true
    }

    fn begin(&mut self, op: &mut CollOp, cx: &mut Cx<'_>) -> Result<Begun, CollError> {
        if self.host.is_some() && op.shares_on_host() {
            op.begin_on_host(cx)?;
            return Ok(Begun::InOrder);
        }
        op.begin_apart(cx)?;
        Ok(Begun::Apart)
    }

    fn advance(&mut self, op: &mut CollOp, cx: &mut Cx<'_>) -> Poll<Result<Outcome, CollError>> {
        let number = op.number();
        let (Some(segment), Some(executor)) = (&mut self.host, &mut op.hosted) else {
            return Poll::Ready(Err(CollError::Abandoned));
        };
        let advanced = executor.advance_with((segment, number), cx.pml, cx.engines, cx.engines);
        advanced.map_ok(|()| Outcome::Done)
    }

    fn look(&mut self) -> bool {
        self.at_work().is_some_and(SharedSegment::look)
    }

    fn arm(&mut self, cx: &mut Cx<'_>) -> Armed {
        match self.at_work() {
            Some(segment) => segment.arm(cx.pml).map_or(Armed::Poll, Armed::Until),
            None => Armed::Messages,
        }
    }

    fn is_armed(&mut self) -> bool {
        self.at_work().is_none_or(SharedSegment::is_armed)
    }

    fn is_busy(&self, op: &CollOp) -> bool {
        let busy = self.host.as_ref().is_some_and(|segment| segment.is_busy());
        busy || op.carried_by().is_some_and(crate::Executor::is_busy)
    }

    fn awaits(&self) -> Option<u32> {
        self.host.as_ref().and_then(|segment| segment.awaits())
    }

    fn abandon(&mut self) {
        if let Some(segment) = &mut self.host {
            segment.give_up();
        }
    }

    fn skip(&mut self, number: u64, cx: &mut Cx<'_>) {
        if let Some(segment) = &mut self.host {
            segment.refuse(number, cx.pml);
        }
    }

    fn close(&mut self, cx: &mut Cx<'_>) -> bool {
        if let Some(segment) = &mut self.host {
            segment.close(cx.pml);
        }
        true
    }
}
