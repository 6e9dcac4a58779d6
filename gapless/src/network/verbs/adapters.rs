//! The adapters of this host, and the transport on one of their ports.

use super::VerbsPort;
use super::ports::{Port, is_near};
use gapless_btl::{Btl, LinkError, Secret};
use gapless_btl_ib::{Ib, IbConfig, LinkKind, devices};

/// All ports; those that cannot be used say why.
///
/// # Errors
/// The library is not installed, or the system has no support.
pub(super) fn list() -> Result<Vec<Port>, LinkError> {
    let mut all = Vec::new();
    for device in devices()? {
        let name = device.name;
        if let Some(problem) = device.problem {
            let shown = VerbsPort {
                device: name,
                number: 0,
                description: "not known".to_owned(),
                addresses: Vec::new(),
                passed_over: Some(problem.to_string()),
            };
            all.push(Port { shown, kind: "", gid: None, mbit_s: 0, near: true });
            continue;
        }
        let near = is_near(&name);
        all.extend(device.ports.into_iter().map(|port| {
            let shown = VerbsPort {
                device: name.clone(),
                number: port.number,
                description: port.to_string(),
                passed_over: match (port.active, &port.gid) {
                    (false, _) => Some("it has no link".to_owned()),
                    (true, None) => Some("it has no address (GID)".to_owned()),
                    (true, Some(_)) => None,
                },
                addresses: port.gids,
            };
            let kind = match port.kind {
                LinkKind::InfiniBand => "infiniband",
                LinkKind::Ethernet => "ethernet",
            };
            Port { shown, kind, gid: port.gid_bytes, mbit_s: port.mbit_s, near }
        }));
    }
    Ok(all)
}

/// Opens the transport on a port, under this name.
///
/// # Errors
/// The device, or the system, refuses.
pub(super) fn open(
    name: &'static str,
    port: &VerbsPort,
    job: &str,
    rank: u32,
    secret: &Secret,
) -> Result<Box<dyn Btl>, LinkError> {
    let mut config = IbConfig::new(job, rank, secret.clone());
    config.name = name;
    config.device = Some(port.device.clone());
    config.port = Some(port.number);
    Ok(Box::new(Ib::new(config)?))
}
