//! System calls that the system refuses, as old kernels and the filters of containers do.

use super::{WATCHDOG, finish, skip};
use rustix::io::Errno;
use std::process::{Command, Output};

/// A system call, by its number on this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call(libc::c_long);

pub(crate) const ACCEPT: Call = Call(libc::SYS_accept4);
pub(crate) const PIDFD_OPEN: Call = Call(libc::SYS_pidfd_open);

/// From now on `call` fails with `error` in this thread, and in the threads and processes that it starts. `false`, said
/// aloud, if the system has no such filters.
pub(crate) fn deny(call: Call, error: Errno) -> bool {
    let number = u32::try_from(call.0).unwrap();
    let errno = u32::try_from(error.raw_os_error()).unwrap();
    let step = |code: u32, otherwise: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt: 0,
        jf: otherwise,
        k,
    };
    let mut steps = [
        // What a filter is given begins with the number of the call.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        // If it is another one, the next step is skipped.
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, number),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | errno),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: 4, filter: steps.as_mut_ptr() };
    let set = rustix::thread::set_no_new_privs(true).is_ok() && {
        // SAFETY: the kernel copies the four steps before the call ends.
        0 == unsafe {
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
        }
    };
    if !set {
        skip(&format!("refusing {call:?}"), &std::io::Error::last_os_error().to_string());
    }
    set
}

/// Runs a command in which `call` fails with `error`; `None`, said aloud, if that cannot be had.
pub(crate) fn finish_without(call: Call, error: Errno, command: Command) -> Option<Output> {
    // A thread of its own: what is denied stays so.
    let run = move || deny(call, error).then(|| finish(command, WATCHDOG));
    std::thread::spawn(run).join().expect("it ends")
}
