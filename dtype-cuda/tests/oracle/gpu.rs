//! A GPU engine under test: one with the usual configuration, a way to make others over the same
//! device, and the kernels that each launches.

use crate::bench::{Bench, Probe};
use crate::memory::Provider;
use gapless_dtype_cuda::{Config, GpuEngine, Launched};
use gapless_engine::Typed;
use gapless_kernels::{Direction, Kernel};
use gapless_mem::Region;
use std::ops::Range;
use std::sync::Arc;

/// A device's engines.
pub(crate) struct Gpu {
    /// As a program has it.
    pub(crate) engine: GpuEngine,
    /// The device's own memory.
    pub(crate) memory: Arc<dyn Provider>,
    /// Makes another engine of the device.
    pub(crate) make: Box<dyn Fn(Config) -> GpuEngine + Send + Sync>,
}

impl Probe for GpuEngine {
    fn launches(
        &self,
        direction: Direction,
        typed: &Typed,
        range: Range<u64>,
        packed: Region,
    ) -> Vec<Kernel> {
        kernels(GpuEngine::launches(self, direction, typed, range, packed).unwrap())
    }

    fn transfer_launches(&self, from: &Typed, to: &Typed, range: Range<u64>) -> Vec<Kernel> {
        kernels(GpuEngine::transfer_launches(self, from, to, range).unwrap())
    }
}

fn kernels(launched: Vec<Launched>) -> Vec<Kernel> {
    launched.into_iter().map(|launched| launched.kernel).collect()
}

impl Gpu {
    /// Another engine of the device, with a configuration that `change` makes.
    pub(crate) fn engine_with(&self, change: impl FnOnce(&mut Config)) -> GpuEngine {
        let mut config = Config::default();
        change(&mut config);
        (self.make)(config)
    }

    /// A bench for the usual engine.
    pub(crate) fn bench(&self) -> Bench {
        self.bench_of(&self.engine)
    }

    /// A bench for one of its engines, with counts of its own.
    pub(crate) fn bench_of(&self, engine: &GpuEngine) -> Bench {
        let bench = Bench::new(Arc::new(engine.clone()), Arc::clone(&self.memory));
        Bench { probe: Some(Arc::new(engine.clone())), ..bench }
    }
}
