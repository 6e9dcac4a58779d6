//! Puts into pages of a window whose indices lie in memory of the origin's device.

use gapless::{DeviceBuf, Error, Layout, Place, View, Window};
use std::ops::Range;
use std::time::Instant;

/// Puts `view` into pages of rank `rank`, at the indices that words `list` of `table` are, and waits until they have
/// ended. Gives the seconds that the call took which began it.
///
/// # Errors
/// As of [`Window::put`] and [`Window::flush`].
pub fn put(
    window: &Window<u8, DeviceBuf>,
    view: &View<'_>,
    rank: u32,
    (page, stride): (&Layout, u64),
    (table, list): (&DeviceBuf, Range<u64>),
) -> Result<f64, Error> {
    let indices = table.region().sub(4 * list.start, 4 * (list.end - list.start));
    let indices = indices.map_err(gapless_mem::DeviceError::from)?;
    // SAFETY: `table` is borrowed until the put has ended, which the scope waits for.
    let place = unsafe { Place::device_pages(0, page, stride, (indices, false)) };
    begun(window, view, rank, place)
}

/// The same at any place.
///
/// # Errors
/// As there.
pub fn begun(
    window: &Window<u8, DeviceBuf>,
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
