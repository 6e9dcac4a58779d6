//! A blocking collective that has borrowed its communicator's modules: it looks at shared memory without the world's
//! lock.

use crate::communicator::Communicator;
use crate::error::Error;
use crate::shared::{Look, WorldState};
use gapless_coll::Operation;
use gapless_coll::runtime::{Armed, Borrowed, CollOp, Cx, Modules, Stepped};
use gapless_pml::Doing;
use std::cell::Cell;
use std::task::Poll;

/// Modules that work on memory of a caller. However the call is left, nothing works on it any more, and they are back.
pub(super) struct BorrowedModules<'c> {
    comm: &'c Communicator,
    /// `None` only while this is dropped.
    borrowed: Option<Borrowed>,
    /// Whether threads that wait poll because of it, and do not sleep.
    polls: bool,
}

impl<'c> BorrowedModules<'c> {
    /// Modules that the communicator's queue has lent, for this.
    pub(super) fn new(
        comm: &'c Communicator,
        modules: Modules,
        op: Box<CollOp>,
    ) -> BorrowedModules<'c> {
        BorrowedModules { comm, borrowed: Some(Borrowed::new(modules, op)), polls: false }
    }

    fn borrowed(&mut self) -> &mut Borrowed {
        match &mut self.borrowed {
            Some(borrowed) => borrowed,
            None => unreachable!("only one that is dropped has none"),
        }
    }

    fn look(&mut self) -> bool {
        self.borrowed().look()
    }

    /// Goes on as far as it can. What engines do to a short collective is waited for.
    fn advance(&mut self, state: &mut WorldState) -> Poll<Stepped> {
        loop {
            let WorldState { pml, tools, .. } = &mut *state;
            let borrowed = self.borrowed();
            let stepped = borrowed.advance(&mut Cx { pml, engines: &**tools });
            if stepped.is_ready() || !borrowed.is_busy() {
                return stepped;
            }
            std::thread::yield_now();
        }
    }

    /// Announces that this rank may sleep soon, then advances once more. Called at each check from the end of the free
    /// looks on; to announce the same again is cheap.
    fn advance_armed(&mut self, state: &mut WorldState) -> Look<Stepped> {
        loop {
            let WorldState { pml, tools, polled, .. } = &mut *state;
            let armed = self.borrowed().arm(&mut Cx { pml, engines: &**tools });
            let polls = armed == Armed::Poll;
            if polls != std::mem::replace(&mut self.polls, polls) {
                *polled = if polls { *polled + 1 } else { *polled - 1 };
            }
            match (self.advance(state), armed) {
                (Poll::Ready(stepped), _) => return Look::Found(stepped),
                (Poll::Pending, Armed::Poll | Armed::Messages) => return Look::NotYet,
                (Poll::Pending, Armed::Until(wakeup)) if self.borrowed().is_armed() => {
                    return Look::Until(wakeup);
                }
                // It has got on, and waits for another rank now.
                (Poll::Pending, Armed::Until(_)) => {}
            }
        }
    }
}

impl Drop for BorrowedModules<'_> {
    fn drop(&mut self) {
        let Some(borrowed) = self.borrowed.take() else { return };
        // Gives up what is under way: nothing, if the collective has ended.
        let modules = borrowed.into_modules();
        let Communicator { shared, common, .. } = self.comm;
        let waited_for = shared.with_anyway(|state| {
            state.polled -= u32::from(self.polls);
            common.queue.with(|queue_state| queue_state.give_back(modules))
        });
        if waited_for {
            // Whoever sleeps could not announce that.
            shared.signal();
        }
    }
}

impl Communicator {
    /// Does a collective by modules that were borrowed, and waits until this rank's part is over, or it goes by messages
    /// alone.
    #[inline(never)] // its frame is large
    pub(super) fn by_modules(
        &self,
        mut modules: BorrowedModules<'_>,
        (operation, number): (Operation, u64),
    ) -> Result<Stepped, Error> {
        let (call, whom) = (self.in_call(operation, number), Cell::new(None));
        self.shared.wait_looking(
            (&|| Doing { whom: whom.get(), ..call }, &mut modules),
            BorrowedModules::look,
            |modules, state, may_sleep| match modules.advance(state) {
                Poll::Ready(stepped) => Look::Found(stepped),
                Poll::Pending if may_sleep => {
                    let look = modules.advance_armed(state);
                    whom.set(modules.borrowed().awaits());
                    look
                }
                Poll::Pending => Look::NotYet,
            },
        )
    }
}
