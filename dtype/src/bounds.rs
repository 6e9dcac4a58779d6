//! Bounds of a typemap: where its data lies, its lower and upper bound, its extent. Bytes.
//!
//! MPI 4.1 §5.1.6–5.1.8 defines bounds on the typemap, that is on the flat sequence of
//! (basic type, displacement) entries, with two kinds of conceptual entries that occupy nothing,
//! `lb_marker` and `ub_marker`, which `resized`, `subarray` and `darray` put in:
//!
//! - `true_lb` = least displacement of a basic type; `true_ub` = greatest displacement + size.
//! - `lb` = least `lb_marker`, if the typemap has any; else `true_lb`.
//! - `ub` = greatest `ub_marker`, if the typemap has any; else `true_ub` + ε, where ε rounds
//!   `ub − lb` up to a multiple of the strictest alignment of the basic types. This holds whatever
//!   the constructor was; for all but `structure`, `hvector` and `h…indexed` ε is mostly zero.
//! - Replication copies markers like any entry, so they are *sticky*: a structure with a resized
//!   member takes its bounds from the markers alone, and the other members do not count.
//! - An empty typemap has all bounds zero. Pieces of count zero add no entries and no markers.
//!
//! Because these are minima and maxima of displacements, a node needs two spans and an alignment,
//! not the typemap. The rule looks at basic types only: padding that a nested type would have by
//! itself does not count inside a larger one.

/// A range of displacements in bytes, `lo..hi`. For markers `hi < lo` is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) lo: i64,
    pub(crate) hi: i64,
}

impl Span {
    fn union(self, other: Span) -> Span {
        Span { lo: self.lo.min(other.lo), hi: self.hi.max(other.hi) }
    }

    fn shifted(self, by: Shifts) -> Option<Span> {
        Some(Span { lo: self.lo.checked_add(by.least)?, hi: self.hi.checked_add(by.greatest)? })
    }
}

/// The least and greatest displacement, in bytes, at which copies of a type are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shifts {
    pub(crate) least: i64,
    pub(crate) greatest: i64,
}

impl Shifts {
    /// `None` if a displacement does not fit in 64 bits.
    pub(crate) fn new(least: i128, greatest: i128) -> Option<Shifts> {
        Some(Shifts { least: i64::try_from(least).ok()?, greatest: i64::try_from(greatest).ok()? })
    }

    pub(crate) fn union(self, other: Shifts) -> Shifts {
        Shifts { least: self.least.min(other.least), greatest: self.greatest.max(other.greatest) }
    }
}

/// What a typemap's bounds depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Span of the basic types; `None` if there are none.
    pub(crate) data: Option<Span>,
    /// Least `lb_marker` and greatest `ub_marker`; they come in pairs.
    pub(crate) markers: Option<Span>,
    /// Strictest alignment of the basic types; 1 if there are none.
    pub(crate) alignment: u64,
}

impl Bounds {
    pub(crate) const EMPTY: Bounds = Bounds { data: None, markers: None, alignment: 1 };

    /// Bounds of the typemap placed at all of `shifts`; `None` on overflow.
    pub(crate) fn placed(self, shifts: Shifts) -> Option<Bounds> {
        let place = |span: Option<Span>| match span {
            Some(span) => span.shifted(shifts).map(Some),
            None => Some(None),
        };
        Some(Bounds {
            data: place(self.data)?,
            markers: place(self.markers)?,
            alignment: self.alignment,
        })
    }

    /// Bounds of two typemaps one after the other.
    pub(crate) fn union(self, other: Bounds) -> Bounds {
        let both = |a: Option<Span>, b: Option<Span>| match (a, b) {
            (Some(a), Some(b)) => Some(a.union(b)),
            (a, b) => a.or(b),
        };
        Bounds {
            data: both(self.data, other.data),
            markers: both(self.markers, other.markers),
            alignment: self.alignment.max(other.alignment),
        }
    }

    /// The same entries with new markers in place of any old ones.
    pub(crate) fn with_markers(self, markers: Span) -> Bounds {
        Bounds { markers: Some(markers), ..self }
    }

    /// `(lb, ub)`; `None` if a bound, the extent or the true extent overflows 64 bits.
    pub(crate) fn lb_ub(self) -> Option<Span> {
        let data = self.data.unwrap_or(Span { lo: 0, hi: 0 });
        data.hi.checked_sub(data.lo)?;
        let span = match self.markers {
            Some(markers) => markers,
            None => Span { lo: data.lo, hi: self.padded(data)? },
        };
        span.hi.checked_sub(span.lo)?;
        Some(span)
    }

    /// Upper bound of `data` with ε added.
    fn padded(self, data: Span) -> Option<i64> {
        let extent = data.hi.checked_sub(data.lo)?.unsigned_abs();
        let padded = extent.checked_next_multiple_of(self.alignment)?;
        data.lo.checked_add(i64::try_from(padded).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn double_at(at: i64) -> Bounds {
        Bounds { data: Some(Span { lo: at, hi: at + 8 }), markers: None, alignment: 8 }
    }

    #[test]
    fn epsilon_rounds_the_extent_not_the_bound() {
        let char_at_nine =
            Bounds { data: Some(Span { lo: 9, hi: 10 }), markers: None, alignment: 1 };
        let both = double_at(1).union(char_at_nine);
        assert_eq!(both.lb_ub(), Some(Span { lo: 1, hi: 17 }));
    }

    #[test]
    fn markers_win_over_data_and_add_up() {
        let resized = double_at(0).with_markers(Span { lo: -4, hi: 4 });
        let far = resized.union(double_at(100));
        assert_eq!(far.lb_ub(), Some(Span { lo: -4, hi: 4 }));
        let twice = resized.placed(Shifts::new(0, 16).unwrap()).unwrap();
        assert_eq!(twice.lb_ub(), Some(Span { lo: -4, hi: 20 }));
    }

    #[test]
    fn empty_is_zero() {
        assert_eq!(Bounds::EMPTY.lb_ub(), Some(Span { lo: 0, hi: 0 }));
    }

    #[test]
    fn overflow_is_none() {
        let wide = Bounds { data: Some(Span { lo: i64::MIN, hi: 1 }), markers: None, alignment: 1 };
        assert_eq!(wide.lb_ub(), None);
        let high = double_at(i64::MAX - 9)
            .union(Bounds { data: Some(Span { lo: i64::MAX - 9, hi: i64::MAX }), ..Bounds::EMPTY });
        assert_eq!(high.lb_ub(), None, "epsilon overflows");
        assert_eq!(double_at(0).placed(Shifts { least: 0, greatest: i64::MAX }), None);
        assert_eq!(Shifts::new(0, 1 << 63), None);
    }
}
