//! ASK and SAY: what a process that waits is in, as a question to another one, and as the answer.

use super::{VERSION, kind};
use crate::asks::{Call, Doing};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

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
        Call::Nothing => (0, 0, 0),
        Call::Send { tag } => (1, 0, tag.cast_unsigned().into()),
        Call::Receive { tag: wanted } => (2, 0, tag(wanted)),
        Call::Probe { tag: wanted } => (3, 0, tag(wanted)),
        Call::Collective { operation, number } => (4, operation, number),
        Call::Window => (5, 0, 0),
        Call::Task => (6, 0, 0),
        Call::Making => (7, 0, 0),
        Call::Leaving => (8, 0, 0),
        Call::Other => (9, 0, 0),
        Call::Was { operation, number } => (10, operation, number),
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
            (0, 0, 0) => Some(Call::Nothing),
            (1, 0, _) => tag.ok().map(|tag| Call::Send { tag }),
            (2, 0, _) => wanted.ok().map(|tag| Call::Receive { tag }),
            (3, 0, _) => wanted.ok().map(|tag| Call::Probe { tag }),
            (4, operation, number) => Some(Call::Collective { operation, number }),
            (5, 0, 0) => Some(Call::Window),
            (6, 0, 0) => Some(Call::Task),
            (7, 0, 0) => Some(Call::Making),
            (8, 0, 0) => Some(Call::Leaving),
            (9, 0, 0) => Some(Call::Other),
            (10, operation, number) => Some(Call::Was { operation, number }),
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
