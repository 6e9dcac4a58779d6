//! Signatures against the sequence written out.

use super::*;
use crate::build::tests::{seed, small};
use crate::testkit::Rng;

/// The sequence of basic types, by unfolding the graph.
fn expanded(signature: &Signature, out: &mut Vec<Primitive>) {
    match &signature.0.kind {
        NodeKind::Empty => {}
        NodeKind::Basic(primitive) => out.push(*primitive),
        NodeKind::Repeat { count, unit } => (0..*count).for_each(|_| expanded(unit, out)),
        NodeKind::Sequence { parts, .. } => parts.iter().for_each(|part| expanded(part, out)),
    }
}

fn digest_of(basics: &[Primitive]) -> SignatureDigest {
    let whole = basics.iter().map(|&p| Measure::of(p));
    whole.fold(Measure::EMPTY, Measure::then).into()
}

#[test]
fn random_signatures_are_their_sequences() {
    let seed = seed();
    let mut rng = Rng::new(seed);
    let mut prefixes = 0;
    for nth in 0..3000 {
        let (t, map) = small(&mut rng);
        let (wanted, mut made) = (map.signature().collect::<Vec<_>>(), Vec::new());
        expanded(t.signature(), &mut made);
        assert_eq!(made, wanted, "seed {seed}, type {nth}: {t:?}");
        let signature = Signature::of(&t);
        assert_eq!(signature.bytes(), t.size());
        assert_eq!(signature.digest(1), digest_of(&wanted));
        let three = wanted.repeat(3);
        assert_eq!(signature.digest(3), digest_of(&three));
        for cut in (0..=three.len()).step_by(1 + three.len() / 20) {
            let sent = digest_of(&three[..cut]);
            assert_eq!(
                SignatureDigest::from(signature.prefix(3, cut as u64, |it| it.elements)),
                sent,
                "seed {seed}, type {nth}, {cut} elements: {t:?}"
            );
            assert_eq!(signature.accepts_prefix(3, &sent), Ok(()));
            // What lies between two cuts.
            let bytes = |upto: usize| three[..upto].iter().map(|p| p.size_bytes()).sum::<u64>();
            let from = usize::try_from(rng.below(cut as u64 + 1)).unwrap();
            let part = signature.part(3, bytes(from)..bytes(cut));
            let (before, part) = part.expect("whole elements");
            assert_eq!(before, from as u64);
            // Behind the last instance lies nothing.
            if let Some(next) = three.get(from) {
                assert_eq!(signature.basic_at(before % signature.elements()), Some(*next));
            }
            let due = digest_of(&three[from..cut]);
            let seen = [part, due].map(|digest| (digest.elements, digest.bytes, digest.hash));
            assert_eq!(seen[0], seen[1], "seed {seed}, type {nth}, {from}..{cut}: {t:?}");
            let large = three.get(cut).is_some_and(|next| next.size_bytes() > 1);
            assert!(!large || signature.part(3, 0..bytes(cut) + 1).is_none());
            prefixes += 1;
        }
    }
    assert!(prefixes > 3000);
}

/// The type that a sequence is made of, by looking at all of it.
fn uniform(basics: &[Primitive]) -> Option<Primitive> {
    let first = *basics.first()?;
    if basics.iter().all(|basic| *basic == first) {
        return Some(first);
    }
    let second = *basics.get(1)?;
    let pair = Primitive::pair_of(first, second)?;
    basics.chunks(2).all(|unit| unit == [first, second]).then_some(pair)
}

#[test]
fn one_type_is_found_however_it_is_nested() {
    let seed = seed();
    let mut rng = Rng::new(seed);
    let (mut found, mut pairs) = (0, 0);
    for nth in 0..3000 {
        let (t, map) = small(&mut rng);
        let basics: Vec<Primitive> = map.signature().collect();
        let answer = t.signature().uniform();
        assert_eq!(answer, uniform(&basics), "seed {seed}, type {nth}: {t:?}");
        found += u32::from(answer.is_some());
        pairs += u32::from(answer.is_some_and(Primitive::is_pair));
    }
    assert!(found > 100, "only {found} types of one kind");
    for primitive in Primitive::ALL {
        let t = Datatype::from(primitive);
        let parts: Vec<_> = primitive.parts().map(|(part, _)| part).collect();
        let seen = if parts.iter().all(|part| *part == parts[0]) { parts[0] } else { primitive };
        let nested = Datatype::structure(&[2, 3], &[0, 400], &[t.clone(), t.clone()]).unwrap();
        for t in [t, nested] {
            assert_eq!(t.signature().uniform(), Some(seen));
            let pair = primitive.is_pair().then_some(primitive);
            assert!(pair.is_none() || t.signature().pair() == pair, "{primitive}");
        }
        pairs += u32::from(seen.is_pair());
    }
    assert!(pairs >= 5);
    assert_eq!(Signature::empty().uniform(), None);
}

