//! Engines that are slow, or uneven: no request ends, well or in error, while an engine still works on its
//! buffer, and every request ends. Peers die meanwhile, sends are cancelled, peers answer too early.

use crate::common::forged::FIN;
use crate::common::lab::{Lab, config, layout};
use crate::common::rogue::{GET, Pair, free, open, serial_of, short};
use crate::common::{Buffer, Job, bytes, link};
use gapless_btl::Btl;
use gapless_btl::loopback::{Hub, Loopback};
use gapless_engine::testkit::{FakeEngine, Work, Wrapper};
use gapless_engine::{EngineError, HostEngine};
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Completion, Device, Space};
use gapless_pml::{Config, PmlError, Protocol, RequestId, SendMode, Source, TagSel, Tuning};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// Polls that a slow engine's work takes.
const SLOW: u32 = 40;

/// Short fragments, one for each turn, so that there are many moments to die at.
fn slow(protocol: Protocol) -> Config {
    let mut config = Config { share_device_buffers: true, ..config(protocol, 3) };
    config.tuning = config.tuning.in_fragments(1000);
    config.tuning.depth = 4;
    config.bounds.fragments_per_progress = 1;
    config
}

/// Two ranks whose engines take so many polls each.
fn lab(config: Config, polls: [u32; 2]) -> Lab {
    // Through slots, not through staging memory.
    let attaches = !matches!(config.force, Some(Protocol::Eager | Protocol::Pipeline));
    let device = Arc::new(FakeDevice::new(3));
    let engine = |polls| Arc::new(FakeEngine { attaches, ..FakeEngine::new(&device, polls) });
    let engines = polls.map(engine);
    let mut rail = |_, hub: &Hub| Box::new(Loopback::with(hub, link())) as Box<dyn Btl>;
    let mut job = Job::with_engines(2, config, &mut rail, &[Arc::new(HostEngine)]);
    for (rank, engine) in (0..).zip(&engines) {
        job.pml(rank).add_engine(Arc::clone(engine) as _);
    }
    Lab { job, device, engines }
}

/// Kills one end after each number of steps; only the other one's engine is slow. Gives how often that one was
/// at work then, and how often the survivor was told of the loss.
fn deaths(protocol: Protocol, size: u64, dead: u32, steps: Range<u32>) -> (u32, u32) {
    let alive = 1 - dead;
    let (mut at_work, mut lost) = (0, 0);
    for steps in steps {
        let what = format!("{protocol}, {size} bytes: {dead} dies after {steps} steps");
        let mut polls = [0; 2];
        polls[alive as usize] = SLOW;
        let mut lab = lab(slow(protocol), polls);
        let from = Buffer::source_in(&layout(size, true), 1, 1, lab.home(true));
        let to = Buffer::target_in(&layout(size, true), 1, lab.home(true));
        let ids =
            [lab.job.isend(0, &from, 1, 0), lab.job.irecv(1, &to, Source::Rank(0), TagSel::Any)];
        for step in 0..steps {
            lab.job.pml(step % 2).progress();
        }
        let working = Arc::clone(&lab.engines[alive as usize].under_way);
        lab.job.kill(dead);
        at_work += u32::from(working.load(Ordering::Relaxed) > 0);
        let outcome = lab.job.finish(alive, ids[alive as usize]);
        assert_eq!(working.load(Ordering::Relaxed), 0, "{what}: {outcome:?}");
        match outcome {
            Ok(_) if alive == 1 => to.assert_received(&from.packed(), &what),
            Ok(_) => {}
            Err(PmlError::PeerLost { rank, .. }) => {
                assert_eq!(rank, dead, "{what}");
                lost += 1;
            }
            Err(error) => panic!("{what}: {error}"),
        }
        lab.engines[dead as usize].under_way.store(0, Ordering::Relaxed);
        lab.assert_idle(&what);
    }
    (at_work, lost)
}

#[test]
fn what_a_dead_peer_leaves_ends_after_the_engine() {
    let protocols = [(Protocol::Eager, 500), (Protocol::Pipeline, 12_000)];
    let others = [Protocol::Mapped, Protocol::MappedPut].into_iter().chain(Protocol::STAGED);
    for (protocol, size) in protocols.into_iter().chain(others.map(|protocol| (protocol, 8000))) {
        for dead in [0, 1] {
            let (at_work, lost) = deaths(protocol, size, dead, 0..120);
            // Here the survivor's engine has nothing to do: the other one's moves everything.
            let idle = matches!((protocol, dead), (Protocol::Mapped, 1) | (Protocol::MappedPut, 0));
            assert_eq!(at_work == 0, idle, "{protocol}, {dead}: at work {at_work} times");
            // A receiver that has begun to move a message needs its sender no more.
            assert!(lost > 0 || (protocol, dead) == (Protocol::Mapped, 0), "{protocol}, {dead}");
        }
    }
}

/// What becomes of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// It has ended when the engine returns.
    Ready,
    /// It ends after so many polls.
    After(u32),
    /// It fails then.
    Fails(u32),
}

