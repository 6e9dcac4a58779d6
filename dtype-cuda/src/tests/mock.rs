//! A pretend vendor for tests: it does none of the work (but copies of rows, at once), writes down what was
//! asked of which lane, fails when told to, and ends work when told to.

use crate::accelerator::{Accelerator, CopyRows, Lane, Spot};
use crate::staging::{HeapMemory, HostMemory};
use gapless_engine::{EngineError, Typed};
use gapless_kernels::launch::{KernelAddress, Launch, ReduceLaunch};
use gapless_kernels::reduce::Combine;
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Completion, Device, DeviceError, Pending, Region, Space};
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

#[global_allocator]
static COUNTED: gapless_testkit::Counting = gapless_testkit::Counting;

/// What was asked of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// To wait for the work of this number.
    Wait(usize),
    /// A launch, with its pointers' addresses.
    Launch(Vec<u64>),
    /// A launch of a reduction, with the addresses of its target and its sources.
    Reduce(Vec<u64>),
    /// A copy to, and from, these addresses.
    Copy(u64, u64),
    /// A copy of so many rows, to and from these addresses.
    Rows(u64, u64, u64),
    /// A completion, which got this number.
    Record(usize),
    /// To end.
    Drain,
}

/// Everything that was asked, in order, with the lane's number; the last but one lane is for uploads, the last
/// one a caller's.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) ops: Vec<(usize, Op)>,
    /// Calls until one fails.
    pub(crate) fails_in: Option<usize>,
    /// It panics instead.
    pub(crate) panics: bool,
    /// The device is lost: whatever it is asked fails, and so has all work that had not ended.
    pub(crate) lost: Arc<AtomicBool>,
    /// Nothing is written down.
    pub(crate) quiet: bool,
    /// Lanes on which calls began, in order.
    pub(crate) started: Vec<usize>,
    /// What lies on another device, by its address.
    pub(crate) elsewhere: Vec<u64>,
    /// What rows are copied slowly to or from, likewise.
    pub(crate) odd: Vec<u64>,
    ends: Vec<(usize, Arc<AtomicBool>)>,
}

/// Work of a lane.
pub(crate) struct MockWork {
    pub(crate) number: usize,
    ended: Arc<AtomicBool>,
    lost: Arc<AtomicBool>,
}

struct MockLane {
    number: usize,
    ours: bool,
    device: Arc<FakeDevice>,
    log: Arc<Mutex<Log>>,
}

/// The vendor.
pub(crate) struct Mock {
    device: Arc<FakeDevice>,
    lanes: Vec<Box<dyn Lane>>,
    uploads: MockLane,
    callers: MockLane,
    pub(crate) log: Arc<Mutex<Log>>,
}

impl Log {
    /// Ends all work.
    pub(crate) fn end_all(&mut self) {
        self.ends.iter().for_each(|(_, end)| end.store(true, Ordering::SeqCst));
    }

    /// The lanes that have been asked for something since they were drained last.
    pub(crate) fn busy(&self) -> Vec<usize> {
        let mut busy = Vec::new();
        for (lane, op) in &self.ops {
            busy.retain(|other| other != lane);
            if matches!(op, Op::Launch(_) | Op::Reduce(_) | Op::Copy(..) | Op::Rows(..)) {
                busy.push(*lane);
            }
        }
        busy
    }
}

// SAFETY: nothing is done but noted, so no memory is touched; it ends once, or fails with the device.
unsafe impl Pending for MockWork {
    fn poll(&self) -> Result<bool, DeviceError> {
        let ended = self.ended.load(Ordering::SeqCst);
        if !ended && self.lost.load(Ordering::SeqCst) {
            return Err(DeviceError::Unsupported { what: "what a lost device was to do" });
        }
        Ok(ended)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The number of a lane's work.
pub(crate) fn number(work: &Completion) -> usize {
    work.ordering::<MockWork>().expect("a mock's work").number
}

impl MockLane {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap()
    }

    fn ask(&self, op: impl FnOnce() -> Op) -> Result<(), EngineError> {
        let mut log = self.log();
        if log.quiet {
            return Ok(());
        }
        if log.lost.load(Ordering::SeqCst) {
            return Err(DeviceError::Unsupported { what: "anything, once a device is lost" }.into());
        }
        if let Some(left) = &mut log.fails_in {
            if *left == 0 {
                if log.panics {
                    drop(log);
                    panic!("a call of the driver's, as the test wants");
                }
                return Err(DeviceError::Unsupported { what: "what the test says" }.into());
            }
            *left -= 1;
        }
        log.ops.push((self.number, op()));
        Ok(())
    }
}

impl Lane for MockLane {
    fn begin(&self) {
        self.log().started.push(self.number);
    }

    fn is_ours(&self) -> bool {
        self.ours
    }

    fn wait_for(&self, after: &[Completion]) -> Result<(), EngineError> {
        let pending = after.iter().filter(|work| matches!(work.poll(), Ok(false)));
        pending.map(number).try_for_each(|number| self.ask(|| Op::Wait(number)))
    }

