//! Waiting for several requests that own their buffers (MPI 4.1 §3.7.5).

use super::{OwnedBuffer, OwnedRequest};
use crate::error::Error;
use gapless_pml::Status;

/// A buffer, and how its operation went.
type Ended<B> = (B, Result<Status, Error>);

impl<B: OwnedBuffer> OwnedRequest<B> {
    /// Waits for all of them (`MPI_Waitall`); gives their buffers and how they went, in their order.
    pub fn wait_all(requests: impl IntoIterator<Item = OwnedRequest<B>>) -> Vec<Ended<B>> {
        requests.into_iter().map(OwnedRequest::wait).collect()
    }

    /// Waits for the first of them to end, and takes it out of the list (`MPI_Waitany`): its index
    /// before, and what it gives. `None` if the list is empty. All are of one world.
    pub fn wait_any(requests: &mut Vec<OwnedRequest<B>>) -> Option<(usize, Ended<B>)> {
        let shared = &requests.first()?.shared;
        let found = shared.wait_until(|state| {
            requests.iter().position(|request| state.pml.is_done(request.id) != Ok(false))
        });
        // After a panic elsewhere, or the world's end, every request counts as ended; waiting says
        // why.
        let index = found.unwrap_or(0);
        Some((index, requests.remove(index).wait()))
    }

    /// Waits until at least one of them has ended, and takes all that have out of the list
    /// (`MPI_Waitsome`): their indices before, and what they give. Empty if the list is.
    pub fn wait_some(requests: &mut Vec<OwnedRequest<B>>) -> Vec<(usize, Ended<B>)> {
        let Some((first, ended)) = OwnedRequest::wait_any(requests) else { return Vec::new() };
        let mut all = vec![(first, ended)];
        // Those after it have moved up by one.
        let more = OwnedRequest::test_some(requests).into_iter();
        all.extend(more.map(|(at, ended)| (at + usize::from(at >= first), ended)));
        all.sort_by_key(|(index, _)| *index);
        all
    }

    /// What all of them give, in their order, if all have ended (`MPI_Testall`).
    ///
    /// # Errors
    /// Some are still in flight: all of them again.
    pub fn test_all(requests: Vec<OwnedRequest<B>>) -> Result<Vec<Ended<B>>, Vec<OwnedRequest<B>>> {
        // After a panic elsewhere every request counts as ended; waiting for it says why.
        if requests.iter().all(|request| request.is_done().unwrap_or(true)) {
            return Ok(OwnedRequest::wait_all(requests));
        }
        Err(requests)
    }

    /// Takes one that has ended out of the list, if there is any (`MPI_Testany`): its index before,
    /// and what it gives.
    pub fn test_any(requests: &mut Vec<OwnedRequest<B>>) -> Option<(usize, Ended<B>)> {
        let index = requests.iter().position(|request| request.is_done().unwrap_or(true))?;
        Some((index, requests.remove(index).wait()))
    }

    /// Takes all that have ended out of the list (`MPI_Testsome`): their indices before, and what they
    /// give.
    pub fn test_some(requests: &mut Vec<OwnedRequest<B>>) -> Vec<(usize, Ended<B>)> {
        let mut ended = Vec::new();
        let mut rest = Vec::new();
        for (index, request) in requests.drain(..).enumerate() {
            match request.test() {
                Ok(over) => ended.push((index, over)),
                Err(request) => rest.push(request),
            }
        }
        *requests = rest;
        ended
    }
}
