//! The worker of XTQ: a kernel that stays on the target's GPU, polls rings of packets and runs what they ask for
//! (`cuda/worker.cu`; `worker.h` says what lies where). Its first block is the command processor, others help it with long
//! tasks (`cuda/crew.h`). It is given the address of its control block, and what that begins with.
//!
//! | kernel | for |
//! |---|---|
//! | [`WORKER`] | the worker |
//! | [`REWRITE`] | packets through the worker's rewrite: by this it is compared with the host's |
//! | [`INITIATE`] | a thread block of another GPU that puts tasks, for measurements |
//! | [`MULTIPLY`] | a matrix product, for measurements beside a worker |
//!
//! [`LINKED_IMAGE`] is the worker again, to be linked with functions of users and with [`call_by_number`] of them.
//! [`LANES`] is linked with kernels of users that put tasks. [`HEADER`] says what both see.

use crate::peers::layouts::Piece;
use std::ffi::CStr;
use std::fmt::Write as _;
use thiserror::Error;
use zerocopy::IntoBytes;

/// These kernels, as a fat binary like [`IMAGE`](crate::IMAGE).
pub const IMAGE: &[u8] = include_bytes!("../images/worker.fatbin");

/// What `ptxas` said of [`IMAGE`]: a heading, then a line a kernel.
pub const REGISTERS: &str = include_str!("../images/ptxas-worker.txt");

/// Up to [`BLOCKS_MAX`] blocks of [`THREADS`]. Parameter: [`PARAMETER_WORDS`] words. The first is the control block's
/// address, the second the life's number: never 0, below 2³², and another one than that of the loaded image's life before.
/// The others are the first words of the control block, and [`SLOT_WORDS`] words of it from [`SLOT_AT`] on.
pub const WORKER: &CStr = c"xtq_worker";

/// Words of the control block that a life is given with its launch, as they are then.
pub const FIRST_WORDS: usize = 128;

/// Where the control block has the packet that goes with a launch, in words, and how long that is.
pub const SLOT_AT: usize = 2816 / 8;
/// As [`SLOT_AT`].
pub const SLOT_WORDS: usize = 32;

/// Words of the worker's parameter.
pub const PARAMETER_WORDS: usize = 2 + FIRST_WORDS + SLOT_WORDS;
// Every driver takes so many bytes of parameters; more would fail when it is launched.
const _: () = assert!(8 * PARAMETER_WORDS <= 4096);

/// Blocks of a worker, at most: they are counted in 16 bits of a word (`cuda/crew.h`).
pub const BLOCKS_MAX: u32 = 1024;

/// Any blocks of at most 256 threads. Parameters, of 8 bytes: addresses of packets (64 bytes each), of their places
/// (arguments, payload), of the three tables (functions, kernels, queues), of what comes out (96 bytes each: the packet,
/// the first two arguments, the queue, a code); how many packets. The code is 255 of a task; else why it is none.
pub const REWRITE: &CStr = c"xtq_rewrite";

/// One block of 32 threads. Parameters, of 8 bytes: addresses of a ring as `worker.h` lists it, and of a packet with its
/// body; the body's bytes; how many puts; how many may be unanswered; nanoseconds that an answer may take; the address of
/// what comes out: what went wrong, tasks that ended, nanoseconds of all, then of each if one is unanswered at a time.
pub const INITIATE: &CStr = c"xtq_initiate";

/// Blocks of 256 threads, one for each square of 64 by 64. Parameters, of 8 bytes: the addresses of two matrices of floats
/// and of their product; the rows and columns of each, a multiple of 64. It is work that a worker is not to slow.
pub const MULTIPLY: &CStr = c"xtq_multiply";

/// The header for device code of users, in CUDA C++.
pub const HEADER: &str = include_str!("gapless_tasks.h");

