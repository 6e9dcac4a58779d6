//! What peers say on their sockets besides messages: memory that is shared, freed and let go of.
//!
//! ```text
//!  RING      0 kind
//!  SHARE     0 kind | 1 allocation:8 | 9 length:8 | 17                             and its memfd
//!  FREED     0 kind | 1 allocation or buffer:8 | 9
//!  DEVICE    0 kind | 1 device's kind | 2 descriptors | 3 buffer:8 | 11 length:8 | 19 device's bytes …
//!  RELEASED  0 kind | 1 allocation or buffer:8 | 9
//!  RECALL    0 kind | 1 allocation:8 | 9
//!  BYE       0 kind | 1                           nothing of the receiver's is used any more
//! ```

use crate::imports::{SHARED, released_packet, word};
use crate::meeting::gone;
use crate::sm::Sm;
use crate::socket::{self, PACKET_BYTES, Received};
use crate::suspect::Suspect;
use gapless_btl::{LinkError, PeerId};
use rustix::fd::OwnedFd;

/// Packets read from one socket at a time: bounds one look.
const PACKETS: usize = 64;
/// Packets to one peer that wait for room on its socket: more than an honest peer has us send.
const UNREAD: usize = 4 * SHARED;

impl Sm {
    /// Reads what a peer has sent besides messages.
    pub(crate) fn read_packets(&mut self, id: u32) {
        let mut packet = [0; PACKET_BYTES];
        for _ in 0..PACKETS {
            let Some(socket) = &self.links[id as usize].incoming else { return };
            let outcome = match socket::receive(socket, &mut packet) {
                Ok(Received::Nothing) => return,
                Ok(Received::End) => Err(gone()),
                Ok(Received::Packet(len, file)) => self.take_packet(id, &packet[..len], file),
                Ok(Received::Robbed(len)) if packet[0] == socket::SHARE => {
                    self.take_share(id, &packet[..len], None)
                }
                Ok(Received::Robbed(len)) => self.take_packet(id, &packet[..len], None),
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                self.die(id, error);
                return;
            }
        }
    }

    fn take_packet(
        &mut self,
        id: u32,
        packet: &[u8],
        file: Option<Suspect>,
    ) -> Result<(), LinkError> {
        match (packet.first(), file) {
            (Some(&socket::RING), None) => Ok(()),
            (Some(&socket::SHARE), Some(file)) => self.take_share(id, packet, Some(file.memory()?)),
            (Some(&socket::DEVICE), file) => {
                let file = file.map(Suspect::of_device).transpose()?;
                self.take_device(id, packet, file)
            }
            (Some(&socket::FREED), None) => self.take_freed(id, packet),
            (Some(&socket::RELEASED), None) => self.take_released(id, packet),
            (Some(&socket::RECALL), None) => self.take_recall(id, packet),
            (Some(&socket::BYE), None) => {
                let link = &mut self.links[id as usize];
                link.shared.clear();
                link.leaving.clear();
                Err(gone())
            }
            (kind, file) => {
                let with = if file.is_some() { "with" } else { "without" };
                let what = format!("a packet of kind {kind:?} {with} a descriptor on its socket");
                Err(LinkError::Corrupt { what })
            }
        }
    }

    /// An allocation is shared.
    fn take_share(
        &mut self,
        id: u32,
        packet: &[u8],
        file: Option<OwnedFd>,
    ) -> Result<(), LinkError> {
        let peer = PeerId(id);
        if word(packet, 1).is_some_and(|number| self.device_imports.knows(peer, number)) {
            let what = "an allocation with the number of a device's memory".to_owned();
            return Err(LinkError::Corrupt { what });
        }
        self.imports.offered(peer, packet, file.filter(socket::can_be_spared))
    }

    /// Memory of a device is shared.
    fn take_device(
        &mut self,
        id: u32,
        packet: &[u8],
        file: Option<OwnedFd>,
    ) -> Result<(), LinkError> {
        let peer = PeerId(id);
        if word(packet, 3).is_some_and(|number| self.imports.knows(peer, number)) {
            let what = "a device's memory with the number of an allocation".to_owned();
            return Err(LinkError::Corrupt { what });
        }
        self.device_imports.offered(peer, packet, file.filter(socket::can_be_spared))?;
        self.imports.count_in(peer)
    }

    /// An allocation is no more, or a device's memory is to be freed.
    fn take_freed(&mut self, id: u32, packet: &[u8]) -> Result<(), LinkError> {
        let peer = PeerId(id);
        let number = word(packet, 1).filter(|_| packet.len() == 9);
        let Some(number) = number.filter(|&number| self.device_imports.knows(peer, number)) else {
            return self.imports.freed(peer, packet);
        };
        if self.links[id as usize].unsent.len() >= UNREAD {
            let what = format!("it has not read {UNREAD} packets");
            return Err(LinkError::Corrupt { what });
        }
        if self.device_imports.freed(peer, number) {
            self.imports.count_out(peer);
            self.links[id as usize].tell(&released_packet(number));
            self.flush_packets();
        }
        Ok(())
    }

    /// An allocation is not to be used here any more.
    fn take_recall(&mut self, id: u32, packet: &[u8]) -> Result<(), LinkError> {
        self.imports.recall(PeerId(id), packet)?;
        if self.links[id as usize].unsent.len() >= UNREAD {
            let what = format!("it has not read {UNREAD} packets");
            return Err(LinkError::Corrupt { what });
        }
        self.announce_released();
        Ok(())
    }

    /// A peer has let go of memory.
    fn take_released(&mut self, id: u32, packet: &[u8]) -> Result<(), LinkError> {
        let number = word(packet, 1).filter(|_| packet.len() == 9);
        match number.is_some_and(|number| self.links[id as usize].leaving.remove(&number)) {
            true => Ok(()),
            false => {
                let what = format!("it let go of what it was not asked to: {packet:02x?}");
                Err(LinkError::Corrupt { what })
            }
        }
    }
}
