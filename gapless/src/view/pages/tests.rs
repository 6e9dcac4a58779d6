use super::*;
use crate::xtq::{Payload, by_pages};
use crate::{Blocks, BlocksMut, CollectiveError, Owned, Parts, PmlError, ReduceOp, World};
use gapless_dtype::{Datatype, FitError, PagesError, Primitive};
use gapless_engine::EngineError;
use gapless_mem::Space;
use gapless_mem::fake::FakeDevice;
use std::sync::Arc;

/// `numbers` doubles.
fn page(numbers: u64) -> Layout {
    Datatype::contiguous(numbers, &Primitive::Double.into()).unwrap().commit().unwrap()
}

fn pages(list: &[u32]) -> Pages {
    Pages::new(&page(2), 16, list).unwrap()
}

fn numbers() -> Vec<f64> {
    (0..20).map(f64::from).collect()
}

/// Pages of the fake device at indices in its memory.
fn on_device(space: Space) -> View<'static> {
    let region = |start, len| Region::new(space, start, 0, len);
    // SAFETY: nothing follows the description: all that is given it refuses it.
    let indices = unsafe { DeviceIndices::of_region(region(8192, 12), false) };
    // SAFETY: as above.
    unsafe { View::device_pages_of_region(region(4096, 160), 0, &page(2), 16, indices) }.unwrap()
}

#[test]
fn whatever_describes_pages_asks_the_same() {
    let mut list = numbers();
    let outside =
        |index, last| Error::Buffer(EngineError::PageOutside { position: 1, index, last });
    for (origin, index, due) in
        [(0, 9, None), (0, 10, Some(outside(10, 9))), (2, 8, None), (2, 9, Some(outside(9, 8)))]
    {
        let pages = pages(&[3, index, 3]);
        assert_eq!(View::pages(&list, origin, &pages).err(), due);
        assert_eq!(ViewMut::pages(&mut list, origin, &pages).err(), due);
        assert_eq!(Parts::of(&mut list).pages(origin, &pages).err(), due);
        assert_eq!(Parts::of(&mut list).pages_mut(origin, &pages).err(), due);
        let shared: Arc<[f64]> = list.as_slice().into();
        assert_eq!(by_pages(&shared, origin, &pages).err(), due);
        let owned = Owned::pages(list.clone(), origin, &pages).park();
        assert_eq!(owned.map_err(|refused| refused.error).err(), due);
    }
    assert!(View::pages(&list, u64::MAX, &pages(&[0])).is_err());
    let between = Pages::new(&page(1), 12, &[0u64][..]).unwrap();
    let wrong = Error::Fit(FitError::Stride { stride: 12, step: 8, element: "f64" });
    assert_eq!(View::pages(&list, 0, &between).unwrap_err(), wrong);
    let floats = vec![0f32; 40];
    let refused = View::pages(&floats, 0, &pages(&[0]));
    assert!(matches!(refused, Err(Error::Fit(FitError::Type { .. }))), "{refused:?}");
    let far: Error = Pages::new(&page(1), 8, &[u64::MAX][..]).unwrap_err().into();
    assert!(matches!(far, Error::Pages(PagesError::Place { position: 0, .. })), "{far}");
}

#[test]
fn parts_know_which_pages_are_taken() {
    let mut list = numbers();
    let mut parts = Parts::of(&mut list);
    parts.pages(0, &pages(&[1, 4, 1])).unwrap();
    parts.pages(0, &pages(&[4])).unwrap();
    // An index may occur twice in one message.
    parts.pages_mut(0, &pages(&[2, 0, 2])).unwrap();
    let taken = parts.pages_mut(0, &pages(&[5, 4])).unwrap_err();
    assert_eq!(taken, Error::InUse { start: 64, end: 80 });
    let taken = parts.pages(1, &pages(&[1])).unwrap_err();
    assert_eq!(taken, Error::InUse { start: 32, end: 40 });
}

