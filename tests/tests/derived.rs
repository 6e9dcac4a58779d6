//! Structs of a program's own are sent, received and used in collectives, without `unsafe`. Ranks are threads.
#![forbid(unsafe_code)]

mod layout;

use gapless::btl::Btl;
use gapless::{
    Blocks, BlocksMut, Config, Datatype, Equivalence, Error, FitError, InPlace, Parts, PmlError,
    ReduceOp, View, ViewMut, World,
};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_tests::job;

/// 29 bytes of 40.
#[derive(Datatype, Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
struct Particle {
    kind: u8,
    position: [f64; 3],
    mass: f32,
}

/// 10 bytes of 16.
#[derive(Datatype, Clone, Debug, Default, PartialEq)]
#[repr(C)]
struct Flags {
    alive: bool,
    letter: char,
    seen: [bool; 3],
    count: u16,
}

fn particle(i: usize) -> Particle {
    let number = f64::from(u32::try_from(i).unwrap());
    let kind = (i % 251).to_le_bytes()[0];
    Particle { kind, position: [number, -number, 0.5], mass: 2.0 }
}

fn particles(count: usize) -> Vec<Particle> {
    (0..count).map(particle).collect()
}

fn half(bytes: usize) -> Option<u64> {
    bytes.is_multiple_of(2).then_some(bytes as u64 / 2)
}

fn two(body: impl Fn(&World) + Sync) {
    let name = format!("derived-{}-{:?}", std::process::id(), std::thread::current().id());
    let sm = |rank| -> Vec<Box<dyn Btl>> {
        vec![Box::new(Sm::new(SmConfig::new(name.clone(), format!("rank {rank}"))).unwrap())]
    };
    job(2, &Config::default(), sm, body);
}

#[test]
fn structs_arrive_without_their_padding() {
    two(|world| {
        let (comm, other) = (world.comm(), 1 - world.rank());
        // By short, eager and longer messages.
        for count in [0, 1, 3, 200, 40_000] {
            let (out, mut into) = (particles(count), vec![Particle::default(); count]);
            let status = comm.sendrecv(&out, (other, 0), &mut into, (other, 0)).unwrap();
            assert_eq!(
                (status.bytes, status.count::<u16>()),
                (29 * count as u64, half(29 * count))
            );
            assert_eq!(status.count::<Particle>(), Some(count as u64));
            assert!(into == out, "{count}");
            let sent = comm.isend_owned(out, other, 1).unwrap();
            let (list, status) = comm.recv_vec::<Particle>(other, 1).unwrap();
            assert!(list == into && status.count::<Particle>() == Some(count as u64));
            sent.wait().1.unwrap();
        }
        // The first part of an element.
        let sent = comm.isend_owned(vec![7u8; 30], other, 2).unwrap();
        let (list, _) = comm.recv_vec::<Particle>(other, 2).unwrap();
        assert_eq!(list[1], Particle { kind: 7, ..Particle::default() });
        sent.wait().1.unwrap();
    });
}

#[test]
fn values_are_sent_by_themselves() {
    two(|world| {
        let (comm, other) = (world.comm(), 1 - world.rank());
        let (sent, answer) = (particle(7), 42);
        let (mut one, mut number, mut triple) = (Particle::default(), 0, [0.0; 3]);
        comm.scope(|s| {
            let _ = s.irecv(&mut one, other, 1)?;
            let _ = s.irecv(&mut number, other, 2)?;
            let _ = s.irecv(&mut triple, other, 3)?;
            let _ = s.isend(&sent, other, 1)?;
            let _ = s.isend(&answer, other, 2)?;
            let _ = s.isend(&sent.position, other, 3)?;
            Ok(())
        })
        .unwrap();
        assert_eq!((one, number, triple), (sent, answer, sent.position));
    });
}

#[test]
fn requests_own_lists_of_structs() {
    two(|world| {
        let (comm, other) = (world.comm(), 1 - world.rank());
        let recv = comm.irecv_owned(vec![Particle::default(); 9], other, 0).unwrap();
        let send = comm.isend_owned(particles(9).into_boxed_slice(), other, 0).unwrap();
        assert_eq!(recv.wait().0, particles(9));
        assert_eq!(*send.wait().0, particles(9));
        // What cannot be received can be owned and sent.
        let flags = comm.isend_owned(vec![Flags::default(); 2], other, 1).unwrap();
        let mut came = vec![Flags { count: 1, ..Flags::default() }; 2];
        comm.recv_checked(&mut came, other, 1).unwrap();
        assert_eq!(came, flags.wait().0);
    });
}

