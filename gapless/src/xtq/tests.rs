use super::*;
use std::sync::Barrier;

/// As many tasks of a queue run at a time as it is wide, and there are threads: they wait for each other here.
#[test]
fn as_many_tasks_run_at_a_time_as_there_are_threads() {
    const TASKS: usize = 5;
    let world = World::builder().task_threads(TASKS).init().unwrap();
    let tasks = world.xtq();
    let all = Arc::new(Barrier::new(TASKS));
    let meet = Function::new(0, move |_| {
        all.wait();
        Ok(())
    });
    tasks.register_function(0, meet).unwrap();
    tasks.register_queue(0, QueueOptions { width: 8, ..QueueOptions::default() }).unwrap();
    let done = tasks.signal(TASKS as u64);
    for _ in 0..TASKS {
        tasks.put(Put::function(Rank(0), 0, 0, [0, 0]).signal(&done)).unwrap();
    }
    tasks.wait(&done).unwrap();
    world.finalize().unwrap();
}

/// A put waits for room until earlier ones have ended, and no longer than its limit.
#[test]
fn puts_wait_for_room() {
    let world = World::builder().put_room(2, 100).init().unwrap();
    let tasks = world.xtq();
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let count = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let seen = Arc::clone(&count);
    let counts = Function::new(64, move |_| {
        seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    });
    let waits = Function::new(0, move |_| {
        gate.lock().unwrap().recv().map_err(|error| error.to_string().into())
    });
    tasks.register_function(0, counts).unwrap();
    tasks.register_function(1, waits).unwrap();
    tasks.register_queue(0, QueueOptions::default()).unwrap();
    tasks.post(vec![0; 64]);
    let put = |index| Put::function(Rank(0), index, 0, [0, 0]).acknowledged();
    let before: Vec<_> = (0..50)
        .map(|_| {
            let put = put(0).payload(vec![1; 60]).retry(Retry::InAnyOrder);
            tasks.put_when_room(put).unwrap()
        })
        .collect();
    // One that was refused for now must not come behind the next, which waits.
    before.iter().for_each(|put| tasks.wait_for(put).unwrap());
    let [first, second] = [1, 0].map(|index| tasks.put_when_room(put(index)).unwrap());
    let full = tasks.put(put(0)).unwrap_err();
    let expected = XtqError::Full { target: Rank(0), puts: 2, bytes: 0 };
    assert!(matches!(&full, Error::Task(error) if *error == expected), "{full}");
    let limit = std::time::Duration::from_millis(5);
    let late = tasks.put_when_room(put(0).within(limit)).unwrap_err();
    let waited = Waited::Earlier;
    let expected = XtqError::TimedOut { target: Rank(0), limit, waited, may_run: false };
    assert!(matches!(&late, Error::Task(error) if *error == expected), "{late}");
    go.send(()).unwrap();
    for put in [first, second] {
        tasks.wait_for(&put).unwrap();
    }
    assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 51);
    world.finalize().unwrap();
}
