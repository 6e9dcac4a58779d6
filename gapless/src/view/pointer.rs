//! Views by a pointer alone, as MPI has them: what memory it leads to is said by the layout, or asked of the driver.
//!
//! Aji et al. 2012 (MPI-ACC, §II.C) have three ways for a library to learn it. All are here:
//!
//! | way | call | costs |
//! |---|---|---|
//! | explicit | [`View::of_region`] of a [`Region`](gapless_mem::Region) in a space | what any layout of one's own costs |
//! | attribute | [`in_space`] makes an accelerator variant of a datatype, [`View::of_pointer`] follows it | a look into the layout more |
//! | detection | [`View::detect`] | a question to the driver; while nobody has opened it, one to the linker |
//!
//! Answers of the driver are not remembered: only it can tell that memory was freed.

use super::{View, ViewMut};
#[cfg(not(any(feature = "cuda", feature = "opencl")))]
use crate::accelerators::space_at;
use crate::error::Error;
use gapless_dtype::{Datatype, Layout, MemoryKind};
use gapless_engine::Typed;
#[cfg(any(feature = "cuda", feature = "opencl"))]
use gapless_gpu::space_at;
use gapless_mem::{Device, Space};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

static CHECKS: AtomicBool = AtomicBool::new(false);

/// Turns a check on or off, in the whole process: what a datatype says of a pointer's memory is compared with what the
/// driver knows whenever a view is made of it. It is off at first. A pointer that lies elsewhere is
/// [`Error::WrongMemory`].
pub fn check_kinds(yes: bool) {
    CHECKS.store(yes, Ordering::Relaxed);
}

/// Devices of kinds that Gapless does not know, which programs have handed over; and whether there ever was one.
static HANDED_OVER: RwLock<Vec<Weak<dyn Device>>> = RwLock::new(Vec::new());
static HAS_HANDED_OVER: AtomicBool = AtomicBool::new(false);

/// From now on, as long as it lives, the device is asked for its addresses. Those of other kinds are found by their
/// drivers.
pub(crate) fn detect_memory_of(device: &Arc<dyn Device>) {
    if !matches!(device.space(), Space::Device { .. }) {
        return;
    }
    let device = Arc::downgrade(device);
    let mut devices = HANDED_OVER.write().unwrap_or_else(PoisonError::into_inner);
    // Nobody changes places: others may be looking.
    match devices.iter_mut().find(|old| old.strong_count() == 0 || old.ptr_eq(&device)) {
        Some(old) => *old = device,
        None => devices.push(device),
    }
    HAS_HANDED_OVER.store(true, Ordering::Relaxed);
}

#[cold]
fn handed_over(address: u64) -> Option<Space> {
    // A device is asked, and perhaps dropped, without the lock.
    let devices = || HANDED_OVER.read().unwrap_or_else(PoisonError::into_inner);
    let device = |at| devices().get(at).cloned();
    (0..).map_while(device).find_map(|device| device.upgrade()?.locate(address))
}

/// An accelerator variant of a datatype: buffers of it, and of types that are made of it, lie in `space`. So
/// [`View::of_pointer`] of its layout takes a device pointer, or the `cl_mem` of an OpenCL space.
///
/// ```
/// use gapless::{Datatype, Primitive, Space, in_space, space_of};
///
/// let double = in_space(&Datatype::from(Primitive::Double), Space::Cuda { device: 0 })?;
/// let column = Datatype::vector(64, 1, 64, &double)?.commit()?;
/// assert_eq!(space_of(&column), Space::Cuda { device: 0 });
/// # Ok::<(), gapless::Error>(())
/// ```
///
/// # Errors
/// As [`Datatype::in_memory`].
pub fn in_space(datatype: &Datatype, space: Space) -> Result<Datatype, Error> {
    Ok(datatype.in_memory(kind(space))?)
}

/// In which space buffers of a layout lie, as its datatype said when it was committed; the host's, if it did not.
#[must_use]
#[inline]
pub fn space_of(layout: &Layout) -> Space {
    match layout.memory_kind() {
        None => Space::Host,
        Some(kind) => space(kind),
    }
}

/// In which space an address lies: the host's, unless the driver knows it as a device's or as managed memory, or a
/// device that was [handed over](crate::Builder::device) does. While nobody in this process has opened the driver, the
/// linker is asked whether anything was loaded, and nobody else. No address is an OpenCL buffer's. Without the feature
/// `cuda` nobody asks the driver, so memory of a GPU is taken for the host's.
#[must_use]
#[inline]
pub fn detect_space(pointer: *const c_void) -> Space {
    let address = pointer.addr() as u64;
    match space_at(address) {
        Some(space) => space,
        None if HAS_HANDED_OVER.load(Ordering::Relaxed) => {
            handed_over(address).unwrap_or(Space::Host)
        }
        None => Space::Host,
    }
}

