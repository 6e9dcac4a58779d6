//! Messages between memories of devices, two processes over shared memory, one protocol after the other; and
//! what happens when something fails: buffers freed and allocated anew, too many of them, no staging
//! memory, memory that cannot be shared, a peer that is killed. And messages of one process between its devices.
//!
//! Every test is a job of real processes ([`gapless_tests::launcher`]) and runs on each kind of device that the
//! machine has: a pretended one that shares its memory as files and works late, OpenCL's, one CUDA
//! device for both ranks, a CUDA device for each. What cannot run says so. Random numbers come from one
//! seed, which is printed; `GAPLESS_SEED` repeats it.

mod buffers;
mod fake;
mod gear;
mod granted;
mod heard;
mod killed;
mod launched_cuda;
mod launched_opencl;
mod letters;
mod local;
mod protocols;
mod refused;
mod side;

use gapless::{Config, Tuning};
use gapless_tests::launcher::{Said, TestLauncher};
use gear::Kind;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest that a job without deaths may take: many times what it does take.
const WATCHDOG: Duration = Duration::from_secs(240);

/// The seed of a test, printed.
fn seed(test: &str) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    let fresh = u64::try_from(now & u128::from(u64::MAX >> 8)).expect("56 bits of it");
    let given = std::env::var("GAPLESS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or(fresh);
    println!("{test}: GAPLESS_SEED={seed}");
    eprintln!("{test}: GAPLESS_SEED={seed}");
    seed
}

/// The words of a part, after its name.
struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn of(part: &'a str) -> Words<'a> {
        let mut words = part.split_whitespace();
        words.next();
        Words(words)
    }

    fn word(&mut self) -> &'a str {
        self.0.next().expect("a word")
    }

    fn number(&mut self) -> u64 {
        self.word().parse().expect("a number")
    }

    fn size(&mut self) -> usize {
        self.word().parse().expect("a length")
    }
}

/// Numbers with which messages of `bytes` bytes are cut into many fragments.
fn tuned(bytes: usize) -> Config {
    let fragment = u32::try_from(bytes / 12).unwrap_or(1 << 22).clamp(16 << 10, 4 << 20);
    let tuning = Tuning { staged_fragment_bytes: fragment, ..Tuning::default() };
    Config { tuning, ..Config::default() }
}

/// What the first rank says until all are done; printed as it comes.
///
/// # Panics
/// A rank fails, or they take too long.
fn listen(launcher: &mut TestLauncher, test: &str) -> Vec<String> {
    let until = Instant::now() + WATCHDOG;
    let (mut rows, mut clean, mut ended) = (Vec::new(), 0, 0);
    let ranks = launcher.size();
    while ended < ranks {
        let left = until.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "{test}: the ranks take too long; so far: {rows:#?}");
        match launcher.hear(left) {
            Some((_, Said::Line(line))) if line == "clean" => clean += 1,
            Some((0, Said::Line(line))) => {
                // At once: a job that hangs has said how far it came.
                println!("{test}: {line}");
                rows.push(line);
            }
            Some((_, Said::Line(_))) | None => {}
            Some((rank, Said::Ended(status))) => {
                assert!(status.success(), "{test}: rank {rank} ended with {status}: {rows:#?}");
                ended += 1;
            }
        }
    }
    assert_eq!(clean, ranks, "{test}: {rows:#?}");
    rows
}

/// Runs a test on a kind of device, or says why not; in a rank, where the device is known to be there.
fn with(test: &str, kind: Kind, run: fn(&str, Kind)) {
    if gapless_tests::launcher::part().is_some() {
        return run(test, kind);
    }
    match kind.is_there() {
        Ok(()) => run(test, kind),
        Err(why) => gapless_btl_testkit::conformance::skip(test, &why),
    }
}

macro_rules! on {
    ($($test:ident: $kind:ident, $run:path;)*) => {$(
        #[test]
        fn $test() {
            with(stringify!($test), Kind::$kind, $run);
        }
    )*};
}

on! {
    every_protocol_fake: Fake, protocols::every_protocol;
    every_protocol_opencl: OpenCl, protocols::every_protocol;
    every_protocol_cuda_one: CudaOne, protocols::every_protocol;
    every_protocol_cuda_two: CudaTwo, protocols::every_protocol;
    every_protocol_cuda_vmm: CudaVmm, protocols::every_protocol;
    every_protocol_cuda_managed: CudaManaged, protocols::every_protocol;
    both_send_first_fake: Fake, protocols::both_send_first;
    both_send_first_cuda_one: CudaOne, protocols::both_send_first;
    both_send_first_cuda_two: CudaTwo, protocols::both_send_first;
    same_address_fake: Fake, buffers::same_address;
    same_address_cuda_one: CudaOne, buffers::same_address;
    same_address_cuda_two: CudaTwo, buffers::same_address;
    many_buffers_fake: Fake, buffers::many_buffers;
    many_buffers_cuda_one: CudaOne, buffers::many_buffers;
    many_buffers_cuda_two: CudaTwo, buffers::many_buffers;
    no_staging_fake: Fake, buffers::no_staging;
    no_staging_cuda_one: CudaOne, buffers::no_staging;
    granted_fake: Fake, granted::host_memory_is_granted;
    granted_opencl: OpenCl, granted::host_memory_is_granted;
    granted_cuda_one: CudaOne, granted::host_memory_is_granted;
    granted_cuda_two: CudaTwo, granted::host_memory_is_granted;
    peers_are_killed_fake: Fake, killed::peers_are_killed;
    peers_are_killed_opencl: OpenCl, killed::peers_are_killed;
    peers_are_killed_cuda_one: CudaOne, killed::peers_are_killed;
    peers_are_killed_cuda_two: CudaTwo, killed::peers_are_killed;
    local_fake: Fake, local::all_pairs;
    local_cuda: CudaTwo, local::all_pairs;
    exports_refused_fake: FakeSealed, refused::falls_back;
    imports_refused_fake: FakeBlind, refused::falls_back;
    exports_refused_cuda: CudaPool, refused::falls_back;
    other_numbers_cuda: CudaTwo, refused::other_numbers;
    beside_mps_cuda: CudaOne, refused::beside_mps;
}
