//! In one process, which calls itself.

use super::*;
use crate::{Datatype, World, task};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{ThreadId, current};

#[derive(Datatype, Clone, Copy, Debug, PartialEq)]
#[datatype(crate = crate)]
#[repr(C)]
struct Rectangle {
    filled: bool,
    w: f64,
    h: f32,
}

/// Of a rectangle.
#[task(crate = crate)]
fn area(shape: Rectangle, mut scale: f64) -> f64 {
    if !shape.filled {
        scale = 0.0;
    }
    shape.w * f64::from(shape.h) * scale
}

#[task(crate = crate)]
fn add(sum: &AtomicU64, weight: u64, numbers: &[u32]) {
    let all: u64 = numbers.iter().copied().map(u64::from).sum();
    sum.fetch_add(weight * all, Ordering::Relaxed);
}

#[task(crate = crate)]
fn letters(from: char, count: u32) -> Result<Vec<char>, String> {
    let end = char::from_u32(u32::from(from) + count).ok_or(format!("no {count} letters"))?;
    Ok((from..end).collect())
}

#[task(crate = crate)]
fn breaks(how: u8) -> u8 {
    assert!(how != 3, "as it was told: {how}");
    how
}

type Here = (Tasks, ThreadId, Mutex<Vec<CallRequest<area>>>);

/// Drops calls, which the caller has made. Whether it runs on the thread that made its state.
#[task(crate = crate, quick)]
fn here(state: &Here, call: bool) -> Result<bool, Error> {
    state.2.lock().unwrap().clear();
    if call {
        drop(state.0.call(Rank(0), breaks(1))?);
    }
    Ok(state.1 == current().id())
}

/// Waits for a word, and then for another such call.
#[task(crate = crate)]
fn nests(state: &(Tasks, Mutex<Receiver<()>>), inner: bool) -> Result<(), Error> {
    state.1.lock().unwrap().recv().unwrap();
    if inner { Ok(()) } else { state.0.call(Rank(0), nests(true))?.wait() }
}

/// Gets what has ended of several, and does not wait for what has not.
#[task(crate = crate)]
fn waits(tasks: &Tasks) -> Result<(), Error> {
    let me = Rank(0);
    let mut ended = vec![tasks.call(me, breaks(1))?, tasks.call(me, breaks(2))?];
    while tasks.calls.results() < 2 {
        tasks.progress()?;
    }
    assert_eq!(CallRequest::test_any(&mut ended), Some((0, Ok(1))));
    assert_eq!(CallRequest::wait_some(&mut ended), [(0, Ok(2))]);
    let mut hanging = vec![tasks.call(me, nests(true))?];
    assert!(CallRequest::test_some(&mut hanging).is_empty());
    let (index, error) = CallRequest::wait_any(&mut hanging).unwrap();
    assert_eq!((index, fault(error)), (0, CallFault::InTask));
    hanging.push(tasks.call(me, nests(true))?);
    let some = CallRequest::wait_some(&mut hanging);
    assert!(matches!(&some[..], [(0, Err(Error::Call(_)))]) && hanging.is_empty(), "{some:?}");
    Ok(())
}

fn fault<T: fmt::Debug>(result: Result<T, Error>) -> CallFault {
    match result {
        Err(Error::Call(error)) => error.why,
        other => panic!("{other:?}"),
    }
}

const PATH: &str = "gapless::xtq::typed::tests";

#[test]
fn arguments_and_results_of_all_kinds_come_through() {
    let world = World::init().unwrap();
    let (tasks, me) = (world.xtq(), Rank(0));
    tasks.register_task::<area>().unwrap();
    tasks.register_task::<letters>().unwrap();
    let sum = Arc::new(AtomicU64::new(0));
    tasks.register_task_with::<add>(Arc::clone(&sum)).unwrap();
    let shape = Rectangle { filled: true, w: 3.0, h: 2.0 };
    let areas: Vec<_> =
        (0..300u16).map(|i| tasks.call(me, area(shape, f64::from(i))).unwrap()).collect();
    for (i, result) in (0u16..).zip(CallRequest::wait_all(areas)) {
        assert_eq!(result, Ok(6.0 * f64::from(i)));
    }
    let numbers: Vec<u32> = (0..100_000).collect();
    for count in [0, 1, 127, 5000, 100_000] {
        let before = sum.load(Ordering::Relaxed);
        tasks.call(me, add(2, &numbers[..count])).unwrap().wait().unwrap();
        let due = (count * count.saturating_sub(1)) as u64;
        assert_eq!(sum.load(Ordering::Relaxed) - before, due, "{count}");
    }
    // A future, which a runtime of any kind drives.
    let made = |count| world.block_on(tasks.call(me, letters('a', count)).unwrap());
    assert_eq!((made(0), made(3)), (Ok(vec![]), Ok(vec!['a', 'b', 'c'])));
    let Err(Error::Call(error)) = made(0xD800) else { panic!("it has a result") };
    let due = format!("task {PATH}::letters at rank 0: it failed: no 55296 letters");
    assert_eq!((error.rank, error.to_string()), (0, due));
    assert_eq!((area::NAME, area::here(shape, 1.0)), (&*format!("{PATH}::area"), 6.0));
    world.finalize().unwrap();
}

