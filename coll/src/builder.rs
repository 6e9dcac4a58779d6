//! The builder of a schedule: algorithms say what happens in some order that is right, the builder finds what must
//! wait for what.
//!
//! Dependencies follow from the bytes: a step waits for the last step that wrote what it reads, and for those that
//! read or wrote what it writes. So an algorithm that runs in segments is pipelined without a word, and phases are
//! joined by calling one after the other. Only messages without bytes need dependencies of their own.
//!
//! Slots follow from the order: the k-th send to a peer is message k, and so is the k-th receive at its other end.
//! Both ends must leave out the same messages; those without bytes are left out here. Tasks are counted likewise.
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use crate::area::{Area, segments};
use crate::schedule::{Action, Buffer, Place, Row, SCRATCH_ALIGN, Schedule};
use crate::terms::Terms;
use crate::together::Together;

/// Up to how many bytes a piece are packed into one message, if a message has several pieces. Longer pieces go as
/// messages of their own: another message costs less than copying them twice.
pub(crate) const PACK_MAX: u64 = 4096;

pub(crate) struct Builder {
    schedule: Schedule,
    /// Who touched which bytes of the three buffers last.
    touched: [Touched; 3],
    /// Numbers of the next message to and from each peer.
    slots: HashMap<usize, (u32, u32)>,
    /// Numbers of the next task at each peer, and of the next one that it puts here.
    tasks: HashMap<usize, (u32, u32)>,
    /// By which step each peer's being ready for tasks became known.
    ready: HashMap<usize, u32>,
    /// Messages without bytes that were received so far.
    heard: Vec<u32>,
    /// The last step in common with others of the subgroup.
    shared: Option<u32>,
    /// What the next step waits for besides, and what all do.
    wait: Vec<u32>,
    gate: Range<usize>,
    /// Longest message in bytes; 0: any.
    segment: u64,
}

impl Builder {
    pub(crate) fn new((rank, ranks): (usize, usize), terms: Terms, send: Row, recv: Row) -> Self {
        let unit = terms.unit;
        Self {
            schedule: Schedule {
                rank,
                ranks,
                unit,
                send,
                recv,
                scratch: 0,
                actions: Vec::new(),
                after: Vec::new(),
                bounds: Vec::new(),
                subgroup: None,
                terms,
            },
            touched: Default::default(),
            slots: HashMap::new(),
            tasks: HashMap::new(),
            ready: HashMap::new(),
            heard: Vec::new(),
            shared: None,
            wait: Vec::new(),
            gate: 0..0,
            segment: 0,
        }
    }

    pub(crate) fn finish(self) -> Schedule {
        self.schedule
    }

    /// The whole send buffer.
    pub(crate) fn send_buffer(&self) -> Area {
        Area::new(Buffer::Send, 0, self.schedule.send.len())
    }

    /// The whole receive buffer.
    pub(crate) fn recv_buffer(&self) -> Area {
        Area::new(Buffer::Recv, 0, self.schedule.recv.len())
    }

    /// Packed length of an element of a reduction, in bytes.
    pub(crate) fn unit(&self) -> u64 {
        self.schedule.unit
    }

    /// Whether the operation combines elements.
    pub(crate) fn combines(&self) -> bool {
        self.schedule.terms.operation.reduces()
    }

    /// From now on messages are cut into segments of about this many bytes, in whole elements; 0: they are not cut.
    pub(crate) fn set_segment(&mut self, segment: u64) {
        self.segment = segment;
    }

    /// Scratch memory.
    pub(crate) fn scratch(&mut self, len: u64) -> Area {
        let at = self.schedule.scratch.next_multiple_of(SCRATCH_ALIGN);
        if len > 0 {
            self.schedule.scratch = at + len;
        }
        Area::new(Buffer::Scratch, at, len)
    }

    /// Sends an area, in segments.
    pub(crate) fn send(&mut self, to: usize, from: Area) {
        for range in segments(from.len, self.unit(), self.segment) {
            let from = from.cut(range);
            let slot = self.next_slot(to, true);
            let from_place = self.place(from);
            self.push(Action::Send { to, slot, from: from_place }, &[from], None);
        }
    }

