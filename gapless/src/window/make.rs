//! How a window is made, and freed: collective calls, in which ranks tell each other where their memory is.
//!
//! ```text
//! all ranks: duplicate the communicator, allocate, be ready for messages
//!   allgather   how many bytes, which type, which kind; whether there is memory
//!   alltoall    to each rank the keys by which it maps this one's memory and lock
//!   allreduce   whether all that must be mapped are
//!   of numbers: whether adapters change them (`numbers.rs`)
//! ```

use super::attributes::{Hints, WindowFlavor};
use super::memory::{GivesBack, WindowMemory, clear, part};
use super::profile::Profile;
use super::{Window, numbers};
use crate::communicator::Communicator;
use crate::device_buf::DeviceBuf;
use crate::error::Error;
use crate::shared::Shared;
use crate::shared_buf::SharedBuf;
use gapless_bml::{Bml, Rank, RemoteKey};
use gapless_dtype::{AnyBits, SignatureDigest};
use gapless_engine::ReduceOp;
use gapless_mem::{Lease, Space};
use gapless_osc::{Accumulations, Flavor, Header, KernelSeat, Member, Part, WindowError};
use gapless_pml::PmlError;
use std::marker::PhantomData;

/// A key: how long it is, and the key.
pub(super) const KEY: usize = 1 + RemoteKey::MAX_BYTES;
/// Two of them.
const KEYS: usize = 2 * KEY;
/// What a rank tells of itself.
const CARD: usize = 5 * 8 + SignatureDigest::LEN;

/// Choices for a window, made by [`Communicator::window`].
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is made yet"]
pub struct WindowBuilder<'c> {
    comm: &'c Communicator,
    messages: bool,
    profiled: bool,
    accumulations: Accumulations,
    hints: Hints,
    given: bool,
}

impl Communicator {
    /// A window of `count` elements, zeroed, at this rank (`MPI_Win_allocate`, MPI 4.1 §12.2.2); other ranks may give
    /// other counts. Collective.
    ///
    /// # Errors
    /// No memory at some rank; the ranks' elements have different types; a member is lost; this is an intercommunicator.
    pub fn window_allocate<T: AnyBits>(&self, count: usize) -> Result<Window<T>, Error> {
        self.window().allocate(count)
    }

    /// A window, with choices.
    pub fn window(&self) -> WindowBuilder<'_> {
        let (accumulations, hints) = Default::default();
        let (messages, profiled, given) = (false, false, false);
        WindowBuilder { comm: self, messages, profiled, accumulations, hints, given }
    }
}

