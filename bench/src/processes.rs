//! Processes of this program that measure together; rank 0 leaves what they found in a file.

use std::ffi::OsString;
use std::path::Path;

use gapless::launch::{self, Job};
use serde::de::DeserializeOwned;

use crate::error::Failure;
use crate::experiment::Common;

/// Has so many processes measure `what`, by these arguments of this program, and reads what rank 0 has left.
pub(crate) fn found<T: DeserializeOwned>(
    (ranks, what): (u32, &str),
    mut arguments: Vec<OsString>,
    common: &Common,
    file: &Path,
) -> Result<T, Failure> {
    let program = std::env::current_exe().map_err(Failure::io("find", "this program"))?;
    if common.quick {
        arguments.push("--quick".into());
    }
    arguments.extend(["--as-rank".into(), file.into()]);
    let program = program.into_os_string();
    let job = Job { ranks, program, arguments, environment: Vec::new(), prefix: false };
    let outcome = launch::run(&job)?;
    if let Some((rank, end)) = outcome.failed {
        return Err(Failure::Rank { rank, end, what: what.to_owned() });
    }
    if let Some(signal) = outcome.signalled {
        return Err(Failure::Signal(signal));
    }
    let text = std::fs::read_to_string(file).map_err(Failure::io("read", file))?;
    Ok(serde_json::from_str(&text)?)
}
