//! Layouts as bytes, for a peer. All numbers are little endian, all displacements and lengths in bytes.
//!
//! ```text
//! layout := "GLAY" version:u16 0:u16 total:u64
//!           lb:i64 ub:i64 true_lb:i64 true_ub:i64
//!           ops:u32 root:u32 root_disp:i64         root is 2³² − 1 if the layout has no bytes
//!           op{ops} signature
//! op     := 0 len:u64                              run
//!         | 1 body:u32 count:u64 stride:i64        loop
//!         | 2 n:u64 len:u64 disp:i64{n}            blocks
//!         | 3 n:u64 disp:i64{n} len:u64{n}         list
//!         | 4 count:u64 step:i64 len:u64 len_step:i64   affine
//!         | 5 body:u32 n:u64 disp:i64{n}           each
//!         | 6 n:u64 (disp:i64 op:u32){n}           seq
//! ```
//!
//! Decoding trusts nothing. Lengths are checked before anything is allocated, ops may only name earlier
//! ones, and sizes, prefix sums, bounds and depth are derived anew as they are for a layout built here; so
//! a decoded layout is as safe to use as any.

mod reader;

use reader::Reader;

use crate::layout::{Layout, LayoutBounds};
use crate::limits::{MAX_PROGRAM_DEPTH, MAX_PROGRAM_OPS};
use crate::program::{Op, OpId, Program, ProgramError, ProgramPart};
use crate::signature::SignatureDecodeError;
use std::fmt;

const MAGIC: [u8; 4] = *b"GLAY";
const VERSION: u16 = 1;
const NO_ROOT: u32 = u32::MAX;
/// Where `total` stands.
const TOTAL_AT: usize = 8;
/// Bytes before the ops.
const HEADER_BYTES: usize = 64;
/// Most signatures are no longer.
const SIGNATURE_BYTES: usize = 64;

const RUN: u8 = 0;
const LOOP: u8 = 1;
const BLOCKS: u8 = 2;
const LIST: u8 = 3;
const AFFINE: u8 = 4;
const EACH: u8 = 5;
const SEQ: u8 = 6;

/// Why bytes are not a layout, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlattenError {
    /// Where the trouble is.
    pub offset: usize,
    /// What it is.
    pub reason: FlattenFault,
}

impl fmt::Display for FlattenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, reason } = self;
        write!(f, "byte {offset} of the flattened layout: {reason}")
    }
}

impl std::error::Error for FlattenError {}

/// What is wrong with a flattened layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlattenFault {
    /// The bytes end in the middle.
    Truncated,
    /// Not a flattened layout at all.
    Magic,
    /// Written by a version that this one cannot read.
    Version {
        /// The version of the bytes.
        found: u16,
        /// The version understood.
        expected: u16,
    },
    /// The length that the bytes state is not theirs.
    Length {
        /// The length written in the header.
        stated: u64,
        /// The length of the bytes.
        given: usize,
    },
    /// An op of no known kind.
    Tag(u8),
    /// A list claims more entries than bytes are left for.
    Entries {
        /// Entries claimed.
        entries: u64,
    },
    /// More ops than [`MAX_PROGRAM_OPS`].
    TooManyOps,
    /// Deeper than [`MAX_PROGRAM_DEPTH`].
    TooDeep,
    /// A size, displacement or bound does not fit 63 bits.
    Overflow,
    /// An op that no layout has.
    Malformed(&'static str),
    /// The stated bounds are not those of the data, or are no bounds.
    Bounds,
    /// The signature is broken.
    Signature(SignatureDecodeError),
    /// The signature has another size than the data.
    SignatureSize {
        /// Bytes that the signature counts.
        signature: u64,
        /// Bytes that the program has.
        data: u64,
    },
    /// Something follows the layout.
    Trailing,
}

