//! An engine on a pretend vendor whose work never ends by itself, and what it was asked to do.

use crate::engine::*;
use crate::tests::mock::{Mock, Op};
use gapless_dtype::{Datatype, Primitive};

/// The lane of uploads; those before it are for work.
pub(super) const UPLOADS: usize = 2;

pub(super) struct Bench {
    pub(super) mock: Arc<Mock>,
    pub(super) engine: GpuEngine,
    pub(super) typed: Region,
    pub(super) packed: Region,
}

impl Bench {
    pub(super) fn new(config: Config) -> Bench {
        let mock = Arc::new(Mock::new(UPLOADS));
        let accelerator = Arc::clone(&mock) as Arc<dyn Accelerator>;
        let engine = GpuEngine::over(accelerator, config.bounded());
        let device = engine.device();
        let (typed, packed) =
            (device.allocate(1 << 20).unwrap(), device.allocate(1 << 20).unwrap());
        Bench { mock, engine, typed, packed }
    }

    /// 3,000 blocks of 8 bytes in no order: a list of 12 kB.
    pub(super) fn list() -> Layout {
        let places: Vec<i64> = (0..3000).map(|j| (j * 7) % 3001 * 3).collect();
        let datatype = Datatype::indexed_block(1, &places, &Primitive::Double.into());
        datatype.unwrap().commit().unwrap()
    }

    pub(super) fn vector() -> Layout {
        Datatype::vector(100, 1, 2, &Primitive::Double.into()).unwrap().commit().unwrap()
    }

    pub(super) fn side(&self, layout: &Layout) -> Typed {
        Typed::new(self.typed, 0, layout, 1).unwrap()
    }

    pub(super) fn pack(
        &self,
        layout: &Layout,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let to = self.packed.sub(0, layout.size()).unwrap();
        // SAFETY: the pretend vendor touches nothing.
        unsafe { self.engine.pack(&self.side(layout), 0..layout.size(), to, after) }
    }

    /// What was asked since the last time.
    pub(super) fn ops(&self) -> Vec<(usize, Op)> {
        std::mem::take(&mut self.mock.log().ops)
    }

    /// Blocks of device memory in use.
    pub(super) fn blocks(&self) -> usize {
        Arc::strong_count(&self.engine.shared.memory) - 1
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.mock.log().end_all();
    }
}

pub(super) fn launches(ops: &[(usize, Op)]) -> usize {
    ops.iter().filter(|(_, op)| matches!(op, Op::Launch(_))).count()
}
