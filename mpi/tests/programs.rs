//! Programs in C, compiled with the library's header and linked with it, as a user's would be: each is a file in `c/`, which
//! exits with 0 if all is well. Its first line may say on how many ranks it runs: `/* ranks: 2 3 */`; otherwise 1, 2 and 4.

use gapless::launch::{Job, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// What the build script has made: the header, and what a library is linked with.
const MADE: &str = env!("OUT_DIR");

/// The archive that cargo has built beside this program.
fn archive() -> PathBuf {
    let here = std::env::current_exe().expect("a program knows where it is");
    let folder = here.parent().expect("it is in a folder");
    let age = |path: &Path| -> Option<SystemTime> { fs::metadata(path).ok()?.modified().ok() };
    let archives = fs::read_dir(folder).expect("it can be read").filter_map(|entry| {
        let path = entry.ok()?.path();
        let name = path.file_name()?.to_str()?;
        (name.starts_with("libgapless_mpi-") && name.ends_with(".a")).then_some(path)
    });
    archives.max_by_key(|path| age(path)).expect("cargo has built it")
}

/// The folder of the library.
fn library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder can be made").keep();
        let mut cc = Command::new("cc");
        cc.arg(format!("@{MADE}/link.args")).arg("-o").arg(folder.join("libmpi_abi.so.1"));
        cc.arg("-Wl,-soname,libmpi_abi.so.1").arg(archive());
        cc.args(["-lpthread", "-ldl", "-lm", "-lgcc_s", "-lc"]);
        assert!(cc.status().expect("there is a C compiler").success(), "{cc:?}");
        std::os::unix::fs::symlink("libmpi_abi.so.1", folder.join("libmpi_abi.so"))
            .expect("a link can be made");
        folder
    })
}

fn check(name: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(format!("{name}.c"));
    let folder = library();
    let program = folder.join(name);
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Werror", "-I", MADE, "-o"])
        .arg(&program)
        .arg(&source)
        .arg("-L")
        .arg(folder);
    cc.arg(format!("-Wl,-rpath,{}", folder.display())).args(["-lmpi_abi", "-lpthread"]);
    assert!(cc.status().expect("there is a C compiler").success(), "{cc:?}");
    let text = fs::read_to_string(&source).expect("it is there");
    let given = text.lines().next().and_then(|line| line.strip_prefix("/* ranks: "));
    let given = given.map(|line| line.trim_end_matches("*/").split_whitespace().collect());
    let ranks: Vec<&str> = given.unwrap_or_else(|| vec!["1", "2", "4"]);
    for ranks in ranks.into_iter().map(|ranks| ranks.parse().expect("a number of ranks")) {
        let job = Job {
            ranks,
            program: program.clone().into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            prefix: true,
        };
        let outcome = run(&job).expect("the job starts");
        assert_eq!(outcome.exit_code(), 0, "{name} on {ranks} ranks");
    }
}

macro_rules! programs {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name));
            }
        )*

        #[test]
        fn all_programs_run() {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
            for entry in fs::read_dir(folder).expect("it is there") {
                let path = entry.expect("it can be read").path();
                if path.extension().is_none_or(|end| end != "c") {
                    continue;
                }
                let name = path.file_stem().and_then(|name| name.to_str()).expect("a file of C");
                assert!([$(stringify!($name)),*].contains(&name), "{name} is in no list");
            }
        }
    };
}

programs! {
    attributes
    bad_input
    buffers
    collectives
    comms
    contents
    datatype
    environment
    errors
    matching
    op
    pack
    partitioned
    profile
    requests
    ring
    sessions
    short_sends
    tools
    threads
    topologies
    windows
}
