//! The checked mode: before a collective begins, its ranks compare what they were called with. Then either all of them
//! begin, or none does, and all give the same error. So no message of theirs is left over.
//!
//! 1. Everybody tells everybody its terms: [`RECORD_BYTES`] bytes, an all-gather.
//! 2. If lengths are a matter of pairs, or blocks may be of several types, each rank tells each how many bytes it will
//!    send it, in which pieces (where all know the lengths: none), and of which elements: an all-to-all of
//!    [`PAIR_BYTES`] bytes.
//! 3. After that, everybody tells everybody what did not fit: [`RECORD_BYTES`] bytes, an all-gather.
//!
//! These are schedules as others are. They do not depend on arguments, so they fit whatever the ranks were called with,
//! and they have the collective's tags: messages between two ranks with one tag are received in order.
//!
//! A rank that fails meanwhile, because a peer is lost or there is no memory, goes through the rest and then through
//! the collective, as after any failure. If ranks differ and one dies at the same time, a rank that could not compare
//! may therefore wait for ranks that have given up.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

use gapless_bml::{digest, digest_bytes};

use super::ExecutorPlan;
use super::act::Tools;
use super::call_buffers::{BufferBlocks, CallBuffers, Combine};
use super::elements;
use super::error::CollError;
use super::memory::Memory;
use super::run::Run;
use super::tickets::Ticket;
use crate::algorithm::{Algorithm, Exchange, Method};
use crate::build::build;
use crate::call::Call;
use crate::locality::Locality;
use crate::operation::Operation;
use crate::schedule::{Action, Schedule};
use gapless_engine::{ReduceOp, Typed};

/// Numbers of a record, each of 8 bytes in little-endian order. Of terms: those of [`ARGUMENTS`]; 0 for what a rank
/// does not give. A rank that has nothing to do in an operation with a root gives the first only. Of a complaint: 1 of
/// bytes and 2 of elements, the sender's rank, what it sends, what was expected.
const RECORD: usize = 10;
/// The element's bytes, which are not 0.
const UNIT: usize = 3;
const RECORD_BYTES: u64 = 8 * RECORD as u64;
/// The elements of the send buffer, and behind it of the receive buffer; see [`elements::of_buffers`].
const ELEMENTS: usize = 8;
/// Total bytes to one rank, a digest of the pieces, and their elements.
const PAIR: usize = 3;
const PAIR_BYTES: u64 = 8 * PAIR as u64;

/// What the numbers of the terms are, in the order in which they are compared.
const ARGUMENTS: [&str; RECORD] = [
    "the operation",
    "the root",
    "the number of bytes",
    "the element's bytes",
    "whether the reduction is commutative",
    "the reduction operator",
    "the list of lengths",
    "the algorithm, or being in place",
    "the elements of the send buffer",
    "the elements of the receive buffer",
];

/// A comparison.
#[derive(Debug)]
pub(super) struct Comparison {
    ticket: Arc<Ticket>,
    /// What goes to each rank, and what is expected of each, if that is compared.
    pairs: Option<[BTreeMap<usize, [u64; PAIR]>; 2]>,
    stage: ComparisonStage,
    round: Round,
    /// Why this rank cannot compare.
    failure: Option<CollError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ComparisonStage {
    Terms,
    Pairs,
    Complaints,
}

/// One exchange.
#[derive(Debug)]
struct Round {
    plan: ExecutorPlan,
    run: Run,
    /// `None`: there was no memory, and the run has failed.
    heard: Option<Memory>,
    /// Kept while it is sent.
    _said: Option<Memory>,
}

/// What a comparison comes to.
#[derive(Debug)]
pub(super) enum Verdict {
    /// All is well.
    Fine,
    /// All ranks give up.
    Refused(CollError),
    /// This rank has failed.
    Failed(CollError),
}

impl Comparison {
    /// Of what a schedule and an operation were made of.
    pub(super) fn new(
        ticket: &Arc<Ticket>,
        schedule: &Schedule,
        buffers: &CallBuffers,
        combine: Option<&Combine>,
    ) -> Self {
        let call = Call::Allgather { len: RECORD_BYTES, in_place: false };
        let mut terms = terms(schedule, combine);
        // A rank without a root has nothing to do.
        if terms[UNIT] != 0 && !schedule.terms.by_pairs {
            let all = elements::of_buffers(schedule.terms.operation, buffers);
            terms[ELEMENTS..].copy_from_slice(&all);
        }
        Self {
            ticket: Arc::clone(ticket),
            pairs: match schedule.terms.by_pairs {
                true => Some(pairs(schedule, buffers)),
                false => blocks(schedule, buffers, ticket.members().size() as usize),
            },
            stage: ComparisonStage::Terms,
            round: Round::new(ticket, &call, &terms),
            failure: None,
        }
    }

