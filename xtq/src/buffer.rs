//! Memory: what tasks work on, what arrives with them, and what leaves.
//!
//! | memory | owner |
//! |---|---|
//! | [`TargetBuffer`] | whoever registered it, and the registration; a task has it alone while it runs |
//! | a receive buffer | posted: the world; lent to one task with its payload; posted again when that task has ended, unless it [took](crate::Task::take_payload) the buffer |
//! | [`Payload`] | the put, until the target has accepted it |

use crate::error::{Refusal, XtqError};
use crate::gather::{Gather, GatherInto, PayloadBytes, Pieces};
use crate::within::Holding;
use gapless_sync::this_thread;
use std::collections::BTreeMap;
use std::fmt;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

struct HeapMemory {
    bytes: Mutex<Box<[u8]>>,
    /// Whose thread has them, by its number, else 0. Only to know oneself.
    holder: AtomicU64,
    address: u64,
    len: u64,
}

/// Bytes that this thread has until this is dropped.
struct HeldBytes<'m>(MutexGuard<'m, Box<[u8]>>, &'m AtomicU64);

impl Drop for HeldBytes<'_> {
    fn drop(&mut self) {
        self.1.store(0, Ordering::Relaxed);
    }
}

/// Bytes of this process that functions of it work on, one task at a time. Clones are the same bytes.
#[derive(Clone)]
pub struct TargetBuffer(Arc<HeapMemory>);

