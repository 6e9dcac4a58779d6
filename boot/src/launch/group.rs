//! The end of a child that leads a process group: what it has left running in its group ends with it.

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, kill_process_group, waitid,
    waitpid,
};

/// Collects a child that leads a group, if it has ended, and ends what is left of the group before: until the child is
/// collected, nobody else gets its number.
///
/// # Errors
/// It is no child, or was collected.
pub(super) fn reap(leader: Pid) -> Result<Option<WaitStatus>, Errno> {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if waitid(WaitId::Pid(leader), look)?.is_none() {
        return Ok(None);
    }
    let _ = kill_process_group(leader, Signal::KILL);
    Ok(waitpid(Some(leader), WaitOptions::NOHANG)?.map(|(_, status)| status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    #[test]
    fn what_a_child_leaves_behind_ends_with_it() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "{ sleep 20; echo left; } & exit 7"]).process_group(0);
        let mut child = shell.stdout(Stdio::piped()).spawn().unwrap();
        let leader = Pid::from_child(&child);
        let status = loop {
            match reap(leader).unwrap() {
                Some(status) => break status,
                None => std::thread::sleep(std::time::Duration::from_millis(5)),
            }
        };
        assert_eq!(status.exit_status(), Some(7));
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said, "");
        assert_eq!(reap(leader).err(), Some(Errno::CHILD), "it is collected once");
        child.wait().unwrap_err();
    }
}
