//! Jobs over IPv6: alone, and as one of two rails beside IPv4.

use super::{collectives, columns, exchange, expect_links, places_of};
use crate::common::{self, is_rank, skip};
use crate::namespaces::{Namespaces, interface};
use crate::{WATCHDOG, host_of, on_two_hosts};
use gapless::World;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Whether this system has IPv6; else says so.
fn is_there(name: &str) -> bool {
    let there = Path::new("/proc/net/if_inet6").exists();
    if !there {
        skip(name, "this system has no IPv6");
    }
    there
}

#[test]
fn a_job_over_ipv6_alone() {
    let name = "together::six::a_job_over_ipv6_alone";
    if !is_there(name) {
        return;
    }
    on_two_hosts(name, &[], |builder| {
        let world = builder.tcp_interfaces("fd00::/8").init().unwrap();
        for rank in 0..4 {
            let places = places_of(rank);
            assert!(!places.is_empty() && places.iter().all(|it| it.is_ipv6()), "{places:?}");
        }
        [0, 1, 100, 70_000, 3 << 20].into_iter().for_each(|len| exchange(&world, len));
        columns(&world, 5_000);
        collectives(&world, 2_000);
        expect_links(&world, "tcp");
        world.finalize().unwrap();
    });
}

/// One cable carries IPv4, the other IPv6; then the first is pulled out.
#[test]
fn rails_of_ipv4_and_ipv6() {
    let name = "together::six::rails_of_ipv4_and_ipv6";
    if is_rank(name) {
        let builder = World::builder().wireup(common::folder_wireup());
        let builder = builder.tcp_interfaces("10.77.0.0/16,fd78::/16");
        let world = builder.notice(Duration::from_secs(5)).init().unwrap();
        let far = (0..4).find(|&other| host_of(other) != host_of(world.rank())).unwrap();
        let rails = || world.link(far).unwrap().rails.len();
        assert_eq!(rails(), 2);
        [0, 1, 70_000, 3 << 20].into_iter().for_each(|len| exchange(&world, len));
        assert_eq!(rails(), 2);
        world.comm().barrier().unwrap();
        if world.rank() == 0 {
            let words = ["link", "set", &interface(0), "down"];
            assert!(Command::new("ip").args(words).status().unwrap().success());
        }
        for len in [1, 70_000, 3 << 20] {
            exchange(&world, len);
            collectives(&world, 500);
        }
        return world.finalize().unwrap();
    }
    if !is_there(name) {
        return;
    }
    let Some(hosts) = Namespaces::with_cables(name, 2) else { return };
    common::orphans_at(4, name, &[], WATCHDOG, |rank| hosts.enter(host_of(rank)));
}
