//! A rank that writes rubbish over the mailboxes of all.
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use gapless_bml::Bml;
use gapless_btl::loopback::{Hub, Loopback};
use gapless_engine::{HostEngine, ReduceOp, Typed};
use gapless_mem::Region;
use gapless_pml::Config;

use super::*;
use crate::Reduction;
use crate::execute::{BufferBlocks, Sequencer};
use gapless_bml::Rank;
use gapless_testkit::rounds;

fn endpoints(ranks: u32) -> Vec<Pml> {
    endpoints_of(ranks, Loopback::new)
}

fn endpoints_of(ranks: u32, transport: impl Fn(&Hub) -> Loopback) -> Vec<Pml> {
    let hub = Hub::new();
    let mut bmls: Vec<Bml> = (0..ranks).map(|rank| Bml::new(Rank(rank), ranks)).collect();
    bmls.iter_mut().for_each(|bml| bml.add(Box::new(transport(&hub))));
    let addresses: Vec<_> = bmls.iter().map(Bml::addresses).collect();
    for (me, bml) in (0..ranks).zip(&mut bmls) {
        for peer in (0..ranks).filter(|peer| *peer != me) {
            bml.connect(Rank(peer), &addresses[peer as usize]).unwrap();
        }
    }
    let pml = |bml| Pml::new(bml, vec![Arc::new(HostEngine)], Config::default());
    bmls.into_iter().map(pml).collect()
}

fn segments(pmls: &mut [Pml]) -> Vec<SharedSegment> {
    let mut openings: Vec<Opening> =
        pmls.iter().map(|pml| Opening::new(&Sequencer::new(&pml.world()))).collect();
    let mut segments: Vec<Option<SharedSegment>> = pmls.iter().map(|_| None).collect();
    while segments.iter().any(Option::is_none) {
        for ((opening, segment), pml) in openings.iter_mut().zip(&mut segments).zip(&mut *pmls) {
            if segment.is_none()
                && let Poll::Ready(opened) = opening.advance(pml, &HostEngine, &HostEngine)
            {
                *segment = opened.unwrap();
            }
            pml.progress();
        }
    }
    segments.into_iter().flatten().collect()
}

/// Whatever another rank writes: an end, or none, but no panic and no stray byte.
#[test]
fn rubbish_in_the_mailboxes_is_an_error_or_a_wrong_result() {
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut random = move |end: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 8) % end
    };
    let of = Reduction { unit: 4, commutative: true };
    let (mut scribbled, mut ended) = (0, 0);
    for ranks in [2, 10] {
        let mut pmls = endpoints(ranks);
        for round in 0..usize::try_from(rounds(300)).unwrap() {
            let mut segments = segments(&mut pmls);
            let me = round % ranks as usize;
            let (segment, pml) = (&mut segments[me], &mut pmls[me]);
            for number in 0..6 {
                let root = usize::try_from(random(ranks.into())).unwrap();
                let most = [10, 3000][usize::try_from(random(2)).unwrap()];
                let len = 4 * random(most);
                let in_place = true;
                let lens = vec![len; ranks as usize];
                let call = [
                    Call::Barrier,
                    Call::Bcast { root, len },
                    Call::Allreduce { len, of, in_place },
                    Call::Allgather { len, in_place },
                    Call::Alltoall { len, in_place },
                    Call::ReduceScatterBlock { len, of, in_place },
                    Call::Allgatherv { lens: &lens, in_place },
                    Call::Alltoallv { send: &[], recv: &lens, in_place },
                ][usize::try_from(random(8)).unwrap()];
                let (_, row) = crate::build::rows(&call, me, ranks as usize);
                let mut memory = vec![0xEE; usize::try_from(row.len()).unwrap() + 16];
                let region = Region::of_mut(&mut memory).sub(8, row.len()).unwrap();
                let recv = match row.len() {
                    0 => BufferBlocks::None,
                    _ => BufferBlocks::Whole(Typed::contiguous(region)),
                };
                let int = gapless_dtype::Datatype::from(gapless_dtype::Primitive::Int32);
                let sum = Combine::new(&ReduceOp::Sum.into(), &int.commit().unwrap()).unwrap();
                let buffers = CallBuffers { send: BufferBlocks::None, recv };
                // SAFETY: the memory outlives the collective, which the segment is dropped with at the latest.
                unsafe { segment.begin(number, &call, buffers, Some(sum)) }.unwrap();
                let mut over = false;
                for _ in 0..20 {
                    let now = segment.mailbox.round();
                    for word in segment.shared.words.all() {
                        // Often a flag that fits, or nearly does.
                        let word_now = match random(5) {
                            0 => random(u64::MAX),
                            1 => (now + random(2)) << 16 | random(1 << 16),
                            2 => now << 16 | u64::from(short_plan::LONG) << 11 | 16,
                            _ => now << 16 | u64::from(call.operation().code()) << 11 | len,
                        };
                        word.store(word_now, Ordering::Relaxed);
                    }
                    let slot = random(u64::from(2 * ranks)) * segment.shared.slot_bytes;
                    let place = segment.shared.slots.region().sub(slot, 256).unwrap();
                    let bytes: Vec<u8> = (0..256).map(|_| random(256).to_le_bytes()[0]).collect();
                    // SAFETY: slots are mapped memory, which no reference covers; nothing is under way on another
                    // thread.
                    unsafe { gapless_mem::write(&place, 0, &bytes) }.unwrap();
                    segment.look();
                    // It finds that its own words are not its own.
                    if random(16) == 0 {
                        let _ = segment.arm(pml);
                    }
                    if let Poll::Ready(result) = segment.advance(pml, &HostEngine, &HostEngine) {
                        let spoilt =
                            |error: &CollError| matches!(error, CollError::Scribbled { .. });
                        scribbled += u32::from(result.as_ref().err().is_some_and(spoilt));
                        over = true;
                        break;
                    }
                }
                ended += u32::from(over);
                if !over {
                    segment.going = None;
                }
                let around = [&memory[..8], &memory[memory.len() - 8..]];
                assert_eq!(around, [&[0xEE; 8][..]; 2], "{call:?}");
                if !over {
                    break;
                }
            }
            segment.close(pml);
        }
    }
    assert!(scribbled > 50 && ended > 50, "{scribbled} {ended}");
}

