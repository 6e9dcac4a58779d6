//! `gapless run --hosts a,b`: the same job on several hosts. This process becomes a launcher that starts processes on
//! other hosts, or watches it if there is a time limit: MPICH's `mpiexec.hydra`, PRRTE's `prterun` or Open MPI's `mpirun`.
//! It translates the options for it.
//!
//! Several launchers are called `mpirun` and `mpiexec`, and some are scripts that start another program. So these are asked
//! for their `--version`.

use super::{Bind, Map, bad};
use crate::failure::Failure;
use gapless::launch::{self, LaunchError, Program};
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const OPTION: &str = "--hosts";

/// What the launcher of several hosts is told.
pub(super) struct Wanted<'a> {
    pub(super) programs: &'a [Program],
    /// Names of files for standard output and error.
    pub(super) files: &'a [Option<String>; 2],
    pub(super) oversubscribe: bool,
    pub(super) allow_run_as_root: bool,
    pub(super) prefix: bool,
    pub(super) bind_to: Option<Bind>,
    pub(super) map_by: Option<Map>,
    pub(super) report_bindings: bool,
    pub(super) timeout: Option<u32>,
}

/// The hosts of a job, as an option names them.
pub(super) struct Named {
    pub(super) option: &'static str,
    /// What the option was given: the list, or the file that has it.
    pub(super) given: String,
    /// As in `a:4,b`.
    pub(super) list: String,
}

impl Named {
    pub(super) fn from_option(list: &str) -> Named {
        Named { option: OPTION, given: list.to_owned(), list: list.to_owned() }
    }

    fn wrong(&self, why: &str) -> Failure {
        bad(self.option, &self.given, why)
    }
}

/// The same list with so many processes on each host. The list's own numbers say how many there is room for.
pub(super) fn limited(list: &str, ppn: u32) -> Result<String, String> {
    let is_counted = list.contains(':');
    let word = |word: &str| {
        let (name, room) = word.split_once(':').unwrap_or((word, "1"));
        match room.parse::<u32>() {
            Ok(room) if is_counted && room < ppn => {
                Err(format!("there is room for {room} on {name}"))
            }
            Ok(_) => Ok(format!("{name}:{ppn}")),
            // What is wrong with it is said of the list.
            Err(_) => Ok(word.to_owned()),
        }
    };
    Ok(list.split(',').map(word).collect::<Result<Vec<_>, _>>()?.join(","))
}

/// A host, and how many processes it gets.
type Share = (String, u32);

/// Launchers of several hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Launcher {
    /// MPICH's, Intel MPI's.
    Hydra,
    /// PRRTE's, also as the `mpirun` of Open MPI 5.
    Prrte,
    /// The `mpirun` of Open MPI 4.
    OpenMpi4,
}

/// The names of launchers, in the order in which they are looked for. Names without a launcher are those of several, so
/// these programs are asked for their version. So is `prterun`: that of PyPI's Open MPI finds its files only when its
/// `mpirun` starts it.
const NAMES: [(&str, Option<Launcher>); 4] = [
    ("mpiexec.hydra", Some(Launcher::Hydra)),
    ("prterun", None),
    ("mpirun", None),
    ("mpiexec", None),
];

/// How long a program may take to say its version: it may be a script that starts another.
const ANSWER: Duration = Duration::from_secs(10);
/// As many bytes of it are read.
const ANSWER_BYTES: u64 = 64 << 10;

impl Launcher {
    /// What a program is that says this of its version.
    fn of_version(said: &str) -> Option<Launcher> {
        if said.contains("HYDRA") || said.contains("Intel(R) MPI") {
            return Some(Launcher::Hydra);
        }
        if said.starts_with("prterun") {
            return Some(Launcher::Prrte);
        }
        let (_, release) = said.split_once("(Open MPI) ")?;
        let major: u32 = release.split('.').next()?.trim().parse().ok()?;
        Some(if major >= 5 { Launcher::Prrte } else { Launcher::OpenMpi4 })
    }

    /// The first one on the search path.
    fn find() -> Option<(Launcher, PathBuf)> {
        NAMES.into_iter().find_map(|(name, known)| {
            let path = on_search_path(name)?;
            let launcher = known.or_else(|| {
                let said = version(&path, ANSWER)?;
                let launcher = Launcher::of_version(&said);
                tracing::debug!(?path, ?launcher, said, "asked for its version");
                launcher
            });
            Some((launcher?, path))
        })
    }
}

