//! Where work and copies go: memory that rotates.

use gapless_kernels::Direction;

use super::lab::{Lab, Laid, Queue, Spot};
use crate::error::Failure;

/// Where one subject lies, time after time.
pub struct Places {
    pub(super) typed: Vec<Laid>,
    pub(super) packed: Vec<Spot>,
    pub(super) at: usize,
    /// Bytes that all places touch.
    pub rotation_bytes: u64,
}

impl Places {
    /// The next place: the layout's and the packed bytes'.
    pub fn turn(&mut self) -> (&Laid, &Spot) {
        self.at = (self.at + 1) % self.typed.len();
        (&self.typed[self.at], &self.packed[self.at])
    }

    /// The same from the other end of the round; see [`Copies::opposite`].
    #[must_use]
    pub fn opposite(mut self) -> Places {
        self.at = self.typed.len() / 2;
        self
    }

    /// How many there are.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.typed.len()
    }

    /// The first place.
    #[must_use]
    pub fn first(&self) -> (&Laid, &Spot) {
        (&self.typed[0], &self.packed[0])
    }
}

/// Where plain copies go, time after time.
pub struct Copies {
    pub(super) pairs: Vec<(Spot, Spot)>,
    pub(super) at: usize,
}

impl Copies {
    /// The same from the other end of the round, for who takes turns with another on them: each finds
    /// what the other touched half a round ago.
    #[must_use]
    pub fn opposite(mut self) -> Copies {
        self.at = self.pairs.len() / 2;
        self
    }

    /// The next pair: to and from.
    pub fn turn(&mut self) -> (&Spot, &Spot) {
        self.at = (self.at + 1) % self.pairs.len();
        let (to, from) = &self.pairs[self.at];
        (to, from)
    }

    /// Enqueues a plain copy on the lab's stream.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn copy(&mut self, lab: &Lab) -> Result<(), Failure> {
        let (to, from) = self.turn();
        lab.copy(lab.stream(), to, from)
    }

    /// The same to other memory, as a pack goes there, or from it.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn copy_by(
        &mut self,
        lab: &Lab,
        direction: Direction,
        other: &Spot,
    ) -> Result<(), Failure> {
        let (to, from) = self.turn();
        match direction {
            Direction::Pack => lab.copy(lab.stream(), other, from),
            Direction::Unpack => lab.copy(lab.stream(), to, other),
        }
    }

    /// Enqueues our contiguous kernel.
    ///
    /// # Errors
    /// What the engine refuses.
    pub fn pack(&mut self, lab: &Lab, queue: &Queue<'_>) -> Result<(), Failure> {
        let (to, from) = self.turn();
        queue.go(Direction::Pack, &lab.lay_bytes(from), to)
    }

    /// The same to other memory, or from it.
    ///
    /// # Errors
    /// What the engine refuses.
    pub fn pack_by(
        &mut self,
        (lab, queue): (&Lab, &Queue<'_>),
        direction: Direction,
        other: &Spot,
    ) -> Result<(), Failure> {
        let (to, from) = self.turn();
        let laid = if direction == Direction::Pack { from } else { to };
        queue.go(direction, &lab.lay_bytes(laid), other)
    }
}
