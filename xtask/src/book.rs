//! `cargo xtask book`: the pages of `docs/` as a book, in `target/book/`.
//!
//! mdbook takes one folder. So the pages, and all files of the project that they point at, are laid out as they are here,
//! in `target/book-pages/`: then every link of theirs also holds in the book. The table of contents is that of `docs/`.
//! It begins with the project's README, so that the book's first page lies where its links count from, and ends with the
//! documents that the pages lead to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ci::links::{BOOK, CONTENTS, beside, links};
use crate::metadata::Checkout;
use crate::{Failure, shell, tools};

/// The book's first page.
const FIRST: &str = "README.md";

/// The release of mdbook.
const RELEASE: &str = "0.5.4";

/// How it looks, beside its table of contents.
const STYLE: &str = "wide.css";

/// Makes the book.
pub(crate) fn run(checkout: &Checkout) -> Result<(), Failure> {
    let program = tools::pinned(checkout, "mdbook", RELEASE)?;
    let pages = checkout.target.join("book-pages");
    if pages.exists() {
        fs::remove_dir_all(&pages).map_err(file(&pages))?;
    }
    let mut texts = BTreeMap::new();
    for (path, text) in reached(&|path| fs::read(checkout.root.join(path)).ok()) {
        let to = pages.join(&path);
        let folder = to.parent().unwrap_or(&pages);
        fs::create_dir_all(folder).map_err(file(folder))?;
        fs::write(&to, &text).map_err(file(&to))?;
        texts.insert(path, String::from_utf8_lossy(&text).into_owned());
    }
    let of_book = |name| read(&checkout.root.join(BOOK).join(name));
    for (name, text) in [
        (CONTENTS, contents(&texts)),
        ("book.toml", of_book("book.toml")?),
        (STYLE, of_book(STYLE)?),
    ] {
        let to = pages.join(name);
        fs::write(&to, text).map_err(file(&to))?;
    }
    let book = checkout.target.join("book");
    shell::run(Command::new(program).arg("build").arg(&pages).arg("--dest-dir").arg(&book))?;
    println!("book: {}", checkout.relative(&book.join("index.html")).display());
    Ok(())
}

fn file(path: &Path) -> impl Fn(std::io::Error) -> Failure {
    move |source| Failure::File { path: path.to_owned(), source }
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(file(path))
}

/// The first page, the table of contents, and all files that they, or a document that they lead to, point at.
fn reached(content: &dyn Fn(&Path) -> Option<Vec<u8>>) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut seen) = (BTreeMap::new(), BTreeSet::new());
    let mut next = vec![Path::new(BOOK).join(CONTENTS), PathBuf::from(FIRST)];
    while let Some(path) = next.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        // A folder, or nothing: `cargo xtask ci` names dead links.
        let Some(text) = content(&path) else { continue };
        if path.extension().is_some_and(|kind| kind == "md") {
            let text = String::from_utf8_lossy(&text);
            let inside = links(&text).filter(|link| !link.contains(':') && !link.starts_with('#'));
            let paths = inside.map(|link| link.split('#').next().unwrap_or(link));
            next.extend(paths.filter_map(|link| beside(&path, link)));
        }
        found.insert(path, text);
    }
    found
}

/// The table of contents of `docs/`, seen from the project's root, with the other documents behind it.
fn contents(texts: &BTreeMap<PathBuf, String>) -> String {
    let own = texts.get(&Path::new(BOOK).join(CONTENTS)).map_or("", String::as_str);
    let (heading, own) = own.split_once('\n').unwrap_or(("", own));
    let own = own.replace("](", &format!("]({BOOK}/"));
    let mut text = format!("{heading}\n\n[The project]({FIRST})\n{own}");
    let others = texts.iter().filter(|(path, _)| {
        let inside = path.starts_with(BOOK) || *path == Path::new(FIRST);
        !inside && path.extension().is_some_and(|kind| kind == "md")
    });
    text += "\n# Of the project\n\n";
    for (path, other) in others {
        let title = other.lines().find_map(|line| line.strip_prefix("# "));
        let title = title.unwrap_or("Without a title").replace('`', "");
        text += &format!("- [{title}]({})\n", path.display());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: &[(&str, &str)] = &[
        ("README.md", "# Project\n[docs](docs/README.md) [k](K.md)"),
        ("K.md", "# K"),
        ("docs/SUMMARY.md", "# Book\n[What](README.md)\n- [One](tutorial/1.md)\n"),
        (
            "docs/README.md",
            "[one](tutorial/1.md#a) [web](https://x/y.md) [here](#b) [c](SUMMARY.md)",
        ),
        (
            "docs/tutorial/1.md",
            "# One\n[code](../../src/a.rs) ![plot](../../p.svg) [m](../../M.md)",
        ),
        ("src/a.rs", "[not](followed.md)"),
        ("p.svg", "<svg>"),
        ("M.md", "text\n# The `M`\n[gone](gone.md) [n](sub/N.md)"),
        ("sub/N.md", "# N"),
        ("followed.md", ""),
        ("unreached.md", ""),
    ];

    fn texts() -> BTreeMap<PathBuf, String> {
        let known = |path: &Path| {
            let found = FILES.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| text.as_bytes().to_vec())
        };
        let all = reached(&known).into_iter();
        all.map(|(path, text)| (path, String::from_utf8(text).unwrap())).collect()
    }

    #[test]
    fn what_pages_point_at_comes_along() {
        let texts = texts();
        let paths: Vec<_> = texts.keys().map(|path| path.to_str().unwrap()).collect();
        let pages = ["docs/README.md", "docs/SUMMARY.md", "docs/tutorial/1.md"];
        let expected =
            [&["K.md", "M.md", "README.md"][..], &pages, &["p.svg", "src/a.rs", "sub/N.md"]];
        assert_eq!(paths, expected.concat());
    }

    #[test]
    fn the_contents_name_all_documents() {
        let expected = "# Book\n\n[The project](README.md)\n\
                        [What](docs/README.md)\n- [One](docs/tutorial/1.md)\n\n\
                        # Of the project\n\n- [K](K.md)\n- [The M](M.md)\n- [N](sub/N.md)\n";
        assert_eq!(contents(&texts()), expected);
    }
}
