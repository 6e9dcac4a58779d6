//! Operations on the memory of a target (MPI 4.1 §12.3): checked here, then done in memory that is mapped, or by messages.
//!
//! What the origin gives and gets are packed streams, in pieces of the caller's choice. An operation has ended at the origin
//! when its call returns: what it gave may be changed again, what it asked for is there.

use crate::adapter::Goal;
use crate::arithmetic::{Arithmetic, is_swapped};
use crate::error::{Fault, WindowError};
use crate::exposure::{Exposure, Near};
use crate::header::{Header, Stripes};
use crate::landing::Landing;
use crate::memory::{
    change, compare_swap, for_each_run, load, part, place, store, stripes, window,
};
use crate::place::{Access, AccessKind, Place, check_types, index, length};
use crate::reading::{Question, ReadState, Reading};
use crate::runs::Grid;
use crate::send::Pieces;
use crate::window::{Driver, Flavor, Window, nobody};
use crate::wire::{FETCH, Head, OPERANDS, WindowMessage};
use gapless_dtype::Primitive;
use gapless_engine::{EngineError, ReduceOp, Typed};
use std::borrow::Cow;
use std::ops::Range;

/// How often the mutex of elements is tried before the caller makes progress in between.
const TRIES: usize = 256;

impl Window {
    /// Checks an access of `origin` to the memory of a rank.
    ///
    /// # Errors
    /// No epoch gives access; bytes outside the window; other elements than those of the origin; bytes twice.
    pub fn access(
        &self,
        call: &'static str,
        (rank, at): (u32, &Place),
        origin: &Typed,
        way: AccessKind,
    ) -> Result<Access, WindowError> {
        self.epochs.operate(call, rank)?;
        self.locate((rank, at), origin, way)
    }

    /// The same of a rank's own memory, in any epoch or none.
    ///
    /// # Errors
    /// As [`access`](Window::access).
    pub fn access_own(
        &self,
        at: &Place,
        origin: &Typed,
        way: AccessKind,
    ) -> Result<Access, WindowError> {
        if self.flavor == Flavor::Dynamic {
            let call = "an access to the window's own memory";
            return Err(WindowError::Flavor { call, flavor: self.flavor.name() });
        }
        self.locate((self.rank, at), origin, way)
    }

    /// The same of any rank's memory, in a shared window.
    ///
    /// # Errors
    /// As [`access`](Window::access); the window is not shared.
    pub fn access_shared(
        &self,
        (rank, at): (u32, &Place),
        origin: &Typed,
        way: AccessKind,
    ) -> Result<Access, WindowError> {
        self.epochs.check_rank(rank)?;
        if self.flavor != Flavor::Shared {
            let call = "an access without an epoch";
            return Err(WindowError::Flavor { call, flavor: self.flavor.name() });
        }
        self.locate((rank, at), origin, way)
    }