use Pace::{After, Fails, Ready};

/// An engine whose pieces of work take as long as a list says, over and over.
struct Uneven {
    device: Arc<FakeDevice>,
    attaches: bool,
    paces: Vec<Pace>,
    begun: AtomicUsize,
    under_way: Arc<AtomicI64>,
}

impl Uneven {
    fn new(device: &Arc<FakeDevice>, attaches: bool, paces: &[Pace]) -> Uneven {
        let (device, paces) = (Arc::clone(device), paces.to_vec());
        Uneven { device, attaches, paces, begun: AtomicUsize::new(0), under_way: Arc::default() }
    }

    fn at_work(&self) -> i64 {
        self.under_way.load(Ordering::Relaxed)
    }
}

// SAFETY: every piece is the work of a `FakeEngine` on the same device, which keeps the contract; its completion is
// handed on, or waited for.
unsafe impl Wrapper for Uneven {
    fn name(&self) -> &'static str {
        "uneven"
    }

    fn serves(&self, space: Space) -> bool {
        space == self.device.space()
    }

    fn device(&self, _: Space) -> Option<Arc<dyn Device>> {
        self.attaches.then(|| Arc::clone(&self.device) as _)
    }

    unsafe fn work(&self, work: Work, after: &[Completion]) -> Result<Completion, EngineError> {
        let pace = self.paces[self.begun.fetch_add(1, Ordering::Relaxed) % self.paces.len()];
        let polls = match pace {
            Ready => 0,
            After(polls) | Fails(polls) => polls,
        };
        // As quick as it is due.
        let under_way = Arc::clone(&self.under_way);
        let engine = FakeEngine { under_way, ..FakeEngine::new(&self.device, polls) };
        engine.broken.store(matches!(pace, Fails(_)), Ordering::Relaxed);
        // SAFETY: the caller's guarantees are handed on.
        let completion = unsafe { work.run(&engine, after) }?;
        if pace == Ready {
            completion.wait()?;
            return Ok(Completion::Ready);
        }
        Ok(completion)
    }
}

/// Moves one message of the pipeline between engines of these paces, in so many fragments.
fn stream(paces: [&[Pace]; 2], fragments: u64) {
    let what = format!("{fragments} fragments, {paces:?}");
    let device = Arc::new(FakeDevice::new(3));
    let engines = paces.map(|paces| Arc::new(Uneven::new(&device, false, paces)));
    let tuning = Tuning { depth: 64, ..Tuning::default().in_fragments(1000) };
    let config = Config { force: Some(Protocol::Pipeline), tuning, ..Config::default() };
    let mut rail = |_, hub: &Hub| Box::new(Loopback::with(hub, link())) as Box<dyn Btl>;
    let mut job = Job::with_engines(2, config, &mut rail, &[Arc::new(HostEngine)]);
    for (rank, engine) in (0..).zip(&engines) {
        job.pml(rank).add_engine(Arc::clone(engine) as _);
    }
    let home = || crate::common::Home::Fake(Arc::clone(&device));
    let shape = layout(fragments * 1000 - 7, true);
    let from = Buffer::source_in(&shape, 1, fragments, home());
    let to = Buffer::target_in(&shape, 1, home());
    let ids = [job.isend(0, &from, 1, 0), job.irecv(1, &to, Source::Rank(0), TagSel::Any)];
    let mut left: Vec<u32> = vec![0, 1];
    job.until(&what, |job| {
        left.retain(|&rank| match job.pml(rank).test(ids[rank as usize]) {
            Ok(None) => true,
            Ok(Some(status)) => {
                assert_eq!(engines[rank as usize].at_work(), 0, "{what}: rank {rank} has ended");
                assert_eq!(status.protocol, Protocol::Pipeline, "{what}");
                false
            }
            Err(error) => panic!("{what}: {error}"),
        });
        left.is_empty().then_some(())
    });
    to.assert_received(&from.packed(), &what);
    for (rank, engine) in (0..).zip(&engines) {
        assert_eq!(engine.begun.load(Ordering::Relaxed) as u64, fragments, "{what}");
        assert!(!job.pml(rank).is_busy() && !job.pml(rank).has_requests(), "{what}");
    }
}

#[test]
fn the_last_fragment_to_end_ends_a_message_and_not_the_last_one_begun() {
    let even = [After(3)];
    let uneven: [&[Pace]; 6] = [
        &[After(50), Ready],
        &[Ready, After(50)],
        &[After(50), Ready, Ready],
        &[After(50), After(2)],
        &[After(30), Ready, After(9), After(1), Ready],
        &[After(90), Ready, Ready, Ready, Ready, Ready, Ready, Ready, Ready],
    ];
    for paces in uneven {
        for fragments in 1..=9 {
            stream([paces, &even], fragments);
            stream([&[Ready], paces], fragments);
            stream([paces, paces], fragments);
        }
    }
}

