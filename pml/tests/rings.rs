//! Messages of devices over a transport that has zero-copy sends: several fragments are packed with one launch and
//! leave from there, and are read to where one launch unpacks several. Work of the devices takes its time, the
//! transport refuses now and then, and engines fail.

use crate::common::lab::{Lab, config, layout};
use crate::common::{Buffer, bytes, link, strided};
use gapless_bml::Nearness;
use gapless_btl::loopback::{Config as LinkConfig, Hub, Loopback};
use gapless_btl::{
    AmTag, Btl, Event, PeerId, Queue, Sink, TargetAnswer, Token, ZeroCopyMessage, ZeroCopyResult,
    delegate, hand_out,
};
use gapless_pml::{Config, PmlError, Protocol, Source, TagSel};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A loopback that has zero-copy sends, and asks where long messages go.
struct ZeroCopyLoopback {
    inner: Loopback,
    waiting: VecDeque<Event>,
    random: u64,
    /// Messages that were sent without a copy.
    zero_copy: Arc<AtomicUsize>,
    /// So many are.
    most: usize,
    /// Of a message in part at its place: the offset up to which it is there.
    begun: usize,
}

/// As much of a message as says what it is.
const HEAD_BYTES: usize = 48;
/// Shorter messages have no places.
const LONG_BYTES: usize = 1000;

impl ZeroCopyLoopback {
    /// A number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    /// Reads the next message to its place: all, or a part in this poll. `None`: it has none.
    fn put(&mut self, sink: &mut dyn Sink) -> Option<bool> {
        let Some(Event::Arrived { from, tag, fragment }) = self.waiting.front() else {
            return None;
        };
        let (from, tag) = (*from, *tag);
        if fragment.len() < LONG_BYTES {
            return None;
        }
        let bytes = fragment.to_vec().unwrap();
        let some = usize::try_from(self.below(4 * bytes.len() as u64)).unwrap();
        // Now and then a message does not ask.
        if self.begun == 0 && self.below(20) == 0 {
            return None;
        }
        let mut until = some.clamp(HEAD_BYTES, bytes.len());
        match sink.receive_target(from, tag, &bytes[..HEAD_BYTES], bytes.len()) {
            TargetAnswer::Here(place) => {
                if !place.keeps() {
                    until = bytes.len();
                }
                place.put(self.begun, &bytes[self.begun..until.max(self.begun)]);
            }
            // Taken back, if the receive has failed.
            TargetAnswer::Nowhere => {
                self.begun = 0;
                return None;
            }
            TargetAnswer::Later => return Some(false),
        }
        self.begun = until.max(self.begun);
        if self.begun == bytes.len() {
            self.begun = 0;
            self.waiting.pop_front();
            sink.target_filled(from, tag, &bytes[..HEAD_BYTES], bytes.len());
            return Some(true);
        }
        Some(false)
    }
}

impl Btl for ZeroCopyLoopback {
    delegate!(self => self.inner; limits address connect reserve send attach);

    fn has_zero_copy(&self, _: PeerId) -> bool {
        true
    }

    fn send_zero_copy(
        &mut self,
        to: PeerId,
        tag: AmTag,
        message: &ZeroCopyMessage<'_>,
    ) -> ZeroCopyResult {
        match self.below(10) {
            _ if self.zero_copy.load(Ordering::Relaxed) >= self.most => {
                return ZeroCopyResult::Never;
            }
            0 => return ZeroCopyResult::Full,
            1 => return ZeroCopyResult::Never,
            _ => {}
        }
        let Ok(mut slot) = self.inner.reserve(to, message.len()) else {
            return ZeroCopyResult::Full;
        };
        let mut bytes = vec![0; message.len()];
        message.copy_out(0, &mut bytes);
        slot.write(0, &bytes).unwrap();
        self.inner.send(slot, tag, Token::NONE);
        self.zero_copy.fetch_add(1, Ordering::Relaxed);
        ZeroCopyResult::Sent
    }

    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        let mut events = Queue::with_capacity(64);
        self.inner.poll(None, &mut events);
        self.waiting.extend(events.drain());
        let mut count = 0;
        while only.is_none() {
            match self.put(sink) {
                Some(true) => count += 1,
                Some(false) => return count,
                None => break,
            }
        }
        // One at a time, so that the next may have a place.
        let mut first: VecDeque<Event> = self.waiting.pop_front().into_iter().collect();
        count += hand_out(&mut first, only, sink);
        if let Some(kept) = first.pop_front() {
            self.waiting.push_front(kept);
        }
        count
    }
}

