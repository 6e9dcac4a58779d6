//! Reshards between ranks, in host memory and in that of devices: every element is compared with what indices say.
//! `coll/src/reshard/tests.rs` has all distributions of small arrays; here messages carry some of them.

use gapless::btl::Btl;
use gapless::btl::loopback::{Hub, Loopback};
use gapless::coll::reshard::{Placement, Reshard, Sharding};
use gapless::{Config, Datatype, Device, DeviceBuf, Primitive, Region, Space, Tuning, World};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_btl_testkit::Random;
use gapless_engine::testkit::FakeEngine;
use gapless_mem::fake::FakeDevice;
use gapless_tests::{job, job_of};
use std::sync::Arc;

const FAKE: Space = Space::Device { kind: "fake", device: 0 };

/// A sharding of an array of two axes, and its parts in plain sight.
struct Spec {
    dims: Vec<u32>,
    ranks: Vec<u32>,
    placements: Vec<Placement>,
    order: [usize; 2],
}

impl Spec {
    fn draw(random: &mut Random, ranks: u32) -> Spec {
        let mut below = |bound: usize| random.below(bound);
        let sizes: &[&[u32]] = match ranks {
            4 => &[&[4], &[2, 2], &[3], &[1]],
            3 => &[&[3], &[2], &[1, 2]],
            2 => &[&[2], &[1, 2], &[1]],
            _ => &[&[1], &[]],
        };
        let dims = sizes[below(sizes.len())].to_vec();
        let placements = dims.iter().map(|_| match below(6) {
            0 | 1 => Placement::Replicate,
            2 | 3 => Placement::Block { axis: below(2) },
            _ => Placement::Cyclic { axis: below(2), block: 1 + below(4) as u64 },
        });
        let placements = placements.collect();
        // As many as it takes, from any on.
        let (first, count) = (below(ranks as usize), dims.iter().product());
        let ranks = (0..count).map(|rank| (rank + u32::try_from(first).unwrap()) % ranks).collect();
        let order = if below(2) == 0 { [0, 1] } else { [1, 0] };
        Spec { dims, ranks, placements, order }
    }

    fn sharding(&self) -> Sharding {
        let ranks = self.ranks.iter().copied();
        Sharding::new(&self.dims, ranks, &self.placements).unwrap().in_order(&self.order)
    }

    /// A rank's local array of elements that are numbered row by row in the whole one.
    fn array(&self, shape: [u64; 2], rank: u32) -> Vec<f32> {
        let Some(mut place) = self.ranks.iter().position(|it| *it == rank) else {
            return Vec::new();
        };
        let mut indices = shape.map(|len| (0..len).collect::<Vec<u64>>());
        let mut coordinates = Vec::new();
        for size in self.dims.iter().rev() {
            coordinates.insert(0, place % *size as usize);
            place /= *size as usize;
        }
        for ((placement, size), at) in self.placements.iter().zip(&self.dims).zip(coordinates) {
            let size = *size as usize;
            let (axis, block) = match *placement {
                Placement::Replicate => continue,
                Placement::Block { axis } => (axis, indices[axis].len().div_ceil(size).max(1)),
                Placement::Cyclic { axis, block } => (axis, usize::try_from(block).unwrap()),
            };
            let list = std::mem::take(&mut indices[axis]).into_iter().enumerate();
            indices[axis] =
                list.filter(|(it, _)| it / block % size == at).map(|(_, index)| index).collect();
        }
        let [rows, columns] = &indices;
        let number =
            |row: u64, column: u64| f32::from(u16::try_from(row * shape[1] + column).unwrap());
        match self.order {
            [0, 1] => {
                rows.iter().flat_map(|r| columns.iter().map(move |c| number(*r, *c))).collect()
            }
            _ => columns.iter().flat_map(|c| rows.iter().map(move |r| number(*r, *c))).collect(),
        }
    }
}

