//! Several endpoints in one thread, joined by loopback transports, and buffers for them.
#![allow(dead_code, reason = "each test program uses its part")]

pub(crate) mod ahead;
pub(crate) mod forged;
pub(crate) mod lab;
pub(crate) mod rogue;
pub(crate) mod trio;

use gapless_bml::{Bml, Patience, Rank, Waiter};
use gapless_btl::loopback::{self, Hub, Loopback};
use gapless_btl::{Address, Btl};
use gapless_dtype::Layout;
use gapless_engine::{Engine, HostEngine, Typed};
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Device, Lease, Region};
use gapless_pml::{Config, Pml, PmlError, RequestId, RequestOutcome, Source, Status, TagSel};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Nothing in these tests takes longer; a watchdog, not a measurement.
const PATIENCE: Duration = Duration::from_secs(60);

/// All ranks of a job.
pub(crate) struct Job {
    pub(crate) ranks: Vec<Option<Pml>>,
}

pub(crate) fn link() -> loopback::Config {
    loopback::Config::default()
}

impl Job {
    pub(crate) fn new(size: u32) -> Job {
        Job::with(size, Config::default(), link())
    }

    pub(crate) fn with(size: u32, config: Config, link: loopback::Config) -> Job {
        Job::build(size, config, &mut |_, hub| {
            Box::new(Loopback::with(hub, link.clone())) as Box<dyn Btl>
        })
    }

    /// With whatever transports `rail` makes, and the host's engine.
    pub(crate) fn build(
        size: u32,
        config: Config,
        rail: &mut dyn FnMut(u32, &Hub) -> Box<dyn Btl>,
    ) -> Job {
        Job::with_engines(size, config, rail, &[Arc::new(HostEngine)])
    }

    pub(crate) fn with_engines(
        size: u32,
        config: Config,
        rail: &mut dyn FnMut(u32, &Hub) -> Box<dyn Btl>,
        engines: &[Arc<dyn Engine>],
    ) -> Job {
        let hub = Hub::new();
        let mut bmls: Vec<Bml> = Vec::new();
        let mut addresses: Vec<Vec<(String, Address)>> = Vec::new();
        for rank in 0..size {
            let mut bml = Bml::new(Rank(rank), size);
            bml.add(rail(rank, &hub));
            addresses.push(bml.addresses());
            bmls.push(bml);
        }
        let ranks = (0u32..).zip(bmls).map(|(me, mut bml)| {
            for peer in (0..size).filter(|peer| *peer != me) {
                bml.connect(Rank(peer), &addresses[peer as usize]).unwrap();
            }
            let mut pml = Pml::new(bml, engines.to_vec(), config.clone());
            pml.set_waiter(Waiter::with(Patience {
                spin: std::time::Duration::ZERO,
                yields: 0,
                block_ms: 1,
                clock_ms: 1,
            }));
            Some(pml)
        });
        Job { ranks: ranks.collect() }
    }

    pub(crate) fn pml(&mut self, rank: u32) -> &mut Pml {
        self.ranks[rank as usize].as_mut().expect("that rank lives")
    }

    /// Ends a rank as a killed process would.
    pub(crate) fn kill(&mut self, rank: u32) {
        self.ranks[rank as usize] = None;
    }

    pub(crate) fn progress(&mut self) -> usize {
        self.ranks.iter_mut().flatten().map(Pml::progress).sum()
    }