/// What differs between the tests.
struct Setting {
    protocol: Protocol,
    /// Bytes of rings.
    bound: u64,
    /// The transport sends so many messages without a copy, and then none.
    has_zero_copy: usize,
}

const USUAL: Setting =
    Setting { protocol: Protocol::Pipeline, bound: 512 << 20, has_zero_copy: usize::MAX };

/// Two ranks whose devices' work takes so many polls, and how many messages are sent without a copy.
fn lab_of(setting: &Setting, seed: u64, polls: u32) -> (Lab, Arc<AtomicUsize>) {
    let mut config = Config { share_device_buffers: true, ..config(setting.protocol, 3) };
    config.bounds.staging_bytes = setting.bound;
    let all = Arc::new(AtomicUsize::new(0));
    let lab = Lab::over(config, polls, &mut |rank, hub: &Hub| {
        let (zero_copy, most) = (Arc::clone(&all), setting.has_zero_copy);
        let link = LinkConfig { mapped: false, rdma: false, ..link() };
        let random = seed.wrapping_mul(2).wrapping_add(u64::from(rank)).wrapping_add(99);
        let (inner, waiting) = (Loopback::with(hub, link), VecDeque::new());
        Box::new(ZeroCopyLoopback { inner, waiting, random, zero_copy, most, begun: 0 })
    });
    (lab, all)
}

fn lab(seed: u64, polls: u32) -> Lab {
    lab_of(&USUAL, seed, polls).0
}

/// Bytes of messages: too few, as many as rings hold, and more; whole fragments and not.
const SIZES: [u64; 5] = [100_000, 524_288, 1_000_003, 4_194_304, 6_000_001];

#[test]
fn all_bytes_come_whatever_the_transport_refuses() {
    let seed = gapless_testkit::seed(1);
    for (number, size) in (0..).zip(SIZES) {
        for (polls, [from_device, to_device]) in
            [(0, [true, true]), (3, [true, true]), (7, [true, false]), (5, [false, true])]
        {
            let mut lab = lab(seed + number, polls);
            let gaps = polls != 7;
            let from =
                Buffer::source_in(&layout(size, gaps && from_device), 1, 5, lab.home(from_device));
            let to = Buffer::target_in(&layout(size, gaps && to_device), 1, lab.home(to_device));
            let what = format!("{size} bytes, {from_device} to {to_device}, {polls} polls");
            for _ in 0..2 {
                let status = lab.carry(&from, &to, &what);
                assert_eq!((status.bytes, status.protocol), (size, Protocol::Pipeline), "{what}");
            }
            let launches = |rank: u32, lab: &mut Lab| {
                let counts = lab.job.pml(rank).counters().of(Protocol::Pipeline);
                (counts.fragments, counts.packs + counts.unpacks)
            };
            // The device's ends launch less often than there are fragments.
            for (rank, on_device) in [(0, from_device), (1, to_device)] {
                let (fragments, launches) = launches(rank, &mut lab);
                if on_device && size >= 4_000_000 {
                    assert!(2 * launches < fragments, "{what}: {launches} for {fragments}");
                }
            }
        }
    }
}