    /// Receives into an area, in segments.
    pub(crate) fn receive(&mut self, from: usize, into: Area) {
        for range in segments(into.len, self.unit(), self.segment) {
            let into = into.cut(range);
            let slot = self.next_slot(from, false);
            let into_place = self.place(into);
            self.push(Action::Receive { from, slot, into: into_place }, &[], Some(into));
        }
    }

    /// Sends a whole area as a message with a number of its own. Such messages do not mix with others.
    pub(crate) fn send_slot(&mut self, to: usize, slot: u32, from: Area) {
        if !from.is_empty() {
            let place = self.place(from);
            self.push(Action::Send { to, slot, from: place }, &[from], None);
        }
    }

    /// Receives a message with a number of its own.
    pub(crate) fn receive_slot(&mut self, from: usize, slot: u32, into: Area) {
        if !into.is_empty() {
            let place = self.place(into);
            self.push(Action::Receive { from, slot, into: place }, &[], Some(into));
        }
    }

    pub(crate) fn copy(&mut self, from: Area, into: Area) {
        debug_assert_eq!(from.len, into.len);
        if from.is_empty() || from == into {
            return;
        }
        let action = Action::Copy { from: self.place(from), into: self.place(into) };
        self.push(action, &[from], Some(into));
    }

    /// `into = sources[0] op sources[1] op …`, segment by segment. One source is copied.
    pub(crate) fn reduce(&mut self, sources: &[Area], into: Area) {
        if let [only] = sources {
            return self.copy(*only, into);
        }
        for range in segments(into.len, self.unit(), self.segment) {
            let parts: Vec<_> = sources.iter().map(|source| source.cut(range.clone())).collect();
            let places = parts.iter().map(|part| self.place(*part)).collect();
            let into = into.cut(range);
            let action = Action::Reduce { sources: places, into: self.place(into) };
            self.push(action, &parts, Some(into));
        }
    }

    /// Sends a message without bytes, when all such messages named before have arrived.
    pub(crate) fn tell(&mut self, to: usize) {
        let slot = self.next_slot(to, true);
        self.wait.extend_from_slice(&self.heard);
        self.push(Action::Send { to, slot, from: Place::NOTHING }, &[], None);
    }

    /// Receives a message without bytes.
    pub(crate) fn hear(&mut self, from: usize) {
        let slot = self.next_slot(from, false);
        self.push(Action::Receive { from, slot, into: Place::NOTHING }, &[], None);
        self.heard.push(self.last());
    }

    /// Tells a peer that it may put tasks that combine into parts of this area: when whatever has touched it has ended.
    /// What follows on the area waits for this.
    pub(crate) fn tell_ready(&mut self, to: usize, into: Area) {
        let slot = self.next_slot(to, true);
        self.push(Action::Send { to, slot, from: Place::NOTHING }, &[], Some(into));
    }

    /// Waits until a peer is ready: from now on tasks at it wait for this.
    pub(crate) fn hear_ready(&mut self, from: usize) {
        let slot = self.next_slot(from, false);
        self.push(Action::Receive { from, slot, into: Place::NOTHING }, &[], None);
        let step = self.last();
        self.ready.insert(from, step);
    }

    /// Puts tasks at a peer that combine an area into one there, in segments. The peer has said that it is ready.
    pub(crate) fn put(&mut self, to: usize, from: Area) {
        for range in segments(from.len, self.unit(), self.segment) {
            let from = from.cut(range);
            let slot = next(&mut self.tasks.entry(to).or_default().0);
            debug_assert!(self.ready.contains_key(&to), "nobody puts unasked");
            self.wait.extend(self.ready.get(&to));
            let place = self.place(from);
            self.push(Action::Put { to, slot, from: place }, &[from], None);
        }
    }

    /// Waits for the tasks that a peer puts here, in segments. It was told that it may.
    pub(crate) fn task(&mut self, from: usize, into: Area) {
        for range in segments(into.len, self.unit(), self.segment) {
            let into = into.cut(range);
            let slot = next(&mut self.tasks.entry(from).or_default().1);
            let place = self.place(into);
            self.push(Action::Task { from, slot, into: place }, &[into], Some(into));
        }
    }

