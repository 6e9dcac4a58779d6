//! `cargo xtask test --odd`: the workspace's tests as machines differ. Every [`Oddity`] is a round of its own, so that
//! a failure names what it comes from.
//!
//! A round runs the tests of the crates that touch what differs ([`Oddity::crates`]); what only computes cannot see it.
//! What is repeated to meet rare moments is repeated fewer times ([`SHORTER`]), as `cargo xtask test` does it in full.
//! Documentation's tests are compiled where they run, which is not what is odd.
//!
//! Caches and small file systems are pretended in a mount namespace of the round's own (`unshare`, as root); what the
//! machine does not allow is skipped aloud. Everything is built before the first round, with the features that the
//! workspace's crates turn on for each other; each test program then runs without cargo.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::Failure;
use crate::metadata::Checkout;
use crate::skips::{Skip, SkipLog};

/// A way in which the machine of a round differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Oddity {
    /// What the user calls it.
    pub(crate) name: &'static str,
    change: Change,
    /// The crates that touch it, and so can fail for it.
    pub(crate) crates: &'static [&'static str],
}

/// Crates that start processes and threads, wait, and open sockets, files and shared memory.
const ACTORS: &[&str] = &[
    "gapless",
    "gapless-bml",
    "gapless-boot",
    "gapless-btl",
    "gapless-btl-sm",
    "gapless-btl-tcp",
    "gapless-btl-testkit",
    "gapless-cli",
    "gapless-episim",
    "gapless-example-device",
    "gapless-fft3d",
    "gapless-gpu",
    "gapless-halo",
    "gapless-mem",
    "gapless-mem-cuda",
    "gapless-mem-opencl",
    "gapless-peers",
    "gapless-pml",
    "gapless-sgd",
    "gapless-sync",
    "gapless-tests",
    "xtask",
];
/// Crates that look at all sockets of the machine, or give theirs names.
const SOCKETS: &[&str] = &[
    "gapless",
    "gapless-boot",
    "gapless-btl-sm",
    "gapless-btl-tcp",
    "gapless-cli",
    "gapless-tests",
];
/// Crates that ask the kernel how large caches are.
const CACHES: &[&str] =
    &["gapless", "gapless-bench", "gapless-boot", "gapless-cli", "gapless-report"];
/// Crates with loops for each kind of processor, what tries all of those, and kernels that PoCL compiles for it.
const VECTORS: &[&str] = &[
    "gapless-dtype",
    "gapless-dtype-cuda",
    "gapless-engine",
    "gapless-kernels",
    "gapless-layouts",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    OneProcessor,
    /// The limit of open files, soft and hard.
    Descriptors(u32),
    /// So many threads that do nothing but take time.
    Busy(usize),
    /// Another process's socket has a name that is no text.
    Socket,
    /// The last level's cache has so many KiB, as far as the kernel tells.
    Cache(u32),
    WithoutAvx512,
    /// `/tmp` and `/dev/shm` hold so many MiB.
    SmallFolders(u32),
}

/// All of them, in the order of the rounds.
pub(crate) const ALL: &[Oddity] = &[
    Oddity { name: "one-processor", change: Change::OneProcessor, crates: ACTORS },
    Oddity { name: "256-descriptors", change: Change::Descriptors(256), crates: ACTORS },
    Oddity { name: "busy", change: Change::Busy(2), crates: ACTORS },
    Oddity { name: "odd-socket", change: Change::Socket, crates: SOCKETS },
    Oddity { name: "cache-8M", change: Change::Cache(8 << 10), crates: CACHES },
    Oddity { name: "cache-32M", change: Change::Cache(32 << 10), crates: CACHES },
    Oddity { name: "cache-480M", change: Change::Cache(480 << 10), crates: CACHES },
    Oddity { name: "without-avx512", change: Change::WithoutAvx512, crates: VECTORS },
    Oddity { name: "small-folders", change: Change::SmallFolders(64), crates: ACTORS },
];

