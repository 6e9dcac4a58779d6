//! The copy worker: a kernel that stays on a GPU, and runs short copies from layout to layout which its own host writes
//! into a ring (`cuda/copy_worker.cu`; `copy_worker.h` says what lies where). It takes what kernels of
//! [`Family::Transfer`](crate::Family::Transfer) take. It waits for its own host alone: for no other process, and no
//! other kernel.

use crate::args::{
    Args, Dim, SIDE_AFFINE, SIDE_LISTED, SIDE_MAPPED, SIDE_STRIDED, Side, Strided, TransferArgs,
};
use crate::launch::Launch;
use std::ffi::CStr;
use std::mem::offset_of;
use std::ops::Range;
use zerocopy::IntoBytes;

/// The kernel, as a fat binary like [`IMAGE`](crate::IMAGE).
pub const IMAGE: &[u8] = include_bytes!("../images/copy_worker.fatbin");

/// What `ptxas` said of [`IMAGE`]: a heading, then a line a kernel.
pub const REGISTERS: &str = include_str!("../images/ptxas-copy-worker.txt");

/// One block of [`THREADS`]. Parameter: three words: where kernels find the control block; after how many nanoseconds
/// without a command it leaves; after how many in all.
pub const KERNEL: &CStr = c"copy_worker";

/// Threads of its block.
pub const THREADS: u32 = 512;

/// Commands that the ring holds.
pub const SLOTS: u64 = 64;

/// Units of 16 bytes that a command has.
pub const UNITS: usize = 32;

/// Bytes of the control block, which begins zeroed: it lies in page-locked memory.
pub const CONTROL_BYTES: u64 = RING + SLOTS * (UNITS * UNIT_BYTES) as u64;

/// Where the state is: [`AWAY`], [`STARTING`] or [`RUNNING`].
pub const STATE: u64 = 0;
/// No life takes commands that it has not found yet.
pub const AWAY: u64 = 0;
/// A life was launched.
pub const STARTING: u64 = 1;
/// A life takes commands.
pub const RUNNING: u64 = 2;
/// Where the worker says how many commands have ended.
pub const ENDED: u64 = 128;
/// Where the ring begins.
pub const RING: u64 = 512;

const UNIT_BYTES: usize = 16;
/// Bytes of a unit behind its sequence.
const UNIT_BODY: usize = 14;
const SEQUENCES: u64 = 65535;
const HEAD_BYTES: usize = 16;
const SEGMENTS_MAX: usize = 6;
const POINTERS: usize = 4;
/// Instead of a word's logarithm.
const LEAVE: u8 = 255;

/// What the worker is to do: a launch of [`Family::Transfer`](crate::Family::Transfer), and where its sides and plans
/// are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command([u8; UNITS * UNIT_BODY]);

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

impl Command {
    /// The command that moves what this launch moves; `pointers` are the launch's, a side without a plan has any.
    /// `None`: the launch is of another family, or there is no room for its arguments.
    #[must_use]
    pub fn new(launch: &Launch, pointers: [u64; POINTERS]) -> Option<Command> {
        let Args::Transfer(args) = &launch.args else { return None };
        let at = |side: usize, range: Range<usize>| side + range.start..side + range.end;
        let [from, to] = [offset_of!(TransferArgs, from), offset_of!(TransferArgs, to)];
        let (one, other) = (used(&args.from), used(&args.to));
        let mut segments = Vec::with_capacity(SEGMENTS_MAX);
        segments.push(0..from);
        let parts =
            one.map(|range| at(from, range)).into_iter().chain(other.map(|range| at(to, range)));
        for part in parts {
            match segments.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => segments.push(part),
            }
        }
        let mut bytes = [0u8; UNITS * UNIT_BODY];
        let (head, body) = bytes.split_at_mut(HEAD_BYTES);
        head[0] = u8::try_from(launch.kernel.width.log2()).ok()?;
        head[1] = u8::try_from(segments.len()).ok().filter(|_| segments.len() <= SEGMENTS_MAX)?;
        let all = args.as_bytes();
        let mut filled = size_of_val(&pointers);
        body.get_mut(..filled)?.copy_from_slice(pointers.as_bytes());
        for (segment, said) in segments.into_iter().zip(head[2..].chunks_exact_mut(2)) {
            said[0] = u8::try_from(segment.start / 8).ok()?;
            said[1] = u8::try_from(segment.len() / 8).ok()?;
            let to = filled..filled + segment.len();
            filled = to.end;
            body.get_mut(to)?.copy_from_slice(all.get(segment)?);
        }
        Some(Command(bytes))
    }

    /// The command to leave.
    #[must_use]
    pub fn leave() -> Command {
        let mut bytes = [0; UNITS * UNIT_BODY];
        bytes[0] = LEAVE;
        Command(bytes)
    }

    /// The units of command `number` (from 0): each a low and a high half. Whoever stores them stores the low half
    /// last.
    pub fn units(&self, number: u64) -> impl Iterator<Item = [u64; 2]> {
        let sequence = 1 + number % SEQUENCES;
        self.0.chunks_exact(UNIT_BODY).map(move |body| {
            let half = |bytes: &[u8]| {
                bytes.iter().rev().fold(0u64, |half, byte| half << 8 | u64::from(*byte))
            };
            [half(&body[..6]) << 16 | sequence, half(&body[6..])]
        })
    }
}

