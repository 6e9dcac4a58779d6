//! A worker that is a thread of the CPU: it does what `kernels/cuda/worker.cu` does, packet after packet, over the same
//! memory, so that the host's side and initiators are tested without an accelerator.
//!
//! Functions are given by the test: the mock worker hands them what the kernel would have, in memory of their own.

use super::layout::{
    BUFFERS_MAX, CONTROL_BUFFER_LIST, CONTROL_BUFFERS, CONTROL_CHANGED, CONTROL_COUNTED,
    CONTROL_IDLE, CONTROL_KERNELS, CONTROL_LAYOUT_LIST, CONTROL_LIFE, CONTROL_ORDERS,
    CONTROL_QUEUES, CONTROL_REFUSALS, CONTROL_REFUSED, CONTROL_RING_LIST, CONTROL_RINGS,
    CONTROL_SEEN, CONTROL_STATE, CONTROL_TASKS, CONTROL_WHY, FAILED_UNKNOWN, INLINE_BYTES,
    LAYOUTS_MAX, ORDER_ABORT, PACKET_UNITS, REFUSED_MAX, RING_ARENA_AT, RING_ARENA_BYTES,
    RING_HEAD_AT, RING_POSITION, RING_SLOTS_AT, RING_STATE, RING_STATUS_AT, RING_WANTED,
    RING_WORDS, RINGS_MAX, ROW_WORDS, RUNNING, SLOT_BYTES, SLOTS, STATUS_ENDED, STATUS_FAILED,
    STATUS_MALFORMED, UNIT_BODY, UNIT_BYTES, USERS, WHY_ABORTED, WHY_IDLE, WHY_OLD, WHY_TOLD,
    arena_bytes, sequence_of, slot_of, status_word, units,
};
use super::state;
use crate::error::Refusal;
use crate::packet::{Command, ENTRIES, Launch, PACKET_BYTES, Packet, TaskWork};
use crate::rewrite::{self, Places};
use crate::tables::{QueueEntry, Tables, TaskEntry};
use gapless_mem::Device as _;
use gapless_mem::{DeviceError, HostDevice, Lease, Words, Worker, WorkerFunction, WorkerLimits};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// A task, as the kernel would run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MockTask {
    /// The function's number.
    pub object: u64,
    /// The grid.
    pub launch: Launch,
    /// Its arguments; the first two are the target's.
    pub arguments: Vec<u64>,
    /// The payload.
    pub payload: Vec<u8>,
    /// The registered buffer's length.
    pub buffer_bytes: u64,
    /// The name of the user's function that it is, if it is one.
    pub name: Option<Arc<str>>,
    /// The address of the layout's form that packing and unpacking name; 0 if there is none.
    pub layout: u64,
}

/// Runs tasks; an error is a number of `FAILED_…` in `worker.h`.
pub type Run = dyn Fn(&MockTask) -> Result<(), u32> + Send + Sync;

/// Work-items of a group, at most, as the kernel has.
const ITEMS_MAX: u32 = 512;

#[derive(Default)]
struct MockState {
    /// Memory that it was given, by address, and how often it was asked for.
    memory: BTreeMap<u64, (Words, u32)>,
    thread: Option<JoinHandle<()>>,
    /// Functions of users.
    linked: Vec<WorkerFunction>,
    links: u64,
}

/// Code for tests that [`MockWorker`] refuses to link.
pub const UNFIT: &[u8] = b"does not link";

/// The mock worker. At most one of its threads runs at a time.
pub struct MockWorker {
    run: Arc<Run>,
    state: Mutex<MockState>,
    over: Arc<AtomicBool>,
    dies: Arc<AtomicBool>,
}

impl MockWorker {
    /// One that runs tasks so.
    pub fn new(
        run: impl Fn(&MockTask) -> Result<(), u32> + Send + Sync + 'static,
    ) -> Arc<MockWorker> {
        let over = Arc::new(AtomicBool::new(true));
        Arc::new(MockWorker {
            run: Arc::new(run),
            state: Mutex::default(),
            over,
            dies: Arc::default(),
        })
    }