impl fmt::Display for FlattenFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the bytes end here"),
            Self::Magic => f.write_str("this is no layout"),
            Self::Version { found, expected } => write!(f, "version {found} is not {expected}"),
            Self::Length { stated, given } => {
                write!(f, "{stated} bytes are stated, but {given} are there")
            }
            Self::Tag(what) => write!(f, "there is no op of kind {what}"),
            Self::Entries { entries } => write!(f, "{entries} entries do not fit the bytes left"),
            Self::TooManyOps => write!(f, "more than {MAX_PROGRAM_OPS} ops"),
            Self::TooDeep => write!(f, "ops nest deeper than {MAX_PROGRAM_DEPTH}"),
            Self::Overflow => f.write_str("a size or bound overflows"),
            Self::Malformed(what) => write!(f, "{what}"),
            Self::Bounds => f.write_str("the stated bounds are not the layout's"),
            Self::Signature(error) => write!(f, "{error}"),
            Self::SignatureSize { signature, data } => {
                write!(f, "the signature is of {signature} bytes, the data of {data}")
            }
            Self::Trailing => f.write_str("more bytes follow the layout"),
        }
    }
}

impl std::error::Error for FlattenFault {}

impl Layout {
    /// How long [`flatten`](Self::flatten) is, without making it.
    #[must_use]
    pub fn flattened_bytes(&self) -> u64 {
        let mut signature = Vec::new();
        self.signature().encode(&mut signature);
        (self.bytes_before_signature() + signature.len()) as u64
    }

    fn bytes_before_signature(&self) -> usize {
        self.committed().ops().iter().map(op_bytes).sum::<usize>() + HEADER_BYTES
    }

    /// The layout as bytes, signature included; a peer of any architecture decodes it with
    /// [`unflatten`](Self::unflatten). Linear in the committed program.
    #[must_use]
    pub fn flatten(&self) -> Vec<u8> {
        let program = self.committed();
        let mut out = Vec::with_capacity(self.bytes_before_signature() + SIGNATURE_BYTES);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend([0; 2]);
        out.extend(0u64.to_le_bytes());
        let LayoutBounds { lb, ub, true_lb, true_ub } = self.bounds();
        [lb, ub, true_lb, true_ub].iter().for_each(|bound| out.extend(bound.to_le_bytes()));
        // `push` admits no more than MAX_PROGRAM_OPS.
        let ops = u32::try_from(program.ops().len()).unwrap_or(NO_ROOT);
        let (root, disp) = program.root().map_or((NO_ROOT, 0), |part| (part.op.raw(), part.disp));
        out.extend(ops.to_le_bytes());
        out.extend(root.to_le_bytes());
        out.extend(disp.to_le_bytes());
        program.ops().iter().for_each(|op| write_op(op, &mut out));
        self.signature().encode(&mut out);
        let total = out.len() as u64;
        out[TOTAL_AT..TOTAL_AT + 8].copy_from_slice(&total.to_le_bytes());
        out
    }

