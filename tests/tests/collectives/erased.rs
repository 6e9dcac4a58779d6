//! What bindings stand on (`gapless::raw`): one request for all that can be waited for, on memory that the caller
//! vouches for; and partitioned messages.

use crate::collectives::ranks;
use gapless::raw::{Buffer, Operation, Request, Typed, collective};
use gapless::{
    Collective, Communicator, Datatype, Equivalence, Error, Layout, PmlError, ReduceOp, Root,
    SendMode, Source, Space, TagSel,
};
use std::time::{Duration, Instant};

/// Nothing here takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "waiting until {what}");
        std::thread::yield_now();
    }
}

fn at(numbers: &mut [i32], layout: &Layout, count: u64) -> Typed {
    Typed::at(Space::Host, numbers.as_mut_ptr().expose_provenance() as u64, layout, count).unwrap()
}

fn all(numbers: &mut [i32]) -> Typed {
    at(numbers, i32::layout(), numbers.len() as u64)
}

fn send(comm: &Communicator, typed: &Typed, dest: u32, tag: i32) -> Request {
    // SAFETY: all callers keep their numbers until all ranks have what they wait for.
    unsafe { Request::send(comm, typed, dest, tag, SendMode::Standard) }.unwrap()
}

fn recv(comm: &Communicator, typed: &Typed, source: u32, tag: i32) -> Request {
    // SAFETY: as above; nobody looks at the numbers before the request has ended.
    unsafe { Request::recv(comm, typed, Source::Rank(source), TagSel::Is(tag)) }.unwrap()
}

/// The buffers of a sum over all ranks.
fn sum(sent: &Typed, received: &Typed) -> Collective<'static> {
    let sides = (Buffer::Whole(sent.clone()), Buffer::Whole(received.clone()));
    let op = Some(ReduceOp::Sum.into());
    // SAFETY: as above.
    unsafe { collective(Operation::Allreduce, Root::Rank(0), sides, &[], op) }
}

fn neighbors(comm: &Communicator) -> (u32, u32) {
    let (rank, size) = (comm.rank(), comm.size());
    ((rank + size - 1) % size, (rank + 1) % size)
}

#[test]
fn one_call_waits_for_all_kinds_in_the_order_in_which_they_end() {
    for size in [3, 4] {
        ranks(size, |comm| {
            let (left, right) = neighbors(comm);
            let (mut word, mut mine, mut total, mut own) = ([0], [1], [0], [7]);
            let typed = all(&mut word);
            let message = recv(comm, &typed, left, 3);
            let (given, result) = (all(&mut mine), all(&mut total));
            // SAFETY: the numbers are looked at when it has ended.
            let summed = unsafe { Request::collective(comm, sum(&given, &result)) }.unwrap();
            let general = Request::general(comm).unwrap();
            let mut each = [message, summed, general, Request::dup(comm).unwrap()];
            let mut next = || {
                let at = Request::wait_any(&each.each_ref()).unwrap().unwrap();
                assert!(Request::test_some(&each.each_ref()).unwrap().contains(&at));
                each[at].wait().unwrap();
                let made = each[at].made();
                made.inspect(|made| made.barrier().unwrap());
                at
            };
            let mut first = [next(), next()];
            first.sort_unstable();
            assert_eq!(first, [1, 3], "nobody has ended the others");
            assert_eq!(total, [i32::try_from(comm.size()).unwrap()]);
            // A rank sends when all have come so far: it is the last that ends.
            comm.barrier().unwrap();
            let mut sent = send(comm, &all(&mut own), right, 3);
            let at = Request::wait_any(&each.each_ref()).unwrap();
            assert_eq!(at, Some(0));
            each[0].wait().unwrap();
            std::thread::scope(|threads| {
                let waits = threads.spawn(|| Request::wait_any(&each.each_ref()).unwrap());
                each[2].complete().unwrap();
                assert_eq!(waits.join().unwrap(), Some(2));
            });
            each[2].wait().unwrap();
            assert_eq!(Request::wait_any(&each.each_ref()).unwrap(), None);
            assert_eq!(word, [7]);
            sent.wait().unwrap();
        });
    }
}

