//! How many OpenCL objects this process has made through this crate, and how many it holds: what is made again and
//! again, or never given up, shows here and not in the memory that a driver takes.

use std::sync::atomic::{AtomicU64, Ordering};

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    Context,
    Queue,
    Buffer,
    Program,
    Kernel,
    Event,
}

/// How many OpenCL objects of one kind this process has made, and how many references it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Made so far.
    pub made: u64,
    /// References that are held now, to a user's own objects as well.
    pub held: u64,
}

/// How many OpenCL objects of each kind this process has made and holds: see [`counts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// `cl_context`.
    pub contexts: Count,
    /// `cl_command_queue`.
    pub queues: Count,
    /// `cl_mem`; host memory that is registered is one.
    pub buffers: Count,
    /// `cl_program`.
    pub programs: Count,
    /// Of the programs made, those that came from the binary of an earlier one.
    pub from_binaries: u64,
    /// `cl_kernel`.
    pub kernels: Count,
    /// `cl_event`, one a command.
    pub events: Count,
}

impl Counts {
    /// Queues, buffers, programs and kernels that were made since `before`.
    #[must_use]
    pub fn made_since(&self, before: &Counts) -> u64 {
        let kinds = |of: &Counts| [of.queues, of.buffers, of.programs, of.kernels];
        let sum = |of: &Counts| kinds(of).iter().map(|count| count.made).sum::<u64>();
        sum(self) - sum(before)
    }
}

#[derive(Default)]
struct Tally {
    made: AtomicU64,
    held: AtomicU64,
}

static TALLIES: [Tally; 6] =
    [const { Tally { made: AtomicU64::new(0), held: AtomicU64::new(0) } }; 6];

static FROM_BINARIES: AtomicU64 = AtomicU64::new(0);

impl Object {
    fn tally(self) -> &'static Tally {
        &TALLIES[self as usize]
    }

    /// One was made, and is held.
    pub(crate) fn made(self) {
        self.tally().made.fetch_add(1, Ordering::Relaxed);
        self.retained();
    }

    /// A reference is held.
    pub(crate) fn retained(self) {
        self.tally().held.fetch_add(1, Ordering::Relaxed);
    }

    /// It was given up.
    pub(crate) fn released(self) {
        self.tally().held.fetch_sub(1, Ordering::Relaxed);
    }

    fn count(self) -> Count {
        let tally = self.tally();
        Count { made: tally.made.load(Ordering::Relaxed), held: tally.held.load(Ordering::Relaxed) }
    }
}

/// A program was made of a binary.
pub(crate) fn from_binary() {
    FROM_BINARIES.fetch_add(1, Ordering::Relaxed);
}

/// Counts the OpenCL objects that this process has made and holds.
#[must_use]
pub fn counts() -> Counts {
    Counts {
        contexts: Object::Context.count(),
        queues: Object::Queue.count(),
        buffers: Object::Buffer.count(),
        programs: Object::Program.count(),
        from_binaries: FROM_BINARIES.load(Ordering::Relaxed),
        kernels: Object::Kernel.count(),
        events: Object::Event.count(),
    }
}
