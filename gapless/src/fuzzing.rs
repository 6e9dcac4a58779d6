//! Entry points for fuzzing, which only exist with `--cfg fuzzing`: what other processes publish, read as at
//! start-up, and what they ask the launcher.

#[cfg(feature = "launch")]
pub use gapless_boot::launch::Requests;
use gapless_boot::process_record;

/// Reads a record and a transport's address; the result is ignored.
pub fn record(text: &str) {
    let _ = process_record::check(1, text);
    let _ = process_record::shares_processors(text);
    let _ = gapless_bml::Level::INSIDE.map(|level| process_record::group(text, level));
    if let Ok((name, address)) = process_record::read_rail(1, text) {
        let again = process_record::write_rail(&name, &address);
        assert!(process_record::read_rail(1, &again).is_ok(), "what is written cannot be read");
    }
}

/// The record of a process like this one.
#[must_use]
pub fn own_record() -> String {
    process_record::write("0a", process_record::Network::Able, false)
}
