//! Processes that die, hide, or run out of descriptors, each in a process of its own: this program
//! once more, told by the environment which part to play.

use gapless_btl::{Access, Address, AmTag, Btl, Event, Extent, LinkError, MapError, Queue};
use gapless_btl::{PeerId, RdmaError, RemoteKey, ReserveError, Token};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_btl_testkit::conformance::skip;
use gapless_mem::Region;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const PART: &str = "GAPLESS_SM_TEST_PART";
const MARK: &str = "@says ";

/// A process that plays `part` of the test `test`, and its first word.
struct Actor {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Actor {
    fn start(test: &str, part: &str) -> Actor {
        Actor::of(Actor::command(test, part).spawn().unwrap())
    }

    /// Without root's rights, if this process has them.
    fn start_as_nobody(test: &str, part: &str) -> Result<Actor, String> {
        let mut command = Actor::command(test, part);
        if rustix::process::geteuid().is_root() {
            command.uid(65_534);
        }
        command.spawn().map(Actor::of).map_err(|e| format!("cannot run as nobody: {e}"))
    }

    fn command(test: &str, part: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(PART, part)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    fn of(mut process: Child) -> Actor {
        let output = BufReader::new(process.stdout.take().unwrap());
        Actor { process, output }
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the other process ended");
            if let Some(said) = line.trim().strip_prefix(MARK) {
                return said.to_owned();
            }
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{line}").unwrap();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // Fails if it has ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In the other process: which part to play.
fn part() -> Option<String> {
    std::env::var(PART).ok()
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{MARK}{line}").unwrap();
    out.flush().unwrap();
}

fn listen() -> String {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(1..) => line.trim().to_owned(),
        _ => std::process::exit(0),
    }
}

fn hex(address: &Address) -> String {
    address.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Address {
    let digits = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
    Address::new(&(0..text.len() / 2).map(digits).collect::<Vec<_>>()).unwrap()
}

/// Repeats until it is so, at most a minute.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "waiting until {what}");
        std::thread::yield_now();
    }
}

fn open(name: &str) -> Sm {
    Sm::new(SmConfig::new("test of processes", name)).unwrap()
}

/// In the other process: meets the one that started it.
fn meet_parent(sm: &mut Sm) -> PeerId {
    say(&hex(&sm.address()));
    let parent = unhex(&listen());
    sm.connect(&parent).unwrap()
}

fn meet_child(sm: &mut Sm, actor: &mut Actor) -> PeerId {
    let address = unhex(&actor.hear());
    let peer = sm.connect(&address).unwrap();
    actor.tell(&hex(&sm.address()));
    peer
}

/// The descriptors of a process, by what they are.
fn descriptors(pid: &str) -> Vec<String> {
    let list = std::fs::read_dir(format!("/proc/{pid}/fd"));
    let mut names: Vec<_> = list
        .into_iter()
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .filter(|name| !name.starts_with("/proc"))
        .collect();
    names.sort();
    names
}

/// Files in /dev/shm that a process has open or mapped. Such a file would remain if the process were
/// killed; other programs' files come and go there.
fn shared_files(pid: &str) -> Vec<String> {
    // A path may have any bytes.
    let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    let mapped = maps.lines().filter_map(|line| Some(line[line.find("/dev/shm/")?..].to_owned()));
    let opened = descriptors(pid).into_iter().filter(|name| name.starts_with("/dev/shm/"));
    mapped.chain(opened).collect()
}

/// Whether this process has segments of ours mapped.
fn mapped_segments() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:gapless")).count()
}

/// Sends messages of many lengths and answers allocations, for ever.
fn chatter(sm: &mut Sm, peer: PeerId) {
    let mut events = Queue::with_capacity(16);
    let mut number = 0usize;
    loop {
        match sm.reserve(peer, number * 131 % 9000) {
            Ok(mut slot) => {
                let byte = [number.to_le_bytes()[0]];
                if !slot.is_empty() {
                    slot.write(0, &byte).unwrap();
                    slot.write(slot.len() - 1, &byte).unwrap();
                }
                sm.send(slot, AmTag(byte[0]), Token(number as u64));
                number += 1;
            }
            Err(ReserveError::Full) => {}
            Err(_) => std::process::exit(0),
        }
        if number.is_multiple_of(64) {
            let allocation = sm.mapped().unwrap().allocate(10_000).unwrap();
            let _ = sm.mapped().unwrap().key(peer, allocation.lease());
        }
        sm.poll(None, &mut events);
        drop(events.drain());
    }
}

/// Killed at any moment: whatever came is whole and in order, the loss is told once and in time,
/// and nothing is left: no file, no descriptor, no mapping.
#[test]
fn killed_at_any_moment_a_process_leaves_nothing_behind() {
    const TEST: &str = "killed_at_any_moment_a_process_leaves_nothing_behind";
    match part().as_deref() {
        None => {
            // In a process of its own, where no other test opens descriptors.
            let mut actor = Actor::start(TEST, "judge");
            assert_eq!(actor.hear(), "content");
            return;
        }
        Some("victim") => {
            let mut sm = open("victim");
            let peer = meet_parent(&mut sm);
            chatter(&mut sm, peer);
        }
        Some(_) => {}
    }
    let mut sm = open("judge");
    let before = descriptors("self");
    let mut events = Queue::with_capacity(32);
    for round in 0..12u32 {
        let mut victim = Actor::start(TEST, "victim");
        // Sometimes it is met before it dies, sometimes in the middle of it.
        let peer = meet_child(&mut sm, &mut victim);
        let wait = Duration::from_micros(u64::from(round * round) * 500);
        let start = Instant::now();
        let mut killed = false;
        let mut next = 0u8;
        until("the loss", || {
            if !killed && start.elapsed() >= wait {
                let pid = victim.process.id().to_string();
                assert_eq!(shared_files(&pid), [""; 0], "round {round}: files would be left");
                victim.process.kill().unwrap();
                victim.process.wait().unwrap();
                killed = true;
            }
            sm.poll(None, &mut events);
            let mut lost = false;
            for event in events.drain() {
                assert!(!lost, "after the loss: {event:?}");
                match event {
                    Event::Arrived { tag, fragment, .. } => {
                        let bytes = fragment.to_vec().unwrap();
                        if let [first, .., last] = bytes[..] {
                            assert_eq!((first, last), (tag.0, tag.0), "a torn message");
                        }
                        assert_eq!(tag.0, next, "order");
                        next = next.wrapping_add(1);
                    }
                    Event::Lost { peer: who, error } => {
                        assert_eq!(who, peer);
                        assert!(matches!(error, LinkError::PeerGone { .. }), "{error}");
                        lost = true;
                    }
                    other => panic!("{other:?}"),
                }
            }
            lost
        });
        assert!(killed, "lost before it was killed");
        drop(victim);
        assert_eq!(descriptors("self"), before, "round {round}: descriptors are left");
        assert_eq!(mapped_segments(), 0, "round {round}: mappings are left");
    }
    assert_eq!(shared_files("self"), [""; 0]);
    say("content");
}

/// A process that may not be read (`PR_SET_DUMPABLE` 0) is not reached by single copy, and messages
/// flow all the same. Root may read everything, so the processes run as nobody then.
#[test]
fn a_process_that_hides_is_not_reached_by_single_copy() {
    const TEST: &str = "a_process_that_hides_is_not_reached_by_single_copy";
    match part().as_deref() {
        None => match Actor::start_as_nobody(TEST, "seeker") {
            Err(why) => skip(TEST, &why),
            Ok(mut actor) => match actor.hear().strip_prefix("skipped: ") {
                Some(why) => skip(TEST, why),
                None => assert_eq!(actor.hear(), "content"),
            },
        },
        Some("seeker") => {
            if reached(TEST, "open") != Ok(()) {
                return say("skipped: no process may read another here");
            }
            say("goes on");
            let error = reached(TEST, "hider").unwrap_err();
            assert!(matches!(error, RdmaError::Unavailable { .. }), "{error}");
            say("content");
        }
        Some(role) => {
            if role == "hider" {
                let hidden = rustix::process::DumpableBehavior::NotDumpable;
                rustix::process::set_dumpable_behavior(hidden).unwrap();
            }
            let mut sm = open(role);
            let peer = meet_parent(&mut sm);
            let secret = [5u8; 8];
            // SAFETY: `secret` lives until this process is killed, and nobody writes it.
            let key =
                unsafe { sm.rdma().unwrap().register(Region::of(&secret), Access::Read) }.unwrap();
            let mut events = Queue::with_capacity(4);
            let mut slot = None;
            until("the link is up", || {
                sm.poll(None, &mut events);
                slot = sm.reserve(peer, key.as_bytes().len()).ok();
                slot.is_some()
            });
            let mut slot = slot.unwrap();
            slot.write(0, key.as_bytes()).unwrap();
            sm.send(slot, AmTag(1), Token::NONE);
            until("the end", || {
                sm.poll(None, &mut events);
                events.drain().any(|event| matches!(event, Event::Lost { .. }))
            });
            assert_eq!(secret, [5; 8]);
        }
    }
}

/// Reads the secret of a process that plays `role`; gives how single copy refused.
fn reached(test: &str, role: &str) -> Result<(), RdmaError> {
    let mut actor = Actor::start(test, role);
    let mut sm = open("seeker");
    let peer = meet_child(&mut sm, &mut actor);
    let mut events = Queue::with_capacity(4);
    let mut key = None;
    until("the key", || {
        sm.poll(None, &mut events);
        for event in events.drain() {
            let Event::Arrived { fragment, .. } = event else { panic!("{event:?}") };
            key = RemoteKey::new(&fragment.to_vec().unwrap());
        }
        key.is_some()
    });
    let mut bytes = [0u8; 8];
    let (local, remote) = ([Region::of_mut(&mut bytes)], [Extent { offset: 0, len: 8 }]);
    let rdma = sm.rdma().unwrap();
    assert!(rdma.reaches(peer).is_some(), "the link is up");
    let expected = rdma.reaches(peer) == Some(true);
    // SAFETY: `bytes` outlives the wait for the end below, and is not touched before.
    let started = unsafe { rdma.get(peer, &local, &key.unwrap(), &remote, Token(1)) };
    assert_eq!(started.is_ok(), expected);
    started?;
    until("the transfer has ended", || {
        sm.poll(None, &mut events);
        events
            .drain()
            .any(|event| matches!(event, Event::Completed(ended) if ended.result().is_ok()))
    });
    assert_eq!(bytes, [5; 8]);
    Ok(())
}

/// A process that has used up its descriptors gets errors or waits; nothing hangs, and it goes on
/// when there are descriptors again.
#[test]
fn out_of_descriptors_is_an_error_and_passes() {
    const TEST: &str = "out_of_descriptors_is_an_error_and_passes";
    if part().is_none() {
        let mut actor = Actor::start(TEST, "poor");
        assert_eq!(actor.hear(), "content");
        return;
    }
    let mut sm = open("poor");
    let mut others: Vec<_> = (0..4).map(|n| open(&format!("peer {n}"))).collect();
    let mut events = Queue::with_capacity(8);
    let mut hoard = Vec::new();
    let error = loop {
        match std::fs::File::open("/dev/null") {
            Ok(file) => hoard.push(file),
            Err(error) => break error,
        }
        if hoard.len() == 64 {
            let limit = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
            rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        }
    };
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::MFILE.raw_os_error()));
    let address = sm.address();
    let refused = others[0].connect(&address).unwrap_err();
    assert!(matches!(refused, LinkError::System { .. }), "{refused}");
    assert!(matches!(Sm::new(SmConfig::new("j", "n")), Err(LinkError::System { .. })));
    let error = sm.mapped().unwrap().allocate(1).unwrap_err();
    assert!(error.to_string().contains("memfd_create"), "{error}");
    // Room for a caller's socket and segment, but not for taking them in.
    hoard.drain(..2);
    let to_sm = others[1].connect(&address).unwrap();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        hoard.push(file);
    }
    for _ in 0..100 {
        assert_eq!(sm.poll(None, &mut events), 0);
        std::thread::sleep(Duration::from_micros(300));
    }
    assert!(sm.arm().is_none(), "callers wait: only the clock tells");
    hoard.clear();
    let to_other = sm.connect(&others[1].address()).unwrap();
    until("they meet", || {
        sm.poll(None, &mut events);
        others[1].poll(None, &mut events);
        assert!(events.is_empty());
        sm.reserve(to_other, 1).is_ok() && others[1].reserve(to_sm, 1).is_ok()
    });
    say("content");
}

