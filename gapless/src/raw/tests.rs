use super::{Buffer, Operation, Request, Typed, Window, Work, collective, view, view_mut};
use crate::{
    Assertions, Communicator, Equivalence, Error, Lock, PmlError, Primitive, Protocol, ReduceOp,
    Root, SendMode, Source, Space, Status, TagSel, Topology, World,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// All of some numbers.
fn all(numbers: &mut [i32]) -> Typed {
    let address = numbers.as_mut_ptr().expose_provenance() as u64;
    Typed::at(Space::Host, address, i32::layout(), numbers.len() as u64).unwrap()
}

fn send(comm: &Communicator, typed: &Typed, tag: i32) -> Request {
    // SAFETY: all callers keep the numbers until the world has been left.
    unsafe { Request::send(comm, typed, 0, tag, SendMode::Standard) }.unwrap()
}

fn recv(comm: &Communicator, typed: &Typed, tag: i32) -> Request {
    // SAFETY: as above; nobody looks at them before the request has ended.
    unsafe { Request::recv(comm, typed, Source::Any, TagSel::Is(tag)) }.unwrap()
}

/// The buffers of an allreduce.
fn sum(sent: &Typed, received: &Typed) -> crate::Collective<'static> {
    let sides = (Buffer::Whole(sent.clone()), Buffer::Whole(received.clone()));
    let op = Some(ReduceOp::Sum.into());
    // SAFETY: as above.
    unsafe { collective(Operation::Allreduce, Root::Rank(0), sides, &[], op) }
}

fn message(error: &Error) -> &PmlError {
    match error {
        Error::Message(failure) => &failure.error,
        other => panic!("{other}"),
    }
}

#[test]
fn a_message_ends_once_and_can_be_looked_at_before() {
    let world = World::init().unwrap();
    let comm = world.comm();
    for count in [3, 100_000] {
        let (mut from, mut into) = (vec![7; count], vec![0; count]);
        let (from, typed) = (all(&mut from), all(&mut into));
        let mut receive = recv(comm, &typed, 1);
        assert!(receive.peek().is_none() && receive.test().is_none() && receive.is_active());
        let mut sent = send(comm, &from, 1);
        sent.wait().unwrap();
        let seen = receive.peek().unwrap().unwrap();
        assert_eq!((seen.bytes, seen.tag), (4 * count as u64, 1));
        assert_eq!(receive.peek(), Some(Ok(seen)), "looking takes nothing");
        assert_eq!(receive.test(), Some(Ok(seen)));
        assert_eq!(into, vec![7; count]);
        for over in [&mut receive, &mut sent] {
            assert!(!over.is_active() && !over.is_persistent());
            assert_eq!(over.test(), Some(Err(Error::Inactive)));
            assert_eq!(over.wait(), Err(Error::Inactive));
            assert_eq!(over.peek(), Some(Err(Error::Inactive)));
            assert_eq!(over.cancel(), Err(Error::Inactive));
            assert_eq!(message(&over.start().unwrap_err()), &PmlError::NoSuchRequest);
        }
    }
    world.finalize().unwrap();
}

#[test]
fn a_long_message_is_cut_and_its_status_says_so() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let (mut from, mut into) = ([1, 2, 3, 4], [0, 0]);
    let (from, typed) = (all(&mut from), all(&mut into));
    let mut receive = recv(comm, &typed, 5);
    send(comm, &from, 5).wait().unwrap();
    let seen = receive.peek().unwrap().unwrap_err();
    let error = receive.wait().unwrap_err();
    assert_eq!(seen, error);
    assert_eq!(message(&error), &PmlError::Truncated { sent: 16, room: 8 });
    let status = error.status().unwrap();
    assert_eq!((status.tag, status.source), (5, 0));
    assert_eq!(into, [1, 2], "what fits was written");
    world.finalize().unwrap();
}

#[test]
fn what_is_cancelled_says_so_and_what_is_not_goes_on() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let mut into = [0];
    let typed = all(&mut into);
    let mut receive = recv(comm, &typed, 1);
    assert_eq!(receive.cancel(), Ok(true));
    assert_eq!(message(&receive.wait().unwrap_err()), &PmlError::Cancelled);
    let mut general = Request::general(comm).unwrap();
    assert_eq!(general.cancel(), Ok(false));
    assert!(general.is_active() && general.test().is_none());
    general.complete().unwrap();
    general.wait().unwrap();
    world.finalize().unwrap();
}

