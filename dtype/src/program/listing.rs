//! The committed program in words, one op a line, children first.

use std::fmt;

use super::{Op, Program, ProgramPart};

/// Entries of a list that are written out before the rest is only counted.
const SHOWN: usize = 8;

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(root) = self.root() else { return f.write_str("empty") };
        for (index, op) in self.ops().iter().enumerate() {
            writeln!(f, "%{index} = {op}")?;
        }
        write!(f, "{root}")
    }
}

impl fmt::Display for ProgramPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{} at {}", self.op.index(), self.disp)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Run { len } => write!(f, "run {len}"),
            Op::Loop { count, stride, body } => {
                write!(f, "loop {count} stride {stride} of %{}", body.index())
            }
            Op::Blocks { len, disps } => {
                write!(f, "blocks {} of {len} at ", disps.len())?;
                shorten(f, disps.iter())
            }
            Op::List { disps, starts } => {
                write!(f, "list {}: ", disps.len())?;
                let lens = starts.windows(2).map(|ends| ends[1] - ends[0]);
                shorten(f, disps.iter().zip(lens).map(|(disp, len)| format!("{len} at {disp}")))
            }
            Op::Affine { count, step, len, len_step } => {
                write!(f, "affine {count}: {len} step {len_step} at 0 step {step}")
            }
            Op::Each { disps, body } => {
                write!(f, "each {} of %{} at ", disps.len(), body.index())?;
                shorten(f, disps.iter())
            }
            Op::Seq { parts, .. } => {
                write!(f, "seq {}: ", parts.len())?;
                shorten(f, parts.iter())
            }
        }
    }
}

fn shorten<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    mut items: impl ExactSizeIterator<Item = T>,
) -> fmt::Result {
    for (i, item) in items.by_ref().take(SHOWN).enumerate() {
        let separator = if i == 0 { "" } else { ", " };
        write!(f, "{separator}{item}")?;
    }
    match items.len() {
        0 => Ok(()),
        more => write!(f, ", … {more} more"),
    }
}
