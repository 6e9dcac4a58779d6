use super::*;

#[test]
fn elements_are_as_many_as_are_asked_for() {
    let memory = [0u8; 64];
    let int: &'static Layout =
        Box::leak(Box::new(Datatype::from(Primitive::Int).commit().unwrap()));
    let some = Typed::elements(Region::of(&memory), int, 3).unwrap();
    assert_eq!((some.count(), some.packed_bytes(), some.origin()), (3, 12, 0));
    assert_eq!(some.layout(), int);
    assert!(Typed::elements(Region::of(&memory), int, 17).is_err());
}

/// Bounds and packed bytes that need no convertor are those that it computes.
#[test]
fn bounds_are_known_without_a_convertor() {
    let int = Datatype::from(Primitive::Int);
    let vector = Datatype::vector(4, 1, 2, &int).unwrap().commit().unwrap();
    let convertor = Convertor::new(&vector, 3).unwrap();
    let (low, high) = convertor.bounds().unwrap();
    assert_eq!(plain_bounds(&vector, 3), Some((convertor.packed_size(), low, high)));
    assert_eq!(plain_bounds(&vector, 0), None);
    assert_eq!(plain_bounds(&vector, u64::MAX / 16), None, "2⁶² bytes");
}

#[test]
fn instances_stay_inside_the_buffer() {
    let memory = [0u8; 64];
    let region = Region::of(&memory);
    let int = Datatype::from(Primitive::Int);
    let every_other = Datatype::vector(4, 1, 2, &int).unwrap().commit().unwrap();
    assert_eq!(Typed::new(region, 0, &every_other, 1).unwrap().packed_bytes(), 16);
    // Extent 28: two instances end at 56, three would end at 84.
    assert!(Typed::new(region, 0, &every_other, 2).is_ok());
    let error = Typed::new(region, 0, &every_other, 3).unwrap_err();
    assert!(matches!(error, EngineError::OutsideBuffer { high: 84, last: 64, .. }), "{error}");
    let backwards = Datatype::vector(4, 1, -2, &int).unwrap().commit().unwrap();
    assert!(Typed::new(region, 0, &backwards, 1).is_err());
    assert!(Typed::new(region, 24, &backwards, 1).is_ok());
    // Extent -16: the second instance lies 16 bytes below the first, the third 32.
    let down = Datatype::resized(0, -16, &int).unwrap().commit().unwrap();
    assert!(Typed::new(region, 16, &down, 2).is_ok() && Typed::new(region, 60, &down, 4).is_ok());
    let error = Typed::new(region, 15, &down, 2).unwrap_err();
    assert!(matches!(error, EngineError::OutsideBuffer { low: -16, first: -15, .. }), "{error}");
    assert!(Typed::new(region, 60, &down, 5).is_err());
}

#[test]
fn instances_move_to_a_region_that_is_as_long() {
    let (here, there) = ([0u8; 64], [0u8; 65]);
    let int = Datatype::from(Primitive::Int).commit().unwrap();
    let mut typed = Typed::new(Region::of(&here), 8, &int, 14).unwrap();
    typed.rebase(Region::of(&there[1..])).unwrap();
    let place = typed.as_contiguous().unwrap();
    assert_eq!((place.start(), place.len()), (Region::of(&there[9..]).start(), 56));
    for other in [Region::of(&there), Region::new(Space::Pinned, 64, 0, 64)] {
        assert!(matches!(typed.rebase(other), Err(EngineError::OtherRegion { .. })));
        assert_eq!(typed.as_contiguous(), Some(place));
    }
}

#[test]
fn one_contiguous_span_is_found() {
    let memory = [0u8; 64];
    let region = Region::of(&memory);
    let int = Datatype::from(Primitive::Int);
    let four = Datatype::contiguous(4, &int).unwrap().commit().unwrap();
    let typed = Typed::new(region, 8, &four, 3).unwrap();
    assert_eq!(typed.as_contiguous(), Some(region.sub(8, 48).unwrap()));
    let gaps = Datatype::vector(4, 1, 2, &int).unwrap().commit().unwrap();
    assert_eq!(Typed::new(region, 0, &gaps, 1).unwrap().as_contiguous(), None);
    assert_eq!(Typed::contiguous(region).as_contiguous(), Some(region));
    assert_eq!(typed.window(&(8..24)), Ok(8..24));
    assert_eq!(typed.window(&(800..848)), Ok(0..48), "the piece on its own");
    assert!(typed.window(&(800..847)).is_err());
    let error = typed.check_range(&(40..50)).unwrap_err();
    assert!(matches!(error, EngineError::RangeOutside { packed_bytes: 48, .. }));
}

