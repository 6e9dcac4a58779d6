//! Choices about an end.

use std::fmt;
use std::sync::Arc;

/// Choices about this process's end for tasks ([`Xtq::attach`](crate::Xtq::attach)).
#[derive(Clone)]
pub struct Config {
    /// Threads that run tasks; they are made when the first task comes.
    pub threads: usize,
    /// Called, on any thread and without a lock, when a task has ended or puts another, and when a signal has ended or
    /// begins anew: so whoever sleeps looks again, and calls [`Xtq::advance`](crate::Xtq::advance). It must not wait,
    /// nor call this crate. A panic goes to the log, and no further.
    pub wakeup: Arc<dyn Fn() + Send + Sync>,
    /// Whether initiators may put tasks of this process's [worker](crate::Xtq::attach_worker) into memory that they
    /// share with it. If not, all come by messages.
    pub rings: bool,
    /// Puts to one target that have not ended, at most. More are [refused](crate::XtqError::Full).
    pub puts_max: usize,
    /// Bytes of arguments and payloads that one target has not accepted, at most. More are
    /// [refused](crate::XtqError::Full), but a put that is longer than this goes if no other bytes wait.
    pub put_bytes_max: u64,
}

impl Default for Config {
    fn default() -> Config {
        let (puts_max, put_bytes_max) = (1 << 16, 256 << 20);
        Config { threads: 2, wakeup: Arc::new(|| {}), rings: true, puts_max, put_bytes_max }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Config of {} threads", self.threads)
    }
}
