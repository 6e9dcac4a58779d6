//! The door: where strangers and peers-to-be knock. A thread of its own serves it, so that a process which computes is
//! seen to live.
//!
//! It has one queue pair for datagrams. What arrives and is proved ([`crate::proof`]) goes to the transport; every
//! hello that wants an answer gets "alive" at once. All else is dropped, counted, and named in the log now and then.
//! Datagrams may be lost; whoever calls repeats itself. Both queues are bounded.

use crate::card::Id;
use crate::place::Place;
use crate::proof::{DATAGRAM_BYTES, Datagram, Keys, Word};
use crate::system;
use crate::verbs::datagram::{Datagrams, ROUTE_BYTES, Way};
use crate::verbs::memory::{Domain, Registered};
use crate::verbs::pair::Here;
use crate::verbs::queues::{Channel, Done, Poller};
use gapless_btl::LinkError;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Buffers for arrivals, and for what leaves.
const RECEIVES: u32 = 128;
const SENDS: u32 = 64;
/// How far buffers are apart.
const STRIDE: u32 = 256;
/// Datagrams that wait, in either direction.
const WAITING_MAX: usize = 1024;
/// Ways that are remembered.
const WAYS_MAX: usize = 256;

const _: () = assert!(ROUTE_BYTES as usize + DATAGRAM_BYTES <= STRIDE as usize);

/// What both threads see.
struct Shared {
    inbox: Mutex<VecDeque<Datagram>>,
    outbox: Mutex<VecDeque<(Place, [u8; DATAGRAM_BYTES])>>,
    /// Readable while something waits for the transport.
    ring: OwnedFd,
    /// Readable while something waits for the thread.
    wake: OwnedFd,
    stop: AtomicBool,
}

