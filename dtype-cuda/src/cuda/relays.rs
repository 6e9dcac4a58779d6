//! Relays as message layers know them: [`gapless_engine::Relays`] over [`OnStream::relay`](super::OnStream).
//!
//! Each half of a ring has a stream of its own, so that it waits for nothing of ours but the message before
//! it, and a watch, by which the host ends it and sees that it has ended: the last thing that a kernel does is to
//! write there, after all else of it can be seen by everybody. So nothing is recorded on the stream, and the
//! driver is asked only now and then, whether the device has failed.

use super::failed;
use super::relay::{Relay as Ring, RelayOutcome as Ended, RelayWatch};
use crate::engine::GpuEngine;
use gapless_engine::{
    EngineError, Relay, RelayEnd, RelayMemory, RelayOutcome, RelayShape, Relays, Typed,
};
use gapless_kernels::Direction;
use gapless_kernels::launch::{REST_NS, RelayRing, RelayTurn};
use gapless_mem::{Completion, DeviceError, Pending, Space};
use gapless_mem_cuda::Stream;
use std::any::Any;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Halves that are at work on a device at a time, for each end that it is: one message each way.
const HALVES: u32 = 2;
/// Looks at a watch from one question to the driver to the next: a look takes nanoseconds, a question a microsecond.
const LOOKS: u32 = 1024;
/// How long a kernel that was told to end is waited for.
const UNHEARD_MAX: Duration = Duration::from_secs(5);

fn refused(what: &'static str) -> EngineError {
    EngineError::Device(DeviceError::Unsupported { what })
}

fn ring(shape: &RelayShape) -> Result<RelayRing, EngineError> {
    let number = |n| NonZeroU32::new(n).ok_or_else(|| refused("a relay of nothing"));
    let (lanes, depth) = (number(shape.lanes)?, number(shape.depth)?);
    let ring = RelayRing { lanes, depth, fragment: number(shape.fragment)? };
    let bytes = ring.bytes().filter(|bytes| shape.ring_bytes() == Some(*bytes));
    let alike = bytes.is_some() && ring.flag_bytes() == shape.flag_bytes();
    if alike { Ok(ring) } else { Err(refused("a relay in memory that is divided otherwise")) }
}

impl GpuEngine {
    /// Lanes that an idle device holds of either half.
    pub(super) fn lanes_held(&self) -> u32 {
        let Some(cuda) = self.cuda.as_deref() else { return 0 };
        *cuda.relay_lanes.get_or_init(|| {
            let of = |direction| self.relay_lanes_max(direction);
            match (of(Direction::Pack), of(Direction::Unpack)) {
                (Ok(pack), Ok(unpack)) => pack.min(unpack),
                (Err(error), _) | (_, Err(error)) => {
                    tracing::info!(%error, "this device does not relay");
                    0
                }
            }
        })
    }
}

impl Relays for GpuEngine {
    fn lanes(&self, space: Space, beside: bool) -> u32 {
        if space != self.device().space() {
            return 0;
        }
        let ends = if beside { 2 } else { 1 };
        let lanes = self.lanes_held() / (HALVES * ends);
        self.budget.map_or(lanes, |budget| lanes.min(budget.get()))
    }

    fn relay(
        &self,
        end: RelayEnd,
        space: Space,
        lanes: u32,
    ) -> Result<Arc<dyn Relay>, EngineError> {
        if space != self.device().space() || lanes > self.lanes_held() {
            return Err(refused("a relay of so many lanes on that device"));
        }
        let cuda = self.cuda.as_deref().ok_or_else(|| refused("a relay without a CUDA device"))?;
        let stream = cuda.cuda_device().stream().map_err(failed)?;
        let watch = self.relay_watch(&ring(&RelayShape { lanes, depth: 2, fragment: 16 })?)?;
        let watch = Arc::new(watch);
        let direction = match end {
            RelayEnd::Sender => Direction::Pack,
            RelayEnd::Receiver => Direction::Unpack,
        };
        Ok(Arc::new(Half { stream: Arc::new(stream), watch, engine: self.clone(), direction }))
    }
}

