//! Windows (MPI 4.1 chapter 12).

use crate::arg::{self, CountOut, HandleOut, Out};
use crate::attr::{Attributed, Attributes, Kind};
use crate::call::{Done, Fail, Subject};
use crate::comm::Comm;
use crate::errhandler::Handler;
use crate::face::{self, RawHandle};
use crate::group;
use crate::info::{Info, InfoObject};
use crate::process;
use crate::slots::{Object, Slots};
use gapless::{ReduceOp, Region, Space, WindowFlavor, raw};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

mod operate;
mod sync;

pub(crate) use operate::*;
pub(crate) use sync::*;

/// A window, and what programs hang on it.
#[derive(Debug)]
pub(crate) struct WinObject {
    window: Arc<raw::Window>,
    pub(crate) attributes: Attributes,
    facts: Box<Facts>,
    more: Mutex<More>,
}

/// What predefined attributes are addresses of.
#[derive(Debug)]
struct Facts {
    base: usize,
    size: i64,
    unit: c_int,
    flavor: c_int,
    model: c_int,
}

#[derive(Debug)]
struct More {
    errhandler: Handler,
    name: String,
}

pub(crate) type Win = Object<WinObject>;

static WINS: Slots<WinObject> = Slots::new();

/// The window of a handle.
#[inline]
pub(crate) fn find(handle: RawHandle) -> Option<Win> {
    WINS.get(handle).map(Object::Made)
}

impl WinObject {
    fn new(window: raw::Window) -> Done<WinObject> {
        let me = window.rank();
        let flavor = match window.flavor() {
            WindowFlavor::Allocated => face::WIN_FLAVOR_ALLOCATE,
            WindowFlavor::Shared => face::WIN_FLAVOR_SHARED,
            WindowFlavor::Dynamic => face::WIN_FLAVOR_DYNAMIC,
            _ => face::WIN_FLAVOR_CREATE,
        };
        let base = match window.flavor() {
            WindowFlavor::Dynamic => 0,
            _ => usize::try_from(window.base().start()).unwrap_or(0),
        };
        let facts = Facts {
            base,
            size: window.bytes(me)?.cast_signed(),
            unit: c_int::try_from(window.unit(me)?).unwrap_or(c_int::MAX),
            flavor,
            model: face::WIN_UNIFIED,
        };
        let more = More { errhandler: Handler::FATAL, name: String::new() };
        Ok(WinObject {
            window: Arc::new(window),
            attributes: Attributes::default(),
            facts: Box::new(facts),
            more: Mutex::new(more),
        })
    }

    fn more(&self) -> MutexGuard<'_, More> {
        // It is whole between any two statements.
        self.more.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn errhandler(&self) -> Handler {
        self.more().errhandler.clone()
    }

    pub(crate) fn set_errhandler(&self, errhandler: Handler) {
        let before = std::mem::replace(&mut self.more().errhandler, errhandler);
        drop(before);
    }

    /// A rank of the window. `None`: `MPI_PROC_NULL`.
    #[inline]
    fn target(&self, rank: c_int) -> Done<Option<u32>> {
        match u32::try_from(rank) {
            Ok(rank) if rank < self.window.size() => Ok(Some(rank)),
            _ if rank == face::PROC_NULL => Ok(None),
            _ => {
                let why = format!("there is no rank {rank} among {}", self.window.size());
                Err(Fail::new(face::ERR_RANK, why))
            }
        }
    }
}

impl Attributed for WinObject {
    const KIND: Kind = Kind::Win;

    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// MPI 4.1 §12.2.6: the address of the memory, and addresses of numbers.
    fn predefined(&self, key: c_int) -> Option<usize> {
        let facts = &*self.facts;
        let number: *const c_int = match key {
            face::WIN_BASE => return Some(facts.base),
            face::WIN_SIZE => return Some((&raw const facts.size).expose_provenance()),
            face::WIN_DISP_UNIT => &raw const facts.unit,
            face::WIN_CREATE_FLAVOR => &raw const facts.flavor,
            face::WIN_MODEL => &raw const facts.model,
            _ => return None,
        };
        Some(number.expose_provenance())
    }
}

