//! A thread that maps memory for all others: it alone calls the driver, which it opens first.
//!
//! A driver may take half a second to open, and may hang. So whoever waits for this thread says for how long. A thread
//! that does not come back in time is left behind, with the driver and all that it has mapped: nothing is unmapped or
//! unloaded under it.

use crate::context::lock;
use crate::key::MemoryKey;
use gapless_mem::{Answer, DeviceError, Region, Space};
use std::collections::{BTreeMap, VecDeque};
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Every wait is bounded. The thread needs no such look: whoever orders something calls it.
const REST: Duration = Duration::from_secs(60);

/// What maps. It lives on the thread.
pub(crate) trait Maps: Sized + 'static {
    /// What is mapped.
    type Held: Send;

    /// By which library.
    fn name(&self) -> &'static str;

    /// Maps all of an allocation of `size` bytes. Gives its address.
    ///
    /// # Errors
    /// Why not.
    fn map(&mut self, file: OwnedFd, size: u64) -> Result<(u64, Self::Held), String>;

    /// Unmaps it.
    ///
    /// # Safety
    /// Nothing uses the memory any more.
    unsafe fn unmap(&mut self, held: Self::Held);
}

/// What the thread is to do.
enum Order<H> {
    Map(OwnedFd, MemoryKey, Answer),
    Unmap(H),
}

struct State<H> {
    orders: VecDeque<Order<H>>,
    /// By which library, or why not; `None`: it is being opened.
    opened: Option<Result<&'static str, String>>,
    /// What is mapped, by first address.
    mapped: BTreeMap<u64, H>,
    /// The thread is to end.
    closed: bool,
    /// It calls the driver no more.
    ended: bool,
}

impl<H> State<H> {
    /// By which library it maps, or why it maps nothing; `None`: it is being opened.
    fn serves(&self) -> Option<Result<&'static str, String>> {
        match &self.opened {
            Some(Ok(_)) if self.ended => Some(Err("the thread that maps has ended".to_owned())),
            opened => opened.clone(),
        }
    }
}

struct Shared<H> {
    state: Mutex<State<H>>,
    changed: Condvar,
}

impl<H> Shared<H> {
    /// Waits until `known` gives something, until then at most.
    fn wait<T>(&self, until: Instant, known: impl Fn(&State<H>) -> Option<T>) -> Option<T> {
        let mut state = lock(&self.state);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match known(&state) {
                None if !left.is_zero() => {
                    let waited = self.changed.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                known => return known,
            }
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State<H>) -> T) -> T {
        let value = change(&mut lock(&self.state));
        self.changed.notify_all();
        value
    }
}

/// The thread.
pub(crate) struct MappingThread<H> {
    shared: Arc<Shared<H>>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) fn unavailable(reason: String) -> DeviceError {
    DeviceError::Failed { device: "Vulkan".to_owned(), operation: "mapping memory", reason }
}

impl<H: Send + 'static> MappingThread<H> {
    /// Opens what maps, on a thread.
    pub(crate) fn new<M: Maps<Held = H>>(
        open: impl FnOnce() -> Result<M, String> + Send + 'static,
    ) -> MappingThread<H> {
        let (orders, mapped) = Default::default();
        let state = State { orders, opened: None, mapped, closed: false, ended: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let ending = Ending(Arc::clone(&shared));
        let run = move || run(&ending.0, open);
        let thread = std::thread::Builder::new().name("gapless-vulkan".to_owned()).spawn(run);
        if let Err(error) = &thread {
            shared.change(|state| state.opened = Some(Err(format!("no thread: {error}"))));
        }
        MappingThread { shared, thread: thread.ok() }
    }

    /// A handle to it, which may outlive it.
    pub(crate) fn caller(&self) -> Caller<H> {
        Caller(Arc::clone(&self.shared))
    }

    /// Unmaps what was mapped at this address, sooner or later. Whether something was.
    ///
    /// # Safety
    /// Nothing uses it any more.
    pub(crate) unsafe fn unmap(&self, start: u64) -> bool {
        self.shared.change(|state| {
            let held = state.mapped.remove(&start);
            let was = held.is_some();
            state.orders.extend(held.map(Order::Unmap));
            was
        })
    }

    /// Tells the thread to end.
    pub(crate) fn close(&self) {
        self.shared.change(|state| state.closed = true);
    }

    /// Waits until then for the thread's end, after [`close`](MappingThread::close). Whether it has ended; one that has not is
    /// left behind.
    pub(crate) fn end(mut self, until: Instant) -> bool {
        let Some(thread) = self.thread.take() else { return true };
        if thread.thread().id() == std::thread::current().id() {
            // Its last owner has gone on the thread itself, in a bell.
            return true;
        }
        let ended = self.shared.wait(until, |state| state.ended.then_some(()));
        // Only the thread's own end is left, in which the driver may have some part.
        while ended.is_some() && !thread.is_finished() && Instant::now() < until {
            std::thread::yield_now();
        }
        thread.is_finished()
    }
}