    /// The life that runs ends at once, and says nothing.
    pub fn die(&self) {
        self.dies.store(true, Ordering::Release);
    }

    /// How often it has linked functions of users.
    pub fn links(&self) -> u64 {
        self.state().links
    }

    /// Pieces of memory that it was given, and still has.
    pub fn reached(&self) -> usize {
        self.state().memory.len()
    }

    fn state(&self) -> MutexGuard<'_, MockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What waits for all work of an accelerator would wait for a life as long as that lasts.
    fn is_away(&self, what: &'static str) -> Result<(), DeviceError> {
        let over = self.over.load(Ordering::Acquire);
        if over { Ok(()) } else { Err(DeviceError::Unsupported { what }) }
    }
}

impl std::fmt::Debug for MockWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MockWorker over {} pieces of memory", self.state().memory.len())
    }
}

/// Zeroed memory of the host, as words.
///
/// # Errors
/// There is none.
pub fn memory(bytes: u64) -> Result<Lease, DeviceError> {
    let region = HostDevice::new().allocate(bytes)?;
    // SAFETY: it is never freed: tests take little.
    Ok(unsafe { Lease::kept_by_caller(region) })
}

// SAFETY: the numbers are those of the contract.
// 1. `memory` gives fresh memory of the host, zeroed, which is never freed.
// 2. The lease is kept with its words, at its own address, until it was forgotten as often as it was reached.
// 3. Both count alone; the lock is held for moments.
// 4. The thread touches words that were given, and no others; whoever starts it says that the last one is over.
// 5. The thread says so last.
unsafe impl Worker for MockWorker {
    fn limits(&self) -> WorkerLimits {
        WorkerLimits { items_max: ITEMS_MAX, local_bytes_max: 0 }
    }

    fn control(&self, len: u64) -> Result<(Lease, u64), DeviceError> {
        let lease = memory(len)?;
        let address = self.reach(&lease)?;
        Ok((lease, address))
    }

    fn reach(&self, memory: &Lease) -> Result<u64, DeviceError> {
        if let Some(start) = self.reach_now(memory)? {
            return Ok(start);
        }
        self.is_away("registering memory")?;
        // SAFETY: memory that is handed to a worker is touched as words by the process meanwhile.
        let words = unsafe { Words::new(memory.clone()) }?;
        let start = memory.region().start();
        self.state().memory.insert(start, (words, 1));
        Ok(start)
    }

    fn reach_now(&self, memory: &Lease) -> Result<Option<u64>, DeviceError> {
        let start = memory.region().start();
        if memory.region().as_ptr().is_none() {
            // The mock worker touches none of it.
            return Ok(Some(start));
        }
        let counted = self.state().memory.get_mut(&start).map(|(_, users)| *users += 1);
        Ok(counted.map(|()| start))
    }

    unsafe fn forget(&self, memory: &Lease) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        if !unsafe { self.forget_now(memory) }? {
            self.is_away("giving memory back")?;
            self.state().memory.remove(&memory.region().start());
        }
        Ok(())
    }

    unsafe fn forget_now(&self, memory: &Lease) -> Result<bool, DeviceError> {
        let (mut state, start) = (self.state(), memory.region().start());
        match state.memory.get_mut(&start) {
            Some((_, 1)) => return Ok(false),
            Some((_, users)) => *users -= 1,
            None => {}
        }
        Ok(true)
    }

    fn link(&self, functions: &[WorkerFunction]) -> Result<(), DeviceError> {
        self.is_away("linking")?;
        let twice = |one: &WorkerFunction| {
            functions.iter().any(|other| other.name == one.name && !other.code.is(&one.code))
        };
        if let Some(bad) = functions.iter().find(|one| one.code.image() == UNFIT || twice(one)) {
            return Err(DeviceError::Link {
                log: format!("{} is not to be had\nby anybody", bad.name),
            });
        }
        let mut state = self.state();
        state.linked = functions.to_vec();
        state.links += 1;
        Ok(())
    }

    unsafe fn start(&self, control: u64) -> Result<(), DeviceError> {
        let mut state = self.state();
        let memory = state.memory.iter().map(|(at, (words, _))| (*at, words.clone())).collect();
        let linked = state.linked.clone();
        if let Some(last) = state.thread.take() {
            let _ = last.join();
        }
        let (run, over) = (Arc::clone(&self.run), Arc::clone(&self.over));
        let dies = Arc::clone(&self.dies);
        dies.store(false, Ordering::Release);
        over.store(false, Ordering::Release);
        let play = move || {
            LifeOf::new((memory, linked), control, run).live(&dies);
            over.store(true, Ordering::Release);
        };
        let thread = std::thread::Builder::new().name("mock worker".to_owned()).spawn(play);
        state.thread = Some(thread.map_err(|error| DeviceError::Failed {
            device: "mock worker".to_owned(),
            operation: "start",
            reason: error.to_string(),
        })?);
        Ok(())
    }

    fn is_over(&self) -> Result<bool, DeviceError> {
        Ok(self.over.load(Ordering::Acquire))
    }
}