    /// Whether nothing is in flight, after engines have ended; otherwise memory is leaked.
    pub(super) fn let_go(mut self) -> bool {
        let idle = self.round.run.let_go();
        if !idle {
            // Peers may still write to it.
            std::mem::forget(self.round);
        }
        idle
    }

    pub(super) fn is_busy(&self) -> bool {
        self.round.run.is_busy() || self.round.run.is_blocked(&self.round.plan)
    }

    pub(super) fn advance(&mut self, tools: &mut Tools<'_>) -> Poll<Verdict> {
        loop {
            let Poll::Ready(result) = self.round.run.advance(&self.round.plan, tools) else {
                return Poll::Pending;
            };
            if let Err(error) = result {
                self.failure.get_or_insert(error);
            }
            let next = match (self.stage, &self.failure) {
                (ComparisonStage::Terms, None) => match self.compare_terms() {
                    Some(error) => return Poll::Ready(Verdict::Refused(error)),
                    None => self.pairs_round(),
                },
                (ComparisonStage::Terms, Some(_)) => self.pairs_round(),
                (ComparisonStage::Pairs, _) => Some(self.complaints_round()),
                (ComparisonStage::Complaints, None) => match self.hear_complaints() {
                    Some(error) => return Poll::Ready(Verdict::Refused(error)),
                    None => None,
                },
                (ComparisonStage::Complaints, Some(_)) => None,
            };
            match next {
                None => {
                    let failure = self.failure.take();
                    return Poll::Ready(failure.map_or(Verdict::Fine, Verdict::Failed));
                }
                Some(round) => {
                    self.round = round;
                    if let Some(failure) = &self.failure {
                        self.round.run.doom(failure.clone());
                    }
                }
            }
        }
    }

    fn ranks(&self) -> usize {
        self.ticket.members().size() as usize
    }

    /// What differs, if something does: all ranks come to the same.
    fn compare_terms(&self) -> Option<CollError> {
        let records: Vec<[u64; RECORD]> =
            (0..self.ranks()).map(|rank| self.round.heard(rank)).collect();
        let differs = (0..ELEMENTS).find_map(|at| {
            // Ranks that have no root have nothing to do, and give no more than the operation.
            let gives = |it: &[u64; RECORD]| at == 0 || it[UNIT] != 0;
            let mut given = (0u32..).zip(&records).filter(|(_, it)| gives(it));
            let (other, expected) = given.next()?;
            let (rank, given) = given.find(|(_, it)| it[at] != expected[at])?;
            let (given, expected) = (words(at, given[at]), words(at, expected[at]));
            Some(CollError::Differs { rank, argument: ARGUMENTS[at], given, other, expected })
        });
        differs.or_else(|| {
            // What all ranks send and receive is of one signature.
            let both = |(rank, record): (u32, &[u64; RECORD])| {
                let record = *record;
                (ELEMENTS..RECORD).map(move |at| (rank, at, record[at]))
            };
            let mut given = (0u32..).zip(&records).flat_map(both).filter(|(_, _, it)| *it != 0);
            let (other, _, expected) = given.next()?;
            let (rank, at, given) = given.find(|(_, _, it)| *it != expected)?;
            let (given, expected) = (elements::name(given), elements::name(expected));
            Some(CollError::Differs { rank, argument: ARGUMENTS[at], given, other, expected })
        })
    }

