//! Reads that may [end later](ReadEnds): their calls return at once, where they go by messages, and what was read is there
//! after [`Window::flush`], [`Window::flush_local`], or the end of the epoch. [`Window::get_all`],
//! [`Window::get_accumulate_all`] and [`Window::compare_and_swap_later`] begin them.
//!
//! A target answers in the order in which it was asked, so the reads of one target are a queue. Answers are written straight
//! to where they are wanted, if that is one span of the host's memory. Others are kept, in pieces, and unpacked when
//! somebody waits. So what is under way to one target is bounded: [`READS`] questions, of which [`KEPT`] bytes are kept. A
//! call that finds as many waits for the older half.

use crate::elements::check_apart;
use crate::error::WindowError;
use crate::landing::Landing;
use crate::packed::{contiguous_span, contiguous_span_mut, give_all, room, unpack};
use crate::place::{Access, Place};
use crate::reading::{Question, ReadState, Reading, wait_for_answer};
use crate::send::Pieces;
use crate::tasks::unpoisoned;
use crate::window::{CallError, Driver, Window};
use crate::wire::WindowMessage;
use gapless_dtype::Primitive;
use gapless_engine::{Engine, ReduceOp, Typed};
use gapless_mem::{Region, write};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

/// Reads that are under way to one target.
pub(crate) const READS: usize = 4096;
/// Bytes of them that are kept until they are unpacked.
pub(crate) const KEPT: u64 = 4 << 20;
/// The longest piece of what is kept.
const PIECE: u64 = 1 << 20;

/// What came of a read.
type Outcome = Arc<OnceLock<Result<(), WindowError>>>;

/// What becomes of one of them.
#[derive(Debug)]
struct Goal {
    /// Where it is to be unpacked, if the answer does not go there by itself.
    into: Option<(Typed, Range<u64>)>,
    /// Who is told what came of it, instead of whoever flushes.
    outcome: Option<Outcome>,
}

impl Goal {
    fn kept(&self) -> u64 {
        self.into.as_ref().map_or(0, |(_, range)| range.end - range.start)
    }
}

/// Those of one target, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    list: VecDeque<(Question, Goal)>,
    /// The number of the first one.
    first: u64,
    kept: u64,
    /// What went wrong first, and was not told yet.
    failed: Option<WindowError>,
}

impl Reads {
    /// The number after the last one.
    fn next(&self) -> u64 {
        self.first + self.list.len() as u64
    }

    fn push(&mut self, question: Question, goal: Goal) {
        self.kept += goal.kept();
        self.list.push_back((question, goal));
    }

    fn pop(&mut self) -> Option<(Question, Goal)> {
        let (question, goal) = self.list.pop_front()?;
        self.first += 1;
        self.kept -= goal.kept();
        Some((question, goal))
    }

    fn note(&mut self, outcome: Option<Outcome>, done: Result<(), WindowError>) {
        match (outcome, done) {
            // Nobody else sets it.
            (Some(outcome), done) => drop(outcome.set(done)),
            (None, Ok(())) => {}
            (None, Err(why)) => drop(self.failed.get_or_insert(why)),
        }
    }

    /// Ends a read: this is there, or the reason why it is not.
    fn end(&mut self, engine: &dyn Engine, goal: Goal, found: Result<Vec<u8>, WindowError>) {
        let done = found.and_then(|bytes| match goal.into {
            // SAFETY: whoever began the read has promised that the memory is valid, and nobody else's, until the read has
            // ended, as it does here.
            Some((typed, range)) => unsafe { unpack(engine, &typed, range, &bytes) },
            None => Ok(()),
        });
        self.note(goal.outcome, done);
    }

    /// Ends those before number `end` whose answers are there, the oldest first.
    fn settle(&mut self, engine: &dyn Engine, end: u64) {
        while self.first < end
            && self.list.front().is_some_and(|(question, _)| question.is_answered())
            && let Some((question, goal)) = self.pop()
        {
            self.end(engine, goal, question.end());
        }
    }

    /// Those before number `end` will never be there.
    fn give_up(&mut self, end: u64, why: &WindowError) {
        while self.first < end
            && let Some((_, goal)) = self.pop()
        {
            self.note(goal.outcome, Err(why.clone()));
        }
    }
}

/// Reads of a window, by target.
pub(crate) struct PendingReads {
    engine: Arc<dyn Engine>,
    by_rank: Box<[Mutex<Reads>]>,
}

impl std::fmt::Debug for PendingReads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PendingReads").field(&self.by_rank).finish()
    }
}

