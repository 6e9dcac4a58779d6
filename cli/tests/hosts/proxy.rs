//! Somebody between two hosts, through whom all connections go: from a seed, bytes are passed on in pieces of any size,
//! late, after a while of nothing, or no more, and connections are reset.

use super::namespaces::Namespaces;
use super::rails::Random;
use rustix::net::connect_unspec;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

/// At most so many bytes are passed on at a time.
const PIECE: usize = 48 << 10;

/// What is done to connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mischief {
    pub(crate) seed: u64,
    /// Connections over this cable are reset, each after so many bytes at most in a direction.
    pub(crate) resets: Option<(usize, usize)>,
}

/// Relays between two hosts; it ends when this is dropped.
pub(crate) struct Proxy {
    over: Arc<AtomicBool>,
    acceptors: Vec<JoinHandle<()>>,
    connections: Arc<AtomicU64>,
}

impl Proxy {
    /// In the namespaces between the hosts, for these ports of either host at both cables.
    pub(crate) fn new(
        middles: &Arc<Namespaces>,
        ports: RangeInclusive<u16>,
        mischief: Mischief,
    ) -> Proxy {
        let (over, connections) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut acceptors = Vec::new();
        // Near one host, the address is that of the other.
        for (near, cable, port) in (0..2usize).flat_map(|near| {
            let ports = ports.clone();
            (0..2usize).flat_map(move |cable| ports.clone().map(move |port| (near, cable, port)))
        }) {
            let (middles, over) = (Arc::clone(middles), Arc::clone(&over));
            let connections = Arc::clone(&connections);
            acceptors.push(spawn(move || {
                middles.move_into(near);
                let at = place(cable, 1 - near, port);
                let listener = TcpListener::bind(at).unwrap();
                listener.set_nonblocking(true).unwrap();
                while !over.load(Ordering::Relaxed) {
                    let Ok((caller, _)) = listener.accept() else {
                        sleep(Duration::from_millis(2));
                        continue;
                    };
                    let number = connections.fetch_add(1, Ordering::Relaxed);
                    let (middles, over) = (Arc::clone(&middles), Arc::clone(&over));
                    let seed = mischief.seed ^ number << 20 ^ u64::from(port) << 40;
                    let most = mischief.resets.filter(|it| it.0 == cable).map(|it| it.1);
                    spawn(move || {
                        middles.move_into(1 - near);
                        // Nobody listens there: the caller hears that.
                        if let Ok(callee) = TcpStream::connect(at) {
                            pass(caller, callee, seed, most, &over);
                        }
                    });
                }
            }));
        }
        Proxy { over, acceptors, connections }
    }

    /// How many connections there were.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.acceptors.drain(..).for_each(|thread| _ = thread.join());
    }
}

/// Where a host listens.
fn place(cable: usize, host: usize, port: u16) -> SocketAddrV4 {
    let number = |at: usize| u8::try_from(at).expect("there are few cables and hosts");
    SocketAddrV4::new(Ipv4Addr::new(10, number(77 + cable), 0, number(1 + host)), port)
}

/// Passes on what two say, until one of them hangs up or it is enough.
fn pass(one: TcpStream, other: TcpStream, seed: u64, most: Option<usize>, over: &Arc<AtomicBool>) {
    let cut = Arc::new(AtomicBool::new(false));
    let mut random = Random::new(seed);
    // Some before anything is said, some in the middle of it.
    let most = most.map(|most| [random.below(400), random.below(most)][random.below(8).min(1)]);
    for (from, to, seed) in [(&one, &other, seed), (&other, &one, !seed)] {
        let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let (over, cut) = (Arc::clone(over), Arc::clone(&cut));
        spawn(move || relay(from, to, Random::new(seed), most, &over, &cut));
    }
}

fn relay(
    mut from: TcpStream,
    mut to: TcpStream,
    mut random: Random,
    most: Option<usize>,
    over: &AtomicBool,
    cut: &AtomicBool,
) {
    let mut bytes = vec![0; PIECE];
    let mut passed = 0;
    from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let _ = to.set_nodelay(true);
    while !over.load(Ordering::Relaxed) && !cut.load(Ordering::Relaxed) {
        let piece = [PIECE, PIECE, 1 + random.below(PIECE), 1 + random.below(40)][random.below(4)];
        match from.read(&mut bytes[..piece]) {
            Ok(0) => {
                let _ = to.shutdown(std::net::Shutdown::Write);
                return;
            }
            Ok(count) => {
                match random.below(600) {
                    0 => sleep(Duration::from_millis(100 + random.below(500) as u64)),
                    1..20 => sleep(Duration::from_millis(random.below(5) as u64)),
                    _ => {}
                }
                // In two parts, the second of which may come late.
                let part = random.below(count + 1);
                let written = to.write_all(&bytes[..part]).and_then(|()| {
                    if random.below(40) == 0 {
                        sleep(Duration::from_millis(2));
                    }
                    to.write_all(&bytes[part..count])
                });
                if written.is_err() {
                    break;
                }
                passed += count;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
        if most.is_some_and(|most| passed >= most) {
            break;
        }
    }
    cut.store(true, Ordering::Relaxed);
    // Both are reset, whatever is on its way.
    let _ = connect_unspec(&from);
    let _ = connect_unspec(&to);
}
