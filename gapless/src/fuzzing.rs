//! Doors for fuzzing, which only exist with `--cfg fuzzing`: what other processes publish, read as at
//! start-up, and what they ask the launcher.

use gapless_boot::card;
#[cfg(feature = "launch")]
pub use gapless_boot::launch::Requests;

/// Reads a card and a transport's address; the result is ignored.
pub fn card(text: &str) {
    let _ = card::check(1, text);
    let _ = card::shares_processors(text);
    let _ = gapless_bml::Level::INSIDE.map(|level| card::group(text, level));
    if let Ok((name, address)) = card::read_rail(1, text) {
        let again = card::write_rail(&name, &address);
        assert!(card::read_rail(1, &again).is_ok(), "what is written cannot be read");
    }
}

/// The card of a process like this one.
#[must_use]
pub fn own_card() -> String {
    card::write("0a", card::Network::Able, false)
}
