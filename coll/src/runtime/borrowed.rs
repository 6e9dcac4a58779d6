//! A blocking collective that has its communicator's modules to itself, so that it looks at shared memory without any
//! lock.

use std::task::Poll;

use super::CollOp;
use super::module::{Armed, Cx, Module, Modules};
use super::op::OpStep;
use crate::CollError;

/// A blocking collective and the modules that are asked for it, taken out of the queue while the caller's thread drives
/// it. However it is left, nothing works on its buffers any more afterwards.
#[derive(Debug)]
pub struct Borrowed {
    modules: Modules,
    op: Option<Box<CollOp>>,
}

/// What a step of a [`Borrowed`] collective has led to: its end, or messages that go on without it.
#[derive(Debug)]
pub enum Stepped {
    /// How it has ended.
    Ended(Result<(), CollError>),
    /// The collective goes by messages alone, and has begun: it needs the modules no more.
    Apart(Box<CollOp>),
}

impl Borrowed {
    /// What a queue has [lent](super::QueueState::lend).
    #[must_use]
    pub fn new(modules: Modules, op: Box<CollOp>) -> Borrowed {
        Borrowed { modules, op: Some(op) }
    }

    /// Goes on as far as it can.
    pub fn advance(&mut self, cx: &mut Cx<'_>) -> Poll<Stepped> {
        let Borrowed { modules, op } = self;
        let Some(now) = op else { return Poll::Ready(Stepped::Ended(Ok(()))) };
        match now.step(modules, cx) {
            OpStep::Waits { .. } => Poll::Pending,
            OpStep::Ended(result) => {
                *op = None;
                Poll::Ready(Stepped::Ended(result))
            }
            OpStep::Apart => match op.take() {
                Some(op) => Poll::Ready(Stepped::Apart(op)),
                None => unreachable!("it has just been there"),
            },
        }
    }

    /// The module that has it.
    fn working(&mut self) -> Option<(&mut dyn Module, &CollOp)> {
        let op = self.op.as_deref().filter(|op| op.has_begun())?;
        Some((&mut **self.modules.get_mut(op.at)?, op))
    }

    /// Whether [`advance`](Borrowed::advance) would get on, as far as a few loads tell.
    #[inline]
    pub fn look(&mut self) -> bool {
        self.working().is_none_or(|(module, _)| module.look())
    }

    /// As [`Module::arm`].
    pub fn arm(&mut self, cx: &mut Cx<'_>) -> Armed {
        self.working().map_or(Armed::Poll, |(module, _)| module.arm(cx))
    }

    /// As [`Module::is_armed`].
    pub fn is_armed(&mut self) -> bool {
        self.working().is_some_and(|(module, _)| module.is_armed())
    }

    /// As [`Module::is_busy`].
    pub fn is_busy(&mut self) -> bool {
        self.working().is_some_and(|(module, op)| module.is_busy(op))
    }

    /// As [`Module::awaits`].
    pub fn awaits(&mut self) -> Option<u32> {
        self.working().and_then(|(module, _)| module.awaits())
    }

    /// The modules, for the queue. What is under way is given up.
    #[must_use]
    pub fn into_modules(mut self) -> Modules {
        self.abandon();
        std::mem::take(&mut self.modules)
    }

    fn abandon(&mut self) {
        if let Some((module, _)) = self.working() {
            module.abandon();
        }
        self.op = None;
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.abandon();
    }
}
