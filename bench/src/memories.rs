//! Memory of any kind that messages between two processes lie in.

use gapless::{DeviceBuf, Layout, RegisteredBuf, SharedBuf, Space, View, ViewMut, World};
use gapless_layouts::Side;
use gapless_mem::DeviceError;

use crate::clock::alone;
use crate::error::Failure;
use crate::experiment::Common;
use crate::gpu::copied;
use crate::random::Random;

/// Which memory of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Heap,
    /// From [`World::alloc`].
    Alloc,
    /// By [`World::register`], with the devices that are open.
    Registered,
}

/// Memory that messages lie in.
pub(crate) enum Memory {
    Alloc(SharedBuf),
    Heap(Vec<u8>),
    Registered(RegisteredBuf<u8>),
    Device(DeviceBuf),
}

impl Memory {
    pub(crate) fn new(
        world: &World,
        space: Option<Space>,
        wanted: Wanted,
        len: usize,
    ) -> Result<Memory, Failure> {
        Ok(match space {
            Some(space) => Memory::Device(world.alloc_device(space, len as u64)?),
            None => match wanted {
                Wanted::Heap => Memory::Heap(vec![0; len]),
                Wanted::Alloc => Memory::Alloc(world.alloc(len)?),
                Wanted::Registered => {
                    Memory::Registered(world.register(vec![0; len]).map_err(gapless::Error::from)?)
                }
            },
        })
    }

    pub(crate) fn fill(&mut self, bytes: &[u8]) -> Result<(), DeviceError> {
        match self {
            Memory::Alloc(memory) => memory.copy_from_slice(bytes),
            Memory::Heap(memory) => memory.copy_from_slice(bytes),
            Memory::Registered(memory) => memory.copy_from_slice(bytes),
            Memory::Device(memory) => copied::down(memory, bytes)?,
        }
        Ok(())
    }

    pub(crate) fn fetch(&self, len: usize) -> Result<Vec<u8>, DeviceError> {
        match self {
            Memory::Alloc(memory) => Ok(memory[..len].to_vec()),
            Memory::Heap(memory) => Ok(memory[..len].to_vec()),
            Memory::Registered(memory) => Ok(memory[..len].to_vec()),
            Memory::Device(memory) => {
                let mut bytes = vec![0; len];
                copied::up(&mut bytes, memory)?;
                Ok(bytes)
            }
        }
    }

    pub(crate) fn view(&self, side: &Side, layout: &Layout) -> Result<View<'_>, gapless::Error> {
        match self {
            Memory::Alloc(memory) => View::typed(&memory[..], side.origin, layout, side.count),
            Memory::Heap(memory) => View::typed(&memory[..], side.origin, layout, side.count),
            Memory::Registered(memory) => View::typed(&memory[..], side.origin, layout, side.count),
            Memory::Device(memory) => memory.view(side.origin, layout, side.count),
        }
    }

    pub(crate) fn view_mut(
        &mut self,
        side: &Side,
        layout: &Layout,
    ) -> Result<ViewMut<'_>, gapless::Error> {
        match self {
            Memory::Alloc(memory) => {
                ViewMut::typed(&mut memory[..], side.origin, layout, side.count)
            }
            Memory::Heap(memory) => {
                ViewMut::typed(&mut memory[..], side.origin, layout, side.count)
            }
            Memory::Registered(memory) => {
                ViewMut::typed(&mut memory[..], side.origin, layout, side.count)
            }
            Memory::Device(memory) => memory.view_mut(side.origin, layout, side.count),
        }
    }
}

/// The contents of a side's buffer.
pub(crate) fn contents(side: &Side, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(side.buffer_bytes).unwrap_or(0)];
    Random::new(seed).fill(&mut bytes);
    bytes
}

pub(crate) fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Its name in reports and errors.
pub(crate) const BUS_COPY: &str = "bus copy";

/// Median seconds of a device's own copies of so many bytes over the bus, in the direction of the message: with memory
/// from [`World::alloc`], which the device knows, and with ordinary memory. 0 of the host.
pub(crate) fn bus_copies(
    world: &World,
    common: &Common,
    memory: &mut Memory,
    (out, bytes): (bool, u64),
) -> Result<[f64; 2], Failure> {
    let Memory::Device(memory) = memory else { return Ok([0.0; 2]) };
    let len = index(bytes.min(memory.region().len()));
    let (mut known, mut ordinary) = (world.alloc(len)?, vec![0u8; len]);
    let mut found = [0.0; 2];
    for (near, found) in [&mut known[..], &mut ordinary[..]].into_iter().zip(&mut found) {
        let mut failed = None;
        let copy = || {
            let copied = if out { copied::up(near, memory) } else { copied::down(memory, near) };
            failed = failed.take().or(copied.err());
        };
        let time = alone(common.seconds(), copy).map_err(Failure::samples(BUS_COPY))?;
        failed.map_or(Ok(()), Err)?;
        *found = time.median;
    }
    Ok(found)
}
