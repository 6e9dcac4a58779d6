//! The protocol of `gapless_partitioned.h` with every order of its steps: a message whose sender has a block for each
//! partition, and whose receiver has a block that starts it and then one for each partition, epoch after epoch. It
//! looks for data that is written over before it was read, for data of another epoch, for partitions that are missed,
//! and for waits that do not end.
//!
//! Messages share nothing but the word `dead`, so one message is enough. Stores and loads are in one order here. In the
//! kernels releases and acquires see to that: who reads what a step wrote has seen a word that was stored after it.

use std::collections::HashSet;

const PARTITIONS: usize = 2;

/// What is tried: the kernels as they are, or with a fault that has to be found.
#[derive(Clone, Copy, Debug)]
struct Rules {
    epochs: u8,
    /// `gapless_pready` waits for the start.
    waits: bool,
    /// The word of a partition is stored after its data.
    words_last: bool,
    /// Words count epochs; else they say whether a partition has ever come.
    counts: bool,
    /// `gapless_pstart` refuses before all partitions have come.
    refuses: bool,
    /// The receiver may start without having waited for some partitions.
    hasty: bool,
    /// Some rank's kernels stop, at any moment.
    mishap: bool,
    /// A rank that fails tells the other.
    tells: bool,
}

const AS_THEY_ARE: Rules = Rules {
    epochs: 4,
    waits: true,
    words_last: true,
    counts: true,
    refuses: true,
    hasty: false,
    mishap: false,
    tells: true,
};

/// A block of the sender: the epoch that it is in, and its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SendBlock {
    epoch: u8,
    step: u8,
}

/// All there is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    // At the sender.
    granted: u8,
    senders: [SendBlock; PARTITIONS],
    // At the receiver.
    started: u8,
    arrived: [u8; PARTITIONS],
    /// Both halves of each partition: the epoch whose data they have.
    data: [[u8; 2]; PARTITIONS],
    /// How far the block of each partition is with the epoch: it waits (0), reads the halves (1, 2), is done (3).
    readers: [u8; PARTITIONS],
    /// The start is under way: the epoch is counted here, and the sender not yet told.
    starting: bool,
    // Of the sender and of the receiver.
    dead: [bool; 2],
    told: [bool; 2],
    mishap: bool,
}

impl World {
    fn all_read(&self) -> bool {
        !self.starting && self.readers.iter().all(|reader| *reader == 3)
    }
}

type ModelResult = Result<(), &'static str>;

