//! How the processes of a job come to know of each other: what each publishes, and what it reads.
//!
//! ```text
//! every process         rank 0                      every process
//! record, rails ─ fence ─ reads all records, job map ─ fence ─ reads the job map
//!                                                   several hosts: opens a port, publishes its places ─ fence
//!                                                   links to ranks r ± 2^k; other addresses when they are needed
//! ```
//!
//! So a job of N processes asks its launcher for N records, N job maps, and two or three addresses for each link. A
//! launcher that does not answer while a process waits at a fence is asked for all addresses at once, and so is any if
//! a transport does not tell who calls ([`Btl::callers`](gapless_btl::Btl::callers)).

#[cfg(test)]
mod start;

use crate::BootError;
use crate::descriptors;
use crate::directory::{Addresses, Connection, PLACES, RAILS, SM, write_rails};
use crate::job_map::JobMap;
use crate::network::{self, Settings, TCP, Ways};
use crate::places::Places;
use crate::process_record::{self, Network};
use crate::wireup::Wireup;
use gapless_bml::{Bml, BmlError, Directory, FoundPeer, LinkError, PeerState, Rank};
use gapless_btl::Address;
use gapless_btl_tcp::random_secret;
use std::sync::Arc;

/// Under which key every process publishes its record.
const RECORD: &str = "gapless-card";

/// Under which key rank 0 publishes the records of all.
const JOB_MAP: &str = "gapless-roll";

/// Under which key rank 0 publishes the job's secret.
const SECRET: &str = "gapless-secret";

/// What a process has learned of the others.
#[derive(Debug)]
pub struct Met {
    /// How many processes of this host, with this one, may run on this one's processors.
    pub sharing: usize,
    /// Where each process is.
    pub places: Places,
}

/// Publishes where this process can be met, and learns of the others: links are made when they are needed, and to those
/// that tell of deaths. If there are several hosts, opens the transports to those. Compares the digests of the tables by
/// which collectives choose.
///
/// # Errors
/// The launcher fails; a process does not fit to this one, cannot be reached, or is lost; a transport cannot be set up.
pub fn meet(
    connection: &Arc<Connection>,
    bml: &mut Bml,
    digest: &str,
    (network, ways, settings): (Network, Ways, &Settings),
) -> Result<Met, BootError> {
    let mut launcher = connection.launcher();
    let wireup = &mut **launcher;
    let (me, size) = (wireup.rank(), wireup.size());
    let addresses = bml.addresses();
    let own = process_record::write(digest, network, settings.encrypt);
    publish(wireup, &own, &addresses)?;
    let map = Arc::new(read_map(wireup, &own)?);
    let kinds: Vec<(u32, &str)> = map.kinds().collect();
    for (rank, kind) in kinds.iter().filter(|(rank, _)| *rank != me) {
        process_record::check(*rank, kind)?;
    }
    let hosts = map.hosts().iter().map(String::as_str);
    let several_hosts =
        size > 1 && process_record::need_network(kinds.iter().map(|(_, kind)| *kind), hosts);
    if several_hosts {
        process_record::check_encryption(&own, kinds.iter().copied())?;
    }
    let labels = match several_hosts {
        true => open_network(wireup, bml, (network, ways, settings))?,
        false => Vec::new(),
    };
    let (answers, worlds_before) = (wireup.answers_at_fences(), wireup.worlds_before());
    let local = wireup.local_size().and_then(|local| usize::try_from(local).ok());
    drop(launcher);
    let others: Vec<u32> =
        (0..size).filter(|&rank| !process_record::has_table(map.kind(rank), digest)).collect();
    let has_others = addresses.iter().any(|(name, _)| name != SM);
    let mut directory = Addresses {
        connection: Arc::clone(connection),
        me,
        worlds_before,
        map: Arc::clone(&map),
        several_hosts,
        has_shared_memory: network != Network::Wanted,
        has_others,
        labels,
    };
    if !answers || !bml.set_directory(Box::new(directory.clone())) {
        for rank in (0..size).filter(|&rank| rank != me) {
            introduce(bml, &mut directory, rank)?;
        }
    }
    if !has_others && let Some(error) = way_missing(&map, (me, network), several_hosts) {
        return Err(error.into());
    }
    if !others.is_empty() {
        return Err(BootError::TablesDiffer { rank: me, others });
    }
    bml.watch();
    // The first look-ups: whoever does not fit to this process is told so now.
    let lost = (0..size).map(Rank).find_map(|peer| match bml.state(peer) {
        PeerState::Lost(error) => Some((peer, error.clone())),
        _ => None,
    });
    if let Some((peer, error)) = lost {
        return Err(BmlError::PeerLost { peer, error }.into());
    }
    let sharing = sharing(&map, me);
    let sharing = local.unwrap_or(usize::MAX).min(sharing);
    Ok(Met { sharing, places: Places::new(&map) })
}

