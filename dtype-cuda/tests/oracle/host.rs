//! The suite on the host's engine: it shows that the tests ask nothing impossible.

use crate::bench::Bench;
use crate::memory::Own;
use crate::suite::stamp;
use gapless_engine::HostEngine;
use gapless_mem::HostDevice;
use std::sync::Arc;

#[expect(clippy::unnecessary_wraps, reason = "other engines may be missing")]
fn open(_test: &str) -> Option<Bench> {
    Some(Bench::new(Arc::new(HostEngine), Arc::new(Own(Arc::new(HostDevice::new())))))
}

stamp!(open:
    suite::random_types_pack_and_unpack,
    suite::random_pairs_transfer,
    suite::every_alignment,
    suite::ranges_inside_elements,
    suite::nothing_at_all,
    suite::fragments_in_any_order,
    suite::layouts_of_applications,
    suite::neighbours_do_not_disturb_each_other,
    suite::completions_chain,
    suite::threads_share_an_engine,
    refusals::misfits_are_refused,
    refusals::foreign_memory_is_refused,
    refusals::failures_are_passed_on,
    refusals::layouts_stay_in_their_memory,
);
