//! Entry points for fuzzing, which only exist with `--cfg fuzzing`: what a process that breaks the rules can
//! do to another through what they share, done by hand.

use crate::address::SmAddress;
use crate::sm::Sm;
use crate::socket;
use gapless_btl::{Address, PeerId};
use rustix::fs::{MemfdFlags, SealFlags};
use std::sync::atomic::Ordering;

/// A file of `pages` pages, sealed as segments are or not.
fn file(pages: u8, sealed: bool) -> Option<rustix::fd::OwnedFd> {
    let file = rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let file = file.ok()?;
    rustix::fs::ftruncate(&file, u64::from(pages) * 4096).ok()?;
    if sealed {
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).ok()?;
    }
    Some(file)
}

/// Stores words in a lane that `sm` shares with `peer`: the one it sends by, or the one it receives
/// by. Places are taken modulo the lane's words.
pub fn scribble(sm: &Sm, peer: PeerId, outbound: bool, at: usize, value: u64) {
    let Ok(link) = sm.link(peer) else { return };
    let segment = match outbound {
        true => link.outbound.as_ref().map(|half| half.segments()[0]),
        false => link.inbound.as_ref().map(|half| half.segments()[0]),
    };
    let Some(segment) = segment else { return };
    let words = segment.words(0, segment.len() / 8);
    words[at % words.len()].store(value, Ordering::Release);
}

/// Sends a packet to `peer` beside the rings, with a file of so many pages.
pub fn say(sm: &Sm, peer: PeerId, packet: &[u8], with: Option<(u8, bool)>) {
    let Ok(link) = sm.link(peer) else { return };
    let file = with.and_then(|(pages, sealed)| file(pages, sealed));
    if let Some(outgoing) = &link.outgoing {
        let _ = socket::send(outgoing, packet, file.as_ref());
    }
}

/// Calls the process behind `address` and says `packet` as a greeting; the socket is closed at once.
pub fn greet(address: &Address, packet: &[u8], with: Option<(u8, bool)>) {
    let Ok(address) = SmAddress::read(address) else { return };
    let Ok(Some(socket)) = socket::call(&address.meeting_place()) else { return };
    let file = with.and_then(|(pages, sealed)| file(pages, sealed));
    let _ = socket::send(&socket, packet, file.as_ref());
}

/// The greeting that `sm` would send to `peer`; nothing once that is lost.
#[must_use]
pub fn greeting(sm: &Sm, peer: PeerId) -> Vec<u8> {
    let link = sm.link(peer).ok().filter(|link| link.outbound.is_some());
    link.map_or_else(Vec::new, |link| sm.hello(link).packet().as_ref().to_vec())
}