    /// Does something together with the others of a subgroup, to which this rank belongs, after what it has done
    /// together with them before. Those of one schedule have one subgroup. Empty areas count as none; where all are
    /// empty, nothing is done.
    pub(crate) fn share(
        &mut self,
        subgroup: &[usize],
        (what, lead): (Together, usize),
        (from, into): (Option<Area>, Option<Area>),
    ) {
        let [from, into] = [from, into].map(|area| area.filter(|area| !area.is_empty()));
        if what != Together::Meet && from.or(into).is_none() {
            return;
        }
        let subgroup = self.schedule.subgroup.get_or_insert_with(|| Arc::from(subgroup));
        debug_assert!(subgroup.contains(&lead) && subgroup.contains(&self.schedule.rank));
        let place = |area: Option<Area>| area.map_or(Place::NOTHING, |area| self.place(area));
        let action = Action::Share { what, lead, from: place(from), into: place(into) };
        self.wait.extend(self.shared);
        if what == Together::Meet {
            self.wait.extend_from_slice(&self.heard);
        }
        self.push(action, from.as_slice(), into);
        let step = self.last();
        self.shared = Some(step);
        if what == Together::Meet {
            self.heard.push(step);
        }
    }

    /// Sends areas whose lengths and number the other end knows: packed into one message if they are short.
    pub(crate) fn send_pieces(&mut self, to: usize, pieces: &[Area]) {
        let total: u64 = pieces.iter().map(|piece| piece.len).sum();
        if separate(total, pieces.len()) {
            pieces.iter().for_each(|piece| self.send(to, *piece));
        } else if let Some(whole) = joined(pieces) {
            self.send(to, whole);
        } else {
            let packed = self.scratch(total);
            self.pack(pieces, packed);
            self.send(to, packed);
        }
    }

    /// Receives what [`send_pieces`](Self::send_pieces) sends.
    pub(crate) fn receive_pieces(&mut self, from: usize, pieces: &[Area]) {
        let total: u64 = pieces.iter().map(|piece| piece.len).sum();
        if separate(total, pieces.len()) {
            pieces.iter().for_each(|piece| self.receive(from, *piece));
        } else if let Some(whole) = joined(pieces) {
            self.receive(from, whole);
        } else {
            let packed = self.scratch(total);
            self.receive(from, packed);
            self.unpack(packed, pieces);
        }
    }

    /// Copies from place to place, in as few steps as places that follow each other allow.
    pub(crate) fn copy_all(&mut self, pairs: impl IntoIterator<Item = (Area, Area)>) {
        let mut last: Option<(Area, Area)> = None;
        for (from, into) in pairs {
            let longer = last.and_then(|last| Some((last.0.join(from)?, last.1.join(into)?)));
            if let (None, Some((from, into))) = (longer, last) {
                self.copy(from, into);
            }
            last = longer.or(Some((from, into)));
        }
        if let Some((from, into)) = last {
            self.copy(from, into);
        }
    }

    /// Copies areas one behind the other.
    pub(crate) fn pack(&mut self, pieces: &[Area], packed: Area) {
        self.copy_all(one_behind_the_other(pieces, packed));
    }

    fn unpack(&mut self, packed: Area, pieces: &[Area]) {
        self.copy_all(one_behind_the_other(pieces, packed).map(|(piece, part)| (part, piece)));
    }

    /// How many steps there are.
    pub(crate) fn len(&self) -> usize {
        self.schedule.actions.len()
    }

    /// From now on, every step also waits for these steps.
    pub(crate) fn set_gate(&mut self, steps: Range<usize>) {
        self.gate = steps;
    }

    fn last(&self) -> u32 {
        index(self.schedule.actions.len() - 1)
    }

    fn next_slot(&mut self, peer: usize, out: bool) -> u32 {
        debug_assert_ne!(peer, self.schedule.rank, "no messages to oneself");
        let (to, from) = self.slots.entry(peer).or_default();
        next(if out { to } else { from })
    }

    fn place(&self, area: Area) -> Place {
        let row = match area.buffer {
            Buffer::Send => &self.schedule.send,
            Buffer::Recv => &self.schedule.recv,
            Buffer::Scratch => {
                return Place { buffer: area.buffer, block: 0, start: area.at, len: area.len };
            }
        };
        debug_assert!(area.at + area.len <= row.len(), "{area:?} of {row:?}");
        let (block, start) = row.locate(area.at);
        Place { buffer: area.buffer, block, start, len: area.len }
    }

