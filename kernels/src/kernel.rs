//! Which kernel: a family, a direction, a word width. Together they are its name in every image.

use std::fmt;

/// Bytes of a word: what a kernel loads and stores at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Width {
    /// 1 byte: goes everywhere.
    W1,
    /// 2 bytes.
    W2,
    /// 4 bytes.
    W4,
    /// 8 bytes.
    W8,
    /// 16 bytes.
    W16,
}

impl Width {
    /// All of them, narrowest first.
    pub const ALL: [Width; 5] = [Width::W1, Width::W2, Width::W4, Width::W8, Width::W16];

    /// The widest that divides every number whose bits are set in `bits`: addresses, strides and lengths
    /// or-ed together.
    #[must_use]
    pub fn dividing(bits: u64) -> Width {
        match bits.trailing_zeros() {
            0 => Width::W1,
            1 => Width::W2,
            2 => Width::W4,
            3 => Width::W8,
            _ => Width::W16,
        }
    }

    /// Bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        1 << self.log2()
    }

    /// The exponent: the width is 2 to it.
    #[must_use]
    pub fn log2(self) -> u32 {
        self as u32
    }

    /// Words that one thread moves in a tile (`ITEMS` in `strips.cl-cu`).
    #[must_use]
    pub fn items(self) -> u32 {
        if self == Width::W16 { 4 } else { 8 }
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the typed side to the packed one.
    Pack,
    /// From the packed side to the typed one.
    Unpack,
}

/// How the typed side is described (see the crate's table).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// No gaps.
    Copy,
    /// Short blocks at one stride.
    Strided1,
    /// Short blocks on a grid.
    Strided,
    /// Long blocks on a grid.
    Rows,
    /// Runs whose lengths advance by a constant.
    Affine,
    /// The same, mostly short ones.
    AffineShort,
    /// Equal blocks at listed displacements.
    Listed,
    /// Any blocks, by a plan.
    Mapped,
    /// Words whose stream runs across the memory's order.
    Transposed,
    /// From layout to layout; has no direction.
    Transfer,
    /// Pages at listed indices, on one side or on both; has no direction.
    Pages,
    /// Many requests, each with a typed side of its own.
    Fused,
    /// [`Family::Strided1`] on both sides; has no direction, like all that follow.
    SameStrided1,
    /// [`Family::Strided`] on both sides.
    SameStrided,
    /// [`Family::Rows`] on both sides.
    SameRows,
    /// [`Family::Affine`] on both sides.
    SameAffine,
    /// [`Family::AffineShort`] on both sides.
    SameAffineShort,
    /// [`Family::Listed`] on both sides, with one list.
    SameListed,
    /// [`Family::Mapped`] on both sides, with one plan.
    SameMapped,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 19] = [
        Family::Copy,
        Family::Strided1,
        Family::Strided,
        Family::Rows,
        Family::Affine,
        Family::AffineShort,
        Family::Listed,
        Family::Mapped,
        Family::Transposed,
        Family::Transfer,
        Family::Pages,
        Family::Fused,
        Family::SameStrided1,
        Family::SameStrided,
        Family::SameRows,
        Family::SameAffine,
        Family::SameAffineShort,
        Family::SameListed,
        Family::SameMapped,
    ];

    /// Its name in the sources.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Family::Copy => "copy",
            Family::Strided1 => "strided1",
            Family::Strided => "strided",
            Family::Rows => "rows",
            Family::Affine => "affine",
            Family::AffineShort => "affine_short",
            Family::Listed => "listed",
            Family::Mapped => "mapped",
            Family::Transposed => "transposed",
            Family::Transfer => "transfer",
            Family::Pages => "pages",
            Family::Fused => "fused",
            Family::SameStrided1 => "same_strided1",
            Family::SameStrided => "same_strided",
            Family::SameRows => "same_rows",
            Family::SameAffine => "same_affine",
            Family::SameAffineShort => "same_affine_short",
            Family::SameListed => "same_listed",
            Family::SameMapped => "same_mapped",
        }
    }

    /// Whether it moves between two memories with the same layout: the source's pointer comes first.
    #[must_use]
    pub fn is_same(self) -> bool {
        self.one_sided() != self
    }

    /// Whether it has kernels for both directions.
    fn is_directed(self) -> bool {
        !matches!(self, Family::Transfer | Family::Pages) && !self.is_same()
    }

    /// The family that moves to and from a packed side with the same description.
    fn one_sided(self) -> Family {
        match self {
            Family::SameStrided1 => Family::Strided1,
            Family::SameStrided => Family::Strided,
            Family::SameRows => Family::Rows,
            Family::SameAffine => Family::Affine,
            Family::SameAffineShort => Family::AffineShort,
            Family::SameListed => Family::Listed,
            Family::SameMapped => Family::Mapped,
            other => other,
        }
    }

    /// The family that moves between memories of the same layout; of what has no gaps, there is but one.
    pub(crate) fn same(self) -> Option<Family> {
        if self == Family::Copy {
            return Some(self);
        }
        Family::ALL.into_iter().find(|other| other.is_same() && other.one_sided() == self)
    }

    /// How many plan pointers it takes after the typed and the packed one; of [`Family::Pages`] the lists of both
    /// sides, and what bad indices are reported to.
    #[must_use]
    pub fn plans(self) -> usize {
        match self.one_sided() {
            Family::Listed | Family::Mapped | Family::Fused => 1,
            Family::Transfer => 2,
            Family::Pages => 3,
            _ => 0,
        }
    }

    /// Whether its arguments are too large for OpenCL's parameters, so that there the last parameter is
    /// a buffer that holds them.
    #[must_use]
    pub fn tabled(self) -> bool {
        self == Family::Fused
    }

    /// Threads a block may have at most (`__launch_bounds__`), where blocks loop or where they do not.
    #[must_use]
    pub fn threads_max(self, few: bool) -> u32 {
        match self.one_sided() {
            _ if !few => 256,
            Family::Copy | Family::Strided1 | Family::Rows | Family::Affine => 1024,
            Family::Transposed => 256,
            _ => 512,
        }
    }

    /// Threads of a block where there is plenty to do: what was fastest on an H200.
    #[must_use]
    pub fn threads(self) -> u32 {
        match self.one_sided() {
            Family::Copy | Family::Rows | Family::Affine | Family::Mapped | Family::Pages => 64,
            Family::AffineShort | Family::Listed | Family::Strided1 => 128,
            _ => 256,
        }
    }

    /// Whether its threads move half as many words where there is little to do.
    pub(crate) fn halves(self) -> bool {
        matches!(self.one_sided(), Family::Strided | Family::Mapped | Family::Affine)
    }

    /// Words that one thread moves in a tile, where blocks loop (`few`) or where they do not: `LONG` and
    /// `OF_…` in `strips.cl-cu`. What was fastest on an H200. Unpacking, [`Family::Affine`] takes more where
    /// blocks loop (`launch/affine.rs`).
    #[must_use]
    pub fn items(self, width: Width, few: bool) -> u32 {
        match (self.one_sided(), width) {
            (Family::Transposed | Family::Transfer, _) => 4,
            (Family::Copy | Family::Rows | Family::Pages, width) if few && width != Width::W1 => {
                2 * width.items()
            }
            (Family::Affine | Family::Strided1 | Family::Listed, Width::W8) if !few => 4,
            (Family::Affine | Family::Fused, Width::W16) | (Family::Fused, Width::W8) if !few => 2,
            (Family::Strided1, Width::W16) if !few => 1,
            _ => width.items(),
        }
    }
}

