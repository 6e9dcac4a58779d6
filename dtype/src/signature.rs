//! Signatures: the sequence of basic types of a datatype, compressed, with a hash that composes.
//!
//! A message is legal if the sender's sequence of basic types is a prefix of the receiver's
//! (MPI 4.1 §3.3.1). The sequence is kept as a graph of repeats and sequences that follows the
//! datatype's construction and shares what the datatype shares: a type with one old type is `n ×
//! old` however long its index lists are. Every node knows its elements, bytes and hash, and a
//! sequence the totals before each of its parts, so the hash of *any* prefix takes one division or
//! one binary search per level. Only a digest of 24 bytes travels with a message.
//!
//! `MPI_BYTE` and `MPI_PACKED` are untyped. A signature of them alone matches anything that fits
//! in bytes, and so does one that mixes them with typed elements: whether a byte run stands for a
//! typed element cannot be told from a digest. [`by_size`](Signature::by_size) makes any signature
//! such a one. Pair types count as two elements, value and index.
//!
//! Equality is equality of hashes modulo 2^61 − 1: a wrong program can get past it with
//! probability around 2^-50, a hostile one at will; neither can do more than receive wrong values,
//! because lengths are checked in bytes as well.

mod digest;
mod measure;
mod wire;

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

pub use digest::{SignatureDigest, SignatureError, SignatureKind};
use measure::Measure;
pub use wire::SignatureDecodeError;

use crate::contents::Contents;
use crate::datatype::Datatype;
use crate::primitive::Primitive;
use crate::run::in_memory;

/// The sequence of basic types of one instance of a datatype.
///
/// Cheap to clone. Two signatures are equal if their sequences are (by hash).
///
/// ```
/// use gapless_dtype::{Datatype, Primitive};
///
/// let double = Datatype::from(Primitive::Double);
/// let column = Datatype::vector(100, 1, 100, &double)?;
/// let sent = column.signature().digest(1);
/// // 100 doubles, however they lie, fit where 200 are expected; 201 do not.
/// double.signature().accepts_prefix(200, &sent).unwrap();
/// assert!(double.signature().accepts_prefix(99, &sent).is_err());
/// # Ok::<(), gapless_dtype::TypeError>(())
/// ```
#[derive(Clone)]
pub struct Signature(Arc<Node>);

struct Node {
    total: Measure,
    /// Levels of repeats and sequences above the basic types.
    depth: usize,
    kind: NodeKind,
}

enum NodeKind {
    Empty,
    Basic(Primitive),
    /// At least two copies of something that is neither empty nor a repeat.
    Repeat {
        count: u64,
        unit: Signature,
    },
    /// At least two parts, none of them empty.
    Sequence {
        parts: Box<[Signature]>,
        /// `starts[i]` measures all parts before part `i`.
        starts: Box<[Measure]>,
    },
}

impl Signature {
    /// The datatype's signature; the same as [`Datatype::signature`], as a handle of its own.
    pub fn of(datatype: &Datatype) -> Signature {
        datatype.signature().clone()
    }

    /// Computes the signature from those of the datatype's parts.
    pub(crate) fn compute(datatype: &Datatype) -> Signature {
        let fits = "a datatype's elements are no more than its bytes, which fit in 64 bits";
        if datatype.size() == 0 {
            return Signature::empty();
        }
        match datatype.contents() {
            Contents::Primitive(primitive) => {
                let basics = primitive.parts().map(|(part, _)| Signature::basic(part));
                Signature::sequence(basics.map(|basic| (1, basic))).expect(fits)
            }
            Contents::Struct { blocklengths, types, .. } => {
                let members = types.iter().map(|member| member.signature().clone());
                Signature::sequence(blocklengths.iter().copied().zip(members)).expect(fits)
            }
            // Whatever else the constructor is, it makes copies of one type.
            contents => {
                let old = &contents.types()[0];
                let copies = datatype.size() / old.size();
                Signature::repeat(copies, old.signature().clone()).expect(fits)
            }
        }
    }

