//! What devices there are, and which port a transport takes.

use crate::address::LinkKind;
use crate::config::IbConfig;
use crate::qp_address::QpAddress;
use crate::verbs::device::{Context, Gid, Listed, Numbers, Port, all};
use crate::verbs::flags::Capabilities;
use gapless_btl::LinkError;
use std::fmt;
use std::sync::Arc;

/// A device of this host.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// As `ibv_devices` shows it.
    pub name: String,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Its ports.
    pub ports: Vec<PortInfo>,
    /// Why it cannot be opened or asked; it has no ports then.
    pub problem: Option<LinkError>,
}

/// A port of a device.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// From 1.
    pub number: u8,
    /// Whether it has a link.
    pub active: bool,
    /// What it is connected to.
    pub kind: LinkKind,
    /// In Mbit/s; 0 if the device does not say.
    pub mbit_s: u32,
    /// The largest packet, in bytes.
    pub mtu_bytes: u32,
    /// The address that would be taken, and its index.
    pub gid: Option<(u8, String)>,
    /// The bytes of that address.
    pub gid_bytes: Option<[u8; 16]>,
    /// All addresses, with index and kind.
    pub gids: Vec<String>,
}

impl fmt::Display for PortInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.active { "active" } else { "down" };
        let kind = match self.kind {
            LinkKind::InfiniBand => "InfiniBand",
            LinkKind::Ethernet => "RoCE",
        };
        write!(f, "port {}: {kind}, {state}, packets of {} bytes", self.number, self.mtu_bytes)?;
        if self.mbit_s > 0 {
            write!(f, ", {} Gbit/s", f64::from(self.mbit_s) / 1000.0)?;
        }
        match &self.gid {
            Some((index, gid)) => write!(f, ", GID {index}: {gid}"),
            None => f.write_str(", no GID"),
        }
    }
}

/// The devices of this host. Of the addresses of a port, that of this index would be taken, or one by the rule of
/// [`IbConfig::gid_index`](crate::IbConfig::gid_index).
///
/// # Errors
/// `libibverbs` is not installed, or the kernel has no support.
pub fn devices(gid_index: Option<u8>) -> Result<Vec<DeviceInfo>, LinkError> {
    let broken = |name: String, problem| {
        let (capabilities, ports) = (Capabilities::empty(), Vec::new());
        DeviceInfo { name, capabilities, ports, problem: Some(problem) }
    };
    let describe = |listed: Listed| match listed {
        Err((name, error)) => broken(name, error),
        Ok(context) => match context.numbers() {
            Err(error) => broken(context.name.clone(), error),
            Ok(numbers) => {
                let ports = (1..=numbers.ports).filter_map(|number| context.port(number).ok());
                let ports = ports.map(|port| describe_port(&context, &port, gid_index)).collect();
                let (name, capabilities) = (context.name.clone(), numbers.capabilities);
                DeviceInfo { name, capabilities, ports, problem: None }
            }
        },
    };
    Ok(all()?.into_iter().map(describe).collect())
}

/// The address that is taken.
fn taken(gids: &[Gid], index: Option<u8>) -> Option<Gid> {
    match index {
        Some(index) => gids.iter().find(|gid| gid.index == index).copied(),
        None => Gid::best(gids),
    }
}

fn describe_port(context: &Context, port: &Port, gid_index: Option<u8>) -> PortInfo {
    let gids = context.gids(port);
    let gid = taken(&gids, gid_index);
    let shown = |gid: &Gid| QpAddress { gid: gid.bytes, lid: port.lid, number: 0 }.to_string();
    PortInfo {
        number: port.number,
        active: port.active,
        kind: port.kind,
        mbit_s: port.mbit_s,
        mtu_bytes: 128 << port.mtu,
        gid: gid.map(|gid| (gid.index, shown(&gid))),
        gid_bytes: gid.map(|gid| gid.bytes),
        gids: gids
            .iter()
            .map(|gid| format!("{} {} ({})", gid.index, shown(gid), gid.kind))
            .collect(),
    }
}

/// What a transport works on.
pub(crate) struct Chosen {
    pub(crate) context: Arc<Context>,
    pub(crate) numbers: Numbers,
    pub(crate) port: Port,
    pub(crate) gid: Gid,
}

/// Chooses as the configuration says.
///
/// # Errors
/// There is no such device, port or address, or none with a link.
pub(crate) fn choose(config: &IbConfig) -> Result<Chosen, LinkError> {
    let mut seen = Vec::new();
    for listed in all()? {
        let name = listed.as_ref().map_or_else(|(name, _)| name, |context| &context.name);
        if config.device.as_ref().is_some_and(|wanted| wanted != name) {
            seen.push(format!("{name} is another"));
            continue;
        }
        let context = match listed {
            Ok(context) => context,
            Err((name, error)) => {
                seen.push(format!("{name}: {error}"));
                continue;
            }
        };
        let numbers = match context.numbers() {
            Ok(numbers) => numbers,
            Err(error) => {
                seen.push(format!("{}: {error}", context.name));
                continue;
            }
        };
        for number in 1..=numbers.ports {
            if config.port.is_some_and(|wanted| wanted != number) {
                continue;
            }
            let port = match context.port(number) {
                Ok(port) => port,
                Err(error) => {
                    seen.push(format!("port {number} of {}: {error}", context.name));
                    continue;
                }
            };
            let gids = context.gids(&port);
            if config.pkey_index >= port.partitions {
                let (index, has) = (config.pkey_index, port.partitions);
                let name = &context.name;
                seen.push(format!(
                    "port {number} of {name} has {has} partitions, none of index {index}"
                ));
                continue;
            }
            match taken(&gids, config.gid_index) {
                Some(gid) if port.active => return Ok(Chosen { context, numbers, port, gid }),
                Some(_) => seen.push(format!("port {number} of {} is down", context.name)),
                None => {
                    let of = config.gid_index.map(|index| format!(" of index {index}"));
                    let of = of.unwrap_or_default();
                    seen.push(format!("port {number} of {} has no GID{of}", context.name));
                }
            }
        }
    }
    if seen.is_empty() {
        seen.push("there is none, or it has no such port".to_owned());
    }
    let reason = format!("no verbs device to use: {}", seen.join(", "));
    Err(LinkError::Unreachable { reason })
}
