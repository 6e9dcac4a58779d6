//! What peers say on their sockets besides messages: memory that is shared, freed and let go of.

use crate::meeting::gone;
use crate::sm::Sm;
use crate::socket::{self, Received};
use crate::suspect::Suspect;
use crate::wire::{DeviceShare, PACKET_BYTES, Packet, SHARED, released_packet};
use gapless_btl::{LinkError, PeerId};
use rustix::fd::OwnedFd;

/// Packets read from one socket at a time: bounds one look.
const PACKETS: usize = 64;
/// Packets to one peer that wait for room on its socket: more than an honest peer has us send.
const UNREAD: usize = 4 * SHARED;

impl Sm {
    /// Reads what a peer has sent besides messages. Gives whether there may be more.
    pub(crate) fn read_packets(&mut self, id: u32) -> bool {
        let mut packet = [0; PACKET_BYTES];
        for _ in 0..PACKETS {
            let Some(socket) = &self.links[id as usize].incoming else { return false };
            let outcome = match socket::receive(socket, &mut packet) {
                Ok(Received::Nothing) => return false,
                Ok(Received::End) => Err(gone()),
                Ok(Received::Packet(len, file)) => {
                    self.take_packet(id, &packet[..len], file, false)
                }
                Ok(Received::Robbed(len)) => self.take_packet(id, &packet[..len], None, true),
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                self.die(id, error);
                return false;
            }
        }
        true
    }

    /// Reads until this buffer of the peer's is known. The peer has told of it before its key came, so it is in the
    /// socket; an honest peer has sent no more packets than are read here.
    pub(crate) fn read_until_known(&mut self, id: u32, number: u64) {
        let known = |sm: &Sm| {
            sm.imports.knows(PeerId(id), number) || sm.device_imports.knows(PeerId(id), number)
        };
        for _ in 0..UNREAD / PACKETS {
            if known(self) || !self.read_packets(id) {
                return;
            }
        }
    }

    /// Obeys a packet; `robbed` if this process had no room for the descriptor that came with it.
    fn take_packet(
        &mut self,
        id: u32,
        packet: &[u8],
        file: Option<Suspect>,
        robbed: bool,
    ) -> Result<(), LinkError> {
        match (Packet::read(packet)?, file) {
            (Packet::Wake, None) => Ok(()),
            (Packet::Share { allocation, len }, Some(file)) => {
                self.take_share(id, allocation, len, Some(file.memory()?))
            }
            (Packet::Share { allocation, len }, None) if robbed => {
                self.take_share(id, allocation, len, None)
            }
            (Packet::Device(shared), file) => {
                let file = file.map(Suspect::of_device).transpose()?;
                self.take_device(id, shared, file)
            }
            (Packet::Freed(number), None) => self.take_freed(id, number),
            (Packet::Released(number), None) => self.take_released(id, number),
            (Packet::Revoke(number), None) => self.take_revoke(id, number),
            (Packet::Bye, None) => {
                let link = &mut self.links[id as usize];
                link.shared.clear();
                link.leaving.clear();
                Err(gone())
            }
            (read, file) => {
                let with = if file.is_some() { "with" } else { "without" };
                let what = format!("a packet {with} a descriptor on its socket: {read:?}");
                Err(LinkError::Corrupt { what })
            }
        }
    }

    /// An allocation is shared.
    fn take_share(
        &mut self,
        id: u32,
        allocation: u64,
        len: u64,
        file: Option<OwnedFd>,
    ) -> Result<(), LinkError> {
        let peer = PeerId(id);
        if self.device_imports.knows(peer, allocation) {
            let what = "an allocation with the number of a device's memory".to_owned();
            return Err(LinkError::Corrupt { what });
        }
        self.imports.offered(peer, allocation, len, file.filter(socket::can_be_spared))
    }

    /// Memory of a device is shared.
    fn take_device(
        &mut self,
        id: u32,
        shared: DeviceShare<'_>,
        file: Option<OwnedFd>,
    ) -> Result<(), LinkError> {
        let peer = PeerId(id);
        if self.imports.knows(peer, shared.buffer) {
            let what = "a device's memory with the number of an allocation".to_owned();
            return Err(LinkError::Corrupt { what });
        }
        self.device_imports.offered(peer, shared, file.filter(socket::can_be_spared))?;
        self.imports.count_in(peer)
    }

    /// An allocation is no more, or a device's memory is to be freed.
    fn take_freed(&mut self, id: u32, number: u64) -> Result<(), LinkError> {
        let peer = PeerId(id);
        if !self.device_imports.knows(peer, number) {
            return self.imports.freed(peer, number);
        }
        self.check_unread(id)?;
        if self.device_imports.freed(peer, number) {
            self.imports.count_out(peer);
            self.links[id as usize].tell(&released_packet(number));
            self.flush_packets();
        }
        Ok(())
    }

    /// An allocation is not to be used here any more.
    fn take_revoke(&mut self, id: u32, number: u64) -> Result<(), LinkError> {
        self.check_unread(id)?;
        self.imports.revoke_access(PeerId(id), number)?;
        self.announce_released();
        Ok(())
    }

    /// Before a packet that is answered by one: whether the peer reads what it is sent.
    ///
    /// # Errors
    /// It has not read too many packets.
    fn check_unread(&self, id: u32) -> Result<(), LinkError> {
        if self.links[id as usize].unsent.len() < UNREAD {
            return Ok(());
        }
        let what = format!("it has not read {UNREAD} packets");
        Err(LinkError::Corrupt { what })
    }

    /// A peer has let go of memory.
    fn take_released(&mut self, id: u32, number: u64) -> Result<(), LinkError> {
        match self.links[id as usize].leaving.remove(&number) {
            true => Ok(()),
            false => {
                let what = format!("it let go of {number}, which it was not asked to");
                Err(LinkError::Corrupt { what })
            }
        }
    }
}