#[test]
fn a_contiguous_span_begins_where_its_first_byte_lies() {
    let memory = [0u8; 64];
    let region = Region::of(&memory);
    let int = Datatype::from(Primitive::Int);
    let four = Datatype::contiguous(4, &int).unwrap().commit().unwrap();
    let behind = Datatype::hindexed(&[2], &[12], &int).unwrap().commit().unwrap();
    let gaps = Datatype::vector(2, 1, 2, &int).unwrap().commit().unwrap();
    let contiguous_start = |origin, layout, count| {
        Typed::new(region, origin, layout, count).unwrap().contiguous_start()
    };
    assert_eq!(contiguous_start(8, &four, 3), Some(8));
    assert_eq!(contiguous_start(8, &behind, 1), Some(20));
    assert_eq!(contiguous_start(8, &four, 0), Some(8));
    assert_eq!(contiguous_start(8, &gaps, 0), Some(8), "no bytes are one contiguous span");
    assert_eq!(contiguous_start(8, &gaps, 1), None);
    assert_eq!(Typed::contiguous(region).contiguous_start(), Some(0));
}

#[test]
fn gaps_may_not_lead_out_of_the_buffer_whatever_the_origin() {
    let memory = [0u8; 64];
    let region = Region::of(&memory);
    // 28 bytes from first to last.
    let gaps = Datatype::vector(4, 1, 2, &Primitive::Int.into()).unwrap().commit().unwrap();
    assert!(Typed::new(region, 36, &gaps, 1).is_ok());
    for origin in [37, 40, 63, 64, 100] {
        let error = Typed::new(region, origin, &gaps, 1).unwrap_err();
        assert!(matches!(error, EngineError::OutsideBuffer { high: 28, .. }), "{origin}");
    }
}

fn pool_page() -> Layout {
    Datatype::contiguous(2, &Primitive::Int.into()).unwrap().commit().unwrap()
}

#[test]
fn a_page_outside_is_named() {
    let memory = [0u8; 64];
    let region = Region::of(&memory);
    let pages = |list: &[u32]| Pages::new(&pool_page(), 8, list).unwrap();
    let typed = Typed::pages(region, 0, &pages(&[7, 0, 3])).unwrap();
    assert_eq!((typed.packed_bytes(), typed.count(), typed.as_contiguous()), (24, 3, None));
    assert_eq!(typed.bounds(), Some((0, 64)));
    let error = Typed::pages(region, 0, &pages(&[7, 0, 8])).unwrap_err();
    assert_eq!(error, EngineError::PageOutside { position: 2, index: 8, last: 7 });
    let error = Typed::pages(region, 9, &pages(&[6])).unwrap_err();
    assert_eq!(error, EngineError::PageOutside { position: 0, index: 6, last: 5 });
    let short = region.sub(0, 7).unwrap();
    let error = Typed::pages(short, 0, &pages(&[0])).unwrap_err();
    assert!(matches!(error, EngineError::OutsideBuffer { high: 8, last: 7, .. }), "{error}");
    // Nothing touches nothing.
    assert_eq!(Typed::pages(short, 0, &pages(&[])).unwrap().packed_bytes(), 0);
    // One page without gaps is a span.
    let one = Typed::pages(region, 8, &pages(&[2])).unwrap();
    assert_eq!(one.contiguous_start(), Some(24));
    // Other memory is checked as this was.
    assert!(typed.moved(region.sub(0, 63).unwrap(), 0).is_err());
    let ordinary = typed.without_pages().unwrap().into_owned();
    assert_eq!((ordinary.packed_bytes(), ordinary.bounds()), (24, Some((0, 64))));
}

#[test]
fn indices_on_a_device_are_checked_for_their_memory_alone() {
    let space = Space::Device { kind: "fake", device: 0 };
    let (region, list) = (Region::new(space, 4096, 0, 64), Region::new(space, 8192, 0, 12));
    let page = pool_page();
    let typed = Typed::device_pages(region, 0, &page, 8, (list, false)).unwrap();
    let Some(PagesOf::Device(pages)) = typed.as_pages() else { panic!("they are pages") };
    assert_eq!((typed.count(), pages.last(), typed.packed_bytes()), (3, 7, 24));
    assert_eq!((typed.bounds(), typed.as_contiguous()), (Some((0, 64)), None));
    assert!(matches!(typed.convertor(), Err(EngineError::DeviceIndices)));
    let host = [0u32; 3];
    for (indices, wide) in [
        (Region::new(Space::Host, host.as_ptr().addr() as u64, 0, 12), false),
        (list, true),
        (Region::new(space, 8194, 0, 12), false),
    ] {
        let refused = Typed::device_pages(region, 0, &page, 8, (indices, wide));
        assert!(matches!(refused, Err(EngineError::IndexMemory { .. })), "{indices:?}");
    }
    let refused = Typed::device_pages(region, 57, &page, 8, (list, false));
    assert!(matches!(refused, Err(EngineError::OutsideBuffer { .. })));
    // At no stride, any index is the first page.
    let typed = Typed::device_pages(region, 0, &page, 0, (list, false)).unwrap();
    assert_eq!(typed.bounds(), Some((0, 8)));
}

