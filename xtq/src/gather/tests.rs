use super::*;
use crate::XtqError;
use crate::packet::Launch;
use std::io::IoSlice;
use std::sync::Arc;

/// Bytes with holes between them: two of each four.
struct Holes(Vec<u8>);

impl Gather for Holes {
    fn bytes(&self) -> usize {
        self.0.len() / 2
    }

    fn gather(&self, from: usize, into: &mut GatherInto<'_>) {
        let bytes = self.0.chunks_exact(4).flat_map(|four| &four[..2]);
        bytes.skip(from).for_each(|byte| into.write(&[*byte]));
    }
}

/// Says that it has more than it writes.
struct Short;

impl Gather for Short {
    fn bytes(&self) -> usize {
        5
    }

    fn gather(&self, _: usize, into: &mut GatherInto<'_>) {
        into.write(b"ab");
    }
}

fn pieces() -> Payload {
    let shared: Arc<[u8]> = Arc::from(*b"0123456789");
    let part = Payload::part_of(&shared, 3..8).unwrap();
    let holes = Payload::gathered(Arc::new(Holes(b"ab..cd..ef..".to_vec())));
    let inner = Payload::pieces([vec![b'x'].into(), part.clone(), Payload::none()]);
    Payload::pieces([vec![1; 100].into(), holes, inner, part, shared.into(), b"end"[..].into()])
}

#[test]
fn any_window_of_pieces_has_their_bytes_wherever_it_goes() {
    let all = pieces();
    let expected = [&[1; 100][..], b"abcdef", b"x34567", b"34567", b"0123456789", b"end"].concat();
    assert_eq!((all.len(), all.to_vec()), (expected.len(), expected.clone()));
    let words: Vec<AtomicU64> = (0..20).map(|_| AtomicU64::new(u64::MAX)).collect();
    for from in 0..=expected.len() {
        for to in from..=expected.len() {
            let part = all.part().sub(from..to);
            assert_eq!(part.to_vec(), expected[from..to]);
            words.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
            part.write(GatherInto::words(&words, to - from)).unwrap();
            let there = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
            let there: Vec<u8> = there.collect();
            let end = (to - from).next_multiple_of(8);
            let (now, behind) = there.split_at(end);
            let (now, rest) = now.split_at(to - from);
            assert_eq!(now, &expected[from..to]);
            // The last word is filled up, and no other is touched.
            assert!(rest.iter().all(|byte| *byte == 0) && behind.iter().all(|byte| *byte == 255));
        }
    }
}

/// However they are built up: by pieces that nobody else has, or that somebody keeps.
#[test]
fn pieces_of_pieces_are_as_deep_as_they_may_be() {
    for keeps in [false, true] {
        let (mut all, mut kept, mut expected) = (Payload::none(), Vec::new(), Vec::new());
        for number in 0..20_000u32 {
            let more = [number.to_le_bytes()[0]; 2];
            if number < 2000 || !keeps {
                kept.extend(keeps.then(|| all.clone()));
                all = Payload::pieces([all, more[..].into()]);
                expected.extend(more);
            }
        }
        assert_eq!(all.to_vec(), expected);
        drop(all);
    }
    // More than memory has.
    let mut endless = Payload::from(vec![1; 1000]);
    for _ in 0..200 {
        endless = Payload::pieces([endless.clone(), endless]);
    }
    assert_eq!(endless.len(), usize::MAX);
}

#[test]
fn arguments_that_are_too_long_are_not_copied() {
    let endless = Payload::pieces(vec![Payload::pieces(vec![vec![1; 1000]; 1000]); 1000]);
    let long = Payload::pieces(vec![endless; 1_000_000]);
    let put = crate::put::Put::kernel(gapless_bml::Rank(0), 0, 0, Launch::linear(1, 1, 16), long);
    assert!(matches!(put.order.packet(), Err(XtqError::Packet(_))));
}

#[test]
fn what_a_source_leaves_out_is_0_and_what_comes_behind_it_stays_in_its_place() {
    let short = || Payload::gathered(Arc::new(Short));
    assert_eq!(short().to_vec(), b"ab\0\0\0");
    let all = Payload::pieces([short(), b"end"[..].into()]);
    assert_eq!(all.to_vec(), b"ab\0\0\0end");
}

#[test]
fn pieces_without_bytes_and_single_ones_stay_what_they_are() {
    assert!(Payload::pieces([vec![], vec![]]).is_empty());
    let one = Payload::pieces([vec![], vec![7; 100], vec![]]);
    assert!(matches!(one.part(), PayloadBytes::One(bytes) if bytes == [7; 100]));
    let borrowed = [&b"ab"[..], b"", b"cde"];
    let slices = borrowed.map(IoSlice::new);
    for copied in [Payload::from(&borrowed[..]), Payload::from(&slices[..])] {
        assert!(matches!(copied.part(), PayloadBytes::One(b"abcde")));
    }
    let long = [&[1; 60][..], &[2; 60]];
    assert_eq!(Payload::from(&long[..]).to_vec(), long.concat());
}

#[test]
fn parts_that_do_not_lie_in_their_slice_are_refused() {
    let bytes: Arc<[u8]> = Arc::from([0; 8]);
    assert_eq!(Payload::part_of(&bytes, 3..3).unwrap().len(), 0);
    #[allow(clippy::reversed_empty_ranges, reason = "that is the case")]
    for range in [5..9, 6..5, 9..9, usize::MAX..1] {
        let (from, to, len) = (range.start, range.end, 8);
        let refused = Payload::part_of(&bytes, range).unwrap_err();
        assert_eq!(refused, XtqError::PieceOutside { from, to, len });
    }
}

#[test]
fn a_place_gives_its_memory_only_where_it_has_an_address() {
    let mut bytes = [0; 8];
    let mut place = GatherInto::memory(&mut bytes);
    place.write(b"ab");
    let region = place.direct(3).unwrap();
    assert_eq!((region.len(), place.left()), (3, 3));
    place.write(b"more than fits");
    assert_eq!((place.left(), place.direct(1).unwrap().len()), (0, 0));
    assert_eq!(&bytes, b"ab\0\0\0mor");
    let words = [AtomicU64::new(0)];
    assert!(GatherInto::words(&words, 8).direct(8).is_none());
}
