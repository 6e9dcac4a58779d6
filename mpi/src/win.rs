//! Windows (MPI 4.1 chapter 12).

use crate::arg::{self, CountOut, HandleOut, Out, Text, lock};
use crate::attr::{Attributed, Attributes, Kind};
use crate::call::{Done, Fail, Subject};
use crate::comm::Comm;
use crate::datatype::Type;
use crate::errhandler::{self, Handled, Handler, HandlerSlot};
use crate::face::{self, RawHandle};
use crate::group;
use crate::info::{Hints, Info};
use crate::process;
use crate::slots::{Object, Slots};
use gapless::{Layout, ReduceOp, Region, Space, WindowFlavor, raw};
use std::ffi::{CStr, c_int, c_void};
use std::sync::{Arc, Mutex};

mod operate;
mod sync;

pub(crate) use operate::*;
pub(crate) use sync::*;

/// A window, and what programs hang on it.
pub(crate) struct WinObject {
    window: Arc<raw::Window>,
    attributes: Attributes,
    errhandler: HandlerSlot,
    facts: Box<Facts>,
    name: Mutex<String>,
    hints: Hints,
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

pub(crate) type Win = Object<WinObject>;

static WINS: Slots<WinObject> = Slots::new("windows");

/// The window of a handle.
#[inline]
pub(crate) fn find(handle: RawHandle) -> Option<Win> {
    WINS.get(handle).map(Object::Made)
}

impl WinObject {
    fn new(window: raw::Window, info: Option<Info>) -> Done<WinObject> {
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
        let all = 0..window.size();
        let same = |of: &dyn Fn(u32) -> Result<u64, gapless::Error>| {
            let first = of(0).ok();
            if all.clone().all(|rank| of(rank).ok() == first) { "true" } else { "false" }
        };
        // Of all hints, none changes anything: what they promise or ask for is so anyway, or saves nothing.
        let hints = Hints::new(&[
            ("no_locks", "false"),
            ("accumulate_ordering", "rar,raw,war,waw"),
            ("accumulate_ops", "same_op_no_op"),
            ("mpi_accumulate_granularity", "4096"),
            ("same_size", same(&|rank| window.bytes(rank))),
            ("same_disp_unit", same(&|rank| window.unit(rank))),
        ]);
        hints.set(info);
        Ok(WinObject {
            window: Arc::new(window),
            attributes: Attributes::default(),
            errhandler: HandlerSlot::new(Handler::FATAL),
            facts: Box::new(facts),
            name: Mutex::default(),
            hints,
        })
    }

    /// A rank of the window. `None`: `MPI_PROC_NULL`.
    #[inline]
    fn target(&self, rank: c_int) -> Done<Option<u32>> {
        arg::some_rank(rank, self.window.size())
    }
}

impl Handled for WinObject {
    const KIND: errhandler::Kind = errhandler::Kind::Win;

    fn errhandler(&self) -> &HandlerSlot {
        &self.errhandler
    }
}

/// What an operation does it to: instances of a datatype in the window of a rank.
pub(crate) struct Target {
    rank: c_int,
    displacement: i64,
    count: u64,
    datatype: Type,
}

/// A rank, the displacement, and what is there.
type There<'t> = (u32, i64, (&'t Layout, u64));

impl Target {
    pub(crate) fn new(rank: c_int, displacement: i64, count: u64, datatype: Type) -> Target {
        Target { rank, displacement, count, datatype }
    }

