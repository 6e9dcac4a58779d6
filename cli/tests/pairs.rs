//! Which protocol carries a message between two memories, for every pair: what docs/gpu.md says is what `gapless
//! explain` says, and that is what runs where the machine has both.

use crate::common::{finish, gapless, skip, text};
use std::path::Path;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(100);

/// The table's heading.
const HEAD: &str = "| from | to | without gaps | V |";

/// A memory as the table names it, as options do, and whether it is the host's of `World::alloc`.
const MEMORIES: [(&str, &str, Option<bool>); 4] = [
    ("host, `World::alloc`", "host", Some(true)),
    ("host, other", "host", Some(false)),
    ("CUDA", "cuda", None),
    ("OpenCL", "opencl", None),
];

/// A line of the table.
struct Pair {
    space: String,
    memory: &'static str,
    /// Of a message without gaps, and of V.
    protocols: [String; 2],
}

fn pairs() -> Vec<Pair> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/gpu.md");
    let page = std::fs::read_to_string(path).expect("docs/gpu.md");
    let table = page.split_once(HEAD).expect("its table of pairs").1;
    let lines = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let pair = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [from, to, gapless, v] = cells[..] else { panic!("{line}") };
        let memory = |name: &str| {
            let found = MEMORIES.iter().find(|memory| memory.0 == name);
            found.unwrap_or_else(|| panic!("{name} in {line}"))
        };
        let ends = [memory(from), memory(to)];
        // Two processes on two GPUs.
        let second = if ends[0].1 == "cuda" && ends[1].1 == "cuda" { ":1" } else { "" };
        let space = format!("{},{}{second}", ends[0].1, ends[1].1);
        let heap = ends.iter().any(|end| end.2 == Some(false));
        let memory = if heap { "heap" } else { "alloc" };
        Pair { space, memory, protocols: [gapless, v].map(|cell| cell.replace('*', "")) }
    };
    lines.map(pair).collect()
}

/// The messages of both columns, as `explain` and `bench` take them.
const MESSAGES: [(&[&str], &[&str]); 2] =
    [(&["--size", "8M"], &[]), (&["--layout", "v", "--n", "1024"], &["--layout", "v"])];

fn shows(arguments: &[&str]) -> String {
    let mut command = gapless();
    command.args(arguments);
    let output = finish(command, SOON);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// What `explain` says.
fn explained(pair: &Pair, message: &[&str]) -> String {
    let place = ["explain", "--space", &pair.space, "--memory", pair.memory];
    let shown = shows(&[&place[..], message].concat());
    let line = shown.lines().find(|line| line.ends_with("chosen"));
    line.and_then(|line| line.split(' ').next()).unwrap_or_default().to_owned()
}

/// What carried a message.
fn ran(pair: &Pair, message: &[&str]) -> String {
    let few = ["bench", "bw", "-m", "8M:8M", "-W", "1", "-i", "2", "-x", "0", "--full", "--csv"];
    let place = ["--space", &pair.space, "--memory", pair.memory];
    let shown = shows(&[&few[..], &place[..], message].concat());
    let line = shown.lines().last().unwrap_or_default();
    line.rsplit(',').next().unwrap_or_default().to_owned()
}

/// Whether a place is there, by the command's own word.
fn is_there(info: &str, space: &str) -> bool {
    let devices =
        |kind: &str| info.lines().filter(|line| line.contains(&format!("{kind}:"))).count();
    space.split(',').all(|place| match place.split_once(':').unwrap_or((place, "0")) {
        ("host", _) => true,
        (kind, number) => devices(kind) > number.parse().expect("a number"),
    })
}

#[test]
fn every_pair_is_in_the_table_and_goes_as_it_is_explained() {
    let (pairs, info) = (pairs(), shows(&["info"]));
    // Nine pairings; memory of the host is of two kinds.
    let spaces: std::collections::BTreeSet<&str> =
        pairs.iter().map(|pair| pair.space.as_str()).collect();
    assert_eq!((pairs.len(), spaces.len()), (14, 9));
    for pair in &pairs {
        for ((explain, bench), documented) in MESSAGES.iter().zip(&pair.protocols) {
            let what = format!("{} ({}) {explain:?}", pair.space, pair.memory);
            assert_eq!(explained(pair, explain), *documented, "{what}");
            if is_there(&info, &pair.space) {
                assert_eq!(ran(pair, bench), *documented, "{what}");
            }
        }
        if !is_there(&info, &pair.space) {
            skip("which protocol runs", &format!("there is no {}", pair.space));
        }
    }
}
