//! A message that one kernel packs and another one unpacks at the same time, on another device or on the
//! same one, with no processor in between: fragments go round a ring in the receiver's memory, and flags in
//! both memories say how far each side has come (`cuda/relay.h`). Only CUDA has what that takes.
//!
//! Each block is a lane, with a part of the ring and flags of its own. Turns of a lane are counted from the
//! ring's making on, so flags are never set back between messages.

use super::{Place, TransferSide, Unfit, WORDS_MAX};
use crate::args::RelayArgs;
use crate::{Direction, Width};
use std::num::NonZeroU32;
use std::ops::Range;
use std::time::Duration;

/// Bytes that fragments are multiples of: the widest word.
pub const FRAGMENT_UNIT: u32 = 16;
/// Bytes of a fragment at most: kernels add its words to a message's in 32 bits.
const FRAGMENT_MAX: u32 = 1 << 30;
/// Bytes from a lane's flag to the next lane's.
pub const FLAG_BYTES: u64 = 64;
/// Words of 4 bytes from the one that the host writes to the lanes' outcomes.
pub const WATCH_LANES: u64 = 16;
/// Threads of a block.
const THREADS: u32 = 512;
/// Longest that one wait may be allowed to take: a kernel that polls keeps others from its device.
pub const PATIENCE_MAX: Duration = Duration::from_secs(30);
/// Nanoseconds from one look at a flag to the next, unless said otherwise.
pub const REST_NS: u32 = 32;
/// Longest rest in nanoseconds: what the device's `nanosleep` takes.
const REST_NS_MAX: u32 = 1_000_000;

/// How a ring is divided; both ends have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayRing {
    /// Blocks of either kernel.
    pub lanes: NonZeroU32,
    /// Fragments that a lane's part of the ring holds. Two at least, or nothing overlaps.
    pub depth: NonZeroU32,
    /// Bytes of a fragment; a multiple of [`FRAGMENT_UNIT`], 1 GiB at most.
    pub fragment: NonZeroU32,
}

/// Where in a ring's life a message comes, and how long its kernels wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayTurn {
    /// Turns of each lane before it: what the message before it left; 0 for the first.
    pub turn: u64,
    /// How long one wait may take; [`PATIENCE_MAX`] at most.
    pub patience: Duration,
    /// Nanoseconds that a waiting block rests between two looks at its flag, 1 ms at most:
    /// [`REST_NS`] unless there is reason. Ends may differ.
    pub rest_ns: u32,
}

/// A kernel of one end. Its parameters are the pointers to the typed side, the ring, the plan (any, if it
/// takes none), the lanes' `ready` flags, their `credit` flags and the watch; then `args`.
#[derive(Clone, Debug, PartialEq)]
pub struct RelayLaunch {
    /// Which of the two kernels, and for which words: [`relay_name`].
    pub direction: Direction,
    /// Its words.
    pub width: Width,
    /// Blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// The last parameter.
    pub args: Box<RelayArgs>,
    /// The next message's [`RelayTurn::turn`].
    pub next_turn: u64,
}

impl RelayRing {
    /// Bytes of the ring; `None` if they cannot be counted, or a fragment is no multiple of its unit or longer
    /// than 1 GiB.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        let fragment = self.fragment.get();
        if !fragment.is_multiple_of(FRAGMENT_UNIT) || fragment > FRAGMENT_MAX {
            return None;
        }
        let lane = u64::from(self.depth.get()) * u64::from(self.fragment.get());
        lane.checked_mul(u64::from(self.lanes.get()))
    }

    /// Bytes of either side's flags.
    #[must_use]
    pub fn flag_bytes(&self) -> u64 {
        u64::from(self.lanes.get()) * FLAG_BYTES
    }

    /// Bytes of a watch.
    #[must_use]
    pub fn watch_bytes(&self) -> u64 {
        (WATCH_LANES + u64::from(self.lanes.get())) * 4
    }

    /// Turns that a message of `len` bytes takes of each lane, at most.
    #[must_use]
    pub fn turns(&self, len: u64) -> u64 {
        let fragments = len.div_ceil(u64::from(self.fragment.get()));
        fragments.div_ceil(u64::from(self.lanes.get()))
    }
}

/// The name of a kernel in the image.
#[must_use]
pub fn relay_name(direction: Direction, width: Width) -> String {
    let verb = if direction == Direction::Pack { "pack" } else { "unpack" };
    format!("relay_{verb}_w{}", width.bytes())
}

/// [`RelayArgs::waits`]. Patience is rounded up, and its units are so few that 32 bits hold them.
fn waits(turn: &RelayTurn) -> u64 {
    let units = turn.patience.as_nanos().div_ceil(1024).max(1);
    let rest = u64::from(turn.rest_ns.min(REST_NS_MAX));
    rest << 32 | u64::from(u32::try_from(units).unwrap_or(u32::MAX))
}

