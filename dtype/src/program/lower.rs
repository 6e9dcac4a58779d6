//! From a datatype to a program: every constructor in terms of repeating, placing and sequencing.
//!
//! A datatype that is shared by several others is lowered once, so the work is linear in the lists that
//! the constructors were given. Recursion is bounded by [`MAX_DEPTH`](crate::limits::MAX_DEPTH).

use std::collections::HashMap;

use super::{Program, ProgramError, ProgramPart};
use crate::contents::Contents;
use crate::datatype::Datatype;
use crate::optimize::{Builder, Lengths, ProgramPiece};

/// The normalised program of one instance of `datatype`.
pub(crate) fn lower(datatype: &Datatype) -> Result<Program, ProgramError> {
    let mut lowering = Lowering::default();
    let root = lowering.piece(datatype)?;
    lowering.builder.finish(root)
}

/// The normalised program of another one at each of `places`; its instances are `extent` apart.
pub(crate) fn placed(page: &Program, extent: i64, places: &[i64]) -> Result<Program, ProgramError> {
    let mut builder = Builder::on(page);
    let root = builder.place(page.root(), extent, Lengths::Equal(1), places, 1)?;
    builder.finish(root)
}

#[derive(Default)]
struct Lowering {
    builder: Builder,
    known: HashMap<Datatype, ProgramPiece>,
}

impl Lowering {
    fn piece(&mut self, datatype: &Datatype) -> Result<ProgramPiece, ProgramError> {
        if let Some(piece) = self.known.get(datatype) {
            return Ok(*piece);
        }
        let piece = self.lower(datatype)?;
        self.known.insert(datatype.clone(), piece);
        Ok(piece)
    }

    fn lower(&mut self, datatype: &Datatype) -> Result<ProgramPiece, ProgramError> {
        if let Some(simpler) = datatype.lower() {
            return self.piece(&simpler);
        }
        match datatype.contents() {
            Contents::Primitive(primitive) => {
                let mut parts = Vec::new();
                for (part, disp) in primitive.parts() {
                    let disp = i64::try_from(disp).map_err(|_| ProgramError::Overflow)?;
                    parts.extend(self.builder.run(disp, part.size_bytes())?);
                }
                self.builder.sequence(parts)
            }
            Contents::Dup { old } | Contents::Resized { old, .. } => self.piece(old),
            Contents::Contiguous { count, old } => {
                let piece = self.piece(old)?;
                self.builder.repeat(piece, count, old.extent())
            }
            Contents::Vector { count, blocklength, stride, old } => {
                // The stride of a single block means nothing, so it must not overflow either.
                let stride = if count > 1 { stride } else { 0 };
                let bytes = stride.checked_mul(old.extent()).ok_or(ProgramError::Overflow)?;
                self.vector(count, blocklength, bytes, old)
            }
            Contents::Hvector { count, blocklength, stride_bytes, old } => {
                self.vector(count, blocklength, stride_bytes, old)
            }
            Contents::Indexed { blocklengths, displacements, old } => {
                self.indexed(Lengths::Listed(blocklengths), displacements, old.extent(), old)
            }
            Contents::Hindexed { blocklengths, displacements_bytes, old } => {
                self.indexed(Lengths::Listed(blocklengths), displacements_bytes, 1, old)
            }
            Contents::IndexedBlock { blocklength, displacements, old } => {
                self.indexed(Lengths::Equal(blocklength), displacements, old.extent(), old)
            }
            Contents::HindexedBlock { blocklength, displacements_bytes, old } => {
                self.indexed(Lengths::Equal(blocklength), displacements_bytes, 1, old)
            }
            Contents::Struct { blocklengths, displacements_bytes, types } => {
                let mut parts = Vec::with_capacity(types.len());
                for ((old, &count), &disp) in
                    types.iter().zip(blocklengths).zip(displacements_bytes)
                {
                    let piece = self.piece(old)?;
                    if let Some(part) = self.builder.repeat(piece, count, old.extent())? {
                        let disp = part.disp.checked_add(disp).ok_or(ProgramError::Overflow)?;
                        parts.push(ProgramPart { disp, op: part.op });
                    }
                }
                self.builder.sequence(parts)
            }
            Contents::Subarray { .. } | Contents::Darray { .. } => {
                Err(ProgramError::Malformed("an array type that has no simpler form"))
            }
        }
    }

    fn vector(
        &mut self,
        count: u64,
        blocklength: u64,
        stride_bytes: i64,
        old: &Datatype,
    ) -> Result<ProgramPiece, ProgramError> {
        let piece = self.piece(old)?;
        let block = self.builder.repeat(piece, blocklength, old.extent())?;
        self.builder.repeat(block, count, stride_bytes)
    }

    fn indexed(
        &mut self,
        lengths: Lengths<'_>,
        displacements: &[i64],
        unit: i64,
        old: &Datatype,
    ) -> Result<ProgramPiece, ProgramError> {
        let piece = self.piece(old)?;
        self.builder.place(piece, old.extent(), lengths, displacements, unit)
    }
}
