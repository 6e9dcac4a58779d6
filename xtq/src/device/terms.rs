//! What a target is told, and what it answers: lives, kernels, places of rings, refusals, errors.

use super::layout::RingShape;
use super::{DeviceFunction, PutOutcome};
use crate::packet::ARGUMENTS_MAX;
use crate::tables::NoSuchIndex;
use gapless_mem::{DeviceError, Lease, WorkerCode};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// How long a worker stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// It leaves when it had nothing to do for so long; `None`: it stays, for those who own the accelerator.
    pub idle: Option<Duration>,
    /// It leaves after so long in any case, and what runs then is stopped. So whatever waits for the whole accelerator
    /// waits no longer.
    pub longest: Duration,
}

/// 100 µs, and a minute.
impl Default for Life {
    fn default() -> Life {
        Life { idle: Some(Duration::from_micros(100)), longest: Duration::from_secs(60) }
    }
}

/// Why a target cannot do what it is told.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TargetError {
    /// No table has this index.
    #[error(transparent)]
    NoSuchIndex(#[from] NoSuchIndex),
    /// The accelerator failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// There are as many as there can be.
    #[error("a worker has at most {max} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        max: usize,
    },
    /// Arguments of a length that no packet has, or that is too short for the function.
    #[error(
        "{bytes} bytes of arguments: a multiple of 8 up to {ARGUMENTS_MAX}, and at least {min}"
    )]
    Arguments {
        /// Their length.
        bytes: u16,
        /// The least.
        min: u16,
    },
    /// Payloads that would not fit into a ring with their arguments.
    #[error("payloads of up to {payload} bytes, which do not fit into a ring")]
    Body {
        /// The longest payload.
        payload: u32,
    },
    /// The worker was to leave for this, and has not in time: what it runs takes long. Nothing was changed.
    #[error("the worker has not left for {0:?}")]
    Stays(Duration),
    /// The worker has not answered in time: what it runs takes long. What was to be changed will be, when that has ended.
    #[error("the worker has not answered for {0:?}")]
    Busy(Duration),
    /// The accelerator says that the worker has ended, and the worker has not: its memory was written by somebody else.
    #[error("the worker has ended without a word")]
    Died,
}

/// What runs a kernel's tasks.
#[derive(Clone, Debug)]
pub(crate) enum Runs {
    /// A function of the worker's.
    Own(DeviceFunction),
    /// One of a user's, by its name in the code.
    Users { code: WorkerCode, name: Arc<str> },
}

impl Runs {
    /// Bytes of arguments, at least.
    pub(crate) fn argument_bytes(&self) -> u16 {
        match self {
            Runs::Own(function) => function.argument_bytes(),
            Runs::Users { .. } => 16,
        }
    }
}

/// A kernel for the Kernel Table of a worker.
#[derive(Clone, Debug)]
pub struct DeviceKernel {
    pub(super) runs: Runs,
    pub(super) argument_bytes: u16,
    pub(super) payload_max: u32,
    pub(super) grid_max: [u32; 3],
    pub(super) buffer: Option<Lease>,
    pub(super) signal: Option<u8>,
}

impl DeviceKernel {
    /// A function with the arguments that it needs, and payloads of at most `payload_max` bytes.
    #[must_use]
    pub fn new(function: DeviceFunction, payload_max: u32) -> DeviceKernel {
        DeviceKernel::of(Runs::Own(function), payload_max)
    }

    /// A function of a user's, by its name in the code: with arguments of so many bytes, of which the first two words are
    /// the target's. Registering it stops the worker, links the code to it, and starts it again.
    #[must_use]
    pub fn of_code(
        code: &WorkerCode,
        name: &str,
        argument_bytes: u16,
        payload_max: u32,
    ) -> DeviceKernel {
        let runs = Runs::Users { code: code.clone(), name: name.into() };
        DeviceKernel::of(runs, payload_max).argument_bytes(argument_bytes)
    }

    pub(crate) fn of(runs: Runs, payload_max: u32) -> DeviceKernel {
        let argument_bytes = runs.argument_bytes();
        DeviceKernel {
            runs,
            argument_bytes,
            payload_max,
            grid_max: [u32::MAX; 3],
            buffer: None,
            signal: None,
        }
    }

    /// The buffer that its first argument becomes: memory that the worker
    /// [reaches](gapless_mem::Worker::reach). Tasks stay inside.
    #[must_use]
    pub fn buffer(mut self, buffer: Lease) -> DeviceKernel {
        self.buffer = Some(buffer);
        self
    }

    /// The largest grid, in work-items of each dimension. In all there can be 2⁴⁰.
    #[must_use]
    pub fn grid_max(mut self, items: [u32; 3]) -> DeviceKernel {
        self.grid_max = items;
        self
    }

    /// More arguments than the function needs.
    #[must_use]
    pub fn argument_bytes(mut self, bytes: u16) -> DeviceKernel {
        self.argument_bytes = bytes;
        self
    }

    /// Tasks that have ended count this signal, below [`SIGNALS_MAX`](super::SIGNALS_MAX);
    /// [`WorkerTarget::counted`](super::WorkerTarget::counted) tells how often.
    #[must_use]
    pub fn signal(mut self, signal: u8) -> DeviceKernel {
        self.signal = Some(signal);
        self
    }
}

/// A put that was refused here, or whose task failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedPut {
    /// The ring that it came by, from 0.
    pub ring: u8,
    /// The kernel that it named.
    pub index: u8,
    /// The queue that it named.
    pub queue: u8,
    /// What its initiator was told.
    pub outcome: PutOutcome,
}

/// Where the worker finds the parts of a ring: in one memory, or, if initiators are accelerators, in several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlaces {
    /// Two words: the state, and 64 bytes on whether the worker is wanted. All of these are multiples of 16.
    pub head: u64,
    /// The slots.
    pub slots: u64,
    /// Statuses.
    pub status: u64,
    /// Bytes for long bodies, and how many.
    pub arena: (u64, u32),
}

impl RingPlaces {
    /// Units are read 16 bytes at a time, and bodies in the arena begin at multiples of that.
    pub(super) fn check(self) -> Result<(), DeviceError> {
        let (arena, bytes) = self.arena;
        let all = [self.head, self.slots, self.status, arena, bytes.into()];
        if all.iter().all(|place| place.is_multiple_of(16)) {
            return Ok(());
        }
        Err(DeviceError::Unsupported { what: "a ring whose parts are no multiples of 16" })
    }

    /// A ring that begins at this address of the worker's.
    #[must_use]
    pub fn at(start: u64, shape: RingShape) -> RingPlaces {
        let at = |offset: usize| start + offset as u64;
        RingPlaces {
            head: at(0),
            slots: at(RingShape::SLOTS_AT),
            status: at(RingShape::STATUS_AT),
            arena: (at(RingShape::ARENA_AT), shape.arena_bytes),
        }
    }
}
