//! Two ends of messages, in processes of their own: the memory that options name, and page-locked memory of the host
//! beside it, by which users move a device's data by hand.
//!
//! By hand means a blocking copy, a message of the host, a blocking copy (Aji et al. 2012, Figure 1); or packets in a
//! ring of [`DEPTH`], of which some are copied while others travel.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use gapless::{
    Config, CudaDriver, DeviceBuf, Layout, OpenClDevice, Primitive, Protocol, Region, SharedBuf,
    Space, Status, View, ViewMut, World,
};
use gapless_cli::pingpong::{Ends, Where};
use gapless_dtype::Datatype;
use gapless_mem::{Device, DeviceError, Outstanding};
use gapless_report::Row;
use serde::{Deserialize, Serialize};

use crate::check::same;
use crate::error::Failure;
use crate::namespaces::Namespaces;
use crate::random::Random;

/// Packets of a ring.
pub(crate) const DEPTH: u64 = 4;
/// Copies that go on at a time, so that the next one is over when it is asked for.
const AHEAD: u64 = 2;
/// What is page-locked is whole pages.
const PAGE: u64 = 4096;

const DATA: i32 = 1;
const WORD: i32 = 2;

/// How messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub(crate) enum Link {
    Node,
    Loopback,
    Namespaces,
}

impl Link {
    pub(crate) const ALL: [Link; 3] = [Link::Node, Link::Loopback, Link::Namespaces];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Link::Node => "node, no IPC",
            Link::Loopback => "TCP, loopback",
            Link::Namespaces => "TCP, namespaces",
        }
    }

    /// The namespaces that the ranks are in, if in some.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn hosts(self) -> Result<Option<Namespaces>, String> {
        (self == Link::Namespaces).then(Namespaces::new).transpose()
    }

    /// A rank's world, in which devices map none of each other's memory.
    pub(crate) fn world(self) -> Result<World, gapless::Error> {
        let world = match self {
            Link::Node => World::init()?,
            Link::Loopback => World::builder().only(["tcp"]).tcp_interfaces("lo").init()?,
            Link::Namespaces => World::builder().only(["tcp"]).init()?,
        };
        world.set_config(Config { device_ipc: false, ..world.config()? })?;
        Ok(world)
    }
}

/// The host's memory, and that of the first device of each kind that there is.
pub(crate) fn places() -> Vec<Where> {
    let cuda = CudaDriver::load().is_ok_and(|driver| driver.devices() > 0);
    let opencl = OpenClDevice::open(0).is_ok();
    let devices = [cuda.then_some(Where::Cuda(0)), opencl.then_some(Where::OpenCl(0))];
    [Some(Where::Host)].into_iter().chain(devices).flatten().collect()
}

/// The devices that are asked for, or the first of each kind.
pub(crate) fn devices(asked: &[Where]) -> Vec<Where> {
    match asked {
        [] => places().into_iter().filter(|place| place.is_device()).collect(),
        asked => asked.to_vec(),
    }
}

/// What two processes of `acc3` or `acc6` measure.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Between {
    pub(crate) link: Link,
    pub(crate) pairing: Pairing,
}

/// Which link and memory a row is of; its case ends with the payload.
pub(crate) fn link_of(row: &Row) -> &str {
    row.case.rsplit_once(", ").map_or(&*row.case, |(link, _)| link)
}

/// A number that a row has besides.
pub(crate) fn extra_number(row: &Row, key: &str) -> f64 {
    row.extra.get(key).and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN)
}

/// A picture's part of a file name.
pub(crate) fn suffix_of(what: &str) -> String {
    let what = what.replace("->", " to ").replace([',', ':'], "");
    what.replace(' ', "-").to_ascii_lowercase()
}

/// The memories of both ends, as options name them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pairing([String; 2]);

impl Pairing {
    pub(crate) fn of(ends: Ends) -> Pairing {
        Pairing(ends.0.map(|place| place.to_string()))
    }

