//! Whether two processes use a GPU at the same time (the Multi-Process Service) or in turns.
//!
//! A process is a client of the service if the service's pipe is where `CUDA_MPS_PIPE_DIRECTORY` says, by
//! default `/tmp/nvidia-mps`; so each pair of processes is told where to look.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gapless_mem_cuda::CudaDriver;

use crate::error::Failure;
use crate::processes::Variable;

/// The service's control program.
const CONTROL: &str = "nvidia-cuda-mps-control";
/// Where clients look for its pipe.
const PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// Where it writes what happens.
const LOGS: &str = "CUDA_MPS_LOG_DIRECTORY";
/// Where clients look if nothing else is said.
const USUAL: &str = "/tmp/nvidia-mps";

/// The service, if there is one.
pub struct Service {
    pipes: PathBuf,
    /// Ours, to be ended; with the folder of its pipes.
    own: Option<tempfile::TempDir>,
}

impl Service {
    /// The service that runs already; or, if `start` says so, one of our own.
    ///
    /// # Errors
    /// Why there is none, in one line.
    pub fn find(start: bool) -> Result<Service, String> {
        let usual =
            std::env::var_os(PIPES).map_or_else(|| Path::new(USUAL).to_owned(), PathBuf::from);
        if usual.join("control").exists() {
            return Ok(Service { pipes: usual, own: None });
        }
        if !start {
            return Err("no Multi-Process Service runs (--start-mps starts one)".to_owned());
        }
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let started = Command::new(CONTROL)
            .arg("-d")
            // It would hide devices twice: clients count those that the service shows.
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env(PIPES, folder.path())
            .env(LOGS, folder.path())
            .stdin(Stdio::null())
            .status();
        match started {
            Ok(status) if status.success() => {
                Ok(Service { pipes: folder.path().to_owned(), own: Some(folder) })
            }
            Ok(status) => Err(format!("{CONTROL} ended with {status}")),
            Err(error) => Err(format!("{CONTROL}: {error}")),
        }
    }

    /// For so many processes that exchange messages between GPUs: none if each has a GPU of its own, else the service
    /// that runs, or one of our own if `start` says so.
    ///
    /// # Errors
    /// No GPU; processes must share one, and there is no service.
    pub fn for_ranks(ranks: u32, start: bool) -> Result<Option<Service>, Failure> {
        let no_gpu = |why: String| Failure::NoGpu { why };
        let devices = CudaDriver::load().map_err(|why| no_gpu(why.to_string()))?.devices();
        if devices >= ranks {
            return Ok(None);
        }
        let found = match devices {
            0 => Err("none is there".to_owned()),
            _ => Service::find(start),
        };
        let why = |why| no_gpu(format!("{devices} devices for {ranks} processes: {why}"));
        found.map(Some).map_err(why)
    }

    /// What makes processes its clients.
    #[must_use]
    pub fn environment(&self) -> Vec<Variable> {
        vec![(PIPES.into(), self.pipes.clone().into())]
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let Some(folder) = &self.own else { return };
        let asked = Command::new(CONTROL)
            .env(PIPES, folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        let ended = asked.and_then(|mut child| {
            if let Some(mut input) = child.stdin.take() {
                input.write_all(b"quit -t 2\n")?;
            }
            child.wait()
        });
        if let Err(error) = ended {
            eprintln!("figures: the Multi-Process Service was not ended: {error}");
        }
    }
}

/// What keeps processes from being clients of any service.
///
/// # Errors
/// A folder that cannot be made.
pub fn without(folder: &Path) -> Result<Vec<Variable>, Failure> {
    let nowhere = folder.join("no-service");
    std::fs::create_dir_all(&nowhere).map_err(Failure::io("make", &nowhere))?;
    Ok(vec![(PIPES.into(), nowhere.into())])
}
