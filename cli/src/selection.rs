//! Which layouts, at which sizes: the options that several verbs share.

use super::failure::Failure;
use gapless_layouts::{Case, Options, cases_with, default_set, families, groups};

/// Options that choose layouts.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Selection {
    /// Layouts or groups of them, by name; repeatable, or separated by commas
    #[arg(short, long = "layout", value_name = "NAME", value_delimiter = ',')]
    layouts: Vec<String>,
    /// The size, as each layout understands it: a matrix's or cube's edge, a parameter set
    #[arg(long, value_name = "N")]
    n: Option<u64>,
    /// Depth of faces and halos in cells
    #[arg(long = "h", value_name = "H")]
    depth: Option<u64>,
}

impl Selection {
    /// Whether nothing was chosen.
    pub(super) fn is_empty(&self) -> bool {
        self.layouts.is_empty() && self.n.is_none() && self.depth.is_none()
    }

    /// The messages chosen; a representative set if no layout was named.
    pub(super) fn cases(&self) -> Result<Vec<Case>, Failure> {
        if self.layouts.is_empty() {
            let lonely = [("--n", self.n), ("--h", self.depth)];
            if let Some((option, Some(value))) = lonely.into_iter().find(|(_, v)| v.is_some()) {
                let why = "needs --layout: sizes mean different things to different layouts";
                return Err(Failure::BadOption {
                    option,
                    value: value.to_string(),
                    why: why.to_owned(),
                });
            }
            return Ok(default_set());
        }
        let mut options = Options::default();
        options.depth = self.depth;
        let mut all: Vec<Case> = Vec::new();
        for name in &self.layouts {
            for case in cases_with(name, self.n, &options)? {
                if !all.iter().any(|known| known.name == case.name) {
                    all.push(case);
                }
            }
        }
        Ok(all)
    }
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
