//! Where a device is on the host's buses.

use std::fmt;

/// A function of a device on PCI Express, as the system names it: `0000:17:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// Which tree of buses.
    pub domain: u32,
    /// The bus in it.
    pub bus: u8,
    /// The device on the bus.
    pub device: u8,
    /// The device's function.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciAddress { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

#[cfg(test)]
mod tests {
    use super::PciAddress;

    #[test]
    fn addresses_are_written_as_the_system_does() {
        let address = PciAddress { domain: 1, bus: 0xc7, device: 0x1f, function: 3 };
        assert_eq!(address.to_string(), "0001:c7:1f.3");
    }
}
