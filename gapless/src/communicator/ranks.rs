//! A communicator, as the layers below see it that have its ranks tell each other something.

use super::Communicator;
use crate::error::Error;
use gapless_bml::{Bml, Rank, Ranks};

/// By collectives and messages of a communicator on which nothing else is sent.
impl Ranks for Communicator {
    type Error = Error;

    fn rank(&self) -> u32 {
        self.comm.rank()
    }

    fn size(&self) -> u32 {
        self.comm.size()
    }

    fn process(&self, rank: u32) -> Result<Rank, Error> {
        Ok(Rank(self.comm.process(rank)?))
    }

    fn with_bml<T>(&self, act: impl FnOnce(&mut Bml) -> T) -> Result<T, Error> {
        self.shared.with(|state| Ok(act(state.open()?.bml_mut())))
    }

    fn allgather(&self, own: &[u8], all: &mut [u8]) -> Result<(), Error> {
        Communicator::allgather(self, own, all)
    }

    fn alltoall(&self, own: &[u8], all: &mut [u8]) -> Result<(), Error> {
        Communicator::alltoall(self, own, all)
    }

    fn sendrecv(&self, out: (&[u8], u32), into: (&mut [u8], u32)) -> Result<(), Error> {
        Communicator::sendrecv(self, out.0, (out.1, 0), into.0, (into.1, 0)).map(|_| ())
    }
}
