//! The protocol of the kernels of `cuda/peers.cu`, with every order of their steps: a small interpreter, one block a
//! rank. It looks for words that are written over before they were read, for data of another launch, for ranks that are
//! touched while they are not in the launch, and for waits that do not end.
//!
//! Blocks of other numbers share nothing but the head's `dead`, and launches of a rank follow each other, so one block
//! is enough. Time-outs: a wait may end by one only if some rank has stopped; else it is as patient as it takes.

use std::collections::HashSet;

/// What is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Launch {
    Flagged,
    /// With its `doing`.
    Direct(u8),
    /// Through staging memory, in so many pieces.
    Staged(u8),
    /// With layouts: some of it where it lies, some through staging memory that is always the same.
    Layouts,
}

/// A step of a launch with meetings.
#[derive(Clone, Copy, Debug)]
enum ModelStep {
    /// A word to a rank: a meeting begins.
    Tell(u8),
    /// A look for the word of a rank.
    Look(u8),
    /// The memory of all ranks is read and written where it lies.
    Touch,
    /// A piece goes into the staging memory.
    In(u8),
    /// A piece of a rank is read there, and the result of it written to that rank.
    Combine(u8, u8),
    /// What goes to a rank is packed into staging memory there.
    Fill(u8),
    /// A piece is taken out.
    Out(u8),
    Leave,
}

/// What is tried: the kernels as they are, or with a fault that has to be found.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// Places that words and meetings alternate between.
    places: u8,
    /// After how many launches a flag comes again.
    flags: u8,
    /// Whether words are cleared when they have been read.
    clears: bool,
    /// Whether a rank that fails tells the others.
    tells: bool,
    /// What happens to some rank, at any moment.
    mishap: Mishap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mishap {
    None,
    /// Its host's word ends its waits.
    Aborted,
    /// Its process dies.
    Dies,
}

const AS_THEY_ARE: Rules =
    Rules { places: 2, flags: 1, clears: true, tells: true, mishap: Mishap::None };

/// A rank: its window, and how far it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Rank {
    /// By place and sender: flag (0: clear), and the launch that the data is of.
    slots: [[(u8, u8); 3]; 2],
    /// By place and sender: number of the meeting, and what is done.
    met: [[(u8, u8); 3]; 2],
    /// By place: the launch and the piece, from 1 on.
    staged_in: [(u8, u8); 2],
    /// By place and writer, likewise.
    staged_out: [[(u8, u8); 3]; 2],
    dead: bool,
    epoch: u8,
    turns: u8,
    launch: u8,
    step: u8,
    /// Its process has ended.
    gone: bool,
    /// Peers that it has yet to tell that it has failed.
    tells: u8,
}

/// All ranks, and whether the mishap is still to come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    ranks: Vec<Rank>,
    mishap: bool,
}

/// What went wrong.
type ModelResult = Result<(), &'static str>;

struct Model<'a> {
    rules: Rules,
    launches: &'a [Vec<Launch>],
}