impl TargetBuffer {
    /// A buffer of these bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> TargetBuffer {
        let bytes = bytes.into_boxed_slice();
        let (address, len) = (bytes.as_ptr().addr() as u64, bytes.len() as u64);
        TargetBuffer(Arc::new(HeapMemory {
            bytes: Mutex::new(bytes),
            holder: AtomicU64::new(0),
            address,
            len,
        }))
    }

    /// Its address, which does not change; nothing can be done with it.
    pub(crate) fn address(&self) -> u64 {
        self.0.address
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Reads or writes it while no task does: waits until a task that has it has ended. Meanwhile `act` must not wait for
    /// tasks, which may need the buffer: such calls of a world are refused ([`XtqError::Holding`]).
    ///
    /// # Panics
    /// This thread has it already, as a task that was given it does: it would wait for itself.
    pub fn with<T>(&self, act: impl FnOnce(&mut [u8]) -> T) -> T {
        let holding = Holding::one();
        let result = self.lend(act);
        drop(holding);
        result
    }

    /// The same for a task, which may wait for others.
    pub(crate) fn lend<T>(&self, act: impl FnOnce(&mut [u8]) -> T) -> T {
        let is_ours = self.0.holder.load(Ordering::Relaxed) == this_thread();
        assert!(!is_ours, "who has a target buffer asks for it again: it would wait for itself");
        act(&mut self.take(self.0.bytes.lock().unwrap_or_else(PoisonError::into_inner)).0)
    }

    /// The same, unless somebody has it.
    pub(crate) fn try_with<T>(&self, act: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        match self.0.bytes.try_lock() {
            Ok(bytes) => Some(act(&mut self.take(bytes).0)),
            Err(TryLockError::Poisoned(poisoned)) => {
                Some(act(&mut self.take(poisoned.into_inner()).0))
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn take<'m>(&'m self, bytes: MutexGuard<'m, Box<[u8]>>) -> HeldBytes<'m> {
        self.0.holder.store(this_thread(), Ordering::Relaxed);
        HeldBytes(bytes, &self.0.holder)
    }
}

impl fmt::Debug for TargetBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TargetBuffer of {} bytes", self.0.len)
    }
}

/// What goes with a put: bytes in one piece, or [several](Payload::pieces). They are written where they go when the put
/// goes there, from where they lie. So a list or an `Arc` is not copied before; what is borrowed is, once.
#[derive(Clone)]
pub struct Payload(BufferKind);

#[derive(Clone)]
enum BufferKind {
    One(Bytes),
    Pieces(Arc<Pieces>),
    Gathered(Arc<dyn Gather>),
}

/// Pieces of pieces of pieces: so often at most, then they are copied.
const DEPTH_MAX: u32 = 32;

/// So many bytes of a slice are copied without allocating.
const SHORT: usize = 64;

/// Those bytes. Aligned, so that a copy of what has them reads what was written as it was written: another way it waits.
#[derive(Clone, Copy)]
#[repr(align(16))]
pub(crate) struct Few([u8; SHORT]);

/// Copies a slice. Up to 64 bytes that are a multiple of 16 take no call.
#[inline]
pub(crate) fn copy_few(to: &mut [u8], from: &[u8]) {
    let (units, rest) = from.as_chunks::<16>();
    if from.len() > SHORT || !rest.is_empty() {
        to[..from.len()].copy_from_slice(from);
        return;
    }
    // Not by a call.
    let to = &mut to[..from.len()].as_chunks_mut::<16>().0;
    for at in 0..SHORT / 16 {
        if let (Some(to), Some(from)) = (to.get_mut(at), units.get(at)) {
            *to = *from;
        }
    }
}

/// In the place of more bytes than any put takes.
struct TooMany(usize);

impl Gather for TooMany {
    fn bytes(&self) -> usize {
        self.0
    }

    fn gather(&self, _: usize, _: &mut GatherInto<'_>) {}
}

/// Bytes in one piece.
#[derive(Clone)]
pub(crate) enum Bytes {
    Short { len: usize, bytes: Few },
    Own(Vec<u8>),
    Shared(Arc<[u8]>),
    Part(Arc<[u8]>, Range<usize>),
}

impl Bytes {
    pub(crate) fn none() -> Bytes {
        Bytes::Own(Vec::new())
    }

    #[inline(always)] // on the way of puts into rings
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Bytes::Short { len, bytes } => &bytes.0[..*len],
            Bytes::Own(bytes) => bytes,
            Bytes::Shared(bytes) => bytes,
            Bytes::Part(bytes, range) => bytes.get(range.clone()).unwrap_or_default(),
        }
    }

    /// A copy of slices, one behind the other.
    fn copy<'a>(pieces: impl Iterator<Item = &'a [u8]> + Clone) -> Bytes {
        let total: usize = pieces.clone().map(<[u8]>::len).sum();
        match total {
            len if len <= SHORT => {
                let mut bytes = Few([0; SHORT]);
                let mut at = 0;
                for piece in pieces {
                    bytes.0[at..at + piece.len()].copy_from_slice(piece);
                    at += piece.len();
                }
                Bytes::Short { len, bytes }
            }
            _ => {
                let mut all = Vec::with_capacity(total);
                pieces.for_each(|piece| all.extend_from_slice(piece));
                Bytes::Own(all)
            }
        }
    }
}

impl Payload {
    /// None.
    #[must_use]
    pub fn none() -> Payload {
        Payload(BufferKind::One(Bytes::none()))
    }

    /// Pieces, one behind the other: each a list, a shared slice, a borrowed one (which is copied), or again several. Empty
    /// ones add nothing, and one may be there twice. The put refuses too many bytes. Pieces that are again in pieces join
    /// the list, if nobody else has them.
    ///
    /// ```
    /// use gapless_xtq::Payload;
    /// use std::sync::Arc;
    /// let rows: Arc<[u8]> = Arc::from(*b"abcdef");
    /// let part = Payload::part_of(&rows, 2..4)?;
    /// let all = Payload::pieces([vec![1, 2].into(), part, b"xyz"[..].into()]);
    /// assert_eq!((all.len(), all.to_vec()), (7, b"\x01\x02cdxyz".to_vec()));
    /// # Ok::<(), gapless_xtq::XtqError>(())
    /// ```
    #[must_use]
    pub fn pieces(pieces: impl IntoIterator<Item = impl Into<Payload>>) -> Payload {
        let (mut list, mut depth) = (Vec::new(), 0);
        for piece in pieces.into_iter().map(Into::into).filter(|piece| !piece.is_empty()) {
            match piece.0 {
                BufferKind::Pieces(inner) => match Arc::try_unwrap(inner) {
                    Ok(inner) => {
                        depth = depth.max(inner.depth());
                        list.extend(inner.into_list());
                    }
                    Err(shared) if shared.depth() < DEPTH_MAX => {
                        depth = depth.max(shared.depth() + 1);
                        list.push(Payload(BufferKind::Pieces(shared)));
                    }
                    Err(shared) if u32::try_from(shared.bytes()).is_err() => {
                        list.push(Payload::gathered(Arc::new(TooMany(shared.bytes()))));
                    }
                    Err(shared) => list.push(Payload(BufferKind::Pieces(shared)).to_vec().into()),
                },
                one => list.push(Payload(one)),
            }
        }
        if list.len() < 2 {
            return list.pop().unwrap_or_else(Payload::none);
        }
        Payload(BufferKind::Pieces(Arc::new(Pieces::new(list, depth))))
    }

