//! GPUs, network adapters and the bridges between them: what there is, and what hinders it.

use super::facts::text;
use super::{CheckState, Finding};
use rustix::fs::{Access, access};
use std::fs;
use std::path::{Path, PathBuf};

/// The CUDA version that the kernels are built with: drivers of series 580.
const CUDA_NEEDED: (u32, u32) = (13, 0);

/// An RDMA network adapter.
#[derive(Clone, Debug, Default)]
pub(super) struct Adapter {
    pub(super) name: String,
    /// Whether a port of it is active.
    pub(super) active: bool,
    /// Whether this process may use it.
    pub(super) usable: bool,
}

/// A CUDA device.
#[derive(Clone, Debug, Default)]
pub(super) struct DoctorGpu {
    pub(super) name: String,
    pub(super) capability: (u32, u32),
    /// Processes use it at the same time.
    pub(super) mps: bool,
    /// The devices whose memory it reaches.
    pub(super) reaches: Vec<u32>,
}

/// What the CUDA driver says.
#[derive(Clone, Debug, Default)]
pub(super) struct Cuda {
    pub(super) version: (u32, u32),
    pub(super) gpus: Vec<DoctorGpu>,
}

/// What there is besides processors and memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Devices {
    pub(super) rdma: Vec<Adapter>,
    /// NVIDIA devices that the system has, whether the driver's library is there or not.
    pub(super) nvidia: usize,
    /// What the driver's library says, or why it says nothing; `None` if this build does not ask.
    pub(super) cuda: Option<Result<Cuda, String>>,
    /// Groups of devices whose addresses an IOMMU translates.
    pub(super) translated: usize,
    /// Bridges that send traffic between devices below them up to the processor.
    pub(super) redirecting: Vec<String>,
    /// Whether bridges' settings could be read (by root alone).
    pub(super) bridges_known: bool,
}

impl Devices {
    pub(super) fn read(root: &Path) -> Devices {
        let bridges = bridges(root);
        Devices {
            rdma: adapters(root),
            nvidia: entries(&root.join("proc/driver/nvidia/gpus")).len(),
            cuda: cuda(),
            translated: entries(&root.join("sys/kernel/iommu_groups"))
                .iter()
                .filter(|group| text(&group.join("type")).is_some_and(|t| t.starts_with("DMA")))
                .count(),
            bridges_known: bridges.iter().any(|(_, redirects)| redirects.is_some()),
            redirecting: bridges
                .into_iter()
                .filter_map(|(name, redirects)| (redirects == Some(true)).then_some(name))
                .collect(),
        }
    }