impl WindowBuilder<'_> {
    /// Has all operations of this rank go by messages, also where memory could be mapped. For tests, and to measure what
    /// mapping is worth.
    pub fn by_messages(self) -> Self {
        WindowBuilder { messages: true, ..self }
    }

    /// Has this rank count and time its calls on the window: [`Window::profile`]. That costs two looks at the clock a call.
    pub fn profiled(self) -> Self {
        WindowBuilder { profiled: true, ..self }
    }

    /// Has accumulations carried out as tasks on threads of their targets, which acknowledge each ([`crate::xtq`]; LeBeane et
    /// al. 2016, §V.C.1): the origin does not wait for the target's mutexes, and the target's progress hands them to a
    /// thread. All ranks do the same. Not in dynamic windows.
    pub fn accumulate_by_tasks(self) -> Self {
        WindowBuilder { accumulations: Accumulations::Tasks, ..self }
    }

    /// The same by the [worker](crate::World::attach_window_worker) of each rank's accelerator, which reaches the window's
    /// memory.
    /// Of accumulations there are [`Window::accumulate`] and [`Window::raccumulate`], of sums, products, minima and maxima
    /// of numbers of 4 and 8 bytes; others are refused ([`WindowError::NotByWorker`]).
    pub fn accumulate_by_worker(self) -> Self {
        WindowBuilder { accumulations: Accumulations::Worker, ..self }
    }

    /// A hint (an info key of MPI 4.1 §12.2.1). `same_size` with `true` at any rank: the window is made only if all ranks
    /// give as many bytes, else all get [`WindowError::Differs`]. All others are without effect, as what they promise
    /// or ask for is so anyway or saves nothing: accumulations are atomic and in order whatever operations are mixed
    /// (`accumulate_ops`, `accumulate_ordering`), mutexes are of 4 KiB (`mpi_accumulate_granularity`), displacements are in
    /// elements of one type (`same_disp_unit`), and locks are there (`no_locks`). Unknown keys are ignored, as MPI says.
    /// [`Window::info`] tells what a window keeps to.
    pub fn info(self, key: &str, value: &str) -> Self {
        WindowBuilder { hints: self.hints.with(key, value), ..self }
    }

    /// See [`Communicator::window_allocate`].
    ///
    /// # Errors
    /// As there.
    pub fn allocate<T: AnyBits>(self, count: usize) -> Result<Window<T>, Error> {
        self.make(Flavor::Plain, self.elements::<T>(count))
    }

    /// The same in memory of a device: some ranks may call this, and others [`allocate`](WindowBuilder::allocate). Ranks of
    /// one host whose devices map each other's memory (CUDA) have their own device do operations, in one step. For all
    /// others the target's progress engine has its device do them. `docs/windows.md` says what differs from memory of
    /// the host.
    ///
    /// # Errors
    /// As [`allocate`](WindowBuilder::allocate); there is no such device.
    pub fn allocate_on<T: AnyBits>(
        self,
        space: Space,
        count: usize,
    ) -> Result<Window<T, DeviceBuf>, Error> {
        let bytes = (count as u64).saturating_mul(size_of::<T>() as u64);
        let shared = &self.comm.shared;
        let device = shared.with(|state| state.device(space));
        let memory = device.and_then(|device| {
            let mut memory = DeviceBuf::allocate(shared, device, bytes)?;
            clear(shared, &mut memory)?;
            Ok(memory)
        });
        self.make(Flavor::Plain, memory)
    }

    /// A window of memory that the ranks give, of the host or of a device (`MPI_Win_create`, MPI 4.1 §12.2.1).
    /// [`Window::free`] gives it back. Collective.
    ///
    /// ```
    /// # fn main() -> Result<(), gapless::Error> {
    /// # let world = gapless::World::init()?;
    /// let mut window = world.comm().window().create(vec![0.0f64; 100])?;
    /// window.fence()?;
    /// window.put(&[1.5, 2.5], 0, 98)?;
    /// window.fence_last()?;
    /// let values = window.free()?;
    /// assert_eq!(values[97..], [0.0, 1.5, 2.5]);
    /// # world.finalize()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`allocate`](WindowBuilder::allocate); elements of a `Vec` have padding.
    pub fn create<M: WindowMemory>(self, memory: M) -> Result<Window<M::Element, M>, Error> {
        WindowBuilder { given: true, ..self }.make(Flavor::Plain, Ok(memory))
    }

    /// A window that all ranks map (`MPI_Win_allocate_shared`, MPI 4.1 §12.2.3): besides one-sided operations there are
    /// loads and stores of all ranks' memory, without epochs ([`Window::part`]). Each rank's memory is an allocation of
    /// its own, so parts do not follow each other; one rank may give all, and the others 0 elements. Collective.
    ///
    /// # Errors
    /// As [`allocate`](WindowBuilder::allocate); a rank cannot map another's memory: then no rank has the window. To find
    /// those that can: [`Communicator::split_shared`].
    pub fn allocate_shared<T: AnyBits>(self, count: usize) -> Result<Window<T>, Error> {
        self.make(Flavor::Shared, self.elements::<T>(count))
    }

    /// A window of memory that ranks [attach](Window::attach) as they like (`MPI_Win_create_dynamic`, MPI 4.1 §12.2.4).
    /// Displacements are addresses, in bytes; operations go by messages. Collective.
    ///
    /// # Errors
    /// As [`allocate`](WindowBuilder::allocate).
    pub fn dynamic(self) -> Result<Window<u8>, Error> {
        self.make(Flavor::Dynamic, SharedBuf::heap(0))
    }

    /// A window of numbers of 64 bits: integers or floating-point numbers, of which nothing else is accumulated. Where all
    /// ranks reach each other over adapters that have atomic operations (InfiniBand, RoCE), these carry out accumulations
    /// ([`Window::is_by_adapter`]): the target need not make progress. Elsewhere, and where [tasks](Self::accumulate_by_tasks) or
    /// a [worker](Self::accumulate_by_worker) are asked for, it is as if made by
    /// [`allocate`](WindowBuilder::allocate). MPI says such things by info keys (`accumulate_ops`, MPI 4.1 §12.2.1).
    /// Collective.
    ///
    /// # Errors
    /// As [`allocate`](WindowBuilder::allocate).
    pub fn allocate_numbers<T: AnyBits>(self, count: usize) -> Result<Window<T>, Error> {
        self.make(Flavor::Numbers, self.elements::<T>(count))
    }

    fn elements<T>(&self, count: usize) -> Result<SharedBuf, Error> {
        SharedBuf::allocate(&self.comm.shared, count.saturating_mul(size_of::<T>()))
    }

    fn make<T: AnyBits, M: WindowMemory>(
        self,
        flavor: Flavor,
        memory: Result<M, Error>,
    ) -> Result<Window<T, M>, Error> {
        if self.comm.is_inter() {
            return Err(PmlError::InterComm.into());
        }
        let comm = self.comm.dup()?;
        let (shared, ranks) = (&*comm.shared, comm.size() as usize);
        let words = usize::try_from(Header::bytes(ranks)).unwrap_or(usize::MAX);
        let header = SharedBuf::allocate(shared, words);
        let made = memory.and_then(|memory| own(shared, memory, header?, ranks));
        // Ranks without memory tell the others so.
        let (own, kept, failed) = match made {
            Ok((own, memory, header)) => (own, Some((memory, header)), None),
            Err(error) => {
                let nothing = own(shared, SharedBuf::heap(0)?, SharedBuf::heap(words)?, ranks)?;
                (nothing.0, None, Some(error))
            }
        };
        let processes: Vec<u32> = (0..comm.size())
            .map(|rank| Ok(comm.comm.process(rank)?))
            .collect::<Result<_, Error>>()?;
        let seat = comm.shared.windows.host(own.clone(), &processes, comm.rank());
        let unit = if flavor == Flavor::Dynamic { 1 } else { size_of::<T>().max(1) as u64 };
        let way = self.accumulations;
        let ready = ready(&comm, &own, (flavor, way));
        let kernel = match &ready {
            Ok(seat) => seat.as_ref().map_or(0, KernelSeat::index),
            Err(_) => 0,
        };
        let flags = u64::from(kept.is_some()) << 8 | u64::from(ready.is_ok()) << 9;
        let flags = flags | u64::from(self.hints.same_size) << 10;
        let kind = flavor as u64 | flags | (way as u64) << 16 | u64::from(kernel) << 24;
        let bytes = if flavor == Flavor::Dynamic { 0 } else { own.bytes() };
        let misalignment = match &own {
            Part::Host(_) => own.lease().region().start() % 64,
            // Devices align what they give.
            Part::Device(_) => 0,
        };
        let words = [u64::from(seat.id()), bytes, unit, misalignment, kind];
        let digest = T::layout().signature().digest(1).to_bytes();
        let card: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).chain(digest).collect();
        debug_assert_eq!(card.len(), CARD);
        let mut cards = vec![0u8; CARD * processes.len()];
        comm.allgather(&card, &mut cards)?;
        if let Some(failed) = failed {
            return Err(failed);
        }
        let kernel = ready?;
        let mut members = read_cards(&cards, &processes, (&card, comm.rank()))?;
        let (memory, header) = kept.ok_or(WindowError::NoMemory { rank: comm.rank() })?;
        let maps = flavor != Flavor::Dynamic && !self.messages;
        exchange_keys(&comm, (own.lease(), &header.lease()?), maps, &mut members)?;
        if maps {
            reach(&mut members[comm.rank() as usize], own.clone());
        }
        // Memory of no bytes is nowhere, and nobody accesses it.
        let alone = members.iter().any(|member| member.bytes > 0 && member.direct.is_none());
        let mut all = [i32::from(flavor != Flavor::Shared || !alone)];
        let mine = all;
        comm.allreduce(&mine, &mut all, ReduceOp::Min)?;
        if all == [0] {
            return Err(WindowError::Unshared { rank: comm.rank() }.into());
        }
        // One way for all accumulations of a window: elements are atomic against one of them.
        let numbers = match (flavor, way) {
            (Flavor::Numbers, Accumulations::Ordinary) => {
                numbers::agree(&comm, own.lease(), &mut members)?
            }
            _ => None,
        };
        let inner = gapless_osc::Window::new(seat, comm.rank(), flavor, own, members);
        let inner = inner.with_tasks(comm.shared.window_tasks.clone(), way, kernel);
        let (attached, memory) = (Vec::new(), Some(memory));
        let profile = self.profiled.then(|| Box::new(Profile::new()));
        let (owed, element, name, hints) = (None, PhantomData, String::new(), self.hints);
        let flavor = match flavor {
            Flavor::Plain if self.given => WindowFlavor::Created,
            Flavor::Plain | Flavor::Numbers => WindowFlavor::Allocated,
            Flavor::Shared => WindowFlavor::Shared,
            Flavor::Dynamic => WindowFlavor::Dynamic,
        };
        Ok(Window {
            inner,
            comm,
            memory,
            header,
            numbers,
            attached,
            profile,
            flavor,
            hints,
            name,
            owed,
            element,
        })
    }
}

