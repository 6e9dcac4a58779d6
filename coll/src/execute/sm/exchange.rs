//! Exchanges: gatherv, scatterv, alltoallv, alltoallw, and collectives among neighbours. Only sender and receiver know
//! how many bytes go between them, so the sender writes that down, and the receiver checks it.
//!
//! ```text
//! expose     pack ─▶ cells of the own slot, one for each receiver; or, if that is little, the own entry
//! gather     read the entries of ranks that send something to this rank, and what they say of it
//! collect    unpack the own cell of each sender's slot, or what lay in its entry
//! ```
//!
//! Whether a sender's bytes go with its entry or through its slots is its own affair ([`super::exchange_plan`]): its
//! entry says so. Each rank goes through as many fragments as it sends or gets. It waits for nobody of whom it expects
//! nothing; its own slots are free again when their readers are further, or done. Of ranks under way, one in the
//! earliest fragment waits for none that is later, so all get on.
//!
//! What a rank sends to itself goes at once, if it is plain memory. If peers can map that, or read it by the kernel,
//! and it is long, they read it where it lies ([`super::read_in_place`]), and there is but one fragment. The exchange
//! ends when they have read it.

mod header;

use gapless_bml::{Bml, Mapping, RemoteKey};
use gapless_sync::mailboxes::{Moment, Readers};

use super::act::Source;
use super::buffers::UserBuffers;
use super::exchange_plan::{self, Cell, ExchangePlan, window};
use super::long_plan::{SlotPiece, done_step, exposed_step};
use super::read_in_place::{self, DirectBuffer};
use super::short_plan::LONG;
use super::slots::{Filled, Slots};
use super::state_machine::{LongProgress, Next, SmStage, StateMachine, StepResult};
use super::{AT_ONCE_MAX, SmContext, single_copy};
use crate::execute::act::Tools;

/// An exchange that is under way.
#[derive(Debug)]
pub(super) struct Exchange {
    /// The first: with it ends what engines do.
    progress: LongProgress,
    plan: ExchangePlan,
    buffers: UserBuffers,
    /// How many fragments there are for this rank; known when it has met the ranks that send to it.
    fragments: u64,
    /// Where what each rank sends to this one lies, as far as it was met.
    met: Box<[Option<Lies>]>,
    /// Whether what this rank sends is plain memory that stays as it is.
    is_plain: bool,
    /// Whether others read what this rank sends where it lies.
    is_direct: bool,
    /// Whether others read what this rank sends by the kernel.
    by_single_copy: bool,
}

/// Where what a rank sends to this one lies.
#[derive(Clone, Debug)]
enum Lies {
    /// The bytes have come with the rank's entry, and were copied from there.
    Inline,
    /// In a cell of the rank's slots, of which `first` is the first.
    Slots { first: usize, cell: Cell },
    /// In the rank's buffer, which this one has mapped.
    Direct { mapping: Mapping },
    /// In the rank's buffer, which the kernel reads.
    SingleCopy { key: RemoteKey },
}

impl Lies {
    fn is_in_its_buffer(&self) -> bool {
        matches!(self, Lies::Direct { .. } | Lies::SingleCopy { .. })
    }
}

impl StateMachine for Exchange {
    fn progress(&self) -> &LongProgress {
        &self.progress
    }

    fn progress_mut(&mut self) -> &mut LongProgress {
        &mut self.progress
    }