/// Some reshards, the same at all ranks, with the local arrays that this rank has and is due.
fn reshards(
    world: &World,
    number: usize,
    sides: usize,
    mut act: impl FnMut(&Reshard, Vec<f32>, Vec<f32>, String),
) {
    let mut random = Random::new(43);
    for _ in 0..number {
        let shape = [1, 1].map(|least: u64| least + random.below(sides) as u64);
        let [source, target] = [(); 2].map(|()| Spec::draw(&mut random, world.size()));
        let float = Datatype::from(Primitive::Float);
        let reshard = Reshard::new(&shape, &float, &source.sharding(), &target.sharding()).unwrap();
        let [has, due] = [&source, &target].map(|spec| spec.array(shape, world.rank()));
        act(&reshard, has, due, format!("{shape:?}: {reshard:?} at rank {}", world.rank()));
    }
}

#[test]
fn elements_in_host_memory_go_where_they_belong() {
    for ranks in 1..=4 {
        let hub = Hub::new();
        let transports = |_| -> Vec<Box<dyn Btl>> { vec![Box::new(Loopback::new(&hub))] };
        job(ranks, &Config::default(), transports, |world| {
            // Small ones, and some whose messages are long.
            for (number, sides) in [(60, 9), (6, 200)] {
                reshards(world, number, sides, |reshard, mut has, due, what| {
                    let mut got = vec![-1.0f32; due.len()];
                    let mut plan = world.comm().reshard_plan(reshard, &has, &got, 1).unwrap();
                    for _ in 0..2 {
                        plan.exchange(&has, &mut got).unwrap();
                        assert_eq!(got, due, "{what}");
                        got.fill(-1.0);
                    }
                    has.iter_mut().for_each(|it| *it += 0.5);
                    plan.exchange_while(&has, &mut got, || ()).unwrap();
                    assert!(got.iter().zip(&due).all(|(got, due)| *got == due + 0.5), "{what}");
                });
            }
        });
    }
}

fn copy(device: &FakeDevice, to: Region, from: Region) {
    // SAFETY: both live over the wait, and nothing else touches them.
    unsafe { device.copy(to, from, &[]) }.unwrap().wait().unwrap();
}

#[test]
fn elements_in_memory_of_devices_go_where_they_belong() {
    for ranks in 1..=4 {
        let devices: Vec<_> = (0..ranks).map(|_| Arc::new(FakeDevice::with_delay(0, 2))).collect();
        let builder = |rank: u32| {
            let device = &devices[rank as usize];
            let engine = FakeEngine { attaches: false, ..FakeEngine::new(device, 3) };
            // Every job of this process has its own name.
            let name = format!("reshards {ranks} {}", std::process::id());
            let sm = Sm::new(SmConfig::new(name, format!("rank {rank}"))).unwrap();
            let builder = World::builder().tuning(Tuning::default()).only(["sm"]);
            let builder = builder.transport(Box::new(sm));
            builder.open_devices(false).engine(Arc::new(engine)).device(Arc::clone(device) as _)
        };
        job_of(ranks, builder, |world| {
            let device = &devices[world.rank() as usize];
            reshards(world, 12, 9, |reshard, mut has, due, what| {
                // Longer than needed: an array has a byte.
                let memory = |floats: usize| -> DeviceBuf {
                    world.alloc_device(FAKE, 4 * (floats as u64 + 1)).unwrap()
                };
                let (source, mut target) = (memory(has.len()), memory(due.len()));
                let mut got = vec![-1.0f32; due.len() + 1];
                has.push(-2.0);
                copy(device, source.region(), region(&mut has));
                copy(device, target.region(), region(&mut got));
                let mut plan = world.comm().reshard_plan(reshard, &source, &target, 1).unwrap();
                plan.exchange(&source, &mut target).unwrap();
                copy(device, region(&mut got), target.region());
                assert_eq!(got.pop(), Some(-1.0), "{what}");
                assert_eq!(got, due, "{what}");
                // From the device to the host, by regions.
                let mut got = vec![-1.0f32; due.len()];
                let host = region(&mut got);
                let comm = world.comm();
                let mut plan =
                    comm.reshard_plan_regions(reshard, source.region(), host, 2).unwrap();
                // SAFETY: both live, and nothing else touches them during the call.
                unsafe { plan.exchange_regions(source.region(), host) }.unwrap();
                assert_eq!(got, due, "{what}");
            });
        });
    }
}

fn region(floats: &mut [f32]) -> Region {
    let address = floats.as_mut_ptr().expose_provenance() as u64;
    Region::new(Space::Host, address, 0, 4 * floats.len() as u64)
}
