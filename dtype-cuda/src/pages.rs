//! Pages: instances of a layout at indices that are data, on either side of a move or on both. The kernel reads the
//! indices, and no plan is made.
//!
//! | what | how |
//! |---|---|
//! | indices in memory of a device | the kernel reads them there, checks each, and reports the first bad position |
//! | few indices in memory of the host | the kernel reads a copy of them in page-locked memory, if it can |
//! | more | copies go up in pieces, and the kernel for a piece's pages is launched behind it |
//! | pages of one block, or of blocks on a grid | one launch, if the other side is such pages, or a grid |
//! | such pages, and another side that takes a plan | through a chunk on the device |
//! | other pages | as an ordinary layout of the whole list; refused if its indices lie in memory of a device |
//!
//! Units: bytes; positions count indices.

use crate::accelerator::{Lane, Spot};
use crate::between::Between;
use crate::form::Form;
use crate::index_report::IndexReport;
use crate::lanes::{Hold, Holds};
use crate::memory::DeviceBlock;
use crate::plans::DevicePlan;
use crate::prepare::pieces;
use crate::shared::{PackJob, Shared};
use crate::staging::{StagingPiece, StagingRing};
use gapless_dtype::{Layout, PageIndices, Pages};
use gapless_engine::{EngineError, PagesOf, Typed};
use gapless_kernels::Direction;
use gapless_kernels::args::DIMS_MAX;
use gapless_kernels::launch::{Budget, Grid, Launches, PageList, PageSide, pages as lay_out};
use gapless_mem::{Completion, Region};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of indices that a kernel may read across the bus, and that the first piece of longer lists has: as long as a
/// copy takes to begin, the device has nothing to do.
const SHORT: u64 = 32 << 10;

/// Each piece is so many times as long as the one before, up to the staging memory's.
const LONGER: u64 = 4;

/// A side of a move of pages.
pub(crate) struct PagesEnd<'a> {
    side: PageSide,
    spot: Spot,
    /// The kernel's pointer to the indices; any, if it has none.
    list: Region,
    indices: Option<PagesOf<'a>>,
    /// Indices that are still to be copied there.
    to_come: Option<&'a Pages>,
}

/// How a side that is packed, or unpacked, part by part is found.
pub(crate) enum Way<'a> {
    /// Without a plan.
    Form,
    /// By a plan that the lane finds.
    Plan(Arc<DevicePlan>),
    /// By indices that the lane finds, which are reported on.
    Pages(Box<PagesEnd<'a>>, Option<Arc<IndexReport>>),
}

/// A page as the kernel takes it, if it can.
fn page_grid(page: &Layout) -> Option<Grid> {
    let grid = match Form::of(page, 1) {
        Form::Contiguous { displacement } => {
            Grid { displacement, len: page.size(), dims: SmallVec::new() }
        }
        Form::Strided(mut grid) => {
            grid.dims.retain(|dim| dim.count > 1);
            grid
        }
        _ => return None,
    };
    (grid.dims.len() < DIMS_MAX).then_some(grid)
}

/// The same instances as an ordinary layout, of pages that kernels of pages do not take.
///
/// # Errors
/// Their indices lie in memory of a device.
pub(crate) fn otherwise(typed: &Typed) -> Result<Option<Typed>, EngineError> {
    if typed.as_pages().is_none() || page_grid(typed.layout()).is_some() {
        return Ok(None);
    }
    Ok(Some(typed.without_pages()?.into_owned()))
}

impl<'a> PagesEnd<'a> {
    /// That of a buffer; `None` of what kernels of pages do not take. Where the indices lie is not said yet.
    pub(crate) fn of(typed: &'a Typed, spot: Spot) -> Option<PagesEnd<'a>> {
        let indices = typed.as_pages();
        let listed = |pages: PagesOf<'_>, stride, last| {
            let page = page_grid(typed.layout())?;
            let (count, index_bytes) = (typed.count(), pages.index_bytes());
            Some(PageSide::Listed(PageList { page, stride, count, list: 0, index_bytes, last }))
        };
        let side = match indices {
            None => match Form::of(typed.layout(), typed.count()) {
                Form::Contiguous { displacement } => PageSide::Contiguous(displacement),
                Form::Strided(grid) => PageSide::Grid(grid),
                _ => return None,
            },
            // `Typed` has found all of them inside.
            Some(all @ PagesOf::Host(pages)) => listed(all, pages.stride(), u64::MAX)?,
            Some(all @ PagesOf::Device(pages)) => listed(all, pages.stride(), pages.last())?,
        };
        Some(PagesEnd { side, spot, list: spot.base, indices, to_come: None })
    }

