//! Rank 0's measurements of messages whose arenas come from one source.

use super::bench::{Bench, Plain, RunSpec, Subject};
use super::rank;
use super::show::Shown;
use super::sizes::Sizes;
use crate::failure::Failure;
use crate::memory::Devices;
use gapless::World;
use gapless_report::Summary;
use std::collections::HashMap;
use std::time::Duration;

/// What is measured of a message between two processes, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Seconds of messages over buffers that rotate, beside a few to begin with.
    pub(super) rotating: f64,
    /// Seconds with the same buffers every time.
    resident: Option<f64>,
    /// Seconds of contiguous messages of the same payload.
    contiguous: Option<f64>,
    /// Seconds of each plain copy of the same payload.
    plain: f64,
    /// Whether copies to and from page-locked memory are among those.
    pinned: bool,
    /// Round trips of each kind, instead of as many as the time allows.
    pub(super) iterations: Option<u32>,
    /// Between one round trip and the next, where buffers rotate. Then each is timed by itself.
    pub(super) pause: Duration,
}

impl Effort {
    /// All figures, in so many seconds together; more than 0.
    #[must_use]
    pub fn full(seconds: f64, iterations: Option<u32>) -> Effort {
        let [rotating, contiguous] = [0.5, 0.3].map(|part| part * seconds);
        let (plain, contiguous) = (0.1 * seconds, Some(contiguous));
        let (resident, pause) = (Some(plain), Duration::ZERO);
        Effort { rotating, resident, contiguous, plain, pinned: false, iterations, pause }
    }

    /// So many seconds of messages, more than 0, and plain copies beside them: those to and from page-locked memory, too,
    /// if `pinned`.
    #[must_use]
    pub fn messages(seconds: f64, pinned: bool) -> Effort {
        let plain = seconds / 2.0;
        let (resident, contiguous, iterations) = (None, None, None);
        let pause = Duration::ZERO;
        Effort { rotating: seconds, resident, contiguous, plain, pinned, iterations, pause }
    }

    /// Back to back, for so many seconds.
    fn with(self, seconds: f64) -> Effort {
        Effort { rotating: seconds, pause: Duration::ZERO, ..self }
    }

    /// The same, with so much time between one round trip and the next.
    #[must_use]
    pub fn apart(self, pause: Duration) -> Effort {
        Effort { pause, ..self }
    }
}

/// Figures of the same payload without gaps.
#[derive(Clone, Debug)]
struct Reference {
    plain: Vec<Plain>,
    contiguous: Option<Summary>,
}

/// All cases with arenas from one source.
pub(super) struct Pass<'a> {
    bench: Bench<'a>,
    spec: RunSpec<'a>,
    /// By payload, and whether page-locked memory is among them.
    references: HashMap<(u64, bool), Reference>,
}

impl<'a> Pass<'a> {
    /// Begins, while the other end [follows](rank::follow).
    pub(super) fn lead(
        world: &'a World,
        devices: &'a mut Devices,
        spec: RunSpec<'a>,
        sizes: &Sizes,
    ) -> Result<Pass<'a>, Failure> {
        let bench = rank::lead(world, devices, spec, sizes)?;
        Ok(Pass { bench, spec, references: HashMap::new() })
    }

    /// The time of the least launch on this process's device; `None` if it has none.
    pub(super) fn launch_and_wait(&mut self) -> Result<Option<Summary>, Failure> {
        self.bench.launch_and_wait()
    }

    /// Checks and measures one case.
    pub(super) fn measure(&mut self, index: usize, effort: Effort) -> Result<Shown, Failure> {
        let RunSpec { cases, source, ends, .. } = self.spec;
        let (name, payload_bytes) = (cases[index].name.clone(), cases[index].payload_bytes);
        let prepared = self.bench.prepare(Subject::Case(index))?;
        let (protocols, verdict) = self.bench.verify(&prepared)?;
        let before = self.bench.counts(protocols)?;
        let rotating = self.bench.time(&prepared, false, effort)?;
        let counts = [before, self.bench.counts(protocols)?];
        // To size, the buffers are the same every time anyway.
        let resident = effort.resident.filter(|_| !source.is_to_size());
        let resident = resident
            .map(|seconds| self.bench.time(&prepared, true, effort.with(seconds)))
            .transpose()?;
        let Reference { plain, contiguous } = self.reference(payload_bytes, effort)?;
        let blocks = prepared.send.layout.blocks_of(prepared.send.count).unwrap_or(u64::MAX);
        let rotation_bytes =
            prepared.send.places.reached_bytes() + prepared.recv.places.reached_bytes();
        Ok(Shown {
            name,
            source,
            ends,
            protocols,
            payload_bytes,
            blocks,
            rotating,
            resident,
            plain,
            contiguous,
            verdict,
            counts,
            rotation_bytes,
        })
    }

    /// Plain copies and a contiguous message of this many bytes, measured once each.
    fn reference(&mut self, payload_bytes: u64, effort: Effort) -> Result<Reference, Failure> {
        let key = (payload_bytes, effort.pinned);
        if let Some(known) = self.references.get(&key) {
            return Ok(known.clone());
        }
        let prepared = self.bench.prepare(Subject::Contiguous(payload_bytes))?;
        let contiguous = effort.contiguous;
        let contiguous = contiguous
            .map(|seconds| self.bench.time(&prepared, false, effort.with(seconds)))
            .transpose()?;
        let plain = self.bench.plain(&prepared, effort.pinned, effort.plain)?;
        let reference = Reference { plain, contiguous };
        self.references.insert(key, reference.clone());
        Ok(reference)
    }

    /// Tells the other end that there is no more.
    pub(super) fn dismiss(self) -> Result<(), Failure> {
        Ok(self.bench.dismiss()?)
    }
}
