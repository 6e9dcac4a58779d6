//! Algorithms of one's own: a [`Draft`] is one rank's schedule while it is written.

use std::ops::Range;

use crate::area::Area;
use crate::build::rows;
use crate::builder::Builder;
use crate::call::Call;
use crate::check::LEN_MAX;
use crate::error::BuildError;
use crate::schedule::{Buffer, Schedule};
use crate::terms::Terms;

/// Writes one rank's schedule for one of MPI's operations, by an algorithm of one's own.
///
/// Steps are said in some order that is right; what must wait for what follows from the bytes that they touch, and
/// the k-th message to a peer is the k-th that this receives. All that is believed of a schedule by whoever executes
/// it is checked: what does not fit is left out, and [`finish`](Draft::finish) says what it was. What cannot be seen
/// at one rank alone, whether the schedules of all ranks do what the operation means, `prove` (feature `testkit`)
/// decides.
///
/// ```
/// use gapless_coll::{Call, Draft};
/// // A broadcast along a chain.
/// let (rank, ranks) = (1, 3);
/// let mut draft = Draft::new(rank, ranks, &Call::Bcast { root: 0, len: 4096 })?;
/// let all = draft.recv_buffer();
/// if rank > 0 {
///     draft.receive(rank - 1, all);
/// }
/// if rank + 1 < ranks {
///     draft.send(rank + 1, all);
/// }
/// assert_eq!(draft.finish()?.to_string(), "\
/// rank 1 of 3, no scratch
///   0  receive  recv[0][0..4096]  <- 0 #0
///   1  send     recv[0][0..4096]  -> 2 #0  after 0
/// ");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Draft {
    builder: Builder,
    rank: usize,
    ranks: usize,
    /// How long each buffer is, and whether it is only read; by [`Buffer`].
    buffers: [(u64, bool); 3],
    wrong: Option<DraftError>,
}

/// Why a draft is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// A peer that is not of the communicator, or this rank itself.
    #[error("step {step}: rank {peer} is no peer of rank {rank} of {ranks}")]
    NoPeer {
        /// Which step it would be.
        step: usize,
        /// The peer that was given.
        peer: usize,
        /// Whose draft it is.
        rank: usize,
        /// How many ranks there are.
        ranks: usize,
    },
    /// Bytes outside of their buffer.
    #[error("step {step}: bytes {at}..{end} of the {buffer:?} buffer, which has {len}")]
    Outside {
        /// Which step it would be.
        step: usize,
        /// The buffer.
        buffer: Buffer,
        /// Where the bytes begin.
        at: u64,
        /// Where they end.
        end: u64,
        /// How many the buffer has.
        len: u64,
    },
    /// A step writes what is only read: the send buffer, or that of a broadcast's root.
    #[error("step {step} writes the {buffer:?} buffer, which is only read")]
    Input {
        /// Which step it would be.
        step: usize,
        /// The buffer.
        buffer: Buffer,
    },
    /// Bytes of one step that should be as many as others.
    #[error("step {step}: {given} bytes, and {expected} elsewhere in the step")]
    Lengths {
        /// Which step it would be.
        step: usize,
        /// How many they are.
        given: u64,
        /// How many they should be.
        expected: u64,
    },
    /// What a step reads and what it writes have bytes in common.
    #[error("step {step} reads some of the bytes that it writes")]
    Overlap {
        /// Which step it would be.
        step: usize,
    },
    /// A reduction of nothing, of parts of elements, or in an operation that combines nothing.
    #[error("step {step} does not combine whole elements of {unit} bytes")]
    Elements {
        /// Which step it would be.
        step: usize,
        /// Packed length of an element.
        unit: u64,
    },
    /// More scratch memory than 2^48 bytes.
    #[error("more than 2^48 bytes of scratch memory")]
    TooLong,
}

impl Draft {
    /// Nothing so far, of this rank's part in this call.
    ///
    /// # Errors
    /// What does not fit in the call, as for [`build`](crate::build()).
    pub fn new(rank: usize, ranks: usize, call: &Call<'_>) -> Result<Draft, BuildError> {
        call.check(rank, ranks)?;
        let (send, recv) = rows(call, rank, ranks);
        let is_source = matches!(call, Call::Bcast { root, .. } if *root == rank);
        let buffers = [(send.len(), true), (recv.len(), is_source), (0, false)];
        let builder = Builder::new((rank, ranks), Terms::of_own(call), send, recv);
        Ok(Draft { builder, rank, ranks, buffers, wrong: None })
    }

