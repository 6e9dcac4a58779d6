//! Buffers that the adapter sends from and receives into, as slots and fragments.
//!
//! A buffer has one holder at a time: this file's lists (free), a slot or a fragment, or the adapter (posted). Memory is
//! registered once, when a link comes up. Slots and fragments come back from any thread through [`Returns`]; all else
//! is done by the thread that polls.
//!
//! ```text
//!  0          48       64                    64 + fragment bytes
//! +----------+--------+---------------------+
//! | unused   | header | message             |
//! +----------+--------+---------------------+
//! ```

use crate::header::{HEADER_BYTES, Header};
use crate::retain::Filled;
use crate::verbs::memory::{Domain, Registered};
use crate::verbs::pair::{Qp, ReadyToSend};
use crate::verbs::queues::{LISTED, Srq, Vacant};
use crate::wake_fd::WakeFd;
use gapless_btl::{Fragment, LinkError, PeerId, Reclaim, Slot};
use gapless_mem::Region;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Where the message begins, in bytes.
const MESSAGE_AT: usize = 64;
/// Where the header begins.
const HEADER_AT: usize = MESSAGE_AT - HEADER_BYTES;
/// The end of a list.
const NIL: u32 = u32::MAX;

/// How far buffers are apart.
fn stride(fragment_bytes: usize) -> usize {
    (MESSAGE_AT + fragment_bytes).next_multiple_of(MESSAGE_AT)
}

/// Buffers that came back, from any thread: a list that one thread takes as a whole.
struct Returns {
    head: AtomicU32,
    beneath: Box<[AtomicU32]>,
}

impl Returns {
    fn new(count: u32) -> Returns {
        let beneath = (0..count).map(|_| AtomicU32::new(NIL)).collect();
        Returns { head: AtomicU32::new(NIL), beneath }
    }