fn kind(space: Space) -> MemoryKind {
    MemoryKind(match space {
        Space::Host => [0; 4],
        Space::Pinned => [1, 0, 0, 0],
        Space::Managed => [2, 0, 0, 0],
        Space::Cuda { device } => [3, device.into(), 0, 0],
        Space::OpenCl { context, device, queue } => [4, context, device, queue.unwrap_or(0)],
        Space::Device { kind, device } => [5, device.into(), number_of(kind), 0],
    })
}

/// The kinds of devices that Gapless does not know, in the order in which datatypes have named them.
static KINDS: RwLock<Vec<&'static str>> = RwLock::new(Vec::new());

/// Which of [`KINDS`] it is, from now on if it was none.
fn number_of(kind: &'static str) -> u64 {
    let mut kinds = KINDS.write().unwrap_or_else(PoisonError::into_inner);
    let known = kinds.iter().position(|known| *known == kind);
    known.unwrap_or_else(|| {
        kinds.push(kind);
        kinds.len() - 1
    }) as u64
}

#[cold]
fn device_of(kind: u64, device: u32) -> Option<Space> {
    let kinds = KINDS.read().unwrap_or_else(PoisonError::into_inner);
    let kind = kinds.get(usize::try_from(kind).ok()?)?;
    Some(Space::Device { kind, device })
}

/// What [`kind`] has written; the host for what it never writes.
fn space(MemoryKind(words): MemoryKind) -> Space {
    let ordinal = || u32::try_from(words[1]).unwrap_or(u32::MAX);
    match words[0] {
        1 => Space::Pinned,
        2 => Space::Managed,
        3 => Space::Cuda { device: ordinal() },
        4 => {
            let queue = Some(words[3]).filter(|queue| *queue != 0);
            Space::OpenCl { context: words[1], device: words[2], queue }
        }
        5 => device_of(words[2], ordinal()).unwrap_or(Space::Host),
        _ => Space::Host,
    }
}

/// The space that a layout names for a pointer.
#[inline]
fn named_space(pointer: *const c_void, layout: &Layout, count: u64) -> Result<Space, Error> {
    let named = space_of(layout);
    if CHECKS.load(Ordering::Relaxed) && count > 0 && layout.size() > 0 {
        compare(first(pointer, layout, count)?, named)?;
    }
    Ok(named)
}

/// The space that instances lie in, as the driver knows it; the host's, if they have no bytes.
#[inline]
fn found_space(pointer: *const c_void, layout: &Layout, count: u64) -> Result<Space, Error> {
    if count == 0 || layout.size() == 0 {
        return Ok(Space::Host);
    }
    Ok(detect_space(first(pointer, layout, count)?))
}

/// The first byte that instances touch: displacement 0 may lie elsewhere.
#[inline]
fn first(pointer: *const c_void, layout: &Layout, count: u64) -> Result<*const c_void, Error> {
    let low = isize::try_from(Typed::lowest_byte(layout, count)?).unwrap_or(0);
    Ok(pointer.wrapping_byte_offset(low))
}

/// Instances at a pointer, in the space that `space` tells.
#[inline]
fn at_pointer(
    pointer: *const c_void,
    layout: &Layout,
    count: u64,
    space: impl FnOnce(*const c_void, &Layout, u64) -> Result<Space, Error>,
) -> Result<Typed, Error> {
    let space = space(pointer, layout, count)?;
    Ok(Typed::at(space, pointer.expose_provenance() as u64, layout, count)?)
}

/// Compares what a layout says with what the driver knows. Of handles of OpenCL nothing is known, nor need devices that
/// were handed over know their addresses.
fn compare(pointer: *const c_void, named: Space) -> Result<(), Error> {
    let found = detect_space(pointer);
    let alike = match named {
        Space::OpenCl { .. } => found == Space::Host,
        Space::Pinned => found == Space::Host,
        Space::Device { .. } => found == Space::Host || named == found,
        named => named == found,
    };
    if alike {
        Ok(())
    } else {
        Err(Error::WrongMemory { address: pointer.addr() as u64, named, found })
    }
}

impl<'a> View<'a> {
    /// `count` instances of `layout`, displacement 0 at `pointer`, in the space that the layout names ([`in_space`]).
    ///
    /// # Safety
    /// As [`View::of_region`], for memory from displacement 0, or from the lowest byte that the instances touch before,
    /// to the last that they touch.
    ///
    /// # Errors
    /// The instances reach outside the address space, or begin before an OpenCL buffer; their bytes overflow 64 bits;
    /// [`Error::WrongMemory`] under [`check_kinds`].
    #[inline]
    pub unsafe fn of_pointer(
        pointer: *const c_void,
        layout: &Layout,
        count: u64,
    ) -> Result<View<'a>, Error> {
        let typed = at_pointer(pointer, layout, count, named_space)?;
        Ok(View { typed, memory: PhantomData })
    }

    /// `count` instances of `layout`, displacement 0 at `pointer`, in the space that [`detect_space`] finds, whatever
    /// the layout says.
    ///
    /// # Safety
    /// What [`detect_space`] finds is true: without the feature `cuda` it knows no memory of GPUs. And as
    /// [`View::of_region`], for memory from displacement 0, or from the lowest byte that the instances touch before,
    /// to the last that they touch.
    ///
    /// # Errors
    /// The instances reach outside the address space; their bytes overflow 64 bits.
    #[inline]
    pub unsafe fn detect(
        pointer: *const c_void,
        layout: &Layout,
        count: u64,
    ) -> Result<View<'a>, Error> {
        let typed = at_pointer(pointer, layout, count, found_space)?;
        Ok(View { typed, memory: PhantomData })
    }
}

