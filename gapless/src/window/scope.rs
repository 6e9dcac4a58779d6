//! Puts and gets of borrowed memory that go on while the caller does something else.

use super::Window;
use crate::error::Error;
use crate::raw::{At, DrainOnDrop};
use crate::shared::Shared;
use crate::view::{RecvBuffer, SendBuffer};
use gapless_dtype::AnyBits;
use gapless_engine::Typed;
use gapless_osc::{AccessKind, Driver, PendingTransfer, Place, WindowCall, check_elements};
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Puts and gets on a window, in flight until the scope ends at the latest: see [`Window::scope`].
pub struct WindowScope<'scope, 'env: 'scope, T, M> {
    window: &'env Window<T, M>,
    begun: RefCell<Vec<PendingTransfer>>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// A put or get of a [`WindowScope`]. Dropping it is fine: the scope's end waits for it.
#[must_use = "wait for it, or let the scope's end do so"]
pub struct WindowOperation<'scope> {
    /// `None`: it has ended.
    pending: Option<PendingTransfer>,
    shared: &'scope Shared,
}

impl<T: AnyBits, M> Window<T, M> {
    /// Begins puts and gets of borrowed memory, and waits for all of them when `body` is over. They need an epoch, as
    /// all operations, and end in any order.
    ///
    /// If a device of this process moves the data, a call returns once the device has its work. It does so between
    ///
    /// - two places in its memory, of which one may be a peer's that this process maps;
    /// - one of these and page-locked memory of the host, from 64 KiB on;
    /// - the target's memory, if that is one of these, and one contiguous span of any memory of the host.
    ///
    /// All other operations have ended at the origin when the call returns. A process has at most 16,384 under way; a
    /// call beyond that waits for the oldest.
    ///
    /// A notice is given when the operation has ended and this process has made progress since, by any call.
    ///
    /// ```
    /// use gapless::{Datatype, Pages, Place, Primitive, View, World};
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = World::init()?;
    /// let comm = world.comm();
    /// let right = (comm.rank() + 1) % comm.size();
    /// // A pool of eight pages of 16 bytes at each rank; one counter.
    /// let mut window = comm.window().notices(1).allocate::<u8>(128)?;
    /// let page = Datatype::contiguous(16, &Primitive::Byte.into())?.commit()?;
    /// let pool = [7u8; 128];
    /// window.lock_all()?;
    /// window.scope(|s| {
    ///     for [from, to] in [[0u32, 5], [3, 1]] {
    ///         let mine = Pages::new(&page, 16, &[from][..])?;
    ///         let theirs = Pages::new(&page, 16, &[to][..])?;
    ///         let _ = s.put(View::pages(&pool[..], 0, &mine)?, right, Place::pages(0, &theirs), Some(0))?;
    ///     }
    ///     Ok(())
    /// })?;
    /// window.wait_notices(0, 2, &[])?;
    /// assert_eq!([window.load(80)?, window.load(16)?], [7, 7]);
    /// window.unlock_all()?;
    /// window.free()?;
    /// world.finalize()
    /// # }
    /// ```
    ///
    /// What is written must live as long as the scope:
    ///
    /// ```compile_fail,E0597
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = gapless::World::init()?;
    /// let window = world.comm().window_allocate::<u8>(64)?;
    /// window.scope(|s| {
    ///     let mut inbox = [0u8; 64];
    ///     let _ = s.get(&mut inbox, 0, 0, None)?; // error: `inbox` does not live long enough
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// What `body` returned, or the first failure of a put or get that it did not wait for.
    ///
    /// # Panics
    /// If `body` does, once all has ended.
    pub fn scope<'env, R>(
        &'env self,
        body: impl for<'scope> FnOnce(&'scope WindowScope<'scope, 'env, T, M>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let (scope, env) = (PhantomData, PhantomData);
        let in_scope = WindowScope { window: self, begun: RefCell::default(), scope, env };
        let result = catch_unwind(AssertUnwindSafe(|| body(&in_scope)));
        // Whatever happens from here on, and that includes panics of others' code, devices are done with the memory
        // first.
        let begun = DrainOnDrop(in_scope.begun.take());
        let left = begun.0.iter().filter(|one| !one.is_done_with());
        let ended = left.map(|one| one.wait(self.shared())).fold(Ok(()), Result::and);
        drop(begun);
        match result {
            Ok(Ok(value)) => ended.map(|()| value),
            Ok(Err(error)) => Err(error),
            Err(panic) => resume_unwind(panic),
        }
    }
}

