//! What an event of the epoll descriptor is about, as the 64 bits that the kernel gives back.

use rustix::event::epoll::EventData;

/// What an epoll event is about; the number is a peer's or a caller's.
#[derive(Clone, Copy)]
pub(crate) enum Watched {
    Listener,
    Incoming(u32),
    Outgoing(u32),
    Caller(u32),
}

impl Watched {
    pub(crate) fn data(self) -> EventData {
        let (kind, number) = match self {
            Watched::Listener => (0, 0),
            Watched::Incoming(peer) => (1, peer),
            Watched::Outgoing(peer) => (2, peer),
            Watched::Caller(serial) => (3, serial),
        };
        EventData::new_u64(kind << 32 | u64::from(number))
    }

    pub(crate) fn of(data: u64) -> Watched {
        let number = u32::try_from(data & 0xFFFF_FFFF).unwrap_or(0);
        match data >> 32 {
            1 => Watched::Incoming(number),
            2 => Watched::Outgoing(number),
            3 => Watched::Caller(number),
            _ => Watched::Listener,
        }
    }
}