    /// Where that is. `None`: with nobody, with whom nothing is done.
    #[inline]
    fn of(&self, win: &Win) -> Done<Option<There<'_>>> {
        let layout = self.datatype.committed()?;
        let there = |rank| (rank, self.displacement, (layout, self.count));
        Ok(win.target(self.rank)?.map(there))
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

/// Gives the program a handle of a new window, and the address of its memory.
fn give(
    window: Result<raw::Window, gapless::Error>,
    info: Option<Info>,
    baseptr: Option<Out<usize>>,
    win: HandleOut,
) -> Done {
    let object = WinObject::new(window?, info)?;
    baseptr.into_iter().for_each(|at| at.set(object.facts.base));
    win.set(WINS.insert(object)?);
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
    info: Option<Info>,
    comm: Comm,
    win: HandleOut,
) -> Done {
    let (unit, memory) = (unit_of(disp_unit)?, memory(base, size_of(size)?)?);
    // SAFETY: as the first page of the crate says: the program leaves it to the window, but for accesses that MPI allows.
    give(unsafe { raw::Window::create(&comm.comm, memory, unit) }, info, None, win)
}

pub(crate) fn win_allocate(
    size: i64,
    disp_unit: i64,
    info: Option<Info>,
    comm: Comm,
    baseptr: Out<usize>,
    win: HandleOut,
) -> Done {
    let window = raw::Window::allocate(&comm.comm, size_of(size)?, unit_of(disp_unit)?);
    give(window, info, Some(baseptr), win)
}

pub(crate) fn win_allocate_shared(
    size: i64,
    disp_unit: i64,
    info: Option<Info>,
    comm: Comm,
    baseptr: Out<usize>,
    win: HandleOut,
) -> Done {
    let (size, unit) = (size_of(size)?, unit_of(disp_unit)?);
    let apart = info.as_ref().and_then(|info| info.get("alloc_shared_noncontig"));
    // Only if all ranks allow it.
    let (mine, mut all) = ([i32::from(apart.as_deref() == Some("true"))], [0]);
    comm.comm.allreduce(&mine, &mut all, ReduceOp::Min)?;
    let window = raw::Window::allocate_shared(&comm.comm, size, unit, all == [0]);
    give(window, info, Some(baseptr), win)
}

pub(crate) fn win_create_dynamic(info: Option<Info>, comm: Comm, win: HandleOut) -> Done {
    give(raw::Window::dynamic(&comm.comm), info, None, win)
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
    let (window, handler) = (Arc::clone(&freed.window), freed.errhandler.get());
    WINS.free(freed.handle());
    drop(freed);
    win.set(face::WIN_NULL);
    let busy = |_| Fail::new(face::ERR_WIN, "a thread is in a call on the window");
    let window = Arc::try_unwrap(window).map_err(busy);
    let freed = window.and_then(|window| Ok(window.free()?));
    freed.map_err(|fail| fail.on(Subject::Handler(handler, face::WIN_NULL)))
}

pub(crate) fn win_shared_query(
    win: Win,
    rank: c_int,
    size: Out<i64>,
    disp_unit: CountOut,
    baseptr: Out<usize>,
) -> Done {
    if win.window.flavor() == WindowFlavor::Dynamic {
        let why = "the window is dynamic: nothing of it is shared";
        return Err(Fail::new(face::ERR_RMA_FLAVOR, why));
    }
    let (address, bytes, unit) = win.window.shared_query(win.target(rank)?)?;
    size.set(bytes.cast_signed());
    disp_unit.set(unit.cast_signed());
    baseptr.set(usize::try_from(address).unwrap_or(0));
    Ok(())
}

pub(crate) fn win_get_group(win: Win, group: HandleOut) -> Done {
    group::give(win.window.comm().group(), group)
}

pub(crate) fn win_set_info(win: Win, info: Option<Info>) -> Done {
    win.hints.set(info);
    Ok(())
}

pub(crate) fn win_get_info(win: Win, info_used: HandleOut) -> Done {
    win.hints.give(info_used)
}

pub(crate) fn win_set_name(win: Win, win_name: &CStr) -> Done {
    *lock(&win.name) = win_name.to_string_lossy().into_owned();
    Ok(())
}

pub(crate) fn win_get_name(win: RawHandle, win_name: Text) -> Done {
    match win {
        face::WIN_NULL => win_name.give("MPI_WIN_NULL"),
        win => win_name.give(&lock(&arg::win(win, "win")?.name)),
    }
}
