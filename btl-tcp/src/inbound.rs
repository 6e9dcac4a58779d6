//! What comes from one peer: bytes of a stream that become messages.
//!
//! Short messages arrive in the inbox, many with one call, and are offered from there by value. A longer one has a
//! buffer as soon as its header is known, and the rest of it is read straight into that; the same call reads what
//! follows into the inbox. What is in the inbox has to be copied, so little is read ahead of a message that is likely
//! to be long: one behind a long one.
//!
//! A message is likely to be as long as the one before it. Behind a long one, the first bytes of the next are read into the
//! inbox, and as many as fit there to their place in a buffer, with one call. If it turns out to be a shorter message,
//! what was read is put together in the inbox.

use crate::config::TcpConfig;
use crate::connection::Connection;
use crate::outbound::{SMALL_BYTES, SMALL_EACH};
use crate::wire::{HEADER_BYTES, Header};
use gapless_btl::pool::{Buffer, HeapPool};
use gapless_btl::{AmTag, Event, Fragment, LinkError, PeerId, SHORT_BYTES, Short, Sink};
use gapless_mem::{Device, DeviceError};
use std::io::IoSliceMut;
use std::sync::Arc;

/// Bytes read ahead.
const INBOX_BYTES: usize = 17 << 10;
/// Bytes read beyond a body that has a long buffer: the next header, and a message that is very short.
const BEYOND_BYTES: usize = 64;
/// Behind a message of so many bytes, no more than that is read ahead, either: to copy so many takes longer than to
/// call the system once more.
const LONG_BYTES: usize = 8 << 10;
/// Of a message that is read with its header, so many bytes land in the inbox.
const FRONT_BYTES: usize = BEYOND_BYTES - HEADER_BYTES;
/// So much of it is read: it fits the inbox with what was read beyond it.
const GUESS_BYTES: usize = INBOX_BYTES - 2 * BEYOND_BYTES;
/// Calls that read, in one poll.
const READS: usize = 8;
/// After so many messages that the other end retains, their count goes there in a frame of its own; after half as many
/// as there are buffers, if that is less. Long messages have fewer buffers, so they have a bound of their own.
const UNTOLD_MAX: usize = 32;
const UNTOLD_LONG_MAX: usize = 2;

/// A message that is not here in full.
struct Partial {
    tag: AmTag,
    body: Buffer,
    got: usize,
}

/// Where reading stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// All that has come was read.
    Dry,
    /// There may be more: it was enough for this poll, or the sink has no room.
    More,
    /// There is no buffer until the receiver gives one back.
    NoBuffer,
    /// The stream has ended, for this reason. All that came in full was delivered.
    End(LinkError),
}

/// The way from one peer.
pub(crate) struct Inbound {
    inbox: Box<[u8]>,
    /// Where in the inbox lies what was not looked at.
    start: usize,
    end: usize,
    partial: Option<Partial>,
    /// How long the last message is whose header was read.
    last: usize,
    /// The buffer of the message whose header is in the inbox, how many bytes of it are there, and where in the inbox
    /// lies what is behind those.
    guessed: Option<(Buffer, usize, usize)>,
    /// A message that nobody had room for.
    stuck: Option<(AmTag, Fragment)>,
    small: HeapPool,
    large: HeapPool,
    counts: Counts,
}

/// How many retained messages came, and went.
#[derive(Debug, Default)]
struct Counts {
    /// The peer retains its messages.
    counted: bool,
    /// Those that have come in full, modulo 2¹⁶.
    had: u16,
    /// Those that the peer was not told of; and how many of them are long.
    untold: usize,
    untold_long: usize,
    /// After how many of them the peer is told at once, and after how many long ones.
    most: usize,
    most_long: usize,
    /// What the peer has told of ours.
    confirmed: Option<u16>,
}

impl Counts {
    /// With so many long buffers at either end.
    fn new(buffers: usize) -> Counts {
        let most = (SMALL_EACH * buffers / 2).clamp(1, UNTOLD_MAX);
        let most_long = (buffers / 2).clamp(1, UNTOLD_LONG_MAX);
        Counts { most, most_long, ..Counts::default() }
    }