    fn gpus(&self) -> &[DoctorGpu] {
        match &self.cuda {
            Some(Ok(cuda)) => &cuda.gpus,
            _ => &[],
        }
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn adapters(root: &Path) -> Vec<Adapter> {
    let verbs = entries(&root.join("sys/class/infiniband_verbs"));
    let usable = |adapter: &str| {
        let of_adapter = |path: &&PathBuf| text(&path.join("ibdev")).as_deref() == Some(adapter);
        let device = verbs.iter().find(of_adapter).map(|path| name(path));
        device.is_some_and(|device| {
            let path = root.join("dev/infiniband").join(device);
            access(path, Access::READ_OK | Access::WRITE_OK).is_ok()
        })
    };
    let adapter = |path: PathBuf| {
        let ports = entries(&path.join("ports"));
        let active = ports
            .iter()
            .any(|port| text(&port.join("state")).is_some_and(|s| s.contains("ACTIVE")));
        let name = name(&path);
        Adapter { active, usable: usable(&name), name }
    };
    entries(&root.join("sys/class/infiniband")).into_iter().map(adapter).collect()
}

/// The PCI bridges, and whether each redirects; `None` where that cannot be read.
fn bridges(root: &Path) -> Vec<(String, Option<bool>)> {
    let devices = entries(&root.join("sys/bus/pci/devices"));
    let bridge = |path: PathBuf| {
        let class = text(&path.join("class"))?;
        let redirects = || redirects(&fs::read(path.join("config")).ok()?);
        class.starts_with("0x0604").then(|| (name(&path), redirects()))
    };
    devices.into_iter().filter_map(bridge).collect()
}

/// Whether Access Control Services of this configuration space redirect requests or completions between devices (PCI
/// Express Base Specification, ACS Extended Capability); `None` if the extended part could not be read.
fn redirects(config: &[u8]) -> Option<bool> {
    /// The capability's number, where its control register is, and that register's bits of redirection.
    const ACS: (u32, usize, u16) = (0x000d, 6, 0b1100);
    let word = |at: usize| Some(u32::from_le_bytes(config.get(at..at + 4)?.try_into().ok()?));
    let mut at = 0x100;
    // There is no room for more capabilities than these; a list that runs in circles ends, too.
    for _ in 0..(4096 - 256) / 8 {
        let header = word(at)?;
        if header & 0xffff == ACS.0 {
            let control = config.get(at + ACS.1..at + ACS.1 + 2)?;
            return Some(u16::from_le_bytes(control.try_into().ok()?) & ACS.2 != 0);
        }
        at = (header >> 20) as usize;
        if at < 0x100 {
            break;
        }
    }
    Some(false)
}

#[cfg(feature = "cuda")]
fn cuda() -> Option<Result<Cuda, String>> {
    use gapless_mem::Device;
    use gapless_mem_cuda::{CudaDriver, Mps};
    let driver = match CudaDriver::load() {
        Ok(driver) => driver,
        Err(error) => return Some(Err(error.to_string())),
    };
    let one = |ordinal: u32| {
        let device = driver.device(ordinal).map_err(|error| error.to_string())?;
        let others = (0..driver.devices()).filter(|&other| other != ordinal);
        Ok(DoctorGpu {
            name: device.properties().name.clone(),
            capability: device.capability(),
            mps: device.mps() != Mps::Off,
            reaches: others.filter(|&other| device.can_access(other) == Ok(true)).collect(),
        })
    };
    let gpus: Result<Vec<DoctorGpu>, String> = (0..driver.devices()).map(one).collect();
    Some(gpus.map(|gpus| Cuda { version: driver.version(), gpus }))
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Option<Result<Cuda, String>> {
    None
}

/// What all checks of devices find.
pub(super) fn all(devices: &Devices, ranks: u32) -> Vec<Finding> {
    let mut findings = vec![driver(devices)];
    findings.extend(capability(devices));
    findings.extend(sharing(devices, ranks));
    findings.extend(reach(devices));
    findings.extend(iommu(devices));
    findings.extend(acs(devices));
    findings.extend(network(devices));
    findings
}

fn driver(devices: &Devices) -> Finding {
    let why = "messages in GPU memory go through the CUDA driver";
    let finding = |found: String| Finding::ok("CUDA driver", why, found);
    match &devices.cuda {
        None => finding("this build does not use CUDA".to_owned()),
        Some(Ok(cuda)) => {
            let (major, minor) = cuda.version;
            let count = cuda.gpus.len();
            let found = finding(format!("CUDA {major}.{minor}, {count} GPU{}", plural(count)));
            match count > 0 && cuda.version < CUDA_NEEDED {
                true => found.but(CheckState::Problem, "a driver of series 580 or later"),
                false => found,
            }
        }
        Some(Err(error)) if devices.nvidia > 0 => {
            let found = format!("{} GPU{}, but {error}", devices.nvidia, plural(devices.nvidia));
            finding(found).but(
                CheckState::Problem,
                "install libcuda.so.1 of the driver's version (docker run --gpus all)",
            )
        }
        Some(Err(_)) => finding("no NVIDIA GPU here".to_owned()),
    }
}

fn capability(devices: &Devices) -> Option<Finding> {
    let gpus = devices.gpus();
    let (number, old) = gpus.iter().enumerate().find(|(_, gpu)| gpu.capability < (8, 0))?;
    let why = "kernels are built for compute capability 8.0 and later";
    let (major, minor) = old.capability;
    let found = format!("cuda:{number} {} has {major}.{minor}", old.name);
    let mend = "CUDA_VISIBLE_DEVICES without it";
    Some(Finding::ok("GPU age", why, found).but(CheckState::Problem, mend))
}

fn sharing(devices: &Devices, ranks: u32) -> Option<Finding> {
    let gpus = devices.gpus();
    let first = gpus.first()?;
    let why = "without MPS, processes on one GPU take turns: messages between them wait for turns";
    let found = format!(
        "{}, {} GPU{} for {ranks} rank{}",
        if first.mps { "on" } else { "off" },
        gpus.len(),
        plural(gpus.len()),
        plural(ranks as usize)
    );
    let finding = Finding::ok("MPS", why, found);
    Some(match !first.mps && ranks as usize > gpus.len() {
        true => finding.but(CheckState::Warn, "nvidia-cuda-mps-control -d"),
        false => finding,
    })
}

fn reach(devices: &Devices) -> Option<Finding> {
    let gpus = devices.gpus();
    let all = gpus.len().checked_sub(1).filter(|&others| others > 0)?;
    let why = "messages between GPUs that do not reach each other go through the host's memory";
    let cut_off = gpus.iter().position(|gpu| gpu.reaches.len() < all);
    Some(match cut_off {
        None => Finding::ok("GPU peers", why, "every GPU reaches every other"),
        Some(number) => {
            let reached = gpus[number].reaches.len();
            let found = format!("cuda:{number} reaches {reached} of {all} others");
            Finding::ok("GPU peers", why, found).but(
                CheckState::Warn,
                "nvidia-smi topo -p2p r (says why); one container with all GPUs",
            )
        }
    })
}

/// Whether there are devices that could write to each other.
fn has_peers(devices: &Devices) -> bool {
    devices.gpus().len().max(devices.nvidia) + devices.rdma.len() > 1
}

fn iommu(devices: &Devices) -> Option<Finding> {
    let why = "an IOMMU that translates slows down GPUs and network cards that write to each other";
    let found = match devices.translated {
        0 => "translates nothing".to_owned(),
        groups => format!("translates for {groups} group{} of devices", plural(groups)),
    };
    let finding = Finding::ok("IOMMU", why, found);
    Some(match devices.translated > 0 && has_peers(devices) {
        true => finding.but(CheckState::Warn, "iommu=pt (on the kernel's command line)"),
        false => finding,
    })
}

fn acs(devices: &Devices) -> Option<Finding> {
    let why = "bridges that redirect send what devices write to each other through the processor";
    let finding = |found: String| Finding::ok("PCI bridges", why, found);
    match (devices.redirecting.as_slice(), devices.bridges_known) {
        ([], true) => Some(finding("redirect nothing".to_owned())),
        ([], false) => has_peers(devices).then(|| finding("only root can read them".to_owned())),
        ([first, ..], _) => {
            let count = devices.redirecting.len();
            let found = finding(format!("{count} redirect{}", if count == 1 { "s" } else { "" }));
            Some(match has_peers(devices) {
                true => found.but(
                    CheckState::Warn,
                    format!("sudo setpci -s {first} ECAP_ACS+6.w=0000 (each bridge)"),
                ),
                false => found,
            })
        }
    }
}

fn network(devices: &Devices) -> Option<Finding> {
    let why = "messages between hosts go by RDMA (feature ib) if a port is active and the device may be opened";
    if devices.rdma.is_empty() {
        return Some(Finding::ok("RDMA", why, "no card here"));
    }
    let names: Vec<&str> = devices.rdma.iter().map(|adapter| adapter.name.as_str()).collect();
    let finding = |more: &str| Finding::ok("RDMA", why, format!("{}{more}", names.join(" ")));
    let find = |bad: fn(&Adapter) -> bool| devices.rdma.iter().find(|adapter| bad(adapter));
    Some(match (find(|adapter| !adapter.usable), find(|adapter| !adapter.active)) {
        (Some(adapter), _) => finding(&format!("; {} may not be opened", adapter.name))
            .but(CheckState::Warn, "docker run --device /dev/infiniband, or group rdma"),
        (None, Some(adapter)) => finding(&format!("; {} has no active port", adapter.name))
            .but(CheckState::Warn, format!("ibstat {}; rdma link", adapter.name)),
        (None, None) => finding(""),
    })
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests;
