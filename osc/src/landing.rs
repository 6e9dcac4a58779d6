//! Where the answers to a question go: into memory that is kept for them, or straight to where whoever asks wants them.

use gapless_mem::{Region, write};

/// A place for answers.
#[derive(Debug)]
pub(crate) struct Landing(Destination);

#[derive(Debug)]
enum Destination {
    Kept(Vec<u8>),
    Memory(Region),
}

impl Landing {
    /// So many bytes, zeroed, that whoever asks gets with the answer.
    pub(crate) fn kept(bytes: usize) -> Landing {
        Landing::of(vec![0; bytes])
    }

    /// These bytes, which answers overwrite and which are given back with the last one.
    pub(crate) fn of(kept: Vec<u8>) -> Landing {
        Landing(Destination::Kept(kept))
    }

    /// Memory of the host.
    ///
    /// # Safety
    /// Until the question is answered or forgotten, the region describes memory that is valid for writes, and that nobody
    /// else touches.
    pub(crate) unsafe fn memory(region: Region) -> Landing {
        Landing(Destination::Memory(region))
    }

    /// Bytes of answers have come; whether there is room.
    pub(crate) fn fill(&mut self, at: u64, bytes: &[u8]) -> bool {
        match &mut self.0 {
            Destination::Kept(all) => {
                let start = usize::try_from(at).unwrap_or(usize::MAX);
                let end = start.checked_add(bytes.len());
                let room = end.and_then(|end| all.get_mut(start..end));
                room.map(|room| room.copy_from_slice(bytes)).is_some()
            }
            // SAFETY: the promise of `memory`: the question, which has this value, is neither answered nor forgotten. Bytes
            // outside the region are refused.
            Destination::Memory(region) => unsafe { write(region, at, bytes) }.is_ok(),
        }
    }

    /// What was kept; nothing if the answers are where they were wanted.
    pub(crate) fn into_kept(self) -> Vec<u8> {
        match self.0 {
            Destination::Kept(all) => all,
            Destination::Memory(_) => Vec::new(),
        }
    }
}