    /// Some bytes of a shared slice, which are not copied.
    ///
    /// # Errors
    /// They do not lie in it.
    pub fn part_of(bytes: &Arc<[u8]>, range: Range<usize>) -> Result<Payload, XtqError> {
        if bytes.get(range.clone()).is_none() {
            let (Range { start: from, end: to }, len) = (range, bytes.len());
            return Err(XtqError::PieceOutside { from, to, len });
        }
        Ok(Payload(BufferKind::One(Bytes::Part(Arc::clone(bytes), range))))
    }

    /// What this gathers: for layers above, whose memory this crate does not know.
    #[must_use]
    pub fn gathered(source: Arc<dyn Gather>) -> Payload {
        Payload(BufferKind::Gathered(source))
    }

    /// How many bytes it has.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.part().len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy of its bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.part().to_vec()
    }

    /// Its bytes, to be written somewhere.
    #[inline(always)] // on the way of puts into rings
    pub(crate) fn part(&self) -> PayloadBytes<'_> {
        match &self.0 {
            BufferKind::One(bytes) => PayloadBytes::One(bytes.bytes()),
            BufferKind::Pieces(pieces) => PayloadBytes::Gathered(&**pieces, 0, pieces.bytes()),
            BufferKind::Gathered(source) => PayloadBytes::Gathered(&**source, 0, source.bytes()),
        }
    }

    /// Its bytes, if it has them itself, or none.
    #[inline]
    pub(crate) fn few(&self) -> Option<&[u8]> {
        match &self.0 {
            BufferKind::One(Bytes::Short { len, bytes }) => Some(&bytes.0[..*len]),
            BufferKind::One(Bytes::Own(bytes)) if bytes.is_empty() => Some(&[]),
            _ => None,
        }
    }

    /// In one piece: what is not is copied. If it has more than `max` bytes, only that is true of the result, too.
    #[inline]
    pub(crate) fn into_one(self, max: usize) -> Bytes {
        match self.0 {
            BufferKind::One(bytes) => bytes,
            _ if self.len() > max => Bytes::Own(vec![0; max.saturating_add(1)]),
            _ => Bytes::Own(self.to_vec()),
        }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        Payload(BufferKind::One(Bytes::Own(bytes)))
    }
}

impl From<Arc<[u8]>> for Payload {
    fn from(bytes: Arc<[u8]>) -> Payload {
        Payload(BufferKind::One(Bytes::Shared(bytes)))
    }
}

/// A copy.
impl From<&[u8]> for Payload {
    // It is a call, so that the bytes are written where they stay: if they were moved, and in other pieces than they were
    // written in, that would wait for the stores.
    #[inline(never)]
    fn from(slice: &[u8]) -> Payload {
        if slice.len() > SHORT {
            return Payload(BufferKind::One(Bytes::Own(slice.to_vec())));
        }
        let mut bytes = Few([0; SHORT]);
        copy_few(&mut bytes.0, slice);
        Payload(BufferKind::One(Bytes::Short { len: slice.len(), bytes }))
    }
}