struct PlayedRing {
    head: u64,
    slots: u64,
    status: u64,
    arena: u64,
    arena_bytes: u64,
    position: u64,
}

/// One life of the worker.
struct LifeOf {
    memory: BTreeMap<u64, Words>,
    linked: Vec<WorkerFunction>,
    control: u64,
    run: Arc<Run>,
    tables: Tables,
    rows: Vec<[u64; ROW_WORDS]>,
    buffers: Vec<u64>,
    rings: Vec<PlayedRing>,
    changed: u64,
    /// It has said that it runs.
    runs: bool,
}

impl LifeOf {
    fn new(
        (memory, linked): (BTreeMap<u64, Words>, Vec<WorkerFunction>),
        control: u64,
        run: Arc<Run>,
    ) -> LifeOf {
        let (tables, rows, buffers, rings) = (Tables::new(), Vec::new(), Vec::new(), Vec::new());
        let (changed, runs) = (0, false);
        LifeOf { memory, linked, control, run, tables, rows, buffers, rings, changed, runs }
    }

    /// A ring of the list.
    fn listed(&self, ring: usize) -> PlayedRing {
        let word = |at: usize| self.load(CONTROL_RING_LIST + 8 * (RING_WORDS * ring + at));
        PlayedRing {
            head: word(RING_HEAD_AT),
            slots: word(RING_SLOTS_AT),
            status: word(RING_STATUS_AT),
            arena: word(RING_ARENA_AT),
            arena_bytes: word(RING_ARENA_BYTES),
            position: word(RING_POSITION),
        }
    }

    /// The word at this address, if it lies in memory that was given.
    fn at(&self, address: u64) -> Option<&AtomicU64> {
        let (start, words) = self.memory.range(..=address).next_back()?;
        let offset = usize::try_from(address - start).ok()?;
        words.all().get(offset / 8)
    }

    /// A word of the control block.
    fn own(&self, byte: usize) -> Option<&AtomicU64> {
        self.at(self.control + byte as u64)
    }

    fn load(&self, byte: usize) -> u64 {
        self.own(byte).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, byte: usize, value: u64) {
        if let Some(word) = self.own(byte) {
            word.store(value, Ordering::Release);
        }
    }

    fn states(&self) -> Vec<&AtomicU64> {
        self.rings.iter().filter_map(|ring| self.at(ring.head + RING_STATE as u64)).collect()
    }

    fn row(&self, table: usize, index: usize) -> [u64; ROW_WORDS] {
        let at = table + 8 * ROW_WORDS * index;
        std::array::from_fn(|word| self.load(at + 8 * word))
    }

