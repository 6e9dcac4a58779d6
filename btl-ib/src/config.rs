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
    /// The index of the partition in the port's table, 0 being the first. Both ends need a partition of the same number.
    pub pkey_index: u16,
    /// The traffic class of packets: over RoCE the type of service of IP (eight bits), by which switches know them.
    pub traffic_class: u8,
    /// The service level of packets on InfiniBand, and the priority of RoCE v1: 0 to 15.
    pub service_level: u8,
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
    /// Bytes that may be registered at a time; numbers for atomic operations always may. `u64::MAX`, as by default: a quarter
    /// of what the process may lock in memory (`ulimit -l`, unless it has the capability `CAP_IPC_LOCK`), and of the memory
    /// that there is.
    pub registered_bytes_max: u64,
    /// One-sided operations on local memory that is not registered register it if it is as long as this; shorter ones
    /// are copied.
    pub register_from_bytes: u64,
}

/// Bytes that the process may lock in memory: as many as it is allowed, and as there are.
#[cfg_attr(not(feature = "ib"), allow(dead_code, reason = "nothing is opened without the feature"))]
pub(crate) fn lockable() -> u64 {
    /// The capability to lock any memory, as a bit.
    const IPC_LOCK: u64 = 1 << 14;
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let able = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let able = able.and_then(|word| u64::from_str_radix(word.trim(), 16).ok()).unwrap_or(0);
    let allowed = match able & IPC_LOCK {
        0 => number_of(&read("/proc/self/limits"), "Max locked memory"),
        _ => None,
    };
    let there =
        number_of(&read("/proc/meminfo"), "MemTotal:").and_then(|kib| kib.checked_mul(1024));
    [allowed, there].into_iter().flatten().min().unwrap_or(u64::MAX)
}

/// The number behind a name at the start of a line.
#[cfg_attr(not(feature = "ib"), allow(dead_code, reason = "nothing is opened without the feature"))]
fn number_of(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
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
            pkey_index: 0,
            traffic_class: 0,
            service_level: 0,
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
        if self.service_level > 15 {
            return wrong(format!("service level {}, 0 to 15 expected", self.service_level));
        }
        if self.not_ready_retries > 7 || self.staging_bytes < 16 << 10 {
            let (retries, staging) = (self.not_ready_retries, self.staging_bytes);
            return wrong(format!("{retries} retries (at most 7), {staging} bytes of staging"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_locked_is_read_from_the_system_s_words() {
        let limits = "Limit      Soft Limit   Hard Limit   Units\nMax locked memory         65536                65536                bytes     \n";
        assert_eq!(number_of(limits, "Max locked memory"), Some(65_536));
        let unlimited = "Max locked memory         unlimited            unlimited            bytes";
        assert_eq!(number_of(unlimited, "Max locked memory"), None);
        assert_eq!(
            number_of("MemFree: 3 kB\nMemTotal:       32901504 kB", "MemTotal:"),
            Some(32_901_504)
        );
        assert_eq!(number_of("", "MemTotal:"), None);
    }
}
