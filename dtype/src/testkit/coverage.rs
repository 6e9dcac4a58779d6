//! Which kinds of types a run has seen, as histograms that a test can demand floors of.

use std::collections::BTreeMap;
use std::fmt;

use super::tree::{children, constructor};
use crate::naive::Typemap;
use crate::{Contents, Datatype, Run, Shape};

/// Histograms over the types added: one count per type and class, in named groups.
///
/// | group | classes |
/// |---|---|
/// | `depth` | constructors on the longest path, `0`, `1`, … |
/// | `constructor` | each constructor that occurs anywhere in the type |
/// | `gap` | between neighbouring runs: `1-7`, `8-63`, `64+` bytes forwards, `backward`; `none` without a second run |
/// | `blocks` | maximal runs of one instance: `0`, `1`, `2-3`, `4-15`, `16-63`, `64+` |
/// | `shape` | the variants of [`Shape`], as committed |
/// | `feature` | `negative stride`, `negative displacement`, `zero count`, `zero blocklength`, `zero extent`, `negative extent`, `explicit bounds`, `pair type`, `overlap`, `negative true lb`, `several instances` |
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    types: u64,
    counts: BTreeMap<&'static str, BTreeMap<String, u64>>,
}

impl Coverage {
    /// Adds a type, whose typemap is `typemap`, checked with `count` instances.
    pub fn add(&mut self, datatype: &Datatype, typemap: &Typemap, count: u64) {
        self.types += 1;
        self.hit("depth", &depth(datatype).to_string());
        let mut seen = Seen::default();
        seen.visit(datatype);
        seen.features.insert("several instances", count > 1);
        seen.features.insert("negative true lb", typemap.true_lb() < 0);
        for class in seen.constructors.keys() {
            self.hit("constructor", class);
        }
        for (class, _) in seen.features.iter().filter(|(_, seen)| **seen) {
            self.hit("feature", class);
        }
        let runs = typemap.runs(1).unwrap_or_default();
        if !typemap.is_disjoint(1) {
            self.hit("feature", "overlap");
        }
        for class in gap_classes(&runs) {
            self.hit("gap", class);
        }
        if let Ok(layout) = datatype.commit() {
            self.hit("shape", shape_class(layout.shape()));
        }
        self.hit(
            "blocks",
            match runs.len() {
                0 => "0",
                1 => "1",
                2..=3 => "2-3",
                4..=15 => "4-15",
                16..=63 => "16-63",
                _ => "64+",
            },
        );
    }

    /// Adds what another run has seen.
    pub fn merge(&mut self, other: &Coverage) {
        self.types += other.types;
        for (group, classes) in &other.counts {
            let group = self.counts.entry(group).or_default();
            for (class, count) in classes {
                *group.entry(class.clone()).or_default() += count;
            }
        }
    }

    /// Types added.
    pub fn types(&self) -> u64 {
        self.types
    }

    /// Types of a class; 0 for one that was never seen.
    pub fn count(&self, group: &str, class: &str) -> u64 {
        self.counts.get(group).and_then(|classes| classes.get(class)).copied().unwrap_or(0)
    }

    /// The classes seen less often than `floors` state, one line each; empty if all are reached.
    pub fn shortfalls(&self, floors: &[(&str, &str, u64)]) -> Vec<String> {
        let short = floors.iter().filter(|(group, class, least)| self.count(group, class) < *least);
        short
            .map(|(group, class, least)| {
                format!(
                    "{group} {class}: {} types, at least {least} stated",
                    self.count(group, class)
                )
            })
            .collect()
    }

    fn hit(&mut self, group: &'static str, class: &str) {
        let classes = self.counts.entry(group).or_default();
        match classes.get_mut(class) {
            Some(count) => *count += 1,
            None => {
                classes.insert(class.to_owned(), 1);
            }
        }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} types", self.types)?;
        for (group, classes) in &self.counts {
            writeln!(f, "{group}")?;
            let most = classes.values().copied().max().unwrap_or(1).max(1);
            for (class, count) in classes {
                let bar = usize::try_from(count.saturating_mul(40) / most).unwrap_or(40);
                writeln!(f, "  {class:<22} {count:>9} {}", "#".repeat(bar))?;
            }
        }
        Ok(())
    }
}

/// Constructors on the longest path; 0 for a predefined type.
pub fn depth(datatype: &Datatype) -> usize {
    match datatype.contents() {
        Contents::Primitive(_) => 0,
        _ => 1 + children(datatype).iter().map(depth).max().unwrap_or(0),
    }
}

fn shape_class(shape: &Shape) -> &'static str {
    match shape {
        Shape::Empty => "Empty",
        Shape::Contiguous { .. } => "Contiguous",
        Shape::Strided { .. } => "Strided",
        Shape::EqualBlocks { .. } => "EqualBlocks",
        Shape::Affine { .. } => "Affine",
        Shape::General => "General",
    }
}

fn gap_classes(runs: &[Run]) -> Vec<&'static str> {
    let mut classes: Vec<_> = runs
        .windows(2)
        .map(|pair| match i128::from(pair[1].displacement) - i128::from(pair[0].end()) {
            ..0 => "backward",
            0..8 => "1-7",
            8..64 => "8-63",
            _ => "64+",
        })
        .collect();
    classes.sort_unstable();
    classes.dedup();
    if classes.is_empty() {
        classes.push("none");
    }
    classes
}

#[derive(Default)]
struct Seen {
    constructors: BTreeMap<&'static str, ()>,
    features: BTreeMap<&'static str, bool>,
}

impl Seen {
    fn visit(&mut self, datatype: &Datatype) {
        self.constructors.insert(constructor(datatype), ());
        match datatype.contents() {
            Contents::Primitive(primitive) => self.feature("pair type", primitive.is_pair()),
            Contents::Contiguous { count, .. } => self.feature("zero count", count == 0),
            Contents::Vector { count, blocklength, stride, .. }
            | Contents::Hvector { count, blocklength, stride_bytes: stride, .. } => {
                self.feature("zero count", count == 0);
                self.feature("zero blocklength", blocklength == 0);
                self.feature("negative stride", stride < 0);
            }
            Contents::Indexed { blocklengths, displacements, .. }
            | Contents::Hindexed { blocklengths, displacements_bytes: displacements, .. }
            | Contents::Struct { blocklengths, displacements_bytes: displacements, .. } => {
                self.lists(blocklengths, displacements);
            }
            Contents::IndexedBlock { blocklength, displacements, .. }
            | Contents::HindexedBlock { blocklength, displacements_bytes: displacements, .. } => {
                self.lists(&[blocklength], displacements);
            }
            Contents::Resized { extent, .. } => {
                self.feature("explicit bounds", true);
                self.feature("zero extent", extent == 0);
                self.feature("negative extent", extent < 0);
            }
            Contents::Dup { .. } | Contents::Subarray { .. } | Contents::Darray { .. } => {}
        }
        for child in children(datatype) {
            self.visit(&child);
        }
    }

    fn lists(&mut self, lengths: &[u64], displacements: &[i64]) {
        self.feature("zero count", displacements.is_empty());
        self.feature("zero blocklength", lengths.contains(&0));
        self.feature("negative displacement", displacements.iter().any(|&at| at < 0));
    }

    fn feature(&mut self, class: &'static str, present: bool) {
        *self.features.entry(class).or_default() |= present;
    }
}
