//! What ranks tell each other before anything is mapped, and what they make of it: pure, so all come to the same end.

use super::error::StreamError;
use gapless_mem_cuda::Mps;

/// Bytes of a record.
pub(super) const RECORD_BYTES: usize = 48;

/// What a rank says of itself.
///
/// ```text
///  0 the GPU's UUID:16 | 16 flags:4 | 20 blocks asked for:4 | 24 blocks that its process has there for other things:4
///  28 blocks that the GPU holds:4 | 32 process:4 | 36 blocks that stay:4 | 40 namespace of processes:8
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GpuRecord {
    pub(super) uuid: [u8; 16],
    /// Its preparations succeeded.
    pub(super) ready: bool,
    /// Processes use its GPU in turns.
    pub(super) turns: bool,
    /// Blocks that this communicator is to have on it, at most.
    pub(super) blocks: u32,
    /// Blocks that its process has reserved there for other things, if it has no ledger; with one, 0.
    pub(super) reserved: u32,
    /// Blocks that can be resident there at once.
    pub(super) room: u32,
    /// Blocks that stay there between calls, and are to find room besides.
    pub(super) stay: u32,
    /// The process's number, and in which namespace it is one.
    pub(super) process: u32,
    pub(super) namespace: u64,
}

impl GpuRecord {
    pub(super) fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..16].copy_from_slice(&self.uuid);
        let flags = u32::from(self.ready) | u32::from(self.turns) << 1;
        let numbers = [flags, self.blocks, self.reserved, self.room, self.process, self.stay];
        for (number, place) in numbers.into_iter().zip(bytes[16..40].chunks_exact_mut(4)) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes[40..].copy_from_slice(&self.namespace.to_le_bytes());
        bytes
    }

    /// Any bytes are a record.
    pub(super) fn decode(bytes: &[u8; RECORD_BYTES]) -> GpuRecord {
        let number = |at: usize| {
            let mut four = [0; 4];
            four.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(four)
        };
        let (mut uuid, mut namespace) = ([0; 16], [0; 8]);
        uuid.copy_from_slice(&bytes[..16]);
        namespace.copy_from_slice(&bytes[40..]);
        GpuRecord {
            uuid,
            ready: number(16) & 1 != 0,
            turns: number(16) & 2 != 0,
            blocks: number(20),
            reserved: number(24),
            room: number(28),
            process: number(32),
            stay: number(36),
            namespace: u64::from_le_bytes(namespace),
        }
    }
}

/// Whether kernels of two processes must not wait for each other on a GPU. What is only likely to be otherwise is not
/// enough: kernels would wait in vain, until their time is up.
pub(super) fn turns(mps: Mps) -> bool {
    match mps {
        Mps::On => false,
        Mps::Off | Mps::Likely => true,
    }
}