/// What a program says of its version; `None` if it does not within `limit`.
fn version(path: &Path, limit: Duration) -> Option<String> {
    let mut command = Command::new(path);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.process_group(0).spawn().ok()?;
    let mut said = child.stdout.take()?.take(ANSWER_BYTES);
    let (told, heard) = std::sync::mpsc::channel();
    // If it says nothing, this thread is left behind: the process becomes another program.
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = said.read_to_end(&mut bytes);
        let _ = told.send(bytes);
    });
    let bytes = heard.recv_timeout(limit);
    // It may be a script that has started another program.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    let _ = child.wait();
    if bytes.is_err() {
        tracing::warn!(?path, "does not say its version within {limit:?}");
    }
    Some(String::from_utf8_lossy(&bytes.ok()?).trim_start().to_owned())
}

/// So much longer than the job the launcher may take. It ends a job that has started by itself, and tidies up.
const LEEWAY: Duration = Duration::from_secs(2);

/// Becomes the launcher, and then returns only if that cannot be done. With a time limit it is watched: launchers keep
/// none while they wait for hosts.
pub(super) fn hand_over(named: &Named, wanted: &Wanted<'_>) -> Result<ExitCode, Failure> {
    let ranks = wanted.programs.iter().map(|program| program.ranks);
    let ranks = ranks.fold(0u32, u32::saturating_add);
    let shares = shares(&named.list, ranks).map_err(|why| named.wrong(&why))?;
    let is_option = |it: &Program| it.program.as_encoded_bytes().starts_with(b"-");
    if let Some(program) = wanted.programs.iter().find(|it| is_option(it)) {
        let why = "on several hosts, the name of a program does not begin with a dash";
        return Err(bad(named.option, &program.program.to_string_lossy(), why));
    }
    let Some((launcher, path)) = Launcher::find() else {
        return Err(named.wrong(
            "a job of several hosts needs mpiexec.hydra (MPICH: apt-get install mpich), prterun (PRRTE) or mpirun \
             (Open MPI), and none was found whose --version says that it is one of them",
        ));
    };
    let patterns = ["--outfile-pattern", "--errfile-pattern"].into_iter().zip(wanted.files);
    let pattern = patterns.into_iter().find_map(|(option, it)| Some((option, it.as_ref()?)));
    if let (false, Some((option, pattern))) = (launcher == Launcher::Hydra, pattern) {
        let why = format!("{} has nothing like it; mpiexec.hydra has", path.display());
        return Err(bad(option, pattern, &why));
    }
    if (launcher, wanted.map_by) == (Launcher::Hydra, Some(Map::Node)) {
        let why = format!(
            "{} fills one host after the other; prterun and mpirun deal ranks out over hosts",
            path.display()
        );
        return Err(bad("--map-by", "node", &why));
    }
    let mut command = Command::new(&path);
    command.args(words(launcher, &shares, wanted));
    // hydra has no option for it.
    if let (Launcher::Hydra, Some(seconds)) = (launcher, wanted.timeout) {
        command.env("MPIEXEC_TIMEOUT", seconds.to_string());
    }
    tracing::info!(?command, "the launcher of several hosts takes over");
    if let Some(seconds) = wanted.timeout {
        let limit = Duration::from_secs(seconds.into());
        let late = || LaunchError::Late { launcher: path.display().to_string(), limit };
        let start = Instant::now();
        let status = launch::watch(command, limit + LEEWAY).map_err(|error| match error {
            LaunchError::Late { .. } => late(),
            other => other,
        })?;
        // Launchers that have ended the job themselves exit with codes of their own.
        if !status.success() && start.elapsed() >= limit {
            return Err(late().into());
        }
        let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
        return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
    }
    let error = command.exec();
    Err(named.wrong(&format!("{} cannot be started: {error}", path.display())))
}

