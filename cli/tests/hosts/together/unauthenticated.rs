//! Unauthenticated callers of all kinds call at the ranks of the other host while a job runs: nonsense, the first half
//! of a call that they have overheard, the same call again, the call with one bit changed (as of a wrong secret), and
//! calls that say nothing. They get nowhere, and cost a few lines of log.
//!
//! They overhear what really goes over the cable, as somebody may who is in the same network.
//! `GAPLESS_UNAUTHENTICATED=10000` has so many; 200 by default.

use super::{collectives, exchange, expect_links, places_of};
use crate::common::{await_flag, flag, meeting_folder, pattern, skip};
use crate::on_two_hosts;
use crate::rails::{Random, SEED, first_seed, number_of};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, eth, socket_with};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const NAME: &str =
    "together::unauthenticated::unauthenticated_callers_of_the_other_host_get_nowhere";

/// Lines that the transport of this process has logged.
static LINES: AtomicU64 = AtomicU64::new(0);

/// Counts lines, and passes them on.
struct Counted;

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // One event at a time, with the module that it is of.
        let is_of_links = String::from_utf8_lossy(bytes).contains("gapless_btl_tcp");
        LINES.fetch_add(u64::from(is_of_links), Ordering::Relaxed);
        std::io::stderr().write_all(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// Hears all packets of this host; `None`, said aloud, where that is not allowed.
fn ear() -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let ear = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(eth::ALL));
    ear.inspect_err(|error| skip("calls that are overheard", &error.to_string())).ok()
}

/// What was first said over TCP to one of these places: the beginning of a call.
fn overheard(ear: &OwnedFd, places: &[SocketAddr]) -> Option<(SocketAddr, Vec<u8>)> {
    let mut frame = [0u8; 2048];
    while let Ok((len, _)) = rustix::net::recv(ear, &mut frame, RecvFlags::empty()) {
        let frame = &frame[..len.min(2048)];
        // Ethernet, IPv4 without options or with, TCP likewise.
        let is_tcp = frame.len() > 54 && frame[12..14] == [8, 0] && frame[23] == 6;
        if !is_tcp {
            continue;
        }
        let whole = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
        let tcp = 14 + usize::from(frame[14] & 15) * 4;
        let Some(offset) = frame.get(tcp + 12) else { continue };
        let data = tcp + usize::from(offset >> 4) * 4;
        let to = SocketAddr::from((
            [frame[30], frame[31], frame[32], frame[33]],
            u16::from_be_bytes([frame[tcp + 2], frame[tcp + 3]]),
        ));
        if let Some(said) = frame.get(data..whole.min(frame.len()))
            && said.len() >= 32
            && places.contains(&to)
        {
            return Some((to, said.to_vec()));
        }
    }
    None
}

/// One unauthenticated caller, and what it leaves open.
fn caller(random: &mut Random, places: &[SocketAddr], call: &[u8]) -> Option<TcpStream> {
    let place = places[random.below(places.len())];
    let stream = TcpStream::connect_timeout(&place, Duration::from_secs(20));
    let mut stream = stream.expect("it listens");
    let said = match random.below(5) {
        0 => pattern(random.below(4000), random.below(1000) as u64),
        1 => call[..random.below(call.len())].to_vec(),
        2 => [call, &[0; 40]].concat(),
        3 => {
            let mut changed = call.to_vec();
            changed[random.below(call.len())] ^= 1 << random.below(8);
            changed
        }
        _ => Vec::new(),
    };
    let _ = stream.write_all(&said);
    (random.below(4) == 0).then_some(stream)
}

#[test]
fn unauthenticated_callers_of_the_other_host_get_nowhere() {
    on_two_hosts(NAME, &[], |builder| {
        let logged = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
        logged.with_ansi(false).with_writer(|| Counted).init();
        let count = number_of("GAPLESS_UNAUTHENTICATED").unwrap_or(200);
        let ear = ear();
        let world = builder.init().unwrap();
        let (me, folder) = (world.rank(), meeting_folder());
        exchange(&world, 100);
        let callers = (me == 3).then(|| {
            let seed = first_seed();
            println!("{SEED}={seed}");
            std::thread::spawn(move || {
                let places: Vec<SocketAddr> = [0, 1].into_iter().flat_map(places_of).collect();
                assert!(places.iter().all(|place| place.to_string().contains("77")), "{places:?}");
                // Of two processes either may call; where the other host has, there is only nonsense to repeat.
                let heard = ear.and_then(|ear| overheard(&ear, &places));
                let (first, call) = heard.unwrap_or_else(|| {
                    println!("no call of this host was overheard");
                    (places[0], pattern(100, 1))
                });
                println!("{} bytes of a call to {first} were overheard", call.len());
                let (mut random, mut open) = (Random::new(seed), Vec::new());
                for _ in 0..count {
                    // Half of them where the call was first heard.
                    let whom = if random.below(2) == 0 { &[first][..] } else { &places[..] };
                    open.extend(caller(&mut random, whom, &call));
                    if open.len() > 100 {
                        open.drain(..random.below(100));
                    }
                }
                flag(&meeting_folder(), "unauthenticated");
                open
            })
        });
        let (done, mut rounds) = (folder.join("unauthenticated"), 0);
        // All see alike whether it goes on.
        while crate::rails::all_say(&world, !done.exists()) || rounds < 20 {
            exchange(&world, 3000);
            rounds += 1;
        }
        collectives(&world, 500);
        await_flag(&folder, "unauthenticated");
        exchange(&world, 100_000);
        expect_links(&world, "tcp");
        let lines = LINES.load(Ordering::Relaxed);
        println!("{rounds} rounds, {lines} lines");
        // At the first, the second, the fourth, and so on; and a few of something else.
        assert!(
            lines <= u64::from(count.ilog2() + 4),
            "{lines} lines for {count} unauthenticated callers"
        );
        let called = me < 2;
        assert!(lines > 0 || !called, "who was called says so");
        if let Some(callers) = callers {
            drop(callers.join().unwrap());
        }
        world.finalize().unwrap();
    });
}
