//! Which packets of page-locked memory a device's messages pass on their way over a network: messages between the
//! memories of the first GPU go over TCP on the loopback interface, with packets of each length in turn.

use super::clock::{median, repeats};
use super::found::TunedNumbers;
use crate::Worlds;
use crate::failure::Failure;
use gapless::tuning::coll::Table;
use gapless::{Config, Datatype, DeviceBuf, Layout, Primitive, ReduceOp, Space, World};
use gapless_pml::Tuning;
use std::time::{Duration, Instant};

/// Packets that are tried.
const PACKETS: [u32; 5] = [256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
/// The message.
const BYTES: u64 = 16 << 20;
/// By how much another packet must be better than the default to be taken.
const WORTH: f64 = 0.97;
const DATA: i32 = 1;

/// Measures for about so long; both ranks call it.
pub(super) fn measure(
    worlds: Worlds<'_>,
    time: Duration,
    found: &mut TunedNumbers,
) -> Result<(), Failure> {
    let builder = worlds.builder()?.only(["tcp"]).tcp_interfaces("lo");
    let builder = builder.tuning(Tuning::default()).coll_table(Table::default());
    let world = match builder.init() {
        Ok(world) => world,
        Err(why) => {
            found.miss("device", "packet_bytes", why.to_string());
            return Ok(());
        }
    };
    let memory = world.alloc_device(Space::Cuda { device: 0 }, BYTES);
    let (mut all, has) = ([0u8], u8::from(memory.is_ok()));
    world.comm().allreduce(&[has], &mut all, ReduceOp::Min)?;
    match memory {
        Ok(memory) if all == [1] => {
            found.set("device", "packet_bytes", best(&world, memory, time)?.into())
        }
        Ok(_) => found.miss("device", "packet_bytes", "the other process has no GPU"),
        Err(why) => found.miss("device", "packet_bytes", why.to_string()),
    }
    world.finalize()?;
    Ok(())
}

/// The packet with which a message is quickest.
fn best(world: &World, mut memory: DeviceBuf, time: Duration) -> Result<u32, Failure> {
    let byte = Datatype::from(Primitive::Byte).commit()?;
    let mut turn = |packet: u32| -> Result<f64, Failure> {
        let mut config: Config = world.config()?;
        let tuning = &mut config.tuning;
        (tuning.device_packet_bytes, tuning.device_far_packet_bytes) = (packet, packet);
        world.set_config(config)?;
        // The first makes the rings.
        trip(world, &mut memory, &byte)?;
        trip(world, &mut memory, &byte)
    };
    let begin = Instant::now();
    for packet in PACKETS {
        turn(packet)?;
    }
    let mut rounds = [repeats(time, begin.elapsed().as_secs_f64()) as u64];
    world.comm().bcast(&mut rounds, 0)?;
    let mut times = PACKETS.map(|_| Vec::new());
    for _ in 0..rounds[0] {
        for (packet, times) in PACKETS.into_iter().zip(&mut times) {
            times.push(turn(packet)?);
        }
    }
    let default = Tuning::default().device_packet_bytes;
    let times = PACKETS.into_iter().zip(times.map(|times| median(times).unwrap_or(f64::MAX)));
    let usual =
        times.clone().find(|(packet, _)| *packet == default).map_or(f64::MAX, |(_, time)| time);
    let best = times.filter(|(_, time)| *time < WORTH * usual).min_by(|a, b| a.1.total_cmp(&b.1));
    Ok(best.map_or(default, |(packet, _)| packet))
}

/// Seconds of a round trip.
fn trip(world: &World, memory: &mut DeviceBuf, byte: &Layout) -> Result<f64, Failure> {
    let (comm, peer) = (world.comm(), 1 - world.rank());
    let begin = Instant::now();
    for step in 0..2 {
        if world.rank() == step {
            comm.send(memory.view(0, byte, BYTES)?, peer, DATA)?;
        } else {
            comm.recv(memory.view_mut(0, byte, BYTES)?, peer, DATA)?;
        }
    }
    Ok(begin.elapsed().as_secs_f64())
}