/// The worker, relocatable: it is linked with functions of users and with [`call_by_number`].
pub const LINKED_IMAGE: &[u8] = include_bytes!("../images/worker_linked.fatbin");

/// What kernels of users that put tasks are linked with.
pub const LANES: &[u8] = include_bytes!("../images/lanes.fatbin");

/// Functions for tests and examples: `example_scale`, `example_count`, `example_wait`, `example_pass`
/// (`cuda/example_tasks.cu`), as PTX.
pub const EXAMPLE_TASKS: &str = include_str!("../images/example_tasks.ptx");

/// A kernel for tests and examples, `example_initiate` (`cuda/example_puts_tasks.cu`), as PTX, to be linked with [`LANES`].
pub const EXAMPLE_PUTS: &str = include_str!("../images/example_puts.ptx");

/// What `ptxas` said of [`LINKED_IMAGE`] and of [`LANES`]. Registers of functions are the linker's affair.
pub const LINKED_REGISTERS: [&str; 2] =
    [include_str!("../images/ptxas-linked.txt"), include_str!("../images/ptxas-lanes.txt")];

/// Registers of a thread of the worker, at most: its block has all of a multiprocessor's.
pub const REGISTERS_MAX: u32 = 128;

/// A name that no function of a user's has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name:?} is no name of a function that is `extern \"C\"`")]
pub struct NoName {
    /// The name.
    pub name: String,
}

/// PTX of the function by which the worker calls those of users: each by its number.
///
/// # Errors
/// A name that is none.
pub fn call_by_number<'f>(
    functions: impl IntoIterator<Item = (u64, &'f str)> + Clone,
) -> Result<String, NoName> {
    let mut text = String::from(".version 7.0\n.target sm_80\n.address_size 64\n");
    let mut names: Vec<&str> = functions.clone().into_iter().map(|(_, name)| name).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
        let mut bytes = name.bytes();
        let named = bytes.next().is_some_and(letter)
            && bytes.all(|byte| letter(byte) || byte.is_ascii_digit());
        if !named {
            return Err(NoName { name: name.to_owned() });
        }
        let _ = writeln!(
            text,
            ".extern .func (.param .b32 $said) {name} (.param .b64 $task, .param .b64 $item);"
        );
    }
    // Names with a dollar: no function of a user's has one.
    text.push_str(
        ".visible .func (.param .b32 $said) gapless_call (.param .b64 $number, .param .b64 $task, .param .b64 $item)\n\
         {\n.reg .pred %p;\n.reg .b32 %r;\n.reg .b64 %n, %t, %i;\nld.param.u64 %n, [$number];\n\
         ld.param.u64 %t, [$task];\nld.param.u64 %i, [$item];\nmov.u32 %r, 0x7fffffff;\n",
    );
    for (number, _) in functions.clone() {
        let _ = writeln!(text, "setp.eq.u64 %p, %n, {number};\n@%p bra $CALL_{number};");
    }
    text.push_str("bra $END;\n");
    for (number, name) in functions {
        let _ = writeln!(
            text,
            "$CALL_{number}:\n{{\n.param .b64 $a;\n.param .b64 $b;\n.param .b32 $c;\nst.param.b64 [$a], %t;\n\
             st.param.b64 [$b], %i;\ncall.uni ($c), {name}, ($a, $b);\nld.param.b32 %r, [$c];\n}}\nbra $END;"
        );
    }
    text.push_str("$END:\nst.param.b32 [$said], %r;\nret;\n}\n");
    Ok(text)
}

/// Bytes of the head of a layout's form (`cuda/layout_tasks.h`).
const FORM_BYTES: usize = 64;

/// Where a stream is said to begin when its pieces are made: words are of 8 bytes at most then, as payloads are aligned.
pub const STREAM_BEGINS: u64 = 8;

/// Bytes of a layout's form that has so many pieces.
#[must_use]
pub fn form_bytes(pieces: usize) -> usize {
    FORM_BYTES + pieces * size_of::<Piece>()
}

