//! What the committed images were built from: a line for each file that goes into them or comes out, with a hash of
//! its bytes, and one for what the compilers are told. Building takes two processors a minute; reading these lines
//! notices a source or an image that was changed alone, which is what happens by accident. A hash against malice is
//! not needed: `cargo xtask kernels --check` builds the images and compares bytes.

use std::fmt::Write as _;

/// Some text or file, by its name.
pub(super) type Named = (String, Vec<u8>);

/// The text of the file of stamps.
pub(super) fn text(files: &[Named]) -> String {
    let mut text =
        "# What the images were built from, and they; `cargo xtask kernels` writes it.\n"
            .to_owned();
    for (name, bytes) in files {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:016x} {name}", hash(bytes));
    }
    text
}

/// Names that do not have the stamp that was committed for them, or have none, or are no longer there.
pub(super) fn differing(files: &[Named], committed: &str) -> Vec<String> {
    let now = text(files);
    let lines = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    };
    let (now, then) = (lines(&now), lines(committed));
    let changed = now.iter().filter(|line| !then.contains(line));
    let gone = then.iter().filter(|line| !now.contains(line));
    let name =
        |line: &String| line.split_once(' ').map_or(line.clone(), |(_, name)| name.to_owned());
    let mut names: Vec<String> = changed.chain(gone).map(name).collect();
    names.sort();
    names.dedup();
    names
}

/// FNV-1a, of 64 bits.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(all: &[(&str, &str)]) -> Vec<Named> {
        all.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect()
    }

    #[test]
    fn known_hashes() {
        assert_eq!(hash(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(hash(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn changed_new_and_missing_files_are_named() {
        let committed = text(&files(&[("a.h", "1"), ("b.cu", "2"), ("c.fatbin", "3")]));
        assert!(
            differing(&files(&[("c.fatbin", "3"), ("a.h", "1"), ("b.cu", "2")]), &committed)
                .is_empty()
        );
        let now = files(&[("a.h", "1"), ("b.cu", "changed"), ("d.h", "4")]);
        assert_eq!(differing(&now, &committed), ["b.cu", "c.fatbin", "d.h"]);
        assert_eq!(differing(&now, ""), ["a.h", "b.cu", "d.h"]);
    }
}
