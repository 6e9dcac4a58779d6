//! How a window is made, and freed: collective calls, in which ranks tell each other where their memory is.
//!
//! ```text
//! all ranks: duplicate the communicator, allocate, be ready for messages
//!   allgather   how many bytes, which type, which kind; whether there is memory
//!   alltoall    to each rank the keys by which it maps this one's memory and lock
//!   allreduce   whether all that must be mapped are
//!   of numbers: whether adapters change them (`numbers.rs`)
//! ```

use super::profile::Profile;
use super::{Window, numbers};
use crate::communicator::Communicator;
use crate::error::Error;
use crate::shared_buf::SharedBuf;
use gapless_bml::{Bml, Rank, RemoteKey};
use gapless_dtype::{AnyBits, SignatureDigest};
use gapless_engine::ReduceOp;
use gapless_mem::{Atomics, Lease, Words};
use gapless_osc::{Accumulations, Exposure, Flavor, Header, KernelSeat, Member, WindowError};
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
        let accumulations = Accumulations::default();
        WindowBuilder { comm: self, messages: false, profiled: false, accumulations }
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

    /// See [`Communicator::window_allocate`].
    ///
    /// # Errors
    /// As there.
    pub fn allocate<T: AnyBits>(self, count: usize) -> Result<Window<T>, Error> {
        self.make(Flavor::Plain, self.elements::<T>(count))
    }

    /// A window of memory that the ranks give (`MPI_Win_create`, MPI 4.1 §12.2.1). [`Window::free`] gives it back.
    /// Collective.
    ///
    /// # Errors
    /// As [`allocate`](WindowBuilder::allocate).
    pub fn create(self, memory: SharedBuf) -> Result<Window<u8>, Error> {
        self.make(Flavor::Plain, Ok(memory))
    }

    /// A window that all ranks map (`MPI_Win_allocate_shared`, MPI 4.1 §12.2.3): besides one-sided operations there are
    /// loads and stores of all ranks' memory, without epochs ([`Window::part`]). Each rank's memory is an allocation of
    /// its own, so parts do not follow each other. Collective.
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

    fn make<T: AnyBits>(
        self,
        flavor: Flavor,
        memory: Result<SharedBuf, Error>,
    ) -> Result<Window<T>, Error> {
        if self.comm.is_inter() {
            return Err(PmlError::InterComm.into());
        }
        let comm = self.comm.dup()?;
        let words = usize::try_from(Header::bytes(comm.size() as usize)).unwrap_or(usize::MAX);
        let header = SharedBuf::allocate(&comm.shared, words);
        // Ranks without memory tell the others so.
        let (memory, header, has_memory) = match (memory, header) {
            (Ok(memory), Ok(header)) => (memory, header, true),
            _ => (SharedBuf::heap(0)?, SharedBuf::heap(words)?, false),
        };
        let own = exposure(&memory, &header, comm.size())?;
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
        let flags = u64::from(has_memory) << 8 | u64::from(ready.is_ok()) << 9;
        let kind = flavor as u64 | flags | (way as u64) << 16 | u64::from(kernel) << 24;
        let bytes = if flavor == Flavor::Dynamic { 0 } else { memory.region().len() };
        let misalignment = memory.region().start() % 64;
        let words = [u64::from(seat.id()), bytes, unit, misalignment, kind];
        let digest = T::layout().signature().digest(1).to_bytes();
        let card: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).chain(digest).collect();
        debug_assert_eq!(card.len(), CARD);
        let mut cards = vec![0u8; CARD * processes.len()];
        comm.allgather(&card, &mut cards)?;
        let kernel = ready?;
        let mut members = read_cards(&cards, &processes, (&card, comm.rank()))?;
        let maps = flavor != Flavor::Dynamic && !self.messages;
        exchange_keys(&comm, (&memory, &header), maps, &mut members)?;
        if maps {
            members[comm.rank() as usize].direct = Some(own.clone());
        }
        let alone = members.iter().any(|member| member.direct.is_none());
        let mut all = [i32::from(flavor != Flavor::Shared || !alone)];
        let mine = all;
        comm.allreduce(&mine, &mut all, ReduceOp::Min)?;
        if all == [0] {
            return Err(WindowError::Unshared { rank: comm.rank() }.into());
        }
        // One way for all accumulations of a window: elements are atomic against one of them.
        let numbers = match (flavor, way) {
            (Flavor::Numbers, Accumulations::Ordinary) => {
                numbers::agree(&comm, &memory, &mut members)?
            }
            _ => None,
        };
        let inner = gapless_osc::Window::new(seat, comm.rank(), flavor, own, members);
        let inner = inner.with_tasks(comm.shared.window_tasks.clone(), way, kernel);
        let (attached, memory) = (Vec::new(), Some(memory));
        let profile = self.profiled.then(|| Box::new(Profile::new()));
        let (owed, element) = (None, PhantomData);
        Ok(Window { inner, comm, memory, header, numbers, attached, profile, owed, element })
    }
}

