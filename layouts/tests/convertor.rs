//! The layouts through the convertor: packed and unpacked bytes equal the oracle's, gaps stay.

use gapless_dtype::{Convertor, naive::Typemap};
use gapless_layouts::{Case, Options, Side, cases, cases_with, documented_cases, families};

const GAP: u8 = 0xA5;

/// Bytes that differ from place to place.
fn pattern(len: u64) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)).to_le_bytes()[0]).collect()
}

fn convertor(side: &Side) -> Convertor {
    Convertor::new(&side.datatype.commit().unwrap(), side.count).unwrap()
}

fn check(case: &Case) {
    let source = pattern(case.send.buffer_bytes);
    let sent_from = usize::try_from(case.send.origin).unwrap();
    let received_at = usize::try_from(case.recv.origin).unwrap();
    let size = usize::try_from(case.payload_bytes).unwrap();

    let typemap = Typemap::of(&case.send.datatype).unwrap();
    let expected = typemap.pack(case.send.count, &source, sent_from).unwrap();
    let mut packed = vec![0; size];
    // In two pieces, cut where no element ends.
    let cut = size / 3;
    let mut cursor = convertor(&case.send);
    let (head, tail) = packed.split_at_mut(cut);
    assert_eq!(cursor.pack(&source, sent_from, head).unwrap(), cut, "{}", case.name);
    assert_eq!(cursor.pack(&source, sent_from, tail).unwrap(), size - cut, "{}", case.name);
    assert!(packed == expected, "{}: packed differs", case.name);

    let mut expected = vec![GAP; usize::try_from(case.recv.buffer_bytes).unwrap()];
    let mut arrived = expected.clone();
    let typemap = Typemap::of(&case.recv.datatype).unwrap();
    typemap.unpack(case.recv.count, &packed, &mut expected, received_at).unwrap();
    let mut cursor = convertor(&case.recv);
    for piece in [&packed[..cut], &packed[cut..]] {
        let taken = cursor.unpack(piece, &mut arrived, received_at).unwrap();
        assert_eq!(taken, piece.len(), "{}", case.name);
    }
    assert!(arrived == expected, "{}: unpacked differs", case.name);
}

#[test]
fn small_documented_cases() {
    let options = Options::default();
    let all = families().iter().flat_map(|info| documented_cases(info.family, &options).unwrap());
    let small = |case: &Case| {
        case.payload_bytes <= 200 << 10
            && case.send.buffer_bytes.max(case.recv.buffer_bytes) <= 32 << 20
    };
    let cases: Vec<Case> = all.filter(small).collect();
    assert!(cases.len() > 60, "{}", cases.len());
    cases.iter().for_each(check);
}

#[test]
fn papers_at_small_sizes() {
    for (name, n) in [("v", 96), ("vc", 96), ("t", 97), ("x", 64), ("face", 20), ("halo26", 12)] {
        cases(name, Some(n)).unwrap().iter().for_each(check);
    }
    let mut options = Options::default();
    options.stair_step = 16;
    cases_with("stair", Some(96), &options).unwrap().iter().for_each(check);
}

#[test]
fn several_instances() {
    cases("openmpi", Some(7)).unwrap().iter().for_each(check);
}
