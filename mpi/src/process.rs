//! What there is from init to finalize: the world, and its two communicators.

use crate::comm::CommObject;
use crate::errhandler::{self, Handler};
use crate::face;
use gapless::World;
use std::ffi::c_int;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use std::sync::{PoisonError, RwLock};
use std::thread::ThreadId;

/// What there is while MPI is initialized. It stays in memory for ever, as handles of `MPI_COMM_WORLD` do.
#[derive(Debug)]
pub(crate) struct Process {
    /// `None` once it was finalized.
    world: RwLock<Option<World>>,
    pub(crate) comm_world: CommObject,
    pub(crate) comm_self: CommObject,
    pub(crate) main_thread: ThreadId,
}

/// Where the process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    Before = 0,
    Open = 1,
    Finalized = 2,
}

static STAGE: AtomicU8 = AtomicU8::new(0);
/// Whether this machine has a driver of CUDA devices, so that any pointer may be memory of one.
static HAS_DEVICES: AtomicBool = AtomicBool::new(false);
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

pub(crate) fn stage() -> Stage {
    match STAGE.load(Ordering::Acquire) {
        0 => Stage::Before,
        1 => Stage::Open,
        _ => Stage::Finalized,
    }
}

#[inline]
pub(crate) fn is_open() -> bool {
    STAGE.load(Ordering::Acquire) == Stage::Open as u8
}

/// Whether drivers of devices are asked where memory lies. Without a driver nothing is asked.
#[inline]
pub(crate) fn has_devices() -> bool {
    HAS_DEVICES.load(Ordering::Relaxed)
}

/// What there is, from init on.
#[inline]
pub(crate) fn get() -> Option<&'static Process> {
    // SAFETY: it is null, or what `open` leaked.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// A function was called before init, or after finalize: there is no communicator whose handler could be told, so the
/// initial one is (MPI 4.1 §9.3), which ends the process.
#[cold]
pub(crate) fn not_open(name: &'static str) -> c_int {
    let when = match stage() {
        Stage::Finalized => "after MPI was finalized",
        _ => "before MPI was initialized",
    };
    errhandler::fatal(name, face::ERR_OTHER, &format!("it was called {when}"))
}

impl Process {
    /// The world has been joined.
    pub(crate) fn open(world: World) -> &'static Process {
        let of = |comm: &gapless::Communicator, name| {
            CommObject::new(comm.clone(), Handler::FATAL, name)
        };
        let (comm_world, comm_self) =
            (of(world.comm(), "MPI_COMM_WORLD"), of(world.self_comm(), "MPI_COMM_SELF"));
        let (world, main_thread) = (RwLock::new(Some(world)), std::thread::current().id());
        let process = Box::leak(Box::new(Process { world, comm_world, comm_self, main_thread }));
        HAS_DEVICES.store(Path::new("/dev/nvidiactl").exists(), Ordering::Relaxed);
        PROCESS.store(process, Ordering::Release);
        STAGE.store(Stage::Open as u8, Ordering::Release);
        process
    }

    /// Leaves the world: collective over all processes.
    pub(crate) fn finalize(&self) -> Result<(), gapless::Error> {
        let world = self.world.write().unwrap_or_else(PoisonError::into_inner).take();
        STAGE.store(Stage::Finalized as u8, Ordering::Release);
        world.map_or(Ok(()), World::finalize)
    }

    /// Does something with the world; `None` if it was finalized.
    pub(crate) fn with_world<T>(&self, act: impl FnOnce(&World) -> T) -> Option<T> {
        self.world.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(act)
    }
}