impl Model<'_> {
    fn n(&self) -> u8 {
        u8::try_from(self.launches.len()).unwrap()
    }

    /// Tries everything; gives how many states there are.
    fn explore(&self) -> Result<usize, &'static str> {
        let rank = Rank {
            slots: [[(0, 0); 3]; 2],
            met: [[(0, 0); 3]; 2],
            staged_in: [(0, 0); 2],
            staged_out: [[(0, 0); 3]; 2],
            dead: false,
            epoch: 0,
            turns: 0,
            launch: 0,
            step: 0,
            gone: false,
            tells: 0,
        };
        let first = World {
            ranks: vec![rank; self.launches.len()],
            mishap: self.rules.mishap != Mishap::None,
        };
        let (mut seen, mut open) = (HashSet::from([first.clone()]), vec![first]);
        while let Some(world) = open.pop() {
            let mut next = Vec::new();
            for me in 0..self.n() {
                self.steps(&world, me, &mut next)?;
                self.mishaps(&world, me, &mut next);
            }
            if next.is_empty() {
                self.ended(&world)?;
            }
            for world in next {
                if seen.insert(world.clone()) {
                    open.push(world);
                }
            }
        }
        Ok(seen.len())
    }

    /// Nothing can happen any more.
    fn ended(&self, world: &World) -> ModelResult {
        for (me, rank) in world.ranks.iter().enumerate() {
            let over = usize::from(rank.launch) == self.launches[me].len();
            if !over && !rank.gone {
                return Err("a wait does not end");
            }
            let fine = !rank.dead && world.ranks.iter().all(|rank| !rank.gone && !rank.dead);
            if fine && self.rules.clears && rank.slots.iter().flatten().any(|word| word.0 != 0) {
                return Err("a word was left");
            }
        }
        Ok(())
    }

    fn mishaps(&self, world: &World, me: u8, next: &mut Vec<World>) {
        if !world.mishap {
            return;
        }
        let mut world = world.clone();
        world.mishap = false;
        let rank = &mut world.ranks[usize::from(me)];
        match self.rules.mishap {
            Mishap::None => return,
            Mishap::Aborted => self.fail(rank, me),
            Mishap::Dies => rank.gone = true,
        }
        next.push(world);
    }

    /// As `fail` of the kernels.
    fn fail(&self, rank: &mut Rank, me: u8) {
        if !rank.dead {
            rank.dead = true;
            rank.tells = if self.rules.tells { ((1 << self.n()) - 1) & !(1 << me) } else { 0 };
        }
    }

    /// What a rank can do next: nothing, or one thing.
    fn steps(&self, world: &World, me: u8, next: &mut Vec<World>) -> ModelResult {
        let mut after = world.clone();
        let rank = &mut after.ranks[usize::from(me)];
        if rank.gone {
            return Ok(());
        }
        if rank.tells != 0 {
            let peer = rank.tells.trailing_zeros();
            rank.tells &= rank.tells - 1;
            after.ranks[peer as usize].dead = true;
            next.push(after);
            return Ok(());
        }
        let Some(&launch) = self.launches[usize::from(me)].get(usize::from(rank.launch)) else {
            return Ok(());
        };
        if rank.dead {
            // Waits end, and later launches do nothing.
            rank.launch += 1;
            rank.step = 0;
            next.push(after);
            return Ok(());
        }
        let moved = match launch {
            Launch::Flagged => self.flagged(world, &mut after, me)?,
            Launch::Direct(_) | Launch::Staged(_) | Launch::Layouts => {
                self.meeting(world, &mut after, me, launch)?
            }
        };
        if moved {
            next.push(after);
        } else if world.ranks.iter().any(|rank| rank.gone || rank.dead) {
            // Its time is up, sooner or later.
            self.fail(&mut after.ranks[usize::from(me)], me);
            next.push(after);
        }
        Ok(())
    }

    fn leave(rank: &mut Rank) {
        rank.epoch += 1;
        rank.launch += 1;
        rank.step = 0;
    }

    /// A step of an all-reduce of few bytes; false if it has to wait.
    fn flagged(&self, world: &World, after: &mut World, me: u8) -> Result<bool, &'static str> {
        let (n, i) = (self.n(), usize::from(me));
        let Rank { epoch, step, launch, .. } = world.ranks[i];
        let place = usize::from(epoch % self.rules.places);
        let flag = epoch % self.rules.flags + 1;
        let rank = &mut after.ranks[i];
        rank.step += 1;
        if step < n - 1 {
            let peer = usize::from((me + 1 + step) % n);
            let word = &mut after.ranks[peer].slots[place][i];
            if word.0 != 0 && self.rules.clears && !world.ranks[peer].dead {
                return Err("a word is written over before it was read");
            }
            *word = (flag, launch);
            return Ok(true);
        }
        // Two steps a sender, in the order of the ranks: read, and clear.
        let at = step - (n - 1);
        if at == 2 * n {
            Self::leave(rank);
            return Ok(true);
        }
        let from = usize::from(at / 2);
        if from == i {
            return Ok(true);
        }
        let word = &mut rank.slots[place][from];
        if at % 2 == 1 {
            if self.rules.clears {
                *word = (0, 0);
            }
            return Ok(true);
        }
        if word.0 != flag {
            return Ok(false);
        }
        if word.1 != launch {
            return Err("data of another launch");
        }
        Ok(true)
    }

    /// The steps of a launch with meetings.
    fn program(&self, launch: Launch) -> Vec<ModelStep> {
        let ranks = || 0..self.n();
        let meet = || ranks().map(ModelStep::Tell).chain(ranks().map(ModelStep::Look));
        let mut all = Vec::new();
        match launch {
            Launch::Flagged => {}
            Launch::Direct(_) => {
                all.extend(meet().chain([ModelStep::Touch]).chain(meet()));
            }
            Launch::Layouts => {
                all.extend(meet().chain([ModelStep::Touch]).chain(ranks().map(ModelStep::Fill)));
                all.extend(meet().chain([ModelStep::Out(0)]).chain(meet()));
            }
            Launch::Staged(pieces) => {
                all.push(ModelStep::In(0));
                for piece in 0..pieces {
                    all.extend(meet());
                    all.extend((piece > 0).then(|| ModelStep::Out(piece - 1)));
                    all.extend(ranks().map(|rank| ModelStep::Combine(rank, piece)));
                    match piece + 1 < pieces {
                        true => all.push(ModelStep::In(piece + 1)),
                        false => all.extend(meet().chain([ModelStep::Out(piece)])),
                    }
                }
            }
        }
        all.push(ModelStep::Leave);
        all
    }

    /// A step of a launch with meetings; false if it has to wait.
    fn meeting(
        &self,
        world: &World,
        after: &mut World,
        me: u8,
        launch: Launch,
    ) -> Result<bool, &'static str> {
        let i = usize::from(me);
        let program = self.program(launch);
        let Rank { step, launch: number, turns, .. } = world.ranks[i];
        let done = &program[..usize::from(step)];
        let place_of = |number: u8| usize::from(number % self.rules.places);
        // Which meeting this is, if it is one: the words to ranks that were said before begin as many.
        let before = done.iter().filter(|step| matches!(step, ModelStep::Tell(0))).count();
        let meetings = turns + u8::try_from(before).unwrap();
        let doing = match launch {
            Launch::Direct(doing) => doing,
            _ => 0,
        };
        after.ranks[i].step += 1;
        match program[usize::from(step)] {
            ModelStep::Tell(peer) if peer == me => {}
            ModelStep::Tell(peer) => {
                let turn = if peer == 0 { meetings + 1 } else { meetings };
                after.ranks[usize::from(peer)].met[place_of(turn)][i] = (turn, doing);
            }
            ModelStep::Look(peer) if peer == me => {}
            ModelStep::Look(peer) => {
                let (seen, theirs) = world.ranks[i].met[place_of(meetings)][usize::from(peer)];
                if seen != meetings {
                    return Ok(false);
                }
                if theirs != doing {
                    self.fail(&mut after.ranks[i], me);
                }
            }
            ModelStep::Touch => {
                for (peer, other) in world.ranks.iter().enumerate() {
                    let inside = other.launch == number && other.step > 0;
                    if peer != i && !inside && !other.dead && !other.gone {
                        return Err("memory of a rank that is not in the launch is touched");
                    }
                }
            }
            ModelStep::In(piece) => after.ranks[i].staged_in[place_of(piece)] = (number + 1, piece),
            ModelStep::Combine(peer, piece) => {
                let other = &mut after.ranks[usize::from(peer)];
                if other.staged_in[place_of(piece)] != (number + 1, piece) && !other.dead {
                    return Err("another piece is read than was meant");
                }
                other.staged_out[place_of(piece)][i] = (number + 1, piece);
            }
            ModelStep::Fill(peer) => {
                after.ranks[usize::from(peer)].staged_out[0][i] = (number + 1, 0);
            }
            ModelStep::Out(piece) => {
                let found = &world.ranks[i].staged_out[place_of(piece)][..self.launches.len()];
                if found.iter().any(|it| *it != (number + 1, piece)) {
                    return Err("another piece is taken out than was meant");
                }
            }
            ModelStep::Leave => {
                after.ranks[i].turns = meetings;
                Self::leave(&mut after.ranks[i]);
            }
        }
        Ok(true)
    }
}