impl PendingReads {
    pub(crate) fn new(ranks: usize, engine: Arc<dyn Engine>) -> Arc<PendingReads> {
        Arc::new(PendingReads { engine, by_rank: (0..ranks).map(|_| Mutex::default()).collect() })
    }

    pub(crate) fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    /// How many reads of a rank have not ended.
    #[cfg(test)]
    pub(crate) fn under_way(&self, rank: usize) -> usize {
        unpoisoned(&self.by_rank[rank]).list.len()
    }

    /// Bytes of them that are kept.
    #[cfg(test)]
    pub(crate) fn kept(&self, rank: usize) -> u64 {
        unpoisoned(&self.by_rank[rank]).kept
    }

    /// The window goes.
    pub(crate) fn give_up(&self) {
        for (rank, reads) in (0..).zip(&self.by_rank) {
            unpoisoned(reads).give_up(u64::MAX, &WindowError::Freed { rank });
        }
    }
}

/// Waits until the reads of a queue before number `end` have ended.
fn wait<D: Driver>(
    driver: &D,
    engine: &dyn Engine,
    queue: &Mutex<Reads>,
    end: u64,
) -> Result<(), D::Error> {
    loop {
        let (osc, token) = {
            let mut reads = unpoisoned(queue);
            reads.settle(engine, end);
            // Answers come in order: that of the last one is waited for.
            let left = usize::try_from(end.saturating_sub(reads.first)).unwrap_or(usize::MAX);
            let last = left.min(reads.list.len()).checked_sub(1);
            match last.and_then(|last| reads.list.get(last)) {
                None => return Ok(()),
                Some((question, _)) => (question.osc.clone(), question.token),
            }
        };
        if let Err(error) = wait_for_answer(driver, &osc, token) {
            let why = "no progress is possible".to_owned();
            unpoisoned(queue).give_up(end, &WindowError::Transport { why });
            return Err(error);
        }
    }
}

/// A read that has begun. If it was [`Requested`](ReadEnds::Requested), the caller is told by this when it ends
/// (`MPI_Rget` and its like, MPI 4.1 §12.3.5); of others it says nothing.
#[derive(Debug)]
pub struct PendingRead {
    reads: Arc<PendingReads>,
    rank: u32,
    /// The number after its last part.
    end: u64,
    /// Of its parts.
    outcomes: Vec<Outcome>,
}

impl PendingRead {
    fn queue(&self) -> Option<&Mutex<Reads>> {
        self.reads.by_rank.get(self.rank as usize)
    }

    /// Whether it has ended, to be asked after some progress; then what came of it.
    pub fn test(&self) -> Option<Result<(), WindowError>> {
        if self.outcomes.last().is_some_and(|last| last.get().is_none())
            && let Some(queue) = self.queue()
        {
            unpoisoned(queue).settle(self.reads.engine(), self.end);
        }
        let mut all = Ok(());
        for outcome in &self.outcomes {
            all = all.and(outcome.get()?.clone());
        }
        Some(all)
    }
}

/// When a read is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnds {
    /// Before the call returns, which gives all errors.
    Now,
    /// When the target is flushed, also locally, or the epoch ends: that call says what the target has refused.
    Later,
    /// As [`Later`](ReadEnds::Later), or before, when [`PendingRead::test`] says so; that alone says what was refused.
    Requested,
}

/// Whoever begins reads of one target.
struct Reader<'w, D> {
    window: &'w Window,
    driver: &'w D,
    rank: u32,
    /// Of reads that end now, which no other call is to end.
    own: Option<Mutex<Reads>>,
    outcomes: Option<Vec<Outcome>>,
}

