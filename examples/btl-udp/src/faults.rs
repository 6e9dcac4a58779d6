//! A bad wire on purpose: datagrams that are dropped, sent twice or overtaken, as a seed says. The
//! loopback interface loses nothing until a socket's buffer is full, so tests ask for losses.

/// How bad the wire is. Of `per` datagrams, on average `dropped` are lost, `doubled` come twice and
/// `delayed` are overtaken by the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// The same seed gives the same choices, in the order in which datagrams leave a link.
    pub seed: u64,
    /// Out of how many the other numbers are; at least 1.
    pub per: u32,
    /// Datagrams lost.
    pub dropped: u32,
    /// Datagrams sent twice.
    pub doubled: u32,
    /// Datagrams that the next one overtakes.
    pub delayed: u32,
}

/// What happens to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Pass,
    Drop,
    Double,
    Delay,
}

/// The choices for one link.
#[derive(Debug)]
pub(crate) struct Wire {
    faults: Faults,
    state: u64,
    /// A datagram that waits to be overtaken.
    pub(crate) delayed: Option<Vec<u8>>,
}

impl Wire {
    pub(crate) fn new(faults: Faults, link: u32) -> Wire {
        Wire { faults, state: faults.seed ^ u64::from(link).rotate_left(32), delayed: None }
    }

    pub(crate) fn fate(&mut self) -> Fate {
        // A counter through a mixing function (Steele, Lea, Flood: SplitMix, 2014).
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let Faults { per, dropped, doubled, delayed, .. } = self.faults;
        let roll = mixed % u64::from(per.max(1));
        let (dropped, doubled, delayed) =
            (u64::from(dropped), u64::from(doubled), u64::from(delayed));
        if roll < dropped {
            Fate::Drop
        } else if roll < dropped + doubled {
            Fate::Double
        } else if roll < dropped + doubled + delayed {
            Fate::Delay
        } else {
            Fate::Pass
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fates_follow_the_numbers_and_the_seed() {
        let faults = Faults { seed: 11, per: 10, dropped: 3, doubled: 2, delayed: 1 };
        let fates = |link| -> Vec<Fate> {
            let mut wire = Wire::new(faults, link);
            (0..10_000).map(|_| wire.fate()).collect()
        };
        let first = fates(0);
        assert_eq!(first, fates(0));
        assert_ne!(first, fates(1));
        let count = |fate| first.iter().filter(|&&f| f == fate).count();
        assert!((2_700..3_300).contains(&count(Fate::Drop)));
        assert!((1_700..2_300).contains(&count(Fate::Double)));
        assert!((800..1_200).contains(&count(Fate::Delay)));
        let clean = Faults { dropped: 0, doubled: 0, delayed: 0, per: 0, ..faults };
        let mut wire = Wire::new(clean, 0);
        assert!((0..100).all(|_| wire.fate() == Fate::Pass));
    }
}
