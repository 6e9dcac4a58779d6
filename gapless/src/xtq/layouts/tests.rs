use super::*;
use crate::owned::Owned;
use crate::xtq::{Function, Kernel, Launch, Put, QueueOptions, Rank, Signal};
use crate::{Error, World};
use gapless_bml::{Bml, Handler, RankEvent, now_ns};
use gapless_btl::loopback::{self, Hub, Loopback};
use gapless_dtype::{Convertor, Datatype, Primitive};
use gapless_xtq::device::mock_worker::{MockWorker, memory};
use gapless_xtq::device::{DeviceFunction, Life};
use gapless_xtq::{Config, Xtq};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A layout of floats with holes, where its displacement 0 is, and how many of it.
type Case = (Layout, u64, u64);

const FLOATS: usize = 1200;
/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(60);

/// Columns, blocks of any length (one behind the end of the other, too), one that names bytes twice, one run, none.
fn cases() -> Vec<Case> {
    let float = Datatype::from(Primitive::of::<f32>());
    let columns = Datatype::vector(30, 1, 40, &float).unwrap();
    let blocks = Datatype::indexed(&[3, 1, 0, 200], &[50, 0, 7, 600], &float).unwrap();
    let twice = Datatype::vector(5, 4, 1, &float).unwrap();
    let short = Datatype::vector(4, 2, 7, &float).unwrap();
    let run = Datatype::contiguous(100, &float).unwrap();
    let none = Datatype::contiguous(0, &float).unwrap();
    let commit = |datatype: Datatype| datatype.commit().unwrap();
    vec![
        (commit(columns), 3, 1),
        (commit(blocks), 1, 1),
        (commit(twice), 9, 3),
        (commit(short), 2, 1),
        (commit(run), 200, 9),
        (commit(none), 0, 5),
    ]
}

fn floats() -> Arc<[f32]> {
    (0u16..).take(FLOATS).map(f32::from).collect()
}

/// The packed bytes, by the convertor's own check of slices.
fn packed(floats: &[f32], (layout, origin, count): &Case) -> Vec<u8> {
    let bytes: Vec<u8> = floats.iter().flat_map(|float| float.to_ne_bytes()).collect();
    let mut convertor = Convertor::new(layout, *count).unwrap();
    let mut packed = vec![0; usize::try_from(convertor.packed_size()).unwrap()];
    let origin = usize::try_from(*origin).unwrap() * 4;
    assert_eq!(convertor.pack(&bytes, origin, &mut packed).unwrap(), packed.len());
    packed
}

/// The payloads of a case: of shared elements, of owned ones, of borrowed ones, and as one of several pieces.
fn payloads(floats: &Arc<[f32]>, case: &Case) -> [(Payload, Vec<u8>); 4] {
    let (layout, origin, count) = case;
    let packed = packed(floats, case);
    let shared = by_layout(floats, *origin, layout, *count).unwrap();
    let owned = Owned::typed(floats.to_vec(), *origin, layout, *count);
    let owned = Payload::try_from(owned).map_err(Error::from).unwrap();
    let view = Payload::try_from(View::typed(&floats[..], *origin, layout, *count).unwrap());
    let pieces = Payload::pieces([vec![1; 5].into(), shared.clone(), vec![2].into()]);
    let around = [&[1; 5], &packed[..], &[2]].concat();
    [(shared, packed.clone()), (owned, packed.clone()), (view.unwrap(), packed), (pieces, around)]
}

#[test]
fn what_layouts_name_comes_to_tasks_as_one_payload() {
    let world = World::init().unwrap();
    let tasks = world.xtq();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let notes = Function::new(1 << 16, move |task| {
        log.lock().unwrap().push(task.payload().to_vec());
        Ok(())
    });
    tasks.register_function(0, notes).unwrap();
    tasks.register_queue(0, QueueOptions::default()).unwrap();
    tasks.post(vec![0; 1 << 16]);
    let floats = floats();
    for case in cases() {
        for (payload, expected) in payloads(&floats, &case) {
            assert_eq!((payload.len(), payload.to_vec()), (expected.len(), expected.clone()));
            let put = Put::function(Rank(0), 0, 0, [0, 0]).payload(payload).acknowledged();
            let put = tasks.put(put).unwrap();
            tasks.wait_for(&put).unwrap();
            assert_eq!(seen.lock().unwrap().pop(), Some(expected));
        }
    }
    world.finalize().unwrap();
    // What was put is nobody's any more.
    assert_eq!(Arc::strong_count(&floats), 1);
}