    /// Number of basic elements in one instance.
    pub fn elements(&self) -> u64 {
        self.0.total.elements
    }

    /// Bytes of data in one instance.
    pub fn bytes(&self) -> u64 {
        self.0.total.bytes
    }

    /// Which basic types occur, each once, in the order of their codes. Pair types are not among them: their two parts
    /// are.
    pub fn types(&self) -> impl Iterator<Item = Primitive> {
        self.0.total.types()
    }

    /// Whether the elements are typed, untyped bytes, or both. An empty signature is typed.
    pub fn kind(&self) -> SignatureKind {
        self.0.total.kind()
    }

    /// The one type that the elements are of: a basic type, or the pair type whose value and index alternate.
    /// `None` if there are several types, or no elements. `MPI_2INT` is two of `MPI_INT`. By hash, as equality;
    /// takes time logarithmic in the number of elements, and constant for copies of one type.
    ///
    /// ```
    /// use gapless_dtype::{Datatype, Primitive};
    ///
    /// let double = Datatype::from(Primitive::Double);
    /// let column = Datatype::vector(100, 1, 100, &double)?;
    /// assert_eq!(column.signature().uniform(), Some(Primitive::Double));
    /// let mixed = Datatype::structure(&[1, 1], &[0, 8], &[double, Primitive::Int.into()])?;
    /// assert_eq!(mixed.signature().uniform(), Some(Primitive::DoubleInt));
    /// # Ok::<(), gapless_dtype::TypeError>(())
    /// ```
    #[inline]
    pub fn uniform(&self) -> Option<Primitive> {
        match self.0.kind {
            NodeKind::Basic(primitive) => Some(primitive),
            _ => self.uniform_of_many(),
        }
    }

    fn uniform_of_many(&self) -> Option<Primitive> {
        match self.in_turn()? {
            (first, None) => Some(first),
            (first, Some(second)) => Primitive::pair_of(first, second),
        }
    }

    /// The pair type of which the elements are the values and indices, in turn, whatever C calls their types: `f64` and
    /// `i32` are [`Primitive::DoubleInt`], elements of one type are pairs of two. `None` if there is no such pair type.
    ///
    /// ```
    /// use gapless_dtype::{Datatype, Primitive};
    ///
    /// let fields = [Primitive::of::<f64>(), Primitive::of::<u64>()].map(Datatype::from);
    /// let best = Datatype::structure(&[1, 1], &[0, 8], &fields)?;
    /// assert_eq!(best.signature().pair(), Some(Primitive::DoubleUint64));
    /// # Ok::<(), gapless_dtype::TypeError>(())
    /// ```
    pub fn pair(&self) -> Option<Primitive> {
        let (first, second) = self.in_turn()?;
        Primitive::pair_like(first, second.unwrap_or(first))
    }

    /// The type of all elements; or the first and the second element's, if all elements are of these in turn.
    fn in_turn(&self) -> Option<(Primitive, Option<Primitive>)> {
        // A repeat is of one type if what it repeats is.
        let unit = match &self.0.kind {
            NodeKind::Repeat { unit, .. } => unit,
            _ => self,
        };
        if let NodeKind::Basic(primitive) = unit.0.kind {
            return Some((primitive, None));
        }
        let first = unit.basic_at(0)?;
        let is_copies_of = |item: Measure| {
            let copies = unit.elements() / item.elements;
            item.times(copies) == unit.0.total
        };
        let one = Measure::of(first);
        if is_copies_of(one) {
            return Some((first, None));
        }
        let second = unit.basic_at(1)?;
        is_copies_of(one.then(Measure::of(second))).then_some((first, Some(second)))
    }

