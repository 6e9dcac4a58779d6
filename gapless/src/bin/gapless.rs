//! The `gapless` command; its verbs are in the library's `cli` module.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    gapless::cli::main()
}
