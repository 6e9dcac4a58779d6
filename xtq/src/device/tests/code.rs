//! Functions of users, and layouts: what a worker has of them from one life to the next.

use super::*;
use crate::device::mock_worker::UNFIT;
use gapless_mem::{DeviceError, WorkerCode};

fn code(image: &[u8]) -> WorkerCode {
    // SAFETY: the mock worker runs none of it.
    unsafe { WorkerCode::new(image) }
}

fn names(log: &Log) -> Vec<String> {
    let name = |task: &MockTask| task.name.as_deref().unwrap_or("own").to_owned();
    log.lock().unwrap().drain(..).map(|task| name(&task)).collect()
}

#[test]
fn a_function_is_linked_once_and_replaces_another_of_its_name() {
    let (mock, log) = noting();
    let mut target = target(Arc::clone(&mock), always());
    let (mut lane, _) = lane(&mut target);
    target.start().unwrap();
    let (first, second) = (code(b"first"), code(b"second"));
    let of = |code: &WorkerCode, name: &str| Some(DeviceKernel::of_code(code, name, 24, 0));
    let mut run = |target: &mut WorkerTarget, index: u8| {
        let command = Command { index, ..command(0) };
        put_as(&mut lane, &command, 0, &[]).unwrap();
        (outcome(&mut lane, target), names(&log))
    };
    let ended = |name: &str| (PutOutcome::Ended, vec![name.to_owned()]);
    register(&mut target, 8, of(&first, "one")).unwrap();
    register(&mut target, 9, of(&first, "two")).unwrap();
    // It has this one already.
    register(&mut target, 10, of(&first, "one")).unwrap();
    assert_eq!(mock.links(), 2);
    for (index, name) in [(8, "one"), (9, "two"), (10, "one"), (7, "own")] {
        assert_eq!(run(&mut target, index), ended(name));
    }
    // A new version: while another row names the old one, both would have the name.
    let refused = register(&mut target, 8, of(&second, "one"));
    let Err(TargetError::Device(DeviceError::Link { log: said })) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(said, "one is not to be had\nby anybody");
    assert_eq!(run(&mut target, 8), ended("one"));
    register(&mut target, 10, None).unwrap();
    register(&mut target, 8, of(&second, "one")).unwrap();
    assert_eq!(
        (mock.links(), run(&mut target, 8), run(&mut target, 9)),
        (3, ended("one"), ended("two"))
    );
    // What cannot be linked changes nothing, and the worker comes back.
    let refused = register(&mut target, 9, of(&code(UNFIT), "three"));
    assert!(matches!(refused, Err(TargetError::Device(DeviceError::Link { .. }))), "{refused:?}");
    assert_eq!((run(&mut target, 9), mock.links()), (ended("two"), 3));
    // Too short arguments are found before anything is linked.
    let short = Some(DeviceKernel::of_code(&second, "four", 8, 0));
    assert_eq!(register(&mut target, 9, short), Err(TargetError::Arguments { bytes: 8, min: 16 }));
    let lost =
        Some(DeviceKernel::of_code(&second, "four", 24, 0).buffer(memory(64).unwrap()).signal(64));
    assert!(matches!(register(&mut target, 9, lost), Err(TargetError::TooMany { .. })));
    assert_eq!((run(&mut target, 9), mock.links()), (ended("two"), 3));
}

#[test]
fn nothing_is_linked_while_a_task_runs_for_long() {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let theirs = Arc::clone(&gate);
    let mock = MockWorker::new(move |_| {
        let mut open = theirs.0.lock().unwrap();
        while !*open {
            open = theirs.1.wait_timeout(open, PATIENCE).unwrap().0;
        }
        Ok(())
    });
    let mut target = target(Arc::clone(&mock), always());
    let (mut lane, _) = lane(&mut target);
    target.start().unwrap();
    put(&mut lane, 0, &[]).unwrap();
    let start = Instant::now();
    while !target.is_running() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    let patience = Duration::from_millis(20);
    target.set_patience(patience);
    let kernel = DeviceKernel::of_code(&code(b"image"), "one", 24, 0);
    let stays = register(&mut target, 7, Some(kernel.clone()));
    // It may have gone before it took the task: then it was linked.
    if mock.links() == 0 {
        assert_eq!(stays, Err(TargetError::Stays(patience)));
    }
    target.set_patience(PATIENCE);
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    assert_eq!(outcome(&mut lane, &mut target), PutOutcome::Ended);
    register(&mut target, 7, Some(kernel)).unwrap();
    assert_eq!(mock.links(), 1);
}

#[test]
fn layouts_are_named_by_number() {
    let (mock, log) = noting();
    let mut target = target(Arc::clone(&mock), always());
    let (mut lane, _) = lane(&mut target);
    let kernel = DeviceKernel::new(DeviceFunction::Unpack, 64).argument_bytes(32);
    register(&mut target, 8, Some(kernel)).unwrap();
    target.start().unwrap();
    let form = memory(4096).unwrap();
    let address = form.region().start();
    // SAFETY: the mock worker looks at no form.
    let layout =
        |target: &mut WorkerTarget, number, form| unsafe { target.register_layout(number, form) };
    layout(&mut target, 5, Some(form.clone())).unwrap();
    let too_many = TargetError::TooMany { what: "layouts", max: LAYOUTS_MAX };
    assert_eq!(layout(&mut target, 32, None), Err(too_many));
    let reached = mock.reached();
    let mut found = |target: &mut WorkerTarget, number: u64| {
        let launch = Launch::linear(1, 32, 32);
        let command = Command { index: 8, work: TaskWork::Kernel(launch), ..command(0) };
        let packet = Packet::new(&command).unwrap();
        let arguments = [0, 0, number, 0].map(u64::to_le_bytes).concat();
        lane.put(&packet, [&arguments, &[]]).unwrap();
        lane.announce();
        assert_eq!(outcome(&mut lane, target), PutOutcome::Ended);
        log.lock().unwrap().pop().unwrap().layout
    };
    assert_eq!([5, 4, 32, u64::MAX].map(|number| found(&mut target, number)), [address, 0, 0, 0]);
    layout(&mut target, 5, None).unwrap();
    assert_eq!((found(&mut target, 5), mock.reached()), (0, reached - 1));
}
