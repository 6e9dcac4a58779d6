//! What would be launched, for reports: the same decisions as `shared` and `batch` make, without a device's
//! part in them.

use crate::accelerator::Spot;
use crate::between::Between;
use crate::config::{Copied, Launched};
use crate::engine::GpuEngine;
use crate::form::Form;
use crate::pages::{PagesEnd, in_order, otherwise};
use crate::plan::PlanSpec;
use crate::rows::Rows;
use crate::shared::{PackJob, Shared, Task, closed, lay_out};
use crate::triangle::Shares;
use gapless_dtype::Layout;
use gapless_engine::{EngineError, Typed};
use gapless_kernels::Direction;
use gapless_kernels::launch::{KernelAddress, Launches, TransferSide};
use gapless_mem::Region;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Launches as reports tell them.
pub(crate) fn told(launches: &Launches, plan_bytes: u64) -> impl Iterator<Item = Launched> {
    launches.iter().map(move |launch| Launched {
        kernel: launch.kernel,
        blocks: launch.blocks,
        threads: launch.threads,
        plan_bytes: if launch.kernel.family.plans() > 0 { plan_bytes } else { 0 },
    })
}

impl Shared {
    /// Whether a layout's plan would be used, by one instance or by several, and be kept.
    pub(crate) fn wants_plan(&self, layout: &Layout) -> bool {
        let planned = |count| matches!(Form::of(layout, count), Form::Listed(_) | Form::Mapped(_));
        (planned(1) || planned(2)) && self.cache.keeps(PlanSpec::of(layout).bytes)
    }

    /// What a pack or an unpack would launch.
    ///
    /// # Errors
    /// A shape that no kernel takes.
    pub(crate) fn launches(&self, task: &Task<'_>) -> Result<Vec<Launched>, EngineError> {
        if let Some(shares) = self.copies(task) {
            return Ok(told(&*self.beside(task, &shares)?, 0).collect());
        }
        let (job, typed, direct, packed) = match task {
            Task::Packed { job, typed, direct, packed } => (job, typed, direct, packed),
            Task::Transfer { from, to, range, budget } => {
                let what = Between { from: *from, to: *to, range, budget: *budget };
                return self.between(what);
            }
        };
        if let Some(plain) = otherwise(job.typed)? {
            let (job, typed, direct, packed) = (job.of(&plain), *typed, *direct, *packed);
            return self.launches(&Task::Packed { job, typed, direct, packed });
        }
        if job.len() == 0 || (direct.is_none() && job.typed.as_contiguous().is_some()) {
            return Ok(Vec::new());
        }
        // A chunk is aligned to any word.
        let aligned = KernelAddress { address: 0, offset: (job.start % 512).cast_signed() };
        let direct = direct.unwrap_or(Spot { base: *packed, place: aligned });
        if job.typed.as_pages().is_some() {
            return self.told_pages(job, *typed, direct);
        }
        if let Some(launches) = self.by_form(job, *typed, direct) {
            return Ok(told(&launches, 0).collect());
        }
        let spec = PlanSpec::of(job.typed.layout());
        let shape = spec.side(job.typed.layout(), job.typed.count(), 0);
        let launches = lay_out(&shape, &job.what(*typed, direct))
            .map(|launches| self.fitted_to(job, direct, launches));
        Ok(told(&launches.map_err(|reason| self.unfit(reason))?, spec.bytes).collect())
    }

    /// What a pack or an unpack of pages would launch.
    fn told_pages(
        &self,
        job: &PackJob<'_>,
        typed: Spot,
        packed: Spot,
    ) -> Result<Vec<Launched>, EngineError> {
        let Some(end) = PagesEnd::of(job.typed, typed) else { return Ok(Vec::new()) };
        let packed = PagesEnd::packed(packed, job.start);
        let range = job.range();
        let launches = self.laid_out_pages(&range, in_order(job, &end, &packed), job.budget)?;
        Ok(told(&launches, end.index_bytes(&range)).collect())
    }

