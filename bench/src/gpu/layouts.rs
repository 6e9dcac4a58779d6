//! What one rank of `coll-layouts` does: collectives with layouts on its stream, and what users do without them.
//!
//! - Transposes of a distributed 3-D FFT by one `alltoallw`, beside packing, NCCL's all-to-all and unpacking on the same
//!   stream. Elements are complex numbers of two floats. What lies without gaps is neither packed nor unpacked.
//! - The halo of a 512³ grid of doubles by one `neighbor_alltoallw`, beside 26 messages to the same ranks.
//!
//! Everything is compared, byte by byte, with what the host's packing and unpacking give.
#![allow(clippy::cast_possible_truncation, reason = "ranks are few, and indices fit the memory")]

use gapless::{
    Communicator, CudaGraph, CudaStream, Datatype, DeviceBuf, Equivalence, Layout, Plan, Primitive,
    Region, Registered, Space, StreamBlock, StreamComm, StreamOptions, StreamPlan, StreamWay,
    Subarray, World,
};
use gapless_dtype::{pack, unpack};
use gapless_dtype_cuda::{GpuEngine, OnStream};
use gapless_engine::Typed;
use gapless_mem::Device;
use gapless_mem_cuda::{CudaDevice, CudaDriver};
use std::sync::Arc;
use std::time::Instant;

use super::queued::{self, Queued};
use crate::error::Failure;
use crate::nccl::{Nccl, NcclCall};
use crate::one_gpu::timing::runs;

/// How an array of n³ is cut before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// From planes to slabs of the second dimension.
    Planes,
    /// From planes to slabs of the third: rows are cut.
    Rows,
    /// From pencils along the third to pencils along the second: rows are cut, and come between others.
    Pencils,
    /// From planes to slabs of the third, which becomes the first: every element lies alone.
    Turned,
}

impl Cut {
    /// All of them.
    pub const ALL: [Cut; 4] = [Cut::Planes, Cut::Rows, Cut::Pencils, Cut::Turned];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Cut::Planes => "planes",
            Cut::Rows => "rows",
            Cut::Pencils => "pencils",
            Cut::Turned => "turned",
        }
    }
}

/// Bytes of an element.
const ELEMENT: u64 = 8;

/// An exchange: each rank's blocks, and how large its buffers are.
pub struct Exchange {
    layouts: [Vec<Layout>; 2],
    displacements: [Vec<u64>; 2],
    /// Bytes of each buffer: as many at all ranks.
    pub bytes: u64,
    /// Whether all blocks have one length.
    even: bool,
    /// Which transpose it is.
    of: (u64, Cut),
}

impl Exchange {
    /// A rank's part of a transpose of n³ elements. The first ranks have a plane more if it does not come out even.
    ///
    /// # Errors
    /// Fewer planes than ranks.
    pub fn transpose(n: u64, cut: Cut, ranks: u32, rank: u32) -> Result<Exchange, Failure> {
        let parts = u64::from(ranks);
        if n < parts {
            return Err(Failure::Job(format!("{n} planes for {parts} ranks")));
        }
        let of = Datatype::contiguous(2, &f32::datatype())?;
        let part = |sizes: [u64; 3], subsizes: [u64; 3]| -> Result<Layout, Failure> {
            Ok(Subarray::of(&of)
                .sizes(sizes)
                .subsizes(subsizes)
                .starts([0; 3])
                .build()?
                .commit()?)
        };
        let share = |rank: u64| {
            (n / parts + u64::from(rank < n % parts), rank * (n / parts) + rank.min(n % parts))
        };
        let (ours, _) = share(rank.into());
        let (mut layouts, mut displacements) = ([vec![], vec![]], [vec![], vec![]]);
        for (theirs, at) in (0..parts).map(share) {
            let m = ours;
            let (send, recv, apart) = match cut {
                Cut::Planes => (
                    part([m, n, n], [m, theirs, n])?,
                    part([n, m, n], [theirs, m, n])?,
                    [at * n, at * m * n],
                ),
                Cut::Rows => (
                    part([m, n, n], [m, n, theirs])?,
                    part([n, n, m], [theirs, n, m])?,
                    [at, at * n * m],
                ),
                Cut::Pencils => (
                    part([n, m, n], [n, m, theirs])?,
                    part([n, n, m], [n, theirs, m])?,
                    [at, at * m],
                ),
                Cut::Turned => {
                    let stride = |count: u64| (count * ELEMENT).cast_signed();
                    let row = Datatype::hvector(m, 1, stride(n * n), &of)?;
                    let plane = Datatype::hvector(n, 1, stride(n), &row)?;
                    let turned = Datatype::hvector(theirs, 1, stride(1), &plane)?;
                    (part([m, n, n], [m, n, theirs])?, turned.commit()?, [at, at])
                }
            };
            layouts[0].push(send);
            layouts[1].push(recv);
            displacements[0].push(apart[0] * ELEMENT);
            displacements[1].push(apart[1] * ELEMENT);
        }
        let even = n.is_multiple_of(parts);
        Ok(Exchange {
            layouts,
            displacements,
            bytes: n.div_ceil(parts) * n * n * ELEMENT,
            even,
            of: (n, cut),
        })
    }

