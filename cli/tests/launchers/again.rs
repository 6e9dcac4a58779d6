//! More than one world in a process: one at a time, and another after the first where the launcher takes a
//! process again. A launcher's descriptor is nobody else's meanwhile.

use super::WATCHDOG;
use crate::common::{BODY, again, finish, is_rank, ranks, text};
use gapless::wireup::WireupError;
use gapless::{BootError, Error, World};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

/// A message around.
fn around(world: &World) {
    let comm = world.comm();
    let (right, left) = ((comm.rank() + 1) % comm.size(), comm.rank().wrapping_sub(1));
    let (mine, mut token) = ([comm.rank()], [0u32]);
    comm.scope(|s| {
        let _ = s.isend(&mine, right, 0)?;
        let _ = s.irecv(&mut token, left.min(comm.size() - 1), 0)?;
        Ok(())
    })
    .unwrap();
    assert_eq!(token[0], left.min(comm.size() - 1));
}

/// Leaves the world and joins the job again, if the launcher allows that.
fn join_again(world: World) -> Result<World, Error> {
    for _ in 0..2 {
        let error = World::init().unwrap_err();
        assert_eq!(error, Error::from(WireupError::Joined));
        assert_eq!(error.to_string().lines().count(), 1);
    }
    around(&world);
    world.finalize().unwrap();
    // These get the numbers that have become free.
    let pairs: Vec<_> = (0..8).map(|_| UnixStream::pair().unwrap()).collect();
    let joined = World::init();
    for mut end in pairs.iter().flat_map(|(one, other)| [one, other]) {
        end.set_nonblocking(true).unwrap();
        let heard = end.read(&mut [0]).unwrap_err();
        assert_eq!(heard.kind(), ErrorKind::WouldBlock, "the launcher's lines went elsewhere");
    }
    joined
}

#[test]
fn worlds_follow_each_other_under_our_launcher() {
    ranks(3, "launchers::again::worlds_follow_each_other_under_our_launcher", |world| {
        let mut world = join_again(world).unwrap();
        around(&world);
        world = join_again(world).unwrap();
        // One that is dropped leaves as well.
        drop(world);
        World::init().unwrap().finalize().unwrap();
    });
}

/// In step and not, alone, with all others, and with others that finalize.
#[test]
fn worlds_that_are_dropped_follow_each_other() {
    ranks(3, "launchers::again::worlds_that_are_dropped_follow_each_other", |mut world| {
        for round in 0..6 {
            around(&world);
            let rank = world.rank();
            if rank == round % 3 {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            match round >= 3 && rank > 0 {
                true => world.finalize().unwrap(),
                false => drop(world),
            }
            world = World::init().unwrap();
        }
        world.finalize().unwrap();
    });
}

#[test]
fn worlds_follow_each_other_if_the_launcher_takes_a_process_again() {
    let name = "launchers::again::worlds_follow_each_other_if_the_launcher_takes_a_process_again";
    super::pass_under_each(2, name, || match join_again(World::init().unwrap()) {
        Ok(world) => {
            around(&world);
            world.finalize().unwrap();
        }
        Err(Error::Boot(BootError::Wireup(WireupError::OnlyOnce { .. }))) => {}
        Err(error) => panic!("{error}"),
    });
}

/// Serves a job of one until it is left, and hangs up then, as hydra does.
fn serve(stream: UnixStream) {
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    while matches!(lines.read_line(&mut line), Ok(len) if len > 0) {
        let answer = match line.split(' ').next().unwrap_or("").trim() {
            "cmd=init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "cmd=get_maxes" => "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024",
            "cmd=get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_1",
            "cmd=put" => "cmd=put_result rc=0",
            "cmd=barrier_in" => "cmd=barrier_out",
            "cmd=finalize" => "cmd=finalize_ack",
            other => panic!("a job of one asks nothing like {other}"),
        };
        writeln!(lines.get_mut(), "{answer}").unwrap();
        if answer == "cmd=finalize_ack" {
            return;
        }
        line.clear();
    }
}

#[test]
fn a_launcher_that_takes_a_process_once() {
    let name = "launchers::again::a_launcher_that_takes_a_process_once";
    if is_rank(name) {
        let mut joined = join_again(World::init().unwrap());
        for words in ["(init: ", "did not leave it in good order"] {
            let Err(error @ Error::Boot(BootError::Wireup(WireupError::OnlyOnce { .. }))) = &joined
            else {
                panic!("this launcher has hung up, and yet: {joined:?}");
            };
            let line = error.to_string();
            assert!(line.contains(words) && line.lines().count() == 1, "{line}");
            joined = World::init();
        }
        return;
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = std::thread::spawn(move || serve(ours));
    // As number 9, which the test program itself does not have open.
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" 9<&0 0</dev/null", "sh"]).args(again(name));
    command.env(BODY, name).stdin(Stdio::from(OwnedFd::from(theirs)));
    command.envs([("PMI_FD", "9"), ("PMI_RANK", "0"), ("PMI_SIZE", "1")]);
    let output = finish(command, WATCHDOG);
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    server.join().unwrap();
}