    /// The type of the element at this place of one instance.
    pub fn basic_at(&self, mut place: u64) -> Option<Primitive> {
        let mut node = self;
        loop {
            if place >= node.elements() {
                return None;
            }
            node = match &node.0.kind {
                NodeKind::Empty => return None,
                NodeKind::Basic(primitive) => return Some(*primitive),
                NodeKind::Repeat { unit, .. } => {
                    place %= unit.elements();
                    unit
                }
                NodeKind::Sequence { parts, starts } => {
                    let part = starts.partition_point(|start| start.elements <= place) - 1;
                    place -= starts[part].elements;
                    &parts[part]
                }
            };
        }
    }

    /// The type of the element at this place of `count` instances, and how many of it follow one another from there on, or
    /// at least one of them.
    pub(crate) fn stretch_at(&self, count: u64, mut place: u64) -> Option<(Primitive, u64)> {
        let (mut copies, mut node) = (count, self);
        loop {
            if place / node.elements().max(1) >= copies {
                return None;
            }
            // Copies of a type: those before this place are skipped, and one is entered.
            let within = place % node.elements().max(1);
            (copies, node, place) = match &node.0.kind {
                NodeKind::Empty => return None,
                NodeKind::Basic(primitive) => return Some((*primitive, copies - place)),
                NodeKind::Repeat { count, unit } => (*count, unit, within),
                NodeKind::Sequence { parts, starts } => {
                    let part = starts.partition_point(|start| start.elements <= within) - 1;
                    (1, &parts[part], within - starts[part].elements)
                }
            };
        }
    }

    /// The number of basic elements in the first `bytes` packed bytes of any number of instances (`MPI_Get_elements`); `None`
    /// if that cuts an element, or there are no elements.
    pub fn elements_in(&self, bytes: u64) -> Option<u64> {
        if bytes == 0 {
            return Some(0);
        }
        let instances = bytes.checked_div(self.bytes())?.saturating_add(1);
        self.part(instances, 0..bytes).map(|(_, digest)| digest.elements)
    }

    /// The number of packed bytes of the first `elements` basic elements of any number of instances; `None` if there are no
    /// elements, or their bytes overflow.
    pub fn bytes_of(&self, elements: u64) -> Option<u64> {
        if elements == 0 {
            return Some(0);
        }
        let instances = elements.checked_div(self.elements())?.saturating_add(1);
        let before = self.prefix(instances, elements, |measure| measure.elements);
        (before.bytes < u64::MAX).then_some(before.bytes)
    }

    /// The signature with each type replaced by the one of its [kind](Primitive::by_kind): `long` and `long long` are equal
    /// then. What is compared with it must have been replaced, too.
    #[must_use]
    pub fn by_kind(&self) -> Signature {
        self.with_basics(|basic| Signature::basic(basic.by_kind()))
    }

    /// As [`by_kind`](Signature::by_kind), and messages match by their bytes alone, as if they were untyped. What
    /// reductions ask is answered as before.
    ///
    /// ```
    /// use gapless_dtype::{Datatype, Primitive};
    ///
    /// let of = |basic: Primitive| Datatype::from(basic).signature().by_size();
    /// let (sent, posted) = (of(Primitive::Float), of(Primitive::Int32));
    /// posted.accepts_prefix(2, &sent.digest(2)).unwrap();
    /// assert!(posted.accepts_prefix(2, &sent.digest(3)).is_err());
    /// assert_eq!(posted.uniform(), Some(Primitive::Int32));
    /// ```
    #[must_use]
    pub fn by_size(&self) -> Signature {
        self.with_basics(|basic| {
            let basic = basic.by_kind();
            Signature::node(Measure::of(basic).by_size(), 0, NodeKind::Basic(basic))
        })
    }

    fn with_basics(&self, basic: impl Fn(Primitive) -> Signature) -> Signature {
        let fits = "as many bytes as before";
        self.fold(
            basic,
            |count, unit: &Signature| Signature::repeat(count, unit.clone()).expect(fits),
            |parts| {
                let parts = parts.into_iter().map(|part| (1, part.clone()));
                Signature::sequence(parts).expect(fits)
            },
            Signature::empty(),
        )
    }

