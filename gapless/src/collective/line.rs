//! Non-blocking and persistent collectives through shared memory: a line at each desk, and the first in it has the page.
//!
//! A page does one collective after the other, so a communicator's collectives go in the order of calls: each begins when
//! those before it have ended at this rank. A blocking one that finds a line joins it.
//!
//! # Why a line cannot be a deadlock
//! - To start is local: a start never waits, whatever is in the line (MPI 4.1 §3.7, §6.12).
//! - The members of a communicator start its collectives in the same order (§6.12). So if one of them is the *k*-th in the
//!   order of calls here, it is so at all members, and whoever has started it has started all before it.
//! - Suppose that the *k*-th does not end at some rank although all members have started it and make progress. Let *k* be the
//!   least such number. Those before it end at all ranks, so it becomes the first in every line; all its ranks take part,
//!   and so it ends. There is no such *k*.
//! - A program may wait for a later one first. MPI lets any collective synchronize (§6.1, §6.14): to wait for the *k*-th may
//!   need all members to have started the *k*-th, and so those before it. A program that is right by MPI needs no more than
//!   that here.
//! - Lines of several communicators are independent: each is advanced whatever becomes of the others. Collectives by
//!   messages, and other messages, are in no line, and wait for none.
//! - Starts of persistent collectives have no order (§6.13). Each such collective has a desk of its own, with a line of one
//!   start at most, which is the same one at all ranks: their number among the starts of this collective.
//!
//! # On several hosts
//! Where all ranks have no page, those of a host may have one. A collective of all ranks then has a schedule with steps that
//! go by it, and stands in the line of its desk. When it is the first there, its executor has the page. What was said holds:
//! lines of the hosts are in the same order, and a host without a page has no line, but an executor for each.
//!
//! # Memory
//! A page works on memory from [`Page::begin_task`] until `advance` gives a result, and memory of what waits in a line is
//! only described. What has begun ends, or is given up with the world ([`Live::give_up`]), which waits for engines. The page
//! of the first in a line is at the desk, where that finds it: it is never lent meanwhile. A handle that is dropped leaves
//! its memory to the entry. What is cancelled does not exist: collectives cannot be (§6.12).
//!
//! # Failures
//! If a member dies, those that need something of it fail and leave the line, and the next one has its turn; if the
//! communicator is revoked, all fail. If a rank was refused, it says so in its turn.

use super::Tools;
use super::desk::{AtDesk, Desk, Item, Notes};
use super::errand::{By, Errand};
use super::live::{Entry, Live, Number, Phase};
use gapless_coll::page::{Opening, Page};
use gapless_coll::{CollError, Sequencer};
use gapless_pml::{Comm, Pml, RequestId};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

/// How often a start looks for what others have contributed: to put it into a line takes longer.
const BRIEF_LOOKS: u32 = 48;

/// Whether a start looks once more.
pub(super) fn brief_looks() -> impl FnMut() -> bool {
    let mut left = BRIEF_LOOKS;
    move || {
        left = left.saturating_sub(1);
        left > 0
    }
}

/// What is dropped without the lock.
pub(super) type Spent = Vec<Box<dyn Any + Send>>;

/// A desk where something waits, and its communicator.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) comm: Comm,
    pub(super) desk: Arc<Desk>,
}

impl Live {
    /// Puts a collective into its line, and goes on with it as far as it can.
    pub(super) fn queue(
        &mut self,
        (pml, spent): (&mut Pml, &mut Spent),
        number: Number,
        mut entry: Box<Entry>,
    ) -> RequestId {
        let request = pml.begin_general();
        entry.phase = Phase::Going(request);
        let line = entry.errand.as_ref().map(|errand| {
            let desk = Arc::clone(&errand.desk);
            (Line { comm: entry.comm.clone(), desk }, errand.number)
        });
        self.lined.insert(number, entry);
        if let Some((line, held)) = line {
            self.put((pml, spent), line, (Item::Collective(number), Some(held)));
        }
        request
    }