/// The form of a layout: head and pieces. `touched` are the first byte that it touches, and that behind the last, counted
/// from displacement 0; a piece goes from the layout to the packed stream, which begins at [`STREAM_BEGINS`].
#[must_use]
pub fn form(pieces: &[Piece], bytes: u64, touched: [i64; 2]) -> Vec<u8> {
    let [low, high] = touched.map(i64::cast_unsigned);
    let head = [pieces.len() as u64, bytes, low, high, 0, 0, 0, 0];
    [head.as_bytes(), pieces.as_bytes()].concat()
}

/// Threads of each of the worker's blocks.
pub const THREADS: u32 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_were_compiled_for_every_architecture_without_spilling() {
        let names = [WORKER, REWRITE, INITIATE, MULTIPLY].map(|name| name.to_str().unwrap());
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
        // Of relocatable code, the worker's own part.
        for line in LINKED_REGISTERS.iter().flat_map(|text| text.lines().skip(1)) {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, name, registers, spilled, stack, ..] = words[..] else { panic!("{line}") };
            if name == WORKER.to_str().unwrap() {
                assert!(registers.parse::<u32>().unwrap() <= REGISTERS_MAX, "{line}");
                assert_eq!((spilled, stack), ("0", "0"), "{line}");
                seen += 1;
            }
        }
        assert_eq!(seen, 3 * names.len() + 3);
        let header = include_str!("worker.h");
        assert!(header.contains(&format!("#define WORKER_THREADS {THREADS}\n")));
        assert!(header.contains(&format!("#define FIRST_WORDS {FIRST_WORDS}\n")));
        assert!(header.contains(&format!("#define CONTROL_FIRST_SLOT {}\n", 8 * SLOT_AT)));
        assert!(header.contains(&format!("#define SLOT_BYTES {}\n", 8 * SLOT_WORDS)));
        assert!(HEADER.contains("#define GAPLESS_BODY_BYTES 168\n"));
        assert!(header.contains("#define INLINE_BYTES 168\n"));
        let layouts = include_str!("../cuda/layout_tasks.h");
        assert!(layouts.contains(&format!("#define STREAM_BEFORE {STREAM_BEGINS}\n")));
    }

    #[test]
    fn functions_are_called_by_number_and_declared_once() {
        let text = call_by_number([(256, "scale"), (300, "_count2"), (301, "scale")]).unwrap();
        assert_eq!(text.matches(".extern .func (.param .b32 $said) scale ").count(), 1);
        assert_eq!(text.matches("call.uni ($c), scale, ($a, $b);").count(), 2);
        for number in [256, 300, 301] {
            assert_eq!(text.matches(&format!("$CALL_{number}:\n")).count(), 1);
            assert!(text.contains(&format!("setp.eq.u64 %p, %n, {number};\n")));
        }
        // Names that generated ones would hide.
        let text = call_by_number([(256, "c"), (257, "END"), (258, "task")]).unwrap();
        assert!(text.contains("call.uni ($c), c, ($a, $b);") && text.contains(") END ("));
        assert!(!text.contains(" said") && !text.contains("\nEND:"));
        for name in ["", "$c", "2scale", "a b", "scale;", "ä", "x\ny"] {
            assert_eq!(
                call_by_number([(256, name)]),
                Err(NoName { name: name.to_owned() }),
                "{name:?}"
            );
        }
    }

    #[test]
    fn a_form_is_its_head_and_its_pieces() {
        let pieces = [Piece::default(), Piece::default()];
        let form = form(&pieces, 24, [-8, 40]);
        assert_eq!(form.len(), form_bytes(2));
        let word = |at: usize| u64::from_le_bytes(form[8 * at..][..8].try_into().unwrap());
        assert_eq!([word(0), word(1), word(2), word(3)], [2, 24, (-8i64).cast_unsigned(), 40]);
    }
}
