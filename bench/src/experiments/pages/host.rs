//! Pages between memory of a GPU and page-locked memory of the host, over the bus, both ways: by puts and gets of a
//! window in the other process's memory, and by messages; beside the driver's copy of as many bytes.
//!
//! The first process has the GPU, the second one only memory, which both map. All work is the GPU's.

use std::cell::RefCell;

use gapless::{
    Datatype, DeviceBuf, Lock, Pages as PagesAt, Place, Primitive, SharedBuf, Space, View, ViewMut, Window, World,
};
use gapless_report::{Mark, Row, Summary};

use super::{End, LISTS, Way, Work, content};
use crate::check::same;
use crate::clock::race;
use crate::error::Failure;
use crate::experiment::Common;
use crate::gpu::{copied, paged};
use crate::random::Random;

/// The page that page `index` of the host's memory looks like is so far from it.
const SHIFT: u64 = 1;

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Host,
    Gpu,
}

/// All ways of one work; rows at rank 0 alone.
pub(super) fn measure(world: &World, common: &Common, work: &Work, device: u32) -> Result<Vec<Row>, Failure> {
    let comm = world.comm();
    let len = usize::try_from(work.pool() * work.page).unwrap_or(0);
    let own = if comm.rank() == 0 { 0 } else { len };
    let mut window: Window<u8> = comm.window_allocate(own)?;
    if comm.rank() == 1 {
        let bytes: Vec<u8> = (0..work.pool()).flat_map(|page| content(work, page + SHIFT)).collect();
        window.write(&bytes, 0)?;
    }
    comm.barrier()?;
    let mut rows = Vec::new();
    if comm.rank() == 1 {
        comm.barrier()?;
        window.free()?;
        serve(world, work)?;
        return Ok(rows);
    }
    let mut gpu = Gpu::new(world, work, Space::Cuda { device })?;
    let row = |op: &str, to: To, way: Way, times: [Summary; 2]| {
        let (spaces, ratio) = (format!("cuda {device}, host"), times[1].median / times[0].median);
        let op = format!("{op}, to the {}", if to == To::Host { "host" } else { "GPU" });
        let row = Row::new(work.case(), op, spaces, way.name(), work.bytes(), times[0]);
        let row = row.verified(true).against("cudaMemcpyAsync", times[1]);
        match way {
            Way::OnDevice => row.mark(Mark::at_least("cudaMemcpyAsync", 0.95, ratio)),
            _ => row,
        }
    };
    window.lock(1, Lock::Shared)?;
    // What was put is not to be read before it was looked at.
    for (to, op) in [(To::Gpu, "get"), (To::Host, "put")] {
        for way in [Way::OnDevice, Way::OnHost] {
            let times = gpu.race(common, work, to, |gpu, number| gpu.access(&window, (to, way), number))?;
            gpu.check(work, to, |place, page| Ok(window.get(page, 1, place)?))?;
            rows.push(row(op, to, way, times));
        }
    }
    window.unlock(1)?;
    comm.barrier()?;
    window.free()?;
    for to in [To::Gpu, To::Host] {
        for way in [Way::OnDevice, Way::OnHost] {
            let times = gpu.race(common, work, to, |gpu, number| gpu.message(world, (to, way), number))?;
            // What lies at the pages of the host was sent back and forth: the other process compares it.
            if to == To::Gpu {
                gpu.check(work, to, |_, _| Ok(()))?;
            }
            rows.push(row("message", to, way, times));
        }
    }
    comm.send(&[0u64, 0, gpu.last], 1, 0)?;
    Ok(rows)
}

/// The end that has the GPU.
struct Gpu {
    end: End,
    /// What is read goes here.
    into: DeviceBuf,
    /// What the driver copies from or to: page-locked memory.
    plain: RefCell<SharedBuf>,
    plain_gpu: RefCell<DeviceBuf>,
    /// The number of the last list.
    last: u64,
}

impl Gpu {
    fn new(world: &World, work: &Work, space: Space) -> Result<Gpu, Failure> {
        let len = usize::try_from(work.bytes()).unwrap_or(0);
        Ok(Gpu {
            end: End::new(world, space, work)?,
            into: world.alloc_device(space, work.pool() * work.page)?,
            plain: RefCell::new(world.alloc(len)?),
            plain_gpu: RefCell::new(world.alloc_device(space, work.bytes())?),
            last: 0,
        })
    }

    /// Times of an access or a message, and of the driver's copy the same way.
    fn race(
        &mut self,
        common: &Common,
        work: &Work,
        to: To,
        mut act: impl FnMut(&mut Gpu, u64) -> Result<(), Failure>,
    ) -> Result<[Summary; 2], Failure> {
        let (failed, gpu) = (RefCell::new(None), RefCell::new(self));
        let mut once = || {
            let mut gpu = gpu.borrow_mut();
            gpu.last += 1;
            let number = gpu.last;
            if let Err(why) = act(&mut gpu, number) {
                failed.borrow_mut().get_or_insert(why);
            }
        };
        let mut copy = || {
            let gpu = gpu.borrow();
            let (mut plain, mut far) = (gpu.plain.borrow_mut(), gpu.plain_gpu.borrow_mut());
            let len = usize::try_from(work.bytes()).unwrap_or(0);
            let copied = match to {
                To::Host => copied::up(&mut plain[..len], &far),
                To::Gpu => copied::down(&mut far, &plain[..len]),
            };
            if let Err(why) = copied {
                failed.borrow_mut().get_or_insert(why.into());
            }
        };
        let times = race(common.seconds(), [&mut once, &mut copy]);
        if let Some(why) = failed.take() {
            return Err(why);
        }
        times.map_err(Failure::samples("pages over the bus"))
    }