#[test]
fn a_changed_element_is_a_mismatch() {
    let seed = seed();
    let mut rng = Rng::new(seed);
    let mut changed = 0;
    while changed < 500 {
        let (t, map) = small(&mut rng);
        let mut basics: Vec<Primitive> = map.signature().collect();
        let typed = basics.iter().all(|p| !p.is_untyped());
        if basics.is_empty() || !typed {
            continue;
        }
        let at = usize::try_from(rng.below(basics.len() as u64)).unwrap();
        let same_size = |p: &Primitive| {
            p.size_bytes() == basics[at].size_bytes() && !p.is_untyped() && !p.is_pair()
        };
        let other = Primitive::ALL.into_iter().find(|p| same_size(p) && *p != basics[at]);
        let Some(other) = other else { continue };
        basics[at] = other;
        let sent = digest_of(&basics);
        let refused = t.signature().accepts_prefix(1, &sent);
        assert!(matches!(refused, Err(SignatureError::Mismatch { .. })), "seed {seed}: {t:?}");
        changed += 1;
    }
}

#[test]
fn lists_over_one_type_take_constant_space() {
    let displacements: Vec<i64> = (0..10_000).rev().collect();
    let t = Datatype::indexed_block(3, &displacements, &Primitive::Double.into()).unwrap();
    let mut bytes = Vec::new();
    t.signature().encode(&mut bytes);
    assert!(bytes.len() < 16);
    assert_eq!(
        *t.signature(),
        Signature::repeat(30_000, Signature::basic(Primitive::Double)).unwrap()
    );
}

#[test]
fn equal_neighbours_merge() {
    let (int, double) = (Datatype::from(Primitive::Int), Datatype::from(Primitive::Double));
    let ints = Datatype::contiguous(4, &int).unwrap();
    let types = [int.clone(), ints, int, double];
    let t = Datatype::structure(&[2, 1, 3, 1], &[0, 8, 24, 40], &types).unwrap();
    let NodeKind::Sequence { parts, .. } = &t.signature().0.kind else {
        panic!("ints, then a double")
    };
    assert_eq!(parts.len(), 2);
    assert_eq!(parts[0].elements(), 9);
}

#[test]
fn untyped_signatures_match_what_fits() {
    let byte = Datatype::from(Primitive::Byte).signature().clone();
    let packed = Datatype::from(Primitive::Packed).signature().clone();
    let double = Datatype::from(Primitive::Double).signature().clone();
    assert_eq!(byte.kind(), SignatureKind::Bytes);
    byte.accepts_prefix(16, &double.digest(2)).unwrap();
    double.accepts_prefix(2, &packed.digest(13)).unwrap();
    let too_long = SignatureError::TooLong { sent_bytes: 16, posted_bytes: 15 };
    assert_eq!(byte.accepts_prefix(15, &double.digest(2)), Err(too_long));
    let mixed = Signature::sequence([(1, byte), (1, double.clone())].into_iter()).unwrap();
    assert_eq!(mixed.kind(), SignatureKind::Mixed);
    mixed.accepts_prefix(1, &double.digest(1)).unwrap();
    double.accepts_prefix(2, &mixed.digest(1)).unwrap();
}

#[test]
fn pairs_are_a_value_and_an_int() {
    let pair = Datatype::from(Primitive::DoubleInt);
    let basics = [Primitive::Double.into(), Primitive::Int.into()];
    let built = Datatype::structure(&[1, 1], &[0, 8], &basics).unwrap();
    assert_eq!(pair.signature(), built.signature());
    assert_eq!(Datatype::from(Primitive::TwoInt).signature().elements(), 2);
    assert_ne!(
        Datatype::from(Primitive::Int).signature(),
        Datatype::from(Primitive::Int32).signature(),
        "equal representation is not equal type"
    );
}

#[test]
fn empty_messages_always_fit() {
    let nothing = Signature::empty();
    let int = Datatype::from(Primitive::Int);
    assert_eq!(nothing.digest(u64::MAX).bytes, 0);
    int.signature().accepts_prefix(0, &nothing.digest(5)).unwrap();
    int.signature().accepts_prefix(3, &int.signature().digest(0)).unwrap();
    assert!(nothing.accepts_prefix(9, &int.signature().digest(1)).is_err());
}

#[test]
fn huge_counts_are_capped() {
    let double = Datatype::from(Primitive::Double);
    let all = double.signature().digest(u64::MAX);
    assert_eq!((all.bytes, all.elements), (u64::MAX, u64::MAX));
    let sent = double.signature().digest(1 << 40);
    double.signature().accepts_prefix(u64::MAX, &sent).unwrap();
}