/// One kernel of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// How the typed side is described.
    pub family: Family,
    /// Which way; [`Direction::Pack`] of those that have none.
    pub direction: Direction,
    /// Bytes of a word.
    pub width: Width,
    /// Made for fewer blocks than tiles: blocks loop.
    pub few: bool,
}

impl Kernel {
    /// Programs of one width each that OpenCL's kernels are built as, so that only what is used is compiled.
    pub const PROGRAMS: usize = 3 * Width::ALL.len();

    /// Which of them it is part of.
    #[must_use]
    pub fn program(self) -> usize {
        let of = if self.family.is_same() { 2 } else { self.direction as usize };
        of * Width::ALL.len() + self.width as usize
    }

    /// Every kernel there is.
    pub fn all() -> impl Iterator<Item = Kernel> {
        let both = [Direction::Pack, Direction::Unpack];
        let forms = both.into_iter().flat_map(|direction| [(direction, false), (direction, true)]);
        forms.flat_map(|(direction, few)| {
            Width::ALL.into_iter().flat_map(move |width| {
                Family::ALL
                    .into_iter()
                    .filter(move |f| f.is_directed() || direction == Direction::Pack)
                    .map(move |family| Kernel { family, direction, width, few })
            })
        })
    }
}

/// Its name in the images.
impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.family.name();
        let width = self.width.bytes();
        let form = if self.few { "_few" } else { "" };
        let verb = match self.direction {
            _ if !self.family.is_directed() => "",
            Direction::Pack => "pack_",
            Direction::Unpack => "unpack_",
        };
        write!(f, "{verb}{name}_w{width}{form}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn widths_divide() {
        assert_eq!(Width::dividing(0), Width::W16);
        assert_eq!(Width::dividing(0x7001), Width::W1);
        assert_eq!(Width::dividing(24 | 4096), Width::W8);
        assert_eq!(Width::dividing(32 | 64), Width::W16);
        for width in Width::ALL {
            assert_eq!(Width::dividing(u64::from(width.bytes())), width);
        }
    }

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = Kernel::all().map(|kernel| kernel.to_string()).collect();
        assert_eq!(names.len(), Kernel::all().count());
        assert!(names.contains("unpack_affine_short_w16"));
        assert!(names.contains("transfer_w8_few"));
        assert!(names.contains("same_rows_w16_few"));
        assert!(!names.contains("unpack_same_rows_w16"));
    }

    #[test]
    fn programs_tell_widths_and_ways_apart() {
        let mut of = std::collections::BTreeMap::new();
        for kernel in Kernel::all() {
            let key = (kernel.width, kernel.direction, kernel.family.is_same());
            assert_eq!(*of.entry(kernel.program()).or_insert(key), key, "{kernel}");
        }
        assert_eq!(of.len(), Kernel::PROGRAMS);
        assert!(of.keys().all(|&program| program < Kernel::PROGRAMS));
    }

    #[test]
    fn what_moves_between_equal_layouts_is_as_one_side_is() {
        for family in Family::ALL {
            let Some(same) = family.same() else { continue };
            assert_eq!(same.is_same(), family != Family::Copy);
            for few in [false, true] {
                assert_eq!(same.threads_max(few), family.threads_max(few));
                assert_eq!(same.items(Width::W8, few), family.items(Width::W8, few));
            }
            assert_eq!((same.plans(), same.threads()), (family.plans(), family.threads()));
        }
        let paired = Family::ALL.into_iter().filter_map(Family::same).filter(|same| same.is_same());
        assert_eq!(paired.count(), Family::ALL.into_iter().filter(|f| f.is_same()).count());
    }
}
