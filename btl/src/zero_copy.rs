//! Memory of a caller's that a transport reads or writes during one call. [`ZeroCopyMessage`] is a message that is sent
//! straight from it; [`ReceiveTarget`] is where the rest of an arriving message is put.
//!
//! Both borrow: a transport cannot keep them. They show regions, not slices, because another process may share the memory.

use gapless_mem::Region;

/// A message: its beginning, and where the rest of it lies.
#[derive(Clone, Copy, Debug)]
pub struct ZeroCopyMessage<'m> {
    head: &'m [u8],
    body: &'m [Region],
    len: usize,
}

impl<'m> ZeroCopyMessage<'m> {
    /// `head`, and behind it the bytes of `body`, in their order. `None` if there is memory among these that the CPU
    /// may not touch, or more than the address space holds.
    ///
    /// # Safety
    /// While the borrow lasts, the regions describe memory that is valid for reads, which this process does not write. If
    /// another one does, the bytes that are sent are any mixture.
    #[must_use]
    pub unsafe fn new(head: &'m [u8], body: &'m [Region]) -> Option<ZeroCopyMessage<'m>> {
        let len = head.len().checked_add(len_of(body)?)?;
        Some(ZeroCopyMessage { head, body, len })
    }

    /// A message that has nothing but its head.
    #[must_use]
    pub fn of_head(head: &'m [u8]) -> ZeroCopyMessage<'m> {
        ZeroCopyMessage { head, body: &[], len: head.len() }
    }

    /// How it begins.
    #[must_use]
    pub fn head(&self) -> &'m [u8] {
        self.head
    }

    /// Where the rest lies: memory that the CPU may touch, valid for reads as long as this is borrowed.
    #[must_use]
    pub fn body(&self) -> &'m [Region] {
        self.body
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies as many bytes as `into` has, from `from` on; those beyond the end stay as they are.
    pub fn copy_out(&self, from: usize, into: &mut [u8]) {
        let mut done = 0;
        if let Some(head) = self.head.get(from..) {
            done = head.len().min(into.len());
            into[..done].copy_from_slice(&head[..done]);
        }
        let skip = (from + done).saturating_sub(self.head.len());
        for part in parts(self.body, skip, into.len() - done) {
            let len = usize_of(part.len());
            // SAFETY: `new`'s caller vouches for the memory, which lives as long as the borrow.
            let read = unsafe { gapless_mem::read(&part, 0, &mut into[done..done + len]) };
            read.expect("`new` has looked at the space");
            done += len;
        }
    }
}

/// Where the end of a message goes, of which the beginning has arrived.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveTarget<'p> {
    skip: usize,
    body: &'p [Region],
    len: usize,
    keeps: bool,
}

impl<'p> ReceiveTarget<'p> {
    /// For the bytes of a message from `skip` on, as many as `body` has. If it `keeps` them, a part of them may stay
    /// there until a later poll brings the rest; else they are put there all at once. `None` if there is memory among
    /// these that the CPU may not touch.
    ///
    /// # Safety
    /// While the borrow lasts, the regions describe memory that is valid for reads and writes, do not overlap, and no
    /// reference of this process covers them.
    #[must_use]
    pub unsafe fn new(skip: usize, body: &'p [Region], keeps: bool) -> Option<ReceiveTarget<'p>> {
        Some(ReceiveTarget { skip, body, len: len_of(body)?, keeps })
    }

    /// So many bytes of the message do not go here: they are its head.
    #[must_use]
    pub fn skip(&self) -> usize {
        self.skip
    }

    /// The memory: the CPU may touch it, it is valid for reads and writes as long as this is borrowed, and nobody else's.
    #[must_use]
    pub fn body(&self) -> &'p [Region] {
        self.body
    }

    /// For how many bytes it is.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is for none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a part of the message may stay here until a later poll. If not, nothing is put here before all of the
    /// message has come.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// Puts `bytes` there, which are those of the message from `at` on; what belongs to the head or lies beyond the end is
    /// left out.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        let mut bytes = bytes.get(self.skip.saturating_sub(at)..).unwrap_or_default();
        for part in parts(self.body, at.saturating_sub(self.skip), bytes.len()) {
            let (now, later) = bytes.split_at(usize_of(part.len()));
            // SAFETY: `new`'s caller vouches for the memory, which lives as long as the borrow.
            let written = unsafe { gapless_mem::write(&part, 0, now) };
            written.expect("`new` has looked at the space");
            bytes = later;
        }
    }

    /// Copies bytes of the message out again, from `at` on; those of the head, and beyond the end, stay as they are.
    pub fn copy_out(&self, at: usize, into: &mut [u8]) {
        let Some(mut into) = into.get_mut(self.skip.saturating_sub(at)..) else { return };
        for part in parts(self.body, at.saturating_sub(self.skip), into.len()) {
            let (now, later) = std::mem::take(&mut into).split_at_mut(usize_of(part.len()));
            // SAFETY: as in `put`.
            unsafe { gapless_mem::read(&part, 0, now) }.expect("`new` has looked at the space");
            into = later;
        }
    }
}