    /// Lets everybody go on until `done` gives something.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Job) -> Option<T>,
    ) -> T {
        let start = Instant::now();
        loop {
            if let Some(value) = done(self) {
                return value;
            }
            self.progress();
            assert!(start.elapsed() < PATIENCE, "{what} did not come to an end");
        }
    }

    /// Lets everybody go on until nothing more happens.
    pub(crate) fn settle(&mut self) {
        let mut quiet = 0;
        while quiet < 200 {
            quiet = if self.progress() == 0 { quiet + 1 } else { 0 };
        }
    }

    /// The outcome of a request of one rank; everybody goes on meanwhile.
    pub(crate) fn outcome(&mut self, rank: u32, id: RequestId) -> RequestOutcome {
        self.until("a request", |job| job.pml(rank).test(id).transpose())
    }

    /// As [`outcome`](Job::outcome), for who only asks why it failed.
    pub(crate) fn finish(&mut self, rank: u32, id: RequestId) -> Result<Status, PmlError> {
        let failure = match self.outcome(rank, id) {
            Ok(status) => return Ok(status),
            Err(failure) => failure,
        };
        // Only a receive that has taken a message can fail like this, or like that.
        match failure.error {
            PmlError::Truncated { .. }
            | PmlError::SignatureMismatch { .. }
            | PmlError::SenderFailed { .. } => assert!(failure.status().is_some(), "{failure}"),
            PmlError::Cancelled | PmlError::NobodyLeft { .. } | PmlError::Unreceived { .. } => {
                assert_eq!(failure.status(), None, "{failure}");
            }
            _ => {}
        }
        Err(failure.error)
    }

    /// Memory of a rank that peers can map, for `count` instances of `layout`.
    pub(crate) fn mappable(&mut self, rank: u32, layout: &Layout, count: u64) -> Home {
        let (len, _) = needs(layout, count);
        match self.pml(rank).bml_mut().allocate(len) {
            Some(Ok(allocation)) => Home::Mapped(allocation.lease().clone()),
            // No such ability, or refused on purpose.
            _ => Home::Heap,
        }
    }

    pub(crate) fn isend(&mut self, from: u32, buffer: &Buffer, to: u32, tag: i32) -> RequestId {
        let world = self.pml(from).world();
        // SAFETY: tests keep the buffer until the request has ended or the rank is dropped.
        unsafe { self.pml(from).isend(&world, &buffer.typed(), to, tag) }.unwrap()
    }

    pub(crate) fn irecv(
        &mut self,
        at: u32,
        buffer: &Buffer,
        source: Source,
        tag: TagSel,
    ) -> RequestId {
        let world = self.pml(at).world();
        // SAFETY: as above.
        unsafe { self.pml(at).irecv(&world, &buffer.typed(), source, tag) }.unwrap()
    }
}

/// Whose memory a buffer lies in.
#[derive(Clone)]
pub(crate) enum Home {
    Heap,
    /// Memory that peers can map, of this rank's endpoint.
    Mapped(Lease),
    Fake(Arc<FakeDevice>),
}

/// Memory described by a layout; filled with a pattern or with canaries.
pub(crate) struct Buffer {
    _memory: Vec<u8>,
    home: Home,
    region: Region,
    origin: u64,
    layout: Layout,
    count: u64,
}

/// Memory of a fake device that an endpoint has attached.
pub(crate) fn lease_of(region: Region) -> Lease {
    assert!(!region.space().cpu_accessible());
    // SAFETY: no test frees memory of these devices, so it is there while the device is.
    unsafe { Lease::kept_by_caller(region) }
}

/// The byte that fills receive buffers.
pub(crate) const CANARY: u8 = 0xC7;
/// Bytes around what the layout touches.
const MARGIN: u64 = 24;

/// Bytes of memory that a buffer needs, and where displacement 0 is.
pub(crate) fn needs(layout: &Layout, count: u64) -> (u64, u64) {
    let bounds = gapless_dtype::Convertor::new(layout, count).unwrap().bounds();
    let (low, high) = bounds.unwrap_or((0, 0));
    let below = low.min(0).unsigned_abs() + MARGIN;
    (below + u64::try_from(high.max(0)).unwrap() + MARGIN, below)
}