    /// Whether a persistent collective that is started again may go through shared memory. Its ranks make its page in the
    /// second start.
    pub(super) fn may_queue_again(entry: &mut Entry) -> bool {
        let (Some(errand), Some(executor)) = (&mut entry.errand, &entry.executor) else {
            return false;
        };
        errand.again();
        errand.desk.with(|at| {
            if let Notes::Unknown = at.notes {
                at.notes = Notes::Opening;
                let mut opening = Opening::of_persistent(executor);
                if let Some(mates) = &errand.mates {
                    opening = opening.or(Opening::of_host_persistent(executor, mates));
                }
                at.line.push_back(Item::Opening(Box::new(opening)));
            }
            !matches!(at.notes, Notes::Impossible)
        })
    }

    /// Starts a persistent collective again at once, if nothing delays it; whether it has ended.
    pub(super) fn starts_at_once(entry: &mut Entry, pml: &mut Pml) -> bool {
        let Some(errand) = entry.errand.as_deref_mut() else { return false };
        let Errand { desk, number, known: Some((known, buffers)), .. } = errand else {
            return false;
        };
        desk.with(|at| {
            let Some((page, ..)) = at.at_rest() else { return false };
            // SAFETY: as in `advance_by`; the memory is this start's.
            unsafe { page.attempt(*number, known, *buffers, pml, brief_looks()) }
        })
    }

    /// The ranks of a communicator begin to make its page; `mates`: those of this host, if there are several hosts, which
    /// make their own if all of them have none.
    pub(super) fn open_page(
        &mut self,
        with: (&mut Pml, &mut Spent),
        line: Line,
        sequencer: &Sequencer,
        mates: Option<&[usize]>,
    ) {
        line.desk.with(|at| at.notes = Notes::Opening);
        let mut opening = Opening::new(sequencer);
        if let Some(mates) = mates {
            opening = opening.or(Opening::of_host(sequencer, mates));
        }
        self.put(with, line, (Item::Opening(Box::new(opening)), None));
    }

    /// This rank was refused the collective with this number.
    pub(super) fn refuse(&mut self, with: (&mut Pml, &mut Spent), line: Line, number: u64) {
        self.put(with, line, (Item::Refused(number), Some(number)));
    }

    /// Puts something into a line, at its end or where the collective with this number is held.
    fn put(
        &mut self,
        (pml, spent): (&mut Pml, &mut Spent),
        line: Line,
        (item, number): (Item, Option<u64>),
    ) {
        let (is_listed, is_first) = line.desk.with(|at| {
            let place = number.and_then(|number| at.held(number));
            let place = place.unwrap_or(at.line.len());
            match at.line.get_mut(place) {
                Some(held) => *held = item,
                None => at.line.push_back(item),
            }
            (std::mem::replace(&mut at.listed, true), place == 0)
        });
        if is_listed && !is_first {
            // Those before it have been advanced as far as they go.
            return;
        }
        let listed =
            self.lines.iter().position(|it| is_listed && Arc::ptr_eq(&it.desk, &line.desk));
        let at = listed.unwrap_or(self.lines.len());
        if listed.is_none() {
            self.lines.push(line);
        }
        self.advance_at(at, pml, spent);
    }

    /// Goes on with all lines; gives how many collectives have ended.
    pub(super) fn advance_lines(&mut self, pml: &mut Pml, spent: &mut Spent) -> usize {
        let (mut at, mut ended) = (0, 0);
        while at < self.lines.len() {
            let (count, is_over) = self.advance_at(at, pml, spent);
            ended += count;
            at += usize::from(!is_over);
        }
        ended
    }

