//! Streams in any pieces, read in all ways.

use super::*;
use crate::socket::Socket;
use crate::tests::{LOOPBACK_V4, Patience, Random, config, seed};
use gapless_mem::Region;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::IoSlice;

/// Takes every message, some of them in targets that may change their mind.
#[derive(Default)]
struct All {
    /// Messages, and whether bytes that were put may be missing.
    came: Vec<(AmTag, Vec<u8>, bool)>,
    /// Whether there are targets.
    targets: bool,
    random: Option<Random>,
    /// Where the next message goes, if it was asked about; and whether parts stay.
    here: Option<(Vec<u8>, bool)>,
    region: Vec<Region>,
    /// The target of the next message is refused.
    target_refused: bool,
    /// How many targets were, and how many messages were put.
    all_refused: usize,
    filled: usize,
}

/// What of a message does not go to its target.
const SKIP: usize = 24;

impl Sink for All {
    fn short(&mut self, _: PeerId, _: AmTag, _: Short<'_>) -> bool {
        false
    }

    fn fragment(&mut self, _: PeerId, tag: AmTag, fragment: &Fragment) -> bool {
        self.came.push((tag, fragment.to_vec().unwrap(), std::mem::take(&mut self.target_refused)));
        self.here = None;
        true
    }

    fn receive_target(&mut self, _: PeerId, _: AmTag, head: &[u8], len: usize) -> TargetAnswer<'_> {
        assert!(head.len() >= SKIP && len > head.len());
        if !self.targets {
            return TargetAnswer::Nowhere;
        }
        let random = self.random.as_mut().unwrap();
        match random.below(40) {
            0 => return TargetAnswer::Later,
            1 => {
                self.target_refused = self.here.take().is_some_and(|(_, keeps)| keeps);
                self.all_refused += usize::from(self.target_refused);
                return TargetAnswer::Nowhere;
            }
            _ => {}
        }
        let keeps = random.below(2) == 0;
        let (memory, keeps) = self.here.get_or_insert_with(|| (vec![0; len - SKIP], keeps));
        assert_eq!(memory.len(), len - SKIP, "of the same message");
        self.region = vec![Region::of_mut(memory)];
        // SAFETY: the memory lives as long as this sink is borrowed, and nobody else touches it.
        TargetAnswer::Here(unsafe { ReceiveTarget::new(SKIP, &self.region, *keeps) }.unwrap())
    }

    fn target_filled(&mut self, _: PeerId, tag: AmTag, head: &[u8], len: usize) {
        let (rest, _) = self.here.take().expect("a target was given");
        assert_eq!(rest.len(), len - SKIP);
        self.came.push((tag, [&head[..SKIP], &rest[..]].concat(), false));
        self.filled += 1;
    }

    fn event(&mut self, event: Event) {
        let Event::Arrived { tag, fragment, .. } = event else { panic!("{event:?}") };
        self.came.push((tag, fragment.to_vec().unwrap(), std::mem::take(&mut self.target_refused)));
        self.here = None;
    }

    fn room(&self) -> usize {
        1
    }
}

/// Messages that are as long as the ones before them, or not, in any pieces, among counts.
#[test]
fn lengths_that_repeat_and_lengths_that_do_not() {
    lengths(false);
}

/// The same, if some of them have targets.
#[test]
fn messages_go_to_their_targets_in_any_pieces() {
    lengths(true);
}

