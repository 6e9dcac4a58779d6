//! Blocks of which each goes to one rank, in memory that cannot be mapped: that rank reads them where they lie, by the
//! kernel, as loopbacks do.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const RANKS: usize = 3;
/// Of a block: more than one fragment of a slot, more than is unpacked at once, and no multiple of either.
const LEN: u64 = 100 << 10;

/// A job that counts how often memory is read so.
fn counting(ranks: u32) -> (Job, Vec<SharedSegment>, Arc<AtomicU64>) {
    let reads = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&reads);
    let mut job = Job::watched(ranks, move |call| {
        counted.fetch_add(u64::from(call == "single_copy_read"), Ordering::Relaxed);
    });
    let worlds = job.worlds();
    let segments = open(&mut job, &Job::sequencers(&worlds), None);
    (job, segments.into_iter().map(|segment| segment.expect("loopbacks map")).collect(), reads)
}

#[test]
fn long_blocks_are_read_where_they_lie_if_they_can_be() {
    let (mut job, mut segments, reads) = counting(3);
    let mut random = Random(73);
    let scatter = |len| Call::Scatter { root: 1, len, in_place: false };
    let alltoall = |in_place| Call::Alltoall { len: LEN, in_place };
    let (plain, spread) = (&[Lie::Plain][..], &[Lie::Gaps][..]);
    // Ranks 0 and 2 send what is plain, and get what is not.
    let mixed = &[Lie::Plain, Lie::Gaps][..];
    let parts = LEN.div_ceil(64 << 10);
    let of = sum(Arithmetic::Sum);
    let reduced = |in_place| Call::ReduceScatterBlock { len: LEN, of, in_place };
    let lens = [LEN; RANKS];
    let cases = [
        // Before this, nobody knows who can read whose memory.
        (scatter(LEN), plain, 0),
        (scatter(LEN), plain, 2),
        (scatter(LEN), spread, 0),
        (scatter(1 << 10), plain, 0),
        (alltoall(false), plain, 6),
        (alltoall(false), spread, 0),
        // What comes takes the place of what goes.
        (alltoall(true), plain, 0),
        (alltoall(false), mixed, 2 + 2 * parts),
        (Call::Bcast { root: 0, len: LEN }, plain, 0),
        (Call::Allgather { len: LEN, in_place: false }, plain, 0),
        (reduced(false), plain, 0),
        (Call::Alltoallv { send: &lens, recv: &lens, in_place: false }, plain, 6),
        (Call::Alltoallv { send: &lens, recv: &lens, in_place: false }, mixed, 2 + 2 * parts),
        (Call::Alltoallv { send: &lens, recv: &lens, in_place: false }, spread, 0),
        (Call::Alltoallv { send: &lens, recv: &lens, in_place: true }, plain, 0),
        (scatter(LEN), plain, 2),
    ];
    for (number, (call, lies, expected)) in cases.into_iter().enumerate() {
        let before = reads.load(Ordering::Relaxed);
        let calls = vec![call; RANKS];
        let mut one = collective(&calls, Arithmetic::Sum, lies, &mut random);
        for (rank, segment) in segments.iter_mut().enumerate() {
            one.begin((rank, segment), number, &call).unwrap();
        }
        assert_eq!(finish(&mut job, &mut segments), vec![Ok(()); RANKS], "{number}: {call:?}");
        one.check();
        let read = reads.load(Ordering::Relaxed) - before;
        assert_eq!(read, expected, "{number}: {call:?}, {lies:?}");
    }
}

