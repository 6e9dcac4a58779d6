//! Partitioned messages by kernels: each partition gets where it belongs, epoch after epoch, whatever hosts do.

#![allow(clippy::cast_possible_truncation, reason = "ranks are few, and buffers fit the memory")]

mod wrong;

use super::{GUARD, POISON, Rank, WATCHDOG, bytes, guarded, launcher, obstacle, ranks};
use gapless::stream_code::EXAMPLE_PARTITIONED;
use gapless::{
    CudaDriver, CudaGraph, CudaModule, DeviceBuf, Error, Registered, StreamComm, StreamPartitioned,
    StreamPartitions,
};
use gapless_mem_cuda::{Argument, CudaError, Function, Grid};
use gapless_tests::launcher::{Member, Said, TestLauncher, say};
use std::ffi::CStr;
use std::time::Instant;

/// The kernels of `example_partitioned.cu`.
struct Code {
    start: Function,
    ready: Function,
    wait: Function,
    halo: Function,
}

/// What `example_halo` is given.
#[derive(Clone, Copy)]
#[repr(C)]
struct Field {
    field: u64,
    /// Handles: the sends of the first row and of the last, the receives before and behind them; 0 for none.
    rows_to: [u64; 2],
    rows_from: [u64; 2],
    rows: u32,
    columns: u32,
}

impl Code {
    fn load(rank: &Rank) -> Code {
        // SAFETY: CUDA's tools made the image.
        let module = unsafe { CudaModule::load(&rank.device, EXAMPLE_PARTITIONED.as_bytes()) };
        let module = module.unwrap();
        let function = |name: &CStr| {
            let function = module.function(name).unwrap();
            // It is loaded now, and not while others wait.
            function.blocks_per_unit(128, 0).unwrap();
            function
        };
        Code {
            start: function(c"example_start"),
            ready: function(c"example_ready"),
            wait: function(c"example_wait"),
            halo: function(c"example_halo"),
        }
    }

    fn start(&self, rank: &Rank, recvs: [u64; 2]) -> Result<(), CudaError> {
        let [above, beneath] = recvs.each_ref().map(Argument::of);
        // SAFETY: the kernel's two parameters; handles are of a communicator that lives until the stream is idle.
        unsafe { self.start.launch(&rank.stream, Grid::line(1, 96), &[above, beneath]) }
    }

    /// Makes `count` partitions ready, from the first on.
    fn ready(&self, rank: &Rank, send: u64, first: u32, count: u32) {
        let arguments = [Argument::of(&send), Argument::of(&first)];
        // SAFETY: as in `start`.
        unsafe { self.ready.launch(&rank.stream, Grid::line(count, 128), &arguments) }.unwrap();
    }

    /// Waits for partitions; `seen` has two words for each.
    fn wait(&self, rank: &Rank, recv: u64, first: u32, count: u32, seen: &DeviceBuf) {
        let seen = seen.region().start();
        let arguments = [Argument::of(&recv), Argument::of(&first), Argument::of(&seen)];
        // SAFETY: as in `start`; `seen` has room, and lives as long.
        unsafe { self.wait.launch(&rank.stream, Grid::line(count, 128), &arguments) }.unwrap();
    }

    /// A step of a halo exchange.
    fn step(&self, rank: &Rank, field: &Field, partitions: u32) -> Result<(), CudaError> {
        self.start(rank, field.rows_from)?;
        // SAFETY: the kernel's one parameter; the field's rows have as many columns, and live as long as the handles.
        unsafe {
            self.halo.launch(&rank.stream, Grid::line(partitions, 128), &[Argument::of(field)])
        }
    }
}

/// All `seen` words, which were 0 before.
fn words(rank: &Rank, seen: &DeviceBuf, count: u32) -> Vec<u32> {
    let bytes = rank.read(seen.region(), 8 * count as usize);
    bytes.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect()
}

fn register(on: &mut StreamComm<'_>, memory: &DeviceBuf) -> Registered {
    // SAFETY: it outlives `on`.
    unsafe { on.register(memory.region()) }.unwrap()
}

fn plan(
    on: &mut StreamComm<'_>,
    sends: &[StreamPartitions],
    recvs: &[StreamPartitions],
) -> Result<StreamPartitioned, Error> {
    // SAFETY: all buffers outlive `on`; parts that are received lie apart, and kernels keep to the header.
    unsafe { on.plan_partitioned(sends, recvs) }
}

#[test]
fn every_partition_gets_where_it_belongs() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher("partitioned::every_partition_gets_where_it_belongs", None);
    };
    let rank = Rank::new(&mut member);
    exchange(&rank);
    rank.world.finalize().unwrap();
}