/// A handle to the thread, for those who want memory mapped.
pub(crate) struct Caller<H>(Arc<Shared<H>>);

impl<H> Caller<H> {
    /// By which library it maps. An error: why not, or it is not known in time.
    pub(crate) fn opened(&self, patience: Duration) -> Result<&'static str, String> {
        let known = self.0.wait(Instant::now() + patience, State::serves);
        known.unwrap_or_else(|| Err(format!("the driver was not open within {patience:?}")))
    }

    /// Maps the memory that the key describes, sooner or later.
    pub(crate) fn map(&self, file: OwnedFd, key: MemoryKey, answer: Answer) {
        let mut state = lock(&self.0.state);
        let Some(Err(why)) = state.serves() else {
            state.orders.push_back(Order::Map(file, key, answer));
            return self.0.changed.notify_all();
        };
        drop(state);
        refuse(answer, why);
    }
}

/// Answers that nothing is mapped, and why.
pub(crate) fn refuse(answer: Answer, why: String) {
    // Only regions come back.
    _ = answer.give(Err(unavailable(why)));
}

/// However the thread ends, nobody waits for it any longer.
struct Ending<H>(Arc<Shared<H>>);

impl<H> Drop for Ending<H> {
    fn drop(&mut self) {
        let orders = self.0.change(|state| {
            let panicked = || Err("opening it has panicked".to_owned());
            state.opened.get_or_insert_with(panicked);
            state.ended = true;
            std::mem::take(&mut state.orders)
        });
        // Their bells ring.
        drop(orders);
    }
}

fn run<M: Maps>(shared: &Shared<M::Held>, open: impl FnOnce() -> Result<M, String>) {
    // If this panics, in a bell say, what is mapped is still used: the driver stays open.
    let mut maps = match open() {
        Ok(maps) => ManuallyDrop::new(maps),
        Err(why) => {
            let orders = shared.change(|state| {
                state.opened = Some(Err(why.clone()));
                std::mem::take(&mut state.orders)
            });
            for order in orders {
                if let Order::Map(_, _, answer) = order {
                    refuse(answer, why.clone());
                }
            }
            return;
        }
    };
    shared.change(|state| state.opened = Some(Ok(maps.name())));
    while let Some(order) = next(shared) {
        match order {
            Order::Map(file, key, answer) => {
                let region = match maps.map(file, key.size) {
                    Ok((start, held)) => {
                        shared.change(|state| state.mapped.insert(start, held));
                        Ok(Region::new(Space::Host, start, key.offset, key.len))
                    }
                    Err(why) => Err(unavailable(why)),
                };
                let Some(region) = answer.give(region) else { continue };
                let held = shared.change(|state| state.mapped.remove(&region.address()));
                // SAFETY: it was just mapped, and nobody has it.
                held.into_iter().for_each(|held| unsafe { maps.unmap(held) });
            }
            // SAFETY: whoever gave the order has promised that nothing uses it.
            Order::Unmap(held) => unsafe { maps.unmap(held) },
        }
    }
    let (orders, mapped) = shared
        .change(|state| (std::mem::take(&mut state.orders), std::mem::take(&mut state.mapped)));
    let ordered = orders.into_iter().filter_map(|order| match order {
        Order::Unmap(held) => Some(held),
        Order::Map(..) => None,
    });
    for held in ordered.chain(mapped.into_values()) {
        // SAFETY: the thread was told to end by the last owner of the mapper, whom all users of the memory have held.
        unsafe { maps.unmap(held) };
    }
    drop(ManuallyDrop::into_inner(maps));
}

