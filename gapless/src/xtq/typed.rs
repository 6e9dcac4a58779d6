//! Typed tasks: what [`task`](macro@crate::task) makes of a function, and calling it at other processes.
//!
//! Users need [`Tasks::register_task`], [`Tasks::call`], [`CallRequest`], [`CallError`] and [`CallFault`]; the rest is
//! what the attribute writes. An end of XTQ of their own carries calls (`calls.rs`), with one function for all of
//! them.
//!
//! | part of a call | what it is |
//! |---|---|
//! | first argument | hash of the task's name: its path in the program |
//! | second argument | hash of its signature: the basic types of each parameter and of the result |
//! | payload | the arguments, packed one behind the other |
//! | answer | one byte that says what became of it, and the packed result |

mod calls;

pub(crate) use calls::Calls;

use crate::error::Error;
use crate::raw;
use crate::several::{InFlight, Pending, sealed, several_owned};
use crate::xtq::{Rank, Tasks};
use gapless_bml::digest_bytes;
use gapless_dtype::{CheckedBits, Equivalence, pack, unpack_checked};
use gapless_xtq::{Refusal, XtqError};
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use thiserror::Error;

/// Bytes of arguments, at most.
pub const CALL_BYTES_MAX: usize = 1 << 20;

/// A call without a result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("task {task} at rank {rank}: {why}")]
pub struct CallError {
    /// The task's name.
    pub task: &'static str,
    /// The target.
    pub rank: u32,
    /// What is wrong.
    pub why: CallFault,
}

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CallFault {
    /// The target has not registered the task.
    #[error("it is not registered there")]
    NotRegistered,
    /// The target's task of this name has other parameters, or another result.
    #[error("it has other parameters there, or another result")]
    OtherSignature,
    /// This process has registered another function of this name; functions inside of functions may have the same.
    #[error("another function of this name is registered")]
    NameTaken,
    /// The function gave an error, or panicked: that as text, cut to 200 bytes.
    #[error("it failed: {0}")]
    Failed(String),
    /// The bits of an argument are no value of its type.
    #[error("bits that are no value of its arguments")]
    Argument,
    /// The bits of the result are no value of its type.
    #[error("bits that are no value of its result")]
    Result,
    /// So many bytes of arguments are more than a call takes. Nothing was sent.
    #[error("{0} bytes of arguments, and a call takes at most {CALL_BYTES_MAX}")]
    TooLong(usize),
    /// A task waits for another one's answer, with a thread that may have to run it.
    #[error("its answer was waited for inside a task")]
    InTask,
}

/// Of this task at this rank.
fn call_error<T: TaskFunction>(rank: u32, why: CallFault) -> Error {
    Error::Call(CallError { task: T::NAME, rank, why })
}

/// A function that others may call: [`task`](macro@crate::task) writes this.
pub trait TaskFunction: 'static {
    /// Its path, by which others find it.
    const NAME: &'static str;
    /// Whether it may run where progress is made, as [quick](gapless_xtq::Function::quick) functions do.
    const QUICK: bool;
    /// What its first parameter refers to, if that is a reference; else `()`.
    type State: ?Sized + Send + Sync + 'static;
    /// How its result goes back.
    type Answer: Answer;

    /// A hash of its parameters and its result, made once.
    #[doc(hidden)]
    fn signature() -> u64;

    #[doc(hidden)]
    fn run(
        state: &Self::State,
        arguments: &mut Arguments<'_>,
    ) -> Result<<Self::Answer as Answer>::Value, CallFault>;
}

/// How a result goes back: [`Nothing`], [`One`] or [`Many`].
pub trait Answer: 'static {
    /// What the caller gets.
    type Value;

    fn sign(signature: &mut TaskSignature);
    fn pack(value: &Self::Value, into: &mut Vec<u8>);
    fn unpack(packed: &[u8]) -> Option<Self::Value>;
}

/// No result but that the function has ended.
#[derive(Debug)]
pub enum Nothing {}

/// The [`Answer`] of a function that gives one value.
#[derive(Debug)]
pub struct One<T>(PhantomData<T>);

/// The [`Answer`] of a function that gives any number of values.
#[derive(Debug)]
pub struct Many<T>(PhantomData<T>);

impl Answer for Nothing {
    type Value = ();

    fn sign(_: &mut TaskSignature) {}

    fn pack((): &(), _: &mut Vec<u8>) {}

    fn unpack(packed: &[u8]) -> Option<()> {
        packed.is_empty().then_some(())
    }
}

impl<T: CheckedBits> Answer for One<T> {
    type Value = T;

    fn sign(signature: &mut TaskSignature) {
        signature.value::<T>();
    }

    fn pack(value: &T, into: &mut Vec<u8>) {
        pack_into(std::slice::from_ref(value), into);
    }

