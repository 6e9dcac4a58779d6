//! Looking layouts up by the names that users type.

use crate::{
    case::Case,
    error::LayoutError,
    families::{FAMILIES, Family, FamilyInfo, GROUPS, Group},
    index_list::IndexList,
    openmpi,
};

/// The name that stands for every family.
const ALL: &str = "all";

/// Parameters besides the size. The default gives the numbers of the literature.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// How LAMMPS and SPECFEM3D choose their elements. Lists of pages and of tokens are always drawn.
    pub lists: IndexList,
    /// Depth of faces and halos in cells; `None` gives each of [`DEPTHS`](crate::cube::DEPTHS).
    pub depth: Option<u64>,
    /// Columns of a step of the stair triangle; a multiple of the CUDA block size.
    pub stair_step: u64,
    /// Ranks of the FFT's all-to-all.
    pub ranks: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { lists: IndexList::default(), depth: None, stair_step: 256, ranks: 2 }
    }
}

/// Every family, in the order of the catalogue.
#[must_use]
pub fn families() -> &'static [FamilyInfo] {
    FAMILIES
}

/// Names that stand for several families, besides `all`, which stands for each of them.
#[must_use]
pub fn groups() -> &'static [Group] {
    GROUPS
}

/// The names of the families that a group's name stands for, `all` included; none if it is not a group's.
#[must_use]
pub fn group_members(group: &str) -> Option<Vec<&'static str>> {
    let members = members(&group.trim().to_ascii_lowercase().replace('_', "-"))?;
    Some(members.into_iter().map(|info| info.name).collect())
}

/// Every name that [`cases`] understands, aliases left out.
#[must_use]
pub fn layout_names() -> Vec<&'static str> {
    let families = FAMILIES.iter().map(|info| info.name);
    let groups = GROUPS.iter().map(|group| group.name);
    [ALL].into_iter().chain(families).chain(groups).chain(openmpi::names()).collect()
}

/// The cases of a family, a group, one of Open MPI's types, or `all`; upper case and underscores
/// make no difference. `n` is what the family says it is ([`FamilyInfo::n_meaning`]): `None` gives
/// its default sizes. A group takes an `n` if it means the same to all its members.
///
/// # Errors
/// [`LayoutError::Unknown`] for other names, listing the known ones; [`LayoutError::Size`],
/// [`LayoutError::SizeOfMany`] and [`LayoutError::TooLarge`] for an `n` that is not possible.
pub fn cases(family: &str, n: Option<u64>) -> Result<Vec<Case>, LayoutError> {
    cases_with(family, n, &Options::default())
}

/// [`cases`] with parameters besides the size.
///
/// # Errors
/// As [`cases`]; also for options that contradict the size.
pub fn cases_with(
    family: &str,
    n: Option<u64>,
    options: &Options,
) -> Result<Vec<Case>, LayoutError> {
    let name = family.trim().to_ascii_lowercase().replace('_', "-");
    if let Some(info) = FAMILIES.iter().find(|info| info.answers_to(&name)) {
        return match n {
            Some(n) => info.cases_of(n, options),
            None => info.cases_of_all(info.default_sizes, options),
        };
    }
    if let Some(type_name) = openmpi::names().find(|known| known.replace('_', "-") == name) {
        return openmpi::case(type_name, n.unwrap_or(1)).map(|case| vec![case]);
    }
    let members = members(&name).ok_or_else(|| LayoutError::Unknown {
        name: family.to_owned(),
        known: layout_names().join(", "),
    })?;
    if n.is_some() && members.windows(2).any(|pair| pair[0].n_meaning != pair[1].n_meaning) {
        return Err(LayoutError::SizeOfMany { name });
    }
    let mut all = Vec::new();
    for info in members {
        match n {
            Some(n) => all.extend(info.cases_of(n, options)?),
            None => all.extend(info.cases_of_all(info.default_sizes, options)?),
        }
    }
    Ok(all)
}

/// A representative set of every application and paper, at sizes that need less than 256 MiB per
/// buffer: each family at its default sizes, without Open MPI's corpus of small types.
///
/// # Panics
/// Never: the parameters are constants, and a unit test builds them.
#[must_use]
pub fn default_set() -> Vec<Case> {
    let options = Options::default();
    FAMILIES
        .iter()
        .filter(|info| info.family != Family::OpenMpi)
        .flat_map(|info| info.cases_of_all(info.default_sizes, &options))
        .flatten()
        .collect()
}

/// The cases of a family at every size that its source gives.
///
/// # Errors
/// As [`cases_with`], for options that contradict a size.
pub fn documented_cases(family: Family, options: &Options) -> Result<Vec<Case>, LayoutError> {
    let info = family.info();
    info.cases_of_all(info.documented_sizes, options)
}

/// The families that a group's name stands for, the name in lower case with dashes.
fn members(name: &str) -> Option<Vec<&'static FamilyInfo>> {
    if name == ALL {
        return Some(FAMILIES.iter().collect());
    }
    let group = GROUPS.iter().find(|group| group.name == name)?;
    Some(FAMILIES.iter().filter(|info| group.members.contains(&info.name)).collect())
}