    /// All bytes that this rank sends; none if it gives `MPI_IN_PLACE`, and in a broadcast.
    #[must_use]
    pub fn send_buffer(&self) -> Area {
        self.builder.send_buffer()
    }

    /// All bytes that this rank receives into: also those that it reads in place, and what is broadcast.
    #[must_use]
    pub fn recv_buffer(&self) -> Area {
        self.builder.recv_buffer()
    }

    /// Memory for intermediate data. Its content is arbitrary at first.
    pub fn scratch(&mut self, len: u64) -> Area {
        let (has, _) = self.buffers[Buffer::Scratch as usize];
        if has.saturating_add(len) > LEN_MAX {
            self.wrong.get_or_insert(DraftError::TooLong);
            return Area::new(Buffer::Scratch, 0, 0);
        }
        let area = self.builder.scratch(len);
        self.buffers[Buffer::Scratch as usize].0 = area.at + area.len;
        area
    }

    /// Packed length of an element of a reduction, in bytes; 1 in other operations.
    #[must_use]
    pub fn unit(&self) -> u64 {
        self.builder.unit()
    }

    /// From now on messages and reductions are cut into segments of about so many bytes, in whole elements, and so are
    /// pipelined; 0: they are not cut. Both ends of a message cut alike.
    pub fn set_segment(&mut self, bytes: u64) {
        self.builder.set_segment(bytes);
    }

    /// Sends bytes; none are no message.
    pub fn send(&mut self, to: usize, from: Area) {
        if self.is_peer(to) && self.reads(from) {
            self.builder.send(to, from);
        }
    }

    /// Receives bytes.
    pub fn receive(&mut self, from: usize, into: Area) {
        if self.is_peer(from) && self.writes(into) {
            self.builder.receive(from, into);
        }
    }

    /// Copies bytes within this rank.
    pub fn copy(&mut self, from: Area, into: Area) {
        if self.reads(from) && self.writes(into) && self.is_apart(from, into, false) {
            self.builder.copy(from, into);
        }
    }

    /// Combines elements in this order: `into = sources[0] op sources[1] op …`. `into` may be one of the sources. One
    /// source alone is copied.
    pub fn reduce(&mut self, sources: &[Area], into: Area) {
        let unit = self.unit();
        let whole = |area: &Area| area.at.is_multiple_of(unit) && area.len.is_multiple_of(unit);
        let fits = self.writes(into)
            && sources
                .iter()
                .all(|source| self.reads(*source) && self.is_apart(*source, into, true));
        let combines = self.builder.combines()
            && !sources.is_empty()
            && sources.iter().chain([&into]).all(whole);
        if fits && self.holds(combines, |step| DraftError::Elements { step, unit }) {
            self.builder.reduce(sources, into);
        }
    }

    /// Sends a message without bytes, once all such messages said before have arrived.
    pub fn tell(&mut self, to: usize) {
        if self.is_peer(to) {
            self.builder.tell(to);
        }
    }

    /// Receives a message without bytes.
    pub fn hear(&mut self, from: usize) {
        if self.is_peer(from) {
            self.builder.hear(from);
        }
    }

    /// The schedule.
    ///
    /// # Errors
    /// The first thing that did not fit.
    pub fn finish(self) -> Result<Schedule, DraftError> {
        match self.wrong {
            None => Ok(self.builder.finish()),
            Some(wrong) => Err(wrong),
        }
    }

    /// Notes what is wrong unless `fine`; which it gives.
    fn holds(&mut self, fine: bool, wrong: impl FnOnce(usize) -> DraftError) -> bool {
        if !fine {
            let step = self.builder.len();
            self.wrong.get_or_insert_with(|| wrong(step));
        }
        fine
    }

    fn is_peer(&mut self, peer: usize) -> bool {
        let (rank, ranks) = (self.rank, self.ranks);
        let fine = peer < ranks && peer != rank;
        self.holds(fine, |step| DraftError::NoPeer { step, peer, rank, ranks })
    }

    fn reads(&mut self, area: Area) -> bool {
        let Area { buffer, at, len: bytes } = area;
        let (len, _) = self.buffers[buffer as usize];
        let end = at.saturating_add(bytes);
        self.holds(end <= len, |step| DraftError::Outside { step, buffer, at, end, len })
    }

    fn writes(&mut self, area: Area) -> bool {
        let (buffer, (_, only_read)) = (area.buffer, self.buffers[area.buffer as usize]);
        let fine = !only_read || area.is_empty();
        self.reads(area) && self.holds(fine, |step| DraftError::Input { step, buffer })
    }

