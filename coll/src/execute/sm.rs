//! Collectives on one host without messages, through a segment of memory that the ranks share.
//!
//! The segment has [mailboxes](gapless_sync::mailboxes), in which ranks publish short entries, and slots for data. An
//! [`Opening`] makes it; a [`SharedSegment`] is one rank's end of it. A collective of up to [`SHORT_BYTES`] costs each
//! rank stores to a few cache lines of its own, and loads of others'. A longer one goes through slots, a fragment at a
//! time: each rank packs what it has into its slot, combines a slice of all slots, and unpacks what it gets. So data
//! goes from layout to layout, through caches. Long buffers without gaps are read where they lie instead, if peers can
//! map that memory, or if the kernel lets them read it and each block is for one rank only. In exchanges only the
//! sender and the receiver of bytes know how many there are. There the sender says so in its entry or beside its slots,
//! and the receiver checks it.
//!
//! # What is where
//! - `open` makes a segment, `subgroup` says whose it is, `context` is what a collective works with;
//! - `call` is a call that was checked; `steps` begins steps of schedules; `buffers` describes the user's buffers, and
//!   `act` touches memory;
//! - short collectives: `short_plan` says what each rank does (pure), `short` does it, and `fast_path` the most
//!   frequent ones;
//! - long ones: `long_plan` (pure), `long`, `slots`, and the `header` that each rank publishes first; `read_in_place`
//!   and `single_copy` read buffers where they lie;
//! - exchanges: `exchange_plan` (pure) and `exchange`; `state_machine` has what they and long collectives have in
//!   common;
//! - `explain` says in words what a rank would do.
//!
//! Elements are combined in the order of the ranks, by one call of the reducer with all sources: the result is the same
//! at all ranks and in every run.
//!
//! Whether a call goes this way ([`SharedSegment::takes`]) depends only on what all ranks know. Where the buffers lie,
//! and how, does not matter: what is not plain memory of the host is packed and unpacked by the engine.
//!
//! # Waiting
//! [`SharedSegment::advance`] does what can be done and says whether the collective has ended; [`SharedSegment::look`]
//! is a few loads, and says whether `advance` would get on. So a caller that waits looks some dozen times, makes
//! progress and advances, and so on. Before it sleeps it calls [`SharedSegment::arm`], and then sleeps as for the
//! request that it gives: the rank that is waited for then sends a message. That is an empty message with `wake_tag`;
//! its arrival, by btl-sm a byte on a socket, ends the sleeper's poll(2).
//!
//! # Failures
//! A rank that waits for one that is lost fails, and names it. A rank that cannot go on writes why in the place of its
//! entries, so that ranks that need them fail, too. All ranks count the same rounds whatever happens, so later
//! collectives are not disturbed. A rank that writes what no rank writes can spoil results, and no more.
//!
//! A rank that is lost to another may live: the link between them has failed. That other does not wait for its reading
//! any more. So whoever has read asks whether the rank that it read of has stopped waiting for it, and fails if so.
//!
//! On a communicator that is revoked a rank gives up what is under way as soon as it hears of that, and fails. Nothing
//! begins there any more, so rounds need not be counted. A rank that has read of another's memory what was given up
//! finds that out, and fails as well.

#[allow(
    unsafe_code,
    reason = "has pml and engines work on memory that the caller of `SharedSegment::begin` grants"
)]
mod act;
mod buffers;
mod call;
mod context;
mod exchange;
mod exchange_plan;
mod explain;
mod fast_path;
mod header;
mod long;
mod long_plan;
#[allow(unsafe_code, reason = "vouches for memory that it allocates and maps")]
mod open;
#[allow(
    unsafe_code,
    reason = "asks for keys of memory that is granted, and reads and writes the key table"
)]
mod read_in_place;
mod short;
mod short_plan;
#[allow(
    unsafe_code,
    reason = "has the kernel write to memory that is granted, and reads and writes the key table"
)]
mod single_copy;
mod slots;
mod state_machine;
mod steps;
mod subgroup;

use std::task::Poll;

