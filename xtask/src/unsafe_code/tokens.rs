//! Rust as words, texts and marks; comments are left out, but for the documentation at the top of a file.

/// A piece of source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// An identifier, a keyword, or a number.
    Word(String),
    /// What is between the quotes of a string.
    Text(String),
    /// Any other character.
    Mark(char),
}

impl Token {
    /// Whether it is this word.
    pub(super) fn is(&self, word: &str) -> bool {
        matches!(self, Token::Word(own) if own == word)
    }
}

/// The tokens of a file.
pub(super) fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut found, mut i) = (Vec::new(), 0);
    while i < chars.len() {
        let c = at(i);
        match c {
            '/' if at(i + 1) == '/' => i = line_end(&chars, i),
            '/' if at(i + 1) == '*' => i = comment_end(&chars, i),
            '"' => {
                let (text, end) = string(&chars, i + 1);
                found.push(Token::Text(text));
                i = end;
            }
            // A character, or the name of a lifetime.
            '\'' if at(i + 1) == '\\' => i = closing_quote(&chars, i + 2),
            '\'' if at(i + 2) == '\'' => i += 3,
            c if in_word(c) => {
                let end = (i..chars.len()).find(|&j| !in_word(at(j))).unwrap_or(chars.len());
                let word: String = chars[i..end].iter().collect();
                match raw_hashes(&chars, end).filter(|_| word == "r" || word == "br") {
                    Some(hashes) => {
                        let (text, end) = raw_string(&chars, end + hashes + 1, hashes);
                        found.push(Token::Text(text));
                        i = end;
                    }
                    None => {
                        found.push(Token::Word(word));
                        i = end;
                    }
                }
            }
            c => {
                if !c.is_whitespace() {
                    found.push(Token::Mark(c));
                }
                i += 1;
            }
        }
    }
    found
}

/// The first sentence of the documentation at the top of a file.
pub(super) fn first_sentence(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    let text: Vec<&str> = lines.map(str::trim).take_while(|line| !line.is_empty()).collect();
    let text = text.join(" ");
    let sentence = text.split(". ").next().unwrap_or_default();
    sentence.trim_end_matches(['.', ':']).to_owned()
}

fn line_end(chars: &[char], from: usize) -> usize {
    (from..chars.len()).find(|&i| chars[i] == '\n').unwrap_or(chars.len())
}

/// Behind a comment that may hold others.
fn comment_end(chars: &[char], from: usize) -> usize {
    let (mut depth, mut i) = (0usize, from);
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') if depth == 1 => return i + 2,
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
    }
    chars.len()
}

/// A string from behind its quote, and what comes behind it.
fn string(chars: &[char], from: usize) -> (String, usize) {
    let (mut text, mut i) = (String::new(), from);
    while i < chars.len() && chars[i] != '"' {
        if chars[i] == '\\' {
            i += 1;
        }
        text.extend(chars.get(i));
        i += 1;
    }
    (text, i + 1)
}

/// Behind the quote that ends a character; the one behind a backslash is skipped.
fn closing_quote(chars: &[char], escaped: usize) -> usize {
    (escaped + 1..chars.len()).find(|&i| chars[i] == '\'').map_or(chars.len(), |i| i + 1)
}

/// How many `#` stand before the quote of a raw string, if one begins here.
fn raw_hashes(chars: &[char], from: usize) -> Option<usize> {
    let hashes = chars.get(from..)?.iter().take_while(|c| **c == '#').count();
    (chars.get(from + hashes) == Some(&'"')).then_some(hashes)
}

fn raw_string(chars: &[char], from: usize, hashes: usize) -> (String, usize) {
    let ends = |i: &usize| {
        chars[*i] == '"'
            && chars[i + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    let end = (from..chars.len()).find(ends).unwrap_or(chars.len());
    (chars[from..end].iter().collect(), (end + 1 + hashes).min(chars.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_lifetimes_hide_no_words() {
        let source = r####"a /* b /* c */ d */ "e\"f" // g
            'h' '\'' '\u{1}' &'i j r#"k"l"# br"m" 'n: 7_u8"####;
        let words: Vec<String> = tokens(source)
            .into_iter()
            .map(|token| match token {
                Token::Word(word) => word,
                Token::Text(text) => format!("<{text}>"),
                Token::Mark(mark) => mark.to_string(),
            })
            .collect();
        assert_eq!(words.join(" "), "a <e\"f> & ' i j <k\"l> <m> ' n : 7_u8");
    }

    #[test]
    fn unfinished_sources_end() {
        for source in ["\"a", "/* a", "r#\"a", "'\\", "'", "b'", "r", "\"\\", "br"] {
            let _ = tokens(source);
        }
    }

    #[test]
    fn sentences() {
        assert_eq!(first_sentence("//! One\n//! two. Three.\n//!\n//! Four."), "One two");
        assert_eq!(first_sentence("//! One:\n//!\n//! two."), "One");
        assert_eq!(first_sentence("fn f() {}"), "");
    }
}
