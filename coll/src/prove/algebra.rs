//! The values that bytes hold: inputs, and combinations of inputs.
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A value, by its number in the [`Algebra`]: equal numbers, equal values.
pub(crate) type Value = u32;

/// What nobody wrote.
pub(crate) const UNDEFINED: Value = 0;

/// All values that have occurred: which position of the ranks' inputs, and the ranks whose inputs are combined.
#[derive(Clone, Debug)]
pub(crate) struct Algebra {
    commutative: bool,
    /// Whether brackets and the order of operands matter, as they do to rounding.
    rounds: bool,
    values: Vec<(u32, Vec<u16>)>,
    numbers: HashMap<(u32, Vec<u16>), Value, BuildHasherDefault<Mix>>,
    combined: HashMap<u64, Option<Value>, BuildHasherDefault<Mix>>,
}

impl Algebra {
    pub(crate) fn new(commutative: bool) -> Self {
        // The first value is the one that nobody wrote.
        Self {
            commutative,
            rounds: false,
            values: vec![(u32::MAX, Vec::new())],
            numbers: HashMap::default(),
            combined: HashMap::default(),
        }
    }

    /// From now on brackets and the order of operands matter.
    pub(crate) fn round(&mut self) {
        self.rounds = true;
        self.combined.clear();
    }

    pub(crate) fn rounds(&self) -> bool {
        self.rounds
    }

    /// The combination of some ranks' inputs at a position; of one rank: its input.
    pub(crate) fn value(&mut self, at: usize, ranks: Vec<u16>) -> Value {
        let at = u32::try_from(at).expect("inputs are short here");
        let next = u32::try_from(self.values.len()).expect("there are few values");
        let number = *self.numbers.entry((at, ranks.clone())).or_insert(next);
        if number == next {
            self.values.push((at, ranks));
        }
        number
    }

    pub(crate) fn input(&mut self, rank: usize, at: usize) -> Value {
        self.value(at, vec![u16::try_from(rank).expect("there are few ranks")])
    }

    /// The position of a value in the inputs.
    pub(crate) fn position(&self, value: Value) -> u32 {
        self.values[value as usize].0
    }

    /// One value combined with another; none if they are of different positions, or undefined.
    pub(crate) fn combine(&mut self, one: Value, other: Value) -> Option<Value> {
        let key = u64::from(one) << 32 | u64::from(other);
        if let Some(known) = self.combined.get(&key) {
            return *known;
        }
        let ((at, left), (at_other, right)) =
            (&self.values[one as usize], &self.values[other as usize]);
        let fits = at == at_other && one != UNDEFINED && other != UNDEFINED;
        let sum = fits.then(|| {
            let mut ranks: Vec<_> = left.iter().chain(right).copied().collect();
            if self.commutative {
                ranks.sort_unstable();
            }
            (*at as usize, ranks)
        });
        let sum =
            sum.map(
                |(at, ranks)| {
                    if self.rounds { self.rounded(at, ranks) } else { self.value(at, ranks) }
                },
            );
        self.combined.insert(key, sum);
        sum
    }

    /// A value that is like no other: it comes of these two operands only.
    fn rounded(&mut self, at: usize, ranks: Vec<u16>) -> Value {
        let number = u32::try_from(self.values.len()).expect("there are few values");
        self.values.push((u32::try_from(at).expect("inputs are short here"), ranks));
        number
    }

    pub(crate) fn describe(&self, value: Value) -> String {
        if value == UNDEFINED {
            return "what was there before".to_owned();
        }
        let (at, ranks) = &self.values[value as usize];
        format!("input {at} of ranks {ranks:?}")
    }
}

/// A quick hash of numbers: nobody attacks a proof.
#[derive(Clone, Default)]
pub(crate) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}
