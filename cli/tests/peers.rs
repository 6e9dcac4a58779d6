//! What peers cost that are never talked to: memory, maps, descriptors; and a job whose ranks could not
//! have a link to each of the others.

use crate::common::{BODY, WATCHDOG, again, assert_ran, finish, gapless, is_rank, skip, text};
use gapless::Source;
use gapless_bml::{Bml, Rank};
use gapless_btl::{Address, Btl};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_engine::HostEngine;
use gapless_pml::{Config, Pml, Protocol};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::sync::Arc;

/// What a peer may cost that is never talked to, in bytes; a link costs about ten times as much.
const PEER_BYTES: u64 = 20_000;

/// What this process has: bytes of memory, maps, descriptors.
fn holdings() -> [u64; 3] {
    let read = |file: &str| std::fs::read_to_string(file).unwrap();
    let pages: u64 = read("/proc/self/statm").split(' ').nth(1).unwrap().parse().unwrap();
    let maps = read("/proc/self/maps").lines().count();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    [pages * rustix::param::page_size() as u64, maps as u64, descriptors as u64]
}

/// An endpoint that knows these peers, and what it costs.
fn endpoint(peers: &[Vec<(String, Address)>]) -> (Pml, [u64; 3]) {
    let before = holdings();
    let size = u32::try_from(peers.len() + 1).unwrap();
    let mut bml = Bml::new(Rank(0), size);
    bml.add(Box::new(Sm::new(SmConfig::new("peers", "rank 0")).unwrap()));
    for (rank, addresses) in (1..).map(Rank).zip(peers) {
        bml.introduce(rank, addresses).unwrap();
    }
    let pml = Pml::new(bml, vec![Arc::new(HostEngine)], Config::default());
    let after = holdings();
    let cost = [0, 1, 2].map(|at| after[at].saturating_sub(before[at]));
    (pml, cost)
}

#[test]
fn a_peer_that_is_never_talked_to_costs_little_memory_and_nothing_else() {
    let name = "peers::a_peer_that_is_never_talked_to_costs_little_memory_and_nothing_else";
    if is_rank(name) {
        let ends: Vec<Sm> = (1..=108)
            .map(|rank| Sm::new(SmConfig::new("peers", format!("rank {rank}"))).unwrap())
            .collect();
        let addresses: Vec<_> =
            ends.iter().map(|end| vec![(end.limits().name.to_owned(), end.address())]).collect();
        // Whatever is set up once is there by the second time.
        drop(endpoint(&addresses[..8]));
        let (few, [bytes_8, maps_8, descriptors_8]) = endpoint(&addresses[..8]);
        let (many, [bytes_108, maps_108, descriptors_108]) = endpoint(&addresses);
        let a_peer = bytes_108.saturating_sub(bytes_8) / 100;
        assert!(a_peer <= PEER_BYTES, "{a_peer} bytes: {bytes_8} for 8, {bytes_108} for 108");
        // The allocator may need some.
        assert!(maps_108 <= maps_8 + 20, "maps: {maps_8} for 8, {maps_108} for 108");
        assert_eq!(descriptors_8, descriptors_108, "descriptors");
        return drop((few, many, ends));
    }
    // In a process of its own: what other tests do is not measured.
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(&again(name)[1..]).env(BODY, name);
    let output = finish(command, WATCHDOG);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert_ran(&output, 1);
}

/// As many as `GAPLESS_RANKS` says, or a quarter of 500. (`cargo xtask soak` has them all.)
fn ranks() -> u32 {
    let text = std::env::var("GAPLESS_RANKS");
    text.map_or(125, |text| text.parse().expect("GAPLESS_RANKS is a number"))
}

/// Under the usual limit of 1,024 descriptors for 500 ranks, and the same share of it for fewer.
#[test]
fn many_ranks_fit_under_few_descriptors() {
    let ranks = ranks();
    let enough = u64::from(ranks) * 1024 / 500;
    let name = "peers::many_ranks_fit_under_few_descriptors";
    if is_rank(name) {
        let most = enough.min(getrlimit(Resource::Nofile).current.unwrap_or(enough));
        let limit = rustix::process::Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(Resource::Nofile, limit).unwrap();
        let world = gapless::World::init().unwrap();
        let (comm, rank) = (world.comm(), world.rank());
        // To ranks with and without a link, and from them.
        for distance in [1, 3, 57] {
            let (mine, mut number) = ([rank], [0u32]);
            let (to, from) = ((rank + distance) % ranks, (rank + ranks - distance) % ranks);
            comm.scope(|s| {
                let _ = s.isend(&mine, to, 0)?;
                let _ = s.irecv(&mut number, Source::Rank(from), 0)?;
                Ok(())
            })
            .unwrap();
            assert_eq!(number, [from]);
        }
        let [_, _, descriptors] = holdings();
        assert!(descriptors < enough, "{descriptors}");
        return world.finalize().unwrap();
    }
    // The launcher's own: four for each process, and 32.
    if getrlimit(Resource::Nofile).maximum.is_some_and(|most| most < u64::from(4 * ranks + 32)) {
        return skip(name, &format!("no launcher of {ranks} processes may open enough files here"));
    }
    let mut command = gapless();
    command.args(["run", "-n", &ranks.to_string(), "-e", &format!("{BODY}={name}")]);
    command.args(again(name));
    let output = finish(command, WATCHDOG);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    assert_ran(&output, ranks);
}

/// A message that is sent before there is a link goes by the protocol that the link allows, as later ones do.
#[test]
fn the_first_message_goes_by_the_same_protocol_as_the_second() {
    let name = "peers::the_first_message_goes_by_the_same_protocol_as_the_second";
    let config = Config { force: Some(Protocol::SingleCopy), ..Config::default() };
    let builder = || gapless::World::builder().config(config);
    // Ranks 0 and 3 of 8 are no neighbours, and a receive from any source makes no link.
    crate::common::ranks_with(8, name, builder, |world| {
        let comm = world.comm();
        let mut memory = vec![1u8; 1 << 20];
        match comm.rank() {
            0 => {
                comm.send(&memory, 3, 0).unwrap();
                comm.send(&memory, 3, 0).unwrap();
            }
            3 => {
                let first = comm.recv(&mut memory, Source::Any, 0).unwrap().protocol;
                let second = comm.recv(&mut memory, Source::Any, 0).unwrap().protocol;
                assert_eq!(
                    first, second,
                    "where single copy is forbidden, both are something else"
                );
            }
            _ => {}
        }
        world.finalize().unwrap();
    });
}
