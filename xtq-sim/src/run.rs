//! The simulation: nodes, messages under way, and what becomes of each event.
//!
//! A node is memory, two threads of its CPU, a NIC with tables, and a GPU with a command processor; the files beside
//! this one hold what each does. Everything is in this one structure: an event names its node or message by number.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use crate::cluster::ClusterState;
use crate::cpu::Thread;
use crate::event::{Agenda, Event};
use crate::gpu::SimGpu;
use crate::machine::{ELEMENT, Machine};
use crate::network::{Network, Traffic};
use crate::nic::{Message, Nic};
use crate::program::{self, MemoryRange, Program, ProgramError, SimWork};
use crate::time::Ps;
use crate::trace::{Phase, Trace};
use gapless_xtq::packet::{ENTRIES, PACKET_BYTES};

/// How remote tasks are done (§V.A).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Configuration {
    /// Two-sided messages; the application's thread receives and computes.
    Cpu,
    /// Two-sided messages; the application's thread receives and launches a kernel.
    Hsa,
    /// One-sided puts, whose tasks the NIC gives to the GPU.
    Xtq,
}

impl Configuration {
    /// All of them, in the paper's order.
    pub const ALL: [Configuration; 3] =
        [Configuration::Cpu, Configuration::Hsa, Configuration::Xtq];

    /// Its name in the paper.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Configuration::Cpu => "CPU",
            Configuration::Hsa => "HSA",
            Configuration::Xtq => "XTQ",
        }
    }
}

/// How to simulate.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The machine.
    pub machine: Machine,
    /// How reductions are done.
    pub configuration: Configuration,
    /// Whether messages are MPI's; else they are the NIC interface's own, as in Figure 7.
    pub mpi: bool,
    /// What the ranks' memory and their beginnings derive from.
    pub seed: u64,
    /// Ranks begin at random moments up to this one.
    pub skew: Ps,
    /// Of so many bytes the simulation keeps one element, and all places are multiples of it: 4 keeps all.
    pub grain: u64,
    /// Whether each event is kept as a line, beside the digest.
    pub lines: bool,
}

impl Options {
    /// The paper's machine, MPI, all bytes.
    #[must_use]
    pub fn new(configuration: Configuration) -> Options {
        Options {
            machine: Machine::PAPER,
            configuration,
            mpi: true,
            seed: 1,
            skew: Ps::ZERO,
            grain: ELEMENT,
            lines: false,
        }
    }
}

/// What came out.
#[derive(Clone, Debug)]
pub struct SimOutcome {
    /// When the last step of each rank had ended.
    pub ended: Vec<Ps>,
    /// The ranks' memory: an element of each grain.
    pub memory: Vec<Vec<u32>>,
    /// How long the application's thread of each rank was at work, without waiting.
    pub busy: Vec<Ps>,
    /// Steps that never ended: rank and step.
    pub stuck: Vec<(usize, usize)>,
    /// What went into the network, and what came out.
    pub traffic: Traffic,
    /// Tasks that a NIC refused, and that were put again.
    pub refused: u64,
    /// Tasks that are none at their target: an index or a length that is not registered, a kernel that does not cover
    /// its elements. They are lost.
    pub broken: Vec<String>,
    /// When the phases of messages ended.
    pub phases: Vec<(Phase, Ps)>,
    /// Events that there were.
    pub events: u64,
    /// A digest of all events and their times.
    pub digest: u64,
    /// The events as lines, if they were asked for.
    pub lines: Vec<String>,
}

impl SimOutcome {
    /// When the last rank had ended.
    #[must_use]
    pub fn time(&self) -> Ps {
        self.ended.iter().copied().max().unwrap_or_default()
    }

    /// Whether all steps ended, no task was lost, and each packet came out once.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.stuck.is_empty() && self.broken.is_empty() && self.traffic.is_conserved()
    }
}

/// A node.
pub(crate) struct Node {
    pub(crate) memory: Vec<u32>,
    pub(crate) threads: [Thread; 2],
    pub(crate) nic: Nic,
    pub(crate) gpu: SimGpu,
    /// Receives that wait for their messages, and messages that wait for their receives.
    pub(crate) posted: HashMap<(usize, u32), usize>,
    pub(crate) early: HashMap<(usize, u32), usize>,
    /// The same for messages without matching.
    pub(crate) awaited: HashMap<(usize, u32), usize>,
    pub(crate) notices: HashMap<(usize, u32), usize>,
    /// Steps that wait for a task, and tasks that have ended before anybody waited.
    pub(crate) waiting: HashMap<u32, usize>,
    pub(crate) over: HashSet<u32>,
    /// How often each registered signal was counted down.
    pub(crate) counts: [u32; ENTRIES],
    /// Where payloads and arguments lie that came with puts.
    pub(crate) landed: BTreeMap<u64, Vec<u32>>,
    pub(crate) arguments: BTreeMap<u64, [u64; 4]>,
    steps: Steps,
    /// When its last step had ended.
    ended: Ps,
}

