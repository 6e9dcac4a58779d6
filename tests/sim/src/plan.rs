//! What a world consists of, drawn from a seed: its size, its rails, what every rank does, what goes
//! wrong. A plan can be cut down ([`Keep`]) and stays a plan.

use crate::comms::{self, CommPlan};
use crate::shapes::SHAPES;
use gapless_dtype::testkit::Rng;
use std::fmt;

/// Which part of a plan is played.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Actions, by number; `None` for all.
    pub actions: Option<Vec<u32>>,
    /// Faults, by number; `None` for all.
    pub faults: Option<Vec<u32>>,
    /// Ranks from this one on do not exist.
    pub size: Option<u32>,
}

/// A rail as every rank has it.
#[derive(Clone, Debug)]
pub(crate) struct RailPlan {
    pub(crate) name: &'static str,
    pub(crate) ordered: bool,
    /// Messages may come so much late, and so out of order; 0 on a rail that promises order.
    pub(crate) shuffle_ns: u64,
    pub(crate) eager_bytes: usize,
    pub(crate) max_fragment_bytes: usize,
    pub(crate) slots: usize,
    pub(crate) latency_ns: u64,
    pub(crate) picoseconds_per_byte: u64,
    pub(crate) burst: usize,
    pub(crate) rdma: bool,
    pub(crate) mapped: bool,
    pub(crate) pieces_max: usize,
}

/// Numbers that hold for the whole world.
#[derive(Clone, Debug)]
pub(crate) struct Knobs {
    pub(crate) credit_ns_max: u64,
    pub(crate) storm_per_mille: u64,
    pub(crate) jitter_ns: u64,
    pub(crate) notice_ns_max: u64,
    pub(crate) parked_messages: u32,
    pub(crate) fragments_per_progress: u32,
    pub(crate) fragment_bytes: u32,
    pub(crate) buffer_bytes: u64,
    /// What one call of single copy moves at most.
    pub(crate) batch_bytes: u64,
    /// How often memory cannot be read from afar, although it was offered.
    pub(crate) unreadable_per_cent: u64,
    pub(crate) eager_sure: u64,
    /// Which protocol is forced, by its place in `Protocol::ALL`.
    pub(crate) force: Option<usize>,
}

/// How a send is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    Standard,
    Synchronous,
    Buffered,
    Copy,
    Ready,
}

/// How requests are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    One,
    Any,
    Some,
    All,
}

/// What one rank does at one time. Ranks are processes of the job; communicator 0 is the world.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    MakeComm {
        comm: usize,
    },
    Send {
        to: u32,
        comm: usize,
        tag: i32,
        elements: u64,
        shape: u8,
        mode: Mode,
        /// Whether it can be started again.
        kept: bool,
    },
    Recv {
        from: Option<u32>,
        comm: usize,
        tag: Option<i32>,
        elements: u64,
        shape: u8,
        kept: bool,
    },
    /// Starts something that is kept once more.
    Start {
        nth: u32,
    },
    Probe {
        from: Option<u32>,
        comm: usize,
        tag: Option<i32>,
    },
    /// A matched probe; then the message is received, with so many elements less room, or dropped.
    Claim {
        from: Option<u32>,
        comm: usize,
        tag: Option<i32>,
        less: u64,
        shape: u8,
        dropped: bool,
    },
    Cancel {
        nth: u32,
    },
    CancelUnfinishedSend {
        nth: u32,
    },
    /// Cancels a send, ended or not, as long as its result was not collected.
    CancelSend {
        nth: u32,
    },
    Wait {
        how: How,
        last: u32,
    },
    Think {
        ns: u64,
    },
}

/// An action, by number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) number: u32,
    pub(crate) action: Action,
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Kill {
        rank: u32,
        at_ns: u64,
    },
    /// Dies in the middle of a call, with this many messages left to send from `at_ns` on.
    LastWords {
        rank: u32,
        at_ns: u64,
        parcels: u64,
    },
    Cut {
        rail: usize,
        a: u32,
        b: u32,
        at_ns: u64,
    },
}

/// How a world ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Everything left is received.
    Drain,
    /// All leave, and refuse what is left.
    Leave,
}

/// A world.
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) size: u32,
    pub(crate) rails: Vec<RailPlan>,
    pub(crate) knobs: Knobs,
    pub(crate) comms: Vec<CommPlan>,
    /// By rank.
    pub(crate) scripts: Vec<Vec<Step>>,
    pub(crate) faults: Vec<(u32, Fault)>,
    pub(crate) ending: Ending,
    /// Whether ranks have links only to those they need, from the time when they do.
    pub(crate) links_when_needed: bool,
    /// How many actions there were before any were left out.
    pub(crate) actions: u32,
}

