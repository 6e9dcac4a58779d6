//! Collectives of ranks whose buffers lie on one GPU, pretended by devices that share their memory and work late.
mod led;
mod meetings;
mod overtaken;
mod trouble;

use super::*;
use crate::job::Job;
use crate::sm::open;
use gapless_coll::hyperq::{Entry, Gpu, HyperQStep, Kind, Mode, Settings, Table};
use gapless_coll::testkit::Content;
use gapless_coll::{BufferBlocks, CollError, HyperQ, Outcome};
use gapless_dtype::Layout;
use gapless_engine::testkit::{FakeEngine, Work, Wrapper};
use gapless_engine::{Engine, EngineError, HostEngine, Op, Reducer, Typed};
use gapless_mem::fake::FakeDevice;
use gapless_mem::testkit::{Call as DeviceCall, Wrapped};
use gapless_mem::{Completion, Device, Region, Space};
use gapless_pml::Config;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::task::Poll;

const TURNS_MAX: u32 = 400_000;
const GPU: u128 = 0x1234 << 64 | 7;

/// Combines in a fake device's memory, at once.
struct FakeReducer(Arc<FakeDevice>);

// SAFETY: the work is the host's, which keeps the contract, where the device's memory can be touched; it is over when
// the call returns.
unsafe impl Reducer for FakeReducer {
    fn supports(&self, op: &Op, layout: &Layout) -> bool {
        HostEngine.supports(op, layout)
    }

    fn serves(&self, space: Space) -> bool {
        self.0.space() == space
    }

    unsafe fn reduce_into(
        &self,
        op: &Op,
        srcs: &[Typed],
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let near = |typed: &Typed| typed.moved(self.0.alias(typed.region())?, typed.origin());
        let sources: Vec<Typed> = srcs.iter().map(near).collect::<Result<_, _>>()?;
        // SAFETY: the caller grants the memory.
        unsafe { HostEngine.reduce_into(op, &sources, &near(dst)?, range, after) }
    }
}

/// An engine that copies many pairs at once, and at once.
struct Fusing<'e>(&'e FakeEngine);

// SAFETY: the work is another engine's; what is copied at once is over when the call returns.
unsafe impl Wrapper for Fusing<'_> {
    fn name(&self) -> &'static str {
        Engine::name(self.0)
    }

    fn serves(&self, space: Space) -> bool {
        Engine::serves(self.0, space)
    }

    unsafe fn work(&self, work: Work, after: &[Completion]) -> Result<Completion, EngineError> {
        // SAFETY: the caller's promise.
        unsafe { work.run(self.0, after) }
    }

    unsafe fn copy_all(
        &self,
        pairs: &[(Region, Region)],
        after: &[Completion],
    ) -> Result<Option<Completion>, EngineError> {
        let end = |region: &Region| region.start() + region.len();
        for (at, (into, _)) in pairs.iter().enumerate() {
            let others = pairs.iter().enumerate().filter(|(other, _)| *other != at);
            let others = others.flat_map(|(_, (into, from))| [into, from]).chain([&pairs[at].1]);
            for other in others.filter(|other| other.space() == into.space()) {
                assert!(end(into) <= other.start() || end(other) <= into.start(), "{pairs:?}");
            }
        }
        for (into, from) in pairs {
            let from = Typed::contiguous(*from);
            // SAFETY: the caller's promise.
            unsafe { self.0.pack(&from, 0..from.packed_bytes(), *into, after) }?.wait()?;
        }
        Ok(Some(Completion::Ready))
    }
}

/// A rank's GPU.
struct Gear {
    fake: Arc<FakeDevice>,
    /// As the transports and the collectives see it.
    device: Arc<dyn Device>,
    engine: FakeEngine,
}

impl Gear {
    /// One of several that are one device: loopbacks hand its memory on as it is.
    fn of(fake: &Arc<FakeDevice>, delay: u32) -> Gear {
        let (fake, engine) = (Arc::clone(fake), FakeEngine::new(fake, delay));
        Gear { device: Arc::clone(&fake) as _, fake, engine }
    }

    /// A device of its own, which maps no other's memory.
    fn alone(number: u32, gpu: u128) -> Gear {
        Gear::of(&Arc::new(FakeDevice::new(number).identified(gpu, false)), 0)
    }
}