fn start(lab: &mut Lab, buffer: &Buffer, mode: SendMode) -> RequestId {
    let world = lab.job.pml(0).world();
    // SAFETY: tests keep the buffer until the request has ended.
    unsafe { lab.job.pml(0).isend_mode(&world, &buffer.typed(), 1, 0, mode) }.unwrap()
}

#[test]
fn a_cancelled_send_ends_after_the_engine_that_packs_it() {
    for mode in [SendMode::Standard, SendMode::Synchronous] {
        for queued in [false, true] {
            let (mut packing, mut sent) = (0, 0);
            for steps in 0..2 * SLOW + 20 {
                let what = format!("{mode:?}, queued {queued}, cancelled after {steps} steps");
                // Eager messages: nothing is offered where buffers are not shared.
                let eager =
                    Config { force: None, share_device_buffers: false, ..slow(Protocol::Eager) };
                let mut lab = lab(eager, [SLOW, 0]);
                let from = Buffer::source_in(&bytes(300), 1, 1, lab.home(true));
                let before = queued.then(|| start(&mut lab, &from, SendMode::Standard));
                let send = start(&mut lab, &from, mode);
                for _ in 0..steps {
                    lab.job.pml(0).progress();
                }
                let working = Arc::clone(&lab.engines[0].under_way);
                let at_work = working.load(Ordering::Relaxed);
                lab.job.pml(0).cancel_send(send).unwrap();
                // Whoever else is at work, is at work on the one before.
                let mut others = 0;
                let ended = before.map(|before| lab.job.pml(0).test(before).unwrap());
                if ended == Some(None) {
                    others = 1;
                }
                let early = lab.job.pml(0).test(send);
                if !matches!(early, Ok(None)) {
                    assert!(working.load(Ordering::Relaxed) <= others, "{what}: {early:?}");
                }
                if let (Some(before), Some(None)) = (before, ended) {
                    assert_eq!(lab.job.finish(0, before).unwrap().bytes, 300, "{what}");
                }
                let outcome = match early {
                    Ok(None) => lab.job.finish(0, send),
                    Ok(Some(status)) => Ok(status),
                    Err(failure) => Err(failure.error),
                };
                assert_eq!(working.load(Ordering::Relaxed), 0, "{what}: {outcome:?}");
                assert_eq!(outcome, Err(PmlError::Cancelled), "{what}");
                packing += u32::from(at_work > others);
                sent += u32::from(at_work == 0);
                // Only the one before is there, and later ones go as ever.
                lab.job.settle();
                let next = Buffer::source_in(&bytes(300), 1, 2, lab.home(true));
                let after = start(&mut lab, &next, SendMode::Standard);
                for expected in before.map(|_| &from).into_iter().chain([&next]) {
                    let to = Buffer::target(&bytes(300), 1);
                    let recv = lab.job.irecv(1, &to, Source::Any, TagSel::Any);
                    lab.job.finish(1, recv).unwrap();
                    to.assert_received(&expected.packed(), &what);
                }
                lab.job.finish(0, after).unwrap();
                lab.assert_idle(&what);
            }
            assert!(packing > 10 && sent > 10, "{mode:?}: {packing} while packed, {sent} later");
        }
    }
}

#[test]
fn a_receiver_that_says_the_end_in_mid_message_is_lost_and_the_engine_ends_first() {
    // The first fragment is laid, the second fails while the third is in work: the send has failed, but not ended.
    let paces = [After(0), Fails(2), After(400)];
    for verdict in [0, GET, 16, 17, 18] {
        let what = format!("verdict {verdict}");
        let engine = std::cell::OnceCell::new();
        let mut pair = Pair::with(Protocol::StagedGet, |device| {
            let uneven = Arc::new(Uneven::new(device, true, &paces));
            assert!(engine.set(Arc::clone(&uneven)).is_ok(), "one engine");
            uneven
        });
        let engine = engine.get().unwrap();
        let size = 3 * u64::from(crate::common::lab::FRAGMENT);
        let from = Buffer::source_in(&layout(size, true), 1, 1, pair.home());
        let send = pair.send(&from);
        pair.turn();
        let serial = serial_of(&pair.heard(2));
        pair.inject(&open(GET, serial, size, 3, None));
        pair.heard(11);
        pair.inject(&free(serial, 3));
        assert_eq!((engine.begun.load(Ordering::Relaxed), engine.at_work()), (3, 1), "{what}");
        pair.inject(&short(FIN, verdict, serial));
        assert!(pair.inbox.1, "{what}: the receiver was not told");
        let mut outcome = pair.pml.test(send);
        assert_eq!((&outcome, engine.at_work()), (&Ok(None), 1), "{what}");
        assert!(pair.pml.staging_bytes().1 > 0, "{what}: its ring is given away");
        for _ in 0..100 {
            pair.turn();
            if outcome == Ok(None) {
                outcome = pair.pml.test(send);
            }
        }
        let error = outcome.as_ref().err().map(|failure| &failure.error);
        assert!(matches!(error, Some(PmlError::Engine(_))), "{what}: {outcome:?}");
        assert_eq!((engine.at_work(), pair.pml.staging_bytes().1), (0, 0), "{what}");
    }
}
