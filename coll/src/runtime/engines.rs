//! What collectives move and combine data with: all engines of a process, each for its memory, the reducers of their
//! devices, and that of the host.
//!
//! Where all operands lie in memory that a device's reducer works on, and it has the operation, elements are combined
//! there. Otherwise memory of devices is staged: operands are packed into memory of the host, combined there, and the
//! result is unpacked. So is data that is copied between memory of different devices. Calls that stage wait for the
//! devices; the lock of collectives is held meanwhile.
//!
//! So that operands do lie there, intermediate data of reductions is kept in memory of the device, too
//! ([`Engines::lender`]).

use super::Engines;
use super::pool::Pools;
use crate::{CallBuffers, Combine, Lender, Tasks};
use gapless_dtype::{Layout, SignatureKind};
use gapless_engine::{Engine, EngineError, HostEngine, Op, Reducer, Typed, first_willing};
use gapless_mem::{Completion, Device, DeviceError, Outstanding, Region, Space};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

const NAME: &str = "collective";

/// The engines of a process, in the order in which they are asked.
pub struct AllEngines {
    engines: Vec<Arc<dyn Engine>>,
    pools: Pools,
    /// Who carries tasks.
    tasks: Arc<dyn Tasks>,
}

/// A panic in an engine breaks nothing that another call sees: it has started nothing, or what it started is over (rule
/// of `Engine` and `Reducer`).
impl std::panic::UnwindSafe for AllEngines {}
impl std::panic::RefUnwindSafe for AllEngines {}

impl std::fmt::Debug for AllEngines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.engines.iter().map(|engine| engine.name()).collect();
        f.debug_tuple("AllEngines").field(&names).finish()
    }
}

/// Memory of the host for a packed stream, aligned for all elements.
struct Staged {
    memory: Vec<u128>,
    bytes: u64,
}

impl Staged {
    fn new(bytes: u64) -> Result<Staged, EngineError> {
        let lines = usize::try_from(bytes.div_ceil(16)).unwrap_or(usize::MAX);
        let mut memory = Vec::new();
        if memory.try_reserve_exact(lines).is_err() {
            let reason = "the allocator has no more".to_owned();
            let device = Space::Host.to_string();
            return Err(DeviceError::OutOfMemory { device, len: bytes, reason }.into());
        }
        memory.resize(lines, 0);
        Ok(Staged { memory, bytes })
    }

    fn region(&mut self) -> Region {
        let start = self.memory.as_mut_ptr().expose_provenance() as u64;
        Region::new(Space::Host, start, 0, self.bytes)
    }
}

impl AllEngines {
    /// These, and whoever carries tasks.
    #[must_use]
    pub fn new(engines: Vec<Arc<dyn Engine>>, tasks: Arc<dyn Tasks>) -> AllEngines {
        AllEngines { engines, pools: Pools::default(), tasks }
    }

    /// The reducer of the device that has memory of this space.
    fn reducer(&self, space: Space) -> Option<Arc<dyn Reducer>> {
        self.engines.iter().find_map(|engine| engine.reducer(space))
    }

