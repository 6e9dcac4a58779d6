//! What lies where in memory that a worker shares: the Rust side of `kernels/src/worker.h`, which draws it.

/// Slots of a ring.
pub const SLOTS: usize = 256;
/// Bytes of a slot, and of its units.
pub(crate) const SLOT_BYTES: usize = 256;
pub(crate) const UNIT_BYTES: usize = 16;
/// Units of a packet, which come first.
pub(crate) const PACKET_UNITS: usize = 4;
/// Bytes of a body in a unit.
pub(crate) const UNIT_BODY: usize = 14;
/// The longest body (arguments and payload) that lies in its slot, in bytes.
pub const INLINE_BYTES: usize = 168;
/// Sequence numbers that there are.
pub(crate) const SEQUENCES: u64 = 65535;
/// Rings that a worker polls, at most.
pub const RINGS_MAX: usize = 32;
/// Receive buffers, at most.
pub const BUFFERS_MAX: usize = 64;
/// Signals that kernels can be registered with, at most.
pub const SIGNALS_MAX: usize = 64;
/// Rings that tasks can put into, at most.
pub const OUTS_MAX: usize = 8;
/// Layouts that tasks can pack and unpack by, at most.
pub const LAYOUTS_MAX: usize = 32;

pub(crate) const RING_STATE: usize = 0;
pub(crate) const RING_WANTED: usize = 64;
/// Of a ring that a GPU puts into: whether it is to wait no longer.
pub(crate) const RING_ABORT: usize = 128;
pub(crate) const RING_HEAD_BYTES: usize = 256;

pub(crate) use super::state::{GONE, RUNNING, STARTING};

pub(crate) const CONTROL_STATE: usize = 0;
pub(crate) const CONTROL_WHY: usize = 8;
pub(crate) const CONTROL_CHANGED: usize = 64;
pub(crate) const CONTROL_ORDERS: usize = 72;
pub(crate) const CONTROL_SEEN: usize = 128;
pub(crate) const CONTROL_TASKS: usize = 136;
pub(crate) const CONTROL_REFUSALS: usize = 144;
pub(crate) const CONTROL_IDLE: usize = 192;
pub(crate) const CONTROL_LIFE: usize = 200;
pub(crate) const CONTROL_RINGS: usize = 208;
pub(crate) const CONTROL_BUFFERS: usize = 216;
pub(crate) const CONTROL_OUTS: usize = 224;
pub(crate) const CONTROL_FIRST: usize = 232;
pub(crate) const CONTROL_COUNTED: usize = 256;
pub(crate) const CONTROL_RING_LIST: usize = 768;
pub(crate) const CONTROL_FIRST_SLOT: usize = 2816;
pub(crate) const CONTROL_BUFFER_LIST: usize = 3072;
pub(crate) const CONTROL_REFUSED: usize = 4096;
pub(crate) const CONTROL_OUT_LIST: usize = 5120;
pub(crate) const CONTROL_LAYOUT_LIST: usize = 6144;
pub(crate) const CONTROL_KERNELS: usize = 8192;
pub(crate) const CONTROL_QUEUES: usize = 12288;
pub(crate) const CONTROL_BYTES: usize = 16384;
pub(crate) const REFUSED_MAX: usize = 64;

/// Rings of which a packet may go with a start.
pub(crate) const FIRST_RINGS: usize = 4;

pub(crate) const RING_WORDS: usize = 8;
pub(crate) const RING_HEAD_AT: usize = 0;
pub(crate) const RING_SLOTS_AT: usize = 1;
pub(crate) const RING_STATUS_AT: usize = 2;
pub(crate) const RING_ARENA_AT: usize = 3;
pub(crate) const RING_ARENA_BYTES: usize = 4;
pub(crate) const RING_POSITION: usize = 5;
pub(crate) const RING_NEAR: usize = 6;

pub(crate) const ROW_WORDS: usize = 8;

