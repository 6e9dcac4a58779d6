//! Contexts, queues and buffers as programs make them, without Gapless: what messages are sent from. For tests
//! and measurements (feature `testkit`). [`counts`](crate::counts()) leaves these out.

use crate::sys::{self, Named};
use crate::{DeviceInfo, OpenClError};
use gapless_mem::{Region, Space};
use opencl3::command_queue as queue;
use opencl3::context::context;
use opencl3::event;
use opencl3::memory;
use opencl3::types::{
    CL_TRUE, cl_buffer_region, cl_command_queue, cl_context, cl_device_id, cl_event, cl_mem,
};
use std::ffi::c_void;
use std::ptr;

/// A context of one device. It is released when dropped, as the other handles here are.
#[derive(Debug)]
pub struct UserContext {
    raw: cl_context,
    device: cl_device_id,
}

/// A queue.
#[derive(Debug)]
pub struct UserQueue(cl_command_queue);

/// Work on a queue that ends when this is dropped, and what comes after it begins.
#[derive(Debug)]
#[must_use]
pub struct UserGate(cl_event);

/// A buffer, or a part of one.
#[derive(Debug)]
pub struct UserBuffer {
    raw: cl_mem,
    len: usize,
    space: Space,
}

/// Where a buffer is mapped.
#[derive(Debug)]
#[must_use]
pub struct UserMapping(*mut c_void);

impl UserContext {
    /// A new context of a device.
    ///
    /// # Errors
    /// What the driver answers; so for all here.
    pub fn new(device: &DeviceInfo) -> Result<UserContext, OpenClError> {
        let _alone = sys::setting_up();
        let device = device.raw();
        let raw = context::create_context(&[device], ptr::null(), None, ptr::null_mut())
            .named("clCreateContext")?;
        Ok(UserContext { raw, device })
    }

    /// The space of its buffers, in messages that are ordered behind what is on `queue`, if one is given.
    #[must_use]
    pub fn space(&self, queue: Option<&UserQueue>) -> Space {
        Space::OpenCl {
            context: sys::number(self.raw),
            device: sys::number(self.device),
            queue: queue.map(|queue| sys::number(queue.0)),
        }
    }

    /// A new queue, in order or not.
    ///
    /// # Errors
    /// Not every driver has queues that are out of order.
    #[expect(deprecated, reason = "its successor is missing from drivers of OpenCL 1.2")]
    pub fn queue(&self, out_of_order: bool) -> Result<UserQueue, OpenClError> {
        let order = u64::from(out_of_order) * queue::CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE;
        // SAFETY: the context is live, and the device one of its.
        let made = unsafe { queue::create_command_queue(self.raw, self.device, order) };
        made.map(UserQueue).named("clCreateCommandQueue")
    }

    /// Work on a queue of this context that waits for the program.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn gate(&self, queue: &UserQueue) -> Result<UserGate, OpenClError> {
        let gate = event::create_user_event(self.raw).map(UserGate).named("clCreateUserEvent")?;
        // SAFETY: queue and event are live.
        let work = unsafe { queue::enqueue_marker_with_wait_list(queue.0, 1, &raw const gate.0) };
        drop(sys::Event::owned(work.named("clEnqueueMarkerWithWaitList")?));
        Ok(gate)
    }

    /// A buffer of `len` bytes.
    ///
    /// # Errors
    /// No memory.
    pub fn buffer(&self, len: usize) -> Result<UserBuffer, OpenClError> {
        let flags = memory::CL_MEM_READ_WRITE;
        // SAFETY: the context is live; there is no host memory.
        let made = unsafe { memory::create_buffer(self.raw, flags, len, ptr::null_mut()) };
        let raw = made.named("clCreateBuffer")?;
        Ok(UserBuffer { raw, len, space: self.space(None) })
    }
}

impl UserBuffer {
    /// `len` bytes from `origin` on, which some drivers want aligned to as much as 1 KiB.
    ///
    /// # Errors
    /// A part that leaves the buffer, or is not aligned.
    pub fn part(&self, origin: usize, len: usize) -> Result<UserBuffer, OpenClError> {
        let region = cl_buffer_region { origin, size: len };
        // SAFETY: the buffer is live, and the region has the type that is told.
        let made = unsafe {
            memory::create_sub_buffer(
                self.raw,
                memory::CL_MEM_READ_WRITE,
                memory::CL_BUFFER_CREATE_TYPE_REGION,
                (&raw const region).cast(),
            )
        };
        Ok(UserBuffer { raw: made.named("clCreateSubBuffer")?, len, space: self.space })
    }

