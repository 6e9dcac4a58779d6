//! What a window's calls cost: for each how often, how many bytes and how long; and how long accumulations are.

use crate::tasks::Accumulations;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Sizes of accumulations that are told apart: up to 1 byte, 2, 4 and so on; the last one has the rest.
const SIZES: usize = 32;

macro_rules! calls {
    ($($call:ident $name:literal),* $(,)?) => {
        /// A call of a window that a profile tells apart.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum WindowCall {
            $(
                #[doc = $name]
                $call
            ),*
        }

        impl WindowCall {
            const ALL: [(WindowCall, &'static str); [$($name),*].len()] = [$((WindowCall::$call, $name)),*];
        }
    };
}

calls! {
    Put "put",
    Get "get",
    Accumulate "accumulate",
    GetAccumulate "get_accumulate",
    FetchAndOp "fetch_and_op",
    CompareAndSwap "compare_and_swap",
    Lock "lock",
    Unlock "unlock",
    Flush "flush",
    Fence "fence",
    Post "post",
    Start "start",
    Complete "complete",
    Wait "wait",
}

impl WindowCall {
    fn accumulates(self) -> bool {
        matches!(self, WindowCall::Accumulate | WindowCall::GetAccumulate | WindowCall::FetchAndOp)
    }
}

#[derive(Debug, Default)]
struct CallCounters {
    count: AtomicU64,
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
}

/// The counters of a window that is profiled.
#[derive(Debug)]
pub struct Profile {
    since: Instant,
    calls: [CallCounters; WindowCall::ALL.len()],
    sizes: [AtomicU64; SIZES],
}

impl Default for Profile {
    fn default() -> Profile {
        let (calls, sizes) = Default::default();
        Profile { since: Instant::now(), calls, sizes }
    }
}

impl Profile {
    /// Counts a call of so many bytes that began then.
    #[cold]
    pub fn note(&self, call: WindowCall, bytes: u64, began: Instant) {
        let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let counters = &self.calls[call as usize];
        let numbers =
            [(&counters.count, 1), (&counters.bytes, bytes), (&counters.nanoseconds, took)];
        numbers.into_iter().for_each(|(sum, more)| {
            sum.fetch_add(more, Ordering::Relaxed);
        });
        if call.accumulates() {
            let size = bytes.max(1).next_power_of_two().trailing_zeros() as usize;
            self.sizes[size.min(SIZES - 1)].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What was counted so far.
    pub fn read(&self, way: Accumulations) -> WindowProfile {
        let calls = WindowCall::ALL.iter().map(|(call, name)| {
            let counters = &self.calls[*call as usize];
            let [count, bytes, nanoseconds] =
                [&counters.count, &counters.bytes, &counters.nanoseconds]
                    .map(|number| number.load(Ordering::Relaxed));
            WindowCalls { name, count, bytes, time: Duration::from_nanos(nanoseconds) }
        });
        let sizes = self.sizes.iter().map(|count| count.load(Ordering::Relaxed));
        let sizes = sizes.enumerate().filter(|(_, count)| *count > 0);
        WindowProfile {
            elapsed: self.since.elapsed(),
            calls: calls.filter(|calls| calls.count > 0).collect(),
            accumulations: sizes.map(|(size, count)| (1 << size, count)).collect(),
            way,
        }
    }
}

/// What a window's calls have cost at this rank, since it was made: if it was made to be profiled.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WindowProfile {
    /// Since the window was made.
    pub elapsed: Duration,
    /// The calls that there were. Those of several threads at the same time count each by itself.
    pub calls: Vec<WindowCalls>,
    /// Accumulations by size: up to so many bytes (a power of two; more than half of it), how many.
    pub accumulations: Vec<(u64, u64)>,
    /// How they were carried out at their targets.
    pub way: Accumulations,
}

/// The count, bytes and time of one kind of call in a [`WindowProfile`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WindowCalls {
    /// The method; `lock`, `unlock`, `flush` and `fence` stand for all calls of such a name, `put` and `get` for those
    /// with notices and those of a scope, `put` for `rput`, too, and `accumulate` for `raccumulate`; reads that are
    /// under way are not counted.
    pub name: &'static str,
    /// How often.
    pub count: u64,
    /// Payload, in bytes.
    pub bytes: u64,
    /// How long all of them took.
    pub time: Duration,
}

impl WindowProfile {
    /// The share of the time since the window was made that was spent in a call, of one thread.
    #[must_use]
    pub fn share(&self, name: &str) -> f64 {
        let calls = self.calls.iter().filter(|calls| calls.name == name);
        calls.map(|calls| calls.time.as_secs_f64()).sum::<f64>() / self.elapsed.as_secs_f64()
    }
}

impl fmt::Display for WindowProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:18} {:>10} {:>14} {:>12} {:>7}",
            "call", "times", "bytes", "seconds", "share"
        )?;
        for calls in &self.calls {
            let share = 100.0 * self.share(calls.name);
            let seconds = calls.time.as_secs_f64();
            let WindowCalls { name, count, bytes, .. } = calls;
            writeln!(f, "{name:18} {count:10} {bytes:14} {seconds:12.6} {share:6.1}%")?;
        }
        if !self.accumulations.is_empty() {
            writeln!(f, "accumulations by {}", self.way.name())?;
        }
        for (bytes, count) in &self.accumulations {
            writeln!(f, "accumulations of up to {bytes:9} bytes {count:10}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_kind_and_size() {
        let profile = Profile::default();
        for bytes in [0, 1, 8, 8, 9, u64::MAX / 4] {
            profile.note(WindowCall::Accumulate, bytes, Instant::now());
        }
        profile.note(WindowCall::Put, 100, Instant::now());
        let read = profile.read(Accumulations::Tasks);
        assert_eq!(read.accumulations, [(1, 2), (8, 2), (16, 1), (1 << 31, 1)]);
        let calls: Vec<_> = read.calls.iter().map(|calls| (calls.name, calls.count)).collect();
        assert_eq!(calls, [("put", 1), ("accumulate", 6)]);
        assert_eq!(read.calls[0].bytes, 100);
        assert!(read.share("put") >= 0.0 && read.share("get") == 0.0);
        assert!(read.to_string().contains("accumulations by tasks on"));
        assert!(read.to_string().contains("accumulations of up to"));
    }
}
