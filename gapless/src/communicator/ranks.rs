//! A communicator, as the layers below see it that have its ranks tell each other something.

use super::Communicator;
use crate::error::Error;
use gapless_bml::{Bml, Rank, Ranks};

/// A communicator on which nothing else is sent. Programs cannot make one: it hands out the transports, which messages
/// under way rely on.
///
/// ```compile_fail,E0277
/// fn transports(comm: &gapless::Communicator) {
///     let _ = gapless_bml::Ranks::with_bml(comm, |_| ());
/// }
/// ```
#[derive(Debug)]
#[cfg_attr(not(feature = "cuda"), allow(unreachable_pub, reason = "`StreamComm` names it"))]
pub struct Members(pub(crate) Communicator);

impl Communicator {
    /// Works on the transports.
    pub(crate) fn with_bml<T>(&self, act: impl FnOnce(&mut Bml) -> T) -> Result<T, Error> {
        self.shared.with(|state| Ok(act(state.open()?.bml_mut())))
    }
}

impl Ranks for Members {
    type Error = Error;

    fn rank(&self) -> u32 {
        self.0.rank()
    }

    fn size(&self) -> u32 {
        self.0.size()
    }

    fn process(&self, rank: u32) -> Result<Rank, Error> {
        Ok(Rank(self.0.comm.process(rank)?))
    }

    fn with_bml<T>(&self, act: impl FnOnce(&mut Bml) -> T) -> Result<T, Error> {
        self.0.with_bml(act)
    }

    fn allgather(&self, own: &[u8], all: &mut [u8]) -> Result<(), Error> {
        self.0.allgather(own, all)
    }

    fn alltoall(&self, own: &[u8], all: &mut [u8]) -> Result<(), Error> {
        self.0.alltoall(own, all)
    }

    fn sendrecv(&self, out: (&[u8], u32), into: (&mut [u8], u32)) -> Result<(), Error> {
        self.0.sendrecv(out.0, (out.1, 0), into.0, (into.1, 0)).map(drop)
    }
}
