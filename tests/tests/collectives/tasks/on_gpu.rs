//! The contract of tasks where the worker is a kernel on a GPU, not a thread that plays it: order, barriers, refusals,
//! retries, signals and counts of `World::xtq`. Skipped aloud where there is no device.

use super::*;
use gapless::xtq::device::{Accumulate, Combine, Element};
use gapless::xtq::{CudaWorker, Lease, Refusal};
use gapless::{CudaDevice, CudaDriver};
use gapless_btl::conformance::skip;
use gapless_mem::Words;

const TARGET: Rank = Rank(0);
const ADD: u8 = 1;
const COPY: u8 = 2;
const REDUCE: u8 = 3;
const PAUSE: u8 = 4;
/// A queue of width 1, one of many, and one with room for one task.
const LINE: u8 = 0;
const WIDE: u8 = 1;
const NARROW: u8 = 2;
const INITIATORS: u64 = 2;
const SUMS: u64 = 300;

fn pinned(device: &CudaDevice, bytes: u64) -> Lease {
    let buffer = device.pinned(bytes).unwrap();
    let region = buffer.region();
    // SAFETY: it is new.
    unsafe { gapless_mem::fill(&region, 0) }.unwrap();
    // SAFETY: the buffer keeps it.
    unsafe { Lease::new(region, Arc::new(buffer)) }
}

fn put(index: u8, queue: u8, words: &[u64], payload: &[u8]) -> Put {
    let arguments: Vec<u8> =
        [0, 0].iter().chain(words).flat_map(|word| word.to_le_bytes()).collect();
    Put::kernel(TARGET, index, queue, Launch::linear(1, 16, 0), arguments).payload(payload)
}

fn sum(place: u64) -> [u64; 2] {
    [8 * place, Accumulate(Combine::Sum, Element::U64).word()]
}

/// Registers all at rank 0; gives the buffer of all kernels, and the signal that counts sums.
fn prepare(tasks: &Tasks, device: &Arc<CudaDevice>) -> (Words, gapless::xtq::Signal) {
    let worker = CudaWorker::new(Arc::clone(device)).unwrap();
    let life = Life { idle: Some(Duration::from_millis(20)), ..Life::default() };
    tasks.attach_worker(Arc::new(worker), life).unwrap();
    let buffer = pinned(device, 4096);
    let all = tasks.signal_from(INITIATORS * SUMS, &[]);
    let kernels = [
        (ADD, Kernel::of_worker(DeviceFunction::Accumulate, 64).signal(&all)),
        (COPY, Kernel::of_worker(DeviceFunction::Copy, 64).counted()),
        (REDUCE, Kernel::of_worker(DeviceFunction::Reduce, 0)),
        (PAUSE, Kernel::of_worker(DeviceFunction::Pause, 0)),
    ];
    for (index, kernel) in kernels {
        // SAFETY: the buffer is looked at as words alone.
        unsafe { tasks.register_kernel(index, kernel.buffer(buffer.clone())) }.unwrap();
    }
    for (queue, capacity, width) in [(LINE, 64, 1), (WIDE, 64, 32), (NARROW, 1, 1)] {
        tasks.register_queue(queue, QueueOptions { capacity, width }).unwrap();
    }
    // SAFETY: nobody else has the memory. It is enough for all that may come by messages, before there are rings.
    unsafe { tasks.post_to_worker(pinned(device, 1 << 20)) }.unwrap();
    // SAFETY: as above.
    (unsafe { Words::new(buffer) }.unwrap(), all)
}

fn target(world: &World, device: &Arc<CudaDevice>) {
    let (tasks, comm) = (world.xtq(), world.comm());
    let (found, all) = prepare(&tasks, device);
    let word = |at: usize| found.all()[at].load(Ordering::Acquire);
    comm.barrier().unwrap();
    // Its registered signal has counted all, whichever way they came; what they wrote can be seen.
    tasks.wait(&all).unwrap();
    for at in 0..8 {
        assert_eq!(word(at), INITIATORS * SUMS * (at as u64 + 1));
    }
    comm.barrier().unwrap();
    // The last of each line, and the counts of what went before.
    comm.barrier().unwrap();
    for initiator in 1..=INITIATORS {
        let at = 16 + usize::try_from(initiator).unwrap();
        assert_eq!([word(at), word(at + 8)], [199, 49], "of rank {initiator}");
    }
    let copies = tasks.count_of(COPY).unwrap();
    assert_eq!(copies.now(), INITIATORS * (200 + 50));
    comm.barrier().unwrap();
    comm.barrier().unwrap();
    // What the barriers have found: one rank put after the other.
    for initiator in 1..=INITIATORS {
        let at = 40 + usize::try_from(initiator).unwrap();
        assert_eq!(word(at), INITIATORS * SUMS + 20 * initiator, "the barrier of rank {initiator}");
    }
    // Nobody has a receive buffer; then somebody posts one.
    drop(tasks.take_from_worker().unwrap());
    comm.barrier().unwrap();
    comm.barrier().unwrap();
    // SAFETY: nobody else has the memory.
    unsafe { tasks.post_to_worker(pinned(device, 64)) }.unwrap();
    comm.barrier().unwrap();
    assert_eq!(word(0), INITIATORS * (SUMS + 1) + INITIATORS * 20);
}

