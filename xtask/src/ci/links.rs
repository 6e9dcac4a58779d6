//! Documents do not point at what is not there: every relative link of every Markdown file, anchors too; and the book
//! lists every page of its folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::files::{files_with, read};
use crate::Failure;
use crate::metadata::Checkout;

/// The book's folder, and its table of contents there.
pub(crate) const BOOK: &str = "docs";
pub(crate) const CONTENTS: &str = "SUMMARY.md";

/// Checks the Markdown files of the checkout; prints what is wrong.
pub(super) fn run(checkout: &Checkout) -> Result<(), Failure> {
    let mut texts = BTreeMap::new();
    for path in files_with(&checkout.root, "md")? {
        texts.insert(checkout.relative(&path).to_owned(), read(&path)?);
    }
    let exists = |path: &Path| checkout.root.join(path).exists();
    let mut wrong = broken(&texts, &exists);
    wrong.extend(unlisted(&texts));
    for line in &wrong {
        println!("{line}");
    }
    println!("documents: {} checked", texts.len());
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Failure::Found { what: "wrong links", number: wrong.len() as u64 })
}

/// Links that lead nowhere.
fn broken(texts: &BTreeMap<PathBuf, String>, exists: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for (file, text) in texts {
        for link in links(text).filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
        {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => Some(file.clone()),
                _ => beside(file, path),
            };
            let fault = match &target {
                None => Some("outside of the project"),
                Some(target) if !exists(target) => Some("no such file"),
                Some(target) => texts
                    .get(target)
                    .filter(|text| !anchor.is_empty() && !anchors(text).contains(anchor))
                    .map(|_| "no such heading"),
            };
            wrong.extend(fault.map(|fault| format!("{}: {link}: {fault}", file.display())));
        }
    }
    wrong
}

/// Pages of the book that its table of contents does not name.
fn unlisted(texts: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let contents = Path::new(BOOK).join(CONTENTS);
    let listed: BTreeSet<PathBuf> = texts
        .get(&contents)
        .into_iter()
        .flat_map(|text| links(text))
        .filter_map(|link| beside(&contents, link))
        .collect();
    let pages = texts.keys().filter(|path| path.starts_with(BOOK) && **path != contents);
    pages
        .filter(|path| !listed.contains(*path))
        .map(|path| format!("{}: it does not list {}", contents.display(), path.display()))
        .collect()
}

/// What a link means in a file: a path from the project's root; `None` if it leads out of that.
pub(crate) fn beside(file: &Path, link: &str) -> Option<PathBuf> {
    let mut path = file.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => {
                if !path.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    Some(path)
}

/// Lines that are not code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// The targets of `[text](target)`, outside of code.
pub(crate) fn links(text: &str) -> impl Iterator<Item = &str> {
    prose(text).flat_map(|line| {
        // Every second piece is between backquotes; a link's text may be, too, so its end is in the next piece.
        let pieces = line.split('`').step_by(2);
        pieces.flat_map(|piece| piece.split("](").skip(1)).filter_map(|rest| rest.split(')').next())
    })
}

/// The anchors that forges give to headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(files: &[(&str, &str)]) -> BTreeMap<PathBuf, String> {
        files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect()
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let texts = texts(&[
            (
                "README.md",
                "# A\n[b](docs/b.md#two-words-its-three) [`c`](docs/c.md) [d](https://d) `[e](f)`",
            ),
            (
                "docs/b.md",
                "[a](../README.md#a) [x](#gone) [out](../../etc)\n```\n# no heading\n[g](h)\n```\n## Two words, it's three",
            ),
        ]);
        let found = broken(&texts, &|path| texts.contains_key(path));
        let expected = [
            "README.md: docs/c.md: no such file",
            "docs/b.md: #gone: no such heading",
            "docs/b.md: ../../etc: outside of the project",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_book_lists_its_pages() {
        let texts = texts(&[
            ("docs/SUMMARY.md", "- [one](one.md)\n- [two](tutorial/2.md)"),
            ("docs/one.md", ""),
            ("docs/tutorial/2.md", ""),
            ("docs/three.md", ""),
            ("elsewhere/four.md", ""),
        ]);
        assert_eq!(unlisted(&texts), ["docs/SUMMARY.md: it does not list docs/three.md"]);
    }
}
