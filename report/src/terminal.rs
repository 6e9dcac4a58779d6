//! How wide a table may be.

use std::io::IsTerminal;

/// What a terminal has that does not say.
const COLUMNS: usize = 80;

/// Characters of a line of standard output: what `COLUMNS` says, or the terminal, or 80; `None` if standard output is
/// no terminal, since nobody breaks lines there.
#[must_use]
pub fn terminal_columns() -> Option<usize> {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let variable = std::env::var("COLUMNS").ok();
    let window = rustix::termios::tcgetwinsize(&stdout).ok().map(|size| size.ws_col);
    Some(columns(variable.as_deref(), window))
}

fn columns(variable: Option<&str>, window: Option<u16>) -> usize {
    let variable = variable.and_then(|text| text.trim().parse().ok());
    let known = [variable, window.map(usize::from)];
    known.into_iter().flatten().find(|columns| *columns > 0).unwrap_or(COLUMNS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_asked_first_and_nonsense_is_ignored() {
        assert_eq!(columns(Some("132"), Some(100)), 132);
        assert_eq!(columns(Some(" 60\n"), None), 60);
        for nonsense in [None, Some("0"), Some("wide"), Some(""), Some("-1")] {
            assert_eq!(columns(nonsense, Some(100)), 100);
            assert_eq!(columns(nonsense, Some(0)), COLUMNS);
            assert_eq!(columns(nonsense, None), COLUMNS);
        }
    }
}
