//! A ring of cache lines from one process to another: single producer, single consumer, loads and
//! stores only.
//!
//! A message is one line or a few in a row. Word 0 of every line is its header, the rest is payload:
//!
//! ```text
//!  word 0                                        words 1 … 7
//! ┌──────────────┬─────────┬─────────┬─────────┐┌───────────────────────────────┐
//! │ sequence: 32 │ tag:  8 │ kind: 8 │ len: 16 ││ 56 bytes of payload           │
//! └──────────────┴─────────┴─────────┴─────────┘└───────────────────────────────┘
//!   bits 0 … 31    32 … 39   40 … 47   48 … 63
//! ```
//!
//! Line `p` (counted from 0 for ever, stored at `p` modulo the ring) is there when its header's
//! sequence is `p` + ring length, modulo 2³²: never 0, which a fresh ring is full of, and different
//! from what any earlier lap left. So a line says by itself whether it has arrived, a tiny message
//! costs one cache line's journey, and nothing is ever cleared. The producer writes the lines of a
//! message back to front; its first header, stored last with release, publishes them all.
//!
//! The consumer gives lines back by storing how many it has consumed (`head`); the producer keeps a
//! private copy and looks again only when that one says "full". The two sides are different
//! processes that need not trust each other: [`Producer`] refuses a `head` that runs backwards or
//! past what it wrote, and [`Consumer`] checks every header, so a peer can spoil its own messages and no more.

use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// Words in a line.
pub(crate) const WORDS: usize = if cfg!(loom) { 3 } else { 8 };
/// Payload bytes in a line.
pub(crate) const LINE_BYTES: usize = (WORDS - 1) * 8;
/// Most lines in a message.
pub(crate) const MESSAGE_LINES: usize = 20;
/// Messages of more lines than this are written and read by whole lines, whose loops are of constant length: on a Xeon
/// with 300 MiB of cache 1 KiB (19 lines) takes 0.88 of the time so, 512 B 0.94, 256 B 1.05, 128 B (3 lines) 1.23.
#[cfg(not(loom))]
pub(crate) const FEW_LINES: usize = 7;
/// Most payload words in a message.
#[cfg(not(loom))]
pub(crate) const INLINE_WORDS: usize = MESSAGE_LINES * (WORDS - 1);
/// Most payload bytes in a message.
pub(crate) const INLINE_BYTES: usize = MESSAGE_LINES * LINE_BYTES;

/// One cache line, shared with the peer.
#[repr(C, align(64))]
pub(crate) struct RingLine {
    words: [AtomicU64; WORDS],
    /// Who uses the payload: loom never has a store overtake an earlier load, and so
    /// would not miss the order that keeps a line from being written while it is read.
    #[cfg(loom)]
    user: loom::cell::Cell<()>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<RingLine>() == 64 && align_of::<RingLine>() == 64);

impl RingLine {
    #[cfg(any(test, loom))]
    pub(crate) fn new() -> RingLine {
        RingLine {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            #[cfg(loom)]
            user: loom::cell::Cell::new(()),
        }
    }

    /// The payload, to write it.
    #[inline]
    fn payload_mut(&self) -> &[AtomicU64] {
        #[cfg(loom)]
        self.user.set(());
        &self.words[1..]
    }

    /// Writes the first words of the payload.
    #[inline(always)] // with a constant length there is no loop left of it
    fn fill(&self, words: &[u64]) {
        for (to, word) in self.payload_mut().iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
    }

    /// The payload, to read it.
    #[inline]
    fn payload(&self) -> &[AtomicU64] {
        #[cfg(loom)]
        self.user.get();
        &self.words[1..]
    }

    /// Overwrites a word, as a peer that breaks the rules would.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn scribble(&self, word: usize, value: u64) {
        self.words[word].store(value, Ordering::Release);
    }

    /// The word's value now.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn word(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Acquire)
    }
}

/// The shared parts of a ring.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    /// A power of two of lines.
    pub(crate) lines: &'a [RingLine],
    /// How many lines the consumer has given back, ever; written by the consumer alone.
    pub(crate) head: &'a AtomicUsize,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// The payload is the message.
    Inline = 1,
    /// The payload says in which slot the message is.
    Slot = 2,
}

/// A later line of a message.
const CONTINUATION: u8 = 3;

