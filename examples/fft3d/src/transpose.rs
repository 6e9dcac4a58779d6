//! The exchange between planes and lines.
//!
//! A process has planes `[m][n][n]` of the cube, or lines `[n][m][n]`, where `m` is its share of `n`. What it gives to
//! another is a box `[m][m][n]` of the one, which becomes a box of the other; `alltoallw` takes both as layouts.

use crate::TransposeMemory;
use gapless::{
    Blocks, BlocksMut, Communicator, CudaDriver, CudaStream, Datatype, DeviceBuf, Equivalence,
    Error, Layout, Parts, Space, StreamBlock, StreamComm, StreamPlan, Subarray, View, World,
};
use num_complex::Complex64;
use std::time::{Duration, Instant};

const ELEMENT: u64 = size_of::<Complex64>() as u64;

/// Both shapes of this process's part, and what exchanges them.
pub struct Transpose<'w> {
    comm: &'w Communicator,
    boxes: Boxes,
    gpu: Option<Gpu<'w>>,
    exchange_s: [f64; 2],
}

/// The box for each process, in planes and in lines.
struct Boxes {
    in_planes: Layout,
    in_lines: Layout,
    /// Elements from a process's box to the next one's.
    apart: [usize; 2],
    ranks: usize,
    elements: usize,
}

/// The same on a GPU.
struct Gpu<'w> {
    // In the order in which they are dropped.
    on: StreamComm<'w>,
    there: StreamPlan,
    back: StreamPlan,
    planes: DeviceBuf,
    lines: DeviceBuf,
    myself: &'w Communicator,
    all: &'w Communicator,
}

impl Boxes {
    fn new(side: usize, ranks: usize) -> Result<Boxes, Error> {
        let (n, m) = (side as u64, (side / ranks) as u64);
        let complex: Datatype = Complex64::datatype();
        let part = |sizes: [u64; 3]| {
            let all = Subarray::of(&complex).sizes(sizes);
            all.subsizes([m, m, n]).starts([0; 3]).build()?.commit()
        };
        let (in_planes, in_lines) = (part([m, n, n])?, part([n, m, n])?);
        let share = side / ranks;
        let apart = [share * side, share * share * side];
        Ok(Boxes { in_planes, in_lines, apart, ranks, elements: share * side * side })
    }

    /// All boxes as blocks of a plan; of planes, or of lines.
    fn blocks(&self, lines: bool) -> Vec<StreamBlock<'_>> {
        let layout = if lines { &self.in_lines } else { &self.in_planes };
        let apart = self.apart[usize::from(lines)] as u64 * ELEMENT;
        let block = |rank: u64| StreamBlock { displacement: rank * apart, layout, count: 1 };
        (0..self.ranks as u64).map(block).collect()
    }

    /// Exchanges in host memory: from planes to lines, or the other way.
    fn exchange(
        &self,
        comm: &Communicator,
        from: &[Complex64],
        to_lines: bool,
    ) -> Result<(Vec<Complex64>, Duration), Error> {
        let mut into = vec![Complex64::default(); self.elements];
        let (out, here) = if to_lines {
            (&self.in_planes, &self.in_lines)
        } else {
            (&self.in_lines, &self.in_planes)
        };
        let [give, take] = if to_lines { self.apart } else { [self.apart[1], self.apart[0]] };
        let sends: Vec<View<'_>> = (0..self.ranks)
            .map(|rank| View::typed(from, (rank * give) as u64, out, 1))
            .collect::<Result<_, Error>>()?;
        let mut parts = Parts::of(&mut into);
        let mut recvs = Vec::with_capacity(self.ranks);
        for rank in 0..self.ranks {
            recvs.push(parts.view_mut((rank * take) as u64, here, 1)?);
        }
        let begun = Instant::now();
        comm.alltoallw(Blocks::each(sends), BlocksMut::each(recvs))?;
        Ok((into, begun.elapsed()))
    }
}

