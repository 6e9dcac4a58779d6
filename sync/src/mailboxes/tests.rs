//! Threads as ranks, and ranks that break the rules.
#![allow(clippy::cast_possible_truncation, reason = "all numbers are small")]

use super::*;
use std::thread;

const KIND: u8 = 3;

fn memory(ranks: usize) -> Vec<AtomicU64> {
    (0..Mailboxes::words(ranks)).map(|_| AtomicU64::new(0)).collect()
}

fn boxes(ranks: usize) -> Vec<Mailbox> {
    (0..ranks).map(|rank| Mailbox::new(rank, ranks, Fences::Symmetric)).collect()
}

/// An entry's bytes, different for every rank, round and length.
fn entry(rank: usize, round: u64, len: usize) -> Vec<u8> {
    let seed = rank as u64 * 31 + round * 7;
    (0..len as u64).map(|at| ((seed + at * 3) % 251) as u8).collect()
}

fn room(mailbox: &mut Mailbox, mailboxes: &Mailboxes<'_>) {
    while mailbox.blocked_by(mailboxes).is_some() {
        thread::yield_now();
    }
}

fn take(mailbox: &mut Mailbox, mailboxes: &Mailboxes<'_>, rank: usize, len: usize) -> Vec<u8> {
    let flag = loop {
        match mailbox.look(mailboxes, rank).unwrap() {
            Some(flag) => break flag,
            None => thread::yield_now(),
        }
    };
    assert_eq!(flag, Flag { kind: KIND, len: len as u16 });
    let mut bytes = vec![0; len];
    mailbox.read(mailboxes, rank, 0, &mut bytes);
    bytes
}

/// The length of the entries of a round: the same for all.
fn len_of(round: u64) -> usize {
    [0, 8, 1, ENTRY_BYTES, 57, 64, 7][(round % 7) as usize]
}

