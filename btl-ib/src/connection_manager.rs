//! The connection manager takes the calls of processes that want a link, authenticated or not. It has a thread of its
//! own, so that a process answers while it computes.
//!
//! It has one queue pair for datagrams. What arrives and is proved ([`crate::proof`]) goes to the transport; every
//! hello that wants an answer gets "alive" at once. All else is dropped, counted, and named in the log now and then.
//! Datagrams may be lost, so callers repeat them. Both queues are bounded, and have at most one datagram for a
//! receiver. A datagram to a port whose route is not known waits until the route is found ([`crate::routes`]). Others
//! overtake it.
//!
//! If a datagram cannot be sent, the queue pair is in the error state, and all its buffers come back at once. Then the
//! connection manager resets the queue pair and posts the receive buffers again.

use crate::address::Id;
use crate::proof::{DATAGRAM_BYTES, Datagram, Keys, Word};
use crate::qp_address::QpAddress;
use crate::routes::{Outbox, Routes, WAITING_MAX, put};
use crate::system;
use crate::verbs::datagram::{DatagramRoute, Datagrams, ROUTE_BYTES};
use crate::verbs::memory::{Domain, Registered};
use crate::verbs::pair::Here;
use crate::verbs::queues::{Channel, Done, Poller};
use gapless_btl::LinkError;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Buffers for arrivals, and for what leaves.
const RECEIVES: u32 = 128;
const SENDS: u32 = 64;
/// How far buffers are apart.
const STRIDE: u32 = 256;
const _: () = assert!(ROUTE_BYTES as usize + DATAGRAM_BYTES <= STRIDE as usize);

/// What both threads see.
struct Shared {
    inbox: Mutex<VecDeque<Datagram>>,
    outbox: Mutex<Outbox>,
    /// Readable while something waits for the transport.
    inbox_event: OwnedFd,
    /// Readable while something waits for the thread.
    wake: OwnedFd,
    stop: AtomicBool,
    /// Datagrams of unauthenticated processes.
    unauthenticated: AtomicU64,
    /// For tests: the key to send with, if not zero.
    #[cfg(test)]
    pretend: std::sync::atomic::AtomicU32,
}

/// The transport's side.
pub(crate) struct ConnectionManager {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    number: u32,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConnectionManager {
    /// Opens the queue pair and starts the thread.
    ///
    /// # Errors
    /// The device or the system has no more of something.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        here: Here,
        keys: &Keys,
        (own, rank): (Id, u32),
        gid: ([u8; 16], u16),
    ) -> Result<ConnectionManager, LinkError> {
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
            inbox_event: event()?,
            wake: event()?,
            stop: AtomicBool::new(false),
            unauthenticated: AtomicU64::new(0),
            #[cfg(test)]
            pretend: Default::default(),
        });
        let (of, wake) = (Arc::clone(domain), Arc::clone(&shared));
        let routes = Routes::new(
            Arc::new(move |to: &QpAddress| DatagramRoute::new(&of, here, to)),
            Arc::new(move || _ = rustix::io::write(&wake.wake, &1u64.to_ne_bytes())),
        );
        let thread_side = ManagerThread {
            shared: Arc::clone(&shared),
            poller,
            pair,
            memory,
            keys: keys.clone(),
            own,
            rank,
            cm: QpAddress { gid: gid.0, lid: gid.1, number },
            routes,
            answers: VecDeque::new(),
            free: (0..SENDS).collect(),
            broken: false,
        };
        let thread = std::thread::Builder::new().name("gapless-ib-cm".to_owned());
        let thread = thread
            .spawn(move || thread_side.serve())
            .map_err(|e| system("starting a thread", e))?;
        Ok(ConnectionManager { shared, thread: Some(thread), number })
    }

    /// The number of the queue pair.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Readable while datagrams wait.
    pub(crate) fn inbox_fd(&self) -> BorrowedFd<'_> {
        self.shared.inbox_event.as_fd()
    }

    /// Sends a datagram, if there is room.
    pub(crate) fn send(&self, to: QpAddress, bytes: [u8; DATAGRAM_BYTES]) {
        put(&mut locked(&self.shared.outbox), to, bytes);
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
    }

    /// The next datagram that has arrived.
    pub(crate) fn next(&self) -> Option<Datagram> {
        let mut inbox = locked(&self.shared.inbox);
        let next = inbox.pop_front();
        if next.is_none() {
            let _ = rustix::io::read(&self.shared.inbox_event, &mut [0; 8]);
        }
        next
    }

    /// For tests: how many datagrams of unauthenticated processes have come.
    #[cfg(test)]
    pub(crate) fn unauthenticated(&self) -> u64 {
        self.shared.unauthenticated.load(Ordering::Relaxed)
    }

    /// For tests: sends with this queue key from now on.
    #[cfg(test)]
    pub(crate) fn pretend(&self, key: u32) {
        self.shared.pretend.store(key, Ordering::Relaxed);
    }
}