/// So many ranks' gear, of one device.
fn one_gpu(ranks: u32, delay: u32) -> Vec<Gear> {
    // With an odd delay as one on which processes take turns.
    let fake = FakeDevice::with_delay(86, delay).identified(GPU, delay % 2 == 1);
    let fake = Arc::new(fake);
    (0..ranks).map(|_| Gear::of(&fake, delay)).collect()
}

/// A buffer, on the device or in the host's memory.
struct Place {
    fake: Arc<FakeDevice>,
    region: Region,
    blocks: BufferBlocks,
}

impl Place {
    /// `gaps`: behind each element of so many bytes there are as many that are not the buffer's.
    fn new(fake: &Arc<FakeDevice>, bytes: &[u8], gaps: Option<u64>) -> Place {
        let fake = Arc::clone(fake);
        let len = bytes.len() as u64;
        let region = fake.allocate((2 * len).max(1)).unwrap();
        let typed = match gaps {
            Some(unit) => {
                let element = Datatype::contiguous(unit, &Primitive::Byte.into()).unwrap();
                let layout =
                    Datatype::resized(0, i64::try_from(2 * unit).unwrap(), &element).unwrap();
                Typed::new(region, 0, &layout.commit().unwrap(), len / unit).unwrap()
            }
            None => Typed::contiguous(region.sub(0, len).unwrap()),
        };
        let blocks = if len == 0 { BufferBlocks::None } else { BufferBlocks::Whole(typed) };
        let place = Place { fake, region, blocks };
        place.moved(&mut bytes.to_vec(), true);
        place
    }

    /// Its packed bytes come from there, or go there; at once.
    fn moved(&self, bytes: &mut [u8], inwards: bool) {
        let BufferBlocks::Whole(typed) = &self.blocks else { return };
        let there = self.fake.alias(typed.region()).unwrap();
        let there = typed.moved(there, typed.origin()).unwrap();
        let (range, here) = (0..bytes.len() as u64, Region::of_mut(bytes));
        let work = match inwards {
            // SAFETY: both live, and nothing else touches them: no collective is under way.
            true => unsafe { HostEngine.unpack(here, &there, range, &[]) },
            // SAFETY: as above.
            false => unsafe { HostEngine.pack(&there, range, here, &[]) },
        };
        work.unwrap().wait().unwrap();
    }

    fn bytes(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.moved(&mut bytes, false);
        bytes
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more.
        unsafe { self.fake.free(self.region) }.unwrap();
    }
}

/// One call of all ranks, with its buffers and what comes out.
struct Trial {
    call: Call<'static>,
    how: Arithmetic,
    before: Vec<Content>,
    after: Vec<Vec<u8>>,
    places: Vec<[Place; 2]>,
}

impl Trial {
    fn new(call: Call<'static>, how: Arithmetic, gears: &[Gear], random: &mut Random) -> Trial {
        let n = gears.len();
        let algorithm = gapless_coll::choose::candidates(&call, &Locality::flat(n))[0];
        let schedules: Vec<Schedule> = (0..n)
            .map(|rank| build(rank, &Locality::flat(n), &call, &algorithm).unwrap())
            .collect();
        let before: Vec<Content> = schedules
            .iter()
            .map(|schedule| Content {
                send: random.bytes(schedule.row(Buffer::Send).len()),
                recv: random.bytes(schedule.row(Buffer::Recv).len()),
            })
            .collect();
        let after = after(&vec![call; n], &schedules, &before, how);
        let places = before.iter().zip(gears).map(|(content, gear)| {
            [&content.send, &content.recv].map(|bytes| {
                let gaps = (random.below(3) == 0).then_some(how.unit());
                let fits = bytes.len().is_multiple_of(usize::try_from(how.unit()).unwrap());
                Place::new(&gear.fake, bytes, gaps.filter(|_| fits))
            })
        });
        let places = places.collect();
        Trial { call, how, before, after, places }
    }

    fn rows(&self, rank: usize) -> CallBuffers {
        let [send, recv] = &self.places[rank];
        CallBuffers { send: send.blocks.clone(), recv: recv.blocks.clone() }
    }