    /// The layout that `bytes` are the whole [`flatten`](Self::flatten) of.
    ///
    /// Safe with any bytes; time and memory are linear in their number, and a layout that comes out is as
    /// sound as a committed one.
    ///
    /// # Errors
    ///
    /// [`FlattenError`] with the offset and the fault.
    pub fn unflatten(bytes: &[u8]) -> Result<Layout, FlattenError> {
        let mut reader = Reader { bytes, at: 0 };
        reader.header()?;
        let bounds_at = reader.at;
        let [lb, ub, true_lb, true_ub] =
            [reader.i64()?, reader.i64()?, reader.i64()?, reader.i64()?];
        let bounds = LayoutBounds { lb, ub, true_lb, true_ub };
        let ops = reader.u32()? as usize;
        let (root, root_disp) = (reader.u32()?, reader.i64()?);
        if ops > MAX_PROGRAM_OPS {
            return Err(reader.fault(FlattenFault::TooManyOps));
        }
        let mut program = Program::default();
        for _ in 0..ops {
            let at = reader.at;
            let op = reader.op(&program)?;
            program.push(op).map_err(|error| FlattenError { offset: at, reason: error.into() })?;
        }
        let root = (root != NO_ROOT)
            .then(|| OpId::new(root as usize))
            .flatten()
            .map(|op| ProgramPart { disp: root_disp, op });
        let placed = program.set_root(root);
        placed.map_err(|error| FlattenError { offset: bounds_at, reason: error.into() })?;
        let sound = match program.bounds() {
            Some(touched) => touched == (true_lb, true_ub),
            None => true_lb == true_ub && ops == 0,
        };
        if !sound || ub.checked_sub(lb).is_none() || true_ub.checked_sub(true_lb).is_none() {
            return Err(FlattenError { offset: bounds_at, reason: FlattenFault::Bounds });
        }
        let signature = reader.signature()?;
        let data = program.root_facts().map_or(0, |facts| facts.size);
        if signature.bytes() != data {
            let signature = signature.bytes();
            return Err(reader.fault(FlattenFault::SignatureSize { signature, data }));
        }
        if reader.at != bytes.len() {
            return Err(reader.fault(FlattenFault::Trailing));
        }
        Ok(Layout::from_parts(program.with_lines(), bounds, signature))
    }
}

/// Bytes of an op.
fn op_bytes(op: &Op) -> usize {
    1 + match op {
        Op::Run { .. } => 8,
        Op::Loop { .. } => 20,
        Op::Blocks { disps, .. } => 16 + 8 * disps.len(),
        Op::List { disps, .. } => 8 + 16 * disps.len(),
        Op::Affine { .. } => 32,
        Op::Each { disps, .. } => 12 + 8 * disps.len(),
        Op::Seq { parts, .. } => 8 + 12 * parts.len(),
    }
}

fn write_list(list: &[i64], out: &mut Vec<u8>) {
    out.extend(list.iter().flat_map(|entry| entry.to_le_bytes()));
}

fn write_op(op: &Op, out: &mut Vec<u8>) {
    match op {
        Op::Run { len } => {
            out.push(RUN);
            out.extend(len.to_le_bytes());
        }
        Op::Loop { count, stride, body } => {
            out.push(LOOP);
            out.extend(body.raw().to_le_bytes());
            out.extend(count.to_le_bytes());
            out.extend(stride.to_le_bytes());
        }
        Op::Blocks { len, disps } => {
            out.push(BLOCKS);
            out.extend((disps.len() as u64).to_le_bytes());
            out.extend(len.to_le_bytes());
            write_list(disps, out);
        }
        Op::List { disps, starts } => {
            out.push(LIST);
            out.extend((disps.len() as u64).to_le_bytes());
            write_list(disps, out);
            out.extend(starts.windows(2).flat_map(|ends| (ends[1] - ends[0]).to_le_bytes()));
        }
        Op::Affine { count, step, len, len_step } => {
            out.push(AFFINE);
            out.extend(count.to_le_bytes());
            out.extend(step.to_le_bytes());
            out.extend(len.to_le_bytes());
            out.extend(len_step.to_le_bytes());
        }
        Op::Each { disps, body } => {
            out.push(EACH);
            out.extend(body.raw().to_le_bytes());
            out.extend((disps.len() as u64).to_le_bytes());
            write_list(disps, out);
        }
        Op::Seq { parts, .. } => {
            out.push(SEQ);
            out.extend((parts.len() as u64).to_le_bytes());
            for part in parts {
                out.extend(part.disp.to_le_bytes());
                out.extend(part.op.raw().to_le_bytes());
            }
        }
    }
}

impl From<ProgramError> for FlattenFault {
    fn from(error: ProgramError) -> FlattenFault {
        match error {
            ProgramError::Overflow => FlattenFault::Overflow,
            ProgramError::TooManyOps => FlattenFault::TooManyOps,
            ProgramError::TooDeep => FlattenFault::TooDeep,
            ProgramError::Malformed(why) => FlattenFault::Malformed(why),
        }
    }
}

#[cfg(test)]
mod tests;
