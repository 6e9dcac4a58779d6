//! Layouts of one's own, from a file.

use crate::common::{finish, gapless, rows, text};
use gapless_report::Report;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The example of the documents.
fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/layout.toml")
}

fn call(verb: &str, file: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let mut command = gapless();
    command.arg(verb).arg("--layout-file").arg(file).args(more);
    let output = finish(command, Duration::from_secs(100));
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_example_is_taken_apart_explained_and_sent() {
    let (code, shown, error) = call("layout", &example(), &[]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    for part in [
        "leaving particles: 145 B",
        "indexed_block(1, [3, 4, 17, 42, 99])",
        "structure([1, 3, 1], [0, 8, 32] B)",
        "columns to rows: 32 KiB",
        "hvector(64, 1, 8 B)",
        "contiguous(4096)",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let (code, shown, error) = call("explain", &example(), &["--size", "1M"]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert!(shown.contains("32 × columns to rows, host: 1 MiB"), "{shown}");
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    let more = ["--layout", "v", "--n", "32", "--iterations", "3", "--buffers", "2M", "--json"];
    let more = [&more[..], &[json.to_str().unwrap()]].concat();
    let (code, shown, error) = call("pingpong", &example(), &more);
    assert_eq!(code, Some(0), "{error}");
    let report = Report::read_json(&json).unwrap();
    let names: Vec<_> = report.rows.iter().map(|row| row.case.as_str()).collect();
    assert_eq!(names, ["V n=32", "leaving particles", "columns to rows"]);
    assert!(report.rows.iter().all(|row| row.verified));
    assert_eq!(rows(&shown, "leaving particles").len(), 1, "{shown}");
}

/// The page shows the file, as it is.
#[test]
fn the_page_has_the_example() {
    let page = example().with_file_name("layouts.md");
    let (page, file) = (std::fs::read_to_string(page), std::fs::read_to_string(example()));
    assert!(page.unwrap().contains(&format!("```toml\n{}```", file.unwrap())));
}

#[test]
fn what_is_wrong_is_a_line_that_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("own.toml");
    let refused = |verb: &str, more: &[&str], complaint: &str| {
        let (code, shown, error) = call(verb, &file, more);
        assert_eq!((code, shown.as_str()), (Some(2), ""), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains("own.toml") && error.contains(complaint), "{error}");
    };
    refused("layout", &[], "No such file");
    std::fs::create_dir(&file).unwrap();
    refused("pingpong", &[], "it is no ordinary file");
    std::fs::remove_dir(&file).unwrap();
    std::fs::write(&file, "[layout]\nvector = { count = 3, blocklength = 1, of = 'int' }\n")
        .unwrap();
    for verb in ["layout", "explain", "pingpong"] {
        refused(verb, &[], "line 2: vector needs \"stride\"");
    }
    std::fs::write(&file, "[[layout]]\ntype = 'int'\n[[layout]]\nname = 'own 1'\ntype = 'int'\n")
        .unwrap();
    let (code, _, error) = call("layout", &file, &[]);
    assert_eq!(code, Some(2));
    assert!(error.contains("--layout-file own 1: there are two layouts of this name"), "{error}");
    let (code, _, error) = call("layout", &example(), &["--n", "5"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("--n 5: it needs --layout"), "{error}");
}