/// How often a round repeats what is repeated to meet rare moments: a fifth of the usual number, unless the user says.
const SHORTER: &[(&str, &str)] = &[
    ("GAPLESS_DEVICE_KILLS", "6"),
    ("GAPLESS_HOSTILE_ROUNDS", "8"),
    ("GAPLESS_KILLS", "40"),
    ("GAPLESS_SOAK_SECONDS", "1"),
    ("PROPTEST_CASES", "50"),
];

/// Some tests of a program: its package, its target, and words of which one is in each test's name; without words, all.
pub(crate) struct Chosen {
    pub(crate) package: &'static str,
    pub(crate) target: &'static str,
    pub(crate) words: &'static [&'static str],
}

const fn some(
    package: &'static str,
    target: &'static str,
    words: &'static [&'static str],
) -> Chosen {
    Chosen { package, target, words }
}

/// What `cargo xtask test --rest` runs on odd machines, in seconds: the tests that see most of the oddity, as they meet
/// the limits, or have failed so before.
pub(crate) const ALWAYS: &[(&str, &[Chosen])] = &[
    (
        "one-processor",
        &[
            some("gapless-cli", "all", &["messages::"]),
            some("gapless-pml", "all", &["death::", "messages::"]),
        ],
    ),
    ("256-descriptors", &[some("gapless-cli", "all", &["launcher::", "limits::"])]),
    ("cache-480M", &[some("gapless-cli", "all", &["command::"])]),
    (
        "without-avx512",
        &[
            some("gapless-dtype", "all", &["layouts::"]),
            some("gapless-dtype", "allocation", &[]),
            some("gapless-engine", "allocation", &[]),
            some("gapless-pml", "all", &["layouts::"]),
        ],
    ),
];

/// The variables of [`SHORTER`] that the user has not set.
pub(crate) fn shorter() -> impl Iterator<Item = (&'static str, &'static str)> {
    SHORTER.iter().copied().filter(|(name, _)| std::env::var_os(name).is_none())
}

/// The oddities of a user's word: `all`, or names with commas between them.
pub(crate) fn named(word: &str) -> Result<Vec<Oddity>, String> {
    if word == "all" {
        return Ok(ALL.to_vec());
    }
    let one = |name: &str| {
        let known = || ALL.iter().map(|oddity| oddity.name).collect::<Vec<_>>().join(", ");
        let found = ALL.iter().find(|oddity| oddity.name == name);
        found.copied().ok_or_else(|| format!("no oddity is called {name}; there are {}", known()))
    };
    word.split(',').map(one).collect()
}

/// What a round needs while it runs; dropped at its end.
#[derive(Debug, Default)]
pub(crate) struct Company {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
    socket: Option<UnixListener>,
}

impl Drop for Company {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A loop does not panic.
            let _ = thread.join();
        }
        drop(self.socket.take());
    }
}

impl Oddity {
    /// Words to put before a command, and variables to set for it, so that it runs on such a machine; `None` and a
    /// line in the log where that cannot be.
    pub(crate) fn prepare(
        self,
        checkout: &Checkout,
        log: &SkipLog,
    ) -> Result<Option<(Prefix, Company)>, Failure> {
        let prepared = self.change.prepare(&checkout.root, &checkout.target);
        match prepared {
            Ok(prepared) => Ok(Some(prepared)),
            Err(why) => {
                log.add(&Skip { what: format!("a machine with {}", self.name), why })?;
                Ok(None)
            }
        }
    }
}

/// What comes before a command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Prefix {
    words: Vec<OsString>,
    variable: Option<&'static str>,
}

impl Prefix {
    /// The command, with what comes before it.
    pub(crate) fn before(&self, command: &Command) -> Command {
        let Some((first, rest)) = self.words.split_first() else {
            return self.set(copy_of(command, Command::new(command.get_program())));
        };
        let mut all = Command::new(first);
        all.args(rest).arg(command.get_program());
        self.set(copy_of(command, all))
    }