    fn locate(
        &self,
        (rank, at): (u32, &Place),
        origin: &Typed,
        way: AccessKind,
    ) -> Result<Access, WindowError> {
        let member = &self.members[rank as usize];
        let bytes = if self.flavor == Flavor::Dynamic { u64::MAX } else { member.bytes };
        let start = at.displacement.saturating_mul(member.unit);
        let plain = at.shape.is_none().then(|| origin.contiguous_start()).flatten();
        let target = match (&at.shape, plain) {
            (None, Some(contiguous)) => {
                // One run, there as here.
                let first =
                    i128::from(start) + i128::from(contiguous) - i128::from(origin.origin());
                let end = first + i128::from(origin.packed_bytes());
                match u64::try_from(first) {
                    Ok(first) if end <= i128::from(bytes) => {
                        place(bytes, first, None, origin.packed_bytes())
                    }
                    _ => return Err(WindowError::Outside { rank, low: first, high: end, bytes }),
                }
            }
            (None, None) => origin.moved(window(bytes), start),
            (Some(shape), _) => {
                let (layout, count) = shape.elements();
                check_types(origin, layout, count)?;
                if way != AccessKind::Read && shape.overlaps() {
                    return Err(WindowError::Overlapping { count });
                }
                shape.in_region(window(bytes), start)
            }
        };
        // Who has no access to the memory itself is told an ordinary layout; a device alone reads indices that lie in
        // its memory. Elements are changed one by one, wherever they are.
        let transfers = way != AccessKind::Change;
        let reached = |target: &Typed| match target.has_device_indices() {
            _ if member.device.is_some() => true,
            true => self.transfer_target(rank, origin).is_some(),
            false => member.mapped.is_some(),
        };
        let target = target.and_then(|target| match target.as_pages() {
            Some(_) if transfers && reached(&target) => Ok(target),
            _ => target.without_pages().map(Cow::into_owned),
        });
        match target {
            Ok(target) if !transfers && at.shape.is_some() && target.overlaps() => {
                Err(WindowError::Overlapping { count: target.count() })
            }
            Ok(target) => Ok(Access { rank, target, notice: None }),
            Err(EngineError::OutsideBuffer { low, high, .. }) => {
                let start = i128::from(start);
                Err(WindowError::Outside { rank, low: start + low, high: start + high, bytes })
            }
            Err(other) => Err(other.into()),
        }
    }