/// Messages of all lengths from all ranks to all.
fn exchange(rank: &Rank) {
    const PARTITIONS: u32 = 5;
    const MOST: usize = 70_000 * PARTITIONS as usize;
    let code = Code::load(rank);
    let comm = rank.comm();
    let (n, me) = (comm.size() as usize, comm.rank() as usize);
    let (out, into) = (rank.memory(n * MOST + GUARD), rank.memory(n * MOST + 2 * GUARD));
    let seen = rank.memory(8 * PARTITIONS as usize);
    let mut on = rank.on();
    let shared = (register(&mut on, &out), register(&mut on, &into));
    // Words of 16 bytes, of 4, and single ones; with rests.
    let cases = [(0, 0), (1, 0), (16, 0), (17, 0), (16, 4), (1020, 4), (1022, 4), (4099, 3)];
    for (len, shift) in cases.into_iter().chain([(65_536, 0), (65_540, 4), (69_999, 1)]) {
        let block = PARTITIONS as usize * len;
        // Each rank sends to each, itself included.
        let end = |buffer: Registered, at: usize, rank: usize| StreamPartitions {
            rank: rank as u32,
            buffer: buffer.at((at + rank * block) as u64),
            partitions: PARTITIONS,
            bytes: len as u64,
        };
        let sends: Vec<_> = (0..n).map(|to| end(shared.0, shift, to)).collect();
        let recvs: Vec<_> = (0..n).map(|from| end(shared.1, GUARD + shift, from)).collect();
        let planned = plan(&mut on, &sends, &recvs).unwrap();
        let content = |rank: usize, epoch: u64| bytes(n * block, 31 * rank as u64 + epoch);
        rank.write(into.region(), &vec![POISON; 2 * GUARD + shift + n * block]);
        for epoch in 0..3 {
            rank.write(out.region(), &[vec![0; shift], content(me, epoch)].concat());
            for recv in planned.recvs() {
                code.start(rank, [*recv, 0]).unwrap();
            }
            for send in planned.sends() {
                code.ready(rank, *send, 2, PARTITIONS - 2);
                code.ready(rank, *send, 0, 2);
            }
            for recv in planned.recvs() {
                code.wait(rank, *recv, 0, PARTITIONS, &seen);
            }
            on.wait().unwrap();
            let block_of = |from| content(from, epoch)[me * block..(me + 1) * block].to_vec();
            let right: Vec<u8> = (0..n).flat_map(block_of).collect();
            let what = format!("{len} bytes, shift {shift}, epoch {epoch}");
            guarded(rank, into.region(), GUARD + shift, &right, &what);
        }
        comm.barrier().unwrap();
    }
}

#[test]
fn a_look_tells_what_has_come() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher("partitioned::a_look_tells_what_has_come", None);
    };
    let rank = Rank::new(&mut member);
    let code = Code::load(&rank);
    let (n, me) = (rank.comm().size(), rank.comm().rank());
    let (memory, seen) = (rank.memory(64), rank.memory(16));
    let mut on = rank.on();
    let shared = register(&mut on, &memory);
    let end = |rank, at| StreamPartitions { rank, buffer: shared.at(at), partitions: 2, bytes: 16 };
    let planned = plan(&mut on, &[end((me + 1) % n, 0)], &[end((me + n - 1) % n, 32)]).unwrap();
    let (send, recv) = (planned.sends()[0], planned.recvs()[0]);
    rank.write(seen.region(), &[0; 16]);
    if me == 0 {
        code.start(&rank, [recv, 0]).unwrap();
        code.wait(&rank, recv, 0, 2, &seen);
        let until = Instant::now() + WATCHDOG;
        while words(&rank, &seen, 2).iter().step_by(2).any(|word| *word == 0) {
            assert!(Instant::now() < until, "the kernel does not look");
        }
        // Others have sent nothing yet.
        assert_eq!(words(&rank, &seen, 2), [1, 0, 1, 0]);
    }
    rank.comm().barrier().unwrap();
    if me != 0 {
        code.start(&rank, [recv, 0]).unwrap();
    }
    code.ready(&rank, send, 0, 2);
    on.wait().unwrap();
    rank.comm().barrier().unwrap();
    if me == 0 {
        assert_eq!(words(&rank, &seen, 2), [1, 1, 1, 1]);
    }
    // All have come now.
    code.wait(&rank, recv, 0, 2, &seen);
    on.wait().unwrap();
    assert_eq!(words(&rank, &seen, 2), [2, 1, 2, 1]);
    drop(on);
    rank.world.finalize().unwrap();
}

/// What of a field is exchanged.
#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    /// Of a strip, which a block has.
    columns: usize,
    partitions: u32,
    /// Whether the last rank is the first one's neighbour.
    ring: bool,
}

