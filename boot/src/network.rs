//! The ways to processes of other hosts. TCP: which interfaces are used, at which ports, with which secret, and whether
//! messages are encrypted. Verbs: which ports of adapters (`verbs`).
//!
//! A job whose processes share a host opens no port. If there are several hosts, every process listens at addresses of
//! its own (`choose`), and publishes them. Hosts are told apart by the start of the system and the namespace of its
//! sockets, not by name: so containers with networks of their own are hosts of their own.

mod choose;
#[allow(unsafe_code, reason = "walks the list that getifaddrs(3) allocates")]
mod interfaces;
mod manner;
mod near;
mod rails;
mod verbs;
mod wanted;

pub use verbs::{IB, IS_BUILT as HAS_VERBS, VerbsPort, network as port_network, verbs_ports};

use crate::processors::Processors;
use crate::wireup::WireupError;
use crate::{BootError, process_record};
use choose::Wanted;
use gapless_bml::{Judge, Nearness};
use gapless_btl::{Address, Btl, LinkError};
use gapless_btl_tcp::{ListenAddress, Secret, Tcp, TcpConfig};
use gapless_mem::PciAddress;
use interfaces::Interface;
pub use manner::Manner;
use std::net::{IpAddr, TcpListener};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// The name of the built-in transport between hosts.
pub const TCP: &str = "tcp";

/// Which interfaces are used.
const INTERFACES: &str = "GAPLESS_TCP_INTERFACES";
/// The ports to listen at.
const PORTS: &str = "GAPLESS_TCP_PORTS";
/// Whether what goes to other hosts is encrypted.
const ENCRYPT: &str = "GAPLESS_ENCRYPT";

/// What a program chooses about its network. Where it chooses nothing, the environment may.
#[derive(Debug, Default)]
pub struct Choices {
    /// Interfaces of TCP, as in `GAPLESS_TCP_INTERFACES`.
    pub interfaces: Option<String>,
    /// Ports to listen at.
    pub ports: Option<RangeInclusive<u16>>,
    /// Ports of verbs devices, as in `GAPLESS_IB_DEVICES`.
    pub devices: Option<String>,
    /// Whether what goes to other hosts is encrypted.
    pub encrypt: Option<bool>,
    /// How links behave.
    pub manner: Manner,
}

/// How this process reaches other hosts: [`Choices`] and environment together, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    wanted: Wanted,
    ports: RangeInclusive<u16>,
    devices: verbs::Wanted,
    /// Whether what goes to other hosts is encrypted.
    pub encrypt: bool,
    manner: Manner,
    /// The interfaces of each rail over TCP, once they were opened.
    interfaces: Arc<OnceLock<Interfaces>>,
}

/// The rails' names, and the interfaces of each.
type Interfaces = Vec<(&'static str, Vec<String>)>;

/// Which transports to other hosts may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    /// TCP.
    pub tcp: bool,
    /// InfiniBand and RoCE.
    pub verbs: bool,
}

impl Choices {
    /// # Errors
    /// A list of interfaces, a range of ports or a number that makes no sense; encryption that was not built in.
    pub fn settle(self) -> Result<Settings, WireupError> {
        let variable = |name| std::env::var_os(name).map(|it| it.to_string_lossy().into_owned());
        let choice = |given: Option<String>, method, name| match given {
            Some(list) => (list, method),
            None => (variable(name).unwrap_or_default(), name),
        };
        let (list, source) = choice(self.interfaces, "Builder::tcp_interfaces", INTERFACES);
        let wanted = Wanted::parse(&list)
            .map_err(|problem| WireupError::Setting { variable: source, problem })?;
        let (list, source) = choice(self.devices, "Builder::ib_devices", verbs::DEVICES);
        let devices = verbs::Wanted::parse(&list)
            .map_err(|problem| WireupError::Setting { variable: source, problem })?;
        let ports = match (self.ports, variable(PORTS)) {
            (Some(ports), _) => check_ports(ports, "Builder::tcp_ports")?,
            (None, Some(text)) => read_ports(&text)?,
            (None, None) => 0..=0,
        };
        let (encrypt, source) = match (self.encrypt, variable(ENCRYPT)) {
            (Some(encrypt), _) => (encrypt, "Builder::encrypt"),
            (None, Some(text)) => (read_switch(ENCRYPT, &text)?, ENCRYPT),
            (None, None) => (false, ENCRYPT),
        };
        if encrypt && !cfg!(feature = "encryption") {
            let problem = "on, and this program was built without the feature `encryption`";
            return Err(WireupError::Setting { variable: source, problem: problem.to_owned() });
        }
        let manner = self.manner.settle(variable)?;
        Ok(Settings { wanted, ports, devices, encrypt, manner, interfaces: Arc::default() })
    }
}