use gapless_engine::{Engine, Reducer};
use gapless_mem::{Lease, Words};
use gapless_pml::{Pml, RequestId};
use gapless_sync::mailboxes::{Awaited, Broken, ENTRY_BYTES, Mailbox, Mailboxes};

use super::SHARES_MAX;
use super::act::Tools;
use super::call_buffers::{CallBuffers, Combine};
use super::error::CollError;
use super::hyperq::{Control, HyperQ};
use super::memory::Memory;
use crate::Call;
use buffers::UserBuffers;
pub use call::SmCall;
use call::SmPlan;
use context::SmContext;
use exchange::Exchange;
pub use explain::Explanation;
pub use fast_path::CallPlan;
use fast_path::Halfway;
use long::{Long, OwnedInput};
pub use open::Opening;
use short::Short;
use slots::Slots;
use state_machine::InProgress;
use steps::Identity;
pub(super) use steps::StepHandle;
use subgroup::Subgroup;

/// The most bytes that a rank writes in a short collective.
pub const SHORT_BYTES: u64 = ENTRY_BYTES as u64;

/// How many bytes of others are read where they lie before others of this process have a turn.
const AT_ONCE_MAX: u64 = 4 << 20;

/// The memory of a segment: mailboxes, behind them slots, and then the key table.
#[derive(Debug)]
struct SegmentMemory {
    words: Words,
    slots: Lease,
    slot_bytes: u64,
    ranks: usize,
}

impl SegmentMemory {
    /// `None`: it is too short.
    fn new(words: Words, slots: Lease, ranks: usize) -> Option<SegmentMemory> {
        Mailboxes::new(words.all(), ranks)?;
        let slot_bytes = long_plan::slot_bytes(ranks);
        let needed = SegmentMemory::bytes(ranks)?.checked_sub(SegmentMemory::first_slot(ranks)?)?;
        (slots.region().len() >= needed).then_some(SegmentMemory {
            words,
            slots,
            slot_bytes,
            ranks,
        })
    }

    /// Where the slots begin: at a multiple of 4096 bytes.
    fn first_slot(ranks: usize) -> Option<u64> {
        let words = Mailboxes::words(ranks).checked_mul(size_of::<u64>())?;
        (words as u64).checked_next_multiple_of(4096)
    }

    /// Bytes of all of it. What is not used takes no memory.
    fn bytes(ranks: usize) -> Option<u64> {
        let slots = long_plan::slot_bytes(ranks).checked_mul((ranks * long_plan::SLOTS) as u64)?;
        let keys = read_in_place::key_table_bytes(ranks);
        let words = SegmentMemory::first_slot(ranks)?.checked_add(slots)?.checked_add(keys)?;
        words.checked_next_multiple_of(4096)?.checked_add(Control::bytes(ranks))
    }

    /// The words behind the key table, by which ranks on one GPU go.
    #[allow(unsafe_code, reason = "vouches for a part of the segment's memory")]
    fn control(&self) -> Option<Control> {
        let (all, bytes) = (SegmentMemory::bytes(self.ranks)?, Control::bytes(self.ranks));
        let at = all.checked_sub(SegmentMemory::first_slot(self.ranks)?)?.checked_sub(bytes)?;
        let lease = self.slots.sub(at, bytes).ok()?;
        // SAFETY: whoever made the segment's memory has promised that it is initialised, valid for reads and writes
        // while the lease lives, and reached through the segment only. Slots and the key table end before these bytes,
        // which `Control` reaches as words only.
        Control::new(unsafe { Words::new(lease) }.ok()?, self.ranks)
    }

    #[inline]
    fn mailboxes(&self) -> Mailboxes<'_> {
        match Mailboxes::new(self.words.all(), self.ranks) {
            Some(mailboxes) => mailboxes,
            None => unreachable!("`new` has found enough words, and they stay"),
        }
    }
}

