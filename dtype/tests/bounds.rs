//! At the edges: absolute addresses, counts far beyond memory, numbers that overflow, types at and
//! over the depth bound.

use gapless_dtype::limits::MAX_DEPTH;
use gapless_dtype::testkit::check_datatype;
use gapless_dtype::{Convertor, ConvertorError, Datatype, Layout, Primitive, Run, TypeError};

fn int() -> Datatype {
    Primitive::Int.into()
}

fn byte() -> Datatype {
    Primitive::Byte.into()
}

/// Displacements that are addresses: three buffers of one message, from a null base.
#[test]
fn absolute_addresses() {
    let pieces: [Vec<u8>; 3] = [vec![1, 2, 3], vec![4; 40], vec![5, 6]];
    let addresses: Vec<i64> = pieces
        .iter()
        .map(|piece| i64::try_from(piece.as_ptr().expose_provenance()).unwrap())
        .collect();
    let lengths: Vec<u64> =
        pieces.iter().map(|piece| u64::try_from(piece.len()).unwrap()).collect();
    let datatype = Datatype::hindexed(&lengths, &addresses, &byte()).unwrap();
    let layout = datatype.commit().unwrap();
    assert_eq!(layout.true_lb(), *addresses.iter().min().unwrap());

    let mut convertor = Convertor::new(&layout, 1).unwrap();
    let mut packed = [0_u8; 45];
    let null = std::ptr::with_exposed_provenance::<u8>(0);
    // SAFETY: the runs are exactly the three live vectors, whose addresses were exposed above;
    // `packed` holds all 45 bytes and is none of them.
    let n = unsafe { convertor.pack_raw(null, packed.as_mut_ptr(), 45) };
    assert_eq!(n, 45);
    assert_eq!(packed.to_vec(), pieces.concat());

    let mut targets = [vec![0_u8; 3], vec![0; 40], vec![0; 2]];
    let addresses: Vec<i64> = targets
        .iter_mut()
        .map(|target| i64::try_from(target.as_mut_ptr().expose_provenance()).unwrap())
        .collect();
    let datatype = Datatype::hindexed(&lengths, &addresses, &byte()).unwrap();
    let mut convertor = Convertor::new(&datatype.commit().unwrap(), 1).unwrap();
    let null = std::ptr::with_exposed_provenance_mut::<u8>(0);
    for piece in packed.chunks(7) {
        let len = u64::try_from(piece.len()).unwrap();
        // SAFETY: the runs are the three live vectors `targets`, exposed above and not borrowed
        // meanwhile; `piece` holds `len` bytes and is none of them.
        assert_eq!(unsafe { convertor.unpack_raw(piece.as_ptr(), null, len) }, len);
    }
    assert_eq!(targets.concat(), packed);
}

/// 2^40 elements and more, without touching memory: what is asked takes no time.
#[test]
fn counts_beyond_memory() {
    const N: u64 = 1 << 40;
    let column = Datatype::vector(N, 1, 3, &int()).unwrap();
    assert_eq!(column.size(), 4 << 40);
    assert_eq!(column.extent(), 12 * (1 << 40) - 8);
    let layout = column.commit().unwrap();
    assert_eq!(layout.blocks(), N);
    let mut convertor = Convertor::new(&layout, 1 << 10).unwrap();
    assert_eq!(convertor.packed_size(), 4 << 50);
    // Element 2^40 + 7 of the stream is element 7 of instance 1.
    convertor.seek((4 << 40) + 4 * 7 + 1).unwrap();
    let mut runs = [Run::default(); 2];
    let (n, bytes) = convertor.iov(&mut runs, 5);
    assert_eq!((n, bytes), (2, 5));
    let second = column.extent() + 12 * 7;
    let expected =
        [Run { displacement: second + 1, len: 3 }, Run { displacement: second + 12, len: 2 }];
    assert_eq!(runs, expected);
    assert_eq!(convertor.position(), (4 << 40) + 4 * 7 + 6);

    let digest = layout.signature().digest(1 << 10);
    assert_eq!((digest.elements, digest.bytes), (1 << 50, 4 << 50));
    int().signature().accepts_prefix(1 << 50, &digest).unwrap();
    assert!(int().signature().accepts_prefix((1 << 50) - 1, &digest).is_err());

    let decoded = Layout::unflatten(&layout.flatten()).unwrap();
    assert_eq!((decoded.size(), decoded.blocks()), (layout.size(), N));

    // One run of 4 EiB.
    let long = Datatype::contiguous(1 << 60, &int()).unwrap().commit().unwrap();
    let mut convertor = Convertor::new(&long, 1).unwrap();
    let listed = convertor.iov(&mut runs[..1], u64::MAX);
    assert_eq!((listed, runs[0]), ((1, 1 << 62), Run { displacement: 0, len: 1 << 62 }));
}