// Nothing of the control block lies in what comes behind it.
const _: () = {
    assert!(CONTROL_OUTS + 8 <= CONTROL_FIRST && CONTROL_FIRST + 8 <= CONTROL_COUNTED);
    assert!(CONTROL_COUNTED + 8 * SIGNALS_MAX <= CONTROL_RING_LIST);
    assert!(CONTROL_RING_LIST + 8 * RING_WORDS * RINGS_MAX <= CONTROL_FIRST_SLOT);
    assert!(CONTROL_FIRST_SLOT + SLOT_BYTES <= CONTROL_BUFFER_LIST);
    assert!(CONTROL_BUFFER_LIST + 16 * BUFFERS_MAX <= CONTROL_REFUSED);
    assert!(CONTROL_REFUSED + 8 * REFUSED_MAX <= CONTROL_OUT_LIST);
    assert!(CONTROL_OUT_LIST + 8 * RING_WORDS * OUTS_MAX <= CONTROL_LAYOUT_LIST);
    assert!(CONTROL_LAYOUT_LIST + 8 * LAYOUTS_MAX <= CONTROL_KERNELS);
    assert!(CONTROL_KERNELS + 8 * ROW_WORDS * crate::packet::ENTRIES <= CONTROL_QUEUES);
    assert!(CONTROL_QUEUES + 8 * ROW_WORDS * crate::packet::ENTRIES <= CONTROL_BYTES);
};

pub(crate) const ORDER_ABORT: u64 = 1;
pub(crate) const ORDER_LEAVE: u64 = 2;

pub(crate) const WHY_IDLE: u64 = 1;
pub(crate) const WHY_TOLD: u64 = 2;
pub(crate) const WHY_ABORTED: u64 = 3;
pub(crate) const WHY_OLD: u64 = 4;

/// Below this, codes of a status are those of refusals.
pub(crate) const STATUS_ENDED: u8 = 64;
pub(crate) const STATUS_FAILED: u8 = 65;
pub(crate) const STATUS_MALFORMED: u8 = 66;

pub(crate) const FAILED_OUTSIDE: u32 = 1;
pub(crate) const FAILED_UNKNOWN: u32 = 2;
pub(crate) const FAILED_STOPPED: u32 = 3;
pub(crate) const FAILED_FULL: u32 = 4;
/// With this bit: what a function of a user's says.
pub(crate) const FAILED_USER: u32 = 0x8000_0000;

/// The number of the first function of a user's.
pub(crate) const USERS: u64 = 256;

/// The sequence number of a position; never 0.
#[inline]
pub(crate) fn sequence_of(position: u64) -> u16 {
    // Below 65,535.
    u16::try_from(position % SEQUENCES).unwrap_or_default() + 1
}

/// The slot of a position.
#[inline]
pub(crate) fn slot_of(position: u64) -> usize {
    // Below 256.
    usize::from((position % SLOTS as u64).to_le_bytes()[0])
}

/// Units of a slot that a body of so many bytes needs, the packet's included.
#[cfg(any(test, feature = "testkit"))]
pub(crate) fn units(body: usize) -> usize {
    let behind = if body > INLINE_BYTES { 1 } else { body.div_ceil(UNIT_BODY) };
    PACKET_UNITS + behind
}

/// Bytes of a body in the arena: the payload begins at a multiple of 16.
pub(crate) fn arena_bytes(arguments: usize, payload: usize) -> usize {
    arguments.next_multiple_of(UNIT_BYTES) + payload
}

/// A status, in its word.
#[cfg(any(test, feature = "testkit"))]
pub(crate) fn status_word(position: u64, code: u8, value: u32) -> u64 {
    u64::from(sequence_of(position)) | u64::from(code) << 16 | u64::from(value) << 32
}

/// Where the parts of a ring lie in its memory: head, slots, status, arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape {
    /// Bytes for bodies that are too long for their slots; a multiple of 16.
    pub arena_bytes: u32,
}

/// Bodies of up to 1 MiB.
impl Default for RingShape {
    fn default() -> RingShape {
        RingShape { arena_bytes: 1 << 20 }
    }
}

impl RingShape {
    pub(crate) const SLOTS_AT: usize = RING_HEAD_BYTES;
    pub(crate) const SLOTS_BYTES: usize = SLOTS * SLOT_BYTES;
    pub(crate) const STATUS_AT: usize = RING_HEAD_BYTES + RingShape::SLOTS_BYTES;
    pub(crate) const ARENA_AT: usize = (RingShape::STATUS_AT + 8 * SLOTS).next_multiple_of(4096);

    /// Where the slot of a position begins.
    pub(crate) fn slot_at(position: u64) -> usize {
        RingShape::SLOTS_AT + slot_of(position) * SLOT_BYTES
    }

    /// Where the status of a position lies.
    pub(crate) fn status_at(position: u64) -> usize {
        RingShape::STATUS_AT + 8 * slot_of(position)
    }

