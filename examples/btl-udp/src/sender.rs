//! The sending side of one direction of a link: which message goes out next, which is acknowledged,
//! which is lost. Pure: the clock comes as an argument, datagrams go out elsewhere.
//!
//! A message stays in its buffer, and the buffer in the queue, until all messages up to it are
//! acknowledged: the pool of buffers is the bound of the queue. Of those that have gone out, a
//! message is taken for lost when three that went out after it have arrived, or when nothing was
//! acknowledged for the time of [`Rto`]; after the latter, only one message goes out at first, and
//! twice as many with every acknowledgement, so that a peer that does not poll finds few
//! repetitions when it does.

use crate::rto::Rto;
use crate::seq::{Seq, WINDOW_MAX};
use crate::wire::Acks;
use gapless_btl::pool::Buffer;
use gapless_btl::{AmTag, Token};
use std::collections::VecDeque;
use std::time::Instant;

/// Messages that went out later and have arrived, after which one is taken for lost.
const OVERTAKEN_BY: u64 = 3;
/// What a datagram takes of a socket's buffer besides its bytes, in bytes.
const OVERHEAD_BYTES: usize = 1024;

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendState {
    /// Here; it has never gone out.
    Queued,
    /// In flight since `at`, as the `turn`-th datagram; `first` if it went out once.
    Flying { at: Instant, turn: u64, first: bool },
    /// Lost in flight.
    Missing,
    /// With the peer, which lacks an earlier one.
    Landed,
}

struct Message {
    buffer: Buffer,
    tag: AmTag,
    done: Token,
    place: SendState,
}

/// All messages that the peer may not have yet, oldest first.
pub(crate) struct Sender {
    queue: VecDeque<Message>,
    /// The number of the queue's first.
    base: Seq,
    /// How many of the queue have gone out at least once: those before the first `Queued`.
    started: u32,
    /// The first message that the peer has no room for.
    edge: Seq,
    flying: u32,
    flying_bytes: usize,
    flying_bytes_max: usize,
    /// How many may be flying: the window, or less after a timeout.
    burst: u32,
    turns: u64,
    /// The latest turn of which the peer is known to have the datagram.
    arrived_turn: u64,
    rto: Rto,
    /// When what is flying is given up.
    deadline: Option<Instant>,
}

/// A message that is to go out now.
pub(crate) struct Outgoing<'a> {
    pub(crate) seq: Seq,
    pub(crate) tag: AmTag,
    pub(crate) bytes: &'a [u8],
}

impl Sender {
    /// Numbers messages from `first` on. No more than `flying_bytes_max` bytes are in flight at a
    /// time, but always one message.
    pub(crate) fn new(first: Seq, flying_bytes_max: usize) -> Sender {
        Sender {
            queue: VecDeque::with_capacity(WINDOW_MAX as usize),
            base: first,
            started: 0,
            edge: first,
            flying: 0,
            flying_bytes: 0,
            flying_bytes_max,
            burst: WINDOW_MAX,
            turns: 0,
            arrived_turn: 0,
            rto: Rto::new(),
            deadline: None,
        }
    }

    /// The peer has room for the first `count` messages.
    pub(crate) fn open(&mut self, count: u32) {
        self.edge = self.base.plus(count.min(WINDOW_MAX));
    }

    pub(crate) fn push(&mut self, buffer: Buffer, tag: AmTag, done: Token) {
        self.queue.push_back(Message { buffer, tag, done, place: SendState::Queued });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether messages wait for the peer's permission alone, which may have been lost.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.flying == 0
            && self.started < self.queued()
            && !self.base.plus(self.started).is_before(self.edge)
    }

    fn queued(&self) -> u32 {
        u32::try_from(self.queue.len()).unwrap_or(u32::MAX)
    }