    /// A message has come in full.
    fn had(&mut self, long: bool) {
        if self.counted {
            self.had = self.had.wrapping_add(1);
            self.untold += 1;
            self.untold_long += usize::from(long);
        }
    }

    /// How many have come: the peer is told now.
    fn tell(&mut self) -> u16 {
        (self.untold, self.untold_long) = (0, 0);
        self.had
    }

    /// Whether the peer waits for the count: at once, or if nothing else has told it for a while.
    fn owes(&self, at_once: bool) -> bool {
        let many = self.untold >= self.most || self.untold_long >= self.most_long;
        self.untold > 0 && (!at_once || many)
    }
}

impl std::fmt::Debug for Inbound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inbound with {} bytes that wait", self.end - self.start)
    }
}

/// What became of the next message.
enum Step {
    /// It is delivered; whether it was long.
    Delivered(bool),
    /// It was none, but a count.
    Noted,
    /// It is not here in full.
    Incomplete,
    NoRoom,
    NoBuffer,
}

impl Inbound {
    pub(crate) fn new(config: &TcpConfig) -> Inbound {
        Inbound {
            inbox: vec![0; INBOX_BYTES].into(),
            start: 0,
            end: 0,
            partial: None,
            last: 0,
            guessed: None,
            stuck: None,
            small: HeapPool::new(SMALL_EACH * config.buffers, SMALL_BYTES),
            large: HeapPool::new(config.buffers, config.fragment_bytes),
            counts: Counts::new(config.buffers),
        }
    }

    /// Has a device know the long buffers.
    pub(crate) fn attach(&self, device: &Arc<dyn Device>) -> Result<(), DeviceError> {
        self.large.attach(device)
    }

    /// How many of the peer's retained messages have come in full, modulo 2¹⁶: the peer is told now.
    pub(crate) fn tell(&mut self) -> u16 {
        self.counts.tell()
    }

    /// Whether the peer waits for the count: at once, or if nothing else has told it for a while.
    pub(crate) fn owes(&self, at_once: bool) -> bool {
        self.counts.owes(at_once)
    }

    /// What the peer has told of our retained messages since this was last asked.
    pub(crate) fn take_confirmed(&mut self) -> Option<u16> {
        self.counts.confirmed.take()
    }

    /// Delivers at most `batch` messages; how many it were, whether anything was read, and why it stopped. `offers`
    /// says whether messages may be offered in this poll, and is made false by one that is given as an event. The
    /// buffers of a peer that is `closing` are not limited: what it has said is bounded by what the system holds.
    pub(crate) fn receive(
        &mut self,
        connection: &mut Connection,
        from: PeerId,
        sink: &mut dyn Sink,
        batch: usize,
        offers: &mut bool,
        closing: bool,
    ) -> (usize, bool, Stop) {
        let (mut count, mut heard, mut dry, mut reads) = (0, false, false, 0);
        loop {
            while count < batch {
                match self.deliver(from, sink, offers, closing) {
                    Ok(Step::Delivered(long)) => {
                        count += 1;
                        self.counts.had(long);
                    }
                    Ok(Step::Noted) => {}
                    Ok(Step::Incomplete) => break,
                    Ok(Step::NoRoom) => return (count, heard, Stop::More),
                    Ok(Step::NoBuffer) => return (count, heard, Stop::NoBuffer),
                    Err(error) => return (count, heard, Stop::End(error)),
                }
            }
            if count >= batch {
                return (count, heard, Stop::More);
            }
            if dry {
                return (count, heard, Stop::Dry);
            }
            if reads == READS {
                return (count, heard, Stop::More);
            }
            reads += 1;
            match self.fill(connection) {
                Ok(Some((read, all))) => {
                    (heard, dry) = (true, read < all && !connection.has_more())
                }
                Ok(None) => return (count, heard, Stop::Dry),
                Err(error) => return (count, heard, Stop::End(error)),
            }
        }
    }

