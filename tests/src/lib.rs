//! Tests that cross crates: the whole stack, with every process a thread of one.
//!
//! [`job`] runs a function as each rank of a job whose ranks are threads. They meet through memory, and the test
//! chooses their transports: loopbacks that lack abilities, misbehave or are traced. Jobs of real processes under a
//! launcher are tested in `cli/tests`; a [`launcher`](launcher::TestLauncher) plays them without one.
#![forbid(unsafe_code)]

pub mod launcher;

/// What `#[derive(Datatype)]` takes and refuses: its examples, which need `gapless-dtype`, run here.
#[cfg(doctest)]
#[doc = include_str!("../../derive/README.md")]
struct Derive;

/// The tutorial: its code runs.
#[cfg(doctest)]
mod tutorial {
    #[doc = include_str!("../../docs/tutorial/1-first-message.md")]
    struct FirstMessage;
    #[doc = include_str!("../../docs/tutorial/3-gpus.md")]
    struct Gpus;
    #[doc = include_str!("../../docs/tutorial/5-own-datatype.md")]
    struct OwnDatatype;
    #[doc = include_str!("../../docs/tutorial/7-paged-cache.md")]
    struct PagedCache;
}

use gapless::btl::Btl;
use gapless::wireup::{Wireup, WireupError};
use gapless::{Builder, Config, World};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Longest that a rank waits for the others at a fence.
const FENCE_SECONDS_MAX: u64 = 60;

#[derive(Debug, Default)]
struct KeyTable {
    values: HashMap<String, String>,
    /// Ranks that have come to each fence.
    come: HashMap<u32, u32>,
}

/// How ranks that are threads find each other.
#[derive(Debug)]
struct Threads {
    rank: u32,
    size: u32,
    fences: u32,
    /// The host that each rank plays to be on.
    hosts: Arc<[u32]>,
    keys: Arc<(Mutex<KeyTable>, Condvar)>,
}

impl Threads {
    /// What a rank publishes: its card names the host that it plays to be on. Those of host 0 are where they are.
    fn disguise(&self, value: &str) -> String {
        let host = self.hosts[self.rank as usize];
        let word = |word: &str| match word.starts_with("host:") && host != 0 {
            true => format!("host:{host}"),
            false => word.to_owned(),
        };
        value.split(',').map(word).collect::<Vec<_>>().join(",")
    }
}

impl Wireup for Threads {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn local_size(&self) -> Option<u32> {
        Some(self.size)
    }

    fn job(&self) -> &str {
        "threads"
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), WireupError> {
        let mut keys = self.keys.0.lock().unwrap_or_else(PoisonError::into_inner);
        keys.values.insert(format!("{}.{key}", self.rank), self.disguise(value));
        Ok(())
    }

    fn fence(&mut self) -> Result<(), WireupError> {
        self.fences += 1;
        let (keys, wakeup) = &*self.keys;
        let mut keys = keys.lock().unwrap_or_else(PoisonError::into_inner);
        *keys.come.entry(self.fences).or_default() += 1;
        wakeup.notify_all();
        let (number, size) = (self.fences, self.size);
        let missing = |keys: &mut KeyTable| keys.come.get(&number) != Some(&size);
        let patience = Duration::from_secs(FENCE_SECONDS_MAX);
        let (_board, waited) = wakeup
            .wait_timeout_while(keys, patience, missing)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            let reason = "the other threads do not come".to_owned();
            return Err(WireupError::LauncherGone { doing: "fence", reason });
        }
        Ok(())
    }

    fn get(&mut self, from: u32, key: &str) -> Result<String, WireupError> {
        let keys = self.keys.0.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = || WireupError::NoSuchKey { from, key: key.to_owned() };
        keys.values.get(&format!("{from}.{key}")).cloned().ok_or_else(missing)
    }

    fn finalize(&mut self) -> Result<(), WireupError> {
        Ok(())
    }
}

/// Runs `body` as each of `size` ranks, with the transports that `transports` gives a rank and
/// nothing else, and finalizes.
///
/// # Panics
/// If a rank does, or cannot join or leave.
pub fn job(
    size: u32,
    config: &Config,
    transports: impl Fn(u32) -> Vec<Box<dyn Btl>> + Sync,
    body: impl Fn(&World) + Sync,
) {
    let builder = |rank| {
        let transports = transports(rank);
        let names: Vec<&str> = transports.iter().map(|btl| btl.limits().name).collect();
        let builder = World::builder().config(config.clone()).only(names);
        transports.into_iter().fold(builder, Builder::transport)
    };
    job_of(size, builder, body);
}

/// The same with whatever world each rank makes.
///
/// # Panics
/// If a rank does, or cannot join or leave.
pub fn job_of(size: u32, builder: impl Fn(u32) -> Builder + Sync, body: impl Fn(&World) + Sync) {
    worlds_of(size, builder, |world| {
        body(&world);
        world.finalize().expect("the threads part");
    });
}

/// The same; `body` owns the world and ends it itself.
///
/// # Panics
/// If a rank does, or cannot join.
pub fn worlds_of(size: u32, builder: impl Fn(u32) -> Builder + Sync, body: impl Fn(World) + Sync) {
    worlds_on(&vec![0; size as usize], builder, body);
}

/// The same, of ranks that play to be on these hosts.
///
/// # Panics
/// If a rank does, or cannot join.
pub fn worlds_on(
    hosts: &[u32],
    builder: impl Fn(u32) -> Builder + Sync,
    body: impl Fn(World) + Sync,
) {
    let size = u32::try_from(hosts.len()).expect("not so many threads");
    let (keys, hosts) = (Arc::<(Mutex<KeyTable>, Condvar)>::default(), Arc::<[u32]>::from(hosts));
    std::thread::scope(|threads| {
        for rank in 0..size {
            let (keys, hosts) = (Arc::clone(&keys), Arc::clone(&hosts));
            let (builder, body) = (&builder, &body);
            threads.spawn(move || {
                let wireup = Threads { rank, size, fences: 0, hosts, keys };
                let world = builder(rank).wireup(Box::new(wireup)).init();
                let world = world.expect("the threads meet");
                body(world);
            });
        }
    });
}

/// A byte that depends on all of `seed` and `at`.
#[must_use]
pub fn byte_at(seed: u64, at: u64) -> u8 {
    let x = (seed ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (x ^ (x >> 32)).to_be_bytes()[2]
}
