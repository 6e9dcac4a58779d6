//! Where a queue pair can be reached: port addresses of both kinds of link.

use crate::bytes::{Reader, Writer};
use std::fmt;
use std::net::Ipv6Addr;

/// A port and a queue pair on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QpAddress {
    pub(crate) gid: [u8; 16],
    /// Zero on RoCE.
    pub(crate) lid: u16,
    /// The number of the queue pair, 24 bits.
    pub(crate) number: u32,
}

impl QpAddress {
    pub(crate) const BYTES: usize = 22;

    pub(crate) fn write(&self, into: &mut Writer<'_>) {
        into.put(&self.gid).put(&self.lid.to_le_bytes()).put(&self.number.to_le_bytes());
    }

    /// # Errors
    /// What is wrong with it.
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<QpAddress, String> {
        let place = QpAddress { gid: from.take(), lid: from.u16(), number: from.u32() };
        if place.number == 0 || place.number >> 24 != 0 {
            return Err(format!("a queue pair of number {:#x}", place.number));
        }
        if place.gid == [0; 16] && place.lid == 0 {
            return Err("a port without an address".to_owned());
        }
        Ok(place)
    }
}

impl fmt::Display for QpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gid = Ipv6Addr::from(self.gid);
        match gid.to_ipv4_mapped() {
            Some(v4) => write!(f, "{v4}")?,
            None => write!(f, "{gid}")?,
        }
        if self.lid != 0 { write!(f, " (LID {})", self.lid) } else { Ok(()) }
    }
}
