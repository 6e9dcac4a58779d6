//! Unauthenticated processes by the thousand, while messages pass: they get nowhere, and cost no more than they may.

use super::{JOB, LOOPBACK_V4, Patience, Random, config, exchange, introduced, keys, seed};
use crate::address::TcpAddress;
use crate::proof::{HELLO_BYTES, Hello, Keys, Purpose};
use crate::{Tcp, TcpConfig};
use gapless_btl::Btl;
use rustix::process::{Resource, getrlimit};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What an unauthenticated process may know.
struct Known {
    /// Whom it calls.
    victim: TcpAddress,
    /// The victim's peer, and a hello of its that was overheard.
    peer: TcpAddress,
    overheard: [u8; HELLO_BYTES],
}

/// Overhears what `caller` says first when it calls the victim.
fn overhear(caller: &mut Tcp, victim: &TcpAddress) -> [u8; HELLO_BYTES] {
    let listener = TcpListener::bind((LOOPBACK_V4, 0)).unwrap();
    let id = caller.know(&victim.to_bytes()).unwrap();
    let right = caller.links[id as usize].address.clone();
    caller.links[id as usize].address.places = vec![listener.local_addr().unwrap()];
    caller.call(id);
    let (mut stream, _) = listener.accept().unwrap();
    let patience = Patience::new();
    let mut events = gapless_btl::Queue::with_capacity(4);
    stream.set_nonblocking(true).unwrap();
    let mut bytes = [0; HELLO_BYTES];
    let mut got = 0;
    while got < bytes.len() {
        caller.poll(None, &mut events);
        got += stream.read(&mut bytes[got..]).unwrap_or(0);
        patience.tick("a hello");
    }
    caller.links[id as usize].address = right;
    bytes
}

/// One unauthenticated process of a random kind; what it leaves open.
fn unauthenticated(random: &mut Random, known: &Known) -> Option<TcpStream> {
    let place = known.victim.places[0];
    let mut stream = TcpStream::connect_timeout(&place, Duration::from_secs(10)).ok()?;
    let hello = |keys: &Keys, caller: &TcpAddress, rank: u32, callee: u32| {
        keys.say(&Hello {
            purpose: Purpose::Call,
            caller_rank: rank,
            callee_rank: callee,
            caller: caller.id,
            callee: known.victim.id,
            nonce: [7; 32],
        })
    };
    let right = keys();
    let said: Vec<u8> = match random.below(7) {
        0 => (0..random.below(4000)).map(|_| random.below(256).to_le_bytes()[0]).collect(),
        // Half a hello, and silence.
        1 => known.overheard[..random.below(HELLO_BYTES)].to_vec(),
        // A recorded one: it is answered, and then nonsense comes in the place of a proof.
        2 => [&known.overheard[..], &[0; 40]].concat(),
        3 => hello(&Keys::new(&[9; 32], JOB), &known.peer, 1, 0).to_vec(),
        // Who knows the secret but lies about ranks, or is not known.
        4 => hello(&right, &known.peer, 2, 0).to_vec(),
        5 => hello(&right, &known.peer, 1, 1).to_vec(),
        _ => hello(&right, &TcpAddress { id: [3; 16], ..known.peer.clone() }, 5, 0).to_vec(),
    };
    let _ = stream.write_all(&said);
    (random.below(4) == 0).then_some(stream)
}

#[test]
fn thousands_of_unauthenticated_callers_do_no_harm() {
    beset(false, 3000);
}

#[test]
#[cfg(feature = "encryption")]
fn unauthenticated_callers_do_no_harm_to_encrypted_links() {
    beset(true, 300);
}

/// So many unauthenticated processes, or as many as a variable says.
fn beset(encrypt: bool, count: u64) {
    let given = std::env::var("GAPLESS_UNAUTHENTICATED").ok();
    let count = given.and_then(|text| text.parse().ok()).unwrap_or(count);
    let config = |rank, address| TcpConfig { encrypt, ..config(rank, address) };
    let mut random = Random::new(seed());
    let quick = TcpConfig { notice: Duration::from_secs(5), ..config(0, LOOPBACK_V4) };
    let a = Tcp::new(quick).unwrap();
    let mut b = Tcp::new(config(1, LOOPBACK_V4)).unwrap();
    let overheard = overhear(&mut b, &a.address);
    // The real link is another end's: the one that was overheard has no link.
    let known = Known { victim: a.address.clone(), peer: b.address.clone(), overheard };
    let mut a = a;
    a.introduce(&b.address()).unwrap();
    let c = Tcp::new(config(2, LOOPBACK_V4)).unwrap();
    let (mut a, mut c) = introduced(a, c);
    exchange(&mut a, &mut c, 10);
    let over = AtomicBool::new(false);
    // Both ends are of this process, which may open only so many.
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = usize::try_from(allowed / 8).unwrap_or(usize::MAX).clamp(16, 1024);
    let many = most.min(300);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut open = Vec::new();
            for _ in 0..count {
                open.extend(unauthenticated(&mut random, &known));
                // Many at a time stay, and go.
                if open.len() > many {
                    open.drain(..random.below(many));
                }
            }
            over.store(true, Ordering::Release);
        });
        while !over.load(Ordering::Acquire) {
            exchange(&mut a, &mut c, 10);
            let held = a.tcp.unauthenticated.which(|_| true).len();
            assert!(held <= most, "{held} unauthenticated processes at a time");
        }
    });
    exchange(&mut a, &mut c, 100);
    // Nobody became a peer, and those who only waited are shown out.
    assert!(!a.stands());
    assert_eq!(a.tcp.links.len(), 2);
    let patience = Patience::new();
    while !a.tcp.unauthenticated.is_empty() {
        a.poll();
        c.poll();
        patience.tick("the last unauthenticated socket to go");
    }
    assert!(a.tcp.unauthenticated.warning.count() > count / 3, "they are counted");
}

#[test]
fn an_unauthenticated_process_that_pretends_to_be_the_listener_gets_a_greeting_and_no_more() {
    // Whoever took the peer's address after its death, say.
    let thief = TcpListener::bind((LOOPBACK_V4, 0)).unwrap();
    let place: SocketAddr = thief.local_addr().unwrap();
    let (mut a, b) =
        (Tcp::new(config(0, LOOPBACK_V4)).unwrap(), Tcp::new(config(1, LOOPBACK_V4)).unwrap());
    let address = TcpAddress { places: vec![place], ..b.address.clone() };
    let peer = a.connect(&address.to_bytes()).unwrap();
    let mut a = super::End::new(a, peer);
    let (mut stream, _) = thief.accept().unwrap();
    let _ = stream.write_all(&[0x11; 64]);
    let patience = Patience::new();
    while a.lost.is_none() {
        assert!(!a.send());
        a.poll();
        patience.tick("the loss");
    }
    let error = a.lost.clone().unwrap().to_string();
    assert!(
        error.contains("does not know the job's secret") && error.contains(&place.to_string()),
        "{error}"
    );
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    assert_eq!(said.len(), HELLO_BYTES, "a greeting, in which nothing is secret");
}
