//! A way that does what networks do, from a seed: bytes come in pieces of any size, late, or no more.

use super::Random;
use crate::Tcp;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How a way ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It does not.
    Never,
    /// After so many bytes in one direction both sides are cut off.
    After(usize),
    /// It does not, but a bit of a byte is another one: that of so many bytes in, of what the caller says or of what it
    /// hears.
    #[cfg(feature = "encryption")]
    Flipped { at: usize, of_caller: bool },
}

/// A relay to an address, for one connection after the other.
pub(super) struct Proxy {
    pub(super) at: SocketAddr,
    /// What callers have said.
    #[cfg_attr(
        not(feature = "encryption"),
        allow(dead_code, reason = "only tests of encryption look")
    )]
    pub(super) said: Arc<Mutex<Vec<u8>>>,
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
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        std::thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                let Ok((caller, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                let Ok(callee) = TcpStream::connect(target) else { continue };
                let cut = Arc::new(AtomicBool::new(false));
                for (from, to, is_caller) in [(&caller, &callee, true), (&callee, &caller, false)] {
                    let seed = if is_caller { seed } else { !seed };
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (flag, cut) = (Arc::clone(&flag), Arc::clone(&cut));
                    let heard = is_caller.then(|| Arc::clone(&heard));
                    std::thread::spawn(move || {
                        relay(from, to, (seed, heard), piece, ending, &flag, &cut)
                    });
                }
            }
        });
        Proxy { at, said, over }
    }
}

/// An end that can only be called through a proxy.
pub(super) fn behind(mut end: Tcp, seed: u64, piece: usize, ending: Ending) -> (Tcp, Proxy) {
    let proxy = Proxy::to(end.address.places[0], seed, piece, ending);
    end.address.places = vec![proxy.at];
    end.digest = end.address.digest();
    (end, proxy)
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn relay(
    mut from: TcpStream,
    mut to: TcpStream,
    (seed, heard): (u64, Option<Arc<Mutex<Vec<u8>>>>),
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
                #[cfg(feature = "encryption")]
                if let Ending::Flipped { at, of_caller } = ending
                    && of_caller == heard.is_some()
                    && (passed..passed + count).contains(&at)
                {
                    bytes[at - passed] ^= 1 << (seed % 8);
                }
                if let Some(heard) = &heard {
                    heard.lock().unwrap().extend_from_slice(&bytes[..count]);
                }
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
