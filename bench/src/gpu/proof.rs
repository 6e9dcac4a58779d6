//! Proof that a GPU moved the right bytes: what it packed and unpacked is compared, byte for byte and gaps
//! included, with what the host engine makes of a host copy of the same memory.
//!
//! Known bytes lie on the device once ([`Arenas::master`](super::lab::Arenas)) and are never written;
//! results come back piece by piece through page-locked memory and are compared by all processors.

use std::ops::Range;
use std::thread;

use gapless_engine::{Engine, HostEngine, Typed};
use gapless_kernels::Direction;
use gapless_mem::Region;

use super::lab::{Lab, Laid, Spot};
use super::subject::Subject;
use crate::check::{Wrong, same};
use crate::error::Failure;
use crate::memories::index;
use crate::random::Random;

/// Bytes that come back at a time.
const PIECE: u64 = 64 << 20;
/// The packed bytes that are unpacked begin here in the known bytes, so that they are not those that
/// already lie where they go.
const SHIFT: u64 = 4096;
/// Bytes after what is packed that must stay as they are.
const GUARD: u64 = 256;
/// What a device's memory holds before something is packed to it.
const POISON: u8 = 0xa5;
/// Bytes of pattern from which arenas are filled, over and over.
const TILE: u64 = 64 << 20;

/// Known bytes on both sides, and room to compare.
pub struct Proof<'a> {
    lab: &'a Lab,
    /// The same as the device's `master` has, as far as it is known yet.
    pattern: Vec<u8>,
    /// What should come out.
    expected: Vec<u8>,
    bounce: Spot,
    seed: u64,
    threads: usize,
}

