//! Messages between processes through the safe API: requests that are waited for, dropped and forgotten, owned layouts,
//! scopes that panic. What the message layer does with any message is tested in `pml/tests`.

use crate::common::{pattern, ranks};
use gapless::{Datatype, Error, Owned, Primitive, Request, Source, TagSel};

#[test]
fn a_token_goes_round_more_ranks_than_cores() {
    ranks(5, "messages::a_token_goes_round_more_ranks_than_cores", |world| {
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
fn requests_are_waited_for_singly_and_together() {
    ranks(2, "messages::requests_are_waited_for_singly_and_together", |world| {
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
    ranks(2, "messages::dropped_and_forgotten_requests_keep_their_buffers", |world| {
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
    ranks(2, "messages::a_send_that_nobody_receives_does_not_keep_the_world", |world| {
        if world.rank() == 0 {
            std::mem::forget(world.comm().isend_owned(vec![1u8; 32 << 20], 1, 0).unwrap());
            drop(world.comm().isend_owned(vec![1u8; 32 << 20], 1, 0).unwrap());
        }
        world.finalize().unwrap();
    });
}

#[test]
fn owned_layouts_travel_and_come_back() {
    ranks(2, "messages::owned_layouts_travel_and_come_back", |world| {
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
    ranks(2, "messages::a_panicking_scope_cancels_what_was_not_matched", |world| {
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
