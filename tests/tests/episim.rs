//! The epidemic of `examples/episim`: any number of ranks, each way of moving visits, on the host and on devices, come
//! to the curve that one process computes. Ranks are threads.

use gapless::World;
use gapless::btl::Btl;
use gapless_btl::loopback::{Hub, Loopback};
use gapless_episim::population::{Population, Synthetic};
use gapless_episim::{DeviceKind, Options, Phase, Refused, Scheme, run, serial};
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
fn compare(ranks: u32, device: DeviceKind, visits_there: &[bool]) {
    let population = Population { synthetic: SMALL, seed: SEED };
    let right = serial(&population);
    let last = right.last().unwrap();
    assert!(last.susceptible < 400 && last.infectious > 0, "seed {SEED}: {last:?}");
    for scheme in Scheme::ALL {
        for &visits_there in visits_there {
            let options =
                Options { population, scheme, device, visits_there, ..Options::default() };
            let body = |world: &World| {
                let mut told = Vec::new();
                let summary = run(world, &options, &mut |day| told.push(day)).unwrap();
                assert_eq!(summary.days, right, "{ranks} ranks, seed {SEED}, {options:?}");
                assert!(told.iter().copied().eq(1..=SMALL.days));
                assert!(summary.visits > u64::from(SMALL.days) * 2_000, "{}", summary.visits);
                assert_eq!(summary.times(Phase::Whole).count(), right.len());
            };
            match device {
                DeviceKind::Host => {
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
    (1..=4).for_each(|ranks| compare(ranks, DeviceKind::Host, &[false, true]));
}

#[test]
fn ranks_with_opencl_devices_do_too() {
    if let Err(error) = OpenClDevice::open(0) {
        return gapless_btl_testkit::conformance::skip(
            "an epidemic on OpenCL devices",
            &error.to_string(),
        );
    }
    (1..=4).for_each(|ranks| compare(ranks, DeviceKind::OpenCl, &[ranks % 2 == 0]));
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
    (1..=4).for_each(|ranks| compare(ranks, DeviceKind::Cuda, &[false, true]));
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

/// What two ranks say of whom rank 1 has other options.
fn refused_by(change: fn(&mut Options), check: fn(u32, gapless_episim::Failure)) {
    job_of(
        2,
        |_| World::builder(),
        |world| {
            let population = Population { synthetic: SMALL, seed: SEED };
            let mut options = Options { population, ..Options::default() };
            if world.rank() == 1 {
                change(&mut options);
            }
            check(world.rank(), run(world, &options, &mut |_| {}).unwrap_err());
        },
    );
}

#[test]
fn ranks_of_different_options_all_refuse() {
    refused_by(
        |options| options.population.synthetic.locations += 1,
        |_, error| {
            let refused = error.downcast_ref::<Refused>();
            assert_eq!(refused, Some(&Refused::Differ("locations")), "{error}");
        },
    );
}

/// A rank that fails by itself says why, and nobody waits for it.
#[test]
fn a_rank_that_fails_alone_leaves_nobody_waiting() {
    refused_by(
        |options| options.population.synthetic.locations = 3,
        |rank, error| match rank {
            0 => assert!(error.is::<Refused>(), "{error}"),
            _ => assert!(error.to_string().starts_with("locations is 3, not from"), "{error}"),
        },
    );
}