    /// What each element of one instance is `worth`, in total; capped.
    pub(crate) fn sum(&self, worth: impl Fn(Primitive) -> u64) -> u64 {
        self.fold(
            worth,
            |count, unit: &u64| unit.saturating_mul(count),
            |parts| parts.into_iter().fold(0, |sum: u64, part| sum.saturating_add(*part)),
            0,
        )
    }

    /// Computes something from the basic types up; each node is looked at once, however often it occurs.
    fn fold<T>(
        &self,
        basic: impl Fn(Primitive) -> T,
        repeat: impl Fn(u64, &T) -> T,
        sequence: impl Fn(Vec<&T>) -> T,
        empty: T,
    ) -> T {
        let (mut order, mut places) = (Vec::new(), HashMap::new());
        self.number(&mut order, &mut places);
        let mut made: Vec<T> = Vec::with_capacity(order.len());
        // Parts come before wholes, so that they are there.
        let index = |node: &Signature| in_memory(places[&Arc::as_ptr(&node.0)]);
        for node in order {
            let next = match &node.kind {
                NodeKind::Empty => return empty,
                NodeKind::Basic(primitive) => basic(*primitive),
                NodeKind::Repeat { count, unit } => repeat(*count, &made[index(unit)]),
                NodeKind::Sequence { parts, .. } => {
                    sequence(parts.iter().map(|part| &made[index(part)]).collect())
                }
            };
            made.push(next);
        }
        made.pop().unwrap_or(empty)
    }

    /// The digest of `count` instances. Numbers beyond 64 bits are capped; no buffer is that large.
    pub fn digest(&self, count: u64) -> SignatureDigest {
        SignatureDigest::from(self.0.total.times(count))
    }

    /// Whether a message with the digest `sent` may be received by `count` instances of this
    /// signature: what was sent must be a prefix of it.
    ///
    /// If either side has untyped elements, the message only has to fit in bytes. Time grows with
    /// the depth of the type and the logarithms of its counts, not with the number of blocks.
    ///
    /// # Errors
    ///
    /// [`SignatureError::TooLong`] if more was sent than fits, in bytes;
    /// [`SignatureError::Mismatch`] if it fits but the types differ.
    pub fn accepts_prefix(&self, count: u64, sent: &SignatureDigest) -> Result<(), SignatureError> {
        let posted = self.digest(count);
        if sent.bytes > posted.bytes {
            return Err(SignatureError::TooLong {
                sent_bytes: sent.bytes,
                posted_bytes: posted.bytes,
            });
        }
        let typed = |kind| kind == SignatureKind::Typed;
        if !typed(sent.kind) || !typed(posted.kind) {
            return Ok(());
        }
        let mismatch = SignatureError::Mismatch { sent: *sent, posted };
        if sent.elements > posted.elements {
            return Err(mismatch);
        }
        let prefix = self.prefix(count, sent.elements, |measure| measure.elements);
        match prefix.bytes == sent.bytes && prefix.hash() == sent.hash {
            true => Ok(()),
            false => Err(mismatch),
        }
    }

    /// How many elements lie before a range of the packed bytes of `count` instances, and the digest of the range; `None` if
    /// it cuts an element, or is none of them. Time grows as that of [`accepts_prefix`](Signature::accepts_prefix).
    pub fn part(&self, count: u64, bytes: Range<u64>) -> Option<(u64, SignatureDigest)> {
        let cut = |at| {
            let before = self.prefix(count, at, |measure| measure.bytes);
            (before.bytes == at).then_some(before)
        };
        let (start, end) = (cut(bytes.start)?, cut(bytes.end)?);
        (bytes.start <= bytes.end).then(|| (start.elements, end.after(start).into()))
    }