/// Gives the program a handle of a new window.
fn give(window: Result<raw::Window, gapless::Error>, win: HandleOut) -> Done<()> {
    let full = || Fail::new(face::ERR_NO_MEM, "there are a million windows");
    win.set(WINS.insert(WinObject::new(window?)?).ok_or_else(full)?);
    Ok(())
}

fn size_of(size: i64) -> Done<u64> {
    let negative = |_| Fail::new(face::ERR_SIZE, format!("size is {size}, which is negative"));
    u64::try_from(size).map_err(negative)
}

fn unit_of(unit: i64) -> Done<u64> {
    let bad = || Fail::new(face::ERR_DISP, format!("disp_unit is {unit}, which is not positive"));
    u64::try_from(unit).ok().filter(|unit| *unit > 0).ok_or_else(bad)
}

/// Memory that a program gives, of the host or of a device.
fn memory(base: *const c_void, size: u64) -> Done<Region> {
    if base.is_null() && size > 0 {
        return Err(Fail::new(face::ERR_ARG, "base is a null pointer"));
    }
    let space = match process::has_devices() && size > 0 {
        true => gapless::detect_space(base),
        false => Space::Host,
    };
    Ok(Region::new(space, base.expose_provenance() as u64, 0, size))
}

pub(crate) unsafe fn win_create(
    base: *mut c_void,
    size: i64,
    disp_unit: i64,
    _info: Option<Info>,
    comm: Comm,
    win: HandleOut,
) -> Done {
    let (unit, memory) = (unit_of(disp_unit)?, memory(base, size_of(size)?)?);
    // SAFETY: as the first page of the crate says: the program leaves it to the window, but for accesses that MPI allows.
    give(unsafe { raw::Window::create(&comm.comm, memory, unit) }, win)
}

/// Stores the address of a window's memory.
///
/// # Safety
/// There is room for an address.
unsafe fn give_base(address: u64, baseptr: *mut c_void) -> Done {
    let at = arg::pointer(baseptr, "baseptr")?.cast::<usize>();
    // SAFETY: the caller's promise.
    unsafe { at.write_unaligned(usize::try_from(address).unwrap_or(0)) };
    Ok(())
}

pub(crate) unsafe fn win_allocate(
    size: i64,
    disp_unit: i64,
    _info: Option<Info>,
    comm: Comm,
    baseptr: *mut c_void,
    win: HandleOut,
) -> Done {
    arg::pointer(baseptr, "baseptr")?;
    let window = raw::Window::allocate(&comm.comm, size_of(size)?, unit_of(disp_unit)?)?;
    let base = window.base().start();
    give(Ok(window), win)?;
    // SAFETY: the caller's promise.
    unsafe { give_base(base, baseptr) }
}

pub(crate) unsafe fn win_allocate_shared(
    size: i64,
    disp_unit: i64,
    info: Option<Info>,
    comm: Comm,
    baseptr: *mut c_void,
    win: HandleOut,
) -> Done {
    arg::pointer(baseptr, "baseptr")?;
    let (size, unit) = (size_of(size)?, unit_of(disp_unit)?);
    let apart = info.and_then(|info| info.get("alloc_shared_noncontig"));
    // Only if all ranks allow it.
    let (mine, mut all) = ([i32::from(apart.as_deref() == Some("true"))], [0]);
    comm.comm.allreduce(&mine, &mut all, ReduceOp::Min)?;
    let window = raw::Window::allocate_shared(&comm.comm, size, unit, all == [0])?;
    let base = window.base().start();
    give(Ok(window), win)?;
    // SAFETY: the caller's promise.
    unsafe { give_base(base, baseptr) }
}

