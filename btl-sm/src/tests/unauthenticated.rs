//! Other processes of the same user, which know what every process can read, or more.

use super::{job, until};
use crate::address::{Hello, Nonce, SmAddress};
use crate::config::SlotClass;
use crate::geometry::Geometry;
use crate::lane::Lane;
use crate::{Sm, SmConfig, socket};
use gapless_btl::{Address, AmTag, Btl, Event, LinkError, Queue, Token};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

const PART: &str = "GAPLESS_SM_UNAUTHENTICATED";

/// Another process, until it is dropped: this test program once more.
struct Unauthenticated(Child);

impl Unauthenticated {
    /// One that has done what it is to do, to the processes behind `addresses`.
    fn that(does: &str, addresses: [&Address; 2]) -> Unauthenticated {
        let hex = |address: &Address| -> String {
            address.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "tests::unauthenticated::what_unauthenticated_processes_do",
                "--exact",
                "--nocapture",
            ])
            .env(PART, does)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        for address in addresses {
            writeln!(child.stdin.as_mut().unwrap(), "{}", hex(address)).unwrap();
        }
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "@done"), "it has ended before");
        Unauthenticated(child)
    }
}

impl Drop for Unauthenticated {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The other process's side.
#[test]
fn what_unauthenticated_processes_do() {
    let Ok(part) = std::env::var(PART) else { return };
    let mut line = String::new();
    let mut address = || {
        line.clear();
        std::io::stdin().lock().read_line(&mut line).unwrap();
        let digits = |at: usize| u8::from_str_radix(&line[2 * at..2 * at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..line.trim().len() / 2).map(digits).collect();
        SmAddress::read(&Address::new(&bytes).unwrap()).unwrap()
    };
    let (one, other) = (address(), address());
    let _kept: (Option<socket::Socket>, Option<rustix::fd::OwnedFd>) = match &*part {
        "greets the first in the name of the second" => {
            let socket = socket::call(&one.meeting_place()).unwrap().unwrap();
            greet(&socket, other.nonce, one.nonce);
            (Some(socket), None)
        }
        "listens in the place of the first" => {
            (None, Some(socket::listen(&one.meeting_place()).unwrap()))
        }
        other => panic!("nobody does {other}"),
    };
    println!("\n@done");
    // Until the other end has had enough.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

pub(super) fn greet(socket: &socket::Socket, from: Nonce, to: Nonce) {
    let classes = [SlotClass { bytes: 320, count: 1 }];
    let (lane, file) = Lane::create(Geometry::new(16, &classes).unwrap()).unwrap();
    let geometry = lane.geometry().clone();
    let hello = Hello { from, to, geometry, asymmetric: false, probe: (0, 0), number: None };
    assert_eq!(socket::send(socket, hello.packet().as_ref(), Some(&file)), Ok(true));
}

fn open(job: &str, name: &str) -> Sm {
    Sm::new(SmConfig::new(job, name)).unwrap()
}

/// Even one that knows all secrets of the job (a process of the job) is not taken for another one, and does not
/// keep that one out.
#[test]
fn nobody_is_met_in_the_name_of_another() {
    const GREETS: &str = "greets the first in the name of the second";
    for early in [true, false] {
        let job = job();
        let (mut alice, mut bob) = (open(&job, "alice"), open(&job, "bob"));
        let (to_alice, to_bob) = (alice.address(), bob.address());
        let mut events = Queue::with_capacity(16);
        let mut impostor = None;
        if early {
            impostor = Some(Unauthenticated::that(GREETS, [&to_alice, &to_bob]));
            alice.look_around();
        }
        let bob_there = alice.connect(&to_bob).unwrap();
        if !early {
            impostor = Some(Unauthenticated::that(GREETS, [&to_alice, &to_bob]));
            alice.look_around();
        }
        let alice_there = bob.connect(&to_alice).unwrap();
        let mut sent = false;
        until("bob's message is there", || {
            bob.poll(None, &mut events);
            assert!(events.is_empty());
            if let (false, Ok(mut slot)) = (sent, bob.reserve(alice_there, 3)) {
                slot.write(0, b"bob").unwrap();
                bob.send(slot, AmTag(1), Token::NONE);
                sent = true;
            }
            alice.poll(None, &mut events);
            events.drain().any(|event| match event {
                Event::Arrived { from, fragment, .. } => {
                    assert_eq!(from, bob_there);
                    fragment.to_vec().unwrap() == b"bob"
                }
                other => panic!("{other:?}"),
            })
        });
        drop(impostor);
    }
}

/// The name of one that has ended is free. Whoever takes it learns no secret.
#[test]
fn who_listens_in_the_place_of_the_dead_is_not_greeted() {
    let job = job();
    let (mut alice, bob) = (open(&job, "alice"), open(&job, "bob"));
    let (to_alice, to_bob) = (alice.address(), bob.address());
    drop(bob);
    let squatter = Unauthenticated::that("listens in the place of the first", [&to_bob, &to_alice]);
    let error = alice.connect(&to_bob).unwrap_err();
    assert!(
        matches!(&error, LinkError::PeerGone { reason } if reason.contains("in its place")),
        "{error}"
    );
    drop(squatter);
}

/// In a process of its own, which may open few files: whoever calls, whether it greets or not, costs an eighth of them
/// together, and those that greet leave room for others.
#[test]
fn all_callers_together_hold_few_descriptors() {
    let name = "tests::unauthenticated::all_callers_together_hold_few_descriptors";
    if std::env::var_os(PART).is_none() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([name, "--exact", "--nocapture"]).env(PART, "is called by many");
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
        return;
    }
    // What was lowered for this process already it cannot raise.
    let most = getrlimit(Resource::Nofile).maximum.map_or(512, |most| most.min(512));
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let eighth = usize::try_from(most).unwrap() / 8;
    let job = job();
    let mut alice = open(&job, "alice");
    let place = alice.address.meeting_place();
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open_files();
    let mut kept = Vec::new();
    for greets in [true, false, true] {
        for _ in 0..eighth {
            let socket = socket::call(&place).unwrap().unwrap();
            if greets {
                let mut nonce = alice.address.nonce;
                crate::address::random(&mut nonce).unwrap();
                greet(&socket, nonce, alice.address.nonce);
            }
            kept.push(socket);
            alice.look_around();
            let theirs = open_files() - before - kept.len();
            assert!(
                theirs <= eighth,
                "{theirs} descriptors for {} unauthenticated processes",
                kept.len()
            );
        }
    }
    // Those of the job still get in: one that we call first, and one that was introduced and calls us first.
    let mut bob = open(&job, "bob");
    let mut carol = open(&job, "carol");
    let to_bob = alice.connect(&bob.address()).unwrap();
    bob.connect(&alice.address()).unwrap();
    let to_carol = alice.introduce(&carol.address()).unwrap();
    let from_carol = carol.connect(&alice.address()).unwrap();
    let mut events = Queue::with_capacity(16);
    until("they have met", || {
        for one in [&mut alice, &mut bob, &mut carol] {
            one.poll(None, &mut events);
        }
        assert!(!events.drain().any(|event| matches!(event, Event::Lost { .. })));
        // Sending would make her call: what is asked is whether she has answered.
        let called = carol.reserve(from_carol, 1).is_ok();
        called && alice.reserve(to_bob, 1).is_ok()
    });
    assert!(alice.reserve(to_carol, 1).is_ok());
}