#[test]
fn layouts_that_leave_their_elements_or_do_not_fit_them_are_refused() {
    let float = Datatype::from(Primitive::of::<f32>());
    let column = Datatype::vector(3, 1, 4, &float).unwrap().commit().unwrap();
    let floats: Arc<[f32]> = [0.0; 12].into();
    assert_eq!(by_layout(&floats, 3, &column, 1).unwrap().len(), 12);
    for (origin, count) in [(4, 1), (u64::MAX, 1), (0, 4), (0, u64::MAX)] {
        let refused = by_layout(&floats, origin, &column, count);
        assert!(matches!(refused, Err(Error::Buffer(_))), "{origin}, {count}: {refused:?}");
        let owned = Owned::typed(vec![0f32; 12], origin, &column, count);
        let back = Payload::try_from(owned).map(drop).unwrap_err();
        assert_eq!(back.buffer.len(), 12);
    }
    let integers: Arc<[i32]> = [0; 12].into();
    assert!(matches!(by_layout(&integers, 0, &column, 1), Err(Error::Fit(_))));
}

struct Rest;

impl Handler for Rest {
    fn handle(&mut self, _: &mut Bml, _: RankEvent) {}
}

/// Into slots of a ring, and into its memory for long bodies; before there is a ring, by messages.
#[test]
fn what_layouts_name_is_gathered_into_rings() {
    gathered(loopback::Config::default(), true);
}

/// By several messages each: what comes after the first begins in the middle of the layout.
#[test]
fn what_layouts_name_is_gathered_into_several_messages() {
    let config = loopback::Config::default();
    gathered(loopback::Config { max_fragment_bytes: 256, eager_bytes: 256, ..config }, false);
}

fn gathered(transport: loopback::Config, rings: bool) {
    let hub = Hub::new();
    let mut bmls = [Bml::new(Rank(0), 2), Bml::new(Rank(1), 2)];
    bmls.iter_mut().for_each(|bml| bml.add(Box::new(Loopback::with(&hub, transport.clone()))));
    let addresses = bmls.each_ref().map(Bml::addresses);
    let [a, b] = &mut bmls;
    a.connect(Rank(1), &addresses[1]).unwrap();
    b.connect(Rank(0), &addresses[0]).unwrap();
    let mut ends = bmls.map(|mut bml| {
        let xtq = Xtq::attach(&mut bml, Config { rings, ..Config::default() }).unwrap();
        (bml, xtq)
    });
    let (tasks, there) = (ends[0].1.clone(), ends[1].1.clone());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let mock = MockWorker::new(move |task| {
        log.lock().unwrap().push(task.payload.clone());
        Ok(())
    });
    let life = Life { idle: None, longest: Duration::from_secs(600) };
    there.attach_worker(mock, life).unwrap();
    // SAFETY: what runs it touches no memory.
    unsafe { there.register_kernel(0, Kernel::of_worker(DeviceFunction::Copy, 1 << 16)) }.unwrap();
    // SAFETY: nobody touches it.
    unsafe { there.post_to_worker(memory(1 << 16).unwrap()) }.unwrap();
    there.register_queue(0, QueueOptions::default()).unwrap();
    let mut put = |payload, done: &Signal, warm: bool| {
        let put = Put::kernel(Rank(1), 0, 0, Launch::linear(1, 16, 24), &[0; 24][..]);
        tasks.put(put.payload(payload).signal(done)).unwrap();
        let start = Instant::now();
        while done.poll().is_none() || rings && !warm && !tasks.has_ring(Rank(1)) {
            for (bml, xtq) in &mut ends {
                bml.poll(&mut Rest);
                xtq.advance(bml, now_ns());
            }
            assert!(start.elapsed() < PATIENCE, "nothing happens any more");
            std::thread::yield_now();
        }
        done.poll().unwrap().unwrap();
        seen.lock().unwrap().pop().unwrap()
    };
    let floats = floats();
    for (number, case) in cases().into_iter().enumerate() {
        for (payload, expected) in payloads(&floats, &case) {
            assert_eq!(put(payload, &tasks.signal(1), number > 0), expected);
        }
    }
}
