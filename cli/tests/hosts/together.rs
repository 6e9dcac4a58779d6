//! What works across hosts: messages of all lengths and layouts, collectives; jobs over IPv6, of many processes, and
//! beside unauthenticated callers, who get nowhere.

mod many;
mod six;
mod unauthenticated;

use super::{host_of, on_two_hosts, under_launchers};
use crate::common::{meeting_folder, pattern};
use gapless::{Datatype, Primitive, ReduceOp, Source, View, ViewMut, World};
use std::net::{IpAddr, SocketAddr};

/// Shared memory within a host, one network to the other, and never both.
pub(super) fn expect_links(world: &World, network: &str) {
    let host = |rank| if world.size() == 2 { rank as usize } else { host_of(rank) };
    for peer in (0..world.size()).filter(|&peer| peer != world.rank()) {
        let limits = world.link(peer).unwrap().limits.expect("it is there");
        let near = host(peer) == host(world.rank());
        assert_eq!(limits.name, if near { "sm" } else { network }, "to rank {peer}");
    }
}

/// Everybody sends to everybody at once.
pub(super) fn exchange(world: &World, len: usize) {
    let comm = world.comm();
    let (me, size) = (comm.rank(), comm.size());
    let seed = |from: u32, to: u32| u64::from(from * 16 + to);
    let out: Vec<_> = (0..size).map(|to| pattern(len, seed(me, to))).collect();
    let mut into = vec![vec![0u8; len]; size as usize];
    comm.scope(|s| {
        for (from, buffer) in (0..size).zip(&mut into) {
            let _ = s.irecv(buffer, from, 1)?;
        }
        for (to, buffer) in (0..size).zip(&out) {
            let _ = s.isend(buffer, to, 1)?;
        }
        Ok(())
    })
    .unwrap();
    for (from, buffer) in (0..size).zip(&into) {
        let due = pattern(len, seed(from, me));
        let wrong: Vec<usize> = (0..len).filter(|&at| buffer[at] != due[at]).collect();
        let ends = (wrong.first(), wrong.last());
        assert!(wrong.is_empty(), "{len} bytes from {from}: {} wrong, {ends:?}", wrong.len());
    }
}

/// Columns of a matrix to the right neighbour's, from one layout into another.
pub(super) fn columns(world: &World, rows: usize) {
    let comm = world.comm();
    let (me, size) = (comm.rank(), comm.size());
    let every = |stride: usize| {
        let (count, stride) = (rows as u64, i64::try_from(stride).unwrap());
        let column = Datatype::vector(count, 1, stride, &Primitive::Double.into()).unwrap();
        column.commit().unwrap()
    };
    let (from, to) = (every(4), every(7));
    let value = |rank: u32, at: usize| f64::from(rank) * 1e7 + at as f64;
    let mine: Vec<f64> = (0..rows * 4).map(|at| value(me, at)).collect();
    let mut theirs = vec![-1.0f64; rows * 7];
    let (right, left) = ((me + 1) % size, (me + size - 1) % size);
    comm.scope(|s| {
        let _ = s.irecv(ViewMut::typed(&mut theirs, 3, &to, 1)?, left, 2)?;
        let _ = s.isend(View::typed(&mine, 1, &from, 1)?, right, 2)?;
        Ok(())
    })
    .unwrap();
    for (at, &got) in theirs.iter().enumerate() {
        let due = if at % 7 == 3 { value(left, at / 7 * 4 + 1) } else { -1.0 };
        assert!((got - due).abs() < 0.5, "element {at} is {got}, not {due}");
    }
}

/// Collectives of `len` elements, against what they mean.
pub(super) fn collectives(world: &World, len: usize) {
    let comm = world.comm();
    let (me, size) = (comm.rank(), comm.size());
    let value = |rank: u32, at: usize| u64::from(rank) * 1_000_003 + at as u64;
    comm.barrier().unwrap();
    let mine: Vec<u64> = (0..len).map(|at| value(me, at)).collect();
    for root in 0..size {
        let mut whole = if me == root { mine.clone() } else { vec![0; len] };
        comm.bcast(&mut whole, root).unwrap();
        assert!((0..len).all(|at| whole[at] == value(root, at)), "bcast of {len} from {root}");
    }
    let mut sum = vec![0u64; len];
    comm.allreduce(&mine, &mut sum, ReduceOp::Sum).unwrap();
    let right = |at: usize| (0..size).map(|rank| value(rank, at)).sum::<u64>();
    assert!((0..len).all(|at| sum[at] == right(at)), "allreduce of {len}");
    let mut all = vec![0u64; len * size as usize];
    comm.allgather(&mine, &mut all).unwrap();
    let due = |at: usize| value(u32::try_from(at / len.max(1)).unwrap(), at % len.max(1));
    assert!((0..all.len()).all(|at| all[at] == due(at)), "allgather of {len}");
    let out: Vec<u64> = (0..size)
        .flat_map(|to| (0..len).map(move |at| (to, at)))
        .map(|(to, at)| value(me * 8 + to, at))
        .collect();
    comm.alltoall(&out, &mut all).unwrap();
    let due = |at: usize| value(u32::try_from(at / len.max(1)).unwrap() * 8 + me, at % len.max(1));
    assert!((0..all.len()).all(|at| all[at] == due(at)), "alltoall of {len}");
}

