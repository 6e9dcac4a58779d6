//! What is kept of what happened: a digest of every event, phases, and lines if they are asked for.

use std::hash::{Hash, Hasher};

use crate::event::Event;
use crate::time::Ps;

/// A phase of a remote task, by its end (Figure 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The initiator's CPU has handed the message to its NIC.
    Post,
    /// The initiator's NIC has read it; its first byte is on the wire.
    InitiatorNic,
    /// Its last byte is at the target's NIC.
    Network,
    /// The payload is in the target's memory; of a put, the packet is in its queue as well.
    TargetNic,
    /// The kernel's first instruction. Two-sided, the event, the CPU and the packet that it writes are in this phase.
    Launch,
    /// Its result is in memory.
    Kernel,
    /// The target's CPU has seen the signal.
    Completion,
}

impl Phase {
    /// All of them, in order.
    pub const ALL: [Phase; 7] = [
        Phase::Post,
        Phase::InitiatorNic,
        Phase::Network,
        Phase::TargetNic,
        Phase::Launch,
        Phase::Kernel,
        Phase::Completion,
    ];

    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::Post => "CPU, put",
            Phase::InitiatorNic => "NIC, initiator",
            Phase::Network => "network",
            Phase::TargetNic => "NIC, target",
            Phase::Launch => "launch",
            Phase::Kernel => "kernel",
            Phase::Completion => "completion",
        }
    }
}

/// The record of a run.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) digest: u64,
    pub(crate) events: u64,
    pub(crate) phases: Vec<(Phase, Ps)>,
    pub(crate) lines: Vec<String>,
    wants_lines: bool,
}

/// Phases that are kept: of runs of a few messages.
const PHASES_MAX: usize = 64;

/// FNV-1a over little-endian words, the same on every machine.
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3);
        }
    }

    fn write_usize(&mut self, number: usize) {
        self.write(&(number as u64).to_le_bytes());
    }

    fn write_isize(&mut self, number: isize) {
        self.write(&(number as i64).to_le_bytes());
    }

    fn write_u64(&mut self, number: u64) {
        self.write(&number.to_le_bytes());
    }
}

impl Trace {
    pub(crate) fn new(wants_lines: bool) -> Trace {
        Trace {
            digest: 0xCBF2_9CE4_8422_2325,
            events: 0,
            phases: Vec::new(),
            lines: Vec::new(),
            wants_lines,
        }
    }

    pub(crate) fn event(&mut self, at: Ps, event: Event) {
        let mut hash = Fnv(self.digest);
        (at, event).hash(&mut hash);
        self.digest = hash.finish();
        self.events += 1;
        if self.wants_lines {
            self.lines.push(format!("{at} {event:?}"));
        }
    }

    pub(crate) fn phase(&mut self, phase: Phase, at: Ps) {
        if self.phases.len() < PHASES_MAX {
            self.phases.push((phase, at));
        }
    }
}