impl Drop for ConnectionManager {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's side.
struct ManagerThread {
    shared: Arc<Shared>,
    poller: Poller,
    pair: Datagrams,
    memory: Arc<Registered>,
    keys: Keys,
    own: Id,
    rank: u32,
    cm: QpAddress,
    routes: Routes<DatagramRoute>,
    /// Answers to those who call, and what waited for its way: they leave first.
    answers: Outbox,
    /// Send buffers.
    free: Vec<u32>,
    /// The queue pair is in the error state.
    broken: bool,
}

/// Posts a receive buffer.
fn receive(pair: &mut Datagrams, index: u32) -> Result<(), LinkError> {
    let place = (u64::from(index * STRIDE), STRIDE);
    // SAFETY: a receive buffer is posted when it is new or its completion was handled, and is nobody's meanwhile.
    unsafe { pair.receive(u64::from(index), place) }
}

impl ManagerThread {
    fn serve(mut self) {
        let mut done = Vec::with_capacity(64);
        let channel = Arc::clone(&self.poller.cq.channel);
        let shared = Arc::clone(&self.shared);
        let mut gone = false;
        while !self.is_stopped() {
            self.poller.arm();
            loop {
                self.handle_completions(&mut done);
                if self.broken {
                    self.reset(&mut done);
                }
                if self.is_stopped() || self.broken || !self.send_one() {
                    break;
                }
            }
            let wake = PollFd::new(&shared.wake, PollFlags::IN);
            let mut fds = [wake, PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN)];
            // Interrupted or not: all is looked at again.
            let _ = poll(&mut fds[..if gone { 1 } else { 2 }], None);
            // A device that is gone would say so for ever.
            gone |= fds[1].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
            let _ = rustix::io::read(&shared.wake, &mut [0; 8]);
            channel.hush();
        }
    }

    fn is_stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Acquire)
    }

    /// Handles all completions.
    fn handle_completions(&mut self, done: &mut Vec<Done>) {
        while !self.is_stopped() && self.poller.poll(done) > 0 {
            done.drain(..).for_each(|one| self.ended(one));
        }
    }

    /// Resets the queue pair, takes all buffers back, and posts the receive buffers.
    fn reset(&mut self, done: &mut Vec<Done>) {
        if let Err(error) = self.pair.restart() {
            // The thread tries again when it has another datagram to send.
            tracing::debug!(%error, "the connection manager's queue pair was not reset");
            return;
        }
        // Completions of what was posted before the reset mean nothing now.
        while self.poller.poll(done) > 0 {
            done.clear();
        }
        self.broken = false;
        self.free = (0..SENDS).collect();
        // Routes may have changed.
        self.routes.forget();
        for index in 0..RECEIVES {
            if let Err(error) = receive(&mut self.pair, index) {
                tracing::debug!(%error, "the connection manager has lost a receive buffer");
            }
        }
    }

    /// Handles the completion of a buffer: an arrival, the end of a send, or an error.
    fn ended(&mut self, done: Done) {
        let Ok(index) = u32::try_from(done.name) else { return };
        if done.status != 0 {
            self.broken = true;
        } else if index >= RECEIVES {
            self.free.push(index - RECEIVES);
        } else {
            self.arrived(index, done.bytes);
            if let Err(error) = receive(&mut self.pair, index) {
                tracing::debug!(%error, "the connection manager has lost a receive buffer");
            }
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
                let count = self.shared.unauthenticated.fetch_add(1, Ordering::Relaxed) + 1;
                if count.is_power_of_two() {
                    tracing::warn!(count, reason, "a datagram of an unauthenticated process");
                }
                return;
            }
        };
        if let Word::Hello(hello) = datagram.word
            && !hello.up
        {
            let word = Word::Alive(hello.turn);
            let (from, rank, to) = (self.own, self.rank, datagram.from);
            let answer = Datagram { from, rank, to, cm: self.cm, word };
            put(&mut self.answers, datagram.cm, answer.seal(&self.keys));
        }
        let mut inbox = locked(&self.shared.inbox);
        if inbox.len() < WAITING_MAX {
            inbox.push_back(datagram);
        }
        drop(inbox);
        let _ = rustix::io::write(&self.shared.inbox_event, &1u64.to_ne_bytes());
    }

    /// Sends a datagram that waits, answers first; whether there was one, and room for it.
    fn send_one(&mut self) -> bool {
        if self.free.is_empty() {
            // What comes back makes room.
            return false;
        }
        let in_flight = self.free.len() < SENDS as usize;
        for (to, bytes) in self.routes.collect(in_flight) {
            // What waits already is newer.
            if self.answers.iter().all(|waits| waits.0 != to) {
                put(&mut self.answers, to, bytes);
            }
        }
        let next = self.answers.pop_front();
        let next = next.or_else(|| locked(&self.shared.outbox).pop_front());
        let Some((to, bytes)) = next else { return false };
        self.send(to, &bytes);
        true
    }

    fn send(&mut self, to: QpAddress, bytes: &[u8; DATAGRAM_BYTES]) {
        let Some(route) = self.routes.get(&to) else { return self.routes.hold(to, *bytes) };
        let Some(buffer) = self.free.pop() else { return };
        let index = RECEIVES + buffer;
        let at = u64::from(index * STRIDE);
        // SAFETY: the memory lives; the buffer was free, so nobody else touches it.
        let written = unsafe { gapless_mem::write(&self.memory.region(), at, bytes) };
        written.expect("a buffer lies in its memory, which is the CPU's");
        let len = u32::try_from(DATAGRAM_BYTES).unwrap_or(0);
        let key = self.keys.queue_key();
        #[cfg(test)]
        let key = match self.shared.pretend.load(Ordering::Relaxed) {
            0 => key,
            other => other,
        };
        // SAFETY: the buffer comes back by its completion, and is touched by nobody before.
        let sent = unsafe { self.pair.send(u64::from(index), (at, len), route, (to.number, key)) };
        if let Err(error) = sent {
            tracing::debug!(%error, %to, "a datagram stays");
            self.free.push(buffer);
        }
    }
}
