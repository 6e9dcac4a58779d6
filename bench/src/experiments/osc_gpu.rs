//! `osc-gpu`: one-sided operations on memory of a GPU of another process, which waits in a barrier: by the origin's GPU,
//! which maps that memory, and by messages that the target's progress engine carries out; beside the driver's own copies.
//!
//! Each operation has ended at the target before the next begins: a flush follows it. Two processes of this program
//! measure. What the target has then is compared byte by byte.

use gapless::{
    Communicator, CudaDriver, Datatype, DeviceBuf, Layout, Lock, Primitive, ReduceOp, Space, View, ViewMut, Window,
    World,
};
use gapless_report::{PlotError, Report, Row, Summary, curves};

use super::osc::by_way;
use crate::check::same;
use crate::clock::race;
use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::gpu::copied::{self, Rows};
use crate::processes::{Processes, RankOf};

/// The experiment.
pub struct OscGpu;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Payloads, in bytes; repeatable, or separated by commas
    #[arg(long = "payload", value_name = "BYTES", value_delimiter = ',', default_value = "8,65536,1048576",
        value_parser = clap::value_parser!(u64).range(8..=64 << 20))]
    payloads: Vec<u64>,
    /// GPUs: of the origin, and of the target
    #[arg(long, value_name = "ORDINALS", value_delimiter = ',', num_args = 1.., default_value = "0,0")]
    gpus: Vec<u32>,
}

/// Bytes of a row, and from one to the next.
const ROW: u64 = 256;
const PITCH: u64 = 512;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GpuWindowCallKind {
    Put,
    Get,
    PutRows,
    GetRows,
    PutHost,
    GetHost,
    Accumulate,
    Fetch,
}

impl GpuWindowCallKind {
    const ALL: [GpuWindowCallKind; 8] = [
        GpuWindowCallKind::Put,
        GpuWindowCallKind::Get,
        GpuWindowCallKind::PutRows,
        GpuWindowCallKind::GetRows,
        GpuWindowCallKind::PutHost,
        GpuWindowCallKind::GetHost,
        GpuWindowCallKind::Accumulate,
        GpuWindowCallKind::Fetch,
    ];

    fn name(self) -> &'static str {
        match self {
            GpuWindowCallKind::Put => "put, flush",
            GpuWindowCallKind::Get => "get, flush",
            GpuWindowCallKind::PutRows => "put of rows, flush",
            GpuWindowCallKind::GetRows => "get of rows, flush",
            GpuWindowCallKind::PutHost => "put from the host, flush",
            GpuWindowCallKind::GetHost => "get to the host, flush",
            GpuWindowCallKind::Accumulate => "accumulate, flush",
            GpuWindowCallKind::Fetch => "fetch and op, flush",
        }
    }

    fn is_rows(self) -> bool {
        matches!(self, GpuWindowCallKind::PutRows | GpuWindowCallKind::GetRows)
    }

    fn is_there(self, bytes: u64) -> bool {
        match self {
            GpuWindowCallKind::Fetch => bytes == 8,
            GpuWindowCallKind::PutRows | GpuWindowCallKind::GetRows => bytes >= 2 * ROW && bytes.is_multiple_of(ROW),
            _ => true,
        }
    }
}

impl Experiment for OscGpu {
    type Options = Options;

    const NAME: &'static str = "osc-gpu";
    const ABOUT: &'static str = "one-sided operations on memory of a GPU of another process, beside the driver's copies";

    fn run(options: &Options, _: &Common) -> Result<Findings, Failure> {
        let devices = CudaDriver::load().map_err(|why| Failure::NoGpu { why: why.to_string() })?.devices();
        if options.gpus.len() != 2 || options.gpus.iter().any(|gpu| *gpu >= devices) {
            let why = format!("{devices} devices; two ordinals are asked for: {:?}", options.gpus);
            return Err(Failure::NoGpu { why });
        }
        let rows = Processes::new(Self::NAME, 2).found(Self::NAME, ())?;
        let notes = "time: an operation that has ended at the target, which waits in a barrier; ÷: speed relative to a \
                     copy of as many bytes by the driver\nwithin the origin's GPU (of an accumulation or a fetch, too), \
                     or between it and the host, that is waited for.\n";
        Ok(Findings::new(rows, notes.to_owned()))
    }

    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        let world = World::init()?;
        let me = usize::try_from(world.rank()).unwrap_or(0);
        let device = options.gpus.get(me).copied().unwrap_or(0);
        let spaces = format!("{:?}", options.gpus);
        let mut rows = Vec::new();
        for &bytes in &options.payloads {
            for kind in GpuWindowCallKind::ALL.into_iter().filter(|kind| kind.is_there(bytes)) {
                for by_messages in [false, true] {
                    let found = measure(&world, common, (kind, bytes), (device, by_messages))?;
                    let Some([time, copy]) = found else { continue };
                    let way = if by_messages { "messages" } else { "mapped" };
                    let case = format!("{} {bytes} B ({way})", kind.name());
                    let row = Row::new(case, kind.name(), format!("cuda {spaces}"), way, bytes, time);
                    rows.push(row.verified(true).against("cudaMemcpy", copy));
                }
            }
        }
        rank.finalize(world, &rows)
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let lines = by_way(report.rows.iter().filter(|row| row.op != GpuWindowCallKind::Fetch.name()));
        Drawing::alone(curves("one-sided operations on memory of a GPU", "bytes", &lines))
    }
}