    pub(crate) fn ends(&self) -> Result<Ends, Failure> {
        let place =
            |text: &String| text.parse().map_err(|why| Failure::Option { option: "a memory", why });
        Ok(Ends([place(&self.0[0])?, place(&self.0[1])?]))
    }
}

/// A place's device, if it is one. An OpenCL device is kept: the world works in its context.
pub(crate) struct Opened {
    pub(crate) space: Option<Space>,
    _opencl: Option<OpenClDevice>,
}

impl Opened {
    pub(crate) fn of(place: Where) -> Result<Opened, Failure> {
        Ok(match place {
            Where::Host => Opened { space: None, _opencl: None },
            Where::Cuda(device) => Opened { space: Some(Space::Cuda { device }), _opencl: None },
            Where::OpenCl(number) => {
                let number = usize::try_from(number).unwrap_or(usize::MAX);
                let device = OpenClDevice::open(number)
                    .map_err(|why| Failure::NoGpu { why: why.to_string() })?;
                Opened { space: Some(device.space()), _opencl: Some(device) }
            }
        })
    }
}

/// Host memory that a device has page-locked: by the transport that maps it, else here.
struct Locked {
    memory: SharedBuf,
    pages: Region,
    by: Option<Arc<dyn Device>>,
}

impl Locked {
    fn new(world: &World, device: Option<Arc<dyn Device>>, len: u64) -> Result<Locked, Failure> {
        let len = len.next_multiple_of(PAGE);
        let memory = world.alloc(usize::try_from(len + PAGE).unwrap_or(usize::MAX))?;
        let before = memory.region().start().next_multiple_of(PAGE) - memory.region().start();
        let pages = memory.region().sub(before, len).map_err(DeviceError::from)?;
        let by = device.filter(|_| !memory.is_mappable());
        if let Some(device) = &by {
            // SAFETY: `drop` unregisters the pages, and the memory is freed after that.
            unsafe { device.register(pages) }?;
        }
        Ok(Locked { memory, pages, by })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if let Some(device) = &self.by {
            // SAFETY: registered when this was made; whoever started work on it has waited for that.
            let undone = unsafe { device.unregister(self.pages) };
            debug_assert!(undone.is_ok(), "{undone:?}");
        }
    }
}

/// What is done with packets besides sending them.
pub(crate) enum Beside {
    /// Each is copied from or to the device.
    Copies,
    /// For each a copy is asked after that was over long ago.
    Queries(VecDeque<Outstanding>),
    Nothing,
}

impl Beside {
    /// What goes on with the next packet, which `copy` would begin to copy.
    fn next<E>(
        &mut self,
        copy: impl FnOnce() -> Result<Option<Outstanding>, E>,
    ) -> Result<Option<Outstanding>, E> {
        match self {
            Beside::Copies => copy(),
            Beside::Queries(over) => Ok(over.pop_front()),
            Beside::Nothing => Ok(None),
        }
    }
}

/// One of the two. Rank 0 sends.
pub(crate) struct CopyingEnd<'w> {
    world: &'w World,
    memory: Option<DeviceBuf>,
    locked: Locked,
    byte: Layout,
}