impl<'w> Transpose<'w> {
    /// Describes the exchange of a cube of `side`³. Collective.
    ///
    /// # Errors
    /// There is no such device, or it cannot reach those of others.
    pub fn new(
        world: &'w World,
        side: usize,
        memory: TransposeMemory,
    ) -> Result<Transpose<'w>, Box<dyn std::error::Error>> {
        let comm = world.comm();
        let boxes = Boxes::new(side, comm.size() as usize)?;
        let gpu = match memory {
            TransposeMemory::Host => None,
            TransposeMemory::Cuda(device) => Some(Gpu::new(world, device, &boxes)?),
        };
        Ok(Transpose { comm, boxes, gpu, exchange_s: [0.0; 2] })
    }

    /// From planes to lines. Collective.
    ///
    /// # Errors
    /// A process is lost.
    pub fn there(&mut self, planes: &[Complex64]) -> Result<Vec<Complex64>, Error> {
        self.exchange(planes, true)
    }

    /// From lines to planes. Collective.
    ///
    /// # Errors
    /// A process is lost.
    pub fn back(&mut self, lines: &[Complex64]) -> Result<Vec<Complex64>, Error> {
        self.exchange(lines, false)
    }

    /// Seconds that the last exchange took to lines, and to planes.
    #[must_use]
    pub fn exchange_s(&self) -> [f64; 2] {
        self.exchange_s
    }

    fn exchange(&mut self, from: &[Complex64], to_lines: bool) -> Result<Vec<Complex64>, Error> {
        let (into, took) = match &mut self.gpu {
            None => self.boxes.exchange(self.comm, from, to_lines)?,
            Some(gpu) => gpu.exchange(from, to_lines)?,
        };
        self.exchange_s[usize::from(!to_lines)] = took.as_secs_f64();
        Ok(into)
    }
}

impl<'w> Gpu<'w> {
    fn new(
        world: &'w World,
        device: u32,
        boxes: &Boxes,
    ) -> Result<Gpu<'w>, Box<dyn std::error::Error>> {
        // Both live as long as the program does, as the library's contexts do.
        let stream: &'static CudaStream =
            Box::leak(Box::new(CudaDriver::load()?.device(device)?.stream()?));
        let space = Space::Cuda { device };
        let bytes = boxes.elements as u64 * ELEMENT;
        let planes = world.alloc_device(space, bytes)?;
        let lines = world.alloc_device(space, bytes)?;
        let mut on = world.comm().on(stream)?;
        let mut register = |memory: &DeviceBuf| {
            // SAFETY: both are dropped after `on`, and used by nothing else while plans run: `exchange` waits.
            unsafe { on.register(memory.region()) }
        };
        let (p, l) = (register(&planes)?, register(&lines)?);
        let (out, here) = (boxes.blocks(false), boxes.blocks(true));
        // SAFETY: boxes of different processes do not overlap.
        let there = unsafe { on.plan_alltoallw(p, &out, l, &here) }?;
        // SAFETY: as above.
        let back = unsafe { on.plan_alltoallw(l, &here, p, &out) }?;
        Ok(Gpu { on, there, back, planes, lines, myself: world.self_comm(), all: world.comm() })
    }

    fn exchange(
        &mut self,
        from: &[Complex64],
        to_lines: bool,
    ) -> Result<(Vec<Complex64>, Duration), Error> {
        let (send, recv, plan) = if to_lines {
            (&mut self.planes, &mut self.lines, &self.there)
        } else {
            (&mut self.lines, &mut self.planes, &self.back)
        };
        let (element, count) = (Complex64::layout(), from.len() as u64);
        // Messages to oneself carry the numbers to the device and back.
        self.myself.sendrecv(from, (0, 0), send.view_mut(0, element, count)?, (0, 0))?;
        // Others may still read what was there before, and write into what was read.
        self.all.barrier()?;
        let begun = Instant::now();
        // SAFETY: nothing else uses the buffers until all have passed the barrier below.
        unsafe { self.on.start(plan) }?;
        self.on.wait()?;
        self.all.barrier()?;
        let took = begun.elapsed();
        let mut into = vec![Complex64::default(); from.len()];
        self.myself.sendrecv(recv.view(0, element, count)?, (0, 0), &mut into[..], (0, 0))?;
        Ok((into, took))
    }
}
