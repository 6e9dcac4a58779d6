//! The persistent kernel that runs short collectives for its host ([`persistent`](crate::persistent); `cuda/calls.h`):
//! those of `flagged` and `words`. Its window, its peers and its failures are those of a launch, and ranks that launch a
//! call and ranks that have it run here find each other.

use super::{Element, PeersArgs, PeersOperation};
use crate::persistent::Command;
use std::ffi::CStr;
use std::mem::offset_of;
use zerocopy::{Immutable, IntoBytes};

/// One block of [`THREADS`](crate::persistent::THREADS), of [`IMAGE`](super::IMAGE). Parameter: [`CallsStart`].
pub const KERNEL: &CStr = c"peers_calls";

/// The kernel's parameter.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct CallsStart {
    /// Where kernels find the control block; after how many nanoseconds without a command it leaves; after how many in
    /// all.
    pub start: [u64; 3],
    /// What all calls have in common.
    pub args: PeersArgs,
}

/// A short collective that a persistent kernel runs without a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// What `flagged` does.
    Allreduce(PeersOperation, Element),
    /// What `words` does.
    Words,
}

/// The command for a call that a launch with `args` would do. `None`: there is no room for its arguments, which are at
/// most 16 ranks'.
#[must_use]
pub fn command(call: Call, args: &PeersArgs) -> Option<Command> {
    let mut args = *args;
    let ranks = args.ranks as usize;
    let addresses = |at: usize, first: usize, len: usize| at + 8 * first..at + 8 * (first + len);
    let [src, dst] = [offset_of!(PeersArgs, src), offset_of!(PeersArgs, dst)];
    let (what, first, len) = match call {
        Call::Allreduce(op, element) => {
            args.which = op as u32 * 8 + element as u32;
            args.elements *= element.bytes();
            (0, args.rank as usize, 1)
        }
        Call::Words => (1, 0, ranks),
    };
    let elements = offset_of!(PeersArgs, elements);
    let rest = offset_of!(PeersArgs, doing);
    let parts = [
        addresses(src, first, len),
        addresses(dst, first, len),
        elements..elements + 8,
        rest..size_of::<PeersArgs>(),
    ];
    Command::new(what, args.as_bytes(), parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::RANKS_MAX;
    use crate::persistent::taken_apart;

    fn args(ranks: u32, rank: u32) -> PeersArgs {
        let mut args = PeersArgs {
            ranks,
            rank,
            elements: 5,
            width: 4,
            doing: 77,
            which: ranks,
            ..PeersArgs::default()
        };
        for peer in 0..ranks as usize {
            (args.src[peer], args.dst[peer]) = (100 + peer as u64, 200 + peer as u64);
        }
        args
    }

    #[test]
    fn the_kernel_finds_what_differs_between_calls() {
        for ranks in [2, 7, 16] {
            let args = args(ranks, ranks - 1);
            let (what, found) =
                taken_apart(&command(Call::Words, &args).unwrap(), 3, size_of::<PeersArgs>());
            let common = PeersArgs { ranks: 0, rank: 0, ..args };
            assert_eq!((what, found.as_slice()), (1, common.as_bytes()));
        }
        let args = args(3, 1);
        let op = Call::Allreduce(PeersOperation::Max, Element::Bf16);
        let (what, found) = taken_apart(&command(op, &args).unwrap(), 3, size_of::<PeersArgs>());
        let mut wanted = PeersArgs { ranks: 0, rank: 0, elements: 10, which: 2 * 8 + 1, ..args };
        (wanted.src, wanted.dst) = ([0; RANKS_MAX], [0; RANKS_MAX]);
        (wanted.src[1], wanted.dst[1]) = (101, 201);
        assert_eq!((what, found.as_slice()), (0, wanted.as_bytes()));
    }

    #[test]
    fn the_kernel_numbers_calls_operations_and_elements_alike() {
        let header = include_str!("../../cuda/calls.h");
        assert!(header.contains("#define CALL_ALLREDUCE 0u\n#define CALL_WORDS 1u\n"));
        let source = include_str!("../../cuda/elements.h");
        for (number, op) in PeersOperation::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, number);
            assert!(source.contains(&format!("CASE({number}, {op:?}, element")), "{op:?}");
        }
        for (number, element) in Element::ALL.into_iter().enumerate() {
            assert_eq!(element as usize, number);
            let name = match element {
                Element::F16 | Element::Bf16 => {
                    format!("Half<{}>", format!("{element:?}").to_uppercase())
                }
                Element::F32 | Element::F64 => format!("{element:?}"),
                Element::I32 | Element::I64 | Element::U32 | Element::U64 => {
                    format!("Int<{}>", element.name())
                }
            };
            let line =
                source.lines().find(|line| line.contains(&format!("CASES({number}, "))).unwrap();
            assert!(line.ends_with(&format!(" {name})")), "{line}");
        }
    }
}