/// One end of a ring.
struct Half {
    /// Ends before the watch that its kernels write.
    stream: Arc<Stream>,
    watch: Arc<RelayWatch>,
    engine: GpuEngine,
    direction: Direction,
}

/// The end of one half of a message.
struct Ending {
    watch: Arc<RelayWatch>,
    stream: Arc<Stream>,
    looks: AtomicU32,
    /// It is over; the watch may be the next message's.
    over: AtomicBool,
    failed: OnceLock<DeviceError>,
}

impl Pending for Ending {
    fn poll(&self) -> Result<bool, DeviceError> {
        if let Some(error) = self.failed.get() {
            return Err(error.clone());
        }
        if self.over.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let mut over = self.watch.has_ended();
        if !over && self.looks.fetch_add(1, Ordering::Relaxed) % LOOKS == LOOKS - 1 {
            over = match self.stream.is_idle() {
                Ok(idle) => idle,
                Err(error) => return Err(self.failed.get_or_init(|| error.into()).clone()),
            };
        }
        self.over.store(over, Ordering::Relaxed);
        Ok(over)
    }

    fn is_known_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) || self.failed.get().is_some()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Half {
    /// A kernel that nobody will hear of is made to end; one that cannot begin, because others' kernels never
    /// end, keeps its watch for good. Its ring is kept by whoever has it: see [`Relay::has_ended`].
    fn end_unheard(&self) {
        self.watch.stop();
        let begin = Instant::now();
        while matches!(self.stream.is_idle(), Ok(false)) {
            if begin.elapsed() > UNHEARD_MAX {
                tracing::error!("a relay's kernel that does not end");
                std::mem::forget(Arc::clone(&self.watch));
                return;
            }
            std::thread::yield_now();
        }
    }
}

impl Relay for Half {
    unsafe fn run(
        &self,
        typed: &Typed,
        range: Range<u64>,
        shape: &RelayShape,
        memory: &RelayMemory,
        turn: u64,
        patience: Duration,
    ) -> Result<Completion, EngineError> {
        let over = Ring::new(ring(shape)?, memory.fragments, memory.ready, memory.credit)?;
        let turn = RelayTurn { turn, patience, rest_ns: REST_NS };
        let on = self.engine.on(&self.stream)?;
        // SAFETY: the caller's own promise: the memory stays valid until the completion, nothing but the two
        // ends touches it, and messages follow each other; the watch lives as long as the stream.
        unsafe { on.relay(self.direction, typed, range, &over, &self.watch, turn) }?;
        Ok(Completion::Pending(Arc::new(Ending {
            watch: Arc::clone(&self.watch),
            stream: Arc::clone(&self.stream),
            looks: AtomicU32::new(0),
            over: AtomicBool::new(false),
            failed: OnceLock::new(),
        })))
    }

    fn has_ended(&self) -> bool {
        // A device that has failed does nothing any more.
        self.watch.has_ended() || !matches!(self.stream.is_idle(), Ok(false))
    }

    fn stop(&self) {
        self.watch.stop();
    }

    fn outcome(&self) -> RelayOutcome {
        match self.watch.outcome() {
            Ended::Done => RelayOutcome::Done,
            Ended::Stopped => RelayOutcome::Stopped,
            Ended::PeerGone => RelayOutcome::PeerGone,
            // A kernel that has ended has said how: this one never ran.
            Ended::Late | Ended::Pending => RelayOutcome::Late,
        }
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        // Its message has ended, as a rule.
        if !matches!(self.stream.is_idle(), Ok(true)) {
            self.end_unheard();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_divided_as_message_layers_think() {
        for (lanes, depth, fragment) in [(1, 2, 16), (64, 4, 256 << 10), (7, 3, 4096 + 16)] {
            let shape = RelayShape { lanes, depth, fragment };
            let ring = ring(&shape).unwrap();
            for len in [0, 1, u64::from(fragment) * 9 + 1, 1 << 40] {
                assert_eq!(ring.turns(len), shape.turns(len), "{shape:?}, {len} bytes");
            }
        }
        assert!(ring(&RelayShape { lanes: 0, depth: 2, fragment: 16 }).is_err());
        assert!(ring(&RelayShape { lanes: 1, depth: 2, fragment: 24 }).is_err());
    }
}
