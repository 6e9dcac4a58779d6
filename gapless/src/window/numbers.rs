//! The memory of a window of numbers, registered with a transport whose adapter changes them: whether all ranks can have that.
//!
//! All ranks use ports of one network, on which they agree before they register anything. Each lists its networks, the best
//! first. Of those that all are on, they take the one whose places in the lists add up to the least.

mod dropped;

pub(crate) use self::dropped::Kept;
use self::dropped::say_goodbye;
use super::make::{KEY, read_key, write_key};
use crate::communicator::Communicator;
use crate::error::Error;
use gapless_bml::{Access, Address, Bml, Rank, RdmaRail, Registered, RemoteKey};
use gapless_engine::ReduceOp;
use gapless_mem::Lease;
use gapless_osc::{Driver, Member};

/// A rank's own memory, as long as adapters may change it.
pub(super) struct Registration {
    comm: Communicator,
    address: Address,
    /// `None` once it has ended.
    registered: Option<Registered>,
}

impl Registration {
    /// With the best port, of this network if one is given. `None`: no transport has atomic operations, or it refuses.
    fn new(
        comm: &Communicator,
        lease: &Lease,
        network: Option<&str>,
    ) -> Result<Option<Registration>, Error> {
        let region = lease.region();
        comm.shared.with(|state| {
            let Some((rail, address, rdma)) = state.open()?.bml_mut().atomics(network) else {
                return Ok(None);
            };
            // SAFETY: the lease keeps the memory, which is initialised, until the registration has ended, or for good; the
            // window keeps the buffer to itself while it exists, so no reference covers it.
            match unsafe { rdma.register(region, Access::Atomic) } {
                Ok(key) => {
                    let registered = Some(Registered::new(rail, key, lease.clone()));
                    Ok(Some(Registration { comm: comm.clone(), address, registered }))
                }
                Err(error) => {
                    tracing::info!(%error, "numbers of a window are not changed by an adapter");
                    Ok(None)
                }
            }
        })
    }

    /// The rail and the key.
    fn ours(&self) -> Option<(RdmaRail, RemoteKey)> {
        self.registered.as_ref().map(|it| (it.rail(), it.key()))
    }

    /// Ends it: no rank uses the key any more.
    pub(super) fn end(mut self) {
        let Some(registered) = self.registered.take() else { return };
        let ended = self.comm.shared.with(|state| {
            state.open()?;
            Ok(registered.end(state.pml.bml_mut()))
        });
        if let Err(error) = ended {
            // Of a world that was given up the transport may still be there.
            tracing::debug!(%error, "memory stays registered until the transport goes");
        }
    }
}

impl Drop for Registration {
    /// Other ranks may still use the key, and would lose the link to this process if it were not known any more.
    fn drop(&mut self) {
        if let Some(registered) = self.registered.take() {
            say_goodbye(&self.comm, registered);
        }
    }
}

/// Networks that a rank tells of; as many as there can be ports.
const NETWORKS: usize = 8;

/// A network, as ranks tell it: what its name hashes to; 0 is none.
fn number(network: &str) -> u64 {
    gapless_bml::digest_bytes(network.bytes()).max(1)
}

/// The network that all ranks are on, each of which lists its own in `told`, the best first. Of several, the one whose places
/// add up to the least; then the one with the least number. So all ranks choose alike.
fn common(told: &[[u64; NETWORKS]]) -> Option<u64> {
    let place = |rank: &[u64; NETWORKS], network| rank.iter().position(|it| *it == network);
    let sum = |network| told.iter().map(|rank| place(rank, network)).sum::<Option<usize>>();
    let ranked = told.first()?.iter().filter(|it| **it != 0);
    let ranked = ranked.filter_map(|&network| Some((sum(network)?, network)));
    ranked.min().map(|(_, network)| network)
}

/// Has the ranks agree on a network; `None` if they have none in common. Collective.
fn agree_on_network(comm: &Communicator) -> Result<Option<String>, Error> {
    let networks = comm.shared.with(|state| Ok(state.open()?.bml_mut().networks_with_atomics()))?;
    let mut own = [0; NETWORKS];
    for (place, network) in own.iter_mut().zip(&networks) {
        *place = number(network);
    }
    let size = usize::try_from(comm.size()).unwrap_or(usize::MAX);
    let mut told = vec![0u64; size * NETWORKS];
    comm.allgather(&own, &mut told)?;
    let (told, _) = told.as_chunks::<NETWORKS>();
    let agreed = common(told);
    Ok(networks.into_iter().find(|network| Some(number(network)) == agreed))
}

/// What a rank tells of its memory: the key, and where the transport is reached that has made it.
type Told = (RemoteKey, Address);

/// Bytes of that: the key, the length of the address, the address.
const TOLD: usize = KEY + 2 + Address::MAX_BYTES;

fn write(registration: &Registration, place: &mut [u8]) {
    let (key, rest) = place.split_at_mut(KEY);
    let (len, address) = rest.split_at_mut(2);
    let Some((_, ours)) = registration.ours() else { return };
    write_key(&ours, key);
    let bytes = registration.address.as_bytes();
    len.copy_from_slice(&u16::try_from(bytes.len()).unwrap_or(0).to_le_bytes());
    address[..bytes.len()].copy_from_slice(bytes);
}

