//! The messages of one peer, in order and once each: a transport need not promise either.

use gapless_bml::Fragment;
use std::collections::BTreeMap;

/// Messages that are kept because an earlier one has not come.
const EARLY_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Link {
    /// Of the next message to the peer.
    pub(super) out: u32,
    /// Of the next message from it.
    next: u32,
    early: BTreeMap<u32, Fragment>,
}

impl Link {
    /// A message has come: it is the next one, or is kept until it is, or came before and is dropped. An error says
    /// what is wrong.
    pub(super) fn arrived(
        &mut self,
        serial: u32,
        fragment: Fragment,
    ) -> Result<Option<Fragment>, String> {
        let ahead = serial.wrapping_sub(self.next);
        if ahead == 0 {
            self.next = self.next.wrapping_add(1);
            return Ok(Some(fragment));
        }
        if ahead > u32::MAX / 2 {
            return Ok(None);
        }
        if self.early.len() >= EARLY_MAX {
            return Err(format!("{EARLY_MAX} messages came before number {}", self.next));
        }
        self.early.insert(serial, fragment);
        Ok(None)
    }

    /// The next message, if it came early.
    pub(super) fn next_early(&mut self) -> Option<Fragment> {
        let fragment = self.early.remove(&self.next)?;
        self.next = self.next.wrapping_add(1);
        Some(fragment)
    }
}
