//! The suite on the host's engine: it shows that the tests ask nothing impossible.

use crate::bench::Bench;
use crate::memory::Own;
use crate::suite::stamp_every_engines;
use gapless_engine::HostEngine;
use gapless_mem::HostDevice;
use std::sync::Arc;

#[expect(clippy::unnecessary_wraps, reason = "other engines may be missing")]
fn open(_test: &str) -> Option<Bench> {
    Some(Bench::new(Arc::new(HostEngine), Arc::new(Own(Arc::new(HostDevice::new())))))
}

stamp_every_engines!(open);
