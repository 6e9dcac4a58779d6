//! Whether processes share the device at the same time (the Multi-Process Service), or take turns.
//!
//! It decides how transfers of many processes on one GPU are best done (ceilings differ by a factor
//! of up to 75), and whether kernels may wait for kernels of other processes.
//!
//! Drivers from CUDA 12.5 on say so themselves, for the contexts of the asking process
//! (`CU_DEVICE_ATTRIBUTE_MPS_ENABLED`). Older ones do not; there a process becomes a client of the
//! service if the service's control pipe is where clients look for it: in the folder named by
//! `CUDA_MPS_PIPE_DIRECTORY`, by default `/tmp/nvidia-mps`.

use std::path::{Path, PathBuf};

/// How processes share a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mps {
    /// At the same time: this process is a client of the service.
    On,
    /// In turns.
    Off,
    /// The driver does not say, and a service's pipe is there: probably at the same time.
    Likely,
}

impl Mps {
    /// What the driver's answer (`None`: it does not know the question) and the pipe's presence mean.
    pub(crate) fn of(driver: Option<bool>, pipe: bool) -> Mps {
        match (driver, pipe) {
            (Some(true), _) => Mps::On,
            (Some(false), _) | (None, false) => Mps::Off,
            (None, true) => Mps::Likely,
        }
    }
}

/// Where clients look for the service.
fn pipe_folder(variable: Option<std::ffi::OsString>) -> PathBuf {
    variable
        .filter(|value| !value.is_empty())
        .map_or_else(|| Path::new("/tmp/nvidia-mps").to_owned(), PathBuf::from)
}

/// Whether the service's pipe is there.
pub(crate) fn pipe_is_there() -> bool {
    pipe_folder(std::env::var_os("CUDA_MPS_PIPE_DIRECTORY")).join("control").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_knows_best() {
        assert_eq!(Mps::of(Some(true), false), Mps::On);
        assert_eq!(Mps::of(Some(false), true), Mps::Off);
        assert_eq!(Mps::of(None, true), Mps::Likely);
        assert_eq!(Mps::of(None, false), Mps::Off);
    }

    #[test]
    fn the_pipe_is_where_clients_look() {
        assert_eq!(pipe_folder(None), Path::new("/tmp/nvidia-mps"));
        assert_eq!(pipe_folder(Some("".into())), Path::new("/tmp/nvidia-mps"));
        assert_eq!(pipe_folder(Some("/run/mps".into())), Path::new("/run/mps"));
    }
}