    /// The index of what goes out next: what is missing first, then what never went.
    fn next(&self) -> Option<usize> {
        let started = self.started as usize;
        if self.flying >= self.burst {
            return None;
        }
        let missing = self.queue.iter().take(started).position(|m| m.place == SendState::Missing);
        let next = missing.or_else(|| {
            let free =
                started < self.queue.len() && self.base.plus(self.started).is_before(self.edge);
            free.then_some(started)
        })?;
        let bytes = self.flying_bytes + self.queue[next].buffer.len() + OVERHEAD_BYTES;
        (self.flying == 0 || bytes <= self.flying_bytes_max).then_some(next)
    }

    /// What is to go out next, if anything may. It counts as gone once [`gone`](Sender::gone) is
    /// called.
    pub(crate) fn peek(&self) -> Option<Outgoing<'_>> {
        let index = self.next()?;
        let Message { buffer, tag, .. } = &self.queue[index];
        let seq = self.base.plus(u32::try_from(index).ok()?);
        Some(Outgoing { seq, tag: *tag, bytes: buffer })
    }

    /// What [`peek`](Sender::peek) gave went out. Gives the token that is done with it: from now on
    /// the message is ours to repeat, whatever its sender does.
    pub(crate) fn gone(&mut self, now: Instant) -> Token {
        let Some(index) = self.next() else { return Token::NONE };
        let message = &mut self.queue[index];
        let first = message.place == SendState::Queued;
        self.started += u32::from(first);
        self.turns += 1;
        message.place = SendState::Flying { at: now, turn: self.turns, first };
        self.flying += 1;
        self.flying_bytes += message.buffer.len() + OVERHEAD_BYTES;
        self.deadline.get_or_insert(now + self.rto.wait());
        std::mem::replace(&mut message.done, Token::NONE)
    }

    fn landed(&mut self, index: usize, now: Instant) {
        let message = &mut self.queue[index];
        if let SendState::Flying { at, turn, first } = message.place {
            self.flying -= 1;
            self.flying_bytes -= message.buffer.len() + OVERHEAD_BYTES;
            // Of one that went out twice nobody knows which has arrived (Karn's rule).
            if first {
                self.rto.sample(now.saturating_duration_since(at));
                self.arrived_turn = self.arrived_turn.max(turn);
            }
        }
        message.place = SendState::Landed;
    }

    /// Takes in what the peer has.
    ///
    /// # Errors
    /// It acknowledges what was never sent, or promises room for more than a window.
    pub(crate) fn acknowledged(&mut self, acks: &Acks, now: Instant) -> Result<(), String> {
        let Acks { ack, sack, edge } = *acks;
        let wrong = |what: &str| {
            Err(format!("{what}: {acks:?} with {} from {:?} on in flight", self.started, self.base))
        };
        if edge.within(ack, WINDOW_MAX).is_none() {
            return wrong("room for fewer than none or more than a window");
        }
        if ack.is_before(self.base) {
            // Old news, overtaken by what we know already.
            return Ok(());
        }
        let Some(through) = ack.within(self.base, self.started) else {
            return wrong("an acknowledgement of what was not sent");
        };
        let beyond = 64 - sack.leading_zeros();
        if beyond > 0 && through + beyond >= self.started {
            return wrong("a selective acknowledgement of what was not sent");
        }
        let mut news = through > 0;
        for index in 0..through as usize {
            self.landed(index, now);
        }
        for bit in (0..beyond).filter(|bit| sack >> bit & 1 == 1) {
            let index = (through + 1 + bit) as usize;
            if self.queue[index].place != SendState::Landed {
                news = true;
                self.landed(index, now);
            }
        }
        self.queue.drain(..through as usize);
        self.base = ack;
        self.started -= through;
        if self.edge.is_before(edge) {
            self.edge = edge;
        }
        if news {
            self.rto.progressed();
            self.burst = self.burst.saturating_mul(2).min(WINDOW_MAX);
            self.give_up_overtaken();
            self.deadline = (self.flying > 0).then(|| now + self.rto.wait());
        }
        Ok(())
    }

    fn give_up_overtaken(&mut self) {
        for message in self.queue.iter_mut().take(self.started as usize) {
            if let SendState::Flying { turn, .. } = message.place
                && turn + OVERTAKEN_BY <= self.arrived_turn
            {
                message.place = SendState::Missing;
                self.flying -= 1;
                self.flying_bytes -= message.buffer.len() + OVERHEAD_BYTES;
            }
        }
    }

    /// When [`tick`](Sender::tick) has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Gives up what is flying if its time is over.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        for message in self.queue.iter_mut().take(self.started as usize) {
            if matches!(message.place, SendState::Flying { .. }) {
                message.place = SendState::Missing;
            }
        }
        (self.flying, self.flying_bytes, self.burst, self.deadline) = (0, 0, 1, None);
        self.rto.timed_out();
    }

    /// The link has ended: the tokens of what never went out.
    pub(crate) fn fail(&mut self) -> impl Iterator<Item = Token> + '_ {
        (self.flying, self.flying_bytes, self.started, self.deadline) = (0, 0, 0, None);
        self.queue.drain(..).map(|message| message.done).filter(|&done| done != Token::NONE)
    }
}