    /// The reducer of the device that has the first operand which is not in memory of the host, if it can combine all
    /// of them where they lie.
    fn reducer_of<'t>(
        &self,
        op: &Op,
        operands: impl Iterator<Item = &'t Typed> + Clone,
    ) -> Option<Arc<dyn Reducer>> {
        let space = operands.clone().map(Typed::space).find(|space| !space.cpu_accessible())?;
        let reducer = self.reducer(space)?;
        let reaches = operands.clone().all(|typed| reducer.serves(typed.space()));
        let layout = known(operands.clone()).or_else(|| operands.clone().next())?.layout();
        (reaches && reducer.supports(op, layout)).then_some(reducer)
    }

    /// Device memory that nobody needs any more, to be dropped without the lock of collectives.
    pub fn surplus(&self) -> impl Iterator<Item = Box<dyn Any + Send>> {
        self.pools.surplus()
    }

    /// Lets go of what is kept of a device's memory.
    pub fn forget(&self, device: &Arc<dyn Device>) {
        self.pools.forget(device);
    }

    /// The engine of some memory. For memory of a device, its own comes before one that only reaches it.
    fn engine(&self, space: Space) -> Result<&dyn Engine, EngineError> {
        let find = |fits: &dyn Fn(&dyn Engine) -> bool| {
            self.engines.iter().map(|engine| &**engine).find(|engine| fits(*engine))
        };
        let own = match space.cpu_accessible() {
            true => None,
            false => find(&|engine| engine.device(space).is_some()),
        };
        own.or_else(|| find(&|engine| engine.serves(space)))
            .ok_or(EngineError::WrongSpace { engine: NAME, space })
    }

    /// The engines that may work on two buffers, in the order in which they are asked: the engines of devices' memory.
    fn either(
        &self,
        one: Space,
        other: Space,
    ) -> impl Iterator<Item = Result<&dyn Engine, EngineError>> {
        let first = if one.cpu_accessible() { other } else { one };
        let second = Some(other).filter(|space| *space != first && !space.cpu_accessible());
        [Some(first), second].into_iter().flatten().map(|space| self.engine(space))
    }

    /// Moves a range of one stream to as long a range of another through memory of the host, and waits for that.
    ///
    /// # Safety
    /// As for [`Engine::transfer`], until this returns.
    unsafe fn through_host(
        &self,
        (src, from): (&Typed, &Range<u64>),
        (dst, to): (&Typed, &Range<u64>),
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        src.check_range(from)?;
        dst.check_range(to)?;
        wait_all(after)?;
        // SAFETY: the caller's promise; what was to come before is over.
        let staged = unsafe { self.fetch(src, from) }?;
        // SAFETY: as above.
        unsafe { self.store(staged, dst, to) }?;
        Ok(Completion::Ready)
    }

    /// Packs a range into memory of the host, and waits for that.
    ///
    /// # Safety
    /// As for [`Engine::pack`], until this returns.
    unsafe fn fetch(&self, src: &Typed, range: &Range<u64>) -> Result<Staged, EngineError> {
        let mut staged = Staged::new(range.end - range.start)?;
        let engine = self.engine(src.space())?;
        // SAFETY: the caller's promise; the staged memory is new, and lives until the work is over (`Outstanding`).
        let work = unsafe { engine.pack(src, range.clone(), staged.region(), &[]) }?;
        Outstanding::new(work).wait()?;
        Ok(staged)
    }

    /// Unpacks memory of the host, and waits for that.
    ///
    /// # Safety
    /// As for [`Engine::unpack`], until this returns.
    unsafe fn store(
        &self,
        mut staged: Staged,
        dst: &Typed,
        range: &Range<u64>,
    ) -> Result<(), EngineError> {
        let engine = self.engine(dst.space())?;
        // SAFETY: as in `fetch`.
        let work = unsafe { engine.unpack(staged.region(), dst, range.clone(), &[]) }?;
        Ok(Outstanding::new(work).wait()?)
    }
}

impl Engines for AllEngines {
    /// The device that has the buffers, if it can combine their elements.
    fn lender(&self, buffers: &CallBuffers, combine: &Combine) -> Option<Arc<dyn Lender>> {
        let space = buffers.all().map(Typed::space).find(|space| !space.cpu_accessible())?;
        let layout = known(buffers.all()).or_else(|| buffers.all().next())?.layout();
        self.reducer(space).filter(|reducer| reducer.supports(combine.op(), layout))?;
        let device = self.engines.iter().find_map(|engine| engine.device(space))?;
        Some(self.pools.of(&device))
    }

    fn tasks(&self) -> Option<Arc<dyn Tasks>> {
        Some(Arc::clone(&self.tasks))
    }
}

/// Whether work was refused because of its memory; then nothing was touched.
fn is_refused(ended: &Result<Completion, EngineError>) -> bool {
    ended.as_ref().is_err_and(EngineError::is_of_memory)
}

fn wait_all(after: &[Completion]) -> Result<(), EngineError> {
    for work in after {
        work.wait()?;
    }
    Ok(())
}

