//! Copies between buffers and host memory, in one piece and by rows.

use crate::OpenClDevice;
use crate::event::WaitList;
use crate::sys::{self, Named};
use gapless_mem::{Completion, DeviceError, HostDevice, OutOfRange, Region};
use opencl3::command_queue as queue;
use opencl3::types::{CL_FALSE, cl_event};
use std::ffi::c_void;

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Whether the CPU addresses it.
fn is_host(region: &Region) -> bool {
    region.space().cpu_accessible()
}

fn host_pointer(device: &OpenClDevice, region: &Region) -> Result<*mut c_void, DeviceError> {
    let pointer = region.as_ptr().ok_or_else(|| device.wrong_space(region.space()))?;
    Ok(pointer.cast())
}

/// Nothing, once everything in `after` has ended.
fn nothing(device: &OpenClDevice, list: &WaitList) -> Result<Completion, DeviceError> {
    if list.len() == 0 {
        return Ok(Completion::Ready);
    }
    // SAFETY: queue and events are live; the list has the length told.
    let event = unsafe {
        queue::enqueue_marker_with_wait_list(device.queue().raw(), list.len(), list.as_ptr())
    };
    started(device, event, "clEnqueueMarkerWithWaitList")
}

fn started(
    device: &OpenClDevice,
    event: Result<cl_event, i32>,
    call: &'static str,
) -> Result<Completion, DeviceError> {
    device.started(event.named(call).map_err(|error| error.on(&device.name(), 0))?)
}

/// One piece.
///
/// # Safety
/// As [`gapless_mem::Device::copy`].
pub(crate) unsafe fn linear(
    device: &OpenClDevice,
    dst: Region,
    src: Region,
    after: &[Completion],
) -> Result<Completion, DeviceError> {
    if dst.len() != src.len() {
        return Err(DeviceError::LengthMismatch { src_len: src.len(), dst_len: dst.len() });
    }
    device.check(&dst)?;
    device.check(&src)?;
    let list = WaitList::of(device, after)?;
    if dst.is_empty() {
        return nothing(device, &list);
    }
    let queue = device.queue().raw();
    let len = size(src.len());
    match (is_host(&dst), is_host(&src)) {
        (false, false) => {
            let (from, to) = (sys::pointer(src.address()), sys::pointer(dst.address()));
            let (from_at, to_at) = (size(src.offset()), size(dst.offset()));
            // SAFETY: buffers of this context, live until the completion by the caller's guarantee;
            // OpenCL refuses what leaves them.
            let event = unsafe {
                queue::enqueue_copy_buffer(
                    queue,
                    from,
                    to,
                    from_at,
                    to_at,
                    len,
                    list.len(),
                    list.as_ptr(),
                )
            };
            started(device, event, "clEnqueueCopyBuffer")
        }
        (false, true) => {
            let from = host_pointer(device, &src)?;
            // SAFETY: as above; the host memory is readable until the completion.
            let event = unsafe {
                queue::enqueue_write_buffer(
                    queue,
                    sys::pointer(dst.address()),
                    CL_FALSE,
                    size(dst.offset()),
                    len,
                    from,
                    list.len(),
                    list.as_ptr(),
                )
            };
            started(device, event, "clEnqueueWriteBuffer")
        }
        (true, false) => {
            let to = host_pointer(device, &dst)?;
            // SAFETY: as above; the host memory is writable until the completion.
            let event = unsafe {
                queue::enqueue_read_buffer(
                    queue,
                    sys::pointer(src.address()),
                    CL_FALSE,
                    size(src.offset()),
                    len,
                    to,
                    list.len(),
                    list.as_ptr(),
                )
            };
            started(device, event, "clEnqueueReadBuffer")
        }
        (true, true) => {
            // SAFETY: host memory on both sides, guaranteed by the caller.
            unsafe { gapless_mem::Device::copy(&HostDevice::new(), dst, src, after) }
        }
    }
}

/// Rows of one side.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    region: Region,
    pitch: u64,
}

impl Rows {
    pub(crate) fn new(region: Region, pitch: u64) -> Rows {
        Rows { region, pitch }
    }

    /// Whether `rows` rows of `width` bytes lie inside.
    fn check(&self, width: u64, rows: u64) -> Result<(), DeviceError> {
        let end = (rows - 1).checked_mul(self.pitch).and_then(|last| last.checked_add(width));
        match end {
            Some(end) if end <= self.region.len() => Ok(()),
            _ => Err(DeviceError::OutOfRange(OutOfRange {
                offset: self.pitch.saturating_mul(rows - 1),
                len: width,
                region_len: self.region.len(),
                space: self.region.space(),
            })),
        }
    }

