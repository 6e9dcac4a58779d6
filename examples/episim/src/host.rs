//! The kernels on the CPU: those of `kernels.cl-cu`, word by word.

use crate::Failure;
use crate::compute::{Argument, Compute, Kernel, words};
use crate::population::{CLOSENESS, HOME, SLOTS};
use gapless::Device;
use gapless_mem::HostDevice;
use std::sync::Arc;

/// Words of a visit.
pub(crate) const VISIT: usize = 8;

/// The CPU.
pub(crate) struct Host(Arc<dyn Device>);

impl Host {
    pub(crate) fn new() -> Host {
        Host(Arc::new(HostDevice::new()))
    }
}

impl Compute for Host {
    fn device(&self) -> &Arc<dyn Device> {
        &self.0
    }

    unsafe fn launch(&self, kernel: Kernel, _: u32, arguments: &[Argument]) -> Result<(), Failure> {
        use Argument::{Memory, Word};
        let slice = |region| {
            // SAFETY: the caller has promised that the memory is there, and nothing else uses it; a kernel's arguments
            // are parts of different buffers.
            unsafe { words(region) }
        };
        match (kernel, arguments) {
            (Kernel::Fill, &[Memory(into), Word(fours), Word(value)]) => {
                slice(into)[..4 * fours as usize].fill(value);
            }
            (Kernel::Pack, &[Memory(into), Word(to), Memory(from), Word(at), Word(fours)]) => {
                let [to, at, fours] = [to, at, fours].map(|it| 4 * it as usize);
                slice(into)[to..to + fours].copy_from_slice(&slice(from)[at..at + fours]);
            }
            (
                Kernel::Visits,
                &[
                    Memory(activities),
                    Word(count),
                    Memory(statuses),
                    Word(rank),
                    Word(ranks),
                    Word(day),
                    Word(capacity),
                    Memory(sends),
                    Memory(counts),
                ],
            ) => {
                let activities = &slice(activities).as_chunks().0[..count as usize];
                let sends = Sends { rank, ranks, day, capacity, words: slice(sends) };
                sends.visits(activities, slice(statuses), slice(counts));
            }
            (Kernel::Crowd, &[Memory(visits), Word(count), Word(ranks), Memory(slots)]) => {
                crowd(&slice(visits).as_chunks().0[..count as usize], ranks, slice(slots))
            }
            (
                Kernel::Doses,
                &[
                    Memory(visits),
                    Word(count),
                    Word(ranks),
                    Word(capacity),
                    Memory(slots),
                    Memory(out),
                    Memory(counts),
                ],
            ) => {
                let visits = &slice(visits).as_chunks().0[..count as usize];
                doses(visits, [ranks, capacity], slice(slots), slice(out), slice(counts));
            }
            (kernel, arguments) => panic!("{} with {arguments:?}", kernel.name()),
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// Where the visits of a rank's persons go.
pub(crate) struct Sends<'s> {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) day: u32,
    /// Visits to each rank, at most.
    pub(crate) capacity: u32,
    pub(crate) words: &'s mut [u32],
}

impl Sends<'_> {
    /// Computes them. Counts are those of each rank before, and then.
    pub(crate) fn visits(self, activities: &[[u32; 3]], statuses: &[u32], counts: &mut [u32]) {
        let Sends { rank, ranks, day, capacity, words } = self;
        let visits: &mut [[u32; VISIT]] = words.as_chunks_mut().0;
        for &[person, location, what] in activities {
            let status = statuses[person as usize];
            let kind = what & 255;
            if status >> 16 != 0 && kind != HOME {
                continue;
            }
            let to = (location % ranks) as usize;
            visits[to * capacity as usize + counts[to] as usize] = [
                person * ranks + rank,
                location,
                kind,
                what >> 8 & 255,
                what >> 16 & 255,
                status & 255,
                status >> 8 & 255,
                day,
            ];
            counts[to] += 1;
        }
    }
}

/// The slots of a location.
fn place(location: u32, ranks: u32) -> usize {
    2 * SLOTS as usize * (location / ranks) as usize
}

fn crowd(visits: &[[u32; VISIT]], ranks: u32, slots: &mut [u32]) {
    for [_, location, _, start, end, infectivity, ..] in visits {
        let here = &mut slots[place(*location, ranks)..];
        for slot in here[2 * *start as usize..2 * *end as usize].as_chunks_mut::<2>().0 {
            slot[0] += 1;
            slot[1] += infectivity;
        }
    }
}

fn doses(
    visits: &[[u32; VISIT]],
    [ranks, capacity]: [u32; 2],
    slots: &[u32],
    out: &mut [u32],
    counts: &mut [u32],
) {
    for [person, location, kind, start, end, _, susceptibility, _] in visits {
        let here = &slots[place(*location, ranks)..];
        let mut sum = 0;
        if *susceptibility == 0 {
            continue;
        }
        for [present, infectivity] in here[2 * *start as usize..2 * *end as usize].as_chunks().0 {
            if *infectivity != 0 {
                let close = 256 * CLOSENESS[*kind as usize];
                sum += u64::from(*infectivity) * close / u64::from(*present);
            }
        }
        let dose = ((sum * u64::from(*susceptibility)) >> 8) as u32;
        if dose != 0 {
            let to = (person % ranks) as usize;
            let at = 2 * (to * capacity as usize + counts[to] as usize);
            out[at..at + 2].copy_from_slice(&[*person, dose]);
            counts[to] += 1;
        }
    }
}
