//! The suite that every transport passes, as tests of its own crate.
//!
//! A transport's tests say how to make a connected pair ([`Fixture`]) and write one line:
//!
//! ```
//! use gapless_btl::loopback::{Hub, Loopback};
//! use gapless_btl_testkit::conformance::Fixture;
//!
//! struct Plain;
//! impl Fixture for Plain {
//!     type Btl = Loopback;
//!     fn pair(&mut self) -> (Loopback, Loopback) {
//!         let hub = Hub::new();
//!         (Loopback::new(&hub), Loopback::new(&hub))
//!     }
//! }
//! gapless_btl_testkit::conformance!(plain, Plain);
//! ```
//!
//! which makes a module `plain` with a test for each function of this module. They cover messages
//! (order, exactly once, every size, back-pressure, truncation, tokens, short cuts, sends without a copy), meeting
//! (early arrivals, connecting twice, oneself, waking up), memory (one-sided operations, atomic ones among them, and
//! mappings, if the transport has them), retention (if it has that), devices (which copy into slots and out of
//! arrivals, and whose memory is mapped) and death (of a peer in this process, and of other processes that are killed,
//! if the fixture can make an end that they reach; garbage).
//!
//! What cannot run says so: a line `SKIPPED: <what>: <why>` goes to the
//! file that the environment variable `GAPLESS_SKIP_LOG` names, and at the end of the test program one line a
//! fixture lists all that did not run. Random choices come from
//! `GAPLESS_SEED`, if set, and a failure prints the seed. No wait is endless: what has no promised
//! bound is given a minute, what has one ten times its length.

#[allow(unsafe_code, reason = "calls Rdma, on memory that is never freed")]
mod atomics;
mod bench;
mod child;
mod death;
#[allow(unsafe_code, reason = "has devices copy memory that the tests hold until it has been done")]
mod devices;
mod duo;
mod leaving;
mod meeting;
#[allow(unsafe_code, reason = "calls Rdma, on memory that is never freed")]
mod memory;
mod messages;
mod retention;
mod room;
mod seed;
mod shorts;
#[allow(unsafe_code, reason = "asks to be called when the process ends")]
mod skipped;
mod wake;
#[allow(unsafe_code, reason = "lends memory of the test's own")]
mod zero_copy;

pub use atomics::{atomics_refuse_what_is_wrong, numbers_change, numbers_change_from_both_ends};
pub use bench::Suite;
#[doc(hidden)]
pub use bench::{looking_at_most, test_name};
pub use death::{
    garbage_is_survived, peer_killed_before_meeting, peer_killed_while_sending,
    peer_killed_with_operations_pending,
};
pub use devices::{
    attaching_a_device, device_buffers_beyond_the_cache, device_keys_are_checked,
    device_memory_freed_and_reused, devices_reach_slots, mapped_device_memory,
    peer_killed_while_mapped,
};
pub use gapless_testkit::skip;
pub use leaving::{death_in_a_crowd, death_wakes, last_words, parked_across_a_death, peer_dropped};
pub use meeting::{
    arming_wakes, bad_addresses, connecting_twice, early_arrivals, introductions,
    limits_make_sense, oneself, poll_never_blocks, two_threads,
};
pub use memory::{
    mapped_keys_are_checked, mapped_memory, memory_made_private, rdma_at_every_alignment,
    rdma_in_many_pieces, rdma_refuses_what_is_wrong, revoked_memory,
};
pub use messages::{
    back_pressure, every_size, order_and_exactly_once, parked_fragments, send_fixes_the_order,
    sender_that_never_polls, tokens_once, truncation, unsent_slots,
};
pub use retention::{receipt_lags_little, retained_across_a_cut, retained_until_received};
pub use room::no_more_than_there_is_room_for;
pub use shorts::{one_peer_alone, quiet_until_something_comes, short_messages};
pub use zero_copy::zero_copy_messages;

use gapless_btl::{Btl, PeerId};

/// How the suite gets at a transport. A new fixture is made for every test, and for the same test
/// in a child process.
pub trait Fixture {
    /// The transport.
    type Btl: Btl + 'static;

    /// Two fresh ends in this process that can reach each other, not connected.
    fn pair(&mut self) -> (Self::Btl, Self::Btl);