/// The kernel that moves `range` of the stream into a ring or out of it. The ring, as it lies in memory, is
/// aligned to [`FRAGMENT_UNIT`]; `typed` leads to displacement 0. Both ends may use words of other widths.
///
/// # Errors
/// [`Unfit::Range`] for a range outside the stream; [`Unfit::Numbers`] for one whose words one launch cannot
/// number (from 2 GiB of single bytes to 32 GiB of the widest words) and for a ring that
/// [cannot be](RelayRing::bytes); [`Unfit::Patience`] for one without bounds; others of the side's shape.
pub fn relay(
    direction: Direction,
    range: &Range<u64>,
    side: &TransferSide,
    typed: Place,
    ring: &RelayRing,
    turn: RelayTurn,
) -> Result<RelayLaunch, Unfit> {
    let size = side.size().ok_or(Unfit::Numbers)?;
    if range.end > size || range.start > range.end {
        return Err(Unfit::Range { end: range.end, size });
    }
    ring.bytes().ok_or(Unfit::Numbers)?;
    if turn.patience > PATIENCE_MAX {
        return Err(Unfit::Patience { max: PATIENCE_MAX });
    }
    let len = range.end - range.start;
    // Fragments hold whole words: the range begins and ends with one.
    let width = Width::dividing(side.bits() | typed.bits() | range.start | range.end);
    let words = len >> width.log2();
    let words = u32::try_from(words).ok().filter(|&words| u64::from(words) <= WORDS_MAX);
    let words = words.ok_or(Unfit::Numbers)?;
    let (shape, displacement) = side.shape(range, width)?.ok_or(Unfit::Numbers)?;
    let next_turn = turn.turn.checked_add(ring.turns(len)).filter(|&next| next < 1 << 62);
    let args = RelayArgs {
        typed: typed.offset.wrapping_add(displacement),
        turn: turn.turn,
        waits: waits(&turn),
        words,
        fragment: ring.fragment.get() >> width.log2(),
        depth: ring.depth.get(),
        unused: 0,
        side: shape,
    };
    Ok(RelayLaunch {
        direction,
        width,
        blocks: ring.lanes.get(),
        threads: THREADS,
        args: Box::new(args),
        next_turn: next_turn.ok_or(Unfit::Numbers)?,
    })
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Grid, GridDim};
    use smallvec::smallvec;

    fn ring(lanes: u32, depth: u32, fragment: u32) -> RelayRing {
        let number = |n| NonZeroU32::new(n).unwrap();
        RelayRing { lanes: number(lanes), depth: number(depth), fragment: number(fragment) }
    }

    fn turn(turn: u64) -> RelayTurn {
        RelayTurn { turn, patience: Duration::from_millis(5), rest_ns: REST_NS }
    }

    const HERE: Place = Place { address: 0, offset: 0 };

    #[test]
    fn rings_have_room_for_every_lane() {
        let ring = ring(8, 4, 4096);
        assert_eq!(ring.bytes(), Some(8 * 4 * 4096));
        assert_eq!((ring.flag_bytes(), ring.watch_bytes()), (512, 96));
        assert_eq!([0, 1, 4096 * 8, 4096 * 8 + 1].map(|len| ring.turns(len)), [0, 1, 1, 2]);
        assert_eq!(self::ring(1, 2, 24).bytes(), None, "not whole words");
        let huge = self::ring(u32::MAX, u32::MAX, u32::MAX - 15);
        assert_eq!(huge.bytes(), None);
        assert_eq!(self::ring(1, 2, 1 << 30).bytes(), Some(1 << 31));
        assert_eq!(self::ring(1, 2, (1 << 30) + 16).bytes(), None, "words would wrap");
    }

    #[test]
    fn both_ends_number_a_message_alike() {
        let rows = |len, stride| {
            let dims = smallvec![GridDim { count: 100, stride }];
            TransferSide::Strided(Grid { displacement: 0, len, dims })
        };
        let ring = ring(3, 2, 64);
        let (sparse, dense) = (rows(24, 40), TransferSide::Contiguous(0));
        let out = relay(Direction::Pack, &(0..2400), &sparse, HERE, &ring, turn(7)).unwrap();
        let into = relay(Direction::Unpack, &(0..2400), &dense, HERE, &ring, turn(7)).unwrap();
        assert_eq!((out.width, into.width), (Width::W8, Width::W16));
        assert_eq!(relay_name(out.direction, out.width), "relay_pack_w8");
        assert_eq!((out.args.words, into.args.words), (300, 150));
        assert_eq!((out.args.fragment, into.args.fragment), (8, 4));
        assert_eq!((out.blocks, out.args.depth, out.args.waits), (3, 2, 32 << 32 | 4883));
        // 38 fragments, 13 turns of the first two lanes.
        assert_eq!((out.next_turn, into.next_turn), (20, 20));
    }

    #[test]
    fn a_range_begins_inside_the_stream() {
        let dims = smallvec![GridDim { count: 100, stride: 64 }];
        let side = TransferSide::Strided(Grid { displacement: 16, len: 32, dims });
        let part =
            relay(Direction::Pack, &(64..3196), &side, HERE, &ring(2, 2, 64), turn(0)).unwrap();
        assert_eq!(part.width, Width::W4);
        assert_eq!((part.args.side.first, part.args.words), (0, 783));
        assert_eq!(part.args.typed, 16 + 2 * 64, "two blocks were skipped");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let side = TransferSide::Contiguous(0);
        let ring = ring(2, 2, 64);
        let long = relay(Direction::Pack, &(1..(1 << 31) + 1), &side, HERE, &ring, turn(0));
        assert_eq!(long, Err(Unfit::Numbers));
        let late = relay(Direction::Pack, &(0..64), &side, HERE, &ring, turn(1 << 62));
        assert_eq!(late, Err(Unfit::Numbers));
        let endless = RelayTurn { patience: Duration::MAX, ..turn(0) };
        let endless = relay(Direction::Pack, &(0..64), &side, HERE, &ring, endless);
        assert_eq!(endless, Err(Unfit::Patience { max: PATIENCE_MAX }));
        let dims = smallvec![GridDim { count: 2, stride: 64 }];
        let short = TransferSide::Strided(Grid { displacement: 0, len: 32, dims });
        let beyond = relay(Direction::Pack, &(0..96), &short, HERE, &ring, turn(0));
        assert_eq!(beyond, Err(Unfit::Range { end: 96, size: 64 }));
    }
}