impl<'w, D: Driver> Reader<'w, D> {
    fn new(window: &'w Window, driver: &'w D, rank: u32, ends: ReadEnds) -> Reader<'w, D> {
        let own = (ends == ReadEnds::Now).then(Mutex::default);
        let outcomes = (ends == ReadEnds::Requested).then(Vec::new);
        Reader { window, driver, rank, own, outcomes }
    }

    fn queue(&self) -> &Mutex<Reads> {
        self.own.as_ref().unwrap_or(&self.window.reads.by_rank[self.rank as usize])
    }

    /// Waits until there is room for one more, of which so many bytes are kept.
    fn make_room(&self, kept: u64) -> Result<(), D::Error> {
        let engine = self.window.engine();
        loop {
            let mut reads = unpoisoned(self.queue());
            let is_full = |reads: &Reads| {
                let full = reads.kept > 0 && reads.kept + kept > KEPT;
                full || reads.list.len() >= READS
            };
            if is_full(&reads) {
                reads.settle(engine, u64::MAX);
            }
            if !is_full(&reads) {
                return Ok(());
            }
            let half = reads.first + reads.list.len().div_ceil(2) as u64;
            drop(reads);
            wait(self.driver, engine, self.queue(), half)?;
        }
    }

    /// What is there is unpacked, and what was asked joins the queue.
    fn push(&mut self, reading: Reading, into: Option<(Typed, Range<u64>)>) {
        let outcome = self.outcomes.as_mut().map(|all| {
            let outcome = Outcome::default();
            all.push(Arc::clone(&outcome));
            outcome
        });
        let goal = Goal { into, outcome };
        let mut reads = unpoisoned(self.queue());
        match reading.0 {
            ReadState::Here(found) => reads.end(self.window.engine(), goal, Ok(found)),
            ReadState::Asked(question) => reads.push(question, goal),
        }
    }

    /// The reads have begun.
    fn begun(self) -> Result<PendingRead, D::Error> {
        if let Some(own) = &self.own {
            wait(self.driver, self.window.engine(), own, u64::MAX)?;
            if let Some(why) = unpoisoned(own).failed.take() {
                return Err(why.into());
            }
        }
        let end = unpoisoned(self.queue()).next();
        let (reads, rank) = (Arc::clone(&self.window.reads), self.rank);
        Ok(PendingRead { reads, rank, end, outcomes: self.outcomes.unwrap_or_default() })
    }
}

/// The memory of the host where a packed stream lies as one span.
fn span(typed: &Typed) -> Option<Region> {
    typed.as_contiguous().filter(|region| region.as_ptr().is_some())
}

/// A place for the answers to a read.
///
/// # Safety
/// If there is a region, as for [`Landing::memory`].
unsafe fn landing<E: CallError>(region: Option<Region>, bytes: u64) -> Result<Landing, E> {
    match region {
        // SAFETY: the caller's promise.
        Some(region) => Ok(unsafe { Landing::memory(region) }),
        None => Ok(Landing::of(room(bytes)?)),
    }
}

impl Window {
    /// Ends the reads of a target that its flushes end.
    pub(crate) fn end_reads<D: Driver>(&self, driver: &D, rank: u32) -> Result<(), D::Error> {
        let queue = &self.reads.by_rank[rank as usize];
        let end = unpoisoned(queue).next();
        wait(driver, self.engine(), queue, end)?;
        unpoisoned(queue).failed.take().map_or(Ok(()), |why| Err(why.into()))
    }

    /// [`get`](Window::get) of all that `origin` describes; run by run or in pieces, as [`put_all`](Window::put_all).
    ///
    /// # Safety
    /// As [`load_all`](Window::load_all), until the read has ended, as `ends` says, also with an error; or until the window
    /// was dropped.
    ///
    /// # Errors
    /// As `get`; `origin` has some byte twice; an engine's.
    pub unsafe fn get_all<D: Driver>(
        &self,
        driver: &D,
        access: &Access,
        (origin, ends): (&Typed, ReadEnds),
    ) -> Result<PendingRead, D::Error> {
        check_apart(origin)?;
        if access.packed_bytes() == 0 && access.notice.is_some() {
            // Of nothing a target is told as well.
            self.put(driver, access, 0..0, &[])?;
        }
        // SAFETY: the caller's promise; no byte is there twice.
        let read = unsafe { self.get_apart(driver, access, (origin, ends)) }?;
        self.give_notice(access);
        Ok(read)
    }

    /// The same, without a notice from here; no byte of `origin` is there twice.
    ///
    /// # Safety
    /// As [`get_all`](Window::get_all).
    unsafe fn get_apart<D: Driver>(
        &self,
        driver: &D,
        access: &Access,
        (origin, ends): (&Typed, ReadEnds),
    ) -> Result<PendingRead, D::Error> {
        let mut reader = Reader::new(self, driver, access.rank, ends);
        // SAFETY: the caller's promise; no byte is there twice.
        if unsafe { self.get_runs(driver, access, origin) }? {
            return reader.begun();
        }
        if !self.is_remote(access.rank) {
            // SAFETY: the caller's promise.
            unsafe { self.get_pieces(driver, access, origin) }?;
            return reader.begun();
        }
        self.end_tasks(driver, access.rank)?;
        let (region, all) = (span(origin), origin.packed_bytes());
        let piece = if region.is_some() { all } else { PIECE };
        let mut start = 0;
        while start < all {
            let range = start..all.min(start + piece);
            start = range.end;
            let len = range.end - range.start;
            reader.make_room(if region.is_some() { 0 } else { len })?;
            // SAFETY: the caller's promise.
            let landing = unsafe { landing::<D::Error>(region, len) }?;
            let head = self.head(WindowMessage::Get, access.rank);
            let pieces = Pieces { head, range: range.clone(), bytes: &[], element: 1 };
            let reading = self.ask(driver, access, pieces, landing)?;
            reader.push(reading, region.is_none().then(|| (origin.clone(), range)));
        }
        reader.begun()
    }