/// One rank's end of the memory that a communicator's ranks share.
#[derive(Debug)]
pub struct SharedSegment {
    shared: SegmentMemory,
    mailbox: Mailbox,
    subgroup: Subgroup,
    /// The tag of messages that wake sleepers.
    wake_tag: i32,
    private: PrivateMemory,
    slots: Slots,
    /// Ranks that this one has told that it can read their memory: a bit each.
    announced_reads: u64,
    going: Option<Going>,
    identity: Identity,
    /// A short one that [`attempt`](SharedSegment::attempt) has begun.
    halfway: Option<Halfway>,
    /// A long collective that [`attempt`](SharedSegment::attempt) began, and its number.
    paused: Option<(u64, Box<Long<()>>)>,
    /// What this rank sleeps for, if it said that it does.
    asleep: Option<Awaited>,
    /// What somebody has written over that others wait for.
    spoilt: Option<Broken>,
    /// The message that would wake it, once it has slept.
    wake_request: Option<RequestId>,
}

/// Private memory: what this rank contributes, a result, and the blocks that were read.
#[derive(Debug)]
struct PrivateMemory {
    memory: Memory,
    /// Bytes of the result. What lies behind them is of earlier collectives.
    result: usize,
}

/// A collective that is under way.
#[derive(Debug)]
enum Going {
    Short(Short),
    Long(Box<Long<OwnedInput>>),
    Exchange(Exchange),
}

impl Going {
    fn get(&self) -> &dyn InProgress {
        match self {
            Going::Short(short) => short,
            Going::Long(long) => long.as_ref(),
            Going::Exchange(exchange) => exchange,
        }
    }

    fn get_mut(&mut self) -> &mut dyn InProgress {
        match self {
            Going::Short(short) => short,
            Going::Long(long) => long.as_mut(),
            Going::Exchange(exchange) => exchange,
        }
    }
}

impl SharedSegment {
    fn new(
        (shared, private): (SegmentMemory, PrivateMemory),
        mailbox: Mailbox,
        (subgroup, wake_tag): (Subgroup, i32),
    ) -> SharedSegment {
        let slots = Slots::default();
        SharedSegment {
            shared,
            mailbox,
            subgroup,
            wake_tag,
            private,
            slots,
            announced_reads: 0,
            going: None,
            identity: Identity::default(),
            halfway: None,
            paused: None,
            asleep: None,
            spoilt: None,
            wake_request: None,
        }
    }

    /// Whether a call on a communicator of `ranks` ranks goes by its segment, if it has one. All ranks agree.
    #[must_use]
    pub fn takes(call: &Call<'_>, ranks: usize) -> bool {
        short_plan::fits(call, ranks)
            || exchange_plan::fits(call, ranks)
            || long_plan::LongPlan::new(call, 0, ranks).is_some()
    }

