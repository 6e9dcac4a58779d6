//! The address that a transport publishes.
//!
//! ```text
//!   0 'g' 'u' '1' 0 | 4 port of the listener | 6 session | 14 its bits, inverted | 22 host
//! ```

use gapless_btl::{Address, LinkError};

/// Where to say Hello, and for whom to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UdpAddress {
    /// The port of the socket that Hellos go to.
    pub(crate) listener: u16,
    /// A random number that says whose it is: another process may take the port later.
    pub(crate) session: u64,
    /// Which loopback interface the port is one of.
    pub(crate) host: u64,
}

const MAGIC: [u8; 4] = *b"gu1\0";
const BYTES: usize = 30;

/// A number for this boot of this machine and this network namespace: processes that have it in
/// common share a loopback interface.
pub(crate) fn this_host() -> u64 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    // FNV-1a, as numbers must agree between builds.
    let bytes = boot.iter().chain(namespace.as_os_str().as_encoded_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl UdpAddress {
    pub(crate) fn encode(&self) -> Address {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.listener.to_be_bytes());
        bytes[6..14].copy_from_slice(&self.session.to_be_bytes());
        bytes[14..22].copy_from_slice(&(!self.session).to_be_bytes());
        bytes[22..].copy_from_slice(&self.host.to_be_bytes());
        Address::new(&bytes).expect("the address is short")
    }

    pub(crate) fn decode(address: &Address) -> Result<UdpAddress, LinkError> {
        let bad = |what: String| LinkError::BadAddress { what };
        let bytes = address.as_bytes();
        let bytes: &[u8; BYTES] = bytes
            .try_into()
            .map_err(|_| bad(format!("{} bytes instead of {BYTES}", bytes.len())))?;
        if bytes[..4] != MAGIC {
            return Err(bad(format!("it starts with {:02x?}", &bytes[..4])));
        }
        let number = |at: usize| -> [u8; 8] { bytes[at..at + 8].try_into().expect("eight bytes") };
        let address = UdpAddress {
            listener: u16::from_be_bytes([bytes[4], bytes[5]]),
            session: u64::from_be_bytes(number(6)),
            host: u64::from_be_bytes(number(22)),
        };
        if address.listener == 0 || !address.session != u64::from_be_bytes(number(14)) {
            return Err(bad("its port or session is damaged".to_owned()));
        }
        Ok(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_back_and_damage_is_noticed() {
        let address =
            UdpAddress { listener: 513, session: 0x1234_5678_9abc_def0, host: this_host() };
        assert_eq!(UdpAddress::decode(&address.encode()), Ok(address));
        for at in (0..4).chain(6..22) {
            let mut bytes = address.encode().as_bytes().to_vec();
            bytes[at] ^= 1;
            assert!(UdpAddress::decode(&Address::new(&bytes).unwrap()).is_err(), "byte {at}");
        }
        assert!(UdpAddress::decode(&UdpAddress { listener: 0, ..address }.encode()).is_err());
    }
}
