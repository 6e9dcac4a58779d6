//! How an operation goes by messages: in pieces as long as the transport and credit take, as far as there are room and credit.

use crate::core::{Core, Offered};
use crate::error::WindowError;
use crate::operate::Access;
use crate::window::{Driver, Window};
use crate::wire::{Head, Kind, READ_MAX};
use gapless_bml::{Bml, Rank};
use std::ops::Range;

/// A piece of an operation, as messages carry it.
pub(crate) struct Pieces<'o> {
    pub(crate) head: Head,
    /// Of the target's packed stream.
    pub(crate) range: Range<u64>,
    /// What goes along: as long as the range, or nothing.
    pub(crate) bytes: &'o [u8],
    /// Elements are not cut.
    pub(crate) element: u64,
}

impl Window {
    /// Sends an operation in as many messages as it takes, and waits for room meanwhile.
    pub(crate) fn send<D: Driver>(
        &self,
        driver: &D,
        access: &Access,
        pieces: Pieces<'_>,
        token: Option<u64>,
    ) -> Result<(), D::Error> {
        let Pieces { head, range, bytes, element } = pieces;
        let process = self.members[access.rank as usize].process;
        let target = &access.target;
        let stretch = target.stretch().map(|stretch| target.region().offset() + stretch);
        let mut at = range.start;
        let is_swap = head.kind == Kind::Compare;
        let whom = || Some(process);
        let sent = driver.until(false, whom, |bml| {
            loop {
                if at == range.end {
                    if let Some(token) = token {
                        self.osc().core().expect(token, 0, false);
                    }
                    return Some(Ok(()));
                }
                let room = if bytes.is_empty() {
                    // A read: as much as a target gives at once.
                    Core::room(bml, process).map(|room| READ_MAX.min(room as u64))
                } else {
                    Core::piece(bml, process).map(|room| room as u64)
                };
                let Some(room) = room else {
                    return self.meet(bml, process);
                };
                let room = (room / element).max(1) * element;
                let len = room.min(range.end - at);
                let layout = match stretch {
                    Some(_) => 0,
                    None => match self.osc().core().tell(bml, process, target.layout())? {
                        Ok(id) => id,
                        Err(error) => return Some(Err(error)),
                    },
                };
                let head = Head {
                    token: token.unwrap_or(0),
                    layout,
                    origin: stretch.unwrap_or(target.origin()),
                    count: if stretch.is_some() { target.packed_bytes() } else { target.count() },
                    start: at,
                    length: len,
                    ..head
                };
                let from = usize::try_from(at - range.start).unwrap_or(usize::MAX);
                let to = usize::try_from(len).unwrap_or(usize::MAX).saturating_add(from);
                let now = if is_swap { bytes } else { bytes.get(from..to).unwrap_or(&[]) };
                match self.osc().offer(bml, process, head, now) {
                    Offered::Sent if token.is_none() => self.sent[access.rank as usize].one_more(),
                    Offered::Sent => {}
                    Offered::Full => return None,
                    Offered::Failed(error) => return Some(Err(error)),
                }
                at += len;
                if let Some(token) = token {
                    self.osc().core().expect(token, 1, at < range.end);
                }
            }
        })?;
        Ok(sent?)
    }

    /// The link to a process is not up: it is made, or the process is lost.
    fn meet(&self, bml: &mut Bml, process: u32) -> Option<Result<(), WindowError>> {
        if self.osc().is_lost(process) {
            return Some(Err(self.osc().loss(process)));
        }
        bml.reach(Rank(process));
        None
    }
}
