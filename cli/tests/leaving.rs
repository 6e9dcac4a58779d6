//! Processes that leave in the middle: the others wait for them, and the log says so.

mod common;

use common::{
    BODY, WATCHDOG, again, assert_ran, await_flag, finish_all, flag, gapless, is_rank,
    meeting_folder, text,
};
use gapless::{Error, Source, World};
use std::io::{self, Write};

/// What the log says of a world that is dropped.
const DROPPED: &str = "a world was dropped, not finalized, and waits for process 0";

/// The standard error output, which leaves a flag once that was said.
struct Said;

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(bytes)?;
        if text(bytes).contains(DROPPED) {
            flag(&meeting_folder(), "said");
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Leaves early, with an error that the other does not know of.
fn fails(world: World) -> Result<(), Error> {
    world.comm().send(&[7u8], 9, 0)?;
    world.finalize()
}

/// One process leaves by `?` while the other waits for its message. Nobody ends that, but a user learns where to look.
#[test]
fn a_world_that_is_dropped_in_the_middle_names_whom_it_waits_for() {
    let name = "a_world_that_is_dropped_in_the_middle_names_whom_it_waits_for";
    if is_rank(name) {
        let warnings = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
        warnings.with_writer(|| Said).with_ansi(false).init();
        let world = World::init().expect("the world comes to be");
        let comm = world.comm();
        // They know each other.
        comm.barrier().unwrap();
        if world.rank() == 1 {
            assert!(fails(world).is_err());
            return;
        }
        let mut byte = [0u8];
        std::thread::scope(|threads| {
            // Once it was said, this wait may end; else it would last for ever.
            threads.spawn(|| {
                await_flag(&meeting_folder(), "said");
                comm.send(&[1u8], 0, 0).unwrap();
            });
            assert_eq!(comm.recv(&mut byte, Source::Any, 0).unwrap().source, 0);
        });
        world.finalize().unwrap();
        return;
    }
    let folder = tempfile::tempdir().expect("a folder for flags");
    let mut command = gapless();
    command.args(["run", "-p", "-n", "2", "-e", &format!("{BODY}={name}"), "-e"]);
    command.arg(format!("GAPLESS_TEST_FOLDER={}", folder.path().display()));
    command.args(again(name));
    let output = finish_all(command, WATCHDOG);
    assert_ran(&output, 2);
    let said = text(&output.stderr);
    assert_eq!(said.matches(DROPPED).count(), 1, "once, and of rank 1: {said}");
    let line = said.lines().find(|line| line.contains(DROPPED)).expect("it was counted");
    assert!(line.contains("if they wait for this process, that never ends"), "{line}");
}