    /// Measures the first elements of `count` instances that come to `amount` of what `of` says, or all if they are fewer,
    /// or one less if the last would exceed it.
    fn prefix(&self, count: u64, amount: u64, of: impl Fn(&Measure) -> u64) -> Measure {
        let mut before = Measure::EMPTY;
        let mut rest = amount;
        // Whole copies of this node are measured at once; at most one is entered.
        let (mut copies, mut node) = (count, self);
        while node.elements() > 0 && copies > 0 {
            let one = of(&node.0.total);
            let whole = (rest / one).min(copies);
            before = before.then(node.0.total.times(whole));
            rest -= whole * one;
            if rest == 0 || whole == copies {
                break;
            }
            (copies, node) = match &node.0.kind {
                NodeKind::Empty | NodeKind::Basic(_) => break,
                NodeKind::Repeat { count, unit } => (*count, unit),
                NodeKind::Sequence { parts, starts } => {
                    let part = starts.partition_point(|start| of(start) <= rest) - 1;
                    before = before.then(starts[part]);
                    rest -= of(&starts[part]);
                    (1, &parts[part])
                }
            };
        }
        before
    }

    fn empty() -> Signature {
        Signature::node(Measure::EMPTY, 0, NodeKind::Empty)
    }

    fn basic(primitive: Primitive) -> Signature {
        Signature::node(Measure::of(primitive), 0, NodeKind::Basic(primitive))
    }

    /// `count` copies of it; `None` if the total overflows 64 bits.
    pub(crate) fn repeated(&self, count: u64) -> Option<Signature> {
        Signature::repeat(count, self.clone())
    }

    /// `count` copies of `unit`; `None` if the total overflows 64 bits.
    fn repeat(count: u64, unit: Signature) -> Option<Signature> {
        let (count, unit) = match &unit.0.kind {
            _ if count == 0 => return Some(Signature::empty()),
            _ if count == 1 => return Some(unit),
            NodeKind::Empty => return Some(unit),
            NodeKind::Repeat { count: n, unit } => (count.checked_mul(*n)?, unit.clone()),
            _ => (count, unit),
        };
        let total = unit.0.total.checked_times(count)?;
        let depth = unit.0.depth + 1;
        Some(Signature::node(total, depth, NodeKind::Repeat { count, unit }))
    }

    /// Copies of signatures one after the other; `None` if the total overflows 64 bits.
    fn sequence(parts: impl Iterator<Item = (u64, Signature)>) -> Option<Signature> {
        // Equal neighbours become one run of copies.
        let mut runs: Vec<(u64, Signature)> = Vec::new();
        for (copies, part) in parts {
            let (copies, unit) = match &part.0.kind {
                _ if copies == 0 => continue,
                NodeKind::Empty => continue,
                NodeKind::Repeat { count, unit } => (copies.checked_mul(*count)?, unit.clone()),
                _ => (copies, part),
            };
            match runs.last_mut() {
                Some((n, last)) if *last == unit => *n = n.checked_add(copies)?,
                _ => runs.push((copies, unit)),
            }
        }
        let mut parts = runs
            .into_iter()
            .map(|(copies, unit)| Signature::repeat(copies, unit))
            .collect::<Option<Vec<Signature>>>()?;
        if parts.len() < 2 {
            return Some(parts.pop().unwrap_or_else(Signature::empty));
        }
        Signature::of_parts(parts.into())
    }

    fn of_parts(parts: Box<[Signature]>) -> Option<Signature> {
        let mut total = Measure::EMPTY;
        let mut starts = Vec::with_capacity(parts.len());
        for part in &parts {
            starts.push(total);
            total = total.checked_then(part.0.total)?;
        }
        let depth = 1 + parts.iter().map(|part| part.0.depth).max().unwrap_or(0);
        let starts = starts.into();
        Some(Signature::node(total, depth, NodeKind::Sequence { parts, starts }))
    }

    fn node(total: Measure, depth: usize, kind: NodeKind) -> Signature {
        Signature(Arc::new(Node { total, depth, kind }))
    }
}

impl PartialEq for Signature {
    fn eq(&self, other: &Signature) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.total == other.0.total
    }
}

impl Eq for Signature {}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Signature").field(&self.digest(1)).finish()
    }
}

#[cfg(test)]
mod tests;