/// What a sink says when it is asked for a [`ReceiveTarget`]: [`Sink::receive_target`](crate::Sink::receive_target).
#[derive(Clone, Copy, Debug)]
pub enum TargetAnswer<'p> {
    /// The rest of the message goes here.
    Here(ReceiveTarget<'p>),
    /// The message comes as others do.
    Nowhere,
    /// Nothing can be said in this poll; the message waits for the next.
    Later,
}

/// How many bytes they are; `None` if the CPU may not touch all of them.
fn len_of(body: &[Region]) -> Option<usize> {
    body.iter().try_fold(0usize, |len, region| {
        region.as_ptr()?;
        len.checked_add(usize::try_from(region.len()).ok()?)
    })
}

fn usize_of(len: u64) -> usize {
    usize::try_from(len).expect("`len_of` has looked at it")
}

/// The pieces of a message's `body` from byte `skip` on, at most `len` bytes of them.
pub fn parts(body: &[Region], skip: usize, len: usize) -> impl Iterator<Item = Region> + '_ {
    let (mut skip, mut left) = (skip as u64, len as u64);
    body.iter().filter_map(move |region| {
        let here = skip.min(region.len());
        skip -= here;
        let take = left.min(region.len() - here);
        left -= take;
        region.sub(here, take).ok().filter(|part| !part.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_mem::Device;
    use gapless_mem::fake::FakeDevice;

    #[test]
    fn every_part_of_a_message_in_pieces_goes_out_and_comes_in() {
        let mut memory: Vec<u8> = (0..60).collect();
        let whole = Region::of_mut(&mut memory);
        let body = [(0, 7), (20, 0), (30, 13), (8, 1)].map(|(at, len)| whole.sub(at, len).unwrap());
        let right: Vec<u8> =
            [100, 101, 102].into_iter().chain(0..7).chain(30..43).chain(8..9).collect();
        // SAFETY: `memory` lives, and is touched by these alone.
        let zero_copy = unsafe { ZeroCopyMessage::new(&[100, 101, 102], &body) }.unwrap();
        assert_eq!((zero_copy.len(), zero_copy.is_empty()), (24, false));
        for from in 0..=24 {
            for to in from..=24 {
                let mut out = vec![0; to - from];
                zero_copy.copy_out(from, &mut out);
                assert_eq!(out, right[from..to]);
            }
        }
        for from in 0..=24 {
            for to in from..=24 {
                // SAFETY: as above; the pieces do not overlap.
                let place = unsafe { ReceiveTarget::new(3, &body, false) }.unwrap();
                assert_eq!((place.len(), place.skip(), place.keeps()), (21, 3, false));
                place.put(0, &[9; 24]);
                let new: Vec<u8> = (from..to).map(|at: usize| 200 + at.to_le_bytes()[0]).collect();
                place.put(from, &new);
                let (mut all, mut some) = ([9; 24], vec![9; to - from]);
                place.copy_out(0, &mut all);
                place.copy_out(from, &mut some);
                for (at, &came) in all.iter().enumerate() {
                    let put = at >= 3 && (from..to).contains(&at);
                    let byte = if put { 200 + at.to_le_bytes()[0] } else { 9 };
                    assert_eq!(came, byte, "{at} of {from}..{to}");
                }
                assert_eq!(some, all[from..to]);
            }
        }
        assert_eq!(memory[7], 7);
        assert_eq!(memory[9..30], (9..30).collect::<Vec<u8>>());
    }

    #[test]
    fn memory_that_the_cpu_may_not_touch_is_not_lent() {
        let device = [Region::new(FakeDevice::new(0).space(), 4096, 0, 8)];
        // SAFETY: nothing is touched.
        assert!(unsafe { ZeroCopyMessage::new(&[], &device) }.is_none());
        // SAFETY: as above.
        assert!(unsafe { ReceiveTarget::new(0, &device, true) }.is_none());
    }
}
