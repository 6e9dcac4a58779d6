//! This process's end for calls: who may be called here, and what was called from here.
//!
//! A call is a put that asks for an answer. Its request is a general one of the message layer, which ends when the
//! answer has come: so it is waited for as any other.

use super::{Answer, Arguments, CALL_BYTES_MAX, CallFault, TaskFunction, call_error};
use crate::error::Error;
use crate::raw::{Request, RequestKind};
use crate::shared::Shared;
use gapless_bml::{Rank, digest_bytes, now_ns};
use gapless_pml::{Pml, RequestId};
use gapless_xtq::{Function, Put, QueueOptions, Retry, Task, TaskError, Tried, Xtq, XtqError};
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The index of the function that all calls put, and that of its queue.
const INDEX: u8 = 0;
/// Calls that wait.
const CAPACITY: u32 = 1024;
/// Bytes of their arguments. A call that finds no room comes again later.
const ROOM: usize = 64 << 20;

/// Bytes of arguments, up to which a quick function runs where progress is made.
const QUICK_MAX: u32 = 4096;

/// What an answer begins with.
const ANSWERED: u8 = 0;
const NOT_REGISTERED: u8 = 1;
const OTHER_SIGNATURE: u8 = 2;
const NO_VALUE: u8 = 3;

/// Runs a function with packed arguments, and gives the answer.
type Run = dyn Fn(&[u8]) -> Result<Vec<u8>, TaskError> + Send + Sync;

/// A function that may be called here.
#[derive(Clone)]
struct Registered {
    function: TypeId,
    signature: u64,
    quick: bool,
    run: Arc<Run>,
}

/// By the hash of its name.
type Functions = Mutex<HashMap<u64, Registered>>;

/// A call that somebody may wait for.
struct OpenCall {
    request: RequestId,
    result: Option<Result<Vec<u8>, XtqError>>,
}

pub(crate) struct Calls {
    xtq: Xtq,
    functions: Arc<Functions>,
    /// Whether others can call at all.
    is_open: Mutex<bool>,
    /// By the name that each has here.
    open: Mutex<HashMap<u64, OpenCall>>,
    next: AtomicU64,
    /// Requests that nobody waits for any more.
    dropped: Mutex<Vec<RequestId>>,
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while one of these is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The packed result in an answer.
pub(super) fn verdict(answer: &[u8]) -> Result<&[u8], CallFault> {
    match answer.split_first() {
        Some((&ANSWERED, packed)) => Ok(packed),
        Some((&NOT_REGISTERED, [])) => Err(CallFault::NotRegistered),
        Some((&OTHER_SIGNATURE, [])) => Err(CallFault::OtherSignature),
        Some((&NO_VALUE, [])) => Err(CallFault::Argument),
        _ => Err(CallFault::Result),
    }
}

/// The function that a call asks for.
fn find(functions: &Functions, task: &Task<'_>) -> Option<Registered> {
    unpoisoned(functions).get(&task.arguments()[2]).cloned()
}

/// A call has come.
fn run(found: Option<Registered>, task: &mut Task<'_>) -> Result<(), TaskError> {
    let [.., signature] = task.arguments();
    let answer = match found {
        None => vec![NOT_REGISTERED],
        Some(registered) if registered.signature != signature => vec![OTHER_SIGNATURE],
        Some(registered) => (registered.run)(task.payload())?,
    };
    task.answer(answer);
    Ok(())
}

/// Runs this function.
fn answer<T: TaskFunction>(state: &T::State, packed: &[u8]) -> Result<Vec<u8>, TaskError> {
    let mut answer = vec![ANSWERED];
    match T::run(state, &mut Arguments(packed)) {
        Ok(value) => T::Answer::pack(&value, &mut answer),
        Err(CallFault::Failed(reason)) => return Err(TaskError(reason)),
        Err(_) => answer = vec![NO_VALUE],
    }
    Ok(answer)
}

impl Calls {
    pub(crate) fn new(xtq: Xtq) -> Calls {
        let (functions, is_open, open, next, dropped) = Default::default();
        Calls { xtq, functions, is_open, open, next, dropped }
    }

    pub(crate) fn xtq(&self) -> &Xtq {
        &self.xtq
    }

