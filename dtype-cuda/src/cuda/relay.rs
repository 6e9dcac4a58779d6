//! One end of a message that two devices hand on to each other, fragment by fragment, without a processor in
//! between (DESIGN's device-side pipeline; Wu et al. 2016, §4.1, without its control messages).
//!
//! `gapless-kernels` has the kernels and their arithmetic (`launch::relay`); here are the checks, the launch
//! on the caller's stream, and the word by which the host ends it. Units: bytes.

use super::failed;
use super::stream::OnStream;
use crate::engine::GpuEngine;
use crate::lanes::Held;
use gapless_engine::{EngineError, Typed};
use gapless_kernels::args::RelayArgs;
use gapless_kernels::launch::{
    FLAG_BYTES, FRAGMENT_UNIT, RelayRing, RelayTurn, WATCH_LANES, relay,
};
use gapless_kernels::{Direction, Width};
use gapless_mem::{DeviceError, Region, Space};
use gapless_mem_cuda::{Argument, Grid, PinnedBuffer};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// The memory that both ends of a relay work on, as this end reaches it. Made once for a pair, and used for
/// one message after the other; both ends count its turns ([`OnStream::relay`] returns the next one).
///
/// # When a relay may be used
///
/// The two kernels wait for each other, so **both must be resident at the same time**: on different devices,
/// or on one device that processes share under MPS (or that one process drives by two streams) if the lanes
/// of both ends together fit beside whatever else runs there. Without MPS two processes take turns on a
/// device, and each would wait for the other until its patience ends. A stream that still has other work
/// before the relay, or that waits for an event, counts as not resident: the other end waits meanwhile.
///
/// Messages may be of any length, in any order. One of fewer fragments than lanes leaves lanes idle, so it
/// goes no quicker than those that have one.
///
/// Nothing that the other end does or fails to do keeps a kernel on the device for longer than
/// [`RelayTurn::patience`] after the last progress; [`RelayWatch::stop`] ends it at once. Afterwards the ring
/// is broken: make a new one.
#[derive(Clone, Copy, Debug)]
pub struct Relay {
    ring: RelayRing,
    fragments: Region,
    ready: Region,
    credit: Region,
}

/// What became of one end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RelayOutcome {
    /// Not known yet: the kernel has not ended, or not begun.
    Pending,
    /// Every fragment went through.
    Done,
    /// [`RelayWatch::stop`] ended it.
    Stopped,
    /// The other end let it wait for too long.
    Late,
    /// The other end gave up.
    PeerGone,
}

/// The words in page-locked host memory by which the host ends one end's kernel and learns what became of
/// it. For one message at a time: enqueueing the next one forgets the outcome of the last.
pub struct RelayWatch {
    words: PinnedBuffer,
    lanes: u32,
}

impl Relay {
    /// A ring of `fragments` in the receiver's memory with `ready` flags there and `credit` flags in the
    /// sender's, each region as *this* end reaches it (what belongs to the other one, mapped). Both ends'
    /// flags are zero before the first message.
    ///
    /// # Errors
    /// Regions shorter than `ring` takes, not aligned to 16 bytes, or not device memory.
    pub fn new(
        ring: RelayRing,
        fragments: Region,
        ready: Region,
        credit: Region,
    ) -> Result<Relay, EngineError> {
        let refused = |what| Err(EngineError::Device(DeviceError::Unsupported { what }));
        let Some(bytes) = ring.bytes() else {
            return refused("a relay whose fragments are no multiples of 16 bytes, or too long");
        };
        if ring.depth.get() < 2 {
            return refused("a relay that holds less than two fragments a lane");
        }
        for (region, wanted) in
            [(fragments, bytes), (ready, ring.flag_bytes()), (credit, ring.flag_bytes())]
        {
            if region.len() < wanted {
                return Err(EngineError::LengthMismatch { region: region.len(), range: wanted });
            }
            if !region.start().is_multiple_of(u64::from(FRAGMENT_UNIT)) {
                return refused("a relay in memory that is not aligned to 16 bytes");
            }
            if !matches!(region.space(), Space::Cuda { .. }) {
                return Err(EngineError::WrongSpace { engine: "cuda", space: region.space() });
            }
        }
        Ok(Relay { ring, fragments, ready, credit })
    }

