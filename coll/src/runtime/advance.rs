//! How the collectives of a process go on: collectives in queues, and collectives beside queues.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

use gapless_pml::{Comm, Pml};

use super::in_flight::{InFlight, Listed, OpEntry, OpId, Spent};
use super::module::{Armed, Cx, Module};
use super::op::OpStep;
use super::queue::{Queue, QueueItem, QueueState};
use crate::CollError;

impl InFlight {
    /// Puts something into a queue, at its end or in the place that the collective with this number has.
    pub(super) fn put(
        &mut self,
        (pml, spent): (&mut Pml, &mut Spent),
        (comm, queue): (Comm, Arc<Queue>),
        (item, number): (QueueItem, Option<u64>),
    ) {
        let (is_listed, is_first) = queue.with(|state| {
            let place = number.and_then(|number| state.reserved(number));
            let place = place.unwrap_or(state.items.len());
            match state.items.get_mut(place) {
                Some(reserved) => *reserved = item,
                None => state.items.push_back(item),
            }
            (std::mem::replace(&mut state.is_listed, true), place == 0)
        });
        if is_listed && !is_first {
            // Those before it have been advanced as far as they go.
            return;
        }
        let listed = self.queues.iter().position(|it| is_listed && Arc::ptr_eq(&it.queue, &queue));
        let at = listed.unwrap_or(self.queues.len());
        if listed.is_none() {
            self.queues.push(Listed { comm, queue });
        }
        self.advance_at(at, pml, spent);
    }

    /// Goes on with all; gives how many have ended. Those that nobody asks for any more go to `spent`.
    pub fn advance(&mut self, pml: &mut Pml, spent: &mut Spent) -> usize {
        self.busy = false;
        // First, as what does not go by shared memory after all is one of those that go by messages.
        let queued = self.advance_queues(pml, spent);
        let engines = Arc::clone(&self.engines);
        let cx = &mut Cx { pml, engines: &*engines };
        let mut ended = Vec::new();
        for (id, entry) in &mut self.apart {
            match entry.advance(cx) {
                Poll::Ready(result) => {
                    entry.end(cx.pml, result);
                    ended.push(*id);
                }
                Poll::Pending => self.busy |= entry.is_busy(),
            }
        }
        for id in &ended {
            if let Some(entry) = self.apart.remove(id) {
                self.lay_aside(cx, *id, entry, spent);
            }
        }
        if !ended.is_empty() && !self.leaving.is_empty() {
            self.free_leaving(cx);
        }
        self.closing.retain(|queue| !queue.with(|state| state.free(cx)));
        queued + ended.len()
    }

    /// Goes on with all queues; gives how many have ended.
    fn advance_queues(&mut self, pml: &mut Pml, spent: &mut Spent) -> usize {
        let (mut at, mut ended) = (0, 0);
        while at < self.queues.len() {
            let (count, is_over) = self.advance_at(at, pml, spent);
            ended += count;
            at += usize::from(!is_over);
        }
        ended
    }

    /// Goes on with a queue; gives how many have ended, and whether nothing is left in it, so that it is not listed any
    /// more.
    fn advance_at(&mut self, at: usize, pml: &mut Pml, spent: &mut Spent) -> (usize, bool) {
        let engines = Arc::clone(&self.engines);
        let cx = &mut Cx { pml, engines: &*engines };
        let ended = self.advance_queue(at, cx, spent);
        let is_over = self.queues[at].queue.with(|state| {
            state.is_listed = !state.items.is_empty();
            !state.is_listed
        });
        if is_over {
            let listed = self.queues.swap_remove(at);
            if Arc::strong_count(&listed.queue) == 1 {
                // The communicator is gone. With the queue goes memory.
                spent.push(Box::new(listed.queue));
            }
            if !self.leaving.is_empty() {
                self.free_leaving(cx);
            }
        }
        (ended, is_over)
    }

    /// Goes on with the first item in a queue, and with the items behind it, as far as that goes; gives how many
    /// collectives have ended.
    fn advance_queue(&mut self, at: usize, cx: &mut Cx<'_>, spent: &mut Spent) -> usize {
        let mut ended = 0;
        loop {
            let InFlight { queues, queued, .. } = self;
            let Some(Listed { comm, queue }) = queues.get(at) else { return ended };
            match queue.with(|state| step(state, comm, queued, cx)) {
                Advanced::Waits { busy } => {
                    self.busy |= busy;
                    return ended;
                }
                Advanced::Over => {}
                Advanced::Ended(id, result) => {
                    self.end_queued(cx, id, result, spent);
                    ended += 1;
                }
                Advanced::Apart(id) => ended += self.set_apart(cx, id, spent),
            }
        }
    }

