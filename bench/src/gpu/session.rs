//! One run on a GPU: rows are verified, measured and compared alike, and a row that fails costs only
//! itself.

use std::num::NonZeroU32;
use std::time::Instant;

use gapless_dtype_cuda::{GpuEngine, Launched};
use gapless_kernels::Direction;
use gapless_report::{Absent, Bytes, Machine, Report, Row, Samples, Summary};
use serde_json::{Map, Value};

use super::aims::{AimKind, judge};
use super::floor::CopyRate;
use super::lab::{Lab, Laid, Spot};
pub use super::places::{Copies, Places};
use super::proof::Proof;
use super::quoted;
use super::subject::Subject;
use super::timing::{Operation, race};
use crate::error::Failure;
use crate::experiment::{Common, Findings};
use crate::random::Random;

/// Places begin at multiples of this.
const PAGE: u64 = 4096;
/// Places of one subject at most.
const PLACES_MAX: u64 = 4096;
/// The rate of memory is that of copies of this length, if the device holds it, …
const LARGE: u64 = 1 << 30;
/// … and of shorter ones, down to this.
const SHORT: u64 = 1 << 20;
/// The share of `--time` that is spent on one figure: there are hundreds, and each is short.
const SHARE: f64 = 0.15;

/// What every GPU experiment works with.
pub struct Session<'a> {
    /// The device.
    pub lab: &'a Lab,
    /// What verifies.
    pub proof: Proof<'a>,
    /// The options.
    pub common: &'a Common,
    /// Figures so far.
    pub rows: Vec<Row>,
    /// What could not be had.
    pub absent: Vec<Absent>,
    rate: CopyRate,
    /// Something hangs: whatever else is tried would wait for it.
    hangs: bool,
}

/// What is to be measured of one subject.
pub struct SessionWork<'a> {
    /// What.
    pub subject: &'a Subject,
    /// How it is judged.
    pub kind: AimKind,
    /// Its name and size among the quoted readings.
    pub quoted: Option<(&'a str, u64)>,
    /// Thread blocks of a launch at most.
    pub budget: Option<NonZeroU32>,
}

impl<'a> SessionWork<'a> {
    /// A subject and how it is judged.
    #[must_use]
    pub fn new(subject: &'a Subject, kind: AimKind) -> SessionWork<'a> {
        SessionWork { subject, kind, quoted: None, budget: None }
    }

    /// With quoted readings beside.
    #[must_use]
    pub fn quoted(self, layout: &'a str, n: u64) -> SessionWork<'a> {
        SessionWork { quoted: Some((layout, n)), ..self }
    }
}

/// Both directions, in the order of rows.
pub const BOTH: [Direction; 2] = [Direction::Pack, Direction::Unpack];

/// The operation's name in rows.
#[must_use]
pub fn op(direction: Direction) -> &'static str {
    match direction {
        Direction::Pack => "pack",
        Direction::Unpack => "unpack",
    }
}

impl<'a> Session<'a> {
    /// Fills the memory, and finds how fast it copies.
    ///
    /// # Errors
    /// Memory that cannot be had, or what the driver refuses.
    pub fn new(lab: &'a Lab, common: &'a Common) -> Result<Session<'a>, Failure> {
        let proof = Proof::new(lab, common.seed)?;
        let large = LARGE.min(lab.arenas().from.len() / 2);
        let mut session = Session {
            lab,
            proof,
            common,
            rows: Vec::new(),
            absent: Vec::new(),
            rate: CopyRate::of([(1, 1.0)]),
            hangs: false,
        };
        let shorter = std::iter::successors(Some(large), |len| Some(len / 2));
        let mut points = Vec::new();
        for len in shorter.take_while(|len| *len >= SHORT.min(large)) {
            let mut copies = session.copies(len)?;
            let copy = super::timing::alone(lab, session.seconds(), true, || copies.copy(lab))?;
            points.push((len, copy.median));
        }
        session.rate = CopyRate::of(points);
        Ok(session)
    }