/// A header, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineHeader {
    pub(crate) kind: MessageKind,
    pub(crate) tag: u8,
    /// Payload bytes.
    pub(crate) len: u16,
}

/// The peer broke the ring's rules.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) String);

/// How many lines `len` payload bytes take: at least one.
#[inline]
pub(crate) fn lines_for(len: usize) -> usize {
    len.div_ceil(LINE_BYTES).max(1)
}

#[inline]
fn sequence(position: usize, lines: usize) -> u64 {
    (position.wrapping_add(lines) as u64) & 0xFFFF_FFFF
}

#[inline]
fn line_header(position: usize, lines: usize, tag: u8, kind: u8, len: u16) -> u64 {
    sequence(position, lines) | u64::from(tag) << 32 | u64::from(kind) << 40 | u64::from(len) << 48
}

/// The writing end's private state.
#[derive(Debug, Default)]
pub(crate) struct Producer {
    /// Lines written, ever.
    tail: usize,
    /// Lines given back, as last seen.
    head: usize,
}

impl Producer {
    /// Lines written, ever.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn position(&self) -> usize {
        self.tail
    }

    /// Whether `lines` more lines fit. Reads the shared `head` only if the last reading says no.
    ///
    /// # Errors
    /// The consumer's `head` is impossible.
    #[inline]
    pub(crate) fn fits(&mut self, view: View<'_>, lines: usize) -> Result<bool, Broken> {
        let capacity = view.lines.len();
        let used = self.tail.wrapping_sub(self.head);
        if lines <= capacity - used {
            return Ok(true);
        }
        let head = view.head.load(Ordering::Acquire);
        if head.wrapping_sub(self.head) > used {
            return Err(Broken(format!(
                "the ring's head is {head}, outside {}..={}",
                self.head, self.tail
            )));
        }
        self.head = head;
        Ok(lines <= capacity - self.tail.wrapping_sub(head))
    }

    /// Writes and publishes a message whose payload are the first `len` bytes of `words`. The
    /// caller has asked [`fits`](Producer::fits).
    #[inline]
    pub(crate) fn push(
        &mut self,
        view: View<'_>,
        kind: MessageKind,
        tag: u8,
        len: u16,
        words: &[AtomicU64],
    ) {
        let capacity = view.lines.len();
        let needed = usize::from(len).div_ceil(8);
        let words = &words[..needed];
        let lines = lines_for(usize::from(len));
        for later in (1..lines).rev() {
            let position = self.tail.wrapping_add(later);
            let line = &view.lines[position & (capacity - 1)];
            let from = later * (WORDS - 1);
            for (to, word) in line.payload_mut().iter().zip(&words[from..]) {
                to.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            line.words[0]
                .store(line_header(position, capacity, tag, CONTINUATION, 0), Ordering::Relaxed);
        }
        let line = &view.lines[self.tail & (capacity - 1)];
        for (to, word) in line.payload_mut().iter().zip(words) {
            to.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let first = line_header(self.tail, capacity, tag, kind as u8, len);
        line.words[0].store(first, Ordering::Release);
        self.tail = self.tail.wrapping_add(lines);
    }

    /// As [`push`](Producer::push), of a message in private memory: `words` begin with its payload. What lies behind it
    /// may fill its last line.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn push_words(&mut self, view: View<'_>, tag: u8, len: u16, words: &[u64]) {
        if usize::from(len) <= LINE_BYTES
            && let Some(words) = words.first_chunk::<{ WORDS - 1 }>()
        {
            // A whole line, whatever of it is meant: that needs no loop.
            self.publish(view, tag, len, words, 1);
        } else if usize::from(len) <= FEW_LINES * LINE_BYTES {
            self.push_few(view, tag, len, words);
        } else {
            self.push_many(view, tag, len, words);
        }
    }

    /// Writes the words of the payload and no others.
    #[inline]
    pub(crate) fn push_few(&mut self, view: View<'_>, tag: u8, len: u16, words: &[u64]) {
        let words = &words[..usize::from(len).div_ceil(8)];
        let (first, rest) = words.split_at(words.len().min(WORDS - 1));
        for (later, words) in rest.chunks(WORDS - 1).enumerate().rev() {
            self.continued(view, tag, 1 + later, words);
        }
        self.publish(view, tag, len, first, lines_for(usize::from(len)));
    }

    /// Writes whole lines.
    #[inline]
    pub(crate) fn push_many(&mut self, view: View<'_>, tag: u8, len: u16, words: &[u64]) {
        let (whole, rest) = words.as_chunks::<{ WORDS - 1 }>();
        let lines = lines_for(usize::from(len));
        let mut padded = [0; WORDS - 1];
        let whole = if let Some(whole) = whole.get(..lines) {
            whole
        } else {
            // The words end with the message.
            padded[..rest.len()].copy_from_slice(rest);
            let whole = &whole[..lines - 1];
            if lines > 1 {
                self.continued(view, tag, lines - 1, &padded);
            }
            whole
        };
        for (later, words) in whole.iter().enumerate().skip(1).rev() {
            self.continued(view, tag, later, words);
        }
        self.publish(view, tag, len, whole.first().unwrap_or(&padded), lines);
    }

    /// Writes a line that is not the first.
    #[inline(always)] // with constant lengths there is no loop left of it
    fn continued(&self, view: View<'_>, tag: u8, later: usize, words: &[u64]) {
        let capacity = view.lines.len();
        let position = self.tail.wrapping_add(later);
        let line = &view.lines[position & (capacity - 1)];
        line.fill(words);
        line.words[0]
            .store(line_header(position, capacity, tag, CONTINUATION, 0), Ordering::Relaxed);
    }

    /// Writes the first line of a message of so many, which publishes it.
    #[inline(always)] // as above
    fn publish(&mut self, view: View<'_>, tag: u8, len: u16, words: &[u64], lines: usize) {
        let capacity = view.lines.len();
        let line = &view.lines[self.tail & (capacity - 1)];
        line.fill(words);
        let header = line_header(self.tail, capacity, tag, MessageKind::Inline as u8, len);
        line.words[0].store(header, Ordering::Release);
        self.tail = self.tail.wrapping_add(lines);
    }
}

