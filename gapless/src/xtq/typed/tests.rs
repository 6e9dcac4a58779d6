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

/// Whether it runs on the thread that made its state.
#[task(crate = crate, quick)]
fn here(state: &(Tasks, ThreadId), call: bool) -> Result<bool, Error> {
    if call {
        drop(state.0.call(Rank(0), breaks(1))?);
    }
    Ok(state.1 == current().id())
}

/// Waits for a word, and then for another call.
#[task(crate = crate)]
fn nests(state: &(Tasks, Mutex<Receiver<()>>)) -> Result<u8, Error> {
    state.1.lock().unwrap().recv().unwrap();
    let answered = state.0.call(Rank(0), breaks(7))?;
    answered.wait()
}

fn call_error<T: fmt::Debug>(result: Result<T, Error>) -> CallError {
    match result {
        Err(Error::Call(error)) => error,
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
    for (i, result) in (0u16..).zip(Answered::wait_all(areas)) {
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
    let (task, reason) = (letters::NAME, "no 55296 letters".to_owned());
    assert_eq!(call_error(made(0xD800)), CallError::Failed { task, rank: 0, reason });
    assert_eq!((area::NAME, area::here(shape, 1.0)), (&*format!("{PATH}::area"), 6.0));
    world.finalize().unwrap();
}

#[test]
fn what_fails_is_named() {
    let world = World::init().unwrap();
    let (tasks, me) = (world.xtq(), Rank(0));
    let (task, rank) = (breaks::NAME, 0);
    let not = CallError::NotRegistered { task, rank };
    assert_eq!(call_error(tasks.call(me, breaks(1)).unwrap().wait()), not, "no function at all");
    tasks.register_task::<area>().unwrap();
    assert_eq!(call_error(tasks.call(me, breaks(1)).unwrap().wait()), not);
    tasks.register_task::<breaks>().unwrap();
    assert_eq!(tasks.call(me, breaks(1)).unwrap().wait(), Ok(1));
    let reason = "it panicked: as it was told: 3".to_owned();
    let failed = CallError::Failed { task, rank, reason };
    assert_eq!(call_error(tasks.call(me, breaks(3)).unwrap().wait()), failed);

    // As another build would call it: bits that are no value, arguments too short and too long, another signature.
    let arguments = |bytes: &[u8]| Call::<area> { arguments: bytes.to_vec(), task: PhantomData };
    let shape = area(Rectangle { filled: true, w: 1.0, h: 1.0 }, 1.0).arguments;
    assert_eq!(tasks.call(me, arguments(&shape)).unwrap().wait(), Ok(1.0));
    let wrong = [&[&[2], &shape[1..]].concat()[..], &shape[..20], &[&shape[..], &[0]].concat()];
    for bytes in wrong {
        let what = "arguments";
        let due = CallError::NoValue { task: area::NAME, rank, what };
        assert_eq!(call_error(tasks.call(me, arguments(bytes)).unwrap().wait()), due);
    }
    let name = hash(HASH_START, area::NAME.as_bytes());
    let words = [name, area::signature() ^ 1];
    let (_, mut request) = tasks.calls.begin(&tasks.shared, me, words, shape).unwrap();
    request.wait().unwrap();
    let answer = tasks.calls.take(tasks.calls.last_name()).unwrap().unwrap();
    let other = CallError::OtherSignature { task, rank };
    assert_eq!(calls::verdict(&answer, task, rank), Err(other));
    let signatures = [area::signature(), add::signature(), letters::signature()];
    assert!(signatures[0] != signatures[1] && signatures[1] != signatures[2]);

    tasks.register_task_with::<add>(Arc::default()).unwrap();
    let numbers = vec![0; ARGUMENTS_MAX / 4];
    let too_long = call_error(tasks.call(me, add(1, &numbers)));
    let bytes = ARGUMENTS_MAX + 8;
    assert_eq!(too_long, CallError::TooLong { task: add::NAME, bytes });
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
    tasks.register_task_with::<here>(Arc::new((tasks.clone(), current().id()))).unwrap();
    let shape = Rectangle { filled: true, w: 1.0, h: 1.0 };
    for _ in 0..10 {
        assert_eq!(tasks.call(Rank(0), here(false)).unwrap().wait(), Ok(true));
        assert_eq!(tasks.call(Rank(0), area(shape, 1.0)).unwrap().wait(), Ok(1.0));
    }
    let failed = call_error(tasks.call(Rank(0), here(true)).unwrap().wait());
    assert!(failed.to_string().contains("it would wait for itself"), "{failed}");
    world.finalize().unwrap();
}

/// A task calls, and may not wait. Whoever drops a call, or leaves, hangs on nothing.
#[test]
fn calls_may_nest_and_be_left() {
    let world = World::init().unwrap();
    let (tasks, me) = (world.xtq(), Rank(0));
    let (go, gate) = channel();
    tasks.register_task::<breaks>().unwrap();
    tasks.register_task_with::<nests>(Arc::new((tasks.clone(), Mutex::new(gate)))).unwrap();
    let nested = tasks.call(me, nests()).unwrap();
    let nested = nested.test().unwrap_err();
    go.send(()).unwrap();
    let in_task = CallError::InTask { task: breaks::NAME };
    let CallError::Failed { reason, .. } = call_error(nested.wait()) else { panic!() };
    assert_eq!(reason, in_task.to_string());

    drop(tasks.call(me, breaks(1)).unwrap());
    let held = tasks.call(me, nests()).unwrap();
    let dropped = tasks.call(me, nests()).unwrap();
    drop(dropped);
    (0..2).for_each(|_| go.send(()).unwrap());
    // It waits for what runs, which cannot call any more, or has called before.
    world.finalize().unwrap();
    let left = held.wait();
    assert!(matches!(left, Err(Error::Call(_))), "{left:?}");
    assert!(matches!(tasks.call(me, breaks(1)), Err(Error::Finalized)));
    assert!(tasks.register_task::<area>().is_err());
}
