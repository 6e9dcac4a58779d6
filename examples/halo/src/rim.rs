//! The exchange with all neighbours as one collective: `neighbor_alltoallw` on a graph of the neighbours.
//!
//! In memory of CUDA devices it is a plan on a stream, which is one kernel a process; elsewhere a collective of the
//! communicator, on the host's copy of the block.

use crate::memory::Exchanged;
use gapless::{
    Blocks, BlocksMut, Communicator, CudaDriver, CudaStream, Error, Layout, Parts, Space,
    StreamBlock, StreamComm, StreamPlan,
};

/// What a block exchanges with a neighbour.
pub(crate) struct Neighbour {
    pub(crate) rank: u32,
    /// The number of the way there, 0 to 25; the opposite one is 25 less that.
    pub(crate) way: i32,
    /// What goes there.
    pub(crate) going: Layout,
    /// Where that comes to which comes from there.
    pub(crate) ghosts: Layout,
}

/// The collective.
pub(crate) struct Rim<'w> {
    graph: Communicator,
    /// In the order of the graph's edges.
    going: Vec<Layout>,
    ghosts: Vec<Layout>,
    stream: Option<(StreamComm<'w>, StreamPlan)>,
}

impl<'w> Rim<'w> {
    /// Makes the graph, and on a CUDA device the plan. Collective.
    pub(crate) fn new(
        comm: &Communicator,
        array: &Exchanged<'w>,
        neighbours: &[Neighbour],
    ) -> Result<Rim<'w>, Error> {
        // What goes along a way comes along the same way: of two edges between the same ranks, each end has the same first.
        let from: Vec<&Neighbour> = neighbours.iter().rev().collect();
        let ranks = |of: &[&Neighbour]| of.iter().map(|it| it.rank).collect::<Vec<u32>>();
        let to: Vec<&Neighbour> = neighbours.iter().collect();
        let (sources, destinations) = (ranks(&from), ranks(&to));
        let graph = comm.dist_graph_create_adjacent((&sources, None), (&destinations, None))?;
        let going: Vec<Layout> = to.iter().map(|it| it.going.clone()).collect();
        let ghosts: Vec<Layout> = from.iter().map(|it| it.ghosts.clone()).collect();
        let mut rim = Rim { graph, going, ghosts, stream: None };
        if let Some(device) = array.device()
            && let Space::Cuda { device: ordinal } = device.region().space()
        {
            let opened = CudaDriver::load().and_then(|driver| driver.device(ordinal)?.stream());
            let stream = opened.map_err(|error| Error::Stream(error.into()))?;
            // It lives as long as the program does, as the driver's contexts do.
            let stream: &'static CudaStream = Box::leak(Box::new(stream));
            let mut on = rim.graph.on(stream)?;
            // SAFETY: the array is dropped after `on`, and used by nothing else while the plan runs: `exchange` waits.
            let cells = unsafe { on.register(device.region()) }?;
            let (going, ghosts) = (blocks(&rim.going), blocks(&rim.ghosts));
            // SAFETY: ghost cells are no other's, and are not sent.
            let plan = unsafe { on.plan_neighbor_alltoallw(cells, &going, cells, &ghosts) }?;
            rim.stream = Some((on, plan));
        }
        Ok(rim)
    }

    /// Exchanges the rim; afterwards the cells are those that have come.
    pub(crate) fn exchange(
        &mut self,
        array: &mut Exchanged<'w>,
        cells: &mut [f64],
    ) -> Result<(), Error> {
        if let Some((on, plan)) = &mut self.stream {
            // What others read and write here is ready.
            self.graph.barrier()?;
            // SAFETY: nothing else uses the array until all have passed the barrier.
            unsafe { on.start(plan) }?;
            on.wait()?;
            self.graph.barrier()?;
            return array.download(cells);
        }
        array.download(cells)?;
        let mut parts = Parts::of(cells);
        let (mut sends, mut recvs) = (Vec::new(), Vec::new());
        for layout in &self.going {
            sends.push(parts.view(0, layout, 1)?);
        }
        for layout in &self.ghosts {
            recvs.push(parts.view_mut(0, layout, 1)?);
        }
        self.graph.neighbor_alltoallw(Blocks::each(sends), BlocksMut::each(recvs))
    }
}

fn blocks(layouts: &[Layout]) -> Vec<StreamBlock<'_>> {
    layouts.iter().map(|layout| StreamBlock { displacement: 0, layout, count: 1 }).collect()
}
