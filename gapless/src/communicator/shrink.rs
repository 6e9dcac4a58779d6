//! Going on after deaths: those who are left agree who that is (as in MPI's draft of fault tolerance).

use super::Communicator;
use crate::error::Error;
use crate::shared::stuck;
use gapless_pml::{Group, Pml, PmlError, Survivors, SurvivorsRequest, WaitingCall};

impl Communicator {
    /// Makes all members stop using this communicator (as `MPIX_Comm_revoke`). Not collective: any member calls it, at
    /// any time. It returns at once, and every member that lives learns of it, even if this process dies meanwhile.
    ///
    /// What others wait for there, or begin later, ends with an error of which
    /// [`is_revoked`](Error::is_revoked) is true: receives, probes, collectives in all forms, the making of
    /// communicators, at the latest when the process has made progress. Messages that a receive has taken already go
    /// on. A send that waits for its receive ends when the receiver has made progress, or is lost. What still works is
    /// [`shrink`](Communicator::shrink), [`agree`](Communicator::agree) and [`free`](Communicator::free).
    ///
    /// ```
    /// use gapless::{Communicator, Error, ReduceOp, World};
    ///
    /// /// A step in which ranks may be lost.
    /// fn step(comm: &Communicator) -> Result<u32, Error> {
    ///     let mut sum = 0u32;
    ///     comm.allreduce(&1u32, &mut sum, ReduceOp::Sum)?;
    ///     Ok(sum)
    /// }
    ///
    /// fn main() -> Result<(), Error> {
    ///     let world = World::init()?;
    ///     let mut comm = world.comm().dup()?;
    ///     let sum = loop {
    ///         let result = step(&comm);
    ///         if result.is_err() {
    ///             // Others may wait for this rank, or for one that is lost.
    ///             comm.revoke()?;
    ///         }
    ///         // Whether it went well everywhere.
    ///         let (fine, _) = comm.agree(u32::from(result.is_ok()))?;
    ///         match result {
    ///             Ok(sum) if fine == 1 => break sum,
    ///             _ => comm = comm.shrink()?,
    ///         }
    ///     };
    ///     assert_eq!(sum, comm.size());
    ///     world.finalize()
    /// }
    /// ```
    ///
    /// # Errors
    /// The communicator was freed; [`Error::Finalized`]; [`Error::Poisoned`].
    pub fn revoke(&self) -> Result<(), Error> {
        self.shared.with(|state| {
            let pml = state.open()?;
            pml.revoke(&self.comm)?;
            self.common.persistent_comms.comms().iter().try_for_each(|comm| pml.revoke(comm))?;
            // What ends by that ends now.
            self.shared.drive(state);
            self.shared.rouse(state);
            Ok(())
        })
    }

    /// Whether this communicator was [revoked](Communicator::revoke) (as `MPIX_Comm_is_revoked`), as far as this process
    /// has heard.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.comm.is_revoked()
    }

    /// A communicator of the members that are left, in the order of their ranks (as `MPIX_Comm_shrink`). Collective
    /// over them, in the same order among calls of this and of [`agree`](Communicator::agree) on this communicator, which
    /// may be [revoked](Communicator::revoke). All survivors get the same group,
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
        self.shared.wait_in(&|| stuck::on(self, WaitingCall::Making), |state| {
            match state.open() {
                Ok(pml) => pml.collect_survivors(request).map_err(Error::from).transpose(),
                Err(error) => Some(Err(error)),
            }
        })?
    }
}