/// The hosts of a list, with the processes of each: `a:2,b:1` says how many; without any number the hosts get equal
/// shares, one after the other.
fn shares(list: &str, ranks: u32) -> Result<Vec<Share>, String> {
    let mut hosts = Vec::new();
    for word in list.split(',') {
        // Between a name and a number is one colon.
        if word.matches(':').count() > 1 {
            let why = "looks like an IPv6 address, which launchers' lists of hosts cannot hold: give the host a name, \
                       as /etc/hosts does";
            return Err(format!("{word:?} {why}"));
        }
        let (name, count) = match word.rsplit_once(':') {
            Some((name, count)) => (name, Some(count)),
            None => (word, None),
        };
        let count = count.map(|count| count.parse::<u32>().ok().filter(|&count| count > 0));
        if count == Some(None) {
            return Err(format!("{word:?} is no host and a number of processes, as in a:2"));
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if name.is_empty() || name.starts_with('-') || !name.chars().all(is_plain) {
            return Err(format!("{name:?} is no name of a host, and no IPv4 address"));
        }
        hosts.push((name.to_owned(), count.flatten()));
    }
    if hosts.iter().all(|(_, count)| count.is_none()) {
        let hosts_count = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
        let (each, more) = (ranks / hosts_count, ranks % hosts_count);
        let share = |(at, (name, _)): (u32, (String, _))| (name, each + u32::from(at < more));
        let shares = (0..).zip(hosts).map(share);
        return Ok(shares.filter(|(_, share)| *share > 0).collect());
    }
    let shares: Vec<Share> = hosts.into_iter().map(|(name, it)| (name, it.unwrap_or(1))).collect();
    let room = shares.iter().fold(0u32, |sum, (_, share)| sum.saturating_add(*share));
    if room < ranks {
        return Err(format!("there is room for {room} processes, and the job has {ranks}"));
    }
    Ok(shares)
}

fn on_search_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let may_run = |path: &PathBuf| {
        path.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(may_run)
}

fn bind_word(bind: Bind, launcher: Launcher) -> &'static str {
    match (bind, launcher) {
        (Bind::Core, _) => "core",
        (Bind::L3, _) => "l3cache",
        (Bind::Numa, _) => "numa",
        (Bind::Socket, Launcher::Hydra | Launcher::OpenMpi4) => "socket",
        (Bind::Socket, Launcher::Prrte) => "package",
        (Bind::None, _) => "none",
    }
}

fn map_word(map: Map, launcher: Launcher) -> &'static str {
    let same = match (map, launcher) {
        // hydra's order of hosts is that of slots.
        (Map::Slot, Launcher::Prrte | Launcher::OpenMpi4) => return "slot",
        (Map::Node, _) => return "node",
        (Map::Core | Map::Slot, _) => Bind::Core,
        (Map::L3, _) => Bind::L3,
        (Map::Numa, _) => Bind::Numa,
        (Map::Socket, _) => Bind::Socket,
    };
    bind_word(same, launcher)
}

/// The launcher's arguments.
fn words(launcher: Launcher, shares: &[Share], wanted: &Wanted<'_>) -> Vec<OsString> {
    let hosts: Vec<String> = shares.iter().map(|(name, share)| format!("{name}:{share}")).collect();
    let hydra = launcher == Launcher::Hydra;
    let mut words: Vec<OsString> = Vec::new();
    let mut add = |list: &[&str]| words.extend(list.iter().map(OsString::from));
    add(&[if hydra { "-hosts" } else { "--host" }, &hosts.join(",")]);
    if wanted.prefix {
        add(match launcher {
            Launcher::Hydra => &["-prepend-rank"],
            Launcher::Prrte => &["--output", "tag"],
            Launcher::OpenMpi4 => &["--tag-output"],
        });
    }
    for (option, pattern) in ["-outfile-pattern", "-errfile-pattern"].iter().zip(wanted.files) {
        if let Some(pattern) = pattern {
            add(&[option, pattern]);
        }
    }
    let modifier = match (wanted.oversubscribe, launcher) {
        (true, Launcher::Prrte) => ":OVERSUBSCRIBE",
        (true, Launcher::OpenMpi4) => {
            add(&["--oversubscribe"]);
            ""
        }
        // hydra asks nobody.
        _ => "",
    };
    let map = wanted.map_by.map_or("", |map| map_word(map, launcher));
    if !(map.is_empty() && modifier.is_empty()) {
        add(&[if hydra { "-map-by" } else { "--map-by" }, &format!("{map}{modifier}")]);
    }
    if wanted.allow_run_as_root && !hydra {
        add(&["--allow-run-as-root"]);
    }
    if let Some(bind) = wanted.bind_to {
        add(&[if hydra { "-bind-to" } else { "--bind-to" }, bind_word(bind, launcher)]);
    }
    if wanted.report_bindings {
        add(if hydra { &["-genv", "HYDRA_TOPO_DEBUG", "1"] } else { &["--report-bindings"] });
    }
    if let (false, Some(seconds)) = (hydra, wanted.timeout) {
        add(&["--timeout", &seconds.to_string()]);
    }
    for (at, program) in wanted.programs.iter().enumerate() {
        if at > 0 {
            words.push(":".into());
        }
        words.extend(["-n".into(), program.ranks.to_string().into()]);
        if let Some(folder) = &program.folder {
            words.extend([if hydra { "-wdir" } else { "--wdir" }.into(), folder.into()]);
        }
        for (name, value) in &program.environment {
            if hydra {
                words.extend(["-env".into(), name.clone(), value.clone()]);
            } else {
                let mut both = name.clone();
                both.push("=");
                both.push(value);
                words.extend(["-x".into(), both]);
            }
        }
        // hydra takes the whole environment along.
        if !hydra {
            let set = |name: &OsString| program.environment.iter().any(|(known, _)| known == name);
            let ours = std::env::vars_os().map(|(name, _)| name).filter(|name| is_ours(name));
            for name in ours.filter(|name| !set(name)) {
                words.extend(["-x".into(), name]);
            }
        }
        words.push(program.program.clone());
        words.extend(program.arguments.iter().cloned());
    }
    words
}