/// Without rings, messages go through the transport's buffers; once a transport has no more zero-copy sends, the
/// rest goes in slots.
#[test]
fn messages_go_on_where_there_are_no_rings_or_no_zero_copy() {
    let seed = gapless_testkit::seed(1);
    for (setting, has_zero_copy) in [
        (Setting { bound: 0, ..USUAL }, 0),
        (Setting { has_zero_copy: 0, ..USUAL }, 0),
        (Setting { has_zero_copy: 25, ..USUAL }, 25),
    ] {
        let (mut lab, zero_copy) = lab_of(&setting, seed, 3);
        let from = Buffer::source_in(&layout(2_000_000, true), 1, 5, lab.home(true));
        let to = Buffer::target_in(&layout(2_000_000, true), 1, lab.home(true));
        lab.carry(&from, &to, "a message without");
        assert_eq!(zero_copy.load(Ordering::Relaxed), has_zero_copy);
        let counts = lab.job.pml(0).counters().of(Protocol::Pipeline);
        assert_eq!(counts.packs == counts.fragments, setting.bound == 0, "{counts:?}");
    }
}

/// Rings that are registered with the device.
fn rings(lab: &Lab) -> usize {
    lab.device.registered().iter().filter(|(_, len)| *len == 4 << 20).count()
}

/// A device that is attached where other hosts are in the job has its first rings then: a long message registers no more. Else
/// it registers them.
#[test]
fn the_first_rings_are_made_when_a_device_is_attached() {
    let seed = gapless_testkit::seed(1);
    for remote in [true, false] {
        let mut lab = lab(seed, 3);
        let device = lab.attached();
        for rank in 0..2 {
            if remote {
                lab.job.pml(rank).expect_remote_hosts();
            }
            lab.job.pml(rank).attach(&device).unwrap();
        }
        let ready = rings(&lab);
        assert_eq!(ready, if remote { 4 } else { 0 });
        let from = Buffer::source_in(&layout(2_000_000, true), 1, 5, lab.home(true));
        let to = Buffer::target_in(&layout(2_000_000, true), 1, lab.home(true));
        lab.carry(&from, &to, "a long message");
        assert_eq!(rings(&lab), if remote { ready } else { 2 }, "other hosts: {remote}");
    }
}

/// A bound of one ring is no message without: nobody has sent any.
#[test]
fn a_device_that_is_attached_counts_as_no_message() {
    let (mut lab, _) = lab_of(&Setting { bound: 4 << 20, ..USUAL }, gapless_testkit::seed(1), 3);
    let device = lab.attached();
    for rank in 0..2 {
        let pml = lab.job.pml(rank);
        pml.expect_remote_hosts();
        pml.attach(&device).unwrap();
        assert_eq!(pml.counters().without_staging(), 0);
    }
    assert_eq!(rings(&lab), 2);
}

/// Where packets are shorter than fragments, fragments are packets: nothing goes without a ring, and rings serve shorter
/// fragments, too.
#[test]
fn packets_are_as_long_as_a_fragment_at_least() {
    let (mut lab, zero_copy) = lab_of(&USUAL, gapless_testkit::seed(1), 3);
    for rank in 0..2 {
        let tuning = &mut lab.job.pml(rank).config_mut().tuning;
        (tuning.device_packet_bytes, tuning.device_far_packet_bytes) = (8 << 10, 4 << 10);
    }
    let mut registered = 0;
    for size in [6_000_001, 600_000, 4_000_000] {
        let from = Buffer::source_in(&layout(size, true), 1, 5, lab.home(true));
        let to = Buffer::target_in(&layout(size, true), 1, lab.home(true));
        let before = zero_copy.load(Ordering::Relaxed);
        lab.carry(&from, &to, "fragments that are packets");
        assert!(zero_copy.load(Ordering::Relaxed) > before, "{size} bytes: no ring");
        let counters = lab.job.pml(0).counters();
        let counts = counters.of(Protocol::Pipeline);
        assert!(counts.packs <= counts.fragments, "{counts:?}");
        assert_eq!(counters.without_staging(), 0);
        let known = lab.device.registered().len();
        registered = if registered == 0 { known } else { registered };
        assert_eq!(known, registered, "{size} bytes: other rings");
    }
}

