//! Two hosts: namespaces of the network, of the host's name, and of mounts, with a `/dev/shm` and an `/etc/hosts` of their
//! own. They go when this is dropped, or this process ends.

use crate::common::skip;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// What every host calls its interface to the other.
pub(crate) const INTERFACE: &str = "eth0";

/// What every host calls its end of a cable.
pub(crate) fn interface(cable: usize) -> String {
    format!("eth{cable}")
}

/// What the hosts are called.
pub(crate) const NAMES: [&str; 2] = ["host-a", "host-b"];

/// Two hosts and the cables between them.
pub(crate) struct Namespaces {
    names: [String; 2],
    /// A process in each, as long as it can read.
    keepers: Vec<Child>,
    folder: tempfile::TempDir,
}

/// Has a process stay in the namespaces of a host.
fn keep(name: &str, host: &str, addresses: &std::path::Path) -> Result<Child, String> {
    let script = "mount -t tmpfs tmpfs /dev/shm && mount --bind \"$2\" /etc/hosts && hostname \"$1\" && echo ready && \
                  exec cat >/dev/null";
    let mut command = Command::new("ip");
    command.args(["netns", "exec", name, "unshare", "--uts", "--mount", "sh", "-c", script, "sh"]);
    command.arg(host).arg(addresses);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("ip: {error}"))?;
    let mut line = String::new();
    let stdout = child.stdout.take().expect("a pipe");
    let read = BufReader::new(stdout).read_line(&mut line);
    if read.is_ok() && line == "ready\n" {
        return Ok(child);
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    Err(format!("a host of its own: {}", String::from_utf8_lossy(&output.stderr).trim()))
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
        let mut hosts = Namespaces::named([name("a"), name("b")]);
        match hosts.make(number, cables) {
            Ok(()) => Some(hosts),
            Err(why) => {
                skip(&format!("jobs on two hosts ({test})"), &why);
                None
            }
        }
    }

    fn make(&mut self, number: u32, cables: usize) -> Result<(), String> {
        let [a, b] = &self.names;
        for name in [a, b] {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        (0..cables).try_for_each(|cable| join([a, b], number, cable, true))?;
        let addresses = self.folder.path().join("hosts");
        let lines = "127.0.0.1 localhost\n10.77.0.1 host-a\n10.77.0.2 host-b\n";
        std::fs::write(&addresses, lines).map_err(|error| error.to_string())?;
        for (name, host) in self.names.iter().zip(NAMES) {
            self.keepers.push(keep(name, host, &addresses)?);
        }
        Ok(())
    }

    /// None made yet.
    fn named(names: [String; 2]) -> Namespaces {
        let folder = tempfile::tempdir().expect("a folder for the hosts' files");
        Namespaces { names, keepers: Vec::new(), folder }
    }

    /// The same with two cables, each of which somebody in the middle has cut in two: for each host there is a namespace,
    /// given here, in which all calls for the other host arrive. Over IPv4 alone.
    pub(crate) fn with_a_middle(test: &str) -> Option<(Namespaces, Namespaces)> {
        let number = next();
        let name = |end: &str| format!("gl{}-{number}{end}", std::process::id());
        let mut hosts = Namespaces::named([name("a"), name("b")]);
        let mut middles = Namespaces::named([name("c"), name("d")]);
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

    /// Applies a rule of `tc` to what leaves a host over a cable; an error says why that fails.
    pub(crate) fn spoil(&self, host: usize, cable: usize, how: &str) -> Result<(), String> {
        let (name, interface) = (&self.names[host], interface(cable));
        tool("tc", &format!("-n {name} qdisc add dev {interface} root {how}"))
    }

    /// A folder that all hosts have; it goes with them.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// A program that starts a command on a host, and takes the words that `ssh` takes.
    pub(crate) fn remote_shell(&self) -> PathBuf {
        let path = self.folder.path().join("ssh");
        let [a, b] = [0, 1].map(|at| self.keepers[at].id());
        let [first, second] = NAMES;
        let script = format!(
            "#!/bin/sh\nwhile case \"$1\" in -*) true;; *) false;; esac; do shift; done\n\
             case \"$1\" in {first}) pid={a};; {second}) pid={b};; *) echo \"no host $1\" >&2; exit 255;; esac\n\
             shift\nexec nsenter -t $pid --net --uts --mount -- sh -c \"$*\"\n"
        );
        gapless_testkit::write_script(&path, &script);
        path
    }

    /// What to write before a command that is to run on a host.
    pub(crate) fn enter(&self, host: usize) -> Vec<OsString> {
        let pid = self.keepers[host].id().to_string();
        let words = ["nsenter", "-t", &pid, "--net", "--uts", "--mount", "--"];
        words.map(OsString::from).to_vec()
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for keeper in &mut self.keepers {
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
        for name in &self.names {
            // The interfaces go with the last process in there.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}
