//! Launchers that are half there: variables without a server, a library that is none. Each is one
//! line, in time, and never a job of one.

use super::{Launcher, WATCHDOG};
use crate::common::{BODY, again, closed_port, finish, gapless, is_rank, skip, text};
use gapless::World;
use std::net::TcpListener;
use std::process::{Command, Output};

/// What a rank says with these variables.
fn rank(variables: &[(&str, &str)]) -> Output {
    let mut command = gapless();
    command.args(["info", "--as-rank"]).envs(variables.iter().copied());
    finish(command, WATCHDOG)
}

fn complains(output: &Output, words: &[&str]) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    let ours: Vec<&str> = error.lines().filter(|line| line.starts_with("gapless:")).collect();
    assert!(ours.len() == 1 && words.iter().all(|word| ours[0].contains(word)), "{error}");
}

/// Variables of a PMIx server at `port` of this host.
fn pmix(port: u16, more: &[(&str, &str)]) -> Output {
    let place = format!("123456.0;tcp4://127.0.0.1:{port}");
    let servers = ["PMIX_SERVER_URI2", "PMIX_SERVER_URI3", "PMIX_SERVER_URI4", "PMIX_SERVER_URI41"];
    let mut variables: Vec<(&str, &str)> = servers.iter().map(|name| (*name, &*place)).collect();
    variables.extend([
        ("PMIX_NAMESPACE", "123457"),
        ("PMIX_RANK", "0"),
        ("GAPLESS_START_SECONDS", "20"),
    ]);
    variables.extend(more);
    rank(&variables)
}

#[test]
fn without_its_library() {
    complains(
        &pmix(1, &[("GAPLESS_PMIX", "/no/such/libpmix.so")]),
        &["/no/such/libpmix.so", "cannot be used"],
    );
    complains(&pmix(1, &[("GAPLESS_PMIX", "libc.so.6")]), &["libc.so.6", "PMIx_Get_version"]);
}

#[test]
fn without_its_server() {
    if Launcher::OpenMpi.command(1).is_none() {
        return;
    }
    let (port, _kept) = closed_port();
    complains(&pmix(port, &[]), &["the launcher", "PMIx_Init"]);
}

#[test]
fn with_a_server_that_says_nothing() {
    if Launcher::OpenMpi.command(1).is_none() {
        return;
    }
    // Connections wait there to be accepted, for ever.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let output = pmix(silent.local_addr().unwrap().port(), &[("GAPLESS_START_SECONDS", "1")]);
    complains(&output, &["the launcher", "PMIx_Init"]);
}

/// Slurm without a PMI starts jobs of one. That is no error, but one of the processes says so.
#[test]
fn without_any_protocol() {
    let name = "launchers::half::without_any_protocol";
    if is_rank(name) {
        return assert_eq!(World::init().unwrap().size(), 1);
    }
    for (process, says_so) in [("0", true), ("3", false)] {
        let words = again(name);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env(BODY, name);
        command.env("SLURM_STEP_NUM_TASKS", "4").env("SLURM_PROCID", process);
        let output = finish(command, WATCHDOG);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(
            said.contains("gapless: Slurm started 4 processes without PMI"),
            says_so,
            "{said}"
        );
    }
}

#[test]
fn with_a_port_that_says_nothing() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = silent.local_addr().unwrap().to_string();
    let output = rank(&[("PMI_PORT", &place), ("PMI_ID", "0"), ("GAPLESS_START_SECONDS", "0.2")]);
    complains(&output, &["has not answered", "initack"]);
}

/// The server takes munge alone, and the library here does not have it.
#[test]
fn security_plugins_that_do_not_match() {
    let Some(mut command) = Launcher::OpenMpi.command(1) else { return };
    let script = "PMIX_SECURITY_MODE=munge exec \"$@\"";
    command.args(["sh", "-c", script, "sh", env!("CARGO_BIN_EXE_gapless"), "info", "--as-rank"]);
    let output = finish(command, WATCHDOG);
    let said = text(&output.stderr);
    let ours: Vec<&str> = said.lines().filter(|line| line.starts_with("gapless: ")).collect();
    assert!(!output.status.success(), "{said}");
    let [line] = ours[..] else { panic!("{said}") };
    assert!(line.contains("PMIx_Init") && line.contains("security by munge"), "{line}");
}