    unsafe fn launch(&self, _: &Launch, pointers: &[Region]) -> Result<(), EngineError> {
        self.ask(|| Op::Launch(pointers.iter().map(Region::start).collect()))
    }

    unsafe fn reduce(&self, _: &ReduceLaunch, pointers: &[Region]) -> Result<(), EngineError> {
        self.ask(|| Op::Reduce(pointers.iter().map(Region::start).collect()))
    }

    unsafe fn copy(&self, dst: Region, src: Region) -> Result<(), EngineError> {
        assert_eq!(dst.len(), src.len());
        self.ask(|| Op::Copy(dst.start(), src.start()))
    }

    unsafe fn copy_rows(&self, rows: &CopyRows) -> Result<(), EngineError> {
        let &CopyRows { dst, dst_pitch, src, src_pitch, width, rows } = rows;
        self.ask(|| Op::Rows(dst.start(), src.start(), rows))?;
        // SAFETY: the caller's own promise.
        let done = unsafe { self.device.copy_2d(dst, dst_pitch, src, src_pitch, width, rows, &[]) };
        Ok(done?.wait()?)
    }

    fn recorded(&self, completion: &Completion) -> bool {
        let Completion::Pending(_) = completion else { return false };
        self.log().ends[number(completion)].0 == self.number
    }

    fn record(&self) -> Result<Completion, EngineError> {
        let ended = Arc::new(AtomicBool::new(false));
        let number = self.log().ends.len();
        self.ask(|| Op::Record(number))?;
        let mut log = self.log();
        log.ends.push((self.number, Arc::clone(&ended)));
        let lost = Arc::clone(&log.lost);
        Ok(Completion::Pending(Arc::new(MockWork { number, ended, lost })))
    }

    fn drain(&self) {
        let mut log = self.log();
        log.ops.push((self.number, Op::Drain));
        let own = log.ends.iter().filter(|(lane, _)| *lane == self.number);
        own.for_each(|(_, end)| end.store(true, Ordering::SeqCst));
    }
}

impl Mock {
    pub(crate) fn new(lanes: usize) -> Mock {
        let log = Arc::new(Mutex::new(Log::default()));
        let device = Arc::new(FakeDevice::new(0));
        let lane = |number| MockLane {
            number,
            ours: number <= lanes,
            device: Arc::clone(&device),
            log: Arc::clone(&log),
        };
        Mock {
            device: Arc::clone(&device),
            lanes: (0..lanes).map(|number| Box::new(lane(number)) as Box<dyn Lane>).collect(),
            uploads: lane(lanes),
            callers: lane(lanes + 1),
            log,
        }
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap()
    }

    /// A stream of a caller's.
    pub(crate) fn callers(&self) -> &dyn Lane {
        &self.callers
    }
}

fn at(region: Region, address: u64) -> Spot {
    let base = Region::new(region.space(), address, 0, region.len());
    Spot { base, place: KernelAddress { address, offset: 0 } }
}

impl Accelerator for Mock {
    fn name(&self) -> &'static str {
        "mock"
    }

    fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.device) as Arc<dyn Device>
    }

    fn serves(&self, space: Space) -> bool {
        space == self.device.space()
    }

    fn typed(&self, typed: &Typed) -> Result<Spot, EngineError> {
        if !self.serves(typed.space()) {
            return Err(EngineError::WrongSpace { engine: "mock", space: typed.space() });
        }
        Ok(at(typed.region(), typed.region().start().wrapping_add(typed.origin())))
    }

    fn packed(&self, region: Region) -> Result<Option<Spot>, EngineError> {
        Ok((!region.space().cpu_accessible()).then(|| at(region, region.start())))
    }

    fn staging(&self, len: usize) -> Result<HostMemory, EngineError> {
        Ok(HostMemory::Heap(HeapMemory::plain(len)))
    }

    fn orders(&self, completion: &Completion) -> bool {
        match completion {
            Completion::Ready => true,
            Completion::Pending(_) => completion.ordering::<MockWork>().is_some(),
        }
    }

    fn one_address_space(&self) -> bool {
        true
    }

    fn apart(&self, one: Region, other: Region) -> bool {
        let log = self.log();
        let elsewhere = |region: Region| log.elsewhere.contains(&region.address());
        elsewhere(one) != elsewhere(other)
    }

    fn copies_rows_slowly(&self, one: Region, other: Region) -> bool {
        let log = self.log();
        [one, other].iter().any(|region| log.odd.contains(&region.address()))
    }

    fn reads_afar(&self, src: Region, dst: Region) -> bool {
        self.apart(src, dst) && self.log().elsewhere.contains(&src.address())
    }

    fn combines(&self, combine: Combine) -> bool {
        !combine.needs_doubles()
    }

    fn lanes(&self) -> &[Box<dyn Lane>] {
        &self.lanes
    }

    fn uploads(&self) -> Option<&dyn Lane> {
        Some(&self.uploads)
    }
}