/// A step that cannot even begin, not as one that has failed: the others learn that this rank has no part in it, and
/// the next one goes on.
#[test]
fn a_rank_that_cannot_begin_a_step_is_not_waited_for() {
    let mut pmls = endpoints(2);
    let mut segments = segments(&mut pmls);
    let of_another = (&Call::Barrier, (0, 2));
    let failure = CollError::GaveUp { rank: 1 };
    let begun = segments[1].fail_step(0, of_another, failure.clone(), &mut pmls[1]);
    assert_eq!(begun.err(), Some(failure));
    let buffers = || CallBuffers { send: BufferBlocks::None, recv: BufferBlocks::None };
    for (number, expected) in [(0, Err(CollError::WentOn { rank: 1 })), (1, Ok(()))] {
        let mut ended = [None, (number == 0).then_some(Ok(()))];
        for _ in 0..100 {
            for ((segment, pml), ended) in segments.iter_mut().zip(&mut pmls).zip(&mut ended) {
                if ended.is_none() && !segment.is_at_work() {
                    // SAFETY: a barrier touches no memory.
                    unsafe { segment.begin(number, &Call::Barrier, buffers(), None) }.unwrap();
                }
                if ended.is_none()
                    && let Poll::Ready(result) = segment.advance(pml, &HostEngine, &HostEngine)
                {
                    *ended = Some(result);
                }
                pml.progress();
            }
        }
        assert_eq!(ended, [Some(expected), Some(Ok(()))]);
    }
}

/// A rank that has left out a collective may have written its next entries already, also where that one's would be.
#[test]
fn a_rank_that_was_refused_and_is_far_ahead_has_spoilt_nothing() {
    let mut pmls = endpoints(2);
    let mut segments = segments(&mut pmls);
    let mut words = [[3u8; 8], [0; 8]];
    let call = Call::Bcast { root: 1, len: 8 };
    segments[1].refuse(0, &mut pmls[1]);
    for (rank, number) in (1..=4).map(|number| (1, number)).chain((0..=4).map(|it| (0, it))) {
        let region = Region::of_mut(&mut words[1 - rank]);
        let buffers = CallBuffers {
            send: BufferBlocks::None,
            recv: BufferBlocks::Whole(Typed::contiguous(region)),
        };
        // SAFETY: the words outlive the collective, and nothing else touches them meanwhile.
        unsafe { segments[rank].begin(number, &call, buffers, None) }.unwrap();
        let ended = (0..100).find_map(|_| {
            let ended = segments[rank].advance(&mut pmls[rank], &HostEngine, &HostEngine);
            pmls.iter_mut().for_each(|pml| _ = pml.progress());
            match ended {
                Poll::Ready(result) => Some(result),
                Poll::Pending => None,
            }
        });
        let expected = if number == 0 { Err(CollError::WentOn { rank: 1 }) } else { Ok(()) };
        assert_eq!(ended, Some(expected), "rank {rank}, number {number}");
    }
    assert_eq!(words, [[3; 8]; 2]);
}

