//! The ranks of a communicator, as layers see them that make no collective calls themselves.

use crate::{Bml, Rank};

/// The ranks of a communicator, among which nothing else is sent meanwhile. Whoever owns the communicator implements it
/// by collectives and messages of the usual kind, for layers that have ranks tell each other where memory lies.
///
/// All calls but those without `Result` wait for other ranks, or for the lock of the transports. They fail if a rank that
/// is needed is lost, or no progress is possible any more.
#[expect(clippy::missing_errors_doc, reason = "the trait says when calls fail")]
pub trait Ranks {
    /// Why a call fails.
    type Error;

    /// This process's rank.
    fn rank(&self) -> u32;

    /// How many ranks there are.
    fn size(&self) -> u32;

    /// The process that has this rank.
    fn process(&self, rank: u32) -> Result<Rank, Self::Error>;

    /// Works on the transports.
    fn with_bml<T>(&self, act: impl FnOnce(&mut Bml) -> T) -> Result<T, Self::Error>;

    /// `all` gets every rank's bytes, in the order of ranks, which are as many at each.
    fn allgather(&self, own: &[u8], all: &mut [u8]) -> Result<(), Self::Error>;

    /// Rank `r` gets the block `r` of `own`; all blocks are of one length.
    fn alltoall(&self, own: &[u8], all: &mut [u8]) -> Result<(), Self::Error>;

    /// Sends to one rank and receives from another, of which as many bytes come as there is room for.
    fn sendrecv(&self, out: (&[u8], u32), into: (&mut [u8], u32)) -> Result<(), Self::Error>;

    /// Every rank's words, in the order of ranks, which are as many at each. Collective.
    fn allgather_words(&self, own: &[u64]) -> Result<Vec<u64>, Self::Error> {
        let own: Vec<u8> = own.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut all = vec![0; own.len() * self.size() as usize];
        self.allgather(&own, &mut all)?;
        Ok(all.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// The first rank that says no. Collective.
    fn first_no(&self, yes: bool) -> Result<Option<u32>, Self::Error> {
        let mut all = vec![0; self.size() as usize];
        self.allgather(&[u8::from(yes)], &mut all)?;
        Ok((0..).zip(all).find(|(_, yes)| *yes == 0).map(|(rank, _)| rank))
    }
}
