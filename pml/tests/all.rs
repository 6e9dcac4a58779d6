//! All tests in one program, which links once: `cargo test -p gapless-pml --test all garbage::` runs those of one file.
//! `allocations.rs` is a program of its own, because it replaces the allocator.

mod asks;
mod cancel;
mod cancel_model;
mod claims;
mod common;
mod comms;
mod death;
mod deferred;
mod device;
mod direct;
mod disorder;
mod early;
mod fast_path;
mod garbage;
mod late_gets;
mod layouts;
mod mapped_put;
mod messages;
mod modes;
mod offers;
mod operations;
mod page_locked;
mod panics;
mod revoke;
mod rings;
mod slabs;
mod slow_engines;
mod staged;
mod staged_failures;
mod statuses;
mod survivors;
mod third_party;
mod unanswered;
mod unmet;
