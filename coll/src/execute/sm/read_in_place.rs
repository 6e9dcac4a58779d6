//! Buffers that peers read where they lie, in long collectives: no slot is filled. They map the memory, or, if it
//! cannot be mapped and each byte is for one of them only, read it by the kernel ([`super::single_copy`]).
//!
//! Each rank decides for its own buffers. It writes a key for every reader into the key table, which lies behind the
//! slots, and then the entry that says so. Its collective ends when nobody reads its memory any more.

use gapless_bml::{Bml, Mapping, Rank, RemoteKey};
use gapless_mem::{Lease, Region};

use super::long_plan::LongPlan;
use super::slots::among;
use super::{SegmentMemory, SmContext, single_copy};
use crate::execute::error::CollError;

/// With more ranks there is no key table: to write and to map a key for each pair of ranks takes longer than to fill
/// slots.
pub(super) const RANKS_MAX: usize = 64;

/// From this many bytes for each rank on, a buffer is worth its keys.
pub(super) const BYTES_MIN: u64 = 16 << 10;

/// Bytes of a key in a record: how long it is, and the key.
pub(super) const KEY_BYTES: usize = 1 + RemoteKey::MAX_BYTES;

/// Bytes of a record of the key table: a key, and whether the rank that writes the record can read memory of the one
/// that it is for.
const KEY_RECORD_BYTES: usize = KEY_BYTES + 1;

/// Which of its buffers a rank lets others read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectBuffer {
    /// What it contributes.
    Input,
    /// What it receives into: its slices of results.
    Output,
}

/// Something for each [`DirectBuffer`].
#[derive(Clone, Debug)]
pub(super) struct Both<T> {
    pub(super) input: Option<T>,
    pub(super) output: Option<T>,
}

impl<T> Default for Both<T> {
    fn default() -> Both<T> {
        Both { input: None, output: None }
    }
}

impl<T> Both<T> {
    /// One bit for each buffer that there is.
    pub(super) fn flags(&self) -> u8 {
        u8::from(self.input.is_some()) | u8::from(self.output.is_some()) << 1
    }

    pub(super) fn is_empty(&self) -> bool {
        self.flags() == 0
    }
}

/// Bytes of the key table: a record for each rank, buffer and reader.
pub(super) fn key_table_bytes(ranks: usize) -> u64 {
    if ranks > RANKS_MAX { 0 } else { (2 * ranks * ranks * KEY_RECORD_BYTES) as u64 }
}

impl SegmentMemory {
    /// The record with the key with which `reader` reads a buffer of `rank`'s.
    pub(super) fn key_record(
        &self,
        local_rank: usize,
        buffer: DirectBuffer,
        reader: usize,
    ) -> Option<Region> {
        let index = 2 * local_rank + usize::from(buffer == DirectBuffer::Output);
        let at = (index * self.ranks + reader) * KEY_RECORD_BYTES;
        let behind = self.slots.region();
        let first = self.slot_bytes.checked_mul((self.ranks * super::long_plan::SLOTS) as u64)?;
        behind.sub(first.checked_add(at as u64)?, KEY_RECORD_BYTES as u64).ok()
    }
}

/// This rank's buffers that others read where they lie.
#[derive(Debug, Default)]
pub(super) struct Offered {
    pub(super) own: Both<Region>,
    /// Whether what it contributes is read by the kernel, and not mapped.
    by_single_copy: bool,
}

/// Flags of an entry: what is mapped, as [`Both::flags`] says; or what is contributed is read by the kernel.
const INPUT: u8 = 1;
const OUTPUT: u8 = 2;
const SINGLE_COPY: u8 = 4;

impl Offered {
    pub(super) fn flags(&self) -> u8 {
        let flags = self.own.flags();
        if self.by_single_copy { flags & !INPUT | SINGLE_COPY } else { flags }
    }
}

/// The memory of this rank's buffers that the others read where they lie, with keys for all of them. `input`: what it
/// contributes. `recv`: what it receives into, if that is plain memory.
pub(super) fn offer(
    plan: &LongPlan,
    (input, recv): (Option<Region>, Option<Region>),
    cx: &mut SmContext<'_>,
    bml: &mut Bml,
) -> Offered {
    let ranks = cx.shared.ranks;
    if ranks > RANKS_MAX {
        return Offered::default();
    }
    let may_single_copy =
        plan.has_own_readers() && plan.len() >= single_copy::least(plan.sources());
    if may_single_copy {
        single_copy::announce_reads(cx, bml);
    }
    if plan.input_bytes(cx.local_rank()) < BYTES_MIN.saturating_mul(ranks as u64) {
        return Offered::default();
    }
    let (me, cx) = (cx.local_rank(), &*cx);
    let readers = || among(plan.readers(), ranks).filter(|reader| *reader != me);
    let mut shared = |region: Option<Region>, buffer: DirectBuffer| {
        let region = region?;
        readers()
            .all(|reader| write_key(region, (buffer, reader), cx, bml).is_some())
            .then_some(region)
    };
    let output = recv.filter(|_| plan.shares_results());
    let mut own = Both {
        input: shared(input, DirectBuffer::Input),
        output: shared(output, DirectBuffer::Output),
    };
    let by_single_copy = own.input.is_none()
        && may_single_copy
        && input.is_some_and(|region| {
            readers().all(|reader| {
                single_copy::can_read_us(reader, cx)
                    && single_copy::write_key(region, reader, cx, bml).is_some()
            })
        });
    if by_single_copy {
        own.input = input;
    }
    Offered { own, by_single_copy }
}

