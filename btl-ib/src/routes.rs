//! Routes to ports, by which the connection manager sends datagrams. The system finds them. That takes seconds if a
//! host is dead, so a thread of its own seeks each route, and datagrams for it wait meanwhile. Nothing here knows
//! verbs.

use crate::proof::DATAGRAM_BYTES;
use crate::qp_address::QpAddress;
use gapless_btl::LinkError;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Datagrams that wait, in one queue.
pub(crate) const WAITING_MAX: usize = 1024;
/// Routes that are remembered.
const KNOWN_MAX: usize = 256;
/// Routes that are sought at a time.
const SOUGHT_MAX: usize = 8;
/// For how long it is remembered that there is no route to a port, at least. Four times as long as it took to find out,
/// if that is longer.
const NO_ROUTE: Duration = Duration::from_secs(1);

/// Datagrams that wait to leave, one for each receiver.
pub(crate) type Outbox = VecDeque<(QpAddress, [u8; DATAGRAM_BYTES])>;

/// Puts a datagram into a queue: instead of what waits for the same receiver, or at the end, if there is room.
pub(crate) fn put(outbox: &mut Outbox, to: QpAddress, bytes: [u8; DATAGRAM_BYTES]) {
    if let Some(waits) = outbox.iter_mut().find(|waits| waits.0 == to) {
        waits.1 = bytes;
    } else if outbox.len() < WAITING_MAX {
        outbox.push_back((to, bytes));
    }
}

/// A port's address.
type Port = ([u8; 16], u16);

fn port(of: &QpAddress) -> Port {
    (of.gid, of.lid)
}

/// The result of a search, and how long it took.
type FoundRoute<W> = (Port, Duration, Result<W, LinkError>);

/// Finds the route to a receiver; may take long.
pub(crate) type Seek<W> = dyn Fn(&QpAddress) -> Result<W, LinkError> + Send + Sync;

/// Routes of the kind `W`.
pub(crate) struct Routes<W> {
    seek: Arc<Seek<W>>,
    /// Called from another thread when a search has ended.
    ring: Arc<dyn Fn() + Send + Sync>,
    known: HashMap<Port, W>,
    /// Ports to which there is no route, and until when that is believed.
    none: HashMap<Port, Instant>,
    sought: HashSet<Port>,
    found: Arc<Mutex<Vec<FoundRoute<W>>>>,
    /// What is to go to ports whose route is being sought, or is to be.
    held: Outbox,
}

