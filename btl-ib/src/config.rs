//! What a user of the transport may choose.

use gapless_btl::{LinkError, Secret};
use std::time::Duration;

/// How an [`Ib`](crate::Ib) is to be.
#[derive(Clone, Debug)]
pub struct IbConfig {
    /// What this transport is called ([`Limits::name`](gapless_btl::Limits::name)); it tells those on several ports apart.
    pub name: &'static str,
    /// The name of the job: addresses of other jobs are refused.
    pub job: String,
    /// This process's number in the job, for messages to people.
    pub rank: u32,
    /// What proves that a caller is of the job.
    pub secret: Secret,
    /// The device by name, as `ibv_devices` shows it. By default the first with a port that is active.
    pub device: Option<String>,
    /// The port of the device, from 1. By default the first that is active.
    pub port: Option<u8>,
    /// The index of the port's GID. By default that of RoCE v2 over IPv4, then IPv6; on InfiniBand 0.
    pub gid_index: Option<u8>,
    /// The longest message in bytes: 256 to 1 MiB.
    pub fragment_bytes: usize,
    /// The longest message worth sending eagerly, in bytes.
    pub eager_bytes: usize,
    /// Messages that may be under way to a peer, or be held by it: 4 to 1,024. Each costs a fragment at either end.
    pub buffers: u32,
    /// A peer's death is noticed within this time: 500 ms or more.
    pub notice: Duration,
    /// How often the adapter sends a message again for which the peer has no buffer; 7 means for ever. Credits see to
    /// it that there is one, so this only bounds the harm of a peer that breaks the rules.
    pub not_ready_retries: u8,
    /// Bytes for one-sided operations on memory that is not registered: at least 16 KiB.
    pub staging_bytes: usize,
    /// Regions that may be registered at a time.
    pub registrations_max: usize,
    /// Bytes that may be registered at a time.
    pub registered_bytes_max: u64,
    /// One-sided operations on local memory that is not registered register it if it is as long as this; shorter ones
    /// are copied.
    pub register_from_bytes: u64,
}

impl IbConfig {
    /// With usual values.
    pub fn new(job: impl Into<String>, rank: u32, secret: Secret) -> IbConfig {
        IbConfig {
            name: "ib",
            job: job.into(),
            rank,
            secret,
            device: None,
            port: None,
            gid_index: None,
            fragment_bytes: 16 << 10,
            eager_bytes: 8 << 10,
            buffers: 32,
            notice: Duration::from_secs(10),
            not_ready_retries: 6,
            staging_bytes: 1 << 20,
            registrations_max: 4096,
            registered_bytes_max: u64::MAX,
            register_from_bytes: 256 << 10,
        }
    }

    /// # Errors
    /// A number out of its bounds.
    #[cfg_attr(
        not(feature = "ib"),
        expect(dead_code, reason = "nothing is opened without the feature")
    )]
    pub(crate) fn check(&self) -> Result<(), LinkError> {
        let wrong = |what: String| Err(LinkError::Incompatible { what });
        if !(256..=1 << 20).contains(&self.fragment_bytes) || self.eager_bytes > self.fragment_bytes
        {
            let (fragment, eager) = (self.fragment_bytes, self.eager_bytes);
            return wrong(format!("fragments of {fragment} bytes, eager messages of {eager}"));
        }
        if !(4..=1024).contains(&self.buffers) {
            return wrong(format!("{} buffers a peer, 4 to 1024 expected", self.buffers));
        }
        if self.notice < Duration::from_millis(500) || self.notice > Duration::from_secs(3600) {
            return wrong(format!("a notice of {:?}, 500 ms to an hour expected", self.notice));
        }
        if self.not_ready_retries > 7 || self.staging_bytes < 16 << 10 {
            let (retries, staging) = (self.not_ready_retries, self.staging_bytes);
            return wrong(format!("{retries} retries (at most 7), {staging} bytes of staging"));
        }
        Ok(())
    }
}