impl<'w> CopyingEnd<'w> {
    /// For messages of so many bytes at most.
    pub(crate) fn new(
        world: &'w World,
        opened: &Opened,
        len: u64,
    ) -> Result<CopyingEnd<'w>, Failure> {
        let memory = opened.space.map(|space| world.alloc_device(space, len)).transpose()?;
        let locked = Locked::new(world, memory.as_ref().map(DeviceBuf::device), len)?;
        let byte = Datatype::from(Primitive::Byte).commit()?;
        Ok(CopyingEnd { world, memory, locked, byte })
    }

    pub(crate) fn sends(&self) -> bool {
        self.world.rank() == 0
    }

    pub(crate) fn has_device(&self) -> bool {
        self.memory.is_some()
    }

    /// Where messages lie.
    fn own(&self) -> Region {
        self.memory.as_ref().map_or(self.locked.pages, DeviceBuf::region)
    }

    fn fill(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let (len, own) = (bytes.len(), self.own());
        match &self.memory {
            // SAFETY: both are borrowed, one exclusively, until the copy has been waited for.
            Some(memory) => unsafe {
                memory.device().copy(
                    own.sub(0, len as u64).map_err(DeviceError::from)?,
                    Region::of(bytes),
                    &[],
                )
            }?
            .wait()?,
            None => {
                let before = self.before_pages();
                self.locked.memory[before..before + len].copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn fetch(&self, len: usize) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; len];
        match &self.memory {
            // SAFETY: as in `fill`.
            Some(memory) => unsafe {
                let own = self.own().sub(0, len as u64).map_err(DeviceError::from)?;
                memory.device().copy(Region::of_mut(&mut bytes), own, &[])
            }?
            .wait()?,
            None => {
                let before = self.before_pages();
                bytes.copy_from_slice(&self.locked.memory[before..before + len]);
            }
        }
        Ok(bytes)
    }

    /// Has bytes of rank 0's moved, and compares what rank 1 has with them.
    pub(crate) fn checked(
        &mut self,
        case: &str,
        (len, seed): (u64, u64),
        work: impl FnOnce(&Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        Random::new(seed ^ len).fill(&mut bytes);
        let before: Vec<u8> =
            if self.sends() { bytes.clone() } else { bytes.iter().map(|byte| !byte).collect() };
        self.fill(&before)?;
        self.world.comm().barrier()?;
        work(self)?;
        let wrong = |wrong| Failure::Wrong { case: case.to_owned(), op: "one way", wrong };
        same(&self.fetch(bytes.len())?, &bytes).map_err(wrong)
    }

    fn before_pages(&self) -> usize {
        usize::try_from(self.locked.pages.start() - self.locked.memory.region().start())
            .unwrap_or(0)
    }

    fn view<'v>(
        &'v self,
        of: Region,
        (start, len): (u64, u64),
    ) -> Result<View<'v>, gapless::Error> {
        // SAFETY: the region is `own` or `locked`, which live as long as this value. Nobody has a reference to bytes of
        // them while messages are under way: `fill` and `fetch` are not called then. What copies write meanwhile is
        // read as arbitrary bytes, nothing worse.
        unsafe { View::of_region(of, start, &self.byte, len) }
    }

    fn view_mut<'v>(
        &'v self,
        of: Region,
        (start, len): (u64, u64),
    ) -> Result<ViewMut<'v>, gapless::Error> {
        // SAFETY: as in `view`; no other message is received into this part.
        unsafe { ViewMut::of_region(of, start, &self.byte, len) }
    }

    /// Starts copying `len` bytes between the device's memory, from `at` on, and the page-locked memory, from `place`
    /// on: out of the device at the end that sends.
    fn copy(&self, at: u64, place: u64, len: u64) -> Result<Option<Outstanding>, DeviceError> {
        let Some(memory) = &self.memory else { return Ok(None) };
        let (near, far) = (self.locked.pages.sub(place, len)?, memory.region().sub(at, len)?);
        let (to, from) = if self.sends() { (near, far) } else { (far, near) };
        // SAFETY: both live as long as this value, and the work is waited for before its caller returns.
        let copied = unsafe { memory.device().copy(to, from, &[]) }?;
        Ok(Some(Outstanding::new(copied)))
    }

    /// Copies all, in packets of which [`AHEAD`] are under way.
    pub(crate) fn bus(&self, len: u64, packet: u64) -> Result<(), DeviceError> {
        let mut going = VecDeque::new();
        for index in 0..len.div_ceil(packet) {
            if going.len() as u64 == AHEAD {
                going.pop_front().map_or(Ok(()), Outstanding::wait)?;
            }
            let at = index * packet;
            going.extend(self.copy(at, self.place(index, packet), packet.min(len - at))?);
        }
        going.into_iter().try_for_each(Outstanding::wait)
    }

    /// Copies of a few bytes that are over, and that nobody has asked after.
    pub(crate) fn over(&self, count: u64) -> Result<VecDeque<Outstanding>, DeviceError> {
        let short = (0..=count).map(|_| self.copy(0, 0, 64));
        let mut all = short.filter_map(Result::transpose).collect::<Result<VecDeque<_>, _>>()?;
        // They are done one after the other.
        all.pop_back().map_or(Ok(()), Outstanding::wait)?;
        Ok(all)
    }

    /// One message of ours, between where the bytes are.
    pub(crate) fn direct(&self, len: u64) -> Result<Status, gapless::Error> {
        self.message(self.own(), len)
    }

    /// So many messages of so many bytes at a time; rank 1 says when each has arrived.
    pub(crate) fn crowd(
        &self,
        count: u64,
        len: u64,
        mut arrived: impl FnMut(),
    ) -> Result<(), Failure> {
        self.world.comm().scope(|s| {
            let parts = (0..count).map(|index| (index * len, len));
            let mut all = Vec::new();
            for part in parts {
                all.push(match self.sends() {
                    true => s.isend(self.view(self.own(), part)?, 1, DATA)?,
                    false => s.irecv(self.view_mut(self.own(), part)?, 0, DATA)?,
                });
            }
            while let Some((_, ended)) = s.wait_any(&mut all) {
                ended?;
                arrived();
            }
            Ok(())
        })?;
        Ok(())
    }

    /// One message between page-locked memories of the host.
    pub(crate) fn between_hosts(&self, len: u64) -> Result<Status, gapless::Error> {
        self.message(self.locked.pages, len)
    }

    fn message(&self, of: Region, len: u64) -> Result<Status, gapless::Error> {
        match self.sends() {
            true => self.world.comm().send(self.view(of, (0, len))?, 1, DATA),
            false => self.world.comm().recv(self.view_mut(of, (0, len))?, 0, DATA),
        }
    }

    /// Has messages of ours go until they know how, and tells by which protocol, and how long the packets are that a
    /// device packs or unpacks.
    pub(crate) fn settle(&self, len: u64) -> Result<(Protocol, u64), Failure> {
        /// The first ones find out by which protocol later ones go.
        const MESSAGES: u32 = 20;
        let packets = || -> Result<u64, Failure> {
            let counters = self.world.counters()?;
            let all = counters.used().map(|(protocol, counts)| match protocol {
                // Several fragments are packed, or unpacked, at once.
                Protocol::Pipeline => counts.packs + counts.unpacks,
                _ => counts.fragments,
            });
            Ok(all.sum())
        };
        for _ in 0..MESSAGES {
            self.timed(|| self.direct(len).map(drop))?;
        }
        let (before, mut protocol) = (packets()?, Protocol::Eager);
        self.timed(|| self.direct(len).map(|status| protocol = status.protocol))?;
        let own = packets()? - before;
        let mut both = [0; 2];
        self.world.comm().allgather(&[own], &mut both)?;
        // The end that packs, or that unpacks if the sender has no device.
        let mut first_packs = [u64::from(self.has_device())];
        self.world.comm().bcast(&mut first_packs, 0)?;
        let count = both[usize::from(first_packs == [0])].max(1);
        Ok((protocol, len.div_ceil(count).next_multiple_of(PAGE).min(len)))
    }

    /// By hand: a copy, a message of the host, a copy.
    pub(crate) fn blocking(&self, len: u64) -> Result<(), gapless::Error> {
        if self.sends() {
            self.bus(len, len)?;
        }
        self.between_hosts(len)?;
        if !self.sends() {
            self.bus(len, len)?;
        }
        Ok(())
    }

    /// By hand: packets, each a message of the host.
    pub(crate) fn packets(
        &self,
        len: u64,
        packet: u64,
        beside: Beside,
    ) -> Result<(), gapless::Error> {
        if self.sends() {
            self.send_packets(len, packet, beside)
        } else {
            self.receive_packets(len, packet, beside)
        }
    }

    /// Where packet `index` lies in the page-locked memory: in a ring, but where the message itself is there.
    fn place(&self, index: u64, packet: u64) -> u64 {
        packet * if self.has_device() { index % DEPTH } else { index }
    }

    fn send_packets(
        &self,
        len: u64,
        packet: u64,
        mut beside: Beside,
    ) -> Result<(), gapless::Error> {
        let all = len.div_ceil(packet);
        let length = |index: u64| packet.min(len - index * packet);
        self.world.comm().scope(|s| {
            let (mut sends, mut copies, mut begun) = (VecDeque::new(), VecDeque::new(), 0);
            for index in 0..all {
                while begun < all.min(index + AHEAD) {
                    if begun >= DEPTH
                        && let Some(sent) = sends.pop_front()
                    {
                        s.wait(sent)?;
                    }
                    let place = self.place(begun, packet);
                    copies.extend(beside.next(|| self.copy(begun * packet, place, length(begun)))?);
                    begun += 1;
                }
                copies.pop_front().map_or(Ok(()), Outstanding::wait)?;
                let view =
                    self.view(self.locked.pages, (self.place(index, packet), length(index)))?;
                sends.push_back(s.isend(view, 1, DATA)?);
            }
            Ok(())
        })
    }

    fn receive_packets(
        &self,
        len: u64,
        packet: u64,
        mut beside: Beside,
    ) -> Result<(), gapless::Error> {
        let all = len.div_ceil(packet);
        let length = |index: u64| packet.min(len - index * packet);
        self.world.comm().scope(|s| {
            let (mut receives, mut copies, mut posted) = (VecDeque::new(), VecDeque::new(), 0);
            for index in 0..all {
                // The packet before is being copied out of the place that is left.
                while posted < all.min(index + DEPTH - 1) {
                    if posted >= DEPTH {
                        copies.pop_front().map_or(Ok(()), Outstanding::wait)?;
                    }
                    let view = self.view_mut(
                        self.locked.pages,
                        (self.place(posted, packet), length(posted)),
                    )?;
                    receives.push_back(s.irecv(view, 0, DATA)?);
                    posted += 1;
                }
                if let Some(received) = receives.pop_front() {
                    s.wait(received)?;
                }
                let place = self.place(index, packet);
                copies.extend(beside.next(|| self.copy(index * packet, place, length(index)))?);
            }
            copies.into_iter().try_for_each(Outstanding::wait)?;
            Ok(())
        })
    }

    /// Seconds until what both do has ended at both: rank 1 says so.
    pub(crate) fn timed<E>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<f64, Failure>
    where
        Failure: From<E>,
    {
        let begin = Instant::now();
        work()?;
        self.word(!self.sends())?;
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Seconds of what each does alone, rank 0 first.
    pub(crate) fn in_turn<E>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<f64, Failure>
    where
        Failure: From<E>,
    {
        if !self.sends() {
            self.word(false)?;
        }
        let begin = Instant::now();
        work()?;
        let took = begin.elapsed().as_secs_f64();
        self.word(true)?;
        if self.sends() {
            self.word(false)?;
        }
        Ok(took)
    }

    fn word(&self, says: bool) -> Result<(), gapless::Error> {
        let (comm, peer) = (self.world.comm(), 1 - self.world.rank());
        match says {
            true => comm.send(&[0u8], peer, WORD).map(drop),
            false => comm.recv(&mut [0u8], peer, WORD).map(drop),
        }
    }

    /// As many numbers of rank 1's, at rank 0; rank 1 has its own.
    pub(crate) fn theirs(&self, mut numbers: Vec<f64>) -> Result<Vec<f64>, gapless::Error> {
        match self.sends() {
            true => self.world.comm().recv(&mut numbers[..], 1, WORD).map(drop)?,
            false => self.world.comm().send(&numbers[..], 0, WORD).map(drop)?,
        }
        Ok(numbers)
    }
}