/// Whether the ranks with these records can have a communicator of streams; how many blocks a launch of it has at most.
/// That is what they ask for, or less, if a GPU does not hold as many of each rank that uses it, beside what stays.
///
/// # Errors
/// The first reason against it, the same at all ranks.
pub(super) fn agree(records: &[GpuRecord]) -> Result<u32, StreamError> {
    let number = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    if let Some(at) = records.iter().position(|record| !record.ready) {
        return Err(StreamError::Refused { rank: number(at) });
    }
    let on = |gpu: [u8; 16]| records.iter().filter(move |record| record.uuid == gpu);
    let room = |gpu| on(gpu).map(|record| record.room).min().unwrap_or(0);
    let stay = |gpu| on(gpu).fold(0u32, |sum, it| sum.saturating_add(it.stay));
    let share = |record: &GpuRecord| {
        room(record.uuid).saturating_sub(stay(record.uuid)) / number(on(record.uuid).count())
    };
    let most = records.iter().map(share).min().unwrap_or(0);
    let blocks = records.first().map_or(0, |record| record.blocks).min(most).max(1);
    for (at, record) in records.iter().enumerate() {
        if record.blocks != records[0].blocks {
            let (theirs, ours) = (record.blocks, records[0].blocks);
            return Err(StreamError::OptionsDiffer { rank: number(at), theirs, ours });
        }
        if let Some(first) = records[..at].iter().position(|other| other.uuid == record.uuid) {
            if record.turns || records[first].turns {
                return Err(StreamError::SameDevice { one: number(first), other: number(at) });
            }
            continue;
        }
        // With a ledger, that decides afterwards.
        let others = on(record.uuid).fold(0u32, |sum, it| sum.saturating_add(it.reserved));
        let wanted = blocks.saturating_mul(number(on(record.uuid).count())).saturating_add(others);
        let room = room(record.uuid);
        if wanted > room {
            return Err(StreamError::NoRoom { rank: number(at), wanted, room, others });
        }
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(gpu: u8) -> GpuRecord {
        GpuRecord {
            uuid: [gpu; 16],
            ready: true,
            turns: true,
            blocks: 64,
            reserved: 0,
            room: 132,
            process: 4242,
            stay: 0,
            namespace: 0x1_0000_0001,
        }
    }

    #[test]
    fn records_come_back_as_they_were() {
        for ready in [false, true] {
            for turns in [false, true] {
                let record = GpuRecord { ready, turns, stay: 1, ..record(7) };
                assert_eq!(GpuRecord::decode(&record.encode()), record);
            }
        }
    }

    #[test]
    fn a_gpu_each_is_fine_and_one_for_two_only_at_the_same_time() {
        assert_eq!(agree(&[record(1), record(2), record(3)]), Ok(64));
        let refused = agree(&[record(1), record(2), record(1)]).unwrap_err();
        assert_eq!(refused, StreamError::SameDevice { one: 0, other: 2 });
        assert!(refused.to_string().contains("Multi-Process Service"));
        let mps = |gpu| GpuRecord { turns: false, ..record(gpu) };
        assert_eq!(agree(&[mps(1), mps(1)]), Ok(64));
        assert_eq!([Mps::On, Mps::Off, Mps::Likely].map(super::turns), [false, true, true]);
    }

    #[test]
    fn a_small_gpu_has_as_many_blocks_as_it_holds() {
        let small = |gpu, room| GpuRecord { room, ..record(gpu) };
        assert_eq!(agree(&[record(1), small(2, 40)]), Ok(40));
        // Four share one: each has a quarter.
        let shared = |room| GpuRecord { turns: false, ..small(1, room) };
        assert_eq!(agree(&[shared(132); 4]), Ok(33));
        assert_eq!(agree(&[shared(132), shared(132), small(2, 40)]), Ok(40));
        // What stays has a block of its own, if that leaves one for calls.
        let stays = |room, stay| GpuRecord { stay, ..shared(room) };
        assert_eq!(agree(&[stays(132, 1), stays(132, 1), stays(132, 1), stays(132, 0)]), Ok(32));
        assert_eq!(agree(&[stays(2, 1); 2]), Ok(1));
        // Others' blocks are no room.
        let busy = GpuRecord { reserved: 30, ..small(2, 60) };
        let refused = agree(&[record(1), busy]).unwrap_err();
        assert_eq!(refused, StreamError::NoRoom { rank: 1, wanted: 90, room: 60, others: 30 });
        let none = agree(&[shared(2); 3]).unwrap_err();
        assert_eq!(none, StreamError::NoRoom { rank: 0, wanted: 3, room: 2, others: 0 });
    }

    #[test]
    fn blocks_are_counted_by_gpu() {
        let mps = |gpu, reserved| GpuRecord { turns: false, reserved, ..record(gpu) };
        assert_eq!(agree(&[mps(1, 0), mps(2, 0), mps(1, 4)]), Ok(64));
        let refused = agree(&[mps(2, 0), mps(1, 0), mps(1, 5)]).unwrap_err();
        assert_eq!(refused, StreamError::NoRoom { rank: 1, wanted: 133, room: 132, others: 5 });
        let refused =
            agree(&[GpuRecord { reserved: u32::MAX, ..record(1) }, record(2)]).unwrap_err();
        assert!(matches!(refused, StreamError::NoRoom { rank: 0, .. }));
    }

    #[test]
    fn who_is_not_ready_or_asks_for_something_else_is_named() {
        let refused = agree(&[record(1), GpuRecord { ready: false, ..record(2) }]).unwrap_err();
        assert_eq!(refused, StreamError::Refused { rank: 1 });
        let refused = agree(&[record(1), GpuRecord { blocks: 8, ..record(2) }]).unwrap_err();
        assert_eq!(refused, StreamError::OptionsDiffer { rank: 1, theirs: 8, ours: 64 });
    }
}