/// Where command `number` lies in the control block, in bytes.
#[must_use]
pub fn slot(number: u64) -> u64 {
    RING + number % SLOTS * (UNITS * UNIT_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Grid, GridDim, KernelAddress, Runs, TransferSide, transfer};

    /// What the kernel makes of a command: the logarithm of a word, the pointers, the arguments.
    fn taken_apart(command: &Command, number: u64) -> (u8, Vec<u64>, Vec<u8>) {
        let mut bytes = Vec::new();
        for [low, high] in command.units(number) {
            assert_eq!(low & 0xffff, 1 + number % SEQUENCES);
            bytes.extend(&low.to_le_bytes()[2..]);
            bytes.extend(high.to_le_bytes());
        }
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let pointers = (0..POINTERS).map(|i| word(HEAD_BYTES + 8 * i)).collect();
        let (mut args, mut at) = (vec![0; size_of::<TransferArgs>()], HEAD_BYTES + 8 * POINTERS);
        for segment in bytes[2..HEAD_BYTES].chunks_exact(2).take(bytes[1].into()) {
            let (to, len) = (8 * usize::from(segment[0]), 8 * usize::from(segment[1]));
            args[to..to + len].copy_from_slice(&bytes[at..at + len]);
            at += len;
        }
        (bytes[0], pointers, args)
    }

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
                let Some(command) = Command::new(launch, [1, u64::MAX, 3, 4]) else {
                    assert!(dims(&args.from) + dims(&args.to) > 8, "{from:?} to {to:?}");
                    continue;
                };
                let (log2, pointers, found) = taken_apart(&command, number);
                assert_eq!(u32::from(log2), launch.kernel.width.log2());
                assert_eq!(pointers, [1, u64::MAX, 3, 4]);
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
        assert_eq!(Command::new(&copies[0], [0; 4]), None);
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

    #[test]
    fn both_sides_have_the_same_numbers() {
        let header = include_str!("copy_worker.h");
        let all = [
            ("SLOTS", SLOTS),
            ("UNITS", UNITS as u64),
            ("UNIT_BYTES", UNIT_BYTES as u64),
            ("UNIT_BODY", UNIT_BODY as u64),
            ("SEQUENCES", SEQUENCES),
            ("HEAD_BYTES", HEAD_BYTES as u64),
            ("SEGMENTS_MAX", SEGMENTS_MAX as u64),
            ("POINTERS", POINTERS as u64),
            ("THREADS", u64::from(THREADS)),
            ("STATE", STATE),
            ("AWAY", AWAY),
            ("STARTING", STARTING),
            ("RUNNING", RUNNING),
            ("ENDED", ENDED),
            ("LEAVE", u64::from(LEAVE)),
            ("RING", RING),
        ];
        for (name, number) in all {
            let line = format!("#define COPY_{name} {number}\n");
            assert!(header.contains(&line), "{line}");
        }
    }
}
