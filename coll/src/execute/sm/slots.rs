//! A rank's own slots: what is in them, and when they may be filled again.

use gapless_pml::Pml;
use gapless_sync::mailboxes::{Mailbox, Moment, Readers};

use super::SmContext;
use super::long_plan::SLOTS;
use crate::execute::error::CollError;

/// Bytes at a slot's end in which a rank says what it has to say with a fragment, if no bytes of that lie there.
pub(super) const LAST_BYTES: u64 = 4096;

/// A rank's own slots.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// The one that is filled next.
    pub(super) next: usize,
    filled: [Option<Filled>; SLOTS],
}

/// What was put into a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    /// Who reads it: until that moment of that round.
    pub(super) readers: Readers,
    pub(super) round: u64,
    pub(super) until: Moment,
    /// Others write their slices into it, too.
    pub(super) others_write: bool,
}

/// Which of a rank's slots a fragment has, if the first has this one.
pub(super) fn slot(first: usize, fragment: u64) -> usize {
    (first + usize::try_from(fragment % SLOTS as u64).unwrap_or(0)) % SLOTS
}

/// The ranks that read, of `ranks`.
pub(super) fn among(readers: Readers, ranks: usize) -> std::ops::Range<usize> {
    match readers {
        Readers::All => 0..ranks,
        Readers::One(local_rank) => local_rank..local_rank + 1,
    }
}

impl SmContext<'_> {
    /// The rank that still reads what is in a slot of this rank's.
    pub(super) fn slot_reader(&mut self, slot: usize) -> Option<usize> {
        let Filled { readers, round, until, .. } = self.slots.filled[slot]?;
        let (me, ranks) = (self.local_rank(), self.subgroup.size());
        let (mailbox, mailboxes) = (&mut *self.mailbox, &self.mailboxes);
        let over = |local_rank: usize, mailbox: &mut Mailbox| {
            mailbox.has_passed(local_rank, round)
                || mailbox.reached(mailboxes, local_rank, until)
                || !mailbox.is_behind(mailboxes, local_rank, round)
        };
        among(readers, ranks).find(|local_rank| *local_rank != me && !over(*local_rank, mailbox))
    }

    /// Takes a slot of this rank's to fill it; `false`: somebody still reads it.
    ///
    /// # Errors
    /// A rank is lost that may write into it.
    pub(super) fn claim(
        &mut self,
        slot: usize,
        filled: Filled,
        pml: &mut Pml,
    ) -> Result<bool, CollError> {
        while let Some(local_rank) = self.slot_reader(slot) {
            let Some(loss) = self.loss(pml, local_rank) else { return Ok(false) };
            // It is lost to this rank, and may still live: what it writes must not meet later bytes.
            if self.slots.filled[slot].is_some_and(|it| it.others_write) {
                return Err(loss);
            }
            self.mailbox.excuse(&self.mailboxes, local_rank);
        }
        self.slots.filled[slot] = Some(filled);
        self.slots.next = (slot + 1) % SLOTS;
        Ok(true)
    }
}
