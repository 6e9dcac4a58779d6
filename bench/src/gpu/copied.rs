//! Copies by the CUDA driver alone, which windows of device memory are compared with: waited for, one at a time.

use gapless::DeviceBuf;
use gapless_mem::{DeviceError, Region};

/// Rows that are copied.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Bytes of each.
    pub width: u64,
    /// From the start of one to the next.
    pub pitch: u64,
    /// How many.
    pub count: u64,
}

fn first(memory: &DeviceBuf, len: u64) -> Result<Region, DeviceError> {
    Ok(memory.region().sub(0, len)?)
}

/// The first bytes of a buffer into another one.
///
/// # Errors
/// The driver's.
pub fn between(to: &mut DeviceBuf, from: &DeviceBuf, len: u64) -> Result<(), DeviceError> {
    let (device, to, from) = (to.device(), first(to, len)?, first(from, len)?);
    // SAFETY: both are borrowed, one of them exclusively, until the copy has been waited for.
    unsafe { device.copy(to, from, &[]) }?.wait()
}

/// Memory of the host into a buffer.
///
/// # Errors
/// The driver's.
pub fn down(to: &mut DeviceBuf, from: &[u8]) -> Result<(), DeviceError> {
    let (device, to) = (to.device(), first(to, from.len() as u64)?);
    // SAFETY: as in `between`.
    unsafe { device.copy(to, Region::of(from), &[]) }?.wait()
}

/// Memory of the host into a buffer, from byte `at` on.
///
/// # Errors
/// The driver's; the part lies outside.
pub fn down_at(to: &mut DeviceBuf, at: u64, from: &[u8]) -> Result<(), DeviceError> {
    let (device, to) = (to.device(), to.region().sub(at, from.len() as u64)?);
    // SAFETY: as in `between`.
    unsafe { device.copy(to, Region::of(from), &[]) }?.wait()
}

/// A buffer into memory of the host.
///
/// # Errors
/// The driver's.
pub fn up(to: &mut [u8], from: &DeviceBuf) -> Result<(), DeviceError> {
    up_at(to, from, 0)
}

/// A buffer, from byte `at` on, into memory of the host.
///
/// # Errors
/// The driver's; the part lies outside.
pub fn up_at(to: &mut [u8], from: &DeviceBuf, at: u64) -> Result<(), DeviceError> {
    let (device, from) = (from.device(), from.region().sub(at, to.len() as u64)?);
    // SAFETY: as in `between`.
    unsafe { device.copy(Region::of_mut(to), from, &[]) }?.wait()
}

/// Rows of a buffer into another one, where they lie alike.
///
/// # Errors
/// The driver's.
pub fn rows(to: &mut DeviceBuf, from: &DeviceBuf, rows: Rows) -> Result<(), DeviceError> {
    let Rows { width, pitch, count } = rows;
    let (device, len) = (to.device(), pitch * count);
    let (to, from) = (first(to, len)?, first(from, len)?);
    // SAFETY: as in `between`.
    unsafe { device.copy_2d(to, pitch, from, pitch, width, count, &[]) }?.wait()
}