#[test]
fn dropped_requests_go_on() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let (mut from, mut into) = (vec![9; 100_000], vec![0; 100_000]);
    let (sent, received) = (all(&mut from), all(&mut into));
    drop(recv(comm, &received, 3));
    drop(send(comm, &sent, 3));
    drop(Request::general(comm).unwrap());
    drop(Request::dup(comm).unwrap());
    let (mut one, mut other) = ([1], [0]);
    let (one, other) = (all(&mut one), all(&mut other));
    // SAFETY: the numbers stay.
    drop(unsafe { Request::collective(comm, sum(&one, &other)) }.unwrap());
    // The duplicate is freed, here alone.
    let unwanted = || comm.shared.with(|state| Ok(state.works.len())).unwrap();
    let freed = (0..1000).any(|_| comm.iprobe(0, 99).is_ok_and(|_| unwanted() == 0));
    assert!(freed);
    // Never matched.
    drop(recv(comm, &other, 77));
    world.finalize().unwrap();
    assert_eq!(into, from);
}

#[test]
fn leaving_waits_for_no_request_that_nobody_completes() {
    let world = World::init().unwrap();
    let mut general = Request::general(world.comm()).unwrap();
    world.finalize().unwrap();
    assert_eq!(general.wait(), Err(Error::Finalized));
}

#[test]
fn persistent_requests_are_started_again() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let (mut from, mut into) = ([0], [0]);
    let (sent, received) = (all(&mut from), all(&mut into));
    // SAFETY: the numbers stay, and are touched only between starts.
    let out = unsafe { Request::send_init(comm, &sent, 0, 4, SendMode::Synchronous) };
    // SAFETY: as above.
    let inn = unsafe { Request::recv_init(comm, &received, Source::Rank(0), TagSel::Any) };
    let (mut out, mut inn) = (out.unwrap(), inn.unwrap());
    for round in 1..4 {
        from[0] = round;
        assert!(inn.is_persistent() && !inn.is_active());
        assert_eq!(Request::wait_any(&[&inn, &out]), Ok(None), "none is active");
        inn.start().unwrap();
        assert_eq!(message(&inn.start().unwrap_err()), &PmlError::StillActive);
        out.start().unwrap();
        inn.wait().unwrap();
        out.wait().unwrap();
        assert_eq!(into, [round]);
    }
    inn.start().unwrap();
    assert_eq!(inn.cancel(), Ok(true));
    inn.wait().unwrap_err();
    out.start().unwrap();
    drop(out);
    inn.start().unwrap();
    inn.wait().unwrap();
    world.finalize().unwrap();
}

#[test]
fn collectives_once_and_often() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let (mut from, mut into) = ([3, 4], [0, 0]);
    let (sent, received) = (all(&mut from), all(&mut into));
    comm.perform(sum(&sent, &received)).unwrap();
    assert_eq!(into, [3, 4]);
    from[0] = 5;
    // SAFETY: the numbers stay, and are touched only when it has ended.
    let mut once = unsafe { Request::collective(comm, sum(&sent, &received)) }.unwrap();
    assert_eq!(Request::wait_any(&[&once]), Ok(Some(0)));
    assert_eq!(once.peek().unwrap().unwrap().bytes, 0);
    assert_eq!(once.cancel(), Ok(false));
    once.test().unwrap().unwrap();
    assert_eq!((into, once.is_active()), ([5, 4], false));
    assert_eq!(once.wait(), Err(Error::Inactive));
    // SAFETY: as above.
    let mut often = unsafe { Request::collective_init(comm, sum(&sent, &received)) }.unwrap();
    for round in 0..4 {
        from[0] = round;
        assert!(often.is_persistent() && !often.is_active());
        assert_eq!(often.peek(), Some(Err(Error::Inactive)));
        often.start().unwrap();
        assert_eq!(message(&often.start().unwrap_err()), &PmlError::StillActive);
        often.wait().unwrap();
        assert_eq!(into, [round, 4]);
    }
    let sides = (Buffer::Whole(sent), Buffer::InPlace);
    // SAFETY: it is refused.
    let call = unsafe { collective(Operation::Bcast, Root::Rank(0), sides, &[], None) };
    // SAFETY: as above.
    let refused = unsafe { Request::collective(comm, call) };
    assert!(matches!(refused, Err(Error::Collective { .. })), "{refused:?}");
    world.finalize().unwrap();
}

#[test]
fn a_duplicate_has_the_topology() {
    let world = World::init().unwrap();
    let grid = world.comm().cart_create(&[1], &[true], false).unwrap().unwrap();
    let mut request = Request::dup(&grid).unwrap();
    assert!(request.made().is_none());
    request.wait().unwrap();
    let made = request.made().unwrap();
    assert!(matches!(made.topology(), Some(Topology::Cartesian(_))), "{made:?}");
    assert!(request.made().is_none() && !request.is_active());
    made.barrier().unwrap();
    world.finalize().unwrap();
}

