//! What devices cost: launches, copies, kernels on their own memory, the host's and a peer's, and the
//! mapping of another process's memory. Both processes have the first device; what lies between two is
//! measured where there are two.
//!
//! Everything is tried, and what fails is missed with the reason: a device that cannot do something is no
//! reason to know nothing of it.

use super::found::TunedNumbers;
use super::link::LinkTuner;
use crate::failure::Failure;
use gapless::World;
use std::time::Duration;

/// The table of the file.
const TABLE: &str = "device";

#[cfg(not(feature = "cuda"))]
pub(super) fn measure(
    _: &LinkTuner<'_>,
    _: Duration,
    found: &mut TunedNumbers,
) -> Result<(), Failure> {
    found.miss_table(TABLE, "this build has no CUDA engine (feature cuda)");
    Ok(())
}

#[cfg(not(feature = "cuda"))]
pub(super) fn assist(_: &World) -> Result<(), Failure> {
    Ok(())
}

#[cfg(feature = "cuda")]
pub(super) use on_cuda::{assist, measure};

#[cfg(feature = "cuda")]
mod on_cuda {
    use super::super::clock::{copy_seconds, real, repeat, slope_mb_s};
    use super::{Duration, Failure, LinkTuner, TABLE, TunedNumbers, World};
    use crate::tune::host::scattered_doubles;
    use gapless_dtype::{Datatype, Layout, Primitive};
    use gapless_dtype_cuda::GpuEngine;
    use gapless_engine::{Engine, Typed};
    use gapless_mem::{Completion, Device, Export, Region};
    use gapless_mem_cuda::{CudaDevice, CudaDriver, PinnedBuffer};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

    const EXPORT: i32 = 3;
    const IMPORTED: i32 = 4;

    /// Payloads between which bandwidths are measured: within a device, and over slower links.
    const NEAR: [u64; 2] = [64 << 20, 256 << 20];
    const FAR: [u64; 2] = [16 << 20, 64 << 20];

    /// Columns of the matrix half of which is packed: 8 KiB runs.
    const RUN: u64 = 1024;

    /// Runs of 24 bytes in the list.
    const LISTED: u64 = 1 << 20;

    /// Copies that are made one after another.
    const GAPS: u64 = 16;

    /// Nothing here lasts longer; whoever hangs is left.
    const PATIENCE: Duration = Duration::from_secs(10);

    /// Work that was started and has not been seen to end: a device that hangs, or a call that failed half-way,
    /// may still touch any memory that is measured with.
    static OUTSTANDING: AtomicU32 = AtomicU32::new(0);

    /// A device's memory, freed when dropped, unless work is outstanding: then it is left to the process's end.
    struct DeviceMemory {
        device: Arc<CudaDevice>,
        region: Region,
    }

    impl DeviceMemory {
        fn new(device: &Arc<CudaDevice>, len: u64) -> Result<DeviceMemory, String> {
            let region = device.allocate(len).map_err(text)?;
            Ok(DeviceMemory { device: Arc::clone(device), region })
        }

        fn part(&self, len: u64) -> Result<Region, String> {
            self.region.sub(0, len).map_err(text)
        }
    }

    impl Drop for DeviceMemory {
        fn drop(&mut self) {
            if OUTSTANDING.load(Ordering::Relaxed) > 0 {
                return;
            }
            // SAFETY: allocated in `new`, for this value alone; all work that was started has been seen to end.
            let freed = unsafe { self.device.free(self.region) };
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }

    fn text(error: impl std::fmt::Display) -> String {
        error.to_string()
    }

