//! Threads that write plans, beside the one that asked for a plan.
//!
//! A [`PlanBuild`] is one plan being written. Whoever writes takes a blank piece of staging memory and with it the
//! next number, writes that piece, and puts it down; the thread that asked for the plan picks pieces up by
//! number, uploads them, and gives the memory back. A number is taken only together with memory, so the lowest
//! piece that is not written is always being written, or waits for memory in flight: nobody waits for each
//! other in a ring.
//!
//! The thread that asked depends on no other: it writes itself what nobody has started. Others start at the
//! first plan that is worth it and wait, between plans, for a message. Staging memory changes hands by value;
//! no thread sees another's. Read first: `prepare.rs`.

use crate::plan::{Patches, Pieces, Wrote};
use crate::staging::StagingPiece;
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long to wait before looking again. Whoever changes something wakes whoever waits.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How long a piece is waited for without sleeping: about as long as waking takes.
const SPIN: Duration = Duration::from_micros(50);

/// So many others write that the thread that asked has better to do: it uploads.
const ENOUGH: usize = 4;

/// A piece that is written.
pub(crate) struct Written {
    pub(crate) piece: StagingPiece,
    pub(crate) patches: Patches,
    /// Bytes of an instance's stream that this and all earlier pieces complete.
    pub(crate) ready: u64,
    /// Blocks that it numbered for itself.
    blocks: u64,
}

impl Written {
    /// A piece that there is nothing more to do to.
    pub(crate) fn whole(piece: StagingPiece, patches: Patches, ready: u64) -> Written {
        Written { piece, patches, ready, blocks: 0 }
    }
}

/// Writing a piece ended in a panic; what it said.
#[derive(Debug)]
pub(crate) struct Broken(pub(crate) String);

/// A plan being written.
pub(crate) struct PlanBuild {
    pieces: Pieces,
    state: Mutex<BuildState>,
    changed: Condvar,
    /// Pieces that are written, or given up: what is looked at while waiting.
    put: AtomicUsize,
}

/// Which pieces are blank, being written and written.
#[derive(Default)]
struct BuildState {
    /// The next piece to write.
    next: usize,
    blank: Vec<StagingPiece>,
    written: BTreeMap<usize, Written>,
    /// Blocks that the pieces that were taken have numbered for themselves.
    before: u64,
    /// Pieces that are being written.
    writing: usize,
    /// Other threads that have come.
    others: usize,
    /// No more is to be written.
    stopped: bool,
    broken: Option<String>,
}