    /// Seconds for one figure.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.common.seconds() * SHARE
    }

    /// How fast memory moves bytes.
    #[must_use]
    pub fn rate(&self) -> &CopyRate {
        &self.rate
    }

    /// Keeps the rows that `work` gives, or why it gives none.
    pub fn attempt(
        &mut self,
        case: &str,
        op: &str,
        work: impl FnOnce(&mut Session<'a>) -> Result<Vec<Row>, Failure>,
    ) {
        if self.absent.iter().any(|absent| absent.op == LOST) {
            // One line for all that follows.
            return;
        }
        let lost = match self.lab.lost() {
            None if self.hangs => Some("what was started before it does not end".to_owned()),
            lost => lost.map(|lost| lost.to_string()),
        };
        if let Some(why) = lost {
            self.miss(case, LOST, &why, true);
            return;
        }
        match work(self) {
            Ok(rows) => rows.into_iter().for_each(|row| self.keep(row)),
            Err(failure) => {
                self.hangs |= matches!(failure, Failure::Hangs { .. });
                let lacking = matches!(
                    failure,
                    Failure::NoTools { .. } | Failure::NoGpu { .. } | Failure::TooBig { .. }
                );
                self.miss(case, op, &failure.to_string(), !lacking);
            }
        }
    }

    /// Keeps a row, unless its figures contradict each other: then the report would not be written.
    fn keep(&mut self, row: Row) {
        let report = Report {
            experiment: "a row".to_owned(),
            machine: Machine::default(),
            commit: "none".to_owned(),
            command: "none".to_owned(),
            rows: vec![row],
            absent: Vec::new(),
        };
        let sound = report.validate();
        let Some(row) = report.rows.into_iter().next() else { return };
        match sound {
            Ok(()) => self.rows.push(row),
            Err(fault) => self.miss(&row.case, &row.op, &fault.to_string(), true),
        }
    }

    /// Notes what is not there, and says so.
    pub fn skip(&mut self, case: &str, op: &str, why: &str) {
        eprintln!("SKIPPED: {case}, {op}: {why}");
        let (case, op, why) = (case.to_owned(), op.to_owned(), why.to_owned());
        self.absent.push(Absent { case, op, why, failed: false });
    }

    fn miss(&mut self, case: &str, op: &str, why: &str, failed: bool) {
        eprintln!("{}: {case}, {op}: {why}", if failed { "FAILED" } else { "SKIPPED" });
        let (case, op, why) = (case.to_owned(), op.to_owned(), why.to_owned());
        self.absent.push(Absent { case, op, why, failed });
    }

    /// Places of a subject, in shuffled order, as many as rotate over four times the GPU's cache.
    ///
    /// # Errors
    /// Not one fits.
    pub fn places(&self, subject: &Subject) -> Result<Places, Failure> {
        self.places_in(subject, &self.lab.arenas().typed)
    }

    /// The same in another arena for the layout.
    ///
    /// # Errors
    /// Not one fits.
    pub fn places_in(&self, subject: &Subject, arena: &Spot) -> Result<Places, Failure> {
        let arenas = self.lab.arenas();
        let (span, payload) = (whole_pages(subject.span), whole_pages(subject.payload));
        for (needed, most) in [(span, arena.len()), (payload, arenas.packed.len())] {
            if needed > most {
                let (needed, most) = (Bytes(needed), Bytes(most));
                return Err(Failure::TooBig { case: subject.name.clone(), needed, most });
            }
        }
        let touched = subject.traffic.touched_bytes() + subject.payload;
        let places = self.number(touched, (arena.len() / span).min(arenas.packed.len() / payload));
        let mut order: Vec<u64> = (0..places).collect();
        Random::new(self.common.seed).shuffle(&mut order);
        let typed =
            order.iter().map(|at| self.lab.lay(subject, &arena.sub(at * span, subject.span)?));
        let packed = order.iter().map(|at| arenas.packed.sub(at * payload, subject.payload));
        Ok(Places {
            typed: typed.collect::<Result<_, Failure>>()?,
            packed: packed.collect::<Result<_, Failure>>()?,
            at: 0,
            rotation_bytes: places * touched,
        })
    }

    /// Places for plain copies of `payload` bytes.
    ///
    /// # Errors
    /// Not one fits.
    pub fn copies(&self, payload: u64) -> Result<Copies, Failure> {
        let arenas = self.lab.arenas();
        let (step, most) = (whole_pages(payload), arenas.from.len().min(arenas.to.len()));
        if step > most {
            let (needed, most) = (Bytes(step), Bytes(most));
            return Err(Failure::TooBig { case: "a plain copy".to_owned(), needed, most });
        }
        let mut order: Vec<u64> = (0..self.number(2 * payload, most / step)).collect();
        Random::new(!self.common.seed).shuffle(&mut order);
        let pair = |at: &u64| -> Result<(Spot, Spot), Failure> {
            Ok((arenas.to.sub(at * step, payload)?, arenas.from.sub(at * step, payload)?))
        };
        Ok(Copies { pairs: order.iter().map(pair).collect::<Result<_, _>>()?, at: 0 })
    }

    /// How many places of `touched` bytes.
    fn number(&self, touched: u64, most: u64) -> u64 {
        let wanted = if self.common.quick { 1 << 16 } else { 4 * self.lab.cache_bytes() };
        (wanted / touched.max(1) + 1).clamp(1, most.clamp(1, PLACES_MAX))
    }

    /// The engine's plan for a subject is in place.
    ///
    /// # Errors
    /// What the engine refuses.
    pub fn prepare(&self, engine: &GpuEngine, subject: &Subject) -> Result<(), Failure> {
        self.lab.wait(&engine.prepare(&subject.layout)?)
    }

    /// Packs and unpacks on the device, in turn with `cudaMemcpy` and our contiguous kernel of the same
    /// payload; a row for each direction.
    ///
    /// # Errors
    /// A wrong byte, or what engine or driver refuse.
    pub fn measure(&mut self, work: &SessionWork<'_>) -> Result<Vec<Row>, Failure> {
        let (lab, subject) = (self.lab, work.subject);
        let engine = lab.engine().with_budget(work.budget);
        self.prepare(&engine, subject)?;
        let queue = lab.on(&engine)?;
        self.proof.both(subject, &queue)?;
        let places = std::cell::RefCell::new(self.places(subject)?);
        let go = |direction| -> Operation<'_> {
            let (places, queue) = (&places, &queue);
            Box::new(move || {
                let mut places = places.borrow_mut();
                let (laid, packed) = places.turn();
                queue.go(direction, laid, packed)
            })
        };
        let times = self.race_both(subject.payload, BOTH.map(go))?;
        let mut places = places.into_inner();
        let mut rows = Vec::new();
        for (direction, time) in BOTH.into_iter().zip(&times) {
            let call = super::timing::calls(self.seconds() / 4.0, || {
                let (laid, packed) = places.turn();
                lab.call(&engine, direction, laid, packed)
            })?;
            let (laid, packed) = places.first();
            let launches = launches(&engine, direction, laid, packed)?;
            let row = self.compared(subject, direction, (*time, &times[2..]), &launches);
            let row = with_call(row, &call).with("rotation_bytes", places.rotation_bytes);
            let row = self.with_quoted(row, work.quoted, direction);
            rows.push(judge(row, work.kind, self.cached(subject)));
        }
        Ok(rows)
    }

    /// Device time of both directions, in turn with `cudaMemcpy` and our contiguous kernel of the same payload.
    ///
    /// # Errors
    /// What one of them refuses.
    pub fn race_both(
        &self,
        payload: u64,
        [pack, unpack]: [Operation<'_>; 2],
    ) -> Result<Vec<Summary>, Failure> {
        let lab = self.lab;
        let mut copied = self.copies(payload)?;
        let mut moved = self.copies(payload)?.opposite();
        let free = lab.on(lab.engine())?;
        let copy: Operation<'_> = Box::new(|| copied.copy(lab));
        let contiguous: Operation<'_> = Box::new(|| moved.pack(lab, &free));
        race(lab, self.seconds(), true, &mut [pack, unpack, copy, contiguous])
    }

    /// A row beside `cudaMemcpy`, our contiguous kernel and the traffic floor.
    #[must_use]
    pub fn compared(
        &self,
        subject: &Subject,
        direction: Direction,
        (time, theirs): (Summary, &[Summary]),
        launches: &[Launched],
    ) -> Row {
        let row = self.row(subject, direction, time, launches);
        let row = row.against("memcpy", theirs[0]).against("contiguous", theirs[1]);
        self.floored(row, subject, direction, launches)
    }

    /// Proves one direction of what `go` does: to `place` or from it, or in memory of the device if that is `None`.
    ///
    /// # Errors
    /// As of [`Proof::pack`].
    pub fn prove(
        &mut self,
        subject: &Subject,
        direction: Direction,
        place: Option<Spot>,
        mut go: impl FnMut(&Laid, &Spot) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        match direction {
            Direction::Pack => self.proof.pack(subject, place, &mut go),
            Direction::Unpack => {
                self.proof.unpack(subject, place, &mut |spot, laid| go(laid, spot))
            }
        }
    }

    /// A verified row of the engine's, without comparisons.
    #[must_use]
    pub fn row(
        &self,
        subject: &Subject,
        direction: Direction,
        time: Summary,
        launches: &[Launched],
    ) -> Row {
        let (name, space) = (&*subject.name, self.lab.arenas().typed.space().to_string());
        Row::new(name, op(direction), space, told(launches), subject.payload, time)
            .blocks(subject.blocks)
            .verified(true)
            .with("verified_by", "host engine")
            .with("launches", launches.len())
            .with("thread_blocks", launches.iter().map(|it| it.blocks).max().unwrap_or(0))
            .with("plan_bytes", launches.iter().map(|it| it.plan_bytes).max().unwrap_or(0))
    }

    fn floored(
        &self,
        row: Row,
        subject: &Subject,
        direction: Direction,
        launches: &[Launched],
    ) -> Row {
        let plan = launches.iter().map(|it| it.plan_bytes).max().unwrap_or(0);
        let bytes = match direction {
            Direction::Pack => subject.traffic.pack_bytes(subject.payload, plan),
            Direction::Unpack => subject.traffic.unpack_bytes(subject.payload, plan),
        };
        if bytes == 0 || subject.payload == 0 {
            return row;
        }
        row.against_gbps("floor", subject.payload as f64 / self.rate.seconds(bytes) / 1e9)
            .with("traffic_bytes", bytes)
    }

    /// Whether all of a subject's traffic fits the GPU's cache.
    #[must_use]
    pub fn cached(&self, subject: &Subject) -> bool {
        subject.traffic.unpack_bytes(subject.payload, 0) < self.lab.cache_bytes()
    }

    fn with_quoted(&self, row: Row, quoted: Option<(&str, u64)>, direction: Direction) -> Row {
        let Some((layout, n)) = quoted else { return row };
        let readings: Map<String, Value> = quoted::of(layout, n, op(direction))
            .map(|it| (it.peer.to_owned(), Value::from(it.gbps)))
            .collect();
        if readings.is_empty() {
            return row;
        }
        row.with("quoted_gbps", readings).with("quoted_from", quoted::SOURCE)
    }

    /// What was found.
    #[must_use]
    pub fn findings(self, notes: String) -> Findings {
        let rate = self.rate.bytes_per_second() / 1e12;
        let notes = format!(
            "{notes}memory moves {rate:.2} TB/s (twice the payload of a large cudaMemcpy); the floor is a \
             cudaMemcpy that moves as many bytes;\nL2 {}; device time by marks, the stream held while a \
             sample is enqueued; call: whole calls by\nthe CPU's clock\n",
            Bytes(self.lab.cache_bytes())
        );
        Findings { rows: self.rows, notes, absent: self.absent }
    }
}

