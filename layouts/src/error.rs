//! What can be wrong with a request for a layout. Nothing here panics on foreign numbers.

use gapless_dtype::TypeError;

use crate::case::MAX_BUFFER_BYTES;

/// Why a layout could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// No family, group or alias has this name.
    #[error("unknown layout `{name}`; known layouts: {known}")]
    Unknown {
        /// The name as it was asked for.
        name: String,
        /// Every name that would have been understood, separated by commas.
        known: String,
    },
    /// The size parameter is outside what the family defines.
    #[error("layout {layout} refuses n = {n}: {}", self.allowed().unwrap_or_default())]
    Size {
        /// The family's name.
        layout: &'static str,
        /// The size that was asked for.
        n: u64,
        /// The rule that this size breaks, if it is another than what follows.
        rule: Option<&'static str>,
        /// What the size is, and which sizes there are.
        meaning: &'static str,
    },
    /// A size was given to a selection that has none.
    #[error(
        "`{name}` names layouts whose sizes mean different things; choose one of them to give n"
    )]
    SizeOfMany {
        /// The group's name.
        name: String,
    },
    /// Explicit parameters contradict each other.
    #[error("{layout}: {rule}")]
    Parameters {
        /// The layout they were given to.
        layout: &'static str,
        /// The rule they break.
        rule: &'static str,
    },
    /// The application's arrays would not fit the bound.
    #[error("{layout}: its arrays would need more than {MAX_BUFFER_BYTES} bytes")]
    TooLarge {
        /// The layout whose arrays they are.
        layout: &'static str,
    },
    /// The datatype layer refused the type.
    #[error("the datatype was refused: {0}")]
    Type(#[from] TypeError),
}

impl LayoutError {
    /// What a refused size must be, in words.
    #[must_use]
    pub fn allowed(&self) -> Option<String> {
        let LayoutError::Size { rule, meaning, .. } = self else { return None };
        let rule = rule.map_or_else(String::new, |rule| format!("{rule}; "));
        Some(format!("{rule}n is the {meaning}"))
    }
}
