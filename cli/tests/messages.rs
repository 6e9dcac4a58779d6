//! Messages between processes through the safe API.

mod common;

use common::{pattern, ranks, ranks_with};
use gapless::{
    Config, Datatype, Error, Failure, Owned, PmlError, Primitive, Protocol, Request, Source,
    TagSel, View, ViewMut, World,
};

#[test]
fn a_token_goes_round_more_ranks_than_cores() {
    ranks(5, "a_token_goes_round_more_ranks_than_cores", |world| {
        let comm = world.comm();
        let (me, size) = (comm.rank(), comm.size());
        let mut token = [0u64];
        for round in 0..20 {
            if me == 0 {
                comm.send(&[round], 1, 3).unwrap();
                comm.recv(&mut token, size - 1, 3).unwrap();
                assert_eq!(token, [round + u64::from(size) - 1]);
            } else {
                let status = comm.recv(&mut token, Source::Any, TagSel::Any).unwrap();
                assert_eq!((status.source, status.tag, status.bytes), (me - 1, 3, 8));
                comm.send(&[token[0] + 1], (me + 1) % size, 3).unwrap();
            }
        }
        world.finalize().unwrap();
    });
}

#[test]
fn everybody_sends_to_everybody_at_once() {
    ranks(4, "everybody_sends_to_everybody_at_once", |world| {
        let comm = world.comm();
        let (me, size) = (comm.rank(), comm.size());
        for len in [0usize, 1, 100, 4096, 70_000, 1 << 20] {
            let seed = |from: u32, to: u32| u64::from(from * 16 + to);
            let out: Vec<_> = (0..size).map(|to| pattern(len, seed(me, to))).collect();
            let mut into = vec![vec![0u8; len]; size as usize];
            comm.scope(|s| {
                for (from, buffer) in (0..size).zip(&mut into) {
                    let _ = s.irecv(buffer, from, 1)?;
                }
                for (to, buffer) in (0..size).zip(&out) {
                    let _ = s.isend(buffer, to, 1)?;
                }
                Ok(())
            })
            .unwrap();
            for (from, buffer) in (0..size).zip(&into) {
                assert_eq!(buffer, &pattern(len, seed(from, me)), "{len} bytes from {from}");
            }
        }
    });
}

/// Both ranks start to send 64 MiB before either waits.
fn exchange_64_mib(world: &World) {
    const LEN: usize = 64 << 20;
    let comm = world.comm();
    let peer = 1 - comm.rank();
    let mut shared = world.alloc(LEN).unwrap();
    shared.copy_from_slice(&pattern(LEN, u64::from(comm.rank())));
    let heap = shared.to_vec();
    let expected = pattern(LEN, u64::from(peer));
    // From the caller's memory.
    let mut into = vec![0u8; LEN];
    comm.scope(|s| {
        let sent = s.isend(&heap, peer, 0)?;
        let received = s.irecv(&mut into, peer, 0)?;
        s.wait_all([sent, received]).into_iter().try_for_each(|result| result.map(drop))
    })
    .unwrap();
    assert!(into == expected);
    // Owned, and one of the receives late.
    let sent = comm.isend_owned(shared, peer, 1).unwrap();
    into.fill(0);
    comm.recv(&mut into, peer, 1).unwrap();
    assert!(into == expected);
    let (shared, status) = sent.wait();
    assert_eq!(status.unwrap().bytes, LEN as u64);
    assert_eq!(shared.len(), LEN);
}

#[test]
fn both_send_before_either_waits() {
    ranks(2, "both_send_before_either_waits", |world| {
        exchange_64_mib(&world);
        world.finalize().unwrap();
    });
}

#[test]
fn both_send_before_either_waits_by_pipeline() {
    let builder =
        || World::builder().config(Config { force: Some(Protocol::Pipeline), ..Config::default() });
    ranks_with(2, "both_send_before_either_waits_by_pipeline", builder, |world| {
        exchange_64_mib(&world);
        world.finalize().unwrap();
    });
}

