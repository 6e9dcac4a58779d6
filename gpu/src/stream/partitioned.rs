//! Partitioned messages whose partitions kernels of users mark ready, test and wait for: planned once by all ranks
//! together.
//!
//! Ranks tell each other all their messages (`PartitionEnd`), match them (`matched`, pure: all come to the same end),
//! map each other's words, and write handles (`handles`, pure). Device code and memory are in
//! `gapless_kernels::partitioned`.

use super::call::{Everywhere, StreamBuffer};
use super::error::StreamError;
use super::layouts::agree::write;
use super::{StreamComm, StreamMemory, StreamRanks, exchange};
use gapless_kernels::partitioned::{PartitionHandle, PartitionMemory, PartitionRanks, RECV, SEND};
use gapless_kernels::peers::RANKS_MAX;

/// One end of a partitioned message (`MPI_Psend_init`, `MPI_Precv_init`): partitions of equal length, one behind the
/// other in registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPartitions {
    /// The rank at the other end.
    pub rank: u32,
    /// Where partition 0 begins.
    pub buffer: StreamBuffer,
    /// How many there are: as many at both ends.
    pub partitions: u32,
    /// Bytes of each, likewise.
    pub bytes: u64,
}

/// Planned partitioned messages: addresses of handles for the functions of `gapless_partitioned.h`
/// ([`HEADER`](gapless_kernels::partitioned::HEADER)), in memory of the device, where they stay until the communicator
/// is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPartitioned {
    /// Those of sends, then those of receives.
    handles: Vec<u64>,
    sends: usize,
}

impl StreamPartitioned {
    /// A handle (`const gapless_partitioned *`) for each send, in their order.
    #[must_use]
    pub fn sends(&self) -> &[u64] {
        &self.handles[..self.sends]
    }

    /// A handle for each receive.
    #[must_use]
    pub fn recvs(&self) -> &[u64] {
        &self.handles[self.sends..]
    }
}

/// One end of a message, as ranks tell each other. A rank has a list of them, sends before receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PartitionEnd {
    /// [`SEND`] or [`RECV`].
    kind: u32,
    peer: u32,
    /// Which registration.
    index: u64,
    /// Bytes from its begin.
    offset: u64,
    partitions: u32,
    bytes: u64,
}

/// Words of an end: `kind | peer | registration | offset | partitions | bytes of a partition`. No end is all 0.
const END_WORDS: usize = 6;

/// Ends that a rank may have in a plan.
const ENDS_MAX: u64 = 1 << 20;

impl PartitionEnd {
    fn encode(&self) -> [u64; END_WORDS] {
        let PartitionEnd { kind, peer, index, offset, partitions, bytes } = *self;
        [kind.into(), peer.into(), index, offset, partitions.into(), bytes]
    }

    /// `None` where there is none.
    fn decode([kind, peer, index, offset, partitions, bytes]: [u64; END_WORDS]) -> Option<Self> {
        let number = |word| u32::try_from(word).ok();
        let kind = number(kind).filter(|kind| [SEND, RECV].contains(kind))?;
        let (peer, partitions) = (number(peer)?, number(partitions)?);
        Some(PartitionEnd { kind, peer, index, offset, partitions, bytes })
    }

    fn argument(&self) -> &'static str {
        if self.kind == SEND { "sends" } else { "recvs" }
    }

    /// The registration that it lies in.
    fn of<'a>(&self, registered: &'a [Everywhere]) -> Option<&'a Everywhere> {
        registered.get(usize::try_from(self.index).ok()?)
    }

    /// Whether it is right by itself, at this rank.
    fn fits(&self, at: usize, ranks: u32, registered: &[Everywhere]) -> Result<(), StreamError> {
        let (rank, count, bytes) = (self.peer, u64::from(self.partitions), self.bytes);
        if rank >= ranks {
            return Err(StreamError::NoSuchRank { rank, size: ranks });
        }
        let total = count.checked_mul(bytes).ok_or(StreamError::TooLong { count, bytes })?;
        let end = self.offset.checked_add(total);
        let len = self.of(registered).map(|known| known.lens[at]);
        match end.zip(len) {
            Some((end, len)) if end <= len => Ok(()),
            _ => Err(StreamError::Outside { argument: self.argument(), rank }),
        }
    }
}

/// The ends of one kind with one peer, in their order, and their numbers in the list.
fn ends(
    list: &[PartitionEnd],
    kind: u32,
    peer: u32,
) -> impl Iterator<Item = (usize, &PartitionEnd)> {
    list.iter().enumerate().filter(move |(_, end)| end.kind == kind && end.peer == peer)
}

