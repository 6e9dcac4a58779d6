//! The workbench: buffers, programs, launches, and the byte-by-byte reference.

use gapless_kernels::launch::{
    Blocks, Grid, Launch, Launches, Move, Part, Place, Planned, Runs, TransferSide, affine,
    contiguous, fused, listed, mapped, strided, transfer,
};
use gapless_kernels::{Direction, Family, Kernel, Width, opencl_source};
use gapless_mem::{Completion, Device, Region};
use gapless_mem_opencl::{Argument, OpenClDevice, OpenClError, Program};
use std::collections::HashMap;
use std::io::Write;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

/// Bytes before and after what a side may use.
const MARGIN: u64 = 64;

/// A repeatable sequence.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    /// Below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 24) % bound
    }

    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let other = usize::try_from(self.below(at as u64 + 1)).unwrap();
            items.swap(at, other);
        }
    }
}

/// A shape, what lies where, and the plan it needs.
pub(crate) struct Case {
    pub(crate) side: TransferSide,
    /// Displacement of every byte of the stream.
    pub(crate) truth: Vec<i64>,
    pub(crate) plan: Vec<u8>,
}

impl Case {
    pub(crate) fn size(&self) -> u64 {
        self.truth.len() as u64
    }

    /// All of it, or a part.
    pub(crate) fn range(&self, random: &mut Random, whole: bool) -> Range<u64> {
        if whole {
            return 0..self.size();
        }
        let (a, b) = (random.below(self.size()), random.below(self.size()));
        a.min(b)..a.max(b) + 1
    }

    fn low(&self) -> i64 {
        self.truth.iter().copied().min().unwrap_or(0)
    }

    fn span(&self) -> u64 {
        let high = self.truth.iter().copied().max().unwrap_or(0);
        (high - self.low() + 1).cast_unsigned()
    }

    /// Bytes into a buffer at which displacement 0 is, so that all lies inside and is aligned to 16.
    fn origin(&self) -> i64 {
        (MARGIN.cast_signed() - self.low()).div_euclid(16) * 16 + 16
    }

    fn buffer_bytes(&self) -> u64 {
        self.span() + 3 * MARGIN
    }

    fn launches(&self, what: &Move) -> Launches {
        match &self.side {
            TransferSide::Contiguous(displacement) => contiguous(what, *displacement),
            TransferSide::Strided(grid) => strided(what, grid),
            TransferSide::Affine(runs) => affine(what, runs),
            TransferSide::Listed(blocks) => listed(what, blocks),
            TransferSide::Mapped(plan) => mapped(what, plan),
        }
        .unwrap()
    }
}

/// Displacements of what shapes describe, written out.
pub(crate) fn grid_truth(grid: &Grid) -> Vec<i64> {
    let mut starts = vec![grid.displacement];
    for dim in &grid.dims {
        starts = starts
            .iter()
            .flat_map(|&start| (0..dim.count.cast_signed()).map(move |i| start + i * dim.stride))
            .collect();
    }
    spread(starts.into_iter().map(|start| (start, grid.len)))
}

pub(crate) fn runs_truth(runs: &Runs) -> Vec<i64> {
    let one = (0..runs.count.cast_signed()).map(|j| {
        let len = runs.len.cast_signed() + j * runs.grow;
        (runs.displacement + j * runs.step, len.cast_unsigned())
    });
    instances(&spread(one), runs.instances, runs.extent)
}

pub(crate) fn spread(blocks: impl Iterator<Item = (i64, u64)>) -> Vec<i64> {
    blocks.flat_map(|(start, len)| start..start + len.cast_signed()).collect()
}

pub(crate) fn instances(one: &[i64], count: u64, extent: i64) -> Vec<i64> {
    (0..count.cast_signed()).flat_map(|i| one.iter().map(move |at| at + i * extent)).collect()
}

pub(crate) fn place(offset: i64) -> Place {
    Place { address: 0, offset }
}

/// The device, its programs and a way to run launches.
pub(crate) struct Bench {
    device: OpenClDevice,
    programs: HashMap<(Direction, Width), Arc<Program>>,
}