    /// Does work and sees it end, but does not wait for ever. Until then it is outstanding, and for good if it
    /// fails.
    fn finish(begin: impl FnOnce() -> Result<Completion, String>) -> Result<(), String> {
        OUTSTANDING.fetch_add(1, Ordering::Relaxed);
        let completion = begin()?;
        let start = Instant::now();
        while !completion.poll().map_err(text)? {
            if start.elapsed() > PATIENCE {
                return Err(format!("work of {} s without an end", PATIENCE.as_secs()));
            }
            std::hint::spin_loop();
        }
        OUTSTANDING.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    /// What is measured with.
    struct Bed {
        device: Arc<CudaDevice>,
        engine: GpuEngine,
        /// Another device that this one reaches, or why there is none.
        other: Result<Arc<CudaDevice>, String>,
        /// Holds twice the longest payload.
        typed: DeviceMemory,
        packed: DeviceMemory,
        pinned: Result<PinnedBuffer, String>,
        each: Duration,
    }

    impl Drop for Bed {
        fn drop(&mut self) {
            if OUTSTANDING.load(Ordering::Relaxed) > 0 {
                // As for `DeviceMemory`.
                std::mem::forget(std::mem::replace(&mut self.pinned, Err(String::new())));
            }
        }
    }

    fn open() -> Result<(CudaDriver, Arc<CudaDevice>), String> {
        let driver = CudaDriver::load().map_err(text)?;
        if driver.devices() == 0 {
            return Err("there is no CUDA device".to_owned());
        }
        let device = Arc::new(driver.device(0).map_err(text)?);
        Ok((driver, device))
    }

    impl Bed {
        fn new(time: Duration) -> Result<Bed, String> {
            let (driver, device) = open()?;
            let engine = GpuEngine::cuda(Arc::clone(&device)).map_err(text)?;
            let other = Bed::other(&driver, &device);
            let typed = DeviceMemory::new(&device, 2 * NEAR[1])?;
            let packed = DeviceMemory::new(&device, NEAR[1])?;
            let pinned = device.pinned(FAR[1]).map_err(text);
            Ok(Bed { device, engine, other, typed, packed, pinned, each: time.div_f64(40.0) })
        }

        fn other(driver: &CudaDriver, device: &CudaDevice) -> Result<Arc<CudaDevice>, String> {
            if driver.devices() < 2 {
                return Err("there is one device only".to_owned());
            }
            device.enable_peer(1).map_err(text)?;
            driver.device(1).map(Arc::new).map_err(text)
        }

        /// A matrix of which every other run is packed.
        fn strided(&self, bytes: u64) -> Result<Typed, String> {
            let double = Datatype::from(Primitive::Double);
            let rows = bytes / (RUN * 8);
            let layout =
                Datatype::vector(rows, RUN, i64::try_from(2 * RUN).map_err(text)?, &double);
            self.of(&layout.and_then(|layout| layout.commit()).map_err(text)?)
        }

        fn of(&self, layout: &Layout) -> Result<Typed, String> {
            Typed::new(self.typed.region, 0, layout, 1).map_err(text)
        }

        /// Seconds that a pack of all of `typed` into `packed` takes.
        fn pack(&self, typed: &Typed, packed: Region) -> Result<f64, String> {
            repeat(self.each, || {
                // SAFETY: both are memory of this bed, or of the other device, that nothing else uses
                // until the work has ended, which is waited for.
                let work = || unsafe { self.engine.pack(typed, 0..packed.len(), packed, &[]) };
                finish(|| work().map_err(text))
            })
        }

        fn unpack(&self, packed: Region, typed: &Typed) -> Result<f64, String> {
            repeat(self.each, || {
                // SAFETY: as for `pack`.
                let work = || unsafe { self.engine.unpack(packed, typed, 0..packed.len(), &[]) };
                finish(|| work().map_err(text))
            })
        }

        fn copy(&self, to: Region, from: Region) -> Result<f64, String> {
            repeat(self.each, || {
                // SAFETY: as for `pack`.
                let work = || unsafe { self.device.copy(to, from, &[]) };
                finish(|| work().map_err(text))
            })
        }

        /// The bandwidth of something that takes so long for so many bytes.
        fn rate(
            lengths: [u64; 2],
            time: impl Fn(u64) -> Result<f64, String>,
        ) -> Result<f64, String> {
            let [short, long] = lengths;
            Ok(slope_mb_s((short, time(short)?), (long, time(long)?)))
        }

        fn launch(&self, found: &mut TunedNumbers) -> Result<(), String> {
            let typed = Typed::contiguous(self.typed.part(64)?);
            let packed = self.packed.part(64)?;
            found.set(TABLE, "launch_wait_ns", self.pack(&typed, packed)? * 1e9);
            let mut calls = Vec::new();
            for _ in 0..100 {
                finish(|| {
                    let start = Instant::now();
                    // SAFETY: as for `pack`.
                    let work = unsafe { self.engine.pack(&typed, 0..64, packed, &[]) };
                    calls.push(start.elapsed().as_secs_f64());
                    work.map_err(text)
                })?;
            }
            let call = super::super::clock::settled(calls).unwrap_or_default();
            found.set(TABLE, "launch_ns", call * 1e9);
            Ok(())
        }

        /// Kernels and copies within the device.
        fn near(&self, found: &mut TunedNumbers) -> Result<(), String> {
            let one = |bytes: u64| {
                let (typed, packed) = (self.strided(bytes)?, self.packed.part(bytes)?);
                // A message is packed once and unpacked once.
                Ok((self.pack(&typed, packed)? + self.unpack(packed, &typed)?) / 2.0)
            };
            let rate = Bed::rate(NEAR, one)?;
            found.set(TABLE, "pack_mb_s", rate);
            let runs = scattered_doubles(LISTED, 3).map_err(text)?;
            let (bytes, typed) = (runs.size(), self.of(&runs)?);
            let seconds = self.pack(&typed, self.packed.part(bytes)?)?;
            let rest = (seconds - copy_seconds(bytes, rate)).max(0.0);
            found.set(TABLE, "block_ns", rest * 1e9 / real(LISTED));
            let copy = Bed::rate(NEAR, |bytes| {
                self.copy(self.packed.part(bytes)?, self.typed.part(bytes)?)
            });
            set(found, "copy_mb_s", copy);
            Ok(())
        }

        /// Copies between `to` and `from` one after another, against one of all: the rest between them.
        fn gap(&self, found: &mut TunedNumbers, to: Region, from: Region) {
            let gap = || {
                let part = to.len().min(from.len()) / GAPS;
                let whole = self.copy(
                    to.sub(0, part * GAPS).map_err(text)?,
                    from.sub(0, part * GAPS).map_err(text)?,
                )?;
                // Each comes after the one before, so that the end of the last is that of all.
                let apart = repeat(self.each, || {
                    finish(|| {
                        (0..GAPS).try_fold(Completion::Ready, |last, index| {
                            let at = index * part;
                            let to = to.sub(at, part).map_err(text)?;
                            let from = from.sub(at, part).map_err(text)?;
                            // SAFETY: as for `pack`; each part is copied once.
                            unsafe { self.device.copy(to, from, &[last]) }.map_err(text)
                        })
                    })
                })?;
                Ok((apart - whole).max(0.0) * 1e9 / real(GAPS - 1))
            };
            set(found, "copy_gap_ns", gap());
        }

        /// Between the device and page-locked memory.
        fn host(&self, found: &mut TunedNumbers) {
            let names = ["to_host_mb_s", "from_host_mb_s", "store_host_mb_s", "load_host_mb_s"];
            let pinned = match &self.pinned {
                Ok(pinned) => pinned.region(),
                Err(why) => return names.iter().for_each(|name| found.miss(TABLE, name, why)),
            };
            let at = |bytes| pinned.sub(0, bytes).map_err(text);
            let to = Bed::rate(FAR, |bytes| self.copy(at(bytes)?, self.typed.part(bytes)?));
            set(found, names[0], to);
            let from = Bed::rate(FAR, |bytes| self.copy(self.typed.part(bytes)?, at(bytes)?));
            set(found, names[1], from);
            let store = Bed::rate(FAR, |bytes| self.pack(&self.strided(bytes)?, at(bytes)?));
            set(found, names[2], store);
            let load = Bed::rate(FAR, |bytes| self.unpack(at(bytes)?, &self.strided(bytes)?));
            set(found, names[3], load);
        }

        /// Between two devices.
        fn peer(&self, found: &mut TunedNumbers) {
            let names = ["peer_copy_mb_s", "peer_store_mb_s", "peer_load_mb_s"];
            let there = self.other.clone().and_then(|other| DeviceMemory::new(&other, NEAR[1]));
            let there = match &there {
                Ok(there) => there,
                Err(why) => return names.iter().for_each(|name| found.miss(TABLE, name, why)),
            };
            let copy =
                Bed::rate(NEAR, |bytes| self.copy(there.part(bytes)?, self.typed.part(bytes)?));
            set(found, names[0], copy);
            let store =
                Bed::rate(NEAR, |bytes| self.pack(&self.strided(bytes)?, there.part(bytes)?));
            set(found, names[1], store);
            let load =
                Bed::rate(NEAR, |bytes| self.unpack(there.part(bytes)?, &self.strided(bytes)?));
            set(found, names[2], load);
            self.gap(found, there.region, self.typed.region);
        }
    }

    fn set(found: &mut TunedNumbers, name: &str, value: Result<f64, String>) {
        match value {
            Ok(value) => found.set(TABLE, name, value),
            Err(why) => found.miss(TABLE, name, why),
        }
    }

    /// Rank 0: measures for about so long.
    pub(in crate::tune) fn measure(
        link: &LinkTuner<'_>,
        time: Duration,
        found: &mut TunedNumbers,
    ) -> Result<(), Failure> {
        let bed = match Bed::new(time) {
            Ok(bed) => bed,
            Err(why) => {
                found.miss_table(TABLE, &why);
                return Ok(());
            }
        };
        if let Err(why) = bed.launch(found) {
            found.miss_table(TABLE, &why);
            return Ok(());
        }
        if let Err(why) = bed.near(found) {
            for name in ["pack_mb_s", "block_ns", "copy_mb_s"] {
                if found.get(TABLE, name).is_none() {
                    found.miss(TABLE, name, why.as_str());
                }
            }
        }
        bed.host(found);
        bed.peer(found);
        if found.get(TABLE, "copy_gap_ns").is_none()
            && let Ok(pinned) = &bed.pinned
        {
            bed.gap(found, pinned.region(), bed.typed.region);
        }
        import(link, &bed, found)
    }

    /// Has rank 1 map memory of ours, with the same device and with another.
    fn import(link: &LinkTuner<'_>, bed: &Bed, found: &mut TunedNumbers) -> Result<(), Failure> {
        let exported = match bed.device.export(bed.typed.region) {
            Ok(Export { bytes, descriptors }) if descriptors.is_empty() => bytes,
            Ok(_) => {
                for name in ["import_ns", "import_same_ns"] {
                    found.miss(TABLE, name, "what is exported takes more than bytes");
                }
                return Ok(());
            }
            Err(error) => {
                for name in ["import_ns", "import_same_ns"] {
                    found.miss(TABLE, name, error.to_string());
                }
                return Ok(());
            }
        };
        link.turn_to_devices()?;
        let (comm, peer) = (link.world().comm(), link.peer());
        comm.send(&exported[..], peer, EXPORT)?;
        let mut nanoseconds = [0u64; 2];
        comm.recv(&mut nanoseconds, peer, IMPORTED)?;
        for (name, ns) in ["import_same_ns", "import_ns"].into_iter().zip(nanoseconds) {
            match ns {
                0 => {
                    let alone = bed.other.as_ref().err().filter(|_| name == "import_ns");
                    let why = alone.map_or("the other process could not map it", String::as_str);
                    found.miss(TABLE, name, why);
                }
                ns => found.set(TABLE, name, real(ns)),
            }
        }
        Ok(())
    }

    /// Rank 1: maps what rank 0 has exported, and tells how long that took; 0 if it cannot.
    pub(in crate::tune) fn assist(world: &World) -> Result<(), Failure> {
        let (comm, peer) = (world.comm(), 1 - world.rank());
        let length = usize::try_from(comm.probe(peer, EXPORT)?.bytes).unwrap_or_default();
        let mut exported = vec![0u8; length];
        comm.recv(&mut exported, peer, EXPORT)?;
        let mut nanoseconds = [0u64; 2];
        if let Ok((driver, _)) = open() {
            for (ordinal, slot) in (0u32..).zip(&mut nanoseconds).take(driver.devices() as usize) {
                let device = driver.device(ordinal).map(Arc::new);
                *slot = device.ok().and_then(|device| time_import(&device, &exported)).unwrap_or(0);
            }
        }
        comm.send(&nanoseconds[..], peer, IMPORTED)?;
        Ok(())
    }

    fn time_import(device: &Arc<CudaDevice>, bytes: &[u8]) -> Option<u64> {
        // The first work of a device in a process makes its context.
        drop(DeviceMemory::new(device, 256).ok()?);
        let start = Instant::now();
        let export = Export { bytes: bytes.to_vec(), descriptors: Vec::new() };
        let region = device.import(export).ok()?;
        let took = u64::try_from(start.elapsed().as_nanos()).ok()?.max(1);
        // SAFETY: imported just above, and used by nothing.
        unsafe { device.release(region) }.ok()?;
        Some(took)
    }
}