// SAFETY: all work is handed on to engines, by which the contract holds. Where there is more than one piece of it, each
// is waited for before the next begins, also if something panics (`Outstanding`), and the last before the call returns.
unsafe impl Engine for AllEngines {
    fn name(&self) -> &'static str {
        NAME
    }

    fn serves(&self, space: Space) -> bool {
        self.engine(space).is_ok()
    }

    /// One engine's answer, as this one passes memory of the host by the processor where devices refuse.
    fn reaches(&self, host: Region, from: Option<Space>) -> Option<(&dyn Engine, Arc<dyn Device>)> {
        self.engines.iter().find_map(|engine| engine.reaches(host, from))
    }

    unsafe fn pack(
        &self,
        src: &Typed,
        range: Range<u64>,
        dst: Region,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let tries = self.either(src.space(), dst.space()).map(|engine| {
            // SAFETY: the caller's promise.
            unsafe { engine?.pack(src, range.clone(), dst, after) }
        });
        match first_willing(tries) {
            Some(ended) if !is_refused(&ended) => ended,
            // SAFETY: as above; whoever refused has touched nothing.
            _ => unsafe {
                self.through_host((src, &range), (&Typed::contiguous(dst), &(0..dst.len())), after)
            },
        }
    }

    unsafe fn unpack(
        &self,
        src: Region,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let tries = self.either(src.space(), dst.space()).map(|engine| {
            // SAFETY: the caller's promise.
            unsafe { engine?.unpack(src, dst, range.clone(), after) }
        });
        match first_willing(tries) {
            Some(ended) if !is_refused(&ended) => ended,
            // SAFETY: as above; whoever refused has touched nothing.
            _ => unsafe {
                self.through_host((&Typed::contiguous(src), &(0..src.len())), (dst, &range), after)
            },
        }
    }

    unsafe fn transfer(
        &self,
        src: &Typed,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let tries = self.either(src.space(), dst.space()).map(|engine| {
            // SAFETY: the caller's promise.
            unsafe { engine?.transfer(src, dst, range.clone(), after) }
        });
        match first_willing(tries) {
            Some(ended) if !is_refused(&ended) => ended,
            // SAFETY: as above; whoever refused has touched nothing.
            _ => unsafe { self.through_host((src, &range), (dst, &range), after) },
        }
    }

    unsafe fn copy_all(
        &self,
        pairs: &[(Region, Region)],
        after: &[Completion],
    ) -> Result<Option<Completion>, EngineError> {
        let Some(&(first, _)) = pairs.first() else { return Ok(None) };
        let space = first.space();
        if pairs.iter().any(|(into, from)| [into.space(), from.space()] != [space; 2]) {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        unsafe { self.engine(space)?.copy_all(pairs, after) }
    }
}

// SAFETY: as above, and to reducers, by which their contract holds; what none can touch is brought to the host.
unsafe impl Reducer for AllEngines {
    fn supports(&self, op: &Op, layout: &Layout) -> bool {
        HostEngine.supports(op, layout)
    }

    fn serves(&self, space: Space) -> bool {
        self.engine(space).is_ok()
    }

    unsafe fn reduce_into(
        &self,
        op: &Op,
        srcs: &[Typed],
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let is_near = |typed: &Typed| typed.space().cpu_accessible();
        if is_near(dst) && srcs.iter().all(is_near) {
            // SAFETY: the caller's promise.
            return unsafe { HostEngine.reduce_into(op, srcs, dst, range, after) };
        }
        if let Some(reducer) = self.reducer_of(op, [dst].into_iter().chain(srcs)) {
            // SAFETY: the caller's promise.
            match unsafe { reducer.reduce_into(op, srcs, dst, range.clone(), after) } {
                // Its device may reach the space, but not this memory: nothing was done.
                Err(error) if error.is_of_memory() => {}
                ended => return ended,
            }
        }
        let elements = Elements::new(op, srcs.iter().chain([dst]))?;
        wait_all(after)?;
        // Kept until the host has combined them.
        let mut staged = Vec::new();
        let mut sources = Vec::new();
        for src in srcs {
            if is_near(src) {
                sources.push(src.clone());
                continue;
            }
            // SAFETY: the caller's promise; what was to come before is over.
            let mut memory = unsafe { self.fetch(src, &src.window(&range)?) }?;
            sources.push(elements.in_memory(memory.region())?);
            staged.push(memory);
        }
        if is_near(dst) {
            // SAFETY: as above; staged memory is nobody else's. The host's work is over when this returns.
            return unsafe { HostEngine.reduce_into(op, &sources, dst, range, &[]) };
        }
        let window = dst.window(&range)?;
        let mut result = Staged::new(range.end - range.start)?;
        let target = elements.in_memory(result.region())?;
        // SAFETY: as above.
        unsafe { HostEngine.reduce_into(op, &sources, &target, range, &[]) }?;
        drop(staged);
        // SAFETY: as above.
        unsafe { self.store(result, dst, &window) }?;
        Ok(Completion::Ready)
    }
}

/// The first operand that is not of plain bytes.
fn known<'t>(mut all: impl Iterator<Item = &'t Typed>) -> Option<&'t Typed> {
    all.find(|typed| typed.layout().signature().kind() != SignatureKind::Bytes)
}

/// The elements of a reduction as they lie in staged memory: packed.
struct Elements(Option<Combine>);

impl Elements {
    fn new<'t>(op: &Op, all: impl Iterator<Item = &'t Typed>) -> Result<Elements, EngineError> {
        Ok(Elements(known(all).map(|typed| Combine::new(op, typed.layout())).transpose()?))
    }

    fn in_memory(&self, region: Region) -> Result<Typed, EngineError> {
        match &self.0 {
            Some(combine) => combine.elements(region),
            None => Ok(Typed::contiguous(region)),
        }
    }
}
