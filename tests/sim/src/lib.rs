//! The simulator: hundreds of ranks in one thread, on a virtual clock. Each rank is the real `pml` over the real
//! `bml`; the rails below delay, reorder, fill up and die. Everything follows from one 64-bit seed: no real clock, no
//! threads, no order of a hash table.
//!
//! - `plan.rs` draws a world from a seed: ranks, rails, what every rank does, what goes wrong.
//! - `world.rs` gives ranks their turns; `rank.rs` follows a script; `wire.rs` is everything between the ranks,
//!   `rail.rs` and `onesided.rs` one end of it, as a transport.
//! - `oracle.rs` knows only MPI's rules of matching (MPI 4.1 §3.5), and checks `journal.rs` by them: what every rank
//!   asked for and was told.
//! - `tap.rs` sees every message and every completion and makes a digest of them. `digests.rs` prints the digests of
//!   many seeds and compares them with a file: a refactoring must not change them.
//! - `coll.rs` plays programs of collectives in the place of scripts.
//! - `hunt.rs` plays many seeds, shrinks a failing world and tells its story; `coverage.rs` counts what they have
//!   seen, so that a degenerate generator is found out.
//!
//! # What is held to be true
//!
//! Every message is received once, by the receive that MPI says, with its bytes and status right and the gaps of the
//! buffer untouched, also later. Sends end, synchronous ones not before they are matched. Buffers are released when
//! requests end. Probes see what a receive would take. In the end, no receive waits beside a message it matches, no
//! rank is busy, no communicator is being made. A death is known, and everything that needed the dead has ended,
//! within a bound of virtual time. If one of two ranks has lost the other, so has the other. Nothing fails that a
//! death does not explain.
//!
//! # What it has been shown to find
//!
//! Changes that were made on purpose, each with the first seed that failed. With the worlds as they are: an
//! cancelled message "taken back" whatever was found (22); all messages of its sender dropped with it (17); an
//! active persistent request started again (0). With worlds drawn a little differently: the youngest receive or message first (1); receives of any message from anybody skipped (4); every
//! eighth early message lost (3); fragments never given back (4); a named receive that outlives its
//! peer (2); waiting for room to read without saying so (2425); a peer not told that it was given up (405);
//! the youngest kind of wildcard first (0); an early message taken for the next one (0); parked messages
//! not copied out (30); a receive from anybody that outlives all (195); a rail that was in use replaced
//! silently (37); a synchronous send that ends when it
//! has left (0); messages in the wrong order for wildcards (3); memory taken back before it is read
//! (7), a read that ends 64 bytes early (13); messages of the dead forgotten (2).
//!
//! # What is not here
//!
//! Calls that wait (`wait`, `sendrecv`, …) do not return to the simulator, so ranks use the calls that do not wait;
//! both use the same core. Real transports are tested in their crates.
//!
//! One seed: `GAPLESS_SEED=7 cargo test -p gapless-sim --test all seeds:: -- --nocapture`, or
//! `cargo run -p gapless-sim -- 7`; a range: `GAPLESS_SIM_SEEDS=0..10000`, or `-- 0..10000`. Collectives:
//! `cargo run -p gapless-sim --release -- --collectives 0..10000`.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "starts collectives with buffers that outlive the endpoint")]
mod coll;
mod comms;
mod coverage;
mod digests;
mod hunt;
mod journal;
#[allow(unsafe_code, reason = "vouches for mappings of memory that stays to the end")]
mod mapped;
#[allow(unsafe_code, reason = "implements one-sided operations, as copies")]
mod onesided;
mod oracle;
mod plan;
mod rail;
#[allow(unsafe_code, reason = "starts messages with buffers that outlive the endpoint")]
mod rank;
mod shapes;
#[allow(unsafe_code, reason = "makes slots and fragments of memory that stays to the end")]
mod store;
#[allow(unsafe_code, reason = "reads the first byte of a message for the story")]
mod story;
#[allow(unsafe_code, reason = "reads the bytes of a message that leaves")]
mod tap;
mod wire;
mod world;

pub use coll::{
    CollCoverage, hunt_collectives, play_collectives, play_survivors, tell_collectives,
};
pub use coverage::Coverage;
pub use digests::Digests;
pub use hunt::{Report, hunt, listen, play, report, tell};
pub use journal::Failure;
pub use plan::Keep;
pub use story::Story;
pub use tap::Tap;
