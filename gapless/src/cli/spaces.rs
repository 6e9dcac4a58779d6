//! Which memory there is to send from, and why other memory is not there.

use super::failure::Failure;
use std::path::Path;

/// Whether a space of this name can be used.
pub(super) fn check(space: &str) -> Result<(), Failure> {
    let refuse = |why: String| Failure::NoSpace { space: space.to_owned(), why };
    match space.split(':').next().unwrap_or_default() {
        "host" if space == "host" => Ok(()),
        "cuda" => Err(refuse(without_cuda())),
        "opencl" => Err(refuse(without_opencl())),
        _ => Err(refuse("spaces are host, cuda and opencl".to_owned())),
    }
}

/// Why there is no CUDA memory.
pub(super) fn without_cuda() -> String {
    let driver = match Path::new("/proc/driver/nvidia/version").exists() {
        true => "this machine has NVIDIA's driver",
        false => "nor has this machine NVIDIA's driver",
    };
    format!("this build has no CUDA engine; {driver}")
}

/// Why there is no OpenCL memory.
pub(super) fn without_opencl() -> String {
    let vendors =
        std::fs::read_dir("/etc/OpenCL/vendors").map_or(0, |folder| folder.flatten().count());
    let platforms = match vendors {
        0 => "nor has this machine an OpenCL platform".to_owned(),
        1 => "this machine has an OpenCL platform".to_owned(),
        many => format!("this machine has {many} OpenCL platforms"),
    };
    format!("this build has no OpenCL engine; {platforms}")
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        assert!(check("host").is_ok());
        for space in ["cuda", "cuda:1", "opencl", "moon", "", "host:1"] {
            let text = check(space).unwrap_err().to_string();
            assert!(text.starts_with(&format!("space {space} is not available: ")), "{text}");
            assert!(!text.contains('\n'));
        }
        assert!(check("cuda:0").unwrap_err().to_string().contains("no CUDA engine"));
    }
}
