//! Blocking calls, by a persistent kernel and by launches.

use super::{GUARD, POISON, Rank, bytes, guarded, launcher};
use gapless::{Primitive, ReduceOp, StreamError, Workers};
use gapless_tests::launcher::{Member, say};
use std::time::Duration;

#[test]
fn blocking_calls_are_right_whoever_launches_them() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher("blocking::blocking_calls_are_right_whoever_launches_them", None);
    };
    const MOST: usize = 40_000;
    // The last rank has no worker, so that it launches what others have run.
    let last = member.rank + 1 == member.size;
    let workers = if last { Workers::Never } else { Workers::Idle(Duration::from_millis(4)) };
    let rank = Rank::with(&mut member, workers);
    let comm = rank.comm();
    let (n, me) = (comm.size() as usize, comm.rank() as usize);
    let (send, recv) = (rank.memory(n * MOST), rank.memory(n * MOST + GUARD));
    let mut on = rank.on();
    let mut register = |memory: &gapless::DeviceBuf| {
        // SAFETY: both outlive `on`.
        unsafe { on.register(memory.region()) }.unwrap()
    };
    let shared = (register(&send), register(&recv));
    let sizes = [1, 2, 4, 8, 12, 100, 1001, 4096, 4104, 8192, 16_000, 16_384, 16_388, MOST];
    for len in sizes {
        let ours = |rank: usize| bytes(n * len, (len + 7919 * rank) as u64);
        let check = |what: &str, right: &[u8]| {
            guarded(&rank, recv.region(), 0, right, &format!("{what} of {len}"))
        };
        let prepare = || {
            rank.write(recv.region(), &vec![POISON; n * len + GUARD]);
            rank.write(send.region(), &ours(me));
            comm.barrier().unwrap();
        };
        for _ in 0..3 {
            prepare();
            // SAFETY: both outlive `on`, and nothing else uses them until all ranks have returned.
            unsafe { on.blocking().allgather(send.region(), shared.1, len as u64) }.unwrap();
            let right: Vec<u8> = (0..n).flat_map(|from| ours(from)[..len].to_vec()).collect();
            check("all-gather", &right);
            on.blocking().barrier().unwrap();
            prepare();
            // SAFETY: as above.
            unsafe { on.blocking().alltoall(send.region(), shared.1, len as u64) }.unwrap();
            let block = |from: usize| ours(from)[me * len..(me + 1) * len].to_vec();
            check("all-to-all", &(0..n).flat_map(block).collect::<Vec<u8>>());
            comm.barrier().unwrap();
            for root in 0..comm.size() {
                prepare();
                // One that is queued comes before.
                on.barrier().unwrap();
                // SAFETY: as above.
                unsafe { on.blocking().broadcast(shared.0, len as u64, root) }.unwrap();
                let mut right = ours(me);
                right[..len].copy_from_slice(&ours(root as usize)[..len]);
                assert!(
                    rank.read(send.region(), n * len) == right,
                    "broadcast of {len} from {root}"
                );
                comm.barrier().unwrap();
            }
        }
    }
    assert_eq!(on.calls_without_launch() > 0, !last, "{} calls", on.calls_without_launch());
    drop(on);
    rank.world.finalize().unwrap();
}

#[test]
fn every_reduction_of_a_worker_has_the_bits_of_the_host() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher("blocking::every_reduction_of_a_worker_has_the_bits_of_the_host", None);
    };
    let rank = Rank::with(&mut member, Workers::Idle(Duration::from_millis(4)));
    let comm = rank.comm();
    let (send, recv) = (rank.memory(1 << 17), rank.memory(1 << 17));
    let mut on = rank.on();
    for (element, size) in super::ELEMENTS {
        for op in super::OPS {
            for count in [1, 3, 4, 5, 500, 501, 1999, 8192] {
                let ours =
                    bytes(count * size, (count * size) as u64 + 17 * u64::from(comm.rank() + 1));
                let right = super::expected(comm, &ours, element, op);
                rank.write(recv.region(), &vec![POISON; count * size + GUARD]);
                rank.write(send.region(), &ours);
                comm.barrier().unwrap();
                // SAFETY: both outlive `on`, and nothing else uses them until this returns.
                unsafe {
                    on.blocking().allreduce(send.region(), recv.region(), count as u64, element, op)
                }
                .unwrap();
                guarded(&rank, recv.region(), 0, &right, &format!("{element:?} {op:?} {count}"));
            }
        }
    }
    assert!(on.calls_without_launch() > 0);
    drop(on);
    rank.world.finalize().unwrap();
}

