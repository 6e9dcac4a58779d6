//! Layouts that another process has told this one, by its numbers, and those of ours that it knows.

use crate::error::Fault;
use crate::wire::Head;
use gapless_dtype::Layout;
use std::collections::HashMap;
use std::sync::Arc;

/// Layouts that a process remembers of another, and bytes of them, flattened.
pub(crate) const LAYOUTS: usize = 16;
pub(crate) const LAYOUT_BYTES: u64 = 64 << 20;

/// The layouts of a process, by its numbers.
#[derive(Default)]
pub(crate) struct Layouts {
    known: HashMap<u32, (u64, PeerLayout)>,
    /// Of all of them, flattened.
    bytes: u64,
}

enum PeerLayout {
    /// Some of its bytes have come.
    Part(Vec<u8>),
    Whole(Layout),
    Bad,
}

impl Layouts {
    /// Some bytes of a layout.
    pub(crate) fn learn(&mut self, head: &Head, bytes: &[u8]) -> Result<(), &'static str> {
        if !self.known.contains_key(&head.layout) {
            let all = self.bytes.saturating_add(head.count);
            if self.known.len() >= LAYOUTS || all > LAYOUT_BYTES {
                return Err("too many layouts, or some that are too long");
            }
            self.bytes = all;
            self.known.insert(head.layout, (head.count, PeerLayout::Part(Vec::new())));
        }
        let Some((bytes_all, known)) = self.known.get_mut(&head.layout) else { return Ok(()) };
        let PeerLayout::Part(flat) = known else {
            return Err("a layout that is told twice");
        };
        if head.count != *bytes_all {
            return Err("a layout of two lengths");
        }
        if head.start != flat.len() as u64 || head.start + bytes.len() as u64 > head.count {
            return Err("a layout in other pieces than it has");
        }
        flat.extend_from_slice(bytes);
        if flat.len() as u64 == head.count {
            *known = match Layout::unflatten(flat) {
                Ok(layout) => PeerLayout::Whole(layout),
                Err(error) => {
                    tracing::error!(%error, "a layout that a peer has sent");
                    PeerLayout::Bad
                }
            };
        }
        Ok(())
    }

    pub(crate) fn forget(&mut self, id: u32) {
        if let Some((bytes, _)) = self.known.remove(&id) {
            self.bytes -= bytes;
        }
    }

    pub(crate) fn get(&self, id: u32) -> Result<Option<&Layout>, Fault> {
        match (id, self.known.get(&id)) {
            (0, _) => Ok(None),
            (_, Some((_, PeerLayout::Whole(layout)))) => Ok(Some(layout)),
            _ => Err(Fault::Layout),
        }
    }
}

/// A layout of ours.
pub(crate) struct SentLayout {
    pub(crate) layout: Layout,
    pub(crate) id: u32,
    /// Of the flattened layout.
    pub(crate) bytes: u64,
    /// It, until all has left.
    pub(crate) flat: Arc<[u8]>,
    /// So many bytes of it have left.
    pub(crate) sent: usize,
}