/// Of two ranks, each is the only one that gets what the other contributes. A bcast goes through slots.
#[test]
fn of_two_ranks_each_reads_what_the_other_has() {
    let (mut job, mut segments, reads) = counting(2);
    let mut random = Random(75);
    let calls = [
        Call::Gather { root: 1, len: LEN, in_place: true },
        Call::Bcast { root: 0, len: LEN },
        Call::Gather { root: 1, len: LEN, in_place: false },
        Call::Gather { root: 0, len: LEN, in_place: true },
        Call::Allgather { len: LEN, in_place: false },
        Call::Allgather { len: LEN, in_place: true },
    ];
    for (number, (call, expected)) in calls.into_iter().zip([0, 0, 1, 1, 2, 2]).enumerate() {
        let before = reads.load(Ordering::Relaxed);
        let mut one = collective(&[call; 2], Arithmetic::Sum, &[Lie::Plain], &mut random);
        for (rank, segment) in segments.iter_mut().enumerate() {
            one.begin((rank, segment), number, &call).unwrap();
        }
        assert_eq!(finish(&mut job, &mut segments), [Ok(()), Ok(())], "{call:?}");
        one.check();
        assert_eq!(reads.load(Ordering::Relaxed) - before, expected, "{call:?}");
    }
}

/// Others have a turn while a long block is read: it is so in three parts.
#[test]
fn a_long_block_is_read_in_parts() {
    const LONG: u64 = 9 << 20;
    let (mut job, mut segments, reads) = counting(2);
    let mut random = Random(77);
    let scatter = Call::Scatter { root: 0, len: LONG, in_place: false };
    let [out, come] = [(&[0, LONG], &[0, 0]), (&[0, 0], &[LONG, 0])]
        .map(|(send, recv)| Call::Alltoallv { send, recv, in_place: false });
    for (number, calls) in [[scatter; 2], [scatter; 2], [out, come]].into_iter().enumerate() {
        let before = reads.load(Ordering::Relaxed);
        let mut one = collective(&calls, Arithmetic::Sum, &[Lie::Plain], &mut random);
        for (rank, segment) in segments.iter_mut().enumerate() {
            one.begin((rank, segment), number, &calls[rank]).unwrap();
        }
        if number > 0 {
            assert_eq!(advance(&mut segments[0], job.pml(0)), Poll::Pending, "it is to be read");
            for part in 1..3 {
                assert_eq!(advance(&mut segments[1], job.pml(1)), Poll::Pending, "part {part}");
                assert!(segments[1].look());
            }
        }
        assert_eq!(finish(&mut job, &mut segments), [Ok(()), Ok(())]);
        one.check();
        let read = reads.load(Ordering::Relaxed) - before;
        assert_eq!(read, if number > 0 { 3 } else { 0 }, "{number}");
    }
}

/// A root whose blocks are still to be read gives up, or dies: who reads then does not end well.
#[test]
fn who_is_gone_is_not_read() {
    for dies in [false, true] {
        let (mut job, mut segments, _) = counting(3);
        let mut random = Random(74);
        let call = Call::Scatter { root: 0, len: LEN, in_place: false };
        for number in 0..2 {
            let mut one = collective(&[call; RANKS], Arithmetic::Sum, &[Lie::Plain], &mut random);
            for (rank, segment) in segments.iter_mut().enumerate() {
                one.begin((rank, segment), number, &call).unwrap();
            }
            if number == 0 {
                assert_eq!(finish(&mut job, &mut segments), vec![Ok(()); RANKS]);
                continue;
            }
            assert_eq!(advance(&mut segments[0], job.pml(0)), Poll::Pending, "it is to be read");
            assert_eq!(advance(&mut segments[1], job.pml(1)), Poll::Ready(Ok(())));
            if dies {
                job.kill(0);
                segments.remove(0);
            } else {
                segments[0].give_up();
            }
            let segment = segments.last_mut().unwrap();
            let result = (0..100).find_map(|_| {
                job.progress();
                match advance(segment, job.pml(2)) {
                    Poll::Ready(result) => Some(result),
                    Poll::Pending => None,
                }
            });
            let result = result.expect("it ends").unwrap_err();
            assert_eq!(result.culprit(), Some(0), "{result}");
            segments.clear();
        }
    }
}
