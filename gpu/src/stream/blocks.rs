//! How ranks reserve the blocks of their kernels in the ledgers of their GPUs: the lowest rank on a GPU for all there, in
//! one go, so that of two communicators that want the last blocks one gets them; then each of the others writes down its
//! own, and the lowest gives those back. So what a rank has reserved lives as long as its kernels do.

use super::StreamRanks;
use super::error::StreamError;
use super::terms::GpuRecord;
use gapless_dtype_cuda::{Ask, Holder, LedgerError, Reservation};

/// What became of a rank's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reserving {
    Done,
    NoRoom {
        wanted: u32,
        room: u32,
        others: u32,
    },
    /// The ledger cannot be had.
    Failed,
}

impl Reserving {
    /// `ours`: blocks that were asked for.
    fn of<T>(result: &Result<T, LedgerError>, ours: u32) -> Reserving {
        match *result {
            Ok(_) => Reserving::Done,
            Err(LedgerError::NoRoom { wanted, room, .. }) => {
                Reserving::NoRoom { wanted, room, others: wanted.saturating_sub(ours) }
            }
            Err(_) => Reserving::Failed,
        }
    }

    fn encode(self) -> [u64; 4] {
        match self {
            Reserving::Done => [0; 4],
            Reserving::NoRoom { wanted, room, others } => {
                [1, wanted.into(), room.into(), others.into()]
            }
            Reserving::Failed => [2, 0, 0, 0],
        }
    }

    /// Unknown words count as a failure.
    fn decode(words: [u64; 4]) -> Reserving {
        let [_, wanted, room, others] = words.map(|word| u32::try_from(word).unwrap_or(u32::MAX));
        match words[0] {
            0 => Reserving::Done,
            1 => Reserving::NoRoom { wanted, room, others },
            _ => Reserving::Failed,
        }
    }
}

/// The first thing that went wrong at any rank.
fn verdict(outcomes: &[[u64; 4]]) -> Result<(), StreamError> {
    for (rank, words) in (0..).zip(outcomes) {
        match Reserving::decode(*words) {
            Reserving::Done => {}
            Reserving::NoRoom { wanted, room, others } => {
                return Err(StreamError::NoRoom { rank, wanted, room, others });
            }
            Reserving::Failed => return Err(StreamError::Ledger { rank }),
        }
    }
    Ok(())
}

/// The lowest rank on the GPU of this one, and how many are there.
fn neighbours(records: &[GpuRecord], rank: u32) -> (u32, u32) {
    let own = records.get(rank as usize).map(|record| record.uuid);
    let mut there = (0..).zip(records).filter(|(_, record)| Some(record.uuid) == own);
    let first = there.next().map_or(rank, |(first, _)| first);
    let more = u32::try_from(there.count()).unwrap_or(u32::MAX);
    (first, more.saturating_add(1))
}

/// Reserves `blocks` blocks for this rank. `together`: kernels of other processes run on its GPU at the same time.
/// Collective.
///
/// # Errors
/// [`StreamError::NoRoom`] or [`StreamError::Ledger`], the same at all ranks; a peer is lost.
pub(super) fn reserve<R: StreamRanks>(
    ranks: &R,
    records: &[GpuRecord],
    blocks: u32,
    together: bool,
) -> Result<Reservation, R::Error> {
    let rank = ranks.rank();
    let GpuRecord { uuid, room, .. } = records[rank as usize];
    let (first, count) = neighbours(records, rank);
    let tell = |outcome: Reserving| -> Result<(), R::Error> {
        Ok(verdict(ranks.allgather_words(&outcome.encode())?.as_chunks().0)?)
    };
    let for_all = blocks.saturating_mul(count);
    let own = Ask { holder: Holder::Stream, blocks, room, together, handed: 0 };
    let all = Ask { blocks: for_all, handed: for_all - blocks, ..own };
    let taken = (first == rank).then(|| Reservation::new(uuid, all));
    tell(taken.as_ref().map_or(Reserving::Done, |taken| Reserving::of(taken, for_all)))?;
    let taken = taken.unwrap_or_else(|| Reservation::take_over(uuid, own));
    tell(Reserving::of(&taken, blocks))?;
    let mut taken = taken.map_err(|_| StreamError::Ledger { rank })?;
    taken.shrink(blocks);
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_come_back_as_they_were_and_the_first_counts() {
        let full = Reserving::NoRoom { wanted: 133, room: 132, others: 69 };
        for outcome in [Reserving::Done, full, Reserving::Failed] {
            assert_eq!(Reserving::decode(outcome.encode()), outcome);
        }
        let (done, failed) = (Reserving::Done.encode(), Reserving::Failed.encode());
        assert_eq!(verdict(&[done, done]), Ok(()));
        assert_eq!(verdict(&[done, failed, done]), Err(StreamError::Ledger { rank: 1 }));
        let refused = verdict(&[done, done, full.encode(), failed]).unwrap_err();
        let same = StreamError::NoRoom { rank: 2, wanted: 133, room: 132, others: 69 };
        assert_eq!(refused, same);
        assert!(refused.to_string().contains("69 of them"), "{refused}");
    }

    #[test]
    fn the_lowest_rank_on_a_gpu_reserves_for_all_there() {
        let record = |gpu: u8| GpuRecord { uuid: [gpu; 16], ..GpuRecord::decode(&[0; 48]) };
        let records = [record(1), record(2), record(1), record(3), record(2), record(1)];
        let of = |rank| neighbours(&records, rank);
        assert_eq!([0, 1, 2, 3, 4, 5].map(of), [(0, 3), (1, 2), (0, 3), (3, 1), (1, 2), (0, 3)]);
    }
}
