//! What the sockets of a transport are there for, as names in its [`Watch`].

pub(crate) use gapless_btl::watch::{EVENTS, Happened, Interest, Watch};

/// What an event is about; the number is that of a listener, link or stranger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Listener(u32),
    Stranger(u32),
    /// A call to the peer of this number.
    Call(u32),
    Link(u32),
    /// A connection of this peer that may be needed.
    Spare(u32),
    /// A connection that only shows whether the host answers.
    Pulse(u32),
    Alarm,
}

impl From<What> for u64 {
    fn from(what: What) -> u64 {
        let (kind, number) = match what {
            What::Listener(at) => (1, at),
            What::Stranger(at) => (2, at),
            What::Call(id) => (3, id),
            What::Link(id) => (4, id),
            What::Spare(id) => (5, id),
            What::Pulse(id) => (6, id),
            What::Alarm => (7, 0),
        };
        kind << 32 | u64::from(number)
    }
}

impl What {
    /// The reverse.
    pub(crate) fn of(name: u64) -> Option<What> {
        let number = u32::try_from(name & u64::from(u32::MAX)).ok()?;
        Some(match name >> 32 {
            1 => What::Listener(number),
            2 => What::Stranger(number),
            3 => What::Call(number),
            4 => What::Link(number),
            5 => What::Spare(number),
            6 => What::Pulse(number),
            7 => What::Alarm,
            _ => return None,
        })
    }
}