impl<'scope, T: AnyBits, M> WindowScope<'scope, '_, T, M> {
    /// Begins a [`put`](Window::put); with a counter, the target gets a [notice](Window::put_notify).
    ///
    /// # Errors
    /// As there.
    pub fn put(
        &'scope self,
        data: impl SendBuffer<'scope>,
        rank: u32,
        at: impl Into<Place>,
        notice: Option<u32>,
    ) -> Result<WindowOperation<'scope>, Error> {
        let (view, at, began) = (data.into_view(), at.into(), self.window.began());
        let mut begun = self.begin(AccessKind::Write, &view.typed, (rank, &at), notice);
        if matches!(begun, Ok(WindowOperation { pending: None, .. })) {
            // SAFETY: `view` borrows its memory for reading until this returns.
            let put = unsafe { self.window.put_typed("put", &view.typed, (rank, &at), notice) };
            begun = put.and(begun);
        }
        self.window.note(WindowCall::Put, view.packed_bytes(), began);
        begun
    }

    /// Begins a [`get`](Window::get); with a counter, the target gets a [notice](Window::get_notify).
    ///
    /// # Errors
    /// As there.
    pub fn get(
        &'scope self,
        into: impl RecvBuffer<'scope>,
        rank: u32,
        at: impl Into<Place>,
        notice: Option<u32>,
    ) -> Result<WindowOperation<'scope>, Error> {
        let (mut view, at, began) = (into.into_view(), at.into(), self.window.began());
        let mut begun = self.begin(AccessKind::Read, &view.typed, (rank, &at), notice);
        if matches!(begun, Ok(WindowOperation { pending: None, .. })) {
            begun = self.window.get_view("get", &mut view, (rank, &at), notice).and(begun);
        }
        self.window.note(WindowCall::Get, view.packed_bytes(), began);
        begun
    }

    /// Nothing is pending: it takes another way, and nothing was done. What `typed` describes is borrowed for `'scope`,
    /// exclusively if it is read into.
    fn begin(
        &'scope self,
        way: AccessKind,
        typed: &Typed,
        (rank, at): (u32, &Place),
        notice: Option<u32>,
    ) -> Result<WindowOperation<'scope>, Error> {
        let call = if way == AccessKind::Read { "get" } else { "put" };
        check_elements::<T>(call, typed, at)?;
        let place = At::from((rank, at)).notified(notice);
        {
            // Before it begins: it must be noted at once then.
            let mut begun = self.begun.borrow_mut();
            if begun.len() == begun.capacity() {
                begun.retain(|one| !one.is_done_with());
            }
            begun.reserve(1);
        }
        // SAFETY: the memory is borrowed for `'scope`, as both callers see to, exclusively for a get. `'scope` ends
        // after the scope has waited for all that is noted here, whatever `body` does. Indices in memory of a device
        // that the place names are their maker's promise.
        let begun = unsafe { self.window.raw.begin_transfer(call, way, typed, place) }?;
        let shared = self.window.shared();
        let Some(pending) = begun else { return Ok(WindowOperation { pending: None, shared }) };
        self.begun.borrow_mut().push(pending.clone());
        // Whoever sleeps is to look at it, too. If that cannot be said, nobody makes progress any more.
        let _ = shared.with(|state| {
            shared.rouse(state);
            Ok(())
        });
        Ok(WindowOperation { pending: Some(pending), shared })
    }
}

impl WindowOperation<'_> {
    /// Waits until it has ended at the origin. What a device moved lies at the target then; for all else, and to be
    /// sure of any, there are [`flush`](Window::flush) and [notices](Window::put_notify).
    ///
    /// # Errors
    /// The device failed, or found an index that leads outside
    /// ([`PageOutside`](gapless_mem::DeviceError::PageOutside)). It is not told again by a flush.
    pub fn wait(self) -> Result<(), Error> {
        self.pending.map_or(Ok(()), |pending| pending.wait(self.shared))
    }

    /// Whether it has ended; makes progress.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.shared.progress();
        self.pending.as_ref().is_none_or(|pending| pending.test().is_some())
    }
}

impl fmt::Debug for WindowOperation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WindowOperation(ended {})", self.pending.is_none())
    }
}

impl<T, M> fmt::Debug for WindowScope<'_, '_, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WindowScope({:?})", self.window)
    }
}