    /// [`accumulate_all`](Window::accumulate_all), and `result` gets what was there before; `given` is what is combined, which
    /// is not looked at if nothing is (`MPI_Get_accumulate`).
    ///
    /// # Safety
    /// As [`store_all`](Window::store_all) for what is given, and as [`get_all`](Window::get_all) for `result`.
    ///
    /// # Errors
    /// As there; an engine's.
    pub unsafe fn get_accumulate_all<D: Driver>(
        &self,
        driver: &D,
        what: (&Access, ReduceOp),
        (given, at): (&Typed, &Place),
        (result, ends): (&Typed, ReadEnds),
    ) -> Result<PendingRead, D::Error> {
        check_apart(result)?;
        let (access, bytes) = (what.0, what.0.packed_bytes());
        let mut reader = Reader::new(self, driver, access.rank, ends);
        let has_key = self.key(access.rank).is_some();
        if let Some(exposure) = self.mapped(access).filter(|_| bytes > 0 && !has_key)
            && let Some(operand) = match what.1 {
                ReduceOp::NoOp => Some(&[][..]),
                // SAFETY: the caller's promise.
                _ => unsafe { contiguous_span(given) },
            }
            // SAFETY: the caller's promise.
            && let Some(found) = unsafe { contiguous_span_mut(result) }
        {
            let arithmetic = self.arithmetic(access, what.1, (given, at))?;
            self.before_fetch(driver, access.rank, "get_accumulate")?;
            self.change(driver, (access, exposure), (&arithmetic, operand), Some(found))?;
            return reader.begun();
        }
        let by_message = self.is_remote(access.rank) && !has_key;
        let region = span(result).filter(|_| by_message);
        let begin = |given_bytes: &[u8]| {
            let mut place = None;
            if by_message {
                reader.make_room(if region.is_some() { 0 } else { bytes })?;
                // SAFETY: the caller's promise.
                place = Some(unsafe { landing::<D::Error>(region, bytes) }?);
            }
            self.ask_accumulate(driver, what, (given, at), given_bytes, place)
        };
        let reading = match what.1 {
            ReduceOp::NoOp => begin(&[])?,
            // SAFETY: the caller's promise.
            _ => unsafe { give_all(self.engine(), given, begin) }?,
        };
        let into = region.is_none().then(|| (result.clone(), 0..bytes));
        reader.push(reading, into);
        reader.begun()
    }

    /// [`compare_and_swap`](Window::compare_and_swap), of which `result` gets what was there [later](ReadEnds::Later).
    ///
    /// # Safety
    /// Until then, as for [`get_all`](Window::get_all), `result` describes memory of the host that is valid for writes, and that nobody else touches.
    ///
    /// # Errors
    /// As there. What the target refuses, the flush says.
    pub unsafe fn compare_and_swap_later<D: Driver>(
        &self,
        driver: &D,
        (access, primitive): (&Access, Primitive),
        (compare, swap): (&[u8], &[u8]),
        result: Region,
    ) -> Result<(), D::Error> {
        let mut reader = Reader::new(self, driver, access.rank, ReadEnds::Later);
        let by_message = self.is_remote(access.rank) && self.key(access.rank).is_none();
        if !by_message {
            let mut found = [0; 8];
            let found = found.get_mut(..compare.len()).unwrap_or(&mut []);
            self.compare_and_swap(driver, access, primitive, (compare, swap, found))?;
            // SAFETY: the caller's promise.
            return Ok(unsafe { write(&result, 0, found) }?);
        }
        reader.make_room(0)?;
        // SAFETY: the caller's promise.
        let place = unsafe { Landing::memory(result) };
        let reading = self.ask_swap(driver, access, primitive, (compare, swap), Some(place))?;
        reader.push(reading, None);
        reader.begun().map(drop)
    }
}
