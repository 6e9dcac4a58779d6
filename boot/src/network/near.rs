//! Which adapters of networks are near to a device, as the system tells in `/sys`: how much of the way through the bridges
//! of PCI Express both have in common, and which NUMA node they belong to.

use crate::processors::Processors;
use gapless_bml::{Level, Nearness};
use gapless_mem::PciAddress;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// What lies between the adapter of an interface and a device; `system` is a folder like `/sys`. `None` if the system does
/// not tell, as of interfaces without an adapter.
pub(super) fn nearness(system: &Path, interface: &str, device: PciAddress) -> Option<Nearness> {
    let adapter = system.join("class/net").join(interface).join("device").canonicalize().ok()?;
    let device = system.join("bus/pci/devices").join(device.to_string()).canonicalize().ok()?;
    let ways = [way(&adapter), way(&device)];
    let common = ways[0].iter().zip(&ways[1]).take_while(|(one, other)| one == other).count();
    match common {
        // Without the root's own name.
        2.. => Some(Nearness::Switch),
        1 => Some(Nearness::Root),
        _ => match [node(&adapter)?, node(&device)?] {
            [one, other] if one == other => Some(Nearness::Node),
            _ => Some(Nearness::Far),
        },
    }
}

/// The same for a process that is kept on these processors, whose memory its messages pass: far, too, if they are in
/// another NUMA node than the device.
pub(super) fn nearness_from(
    system: &Path,
    processors: &[usize],
    interface: &str,
    device: PciAddress,
) -> Option<Nearness> {
    let own = Processors::of(&system.join("devices/system")).common(Level::Numa, processors);
    let folder = system.join("bus/pci/devices").join(device.to_string()).canonicalize().ok();
    let theirs = folder.and_then(|folder| node(&folder));
    let apart = own.zip(theirs).is_some_and(|(own, theirs)| Ok(theirs) != own.number.try_into());
    if apart { Some(Nearness::Far) } else { nearness(system, interface, device) }
}

/// The names of the bridges that lead to a device, the root's first: `pci0000:16`, `0000:16:01.0`, …
fn way(device: &Path) -> Vec<OsString> {
    let is_root = |name: &OsStr| name.to_string_lossy().starts_with("pci");
    let names = device.iter().skip_while(|name| !is_root(name));
    names.map(OsStr::to_owned).collect()
}

/// The NUMA node of a device, or of the next above it that has one.
fn node(device: &Path) -> Option<u32> {
    let number = |folder: &Path| -> Option<u32> {
        let file: PathBuf = folder.join("numa_node");
        // −1 where there is none.
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    };
    device.ancestors().find_map(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    const GPU: PciAddress = PciAddress { domain: 0, bus: 0x18, device: 0, function: 0 };

    /// A tree like `/sys`, with these interfaces and the GPU.
    fn system(interfaces: &[(&str, &str, i32)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        let gpu = at("devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0");
        fs::create_dir_all(&gpu).unwrap();
        fs::write(gpu.join("numa_node"), "0\n").unwrap();
        fs::create_dir_all(at("bus/pci/devices")).unwrap();
        symlink(&gpu, at("bus/pci/devices/0000:18:00.0")).unwrap();
        for (name, path, node) in interfaces {
            let adapter = at("devices").join(path);
            fs::create_dir_all(&adapter).unwrap();
            fs::write(adapter.join("numa_node"), format!("{node}\n")).unwrap();
            fs::create_dir_all(at("class/net").join(name)).unwrap();
            symlink(&adapter, at("class/net").join(name).join("device")).unwrap();
        }
        fs::create_dir_all(at("class/net/veth0")).unwrap();
        folder
    }

    #[test]
    fn adapters_below_the_same_bridge_are_nearest() {
        let system = system(&[
            ("beside", "pci0000:16/0000:16:01.0/0000:17:01.0/0000:19:00.0", 0),
            ("root", "pci0000:16/0000:16:02.0/0000:20:00.0", 0),
            ("node", "pci0000:40/0000:40:01.0/0000:41:00.0", 0),
            ("far", "pci0000:80/0000:80:01.0/0000:81:00.0", 1),
            ("unknown", "pci0000:c0/0000:c0:01.0", -1),
            ("virtual", "pci0000:40/0000:40:02.0/virtio3", 0),
        ]);
        let of = |name| nearness(system.path(), name, GPU);
        assert_eq!(of("beside"), Some(Nearness::Switch));
        assert_eq!(of("root"), Some(Nearness::Root));
        assert_eq!(of("node"), Some(Nearness::Node));
        assert_eq!(of("far"), Some(Nearness::Far));
        assert_eq!(of("virtual"), Some(Nearness::Node));
        assert_eq!([of("unknown"), of("veth0"), of("nothing")], [None; 3]);
        let other = PciAddress { bus: 0x99, ..GPU };
        assert_eq!(nearness(system.path(), "beside", other), None);
    }

    #[test]
    fn processors_of_another_node_are_far_from_the_device() {
        let system = system(&[
            ("beside", "pci0000:16/0000:16:01.0/0000:17:01.0/0000:19:00.0", 0),
            ("far", "pci0000:80/0000:80:01.0/0000:81:00.0", 1),
        ]);
        for (number, list) in [(0, "0-1"), (1, "2-3")] {
            let node = system.path().join(format!("devices/system/node/node{number}"));
            fs::create_dir_all(&node).unwrap();
            fs::write(node.join("cpulist"), list).unwrap();
        }
        let of = |processors: &[usize], name| nearness_from(system.path(), processors, name, GPU);
        assert_eq!(of(&[0, 1], "beside"), Some(Nearness::Switch));
        assert_eq!(of(&[1], "far"), Some(Nearness::Far));
        assert_eq!(of(&[2], "beside"), Some(Nearness::Far));
        assert_eq!(of(&[3], "nothing"), Some(Nearness::Far));
        // Kept nowhere.
        assert_eq!(of(&[0, 3], "beside"), Some(Nearness::Switch));
        assert_eq!(of(&[0], "nothing"), None);
    }

    #[test]
    fn the_node_is_the_one_of_the_next_bridge_that_has_one() {
        let system = system(&[("virtual", "pci0000:80/0000:80:02.0", 1)]);
        let adapter = system.path().join("devices/pci0000:80/0000:80:02.0/virtio3");
        fs::create_dir_all(&adapter).unwrap();
        let link = system.path().join("class/net/virtual/device");
        fs::remove_file(&link).unwrap();
        symlink(&adapter, &link).unwrap();
        assert_eq!(nearness(system.path(), "virtual", GPU), Some(Nearness::Far));
    }
}
