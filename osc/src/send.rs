//! How an operation goes by messages: in pieces as long as the transport and credit take, as far as there are room and credit.

use crate::core::{Core, Offered};
use crate::error::WindowError;
use crate::layouts::{LAYOUT_BYTES, LAYOUTS, SentLayout};
use crate::peer::SHORT;
use crate::place::Access;
use crate::window::{Driver, Window};
use crate::wire::{Head, NOTICE, READ_MAX, WindowMessage};
use gapless_bml::{Bml, Rank};
use gapless_dtype::Layout;
use std::ops::Range;
use std::sync::Arc;

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
    /// Sends an operation in as many messages as it takes. A long one waits for room meanwhile; a short one does if
    /// much waits already.
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
        let contiguous = target.contiguous_start().map(|start| target.region().offset() + start);
        let mut at = range.start;
        // The last message gives the notice; if there are no bytes, it is the only one.
        let last = if access.notice.is_some() { target.packed_bytes() } else { u64::MAX };
        let mut due = at < range.end || at == last;
        let may_wait = target.packed_bytes() <= SHORT;
        let is_swap = head.kind == WindowMessage::Compare;
        let whom = || Some(process);
        let sent = driver.until(false, whom, |bml| {
            loop {
                if !due {
                    if let Some(token) = token {
                        self.osc().core().questions.expect(token, 0, false);
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
                let layout = match contiguous {
                    Some(_) => 0,
                    None => match self.osc().core().tell(bml, process, target.layout())? {
                        Ok(id) => id,
                        Err(error) => return Some(Err(error)),
                    },
                };
                let head = Head {
                    token: token.unwrap_or(0),
                    layout,
                    origin: contiguous.unwrap_or(target.origin()),
                    count: if contiguous.is_some() {
                        target.packed_bytes()
                    } else {
                        target.count()
                    },
                    start: at,
                    length: len,
                    ..head
                };
                let head = match access.notice {
                    Some(value) if at + len == last => Head { flag: NOTICE, value, ..head },
                    _ => head,
                };
                let from = usize::try_from(at - range.start).unwrap_or(usize::MAX);
                let to = usize::try_from(len).unwrap_or(usize::MAX).saturating_add(from);
                let now = if is_swap { bytes } else { bytes.get(from..to).unwrap_or(&[]) };
                match self.osc().offer(bml, process, (head, now), may_wait) {
                    Offered::Sent if token.is_none() => self.sent[access.rank as usize].one_more(),
                    Offered::Sent => {}
                    Offered::Full => return None,
                    Offered::Failed(error) => return Some(Err(error)),
                }
                at += len;
                due = at < range.end;
                if let Some(token) = token {
                    self.osc().core().questions.expect(token, 1, due);
                }
            }
        })?;
        Ok(sent?)
    }

    /// The link to a process is not up: it is made, or the process is lost.
    fn meet(&self, bml: &mut Bml, process: u32) -> Option<Result<(), WindowError>> {
        if self.osc().departed().is_lost(process) {
            return Some(Err(self.osc().loss(process)));
        }
        bml.reach(Rank(process));
        None
    }
}

impl Core {
    /// The number by which a process knows a layout; what it needs for that is sent before. `None`: try again after some
    /// progress.
    pub(crate) fn tell(
        &mut self,
        bml: &mut Bml,
        process: u32,
        layout: &Layout,
    ) -> Option<Result<u32, WindowError>> {
        let room = Core::piece(bml, process)?;
        let known = |told: &SentLayout| told.layout.id() == layout.id();
        if !self.peer(process).told.iter().any(known)
            && let Err(error) = self.begin_to_tell(bml, process, layout)?
        {
            return Some(Err(error));
        }
        loop {
            let told = self.peer(process).told.iter().find(|told| known(told))?;
            let (id, flat, sent) = (told.id, Arc::clone(&told.flat), told.sent);
            if sent == flat.len() {
                return Some(Ok(id));
            }
            let now = &flat[sent..flat.len().min(sent + room)];
            let head = Head {
                layout: id,
                count: flat.len() as u64,
                start: sent as u64,
                length: now.len() as u64,
                ..Head::new(WindowMessage::Layout, 0, 0)
            };
            match self.submit(bml, process, (head, now), flat.len() as u64 <= SHORT) {
                Offered::Full => return None,
                Offered::Failed(error) => return Some(Err(error)),
                Offered::Sent => {
                    if let Some(told) = self.peer(process).told.iter_mut().find(|told| known(told))
                    {
                        told.sent += now.len();
                        if told.sent == flat.len() {
                            told.flat = Arc::new([]);
                            told.sent = 0;
                        }
                    }
                }
            }
        }
    }

    /// Gives a layout a number, and has the process forget what there is no room for beside it: the oldest that it knows
    /// as a whole. Others are still being told, by threads that need them. `None`: try again after some progress.
    fn begin_to_tell(
        &mut self,
        bml: &mut Bml,
        process: u32,
        layout: &Layout,
    ) -> Option<Result<(), WindowError>> {
        let flat: Arc<[u8]> = layout.flatten().into();
        let bytes = flat.len() as u64;
        if bytes > LAYOUT_BYTES {
            return Some(Err(WindowError::LongLayout { bytes, most: LAYOUT_BYTES }));
        }
        loop {
            let peer = self.peer(process);
            let all: u64 = peer.told.iter().map(|told| told.bytes).sum();
            if peer.told.len() < LAYOUTS && all + bytes <= LAYOUT_BYTES {
                break;
            }
            let at = peer.told.iter().position(|told| told.flat.is_empty())?;
            let head = Head { layout: peer.told[at].id, ..Head::new(WindowMessage::Forget, 0, 0) };
            match self.submit(bml, process, (head, &[]), true) {
                Offered::Sent => self.peer(process).told.remove(at),
                Offered::Full => return None,
                Offered::Failed(error) => return Some(Err(error)),
            };
        }
        let peer = self.peer(process);
        peer.next_layout = peer.next_layout.wrapping_add(1).max(1);
        let (layout, id) = (layout.clone(), peer.next_layout);
        peer.told.push_back(SentLayout { layout, id, bytes, flat, sent: 0 });
        Some(Ok(()))
    }
}
