//! What many worlds have seen, and the floors below which they prove little.

use crate::comms::CommPlan;
use crate::plan::Mode;
use crate::world::World;
use gapless_pml::{PmlError, Protocol};
use std::fmt;
use std::ops::AddAssign;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// How often each thing happened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Coverage {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl AddAssign for Coverage {
            fn add_assign(&mut self, other: Coverage) {
                $(self.$name += other.$name;)*
            }
        }

        impl fmt::Display for Coverage {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(writeln!(f, "{:>12} {}", self.$name, stringify!($name).replace('_', " "))?;)*
                Ok(())
            }
        }

        impl Coverage {
            /// What happened less often than `times` what `floors` says, by name: how often, and how
            /// often it should.
            #[must_use]
            pub fn below(&self, floors: &Coverage, times: u64) -> Vec<(&'static str, u64, u64)> {
                let mut below = Vec::new();
                $(if self.$name < floors.$name * times {
                    below.push((stringify!($name), self.$name, floors.$name * times));
                })*
                below
            }
        }
    };
}

counts! {
    /// Worlds.
    worlds,
    /// Worlds of 200 ranks and more.
    large_worlds,
    /// Ranks.
    ranks,
    /// Messages that were received.
    received,
    /// … eagerly.
    eager,
    /// … in fragments.
    pipelined,
    /// … by reading the sender's memory through a rail.
    single_copies,
    /// … by mapping the sender's memory.
    mapped,
    /// … within a process.
    local,
    /// Messages that were longer than their receive.
    truncated,
    /// … that a receive from any source took.
    any_source,
    /// … that a receive of any tag took.
    any_tag,
    /// … in a communicator other than the world.
    other_communicators,
    /// … in one that only its members made.
    of_groups,
    /// … between the sides of an intercommunicator.
    between_sides,
    /// … in one that was merged from both sides.
    merged,
    /// … by a persistent receive that was started again.
    received_again,
    /// … from a rank to itself.
    to_myself,
    /// Synchronous sends that ended well.
    synchronous,
    /// Buffered sends.
    buffered,
    /// Messages in ready mode that were not waited for.
    not_ready,
    /// Pairs of ranks that lost a link and kept each other.
    kept,
    /// Probes that saw a message.
    probes,
    /// Messages that a matched probe took.
    claims,
    /// … and that were dropped.
    dropped,
    /// Receives that were cancelled by their script.
    cancelled,
    /// Sends that were cancelled.
    cancelled_sends,
    /// Sends that had ended, and were cancelled then.
    cancelled_ended,
    /// … and had been received.
    cancelled_too_late,
    /// Persistent sends that were started again and ended well.
    sent_again,
    /// Sends that a leaving receiver refused.
    refused,
    /// Ranks that died.
    deaths,
    /// Links that were cut, in one direction.
    cuts,
    /// Links that were made because somebody needed them.
    calls,
    /// Operations that ended because a peer was lost.
    lost_operations,
    /// Communicators that a death kept from being made, by rank.
    unmade,
    /// Messages of rails.
    parcels,
    /// … that came before one that was sent earlier on their link.
    overtakings,
    /// … that a cut lost.
    lost_in_flight,
    /// Times that a link had no credit left.
    out_of_credit,
    /// Times that a rail was full for no reason.
    storms,
    /// One-sided reads.
    gets,
    /// Mappings.
    maps,
}

impl Coverage {
    /// What a world has seen.
    pub(crate) fn of(world: &World, received: u64) -> Coverage {
        let tally = world.tally();
        let mut seen = Coverage {
            worlds: 1,
            large_worlds: u64::from(world.plan.size >= 200),
            ranks: world.plan.size.into(),
            received,
            deaths: world.deaths(),
            kept: world.kept,
            cuts: tally.cuts,
            calls: tally.calls,
            parcels: tally.parcels,
            overtakings: tally.overtakings,
            lost_in_flight: tally.lost_in_flight,
            out_of_credit: tally.out_of_credit,
            storms: tally.storms,
            gets: tally.gets,
            maps: tally.maps,
            probes: world.journal.seen.len() as u64,
            unmade: world.journal.unmade.len() as u64,
            ..Coverage::default()
        };
        for taken in &world.journal.taken {
            seen.claims += u64::from(taken.claimed.is_some());
            seen.dropped += u64::from(taken.dropped);
            let Some(end) = &taken.ended else { continue };
            match end.outcome.as_ref().map_err(|failure| &failure.error) {
                Ok(status) => {
                    match status.protocol {
                        Protocol::Eager => seen.eager += 1,
                        Protocol::Pipeline => seen.pipelined += 1,
                        Protocol::SingleCopy => seen.single_copies += 1,
                        Protocol::Local => seen.local += 1,
                        Protocol::Mapped => seen.mapped += 1,
                        // There are no devices.
                        _ => {}
                    }
                    seen.any_source += u64::from(taken.source.is_none());
                    seen.any_tag += u64::from(taken.tag.is_none());
                    seen.other_communicators += u64::from(taken.comm > 0);
                    seen.received_again += u64::from(taken.again);
                    match world.plan.comms[taken.comm] {
                        CommPlan::Group { .. } => seen.of_groups += 1,
                        CommPlan::Inter { .. } => seen.between_sides += 1,
                        CommPlan::Merge { .. } => seen.merged += 1,
                        CommPlan::Dup | CommPlan::Split { .. } => {}
                    }
                }
                Err(PmlError::NotReady { .. }) => seen.not_ready += 1,
                Err(PmlError::Truncated { .. }) => seen.truncated += 1,
                Err(PmlError::Cancelled) => seen.cancelled += u64::from(taken.cancelled.is_some()),
                Err(PmlError::PeerLost { .. } | PmlError::NobodyLeft { .. }) => {
                    seen.lost_operations += 1;
                }
                Err(_) => {}
            }
        }
        for sent in &world.journal.sent {
            let Some(end) = &sent.ended else { continue };
            seen.to_myself += u64::from(sent.from == sent.to);
            seen.buffered += u64::from(sent.mode == Mode::Buffered);
            match end.outcome.as_ref().map_err(|failure| &failure.error) {
                Ok(_) => {
                    seen.synchronous += u64::from(sent.mode == Mode::Synchronous);
                    seen.cancelled_too_late += u64::from(sent.cancelled_ended);
                    seen.sent_again += u64::from(sent.again);
                }
                Err(PmlError::Cancelled) => {
                    seen.cancelled_sends += 1;
                    seen.cancelled_ended += u64::from(sent.cancelled_ended);
                }
                Err(PmlError::Unreceived { .. }) => seen.refused += 1,
                Err(PmlError::PeerLost { .. }) => seen.lost_operations += 1,
                Err(_) => {}
            }
        }
        seen
    }
}