    /// What the host may have changed; nothing of it, if that does not hold still. Whether it did.
    fn reload(&mut self) -> bool {
        let changed = self.load(CONTROL_CHANGED);
        let rows: Vec<_> = (0..ENTRIES).map(|index| self.row(CONTROL_KERNELS, index)).collect();
        let queues: Vec<_> = (0..ENTRIES).map(|index| self.row(CONTROL_QUEUES, index)).collect();
        let count = usize::try_from(self.load(CONTROL_BUFFERS)).unwrap_or(0).min(BUFFERS_MAX);
        let buffers = (0..count).map(|at| self.load(CONTROL_BUFFER_LIST + 16 * at + 8)).collect();
        let count = usize::try_from(self.load(CONTROL_RINGS)).unwrap_or(0).min(RINGS_MAX);
        let new: Vec<PlayedRing> = (self.rings.len()..count).map(|at| self.listed(at)).collect();
        fence(Ordering::Acquire);
        let odd = |row: &[u64; ROW_WORDS]| !row[0].is_multiple_of(2);
        if !changed.is_multiple_of(2)
            || self.load(CONTROL_CHANGED) != changed
            || rows.iter().chain(&queues).any(odd)
        {
            return false;
        }
        (self.changed, self.rows, self.buffers) = (changed, rows, buffers);
        for ((index, row), queue) in (0u8..).zip(&self.rows).zip(queues) {
            let [low, high] = [row[5] & u64::from(u32::MAX), row[5] >> 32];
            let entry = TaskEntry {
                object: row[1],
                buffer: row[2],
                buffer_bytes: row[3],
                signal: row[4],
                payload_max: u32::try_from(low).unwrap_or(0),
                argument_bytes: u16::try_from(high).unwrap_or(0),
            };
            let queue = QueueEntry { base: queue[1], capacity: u32::MAX };
            let _ = self.tables.set_kernel(index, Some(entry));
            let _ = self.tables.set_queue(index, Some(queue));
        }
        let known = self.rings.len();
        self.rings.extend(new);
        if self.runs {
            self.states()[known..].iter().for_each(|new| new.store(RUNNING, Ordering::Release));
        }
        self.store(CONTROL_SEEN, self.changed);
        true
    }

    fn live(&mut self, dies: &AtomicBool) {
        while !self.reload() {
            std::thread::yield_now();
        }
        let begun = Instant::now();
        let longest = u128::from(self.load(CONTROL_LIFE));
        let idle = self.load(CONTROL_IDLE);
        self.runs = true;
        for state in self.states() {
            state.store(RUNNING, Ordering::Release);
        }
        self.store(CONTROL_STATE, RUNNING);
        let mut worked = Instant::now();
        let why = loop {
            if dies.load(Ordering::Acquire) {
                return;
            }
            let found = self.round();
            if found {
                worked = Instant::now();
            }
            let orders = self.load(CONTROL_ORDERS);
            if self.load(CONTROL_CHANGED) != self.changed {
                self.reload();
            }
            match orders {
                0 if begun.elapsed().as_nanos() > longest => break WHY_OLD,
                0 if !found && worked.elapsed().as_nanos() > u128::from(idle) => {
                    self.reload();
                    let before = self.load(CONTROL_WHY);
                    self.retire(WHY_IDLE);
                    if self.leave() {
                        return;
                    }
                    self.retire(before);
                }
                0 => {}
                orders if orders & ORDER_ABORT != 0 => break WHY_ABORTED,
                _ => break WHY_TOLD,
            }
            std::thread::yield_now();
        };
        self.reload();
        self.retire(why);
        self.leave_behind();
        self.states().iter().for_each(|state| state.store(state::GONE, Ordering::Release));
        self.store(CONTROL_STATE, state::GONE);
    }

    /// A later life goes on where this one ends.
    fn retire(&self, why: u64) {
        self.store(CONTROL_WHY, why);
    }

    fn keep(&self, ring: usize) {
        let place = CONTROL_RING_LIST + 8 * (RING_WORDS * ring + RING_POSITION);
        self.store(place, self.rings[ring].position);
    }

    fn leave(&self) -> bool {
        let Some(own) = self.own(CONTROL_STATE) else { return true };
        let states = self.states();
        let look = || self.rings.iter().any(|ring| self.read(ring).is_some());
        state::leave(own, states.iter().copied(), look)
    }