const RAIL_NAMES: [&str; 3] = ["rail-0", "rail-1", "rail-2"];

fn rail(rng: &mut Rng, name: &'static str, ordered: bool) -> RailPlan {
    let eager_bytes = *rng.pick(&[256, 300, 512, 1024, 4096]);
    let max_fragment_bytes =
        (eager_bytes + rng.index(1024)).max(256) * if rng.chance(10) { 4 } else { 1 };
    let shuffle_ns = if ordered { 0 } else { 1 + rng.below(20_000) };
    RailPlan {
        name,
        ordered,
        shuffle_ns,
        eager_bytes,
        max_fragment_bytes,
        slots: if rng.chance(30) { 1 + rng.index(3) } else { 2 + rng.index(30) },
        latency_ns: 4 + rng.below(*rng.clone().pick(&[200, 2_000, 20_000])),
        picoseconds_per_byte: 1 + rng.below(*rng.clone().pick(&[100, 2_000, 100_000])),
        burst: if rng.chance(50) { 64 } else { 1 + rng.index(8) },
        rdma: rng.chance(50),
        mapped: rng.chance(25),
        pieces_max: 1 + rng.index(64),
    }
}

fn knobs(rng: &mut Rng) -> Knobs {
    Knobs {
        credit_ns_max: rng.below(5_000),
        storm_per_mille: if rng.chance(30) { rng.below(300) } else { 0 },
        jitter_ns: rng.below(2_000),
        notice_ns_max: 1 + rng.below(200_000),
        parked_messages: u32::try_from(rng.below(6)).expect("small"),
        fragments_per_progress: 1 + u32::try_from(rng.below(16)).expect("small"),
        fragment_bytes: 128 + u32::try_from(rng.below(4096)).expect("small"),
        buffer_bytes: if rng.chance(25) { rng.below(2_000) } else { 1 << 20 },
        batch_bytes: if rng.chance(50) { 4 << 20 } else { 1 + rng.below(4_000) },
        unreadable_per_cent: if rng.chance(30) { rng.below(60) } else { 0 },
        eager_sure: rng.below(2_000),
        force: rng.chance(40).then(|| rng.index(5)),
    }
}

/// What messages of a world are like.
struct Habits {
    size: u32,
    comms: usize,
    tags: i32,
    wild_source: u64,
    wild_tag: u64,
    large: u64,
    element_bytes: u64,
    synchronous: u64,
    busiest: u32,
}

impl Habits {
    fn elements(&self, rng: &mut Rng) -> u64 {
        let bytes = match rng.below(100) {
            0..5 => 0,
            5..60 => rng.below(200),
            60..90 => rng.below(3_000),
            _ if rng.chance(self.large) => rng.below(60_000),
            _ => rng.below(8_000),
        };
        bytes.div_ceil(self.element_bytes)
    }

    fn rank(&self, rng: &mut Rng) -> u32 {
        let any = u32::try_from(rng.below(self.size.into())).expect("below a rank");
        if rng.chance(30) { self.busiest } else { any }
    }

    fn tag(&self, rng: &mut Rng) -> i32 {
        i32::try_from(rng.index(usize::try_from(self.tags).expect("positive"))).expect("small")
    }

    fn mode(&self, rng: &mut Rng) -> Mode {
        match rng.below(100) {
            0..10 => Mode::Buffered,
            10..16 => Mode::Copy,
            16..20 => Mode::Ready,
            _ if rng.chance(self.synchronous) => Mode::Synchronous,
            _ => Mode::Standard,
        }
    }

    fn shape(rng: &mut Rng) -> u8 {
        u8::try_from(rng.below(SHAPES.into())).expect("small")
    }
}