fn pattern(at: u64, seed: u64) -> u8 {
    ((at ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56).to_le_bytes()[0]
}

impl Buffer {
    fn filled(layout: &Layout, count: u64, home: Home, fill: impl Fn(u64) -> u8) -> Buffer {
        let (len, origin) = needs(layout, count);
        let mut memory: Vec<u8> = (0..len).map(fill).collect();
        let from = Region::of_mut(&mut memory);
        let region = match &home {
            Home::Heap => from,
            Home::Mapped(allocation) => {
                let to = allocation.region().sub(0, len).unwrap();
                // SAFETY: the allocation lives as long as `home`, and nobody else uses it.
                unsafe { gapless_mem::copy(&to, &from) }.unwrap();
                to
            }
            Home::Fake(device) => {
                let to = device.allocate(len).unwrap();
                // SAFETY: both live until the wait below, and nobody else touches them.
                unsafe { device.copy(to, from, &[]) }.unwrap().wait().unwrap();
                to
            }
        };
        Buffer { _memory: memory, home, region, origin, layout: layout.clone(), count }
    }

    pub(crate) fn source(layout: &Layout, count: u64, seed: u64) -> Buffer {
        Buffer::source_in(layout, count, seed, Home::Heap)
    }

    pub(crate) fn source_in(layout: &Layout, count: u64, seed: u64, home: Home) -> Buffer {
        Buffer::filled(layout, count, home, |at| pattern(at, seed))
    }

    pub(crate) fn target(layout: &Layout, count: u64) -> Buffer {
        Buffer::target_in(layout, count, Home::Heap)
    }

    pub(crate) fn target_in(layout: &Layout, count: u64, home: Home) -> Buffer {
        Buffer::filled(layout, count, home, |_| CANARY)
    }

    pub(crate) fn region(&self) -> Region {
        self.region
    }

    /// A part of it, kept while this buffer lives; not of the heap's, which has no keys.
    pub(crate) fn lease(&self, offset: u64, len: u64) -> Lease {
        let whole = match &self.home {
            Home::Heap => unreachable!("memory that nobody can map"),
            Home::Mapped(lease) => lease.clone(),
            Home::Fake(_) => lease_of(self.region),
        };
        whole.sub(offset, len).unwrap()
    }

    pub(crate) fn typed(&self) -> Typed {
        Typed::new(self.region, self.origin, &self.layout, self.count).unwrap()
    }

    /// The memory now.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.region.len()).unwrap()];
        let to = Region::of_mut(&mut bytes);
        match &self.home {
            // SAFETY: the region lives with this buffer; nobody writes it while a test looks.
            Home::Fake(device) => unsafe { device.copy(to, self.region, &[]) }.unwrap().wait(),
            // SAFETY: as above.
            _ => unsafe { gapless_mem::copy(&to, &self.region) },
        }
        .unwrap();
        bytes
    }

    pub(crate) fn packed(&self) -> Vec<u8> {
        let memory = self.bytes();
        let mut convertor = gapless_dtype::Convertor::new(&self.layout, self.count).unwrap();
        let mut packed = vec![0; usize::try_from(convertor.packed_size()).unwrap()];
        let origin = usize::try_from(self.origin).unwrap();
        convertor.pack(&memory, origin, &mut packed).unwrap();
        packed
    }

    /// Whether the memory is canaries with `packed` unpacked into them, and nothing else.
    pub(crate) fn assert_received(&self, packed: &[u8], what: &str) {
        let memory = self.bytes();
        let mut expected = vec![CANARY; memory.len()];
        let mut convertor = gapless_dtype::Convertor::new(&self.layout, self.count).unwrap();
        let origin = usize::try_from(self.origin).unwrap();
        convertor.unpack(packed, &mut expected, origin).unwrap();
        if let Some(at) = (0..memory.len()).find(|&at| memory[at] != expected[at]) {
            panic!("{what}: byte {at} is {:#x}, not {:#x}", memory[at], expected[at]);
        }
    }
}

/// `n` bytes without gaps.
pub(crate) fn bytes(n: u64) -> Layout {
    use gapless_dtype::{Datatype, Primitive};
    Datatype::contiguous(n, &Primitive::UnsignedChar.into()).unwrap().commit().unwrap()
}

/// `n` blocks of `block` bytes, `stride` bytes apart.
pub(crate) fn strided(n: u64, block: u64, stride: i64) -> Layout {
    use gapless_dtype::{Datatype, Primitive};
    let byte = Primitive::UnsignedChar.into();
    Datatype::vector(n, block, stride, &byte).unwrap().commit().unwrap()
}