fn read_switch(variable: &'static str, text: &str) -> Result<bool, WireupError> {
    match text.trim() {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => {
            let problem = format!("{text:?}, neither on nor off");
            Err(WireupError::Setting { variable, problem })
        }
    }
}

fn check_ports(
    ports: RangeInclusive<u16>,
    variable: &'static str,
) -> Result<RangeInclusive<u16>, WireupError> {
    if *ports.start() > 0 && !ports.is_empty() {
        return Ok(ports);
    }
    let problem = format!("{}-{}, not a range of ports", ports.start(), ports.end());
    Err(WireupError::Setting { variable, problem })
}

fn read_ports(text: &str) -> Result<RangeInclusive<u16>, WireupError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse(), last.trim().parse()) {
        (Ok(first), Ok(last)) => check_ports(first..=last, PORTS),
        _ => {
            let problem = format!("{text:?}, not a range of ports as in 5000-5099");
            Err(WireupError::Setting { variable: PORTS, problem })
        }
    }
}

/// Where a process of this host would listen if its job had several hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listening {
    /// Interfaces and their addresses: one at least. Peers call those of a rail in this order.
    pub addresses: Vec<(String, IpAddr)>,
    /// How many rails there are: one, or one for each interface that was asked for.
    pub rails: usize,
    /// One of these for each address; `None`: the system chooses.
    pub ports: Option<RangeInclusive<u16>>,
    /// Whether what goes to other hosts is encrypted.
    pub encrypts: bool,
    /// No other host reaches any of the addresses: there is only loopback.
    pub is_loopback: bool,
}

/// What a world uses if its builder chooses no interfaces, ports or encryption: what the variables
/// `GAPLESS_TCP_INTERFACES`, `GAPLESS_TCP_PORTS` and `GAPLESS_ENCRYPT` say. Nothing stays open. (MPI 4.1 leaves this to
/// implementations.)
///
/// # Errors
/// A variable that makes no sense; no address is left.
pub fn listening() -> Result<Listening, BootError> {
    let settings = Choices::default().settle()?;
    let (all, rails) =
        usable(&settings).map_err(|error| BootError::Transport { name: TCP, error })?;
    let of = |place: &ListenAddress| all.iter().find(|it| it.place == *place);
    let name = |place| of(place).map_or_else(String::new, |it| it.name.clone());
    let places = || rails.iter().flatten();
    Ok(Listening {
        addresses: places().map(|place| (name(place), place.address)).collect(),
        rails: rails.len(),
        encrypts: settings.encrypt,
        ports: (*settings.ports.start() > 0).then_some(settings.ports),
        is_loopback: places().filter_map(of).all(|it| it.is_loopback),
    })
}