/// How far a program is.
#[derive(Default)]
struct Steps {
    /// Dependencies that have not ended.
    open: Vec<usize>,
    dependents: Vec<Vec<usize>>,
    ended: Vec<bool>,
}

/// The whole simulation.
pub(crate) struct Sim<'a> {
    pub(crate) options: Options,
    programs: Cow<'a, [Program]>,
    pub(crate) now: Ps,
    pub(crate) agenda: Agenda,
    pub(crate) nodes: Vec<Node>,
    pub(crate) messages: Vec<Message>,
    pub(crate) network: Network,
    pub(crate) trace: Trace,
    pub(crate) refused: u64,
    pub(crate) broken: Vec<String>,
    /// What processes have registered and put, if there are no programs.
    pub(crate) cluster: ClusterState,
}

/// Runs programs, one a node, until nothing happens any more.
///
/// The memory of a rank begins with numbers that [`initial`] gives.
///
/// # Errors
/// Programs that make no sense by themselves.
pub fn run(programs: &[Program], options: &Options) -> Result<SimOutcome, ProgramError> {
    program::check(programs)?;
    program::check_grain(programs, options.grain)?;
    let (ranks, most) = (programs.len(), options.machine.ports);
    if ranks > most {
        return Err(ProgramError::TooMany { ranks, most });
    }
    let mut sim = Sim::new(Cow::Borrowed(programs), options, ClusterState::default());
    for rank in 0..ranks {
        let begins = match options.skew.0 {
            0 => Ps::ZERO,
            most => Ps(mixed(options.seed ^ (rank as u64) << 32 ^ 0x5CE3) % (most + 1)),
        };
        sim.agenda.plan(begins, Event::Begin { node: rank });
    }
    while sim.step() {}
    Ok(sim.outcome())
}

/// What the memory of a rank holds at the beginning, at this element: whole numbers, whose sums do not depend on order.
#[must_use]
pub fn initial(seed: u64, rank: usize, element: u64) -> u32 {
    let [b0, b1, b2, b3, ..] = mixed(seed ^ mixed((rank as u64) << 40 ^ element)).to_le_bytes();
    u32::from_le_bytes([b0, b1, b2, b3])
}

/// A number that looks random (splitmix64's last step).
fn mixed(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

impl Node {
    fn new(rank: usize, program: &Program, options: &Options) -> Node {
        let grains = program.memory.div_ceil(options.grain);
        let per = options.grain / ELEMENT;
        let steps = &program.steps;
        let mut dependents = vec![Vec::new(); steps.len()];
        for (at, step) in steps.iter().enumerate() {
            step.after.iter().for_each(|on| dependents[*on].push(at));
        }
        Node {
            memory: (0..grains).map(|at| initial(options.seed, rank, at * per)).collect(),
            threads: Default::default(),
            nic: Nic::new(program.memory, &options.machine),
            gpu: SimGpu::new(),
            posted: HashMap::new(),
            early: HashMap::new(),
            awaited: HashMap::new(),
            notices: HashMap::new(),
            waiting: HashMap::new(),
            over: HashSet::new(),
            counts: [0; ENTRIES],
            landed: BTreeMap::new(),
            arguments: BTreeMap::new(),
            steps: Steps {
                open: steps.iter().map(|step| step.after.len()).collect(),
                dependents,
                ended: vec![false; steps.len()],
            },
            ended: Ps::ZERO,
        }
    }
}

impl<'a> Sim<'a> {
    pub(crate) fn new(
        programs: Cow<'a, [Program]>,
        options: &Options,
        cluster: ClusterState,
    ) -> Sim<'a> {
        let nodes = programs.iter().enumerate();
        let nodes = nodes.map(|(rank, program)| Node::new(rank, program, options)).collect();
        Sim {
            options: *options,
            network: Network::new(programs.len()),
            programs,
            now: Ps::ZERO,
            agenda: Agenda::default(),
            nodes,
            messages: Vec::new(),
            trace: Trace::new(options.lines),
            refused: 0,
            broken: Vec::new(),
            cluster,
        }
    }
}