#[test]
fn gaps_are_not_touched_and_columns_become_rows() {
    ranks(2, "gaps_are_not_touched_and_columns_become_rows", |world| {
        let comm = world.comm();
        for n in [4usize, 30, 300, 1000] {
            let rows = n as u64;
            let stride = i64::try_from(n).unwrap();
            let double = Datatype::from(Primitive::Double);
            // Long runs are moved from layout to layout, short ones packed and unpacked by a process each.
            let width = if n == 1000 { 100 } else { 2 };
            let column = Datatype::vector(rows, width as u64, stride, &double);
            let column = column.unwrap().commit().unwrap();
            let matrix: Vec<f64> =
                (0..n * n).map(|i| f64::from(u32::try_from(i).unwrap())).collect();
            if comm.rank() == 0 {
                let mut shared = world.alloc(n * n * 8).unwrap();
                let bytes: Vec<u8> = matrix.iter().flat_map(|x| x.to_ne_bytes()).collect();
                shared.copy_from_slice(&bytes);
                comm.send(View::typed(&matrix, 1, &column, 1).unwrap(), 1, 0).unwrap();
                comm.send(View::typed(&shared, 8, &column, 1).unwrap(), 1, 1).unwrap();
            } else {
                let mut row = vec![-1.0f64; width * n];
                comm.recv(&mut row, 0, 0).unwrap();
                for (i, run) in row.chunks(width).enumerate() {
                    assert_eq!(run, &matrix[i * n + 1..][..width]);
                }
                let mut other = vec![-1.0f64; n * n];
                let view = ViewMut::typed(&mut other, 2, &column, 1).unwrap();
                let status = comm.recv(view, 0, 1).unwrap();
                if n == 1000 {
                    assert_eq!(status.protocol, Protocol::Mapped);
                }
                for (at, value) in other.iter().enumerate() {
                    let inside = (2..2 + width).contains(&(at % n));
                    let expected = if inside { matrix[at - 1] } else { -1.0 };
                    assert_eq!(*value, expected, "{at}");
                }
            }
        }
    });
}

#[test]
fn what_does_not_fit_is_an_error_at_the_receiver_alone() {
    ranks(2, "what_does_not_fit_is_an_error_at_the_receiver_alone", |world| {
        let comm = world.comm();
        for len in [100usize, 100_000, 10_000_000] {
            if comm.rank() == 0 {
                comm.send(&pattern(len, 1), 1, 0).unwrap();
                comm.send(&vec![1.0f64; len / 8], 1, 1).unwrap();
                comm.send(&[7u8], 1, 2).unwrap();
                continue;
            }
            let mut memory = vec![0xee_u8; len];
            let error = comm.recv(&mut memory[..len / 2], 0, 0).unwrap_err();
            let (sent, room) = (len as u64, len as u64 / 2);
            let message = |error: &Error| error.status().map(|s| (s.source, s.tag, s.bytes));
            assert_eq!(message(&error), Some((0, 0, room)), "{error}");
            let Error::Message(failure) = error else { panic!("{error}") };
            assert_eq!(failure.error, PmlError::Truncated { sent, room });
            assert!(memory[len / 2..].iter().all(|&byte| byte == 0xee), "an overrun");
            let mut integers = vec![-1i32; len];
            let error = comm.recv(&mut integers, 0, 1).unwrap_err();
            assert_eq!(message(&error), Some((0, 1, 0)), "{error}");
            assert!(matches!(
                error,
                Error::Message(Failure { error: PmlError::SignatureMismatch { .. }, .. })
            ));
            assert!(integers.iter().all(|&i| i == -1), "a mismatch wrote");
            // The next message is not harmed.
            let mut byte = [0u8];
            comm.recv(&mut byte, 0, 2).unwrap();
            assert_eq!(byte, [7]);
        }
    });
}

#[test]
fn duplicates_keep_their_messages_apart() {
    ranks(3, "duplicates_keep_their_messages_apart", |world| {
        let comm = world.comm();
        let other = comm.dup().unwrap();
        let third = other.dup().unwrap();
        let next = (comm.rank() + 1) % comm.size();
        let sent = [1u8, 2, 3].map(|value| vec![value]);
        let mut got = [[0u8; 1]; 3];
        let [a, b, c] = &mut got;
        comm.scope(|s| {
            let _ = s.isend(&sent[0], next, 0)?;
            other.scope(|t| {
                let _ = t.isend(&sent[1], next, 0)?;
                third.scope(|u| {
                    let _ = u.isend(&sent[2], next, 0)?;
                    // In an order that would mix them up.
                    third.recv(c, Source::Any, TagSel::Any)?;
                    other.recv(b, Source::Any, TagSel::Any)?;
                    comm.recv(a, Source::Any, TagSel::Any).map(drop)
                })
            })
        })
        .unwrap();
        assert_eq!(got, [[1], [2], [3]]);
    });
}