#[test]
fn what_is_cancelled_takes_no_message_and_what_is_cut_says_so() {
    ranks(3, |comm| {
        let (left, right) = neighbors(comm);
        let (mut none, mut short, mut own) = ([0; 4], [0; 2], [1, 2, 3, 4]);
        let mut cancelled = recv(comm, &all(&mut none), left, 5);
        assert_eq!(cancelled.cancel(), Ok(true));
        comm.barrier().unwrap();
        let mut sent = send(comm, &all(&mut own), right, 5);
        let error = recv(comm, &all(&mut short), left, 5).wait().unwrap_err();
        let status = error.status().unwrap();
        assert_eq!((status.source, status.tag), (left, 5));
        let Error::Message(failure) = error else { panic!("{error}") };
        assert_eq!(failure.error, PmlError::Truncated { sent: 16, room: 8 });
        let Err(Error::Message(failure)) = cancelled.wait() else { panic!("it was cancelled") };
        assert_eq!(failure.error, PmlError::Cancelled);
        sent.wait().unwrap();
        assert_eq!((none, short), ([0; 4], [1, 2]));
    });
}

#[test]
fn dropped_requests_go_on() {
    for size in [3, 4] {
        ranks(size, |comm| {
            let (left, right) = neighbors(comm);
            // Nobody learns when what was dropped has ended: its memory stays for ever.
            let forever = |count: usize| vec![9; count].leak();
            let mut theirs = vec![0; 100_000];
            drop(send(comm, &all(forever(100_000)), right, 1));
            recv(comm, &all(&mut theirs), left, 1).wait().unwrap();
            assert_eq!(theirs, vec![9; 100_000]);
            let (given, result) = (all(forever(1)), all(forever(1)));
            // SAFETY: the numbers stay, and nobody touches them.
            drop(unsafe { Request::collective(comm, sum(&given, &result)) }.unwrap());
            let (mine, total) = (forever(1), forever(1));
            let (given, result) = (all(mine), all(total));
            // SAFETY: the numbers stay, and are touched between starts.
            let mut again =
                unsafe { Request::collective_init(comm, sum(&given, &result)) }.unwrap();
            for round in 1..5 {
                mine[0] = round;
                again.start().unwrap();
                again.wait().unwrap();
                assert_eq!(total, [round * i32::try_from(comm.size()).unwrap()]);
            }
            again.start().unwrap();
            drop(again);
            comm.barrier().unwrap();
        });
    }
}

/// A message of 60 numbers, in partitions of one kind at the sender and of another at the receiver.
const NUMBERS: usize = 60;