#[test]
fn a_plan_exchanges_pages() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let mut list = numbers();
    let plan = comm.plan(&list).send_pages(0, &pages(&[7, 8, 7]), 0, 0).unwrap();
    let plan = plan.recv_pages(0, &pages(&[1, 0, 3]), 0, 0).unwrap();
    let mut plan = plan.build().unwrap();
    for _ in 0..2 {
        plan.exchange(&mut list).unwrap();
        assert_eq!(list[..8], [16.0, 17.0, 14.0, 15.0, 4.0, 5.0, 14.0, 15.0]);
        list = numbers();
    }
    let taken = comm.plan(&list).recv_pages(0, &pages(&[1]), 0, 0).unwrap();
    let taken = taken.send_pages(0, &pages(&[0, 1]), 0, 0).unwrap_err();
    assert_eq!(taken, Error::InUse { start: 16, end: 32 });
    let twice = Datatype::vector(2, 2, 1, &Primitive::Double.into()).unwrap().commit().unwrap();
    let twice = Pages::new(&twice, 24, &[0u32, 1][..]).unwrap();
    let refused = comm.plan(&list).recv_pages(0, &twice, 0, 0).unwrap_err();
    assert_eq!(refused, PmlError::OverlappingReceive { count: 2 }.into());
    let refused = comm.recv(ViewMut::pages(&mut list, 0, &twice).unwrap(), 0, 0).unwrap_err();
    assert!(refused.to_string().contains("twice"), "{refused}");
}

/// Blocking and non-blocking, in all that a rank may give; a list as long as another is another call.
#[test]
fn collectives_take_pages_as_the_layouts_that_they_are() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let list = numbers();
    for turn in [[3u32, 9], [0, 5]] {
        let at = |place: u32| f64::from(2 * place);
        let due = [at(turn[0]), at(turn[0]) + 1.0, at(turn[1]), at(turn[1]) + 1.0];
        let view = || View::pages(&list, 0, &pages(&turn)).unwrap();
        let mut into = vec![0.0; 20];
        comm.allreduce(view(), &mut into[..4], ReduceOp::Sum).unwrap();
        assert_eq!(into[..4], due);
        let to = ViewMut::pages(&mut into, 0, &pages(&[8, 4])).unwrap();
        comm.alltoallv(Blocks::packed(view(), &[2]).unwrap(), BlocksMut::packed(to, &[2]).unwrap())
            .unwrap();
        assert_eq!([&into[16..18], &into[8..10]].concat(), due);
        comm.scope(|s| {
            let to = ViewMut::pages(&mut into, 0, &pages(&[6, 1])).unwrap();
            let _ = s.iallgather(view(), to)?;
            Ok(())
        })
        .unwrap();
        assert_eq!([&into[12..14], &into[2..4]].concat(), due);
        // Counts are in pages.
        let to = ViewMut::pages(&mut into, 0, &pages(&[5, 7])).unwrap();
        comm.reduce_scatter(view(), to, &[2], ReduceOp::Sum).unwrap();
        assert_eq!([&into[10..12], &into[14..16]].concat(), due);
        let to = ViewMut::pages(&mut into, 0, &pages(&[6, 1])).unwrap();
        comm.reduce_local(view(), to, ReduceOp::Sum).unwrap();
        assert_eq!([&into[12..14], &into[2..4]].concat(), due.map(|it| 2.0 * it));
    }
    let part = Blocks::new(View::pages(&list, 0, &pages(&[3, 9])).unwrap(), &[2], &[1]);
    assert_eq!(part.unwrap_err(), Error::Block { block: 0, start: 1, count: 2, elements: 2 });
}

