//! InfiniBand and RoCE to processes of other hosts: which port of which device is used. Without the feature `ib` there is
//! none.

#[cfg(feature = "ib")]
mod adapters;
#[cfg(not(feature = "ib"))]
#[path = "verbs/unbuilt.rs"]
mod adapters;

use super::wanted::Pattern;
use super::{Choices, Settings};
use crate::Error;
use gapless_btl::{Btl, LinkError, Secret};
use std::fmt;

/// The name of the built-in transport over verbs.
pub(crate) const IB: &str = "ib";
/// Whether this program was built with it.
pub(crate) const IS_BUILT: bool = cfg!(feature = "ib");

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
    /// Why a world does not use the port. The port without a reason is used; there is one at most.
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
fn pass_over(ports: &mut [VerbsPort], wanted: &Wanted) {
    let left_out =
        |port: &VerbsPort| wanted.excludes(port) || (wanted.asks() && !wanted.includes(port));
    for port in ports.iter_mut().filter(|port| left_out(port)) {
        port.passed_over = Some("it was not asked for".to_owned());
    }
}

/// Ports of verbs devices of this host, and which of them a world uses that is [built](crate::Builder) without a choice of
/// devices, as the variable `GAPLESS_IB_DEVICES` says, for peers on other hosts that have such a port, too. (MPI 4.1 leaves
/// this to implementations.)
///
/// # Errors
/// This program was built without the feature `ib`; rdma-core is not installed, or the system has no support; the variable
/// makes no sense.
pub fn verbs_ports() -> Result<Vec<VerbsPort>, Error> {
    let settings = Choices::default().settle()?;
    let failed = |error| Error::Transport { name: IB, error };
    let mut ports = adapters::list().map_err(failed)?;
    pass_over(&mut ports, &settings.devices);
    let mut usable = ports.iter_mut().filter(|port| port.passed_over.is_none());
    if let Some(used) = usable.next().map(|port| port.to_string()) {
        usable.for_each(|port| port.passed_over = Some(format!("{used} is used, and no other")));
    }
    Ok(ports)
}

/// Opens the transport of a process on the first port that can be used.
///
/// # Errors
/// There is none; the reasons name device and port.
pub(super) fn open(
    settings: &Settings,
    job: &str,
    rank: u32,
    secret: &Secret,
) -> Result<Box<dyn Btl>, LinkError> {
    let mut ports = adapters::list()?;
    pass_over(&mut ports, &settings.devices);
    let mut tried = Vec::new();
    for port in ports {
        match &port.passed_over {
            Some(why) => tried.push(format!("{port}: {why}")),
            None => match adapters::open(&port, job, rank, secret) {
                Ok(btl) => return Ok(btl),
                Err(error) => tried.push(format!("{port}: {error}")),
            },
        }
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
        let port = |device: &str, number, problem: &str| VerbsPort {
            device: device.to_owned(),
            number,
            description: String::new(),
            addresses: Vec::new(),
            passed_over: (!problem.is_empty()).then(|| problem.to_owned()),
        };
        let mut all = [
            port("mlx5_0", 1, ""),
            port("mlx5_0", 2, "it has no link"),
            port("mlx5_1", 1, ""),
            port("mlx5_10", 1, ""),
            port("rxe0", 0, "it cannot be opened"),
        ];
        pass_over(&mut all, &Wanted::parse(list).unwrap());
        let left = all.iter().filter(|port| port.passed_over.is_none());
        left.map(ToString::to_string).collect()
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