    /// What a move from or to pages would launch.
    fn between_pages(&self, what: Between<'_>) -> Result<Vec<Launched>, EngineError> {
        let (from, to) = (what.from, what.to);
        let plain = (otherwise(from.0)?, otherwise(to.0)?);
        if plain.0.is_some() || plain.1.is_some() {
            let from = (plain.0.as_ref().unwrap_or(from.0), from.1);
            let to = (plain.1.as_ref().unwrap_or(to.0), to.1);
            return self.between(Between { from, to, ..what });
        }
        if let (Some(source), Some(target)) =
            (PagesEnd::of(from.0, from.1), PagesEnd::of(to.0, to.1))
        {
            let launches = self.laid_out_pages(what.range, (&source, &target), what.budget)?;
            let indices = [source, target].map(|end| end.index_bytes(what.range));
            return Ok(told(&launches, indices.iter().sum()).collect());
        }
        // Through a chunk, as if that had room for all of it.
        let (start, end) = (what.range.start, what.range.end);
        let place = KernelAddress { address: 0, offset: (start % 512).cast_signed() };
        let mut all = Vec::new();
        for (direction, (typed, spot)) in [(Direction::Pack, from), (Direction::Unpack, to)] {
            let job = PackJob { direction, typed, start, end, budget: what.budget };
            let chunk = Spot { base: spot.base, place };
            let packed = spot.base;
            all.extend(self.launches(&Task::Packed {
                job,
                typed: spot,
                direct: Some(chunk),
                packed,
            })?);
        }
        Ok(all)
    }

    /// What a move from layout to layout would launch.
    fn between(&self, what: Between<'_>) -> Result<Vec<Launched>, EngineError> {
        if what.from.0.as_pages().is_some() || what.to.0.as_pages().is_some() {
            return self.between_pages(what);
        }
        if let Some(launches) = what.by_form(&self.layout_pairs) {
            let launches = self.fitted_between(&what, Cow::Owned(launches));
            return Ok(told(&launches, 0).collect());
        }
        if let Some(layout) = what.one_plan(&self.layout_pairs) {
            let spec = PlanSpec::of(layout);
            if let Some(launches) = what.by_plan(&spec) {
                return Ok(told(&launches, spec.bytes).collect());
            }
        }
        let planned = |typed: &Typed| {
            let spec = PlanSpec::of(typed.layout());
            (spec.side(typed.layout(), typed.count(), 0), spec.bytes)
        };
        let side = |typed: &Typed| {
            let form = closed(Form::of(typed.layout(), typed.count()));
            form.map_or_else(|| planned(typed), |shape| (shape, 0))
        };
        let lay_out = |source: (TransferSide, u64), target: (TransferSide, u64)| {
            let launches = what.by_both(&source.0, &target.0);
            launches.map(|launches| told(&launches, source.1.saturating_add(target.1)).collect())
        };
        // As `Shared::transfer` does: plans where arguments have no room for a closed form.
        let (from, to) = (what.from.0, what.to.0);
        lay_out(side(from), side(to))
            .or_else(|_| lay_out(planned(from), planned(to)))
            .map_err(|reason| self.unfit(reason))
    }
}

/// Copies as reports tell them.
fn copied(shares: Option<Arc<Shares>>) -> Vec<Copied> {
    let told = |copy: &Rows| Copied { rows: copy.rows, width: copy.width };
    shares.iter().flat_map(|shares| &shares.copies).map(told).collect()
}

impl GpuEngine {
    /// What the copy engine would do of a pack or an unpack between two GPUs, beside what
    /// [`launches`](GpuEngine::launches) tells, for reports.
    ///
    /// # Errors
    /// As for [`pack`](gapless_engine::Engine::pack).
    pub fn copies(
        &self,
        direction: Direction,
        typed: &Typed,
        range: Range<u64>,
        packed: Region,
    ) -> Result<Vec<Copied>, EngineError> {
        let task = self.shared.pack(direction, typed, &range, packed, self.budget)?;
        Ok(copied(self.shared.copies(&task)))
    }

    /// What the copy engine would do of a [`transfer`](gapless_engine::Engine::transfer), beside what
    /// [`transfer_launches`](GpuEngine::transfer_launches) tells, for reports.
    ///
    /// # Errors
    /// As there.
    pub fn transfer_copies(
        &self,
        src: &Typed,
        dst: &Typed,
        range: Range<u64>,
    ) -> Result<Vec<Copied>, EngineError> {
        let task = self.shared.move_between(src, dst, &range, self.budget)?;
        Ok(copied(self.shared.copies(&task)))
    }

    /// What a [`transfer`](gapless_engine::Engine::transfer) would launch, for reports. Nothing is
    /// launched or prepared.
    ///
    /// # Errors
    /// As there.
    pub fn transfer_launches(
        &self,
        src: &Typed,
        dst: &Typed,
        range: Range<u64>,
    ) -> Result<Vec<Launched>, EngineError> {
        let task = self.shared.move_between(src, dst, &range, self.budget)?;
        if task.is_empty() { Ok(Vec::new()) } else { self.shared.launches(&task) }
    }
}
