//! Which protocol carries a message out of host memory if nothing is forced. Ranks are threads.

use gapless::{Protocol, Tuning, World};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_tests::job_of;

#[test]
fn short_ones_are_eager_unless_the_receiver_can_map_them() {
    let builder = |rank: u32| {
        let config =
            SmConfig::new(format!("chosen {}", std::process::id()), format!("rank {rank}"));
        let sm = Box::new(Sm::new(config).unwrap());
        World::builder().tuning(Tuning::default()).open_devices(false).only(["sm"]).transport(sm)
    };
    job_of(2, builder, |world| {
        let comm = world.comm();
        comm.barrier().unwrap();
        for (bytes, of_alloc) in [(2048, Protocol::Eager), (32 << 10, Protocol::Mapped)] {
            let shared = world.alloc(bytes).unwrap();
            let ordinary = vec![7u8; bytes];
            let mut into = vec![0u8; bytes];
            for (memory, expected) in [(&shared[..], of_alloc), (&ordinary[..], Protocol::Eager)] {
                let protocol = match world.rank() {
                    0 => comm.send(memory, 1, 0).unwrap().protocol,
                    _ => comm.recv(&mut into, 0, 0).unwrap().protocol,
                };
                assert_eq!(protocol, expected, "{bytes} bytes");
            }
            comm.barrier().unwrap();
        }
    });
}
