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
    let ends = slices.drain(..).filter_map(|mut slice| Some((leader(&slice), slice.ended.take()?)));
    Some(joined(ends))
}

/// What slices with these leaders come to.
fn joined(ends: impl Iterator<Item = (u32, Ended)>) -> Ended {
    let (mut done, mut elsewhere) = (false, None);
    for (leader, ended) in ends {
        match ended {
            Ended::Failed(error) => return Ended::Failed(error),
            Ended::Done => done = true,
            Ended::Elsewhere => elsewhere = elsewhere.or(Some(leader)),
        }
    }
    match elsewhere {
        None => Ended::Done,
        Some(_) if !done => Ended::Elsewhere,
        // It was lost while it told the ranks: some went on, and buffers are written.
        Some(rank) => Ended::Failed(CollError::GaveUp { rank }),
    }
}

#[cfg(test)]
mod tests {
    use super::Ended::{Done, Elsewhere};
    use super::*;

    #[test]
    fn of_slices_that_ended_differently_the_one_to_blame_is_named() {
        let failed = || Ended::Failed(CollError::Revoked);
        let of = |ends: Vec<Ended>| format!("{:?}", joined((7..).zip(ends)));
        let says = |ended: Ended| format!("{ended:?}");
        let gave_up = |rank| says(Ended::Failed(CollError::GaveUp { rank }));
        assert_eq!(of(vec![]), says(Done));
        assert_eq!(of(vec![Done, Done]), says(Done));
        assert_eq!(of(vec![Elsewhere, Elsewhere]), says(Elsewhere));
        assert_eq!(of(vec![Elsewhere, Done]), gave_up(7));
        assert_eq!(of(vec![Done, Elsewhere]), gave_up(8));
        assert_eq!(of(vec![Done, Elsewhere, Elsewhere, Done]), gave_up(8));
        assert_eq!(of(vec![Elsewhere, failed()]), says(failed()));
        assert_eq!(of(vec![failed(), Done, Elsewhere]), says(failed()));
    }
}