fn publish(
    wireup: &mut dyn Wireup,
    own: &str,
    addresses: &[(String, Address)],
) -> Result<(), BootError> {
    wireup.put(RECORD, own)?;
    let rails = addresses.iter().map(|(name, address)| (name.as_str(), address.clone()));
    wireup.put(RAILS, &write_rails(rails, wireup.worlds_before()))?;
    if wireup.rank() == 0 && wireup.size() > 1 {
        let secret = random_secret().map_err(|error| BootError::Transport { name: TCP, error })?;
        wireup.put(SECRET, &network::write_secret(&secret))?;
    }
    Ok(wireup.fence()?)
}

/// The records of all processes: rank 0 reads them, the others read what it makes of them. It says nothing of what is
/// wrong with them before all have them.
fn read_map(wireup: &mut dyn Wireup, own: &str) -> Result<JobMap, BootError> {
    let size = wireup.size();
    if size == 1 {
        return Ok(JobMap::new([own]));
    }
    if wireup.rank() > 0 {
        wireup.fence()?;
        return JobMap::read(&wireup.get(0, JOB_MAP)?, size);
    }
    let mut records = vec![own.to_owned()];
    for rank in 1..size {
        // A record that would take the job map apart is damaged, or of another build: its own rank is to be named.
        records.push(wireup.get(rank, RECORD)?.replace(['/', ';'], "?"));
    }
    let map = JobMap::new(records.iter().map(String::as_str));
    wireup.put(JOB_MAP, &map.write())?;
    wireup.fence()?;
    Ok(map)
}

/// How many processes of this machine, with this one, may run on this one's processors.
fn sharing(map: &JobMap, me: u32) -> usize {
    let here: Vec<bool> =
        map.hosts().iter().map(|host| process_record::share_machine(map.host(me), host)).collect();
    let shares: Vec<bool> =
        map.bindings().iter().map(|binding| process_record::shares_processors(binding)).collect();
    let others = (0..).zip(map.places()).filter(|(rank, _)| *rank != me);
    1 + others
        .filter(|(_, (host, binding))| here[*host as usize] && shares[*binding as usize])
        .count()
}

/// A process of another host to which there is no way, as far as the job map tells.
fn way_missing(map: &JobMap, (me, network): (u32, Network), several: bool) -> Option<BmlError> {
    let own = map.host(me);
    let is_reached = |rank| {
        several && network != Network::No && process_record::network(map.kind(rank)) != Network::No
    };
    let ranks = 0..u32::try_from(map.places().count()).unwrap_or(u32::MAX);
    let peer = ranks
        .filter(|&rank| !is_reached(rank))
        .find(|&it| process_record::are_apart(own, map.host(it)))?;
    let reason = match process_record::share_machine(own, map.host(peer)) {
        true => "it runs in another network namespace",
        false => "it runs on another host",
    };
    let error = LinkError::Unreachable { reason: reason.to_owned() };
    Some(BmlError::NoRail { peer: Rank(peer), tried: vec![(SM.to_owned(), error)] })
}

/// Has a peer introduced at once.
fn introduce(bml: &mut Bml, directory: &mut Addresses, rank: u32) -> Result<(), BootError> {
    match directory.look_up(Rank(rank)) {
        found @ (FoundPeer::Addresses(_) | FoundPeer::Apart(_)) => {
            Ok(bml.introduce_found(Rank(rank), &found)?)
        }
        FoundPeer::Nothing(error) => Err(BmlError::PeerLost { peer: Rank(rank), error }.into()),
        FoundPeer::Later => unreachable!("nobody is at a fence"),
    }
}

/// Opens the transports to other hosts, if this process may have any, and publishes where it is called; every process of
/// the job does this, or none. Waits until all have. Gives the labels of the transports.
fn open_network(
    wireup: &mut dyn Wireup,
    bml: &mut Bml,
    (network, ways, settings): (Network, Ways, &Settings),
) -> Result<Vec<String>, BootError> {
    let mut open = Vec::new();
    if network != Network::No {
        let word = wireup.get(0, SECRET)?;
        // Nothing of it is shown.
        let secret = network::read_secret(&word).ok_or_else(|| BootError::BadRecord {
            rank: 0,
            what: "secret",
            text: format!("{} characters", word.len()),
        })?;
        open = network::open(settings, ways, (wireup.job(), wireup.rank()), secret)?;
        if let Some(more) = open.len().checked_sub(1).filter(|&more| more > 0) {
            // As far as that is allowed: links are made when they are needed.
            let links = u64::from(wireup.size()) * u64::try_from(more).unwrap_or(1);
            let _ = descriptors::raise(descriptors::most(wireup.size()) + links, 0);
        }
    }
    let places = open.iter().map(|(label, btl)| (label.as_str(), btl.address()));
    wireup.put(PLACES, &write_rails(places, wireup.worlds_before()))?;
    let add = |(label, btl): network::Labelled| {
        match network::port_network(&label) {
            Some(network) => bml.add_on(btl, &network),
            None => bml.add(btl),
        }
        label
    };
    let labels = open.into_iter().map(add).collect();
    wireup.fence()?;
    Ok(labels)
}