impl PlanBuild {
    pub(crate) fn new(pieces: Pieces) -> Arc<PlanBuild> {
        Arc::new(PlanBuild {
            pieces,
            state: Mutex::default(),
            changed: Condvar::new(),
            put: AtomicUsize::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, BuildState> {
        // The state is valid after every statement that may panic (allocation).
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, BuildState>) -> MutexGuard<'a, BuildState> {
        self.changed.wait_timeout(state, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0
    }

    /// How many pieces the plan has.
    pub(crate) fn count(&self) -> usize {
        self.pieces.count()
    }

    /// Memory to write into.
    pub(crate) fn give(&self, piece: StagingPiece) {
        self.state().blank.push(piece);
        self.changed.notify_one();
    }

    /// A number and memory for it; waits for memory, if told to. `None` if there is nothing to write.
    fn claim(&self, wait: bool) -> Option<(usize, StagingPiece)> {
        let mut state = self.state();
        loop {
            if state.stopped || state.next >= self.count() {
                return None;
            }
            if let Some(piece) = state.blank.pop() {
                let number = state.next;
                state.next += 1;
                state.writing += 1;
                return Some((number, piece));
            }
            if !wait {
                return None;
            }
            state = self.wait(state);
        }
    }

    fn write(&self, number: usize, mut piece: StagingPiece) {
        let mut patches = Patches::new();
        let writing = catch_unwind(AssertUnwindSafe(|| {
            self.pieces.write(number, piece.bytes(), &mut patches)
        }));
        let mut state = self.state();
        state.writing -= 1;
        match writing {
            Ok(Wrote { ready, blocks }) => {
                state.written.insert(number, Written { piece, patches, ready, blocks });
            }
            Err(why) => {
                state.stopped = true;
                state.broken.get_or_insert(told(&*why));
                state.blank.push(piece);
            }
        }
        // With the state locked, so that who looks at it and then waits (`wait_beyond`) is not waiting for this one.
        self.put.fetch_add(1, Ordering::Release);
        drop(state);
        self.changed.notify_all();
    }

    /// Writes pieces until all are started.
    fn help(&self) {
        self.state().others += 1;
        while let Some((number, piece)) = self.claim(true) {
            self.write(number, piece);
        }
    }

    /// Writes a piece that nobody has started, if there is memory and too few others do; whether it did.
    pub(crate) fn write_one(&self) -> bool {
        if self.state().others >= ENOUGH {
            return false;
        }
        let Some((number, piece)) = self.claim(false) else { return false };
        self.write(number, piece);
        true
    }

    /// Piece `number`, if it is written. Pieces are taken in order.
    ///
    /// # Errors
    /// A piece could not be written.
    pub(crate) fn take(&self, number: usize) -> Result<Option<Written>, Broken> {
        let mut state = self.state();
        if let Some(why) = state.broken.take() {
            return Err(Broken(why));
        }
        let Some(mut written) = state.written.remove(&number) else { return Ok(None) };
        let before = state.before;
        state.before += written.blocks;
        drop(state);
        let Written { piece, patches, blocks, .. } = &mut written;
        self.pieces.settle(before, *blocks, piece.bytes(), patches);
        Ok(Some(written))
    }

    /// Whether piece `number` is not started for lack of memory: all of it is in flight.
    pub(crate) fn lacks_memory(&self, number: usize) -> bool {
        let state = self.state();
        state.next <= number && state.blank.is_empty()
    }

    /// Returns when some piece has been put down that had not been when `put` was asked for, or after a while.
    pub(crate) fn wait_beyond(&self, put: usize) {
        let begin = Instant::now();
        while begin.elapsed() < SPIN {
            if self.put() != put {
                return;
            }
            std::hint::spin_loop();
        }
        let state = self.state();
        if self.put() == put {
            drop(self.wait(state));
        }
    }

    /// How many pieces have been put down.
    pub(crate) fn put(&self) -> usize {
        self.put.load(Ordering::Acquire)
    }

    /// No more pieces are started.
    pub(crate) fn give_up(&self) {
        self.state().stopped = true;
        self.changed.notify_all();
    }

    /// Ends all writing. Gives the memory that is not in flight.
    pub(crate) fn stop(&self) -> Vec<StagingPiece> {
        self.give_up();
        let mut state = self.state();
        // A piece takes less than a millisecond.
        while state.writing > 0 {
            state = self.wait(state);
        }
        let written = std::mem::take(&mut state.written).into_values().map(|written| written.piece);
        let blank = std::mem::take(&mut state.blank);
        written.chain(blank).collect()
    }
}

/// What a panic said.
fn told(why: &(dyn Any + Send)) -> String {
    let text = why.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| why.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}

/// What a thread is told.
enum Message {
    /// To help, as number `place` of `of`; and to wake those who come after it.
    Help { build: Arc<PlanBuild>, place: usize, of: usize },
    /// To end.
    End,
}

/// The threads' mailboxes.
type Boxes = Arc<[Sender<Message>]>;

struct Threads {
    boxes: Boxes,
    handles: Vec<JoinHandle<()>>,
    /// The process that has them: its children do not.
    process: u32,
}

/// An engine's threads that write plans.
pub(crate) struct Writers {
    threads: Mutex<Option<Threads>>,
    most: usize,
}

impl Writers {
    /// `writers` threads, the one that asks among them. None starts before it is needed.
    pub(crate) fn new(writers: usize) -> Writers {
        Writers { threads: Mutex::default(), most: writers.saturating_sub(1) }
    }

    /// How many others there may be.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Lets up to `helpers` threads write.
    pub(crate) fn call(&self, build: &Arc<PlanBuild>, helpers: usize) {
        let helpers = helpers.min(self.most);
        if helpers == 0 {
            return;
        }
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let threads = threads.get_or_insert_with(|| Threads::start(self.most));
        if threads.process == std::process::id() {
            wake(&threads.boxes, build, 0, helpers.min(threads.boxes.len()));
        }
    }
}

/// Wakes one thread, which wakes two, and so on: the one that asks has more to do.
fn wake(boxes: &Boxes, build: &Arc<PlanBuild>, place: usize, of: usize) {
    if place < of {
        // A thread that is gone helps nobody.
        let _ = boxes[place].send(Message::Help { build: Arc::clone(build), place, of });
    }
}

impl Threads {
    /// Up to `most` threads: as many as the system gives.
    fn start(most: usize) -> Threads {
        let (boxes, mails): (Vec<_>, Vec<_>) = (0..most).map(|_| channel()).unzip();
        let boxes: Boxes = boxes.into();
        let mut handles = Vec::with_capacity(most);
        for (place, mail) in mails.into_iter().enumerate() {
            let boxes = Arc::clone(&boxes);
            let builder = std::thread::Builder::new().name(format!("gapless-plan-{place}"));
            match builder.spawn(move || serve(&boxes, &mail)) {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    tracing::warn!(%error, "fewer threads write plans");
                    break;
                }
            }
        }
        Threads { boxes, handles, process: std::process::id() }
    }
}

fn serve(boxes: &Boxes, mail: &Receiver<Message>) {
    while let Ok(Message::Help { build, place, of }) = mail.recv() {
        wake(boxes, &build, 2 * place + 1, of);
        wake(boxes, &build, 2 * place + 2, of);
        build.help();
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(threads) = threads.filter(|threads| threads.process == std::process::id()) else {
            return;
        };
        for mailbox in &*threads.boxes {
            let _ = mailbox.send(Message::End);
        }
        for handle in threads.handles {
            // They catch what writing panics with.
            let _ = handle.join();
        }
    }
}

#[cfg(test)]
mod tests;