    /// A packed side, whose first byte is the stream's byte `start`.
    pub(crate) fn packed(spot: Spot, start: u64) -> PagesEnd<'a> {
        let mut spot = spot;
        spot.place.offset = spot.place.offset.wrapping_sub_unsigned(start);
        let side = PageSide::Contiguous(0);
        PagesEnd { side, spot, list: spot.base, indices: None, to_come: None }
    }

    /// Which positions of the list a range of the stream has.
    fn positions(&self, range: &Range<u64>) -> Range<u64> {
        let PageSide::Listed(list) = &self.side else { return 0..0 };
        let size = self.page_bytes();
        range.start / size..range.end.div_ceil(size).min(list.count)
    }

    /// Packed bytes of a page.
    fn page_bytes(&self) -> u64 {
        let PageSide::Listed(list) = &self.side else { return u64::MAX };
        // It has bytes, or there is no range.
        list.page.dims.iter().fold(list.page.len, |bytes, dim| bytes * dim.count).max(1)
    }

    /// Bytes of an index.
    fn index_width(&self) -> u64 {
        let PageSide::Listed(list) = &self.side else { return 0 };
        list.index_bytes.into()
    }

    /// Bytes of host indices that a range takes.
    pub(crate) fn index_bytes(&self, range: &Range<u64>) -> u64 {
        let Some(PagesOf::Host(_)) = self.indices else { return 0 };
        let positions = self.positions(range);
        (positions.end - positions.start) * self.index_width()
    }

    /// The indices lie at `list`, from `offset` on those from position `first` on.
    fn lie_at(&mut self, list: Region, offset: u64, first: u64) {
        let PageSide::Listed(side) = &mut self.side else { return };
        side.list = offset.wrapping_sub(first.wrapping_mul(side.index_bytes.into()));
        self.list = list;
    }

    /// The largest index that is moved, if that is to be checked.
    fn last(&self) -> Option<u64> {
        match self.indices {
            Some(PagesOf::Device(pages)) => Some(pages.last()),
            _ => None,
        }
    }
}

/// Indices as kernels read them.
fn write(indices: &PageIndices, positions: Range<u64>, into: &mut [u8]) {
    let places = usize::try_from(positions.start).unwrap_or(usize::MAX)
        ..usize::try_from(positions.end).unwrap_or(usize::MAX);
    match indices {
        PageIndices::U32(list) => {
            let list = list.get(places).unwrap_or_default();
            let into = into.chunks_exact_mut(4).zip(list);
            into.for_each(|(place, index)| place.copy_from_slice(&index.to_ne_bytes()));
        }
        PageIndices::U64(list) => {
            let list = list.get(places).unwrap_or_default();
            let into = into.chunks_exact_mut(8).zip(list);
            into.for_each(|(place, index)| place.copy_from_slice(&index.to_ne_bytes()));
        }
    }
}

/// Indices on their way, in pieces. Dropped before all are, it waits for what is in flight.
struct Uploads<'a> {
    shared: &'a Shared,
    lane: &'a dyn Lane,
    ring: Option<StagingRing>,
}

impl Drop for Uploads<'_> {
    fn drop(&mut self) {
        if self.ring.is_some() {
            self.lane.drain();
        }
    }
}

