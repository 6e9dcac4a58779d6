//! A transport that reads memory late: whoever takes memory back waits until it has.

use crate::common::{Buffer, Job, bytes};
use gapless_btl::loopback::{Hub, Loopback};
use gapless_btl::{
    AbilityId, Access, Btl, Extent, Mapped, PeerId, Rdma, RdmaError, RemoteKey, Sink, Token,
    delegate,
};
use gapless_mem::Region;
use gapless_pml::{Config, Protocol, RequestId, Source, TagSel};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Polls that an operation takes.
const POLLS: u32 = 50;

struct Operation {
    peer: PeerId,
    local: Vec<Region>,
    key: RemoteKey,
    remote: Vec<Extent>,
    done: Token,
    /// Polls until it begins.
    left: u32,
}

/// A loopback whose operations begin, and end, late.
struct Late {
    inner: Loopback,
    operations: Vec<Operation>,
    /// How many have not begun.
    waiting: Arc<AtomicU32>,
    /// How many there may be at a time.
    room: usize,
    /// How often an operation was asked for.
    asked: Arc<AtomicU32>,
}

impl Late {
    fn new(hub: &Hub, waiting: &Arc<AtomicU32>) -> Late {
        let (inner, operations) = (Loopback::with(hub, crate::common::link()), Vec::new());
        let (waiting, asked) = (Arc::clone(waiting), Arc::default());
        Late { inner, operations, waiting, room: usize::MAX, asked }
    }

    fn begin(&mut self, operation: &Operation) {
        let Operation { peer, local, key, remote, done, .. } = operation;
        let inner = self.inner.rdma().expect("a loopback reads memory");
        // SAFETY: the caller of `get` guarantees this until the event, which the loopback makes after this call.
        let begun = unsafe { inner.get(*peer, local, key, remote, *done) };
        begun.expect("the peer lives, and has registered its memory");
    }
}

impl Btl for Late {
    delegate!(self => self.inner; limits address connect reserve send);

    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        let mut operations = std::mem::take(&mut self.operations);
        operations.iter_mut().for_each(|operation| operation.left -= 1);
        let (due, later) = operations.into_iter().partition(|operation| operation.left == 0);
        self.operations = later;
        let due: Vec<Operation> = due;
        for operation in &due {
            self.begin(operation);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        self.inner.poll(only, sink)
    }

    fn rdma(&mut self) -> Option<&mut dyn Rdma> {
        Some(self)
    }

    fn mapped(&mut self) -> Option<&mut dyn Mapped> {
        None
    }
}

// SAFETY: the numbers are those of the contract.
// 1. The id is the loopback's, which makes the events.
// 2. An operation is the loopback's, later; `put` refuses.
// 3. The keys are the loopback's.
// 4. What `get` does is to note the operation.
unsafe impl Rdma for Late {
    delegate!(self => self.inner; rdma_limits reaches);

    fn id(&self) -> AbilityId {
        Rdma::id(&self.inner)
    }

    unsafe fn register(&mut self, local: Region, access: Access) -> Result<RemoteKey, RdmaError> {
        // SAFETY: the caller's guarantee, passed on.
        unsafe { self.inner.register(local, access) }
    }

    fn deregister(&mut self, key: &RemoteKey) {
        self.inner.deregister(key);
    }

