//! Encoding and back; hostile bytes.

use super::*;
use crate::build::tests::{seed, small};
use crate::datatype::Datatype;
use crate::testkit::Rng;

fn encoded(signature: &Signature) -> Vec<u8> {
    let mut bytes = Vec::new();
    signature.encode(&mut bytes);
    bytes
}

fn decoded(mut bytes: &[u8]) -> Result<Signature, SignatureDecodeError> {
    Signature::decode(&mut bytes)
}

#[test]
fn random_signatures_round_trip() {
    let seed = seed();
    let mut rng = Rng::new(seed);
    for nth in 0..2000 {
        let (t, _) = small(&mut rng);
        let mut bytes = encoded(t.signature());
        bytes.extend(b"rest");
        let mut rest = &bytes[..];
        let again = Signature::decode(&mut rest).unwrap();
        assert_eq!(rest, b"rest", "seed {seed}, type {nth}");
        assert_eq!(again, *t.signature(), "seed {seed}, type {nth}");
        assert_eq!(encoded(&again).len(), bytes.len() - 4, "seed {seed}, type {nth}");
    }
}

#[test]
fn sharing_survives() {
    let mut t = Datatype::from(Primitive::Int);
    let double = Datatype::from(Primitive::Double);
    for _ in 0..40 {
        let parts = [t.clone(), double.clone(), t];
        t = Datatype::structure(&[1, 1, 1], &[0, 0, 0], &parts).unwrap();
    }
    let bytes = encoded(t.signature());
    assert!(bytes.len() < 40 * 8);
    assert_eq!(decoded(&bytes).unwrap().elements(), t.signature().elements());
}

#[test]
fn every_cut_is_an_error() {
    let parts = [Primitive::DoubleInt.into(), Primitive::Char.into()];
    let t = Datatype::structure(&[300, 1], &[0, 5000], &parts).unwrap();
    let bytes = encoded(t.signature());
    for len in 0..bytes.len() {
        assert_eq!(decoded(&bytes[..len]).unwrap_err(), SignatureDecodeError::Truncated);
    }
}

#[test]
fn changed_bytes_never_panic() {
    let seed = seed();
    let mut rng = Rng::new(seed);
    let mut refused = 0;
    for _ in 0..5000 {
        let (t, _) = small(&mut rng);
        let mut bytes = encoded(t.signature());
        for _ in 0..=rng.below(3) {
            let at = usize::try_from(rng.below(bytes.len() as u64)).unwrap();
            bytes[at] = rng.next_u64().to_le_bytes()[0];
        }
        match decoded(&bytes) {
            Ok(signature) => assert!(signature.elements() <= signature.bytes()),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 100, "seed {seed}");
}

#[test]
fn hostile_bytes_are_refused_by_name() {
    use SignatureDecodeError as E;
    let int = Primitive::Int as u8;
    let number = |n: u64| {
        let mut bytes = Vec::new();
        write_number(n, &mut bytes);
        bytes
    };
    let cases: Vec<(Vec<u8>, E)> = vec![
        (vec![], E::Truncated),
        (vec![0], E::Short),
        (vec![0xff; 12], E::Number),
        (vec![1, 9], E::Tag(9)),
        (vec![1, BASIC, 200], E::Basic(200)),
        (vec![1, BASIC, Primitive::FloatInt as u8], E::Basic(Primitive::FloatInt as u8)),
        (vec![1, REPEAT, 2, 0], E::Place { node: 0, place: 0 }),
        (vec![2, BASIC, int, REPEAT, 2, 7], E::Place { node: 1, place: 7 }),
        (vec![2, BASIC, int, REPEAT, 1, 0], E::Short),
        (vec![2, BASIC, int, SEQUENCE, 1, 0], E::Short),
        (vec![2, EMPTY, BASIC, int], E::Short),
        ([vec![2, BASIC, int, REPEAT], number(u64::MAX), vec![0]].concat(), E::Overflow),
        (
            [vec![2, BASIC, int, SEQUENCE], number(1 << 40)].concat(),
            E::TooLarge { what: "parts", found: 1 << 40, limit: MAX_SIGNATURE_PARTS },
        ),
        (
            number(u64::MAX),
            E::TooLarge { what: "nodes", found: u64::MAX, limit: MAX_SIGNATURE_NODES },
        ),
    ];
    for (bytes, wanted) in cases {
        assert_eq!(decoded(&bytes).unwrap_err(), wanted, "{bytes:?}");
    }
}

#[test]
fn depth_is_bounded() {
    // Sequences of (previous, int): each one level deeper, each one element longer.
    let levels = MAX_SIGNATURE_DEPTH + 1;
    let mut bytes = Vec::new();
    write_number(levels as u64 + 1, &mut bytes);
    bytes.extend([BASIC, Primitive::Int as u8]);
    for place in 0..levels as u64 {
        bytes.extend([SEQUENCE, 2]);
        write_number(place, &mut bytes);
        write_number(0, &mut bytes);
    }
    assert_eq!(decoded(&bytes).unwrap_err(), SignatureDecodeError::TooDeep);
}
