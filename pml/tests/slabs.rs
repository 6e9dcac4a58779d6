//! Staging memory that a peer still has mapped, because it is slow or because it was given up: no other message
//! gets it, and it is not freed, before the transport says that the peer has let go of it.

use crate::common::Buffer;
use crate::common::forged::{self, word_at};
use crate::common::lab::{config, layout};
use crate::common::rogue::{offer, ready, reply_of};
use crate::common::trio::Trio;
use gapless_bml::{Mapping, Rank};
use gapless_btl::RemoteKey;
use gapless_mem::{Device, Region};
use gapless_pml::{Config, PmlError, Protocol, RequestId, Source};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// What a slab has at least.
const SLAB: u64 = 2 * MIB;

/// Messages come through a ring of the receiver's, of at most `kept` bytes in all.
fn staged(kept: u64) -> Trio {
    let mut config: Config = config(Protocol::StagedPut, 4);
    config.tuning.staged_fragment_bytes = 1 << 20;
    config.bounds.staging_bytes = kept;
    Trio::new(config)
}

/// A rogue's message, on its way into a ring of the endpoint's.
struct Coming {
    recv: RequestId,
    reply: u64,
    fragments: u64,
    mapping: Mapping,
    // Where it goes.
    _to: Buffer,
}

impl Coming {
    fn ring(&self) -> Region {
        self.mapping.region()
    }
}

/// A rogue offers a message. The ring for it, mapped by the rogue; `None` if it gets none.
fn begin(trio: &mut Trio, rank: u32, sequence: u32, bytes: u64) -> Option<Coming> {
    let to = Buffer::target_in(&layout(bytes, true), 1, trio.home());
    let recv = trio.recv(&to, Source::Rank(rank));
    let mut offer = offer(bytes);
    offer[12..16].copy_from_slice(&sequence.to_le_bytes());
    offer[112..116].copy_from_slice(&(1u32 << 20).to_le_bytes());
    offer[116] = 4;
    trio.inject(rank, &offer);
    let puts = |message: &Vec<u8>| message[0] == forged::OPEN && matches!(message[2], 6 | 7);
    let inbox = &mut trio.inbox(rank).0;
    let Some(at) = inbox.iter().position(puts) else {
        assert!(!inbox.is_empty(), "rank {rank} is asked for its message by another protocol");
        inbox.clear();
        return None;
    };
    let open = inbox.swap_remove(at);
    assert_eq!(word_at(&open, 32), bytes, "all of it");
    let key = RemoteKey::new(&open[40..]).unwrap();
    let user = trio.device_space();
    let (peer, mapped) = trio.rogue(rank).mapped(Rank(0)).unwrap();
    let mapping = mapped.map_for(peer, &key, user).unwrap();
    let fragment = u64::from(u32::from_le_bytes(open[8..12].try_into().unwrap()));
    Some(Coming {
        recv,
        reply: reply_of(&open),
        fragments: bytes.div_ceil(fragment),
        mapping,
        _to: to,
    })
}

/// The rogue says that all fragments lie in the ring.
fn finish(trio: &mut Trio, rank: u32, coming: &Coming) {
    for index in 0..coming.fragments {
        trio.inject(rank, &ready(coming.reply, index));
    }
    assert!(trio.pml.test(coming.recv).unwrap().is_some(), "rank {rank}'s message is there");
}

/// What the device calls the allocation that a ring lies in: never the same for two.
fn name(trio: &Trio, ring: Region) -> Option<u64> {
    trio.device.buffer_id(ring)
}

fn overlap(a: Region, b: Region) -> bool {
    a.start() < b.start() + b.len() && b.start() < a.start() + a.len()
}

#[test]
fn a_ring_that_a_lost_peer_still_maps_is_given_to_nobody() {
    for let_go in [false, true] {
        let mut trio = staged(2 * SLAB);
        let first = begin(&mut trio, 1, 0, 5000).expect("a ring");
        trio.inject(1, &ready(first.reply, u64::MAX));
        trio.assert_lost(1, "no such fragment");
        let outcome = trio.pml.test(first.recv);
        let error = outcome.map_err(|failure| failure.error);
        assert!(matches!(error, Err(PmlError::PeerLost { rank: 1, .. })), "{error:?}");
        let ring = first.ring();
        let slab = name(&trio, ring);
        assert_eq!(trio.pml.staging_bytes(), (SLAB, SLAB), "the lost one may write to it");
        let kept = Some(first).filter(|_| !let_go);
        if let_go {
            assert_eq!(trio.pml.staging_bytes(), (SLAB, 0), "it has let go");
        }
        // As often as somebody asks.
        for sequence in 0..3 {
            let second = begin(&mut trio, 2, sequence, 5000).expect("another ring");
            assert_eq!(overlap(ring, second.ring()), let_go, "message {sequence}");
            finish(&mut trio, 2, &second);
        }
        // Nor is it freed to make room for a longer one.
        assert_eq!(begin(&mut trio, 2, 3, 3 * MIB).is_some(), let_go);
        assert_eq!(name(&trio, ring) == slab, !let_go, "freed, or not");
        drop(kept);
        let slabs = trio.pml.staging_bytes();
        assert_eq!(slabs.1, if let_go { 2 * SLAB } else { 0 }, "{slabs:?}");
    }
}

#[test]
fn a_slab_that_a_slow_peer_still_maps_is_not_freed_to_make_room() {
    let mut trio = staged(2 * SLAB);
    // Done, and kept mapped for the next message, as every peer does.
    let first = begin(&mut trio, 1, 0, 5000).expect("a ring");
    finish(&mut trio, 1, &first);
    let ring = first.ring();
    let slab = name(&trio, ring);
    assert_eq!(trio.pml.staging_bytes(), (SLAB, 0));
    // A ring of two slabs' length, for which the first would have to go.
    assert!(begin(&mut trio, 2, 0, 3 * MIB).is_none(), "rank 1 has not let go");
    assert_eq!(name(&trio, ring), slab, "rank 1 has it mapped");
    assert_eq!(trio.pml.staging_bytes(), (SLAB, SLAB), "it is asked to let go, and nobody's");
    assert!(begin(&mut trio, 2, 1, 3 * MIB).is_none(), "rank 1 still has not");
    assert_eq!(name(&trio, ring), slab, "rank 1 has it mapped");
    drop(first);
    let longer = begin(&mut trio, 2, 2, 3 * MIB).expect("a ring");
    assert_ne!(name(&trio, ring), slab, "there is no room for both");
    assert_eq!(trio.pml.staging_bytes(), (2 * SLAB, 2 * SLAB));
    finish(&mut trio, 2, &longer);
}

#[test]
fn an_endpoint_that_ends_leaves_what_is_mapped() {
    let mut trio = staged(2 * SLAB);
    let mapped = begin(&mut trio, 1, 0, 5000).expect("a ring");
    finish(&mut trio, 1, &mapped);
    let (device, slab) = (Arc::clone(&trio.device), name(&trio, mapped.ring()));
    drop(trio);
    assert_eq!(device.buffer_id(mapped.ring()), slab, "somebody would read what was freed");
}
