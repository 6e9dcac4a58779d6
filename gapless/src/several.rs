//! Waiting for one, some or all of several operations (MPI 4.1 §3.7.5): messages, collectives, or both.
//!
//! Every operation in flight is a request of the message layer, whatever its handle is
//! (`coll/src/runtime/in_flight.rs` gives collectives one). What is here looks at requests alone; handles then give what
//! they have.

use crate::communicator::Communicator;
use crate::error::Error;
use crate::shared::{Shared, WorldState};
use gapless_pml::{Pml, RequestId};

/// What may be in flight: a [`Request`](crate::Request), [`OwnedRequest`](crate::OwnedRequest),
/// [`Persistent`](crate::Persistent), [`CollectiveRequest`](crate::CollectiveRequest),
/// [`OwnedCollective`](crate::OwnedCollective), [`PersistentCollective`](crate::PersistentCollective),
/// [`CallRequest`](crate::xtq::CallRequest) or [`raw::Request`](crate::raw::Request). Sealed.
pub trait InFlight: sealed::InFlight {}

/// An [`InFlight`] that is gone when it has ended: all but persistent ones. Sealed.
pub trait Handle: InFlight + Sized {
    /// What it gives then.
    type Ended;

    /// Waits until it has ended (`MPI_Wait`, MPI 4.1 §3.7.3).
    fn wait(self) -> Self::Ended;

    /// What it gives if it has ended; makes progress (`MPI_Test`, MPI 4.1 §3.7.3).
    ///
    /// # Errors
    /// Still in flight.
    fn test(self) -> Result<Self::Ended, Self>;

    /// Waits for all of them (`MPI_Waitall`, MPI 4.1 §3.7.5); what each gives, in their order.
    fn wait_all(several: impl IntoIterator<Item = Self>) -> Vec<Self::Ended> {
        several.into_iter().map(Handle::wait).collect()
    }
}

pub(crate) mod sealed {
    use super::{Error, Pending};

    pub trait InFlight {
        fn pending(&self) -> Pending<'_>;

        /// Whether the calling thread may block until it has ended.
        fn may_block(&self) -> Result<(), Error> {
            Ok(())
        }
    }
}

/// What a handle waits for.
#[derive(Debug)]
pub struct Pending<'h> {
    shared: &'h Shared,
    /// `None` if it is inactive.
    request: Option<RequestId>,
}

