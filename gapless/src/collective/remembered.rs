//! What a communicator remembers of its last collectives through shared memory. To describe a call anew takes a
//! fraction of a microsecond; to find that it is like an earlier one takes less, and programs call the same few in
//! turn.

use super::buffers::Buffer;
use super::prepare::{Checked, RankPlace, Uses};
use super::{Collective, Root};
use gapless_coll::choose::shared_rule_for;
use gapless_coll::runtime::{Contiguous, OwnedCall};
use gapless_coll::sm::CallPlan;
use gapless_coll::{HyperQ, Operation};
use gapless_dtype::{Layout, LayoutId, WeakLayout};
use gapless_engine::{Op, ReduceOp, Typed};
use gapless_mem::Region;

/// How many are kept.
const KEPT_MAX: usize = 16;

/// The last calls.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    all: Vec<RememberedCall>,
    /// Where the last one was found. The next one is most likely there, or behind it.
    at: usize,
    /// The last one that is not compared.
    odd: Option<KnownCall>,
}

#[derive(Debug)]
struct RememberedCall {
    key: Key,
    known_call: KnownCall,
    /// So that no other layouts get their names.
    _layouts: [Option<WeakLayout>; 2],
}

/// What a description says, but for where the memory is. Whatever is checked and found out depends on this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    operation: Operation,
    root: Root,
    op: Option<ReduceOp>,
    send: BufferShape,
    recv: BufferShape,
}

/// A buffer that is not divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BufferShape {
    Nothing,
    InPlace,
    /// So many instances of a layout, or bytes; where they are.
    Whole(Option<LayoutId>, u64, Where),
}

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// In one piece, where the CPU reaches it; or there is none.
    Plain,
    /// In several, or with gaps, there.
    Spread,
    /// On a device.
    Device,
}

/// Where a buffer lies, and its memory if that is plain.
#[inline]
pub(super) fn lies(buffer: &Buffer) -> (Where, Option<Region>) {
    let reached = || buffer.parts().iter().all(|typed| typed.space().cpu_accessible());
    match buffer {
        Buffer::Nothing | Buffer::InPlace => (Where::Plain, None),
        _ if !reached() => (Where::Device, None),
        Buffer::Whole(typed) => {
            let region = typed.as_contiguous().filter(|region| region.as_ptr().is_some());
            (if region.is_some() { Where::Plain } else { Where::Spread }, region)
        }
        Buffer::Each(_) => (Where::Spread, None),
    }
}

/// What a buffer argument is, and its memory if that is plain; `None`: it is divided, or pages.
#[inline]
fn shape(buffer: &Buffer) -> Option<(BufferShape, Option<Region>)> {
    match buffer {
        Buffer::Nothing => Some((BufferShape::Nothing, None)),
        Buffer::InPlace => Some((BufferShape::InPlace, None)),
        Buffer::Whole(typed) if typed.as_pages().is_some() => None,
        Buffer::Whole(typed) => {
            let (lies, region) = lies(buffer);
            let layout = typed.own_layout().map(Layout::id);
            Some((BufferShape::Whole(layout, typed.count(), lies), region))
        }
        Buffer::Each(_) => None,
    }
}

impl Key {
    /// `None`: there are lists to compare, pages, or a user's function.
    #[inline]
    fn new(of: &Collective<'_>) -> Option<(Key, Contiguous)> {
        let op = match &of.op {
            None => None,
            Some(Op::Predefined(op)) => Some(*op),
            Some(_) => return None,
        };
        let ((send, from), (recv, into)) = (shape(&of.send)?, shape(&of.recv)?);
        let key = Key { operation: of.operation, root: of.root, op, send, recv };
        of.counts.is_empty().then_some((key, (from, into)))
    }
}

/// A collective that may begin at once if shared memory of all ranks is at rest.
#[derive(Clone, Debug)]
pub(super) struct KnownCall {
    pub(super) known: CallPlan,
    /// As [`Prepared::asks`](super::prepare::Prepared).
    pub(super) asks: bool,
    pub(super) call: OwnedCall,
    pub(super) uses: Uses,
}

impl Collective<'_> {
    /// What shared memory of all ranks would do, if all is well, it goes there, and no user's function has a say.
    pub(super) fn known_call(&self, place: &RankPlace<'_>) -> Option<KnownCall> {
        // Pages are turned into layouts first.
        let pages = |buffer: &Buffer| buffer.parts().iter().any(|typed| typed.as_pages().is_some());
        if matches!(self.op, Some(Op::User(_))) || pages(&self.send) || pages(&self.recv) {
            return None;
        }
        let Checked { call: owned, combine, uses } = self.check(place).ok()?;
        let call = owned.call();
        let ranks = place.locality.ranks();
        shared_rule_for(place.table, &call, place.locality)?;
        let asks = HyperQ::asks(&place.table.hyperq, &call, ranks);
        let of = |buffer: &Buffer, uses: bool| if uses { lies(buffer).0 } else { Where::Plain };
        let lie = [of(&self.send, uses.send), of(&self.recv, uses.recv)];
        if asks && (lie.contains(&Where::Device) || !uses.on_host(&self.send, &self.recv)) {
            // Where it goes is found out with the others.
            return None;
        }
        let known = CallPlan::new(&call, (place.rank, ranks), combine, lie == [Where::Plain; 2])?;
        Some(KnownCall { known, asks, call: owned, uses })
    }
}