/// Variables that change what Gapless does.
fn is_ours(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with("GAPLESS_") || name == "RUST_LOG")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(list: &str, ranks: u32) -> Vec<String> {
        let all = shares(list, ranks).unwrap();
        all.into_iter().map(|(name, share)| format!("{name}:{share}")).collect()
    }

    #[test]
    fn hosts_get_what_is_said_or_equal_shares() {
        assert_eq!(share("a,b", 4), ["a:2", "b:2"]);
        assert_eq!(share("a,b,c", 4), ["a:2", "b:1", "c:1"]);
        assert_eq!(share("a,b", 1), ["a:1"]);
        assert_eq!(share("n1.x-y_z:3,10.0.0.2", 4), ["n1.x-y_z:3", "10.0.0.2:1"]);
        for (list, ranks, word) in [
            ("", 1, "no name"),
            ("a,,b", 1, "no name"),
            ("-a", 1, "no name"),
            ("a b", 1, "no name"),
            ("a:0", 1, "no host and a number"),
            ("a:x", 1, "no host and a number"),
            ("a,::1", 1, "IPv6"),
            ("[fe80::1%eth0]:2", 2, "IPv6"),
            ("a:1,b:1", 3, "room for 2"),
        ] {
            let error = shares(list, ranks).unwrap_err();
            assert!(error.contains(word), "{list}: {error}");
        }
    }

    #[test]
    fn numbers_of_a_list_are_room_for_those_of_each_host() {
        assert_eq!(limited("a,b", 3).unwrap(), "a:3,b:3");
        assert_eq!(limited("a:4,b:2", 2).unwrap(), "a:2,b:2");
        assert_eq!(limited("a:x", 2).unwrap(), "a:x");
        assert_eq!(limited("a:4,b", 2).unwrap_err(), "there is room for 1 on b");
    }

    #[test]
    fn each_launcher_is_told_in_its_words() {
        let program = |ranks, program: &str, environment: &[(&str, &str)]| Program {
            ranks,
            program: program.into(),
            arguments: vec!["-v".into()],
            environment: environment.iter().map(|(n, v)| (n.into(), v.into())).collect(),
            folder: (ranks == 3).then(|| "/tmp".into()),
        };
        let programs = [program(1, "a", &[("A", "b c")]), program(3, "b", &[])];
        let wanted = Wanted {
            programs: &programs,
            files: &[None, None],
            oversubscribe: false,
            allow_run_as_root: false,
            prefix: true,
            bind_to: Some(Bind::Socket),
            map_by: Some(Map::L3),
            report_bindings: false,
            timeout: Some(7),
        };
        let shares = [("x".to_owned(), 2), ("y".to_owned(), 2)];
        let told = |launcher, wanted: &Wanted<'_>| {
            let words = words(launcher, &shares, wanted);
            // Those of this test's own environment.
            let mut kept: Vec<String> = Vec::new();
            for word in words.iter().map(|word| word.to_str().unwrap()) {
                if is_ours(OsStr::new(word)) {
                    kept.pop();
                } else {
                    kept.push(word.to_owned());
                }
            }
            kept.join("|")
        };
        assert_eq!(
            told(Launcher::Hydra, &wanted),
            "-hosts|x:2,y:2|-prepend-rank|-map-by|l3cache|-bind-to|socket|-n|1|-env|A|b c|a|-v|:|-n|3|-wdir|/tmp|b|-v"
        );
        assert_eq!(
            told(Launcher::Prrte, &wanted),
            "--host|x:2,y:2|--output|tag|--map-by|l3cache|--bind-to|package|--timeout|7|-n|1|-x|A=b c|a|-v|:|-n|3|--wdir|/tmp|b|-v"
        );
        assert_eq!(
            told(Launcher::OpenMpi4, &wanted),
            "--host|x:2,y:2|--tag-output|--map-by|l3cache|--bind-to|socket|--timeout|7|-n|1|-x|A=b c|a|-v|:|-n|3|--wdir|/tmp|b|-v"
        );
        for (map, hydra, others) in [(Map::Slot, "core", "slot"), (Map::Core, "core", "core")] {
            let wanted = Wanted { map_by: Some(map), ..wanted };
            assert!(told(Launcher::Hydra, &wanted).contains(&format!("|-map-by|{hydra}|")));
            assert!(told(Launcher::Prrte, &wanted).contains(&format!("|--map-by|{others}|")));
        }
        let dealt = Wanted { map_by: Some(Map::Node), ..wanted };
        assert!(told(Launcher::Prrte, &dealt).contains("|--map-by|node|"));
        assert!(told(Launcher::OpenMpi4, &dealt).contains("|--map-by|node|"));
        let files = [Some("out.%r".to_owned()), None];
        let wanted = Wanted { programs: &programs[..1], prefix: false, ..wanted };
        let crowded = Wanted { oversubscribe: true, bind_to: None, timeout: None, ..wanted };
        assert!(told(Launcher::Prrte, &crowded).contains("|--map-by|l3cache:OVERSUBSCRIBE|-n|"));
        let crowded = Wanted { map_by: None, allow_run_as_root: true, ..crowded };
        assert!(
            told(Launcher::Prrte, &crowded)
                .contains("|--map-by|:OVERSUBSCRIBE|--allow-run-as-root|-n|")
        );
        assert!(
            told(Launcher::OpenMpi4, &crowded).contains("|--oversubscribe|--allow-run-as-root|-n|")
        );
        let to_files = Wanted { files: &files, ..crowded };
        assert!(told(Launcher::Hydra, &to_files).contains("|-outfile-pattern|out.%r|-n|"));
    }

    #[test]
    fn launchers_are_known_by_what_they_say_of_their_version() {
        for (said, launcher) in [
            (
                "HYDRA build details:\n    Version:                                 5.0.2\n",
                Some(Launcher::Hydra),
            ),
            (
                "Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 20240515\n",
                Some(Launcher::Hydra),
            ),
            (
                "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/\n",
                Some(Launcher::OpenMpi4),
            ),
            ("mpirun (Open MPI) 5.0.11\n", Some(Launcher::Prrte)),
            ("mpirun (Open MPI) 10.0.0rc1\n", Some(Launcher::Prrte)),
            ("prterun (PRRTE) 3.0.8\n", Some(Launcher::Prrte)),
            ("mpirun (Open MPI) next\n", None),
            ("another program 1.0\n", None),
            ("-----\nSorry!  You were supposed to get help about:\n    version\n", None),
            ("", None),
        ] {
            assert_eq!(Launcher::of_version(said), launcher, "{said}");
        }
    }

    /// A script that starts another program, one that says nothing, one that fails.
    #[test]
    fn scripts_are_asked_as_programs_are() {
        let folder = tempfile::tempdir().unwrap();
        let script = |name: &str, text: &str| {
            let path = folder.path().join(name);
            gapless_testkit::write_script(&path, &format!("#!/bin/sh\n{text}\n"));
            path
        };
        let real = script("real", r#"[ "$1" = --version ] && echo "mpirun (Open MPI) 5.0.11""#);
        let wrapper = script("mpirun", &format!("exec '{}' \"$@\"", real.display()));
        let said = version(&wrapper, ANSWER).unwrap();
        assert_eq!(Launcher::of_version(&said), Some(Launcher::Prrte), "{said}");
        for text in ["exit 3", "echo >&2 no such option; exit 1"] {
            let said = version(&script("other", text), ANSWER).unwrap();
            assert_eq!(Launcher::of_version(&said), None, "{said}");
        }
        assert_eq!(version(&folder.path().join("nothing"), ANSWER), None);
        // One that is waited for to its end says the empty text.
        let silent = script("silent", "exec sleep 60");
        assert_eq!(version(&silent, Duration::from_millis(50)), None);
    }
}
