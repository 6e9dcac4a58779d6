//! For tests of what uses engines (feature `testkit`): an engine whose three calls are one, an engine for the
//! memory of a fake device, one that pretends to work, and what reductions mean, written out ([`oracle`]).

mod fake;
pub mod oracle;
mod pretender;

pub use fake::{FakeEngine, FakePiece};
pub use pretender::Pretender;

use crate::{Engine, EngineError, Reducer, Typed};
use gapless_mem::{Completion, Device, DeviceError, Region, Space};
use std::ops::Range;
use std::sync::Arc;

/// A call of an engine, as a value.
#[derive(Clone, Debug)]
pub enum Work {
    /// [`Engine::pack`].
    Pack(Typed, Range<u64>, Region),
    /// [`Engine::unpack`].
    Unpack(Region, Typed, Range<u64>),
    /// [`Engine::transfer`].
    Transfer(Typed, Typed, Range<u64>),
}

impl Work {
    /// Bytes that it moves.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let (Work::Pack(_, range, _) | Work::Unpack(_, _, range) | Work::Transfer(_, _, range)) =
            self;
        range.end.saturating_sub(range.start)
    }

    /// The space of the side that has a layout; the target's if both have.
    #[must_use]
    pub fn space(&self) -> Space {
        let (Work::Pack(typed, ..) | Work::Unpack(_, typed, _) | Work::Transfer(_, typed, _)) =
            self;
        typed.space()
    }

    /// The same work where `map` says that the memory is.
    ///
    /// # Errors
    /// What `map` refuses; a region that is too short for its layout.
    pub fn elsewhere(
        self,
        map: impl Fn(Region) -> Result<Region, DeviceError>,
    ) -> Result<Work, EngineError> {
        let moved = |typed: Typed| typed.moved(map(typed.region())?, typed.origin());
        Ok(match self {
            Work::Pack(src, range, dst) => Work::Pack(moved(src)?, range, map(dst)?),
            Work::Unpack(src, dst, range) => Work::Unpack(map(src)?, moved(dst)?, range),
            Work::Transfer(src, dst, range) => Work::Transfer(moved(src)?, moved(dst)?, range),
        })
    }

    /// Has `engine` do it.
    ///
    /// # Safety
    /// As the engine's method of that name says.
    ///
    /// # Errors
    /// As the engine's method.
    pub unsafe fn run(
        self,
        engine: &dyn Engine,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        match self {
            // SAFETY: the caller's promise.
            Work::Pack(src, range, dst) => unsafe { engine.pack(&src, range, dst, after) },
            // SAFETY: the caller's promise.
            Work::Unpack(src, dst, range) => unsafe { engine.unpack(src, &dst, range, after) },
            // SAFETY: the caller's promise.
            Work::Transfer(src, dst, range) => unsafe { engine.transfer(&src, &dst, range, after) },
        }
    }
}

/// An [`Engine`] whose calls all go through one method: whoever implements this implements that.
///
/// # Safety
/// [`work`](Wrapper::work) and [`copy_all`](Wrapper::copy_all) keep the rules of [`Engine`].
pub unsafe trait Wrapper: Send + Sync {
    /// As [`Engine::name`].
    fn name(&self) -> &'static str;

    /// As [`Engine::serves`].
    fn serves(&self, space: Space) -> bool;

    /// As [`Engine::device`].
    fn device(&self, space: Space) -> Option<Arc<dyn Device>> {
        let _ = space;
        None
    }

    /// As [`Engine::reaches`], of this engine's own work.
    fn reaches(&self, host: Region, from: Option<Space>) -> Option<Arc<dyn Device>> {
        let _ = (host, from);
        None
    }

    /// As [`Engine::reducer`].
    fn reducer(&self, space: Space) -> Option<Arc<dyn Reducer>> {
        let _ = space;
        None
    }

    /// As [`Engine::copy_all`].
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    unsafe fn copy_all(
        &self,
        pairs: &[(Region, Region)],
        after: &[Completion],
    ) -> Result<Option<Completion>, EngineError> {
        let _ = (pairs, after);
        Ok(None)
    }

    /// Does what the engine was asked for.
    ///
    /// # Safety
    /// As for the engine's method that `work` names.
    ///
    /// # Errors
    /// As for the engine's method.
    unsafe fn work(&self, work: Work, after: &[Completion]) -> Result<Completion, EngineError>;
}

// SAFETY: all work is handed on, unchanged, to what promises to keep the rules.
unsafe impl<W: Wrapper> Engine for W {
    fn name(&self) -> &'static str {
        Wrapper::name(self)
    }

    fn serves(&self, space: Space) -> bool {
        Wrapper::serves(self, space)
    }

    fn device(&self, space: Space) -> Option<Arc<dyn Device>> {
        Wrapper::device(self, space)
    }

    fn reaches(&self, host: Region, from: Option<Space>) -> Option<(&dyn Engine, Arc<dyn Device>)> {
        Some((self, Wrapper::reaches(self, host, from)?))
    }

    fn reducer(&self, space: Space) -> Option<Arc<dyn Reducer>> {
        Wrapper::reducer(self, space)
    }

    unsafe fn copy_all(
        &self,
        pairs: &[(Region, Region)],
        after: &[Completion],
    ) -> Result<Option<Completion>, EngineError> {
        // SAFETY: the caller's promise.
        unsafe { Wrapper::copy_all(self, pairs, after) }
    }

    unsafe fn pack(
        &self,
        src: &Typed,
        range: Range<u64>,
        dst: Region,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: the caller's promise.
        unsafe { self.work(Work::Pack(src.clone(), range, dst), after) }
    }

    unsafe fn unpack(
        &self,
        src: Region,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: the caller's promise.
        unsafe { self.work(Work::Unpack(src, dst.clone(), range), after) }
    }

    unsafe fn transfer(
        &self,
        src: &Typed,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: the caller's promise.
        unsafe { self.work(Work::Transfer(src.clone(), dst.clone(), range), after) }
    }
}