impl Uploads<'_> {
    /// Memory that may be written.
    fn piece(&mut self) -> Result<StagingPiece, EngineError> {
        let shared = self.shared;
        let Some(ring) = &mut self.ring else { return shared.rings.piece(&*shared.accelerator) };
        if let Some(piece) = ring.blank() {
            return Ok(piece);
        }
        match ring.landed(true)? {
            Some(piece) => Ok(piece),
            None => shared.rings.piece(&*shared.accelerator),
        }
    }

    /// Enqueues the copy of some of a side's indices, which fit a piece, and tells its end.
    fn send(
        &mut self,
        end: &PagesEnd<'_>,
        pages: &Pages,
        positions: Range<u64>,
    ) -> Result<Completion, EngineError> {
        let PageSide::Listed(list) = &end.side else { return Ok(Completion::Ready) };
        let width = u64::from(list.index_bytes);
        let at = list.list.wrapping_add(positions.start.wrapping_mul(width));
        let len = (positions.end - positions.start) * width;
        let mut piece = self.piece()?;
        write(pages.indices(), positions, piece.bytes());
        let (to, from) = (end.list.sub(at, len)?, piece.region().sub(0, len)?);
        // SAFETY: both lie inside memory of ours (`sub`). The block was free, and is held until the lanes of those who
        // read it have passed them, which wait for this. The piece is written again after the completion below; if that
        // cannot be had, the lane is drained before the piece is let go of (`drop`).
        let sent = unsafe { self.lane.copy(to, from) }.and_then(|()| self.lane.record());
        if let Ok(end) = &sent {
            piece.used_by(end.clone());
        }
        if let Some(ring) = &mut self.ring {
            ring.sent(piece);
        }
        sent
    }

    /// All are on their way.
    fn close(mut self) {
        if let Some(ring) = self.ring.take() {
            self.shared.rings.give(ring, pieces(&self.shared.config));
        }
    }
}

impl Shared {
    /// Finds memory for a side's indices of a range: where they are, page-locked memory, or a block that they are still
    /// to be copied to.
    fn place_indices(
        &self,
        lane: &dyn Lane,
        end: &mut PagesEnd<'_>,
        range: &Range<u64>,
        held: &mut Holds,
    ) -> Result<(), EngineError> {
        let positions = end.positions(range);
        match end.indices {
            None => Ok(()),
            Some(PagesOf::Device(pages)) => {
                let wrong = || EngineError::WrongSpace {
                    engine: self.accelerator.name(),
                    space: pages.indices().space(),
                };
                let spot = self.accelerator.packed(pages.indices())?.ok_or_else(wrong)?;
                end.lie_at(spot.base, spot.place.offset.cast_unsigned(), 0);
                Ok(())
            }
            Some(PagesOf::Host(pages)) => {
                let bytes = end.index_bytes(range);
                if bytes > SHORT.min(self.config.piece_bytes as u64) {
                    let block = Arc::new(self.memory.take(bytes)?);
                    end.lie_at(block.region(), block.region().offset(), positions.start);
                    end.to_come = Some(pages);
                    held.push(Hold::Block(block));
                    return Ok(());
                }
                let mut piece = self.rings.short(&*self.accelerator, bytes)?;
                write(pages.indices(), positions.clone(), piece.bytes());
                let staged = piece.region();
                held.push(Hold::Staging(piece));
                if let Some(spot) = self.accelerator.packed(staged)? {
                    end.lie_at(spot.base, spot.place.offset.cast_unsigned(), positions.start);
                    return Ok(());
                }
                let block = Arc::new(self.memory.take(bytes)?);
                end.lie_at(block.region(), block.region().offset(), positions.start);
                let to = block.region().sub(0, bytes)?;
                held.push(Hold::Block(block));
                // SAFETY: the block was free; it and the piece are held until the lane has passed what it does with
                // them.
                unsafe { lane.copy(to, staged) }
            }
        }
    }

