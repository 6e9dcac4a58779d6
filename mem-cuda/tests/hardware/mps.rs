//! The Multi-Process Service, started for this test alone.

use crate::gpu::{Memory, device, pattern, read, skip, write};
use crate::kin::{Kin, part, say};
use gapless_mem_cuda::Mps;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The service with folders of its own; it ends with the value.
struct Service {
    pipes: tempfile::TempDir,
    logs: tempfile::TempDir,
}

impl Service {
    fn command(pipes: &Path, logs: &Path) -> Command {
        let mut command = Command::new("nvidia-cuda-mps-control");
        // It would hide devices twice: from the service, and then from its clients by numbers that the service gives.
        command.env_remove("CUDA_VISIBLE_DEVICES");
        command.env("CUDA_MPS_PIPE_DIRECTORY", pipes).env("CUDA_MPS_LOG_DIRECTORY", logs);
        command
    }

    fn start() -> Result<Service, String> {
        let pipes = tempfile::tempdir().map_err(|error| error.to_string())?;
        let logs = tempfile::tempdir().map_err(|error| error.to_string())?;
        let service = Service { pipes, logs };
        let status = Service::command(service.pipes.path(), service.logs.path())
            .arg("-d")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map_err(|error| format!("nvidia-cuda-mps-control cannot be started: {error}"))?;
        if !status.success() {
            return Err(format!("nvidia-cuda-mps-control ended with {status}"));
        }
        Ok(service)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        use std::io::Write as _;
        let quit = Service::command(self.pipes.path(), self.logs.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut quit) = quit else { return };
        if let Some(mut input) = quit.stdin.take() {
            let _ = input.write_all(b"quit -t 5\n");
        }
        let until = Instant::now() + Duration::from_secs(20);
        while matches!(quit.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = quit.kill();
        let _ = quit.wait();
    }
}

#[test]
fn clients_of_the_service_know_it() {
    const TEST: &str = "mps::clients_of_the_service_know_it";
    if part().is_some() {
        match device("MPS") {
            Some(device) => {
                let mut memory = Memory::on(&device, 4096);
                write(&device, memory.region(), &pattern(4096, 3));
                assert!(read(&device, memory.region()) == pattern(4096, 3));
                say(&format!("{:?}", device.mps()));
            }
            None => say("no device"),
        }
        return;
    }
    let Some(device) = device("MPS") else { return };
    if device.mps() != Mps::Off {
        skip("MPS", "a service runs already");
        return;
    }
    let service = match Service::start() {
        Ok(service) => service,
        Err(why) => return skip("MPS", &why),
    };
    let pipes = service.pipes.path().to_str().unwrap();
    let mut client = Kin::start(TEST, "client", &[("CUDA_MPS_PIPE_DIRECTORY", pipes)]);
    let said = client.hear();
    assert!(said == "On" || said == "Likely", "{said}");
    assert_eq!(device.mps(), Mps::Off, "this process is no client");
}