/// Writes a key for one reader; `None`: there is none.
pub(super) fn write_key(
    region: Region,
    (buffer, reader): (DirectBuffer, usize),
    cx: &SmContext<'_>,
    bml: &mut Bml,
) -> Option<()> {
    let process = cx.subgroup.process(reader)?;
    let (peer, mapped) = bml.mapped(Rank(process))?;
    // SAFETY: the region is of a buffer that the caller of `SharedSegment::begin` grants until the collective has
    // ended; nothing keeps a clone of the lease after the call (rule 2 of `Mapped`).
    let lease = unsafe { Lease::kept_by_caller(region) };
    store_key(&mapped.key(peer, &lease)?, (buffer, reader), cx)
}

pub(super) fn store_key(
    key: &RemoteKey,
    (buffer, reader): (DirectBuffer, usize),
    cx: &SmContext<'_>,
) -> Option<()> {
    let record = cx.shared.key_record(cx.local_rank(), buffer, reader)?;
    let bytes = key.as_bytes();
    let mut written = [0; KEY_BYTES];
    written[0] = u8::try_from(bytes.len()).ok()?;
    written[1..].get_mut(..bytes.len())?.copy_from_slice(bytes);
    // SAFETY: the key table is mapped memory, which no reference of this process covers. This rank alone writes its own
    // records, and whoever read an earlier key there has done so: that collective has ended, here and there, or has
    // failed.
    unsafe { gapless_mem::write(&record, 0, &written) }.ok()
}

/// Where a rank that was met lets others read its buffers.
#[derive(Clone, Debug)]
pub(super) struct Direct {
    pub(super) mapped: Both<Mapping>,
    /// The key by which what it contributes is read by the kernel.
    pub(super) single_copy_key: Option<RemoteKey>,
}

/// Finds the buffers of a rank that its flags name.
pub(super) fn accept(
    plan: &LongPlan,
    (local_rank, flags): (usize, u8),
    cx: &SmContext<'_>,
    bml: &mut Bml,
) -> Result<Direct, CollError> {
    let mut map = |buffer, expected| map(local_rank, buffer, expected, cx, bml);
    let expected = plan.input_bytes(local_rank);
    let input = (flags & INPUT != 0).then(|| map(DirectBuffer::Input, expected)).transpose()?;
    // No other operation's results are shared, whatever a rank says.
    let output = (flags & OUTPUT != 0 && plan.shares_results())
        .then(|| map(DirectBuffer::Output, plan.len()))
        .transpose()?;
    let by_single_copy = flags & SINGLE_COPY != 0 && plan.has_own_readers();
    let single_copy_key = by_single_copy.then(|| single_copy_key_of(local_rank, cx));
    Ok(Direct { mapped: Both { input, output }, single_copy_key: single_copy_key.transpose()? })
}

/// The key by which what a rank contributes is read by the kernel.
pub(super) fn single_copy_key_of(
    local_rank: usize,
    cx: &SmContext<'_>,
) -> Result<RemoteKey, CollError> {
    let refused = |reason| CollError::NotMapped { rank: cx.subgroup.rank(local_rank), reason };
    load_key(local_rank, DirectBuffer::Input, cx).map_err(refused)
}

/// Maps a buffer of a rank, which has `expected` bytes at least.
pub(super) fn map(
    local_rank: usize,
    buffer: DirectBuffer,
    expected: u64,
    cx: &SmContext<'_>,
    bml: &mut Bml,
) -> Result<Mapping, CollError> {
    let refused = |reason| CollError::NotMapped { rank: cx.subgroup.rank(local_rank), reason };
    let mapping = read_key(local_rank, buffer, cx, bml).map_err(refused)?;
    let region = mapping.region();
    match region.len() {
        len if len < expected => Err(refused(format!("{len} bytes instead of {expected}"))),
        _ if !region.space().cpu_accessible() => Err(refused("it is not the host's".to_owned())),
        _ => Ok(mapping),
    }
}

fn read_key(
    local_rank: usize,
    buffer: DirectBuffer,
    cx: &SmContext<'_>,
    bml: &mut Bml,
) -> Result<Mapping, String> {
    let key = load_key(local_rank, buffer, cx)?;
    let process = cx.subgroup.process(local_rank);
    let (peer, mapped) =
        process.and_then(|process| bml.mapped(Rank(process))).ok_or_else(no_key)?;
    mapped.map(peer, &key).map_err(|error| error.to_string())
}

fn no_key() -> String {
    "there is no key".to_owned()
}

fn load_key(
    local_rank: usize,
    buffer: DirectBuffer,
    cx: &SmContext<'_>,
) -> Result<RemoteKey, String> {
    let record = cx.shared.key_record(local_rank, buffer, cx.local_rank()).ok_or_else(no_key)?;
    let mut written = [0; KEY_BYTES];
    // SAFETY: as in `store_key`; the rank wrote its key before its entry, and if it writes meanwhile, the bytes are
    // arbitrary.
    unsafe { gapless_mem::read(&record, 0, &mut written) }.map_err(|error| error.to_string())?;
    let [len, key @ ..] = &written;
    key.get(..usize::from(*len)).and_then(RemoteKey::new).ok_or_else(no_key)
}