    /// An index beyond the list is none of ours, and is passed over.
    fn push(&self, index: u32) {
        let Some(beneath) = self.beneath.get(index as usize) else { return };
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            beneath.store(head, Ordering::Relaxed);
            // Whoever takes the list sees what the holder did with the buffer, and what is beneath.
            let pushed =
                self.head.compare_exchange_weak(head, index, Ordering::Release, Ordering::Relaxed);
            match pushed {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes all that came back; calls `each` with it.
    fn take(&self, mut each: impl FnMut(u32)) {
        if self.head.load(Ordering::Relaxed) == NIL {
            return;
        }
        let mut next = self.head.swap(NIL, Ordering::Acquire);
        while let Some(beneath) = self.beneath.get(next as usize) {
            let index = next;
            next = beneath.load(Ordering::Relaxed);
            each(index);
        }
    }
}

/// What slots keep.
struct SlotHome {
    memory: Arc<Registered>,
    returns: Returns,
}

// SAFETY: slots keep the home, and it the memory; an index is on one list, slot or piece of work at a time, and comes back
// by `reclaim` alone; `push` neither blocks nor panics, and touches only its own numbers.
unsafe impl Reclaim for SlotHome {
    unsafe fn reclaim(&self, index: u64) {
        self.returns.push(u32::try_from(index).unwrap_or(NIL));
    }
}

/// The slots of one link.
pub(crate) struct Slots {
    home: Arc<SlotHome>,
    reclaim: Arc<dyn Reclaim>,
    free: Vec<u32>,
    /// With callers, not sent.
    out: u32,
    stride: u64,
}

impl Slots {
    /// # Errors
    /// There is no memory, or it cannot be registered.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        count: u32,
        fragment_bytes: usize,
    ) -> Result<Slots, LinkError> {
        let stride = stride(fragment_bytes);
        let memory = Registered::new(domain, stride * count as usize)?;
        let home = Arc::new(SlotHome { memory, returns: Returns::new(count) });
        let reclaim: Arc<dyn Reclaim> = home.clone();
        let free = (0..count).rev().collect();
        Ok(Slots { home, reclaim, free, out: 0, stride: stride as u64 })
    }

    pub(crate) fn memory(&self) -> &Arc<Registered> {
        &self.home.memory
    }

    fn collect(&mut self) {
        let Slots { home, free, out, .. } = self;
        home.returns.take(|index| {
            free.push(index);
            *out -= 1;
        });
    }

    /// How many slots callers have.
    pub(crate) fn out(&mut self) -> u32 {
        self.collect();
        self.out
    }

    /// How many are free.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// A slot of `len` bytes, which fit.
    pub(crate) fn take(&mut self, peer: PeerId, len: usize) -> Option<Slot> {
        let index = self.free.pop()?;
        let at = u64::from(index) * self.stride + MESSAGE_AT as u64;
        let region = self.home.memory.region().sub(at, len as u64).ok()?;
        self.out += 1;
        // SAFETY: the home keeps the memory; the index was free, so nobody else has the buffer, and comes back by
        // `reclaim` or by `open`.
        Some(unsafe { Slot::new(region, peer, u64::from(index), Arc::clone(&self.reclaim)) })
    }

    /// Takes a slot apart that is to be sent; gives it back if it is not of this link.
    pub(crate) fn open(&mut self, slot: Slot) -> Result<Filled, Slot> {
        if !slot.belongs_to(&self.reclaim) {
            return Err(slot);
        }
        let bytes = u32::try_from(slot.len()).expect("a fragment is not that long");
        let (_, index) = slot.into_parts();
        self.out -= 1;
        Ok(Filled { index: u32::try_from(index).expect("the pool's own index"), bytes })
    }

    /// Sends a message with its header.
    ///
    /// # Errors
    /// The queue is full; nothing was posted.
    pub(crate) fn send(
        &self,
        qp: &mut Qp<ReadyToSend>,
        (name, told): (u64, bool),
        filled: Filled,
        header: &Header,
    ) -> Result<(), LinkError> {
        let at = u64::from(filled.index) * self.stride + HEADER_AT as u64;
        let memory = &self.home.memory;
        // SAFETY: the memory lives; the buffer was taken out of its slot, so nobody else touches it.
        let written = unsafe { gapless_mem::write(&memory.region(), at, &header.write()) };
        written.expect("a buffer lies in its memory, which is the CPU's");
        let bytes = filled.bytes + u32::try_from(HEADER_BYTES).unwrap_or(0);
        // SAFETY: the queue pair was given the memory when the link came up; nobody touches the buffer until `give`, which
        // comes when the work has ended.
        unsafe { qp.send(name, told, memory, (at, bytes)) }
    }

    /// The message in a buffer that was taken out of its slot.
    pub(crate) fn read(&self, filled: Filled) -> Vec<u8> {
        let at = u64::from(filled.index) * self.stride + MESSAGE_AT as u64;
        let mut message = vec![0; filled.bytes as usize];
        // SAFETY: the memory lives; the buffer was taken out of its slot and is not free, so nobody writes it. The adapter
        // reads it at most.
        let read = unsafe { gapless_mem::read(&self.home.memory.region(), at, &mut message) };
        read.expect("a buffer lies in its memory, which is the CPU's");
        message
    }

    /// A buffer that was sent is free again.
    pub(crate) fn give(&mut self, index: u32) {
        self.free.push(index);
    }
}

/// What fragments keep.
struct FragmentHome {
    /// Each has room for as many buffers.
    chunks: Box<[OnceLock<Arc<Registered>>]>,
    returns: Returns,
    wake: Arc<WakeFd>,
}

// SAFETY: fragments keep the home, and it the memory; an index is on one list, fragment or posted at a time, and comes
// back by `reclaim` alone; `push` neither blocks nor panics, and touches only its own numbers, as does `ring`.
unsafe impl Reclaim for FragmentHome {
    unsafe fn reclaim(&self, index: u64) {
        self.returns.push(u32::try_from(index).unwrap_or(NIL));
        self.wake.ring();
    }
}

/// The buffers of the shared receive queue.
pub(crate) struct Arrivals {
    home: Arc<FragmentHome>,
    reclaim: Arc<dyn Reclaim>,
    srq: Arc<Srq>,
    /// How many chunks there are.
    used: usize,
    /// Chunks of links that have ended, whose buffers are posted still.
    spare: usize,
    per_chunk: u32,
    stride: u64,
    fragment_bytes: usize,
    /// Whose message is in a buffer: a link's number.
    holder: Vec<u32>,
    /// An empty list, for its memory.
    back: Vec<u32>,
}

impl Arrivals {
    /// For at most `entries` buffers, of which a link gets `per_link`. Buffers that come back ring `wake`.
    pub(crate) fn new(
        srq: Arc<Srq>,
        wake: &Arc<WakeFd>,
        (entries, per_link): (u32, u32),
        fragment_bytes: usize,
    ) -> Arrivals {
        let chunks = (entries / per_link) as usize;
        let count = u32::try_from(chunks).unwrap_or(0) * per_link;
        let home = FragmentHome {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            returns: Returns::new(count),
            wake: Arc::clone(wake),
        };
        let home = Arc::new(home);
        let reclaim: Arc<dyn Reclaim> = home.clone();
        Arrivals {
            home,
            reclaim,
            srq,
            used: 0,
            spare: 0,
            per_chunk: per_link,
            stride: stride(fragment_bytes) as u64,
            fragment_bytes,
            holder: vec![NIL; count as usize],
            back: Vec::new(),
        }
    }

    /// All memory of it.
    pub(crate) fn memories(&self) -> impl Iterator<Item = &Arc<Registered>> {
        self.home.chunks.iter().filter_map(OnceLock::get)
    }