    /// Whether a rank has what it should have.
    fn check(&self, rank: usize) {
        let [send, recv] = &self.places[rank];
        let what = || format!("{:?}: rank {rank}", self.call);
        assert!(
            send.bytes(self.before[rank].send.len()) == self.before[rank].send,
            "{}: sent",
            what()
        );
        assert!(recv.bytes(self.after[rank].len()) == self.after[rank], "{}: received", what());
    }
}

/// Buffers like those of a trial, all plain, or all with gaps.
fn alike(trial: &mut Trial, gears: &[Gear], gaps: Option<u64>) {
    let place = |(content, gear): (&Content, &Gear)| {
        [&content.send, &content.recv].map(|bytes| Place::new(&gear.fake, bytes, gaps))
    };
    trial.places = trial.before.iter().zip(gears).map(place).collect();
}

/// Ranks that share a GPU.
struct Ranks {
    job: Job,
    gears: Vec<Gear>,
    all: Vec<HyperQ>,
    /// The number of the next call.
    next: u64,
    /// Engines copy many pairs at once.
    fuses: bool,
}

impl Ranks {
    fn new(n: u32, settings: &Settings, delay: u32) -> Ranks {
        Ranks::of(one_gpu(n, delay), settings)
    }

    fn of(gears: Vec<Gear>, settings: &Settings) -> Ranks {
        let n = u32::try_from(gears.len()).unwrap();
        let mut job = Job::with(n, &Config::default());
        for (rank, gear) in (0..).zip(&gears) {
            job.pml(rank).bml_mut().attach(&gear.device).unwrap();
        }
        let worlds = job.worlds();
        let segments = open(&mut job, &Job::sequencers(&worlds), None);
        let hyperq = |segment: Option<gapless_coll::sm::SharedSegment>| {
            segment.unwrap().hyperq(settings.clone())
        };
        let all = segments.into_iter().map(|segment| hyperq(segment).unwrap()).collect();
        Ranks { job, gears, all, next: 2, fuses: false }
    }

    fn begin(&mut self, rank: usize, number: u64, trial: &Trial) -> Result<bool, CollError> {
        let with = (trial.rows(rank), Some(trial.how.how()));
        let pml = self.job.ranks[rank].as_mut().unwrap();
        // SAFETY: tests keep the buffers until all has ended, or is dropped.
        unsafe { self.all[rank].begin(number, &trial.call, with, pml) }
    }

    fn advance(&mut self, rank: usize, turn: u32) -> Poll<Result<Outcome, CollError>> {
        let gear = &self.gears[rank];
        let pml = self.job.ranks[rank].as_mut().unwrap();
        let reducer = FakeReducer(Arc::clone(&gear.fake));
        let engine: &dyn Engine = if self.fuses { &Fusing(&gear.engine) } else { &gear.engine };
        self.all[rank].advance(pml, engine, &reducer, u64::from(turn) * 100)
    }

    /// Each rank goes through all trials, as far ahead of others as it can; what came of them.
    fn play(
        &mut self,
        trials: &[Trial],
        random: &mut Random,
    ) -> Vec<Vec<Result<Outcome, CollError>>> {
        let n = self.gears.len();
        let mut left: Vec<VecDeque<usize>> = (0..n).map(|_| (0..trials.len()).collect()).collect();
        let mut going = vec![false; n];
        let mut results: Vec<Vec<_>> = (0..n).map(|_| Vec::new()).collect();
        let first = self.next;
        self.next += 3 * trials.len() as u64;
        for turn in 0.. {
            assert!(turn < TURNS_MAX, "{n} ranks have {left:?} left, {:?}", self.all);
            if left.iter().all(VecDeque::is_empty) {
                break;
            }
            let rank = random.index(n);
            for _ in 0..=random.below(4) * 3 {
                let Some(&index) = left[rank].front() else { break };
                // Numbers are left out by other collectives.
                if !going[rank] {
                    let begun = self.begin(rank, first + 3 * index as u64, &trials[index]);
                    going[rank] = begun.unwrap();
                    assert!(going[rank]);
                }
                if let Poll::Ready(result) = self.advance(rank, turn) {
                    left[rank].pop_front();
                    going[rank] = false;
                    results[rank].push(result);
                }
            }
            self.job.progress();
        }
        results
    }
}

