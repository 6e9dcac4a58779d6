//! The whole stack over this transport alone: four processes, started by Gapless's own launcher,
//! exchange messages with gaps of sizes that take every protocol.

use btl_udp::{Config, Faults, Udp};
use gapless::launch::{Job, Outcome, run};
use gapless::{Datatype, Error, Layout, Primitive, View, ViewMut, World};

/// In a process of the job: which wire to use.
const WIRE: &str = "BTL_UDP_TEST_WIRE";

/// Starts this test program once more, four times, to play the ranks of `test`.
fn four_ranks(test: &str, wire: &str) -> Outcome {
    let job = Job {
        ranks: 4,
        program: std::env::current_exe().unwrap().into(),
        arguments: [test, "--exact", "--nocapture", "--test-threads=1"].map(Into::into).to_vec(),
        environment: vec![(WIRE.into(), wire.into())],
        prefix: true,
    };
    run(&job).unwrap()
}

fn world(wire: &str) -> World {
    let faults = match wire {
        "clean" => None,
        _ => Some(Faults { seed: 7, per: 100, dropped: 5, doubled: 5, delayed: 5 }),
    };
    let udp = Udp::with(Config { faults, ..Config::default() }).unwrap();
    World::builder().transport(Box::new(udp)).only(["udp"]).init().unwrap()
}

/// `blocks` pairs of numbers, four numbers apart.
fn with_gaps(blocks: u64) -> Layout {
    Datatype::vector(blocks, 2, 4, &Primitive::Double.into()).unwrap().commit().unwrap()
}

fn value(rank: u32, index: usize) -> f64 {
    f64::from(rank) * 1e9 + f64::from(u32::try_from(index).unwrap())
}

/// Each rank sends to all others and receives from all, everything at once.
fn all_to_all(world: &World) -> Result<(), Error> {
    let comm = world.comm();
    let (me, size) = (comm.rank(), comm.size());
    for blocks in [0u64, 1, 10, 700, 5_000, 200_000] {
        let layout = with_gaps(blocks);
        let numbers = usize::try_from(blocks).unwrap() * 4;
        let mine: Vec<f64> = (0..numbers).map(|index| value(me, index)).collect();
        let mut theirs: Vec<Vec<f64>> = (0..size).map(|_| vec![-1.0; numbers]).collect();
        comm.scope(|s| {
            for (peer, buffer) in (0..size).zip(&mut theirs) {
                let _ = s.irecv(ViewMut::typed(buffer, 0, &layout, 1)?, peer, 1)?;
                let _ = s.isend(View::typed(&mine, 0, &layout, 1)?, peer, 1)?;
            }
            Ok(())
        })?;
        for (peer, buffer) in (0..size).zip(&theirs) {
            for (index, &got) in buffer.iter().enumerate() {
                let right = if index % 4 < 2 { value(peer, index) } else { -1.0 };
                assert!(got == right, "number {index} of {numbers} from rank {peer}: {got}");
            }
        }
    }
    Ok(())
}

fn run_or_start(test: &str, wire: &str) {
    if let Ok(wire) = std::env::var(WIRE) {
        let world = world(&wire);
        all_to_all(&world).unwrap();
        return world.finalize().unwrap();
    }
    assert_eq!(four_ranks(test, wire).exit_code(), 0);
}

#[test]
fn four_processes_exchange_messages_with_gaps() {
    run_or_start("four_processes_exchange_messages_with_gaps", "clean");
}

#[test]
fn and_over_a_bad_wire() {
    run_or_start("and_over_a_bad_wire", "bad");
}