/// Whether all messages match, by all ranks' lists.
///
/// # Errors
/// Something at every rank, if there is at one: its own reason there, elsewhere its name.
fn matched(all: &[Vec<PartitionEnd>], me: u32, known: &[Everywhere]) -> Result<(), StreamError> {
    let ranks = u32::try_from(all.len()).unwrap_or(u32::MAX);
    let right = |rank: u32| {
        let at = rank as usize;
        all[at].iter().try_for_each(|end| end.fits(at, ranks, known))
    };
    right(me)?;
    if let Some(rank) = (0..ranks).find(|rank| right(*rank).is_err()) {
        return Err(StreamError::Refused { rank });
    }
    for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
        let sends = || ends(&all[from as usize], SEND, to).map(|(_, end)| end);
        let recvs = || ends(&all[to as usize], RECV, from).map(|(_, end)| end);
        let (sent, received) = (sends().count() as u64, recvs().count() as u64);
        if sent != received {
            return Err(StreamError::MessagesDiffer { from, to, sent, received });
        }
        for (send, recv) in sends().zip(recvs()) {
            let (sent, received) = (send.partitions, recv.partitions);
            if sent != received {
                return Err(StreamError::PartitionsDiffer { from, to, sent, received });
            }
            // Neither is more than a registration has.
            let [sent, received] = [send, recv].map(|end| end.bytes * u64::from(end.partitions));
            if send.bytes != recv.bytes {
                return Err(StreamError::LengthsDiffer { from, to, sent, received });
            }
        }
    }
    Ok(())
}

fn memory(list: &[PartitionEnd]) -> PartitionMemory {
    PartitionMemory::new(list.iter().map(|end| end.partitions))
}

/// This rank's handles, of messages that match. `at` is where each rank has its memory for them.
fn handles(
    all: &[Vec<PartitionEnd>],
    me: u32,
    known: &[Everywhere],
    at: &[u64; RANKS_MAX],
) -> Vec<PartitionHandle> {
    let memories: Vec<PartitionMemory> = all.iter().map(|list| memory(list)).collect();
    let words = |rank: u32, number: usize| {
        let words = memories[rank as usize].words(number).unwrap_or(0);
        at[rank as usize].wrapping_add(words)
    };
    let data = |rank: u32, end: &PartitionEnd| {
        let start = end.of(known).map_or(0, |known| known.at[rank as usize]);
        start.wrapping_add(end.offset)
    };
    let mine = &all[me as usize];
    let mut made = vec![PartitionHandle::default(); mine.len()];
    for (kind, other) in [(SEND, RECV), (RECV, SEND)] {
        for (peer, theirs) in (0..).zip(all) {
            let pairs = ends(mine, kind, peer).zip(ends(theirs, other, me));
            for ((number, end), (there, twin)) in pairs {
                let (here, away) = (data(me, end), data(peer, twin));
                let (source, target) = if kind == SEND { (here, away) } else { (away, here) };
                made[number] = PartitionHandle {
                    ranks: at[me as usize],
                    source,
                    target,
                    bytes: end.bytes,
                    ours: words(me, number),
                    theirs: words(peer, there),
                    partitions: end.partitions,
                    peer,
                    kind,
                    unused: 0,
                };
            }
        }
    }
    made
}