/// A column of a matrix of structs, into another one.
#[test]
fn structs_lie_in_layouts() {
    let column = Datatype::vector(4, 1, 3, &Particle::datatype()).unwrap().commit().unwrap();
    two(|world| {
        let (comm, other) = (world.comm(), 1 - world.rank());
        let (out, mut into) = (particles(12), vec![Particle::default(); 12]);
        let view = View::typed(&out, 1, &column, 1).unwrap();
        let room = ViewMut::typed(&mut into, 2, &column, 1).unwrap();
        comm.sendrecv(view, (other, 0), room, (other, 0)).unwrap();
        for (i, particle) in into.iter().enumerate() {
            let due = if i % 3 == 2 { out[i - 1] } else { Particle::default() };
            assert_eq!(*particle, due, "{i}");
        }
        let mut parts = Parts::of(&mut into);
        assert!(parts.view_mut(0, &column, 1).is_ok() && parts.view(0, &column, 1).is_err());
        let bytes = Datatype::contiguous(40, &gapless::Primitive::Byte.into()).unwrap();
        let gap = View::typed(&out, 0, &bytes.commit().unwrap(), 1).unwrap_err();
        assert!(matches!(gap, Error::Fit(FitError::Gap { byte: 1, .. })), "{gap}");
    });
}

#[test]
fn collectives_take_structs_and_values() {
    two(|world| {
        let (comm, rank) = (world.comm(), world.rank() as usize);
        let mut word = if rank == 1 { particle(5) } else { Particle::default() };
        comm.bcast(&mut word, 1).unwrap();
        assert_eq!(word, particle(5));
        let mut all = vec![Particle::default(); 6];
        comm.allgather(&particles(6)[3 * rank..][..3], &mut all).unwrap();
        assert_eq!(all, particles(6));
        let mut swapped = vec![Particle::default(); 6];
        comm.alltoall(&all, &mut swapped).unwrap();
        assert_eq!(swapped[..3], swapped[3..]);
        // Counts are in structs.
        let (send, recv) = if rank == 0 { ([1, 5], [1, 2]) } else { ([2, 4], [5, 4]) };
        let mut room = vec![Particle::default(); 9];
        let blocks = Blocks::packed(&all, &send).unwrap();
        comm.alltoallv(blocks, BlocksMut::packed(&mut room, &recv).unwrap()).unwrap();
        let due: Vec<usize> =
            if rank == 0 { vec![0, 0, 1] } else { vec![1, 2, 3, 4, 5, 2, 3, 4, 5] };
        assert!(due.iter().zip(&room).all(|(i, particle)| *particle == all[*i]));
        // Numbers, one of them or in rows.
        let (mut sum, mut rows) = (rank + 1, [[1.5f64; 3]; 2]);
        comm.allreduce(InPlace, &mut sum, ReduceOp::Sum).unwrap();
        comm.allreduce(InPlace, &mut rows, ReduceOp::Sum).unwrap();
        assert_eq!((sum, rows), (3, [[3.0; 3]; 2]));
        let mut gathered = [0.0; 2];
        comm.gather(&f64::from(world.rank()), &mut gathered, 0).unwrap();
        assert_eq!(gathered, if rank == 0 { [0.0, 1.0] } else { [0.0; 2] });
    });
}

#[test]
fn bits_are_looked_at_before_they_are_stored() {
    two(|world| {
        let (comm, other) = (world.comm(), 1 - world.rank());
        let flags = Flags { alive: true, letter: 'é', seen: [true, false, true], count: 7 };
        if world.rank() == 0 {
            comm.send(&[flags.clone(), flags], other, 0).unwrap();
            comm.send(&[1u8, 2, 0], other, 1).unwrap();
            comm.send(&['a', '\u{10FFFF}'], other, 2).unwrap();
            comm.send(&0xD800u32, other, 2).unwrap();
            // An element and a half.
            comm.send(&[1u8, 1, 0], other, 3).unwrap();
            comm.send(&[0u8; 30], other, 4).unwrap();
            return;
        }
        let mut into = vec![Flags::default(); 3];
        assert_eq!(comm.recv_checked(&mut into, other, 0).unwrap().bytes, 20);
        assert_eq!(into, [flags.clone(), flags, Flags::default()]);
        let mut bools = [true; 3];
        let error = comm.recv_checked(&mut bools, other, 1).unwrap_err();
        assert!(matches!(error, Error::Invalid { index: 1, element: "bool", .. }), "{error}");
        assert_eq!(
            error.to_string(),
            "element 1 of the message from rank 0 with tag 1 is no value of bool"
        );
        assert_eq!((bools, error.status().map(|status| status.bytes)), ([true; 3], Some(3)));
        let mut letters = ['x'; 2];
        comm.recv_checked(&mut letters, other, 2).unwrap();
        assert_eq!(letters, ['a', '\u{10FFFF}']);
        assert!(comm.recv_checked(&mut letters, other, 2).is_err());
        let mut pairs = [[false; 2], [false, true], [true; 2]];
        comm.recv_checked(&mut pairs, other, 3).unwrap();
        assert_eq!(pairs, [[true; 2], [false, true], [true; 2]]);
        let error = comm.recv_checked(&mut bools, other, 4).unwrap_err();
        assert!(
            matches!(&error, Error::Message(failure) if matches!(failure.error, PmlError::Truncated { .. }))
        );
        assert_eq!(bools, [true; 3]);
    });
}