/// The next order; `None`: it is over.
fn next<H>(shared: &Shared<H>) -> Option<Order<H>> {
    let mut state = lock(&shared.state);
    while !state.closed {
        if let Some(order) = state.orders.pop_front() {
            return Some(order);
        }
        let waited = shared.changed.wait_timeout(state, REST);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Kind;
    use gapless_mem::{Export, Mapper, ProcessorMapping};
    use std::fs::File;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Maps nothing, and counts.
    #[derive(Clone, Default)]
    struct Counts(Arc<(AtomicUsize, AtomicUsize)>);

    impl Counts {
        /// What is mapped, and how often the driver was closed.
        fn now(&self) -> [usize; 2] {
            [self.0.0.load(Ordering::SeqCst), self.0.1.load(Ordering::SeqCst)]
        }
    }

    struct Driver(Counts);

    impl Maps for Driver {
        type Held = u64;

        fn name(&self) -> &'static str {
            "a driver"
        }

        fn map(&mut self, _: OwnedFd, size: u64) -> Result<(u64, u64), String> {
            if size == 1 {
                return Err("it is too short".to_owned());
            }
            self.0.0.0.fetch_add(1, Ordering::SeqCst);
            Ok((size << 20, size))
        }

        unsafe fn unmap(&mut self, _: u64) {
            self.0.0.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl Drop for Driver {
        fn drop(&mut self) {
            self.0.0.1.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// What is asked for by mappings: their exports say how long allocations are.
    struct By(MappingThread<u64>);

    // SAFETY: it maps nothing, and nobody touches what it answers.
    unsafe impl Mapper for By {
        fn map(&self, export: Export, answer: Answer) {
            let (process, start, buffer_id, offset, uuid) = Default::default();
            let size = export.bytes[0].into();
            let (kind, handle) = (Kind::Descriptor, [0; crate::driver::HANDLE]);
            let len = size;
            let key =
                MemoryKey { kind, process, start, size, buffer_id, offset, len, uuid, handle };
            let file = File::open("/dev/null").unwrap().into();
            self.0.caller().map(file, key, answer);
        }

        unsafe fn unmap(&self, region: Region) -> Result<(), DeviceError> {
            // SAFETY: the caller's own promise.
            unsafe { self.0.unmap(region.address()) };
            Ok(())
        }
    }

    fn begin(by: &Arc<dyn Mapper>, len: u8) -> ProcessorMapping {
        let export = Export { bytes: vec![len], descriptors: Vec::new() };
        ProcessorMapping::begin(by, export, len.into(), Arc::new(|| {}))
    }

    fn until<T>(what: &str, mut known: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            match known() {
                Some(value) => return value,
                None => assert!(begun.elapsed() < PATIENCE, "{what}"),
            }
            std::thread::yield_now();
        }
    }

    fn ends(by: Arc<By>, until: Instant) -> bool {
        let By(thread) = Arc::into_inner(by).expect("nobody else has it");
        thread.close();
        thread.end(until)
    }

    #[test]
    fn what_is_mapped_is_unmapped_once_and_the_driver_is_closed_on_its_thread() {
        let counts = Counts::default();
        let theirs = counts.clone();
        let by = Arc::new(By(MappingThread::new(|| Ok(Driver(theirs)))));
        assert_eq!(by.0.caller().opened(PATIENCE), Ok("a driver"));
        let mapper: Arc<dyn Mapper> = Arc::clone(&by) as _;
        let mut all = [2, 3, 4].map(|len| begin(&mapper, len));
        let mut leases = all.each_mut().map(|one| until("it maps", || one.take()).unwrap());
        assert_eq!((leases[1].region().address(), counts.now()), (3 << 20, [3, 0]));
        leases[0] = leases[1].clone();
        until("it unmaps", || (counts.now() == [2, 0]).then_some(()));
        // SAFETY: nothing touches it, nor anything else here.
        assert!(unsafe { !by.0.unmap(2 << 20) }, "it is not mapped any more");
        let mut short = begin(&mapper, 1);
        let error = until("it refuses", || short.take()).unwrap_err();
        assert!(error.to_string().contains("too short"), "{error}");
        drop((begin(&mapper, 5), short, mapper, all, leases));
        assert!(ends(by, Instant::now() + PATIENCE));
        assert_eq!(counts.now(), [0, 1]);
    }

    #[test]
    fn a_driver_that_hangs_is_left_behind() {
        let counts = Counts::default();
        let theirs = counts.clone();
        let (release, wait) = mpsc::channel::<()>();
        let by = Arc::new(By(MappingThread::new(move || {
            wait.recv().unwrap();
            Ok(Driver(theirs))
        })));
        let mapper: Arc<dyn Mapper> = Arc::clone(&by) as _;
        let why = by.0.caller().opened(Duration::ZERO).unwrap_err();
        assert!(why.contains("not open within"), "{why}");
        let (dropped, shared) = (begin(&mapper, 2), Arc::clone(&by.0.shared));
        drop((dropped, mapper));
        assert!(!ends(by, Instant::now()), "it hangs");
        assert_eq!(counts.now(), [0, 0], "nothing is closed under it");
        release.send(()).unwrap();
        shared.wait(Instant::now() + PATIENCE, |state| state.ended.then_some(())).unwrap();
        assert_eq!(counts.now(), [0, 1]);
    }

    #[test]
    fn who_asks_before_and_after_it_fails_is_told_why() {
        let (release, wait) = mpsc::channel::<()>();
        let by = Arc::new(By(MappingThread::<u64>::new(move || {
            wait.recv().unwrap();
            Err::<Driver, _>("no such library".to_owned())
        })));
        let mapper: Arc<dyn Mapper> = Arc::clone(&by) as _;
        let mut early = begin(&mapper, 2);
        assert!(early.take().is_none());
        release.send(()).unwrap();
        let tell =
            |mut one: ProcessorMapping| until("it is told", || one.take()).unwrap_err().to_string();
        assert!(tell(early).contains("no such library"));
        assert!(tell(begin(&mapper, 2)).contains("no such library"));
        assert_eq!(by.0.caller().opened(PATIENCE), Err("no such library".to_owned()));
        drop(mapper);
        assert!(ends(by, Instant::now() + PATIENCE));
    }

    #[test]
    fn a_panic_is_an_error() {
        let by = Arc::new(By(MappingThread::<u64>::new(|| -> Result<Driver, String> {
            panic!("as the test wants")
        })));
        let mut one = begin(&(Arc::clone(&by) as _), 2);
        until("it is told", || one.take()).unwrap_err();
        assert!(by.0.caller().opened(PATIENCE).unwrap_err().contains("panicked"));
        drop(one);
        assert!(ends(by, Instant::now() + PATIENCE));
    }

    #[test]
    fn what_is_in_use_stays_mapped_though_a_bell_panics() {
        let counts = Counts::default();
        let theirs = counts.clone();
        let by = Arc::new(By(MappingThread::new(|| Ok(Driver(theirs)))));
        let mapper: Arc<dyn Mapper> = Arc::clone(&by) as _;
        let mut one = begin(&mapper, 2);
        let lease = until("it maps", || one.take()).unwrap();
        let export = Export { bytes: vec![3], descriptors: Vec::new() };
        let bell = Arc::new(|| panic!("as the test wants"));
        let other = ProcessorMapping::begin(&mapper, export, 3, bell);
        let ended = |state: &State<u64>| state.ended.then_some(());
        by.0.shared.wait(Instant::now() + PATIENCE, ended).unwrap();
        assert!(begin(&mapper, 2).take().unwrap().is_err());
        assert!(by.0.caller().opened(PATIENCE).unwrap_err().contains("has ended"));
        assert_eq!(counts.now(), [2, 0]);
        drop((one, lease, other, mapper));
        assert!(ends(by, Instant::now() + PATIENCE));
        assert_eq!(counts.now(), [2, 0], "nobody is there to unmap it");
    }

    /// The last owner may be whom a bell wakes.
    #[test]
    fn the_thread_does_not_wait_for_itself() {
        let counts = Counts::default();
        let theirs = counts.clone();
        let thread = MappingThread::new(|| Ok(Driver(theirs)));
        let by = Arc::new(By(thread));
        let (last, shared) = (Mutex::new(None), Arc::clone(&by.0.shared));
        let last = Arc::new(last);
        let bell = Arc::clone(&last);
        let bell = Arc::new(move || {
            let by: Option<Arc<By>> = bell.lock().unwrap().take();
            assert!(by.is_none_or(|by| ends(by, Instant::now() + PATIENCE)));
        });
        let mut held = last.lock().unwrap();
        let export = Export { bytes: vec![2], descriptors: Vec::new() };
        let mapping = ProcessorMapping::begin(&(Arc::clone(&by) as _), export, 2, bell);
        until("it is known", || mapping.is_known().then_some(()));
        drop(mapping);
        *held = Some(by);
        drop(held);
        shared.wait(Instant::now() + PATIENCE, |state| state.ended.then_some(())).unwrap();
        assert_eq!(counts.now(), [0, 1]);
    }
}