/// The reading end's private state.
#[derive(Debug, Default)]
pub(crate) struct Consumer {
    /// Lines consumed, ever.
    position: usize,
}

impl Consumer {
    /// Whether there is a message: the cheapest question.
    #[inline]
    pub(crate) fn is_due(&self, view: View<'_>) -> bool {
        let capacity = view.lines.len();
        let word = view.lines[self.position & (capacity - 1)].words[0].load(Ordering::Relaxed);
        word & 0xFFFF_FFFF == sequence(self.position, capacity)
    }

    /// The tag and the length of the next message, if it has arrived and lies in the ring; what else there may be
    /// [`peek`](Consumer::peek) tells. In registers: a header that is put together in memory costs more than
    /// all the rest.
    #[inline(always)]
    pub(crate) fn inline(&self, view: View<'_>) -> Option<(u8, u16)> {
        let capacity = view.lines.len();
        let word = view.lines[self.position & (capacity - 1)].words[0].load(Ordering::Acquire);
        let kind = (word >> 40) & 0xFF;
        if word & 0xFFFF_FFFF != sequence(self.position, capacity)
            || kind != MessageKind::Inline as u64
        {
            return None;
        }
        let [.., tag, _, low, high] = word.to_le_bytes();
        let len = u16::from_le_bytes([low, high]);
        let lines = lines_for(len.into());
        (lines <= MESSAGE_LINES.min(capacity)).then_some((tag, len))
    }

    /// The next message's header, if it has arrived.
    ///
    /// # Errors
    /// The header is one that no producer writes.
    #[inline]
    pub(crate) fn peek(&self, view: View<'_>) -> Result<Option<LineHeader>, Broken> {
        let capacity = view.lines.len();
        let line = &view.lines[self.position & (capacity - 1)];
        let word = line.words[0].load(Ordering::Acquire);
        if word & 0xFFFF_FFFF != sequence(self.position, capacity) {
            return Ok(None);
        }
        let bytes = word.to_le_bytes();
        let kind = match bytes[5] {
            1 => MessageKind::Inline,
            2 => MessageKind::Slot,
            other => return Err(Broken(format!("a message of kind {other}"))),
        };
        let len = u16::from_le_bytes([bytes[6], bytes[7]]);
        if usize::from(len) > INLINE_BYTES || lines_for(len.into()) > capacity {
            return Err(Broken(format!(
                "{len} bytes in the ring, above {INLINE_BYTES} or its length"
            )));
        }
        Ok(Some(LineHeader { kind, tag: bytes[4], len }))
    }