#[test]
fn a_thread_completes_what_another_waits_for() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let mut into = [0];
    let typed = all(&mut into);
    let (never, general) = (recv(comm, &typed, 8), Request::general(comm).unwrap());
    assert_eq!(Request::test_some(&[&never, &general]), Ok(vec![]));
    std::thread::scope(|threads| {
        let waits = threads.spawn(|| Request::wait_any(&[&never, &general]));
        general.complete().unwrap();
        assert_eq!(waits.join().unwrap(), Ok(Some(1)));
    });
    assert_eq!(message(&general.complete().unwrap_err()), &PmlError::NoSuchRequest);
    assert_eq!(message(&never.complete().unwrap_err()), &PmlError::NoSuchRequest);
    let over = Status { source: 4, tag: 5, bytes: 6, protocol: Protocol::Eager };
    let mut ended = Request::ended(comm, over);
    assert_eq!(Request::test_some(&[&never, &general, &ended]), Ok(vec![1, 2]));
    assert_eq!(comm.wait_any(&[&never, &ended]), Ok(Some(1)), "with other handles, too");
    assert_eq!((ended.peek(), ended.wait()), (Some(Ok(over)), Ok(over)));
    assert!(!ended.is_active());
    let other = World::init().unwrap();
    let elsewhere = Request::general(other.comm()).unwrap();
    assert_eq!(Request::wait_any(&[&general, &elsewhere]), Err(Error::OtherWorld));
    drop(elsewhere);
    other.finalize().unwrap();
    world.finalize().unwrap();
}

#[test]
fn a_matched_message_is_received() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let (mut from, mut into) = ([6], [0]);
    let (from, typed) = (all(&mut from), all(&mut into));
    // SAFETY: `from` is borrowed by nobody else.
    comm.send(unsafe { view(from) }, 0, 2).unwrap();
    let taken = comm.mprobe(0, 2).unwrap();
    // SAFETY: `into` is not looked at before it has ended.
    unsafe { Request::recv_message(taken, &typed) }.unwrap().wait().unwrap();
    assert_eq!(into, [6]);
    comm.send(&[8], 0, 2).unwrap();
    // SAFETY: as above.
    comm.recv(unsafe { view_mut(typed) }, 0, 2).unwrap();
    assert_eq!(into, [8]);
    world.finalize().unwrap();
}

/// Is over when it is told so.
#[derive(Debug)]
struct Told(AtomicBool, Result<Status, Error>);

impl Work for Told {
    fn advance(&self, _: &mut gapless_pml::Pml) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn finish(&self) -> Result<Status, Error> {
        self.1.clone()
    }
}

#[test]
fn work_of_this_process_is_waited_for() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let work = Arc::new(Told(AtomicBool::new(false), Err(Error::NoGrid)));
    let mut request = Request::of_work(comm, Arc::clone(&work) as _).unwrap();
    let dropped = Request::of_work(comm, Arc::clone(&work) as _).unwrap();
    drop(dropped);
    assert!(request.test().is_none());
    work.0.store(true, Ordering::Relaxed);
    assert_eq!(request.wait(), Err(Error::NoGrid));
    let state = comm.shared.with(|state| Ok(state.works.len()));
    assert_eq!(state, Ok(0));
    world.finalize().unwrap();
}

/// What is compared may lie where the result goes, and numbers have C's names.
#[test]
fn numbers_of_a_window_are_changed_in_place() {
    let world = World::init().unwrap();
    let window = Window::allocate(world.comm(), 64, 8).unwrap();
    window.lock(0, Lock::Exclusive, Assertions::empty()).unwrap();
    let (long, new, mut both, mut found) = (Primitive::Long, 7i64, 0i64, -1i64);
    let (new, both, found) = ((&raw const new).cast(), (&raw mut both).cast(), &raw mut found);
    for expected in [0, 7] {
        // SAFETY: here and below: the numbers are this function's, and their reads have ended when a call returns, as the
        // window is this process's own.
        unsafe { window.compare_and_swap(new, both, both, long, 0, 3) }.unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { both.cast::<i64>().read() }, expected);
    }
    for (op, before) in [(ReduceOp::Sum, 7), (ReduceOp::Max, 14), (ReduceOp::NoOp, 14)] {
        let origin = (op != ReduceOp::NoOp).then_some(new);
        // SAFETY: as above.
        unsafe { window.fetch_and_op(origin, found.cast(), long, 0, 3, op) }.unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { found.read() }, before, "{op:?}");
    }
    // SAFETY: as above.
    let refused = unsafe { window.fetch_and_op(None, found.cast(), long, 0, 3, ReduceOp::Sum) };
    assert!(refused.is_err(), "a sum of nothing");
    window.unlock(0).unwrap();
    window.free().unwrap();
    world.finalize().unwrap();
}