impl Plan {
    /// The world of a seed, whose elements have so many bytes, and what of it is kept.
    pub(crate) fn draw(seed: u64, element_bytes: u64, keep: &Keep) -> Plan {
        let mut rng = Rng::new(seed);
        let size = match rng.below(1000) {
            0..3 => 200 + rng.below(60),
            3..40 => 8 + rng.below(40),
            40..100 => 1,
            _ => 2 + rng.below(5),
        };
        let size = u32::try_from(size).expect("small");
        let rails = 1 + rng.index(3).min(if size > 100 { 1 } else { 2 });
        let rails: Vec<RailPlan> = (0..rails)
            .map(|at| {
                let ordered = rng.chance(60);
                rail(&mut rng, RAIL_NAMES[at], ordered)
            })
            .collect();
        let knobs = knobs(&mut rng);
        let faulty = size > 1 && rng.chance(30);
        let comms = comms::draw(&mut rng, size, faulty);
        let habits = Habits {
            size,
            comms: comms.len(),
            tags: 1 + i32::try_from(rng.below(5)).expect("small"),
            wild_source: *rng.pick(&[0, 10, 40, 80]),
            wild_tag: *rng.pick(&[0, 10, 40]),
            large: if size > 100 { 0 } else { 20 },
            element_bytes,
            synchronous: rng.below(50),
            busiest: u32::try_from(rng.below(size.into())).expect("below a rank"),
        };
        let mut plan = Plan {
            seed,
            size,
            rails,
            knobs,
            comms,
            scripts: vec![Vec::new(); size as usize],
            faults: Vec::new(),
            ending: if rng.chance(30) { Ending::Leave } else { Ending::Drain },
            // From a sequence of its own: the rest of a world is what it would be otherwise.
            links_when_needed: Rng::new(seed ^ 0x6c69_6e6b).chance(60),
            actions: 0,
        };
        plan.write_scripts(&mut rng, &habits);
        if faulty {
            plan.draw_faults(&mut rng);
        }
        plan.cut_down(keep);
        plan
    }

