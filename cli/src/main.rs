//! The `gapless` command; its verbs are in the library `gapless_cli`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    gapless_cli::main()
}
