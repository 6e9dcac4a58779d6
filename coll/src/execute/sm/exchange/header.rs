//! The entry of a rank in an exchange: what it calls, and where others find its bytes.

use super::{Exchange, Lies, SmContext, Tools};
use crate::Operation;
use crate::execute::error::CollError;
use crate::execute::sm::PrivateMemory;
use crate::execute::sm::exchange_plan::{self, DirectoryEntry, HEAD_BYTES};
use crate::execute::sm::header::notice;
use crate::execute::sm::read_in_place::{self, DirectBuffer};
use crate::execute::sm::short_plan::{FAILED, LONG};
use crate::execute::sm::slots::slot;

/// A flag of an entry: the bytes go with the entry.
const INLINE: u8 = 1;
/// A flag of an entry: the bytes lie in a buffer that can be mapped.
const DIRECT: u8 = 2;
/// A flag of an entry: the bytes lie in a buffer that the kernel reads.
const SINGLE_COPY: u8 = 4;

impl Exchange {
    /// This rank's entry.
    pub(super) fn write_entry<'a>(&self, private: &'a mut PrivateMemory) -> &'a [u8] {
        let mut head = [0; HEAD_BYTES];
        head[0] = self.plan.operation.code();
        head[1] = u8::try_from(self.progress.first).unwrap_or(0);
        head[2] = match () {
            () if self.plan.is_inline() => INLINE,
            () if self.by_single_copy => SINGLE_COPY,
            () if self.is_direct => DIRECT,
            () => 0,
        };
        head[4..8].copy_from_slice(&self.plan.root().to_le_bytes());
        let ends = self.plan.is_inline().then(|| self.plan.ends().flatten());
        let head = head.into_iter().chain(ends.into_iter().flatten());
        private.headed(head, self.plan.entry_bytes())
    }

    /// What a rank's entry says, if it fits what this rank expects.
    pub(super) fn read_entry(
        &self,
        local_rank: usize,
        kind: u8,
        cx: &mut SmContext<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<Lies, CollError> {
        let source = cx.subgroup.rank(local_rank);
        let spoilt = || CollError::Scribbled {
            rank: source,
            what: format!("rank {source} has written a directory that cannot be"),
        };
        if kind == FAILED {
            return Err(notice(local_rank, cx));
        }
        let mut head = [0; HEAD_BYTES];
        cx.mailbox.read(&cx.mailboxes, local_rank, 0, &mut head);
        let ours = self.plan.operation;
        let theirs = Operation::from_code(if kind == LONG { head[0] } else { kind });
        if kind != LONG || theirs != Some(ours) {
            return Err(CollError::Mismatch { rank: source, theirs, ours });
        }
        let [_, first, flags, ..] = head;
        let root = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        if root != self.plan.root() {
            let (given, expected) = (root.to_string(), self.plan.root().to_string());
            let (argument, other) = ("root", cx.subgroup.own());
            return Err(CollError::Differs { rank: source, argument, given, other, expected });
        }
        let (ranks, me, expected) =
            (self.met.len(), cx.local_rank(), self.plan.into.bytes(local_rank));
        let fits = |sent: u64| match sent == expected {
            true => Ok(()),
            false => Err(CollError::Length { rank: source, sent, expected }),
        };
        if flags & INLINE != 0 {
            let entries = exchange_plan::ends_at(me);
            let mut ends = [0; 4];
            let ends = &mut ends[..entries.len()];
            cx.mailbox.read(&cx.mailboxes, local_rank, entries.start, ends);
            let range = exchange_plan::ends_read(ends, ranks).ok_or_else(spoilt)?;
            fits(range.len() as u64)?;
            let into = cx.private.kept(local_rank, range.len());
            cx.mailbox.read(
                &cx.mailboxes,
                local_rank,
                exchange_plan::data_at(ranks) + range.start,
                into,
            );
            return self.in_place(local_rank, expected, cx).map(|()| Lies::Inline);
        }
        let first = slot(usize::from(first), 0);
        let entry =
            cx.shared.read_directory_entry((local_rank, first), me).map_err(|_| spoilt())?;
        if flags & (DIRECT | SINGLE_COPY) != 0 {
            let [sent, _] = exchange_plan::numbers(entry);
            fits(sent)?;
            self.in_place(local_rank, expected, cx)?;
            if flags & SINGLE_COPY != 0 {
                let key = read_in_place::single_copy_key_of(local_rank, cx)?;
                return Ok(Lies::SingleCopy { key });
            }
            let mapping = read_in_place::map(
                local_rank,
                DirectBuffer::Input,
                expected,
                cx,
                tools.pml.bml_mut(),
            )?;
            return Ok(Lies::Direct { mapping });
        }
        let entry = DirectoryEntry::read(entry, ranks).ok_or_else(spoilt)?;
        fits(entry.bytes)?;
        self.in_place(local_rank, entry.cell.step, cx)?;
        Ok(Lies::Slots { first, cell: entry.cell })
    }

    /// If what comes takes the place of what goes out, it must not come in longer fragments: another rank's are as
    /// long, unless it is not in place there.
    fn in_place(&self, local_rank: usize, step: u64, cx: &SmContext<'_>) -> Result<(), CollError> {
        let expected = self.plan.into.bytes(local_rank);
        if self.plan.keeps_up(step.min(expected)) {
            return Ok(());
        }
        let rank = cx.subgroup.rank(local_rank);
        let (given, expected) = ("a send buffer".to_owned(), "none".to_owned());
        let (argument, other) = ("buffers", cx.subgroup.own());
        Err(CollError::Differs { rank, argument, given, other, expected })
    }
}