    /// Sent away, or too old: it takes nothing more, and wants the next life for what is left.
    fn leave_behind(&self) {
        self.states().iter().for_each(|state| state.store(state::LEAVING, Ordering::Relaxed));
        self.store(CONTROL_STATE, state::LEAVING);
        fence(Ordering::SeqCst);
        for ring in self.rings.iter().filter(|ring| self.read(ring).is_some()) {
            if let Some(wanted) = self.at(ring.head + RING_WANTED as u64) {
                wanted.store(1, Ordering::Release);
            }
        }
    }

    /// The packet at a ring's next position, and its body's units or place, if it is whole.
    fn read(&self, ring: &PlayedRing) -> Option<([u8; PACKET_BYTES], Vec<u8>)> {
        let slot = ring.slots + (slot_of(ring.position) * SLOT_BYTES) as u64;
        let sequence = sequence_of(ring.position);
        let unit = |at: usize| -> Option<[u8; UNIT_BYTES]> {
            let place = slot + (at * UNIT_BYTES) as u64;
            let low = self.at(place)?.load(Ordering::Acquire);
            let high = self.at(place + 8)?.load(Ordering::Relaxed);
            let mut both = [0; UNIT_BYTES];
            both[..8].copy_from_slice(&low.to_le_bytes());
            both[8..].copy_from_slice(&high.to_le_bytes());
            (u16::from_le_bytes([both[0], both[1]]) == sequence).then_some(both)
        };
        let mut packet = [0; PACKET_BYTES];
        for at in 0..PACKET_UNITS {
            packet[at * UNIT_BYTES..][..UNIT_BYTES].copy_from_slice(&unit(at)?);
        }
        let mut body = Vec::new();
        for at in PACKET_UNITS..units(body_bytes(&packet)) {
            body.extend_from_slice(&unit(at)?[UNIT_BYTES - UNIT_BODY..]);
        }
        Some((packet, body))
    }

    /// Takes what is in the rings. Whether there was something.
    fn round(&mut self) -> bool {
        let mut found = false;
        for at in 0..self.rings.len() {
            for _ in 0..SLOTS / 8 {
                let Some((packet, body)) = self.read(&self.rings[at]) else { break };
                found = true;
                let (code, value) = self.take(at, &packet, body);
                self.answer(at, &packet, code, value);
            }
        }
        found
    }

    fn answer(&mut self, at: usize, packet: &[u8; PACKET_BYTES], code: u8, value: u32) {
        let position = self.rings[at].position;
        if code == STATUS_ENDED {
            let signal = self.rows[usize::from(packet[4]) % ENTRIES][4];
            if let Some(signal) =
                signal.checked_sub(1).and_then(|signal| usize::try_from(signal).ok())
            {
                let place = CONTROL_COUNTED + 8 * signal;
                self.store(place, self.load(place) + 1);
            }
            self.store(CONTROL_TASKS, self.load(CONTROL_TASKS) + 1);
        } else {
            let number = self.load(CONTROL_REFUSALS);
            let slot = usize::try_from(number % REFUSED_MAX as u64).unwrap_or(0);
            let ring = u64::from(at.to_le_bytes()[0]);
            let place = ring | u64::from(packet[4]) << 8 | u64::from(packet[5]) << 16;
            let said = u64::from(code) << 24 | u64::from(value) << 32;
            self.store(CONTROL_REFUSED + 8 * slot, place | said);
            self.store(CONTROL_REFUSALS, number + 1);
        }
        self.rings[at].position += 1;
        self.keep(at);
        let status = self.rings[at].status + 8 * slot_of(position) as u64;
        if let Some(word) = self.at(status) {
            word.store(status_word(position, code, value), Ordering::Release);
        }
    }

