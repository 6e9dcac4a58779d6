//! How ranks map each other's memory: keys of the transports, sent as messages, because some transports send what a key
//! needs before it, on the same way.

use super::StreamRanks;
use super::error::StreamError;
use gapless_bml::{Bml, Mapping, Rank, Ranks, RemoteKey};
use gapless_kernels::peers::RANKS_MAX;
use gapless_mem::{Lease, Region, Space};

/// Memory of all ranks, as this one sees it.
#[derive(Debug)]
pub(super) struct Mapped {
    pub(super) at: [u64; RANKS_MAX],
    /// The bytes of the rank that has the fewest.
    pub(super) len: u64,
    /// The bytes of each.
    pub(super) lens: [u64; RANKS_MAX],
    /// Kept for as long as kernels may use them.
    mappings: Vec<Mapping>,
}

/// The key's length, what it is of in bytes, and the key.
const NOTE_BYTES: usize = 16 + RemoteKey::MAX_BYTES;

fn note(key: Option<RemoteKey>, len: u64) -> [u8; NOTE_BYTES] {
    let mut note = [0; NOTE_BYTES];
    note[8..16].copy_from_slice(&len.to_le_bytes());
    if let Some(key) = key {
        let bytes = key.as_bytes();
        note[..8].copy_from_slice(&(bytes.len() as u64 + 1).to_le_bytes());
        note[16..16 + bytes.len()].copy_from_slice(bytes);
    }
    note
}

/// The key, if there is one, and the bytes that it is of.
fn read(note: &[u8; NOTE_BYTES]) -> (Option<RemoteKey>, u64) {
    let number = |at: usize| {
        let mut eight = [0; 8];
        eight.copy_from_slice(&note[at..at + 8]);
        u64::from_le_bytes(eight)
    };
    let used = number(0).checked_sub(1).and_then(|used| usize::try_from(used).ok());
    let key = used.and_then(|used| note[16..].get(..used)).and_then(RemoteKey::new);
    (key, number(8))
}

fn key(bml: &mut Bml, process: Rank, region: Region) -> Option<RemoteKey> {
    let (peer, mapped) = bml.mapped(process)?;
    // SAFETY: the lease is gone when this returns, and whoever calls keeps the memory.
    let lease = unsafe { Lease::kept_by_caller(region) };
    mapped.key(peer, &lease)
}

fn map(bml: &mut Bml, process: Rank, key: &RemoteKey, user: Space) -> Option<Mapping> {
    let (peer, mapped) = bml.mapped(process)?;
    match mapped.map_for(peer, key, user) {
        Ok(mapping) => Some(mapping),
        Err(error) => {
            tracing::debug!(process = process.0, %error, "memory of a peer cannot be mapped");
            None
        }
    }
}

/// Has every two ranks linked: there are keys only then. What a rank hears in the second round was sent when its own first
/// message had come.
fn meet<R: Ranks>(ranks: &R) -> Result<(), R::Error> {
    let (rank, size) = (ranks.rank(), ranks.size());
    for _ in 0..2 {
        for away in 1..size {
            let (to, from) = ((rank + away) % size, (rank + size - away) % size);
            let mut heard = [0u8];
            ranks.sendrecv((&[0u8], to), (&mut heard, from))?;
        }
    }
    Ok(())
}