fn settings(mode: Mode) -> Settings {
    Settings { mode, bytes_min: 0, table: Table::default() }
}

/// Copies of one kind alone, by a table.
fn only(kind: Kind) -> Settings {
    let staged = usize::from(kind == Kind::Staged);
    let entry = |step| Entry { step, processes: 2, bytes: 1, staged };
    let entries = vec![entry(HyperQStep::Gather), entry(HyperQStep::Scatter)];
    let gpu = |mps| Gpu { model: String::new(), mps, entries: entries.clone() };
    Settings { table: Table { gpus: vec![gpu(false), gpu(true)] }, ..settings(Mode::Static) }
}

/// Copies of either kind alone, and those that the dynamic algorithm chooses.
fn copying() -> [Settings; 3] {
    [only(Kind::Staged), only(Kind::Ipc), settings(Mode::Dynamic)]
}

fn calls(n: usize, how: Arithmetic, len: u64, random: &mut Random) -> Vec<Call<'static>> {
    let (of, root) = (sum(how), random.index(n));
    let in_place = random.below(2) == 0;
    let len = len.next_multiple_of(of.unit);
    vec![
        Call::Allreduce { len, of, in_place },
        Call::Gather { root, len, in_place },
        Call::Scatter { root, len, in_place },
        Call::Bcast { root, len },
        Call::Reduce { root, len, of, in_place },
        Call::Allgather { len, in_place },
        Call::Alltoall { len, in_place },
        Call::ReduceScatterBlock { len, of, in_place },
    ]
}

#[test]
fn every_operation_gives_what_it_is_defined_to_give() {
    let mut random = Random(160);
    let modes = Mode::ALL.into_iter().filter(|mode| *mode != Mode::Off).map(settings);
    for settings in modes.chain([only(Kind::Staged), only(Kind::Ipc)]) {
        for n in [2, 3, 5] {
            let mut ranks = Ranks::new(n, &settings, 1);
            for len in [1, 700, 150_000] {
                let how = if random.below(2) == 0 { Arithmetic::Sum } else { Arithmetic::Affine };
                let calls = calls(n as usize, how, len, &mut random);
                assert!(calls.iter().all(|call| HyperQ::asks(&settings, call, n as usize)));
                let trials: Vec<Trial> = calls
                    .into_iter()
                    .map(|call| Trial::new(call, how, &ranks.gears, &mut random))
                    .collect();
                let results = ranks.play(&trials, &mut random);
                assert!(
                    results.iter().flatten().all(|result| *result == Ok(Outcome::Done)),
                    "{results:?}"
                );
                trials.iter().for_each(|trial| (0..n as usize).for_each(|rank| trial.check(rank)));
            }
            // What was lent is known to be over: memory can be had back.
            for rank in 0..n as usize {
                assert!(
                    ranks.gears[rank].engine.under_way.load(std::sync::atomic::Ordering::Relaxed)
                        == 0
                );
            }
        }
    }
}

/// Copies of many chunks, whose areas are used again and again.
#[test]
fn what_is_long_goes_in_chunks() {
    let mut random = Random(161);
    for how in [only(Kind::Staged), settings(Mode::Dynamic), settings(Mode::Static)] {
        let mut ranks = Ranks::new(3, &how, 0);
        let how = Arithmetic::Sum;
        let (of, len) = (sum(how), 3_300_004);
        let calls = [
            Call::Allreduce { len, of, in_place: true },
            Call::Gather { root: 1, len, in_place: false },
        ];
        let trials: Vec<Trial> = calls
            .into_iter()
            .map(|call| Trial::new(call, how, &ranks.gears, &mut random))
            .collect();
        let results = ranks.play(&trials, &mut random);
        assert!(results.iter().flatten().all(|result| *result == Ok(Outcome::Done)), "{results:?}");
        trials.iter().for_each(|trial| (0..3).for_each(|rank| trial.check(rank)));
    }
}

