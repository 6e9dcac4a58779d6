//! A call of several leaders: each has a slice of the data, and a rank has a part in each slice. It leads one of them at
//! most, and follows in the others.
//!
//! Slices are independent, but for one thing: what is done by other means is done so as a whole, and in place that must be
//! known before anything was written. So no leader goes on from its gather before all leaders are so far. One that goes
//! another way, or fails, before that takes the others with it.

use super::{CollError, Ended, Part, Role};

/// A rank's part in one slice.
#[derive(Debug)]
pub(super) struct Slice {
    pub(super) part: Part,
    pub(super) role: Role,
    pub(super) ended: Option<Ended>,
}

/// What a leader knows of the others' slices.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Others {
    /// Something is not gathered.
    Gathering,
    /// All is.
    Gathered,
    /// One of them goes another way.
    Elsewhere,
    /// One of them has failed.
    Failed(CollError),
}

/// What the leader of a slice knows of the others.
pub(super) fn others(slices: &[Slice], own: usize) -> Others {
    let mut all = Others::Gathered;
    for (_, slice) in slices.iter().enumerate().filter(|(at, _)| *at != own) {
        match (&slice.ended, &slice.role) {
            (Some(Ended::Failed(error)), _) => return Others::Failed(error.clone()),
            (Some(Ended::Elsewhere), _) => all = Others::Elsewhere,
            (Some(Ended::Done), _) => {}
            (None, Role::Follows(following)) if following.knows_gathered() => {}
            (None, _) if all == Others::Gathered => all = Others::Gathering,
            (None, _) => {}
        }
    }
    all
}

/// How the call has ended, once all slices have.
pub(super) fn whole(slices: &mut Vec<Slice>) -> Option<Ended> {
    if !slices.iter().all(|slice| slice.ended.is_some()) {
        return None;
    }
    let leader = |slice: &Slice| u32::try_from(slice.part.frame.leader).unwrap_or(u32::MAX);
    let mut all: Option<Ended> = None;
    for mut slice in slices.drain(..) {
        let rank = leader(&slice);
        all = Some(match (all, slice.ended.take().unwrap_or(Ended::Done)) {
            (None, ended) => ended,
            (Some(Ended::Failed(error)), _) | (Some(_), Ended::Failed(error)) => {
                Ended::Failed(error)
            }
            (Some(Ended::Done), Ended::Done) => Ended::Done,
            (Some(Ended::Elsewhere), Ended::Elsewhere) => Ended::Elsewhere,
            // A leader was lost while it told the ranks: some went on, and buffers are written.
            (Some(_), _) => Ended::Failed(CollError::GaveUp { rank }),
        });
    }
    Some(all.unwrap_or(Ended::Done))
}
