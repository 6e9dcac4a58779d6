//! The copy worker: a persistent kernel on a GPU, which runs short copies from layout to layout which its own host writes
//! into a ring ([`persistent`](crate::persistent); `cuda/copy_worker.cu`). It takes what kernels of
//! [`Family::Transfer`](crate::Family::Transfer) take. It waits for its own host alone: for no other process, and no
//! other kernel.

use crate::args::{
    Args, Dim, SIDE_AFFINE, SIDE_LISTED, SIDE_MAPPED, SIDE_STRIDED, Side, Strided, TransferArgs,
};
use crate::launch::Launch;
use crate::persistent::Command;
use std::ffi::CStr;
use std::mem::offset_of;
use std::ops::Range;
use zerocopy::{Immutable, IntoBytes};

/// The kernel, as a fat binary like [`IMAGE`](crate::IMAGE).
pub const IMAGE: &[u8] = include_bytes!("../images/copy_worker.fatbin");

/// What `ptxas` said of [`IMAGE`]: a heading, then a line a kernel.
pub const REGISTERS: &str = include_str!("../images/ptxas-copy-worker.txt");

/// One block of [`THREADS`](crate::persistent::THREADS). Parameter: three words: where kernels find the control block;
/// after how many nanoseconds without a command it leaves; after how many in all.
pub const KERNEL: &CStr = c"copy_worker";

/// The arguments that the kernel keeps: `Copy` of `cuda/copy_worker.cu`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
struct Copy {
    /// Of the source, the destination, and both plans.
    pointers: [u64; POINTERS],
    args: TransferArgs,
}

const POINTERS: usize = 4;

/// The bytes of a side that count.
fn used(side: &Side) -> [Range<usize>; 2] {
    let head = 0..offset_of!(Side, strided);
    let body = |at: usize, len: usize| at..at + len;
    let body = match side.kind {
        SIDE_STRIDED => {
            let dims = side.strided.dims as usize * size_of::<Dim>();
            body(offset_of!(Side, strided), offset_of!(Strided, dim) + dims)
        }
        SIDE_AFFINE => body(offset_of!(Side, affine), size_of_val(&side.affine)),
        SIDE_LISTED => body(offset_of!(Side, listed), size_of_val(&side.listed)),
        SIDE_MAPPED => body(offset_of!(Side, mapped), size_of_val(&side.mapped)),
        _ => 0..0,
    };
    [head, body]
}

/// The command that moves what this launch moves; `pointers` are the launch's, a side without a plan has any. `None`: the
/// launch is of another family, or there is no room for its arguments.
#[must_use]
pub fn command(launch: &Launch, pointers: [u64; POINTERS]) -> Option<Command> {
    let Args::Transfer(args) = &launch.args else { return None };
    let copy = Copy { pointers, args: **args };
    let sides =
        [(&args.from, offset_of!(TransferArgs, from)), (&args.to, offset_of!(TransferArgs, to))];
    let first = offset_of!(Copy, args);
    let mut parts = Vec::with_capacity(5);
    parts.push(0..first + sides[0].1);
    for (side, at) in sides {
        for part in used(side) {
            let part = first + at + part.start..first + at + part.end;
            match parts.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => parts.push(part),
            }
        }
    }
    Command::new(u8::try_from(launch.kernel.width.log2()).ok()?, copy.as_bytes(), parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Grid, GridDim, KernelAddress, Runs, TransferSide, transfer};
    use crate::persistent::taken_apart;

    fn grid(dims: usize, len: u64) -> TransferSide {
        let step = |k: usize| 1i64 << (12 + 2 * (dims - k));
        let dims = (0..dims).map(|k| GridDim { count: 3, stride: step(k) });
        TransferSide::Strided(Grid { displacement: -64, len, dims: dims.collect() })
    }

    #[test]
    fn the_kernel_finds_what_a_command_was_made_of() {
        let runs = Runs {
            count: 9,
            displacement: 8,
            step: 512,
            len: 16,
            grow: 8,
            instances: 4,
            extent: 8192,
        };
        let sides = [TransferSide::Contiguous(16), TransferSide::Affine(runs)];
        let sides: Vec<_> = sides.into_iter().chain((1..=6).map(|dims| grid(dims, 24))).collect();
        let (place, mut number) = (KernelAddress { address: 1 << 40, offset: 0 }, 65_000);
        for from in &sides {
            for to in &sides {
                let all = transfer(&(8..72), (from, place), (to, place), None).unwrap();
                let [launch] = &all[..] else { panic!("{all:?}") };
                let Args::Transfer(args) = &launch.args else { panic!("{launch:?}") };
                let dims =
                    |side: &Side| if side.kind == SIDE_STRIDED { side.strided.dims } else { 2 };
                let Some(command) = command(launch, [1, u64::MAX, 3, 4]) else {
                    assert!(dims(&args.from) + dims(&args.to) > 8, "{from:?} to {to:?}");
                    continue;
                };
                let (log2, found) = taken_apart(&command, number, size_of::<Copy>());
                assert_eq!(u32::from(log2), launch.kernel.width.log2());
                let (pointers, found) = found.split_at(offset_of!(Copy, args));
                assert_eq!(pointers, [1, u64::MAX, 3, 4].as_bytes());
                let counts =
                    [offset_of!(TransferArgs, from), offset_of!(TransferArgs, to)].map(|at| at..);
                let whole =
                    [&args.from, &args.to].into_iter().zip(counts).flat_map(|(side, at)| {
                        used(side).map(|range| at.start + range.start..at.start + range.end)
                    });
                for range in whole.chain(std::iter::once(0..size_of_val(&args.span))) {
                    assert_eq!(found[range.clone()], args.as_bytes()[range]);
                }
                number += 97;
            }
        }
    }

    #[test]
    fn other_launches_are_none_of_its_commands() {
        let place = KernelAddress { address: 0, offset: 0 };
        let what = crate::launch::Move {
            direction: crate::Direction::Pack,
            range: 0..64,
            typed: place,
            packed: place,
            budget: None,
        };
        let copies = crate::launch::contiguous(&what, 0).unwrap();
        assert_eq!(command(&copies[0], [0; 4]), None);
    }

    #[test]
    fn it_was_compiled_for_every_architecture_without_spilling() {
        let lines: Vec<Vec<&str>> =
            REGISTERS.lines().skip(1).map(|line| line.split(' ').collect()).collect();
        assert_eq!(lines.len(), 3);
        for line in lines {
            assert_eq!((line[1], line[3], line[4]), ("copy_worker", "0", "0"));
            // Half the registers of a multiprocessor of 65,536.
            assert!(line[2].parse::<u32>().unwrap() <= 64);
        }
    }
}
