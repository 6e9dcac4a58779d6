//! What a user wants of several things: a list of words apart by commas. What a word after `!` names is not used.

/// What one word names.
pub(super) trait Pattern: Sized {
    /// What is chosen among.
    type Thing;

    /// # Errors
    /// Which word makes no sense.
    fn parse(word: &str) -> Result<Self, String>;

    fn matches(&self, thing: &Self::Thing) -> bool;
}

/// A list: what to use, and what not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted<P> {
    included: Vec<P>,
    excluded: Vec<P>,
}

impl<P: Pattern> Wanted<P> {
    /// # Errors
    /// Which word makes no sense.
    pub(super) fn parse(list: &str) -> Result<Wanted<P>, String> {
        let mut wanted = Wanted { included: Vec::new(), excluded: Vec::new() };
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word.strip_prefix('!') {
                Some(word) => wanted.excluded.push(P::parse(word.trim())?),
                None => wanted.included.push(P::parse(word)?),
            }
        }
        Ok(wanted)
    }

    /// Whether anything was asked for.
    pub(super) fn asks(&self) -> bool {
        !self.included.is_empty()
    }

    /// What was asked for, in the order of the list.
    pub(super) fn words(&self) -> &[P] {
        &self.included
    }

    /// Whether this is among what was asked for.
    pub(super) fn includes(&self, thing: &P::Thing) -> bool {
        self.included.iter().any(|pattern| pattern.matches(thing))
    }

    /// Whether this is not to be used.
    pub(super) fn excludes(&self, thing: &P::Thing) -> bool {
        self.excluded.iter().any(|pattern| pattern.matches(thing))
    }
}