/// A copy of all of them, in one piece.
impl From<&[&[u8]]> for Payload {
    fn from(pieces: &[&[u8]]) -> Payload {
        Payload(BufferKind::One(Bytes::copy(pieces.iter().copied())))
    }
}

/// A copy of all of them, in one piece.
impl From<&[IoSlice<'_>]> for Payload {
    fn from(pieces: &[IoSlice<'_>]) -> Payload {
        Payload(BufferKind::One(Bytes::copy(pieces.iter().map(|piece| &**piece))))
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload of {} bytes", self.len())
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes().len())
    }
}

/// A receive buffer with a payload in it.
#[derive(Debug, Default)]
pub struct Received {
    /// All of the buffer.
    pub memory: Vec<u8>,
    /// Bytes of the payload.
    pub len: usize,
}

impl Received {
    /// The payload.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.memory.get(..self.len).unwrap_or_default()
    }
}

/// Receive buffers that wait for a payload: the shortest that is long enough is taken, of equal ones the oldest.
#[derive(Debug, Default)]
pub struct Posted {
    by_length: BTreeMap<(usize, u64), Vec<u8>>,
    next: u64,
    /// If they are made when they are needed: bytes of those that may be made now.
    pub room: Option<usize>,
}

impl Posted {
    /// A buffer without bytes is of no use to anybody.
    pub fn post(&mut self, buffer: Vec<u8>) {
        if let Some(room) = &mut self.room {
            *room += buffer.len();
        } else if !buffer.is_empty() {
            self.next += 1;
            self.by_length.insert((buffer.len(), self.next), buffer);
        }
    }

    /// A buffer for `len` bytes; none is needed for 0.
    pub fn claim(&mut self, len: usize) -> Result<Received, Refusal> {
        if len == 0 {
            return Ok(Received::default());
        }
        if let Some(room) = &mut self.room {
            *room = room.checked_sub(len).ok_or(Refusal::NoReceiveBuffer)?;
            return Ok(Received { memory: vec![0; len], len });
        }
        let found = self.by_length.range((len, 0)..).next().map(|(&key, _)| key);
        match found.and_then(|key| self.by_length.remove(&key)) {
            Some(memory) => Ok(Received { memory, len }),
            None => Err(match self.by_length.last_key_value() {
                None => Refusal::NoReceiveBuffer,
                Some(((largest, _), _)) => {
                    let largest = u32::try_from(*largest).unwrap_or(u32::MAX);
                    Refusal::ReceiveBufferTooSmall { largest }
                }
            }),
        }
    }

    /// Takes all of them.
    pub fn take_all(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.by_length).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_buffer_that_is_long_enough_is_taken() {
        let mut posted = Posted::default();
        assert_eq!(posted.claim(1).unwrap_err(), Refusal::NoReceiveBuffer);
        assert_eq!(posted.claim(0).unwrap().bytes(), b"");
        for buffer in [vec![1; 64], vec![2; 16], vec![3; 16], vec![]] {
            posted.post(buffer);
        }
        let taken = [10, 16, 16].map(|len| posted.claim(len).unwrap().memory[0]);
        assert_eq!(taken, [2, 3, 1]);
        posted.post(vec![4; 8]);
        let refused = posted.claim(9).unwrap_err();
        assert_eq!(refused, Refusal::ReceiveBufferTooSmall { largest: 8 });
        assert_eq!(posted.take_all(), [vec![4; 8]]);
    }

    #[test]
    fn buffers_are_made_while_there_is_room() {
        let mut posted = Posted { room: Some(20), ..Posted::default() };
        let first = posted.claim(15).unwrap();
        assert_eq!(posted.claim(6).unwrap_err(), Refusal::NoReceiveBuffer);
        assert_eq!(posted.claim(5).unwrap().bytes(), [0; 5]);
        posted.post(first.memory);
        assert_eq!((posted.claim(16).is_err(), posted.claim(15).is_ok()), (true, true));
    }
}
