//! A datatype as a tree of constructor calls, a line each.

use gapless_dtype::{Contents, Datatype};
use std::fmt::{self, Write};

/// Entries of a list that are written out before the rest is only counted.
const SHOWN: usize = 6;
/// Lines after which the rest of a tree is left out.
const LINES_MAX: usize = 60;

/// The tree of `datatype`, neighbours of equal structure once.
pub(super) fn tree(datatype: &Datatype) -> String {
    let mut writer = Writer { text: String::new(), lines: 0 };
    // Writing to a string does not fail.
    let _ = writer.node(datatype, 0);
    if writer.lines > LINES_MAX {
        let _ = writeln!(writer.text, "  … more");
    }
    writer.text
}

struct Writer {
    text: String,
    lines: usize,
}

impl Writer {
    fn node(&mut self, datatype: &Datatype, depth: usize) -> fmt::Result {
        self.lines += 1;
        // A tree may have more nodes than anybody can wait for.
        if self.lines > LINES_MAX {
            return Ok(());
        }
        let line = call(&datatype.contents());
        writeln!(self.text, "{:indent$}{line}", "", indent = 2 * depth + 2)?;
        let types = datatype.contents().types();
        let mut previous: Option<&Datatype> = None;
        let mut repeated = 0usize;
        for child in types {
            if previous.is_some_and(|previous| previous.same_structure(child)) {
                repeated += 1;
                continue;
            }
            self.repeated(repeated, depth + 1)?;
            repeated = 0;
            self.node(child, depth + 1)?;
            previous = Some(child);
        }
        self.repeated(repeated, depth + 1)?;
        Ok(())
    }

    fn repeated(&mut self, times: usize, depth: usize) -> fmt::Result {
        if times == 0 {
            return Ok(());
        }
        self.lines += 1;
        if self.lines <= LINES_MAX {
            writeln!(self.text, "{:indent$}… {times} more like it", "", indent = 2 * depth + 2)?;
        }
        Ok(())
    }
}

/// The call that made a type, without the types it was made of.
fn call(contents: &Contents<'_>) -> String {
    match contents {
        Contents::Primitive(primitive) => primitive.to_string(),
        Contents::Dup { .. } => "dup".to_owned(),
        Contents::Contiguous { count, .. } => format!("contiguous({count})"),
        Contents::Vector { count, blocklength, stride, .. } => {
            format!("vector({count}, {blocklength}, {stride})")
        }
        Contents::Hvector { count, blocklength, stride_bytes, .. } => {
            format!("hvector({count}, {blocklength}, {stride_bytes} B)")
        }
        Contents::Indexed { blocklengths, displacements, .. } => {
            format!("indexed({}, {})", list(blocklengths), list(displacements))
        }
        Contents::Hindexed { blocklengths, displacements_bytes, .. } => {
            format!("hindexed({}, {} B)", list(blocklengths), list(displacements_bytes))
        }
        Contents::IndexedBlock { blocklength, displacements, .. } => {
            format!("indexed_block({blocklength}, {})", list(displacements))
        }
        Contents::HindexedBlock { blocklength, displacements_bytes, .. } => {
            format!("hindexed_block({blocklength}, {} B)", list(displacements_bytes))
        }
        Contents::Struct { blocklengths, displacements_bytes, .. } => {
            format!("structure({}, {} B)", list(blocklengths), list(displacements_bytes))
        }
        Contents::Subarray { sizes, subsizes, starts, order, .. } => format!(
            "subarray({} of {} from {}, {order:?})",
            list(subsizes),
            list(sizes),
            list(starts)
        ),
        Contents::Darray { size, rank, gsizes, distribs, psizes, order, .. } => format!(
            "darray(rank {rank} of {size}, {} over {}, {distribs:?}, {order:?})",
            list(gsizes),
            list(psizes)
        ),
        Contents::Resized { lb, extent, .. } => format!("resized({lb} B, {extent} B)"),
    }
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    let mut words: Vec<String> = items.iter().take(SHOWN).map(ToString::to_string).collect();
    if items.len() > SHOWN {
        words.push(format!("… {} more", items.len() - SHOWN));
    }
    format!("[{}]", words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::Primitive;

    #[test]
    fn calls_nest_and_repetitions_are_counted() {
        let double = Datatype::from(Primitive::Double);
        let vector = Datatype::vector(3, 1, 4, &double).unwrap();
        let lengths = [1; 8];
        let displacements: Vec<i64> = (0..8).map(|i| i * 100).collect();
        let types: Vec<_> = (0..8).map(|_| vector.clone()).collect();
        let structure = Datatype::structure(&lengths, &displacements, &types).unwrap();
        assert_eq!(
            tree(&structure),
            "  structure([1, 1, 1, 1, 1, 1, … 2 more], [0, 100, 200, 300, 400, 500, … 2 more] B)\n    \
             vector(3, 1, 4)\n      MPI_DOUBLE\n    … 7 more like it\n"
        );
    }
}
