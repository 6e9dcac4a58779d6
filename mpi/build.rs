//! Makes the exported functions and the constants from the table.

use gapless_mpi_table::{Face, c, constants, exports, missing};
use std::path::PathBuf;
use std::{env, fs};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let face = match env::var_os("CARGO_FEATURE_MPICH") {
        Some(_) => Face::Mpich,
        None => Face::Abi,
    };
    let write = |name: &str, text: String| {
        fs::write(out.join(name), text).expect("cargo's folder can be written");
    };
    write("exports.rs", exports::exports());
    write("constants.rs", constants::constants(face));
    // What the library is linked with, and what its users get.
    write("mpi.h", c::header());
    write("aliases.s", c::aliases(face));
    write("exports.map", c::version_script());
    write("missing.md", missing::missing());
    // `cc @link.args -o LIBRARY ARCHIVE …`
    write("link.args", c::link_arguments(&out, face));
    println!("cargo::rerun-if-changed=build.rs");
}