fn tried(rules: Rules, n: usize, launches: &[Launch]) -> Result<usize, &'static str> {
    Model { rules, launches: &vec![launches.to_vec(); n] }.explore()
}

use Launch::{Direct, Flagged, Layouts, Staged};

#[test]
fn every_order_of_steps_is_right() {
    let mixed = [Flagged, Flagged, Direct(1), Flagged, Direct(2), Direct(1), Flagged, Flagged];
    assert!(tried(AS_THEY_ARE, 2, &mixed).unwrap() > 200);
    assert!(tried(AS_THEY_ARE, 3, &[Flagged, Flagged, Flagged]).unwrap() > 1000);
    assert!(tried(AS_THEY_ARE, 3, &[Flagged, Direct(1), Flagged]).unwrap() > 1000);
    assert!(tried(AS_THEY_ARE, 2, &[Staged(4), Staged(1), Flagged, Staged(3)]).unwrap() > 200);
    assert!(tried(AS_THEY_ARE, 3, &[Staged(3)]).unwrap() > 1000);
    assert!(tried(AS_THEY_ARE, 2, &[Layouts, Layouts, Flagged, Layouts, Direct(1)]).unwrap() > 200);
    assert!(tried(AS_THEY_ARE, 3, &[Layouts, Layouts]).unwrap() > 1000);
}

