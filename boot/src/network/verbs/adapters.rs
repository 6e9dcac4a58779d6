//! The adapters of this host, and the transport on one of their ports.

use super::ports::{Port, is_near};
use super::{Manner, VerbsPort};
use gapless_btl::{Btl, LinkError, Secret};
use gapless_btl_ib::{Ib, IbConfig, LinkKind, devices};

/// All ports; those that cannot be used say why.
///
/// # Errors
/// The library is not installed, or the system has no support.
pub(super) fn list(manner: &Manner) -> Result<Vec<Port>, LinkError> {
    let mut all = Vec::new();
    for device in devices(manner.gid_index)? {
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
                    (true, None) => Some(match manner.gid_index {
                        Some(index) => format!("it has no address (GID) of index {index}"),
                        None => "it has no address (GID)".to_owned(),
                    }),
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
    (name, port): (&'static str, &VerbsPort),
    manner: &Manner,
    (job, rank): (&str, u32),
    secret: &Secret,
) -> Result<Box<dyn Btl>, LinkError> {
    let mut config = IbConfig::new(job, rank, secret.clone());
    config.name = name;
    config.device = Some(port.device.clone());
    config.port = Some(port.number);
    config.gid_index = manner.gid_index;
    config.pkey_index = manner.pkey_index.unwrap_or(config.pkey_index);
    config.traffic_class = manner.traffic_class.unwrap_or(config.traffic_class);
    config.service_level = manner.service_level.unwrap_or(config.service_level);
    config.notice = manner.notice.unwrap_or(config.notice);
    Ok(Box::new(Ib::new(config)?))
}
