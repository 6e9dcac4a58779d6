//! From layout to layout by kernels: which, and onto a lane.
//!
//! | the two sides | kernels |
//! |---|---|
//! | one layout, whether one value or two that are equal | each word is looked up once: it lies at the same displacement of both |
//! | single words, whole, of which one side runs along its memory where the other runs across | squares of both |
//! | grids that are longer blocks in the order of addresses, whole | each side by its form in that order |
//! | pages on one side or on both | see `pages` |
//! | any | each side by its form, or both by plans where arguments have no room for a form |
//!
//! Units: bytes.

use crate::accelerator::{Lane, Spot};
use crate::form::Form;
use crate::lanes::Holds;
use crate::memory::DeviceBlock;
use crate::nest::{Nest, Walk};
use crate::plan::PlanSpec;
use crate::recent::LayoutPair;
use crate::shared::{Shared, Side, closed, launch_all};
use gapless_dtype::{Layout, WeakLayout};
use gapless_engine::{EngineError, Typed};
use gapless_kernels::Direction;
use gapless_kernels::launch::{Budget, Grid, Launches, TransferSide, crossed, same, transfer};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Ranges of fewer bytes are not worth another order.
const ORDERED_MIN: u64 = 64 << 10;

/// Pairs of layouts that are remembered.
const LAYOUT_PAIRS_MAX: usize = 32;

/// Which layouts are equal: of a sender's type that came with a message and a receiver's. Comparing lists
/// takes as long as reading them, so the answer is remembered.
#[derive(Default)]
pub(crate) struct LayoutPairs(Mutex<VecDeque<(WeakLayout, WeakLayout, bool)>>);

impl LayoutPairs {
    /// Whether two layouts are equal.
    pub(crate) fn equal(&self, one: &Layout, other: &Layout) -> bool {
        let facts = |layout: &Layout| {
            (layout.size(), layout.blocks(), layout.lb(), layout.extent(), layout.true_lb())
        };
        if one.id() == other.id() || facts(one) != facts(other) {
            return one.id() == other.id();
        }
        // Weak references keep an identity from being given to another layout.
        let ids = (one.id(), other.id());
        let known = |pairs: &VecDeque<(WeakLayout, WeakLayout, bool)>| {
            let mut pairs = pairs.iter();
            pairs.find_map(|(a, b, equal)| ((a.id(), b.id()) == ids).then_some(*equal))
        };
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(equal) = known(&lock()) {
            return equal;
        }
        let equal = one == other;
        let mut pairs = lock();
        if known(&pairs).is_none() {
            pairs.truncate(LAYOUT_PAIRS_MAX - 1);
            pairs.push_front((one.downgrade(), other.downgrade(), equal));
        }
        equal
    }
}

/// A move from layout to layout, checked.
#[derive(Clone, Copy)]
pub(crate) struct Between<'a> {
    /// The source, and where kernels find it.
    pub(crate) from: (&'a Typed, Spot),
    /// The destination, likewise.
    pub(crate) to: (&'a Typed, Spot),
    /// Bytes of both streams.
    pub(crate) range: &'a Range<u64>,
    /// Blocks at most.
    pub(crate) budget: Option<Budget>,
}

/// The loops of two grids of so many bytes, in the stream's order and in that of the destination's addresses.
pub(crate) fn by_address(source: &Grid, target: &Grid, bytes: u64) -> Option<(Nest, Nest)> {
    let nest = Nest::between(&Walk::grid(source)?, &Walk::grid(target)?)?;
    let ordered = nest.cut(0, bytes)?.pop()?.in_address_order()?;
    (ordered.size() == Some(bytes)).then_some((nest, ordered))
}

fn form(typed: &Typed) -> Form {
    Form::of(typed.layout(), typed.count())
}

impl Between<'_> {
    /// The launches of a shape that both sides have.
    fn same(&self, shape: &TransferSide) -> Option<Launches> {
        same(self.range, shape, self.from.1.place, self.to.1.place, self.budget).ok()
    }

    /// The launches of two forms, if they need no plan and there is something better than to move block after block.
    pub(crate) fn by_form(&self, layout_pairs: &LayoutPairs) -> Option<Launches> {
        let (source, target) = (closed(form(self.from.0))?, closed(form(self.to.0))?);
        let (one, other) = (self.from.0.layout(), self.to.0.layout());
        if source == target || layout_pairs.equal(one, other) {
            return self.same(&target);
        }
        let (TransferSide::Strided(source), TransferSide::Strided(target)) = (source, target)
        else {
            return None;
        };
        let whole = self.range.start == 0
            && self.range.end == self.from.0.packed_bytes()
            && self.range.end == self.to.0.packed_bytes();
        if !whole || self.range.end < ORDERED_MIN {
            return None;
        }
        let (nest, ordered) = by_address(&source, &target, self.range.end)?;
        let (source, target) = ordered.grids();
        let squares =
            crossed((&source, self.from.1.place), (&target, self.to.1.place), self.budget);
        if squares.is_some() || ordered.len <= nest.len {
            return squares;
        }
        let sides = (TransferSide::Strided(source), TransferSide::Strided(target));
        let places = (self.from.1.place, self.to.1.place);
        transfer(self.range, (&sides.0, places.0), (&sides.1, places.1), self.budget).ok()
    }

    /// The layout whose plan finds both sides, if they are one layout that takes a plan.
    pub(crate) fn one_plan(&self, layout_pairs: &LayoutPairs) -> Option<&Layout> {
        let layout = self.to.0.layout();
        let planned = matches!(form(self.to.0), Form::Listed(_) | Form::Mapped(_));
        (planned && layout_pairs.equal(self.from.0.layout(), layout)).then_some(layout)
    }

    /// The launches by a plan that both sides use.
    pub(crate) fn by_plan(&self, spec: &PlanSpec) -> Option<Launches> {
        let to = self.to.0;
        self.same(&spec.side(to.layout(), to.count(), 0))
    }

    /// The launches of a shape for each side.
    ///
    /// # Errors
    /// Arguments have no room for one of them.
    pub(crate) fn by_both(
        &self,
        source: &TransferSide,
        target: &TransferSide,
    ) -> Result<Launches, gapless_kernels::launch::Unfit> {
        let places = (self.from.1.place, self.to.1.place);
        transfer(self.range, (source, places.0), (target, places.1), self.budget)
    }
}

