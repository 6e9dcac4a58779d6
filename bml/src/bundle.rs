//! Several network rails to one peer, used together: numbers, their order at the receiver, and what is to be sent again.
//!
//! ```text
//!  a message of a bundle:  payload … | number:8, little-endian
//! ```
//!
//! Numbers start at 1, in the order of `send`. [`OUT_OF_TURN`] is no number: such a message is taken when it comes. It
//! only says that there is no link any more.
//! What a rail that ends had not delivered is sent again over others, with its number: so the receiver sees each number
//! once or more often, and delivers each once, one after the other. `docs/internals.md` says why it is done so.

use crate::stripe::{Looks, Rate};
use crate::window::{UnderWay, WINDOW_BYTES, WINDOW_MESSAGES, Window};
use gapless_btl::pool::HeapPool;
use gapless_btl::{AmTag, Fragment, Limits, LinkError, PeerId, SHORT_BYTES, Short, Unacknowledged};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of a number.
pub(crate) const NUMBER_BYTES: usize = 8;
/// All rails of a process that dies end within so many notices of the slowest: one, and another for peers that poll
/// seldom.
const CLOSED_NOTICES: u64 = 2;
/// Messages that wait for earlier ones where the transport put them. Further ones are copied.
const IN_PLACE: usize = 8;
/// In the place of a number.
pub(crate) const OUT_OF_TURN: u64 = 0;

/// A rail of a bundle.
#[derive(Debug)]
pub(crate) struct Strand {
    /// Index of the rail.
    pub(crate) rail: usize,
    /// The peer's name there.
    pub(crate) peer: PeerId,
    pub(crate) rate: Rate,
    /// It has had room for a message: its link stands.
    pub(crate) stood: bool,
    /// What it retains.
    pub(crate) under_way: UnderWay,
}

impl AsRef<Rate> for Strand {
    fn as_ref(&self) -> &Rate {
        &self.rate
    }
}

impl AsMut<Rate> for Strand {
    fn as_mut(&mut self) -> &mut Rate {
        &mut self.rate
    }
}

/// What becomes of a message that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BundleOrder {
    /// It is the next one, or has none to wait for.
    Now,
    /// Earlier ones are missing.
    Later,
    /// It has been here before.
    Double,
}

/// All rails to one peer.
#[derive(Debug)]
pub(crate) struct Bundle {
    /// Those that live, best first.
    pub(crate) strands: Vec<Strand>,
    /// When their rates were looked at.
    pub(crate) looks: Looks,
    /// Polls measure them, too: the peer is in `Bml::measured`.
    pub(crate) is_measured: bool,
    /// What a message may be on any of them, whichever ends.
    pub(crate) limits: Limits,
    /// The longest message that is sent by value.
    pub(crate) short_max: usize,
    /// The rail that has one-sided operations, while it lives.
    pub(crate) one_sided: Option<usize>,
    /// The number of the next message to the peer.
    next: u64,
    /// What the peer is not known to have had.
    pub(crate) window: Window,
    /// Of messages that rails did not deliver, or that wait for the window: to be sent before anything new, in the order
    /// of their numbers.
    pub(crate) again: VecDeque<Unacknowledged>,
    /// The number that is the next one from the peer.
    expected: u64,
    /// Messages that came too early, without their numbers.
    parked: BTreeMap<u64, (AmTag, Fragment)>,
    /// Bytes of these.
    parked_bytes: u64,
    /// A rail has ended: what is missing may come behind what is parked, and must find buffers.
    copies: bool,
    /// What the last rail said that ended because it was closed, as by a process that ends, and when, in nanoseconds.
    closed: Option<(LinkError, u64)>,
}

