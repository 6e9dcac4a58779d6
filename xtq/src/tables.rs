//! The lookup tables of a target: what an index stands for (LeBeane et al. 2016, §III.C.1).
//!
//! There are three, of 64 entries each: functions, kernels, queues. An entry is one cache line, so a table has 4 KiB. A
//! command processor reads entries while the process registers others, or the same anew: it sees the old entry or the
//! new one, never a mixture, and never waits longer than a registration takes to store a line.
//!
//! Each entry is a sequence lock of its own. A writer makes the sequence odd, stores the words with release, and makes
//! it even. A reader that sees an even sequence, loads the words with acquire and then sees the same sequence has one
//! entry: had it seen a word of a later writer, it would see that writer's odd sequence, which was stored before.
//! loom explores this (`models`, below).

use crate::packet::ENTRIES;
use primitive::{AtomicU64, Mutex, Ordering, yield_now};
use thiserror::Error;

#[cfg(not(loom))]
mod primitive {
    pub(super) use std::sync::Mutex;
    pub(super) use std::sync::atomic::{AtomicU64, Ordering};
    pub(super) use std::thread::yield_now;
}
#[cfg(loom)]
mod primitive {
    pub(super) use loom::sync::Mutex;
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
    pub(super) use loom::thread::yield_now;
}

/// Words of an entry behind its sequence.
const WORDS: usize = 7;
/// Rows that there are: loom needs one.
const ROWS: usize = if cfg!(loom) { 1 } else { ENTRIES };
/// Looks in a row at an entry that is being written, before the reader yields its processor to the writer.
const LOOKS: u32 = 64;

/// What a function or kernel was registered with: names and addresses of the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskEntry {
    /// The code; never 0.
    pub object: u64,
    /// The buffer, or the table of pointers, that the first argument becomes; 0: none.
    pub buffer: u64,
    /// Its length in bytes.
    pub buffer_bytes: u64,
    /// The signal that is counted down; 0: none, the packet's own passes through.
    pub signal: u64,
    /// The longest payload that it takes, in bytes.
    pub payload_max: u32,
    /// The length of its arguments in bytes; 0 of a function.
    pub argument_bytes: u16,
}

/// What a queue was registered with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueEntry {
    /// The queue, by its name or address at the target; never 0.
    pub base: u64,
    /// Tasks that it holds.
    pub capacity: u32,
}

/// An index that no table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("index {index} of tables of {ENTRIES} entries")]
pub struct NoSuchIndex {
    /// The index.
    pub index: u8,
}

