//! The packet by where the processors and the network's adapter are (Aji et al. 2012, §III.B): simulated, so that one
//! NUMA node is enough. What `/sys` tells is pretended, and measured rates are throttled as the paper saw it:
//! the bus 2.5 times where memory and device are in different nodes, the network by 27 %.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use gapless::network::{PciAddress, nearness};
use gapless_report::Bytes;

use super::packet::{Rates, choose, throttled};

const BUS_SLOWER: f64 = 2.5;
const NETWORK_SLOWER: f64 = 1.0 / 0.73;

const DEVICE: PciAddress = PciAddress { domain: 0, bus: 0x18, device: 0, function: 0 };

/// A folder like `/sys` of two nodes with two processors each: the device is in node 0, an adapter in each.
fn pretend(system: &Path) -> std::io::Result<()> {
    fs::create_dir_all(system.join("bus/pci/devices"))?;
    for (node, way) in [(0, "pci0000:16/0000:18:00.0"), (1, "pci0000:80/0000:81:00.0")] {
        let group = system.join(format!("devices/system/node/node{node}"));
        fs::create_dir_all(&group)?;
        fs::write(group.join("cpulist"), format!("{}-{}", 2 * node, 2 * node + 1))?;
        let root = system.join("devices").join(way);
        let adapter = root.join("0000:19:00.0");
        fs::create_dir_all(&adapter)?;
        fs::write(root.join("numa_node"), node.to_string())?;
        let interface = system.join(format!("class/net/eth{node}"));
        fs::create_dir_all(&interface)?;
        symlink(adapter, interface.join("device"))?;
    }
    let device = system.join("devices/pci0000:16/0000:18:00.0");
    symlink(device, system.join("bus/pci/devices").join(DEVICE.to_string()))
}

/// The same rates with packets in between: what a packet takes grows evenly from one to the next.
fn refined(rates: &Rates) -> Vec<(u64, f64)> {
    const STEPS: u64 = 8;
    let time = |(bytes, rate): (u64, f64)| bytes as f64 / rate;
    let between = |pair: &[(u64, f64)]| {
        let (first, last) = (pair[0], pair[1]);
        (1..=STEPS).map(move |step| {
            let bytes = first.0 + (last.0 - first.0) * step / STEPS;
            let seconds = time(first) + (time(last) - time(first)) * step as f64 / STEPS as f64;
            (bytes, bytes as f64 / seconds)
        })
    };
    let first = rates.first().copied();
    let between: Vec<_> = rates.windows(2).map(between).collect();
    first.into_iter().chain(between.into_iter().flatten()).collect()
}

/// A line for each placement: what is told of it, and which packet throttled rates ask for.
pub(super) fn simulated(bus: &Rates, network: &Rates) -> std::io::Result<String> {
    let (system, bus, network) = (tempfile::tempdir()?, refined(bus), refined(network));
    pretend(system.path())?;
    let mut text = String::new();
    for (processors, adapter) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let own = [2 * processors, 2 * processors + 1];
        let told = nearness(system.path(), &own, &format!("eth{adapter}"), DEVICE);
        let slower = |apart: bool, times: f64| if apart { times } else { 1.0 };
        // Messages pass memory of the processors' node.
        let bus = throttled(&bus, slower(processors != 0, BUS_SLOWER));
        let network = throttled(&network, slower(processors != adapter, NETWORK_SLOWER));
        let Some(packet) = choose(&bus, &network) else { continue };
        let told = told.map_or("unknown".to_owned(), |it| format!("{it:?}").to_lowercase());
        text += &format!(
            "simulated: device in node 0, processors in node {processors}, adapter in node {adapter}: {told}; packet: {}\n",
            Bytes(packet.bytes)
        );
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_lie_between_shorten_packets() {
        let rates = |best: f64, overhead: f64| -> Vec<(u64, f64)> {
            let rate = |bytes: u64| bytes as f64 / (overhead + bytes as f64 / best);
            (12..25).map(|shift| (1 << shift, rate(1 << shift))).collect()
        };
        // The bus is the slower channel, once it is throttled.
        let text = simulated(&rates(24e9, 5e-6), &rates(12e9, 20e-6)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        let told = |line: &str| line.contains(": far;");
        assert_eq!([0, 1, 2, 3].map(|at: usize| told(lines[at])), [false, true, true, true], "{text}");
        let packet = |at: usize| lines[at].rsplit(": ").next().unwrap().to_owned();
        let all = [0, 1, 2, 3].map(packet);
        assert!(all[1..].iter().all(|it| *it != all[0]), "{text}");
    }
}
