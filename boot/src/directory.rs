//! The launcher, as a process keeps it: at start-up, when an address of a peer is first needed, and when the job is left.

use crate::job_map::JobMap;
use crate::network::{self, Paired};
use crate::wireup::{Questions, Wireup, WireupError};
use crate::{BootError, process_record};
use gapless_bml::{BmlError, Directory, FoundPeer, LinkError, Rank};
use gapless_btl::Address;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// The name of the transport within a host.
pub const SM: &str = "sm";

/// Under which key a process publishes the addresses of its transports within a host, and of those that a program has
/// added.
pub(crate) const RAILS: &str = "gapless-rails";

/// Under which key a process publishes where it can be called, if the job has several hosts.
pub(crate) const PLACES: &str = "gapless-network";

/// Published in the place of addresses by who has none.
const NOWHERE: &str = "none";

/// Begins a word that tells which of a process's worlds was published, from 1 on; none does of its first.
const WORLD: &str = "world:";

/// The names and addresses of transports, in the word under which they are published by a process that had so many worlds
/// before.
pub(crate) fn write_rails<'r>(
    rails: impl Iterator<Item = (&'r str, Address)>,
    worlds_before: u32,
) -> String {
    let mut words: Vec<String> =
        rails.map(|(name, address)| process_record::write_rail(name, &address)).collect();
    if words.is_empty() {
        words.push(NOWHERE.to_owned());
    }
    if worlds_before > 0 {
        words.push(format!("{WORLD}{worlds_before}"));
    }
    words.join(",")
}

/// The launcher of this process. Whoever waits at a fence has it, and asks it for the others meanwhile.
pub struct Connection {
    wireup: Mutex<Box<dyn Wireup>>,
    /// What whoever waits at a fence is to ask.
    pub questions: Questions,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connection")
    }
}

impl Connection {
    /// One that nobody uses yet.
    #[must_use]
    pub fn new(wireup: Box<dyn Wireup>) -> Arc<Connection> {
        Arc::new(Connection { wireup: Mutex::new(wireup), questions: Questions::default() })
    }

    /// Waits for whoever uses it.
    pub fn launcher(&self) -> MutexGuard<'_, Box<dyn Wireup>> {
        self.wireup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A value of a peer's; `None` if that takes until later.
    fn get(&self, from: u32, key: &str) -> Option<Result<String, WireupError>> {
        match self.wireup.try_lock() {
            Ok(mut wireup) => Some(wireup.get(from, key)),
            Err(TryLockError::Poisoned(wireup)) => Some(wireup.into_inner().get(from, key)),
            Err(TryLockError::WouldBlock) => self.questions.ask(from, key),
        }
    }
}

/// What is known of the job's processes without their addresses.
#[derive(Clone)]
pub(crate) struct Addresses {
    pub(crate) connection: Arc<Connection>,
    pub(crate) me: u32,
    /// How many worlds each process had before.
    pub(crate) worlds_before: u32,
    pub(crate) map: Arc<JobMap>,
    /// Whether processes have published [`PLACES`].
    pub(crate) several_hosts: bool,
    /// Whether this process reaches those of its host by shared memory.
    pub(crate) has_shared_memory: bool,
    /// Whether processes may have transports of which we know nothing, so that all addresses are needed.
    pub(crate) has_others: bool,
    /// The labels of this process's transports to other hosts.
    pub(crate) labels: Vec<String>,
}

impl Addresses {
    /// How a peer is reached, over all transports that may; `None` if it takes until later.
    pub(crate) fn of(&self, peer: u32) -> Option<Result<Paired, BootError>> {
        let apart = process_record::are_apart(self.map.host(self.me), self.map.host(peer));
        let near = |(name, _): &(String, Address)| name == SM;
        let (mut found, mut together) = (Vec::new(), true);
        if !(apart && self.several_hosts) || self.has_others {
            match self.published(peer, RAILS)? {
                Ok(rails) => found = rails,
                Err(error) => return Some(Err(error)),
            }
        }
        // Where shared memory reaches, no network is used.
        let reached = self.has_shared_memory && !apart && found.iter().any(near);
        if self.several_hosts && !reached {
            found.retain(|rail| !near(rail));
            match self.published(peer, PLACES)? {
                Ok(places) => {
                    let paired = network::paired(&self.labels, places);
                    found.extend(paired.addresses);
                    together = paired.together;
                }
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(Paired { addresses: found, together }))
    }

    fn published(&self, peer: u32, key: &str) -> Option<Result<Vec<(String, Address)>, BootError>> {
        let word = self.connection.get(peer, key)?;
        Some(word.map_err(BootError::from).and_then(|word| {
            let mut world = 0;
            let words = word.split(',').filter(|word| match word.strip_prefix(WORLD) {
                Some(number) => {
                    world = number.parse().unwrap_or(0);
                    false
                }
                None => *word != NOWHERE,
            });
            let rails: Result<_, BootError> =
                words.map(|word| process_record::read_rail(peer, word)).collect();
            if world == self.worlds_before {
                return rails;
            }
            // It has joined the job anew.
            let error = LinkError::Departed;
            Err(BmlError::PeerLost { peer: Rank(peer), error }.into())
        }))
    }
}

impl Directory for Addresses {
    fn may_be_mapped(&self, peer: Rank) -> bool {
        self.has_others || !process_record::are_apart(self.map.host(self.me), self.map.host(peer.0))
    }

    fn look_up(&mut self, peer: Rank) -> FoundPeer {
        match self.of(peer.0) {
            Some(Ok(Paired { addresses, together: true })) => FoundPeer::Addresses(addresses),
            Some(Ok(Paired { addresses, together: false })) => FoundPeer::Apart(addresses),
            None => FoundPeer::Later,
            Some(Err(BootError::Peer(BmlError::PeerLost {
                error: LinkError::Departed, ..
            }))) => FoundPeer::Nothing(LinkError::Departed),
            Some(Err(error)) => {
                let reason = format!("its address could not be got: {error}");
                FoundPeer::Nothing(LinkError::Unreachable { reason })
            }
        }
    }
}
