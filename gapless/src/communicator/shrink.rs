//! Going on after deaths: those who are left agree who that is (as in MPI's draft of fault tolerance).

use super::Communicator;
use crate::error::Error;
use gapless_pml::{Group, Pml, PmlError, Survivors, SurvivorsRequest};

impl Communicator {
    /// A communicator of the members that are left, in the order of their ranks (as `MPIX_Comm_shrink`). Collective
    /// over them, in the same order among the collective calls on this communicator. All survivors get the same group,
    /// whoever dies meanwhile; who dies at the last moment may still be in it, and then it can be shrunk again.
    ///
    /// Free this communicator only after an operation of the new one has shown that all members have it.
    ///
    /// # Errors
    /// This is an intercommunicator; the others go on without this process, because a link to it was lost; a member has
    /// no identifier left.
    pub fn shrink(&self) -> Result<Communicator, Error> {
        let made = self.survive(|pml| pml.start_shrink(&self.comm))?;
        let comm = made.comm.ok_or(PmlError::Bug { what: "survivors without a communicator" })?;
        Ok(Communicator::new(&self.shared, comm))
    }

    /// The bitwise "and" of the flags of all members that are left, and who they are (as `MPIX_Comm_agree`). Collective
    /// as [`shrink`](Communicator::shrink): all survivors get the same, whoever dies meanwhile.
    ///
    /// # Errors
    /// As [`shrink`](Communicator::shrink).
    pub fn agree(&self, flags: u32) -> Result<(u32, Group), Error> {
        let agreed = self.survive(|pml| pml.start_agree(&self.comm, flags))?;
        Ok((agreed.flags, agreed.group))
    }

    /// Starts what `start` says, and waits for it.
    fn survive(
        &self,
        start: impl FnOnce(&mut Pml) -> Result<SurvivorsRequest, PmlError>,
    ) -> Result<Survivors, Error> {
        let request = self.shared.with(|state| {
            let request = start(state.open()?)?;
            self.shared.rouse(state);
            Ok(request)
        })?;
        self.shared.wait_until(|state| match state.open() {
            Ok(pml) => pml.collect_survivors(request).map_err(Error::from).transpose(),
            Err(error) => Some(Err(error)),
        })?
    }
}