    /// The memory of an access of [`access_own`](Window::access_own) or [`access_shared`](Window::access_shared).
    fn near(&self, access: &Access) -> Near<'_> {
        self.mapped(access).map_or_else(|| self.own.memory(), |near| Near::Host(&near.memory))
    }

    /// Reads memory without an epoch.
    ///
    /// # Errors
    /// The access is not one that needs none.
    #[inline]
    pub fn load(
        &self,
        access: &Access,
        range: Range<u64>,
        into: &mut [u8],
    ) -> Result<(), WindowError> {
        let loaded = match self.near(access) {
            Near::Host(memory) => load(memory, &access.target, range, into),
            Near::Device(memory) => return Ok(memory.load(&access.target, range, into)?),
        };
        loaded.map_err(|fault| self.refused(access.rank, fault))
    }

    /// Writes memory without an epoch.
    ///
    /// # Errors
    /// As [`load`](Window::load).
    #[inline]
    pub fn store(
        &self,
        access: &Access,
        range: Range<u64>,
        bytes: &[u8],
    ) -> Result<(), WindowError> {
        let stored = match self.near(access) {
            Near::Host(memory) => store(memory, &access.target, range, bytes),
            Near::Device(memory) => return Ok(memory.store(&access.target, range, bytes)?),
        };
        stored.map_err(|fault| self.refused(access.rank, fault))
    }

    /// The target's memory, if this process has it mapped.
    pub(crate) fn mapped(&self, access: &Access) -> Option<&Exposure> {
        self.members[access.rank as usize].mapped.as_ref()
    }

    /// Writes `bytes` to `range` of the target's packed stream (`MPI_Put`, MPI 4.1 §12.3.1): stores to memory that is
    /// mapped, has a device of this process write, or sends messages.
    ///
    /// # Errors
    /// The target is lost.
    #[inline]
    pub fn put<D: Driver>(
        &self,
        driver: &D,
        access: &Access,
        range: Range<u64>,
        bytes: &[u8],
    ) -> Result<(), D::Error> {
        self.end_tasks(driver, access.rank)?;
        if let Some(exposure) = self.mapped(access) {
            let stored = store(&exposure.memory, &access.target, range, bytes);
            self.progress_now_and_then(driver, Window::weight(bytes.len()));
            return Ok(stored.map_err(|fault| self.refused(access.rank, fault))?);
        }
        if let Some(near) = self.near_device(access) {
            return self.put_near(driver, (access, near), range, bytes);
        }
        let head = self.head(WindowMessage::Put, access.rank);
        self.send(driver, access, Pieces { head, range, bytes, element: 1 }, None)
    }

    /// Reads `range` of the target's packed stream (`MPI_Get`, MPI 4.1 §12.3.2), in the ways of [`put`](Window::put).
    ///
    /// # Errors
    /// The target is lost, or refuses.
    #[inline]
    pub fn get<D: Driver>(
        &self,
        driver: &D,
        access: &Access,
        range: Range<u64>,
        into: &mut [u8],
    ) -> Result<(), D::Error> {
        self.end_tasks(driver, access.rank)?;
        if let Some(exposure) = self.mapped(access) {
            let loaded = load(&exposure.memory, &access.target, range, into);
            self.progress_now_and_then(driver, Window::weight(into.len()));
            return Ok(loaded.map_err(|fault| self.refused(access.rank, fault))?);
        }
        if let Some(near) = self.near_device(access) {
            return self.get_near(driver, (access, near), range, into);
        }
        let reading = self.start_get(driver, access, range)?;
        into.copy_from_slice(&reading.wait(driver)?);
        Ok(())
    }

    /// Begins to read (`MPI_Rget`, MPI 4.1 §12.3.5).
    ///
    /// # Errors
    /// As [`get`](Window::get).
    pub fn start_get<D: Driver>(
        &self,
        driver: &D,
        access: &Access,
        range: Range<u64>,
    ) -> Result<Reading, D::Error> {
        self.end_tasks(driver, access.rank)?;
        if let Some(exposure) = self.mapped(access) {
            let mut found = vec![0; length(&range)?];
            let loaded = load(&exposure.memory, &access.target, range, &mut found);
            self.progress_now_and_then(driver, Window::weight(found.len()));
            loaded.map_err(|fault| self.refused(access.rank, fault))?;
            self.give_notice(access);
            return Ok(here(found));
        }
        if let Some(near) = self.near_device(access) {
            let mut found = vec![0; length(&range)?];
            self.get_near(driver, (access, near), range, &mut found)?;
            self.give_notice(access);
            return Ok(here(found));
        }
        let head = self.head(WindowMessage::Get, access.rank);
        let landing = Landing::kept(length(&range)?);
        let pieces = Pieces { head, range, bytes: &[], element: 1 };
        self.ask(driver, access, pieces, landing)
    }

    /// Sends questions, whose answers go to `landing`, and gives what they will be.
    pub(crate) fn ask<D: Driver>(
        &self,
        driver: &D,
        access: &Access,
        pieces: Pieces<'_>,
        landing: Landing,
    ) -> Result<Reading, D::Error> {
        let process = self.members[access.rank as usize].process;
        let token = self.osc().core().questions.ask(process, pieces.range.start, landing);
        let osc = self.osc().clone();
        let question = Question { rank: access.rank, token, osc };
        self.send(driver, access, pieces, Some(token))?;
        let reading = Reading(ReadState::Asked(question));
        if self.tasks.is_some() {
            // A task that is put next must not come first.
            return Ok(here(reading.wait(driver)?));
        }
        Ok(reading)
    }

    /// What an accumulation does with elements of `origin` at a target, whose elements must be the same, and aligned.
    ///
    /// # Errors
    /// Elements of several types, or others at the target; an operation that is not defined for them; elements that are
    /// changed atomically, at addresses that are no multiples of their length.
    pub(crate) fn arithmetic(
        &self,
        access: &Access,
        op: ReduceOp,
        (origin, at): (&Typed, &Place),
    ) -> Result<Arithmetic, WindowError> {
        let arithmetic = match &at.shape {
            None => Arithmetic::of(op, origin)?,
            Some(shape) => {
                let target = shape.in_region(window(u64::MAX), 1 << 62)?;
                Arithmetic::between(op, origin, &target)?
            }
        };
        let is_number = arithmetic.is_atomic() && arithmetic.width() == 8;
        self.check_number("an accumulation of anything but numbers of 64 bits", is_number)?;
        if arithmetic.is_atomic() && self.flavor != Flavor::Dynamic {
            self.check_alignment(access, arithmetic.primitive(), arithmetic.width())?;
        }
        Ok(arithmetic)
    }

    fn check_alignment(
        &self,
        access: &Access,
        primitive: Primitive,
        width: usize,
    ) -> Result<(), WindowError> {
        let (rank, base) = (access.rank, self.members[access.rank as usize].misalignment);
        if let Some(grid) = Grid::of(&access.target) {
            // Its runs are alike.
            let first = base + access.target.region().offset() + grid.first;
            let all = [first, grid.len, grid.stride.unsigned_abs()];
            if all.iter().all(|bytes| bytes.is_multiple_of(width as u64)) {
                return Ok(());
            }
        }
        let mut wrong = None;
        let range = 0..access.target.packed_bytes();
        let _ = for_each_run(&access.target, range, |offset, _, len| {
            let fits = (base + offset).is_multiple_of(width as u64) && len.is_multiple_of(width);
            if fits {
                return Ok(());
            }
            wrong = Some(offset);
            Err(Fault::Misaligned)
        });
        match wrong {
            None => Ok(()),
            Some(offset) => Err(WindowError::Misaligned { rank, offset, primitive }),
        }
    }

    /// Combines elements at a target with `bytes`, which are all of the origin's packed stream (`MPI_Accumulate`,
    /// MPI 4.1 §12.3.4); each element atomically. No elements are of no type.
    ///
    /// # Errors
    /// Elements and operation that do not go together; the target is lost.
    pub fn accumulate<D: Driver>(
        &self,
        driver: &D,
        (access, op): (&Access, ReduceOp),
        (origin, at): (&Typed, &Place),
        bytes: &[u8],
    ) -> Result<(), D::Error> {
        if access.packed_bytes() == 0 {
            return Ok(());
        }
        let arithmetic = self.arithmetic(access, op, (origin, at))?;
        if let Some(carried) = &self.tasks {
            return self.put_tasks(driver, carried, access, (&arithmetic, bytes));
        }
        let range = 0..access.target.packed_bytes();
        if let Some(key) = self.key(access.rank) {
            if op == ReduceOp::NoOp {
                return Ok(());
            }
            let goal = Goal::Combine(&arithmetic, bytes);
            return self.change_numbers(driver, (access, key), &goal, None);
        }
        if let Some(exposure) = self.mapped(access) {
            return self.change(driver, (access, exposure), (&arithmetic, bytes), None);
        }
        if op == ReduceOp::NoOp {
            return Ok(());
        }
        if let Some(near) = self.near_device(access) {
            return self.change_near(driver, (access, near), (&arithmetic, bytes), None);
        }
        let head = self.accumulation(access.rank, &arithmetic, OPERANDS);
        let pieces = Pieces { head, range, bytes, element: arithmetic.width() as u64 };
        self.send(driver, access, pieces, None)
    }

    /// The same, and begins to read what was there before (`MPI_Get_accumulate`). `MPI_NO_OP` needs no bytes, and `origin` is
    /// what is fetched then.
    ///
    /// # Errors
    /// As [`accumulate`](Window::accumulate).
    pub fn start_get_accumulate<D: Driver>(
        &self,
        driver: &D,
        (access, op): (&Access, ReduceOp),
        given: (&Typed, &Place),
        bytes: &[u8],
    ) -> Result<Reading, D::Error> {
        self.ask_accumulate(driver, (access, op), given, bytes, None)
    }

    /// The same; what was there goes to `landing`, if that is given and it goes by messages.
    pub(crate) fn ask_accumulate<D: Driver>(
        &self,
        driver: &D,
        (access, op): (&Access, ReduceOp),
        (origin, at): (&Typed, &Place),
        bytes: &[u8],
        landing: Option<Landing>,
    ) -> Result<Reading, D::Error> {
        if access.packed_bytes() == 0 {
            return Ok(here(Vec::new()));
        }
        let arithmetic = self.arithmetic(access, op, (origin, at))?;
        self.before_fetch(driver, access.rank, "get_accumulate")?;
        let range = 0..access.target.packed_bytes();
        if let Some(key) = self.key(access.rank) {
            let mut found = vec![0; length(&range)?];
            let goal = Goal::Combine(&arithmetic, bytes);
            self.change_numbers(driver, (access, key), &goal, Some(&mut found))?;
            return Ok(here(found));
        }
        if let Some(exposure) = self.mapped(access) {
            let mut found = vec![0; length(&range)?];
            let operand = (&arithmetic, bytes);
            self.change(driver, (access, exposure), operand, Some(&mut found))?;
            return Ok(here(found));
        }
        if let Some(near) = self.near_device(access) {
            let mut found = vec![0; length(&range)?];
            let operand = (&arithmetic, bytes);
            self.change_near(driver, (access, near), operand, Some(&mut found))?;
            return Ok(here(found));
        }
        let (flags, bytes) = match op {
            ReduceOp::NoOp => (FETCH, &[][..]),
            _ => (FETCH | OPERANDS, bytes),
        };
        let head = self.accumulation(access.rank, &arithmetic, flags);
        let element = arithmetic.width() as u64;
        let kept = length(&range)?;
        let landing = landing.unwrap_or_else(|| Landing::kept(kept));
        self.ask(driver, access, Pieces { head, range, bytes, element }, landing)
    }

    fn accumulation(&self, rank: u32, arithmetic: &Arithmetic, flag: u8) -> Head {
        let op = ReduceOp::ALL.iter().position(|op| *op == arithmetic.op()).unwrap_or(0);
        let op = u8::try_from(op).unwrap_or(0);
        let primitive = arithmetic.primitive() as u8;
        Head { op, primitive, flag, ..self.head(WindowMessage::Accumulate, rank) }
    }

    /// An accumulation in memory that is mapped: stripe after stripe.
    #[inline]
    pub(crate) fn change<D: Driver>(
        &self,
        driver: &D,
        (access, exposure): (&Access, &Exposure),
        (arithmetic, bytes): (&Arithmetic, &[u8]),
        mut found: Option<&mut [u8]>,
    ) -> Result<(), D::Error> {
        let (memory, target, all) = (&exposure.memory, &access.target, access.packed_bytes());
        let refused = |fault| self.refused(access.rank, fault);
        let mut left = 0..all;
        while !left.is_empty() {
            let now = part(target, &left, arithmetic.width() as u64);
            left.start = now.end;
            let here = index(&now)?;
            let operand = (arithmetic, bytes.get(here.clone()).unwrap_or(&[]));
            let result = found.as_deref_mut().map(|found| &mut found[here]);
            let base = memory.misalignment(0, 8);
            let stripes = stripes(base, target, now.clone(), arithmetic).map_err(refused)?;
            self.take_stripes(driver, &exposure.header, stripes)?;
            let changed = change(memory, target, now, operand, result);
            exposure.header.release_stripes(self.rank, stripes);
            changed.map_err(refused)?;
        }
        self.progress_now_and_then(driver, Window::weight(bytes.len()));
        Ok(())
    }

    #[cold]
    pub(crate) fn take_stripes<D: Driver>(
        &self,
        driver: &D,
        header: &Header,
        stripes: Stripes,
    ) -> Result<(), D::Error> {
        let process = |rank: u32| self.members.get(rank as usize).map(|member| member.process);
        let is_lost =
            |rank: u32| process(rank).is_some_and(|process| self.osc().departed().is_lost(process));
        let is_dead =
            |rank: u32| process(rank).is_some_and(|process| self.osc().departed().is_dead(process));
        for _ in 0..TRIES {
            if header.try_stripes(self.rank, stripes, is_dead) {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let taken = driver.until(true, nobody, |_| {
            if header.try_stripes(self.rank, stripes, is_dead) {
                return Some(Ok(()));
            }
            let holder = header.lost_in_stripes(stripes, |rank| is_lost(rank) && !is_dead(rank))?;
            Some(Err(self.osc().loss(process(holder)?)))
        })?;
        Ok(taken?)
    }

    /// Replaces an element by `swap` if it is `compare`, bit by bit; `found` gets what was there
    /// (`MPI_Compare_and_swap`, MPI 4.1 §12.3.4).
    ///
    /// # Errors
    /// An element that is no integer, logical or byte of 1, 2, 4 or 8 bytes, or is not aligned; the target is lost.
    pub fn compare_and_swap<D: Driver>(
        &self,
        driver: &D,
        access: &Access,
        primitive: Primitive,
        (compare, swap, found): (&[u8], &[u8], &mut [u8]),
    ) -> Result<(), D::Error> {
        let reading = self.ask_swap(driver, access, primitive, (compare, swap), None)?;
        found.copy_from_slice(&reading.wait(driver)?);
        Ok(())
    }

    /// The same; what was there goes to `landing`, if that is given and it goes by messages.
    pub(crate) fn ask_swap<D: Driver>(
        &self,
        driver: &D,
        access: &Access,
        primitive: Primitive,
        (compare, swap): (&[u8], &[u8]),
        landing: Option<Landing>,
    ) -> Result<Reading, D::Error> {
        if !is_swapped(primitive) {
            let op = "MPI_Compare_and_swap";
            return Err(WindowError::from(EngineError::UndefinedOp { op, primitive }).into());
        }
        let width = compare.len();
        self.check_number("compare_and_swap of anything but a number of 64 bits", width == 8)?;
        if self.flavor != Flavor::Dynamic {
            self.check_alignment(access, primitive, width)?;
        }
        self.before_fetch(driver, access.rank, "compare_and_swap")?;
        if let Some(key) = self.key(access.rank) {
            let [compare, swap] = [compare, swap].map(crate::arithmetic::read);
            let (goal, mut found) = (Goal::Swap { compare, swap }, vec![0; width]);
            self.change_numbers(driver, (access, key), &goal, Some(&mut found))?;
            return Ok(here(found));
        }
        let was = |old: u64| {
            let mut found = vec![0; width];
            crate::arithmetic::write(old, &mut found);
            here(found)
        };
        if let Some(exposure) = self.mapped(access) {
            let Some(place) = access.target.as_contiguous() else {
                return Err(self.refused(access.rank, Fault::Elements).into());
            };
            let [compare, swap] = [compare, swap].map(crate::arithmetic::read);
            let stripes = Stripes::default().with(place.start(), width);
            self.take_stripes(driver, &exposure.header, stripes)?;
            let old = compare_swap(&exposure.memory, place.start(), width, (compare, swap));
            exposure.header.release_stripes(self.rank, stripes);
            self.progress_now_and_then(driver, 1);
            return Ok(was(old.map_err(|why| self.refused(access.rank, why))?));
        }
        if let Some(near) = self.near_device(access) {
            let both = [compare, swap].map(crate::arithmetic::read).into();
            return Ok(was(self.compare_near(driver, (access, near), width, both)?));
        }
        let head =
            Head { primitive: primitive as u8, ..self.head(WindowMessage::Compare, access.rank) };
        let (range, both) = (0..width as u64, [compare, swap].concat());
        let pieces = Pieces { head, range, bytes: &both, element: width as u64 };
        let landing = landing.unwrap_or_else(|| Landing::kept(width));
        self.ask(driver, access, pieces, landing)
    }
}

fn here(found: Vec<u8>) -> Reading {
    Reading(ReadState::Here(found))
}