impl<'a> Proof<'a> {
    /// Room to compare on `lab`; its arenas are filled with what looks random.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn new(lab: &'a Lab, seed: u64) -> Result<Proof<'a>, Failure> {
        let bounce = lab.pinned_memory(PIECE.min(lab.arenas().proof.len()))?;
        let threads = thread::available_parallelism().map_or(1, |n| n.get()).min(16);
        let (pattern, expected) = (Vec::new(), Vec::new());
        let mut proof = Proof { lab, pattern, expected, bounce, seed, threads };
        let arenas = *lab.arenas();
        let tile = TILE.min(arenas.master.len());
        proof.know(tile)?;
        for arena in [arenas.typed, arenas.packed, arenas.from, arenas.to] {
            let mut at = 0;
            while at < arena.len() {
                let len = tile.min(arena.len() - at);
                lab.copy(lab.stream(), &arena.sub(at, len)?, &arenas.master.sub(0, len)?)?;
                at += len;
            }
        }
        lab.settle()?;
        Ok(proof)
    }

    /// Makes the first `len` bytes known.
    fn know(&mut self, len: u64) -> Result<(), Failure> {
        let known = self.pattern.len() as u64;
        if len <= known {
            return Ok(());
        }
        let master = self.lab.arenas().master;
        if len > master.len() {
            return Err(too_big("the known bytes", len, master.len()));
        }
        // By whole tiles, so that what is known grows a few times only.
        let len = len.next_multiple_of(TILE).min(master.len());
        self.pattern.resize(index(len), 0);
        let (seed, fresh) = (self.seed, &mut self.pattern[index(known)..]);
        let share = fresh.len().div_ceil(self.threads).next_multiple_of(8).max(8);
        thread::scope(|scope| {
            for (at, piece) in fresh.chunks_mut(share).enumerate() {
                let salt = seed ^ known ^ ((at as u64) << 48);
                scope.spawn(move || Random::new(salt).fill(piece));
            }
        });
        let spot = master.sub(known, len - known)?;
        self.lab.upload(&spot, &self.pattern[index(known)..])
    }

    /// Lets `go` pack known bytes and compares what it made. It packs to `to`, or to memory of the device
    /// if that is `None`, and waits or works on the lab's stream.
    ///
    /// # Errors
    /// A wrong byte, or what `go` or the driver refuses.
    pub fn pack(
        &mut self,
        subject: &Subject,
        to: Option<Spot>,
        go: &mut dyn FnMut(&Laid, &Spot) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.know(subject.span)?;
        let (lab, payload) = (self.lab, subject.payload);
        let room = to.unwrap_or(lab.arenas().proof_packed);
        if room.len() < payload {
            return Err(too_big(&subject.name, payload, room.len()));
        }
        let guarded = room.sub(0, (payload + GUARD).min(room.len()))?;
        let poison = lab.arenas().proof_packed.sub(0, guarded.len())?;
        lab.fill(&poison, POISON)?;
        if to.is_some() {
            lab.copy(lab.stream(), &guarded, &poison)?;
        }
        lab.settle()?;
        let laid = lab.lay(subject, &lab.arenas().master)?;
        go(&laid, &room.sub(0, payload)?)?;
        lab.settle()?;
        self.expected.resize(index(guarded.len()), 0);
        self.expected[index(payload)..].fill(POISON);
        let from = Typed::new(
            Region::of(&self.pattern[..index(subject.span)]),
            subject.origin,
            &subject.layout,
            subject.count,
        )?;
        let packed = Region::of_mut(&mut self.expected[..index(payload)]);
        parallel(self.threads, Direction::Pack, &from, packed)?;
        self.compare(subject, "pack", &guarded)
    }

    /// Lets `go` unpack known bytes over other known bytes and compares what it made. They come from
    /// `from`, or from memory of the device if that is `None`.
    ///
    /// # Errors
    /// As for [`pack`](Proof::pack).
    pub fn unpack(
        &mut self,
        subject: &Subject,
        from: Option<Spot>,
        go: &mut dyn FnMut(&Spot, &Laid) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (lab, payload, span) = (self.lab, subject.payload, subject.span);
        self.know(span.max(payload + SHIFT))?;
        let arenas = lab.arenas();
        if span > arenas.proof.len() {
            return Err(too_big(&subject.name, span, arenas.proof.len()));
        }
        let target = arenas.proof.sub(0, span)?;
        lab.copy(lab.stream(), &target, &arenas.master.sub(0, span)?)?;
        // Bytes of one place in memory have one value, whichever of them comes last.
        let agreeing = if subject.overlaps()? { Some(self.pack_shifted(subject)?) } else { None };
        let known = match &agreeing {
            None => arenas.master.sub(SHIFT, payload)?,
            Some(bytes) => {
                let room = arenas.proof_packed.sub(0, payload)?;
                lab.upload(&room, bytes)?;
                room
            }
        };
        let packed = match from {
            None => known,
            Some(room) => {
                let room = room.sub(0, payload)?;
                lab.copy(lab.stream(), &room, &known)?;
                room
            }
        };
        lab.settle()?;
        let laid = lab.lay(subject, &target)?;
        go(&packed, &laid)?;
        lab.settle()?;
        self.expected.resize(index(span), 0);
        copy(self.threads, &mut self.expected, &self.pattern[..index(span)]);
        let region = Region::of_mut(&mut self.expected);
        let to = Typed::new(region, subject.origin, &subject.layout, subject.count)?;
        match &agreeing {
            None => {
                let packed = Region::of(&self.pattern[index(SHIFT)..index(SHIFT + payload)]);
                parallel(self.threads, Direction::Unpack, &to, packed)?;
            }
            // Threads would write the same bytes.
            Some(bytes) => parallel(1, Direction::Unpack, &to, Region::of(bytes))?,
        }
        self.compare(subject, "unpack", &target)
    }

    /// What the subject packs out of the known bytes, a little further on.
    fn pack_shifted(&mut self, subject: &Subject) -> Result<Vec<u8>, Failure> {
        let end = SHIFT + subject.span;
        self.know(end)?;
        let region = Region::of(&self.pattern[index(SHIFT)..index(end)]);
        let typed = Typed::new(region, subject.origin, &subject.layout, subject.count)?;
        let mut packed = vec![0; index(subject.payload)];
        parallel(self.threads, Direction::Pack, &typed, Region::of_mut(&mut packed))?;
        Ok(packed)
    }

    /// Lets `go` move known bytes from one layout to another over other known bytes, and compares what
    /// it made.
    ///
    /// # Errors
    /// As for [`pack`](Proof::pack).
    pub fn transfer(
        &mut self,
        from: &Subject,
        to: &Subject,
        go: &mut dyn FnMut(&Laid, &Laid) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        // Displacement 0 of the source lies here in the known bytes, so that equal layouts differ.
        let shifted = from.span + SHIFT;
        self.know(shifted.max(to.span))?;
        let (lab, arenas) = (self.lab, self.lab.arenas());
        if to.span > arenas.proof.len() {
            return Err(too_big(&to.name, to.span, arenas.proof.len()));
        }
        let target = arenas.proof.sub(0, to.span)?;
        lab.copy(lab.stream(), &target, &arenas.master.sub(0, to.span)?)?;
        lab.settle()?;
        let source = lab.lay(from, &arenas.master.sub(SHIFT, from.span)?)?;
        go(&source, &lab.lay(to, &target)?)?;
        lab.settle()?;
        let mut packed = vec![0; index(from.payload)];
        let region = Region::of(&self.pattern[index(SHIFT)..index(shifted)]);
        let typed = Typed::new(region, from.origin, &from.layout, from.count)?;
        parallel(self.threads, Direction::Pack, &typed, Region::of_mut(&mut packed))?;
        self.expected.resize(index(to.span), 0);
        copy(self.threads, &mut self.expected, &self.pattern[..index(to.span)]);
        let region = Region::of_mut(&mut self.expected);
        let typed = Typed::new(region, to.origin, &to.layout, to.count)?;
        parallel(self.threads, Direction::Unpack, &typed, Region::of(&packed))?;
        self.compare(to, "transfer", &target)
    }

    /// Both directions by the engine on the lab's stream.
    ///
    /// # Errors
    /// As for [`pack`](Proof::pack).
    pub fn both(
        &mut self,
        subject: &Subject,
        queue: &super::lab::Queue<'_>,
    ) -> Result<(), Failure> {
        self.pack(subject, None, &mut |laid, spot| queue.go(Direction::Pack, laid, spot))?;
        self.unpack(subject, None, &mut |spot, laid| queue.go(Direction::Unpack, laid, spot))
    }

    /// Compares memory of the lab's with what should be there.
    fn compare(&self, subject: &Subject, op: &'static str, found: &Spot) -> Result<(), Failure> {
        let mut bytes = vec![0; index(self.bounce.len().min(found.len()))];
        let mut at = 0;
        while at < found.len() {
            let len = self.bounce.len().min(found.len() - at);
            let bounce = self.bounce.sub(0, len)?;
            self.lab.copy(self.lab.stream(), &bounce, &found.sub(at, len)?)?;
            self.lab.settle()?;
            let bytes = &mut bytes[..index(len)];
            self.lab.read(&bounce, bytes)?;
            let expected = &self.expected[index(at)..index(at + len)];
            if let Err(Wrong { offset, found, expected }) = all_same(self.threads, bytes, expected)
            {
                let wrong = Wrong { offset: index(at) + offset, found, expected };
                return Err(Failure::Wrong { case: subject.name.clone(), op, wrong });
            }
            at += len;
        }
        Ok(())
    }
}