impl<R: StreamRanks> StreamComm<'_, R> {
    /// Plans partitioned messages (`MPI_Psend_init`, `MPI_Precv_init`, MPI 4.1 §4.2), whose partitions kernels of users
    /// send, test and wait for by the functions of `gapless_partitioned.h`. Sends and receives match in their order
    /// between each two ranks; a rank may send to itself. Buffers are registered. Collective; may block.
    ///
    /// # Safety
    /// Kernels that use the handles keep to what the header says. They have ended when this communicator is dropped, or
    /// are on its stream. Partitions that are received overlap neither each other nor what else is in use: the sender's
    /// kernels write a partition from the start of its receive until it has come.
    ///
    /// # Errors
    /// More than 1,048,576 messages of a rank, partitions outside their buffer, a buffer that is not registered, a rank
    /// that there is not, numbers of messages or partitions, or lengths, that differ between both ends, no memory, a
    /// stream that is captured. All ranks get an error if one does. A peer is lost.
    pub unsafe fn plan_partitioned(
        &mut self,
        sends: &[StreamPartitions],
        recvs: &[StreamPartitions],
    ) -> Result<StreamPartitioned, R::Error> {
        let ours = self.partition_ends(sends, recvs);
        // Whoever refuses goes on to take part, so that all get an error.
        let refused = u64::MAX;
        let count = ours.as_ref().map_or(refused, |ours| ours.len() as u64);
        let counts = self.ranks.allgather_words(&[count])?;
        let ours = ours?;
        if let Some(rank) =
            (0..).zip(&counts).find_map(|(rank, it)| (*it == refused).then_some(rank))
        {
            return Err(StreamError::Refused { rank }.into());
        }
        if let Some((rank, _)) = (0..).zip(&counts).find(|(_, count)| **count > ENDS_MAX) {
            return Err(StreamError::Refused { rank }.into());
        }
        let most =
            counts.iter().max().map_or(0, |most| usize::try_from(*most).unwrap_or(usize::MAX));
        let mut words: Vec<u64> = ours.iter().flat_map(PartitionEnd::encode).collect();
        // So that even nothing is something.
        let each = most.max(1) * END_WORDS;
        words.resize(each, 0);
        let words = self.ranks.allgather_words(&words)?;
        let list = |words: &[u64]| {
            words.as_chunks().0.iter().filter_map(|end| PartitionEnd::decode(*end)).collect()
        };
        let all: Vec<Vec<PartitionEnd>> = words.chunks(each).map(list).collect();
        let short = |(list, count): (&Vec<PartitionEnd>, &u64)| list.len() as u64 != *count;
        if let Some((rank, _)) = (0..).zip(all.iter().zip(&counts)).find(|(_, it)| short(*it)) {
            return Err(StreamError::Refused { rank }.into());
        }
        let (me, known) = (self.ground.rank, &self.ground.registered);
        matched(&all, me, known)?;
        let layout = memory(&ours);
        let memory = self.everybody(self.allocate(layout.bytes()))?;
        // SAFETY: it is freed when it is dropped, once peers have released it (`StreamMemory`).
        let mapped = unsafe { exchange::map_everywhere(&self.ranks, memory.region()) }?;
        let holds = |at: usize| mapped.lens[at] >= self::memory(&all[at]).bytes();
        if let Some(rank) = (0..self.ground.ranks).find(|rank| !holds(*rank as usize)) {
            return Err(StreamError::Refused { rank }.into());
        }
        let args = self.ground.args();
        let (dead, rank, ranks) = (args.window, args.rank, args.ranks);
        let (abort, status, patience) = (args.abort, args.status, args.patience);
        let common = PartitionRanks { dead, abort, status, patience, rank, ranks };
        let content = layout.content(&common, &handles(&all, me, known, &mapped.at));
        // SAFETY: nobody uses it before all have written theirs.
        self.everybody(unsafe { write(&memory, &content) }.map_err(R::Error::from))?;
        let start = memory.region().start();
        if let Some(held) = &mut self.held {
            held.partitions.push(memory);
        }
        self.keep_mapped(mapped);
        let handles =
            (0..ours.len()).map(|number| start + PartitionMemory::handle(number)).collect();
        Ok(StreamPartitioned { handles, sends: sends.len() })
    }

    /// This rank's list.
    fn partition_ends(
        &self,
        sends: &[StreamPartitions],
        recvs: &[StreamPartitions],
    ) -> Result<Vec<PartitionEnd>, StreamError> {
        if self.stream.is_captured()? {
            return Err(StreamError::Captured);
        }
        let end = |kind: u32, argument: &'static str, given: &StreamPartitions| {
            let StreamPartitions { rank: peer, buffer, partitions, bytes } = *given;
            let (index, offset) = self.placed(argument, buffer)?;
            Ok(PartitionEnd { kind, peer, index: index as u64, offset, partitions, bytes })
        };
        let sends = sends.iter().map(|given| end(SEND, "sends", given));
        sends.chain(recvs.iter().map(|given| end(RECV, "recvs", given))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registrations 0 and 1, of so many bytes at each of three ranks, as rank 0's device sees them.
    fn registered() -> Vec<Everywhere> {
        let of = |index: u64, lens: [u64; 3]| {
            let mut known = Everywhere { at: [0; RANKS_MAX], len: 0, lens: [0; RANKS_MAX] };
            for (rank, len) in lens.into_iter().enumerate() {
                known.at[rank] = (index + 1) << 40 | (rank as u64) << 32;
                known.lens[rank] = len;
            }
            known
        };
        vec![of(0, [4096, 4096, 4096]), of(1, [100, 200, 300])]
    }

    fn send(peer: u32, offset: u64) -> PartitionEnd {
        PartitionEnd { kind: SEND, peer, index: 0, offset, partitions: 4, bytes: 16 }
    }

    fn recv(peer: u32, offset: u64) -> PartitionEnd {
        PartitionEnd { kind: RECV, ..send(peer, offset) }
    }

    /// The same error everywhere.
    fn everywhere(all: &[Vec<PartitionEnd>], error: &StreamError) {
        for me in 0..3 {
            assert_eq!(matched(all, me, &registered()).as_ref(), Err(error), "rank {me}");
        }
    }

    #[test]
    fn ends_come_back_and_any_words_can_be_read() {
        let end = PartitionEnd { offset: 1 << 50, partitions: u32::MAX, ..recv(7, 0) };
        assert_eq!(PartitionEnd::decode(end.encode()), Some(end));
        assert_eq!(PartitionEnd::decode([0; END_WORDS]), None);
        assert_eq!(PartitionEnd::decode([u64::MAX; END_WORDS]), None);
    }

    #[test]
    fn messages_match_in_their_order_between_two_ranks() {
        // 0 sends itself one, and three to 1, which has them between others.
        let all = [
            vec![send(1, 0), send(0, 64), send(1, 128), send(1, 192), recv(2, 256), recv(0, 512)],
            vec![send(2, 0), recv(0, 1024), recv(0, 1088), recv(0, 0)],
            vec![send(0, 64), recv(1, 0)],
        ];
        let known = registered();
        for me in 0..3 {
            assert_eq!(matched(&all, me, &known), Ok(()));
        }
        let mut at = [0; RANKS_MAX];
        at[..3].copy_from_slice(&[1 << 50, 2 << 50, 3 << 50]);
        let found = handles(&all, 0, &known, &at);
        assert_eq!(found.len(), 6);
        let data = |rank: u64, offset: u64| 1 << 40 | rank << 32 | offset;
        let words = |rank: u64, messages: u64, number: u64| {
            ((rank + 1) << 50) + 160 + 64 * messages + 40 * number
        };
        let third = found[3];
        assert_eq!((third.kind, third.peer, third.partitions, third.bytes), (SEND, 1, 4, 16));
        assert_eq!((third.source, third.target), (data(0, 192), data(1, 0)));
        assert_eq!((third.ours, third.theirs), (words(0, 6, 3), words(1, 4, 3)));
        let from = found[4];
        assert_eq!((from.kind, from.peer, from.ranks), (RECV, 2, 1 << 50));
        assert_eq!((from.ours, from.theirs), (words(0, 6, 4), words(2, 2, 0)));
        let itself = [found[1], found[5]];
        assert_eq!(itself.map(|it| it.target), [data(0, 512); 2]);
        assert_eq!((itself[0].ours, itself[0].theirs), (itself[1].theirs, itself[1].ours));
        // And the peer's end of it is the other way around, seen from there.
        let theirs = handles(&all, 1, &known, &at)[3];
        assert_eq!((theirs.ours, theirs.theirs), (third.theirs, third.ours));
    }

    #[test]
    fn what_does_not_match_is_an_error_at_all_ranks() {
        let lonely = [vec![send(1, 0), send(1, 0)], vec![recv(0, 0)], vec![]];
        everywhere(&lonely, &StreamError::MessagesDiffer { from: 0, to: 1, sent: 2, received: 1 });
        let waits = [vec![], vec![recv(2, 0)], vec![]];
        everywhere(&waits, &StreamError::MessagesDiffer { from: 2, to: 1, sent: 0, received: 1 });
        let fewer = [
            vec![send(1, 0)],
            vec![PartitionEnd { partitions: 2, bytes: 32, ..recv(0, 0) }],
            vec![],
        ];
        everywhere(&fewer, &StreamError::PartitionsDiffer { from: 0, to: 1, sent: 4, received: 2 });
        let shorter = [vec![send(1, 0)], vec![PartitionEnd { bytes: 15, ..recv(0, 0) }], vec![]];
        everywhere(
            &shorter,
            &StreamError::LengthsDiffer { from: 0, to: 1, sent: 64, received: 60 },
        );
    }

    #[test]
    fn a_rank_that_is_wrong_has_the_reason_and_others_its_name() {
        let outside = |argument, rank| StreamError::Outside { argument, rank };
        let far = PartitionEnd { partitions: 2, bytes: 1 << 63, ..send(1, 0) };
        let high = PartitionEnd { partitions: 1, ..send(1, u64::MAX) };
        let cases = [
            (send(3, 0), StreamError::NoSuchRank { rank: 3, size: 3 }),
            (send(1, 4096 - 63), outside("sends", 1)),
            (recv(1, 4096 - 63), outside("recvs", 1)),
            // Where it is registered with fewer bytes than at others.
            (PartitionEnd { index: 1, ..recv(1, 37) }, outside("recvs", 1)),
            (PartitionEnd { index: 2, ..recv(1, 0) }, outside("recvs", 1)),
            (far, StreamError::TooLong { count: 2, bytes: 1 << 63 }),
            (high, outside("sends", 1)),
        ];
        for (end, reason) in cases {
            let all = [vec![end], vec![], vec![]];
            assert_eq!(matched(&all, 0, &registered()), Err(reason));
            for me in 1..3 {
                let refused = Err(StreamError::Refused { rank: 0 });
                assert_eq!(matched(&all, me, &registered()), refused);
            }
        }
        let close =
            [vec![PartitionEnd { index: 1, ..recv(1, 36) }], vec![send(0, 4096 - 64)], vec![]];
        assert_eq!(matched(&close, 2, &registered()), Ok(()));
    }
}