    /// Memory for a report on the indices, if some are to be checked.
    fn report_on(
        &self,
        lane: &dyn Lane,
        ends: [&PagesEnd<'_>; 2],
        held: &mut Holds,
    ) -> Result<Option<Arc<IndexReport>>, EngineError> {
        let last = ends.map(PagesEnd::last);
        if last == [None, None] {
            return Ok(None);
        }
        let report = Arc::new(IndexReport::new(self, last.map(|last| last.unwrap_or(u64::MAX)))?);
        held.push(Hold::Report(Arc::clone(&report)));
        report.open(lane)?;
        Ok(Some(report))
    }

    /// Enqueues kernels for a range, whose indices the lane finds.
    ///
    /// # Safety
    /// The spots lead to the sides, which stay valid, and free of races, until the lane has passed the work.
    unsafe fn launch_pages(
        &self,
        lane: &dyn Lane,
        range: &Range<u64>,
        (from, to): (&PagesEnd<'_>, &PagesEnd<'_>),
        budget: Option<Budget>,
        report: Option<&Arc<IndexReport>>,
    ) -> Result<(), EngineError> {
        let launches = self.laid_out_pages(range, (from, to), budget)?;
        let report = report.map_or(from.spot.base, |report| report.pointer());
        let pointers = [from.spot.base, to.spot.base, from.list, to.list, report];
        for launch in &launches {
            // SAFETY: the launch moves pages whose indices `Typed` found inside their region, or that the kernel
            // checks, and bytes of sides that the caller vouches for. Lists and report are held, or the caller's.
            unsafe { lane.launch(launch, &pointers) }?;
        }
        Ok(())
    }

    /// The launches for a range.
    ///
    /// # Errors
    /// A shape that no kernel takes.
    pub(crate) fn laid_out_pages(
        &self,
        range: &Range<u64>,
        (from, to): (&PagesEnd<'_>, &PagesEnd<'_>),
        budget: Option<Budget>,
    ) -> Result<Launches, EngineError> {
        let places = (from.spot.place, to.spot.place);
        lay_out(range, (&from.side, places.0), (&to.side, places.1), budget)
            .map_err(|reason| self.unfit(reason))
    }

    /// Enqueues a move some of whose sides are pages: the indices' copies, and kernels behind each piece of them.
    ///
    /// # Safety
    /// As for [`launch_pages`](Shared::launch_pages).
    unsafe fn move_pages(
        &self,
        lane: &dyn Lane,
        range: &Range<u64>,
        (mut from, mut to): (PagesEnd<'_>, PagesEnd<'_>),
        budget: Option<Budget>,
        held: &mut Holds,
    ) -> Result<(), EngineError> {
        self.place_indices(lane, &mut from, range, held)?;
        self.place_indices(lane, &mut to, range, held)?;
        let report = self.report_on(lane, [&from, &to], held)?;
        let ends = (&from, &to);
        if from.to_come.is_none() && to.to_come.is_none() {
            // SAFETY: the caller's own promise.
            unsafe { self.launch_pages(lane, range, ends, budget, report.as_ref()) }?;
        } else {
            self.in_pieces(lane, range, ends, |part| {
                // SAFETY: the caller's own promise; the lane finds the part's indices.
                unsafe { self.launch_pages(lane, &part, ends, budget, report.as_ref()) }
            })?;
        }
        report.map_or(Ok(()), |report| report.close(lane))
    }

    /// Uploads the indices of a range that are to come, piece by piece; `ready` hears of each part of the range whose
    /// indices the lane finds.
    fn in_pieces(
        &self,
        lane: &dyn Lane,
        range: &Range<u64>,
        (from, to): (&PagesEnd<'_>, &PagesEnd<'_>),
        mut ready: impl FnMut(Range<u64>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let ring = self.rings.take(&*self.accelerator, pieces(&self.config))?;
        let mut uploads = Uploads {
            shared: self,
            lane: self.accelerator.uploads().unwrap_or(lane),
            ring: Some(ring),
        };
        let longest = self.config.piece_bytes as u64;
        let (mut at, mut piece) = (range.start, SHORT.min(longest));
        while at < range.end {
            let mut end = range.end;
            // The last page of a part may be cut where the other side's piece ends.
            for side in [from, to].into_iter().filter(|side| side.to_come.is_some()) {
                let pages = piece / side.index_width() - 1;
                let reached =
                    (side.positions(&(at..at)).start + pages).checked_mul(side.page_bytes());
                end = reached.map_or(end, |reached| end.min(reached));
            }
            for side in [from, to] {
                if let Some(pages) = side.to_come {
                    let sent = uploads.send(side, pages, side.positions(&(at..end)))?;
                    lane.wait_for(&[sent])?;
                }
            }
            ready(at..end)?;
            at = end;
            piece = (piece * LONGER).min(longest);
        }
        uploads.close();
        Ok(())
    }

    /// Enqueues a pack or an unpack of pages between memories that kernels reach.
    ///
    /// # Safety
    /// As for [`enqueue`](Shared::enqueue).
    ///
    /// # Errors
    /// As there.
    pub(crate) unsafe fn enqueue_pages(
        &self,
        lane: &dyn Lane,
        job: &PackJob<'_>,
        typed: Spot,
        packed: Spot,
        held: &mut Holds,
    ) -> Result<(), EngineError> {
        let Some(pages) = PagesEnd::of(job.typed, typed) else {
            let Some(plain) = otherwise(job.typed)? else { return Ok(()) };
            // SAFETY: the caller's own promise: it touches the same bytes of the same region.
            return unsafe { self.enqueue(lane, &job.of(&plain), typed, packed, held) };
        };
        let packed = PagesEnd::packed(packed, job.start);
        // SAFETY: the caller's own promise.
        unsafe {
            self.move_pages(lane, &job.range(), in_order(job, pages, packed), job.budget, held)
        }
    }

    /// Enqueues a move from layout to layout, of which one at least is pages.
    ///
    /// # Safety
    /// As for [`transfer`](Shared::transfer).
    ///
    /// # Errors
    /// As there.
    pub(crate) unsafe fn transfer_pages(
        &self,
        lane: &dyn Lane,
        chunk: &mut Option<Arc<DeviceBlock>>,
        what: Between<'_>,
        held: &mut Holds,
    ) -> Result<(), EngineError> {
        let (from, to) = (what.from, what.to);
        let plain = (otherwise(from.0)?, otherwise(to.0)?);
        if plain.0.is_some() || plain.1.is_some() {
            let from = (plain.0.as_ref().unwrap_or(from.0), from.1);
            let to = (plain.1.as_ref().unwrap_or(to.0), to.1);
            let what = Between { from, to, ..what };
            // SAFETY: the caller's own promise: the same bytes of the same regions.
            return unsafe { self.transfer(lane, chunk, what, held) };
        }
        let ends = (PagesEnd::of(from.0, from.1), PagesEnd::of(to.0, to.1));
        if let (Some(source), Some(target)) = ends {
            // SAFETY: the caller's own promise.
            return unsafe {
                self.move_pages(lane, what.range, (source, target), what.budget, held)
            };
        }
        // SAFETY: the caller's own promise.
        unsafe { self.through_chunk(lane, chunk, &what, held) }
    }

    /// How a job's parts are found, whose indices or plan the lane finds from then on.
    ///
    /// # Errors
    /// No memory, or the device's failure.
    pub(crate) fn way<'t>(
        &self,
        lane: &dyn Lane,
        job: &PackJob<'t>,
        typed: Spot,
        held: &mut Holds,
    ) -> Result<Way<'t>, EngineError> {
        if job.typed.as_pages().is_none() {
            return match self.by_form(job, typed, typed) {
                Some(_) => Ok(Way::Form),
                None => self.whole_plan(lane, job.typed.layout(), held).map(Way::Plan),
            };
        }
        let range = job.range();
        let end = PagesEnd::of(job.typed, typed);
        let mut end = end.expect("pages that kernels do not take were made a layout");
        let other = PagesEnd::packed(typed, 0);
        self.place_indices(lane, &mut end, &range, held)?;
        if end.to_come.is_some() {
            self.in_pieces(lane, &range, (&end, &other), |_| Ok(()))?;
        }
        let report = self.report_on(lane, in_order(job, &end, &other).into(), held)?;
        Ok(Way::Pages(Box::new(end), report))
    }