    fn unpack(packed: &[u8]) -> Option<T> {
        unpack_checked(packed, 1)?.pop()
    }
}

impl<T: CheckedBits> Answer for Many<T> {
    type Value = Vec<T>;

    fn sign(signature: &mut TaskSignature) {
        signature.slice::<T>();
    }

    fn pack(values: &Vec<T>, into: &mut Vec<u8>) {
        pack_into(values, into);
    }

    fn unpack(packed: &[u8]) -> Option<Vec<T>> {
        unpack_all(packed)
    }
}

fn pack_into<T: Equivalence>(values: &[T], into: &mut Vec<u8>) {
    let packed = pack(values, 0, T::layout(), values.len() as u64);
    into.append(&mut packed.expect("a type's own layout fits its values"));
}

/// Bytes of one packed value.
fn packed_bytes<T: Equivalence>() -> usize {
    usize::try_from(T::layout().size()).unwrap_or(usize::MAX)
}

/// All values in these bytes.
fn unpack_all<T: CheckedBits>(packed: &[u8]) -> Option<Vec<T>> {
    const { assert!(size_of::<T>() > 0, "nobody can count values without bytes") };
    unpack_checked(packed, packed.len().checked_div(packed_bytes::<T>()).unwrap_or(0))
}

/// What a task takes and gives, of which both ends make a hash of their own.
#[derive(Debug, Default)]
pub struct TaskSignature(Vec<u8>);

impl TaskSignature {
    /// The hash, with the result last.
    pub fn result<A: Answer>(&mut self) -> u64 {
        self.0.push(b'>');
        A::sign(self);
        digest_bytes(self.0.iter().copied())
    }

    fn add<T: Equivalence>(&mut self, kind: u8) {
        self.0.push(kind);
        self.0.extend_from_slice(&T::layout().signature().digest(1).to_bytes());
    }

    pub fn value<T: Equivalence>(&mut self) {
        self.add::<T>(b'1');
    }

    pub fn slice<T: Equivalence>(&mut self) {
        self.add::<T>(b'*');
    }
}

/// The packed arguments of a call, which a task reads one by one.
#[derive(Debug)]
pub struct Arguments<'p>(&'p [u8]);

impl Arguments<'_> {
    pub fn value<T: CheckedBits>(&mut self) -> Result<T, CallFault> {
        let (one, rest) =
            self.0.split_at_checked(packed_bytes::<T>()).ok_or(CallFault::Argument)?;
        self.0 = rest;
        unpack_checked(one, 1).and_then(|mut one| one.pop()).ok_or(CallFault::Argument)
    }

    pub fn slice<T: CheckedBits>(&mut self) -> Result<Vec<T>, CallFault> {
        unpack_all(std::mem::take(&mut self.0)).ok_or(CallFault::Argument)
    }

    pub fn end(&self) -> Result<(), CallFault> {
        if self.0.is_empty() { Ok(()) } else { Err(CallFault::Argument) }
    }
}

/// The fault of a call whose function gave this error.
#[allow(clippy::needless_pass_by_value, reason = "it is mapped over results")]
pub fn failed(error: impl fmt::Display) -> CallFault {
    CallFault::Failed(error.to_string())
}

/// A task and its arguments, packed: calling the function of this name makes it, [`Tasks::call`] sends it.
#[must_use = "`Tasks::call` calls it"]
pub struct Call<T> {
    arguments: Vec<u8>,
    task: PhantomData<fn() -> T>,
}

impl<T> Call<T> {
    #[doc(hidden)]
    pub fn begin() -> Call<T> {
        Call { arguments: Vec::new(), task: PhantomData }
    }

    #[doc(hidden)]
    pub fn value<A: Equivalence>(&mut self, argument: &A) {
        pack_into(std::slice::from_ref(argument), &mut self.arguments);
    }

    #[doc(hidden)]
    pub fn slice<A: Equivalence>(&mut self, arguments: &[A]) {
        pack_into(arguments, &mut self.arguments);
    }
}

impl<T: TaskFunction> fmt::Debug for Call<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call of {} with {} bytes", T::NAME, self.arguments.len())
    }
}

/// The result of a call, when it comes: a [`Future`], and a handle to wait with. Dropping it changes nothing at the
/// target, and nobody learns the result.
#[must_use = "wait for it"]
pub struct CallRequest<T: TaskFunction> {
    request: raw::Request,
    calls: Arc<Calls>,
    name: u64,
    rank: u32,
    task: PhantomData<fn() -> T>,
}

type Value<T> = <<T as TaskFunction>::Answer as Answer>::Value;