    /// The begin as OpenCL counts it: bytes into a row, rows, slices. For host memory the pointer
    /// already leads there.
    fn origin(&self) -> [usize; 3] {
        if is_host(&self.region) {
            return [0; 3];
        }
        let (offset, pitch) = (self.region.offset(), self.pitch.max(1));
        [size(offset % pitch), size(offset / pitch), 0]
    }

    fn row(&self, row: u64, width: u64) -> Result<Region, DeviceError> {
        Ok(self.region.sub(row * self.pitch, width)?)
    }

    /// Whether OpenCL takes it as a rectangle: rows must not overlap, nor begin so far in that they run
    /// over a row's end.
    fn rectangular(&self, width: u64) -> bool {
        let begin =
            if is_host(&self.region) { 0 } else { self.region.offset() % self.pitch.max(1) };
        self.pitch >= width && begin + width <= self.pitch
    }
}

/// By rows.
///
/// # Safety
/// As [`gapless_mem::Device::copy_2d`].
pub(crate) unsafe fn rows(
    device: &OpenClDevice,
    dst: Rows,
    src: Rows,
    width: u64,
    rows: u64,
    after: &[Completion],
) -> Result<Completion, DeviceError> {
    device.check(&dst.region)?;
    device.check(&src.region)?;
    let list = WaitList::of(device, after)?;
    if width == 0 || rows == 0 {
        return nothing(device, &list);
    }
    dst.check(width, rows)?;
    src.check(width, rows)?;
    let (to_host, from_host) = (is_host(&dst.region), is_host(&src.region));
    if !(dst.rectangular(width) && src.rectangular(width)) || (to_host && from_host) {
        // Row by row, each after the one before; the last one's end is everyone's, the queue being in
        // order.
        let mut last = Completion::Ready;
        for row in 0..rows {
            let after = if row == 0 { after } else { std::slice::from_ref(&last) };
            let (to, from) = (dst.row(row, width)?, src.row(row, width)?);
            // SAFETY: parts of the caller's regions.
            match unsafe { linear(device, to, from, after) } {
                Ok(copied) => last = copied,
                Err(error) => {
                    // An error means that nothing is in flight any more. That holds, however that row ended.
                    let _ = last.wait();
                    return Err(error);
                }
            }
        }
        return Ok(last);
    }
    let queue = device.queue().raw();
    let region = [size(width), size(rows), 1];
    let (to_at, from_at) = (dst.origin(), src.origin());
    let (to_pitch, from_pitch) = (size(dst.pitch), size(src.pitch));
    if to_host {
        let to = host_pointer(device, &dst.region)?;
        // SAFETY: every row lies inside its region (checked above), valid until the completion by the
        // caller's guarantee; the three arrays have three entries.
        let event = unsafe {
            queue::enqueue_read_buffer_rect(
                queue,
                sys::pointer(src.region.address()),
                CL_FALSE,
                from_at.as_ptr(),
                to_at.as_ptr(),
                region.as_ptr(),
                from_pitch,
                0,
                to_pitch,
                0,
                to,
                list.len(),
                list.as_ptr(),
            )
        };
        return started(device, event, "clEnqueueReadBufferRect");
    }
    if from_host {
        let from = host_pointer(device, &src.region)?;
        // SAFETY: as above.
        let event = unsafe {
            queue::enqueue_write_buffer_rect(
                queue,
                sys::pointer(dst.region.address()),
                CL_FALSE,
                to_at.as_ptr(),
                from_at.as_ptr(),
                region.as_ptr(),
                to_pitch,
                0,
                from_pitch,
                0,
                from,
                list.len(),
                list.as_ptr(),
            )
        };
        return started(device, event, "clEnqueueWriteBufferRect");
    }
    // SAFETY: as above.
    let event = unsafe {
        queue::enqueue_copy_buffer_rect(
            queue,
            sys::pointer(src.region.address()),
            sys::pointer(dst.region.address()),
            from_at.as_ptr(),
            to_at.as_ptr(),
            region.as_ptr(),
            from_pitch,
            0,
            to_pitch,
            0,
            list.len(),
            list.as_ptr(),
        )
    };
    started(device, event, "clEnqueueCopyBufferRect")
}
