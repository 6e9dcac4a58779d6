//! Which handles are known to be live: those that a device of this process holds a reference to.
//!
//! OpenCL cannot be asked whether a number is a handle: it follows any number that it is given. Devices and
//! platforms can be listed, contexts and queues cannot. So every [`OpenClDevice`](crate::OpenClDevice) is
//! listed here while it lives, and a space that safe code made up is only followed if its handles are in the
//! list.

use crate::OpenClError;
use crate::detect::detect;
use crate::sys::{self, Context, Queue};
use gapless_mem::Space;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What one device holds references to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handles {
    pub(crate) context: u64,
    pub(crate) device: u64,
    pub(crate) queue: u64,
}

/// Those of all devices of this process, each as often as it has devices.
static LIVE: Mutex<Vec<Handles>> = Mutex::new(Vec::new());

fn live() -> MutexGuard<'static, Vec<Handles>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device holds references from now on.
pub(crate) fn add(handles: Handles) {
    live().push(handles);
}

/// A device is about to give its references up.
pub(crate) fn remove(handles: Handles) {
    let mut live = live();
    if let Some(at) = live.iter().position(|known| *known == handles) {
        live.swap_remove(at);
    }
}

/// References of our own to the context of a space, and to the queue that it names, if any.
///
/// # Errors
/// [`OpenClError::NotOpenCl`]; [`OpenClError::Unknown`] if no device of this process holds them; what the
/// driver answers.
pub(crate) fn retain(space: Space) -> Result<(Context, Option<Queue>), OpenClError> {
    let Space::OpenCl { context, device, queue } = space else {
        return Err(OpenClError::NotOpenCl { space });
    };
    // While this is held, no device gives up what it holds.
    let live = live();
    let same = || live.iter().filter(|known| known.context == context);
    let known = match queue {
        Some(queue) => same().any(|known| (known.device, known.queue) == (device, queue)),
        // A context may have devices that none of ours works with.
        None if same().next().is_some() => {
            same().any(|known| known.device == device)
                || detect().is_ok_and(|all| all.iter().any(|listed| listed.id as u64 == device))
        }
        None => false,
    };
    if !known {
        return Err(OpenClError::Unknown { space });
    }
    // SAFETY: a device that is listed holds a reference to its queue until it has taken itself off the
    // list, which it cannot do before `live` is let go of.
    let retain = |queue| unsafe { Queue::retain(sys::pointer(queue)) };
    let queue = queue.map(retain).transpose()?;
    // SAFETY: as for the queue: a device on the list holds a reference to this context.
    let context = unsafe { Context::retain(sys::pointer(context)) }?;
    Ok((context, queue))
}
