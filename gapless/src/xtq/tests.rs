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