    /// How the ring is divided.
    #[must_use]
    pub fn ring(&self) -> RelayRing {
        self.ring
    }
}

impl RelayWatch {
    fn word(&self, index: u64) -> &AtomicU32 {
        let word = self.words.region().start() + index * 4;
        let at = std::ptr::with_exposed_provenance_mut::<u32>(usize::try_from(word).unwrap_or(0));
        // SAFETY: the buffer is page-locked host memory of `watch_bytes`, aligned to a page, which this
        // value owns; indices are below that by construction, and host and device access its words only
        // as whole words.
        unsafe { AtomicU32::from_ptr(at) }
    }

    /// Makes the kernel that has this watch give up, whatever it waits for; it ends within microseconds,
    /// and the other end learns of it. So does every later message with this watch.
    pub fn stop(&self) {
        self.word(0).store(1, Ordering::Release);
    }

    /// Whether every lane of the message has ended: its kernel touches nothing any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        (0..u64::from(self.lanes))
            .all(|lane| self.word(WATCH_LANES + lane).load(Ordering::Acquire) != 0)
    }

    /// For the next message. Who was told to stop stays so.
    fn reset(&self) {
        for lane in 0..u64::from(self.lanes) {
            self.word(WATCH_LANES + lane).store(0, Ordering::Release);
        }
    }

    /// What became of the message: of several reasons to give up the first one's, which the other lanes
    /// follow.
    #[must_use]
    pub fn outcome(&self) -> RelayOutcome {
        let mut all = RelayOutcome::Done;
        for lane in 0..u64::from(self.lanes) {
            let of_lane = match self.word(WATCH_LANES + lane).load(Ordering::Acquire) {
                0 => return RelayOutcome::Pending,
                1 => continue,
                2 => RelayOutcome::Stopped,
                3 => RelayOutcome::Late,
                _ => RelayOutcome::PeerGone,
            };
            if matches!(all, RelayOutcome::Done | RelayOutcome::PeerGone) {
                all = of_lane;
            }
        }
        all
    }
}

impl std::fmt::Debug for RelayWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayWatch")
            .field("lanes", &self.lanes)
            .field("outcome", &self.outcome())
            .finish_non_exhaustive()
    }
}

impl GpuEngine {
    /// A watch for relays of `ring`.
    ///
    /// # Errors
    /// Not an engine of a CUDA device, or no page-locked memory.
    pub fn relay_watch(&self, ring: &RelayRing) -> Result<RelayWatch, EngineError> {
        let what = "a relay without a CUDA device";
        let refused = || EngineError::Device(DeviceError::Unsupported { what });
        let cuda = self.cuda.as_deref().ok_or_else(refused)?;
        let words = cuda.cuda_device().pinned(ring.watch_bytes()).map_err(failed)?;
        let watch = RelayWatch { words, lanes: ring.lanes.get() };
        watch.word(0).store(0, Ordering::Release);
        watch.reset();
        Ok(watch)
    }

    /// Lanes that an idle device holds at a time, at most: a relay of more is refused.
    ///
    /// # Errors
    /// Not an engine of a CUDA device, or the driver refuses.
    pub fn relay_lanes_max(&self, direction: Direction) -> Result<u32, EngineError> {
        let what = "a relay without a CUDA device";
        let refused = || EngineError::Device(DeviceError::Unsupported { what });
        let cuda = self.cuda.as_deref().ok_or_else(refused)?;
        let function = cuda.functions().relay(direction, Width::W8).map_err(failed)?;
        let threads = function.properties().map_err(failed)?.threads_max;
        let each = function.blocks_per_unit(threads, 0).map_err(failed)?;
        Ok(self.device().properties().compute_units.saturating_mul(each))
    }
}

