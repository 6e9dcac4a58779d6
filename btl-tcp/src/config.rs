//! What a user of the transport may choose.

use gapless_btl::{LinkError, Secret};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

/// A fresh secret, from the system's randomness.
///
/// # Errors
/// The system has none.
pub fn random_secret() -> Result<Secret, LinkError> {
    crate::proof::random().map(Secret::new)
}

/// An address of this host at which peers may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// The address: of this host, and neither "any" nor link-local.
    pub address: IpAddr,
    /// How many bits of it name its network: a peer's address in the same network is called first.
    pub prefix_bits: u8,
}

impl ListenAddress {
    /// An address that is a network of its own.
    #[must_use]
    pub const fn alone(address: IpAddr) -> ListenAddress {
        let prefix_bits = if address.is_ipv4() { 32 } else { 128 };
        ListenAddress { address, prefix_bits }
    }

    /// Whether `other` is in the same network.
    #[must_use]
    pub fn is_near(&self, other: IpAddr) -> bool {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
            IpAddr::V6(v6) => v6.to_bits(),
        };
        let behind = 128 - u32::from(self.prefix_bits).min(128);
        let differ = bits(self.address) ^ bits(other);
        self.address.is_ipv4() == other.is_ipv4() && differ.checked_shr(behind).unwrap_or(0) == 0
    }
}

/// How a [`Tcp`](crate::Tcp) is set up. [`TcpConfig::new`] gives defaults. All processes of a job have the same `job`,
/// `secret`, `encrypt` and `fragment_bytes`; they may differ in the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// [`Limits::name`](gapless_btl::Limits::name): a process may have several of these transports, each with a name of
    /// its own.
    pub name: &'static str,
    /// Which job this process belongs to: processes of different jobs refuse each other.
    pub job: String,
    /// The number of this process in the job.
    pub rank: u32,
    /// What proves that a caller belongs to the job.
    pub secret: Secret,
    /// Whether everything after the proofs is encrypted: TLS 1.3, with a key for each process that is derived from the
    /// secret. Processes that do not agree on it refuse each other. Needs the feature `encryption`.
    pub encrypt: bool,
    /// Where to listen: one to [`Tcp::PLACES_MAX`](crate::Tcp::PLACES_MAX) addresses. Peers try them in this order,
    /// those in a network of theirs first.
    pub places: Vec<ListenAddress>,
    /// The ports to listen at, one for each place; `0..=0` lets the system choose. The ports that calls come *from* are
    /// always the system's choice.
    pub ports: RangeInclusive<u16>,
    /// The longest message in bytes worth sending without asking; at most `fragment_bytes`.
    pub eager_bytes: usize,
    /// The longest message, in bytes: 256 to 16 MiB. A peer that sends a longer one is lost as corrupt.
    pub fragment_bytes: usize,
    /// How many messages of more than 2 KiB of one peer are held at a time, in each direction: 2 to 4096. There is room
    /// for eight times as many shorter ones.
    pub buffers: usize,
    /// A host that does not answer for this long is given up: 5 s to an hour. It says nothing about processes that are
    /// busy: their hosts answer.
    pub notice: Duration,
    /// Whether long messages that lie in buffers of the transport may leave without a copy (`MSG_ZEROCOPY`). A link stops
    /// doing so when the system says that it has copied after all, as it does between processes of one machine.
    /// Encrypted links never do.
    pub msg_zerocopy: bool,
}

impl TcpConfig {
    /// The defaults for process `rank` of `job`, at these addresses.
    #[must_use]
    pub fn new(
        job: impl Into<String>,
        rank: u32,
        secret: Secret,
        places: impl IntoIterator<Item = ListenAddress>,
    ) -> TcpConfig {
        TcpConfig {
            name: "tcp",
            job: job.into(),
            rank,
            secret,
            encrypt: false,
            places: places.into_iter().collect(),
            ports: 0..=0,
            // A little over 64 and 128 KiB: a header fits beside a round payload.
            eager_bytes: 65_792,
            fragment_bytes: 131_328,
            buffers: 16,
            notice: Duration::from_secs(12),
            msg_zerocopy: true,
        }
    }

    /// # Errors
    /// Which number is out of its bounds.
    pub(crate) fn check(&self) -> Result<(), LinkError> {
        let refused = |what: String| Err(LinkError::Incompatible { what });
        if self.encrypt && !crate::tls::IS_BUILT {
            let what = "without the feature `encryption`, in which this program was built, \
                        nothing can be encrypted";
            return refused(what.to_owned());
        }
        if !(256..=16 << 20).contains(&self.fragment_bytes) {
            return refused(format!("fragments of {} bytes: not 256 to 2²⁴", self.fragment_bytes));
        }
        if self.eager_bytes > self.fragment_bytes {
            let TcpConfig { eager_bytes, fragment_bytes, .. } = self;
            return refused(format!(
                "{eager_bytes} eager bytes, and fragments of {fragment_bytes}"
            ));
        }
        if !(2..=4096).contains(&self.buffers) {
            return refused(format!("{} buffers: not 2 to 4096", self.buffers));
        }
        if !(Duration::from_secs(5)..=Duration::from_secs(3600)).contains(&self.notice) {
            return refused(format!("a notice of {:?}: not 5 s to an hour", self.notice));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_told_apart() {
        let place = |address: &str, prefix_bits| ListenAddress {
            address: address.parse().unwrap(),
            prefix_bits,
        };
        let near = |place: ListenAddress, other: &str| place.is_near(other.parse().unwrap());
        assert!(
            near(place("10.1.2.3", 24), "10.1.2.77") && !near(place("10.1.2.3", 24), "10.1.3.3")
        );
        assert!(near(place("10.1.2.3", 0), "1.1.1.1") && !near(place("10.1.2.3", 0), "::1"));
        assert!(near(place("fd00::1", 64), "fd00::2") && !near(place("fd00::1", 64), "fd01::1"));
        assert!(!near(place("fd00::1", 200), "fd00::2"));
        assert!(near(ListenAddress::alone([1, 2, 3, 4].into()), "1.2.3.4"));
        assert!(!near(ListenAddress::alone([1, 2, 3, 4].into()), "1.2.3.5"));
    }

    #[test]
    fn numbers_out_of_bounds_are_named() {
        let right = TcpConfig::new("job", 0, Secret::new([1; 32]), []);
        assert_eq!(right.check(), Ok(()));
        let wrong = [
            (TcpConfig { fragment_bytes: 255, ..right.clone() }, "255"),
            (TcpConfig { eager_bytes: 1 << 20, ..right.clone() }, "1048576"),
            (TcpConfig { buffers: 1, ..right.clone() }, "1 buffers"),
            (TcpConfig { notice: Duration::from_secs(4), ..right.clone() }, "4s"),
        ];
        for (config, number) in wrong {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(number), "{error}");
        }
        assert!(!format!("{right:?}").contains("1, 1"), "the secret is not shown");
    }
}
