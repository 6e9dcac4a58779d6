//! How a window is made: collective calls, in which ranks tell each other where their memory is.
//!
//! ```text
//! all ranks: be ready for messages
//!   allgather   how many bytes, which type, which kind; whether there is memory
//!   alltoall    to each rank the keys by which it maps this one's memory and lock
//!   allgather   whether all that must be mapped are
//!   of numbers: whether adapters change them (`numbers.rs`)
//! ```

use crate::core::Osc;
use crate::device::{DeviceExposure, DeviceMemory};
use crate::error::WindowError;
use crate::exposure::{Exposure, WindowPart};
use crate::header::Header;
use crate::numbers::{self, KEY, read_key, write_key};
use crate::tasks::{Accumulations, KernelHandle, Tasks};
use crate::window::{CallError, Driver, Flavor, Member, Window};
use gapless_bml::{Bml, Rank, Ranks, Registered, RemoteKey};
use gapless_dtype::SignatureDigest;
use gapless_engine::{Engine, EngineError, Reducer};
use gapless_mem::{Atomics, Lease, Space, Words};
use std::sync::Arc;

/// Two of them.
const KEYS: usize = 2 * KEY;
/// What a rank tells of itself.
const RECORD: usize = 5 * 8 + SignatureDigest::LEN;

/// What a window is made with. All ranks give the same, unless a field says otherwise.
#[expect(missing_debug_implementations, reason = "engines have none")]
pub struct Making<'m> {
    /// Where messages of windows arrive.
    pub osc: &'m Osc,
    /// Accumulations that are tasks.
    pub tasks: &'m Tasks,
    /// The engines of this process, for memory of devices.
    pub engine: Arc<dyn Engine>,
    /// What combines elements there.
    pub reducer: Arc<dyn Reducer>,
    /// What kind of window it is.
    pub flavor: Flavor,
    /// How accumulations are carried out.
    pub accumulations: Accumulations,
    /// Notice counters at each rank.
    pub notices: u32,
    /// Whether no memory is mapped.
    pub by_messages: bool,
    /// Whether ranks that give memory of other lengths are refused. Ranks may differ: one that says so is enough.
    pub same_size: bool,
    /// Bytes of a unit of displacements. Ranks may differ, if the elements are not said.
    pub unit: u64,
    /// What the elements are, if the window has some.
    pub elements: Option<SignatureDigest>,
    /// By rank, the memory of all, which this process maps: see [`contiguous_parts`](crate::contiguous_parts).
    pub parts: Option<Vec<Lease>>,
}