/// Counts what is said aloud.
struct Lines(&'static AtomicU32);

impl tracing::Subscriber for Lines {
    fn enabled(&self, about: &tracing::Metadata<'_>) -> bool {
        *about.level() <= tracing::Level::WARN
    }

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Whoever is not of the job gets nothing done by calling: few descriptors are kept for such callers, and
/// few lines say that they came.
#[test]
fn unauthenticated_processes_cost_few_descriptors_and_few_lines() {
    const TEST: &str = "unauthenticated_processes_cost_few_descriptors_and_few_lines";
    static LINES: AtomicU32 = AtomicU32::new(0);
    if part().is_none() {
        let mut actor = Actor::start(TEST, "popular");
        assert_eq!(actor.hear(), "content");
        return;
    }
    tracing::subscriber::set_global_default(Lines(&LINES)).unwrap();
    // What was lowered for this process already it cannot raise.
    let nofile = rustix::process::Resource::Nofile;
    let most = rustix::process::getrlimit(nofile).maximum.map_or(2048, |most| most.min(2048));
    let limit = rustix::process::Rlimit { current: Some(most), maximum: Some(most) };
    rustix::process::setrlimit(nofile, limit).unwrap();
    let files = usize::try_from(most).unwrap();
    let (eighth, callers) = (files / 8, files / 3);
    let mut sm = open("popular");
    let names = String::from_utf8_lossy(&std::fs::read("/proc/net/unix").unwrap()).into_owned();
    let address = hex(&sm.address());
    let place = names.lines().filter_map(|line| line.split("@gapless-sm/").nth(1));
    let place = place.into_iter().find(|place| address.contains(place)).unwrap().to_owned();
    let name = SocketAddrUnix::new_abstract_name(format!("gapless-sm/{place}").as_bytes()).unwrap();
    let call = || {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        rustix::net::connect(&socket, &name).unwrap();
        socket
    };
    let mut events = Queue::with_capacity(8);
    let mut polled = |sm: &mut Sm| {
        for _ in 0..4 {
            sm.arm();
            assert_eq!(sm.poll(None, &mut events), 0);
        }
    };
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open_files();
    // They say nothing, and stay.
    let mut silent = Vec::new();
    for _ in 0..callers {
        silent.push(call());
        polled(&mut sm);
    }
    let kept = open_files() - before - silent.len();
    let bounds = eighth * 2 / 5..=eighth;
    assert!(bounds.contains(&kept), "{kept} descriptors for {callers} callers, of {most}");
    drop(silent);
    // They say what makes no sense, and what would be of another transport.
    for round in 0..callers {
        let socket = call();
        let word = [1u8; 96];
        rustix::net::send(&socket, &word[..1 + round % 96], SendFlags::NOSIGNAL).unwrap();
        polled(&mut sm);
    }
    let kept = open_files().saturating_sub(before);
    assert!(kept <= eighth, "{kept} descriptors");
    let said = LINES.load(Ordering::Relaxed);
    assert!(
        (1..40).contains(&said),
        "{said} lines about {} unauthenticated processes",
        2 * callers
    );
    say("content");
}

/// Where there are few descriptors, memory is refused, or shared but not mapped, before peers cannot
/// meet and links break.
#[test]
fn memory_does_not_take_the_descriptors_that_peers_need() {
    const TEST: &str = "memory_does_not_take_the_descriptors_that_peers_need";
    if part().is_none() {
        let mut actor = Actor::start(TEST, "poor");
        assert_eq!(actor.hear(), "content");
        return;
    }
    let limit = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let (mut sm, mut other) = (open("poor"), open("as poor"));
    let mut kept = Vec::new();
    let error = loop {
        match sm.mapped().unwrap().allocate(1) {
            Ok(allocation) => kept.push(allocation),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("memfd_create"), "{error}");
    // Meeting goes on nevertheless; the other end, in this process as well, has no room for more.
    let to_other = sm.connect(&other.address()).unwrap();
    let to_sm = other.connect(&sm.address()).unwrap();
    let mut events = Queue::with_capacity(8);
    until("they meet", || {
        sm.poll(None, &mut events);
        other.poll(None, &mut events);
        assert!(events.is_empty());
        sm.reserve(to_other, 1).is_ok() && other.reserve(to_sm, 1).is_ok()
    });
    let hoard: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    for (hoard, allocation) in [(hoard, &kept[0]), (Vec::new(), &kept[1])] {
        // First all descriptors are taken, then only those are left that are not for memory.
        let key = sm.mapped().unwrap().key(to_other, allocation.lease()).unwrap();
        let refused = other.mapped().unwrap().map(to_sm, &key).unwrap_err();
        assert!(matches!(refused, MapError::Unavailable { .. }), "{refused}");
        drop(hoard);
    }
    kept.truncate(3);
    let key = sm.mapped().unwrap().key(to_other, kept[2].lease()).unwrap();
    assert!(other.mapped().unwrap().map(to_sm, &key).is_ok(), "there is room again");
    kept.clear();
    for _ in 0..100 {
        sm.poll(None, &mut events);
        other.poll(None, &mut events);
        assert!(events.is_empty(), "notices of what could not be mapped are understood");
    }
    sm.reserve(to_other, 1).unwrap();
    other.reserve(to_sm, 1).unwrap();
    say("content");
}