impl<'h> Pending<'h> {
    pub(crate) fn new(shared: &'h Shared, request: Option<RequestId>) -> Pending<'h> {
        Pending { shared, request }
    }

    /// The request, in its world.
    ///
    /// # Errors
    /// [`Error::Inactive`].
    pub(crate) fn active(&self) -> Result<(&'h Shared, RequestId), Error> {
        Ok((self.shared, self.request.ok_or(Error::Inactive)?))
    }
}

/// Whether a request is over. One that is not there is, too.
fn is_over(pml: &Pml, request: Option<RequestId>) -> bool {
    request.is_some_and(|id| pml.is_done(id) != Ok(false))
}

/// The requests of handles.
fn requests<Q: InFlight>(several: &[Q]) -> Vec<Option<RequestId>> {
    several.iter().map(|one| one.pending().request).collect()
}

/// Waits until one of these has ended; which. A thread that may not block only looks.
fn first_over(
    shared: &Shared,
    ids: &[Option<RequestId>],
    may_block: Result<(), Error>,
) -> Result<usize, Error> {
    let over = |pml: &Pml| ids.iter().position(|id| is_over(pml, *id));
    match may_block {
        Ok(()) => shared.wait_until(|state: &mut WorldState| over(&state.pml)),
        Err(error) => shared.look(over)?.ok_or(error),
    }
}

/// Waits until one of them has ended; which. `None` if there are none.
fn first_ended<Q: InFlight>(several: &[Q]) -> Option<usize> {
    let shared = several.first()?.pending().shared;
    let may_block = several.iter().try_for_each(Q::may_block);
    let ended = first_over(shared, &requests(several), may_block);
    // After a panic elsewhere, or the world's end, every request counts as ended; waiting says why, and why not.
    Some(ended.unwrap_or(0))
}

pub(crate) fn wait_any<Q: Handle>(several: &mut Vec<Q>) -> Option<(usize, Q::Ended)> {
    let index = first_ended(several)?;
    Some((index, several.remove(index).wait()))
}

pub(crate) fn wait_some<Q: Handle>(several: &mut Vec<Q>) -> Vec<(usize, Q::Ended)> {
    let Some(index) = first_ended(several) else { return Vec::new() };
    match test_some(several) {
        none if none.is_empty() => vec![(index, several.remove(index).wait())],
        ended => ended,
    }
}

pub(crate) fn test_all<Q: Handle>(several: Vec<Q>) -> Result<Vec<Q::Ended>, Vec<Q>> {
    let Some(first) = several.first() else { return Ok(Vec::new()) };
    let ids = requests(&several);
    let over = |pml: &Pml| ids.iter().all(|id| is_over(pml, *id));
    // As in `first_ended`.
    match first.pending().shared.look(over).unwrap_or(true) {
        true => Ok(Q::wait_all(several)),
        false => Err(several),
    }
}

pub(crate) fn test_any<Q: Handle>(several: &mut Vec<Q>) -> Option<(usize, Q::Ended)> {
    let shared = several.first()?.pending().shared;
    let ids = requests(several);
    let over = |pml: &Pml| ids.iter().position(|id| is_over(pml, *id));
    // As in `first_ended`.
    let index = shared.look(over).unwrap_or(Some(0))?;
    Some((index, several.remove(index).wait()))
}

pub(crate) fn test_some<Q: Handle>(several: &mut Vec<Q>) -> Vec<(usize, Q::Ended)> {
    let mut ended = Vec::new();
    let mut rest = Vec::new();
    for (index, one) in several.drain(..).enumerate() {
        match one.test() {
            Ok(over) => ended.push((index, over)),
            Err(one) => rest.push(one),
        }
    }
    *several = rest;
    ended
}

/// Waits until one of them has ended, with nothing taken; which. `None` if none is active.
pub(crate) fn wait_any_in<Q: InFlight + ?Sized>(
    shared: &Shared,
    several: &[&Q],
) -> Result<Option<usize>, Error> {
    let ids = requests_in(shared, several)?;
    if ids.iter().all(Option::is_none) {
        return Ok(None);
    }
    first_over(shared, &ids, several.iter().try_for_each(|one| one.may_block())).map(Some)
}

/// Those of them that have ended, with nothing taken; makes progress.
pub(crate) fn test_some_in<Q: InFlight + ?Sized>(
    shared: &Shared,
    several: &[&Q],
) -> Result<Vec<usize>, Error> {
    let ids = requests_in(shared, several)?;
    shared.look(|pml| (0..ids.len()).filter(|at| is_over(pml, ids[*at])).collect())
}

/// The requests of handles of one world.
fn requests_in<Q: InFlight + ?Sized>(
    here: &Shared,
    several: &[&Q],
) -> Result<Vec<Option<RequestId>>, Error> {
    let of = |one: &&Q| {
        let Pending { shared, request } = one.pending();
        if std::ptr::eq(shared, here) { Ok(request) } else { Err(Error::OtherWorld) }
    };
    several.iter().map(of).collect()
}

impl Communicator {
    /// Waits until one of several operations has ended, of whatever kinds they are (`MPI_Waitany`, MPI 4.1 §3.7.5); its
    /// index. Persistent ones that are inactive are passed over; `None` if there are no others. Nothing is taken: the
    /// handle's own `wait` then returns at once.
    ///
    /// ```
    /// use gapless::{Collective, World};
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = World::init()?;
    /// let comm = world.comm();
    /// let message = comm.irecv_owned(vec![0u8; 4], comm.rank(), 7)?;
    /// let barrier = comm.begin_owned((), (), |_, _| Collective::barrier())?;
    /// assert_eq!(comm.wait_any(&[&message, &barrier])?, Some(1));
    /// barrier.wait().1?;
    /// comm.send(b"four", comm.rank(), 7)?;
    /// message.wait().1?;
    /// world.finalize()
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::OtherWorld`]: one of them is of another world. [`Error::Call`]: a task waits for a call, and none of
    /// them has ended. [`Error::Finalized`]; [`Error::Poisoned`].
    pub fn wait_any(&self, several: &[&dyn InFlight]) -> Result<Option<usize>, Error> {
        wait_any_in(&self.shared, several)
    }

    /// As [`wait_any`](Communicator::wait_any), for all that have ended (`MPI_Waitsome`): their indices, in order. Empty
    /// if none is active.
    ///
    /// # Errors
    /// As there.
    pub fn wait_some(&self, several: &[&dyn InFlight]) -> Result<Vec<usize>, Error> {
        match self.wait_any(several)? {
            Some(_) => self.test_some(several),
            None => Ok(Vec::new()),
        }
    }

    /// Those of several operations that have ended (`MPI_Testsome`, and `MPI_Testany`): their indices, in order. Makes
    /// progress.
    ///
    /// # Errors
    /// As [`wait_any`](Communicator::wait_any).
    pub fn test_some(&self, several: &[&dyn InFlight]) -> Result<Vec<usize>, Error> {
        test_some_in(&self.shared, several)
    }
}

/// Calls on several handles that own their buffers.
macro_rules! several_owned {
    ($handle:ident<$($parameter:ident: $bound:path),+>, $ended:ty) => {
        impl<$($parameter: $bound),+> $handle<$($parameter),+> {
            /// Waits for all of them (`MPI_Waitall`, MPI 4.1 §3.7.5); what each gives, in their order.
            pub fn wait_all(several: impl IntoIterator<Item = Self>) -> Vec<$ended> {
                several.into_iter().map(Self::wait).collect()
            }

            /// Waits for the first of them to end, and takes it out of the list (`MPI_Waitany`, MPI 4.1 §3.7.5): its
            /// index before, and what it gives. `None` if the list is empty. All are of one world.
            /// [`Communicator::wait_any`](crate::Communicator::wait_any) waits for operations of several kinds.
            pub fn wait_any(several: &mut Vec<Self>) -> Option<(usize, $ended)> {
                $crate::several::wait_any(several)
            }

            /// Waits until at least one of them has ended, and takes all that have out of the list (`MPI_Waitsome`,
            /// MPI 4.1 §3.7.5): their indices before, and what they give. Empty if the list is.
            pub fn wait_some(several: &mut Vec<Self>) -> Vec<(usize, $ended)> {
                $crate::several::wait_some(several)
            }

            /// What all of them give, in their order, if all have ended (`MPI_Testall`, MPI 4.1 §3.7.5).
            ///
            /// # Errors
            /// Some are still in flight: all of them again.
            pub fn test_all(several: Vec<Self>) -> Result<Vec<$ended>, Vec<Self>> {
                $crate::several::test_all(several)
            }

            /// Takes one that has ended out of the list, if there is any (`MPI_Testany`, MPI 4.1 §3.7.5): its index
            /// before, and what it gives.
            pub fn test_any(several: &mut Vec<Self>) -> Option<(usize, $ended)> {
                $crate::several::test_any(several)
            }

            /// Takes all that have ended out of the list (`MPI_Testsome`, MPI 4.1 §3.7.5): their indices before, and
            /// what they give.
            pub fn test_some(several: &mut Vec<Self>) -> Vec<(usize, $ended)> {
                $crate::several::test_some(several)
            }
        }

        impl<$($parameter: $bound),+> $crate::several::Handle for $handle<$($parameter),+> {
            type Ended = $ended;

            fn wait(self) -> $ended {
                Self::wait(self)
            }

            fn test(self) -> Result<$ended, Self> {
                Self::test(self)
            }
        }
    };
}
pub(crate) use several_owned;
