//! Copies in all directions, one- and two-dimensional.
//!
//! The driver tells from addresses which memories a copy joins (unified addressing), so one call
//! serves all directions. Streams are chosen by direction, because a GPU has copy engines for each:
//! a long download does not hold up an upload. Within a direction copies take turns over a few
//! streams, so that one that waits for slow work does not hold up the next; a copy that comes after another
//! goes on its stream.

use crate::driver::{Batch, Rows};
use crate::stream::Stream;
use crate::{CudaDevice, CudaError};
use gapless_mem::{Completion, DeviceError, OutOfRange, Region, Space};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Streams for each direction.
const WIDTH: usize = 4;

/// Which engine of the device a copy uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyEngine {
    /// From the host.
    Up = 0,
    /// To the host.
    Down = 1,
    /// Within the device, or wherever the driver has put managed memory.
    Local = 2,
    /// Between devices.
    Peer = 3,
}

impl CopyEngine {
    fn of(dst: Space, src: Space) -> CopyEngine {
        let host = |space| matches!(space, Space::Host | Space::Pinned);
        match (dst, src) {
            (Space::Cuda { device: to }, Space::Cuda { device: from }) if to != from => {
                CopyEngine::Peer
            }
            (dst, src) if host(src) && !host(dst) => CopyEngine::Up,
            (dst, src) if host(dst) && !host(src) => CopyEngine::Down,
            _ => CopyEngine::Local,
        }
    }
}

/// A device's own streams; each is made at first use.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    streams: [[OnceLock<Stream>; WIDTH]; 4],
    next: [AtomicUsize; 4],
}

/// How rows are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// There is nothing to copy.
    Nothing,
    /// Everything is one piece of this length.
    OnePiece(u64),
    /// One call of the driver.
    Rows,
    /// A call for each row: rows that overlap, or lie further apart than the driver allows.
    RowByRow,
}

impl Plan {
    fn of(dst_pitch: u64, src_pitch: u64, width: u64, rows: u64, pitch_max: u64) -> Plan {
        if width == 0 || rows == 0 {
            return Plan::Nothing;
        }
        if rows == 1 {
            return Plan::OnePiece(width);
        }
        if dst_pitch == width
            && src_pitch == width
            && let Some(len) = width.checked_mul(rows)
        {
            return Plan::OnePiece(len);
        }
        let usual = |pitch| (width..=pitch_max).contains(&pitch);
        if usual(dst_pitch) && usual(src_pitch) { Plan::Rows } else { Plan::RowByRow }
    }
}

/// The completion of what has just been enqueued on a stream of ours. After an error nothing of it is in flight:
/// an earlier row may have been enqueued, or everything but the event.
fn end_of(stream: &Stream, copied: Result<(), CudaError>) -> Result<Completion, CudaError> {
    let end = copied.and_then(|()| stream.record());
    if end.is_err() {
        stream.drain();
    }
    end
}

impl CudaDevice {
    /// The stream for a copy: that of work which it comes after, if it is one for copies in this direction (a link
    /// between two streams costs microseconds), or else the next.
    fn lane(&self, engine: CopyEngine, after: &[Completion]) -> Result<&Stream, CudaError> {
        let lanes = self.lanes();
        let made = lanes.streams[engine as usize].iter().filter_map(OnceLock::get);
        let follows = |stream: &&Stream| after.iter().any(|work| stream.recorded(work));
        if let Some(stream) = made.into_iter().find(follows) {
            return Ok(stream);
        }
        let turn = lanes.next[engine as usize].fetch_add(1, Ordering::Relaxed) % WIDTH;
        let lane = &lanes.streams[engine as usize][turn];
        if let Some(stream) = lane.get() {
            return Ok(stream);
        }
        let made = Stream::create(self.context())?;
        Ok(lane.get_or_init(|| made))
    }

    /// The first byte's address, if copies of this device can get there.
    fn place(&self, region: &Region) -> Result<u64, CudaError> {
        let space = region.space();
        if !self.reaches_space(space) {
            let device = self.context().name.clone();
            return Err(DeviceError::WrongSpace { device, space }.into());
        }
        let start = region.address().checked_add(region.offset());
        match start.filter(|start| start.checked_add(region.len()).is_some()) {
            Some(start) => {
                if let Space::Cuda { device } = space {
                    self.enable_peer_if_possible(device);
                }
                Ok(start)
            }
            None => Err(DeviceError::from(OutOfRange {
                offset: region.offset(),
                len: region.len(),
                region_len: region.len(),
                space,
            })
            .into()),
        }
    }

