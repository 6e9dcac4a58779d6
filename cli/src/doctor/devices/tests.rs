use super::*;

fn gpu(reaches: &[u32]) -> DoctorGpu {
    DoctorGpu { name: "H200".into(), capability: (9, 0), mps: false, reaches: reaches.to_vec() }
}

fn with_gpus(gpus: Vec<DoctorGpu>) -> Devices {
    let nvidia = gpus.len();
    Devices { nvidia, cuda: Some(Ok(Cuda { version: (13, 0), gpus })), ..Devices::default() }
}

#[track_caller]
fn says(devices: &Devices, name: &str, state: CheckState, found: &str, mend: &str) {
    let all = all(devices, 2);
    let finding =
        all.iter().find(|finding| finding.check == name).expect("the check says something");
    assert_eq!(finding.state, state, "{finding:?}");
    assert!(finding.found.contains(found), "{finding:?}");
    assert!(finding.mend.as_deref().unwrap_or_default().contains(mend), "{finding:?}");
    assert_eq!(finding.mend.is_some(), state != CheckState::Ok, "{finding:?}");
}

#[test]
fn a_machine_without_devices_is_well() {
    let none = Devices { cuda: Some(Err("no library".into())), ..Devices::default() };
    assert!(all(&none, 64).iter().all(|finding| finding.state == CheckState::Ok));
    says(&none, "CUDA driver", CheckState::Ok, "no NVIDIA GPU", "");
    let read = Devices::read(Path::new("/nonexistent"));
    assert!(read.rdma.is_empty() && read.nvidia == 0 && !read.bridges_known);
}

#[test]
fn what_hinders_gpus_is_told() {
    use CheckState::{Ok as Fine, Problem, Warn};
    let mut one = with_gpus(vec![gpu(&[])]);
    says(&one, "CUDA driver", Fine, "CUDA 13.0, 1 GPU", "");
    says(&one, "MPS", Warn, "off, 1 GPU for 2 ranks", "mps-control -d");
    let two = with_gpus(vec![gpu(&[1]), gpu(&[0])]);
    says(&two, "MPS", Fine, "off", "");
    says(&two, "GPU peers", Fine, "every GPU", "");
    says(&with_gpus(vec![gpu(&[1]), gpu(&[])]), "GPU peers", Warn, "cuda:1 reaches 0 of 1", "topo");
    one.cuda = Some(Ok(Cuda { version: (12, 9), gpus: vec![gpu(&[])] }));
    says(&one, "CUDA driver", Problem, "12.9", "580");
    one.cuda = Some(Err("there is no libcuda.so.1".to_owned()));
    says(&one, "CUDA driver", Problem, "1 GPU, but there is no", "libcuda");
    let old = with_gpus(vec![DoctorGpu { capability: (7, 0), ..gpu(&[]) }]);
    says(&old, "GPU age", Problem, "cuda:0 H200 has 7.0", "CUDA_VISIBLE_DEVICES");
}

#[test]
fn translation_and_redirection_matter_between_devices() {
    use CheckState::{Ok as Fine, Warn};
    let mut devices = with_gpus(vec![gpu(&[1]), gpu(&[0])]);
    devices.translated = 3;
    devices.redirecting = vec!["0000:00:01.0".to_owned(), "0000:00:02.0".to_owned()];
    says(&devices, "IOMMU", Warn, "3 groups", "iommu=pt");
    says(&devices, "PCI bridges", Warn, "2 redirect", "setpci -s 0000:00:01.0");
    devices.cuda = Some(Ok(Cuda { version: (13, 0), gpus: vec![gpu(&[])] }));
    devices.nvidia = 1;
    says(&devices, "IOMMU", Fine, "3 groups", "");
    says(&devices, "PCI bridges", Fine, "2 redirect", "");
}

#[test]
fn network_adapters_need_a_port_and_access() {
    let adapter = Adapter { name: "mlx5_0".into(), active: true, usable: true };
    let with = |adapter| Devices { rdma: vec![adapter], ..Devices::default() };
    says(&with(adapter.clone()), "RDMA", CheckState::Ok, "mlx5_0", "");
    says(
        &with(Adapter { usable: false, ..adapter.clone() }),
        "RDMA",
        CheckState::Warn,
        "opened",
        "--device",
    );
    says(
        &with(Adapter { active: false, ..adapter }),
        "RDMA",
        CheckState::Warn,
        "no active port",
        "ibstat",
    );
}

#[test]
fn devices_are_found_in_files() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, bytes: &[u8]| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    write("sys/class/infiniband/mlx5_0/ports/1/state", b"4: ACTIVE\n");
    write("sys/class/infiniband/mlx5_1/ports/1/state", b"1: DOWN\n");
    write("sys/class/infiniband_verbs/uverbs0/ibdev", b"mlx5_0\n");
    write("dev/infiniband/uverbs0", b"");
    write("sys/kernel/iommu_groups/0/type", b"DMA-FQ\n");
    write("sys/kernel/iommu_groups/1/type", b"identity\n");
    write("sys/bus/pci/devices/0000:00:01.0/class", b"0x060400\n");
    write("sys/bus/pci/devices/0000:00:01.0/config", &config(0b100));
    write("sys/bus/pci/devices/0000:00:02.0/class", b"0x060400\n");
    write("sys/bus/pci/devices/0000:00:02.0/config", &config(0b1));
    write("sys/bus/pci/devices/0000:00:03.0/class", b"0x020000\n");
    let found = Devices::read(root.path());
    let adapters: Vec<_> =
        found.rdma.iter().map(|c| (c.name.as_str(), c.active, c.usable)).collect();
    assert_eq!(adapters, [("mlx5_0", true, true), ("mlx5_1", false, false)]);
    assert_eq!((found.translated, found.bridges_known), (1, true));
    assert_eq!(found.redirecting, ["0000:00:01.0"]);
}

/// A configuration space with two extended capabilities, the second of them ACS with this control register.
fn config(control: u16) -> Vec<u8> {
    let mut config = vec![0; 4096];
    config[0x100..0x104].copy_from_slice(&(0x0001_u32 | 1 << 16 | 0x148 << 20_u32).to_le_bytes());
    config[0x148..0x14c].copy_from_slice(&(0x000d_u32 | 1 << 16).to_le_bytes());
    config[0x14e..0x150].copy_from_slice(&control.to_le_bytes());
    config
}

#[test]
fn configuration_spaces_are_read_with_care() {
    assert_eq!(redirects(&config(0b100)), Some(true));
    assert_eq!(redirects(&config(0b1000)), Some(true));
    assert_eq!(redirects(&config(0b10011)), Some(false));
    assert_eq!(redirects(&vec![0; 4096]), Some(false));
    // What others than root may read has no extended part.
    assert_eq!(redirects(&[0; 64]), None);
    // A list that names itself, and one that leads out of the space.
    let mut circle = vec![0; 4096];
    circle[0x100..0x104].copy_from_slice(&(0x0001_u32 | 0x100 << 20_u32).to_le_bytes());
    assert_eq!(redirects(&circle), Some(false));
    assert_eq!(redirects(&config(0)[..0x148]), None);
}
