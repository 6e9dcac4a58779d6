//! What a leader has seen and ordered in one call, and when: for measuring and for finding out what a call waited for.

use std::fmt;

use crate::hyperq::{Act, Event, HyperQStep};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The leader has begun.
    Begun,
    /// A policy was told of this.
    Event(HyperQStep, Event),
    /// It wanted this.
    Act(HyperQStep, Act),
    /// All is in the leader's buffer.
    Gathered,
    /// And combined.
    Combined,
    /// And with those who get it.
    Scattered,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Seen::Begun => write!(f, "begun"),
            Seen::Event(_, Event::Arrived(rank)) => write!(f, "{rank} arrived"),
            Seen::Event(_, Event::Completed(rank, kind)) => write!(f, "{rank} ended {kind}"),
            Seen::Act(_, Act::Issue(rank, kind)) => write!(f, "{rank} begins {kind}"),
            Seen::Act(_, Act::Drop(rank)) => write!(f, "{rank} stops"),
            Seen::Gathered => write!(f, "gathered"),
            Seen::Combined => write!(f, "combined"),
            Seen::Scattered => write!(f, "scattered"),
        }
    }
}

/// What happened in one call, in its order, with nanoseconds of a clock that goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Moments(Vec<(u64, Seen)>);

impl Moments {
    pub(super) fn note(&mut self, now_ns: u64, seen: Seen) {
        self.0.push((now_ns, seen));
    }
}

/// Microseconds since the first, and what it was.
impl fmt::Display for Moments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let begin = self.0.first().map_or(0, |first| first.0);
        for (at, (ns, seen)) in self.0.iter().enumerate() {
            let tenths = ns.saturating_sub(begin) / 100;
            let between = if at > 0 { ", " } else { "" };
            write!(f, "{between}{}.{} {seen}", tenths / 10, tenths % 10)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hyperq::Kind;

    #[test]
    fn they_are_told_in_microseconds_from_the_first() {
        let mut moments = Moments::default();
        moments.note(5_000, Seen::Begun);
        moments.note(5_999, Seen::Event(HyperQStep::Gather, Event::Arrived(1)));
        moments.note(6_100, Seen::Act(HyperQStep::Gather, Act::Issue(1, Kind::Ipc)));
        moments.note(17_000, Seen::Gathered);
        let text = moments.to_string();
        assert_eq!(text, "0.0 begun, 0.9 1 arrived, 1.1 1 begins IPC, 12.0 gathered");
    }
}