impl Making<'_> {
    /// Makes the window of `ranks`: collective. `own` is this rank's memory, and [`Header::bytes`] zeroed bytes of the
    /// host for its lock and notice counters; a rank without tells the others so. What is put into `registered` is
    /// memory that adapters of other ranks may change: it stays registered until all have dropped the window, if this
    /// fails, too.
    ///
    /// # Safety
    /// While clones of `own` live, no reference of this process covers the memory, which is valid for reads and writes and
    /// touched through leases alone.
    ///
    /// # Errors
    /// Ranks differ in what they make; one has no memory, or cannot map another's that it must; one is lost.
    pub unsafe fn window<D: Driver>(
        self,
        (driver, ranks): (&D, &impl Ranks<Error = D::Error>),
        own: Result<(Lease, Lease), D::Error>,
        registered: &mut Option<Registered>,
    ) -> Result<Window, D::Error> {
        let (me, flavor, way) = (ranks.rank(), self.flavor, self.accumulations);
        let processes: Vec<u32> = (0..ranks.size())
            .map(|rank| Ok(ranks.process(rank)?.0))
            .collect::<Result<_, D::Error>>()?;
        let own = own.and_then(|(memory, lock)| {
            // SAFETY: the caller's promise.
            let part: Result<WindowPart, D::Error> =
                unsafe { self.part((memory, lock.clone()), processes.len()) };
            Ok((part?, lock))
        });
        let digest = self.elements.map_or([0; SignatureDigest::LEN], |it| it.to_bytes());
        let mut record = Vec::with_capacity(RECORD);
        let mut records = vec![0u8; RECORD * processes.len()];
        let (own, lock) = match own {
            Ok(own) => own,
            Err(error) => {
                ranks.allgather(&[0; RECORD], &mut records)?;
                return Err(error);
            }
        };
        let handle = self.osc.host(own.clone(), &processes, me);
        let ready = self.ready(&own);
        let kernel = match &ready {
            Ok(handle) => handle.as_ref().map_or(0, KernelHandle::index),
            Err(_) => 0,
        };
        let flags = 1 << 8 | u64::from(ready.is_ok()) << 9 | u64::from(self.same_size) << 10;
        let kind = flavor as u64 | flags | (way as u64) << 16 | u64::from(kernel) << 24;
        let kind = kind | u64::from(self.notices) << 32;
        let bytes = if flavor == Flavor::Dynamic { 0 } else { own.bytes() };
        let misalignment = match &own {
            WindowPart::Host(_) => own.lease().region().start() % 64,
            // Devices align what they give.
            WindowPart::Device(_) => 0,
        };
        let words = [u64::from(handle.id()), bytes, self.unit, misalignment, kind];
        record.extend(words.into_iter().flat_map(u64::to_le_bytes).chain(digest));
        ranks.allgather(&record, &mut records)?;
        let kernel = ready?;
        let mut members = read_records(&records, &processes, (&record, me))?;
        let maps = flavor != Flavor::Dynamic && !self.by_messages;
        let (own_lease, notices) = (own.lease(), self.notices);
        let given = self.exchange_keys(ranks, (own_lease, &lock), maps, &mut members)?;
        if maps {
            reach(&mut members[me as usize], own.clone());
        }
        // Memory of no bytes is nowhere, and nobody accesses it.
        let alone = members.iter().any(|member| member.bytes > 0 && member.mapped.is_none());
        if ranks.first_no(flavor != Flavor::Shared || !alone)?.is_some() {
            return Err(WindowError::Unshared { rank: me }.into());
        }
        // One way for all accumulations of a window: elements are atomic against one of them.
        if (flavor, way) == (Flavor::Numbers, Accumulations::Ordinary) {
            numbers::agree((driver, ranks), own.lease(), &mut members, registered)?;
        }
        let window = Window::new(handle, me, flavor, own, (members, self.engine));
        Ok(window.with_tasks(self.tasks.clone(), way, kernel).with_notices(notices, given))
    }

    /// Memory of a window, as this process reaches it.
    ///
    /// # Safety
    /// While clones of the leases live, they are memory that no reference of this process covers, valid for reads and
    /// writes: of a window, this process's own or a peer's that is mapped, which reaches it by atomic accesses or by
    /// devices only.
    unsafe fn part<E: CallError>(
        &self,
        (memory, lock): (Lease, Lease),
        ranks: usize,
    ) -> Result<WindowPart, E> {
        // SAFETY: a lock's memory is the window's alone, or a peer's that is: nobody ever looks at the bytes.
        let words = unsafe { Words::new(lock) }?;
        let none = WindowError::NoMemory { rank: u32::try_from(ranks).unwrap_or(u32::MAX) };
        let (header, space) =
            (Header::new(words, ranks, self.notices).ok_or(none)?, memory.region().space());
        if space.cpu_accessible() {
            // SAFETY: the caller's promise.
            let memory = unsafe { Atomics::new(memory) }?;
            return Ok(Exposure::new(memory, header).into());
        }
        if !self.engine.serves(space) {
            return Err(EngineError::WrongSpace { engine: self.engine.name(), space }.into());
        }
        let (engine, reducer) = (Arc::clone(&self.engine), Arc::clone(&self.reducer));
        // SAFETY: the caller's promise.
        let memory = unsafe { DeviceMemory::new(memory, engine, reducer) };
        Ok(DeviceExposure::new(memory, header).into())
    }

    /// Gets ready for accumulations that others put here: with a kernel, if a worker does them.
    fn ready(&self, own: &WindowPart) -> Result<Option<KernelHandle>, WindowError> {
        let way = self.accumulations;
        if way == Accumulations::Ordinary {
            return Ok(None);
        }
        if self.flavor == Flavor::Dynamic {
            return Err(WindowError::Flavor { call: "accumulate_by", flavor: "a dynamic window" });
        }
        if matches!((own, way), (WindowPart::Device(_), Accumulations::Tasks)) {
            let flavor = "a window in memory of a device";
            return Err(WindowError::Flavor { call: "accumulate_by_tasks", flavor });
        }
        self.tasks.prepare()?;
        // Nothing is put into a window without memory.
        match way {
            Accumulations::Worker if own.bytes() > 0 => self.tasks.host_kernel(own).map(Some),
            _ => Ok(None),
        }
    }

    /// Gives each rank keys to this one's memory, and maps that of those who gave theirs. Gives how many others have
    /// keys.
    fn exchange_keys<R: Ranks>(
        &self,
        ranks: &R,
        (memory, header): (&Lease, &Lease),
        maps: bool,
        members: &mut [Member],
    ) -> Result<usize, R::Error> {
        let me = ranks.rank() as usize;
        let (mut ours, mut given) = (vec![0u8; KEYS * members.len()], 0);
        if maps {
            ranks.with_bml(|bml| {
                for (rank, place) in
                    ours.chunks_mut(KEYS).enumerate().filter(|(rank, _)| *rank != me)
                {
                    let process = Rank(members[rank].process);
                    let (one, other) = place.split_at_mut(KEY);
                    let memory = match self.parts {
                        Some(_) => Some(None),
                        None => key(bml, process, memory).map(Some),
                    };
                    if let Some((memory, header)) = memory.zip(key(bml, process, header)) {
                        memory.iter().for_each(|memory| write_key(memory, one));
                        write_key(&header, other);
                        given += 1;
                    }
                }
            })?;
        }
        let mut theirs = vec![0u8; KEYS * members.len()];
        ranks.alltoall(&ours, &mut theirs)?;
        if !maps {
            return Ok(given);
        }
        let (count, user) = (members.len(), memory.region().space());
        for (rank, (member, keys)) in members.iter_mut().zip(theirs.chunks(KEYS)).enumerate() {
            let part = self.parts.as_ref().and_then(|parts| parts.get(rank));
            let keys = (keys.split_at(KEY), part);
            let leases = ranks.with_bml(|bml| map(bml, member, keys, user))?;
            let Some(leases) = leases else { continue };
            // SAFETY: a mapping is memory that is valid for reads and writes while its lease lives, and that no reference of
            // this process covers (`Mapping::new`). Its owner has given it to the window (`window`).
            match unsafe { self.part::<WindowError>(leases, count) } {
                Ok(part) => reach(member, part),
                Err(error) => tracing::debug!(%error, "memory of a window that is not reached"),
            }
        }
        Ok(given)
    }
}

