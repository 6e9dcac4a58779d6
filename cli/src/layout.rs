//! `gapless layout`: what a layout's datatype is and what it was committed to.

use super::failure::Failure;
use super::selection::{Selection, catalogue};
use super::{lines::tell, tree};
use gapless_dtype::Shape;
use gapless_layouts::{Case, Side};
use gapless_report::Bytes;
use std::process::ExitCode;

/// Lines of a committed program that are shown.
const PROGRAM_LINES_MAX: usize = 40;

/// Which layouts to show.
#[derive(Debug, clap::Args)]
pub(super) struct Layout {
    #[command(flatten)]
    selection: Selection,
}

impl Layout {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        if self.selection.is_empty() {
            tell(&catalogue())?;
            return Ok(ExitCode::SUCCESS);
        }
        for case in self.selection.cases()? {
            tell(&describe(&case)?)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn describe(case: &Case) -> Result<String, Failure> {
    let same = case.send.datatype == case.recv.datatype
        || case.send.datatype.same_structure(&case.recv.datatype);
    let mut text = format!("{}: {}\n", case.name, Bytes(case.payload_bytes));
    if same && case.send.origin == case.recv.origin && case.send.count == case.recv.count {
        text += &side("sent and received", &case.send)?;
    } else {
        text += &side("sent", &case.send)?;
        text += &side("received", &case.recv)?;
    }
    Ok(text)
}

fn side(title: &str, side: &Side) -> Result<String, Failure> {
    let layout = side.datatype.commit()?;
    let lengths = layout.block_lengths();
    let signature = layout.signature();
    let mut text = format!(
        "{title}: {} × a type {} deep; displacement 0 is byte {} of {}\n",
        side.count,
        side.datatype.depth(),
        side.origin,
        Bytes(side.buffer_bytes),
    );
    text += &tree::tree(&side.datatype);
    text += &format!("  size         {} B\n", layout.size());
    text += &format!("  extent       {} B ({} .. {})\n", layout.extent(), layout.lb(), layout.ub());
    text += &format!(
        "  true extent  {} B ({} .. {})\n",
        layout.true_extent(),
        layout.true_lb(),
        layout.true_ub()
    );
    text += &format!(
        "  blocks       {} of {} to {} B, {:.1} on average; gaps of {} B in all\n",
        layout.blocks(),
        lengths.min,
        lengths.max,
        lengths.mean,
        layout.gap_bytes(),
    );
    text += &format!("  shape        {}\n", shape(layout.shape()));
    text += &format!(
        "  signature    {} elements, {} B, {:?}\n",
        signature.elements(),
        signature.bytes(),
        signature.kind()
    );
    text += &format!("  flattened    {} B\n", layout.flatten().len());
    text += "  program\n";
    let program = layout.program().to_string();
    let lines = program.lines().count();
    for line in program.lines().take(PROGRAM_LINES_MAX) {
        text += &format!("    {line}\n");
    }
    if lines > PROGRAM_LINES_MAX {
        text += &format!("    … {} more lines\n", lines - PROGRAM_LINES_MAX);
    }
    Ok(text)
}

fn shape(shape: &Shape) -> String {
    match shape {
        Shape::Empty => "empty".to_owned(),
        Shape::Contiguous { displacement, len } => format!("contiguous: {len} B at {displacement}"),
        Shape::Strided { displacement, len, dims } => {
            let dims: Vec<String> =
                dims.iter().map(|dim| format!("{} every {} B", dim.count, dim.stride)).collect();
            format!("strided: {len} B at {displacement}, {}", dims.join(" of "))
        }
        Shape::EqualBlocks { len, displacements, .. } => {
            format!("equal blocks: {} of {len} B at listed displacements", displacements.len())
        }
        Shape::Affine { count, displacement0, displacement_step, len0, len_step } => format!(
            "affine: {count} blocks, the first {len0} B at {displacement0}, \
             each {len_step:+} B and {displacement_step:+} B further"
        ),
        Shape::General => "general".to_owned(),
    }
}
