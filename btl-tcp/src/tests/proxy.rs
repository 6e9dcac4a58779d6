//! A way that does what networks do, from a seed: bytes come in pieces of any size, late, or no more.

use super::Random;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How a way ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It does not.
    Never,
    /// After so many bytes in one direction both sides are cut off.
    After(usize),
}

/// A relay to an address, for one connection after the other.
pub(super) struct Proxy {
    pub(super) at: SocketAddr,
    over: Arc<AtomicBool>,
}

impl Proxy {
    /// Pieces have at most `piece` bytes.
    pub(super) fn to(target: SocketAddr, seed: u64, piece: usize, ending: Ending) -> Proxy {
        let listener = TcpListener::bind((super::LOOPBACK_V4, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let at = listener.local_addr().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&over);
        std::thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                let Ok((caller, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                let Ok(callee) = TcpStream::connect(target) else { continue };
                let cut = Arc::new(AtomicBool::new(false));
                for (from, to, seed) in [(&caller, &callee, seed), (&callee, &caller, !seed)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (flag, cut) = (Arc::clone(&flag), Arc::clone(&cut));
                    std::thread::spawn(move || relay(from, to, seed, piece, ending, &flag, &cut));
                }
            }
        });
        Proxy { at, over }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn relay(
    mut from: TcpStream,
    mut to: TcpStream,
    seed: u64,
    piece: usize,
    ending: Ending,
    over: &AtomicBool,
    cut: &AtomicBool,
) {
    let mut random = Random::new(seed);
    let mut passed = 0;
    let mut bytes = vec![0; piece];
    from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    to.set_nodelay(true).unwrap();
    while !over.load(Ordering::Relaxed) && !cut.load(Ordering::Relaxed) {
        let most = 1 + random.below(piece);
        match from.read(&mut bytes[..most]) {
            Ok(0) => {
                let _ = to.shutdown(std::net::Shutdown::Write);
                return;
            }
            Ok(count) => {
                if to.write_all(&bytes[..count]).is_err() {
                    break;
                }
                passed += count;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
        if ending != Ending::Never && matches!(ending, Ending::After(most) if passed >= most) {
            break;
        }
        if random.below(200) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // Unread bytes make this a reset, else it is an end.
    cut.store(true, Ordering::Relaxed);
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
}