impl Sim<'_> {
    /// The next event. Answers whether there was one.
    pub(crate) fn step(&mut self) -> bool {
        let Some((at, event)) = self.agenda.next() else { return false };
        self.now = at;
        self.trace.event(at, event);
        self.happens(event);
        true
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.options.machine
    }

    /// Plans something for later.
    pub(crate) fn after(&mut self, time: Ps, event: Event) {
        self.agenda.plan(self.now + time, event);
    }

    pub(crate) fn work(&self, node: usize, step: usize) -> SimWork {
        self.programs[node].steps[step].work
    }

    pub(crate) fn programs_step(&self, node: usize, step: usize) -> Option<SimWork> {
        self.programs[node].steps.get(step).map(|step| step.work)
    }

    pub(crate) fn thread_of(&self, node: usize, step: usize) -> usize {
        self.programs[node].steps[step].thread
    }

    pub(crate) fn phase(&mut self, phase: Phase) {
        self.trace.phase(phase, self.now);
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Begin { node } => self.begin(node),
            Event::Job { node, thread } => self.job_ended(node, thread),
            Event::Doorbell { message } => self.send(message),
            Event::Port { packet } => self.at_port(packet),
            Event::Arrival { packet } => self.arrived(packet),
            Event::Gathered { message } => self.gathered(message),
            Event::Released { message } => self.released(message),
            Event::Landed { message } => self.landed(message),
            Event::Noted { message } => self.noted(message),
            Event::Kick { node } => self.kick(node),
            Event::Read { node } => self.packet_read(node),
            Event::Scheduled { node } => self.scheduled(node),
            Event::Ended { node, kernel } => self.kernel_ended(node, kernel),
            Event::Signalled { node, signal } => self.signalled(node, signal),
            Event::Over { node, kernel } => self.is_over(node, kernel),
            Event::Again { put } => self.put_again(put),
        }
    }

    /// The steps that wait for nothing.
    fn begin(&mut self, node: usize) {
        for step in 0..self.programs[node].steps.len() {
            if self.nodes[node].steps.open[step] == 0 {
                self.ready(node, step);
            }
        }
    }

    /// A step has ended; those that waited for it alone may begin.
    pub(crate) fn ended(&mut self, node: usize, step: usize) {
        let now = self.now;
        let of = &mut self.nodes[node];
        of.steps.ended[step] = true;
        of.ended = now;
        let dependents = std::mem::take(&mut of.steps.dependents[step]);
        for next in dependents {
            let open = &mut self.nodes[node].steps.open[next];
            *open -= 1;
            if *open == 0 {
                self.ready(node, next);
            }
        }
    }

    pub(crate) fn has_ended(&self, node: usize, step: usize) -> bool {
        self.nodes[node].steps.ended[step]
    }

    /// Elements of a place, as the memory keeps them.
    pub(crate) fn grains(&self, place: MemoryRange) -> std::ops::Range<usize> {
        let index =
            |byte: u64| usize::try_from(byte.div_ceil(self.options.grain)).unwrap_or(usize::MAX);
        index(place.start)..index(place.end())
    }

    fn outcome(self) -> SimOutcome {
        let mut stuck = Vec::new();
        for (rank, node) in self.nodes.iter().enumerate() {
            let open = node.steps.ended.iter().enumerate().filter(|(_, ended)| !**ended);
            stuck.extend(open.map(|(step, _)| (rank, step)));
        }
        SimOutcome {
            ended: self.nodes.iter().map(|node| node.ended).collect(),
            busy: self.nodes.iter().map(|node| node.threads[0].busy).collect(),
            memory: self.nodes.into_iter().map(|node| node.memory).collect(),
            stuck,
            traffic: self.network.traffic,
            refused: self.refused,
            broken: self.broken,
            phases: self.trace.phases,
            events: self.trace.events,
            digest: self.trace.digest,
            lines: self.trace.lines,
        }
    }
}

/// Entries of a table: tasks go by their number, modulo this.
pub(crate) const INDICES: u8 = 64;
const _: () = assert!(INDICES as usize == ENTRIES);

/// Bytes of a command on the wire: the packet and its four arguments.
pub(crate) const COMMAND: u64 = PACKET_BYTES as u64 + 32;