impl Rules {
    /// Tries everything; gives how many states there are.
    fn explore(&self) -> Result<usize, &'static str> {
        let first = World {
            granted: 0,
            senders: [SendBlock { epoch: 1, step: 0 }; PARTITIONS],
            started: 0,
            arrived: [0; PARTITIONS],
            data: [[0; 2]; PARTITIONS],
            readers: [3; PARTITIONS],
            starting: false,
            dead: [false; 2],
            told: [false; 2],
            mishap: self.mishap,
        };
        let (mut seen, mut open) = (HashSet::from([first.clone()]), vec![first]);
        while let Some(world) = open.pop() {
            let mut next = Vec::new();
            if !world.dead[0] {
                for block in 0..PARTITIONS {
                    self.send(&world, block, &mut next);
                }
            }
            if !world.dead[1] {
                self.start(&world, &mut next)?;
                for block in 0..PARTITIONS {
                    self.read(&world, block, &mut next)?;
                }
            }
            self.failures(&world, &mut next);
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

    fn ended(&self, world: &World) -> ModelResult {
        let sent = world.senders.iter().all(|block| block.epoch > self.epochs);
        let received = world.started == self.epochs && world.all_read();
        let fine = [sent, received];
        match (0..2).all(|rank| fine[rank] || world.dead[rank]) {
            true => Ok(()),
            false => Err("a wait does not end"),
        }
    }

    fn word(&self, epoch: u8) -> u8 {
        if self.counts { epoch } else { 1 }
    }

    /// A step of `gapless_pready`.
    fn send(&self, world: &World, block: usize, next: &mut Vec<World>) {
        let SendBlock { epoch, step } = world.senders[block];
        if epoch > self.epochs {
            return;
        }
        let mut after = world.clone();
        after.senders[block].step += 1;
        // Wait, both halves, the word; or the word before the halves.
        let order = if self.words_last { [0, 1, 2, 3] } else { [0, 3, 1, 2] };
        match order[usize::from(step)] {
            0 if self.waits && world.granted < epoch => return,
            0 => {}
            3 => after.arrived[block] = self.word(epoch),
            half => after.data[block][half - 1] = epoch,
        }
        if step == 3 {
            after.senders[block] = SendBlock { epoch: epoch + 1, step: 0 };
        }
        next.push(after);
    }

    /// A step of `gapless_pstart`, in a kernel that follows those that read.
    fn start(&self, world: &World, next: &mut Vec<World>) -> ModelResult {
        let mut after = world.clone();
        if world.starting {
            after.starting = false;
            after.readers = [0; PARTITIONS];
            after.granted = world.started;
            next.push(after);
            return Ok(());
        }
        let waited = world.all_read();
        let may =
            waited || self.hasty && world.readers.iter().all(|reader| [0, 3].contains(reader));
        if world.started == self.epochs || !may {
            return Ok(());
        }
        let come = world.arrived.iter().all(|word| *word >= self.word(world.started));
        if self.refuses && world.started > 0 && !come {
            if waited {
                return Err("a start is refused that is right");
            }
            self.fail(&mut after, 1);
        } else {
            if world.started > 0 && !come {
                return Err("a partition was missed");
            }
            after.started += 1;
            after.starting = true;
        }
        next.push(after);
        Ok(())
    }

    /// A step of a block that waits for a partition, and reads it.
    fn read(&self, world: &World, block: usize, next: &mut Vec<World>) -> ModelResult {
        let step = world.readers[block];
        if world.starting || step == 3 {
            return Ok(());
        }
        if step == 0 {
            if world.arrived[block] < self.word(world.started) {
                return Ok(());
            }
        } else if world.data[block][usize::from(step) - 1] != world.started {
            return Err("data of another epoch is read");
        }
        let mut after = world.clone();
        after.readers[block] += 1;
        next.push(after);
        Ok(())
    }

    /// As `gapless_p_fail`, up to where the other is told.
    fn fail(&self, world: &mut World, rank: usize) {
        world.dead[rank] = true;
        world.told[rank] = self.tells;
    }

    /// A rank stops at any moment; the other is told, or its time is up, sooner or later.
    fn failures(&self, world: &World, next: &mut Vec<World>) {
        for rank in 0..2 {
            let other = 1 - rank;
            let mut after = world.clone();
            if world.mishap {
                after.mishap = false;
                self.fail(&mut after, rank);
                next.push(after);
            } else if world.told[rank] {
                after.told[rank] = false;
                after.dead[other] = true;
                next.push(after);
            } else if world.dead[rank] && !world.dead[other] && self.mishap {
                self.fail(&mut after, other);
                next.push(after);
            }
        }
    }
}

#[test]
fn every_order_of_steps_is_right() {
    assert!(AS_THEY_ARE.explore().unwrap() > 200);
}

#[test]
fn every_wait_ends_whatever_happens() {
    for tells in [false, true] {
        assert!(Rules { mishap: true, tells, ..AS_THEY_ARE }.explore().unwrap() > 200);
    }
}

#[test]
fn a_receive_that_is_started_too_early_is_refused() {
    // It is told of it, and whatever the order, no partition is missed.
    assert!(Rules { hasty: true, ..AS_THEY_ARE }.explore().is_ok());
    let found = Rules { hasty: true, refuses: false, ..AS_THEY_ARE }.explore();
    assert_eq!(found, Err("a partition was missed"));
}

#[test]
fn each_part_of_the_protocol_is_needed() {
    let another = Err("data of another epoch is read");
    assert_eq!(Rules { waits: false, ..AS_THEY_ARE }.explore(), another);
    assert_eq!(Rules { words_last: false, ..AS_THEY_ARE }.explore(), another);
    assert_eq!(Rules { counts: false, ..AS_THEY_ARE }.explore(), another);
}
