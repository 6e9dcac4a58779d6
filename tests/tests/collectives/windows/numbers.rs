//! Windows of numbers, that the transport changes or not. Its changes are a load and a store under a lock of its own, so a
//! change that went any other way meanwhile would be lost.

use super::{Path, ranks};
use gapless::btl::Btl;
use gapless::btl::loopback::{Config as LoopbackConfig, Hub, Loopback};
use gapless::{
    Communicator, Config, Equivalence, Error, Place, ReduceOp, Source, TagSel, Window, WindowError,
};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_tests::job;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const EACH: u64 = 60;

/// Runs `body` as ranks that map each other's memory, and have a slower transport that changes numbers, or does not at the
/// last rank.
fn with_adapters(name: &str, size: u32, all: bool, body: impl Fn(&Communicator) + Sync) {
    let hub = Hub::new();
    let name = format!("{name} {} {all}", std::process::id());
    let transports = |rank| -> Vec<Box<dyn Btl>> {
        let shared = Sm::new(SmConfig::new(name.clone(), format!("rank {rank}"))).unwrap();
        let atomics = all || rank + 1 < size;
        let config = LoopbackConfig { latency_ns: 1_000_000, atomics, ..LoopbackConfig::default() };
        vec![Box::new(shared), Box::new(Loopback::with(&hub, config))]
    };
    job(size, &Config::default(), transports, |world| body(world.comm()));
}

/// Sums, minima, exchanges and a sum of fractions by all ranks on rank 1's numbers: nothing is lost, and every ticket is
/// given once.
fn everything(comm: &Communicator) {
    let (me, size) = (u64::from(comm.rank()), u64::from(comm.size()));
    let mut window = comm.window().allocate_numbers::<u64>(70).unwrap();
    let mut tickets = Vec::new();
    window.lock_all().unwrap();
    for round in 0..EACH {
        tickets.push(window.fetch_and_op(1u64, 1, 0, ReduceOp::Sum).unwrap());
        window.accumulate(&[1u64; 60], 1, 1, ReduceOp::Sum).unwrap();
        window.accumulate(&[1u64 << me], 1, 61, ReduceOp::Bxor).unwrap();
        window.accumulate(&[me * EACH + round], 1, 62, ReduceOp::Max).unwrap();
        let fraction = Place::typed(63, f64::layout(), 1);
        window.accumulate(&[0.5], 1, fraction, ReduceOp::Sum).unwrap();
        // As programs count without a sum.
        let mut seen = 0u64;
        loop {
            match window.compare_and_swap(seen, seen + 1, 1, 64).unwrap() {
                found if found == seen => break,
                found => seen = found,
            }
        }
    }
    window.unlock_all().unwrap();
    comm.barrier().unwrap();
    let all = EACH * size;
    if me == 1 {
        let mut found = [0u64; 65];
        window.read(&mut found, 0).unwrap();
        assert_eq!(found[..61], [all; 61]);
        // An even number of rounds.
        assert_eq!((found[61], found[62], found[64]), (0, size * EACH - 1, all));
        let half = f64::from(u32::try_from(all).unwrap()) / 2.0;
        assert!(f64::from_bits(found[63]).to_bits() == half.to_bits());
    }
    let mut everybodys = vec![0; usize::try_from(all).unwrap()];
    comm.allgather(&tickets, &mut everybodys).unwrap();
    everybodys.sort_unstable();
    assert!(everybodys.into_iter().eq(0..all));
    let memory = window.free().unwrap();
    assert_eq!(memory.len(), 560);
}

#[test]
fn numbers_are_changed_one_way_by_all() {
    with_adapters("numbers", 3, true, |comm| {
        let window = comm.window().allocate_numbers::<u64>(8).unwrap();
        assert!(window.is_by_adapter() && window.is_mapped(0).unwrap());
        window.free().unwrap();
        let window = comm.window_allocate::<u64>(8).unwrap();
        assert!(!window.is_by_adapter(), "it may have any elements");
        window.free().unwrap();
        everything(comm);
    });
}

/// If one rank has no such transport, none uses it.
#[test]
fn all_ranks_have_an_adapter_or_none() {
    with_adapters("no numbers", 3, false, |comm| {
        let window = comm.window().allocate_numbers::<u64>(8).unwrap();
        assert!(!window.is_by_adapter());
        window.free().unwrap();
        everything(comm);
    });
    for path in [Path::Mapped, Path::Narrow, Path::Mixed] {
        ranks(path, 3, everything);
    }
}

