//! Which process of a failed job is named: the first that failed, but before those that ended in order, one that was
//! killed. Whoever needs a killed process fails as well, and may be seen before it: the system closes a process's
//! sockets before it tells the parent. Likewise one because of which another left that failed.

use super::End;
use rustix::process::Signal;

/// The process that is named so far.
#[derive(Debug, Default)]
pub(super) struct Blame {
    named: Option<(u32, End)>,
}

impl Blame {
    /// Processes have failed, seen at the same time, in this order. Of those behind the first time, some were asked to
    /// end (`SIGTERM`), so only `SIGKILL` tells anything, and only if the launcher has not sent it (`we_kill`); or the
    /// end of one because of which the first left (`cause`).
    pub(super) fn add(
        &mut self,
        failed: &[(u32, End)],
        we_kill: bool,
        cause: impl Fn(u32) -> Option<u32>,
    ) {
        let killed = |(_, end): &&(u32, End)| matches!(end, End::Signal(_));
        let first = |(rank, _): &&(u32, End)| cause(*rank).is_none_or(|cause| cause == *rank);
        let found = match self.named {
            None => failed.iter().find(killed).or(failed.iter().find(first)).or(failed.first()),
            Some((_, End::Signal(_))) => None,
            Some(_) if we_kill => None,
            Some((named, _)) => {
                let murdered = End::Signal(Signal::KILL.as_raw());
                let is_cause = |(rank, end): &&(u32, End)| {
                    *rank != named && cause(named) == Some(*rank) && !matches!(end, End::Signal(_))
                };
                let found = failed.iter().find(|(_, end)| *end == murdered);
                found.or(failed.iter().find(is_cause))
            }
        };
        self.named = found.copied().or(self.named);
    }

    /// Who, and how it ended.
    pub(super) fn named(&self) -> Option<(u32, End)> {
        self.named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who is named after these rounds.
    fn named(rounds: &[&[(u32, End)]], we_kill: bool) -> Option<(u32, End)> {
        named_for(rounds, we_kill, |_| None)
    }

    fn named_for(
        rounds: &[&[(u32, End)]],
        we_kill: bool,
        cause: impl Fn(u32) -> Option<u32>,
    ) -> Option<(u32, End)> {
        let mut blame = Blame::default();
        rounds.iter().for_each(|round| blame.add(round, we_kill, &cause));
        blame.named()
    }

    #[test]
    fn who_left_because_of_another_comes_after_it() {
        let because_of_2 = |rank| [Some(2), None, Some(2)][rank as usize];
        let (deserted, panicked, late) =
            ((0, End::Deserted), (2, End::Code(101)), (1, End::Code(1)));
        let named = |rounds: &[&[(u32, End)]]| named_for(rounds, false, because_of_2);
        assert_eq!(named(&[&[deserted, panicked]]), Some(panicked));
        assert_eq!(named(&[&[deserted], &[panicked]]), Some(panicked));
        assert_eq!(named(&[&[deserted], &[late]]), Some(deserted));
        assert_eq!(named(&[&[late], &[panicked]]), Some(late));
        // It was asked to end.
        assert_eq!(named(&[&[deserted], &[(2, End::Signal(15))]]), Some(deserted));
    }

    #[test]
    fn what_was_killed_comes_before_what_failed_for_it() {
        let (lost, kill, term) = ((0, End::Code(1)), (2, End::Signal(9)), (3, End::Signal(15)));
        let crash = (4, End::Signal(11));
        assert_eq!(named(&[], false), None);
        assert_eq!(named(&[&[lost, (1, End::Code(2))]], false), Some(lost));
        assert_eq!(named(&[&[lost, crash, kill]], false), Some(crash));
        assert_eq!(named(&[&[(1, End::Aborted(3)), kill]], false), Some(kill));
        // Seen later; what was asked to end has a right to.
        assert_eq!(named(&[&[lost], &[term], &[kill]], false), Some(kill));
        assert_eq!(named(&[&[lost], &[crash]], false), Some(lost));
        assert_eq!(named(&[&[crash], &[kill]], false), Some(crash));
        // The launcher's own.
        assert_eq!(named(&[&[lost], &[kill]], true), Some(lost));
    }
}
