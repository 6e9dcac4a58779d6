//! What moved bytes must look like, found without the code that moved them.
//!
//! A side's bytes are listed by the oracle, `gapless_dtype::naive`, which writes a datatype out
//! literally and shares nothing with committed programs. Where that would take more than
//! [`STEPS_MAX`] steps, the runs are listed by the convertor's `iov`, which shares the committed
//! program with packing but none of its copy loops; every row says which of the two it was.

use gapless_dtype::naive::Typemap;
use gapless_dtype::{Convertor, Run};
use gapless_layouts::Side;

use crate::error::Failure;
pub use crate::error::Wrong;

/// Steps that the oracle may take for one instance: entries placed and loops turned.
pub const STEPS_MAX: u64 = 1 << 23;

/// The pieces of one side of a message in packed order, listed independently.
pub struct Pieces {
    list: List,
    count: u64,
}

enum List {
    Oracle(Typemap),
    Runs(Convertor),
}

impl Pieces {
    /// The pieces of `side`.
    ///
    /// # Errors
    /// A datatype that does not commit or overflows.
    pub fn of(side: &Side) -> Result<Pieces, Failure> {
        Pieces::within(side, STEPS_MAX)
    }

    fn within(side: &Side, steps_max: u64) -> Result<Pieces, Failure> {
        let list = match Typemap::with_steps(&side.datatype, steps_max) {
            Ok(typemap) => List::Oracle(typemap),
            Err(_) => List::Runs(Convertor::new(&side.datatype.commit()?, side.count)?),
        };
        Ok(Pieces { list, count: side.count })
    }

    /// What listed them, for reports: `oracle` or `runs`.
    #[must_use]
    pub fn judge(&self) -> &'static str {
        match self.list {
            List::Oracle(_) => "oracle",
            List::Runs(_) => "runs",
        }
    }

    /// The same as runs of bytes: displacement and length, neighbours joined.
    #[must_use]
    pub fn runs(&self) -> Vec<(isize, usize)> {
        let mut runs: Vec<(isize, usize)> = Vec::new();
        self.each(|displacement, len| {
            let here = offset(displacement);
            match runs.last_mut() {
                Some((start, joined)) if start.checked_add_unsigned(*joined) == Some(here) => {
                    *joined += len;
                }
                _ => runs.push((here, len)),
            }
        });
        runs
    }

    /// Calls `visit` with each piece's displacement and length, in packed order.
    fn each(&self, mut visit: impl FnMut(i64, usize)) {
        let long = |len: u64| usize::try_from(len).expect("a run lies in memory");
        match &self.list {
            List::Oracle(typemap) => {
                for instance in 0..self.count {
                    let base = instance.cast_signed().wrapping_mul(typemap.extent());
                    for entry in typemap.entries() {
                        visit(base + entry.displacement, long(entry.primitive.size_bytes()));
                    }
                }
            }
            List::Runs(convertor) => {
                let mut cursor = convertor.clone();
                cursor.seek(0).expect("every convertor has a beginning");
                let mut runs = [Run::default(); 128];
                loop {
                    let (used, _) = cursor.iov(&mut runs, u64::MAX);
                    if used == 0 {
                        return;
                    }
                    runs[..used].iter().for_each(|run| visit(run.displacement, long(run.len)));
                }
            }
        }
    }

    /// The packed stream of a buffer whose index `origin` is displacement 0.
    ///
    /// # Panics
    /// If the buffer does not hold the pieces.
    #[must_use]
    pub fn gather(&self, buffer: &[u8], origin: usize) -> Vec<u8> {
        let mut packed = Vec::new();
        self.each(|displacement, len| {
            let at = origin.checked_add_signed(offset(displacement)).expect("inside the buffer");
            packed.extend_from_slice(&buffer[at..at + len]);
        });
        packed
    }

    /// Writes a packed stream to its places in a buffer whose index `origin` is displacement 0.
    ///
    /// # Panics
    /// If the buffer does not hold the pieces, or the stream is shorter than they are.
    pub fn scatter(&self, packed: &[u8], buffer: &mut [u8], origin: usize) {
        let mut next = 0;
        self.each(|displacement, len| {
            let at = origin.checked_add_signed(offset(displacement)).expect("inside the buffer");
            buffer[at..at + len].copy_from_slice(&packed[next..next + len]);
            next += len;
        });
    }
}

fn offset(displacement: i64) -> isize {
    isize::try_from(displacement).expect("displacements lie in memory")
}

/// Compares bytes.
///
/// # Errors
/// The first byte that differs; a missing or surplus byte counts as 0.
pub fn same(found: &[u8], expected: &[u8]) -> Result<(), Wrong> {
    if found == expected {
        return Ok(());
    }
    let byte = |bytes: &[u8], at: usize| bytes.get(at).copied().unwrap_or(0);
    let shorter = found.len().min(expected.len());
    let offset = (0..shorter).find(|&at| found[at] != expected[at]).unwrap_or(shorter);
    Err(Wrong { offset, found: byte(found, offset), expected: byte(expected, offset) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_layouts::cases;

    #[test]
    fn both_judges_agree() {
        for name in ["v", "t", "x", "face-x", "lammps-atomic", "milc"] {
            for case in cases(name, Some(1)).or_else(|_| cases(name, Some(16))).unwrap() {
                for side in [&case.send, &case.recv] {
                    let (oracle, runs) =
                        (Pieces::of(side).unwrap(), Pieces::within(side, 0).unwrap());
                    assert_eq!((oracle.judge(), runs.judge()), ("oracle", "runs"), "{}", case.name);
                    let origin = usize::try_from(side.origin).unwrap();
                    let mut buffer = vec![0; usize::try_from(side.buffer_bytes).unwrap()];
                    crate::random::Random::new(1).fill(&mut buffer);
                    let packed = oracle.gather(&buffer, origin);
                    assert_eq!(packed.len() as u64, case.payload_bytes, "{}", case.name);
                    assert!(packed == runs.gather(&buffer, origin), "{}", case.name);
                    let (mut one, mut other) = (vec![0; buffer.len()], vec![0; buffer.len()]);
                    oracle.scatter(&packed, &mut one, origin);
                    runs.scatter(&packed, &mut other, origin);
                    assert!(one == other, "{}", case.name);
                    assert!(oracle.gather(&one, origin) == packed, "{}", case.name);
                }
            }
        }
    }

    #[test]
    fn the_first_wrong_byte_is_named() {
        assert_eq!(same(b"abc", b"abc"), Ok(()));
        let wrong = same(b"abXd", b"abcY").unwrap_err();
        assert_eq!((wrong.offset, wrong.found, wrong.expected), (2, b'X', b'c'));
        let wrong = same(b"ab", b"abc").unwrap_err();
        assert_eq!((wrong.offset, wrong.found, wrong.expected), (2, 0, b'c'));
    }
}