/// Ranks are on two networks, whose ports they like differently; the last rank is on one of them alone. A change by another
/// network than the others' would reach nobody.
#[test]
fn ranks_on_several_networks_agree_on_one() {
    for size in [2, 3] {
        let networks = [("x", Hub::new()), ("y", Hub::new())];
        let transports = |rank: u32| -> Vec<Box<dyn Btl>> {
            let mut order: Vec<_> = networks.iter().collect();
            if rank == 1 {
                order.reverse();
            }
            if rank == 2 {
                order.remove(0);
            }
            let add = |(&(name, ref hub), latency_ns): (&(&'static str, Hub), u32)| {
                let config = LoopbackConfig { name, latency_ns, ..LoopbackConfig::default() };
                Box::new(Loopback::with(hub, config)) as Box<dyn Btl>
            };
            order.into_iter().zip([1_000, 1_000_000]).map(add).collect()
        };
        job(size, &Config::default(), transports, |world| {
            let window = world.comm().window().allocate_numbers::<u64>(8).unwrap();
            assert!(window.is_by_adapter());
            window.free().unwrap();
            everything(world.comm());
        });
    }
}

/// What is no number of 64 bits is refused, and ranks that make other windows are told of each other.
#[test]
fn what_is_no_number_is_refused() {
    for all in [true, false] {
        with_adapters("refused numbers", 2, all, |comm| {
            let mut window: Window<u64> = comm.window().allocate_numbers(8).unwrap();
            window.lock_all().unwrap();
            let (int, short) =
                [u32::layout(), u16::layout()].map(|it| Place::typed(0, it, 1)).into();
            let refused = window.accumulate(&[1u32], 0, int.clone(), ReduceOp::Sum).unwrap_err();
            let named = matches!(refused, Error::Window(WindowError::Flavor { .. }));
            assert!(named, "{refused}");
            assert!(window.compare_and_swap(1u32, 2, 0, int).is_err());
            assert!(window.fetch_and_op(1u16, 0, short, ReduceOp::Sum).is_err());
            window.put(&[7u8], 0, comm.rank()).unwrap();
            window.unlock_all().unwrap();
            window.free().unwrap();
            let made = match comm.rank() {
                0 => comm.window().allocate_numbers::<u64>(8).map(drop),
                _ => comm.window_allocate::<u64>(8).map(drop),
            };
            let other = 1 - comm.rank();
            let right = |rank| rank == other;
            match made.unwrap_err() {
                Error::Window(WindowError::Differs { rank, .. }) => assert!(right(rank)),
                error => panic!("{error}"),
            }
        });
    }
}

/// A window that is dropped, and not freed, does no harm to ranks that still have it: its memory stays.
#[test]
fn a_dropped_window_keeps_its_memory_for_the_others() {
    with_adapters("dropped numbers", 2, true, |comm| {
        let mut window = comm.window().allocate_numbers::<u64>(8).unwrap();
        window.lock_all().unwrap();
        comm.barrier().unwrap();
        if comm.rank() == 0 {
            drop(window);
            comm.barrier().unwrap();
        } else {
            comm.barrier().unwrap();
            assert_eq!(window.fetch_and_op(5u64, 0, 3, ReduceOp::Sum).unwrap(), 0);
            assert_eq!(window.fetch_and_op(5u64, 0, 3, ReduceOp::Sum).unwrap(), 5);
        }
        comm.barrier().unwrap();
        everything(comm);
    });
}

/// Windows are dropped and not freed. Memory stays registered while a rank has its window, and no longer than the world.
#[test]
fn memory_of_dropped_windows_is_given_back() {
    let hub = Hub::new();
    let transports = |_| -> Vec<Box<dyn Btl>> { vec![Box::new(Loopback::new(&hub))] };
    let outlive = Mutex::new(Vec::new());
    job(3, &Config::default(), transports, |world| {
        let (comm, me) = (world.comm(), world.rank());
        let until = |count: usize| {
            let patience = Instant::now() + Duration::from_secs(60);
            while hub.registered().0 != count {
                comm.iprobe(Source::Any, TagSel::Any).unwrap();
                assert!(Instant::now() < patience, "{count}: {:?}", hub.registered());
                std::thread::yield_now();
            }
            comm.barrier().unwrap();
        };
        let make = || comm.window().allocate_numbers::<u64>(8).unwrap();
        let [one, other, last] = [make(), make(), make()];
        assert!(one.is_by_adapter());
        until(9);
        drop(one);
        until(6);
        // One rank goes on with it.
        let mut other = Some(other);
        if me != 1 {
            other = None;
        }
        comm.barrier().unwrap();
        if let Some(window) = &mut other {
            window.lock_all().unwrap();
            for rank in 0..3 {
                window.accumulate(&[1u64], rank, 0, ReduceOp::Sum).unwrap();
            }
            window.unlock_all().unwrap();
        }
        comm.barrier().unwrap();
        until(6);
        drop(other);
        until(3);
        if me != 0 {
            outlive.lock().unwrap().push(last);
        }
        comm.barrier().unwrap();
    });
    outlive.lock().unwrap().clear();
    assert_eq!((hub.registered().0, hub.remembered()), (0, 0), "all memory is free");
}
