//! The `figures` command; what it does is in the library.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    gapless_bench::figures::main()
}