    /// A put or a get.
    fn access(&mut self, window: &Window<u8>, (to, way): (To, Way), number: u64) -> Result<(), Failure> {
        let (end, page) = (&self.end, (&self.end.page, self.end.stride));
        if way == Way::OnDevice {
            let mine = end.table.indices_u32(end.words(0, number))?;
            let theirs = (&end.table, end.words(1, number));
            match to {
                To::Host => drop(paged::put(window, &end.pool.pages_at(0, page.0, page.1, mine)?, (1, 0), page, theirs)?),
                To::Gpu => {
                    let view = self.into.pages_at_mut(0, page.0, page.1, mine)?;
                    paged::get(window, view, 1, page, theirs)?;
                }
            }
            return Ok(());
        }
        let (mine, theirs) = (end.pages(0, number)?, Place::pages(0, &end.pages(1, number)?));
        match to {
            To::Host => window.put(end.pool.pages(0, &mine)?, 1, theirs)?,
            To::Gpu => window.get(self.into.pages_mut(0, &mine)?, 1, theirs)?,
        }
        Ok(window.flush(1)?)
    }

    /// A message, and the other end's word that it has got it, or comes.
    fn message(&mut self, world: &World, (to, way): (To, Way), number: u64) -> Result<(), Failure> {
        let (comm, end) = (world.comm(), &self.end);
        comm.send(&[1 + u64::from(to == To::Gpu), number, 0], 1, 0)?;
        let (page, stride, mine) = (&end.page, end.stride, end.pages(0, number)?);
        let words = end.table.indices_u32(end.words(0, number))?;
        match (to, way) {
            (To::Host, Way::OnDevice) => drop(comm.send(end.pool.pages_at(0, page, stride, words)?, 1, 1)?),
            (To::Host, _) => drop(comm.send(end.pool.pages(0, &mine)?, 1, 1)?),
            (To::Gpu, Way::OnDevice) => drop(comm.recv(self.into.pages_at_mut(0, page, stride, words)?, 1, 1)?),
            (To::Gpu, _) => drop(comm.recv(self.into.pages_mut(0, &mine)?, 1, 1)?),
        }
        if to == To::Host {
            comm.recv(&mut [0u8], 1, 2)?;
        }
        Ok(())
    }

    /// Compares some pages of what came last. `read` gets a page of the host's, from a byte on.
    fn check(
        &self,
        work: &Work,
        to: To,
        read: impl Fn(u64, &mut [u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let at = usize::try_from(self.last % LISTS).unwrap_or(0);
        let mut random = Random::new(work.seed + self.last);
        for _ in 0..200 {
            let sampled = usize::try_from(random.below(work.count)).unwrap_or(0);
            let [ours, theirs] = [0, 1].map(|end: usize| u64::from(self.end.lists[end][at][sampled]));
            let mut found = vec![0u8; usize::try_from(work.page).unwrap_or(0)];
            let right = match to {
                To::Host => {
                    read(theirs * work.page, &mut found)?;
                    content(work, ours)
                }
                To::Gpu => {
                    copied::up_at(&mut found, &self.into, ours * work.page)?;
                    content(work, theirs + SHIFT)
                }
            };
            same(&found, &right).map_err(|wrong| Failure::Wrong { case: work.case(), op: "pages", wrong })?;
        }
        Ok(())
    }
}

/// The other end of messages: pages of its memory, at lists of the host.
fn serve(world: &World, work: &Work) -> Result<(), Failure> {
    let comm = world.comm();
    let page = Datatype::contiguous(work.page, &Primitive::Byte.into())?.commit()?;
    let lists: Vec<Vec<u32>> = (0..LISTS).map(|number| work.list(number, 1)).collect();
    let mut pool = world.alloc(usize::try_from(work.pool() * work.page).unwrap_or(0))?;
    let length = usize::try_from(work.page).unwrap_or(1);
    for (at, place) in (0..).zip(pool.chunks_exact_mut(length)) {
        place.copy_from_slice(&content(work, at + SHIFT));
    }
    let mut next = [0u64; 3];
    loop {
        comm.recv(&mut next, 0, 0)?;
        let at = usize::try_from(next[1] % LISTS).unwrap_or(0);
        let pages = PagesAt::new(&page, work.page, &lists[at][..]).map_err(gapless::Error::from)?;
        match next[0] {
            0 => break,
            1 => {
                comm.recv(ViewMut::pages(&mut pool[..], 0, &pages)?, 0, 1)?;
                comm.send(&[1u8], 0, 2)?;
            }
            _ => drop(comm.send(View::pages(&pool[..], 0, &pages)?, 0, 1)?),
        }
    }
    let last = next[2];
    let at = usize::try_from(last % LISTS).unwrap_or(0);
    let sent = work.list(last % LISTS, 0);
    for (from, to) in sent.iter().zip(&lists[at]).step_by(97) {
        let start = usize::try_from(*to).unwrap_or(0) * length;
        same(&pool[start..start + length], &content(work, u64::from(*from)))
            .map_err(|wrong| Failure::Wrong { case: work.case(), op: "pages", wrong })?;
    }
    Ok(())
}
