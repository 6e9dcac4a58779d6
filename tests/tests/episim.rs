//! The epidemic of `examples/episim`: any number of ranks, each way of moving visits, on the host and on devices, come to
//! the curve that one process computes. Ranks are threads.

use gapless::World;
use gapless::btl::Btl;
use gapless_btl::loopback::{Hub, Loopback};
use gapless_episim::population::{Population, Synthetic};
use gapless_episim::{Memory, Options, Phase, Scheme, run, serial};
use gapless_mem_cuda::CudaDriver;
use gapless_mem_opencl::OpenClDevice;
use gapless_tests::{job, job_of};

/// Small, and neither persons nor locations are a multiple of any number of ranks. Half of all get it.
const SMALL: Synthetic = Synthetic {
    persons: 499,
    locations: 401,
    visits: 2_900,
    infected: 20,
    days: 12,
    ..Synthetic::DELAWARE
};
const SEED: u64 = 20_120_601;

/// All ways, by so many ranks, compared with one process.
fn compare(ranks: u32, memory: Memory, visits_there: &[bool]) {
    let population = Population { synthetic: SMALL, seed: SEED };
    let right = serial(&population);
    let last = right.last().unwrap();
    assert!(last.susceptible < 400 && last.infectious > 0, "seed {SEED}: {last:?}");
    for scheme in Scheme::ALL {
        for &visits_there in visits_there {
            let options =
                Options { population, scheme, memory, visits_there, ..Options::default() };
            let body = |world: &World| {
                let mut told = Vec::new();
                let summary = run(world, &options, &mut |day| told.push(day)).unwrap();
                assert_eq!(summary.days, right, "{ranks} ranks, seed {SEED}, {options:?}");
                assert!(told.iter().copied().eq(1..=SMALL.days));
                assert!(summary.visits > u64::from(SMALL.days) * 2_000, "{}", summary.visits);
                assert_eq!(summary.times(Phase::Whole).count(), right.len());
            };
            match memory {
                Memory::Host => {
                    let hub = Hub::new();
                    let transports =
                        |_| -> Vec<Box<dyn Btl>> { vec![Box::new(Loopback::new(&hub))] };
                    job(ranks, &gapless::Config::default(), transports, body);
                }
                _ => job_of(ranks, |_| World::builder(), body),
            }
        }
    }
}

#[test]
fn ranks_come_to_the_curve_of_one_process() {
    (1..=4).for_each(|ranks| compare(ranks, Memory::Host, &[false, true]));
}

#[test]
fn ranks_with_opencl_devices_do_too() {
    if let Err(error) = OpenClDevice::open(0) {
        return gapless_btl_testkit::conformance::skip(
            "an epidemic on OpenCL devices",
            &error.to_string(),
        );
    }
    (1..=4).for_each(|ranks| compare(ranks, Memory::OpenCl, &[ranks % 2 == 0]));
}

#[test]
fn ranks_with_cuda_devices_do_too() {
    let there = CudaDriver::load().and_then(|_| gapless_mem_cuda::compile("", &[]));
    if let Err(error) = there {
        return gapless_btl_testkit::conformance::skip(
            "an epidemic on CUDA devices",
            &error.to_string(),
        );
    }
    (1..=4).for_each(|ranks| compare(ranks, Memory::Cuda, &[false, true]));
}

/// A population without enough places is refused before anything is sent.
#[test]
fn a_population_that_cannot_be_is_refused_by_all_ranks() {
    let synthetic = Synthetic { locations: 3, ..SMALL };
    let population = Population { synthetic, seed: SEED };
    let options = Options { population, ..Options::default() };
    job_of(
        2,
        |_| World::builder(),
        |world| {
            let error = run(world, &options, &mut |_| {}).unwrap_err();
            assert!(error.to_string().starts_with("locations is 3, not from"), "{error}");
        },
    );
}