impl<'a> ViewMut<'a> {
    /// As [`View::of_pointer`], to be written.
    ///
    /// # Safety
    /// As [`ViewMut::of_region`], for the memory that [`View::of_pointer`] names.
    ///
    /// # Errors
    /// As [`View::of_pointer`].
    #[inline]
    pub unsafe fn of_pointer(
        pointer: *mut c_void,
        layout: &Layout,
        count: u64,
    ) -> Result<ViewMut<'a>, Error> {
        let typed = at_pointer(pointer, layout, count, named_space)?;
        Ok(ViewMut { typed, memory: PhantomData })
    }

    /// As [`View::detect`], to be written.
    ///
    /// # Safety
    /// As [`ViewMut::of_region`], for the memory that [`View::of_pointer`] names.
    ///
    /// # Errors
    /// As [`View::detect`].
    #[inline]
    pub unsafe fn detect(
        pointer: *mut c_void,
        layout: &Layout,
        count: u64,
    ) -> Result<ViewMut<'a>, Error> {
        let typed = at_pointer(pointer, layout, count, found_space)?;
        Ok(ViewMut { typed, memory: PhantomData })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::Primitive;

    #[test]
    fn a_space_is_what_its_kind_says() {
        let opencl = |queue| Space::OpenCl { context: 9, device: 8, queue };
        for named in [
            Space::Host,
            Space::Pinned,
            Space::Managed,
            Space::Cuda { device: 3 },
            opencl(None),
            opencl(Some(7)),
            Space::Device { kind: "fake", device: 1 },
            Space::Device { kind: "hip", device: 1 },
        ] {
            assert_eq!(space(kind(named)), named);
        }
    }

    #[test]
    fn the_layout_says_where_a_pointer_leads() {
        let int = Datatype::from(Primitive::Int);
        let device = in_space(&int, Space::Cuda { device: 2 }).unwrap();
        let (here, there) = (int.commit().unwrap(), device.commit().unwrap());
        let numbers = [1i32, 2, 3];
        let pointer = numbers.as_ptr().cast();
        // SAFETY: `numbers` outlives the view, which only describes it.
        let view = unsafe { View::of_pointer(pointer, &here, 3) }.unwrap();
        assert_eq!((view.packed_bytes(), view.typed.space()), (12, Space::Host));
        // SAFETY: nothing follows the description.
        let view = unsafe { View::of_pointer(pointer, &there, 3) }.unwrap();
        assert_eq!(view.typed.space(), Space::Cuda { device: 2 });
        // SAFETY: as above.
        let view = unsafe { View::detect(pointer, &there, 3) }.unwrap();
        assert_eq!(view.typed.space(), Space::Host);
        // What the layout says of a pointer may be checked.
        let wrong = compare(pointer, Space::Cuda { device: 2 }).unwrap_err().to_string();
        assert!(wrong.contains("cuda:2") && wrong.contains("host"), "{wrong}");
        assert_eq!(compare(pointer, Space::Host), Ok(()));
    }

    #[test]
    fn instances_lie_around_their_pointer() {
        let int = Datatype::from(Primitive::Int);
        let before = Datatype::hindexed_block(1, &[-8, 4], &int).unwrap().commit().unwrap();
        let numbers = [0i32; 6];
        // SAFETY: bytes -8..8 around the third number are `numbers`'.
        let view = unsafe { View::of_pointer(numbers[2..].as_ptr().cast(), &before, 1) }.unwrap();
        assert_eq!(view.typed.region().start(), numbers.as_ptr() as u64);
        assert_eq!((view.typed.region().len(), view.typed.origin()), (16, 8));
        // SAFETY: refused.
        let low = unsafe { View::of_pointer(std::ptr::without_provenance(4), &before, 1) };
        assert!(matches!(low, Err(Error::Buffer(_))), "{low:?}");
        // SAFETY: no bytes.
        let none = unsafe { View::of_pointer(std::ptr::null(), &before, 0) }.unwrap();
        assert_eq!(none.packed_bytes(), 0);
        // A handle is no address: nothing lies before the buffer.
        let buffer = Space::OpenCl { context: 1, device: 2, queue: None };
        let there = in_space(&int, buffer).unwrap();
        let low = Datatype::hindexed_block(1, &[-8], &there).unwrap().commit().unwrap();
        // SAFETY: refused.
        let low = unsafe { View::of_pointer(std::ptr::without_provenance(64), &low, 1) };
        assert!(matches!(low, Err(Error::Buffer(_))), "{low:?}");
    }
}