#[test]
fn probing_shows_what_a_receive_would_get() {
    ranks(2, "probing_shows_what_a_receive_would_get", |world| {
        let comm = world.comm();
        if comm.rank() == 0 {
            let mut go = [0u8];
            assert_eq!(comm.iprobe(1, 9).unwrap(), None);
            comm.send(&[0u8; 100], 1, 4).unwrap();
            comm.send(&vec![0u8; 1 << 20], 1, 5).unwrap();
            comm.recv(&mut go, 1, 9).unwrap();
        } else {
            let status = comm.probe(Source::Any, TagSel::Any).unwrap();
            assert_eq!((status.source, status.tag, status.bytes), (0, 4, 100));
            let status = comm.probe(0, 5).unwrap();
            assert_eq!(status.bytes, 1 << 20);
            comm.recv(&mut vec![0u8; 1 << 20], 0, 5).unwrap();
            comm.recv(&mut [0u8; 100], 0, 4).unwrap();
            assert_eq!(comm.iprobe(0, TagSel::Any).unwrap(), None);
            comm.send(&[1u8], 0, 9).unwrap();
        }
    });
}

#[test]
fn requests_are_waited_for_singly_and_together() {
    ranks(2, "requests_are_waited_for_singly_and_together", |world| {
        let comm = world.comm();
        const COUNT: u8 = 40;
        if comm.rank() == 0 {
            comm.recv(&mut [0u8], 1, 1000).unwrap();
            for tag in (0..COUNT).rev() {
                comm.send(&[tag], 1, i32::from(tag)).unwrap();
            }
            return;
        }
        let mut bytes = vec![[0u8; 1]; usize::from(COUNT)];
        comm.scope(|s| {
            let mut requests = Vec::new();
            for (tag, byte) in (0..i32::from(COUNT)).zip(&mut bytes) {
                requests.push(s.irecv(byte, 0, tag)?);
            }
            let first = requests.remove(0);
            let first = s.test(first).expect_err("nothing was sent yet");
            assert!(s.test_any(&mut requests).is_none());
            assert!(s.test_some(&mut requests).is_empty());
            let mut requests = s.test_all(requests).expect_err("nothing was sent yet");
            assert_eq!(requests.len(), usize::from(COUNT) - 1);
            comm.send(&[1u8], 0, 1000)?;
            let (index, status) = s.wait_any(&mut requests).expect("there are requests");
            assert_eq!(usize::try_from(status?.tag).unwrap(), index + 1);
            let some = s.wait_some(&mut requests);
            assert!(!some.is_empty());
            assert_eq!(some.len() + requests.len(), usize::from(COUNT) - 2);
            // Tag 0 came last: all the others are here.
            s.wait(first)?;
            if let Some((_, status)) = s.test_any(&mut requests) {
                assert!(requests.len() < usize::from(COUNT) - 2 && status?.tag > 0);
            }
            let mut half = requests.split_off(requests.len() / 2);
            let ended = s.test_some(&mut half);
            assert!(ended.iter().all(|(_, result)| result.is_ok()) && half.is_empty());
            let ended = s.test_all(requests).expect("all have ended");
            assert!(ended.iter().all(Result::is_ok));
            let mut none = Vec::<Request<'_>>::new();
            assert!(s.test_any(&mut none).is_none());
            assert!(s.wait_any(&mut none).is_none());
            assert!(s.wait_some(&mut none).is_empty());
            assert_eq!(s.test_all(none).expect("none is in flight").len(), 0);
            assert!(s.wait_all(Vec::<Request<'_>>::new()).is_empty());
            Ok(())
        })
        .unwrap();
        assert!((0..COUNT).zip(&bytes).all(|(tag, byte)| byte == &[tag]));
    });
}

#[test]
fn dropped_and_forgotten_requests_keep_their_buffers() {
    ranks(2, "dropped_and_forgotten_requests_keep_their_buffers", |world| {
        let comm = world.comm();
        let peer = 1 - comm.rank();
        for len in [10usize, 1 << 20, 20 << 20] {
            let mine = pattern(len, u64::from(comm.rank()));
            let theirs = pattern(len, u64::from(peer));
            std::mem::forget(comm.isend_owned(mine.clone(), peer, 0).unwrap());
            drop(comm.isend_owned(mine.clone().into_boxed_slice(), peer, 1).unwrap());
            let mut shared = world.alloc(len).unwrap();
            shared.copy_from_slice(&mine);
            drop(comm.isend_owned(shared, peer, 2).unwrap());
            // Receives that will be matched, and ones that never are.
            std::mem::forget(comm.irecv_owned(vec![0u8; len], peer, 0).unwrap());
            drop(comm.irecv_owned(vec![0u64; len / 8], peer, 77).unwrap());
            std::mem::forget(comm.irecv_owned(vec![0u8; len], peer, 78).unwrap());
            let mut into = vec![0u8; len];
            comm.recv(&mut into, peer, 1).unwrap();
            assert!(into == theirs);
            into.fill(0);
            comm.recv(&mut into, peer, 2).unwrap();
            assert!(into == theirs);
        }
        world.finalize().unwrap();
    });
}

#[test]
fn a_send_that_nobody_receives_does_not_keep_the_world() {
    ranks(2, "a_send_that_nobody_receives_does_not_keep_the_world", |world| {
        if world.rank() == 0 {
            std::mem::forget(world.comm().isend_owned(vec![1u8; 32 << 20], 1, 0).unwrap());
            drop(world.comm().isend_owned(vec![1u8; 32 << 20], 1, 0).unwrap());
        }
        world.finalize().unwrap();
    });
}

#[test]
fn owned_layouts_travel_and_come_back() {
    ranks(2, "owned_layouts_travel_and_come_back", |world| {
        let comm = world.comm();
        let double = Datatype::from(Primitive::Double);
        let odd = Datatype::vector(500, 1, 2, &double).unwrap().commit().unwrap();
        if comm.rank() == 0 {
            let list: Vec<f64> = (0..1000u32).map(f64::from).collect();
            let request = comm.isend_owned(Owned::typed(list.clone(), 1, &odd, 1), 1, 0).unwrap();
            let (back, status) = request.wait();
            assert_eq!(status.unwrap().bytes, 4000);
            assert_eq!(back, list);
            let refused = comm.isend_owned(Owned::typed(back, 2, &odd, 1), 1, 0).unwrap_err();
            assert_eq!(refused.buffer, list);
            assert!(matches!(refused.error, Error::Buffer(_)));
        } else {
            let mut request = comm.irecv_owned(vec![0.0f64; 500], 0, 0).unwrap();
            let (list, status) = loop {
                match request.test() {
                    Ok(done) => break done,
                    Err(again) => request = again,
                }
            };
            assert_eq!(status.unwrap().source, 0);
            assert!((0u32..).zip(&list).all(|(i, x)| *x == f64::from(2 * i + 1)));
        }
    });
}

#[test]
fn a_panicking_scope_cancels_what_was_not_matched() {
    ranks(2, "a_panicking_scope_cancels_what_was_not_matched", |world| {
        let comm = world.comm();
        if comm.rank() == 0 {
            let mut never = [0u8; 64];
            let mut big = vec![0u8; 1 << 22];
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                comm.scope(|s| -> Result<(), Error> {
                    let _ = s.irecv(&mut never, 1, 500)?;
                    let _ = s.irecv(&mut big, 1, 1)?;
                    comm.send(&[1u8], 1, 0)?;
                    comm.recv(&mut [0u8], 1, 2)?;
                    panic!("on purpose");
                })
            }));
            assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"on purpose"));
            // Nothing is left behind that would take this message.
            comm.send(&[1u8], 1, 0).unwrap();
            let mut word = [0u8; 64];
            assert_eq!(comm.recv(&mut word, 1, 500).unwrap().bytes, 3);
            // The same where the body fails.
            let failed = comm.scope(|s| -> Result<(), Error> {
                let _ = s.irecv(&mut never, 1, 500)?;
                Err(Error::Poisoned)
            });
            assert_eq!(failed, Err(Error::Poisoned));
            comm.send(&[1u8], 1, 3).unwrap();
        } else {
            comm.recv(&mut [0u8], 0, 0).unwrap();
            comm.scope(|s| {
                let big = vec![5u8; 1 << 22];
                let sent = comm.isend_owned(big, 0, 1)?;
                let _ = s.comm();
                comm.send(&[1u8], 0, 2)?;
                sent.wait().1.map(drop)
            })
            .unwrap();
            comm.recv(&mut [0u8], 0, 0).unwrap();
            comm.send(&[1u8, 2, 3], 0, 500).unwrap();
            // Nobody receives from a process that has left.
            comm.recv(&mut [0u8], 0, 3).unwrap();
        }
    });
}

#[test]
fn threads_share_a_world() {
    ranks(2, "threads_share_a_world", |world| {
        let comms: Vec<_> = (0..3).map(|_| world.comm().dup().unwrap()).collect();
        let peer = 1 - world.rank();
        std::thread::scope(|threads| {
            for (seed, comm) in (0u64..).zip(&comms) {
                threads.spawn(move || {
                    for round in 0..30 {
                        let len = 1 << (round % 20);
                        let mut into = vec![0u8; len];
                        let out = pattern(len, seed);
                        comm.scope(|s| {
                            let _ = s.isend(&out, peer, 0)?;
                            let _ = s.irecv(&mut into, peer, 0)?;
                            Ok(())
                        })
                        .unwrap();
                        assert!(into == out);
                    }
                });
            }
        });
        world.finalize().unwrap();
    });
}