/// A member's memory is mapped.
fn reach(member: &mut Member, part: WindowPart) {
    match part {
        WindowPart::Host(exposure) => member.mapped = Some(exposure),
        WindowPart::Device(exposure) => member.device = Some(exposure),
    }
}

/// What the ranks have told of themselves, if it fits together.
fn read_records(
    records: &[u8],
    processes: &[u32],
    (own, me): (&[u8], u32),
) -> Result<Vec<Member>, WindowError> {
    let word = |record: &[u8], at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&record[8 * at..8 * at + 8]);
        u64::from_le_bytes(word)
    };
    // All ranks come to the same.
    let all = || (0..).zip(records.chunks(RECORD));
    // Those without memory are named below.
    let has_memory = |record: &[u8]| word(record, 4) >> 8 & 1 == 1;
    if all().all(|(_, record)| has_memory(record))
        && all().any(|(_, record)| word(record, 4) >> 10 & 1 == 1)
    {
        let first = word(records, 1);
        if let Some((rank, _)) = all().find(|(_, record)| word(record, 1) != first) {
            return Err(WindowError::Differs { rank, what: "size" });
        }
    }
    let members =
        (0..).zip(records.chunks(RECORD)).zip(processes).map(|((rank, record), process)| {
            let kind = word(record, 4);
            let differs = |what| Err(WindowError::Differs { rank, what });
            if !has_memory(record) {
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
            if kind >> 32 != word(own, 4) >> 32 {
                return differs("number of notice counters");
            }
            let has_elements = own[40..].iter().any(|byte| *byte != 0);
            if record[40..] != own[40..] || has_elements && word(record, 2) != word(own, 2) {
                return differs("elements");
            }
            Ok(Member {
                process: *process,
                window: u32::try_from(word(record, 0)).unwrap_or(u32::MAX),
                bytes: word(record, 1),
                unit: word(record, 2).max(1),
                misalignment: word(record, 3) % 64,
                mapped: None,
                device: None,
                numbers: None,
                kernel: u8::try_from(kind >> 24 & 0xFF).unwrap_or(0),
            })
        });
    members.collect()
}

/// A key to this process's memory; to no memory, the empty key of the transport is not needed: it has none.
pub(crate) fn key(bml: &mut Bml, process: Rank, lease: &Lease) -> Option<RemoteKey> {
    let (peer, mapped) = bml.mapped(process)?;
    mapped.key(peer, lease)
}

/// Maps a member's memory, unless that is mapped already, and lock, for the device of `user`.
fn map(
    bml: &mut Bml,
    member: &Member,
    ((memory, header), part): ((&[u8], &[u8]), Option<&Lease>),
    user: Space,
) -> Option<(Lease, Lease)> {
    let header = read_key(header)?;
    let (peer, mapped) = bml.mapped(Rank(member.process))?;
    let memory = match part {
        Some(part) => part.clone(),
        None => mapped.map_for(peer, &read_key(memory)?, user).ok()?.lease().clone(),
    };
    let header = mapped.map(peer, &header).ok()?;
    let bytes = memory.region().len();
    if bytes != member.bytes {
        tracing::debug!(member.process, bytes, "memory of a window that has another length");
        return None;
    }
    Some((memory, header.lease().clone()))
}
