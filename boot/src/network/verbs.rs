//! InfiniBand and RoCE to processes of other hosts: which ports of which devices are used (`ports`). Without the feature
//! `ib` there is none.

#[cfg(feature = "ib")]
mod adapters;
#[cfg(not(feature = "ib"))]
#[path = "verbs/unbuilt.rs"]
mod adapters;
mod ports;

pub(super) use ports::joined;
pub use ports::network;

use super::interfaces::{self, Interface};
use super::manner::Manner;
use super::wanted::Pattern;
use super::{Choices, Labelled, Settings, Ways};
use crate::BootError;
use gapless_btl::{LinkError, Secret};
use ports::Port;
use std::fmt;

/// The name of the built-in transport over verbs.
pub const IB: &str = "ib";
/// Whether this program was built with it.
pub const IS_BUILT: bool = cfg!(feature = "ib");

/// Which devices and ports are used.
pub(super) const DEVICES: &str = "GAPLESS_IB_DEVICES";

/// A port of a verbs device of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsPort {
    /// The device, as `ibv_devices` shows it.
    pub device: String,
    /// The port, from 1; 0 if the device could not be opened, so that its ports are not known.
    pub number: u8,
    /// The kind of link, its state and speed, the longest packet, and the address (GID) that is used.
    pub description: String,
    /// All addresses (GIDs): index, address, kind.
    pub addresses: Vec<String>,
    /// Why a world does not use the port. Ports without a reason are used: of each pair of processes one at either end, or
    /// all together if both processes ask for several.
    pub passed_over: Option<String>,
}

impl fmt::Display for VerbsPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            0 => f.write_str(&self.device),
            number => write!(f, "{}:{number}", self.device),
        }
    }
}

/// One word of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// The name of a device, or its beginning if a star follows.
    device: String,
    star: bool,
    /// All ports if none is given.
    port: Option<u8>,
}

impl Pattern for Name {
    type Thing = VerbsPort;

    fn parse(word: &str) -> Result<Name, String> {
        let wrong = || format!("{word:?}, not a device or device:port");
        let (device, port) = match word.split_once(':') {
            None => (word, None),
            Some((device, port)) => match port.parse::<u8>() {
                Ok(port) if port > 0 => (device, Some(port)),
                _ => return Err(wrong()),
            },
        };
        let (device, star) = device.strip_suffix('*').map_or((device, false), |it| (it, true));
        let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !device.chars().all(is_part) || (device.is_empty() && !star) {
            return Err(wrong());
        }
        Ok(Name { device: device.to_owned(), star, port })
    }

    fn matches(&self, port: &VerbsPort) -> bool {
        let named = match self.star {
            true => port.device.starts_with(&self.device),
            false => port.device == self.device,
        };
        named && self.port.is_none_or(|number| number == port.number)
    }
}

/// Words apart by commas: a device (`mlx5_0`, `mlx5_*`) or one of its ports (`mlx5_0:1`). After `!` it is not used. Without
/// any to use, all are but those that are not.
pub(super) type Wanted = super::wanted::Wanted<Name>;

/// Notes which ports the user does not want.
fn pass_over(ports: &mut [Port], wanted: &Wanted) {
    let left_out =
        |port: &VerbsPort| wanted.excludes(port) || (wanted.asks() && !wanted.includes(port));
    for port in ports.iter_mut().filter(|port| left_out(&port.shown)) {
        port.shown.passed_over = Some("it was not asked for".to_owned());
    }
}

/// The ports of a host, and which of them are used.
struct HostPorts {
    ports: Vec<Port>,
    /// See [`ports::choose`].
    chosen: Vec<Vec<usize>>,
    interfaces: Vec<Interface>,
}

/// Finds the ports of this host.
///
/// # Errors
/// The library is not installed, or the system has no support.
fn choose(wanted: &Wanted, manner: &Manner) -> Result<HostPorts, LinkError> {
    let mut ports = adapters::list(manner)?;
    pass_over(&mut ports, wanted);
    let interfaces = interfaces::list().unwrap_or_else(|error| {
        tracing::debug!(%error, "the networks of ports are not known");
        Vec::new()
    });
    let chosen = ports::choose(&mut ports, wanted.asks(), &interfaces);
    Ok(HostPorts { ports, chosen, interfaces })
}