    /// A world whose ranks follow no scripts.
    pub(crate) fn without_scripts(seed: u64, size: u32, rng: &mut Rng) -> Plan {
        let several = size <= 100 && rng.chance(30);
        let names = &RAIL_NAMES[..if several { 2 } else { 1 }];
        let one = |name: &&'static str| {
            let ordered = rng.chance(60);
            rail(rng, name, ordered)
        };
        let rails = names.iter().map(one).collect();
        Plan {
            seed,
            size,
            rails,
            knobs: knobs(rng),
            comms: Vec::new(),
            scripts: vec![Vec::new(); size as usize],
            faults: Vec::new(),
            ending: Ending::Drain,
            links_when_needed: rng.chance(60),
            actions: 0,
        }
    }

    fn write_scripts(&mut self, rng: &mut Rng, habits: &Habits) {
        let messages = match self.size {
            100.. => 300 + rng.below(500),
            8.. => 60 + rng.below(200),
            _ => 5 + rng.below(90),
        };
        let flood = rng.chance(15);
        for _ in 0..messages {
            let to = habits.rank(rng);
            let mut from = habits.rank(rng);
            if from == to && rng.chance(60) {
                from = habits.rank(rng);
            }
            let (comm, tag) = (rng.index(habits.comms), habits.tag(rng));
            let elements = habits.elements(rng);
            let less = if rng.chance(8) { rng.below(elements + 1) } else { 0 };
            let more = if rng.chance(20) { rng.below(8) } else { 0 };
            let shape = Habits::shape(rng);
            let (mode, kept) = (habits.mode(rng), rng.chance(8));
            let send = Action::Send { to, comm, tag, elements, shape, mode, kept };
            if rng.chance(97) {
                self.scripts[from as usize].push(Step { number: 0, action: send });
            }
            let any_source = rng.chance(habits.wild_source).then_some(()).is_some();
            let source = if any_source { None } else { Some(from) };
            let tag = if rng.chance(habits.wild_tag) { None } else { Some(tag) };
            let shape = Habits::shape(rng);
            let action = match rng.below(100) {
                0..4 => None,
                4..14 => {
                    let dropped = rng.chance(10);
                    Some(Action::Claim { from: source, comm, tag, less, shape, dropped })
                }
                _ => {
                    // What it took must show even if it is cut off.
                    let least =
                        if source.is_none() { 8_u64.div_ceil(habits.element_bytes) } else { 0 };
                    let elements = (elements - less + more).max(least);
                    Some(Action::Recv { from: source, comm, tag, elements, shape, kept })
                }
            };
            let script = &mut self.scripts[to as usize];
            script.extend(action.map(|action| Step { number: 0, action }));
            let extra = match rng.below(100) {
                0..6 => Action::Probe { from: source, comm, tag },
                6..10 => Action::Cancel { nth: u32::try_from(rng.below(4)).expect("small") },
                10..13 => Action::CancelUnfinishedSend {
                    nth: u32::try_from(rng.below(4)).expect("small"),
                },
                13..18 => Action::CancelSend { nth: u32::try_from(rng.below(6)).expect("small") },
                18..23 => {
                    // Mostly both ends of a message.
                    let nth = u32::try_from(rng.below(2)).expect("small");
                    let action = Action::Start { nth };
                    self.scripts[from as usize].push(Step { number: 0, action });
                    action
                }
                23..38 => {
                    let how = *rng.pick(&[How::One, How::Any, How::Some, How::All]);
                    Action::Wait { how, last: 1 + u32::try_from(rng.below(6)).expect("small") }
                }
                38..55 => Action::Think { ns: rng.below(20_000) },
                _ => continue,
            };
            let both = matches!(extra, Action::Start { .. });
            let who = if !both && rng.chance(50) { from } else { to };
            self.scripts[who as usize].push(Step { number: 0, action: extra });
        }
        let mut number = 0;
        for script in &mut self.scripts {
            if flood {
                // Receives and probes come last: everything is unexpected.
                script.sort_by_key(|step| {
                    matches!(step.action, Action::Recv { .. } | Action::Claim { .. })
                });
            } else {
                for at in 1..script.len() {
                    script.swap(at, at - rng.index(at.min(4) + 1));
                }
            }
            let makes = (1..self.comms.len())
                .map(|comm| Step { number: 0, action: Action::MakeComm { comm } });
            script.splice(0..0, makes);
            for step in script {
                step.number = number;
                number += 1;
            }
        }
        self.actions = number;
    }

    fn draw_faults(&mut self, rng: &mut Rng) {
        for number in 0..1 + u32::try_from(rng.below(3)).expect("small") {
            let at_ns = rng.below(*rng.clone().pick(&[3_000, 40_000, 300_000]));
            let (a, b) = (rng.below(self.size.into()), rng.below(self.size.into()));
            let (a, b) = (u32::try_from(a).expect("a rank"), u32::try_from(b).expect("a rank"));
            let fault = match rng.below(3) {
                0 => Fault::Kill { rank: a, at_ns },
                1 => Fault::LastWords { rank: a, at_ns, parcels: rng.below(8) },
                _ if a == b => continue,
                _ => Fault::Cut { rail: rng.index(self.rails.len()), a, b, at_ns },
            };
            self.faults.push((number, fault));
        }
    }

    fn cut_down(&mut self, keep: &Keep) {
        if let Some(size) = keep.size {
            self.size = self.size.min(size.max(1));
            self.scripts.truncate(self.size as usize);
        }
        let size = self.size;
        let there = |rank: Option<u32>| rank.is_none_or(|rank| rank < size);
        for script in &mut self.scripts {
            script.retain(|step| {
                let kept = keep
                    .actions
                    .as_ref()
                    .is_none_or(|kept| kept.binary_search(&step.number).is_ok());
                // Halves are two.
                let halves = matches!(step.action, Action::MakeComm { comm } if
                    self.comms[comm].parent().is_some());
                if halves && size < 2 {
                    return false;
                }
                let peer = match step.action {
                    Action::Send { to, .. } => Some(to),
                    Action::Recv { from, .. }
                    | Action::Probe { from, .. }
                    | Action::Claim { from, .. } => from,
                    _ => None,
                };
                kept && there(peer)
            });
        }
        self.faults.retain(|(number, fault)| {
            let kept = keep.faults.as_ref().is_none_or(|kept| kept.contains(number));
            kept && match *fault {
                Fault::Kill { rank, .. } | Fault::LastWords { rank, .. } => rank < size,
                Fault::Cut { a, b, .. } => a < size && b < size,
            }
        });
        // Making a communicator is everybody's affair or nobody's.
        for comm in 1..self.comms.len() {
            let makes =
                |step: &Step| matches!(step.action, Action::MakeComm { comm: c } if c == comm);
            if !self.scripts.iter().all(|script| script.iter().any(makes)) {
                for script in &mut self.scripts {
                    script.retain(|step| !makes(step));
                }
            }
        }
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |numbers: &Option<Vec<u32>>| match numbers {
            None => "all".to_owned(),
            Some(numbers) => numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
        };
        let size = self.size.map_or("all".to_owned(), |size| size.to_string());
        write!(f, "{}/{}/{size}", list(&self.actions), list(&self.faults))
    }
}

impl Keep {
    /// What [`Display`](fmt::Display) printed; `None` if it did not.
    #[must_use]
    pub fn parse(text: &str) -> Option<Keep> {
        let mut parts = text.split('/');
        let mut list = || -> Option<Option<Vec<u32>>> {
            match parts.next()? {
                "all" => Some(None),
                "" => Some(Some(Vec::new())),
                numbers => {
                    let numbers: Option<Vec<u32>> =
                        numbers.split(',').map(|n| n.parse().ok()).collect();
                    let mut numbers = numbers?;
                    numbers.sort_unstable();
                    Some(Some(numbers))
                }
            }
        };
        let (actions, faults) = (list()?, list()?);
        let size = match parts.next()? {
            "all" => None,
            size => Some(size.parse().ok()?),
        };
        Some(Keep { actions, faults, size })
    }
}
