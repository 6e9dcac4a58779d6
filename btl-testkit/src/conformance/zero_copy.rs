//! Messages that leave from where they lie, and are put where they go.

use super::bench::Watch;
use super::duo::{A, B, Duo, message, tag_of};
use super::{Fixture, Suite};
use gapless_btl::{
    AmTag, Btl, Event, Fragment, PeerId, Queue, ReceiveTarget, ReserveError, Short, Sink,
    TargetAnswer, Token, ZeroCopyMessage, ZeroCopyResult,
};
use gapless_mem::Region;
use gapless_testkit::Random;

/// A message's name, by which the receiver knows it.
const NAME_BYTES: usize = 8;
/// What is around every target.
const GUARD: u8 = 0xA5;
/// Bytes between targets.
const GUARD_BYTES: usize = 16;

/// Memory for a message in pieces: what is in order lies in the order of `pieces`, with guards between.
struct MessageMemory {
    all: Vec<u8>,
    pieces: Vec<(usize, usize)>,
}

impl MessageMemory {
    /// For `len` bytes, in up to four pieces.
    fn new(len: usize, random: &mut Random) -> MessageMemory {
        let mut cuts: Vec<usize> = (0..random.below(4)).map(|_| random.below(len + 1)).collect();
        cuts.extend([0, len]);
        cuts.sort_unstable();
        let mut at = GUARD_BYTES;
        let mut pieces: Vec<(usize, usize)> = Vec::new();
        for cut in cuts.windows(2) {
            pieces.push((at, cut[1] - cut[0]));
            at += cut[1] - cut[0] + GUARD_BYTES;
        }
        MessageMemory { all: vec![GUARD; at], pieces }
    }

    fn regions(&mut self) -> Vec<Region> {
        let whole = Region::of_mut(&mut self.all);
        let piece = |&(at, len): &(usize, usize)| whole.sub(at as u64, len as u64);
        self.pieces.iter().map(piece).collect::<Result<_, _>>().expect("pieces lie inside")
    }

    fn fill(&mut self, mut bytes: &[u8]) {
        for &(at, len) in &self.pieces {
            self.all[at..at + len].copy_from_slice(&bytes[..len]);
            bytes = &bytes[len..];
        }
    }

    /// The bytes in their order; nothing else was written.
    fn bytes(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &(at, len) in &self.pieces {
            bytes.extend(&self.all[at..at + len]);
            self.all[at..at + len].fill(GUARD);
        }
        assert!(
            self.all.iter().all(|&byte| byte == GUARD),
            "something was written beside a target"
        );
        bytes
    }
}

/// Knows where some messages go, and takes or refuses the others.
struct Placer {
    random: Random,
    from: PeerId,
    /// Where the message goes that was last asked about: its head, its length.
    here: Option<(Vec<u8>, usize, MessageMemory, bool)>,
    regions: Vec<Region>,
    /// It was not yet asked about the next message, or said that it would say later.
    open: bool,
    taken: Vec<(AmTag, Vec<u8>)>,
    placed: usize,
    events: Queue,
    room: usize,
}

impl Placer {
    /// A new message comes.
    fn next(&mut self) {
        self.here = None;
        self.open = true;
    }
}

impl Sink for Placer {
    fn short(&mut self, _: PeerId, tag: AmTag, message: Short<'_>) -> bool {
        let bytes = message.words().iter().flat_map(|word| word.to_ne_bytes());
        self.taken.push((tag, bytes.take(message.len()).collect()));
        self.next();
        true
    }

    fn fragment(&mut self, from: PeerId, tag: AmTag, fragment: &Fragment) -> bool {
        assert_eq!(from, self.from, "who sent it");
        assert!(self.events.is_empty(), "a message is offered behind an event of its peer");
        if self.random.chance(200) {
            return false;
        }
        self.taken.push((tag, fragment.to_vec().expect("arrivals are in host memory")));
        self.next();
        true
    }

    fn receive_target(
        &mut self,
        from: PeerId,
        _: AmTag,
        head: &[u8],
        len: usize,
    ) -> TargetAnswer<'_> {
        assert_eq!(from, self.from, "who sent it");
        assert!(self.events.is_empty(), "a message is placed behind an event of its peer");
        assert!(head.len() <= len, "the head is of the message");
        let same = |(known, long, ..): &(Vec<u8>, usize, _, _)| *long == len && known == head;
        if self.random.chance(100) {
            return TargetAnswer::Later;
        }
        if self.open {
            self.open = false;
            if self.random.chance(300) {
                return TargetAnswer::Nowhere;
            }
            let skip = NAME_BYTES + self.random.below(head.len() - NAME_BYTES + 1);
            let memory = MessageMemory::new(len - skip, &mut self.random);
            self.here = Some((head.to_vec(), len, memory, self.random.chance(500)));
        }
        let Some((_, _, memory, keeps)) = self.here.as_mut().filter(|it| same(it)) else {
            return TargetAnswer::Nowhere;
        };
        self.regions = memory.regions();
        let skip = len - memory.pieces.iter().map(|&(_, len)| len).sum::<usize>();
        // SAFETY: the memory is the message's, and stays where it is while the target is borrowed.
        let target = unsafe { ReceiveTarget::new(skip, &self.regions, *keeps) };
        target.map_or(TargetAnswer::Nowhere, TargetAnswer::Here)
    }

    fn target_filled(&mut self, from: PeerId, tag: AmTag, head: &[u8], len: usize) {
        assert_eq!(from, self.from, "who sent it");
        assert!(self.events.is_empty(), "a message is placed behind an event of its peer");
        let (known, long, mut memory, _) = self.here.take().expect("a target was given");
        assert_eq!((&known[..], long), (head, len), "the message that the target is for");
        let rest = memory.bytes();
        let mut bytes = head[..len - rest.len()].to_vec();
        bytes.extend(rest);
        self.taken.push((tag, bytes));
        self.placed += 1;
        self.next();
    }

    fn event(&mut self, event: Event) {
        self.events.event(event);
        self.next();
    }

    fn room(&self) -> usize {
        self.room.saturating_sub(self.events.len())
    }
}