/// Maps `region` of every rank at every rank. Collective over `ranks`, among which nothing else is sent.
///
/// # Safety
/// `region` stays allocated until peers have released it.
///
/// # Errors
/// [`StreamError::Unshared`] or [`StreamError::Unreachable`] at all ranks, if memory of one cannot be shared, or another
/// cannot map it; a peer is lost.
pub(super) unsafe fn map_everywhere<R: StreamRanks>(
    ranks: &R,
    region: Region,
) -> Result<Mapped, R::Error> {
    let (rank, size) = (ranks.rank(), ranks.size());
    meet(ranks)?;
    let mut notes = vec![[0u8; NOTE_BYTES]; size as usize];
    let mut ours = Vec::new();
    for peer in 0..size {
        let made = match ranks.process(peer) {
            Ok(process) if peer != rank => ranks.with_bml(|bml| key(bml, process, region))?,
            _ => None,
        };
        ours.push(note(made, region.len()));
    }
    for away in 1..size {
        let (to, from) = ((rank + away) % size, (rank + size - away) % size);
        ranks.sendrecv((&ours[to as usize], to), (&mut notes[from as usize], from))?;
    }
    let (at, lens) = ([0; RANKS_MAX], [0; RANKS_MAX]);
    let mut mapped = Mapped { at, len: region.len(), lens, mappings: Vec::new() };
    let mut missing = Missing::Nothing;
    for (peer, note) in (0..size).zip(&notes) {
        if peer == rank {
            mapped.at[peer as usize] = region.start();
            mapped.lens[peer as usize] = region.len();
            continue;
        }
        let (key, len) = read(note);
        mapped.len = mapped.len.min(len);
        mapped.lens[peer as usize] = len;
        let shared = key.is_some();
        let mapping = match (key, ranks.process(peer)) {
            (Some(key), Ok(process)) => {
                ranks.with_bml(|bml| map(bml, process, &key, region.space()))?
            }
            _ => None,
        };
        match mapping.filter(|mapping| mapping.region().len() >= len) {
            Some(mapping) => {
                mapped.at[peer as usize] = mapping.region().start();
                mapped.mappings.push(mapping);
            }
            None if shared => missing = missing.max(Missing::Mapping(peer)),
            None => missing = missing.max(Missing::Key(peer)),
        }
    }
    match verdict(&ranks.allgather_words(&[missing.encode()])?) {
        Some(error) => Err(error.into()),
        None => Ok(mapped),
    }
}

/// What a rank misses of a peer's memory: worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Missing {
    Nothing,
    /// A key came, and its memory cannot be mapped here.
    Mapping(u32),
    /// The peer could make no key.
    Key(u32),
}

impl Missing {
    fn encode(self) -> u64 {
        match self {
            Missing::Nothing => 0,
            Missing::Mapping(peer) => u64::from(peer) << 2 | 1,
            Missing::Key(peer) => u64::from(peer) << 2 | 2,
        }
    }

    /// Any word is something.
    fn decode(word: u64) -> Missing {
        let peer = u32::try_from(word >> 2).unwrap_or(u32::MAX);
        match word & 3 {
            0 => Missing::Nothing,
            1 => Missing::Mapping(peer),
            _ => Missing::Key(peer),
        }
    }
}

/// What all ranks make of what each misses. Memory without a key is why others miss it, so it comes first.
fn verdict(found: &[u64]) -> Option<StreamError> {
    let all = || (0..).zip(found).map(|(rank, word)| (rank, Missing::decode(*word)));
    let unshared = all().find_map(|(_, missing)| match missing {
        Missing::Key(owner) => Some(StreamError::Unshared { rank: owner }),
        _ => None,
    });
    let unreachable = || {
        all().find_map(|(rank, missing)| match missing {
            Missing::Mapping(other) => Some(StreamError::Unreachable { rank, other }),
            _ => None,
        })
    };
    unshared.or_else(unreachable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_come_back_and_any_bytes_can_be_read() {
        for len in [0, 1, RemoteKey::MAX_BYTES] {
            let key = RemoteKey::new(&vec![7; len]).unwrap();
            let (back, bytes) = read(&note(Some(key), 1 << 40));
            assert_eq!((back.unwrap().as_bytes(), bytes), (key.as_bytes(), 1 << 40));
        }
        assert_eq!(read(&note(None, 5)), (None, 5));
        assert!(read(&[0xff; NOTE_BYTES]).0.is_none());
    }

    #[test]
    fn the_owner_of_memory_that_cannot_be_shared_is_named_before_who_misses_it() {
        let words = |all: &[Missing]| -> Vec<u64> { all.iter().map(|it| it.encode()).collect() };
        let (none, mapping) = (Missing::Nothing, Missing::Mapping);
        assert_eq!(verdict(&words(&[none; 3])), None);
        let unreachable = Some(StreamError::Unreachable { rank: 1, other: 2 });
        assert_eq!(verdict(&words(&[none, mapping(2), mapping(0)])), unreachable);
        let unshared = Some(StreamError::Unshared { rank: 1 });
        assert_eq!(verdict(&words(&[mapping(2), none, Missing::Key(1)])), unshared);
        for word in [u64::MAX, 0, 7] {
            let _ = verdict(&[word]);
        }
    }
}
