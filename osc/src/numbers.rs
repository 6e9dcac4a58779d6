//! The memory of a window of numbers, registered with a transport whose adapter changes them: whether all ranks can have that.
//!
//! All ranks use ports of one network, on which they agree before they register anything. Each lists its networks, the best
//! first. Of those that all are on, they take the one whose places in the lists add up to the least.

use crate::window::{Driver, Member};
use gapless_bml::{Access, Address, Bml, Rank, Ranks, RdmaRail, Registered, RemoteKey};
use gapless_mem::Lease;

/// A key: how long it is, and the key.
pub(crate) const KEY: usize = 1 + RemoteKey::MAX_BYTES;

pub(crate) fn write_key(key: &RemoteKey, place: &mut [u8]) {
    let bytes = key.as_bytes();
    place[0] = u8::try_from(bytes.len()).unwrap_or(0);
    place[1..=bytes.len()].copy_from_slice(bytes);
}

pub(crate) fn read_key(place: &[u8]) -> Option<RemoteKey> {
    let (len, key) = place.split_first()?;
    RemoteKey::new(key.get(..usize::from(*len)).filter(|key| !key.is_empty())?)
}

/// Registers the memory with the best port, of this network if one is given; gives where that is reached. `None`: no
/// transport has atomic operations, or it refuses.
fn register(bml: &mut Bml, lease: &Lease, network: Option<&str>) -> Option<(Registered, Address)> {
    let (rail, address, rdma) = bml.atomics(network)?;
    // SAFETY: the lease keeps the memory, which is initialised, until the registration has ended, or for good; no reference
    // covers it while the window exists (`Making::window`).
    match unsafe { rdma.register(lease.region(), Access::Atomic) } {
        Ok(key) => Some((Registered::new(rail, key, lease.clone()), address)),
        Err(error) => {
            tracing::info!(%error, "numbers of a window are not changed by an adapter");
            None
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
fn agree_on_network<R: Ranks>(ranks: &R) -> Result<Option<String>, R::Error> {
    let networks = ranks.with_bml(|bml| bml.networks_with_atomics())?;
    let mut own = [0; NETWORKS];
    for (place, network) in own.iter_mut().zip(&networks) {
        *place = number(network);
    }
    let agreed = common(ranks.allgather_words(&own)?.as_chunks().0);
    Ok(networks.into_iter().find(|network| Some(number(network)) == agreed))
}

/// What a rank tells of its memory: the key, and where the transport is reached that has made it.
type LentNumbers = (RemoteKey, Address);

/// Bytes of that: the key, the length of the address, the address.
const TOLD: usize = KEY + 2 + Address::MAX_BYTES;

fn write(registered: &Registered, address: &Address, place: &mut [u8]) {
    let (key, rest) = place.split_at_mut(KEY);
    let (len, room) = rest.split_at_mut(2);
    write_key(&registered.key(), key);
    let bytes = address.as_bytes();
    len.copy_from_slice(&u16::try_from(bytes.len()).unwrap_or(0).to_le_bytes());
    room[..bytes.len()].copy_from_slice(bytes);
}

fn read(place: &[u8]) -> Option<LentNumbers> {
    let (key, rest) = place.split_at(KEY);
    let (len, address) = rest.split_at(2);
    let len = u16::from_le_bytes(len.try_into().ok()?);
    Some((read_key(key)?, Address::new(address.get(..usize::from(len))?)?))
}

/// Has a process's rail meet those of all members; whether it may reach them.
fn meet(bml: &mut Bml, rail: RdmaRail, members: &[Member], all: &[LentNumbers]) -> bool {
    let mut members = members.iter().zip(all);
    members.all(|(member, (_, address))| bml.meet_for_changes(rail, Rank(member.process), address))
}

/// Whether a process can change the numbers of all members; `None` while links are being made.
fn reaches(bml: &mut Bml, rail: RdmaRail, members: &[Member], all: &[LentNumbers]) -> Option<bool> {
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

/// Has adapters change the numbers of a window, if every rank can reach those of all ranks that way, its own too. Collective.
///
/// ```text
/// allgather   the networks on which each rank has such a port: all take one, or each its best if they share none
/// allgather   each rank's key, if it has registered its memory, and the address of its rail for that
///   each rank has its rail meet those of the others, also of those that it exchanges no messages with by a network
/// allgather   whether that is possible
///   links are made
/// allgather   whether all reach all
/// ```
pub(crate) fn agree<D: Driver>(
    (driver, ranks): (&D, &impl Ranks<Error = D::Error>),
    memory: &Lease,
    members: &mut [Member],
    registered: &mut Option<Registered>,
) -> Result<(), D::Error> {
    let network = agree_on_network(ranks)?;
    let mut own = [0u8; TOLD];
    if let Some((ours, address)) =
        ranks.with_bml(|bml| register(bml, memory, network.as_deref()))?
    {
        write(&ours, &address, &mut own);
        *registered = Some(ours);
    }
    let mut told = vec![0u8; TOLD * members.len()];
    ranks.allgather(&own, &mut told)?;
    let all: Option<Vec<LentNumbers>> = told.chunks(TOLD).map(read).collect();
    // All ranks see alike that one has none.
    if let Some((all, rail)) = all.zip(registered.as_ref().map(Registered::rail)) {
        let may = ranks.with_bml(|bml| meet(bml, rail, members, &all))?;
        // A link comes up only if both ends have met.
        if ranks.first_no(may)?.is_none() {
            let reached = driver.until(true, || None, |bml| reaches(bml, rail, members, &all))?;
            if ranks.first_no(reached)?.is_none() {
                for (member, (key, _)) in members.iter_mut().zip(all) {
                    member.numbers = Some((rail, key));
                }
                return Ok(());
            }
        }
    }
    // Nobody uses it. What has failed before others may have agreed on.
    if let Some(registered) = registered.take() {
        drop(ranks.with_bml(|bml| registered.end(bml))?);
    }
    Ok(())
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