impl Shape {
    fn width(&self) -> usize {
        self.columns * self.partitions as usize
    }

    /// A rank's rows before the first step.
    fn begin(&self, rank: usize) -> Vec<u32> {
        let cells = self.rows * self.width();
        (0..cells).map(|cell| ((rank * cells + cell) as u32).wrapping_mul(0x9e37_79b9)).collect()
    }

    /// All rows of all ranks after so many steps.
    fn on_host(&self, ranks: usize, steps: usize) -> Vec<u32> {
        let (width, height) = (self.width(), ranks * self.rows);
        let mut cells: Vec<u32> = (0..ranks).flat_map(|rank| self.begin(rank)).collect();
        for _ in 0..steps {
            let at = |row: usize, column: usize| {
                let inside = (1..=height).contains(&row);
                let row = if self.ring { (row + height - 1) % height } else { row.wrapping_sub(1) };
                if inside || self.ring { cells[row * width + column] } else { 0 }
            };
            let next = |cell: usize| {
                let (row, column) = (cell / width + 1, cell % width);
                let near = [at(row - 1, column), at(row, column), at(row + 1, column)];
                let [before, here, behind] = near;
                (before.wrapping_mul(3))
                    .wrapping_add(here.wrapping_mul(5))
                    .wrapping_add(behind.wrapping_mul(7))
            };
            cells = (0..height * width).map(next).collect();
        }
        cells
    }
}

/// Steps that a graph has, and how often it is launched.
const STEPS: usize = 4;
const LAUNCHES: usize = 25;

/// A rank's field, ready for its first step.
struct Halo<'a> {
    rank: &'a Rank,
    shape: Shape,
    memory: &'a DeviceBuf,
    graph: CudaGraph,
}

impl<'a> Halo<'a> {
    fn bytes(shape: Shape) -> usize {
        4 * (shape.rows + 2) * shape.width()
    }

    fn new(
        rank: &'a Rank,
        code: &Code,
        on: &mut StreamComm<'_>,
        (memory, shared): (&'a DeviceBuf, Registered),
        shape: Shape,
    ) -> Halo<'a> {
        let (n, me) = (rank.comm().size(), rank.comm().rank());
        let line = 4 * shape.width() as u64;
        let row = |rank, row: usize| StreamPartitions {
            rank,
            buffer: shared.at(row as u64 * line),
            partitions: shape.partitions,
            bytes: 4 * shape.columns as u64,
        };
        let (up, down) = ((me + n - 1) % n, (me + 1) % n);
        let has = [shape.ring || me > 0, shape.ring || me + 1 < n];
        let given = |all: [StreamPartitions; 2], has: [bool; 2]| -> Vec<StreamPartitions> {
            all.into_iter().zip(has).filter_map(|(end, has)| has.then_some(end)).collect()
        };
        // Where both neighbours are one rank, what it sends up comes first, and is for behind the last row.
        let sends = given([row(up, 1), row(down, shape.rows)], has);
        let recvs = given([row(down, shape.rows + 1), row(up, 0)], [has[1], has[0]]);
        let planned = plan(on, &sends, &recvs).unwrap();
        let mut sends = planned.sends().iter().copied();
        let rows_to = has.map(|has| if has { sends.next().unwrap() } else { 0 });
        let mut recvs = planned.recvs().iter().copied();
        let [behind, before] =
            [has[1], has[0]].map(|has| if has { recvs.next().unwrap() } else { 0 });
        let field = Field {
            field: memory.region().start(),
            rows_to,
            rows_from: [before, behind],
            rows: shape.rows as u32,
            columns: shape.width() as u32,
        };
        let graph = rank
            .stream
            .capture(|_| (0..STEPS).try_for_each(|_| code.step(rank, &field, shape.partitions)));
        let graph = graph.unwrap();
        let own: Vec<u8> =
            shape.begin(me as usize).into_iter().flat_map(u32::to_ne_bytes).collect();
        let edge = vec![0; line as usize];
        rank.write(memory.region(), &[edge.clone(), own, edge].concat());
        Halo { rank, shape, memory, graph }
    }

    /// Queues all steps.
    fn launch(&self) {
        for _ in 0..LAUNCHES {
            // SAFETY: buffers and handles outlive the communicator, which waits for the stream; nothing else uses them.
            unsafe { self.graph.launch(&self.rank.stream) }.unwrap();
        }
    }

    fn check(&self) {
        let (n, me) = (self.rank.comm().size() as usize, self.rank.comm().rank() as usize);
        let (cells, line) = (self.shape.rows * self.shape.width(), 4 * self.shape.width());
        let found = self.rank.read(self.memory.region(), line + 4 * cells);
        let all = self.shape.on_host(n, STEPS * LAUNCHES);
        let right = all[me * cells..(me + 1) * cells].iter().flat_map(|cell| cell.to_ne_bytes());
        assert!(found[line..].iter().copied().eq(right), "{me}: not what the host has");
    }
}

