//! What a communicator remembers of its last collective through shared memory: programs call the same again and again.

use super::buffers::Side;
use super::prepare::{Place, Prepared, Way};
use super::{Collective, Root};
use gapless_coll::choose::shared_rule_for;
use gapless_coll::page::{Known, Task};
use gapless_coll::{Blocks, Call, HyperQ, Operation, Rows};
use gapless_dtype::{LayoutId, WeakLayout};
use gapless_engine::{Op, ReduceOp};
use gapless_mem::Region;

/// The last call.
#[derive(Debug, Default)]
pub(crate) struct Last {
    /// Whether it went through shared memory.
    call: Option<(Call<'static>, bool)>,
    /// What else is known of it.
    known: Option<(Key, Known, bool)>,
}

/// What a description says, but for where the memory is. Whatever is checked and found out depends on this.
#[derive(Debug)]
pub(super) struct Key {
    operation: Operation,
    root: Root,
    op: Option<ReduceOp>,
    send: Shape,
    recv: Shape,
    /// Whether the buffers matter at this rank.
    uses: [bool; 2],
    /// So that no other layouts get their names.
    layouts: [Option<WeakLayout>; 2],
}

/// A buffer in one piece, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Nothing,
    InPlace,
    /// So many instances of a layout, or bytes; where they are.
    Whole(Option<LayoutId>, u64, Where),
}

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// In one piece, where the processor reaches it.
    Plain,
    /// In several, or with gaps, there.
    Spread,
    /// On a device.
    Device,
}

impl Shape {
    fn is_plain(self) -> bool {
        !matches!(self, Shape::Whole(_, _, Where::Spread | Where::Device))
    }
}

/// What is known of a description.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recalled<'l> {
    pub(super) known: &'l Known,
    /// As [`Prepared::asks`](super::prepare::Prepared).
    pub(super) asks: bool,
    uses: [bool; 2],
}

impl Recalled<'_> {
    /// What such a description comes to, with its buffers, if they matter.
    pub(super) fn task(&self, now: &Collective<'_>) -> Task {
        let blocks = |uses: bool, side: &Side| match uses {
            true => side.clone().into_blocks(),
            false => Blocks::None,
        };
        let Collective { send, recv, .. } = now;
        self.known.task(Rows { send: blocks(self.uses[0], send), recv: blocks(self.uses[1], recv) })
    }
}

/// The memory of both buffers, where it is plain.
pub(super) type Plain = (Option<Region>, Option<Region>);

impl Last {
    /// Whether a call goes through shared memory.
    pub(super) fn goes_shared(&mut self, call: &Call<'_>, place: &Place<'_>) -> bool {
        let goes = |call| shared_rule_for(place.table, call, place.locality).is_some();
        let Some(call) = call.without_lists() else { return goes(call) };
        if let Some((last, answer)) = &self.call
            && *last == call
        {
            return *answer;
        }
        let answer = goes(&call);
        self.call = Some((call, answer));
        answer
    }

    /// What is known of a description like the last one, and the memory of its buffers.
    #[inline]
    pub(super) fn recall(&self, now: &Collective<'_>) -> Option<(Recalled<'_>, Plain)> {
        let (key, known, asks) = self.known.as_ref()?;
        let same = key.operation == now.operation
            && key.root == now.root
            && key.op == predefined(now)?
            && now.counts.is_empty();
        let (send, from) = shape(&now.send)?;
        let (recv, into) = shape(&now.recv)?;
        let recalled = Recalled { known, asks: *asks, uses: key.uses };
        (same && (key.send, key.recv) == (send, recv)).then_some((recalled, (from, into)))
    }

    /// Remembers what was found out about a description; `key`: what [`key`] has made of it.
    pub(super) fn note(&mut self, key: Option<Key>, prepared: &Prepared, place: &Place<'_>) {
        self.known = key.and_then(|key| {
            let matters = |blocks: &Blocks| !matches!(blocks, Blocks::None);
            let uses = [&prepared.rows.send, &prepared.rows.recv].map(matters);
            let key = Key { uses, ..key };
            let Way::Shared(terms) = &prepared.way else { return None };
            // Where it goes is found out anew.
            if prepared.asks && HyperQ::space(&prepared.rows).is_some() {
                return None;
            }
            let call = terms.call(|| (place.neighbors)()).ok()?;
            let of = (place.rank, place.locality.ranks());
            let plain = key.send.is_plain() && key.recv.is_plain();
            let known = Known::new(&call, of, prepared.combine.as_ref(), plain)?;
            // Bytes are combined as numbers: their buffers are described anew.
            let as_numbers = key.op.is_some() && key.layouts.iter().all(Option::is_none);
            (known.is_short() || !as_numbers).then_some((key, known, prepared.asks))
        });
    }
}

/// The predefined operation, or that there is none; `None`: it is a user's.
#[inline]
fn predefined(collective: &Collective<'_>) -> Option<Option<ReduceOp>> {
    match &collective.op {
        None => Some(None),
        Some(Op::Predefined(op)) => Some(Some(*op)),
        Some(_) => None,
    }
}

/// What a side is, and where it lies if that is plain memory; `None` if it is divided.
#[inline]
fn shape(side: &Side) -> Option<(Shape, Option<Region>)> {
    match side {
        Side::Nothing => Some((Shape::Nothing, None)),
        Side::InPlace => Some((Shape::InPlace, None)),
        Side::Whole(typed) => {
            let region = typed.as_contiguous().filter(|region| region.as_ptr().is_some());
            let layout = typed.own_layout().map(gapless_dtype::Layout::id);
            let place = match (region, typed.space().cpu_accessible()) {
                (Some(_), _) => Where::Plain,
                (None, true) => Where::Spread,
                (None, false) => Where::Device,
            };
            Some((Shape::Whole(layout, typed.count(), place), region))
        }
        Side::Each(_) => None,
    }
}

/// What [`Last::recall`] compares; `None` if that is of no use.
pub(super) fn key(collective: &Collective<'_>) -> Option<Key> {
    let layout = |side: &Side| match side {
        Side::Whole(typed) => typed.own_layout().map(gapless_dtype::Layout::downgrade),
        _ => None,
    };
    let Collective { operation, root, send, recv, counts, .. } = collective;
    let (send, recv, layouts) = (shape(send)?.0, shape(recv)?.0, [layout(send), layout(recv)]);
    let op = predefined(collective)?;
    counts.is_empty().then_some(Key {
        operation: *operation,
        root: *root,
        op,
        send,
        recv,
        uses: [true; 2],
        layouts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Primitive};
    use gapless_engine::Typed;
    use gapless_mem::Space;

    /// What is known of a call in memory of the host does not hold where devices have theirs: ranks on one GPU meet there.
    #[test]
    fn a_device_is_another_place() {
        let vector = Datatype::vector(4, 1, 2, &Primitive::Int32.into()).unwrap();
        for layout in [vector.commit().unwrap(), Datatype::from(Primitive::Int32).commit().unwrap()]
        {
            let [host, pinned, device] = [Space::Host, Space::Pinned, Space::Fake { device: 0 }]
                .map(|space| {
                    let region = Region::new(space, 4096, 0, 400);
                    shape(&Side::Whole(Typed::new(region, 0, &layout, 5).unwrap())).unwrap().0
                });
            assert_eq!(host, pinned);
            assert_ne!(host, device, "{layout:?}");
        }
    }
}