/// Rank 1 waits for an entry of rank 0 that somebody has written over. Rank 0 finds that out when it waits the next
/// time.
#[test]
fn whoever_waits_finds_that_its_own_entries_were_written_over() {
    let mut pmls = endpoints(2);
    let mut segments = segments(&mut pmls);
    let begin = |segment: &mut SharedSegment, number| {
        let buffers = CallBuffers { send: BufferBlocks::None, recv: BufferBlocks::None };
        // SAFETY: there is no memory.
        unsafe { segment.begin(number, &Call::Barrier, buffers, None) }.unwrap();
    };
    let advance =
        |segment: &mut SharedSegment, pml: &mut Pml| segment.advance(pml, &HostEngine, &HostEngine);
    let [first, second] = &mut segments[..] else { unreachable!() };
    begin(second, 0);
    assert_eq!(advance(second, &mut pmls[1]), Poll::Pending);
    begin(first, 0);
    assert_eq!(advance(first, &mut pmls[0]), Poll::Ready(Ok(())));
    let words = first.shared.words.clone();
    let words = words.all();
    let before: Vec<u64> = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    assert_eq!(advance(second, &mut pmls[1]), Poll::Pending);
    begin(first, 1);
    assert_eq!(advance(first, &mut pmls[0]), Poll::Pending);
    assert_eq!(first.arm(&mut pmls[0]), None);
    let ended = advance(first, &mut pmls[0]);
    assert!(matches!(ended, Poll::Ready(Err(CollError::Overwritten { .. }))), "{ended:?}");
    // What is as it was written is no reason to fail.
    for (word, before) in words.iter().zip(before) {
        word.store(before, Ordering::Relaxed);
    }
    assert_eq!(advance(second, &mut pmls[1]), Poll::Ready(Ok(())));
    begin(second, 1);
    assert_eq!(advance(second, &mut pmls[1]), Poll::Pending);
    second.arm(&mut pmls[1]).unwrap();
    assert_eq!(second.awaits(), Some(0));
}

/// What is wrong in the mailboxes is said of the rank, and not of its local rank.
#[test]
fn what_is_spoilt_names_the_rank() {
    let pmls = endpoints(4);
    let subgroup = Subgroup::of(pmls[3].world(), &[2, 3]).unwrap();
    let error = context::scribbled(&subgroup, Broken { rank: 0, expected: 2, found: 9 });
    let CollError::Scribbled { rank: 2, what } = error else { panic!("{error}") };
    assert!(what.starts_with("rank 2 has written"), "{what}");
}

/// A step reads so much at a time by the kernel. While there is more to read, no other rank has anything to announce: a
/// rank that slept would not be woken.
#[test]
fn nobody_sleeps_while_there_is_something_to_read() {
    let len = 2 * AT_ONCE_MAX + 4096;
    let mut stopped = 0;
    for call in [Call::Alltoall { len, in_place: false }, Call::Allgather { len, in_place: false }]
    {
        // SAFETY: buffers outlive all segments.
        let mut pmls =
            endpoints_of(2, |hub| unsafe { Loopback::new(hub).with_single_copy_reads() });
        let mut buffers: Vec<[Vec<u8>; 2]> = (0..2u8)
            .map(|me| {
                let (send, recv) = crate::build::rows(&call, me.into(), 2);
                let buffer = |len: u64| vec![7 + me; usize::try_from(len).unwrap()];
                [buffer(send.len()), buffer(recv.len())]
            })
            .collect();
        let mut segments = segments(&mut pmls);
        for (segment, [send, recv]) in segments.iter_mut().zip(&mut buffers) {
            let [send, recv] = [send, recv]
                .map(|buffer| BufferBlocks::Whole(Typed::contiguous(Region::of_mut(buffer))));
            // SAFETY: the buffers outlive the collective, and nothing else touches them meanwhile.
            unsafe { segment.begin(0, &call, CallBuffers { send, recv }, None) }.unwrap();
        }
        let mut ended = [false; 2];
        for _ in 0..10_000 {
            for ((segment, pml), ended) in segments.iter_mut().zip(&mut pmls).zip(&mut ended) {
                pml.progress();
                if *ended {
                    continue;
                }
                let arms = segment.arm(pml).is_some();
                match segment.advance(pml, &HostEngine, &HostEngine) {
                    Poll::Ready(result) => {
                        result.unwrap();
                        *ended = true;
                    }
                    Poll::Pending if segment.look() => {
                        stopped += 1;
                        assert!(!arms || !segment.is_armed(), "{call:?}: it would sleep");
                        assert_eq!(segment.arm(pml), None, "{call:?}");
                    }
                    Poll::Pending => {}
                }
            }
        }
        assert_eq!(ended, [true; 2], "{call:?}");
        assert!(buffers[0][1][..8].iter().chain(&buffers[1][1][..8]).all(|byte| *byte == 7));
        segments.into_iter().zip(&mut pmls).for_each(|(mut segment, pml)| segment.close(pml));
    }
    assert!(stopped > 0, "all was read at once");
}

