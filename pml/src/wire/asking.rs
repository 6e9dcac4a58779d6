//! ASK and SAY: what a process that waits is in, as a question to another one, and as the answer.

use super::{VERSION, kind};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The call that a process waits in. What collectives' operations are called is the business of their layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingCall {
    /// None that waits.
    Nothing,
    /// A message is sent.
    Send {
        /// Its tag.
        tag: i32,
    },
    /// A message is received.
    Receive {
        /// Its tag; `None`: any.
        tag: Option<i32>,
    },
    /// A message is waited for, and not received.
    Probe {
        /// Its tag; `None`: any.
        tag: Option<i32>,
    },
    /// A collective.
    Collective {
        /// Which operation; 0: not known so far.
        operation: u8,
        /// Which of the communicator's.
        number: u64,
    },
    /// An operation on a window, its making included.
    Window,
    /// A task that was put somewhere, or is to come.
    Task,
    /// The making of a communicator, or an agreement.
    Making,
    /// The world's end.
    Leaving,
    /// Any other.
    Other,
    /// None; but the collective that was asked for was this operation here, and is over.
    Was {
        /// Which operation.
        operation: u8,
        /// Which of the communicator's.
        number: u64,
    },
}

/// What a process says of the call that it waits in, for diagnosis: which call, on which communicator, for whom and how
/// long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doing {
    /// The call.
    pub call: WaitingCall,
    /// The communicator's context in this process, if there is one.
    pub context: Option<u32>,
    /// The process that it waits for, if it is one.
    pub whom: Option<u32>,
    /// For how long it has waited.
    pub millis: u32,
}

impl Doing {
    /// In nothing that waits.
    pub const NOTHING: Doing =
        Doing { call: WaitingCall::Nothing, context: None, whom: None, millis: 0 };
}

/// Length of either message, in bytes.
pub(crate) const ASK_BYTES: usize = 24;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct AskWire {
    kind: u8,
    version: u8,
    call: u8,
    operation: u8,
    /// As the receiver calls it.
    context: U32,
    /// A tag, or the number of a collective.
    number: U64,
    whom: U32,
    millis: U32,
}
const _: () = assert!(size_of::<AskWire>() == ASK_BYTES);

/// No context, no process, any tag.
const NONE: u32 = u32::MAX;

fn tag(tag: Option<i32>) -> u64 {
    tag.map_or(NONE, i32::cast_unsigned).into()
}

/// The bytes of a question, or of an answer.
pub(crate) fn asking(is_question: bool, doing: &Doing) -> [u8; ASK_BYTES] {
    let (call, operation, number) = match doing.call {
        WaitingCall::Nothing => (0, 0, 0),
        WaitingCall::Send { tag } => (1, 0, tag.cast_unsigned().into()),
        WaitingCall::Receive { tag: wanted } => (2, 0, tag(wanted)),
        WaitingCall::Probe { tag: wanted } => (3, 0, tag(wanted)),
        WaitingCall::Collective { operation, number } => (4, operation, number),
        WaitingCall::Window => (5, 0, 0),
        WaitingCall::Task => (6, 0, 0),
        WaitingCall::Making => (7, 0, 0),
        WaitingCall::Leaving => (8, 0, 0),
        WaitingCall::Other => (9, 0, 0),
        WaitingCall::Was { operation, number } => (10, operation, number),
    };
    zerocopy::transmute!(AskWire {
        kind: if is_question { kind::ASK } else { kind::SAY },
        version: VERSION,
        call,
        operation,
        context: U32::new(doing.context.unwrap_or(NONE)),
        number: U64::new(number),
        whom: U32::new(doing.whom.unwrap_or(NONE)),
        millis: U32::new(doing.millis),
    })
}

impl Doing {
    pub(super) fn check(wire: &AskWire) -> Result<Doing, String> {
        let AskWire { call, operation, .. } = *wire;
        let (number, some) =
            (wire.number.get(), |value: U32| Some(value.get()).filter(|it| *it != NONE));
        let tag = u32::try_from(number).map(u32::cast_signed);
        let wanted = tag.map(|tag| Some(tag).filter(|_| number != NONE.into()));
        let call = match (call, operation, number) {
            (0, 0, 0) => Some(WaitingCall::Nothing),
            (1, 0, _) => tag.ok().map(|tag| WaitingCall::Send { tag }),
            (2, 0, _) => wanted.ok().map(|tag| WaitingCall::Receive { tag }),
            (3, 0, _) => wanted.ok().map(|tag| WaitingCall::Probe { tag }),
            (4, operation, number) => Some(WaitingCall::Collective { operation, number }),
            (5, 0, 0) => Some(WaitingCall::Window),
            (6, 0, 0) => Some(WaitingCall::Task),
            (7, 0, 0) => Some(WaitingCall::Making),
            (8, 0, 0) => Some(WaitingCall::Leaving),
            (9, 0, 0) => Some(WaitingCall::Other),
            (10, operation, number) => Some(WaitingCall::Was { operation, number }),
            _ => None,
        };
        let (context, whom) = (some(wire.context), some(wire.whom));
        let wrong = || {
            format!(
                "no process is in call {} with operation {operation} and number {number}",
                wire.call
            )
        };
        Ok(Doing { call: call.ok_or_else(wrong)?, context, whom, millis: wire.millis.get() })
    }
}
