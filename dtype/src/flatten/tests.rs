use super::*;
use crate::convertor::Convertor;
use crate::datatype::Datatype;
use crate::primitive::Primitive;
use crate::run::Run;

fn samples() -> Vec<Layout> {
    let byte = Datatype::from(Primitive::Byte);
    let vector = Datatype::vector(5, 3, 7, &byte).unwrap();
    let list = Datatype::indexed(&[3, 1, 7, 2], &[50, 9, 20, -6], &byte).unwrap();
    let each =
        Datatype::indexed_block(1, &[5, 0, 2], &Datatype::resized(0, 64, &list).unwrap()).unwrap();
    let types = [list.clone(), vector.clone(), each.clone(), byte.clone()];
    let seq = Datatype::structure(&[1, 2, 1, 5], &[0, 100, 300, 90], &types).unwrap();
    [
        Datatype::contiguous(0, &byte).unwrap(),
        byte.clone(),
        vector,
        Datatype::indexed_block(4, &[40, 8, 0, 60, 61], &byte).unwrap(),
        list,
        Datatype::indexed(&[9, 7, 5, 3], &[0, 20, 40, 60], &byte).unwrap(),
        each,
        Datatype::resized(-5, 1000, &seq).unwrap(),
    ]
    .iter()
    .map(|datatype| datatype.commit().unwrap())
    .collect()
}

#[test]
fn round_trips() {
    for layout in samples() {
        let bytes = layout.flatten();
        assert_eq!(layout.flattened_bytes(), bytes.len() as u64);
        let back = Layout::unflatten(&bytes).unwrap();
        assert_eq!(back, layout);
        assert_eq!(back.flatten(), bytes);
    }
}

#[test]
fn every_truncation_is_refused() {
    for layout in samples() {
        let bytes = layout.flatten();
        for len in 0..bytes.len() {
            assert!(Layout::unflatten(&bytes[..len]).is_err());
            let mut shorter = bytes[..len].to_vec();
            if len >= TOTAL_AT + 8 {
                shorter[TOTAL_AT..TOTAL_AT + 8].copy_from_slice(&(len as u64).to_le_bytes());
                assert!(Layout::unflatten(&shorter).is_err());
            }
        }
        let mut longer = bytes.clone();
        longer.push(0);
        let reason = FlattenFault::Length { stated: bytes.len() as u64, given: longer.len() };
        assert_eq!(Layout::unflatten(&longer), Err(FlattenError { offset: TOTAL_AT, reason }));
    }
}

#[test]
fn damaged_bytes_are_refused_or_make_a_sound_layout() {
    let mut decoded = 0;
    for layout in samples() {
        let bytes = layout.flatten();
        for at in 0..bytes.len() {
            for value in [0, 1, 2, 7, 0x7f, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                let Ok(layout) = Layout::unflatten(&damaged) else { continue };
                decoded += 1;
                let Ok(mut convertor) = Convertor::new(&layout, 3) else { continue };
                // Whatever it is, its runs stay inside the bounds that slices are checked against.
                let mut runs = [Run::default(); 64];
                let (used, _) = convertor.iov(&mut runs, 4096);
                for run in &runs[..used] {
                    let (lo, hi) = convertor.bounds().unwrap();
                    assert!(run.len > 0 && lo <= run.displacement && run.end() <= hi);
                }
            }
        }
    }
    assert!(decoded > 100, "{decoded}");
}

/// The runs of a list are there, whatever else fits: size, bounds and signature stay what they were.
#[test]
fn a_list_with_an_empty_entry_is_refused() {
    let lens = |lens: [u64; 4]| lens.map(u64::to_le_bytes).concat();
    let list = Datatype::indexed(&[3, 1, 7, 2], &[50, 9, 20, -6], &Primitive::Byte.into()).unwrap();
    let bytes = list.commit().unwrap().flatten();
    let at = bytes.windows(32).position(|part| part == lens([3, 1, 7, 2])).unwrap();
    // The op begins with its kind, the number of entries and their displacements.
    let op = at - 4 * 8 - 9;
    assert_eq!(bytes[op], LIST);
    for (changed, sound) in
        [([3, 2, 6, 2], true), ([3, 0, 8, 2], false), ([3, 8, 0, 2], false), ([3, 0, 10, 0], false)]
    {
        let mut other = bytes.clone();
        other[at..at + 32].copy_from_slice(&lens(changed));
        match Layout::unflatten(&other) {
            Ok(layout) => assert!(sound, "{changed:?} makes {layout:?}"),
            Err(error) => {
                assert!(!sound, "{changed:?}: {error}");
                assert_eq!(error.offset, op);
                assert!(matches!(error.reason, FlattenFault::Malformed(_)), "{error}");
            }
        }
    }
}

#[test]
fn hostile_numbers_cost_nothing() {
    let vector = Datatype::indexed_block(4, &[40, 8, 0], &Primitive::Byte.into()).unwrap();
    let bytes = vector.commit().unwrap().flatten();
    // The first op is a list of blocks; its number of entries follows the tag.
    let tag = bytes.iter().position(|&b| b == BLOCKS).unwrap();
    let tag = (tag..bytes.len()).find(|&at| bytes[at] == BLOCKS && bytes[at + 1] == 3).unwrap();
    let mut hostile = bytes.clone();
    hostile[tag + 1..tag + 9].copy_from_slice(&u64::MAX.to_le_bytes());
    let reason = FlattenFault::Entries { entries: u64::MAX };
    assert_eq!(Layout::unflatten(&hostile), Err(FlattenError { offset: tag + 1, reason }));
}

#[test]
fn other_versions_and_files_are_named() {
    let mut bytes = samples()[2].flatten();
    bytes[4] = 9;
    let reason = FlattenFault::Version { found: 9, expected: VERSION };
    let error = Layout::unflatten(&bytes).unwrap_err();
    assert_eq!(error, FlattenError { offset: 4, reason });
    assert_eq!(error.to_string(), "byte 4 of the flattened layout: version 9 is not 1");
    bytes[0] = b'x';
    assert_eq!(Layout::unflatten(&bytes).unwrap_err().reason, FlattenFault::Magic);
}