/// The transport's side.
pub(crate) struct Door {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    number: u32,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Door {
    /// Opens it.
    ///
    /// # Errors
    /// The device or the system has no more of something.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        here: Here,
        keys: &Keys,
        own: Id,
        gid: ([u8; 16], u16),
    ) -> Result<Door, LinkError> {
        let channel = Channel::new(&domain.context)?;
        let poller = Poller::new(&channel, RECEIVES + SENDS)?;
        let memory = Registered::new(domain, (STRIDE * (RECEIVES + SENDS)) as usize)?;
        let lengths = (SENDS, RECEIVES);
        let key = keys.queue_key();
        let mut pair = Datagrams::new(&poller.cq, here, key, &memory, domain, lengths)?;
        for index in 0..RECEIVES {
            receive(&mut pair, index)?;
        }
        let number = pair.number();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = || eventfd(0, flags).map_err(|e| system("eventfd", e));
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            outbox: Mutex::default(),
            ring: event()?,
            wake: event()?,
            stop: AtomicBool::new(false),
        });
        let porter = Porter {
            shared: Arc::clone(&shared),
            poller,
            pair,
            memory,
            domain: Arc::clone(domain),
            here,
            keys: keys.clone(),
            own,
            door: Place { gid: gid.0, lid: gid.1, number },
            ways: HashMap::new(),
            free: (0..SENDS).collect(),
            strangers: 0,
        };
        let thread = std::thread::Builder::new().name("gapless-ib-door".to_owned());
        let thread =
            thread.spawn(move || porter.serve()).map_err(|e| system("starting a thread", e))?;
        Ok(Door { shared, thread: Some(thread), number })
    }

    /// The number of its queue pair.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Readable while datagrams wait.
    pub(crate) fn ring(&self) -> BorrowedFd<'_> {
        self.shared.ring.as_fd()
    }

    /// Sends a datagram, if there is room.
    pub(crate) fn send(&self, to: Place, bytes: [u8; DATAGRAM_BYTES]) {
        let mut outbox = locked(&self.shared.outbox);
        if outbox.len() < WAITING_MAX {
            outbox.push_back((to, bytes));
        }
        drop(outbox);
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
    }

    /// The next datagram that has arrived.
    pub(crate) fn next(&self) -> Option<Datagram> {
        let mut inbox = locked(&self.shared.inbox);
        let next = inbox.pop_front();
        if next.is_none() {
            let _ = rustix::io::read(&self.shared.ring, &mut [0; 8]);
        }
        next
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's side.
struct Porter {
    shared: Arc<Shared>,
    poller: Poller,
    pair: Datagrams,
    memory: Arc<Registered>,
    domain: Arc<Domain>,
    here: Here,
    keys: Keys,
    own: Id,
    door: Place,
    ways: HashMap<([u8; 16], u16), Way>,
    /// Send buffers.
    free: Vec<u32>,
    /// Datagrams of others.
    strangers: u64,
}

/// Posts a receive buffer.
fn receive(pair: &mut Datagrams, index: u32) -> Result<(), LinkError> {
    let place = (u64::from(index * STRIDE), STRIDE);
    // SAFETY: a receive buffer is posted when it is new or its completion was handled, and is nobody's meanwhile.
    unsafe { pair.receive(u64::from(index), place) }
}

impl Porter {
    fn serve(mut self) {
        let mut done = Vec::with_capacity(64);
        while !self.shared.stop.load(Ordering::Acquire) {
            self.poller.arm();
            while self.poller.poll(&mut done) > 0 {
                done.drain(..).for_each(|one| self.ended(one));
            }
            self.send_what_waits();
            let channel = Arc::clone(&self.poller.cq.channel);
            let shared = Arc::clone(&self.shared);
            let mut fds = [
                PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN),
                PollFd::new(&shared.wake, PollFlags::IN),
            ];
            // Interrupted or not: all is looked at again.
            let _ = poll(&mut fds, None);
            let _ = rustix::io::read(&shared.wake, &mut [0; 8]);
            channel.hush();
        }
    }

    /// A buffer of the door came back.
    fn ended(&mut self, done: Done) {
        let Ok(index) = u32::try_from(done.name) else { return };
        if index >= RECEIVES {
            self.free.push(index - RECEIVES);
            return;
        }
        if done.status == 0 {
            self.arrived(index, done.bytes);
        }
        if let Err(error) = receive(&mut self.pair, index) {
            tracing::debug!(%error, "the door has a buffer less");
        }
    }

    fn arrived(&mut self, index: u32, bytes: u32) {
        let len = bytes.saturating_sub(ROUTE_BYTES) as usize;
        let mut said = [0; DATAGRAM_BYTES];
        let said = &mut said[..len.min(DATAGRAM_BYTES)];
        let at = u64::from(index * STRIDE + ROUTE_BYTES);
        // SAFETY: the memory lives; the adapter has finished with the buffer, which nobody else has.
        let read = unsafe { gapless_mem::read(&self.memory.region(), at, said) };
        read.expect("a buffer lies in its memory, which is the CPU's");
        let right = if len == said.len() {
            Datagram::open(said, &self.keys)
        } else {
            Err("it is too long")
        };
        let datagram = match right {
            Ok(datagram) if datagram.to == self.own => datagram,
            // Of the job, but for whoever had this queue pair before.
            Ok(_) => return,
            Err(reason) => {
                self.strangers += 1;
                if self.strangers.is_power_of_two() {
                    tracing::warn!(count = self.strangers, reason, "a stranger's datagram");
                }
                return;
            }
        };
        if let Word::Hello(hello) = datagram.word
            && !hello.up
        {
            let answer =
                Datagram { from: self.own, to: datagram.from, door: self.door, word: Word::Alive };
            self.send(datagram.door, &answer.seal(&self.keys));
        }
        let mut inbox = locked(&self.shared.inbox);
        if inbox.len() < WAITING_MAX {
            inbox.push_back(datagram);
        }
        drop(inbox);
        let _ = rustix::io::write(&self.shared.ring, &1u64.to_ne_bytes());
    }

    fn send_what_waits(&mut self) {
        while !self.free.is_empty() {
            let Some((to, bytes)) = locked(&self.shared.outbox).pop_front() else { return };
            self.send(to, &bytes);
        }
    }

    fn send(&mut self, to: Place, bytes: &[u8; DATAGRAM_BYTES]) {
        let port = (to.gid, to.lid);
        if !self.ways.contains_key(&port) {
            match Way::new(&self.domain, self.here, &to) {
                Ok(way) => {
                    if self.ways.len() >= WAYS_MAX {
                        self.ways.clear();
                    }
                    self.ways.insert(port, way);
                }
                Err(error) => {
                    tracing::debug!(%error, %to, "no way there");
                    return;
                }
            }
        }
        let (Some(way), Some(buffer)) = (self.ways.get(&port), self.free.pop()) else { return };
        let index = RECEIVES + buffer;
        let at = u64::from(index * STRIDE);
        // SAFETY: the memory lives; the buffer was free, so nobody else touches it.
        let written = unsafe { gapless_mem::write(&self.memory.region(), at, bytes) };
        written.expect("a buffer lies in its memory, which is the CPU's");
        let len = u32::try_from(DATAGRAM_BYTES).unwrap_or(0);
        let key = self.keys.queue_key();
        // SAFETY: the buffer comes back by its completion, and is touched by nobody before.
        let sent = unsafe { self.pair.send(u64::from(index), (at, len), way, (to.number, key)) };
        if let Err(error) = sent {
            tracing::debug!(%error, %to, "a datagram stays");
            self.free.push(buffer);
        }
    }
}