fn initiator(world: &World) {
    let (tasks, comm) = (world.xtq(), world.comm());
    let me = u64::from(world.rank());
    comm.barrier().unwrap();
    let payload: Vec<u8> = (1..=8u64).flat_map(u64::to_le_bytes).collect();
    let done = tasks.signal(SUMS);
    for _ in 0..SUMS {
        tasks.put(put(ADD, WIDE, &sum(0), &payload).signal(&done)).unwrap();
    }
    tasks.wait(&done).unwrap();
    comm.barrier().unwrap();
    // At width 1 the last one is the last, by the ring; and in a line of a queue that is nearly always full.
    for (queue, place, count) in [(LINE, 16 + me, 200u64), (NARROW, 24 + me, 50)] {
        let done = tasks.signal(count);
        for number in 0..count {
            let put = put(COPY, queue, &[8 * place], &number.to_le_bytes()).signal(&done);
            let put = if queue == NARROW { put.retry(Retry::InOrder) } else { put };
            tasks.put(put).unwrap();
        }
        tasks.wait(&done).unwrap();
    }
    comm.barrier().unwrap();
    comm.barrier().unwrap();
    let refused = |put: Put| {
        let put = tasks.put(put).unwrap();
        match tasks.wait_for(&put) {
            Err(Error::Task(XtqError::Refused { target: TARGET, refusal })) => refusal,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(put(9, LINE, &[0], &[])), Refusal::NotRegistered);
    assert_eq!(refused(put(COPY, 9, &[0], &[])), Refusal::NoQueue);
    assert_eq!(refused(put(COPY, LINE, &[0], &[0; 65])), Refusal::PayloadTooLong { max: 64 });
    let wide = Put::kernel(TARGET, COPY, LINE, Launch::linear(1, 513, 0), vec![0; 24]);
    assert_eq!(refused(wide), Refusal::Group { items_max: 512 });
    // A task that would leave the buffer fails, and so does its signal.
    let failed = tasks.signal(1);
    tasks.put(put(COPY, LINE, &[4096], &[1]).signal(&failed)).unwrap();
    let failed = tasks.wait(&failed);
    assert!(matches!(failed, Err(Error::Task(XtqError::Failed { .. }))), "{failed:?}");
    // One rank after the other: what a barrier finds is what came before it.
    for turn in 1..=INITIATORS {
        if turn == me {
            let before = tasks.signal(21);
            for number in 0..20u64 {
                if number.is_multiple_of(5) {
                    tasks.put(put(PAUSE, WIDE, &[1000 * number], &[])).unwrap();
                }
                tasks.put(put(ADD, WIDE, &sum(0), &1u64.to_le_bytes()).signal(&before)).unwrap();
            }
            let [_, word] = sum(0);
            let reduce = [8 * (40 + me), 0, 1, word];
            tasks.put(put(REDUCE, WIDE, &reduce, &[]).barrier().signal(&before)).unwrap();
            tasks.wait(&before).unwrap();
        }
        if turn == me {
            comm.send(&[1u8], 3 - world.rank(), 7).unwrap();
        } else {
            comm.recv(&mut [0u8], 3 - world.rank(), 7).unwrap();
        }
    }
    comm.barrier().unwrap();
    comm.barrier().unwrap();
    assert_eq!(refused(put(ADD, WIDE, &sum(0), &1u64.to_le_bytes())), Refusal::NoReceiveBuffer);
    let later = put(ADD, WIDE, &sum(0), &1u64.to_le_bytes()).retry(Retry::InAnyOrder);
    let later = tasks.put(later.acknowledged()).unwrap();
    comm.barrier().unwrap();
    tasks.wait_for(&later).unwrap();
    comm.barrier().unwrap();
}

#[test]
fn a_worker_on_a_gpu_keeps_the_contract() {
    let device = match CudaDriver::load().and_then(|driver| driver.device(0)) {
        Ok(device) => Arc::new(device),
        Err(why) => return skip("tasks::on_gpu", &why.to_string()),
    };
    let name = format!("tasks on a GPU {}", std::process::id());
    let sm = |rank| -> Vec<Box<dyn Btl>> {
        vec![Box::new(Sm::new(SmConfig::new(name.clone(), format!("rank {rank}"))).unwrap())]
    };
    job(1 + u32::try_from(INITIATORS).unwrap(), &Config::default(), sm, |world| {
        match world.rank() {
            0 => target(world, &device),
            _ => initiator(world),
        }
    });
}
