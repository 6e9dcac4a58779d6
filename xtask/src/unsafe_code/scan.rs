//! What one file says of unsafe code: how often, why, and of which modules.

use std::fmt;
use std::ops::Add;
use std::path::{Path, PathBuf};

use super::tokens::{Token, first_sentence, tokens};

/// How often something says `unsafe`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) blocks: u32,
    pub(super) functions: u32,
    pub(super) traits: u32,
    pub(super) implementations: u32,
}

/// A file that a `mod` line names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Module {
    name: String,
    /// Of a `path` attribute.
    path: Option<String>,
    /// Why it may be unsafe, if the line says so.
    pub(super) why: Option<String>,
    pub(super) for_tests: bool,
}

/// A file.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) counts: Counts,
    /// Why parts of it may be unsafe.
    pub(super) whys: Vec<String>,
    pub(super) modules: Vec<Module>,
    /// Whether all of the crate may not, if this is its root.
    pub(super) forbids: bool,
    /// What it is, in a sentence.
    pub(super) about: String,
}

/// What the attributes before an item say.
#[derive(Default)]
struct Attributes {
    why: Option<String>,
    path: Option<String>,
    for_tests: bool,
}

impl Scan {
    /// Reads a file.
    pub(super) fn of(source: &str) -> Scan {
        let tokens = tokens(source);
        let mut scan = Scan { about: first_sentence(source), ..Scan::default() };
        let (mut i, mut before) = (0, Attributes::default());
        while i < tokens.len() {
            if let Some((end, inner)) = attribute(&tokens, i) {
                scan.read(&tokens[i..end], inner, &mut before);
                i = end;
                continue;
            }
            let attributes = std::mem::take(&mut before);
            i = scan.item(&tokens, i, attributes);
        }
        scan
    }

    /// An attribute: of the whole file, or of the item that follows.
    fn read(&mut self, tokens: &[Token], inner: bool, before: &mut Attributes) {
        let has = |word| tokens.iter().any(|token| token.is(word));
        let text = |word| {
            let at = tokens.iter().position(|token| token.is(word))?;
            tokens[at..].iter().find_map(|token| match token {
                Token::Text(text) => Some(text.clone()),
                _ => None,
            })
        };
        if has("unsafe_code") {
            self.forbids |= inner && has("forbid");
            if has("allow") || has("expect") {
                match inner {
                    true => self.whys.extend(text("reason")),
                    false => before.why = text("reason"),
                }
            }
        }
        if !inner {
            before.path = before.path.take().or_else(|| text("path"));
            // `any(test, …)` is there without tests, too.
            before.for_tests |= has("cfg") && has("test") && !has("any") && !has("not");
        }
        if has("unsafe") {
            self.counts.functions += 1;
        }
    }

    /// The token at `i`, with the attributes before it; what comes behind.
    fn item(&mut self, tokens: &[Token], i: usize, attributes: Attributes) -> usize {
        // `pub`, `pub(crate)` and the like do not part attributes from their item.
        let mut at = i;
        if tokens[at].is("pub") {
            at += 1;
            if tokens.get(at) == Some(&Token::Mark('(')) {
                at = (at..tokens.len()).find(|&j| tokens[j] == Token::Mark(')')).unwrap_or(at) + 1;
            }
        }
        if let (Some(word), Some(Token::Word(name)), Some(Token::Mark(';'))) =
            (tokens.get(at), tokens.get(at + 1), tokens.get(at + 2))
            && word.is("mod")
        {
            let Attributes { why, path, for_tests } = attributes;
            self.modules.push(Module { name: name.clone(), path, why, for_tests });
            return at + 3;
        }
        if attributes.for_tests {
            return behind(tokens, i);
        }
        let whys = attributes.why.filter(|why| !self.whys.contains(why));
        self.whys.extend(whys);
        if tokens[i].is("unsafe") {
            self.count(&tokens[i + 1..]);
        }
        i + 1
    }

    /// What comes behind the word `unsafe`.
    fn count(&mut self, rest: &[Token]) {
        let counts = &mut self.counts;
        match rest.first() {
            Some(Token::Mark('{')) => counts.blocks += 1,
            Some(word) if word.is("impl") => counts.implementations += 1,
            Some(word) if word.is("trait") => counts.traits += 1,
            _ => counts.functions += 1,
        }
    }
}

/// Behind the attribute that begins at `i`, and whether it is one of the whole file (`#![…]`).
fn attribute(tokens: &[Token], i: usize) -> Option<(usize, bool)> {
    if tokens.get(i) != Some(&Token::Mark('#')) {
        return None;
    }
    let inner = tokens.get(i + 1) == Some(&Token::Mark('!'));
    let open = i + 1 + usize::from(inner);
    (tokens.get(open) == Some(&Token::Mark('['))).then(|| (closing(tokens, open) + 1, inner))
}