    fn pairs_round(&mut self) -> Option<Round> {
        let [out, _] = self.pairs.as_ref()?;
        self.stage = ComparisonStage::Pairs;
        let numbers =
            (0..self.ranks()).flat_map(|rank| out.get(&rank).copied().unwrap_or([0; PAIR]));
        let numbers: Vec<u64> = numbers.collect();
        let call = Call::Alltoall { len: PAIR_BYTES, in_place: false };
        Some(Round::new(&self.ticket, &call, &numbers))
    }

    /// Tells of the first rank that will not send what is expected of it.
    fn complaints_round(&mut self) -> Round {
        self.stage = ComparisonStage::Complaints;
        let mut complaint = [0; RECORD];
        if let (Some([_, expected]), None) = (&self.pairs, &self.failure) {
            let wrong = (0..self.ranks()).find_map(|rank| {
                let sent: [u64; PAIR] = self.round.heard(rank);
                let expected = expected.get(&rank).copied().unwrap_or([0; PAIR]);
                let [sent_elements, own_elements] = [sent[2], expected[2]];
                let fit = sent_elements == own_elements || sent_elements == 0 || own_elements == 0;
                match sent[..2] == expected[..2] {
                    true if fit => None,
                    true => Some([2, rank as u64, sent_elements, own_elements]),
                    false => Some([1, rank as u64, sent[0], expected[0]]),
                }
            });
            if let Some(wrong) = wrong {
                complaint[..4].copy_from_slice(&wrong);
            }
        }
        let call = Call::Allgather { len: RECORD_BYTES, in_place: false };
        Round::new(&self.ticket, &call, &complaint)
    }

    fn hear_complaints(&self) -> Option<CollError> {
        let mut all = (0u32..).zip((0..self.ranks()).map(|rank| self.round.heard::<RECORD>(rank)));
        let (to, [of, rank, sent, expected, ..]) = all.find(|(_, complaint)| complaint[0] != 0)?;
        let rank = u32::try_from(rank).unwrap_or(u32::MAX);
        if of == 1 {
            return Some(CollError::Lengths { rank, to, sent, expected });
        }
        let (sent, expected) = (elements::name(sent), elements::name(expected));
        Some(CollError::OtherElements { rank, to, sent, expected })
    }
}

impl Round {
    /// An exchange of these numbers. If there is no memory for it, this rank takes part without, and all others learn
    /// that: they need its numbers, or what has passed through it.
    fn new(ticket: &Arc<Ticket>, call: &Call<'_>, numbers: &[u64]) -> Self {
        let members = ticket.members();
        let (rank, ranks) = (members.rank(), members.size() as usize);
        let bruck = Algorithm::new(Method::Exchange(Exchange::Bruck));
        let Ok(schedule) = build(rank as usize, &Locality::flat(ranks), call, &bruck) else {
            unreachable!("few bytes, and an algorithm that does it");
        };
        let memory = |bytes: u64| Memory::new(bytes).ok_or(CollError::NoMemory { rank, bytes });
        let said = memory(schedule.send.len());
        let both = said.and_then(|said| Ok((said, memory(schedule.recv.len())?)));
        let (said, heard, failure) = match both {
            Ok((said, heard)) => (Some(said), Some(heard), None),
            Err(failure) => (None, None, Some(failure)),
        };
        if let Some(said) = &said {
            said.write(numbers);
        }
        let row = |memory: &Option<Memory>| match memory {
            Some(memory) => BufferBlocks::Whole(Typed::contiguous(memory.region())),
            None => BufferBlocks::None,
        };
        let buffers = CallBuffers { send: row(&said), recv: row(&heard) };
        let mut plan =
            ExecutorPlan::new(Arc::new(schedule), buffers, None, Arc::clone(ticket), false);
        let mut run = plan.run();
        if let Some(failure) = failure {
            run.doom(failure);
        }
        Self { plan, run, heard, _said: said }
    }