    /// Copies out the payload of the message that [`peek`](Consumer::peek) saw, `len` bytes of it
    /// (rounded up to words), and moves on. The lines are given back by
    /// [`give_back`](Consumer::give_back).
    #[inline]
    pub(crate) fn take(&mut self, view: View<'_>, len: u16, into: &[AtomicU64]) {
        let capacity = view.lines.len();
        let into = &into[..usize::from(len).div_ceil(8)];
        let lines = lines_for(usize::from(len));
        for (later, chunk) in into.chunks(WORDS - 1).enumerate() {
            let line = &view.lines[self.position.wrapping_add(later) & (capacity - 1)];
            for (to, word) in chunk.iter().zip(line.payload()) {
                to.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        self.position = self.position.wrapping_add(lines);
    }

    /// Copies the payload of the message that [`peek`](Consumer::peek) saw into private memory, and stays where it is:
    /// see [`pass`](Consumer::pass). For messages of few lines.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn look(&self, view: View<'_>, into: &mut [u64]) {
        for (later, words) in into.chunks_mut(WORDS - 1).enumerate() {
            self.look_at(view, later, words);
        }
    }

    /// The same, of whole lines.
    #[inline]
    pub(crate) fn look_at_lines(&self, view: View<'_>, into: &mut [[u64; WORDS - 1]]) {
        for (later, words) in into.iter_mut().enumerate() {
            self.look_at(view, later, words);
        }
    }

    #[inline(always)] // with a constant length there is no loop left of it
    fn look_at(&self, view: View<'_>, later: usize, words: &mut [u64]) {
        let capacity = view.lines.len();
        let line = &view.lines[self.position.wrapping_add(later) & (capacity - 1)];
        for (to, word) in words.iter_mut().zip(line.payload()) {
            *to = word.load(Ordering::Relaxed);
        }
    }

    /// Moves on past the message of `len` bytes that was looked at, as [`take`](Consumer::take) does.
    #[inline]
    pub(crate) fn pass(&mut self, len: u16) {
        self.position = self.position.wrapping_add(lines_for(usize::from(len)));
    }

    /// Lets the producer reuse everything taken so far.
    pub(crate) fn give_back(&self, view: View<'_>) {
        view.head.store(self.position, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Ring {
        lines: Vec<RingLine>,
        head: AtomicUsize,
    }

    impl Ring {
        fn new(lines: usize) -> Ring {
            Ring { lines: (0..lines).map(|_| RingLine::new()).collect(), head: AtomicUsize::new(0) }
        }
        fn view(&self) -> View<'_> {
            View { lines: &self.lines, head: &self.head }
        }
    }

    fn words(seed: u64) -> Vec<AtomicU64> {
        (0..INLINE_WORDS as u64).map(|i| AtomicU64::new(seed << 8 | i)).collect()
    }

    #[test]
    fn messages_of_all_lengths_cross_many_laps() {
        let ring = Ring::new(32);
        let (mut out, mut inn) = (Producer::default(), Consumer::default());
        let into = words(0);
        for round in 0..4000u64 {
            let len = u16::try_from(round % (INLINE_BYTES as u64 + 1)).unwrap();
            let tag = round.to_le_bytes()[0];
            assert!(out.fits(ring.view(), lines_for(len.into())).unwrap());
            assert_eq!(inn.peek(ring.view()), Ok(None));
            out.push(ring.view(), MessageKind::Inline, tag, len, &words(round));
            let header = inn.peek(ring.view()).unwrap().unwrap();
            assert_eq!(header, LineHeader { kind: MessageKind::Inline, tag, len });
            inn.take(ring.view(), len, &into);
            inn.give_back(ring.view());
            for (i, word) in into[..usize::from(len).div_ceil(8)].iter().enumerate() {
                assert_eq!(word.load(Ordering::Relaxed), round << 8 | i as u64);
            }
        }
    }

    #[test]
    fn messages_by_value_are_those_in_lines() {
        let ring = Ring::new(32);
        let (mut out, mut inn) = (Producer::default(), Consumer::default());
        let into = words(0);
        for round in 0..4000u64 {
            let len = u16::try_from(round % (INLINE_BYTES as u64 + 1)).unwrap();
            let needed = usize::from(len).div_ceil(8);
            let sent: Vec<u64> = (0..INLINE_WORDS as u64).map(|i| round << 8 | i).collect();
            assert!(out.fits(ring.view(), lines_for(len.into())).unwrap());
            out.push_words(
                ring.view(),
                5,
                len,
                &sent[..needed.max(usize::try_from(round % 9).unwrap())],
            );
            let header = inn.peek(ring.view()).unwrap().unwrap();
            assert_eq!(header, LineHeader { kind: MessageKind::Inline, tag: 5, len });
            let mut seen = vec![0; needed];
            inn.look(ring.view(), &mut seen);
            assert_eq!(seen, sent[..needed]);
            let mut lines = vec![[0; WORDS - 1]; lines_for(len.into())];
            inn.look_at_lines(ring.view(), &mut lines);
            assert_eq!(lines.as_flattened()[..needed], sent[..needed]);
            if round % 2 == 0 {
                inn.pass(len);
            } else {
                inn.take(ring.view(), len, &into);
                let taken = into[..needed].iter().map(|word| word.load(Ordering::Relaxed));
                assert!(taken.eq(sent[..needed].iter().copied()));
            }
            inn.give_back(ring.view());
        }
    }

    #[test]
    fn a_full_ring_says_so_until_lines_come_back() {
        let ring = Ring::new(16);
        let (mut out, mut inn) = (Producer::default(), Consumer::default());
        for _ in 0..16 {
            assert!(out.fits(ring.view(), 1).unwrap());
            out.push(ring.view(), MessageKind::Inline, 0, 8, &words(1));
        }
        assert!(!out.fits(ring.view(), 1).unwrap());
        inn.take(ring.view(), 8, &words(0));
        assert!(!out.fits(ring.view(), 1).unwrap());
        inn.give_back(ring.view());
        assert!(out.fits(ring.view(), 1).unwrap());
        assert!(!out.fits(ring.view(), 2).unwrap());
    }

    #[test]
    fn an_impossible_head_is_refused() {
        for bad in [3usize, usize::MAX, 1 << 40] {
            let ring = Ring::new(2);
            let mut out = Producer::default();
            for _ in 0..2 {
                out.push(ring.view(), MessageKind::Inline, 0, 0, &[]);
            }
            ring.head.store(bad, Ordering::Release);
            assert!(out.fits(ring.view(), 1).unwrap_err().0.contains("head"));
        }
    }

    #[test]
    fn impossible_marks_are_refused() {
        let ring = Ring::new(16);
        let inn = Consumer::default();
        let here = sequence(0, 16);
        for (bad, what) in [
            (here, "kind 0"),
            (here | 3 << 40, "kind 3"),
            (here | 1 << 40 | 1121 << 48, "1121 bytes"),
            (here | 1 << 40 | 897 << 48, "897 bytes"),
            (here | 2 << 40 | 0xFFFF << 48, "65535 bytes"),
        ] {
            ring.lines[0].scribble(0, bad);
            assert!(inn.peek(ring.view()).unwrap_err().0.contains(what), "{what}");
        }
        ring.lines[0].scribble(0, 0xDEAD_BEEF_0000_0001);
        assert_eq!(inn.peek(ring.view()), Ok(None), "another lap's header is no message");
    }

    #[test]
    fn positions_may_wrap_around() {
        let ring = Ring::new(16);
        let start = usize::MAX - 5;
        let mut out = Producer { tail: start, head: start };
        let mut inn = Consumer { position: start };
        ring.head.store(start, Ordering::Relaxed);
        let into = words(0);
        for round in 0..40 {
            assert!(out.fits(ring.view(), 4).unwrap());
            out.push(ring.view(), MessageKind::Inline, 1, 200, &words(round));
            assert!(inn.peek(ring.view()).unwrap().is_some());
            inn.take(ring.view(), 200, &into);
            inn.give_back(ring.view());
            assert_eq!(into[24].load(Ordering::Relaxed), round << 8 | 24);
        }
    }
}
