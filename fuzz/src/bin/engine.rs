//! libFuzzer around one target, which the variable `GAPLESS_FUZZ` names. Its seeds are put into the folder
//! that `GAPLESS_FUZZ_SEEDS` names, first.
#![no_main]

use gapless_fuzz::Target;
use libfuzzer_sys::fuzz_target;
use std::path::Path;
use std::sync::OnceLock;

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fn choose() {
    let name = std::env::var("GAPLESS_FUZZ").unwrap_or_default();
    let known = gapless_fuzz::target(&name);
    let target = known.unwrap_or_else(|| panic!("GAPLESS_FUZZ={name:?} names no target"));
    if let Some(folder) = std::env::var_os("GAPLESS_FUZZ_SEEDS") {
        write_seeds(target, Path::new(&folder));
    }
    let _ = TARGET.set(target);
}

/// Puts the target's seeds where the engine looks for its corpus.
fn write_seeds(target: &Target, folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder for the corpus");
    for (number, seed) in (target.seeds)().iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number}")), seed).expect("a seed is written");
    }
}

fuzz_target!(init: choose(), |bytes: &[u8]| {
    if let Some(target) = TARGET.get() {
        (target.run)(bytes);
    }
});
