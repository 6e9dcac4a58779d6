//! What ranks tell each other before anything is mapped, and what they make of it: pure, so all come to the same end.

use super::error::StreamError;
use gapless_mem_cuda::Mps;

/// Bytes of a card.
pub(super) const CARD_BYTES: usize = 48;

/// What a rank says of itself.
///
/// ```text
///  0 the GPU's UUID:16 | 16 flags:4 | 20 blocks asked for:4 | 24 blocks that its process has there for other things:4
///  28 blocks that the GPU holds:4 | 32 process:4 | 36 unused:4 | 40 namespace of processes:8
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Card {
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
    /// The process's number, and in which namespace it is one.
    pub(super) process: u32,
    pub(super) namespace: u64,
}

impl Card {
    pub(super) fn encode(&self) -> [u8; CARD_BYTES] {
        let mut bytes = [0; CARD_BYTES];
        bytes[..16].copy_from_slice(&self.uuid);
        let flags = u32::from(self.ready) | u32::from(self.turns) << 1;
        let numbers = [flags, self.blocks, self.reserved, self.room, self.process];
        for (number, place) in numbers.into_iter().zip(bytes[16..36].chunks_exact_mut(4)) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes[40..].copy_from_slice(&self.namespace.to_le_bytes());
        bytes
    }

    /// Any bytes are a card.
    pub(super) fn decode(bytes: &[u8; CARD_BYTES]) -> Card {
        let number = |at: usize| {
            let mut four = [0; 4];
            four.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(four)
        };
        let (mut uuid, mut namespace) = ([0; 16], [0; 8]);
        uuid.copy_from_slice(&bytes[..16]);
        namespace.copy_from_slice(&bytes[40..]);
        Card {
            uuid,
            ready: number(16) & 1 != 0,
            turns: number(16) & 2 != 0,
            blocks: number(20),
            reserved: number(24),
            room: number(28),
            process: number(32),
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

/// Whether the ranks with these cards can have a communicator of streams; how many blocks a launch of it has at most. That
/// is what they ask for, or less, if a GPU does not hold as many of each rank that uses it.
///
/// # Errors
/// The first reason against it, the same at all ranks.
pub(super) fn agree(cards: &[Card]) -> Result<u32, StreamError> {
    let number = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    if let Some(at) = cards.iter().position(|card| !card.ready) {
        return Err(StreamError::Refused { rank: number(at) });
    }
    let on = |gpu: [u8; 16]| cards.iter().filter(move |card| card.uuid == gpu);
    let room = |gpu| on(gpu).map(|card| card.room).min().unwrap_or(0);
    let share = |card: &Card| room(card.uuid) / number(on(card.uuid).count());
    let most = cards.iter().map(share).min().unwrap_or(0);
    let blocks = cards.first().map_or(0, |card| card.blocks).min(most).max(1);
    for (at, card) in cards.iter().enumerate() {
        if card.blocks != cards[0].blocks {
            let (theirs, ours) = (card.blocks, cards[0].blocks);
            return Err(StreamError::OptionsDiffer { rank: number(at), theirs, ours });
        }
        if let Some(first) = cards[..at].iter().position(|other| other.uuid == card.uuid) {
            if card.turns || cards[first].turns {
                return Err(StreamError::SameDevice { one: number(first), other: number(at) });
            }
            continue;
        }
        // With a ledger, that decides afterwards.
        let others = on(card.uuid).fold(0u32, |sum, it| sum.saturating_add(it.reserved));
        let wanted = blocks.saturating_mul(number(on(card.uuid).count())).saturating_add(others);
        let room = room(card.uuid);
        if wanted > room {
            return Err(StreamError::NoRoom { rank: number(at), wanted, room, others });
        }
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(gpu: u8) -> Card {
        Card {
            uuid: [gpu; 16],
            ready: true,
            turns: true,
            blocks: 64,
            reserved: 0,
            room: 132,
            process: 4242,
            namespace: 0x1_0000_0001,
        }
    }

    #[test]
    fn cards_come_back_as_they_were() {
        for ready in [false, true] {
            for turns in [false, true] {
                let card = Card { ready, turns, ..card(7) };
                assert_eq!(Card::decode(&card.encode()), card);
            }
        }
    }

    #[test]
    fn a_gpu_each_is_fine_and_one_for_two_only_at_the_same_time() {
        assert_eq!(agree(&[card(1), card(2), card(3)]), Ok(64));
        let refused = agree(&[card(1), card(2), card(1)]).unwrap_err();
        assert_eq!(refused, StreamError::SameDevice { one: 0, other: 2 });
        assert!(refused.to_string().contains("Multi-Process Service"));
        let mps = |gpu| Card { turns: false, ..card(gpu) };
        assert_eq!(agree(&[mps(1), mps(1)]), Ok(64));
        assert_eq!([Mps::On, Mps::Off, Mps::Likely].map(super::turns), [false, true, true]);
    }

    #[test]
    fn a_small_gpu_has_as_many_blocks_as_it_holds() {
        let small = |gpu, room| Card { room, ..card(gpu) };
        assert_eq!(agree(&[card(1), small(2, 40)]), Ok(40));
        // Four share one: each has a quarter.
        let shared = |room| Card { turns: false, ..small(1, room) };
        assert_eq!(agree(&[shared(132); 4]), Ok(33));
        assert_eq!(agree(&[shared(132), shared(132), small(2, 40)]), Ok(40));
        // Others' blocks are no room.
        let busy = Card { reserved: 30, ..small(2, 60) };
        let refused = agree(&[card(1), busy]).unwrap_err();
        assert_eq!(refused, StreamError::NoRoom { rank: 1, wanted: 90, room: 60, others: 30 });
        let none = agree(&[shared(2); 3]).unwrap_err();
        assert_eq!(none, StreamError::NoRoom { rank: 0, wanted: 3, room: 2, others: 0 });
    }

    #[test]
    fn blocks_are_counted_by_gpu() {
        let mps = |gpu, reserved| Card { turns: false, reserved, ..card(gpu) };
        assert_eq!(agree(&[mps(1, 0), mps(2, 0), mps(1, 4)]), Ok(64));
        let refused = agree(&[mps(2, 0), mps(1, 0), mps(1, 5)]).unwrap_err();
        assert_eq!(refused, StreamError::NoRoom { rank: 1, wanted: 133, room: 132, others: 5 });
        let refused = agree(&[Card { reserved: u32::MAX, ..card(1) }, card(2)]).unwrap_err();
        assert!(matches!(refused, StreamError::NoRoom { rank: 0, .. }));
    }

    #[test]
    fn who_is_not_ready_or_asks_for_something_else_is_named() {
        let refused = agree(&[card(1), Card { ready: false, ..card(2) }]).unwrap_err();
        assert_eq!(refused, StreamError::Refused { rank: 1 });
        let refused = agree(&[card(1), Card { blocks: 8, ..card(2) }]).unwrap_err();
        assert_eq!(refused, StreamError::OptionsDiffer { rank: 1, theirs: 8, ours: 64 });
    }
}
