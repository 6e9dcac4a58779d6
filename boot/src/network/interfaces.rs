//! The interfaces of this host, as the system lists them: getifaddrs(3).

use gapless_btl_tcp::ListenAddress;
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) place: ListenAddress,
    pub(super) is_up: bool,
    pub(super) is_loopback: bool,
}

/// The list that the system allocated; freed on drop.
struct List(*mut libc::ifaddrs);

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: `getifaddrs` gave this pointer, and it is freed once; nothing that `list` returns points into it.
        unsafe { libc::freeifaddrs(self.0) };
    }
}

/// All addresses of all interfaces.
///
/// # Errors
/// The system does not tell.
pub(super) fn list() -> io::Result<Vec<Interface>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the pointer is that of a local variable, to which the call writes.
    let failed = unsafe { libc::getifaddrs(&raw mut first) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    let list = List(first);
    let (mut found, mut next) = (Vec::new(), list.0);
    while !next.is_null() {
        // SAFETY: `next` is an element of the list, which lives until `list` is dropped and which nobody changes.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        let (Some(address), Some(mask)) = (address(entry.ifa_addr), address(entry.ifa_netmask))
        else {
            continue;
        };
        // SAFETY: every element has a name, which ends with a zero and lives as long as the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        let flag = |flag: libc::c_int| entry.ifa_flags & flag.unsigned_abs() != 0;
        found.push(Interface {
            name: name.to_string_lossy().into_owned(),
            place: ListenAddress { address, prefix_bits: ones(mask) },
            is_up: flag(libc::IFF_UP),
            is_loopback: flag(libc::IFF_LOOPBACK),
        });
    }
    Ok(found)
}

/// The address in an element of the list; `None` if there is none, or one of another family.
fn address(pointer: *const libc::sockaddr) -> Option<IpAddr> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: it is not null, and so an address of the list, whatever its family, of which the family is a part.
    let family = unsafe { (*pointer).sa_family };
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says that this is what lies there. It may not be aligned as that type is.
            let v4 = unsafe { pointer.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: likewise.
            let v6 = unsafe { pointer.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// How many bits a mask has.
fn ones(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(v4) => v4.to_bits().count_ones(),
        IpAddr::V6(v6) => v6.to_bits().count_ones(),
    };
    u8::try_from(ones).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_among_them() {
        let all = list().unwrap();
        let Some(loopback) = all.iter().find(|it| it.place.address == Ipv4Addr::LOCALHOST) else {
            return gapless_btl_testkit::conformance::skip(
                "interfaces::loopback_is_among_them",
                "this network namespace has no 127.0.0.1",
            );
        };
        assert!(loopback.is_loopback && loopback.place.prefix_bits == 8, "{loopback:?}");
    }
}
