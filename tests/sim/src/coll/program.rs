//! What a world of collectives consists of, drawn from a seed.

use crate::comms::CommPlan;
use crate::plan::{Fault, Keep, Plan};
use gapless_coll::Operation;
use gapless_dtype::testkit::Rng;

/// A collective of the program: every group of its communicator does it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) number: u32,
    pub(crate) comm: usize,
    pub(crate) operation: Operation,
    /// Its lengths, root, algorithm and buffers follow from this.
    pub(crate) seed: u64,
}

/// Who does a collective: processes by rank. Between two groups: all of the first one, then the second.
pub(crate) struct Group {
    pub(crate) members: Vec<u32>,
    /// The size of the first group, if there are two.
    pub(crate) first: Option<usize>,
}

/// How one rank goes through the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// It thinks for up to so long before it starts a collective.
    pub(crate) think_ns: u64,
    /// It has so many in flight at most.
    pub(crate) in_flight: usize,
}

/// A world of collectives.
pub(crate) struct Program {
    pub(crate) plan: Plan,
    pub(crate) items: Vec<Item>,
    pub(crate) paces: Vec<Pace>,
    /// Ranks that die while the survivors agree who is left, having sent so many more messages.
    pub(crate) late: Vec<(u32, u64)>,
    /// Whether every rank goes through the items in their order. Otherwise only those of one communicator are in
    /// order, and no rank has a limit of those in flight: with one, the ranks could wait for each other in a circle.
    pub(crate) in_order: bool,
}

fn rank(rng: &mut Rng, size: u32) -> u32 {
    u32::try_from(rng.below(size.into())).expect("below a rank")
}

impl Program {
    /// The program of a seed, and what of it is kept.
    pub(crate) fn draw(seed: u64, keep: &Keep) -> Program {
        let mut rng = Rng::new(seed ^ 0x636f_6c6c);
        let size = match rng.below(1000) {
            0..4 => 150 + rng.below(200),
            4..60 => 9 + rng.below(40),
            60..90 => 1,
            _ => 2 + rng.below(7),
        };
        let size = u32::try_from(size).expect("small");
        let mut plan = Plan::without_scripts(seed, size, &mut rng);
        plan.comms = vec![CommPlan::Dup];
        for _ in 0..rng.below(if size > 100 { 2 } else { 3 }) {
            let split = CommPlan::Split {
                colors: 1 + u32::try_from(rng.below(3)).expect("small"),
                reversed: rng.chance(50),
            };
            plan.comms.push(if rng.chance(30) { CommPlan::Dup } else { split });
        }
        if (2..100).contains(&size) && rng.chance(25) {
            let halves = plan.comms.len();
            plan.comms.push(CommPlan::Split { colors: 2, reversed: rng.chance(50) });
            plan.comms.push(CommPlan::Inter { halves });
        }
        let in_order = rng.chance(60);
        let slowest_ns = *rng.pick(&[0, 1_000, 30_000]);
        let paces = (0..size).map(|_| Pace {
            think_ns: if rng.chance(50) { 0 } else { rng.below(slowest_ns + 1) },
            in_flight: if rng.chance(40) { 1 } else { 1 + rng.index(12) },
        });
        let paces = paces.collect();
        let count = match size {
            100.. => 2 + rng.below(4),
            9.. => 3 + rng.below(10),
            _ => 3 + rng.below(25),
        };
        let items = (0..u32::try_from(count).expect("small")).map(|number| Item {
            number,
            comm: rng.index(plan.comms.len()),
            // Straight from everybody to everybody, among hundreds, takes too long.
            operation: match *rng.pick(&Operation::ALL) {
                Operation::Alltoallv if size > 100 => Operation::Allgatherv,
                operation => operation,
            },
            seed: rng.next_u64(),
        });
        let items: Vec<Item> = items.collect();
        if size > 1 && rng.chance(40) {
            for number in 0..1 + u32::try_from(rng.below(3)).expect("small") {
                let at_ns = rng.below(*rng.clone().pick(&[3_000, 60_000, 600_000]));
                let rank = rank(&mut rng, size);
                let parcels = rng.below(20);
                let fault = match rng.chance(50) {
                    true => Fault::Kill { rank, at_ns },
                    false => Fault::LastWords { rank, at_ns, parcels },
                };
                plan.faults.push((number, fault));
            }
        }
        // From a sequence of its own: the rest of a program is what it would be otherwise.
        let mut late_rng = Rng::new(seed ^ 0x6c61_7465);
        let deaths = if plan.faults.is_empty() { 0 } else { late_rng.below(3) };
        let late = (0..deaths).map(|_| {
            let rank = rank(&mut late_rng, size);
            (rank, late_rng.below(30))
        });
        let late = late.collect();
        let mut program = Program { plan, items, paces, late, in_order };
        program.cut_down(keep);
        program
    }

    /// A program without collectives.
    pub(crate) fn without_collectives(seed: u64, size: u32, late: &[(u32, u64)]) -> Program {
        let mut plan = Plan::without_scripts(seed, size, &mut Rng::new(seed));
        plan.comms = vec![CommPlan::Dup];
        let paces = vec![Pace { think_ns: 0, in_flight: 1 }; size as usize];
        let (items, late) = (Vec::new(), late.to_vec());
        Program { plan, items, paces, late, in_order: true }
    }

    fn cut_down(&mut self, keep: &Keep) {
        self.late.retain(|(rank, _)| keep.size.is_none_or(|size| *rank < size));
        let plan = &mut self.plan;
        plan.size = keep.size.map_or(plan.size, |size| plan.size.min(size.max(1)));
        plan.scripts.truncate(plan.size as usize);
        let has = |kept: &Option<Vec<u32>>, number: u32| {
            kept.as_ref().is_none_or(|kept| kept.contains(&number))
        };
        if plan.size < 2 {
            // There are no two groups.
            plan.comms.retain(|comm| comm.parent().is_none());
        }
        let comms = plan.comms.len();
        self.items.retain(|item| has(&keep.actions, item.number) && item.comm < comms);
        let size = plan.size;
        plan.faults.retain(|(number, fault)| {
            let there = match *fault {
                Fault::Kill { rank, .. } | Fault::LastWords { rank, .. } => rank < size,
                Fault::Cut { .. } => false,
            };
            there && has(&keep.faults, *number)
        });
    }

    /// Whether the ranks of a communicator compare their calls: in every fifth world, on every other one.
    pub(crate) fn is_checked(&self, comm: usize) -> bool {
        self.plan.seed.is_multiple_of(5) && comm.is_multiple_of(2)
    }

    /// The groups of a communicator.
    pub(crate) fn groups(&self, comm: usize) -> Vec<Group> {
        if let CommPlan::Inter { halves } = self.plan.comms[comm] {
            // The half of the first process comes first.
            let (one, other) = (self.plan.members(halves, 0), self.plan.members(halves, 1));
            return vec![Group { first: Some(one.len()), members: [one, other].concat() }];
        }
        let mut groups: Vec<Vec<u32>> = Vec::new();
        for process in 0..self.plan.size {
            if !groups.iter().any(|group| group.contains(&process)) {
                groups.push(self.plan.members(comm, process));
            }
        }
        groups.into_iter().map(|members| Group { members, first: None }).collect()
    }
}