impl Shared {
    /// The launches of two forms, as [`by_form`](Between::by_form) says.
    fn laid_out(&self, what: &Between<'_>) -> Option<Arc<Launches>> {
        let (from, to) = (what.from, what.to);
        let key = LayoutPair::new(from.0, to.0, what.range, what.budget).placed(from.1, to.1);
        let layouts = [from.0.layout(), to.0.layout()];
        self.laid_out.get_or(key, layouts, || what.by_form(&self.layout_pairs).map(Arc::new))
    }

    /// Launches of two forms, fitted to where the source lies.
    pub(crate) fn fitted_between<'l>(
        &self,
        what: &Between<'_>,
        launches: Cow<'l, Launches>,
    ) -> Cow<'l, Launches> {
        self.fitted(launches, what.from.0.region(), what.to.0.region(), what.budget)
    }

    /// Enqueues a move from layout to layout. `chunk` is the lane's.
    ///
    /// # Safety
    /// The spots lead to the sides, which stay valid, and free of races, until the lane has passed the
    /// work.
    ///
    /// # Errors
    /// As for [`run`](Shared::run).
    pub(crate) unsafe fn transfer(
        &self,
        lane: &dyn Lane,
        chunk: &mut Option<Arc<DeviceBlock>>,
        what: Between<'_>,
        held: &mut Holds,
    ) -> Result<(), EngineError> {
        let (from, to) = (what.from, what.to);
        if from.0.as_pages().is_some() || to.0.as_pages().is_some() {
            // SAFETY: the caller's own promise.
            return unsafe { self.transfer_pages(lane, chunk, what, held) };
        }
        if let Some(launches) = self.laid_out(&what) {
            // The side whose words are looked up comes first.
            let unpacks = launches.iter().any(|one| one.kernel.direction == Direction::Unpack);
            let (first, second) = if unpacks { (to.1, from.1) } else { (from.1, to.1) };
            let launches = self.fitted_between(&what, Cow::Borrowed(&*launches));
            let pointers = [first.base, second.base, second.base, second.base];
            // SAFETY: the launches move a range of two layouts that `Typed` found inside their regions;
            // the caller vouches for the rest.
            return unsafe { launch_all(lane, &launches, &pointers) };
        }
        if let Some(layout) = what.one_plan(&self.layout_pairs) {
            let plan = self.whole_plan(lane, layout, held)?;
            if let Some(launches) = what.by_plan(plan.spec()) {
                let pointers = [from.1.base, to.1.base, plan.region(), plan.region()];
                // SAFETY: as above, by a plan of both layouts that the lane finds.
                return unsafe { launch_all(lane, &launches, &pointers) };
            }
        }
        let mut sides = [
            self.side(lane, from.0, from.1, false, held)?,
            self.side(lane, to.0, to.1, false, held)?,
        ];
        let lay_out = |sides: &[Side; 2]| what.by_both(&sides[0].shape, &sides[1].shape);
        let launches = match lay_out(&sides) {
            Ok(launches) => launches,
            Err(_) => {
                // Arguments have no room for one of the closed forms: plans do.
                sides = [
                    self.side(lane, from.0, from.1, true, held)?,
                    self.side(lane, to.0, to.1, true, held)?,
                ];
                lay_out(&sides).map_err(|reason| self.unfit(reason))?
            }
        };
        let pointers = [from.1.base, to.1.base, sides[0].plan, sides[1].plan];
        // SAFETY: the launches move a range of two layouts that `Typed` found inside their regions, by
        // plans of theirs that the lane finds; the caller vouches for the rest.
        unsafe { launch_all(lane, &launches, &pointers) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Primitive};

    fn list(last: i64) -> Layout {
        let mut places: Vec<i64> = (0..1000).map(|j| j * 7 % 1009 * 2).collect();
        places[999] = last;
        let datatype = Datatype::indexed_block(1, &places, &Primitive::Double.into());
        datatype.unwrap().commit().unwrap()
    }

    #[test]
    fn equal_layouts_are_found_and_the_answer_is_of_these_two() {
        let layout_pairs = LayoutPairs::default();
        let (one, two, other) = (list(3001), list(3001), list(3003));
        for _ in 0..3 {
            assert!(
                layout_pairs.equal(&one, &one)
                    && layout_pairs.equal(&one, &two)
                    && layout_pairs.equal(&two, &one)
            );
            assert!(!layout_pairs.equal(&one, &other) && !layout_pairs.equal(&other, &two));
        }
        // What is known of layouts that are gone is not said of those that come after them.
        for round in 0..200 {
            let (a, b) = (list(3001 + round % 5), list(3001 + round % 3));
            assert_eq!(layout_pairs.equal(&a, &b), a == b, "round {round}");
        }
        assert!(layout_pairs.0.lock().unwrap().len() <= LAYOUT_PAIRS_MAX);
    }
}
