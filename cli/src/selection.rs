//! Which layouts, at which sizes: the options that several verbs share.

use super::failure::Failure;
use gapless_dtype::{Datatype, Primitive};
use gapless_layouts::{
    Case, Family, LayoutError, Options, Side, cases_with, default_set, families, groups, text,
};
use gapless_report::Bytes;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Files of layouts are so long at most.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Options that choose layouts.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Selection {
    /// Layouts or groups of them, by name; repeatable, or separated by commas
    #[arg(short, long = "layout", value_name = "NAME", value_delimiter = ',')]
    layouts: Vec<String>,
    /// Layouts of your own, described in a file: constructor calls as TOML (docs/layouts.md); repeatable
    #[arg(long = "layout-file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The size, as each layout understands it: a matrix's or cube's edge, a parameter set
    #[arg(long, value_name = "N", value_parser = whole)]
    n: Option<u64>,
    /// Depth of faces and halos in cells
    #[arg(long = "h", value_name = "H", value_parser = whole)]
    depth: Option<u64>,
}

/// A number as the layouts take them; each says itself which ones it refuses.
fn whole(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "it is one whole number, 0 or more and less than 2^64".to_owned())
}

/// Messages that can be sent, and what else was asked for.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) cases: Vec<Case>,
    /// Names of layouts that cannot be as they were asked for, and why.
    pub(super) refused: Vec<(String, Failure)>,
}

impl Selection {
    /// The size, whatever it means.
    pub(super) fn n(&self) -> Option<u64> {
        self.n
    }

    /// The names of layouts that were given.
    pub(super) fn names(&self) -> &[String] {
        &self.layouts
    }

    /// What a layout's messages go by beside its size.
    pub(super) fn options(&self) -> Options {
        let mut options = Options::default();
        options.depth = self.depth;
        options
    }

    /// Whether nothing was chosen.
    pub(super) fn is_empty(&self) -> bool {
        !self.is_named() && self.n.is_none() && self.depth.is_none()
    }

    /// Whether any layout was named, or a file of layouts.
    fn is_named(&self) -> bool {
        !self.layouts.is_empty() || !self.files.is_empty()
    }

    /// The messages chosen; a representative set if no layout was named. All of them, or an error.
    pub(super) fn cases(&self) -> Result<Vec<Case>, Failure> {
        let Chosen { cases, refused } = self.possible()?;
        refused.into_iter().next().map_or(Ok(cases), |(_, why)| Err(why))
    }

    /// The messages chosen, as far as they are possible; an error if none is, or a name is nobody's.
    pub(super) fn possible(&self) -> Result<Chosen, Failure> {
        if self.layouts.is_empty() {
            let lonely = [("--n", self.n), ("--h", self.depth)];
            if let Some((option, Some(value))) = lonely.into_iter().find(|(_, v)| v.is_some()) {
                let why = "it needs --layout: sizes mean different things to different layouts";
                return Err(Failure::BadOption {
                    option,
                    value: value.to_string(),
                    why: why.to_owned(),
                });
            }
            let cases = if self.files.is_empty() { default_set() } else { self.own()? };
            return Ok(Chosen { cases, refused: Vec::new() });
        }
        let options = self.options();
        let (mut all, mut refused): (Vec<Case>, Vec<(String, Failure)>) = (Vec::new(), Vec::new());
        for name in &self.layouts {
            let cases = match cases_with(name, self.n, &options) {
                Ok(cases) => cases,
                Err(error @ LayoutError::Unknown { .. }) => return Err(error.into()),
                Err(error) => {
                    if refused.iter().all(|(known, _)| known != name) {
                        refused.push((name.clone(), self.blamed(error)));
                    }
                    continue;
                }
            };
            for case in cases {
                if !all.iter().any(|known| known.name == case.name) {
                    all.push(case);
                }
            }
        }
        let mut names = all.iter().map(|case| case.name.clone()).collect();
        for case in self.own()? {
            push_new(&mut all, &mut names, case)?;
        }
        if all.is_empty() && !refused.is_empty() {
            return Err(refused.swap_remove(0).1);
        }
        Ok(Chosen { cases: all, refused })
    }