/// The operation of a row that says that the device is lost.
const LOST: &str = "everything from here on";

fn whole_pages(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(PAGE)
}

/// Adds the time of whole calls.
#[must_use]
pub fn with_call(row: Row, call: &Summary) -> Row {
    row.with("call_seconds", call.median)
        .with("call_q1_seconds", call.q1.unwrap_or(call.min))
        .with("call_q3_seconds", call.q3.unwrap_or(call.max))
}

/// What a pack or unpack would launch.
///
/// # Errors
/// What the engine refuses.
pub fn launches(
    engine: &GpuEngine,
    direction: Direction,
    laid: &Laid,
    packed: &Spot,
) -> Result<Vec<Launched>, Failure> {
    Ok(engine.launches(direction, laid.typed(), 0..laid.payload(), packed.region())?)
}

/// The kernels' names, each once, and how many launches if not one.
#[must_use]
pub fn told(launches: &[Launched]) -> String {
    let mut names: Vec<String> = launches.iter().map(|it| it.kernel.to_string()).collect();
    names.dedup();
    let names = if names.is_empty() { "no kernel".to_owned() } else { names.join("+") };
    match launches.len() {
        0 | 1 => names,
        many => format!("{names} ×{many}"),
    }
}

/// Whole calls in turn, by the CPU's clock, until about `seconds` are spent on each; each has been called
/// before.
///
/// # Errors
/// A call's own.
pub fn race_calls(seconds: f64, calls: &mut [Operation<'_>]) -> Result<Vec<Summary>, Failure> {
    const ROUNDS: (usize, usize) = (5, 200);
    let mut all = vec![Samples::default(); calls.len()];
    let begin = Instant::now();
    let wanted = seconds * calls.len() as f64;
    for round in 0..ROUNDS.1 {
        if round >= ROUNDS.0 && begin.elapsed().as_secs_f64() > wanted {
            break;
        }
        for (call, samples) in calls.iter_mut().zip(&mut all) {
            let begin = Instant::now();
            call()?;
            samples.push(begin.elapsed().as_secs_f64().max(1e-9));
        }
    }
    all.iter().map(|it| it.summary().map_err(Failure::samples("whole calls"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_kernels::{Family, Kernel, Width};

    #[test]
    fn kernels_are_told_once() {
        let kernel =
            |width| Kernel { family: Family::Rows, direction: Direction::Pack, width, few: false };
        let launch =
            |width| Launched { kernel: kernel(width), blocks: 1, threads: 2, plan_bytes: 0 };
        assert_eq!(told(&[]), "no kernel");
        assert_eq!(told(&[launch(Width::W8)]), "pack_rows_w8");
        let two = [launch(Width::W8), launch(Width::W8), launch(Width::W4)];
        assert_eq!(told(&two), "pack_rows_w8+pack_rows_w4 ×3");
    }

    #[test]
    fn calls_take_turns() {
        let order = std::cell::RefCell::new(String::new());
        let note = |who: char| -> Operation<'_> {
            let order = &order;
            Box::new(move || {
                order.borrow_mut().push(who);
                Ok(())
            })
        };
        let times = race_calls(0.0, &mut [note('a'), note('b')]).unwrap();
        assert!(order.borrow().starts_with("ababab"));
        assert!(times.iter().all(|time| time.samples >= 5));
    }
}
