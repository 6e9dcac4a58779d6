//! How collectives are carried out: what all ways have in common, in which order they go, and all that are in flight.
//!
//! ```text
//! gapless        CollOp             Queue (one a communicator)            modules, in order
//! describes ───► what to do    ───► order of calls; the first has    ───► gpu        ranks that share a GPU
//! a call         and buffers        the modules to itself                 sm         a segment that all ranks map
//!                                                                         schedule   messages, tasks; takes everything
//! ```
//!
//! - [`Module`] is the contract. The ranks of a communicator agree on a list of modules when they first need it, and a
//!   call goes by the first that takes it. One that finds in the call that it cannot, at all ranks alike, gives it to
//!   the next.
//! - [`Queue`] has a communicator's modules, and the calls that wait for them, in the order of calls.
//! - [`InFlight`] has all collectives of a process that have begun, and advances them.
//! - [`AllEngines`] is what modules move and combine data with: every memory by its engine.
//! - A blocking call may [borrow](Borrowed) the modules, so that it looks at shared memory without any lock.
//!
//! To add a way to carry out collectives is to write a module, and to add it to the list in `queue.rs`, or from outside
//! by a [`Component`].

mod advance;
mod borrowed;
#[allow(unsafe_code, reason = "hands its caller's promise on to engines")]
mod engines;
#[allow(unsafe_code, reason = "hands its caller's promise on")]
mod gpu;
#[allow(unsafe_code, reason = "hands its caller's promise on")]
mod in_flight;
#[allow(unsafe_code, reason = "declares the contract of modules")]
mod module;
#[allow(unsafe_code, reason = "takes its caller's promise")]
mod op;
mod owned_call;
#[allow(unsafe_code, reason = "frees memory of devices")]
mod pool;
mod queue;
#[allow(unsafe_code, reason = "hands its caller's promise on")]
mod schedule;
mod schedules;
#[allow(unsafe_code, reason = "hands its caller's promise on")]
mod sm;
mod stuck;

pub use borrowed::{Borrowed, Stepped};
pub use engines::AllEngines;
pub use in_flight::{Fate, INLINE_LOOKS, InFlight, OpId, Spent, Started};
pub use module::{Armed, Begun, Component, Cx, Engines, MODULE_TAGS, Module, Modules};
pub use op::{CollOp, Contiguous, Form};
pub use owned_call::OwnedCall;
pub use queue::{AtRest, Before, Blocking, Queue, QueueState, SharedBy};
pub use schedules::{ScheduleCache, Schedules};
