//! `gapless explain --coll`: what it shows of a collective, and what it refuses.

use crate::common::{finish, gapless, text};
use std::path::Path;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

fn call(arguments: &str, table: Option<&Path>) -> std::process::Output {
    let mut command = gapless();
    command.args(arguments.split(' '));
    if let Some(table) = table {
        command.env("GAPLESS_COLL", table);
    }
    finish(command, SOON)
}

fn shows(arguments: &str, table: Option<&Path>) -> String {
    let output = call(arguments, table);
    assert!(output.status.success(), "{arguments}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Called wrongly: exit code 2, and one line that says what is wrong.
#[track_caller]
fn refuses(arguments: &str, complaint: &str) {
    let output = call(arguments, None);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments}: {error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains(complaint), "{error}");
    assert_eq!(text(&output.stdout), "");
}

#[test]
fn a_collective_is_explained() {
    let allreduce = shows("explain --coll allreduce --n 8 --size 1M --messages", None);
    for part in [
        "allreduce of 1 MiB in elements of 8 B, 8 ranks on one host\n",
        "\nby a built-in rule of allreduce: { bytes_max = 1048576, algorithm = \"halving\" }\n",
        "\nhalving: ",
        "\nrank 0 of 8, ",
        "\n  0  send     ",
        "  above\n",
        "\nring ",
        "\ndoubling ",
    ] {
        assert!(allreduce.contains(part), "{part} in {allreduce}");
    }
    let third =
        shows("explain --coll bcast --n 4 --root 3 --rank 2 --size 64 --algorithm chain", None);
    assert!(
        third.contains("as --algorithm says\n") && third.contains("rank 2 of 4, no scratch"),
        "{third}"
    );
    assert!(third.contains("receive  recv[0][0..64]  <- 1 #0"), "{third}");
    let hosts = shows("explain --coll allreduce --n 8 --size 64 --hosts 0-3/4-7", None);
    assert!(hosts.contains("8 ranks on 2 hosts\n"), "{hosts}");
    assert!(hosts.contains("algorithm = \"doubling over shared\" }\n"), "{hosts}");
    assert!(shows("explain --coll barrier --n 1", None).contains("rank 0 of 1, no scratch"));
}

#[test]
fn what_goes_through_shared_memory_is_explained() {
    let long = shows("explain --coll allreduce --n 8 --size 1M --rank 2", None);
    for part in [
        "allreduce of 1 MiB in elements of 8 B, 8 ranks on one host\n",
        "\nthrough shared memory: by a built-in rule of allreduce: { algorithm = \"shared\" }\n",
        "\nby messages: by a built-in rule of allreduce: { bytes_max = 1048576, algorithm = \"halving\" }\n",
        "\nshared: no prediction, as the model knows messages only\n",
        "\nrank 2 of 8, by 2 slots of 131072 B a rank in shared memory, 8 fragments\n",
        "combine  slot[32768..49152] of ranks 0 to 7, in this order, into the own one\n",
        "unpack   recv[0][0..16384] = slot[0..16384]  <- 0\n",
        "\nshared ",
        "above; reads 1.75 MiB\n",
        "\nhalving ",
        "\n--messages explains what goes by messages\n",
    ] {
        assert!(long.contains(part), "{part} in {long}");
    }
    assert_eq!(long.matches("above").count(), 1, "{long}");
    let short = shows("explain --coll bcast --n 4 --root 3 --size 64", None);
    assert!(short.contains("by mailboxes in shared memory, one round\n"), "{short}");
    assert!(short.contains("0  read     entry 0[0..64] of rank 3\n"), "{short}");
    // Asked for by name, also where a table says otherwise; its schedules for others are those by messages.
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("coll.toml");
    let rule = "version = 1\nbcast = [{ bytes_max = 8, algorithm = \"shared\" }]\n";
    std::fs::write(&table, rule).unwrap();
    let messages = shows("explain --coll bcast --n 4 --size 64", Some(&table));
    assert!(messages.contains("if ranks share memory; reads 0 B\n"), "{messages}");
    assert!(messages.contains("\nbinomial: "), "{messages}");
    let named = "explain --coll bcast --n 4 --size 64 --algorithm shared --goal";
    let goal = folder.path().join("all.goal");
    let named = shows(&format!("{named} {}", goal.display()), Some(&table));
    assert!(named.contains("as --algorithm says\n") && named.contains("by mailboxes"), "{named}");
    assert!(named.contains("all.goal, by binomial\n"), "{named}");
    assert!(std::fs::read_to_string(&goal).unwrap().contains("send 64b to"));
    let of = |rest: &str| format!("explain --coll bcast --n 4 --size 64 --algorithm shared {rest}");
    refuses(&of("--messages"), "there is no schedule: only collectives of one host go that way");
    refuses(&of("--hosts 2"), "there is no schedule: only collectives of one host go that way");
}

#[test]
fn levels_inside_hosts_are_explained() {
    let machine = "--n 8 --size 64 --hosts 2 --sockets 2 --numa 4 --l3 0/1/2-3/4-5/6/7";
    let shown = shows(&format!("explain --coll allreduce {machine}"), None);
    for part in [
        "8 ranks on 2 hosts, 2 sockets, 4 NUMA nodes, 6 L3 caches\n",
        "\nin a host: 500 ns and 7.7 GB/s between sockets, 400 ns and 8.3 GB/s between NUMA nodes,",
        "algorithm = \"doubling over shared\" }\n",
        "\ndoubling over binomial over numa binomial over l3 binomial  ",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    // Of each NUMA node one rank hears of the root, and tells the others.
    let inside = format!("{} --numa 0,2/1,3 --algorithm", "explain --coll bcast --n 4 --size 8");
    let mut command = gapless();
    command.args(inside.split(' ')).arg("binomial over numa flat").args(["--rank", "1"]);
    let shown = text(&finish(command, SOON).stdout);
    assert!(shown.contains("recv[0][0..8]  <- 0 #0\n"), "{shown}");
    assert!(shown.contains("recv[0][0..8]  -> 3 #0  after 0\n"), "{shown}");
    let of = |rest: &str| format!("explain --coll bcast --n 8 --size 8 {rest}");
    refuses(&of("--hosts 3 --numa 4"), "--numa 4: these are not parts of the coarser groups");
    refuses(&of("--l3 0-6"), "--l3 0-6: 7 ranks are listed, and there are 8");
    refuses(&of("--sockets 9"), "--sockets 9: 8 ranks are in 1 to 8 groups");
}

#[test]
fn every_operation_is_explained() {
    for operation in gapless_coll::Operation::ALL {
        let shown = shows(&format!("explain --coll {operation} --n 6 --size 4K"), None);
        assert_eq!(shown.matches("  above").count(), 1, "{shown}");
    }
    let ragged = shows("explain --coll allgatherv --n 6 --size 4K", None);
    assert!(
        ragged.starts_with("allgatherv of 2 KiB, 4 KiB and 6 KiB a rank in turn, 6 ranks"),
        "{ragged}"
    );
    let grid = shows("explain --coll neighbor_alltoall --n 6 --size 8", None);
    assert!(grid.contains("8 B a rank, neighbours of a periodic grid 3 × 2, 6 ranks"), "{grid}");
}

#[test]
fn a_table_says_which_rule_holds() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("coll.toml");
    let rules = "version = 1\nscan = [{ algorithm = \"chain\" }]\nallreduce = [\n\
                 { ranks_max = 4, algorithm = \"linear\" },\n{ algorithm = \"ring\" },\n]\n";
    std::fs::write(&file, rules).unwrap();
    let shown = shows("explain --coll allreduce --n 8 --size 1K", Some(&file));
    let line =
        format!("by rule 2 of allreduce in {}: {{ algorithm = \"ring\" }}\n", file.display());
    assert!(shown.contains(&line), "{shown}");
    // What the file leaves open goes by what is built in.
    let shown = shows("explain --coll bcast --n 8 --size 1K", Some(&file));
    assert!(shown.contains("by a built-in rule of bcast: "), "{shown}");
    std::fs::write(&file, "version = 1\nscan = [\n{ algorithm = \"rong\" }]\n").unwrap();
    let output = call("explain --coll bcast --n 8 --size 1K", Some(&file));
    let error = text(&output.stderr);
    assert!(!output.status.success());
    assert!(
        error.contains("coll.toml\", line 3: there is no method \"rong\"; did you mean ring?"),
        "{error}"
    );
}

/// What one rank sends another waits for, so there is no world of ranks with different tables.
#[test]
fn ranks_with_different_tables_do_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("coll.toml");
    std::fs::write(&file, "version = 1\nbcast = [{ algorithm = \"ring\" }]\n").unwrap();
    let job = |condition: &str| {
        let script = format!(
            "if {condition}; then export GAPLESS_COLL={}; fi; exec {} info --as-rank",
            file.display(),
            env!("CARGO_BIN_EXE_gapless")
        );
        let mut command = gapless();
        command.args(["run", "-n", "2", "sh", "-c", &script]);
        finish(command, SOON)
    };
    let output = job("true");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = job("[ $PMI_RANK = 1 ]");
    let error = text(&output.stderr);
    assert!(!output.status.success());
    let told = |rank: u32, other: u32| {
        error.contains(&format!("rank {rank} has another table of collectives than rank {other}: "))
    };
    // Whoever notices first may end the job.
    assert!(told(0, 1) || told(1, 0), "{error}");
}