fn read(place: &[u8]) -> Option<Told> {
    let (key, rest) = place.split_at(KEY);
    let (len, address) = rest.split_at(2);
    let len = u16::from_le_bytes(len.try_into().ok()?);
    Some((read_key(key)?, Address::new(address.get(..usize::from(len))?)?))
}

/// Has a process's rail meet those of all members; whether it may reach them.
fn meet(bml: &mut Bml, rail: RdmaRail, members: &[Member], all: &[Told]) -> bool {
    let mut members = members.iter().zip(all);
    members.all(|(member, (_, address))| bml.meet_for_changes(rail, Rank(member.process), address))
}

/// Whether a process can change the numbers of all members; `None` while links are being made.
fn reaches(bml: &mut Bml, rail: RdmaRail, members: &[Member], all: &[Told]) -> Option<bool> {
    let mut known = Some(true);
    for (member, (key, _)) in members.iter().zip(all) {
        match bml.changes(rail, Rank(member.process), key) {
            Some(true) => {}
            Some(false) => return Some(false),
            None => known = None,
        }
    }
    known
}

fn agreed_by_all(comm: &Communicator, here: bool) -> Result<bool, Error> {
    let mut all = [0];
    comm.allreduce(&[i32::from(here)], &mut all, ReduceOp::Min)?;
    Ok(all == [1])
}

/// Has adapters change the numbers of a window, if every rank can reach those of all ranks that way, its own too. Collective.
///
/// ```text
/// allgather   the networks on which each rank has such a port: all take one, or each its best if they share none
/// allgather   each rank's key, if it has registered its memory, and the address of its rail for that
///   each rank has its rail meet those of the others, also of those that it exchanges no messages with by a network
/// allreduce   whether that is possible
///   links are made
/// allreduce   whether all reach all
/// ```
pub(super) fn agree(
    comm: &Communicator,
    memory: &Lease,
    members: &mut [Member],
) -> Result<Option<Registration>, Error> {
    let network = agree_on_network(comm)?;
    let registration = Registration::new(comm, memory, network.as_deref())?;
    let rail = registration.as_ref().and_then(Registration::ours).map(|(rail, _)| rail);
    let mut own = [0u8; TOLD];
    if let Some(registration) = &registration {
        write(registration, &mut own);
    }
    let mut told = vec![0u8; TOLD * members.len()];
    let agreed = comm.allgather(&own, &mut told).and_then(|()| {
        let all: Option<Vec<Told>> = told.chunks(TOLD).map(read).collect();
        // All ranks see alike that one has none.
        let Some((all, rail)) = all.zip(rail) else { return Ok(None) };
        let may =
            comm.shared.with(|state| Ok(meet(state.open()?.bml_mut(), rail, members, &all)))?;
        // A link comes up only if both ends have met.
        if !agreed_by_all(comm, may)? {
            return Ok(None);
        }
        let reached = comm.shared.until(true, || None, |bml| reaches(bml, rail, members, &all))?;
        Ok(agreed_by_all(comm, reached)?.then_some((rail, all)))
    });
    match agreed {
        Ok(Some((rail, all))) => {
            for (member, (key, _)) in members.iter_mut().zip(all) {
                member.numbers = Some((rail, key));
            }
            Ok(registration)
        }
        Ok(None) => {
            if let Some(registration) = registration {
                registration.end();
            }
            Ok(None)
        }
        // Others may have agreed: the memory stays registered.
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(networks: &[u64]) -> [u64; NETWORKS] {
        std::array::from_fn(|at| networks.get(at).copied().unwrap_or(0))
    }

    #[test]
    fn all_ranks_take_a_network_that_all_are_on() {
        let agreed = |ranks: &[&[u64]]| {
            let all: Vec<_> = ranks.iter().map(|rank| told(rank)).collect();
            let found = common(&all);
            let mut turned = all.clone();
            turned.reverse();
            assert_eq!(common(&turned), found, "whatever their order");
            found
        };
        assert_eq!(agreed(&[&[7, 9], &[7, 9]]), Some(7));
        assert_eq!(agreed(&[&[7, 9], &[9, 7], &[9]]), Some(9), "one of them is on no other");
        assert_eq!(agreed(&[&[7, 9], &[9, 7], &[9, 7]]), Some(9), "its places add up to less");
        assert_eq!(agreed(&[&[7, 9], &[9, 7]]), Some(7), "neither is better");
        assert_eq!(agreed(&[&[7], &[9]]), None);
        assert_eq!(agreed(&[&[7], &[], &[7]]), None, "one has no such port");
        assert_eq!(agreed(&[]), None);
    }

    #[test]
    fn networks_have_numbers() {
        assert_eq!(
            number("ethernet/0a010000-24"),
            0x0233_148B_089C_42FC,
            "all builds say the same"
        );
        assert_ne!(number("ethernet/0a010000-24"), number("ethernet/0a020000-24"));
        assert_ne!(number(""), 0);
    }
}
