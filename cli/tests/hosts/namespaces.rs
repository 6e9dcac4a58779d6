//! Two hosts that are network namespaces; they go when this is dropped.

use crate::common::skip;
use std::ffi::OsString;
use std::os::fd::AsFd;
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
    tool("ip", words)
}

fn tool(program: &str, words: &str) -> Result<(), String> {
    let output = Command::new(program).args(words.split(' ')).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            Err(format!("{program} {words}: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
        Err(error) => Err(format!("{program}: {error}")),
    }
}

/// Numbers for names.
fn next() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

/// A cable between two namespaces, with the first address of its network at the first, and the second at the other.
fn join(ends: [&String; 2], number: u32, cable: usize, six: bool) -> Result<(), String> {
    // The names of this host's own interfaces are others'; these are ours until they are moved.
    let (short, last) = (std::process::id() % 1_000_000, ends[0].as_bytes().last().copied());
    let side = char::from(last.unwrap_or(b'a'));
    let [one, other] = ["x", "y"].map(|end| format!("gl{short}{number}{side}{end}{cable}"));
    ip(&format!("link add {one} type veth peer name {other}"))?;
    let interface = interface(cable);
    for (at, (name, end)) in ends.into_iter().zip([one, other]).enumerate() {
        let (net, host) = (77 + cable, at + 1);
        ip(&format!("link set {end} netns {name}"))?;
        ip(&format!("-n {name} link set {end} name {interface}"))?;
        ip(&format!("-n {name} addr add 10.{net}.0.{host}/24 dev {interface}"))?;
        if six {
            // A host without IPv6 has one address less.
            let six = format!("fd{net}::{host}/64 dev {interface} nodad");
            let _ = ip(&format!("-n {name} addr add {six}"));
        }
        ip(&format!("-n {name} link set {interface} up"))?;
    }
    Ok(())
}

impl Namespaces {
    /// Fresh ones for a test; `None`, said aloud, where they cannot be made.
    pub(crate) fn new(test: &str) -> Option<Namespaces> {
        Namespaces::with_cables(test, 1)
    }

    /// The same with so many cables, each of a network of its own.
    pub(crate) fn with_cables(test: &str, cables: usize) -> Option<Namespaces> {
        let number = next();
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
        (0..cables).try_for_each(|cable| join([a, b], number, cable, true))
    }

    /// The same with two cables, each of which somebody in the middle has cut in two: for each host there is a namespace,
    /// given here, in which all calls for the other host arrive. Over IPv4 alone.
    pub(crate) fn with_a_middle(test: &str) -> Option<(Namespaces, Namespaces)> {
        let number = next();
        let name = |end: &str| format!("gl{}-{number}{end}", std::process::id());
        let hosts = Namespaces { names: [name("a"), name("b")] };
        let middles = Namespaces { names: [name("c"), name("d")] };
        let made = hosts.make(number, 0).and_then(|()| middles.make(number, 0)).and_then(|()| {
            let ([a, b], [near_a, near_b]) = (&hosts.names, &middles.names);
            (0..2).try_for_each(|cable| {
                join([a, near_a], number, cable, false)?;
                join([near_b, b], number, cable, false)
            })
        });
        match made {
            Ok(()) => Some((hosts, middles)),
            Err(why) => {
                skip(&format!("jobs on two hosts ({test})"), &why);
                None
            }
        }
    }

    /// Has the calling thread be in one of them.
    pub(crate) fn move_into(&self, host: usize) {
        let file = std::fs::File::open(format!("/run/netns/{}", self.names[host])).unwrap();
        let network = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(file.as_fd(), network).unwrap();
    }

    /// Has the kernel treat what leaves a host over a cable so; why it cannot.
    pub(crate) fn spoil(&self, host: usize, cable: usize, how: &str) -> Result<(), String> {
        let (name, interface) = (&self.names[host], interface(cable));
        tool("tc", &format!("-n {name} qdisc add dev {interface} root {how}"))
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
