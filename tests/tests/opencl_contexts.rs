//! OpenCL contexts come and go while messages are exchanged: what is kept of them is bounded, what is asked for again
//! is made once, and handles that do not belong together are refused by name.
//!
//! Objects are counted for a process, so the tests take turns.

use gapless::{
    Communicator, Device, Engine, Error, GpuEngine, OpenClDevice, PmlError, Region, Space, View,
    ViewMut, World,
};
use gapless_dtype::{Datatype, Layout, Primitive};
use gapless_engine::Typed;
use gapless_mem_opencl::testkit::{UserBuffer, UserContext, UserQueue};
use gapless_mem_opencl::{Counts, DeviceInfo, counts, detect};
use gapless_tests::{byte_at, job_of};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The first device, and the turn; `None`, aloud, if there is none.
fn device(test: &str) -> Option<(DeviceInfo, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::new(());
    match detect() {
        Ok(found) => {
            Some((found.into_iter().next()?, TURN.lock().unwrap_or_else(PoisonError::into_inner)))
        }
        Err(why) => {
            gapless_btl_testkit::conformance::skip(test, &why.to_string());
            None
        }
    }
}

/// Bytes without gaps, and every second 16 of them.
fn layouts() -> [Layout; 2] {
    let byte = Datatype::from(Primitive::Byte);
    let flat = Datatype::contiguous(LEN as u64, &byte).unwrap();
    let gaps = Datatype::vector(LEN as u64 / 32, 16, 32, &byte).unwrap();
    [flat, gaps].map(|datatype| datatype.commit().unwrap())
}

const LEN: usize = 96 << 10;

fn bytes(seed: u64) -> Vec<u8> {
    (0..LEN as u64).map(|at| byte_at(seed, at)).collect()
}

/// A context of a program's, a queue and two buffers.
struct Users {
    context: UserContext,
    queue: UserQueue,
    out: UserBuffer,
    into: UserBuffer,
}

impl Users {
    fn new(device: &DeviceInfo) -> Users {
        let context = UserContext::new(device).unwrap();
        let queue = context.queue(false).unwrap();
        let [out, into] = [(); 2].map(|()| context.buffer(LEN).unwrap());
        Users { context, queue, out, into }
    }
}

fn send(comm: &Communicator, region: Region, layout: &Layout, to: u32) -> Result<(), Error> {
    // SAFETY: the buffer lives over this call, in which nothing else touches it; wrong handles are refused.
    let view = unsafe { View::of_region(region, 0, layout, 1) }?;
    comm.send(view, to, 0).map(drop)
}

/// A message to the next rank and one from the one before.
fn exchange(
    comm: &Communicator,
    (out, into): (Region, Region),
    layout: &Layout,
) -> Result<(), Error> {
    let (me, size) = (comm.rank(), comm.size());
    comm.scope(|s| {
        // SAFETY: the buffers live over the scope, and nothing else touches them.
        let into = unsafe { ViewMut::of_region(into, 0, layout, 1) }?;
        let _ = s.irecv(into, (me + size - 1) % size, 0)?;
        // SAFETY: as above.
        let _ = s.isend(unsafe { View::of_region(out, 0, layout, 1) }?, (me + 1) % size, 0)?;
        Ok(())
    })
}

/// One exchange of each layout, every byte compared.
fn exchange_all(comm: &Communicator, users: &Users, seed: u64) {
    exchange_some(comm, users, seed, 2);
}

/// The same of the first layouts.
fn exchange_some(comm: &Communicator, users: &Users, seed: u64, count: usize) {
    let (me, size) = (u64::from(comm.rank()), u64::from(comm.size()));
    let of = |rank: u64| bytes(seed * size + rank);
    for (number, layout) in layouts().iter().enumerate().take(count) {
        users.out.write(&users.queue, &of(me)).unwrap();
        users.into.write(&users.queue, &vec![7; LEN]).unwrap();
        exchange(comm, (users.out.region(), users.into.region()), layout).unwrap();
        let (theirs, found) = (of((me + size - 1) % size), users.into.read(&users.queue).unwrap());
        let moved = |at: usize| number == 0 || at % 32 < 16;
        let right = (0..LEN).map(|at| if moved(at) { theirs[at] } else { 7 });
        assert!(found.into_iter().eq(right), "rank {me}, seed {seed}, layout {number}");
    }
}