impl Bench {
    pub(crate) fn open() -> Option<Bench> {
        match OpenClDevice::open(0) {
            Ok(device) => Some(Bench { device, programs: HashMap::new() }),
            Err(
                error @ (OpenClError::NoLibrary { .. }
                | OpenClError::NoPlatform
                | OpenClError::NoDevice { .. }),
            ) => {
                assert!(std::env::var_os("CI").is_none(), "in CI, PoCL must run: {error}");
                let line = format!("SKIPPED: running the kernels through OpenCL: {error}\n");
                eprint!("{line}");
                if let Some(path) = std::env::var_os("GAPLESS_SKIP_LOG") {
                    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
                    file.and_then(|mut file| file.write_all(line.as_bytes())).unwrap();
                }
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn upload(&self, bytes: &[u8]) -> Region {
        let region = self.device.allocate(bytes.len() as u64).unwrap();
        // SAFETY: both live until the wait ends.
        unsafe { self.device.copy(region, Region::of(bytes), &[]) }.unwrap().wait().unwrap();
        region
    }

    /// Reads a buffer back and frees it.
    fn take(&self, region: Region) -> Vec<u8> {
        let mut bytes = vec![0u8; usize::try_from(region.len()).unwrap()];
        let to = Region::of_mut(&mut bytes);
        // SAFETY: both live until the wait ends.
        unsafe { self.device.copy(to, region, &[]) }.unwrap().wait().unwrap();
        // SAFETY: nothing is in flight.
        unsafe { self.device.free(region) }.unwrap();
        bytes
    }

    /// Runs a kernel that writes numbers.
    pub(crate) fn numbers(&mut self, source: &str, kernel: &str, count: usize) -> Vec<u64> {
        let program = self.device.program(source, "").unwrap();
        let buffer = self.upload(&vec![0u8; count * 8]);
        let arguments = [Argument::Buffer(buffer)];
        // SAFETY: the kernel takes one buffer and writes `count` numbers.
        let done = unsafe { self.device.launch(&program, kernel, 1, 1, &arguments, &[]) };
        done.unwrap().wait().unwrap();
        let bytes = self.take(buffer);
        bytes.chunks_exact(8).map(|eight| u64::from_ne_bytes(eight.try_into().unwrap())).collect()
    }

    fn run(&mut self, launches: &[Launch], pointers: &[Region]) -> Vec<Kernel> {
        let mut last = Completion::Ready;
        let mut used = Vec::new();
        for launch in launches {
            let kernel = launch.kernel;
            let key = (kernel.direction, kernel.width);
            let table = kernel.family.tabled().then(|| self.upload(launch.args.as_bytes()));
            let device = &self.device;
            let program = self.programs.entry(key).or_insert_with(|| {
                device.program(&opencl_source(key.0, key.1), "-cl-std=CL1.2").unwrap()
            });
            let count = 2 + kernel.family.plans();
            let mut arguments: Vec<Argument<'_>> =
                pointers[..count].iter().map(|&region| Argument::Buffer(region)).collect();
            arguments.push(table.map_or(Argument::Value(launch.args.as_bytes()), Argument::Buffer));
            // SAFETY: the kernel takes these pointers and this structure (`layouts` compares them); the
            // launch stays inside the buffers, which is what is tested: they have margins, and PoCL's
            // are the heap's.
            last = unsafe {
                device.launch(
                    program,
                    &kernel.to_string(),
                    launch.blocks,
                    launch.threads,
                    &arguments,
                    &[last],
                )
            }
            .unwrap();
            if let Some(table) = table {
                last.wait().unwrap();
                self.take(table);
            }
            used.push(kernel);
        }
        last.wait().unwrap();
        used
    }

    /// Runs a case and compares every byte of both sides. `skew` shifts the packed side against the
    /// stream's words.
    #[expect(clippy::too_many_arguments, reason = "what a test varies")]
    pub(crate) fn pack_or_unpack(
        &mut self,
        case: &Case,
        direction: Direction,
        range: Range<u64>,
        budget: Option<NonZeroU32>,
        skew: u64,
        width: Width,
        seed: u64,
    ) -> Vec<Kernel> {
        let len = range.end - range.start;
        let packed_at = MARGIN + range.start % 16 + skew;
        let what = Move {
            direction,
            range: range.clone(),
            typed: place(case.origin()),
            packed: place(packed_at.cast_signed()),
            budget,
        };
        let launches = case.launches(&what);
        let origin = case.origin();
        let inside_word = len < 16;
        if skew == 0 && !inside_word {
            for launch in &launches {
                assert_eq!(launch.kernel.width, width, "seed {seed:#x}: {launch:?}");
            }
        }
        let mut random = Random::new(seed ^ 0x5555);
        let mut noise = |len: u64| -> Vec<u8> {
            (0..len).map(|_| u8::try_from(random.below(256)).unwrap()).collect()
        };
        let (mut typed, mut packed) = (noise(case.buffer_bytes()), noise(len + 3 * MARGIN));
        let pointers = [self.upload(&typed), self.upload(&packed), self.upload(&case.plan)];
        let used = self.run(&launches, &pointers);
        for (at, byte) in (packed_at..).zip(range.clone()) {
            let at = usize::try_from(at).unwrap();
            let displacement = case.truth[usize::try_from(byte).unwrap()];
            let there = usize::try_from(origin + displacement).unwrap();
            match direction {
                Direction::Pack => packed[at] = typed[there],
                Direction::Unpack => typed[there] = packed[at],
            }
        }
        let say = format!("seed {seed:#x}, {range:?}, {direction:?}, skew {skew}, by {launches:?}");
        same(&self.take(pointers[0]), &typed, &format!("typed side, {say}"));
        same(&self.take(pointers[1]), &packed, &format!("packed side, {say}"));
        self.take(pointers[2]);
        used
    }

    /// Runs a part of every case, all at once, and compares every byte of both sides. Cases of one width
    /// must run at it.
    pub(crate) fn fused(
        &mut self,
        cases: &[Case],
        direction: Direction,
        budget: Option<NonZeroU32>,
        width: Option<Width>,
        random: &mut Random,
        round: u64,
    ) -> Vec<Kernel> {
        let (mut plan, mut parts) = (Vec::new(), Vec::new());
        let (mut typed_len, mut packed_len) = (0, MARGIN);
        for case in cases {
            let plan_at = plan.len() as u64;
            plan.extend_from_slice(&case.plan);
            plan.resize(plan.len().next_multiple_of(16), 0);
            let side = match case.side.clone() {
                TransferSide::Listed(blocks) => {
                    TransferSide::Listed(Blocks { list: blocks.list + plan_at, ..blocks })
                }
                TransferSide::Mapped(planned) => TransferSide::Mapped(Planned {
                    units: planned.units + plan_at,
                    shifts: planned.shifts + plan_at,
                    ..planned
                }),
                other => other,
            };
            // Some are a few bytes, which may lie inside a word.
            let whole = random.below(3) == 0;
            let mut range = case.range(random, whole);
            if random.below(4) == 0 {
                range.end = range.end.min(range.start + random.between(1, 20));
            }
            let packed_at = packed_len.next_multiple_of(16) + range.start % 16;
            parts.push(Part {
                range: range.clone(),
                side,
                typed: place(typed_len + case.origin()),
                packed: place(packed_at.cast_signed()),
            });
            typed_len += case.buffer_bytes().next_multiple_of(16).cast_signed();
            packed_len = packed_at + (range.end - range.start) + random.below(2) * MARGIN;
        }
        let launches = fused(direction, &parts, budget).unwrap();
        assert!(launches.iter().all(|launch| launch.kernel.family == Family::Fused));
        if let Some(width) = width {
            assert!(launches.iter().all(|launch| launch.kernel.width == width), "{launches:?}");
            assert_eq!(launches.len(), cases.len().div_ceil(32));
        }
        let mut noise = |len: u64| -> Vec<u8> {
            (0..len).map(|_| u8::try_from(random.below(256)).unwrap()).collect()
        };
        let (mut typed, mut packed) =
            (noise(typed_len.cast_unsigned()), noise(packed_len + MARGIN));
        let pointers = [self.upload(&typed), self.upload(&packed), self.upload(&plan)];
        let used = self.run(&launches, &pointers);
        for (case, part) in cases.iter().zip(&parts) {
            for (at, byte) in (part.packed.offset..).zip(part.range.clone()) {
                let at = usize::try_from(at).unwrap();
                let displacement = case.truth[usize::try_from(byte).unwrap()];
                let there = usize::try_from(part.typed.offset + displacement).unwrap();
                match direction {
                    Direction::Pack => packed[at] = typed[there],
                    Direction::Unpack => typed[there] = packed[at],
                }
            }
        }
        let say = format!("round {round}, {direction:?}: {parts:?}");
        same(&self.take(pointers[0]), &typed, &format!("typed side, {say}"));
        same(&self.take(pointers[1]), &packed, &format!("packed side, {say}"));
        self.take(pointers[2]);
        used
    }

    /// Moves from layout to layout and compares every byte of both sides.
    pub(crate) fn transfer(
        &mut self,
        from: &Case,
        to: &Case,
        range: Range<u64>,
        budget: Option<NonZeroU32>,
        seed: u64,
    ) -> Vec<Kernel> {
        let sides = ((&from.side, place(from.origin())), (&to.side, place(to.origin())));
        let launches = transfer(&range, sides.0, sides.1, budget).unwrap();
        assert!(launches.iter().all(|launch| launch.kernel.family == Family::Transfer));
        let mut random = Random::new(seed ^ 0xaaaa);
        let mut noise = |len: u64| -> Vec<u8> {
            (0..len).map(|_| u8::try_from(random.below(256)).unwrap()).collect()
        };
        let (source, mut target) = (noise(from.buffer_bytes()), noise(to.buffer_bytes()));
        let pointers = [
            self.upload(&source),
            self.upload(&target),
            self.upload(&from.plan),
            self.upload(&to.plan),
        ];
        let used = self.run(&launches, &pointers);
        let (from_origin, to_origin) = (from.origin(), to.origin());
        for byte in range.clone() {
            let byte = usize::try_from(byte).unwrap();
            let here = usize::try_from(from_origin + from.truth[byte]).unwrap();
            let there = usize::try_from(to_origin + to.truth[byte]).unwrap();
            target[there] = source[here];
        }
        let say = format!("seed {seed:#x}, {range:?}, by {launches:?}");
        same(&self.take(pointers[0]), &source, &format!("source, {say}"));
        same(&self.take(pointers[1]), &target, &format!("destination, {say}"));
        self.take(pointers[2]);
        self.take(pointers[3]);
        used
    }
}

/// Says where two buffers differ first.
fn same(got: &[u8], want: &[u8], what: &str) {
    if let Some(at) = got.iter().zip(want).position(|(a, b)| a != b) {
        let wrong = got.iter().zip(want).filter(|(a, b)| a != b).count();
        panic!("{wrong} of {} bytes differ, first byte {at}: {what}", got.len());
    }
}

/// Shapes as cases.
pub(crate) fn strided_case(grid: Grid) -> Case {
    let truth = grid_truth(&grid);
    Case { side: TransferSide::Strided(grid), truth, plan: vec![0; 8] }
}

pub(crate) fn runs_case(runs: Runs) -> Case {
    Case { side: TransferSide::Affine(runs), truth: runs_truth(&runs), plan: vec![0; 8] }
}

pub(crate) fn blocks_case(blocks: Blocks, list: &[i64], plan: Vec<u8>) -> Case {
    let one =
        spread(list.iter().map(|entry| (blocks.displacement + entry * blocks.scale, blocks.len)));
    let truth = instances(&one, blocks.instances, blocks.extent);
    Case { side: TransferSide::Listed(blocks), truth, plan }
}

pub(crate) fn planned_case(planned: Planned, one: &[i64], plan: Vec<u8>) -> Case {
    let truth = instances(one, planned.instances, planned.extent);
    Case { side: TransferSide::Mapped(planned), truth, plan }
}
