//! Checks of a program's own handles: whether context, device, queue and buffer belong together.
//!
//! Not all drivers refuse a command on objects of different contexts: PoCL carries it out. So the handles are asked: a
//! queue once, when a device is made with it, and a buffer that was not allocated here once in its life (`asked.rs`); but
//! whether it is mapped is asked whenever it is used.

use crate::OpenClError;
use crate::asked::{self, BufferFacts};
use crate::sys::{self, Context, Named, Queue};
use gapless_mem::Region;
use opencl3::command_queue as queue;
use opencl3::context::context;
use opencl3::memory;
use opencl3::types::cl_device_id;

/// Refuses a device that is none of the context's.
pub(crate) fn check_device(context: &Context, device: cl_device_id) -> Result<(), OpenClError> {
    let devices = context::get_context_info(context.raw(), context::CL_CONTEXT_DEVICES);
    let devices = Vec::<isize>::from(devices.named("clGetContextInfo")?);
    if devices.iter().any(|one| one.cast_unsigned() as u64 == sys::number(device)) {
        return Ok(());
    }
    Err(OpenClError::WrongDevice {
        device: sys::number(device),
        context: sys::number(context.raw()),
    })
}

/// Refuses a queue of another context or device, and one that is out of order.
pub(crate) fn check_queue(
    queue: &Queue,
    context: &Context,
    device: cl_device_id,
) -> Result<(), OpenClError> {
    let ask =
        |what| queue::get_command_queue_info(queue.raw(), what).named("clGetCommandQueueInfo");
    let handle = |what| ask(what).map(|found| isize::from(found).cast_unsigned() as u64);
    let refused = |reason| Err(OpenClError::WrongQueue { queue: sys::number(queue.raw()), reason });
    if handle(queue::CL_QUEUE_CONTEXT)? != sys::number(context.raw()) {
        return refused("it belongs to another context");
    }
    if handle(queue::CL_QUEUE_DEVICE)? != sys::number(device) {
        return refused("it belongs to another device");
    }
    let properties = u64::from(ask(queue::CL_QUEUE_PROPERTIES)?);
    if properties & queue::CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE != 0 {
        return refused("it is out of order, and work on it must be in order");
    }
    Ok(())
}

/// The host memory that a program's own buffer was made of (`CL_MEM_USE_HOST_PTR`), or 0; 1 if the driver does not say.
pub(crate) fn host_address(region: &Region) -> u64 {
    let buffer = sys::pointer(region.address());
    if buffer.is_null() {
        return 0;
    }
    let asked = memory::get_mem_object_info(buffer, memory::CL_MEM_HOST_PTR);
    asked.map_or(1, |address| isize::from(address).cast_unsigned() as u64)
}

/// Bytes of the buffer that a region lies in, which is a program's own.
///
/// # Errors
/// [`OpenClError::WrongBuffer`] if it is not a buffer of this context, or its memory is mapped.
pub(crate) fn buffer_len(region: &Region, context: &Context) -> Result<u64, OpenClError> {
    let buffer = sys::pointer(region.address());
    let refuse = |reason| OpenClError::WrongBuffer { buffer: region.address(), reason };
    if buffer.is_null() {
        return Err(refuse("it is no handle"));
    }
    let ask = |what| memory::get_mem_object_info(buffer, what).named("clGetMemObjectInfo");
    let facts = asked::facts(buffer, || {
        if u32::from(ask(memory::CL_MEM_TYPE)?) != memory::CL_MEM_OBJECT_BUFFER {
            return Err(refuse("it is an image or a pipe"));
        }
        let context = isize::from(ask(memory::CL_MEM_CONTEXT)?).cast_unsigned() as u64;
        Ok(BufferFacts { context, len: usize::from(ask(memory::CL_MEM_SIZE)?) as u64 })
    })?;
    if facts.context != sys::number(context.raw()) {
        return Err(refuse("it belongs to another context"));
    }
    if u32::from(ask(memory::CL_MEM_MAP_COUNT)?) != 0 {
        return Err(refuse("it is mapped: the program unmaps it first"));
    }
    Ok(facts.len)
}
