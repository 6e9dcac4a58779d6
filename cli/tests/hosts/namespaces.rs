//! Two hosts that are network namespaces; they go when this is dropped.

use crate::common::skip;
use std::ffi::OsString;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// What every host calls its interface to the other.
pub(crate) const INTERFACE: &str = "eth0";

/// Two hosts and the cable between them.
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
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = |end: &str| format!("gl{}-{number}{end}", std::process::id());
        let hosts = Namespaces { names: [name("a"), name("b")] };
        match hosts.make(number) {
            Ok(()) => Some(hosts),
            Err(why) => {
                skip(&format!("jobs on two hosts ({test})"), &why);
                None
            }
        }
    }

    fn make(&self, number: u32) -> Result<(), String> {
        let [a, b] = &self.names;
        for name in [a, b] {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        // The names of this host's own interfaces are others'; these are ours until they are moved.
        let [one, other] =
            ["a", "b"].map(|end| format!("gl{}{number}{end}", std::process::id() % 1_000_000));
        ip(&format!("link add {one} type veth peer name {other}"))?;
        for (at, (name, cable)) in [(a, one), (b, other)].into_iter().enumerate() {
            ip(&format!("link set {cable} netns {name}"))?;
            ip(&format!("-n {name} link set {cable} name {INTERFACE}"))?;
            ip(&format!("-n {name} addr add 10.77.0.{}/24 dev {INTERFACE}", at + 1))?;
            // A host without IPv6 has one address less.
            let _ = ip(&format!("-n {name} addr add fd77::{}/64 dev {INTERFACE} nodad", at + 1));
            ip(&format!("-n {name} link set {INTERFACE} up"))?;
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
