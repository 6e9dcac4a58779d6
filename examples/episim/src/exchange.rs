//! Visits on their way: into fragments, and from these into one contiguous buffer, by one of three schemes.

use crate::Failure;
use crate::compute::{Argument, Buffer, Compute, Kernel, copy};
use crate::host::VISIT;
use crate::options::Scheme;
use crate::simulation::{Phase, Stopwatch};
use gapless::{Communicator, Device, Equivalence, Region, View, ViewMut, World};
use gapless_mem::Outstanding;
use std::sync::Arc;
use std::time::Instant;

/// The tag of visits.
const VISITS: i32 = 1;

/// What a fragment holds where no visit is.
const EMPTY: u32 = u32::MAX;

/// The buffers of visits that come.
pub(crate) struct Exchange<'w> {
    comm: &'w Communicator,
    compute: &'w dyn Compute,
    scheme: Scheme,
    /// Visits of a fragment, at most.
    capacity: usize,
    /// A fragment for each rank: in memory of the host (5a, 5b), or of the device (5c).
    fragments: Buffer,
    /// All fragments, packed, in memory of the host (5a).
    staging: Option<Buffer>,
    /// All fragments, packed, in memory of the device.
    packed: Buffer,
}

impl<'w> Exchange<'w> {
    pub(crate) fn new(
        (world, comm): (&World, &'w Communicator),
        compute: &'w dyn Compute,
        scheme: Scheme,
        capacity: usize,
    ) -> Result<Exchange<'w>, Failure> {
        let words = world.size() as usize * capacity * VISIT;
        // The CPU's own memory is not page-locked.
        let device: Option<&Arc<dyn Device>> =
            Some(compute.device()).filter(|device| !device.space().cpu_accessible());
        let fragments = match scheme {
            Scheme::Direct => Buffer::of_kernels(world, compute, words)?,
            Scheme::Basic | Scheme::Advanced => Buffer::of_host(device, words)?,
        };
        let staging = (scheme == Scheme::Basic).then(|| Buffer::of_host(device, words));
        let staging = staging.transpose()?;
        let packed = Buffer::of_kernels(world, compute, words)?;
        Ok(Exchange { comm, compute, scheme, capacity, fragments, staging, packed })
    }

    /// All visits that have come.
    pub(crate) fn packed(&self) -> Region {
        self.packed.region()
    }

    /// Makes the fragments empty.
    pub(crate) fn create(&mut self) -> Result<(), Failure> {
        let fours = self.comm.size() as usize * self.capacity * VISIT / 4;
        if self.scheme == Scheme::Direct {
            let fours = u32::try_from(fours)?;
            let arguments = [
                Argument::Memory(self.fragments.region()),
                Argument::Word(fours),
                Argument::Word(EMPTY),
            ];
            // SAFETY: the buffer has so many words; neither messages nor copies use it now, as all were waited for.
            unsafe { self.compute.launch(Kernel::Fill, fours, &arguments) }?;
            return self.compute.finish();
        }
        // SAFETY: as above.
        let words = unsafe { self.fragments.words() };
        words[..4 * fours].fill(EMPTY);
        Ok(())
    }

