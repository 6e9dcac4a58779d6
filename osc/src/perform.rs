//! An operation that a message asks for: read out of the message, checked, and done in memory of the host. In memory of a
//! device, `device_job.rs` does it.

use crate::arithmetic::{Arithmetic, read, write};
use crate::error::Fault;
use crate::header::Stripes;
use crate::memory::{WindowBytes, change, compare_swap, load, store, stripes};
use crate::wire::{Head, OPERANDS, READ_MAX, WindowMessage};
use gapless_dtype::Primitive;
use gapless_engine::{ReduceOp, Typed};
use std::ops::Range;

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Does {
    Nothing,
    Put,
    Get,
    /// One number, of 1, 2, 4 or 8 bytes.
    Compare {
        width: usize,
        compare: u64,
        swap: u64,
    },
    Change {
        arithmetic: Arithmetic,
        fetches: bool,
    },
}

/// An operation, checked: it goes with the message's bytes, and lies in the window.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Where, from the window's first byte on.
    pub(crate) target: Typed,
    /// Which bytes of its packed stream.
    pub(crate) range: Range<u64>,
    pub(crate) does: Does,
}

impl Plan {
    /// # Errors
    /// It makes no sense.
    pub(crate) fn read(target: Typed, (head, bytes): (&Head, &[u8])) -> Result<Plan, Fault> {
        let end = head.start.checked_add(head.length).ok_or(Fault::Outside)?;
        let range = head.start..end;
        let reads =
            matches!(head.kind, WindowMessage::Get | WindowMessage::Compare) || head.fetches();
        if reads && (head.length > READ_MAX || head.token == 0) {
            return Err(Fault::Outside);
        }
        target.check_range(&range).map_err(|_| Fault::Outside)?;
        let length = usize::try_from(head.length).map_err(|_| Fault::Outside)?;
        let fits =
            |expected: usize| if bytes.len() == expected { Ok(()) } else { Err(Fault::Outside) };
        let does = match head.kind {
            WindowMessage::Put => {
                fits(length)?;
                Does::Put
            }
            WindowMessage::Get => {
                fits(0)?;
                Does::Get
            }
            WindowMessage::Compare => {
                fits(2 * length)?;
                let place = target.as_contiguous().ok_or(Fault::Elements)?;
                let primitive = Primitive::from_code(head.primitive).ok_or(Fault::Elements)?;
                let is_number = matches!(length, 1 | 2 | 4 | 8);
                if primitive.size_bytes() != head.length || range != (0..place.len()) || !is_number
                {
                    return Err(Fault::Elements);
                }
                let (compare, swap) = bytes.split_at(length);
                let [compare, swap] = [compare, swap].map(read);
                Does::Compare { width: length, compare, swap }
            }
            _ => {
                fits(if head.flag & OPERANDS == 0 { 0 } else { length })?;
                let op = ReduceOp::ALL.get(usize::from(head.op)).ok_or(Fault::Elements)?;
                let primitive = Primitive::from_code(head.primitive).ok_or(Fault::Elements)?;
                let arithmetic = Arithmetic::new(*op, primitive).map_err(|_| Fault::Elements)?;
                let width = arithmetic.width() as u64;
                let whole = head.start.is_multiple_of(width) && head.length.is_multiple_of(width);
                match (*op == ReduceOp::NoOp, head.fetches()) {
                    (true, false) => Does::Nothing,
                    (nothing, _) if !whole || (head.flag & OPERANDS == 0) != nothing => {
                        return Err(Fault::Elements);
                    }
                    (_, fetches) => Does::Change { arithmetic, fetches },
                }
            }
        };
        Ok(Plan { target, range, does })
    }

    /// The stripes whose mutexes it needs; numbers must be aligned. `misalignment`: of the window's first byte, modulo 8.
    pub(crate) fn stripes(&self, misalignment: u64) -> Result<Stripes, Fault> {
        match &self.does {
            Does::Compare { width, .. } => {
                let place = self.target.as_contiguous().ok_or(Fault::Elements)?;
                match (misalignment + place.start()).is_multiple_of(*width as u64) {
                    true => Ok(Stripes::default().with(place.start(), *width)),
                    false => Err(Fault::Misaligned),
                }
            }
            Does::Change { arithmetic, .. } => {
                stripes(misalignment, &self.target, self.range.clone(), arithmetic)
            }
            Does::Nothing | Does::Put | Does::Get => Ok(Stripes::default()),
        }
    }

    /// Bytes of the range.
    pub(crate) fn len(&self) -> Result<usize, Fault> {
        usize::try_from(self.range.end - self.range.start).map_err(|_| Fault::Outside)
    }

    /// Does it in memory of the host; gives the bytes that were wanted. The caller has the mutexes.
    pub(crate) fn run(
        &self,
        memory: &impl WindowBytes,
        bytes: &[u8],
    ) -> Result<Option<Vec<u8>>, Fault> {
        let (target, range) = (&self.target, self.range.clone());
        match &self.does {
            Does::Nothing => Ok(None),
            Does::Put => {
                store(memory, target, range, bytes)?;
                Ok(None)
            }
            Does::Get => {
                let mut found = vec![0; self.len()?];
                load(memory, target, range, &mut found)?;
                Ok(Some(found))
            }
            Does::Compare { width, compare, swap } => {
                let place = target.as_contiguous().ok_or(Fault::Elements)?;
                let old = compare_swap(memory, place.start(), *width, (*compare, *swap))?;
                let mut found = vec![0; *width];
                write(old, &mut found);
                Ok(Some(found))
            }
            Does::Change { arithmetic, fetches } => {
                let mut found = vec![0; if *fetches { self.len()? } else { 0 }];
                let result = fetches.then_some(&mut found[..]);
                change(memory, target, range, (arithmetic, bytes), result)?;
                Ok(fetches.then_some(found))
            }
        }
    }
}