#[test]
fn collectives_refuse_pages_that_they_cannot_take() {
    let device = Arc::new(FakeDevice::new(0));
    let engine = gapless_engine::testkit::FakeEngine::new(&device, 1);
    let world = World::builder().open_devices(false).engine(Arc::new(engine)).init().unwrap();
    let comm = world.comm();
    let space = Space::Device { kind: "fake", device: 0 };
    let mut into = vec![0.0; 6];
    let refused = |error: Error| match error {
        Error::Collective { error, .. } => *error,
        other => panic!("{other}"),
    };
    let pages_error =
        CollectiveError::Pages { argument: "send buffer", error: EngineError::DeviceIndices };
    let error = comm.allgather(on_device(space), &mut into).unwrap_err();
    assert_eq!(refused(error), pages_error);
    let error = comm.allreduce(on_device(space), &mut into, ReduceOp::Sum).unwrap_err();
    assert_eq!(refused(error), pages_error);
    let error = comm.reduce_local(on_device(space), &mut into, ReduceOp::Sum).unwrap_err();
    assert_eq!(refused(error), pages_error);
    // What a rank receives, it may send on.
    let mut list = numbers();
    let twice = ViewMut::pages(&mut list, 0, &pages(&[1, 1])).unwrap();
    let error = comm.allgather(&[0.0; 4], twice).unwrap_err();
    assert_eq!(refused(error), CollectiveError::Overlap { argument: "receive buffer" });
    let twice = ViewMut::pages(&mut list, 0, &pages(&[1, 1])).unwrap();
    let error = BlocksMut::packed(twice, &[1, 1]).unwrap_err();
    assert_eq!(error, Error::BlocksOverlap { one: 0, other: 1 });
    // The order of calls has not suffered.
    comm.allgather(&[1.0; 6], &mut into).unwrap();
    assert_eq!(into, [1.0; 6]);
}

#[test]
fn tasks_get_what_pages_name() {
    let shared: Arc<[f64]> = numbers().into();
    let due: Vec<u8> = [6.0f64, 7.0, 0.0, 1.0, 6.0, 7.0].map(f64::to_ne_bytes).concat();
    let list = pages(&[3, 0, 3]);
    let view = View::pages(&shared[..], 0, &list).unwrap();
    for payload in [
        by_pages(&shared, 0, &list).unwrap(),
        Payload::try_from(view).unwrap(),
        Payload::try_from(Owned::pages(numbers(), 0, &list)).map_err(Error::from).unwrap(),
    ] {
        assert_eq!(payload.to_vec(), due);
    }
    let refused = Payload::try_from(on_device(Space::Device { kind: "fake", device: 0 }));
    assert!(
        matches!(refused, Err(Error::Memory(_))),
        "memory of a device is not read: {refused:?}"
    );
    let indices = Region::new(Space::Device { kind: "fake", device: 0 }, 8192, 0, 12);
    // SAFETY: nothing follows the description.
    let indices = unsafe { DeviceIndices::of_region(indices, false) };
    let pool = region_of(shared.as_ptr(), 20);
    // SAFETY: as above.
    let view = unsafe { View::device_pages_of_region(pool, 0, &page(2), 16, indices) };
    let refused = Payload::try_from(view.unwrap());
    assert_eq!(refused.err(), Some(Error::Buffer(EngineError::DeviceIndices)));
}

#[test]
fn indices_are_words_of_a_device() {
    let device = Arc::new(FakeDevice::new(0));
    let world =
        World::builder().open_devices(false).device(Arc::clone(&device) as _).init().unwrap();
    let space = Space::Device { kind: "fake", device: 0 };
    let mut pool = world.alloc_device(space, 160).unwrap();
    let table = world.alloc_device(space, 20).unwrap();
    let words = table.indices_u32(1..4).unwrap();
    assert_eq!(words.region, table.region().sub(4, 12).unwrap());
    assert_eq!(pool.pages_at(0, &page(2), 16, words).unwrap().packed_bytes(), 48);
    let wide = table.indices_u64(0..2).unwrap();
    assert_eq!(pool.pages_at_mut(16, &page(2), 16, wide).unwrap().packed_bytes(), 32);
    let words = |start, end| table.indices_u32(start..end);
    for outside in [words(4, 6), words(3, 2), words(0, u64::MAX), table.indices_u64(0..3)] {
        assert!(matches!(outside, Err(Error::Memory(_))), "{outside:?}");
    }
    assert_eq!(words(5, 5).unwrap().region.len(), 0);
    let outside = pool.pages_at(160, &page(2), 16, table.indices_u32(0..1).unwrap());
    assert!(matches!(outside, Err(Error::Buffer(EngineError::OutsideBuffer { .. }))));
    assert_eq!(pool.pages(0, &pages(&[9])).unwrap().packed_bytes(), 16);
    let outside = pool.pages_mut(1, &pages(&[9])).unwrap_err();
    let error = EngineError::PageOutside { position: 0, index: 9, last: 8 };
    assert_eq!(outside, Error::Buffer(error));
}