    /// Moves what this rank sends to itself, and packs what goes with the entry.
    fn begin(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> Next {
        if self.plan.readers().is_some() && !cx.has_room(tools.pml) {
            return None;
        }
        let ranks = self.met.len();
        if (0..ranks).any(|it| self.plan.into.bytes(it) >= single_copy::BYTES_MIN) {
            single_copy::announce_reads(cx, tools.pml.bml_mut());
        }
        if self.is_plain {
            for (block, range, piece) in self.plan.own() {
                let bytes = 0..range.end - range.start;
                let Some(region) = self.buffers.block(block, range) else { continue };
                self.progress.take(&self.buffers, &piece, Source::own(region, bytes), tools);
            }
        }
        if !self.plan.is_inline() {
            (self.is_direct, self.by_single_copy) = self.offer(cx, tools.pml.bml_mut());
            return Some(SmStage::Waiting);
        }
        for piece in self.plan.inline_pieces() {
            let packed =
                cx.private.fill_entry(&self.buffers, &piece, tools, &mut self.progress.work);
            self.progress.work.started(packed);
        }
        Some(SmStage::Exposing)
    }

    /// Fills the slot, once it is free, if there is something left to send.
    fn expose(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> StepResult {
        if self.progress.fragment >= self.sends() {
            return Ok(Some(SmStage::Exposing));
        }
        let own = (cx.local_rank(), self.progress.slot(self.progress.first));
        let filled = Filled {
            readers: self.plan.readers().unwrap_or(Readers::One(cx.local_rank())),
            round: self.progress.round,
            until: Moment::new(self.progress.round, done_step(self.progress.fragment)),
            others_write: false,
        };
        if !cx.claim(own.1, filled, tools.pml)? {
            return Ok(None);
        }
        if self.progress.fragment == 0 {
            let entries = self.directory();
            self.progress.work.started(cx.shared.write_directory(own, entries.as_flattened()));
        }
        for piece in self.plan.input(self.progress.fragment).filter(|_| !self.is_direct) {
            let packed = cx.shared.fill(&self.buffers, &piece, own, tools, &mut self.progress.work);
            self.progress.work.started(packed);
        }
        Ok(Some(SmStage::Exposing))
    }

    fn report_exposed(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> SmStage {
        if self.progress.fragment > 0 {
            if self.progress.fragment < self.sends() {
                self.progress.report(cx, tools, exposed_step(self.progress.fragment));
            }
            return SmStage::Collecting;
        }
        self.progress.publish_first();
        if let Some(readers) = self.plan.readers() {
            let entry = self.write_entry(cx.private);
            cx.mailbox.publish(&cx.mailboxes, LONG, entry, readers);
            cx.wake(tools.pml, readers);
        }
        SmStage::Gathering
    }

    /// Reads the entries of all that send something to this rank.
    fn gather(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> StepResult {
        while self.progress.at < self.met.len() {
            let local_rank = self.progress.turn(cx);
            let expected = self.plan.into.bytes(local_rank);
            if local_rank != cx.local_rank() && expected > 0 {
                let Some(flag) = cx.entry(tools.pml, local_rank)? else { return Ok(None) };
                self.met[local_rank] = Some(self.read_entry(local_rank, flag.kind, cx, tools)?);
            }
            self.progress.at += 1;
        }
        let fragments = self.met.iter().enumerate().map(|(local_rank, lies)| match lies {
            Some(Lies::Slots { cell, .. }) => self.plan.into.bytes(local_rank).div_ceil(cell.step),
            Some(Lies::Inline | Lies::Direct { .. } | Lies::SingleCopy { .. }) => 1,
            None => 0,
        });
        self.fragments = fragments.max().unwrap_or(0).max(self.sends()).max(1);
        self.progress.at = 0;
        Ok(Some(SmStage::Collecting))
    }

    fn collect(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> StepResult {
        let mut read_at_once = 0;
        while self.progress.at < self.met.len() {
            let local_rank = self.progress.turn(cx);
            let expected = self.plan.into.bytes(local_rank);
            let lies = match &self.met[local_rank] {
                None if local_rank == cx.local_rank() => self.own_cell(),
                lies => lies.clone(),
            };
            match lies {
                Some(Lies::Inline) if self.progress.fragment == 0 => {
                    for piece in self.plan.output(local_rank, 0..expected, 0) {
                        let bytes = piece.in_slot();
                        let source = match local_rank == cx.local_rank() {
                            true => Source::in_entry(cx.private, self.plan.own_in_entry(), bytes),
                            false => Source::kept(cx.private, local_rank, bytes),
                        };
                        self.progress.take(&self.buffers, &piece, source, tools);
                    }
                }
                Some(Lies::Slots { first, cell }) => {
                    let window = window(self.progress.fragment, cell.step, expected);
                    if !window.is_empty() && local_rank != cx.local_rank() {
                        let step = exposed_step(self.progress.fragment);
                        if !self.progress.wait((local_rank, step), cx, tools)? {
                            return Ok(None);
                        }
                    }
                    let slot = (local_rank, self.progress.slot(first));
                    for piece in self.plan.output(local_rank, window, cell.at) {
                        let source = Source::slot(cx.shared, slot, piece.in_slot());
                        self.progress.take(&self.buffers, &piece, source, tools);
                    }
                }
                Some(Lies::Direct { mapping }) if self.progress.fragment == 0 => {
                    for piece in self.plan.output(local_rank, 0..expected, 0) {
                        let source = Source::mapped(&mapping, piece.in_slot());
                        self.progress.take(&self.buffers, &piece, source, tools);
                    }
                }
                Some(Lies::SingleCopy { key }) if self.progress.fragment == 0 => {
                    if read_at_once > AT_ONCE_MAX {
                        return Ok(None);
                    }
                    let process = cx.subgroup.process(local_rank).unwrap_or(u32::MAX);
                    let pieces = self.plan.output(local_rank, 0..expected, 0);
                    let key = (process, &key, |piece: &SlotPiece| piece.at);
                    match self.progress.read_single_copy(&self.buffers, pieces, key, tools) {
                        Ok(true) => {}
                        Ok(false) => return Ok(None),
                        Err(unread) => {
                            return Err(cx.unread(
                                local_rank,
                                unread,
                                self.invalid_reads(cx),
                                tools.pml,
                            ));
                        }
                    }
                    read_at_once += expected;
                }
                _ => {}
            }
            self.progress.at += 1;
        }
        Ok(Some(SmStage::Unpacking))
    }

    fn next_fragment(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> SmStage {
        self.progress.fragment += 1;
        if self.progress.fragment < self.fragments {
            if self.progress.fragment >= self.sends() {
                // Who still sends says so with the next fragment.
                self.progress.report(cx, tools, done_step(self.progress.fragment - 1));
            }
            return SmStage::Waiting;
        }
        self.progress.end(cx, tools);
        SmStage::AwaitingReaders
    }

    fn is_reader(&self, local_rank: usize) -> bool {
        self.is_direct && self.plan.is_receiver(local_rank)
    }

    fn met(&self, local_rank: usize) -> Option<bool> {
        Some(self.met.get(local_rank)?.as_ref()?.is_in_its_buffer())
    }

    /// The next rank, whose bytes come in a cell or an entry.
    fn source(&self, cx: &SmContext<'_>) -> Option<(usize, u32)> {
        let at = (self.progress.turn(cx), exposed_step(self.progress.fragment));
        (self.progress.at < self.met.len()).then_some(at)
    }
}

impl Exchange {
    /// An exchange that begins in this round. `is_plain`: what is sent is plain memory, and what goes to this rank
    /// itself has no cell.
    pub(super) fn new(
        plan: ExchangePlan,
        (buffers, is_plain): (UserBuffers, bool),
        (ranks, round): (usize, u64),
        slots: &Slots,
    ) -> Exchange {
        Exchange {
            progress: LongProgress::new(round, slots.next),
            plan,
            buffers,
            fragments: 0,
            met: (0..ranks).map(|_| None).collect(),
            is_plain,
            is_direct: false,
            by_single_copy: false,
        }
    }

    /// Whether others read what this rank sends where it lies, and whether by the kernel: it writes a key for each that
    /// does.
    fn offer(&self, cx: &SmContext<'_>, bml: &mut Bml) -> (bool, bool) {
        let ranks = self.met.len();
        let receivers = || self.plan.receivers();
        let bytes: u64 = receivers().map(|it| self.plan.out.bytes(it)).sum();
        let is_worth = |each: u64| {
            let least = each.saturating_mul(receivers().count() as u64).max(1);
            self.is_plain && ranks <= read_in_place::RANKS_MAX && bytes >= least
        };
        let region = |local_rank: usize| {
            let (block, range) = self.plan.only_block(local_rank)?;
            self.buffers.block(block, range)
        };
        let mut is_mapped = |local_rank: usize| {
            read_in_place::write_key(
                region(local_rank)?,
                (DirectBuffer::Input, local_rank),
                cx,
                bml,
            )
        };
        if is_worth(read_in_place::BYTES_MIN) && receivers().all(|it| is_mapped(it).is_some()) {
            return (true, false);
        }
        let mut by_single_copy = |local_rank: usize| {
            let readable =
                region(local_rank).filter(|_| single_copy::can_read_us(local_rank, cx))?;
            single_copy::write_key(readable, local_rank, cx, bml)
        };
        let by_single_copy = is_worth(single_copy::least(receivers().count()))
            && receivers().all(|it| by_single_copy(it).is_some());
        (by_single_copy, by_single_copy)
    }

    /// Fragments of what this rank sends.
    fn sends(&self) -> u64 {
        if self.is_direct { 1 } else { self.plan.sends }
    }

    /// The directory.
    fn directory(&self) -> Vec<[u8; exchange_plan::DIRECTORY_ENTRY_BYTES]> {
        let entry = |local_rank: usize| match self.is_direct {
            true => self.plan.direct_entry(local_rank),
            false => self.plan.entry(local_rank).write(),
        };
        (0..self.met.len()).map(entry).collect()
    }

    /// Where what this rank sends to itself lies, if that does not go at once.
    fn own_cell(&self) -> Option<Lies> {
        match self.is_plain {
            true => None,
            false if self.plan.is_inline() => Some(Lies::Inline),
            false => Some(Lies::Slots { first: self.progress.first, cell: self.plan.own_cell()? }),
        }
    }
}
