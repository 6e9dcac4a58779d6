//! Reading a flattened layout: numbers and ops off the front of bytes that nobody vouches for.

use std::sync::Arc;

use super::{
    AFFINE, BLOCKS, EACH, FlattenError, FlattenFault, LIST, LOOP, MAGIC, RUN, SEQ, TOTAL_AT,
    VERSION,
};
use crate::program::{Op, OpId, Program, ProgramPart};
use crate::signature::Signature;

/// Takes numbers off the front of foreign bytes and knows where it is.
pub(super) struct Reader<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn fault(&self, reason: FlattenFault) -> FlattenError {
        FlattenError { offset: self.at, reason }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], FlattenError> {
        let rest = &self.bytes[self.at..];
        let taken = rest.first_chunk::<N>().ok_or(self.fault(FlattenFault::Truncated))?;
        self.at += N;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, FlattenError> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(super) fn u32(&mut self) -> Result<u32, FlattenError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, FlattenError> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64, FlattenError> {
        self.take().map(i64::from_le_bytes)
    }

    pub(super) fn header(&mut self) -> Result<(), FlattenError> {
        if self.take::<4>()? != MAGIC {
            return Err(FlattenError { offset: 0, reason: FlattenFault::Magic });
        }
        let found = u16::from_le_bytes(self.take()?);
        if found != VERSION || self.take::<2>()? != [0; 2] {
            let reason = FlattenFault::Version { found, expected: VERSION };
            return Err(FlattenError { offset: MAGIC.len(), reason });
        }
        let stated = self.u64()?;
        if stated != self.bytes.len() as u64 {
            let given = self.bytes.len();
            let reason = FlattenFault::Length { stated, given };
            return Err(FlattenError { offset: TOTAL_AT, reason });
        }
        Ok(())
    }

    /// How many entries of `entry_bytes` follow; no more than can be there.
    fn entries(&mut self, entry_bytes: usize) -> Result<usize, FlattenError> {
        let at = self.at;
        let entries = self.u64()?;
        let left = self.bytes.len() - self.at;
        match usize::try_from(entries) {
            Ok(n) if n.checked_mul(entry_bytes).is_some_and(|bytes| bytes <= left) => Ok(n),
            _ => Err(FlattenError { offset: at, reason: FlattenFault::Entries { entries } }),
        }
    }

    /// The bytes of so many numbers.
    fn words(&mut self, n: usize) -> Result<&'a [[u8; 8]], FlattenError> {
        let list = self.bytes[self.at..].get(..n.saturating_mul(8));
        let list = list.ok_or(self.fault(FlattenFault::Truncated))?;
        self.at += list.len();
        Ok(list.as_chunks().0)
    }

    fn disps(&mut self, n: usize) -> Result<Vec<i64>, FlattenError> {
        Ok(self.words(n)?.iter().map(|word| i64::from_le_bytes(*word)).collect())
    }

    fn op_id(&mut self) -> Result<OpId, FlattenError> {
        let at = self.at;
        let index = self.u32()? as usize;
        OpId::new(index).ok_or(FlattenError { offset: at, reason: FlattenFault::TooManyOps })
    }

    /// Reads an op; sums are made from its entries, so that [`Program::push`] has something to check.
    pub(super) fn op(&mut self, known: &Program) -> Result<Op, FlattenError> {
        let at = self.at;
        match self.u8()? {
            RUN => Ok(Op::Run { len: self.u64()? }),
            LOOP => Ok(Op::Loop { body: self.op_id()?, count: self.u64()?, stride: self.i64()? }),
            BLOCKS => {
                let n = self.entries(8)?;
                let len = self.u64()?;
                Ok(Op::Blocks { len, disps: Arc::new(self.disps(n)?) })
            }
            LIST => {
                let n = self.entries(16)?;
                let disps = self.disps(n)?.into();
                let lens = self.at;
                let mut starts = Starts::with_capacity(n);
                for (i, len) in self.words(n)?.iter().enumerate() {
                    let overflow =
                        FlattenError { offset: lens + 8 * i, reason: FlattenFault::Overflow };
                    starts.add(u64::from_le_bytes(*len)).ok_or(overflow)?;
                }
                Ok(Op::List { disps, starts: starts.finish() })
            }
            AFFINE => Ok(Op::Affine {
                count: self.u64()?,
                step: self.i64()?,
                len: self.u64()?,
                len_step: self.i64()?,
            }),
            EACH => {
                let body = self.op_id()?;
                let n = self.entries(8)?;
                Ok(Op::Each { body, disps: self.disps(n)?.into() })
            }
            SEQ => {
                let n = self.entries(12)?;
                let mut parts = Vec::with_capacity(n);
                let mut starts = Starts::with_capacity(n);
                for _ in 0..n {
                    let at = self.at;
                    let part = ProgramPart { disp: self.i64()?, op: self.op_id()? };
                    let fault = |reason| FlattenError { offset: at, reason };
                    let size = known.known(part.op).ok_or_else(|| {
                        fault(FlattenFault::Malformed(
                            "an op names one that does not come before it",
                        ))
                    })?;
                    starts.add(size.size).ok_or_else(|| fault(FlattenFault::Overflow))?;
                    parts.push(part);
                }
                Ok(Op::Seq { parts: parts.into(), starts: starts.finish() })
            }
            tag => Err(FlattenError { offset: at, reason: FlattenFault::Tag(tag) }),
        }
    }

    pub(super) fn signature(&mut self) -> Result<Signature, FlattenError> {
        let mut rest = &self.bytes[self.at..];
        let signature = Signature::decode(&mut rest);
        let signature = signature.map_err(|error| self.fault(FlattenFault::Signature(error)))?;
        self.at = self.bytes.len() - rest.len();
        Ok(signature)
    }
}

/// Prefix sums in the making.
struct Starts {
    starts: Vec<u64>,
    sum: u64,
}

impl Starts {
    fn with_capacity(entries: usize) -> Starts {
        Starts { starts: Vec::with_capacity(entries + 1), sum: 0 }
    }

    fn add(&mut self, len: u64) -> Option<()> {
        self.starts.push(self.sum);
        self.sum = self.sum.checked_add(len)?;
        Some(())
    }

    fn finish(mut self) -> Box<[u64]> {
        self.starts.push(self.sum);
        self.starts.into()
    }
}
