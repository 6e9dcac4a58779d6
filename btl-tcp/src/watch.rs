//! What the sockets of a transport are there for, as names in its [`Watch`].

pub(crate) use gapless_btl::watch::{EVENTS, Happened, Interest, Watch};

/// What an event is about; the number is that of a listener, link or unauthenticated socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    Listener(u32),
    Unauthenticated(u32),
    /// A call to the peer of this number.
    OutgoingCall(u32),
    Link(u32),
    /// A connection of this peer that may be needed.
    Spare(u32),
    /// A connection that only shows whether the host answers.
    Pulse(u32),
    Alarm,
}

impl From<Watched> for u64 {
    fn from(what: Watched) -> u64 {
        let (kind, number) = match what {
            Watched::Listener(at) => (1, at),
            Watched::Unauthenticated(at) => (2, at),
            Watched::OutgoingCall(id) => (3, id),
            Watched::Link(id) => (4, id),
            Watched::Spare(id) => (5, id),
            Watched::Pulse(id) => (6, id),
            Watched::Alarm => (7, 0),
        };
        kind << 32 | u64::from(number)
    }
}

impl Watched {
    /// The reverse.
    pub(crate) fn of(name: u64) -> Option<Watched> {
        let number = u32::try_from(name & u64::from(u32::MAX)).ok()?;
        Some(match name >> 32 {
            1 => Watched::Listener(number),
            2 => Watched::Unauthenticated(number),
            3 => Watched::OutgoingCall(number),
            4 => Watched::Link(number),
            5 => Watched::Spare(number),
            6 => Watched::Pulse(number),
            7 => Watched::Alarm,
            _ => return None,
        })
    }
}