    /// Sends each rank so many visits of its part of `sends`, and receives and packs those of all ranks. Gives how
    /// many.
    ///
    /// # Safety
    /// Nothing writes `sends` before this returns.
    pub(crate) unsafe fn exchange(
        &mut self,
        sends: Region,
        counts: &[u32],
        watch: &mut Stopwatch,
    ) -> Result<u32, Failure> {
        let comm = self.comm;
        let (me, ranks) = (comm.rank() as usize, comm.size() as usize);
        let word = u32::layout();
        let bytes = |visits: usize| (4 * VISIT * visits) as u64;
        let began = Instant::now();
        let mut came = vec![0; ranks];
        let (mut total, mut copies, mut failure) = (0, Vec::new(), None);
        let ended = comm.scope(|s| {
            let mut sources: Vec<usize> = Vec::new();
            let mut receives = Vec::new();
            // Each begins with itself: not all send to the same rank at once.
            for source in (0..ranks).map(|distance| (me + ranks - distance) % ranks) {
                let fragment =
                    self.fragment(source, self.capacity).map_err(gapless::Error::from)?;
                let words = fragment.len() / 4;
                // SAFETY: the buffer outlives the scope; fragments do not overlap, and what has come is read after its
                // message alone. `alloc_device`'s memory is invalidated before it is freed.
                let into = unsafe { ViewMut::of_region(fragment, 0, word, words) }?;
                receives.push(s.irecv(into, source as u32, VISITS)?);
                sources.push(source);
            }
            for to in (0..ranks).map(|distance| (me + distance) % ranks) {
                let part = sends.sub(bytes(to * self.capacity), bytes(counts[to] as usize));
                let part = part.map_err(gapless_mem::DeviceError::from)?;
                // SAFETY: the caller keeps the memory, and writes nothing.
                let from = unsafe { View::of_region(part, 0, word, part.len() / 4) }?;
                let _ = s.isend(from, to as u32, VISITS)?;
            }
            while let Some((at, status)) = s.wait_any(&mut receives) {
                let source = sources.remove(at);
                let visits = status?.bytes as usize / (4 * VISIT);
                came[source] = visits;
                if self.scheme == Scheme::Advanced {
                    match self.start_copy(source, visits, total) {
                        Ok(copy) => copies.push(copy),
                        Err(error) => failure = Some(error),
                    }
                }
                total += visits;
            }
            Ok(())
        });
        watch.add(Phase::Exchange, began);
        let began = Instant::now();
        let copied = copies.into_iter().try_for_each(Outstanding::wait);
        ended?;
        copied?;
        if let Some(error) = failure {
            return Err(error);
        }
        if self.scheme == Scheme::Advanced {
            watch.add(Phase::Copy, began);
        }
        match self.scheme {
            Scheme::Basic => self.pack_on_host(&came, total, watch)?,
            Scheme::Advanced => {}
            Scheme::Direct => self.pack_on_device(&came, watch)?,
        }
        Ok(u32::try_from(total)?)
    }

    /// So many visits of a rank's fragment.
    fn fragment(&self, source: usize, visits: usize) -> Result<Region, gapless_mem::DeviceError> {
        let bytes = |visits: usize| (4 * VISIT * visits) as u64;
        let fragments = self.fragments.region();
        Ok(fragments.sub(bytes(source * self.capacity), bytes(visits))?)
    }

    /// 5b: copies what has come of a rank behind `at` visits of others.
    fn start_copy(&self, source: usize, visits: usize, at: usize) -> Result<Outstanding, Failure> {
        let from = self.fragment(source, visits)?;
        let to = self.packed.part(at * VISIT, visits * VISIT)?;
        // SAFETY: the message into the fragment has ended, no other copy has this part of `packed`, and `exchange`
        // waits for the copy.
        Ok(Outstanding::new(unsafe { self.compute.device().copy(to, from, &[]) }?))
    }

    /// 5a: packs on the CPU, then copies.
    fn pack_on_host(
        &mut self,
        came: &[usize],
        total: usize,
        watch: &mut Stopwatch,
    ) -> Result<(), Failure> {
        let Some(staging) = &mut self.staging else { return Ok(()) };
        let began = Instant::now();
        // SAFETY: all messages and copies have ended.
        let into = unsafe { staging.words() };
        // SAFETY: as above.
        let from = unsafe { self.fragments.words() };
        let mut at = 0;
        for (fragment, visits) in from.chunks(self.capacity * VISIT).zip(came) {
            let words = visits * VISIT;
            into[at..at + words].copy_from_slice(&fragment[..words]);
            at += words;
        }
        watch.add(Phase::Pack, began);
        let began = Instant::now();
        let (from, to) = (staging.part(0, total * VISIT)?, self.packed.part(0, total * VISIT)?);
        // SAFETY: nothing else uses either.
        unsafe { copy(self.compute, to, from) }?;
        watch.add(Phase::Copy, began);
        Ok(())
    }

    /// 5c: packs on the device.
    fn pack_on_device(&mut self, came: &[usize], watch: &mut Stopwatch) -> Result<(), Failure> {
        let began = Instant::now();
        let mut at = 0;
        for (source, visits) in came.iter().enumerate().filter(|(_, visits)| **visits != 0) {
            let fours = |visits: usize| u32::try_from(visits * VISIT / 4);
            let items = fours(*visits)?;
            let arguments = [
                Argument::Memory(self.packed.region()),
                Argument::Word(fours(at)?),
                Argument::Memory(self.fragments.region()),
                Argument::Word(fours(source * self.capacity)?),
                Argument::Word(items),
            ];
            // SAFETY: as many visits as came are in the fragment, and fit behind those before; all messages have ended.
            unsafe { self.compute.launch(Kernel::Pack, items, &arguments) }?;
            at += visits;
        }
        self.compute.finish()?;
        watch.add(Phase::Pack, began);
        Ok(())
    }
}