    /// All of it, as messages take it.
    #[must_use]
    pub fn region(&self) -> Region {
        Region::new(self.space, sys::number(self.raw), 0, self.len as u64)
    }

    /// The same in another space: that of a queue, or a wrong one.
    #[must_use]
    pub fn region_in(&self, space: Space) -> Region {
        Region::new(space, sys::number(self.raw), 0, self.len as u64)
    }

    /// Fills it from its start on.
    ///
    /// # Errors
    /// More bytes than it has.
    pub fn write(&self, queue: &UserQueue, bytes: &[u8]) -> Result<(), OpenClError> {
        let from = bytes.as_ptr().cast_mut().cast();
        // SAFETY: both are live, and the call waits for the copy. OpenCL refuses more than the buffer has.
        unsafe {
            queue::enqueue_write_buffer(
                queue.0,
                self.raw,
                CL_TRUE,
                0,
                bytes.len(),
                from,
                0,
                ptr::null(),
            )
        }
        .named("clEnqueueWriteBuffer")
        .map(|event| drop(sys::Event::owned(event)))
    }

    /// What is in it.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn read(&self, queue: &UserQueue) -> Result<Vec<u8>, OpenClError> {
        let mut bytes = vec![0u8; self.len];
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: as in `write`.
        let event = unsafe {
            queue::enqueue_read_buffer(queue.0, self.raw, CL_TRUE, 0, self.len, to, 0, ptr::null())
        };
        drop(sys::Event::owned(event.named("clEnqueueReadBuffer")?));
        Ok(bytes)
    }

    /// Maps all of it for reading; it stays mapped until [`unmap`](UserBuffer::unmap).
    ///
    /// # Errors
    /// What the driver answers.
    pub fn map(&self, queue: &UserQueue) -> Result<UserMapping, OpenClError> {
        let mut pointer = ptr::null_mut();
        // SAFETY: both are live, and there is nothing to wait for.
        let event = unsafe {
            queue::enqueue_map_buffer(
                queue.0,
                self.raw,
                CL_TRUE,
                memory::CL_MAP_READ,
                0,
                self.len,
                &mut pointer,
                0,
                ptr::null(),
            )
        };
        drop(sys::Event::owned(event.named("clEnqueueMapBuffer")?));
        Ok(UserMapping(pointer))
    }

    /// Undoes [`map`](UserBuffer::map), and waits for the end.
    ///
    /// # Errors
    /// It was not mapped there.
    pub fn unmap(&self, queue: &UserQueue, mapping: UserMapping) -> Result<(), OpenClError> {
        // SAFETY: both are live; the driver refuses a pointer that it did not map.
        let event = unsafe {
            queue::enqueue_unmap_mem_object(queue.0, self.raw, mapping.0, 0, ptr::null())
        };
        sys::Event::owned(event.named("clEnqueueUnmapMemObject")?).wait();
        Ok(())
    }
}

// SAFETY: counted references to objects that OpenCL 1.2 §A.2 lets any thread use, release included.
unsafe impl Send for UserContext {}
// SAFETY: as above.
unsafe impl Sync for UserContext {}
// SAFETY: as above.
unsafe impl Send for UserQueue {}
// SAFETY: as above.
unsafe impl Sync for UserQueue {}
// SAFETY: as above.
unsafe impl Send for UserBuffer {}
// SAFETY: as above.
unsafe impl Sync for UserBuffer {}

impl Drop for UserContext {
    fn drop(&mut self) {
        // SAFETY: the one reference of this value.
        let _ = unsafe { context::release_context(self.raw) };
    }
}

impl Drop for UserQueue {
    fn drop(&mut self) {
        // SAFETY: the one reference of this value.
        let _ = unsafe { queue::release_command_queue(self.0) };
    }
}

impl Drop for UserGate {
    fn drop(&mut self) {
        let _ = event::set_user_event_status(self.0, event::CL_COMPLETE);
        // SAFETY: the one reference of this value; commands that wait for it keep references.
        let _ = unsafe { event::release_event(self.0) };
    }
}

impl Drop for UserBuffer {
    fn drop(&mut self) {
        // SAFETY: the one reference of this value; commands in flight keep references.
        let _ = unsafe { memory::release_mem_object(self.raw) };
    }
}
