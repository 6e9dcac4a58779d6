//! The back end *device*: a worker stays on the target's accelerator and is the command processor. Initiators write
//! packets straight into rings that it polls, so no instruction of the target's CPU runs between a put and its task.
//!
//! | file | has |
//! |---|---|
//! | `layout.rs` | what lies where in the memory that is shared, as `kernels/src/worker.h` draws it |
//! | `ring.rs` | [`Lane`]: the initiator's end of a ring |
//! | `target.rs`, `target/{code,grants,rings,said}.rs`, `terms.rs` | [`WorkerTarget`]: tables, receive buffers, rings, functions of users; starting and stopping the worker |
//! | `state.rs` | who starts it again, and when |
//! | `mock_worker.rs` | a thread that does what the kernel does, for tests (feature `testkit`) |
//!
//! The worker is a [`gapless_mem::Worker`]; that of CUDA devices is in `gapless-dtype-cuda`. `docs/worker.md`
//! says what is seen when. Tasks are [`DeviceFunction`]s, by the packets of [`packet`](crate::packet), with the
//! [rewrite](crate::rewrite) of all back ends.
//!
//! A ring lies in memory that the initiator shares with the target (page-locked there) or in the accelerator's own, and
//! belongs to one initiator. The control block belongs to the target alone. Nothing of an initiator is believed: a ring
//! holds packets, and bytes for them; every index, length and offset is checked by the worker.

mod layout;
#[cfg(any(test, feature = "testkit"))]
#[allow(unsafe_code, reason = "plays a worker over memory by address")]
pub mod mock_worker;
mod ring;
mod short;
pub(crate) mod state;
#[allow(unsafe_code, reason = "starts workers, and declares what their memory needs")]
mod target;
mod terms;
#[cfg(test)]
#[allow(unsafe_code, reason = "vouches for memory of its own")]
mod tests;

#[cfg(test)]
pub(crate) use layout::status_word;
pub use layout::{
    BUFFERS_MAX, INLINE_BYTES, LAYOUTS_MAX, OUTS_MAX, RINGS_MAX, RingShape, SIGNALS_MAX, SLOTS,
};
pub(crate) use layout::{RING_ABORT, RING_STATE, SLOT_BYTES, arena_bytes};
pub use ring::{Lane, PutOutcome, RingError};
pub(crate) use short::Short;
pub use target::{RingParts, WorkerCount, WorkerTarget};
pub(crate) use terms::Runs;
pub use terms::{DeviceKernel, Life, RefusedPut, RingPlaces, TargetError};

use thiserror::Error;

/// What a worker can run: an entry of the Kernel Table names one. `buffer` is the registered buffer, `payload` the
/// payload; both are the target's, and what a task touches lies inside them, or it fails. Arguments are words; the
/// first two are the target's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum DeviceFunction {
    /// `buffer[a2..] op= payload`, each element atomically. Arguments: 2: an offset in bytes; 3: an [`Accumulate`].
    Accumulate = 1,
    /// `buffer[a2..] = payload`. Arguments: 2: an offset in bytes.
    Copy = 2,
    /// `buffer[a2..] op= buffer[a3..]`. Arguments: 2, 3: offsets in bytes; 4: elements; 5: an [`Accumulate`].
    Reduce = 3,
    /// Each work-item adds 1 to its `u32` of the buffer, by its number in the grid (that of its group, times the items
    /// of a group, and its own): shows that each runs once.
    Number = 4,
    /// Nothing, for a while. Arguments: 2: nanoseconds.
    Pause = 5,
    /// Puts on: the payload is a packet and its body, which goes into a ring of another target
    /// ([`WorkerTarget::add_out`]). Arguments: 2: which ring. It has ended when it has put. If that ring is full it
    /// fails.
    Forward = 6,
    /// The payload goes into the buffer as a layout says; it is all of the layout's bytes. Arguments: 2: the layout's
    /// number ([`WorkerTarget::register_layout`]); 3: where its displacement 0 is in the buffer, a multiple of 8.
    Unpack = 7,
    /// Bytes of the buffer, as a layout says, go packed into the buffer elsewhere. Arguments: 2, 3: as of
    /// [`Unpack`](DeviceFunction::Unpack); 4: where the packed bytes go, a multiple of 8.
    Pack = 8,
    /// As [`Accumulate`](DeviceFunction::Accumulate), but not atomically: nothing else touches these elements
    /// meanwhile. In memory of the host that is much quicker, and results are those of the processor, but for which
    /// NaN. Grids of at most 4096 work-items.
    Combine = 16,
}

