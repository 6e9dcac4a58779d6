//! Where a block lies, and how it gets to the host and back.

use gapless::{
    Communicator, CudaDriver, Datatype, DeviceBuf, Equivalence, Error, Layout, OpenClDevice, Plan,
    PlanBuilder, Space, Subarray, World,
};

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockMemory {
    /// In memory of the host.
    Host,
    /// In memory of a device.
    Device(Space),
}

impl BlockMemory {
    /// Finds the memory that a program's arguments ask for (none, or `--device cuda|opencl`), and gives it to `work`. Of
    /// several CUDA devices, ranks take one each in turn.
    ///
    /// # Errors
    /// The arguments mean nothing; there is no such device; `work` fails.
    pub fn chosen<T>(
        arguments: &[&str],
        rank: u32,
        work: impl FnOnce(BlockMemory) -> Result<T, Error>,
    ) -> Result<T, Box<dyn std::error::Error>> {
        match arguments {
            [] => Ok(work(BlockMemory::Host)?),
            ["--device", "cuda"] => {
                let devices = CudaDriver::load()?.devices();
                let device = rank.checked_rem(devices).ok_or("there is no CUDA device")?;
                Ok(work(BlockMemory::Device(Space::Cuda { device }))?)
            }
            ["--device", "opencl"] => {
                // It stays open while its memory is used.
                let device = OpenClDevice::open(0)?;
                Ok(work(BlockMemory::Device(gapless::Device::space(&device)))?)
            }
            other => Err(format!("usage: [--device cuda|opencl], not {}", other.join(" ")).into()),
        }
    }
}

/// The array that is exchanged: the block's cells themselves, or a copy in memory of a device.
pub(crate) struct Exchanged<'w> {
    device: Option<DeviceBuf>,
    /// Messages to oneself carry the cells to the device and back.
    myself: &'w Communicator,
}

impl<'w> Exchanged<'w> {
    /// The array of these cells.
    pub(crate) fn new(world: &'w World, memory: BlockMemory, cells: &[f64]) -> Result<Self, Error> {
        let device = match memory {
            BlockMemory::Host => None,
            BlockMemory::Device(space) => {
                Some(world.alloc_device(space, size_of_val(cells) as u64)?)
            }
        };
        let mut array = Exchanged { device, myself: world.self_comm() };
        array.upload(cells)?;
        Ok(array)
    }

    /// Its memory on a device, if it is there.
    pub(crate) fn device(&self) -> Option<&DeviceBuf> {
        self.device.as_ref()
    }

    /// The cells are those on the device, if they are there.
    pub(crate) fn download(&mut self, cells: &mut [f64]) -> Result<(), Error> {
        let Some(device) = &mut self.device else { return Ok(()) };
        let from = device.view(0, f64::layout(), cells.len() as u64)?;
        self.myself.sendrecv(from, (0, 0), cells, (0, 0)).map(drop)
    }

    /// A plan for it, without messages.
    pub(crate) fn plan(&self, comm: &Communicator, cells: &[f64]) -> PlanBuilder {
        match &self.device {
            None => comm.plan(cells),
            Some(device) => comm.plan(device),
        }
    }

    /// Exchanges the rim; afterwards the cells are those that have come.
    pub(crate) fn exchange(&mut self, plan: &mut Plan, cells: &mut [f64]) -> Result<(), Error> {
        let Some(device) = &mut self.device else { return plan.exchange(cells).map(drop) };
        plan.exchange(device)?;
        self.download(cells)
    }

    /// The cells have changed.
    pub(crate) fn upload(&mut self, cells: &[f64]) -> Result<(), Error> {
        let Some(device) = &mut self.device else { return Ok(()) };
        let into = device.view_mut(0, f64::layout(), cells.len() as u64)?;
        self.myself.sendrecv(cells, (0, 0), into, (0, 0)).map(drop)
    }
}

/// A box of a row-major array of doubles: sides of the array, where the box begins, its sides. As a layout that begins
/// where the array does, so it means the same in any memory.
pub(crate) fn part<const D: usize>(
    sizes: [usize; D],
    starts: [usize; D],
    subsizes: [usize; D],
) -> Result<Layout, Error> {
    let numbers = |list: [usize; D]| list.map(|number| number as u64);
    let double: Datatype = f64::datatype();
    let all = Subarray::of(&double).sizes(numbers(sizes));
    all.subsizes(numbers(subsizes)).starts(numbers(starts)).build()?.commit().map_err(Error::from)
}
