//! Two hosts that are network namespaces; they go when this is dropped.

use crate::common::skip;
use std::ffi::OsString;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// What every host calls its interface to the other.
pub(crate) const INTERFACE: &str = "eth0";

/// What every host calls its end of a cable.
pub(crate) fn interface(cable: usize) -> String {
    format!("eth{cable}")
}

/// Two hosts and the cables between them.
pub(crate) struct Namespaces {
    names: [String; 2],
}

fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split(' ')).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            Err(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
        Err(error) => Err(format!("ip: {error}")),
    }
}

impl Namespaces {
    /// Fresh ones for a test; `None`, said aloud, where they cannot be made.
    pub(crate) fn new(test: &str) -> Option<Namespaces> {
        Namespaces::with_cables(test, 1)
    }

    /// The same with so many cables, each of a network of its own.
    pub(crate) fn with_cables(test: &str, cables: usize) -> Option<Namespaces> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = |end: &str| format!("gl{}-{number}{end}", std::process::id());
        let hosts = Namespaces { names: [name("a"), name("b")] };
        match hosts.make(number, cables) {
            Ok(()) => Some(hosts),
            Err(why) => {
                skip(&format!("jobs on two hosts ({test})"), &why);
                None
            }
        }
    }

    fn make(&self, number: u32, cables: usize) -> Result<(), String> {
        let [a, b] = &self.names;
        for name in [a, b] {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        for cable in 0..cables {
            // The names of this host's own interfaces are others'; these are ours until they are moved.
            let short = std::process::id() % 1_000_000;
            let [one, other] = ["a", "b"].map(|end| format!("gl{short}{number}{end}{cable}"));
            ip(&format!("link add {one} type veth peer name {other}"))?;
            let interface = interface(cable);
            for (at, (name, end)) in [(a, one), (b, other)].into_iter().enumerate() {
                let (net, host) = (77 + cable, at + 1);
                ip(&format!("link set {end} netns {name}"))?;
                ip(&format!("-n {name} link set {end} name {interface}"))?;
                ip(&format!("-n {name} addr add 10.{net}.0.{host}/24 dev {interface}"))?;
                // A host without IPv6 has one address less.
                let six = format!("fd{net}::{host}/64 dev {interface} nodad");
                let _ = ip(&format!("-n {name} addr add {six}"));
                ip(&format!("-n {name} link set {interface} up"))?;
            }
        }
        Ok(())
    }

    /// What to write before a command that is to run on a host.
    pub(crate) fn enter(&self, host: usize) -> Vec<OsString> {
        let words = ["ip", "netns", "exec", &self.names[host], "unshare", "--uts"];
        words.map(OsString::from).to_vec()
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            // The interfaces go with the last process in there.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}