/// One entry, as it lies in memory.
#[repr(C)]
#[cfg_attr(not(loom), repr(align(64)))]
struct Row {
    /// Odd while it is written.
    sequence: AtomicU64,
    words: [AtomicU64; WORDS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<[Row; ENTRIES]>() == 4096);

impl Row {
    fn new() -> Row {
        Row { sequence: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Only one thread at a time.
    fn write(&self, words: [u64; WORDS]) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        for (place, word) in self.words.iter().zip(words) {
            // Whoever sees this word sees the odd sequence.
            place.store(word, Ordering::Release);
        }
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    fn try_read(&self) -> Option<[u64; WORDS]> {
        let before = self.sequence.load(Ordering::Acquire);
        let words = std::array::from_fn(|at| self.words[at].load(Ordering::Acquire));
        let after = self.sequence.load(Ordering::Relaxed);
        (before == after && before.is_multiple_of(2)).then_some(words)
    }

    fn read(&self) -> [u64; WORDS] {
        loop {
            for _ in 0..if cfg!(loom) { 1 } else { LOOKS } {
                if let Some(words) = self.try_read() {
                    return words;
                }
                std::hint::spin_loop();
            }
            yield_now();
        }
    }
}

/// One table: rows that share a writer's lock.
struct RowTable {
    rows: Box<[Row]>,
    writing: Mutex<()>,
}

impl RowTable {
    fn new() -> RowTable {
        RowTable { rows: (0..ROWS).map(|_| Row::new()).collect(), writing: Mutex::new(()) }
    }

    fn set(&self, index: u8, words: [u64; WORDS]) -> Result<(), NoSuchIndex> {
        let row = self.rows.get(usize::from(index)).ok_or(NoSuchIndex { index })?;
        // Nothing panics while it is held.
        let held = self.writing.lock();
        row.write(words);
        drop(held);
        Ok(())
    }

    fn get(&self, index: u8) -> Option<[u64; WORDS]> {
        let words = self.rows.get(usize::from(index))?.read();
        (words[0] != 0).then_some(words)
    }
}

/// The three tables of a process.
pub struct Tables {
    functions: RowTable,
    kernels: RowTable,
    queues: RowTable,
}

impl Default for Tables {
    fn default() -> Tables {
        Tables { functions: RowTable::new(), kernels: RowTable::new(), queues: RowTable::new() }
    }
}

fn entry_words(entry: Option<TaskEntry>) -> [u64; WORDS] {
    let TaskEntry { object, buffer, buffer_bytes, signal, payload_max, argument_bytes } =
        entry.unwrap_or_default();
    let limits = u64::from(payload_max) | u64::from(argument_bytes) << 32;
    [object, buffer, buffer_bytes, signal, limits, 0, 0]
}

fn entry_of([object, buffer, buffer_bytes, signal, limits, ..]: [u64; WORDS]) -> TaskEntry {
    let [b0, b1, b2, b3, b4, b5, ..] = limits.to_le_bytes();
    TaskEntry {
        object,
        buffer,
        buffer_bytes,
        signal,
        payload_max: u32::from_le_bytes([b0, b1, b2, b3]),
        argument_bytes: u16::from_le_bytes([b4, b5]),
    }
}

impl Tables {
    /// Tables without entries.
    #[must_use]
    pub fn new() -> Tables {
        Tables::default()
    }

    /// Registers a function, in the place of what was there; `None` takes the entry out.
    ///
    /// # Errors
    /// There is no such entry.
    pub fn set_function(&self, index: u8, entry: Option<TaskEntry>) -> Result<(), NoSuchIndex> {
        self.functions.set(index, entry_words(entry))
    }

    /// As [`set_function`](Tables::set_function), a kernel.
    ///
    /// # Errors
    /// There is no such entry.
    pub fn set_kernel(&self, index: u8, entry: Option<TaskEntry>) -> Result<(), NoSuchIndex> {
        self.kernels.set(index, entry_words(entry))
    }

    /// As [`set_function`](Tables::set_function), a queue.
    ///
    /// # Errors
    /// There is no such entry.
    pub fn set_queue(&self, index: u8, entry: Option<QueueEntry>) -> Result<(), NoSuchIndex> {
        let QueueEntry { base, capacity } = entry.unwrap_or_default();
        self.queues.set(index, [base, capacity.into(), 0, 0, 0, 0, 0])
    }

    /// The function of this index, if one is registered.
    #[must_use]
    pub fn function(&self, index: u8) -> Option<TaskEntry> {
        self.functions.get(index).map(entry_of)
    }

    /// The kernel of this index, if one is registered.
    #[must_use]
    pub fn kernel(&self, index: u8) -> Option<TaskEntry> {
        self.kernels.get(index).map(entry_of)
    }

    /// The queue of this index, if one is registered.
    #[must_use]
    pub fn queue(&self, index: u8) -> Option<QueueEntry> {
        let [base, capacity, ..] = self.queues.get(index)?;
        let [b0, b1, b2, b3, ..] = capacity.to_le_bytes();
        Some(QueueEntry { base, capacity: u32::from_le_bytes([b0, b1, b2, b3]) })
    }
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = |table: &RowTable| table.rows.iter().filter(|row| row.read()[0] != 0).count();
        f.debug_struct("Tables")
            .field("functions", &count(&self.functions))
            .field("kernels", &count(&self.kernels))
            .field("queues", &count(&self.queues))
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn entry(number: u64) -> TaskEntry {
        TaskEntry {
            object: number,
            buffer: number << 8,
            buffer_bytes: number + 1,
            signal: !number,
            payload_max: u32::MAX,
            argument_bytes: u16::MAX,
        }
    }

    #[test]
    fn entries_come_and_go() {
        let tables = Tables::new();
        assert_eq!((tables.function(3), tables.kernel(3), tables.queue(3)), (None, None, None));
        tables.set_function(3, Some(entry(7))).unwrap();
        assert_eq!((tables.function(3), tables.kernel(3)), (Some(entry(7)), None));
        tables.set_kernel(63, Some(entry(8))).unwrap();
        let queue = QueueEntry { base: 5, capacity: u32::MAX };
        tables.set_queue(0, Some(queue)).unwrap();
        assert_eq!((tables.kernel(63), tables.queue(0)), (Some(entry(8)), Some(queue)));
        tables.set_function(3, None).unwrap();
        assert_eq!(tables.function(3), None);
        assert_eq!(tables.set_queue(64, None), Err(NoSuchIndex { index: 64 }));
        assert_eq!(tables.function(64), None);
    }

    #[test]
    fn an_entry_is_old_or_new_and_never_mixed() {
        const TIMES: u64 = 20_000;
        let (tables, over, looks) = (Tables::new(), AtomicBool::new(false), AtomicU64::new(0));
        tables.set_kernel(9, Some(entry(1))).unwrap();
        std::thread::scope(|threads| {
            let reader = threads.spawn(|| {
                let mut last = 0;
                while !over.load(Ordering::Relaxed) {
                    let seen = tables.kernel(9).unwrap();
                    assert_eq!(seen, entry(seen.object));
                    assert!(seen.object >= last, "entries do not come back");
                    last = seen.object;
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
            for number in 1..=TIMES {
                tables.set_kernel(9, Some(entry(number))).unwrap();
                // It looks at the first, and meanwhile, also if there is one processor.
                let before = looks.load(Ordering::Relaxed);
                while number % 1000 == 1
                    && looks.load(Ordering::Relaxed) == before
                    && !reader.is_finished()
                {
                    std::thread::yield_now();
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}

/// ```sh
/// RUSTFLAGS="--cfg loom" cargo test -p gapless-xtq --lib --release --target-dir target/loom
/// ```
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn an_entry_is_old_or_new_and_never_mixed() {
        // All interleavings take 80 s, and pass.
        let mut explored = loom::model::Builder::new();
        explored.preemption_bound = Some(2);
        explored.check(|| {
            let tables = Arc::new(Tables::new());
            let entry = |n: u64| TaskEntry { object: n, signal: n, ..TaskEntry::default() };
            tables.set_kernel(0, Some(entry(1))).unwrap();
            let theirs = Arc::clone(&tables);
            let writer = thread::spawn(move || theirs.set_kernel(0, Some(entry(2))).unwrap());
            if let Some(words) = tables.kernels.rows[0].try_read() {
                assert!([entry(1), entry(2)].contains(&entry_of(words)));
            }
            writer.join().unwrap();
            assert_eq!(tables.kernel(0), Some(entry(2)));
        });
    }
}
