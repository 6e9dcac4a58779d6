//! What ranks of one host do together: by puts into memory that they share, signals, and waits.

/// What ranks of one host do together, through memory that they share. One of them leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Together {
    /// All wait for all.
    Meet,
    /// What the leader reads, the others write.
    Bcast,
    /// What all read is combined in the order of the ranks, and the leader writes it.
    Reduce,
    /// What all read is written by the leader, in the order of the ranks, in pieces of one length. Its own lies there
    /// already.
    Gather,
    /// What the leader reads is cut into pieces of one length, in the order of the ranks; the others write theirs. Its
    /// own stays where it is.
    Scatter,
}

/// What one rank does of a [`Together`], in this order: it puts what it reads into the shared memory, signals, waits,
/// and takes what it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharePart {
    /// Whether it puts what it reads there.
    pub puts: bool,
    /// To whom it says that it has come so far.
    pub signals: Whom,
    /// For whose signal it waits.
    pub waits: Whom,
}

/// Which ranks of a subgroup a signal goes to or is awaited of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// None of them.
    Nobody,
    /// The leader.
    Leader,
    /// All of them.
    Others,
}

impl Together {
    /// All of it.
    pub const ALL: [Self; 5] = [Self::Meet, Self::Bcast, Self::Reduce, Self::Gather, Self::Scatter];

    /// The part of the leader, or of another rank.
    #[must_use]
    pub fn part(self, leads: bool) -> SharePart {
        use Whom::{Leader, Nobody, Others};
        let part = |puts, signals, waits| SharePart { puts, signals, waits };
        match (self, leads) {
            (Self::Meet, _) => part(false, Others, Others),
            (Self::Bcast | Self::Scatter, true) => part(true, Others, Nobody),
            (Self::Bcast | Self::Scatter, false) => part(false, Nobody, Leader),
            // What a leader has stays where it is.
            (Self::Reduce | Self::Gather, true) => part(false, Nobody, Others),
            (Self::Reduce | Self::Gather, false) => part(true, Leader, Nobody),
        }
    }
}

impl Whom {
    /// Which ranks of a subgroup they are, for rank `me`.
    pub fn of(
        self,
        subgroup: &[usize],
        lead: usize,
        me: usize,
    ) -> impl Iterator<Item = usize> + '_ {
        subgroup.iter().copied().filter(move |rank| match self {
            Self::Nobody => false,
            Self::Leader => *rank == lead,
            Self::Others => *rank != me,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_is_waited_for_and_every_wait_has_one() {
        let (subgroup, lead) = ([2, 3, 5, 8], 3);
        for what in Together::ALL {
            let ranks = |me: usize, whom: fn(SharePart) -> Whom| {
                let whom = whom(what.part(me == lead));
                whom.of(&subgroup, lead, me).collect::<Vec<_>>()
            };
            for me in subgroup {
                for other in subgroup.into_iter().filter(|other| *other != me) {
                    let signals = ranks(me, |part| part.signals).contains(&other);
                    let waits = ranks(other, |part| part.waits).contains(&me);
                    assert_eq!(signals, waits, "{what:?}: {me} to {other}");
                }
            }
        }
    }
}