    /// Posts buffers for one more link.
    ///
    /// # Errors
    /// The queue holds no more, or there is no memory.
    pub(crate) fn grow(&mut self) -> Result<(), LinkError> {
        if self.spare > 0 {
            self.spare -= 1;
            return Ok(());
        }
        let Some(place) = self.home.chunks.get(self.used) else {
            return Err(LinkError::System {
                operation: "posting receive buffers",
                reason: format!("the shared receive queue serves {} links at most", self.used),
            });
        };
        let stride = usize::try_from(self.stride).unwrap_or(0);
        let memory = Registered::new(&self.srq.domain, stride * self.per_chunk as usize)?;
        self.srq.keep(&memory);
        let _ = place.set(memory);
        let first = u32::try_from(self.used).unwrap_or(0) * self.per_chunk;
        self.used += 1;
        let all: Vec<u32> = (first..first + self.per_chunk).collect();
        self.post(&all)
    }

    /// A link has ended: its buffers serve the next.
    pub(crate) fn shrink(&mut self) {
        self.spare += 1;
    }

    /// A buffer's memory, and where in it the buffer begins.
    fn place(&self, index: u32) -> Option<(&Arc<Registered>, u64)> {
        let memory = self.home.chunks.get((index / self.per_chunk) as usize)?.get()?;
        Some((memory, u64::from(index % self.per_chunk) * self.stride))
    }

    /// Hands buffers to the adapter: as lists, since it is told of each list.
    fn post(&self, indices: &[u32]) -> Result<(), LinkError> {
        let bytes = u32::try_from(HEADER_BYTES + self.fragment_bytes).unwrap_or(u32::MAX);
        let mut result = Ok(());
        for some in indices.chunks(LISTED) {
            let vacant = some.iter().filter_map(|&index| {
                let (memory, at) = self.place(index)?;
                let (name, offset) = (ARRIVAL | u64::from(index), at + HEADER_AT as u64);
                Some(Vacant { name, memory, offset })
            });
            let vacant: Vec<Vacant<'_>> = vacant.collect();
            // SAFETY: the queue keeps the memory; each buffer is new, came back, or held nothing to give away: nobody has it.
            let posted = unsafe { self.srq.post(&vacant, bytes) };
            result = result.and(posted);
        }
        result
    }

    /// Posts buffers again that came back; calls `freed` with whose messages they held.
    pub(crate) fn repost(&mut self, mut freed: impl FnMut(u32)) -> Result<(), LinkError> {
        let mut back = std::mem::take(&mut self.back);
        let home = Arc::clone(&self.home);
        home.returns.take(|index| {
            if let Some(holder) = self.holder.get_mut(index as usize) {
                freed(std::mem::replace(holder, NIL));
                back.push(index);
            }
        });
        let result = self.post(&back);
        back.clear();
        self.back = back;
        result
    }

    /// The header in a buffer that has arrived.
    pub(crate) fn header(&self, index: u32) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        if let Some((memory, at)) = self.place(index) {
            let (region, at) = (memory.region(), at + HEADER_AT as u64);
            // SAFETY: the memory lives; the adapter has finished with the buffer, and it is in no other hand.
            let read = unsafe { gapless_mem::read(&region, at, &mut header) };
            read.expect("a buffer lies in its memory, which is the CPU's");
        }
        header
    }

    /// Gives a message of `len` bytes away that lies in a buffer, from the link `holder`.
    pub(crate) fn give(&mut self, index: u32, len: u32, holder: u32) -> Option<Fragment> {
        let (memory, at) = self.place(index)?;
        let region: Region = memory.region().sub(at + MESSAGE_AT as u64, u64::from(len)).ok()?;
        self.holder[index as usize] = holder;
        // SAFETY: the home keeps the memory; the adapter has finished with the buffer, which is posted again only after
        // it came back by `reclaim`.
        Some(unsafe { Fragment::new(region, u64::from(index), Arc::clone(&self.reclaim)) })
    }

    /// Posts a buffer again that held nothing to give away.
    ///
    /// # Errors
    /// The device is gone.
    pub(crate) fn again(&self, index: u32) -> Result<(), LinkError> {
        self.post(&[index])
    }
}

/// In names of posted work: it is a buffer for an arrival.
pub(crate) const ARRIVAL: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_from_any_thread_is_taken_once() {
        let returns = Returns::new(4000);
        let mut seen = vec![0; 4000];
        std::thread::scope(|scope| {
            for part in 0..4u32 {
                let returns = &returns;
                scope.spawn(move || (0..1000).for_each(|i| returns.push(part * 1000 + i)));
            }
            while seen.iter().sum::<u32>() < 4000 {
                returns.take(|index| seen[index as usize] += 1);
                std::thread::yield_now();
            }
        });
        assert!(seen.iter().all(|&count| count == 1));
        returns.push(NIL);
        returns.push(4000);
        returns.take(|index| panic!("{index} is none of the list"));
    }
}