impl Bundle {
    /// Of these rails, with their promises, best first; `one_sided` has operations.
    pub(crate) fn new(rails: &[(usize, PeerId, &Limits)], one_sided: Option<usize>) -> Bundle {
        let all = || rails.iter().map(|(_, _, limits)| *limits);
        let least = |what: fn(&Limits) -> usize| all().map(what).min().unwrap_or(NUMBER_BYTES);
        let (eager, longest) = (least(|it| it.eager_bytes), least(|it| it.max_fragment_bytes));
        let bandwidth = all().fold(0u32, |sum, it| sum.saturating_add(it.bandwidth_mb_s));
        let limits = Limits {
            name: "bundle",
            eager_bytes: eager.saturating_sub(NUMBER_BYTES),
            max_fragment_bytes: longest.saturating_sub(NUMBER_BYTES),
            ordered: true,
            latency_ns: all().map(|it| it.latency_ns).min().unwrap_or(0),
            bandwidth_mb_s: bandwidth,
            death_notice_ms: all().map(|it| it.death_notice_ms).max().unwrap_or(0),
        };
        let strand = |(rail, peer, limits): &(usize, PeerId, &Limits)| Strand {
            rail: *rail,
            peer: *peer,
            rate: Rate::new(limits.latency_ns, limits.bandwidth_mb_s),
            stood: false,
            under_way: UnderWay::default(),
        };
        Bundle {
            strands: rails.iter().map(strand).collect(),
            looks: Looks::default(),
            is_measured: false,
            short_max: (SHORT_BYTES - NUMBER_BYTES).min(limits.eager_bytes),
            limits,
            one_sided,
            next: OUT_OF_TURN + 1,
            window: Window::new(OUT_OF_TURN + 1),
            again: VecDeque::new(),
            expected: OUT_OF_TURN + 1,
            parked: BTreeMap::new(),
            parked_bytes: 0,
            copies: false,
            closed: None,
        }
    }

    /// Its part over this rail, while that lives.
    pub(crate) fn strand(&mut self, rail: usize) -> Option<&mut Strand> {
        self.strands.iter_mut().find(|strand| strand.rail == rail)
    }

    /// Whether this rail is one of them, and lives.
    pub(crate) fn has(&self, rail: usize) -> bool {
        self.strands.iter().any(|strand| strand.rail == rail)
    }

    /// Whether this rail is one of them, lives, and calls the peer so: by another name it has another link to it.
    pub(crate) fn has_link(&self, rail: usize, peer: PeerId) -> bool {
        self.strands.iter().any(|strand| (strand.rail, strand.peer) == (rail, peer))
    }

    /// The number of a message that is sent now.
    pub(crate) fn number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// A rail has ended now, with this error; whether it was one of these. What is `left` of it, others send.
    pub(crate) fn end(
        &mut self,
        rail: usize,
        error: &LinkError,
        left: Vec<Unacknowledged>,
        now_ns: u64,
    ) -> bool {
        let before = self.strands.len();
        if matches!(error, LinkError::PeerGone { .. }) {
            self.closed = Some((error.clone(), now_ns));
        }
        // What it had been given and is not left was confirmed.
        let bytes = left.iter().map(|it| it.message.len() as u64).sum();
        if let Some(at) = self.strands.iter().position(|strand| strand.rail == rail) {
            self.strands.remove(at).under_way.look(bytes, &mut self.window);
        }
        self.again.extend(left.into_iter().filter(|it| sent_number(&it.message) != OUT_OF_TURN));
        // The oldest first: the others may wait for the window, which waits for that.
        self.again.make_contiguous().sort_by_key(|it| sent_number(&it.message));
        if self.one_sided == Some(rail) {
            self.one_sided = None;
        }
        self.strands.len() < before
    }

    /// Why the peer has ended, if its last rail has now, with this error: a process that dies closes those of its rails
    /// that work, and says nothing over one that had fallen silent before. The end of that is noticed last, but soon: a
    /// rail that was closed long before was only cut.
    pub(crate) fn cause(&self, last: &LinkError, now_ns: u64) -> LinkError {
        let notice_ns = CLOSED_NOTICES * u64::from(self.limits.death_notice_ms) * 1_000_000;
        let soon = |(_, at): &&(LinkError, u64)| now_ns.saturating_sub(*at) <= notice_ns;
        self.closed.as_ref().filter(soon).map_or(last, |(error, _)| error).clone()
    }