fn everything(world: &World) {
    for len in [0, 1, 100, 4096, 70_000, 1 << 20, 9 << 20] {
        exchange(world, len);
    }
    for rows in [1, 50, 5_000, 200_000] {
        columns(world, rows);
    }
    for len in [0, 1, 33, 2_000, 100_000] {
        collectives(world, len);
    }
    // A communicator whose ranks are on both hosts, in another order.
    let pair =
        world.comm().split(Some(world.rank() % 2), -i32::try_from(world.rank()).unwrap()).unwrap();
    if let Some(pair) = pair {
        let mut both = [0u64; 2];
        pair.allgather(&[u64::from(world.rank())], &mut both).unwrap();
        assert_eq!(both, [u64::from(world.rank() % 2) + 2, u64::from(world.rank() % 2)]);
    }
    expect_links(world, "tcp");
}

#[test]
fn two_ranks_on_each_of_two_hosts() {
    under_launchers("together::two_ranks_on_each_of_two_hosts", |world| {
        everything(&world);
        world.finalize().unwrap();
    });
}

#[test]
fn encrypted_hosts_understand_each_other() {
    on_two_hosts("together::encrypted_hosts_understand_each_other", &[], |builder| {
        let world = builder.encrypt(true).init().unwrap();
        for len in [0, 1, 100, 70_000, 3 << 20] {
            exchange(&world, len);
        }
        columns(&world, 5_000);
        collectives(&world, 2_000);
        expect_links(&world, "tcp");
        world.finalize().unwrap();
    });
}

#[test]
fn hosts_that_do_not_agree_on_encryption_are_told_so() {
    on_two_hosts("together::hosts_that_do_not_agree_on_encryption_are_told_so", &[], |builder| {
        // Rank 2, too, is told of rank 3, with which it never speaks over the network.
        let encrypts = crate::common::folder_wireup().rank() < 3;
        let error = builder.encrypt(encrypts).init().expect_err("they do not agree");
        let due = match encrypts {
            true => "rank 3 is incompatible: encryption is off there and on here",
            false => "rank 0 is incompatible: encryption is on there and off here",
        };
        assert_eq!(error.to_string(), due);
    });
}

/// Where a rank listens, out of what it published.
fn places_of(rank: u32) -> Vec<SocketAddr> {
    let word =
        std::fs::read_to_string(meeting_folder().join(format!("{rank}.gapless-network"))).unwrap();
    // The first rail over TCP, with the networks that it leads to.
    let mut rails = word.split(',').filter_map(|rail| rail.split_once(':'));
    let (_, digits) = rails.find(|(label, _)| label.split('/').next() == Some("tcp")).unwrap();
    let bytes: Vec<u8> = (0..digits.len() / 2)
        .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let (mut rest, mut places) = (&bytes[44..], Vec::new());
    while let [family, high, low, address @ ..] = rest {
        let len = if *family == 4 { 4 } else { 16 };
        let (address, behind) = address.split_at(len);
        let address: IpAddr = match <[u8; 4]>::try_from(address) {
            Ok(v4) => v4.into(),
            Err(_) => <[u8; 16]>::try_from(address).unwrap().into(),
        };
        places.push(SocketAddr::new(address, u16::from_be_bytes([*high, *low])));
        rest = behind;
    }
    places
}

#[test]
fn a_job_without_a_way_between_its_hosts_is_told_so() {
    on_two_hosts("together::a_job_without_a_way_between_its_hosts_is_told_so", &[], |builder| {
        let error = builder.only(["sm"]).init().expect_err("the others are not reached");
        let text = error.to_string();
        assert!(text.contains("another network namespace"), "{text}");
    });
}

#[test]
fn interfaces_that_are_not_there_are_named() {
    on_two_hosts("together::interfaces_that_are_not_there_are_named", &[], |builder| {
        let error =
            builder.tcp_interfaces("eth7,192.168.0.0/16").init().expect_err("there are none");
        let text = error.to_string();
        assert!(text.contains("tcp") && text.contains("eth0"), "{text}");
    });
}

/// Two interfaces, of which one is asked for; and ports of a range.
#[test]
fn a_job_keeps_to_the_interfaces_and_ports_it_is_given() {
    on_two_hosts("together::a_job_keeps_to_the_interfaces_and_ports_it_is_given", &[], |builder| {
        let world =
            builder.tcp_interfaces("10.0.0.0/8,!lo").tcp_ports(45_000..=45_003).init().unwrap();
        exchange(&world, 5000);
        for rank in 0..4 {
            let places = places_of(rank);
            let [SocketAddr::V4(place)] = places[..] else { panic!("{places:?}") };
            assert!(
                (45_000..=45_003).contains(&place.port())
                    && place.ip().octets()[..3] == [10, 77, 0]
            );
        }
        let mut byte = [0u8];
        if world.rank() == 0 {
            world.comm().recv(&mut byte, Source::Any, 9).unwrap();
        } else if world.rank() == 3 {
            world.comm().send(&[1u8], 0, 9).unwrap();
        }
        world.finalize().unwrap();
    });
}