/// All interfaces, and the addresses among them to listen at, by rail: one at least.
fn usable(settings: &Settings) -> Result<(Vec<Interface>, Vec<Vec<ListenAddress>>), LinkError> {
    let all = interfaces::list().map_err(|error| LinkError::System {
        operation: "getifaddrs",
        reason: error.to_string(),
    })?;
    let mut places = choose::places(&all, &settings.wanted);
    // An IPv6 address may not be ready yet, or be a duplicate of another host's.
    places.retain(|place| TcpListener::bind((place.address, 0)).is_ok());
    if places.is_empty() {
        let names: Vec<&str> = all.iter().map(|it| it.name.as_str()).collect();
        let reason = format!("no address to listen at on interfaces {}", names.join(", "));
        return Err(LinkError::Unreachable { reason });
    }
    let mut rails = choose::rails(&all, &settings.wanted, places);
    if let Some(what) = choose::bound(&mut rails, (rails::NAMES.len(), Tcp::PLACES_MAX)) {
        tracing::warn!("{what}; {INTERFACES} chooses others");
    }
    Ok((all, rails))
}

/// A transport, and the label that it is published with.
pub type Labelled = (String, Box<dyn Btl>);

/// Opens the transports of a process to other hosts, one at least: those that may be used, as far as this host has
/// them. Each has the label that it is published with. Verbs cannot be encrypted.
///
/// # Errors
/// It has none of them; the error is that of TCP, if that may be used.
pub fn open(
    settings: &Settings,
    ways: Ways,
    (job, rank): (&str, u32),
    secret: Secret,
) -> Result<Vec<Labelled>, BootError> {
    let mut open: Vec<Labelled> = Vec::new();
    if ways.verbs {
        let opened = if settings.encrypt {
            let reason = "verbs carry messages as they are; only TCP can be encrypted".to_owned();
            Err(LinkError::System { operation: "encryption", reason })
        } else {
            verbs::open(settings, ways, (job, rank), &secret)
        };
        match opened {
            Ok(ports) => open.extend(ports),
            Err(error) if !ways.tcp => return Err(BootError::Transport { name: IB, error }),
            Err(error) if settings.devices.asks() => {
                tracing::warn!(%error, "no InfiniBand or RoCE to other hosts, only TCP");
            }
            Err(error) => tracing::debug!(%error, "no InfiniBand or RoCE to other hosts"),
        }
    }
    if ways.tcp {
        match open_tcp(settings, job, rank, secret) {
            Ok(rails) => open.extend(rails),
            Err(error) if open.is_empty() => return Err(BootError::Transport { name: TCP, error }),
            Err(error) => tracing::warn!(%error, "no TCP to other hosts, only verbs"),
        }
    }
    Ok(open)
}

/// How a peer of another host is reached.
#[derive(Debug, PartialEq, Eq)]
pub struct Paired {
    /// Its addresses, by the names that the transports have here which they belong to.
    pub addresses: Vec<(String, Address)>,
    /// Whether all of them are used at a time, as rails; else the best one that has a link carries the messages.
    pub together: bool,
}

/// How a peer is reached that has published `theirs`. `own` are the labels of this process's transports. Both ends find the
/// same: rails are used together if there are several over TCP, or if both have asked for several rails with verbs among
/// them. Else one port at most is used, and TCP is its reserve.
pub fn paired(own: &[String], theirs: Vec<(String, Address)>) -> Paired {
    let (joined, asked) = verbs::joined(own, theirs);
    let (addresses, tcp) = rails::paired(own, joined);
    Paired { addresses, together: asked || tcp > 1 }
}