pub(crate) fn win_create_dynamic(_info: Option<Info>, comm: Comm, win: HandleOut) -> Done {
    give(raw::Window::dynamic(&comm.comm), win)
}

pub(crate) unsafe fn win_attach(win: Win, base: *mut c_void, size: i64) -> Done {
    let memory = memory(base, size_of(size)?)?;
    // SAFETY: as for `win_create`, until it is detached.
    Ok(unsafe { win.window.attach(memory) }?)
}

pub(crate) fn win_detach(win: Win, base: *const c_void) -> Done {
    Ok(win.window.detach(base.expose_provenance() as u64)?)
}

pub(crate) fn win_free(win: HandleOut) -> Done {
    let freed = arg::win(win.get(), "win")?;
    let on = Subject::Win(freed.handle());
    freed.attributes.delete_all(freed.handle()).map_err(|fail| fail.on(on))?;
    let (window, handler) = (Arc::clone(&freed.window), freed.errhandler());
    WINS.free(freed.handle());
    drop(freed);
    win.set(face::WIN_NULL);
    let busy = |_| Fail::new(face::ERR_WIN, "a thread is in a call on the window");
    let window = Arc::try_unwrap(window).map_err(busy);
    let freed = window.and_then(|window| Ok(window.free()?));
    freed.map_err(|fail| fail.on(Subject::Handler(handler, face::WIN_NULL)))
}

pub(crate) unsafe fn win_shared_query(
    win: Win,
    rank: c_int,
    size: Out<i64>,
    disp_unit: CountOut,
    baseptr: *mut c_void,
) -> Done {
    arg::pointer(baseptr, "baseptr")?;
    if win.window.flavor() == WindowFlavor::Dynamic {
        let why = "the window is dynamic: nothing of it is shared";
        return Err(Fail::new(face::ERR_RMA_FLAVOR, why));
    }
    let (address, bytes, unit) = win.window.shared_query(win.target(rank)?)?;
    size.set(bytes.cast_signed());
    disp_unit.set(unit.cast_signed());
    // SAFETY: the caller's promise.
    unsafe { give_base(address, baseptr) }
}

pub(crate) fn win_get_group(win: Win, group: HandleOut) -> Done {
    group::give(win.window.comm().group(), group)
}

/// Hints change nothing: what they promise or ask for is so anyway, or saves nothing.
pub(crate) fn win_set_info(_win: Win, _info: Option<Info>) -> Done {
    Ok(())
}

pub(crate) fn win_get_info(win: Win, info_used: HandleOut) -> Done {
    let all = 0..win.window.size();
    let same = |of: &dyn Fn(u32) -> Result<u64, gapless::Error>| {
        let first = of(0).ok();
        if all.clone().all(|rank| of(rank).ok() == first) { "true" } else { "false" }
    };
    let pairs = [
        ("no_locks", "false"),
        ("accumulate_ordering", "rar,raw,war,waw"),
        ("accumulate_ops", "same_op_no_op"),
        ("mpi_accumulate_granularity", "4096"),
        ("same_size", same(&|rank| win.window.bytes(rank))),
        ("same_disp_unit", same(&|rank| win.window.unit(rank))),
    ];
    InfoObject::of(pairs).give(info_used)
}

pub(crate) fn win_set_name(win: Win, win_name: &CStr) -> Done {
    win.more().name = win_name.to_string_lossy().into_owned();
    Ok(())
}

pub(crate) unsafe fn win_get_name(
    win: RawHandle,
    win_name: *mut c_char,
    resultlen: Out<c_int>,
) -> Done {
    let name = match win {
        face::WIN_NULL => "MPI_WIN_NULL".to_owned(),
        win => arg::win(win, "win")?.more().name.clone(),
    };
    // SAFETY: as the first page of the crate says.
    unsafe { crate::env::give_text(&name, face::MAX_OBJECT_NAME, win_name, resultlen) };
    Ok(())
}