/// How often two ranks find that they have to wait for each other in an all-reduce or all-gather of so many bytes. They
/// may announce that they sleep.
fn waits(call: &Call<'_>, arms: bool) -> usize {
    let mut pmls = endpoints(2);
    let mut buffers: Vec<[Vec<u8>; 2]> = (0..2)
        .map(|me| {
            let (send, recv) = crate::build::rows(call, me, 2);
            let first = u8::try_from(me).unwrap();
            let sent = (0..send.len()).map(|at| at.to_le_bytes()[0] % 100 + first).collect();
            [sent, vec![0; usize::try_from(recv.len()).unwrap()]]
        })
        .collect();
    let mut segments = segments(&mut pmls);
    for (segment, [send, recv]) in segments.iter_mut().zip(&mut buffers) {
        let [send, recv] = [send, recv]
            .map(|buffer| BufferBlocks::Whole(Typed::contiguous(Region::of_mut(buffer))));
        let byte = gapless_dtype::Datatype::from(gapless_dtype::Primitive::Uint8);
        let sum = Combine::new(&ReduceOp::Sum.into(), &byte.commit().unwrap()).unwrap();
        // SAFETY: the buffers outlive the collective, and nothing else touches them meanwhile.
        unsafe { segment.begin(0, call, CallBuffers { send, recv }, Some(sum)) }.unwrap();
    }
    let (mut ended, mut waits) = ([false; 2], 0);
    for _ in 0..10_000 {
        for ((segment, pml), ended) in segments.iter_mut().zip(&mut pmls).zip(&mut ended) {
            pml.progress();
            if *ended {
                continue;
            }
            match segment.advance(pml, &HostEngine, &HostEngine) {
                Poll::Ready(result) => {
                    result.unwrap();
                    *ended = true;
                }
                Poll::Pending => {
                    waits += 1;
                    assert!(!segment.is_busy(), "{call:?}: the host's engine is done at once");
                    assert!(!arms || segment.arm(pml).is_some() || segment.look(), "{call:?}");
                }
            }
        }
    }
    assert_eq!(ended, [true; 2], "{call:?}");
    segments.into_iter().zip(&mut pmls).for_each(|(mut segment, pml)| segment.close(pml));
    let [[one, got], [other, same]] = buffers.try_into().unwrap();
    let expected: Vec<u8> = match call {
        Call::Allgather { .. } => [one, other].concat(),
        _ => one.iter().zip(&other).map(|(one, other)| one + other).collect(),
    };
    assert!(got == expected && same == expected, "{call:?}");
    waits
}

/// Who has what it takes of an engine waits for a rank, and may sleep. Where ranks sleep for each other, what is left
/// goes in few fragments, so that they seldom do.
#[test]
fn who_sleeps_for_another_does_so_seldom() {
    let (len, of) = (16u64 << 20, Reduction { unit: 1, commutative: true });
    for call in
        [Call::Allreduce { len, of, in_place: false }, Call::Allgather { len, in_place: false }]
    {
        let [awake, asleep] = [false, true].map(|arms| waits(&call, arms));
        assert!(awake > 128 && asleep < 40, "{call:?}: {awake} {asleep}");
    }
}
