use super::*;
use std::collections::BTreeSet;

#[test]
fn all_functions_have_forms_and_types_in_c() {
    let all = functions();
    let names: BTreeSet<String> =
        all.iter().flat_map(Function::exports).map(|export| export.name).collect();
    // Those of MPI 5.0, and ten that were removed.
    assert_eq!(names.len(), 672, "each has a name of its own");
    for name in ["Send_c", "Iallreduce_c", "Neighbor_alltoallw_init", "T_pvar_read", "Type_struct"]
    {
        assert!(names.contains(name), "{name}");
    }
    for export in all.iter().flat_map(Function::exports) {
        for (name, kind) in export.arguments() {
            assert!(!c_type(kind, export.large).is_empty(), "{name}");
        }
    }
}

fn number_of(value: &str) -> Option<i64> {
    match value.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => value.parse().ok(),
    }
}

/// Numbers of the appendix of MPI 5.0, of each kind some.
#[test]
fn constants_have_the_values_of_the_standard() {
    let all = constants();
    let value = |name: &str| {
        let found = all.iter().find(|constant| constant.name == name);
        found.map(|constant| (constant.value(Face::Abi), constant.value(Face::Mpich)))
    };
    for (name, abi, mpich) in [
        ("COMM_WORLD", "0x101", "0x44000000"),
        ("INT", "0x209", "0x4c000405"),
        ("DOUBLE", "0x214", "0x4c00080b"),
        ("SUM", "0x21", "0x58000003"),
        ("ANY_SOURCE", "-1", "-2"),
        ("ANY_TAG", "-2", "-1"),
        ("PROC_NULL", "-3", "-1"),
        ("IN_PLACE", "1", "-1"),
        ("ERR_TRUNCATE", "15", "14"),
    ] {
        assert_eq!(value(name), Some((abi, mpich)), "{name}");
    }
    let mut compared = 0;
    for line in include_str!("tests/abi.txt").lines().filter(|line| !line.starts_with('#')) {
        let (name, number) = line.split_once(' ').unwrap();
        let found = all.iter().find(|constant| constant.name == name).unwrap();
        assert_eq!(number_of(found.value(Face::Abi)), number.parse().ok(), "{name}");
        compared += 1;
    }
    // Other names of constants have no values of their own.
    assert_eq!(compared, all.iter().filter(|constant| constant.alias().is_none()).count());
    let handles = all.iter().filter(|constant| handle_type(constant.kind).is_some());
    let mut values = BTreeSet::new();
    for constant in handles {
        assert!(values.insert(constant.value(Face::Abi)), "{} is another's", constant.name);
    }
}