#[test]
fn rules_are_measured_written_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a/coll.toml");
    let mut command = gapless();
    command.args(["tune", "--coll", "--force", "--budget", "0.1", "--output"]).arg(&file);
    command.env("GAPLESS_COLL", folder.path().join("broken.toml"));
    // A broken table does not stop the tuner, which would be needed to mend it.
    std::fs::write(folder.path().join("broken.toml"), "version = 1\nbcast = 7\n").unwrap();
    let output = finish(command, crate::common::WATCHDOG);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    assert!(shown.contains("reduce_scatter_block") && shown.contains("written to"), "{shown}");
    let rules = gapless::tuning::coll::read(&file).unwrap();
    // One for each of the operations that are measured, at least.
    assert!(rules.len() >= 11, "{rules:?}");
    let shown = shows("explain --coll allreduce --n 2 --size 8", Some(&file));
    // Which of the rules it is depends on what was quicker.
    assert!(shown.contains("by rule ") && shown.contains(" of allreduce in "), "{shown}");
}

#[test]
fn schedules_of_all_ranks_are_written_as_goal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bcast.goal");
    let path = file.to_str().unwrap();
    let shown = shows(
        &format!("explain --coll bcast --n 3 --size 8 --algorithm chain --goal {path}"),
        None,
    );
    assert!(shown.contains("schedules of all ranks written to"), "{shown}");
    let goal = "num_ranks 3\n\
                rank 0 {\nl0: send 8b to 1 tag 0\n}\n\
                rank 1 {\nl0: recv 8b from 0 tag 0\nl1: send 8b to 2 tag 0\nl1 requires l0\n}\n\
                rank 2 {\nl0: recv 8b from 1 tag 0\n}\n";
    assert_eq!(std::fs::read_to_string(&file).unwrap(), goal);
}