    /// Whether a body of so many bytes of arguments and of payload ever fits.
    #[must_use]
    pub fn holds(self, arguments: usize, payload: usize) -> bool {
        let bytes = arena_bytes(arguments, payload).next_multiple_of(UNIT_BYTES);
        arguments + payload <= INLINE_BYTES || bytes as u64 <= self.arena_bytes.into()
    }

    /// Bytes of the ring's memory.
    #[must_use]
    pub fn bytes(self) -> u64 {
        RingShape::ARENA_AT as u64 + u64::from(self.arena_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_has_the_same_numbers() {
        let header = include_str!("../../../kernels/src/worker.h");
        let number = |name: &str| -> usize {
            let line =
                header.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
            line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
        };
        macro_rules! same {
            ($($name:ident)*) => {$(
                assert_eq!($name.to_string(), number(stringify!($name)).to_string(), stringify!($name));
            )*};
        }
        same!(SLOTS SLOT_BYTES UNIT_BYTES PACKET_UNITS UNIT_BODY INLINE_BYTES SEQUENCES RINGS_MAX BUFFERS_MAX);
        same!(SIGNALS_MAX OUTS_MAX LAYOUTS_MAX CONTROL_LAYOUT_LIST RING_ABORT RING_STATE RING_WANTED RING_HEAD_BYTES GONE STARTING RUNNING LEAVING);
        same!(CONTROL_STATE CONTROL_WHY CONTROL_CHANGED CONTROL_ORDERS CONTROL_SEEN CONTROL_TASKS CONTROL_REFUSALS);
        same!(CONTROL_IDLE CONTROL_LIFE CONTROL_RINGS CONTROL_BUFFERS CONTROL_OUTS CONTROL_COUNTED CONTROL_REFUSED);
        same!(CONTROL_BUFFER_LIST CONTROL_RING_LIST CONTROL_OUT_LIST CONTROL_KERNELS CONTROL_QUEUES CONTROL_BYTES);
        same!(CONTROL_FIRST CONTROL_FIRST_SLOT FIRST_RINGS);
        same!(REFUSED_MAX RING_WORDS RING_HEAD_AT RING_SLOTS_AT RING_STATUS_AT RING_ARENA_AT RING_ARENA_BYTES);
        same!(RING_POSITION RING_NEAR ROW_WORDS ORDER_ABORT ORDER_LEAVE WHY_IDLE WHY_TOLD WHY_ABORTED WHY_OLD);
        same!(STATUS_ENDED STATUS_FAILED STATUS_MALFORMED FAILED_OUTSIDE FAILED_UNKNOWN FAILED_STOPPED FAILED_FULL);
        assert_eq!(crate::packet::ENTRIES, number("ENTRIES"));
        assert_eq!(USERS.to_string(), number("DO_USER").to_string());
        assert!(header.contains(&format!("#define FAILED_USER {FAILED_USER:#x}u\n")));
        use super::super::state::LEAVING;
        use crate::error::Refusal;
        let refusals = [
            ("NOT_REGISTERED", Refusal::NotRegistered),
            ("NO_QUEUE", Refusal::NoQueue),
            ("PAYLOAD", Refusal::PayloadTooLong { max: 0 }),
            ("ARGUMENTS", Refusal::Arguments { registered: 0 }),
            ("GROUP", Refusal::Group { items_max: 0 }),
            ("NO_BUFFER", Refusal::NoReceiveBuffer),
            ("SMALL_BUFFER", Refusal::ReceiveBufferTooSmall { largest: 0 }),
            ("GRID", Refusal::Grid),
        ];
        for (name, refusal) in refusals {
            assert_eq!(usize::from(refusal.encode().0), number(&format!("REFUSED_{name}")));
        }
        for (name, function) in super::super::DeviceFunction::ALL {
            assert_eq!((function as u64).to_string(), number(&format!("DO_{name}")).to_string());
        }
        assert_eq!(INLINE_BYTES, (SLOT_BYTES / UNIT_BYTES - PACKET_UNITS) * UNIT_BODY);
    }

    #[test]
    fn positions_have_slots_and_sequences() {
        assert_eq!((sequence_of(0), slot_of(0)), (1, 0));
        assert_eq!((sequence_of(65_534), slot_of(65_534)), (65_535, 254));
        assert_eq!((sequence_of(65_535), slot_of(65_535)), (1, 255));
        assert_eq!([0, 1, 14, 15, 168, 169].map(units), [4, 5, 5, 6, 16, 5]);
        assert_eq!(RingShape::ARENA_AT % 4096, 0);
    }
}