    fn set(&self, mut command: Command) -> Command {
        command.envs(self.variable.map(|name| (name, "1")));
        command
    }

    fn words(words: &[&str]) -> Prefix {
        Prefix { words: words.iter().map(Into::into).collect(), variable: None }
    }

    /// A mount namespace in which a shell has run these lines.
    fn mounted(lines: &str) -> Result<Prefix, String> {
        let shell = format!("set -e\n{lines}\nexec \"$@\"");
        let prefix = Prefix::words(&["unshare", "--mount", "sh", "-c", &shell, "sh"]);
        let mut tried = prefix.before(&Command::new("true"));
        match tried.stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() => Ok(prefix),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                Err(said.lines().next().unwrap_or("unshare failed").to_owned())
            }
            Err(error) => Err(format!("unshare: {error}")),
        }
    }
}

/// Arguments, variables and folder of one command, at the end of another.
fn copy_of(command: &Command, mut to: Command) -> Command {
    to.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => to.env(name, value),
            None => to.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        to.current_dir(folder);
    }
    to
}

impl Change {
    fn prepare(self, root: &Path, target: &Path) -> Result<(Prefix, Company), String> {
        let mut company = Company::default();
        let prefix = match self {
            Change::OneProcessor => {
                let allowed = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
                Prefix::words(&["taskset", "--cpu-list", &first_processor(&allowed)])
            }
            // The tests of one program share them: so one test at a time.
            Change::Descriptors(limit) => Prefix {
                variable: Some("RUST_TEST_THREADS"),
                ..Prefix::words(&["prlimit", &format!("--nofile={limit}:{limit}")])
            },
            Change::Busy(threads) => {
                company.threads = (0..threads).map(|_| busy(Arc::clone(&company.stop))).collect();
                Prefix::default()
            }
            Change::Socket => {
                company.socket = Some(odd_socket().map_err(|error| error.to_string())?);
                Prefix::default()
            }
            Change::Cache(kib) => Prefix::mounted(&cache(kib))?,
            Change::WithoutAvx512 => {
                Prefix { variable: Some("GAPLESS_TEST_WITHOUT_AVX512"), ..Prefix::default() }
            }
            Change::SmallFolders(mib) => {
                let hidden = [root, target].into_iter().find(|path| path.starts_with("/tmp"));
                if let Some(path) = hidden {
                    return Err(format!("{} would be hidden", path.display()));
                }
                let mount =
                    |folder| format!("mount -t tmpfs -o size={mib}m,mode=1777 small {folder}");
                Prefix::mounted(&format!("{}\n{}", mount("/tmp"), mount("/dev/shm")))?
            }
        };
        Ok((prefix, company))
    }
}

/// The first processor of `Cpus_allowed_list`.
fn first_processor(status: &str) -> String {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let first: String =
        list.unwrap_or("0").trim().chars().take_while(char::is_ascii_digit).collect();
    if first.is_empty() { "0".to_owned() } else { first }
}

fn busy(stop: Arc<AtomicBool>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    })
}