    /// Reads once: how many bytes came, and for how many there was room.
    fn fill(&mut self, connection: &mut Connection) -> Result<Option<(usize, usize)>, LinkError> {
        if self.start > 0 {
            // Less than a header and a short message.
            self.inbox.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.partial.is_none()
            && self.end == 0
            && self.last >= LONG_BYTES
            && let Some(body) = self.large.buffer(self.large.buffer_bytes())
        {
            return self.fill_guessed(connection, body, self.last.min(GUESS_BYTES));
        }
        let (body, ahead): (&mut [u8], bool) = match &mut self.partial {
            Some(Partial { body, got, .. }) => {
                let ahead = body.len() <= SMALL_BYTES;
                (&mut body[*got..], ahead)
            }
            // What is here is a header in part, or a short message in part.
            None => (&mut [], self.last < LONG_BYTES || self.end >= HEADER_BYTES),
        };
        let missing = body.len();
        let inbox = &mut self.inbox[self.end..if ahead { INBOX_BYTES } else { BEYOND_BYTES }];
        let all = missing + inbox.len();
        let read = match connection.read(&mut [IoSliceMut::new(body), IoSliceMut::new(inbox)])? {
            Some(0) => return Err(connection.closed()),
            Some(read) => read,
            None => return Ok(None),
        };
        if let Some(partial) = &mut self.partial {
            partial.got += read.min(missing);
        }
        self.end += read.saturating_sub(missing);
        Ok(Some((read, all)))
    }

    /// Reads once, as if a message of this length or more were next, into its buffer.
    fn fill_guessed(
        &mut self,
        connection: &mut Connection,
        mut body: Buffer,
        guess: usize,
    ) -> Result<Option<(usize, usize)>, LinkError> {
        let (front, behind) = self.inbox.split_at_mut(BEYOND_BYTES);
        let mut pieces = [
            IoSliceMut::new(front),
            IoSliceMut::new(&mut body[FRONT_BYTES..guess]),
            IoSliceMut::new(&mut behind[..BEYOND_BYTES]),
        ];
        let read = match connection.read(&mut pieces)? {
            Some(0) => return Err(connection.closed()),
            Some(read) => read,
            None => return Ok(None),
        };
        let beyond = read.saturating_sub(BEYOND_BYTES);
        let in_body = beyond.min(guess - FRONT_BYTES);
        let rest = beyond - in_body;
        let (front, behind) = self.inbox.split_at(BEYOND_BYTES);
        let len = front.first_chunk().filter(|_| in_body > 0).and_then(|head| {
            match Header::read(*head, self.large.buffer_bytes()) {
                Ok(Header::Message { len, .. } | Header::Retained { len, .. }) => Some(len),
                _ => None,
            }
        });
        if let Some(len) = len.filter(|&len| len >= guess) {
            body[..FRONT_BYTES].copy_from_slice(&front[HEADER_BYTES..]);
            // It may be longer than was guessed.
            let more = rest.min(len - guess);
            body[guess..guess + more].copy_from_slice(&behind[..more]);
            body.truncate(len);
            self.guessed = Some((body, FRONT_BYTES + in_body + more, BEYOND_BYTES + more));
            self.end = BEYOND_BYTES + rest;
        } else {
            self.inbox.copy_within(BEYOND_BYTES..BEYOND_BYTES + rest, BEYOND_BYTES + in_body);
            let place = &mut self.inbox[BEYOND_BYTES..BEYOND_BYTES + in_body];
            place.copy_from_slice(&body[FRONT_BYTES..FRONT_BYTES + in_body]);
            self.end = read;
        }
        Ok(Some((read, 2 * BEYOND_BYTES + guess - FRONT_BYTES)))
    }

    /// Hands on the next message, if it is here.
    fn deliver(
        &mut self,
        from: PeerId,
        sink: &mut dyn Sink,
        offers: &mut bool,
        closing: bool,
    ) -> Result<Step, LinkError> {
        if self.stuck.is_none() {
            match &self.partial {
                None => {}
                Some(Partial { body, got, .. }) if *got < body.len() => {
                    return Ok(Step::Incomplete);
                }
                Some(_) => {
                    let whole = self.partial.take();
                    self.stuck = whole.map(|whole| (whole.tag, whole.body.into_fragment()));
                }
            }
        }
        if let Some((tag, fragment)) = self.stuck.take() {
            return Ok(self.hand_over(from, tag, fragment, sink, offers));
        }
        let Some((head, rest)) = self.inbox[self.start..self.end].split_first_chunk() else {
            return Ok(Step::Incomplete);
        };
        let (tag, len) = match Header::read(*head, self.large.buffer_bytes())? {
            Header::Message { .. } if self.counts.counted => {
                let what = "a message that is not retained, behind those that are".to_owned();
                return Err(LinkError::Corrupt { what });
            }
            Header::Message { tag, len } => (tag, len),
            Header::Retained { tag, len, count } => {
                self.counts.counted = true;
                self.counts.confirmed = Some(count);
                (tag, len)
            }
            Header::Count(count) => {
                self.counts.confirmed = Some(count);
                self.start += HEADER_BYTES;
                return Ok(Step::Noted);
            }
            Header::Welcome => {
                let what = "a second welcome".to_owned();
                return Err(LinkError::Corrupt { what });
            }
        };
        self.last = len;
        if len <= SHORT_BYTES {
            let Some(body) = rest.get(..len) else { return Ok(Step::Incomplete) };
            if *offers && offer(from, tag, body, sink) {
                self.start += HEADER_BYTES + len;
                return Ok(Step::Delivered(false));
            }
            if sink.room() == 0 {
                return Ok(Step::NoRoom);
            }
        }
        let (body, here) = if let Some((body, here, start)) = self.guessed.take() {
            self.start = start;
            (body, here)
        } else {
            let here = rest.len().min(len);
            let pool = if len <= SMALL_BYTES { &self.small } else { &self.large };
            let spare = || closing.then(|| HeapPool::new(1, len).buffer(len)).flatten();
            let Some(mut body) = pool.buffer(len).or_else(spare) else { return Ok(Step::NoBuffer) };
            body[..here].copy_from_slice(&rest[..here]);
            self.start += HEADER_BYTES + here;
            (body, here)
        };
        if here < len {
            self.partial = Some(Partial { tag, body, got: here });
            return Ok(Step::Incomplete);
        }
        let fragment = body.into_fragment();
        if len <= SHORT_BYTES {
            // It was offered by value, or may not be offered, and there is room.
            sink.event(Event::Arrived { from, tag, fragment });
            *offers = false;
            return Ok(Step::Delivered(false));
        }
        Ok(self.hand_over(from, tag, fragment, sink, offers))
    }

    /// Offers a message, or gives it as an event; keeps it if there is no room.
    fn hand_over(
        &mut self,
        from: PeerId,
        tag: AmTag,
        fragment: Fragment,
        sink: &mut dyn Sink,
        offers: &mut bool,
    ) -> Step {
        let long = fragment.len() > SMALL_BYTES;
        if *offers && sink.fragment(from, tag, &fragment) {
            return Step::Delivered(long);
        }
        if sink.room() == 0 {
            self.stuck = Some((tag, fragment));
            return Step::NoRoom;
        }
        sink.event(Event::Arrived { from, tag, fragment });
        *offers = false;
        Step::Delivered(long)
    }
}

/// Offers a short message by value.
fn offer(from: PeerId, tag: AmTag, body: &[u8], sink: &mut dyn Sink) -> bool {
    let mut words = [0u64; SHORT_BYTES / 8];
    let count = body.len().div_ceil(8);
    for (word, bytes) in words.iter_mut().zip(body.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(whole);
    }
    sink.short(from, tag, Short::new(&words[..count], body.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Socket;
    use crate::tests::{LOOPBACK_V4, Patience, Random, config, seed};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::IoSlice;

    /// Takes every message.
    #[derive(Default)]
    struct All(Vec<(AmTag, Vec<u8>)>);

    impl Sink for All {
        fn short(&mut self, _: PeerId, _: AmTag, _: Short<'_>) -> bool {
            false
        }

        fn fragment(&mut self, _: PeerId, tag: AmTag, fragment: &Fragment) -> bool {
            self.0.push((tag, fragment.to_vec().unwrap()));
            true
        }

        fn event(&mut self, event: Event) {
            let Event::Arrived { tag, fragment, .. } = event else { panic!("{event:?}") };
            self.0.push((tag, fragment.to_vec().unwrap()));
        }

        fn room(&self) -> usize {
            1
        }
    }

    /// Messages that are as long as the ones before them, or not, in any pieces, among counts.
    #[test]
    fn lengths_that_repeat_and_lengths_that_do_not() {
        let mut random = Random::new(seed());
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let at = ([127, 0, 0, 1], 1).into();
        let (mut here, there) = (Connection::bare(Socket::of(here, at)), Socket::of(there, at));
        let mut inbound = Inbound::new(&config(0, LOOPBACK_V4));
        let (mut stream, mut sent) = (Vec::new(), Vec::new());
        let mut len = 0;
        for number in 0..3000u64 {
            if random.below(3) == 0 {
                let around = [60, 3000, LONG_BYTES, 16 << 10, GUESS_BYTES, 40_000];
                len = around[random.below(around.len())] - 1 + random.below(3);
            }
            if random.below(20) == 0 {
                stream.extend(Header::Count(0).write());
            }
            let tag = AmTag(random.below(256).to_le_bytes()[0]);
            let body: Vec<u8> =
                (0..len as u64).map(|at| (number * 31 + at * 7).to_le_bytes()[0]).collect();
            stream.extend(Header::Retained { tag, len, count: 0 }.write());
            stream.extend(&body);
            sent.push((tag, body));
        }
        let (mut all, mut written, patience) = (All::default(), 0, Patience::new());
        while !sent.is_empty() {
            let most = [1, 70, 5_000, 16 << 10, 100_000][random.below(5)];
            let piece = &stream[written..stream.len().min(written + 1 + random.below(most))];
            written += there.write(&[IoSlice::new(piece)]).unwrap();
            let stop = inbound.receive(&mut here, PeerId(0), &mut all, 64, &mut true, false).2;
            assert!(matches!(stop, Stop::Dry | Stop::More), "{stop:?}");
            let came = all.0.len();
            assert!(all.0 == sent[..came], "{came} messages");
            sent.drain(..came);
            all.0.clear();
            patience.tick("the messages");
        }
    }

    fn counted(buffers: usize) -> Counts {
        Counts { counted: true, ..Counts::new(buffers) }
    }

    /// After how many messages in a row the peer is told at once.
    fn due_after(buffers: usize, long: bool) -> usize {
        let mut counts = counted(buffers);
        (1..)
            .find(|_| {
                counts.had(long);
                counts.owes(true)
            })
            .unwrap_or(0)
    }

    #[test]
    fn counts_are_due_before_few_buffers_run_out() {
        let of = |long| [2, 3, 4, 16, 4096].map(|buffers| due_after(buffers, long));
        assert_eq!(of(true), [1, 1, 2, 2, 2]);
        assert_eq!(of(false), [8, 12, 16, 32, 32]);
    }

    #[test]
    fn what_is_not_due_at_once_is_due_by_the_clock() {
        let mut counts = counted(16);
        assert!(!counts.owes(false));
        counts.had(false);
        assert!(counts.owes(false) && !counts.owes(true));
        assert_eq!(counts.tell(), 1);
        assert!(!counts.owes(false));
        let mut others = Counts::new(2);
        others.had(true);
        assert_eq!((others.owes(false), others.tell()), (false, 0), "nobody retains these");
    }
}
