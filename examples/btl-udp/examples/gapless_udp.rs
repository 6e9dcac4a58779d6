//! The `gapless` command over this transport alone, also in the processes that it starts:
//!
//! ```text
//! cargo run --example gapless_udp -- bench latency -m 1:64K
//! cargo run --example gapless_udp -- pingpong --layout v,t --n 256
//! cargo run --example gapless_udp -- info
//! ```

use btl_udp::Udp;
use gapless::World;

fn main() -> std::process::ExitCode {
    gapless_cli::main_with(|| Ok(World::builder().transport(Box::new(Udp::new()?)).only(["udp"])))
}