#[test]
fn one_place_is_too_few() {
    let rules = Rules { places: 1, ..AS_THEY_ARE };
    let found = tried(rules, 2, &[Flagged, Flagged]).unwrap_err();
    assert_eq!(found, "a word is written over before it was read");
    assert_eq!(tried(rules, 2, &[Direct(1), Direct(1)]).unwrap_err(), "a wait does not end");
    assert!(tried(rules, 2, &[Staged(3)]).is_err());
}

#[test]
fn flags_that_come_again_need_clearing() {
    let rules = Rules { clears: false, ..AS_THEY_ARE };
    assert_eq!(tried(rules, 2, &[Flagged; 3]).unwrap_err(), "data of another launch");
    // With flags enough for all launches nothing would have to be cleared: the kernels do both.
    assert!(tried(Rules { flags: 8, ..rules }, 2, &[Flagged; 6]).is_ok());
}

#[test]
fn every_wait_ends_whatever_happens_to_a_rank() {
    for mishap in [Mishap::Aborted, Mishap::Dies] {
        let rules = Rules { mishap, ..AS_THEY_ARE };
        assert!(tried(rules, 2, &[Flagged, Direct(1), Flagged]).is_ok(), "{mishap:?}");
        assert!(tried(rules, 3, &[Flagged, Direct(1)]).is_ok(), "{mishap:?}");
        // Without a word, too, by their time.
        assert!(tried(Rules { tells: false, ..rules }, 2, &[Direct(1), Flagged]).is_ok());
    }
}

#[test]
fn ranks_that_do_not_do_the_same_are_found() {
    let launches = [vec![Flagged, Direct(1), Flagged], vec![Flagged, Direct(2), Flagged]];
    let model = Model { rules: AS_THEY_ARE, launches: &launches };
    assert!(model.explore().is_ok(), "both end, and neither goes on");
    // One that stays away keeps the other waiting: only time ends that, which this model does not give.
    let launches = [vec![Flagged, Direct(1)], vec![Flagged]];
    let model = Model { rules: AS_THEY_ARE, launches: &launches };
    assert_eq!(model.explore().unwrap_err(), "a wait does not end");
}
