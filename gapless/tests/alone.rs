//! A process without a launcher: a job of one, which can send to itself.

use gapless::{Communicator, Error, PmlError, Protocol, SendMode, Source, TagSel, World};

#[test]
fn messages_to_oneself_arrive() {
    let world = World::init().unwrap();
    assert_eq!((world.rank(), world.size()), (0, 1));
    let comm = world.comm();
    for len in [0usize, 1, 5000, 1 << 20, 16 << 20] {
        let out: Vec<u8> = (0..len).map(|i| (i % 251).to_le_bytes()[0]).collect();
        let mut into = vec![0u8; len];
        comm.scope(|s| {
            let _ = s.irecv(&mut into, 0, 5)?;
            let _ = s.isend(&out, 0, 5)?;
            Ok(())
        })
        .unwrap();
        assert!(into == out);
        into.fill(0);
        // The other way round.
        comm.scope(|s| {
            let _ = s.isend(&out, 0, 6)?;
            assert_eq!(s.comm().probe(Source::Any, TagSel::Any)?.bytes, len as u64);
            let _ = s.irecv(&mut into, Source::Any, TagSel::Any)?;
            Ok(())
        })
        .unwrap();
        assert!(into == out);
    }
    world.finalize().unwrap();
}

/// What `pml/tests/{modes,operations}.rs` test between ranks, through the safe API.
#[test]
fn modes_matched_probe_replacement_and_persistent_requests() {
    let world = World::init().unwrap();
    let comm = world.comm();
    for len in [0usize, 50, 3000, 200_000] {
        let out: Vec<u8> = (0..len).map(|at| (at % 251).to_le_bytes()[0]).collect();
        let mut into = vec![0u8; len];
        for mode in [Communicator::ssend, Communicator::rsend] {
            into.fill(0);
            comm.scope(|s| {
                let recv = s.irecv(&mut into, 0, 1)?;
                mode(comm, &out, 0, 1)?;
                s.wait(recv)
            })
            .unwrap();
            assert!(into == out);
        }
        into.fill(0);
        let sent = comm.isend_owned(out.clone(), 0, 2).unwrap();
        let message = comm.mprobe(Source::Any, 2).unwrap();
        assert_eq!(message.status().bytes, len as u64);
        comm.scope(|s| s.imrecv(message, &mut into).map(drop)).unwrap();
        sent.wait().1.unwrap();
        let status = comm.sendrecv_replace(&mut into, (0, 3), (0, TagSel::Any)).unwrap();
        assert_eq!((status.tag, into == out), (3, true));
    }
    let mut send = comm.send_init(vec![7u32], 0, 4, SendMode::Synchronous).unwrap();
    let mut recv = comm.recv_init(vec![0u32], 0, 4).unwrap();
    assert_eq!(recv.wait(), Err(Error::Inactive));
    for step in 0..100 {
        send.buffer_mut().unwrap()[0] = step;
        recv.start().unwrap();
        assert!(recv.buffer().is_err() && recv.start().is_err());
        send.start().unwrap();
        recv.wait().unwrap();
        send.wait().unwrap();
        assert_eq!(recv.buffer().unwrap(), [step]);
    }
    assert_eq!(send.into_buffer().unwrap(), [99]);
    // Dropped while active: it goes on.
    recv.start().unwrap();
    drop(recv);
    comm.send(&[7u32], 0, 4).unwrap();
    world.finalize().unwrap();
}

#[test]
fn one_is_left_of_one() {
    let world = World::init().unwrap();
    let (flags, group) = world.comm().agree(0b101).unwrap();
    assert_eq!((flags, group.size()), (0b101, 1));
    let shrunk = world.comm().shrink().unwrap();
    assert_eq!((shrunk.rank(), shrunk.size()), (0, 1));
    let sent = shrunk.isend_owned(vec![1u8], 0, 0).unwrap();
    assert_eq!(world.comm().iprobe(Source::Any, TagSel::Any).unwrap(), None);
    shrunk.recv(&mut [0u8], 0, 0).unwrap();
    sent.wait().1.unwrap();
    shrunk.free().unwrap();
    world.finalize().unwrap();
}

