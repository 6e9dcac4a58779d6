//! Running a test's body as the ranks of a job: the test binary starts itself again.
#![allow(dead_code, reason = "every test program uses a part of this")]

pub(crate) mod denied;

use gapless::World;
use gapless::wireup::{Questions, Wireup, WireupError};
pub(crate) use gapless_testkit::skip;
use rustix::net::{AddressFamily, SocketType};
use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Names the test whose body this process is to run as a rank.
pub(crate) const BODY: &str = "GAPLESS_TEST_BODY";
/// Where ranks without a launcher meet.
const FOLDER: &str = "GAPLESS_TEST_FOLDER";
const RANK: &str = "GAPLESS_TEST_RANK";
const SIZE: &str = "GAPLESS_TEST_SIZE";

/// No job here takes longer unless something hangs.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(100);

/// Longest that ranks without a launcher wait for each other, however busy the machine is.
const MEETING: Duration = Duration::from_secs(60);

/// The command under test.
pub(crate) fn gapless() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gapless"));
    // Whatever this machine was tuned to, protocols are chosen by the defaults.
    command.stdin(Stdio::null()).env_remove("RUST_LOG");
    command.env("GAPLESS_TUNING", "").env("GAPLESS_COLL", "");
    command
}

/// Runs a command to its end; kills it and fails if that takes too long.
pub(crate) fn finish(mut command: Command, within: Duration) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    finish_child(child, within, &format!("{command:?}"))
}

pub(crate) fn finish_child(mut child: Child, within: Duration, what: &str) -> Output {
    let begin = Instant::now();
    let drain = |stream: Option<Box<dyn std::io::Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut stream) = stream {
                let _ = stream.read_to_end(&mut bytes);
            }
            bytes
        })
    };
    let stdout = drain(child.stdout.take().map(|s| Box::new(s) as _));
    let stderr = drain(child.stderr.take().map(|s| Box::new(s) as _));
    let status = loop {
        if let Some(status) = child.try_wait().expect("it can be waited for") {
            break status;
        }
        if begin.elapsed() > within {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{what} did not end within {within:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let stdout = stdout.join().expect("reading does not panic");
    let stderr = stderr.join().expect("reading does not panic");
    Output { status, stdout, stderr }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The rows of a table that are about `name`; a note below the table may name it as well.
pub(crate) fn rows<'a>(table: &'a str, name: &str) -> Vec<&'a str> {
    let is_about = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with("  "));
    table.lines().filter(is_about).collect()
}

/// A port of this host that nobody listens at, and what keeps it so: as long as it is bound, no other
/// program is given it.
pub(crate) fn closed_port() -> (u16, OwnedFd) {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let place = rustix::net::getsockname(&socket).unwrap();
    (SocketAddr::try_from(place).unwrap().port(), socket)
}

/// Starts this test binary again, to run one test alone.
pub(crate) fn again(name: &str) -> Vec<std::ffi::OsString> {
    let program = std::env::current_exe().expect("this program lies somewhere");
    let rest = [name, "--exact", "--nocapture", "--test-threads=1"];
    [program.into_os_string()].into_iter().chain(rest.map(Into::into)).collect()
}

pub(crate) fn is_rank(name: &str) -> bool {
    std::env::var(BODY).is_ok_and(|body| body == name)
}

/// Runs `body` in `ranks` processes under the launcher. To be all that the test called `name` does.
pub(crate) fn ranks(ranks: u32, name: &str, body: impl FnOnce(World)) {
    ranks_with(ranks, name, World::builder, body);
}

/// As [`ranks`], with choices about the world.
pub(crate) fn ranks_with(
    ranks: u32,
    name: &str,
    builder: impl FnOnce() -> gapless::Builder,
    body: impl FnOnce(World),
) {
    if is_rank(name) {
        return body(builder().init().expect("the world comes to be"));
    }
    let mut command = gapless();
    command.args(["run", "-p", "-n", &ranks.to_string(), "-e", &format!("{BODY}={name}")]);
    command.args(again(name));
    assert_ran(&finish_all(command, WATCHDOG), ranks);
}

/// As [`finish`], for a command that must succeed.
pub(crate) fn finish_all(command: Command, within: Duration) -> Output {
    let output = finish(command, within);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    output
}

/// Asserts that a test passed in so many processes: a misspelt name would run nothing, successfully.
pub(crate) fn assert_ran(output: &Output, ranks: u32) {
    let ran = text(&output.stdout).matches("1 passed").count();
    assert_eq!(ran, ranks as usize, "{}", text(&output.stdout));
}

/// Runs `body` in `size` processes without a launcher, so that nobody ends the others when one
/// dies. Ranks in `dying` must be killed by a signal, the others must succeed, all `within`.
pub(crate) fn orphans(
    size: u32,
    name: &str,
    dying: &[u32],
    within: Duration,
    body: impl FnOnce(gapless::Builder),
) {
    if is_rank(name) {
        return body(World::builder().wireup(folder_wireup()));
    }
    orphans_at(size, name, dying, within, |_| Vec::new());
}