impl FamilyInfo {
    fn answers_to(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    /// The family at size `n`; its own complaint about the parameters becomes one about `n`.
    fn cases_of(&self, n: u64, options: &Options) -> Result<Vec<Case>, LayoutError> {
        if n == 0 {
            return Err(self.refuses(n, None));
        }
        (self.build)(n, options).map_err(|error| match error {
            LayoutError::Parameters { rule, .. } => self.refuses(n, Some(rule)),
            LayoutError::Size { rule, .. } => self.refuses(n, rule),
            other => other,
        })
    }

    fn refuses(&self, n: u64, rule: Option<&'static str>) -> LayoutError {
        LayoutError::Size { layout: self.name, n, rule, meaning: self.n_meaning }
    }

    fn cases_of_all(&self, sizes: &[u64], options: &Options) -> Result<Vec<Case>, LayoutError> {
        let mut all = Vec::new();
        for &n in sizes {
            all.extend(self.cases_of(n, options)?);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_understood() {
        let mut seen = HashSet::new();
        let aliases = FAMILIES.iter().flat_map(|info| info.aliases.iter().copied());
        for name in layout_names().into_iter().chain(aliases) {
            assert!(seen.insert(name), "{name} twice");
            assert!(!cases(name, None).unwrap().is_empty(), "{name}");
        }
        for group in GROUPS {
            assert!(group.members.iter().all(|name| FAMILIES.iter().any(|f| f.name == *name)));
        }
    }

    #[test]
    fn spelling_is_forgiving() {
        assert_eq!(cases("NAS_MG_x", Some(66)).unwrap()[0].name, "NAS MG x 130,66,66");
        assert_eq!(cases(" V-Contiguous ", Some(4)).unwrap()[0].name, "V-contiguous n=4");
        assert_eq!(cases("adv_neg_extent", Some(3)).unwrap()[0].name, "openmpi adv_neg_extent x3");
    }

    #[test]
    fn unknown_names_list_the_known_ones() {
        let error = cases("vv", None).unwrap_err().to_string();
        for name in layout_names() {
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn groups_take_a_size_that_means_one_thing() {
        assert_eq!(cases("face", Some(16)).unwrap().len(), 6);
        assert_eq!(cases("nas-mg", Some(18)).unwrap().len(), 3);
        assert!(matches!(cases("all", Some(512)), Err(LayoutError::SizeOfMany { .. })));
        assert!(matches!(cases("wrf", Some(8)), Err(LayoutError::SizeOfMany { .. })));
    }

    #[test]
    fn case_names_are_unique_and_families_their_own() {
        let mut seen = HashSet::new();
        for info in FAMILIES {
            assert_eq!(info.family.info().name, info.name);
            for case in documented_cases(info.family, &Options::default()).unwrap() {
                assert_eq!(case.family, info.family, "{}", case.name);
                assert!(seen.insert(case.name.clone()), "{} twice", case.name);
            }
        }
    }

    #[test]
    fn the_default_set_has_every_family_and_fits_memory() {
        let set = default_set();
        for info in FAMILIES.iter().filter(|info| info.family != Family::OpenMpi) {
            let cases = set.iter().filter(|case| case.family == info.family).count();
            assert!(cases >= info.default_sizes.len(), "{}", info.name);
        }
        assert!(
            set.iter().all(|case| case.send.buffer_bytes.max(case.recv.buffer_bytes) < 1 << 28)
        );
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for info in FAMILIES {
            let huge = (40..64).map(|shift| 1_u64 << shift);
            for n in [0, u64::MAX, u64::MAX / 2, u64::MAX - 2].into_iter().chain(huge) {
                let error = cases(info.name, Some(n)).unwrap_err();
                let fits = matches!(error, LayoutError::Size { .. } | LayoutError::TooLarge { .. });
                assert!(fits, "{} n={n}: {error}", info.name);
            }
        }
    }

    #[test]
    fn options_are_checked() {
        let with = |name, n, change: fn(&mut Options)| {
            let mut options = Options::default();
            change(&mut options);
            cases_with(name, Some(n), &options)
        };
        let refused = |result| matches!(result, Err(LayoutError::Size { .. }));
        assert!(refused(with("stair", 512, |o| o.stair_step = 0)));
        assert!(refused(with("stair", 512, |o| o.stair_step = 100)));
        assert!(refused(with("stair", 500, |_| ())));
        assert!(refused(with("fft2d", 256, |o| o.ranks = 0)));
        assert!(refused(with("fft2d", 256, |o| o.ranks = 3)));
        assert!(refused(with("face-x", 16, |o| o.depth = Some(0))));
        assert!(refused(with("face-x", 16, |o| o.depth = Some(13))));
        assert!(refused(with("face-z", 3, |_| ())));
        assert!(refused(with("halo26", 4, |o| o.depth = Some(5))));
        assert!(with("halo26", 4, |o| o.depth = Some(u64::MAX)).is_err());
        assert!(with("face-y", 16, |o| o.depth = Some(12)).is_ok());
    }
}
