//! Operations on memory of a device that this process has mapped, or that is its own: the origin's device does them in
//! one step. So it does puts and gets between its memory and page-locked memory of the host that is mapped. The mutexes
//! of elements and the lock are words in memory of the host, which the ranks share (`header.rs`). All work on the
//! device is over before a mutex is given back, and when a call returns, but for what `transfers.rs` begins.

use crate::arithmetic::{Arithmetic, read};
use crate::device::{self, DeviceExposure};
use crate::device_job::DeviceJob;
use crate::error::WindowError;
use crate::exposure::WindowPart;
use crate::header::{Header, Stripes};
use crate::memory::{PART, part, stripes};
use crate::perform::{Does, Plan};
use crate::place::{Access, AccessKind, Place};
use crate::window::{Driver, Window};
use gapless_engine::{EngineError, ReduceOp, Typed};
use gapless_mem::Outstanding;
use std::ops::Range;

/// Bytes that are changed at once if all their mutexes are free: each time costs two ways to the device.
const LONG: u64 = 1 << 20;
const _: () = assert!(LONG > PART);

/// How much of a range is changed at once.
fn long(range: &Range<u64>, width: u64) -> Range<u64> {
    range.start..range.end.min(range.start + LONG / width * width)
}

impl Window {
    /// A rank's memory of a device, if this process has it mapped.
    #[inline]
    pub(crate) fn near_device(&self, access: &Access) -> Option<&DeviceExposure> {
        self.members[access.rank as usize].device.as_ref()
    }

    pub(crate) fn put_near<D: Driver>(
        &self,
        driver: &D,
        (access, near): (&Access, &DeviceExposure),
        range: Range<u64>,
        bytes: &[u8],
    ) -> Result<(), D::Error> {
        let target = &access.target;
        Ok(self.on_device(driver, access, || near.memory.store(target, range, bytes))?)
    }

    pub(crate) fn get_near<D: Driver>(
        &self,
        driver: &D,
        (access, near): (&Access, &DeviceExposure),
        range: Range<u64>,
        into: &mut [u8],
    ) -> Result<(), D::Error> {
        let target = &access.target;
        Ok(self.on_device(driver, access, || near.memory.load(target, range, into))?)
    }

    /// Has this process's device work on a rank's memory, unless the rank is known to be lost, and makes progress.
    fn on_device<D: Driver, T>(
        &self,
        driver: &D,
        access: &Access,
        work: impl FnOnce() -> Result<T, EngineError>,
    ) -> Result<T, WindowError> {
        self.check_alive(access.rank)?;
        let done = work();
        driver.progress();
        Ok(done?)
    }

    /// A rank's memory of a device, where whole layouts go there at once: not if accumulations are tasks, for which the
    /// packed ways wait.
    fn typed_device(&self, access: &Access) -> Option<&DeviceExposure> {
        self.near_device(access).filter(|_| self.tasks.is_none())
    }

    /// Whether a device of this process can transfer whole layouts between `origin` and the memory of a rank: at least
    /// one of them is a device's, and this process has the other mapped.
    ///
    /// # Errors
    /// [`WindowError::NoSuchRank`].
    pub fn can_transfer(&self, rank: u32, origin: &Typed) -> Result<bool, WindowError> {
        self.epochs.check_rank(rank)?;
        Ok(self.transfer_target(rank, origin).is_some())
    }

    /// The memory of a rank, if a device of this process can transfer whole layouts between it and `origin`.
    pub(crate) fn transfer_target(&self, rank: u32, origin: &Typed) -> Option<WindowPart> {
        let member = self.members.get(rank as usize).filter(|_| self.tasks.is_none())?;
        let of_host = || member.mapped.as_ref().filter(|_| !origin.space().cpu_accessible());
        let of_device = member.device.clone().map(WindowPart::from);
        of_device.or_else(|| of_host().cloned().map(WindowPart::from))
    }

    /// Begins to transfer all that `origin` describes to or from a target's memory. Gives that memory, and the work.
    /// `None`: it takes another way, and nothing was done.
    ///
    /// # Safety
    /// As for [`begin_transfer`](Window::begin_transfer), until the work is over. The caller keeps the memory that this
    /// gives until then.
    pub(crate) unsafe fn start_transfer(
        &self,
        way: AccessKind,
        access: &Access,
        origin: &Typed,
    ) -> Result<Option<(WindowPart, Outstanding)>, WindowError> {
        let part = self.transfer_target(access.rank, origin).filter(|_| access.packed_bytes() > 0);
        let Some(part) = part else { return Ok(None) };
        self.check_alive(access.rank)?;
        let (target, memory) = (&access.target, part.lease().region());
        let engine = match &part {
            WindowPart::Host(_) => self.engine(),
            WindowPart::Device(near) => near.memory.engine(),
        };
        // SAFETY: the caller's promise. The memory is a window's that this process knows; the lease in `part` keeps it,
        // which the caller has until the work is over.
        let work = unsafe { device::start_transfer(engine, (memory, target), origin, way) }?;
        if work.is_none() && target.has_device_indices() && matches!(part, WindowPart::Host(_)) {
            // All other ways go by a processor, which cannot read them.
            return Err(EngineError::DeviceIndices.into());
        }
        Ok(work.map(|work| (part, work)))
    }