#[test]
fn overflow_is_an_error() {
    let overflows = |built: Result<Datatype, TypeError>| {
        let error = built.expect_err("more than 64 bits");
        assert!(matches!(error, TypeError::Overflow { .. }), "{error}");
    };
    overflows(Datatype::contiguous(u64::MAX, &int()));
    overflows(Datatype::contiguous(1 << 62, &int()));
    overflows(Datatype::vector(u64::MAX, u64::MAX, 1, &int()));
    overflows(Datatype::vector(2, 1, i64::MAX, &int()));
    overflows(Datatype::vector(2, 1, i64::MIN, &int()));
    overflows(Datatype::hvector(3, 1, i64::MAX, &byte()));
    overflows(Datatype::indexed(&[1], &[i64::MAX], &int()));
    overflows(Datatype::hindexed(&[1, 1], &[i64::MIN, i64::MAX], &byte()));
    overflows(Datatype::hindexed_block(2, &[i64::MAX], &byte()));
    overflows(Datatype::structure(&[1, 1], &[i64::MIN, 0], &[byte(), byte()]));
    overflows(Datatype::resized(i64::MAX, 1, &byte()));
    overflows(Datatype::resized(i64::MIN, i64::MIN, &byte()));

    let half = Datatype::contiguous(1 << 61, &byte()).unwrap().commit().unwrap();
    let error = Convertor::new(&half, 4).unwrap_err();
    assert_eq!(error, ConvertorError::Overflow { count: 4, size: 1 << 61, extent: 1 << 61 });
    Convertor::new(&half, 3).unwrap();
    // Few bytes, far apart: the span overflows, not the size.
    let far = Datatype::resized(0, 1 << 61, &byte()).unwrap().commit().unwrap();
    assert!(matches!(Convertor::new(&far, 5), Err(ConvertorError::Overflow { .. })));
    Convertor::new(&far, 4).unwrap();
    // Nothing is never too much.
    let empty = Datatype::contiguous(0, &byte()).unwrap().commit().unwrap();
    assert_eq!(Convertor::new(&empty, u64::MAX).unwrap().packed_size(), 0);
}

/// Types of `depth` levels by one constructor after another.
fn tower(
    depth: usize,
    level: impl Fn(usize, &Datatype) -> Result<Datatype, TypeError>,
) -> Datatype {
    (0..depth).fold(byte(), |old, at| level(at, &old).expect("not too deep yet"))
}

#[test]
fn depth_up_to_the_bound_and_not_beyond() {
    let dup = tower(MAX_DEPTH, |_, old| old.dup());
    let resized =
        tower(MAX_DEPTH, |at, old| Datatype::resized(0, 1 + i64::try_from(at).unwrap(), old));
    // Doubles twice, in between shifted levels: 2^10 bytes.
    let mixed = tower(MAX_DEPTH, |at, old| match at % 16 {
        0 if at < 64 => Datatype::hvector(2, 1, 3 * old.true_ub(), old),
        3 => Datatype::structure(&[1, 1], &[0, old.true_ub() + 3], &[old.clone(), byte()]),
        7 => Datatype::hindexed_block(1, &[5], old),
        _ => Datatype::resized(0, old.true_ub() + 1, old),
    });
    for datatype in [dup, resized, mixed] {
        assert_eq!(datatype.depth(), MAX_DEPTH);
        check_datatype(&datatype, 2, 99);
        let error = datatype.dup().unwrap_err();
        assert!(matches!(error, TypeError::TooDeep { limit: MAX_DEPTH, .. }), "{error}");
        let error = Datatype::contiguous(2, &datatype).unwrap_err();
        assert!(matches!(error, TypeError::TooDeep { limit: MAX_DEPTH, .. }), "{error}");
    }
}

/// A type whose tree, written out, would have 2^100 leaves: sharing keeps it small everywhere.
#[test]
fn sharing_is_not_expanded() {
    let shared = tower(50, |_, old| {
        let zero = Datatype::contiguous(0, old)?;
        Datatype::structure(&[1, 1], &[0, 1], &[zero.clone(), zero])
    });
    assert_eq!(shared.size(), 0);
    assert_eq!(shared.commit().unwrap().blocks(), 0);
    let twice = tower(40, |_, old| {
        let end = old.true_ub();
        Datatype::structure(&[1, 1], &[0, end + 1], &[old.clone(), old.clone()])
    });
    let layout = twice.commit().unwrap();
    assert_eq!(layout.size(), 1 << 40);
    assert_eq!(layout.blocks(), 1 << 40);
    let decoded = Layout::unflatten(&layout.flatten()).unwrap();
    assert_eq!(decoded.blocks(), 1 << 40);
    let mut convertor = Convertor::new(&layout, 1).unwrap();
    convertor.seek((1 << 40) - 1).unwrap();
    let mut runs = [Run::default(); 2];
    assert_eq!(convertor.iov(&mut runs, u64::MAX), (1, 1));
    assert_eq!(runs[0].displacement, twice.true_ub() - 1);
}