/// Opens TCP, a transport for each rail.
///
/// # Errors
/// No address is left, or no port is free.
fn open_tcp(
    settings: &Settings,
    job: &str,
    rank: u32,
    secret: Secret,
) -> Result<Vec<Labelled>, LinkError> {
    let (all, rails) = usable(settings)?;
    let names = |places: &Vec<ListenAddress>| -> Vec<String> {
        let of = |place: &ListenAddress| all.iter().find(|it| it.place == *place);
        places.iter().filter_map(of).map(|it| it.name.clone()).collect()
    };
    let named = rails::NAMES.into_iter().zip(rails.iter().map(names)).collect();
    // A world opens them once.
    let _ = settings.interfaces.set(named);
    let mut open: Vec<Labelled> = Vec::new();
    for (places, name) in rails.into_iter().zip(rails::NAMES) {
        let label = rails::label(name, &places);
        let usual = TcpConfig::new(job, rank, secret.clone(), places);
        let (ports, encrypt) = (settings.ports.clone(), settings.encrypt);
        let notice = settings.manner.notice.unwrap_or(usual.notice);
        let zerocopy = settings.manner.zerocopy.unwrap_or(usual.msg_zerocopy);
        let config = TcpConfig { name, ports, encrypt, notice, msg_zerocopy: zerocopy, ..usual };
        open.push((label, Box::new(Tcp::new(config)?)));
    }
    Ok(open)
}

/// How near the adapter of an interface is to a device, for a process that is kept on these processors; `system` is a folder
/// like `/sys`. It is far, too, if the processors are in another NUMA node than the device. `None` if the system does not
/// tell.
#[must_use]
pub fn nearness(
    system: &Path,
    processors: &[usize],
    interface: &str,
    device: PciAddress,
) -> Option<Nearness> {
    near::nearness_from(system, processors, interface, device)
}

/// Says how near the rails over TCP are to a device, as the system tells; of several, wherever the process is.
pub fn judge(settings: &Settings) -> Judge {
    let interfaces = Arc::clone(&settings.interfaces);
    Box::new(move |rail, device| {
        let (system, rails) = (Path::new("/sys"), interfaces.get()?);
        let (_, names) = rails.iter().find(|(name, _)| *name == rail)?;
        let address = device.pci_address()?;
        // One interface of one rail is chosen for each peer; all rails are equally far from the processors.
        let near = |name: &String| match rails.len() {
            1 => near::nearness_from(system, &Processors::allowed(), name, address),
            _ => near::nearness(system, name, address),
        };
        names.iter().filter_map(near).min()
    })
}

/// The job's secret as a word for the launcher's store.
pub fn write_secret(secret: &Secret) -> String {
    process_record::in_hexadecimal(secret.bytes())
}

/// Reads the secret that [`write_secret`] has written.
pub fn read_secret(word: &str) -> Option<Secret> {
    process_record::from_hexadecimal(word)?.try_into().ok().map(Secret::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_survive_as_words() {
        let secret = gapless_btl_tcp::random_secret().unwrap();
        let word = write_secret(&secret);
        assert_eq!(word.len(), 64);
        assert_eq!(read_secret(&word), Some(secret));
        for wrong in ["", "0g", &word[1..], &format!("{word}0"), &"é".repeat(32)] {
            assert_eq!(read_secret(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_switch_is_on_or_off() {
        assert_eq!(
            (read_switch(ENCRYPT, "on"), read_switch(ENCRYPT, " off")),
            (Ok(true), Ok(false))
        );
        for text in ["", "1", "yes", "ON"] {
            let error = read_switch(ENCRYPT, text).unwrap_err().to_string();
            assert_eq!(error, format!("GAPLESS_ENCRYPT is {text:?}, neither on nor off"));
        }
        let asked = Choices { encrypt: Some(true), ..Choices::default() }.settle();
        assert_eq!(asked.is_ok(), cfg!(feature = "encryption"), "{asked:?}");
    }

    #[test]
    fn ranges_of_ports_are_read_or_refused() {
        assert_eq!(read_ports("5000-5099"), Ok(5000..=5099));
        assert_eq!(read_ports("7"), Ok(7..=7));
        for text in ["", "0-9", "9-5", "x", "1-2-3", "1-70000", "-"] {
            let error = read_ports(text).unwrap_err().to_string();
            assert!(error.starts_with("GAPLESS_TCP_PORTS is"), "{error}");
        }
    }
}