#[cfg(test)]
impl Sender {
    /// The number of the next message.
    pub(crate) fn end(&self) -> Seq {
        self.base.plus(self.queued())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_btl::pool::HeapPool;
    use std::time::Duration;

    struct Bench {
        sender: Sender,
        pool: HeapPool,
        now: Instant,
        /// Those that are done.
        tokens: Vec<u64>,
    }

    impl Bench {
        fn new(first: u32, queued: u64) -> Bench {
            let mut sender = Sender::new(Seq(first), 1 << 20);
            sender.open(WINDOW_MAX);
            let (pool, now) = (HeapPool::new(100, 16), Instant::now());
            let mut bench = Bench { sender, pool, now, tokens: Vec::new() };
            for number in 0..queued {
                bench.push(number);
            }
            bench
        }

        fn push(&mut self, number: u64) {
            self.sender.push(self.pool.buffer(8).unwrap(), AmTag(0), Token(number));
        }

        /// Sends all that may go, and gives the numbers.
        fn pump(&mut self) -> Vec<u32> {
            let mut numbers = Vec::new();
            while let Some(outgoing) = self.sender.peek() {
                numbers.push(outgoing.seq.0);
                let token = self.sender.gone(self.now);
                self.tokens.extend((token != Token::NONE).then_some(token.0));
            }
            numbers
        }

        fn hear(&mut self, ack: u32, sack: u64, edge: u32) -> Result<(), String> {
            let acks = Acks { ack: Seq(ack), sack, edge: Seq(edge) };
            self.sender.acknowledged(&acks, self.now)
        }

        fn left(&self) -> usize {
            self.sender.queue.len()
        }
    }

    #[test]
    fn messages_go_in_order_and_end_in_order_across_the_wrap() {
        let first = u32::MAX - 1;
        let mut bench = Bench::new(first, 5);
        assert_eq!(bench.pump(), [first, u32::MAX, 0, 1, 2]);
        assert_eq!(bench.tokens, [0, 1, 2, 3, 4]);
        bench.hear(u32::MAX, 0, 60).unwrap();
        assert_eq!(bench.left(), 4);
        bench.hear(2, 0, 60).unwrap();
        assert_eq!(bench.left(), 1);
        // Old news changes nothing.
        bench.hear(u32::MAX, 0, 60).unwrap();
        assert_eq!(bench.left(), 1);
        bench.hear(3, 0, 60).unwrap();
        assert!(bench.sender.is_empty() && bench.sender.deadline().is_none());
    }

    #[test]
    fn the_edge_holds_back_and_says_so() {
        let mut bench = Bench::new(0, 0);
        bench.sender.open(2);
        (0..4).for_each(|number| bench.push(number));
        assert_eq!(bench.pump(), [0, 1]);
        assert!(!bench.sender.waits_for_room());
        bench.hear(2, 0, 2).unwrap();
        assert!(bench.pump().is_empty());
        assert!(bench.sender.waits_for_room());
        bench.hear(2, 0, 3).unwrap();
        assert_eq!(bench.pump(), [2]);
        // An older, smaller edge does not take room back.
        bench.hear(2, 0, 2).unwrap();
        bench.hear(3, 0, 4).unwrap();
        assert_eq!(bench.pump(), [3]);
    }

    #[test]
    fn an_overtaken_message_goes_again_once() {
        let mut bench = Bench::new(10, 6);
        bench.pump();
        // 11 is lost; 10, 12, 13 have arrived: two later ones are not enough.
        bench.hear(11, 0b011, 60).unwrap();
        assert_eq!(bench.left(), 5);
        assert!(bench.pump().is_empty());
        bench.hear(11, 0b111, 60).unwrap();
        assert_eq!(bench.pump(), [11]);
        bench.hear(11, 0b1111, 60).unwrap();
        assert!(bench.pump().is_empty(), "once is enough until it is late again");
        bench.hear(16, 0, 60).unwrap();
        assert!(bench.sender.is_empty());
        assert_eq!(bench.tokens, [0, 1, 2, 3, 4, 5], "each once, though one went twice");
    }

    #[test]
    fn after_a_timeout_it_starts_with_one_and_doubles() {
        let mut bench = Bench::new(0, 10);
        bench.pump();
        let deadline = bench.sender.deadline().unwrap();
        bench.now = deadline - Duration::from_nanos(1);
        bench.sender.tick(bench.now);
        assert!(bench.pump().is_empty());
        bench.now = deadline;
        bench.sender.tick(bench.now);
        assert_eq!(bench.pump(), [0]);
        assert!(bench.sender.deadline().unwrap() > bench.now);
        bench.hear(1, 0, 60).unwrap();
        assert_eq!(bench.pump(), [1, 2]);
        bench.hear(3, 0, 60).unwrap();
        assert_eq!(bench.pump(), [3, 4, 5, 6]);
        // What the peer has, it has: it is not sent again.
        bench.hear(3, 0b10_0000, 60).unwrap();
        assert_eq!(bench.pump(), [7, 8]);
    }

    #[test]
    fn bytes_under_way_are_bounded_but_one_always_goes() {
        let pool = HeapPool::new(4, 4096);
        let mut sender = Sender::new(Seq(0), 6000);
        sender.open(10);
        for _ in 0..3 {
            sender.push(pool.buffer(4096).unwrap(), AmTag(0), Token::NONE);
        }
        let now = Instant::now();
        assert_eq!(sender.gone(now), Token::NONE);
        assert!(sender.peek().is_none());
        let acks = Acks { ack: Seq(1), sack: 0, edge: Seq(10) };
        sender.acknowledged(&acks, now).unwrap();
        assert_eq!(sender.peek().unwrap().seq, Seq(1));
    }

    #[test]
    fn lies_are_noticed() {
        for (ack, sack, edge) in [
            (6, 0, 60),                    // of five messages
            (0x7fff_ffff, 0, 0x8000_0001), // half the circle ahead
            (2, 1 << 2, 60),               // 5 was never sent
            (2, 1 << 63, 60),
            (5, 1, 60),
            (2, 0, 1),                  // less than none
            (2, 0, 2 + WINDOW_MAX + 1), // more than a window
        ] {
            let mut bench = Bench::new(0, 5);
            bench.pump();
            assert!(bench.hear(ack, sack, edge).is_err(), "{ack} {sack:#x} {edge}");
        }
        let mut bench = Bench::new(0, 5);
        assert!(bench.hear(1, 0, 60).is_err(), "queued is not sent");
        bench.pump();
        assert!(bench.hear(2, 0b11, 60).is_ok());
    }

    #[test]
    fn failing_gives_the_tokens_that_are_not_done() {
        let mut bench = Bench::new(0, 3);
        assert_eq!(bench.sender.gone(bench.now), Token(0));
        bench.sender.push(bench.pool.buffer(1).unwrap(), AmTag(0), Token::NONE);
        let tokens: Vec<u64> = bench.sender.fail().map(|token| token.0).collect();
        assert_eq!(tokens, [1, 2]);
        assert!(bench.sender.peek().is_none() && bench.sender.deadline().is_none());
    }
}