    /// As [`begin_call`](SharedSegment::begin_call), of a call. `combine` is needed if it combines elements.
    ///
    /// # Safety
    /// As for `begin_call`.
    ///
    /// # Errors
    /// The errors of [`SmCall::new`] and of `begin_call`; nothing has begun.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    pub unsafe fn begin(
        &mut self,
        number: u64,
        call: &Call<'_>,
        buffers: CallBuffers,
        combine: Option<Combine>,
    ) -> Result<(), CollError> {
        let of = (self.subgroup.local_rank(), self.shared.ranks);
        let call = SmCall::new(call, of, buffers, combine)?;
        // SAFETY: the caller's promise.
        unsafe { self.begin_call(number, call) }
    }

    /// Begins a collective of this rank's; [`advance`](SharedSegment::advance) carries it out. `number`: its number
    /// among the collectives of the segment, which all ranks count alike ([`pass`](super::Sequencer::pass)).
    ///
    /// # Safety
    /// Until `advance` gives [`Poll::Ready`], or the segment is dropped, the buffers describe memory that is valid,
    /// those of the send buffer for reads while nothing writes it, those of the receive buffer for reads and writes
    /// while nothing else touches it; the two do not overlap. They are those of an [attempt](SharedSegment::attempt)
    /// with this number, if there was one.
    ///
    /// # Errors
    /// Nothing has begun: [`CollError::Abandoned`]: an earlier collective has not ended; [`CollError::Revoked`];
    /// [`CollError::NotShared`]: the call is of another rank, or of another number of ranks.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    pub unsafe fn begin_call(&mut self, number: u64, call: SmCall) -> Result<(), CollError> {
        self.start(number, call)
    }

    fn start(&mut self, number: u64, call: SmCall) -> Result<(), CollError> {
        let (halfway, paused) = (self.halfway.take(), self.paused.take());
        self.may_begin()?;
        let SmCall { way, buffers, combine, of } = call;
        let (me, ranks) = (self.subgroup.local_rank(), self.shared.ranks);
        if of != (me, ranks) {
            return Err(CollError::NotShared { operation: way.operation() });
        }
        self.identity.start();
        self.mailbox.begin(number);
        let (round, buffers) = (self.mailbox.round(), UserBuffers::new(buffers));
        self.going = Some(match way {
            SmPlan::Short(plan) => {
                let mut short = Short::new(plan, buffers, combine, round);
                if let Some(halfway) = halfway.filter(|it| it.began + it.rounds as u64 == round) {
                    short.go_on(halfway);
                }
                Going::Short(short)
            }
            SmPlan::Long(plan) => {
                let input = OwnedInput { plan, combine, buffers };
                Going::Long(Box::new(match paused.filter(|(of, _)| *of == number) {
                    Some((_, long)) => long.go_on(input),
                    None => Long::new(input, (ranks, round), &self.slots),
                }))
            }
            SmPlan::Exchange(plan, is_plain) => Going::Exchange(Exchange::new(
                plan,
                (buffers, is_plain),
                (ranks, round),
                &self.slots,
            )),
        });
        Ok(())
    }

    /// This rank, and of how many.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.subgroup.local_rank(), self.shared.ranks)
    }

    /// Whether the segment is of all ranks of the communicator, and not of the ranks of one host.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.subgroup.is_whole()
    }

    /// Whether something is under way.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        self.going.is_some()
    }

    fn is_revoked(&self) -> bool {
        self.subgroup.comm().is_revoked()
    }

    fn may_begin(&self) -> Result<(), CollError> {
        match self.going {
            Some(_) => Err(CollError::Abandoned),
            None if self.is_revoked() => Err(CollError::Revoked),
            None => Ok(()),
        }
    }

    /// Goes on as far as it can without waiting. Gives a result once, and `Ok` if nothing is under way.
    ///
    /// # Errors
    /// See [`CollError`]; with the error all buffers are free again.
    pub fn advance(
        &mut self,
        pml: &mut Pml,
        engine: &dyn Engine,
        reducer: &dyn Reducer,
    ) -> Poll<Result<(), CollError>> {
        if self.going.is_some() && self.is_revoked() {
            self.give_up();
            return self.over(Err(CollError::Revoked));
        }
        if let Some(Broken { expected, found, .. }) = self.spoilt.take()
            && self.going.is_some()
        {
            self.give_up();
            return self.over(Err(CollError::Overwritten { expected, found }));
        }
        let (Some(going), mut cx) = self.parts() else { return Poll::Ready(Ok(())) };
        if going.is_torn() {
            return Poll::Ready(Err(CollError::Abandoned));
        }
        if !going.advance(&mut cx, &mut Tools { pml, engine, reducer, segment: None }) {
            return Poll::Pending;
        }
        let mut result = going.result();
        if matches!(result, Err(CollError::GaveUp { .. } | CollError::WentOn { .. })) {
            // Whoever gives up because the communicator is revoked has sent word of that before.
            pml.progress();
            if self.is_revoked() {
                result = Err(CollError::Revoked);
            }
        }
        self.over(result)
    }

    /// What was under way is over.
    fn over(&mut self, result: Result<(), CollError>) -> Poll<Result<(), CollError>> {
        self.going = None;
        if self.asleep.take().is_some() {
            self.mailbox.disarm(&self.shared.mailboxes());
        }
        Poll::Ready(result)
    }

    /// What is under way, and what it works with.
    #[inline]
    fn parts(&mut self) -> (Option<&mut dyn InProgress>, SmContext<'_>) {
        let SharedSegment {
            shared, mailbox, subgroup, private, slots, announced_reads, going, ..
        } = self;
        let (mailboxes, wake_tag) = (shared.mailboxes(), self.wake_tag);
        let going = going.as_mut().map(Going::get_mut);
        (
            going,
            SmContext {
                mailboxes,
                shared,
                mailbox,
                subgroup,
                wake_tag,
                private,
                slots,
                announced_reads,
                only_looks: false,
            },
        )
    }

    /// Whether work of an engine is waited for, and no rank, so that a waiting caller should poll and not sleep.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.going.as_ref().is_some_and(|going| going.get().is_busy())
    }

    /// Gives up what is under way; waits for engines. Ranks that wait for this one go on waiting, and the segment is
    /// not to be used any more. Ranks that read this one's memory where it lies find out before they use it.
    pub fn give_up(&mut self) {
        let (going, mut cx) = self.parts();
        if let Some(going) = going {
            going.give_up(&mut cx);
        }
    }

    /// Whether [`advance`](SharedSegment::advance) would get on, as far as a few loads tell.
    #[inline]
    pub fn look(&mut self) -> bool {
        if self.is_revoked() {
            return true;
        }
        let (going, mut cx) = self.parts();
        going.is_none_or(|going| going.look(&mut cx))
    }

    /// Announces that this rank is about to sleep: afterwards call [`advance`](SharedSegment::advance) once more, and
    /// if that is pending and what was announced [still holds](SharedSegment::is_armed), sleep until the request
    /// has ended. `None`: it must not sleep, because only polling gets on, or because somebody has written over what
    /// others wait for, which is looked at here. Announcing again what was announced is cheap.
    pub fn arm(&mut self, pml: &mut Pml) -> Option<RequestId> {
        self.spoilt = self.mailbox.overwritten(&self.shared.mailboxes());
        if self.spoilt.is_some() {
            return None;
        }
        let (going, mut cx) = self.parts();
        let going = going?;
        let awaited = going.awaited(&mut cx)?;
        going.sleeps(&cx);
        let by = (self.subgroup.comm(), self.wake_tag);
        let request = act::wake_request(pml, by, self.wake_request)?;
        let is_new = self.wake_request.replace(request) != Some(request);
        if is_new || self.asleep != Some(awaited) {
            self.asleep = self.mailbox.arm(&self.shared.mailboxes(), awaited).then_some(awaited);
            self.asleep?;
        }
        Some(request)
    }

    /// The process that this rank sleeps for.
    #[must_use]
    pub fn awaits(&self) -> Option<u32> {
        let (Awaited::Entry(local_rank) | Awaited::Reader(local_rank)) = self.asleep?;
        self.subgroup.process(local_rank)
    }

    /// Whether what this rank has announced is still what it waits for: else it is not woken.
    #[must_use]
    pub fn is_armed(&mut self) -> bool {
        let announced = self.asleep;
        let (going, mut cx) = self.parts();
        let awaited = going.and_then(|going| going.awaited(&mut cx));
        announced.is_some() && announced == awaited
    }

    /// This rank has no part in a collective, because its arguments were refused: ranks that need something of it learn
    /// that ([`CollError::WentOn`]). `number` as for [`begin`](SharedSegment::begin); in the segment of a host as for
    /// [`advance_with`](super::Executor::advance_with).
    pub fn refuse(&mut self, number: u64, pml: &mut Pml) {
        let next = number.saturating_add(1);
        let next = if self.is_whole() { next } else { next.saturating_mul(SHARES_MAX) };
        self.pass(next, pml);
    }

    /// This rank's place among ranks that may share a GPU. All ranks give the same settings. One of a segment at most
    /// is used; `None`: there are too many ranks, or the segment is that of one host of several.
    #[must_use]
    pub fn hyperq(&self, settings: crate::hyperq::Settings) -> Option<HyperQ> {
        let comm = self.is_whole().then(|| self.subgroup.comm().clone())?;
        Some(HyperQ::new(self.shared.control()?, comm, settings))
    }

    /// Gives up what it has with the endpoint; for a communicator that is freed.
    pub fn close(&mut self, pml: &mut Pml) {
        if let Some(request) = self.wake_request.take() {
            // It may have ended.
            let _ = pml.cancel_recv(request);
            let _ = pml.release(request);
        }
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "begins collectives")]
mod tests;