    /// What a rank has told.
    fn heard<const N: usize>(&self, rank: usize) -> [u64; N] {
        self.heard.as_ref().map_or([0; N], |heard| heard.numbers(rank * N))
    }
}

/// The terms as numbers.
fn terms(schedule: &Schedule, combine: Option<&Combine>) -> [u64; RECORD] {
    let terms = &schedule.terms;
    let operation = Operation::ALL.iter().position(|it| *it == terms.operation).unwrap_or(0);
    let optional = |number: Option<u64>| number.map_or(0, |number| number.saturating_add(1));
    if terms.operation.is_rooted() && terms.root.is_none() {
        let mut first = [0; RECORD];
        first[0] = operation as u64;
        return first;
    }
    let operator = combine.filter(|_| terms.operation.reduces());
    let algorithm = terms.algorithm.map_or(0, |it| digest_bytes(it.to_string().bytes()));
    [
        operation as u64,
        optional(terms.root.map(|root| root as u64)),
        optional(terms.bytes),
        terms.unit,
        terms.commutative.into(),
        operator.map_or(0, |combine| digest_bytes(combine.op().name().bytes())),
        terms.lens,
        digest(&[algorithm, terms.in_place.into()]),
        0,
        0,
    ]
}

/// A number of the terms, for people.
fn words(at: usize, number: u64) -> String {
    let optional = || number.checked_sub(1).map_or("none".to_owned(), |given| given.to_string());
    match at {
        0 => usize::try_from(number)
            .ok()
            .and_then(|index| Operation::ALL.get(index))
            .map_or("something else".to_owned(), ToString::to_string),
        1 | 2 => optional(),
        3 => number.to_string(),
        4 => (number == 1).to_string(),
        5 => operator(number),
        // Of these there are digests only.
        _ => format!("one with digest {number:016x}"),
    }
}

/// An operator of which there is a digest of its name.
fn operator(number: u64) -> String {
    let known = |op: &ReduceOp| digest_bytes(op.name().bytes()) == number;
    match ReduceOp::ALL.iter().find(|op| known(op)) {
        Some(op) => op.name().to_owned(),
        None if number == 0 => "none".to_owned(),
        None => format!("an operation of its own (digest {number:016x})"),
    }
}

/// A message of a schedule: its slot, its bytes, a digest of its elements.
type Message = (u32, u64, u64);

/// What a schedule sends to each rank, and expects of each: total bytes, a digest of the messages by slot, their
/// elements.
fn pairs(schedule: &Schedule, buffers: &CallBuffers) -> [BTreeMap<usize, [u64; PAIR]>; 2] {
    let mut messages: [BTreeMap<usize, Vec<Message>>; 2] = Default::default();
    for (action, _) in schedule.steps() {
        let (way, peer, slot, place) = match action {
            Action::Send { to, slot, from } => (0, *to, *slot, from),
            Action::Receive { from, slot, into } => (1, *from, *slot, into),
            _ => continue,
        };
        let elements = elements::of_place(buffers, place, schedule.range(place));
        messages[way].entry(peer).or_default().push((slot, place.len, elements));
    }
    messages.map(|way| {
        let one = |(peer, mut messages): (usize, Vec<Message>)| {
            messages.sort_unstable();
            let total = messages.iter().map(|(_, len, _)| len).sum();
            let numbers: Vec<u64> =
                messages.iter().flat_map(|(slot, len, _)| [u64::from(*slot), *len]).collect();
            let elements: Vec<u64> = messages.iter().map(|(_, _, elements)| *elements).collect();
            (peer, [total, digest(&numbers), elements::of_all(&elements)])
        };
        way.into_iter().map(one).collect()
    })
}

/// The elements of the blocks that go to each rank, and are expected of each. Their lengths are compared as terms.
fn blocks(
    schedule: &Schedule,
    buffers: &CallBuffers,
    ranks: usize,
) -> Option<[BTreeMap<usize, [u64; PAIR]>; 2]> {
    let terms = &schedule.terms;
    let both = elements::of_pairs(terms.operation, buffers, terms.root, ranks)?;
    Some(both.map(|words| {
        let pairs = words.into_iter().enumerate();
        pairs.map(|(rank, elements)| (rank, [0, 0, elements])).collect()
    }))
}
