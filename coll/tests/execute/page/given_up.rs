//! A rank gives up, and its memory becomes something else, while another reads it there: that one must not end well.
use super::*;
use crate::late::later;
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

/// Whether the owner of the memory fails before it gives up.
fn reader_of_one_who_gives_up(fails: bool) -> Result<(), CollError> {
    let (mut job, mut pages) = job(3);
    let bytes = 4 * COUNT;
    let sent = job.pml(0).bml_mut().allocate(bytes).expect("loopbacks allocate").unwrap();
    let element = Datatype::resized(0, 8, &Primitive::Int32.into()).unwrap().commit().unwrap();
    let mut room = vec![0u8; usize::try_from(8 * COUNT).unwrap()];
    let mut word = [0u8; 4];
    let send = Blocks::Whole(Typed::contiguous(sent.region()));
    let recv = |memory: &mut [u8]| Blocks::Whole(Typed::contiguous(Region::of_mut(memory)));
    // Rank 0 has much for rank 1, and awaits a number of rank 2.
    let rows = Rows { send, recv: recv(&mut word) };
    let out = Call::Alltoallv { send: &[0, bytes, 0], recv: &[0, 0, 4], in_place: false };
    // SAFETY: the memory outlives the collective, which has ended or is given up at the end.
    unsafe { pages[0].begin(1, &out, rows, None) }.unwrap();
    let region = Region::of_mut(&mut room);
    let gaps = Blocks::Whole(Typed::new(region, 0, &element, COUNT).unwrap());
    let rows = Rows { send: Blocks::None, recv: gaps };
    let come = Call::Alltoallv { send: &[0; 3], recv: &[bytes, 0, 0], in_place: false };
    // SAFETY: as above.
    unsafe { pages[1].begin(1, &come, rows, None) }.unwrap();
    assert_eq!(advance(&mut pages[0], job.pml(0)), Poll::Pending);
    assert_eq!(pages[1].advance(job.pml(1), &Slow, &HostEngine), Poll::Pending);
    assert!(pages[1].is_busy(), "it reads");
    if fails {
        job.kill(2);
        for _ in 0..100 {
            assert_eq!(advance(&mut pages[0], job.pml(0)), Poll::Pending, "it is read");
            job.progress();
        }
    }
    pages[0].give_up();
    for _ in 0..100 {
        if let Poll::Ready(result) = pages[1].advance(job.pml(1), &Slow, &HostEngine) {
            return result;
        }
    }
    panic!("the reader does not end");
}

#[test]
fn what_was_read_of_a_rank_that_gives_up_is_not_used() {
    for fails in [false, true] {
        let result = reader_of_one_who_gives_up(fails);
        assert_eq!(result, Err(CollError::GaveUp { rank: 0 }), "fails first: {fails}");
    }
}
