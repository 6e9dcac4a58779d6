use super::*;
use crate::metadata::Target;

const MAP: &[Rule] = &[
    Rule {
        package: "floor",
        may: &[],
        features: &[],
        tests_may: &["shed"],
        must_not_know: "what stands on it",
    },
    Rule {
        package: "wall",
        may: &["floor"],
        features: &["window"],
        tests_may: &["shed"],
        must_not_know: "roofs",
    },
    Rule { package: "window", may: &[], features: &[], tests_may: &[], must_not_know: "walls" },
    Rule {
        package: "roof",
        may: &["wall"],
        features: &[],
        tests_may: &[],
        must_not_know: "floors",
    },
    Rule {
        package: "shed",
        may: &["floor"],
        features: &[],
        tests_may: &[],
        must_not_know: "roofs",
    },
];

const RESERVED_ONES: &[Reserved] =
    &[Reserved { name: "glass", only: &["window"], why: "only windows break" }];

const BANS: &[Banned] = &[Banned { package: "floor", names: &["sky"], why: "floors lie below" }];

fn on(name: &str) -> Dependency {
    Dependency { name: name.into(), ..Dependency::default() }
}

fn kind(kind: &str, name: &str) -> Dependency {
    Dependency { kind: Some(kind.into()), ..on(name) }
}

fn package(name: &str, dependencies: Vec<Dependency>) -> Package {
    Package {
        name: name.into(),
        dependencies,
        targets: vec![Target { kind: vec!["lib".into()] }],
        ..Package::default()
    }
}

fn found(packages: &[Package]) -> Vec<String> {
    check(packages, MAP, RESERVED_ONES, BANS).iter().map(ToString::to_string).collect()
}

#[test]
fn an_orderly_house() {
    let feature = Dependency { optional: true, ..on("window") };
    let packages = [
        package("floor", vec![on("serde"), kind("dev", "floor")]),
        package("wall", vec![on("floor"), feature, kind("dev", "shed"), kind("dev", "serde")]),
        package("window", vec![on("glass")]),
        // The wall's floor is below the roof too: its tests may stand on it, though it may not.
        package("roof", vec![on("wall"), kind("dev", "floor")]),
        package("shed", vec![kind("build", "floor")]),
    ];
    assert_eq!(found(&packages), [""; 0]);
}

#[test]
fn depending_upwards_or_past_a_layer() {
    let packages = [
        package("floor", vec![on("wall")]),
        package("wall", vec![]),
        package("roof", vec![kind("build", "floor")]),
    ];
    assert_eq!(
        found(&packages),
        [
            "floor: must not depend on wall (must not know: what stands on it)",
            "roof: must not depend on floor (must not know: floors)",
        ]
    );
}

#[test]
fn depending_on_a_crate_that_does_not_exist_yet() {
    let packages = [package("window", vec![on("roof")])];
    assert_eq!(found(&packages), ["window: must not depend on roof (must not know: walls)"]);
}

#[test]
fn a_feature_must_be_optional() {
    let packages = [package("wall", vec![on("window")])];
    assert_eq!(found(&packages), ["wall: may depend on window only as a feature"]);
}

#[test]
fn tests_must_not_stand_on_what_stands_on_the_crate() {
    let packages = [
        package("floor", vec![kind("dev", "shed")]),
        package("shed", vec![on("floor")]),
        package("roof", vec![kind("dev", "shed")]),
    ];
    assert_eq!(
        found(&packages),
        [
            "roof: its tests must not depend on shed, which is not below it",
            // Listed for the floor's tests, and still refused.
            "floor: its tests must not depend on shed, which depends on floor",
        ]
    );
}

#[test]
fn unknown_crates_and_others_doors() {
    let packages = [
        package("garden", vec![]),
        package("floor", vec![kind("dev", "sky")]),
        package("roof", vec![on("glass")]),
    ];
    assert_eq!(
        found(&packages),
        [
            "garden: has no rule; give it one in xtask/src/deps/rules.rs",
            "floor: must not depend on sky (floors lie below)",
            "roof: must not depend on glass (only windows break)",
        ]
    );
}

#[test]
fn an_example_transport_needs_btl_and_mem_alone() {
    let good = package(
        "btl-udp",
        vec![
            on("gapless-btl"),
            on("gapless-mem"),
            on("rustix"),
            kind("dev", "gapless"),
            kind("dev", "gapless-pml"),
        ],
    );
    assert_eq!(check_example("btl-udp", std::slice::from_ref(&good)), []);
    let bad = package("btl-udp", vec![on("gapless-pml")]);
    let violations = check_example("btl-udp", std::slice::from_ref(&bad));
    assert_eq!(violations.len(), 1);
    assert!(violations[0].to_string().contains("gapless-pml"), "{}", violations[0]);
    // Elsewhere a library may use any layer, but nothing beside them.
    assert_eq!(check_example("halo", std::slice::from_ref(&bad)), []);
    let bench = package("halo", vec![kind("dev", "gapless-bench")]);
    assert_eq!(check_example("halo", &[bench]).len(), 1);
}

/// The rules themselves: acyclic, and about crates that have one.
#[test]
fn the_map_is_a_ladder() {
    let named = |name: &&str| RULES.iter().any(|rule| rule.package == *name);
    let packages: Vec<Package> = RULES
        .iter()
        .map(|rule| {
            let on_all = rule.may.iter().chain(rule.features).map(|name| on(name));
            package(rule.package, on_all.collect())
        })
        .collect();
    let ours: BTreeSet<&str> = RULES.iter().map(|rule| rule.package).collect();
    assert_eq!(ours.len(), RULES.len(), "a crate has two rules");
    let stands_on = reachable(&packages, &ours);
    for rule in RULES {
        for list in [rule.may, rule.features, rule.tests_may] {
            assert!(list.iter().all(named), "{}", rule.package);
        }
        assert!(
            !stands_on[rule.package].contains(rule.package),
            "{} depends on itself",
            rule.package
        );
        for test in rule.tests_may {
            assert!(
                !stands_on[test].contains(rule.package),
                "{}'s tests may use {test}, which depends on it",
                rule.package
            );
        }
    }
    for reserved in RESERVED {
        assert!(reserved.only.iter().all(named));
    }
    assert!(BANNED.iter().all(|banned| named(&banned.package)));
}

#[test]
fn cargos_words_are_understood() {
    let text = r#"{"name": "wall", "version": "1.0.0", "targets": [{"kind": ["lib"], "name": "wall"}],
        "dependencies": [{"name": "floor", "kind": "dev", "optional": false, "req": "^1"},
                         {"name": "shed", "kind": null, "optional": true, "req": "^1"}]}"#;
    let package: Package = serde_json::from_str(text).unwrap();
    assert!(package.has_library());
    assert_eq!(package.dependencies[0].kind.as_deref(), Some("dev"));
    assert!(package.dependencies[1].optional);
}
