//! A rank gives up, or waits no more for one that is lost to it and lives: what that one reads of it may be anything,
//! and it must not end well.
use super::*;
use crate::late::later;
use gapless_bml::Rank;
use gapless_btl::LinkError;
use gapless_dtype::{Datatype, Primitive};
use gapless_engine::testkit::{Work, Wrapper};
use gapless_engine::{EngineError, Typed};
use gapless_mem::{Completion, Region, Space};

/// It unpacks when it has been asked a few times, and packs at once.
struct Slow;

// SAFETY: the numbers are those of the contract; the work is that of `HostEngine`, which keeps it.
// 1. and 3. As `HostEngine`, but that what does not fit is found later, and fails a test.
// 2. The completion says so, see `later`.
// 4. Nothing is started before the completion is asked.
unsafe impl Wrapper for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn serves(&self, space: Space) -> bool {
        Engine::serves(&HostEngine, space)
    }

    unsafe fn work(&self, work: Work, after: &[Completion]) -> Result<Completion, EngineError> {
        let delay = if matches!(work, Work::Unpack(..)) { 5 } else { 0 };
        Ok(later(delay, after, move || {
            // SAFETY: the caller grants the memory until the completion.
            let done = unsafe { work.run(&HostEngine, &[]) };
            done.unwrap();
        }))
    }
}

/// Numbers that are sent to one rank.
const COUNT: u64 = 30_000;

/// What becomes of the owner of memory that is read.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Owner {
    GivesUp,
    /// And fails before.
    Fails,
    /// It loses the reader, which lives, and ends well.
    LosesReader,
}

/// Rank 0 takes rank 1 for lost, which does not know of that.
fn cut(job: &mut Job) {
    let what = "a test".to_owned();
    job.pml(0).bml_mut().give_up(Rank(1), LinkError::Corrupt { what });
    job.pml(0).progress();
}

fn go_on(segment: &mut SharedSegment, pml: &mut Pml) -> Result<(), CollError> {
    for _ in 0..100 {
        if let Poll::Ready(result) = segment.advance(pml, &Slow, &HostEngine) {
            return result;
        }
    }
    panic!("it does not end");
}

fn reader_of(owner: Owner) -> Result<(), CollError> {
    let (mut job, mut segments) = job(3);
    let bytes = 4 * COUNT;
    let sent = job.pml(0).bml_mut().allocate(bytes).expect("loopbacks allocate").unwrap();
    let element = Datatype::resized(0, 8, &Primitive::Int32.into()).unwrap().commit().unwrap();
    let mut room = vec![0u8; usize::try_from(8 * COUNT).unwrap()];
    let mut word = [0u8; 4];
    let send = BufferBlocks::Whole(Typed::contiguous(sent.region()));
    let recv = |memory: &mut [u8]| BufferBlocks::Whole(Typed::contiguous(Region::of_mut(memory)));
    // Rank 0 has much for rank 1, and awaits a number of rank 2.
    let awaited = if owner == Owner::LosesReader { 0 } else { 4 };
    let rows = CallBuffers { send, recv: recv(&mut word[..awaited]) };
    let recv = &[0, 0, awaited as u64];
    let out = Call::Alltoallv { send: &[0, bytes, 0], recv, in_place: false };
    // SAFETY: the memory outlives the collective, which has ended or is given up at the end.
    unsafe { segments[0].begin(1, &out, rows, None) }.unwrap();
    let region = Region::of_mut(&mut room);
    let gaps = BufferBlocks::Whole(Typed::new(region, 0, &element, COUNT).unwrap());
    let rows = CallBuffers { send: BufferBlocks::None, recv: gaps };
    let come = Call::Alltoallv { send: &[0; 3], recv: &[bytes, 0, 0], in_place: false };
    // SAFETY: as above.
    unsafe { segments[1].begin(1, &come, rows, None) }.unwrap();
    assert_eq!(advance(&mut segments[0], job.pml(0)), Poll::Pending);
    assert_eq!(segments[1].advance(job.pml(1), &Slow, &HostEngine), Poll::Pending);
    assert!(segments[1].is_busy(), "it reads");
    if owner == Owner::Fails {
        job.kill(2);
        for _ in 0..100 {
            assert_eq!(advance(&mut segments[0], job.pml(0)), Poll::Pending, "it is read");
            job.progress();
        }
    }
    if owner == Owner::LosesReader {
        assert_eq!(advance(&mut segments[0], job.pml(0)), Poll::Pending, "it is read");
        cut(&mut job);
        assert_eq!(advance(&mut segments[0], job.pml(0)), Poll::Ready(Ok(())));
    } else {
        segments[0].give_up();
    }
    go_on(&mut segments[1], job.pml(1))
}

#[test]
fn what_was_read_of_a_rank_that_is_past_it_is_not_used() {
    for owner in [Owner::GivesUp, Owner::Fails, Owner::LosesReader] {
        assert_eq!(reader_of(owner), Err(CollError::GaveUp { rank: 0 }), "{owner:?}");
    }
}

/// The same in slots, which rank 0 fills again, and in mailboxes.
#[test]
fn what_is_overwritten_for_one_that_is_lost_is_not_used() {
    let mut random = Random(76);
    for (len, count) in [(1 << 20, 1), (8, 5), (2000, 3)] {
        let call = Call::Bcast { root: 0, len };
        for attempted in [false, true] {
            let (mut job, mut segments) = job(2);
            let mut all: Vec<Collective> = (0..count)
                .map(|_| collective(&[call; 2], Arithmetic::Sum, &[Lie::Plain], &mut random))
                .collect();
            // Rank 1 is in the midst of a long one, and late for short ones.
            if count == 1 {
                all[0].begin((1, &mut segments[1]), 0, &call).unwrap();
                assert_eq!(advance(&mut segments[1], job.pml(1)), Poll::Pending);
            }
            for (number, one) in all.iter_mut().enumerate() {
                one.begin((0, &mut segments[0]), number, &call).unwrap();
                let ended = advance(&mut segments[0], job.pml(0));
                if number + 1 == count {
                    assert_eq!(ended, Poll::Pending, "rank 1 is behind");
                    if count == 1 {
                        let begun = segments[1].advance(job.pml(1), &Slow, &HostEngine);
                        assert_eq!(begun, Poll::Pending, "it reads");
                    }
                    cut(&mut job);
                    assert_eq!(advance(&mut segments[0], job.pml(0)), Poll::Ready(Ok(())));
                }
            }
            if count > 1 {
                let at_once = attempted
                    && all[1].attempt((1, &mut segments[1]), 1, (&call, job.pml(1)), 1).unwrap();
                assert!(!at_once, "it was overwritten");
                all[1].begin((1, &mut segments[1]), 1, &call).unwrap();
            }
            let result = go_on(&mut segments[1], job.pml(1));
            assert_eq!(result, Err(CollError::GaveUp { rank: 0 }), "{len} bytes");
        }
    }
}
