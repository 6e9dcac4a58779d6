//! What there is while MPI is in use: the world, its two communicators, and who uses them.
//!
//! The world model (`MPI_Init`) is one user of the world; each session is another. The world is joined for the first user,
//! and left after the last one: by `MPI_Finalize`, or by the last session if that comes later. If there were sessions
//! alone, the world stays for sessions to come, and is left when the process exits.

use crate::arg::lock;
use crate::call::Done;
use crate::comm::CommObject;
use crate::errhandler::{self, Handler};
use crate::face;
use gapless::{Communicator, World};
use std::ffi::c_int;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use std::sync::{Mutex, Once, PoisonError, RwLock};

/// What there is once MPI was in use. It stays in memory for ever, as handles of `MPI_COMM_WORLD` do.
pub(crate) struct Process {
    /// `None` once it was left.
    world: RwLock<Option<World>>,
    pub(crate) comm_world: CommObject,
    pub(crate) comm_self: CommObject,
    /// Copies between memory of different kinds are messages of its one rank.
    pub(crate) copies: Mutex<Option<Communicator>>,
}

/// Where the world model stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    Before = 0,
    Open = 1,
    Finalized = 2,
}

/// Who uses the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    WorldModel,
    Session,
}

static STAGE: AtomicU8 = AtomicU8::new(0);
/// Whether this machine has a driver of CUDA devices, so that any pointer may be memory of one.
static HAS_DEVICES: AtomicBool = AtomicBool::new(false);
static THREADED: AtomicBool = AtomicBool::new(false);
/// Whether there is a user.
static OPEN: AtomicBool = AtomicBool::new(false);
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());
/// How many sessions there are. Who joins or leaves has it locked.
static SESSIONS: Mutex<usize> = Mutex::new(0);

pub(crate) fn stage() -> Stage {
    match STAGE.load(Ordering::Acquire) {
        0 => Stage::Before,
        1 => Stage::Open,
        _ => Stage::Finalized,
    }
}

#[inline]
pub(crate) fn is_open() -> bool {
    OPEN.load(Ordering::Acquire)
}

/// Whether threads of the program may call MPI at the same time (`MPI_THREAD_MULTIPLE` was asked for).
#[inline]
pub(crate) fn is_threaded() -> bool {
    THREADED.load(Ordering::Relaxed)
}

/// The program has asked for that.
pub(crate) fn set_threaded() {
    THREADED.store(true, Ordering::Relaxed);
}

/// Whether drivers of devices are asked where memory lies. Without a driver nothing is asked.
#[inline]
pub(crate) fn has_devices() -> bool {
    HAS_DEVICES.load(Ordering::Relaxed)
}

/// What there is, from the first user on.
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

/// One more user. The first one joins the world, which waits for the other processes of the job.
pub(crate) fn join(user: User) -> Done {
    let mut sessions = lock(&SESSIONS);
    if get().and_then(|process| process.with_world(|_| ())).is_none() {
        crate::datatype::choose_matching()?;
        Process::open(World::init()?);
    }
    match user {
        User::WorldModel => STAGE.store(Stage::Open as u8, Ordering::Release),
        User::Session => *sessions += 1,
    }
    OPEN.store(true, Ordering::Release);
    Ok(())
}

/// One user less. The last one leaves the world, which is collective over all processes.
pub(crate) fn leave(user: User) -> Done {
    static AT_EXIT: Once = Once::new();
    let mut sessions = lock(&SESSIONS);
    match user {
        User::WorldModel => STAGE.store(Stage::Finalized as u8, Ordering::Release),
        User::Session => *sessions -= 1,
    }
    if *sessions > 0 || stage() == Stage::Open {
        return Ok(());
    }
    OPEN.store(false, Ordering::Release);
    if stage() == Stage::Before {
        AT_EXIT.call_once(|| {
            // SAFETY: the function lives as long as the process.
            unsafe { libc::atexit(at_exit) };
        });
        return Ok(());
    }
    get().map_or(Ok(()), Process::finalize)
}

/// Leaves a world that sessions alone had used, and have finalized.
extern "C" fn at_exit() {
    let leave = || {
        if !is_open()
            && let Some(process) = get()
            && let Err(fail) = process.finalize()
        {
            crate::call::say(format_args!(
                "gapless: the job could not be left in good order: {}",
                fail.why
            ));
        }
    };
    let _ = std::panic::catch_unwind(leave);
}

impl Process {
    /// The world has been joined.
    fn open(world: World) {
        let of = |comm: &Communicator, name| CommObject::new(comm.clone(), Handler::FATAL, name);
        let (comm_world, comm_self) =
            (of(world.comm(), "MPI_COMM_WORLD"), of(world.self_comm(), "MPI_COMM_SELF"));
        HAS_DEVICES.store(Path::new("/dev/nvidiactl").exists(), Ordering::Relaxed);
        let (world, copies) = (RwLock::new(Some(world)), Mutex::default());
        let process = Process { world, comm_world, comm_self, copies };
        PROCESS.store(Box::leak(Box::new(process)), Ordering::Release);
    }

    /// Leaves the world: collective over all processes.
    fn finalize(&self) -> Done {
        let world = self.world.write().unwrap_or_else(PoisonError::into_inner).take();
        Ok(world.map_or(Ok(()), World::finalize)?)
    }

    /// Does something with the world; `None` if it was left.
    pub(crate) fn with_world<T>(&self, act: impl FnOnce(&World) -> T) -> Option<T> {
        self.world.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(act)
    }
}