impl OnStream<'_> {
    /// Enqueues one end of a message: with [`Direction::Pack`] the sender's, which gathers bytes `range` of
    /// `typed`'s packed stream into the ring, with [`Direction::Unpack`] the receiver's, which scatters what
    /// comes to bytes `range`. The other end is enqueued elsewhere, with the same ring, turn and length.
    /// Returns the turn of the next message.
    ///
    /// The work on the stream ends when all of the message has left (arrived), or either end gave up:
    /// [`RelayWatch::outcome`] tells which, once the stream has passed it.
    ///
    /// # Safety
    /// As for [`pack`](OnStream::pack) or [`unpack`](OnStream::unpack) as to `typed`, until the stream has
    /// passed the work. Until then the ring and both ends' flags stay mapped and `watch` lives; nothing but
    /// the other end of the same message uses the ring; it has carried every message before `turn`, in that
    /// order, and none of them gave up.
    ///
    /// # Errors
    /// As there; [`DeviceError::Unsupported`] for more lanes than the device holds at a time, a watch of
    /// fewer lanes, a message that takes more than one launch (longer than 2³¹ words), and a patience beyond
    /// [`PATIENCE_MAX`](gapless_kernels::launch::PATIENCE_MAX). Nothing was enqueued then but, perhaps, a
    /// plan's upload.
    pub unsafe fn relay(
        &self,
        direction: Direction,
        typed: &Typed,
        range: Range<u64>,
        relay_over: &Relay,
        watch: &RelayWatch,
        turn: RelayTurn,
    ) -> Result<u64, EngineError> {
        let refused = |what| EngineError::Device(DeviceError::Unsupported { what });
        let ring = relay_over.ring;
        typed.check_range(&range)?;
        if range.is_empty() {
            return Ok(turn.turn);
        }
        if watch.lanes != ring.lanes.get() {
            return Err(refused("a relay with a watch of other lanes"));
        }
        // To ask the driver takes longer than to launch: what is known of both kernels will do, as a rule.
        let lanes = ring.lanes.get();
        if lanes > self.engine.lanes_held() && lanes > self.engine.relay_lanes_max(direction)? {
            return Err(refused("a relay of more lanes than the device holds at a time"));
        }
        let device = self.lane.device;
        let address = |region| device.device_address(region).map_err(failed);
        let ring_at = address(relay_over.fragments)?;
        let ready = address(relay_over.ready)?;
        let credit = address(relay_over.credit)?;
        let watch_at = address(watch.words.region())?;
        let shared = self.shared();
        let spot = shared.accelerator.typed(typed)?;
        let mut held = Held::new();
        let side = shared.side(&self.lane, typed, spot, false, &mut held);
        self.keep(held);
        let side = side?;
        let launch = relay(direction, &range, &side.shape, spot.place, &ring, turn)
            .map_err(|reason| shared.unfit(reason))?;
        let function = self.lane.functions.relay(launch.direction, launch.width).map_err(failed)?;
        watch.reset();
        let (base, plan) = (spot.base.start(), side.plan.start());
        let [base, ring_at, plan, ready, credit, watch_at] =
            [&base, &ring_at, &plan, &ready, &credit, &watch_at].map(Argument::of);
        let args: Argument<'_> = Argument::of::<RelayArgs>(&launch.args);
        let all = [base, ring_at, plan, ready, credit, watch_at, args];
        let grid = Grid::line(launch.blocks, launch.threads);
        // SAFETY: these are the kernel's parameters, the structure's layout is tested against the compiled
        // one; the launch moves the range of a layout that `Typed` found inside its region, by a plan that
        // the stream finds, and `Relay::new` found ring and flags long enough. The caller vouches for the
        // rest, and the kernel is made for being at work on flags that others write.
        unsafe { function.launch(self.lane.stream, grid, &all) }.map_err(failed)?;
        Ok(launch.next_turn)
    }
}

/// Flags are apart by what [`RelayRing::flag_bytes`] counts.
const _: () = assert!(FLAG_BYTES == 64);