#[test]
fn the_communicator_of_oneself_is_another_one() {
    let world = World::init().unwrap();
    let myself = world.self_comm();
    assert_eq!((myself.rank(), myself.size()), (0, 1));
    let sent = world.comm().isend_owned(vec![1u8], 0, 0).unwrap();
    assert_eq!(myself.iprobe(Source::Any, TagSel::Any).unwrap(), None);
    assert!(world.comm().iprobe(0, 0).unwrap().is_some());
    world.comm().recv(&mut [0u8], 0, 0).unwrap();
    assert_eq!(sent.wait().1.unwrap().bytes, 1);
}

#[test]
fn bad_arguments_are_errors() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let refused = |result: Result<_, Error>| match result {
        Err(Error::Message(failure)) => failure.error,
        other => panic!("{other:?}"),
    };
    let missing = |what, rank| PmlError::InvalidRank { what, rank, size: 1 };
    assert_eq!(refused(comm.send(&[1u8], 1, 0)), missing("the destination of a send", 1));
    assert_eq!(refused(comm.send(&[1u8], 0, -1)), PmlError::InvalidTag { tag: -1 });
    let from = comm.recv(&mut [1u8], 7, 0);
    let said = "no rank 7 in a communicator or group of 1: it was given as the source of a receive or probe";
    assert_eq!(from.clone().unwrap_err().to_string(), said);
    assert_eq!(refused(from), missing("the source of a receive or probe", 7));
    assert_eq!(refused(comm.recv(&mut [1u8], 0, -3)), PmlError::InvalidTag { tag: -3 });
    assert!(comm.probe(9, 0).is_err());
    let refused = comm.irecv_owned(vec![1.0f32], 4, 0).unwrap_err();
    assert_eq!(refused.buffer, [1.0]);
    assert!(matches!(
        World::builder().only(["carrier-pigeon"]).init(),
        Err(Error::NoSuchTransport { .. })
    ));
}

/// However a result is asked for, the status of the message that a failed receive had taken is beside the error.
#[test]
fn a_receive_that_fails_says_whose_message_it_had_taken() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let send = |tag| {
        comm.send(&[7u8; 16], 0, tag).unwrap();
    };
    let check = |result: Result<_, Error>, tag| {
        let error = result.unwrap_err();
        let status = error.status().unwrap_or_else(|| panic!("{error} has no status"));
        assert_eq!((status.source, status.tag, status.bytes), (0, tag, 4), "{error}");
    };
    send(1);
    check(comm.recv(&mut [0u8; 4], Source::Any, TagSel::Any), 1);
    check(comm.sendrecv(&[1u8; 9], (0, 2), &mut [0u8; 4], (0, TagSel::Any)), 2);
    send(3);
    check(comm.mprobe(0, 3).unwrap().recv(&mut [0u8; 4]), 3);
    send(4);
    check(comm.irecv_owned(vec![0u8; 4], 0, 4).unwrap().wait().1, 4);
    let mut persistent = comm.recv_init(vec![0u8; 4], 0, TagSel::Any).unwrap();
    for tag in [5, 6] {
        persistent.start().unwrap();
        send(tag);
        check(persistent.wait(), tag);
    }
    let mut memory = [[0u8; 4]; 3];
    let ended = comm.scope(|s| {
        let recvs = (7..).zip(&mut memory).map(|(tag, memory)| s.irecv(memory, 0, tag));
        let recvs = recvs.collect::<Result<Vec<_>, _>>()?;
        (7..10).for_each(send);
        Ok(s.wait_all(recvs))
    });
    for (tag, result) in (7..).zip(ended.unwrap()) {
        check(result, tag);
    }
    let never = comm.recv(&mut [0u8; 4], 5, 0).unwrap_err();
    assert_eq!(never.status(), None, "{never}");
}

#[test]
fn what_outlives_its_world_is_told_so() {
    let world = World::init().unwrap();
    let comm = world.comm().clone();
    let unmatched = comm.irecv_owned(vec![0u8; 9], 0, 1).unwrap();
    let sent = comm.isend_owned(vec![5u8; 1 << 20], 0, 2).unwrap();
    let matched = comm.irecv_owned(vec![0u8; 1 << 20], 0, 2).unwrap();
    world.finalize().unwrap();
    assert_eq!(comm.send(&[1u8], 0, 0), Err(Error::Finalized));
    assert_eq!(comm.recv(&mut [1u8], 0, 0), Err(Error::Finalized));
    assert!(matches!(comm.dup(), Err(Error::Finalized)));
    let (buffer, result) = unmatched.wait();
    assert_eq!((buffer, result), (vec![0u8; 9], Err(PmlError::Cancelled.into())));
    let (buffer, result) = matched.wait();
    assert!(buffer.iter().all(|&byte| byte == 5));
    assert_eq!(result.unwrap().protocol, Protocol::Local);
    assert!(sent.wait().1.is_ok());
}

