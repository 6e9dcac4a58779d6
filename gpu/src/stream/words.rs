//! What kernels and the host tell each other: two words in page-locked memory.
//!
//! ```text
//!  0 abort:8, the rank to blame and 1 more; 0: go on | 64 state:8, a kernel's `Status`
//! ```

use super::error::StreamError;
use gapless_kernels::peers::Status;
use gapless_mem::{Region, exchange_word, load_word};
use gapless_mem_cuda::{CudaDevice, CudaError, PinnedBuffer};

const ABORT: u64 = 0;
const STATE: u64 = 64;
const BYTES: usize = 128;

/// The words, and what keeps them.
#[derive(Debug)]
pub(super) struct HostWords {
    region: Region,
    _memory: WordsMemory,
}

#[derive(Debug)]
#[expect(dead_code, reason = "it is kept, not used")]
enum WordsMemory {
    Pinned(PinnedBuffer),
    #[cfg(test)]
    Plain(Box<[u64; BYTES / 8]>),
}

impl HostWords {
    /// New ones, both 0.
    pub(super) fn new(device: &CudaDevice) -> Result<HostWords, CudaError> {
        let memory = device.pinned(BYTES as u64)?;
        let region = memory.region();
        // SAFETY: the buffer was given to this value alone, and no kernel knows it yet.
        unsafe { gapless_mem::fill(&region, 0) }.map_err(CudaError::Refused)?;
        Ok(HostWords { region, _memory: WordsMemory::Pinned(memory) })
    }

    #[cfg(test)]
    pub(super) fn in_memory() -> HostWords {
        let mut memory = Box::new([0u64; BYTES / 8]);
        let start = memory.as_mut_ptr().expose_provenance() as u64;
        let region = Region::new(gapless_mem::Space::Host, start, 0, BYTES as u64);
        HostWords { region, _memory: WordsMemory::Plain(memory) }
    }

    /// Where kernels find the word that stops them, and where they leave their state.
    pub(super) fn addresses(&self) -> (u64, u64) {
        (self.region.start() + ABORT, self.region.start() + STATE)
    }

    /// Ends all waits of kernels, because of this rank; the first to say so counts.
    pub(super) fn abort(&self, rank: u32) {
        // SAFETY: the memory is kept by `self`; this process touches it by words only, once it was made.
        let _ = unsafe { exchange_word(&self.region, ABORT, 0, u64::from(rank) + 1) };
    }

    /// The rank that waits were ended for.
    pub(super) fn aborted(&self) -> Option<u32> {
        // SAFETY: as in `abort`.
        let word = unsafe { load_word(&self.region, ABORT) }.unwrap_or(0);
        word.checked_sub(1).and_then(|rank| u32::try_from(rank).ok())
    }

    /// What kernels have found so far.
    ///
    /// # Errors
    /// A failure.
    pub(super) fn check(&self) -> Result<(), StreamError> {
        // SAFETY: as in `abort`; kernels write whole words.
        let word = unsafe { load_word(&self.region, STATE) }.unwrap_or(u64::MAX);
        match Status::of(word) {
            // Known to the host, whether or not a kernel was waiting.
            Status::Well => match self.aborted() {
                Some(rank) => Err(StreamError::Lost { rank }),
                None => Ok(()),
            },
            Status::Late(rank) => Err(StreamError::Late { rank }),
            Status::Aborted(rank) => Err(StreamError::Lost { rank }),
            Status::Differs(rank) => Err(StreamError::Differs { rank }),
            // The rank may have failed because it was killed, or told of one that was.
            Status::Told(rank) => match self.aborted() {
                Some(rank) => Err(StreamError::Lost { rank }),
                None => Err(StreamError::Failed { rank }),
            },
            Status::NoPartition(rank) => Err(StreamError::NoSuchPartition { rank }),
            Status::Early(rank) => Err(StreamError::StartedEarly { rank }),
            Status::Unknown(word) => Err(StreamError::Nonsense { word }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_to_abort_is_named_and_states_are_errors() {
        let words = HostWords::in_memory();
        assert_eq!(words.check(), Ok(()));
        let says = |word: u64| {
            let found = |old| {
                // SAFETY: the memory is this test's.
                unsafe { exchange_word(&words.region, STATE, old, word) }.unwrap()
            };
            let old = found(0);
            found(old);
            words.check().unwrap_err()
        };
        assert_eq!(says(3 << 32 | 1), StreamError::Late { rank: 3 });
        assert_eq!(says(2 << 32 | 4), StreamError::Failed { rank: 2 });
        assert_eq!(says(1 << 32 | 3), StreamError::Differs { rank: 1 });
        assert_eq!(says(3 << 32 | 5), StreamError::NoSuchPartition { rank: 3 });
        assert_eq!(says(6), StreamError::StartedEarly { rank: 0 });
        assert_eq!(says(99), StreamError::Nonsense { word: 99 });
        words.abort(5);
        words.abort(6);
        assert_eq!(words.aborted(), Some(5));
        assert_eq!(says(2 << 32 | 4), StreamError::Lost { rank: 5 });
        assert_eq!(says(5 << 32 | 2).lost_rank(), Some(5));
    }

    #[test]
    fn what_the_host_knows_is_an_error_without_a_kernel() {
        let words = HostWords::in_memory();
        words.abort(0);
        assert_eq!(words.check(), Err(StreamError::Lost { rank: 0 }));
    }
}
