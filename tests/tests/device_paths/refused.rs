//! Memory that cannot be shared, at either end: messages use other protocols, and a warning comes once.

use crate::gear::Kind;
use crate::protocols::{applies, every_protocol_as, every_protocol_with, extent};
use gapless::Protocol;
use gapless_btl_testkit::conformance::skip;
use gapless_tests::launcher::Member;

/// What is said when memory of ours cannot be shared, and when a peer's cannot be mapped.
const WARNINGS: [&str; 2] = ["cannot be shared with", "cannot be mapped here"];

/// Every protocol, on memory that cannot be shared; a rank warns of it once in the life of a world.
pub(crate) fn falls_back(test: &str, kind: Kind) {
    if let Some(member) = Member::of_launcher() {
        return every_protocol_as(member);
    }
    let rows = every_protocol_with(test, kind, extent(kind), applies, |_, _| {});
    let warned = |row: &&String| row.starts_with("warned:");
    let warned: Vec<&String> = rows.iter().filter(warned).collect();
    let worlds = Protocol::ALL.len();
    for words in WARNINGS {
        let times = warned.iter().filter(|row| row.contains(words)).count();
        assert!(times <= worlds, "{test}: said {times} times by {worlds} worlds: {warned:#?}");
    }
    let any = |row: &&String| WARNINGS.iter().any(|words| row.contains(words));
    assert!(warned.iter().any(any), "{test}: nothing was said: {warned:#?}");
}

/// Few messages, where start-up takes most of the time, or ranks take turns.
const FEW: [u64; 3] = [4, 1 << 20, 8 << 20];

/// Each rank sees one device, by the same number, and they are different ones.
pub(crate) fn other_numbers(test: &str, kind: Kind) {
    if let Some(member) = Member::of_launcher() {
        return every_protocol_as(member);
    }
    every_protocol_with(test, kind, FEW, always_possible, |rank, command| {
        command.env("CUDA_VISIBLE_DEVICES", rank.to_string());
    });
}

/// What needs no shared device memory.
fn always_possible(_: Kind, protocol: Protocol) -> bool {
    matches!(protocol, Protocol::Eager | Protocol::Pipeline | Protocol::Local)
}

/// One rank is a client of the Multi-Process Service, the other is not; or both are.
pub(crate) fn beside_mps(test: &str, kind: Kind) {
    if let Some(member) = Member::of_launcher() {
        return every_protocol_as(member);
    }
    let service = match mps::Service::start() {
        Ok(service) => service,
        Err(why) => return skip(test, &why),
    };
    for clients in [vec![0, 1], vec![1]] {
        println!("{test}: clients of the service: {clients:?}");
        every_protocol_with(test, kind, FEW, always_possible, |rank, command| {
            if clients.contains(&rank) {
                command.env("CUDA_MPS_PIPE_DIRECTORY", service.pipes());
            }
        });
    }
}

mod mps {
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    /// The service with folders of its own; it ends with the value.
    pub(super) struct Service {
        pipes: tempfile::TempDir,
        logs: tempfile::TempDir,
    }

    impl Service {
        pub(super) fn pipes(&self) -> &Path {
            self.pipes.path()
        }

        fn command(&self) -> Command {
            let mut command = Command::new("nvidia-cuda-mps-control");
            // It would hide devices twice: clients count those that the service shows.
            command.env_remove("CUDA_VISIBLE_DEVICES");
            command.env("CUDA_MPS_PIPE_DIRECTORY", self.pipes.path());
            command.env("CUDA_MPS_LOG_DIRECTORY", self.logs.path());
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command
        }

        pub(super) fn start() -> Result<Service, String> {
            let folder = || tempfile::tempdir().map_err(|error| error.to_string());
            let service = Service { pipes: folder()?, logs: folder()? };
            let status = service.command().arg("-d").stdin(Stdio::null()).status();
            let status = status
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
            let Ok(mut quit) = self.command().stdin(Stdio::piped()).spawn() else { return };
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
}