impl DeviceFunction {
    /// All of them, with their names in `worker.h`.
    pub(crate) const ALL: [(&'static str, DeviceFunction); 9] = [
        ("ACCUMULATE", DeviceFunction::Accumulate),
        ("COPY", DeviceFunction::Copy),
        ("REDUCE", DeviceFunction::Reduce),
        ("NUMBER", DeviceFunction::Number),
        ("PAUSE", DeviceFunction::Pause),
        ("FORWARD", DeviceFunction::Forward),
        ("UNPACK", DeviceFunction::Unpack),
        ("PACK", DeviceFunction::Pack),
        ("COMBINE", DeviceFunction::Combine),
    ];

    /// The one that a rewritten packet names.
    #[must_use]
    pub fn of(object: u64) -> Option<DeviceFunction> {
        DeviceFunction::ALL.into_iter().map(|(_, function)| function).find(|f| *f as u64 == object)
    }

    /// Bytes of arguments that it needs.
    #[must_use]
    pub fn argument_bytes(self) -> u16 {
        match self {
            DeviceFunction::Accumulate | DeviceFunction::Combine | DeviceFunction::Unpack => 32,
            DeviceFunction::Pack => 40,
            DeviceFunction::Copy | DeviceFunction::Pause | DeviceFunction::Forward => 24,
            DeviceFunction::Reduce => 48,
            DeviceFunction::Number => 16,
        }
    }
}

/// How elements are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum Combine {
    /// The sum; integers wrap.
    Sum = 0,
    /// The product; integers wrap.
    Prod = 1,
    /// The smaller one; NaN, if the new one is.
    Min = 2,
    /// The larger one; likewise.
    Max = 3,
}

/// What is combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum Element {
    /// 32 bits with a sign.
    I32 = 0,
    /// 32 bits.
    U32 = 1,
    /// 64 bits with a sign.
    I64 = 2,
    /// 64 bits.
    U64 = 3,
    /// IEEE binary32.
    F32 = 4,
    /// IEEE binary64.
    F64 = 5,
}

/// An argument that says what is accumulated, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Accumulate(pub Combine, pub Element);

impl Accumulate {
    /// The argument's word.
    #[must_use]
    pub fn word(self) -> u64 {
        self.0 as u64 | (self.1 as u64) << 8
    }
}

/// Why a task on a worker failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Failure {
    /// It would have touched bytes outside the registered buffer, or elements that are not aligned.
    #[error("it would have left the registered buffer")]
    Outside,
    /// Arguments that say nothing the function knows.
    #[error("arguments that the function does not know")]
    Unknown,
    /// The target gave it up, or the worker's life was over.
    #[error("it was stopped")]
    Stopped,
    /// The ring that it was to put into was full.
    #[error("the ring that it was to put into is full")]
    Full,
    /// A function of a user's says so.
    #[error("its function says {0}")]
    Said(u32),
    /// Anything else.
    #[error("reason {0}")]
    Other(u32),
}

impl Failure {
    fn of(value: u32) -> Failure {
        match value {
            layout::FAILED_OUTSIDE => Failure::Outside,
            layout::FAILED_UNKNOWN => Failure::Unknown,
            layout::FAILED_STOPPED => Failure::Stopped,
            layout::FAILED_FULL => Failure::Full,
            said if said & layout::FAILED_USER != 0 => Failure::Said(said & !layout::FAILED_USER),
            other => Failure::Other(other),
        }
    }
}
