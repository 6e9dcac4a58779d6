//! Numbers of messages within one direction of a link. They start anywhere and wrap around; two of
//! them compare as long as they are less than 2³¹ apart, and windows are at most
//! [`WINDOW_MAX`] long.

/// The most messages in flight in one direction of a link: what a selective acknowledgement can
/// speak of.
pub(crate) const WINDOW_MAX: u32 = 64;

/// The number of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seq(pub(crate) u32);

impl Seq {
    /// `n` messages later.
    pub(crate) fn plus(self, n: u32) -> Seq {
        Seq(self.0.wrapping_add(n))
    }

    /// How many messages after `earlier` this one comes; negative if it comes before.
    pub(crate) fn since(self, earlier: Seq) -> i32 {
        self.0.wrapping_sub(earlier.0).cast_signed()
    }

    /// How many messages after `start`, if that is 0 to `max`.
    pub(crate) fn within(self, start: Seq, max: u32) -> Option<u32> {
        let distance = u32::try_from(self.since(start)).ok()?;
        (distance <= max).then_some(distance)
    }

    /// Whether it comes before `other`.
    pub(crate) fn is_before(self, other: Seq) -> bool {
        self.since(other) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_compare_across_the_wrap() {
        let before = Seq(u32::MAX - 1);
        let after = before.plus(3);
        assert_eq!(after, Seq(1));
        assert_eq!(after.since(before), 3);
        assert_eq!(before.since(after), -3);
        assert!(before.is_before(after) && !after.is_before(before) && !after.is_before(after));
        assert_eq!(after.within(before, 3), Some(3));
        assert_eq!(after.within(before, 2), None);
        assert_eq!(before.within(after, WINDOW_MAX), None);
        assert_eq!(before.within(before, 0), Some(0));
    }

    #[test]
    fn half_the_circle_away_is_never_inside_a_window() {
        for start in [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
            for far in [WINDOW_MAX + 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
                assert_eq!(Seq(start).plus(far).within(Seq(start), WINDOW_MAX), None);
            }
        }
    }
}