#[test]
fn a_span_is_what_the_convertor_touches() {
    let region = Region::new(Space::Host, 4096, 0, 1 << 16);
    let double = Datatype::from(Primitive::Double);
    let v = Datatype::vector(5, 2, 7, &double).unwrap();
    let shapes = [
        v.clone(),
        Datatype::resized(-16, 24, &v).unwrap(),
        Datatype::resized(0, -400, &v).unwrap(),
        Datatype::hindexed_block(2, &[96, -160, 0], &double).unwrap(),
    ];
    for shape in shapes {
        let layout = shape.commit().unwrap();
        for count in [1, 2, 9] {
            let (low, high) = Convertor::new(&layout, count).unwrap().bounds().unwrap();
            let typed = Typed::new(region, 1 << 15, &layout, count).unwrap();
            assert_eq!(typed.span(), low.abs_diff(high), "{layout:?} {count}");
        }
        assert_eq!(Typed::new(region, 0, &layout, 0).unwrap().span(), 0);
    }
}

/// Where pages lie is not what their layout and their number say.
#[test]
fn pages_lie_where_their_indices_say() {
    let region = Region::new(Space::Host, 4096, 0, 640);
    let pages = |list: &[u32]| {
        Typed::pages(region, 0, &Pages::new(&pool_page(), 8, list).unwrap()).unwrap()
    };
    let some = pages(&[70, 2, 9]);
    assert_eq!((some.blocks(), some.span()), (3, 69 * 8));
    // A page's elements, not the pages, may be named twice; page 2 begins in the middle of page 1.
    let near = Pages::new(&pool_page(), 4, &[1u32, 2, 2][..]).unwrap();
    assert!(!Typed::pages(region, 0, &near).unwrap().overlaps());
    let twice = Datatype::hindexed_block(1, &[0, 2], &Primitive::Int.into()).unwrap();
    let twice = Pages::new(&twice.commit().unwrap(), 8, &[0u32, 9][..]).unwrap();
    assert!(Typed::pages(region, 0, &twice).unwrap().overlaps());
}

#[test]
fn the_same_places_are_those_of_the_same_bytes() {
    let region = Region::new(Space::Host, 4096, 0, 640);
    let pages = |list: &[u32]| Pages::new(&pool_page(), 8, list).unwrap();
    let host = |region, list: &[u32]| Typed::pages(region, 0, &pages(list)).unwrap();
    let some = host(region, &[7, 2, 9]);
    let wide = Pages::new(&pool_page(), 8, &[7u64, 2, 9, 1][..]).unwrap();
    let pinned = Region::new(Space::Pinned, 4000, 96, 600);
    for same in [host(pinned, &[7, 2]), Typed::pages(region, 0, &wide).unwrap()] {
        assert!(some.same_places(&same) && same.same_places(&some), "{same:?}");
    }
    let ordinary = Typed::new(region, 0, &pool_page(), 3).unwrap();
    for other in [host(region, &[7, 3]), some.moved(region, 8).unwrap(), ordinary.clone()] {
        assert!(!some.same_places(&other), "{other:?}");
    }
    assert!(ordinary.same_places(&Typed::new(region, 0, &pool_page(), 5).unwrap()));
    let space = Space::Device { kind: "fake", device: 0 };
    let (pool, list) = (Region::new(space, 4096, 0, 640), Region::new(space, 8192, 0, 16));
    let device =
        |list: Region, wide| Typed::device_pages(pool, 0, &pool_page(), 8, (list, wide)).unwrap();
    let all = device(list, false);
    assert!(all.same_places(&device(list.sub(0, 8).unwrap(), false)));
    assert!(!all.same_places(&device(list.sub(4, 8).unwrap(), false)));
    assert!(!all.same_places(&device(list, true)) && !all.same_places(&some));
}