    fn copy_places(&self, dst: &Region, src: &Region) -> Result<(u64, u64), CudaError> {
        if dst.len() != src.len() {
            let lengths = DeviceError::LengthMismatch { src_len: src.len(), dst_len: dst.len() };
            return Err(lengths.into());
        }
        Ok((self.place(dst)?, self.place(src)?))
    }

    /// Enqueues a copy on a stream of this device.
    ///
    /// Host memory that is not page-locked is copied by the calling thread, which may wait for the
    /// stream meanwhile.
    ///
    /// # Safety
    /// As for [`Device::copy`](gapless_mem::Device::copy), until the stream has passed the copy.
    ///
    /// # Errors
    /// A space it does not reach, unequal lengths, or the driver's refusal.
    pub unsafe fn copy_on(
        &self,
        stream: &Stream,
        dst: Region,
        src: Region,
    ) -> Result<(), CudaError> {
        let (to, from) = self.copy_places(&dst, &src)?;
        if dst.is_empty() {
            return Ok(());
        }
        let _bound = self.context().bind()?;
        // SAFETY: the caller vouches for both regions; the places are their first bytes, and
        // neither wraps around (`place`).
        let copied = unsafe { self.context().driver.memcpy(to, from, dst.len(), stream.raw()) };
        copied.map_err(|fault| self.context().fault(fault))
    }

