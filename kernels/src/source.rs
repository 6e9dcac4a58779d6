//! The sources as an OpenCL compiler wants them, and the image for CUDA.

use crate::reduce::ReduceKernel;
use crate::{Direction, Kernel};

const PRELUDE: &str = include_str!("prelude_opencl.h");
const ARGS: &str = include_str!("args.h");
const LOOKUP: &str = include_str!("lookup.h");
const STRIPS: &str = include_str!("strips.cl-cu");
const PACK: &str = include_str!("pack.cl-cu");
const NUMBERS: &str = include_str!("numbers.h");
const COMBINE: &str = include_str!("combine.h");
const REDUCE: &str = include_str!("reduce.cl-cu");
const PEERS: &str = include_str!("peers.h");

/// Every kernel for CUDA, as a fat binary: machine code for compute capabilities 8.0, 9.0 and 10.0, and
/// PTX for what comes later. The driver's module loading takes it as it is. Made by `cargo xtask kernels`.
pub const IMAGE: &[u8] = include_bytes!("../images/pack.fatbin");

/// What `ptxas` said of [`IMAGE`]: a heading, then a line a kernel.
pub const REGISTERS: &str = include_str!("../images/ptxas.txt");

/// Every kernel of reductions for CUDA, as [`IMAGE`] has the others.
pub const REDUCE_IMAGE: &[u8] = include_bytes!("../images/reduce.fatbin");

/// What `ptxas` said of [`REDUCE_IMAGE`], as [`REGISTERS`].
pub const REDUCE_REGISTERS: &str = include_str!("../images/reduce.txt");

/// OpenCL C source of one kernel of reductions.
#[must_use]
pub fn opencl_reduce_source(kernel: ReduceKernel) -> String {
    let ReduceKernel { combine, form } = kernel;
    let form = form as u32;
    let doubles = match combine.needs_doubles() {
        true => "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\ntypedef double f64;\n",
        false => "",
    };
    let defines = combine.defines();
    format!(
        "{PRELUDE}\n{doubles}{ARGS}\n{LOOKUP}\n{NUMBERS}\n#define FORM {form}\n{defines}{COMBINE}\n{REDUCE}"
    )
}

/// OpenCL C source of the [program](Kernel::program) that a kernel is part of.
#[must_use]
pub fn opencl_source(kernel: Kernel) -> String {
    let same = u32::from(kernel.family.is_same());
    let unpack = same | u32::from(kernel.direction == Direction::Unpack);
    let bytes = kernel.width.bytes();
    format!(
        "{PRELUDE}\n{ARGS}\n{LOOKUP}\n#define SAME {same}\n#define UNPACK {unpack}\n\
         #define W {bytes}\n#define FEW 0\n{STRIPS}\n{PACK}\n#undef FEW\n\
         #define FEW 1\n{STRIPS}\n{PACK}"
    )
}

/// OpenCL C source of a kernel `layout(__global ulong *out)` that writes the size of every argument
/// structure and the offset of every field, in the order of [`args::LAYOUT`](crate::args::LAYOUT) and
/// [`peers::layout`](crate::peers::layout).
#[must_use]
pub fn opencl_layout_source() -> String {
    let mut source = format!(
        "{PRELUDE}\n{ARGS}\n{PEERS}\n#define OFFSET(type, field) \
         ((ulong)(((__private const char *)&((__private const type *)0)->field) - (__private const char *)0))\n\
         __kernel void layout(__global ulong *out) {{\n"
    );
    let entries = crate::args::LAYOUT.iter().copied().chain(crate::peers::layout());
    for (index, entry) in entries.enumerate() {
        let value = match entry.field {
            "" => format!("sizeof({})", entry.structure),
            field => format!("OFFSET({}, {field})", entry.structure),
        };
        source.push_str(&format!("    out[{index}] = {value};\n"));
    }
    source.push_str("}\n");
    source
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Each image, what was said of it, and its kernels.
    fn images() -> [(&'static [u8], &'static str, Vec<String>); 2] {
        let names = Kernel::all().map(|kernel| kernel.to_string()).collect();
        let reduce = ReduceKernel::all().map(|kernel| kernel.to_string()).collect();
        [(IMAGE, REGISTERS, names), (REDUCE_IMAGE, REDUCE_REGISTERS, reduce)]
    }

    #[test]
    fn every_kernel_was_compiled_for_every_architecture_without_spilling() {
        for (_, said, names) in images() {
            let mut seen = BTreeSet::new();
            for line in said.lines().skip(1) {
                let words: Vec<&str> = line.split(' ').collect();
                let [sm, name, registers, spilled, stack, ..] = words[..] else { panic!("{line}") };
                assert!(registers.parse::<u32>().unwrap() <= 128, "{line}");
                assert_eq!((spilled, stack), ("0", "0"), "{line}");
                seen.insert((sm, name.to_owned()));
            }
            for sm in ["80", "90", "100"] {
                for name in &names {
                    assert!(seen.contains(&(sm, name.clone())), "{name} for sm_{sm}");
                }
            }
            assert_eq!(seen.len(), 3 * names.len());
        }
    }

    #[test]
    fn the_images_are_fat_binaries() {
        for (image, _, _) in images() {
            assert_eq!(image.get(..4), Some(&[0x50, 0xed, 0x55, 0xba][..]));
        }
    }
}
