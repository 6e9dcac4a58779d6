//! Taking a datatype apart and putting it together again through [`Contents`], and printing it.

use std::fmt::Write as _;

use crate::{Contents, Datatype, Primitive, TypeError};

/// The types `datatype` was made of, in the constructor's order.
pub fn children(datatype: &Datatype) -> Vec<Datatype> {
    datatype.contents().types().to_vec()
}

/// The same constructor with the same arguments over other types.
///
/// # Errors
/// What the constructor says of the new types, an overflow for instance.
///
/// # Panics
/// If `types` is not as long as [`children`] of `datatype`.
pub fn with_children(datatype: &Datatype, types: &[Datatype]) -> Result<Datatype, TypeError> {
    datatype.contents().with_types(types).rebuild()
}

/// Builds the whole tree anew from its contents, down to the predefined types.
///
/// # Errors
/// None for a type that its own constructors accepted; a constructor's error otherwise.
pub fn rebuild(datatype: &Datatype) -> Result<Datatype, TypeError> {
    let types: Result<Vec<_>, _> = children(datatype).iter().map(rebuild).collect();
    with_children(datatype, &types?)
}

/// The calls that made `datatype`, on one line, as
/// `vector(2, 1, -3, MPI_INT)` or `structure([1, 2], [0, 8], [MPI_CHAR, MPI_DOUBLE])`.
pub fn describe(datatype: &Datatype) -> String {
    let mut text = String::new();
    write_call(&mut text, datatype).expect("writing to a string");
    text
}

fn write_call(text: &mut String, datatype: &Datatype) -> std::fmt::Result {
    match datatype.contents() {
        Contents::Primitive(primitive) => return text.write_str(primitive.name()),
        Contents::Dup { .. } => text.write_str("dup(")?,
        Contents::Contiguous { count, .. } => write!(text, "contiguous({count}, ")?,
        Contents::Vector { count, blocklength, stride, .. } => {
            write!(text, "vector({count}, {blocklength}, {stride}, ")?;
        }
        Contents::Hvector { count, blocklength, stride_bytes, .. } => {
            write!(text, "hvector({count}, {blocklength}, {stride_bytes}, ")?;
        }
        Contents::Indexed { blocklengths, displacements, .. } => {
            write!(text, "indexed({blocklengths:?}, {displacements:?}, ")?;
        }
        Contents::Hindexed { blocklengths, displacements_bytes, .. } => {
            write!(text, "hindexed({blocklengths:?}, {displacements_bytes:?}, ")?;
        }
        Contents::IndexedBlock { blocklength, displacements, .. } => {
            write!(text, "indexed_block({blocklength}, {displacements:?}, ")?;
        }
        Contents::HindexedBlock { blocklength, displacements_bytes, .. } => {
            write!(text, "hindexed_block({blocklength}, {displacements_bytes:?}, ")?;
        }
        Contents::Struct { blocklengths, displacements_bytes, .. } => {
            write!(text, "structure({blocklengths:?}, {displacements_bytes:?}, [")?;
        }
        Contents::Subarray { sizes, subsizes, starts, order, .. } => {
            write!(text, "subarray({sizes:?}, {subsizes:?}, {starts:?}, {order:?}, ")?;
        }
        Contents::Darray { size, rank, gsizes, distribs, dargs, psizes, order, .. } => {
            write!(text, "darray({size}, {rank}, {gsizes:?}, {distribs:?}, {dargs:?}, ")?;
            write!(text, "{psizes:?}, {order:?}, ")?;
        }
        Contents::Resized { lb, extent, .. } => write!(text, "resized({lb}, {extent}, ")?,
    }
    for (at, child) in children(datatype).iter().enumerate() {
        if at > 0 {
            text.push_str(", ");
        }
        write_call(text, child)?;
    }
    let is_struct = matches!(datatype.contents(), Contents::Struct { .. });
    text.write_str(if is_struct { "])" } else { ")" })
}

/// The constructor's name as [`describe`] prints it; predefined types are `primitive`.
pub fn constructor(datatype: &Datatype) -> &'static str {
    match datatype.contents() {
        Contents::Primitive(Primitive::Byte | Primitive::Packed) => "byte",
        Contents::Primitive(_) => "primitive",
        contents => contents.combiner().name(),
    }
}
