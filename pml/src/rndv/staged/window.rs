//! Which fragments of a staged message are in flight: at most as many as the ring has places, each once.

use crate::wire::DEPTH_MAX;

/// Fragments from the first that has not ended on. A fragment lies in the place of its number modulo
/// the depth, so the window is what keeps two from lying in one place.
#[derive(Debug)]
pub(crate) struct Window {
    depth: u32,
    total: u64,
    /// All fragments before it have ended.
    first: u64,
    /// Bit `i`: fragment `first + i` was started.
    begun: u64,
    /// Bit `i`: it has ended.
    ended: u64,
}

impl Window {
    /// For `total` fragments, 1 to [`DEPTH_MAX`] at once.
    pub(crate) fn new(total: u64, depth: u32) -> Window {
        Window { depth: depth.clamp(1, DEPTH_MAX), total, first: 0, begun: 0, ended: 0 }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// One past the last fragment that has a place. It may be put there once those before the window have ended.
    pub(crate) fn reach(&self) -> u64 {
        self.first.saturating_add(u64::from(self.depth)).min(self.total)
    }

    /// The next fragment, for callers that start them in order.
    pub(crate) fn next(&self) -> u64 {
        self.first + u64::from(u64::BITS - self.begun.leading_zeros())
    }

    /// Notes that a fragment was started.
    ///
    /// # Errors
    /// It has no place, or was started before.
    pub(crate) fn begin(&mut self, index: u64) -> Result<(), String> {
        if !(self.first..self.reach()).contains(&index) {
            return Err(format!(
                "fragment {index} where {} to {} are due",
                self.first,
                self.reach()
            ));
        }
        let bit = 1 << (index - self.first);
        if self.begun & bit != 0 {
            return Err(format!("fragment {index}, which came before"));
        }
        self.begun |= bit;
        Ok(())
    }

    /// Notes that a started fragment has ended.
    pub(crate) fn end(&mut self, index: u64) {
        debug_assert!((self.first..self.reach()).contains(&index), "begun before");
        self.ended |= 1 << (index - self.first);
        let done = self.ended.trailing_ones();
        self.first += u64::from(done);
        self.ended = self.ended.checked_shr(done).unwrap_or(0);
        self.begun = self.begun.checked_shr(done).unwrap_or(0);
    }

    /// Fragments that were started and have not ended.
    pub(crate) fn in_work(&self) -> u32 {
        (self.begun & !self.ended).count_ones()
    }

    /// Whether nothing was started yet.
    pub(crate) fn is_fresh(&self) -> bool {
        self.next() == 0
    }

    /// Whether all have ended.
    pub(crate) fn complete(&self) -> bool {
        self.first == self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_end_in_any_order_and_places_are_kept_apart() {
        for depth in [1, 2, 3, 63, 64, 99] {
            let total = 1000;
            let mut window = Window::new(total, depth);
            let mut places = vec![None; window.depth() as usize];
            let mut working: Vec<u64> = Vec::new();
            let mut turn = 0usize;
            while !window.complete() {
                while window.next() < window.reach() {
                    let index = window.next();
                    window.begin(index).unwrap();
                    assert!(window.begin(index).is_err());
                    let place = usize::try_from(index).unwrap() % places.len();
                    assert_eq!(places[place].replace(index), None);
                    working.push(index);
                }
                assert_eq!(window.in_work() as usize, working.len());
                turn += 7;
                let index = working.swap_remove(turn % working.len());
                let place = usize::try_from(index).unwrap() % places.len();
                assert_eq!(places[place].take(), Some(index));
                window.end(index);
            }
            assert_eq!((window.in_work(), window.next(), window.reach()), (0, total, total));
            assert!(window.begin(total).is_err());
        }
    }

    #[test]
    fn what_has_no_place_is_refused() {
        let mut window = Window::new(5, 2);
        assert!(window.is_fresh());
        assert!(window.begin(2).is_err() && window.begin(u64::MAX).is_err());
        window.begin(1).unwrap();
        assert!(!window.is_fresh());
        window.end(1);
        assert!(window.begin(2).is_err(), "0 is still in its place");
        window.begin(0).unwrap();
        window.end(0);
        assert!(window.begin(1).is_err() && window.begin(3).is_ok());
    }
}