    fn blocks(&self, side: usize) -> Vec<StreamBlock<'_>> {
        let of = self.layouts[side].iter().zip(&self.displacements[side]);
        of.map(|(layout, displacement)| StreamBlock {
            displacement: *displacement,
            layout,
            count: 1,
        })
        .collect()
    }
}

/// A rank, and what it has for all exchanges.
pub struct Rank<'w> {
    queued: Queued<'w>,
    world: &'w World,
    comm: &'w Communicator,
    device: Arc<CudaDevice>,
    stream: &'w CudaStream,
    space: Space,
    engine: GpuEngine,
    nccl: Option<Nccl>,
}

/// A planned exchange, with its buffers on the device.
pub struct Ready<'w> {
    on: StreamComm<'w>,
    plan: StreamPlan,
    _shared: Vec<Registered>,
    send: DeviceBuf,
    recv: Option<DeviceBuf>,
}

impl<'w> Rank<'w> {
    /// Opens everything. Collective.
    ///
    /// # Errors
    /// No device, or NCCL's refusal.
    pub fn new(
        world: &'w World,
        stream: &'w CudaStream,
        nccl: Option<&str>,
    ) -> Result<Rank<'w>, Failure> {
        let comm = world.comm();
        let device = Arc::new(CudaDriver::load()?.device(stream.device())?);
        device.bind_thread()?;
        let engine = GpuEngine::cuda(Arc::clone(&device))?;
        let nccl = queued::nccl(comm, nccl)?;
        let space = Space::Cuda { device: stream.device() };
        let queued = Queued { comm, stream };
        Ok(Rank { queued, world, comm, device, stream, space, engine, nccl })
    }

    /// How many ranks there are.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.comm.size()
    }

    /// Seconds in which two GPUs' copy engines bring so many bytes to each other, both at once; of one GPU, in which it
    /// makes both copies. Rank 0 measures; collective.
    ///
    /// # Errors
    /// They do not reach each other.
    pub fn link(&self, bytes: u64, samples: usize) -> Result<Vec<f64>, Failure> {
        let mut seconds = vec![0.0; samples];
        if self.comm.rank() == 0 {
            let driver = CudaDriver::load()?;
            let other = driver.device(1.min(driver.devices().saturating_sub(1)))?;
            let ends: [&CudaDevice; 2] = [&self.device, &other];
            let memory = [ends[0], ends[1], ends[0], ends[1]].map(|device| device.allocate(bytes));
            let [a, b, c, d] = memory;
            let (a, b, c, d) = (a?, b?, c?, d?);
            const COPIES: u32 = 4;
            for second in &mut seconds {
                let mut pending = Vec::new();
                let begun = Instant::now();
                for _ in 0..COPIES {
                    // SAFETY: the memory is freed after the copies have ended.
                    pending.push(unsafe { ends[0].copy(d, a, &[]) }?);
                    // SAFETY: as above.
                    pending.push(unsafe { ends[1].copy(c, b, &[]) }?);
                }
                for copy in pending {
                    copy.wait()?;
                }
                *second = begun.elapsed().as_secs_f64() / f64::from(COPIES);
            }
            for (device, region) in [(0, a), (1, b), (0, c), (1, d)] {
                // SAFETY: nothing uses it any more.
                unsafe { ends[device].free(region) }?;
            }
            self.device.bind_thread()?;
        }
        self.comm.bcast(&mut seconds[..], 0)?;
        Ok(seconds)
    }

    /// Makes an exchange ready. Collective.
    ///
    /// # Errors
    /// No memory; blocks that do not fit together.
    pub fn ready(&self, exchange: &Exchange, way: Option<StreamWay>) -> Result<Ready<'w>, Failure> {
        let memory = [(); 2].map(|()| self.world.alloc_device(self.space, exchange.bytes));
        let [send, recv] = memory;
        let (send, recv) = (send?, recv?);
        let mut on =
            self.comm.on_with(self.stream, StreamOptions { way, ..StreamOptions::default() })?;
        let mut register = |memory: &DeviceBuf| {
            // SAFETY: the buffers are dropped after `on`.
            unsafe { on.register(memory.region()) }
        };
        let shared = [register(&send)?, register(&recv)?];
        let (sends, recvs) = (exchange.blocks(0), exchange.blocks(1));
        // SAFETY: blocks do not overlap.
        let plan = unsafe { on.plan_alltoallw(shared[0], &sends, shared[1], &recvs) }?;
        Ok(Ready { on, plan, _shared: shared.to_vec(), send, recv: Some(recv) })
    }

    fn copy(&self, to: Region, from: Region) -> Result<(), Failure> {
        // SAFETY: both live until the copy is waited for, and the stream is idle.
        Ok(unsafe { self.device.copy(to, from, &[]) }?.wait()?)
    }

    fn content(&self, rank: u32, bytes: u64) -> Vec<f32> {
        let mut state = u64::from(rank + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let number = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 48) as f32
        };
        std::iter::repeat_with(number).take(usize::try_from(bytes / 4).unwrap_or(0)).collect()
    }

    /// Whether an exchange, or what else `run` queues, gives each rank what it should have, every byte.
    ///
    /// # Errors
    /// That of `run`.
    pub fn is_right(
        &self,
        exchange: &Exchange,
        ready: &mut Ready<'w>,
        run: impl FnOnce(&mut Ready<'w>) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let (me, n) = (self.comm.rank(), self.comm.size());
        let ours = self.content(me, exchange.bytes);
        let recv = ready.recv.as_ref().unwrap_or(&ready.send).region();
        self.copy(ready.send.region(), Region::of(as_bytes(&ours)))?;
        let mut found = vec![0.0f32; ours.len()];
        self.copy(recv, Region::of(as_bytes(&found)))?;
        self.comm.barrier()?;
        run(ready)?;
        self.queued.idle(&ready.on)?;
        self.comm.barrier()?;
        self.copy(Region::of_mut(as_bytes_mut(&mut found)), recv)?;
        let mut right = vec![0.0f32; ours.len()];
        let (side, cut) = exchange.of;
        for peer in 0..n {
            let theirs = if peer == me { ours.clone() } else { self.content(peer, exchange.bytes) };
            let block = |exchange: &Exchange, side: usize, rank: u32| {
                let place = exchange.displacements[side][rank as usize] / 4;
                (usize::try_from(place).unwrap_or(0), exchange.layouts[side][rank as usize].clone())
            };
            let fits = |error: gapless_dtype::FitError| Failure::Job(error.to_string());
            let (at, layout) = block(&Exchange::transpose(side, cut, n, peer)?, 0, me);
            let sent = pack(&theirs, at, &layout, 1).map_err(fits)?;
            let (at, layout) = block(exchange, 1, peer);
            unpack(&sent, &mut right, at, &layout, 1).map_err(fits)?;
        }
        let fine = found.iter().zip(&right).all(|(one, other)| one.to_bits() == other.to_bits());
        self.queued.all(fine)
    }

    /// Queues the exchange.
    ///
    /// # Errors
    /// An earlier failure.
    pub fn start(&self, ready: &mut Ready<'w>) -> Result<(), Failure> {
        // SAFETY: the buffers outlive `on`, and nothing else uses them until the stream is idle.
        unsafe { ready.on.start(&ready.plan) }.map_err(|error| Failure::World(error.into()))
    }

    /// What users do without it, where blocks have one length and there is NCCL.
    ///
    /// # Errors
    /// No memory.
    pub fn staged<'r>(&'r self, exchange: &Exchange) -> Result<Option<Staged<'r, 'w>>, Failure> {
        let Some(nccl) = self.nccl.as_ref().filter(|_| exchange.even) else { return Ok(None) };
        let on = self.engine.on(self.stream)?;
        let memory = [(); 2].map(|()| self.world.alloc_device(self.space, exchange.bytes));
        let [out, back] = memory;
        let flat = [0, 1].map(|side| {
            let layouts = &exchange.layouts[side];
            layouts.iter().all(Layout::is_contiguous)
        });
        Ok(Some(Staged { rank: self, nccl, on, out: out?, back: back?, flat }))
    }

    /// Seconds of a call, the slowest rank's, back to back, by the device's clock.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn back_to_back(
        &self,
        calls: u32,
        samples: usize,
        ready: &mut Ready<'w>,
        mut queue: impl FnMut(&mut Ready<'w>) -> Result<(), Failure>,
    ) -> Result<Vec<f64>, Failure> {
        let mut seconds = Vec::new();
        for sample in 0..=samples {
            self.comm.barrier()?;
            let took = self.queued.marked(|| (0..calls).try_for_each(|_| queue(ready)))?;
            self.queued.idle(&ready.on)?;
            if sample > 0 {
                seconds.push(took / f64::from(calls));
            }
        }
        self.queued.slowest(&seconds)
    }

    /// The same of a graph of so many exchanges.
    ///
    /// # Errors
    /// As there.
    pub fn captured(
        &self,
        calls: u32,
        samples: usize,
        ready: &mut Ready<'w>,
    ) -> Result<Vec<f64>, Failure> {
        let graph: CudaGraph =
            self.stream.capture(|_| (0..calls).try_for_each(|_| self.start(ready)))?;
        let seconds = self.back_to_back(1, samples, ready, |_| {
            // SAFETY: the buffers are there, and nothing else uses them.
            Ok(unsafe { graph.launch(self.stream) }?)
        })?;
        Ok(seconds.into_iter().map(|seconds| seconds / f64::from(calls)).collect())
    }

    /// Seconds of a call and its wait, the slowest rank's, by the host's clock.
    ///
    /// # Errors
    /// Those of the call.
    pub fn awaited(
        &self,
        samples: usize,
        ready: &mut Ready<'w>,
        mut call: impl FnMut(&mut Ready<'w>) -> Result<(), Failure>,
    ) -> Result<Vec<f64>, Failure> {
        let all = runs(self.comm, samples + 1, &mut || {
            call(ready)?;
            self.queued.idle(&ready.on)
        })?;
        // The first is for warming up.
        Ok(all[1..].to_vec())
    }

    /// A halo exchange of `side`³ cells in all, cut along dimension `along`, and the same as messages. Collective.
    ///
    /// # Errors
    /// No memory; blocks that do not fit together.
    pub fn halo(
        &self,
        side: u64,
        along: usize,
        way: Option<StreamWay>,
    ) -> Result<(Ready<'w>, Plan, u64), Failure> {
        let (me, ranks) = (self.comm.rank(), self.comm.size());
        let mut inner = [side; 3];
        inner[along] /= u64::from(ranks);
        let sizes = inner.map(|len| len + 2);
        let bytes = sizes.iter().product::<u64>() * 8;
        let memory = self.world.alloc_device(self.space, bytes)?;
        let ways: Vec<[i64; 3]> = (0..27i64)
            .map(|at| [at / 9 - 1, at / 3 % 3 - 1, at % 3 - 1])
            .filter(|way| *way != [0; 3])
            .collect();
        // Whom a step leads to: every dimension is a ring.
        let there = |step: i64| {
            u32::try_from((i64::from(me) + step).rem_euclid(i64::from(ranks))).unwrap_or(0)
        };
        let to: Vec<u32> = ways.iter().map(|way| there(way[along])).collect();
        let from: Vec<u32> = ways.iter().map(|way| there(-way[along])).collect();
        let double = f64::datatype();
        let (mut sends, mut recvs, mut sent) = (Vec::new(), Vec::new(), 0);
        for (way, to) in ways.iter().zip(&to) {
            let pick = |dim: usize, back: u64, along: u64, ahead: u64| match way[dim] {
                -1 => back,
                0 => along,
                _ => ahead,
            };
            let lens: [u64; 3] = std::array::from_fn(|dim| pick(dim, 1, inner[dim], 1));
            let own: [u64; 3] = std::array::from_fn(|dim| pick(dim, 1, 1, inner[dim]));
            // What comes along this way comes from the other side.
            let ghost: [u64; 3] = std::array::from_fn(|dim| pick(dim, inner[dim] + 1, 1, 0));
            let part = |starts: [u64; 3]| -> Result<Layout, Failure> {
                let all = Subarray::of(&double).sizes(sizes).subsizes(lens);
                Ok(all.starts(starts).build()?.commit()?)
            };
            sends.push(part(own)?);
            recvs.push(part(ghost)?);
            sent += if *to == me { 0 } else { lens.iter().product::<u64>() * 8 };
        }
        let graph = self.comm.dist_graph_create_adjacent((&from, None), (&to, None))?;
        let mut on =
            graph.on_with(self.stream, StreamOptions { way, ..StreamOptions::default() })?;
        // SAFETY: the memory is dropped after `on`.
        let cells = unsafe { on.register(memory.region()) }?;
        // SAFETY: ghost cells are no other's, and not sent.
        let plan = unsafe {
            on.plan_neighbor_alltoallw(cells, &in_place(&sends), cells, &in_place(&recvs))
        }?;
        let mut messages = self.comm.plan(&memory);
        for (tag, ((send, to), (recv, from))) in
            (0..).zip(sends.iter().zip(&to).zip(recvs.iter().zip(&from)))
        {
            messages = messages.send(0, send, 1, *to, tag)?;
            messages = messages.recv(0, recv, 1, *from, tag)?;
        }
        let messages = messages.build()?;
        let ready = Ready { on, plan, _shared: vec![cells], send: memory, recv: None };
        Ok((ready, messages, sent))
    }

    /// Whether a halo exchange and the messages leave the same in all cells. Collective.
    ///
    /// # Errors
    /// Those of the exchanges.
    pub fn agree(&self, ready: &mut Ready<'w>, messages: &mut Plan) -> Result<bool, Failure> {
        let ours = self.content(self.comm.rank(), ready.send.region().len());
        let mut found = [vec![0.0f32; ours.len()], vec![0.0f32; ours.len()]];
        for (turn, found) in found.iter_mut().enumerate() {
            self.copy(ready.send.region(), Region::of(as_bytes(&ours)))?;
            self.comm.barrier()?;
            if turn == 0 {
                self.start(ready)?;
                self.queued.idle(&ready.on)?;
            } else {
                messages.exchange(&mut ready.send)?;
            }
            self.comm.barrier()?;
            self.copy(Region::of_mut(as_bytes_mut(found)), ready.send.region())?;
        }
        let fine =
            as_bytes(&found[0]) == as_bytes(&found[1]) && as_bytes(&found[0]) != as_bytes(&ours);
        self.queued.all(fine)
    }
}

