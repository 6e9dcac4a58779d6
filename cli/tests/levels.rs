//! Which ranks of a job are near each other: on a pretended machine, in a mount namespace of its own.

use crate::common::{BODY, WATCHDOG, again, assert_ran, finish, gapless, is_rank, skip, text};
use gapless::coll::Level;
use gapless::processors::Processors;
use gapless::{Collective, InPlace, ReduceOp, World};
use std::path::Path;
use std::process::Command;

/// Two processors of one socket, each with a NUMA node and a cache of its own.
fn pretend(folder: &Path, processors: &[usize]) {
    let write = |path: String, text: String| {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let both = processors.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    for (number, processor) in processors.iter().enumerate() {
        write(format!("node/node{number}/cpulist"), processor.to_string());
        let cpu = format!("cpu{processor}");
        write(format!("{cpu}/topology/core_cpus_list"), processor.to_string());
        write(format!("{cpu}/topology/package_cpus_list"), both.clone());
        write(format!("{cpu}/topology/physical_package_id"), "3".to_owned());
        write(format!("{cpu}/cache/index0/level"), "3".to_owned());
        write(format!("{cpu}/cache/index0/id"), (7 + number).to_string());
        write(format!("{cpu}/cache/index0/shared_cpu_list"), processor.to_string());
    }
}

/// A command on the pretended machine, and on its processors.
fn on(folder: &Path, processors: &[usize], command: &Command) -> Command {
    let system = "/sys/devices/system";
    let mut script = format!("set -e; mount --bind {}/node {system}/node\n", folder.display());
    for processor in processors {
        for part in ["topology", "cache"] {
            let from = format!("{}/cpu{processor}/{part}", folder.display());
            script += &format!("mount --bind {from} {system}/cpu/cpu{processor}/{part}\n");
        }
    }
    let both = processors.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    script += &format!("exec taskset -c {both} \"$@\"");
    let mut odd = Command::new("unshare");
    odd.args(["--mount", "sh", "-c", &script, "sh"]);
    odd.arg(command.get_program()).args(command.get_args());
    odd
}

/// A rank of four: two on each processor if they are bound, else on both.
fn rank() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let groups = |level| comm.locality().groups(level).map(<[_]>::to_vec);
    let (halves, all) = (vec![vec![0, 2], vec![1, 3]], vec![vec![0, 1, 2, 3]]);
    assert_eq!(comm.locality().hosts(), all);
    assert_eq!(groups(Level::Socket), Some(all));
    if std::env::var_os("BOUND").is_some() {
        assert_eq!(groups(Level::Numa), Some(halves.clone()));
        assert_eq!(groups(Level::L3), Some(halves));
        let odd = comm.split(Some(world.rank() % 2), 0).unwrap().unwrap();
        assert_eq!(odd.locality().groups(Level::L3), Some(&[vec![0, 1]][..]));
    } else {
        assert_eq!((groups(Level::Numa), groups(Level::L3)), (None, None));
    }
    // By messages: on levels if there are some, as the table says.
    let (mut sum, mut word) = ([u64::from(world.rank()) + 1; 3], [world.rank() * 7]);
    comm.scope(|s| {
        let _ = s.begin(Collective::allreduce(InPlace, &mut sum, ReduceOp::Sum))?;
        let _ = s.begin(Collective::bcast(&mut word, 3))?;
        Ok(())
    })
    .unwrap();
    assert_eq!((sum, word), ([10; 3], [21]));
    world.finalize().unwrap();
}

#[test]
fn a_job_knows_who_shares_nodes_and_caches() {
    let name = "levels::a_job_knows_who_shares_nodes_and_caches";
    if is_rank(name) {
        return rank();
    }
    let allowed = Processors::allowed();
    let Some(two) = allowed.get(..2) else {
        return skip(name, "this process may use one processor only");
    };
    let folder = tempfile::tempdir().unwrap();
    pretend(folder.path(), two);
    let probed = on(folder.path(), two, &Command::new("true")).output();
    if !probed.is_ok_and(|probed| probed.status.success()) {
        return skip(name, "no mount namespace can be made here (unshare --mount needs root)");
    }
    let table = folder.path().join("coll.toml");
    let rules = "version = 1\n\
        allreduce = [{ algorithm = \"doubling over numa chain\" }]\n\
        bcast = [{ algorithm = \"binomial over numa flat\" }]\n";
    std::fs::write(&table, rules).unwrap();
    for (bind, variable) in
        [("core", "BOUND=1"), ("l3", "BOUND=1"), ("socket", "FREE=1"), ("none", "FREE=1")]
    {
        let mut command = gapless();
        command.args(["run", "-n", "4", "--bind-to", bind, "--report-bindings", "-e", variable]);
        command.args(["-e", &format!("GAPLESS_COLL={}", table.display())]);
        command.args(["-e", &format!("{BODY}={name}")]).args(again(name));
        let output = finish(on(folder.path(), two, &command), WATCHDOG);
        assert_ran(&output, 4);
        let said = text(&output.stderr);
        let last = match bind {
            "none" => continue,
            "socket" => {
                format!("rank 3 is bound to processors {},{} of socket 3\n", two[0], two[1])
            }
            _ => format!("processors {} of socket 3, NUMA node 1, L3 cache 8\n", two[1]),
        };
        assert!(said.contains(&last), "{bind}: {said}");
    }
    let mut command = gapless();
    command.arg("info");
    let said = text(&finish(on(folder.path(), two, &command), WATCHDOG).stdout);
    let line = "2 NUMA nodes of one processor; 2 L3 caches of one processor; this process is kept on socket 3\n";
    assert!(said.contains(line), "{said}");
}