fn lengths(targets: bool) {
    let mut random = Random::new(seed());
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (here, there) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let at = ([127, 0, 0, 1], 1).into();
    let (mut here, there) = (Connection::bare(Socket::of(here, at)), Socket::of(there, at));
    let mut inbound = Inbound::new(&config(0, LOOPBACK_V4));
    let (mut stream, mut sent) = (Vec::new(), Vec::new());
    let mut len = 0;
    for number in 0..1500u64 {
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
    let random_of_sink = Some(Random::new(seed() ^ 1));
    let mut all = All { targets, random: random_of_sink, ..All::default() };
    let (mut came, mut written, patience) = (0, 0, Patience::new());
    while !sent.is_empty() {
        let most = [1, 70, 5_000, 16 << 10, 100_000][random.below(5)];
        let piece = &stream[written..stream.len().min(written + 1 + random.below(most))];
        written += there.write(&[IoSlice::new(piece)]).unwrap();
        let stop = inbound.receive(&mut here, PeerId(0), &mut all, 64, &mut true, false).2;
        assert!(matches!(stop, Stop::Dry | Stop::More), "{stop:?}");
        for ((tag, body, lacks), right) in all.came.drain(..).zip(&sent) {
            let mut bytes = body.iter().zip(&right.1).enumerate();
            let same = |(at, (byte, right)): (usize, (&u8, &u8))| {
                byte == right || (lacks && *byte == 0 && at >= FRONT_BYTES)
            };
            assert!(tag == right.0 && body.len() == right.1.len() && bytes.all(same), "{tag:?}");
            came += 1;
        }
        sent.drain(..std::mem::take(&mut came));
        patience.tick("the messages");
    }
    let All { filled, all_refused, .. } = all;
    assert!(!targets || (filled > 200 && all_refused > 10), "{filled}, {all_refused}");
}

/// Whoever cancels a receive finds its memory as it was: nothing is put there unless all of the message has come.
#[test]
fn a_target_that_keeps_nothing_is_not_touched_before_all_is_there() {
    const LEN: usize = TENTATIVE_BYTES + 1000;
    struct Still(Vec<u8>, Vec<Region>, usize);
    impl Sink for Still {
        fn receive_target(
            &mut self,
            _: PeerId,
            _: AmTag,
            _: &[u8],
            len: usize,
        ) -> TargetAnswer<'_> {
            assert_eq!(len, LEN);
            self.1 = vec![Region::of_mut(&mut self.0)];
            // SAFETY: the memory lives as long as this sink is borrowed, and nobody else touches it.
            TargetAnswer::Here(unsafe { ReceiveTarget::new(SKIP, &self.1, false) }.unwrap())
        }
        fn target_filled(&mut self, _: PeerId, _: AmTag, _: &[u8], _: usize) {
            self.2 += 1;
        }
        fn fragment(&mut self, _: PeerId, _: AmTag, fragment: &Fragment) -> bool {
            self.0.copy_from_slice(&fragment.to_vec().unwrap()[SKIP..]);
            true
        }
        fn event(&mut self, event: Event) {
            panic!("{event:?}");
        }
        fn room(&self) -> usize {
            1
        }
    }
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let body: Vec<u8> = (0..LEN).map(|at| at.to_le_bytes()[0] | 1).collect();
    let mut stream = Header::Message { tag: AmTag(7), len: LEN }.write().to_vec();
    stream.extend(&body);
    let at = ([127, 0, 0, 1], 1).into();
    for first in [40, 64, 500, LEN / 2, LEN + HEADER_BYTES - 1, LEN + HEADER_BYTES] {
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let (mut here, there) = (Connection::bare(Socket::of(here, at)), Socket::of(there, at));
        let mut inbound = Inbound::new(&config(0, LOOPBACK_V4));
        let mut sink = Still(vec![0; LEN - SKIP], Vec::new(), 0);
        for (piece, whole) in [(&stream[..first], first == stream.len()), (&stream[first..], true)]
        {
            let mut left = piece;
            while !left.is_empty() {
                let written = there.write(&[IoSlice::new(left)]).unwrap();
                left = &left[written..];
            }
            for _ in 0..3 {
                inbound.receive(&mut here, PeerId(0), &mut sink, 64, &mut true, false);
            }
            let right = if whole { &body[SKIP..] } else { &[0; LEN - SKIP] };
            assert!(sink.0 == right, "{first} bytes first");
        }
        assert_eq!(
            sink.2,
            usize::from(first == stream.len()),
            "it is filled if all of it has come"
        );
    }
}