fn held(counts: &Counts) -> [u64; 5] {
    [counts.contexts, counts.queues, counts.buffers, counts.programs, counts.kernels]
        .map(|count| count.held)
}

/// KiB of memory that this process has.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// How many contexts `contexts_come_and_go` makes if the soak says so, which compares memory as well.
fn contexts() -> Option<u64> {
    let told = std::env::var("GAPLESS_OPENCL_CONTEXTS").ok();
    told.map(|count| count.parse().expect("a number"))
}

/// More memory than a bare loop takes, in KiB, from half of the contexts on.
const MORE_KIB: u64 = 24 << 10;

#[test]
fn contexts_come_and_go() {
    const KEPT: u64 = 4;
    let Some((device, _turn)) = device("contexts_come_and_go") else { return };
    let (count, soaks) = (contexts().unwrap_or(24), contexts().is_some());
    // A program that makes as many contexts, and copies as much: some drivers keep something of each.
    let mut bare = [0; 2];
    for number in 0..count {
        let users = Users::new(&device);
        users.out.write(&users.queue, &bytes(number)).unwrap();
        assert_eq!(users.out.read(&users.queue).unwrap(), bytes(number));
        if number == count / 2 {
            bare[0] = resident_kib();
        }
    }
    bare[1] = resident_kib();
    let before = held(&counts());
    let builder = |_| World::builder().opencl_contexts(KEPT.try_into().unwrap());
    job_of(2, builder, |world| {
        let comm = world.comm();
        let mut flat = None;
        let mut resident = [0; 2];
        for number in 0..count {
            let users = Users::new(&device);
            // A driver's compiler is slow.
            exchange_some(comm, &users, number, if number % 4 == 1 { 2 } else { 1 });
            comm.barrier().unwrap();
            let now = held(&counts());
            comm.barrier().unwrap();
            let more = |at: usize| now[at] - before[at];
            // Two worlds, and what was given up and not detached yet.
            assert!(more(0) <= 2 * (KEPT + 1), "{now:?} after {before:?}, {number} contexts");
            // An engine of a GPU has two queues.
            assert!(more(1) <= 4 * (KEPT + 1), "{now:?} after {before:?}, {number} contexts");
            if number == 2 * KEPT {
                flat = Some(now);
            }
            if number == count / 2 {
                resident[0] = resident_kib();
            }
            if let Some(flat) = flat.filter(|_| number > 2 * KEPT) {
                assert!(now[2] <= flat[2] + 8, "buffers: {now:?} after {flat:?}");
            }
            if number == count - 1 {
                assert!(world.release_context(users.context.space(None)).unwrap());
                assert!(!world.release_context(users.context.space(None)).unwrap());
                exchange_all(comm, &users, number + 1);
            }
        }
        resident[1] = resident_kib();
        let grown = resident.map(|kib| kib as i64);
        let (grown, by_itself) = (grown[1] - grown[0], bare[1] as i64 - bare[0] as i64);
        println!("{count} contexts: {grown} KiB more in the second half, a bare loop {by_itself}");
        let flat = grown <= by_itself.max(0) + MORE_KIB as i64;
        assert!(flat || !soaks, "{grown} KiB, bare {by_itself}");
    });
    assert_eq!(held(&counts()), before, "worlds that have ended hold nothing");
}

/// A queue that waits for its program is given up later, and nobody waits for it.
#[test]
fn a_context_whose_queue_has_not_finished_goes_at_a_later_call() {
    let Some((device, _turn)) = device("a_context_whose_queue_has_not_finished") else { return };
    let users = Users::new(&device);
    let space = users.context.space(Some(&users.queue));
    let world = World::init().unwrap();
    let before = held(&counts());
    let regions = (users.out.region_in(space), users.into.region_in(space));
    exchange(world.self_comm(), regions, &layouts()[0]).unwrap();
    let gate = users.context.gate(&users.queue).unwrap();
    assert!(world.release_context(space).unwrap());
    for _ in 0..100 {
        assert!(!world.release_context(space).unwrap());
        assert!(held(&counts())[1] > before[1], "the queue is kept while it has work");
    }
    drop(gate);
    let until = Instant::now() + Duration::from_secs(300);
    while held(&counts()) != before {
        assert!(Instant::now() < until, "{:?} after {before:?}", held(&counts()));
        assert!(!world.release_context(space).unwrap());
    }
    exchange(world.self_comm(), regions, &layouts()[0]).unwrap();
    world.finalize().unwrap();
}

