//! Messages between pairs of ranks: rank r of the first half exchanges them with rank r + n/2.
//!
//! ```text
//! latency             bw, rate, pair-rate                     bibw
//! 0 ──message──▶ 1    0 ══window of messages══▶ 1             0 ◀═windows of messages═▶ 1
//! 0 ◀──message── 1    0 ◀───────no bytes─────── 1
//! ```
//!
//! A window's messages are sent out of one place and received into as many places as there are. What is below is done by
//! all ranks at rank 0's word, which decides how often.

use super::show::median;
use super::timing::{Plan, Timing};
use super::verdict::agreed;
use crate::collectives::compute;
use crate::failure::Failure;
use crate::memory::{Boxes, Devices, Places, Sent, Sided, Source, Where, Wrong};
use gapless::{Communicator, Error, ReduceOp, View, ViewMut, World};
use gapless_layouts::{Case, Side};
use gapless_pml::Protocol;

const DATA: i32 = 1;
const REPLY: i32 = 2;

/// What the ranks of a pair do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// A message there, and one back.
    PingPong,
    /// A window there, and a word that it has arrived.
    OneWay,
    /// A window each way.
    BothWays,
}

/// One rank's end of a pair.
pub(super) struct PairEnd<'w> {
    world: &'w World,
    /// For what is not measured.
    control: Communicator,
    pattern: Pattern,
    peer: u32,
    /// Whether it is in the first half.
    first: bool,
    boxes: Boxes,
    /// Seconds of other work between the begin of a window and the wait for it, where both have one.
    computing: f64,
}

/// A message with its layouts committed and its places found.
pub(super) struct Prepared {
    send: Sided,
    recv: Sided,
}

impl Prepared {
    /// Finds the places of a window; fewer, if it needs more than `bytes_max` bytes. Also gives the length of an arena
    /// for them.
    pub(super) fn new(
        case: &Case,
        window: u64,
        bytes_max: u64,
    ) -> Result<(Prepared, u64), Failure> {
        let too_long = || Failure::BadOption {
            option: "--message-size",
            value: case.payload_bytes.to_string(),
            why: "no memory is so large".to_owned(),
        };
        let one = |side| Places::in_a_row(side, 1).ok_or_else(too_long);
        let (_, step) = one(&case.recv)?;
        let window = window.min(bytes_max / step.max(1)).max(1);
        let sided = |side: &Side, count| {
            let (places, len) = Places::in_a_row(side, count).ok_or_else(too_long)?;
            let layout = side.datatype.commit()?;
            Ok::<_, Failure>((Sided { layout, count: side.count, places }, len))
        };
        let (send, out) = sided(&case.send, 1)?;
        let (recv, into) = sided(&case.recv, window)?;
        Ok((Prepared { send, recv }, out.max(into)))
    }

    /// How many messages are under way at a time.
    pub(super) fn window(&self) -> u64 {
        self.recv.places.starts.len() as u64
    }

    /// Blocks of what is sent.
    pub(super) fn blocks(&self) -> u64 {
        self.send.layout.blocks_of(self.send.count).unwrap_or(u64::MAX)
    }
}