#[test]
fn partitions_of_a_message_come_one_by_one() {
    // Two numbers, and a gap of one.
    let pair = Datatype::contiguous(2, &i32::datatype()).unwrap();
    let pair = Datatype::resized(0, 12, &pair).unwrap().commit().unwrap();
    for (out, inn) in [(1, 1), (4, 3), (3, 5), (5, 1), (1, 5), (15, 10), (4, 6)] {
        ranks(2, |comm| match comm.rank() {
            0 => {
                let mut numbers = vec![0; NUMBERS];
                let typed = all(&mut numbers);
                // SAFETY: the numbers of a partition are touched before it is handed over.
                let sends = unsafe { Request::psend_init(comm, (out, &typed), 1, 6) };
                let mut sends = sends.unwrap();
                assert_eq!(sends.pready(0), Err(Error::Inactive));
                for round in 1..4 {
                    for (number, at) in numbers.iter_mut().zip(0..) {
                        *number = 1000 * round + at;
                    }
                    sends.start().unwrap();
                    sends.pready(out - 1).unwrap();
                    let twice = Error::Partition { partition: out - 1, partitions: out };
                    assert_eq!(sends.pready(out - 1), Err(twice));
                    assert!(sends.pready(out).is_err() && sends.parrived(0).is_err());
                    // The receiver has seen the last one.
                    comm.recv(&mut [0u8], 1, 0).unwrap();
                    (0..out - 1).for_each(|at| sends.pready(at).unwrap());
                    assert_eq!(sends.wait().unwrap().bytes, 240);
                }
            }
            _ => {
                let mut places = vec![-1; NUMBERS * 3 / 2];
                let typed = at(&mut places, &pair, NUMBERS as u64 / 2);
                // SAFETY: they are looked at when all have come.
                let receives = unsafe { Request::precv_init(comm, (inn, &typed), 0, 6) };
                let mut receives = receives.unwrap();
                assert_eq!(receives.parrived(0), Ok(true), "nothing was started");
                for round in 1..4 {
                    receives.start().unwrap();
                    assert!(receives.pready(0).is_err() && receives.parrived(inn).is_err());
                    // Partitions that end in the sender's last one have their beginning elsewhere, perhaps.
                    let numbers = u32::try_from(NUMBERS).unwrap();
                    let last = numbers - numbers / out;
                    let (full, part) = ((last * inn).div_ceil(numbers), inn - 1);
                    if full < inn {
                        until("a partition has come", || receives.parrived(part).unwrap());
                    }
                    assert_eq!(receives.parrived(0).unwrap(), full == 0 && out == 1);
                    comm.send(&[0u8], 0, 0).unwrap();
                    assert_eq!(receives.wait().unwrap().bytes, 240);
                    for (at, place) in places.chunks_exact(3).enumerate() {
                        let number = 1000 * round + 2 * i32::try_from(at).unwrap();
                        assert_eq!(place, [number, number + 1, -1], "{out} to {inn}");
                    }
                    assert_eq!(receives.parrived(0), Ok(true));
                }
            }
        });
    }
}

#[test]
fn partitioned_messages_of_a_tag_meet_in_the_order_of_their_description() {
    ranks(3, |comm| {
        let (left, right) = neighbors(comm);
        let (mut own, mut theirs) = ([[1; 6], [2; 6]], [[0; 6]; 2]);
        // Nothing that is sent otherwise meets them.
        let mut ordinary = recv(comm, &all(&mut [0; 6]), left, 9);
        let ends = |partitions, numbers: &mut [i32; 6], sends: bool| {
            let typed = all(numbers);
            let part = (partitions, &typed);
            let described = match sends {
                // SAFETY: the numbers stay as they are.
                true => unsafe { Request::psend_init(comm, part, right, 9) },
                // SAFETY: they are looked at when they have come.
                false => unsafe { Request::precv_init(comm, part, left, 9) },
            };
            described.unwrap()
        };
        let [one, two] = &mut own;
        let mut sends = [ends(2, one, true), ends(3, two, true)];
        let [one, two] = &mut theirs;
        let mut receives = [ends(6, one, false), ends(1, two, false)];
        for (send, receive) in sends.iter_mut().zip(&mut receives).rev() {
            receive.start().unwrap();
            send.start().unwrap();
            assert!(send.test().is_none(), "nothing was handed over");
        }
        (0..2).for_each(|at| sends[0].pready(at).unwrap());
        (0..3).for_each(|at| sends[1].pready(at).unwrap());
        for one in sends.iter_mut().chain(&mut receives) {
            one.wait().unwrap();
        }
        assert_eq!(theirs, [[1; 6], [2; 6]]);
        assert_eq!(ordinary.cancel(), Ok(true));
        ordinary.wait().unwrap_err();
        let [one, _] = &mut own;
        let typed = all(one);
        // SAFETY: they are refused.
        let uneven = unsafe { Request::psend_init(comm, (4, &typed), right, 9) };
        assert!(matches!(uneven, Err(Error::Partition { .. })), "{uneven:?}");
        // SAFETY: as above.
        let nobody = unsafe { Request::precv_init(comm, (1, &typed), 3, 9) };
        assert!(nobody.is_err());
        comm.barrier().unwrap();
    });
}