#[test]
fn after_the_first_call_nothing_is_made() {
    let Some((device, _turn)) = device("after_the_first_call_nothing_is_made") else { return };
    let before = counts();
    job_of(
        2,
        |_| World::builder(),
        |world| {
            let (comm, users) = (world.comm(), Users::new(&device));
            exchange_all(comm, &users, 0);
            // On a GPU, programs are prepared in the background.
            let until = Instant::now() + Duration::from_secs(if device.cpu { 0 } else { 60 });
            while counts().programs.made < before.programs.made + 12 && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            exchange_all(comm, &users, 1);
            comm.barrier().unwrap();
            let first = counts();
            comm.barrier().unwrap();
            (2..20).for_each(|seed| exchange_all(comm, &users, seed));
            comm.barrier().unwrap();
            let then = counts();
            assert_eq!(then.made_since(&first), 0, "{then:?} after {first:?}");
            assert!(then.events.made > first.events.made);
            comm.barrier().unwrap();
        },
    );
}

/// Copies need no program; a thread builds those that are likely to be needed next.
#[test]
fn programs_are_prepared_behind_a_message_that_needs_none() {
    let test = "programs_are_prepared_behind_a_message_that_needs_none";
    let Some((_, _turn)) = device(test) else { return };
    let device = Arc::new(OpenClDevice::open(0).unwrap());
    let config = gapless_dtype_cuda::Config { prepares: Some(true), ..Default::default() };
    let engine = GpuEngine::opencl_with(Arc::clone(&device), config).unwrap();
    let before = counts().programs.made;
    let memory = device.allocate(LEN as u64).unwrap();
    let [flat, gaps] = layouts();
    let (sent, mut found) = (bytes(3), vec![0; LEN]);
    let move_all = |layout: &Layout, from: Region, back: Region| {
        let typed = Typed::new(memory, 0, layout, 1).unwrap();
        let part = |region: Region| region.sub(0, typed.packed_bytes()).unwrap();
        let all = 0..typed.packed_bytes();
        // SAFETY: both memories live over the wait, and nothing else touches them.
        let unpacked = unsafe { engine.unpack(part(from), &typed, all.clone(), &[]) };
        unpacked.unwrap().wait().unwrap();
        // SAFETY: as above.
        unsafe { engine.pack(&typed, all, part(back), &[]) }.unwrap().wait().unwrap();
    };
    move_all(&flat, Region::of(&sent), Region::of_mut(&mut found));
    assert_eq!(found, sent);
    let until = Instant::now() + Duration::from_secs(300);
    while counts().programs.made < before + 6 {
        assert!(Instant::now() < until, "programs are not prepared: {:?}", counts());
        std::thread::sleep(Duration::from_millis(5));
    }
    move_all(&gaps, Region::of(&sent), Region::of_mut(&mut found));
    assert_eq!(found[..LEN / 2], sent[..LEN / 2]);
    assert_eq!(counts().programs.made, before + 6, "it was there");
    // SAFETY: nothing is in flight.
    unsafe { device.free(memory) }.unwrap();
}

/// A message to oneself that is refused: what its sender and its receiver hear.
fn refused(comm: &Communicator, (out, into): (Region, Region), layout: &Layout) -> String {
    let mut heard = String::new();
    comm.scope(|s| {
        // SAFETY: the buffers live over the scope, and nothing else touches them; wrong handles are refused.
        let received = s.irecv(unsafe { ViewMut::of_region(into, 0, layout, 1) }?, 0, 0)?;
        // SAFETY: as above.
        let sent = s.isend(unsafe { View::of_region(out, 0, layout, 1) }?, 0, 0)?;
        for error in [received.wait().err(), sent.wait().err()].into_iter().flatten() {
            heard += &format!("{error}\n");
        }
        Ok(())
    })
    .unwrap();
    assert!(!heard.is_empty(), "it went through");
    heard
}

