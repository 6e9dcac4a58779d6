//! What a receiver says of a message in FIN.

use crate::protocol::Protocol;

/// What became of a message that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A receive took it, by this protocol.
    Received(Protocol),
    /// A receive took it, but could use nothing of it.
    Refused,
    /// It was sent in ready mode, and no receive was posted.
    NotReady,
    /// Its sender has cancelled it, and no receive had taken it.
    Cancelled,
    /// Its receiver leaves the job, or has freed the communicator, without receiving it.
    Unreceived,
    /// Nobody receives it, because its communicator was revoked.
    Revoked,
}

impl Verdict {
    /// All but `Received`.
    const OTHERS: [Verdict; 5] = [
        Verdict::Refused,
        Verdict::NotReady,
        Verdict::Cancelled,
        Verdict::Unreceived,
        Verdict::Revoked,
    ];

    /// Its number on the wire.
    pub(super) fn code(self) -> u8 {
        match self {
            Verdict::Refused => 0,
            Verdict::Received(by) => by.wire(),
            Verdict::NotReady => 16,
            Verdict::Cancelled => 17,
            Verdict::Unreceived => 18,
            Verdict::Revoked => 19,
        }
    }

    pub(super) fn decode(code: u8) -> Result<Verdict, String> {
        let received = Protocol::ALL.into_iter().map(Verdict::Received);
        let found = received.chain(Verdict::OTHERS).find(|known| known.code() == code);
        found.ok_or_else(|| format!("no verdict has number {code}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for verdict in Verdict::OTHERS {
            assert_eq!(Verdict::decode(verdict.code()), Ok(verdict));
        }
        for protocol in Protocol::ALL {
            let verdict = Verdict::Received(protocol);
            assert_eq!(Verdict::decode(verdict.code()), Ok(verdict));
        }
        assert!(Verdict::decode(14).is_err());
        assert!(Verdict::decode(255).is_err());
    }
}
