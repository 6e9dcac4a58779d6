//! The conformance suite over two ports, and what is this transport's own. They need two ports that reach each other:
//! `cargo xtask verbs` runs them in a virtual machine with Soft-RoCE, as `rxe0` and `rxe1`.

mod direct;
mod faults;
mod limits;
mod one_sided;
mod retained;
mod suite;

use crate::{Ib, IbConfig, Secret, devices};
use gapless_btl::{AmTag, Btl, Event, LinkError, PeerId, Queue, ReserveError, Token};
use std::time::{Duration, Instant};

/// The ports, unless `GAPLESS_IB_PORTS` names two devices with a comma between them.
const PORTS: &str = "rxe0,rxe1";

/// What the processes of these tests share.
pub(crate) fn secret() -> Secret {
    Secret::new([0x5a; 32])
}

/// The device of this end, 0 or 1.
pub(crate) fn device(end: u32) -> String {
    let ports = std::env::var("GAPLESS_IB_PORTS").unwrap_or_else(|_| PORTS.to_owned());
    let (first, second) = ports.split_once(',').expect("two devices with a comma between them");
    if end == 0 { first.to_owned() } else { second.to_owned() }
}

pub(crate) fn config(end: u32) -> IbConfig {
    let mut config = IbConfig::new("tests of btl-ib", end, secret());
    config.device = Some(device(end));
    config.buffers = 16;
    config.notice = Duration::from_secs(4);
    config
}

pub(crate) fn open(config: IbConfig) -> Ib {
    Ib::new(config).unwrap_or_else(|error| {
        panic!("{error}: these tests need two ports; `cargo xtask verbs` makes them")
    })
}

/// A bound on a wait that is far beyond anything that is right.
pub(crate) struct Patience(Instant);

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience(Instant::now() + Duration::from_secs(60))
    }

    pub(crate) fn tick(&self, what: &str) {
        assert!(Instant::now() < self.0, "waiting for {what} takes too long");
        std::thread::yield_now();
    }
}

/// An end with one peer, and what it has heard.
pub(crate) struct End {
    pub(crate) ib: Ib,
    pub(crate) peer: PeerId,
    events: Queue,
    pub(crate) heard: Vec<Vec<u8>>,
    pub(crate) sent: Vec<Result<(), LinkError>>,
    pub(crate) completed: Vec<Result<(), LinkError>>,
    pub(crate) lost: Option<LinkError>,
}

impl End {
    fn new(ib: Ib, peer: PeerId) -> End {
        let events = Queue::with_capacity(64);
        let (heard, sent, completed) = (Vec::new(), Vec::new(), Vec::new());
        End { ib, peer, events, heard, sent, completed, lost: None }
    }

    pub(crate) fn poll(&mut self) {
        self.ib.poll(None, &mut self.events);
        for event in self.events.drain() {
            assert_eq!(self.lost, None, "after the loss there is nothing more: {event:?}");
            match event {
                Event::Arrived { fragment, .. } => self.heard.push(fragment.to_vec().unwrap()),
                Event::Sent { result, .. } => self.sent.push(result),
                Event::Completed(ended) => self.completed.push(ended.into_parts().1),
                Event::Lost { error, .. } => self.lost = Some(error),
            }
        }
    }