impl<'w> PairEnd<'w> {
    /// This rank's end, with arenas of `len` bytes where its messages lie.
    pub(super) fn new(
        world: &'w World,
        devices: &mut Devices,
        pattern: Pattern,
        place: (Where, Source),
        (len, seed): (u64, u64),
    ) -> Result<PairEnd<'w>, Failure> {
        let (rank, half) = (world.rank(), world.size() / 2);
        let first = rank < half;
        let peer = if first { rank + half } else { rank - half };
        let control = world.comm().dup()?;
        let boxes = Boxes::open(world, devices, place, len, seed)?;
        Ok(PairEnd { world, control, pattern, peer, first, boxes, computing: 0.0 })
    }

    /// Sends a message each way between the ranks of each pair, and compares every byte of both. All ranks get the same:
    /// the protocol of rank 0's message, and at which rank a byte was wrong.
    pub(super) fn verify(
        &mut self,
        prepared: &Prepared,
    ) -> Result<(Protocol, Option<(u32, Wrong)>), Failure> {
        let Prepared { send, recv } = prepared;
        self.boxes.refill(recv, 0)?;
        self.control.barrier()?;
        let (comm, peer) = (self.world.comm(), self.peer);
        let protocol = {
            let sends = self.boxes.outbox.views(&send.places, &send.layout, send.count, 1)?;
            let mut recvs =
                self.boxes.inbox.views_mut(&recv.places, &recv.layout, recv.count, 1)?;
            if self.first {
                let sent = comm.send(&sends[0], peer, DATA)?;
                comm.recv(&mut recvs[0], peer, DATA)?;
                sent.protocol
            } else {
                comm.recv(&mut recvs[0], peer, DATA)?;
                comm.send(&sends[0], peer, DATA)?.protocol
            }
        };
        let mine = self.boxes.check(&[Sent::all(send, peer)], recv, 0)?;
        Ok((protocol, agreed(&self.control, mine)?))
    }

    /// Times the pattern as `plan` says. All ranks get the times of rank 0; of several pairs, the longest whole of all.
    pub(super) fn time(&mut self, prepared: &Prepared, plan: &Plan) -> Result<Timing, Failure> {
        let Prepared { send, recv } = prepared;
        let sends = self.boxes.outbox.views(&send.places, &send.layout, send.count, 1)?;
        let mut recvs =
            self.boxes.inbox.views_mut(&recv.places, &recv.layout, recv.count, usize::MAX)?;
        let turns = Turns {
            comm: self.world.comm(),
            peer: self.peer,
            first: self.first,
            pattern: self.pattern,
            computing: self.computing,
        };
        let timing = plan.carry_out(&self.control, || turns.turn(&sends[0], &mut recvs))?;
        if self.control.size() == 2 {
            return Ok(timing);
        }
        let mut whole = [0.0];
        self.control.allreduce(&[timing.seconds], &mut whole, ReduceOp::Max)?;
        Ok(Timing { seconds: whole[0], ..timing })
    }

    /// What part of it is hidden behind as much other work of both ranks, of what took `alone` without.
    pub(super) fn hidden(
        &mut self,
        prepared: &Prepared,
        plan: &Plan,
        alone: &Timing,
    ) -> Result<f64, Failure> {
        let middle = |timing: &Timing| median(timing.samples.iter().copied());
        let mut seconds = [middle(alone)];
        self.control.bcast(&mut seconds, 0)?;
        [self.computing] = seconds;
        let both = self.time(prepared, plan)?;
        self.computing = 0.0;
        Ok(hidden(seconds[0], middle(&both)))
    }
}

/// What part of a time is hidden if both take so long together: all of it if they take no longer than one.
pub(super) fn hidden(alone: f64, both: f64) -> f64 {
    (2.0 - both / alone).clamp(0.0, 1.0)
}

/// What a rank does again and again.
struct Turns<'w> {
    comm: &'w Communicator,
    peer: u32,
    first: bool,
    pattern: Pattern,
    computing: f64,
}

impl Turns<'_> {
    #[inline]
    fn turn(&self, send: &View<'_>, recvs: &mut [ViewMut<'_>]) -> Result<(), Error> {
        let Turns { comm, peer, first, pattern, computing } = *self;
        let window = recvs.len();
        match (pattern, first) {
            (Pattern::PingPong, true) => {
                comm.send(send, peer, DATA)?;
                comm.recv(&mut recvs[0], peer, DATA)?;
            }
            (Pattern::PingPong, false) => {
                comm.recv(&mut recvs[0], peer, DATA)?;
                comm.send(send, peer, DATA)?;
            }
            (Pattern::OneWay, true) => {
                comm.scope(|s| (0..window).try_for_each(|_| s.isend(send, peer, DATA).map(drop)))?;
                comm.recv(&mut [0u8; 0], peer, REPLY)?;
            }
            (Pattern::OneWay, false) => {
                comm.scope(|s| {
                    recvs.iter_mut().try_for_each(|into| s.irecv(into, peer, DATA).map(drop))
                })?;
                comm.send(&[0u8; 0], peer, REPLY)?;
            }
            (Pattern::BothWays, _) => comm.scope(|s| {
                for into in recvs {
                    let _ = s.irecv(into, peer, DATA)?;
                }
                (0..window).try_for_each(|_| s.isend(send, peer, DATA).map(drop))?;
                if computing > 0.0 {
                    compute(computing);
                }
                Ok(())
            })?,
        }
        Ok(())
    }
}