#[test]
fn halos_are_exchanged_by_kernels_alone() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher("partitioned::halos_are_exchanged_by_kernels_alone", None);
    };
    let rank = Rank::new(&mut member);
    halos(&rank);
    rank.world.finalize().unwrap();
}

/// One rank, which is its own neighbour, needs no MPS.
#[test]
fn a_rank_exchanges_with_itself() {
    let test = "partitioned::a_rank_exchanges_with_itself";
    let Some(mut member) = Member::of_launcher() else {
        return match CudaDriver::load().and_then(|driver| driver.device(0)) {
            Ok(_) => {
                let mut launcher = TestLauncher::start(test, &["rank"], |_, _| {});
                let Some((_, Said::Ended(status))) = launcher.hear(WATCHDOG) else {
                    panic!("it hangs")
                };
                assert!(status.success(), "{status}");
            }
            Err(why) => gapless_btl_testkit::conformance::skip(test, &why.to_string()),
        };
    };
    let rank = Rank::new(&mut member);
    exchange(&rank);
    halos(&rank);
    rank.world.finalize().unwrap();
}

/// Steps of a field of all shapes.
fn halos(rank: &Rank) {
    let code = Code::load(rank);
    let shapes = [(5, 4096, 4), (3, 250, 3), (1, 1, 5), (2, 1000, 1), (7, 33, 8)];
    let shapes = shapes.into_iter().flat_map(|(rows, columns, partitions)| {
        [true, false].map(|ring| Shape { rows, columns, partitions, ring })
    });
    let memory =
        rank.memory(Halo::bytes(Shape { rows: 5, columns: 4096, partitions: 4, ring: true }));
    let mut on = rank.on();
    let shared = register(&mut on, &memory);
    for shape in shapes {
        let halo = Halo::new(rank, &code, &mut on, (&memory, shared), shape);
        halo.launch();
        on.wait().unwrap();
        halo.check();
        rank.comm().barrier().unwrap();
    }
}

/// Has a rank's process stopped as soon as it has queued its work, and go on when all others have done theirs.
fn stopping_launcher(test: &str) {
    const VICTIM: u32 = 1;
    if let Some(why) = obstacle() {
        return gapless_btl_testkit::conformance::skip(test, &why);
    }
    let mut launcher = TestLauncher::start(test, &vec!["rank"; ranks()], |_, _| {});
    let others = || (0..ranks() as u32).filter(|rank| *rank != VICTIM);
    let until = Instant::now() + WATCHDOG;
    let (mut left, mut done) = (ranks(), 0);
    while left > 0 {
        match launcher.hear(until.saturating_duration_since(Instant::now())) {
            Some((VICTIM, Said::Line(line))) if line == "queued" => {
                launcher.stop(VICTIM);
                let stat = format!("/proc/{}/stat", launcher.pid(VICTIM));
                while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
                    std::thread::yield_now();
                }
                others().for_each(|rank| launcher.tell(rank, "go"));
            }
            Some((_, Said::Line(line))) if line == "done" => {
                done += 1;
                if done == others().count() {
                    launcher.go_on(VICTIM);
                }
            }
            Some((_, Said::Line(_))) => {}
            Some((rank, Said::Ended(status))) => {
                assert!(status.success(), "rank {rank}: {status}");
                left -= 1;
            }
            None => panic!("{test}: ranks hang"),
        }
    }
}

#[test]
fn a_host_that_is_stopped_holds_up_nobody() {
    let Some(mut member) = Member::of_launcher() else {
        return stopping_launcher("partitioned::a_host_that_is_stopped_holds_up_nobody");
    };
    let rank = Rank::new(&mut member);
    let code = Code::load(&rank);
    let shape = Shape { rows: 4, columns: 1024, partitions: 4, ring: true };
    let memory = rank.memory(Halo::bytes(shape));
    let mut on = rank.on();
    let shared = register(&mut on, &memory);
    let halo = Halo::new(&rank, &code, &mut on, (&memory, shared), shape);
    let victim = rank.comm().rank() == 1;
    if victim {
        halo.launch();
        say("queued");
    } else {
        assert_eq!(member.lines.recv_timeout(WATCHDOG).unwrap(), "go");
        halo.launch();
    }
    on.wait().unwrap();
    halo.check();
    if !victim {
        say("done");
    }
    rank.comm().barrier().unwrap();
    drop(on);
    rank.world.finalize().unwrap();
}