/// This rank's own memory and lock.
fn own<M: WindowMemory>(
    shared: &Shared,
    memory: M,
    header: SharedBuf,
    ranks: usize,
) -> Result<(Part, GivesBack<M>, SharedBuf), Error> {
    let (lease, give_back) = memory.lend()?;
    let leases = (lease, header.lease()?);
    // SAFETY: the window keeps both buffers to itself while it exists, and nobody looks at their bytes. After that, leases
    // are held by peers' mappings alone; or, in the same process, by other ranks' windows, which are not used any more when
    // `Window::free` gives the buffer back.
    let part = unsafe { part(shared, leases, ranks) }?;
    Ok((part, give_back, header))
}

/// A member's memory is mapped.
fn reach(member: &mut Member, part: Part) {
    match part {
        Part::Host(exposure) => member.direct = Some(exposure),
        Part::Device(exposure) => member.device = Some(exposure),
    }
}

/// Gets ready for accumulations that others put here: with a kernel, if a worker does them.
fn ready(
    comm: &Communicator,
    own: &Part,
    (flavor, way): (Flavor, Accumulations),
) -> Result<Option<KernelSeat>, WindowError> {
    if way == Accumulations::Ordinary {
        return Ok(None);
    }
    if flavor == Flavor::Dynamic {
        return Err(WindowError::Flavor { call: "accumulate_by", flavor: "a dynamic window" });
    }
    if matches!((own, way), (Part::Device(_), Accumulations::Tasks)) {
        let flavor = "a window in memory of a device";
        return Err(WindowError::Flavor { call: "accumulate_by_tasks", flavor });
    }
    let tasks = &comm.shared.window_tasks;
    tasks.prepare()?;
    // Nothing is put into a window without memory.
    match way {
        Accumulations::Worker if own.bytes() > 0 => tasks.host_kernel(own).map(Some),
        _ => Ok(None),
    }
}

