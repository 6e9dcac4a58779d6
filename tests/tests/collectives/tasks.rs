//! Kernels of workers under `World::xtq`: each rank has one, which a thread plays, and puts tasks at all, itself included. By
//! rings in shared memory, and over a transport that maps nothing.

use gapless::btl::Btl;
use gapless::btl::loopback::{Config as LoopbackConfig, Hub, Loopback};
use gapless::xtq::{DeviceFunction, Kernel, Launch, Life, Put, QueueOptions};
use gapless::xtq::{Rank, Retry, Tasks};
use gapless::{Config, World};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_tests::job;
use gapless_xtq::device::player::{Player, memory};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const RANKS: u32 = 4;
const EACH: u64 = 150;
/// Of the kernel and of its queue.
const INDEX: u8 = 3;

/// The worker, its kernel and a receive buffer; the signal counts all tasks here.
fn prepare(tasks: &Tasks, sum: &Arc<AtomicU64>) -> gapless::xtq::Signal {
    let sum = Arc::clone(sum);
    let player = Player::new(move |task| {
        sum.fetch_add(task.arguments[2] * (1 + task.payload.len() as u64), Ordering::Relaxed);
        Ok(())
    });
    // It leaves often.
    let life = Life { idle: Some(Duration::from_micros(200)), ..Life::default() };
    tasks.attach_worker(player, life).unwrap();
    let all = tasks.signal_from(EACH * u64::from(RANKS), &[]);
    let kernel = Kernel::of_worker(DeviceFunction::Copy, 4096).signal(&all);
    // SAFETY: the worker touches no memory.
    unsafe { tasks.register_kernel(INDEX, kernel) }.unwrap();
    tasks.register_queue(INDEX, QueueOptions { capacity: 4096, width: 1 }).unwrap();
    // SAFETY: nobody else has the memory.
    unsafe { tasks.post_to_worker(memory(4096).unwrap()) }.unwrap();
    all
}

fn rank(world: &World) {
    let (tasks, sum) = (world.xtq(), Arc::new(AtomicU64::new(0)));
    let all = prepare(&tasks, &sum);
    world.comm().barrier().unwrap();
    let done = tasks.signal(EACH * u64::from(RANKS));
    let mut expected = 0;
    for number in 0..EACH {
        let payload = vec![7; usize::try_from(number * 37 % 2000).unwrap()];
        let arguments = [0, 0, number].map(u64::to_le_bytes).concat();
        expected += number * (1 + payload.len() as u64);
        for target in 0..RANKS {
            let launch = Launch::linear(1, 32, 24);
            let put = Put::kernel(Rank(target), INDEX, INDEX, launch, arguments.clone());
            let put = put.payload(payload.clone()).retry(Retry::InAnyOrder);
            tasks.put(put.signal(&done)).unwrap();
        }
    }
    tasks.wait(&done).unwrap();
    tasks.wait(&all).unwrap();
    assert_eq!(sum.load(Ordering::Relaxed), expected * u64::from(RANKS));
    world.comm().barrier().unwrap();
}

#[test]
fn workers_of_ranks_run_each_others_tasks() {
    let name = format!("tasks {}", std::process::id());
    let sm = |rank| -> Vec<Box<dyn Btl>> {
        vec![Box::new(Sm::new(SmConfig::new(name.clone(), format!("rank {rank}"))).unwrap())]
    };
    job(RANKS, &Config::default(), sm, rank);
    let hub = Hub::new();
    let bare = LoopbackConfig { rdma: false, mapped: false, ..LoopbackConfig::default() };
    let loopback = |_| -> Vec<Box<dyn Btl>> { vec![Box::new(Loopback::with(&hub, bare.clone()))] };
    job(RANKS, &Config::default(), loopback, rank);
}