    pub(super) fn register<T: TaskFunction>(&self, state: Arc<T::State>) -> Result<(), Error> {
        let name = digest_bytes(T::NAME.bytes());
        let here: Arc<Run> = Arc::new(move |packed| answer::<T>(&state, packed));
        let (function, signature, quick) = (TypeId::of::<T>(), T::signature(), T::QUICK);
        let mut registered = Some(Registered { function, signature, quick, run: here });
        // These are left first: `registered` may have the last hold on a state, whose drop may register others.
        let mut is_open = unpoisoned(&self.is_open);
        if !*is_open {
            let [functions, quick] = [&self.functions; 2].map(Arc::clone);
            let longest = u32::try_from(CALL_BYTES_MAX).unwrap_or(u32::MAX);
            let function = Function::new(longest, move |task| run(find(&functions, task), task));
            let function = function.quick(QUICK_MAX, move |task| {
                let found = find(&quick, task).filter(|registered| registered.quick)?;
                Some(run(Some(found), task))
            });
            self.xtq.register_function(INDEX, function)?;
            let options = QueueOptions { capacity: CAPACITY, width: u32::MAX };
            self.xtq.register_queue(INDEX, options)?;
            self.xtq.make_buffers(ROOM);
            *is_open = true;
        }
        let mut functions = unpoisoned(&self.functions);
        if self.xtq.has_left() {
            return Err(XtqError::Closed.into());
        }
        if functions.get(&name).is_some_and(|before| before.function != function) {
            return Err(call_error::<T>(self.xtq.me().0, CallFault::NameTaken));
        }
        registered = registered.and_then(|registered| functions.insert(name, registered));
        drop((functions, is_open));
        drop(registered);
        Ok(())
    }

    /// Puts a call. Gives its name here, and its request.
    pub(super) fn begin(
        &self,
        shared: &Arc<Shared>,
        target: Rank,
        words: [u64; 2],
        arguments: Vec<u8>,
    ) -> Result<(u64, Request), Error> {
        let name = self.next.fetch_add(1, Ordering::Relaxed);
        let put = Put::function(target, INDEX, INDEX, words).payload(arguments);
        let put = put.retry(Retry::InAnyOrder);
        let id = shared.with(|state| {
            state.open()?;
            if let Tried::Full { puts, bytes, .. } = self.xtq.ask(put, name)? {
                return Err(XtqError::Full { target, puts, bytes }.into());
            }
            let request = state.pml.begin_general();
            unpoisoned(&self.open).insert(name, OpenCall { request, result: None });
            shared.drive(state);
            shared.rouse(state);
            Ok(request)
        })?;
        Ok((name, Request::new(shared, RequestKind::General, Some(id))))
    }

    /// How a call has ended, if it has: nobody asks again.
    pub(super) fn take(&self, name: u64) -> Option<Result<Vec<u8>, XtqError>> {
        unpoisoned(&self.open).remove(&name)?.result
    }

    /// Nobody waits for this call any more: its request goes with the next progress.
    pub(super) fn forget(&self, name: u64, request: RequestId) {
        drop(self.take(name));
        unpoisoned(&self.dropped).push(request);
    }

    /// The name that was given last.
    #[cfg(test)]
    pub(super) fn last_name(&self) -> u64 {
        self.next.load(Ordering::Relaxed) - 1
    }

    /// How many results are there that nobody has taken.
    #[cfg(test)]
    pub(super) fn results(&self) -> usize {
        unpoisoned(&self.open).values().filter(|call| call.result.is_some()).count()
    }

    /// Makes progress; gives how much there was.
    pub(crate) fn advance(&self, pml: &mut Pml) -> usize {
        if self.xtq.is_quiet() {
            return 0;
        }
        let sent = self.xtq.advance(pml.bml_mut(), now_ns());
        let answers = self.xtq.take_answers();
        let ended = answers.len();
        let mut open = unpoisoned(&self.open);
        for (name, result) in answers {
            // Nobody may wait for it any more.
            if let Some(call) = open.get_mut(&name) {
                call.result = Some(result);
                let _ = pml.end_general(call.request);
            }
        }
        drop(open);
        for request in std::mem::take(&mut *unpoisoned(&self.dropped)) {
            // It may have ended.
            let _ = pml.end_general(request);
            let _ = pml.release(request);
        }
        sent + ended
    }

    /// The world is given up: no call runs or ends any more. Gives what users have left here, to be dropped without a
    /// lock.
    pub(crate) fn abandon(&self) -> Box<dyn Any + Send> {
        let left = self.xtq.abandon();
        // Requests end with the world.
        drop(self.xtq.take_answers());
        Box::new((left, std::mem::take(&mut *unpoisoned(&self.functions))))
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = unpoisoned(&self.functions).len();
        write!(f, "Calls of {count} functions, {:?}", self.xtq)
    }
}