#[test]
fn what_cannot_be_explained_is_refused_in_one_line() {
    for (arguments, complaint) in [
        (
            "--coll all_reduce --n 8 --size 1M",
            "no operation \"all_reduce\"; did you mean allreduce?",
        ),
        ("--coll pingpong --n 8 --size 1M", "there are barrier, bcast, gather,"),
        ("--coll allreduce --size 1M", "--coll allreduce: it needs --n RANKS"),
        ("--coll allreduce --n 8", "--coll allreduce: it needs --size BYTES"),
        ("--coll allreduce --n 0 --size 8", "--n 0: a collective has one rank at least"),
        ("--coll allreduce --n 99999999 --size 8", "--n 99999999: 1048576 at most"),
        (
            "--coll allgather --n 8 --size 999999G",
            "--size 1073740750258176: buffers of more than 2^48",
        ),
        ("--coll bcast --n 8 --size 8 --root 8", "--root 8: ranks are 0 to 7"),
        ("--coll allreduce --n 8 --size 8 --root 1", "--root 1: allreduce has no root"),
        ("--coll bcast --n 8 --size 8 --rank 9", "--rank 9: ranks are 0 to 7"),
        ("--coll bcast --n 8 --size 8 --hosts 9", "--hosts 9: 8 ranks are in 1 to 8 groups"),
        ("--coll scan --n 8 --size 8 --algorithm rung", "no method \"rung\"; did you mean ring?"),
        (
            "--coll scan --n 8 --size 8 --algorithm ring",
            "--algorithm ring: it does not do this scan: it is for other operations; these do: doubling, chain",
        ),
        (
            "--coll bcast --n 8 --size 8 --goal /nonexistent/x.goal",
            "--goal /nonexistent/x.goal: there is no folder /nonexistent",
        ),
    ] {
        refuses(&format!("explain {arguments}"), complaint);
    }
    // What only messages have.
    refuses(
        "explain --coll bcast --n 8 --size 8 --turns",
        "the argument '--coll <OPERATION>' cannot be used with",
    );
}
