//! PMI-1's lines, for both ends: words of `key=value`, separated by spaces, ended by a newline.

/// One line, kept as it came. Looking a key up is linear: lines have a handful of words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PmiLine {
    text: String,
}

impl PmiLine {
    /// Takes a line; words without `=` are ignored when looking up.
    pub(crate) fn parse(text: &str) -> PmiLine {
        PmiLine { text: text.trim_end_matches(['\n', '\r']).to_owned() }
    }

    /// The value of the first word with this key.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.text.split(' ').find_map(|word| {
            let (name, value) = word.split_once('=')?;
            (name == key).then_some(value)
        })
    }

    /// The line without its end.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// Whether a key or value can be part of a line. MPICH's hydra 5.0.2 takes backslashes out of it.
pub(crate) fn valid_word(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_and_damage_is_survived() {
        let line = PmiLine::parse("cmd=put kvsname=k  key=a value=x=y junk\n");
        assert_eq!(line.get("cmd"), Some("put"));
        assert_eq!(line.get("value"), Some("x=y"));
        assert_eq!(line.get("rc"), None);
        assert_eq!(PmiLine::parse("").get("cmd"), None);
        assert!(!valid_word("a b") && !valid_word("") && valid_word("a=b/c"));
        assert!(!valid_word("a\\b"));
    }
}