impl Ready<'_> {
    /// The memory that messages exchange.
    pub fn memory(&mut self) -> &mut DeviceBuf {
        &mut self.send
    }
}

fn in_place(layouts: &[Layout]) -> Vec<StreamBlock<'_>> {
    layouts.iter().map(|layout| StreamBlock { displacement: 0, layout, count: 1 }).collect()
}

/// Packing, NCCL, unpacking.
pub struct Staged<'r, 'w> {
    rank: &'r Rank<'w>,
    nccl: &'r Nccl,
    on: OnStream<'r>,
    out: DeviceBuf,
    back: DeviceBuf,
    /// Whether what is sent, and what is received, has no gaps.
    flat: [bool; 2],
}

impl Staged<'_, '_> {
    /// Queues all three.
    ///
    /// # Errors
    /// Those of the engine and of NCCL.
    pub fn queue(&self, exchange: &Exchange, ready: &Ready<'_>) -> Result<(), Failure> {
        let recv = ready.recv.as_ref().unwrap_or(&ready.send).region();
        let ranks = u64::from(self.rank.comm.size());
        let block = exchange.bytes / ranks;
        let typed = |side: usize, rank: usize, memory: Region| {
            Typed::new(memory, exchange.displacements[side][rank], &exchange.layouts[side][rank], 1)
        };
        let part = |memory: &DeviceBuf, rank: usize| {
            memory.region().sub(rank as u64 * block, block).map_err(gapless_mem::DeviceError::from)
        };
        let (mut from, mut to) = (ready.send.region().start(), recv.start());
        if !self.flat[0] {
            from = self.out.region().start();
            for rank in 0..ranks as usize {
                let out = part(&self.out, rank)?;
                // SAFETY: both are long enough; the stream orders it before the all-to-all.
                unsafe { self.on.pack(&typed(0, rank, ready.send.region())?, 0..block, out) }?;
            }
        }
        if !self.flat[1] {
            to = self.back.region().start();
        }
        // SAFETY: as above.
        unsafe {
            self.nccl.call(NcclCall::Alltoall, (from, to), block / 4, self.rank.stream.handle())
        }?;
        if !self.flat[1] {
            for rank in 0..ranks as usize {
                let back = part(&self.back, rank)?;
                // SAFETY: as above.
                unsafe { self.on.unpack(back, &typed(1, rank, recv)?, 0..block) }?;
            }
        }
        Ok(())
    }
}

fn as_bytes(floats: &[f32]) -> &[u8] {
    // SAFETY: any byte of a float is a byte.
    unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), size_of_val(floats)) }
}

fn as_bytes_mut(floats: &mut [f32]) -> &mut [u8] {
    // SAFETY: any bytes are a float.
    unsafe { std::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), size_of_val(floats)) }
}

// NCCL counts elements of this type.
const _: () = assert!(Primitive::Float.size_bytes() == 4);

#[cfg(test)]
mod tests;