/// Ports of verbs devices of this host, and which of them a world uses that is built without a choice of
/// devices, as the variable `GAPLESS_IB_DEVICES` says, for peers on other hosts that have such a port, too. (MPI 4.1 leaves
/// this to implementations.)
///
/// # Errors
/// This program was built without the feature `ib`; rdma-core is not installed, or the system has no support; the variable
/// makes no sense.
pub fn verbs_ports() -> Result<Vec<VerbsPort>, BootError> {
    let settings = Choices::default().settle()?;
    let failed = |error| BootError::Transport { name: IB, error };
    let HostPorts { ports, .. } = choose(&settings.devices, &settings.manner).map_err(failed)?;
    Ok(ports.into_iter().map(|port| port.shown).collect())
}

/// Opens the transports of a process, one on each port that is used.
///
/// # Errors
/// There is none that can be used; the reasons name device and port.
pub(super) fn open(
    settings: &Settings,
    ways: Ways,
    (job, rank): (&str, u32),
    secret: &Secret,
) -> Result<Vec<Labelled>, LinkError> {
    let HostPorts { ports, chosen, interfaces } = choose(&settings.devices, &settings.manner)?;
    let mut tried = Vec::new();
    let mut open = ports::open_each(&chosen, |name, at| {
        let port = &ports[at];
        match adapters::open((name, &port.shown), &settings.manner, (job, rank), secret) {
            Ok(btl) => Some((port.label(name, &interfaces), btl)),
            Err(error) => {
                tracing::debug!(port = %port.shown, %error, "a port that cannot be opened");
                tried.push(format!("{}: {error}", port.shown));
                None
            }
        }
    });
    for (at, port) in ports.iter().enumerate() {
        if let Some(why) = &port.shown.passed_over
            && !chosen.iter().any(|all| all.contains(&at))
        {
            tried.push(format!("{}: {why}", port.shown));
        }
    }
    if !open.is_empty() {
        // Whoever names several ways wants all of them used.
        let tcp = ways.tcp && settings.wanted.asks();
        if settings.devices.asks() && (open.len() > 1 || tcp) {
            open.iter_mut().for_each(|(label, _)| ports::ask_for_rails(label));
        }
        tracing::debug!(ports = open.len(), not_used = tried.join("; "), "verbs");
        return Ok(open);
    }
    if tried.is_empty() {
        tried.push("this host has no verbs device".to_owned());
    }
    Err(LinkError::Unreachable { reason: format!("no port to use: {}", tried.join("; ")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(list: &str) -> Vec<String> {
        let port = |device: &str, number, problem: &str| {
            let shown = VerbsPort {
                device: device.to_owned(),
                number,
                description: String::new(),
                addresses: Vec::new(),
                passed_over: (!problem.is_empty()).then(|| problem.to_owned()),
            };
            Port { shown, kind: "ethernet", gid: None, mbit_s: 0, near: true }
        };
        let mut all = [
            port("mlx5_0", 1, ""),
            port("mlx5_0", 2, "it has no link"),
            port("mlx5_1", 1, ""),
            port("mlx5_10", 1, ""),
            port("rxe0", 0, "it cannot be opened"),
        ];
        pass_over(&mut all, &Wanted::parse(list).unwrap());
        let left = all.iter().filter(|port| port.shown.passed_over.is_none());
        left.map(|port| port.shown.to_string()).collect()
    }

    #[test]
    fn ports_are_chosen_by_device_and_number() {
        assert_eq!(used(""), ["mlx5_0:1", "mlx5_1:1", "mlx5_10:1"]);
        assert_eq!(used("mlx5_1, !mlx5_0"), ["mlx5_1:1"]);
        assert_eq!(used("mlx5_1*"), ["mlx5_1:1", "mlx5_10:1"]);
        assert_eq!(used("!mlx5_0:1"), ["mlx5_1:1", "mlx5_10:1"]);
        assert_eq!(used("mlx5_0:2,rxe0"), [""; 0], "what cannot be used is not used");
        assert_eq!(used("!*"), [""; 0]);
        assert_eq!(used("*:1,!mlx5_1"), ["mlx5_0:1", "mlx5_10:1"]);
    }

    #[test]
    fn words_that_make_no_sense_are_named() {
        for word in ["mlx5 0", "mlx5_0:0", "mlx5_0:256", "mlx5_0:x", "!", ":1", "a/b", "é"] {
            let problem = Wanted::parse(&format!("rxe0,{word}")).unwrap_err();
            assert!(problem.contains(word.trim_start_matches('!')), "{problem}");
        }
    }

    #[test]
    fn programs_without_verbs_say_so() {
        if !IS_BUILT {
            let error = verbs_ports().unwrap_err().to_string();
            assert!(error.contains("cargo feature `ib`"), "{error}");
        }
    }
}
