//! Slurm on two hosts: its controller on the first, a daemon on each, and munge, all from files in a folder. They end when
//! this is dropped, or the thread that started them ends.

use super::launchers::on_path;
use super::namespaces::{NAMES, Namespaces};
use crate::common::text;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Daemons that do not come in this time do not come.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct Slurm {
    daemons: Vec<Child>,
    configuration: PathBuf,
    entry: Vec<OsString>,
}

fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    let [first, second] = NAMES;
    format!(
        "ClusterName=gl\nSlurmctldHost={first}(10.77.0.1)\nAuthType=auth/munge\nAuthInfo=socket={folder}/munge/socket\n\
         CredType=cred/munge\nSlurmUser=root\nSlurmdUser=root\nSlurmctldPort=26817\nSlurmdPort=26818\n\
         StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool-%n\nTmpFS={folder}/tmp-%n\n\
         SlurmctldPidFile={folder}/ctld.pid\nSlurmdPidFile={folder}/d-%n.pid\nProctrackType=proctrack/linuxproc\n\
         TaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none\nReturnToService=2\n\
         SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nJobAcctGatherType=jobacct_gather/none\n\
         AccountingStorageType=accounting_storage/none\nSlurmdParameters=config_overrides\nMailProg=/bin/true\n\
         NodeName={first} NodeAddr=10.77.0.1 CPUs=4 State=UNKNOWN\n\
         NodeName={second} NodeAddr=10.77.0.2 CPUs=4 State=UNKNOWN\n\
         PartitionName=p Nodes={first},{second} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4\n"
    )
}

impl Slurm {
    /// Starts it.
    ///
    /// # Errors
    /// What is not installed, or does not come up.
    pub(super) fn start(hosts: &Namespaces) -> Result<Slurm, String> {
        let programs = ["munged", "slurmctld", "slurmd", "srun", "sinfo", "setpriv"];
        if let Some(missing) = programs.into_iter().find(|name| on_path(name).is_none()) {
            return Err(format!("{missing} is not installed"));
        }
        let folder = hosts.folder().join("slurm");
        let failed = |error: std::io::Error| error.to_string();
        let parts = ["munge", "state"].map(str::to_owned).into_iter();
        let each = NAMES.iter().flat_map(|name| [format!("spool-{name}"), format!("tmp-{name}")]);
        for part in parts.chain(each) {
            std::fs::create_dir_all(folder.join(part)).map_err(failed)?;
        }
        let path = folder.join("slurm.conf");
        std::fs::write(&path, configuration(&folder)).map_err(failed)?;
        // Hosts have a `/sys` of their own, without control groups.
        std::fs::write(folder.join("cgroup.conf"), "CgroupPlugin=cgroup/v1\n").map_err(failed)?;
        let key = folder.join("munge/key");
        std::fs::write(&key, [7u8; 128]).map_err(failed)?;
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o400);
        std::fs::set_permissions(&key, private).map_err(failed)?;
        let mut slurm = Slurm { daemons: Vec::new(), configuration: path, entry: hosts.enter(0) };
        let munge = |option: &str, file: &str| {
            format!("--{option}={}", folder.join("munge").join(file).display())
        };
        let munged: Vec<String> = [
            ("socket", "socket"),
            ("key-file", "key"),
            ("pid-file", "pid"),
            ("log-file", "log"),
            ("seed-file", "seed"),
        ]
        .map(|(option, file)| munge(option, file))
        .to_vec();
        let munged = munged.iter().map(String::as_str);
        slurm.serve(hosts.enter(0), ["munged", "-F", "--force"].into_iter().chain(munged))?;
        slurm.serve(hosts.enter(0), ["slurmctld", "-D", "-i"])?;
        for (at, name) in NAMES.into_iter().enumerate() {
            slurm.serve(hosts.enter(at), ["slurmd", "-D", "-N", name])?;
        }
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            let output = slurm.command("sinfo").args(["-h", "-o", "%T %D"]).output();
            if output.is_ok_and(|output| text(&output.stdout).trim() == "idle 2") {
                return Ok(slurm);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err("its hosts do not become idle".to_owned())
    }

    fn serve<'a>(
        &mut self,
        entry: Vec<OsString>,
        words: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), String> {
        let mut command = Command::new(&entry[0]);
        command.args(&entry[1..]).args(["setpriv", "--pdeathsig", "KILL"]).args(words);
        command.env("SLURM_CONF", &self.configuration);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.daemons.push(command.spawn().map_err(|error| error.to_string())?);
        Ok(())
    }

    /// A command on the first host.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(&self.entry[0]);
        command.args(&self.entry[1..]).arg(program).env("SLURM_CONF", &self.configuration);
        command.stdin(Stdio::null()).env_remove("RUST_LOG");
        command
    }

    /// What starts two processes on each host, of what is appended.
    ///
    /// # Errors
    /// This Slurm lacks the plugin.
    pub(super) fn two_on_each(&self, language: &str) -> Result<Command, String> {
        let mpi = format!("--mpi={language}");
        let srun = || {
            let mut command = self.command("srun");
            command.args(["--chdir=/", "-N2", "-n4", "--ntasks-per-node=2", &mpi]);
            command
        };
        let tried = srun().arg("true").output().map_err(|error| error.to_string())?;
        match tried.status.success() {
            true => Ok(srun()),
            false => Err(text(&tried.stderr).lines().next().unwrap_or("it fails").to_owned()),
        }
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}