#[test]
fn memory_for_peers_is_memory() {
    let world = World::init().unwrap();
    let mut memory = world.alloc(100_000).unwrap();
    assert_eq!(memory.len(), 100_000);
    assert!(memory.iter().all(|&byte| byte == 0));
    memory[99_999] = 1;
    assert_eq!(world.alloc(0).unwrap().len(), 0);
    assert!(world.alloc(usize::MAX).is_err());
    // It may outlive the world, even in flight to a receive that is never posted.
    let request = world.comm().isend_owned(memory, 0, 0).unwrap();
    drop(world);
    let (memory, result) = request.wait();
    let unreceived = PmlError::Unreceived { rank: 0, tag: 0 };
    assert_eq!(result, Err(unreceived.into()));
    assert_eq!(memory[99_999], 1);
}

/// OpenCL follows any number that it takes for a handle, so numbers from safe code must not reach it.
#[cfg(feature = "opencl")]
#[test]
fn handles_that_were_made_up_are_not_followed() {
    use gapless::{Device, OpenClDevice, Space};
    let world = World::init().unwrap();
    let refuses = |context, device, queue| {
        let made_up = Space::OpenCl { context, device, queue };
        let error = world.alloc_device(made_up, 64).unwrap_err();
        assert!(matches!(&error, Error::NoDevice { space, .. } if *space == made_up), "{error}");
    };
    let ours = [0u64; 64];
    let address = ours.as_ptr().expose_provenance() as u64;
    for number in [0, 8, 1 << 40, address, u64::MAX] {
        refuses(number, number, None);
        refuses(number, number, Some(number));
    }
    let (real, gone) = match (OpenClDevice::open(0), OpenClDevice::open(0)) {
        (Ok(real), Ok(gone)) => (real, gone.space()),
        (Err(why), _) | (_, Err(why)) => {
            return gapless_btl_testkit::conformance::skip(
                "made-up handles beside real ones",
                &why.to_string(),
            );
        }
    };
    let Space::OpenCl { context, device, .. } = real.space() else { panic!("it is OpenCL's") };
    refuses(address, device, None);
    refuses(context, address, None);
    refuses(context, device, Some(address));
    let Space::OpenCl { context: gone, .. } = gone else { panic!("it is OpenCL's") };
    refuses(gone, device, None);
    let memory = world.alloc_device(real.space(), 64).unwrap();
    // The world's device has references of its own.
    drop(real);
    assert_eq!(memory.region().len(), 64);
    assert!(world.alloc_device(memory.region().space(), 64).is_ok());
}

#[test]
fn a_scope_has_requests_of_any_communicator_of_its_world() {
    let world = World::init().unwrap();
    let (comm, other) = (world.comm(), world.self_comm());
    let (mut one, mut two, mut never) = (0u32, 0u32, [0u8; 4]);
    comm.scope(|s| {
        let received = other.irecv(s, &mut one, 0, 1)?;
        let mut unmatched = comm.irecv(s, &mut never, 0, 9)?;
        let _ = s.irecv(&mut two, 0, 1)?;
        let sent = s.isend(&2u32, 0, 1)?;
        other.isend(s, &1u32, 0, 1)?.wait()?;
        assert_eq!(received.wait()?.bytes, 4);
        sent.wait()?;
        assert_eq!(unmatched.cancel(), Ok(true));
        let cancelled = unmatched.test().expect("it has ended").unwrap_err();
        assert_eq!(cancelled, PmlError::Cancelled.into());
        Ok(())
    })
    .unwrap();
    assert_eq!((one, two), (1, 2));

    let stranger = World::init().unwrap();
    let refused = comm.scope(|s| {
        let sent = stranger.comm().isend(s, &1u32, 0, 1).unwrap_err();
        assert_eq!(sent, Error::OtherWorld);
        stranger.comm().irecv(s, &mut two, 0, 1).map(drop)
    });
    assert_eq!(refused, Err(Error::OtherWorld));
    assert_eq!(stranger.comm().iprobe(Source::Any, TagSel::Any), Ok(None));
}