/// What the ranks have told of themselves, if it fits together.
fn read_cards(
    cards: &[u8],
    processes: &[u32],
    (own, me): (&[u8], u32),
) -> Result<Vec<Member>, WindowError> {
    let word = |card: &[u8], at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&card[8 * at..8 * at + 8]);
        u64::from_le_bytes(word)
    };
    // All ranks come to the same.
    let all = || (0..).zip(cards.chunks(CARD));
    // Those without memory are named below.
    let has_memory = |card: &[u8]| word(card, 4) >> 8 & 1 == 1;
    if all().all(|(_, card)| has_memory(card))
        && all().any(|(_, card)| word(card, 4) >> 10 & 1 == 1)
    {
        let first = word(cards, 1);
        if let Some((rank, _)) = all().find(|(_, card)| word(card, 1) != first) {
            return Err(WindowError::Differs { rank, what: "size" });
        }
    }
    let members = (0..).zip(cards.chunks(CARD)).zip(processes).map(|((rank, card), process)| {
        let kind = word(card, 4);
        let differs = |what| Err(WindowError::Differs { rank, what });
        if !has_memory(card) {
            return Err(WindowError::NoMemory { rank });
        }
        if rank != me && kind >> 16 & 0xFF != word(own, 4) >> 16 & 0xFF {
            return differs("way of accumulations");
        }
        if kind >> 9 & 1 == 0 {
            let ways = [Accumulations::Ordinary, Accumulations::Tasks, Accumulations::Worker];
            let way = ways.into_iter().find(|way| *way as u64 == kind >> 16 & 0xFF);
            return Err(WindowError::Unable { rank, way: way.unwrap_or_default().name() });
        }
        if rank != me && kind & 0xFF != word(own, 4) & 0xFF {
            return differs("kind of window");
        }
        if word(card, 2) != word(own, 2) || card[40..] != own[40..] {
            return differs("elements");
        }
        Ok(Member {
            process: *process,
            window: u32::try_from(word(card, 0)).unwrap_or(u32::MAX),
            bytes: word(card, 1),
            unit: word(card, 2).max(1),
            misalignment: word(card, 3) % 64,
            direct: None,
            device: None,
            numbers: None,
            kernel: u8::try_from(kind >> 24 & 0xFF).unwrap_or(0),
        })
    });
    members.collect()
}