/// The table decides, between its entries; where ranks take turns on the device, as on one without the service.
#[test]
fn the_table_says_how_many_copies_of_a_kind_there_are() {
    let mut random = Random(162);
    for staged in 0..=4 {
        let entry = |step| Entry { step, processes: 5, bytes: 1, staged };
        let entries = vec![entry(HyperQStep::Gather), entry(HyperQStep::Scatter)];
        let gpu = Gpu { model: "fake:86".to_owned(), mps: true, entries };
        let table = Table { gpus: vec![gpu] };
        let settings = Settings { table, ..settings(Mode::Auto) };
        let mut ranks = Ranks::new(5, &settings, 0);
        let how = Arithmetic::Sum;
        let call = Call::Allreduce { len: 4000, of: sum(how), in_place: false };
        let trial = Trial::new(call, how, &ranks.gears, &mut random);
        let results = ranks.play(std::slice::from_ref(&trial), &mut random);
        assert!(results.iter().flatten().all(|result| *result == Ok(Outcome::Done)));
        (0..5).for_each(|rank| trial.check(rank));
        assert_eq!(ranks.all[0].copied(), Some([[staged, 4 - staged]; 2]));
    }
}

#[test]
fn short_calls_and_other_operations_are_not_asked_about() {
    let of = sum(Arithmetic::Sum);
    let settings = Settings::default();
    let asks = |settings: &Settings, call| HyperQ::asks(settings, &call, 4);
    assert!(!asks(&settings, Call::Allreduce { len: 1024, of, in_place: false }));
    assert!(asks(&settings, Call::Allreduce { len: 1028, of, in_place: false }));
    assert!(asks(&settings, Call::Alltoall { len: 400, in_place: false }), "what a rank copies");
    assert!(!asks(&settings, Call::Barrier));
    assert!(!asks(&settings, Call::Scan { len: 1 << 20, of, in_place: false }));
    let off = Settings { mode: Mode::Off, ..settings };
    assert!(!asks(&off, Call::Allreduce { len: 1 << 20, of, in_place: false }));
}

/// Short host-staged copies into users' memory go in two rows where processes take turns on the GPU, whatever their
/// length: others would wait for a turn.
#[test]
fn short_copies_from_the_host_have_rows_where_processes_take_turns() {
    let mut random = Random(163);
    for turns in [false, true] {
        // Bytes of the copies of rank 0, which gets something in each call.
        let copied = Arc::new(Mutex::new(Vec::new()));
        let mut gears = one_gpu(3, u32::from(turns));
        let noted = Arc::clone(&copied);
        let note = move |call: DeviceCall| {
            if let DeviceCall::Copy(into) = call {
                noted.lock().unwrap().push(into.len());
            }
            Ok(())
        };
        gears[0].device = Arc::new(Wrapped::new(Arc::clone(&gears[0].device), note));
        let mut ranks = Ranks::of(gears, &only(Kind::Staged));
        for (len, rows) in
            [(1, [0, 0]), (2, [2, 0]), (3, [2, 2]), (999, [998, 2]), (40_001, [0, 0])]
        {
            let call = Call::Bcast { root: 1, len };
            let mut trial = Trial::new(call, Arithmetic::Sum, &ranks.gears, &mut random);
            // The engine copies what has gaps.
            alike(&mut trial, &ranks.gears, None);
            let results = ranks.play(std::slice::from_ref(&trial), &mut random);
            assert!(results.iter().flatten().all(|result| *result == Ok(Outcome::Done)));
            (0..3).for_each(|rank| trial.check(rank));
            let rows: Vec<u64> = rows.into_iter().filter(|row| *row > 0).collect();
            let whole = vec![len];
            let expected = if turns && !rows.is_empty() { rows } else { whole };
            assert_eq!(std::mem::take(&mut *copied.lock().unwrap()), expected);
        }
        // Several blocks, of which some end in another piece of the mirror.
        for len in [5001, 24 << 10] {
            let call = Call::Alltoall { len, in_place: false };
            let trial = Trial::new(call, Arithmetic::Sum, &ranks.gears, &mut random);
            let results = ranks.play(std::slice::from_ref(&trial), &mut random);
            assert!(results.iter().flatten().all(|result| *result == Ok(Outcome::Done)));
            (0..3).for_each(|rank| trial.check(rank));
        }
    }
}