    /// [`Device::copy`](gapless_mem::Device::copy), with errors of this crate.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn copy_after(
        &self,
        dst: Region,
        src: Region,
        after: &[Completion],
    ) -> Result<Completion, CudaError> {
        self.copy_places(&dst, &src)?;
        if dst.is_empty() && after.iter().all(|work| matches!(work, Completion::Ready)) {
            return Ok(Completion::Ready);
        }
        let stream = self.lane(CopyEngine::of(dst.space(), src.space()), after)?;
        let _bound = self.context().bind()?;
        stream.wait_for(after)?;
        // SAFETY: the caller vouches for both regions until the completion, which comes after.
        let copied = unsafe { self.copy_on(stream, dst, src) };
        end_of(stream, copied)
    }

    /// Enqueues a copy of `rows` rows of `width` bytes on a stream of this device; row `i` starts
    /// `i * dst_pitch` (`i * src_pitch`) bytes into `dst` (`src`).
    ///
    /// # Safety
    /// As for [`Device::copy`](gapless_mem::Device::copy), for every row, until the stream has
    /// passed the copy.
    ///
    /// # Errors
    /// A space it does not reach, rows that leave their region, or the driver's refusal; then
    /// nothing, or (only where rows overlap or lie more than 2 GiB apart) some rows are enqueued.
    #[expect(clippy::too_many_arguments, reason = "a 2-D copy has this many numbers everywhere")]
    pub unsafe fn copy_2d_on(
        &self,
        stream: &Stream,
        dst: Region,
        dst_pitch: u64,
        src: Region,
        src_pitch: u64,
        width: u64,
        rows: u64,
    ) -> Result<(), CudaError> {
        let (to, from) = (self.place(&dst)?, self.place(&src)?);
        for row in [0, rows.saturating_sub(1)] {
            dst.sub(row.saturating_mul(dst_pitch), width).map_err(DeviceError::from)?;
            src.sub(row.saturating_mul(src_pitch), width).map_err(DeviceError::from)?;
        }
        let context = self.context();
        let _bound = context.bind()?;
        let enqueue = |to, from, len| {
            // SAFETY: the caller vouches for every row; the pieces are rows, or all rows where no
            // gaps are between them, and the last row was found to lie inside.
            let copied = unsafe { context.driver.memcpy(to, from, len, stream.raw()) };
            copied.map_err(|fault| context.fault(fault))
        };
        match Plan::of(dst_pitch, src_pitch, width, rows, self.pitch_max()) {
            Plan::Nothing => Ok(()),
            Plan::OnePiece(len) => enqueue(to, from, len),
            Plan::Rows => {
                let dst = Rows { address: to, pitch: dst_pitch };
                let src = Rows { address: from, pitch: src_pitch };
                // SAFETY: the caller vouches for every row, and the last one lies inside.
                let copied =
                    unsafe { context.driver.memcpy_2d(dst, src, width, rows, stream.raw()) };
                copied.map_err(|fault| context.fault(fault))
            }
            Plan::RowByRow => (0..rows)
                .try_for_each(|row| enqueue(to + row * dst_pitch, from + row * src_pitch, width)),
        }
    }

    /// [`Device::copy_2d`](gapless_mem::Device::copy_2d), with errors of this crate.
    ///
    /// # Safety
    /// As there.
    #[expect(clippy::too_many_arguments, reason = "a 2-D copy has this many numbers everywhere")]
    pub(crate) unsafe fn copy_2d_after(
        &self,
        dst: Region,
        dst_pitch: u64,
        src: Region,
        src_pitch: u64,
        width: u64,
        rows: u64,
        after: &[Completion],
    ) -> Result<Completion, CudaError> {
        let stream = self.lane(CopyEngine::of(dst.space(), src.space()), after)?;
        let _bound = self.context().bind()?;
        stream.wait_for(after)?;
        // SAFETY: the caller vouches for every row until the completion, which comes after.
        let copied =
            unsafe { self.copy_2d_on(stream, dst, dst_pitch, src, src_pitch, width, rows) };
        end_of(stream, copied)
    }

    /// Enqueues copies of the second regions into the first ones by one call of the driver
    /// (`cuMemcpyBatchAsync`). They are ordered with the stream, but not among each other.
    ///
    /// # Safety
    /// As for [`copy_on`](CudaDevice::copy_on), for every pair.
    ///
    /// # Errors
    /// [`CudaError::MissingSymbol`] with a driver older than CUDA 12.8; otherwise as `copy_on`, and
    /// then nothing is enqueued.
    pub unsafe fn copy_batch_on(
        &self,
        stream: &Stream,
        copies: &[(Region, Region)],
    ) -> Result<(), CudaError> {
        let mut batch = Batch::default();
        for (dst, src) in copies.iter().filter(|(dst, src)| !(dst.is_empty() && src.is_empty())) {
            let (to, from) = self.copy_places(dst, src)?;
            batch.to.push(to);
            batch.from.push(from);
            // What is longer than the address space was refused as wrapping around.
            batch.bytes.push(usize::try_from(dst.len()).unwrap_or(usize::MAX));
        }
        if batch.to.is_empty() {
            return Ok(());
        }
        let context = self.context();
        let _bound = context.bind()?;
        // SAFETY: the caller vouches for all regions; the places are their first bytes, and none
        // wraps around (`place`). The context is bound.
        let copied = unsafe { context.driver.copy_batch(&mut batch, context.device, stream.raw()) };
        copied?.map_err(|fault| context.fault(fault))
    }

    /// Enqueues setting every byte of `region` to `value`.
    ///
    /// # Safety
    /// `region` is writable and not touched otherwise until the stream has passed this.
    ///
    /// # Errors
    /// Memory that is not page-locked, managed or a device's, or the driver's refusal.
    pub unsafe fn fill_on(
        &self,
        stream: &Stream,
        region: Region,
        value: u8,
    ) -> Result<(), CudaError> {
        let to = self.device_address(region)?;
        if region.is_empty() {
            return Ok(());
        }
        let _bound = self.context().bind()?;
        // SAFETY: the caller vouches for the region, and `device_address` that the device gets
        // there.
        let filled = unsafe { self.context().driver.memset(to, value, region.len(), stream.raw()) };
        filled.map_err(|fault| self.context().fault(fault))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CudaDriver;
    use crate::driver::tests::fake::{self, State};

    const HERE: Space = Space::Cuda { device: 0 };

    #[test]
    fn directions() {
        assert_eq!(CopyEngine::of(HERE, Space::Host), CopyEngine::Up);
        assert_eq!(CopyEngine::of(Space::Pinned, HERE), CopyEngine::Down);
        assert_eq!(CopyEngine::of(HERE, HERE), CopyEngine::Local);
        assert_eq!(CopyEngine::of(HERE, Space::Cuda { device: 1 }), CopyEngine::Peer);
        assert_eq!(CopyEngine::of(Space::Host, Space::Pinned), CopyEngine::Local);
        assert_eq!(CopyEngine::of(Space::Managed, Space::Host), CopyEngine::Up);
    }

    #[test]
    fn plans_for_rows() {
        assert_eq!(Plan::of(8, 8, 0, 5, 100), Plan::Nothing);
        assert_eq!(Plan::of(8, 8, 8, 0, 100), Plan::Nothing);
        assert_eq!(Plan::of(8, 8, 8, 5, 100), Plan::OnePiece(40));
        assert_eq!(Plan::of(1, 9999, 8, 1, 100), Plan::OnePiece(8));
        assert_eq!(Plan::of(8, 16, 8, 5, 100), Plan::Rows);
        assert_eq!(Plan::of(8, 101, 8, 5, 100), Plan::RowByRow);
        assert_eq!(Plan::of(8, 4, 8, 5, 100), Plan::RowByRow);
    }

    fn device() -> CudaDevice {
        CudaDriver::of(fake::driver()).unwrap().device(0).unwrap()
    }

    fn at(address: u64, len: u64) -> Region {
        Region::new(HERE, address, 0, len)
    }

    #[test]
    fn what_is_out_of_reach_is_refused_before_the_driver_is_asked() {
        fake::set(State::default());
        let device = device();
        let far = Region::new(Space::Device { kind: "fake", device: 0 }, 64, 0, 8);
        // SAFETY: the pretend driver copies nothing.
        let error = unsafe { device.copy_after(at(64, 8), far, &[]) }.unwrap_err();
        assert!(matches!(error, CudaError::Refused(DeviceError::WrongSpace { .. })));
        // SAFETY: as above.
        let error = unsafe { device.copy_after(at(64, 8), at(128, 9), &[]) }.unwrap_err();
        assert!(matches!(error, CudaError::Refused(DeviceError::LengthMismatch { .. })));
        let end = at(u64::MAX - 3, 8);
        // SAFETY: as above.
        let error = unsafe { device.copy_after(at(64, 8), end, &[]) }.unwrap_err();
        assert!(matches!(error, CudaError::Refused(DeviceError::OutOfRange(_))));
        // SAFETY: as above.
        let rows = unsafe { device.copy_2d_after(at(64, 32), 8, at(128, 32), 16, 8, 3, &[]) };
        assert!(matches!(rows, Err(CudaError::Refused(DeviceError::OutOfRange(_)))));
        assert_eq!(fake::with(|state| state.copies.len()), 0);
    }

    #[test]
    fn overlapping_rows_are_copied_row_by_row() {
        fake::set(State::default());
        let device = device();
        // SAFETY: the pretend driver copies nothing.
        unsafe { device.copy_2d_after(at(100, 24), 8, at(500, 16), 4, 8, 3, &[]) }.unwrap();
        let copies = fake::with(|state| state.copies.clone());
        assert_eq!(copies, [(100, 500, 8), (108, 504, 8), (116, 508, 8)]);
    }

    #[test]
    fn copies_in_a_row_go_on_one_stream_and_others_beside_it() {
        fake::set(State::default());
        let device = device();
        let copy = |after: &[Completion]| {
            // SAFETY: the pretend driver copies nothing.
            unsafe { device.copy_after(at(64, 8), at(128, 8), after) }.unwrap()
        };
        let stream = |copied: &Completion| match copied {
            Completion::Pending(work) => {
                work.as_any().downcast_ref::<crate::CudaPending>().unwrap().stream()
            }
            Completion::Ready => panic!("a copy is outstanding"),
        };
        let (one, other) = (copy(&[]), copy(&[]));
        assert_ne!(stream(&one), stream(&other));
        let waits = fake::with(|state| state.waits);
        for before in [&one, &other] {
            let mut last = before.clone();
            for _ in 0..6 {
                last = copy(&[last]);
                assert_eq!(stream(&last), stream(before));
            }
        }
        assert_eq!(fake::with(|state| state.waits), waits, "a stream keeps its own order");
        // SAFETY: as above.
        let up =
            unsafe { device.copy_after(at(64, 8), Region::new(Space::Pinned, 8, 0, 8), &[one]) };
        assert_eq!(fake::with(|state| state.waits), waits + 1);
        assert_ne!(stream(&up.unwrap()), stream(&other));
    }

    /// Whoever is told of an error uses the memory again.
    #[test]
    fn a_copy_that_fails_has_ended() {
        fake::set(State { queries: 3, record: 2, ..State::default() });
        let device = device();
        // SAFETY: the pretend driver copies nothing.
        let error = unsafe { device.copy_after(at(64, 8), at(128, 8), &[]) }.unwrap_err();
        assert!(matches!(error, CudaError::Failed { code: 2, .. }), "{error}");
        // Copied, and queried until nothing was in flight.
        assert_eq!(fake::with(|state| (state.copies.len(), state.queries)), (1, 0));
        // One row is on the stream when the next is refused.
        fake::set(State { queries: 3, copy_fails_from: 1, ..State::default() });
        // SAFETY: as above.
        let rows = unsafe { device.copy_2d_after(at(100, 24), 8, at(500, 16), 4, 8, 3, &[]) };
        assert!(rows.is_err());
        assert_eq!(fake::with(|state| (state.copies.len(), state.queries)), (1, 0));
    }

    #[test]
    fn nothing_after_nothing_is_ready() {
        fake::set(State::default());
        let device = device();
        // SAFETY: the pretend driver copies nothing.
        let done = unsafe { device.copy_after(at(64, 0), at(128, 0), &[]) }.unwrap();
        assert!(matches!(done, Completion::Ready));
    }
}