    /// A fresh end that other processes can reach, by [`Btl::address`] alone; `None` (the default)
    /// for transports within one process, whose tests of killed processes are skipped.
    fn process_end(&mut self) -> Option<Self::Btl> {
        None
    }

    /// Whether nothing tells the death of a process from that of its host or of the way there, so that all are
    /// [`LinkError::Unreachable`](gapless_btl::LinkError::Unreachable): adapters do not say.
    fn deaths_are_silent(&self) -> bool {
        false
    }

    /// Makes `from` put malformed bytes where `to` will read them as if they came over the wire:
    /// wrong lengths, wrong offsets, nonsense; another sort for each of `variant`, from 0 up. False
    /// (the default for 0) when there are no more. `to` is `from`'s name for the victim.
    ///
    /// Afterwards the victim may ignore them or report the link as corrupt; it must not panic, hang
    /// or deliver what was never sent. `from` is dropped right after.
    fn garbage(&mut self, from: &mut Self::Btl, to: PeerId, variant: u32) -> bool {
        let _ = (from, to, variant);
        false
    }

    /// Breaks the link of `end` to `to`, as somebody in between may; both processes live on. Another way for each of
    /// `variant`, from 0 up. False (the default for 0) when there are no more.
    fn cut(&mut self, end: &mut Self::Btl, to: PeerId, variant: u32) -> bool {
        let _ = (end, to, variant);
        false
    }
}

/// Runs the conformance suite on a transport: `conformance!(module, fixture)` makes a module of
/// that name with the tests. `fixture` is an expression that makes a
/// [`Fixture`](crate::conformance::Fixture); it is evaluated once a test.
#[macro_export]
macro_rules! conformance {
    ($module:ident, $fixture:expr) => {
        $crate::conformance!(@all @tests $module, $fixture,);
    };
    (@all $($head:tt)*) => {
        $crate::conformance! { $($head)*
            limits_make_sense, connecting_twice, bad_addresses, early_arrivals, introductions, oneself,
            arming_wakes, poll_never_blocks, two_threads,
            order_and_exactly_once, send_fixes_the_order, every_size, truncation, back_pressure,
            sender_that_never_polls, no_more_than_there_is_room_for, parked_fragments, unsent_slots, tokens_once,
            short_messages, zero_copy_messages, one_peer_alone, quiet_until_something_comes,
            retained_until_received, receipt_lags_little, retained_across_a_cut,
            rdma_at_every_alignment, rdma_in_many_pieces, rdma_refuses_what_is_wrong,
            numbers_change, numbers_change_from_both_ends, atomics_refuse_what_is_wrong,
            mapped_memory, mapped_keys_are_checked, revoked_memory, memory_made_private,
            attaching_a_device, devices_reach_slots, mapped_device_memory, device_keys_are_checked,
            device_memory_freed_and_reused, device_buffers_beyond_the_cache,
            peer_dropped, last_words, death_in_a_crowd, parked_across_a_death, death_wakes,
            peer_killed_before_meeting, peer_killed_while_sending,
            peer_killed_with_operations_pending, peer_killed_while_mapped, garbage_is_survived,
        }
    };
    (@table $fixture:ty, $($test:ident,)*) => {
        [$((stringify!($test), $test as fn(&Suite, $fixture)),)*]
    };
    (@tests $module:ident, $fixture:expr, $($test:ident,)*) => {
        mod $module {
            #[allow(unused_imports, reason = "the fixture may be anything that is in scope")]
            use super::*;
            $(
                #[test]
                fn $test() {
                    let name = $crate::conformance::test_name(module_path!(), stringify!($test));
                    let suite = $crate::conformance::Suite::new(env!("CARGO_PKG_NAME"), name);
                    $crate::conformance::$test(&suite, $fixture);
                }
            )*
        }
    };
}

/// A test of the suite, for a fixture.
#[doc(hidden)]
pub type Test<F> = fn(&Suite, F);

/// All tests by name, for tests of the suite itself.
#[doc(hidden)]
#[must_use]
pub fn tests<F: Fixture>() -> Vec<(&'static str, Test<F>)> {
    Vec::from(crate::conformance!(@all @table F,))
}