#[test]
fn libraries_that_misbehave() {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("fake.c"), folder.path().join("libfake.so"));
    std::fs::write(&source, FAKE).unwrap();
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    match compiler.output() {
        Ok(output) => assert!(output.status.success(), "{}", text(&output.stderr)),
        Err(error) => return skip("PMIx libraries that misbehave", &format!("cc: {error}")),
    }
    let library = library.to_str().unwrap();
    for (fault, words) in [
        ("version", &["PMIx library", "OpenPMIx 99.0", "2 to 6"][..]),
        ("init-fails", &["PMIx_Init", "a status called -31"]),
        ("init-hangs", &["PMIx_Init", "has not answered for"]),
        ("rank", &["pmix.job.size", "rank 7"]),
        ("size-missing", &["pmix.job.size"]),
        ("size-type", &["pmix.job.size", "Other(1)"]),
        ("size-null", &["pmix.job.size"]),
        ("put-fails", &["PMIx_Put", "a status called -31"]),
        ("fence-hangs", &["have not come for", "2 processes"]),
        ("fence-lost", &["the launcher is gone (PMIx_Fence: a status called -61 (-61))"]),
        ("card-missing", &["process 1 published no gapless-card"]),
        ("card-type", &["gapless-card of process 1", "Number(2)"]),
        ("card-cut", &["process 1 published as gapless-card cannot be put together"]),
        ("card-odd", &["rank 1 published", "as its record"]),
        ("get-hangs", &["PMIx_Get", "has not answered for"]),
    ] {
        // Only what never comes is not waited for long; what comes before it must come in time.
        let seconds = if fault.ends_with("hangs") { "3" } else { "20" };
        let variables =
            [("GAPLESS_PMIX", library), ("FAKE_FAULT", fault), ("GAPLESS_START_SECONDS", seconds)];
        complains(&pmix(1, &variables), words);
    }
}

/// A `libpmix` whose job of two has one fault, named by a variable. Structures as in PMIx 4.
const FAKE: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { char nspace[256]; uint32_t rank; } proc_t;
typedef struct { uint16_t type; union { char *string; uint32_t number; char room[24]; } data; } value_t;

static int fault(const char *name) { return !strcmp(getenv("FAKE_FAULT"), name); }
static void hang(void) { for (;;) pause(); }

const char *PMIx_Get_version(void) {
    return fault("version") ? "OpenPMIx 99.0, of some day" : "OpenPMIx 4.2.2, a fake";
}

const char *PMIx_Error_string(int status) {
    static _Thread_local char text[40];
    snprintf(text, sizeof text, "a status called %d", status);
    return text;
}

int PMIx_Init(proc_t *me, void *info, size_t n) {
    if (fault("init-fails")) return -31;
    if (fault("init-hangs")) hang();
    memset(me->nspace, 'n', sizeof me->nspace - 1);
    me->rank = fault("rank") ? 7 : 0;
    return 0;
}

int PMIx_Finalize(void *info, size_t n) { return 0; }
int PMIx_Abort(int status, const char *message, proc_t *procs, size_t n) { return 0; }
int PMIx_Commit(void) { return 0; }
int PMIx_Put(unsigned char scope, const char *key, value_t *value) {
    return fault("put-fails") || value->type != 3 || !strlen(value->data.string) ? -31 : 0;
}

int PMIx_Fence(const proc_t *procs, size_t n, void *info, size_t ninfo) {
    if (fault("fence-hangs")) hang();
    return fault("fence-lost") ? -61 : 0;
}

int PMIx_Get(const proc_t *of, const char *key, void *info, size_t n, value_t **out) {
    int about_job = of->rank == 0xfffffffe;
    if (about_job ? fault("size-missing") : fault("card-missing")) return -46;
    if (!about_job && fault("get-hangs")) hang();
    *out = NULL;
    if (about_job && fault("size-null")) return 0;
    *out = calloc(1, sizeof **out);
    if (about_job) {
        (*out)->type = fault("size-type") ? 1 : 14;
        (*out)->data.number = 2;
    } else if (fault("card-type")) {
        (*out)->type = 14;
        (*out)->data.number = 2;
    } else {
        (*out)->type = 3;
        (*out)->data.string = strdup(fault("card-cut") ? "many:pieces" : "1:an_odd_card");
    }
    return 0;
}
"#;
