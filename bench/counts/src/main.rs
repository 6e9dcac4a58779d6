//! Work whose instructions are counted under valgrind's callgrind: the eager path, matching, steps of
//! the convertor, and puts of tasks. Counts do not depend on what else a machine does, so a few per cent are a finding.
//!
//! ```text
//! cargo xtask counts            # count, and compare with counts.txt
//! cargo xtask counts --bless    # write counts.txt anew, in the commit that explains it
//! gapless-counts                # the names of all work
//! gapless-counts NAME           # set up, warm up, then do it 64 times in `gapless_counted`
//! ```
//!
//! Two ends live in one thread over loopback transports, as in the benches, or over the shared memory that
//! processes have between them: a message's count holds both its ends. Nothing here is random, and nothing looks at a clock.

mod messages;
mod packing;
mod tasks;

use std::process::ExitCode;

/// How often the counted work is done.
const TIMES: u32 = 64;

/// One piece of work: sets up, and calls what it is given with what is to be counted.
type CountedWork = fn(&mut dyn FnMut(&mut dyn FnMut()));

const ALL: &[(&str, CountedWork)] = &[
    ("eager_8_bytes", |count| messages::eager(8, count)),
    ("eager_1024_bytes", |count| messages::eager(1024, count)),
    ("shared_memory_8_bytes", |count| messages::between_processes(8, count)),
    ("shared_memory_1024_bytes", |count| messages::between_processes(1024, count)),
    ("shared_memory_window_of_64", messages::window),
    ("eager_vector_64_by_8", messages::eager_vector),
    ("eager_before_its_receive", messages::unexpected),
    ("match_among_1000_posted", messages::among_posted),
    ("match_among_1000_unexpected", messages::among_unexpected),
    ("send_after_work_among_1000_offers", messages::after_work),
    ("convertor_step_vector", packing::vector),
    ("convertor_step_indexed", packing::indexed),
    ("convertor_step_struct", packing::structure),
    ("convertor_seek_indexed", packing::seek),
    ("put_into_a_ring", tasks::put),
];

/// What is counted is what happens in here; callgrind knows it by this name.
#[allow(unsafe_code, reason = "the attribute: a name that no compiler changes")]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn gapless_counted(work: &mut &mut dyn FnMut()) {
    for _ in 0..TIMES {
        work();
    }
}

fn main() -> ExitCode {
    let Some(name) = std::env::args().nth(1) else {
        ALL.iter().for_each(|(name, _)| println!("{name} {TIMES}"));
        return ExitCode::SUCCESS;
    };
    let Some((_, work)) = ALL.iter().find(|(known, _)| *known == name) else {
        eprintln!("no work is called {name}");
        return ExitCode::FAILURE;
    };
    work(&mut |mut counted| {
        // Caches of the allocator, of layouts and of requests fill.
        (0..TIMES).for_each(|_| counted());
        gapless_counted(&mut counted);
    });
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_work_is_done() {
        for (name, work) in ALL {
            let mut done = 0;
            work(&mut |counted| (0..3).for_each(|_| (counted(), done += 1).0));
            assert_eq!(done, 3, "{name}");
        }
    }
}