    /// A collective has begun to go by messages alone.
    fn set_apart(&mut self, cx: &mut Cx<'_>, id: OpId, spent: &mut Spent) -> usize {
        let Some(mut entry) = self.queued.remove(&id) else { return 0 };
        match entry.advance(cx) {
            Poll::Ready(result) => {
                entry.end(cx.pml, result);
                self.lay_aside(cx, id, entry, spent);
                1
            }
            Poll::Pending => {
                self.busy |= entry.is_busy();
                self.apart.insert(id, entry);
                0
            }
        }
    }

    /// Looks for the end of one that is waited for, if it is the first of a queue.
    pub fn hurry(
        &mut self,
        (pml, spent): (&mut Pml, &mut Spent),
        id: OpId,
        look: &mut dyn FnMut() -> bool,
    ) {
        let Some(entry) = self.queued.get(&id) else { return };
        let is_there = |listed: &Listed| Arc::ptr_eq(&listed.queue, &entry.queue);
        let Some(at) = self.queues.iter().position(is_there) else { return };
        loop {
            let would = self.queues[at].queue.with(|state| match state.items.front() {
                Some(QueueItem::Op(first)) if *first == id => Some(state.look()),
                _ => None,
            });
            match would {
                None => return,
                Some(true) => {
                    if self.advance_at(at, pml, spent).1 || !self.queued.contains_key(&id) {
                        return;
                    }
                }
                Some(false) => {}
            }
            if !look() {
                return;
            }
        }
    }

    fn end_queued(
        &mut self,
        cx: &mut Cx<'_>,
        id: OpId,
        result: Result<(), CollError>,
        spent: &mut Spent,
    ) {
        let Some(mut entry) = self.queued.remove(&id) else { return };
        entry.end(cx.pml, result);
        self.lay_aside(cx, id, entry, spent);
    }

    /// Whether no queue would get on, as far as a few loads tell.
    #[inline]
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.queues.iter().all(|listed| listed.queue.with(|state| !state.look()))
    }

    /// Announces for the first item of each queue that this process is about to sleep, so that ranks that it waits for
    /// wake it. `false`: something has got on, or only polling gets on.
    pub fn arm(&mut self, pml: &mut Pml, spent: &mut Spent) -> bool {
        let engines = Arc::clone(&self.engines);
        let cx = &mut Cx { pml, engines: &*engines };
        let mut may = true;
        for at in 0..self.queues.len() {
            may &= self.arm_at(at, cx, spent);
        }
        may
    }

    fn arm_at(&mut self, at: usize, cx: &mut Cx<'_>, spent: &mut Spent) -> bool {
        /// A queue that goes on and on is polled.
        const MOST: usize = 8;
        for _ in 0..MOST {
            // Of modules that are borrowed, who has them announces it.
            let (working, armed) = self.queues[at]
                .queue
                .with(|state| (state.working, state.working().map(|module| module.arm(cx))));
            if armed == Some(Armed::Poll) || self.advance_queue(at, cx, spent) > 0 {
                return false;
            }
            let holds = |state: &mut QueueState| {
                state.working == working && state.working().is_none_or(Module::is_armed)
            };
            if self.queues[at].queue.with(holds) {
                return true;
            }
            // It has got on, and waits for another rank now.
        }
        false
    }
}

/// What has come of the first item in a queue.
enum Advanced {
    /// There is no item, or the item waits; `busy`: for an engine.
    Waits {
        busy: bool,
    },
    /// The item was no collective, and is over.
    Over,
    Ended(OpId, Result<(), CollError>),
    /// The collective goes by messages alone, and is in the queue no more.
    Apart(OpId),
}

/// Goes on with the first in a queue.
fn step(
    state: &mut QueueState,
    comm: &Comm,
    queued: &mut BTreeMap<OpId, Box<OpEntry>>,
    cx: &mut Cx<'_>,
) -> Advanced {
    const WAITS: Advanced = Advanced::Waits { busy: false };
    state.working = None;
    let step = match state.items.front_mut() {
        None | Some(QueueItem::Reserved(_)) => return WAITS,
        Some(QueueItem::Opening(opening)) => {
            let Poll::Ready(made) = opening.advance(cx.pml, cx.engines, cx.engines) else {
                return WAITS;
            };
            // An error is one that collectives by messages will have as well.
            state.opened(comm, made.ok().flatten());
            Advanced::Over
        }
        Some(QueueItem::Refused(number)) => {
            let number = *number;
            let Some(modules) = state.modules() else { return WAITS };
            modules.iter_mut().for_each(|module| module.skip(number, cx));
            Advanced::Over
        }
        Some(QueueItem::Op(id)) => {
            let id = *id;
            let Some(modules) = state.modules() else { return WAITS };
            let Some(entry) = queued.get_mut(&id) else {
                state.items.pop_front();
                return Advanced::Over;
            };
            match entry.op.step(modules, cx) {
                OpStep::Waits { busy } => {
                    state.working = Some(entry.op.at);
                    return Advanced::Waits { busy };
                }
                OpStep::Apart => Advanced::Apart(id),
                OpStep::Ended(result) => Advanced::Ended(id, result),
            }
        }
    };
    state.items.pop_front();
    step
}