    /// From now on no transport's buffer is held here. `false`: there is no memory, or a message cannot be read.
    pub(crate) fn let_go(&mut self) -> bool {
        self.copies = true;
        self.parked.values_mut().all(|(_, fragment)| match copy(fragment) {
            Some(own) => {
                *fragment = own;
                true
            }
            None => false,
        })
    }

    /// Whether the message of this number is the next one, too early, or here for the second time.
    pub(crate) fn order_of(&self, number: u64) -> BundleOrder {
        match number {
            OUT_OF_TURN => BundleOrder::Now,
            // One that is parked is handed over from there, even if its turn has come.
            _ if number < self.expected || self.parked.contains_key(&number) => BundleOrder::Double,
            _ if number == self.expected => BundleOrder::Now,
            _ => BundleOrder::Later,
        }
    }

    /// A message whose turn it is was taken. Gives whether the next one waits.
    pub(crate) fn took(&mut self, number: u64) -> bool {
        if number != OUT_OF_TURN {
            self.expected += 1;
        }
        self.parked.contains_key(&self.expected)
    }

    /// Keeps a message until its turn comes.
    ///
    /// # Errors
    /// Why it cannot be: the peer is further ahead than any sender may be, or there is no memory.
    pub(crate) fn park(
        &mut self,
        number: u64,
        tag: AmTag,
        fragment: Fragment,
    ) -> Result<(), LinkError> {
        let len = fragment.len() as u64;
        let early = number.saturating_sub(self.expected);
        if early >= WINDOW_MESSAGES || self.parked_bytes + len > WINDOW_BYTES {
            let (waits, bytes) = (self.expected, self.parked_bytes);
            let what = format!(
                "message {number}, but {waits} has not come, and {bytes} bytes wait for it"
            );
            return Err(LinkError::Corrupt { what });
        }
        let fragment = match self.copies {
            true => copy(&fragment).ok_or_else(|| LinkError::System {
                operation: "malloc",
                reason: "a message that came early could not be kept".to_owned(),
            })?,
            // The rail needs its buffers: it would look slow while another one is waited for.
            false if self.parked.len() >= IN_PLACE => copy(&fragment).unwrap_or(fragment),
            false => fragment,
        };
        self.parked_bytes += len;
        self.parked.insert(number, (tag, fragment));
        Ok(())
    }

    /// The messages with this tag that wait for others, which will not come any more.
    pub(crate) fn take_parked(&mut self, tag: AmTag) -> Vec<Fragment> {
        let all = std::mem::take(&mut self.parked);
        let (taken, kept): (BTreeMap<_, _>, _) = all.into_iter().partition(|it| it.1.0 == tag);
        self.parked = kept;
        let taken = taken.into_values().map(|(_, fragment)| fragment);
        taken.inspect(|it| self.parked_bytes -= it.len() as u64).collect()
    }

    /// A parked message whose turn it is; it counts as taken.
    pub(crate) fn ripe(&mut self) -> Option<(AmTag, Fragment)> {
        let ripe = self.parked.remove(&self.expected)?;
        self.parked_bytes -= ripe.1.len() as u64;
        self.expected += 1;
        Some(ripe)
    }
}

/// A message in memory of its own.
fn copy(fragment: &Fragment) -> Option<Fragment> {
    let mut buffer = HeapPool::new(1, fragment.len()).buffer(fragment.len())?;
    fragment.read(0, &mut buffer).ok()?;
    Some(buffer.into_fragment())
}

/// The number of a message of ours, as it goes over the wire.
pub(crate) fn sent_number(message: &[u8]) -> u64 {
    message.last_chunk().map_or(OUT_OF_TURN, |bytes| u64::from_le_bytes(*bytes))
}

/// The number of a message that was offered by value, and the message without it.
pub(crate) fn split_short(message: Short<'_>) -> Option<(u64, Short<'_>)> {
    let len = message.len().checked_sub(NUMBER_BYTES)?;
    let (word, shift) = (len / 8, len % 8 * 8);
    let low = message.words()[word].to_le();
    let number = match shift {
        0 => low,
        _ => low >> shift | message.words()[word + 1].to_le() << (64 - shift),
    };
    Some((number, Short::new(message.words(), len)))
}