/// A message that needs its sender comes while that waits in a blocking call; a graph's calls, queued ones and blocking
/// ones take turns; the worker comes and goes.
#[test]
fn blocking_calls_mix_with_messages_graphs_and_queued_calls() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher(
            "blocking::blocking_calls_mix_with_messages_graphs_and_queued_calls",
            None,
        );
    };
    let rank = Rank::with(&mut member, Workers::Idle(Duration::from_micros(300)));
    let comm = rank.comm();
    let (n, me) = (comm.size(), comm.rank());
    let memory = rank.memory(4096);
    let mut on = rank.on();
    let (int, sum) = (Primitive::Int64, ReduceOp::Sum);
    let region = memory.region().sub(0, 8).unwrap();
    let graph = rank
        .stream
        .capture(|_| {
            // SAFETY: the memory outlives `on` and the graph.
            unsafe { on.allreduce(region, region, 1, int, sum) }
        })
        .unwrap();
    let captured = rank.stream.capture(|_| {
        // SAFETY: nothing begins.
        let refused = unsafe { on.blocking().allreduce(region, region, 1, int, sum) };
        assert_eq!(refused, Err(StreamError::Captured));
        Ok::<_, StreamError>(())
    });
    captured.unwrap();
    for round in 0..200u32 {
        rank.write(region, &1i64.to_ne_bytes());
        // Long enough to need both ends.
        let (out, mut into) = (vec![round; 1 << 18], vec![0; 1 << 18]);
        comm.scope(|scope| {
            let sent = scope.isend(&out, (me + 1) % n, 7)?;
            if round % 2 == me % 2 {
                comm.recv(&mut into, (me + n - 1) % n, 7)?;
            }
            // SAFETY: the memory outlives `on`, and nothing else uses it.
            unsafe { on.blocking().allreduce(region, region, 1, int, sum) }?;
            if round % 2 != me % 2 {
                comm.recv(&mut into, (me + n - 1) % n, 7)?;
            }
            sent.wait().map(drop)
        })
        .unwrap();
        assert_eq!(into, out);
        // SAFETY: as above.
        unsafe { on.allreduce(region, region, 1, int, sum) }.unwrap();
        // SAFETY: as above.
        unsafe { on.blocking().allreduce(region, region, 1, int, sum) }.unwrap();
        // SAFETY: as above; it is waited for before anything else.
        unsafe { graph.launch(&rank.stream) }.unwrap();
        on.wait().unwrap();
        let right = i64::from(n).pow(4);
        assert_eq!(rank.read(region, 8), right.to_ne_bytes(), "round {round}");
        if round % 50 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    drop(on);
    rank.world.finalize().unwrap();
}

#[test]
fn a_blocking_call_ends_when_a_peer_is_killed() {
    let name = "blocking::a_blocking_call_ends_when_a_peer_is_killed";
    let Some(mut member) = Member::of_launcher() else { return launcher(name, Some(1)) };
    let rank = Rank::with(&mut member, Workers::Idle(Duration::from_millis(4)));
    let mut on = rank.on();
    for _ in 0..10 {
        on.blocking().barrier().unwrap();
    }
    if rank.comm().rank() == 1 {
        say("kill");
        std::thread::sleep(super::WATCHDOG);
    }
    let failed = on.blocking().barrier().unwrap_err();
    assert_eq!(failed.lost_rank(), Some(1), "{failed}");
    assert_eq!(on.blocking().barrier().unwrap_err().lost_rank(), Some(1));
}
