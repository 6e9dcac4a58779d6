use super::*;
use crate::convertor::Convertor;
use crate::datatype::Datatype;
use crate::primitive::Primitive;
use crate::transfer::transfer;

fn page(kind: u64) -> Layout {
    let byte = Datatype::from(Primitive::Byte);
    let int = Datatype::from(Primitive::Int);
    let made = match kind {
        0 => Datatype::contiguous(5, &byte),
        1 => Datatype::vector(3, 1, 2, &int),
        2 => Datatype::hindexed(&[2, 1], &[7, 0], &byte),
        3 => Datatype::subarray(&[3, 4, 2], &[2, 2, 1], &[1, 1, 0], crate::Order::C, &int),
        _ => Datatype::contiguous(0, &byte),
    };
    made.unwrap().commit().unwrap()
}

fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

/// Some pages of at most 400 bytes in all, and how long a buffer that holds them is.
fn some(state: &mut u64) -> (Pages, usize) {
    let page = page(random(state, 5));
    let (stride, count) = (random(state, 40), random(state, 9));
    let list: Vec<u32> = (0..count).map(|_| u32::try_from(random(state, 11)).unwrap()).collect();
    let wide: Vec<u64> = list.iter().map(|index| u64::from(*index)).collect();
    let pages = match random(state, 2) {
        0 => Pages::new(&page, stride, &list[..]),
        _ => Pages::new(&page, stride, wide),
    };
    let pages = pages.unwrap();
    let len = pages.bounds().map_or(0, |(_, high)| usize::try_from(high).unwrap());
    (pages, len)
}

/// The oracle is an ordinary layout of the same places.
#[test]
fn any_range_is_packed_unpacked_and_listed_as_of_an_ordinary_layout() {
    let mut state = 3;
    for round in 0..3000 {
        let (pages, len) = some(&mut state);
        let ordinary = pages.to_layout().unwrap();
        let (mut one, mut other) =
            (Convertor::of_pages(&pages), Convertor::new(&ordinary, 1).unwrap());
        assert_eq!((one.packed_size(), one.bounds()), (other.packed_size(), other.bounds()));
        let digest = pages.page().signature().digest(pages.len());
        assert_eq!(digest, ordinary.signature().digest(1), "round {round}");
        let start = random(&mut state, one.packed_size() + 1);
        let room = usize::try_from(random(&mut state, one.packed_size() + 3)).unwrap();
        one.seek(start).unwrap();
        other.seek(start).unwrap();
        let source: Vec<u8> = (0..len).map(|_| random(&mut state, 256).to_le_bytes()[0]).collect();
        let (mut a, mut b) = (vec![0; room], vec![0; room]);
        let packed = one.clone().pack(&source, 0, &mut a).unwrap();
        assert_eq!(packed, other.clone().pack(&source, 0, &mut b).unwrap());
        assert_eq!(a, b, "round {round}: {pages:?} from {start}");
        let (mut into, mut onto) = (vec![0xEE; len], vec![0xEE; len]);
        one.clone().unpack(&a, &mut into, 0).unwrap();
        other.clone().unpack(&a, &mut onto, 0).unwrap();
        assert_eq!(into, onto, "round {round}: {pages:?} from {start}");
        let (mut runs, mut theirs) = ([crate::Run::default(); 64], [crate::Run::default(); 64]);
        let (used, _) = one.iov(&mut runs, room as u64);
        let (expected, _) = other.iov(&mut theirs, room as u64);
        assert_eq!(runs[..used], theirs[..expected], "round {round}: {pages:?} from {start}");
    }
}

#[test]
fn pages_go_to_pages_at_other_indices() {
    let page = page(1);
    let (from, to) = ([4u32, 0, 2], [1u64, 5, 0]);
    let source: Vec<u8> = (0..200).collect();
    let from = Pages::new(&page, 24, &from[..]).unwrap();
    let to = Pages::new(&page, 32, &to[..]).unwrap();
    for (here, there) in [(&from, &to), (&from, &from)] {
        let mut target = vec![0xEE; 200];
        let (mut reads, mut writes) = (Convertor::of_pages(here), Convertor::of_pages(there));
        let moved =
            transfer(&mut reads, &source, 0, &mut writes, &mut target, 0, u64::MAX).unwrap();
        assert_eq!((moved, reads.remaining()), (36, 0));
        let (mut sent, mut came) = ([0; 36], [0; 36]);
        Convertor::of_pages(here).pack(&source, 0, &mut sent).unwrap();
        Convertor::of_pages(there).pack(&target, 0, &mut came).unwrap();
        assert_eq!(sent, came);
        assert_eq!(target.iter().filter(|byte| **byte != 0xEE).count(), 36);
    }
}