/// In a rank without a launcher: meeting through files.
pub(crate) fn folder_wireup() -> Box<dyn Wireup> {
    let number = |name| std::env::var(name).unwrap().parse().unwrap();
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    Box::new(Folder { rank: number(RANK), size: number(SIZE), fences: 0, folder })
}

/// Starts the ranks of [`orphans`], each by the command that `before` gives, and waits for them.
pub(crate) fn orphans_at(
    size: u32,
    name: &str,
    dying: &[u32],
    within: Duration,
    before: impl Fn(u32) -> Vec<std::ffi::OsString>,
) {
    let folder = tempfile::tempdir().expect("a folder for meeting");
    let start = |rank: u32| {
        let words = [before(rank), again(name)].concat();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env(BODY, name).env(FOLDER, folder.path());
        command.env(RANK, rank.to_string()).env(SIZE, size.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let children: Vec<Child> = (0..size).map(start).collect();
    let ends = children
        .into_iter()
        .map(|child| std::thread::spawn(move || finish_child(child, within, "a rank")));
    let mut failed = String::new();
    for (rank, end) in (0u32..).zip(ends.collect::<Vec<_>>()) {
        let output = end.join().expect("no rank hangs");
        let fine = match dying.contains(&rank) {
            true => output.status.code().is_none(),
            false => output.status.success() && text(&output.stdout).contains("1 passed"),
        };
        if !fine {
            let (out, err) = (text(&output.stdout), text(&output.stderr));
            failed += &format!("rank {rank}: {}\n{out}\n{err}\n", output.status);
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

/// Meeting through files in a folder.
struct Folder {
    rank: u32,
    size: u32,
    fences: u32,
    folder: PathBuf,
}

impl Folder {
    fn write(&self, name: &str, text: &str) {
        let temporary = self.folder.join(format!("{name}.{}.tmp", self.rank));
        std::fs::write(&temporary, text).expect("the folder is ours");
        std::fs::rename(temporary, self.folder.join(name)).expect("the folder is ours");
    }
}

impl Wireup for Folder {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn local_size(&self) -> Option<u32> {
        Some(self.size)
    }

    fn job(&self) -> &str {
        self.folder.file_name().and_then(OsStr::to_str).expect("temporary folders have plain names")
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), WireupError> {
        self.write(&format!("{}.{key}", self.rank), value);
        Ok(())
    }

    fn fence(&mut self) -> Result<(), WireupError> {
        self.fence_answering(&|| true, &Questions::default())
    }

    fn fence_while(&mut self, go_on: &dyn Fn() -> bool) -> Result<(), WireupError> {
        self.fence_answering(go_on, &Questions::default())
    }

    fn answers_at_fences(&self) -> bool {
        true
    }

    fn fence_answering(
        &mut self,
        go_on: &dyn Fn() -> bool,
        questions: &Questions,
    ) -> Result<(), WireupError> {
        self.fences += 1;
        let number = self.fences;
        let name = |rank| format!("fence-{number}-{rank}");
        self.write(&name(self.rank), "");
        let begin = Instant::now();
        while !(0..self.size).all(|rank| self.folder.join(name(rank)).exists()) {
            questions.answer_all(|from, key| self.get(from, key));
            if !go_on() {
                return Err(WireupError::GivenUp);
            }
            if begin.elapsed() > MEETING {
                let reason = "the others do not come".to_owned();
                return Err(WireupError::LauncherGone { doing: "fence", reason });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn get(&mut self, from: u32, key: &str) -> Result<String, WireupError> {
        let missing = |_| WireupError::NoSuchKey { from, key: key.to_owned() };
        std::fs::read_to_string(self.folder.join(format!("{from}.{key}"))).map_err(missing)
    }

    fn finalize(&mut self) -> Result<(), WireupError> {
        Ok(())
    }
}

/// Bytes that depend on where they are and on `seed`.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|i| {
            (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0xff51_afd7_ed55_8ccd))
                .to_be_bytes()[1]
        })
        .collect()
}

/// A file that one rank leaves for others, and that they wait for.
pub(crate) fn flag(folder: &Path, name: &str) {
    std::fs::write(folder.join(name), "").expect("the folder is ours");
}

/// Where ranks without a launcher meet.
pub(crate) fn meeting_folder() -> PathBuf {
    PathBuf::from(std::env::var_os(FOLDER).expect("only called in ranks"))
}

/// Joins, and waits until all others have joined: whoever dies before is an error of joining.
pub(crate) fn join(builder: gapless::Builder) -> World {
    let world = builder.init().expect("the world comes to be");
    let folder = meeting_folder();
    flag(&folder, &format!("joined-{}", world.rank()));
    (0..world.size()).for_each(|rank| await_flag(&folder, &format!("joined-{rank}")));
    world
}

/// Waits for [`flag`].
pub(crate) fn await_flag(folder: &Path, name: &str) {
    let begin = Instant::now();
    while !folder.join(name).exists() {
        assert!(begin.elapsed() < MEETING, "nobody left {name}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