/// This rank's own memory and lock.
fn exposure(memory: &SharedBuf, header: &SharedBuf, ranks: u32) -> Result<Exposure, Error> {
    let lease = memory.lease()?;
    // SAFETY: the window keeps the buffer to itself while it exists, and nobody looks at its bytes. After that, leases are held by peers' mappings alone; or, in
    // the same process, by other ranks' windows, which are not used any more when `Window::free` gives the buffer back.
    let memory = unsafe { Atomics::new(lease) }?;
    let lease = header.lease()?;
    // SAFETY: as above; nobody ever looks at the bytes.
    let words = unsafe { Words::new(lease) }?;
    let header = Header::new(words, ranks as usize);
    Ok(Exposure::new(memory, header.ok_or(WindowError::NoMemory { rank: ranks })?))
}

/// Gets ready for accumulations that others put here: with a kernel, if a worker does them.
fn ready(
    comm: &Communicator,
    own: &Exposure,
    (flavor, way): (Flavor, Accumulations),
) -> Result<Option<KernelSeat>, WindowError> {
    if way == Accumulations::Ordinary {
        return Ok(None);
    }
    if flavor == Flavor::Dynamic {
        return Err(WindowError::Flavor { call: "accumulate_by", flavor: "a dynamic window" });
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
    let members = (0..).zip(cards.chunks(CARD)).zip(processes).map(|((rank, card), process)| {
        let kind = word(card, 4);
        let differs = |what| Err(WindowError::Differs { rank, what });
        if kind >> 8 & 1 == 0 {
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
            numbers: None,
            kernel: u8::try_from(kind >> 24 & 0xFF).unwrap_or(0),
        })
    });
    members.collect()
}

/// Gives each rank keys to this one's memory, and maps that of those who gave theirs.
fn exchange_keys(
    comm: &Communicator,
    (memory, header): (&SharedBuf, &SharedBuf),
    maps: bool,
    members: &mut [Member],
) -> Result<(), Error> {
    let (memory, header) = (memory.lease()?, header.lease()?);
    let me = comm.rank() as usize;
    let mut ours = vec![0u8; KEYS * members.len()];
    if maps {
        comm.shared.with(|state| {
            let bml = state.open()?.bml_mut();
            for (rank, place) in ours.chunks_mut(KEYS).enumerate().filter(|(rank, _)| *rank != me) {
                let process = Rank(members[rank].process);
                let (one, other) = place.split_at_mut(KEY);
                let both = key(bml, process, &memory).zip(key(bml, process, &header));
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
    let ranks = members.len();
    comm.shared.with(|state| {
        let bml = state.open()?.bml_mut();
        for (member, keys) in members.iter_mut().zip(theirs.chunks(KEYS)) {
            let (memory, header) = keys.split_at(KEY);
            member.direct = map(bml, member, (memory, header), ranks);
        }
        Ok(())
    })
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

/// Maps a member's memory and lock.
fn map(
    bml: &mut Bml,
    member: &Member,
    (memory, header): (&[u8], &[u8]),
    ranks: usize,
) -> Option<Exposure> {
    let (memory, header) = (read_key(memory)?, read_key(header)?);
    let (peer, mapped) = bml.mapped(Rank(member.process))?;
    let memory = mapped.map(peer, &memory).ok()?;
    let header = mapped.map(peer, &header).ok()?;
    if memory.region().len() != member.bytes {
        return None;
    }
    // SAFETY: a mapping is memory that is valid for reads and writes while its lease lives, and that no reference of this
    // process covers (`Mapping::new`). Its owner has given it to the window, which reaches it by atomic accesses only, as
    // `exposure` says.
    let memory = unsafe { Atomics::new(memory.lease().clone()) }.ok()?;
    // SAFETY: as above.
    let words = unsafe { Words::new(header.lease().clone()) }.ok()?;
    Some(Exposure::new(memory, Header::new(words, ranks)?))
}

impl<T: AnyBits> Window<T> {
    /// Frees the window (`MPI_Win_free`, MPI 4.1 §12.2.5). Collective; waits for the other ranks. Gives the memory back,
    /// which nobody else touches any more.
    ///
    /// # Errors
    /// An epoch is open here, or at another rank ([`WindowError::Elsewhere`]); operations were begun after the last fence; a
    /// member is lost; a [worker](WindowBuilder::accumulate_by_worker) of this rank does not answer. Then the window is gone
    /// all the same, at all ranks, and its memory with it.
    pub fn free(mut self) -> Result<SharedBuf, Error> {
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
        Ok(memory.ok_or(WindowError::Freed { rank: u32::MAX })?)
    }
}