/// Of two messages under way one has the only ring.
#[test]
fn a_message_that_finds_no_ring_goes_through_buffers() {
    let seed = gapless_testkit::seed(1);
    let (mut lab, _) = lab_of(&Setting { bound: 4 << 20, ..USUAL }, seed, 3);
    let layout = layout(1_500_000, true);
    for round in 0..2 {
        let from = [1, 2].map(|seed| Buffer::source_in(&layout, 1, seed, lab.home(true)));
        let to = [1, 2].map(|_| Buffer::target_in(&layout, 1, lab.home(true)));
        let recv = to.each_ref().map(|to| lab.job.irecv(1, to, Source::Rank(0), TagSel::Is(0)));
        let send = from.each_ref().map(|from| lab.job.isend(0, from, 1, 0));
        for (id, (to, from)) in recv.into_iter().zip(to.iter().zip(&from)) {
            lab.job.finish(1, id).unwrap();
            to.assert_received(&from.packed(), "one of two");
        }
        for id in send {
            lab.job.finish(0, id).unwrap();
        }
        let counts = lab.job.pml(0).counters().of(Protocol::Pipeline);
        let half = counts.fragments / 2;
        assert!((half..counts.fragments).contains(&counts.packs), "{round}: {counts:?}");
        lab.assert_idle("both");
    }
}

/// Where the network is far from the device, packets are shorter.
#[test]
fn far_from_the_device_packets_are_shorter() {
    let seed = gapless_testkit::seed(1);
    let launches = [Nearness::Switch, Nearness::Far].map(|nearness| {
        let mut lab = lab(seed, 3);
        let device = lab.attached();
        for rank in 0..2 {
            let pml = lab.job.pml(rank);
            pml.config_mut().tuning.device_far_packet_bytes = 128 << 10;
            pml.bml_mut().judge_nearness_by(Box::new(move |_, _| Some(nearness)));
            pml.attach(&device).unwrap();
        }
        let from = Buffer::source_in(&layout(4_000_000, true), 1, 5, lab.home(true));
        let to = Buffer::target_in(&layout(4_000_000, true), 1, lab.home(true));
        lab.carry(&from, &to, "a long message");
        lab.job.pml(0).counters().of(Protocol::Pipeline).packs
    });
    assert!(launches[1] > 3 * launches[0], "{launches:?}");
}

/// With a pool of two packets, one of many messages has them, in the one ring that there is; all arrive.
#[test]
fn none_of_many_messages_starves_in_a_pool_of_two_packets() {
    const MESSAGES: usize = 64;
    let seed = gapless_testkit::seed(1);
    let packet = u64::from(Config::default().tuning.device_packet_bytes);
    for (bound, has_all) in [(2 * packet, false), (512 << 20, true)] {
        let (mut lab, _) = lab_of(&Setting { bound, ..USUAL }, seed, 2);
        let layout = layout(600_000, true);
        let from: Vec<Buffer> = (0..MESSAGES as u64)
            .map(|number| Buffer::source_in(&layout, 1, seed + number, lab.home(true)))
            .collect();
        let to: Vec<Buffer> =
            from.iter().map(|_| Buffer::target_in(&layout, 1, lab.home(true))).collect();
        let recv: Vec<_> =
            to.iter().map(|to| lab.job.irecv(1, to, Source::Rank(0), TagSel::Is(0))).collect();
        let send: Vec<_> = from.iter().map(|from| lab.job.isend(0, from, 1, 0)).collect();
        for (id, (to, from)) in recv.into_iter().zip(to.iter().zip(&from)) {
            lab.job.finish(1, id).unwrap();
            to.assert_received(&from.packed(), "one of many");
        }
        for id in send {
            lab.job.finish(0, id).unwrap();
        }
        for rank in 0..2 {
            let counters = lab.job.pml(rank).counters();
            let counts = counters.of(Protocol::Pipeline);
            assert_eq!(counts.messages, MESSAGES as u64, "{counts:?}");
            assert_eq!(counters.without_staging() == 0, has_all, "rank {rank}, {bound} bytes");
            // Somebody has the ring: several fragments share a launch.
            let launches = counts.packs + counts.unpacks;
            assert!(launches < counts.fragments, "rank {rank}, {bound} bytes: {counts:?}");
        }
        lab.assert_idle("many messages");
    }
}