    /// The same, and waits for it, and makes progress; whether it was done.
    ///
    /// # Safety
    /// As [`start_transfer`](Window::start_transfer), during the call.
    pub(crate) unsafe fn transfer_now<D: Driver>(
        &self,
        driver: &D,
        way: AccessKind,
        (access, origin): (&Access, &Typed),
    ) -> Result<bool, WindowError> {
        // SAFETY: the caller's promise: this waits for the work, and keeps the memory.
        let begun = unsafe { self.start_transfer(way, access, origin) }?;
        let Some((_part, work)) = begun else { return Ok(false) };
        let ended = work.wait();
        driver.progress();
        ended.map_err(EngineError::from)?;
        Ok(true)
    }

    /// An accumulation of all that `origin` describes, if that lies on the device that works on the target; as
    /// [`accumulate_runs`](Window::accumulate_runs).
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn accumulate_typed<D: Driver>(
        &self,
        driver: &D,
        (access, op): (&Access, ReduceOp),
        (origin, at): (&Typed, &Place),
    ) -> Result<bool, D::Error> {
        let near = self.typed_device(access);
        let space = near.map(|near| near.memory.lease().region().space());
        let Some(near) = near.filter(|_| space == Some(origin.space())) else { return Ok(false) };
        let arithmetic = self.arithmetic(access, op, (origin, at))?;
        if op == ReduceOp::NoOp {
            return Ok(true);
        }
        let elements = near.memory.elements(&access.target, &arithmetic);
        let elements = elements.map_err(WindowError::from)?;
        self.stripe_by_stripe(driver, (access, near), &arithmetic, |range, mutexes| {
            // SAFETY: the caller's promise.
            let changed = unsafe { near.memory.change_from(&elements, range, (op, origin)) };
            let (header, rank, held) = mutexes;
            header.release_stripes(rank, held);
            changed
        })?;
        Ok(true)
    }

    /// An accumulation of packed elements.
    pub(crate) fn change_near<D: Driver>(
        &self,
        driver: &D,
        (access, near): (&Access, &DeviceExposure),
        (arithmetic, bytes): (&Arithmetic, &[u8]),
        mut found: Option<&mut [u8]>,
    ) -> Result<(), D::Error> {
        let fetches = found.is_some();
        self.stripe_by_stripe(driver, (access, near), arithmetic, |range, mutexes| {
            let at = usize::try_from(range.start).unwrap_or(usize::MAX);
            let len = usize::try_from(range.end - range.start).unwrap_or(0);
            let here = at..at.saturating_add(len);
            let does = Does::Change { arithmetic: *arithmetic, fetches };
            let plan = Plan { target: access.target.clone(), range, does };
            let operand = bytes.get(here.clone()).unwrap_or(&[]);
            let job = DeviceJob::new(self.handle.id(), &near.memory, mutexes, (plan, operand));
            if let Some(old) = job.finish()?
                && let Some(place) = found.as_deref_mut().and_then(|found| found.get_mut(here))
            {
                place.copy_from_slice(&old);
            }
            Ok(())
        })
    }

    /// Has all of an access changed, under the mutexes of its elements, which `change` gives back: as much as possible at
    /// once if nobody else has any of those, else stripe after stripe.
    fn stripe_by_stripe<D: Driver>(
        &self,
        driver: &D,
        (access, near): (&Access, &DeviceExposure),
        arithmetic: &Arithmetic,
        mut change: impl FnMut(Range<u64>, (Header, u32, Stripes)) -> Result<(), EngineError>,
    ) -> Result<(), D::Error> {
        self.check_alive(access.rank)?;
        let (target, width) = (&access.target, arithmetic.width() as u64);
        let refused = |fault| self.refused(access.rank, fault);
        let of =
            |range: &Range<u64>| stripes(0, target, range.clone(), arithmetic).map_err(refused);
        let mut left = 0..access.packed_bytes();
        while !left.is_empty() {
            let mut now = long(&left, width);
            let mut held = of(&now)?;
            if !near.header.try_stripes(self.rank, held, |_| false) {
                now = part(target, &left, width);
                held = of(&now)?;
                self.take_stripes(driver, &near.header, held)?;
            }
            left.start = now.end;
            let mutexes = (near.header.clone(), self.rank, held);
            change(now, mutexes).map_err(WindowError::from)?;
        }
        driver.progress();
        Ok(())
    }

    /// Compares one number, and swaps; gives what was there.
    pub(crate) fn compare_near<D: Driver>(
        &self,
        driver: &D,
        (access, near): (&Access, &DeviceExposure),
        width: usize,
        (compare, swap): (u64, u64),
    ) -> Result<u64, D::Error> {
        self.check_alive(access.rank)?;
        let (target, range) = (access.target.clone(), 0..width as u64);
        let plan = Plan { target, range, does: Does::Compare { width, compare, swap } };
        let held = plan.stripes(0).map_err(|fault| self.refused(access.rank, fault))?;
        self.take_stripes(driver, &near.header, held)?;
        let mutexes = (near.header.clone(), self.rank, held);
        let job = DeviceJob::new(self.handle.id(), &near.memory, mutexes, (plan, &[]));
        let found = job.finish().map_err(WindowError::from)?;
        driver.progress();
        Ok(found.map_or(0, |old| read(&old)))
    }
}