#[test]
fn handles_that_do_not_belong_together_are_refused_in_messages() {
    let Some((device, _turn)) = device("handles_that_do_not_belong_together") else { return };
    let (users, others) = (Users::new(&device), Users::new(&device));
    let [flat, gaps] = layouts();
    let world = World::init().unwrap();
    let comm = world.self_comm();
    exchange_all(comm, &users, 1);
    let own = users.context.space(None);
    // A buffer of another context.
    for layout in [&flat, &gaps] {
        let foreign = others.out.region_in(own);
        let error = refused(comm, (foreign, users.into.region()), layout);
        assert!(error.contains("buffer") && error.contains("another context"), "{error}");
        exchange_all(comm, &users, 2);
        let error = refused(comm, (users.out.region(), foreign), layout);
        assert!(error.contains("buffer") && error.contains("another context"), "{error}");
        exchange_all(comm, &users, 3);
    }
    // A mapped buffer: what was refused goes through once it is unmapped.
    let pointer = users.out.map(&users.queue).unwrap();
    let error = refused(comm, (users.out.region(), users.into.region()), &gaps);
    assert!(error.contains("buffer") && error.contains("mapped"), "{error}");
    users.out.unmap(&users.queue, pointer).unwrap();
    exchange_all(comm, &users, 4);
    // A queue of another context, and one that is out of order, also when it is asked again at once.
    let wrong = |queue: &UserQueue, why: &str| {
        let region = users.out.region_in(users.context.space(Some(queue)));
        for _ in 0..2 {
            let error = send(comm, region, &flat, 0).unwrap_err().to_string();
            assert!(error.contains("queue") && error.contains(why), "{error}");
        }
    };
    wrong(&others.queue, "another context");
    if let Ok(unordered) = users.context.queue(true) {
        wrong(&unordered, "out of order");
    }
    // Longer than the buffer.
    let Space::OpenCl { .. } = own else { panic!("it is OpenCL's") };
    let short = users.out.part(0, LEN / 2).unwrap();
    let region = Region::new(own, short.region().address(), 0, LEN as u64);
    let error = refused(comm, (region, users.into.region()), &flat);
    assert!(error.contains(&(LEN / 2).to_string()), "{error}");
    exchange_all(comm, &users, 5);
    // No bytes: no buffer is needed.
    let none = Datatype::contiguous(0, &Primitive::Byte.into()).unwrap().commit().unwrap();
    let nothing = Region::new(own, 0, 0, 0);
    exchange(comm, (nothing, nothing), &none).unwrap();
    // The program's own queue, in order.
    let with_queue = users.context.space(Some(&users.queue));
    let regions = (users.out.region_in(with_queue), users.into.region_in(with_queue));
    exchange(comm, regions, &gaps).unwrap();
    // A context that is not used any more: safe code is not followed there.
    assert!(world.release_context(own).unwrap());
    let error = world.alloc_device(own, 64).unwrap_err();
    assert!(matches!(error, Error::NoDevice { space, .. } if space == own), "{error}");
    let error = world.release_context(Space::Host).unwrap_err();
    assert!(matches!(error, Error::NoDevice { space: Space::Host, .. }), "{error}");
    exchange_all(comm, &users, 6);
    world.finalize().unwrap();
}

/// PoCL shows two devices if it is told to, before it is loaded.
#[test]
fn a_device_of_another_context_is_refused() {
    const TEST: &str = "a_device_of_another_context_is_refused";
    if std::env::var_os("POCL_DEVICES").is_none() {
        let program = std::env::current_exe().unwrap();
        let mut child = std::process::Command::new(program);
        child.args(["--exact", TEST, "--nocapture"]).env("POCL_DEVICES", "pthread basic");
        assert!(child.status().unwrap().success());
        return;
    }
    let Some((first, _turn)) = device(TEST) else { return };
    let Some(second) = detect().unwrap().into_iter().nth(1) else {
        return gapless_btl_testkit::conformance::skip(TEST, "there is one OpenCL device");
    };
    let (users, others) = (Users::new(&first), Users::new(&second));
    let (Space::OpenCl { context, .. }, Space::OpenCl { device, .. }) =
        (users.context.space(None), others.context.space(None))
    else {
        panic!("they are OpenCL's")
    };
    let wrong = Space::OpenCl { context, device, queue: None };
    let world = World::init().unwrap();
    let error = send(world.self_comm(), users.out.region_in(wrong), &layouts()[0], 0).unwrap_err();
    let Error::Message(failure) = &error else { panic!("{error}") };
    assert!(matches!(&failure.error, PmlError::Refused { space, .. } if *space == wrong));
    let error = error.to_string();
    assert!(error.contains("device") && error.contains(&format!("{device:#x}")), "{error}");
    exchange_all(world.self_comm(), &users, 1);
    exchange_all(world.self_comm(), &others, 2);
    world.finalize().unwrap();
    assert!(OpenClDevice::known(wrong).is_err());
}