/// A socket in the list of all (`/proc/net/unix`) whose name is not UTF-8, and has ends of lines in it.
fn odd_socket() -> io::Result<UnixListener> {
    let mut name = b"odd \xff\xfe\n@gapless/\n".to_vec();
    name.extend(std::process::id().to_le_bytes());
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Lines of a shell that lay another size over that of every cache of the highest level. The file lies in memory of
/// the namespace's own, which goes with it.
fn cache(kib: u32) -> String {
    format!(
        "cd /sys/devices/system/cpu\n\
         level=$(cat cpu0/cache/index*/level | sort -n | tail -n 1)\n\
         mount -t tmpfs cache /mnt\n\
         echo {kib}K > /mnt/size\n\
         for one in cpu[0-9]*/cache/index*; do\n\
         if [ \"$(cat $one/level)\" = \"$level\" ]; then mount --bind /mnt/size $one/size; fi\n\
         done\n\
         cd \"$OLDPWD\""
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_oddities() {
        assert_eq!(named("all").unwrap(), ALL);
        let two = named("busy,cache-8M").unwrap();
        assert_eq!(two.iter().map(|oddity| oddity.name).collect::<Vec<_>>(), ["busy", "cache-8M"]);
        let error = named("bussy").unwrap_err();
        assert!(error.contains("bussy") && error.contains("one-processor"), "{error}");
    }

    #[test]
    fn rounds_name_crates_that_are_there() {
        let checkout = Checkout::find().unwrap();
        for oddity in ALL {
            assert!(!oddity.crates.is_empty(), "{}", oddity.name);
            for name in oddity.crates {
                assert!(checkout.packages.iter().any(|package| package.name == *name), "{name}");
            }
        }
    }

    #[test]
    fn what_always_runs_has_known_names() {
        let checkout = Checkout::find().unwrap();
        for (name, chosen) in ALWAYS {
            assert_eq!(named(name).unwrap().len(), 1, "{name}");
            assert!(!chosen.is_empty(), "{name}");
            for Chosen { package, target, words } in *chosen {
                let found = checkout.packages.iter().find(|it| it.name == *package).unwrap();
                let folder = found.manifest_path.parent().unwrap().join("tests");
                let file = |name: &str| folder.join(format!("{name}.rs")).is_file();
                assert!(file(target), "{package} {target}");
                assert!(words.iter().all(|word| file(word.trim_end_matches("::"))), "{words:?}");
            }
        }
    }

    #[test]
    fn a_command_keeps_its_words_variables_and_folder() {
        let mut command = Command::new("cargo");
        command.args(["test", "-p", "x"]).env("A", "1").env_remove("B").current_dir("/");
        let odd = Prefix::words(&["taskset", "--cpu-list", "3"]).before(&command);
        assert_eq!(crate::shell::line(&odd), "A=1 taskset --cpu-list 3 cargo test -p x");
        assert_eq!(odd.get_current_dir(), Some(Path::new("/")));
        assert!(odd.get_envs().any(|(name, value)| name == "B" && value.is_none()));
    }

    #[test]
    fn lists_of_processors() {
        assert_eq!(first_processor("Name:\tx\nCpus_allowed_list:\t12-15,18\n"), "12");
        assert_eq!(first_processor(""), "0");
    }

    /// What a program sees that runs behind each prefix, where the machine allows it.
    #[test]
    fn machines_are_as_odd_as_they_say() {
        let here = Path::new("/nowhere");
        let see = |change: Change, script: &str| {
            let Ok((prefix, company)) = change.prepare(here, here) else {
                println!("skipped: {change:?} needs a mount namespace");
                return None;
            };
            let output = prefix.before(Command::new("sh").args(["-c", script])).output().unwrap();
            drop(company);
            Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let expect = |change, script, expected: &str| {
            if let Some(seen) = see(change, script) {
                assert_eq!(seen, expected, "{change:?}");
            }
        };
        expect(Change::OneProcessor, "nproc", "1");
        expect(Change::Descriptors(77), "ulimit -n; ulimit -Hn", "77\n77");
        expect(Change::WithoutAvx512, "echo $GAPLESS_TEST_WITHOUT_AVX512", "1");
        expect(
            Change::Cache(8 << 10),
            "cd /sys/devices/system/cpu/cpu0/cache && cat $(ls -d index* | tail -n 1)/size",
            "8192K",
        );
        expect(
            Change::SmallFolders(3),
            "stat -f -c '%b %S' /tmp | (read b s; echo $((b * s)))",
            "3145728",
        );
        let mut odd = see(Change::Socket, "grep -ac 'odd ' /proc/net/unix").unwrap_or_default();
        odd.retain(|c| c.is_ascii_digit());
        assert_ne!(odd, "0", "the socket is in the list");
    }
}
