//! How ranks make a plan together. Whoever refuses goes on to take part, so that all get an error.

use super::note::{BlockNote, Terms};
use super::work::{self, Addresses, BlockEnd, Edge, Unequal};
use super::{Called, Planned, StreamBlock, StreamBuffer, StreamComm, StreamPlan};
use crate::stream::error::StreamError;
use crate::stream::{StreamMemory, StreamRanks, exchange};
use gapless_engine::Typed;
use gapless_kernels::peers::layouts::{LayoutTable, LayoutsArgs};
use gapless_kernels::peers::{self, RANKS_MAX};
use gapless_mem::{DeviceError, Outstanding, Region};

/// A block, and whom it belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given<'l> {
    pub(super) rank: u32,
    /// Tells blocks of the same two ranks apart.
    pub(super) lane: u32,
    pub(super) block: StreamBlock<'l>,
}

/// One buffer's argument: which it is, and its blocks.
type Buffer<'l, E> = (StreamBuffer, Result<Vec<Given<'l>>, E>);

/// What a rank knows when it has heard of all others: all blocks that it has a part in.
struct Heard {
    terms: Terms,
    edges: Vec<Edge>,
}

/// Bytes that a plan aligns what it puts after each other to.
const APART: u64 = 256;

impl<R: StreamRanks> StreamComm<'_, R> {
    pub(super) fn plan(
        &mut self,
        called: Called,
        send: Buffer<'_, R::Error>,
        recv: Buffer<'_, R::Error>,
    ) -> Result<StreamPlan, R::Error> {
        let ours = self.notes(called, send, recv);
        // Whoever captures takes part, so that the others learn it.
        let captured = self.stream.is_captured().map_err(StreamError::from);
        let ours = match captured {
            Ok(false) => ours,
            Ok(true) => Err(StreamError::Captured.into()),
            Err(error) => Err(error.into()),
        };
        let theirs = self.tell(ours.as_deref().unwrap_or_default())?;
        let heard = ours.and_then(|ours| self.hear(&ours, &theirs));
        let (rank, ranks) = (self.ground.rank, self.ground.ranks);
        // How much each rank stages at each other.
        let mut fills = vec![0u64; ranks as usize];
        if let Ok(heard) = &heard {
            for (to, fill) in (0..).zip(&mut fills) {
                *fill = work::staged_bytes(&heard.edges, rank, to);
            }
        }
        let fills = self.agree(&heard, &fills)?;
        let Heard { terms, edges } = heard?;
        let fill = |from: u32, to: u32| fills[(from * ranks + to) as usize];
        let before = |from: u32, to: u32| (0..from).map(|it| fill(it, to)).sum::<u64>();
        let (mut memory, mut staged) = (Vec::new(), None);
        let mut addresses = Addresses {
            send: self.ground.registered[terms.registered[0] as usize].at,
            recv: self.ground.registered[terms.registered[1] as usize].at,
            out: [0; RANKS_MAX],
            back: [0; RANKS_MAX],
            plans: std::collections::BTreeMap::new(),
        };
        if fills.iter().any(|bytes| *bytes > 0) {
            let stage = self.allocate(before(ranks, rank).max(APART));
            let stage = self.everybody(stage)?;
            // SAFETY: it is freed when it is dropped, once peers have released it (`StreamMemory`).
            let mapped = unsafe { exchange::map_everywhere(&self.ranks, stage.region()) }?;
            for peer in 0..ranks {
                let there = mapped.at[peer as usize];
                addresses.out[peer as usize] = there.wrapping_add(before(rank, peer));
                addresses.back[peer as usize] =
                    mapped.at[rank as usize].wrapping_add(before(peer, rank));
            }
            staged = Some(mapped);
            memory.push(stage);
        }
        let plan = self.table(terms, &edges, &mut addresses, memory);
        // If this fails at some rank, all let go of the staging memory, and it is freed.
        let plan = self.everybody(plan)?;
        if let Some(mapped) = staged {
            self.keep_mapped(mapped);
        }
        self.keep(plan)
    }

    /// What this rank tells each rank.
    fn notes(
        &self,
        called: Called,
        (send, sends): Buffer<'_, R::Error>,
        (recv, recvs): Buffer<'_, R::Error>,
    ) -> Result<Vec<BlockNote>, R::Error> {
        let (sends, recvs) = (sends?, recvs?);
        let places = [self.placed("send", send)?, self.placed("recv", recv)?];
        let registered = places.map(|(index, _)| u32::try_from(index).unwrap_or(u32::MAX));
        let way = self.way.map_or(0, |way| way as u32 + 1);
        let terms = Terms { called: called as u64, registered, way };
        let note = || BlockNote { terms, sends: Vec::new(), recvs: Vec::new() };
        let mut notes: Vec<BlockNote> = (0..self.ground.ranks).map(|_| note()).collect();
        for (argument, given, (index, offset)) in
            [("send", sends, places[0]), ("recv", recvs, places[1])]
        {
            for Given { rank, lane, block } in given {
                let at = offset.saturating_add(block.displacement);
                let end = BlockEnd::of(lane, at, block.count, &block.layout.flatten());
                let fits = |end: &BlockEnd| self.is_inside(end, index, self.ground.rank);
                let end = end.filter(fits).ok_or(StreamError::Outside { argument, rank })?;
                let Some(note) = notes.get_mut(rank as usize) else { continue };
                if argument == "send" { note.sends.push(end) } else { note.recvs.push(end) }
            }
        }
        Ok(notes)
    }

    /// Whether a block lies in what a rank has registered.
    fn is_inside(&self, end: &BlockEnd, index: usize, rank: u32) -> bool {
        let Some(known) = self.ground.registered.get(index) else { return false };
        let (start, len) = (known.at[rank as usize], known.lens[rank as usize]);
        let region = Region::new(self.ground.space, start, 0, len);
        end.count == 0 || Typed::new(region, end.at, &end.layout, end.count).is_ok()
    }

    /// Tells each rank its note, and gives theirs; empty ones of those that refuse.
    fn tell(&self, notes: &[BlockNote]) -> Result<Vec<Vec<u8>>, R::Error> {
        let (rank, size) = (self.ground.rank, self.ground.ranks);
        let mut theirs = vec![Vec::new(); size as usize];
        for away in 1..size {
            let (to, from) = ((rank + away) % size, (rank + size - away) % size);
            let note = notes.get(to as usize).map(BlockNote::encode).unwrap_or_default();
            let mut len = [0u8; 8];
            let long = (note.len() as u64).to_le_bytes();
            self.ranks.sendrecv((&long, to), (&mut len, from))?;
            let mut bytes = vec![0u8; usize::try_from(u64::from_le_bytes(len)).unwrap_or(0)];
            self.ranks.sendrecv((&note, to), (&mut bytes, from))?;
            theirs[from as usize] = bytes;
        }
        Ok(theirs)
    }

    /// All blocks that this rank has a part in, matched.
    fn hear(&self, ours: &[BlockNote], theirs: &[Vec<u8>]) -> Result<Heard, R::Error> {
        let rank = self.ground.rank;
        let terms = ours[rank as usize].terms;
        let mut edges = Vec::new();
        for (peer, bytes) in (0..).zip(theirs) {
            let mine = &ours[peer as usize];
            let unequal = |from: u32, to: u32| {
                move |Unequal { sent, received }: Unequal| StreamError::LengthsDiffer {
                    from,
                    to,
                    sent,
                    received,
                }
            };
            if peer == rank {
                let found = work::pair((rank, rank), &mine.sends, &mine.recvs, self.way);
                edges.extend(found.map_err(unequal(rank, rank))?);
                continue;
            }
            if bytes.is_empty() {
                return Err(StreamError::Refused { rank: peer }.into());
            }
            let note = BlockNote::decode(bytes).filter(|note| note.terms == terms);
            let note = note.ok_or(StreamError::Differs { rank: peer })?;
            let [sent, received] = terms.registered.map(|index| index as usize);
            let inside = note.sends.iter().all(|end| self.is_inside(end, sent, peer))
                && note.recvs.iter().all(|end| self.is_inside(end, received, peer));
            if !inside {
                return Err(StreamError::Differs { rank: peer }.into());
            }
            let out = work::pair((rank, peer), &mine.sends, &note.recvs, self.way);
            edges.extend(out.map_err(unequal(rank, peer))?);
            let back = work::pair((peer, rank), &note.sends, &mine.recvs, self.way);
            edges.extend(back.map_err(unequal(peer, rank))?);
        }
        Ok(Heard { terms, edges })
    }

    /// The bytes that each rank stages at each other rank. An error at all ranks if one has an error.
    fn agree(&self, heard: &Result<Heard, R::Error>, fills: &[u64]) -> Result<Vec<u64>, R::Error> {
        let mut word = vec![u64::from(heard.is_err())];
        word.extend_from_slice(fills);
        let each = word.len();
        let all = self.ranks.allgather_words(&word)?;
        let refused = (0..).zip(all.chunks(each)).find(|(_, words)| words[0] != 0);
        match refused {
            // Its own reason comes first.
            Some((rank, _)) if heard.is_ok() => Err(StreamError::Refused { rank }.into()),
            _ => Ok(all.chunks(each).flat_map(|words| words[1..].to_vec()).collect()),
        }
    }

    /// What this rank has made, if all have.
    pub(in crate::stream) fn everybody<T>(&self, made: Result<T, R::Error>) -> Result<T, R::Error> {
        let failed = self.ranks.first_no(made.is_ok())?;
        let made = made?;
        match failed {
            Some(rank) => Err(StreamError::Refused { rank }.into()),
            None => Ok(made),
        }
    }

    pub(in crate::stream) fn allocate(&self, bytes: u64) -> Result<R::Memory, R::Error> {
        self.ranks.allocate(self.ground.space, bytes)
    }

    /// Memory with these bytes.
    fn upload(&self, bytes: &[u8]) -> Result<R::Memory, R::Error> {
        let memory = self.allocate((bytes.len() as u64).max(APART))?;
        // SAFETY: the memory is new.
        unsafe { write(&memory, bytes) }?;
        Ok(memory)
    }

    /// Uploads this rank's table, and the plans of layouts.
    fn table(
        &self,
        terms: Terms,
        edges: &[Edge],
        addresses: &mut Addresses,
        mut memory: Vec<R::Memory>,
    ) -> Result<Planned<R::Memory>, R::Error> {
        let (rank, ranks) = (self.ground.rank, self.ground.ranks);
        let too_long = |reason: String| StreamError::Unfit { reason };
        let mut plans: Vec<u8> = Vec::new();
        for (flat, described) in work::planned(edges, rank) {
            plans.resize(plans.len().next_multiple_of(16), 0);
            addresses.plans.insert(flat, plans.len() as u64);
            let plan = described.plan();
            plans.extend(plan.ok_or_else(|| too_long("a layout of too many blocks".to_owned()))?);
        }
        let plans = self.upload(&plans)?;
        for at in addresses.plans.values_mut() {
            *at = at.wrapping_add(plans.region().start());
        }
        let groups = work::groups(edges, rank, ranks, addresses);
        // Whether there is a second step is the same for all ranks: each meets each.
        let second = addresses.out[rank as usize] != 0;
        let table = LayoutTable::new(&groups, (self.ground.blocks, self.further), ranks, second);
        let table = table.map_err(|reason| too_long(reason.to_string()))?;
        let (bytes, [begins, jobs, pieces]) = table.to_bytes();
        let there = self.upload(&bytes)?;
        let start = there.region().start();
        let Terms { called, registered: [send, recv], way } = terms;
        let number = self.held.as_ref().map_or(0, |held| held.plans.len() as u64);
        let parts = [u64::MAX, called, send.into(), recv.into(), way.into(), number];
        let mut common = self.ground.args();
        common.doing = peers::doing(&parts);
        let args = LayoutsArgs {
            common,
            begins: start + begins,
            jobs: start + jobs,
            pieces: start + pieces,
            meeting: table.meeting,
            steps: table.steps(),
        };
        memory.extend([plans, there]);
        Ok(Planned { args, blocks: table.blocks(), _memory: memory })
    }
}

/// Writes the beginning of memory that is at least so long.
///
/// # Safety
/// Nothing else uses it.
pub(in crate::stream) unsafe fn write(
    memory: &impl StreamMemory,
    bytes: &[u8],
) -> Result<(), DeviceError> {
    if bytes.is_empty() {
        return Ok(());
    }
    let there = memory.region().sub(0, bytes.len() as u64)?;
    // SAFETY: the caller's promise; both live until the copy has ended (`Outstanding`).
    let copied = unsafe { memory.device().copy(there, Region::of(bytes), &[]) }?;
    Outstanding::new(copied).wait()
}
