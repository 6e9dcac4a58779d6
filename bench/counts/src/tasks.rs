//! Puts of tasks into the ring of a worker, which a thread plays: what it does is not counted.
#![allow(unsafe_code, reason = "registers a kernel that touches no memory")]

use gapless_bml::{Bml, Handler, Rank, RankEvent, now_ns};
use gapless_btl::loopback::{Hub, Loopback};
use gapless_xtq::device::mock_worker::{MockWorker, memory};
use gapless_xtq::device::{DeviceFunction, Life};
use gapless_xtq::packet::Launch;
use gapless_xtq::{Config, Kernel, Put, QueueOptions, Signal, Xtq};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TARGET: Rank = Rank(1);
const PAYLOAD: u32 = 64;

struct Rest;

impl Handler for Rest {
    fn handle(&mut self, _: &mut Bml, _: RankEvent) {}
}

fn task(done: &Signal) -> Put {
    let launch = Launch::linear(1, 16, 32);
    Put::kernel(TARGET, 0, 0, launch, &[0; 32][..]).payload(&[0; 64][..]).signal(done)
}

/// A put of 64 bytes with its signal, into a ring that has room.
pub(crate) fn put(count: &mut dyn FnMut(&mut dyn FnMut())) {
    let hub = Hub::new();
    let mut bmls = [Bml::new(Rank(0), 2), Bml::new(TARGET, 2)];
    bmls.iter_mut().for_each(|bml| bml.add(Box::new(Loopback::new(&hub))));
    let addresses = bmls.each_ref().map(Bml::addresses);
    let [a, b] = &mut bmls;
    a.connect(TARGET, &addresses[1]).expect("both are there");
    b.connect(Rank(0), &addresses[0]).expect("both are there");
    let mut ends = bmls.map(|mut bml| {
        let xtq = Xtq::attach(&mut bml, Config::default()).expect("the tag is free");
        (bml, xtq)
    });
    let (tasks, there) = (ends[0].1.clone(), ends[1].1.clone());
    let life = Life { idle: None, longest: Duration::from_secs(600) };
    // From when it is told to, it runs nothing: what has ended when a put looks must not depend on how quick it is.
    let rests = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&rests);
    let mock = MockWorker::new(move |_| {
        while told.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    });
    there.attach_worker(mock, life).expect("a worker");
    // SAFETY: what runs it touches no memory.
    unsafe { there.register_kernel(0, Kernel::of_worker(DeviceFunction::Accumulate, PAYLOAD)) }
        .expect("a kernel");
    // SAFETY: nobody touches it.
    unsafe { there.post_to_worker(memory(PAYLOAD.into()).expect("memory")) }.expect("a buffer");
    there.register_queue(0, QueueOptions::default()).expect("a queue");
    let done = tasks.signal(1);
    // The first goes by a message, others into each slot of the ring.
    for puts in [1, 256] {
        done.reset(puts);
        (0..puts).for_each(|_| _ = tasks.put(task(&done)).expect("a task"));
        while done.poll().is_none() || !tasks.has_ring(TARGET) {
            for (bml, xtq) in &mut ends {
                bml.poll(&mut Rest);
                xtq.advance(bml, now_ns());
            }
            std::thread::yield_now();
        }
    }
    done.reset(u64::MAX);
    rests.store(true, Ordering::Relaxed);
    count(&mut || {
        let put = tasks.put_direct(task(&done));
        assert!(put.is_ok_and(|put| put.is_served()), "nothing is in the way");
    });
    rests.store(false, Ordering::Relaxed);
}