/// Sends message `number` from where it lies, in pieces.
fn lend<T: Btl>(
    duo: &mut Duo<T>,
    number: u64,
    bytes: &[u8],
    random: &mut Random,
) -> ZeroCopyResult {
    let (head, body) = bytes.split_at(random.below(bytes.len().min(100) + 1));
    let mut memory = MessageMemory::new(body.len(), random);
    memory.fill(body);
    let regions = memory.regions();
    // SAFETY: the memory lives to the end of the call, and nothing writes it.
    let zero_copy = unsafe { ZeroCopyMessage::new(head, &regions) }.expect("host memory");
    let peer = duo.peer[A];
    let result = duo.ends[A].send_zero_copy(peer, tag_of(number), &zero_copy);
    // It is needed for the call alone.
    memory.all.fill(0);
    result
}

/// Sends message `number` with a slot, if there is room.
fn say<T: Btl>(duo: &mut Duo<T>, number: u64, bytes: &[u8]) -> bool {
    match duo.ends[A].reserve(duo.peer[A], bytes.len()) {
        Ok(mut slot) => {
            slot.write(0, bytes).expect("slots are in host memory");
            duo.ends[A].send(slot, tag_of(number), Token::NONE);
            true
        }
        Err(ReserveError::Full) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Messages that leave from where they lie among others, and messages that are put to where they go among others: each
/// comes once, intact, in the order in which they were sent if that is promised; nothing is written beside a target; a
/// poll says how many there were.
pub fn zero_copy_messages(suite: &Suite, mut fixture: impl Fixture) {
    const MESSAGES: u64 = 600;
    let mut random = Random::new(suite.seed());
    let mut duo = Duo::new(&mut fixture);
    let (ordered, longest) = {
        let limits = duo.ends[A].limits();
        (limits.ordered, limits.max_fragment_bytes)
    };
    let to_b = duo.peer[A];
    let mut placer = Placer {
        random: Random::new(suite.seed() ^ 1),
        from: duo.peer[B],
        here: None,
        regions: Vec::new(),
        open: true,
        taken: Vec::new(),
        placed: 0,
        events: Queue::with_capacity(16),
        room: 0,
    };
    let numbered = |number: u64, len: usize| {
        let mut bytes = message(number, len);
        bytes[..NAME_BYTES].copy_from_slice(&number.to_le_bytes());
        bytes
    };
    let (mut sent, mut zero_copy, mut came) = (Vec::new(), 0, Vec::new());
    let mut same = 0;
    let watch = Watch::new("all messages");
    while (came.len() as u64) < MESSAGES {
        // Now and then more than there is room for.
        let burst = if random.chance(30) { 100 } else { 4 };
        for _ in 0..random.below(burst) {
            let number = sent.len() as u64;
            if number == MESSAGES {
                break;
            }
            // Often as long as the one before.
            if random.chance(400) {
                let most = [100, 3000, 20_000, longest][random.below(4)].min(longest);
                same = random.below(most - NAME_BYTES + 1);
            }
            let bytes = numbered(number, NAME_BYTES + same);
            let left = match random.below(3) {
                0 => say(&mut duo, number, &bytes),
                _ => {
                    let sent = lend(&mut duo, number, &bytes, &mut random) == ZeroCopyResult::Sent;
                    zero_copy += usize::from(sent);
                    sent
                }
            };
            // Without room nothing was sent, and the number is free.
            sent.extend(left.then_some(bytes.len()));
        }
        duo.poll(A);
        placer.room = random.below(17);
        let only = random.chance(200).then_some(placer.from);
        let found = duo.ends[B].poll(only, &mut placer);
        let (taken, queued) = (placer.taken.len(), placer.events.len());
        assert_eq!(found, taken + queued, "a poll says how many there were: {taken} were taken");
        came.append(&mut placer.taken);
        for event in placer.events.drain() {
            let Event::Arrived { tag, fragment, .. } = event else { panic!("{event:?}") };
            came.push((tag, fragment.to_vec().expect("arrivals are in host memory")));
        }
        watch.tick();
    }
    let right = (0..).zip(&sent).map(|(number, &len)| (tag_of(number), numbered(number, len)));
    let mut right: Vec<_> = right.collect();
    if !ordered {
        right.sort();
        came.sort();
    }
    let wrong = came.iter().zip(&right).position(|(came, right)| came != right);
    assert_eq!(
        (came.len(), wrong),
        (right.len(), None),
        "{zero_copy} sent without a copy, {} put at targets",
        placer.placed
    );
    duo.expect_silence();
    duo.peer[A] = PeerId(77);
    let nobody = lend(&mut duo, 0, &[0; 100], &mut random);
    assert_ne!(nobody, ZeroCopyResult::Sent, "there is no such peer");
    duo.peer[A] = to_b;
    duo.expect_health();
    if zero_copy == 0 && placer.placed == 0 {
        suite.skip("all messages go through buffers of the transport");
    }
}