fn too_big(case: &str, needed: u64, most: u64) -> Failure {
    Failure::TooBig {
        case: case.to_owned(),
        needed: gapless_report::Bytes(needed),
        most: gapless_report::Bytes(most),
    }
}

/// Parts of `0..bytes`, one a thread.
fn parts(bytes: u64, threads: usize) -> impl Iterator<Item = Range<u64>> {
    let share = bytes.div_ceil(threads as u64).max(1);
    (0..bytes).step_by(index(share)).map(move |begin| begin..(begin + share).min(bytes))
}

/// Packs or unpacks a whole stream by the host engine, each thread a range of it.
fn parallel(
    threads: usize,
    direction: Direction,
    typed: &Typed,
    packed: Region,
) -> Result<(), Failure> {
    let go = |range: Range<u64>| -> Result<(), Failure> {
        let piece = packed.sub(range.start, range.end - range.start);
        let piece = piece.map_err(gapless_mem::DeviceError::from)?;
        match direction {
            // SAFETY: both regions are memory that the caller borrows, the written one exclusively;
            // ranges of one stream are disjoint there, and no subject has a byte twice.
            Direction::Pack => unsafe { HostEngine.pack(typed, range, piece, &[]) },
            // SAFETY: as above.
            Direction::Unpack => unsafe { HostEngine.unpack(piece, typed, range, &[]) },
        }?;
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> =
            parts(packed.len(), threads).map(|range| scope.spawn(|| go(range))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("it does not panic"))
    })
}

fn copy(threads: usize, to: &mut [u8], from: &[u8]) {
    let share = to.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        for (to, from) in to.chunks_mut(share).zip(from.chunks(share)) {
            scope.spawn(move || to.copy_from_slice(from));
        }
    });
}

fn all_same(threads: usize, found: &[u8], expected: &[u8]) -> Result<(), Wrong> {
    let share = found.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        let pairs = found.chunks(share).zip(expected.chunks(share)).enumerate();
        let workers: Vec<_> = pairs
            .map(|(at, (found, expected))| {
                scope.spawn(move || {
                    same(found, expected)
                        .map_err(|wrong| Wrong { offset: wrong.offset + at * share, ..wrong })
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("it does not panic"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::subject;

    #[test]
    fn threads_together_do_what_one_does() {
        let subject = subject::t_perturbed(40).unwrap();
        let mut memory = vec![0; index(subject.span)];
        Random::new(3).fill(&mut memory);
        let typed =
            |region| Typed::new(region, subject.origin, &subject.layout, subject.count).unwrap();
        let mut streams = [1, 7].map(|threads| {
            let mut packed = vec![0; index(subject.payload)];
            let from = typed(Region::of(&memory));
            parallel(threads, Direction::Pack, &from, Region::of_mut(&mut packed)).unwrap();
            packed
        });
        assert!(streams[0] == streams[1]);
        Random::new(4).fill(&mut streams[0]);
        let results = [1, 5].map(|threads| {
            let mut to = memory.clone();
            let region = Region::of_mut(&mut to);
            let packed = Region::of(&streams[0]);
            parallel(threads, Direction::Unpack, &typed(region), packed).unwrap();
            to
        });
        assert!(results[0] == results[1] && results[0] != memory);
    }

    #[test]
    fn the_first_wrong_byte_is_found_wherever_it_is() {
        let expected = vec![7; 1000];
        assert_eq!(all_same(3, &expected, &expected), Ok(()));
        for at in [0, 333, 334, 999] {
            let mut found = expected.clone();
            found[at] = 1;
            assert_eq!(all_same(3, &found, &expected).unwrap_err().offset, at);
        }
        let mut to = vec![0; 1000];
        copy(3, &mut to, &expected);
        assert_eq!(to, expected);
        assert_eq!(parts(10, 3).collect::<Vec<_>>(), [0..4, 4..8, 8..10]);
        assert_eq!(parts(0, 3).count(), 0);
    }
}