impl Tasks {
    /// Lets others [call](Tasks::call) this function here; nobody may before: a barrier, or any message, tells. It runs
    /// on threads of this process ([`task_threads`](crate::Builder::task_threads)), several calls at a time, in any
    /// order.
    ///
    /// # Errors
    /// [`CallFault::NameTaken`]; the world was left.
    pub fn register_task<T: TaskFunction<State = ()>>(&self) -> Result<(), Error> {
        self.register_task_with::<T>(Arc::new(()))
    }

    /// As [`register_task`](Tasks::register_task), of a function whose first parameter is a reference to its state. A
    /// second call replaces the state.
    ///
    /// # Errors
    /// As there.
    pub fn register_task_with<T: TaskFunction>(&self, state: Arc<T::State>) -> Result<(), Error> {
        self.calls.register::<T>(state)
    }

    /// Calls a function at a process, which may be this one. Never waits: the answer does. A target that is full of
    /// calls takes this one later.
    ///
    /// # Errors
    /// Nothing was sent: [`CallFault::TooLong`]; no such rank; as many calls as this process
    /// [keeps](crate::Builder::put_room) have not ended ([`Full`](XtqError::Full)); the world was left.
    pub fn call<T: TaskFunction>(
        &self,
        target: Rank,
        call: Call<T>,
    ) -> Result<CallRequest<T>, Error> {
        let Call { arguments, .. } = call;
        let (calls, rank, bytes) = (Arc::clone(&self.calls), target.0, arguments.len());
        if bytes > CALL_BYTES_MAX {
            return Err(call_error::<T>(rank, CallFault::TooLong(bytes)));
        }
        let words = [digest_bytes(T::NAME.bytes()), T::signature()];
        let (name, request) = self.calls.begin(&self.shared, target, words, arguments)?;
        Ok(CallRequest { request, calls, name, rank, task: PhantomData })
    }
}

impl<T: TaskFunction> CallRequest<T> {
    /// Waits for the result, and makes progress meanwhile. A task must not wait: it gets the result if that is there.
    ///
    /// # Errors
    /// [`Error::Call`]; [`Error::Task`]: the target was lost, or this process leaves; the world was left.
    pub fn wait(mut self) -> Result<Value<T>, Error> {
        if let Err(error) = sealed::InFlight::may_block(&self) {
            return self.test().unwrap_or(Err(error));
        }
        let ended = self.request.wait();
        self.take(ended.map(drop))
    }

    /// The result if it is there, else the handle again; makes progress.
    ///
    /// # Errors
    /// It is not there.
    pub fn test(mut self) -> Result<Result<Value<T>, Error>, CallRequest<T>> {
        match self.request.test() {
            None => Err(self),
            Some(ended) => Ok(self.take(ended.map(drop))),
        }
    }

    /// The call has ended, or nothing moves any more.
    fn take(&mut self, ended: Result<(), Error>) -> Result<Value<T>, Error> {
        let result = self.calls.take(self.name);
        ended?;
        let failed = |why| call_error::<T>(self.rank, why);
        let refused = |error| match error {
            XtqError::Failed { reason, .. } => failed(CallFault::Failed(reason)),
            // Nothing at all is registered there.
            XtqError::Refused { refusal: Refusal::NotRegistered | Refusal::NoQueue, .. } => {
                failed(CallFault::NotRegistered)
            }
            other => Error::Task(other),
        };
        let answer = result.ok_or(Error::Finalized)?.map_err(refused)?;
        let value = calls::verdict(&answer)
            .and_then(|packed| T::Answer::unpack(packed).ok_or(CallFault::Result));
        value.map_err(failed)
    }
}

several_owned!(CallRequest<T: TaskFunction>, Result<Value<T>, Error>);

impl<T: TaskFunction> InFlight for CallRequest<T> {}

impl<T: TaskFunction> sealed::InFlight for CallRequest<T> {
    fn pending(&self) -> Pending<'_> {
        self.request.pending()
    }

    fn may_block(&self) -> Result<(), Error> {
        match self.calls.xtq().runs_here() {
            true => Err(call_error::<T>(self.rank, CallFault::InTask)),
            false => Ok(gapless_xtq::Xtq::may_wait()?),
        }
    }
}

/// Gives what [`CallRequest::wait`] gives. A task may not block on it.
impl<T: TaskFunction> Future for CallRequest<T> {
    type Output = Result<Value<T>, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let call = self.get_mut();
        call.request.poll(context.waker()).map(|ended| call.take(ended.map(drop)))
    }
}

impl<T: TaskFunction> Drop for CallRequest<T> {
    fn drop(&mut self) {
        // Also under the world's lock, in a quick function.
        if let Some(id) = self.request.forget() {
            self.calls.forget(self.name, id);
        }
    }
}

impl<T: TaskFunction> fmt::Debug for CallRequest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallRequest of {} at rank {}", T::NAME, self.rank)
    }
}

#[cfg(test)]
mod tests;