    fn push(&mut self, action: Action, reads: &[Area], writes: Option<Area>) {
        let step = index(self.schedule.actions.len());
        let mut after = std::mem::take(&mut self.wait);
        after.extend(self.gate.clone().map(index));
        for area in reads {
            self.touched[area.buffer as usize].read(*area, step, &mut after);
        }
        if let Some(area) = writes {
            debug_assert_ne!(area.buffer, Buffer::Send, "the send buffer is only read");
            self.touched[area.buffer as usize].write(area, step, &mut after);
        }
        after.sort_unstable();
        after.dedup();
        after.retain(|other| *other != step);
        self.schedule.prune(&mut after);
        self.schedule.actions.push(action);
        self.schedule.after.extend_from_slice(&after);
        self.schedule.bounds.push(self.schedule.after.len());
        after.clear();
        self.wait = after;
    }
}

impl Schedule {
    /// Leaves out dependencies that follow at once from others. A step's own are looked for by halves: a reduction may
    /// have as many as there are ranks.
    fn prune(&self, after: &mut Vec<u32>) {
        const LOOK_AT: usize = 16;
        if after.len() < 2 || after.len() > LOOK_AT {
            return;
        }
        let all = after.clone();
        let waits = |other: u32, step: &u32| self.after(other as usize).binary_search(step).is_ok();
        after.retain(|step| !all.iter().any(|other| waits(*other, step)));
    }
}

/// A number, and the next one in its place.
fn next(number: &mut u32) -> u32 {
    *number += 1;
    *number - 1
}

/// Pieces, and their parts of a packed area.
fn one_behind_the_other(pieces: &[Area], packed: Area) -> impl Iterator<Item = (Area, Area)> {
    let mut at = 0;
    pieces.iter().map(move |piece| {
        at += piece.len;
        (*piece, packed.cut(at - piece.len..at))
    })
}

/// Whether the pieces of a message go as messages of their own.
fn separate(total: u64, pieces: usize) -> bool {
    pieces > 1 && total / pieces as u64 > PACK_MAX
}

/// The pieces as one area, if they lie one behind the other.
fn joined(pieces: &[Area]) -> Option<Area> {
    let (first, rest) = pieces.split_first()?;
    rest.iter().try_fold(*first, |whole, piece| whole.join(*piece))
}

/// Steps are numbered with 32 bits, which is half of what a dependency costs with 64.
fn index(step: usize) -> u32 {
    u32::try_from(step).expect("a schedule has less than 2^32 steps")
}

/// Who touched which bytes of a buffer last. Keys are where stretches begin; bytes between stretches are untouched.
#[derive(Default)]
struct Touched {
    stretches: BTreeMap<u64, Stretch>,
}

#[derive(Clone)]
struct Stretch {
    end: u64,
    writer: Option<u32>,
    readers: Vec<u32>,
}

impl Touched {
    fn read(&mut self, area: Area, step: u32, after: &mut Vec<u32>) {
        let (start, end) = (area.at, area.at + area.len);
        self.split(start);
        self.split(end);
        let mut at = start;
        let mut gaps = Vec::new();
        for (from, stretch) in self.stretches.range_mut(start..end) {
            if at < *from {
                gaps.push((at, *from));
            }
            at = stretch.end;
            after.extend(stretch.writer);
            stretch.readers.push(step);
        }
        if at < end {
            gaps.push((at, end));
        }
        for (from, end) in gaps {
            self.stretches.insert(from, Stretch { end, writer: None, readers: vec![step] });
        }
    }

    fn write(&mut self, area: Area, step: u32, after: &mut Vec<u32>) {
        let (start, end) = (area.at, area.at + area.len);
        if start == end {
            return;
        }
        self.split(start);
        self.split(end);
        while let Some((from, _)) = self.stretches.range(start..end).next() {
            let from = *from;
            if let Some(old) = self.stretches.remove(&from) {
                after.extend(old.writer);
                after.extend(old.readers);
            }
        }
        self.stretches.insert(start, Stretch { end, writer: Some(step), readers: Vec::new() });
    }

    /// Makes `at` a border, if it lies within a stretch.
    fn split(&mut self, at: u64) {
        let Some((from, stretch)) = self.stretches.range_mut(..at).next_back() else {
            return;
        };
        if *from < at && at < stretch.end {
            let upper = stretch.clone();
            stretch.end = at;
            self.stretches.insert(at, upper);
        }
    }
}