    /// Goes on with a line; gives how many have ended, and whether nothing is left in it, so that it is not listed any more.
    fn advance_at(&mut self, at: usize, pml: &mut Pml, spent: &mut Spent) -> (usize, bool) {
        let ended = self.advance_line(at, pml, spent);
        let is_over = self.lines[at].desk.with(|at| {
            at.listed = !at.line.is_empty();
            !at.listed
        });
        if is_over {
            let line = self.lines.swap_remove(at);
            if Arc::strong_count(&line.desk) == 1 {
                // The communicator is gone. With the desk goes memory.
                spent.push(Box::new(line.desk));
            }
            if !self.leaving.is_empty() {
                self.free_leaving(pml);
            }
        }
        (ended, is_over)
    }

    /// Goes on with the first in a line, and with those behind it, as far as that goes; gives how many have ended.
    fn advance_line(&mut self, at: usize, pml: &mut Pml, spent: &mut Spent) -> usize {
        let mut ended = 0;
        loop {
            let Live { lines, lined, tools, .. } = self;
            let Some(line) = lines.get(at) else { return ended };
            match line.desk.with(|at| step(at, lined, pml, tools)) {
                Step::Waits { busy } => {
                    self.busy |= busy;
                    return ended;
                }
                Step::Over => {}
                Step::Ended(number, result) => {
                    self.end_lined(pml, number, result, spent);
                    ended += 1;
                }
                Step::ByMessages(number) => ended += self.move_to_messages(pml, number, spent),
            }
        }
    }

    /// It begins by messages.
    fn move_to_messages(&mut self, pml: &mut Pml, number: Number, spent: &mut Spent) -> usize {
        let Some(mut entry) = self.lined.remove(&number) else { return 0 };
        match entry.advance(pml, self.tools()) {
            Poll::Ready(result) => {
                entry.end(pml, result);
                self.lay_aside(pml, number, entry, spent);
                1
            }
            Poll::Pending => {
                self.busy |= entry.is_busy();
                self.going.insert(number, entry);
                0
            }
        }
    }

