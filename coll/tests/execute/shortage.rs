//! Ranks that find no memory for what a collective needs beside its buffers: the others learn it, and nobody waits.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::task::Poll;

use super::*;
use crate::job::Job;
use gapless_coll::CollError;
use gapless_coll::choose::{Table, choose};
use gapless_coll::sm::{Opening, SharedSegment};
use gapless_engine::HostEngine;

/// Bytes to which memory of the executor's own is aligned; of what tests allocate, nothing else is.
const ALIGN: usize = 64;

thread_local! {
    /// Whether this thread is to find no memory when it asks the next time but so many.
    static LACK: Cell<Option<u64>> = const { Cell::new(None) };
}

struct Scarce;

// SAFETY: it passes on to the system's allocator, or says that there is no memory.
unsafe impl GlobalAlloc for Scarce {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise; all memory is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() == ALIGN
            && let Some(left) = LACK.get()
        {
            LACK.set(left.checked_sub(1));
            if left == 0 {
                return std::ptr::null_mut();
            }
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as for `dealloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static SCARCE: Scarce = Scarce;

/// One allocation that one rank will not get.
struct Lack {
    rank: usize,
    left: Cell<Option<u64>>,
}

impl Lack {
    fn new(rank: usize, number: u64) -> Lack {
        Lack { rank, left: Cell::new(Some(number)) }
    }

    /// Does something of a rank's.
    fn during<T>(&self, rank: usize, act: impl FnOnce() -> T) -> T {
        if rank != self.rank {
            return act();
        }
        LACK.set(self.left.get());
        let result = act();
        self.left.set(LACK.replace(None));
        result
    }

    /// Whether the rank asked so often.
    fn was_felt(&self) -> bool {
        self.left.get().is_none()
    }
}

/// Whatever a rank finds no memory for while a shared segment is made: all have one in the end, or none has; none waits
/// for ever, and what they do next is not disturbed.
#[test]
fn all_have_a_segment_or_none_whoever_lacks_memory() {
    const RANKS: u32 = 3;
    let mut job = Job::new(RANKS);
    let sequencers = Job::sequencers(&job.worlds());
    let mut random = Random(71);
    for rank in 0..RANKS as usize {
        for number in 0.. {
            let lack = Lack::new(rank, number);
            let segments = opened(&mut job, &sequencers, &lack);
            let made = segments.iter().flatten().count();
            assert!([0, segments.len()].contains(&made), "rank {rank}, {number}: {made} segments");
            for (segment, rank) in segments.into_iter().zip(0..) {
                if let Some(mut segment) = segment {
                    segment.close(job.pml(rank));
                }
            }
            let calls = vec![Call::Bcast { root: 1, len: 40 }; RANKS as usize];
            well(&mut job, &sequencers, &calls, &mut random);
            if !lack.was_felt() {
                assert!(made > 0, "nothing was missing");
                // Four exchanges and the shared segment's own memory, or what the leader receives as well.
                assert!(number > 4, "rank {rank} asks {number} times");
                break;
            }
        }
    }
}

fn opened(job: &mut Job, sequencers: &[Sequencer], lack: &Lack) -> Vec<Option<SharedSegment>> {
    let mut openings: Vec<_> = sequencers.iter().map(|it| Some(Opening::new(it))).collect();
    let mut segments: Vec<Option<SharedSegment>> = openings.iter().map(|_| None).collect();
    for _ in 0..10_000 {
        for (rank, opening) in openings.iter_mut().enumerate() {
            let Some(going) = opening else { continue };
            let pml = job.ranks[rank].as_mut().unwrap();
            let gone = lack.during(rank, || going.advance(pml, &HostEngine, &HostEngine));
            if let Poll::Ready(segment) = gone {
                segments[rank] = segment.unwrap();
                *opening = None;
            }
        }
        if openings.iter().all(Option::is_none) {
            return segments;
        }
        job.progress();
    }
    panic!("the openings do not end: {openings:?}");
}

/// A collective by messages ends well.
fn well(job: &mut Job, sequencers: &[Sequencer], calls: &[Call<'_>], random: &mut Random) {
    let algorithm = choose(&Table::default(), &calls[0], &Locality::flat(calls.len()));
    let how = (Arithmetic::Sum, &[Lie::Plain][..]);
    let mut collective = Collective::new(calls, &algorithm, how, random);
    let mut executors = collective.start(sequencers);
    let ended = job.finish(&mut executors);
    assert!(ended.iter().all(|result| *result == Some(Ok(()))), "{ended:?}");
    collective.check();
}

/// In checked mode, ranks that cannot compare what they call do not begin at one rank and end at another: all fail, and
/// name the rank that has no memory.
#[test]
fn all_fail_if_one_has_no_memory_to_compare() {
    const RANKS: usize = 3;
    // More often than a rank asks.
    const ASKED_MAX: u64 = 12;
    let mut job = Job::new(3);
    let worlds = job.worlds();
    let sequencers: Vec<_> = worlds.iter().map(|it| Sequencer::new(it).checked(true)).collect();
    let mut random = Random(72);
    let lens = [16; RANKS];
    // Terms; and what goes between pairs, and complaints.
    for (call, asked) in [
        (Call::Bcast { root: 0, len: 16 }, 2),
        (Call::Alltoallv { send: &lens, recv: &lens, in_place: false }, 6),
    ] {
        let calls = vec![call; RANKS];
        let algorithm = choose(&Table::default(), &call, &Locality::flat(RANKS));
        for (rank, number) in (0..RANKS).flat_map(|rank| (0..=ASKED_MAX).map(move |it| (rank, it)))
        {
            let lack = Lack::new(rank, number);
            let how = (Arithmetic::Sum, &[Lie::Plain][..]);
            let mut collective = Collective::new(&calls, &algorithm, how, &mut random);
            let tickets = sequencers.iter().map(Sequencer::next).collect();
            let mut executors =
                collective.each(tickets, |rank, make| lack.during(rank as usize, make));
            let mut ended = vec![None; RANKS];
            for _ in 0..10_000 {
                for ((at, executor), result) in executors.iter_mut().zip(&mut ended) {
                    if result.is_none()
                        && let Poll::Ready(it) =
                            lack.during(*at as usize, || job.advance(*at, executor))
                    {
                        *result = Some(it);
                    }
                }
                if ended.iter().all(Option::is_some) {
                    break;
                }
                job.progress();
            }
            let what = format!("{call:?}: rank {rank}, {number}: {ended:?}");
            assert!(lack.was_felt() || number >= asked, "{what}");
            let is_well = !lack.was_felt();
            let named = u32::try_from(rank).unwrap();
            for (at, result) in ended.iter().enumerate() {
                let is_right = match result {
                    Some(Ok(())) => is_well,
                    Some(Err(CollError::NoMemory { rank, .. })) => at == *rank as usize,
                    Some(Err(CollError::GaveUp { rank })) => *rank == named && !is_well,
                    _ => false,
                };
                assert!(is_right, "{what}");
            }
            assert!(is_well || number < ASKED_MAX, "{what}");
            drop(executors);
            well(&mut job, &sequencers, &calls, &mut random);
        }
    }
}