#[test]
fn what_does_not_fit_63_bits_is_refused() {
    let five = page(0);
    let far = [0, u64::MAX / 8, 3];
    let error = Pages::new(&five, 8, &far[..]).unwrap_err();
    assert_eq!(error, PagesError::Place { position: 1, index: u64::MAX / 8, stride: 8 });
    assert!(error.to_string().contains("position 1"), "{error}");
    let huge = Datatype::contiguous(1 << 62, &Primitive::Byte.into()).unwrap().commit().unwrap();
    let error = Pages::new(&huge, 0, &[0u32, 0][..]).unwrap_err();
    assert_eq!(error, PagesError::Size { count: 2, size: 1 << 62 });
    // A page without bytes may be anywhere.
    let none = Pages::new(&page(4), u64::MAX, &far[..]).unwrap();
    assert_eq!((none.packed_size(), none.bounds()), (0, None));
    let empty = Pages::new(&five, 8, &[][..] as &[u32]).unwrap();
    assert!(empty.is_empty() && Convertor::of_pages(&empty).remaining() == 0);
}

#[test]
fn an_index_beyond_a_limit_is_found() {
    let list = PageIndices::from(&[3u32, 9, u32::MAX][..]);
    assert_eq!(list.range(), Some((3, u64::from(u32::MAX))));
    assert_eq!(list.first_above(8), Some((1, 9)));
    assert_eq!(list.first_above(u64::from(u32::MAX)), None);
    assert_eq!((list.get(2), list.get(3)), (Some(u64::from(u32::MAX)), None));
    assert_eq!(PageIndices::from(&[][..] as &[u64]).range(), None);
}

#[test]
fn pages_travel_as_bytes_and_foreign_bytes_are_refused() {
    let mut state = 17;
    for round in 0..500 {
        let (pages, _) = some(&mut state);
        let flat = pages.flatten();
        assert!(Pages::are_flattened(&flat));
        assert_eq!(Pages::unflatten(&flat), Ok(pages), "round {round}");
        let cut = usize::try_from(random(&mut state, flat.len() as u64)).unwrap();
        assert!(Pages::unflatten(&flat[..cut]).is_err(), "round {round}: {cut} bytes");
        // Whatever a byte becomes, what comes out is sound.
        let mut other = flat.clone();
        other[cut] ^= 1 << random(&mut state, 8);
        if let Ok(pages) = Pages::unflatten(&other) {
            let low = pages.bounds().map_or(0, |(low, _)| low);
            assert!(
                low > i64::MIN && Convertor::of_pages(&pages).packed_size() == pages.packed_size()
            );
        }
        other.push(0);
        assert!(Pages::unflatten(&other).is_err(), "round {round}");
    }
    let error = Pages::unflatten(b"GLAYabcdefghijklmnopqrstuvwxyz123456").unwrap_err();
    assert_eq!((error.offset, error.reason), (0, FlattenFault::Magic));
}

#[test]
fn a_part_of_a_list_is_its_pages() {
    for pages in [
        Pages::new(&page(1), 24, &[4u32, 0, 2][..]).unwrap(),
        Pages::new(&page(1), 24, &[4u64, 0, 2][..]).unwrap(),
    ] {
        let part = pages.part(1..3).unwrap();
        assert_eq!((part.place(0), part.place(1), part.len()), (0, 48, 2));
        assert_eq!(pages.part(0..3), Some(pages.clone()));
        assert!(pages.part(3..3).unwrap().is_empty());
        let part = |start, end| pages.part(start..end);
        assert_eq!([part(2, 4), part(3, 2), part(u64::MAX, 0)], [None, None, None]);
    }
}
