//! The suite that every transport passes, over the loopback addresses of both families.

use crate::Tcp;
use crate::burst::{Burst, Next};
use crate::link::LinkState;
use crate::tests::{LOOPBACK_V4, LOOPBACK_V6, tcp_at};
use gapless_btl::PeerId;
use gapless_btl_testkit::conformance::Fixture;
use rustix::net::{Shutdown, connect_unspec, shutdown};
use std::io::IoSlice;
use std::net::{IpAddr, TcpListener};

/// Ends at one address of this host, made like this.
struct At(IpAddr, fn(u32, IpAddr) -> Tcp);

impl Fixture for At {
    type Btl = Tcp;

    fn pair(&mut self) -> (Tcp, Tcp) {
        ((self.1)(0, self.0), (self.1)(1, self.0))
    }

    fn process_end(&mut self) -> Option<Tcp> {
        let child = std::env::var_os("GAPLESS_CONFORMANCE_CHILD").is_some();
        Some((self.1)(u32::from(child), self.0))
    }

    fn garbage(&mut self, from: &mut Tcp, to: PeerId, variant: u32) -> bool {
        let bytes: &[u8] = match variant {
            0 => &[0xff; 64],
            // A length, a kind, zeros that are none, a second welcome, a body cut short, a header cut short.
            1 => &[0, 0xff, 0, 0, 2, 7, 0, 0],
            2 => &[0, 0, 0, 1, 5, 7, 0, 0, 1],
            3 => &[0, 0, 0, 1, 2, 7, 0, 1, 1],
            4 => &[0, 0, 0, 0, 1, 0, 0, 0],
            5 => &[0, 0, 0, 9, 2, 7, 0, 0, 1, 2],
            6 => &[0, 1, 0, 0, 2, 7, 0, 0, 1, 2],
            7 => &[0, 0],
            // Counts of messages that were not retained.
            8 => &[0, 0, 0, 0, 4, 0, 0, 1],
            9 => &[0, 0, 0, 9, 3, 7, 0xff, 0xff, 1, 2],
            _ => return false,
        };
        let LinkState::Up(up) = &mut from.links[to.0 as usize].state else {
            panic!("the link stands")
        };
        assert_eq!(up.connection.write(&[IoSlice::new(bytes)], Next::Leaves), Ok(bytes.len()));
        true
    }

    fn cut(&mut self, end: &mut Tcp, to: PeerId, variant: u32) -> bool {
        let LinkState::Up(up) = &end.links[to.0 as usize].state else { panic!("the link stands") };
        match variant {
            // As when somebody closes the connection, and when somebody resets it.
            0 => shutdown(up.connection.socket(), Shutdown::Both).unwrap(),
            1 => connect_unspec(up.connection.socket()).unwrap(),
            _ => return false,
        }
        true
    }
}

/// The IPv6 loopback address; where the system has none, that of IPv4, and that is said.
fn v6() -> IpAddr {
    if TcpListener::bind((LOOPBACK_V6, 0)).is_ok() {
        return LOOPBACK_V6;
    }
    gapless_btl_testkit::conformance::skip(
        "gapless-btl-tcp ipv6",
        "nobody can listen at ::1: over IPv4 instead",
    );
    LOOPBACK_V4
}

gapless_btl_testkit::conformance!(ipv4, At(LOOPBACK_V4, tcp_at));
/// An end whose messages wait for each other from the beginning.
pub(super) fn trusted_at(rank: u32, address: IpAddr) -> Tcp {
    let mut tcp = tcp_at(rank, address);
    tcp.burst = Burst::trusted();
    tcp
}

gapless_btl_testkit::conformance!(ipv6, At(v6(), trusted_at));
#[cfg(feature = "encryption")]
gapless_btl_testkit::conformance!(encrypted, At(v6(), crate::tests::sealed_at));
gapless_btl_testkit::conformance!(
    uncopied,
    At(LOOPBACK_V4, crate::tests::msg_zerocopy::uncopied_at)
);