#[test]
fn what_fails_is_named() {
    let world = World::init().unwrap();
    let (tasks, me) = (world.xtq(), Rank(0));
    let not = CallFault::NotRegistered;
    assert_eq!(fault(tasks.call(me, breaks(1)).unwrap().wait()), not, "no function at all");
    tasks.register_task::<area>().unwrap();
    assert_eq!(fault(tasks.call(me, breaks(1)).unwrap().wait()), not);
    tasks.register_task::<breaks>().unwrap();
    assert_eq!(tasks.call(me, breaks(1)).unwrap().wait(), Ok(1));
    let reason = "it panicked: as it was told: 3".to_owned();
    assert_eq!(fault(tasks.call(me, breaks(3)).unwrap().wait()), CallFault::Failed(reason));
    {
        #[task(crate = crate)]
        fn breaks() {}
        assert_eq!(fault(tasks.register_task::<breaks>()), CallFault::NameTaken);
        tasks.register_task::<super::tests::breaks>().unwrap();
    }

    // As another build would call it: bits that are no value, arguments too short and too long, another signature.
    let arguments = |bytes: &[u8]| Call::<area> { arguments: bytes.to_vec(), task: PhantomData };
    let shape = area(Rectangle { filled: true, w: 1.0, h: 1.0 }, 1.0).arguments;
    assert_eq!(tasks.call(me, arguments(&shape)).unwrap().wait(), Ok(1.0));
    let wrong = [&[&[2], &shape[1..]].concat()[..], &shape[..20], &[&shape[..], &[0]].concat()];
    for bytes in wrong {
        assert_eq!(fault(tasks.call(me, arguments(bytes)).unwrap().wait()), CallFault::Argument);
    }
    let name = digest_bytes(area::NAME.bytes());
    let words = [name, area::signature() ^ 1];
    let (_, mut request) = tasks.calls.begin(&tasks.shared, me, words, shape).unwrap();
    request.wait().unwrap();
    let answer = tasks.calls.take(tasks.calls.last_name()).unwrap().unwrap();
    assert_eq!(calls::verdict(&answer), Err(CallFault::OtherSignature));
    let signatures = [area::signature(), add::signature(), letters::signature()];
    assert!(signatures[0] != signatures[1] && signatures[1] != signatures[2]);

    tasks.register_task_with::<add>(Arc::default()).unwrap();
    let numbers = vec![0; CALL_BYTES_MAX / 4];
    let too_long = fault(tasks.call(me, add(1, &numbers)));
    assert_eq!(too_long, CallFault::TooLong(CALL_BYTES_MAX + 8));
    let longest = tasks.call(me, add(1, &numbers[2..])).unwrap();
    assert_eq!(longest.wait(), Ok(()));
    assert!(tasks.call(Rank(1), breaks(1)).is_err(), "no such rank");
    world.finalize().unwrap();
}

#[test]
fn quick_ones_need_no_thread() {
    let world = World::init().unwrap();
    let tasks = world.xtq();
    tasks.register_task::<area>().unwrap();
    let state: Arc<Here> = Arc::new((tasks.clone(), current().id(), Mutex::default()));
    tasks.register_task_with::<here>(Arc::clone(&state)).unwrap();
    let shape = Rectangle { filled: true, w: 1.0, h: 1.0 };
    for _ in 0..10 {
        state.2.lock().unwrap().push(tasks.call(Rank(0), area(shape, 1.0)).unwrap());
        while tasks.calls.results() == 0 {
            tasks.progress().unwrap();
        }
        assert_eq!(tasks.call(Rank(0), here(false)).unwrap().wait(), Ok(true));
        assert_eq!(tasks.call(Rank(0), area(shape, 1.0)).unwrap().wait(), Ok(1.0));
    }
    let failed = fault(tasks.call(Rank(0), here(true)).unwrap().wait());
    assert!(failed.to_string().contains("it would wait for itself"), "{failed}");
    world.finalize().unwrap();
}

struct Registers(Tasks);

impl Drop for Registers {
    fn drop(&mut self) {
        assert_eq!(self.0.register_task::<area>(), Err(XtqError::Closed.into()));
    }
}

#[task(crate = crate)]
fn registers(_state: &Registers) {}

/// A task calls, and may not wait. Whoever drops a call, or leaves, hangs on nothing.
#[test]
fn calls_may_nest_and_be_left() {
    let world = World::builder().task_threads(2).init().unwrap();
    let (tasks, me) = (world.xtq(), Rank(0));
    let (go, gate) = channel();
    tasks.register_task::<breaks>().unwrap();
    tasks.register_task_with::<nests>(Arc::new((tasks.clone(), Mutex::new(gate)))).unwrap();
    let nested = tasks.call(me, nests(false)).unwrap();
    let nested = nested.test().unwrap_err();
    assert!(!tasks.has_settled());
    go.send(()).unwrap();
    let CallFault::Failed(reason) = fault(nested.wait()) else { panic!() };
    assert!(reason.ends_with(&CallFault::InTask.to_string()), "{reason}");
    go.send(()).unwrap();
    tasks.register_task_with::<waits>(Arc::new(tasks.clone())).unwrap();
    assert_eq!(tasks.call(me, waits()).unwrap().wait(), Ok(()));

    drop(tasks.call(me, breaks(1)).unwrap());
    let held = tasks.call(me, nests(false)).unwrap();
    let dropped = tasks.call(me, nests(false)).unwrap();
    drop(dropped);
    (0..6).for_each(|_| go.send(()).unwrap());
    // It waits for what runs, which cannot call any more, or has called before.
    world.finalize().unwrap();
    let left = held.wait();
    assert!(matches!(left, Err(Error::Call(_))), "{left:?}");
    assert!(matches!(tasks.call(me, breaks(1)), Err(Error::Finalized)));
    let state = Arc::new(Registers(tasks.clone()));
    assert!(tasks.register_task_with::<registers>(state).is_err());
}