    /// The packet becomes a task, and runs; or is refused.
    fn take(&self, at: usize, packet: &[u8; PACKET_BYTES], body: Vec<u8>) -> (u8, u32) {
        let bytes = body_bytes(packet);
        let Ok(sent) = Packet::read(packet) else { return (STATUS_MALFORMED, 0) };
        let rewritten =
            match rewrite::rewrite(&sent, &self.tables, Places { arguments: 8, payload: 16 }) {
                Ok(rewritten) => rewritten,
                Err(error) => {
                    return Refusal::of(&error).map_or((STATUS_MALFORMED, 0), Refusal::encode);
                }
            };
        let Ok(Command { index, object, payload_bytes, work: TaskWork::Kernel(launch), .. }) =
            rewritten.packet.command()
        else {
            return (STATUS_MALFORMED, 0);
        };
        let body = match bytes > INLINE_BYTES {
            false => body,
            true => match self.fetch(&self.rings[at], &body, &launch, payload_bytes) {
                Some(body) => body,
                None => return (STATUS_MALFORMED, 0),
            },
        };
        let row = self.rows[usize::from(index)];
        let half = |word: u64, upper: u32| {
            u32::try_from(word >> (32 * upper) & u64::from(u32::MAX)).unwrap_or(0)
        };
        let most = half(row[7], 1);
        if launch.group_items() > most.into() || launch.local_bytes > 0 {
            return Refusal::Group { items_max: most }.encode();
        }
        let limits = [half(row[6], 0), half(row[6], 1), half(row[7], 0)];
        let items: u128 = launch.grid.iter().map(|&items| u128::from(items)).product();
        if launch.grid.iter().zip(limits).any(|(&items, max)| items > max) || items > 1 << 40 {
            return Refusal::Grid.encode();
        }
        let largest = self.buffers.iter().copied().max();
        match largest {
            _ if payload_bytes == 0 => {}
            None => return Refusal::NoReceiveBuffer.encode(),
            Some(largest) if largest < payload_bytes.into() => {
                let largest = u32::try_from(largest).unwrap_or(u32::MAX);
                return Refusal::ReceiveBufferTooSmall { largest }.encode();
            }
            Some(_) => {}
        }
        let (arguments, rest) = body.split_at(usize::from(launch.argument_bytes));
        let (words, _) = arguments.as_chunks::<8>();
        let mut arguments: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        arguments[..2].copy_from_slice(&rewritten.first);
        let payload = rest[..payload_bytes as usize].to_vec();
        let users = self.linked.iter().find(|function| function.number == object);
        let name = users.map(|function| Arc::clone(&function.name));
        if object >= USERS && name.is_none() {
            return (STATUS_FAILED, FAILED_UNKNOWN);
        }
        let number = arguments.get(2).and_then(|number| usize::try_from(*number).ok());
        let layout = number.filter(|number| *number < LAYOUTS_MAX);
        let layout = layout.map_or(0, |number| self.load(CONTROL_LAYOUT_LIST + 8 * number));
        let buffer_bytes = row[3];
        let task = MockTask { object, launch, arguments, payload, buffer_bytes, name, layout };
        match (self.run)(&task) {
            Ok(()) => (STATUS_ENDED, 0),
            Err(why) => (STATUS_FAILED, why),
        }
    }

    /// A long body, out of the ring's arena.
    fn fetch(
        &self,
        ring: &PlayedRing,
        unit: &[u8],
        launch: &Launch,
        payload: u32,
    ) -> Option<Vec<u8>> {
        let (arguments, payload) =
            (usize::from(launch.argument_bytes), usize::try_from(payload).ok()?);
        let place = u64::from_le_bytes(unit.get(6..14)?.try_into().ok()?);
        let bytes = arena_bytes(arguments, payload);
        let inside = place <= ring.arena_bytes && bytes as u64 <= ring.arena_bytes - place;
        if !inside || !place.is_multiple_of(16) {
            return None;
        }
        let mut body = Vec::with_capacity(bytes + 8);
        while body.len() < bytes {
            let word = self.at(ring.arena + place + body.len() as u64)?.load(Ordering::Relaxed);
            body.extend_from_slice(&word.to_le_bytes());
        }
        body.truncate(bytes);
        body.drain(arguments..bytes - payload);
        Some(body)
    }
}

/// Bytes of a packet's body, whatever it is.
fn body_bytes(packet: &[u8; PACKET_BYTES]) -> usize {
    let number = |at: usize, len: usize| {
        packet[at..at + len].iter().rev().fold(0, |n, byte| n << 8 | usize::from(*byte))
    };
    let arguments = if packet[2] == 2 { number(44, 2) } else { 0 };
    arguments + number(52, 4)
}
