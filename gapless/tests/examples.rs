//! The examples of this crate, as jobs of real processes. `cargo test` builds them beside its tests; `cargo test --test
//! examples` alone does not.
#![cfg(feature = "launch")]

use gapless::launch::{self, End, Job, Outcome};
use std::ffi::OsString;

fn in_four_ranks(example: &str) {
    run(example, 4, &[], Vec::new());
}

fn run(example: &str, ranks: u32, arguments: &[&str], environment: Vec<(OsString, OsString)>) {
    let outcome = ended(example, ranks, arguments, environment);
    assert!(outcome.failed.is_none(), "{:?}", outcome.failed);
}

fn ended(
    example: &str,
    ranks: u32,
    arguments: &[&str],
    environment: Vec<(OsString, OsString)>,
) -> Outcome {
    let test = std::env::current_exe().expect("the path of this program");
    let folder = test.ancestors().nth(2).expect("tests are two folders below");
    let program = folder.join("examples").join(example);
    assert!(program.exists(), "{}: run `cargo test -p gapless`, or build it", program.display());
    let job = Job {
        ranks,
        program: program.into(),
        arguments: arguments.iter().map(Into::into).collect(),
        environment,
        prefix: true,
    };
    launch::run(&job).expect("the job starts")
}

#[test]
fn particles_stay_in_the_world() {
    in_four_ranks("particles");
}

#[test]
fn a_plate_gets_warm() {
    in_four_ranks("plate");
}

#[test]
fn a_cache_moves_by_its_pages() {
    for ranks in [1, 2, 3] {
        run("pages", ranks, &[], Vec::new());
    }
}

#[test]
fn the_tutorial_shows_the_plate_and_the_pages() {
    for (chapter, file) in [
        (
            include_str!("../../docs/tutorial/2-halo-exchange.md"),
            include_str!("../examples/plate.rs"),
        ),
        (
            include_str!("../../docs/tutorial/7-paged-cache.md"),
            include_str!("../examples/pages.rs"),
        ),
    ] {
        let shown = chapter.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
        assert!(shown.is_some_and(|it| file.contains(it)), "the chapter shows another program");
    }
}

#[test]
fn tasks_go_around_a_chain() {
    in_four_ranks("chain");
}

#[cfg(feature = "opencl")]
#[test]
fn a_kernel_is_launched_at_the_next_rank() {
    run("launched_opencl", 2, &[], Vec::new());
}

/// A header of 32 bytes is before the payload.
#[test]
fn the_page_of_the_protocol_has_the_eager_limits() {
    let page = include_str!("../../PROTOCOL.md").replace('\n', " ");
    let sm = gapless_btl_sm::SmConfig::new("a job", "a rank").eager_bytes - 32;
    let secret = gapless_btl_tcp::random_secret().unwrap();
    let tcp = gapless_btl_tcp::TcpConfig::new("a job", 0, secret, []).eager_bytes - 32;
    let thousands = |bytes: usize| format!("{},{:03}", bytes / 1000, bytes % 1000);
    let [sm, tcp] = [sm, tcp].map(thousands);
    assert!(page.contains(&format!("{sm} bytes of payload on `btl-sm`, {tcp} on `btl-tcp`")));
}

/// Those about workers say that there is no GPU, and end; the one that is to show something fails.
#[cfg(feature = "cuda")]
#[test]
fn without_a_gpu_examples_of_workers_end() {
    let none = || vec![("CUDA_VISIBLE_DEVICES".into(), "".into())];
    for (example, arguments) in [("chain_gpu", &[][..]), ("reducers", &["3"])] {
        run(example, 2, arguments, none());
    }
    let failed = ended("worker", 2, &[], none()).failed;
    assert!(matches!(failed, Some((_, End::Code(1)))), "{failed:?}");
}

/// What a thread plays is stopped with its process, so the example fails: it does not take that for a GPU's tasks.
#[cfg(feature = "cuda")]
#[test]
fn a_worker_that_stops_with_its_process_is_noticed() {
    let ended = ended("worker", 2, &["played"], Vec::new());
    // The initiator's code for a signal that it has not seen.
    assert_eq!(ended.failed, Some((0, End::Code(3))));
}
