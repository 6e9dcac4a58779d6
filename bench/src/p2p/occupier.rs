//! The kernel that keeps a part of a GPU's multiprocessors busy while messages travel (Wu et al. 2016 §5.4),
//! in the process whose messages they are.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gapless_mem::{Device, Region};
use gapless_mem_cuda::{
    Argument, CudaDevice, CudaDriver, Function, Grid, Module, PinnedBuffer, Stream,
};

use crate::error::Failure;
use crate::gpu::lab::TOOLS;

/// Threads of a block: so many that no multiprocessor holds two.
const THREADS: u32 = 1024;
/// Launches, and how many nanoseconds each keeps a part of the GPU busy unless it is stopped: another process that
/// takes turns with this one must get its own. What is never stopped ends after 20 s.
const IN_PART: (u32, u64) = (200, 100_000_000);
/// The same where all of it is busy: other kernels start between two launches. So each wait for one lasts as long as
/// a launch at most. After 2 s all are over; a stream takes no more launches without waiting.
const IN_FULL: (u32, u64) = (800, 2_500_000);
/// Whoever does not stop for so long hangs.
const PATIENCE: Duration = Duration::from_secs(5);

/// A GPU that can be kept busy.
pub struct Occupier {
    device: Arc<CudaDevice>,
    occupy: Function,
    busy: Stream,
    side: Stream,
    /// Device memory: the word that stops it, and one that is never written. Lives as long as the process.
    stop: Region,
    /// Host memory: 0 and 1.
    words: PinnedBuffer,
    /// Whether it was told to keep the GPU busy.
    on: bool,
}

impl Occupier {
    /// Of the device with this ordinal.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn new(ordinal: u32) -> Result<Occupier, Failure> {
        let device = Arc::new(CudaDriver::load()?.device(ordinal)?);
        // SAFETY: the text is a file of this crate, which NVIDIA's assembler takes; nothing changes it.
        let module = unsafe { Module::load(&device, TOOLS) }?;
        let words = device.pinned(16)?;
        for (at, word) in [(0, 0u32), (8, 1)] {
            // SAFETY: page-locked memory of ours, new; nothing works on it yet.
            unsafe { gapless_mem::write(&words.region(), at, &word.to_le_bytes()) }?;
        }
        Ok(Occupier {
            occupy: module.function(c"occupy")?,
            busy: device.stream()?,
            side: device.stream()?,
            stop: device.allocate(4096)?,
            words,
            device,
            on: false,
        })
    }

    /// Keeps so many hundredths of the multiprocessors busy from now on.
    ///
    /// # Errors
    /// What the driver refuses; a kernel that does not stop.
    pub fn set(&mut self, percent: u32) -> Result<(), Failure> {
        self.stop()?;
        let units = self.device.properties().compute_units;
        let blocks = units * percent.min(100) / 100;
        if blocks == 0 {
            return Ok(());
        }
        self.occupy(blocks, if blocks < units { IN_PART } else { IN_FULL })
    }

    /// Keeps so many multiprocessors busy for so many launches of so many nanoseconds, unless it is stopped.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn occupy(&mut self, blocks: u32, (launches, nanos): (u32, u64)) -> Result<(), Failure> {
        self.on = true;
        self.word(&self.busy, 0)?;
        let stop = self.stop.start();
        let arguments = [Argument::of(&stop), Argument::of(&nanos)];
        for _ in 0..launches {
            // SAFETY: two 64-bit numbers, the first the address of two words of device memory that live
            // as long as the process.
            unsafe { self.occupy.launch(&self.busy, Grid::line(blocks, THREADS), &arguments) }?;
        }
        Ok(())
    }

    /// Stops; gives whether its kernels were still there.
    ///
    /// # Errors
    /// What the driver refuses; a kernel that does not stop.
    pub fn stop(&mut self) -> Result<bool, Failure> {
        if !std::mem::take(&mut self.on) {
            return Ok(false);
        }
        let running = !self.busy.is_idle()?;
        self.word(&self.side, 8)?;
        wait(&self.side)?;
        wait(&self.busy)?;
        Ok(running)
    }

    /// Multiprocessors, and how many of its blocks one holds: 1, or parts of the GPU would not be what they are called.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn occupancy(&self) -> Result<(u32, u32), Failure> {
        let blocks = self.occupy.blocks_per_unit(THREADS, 0)?;
        Ok((self.device.properties().compute_units, blocks))
    }

    /// Whether it was to keep the GPU busy, and its kernels have ended before it was stopped.
    ///
    /// # Errors
    /// What the driver says of the kernels.
    pub fn is_over(&self) -> Result<bool, Failure> {
        Ok(self.on && self.busy.is_idle()?)
    }

    /// Enqueues setting the word that stops it to one of the host's.
    fn word(&self, stream: &Stream, at: u64) -> Result<(), Failure> {
        let piece = |region: Region, at| region.sub(at, 4).map_err(gapless_mem::DeviceError::from);
        let (to, from) = (piece(self.stop, 0)?, piece(self.words.region(), at)?);
        // SAFETY: memory of ours that lives longer than the copy; the kernel reads what it finds.
        Ok(unsafe { self.device.copy_on(stream, to, from) }?)
    }
}

impl Drop for Occupier {
    fn drop(&mut self) {
        // Whatever does not stop ends by itself.
        let _ = self.stop();
    }
}

fn wait(stream: &Stream) -> Result<(), Failure> {
    let begin = Instant::now();
    while !stream.is_idle()? {
        if begin.elapsed() > PATIENCE {
            return Err(Failure::Hangs { seconds: PATIENCE.as_secs() });
        }
        std::hint::spin_loop();
    }
    Ok(())
}