impl Remembered {
    /// What is known of a call, and the memory of its buffers where that is plain. `describe` finds out what is not
    /// known; `None` if that does.
    #[inline]
    pub(super) fn look_up(
        &mut self,
        now: &Collective<'_>,
        describe: impl FnOnce() -> Option<KnownCall>,
    ) -> Option<(&KnownCall, Contiguous)> {
        let Some((key, plain)) = Key::new(now) else {
            return Some((self.odd.insert(describe()?), Contiguous::default()));
        };
        let mut places = (self.at..self.all.len()).chain(0..self.at);
        self.at = match places.find(|at| self.all.get(*at).is_some_and(|it| it.key == key)) {
            Some(at) => at,
            None => self.keep(now, key, describe()?),
        };
        Some((&self.all.get(self.at)?.known_call, plain))
    }

    /// Keeps what was found out, behind the one found last if there are many; where.
    #[cold]
    fn keep(&mut self, of: &Collective<'_>, key: Key, known_call: KnownCall) -> usize {
        let layout = |buffer: &Buffer| {
            buffer.parts().iter().find_map(Typed::own_layout).map(Layout::downgrade)
        };
        let entry =
            RememberedCall { key, known_call, _layouts: [layout(&of.send), layout(&of.recv)] };
        let next =
            if self.all.len() < KEPT_MAX { self.all.len() } else { (self.at + 1) % KEPT_MAX };
        match self.all.get_mut(next) {
            Some(other) => *other = entry,
            None => self.all.push(entry),
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::super::prepare::Shares;
    use super::super::{CollectiveError, InPlace};
    use super::*;
    use gapless_coll::Locality;
    use gapless_coll::choose::Table;
    use gapless_coll::runtime::ScheduleCache;
    use gapless_dtype::{Datatype, Primitive};
    use gapless_mem::Space;

    /// What is known of a call in memory of the host does not hold where devices have theirs: ranks on one GPU meet
    /// there.
    #[test]
    fn a_device_is_another_place() {
        let vector = Datatype::vector(4, 1, 2, &Primitive::Int32.into()).unwrap();
        for layout in [vector.commit().unwrap(), Datatype::from(Primitive::Int32).commit().unwrap()]
        {
            let [host, pinned, device] =
                [Space::Host, Space::Pinned, Space::Device { kind: "fake", device: 0 }].map(
                    |space| {
                        let region = Region::new(space, 4096, 0, 400);
                        shape(&Buffer::Whole(Typed::new(region, 0, &layout, 5).unwrap())).unwrap().0
                    },
                );
            assert_eq!(host, pinned);
            assert_ne!(host, device, "{layout:?}");
        }
    }

    fn known_call(len: u64) -> Option<KnownCall> {
        let locality = Locality::flat(2);
        let place = RankPlace {
            rank: 0,
            table: &Table::default(),
            locality: &locality,
            recent: &ScheduleCache::default(),
            shares: Shares::No,
            neighbors: &|| Err(CollectiveError::NoTopology),
        };
        let mut numbers = vec![0i64; usize::try_from(len / 8).unwrap()];
        Collective::allreduce(InPlace, &mut numbers, ReduceOp::Sum).known_call(&place)
    }

    /// Any of the last calls is found; each is described once, in whatever order they are called.
    #[test]
    fn the_last_calls_are_not_described_again() {
        let (mut all, mut described) = (Remembered::default(), 0);
        let mut numbers = [0i64; 2 * KEPT_MAX];
        let mut ask = |all: &mut Remembered, len: usize| {
            let before = described;
            let recv = &mut numbers[..len];
            let address = recv.as_ptr().addr() as u64;
            let call = Collective::allreduce(InPlace, recv, ReduceOp::Sum);
            let found = all.look_up(&call, || {
                described += 1;
                known_call(len as u64 * 8)
            });
            let (known_call, (from, into)) = found.unwrap();
            assert_eq!((from, into.map(|region| region.address())), (None, Some(address)));
            assert!(known_call.known.is_short(), "{known_call:?}");
            described > before
        };
        for len in 1..=KEPT_MAX {
            assert!(ask(&mut all, len), "{len} is new");
        }
        for len in (1..=KEPT_MAX).rev().chain(1..=KEPT_MAX) {
            assert!(!ask(&mut all, len), "{len} is known");
        }
        assert!(ask(&mut all, KEPT_MAX + 1), "another length is another call");
        assert!(!ask(&mut all, KEPT_MAX), "one has gone, and no other");
        assert!(ask(&mut all, 1));
    }
}