/// What an operation is done with.
struct Subject {
    kind: GpuWindowCallKind,
    bytes: u64,
    layout: Layout,
    /// On the origin's GPU: what is given or got, and where the driver copies it.
    near: DeviceBuf,
    copy: DeviceBuf,
    host: Vec<u8>,
}

impl Subject {
    fn new(world: &World, space: Space, (kind, bytes): (GpuWindowCallKind, u64)) -> Result<Subject, Failure> {
        let numbers = Datatype::from(Primitive::Uint64);
        let (datatype, span) = match kind.is_rows() {
            true => {
                let (count, number) = (bytes / ROW, 8i64);
                let pitch = i64::try_from(PITCH).unwrap_or(0) / number;
                (Datatype::vector(count, ROW / 8, pitch, &numbers)?, count * PITCH)
            }
            false => (Datatype::contiguous(bytes / 8, &numbers)?, bytes),
        };
        let buffer = || world.alloc_device(space, span);
        let (mut near, copy) = (buffer()?, buffer()?);
        let host = vec![1u8; usize::try_from(span).unwrap_or(0)];
        copied::down(&mut near, &host)?;
        Ok(Subject { kind, bytes, layout: datatype.commit()?, near, copy, host })
    }

    fn once(&mut self, window: &Window<u64, DeviceBuf>) -> Result<(), gapless::Error> {
        let Subject { kind, near, layout, host, bytes, .. } = self;
        let len = usize::try_from(*bytes).unwrap_or(0);
        match kind {
            GpuWindowCallKind::Put | GpuWindowCallKind::PutRows => window.put(near.view(0, layout, 1)?, 1, 0)?,
            GpuWindowCallKind::Get | GpuWindowCallKind::GetRows => window.get(near.view_mut(0, layout, 1)?, 1, 0)?,
            GpuWindowCallKind::PutHost => window.put(View::typed(&host[..len], 0, layout, 1)?, 1, 0)?,
            GpuWindowCallKind::GetHost => window.get(ViewMut::typed(&mut host[..len], 0, layout, 1)?, 1, 0)?,
            GpuWindowCallKind::Accumulate => {
                window.accumulate(near.view(0, layout, 1)?, 1, 0, ReduceOp::Sum)?;
            }
            GpuWindowCallKind::Fetch => {
                window.fetch_and_op(1u64, 1, 0, ReduceOp::Sum)?;
            }
        }
        window.flush(1)
    }

    /// The same bytes by the driver.
    fn copied(&mut self) -> Result<(), gapless_mem::DeviceError> {
        let Subject { kind, near, copy, host, bytes, .. } = self;
        let len = usize::try_from(*bytes).unwrap_or(0);
        match kind {
            GpuWindowCallKind::PutRows | GpuWindowCallKind::GetRows => {
                copied::rows(copy, near, Rows { width: ROW, pitch: PITCH, count: *bytes / ROW })
            }
            GpuWindowCallKind::PutHost => copied::down(copy, &host[..len]),
            GpuWindowCallKind::GetHost => copied::up(&mut host[..len], copy),
            _ => copied::between(copy, near, *bytes),
        }
    }
}

/// One operation, again and again, and the driver's copy in turn with it; times at rank 0 alone.
fn measure(
    world: &World,
    common: &Common,
    (kind, bytes): (GpuWindowCallKind, u64),
    (device, by_messages): (u32, bool),
) -> Result<Option<[Summary; 2]>, Failure> {
    let (comm, space): (&Communicator, _) = (world.comm(), Space::Cuda { device });
    let mut subject = Subject::new(world, space, (kind, bytes))?;
    let builder = if by_messages { comm.window().by_messages() } else { comm.window() };
    let elements = subject.host.len() / 8;
    let mut window: Window<u64, DeviceBuf> = builder.allocate_on(space, elements)?;
    let mut times = None;
    if comm.rank() == 0 {
        window.lock(1, Lock::Shared)?;
        let (mut count, mut failed, mut broken) = (0u64, None, None);
        let subject = std::cell::RefCell::new(&mut subject);
        let mut once = || {
            count += 1;
            failed = failed.take().or(subject.borrow_mut().once(&window).err());
        };
        let mut copy = || broken = broken.take().or(subject.borrow_mut().copied().err());
        let measured = race(common.seconds(), [&mut once, &mut copy]);
        if let Some(failure) = failed {
            return Err(failure.into());
        }
        if let Some(failure) = broken {
            return Err(failure.into());
        }
        times = Some(measured.map_err(Failure::samples(kind.name()))?);
        // What the target has now: what was put, or how often it was added; nothing in the gaps.
        let all_ones = u64::from_ne_bytes([1; 8]);
        let number = |at: usize| match kind {
            GpuWindowCallKind::Get | GpuWindowCallKind::GetRows | GpuWindowCallKind::GetHost => 0,
            GpuWindowCallKind::PutRows if (8 * at as u64) % PITCH >= ROW => 0,
            GpuWindowCallKind::Put | GpuWindowCallKind::PutRows | GpuWindowCallKind::PutHost => all_ones,
            GpuWindowCallKind::Accumulate => all_ones.wrapping_mul(count),
            GpuWindowCallKind::Fetch => count,
        };
        let right: Vec<u8> = (0..elements).flat_map(|at| number(at).to_ne_bytes()).collect();
        let mut found = vec![0u64; elements];
        window.get(&mut found, 1, 0)?;
        window.unlock(1)?;
        let found: Vec<u8> = found.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let case = format!("{} {bytes}", kind.name());
        same(&found, &right).map_err(|wrong| Failure::Wrong { case, op: "one-sided", wrong })?;
    }
    comm.barrier()?;
    window.free()?;
    Ok(times)
}