/// In some rounds all write to all, in others one to all, or all to one, or one to another: all entries arrive whole,
/// and none is overwritten before it was read.
#[test]
fn notes_arrive_whole_whoever_writes_and_reads() {
    const ROUNDS: u64 = if cfg!(miri) { 12 } else { 3000 };
    for ranks in [1, 2, 3, 5] {
        let memory = memory(ranks);
        let mailboxes = Mailboxes::new(&memory, ranks).unwrap();
        thread::scope(|threads| {
            for (rank, mut mailbox) in boxes(ranks).into_iter().enumerate() {
                threads.spawn(move || {
                    for round in 1..=ROUNDS {
                        // Numbers are left out, and the second of two rounds is used now and then.
                        match round % 3 {
                            1 => mailbox.begin(2 * round),
                            2 => mailbox.begin(2 * round + 1),
                            _ => {}
                        }
                        let (len, one) = (len_of(round), (round % ranks as u64) as usize);
                        let other = (one + 1) % ranks;
                        let (writes, readers, from) = match round / 5 % 4 {
                            0 => (true, Readers::All, 0..ranks),
                            1 => (rank == one, Readers::All, one..one + 1),
                            2 => (
                                rank != one,
                                Readers::One(one),
                                if rank == one { 0..ranks } else { 0..0 },
                            ),
                            _ => (
                                rank == one,
                                Readers::One(other),
                                if rank == other { one..one + 1 } else { 0..0 },
                            ),
                        };
                        if writes {
                            room(&mut mailbox, &mailboxes);
                            mailbox.publish(&mailboxes, KIND, &entry(rank, round, len), readers);
                        }
                        for source in from.filter(|source| *source != rank) {
                            let found = take(&mut mailbox, &mailboxes, source, len);
                            assert_eq!(
                                found,
                                entry(source, round, len),
                                "{source} to {rank}, {round}"
                            );
                        }
                        let together = round / 5 % 4 == 0;
                        if together {
                            mailbox.all_began(mailbox.round());
                        }
                        mailbox.next_round();
                        if !together {
                            mailbox.finish(&mailboxes);
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn a_place_is_free_when_its_readers_are_done_or_lost() {
    let memory = memory(3);
    let mailboxes = Mailboxes::new(&memory, 3).unwrap();
    let [mut a, mut b, mut c]: [Mailbox; 3] = boxes(3).try_into().unwrap();
    for number in 0..DEPTH as u64 {
        a.begin(number);
        assert_eq!(a.blocked_by(&mailboxes), None);
        a.publish(&mailboxes, KIND, &[], Readers::All);
    }
    let mut number = DEPTH as u64;
    a.begin(number);
    assert_eq!(a.blocked_by(&mailboxes), Some(1));
    b.next_round();
    b.finish(&mailboxes);
    assert_eq!(a.blocked_by(&mailboxes), Some(2));
    // Who writes an entry has read those before.
    c.next_round();
    c.publish(&mailboxes, KIND, &[], Readers::One(1));
    assert_eq!(a.blocked_by(&mailboxes), None);
    a.publish(&mailboxes, KIND, &[], Readers::One(2));
    number += 1;
    a.begin(number);
    assert_eq!(a.blocked_by(&mailboxes), Some(1));
    assert_eq!(b.was_excused(&mailboxes, 0..3), None);
    a.excuse(&mailboxes, 1);
    assert_eq!([b.was_excused(&mailboxes, 0..3), b.was_excused(&mailboxes, 2..3)], [Some(0), None]);
    assert_eq!([&a, &c].map(|mailbox| mailbox.was_excused(&mailboxes, 0..3)), [None, None]);
    assert_eq!(a.blocked_by(&mailboxes), Some(2));
    c.begin(2);
    c.finish(&mailboxes);
    assert_eq!(a.blocked_by(&mailboxes), None);
    // Only one reads that one, or all have begun a later round.
    a.begin(2 * DEPTH as u64);
    assert_eq!(a.blocked_by(&mailboxes), Some(2));
    a.all_began(a.round());
    assert_eq!(a.blocked_by(&mailboxes), None);
    a.begin(0);
    assert_eq!(a.round(), 4 * DEPTH as u64 + 2, "it never goes back");
}

#[test]
fn any_bytes_of_an_entry_are_read() {
    let memory = memory(2);
    let mailboxes = Mailboxes::new(&memory, 2).unwrap();
    let [mut a, mut b]: [Mailbox; 2] = boxes(2).try_into().unwrap();
    let bytes = entry(0, 1, ENTRY_BYTES);
    a.publish(&mailboxes, 31, &bytes, Readers::All);
    assert_eq!(b.look(&mailboxes, 0), Ok(Some(Flag { kind: 31, len: ENTRY_BYTES as u16 })));
    for at in [0, 1, 7, 8, 9, 63, 1000] {
        for len in [0, 1, 5, 8, 9, 16, 24] {
            let mut found = vec![0; len];
            b.read(&mailboxes, 0, at, &mut found);
            assert_eq!(found, bytes[at..at + len], "{len} bytes at {at}");
        }
    }
    // What lies behind every entry stays as it was.
    for at in [ENTRY_BYTES * 2, ENTRY_BYTES * 2 + 1, usize::MAX] {
        let mut found = [9; 3];
        b.read(&mailboxes, 0, at, &mut found);
        assert_eq!(found, [9; 3]);
    }
    assert_eq!(Mailboxes::new(&memory[1..], 2).map(|mailboxes| mailboxes.ranks), None);
}

#[test]
fn longer_entries_are_cut() {
    let memory = memory(2);
    let mailboxes = Mailboxes::new(&memory, 2).unwrap();
    let [mut a, mut b]: [Mailbox; 2] = boxes(2).try_into().unwrap();
    a.publish(&mailboxes, KIND, &[1; ENTRY_BYTES + 9], Readers::All);
    assert_eq!(b.look(&mailboxes, 0).unwrap().unwrap().len, ENTRY_BYTES as u16);
}

/// Random words everywhere: whatever is asked has an answer, and an entry of a later round is an error that names who
/// has written it.
#[test]
fn a_mailboxes_full_of_rubbish_hurts_nobody() {
    let mut state = 88172645463325252u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let memory = memory(3);
    let mailboxes = Mailboxes::new(&memory, 3).unwrap();
    let mut broken = 0;
    for _ in 0..if cfg!(miri) { 5 } else { 500 } {
        let mut mailbox = Mailbox::new(1, 3, Fences::Symmetric);
        for _ in 0..6 {
            // Rounds of all sizes, small ones often.
            memory
                .iter()
                .for_each(|word| word.store(random() >> (random() % 64), Ordering::Relaxed));
            let _ = mailbox.blocked_by(&mailboxes);
            let _ = mailbox.arm(&mailboxes, Awaited::Entry(2));
            mailbox.publish(&mailboxes, KIND, &[7; 100], Readers::All);
            mailbox.wake(&mailboxes, Readers::All, |rank| assert!(rank < 3));
            for rank in [0, 2] {
                match mailbox.look(&mailboxes, rank) {
                    Ok(_) => mailbox.read(&mailboxes, rank, 3, &mut [0; 64]),
                    Err(error) => {
                        assert!(error.rank == rank && error.found > error.expected, "{error}");
                        broken += 1;
                    }
                }
            }
            mailbox.next_round();
            mailbox.finish(&mailboxes);
        }
    }
    assert!(broken > 0);
}

/// Whatever is moved at a time: what was published arrives, from any byte on, and nothing beside it is touched.
#[test]
fn any_part_of_an_entry_of_any_length_can_be_read() {
    let memory = memory(2);
    let mailboxes = Mailboxes::new(&memory, 2).unwrap();
    let [mut a, mut b]: [Mailbox; 2] = boxes(2).try_into().unwrap();
    let lens = (0..=200).chain([255, 256, 257, 511, 640, 1000, 1023, ENTRY_BYTES]);
    for (number, len) in (1..).zip(lens) {
        a.begin(number);
        b.begin(number);
        let round = a.round();
        let sent = entry(0, round, len);
        // It lies anywhere.
        let shifted: Vec<u8> = [vec![0; len % 9], sent.clone()].concat();
        a.publish(&mailboxes, KIND, &shifted[len % 9..], Readers::All);
        assert!(b.look(&mailboxes, 0).unwrap().is_some());
        for at in [0, 1, 8, 64, 72, 100, 128].into_iter().filter(|at| *at <= len) {
            for bytes in [len - at, (len - at) / 2, (len - at).min(130)] {
                let mut into = vec![0xAA; bytes + 2];
                b.read(&mailboxes, 0, at, &mut into[1..=bytes]);
                assert_eq!(into[1..=bytes], sent[at..at + bytes], "{len} bytes, from {at}");
                assert_eq!((into[0], into[bytes + 1]), (0xAA, 0xAA), "{len} bytes, from {at}");
                let there = b.payload(&mailboxes, 0, at, bytes);
                assert_eq!(there.is_some(), at % 8 == 0, "{len} bytes, from {at}");
                let there = there.unwrap_or_default().iter();
                let there: Vec<u8> =
                    there.flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
                assert!(there.is_empty() || there[..bytes] == sent[at..at + bytes], "{len}, {at}");
            }
        }
    }
    assert!(b.payload(&mailboxes, 0, 0, 1 << 20).is_none(), "no entry is so long");
    assert!(b.payload(&mailboxes, 0, usize::MAX - 7, 8).is_none());
}

#[test]
fn who_is_awaited_wakes_the_sleeper_once_and_nobody_else_does() {
    let memory = memory(3);
    let mailboxes = Mailboxes::new(&memory, 3).unwrap();
    let [a, b, c]: [Mailbox; 3] = boxes(3).try_into().unwrap();
    let woken = |mailbox: &Mailbox, readers| {
        let mut woken = Vec::new();
        mailbox.wake(&mailboxes, readers, |rank| woken.push(rank));
        woken
    };
    assert_eq!(woken(&a, Readers::All), []);
    assert!(c.arm(&mailboxes, Awaited::Entry(0)));
    assert_eq!(woken(&b, Readers::All), []);
    assert_eq!(woken(&a, Readers::One(1)), []);
    assert_eq!(woken(&a, Readers::One(9)), []);
    assert_eq!(woken(&a, Readers::All), [2]);
    assert_eq!(woken(&a, Readers::All), [], "the same sleep");
    assert!(c.arm(&mailboxes, Awaited::Reader(1)));
    assert_eq!(woken(&a, Readers::All), []);
    assert_eq!(woken(&b, Readers::One(2)), [2]);
    assert!(c.arm(&mailboxes, Awaited::Entry(0)));
    c.disarm(&mailboxes);
    assert_eq!(woken(&a, Readers::All), []);
}

/// What a rank can report of a round comes in this order, and before all of the next round.
#[test]
fn moments_follow_each_other() {
    let mut before = Moment::NEVER;
    for round in [1, 2, 3, 1 << 20] {
        let all = [
            Moment::new(round, 0),
            Moment::new(round, 1),
            Moment::new(round, STEP_MAX),
            Moment::last(round),
            Moment::failed(round),
            Moment::given_up(round),
        ];
        for moment in all {
            assert!(moment > before, "{before:?} {moment:?}");
            before = moment;
        }
    }
}

#[test]
fn who_has_ended_its_steps_has_not_left_unless_it_failed() {
    let memory = memory(2);
    let mailboxes = Mailboxes::new(&memory, 2).unwrap();
    let [mut a, mut b]: [Mailbox; 2] = boxes(2).try_into().unwrap();
    a.begin(3);
    b.begin(3);
    let left = |a: &mut Mailbox, b: &Mailbox, moment| {
        b.report(&mailboxes, moment);
        assert!(a.reached(&mailboxes, 1, moment));
        a.has_left(1)
    };
    let round = a.round();
    assert!(!left(&mut a, &b, Moment::new(round, 0)));
    assert!(!left(&mut a, &b, Moment::last(round)));
    assert!(!a.has_given_up(&mailboxes, 1, round));
    assert!(left(&mut a, &b, Moment::failed(round)));
    assert!(left(&mut a, &b, Moment::given_up(round)));
    assert!(a.has_given_up(&mailboxes, 1, round) && !a.has_given_up(&mailboxes, 1, round + 1));
}

#[test]
fn all_are_there_when_the_last_has_written() {
    let memory = memory(3);
    let mailboxes = Mailboxes::new(&memory, 3).unwrap();
    let [mut a, mut b, mut c]: [Mailbox; 3] = boxes(3).try_into().unwrap();
    for number in [1, 2] {
        for mailbox in [&mut a, &mut b, &mut c] {
            mailbox.begin(number);
        }
        assert!(a.all_there(&mailboxes, 0..1) && !a.all_there(&mailboxes, 0..3));
        b.publish(&mailboxes, KIND, &[1], Readers::All);
        assert!(a.all_there(&mailboxes, 0..2) && !a.all_there(&mailboxes, 0..3));
        c.publish(&mailboxes, KIND, &[1], Readers::All);
        assert!(a.all_there(&mailboxes, 0..3));
    }
    // Who is further has been there.
    b.begin(3);
    b.publish(&mailboxes, KIND, &[1], Readers::All);
    assert!(a.all_there(&mailboxes, 0..3) && !b.all_there(&mailboxes, 0..3));
}

/// What is fetched ahead changes nothing, whatever it is asked for.
#[test]
fn notes_are_alike_if_all_have_the_flag_and_some_bytes_are_fetched_ahead() {
    let memory = memory(3);
    let mailboxes = Mailboxes::new(&memory, 3).unwrap();
    let [mut a, mut b, mut c]: [Mailbox; 3] = boxes(3).try_into().unwrap();
    let long = |byte: u8| vec![byte; 200];
    let flag = Flag { kind: KIND, len: 200 };
    assert_eq!(Mailbox::ahead(56, &(0..56)), 0..0);
    let ahead = [Mailbox::ahead(200, &(72..136)), 0..0, 140..2000, 1..usize::MAX];
    assert_eq!(ahead[0], 8..17);
    b.publish(&mailboxes, KIND, &long(2), Readers::All);
    for ahead in &ahead {
        assert_eq!(a.all_like(&mailboxes, 0..3, flag, ahead.clone()), None);
    }
    c.publish(&mailboxes, KIND, &long(3), Readers::All);
    for ahead in ahead {
        let other = Flag { len: 199, ..flag };
        assert_eq!(a.all_like(&mailboxes, 0..3, other, ahead.clone()), Some(false));
        assert_eq!(a.all_like(&mailboxes, 0..3, flag, ahead), Some(true));
        assert_eq!(take(&mut a, &mailboxes, 2, 200), long(3));
    }
}

/// Each rank has a bit of its own, however many they are.
#[test]
fn many_ranks_are_excused_one_by_one() {
    for ranks in [896, 897, 1000] {
        let words = memory(ranks);
        let mailboxes = Mailboxes::new(&words, ranks).unwrap();
        let mut boxes = boxes(ranks);
        let last = ranks - 1;
        boxes[1].publish(&mailboxes, KIND, &[5; 9], Readers::All);
        boxes[0].excuse(&mailboxes, last);
        let excused =
            |boxes: &[Mailbox], rank: usize| boxes[rank].was_excused(&mailboxes, 0..1).is_some();
        assert!(excused(&boxes, last) && (1..last).all(|rank| !excused(&boxes, rank)), "{ranks}");
        boxes[0].excuse(&mailboxes, 894);
        assert!((1..ranks).all(|rank| excused(&boxes, rank) == (rank == 894 || rank == last)));
        assert_eq!(take(&mut boxes[0], &mailboxes, 1, 9), [5; 9]);
    }
}

/// Others wait for it in vain, and only this rank knows.
#[test]
fn a_rank_finds_what_somebody_has_written_over() {
    let memory = memory(2);
    let mailboxes = Mailboxes::new(&memory, 2).unwrap();
    let [mut a, mut b]: [Mailbox; 2] = boxes(2).try_into().unwrap();
    for number in 0..2 * DEPTH as u64 {
        for mailbox in [&mut a, &mut b] {
            mailbox.begin(number);
            room(mailbox, &mailboxes);
            mailbox.publish(&mailboxes, KIND, &[], Readers::All);
            mailbox.next_round();
            assert_eq!(mailbox.overwritten(&mailboxes), None);
        }
        a.report(&mailboxes, Moment::new(a.round(), 1));
        [&a, &b].into_iter().for_each(|mailbox| mailbox.finish(&mailboxes));
    }
    let words = Mailboxes::words(2);
    let spoilt = (0..words).filter(|at| {
        let before = memory[*at].swap(0xDEAD_0000_0000, Ordering::Relaxed);
        let found =
            [&a, &b].map(|mailbox| mailbox.overwritten(&mailboxes).map(|broken| broken.rank));
        memory[*at].store(before, Ordering::Relaxed);
        assert!(found[0].is_none_or(|rank| rank == 0) && found[1].is_none_or(|rank| rank == 1));
        found != [None; 2]
    });
    // What is done, what is reported, and the flags of entries.
    assert_eq!(spoilt.count(), 2 * (2 + DEPTH));
    assert_eq!([&a, &b].map(|mailbox| mailbox.overwritten(&mailboxes)), [None; 2]);
}