/// Gives each rank keys to this one's memory, and maps that of those who gave theirs.
fn exchange_keys(
    comm: &Communicator,
    (memory, header): (&Lease, &Lease),
    maps: bool,
    members: &mut [Member],
) -> Result<(), Error> {
    let me = comm.rank() as usize;
    let mut ours = vec![0u8; KEYS * members.len()];
    if maps {
        comm.shared.with(|state| {
            let bml = state.open()?.bml_mut();
            for (rank, place) in ours.chunks_mut(KEYS).enumerate().filter(|(rank, _)| *rank != me) {
                let process = Rank(members[rank].process);
                let (one, other) = place.split_at_mut(KEY);
                let both = key(bml, process, memory).zip(key(bml, process, header));
                if let Some((memory, header)) = both {
                    write_key(&memory, one);
                    write_key(&header, other);
                }
            }
            Ok(())
        })?;
    }
    let mut theirs = vec![0u8; KEYS * members.len()];
    comm.alltoall(&ours, &mut theirs)?;
    if !maps {
        return Ok(());
    }
    let (ranks, user) = (members.len(), memory.region().space());
    for (member, keys) in members.iter_mut().zip(theirs.chunks(KEYS)) {
        let leases = comm
            .shared
            .with(|state| Ok(map(state.open()?.bml_mut(), member, keys.split_at(KEY), user)))?;
        let Some(leases) = leases else { continue };
        // SAFETY: a mapping is memory that is valid for reads and writes while its lease lives, and that no reference of
        // this process covers (`Mapping::new`). Its owner has given it to the window, as `own` says.
        match unsafe { part(&comm.shared, leases, ranks) } {
            Ok(part) => reach(member, part),
            Err(error) => tracing::debug!(%error, "memory of a window that is not reached"),
        }
    }
    Ok(())
}

/// A key to this process's memory; to no memory, the empty key of the transport is not needed: it has none.
fn key(bml: &mut Bml, process: Rank, lease: &Lease) -> Option<RemoteKey> {
    let (peer, mapped) = bml.mapped(process)?;
    mapped.key(peer, lease)
}

pub(super) fn write_key(key: &RemoteKey, place: &mut [u8]) {
    let bytes = key.as_bytes();
    place[0] = u8::try_from(bytes.len()).unwrap_or(0);
    place[1..=bytes.len()].copy_from_slice(bytes);
}

pub(super) fn read_key(place: &[u8]) -> Option<RemoteKey> {
    let (len, key) = place.split_first()?;
    RemoteKey::new(key.get(..usize::from(*len)).filter(|key| !key.is_empty())?)
}

/// Maps a member's memory and lock, for the device of `user`.
fn map(
    bml: &mut Bml,
    member: &Member,
    (memory, header): (&[u8], &[u8]),
    user: Space,
) -> Option<(Lease, Lease)> {
    let (memory, header) = (read_key(memory)?, read_key(header)?);
    let (peer, mapped) = bml.mapped(Rank(member.process))?;
    let memory = mapped.map_for(peer, &memory, user).ok()?;
    let header = mapped.map(peer, &header).ok()?;
    let bytes = memory.region().len();
    if bytes != member.bytes {
        tracing::debug!(member.process, bytes, "memory of a window that has another length");
        return None;
    }
    Some((memory.lease().clone(), header.lease().clone()))
}

impl<T: AnyBits, M: WindowMemory> Window<T, M> {
    /// Frees the window (`MPI_Win_free`, MPI 4.1 §12.2.5). Collective; waits for the other ranks. Gives the memory back,
    /// which nobody else touches any more.
    ///
    /// # Errors
    /// An epoch is open here, or at another rank ([`WindowError::Elsewhere`]); operations were begun after the last fence; a
    /// member is lost; a [worker](WindowBuilder::accumulate_by_worker) of this rank does not answer. Then the window is gone
    /// all the same, at all ranks, and its memory with it.
    pub fn free(mut self) -> Result<M, Error> {
        let refused = self.inner.may_free().err();
        let mut all = [0];
        self.comm.allreduce(&[self.refusal(refused.is_some())], &mut all, ReduceOp::Min)?;
        // Freed or not, no rank has the window any more.
        if let Some(numbers) = self.numbers.take() {
            numbers.end();
        }
        if all != [i32::MAX] {
            let elsewhere = WindowError::Elsewhere { call: "free", rank: all[0].unsigned_abs() };
            return Err(refused.unwrap_or(elsewhere).into());
        }
        let Window { mut inner, comm, memory, header, .. } = self;
        let ended = inner.end_kernel();
        drop((inner, header));
        comm.free()?;
        // What a worker may still change is nobody's.
        ended?;
        Ok(memory.ok_or(WindowError::Freed { rank: u32::MAX })?())
    }
}
