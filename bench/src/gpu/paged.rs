//! Puts into pages of a window, and gets out of them, whose indices lie in memory of the origin's device.

use gapless::{DeviceBuf, Error, Layout, Place, View, ViewMut, Window};
use std::ops::Range;
use std::time::Instant;

/// Puts `view` into pages of rank `rank`, from byte `at` on, at the indices that words `list` of `table` are, and waits
/// until they have ended. Gives the seconds that the call took which began it.
///
/// # Errors
/// As of [`Window::put`] and [`Window::flush`].
pub fn put<M>(
    window: &Window<u8, M>,
    view: &View<'_>,
    (rank, at): (u32, u64),
    page: (&Layout, u64),
    list: (&DeviceBuf, Range<u64>),
) -> Result<f64, Error> {
    // SAFETY: the table is borrowed until the put has ended, which the scope waits for.
    let place = unsafe { place(at, page, list) }?;
    begun(window, view, rank, place)
}

/// The same the other way round.
///
/// # Errors
/// As of [`Window::get`] and [`Window::flush`].
pub fn get<M>(
    window: &Window<u8, M>,
    view: ViewMut<'_>,
    rank: u32,
    page: (&Layout, u64),
    list: (&DeviceBuf, Range<u64>),
) -> Result<(), Error> {
    // SAFETY: the table is borrowed until the get has ended, which the flush waits for.
    let place = unsafe { place(0, page, list) }?;
    window.get(view, rank, place)?;
    window.flush(rank)
}

/// # Safety
/// The table outlives all operations at this place.
unsafe fn place(
    at: u64,
    (page, stride): (&Layout, u64),
    (table, list): (&DeviceBuf, Range<u64>),
) -> Result<Place, Error> {
    let indices = table.region().sub(4 * list.start, 4 * (list.end - list.start));
    let indices = indices.map_err(gapless_mem::DeviceError::from)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { Place::device_pages(at, page, stride, (indices, false)) })
}

/// The same at any place.
///
/// # Errors
/// As there.
pub fn begun<M>(
    window: &Window<u8, M>,
    view: &View<'_>,
    rank: u32,
    place: Place,
) -> Result<f64, Error> {
    window.scope(|scope| {
        let began = Instant::now();
        let _ = scope.put(view, rank, place, None)?;
        Ok(began.elapsed().as_secs_f64())
    })
}