    unsafe fn get(
        &mut self,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.operations.len() >= self.room {
            return Err(RdmaError::Full);
        }
        let (local, key, remote) = (local.to_vec(), *key, remote.to_vec());
        self.operations.push(Operation { peer, local, key, remote, done, left: POLLS });
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    unsafe fn put(
        &mut self,
        _: PeerId,
        _: &[Region],
        _: &RemoteKey,
        _: &[Extent],
        _: Token,
    ) -> Result<(), RdmaError> {
        Err(RdmaError::Unavailable { reason: "this one only reads".to_owned() })
    }
}

/// A receive whose data its rank reads: the read has been asked for, and has not begun.
struct Lab {
    job: Job,
    recv: RequestId,
    from: Buffer,
    to: Buffer,
    waiting: Arc<AtomicU32>,
}

impl Lab {
    fn new() -> Lab {
        let waiting = Arc::new(AtomicU32::new(0));
        let config = Config { force: Some(Protocol::SingleCopy), ..Config::default() };
        let mut job = Job::build(2, config, &mut |_, hub| Box::new(Late::new(hub, &waiting)));
        let shape = bytes(100_000);
        let (from, to) = (Buffer::source(&shape, 1, 7), Buffer::target(&shape, 1));
        let recv = job.irecv(1, &to, Source::Rank(0), TagSel::Any);
        job.isend(0, &from, 1, 0);
        job.until("the offer", |_| (waiting.load(Ordering::Relaxed) == 1).then_some(()));
        Lab { job, recv, from, to, waiting }
    }

    /// Reads that have not begun.
    fn left(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }
}

#[test]
fn memory_is_taken_back_after_one_sided_work_has_ended() {
    let mut lab = Lab::new();
    lab.job.pml(1).take_back();
    assert_eq!(lab.left(), 0, "it was not waited for");
    lab.to.assert_received(&lab.from.packed(), "the operation");
    assert_eq!(lab.job.pml(1).is_done(lab.recv).ok(), Some(false), "its request never ends");
}

#[test]
fn a_receive_ends_after_one_sided_work_has_ended_although_its_sender_is_lost() {
    let mut lab = Lab::new();
    let lost = gapless_bml::LinkError::Incompatible { what: "as the test wants".to_owned() };
    lab.job.pml(1).bml_mut().give_up(gapless_bml::Rank(0), lost);
    // The sender, which would hear of it and take its memory back, does nothing.
    let ended = (0..1000 * POLLS).find_map(|_| {
        lab.job.pml(1).progress();
        lab.job.pml(1).test(lab.recv).transpose()
    });
    assert!(matches!(ended, Some(Err(_))), "{ended:?}");
    assert_eq!(lab.left(), 0, "it was not waited for");
}

/// Of 500 messages whose receiver reads them, four at a time: a step of progress does not ask for each of those that
/// wait for room.
#[test]
fn however_many_wait_for_room_a_step_of_progress_asks_for_few() {
    let (waiting, asked) = (Arc::default(), Arc::new(AtomicU32::new(0)));
    let config = Config { force: Some(Protocol::SingleCopy), ..Config::default() };
    let mut job = Job::build(2, config, &mut |_, hub| {
        let late = Late::new(hub, &waiting);
        Box::new(Late { room: 4, asked: Arc::clone(&asked), ..late })
    });
    let shape = bytes(40_000);
    let froms: Vec<Buffer> = (0..500).map(|seed| Buffer::source(&shape, 1, seed)).collect();
    let tos: Vec<Buffer> = froms.iter().map(|_| Buffer::target(&shape, 1)).collect();
    let recvs: Vec<RequestId> =
        tos.iter().map(|to| job.irecv(1, to, Source::Rank(0), TagSel::Any)).collect();
    for from in &froms {
        job.isend(0, from, 1, 0);
    }
    let mut most = 0;
    let is_waiting = |job: &mut Job, id: &RequestId| job.pml(1).is_done(*id) == Ok(false);
    let mut steps = 0;
    while recvs.iter().any(|id| is_waiting(&mut job, id)) {
        steps += 1;
        assert!(steps < 1000 * POLLS, "they wait for ever");
        let before = asked.load(Ordering::Relaxed);
        job.pml(1).progress();
        // Each step can also begin what it has room for, and be brought new offers.
        if waiting.load(Ordering::Relaxed) == 4 {
            most = most.max(asked.load(Ordering::Relaxed) - before);
        }
        job.pml(0).progress();
    }
    assert!(most < 200, "{most} in one step");
    for (from, to) in froms.iter().zip(&tos) {
        to.assert_received(&from.packed(), "one of many");
    }
}