    /// Sends a message with a token, if there is room.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        match self.ib.reserve(self.peer, bytes.len()) {
            Ok(mut slot) => {
                slot.write(0, bytes).unwrap();
                self.ib.send(slot, AmTag(3), Token(1));
                true
            }
            Err(ReserveError::Full | ReserveError::Link(_)) => false,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Two ends whose link stands.
pub(crate) fn joined(a: IbConfig, b: IbConfig) -> [End; 2] {
    let (mut a, mut b) = (open(a), open(b));
    let to_b = a.connect(&b.address()).unwrap();
    let to_a = b.connect(&a.address()).unwrap();
    let mut ends = [End::new(a, to_b), End::new(b, to_a)];
    let patience = Patience::new();
    while !ends.iter_mut().all(|end| end.ib.reserve(end.peer, 0).is_ok()) {
        ends.iter_mut().for_each(End::poll);
        patience.tick("the link");
    }
    ends
}

/// Both ends still exchange messages.
pub(crate) fn expect_health([a, b]: &mut [End; 2]) {
    deliver(a, b);
    deliver(b, a);
    assert_eq!((&a.lost, &b.lost), (&None, &None));
}

/// A message goes from one end to the other.
fn deliver(from: &mut End, to: &mut End) {
    let (before, patience) = (to.heard.len(), Patience::new());
    while !from.send(b"health") {
        from.poll();
        to.poll();
        patience.tick("room");
    }
    while to.heard.len() == before {
        from.poll();
        to.poll();
        patience.tick("a message");
    }
    assert_eq!(to.heard.last().unwrap(), b"health");
}

/// A process is called that does not know the caller: it is told once who calls, and answers when it knows.
#[test]
fn who_calls_without_being_known_is_told_of() {
    let (mut a, mut b) = (open(config(0)), open(config(1)));
    let to_b = a.connect(&b.address()).unwrap();
    let mut events = Queue::with_capacity(64);
    let patience = Patience::new();
    let called = loop {
        for end in [&mut a, &mut b] {
            assert_eq!(end.poll(None, &mut events), 0);
        }
        let called = b.callers().unwrap();
        if !called.is_empty() {
            break called;
        }
        patience.tick("the call");
    };
    assert_eq!(called, [config(0).rank]);
    // It calls again and again meanwhile, and is not lost, although that takes longer than the notice.
    let begin = Instant::now();
    while begin.elapsed() < config(0).notice + Duration::from_millis(500) {
        for end in [&mut a, &mut b] {
            assert_eq!(end.poll(None, &mut events), 0);
        }
        assert_eq!(b.callers(), Some(Vec::new()));
        assert!(matches!(a.reserve(to_b, 0), Err(ReserveError::Full)));
        std::thread::sleep(Duration::from_millis(1));
    }
    let to_a = b.introduce(&a.address()).unwrap();
    let mut ends = [End::new(a, to_b), End::new(b, to_a)];
    let patience = Patience::new();
    while !ends[1].ib.has_met(to_a) {
        ends.iter_mut().for_each(End::poll);
        patience.tick("the answer");
    }
    expect_health(&mut ends);
    assert_eq!(ends[1].ib.callers(), Some(Vec::new()));
}

#[test]
fn devices_are_listed() {
    let all = devices(None).unwrap();
    for end in [0, 1] {
        let device = all
            .iter()
            .find(|device_info| device_info.name == device(end))
            .expect("a port of the tests");
        let port = device.ports.first().expect("at least one port");
        assert!(port.active && port.gid.is_some(), "{port}");
        assert!(port.to_string().contains("active"), "{port}");
        println!("{}: {:?}, {port}", device.name, device.capabilities);
    }
    let mut wrong = config(0);
    wrong.device = Some("no-such-device".to_owned());
    let error = Ib::new(wrong).unwrap_err().to_string();
    assert!(error.contains("no verbs device to use"), "{error}");
    for end in [0, 1] {
        assert!(error.contains(&format!("{} is another", device(end))), "{error}");
    }
}

/// Packets carry what was chosen: another address of the ports if they have one, a traffic class, a service level. What
/// a port does not have is named when it is opened.
#[test]
fn addresses_and_classes_of_packets_are_chosen() {
    let best = |end| {
        let port = devices(None).unwrap().into_iter().find(|it| it.name == device(end)).unwrap();
        port.ports[0].gid.as_ref().expect("an address").0
    };
    // The last one over IPv4: with its index first, and its kind last.
    let last = |end| {
        let all = devices(None).unwrap().into_iter().find(|it| it.name == device(end)).unwrap();
        let v4 = all.ports[0].gids.iter().rfind(|gid| gid.contains("10.9.1."));
        v4.and_then(|gid| gid.split(' ').next()?.parse().ok()).unwrap_or_else(|| best(end))
    };
    if [0, 1].into_iter().all(|end| last(end) == best(end)) {
        println!("SKIPPED: a second address of each port: they have one");
    }
    let chosen = |end| IbConfig {
        gid_index: Some(last(end)),
        traffic_class: 106,
        service_level: 3,
        ..config(end)
    };
    let mut ends = joined(chosen(0), chosen(1));
    expect_health(&mut ends);
    let refused = |config: IbConfig| Ib::new(config).unwrap_err().to_string();
    let error = refused(IbConfig { gid_index: Some(255), ..config(0) });
    assert!(error.contains("has no GID of index 255"), "{error}");
    let error = refused(IbConfig { pkey_index: u16::MAX, ..config(0) });
    assert!(error.contains("none of index 65535"), "{error}");
    let error = refused(IbConfig { service_level: 16, ..config(0) });
    assert!(error.contains("service level 16"), "{error}");
}

#[test]
fn the_program_does_not_need_the_library_to_start() {
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let needed = needed(&program);
    assert!(needed.iter().any(|name| name.starts_with("libc.so")), "{needed:?}");
    assert!(
        !needed.iter().any(|name| name.contains("ibverbs") || name.contains("rdmacm")),
        "{needed:?}"
    );
}

/// The libraries that an ELF program of 64 bits asks for (`DT_NEEDED`).
fn needed(program: &[u8]) -> Vec<String> {
    let number = |at: usize, len: usize| {
        let bytes = program[at..at + len].iter().rev();
        bytes.fold(0usize, |number, &byte| number << 8 | usize::from(byte))
    };
    let (first, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    let headers: Vec<usize> = (0..count).map(|i| first + i * size).collect();
    // Where an address lies in the file.
    let find = |address: usize| {
        let loaded = headers.iter().filter(|&&at| number(at, 4) == 1);
        let mut fit = loaded.filter(|&&at| {
            let (start, len) = (number(at + 16, 8), number(at + 32, 8));
            (start..start + len).contains(&address)
        });
        let at = *fit.next().expect("an address of the program");
        address - number(at + 16, 8) + number(at + 8, 8)
    };
    let dynamic = *headers.iter().find(|&&at| number(at, 4) == 2).expect("a dynamic program");
    let start = number(dynamic + 8, 8);
    let entries: Vec<(usize, usize)> = (0..)
        .map(|i| (number(start + i * 16, 8), number(start + i * 16 + 8, 8)))
        .take_while(|&(tag, _)| tag != 0)
        .collect();
    let strings = find(entries.iter().find(|(tag, _)| *tag == 5).expect("strings").1);
    let text = |at: usize| {
        let bytes: Vec<u8> =
            program[strings + at..].iter().copied().take_while(|&b| b != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    entries.iter().filter(|(tag, _)| *tag == 1).map(|&(_, at)| text(at)).collect()
}