    /// Enqueues a part of a job.
    ///
    /// # Safety
    /// As for [`enqueue`](Shared::enqueue); the way is the job's.
    ///
    /// # Errors
    /// As there.
    pub(crate) unsafe fn enqueue_part(
        &self,
        lane: &dyn Lane,
        part: &PackJob<'_>,
        (typed, packed): (Spot, Spot),
        way: &Way<'_>,
    ) -> Result<(), EngineError> {
        let plan = match way {
            Way::Form => None,
            Way::Plan(plan) => Some(&**plan),
            Way::Pages(end, report) => {
                let packed = PagesEnd::packed(packed, part.start);
                let ends = in_order(part, &**end, &packed);
                // SAFETY: the caller's own promise.
                return unsafe {
                    self.launch_pages(lane, &part.range(), ends, part.budget, report.as_ref())
                };
            }
        };
        // SAFETY: the caller's own promise.
        unsafe { self.enqueue_by(lane, part, typed, packed, plan) }
    }

    /// Enqueues the end of all parts of a job: what was reported comes back.
    pub(crate) fn parts_end(&self, lane: &dyn Lane, way: &Way<'_>) -> Result<(), EngineError> {
        match way {
            Way::Pages(_, Some(report)) => report.close(lane),
            _ => Ok(()),
        }
    }
}

/// Source and target of a job.
pub(crate) fn in_order<T>(job: &PackJob<'_>, typed: T, packed: T) -> (T, T) {
    match job.direction {
        Direction::Pack => (typed, packed),
        Direction::Unpack => (packed, typed),
    }
}