    /// The layouts of the files.
    pub(super) fn own(&self) -> Result<Vec<Case>, Failure> {
        let (mut all, mut names) = (Vec::new(), HashSet::new());
        for path in &self.files {
            for case in text::parse(&read(path)?, path)? {
                push_new(&mut all, &mut names, case)?;
            }
        }
        Ok(all)
    }

    /// The option that a layout cannot do with, and what it may be.
    fn blamed(&self, error: LayoutError) -> Failure {
        let with = self.depth.map_or_else(String::new, |depth| format!(" with --h {depth}"));
        let why = match (&error, error.allowed()) {
            (LayoutError::Size { layout, .. }, Some(allowed)) if self.n.is_some() => {
                format!("layout {layout} refuses it{with}: {allowed}")
            }
            _ => error.to_string(),
        };
        match (self.n, self.depth) {
            (Some(n), _) => Failure::BadOption { option: "--n", value: n.to_string(), why },
            (None, Some(h)) => Failure::BadOption { option: "--h", value: h.to_string(), why },
            (None, None) => error.into(),
        }
    }
}

/// A case of a file must not be taken for another one.
fn push_new(all: &mut Vec<Case>, names: &mut HashSet<String>, case: Case) -> Result<(), Failure> {
    if !names.insert(case.name.clone()) {
        let why = "there are two layouts of this name: give one of them another".to_owned();
        return Err(Failure::BadOption { option: "--layout-file", value: case.name, why });
    }
    all.push(case);
    Ok(())
}

/// The text of a file of layouts.
fn read(path: &Path) -> Result<String, Failure> {
    let bad = |why: String| Failure::BadOption {
        option: "--layout-file",
        value: path.display().to_string(),
        why,
    };
    // A pipe would wait for its writer, and could be read by one of several processes only.
    let about = std::fs::metadata(path).map_err(|error| bad(error.to_string()))?;
    if !about.is_file() {
        return Err(bad("it is no ordinary file".to_owned()));
    }
    if about.len() > FILE_BYTES_MAX {
        return Err(bad(format!("it is longer than {}", Bytes(FILE_BYTES_MAX))));
    }
    std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))
}

/// A message of contiguous bytes.
pub(super) fn contiguous(size: u64) -> Case {
    let side = Side {
        datatype: Datatype::from(Primitive::Byte),
        count: size,
        origin: 0,
        buffer_bytes: size,
    };
    Case {
        name: "contiguous".to_owned(),
        family: Family::Own,
        send: side.clone(),
        recv: side,
        payload_bytes: size,
        expected_send_blocks: Some(1),
        expected_recv_blocks: Some(1),
    }
}

/// A layout's message repeated until it has about `size` bytes, as `option` asks; at least once.
pub(super) fn repeated(mut case: Case, option: &'static str, size: u64) -> Result<Case, Failure> {
    let times = (size / case.payload_bytes.max(1)).max(1);
    let name = case.name.clone();
    let too_long = || Failure::BadOption {
        option,
        value: size.to_string(),
        why: format!("{} repeated so often has more bytes than fit in 64 bits", name),
    };
    for side in [&mut case.send, &mut case.recv] {
        side.count = side.count.checked_mul(times).ok_or_else(too_long)?;
    }
    case.payload_bytes = case.payload_bytes.checked_mul(times).ok_or_else(too_long)?;
    if times > 1 {
        case.name = format!("{times} × {}", case.name);
    }
    Ok(case)
}

/// The names that can be chosen, a line each.
pub(super) fn catalogue() -> String {
    let mut text = String::from("layouts:\n");
    for family in families() {
        text += &format!("  {:<14} {} ({})\n", family.name, family.meaning, family.source);
        text += &format!("  {:<14}   n: {}\n", "", family.n_meaning);
    }
    text += "groups:\n";
    for group in groups() {
        text += &format!("  {:<14} {}\n", group.name, group.meaning);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_twice_is_chosen_or_refused_once() {
        let layouts = ["milc", "v", "milc", "v"].map(str::to_owned).to_vec();
        let Chosen { cases, refused } =
            Selection { layouts, files: Vec::new(), n: Some(64), depth: None }.possible().unwrap();
        let refused: Vec<String> = refused.into_iter().map(|(name, _)| name).collect();
        assert_eq!((cases.len(), refused), (1, vec!["milc".to_owned()]));
    }
}