/// Where the bracket at `open` is closed.
fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0usize;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token {
            Token::Mark('(' | '[' | '{') => depth += 1,
            Token::Mark(')' | ']' | '}') => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return i;
                }
            }
            _ => {}
        }
    }
    tokens.len().saturating_sub(1)
}

/// Behind the item at `from`: its semicolon, its comma, or its block.
fn behind(tokens: &[Token], from: usize) -> usize {
    let mut i = from;
    while i < tokens.len() {
        match tokens[i] {
            Token::Mark(';' | ',') => return i + 1,
            // What holds the item ends: it was the last of a list.
            Token::Mark('}' | ')' | ']') => return i,
            Token::Mark('{') => return closing(tokens, i) + 1,
            Token::Mark('(' | '[') => i = closing(tokens, i) + 1,
            _ => i += 1,
        }
    }
    i
}

impl Module {
    /// Where the file may be, if `parent` names it.
    pub(super) fn files(&self, parent: &Path) -> Vec<PathBuf> {
        let folder = parent.parent().unwrap_or(Path::new(""));
        if let Some(path) = &self.path {
            return vec![folder.join(path)];
        }
        let stem = parent.file_stem().unwrap_or_default();
        let is_root = super::is_root(parent) || stem == "mod";
        let base = if is_root { folder.to_owned() } else { folder.join(stem) };
        vec![base.join(&self.name).with_extension("rs"), base.join(&self.name).join("mod.rs")]
    }
}

impl Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        Counts {
            blocks: self.blocks + other.blocks,
            functions: self.functions + other.functions,
            traits: self.traits + other.traits,
            implementations: self.implementations + other.implementations,
        }
    }
}

impl fmt::Display for Counts {
    /// Cells of a table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = |count: u32| if count == 0 { "-".to_owned() } else { count.to_string() };
        let Counts { blocks, functions, traits, implementations } = *self;
        let cells = [blocks, functions, traits, implementations].map(cell);
        write!(f, "{}", cells.join(" | "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_unsafe_is_counted_outside_of_tests() {
        let scan = Scan::of(
            "unsafe trait T { unsafe fn f(); }\nunsafe impl T for u8 {}\n\
             type F = unsafe extern \"C\" fn();\n#[unsafe(no_mangle)]\nfn g() { unsafe { h() } }\n\
             #[cfg(test)]\nfn only() { unsafe { h() } }\n\
             #[cfg(test)]\nmod tests { fn f() { unsafe {} } }\n\
             #[cfg(any(test, feature = \"x\"))]\nfn both() { unsafe { h() } }\n",
        );
        assert_eq!(scan.counts, Counts { blocks: 2, functions: 3, traits: 1, implementations: 1 });
    }

    #[test]
    fn items_for_tests_end_where_they_end() {
        for (source, blocks) in [
            ("#[cfg(test)] use a::{b, c}; fn f() { unsafe {} }", 1),
            ("#[cfg(test)] const A: [u8; 2] = [0; 2]; fn f() { unsafe {} }", 1),
            ("struct S { #[cfg(test)] a: u8 } fn f() { unsafe {} }", 1),
            ("#[cfg(test)] fn f(a: [u8; 2]) { unsafe {} } fn g() { unsafe {} }", 1),
            ("#[cfg(test)] impl A { fn f() { unsafe {} } }", 0),
            ("#[cfg(test)]", 0),
        ] {
            assert_eq!(Scan::of(source).counts.blocks, blocks, "{source}");
        }
    }

    #[test]
    fn modules_have_a_file_and_a_reason() {
        let scan = Scan::of(
            "#![allow(unsafe_code, reason = \"all\")]\n#[allow(unsafe_code, reason = \"a\")]\n\
             /// Text.\npub(crate) mod a;\n#[cfg(test)]\nmod b;\n#[path = \"../c.rs\"]\npub mod c;\n",
        );
        assert_eq!(scan.whys, ["all"]);
        let whys: Vec<_> =
            scan.modules.iter().map(|it| (it.why.as_deref(), it.for_tests)).collect();
        assert_eq!(whys, [(Some("a"), false), (None, true), (None, false)]);
        let files = |i: usize, parent: &str| scan.modules[i].files(Path::new(parent));
        assert_eq!(files(0, "x/src/lib.rs")[0], Path::new("x/src/a.rs"));
        assert_eq!(files(0, "x/src/y.rs")[1], Path::new("x/src/y/a/mod.rs"));
        assert_eq!(files(2, "x/src/lib.rs"), [Path::new("x/src/../c.rs")]);
    }
}