    /// Looks for the end of one that is waited for, if it is the first of a line.
    pub(super) fn hurry(
        &mut self,
        (pml, spent): (&mut Pml, &mut Spent),
        number: Number,
        look: &mut dyn FnMut() -> bool,
    ) {
        let Some(errand) = self.lined.get(&number).and_then(|entry| entry.errand.as_ref()) else {
            return;
        };
        let is_there = |line: &Line| Arc::ptr_eq(&line.desk, &errand.desk);
        let Some(at) = self.lines.iter().position(is_there) else { return };
        loop {
            let would = self.lines[at].desk.with(|at| match at.line.front() {
                Some(Item::Collective(first)) if *first == number => at.busy_page().map(Page::look),
                _ => None,
            });
            match would {
                None => return,
                Some(true) => {
                    if self.advance_at(at, pml, spent).1 || !self.lined.contains_key(&number) {
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

    fn end_lined(
        &mut self,
        pml: &mut Pml,
        number: Number,
        result: Result<(), CollError>,
        spent: &mut Spent,
    ) {
        let Some(mut entry) = self.lined.remove(&number) else { return };
        entry.end(pml, result);
        self.lay_aside(pml, number, entry, spent);
    }

    /// Whether no line would get on, as far as a few loads tell.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.lines
            .iter()
            .all(|line| line.desk.with(|at| at.busy_page().is_none_or(|page| !page.look())))
    }

    /// Announces for the first of each line that this process is about to sleep, so that those that it waits for wake it.
    /// `false`: something has got on, or only polling gets on.
    pub(crate) fn doze(&mut self, pml: &mut Pml, spent: &mut Spent) -> bool {
        let mut may = true;
        for at in 0..self.lines.len() {
            may &= self.doze_at(at, pml, spent);
        }
        may
    }

    fn doze_at(&mut self, at: usize, pml: &mut Pml, spent: &mut Spent) -> bool {
        /// A line that goes on and on is polled.
        const MOST: usize = 8;
        for _ in 0..MOST {
            // Messages wake whoever waits for the others; of a page that is lent, who has it.
            let announced =
                self.lines[at].desk.with(|at| at.busy_page().map(|page| page.doze(pml).is_some()));
            if announced.is_some_and(|is_announced| !is_announced) {
                return false;
            }
            if self.advance_line(at, pml, spent) > 0 {
                return false;
            }
            let holds =
                self.lines[at].desk.with(|at| at.busy_page().is_none_or(Page::is_announced));
            if holds {
                return true;
            }
            // It has got on, and waits for another rank now.
        }
        false
    }

    /// Ends all use of memory by what is in lines, and by their pages.
    pub(super) fn give_up_lines(&mut self, spent: &mut Spent) {
        for Line { desk, .. } in std::mem::take(&mut self.lines) {
            let items = desk.with(|at| {
                if let Notes::Here(page) = &mut at.notes {
                    // Waits for engines.
                    page.give_up();
                }
                at.listed = false;
                std::mem::take(&mut at.line)
            });
            spent.push(Box::new((items, desk)));
        }
    }
}

/// What has come of the first in a line.
enum Step {
    /// There is none, or it waits; `busy`: for an engine.
    Waits {
        busy: bool,
    },
    /// It was no collective, and is over.
    Over,
    Ended(Number, Result<(), CollError>),
    /// It goes by messages, and is in the line no more.
    ByMessages(Number),
}

/// Goes on with the first in a line.
fn step(
    at: &mut AtDesk,
    lined: &mut BTreeMap<Number, Box<Entry>>,
    pml: &mut Pml,
    tools: &Tools,
) -> Step {
    const WAITS: Step = Step::Waits { busy: false };
    let step = match (at.line.front_mut(), &mut at.notes) {
        (None, _) => return WAITS,
        (Some(Item::Opening(opening)), notes) => {
            let Poll::Ready(made) = opening.advance(pml, tools, tools) else { return WAITS };
            // An error is one that collectives by messages will have as well.
            *notes = match made {
                Ok(Some(page)) => {
                    let settings = at.settings.clone();
                    at.hyperq = settings.and_then(|it| page.hyperq(it)).map(Box::new);
                    Notes::Here(Box::new(page))
                }
                Ok(None) | Err(_) => Notes::Impossible,
            };
            Step::Over
        }
        (Some(Item::Held(_)), _) | (Some(_), Notes::Lent) => return WAITS,
        (Some(Item::Refused(number)), Notes::Here(page)) => {
            if let Some(hyperq) = &at.hyperq {
                hyperq.decline(*number);
            }
            page.refuse(*number, pml);
            Step::Over
        }
        (Some(Item::Refused(_)), _) => Step::Over,
        (Some(Item::Collective(number)), notes) => match (lined.get_mut(number), notes) {
            (None, _) => Step::Over,
            (Some(entry), Notes::Here(page)) => {
                if let (Some(number), Some(hyperq)) = (entry.asks(), &at.hyperq) {
                    hyperq.decline(number);
                }
                let by = entry.errand.as_ref().map_or(By::Messages, |errand| errand.by(page));
                let advanced = match by {
                    By::Page => entry.advance_by(page, pml, tools),
                    By::Host => entry.advance_on_host(page, pml, tools),
                    By::Messages => {
                        let step = by_messages(*number, entry, tools);
                        at.line.pop_front();
                        return step;
                    }
                };
                match advanced {
                    Poll::Ready(result) => Step::Ended(*number, result),
                    Poll::Pending => {
                        return Step::Waits { busy: page.is_busy() || entry.is_busy() };
                    }
                }
            }
            (Some(entry), _) => by_messages(*number, entry, tools),
        },
    };
    at.line.pop_front();
    step
}

/// It goes by messages.
fn by_messages(number: Number, entry: &mut Entry, tools: &Tools) -> Step {
    match entry.go_by_messages(tools) {
        Ok(()) => Step::ByMessages(number),
        Err(error) => Step::Ended(number, Err(error)),
    }
}