/// Longer eager messages leave from where they lie, if their runs are long.
#[test]
fn eager_messages_are_lent() {
    let seed = gapless_testkit::seed(1);
    let (mut lab, zero_copy) = lab_of(&Setting { protocol: Protocol::Eager, ..USUAL }, seed, 0);
    for (layout, has_zero_copy) in [
        (bytes(5000), true),
        (strided(2, 2500, 3000), true),
        (strided(500, 10, 20), false),
        (bytes(2000), false),
    ] {
        let before = zero_copy.load(Ordering::Relaxed);
        for number in 0..30 {
            let (from, to) = (Buffer::source(&layout, 1, number), Buffer::target(&layout, 1));
            let status = lab.carry(&from, &to, "an eager message");
            assert_eq!(status.protocol, Protocol::Eager);
        }
        let zero_copy = zero_copy.load(Ordering::Relaxed) - before;
        assert_eq!(zero_copy > 10, has_zero_copy, "{zero_copy} of 30");
    }
}

#[test]
fn a_failing_engine_ends_the_message_at_both_ends() {
    let seed = gapless_testkit::seed(1);
    for rank in [0, 1] {
        for pieces in 0..6 {
            let mut lab = lab(seed + 7, 3);
            let from = Buffer::source_in(&layout(5_000_000, true), 1, 5, lab.home(true));
            let to = Buffer::target_in(&layout(5_000_000, true), 1, lab.home(true));
            lab.break_after(rank, pieces);
            let send = lab.job.isend(0, &from, 1, 0);
            let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Is(0));
            let (received, sent) = (lab.job.finish(1, recv), lab.job.finish(0, send));
            match rank {
                0 => {
                    assert!(matches!(received, Err(PmlError::SenderFailed { .. })), "{received:?}");
                    assert!(matches!(sent, Err(PmlError::Engine(_))), "{sent:?}");
                }
                _ => assert!(matches!(received, Err(PmlError::Engine(_))), "{received:?}"),
            }
            lab.assert_idle("a failed message");
        }
    }
}

#[test]
fn the_survivor_of_a_death_ends_after_its_engine() {
    let seed = gapless_testkit::seed(1);
    for dead in [0, 1] {
        let alive = 1 - dead;
        let mut lost = 0;
        for steps in (0..400).step_by(19) {
            let mut lab = lab(seed + steps, 9);
            let from = Buffer::source_in(&layout(2_000_000, true), 1, 1, lab.home(true));
            let to = Buffer::target_in(&layout(2_000_000, true), 1, lab.home(true));
            let ids = [
                lab.job.isend(0, &from, 1, 0),
                lab.job.irecv(1, &to, Source::Rank(0), TagSel::Any),
            ];
            for step in 0..steps {
                lab.job.pml(u32::try_from(step % 2).unwrap()).progress();
            }
            lab.job.kill(dead);
            match lab.job.finish(alive, ids[alive as usize]) {
                Ok(_) if alive == 1 => to.assert_received(&from.packed(), "it had come"),
                Ok(_) => {}
                Err(PmlError::PeerLost { rank, .. }) => {
                    assert_eq!(rank, dead);
                    lost += 1;
                }
                Err(error) => panic!("{error}"),
            }
            let working = lab.engines[alive as usize].under_way.load(Ordering::Relaxed);
            assert_eq!(working, 0, "an engine works on the buffer of a request that has ended");
        }
        assert!(lost > 2, "{dead}: lost {lost} times");
    }
}