/// The number of a message in a transport's memory, and how long the message is without it.
pub(crate) fn number_of(fragment: &Fragment) -> Option<(u64, usize)> {
    let len = fragment.len().checked_sub(NUMBER_BYTES)?;
    let mut bytes = [0; NUMBER_BYTES];
    fragment.read(len, &mut bytes).ok()?;
    Some((u64::from_le_bytes(bytes), len))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(eager_bytes: usize, max_fragment_bytes: usize) -> Limits {
        Limits {
            name: "test",
            eager_bytes,
            max_fragment_bytes,
            ordered: true,
            latency_ns: 10,
            bandwidth_mb_s: 100,
            death_notice_ms: 1,
        }
    }

    fn bundle() -> Bundle {
        let (one, other) = (limits(300, 1000), limits(500, 800));
        Bundle::new(&[(1, PeerId(0), &one), (2, PeerId(3), &other)], Some(2))
    }

    fn silent() -> LinkError {
        LinkError::Unreachable { reason: "test".to_owned() }
    }

    fn message(text: &[u8]) -> Fragment {
        let mut buffer = HeapPool::new(1, text.len()).buffer(text.len()).unwrap();
        buffer.copy_from_slice(text);
        buffer.into_fragment()
    }

    /// A rail that waits for another one keeps most of its buffers.
    #[test]
    fn of_what_waits_all_but_a_few_are_copied() {
        let pool = HeapPool::new(IN_PLACE + 1, 9);
        let mut bundle = bundle();
        for number in 2..40 {
            let buffer = pool.buffer(9).expect("copies need none of the rail's");
            bundle.park(number, AmTag(7), buffer.into_fragment()).unwrap();
        }
        assert_eq!(bundle.parked_bytes, 38 * 9);
    }

    #[test]
    fn a_message_fits_every_rail() {
        let limits = bundle().limits;
        assert_eq!((limits.eager_bytes, limits.max_fragment_bytes), (292, 792));
        assert_eq!((limits.latency_ns, limits.bandwidth_mb_s, limits.ordered), (10, 200, true));
    }

    #[test]
    fn numbers_survive_wherever_they_lie() {
        for len in 0..40usize {
            let number = 0x0123_4567_89ab_cdef_u64 + len as u64;
            let payload: Vec<u8> = (0..len).map(|at| u8::try_from(at).unwrap()).collect();
            let whole = [&payload[..], &number.to_le_bytes()].concat();
            let mut words = vec![0u64; whole.len().div_ceil(8)];
            for (word, bytes) in words.iter_mut().zip(whole.chunks(8)) {
                let mut all = [0xee; 8];
                all[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_ne_bytes(all);
            }
            let (found, short) = split_short(Short::new(&words, whole.len())).unwrap();
            assert_eq!((found, short.len()), (number, len));
            assert_eq!(number_of(&message(&whole)), Some((number, len)));
        }
        assert_eq!(number_of(&message(&[0; 7])), None);
        assert!(split_short(Short::new(&[0], 7)).is_none());
    }

    #[test]
    fn each_number_has_its_turn_once() {
        let mut bundle = bundle();
        assert_eq!(bundle.order_of(OUT_OF_TURN), BundleOrder::Now);
        assert_eq!(
            (bundle.order_of(1), bundle.order_of(2)),
            (BundleOrder::Now, BundleOrder::Later)
        );
        bundle.park(2, AmTag(7), message(b"two")).unwrap();
        bundle.park(4, AmTag(9), message(b"four")).unwrap();
        assert_eq!(bundle.order_of(2), BundleOrder::Double);
        assert!(bundle.ripe().is_none());
        assert!(bundle.took(1));
        assert_eq!(
            (bundle.order_of(1), bundle.order_of(2)),
            (BundleOrder::Double, BundleOrder::Double),
            "2 is parked"
        );
        assert!(bundle.let_go());
        let (tag, two) = bundle.ripe().unwrap();
        assert_eq!((tag, two.to_vec().unwrap()), (AmTag(7), b"two".to_vec()));
        assert!(bundle.ripe().is_none(), "three is missing");
        assert!(!bundle.took(OUT_OF_TURN));
        assert_eq!(bundle.order_of(3), BundleOrder::Now);
        assert!(bundle.took(3));
        assert_eq!(bundle.ripe().unwrap().0, AmTag(9));
    }

    #[test]
    fn a_peer_that_has_just_closed_a_rail_is_gone_whatever_the_last_one_says() {
        let closed = |text: &str| LinkError::PeerGone { reason: text.to_owned() };
        let mut bundle = bundle();
        let ms = 1_000_000;
        bundle.end(7, &silent(), Vec::new(), ms);
        assert_eq!(bundle.cause(&silent(), ms), silent());
        bundle.end(1, &closed("first"), Vec::new(), 5 * ms);
        assert_eq!(bundle.cause(&silent(), 6 * ms), closed("first"));
        // It was cut long before, and then the way to the peer failed.
        assert_eq!(bundle.cause(&silent(), 60 * ms), silent());
        bundle.end(2, &closed("second"), Vec::new(), 60 * ms);
        assert_eq!(bundle.cause(&closed("second"), 60 * ms), closed("second"));
    }

    #[test]
    fn parked_messages_of_one_tag_are_taken_in_their_order() {
        let mut bundle = bundle();
        for (number, tag) in [(5, 9), (3, 9), (4, 7)] {
            bundle.park(number, AmTag(tag), message(&[tag, number.to_le_bytes()[0]])).unwrap();
        }
        let taken = bundle.take_parked(AmTag(9));
        let taken: Vec<Vec<u8>> = taken.iter().map(|it| it.to_vec().unwrap()).collect();
        assert_eq!(taken, [[9, 3], [9, 5]]);
        assert_eq!(
            (bundle.order_of(4), bundle.order_of(5)),
            (BundleOrder::Double, BundleOrder::Later)
        );
    }

    /// However many messages come early, they are few and short together.
    #[test]
    fn what_is_parked_is_bounded() {
        let mut bundle = bundle();
        assert!(bundle.let_go());
        let far = bundle.park(1 + WINDOW_MESSAGES, AmTag(7), message(b"far"));
        assert!(matches!(far, Err(LinkError::Corrupt { .. })));
        bundle.park(WINDOW_MESSAGES, AmTag(7), message(b"near")).unwrap();
        let half = vec![0; usize::try_from(WINDOW_BYTES / 2).unwrap()];
        bundle.park(2, AmTag(7), message(&half)).unwrap();
        let more = bundle.park(3, AmTag(7), message(&half));
        assert!(matches!(more, Err(LinkError::Corrupt { .. })));
        assert!(bundle.took(1) && bundle.ripe().is_some());
        bundle.park(4, AmTag(7), message(&half)).unwrap();
    }

    /// What a rail did not deliver goes before what waits for the window.
    #[test]
    fn the_oldest_message_is_sent_again_first() {
        let mut bundle = bundle();
        let left = |number: u64| {
            let message = number.to_le_bytes().to_vec();
            Unacknowledged { tag: AmTag(1), message, done: gapless_btl::Token::NONE }
        };
        bundle.again.push_back(left(9));
        assert!(bundle.end(1, &silent(), vec![left(3), left(OUT_OF_TURN), left(4)], 0));
        let numbers = bundle.again.iter().map(|it| sent_number(&it.message));
        assert_eq!(numbers.collect::<Vec<_>>(), [3, 4, 9]);
    }

    #[test]
    fn a_rail_that_ends_takes_its_operations_along() {
        let mut bundle = bundle();
        let mut end = |rail| bundle.end(rail, &silent(), Vec::new(), 0);
        assert!(!end(9) && end(2) && !end(2));
        assert_eq!(bundle.one_sided, None);
        assert!(bundle.strand(1).is_some() && bundle.strand(2).is_none());
        assert_eq!((bundle.number(), bundle.number()), (1, 2));
    }
}