impl<W: Send + 'static> Routes<W> {
    pub(crate) fn new(seek: Arc<Seek<W>>, ring: Arc<dyn Fn() + Send + Sync>) -> Routes<W> {
        Routes {
            seek,
            ring,
            known: HashMap::new(),
            none: HashMap::new(),
            sought: HashSet::new(),
            found: Arc::default(),
            held: Outbox::new(),
        }
    }

    /// the route to a receiver, if it is known.
    pub(crate) fn get(&self, to: &QpAddress) -> Option<&W> {
        self.known.get(&port(to))
    }

    /// Forgets the routes: they may be others now.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }

    /// Keeps a datagram until the route is found. It is dropped if there is known to be none.
    pub(crate) fn hold(&mut self, to: QpAddress, bytes: [u8; DATAGRAM_BYTES]) {
        let now = Instant::now();
        self.none.retain(|_, until| *until > now);
        if !self.none.contains_key(&port(&to)) {
            put(&mut self.held, to, bytes);
            self.seek_more();
        }
    }

    /// Begins the searches that are due, as many as there may be.
    fn seek_more(&mut self) {
        let due: Vec<QpAddress> = self.held.iter().map(|(to, _)| *to).collect();
        for to in due {
            if self.sought.len() >= SOUGHT_MAX {
                return;
            }
            if !self.known.contains_key(&port(&to)) && self.sought.insert(port(&to)) {
                self.begin(to);
            }
        }
    }

    fn begin(&self, to: QpAddress) {
        let (seek, found) = (Arc::clone(&self.seek), Arc::clone(&self.found));
        let ring = Arc::clone(&self.ring);
        let search = move || {
            let begun = Instant::now();
            let route = seek(&to);
            let end = (port(&to), begun.elapsed(), route);
            // If the connection manager was dropped meanwhile, this thread is the last owner of the list, and drops the
            // route.
            found.lock().unwrap_or_else(PoisonError::into_inner).push(end);
            ring();
        };
        let thread = std::thread::Builder::new().name("gapless-ib-route".to_owned());
        if let Err(error) = thread.spawn(search) {
            let (operation, reason) = ("starting a thread", error.to_string());
            let end = (port(&to), Duration::ZERO, Err(LinkError::System { operation, reason }));
            self.found.lock().unwrap_or_else(PoisonError::into_inner).push(end);
            (self.ring)();
        }
    }

    /// Takes the results of searches. Gives the datagrams that were held for ports whose routes are known now. If
    /// datagrams are `in_flight`, no routes are forgotten: those datagrams use them.
    pub(crate) fn collect(&mut self, in_flight: bool) -> Outbox {
        let mut ready = Outbox::new();
        let found = std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner));
        for (port_found, took, route) in found {
            match route {
                // The list is looked at again when datagrams have left.
                Ok(route) if self.known.len() >= KNOWN_MAX && in_flight => {
                    let mut list = self.found.lock().unwrap_or_else(PoisonError::into_inner);
                    list.push((port_found, took, Ok(route)));
                    continue;
                }
                Ok(route) => {
                    if self.known.len() >= KNOWN_MAX {
                        self.known.clear();
                    }
                    self.known.insert(port_found, route);
                }
                Err(error) => {
                    tracing::debug!(%error, "no route to a port");
                    if self.none.len() < WAITING_MAX {
                        let until = Instant::now() + NO_ROUTE.max(took * 4);
                        self.none.insert(port_found, until);
                    }
                }
            }
            self.sought.remove(&port_found);
            let there = self.known.contains_key(&port_found);
            self.held.retain(|(to, bytes)| {
                let waits = port(to) != port_found;
                if !waits && there {
                    ready.push_back((*to, *bytes));
                }
                waits
            });
        }
        self.seek_more();
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    fn qp_address(host: u8, number: u32) -> QpAddress {
        QpAddress { gid: [host; 16], lid: 0, number }
    }

    fn numbers(outbox: &Outbox) -> Vec<(u32, u8)> {
        outbox.iter().map(|(to, bytes)| (to.number, bytes[0])).collect()
    }

    #[test]
    fn one_datagram_waits_for_a_receiver() {
        let mut outbox = Outbox::new();
        for (number, byte) in [(1, 1), (2, 2), (1, 3)] {
            put(&mut outbox, qp_address(1, number), [byte; DATAGRAM_BYTES]);
        }
        assert_eq!(numbers(&outbox), [(1, 3), (2, 2)]);
        (3..3000).for_each(|number| put(&mut outbox, qp_address(1, number), [0; DATAGRAM_BYTES]));
        assert_eq!(outbox.len(), WAITING_MAX);
    }

    /// Routes whose search for hosts from 100 up ends when something is sent, and a sign that one has ended.
    fn routes() -> (Routes<u8>, std::sync::mpsc::Sender<()>, Receiver<()>) {
        let ((end, ended), (rung, rings)) = (channel::<()>(), channel());
        let ended = Mutex::new(ended);
        let seek = move |to: &QpAddress| match to.gid[0] {
            host if host < 100 => Ok(host),
            _ => {
                let _ = ended.lock().unwrap().recv();
                Err(LinkError::Unreachable { reason: "a dead host".to_owned() })
            }
        };
        let rung = Mutex::new(rung);
        let ring = move || _ = rung.lock().unwrap().send(());
        (Routes::new(Arc::new(seek), Arc::new(ring)), end, rings)
    }

    #[test]
    fn a_dead_host_does_not_hold_up_the_others() {
        let (mut routes, end, rings) = routes();
        routes.hold(qp_address(100, 1), [1; DATAGRAM_BYTES]);
        for (number, byte) in [(2, 2), (3, 3), (2, 4)] {
            routes.hold(qp_address(7, number), [byte; DATAGRAM_BYTES]);
        }
        rings.recv().unwrap();
        assert_eq!(numbers(&routes.collect(false)), [(2, 4), (3, 3)]);
        assert_eq!(
            (routes.get(&qp_address(7, 9)), routes.get(&qp_address(100, 1))),
            (Some(&7), None)
        );
        end.send(()).unwrap();
        rings.recv().unwrap();
        assert_eq!(numbers(&routes.collect(false)), []);
        // It is not sought again at once.
        routes.hold(qp_address(100, 1), [1; DATAGRAM_BYTES]);
        assert!(routes.held.is_empty() && routes.sought.is_empty());
        routes.forget();
        assert_eq!(routes.get(&qp_address(7, 9)), None);
    }

    #[test]
    fn searches_are_bounded_and_all_have_their_turn() {
        let (mut routes, end, rings) = routes();
        let hosts = 100..100 + 3 * u8::try_from(SOUGHT_MAX).unwrap();
        for host in hosts.clone() {
            routes.hold(qp_address(host, 1), [1; DATAGRAM_BYTES]);
            assert!(routes.sought.len() <= SOUGHT_MAX);
        }
        routes.hold(qp_address(7, 1), [7; DATAGRAM_BYTES]);
        for _ in hosts {
            end.send(()).unwrap();
        }
        let mut ready = Outbox::new();
        while !routes.held.is_empty() {
            rings.recv().unwrap();
            ready.extend(routes.collect(true));
            assert!(routes.sought.len() <= SOUGHT_MAX);
        }
        assert_eq!(numbers(&ready), [(1, 7)]);
    }

    #[test]
    fn ways_in_use_are_not_forgotten() {
        let (mut routes, _end, rings) = routes();
        for host in 0..KNOWN_MAX {
            let gid = [u8::try_from(host % 100).unwrap(); 16];
            let to = QpAddress { gid, lid: u16::try_from(host).unwrap(), number: 1 };
            routes.hold(to, [1; DATAGRAM_BYTES]);
            while !routes.held.is_empty() {
                rings.recv().unwrap();
                routes.collect(true);
            }
        }
        let last = qp_address(7, 1);
        let last = QpAddress { lid: u16::MAX, ..last };
        routes.hold(last, [9; DATAGRAM_BYTES]);
        rings.recv().unwrap();
        assert!(routes.collect(true).is_empty() && routes.get(&last).is_none());
        assert_eq!(numbers(&routes.collect(false)), [(1, 9)]);
        assert_eq!(routes.known.len(), 1);
    }
}