    /// Whether the two are of one length, and share no byte, unless they are the same and that is fine.
    fn is_apart(&mut self, one: Area, other: Area, may_be_same: bool) -> bool {
        let (given, expected) = (one.len, other.len);
        let apart = one.buffer != other.buffer
            || one.at + one.len <= other.at
            || other.at + other.len <= one.at
            || (may_be_same && one == other);
        self.holds(given == expected, |step| DraftError::Lengths { step, given, expected })
            && self.holds(apart, |step| DraftError::Overlap { step })
    }
}

impl Area {
    /// How many bytes.
    #[must_use]
    pub fn len(self) -> u64 {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Some of its bytes, counted from its first. A step refuses what lies outside of the buffer.
    #[must_use]
    pub fn part(self, bytes: Range<u64>) -> Area {
        let at = self.at.saturating_add(bytes.start);
        Area { at, len: bytes.end.saturating_sub(bytes.start), ..self }
    }
}

impl std::fmt::Debug for Draft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (rank, ranks, steps) = (self.rank, self.ranks, self.builder.len());
        write!(f, "Draft of rank {rank} of {ranks} with {steps} steps")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Reduction;

    /// What is wrong with a draft of rank 1 of 3.
    fn wrong(call: &Call<'_>, write: impl FnOnce(&mut Draft)) -> DraftError {
        let mut draft = Draft::new(1, 3, call).unwrap();
        write(&mut draft);
        draft.finish().unwrap_err()
    }

    #[test]
    fn what_does_not_fit_is_an_error_that_names_its_step() {
        let all = Call::Allreduce {
            len: 24,
            of: Reduction { unit: 8, commutative: true },
            in_place: false,
        };
        for peer in [1, 3] {
            let error = DraftError::NoPeer { step: 0, peer, rank: 1, ranks: 3 };
            assert_eq!(wrong(&all, |draft| draft.tell(peer)), error);
        }
        let outside =
            |at, end| DraftError::Outside { step: 1, buffer: Buffer::Recv, at, end, len: 24 };
        let beyond = |draft: &mut Draft, part: Range<u64>| {
            draft.hear(0);
            draft.send(2, draft.recv_buffer().part(part));
            // The first mistake is told.
            draft.tell(7);
        };
        assert_eq!(wrong(&all, |draft| beyond(draft, 20..25)), outside(20, 25));
        let far = u64::MAX - 2;
        assert_eq!(wrong(&all, |draft| beyond(draft, far..u64::MAX)), outside(far, u64::MAX));
        let input = |buffer| DraftError::Input { step: 0, buffer };
        let write = |draft: &mut Draft| draft.receive(0, draft.send_buffer());
        assert_eq!(wrong(&all, write), input(Buffer::Send));
        let root = Call::Bcast { root: 1, len: 8 };
        let write = |draft: &mut Draft| draft.receive(0, draft.recv_buffer());
        assert_eq!(wrong(&root, write), input(Buffer::Recv));
        let lengths = DraftError::Lengths { step: 0, given: 24, expected: 8 };
        let copy =
            |draft: &mut Draft| draft.copy(draft.send_buffer(), draft.recv_buffer().part(0..8));
        assert_eq!(wrong(&all, copy), lengths);
        let overlap = |draft: &mut Draft| {
            let recv = draft.recv_buffer();
            draft.copy(recv.part(0..16), recv.part(8..24));
        };
        assert_eq!(wrong(&all, overlap), DraftError::Overlap { step: 0 });
        let elements = DraftError::Elements { step: 0, unit: 8 };
        let halves = |draft: &mut Draft| {
            let (send, recv) = (draft.send_buffer().part(4..12), draft.recv_buffer().part(0..8));
            draft.reduce(&[send, recv], recv);
        };
        assert_eq!(wrong(&all, halves), elements);
        let nothing = |draft: &mut Draft| draft.reduce(&[], draft.recv_buffer());
        assert_eq!(wrong(&all, nothing), elements);
        let bytes = Call::Allgather { len: 8, in_place: false };
        let combine = |draft: &mut Draft| {
            let recv = draft.recv_buffer();
            draft.reduce(&[recv.part(0..8), recv.part(8..16)], recv.part(0..8));
        };
        assert_eq!(wrong(&bytes, combine), DraftError::Elements { step: 0, unit: 1 });
        assert_eq!(wrong(&bytes, |draft| _ = draft.scratch(u64::MAX)), DraftError::TooLong);
        assert!(Draft::new(3, 3, &bytes).is_err());
    }
}
