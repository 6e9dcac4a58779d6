//! Engines and reducers that work later: nothing is used before it is there.
use super::*;
use crate::job::Job;
use gapless_coll::choose::candidates;
use gapless_dtype::Layout;
use gapless_engine::testkit::{Work, Wrapper};
use gapless_engine::{Engine, EngineError, HostEngine, Op, Reducer, Typed};
use gapless_mem::testkit::pretended;
use gapless_mem::{Completion, Space};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

/// Work that is done when it has been asked `delay` times in vain.
pub(super) fn later(
    delay: u32,
    after: &[Completion],
    work: impl FnOnce() + Send + 'static,
) -> Completion {
    let (left, work) = (AtomicU32::new(delay), Mutex::new(Some(work)));
    let after = after.to_vec();
    pretended(move || {
        for before in &after {
            if !before.poll()? {
                return Ok(false);
            }
        }
        if left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_ok()
        {
            return Ok(false);
        }
        if let Some(work) = work.lock().unwrap().take() {
            work();
        }
        Ok(true)
    })
}

/// What uses results of other work is quicker than that work: it would come too early if it did not wait.
pub(super) struct Late;

// SAFETY: the numbers are those of the contract; the work is that of `HostEngine`, which keeps it.
// 1. and 3. As `HostEngine`, but that what does not fit is found later, and fails a test.
// 2. The completion says so, see `later`.
// 4. Nothing is started before the completion is asked.
unsafe impl Wrapper for Late {
    fn name(&self) -> &'static str {
        "late"
    }

    fn serves(&self, space: Space) -> bool {
        Engine::serves(&HostEngine, space)
    }

    unsafe fn work(&self, work: Work, after: &[Completion]) -> Result<Completion, EngineError> {
        let delay = if matches!(work, Work::Unpack(..)) { 0 } else { 3 };
        Ok(later(delay, after, move || {
            // SAFETY: the caller grants the memory until the completion.
            let done = unsafe { work.run(&HostEngine, &[]) };
            done.unwrap();
        }))
    }
}

// SAFETY: as for `Engine`.
unsafe impl Reducer for Late {
    fn supports(&self, op: &Op, layout: &Layout) -> bool {
        HostEngine.supports(op, layout)
    }

    fn serves(&self, space: Space) -> bool {
        Reducer::serves(&HostEngine, space)
    }

    unsafe fn reduce_into(
        &self,
        op: &Op,
        srcs: &[Typed],
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let (op, srcs, dst) = (op.clone(), srcs.to_vec(), dst.clone());
        Ok(later(1, after, move || {
            // SAFETY: as above.
            let done = unsafe { HostEngine.reduce_into(&op, &srcs, &dst, range, &[]) };
            done.unwrap();
        }))
    }
}

#[test]
fn engines_that_work_later_are_waited_for() {
    let mut random = Random(30);
    let n = 5;
    let mut job = Job::new(n);
    let worlds = job.worlds();
    let sequencers = Job::sequencers(&worlds);
    let of = sum(Arithmetic::Affine);
    for call in [
        Call::Allreduce { len: 8 * 35, of, in_place: false },
        Call::Scan { len: 8 * 35, of, in_place: true },
        Call::Alltoall { len: 40, in_place: true },
        Call::Bcast { root: 1, len: 600 },
    ] {
        let calls = vec![call; n as usize];
        for algorithm in candidates(&call, &Locality::flat(n as usize)) {
            for lies in [&[Lie::Gaps][..], &[Lie::Apart, Lie::Gaps, Lie::Plain]] {
                let how = (Arithmetic::Affine, lies);
                let algorithm = algorithm.segmented(24);
                let mut collective = Collective::new(&calls, &algorithm, how, &mut random);
                let mut open = collective.start(&sequencers);
                let mut was_busy = false;
                for turn in 0.. {
                    assert!(turn < 100_000, "{} does not end", collective.what);
                    open.retain_mut(|(rank, executor)| {
                        let result = executor.advance(job.pml(*rank), &Late, &Late);
                        was_busy |= executor.is_busy();
                        match result {
                            Poll::Pending => true,
                            Poll::Ready(result) => {
                                assert_eq!(result, Ok(()), "{}", collective.what);
                                false
                            }
                        }
                    });
                    if open.is_empty() {
                        break;
                    }
                    job.progress();
                }
                assert!(was_busy || call.reduction().is_none(), "{}", collective.what);
                collective.check();
            }
        }
    }
}

/// Who drops a collective while engines work waits for them.
#[test]
fn dropping_waits_for_engines() {
    let mut random = Random(31);
    let mut job = Job::new(1);
    let worlds = job.worlds();
    let call = [Call::Allgather { len: 40, in_place: false }];
    for algorithm in candidates(&call[0], &Locality::flat(1)) {
        let how = (Arithmetic::Sum, &[Lie::Gaps][..]);
        let mut collective = Collective::new(&call, &algorithm, how, &mut random);
        let mut executors = collective.start(&Job::sequencers(&worlds));
        assert_eq!(executors[0].1.advance(job.pml(0), &Late, &Late), Poll::Pending);
        assert!(executors[0].1.is_busy());
        drop(executors);
        collective.check();
    }
}
