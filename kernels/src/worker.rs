//! The worker of XTQ: a kernel that stays on the target's GPU, polls rings of packets and runs what they ask for
//! (`cuda/worker.cu`; `worker.h` says what lies where). It is one block, and is given the address of its control block.
//!
//! | kernel | for |
//! |---|---|
//! | [`WORKER`] | the worker |
//! | [`REWRITE`] | packets through the worker's rewrite: by this it is compared with the host's |
//! | [`INITIATE`] | a thread block of another GPU that puts tasks, for measurements |

use std::ffi::CStr;

/// These kernels, as a fat binary like [`IMAGE`](crate::IMAGE).
pub const IMAGE: &[u8] = include_bytes!("../images/worker.fatbin");

/// What `ptxas` said of [`IMAGE`]: a heading, then a line a kernel.
pub const REGISTERS: &str = include_str!("../images/ptxas-worker.txt");

/// One block of [`THREADS`]. Parameter: the control block's address.
pub const WORKER: &CStr = c"xtq_worker";

/// Any blocks of at most 256 threads. Parameters, of 8 bytes: addresses of packets (64 bytes each), of their places
/// (arguments, payload), of the three tables (functions, kernels, queues), of what comes out (96 bytes each: the packet,
/// the first two arguments, the queue, a code); how many packets. The code is 255 of a task; else why it is none.
pub const REWRITE: &CStr = c"xtq_rewrite";

/// One block of 32 threads. Parameters, of 8 bytes: addresses of a ring as `worker.h` lists it, and of a packet with its
/// body; the body's bytes; how many puts; how many may be unanswered; nanoseconds that an answer may take; the address of
/// what comes out: what went wrong, tasks that ended, nanoseconds of all, then of each if one is unanswered at a time.
pub const INITIATE: &CStr = c"xtq_initiate";

/// Threads of the worker's block.
pub const THREADS: u32 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_were_compiled_for_every_architecture_without_spilling() {
        let names = [WORKER, REWRITE, INITIATE].map(|name| name.to_str().unwrap());
        let mut seen = 0;
        for line in REGISTERS.lines().skip(1) {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, name, registers, spilled, stack, ..] = words[..] else { panic!("{line}") };
            assert!(registers.parse::<u32>().unwrap() <= 128, "{line}");
            assert_eq!((spilled, stack), ("0", "0"), "{line}");
            assert!(names.contains(&name), "{name} is nobody's");
            seen += 1;
        }
        assert_eq!(seen, 3 * names.len());
        let header = include_str!("worker.h");
        assert!(header.contains(&format!("#define WORKER_THREADS {THREADS}\n")));
    }
}
