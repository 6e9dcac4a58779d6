//! A rank's own memory, that of ranks of a shared window, and what is attached to a dynamic one.

use super::Window;
use crate::error::Error;
use crate::shared_buf::SharedBuf;
use crate::view::{RecvBuffer, SendBuffer, View, ViewMut};
use gapless_dtype::AnyBits;
use gapless_mem::Atomics;
use gapless_osc::{Access, AccessKind, Place, WindowError, check_elements};

impl<T: AnyBits, M> Window<T, M> {
    /// Copies out of this rank's own memory, in any epoch or none; `at` as for [`get`](Window::get).
    ///
    /// # Errors
    /// Bytes outside the window; a layout with other elements; the window is dynamic.
    pub fn read<'v>(&self, into: impl RecvBuffer<'v>, at: impl Into<Place>) -> Result<(), Error> {
        let (view, at) = (into.into_view(), at.into());
        check_elements::<T>("read", &view.typed, &at)?;
        let access = self.inner().access_own(&at, &view.typed, AccessKind::Read)?;
        self.copy_out(&view, &access)
    }

    /// Copies into this rank's own memory, in any epoch or none; `at` as for [`put`](Window::put).
    ///
    /// # Errors
    /// As [`read`](Window::read).
    pub fn write<'v>(&self, data: impl SendBuffer<'v>, at: impl Into<Place>) -> Result<(), Error> {
        let (view, at) = (data.into_view(), at.into());
        check_elements::<T>("write", &view.typed, &at)?;
        let access = self.inner().access_own(&at, &view.typed, AccessKind::Write)?;
        self.copy_in(&view, &access)
    }

    /// One element of this rank's own memory.
    ///
    /// # Errors
    /// As [`read`](Window::read).
    pub fn load(&self, at: impl Into<Place>) -> Result<T, Error>
    where
        T: Copy + Default,
    {
        let mut found = [T::default()];
        self.read(&mut found, at)?;
        Ok(found[0])
    }

    /// Sets one element of this rank's own memory.
    ///
    /// # Errors
    /// As [`read`](Window::read).
    pub fn store(&self, value: T, at: impl Into<Place>) -> Result<(), Error> {
        self.write(&[value], at)
    }

    fn copy_out(&self, view: &ViewMut<'_>, access: &Access) -> Result<(), Error> {
        // SAFETY: whoever calls has the view by value, which borrows its memory exclusively.
        unsafe { self.inner().load_all(access, &view.typed) }
    }

    fn copy_in(&self, view: &View<'_>, access: &Access) -> Result<(), Error> {
        // SAFETY: `view` borrows its memory for reading.
        unsafe { self.inner().store_all(access, &view.typed) }
    }
}

impl<T: AnyBits> Window<T> {
    /// The memory of a rank in a shared window (`MPI_Win_shared_query`, MPI 4.1 §12.2.3), to be read and written without
    /// epochs. [`sync`](Window::sync), barriers or messages order such accesses.
    ///
    /// # Errors
    /// There is no such rank; the window is not [shared](crate::WindowBuilder::allocate_shared).
    pub fn part(&self, rank: u32) -> Result<SharedPart<'_, T>, Error> {
        let nothing = View::of::<u8>(&[]);
        self.inner().access_shared((rank, &Place::at(0)), &nothing.typed, AccessKind::Read)?;
        Ok(SharedPart { window: self, rank })
    }
}

/// The memory of one rank of a shared window; see [`Window::part`].
#[derive(Clone, Copy, Debug)]
pub struct SharedPart<'w, T> {
    window: &'w Window<T>,
    rank: u32,
}

impl<T: AnyBits> SharedPart<'_, T> {
    /// Copies out of the memory; `at` as for [`Window::get`].
    ///
    /// # Errors
    /// Bytes outside the window; a layout with other elements.
    pub fn read<'v>(&self, into: impl RecvBuffer<'v>, at: impl Into<Place>) -> Result<(), Error> {
        let (view, at) = (into.into_view(), at.into());
        check_elements::<T>("read", &view.typed, &at)?;
        let at = (self.rank, &at);
        let access = self.window.inner().access_shared(at, &view.typed, AccessKind::Read)?;
        self.window.copy_out(&view, &access)
    }

    /// Copies into the memory; `at` as for [`Window::put`].
    ///
    /// # Errors
    /// As [`read`](SharedPart::read).
    pub fn write<'v>(&self, data: impl SendBuffer<'v>, at: impl Into<Place>) -> Result<(), Error> {
        let (view, at) = (data.into_view(), at.into());
        check_elements::<T>("write", &view.typed, &at)?;
        let at = (self.rank, &at);
        let access = self.window.inner().access_shared(at, &view.typed, AccessKind::Write)?;
        self.window.copy_in(&view, &access)
    }

    /// One element.
    ///
    /// # Errors
    /// As [`read`](SharedPart::read).
    pub fn load(&self, at: impl Into<Place>) -> Result<T, Error>
    where
        T: Copy + Default,
    {
        let mut found = [T::default()];
        self.read(&mut found, at)?;
        Ok(found[0])
    }

    /// Sets one element.
    ///
    /// # Errors
    /// As [`read`](SharedPart::read).
    pub fn store(&self, value: T, at: impl Into<Place>) -> Result<(), Error> {
        self.write(&[value], at)
    }
}

impl Window<u8> {
    /// Attaches memory to a dynamic window (`MPI_Win_attach`, MPI 4.1 §12.2.4). Gives its address, by which others access
    /// it: send it to them. Not collective.
    ///
    /// # Errors
    /// The window is not dynamic.
    pub fn attach(&mut self, memory: SharedBuf) -> Result<u64, Error> {
        // SAFETY: the window keeps the buffer to itself until it is detached; its bytes are accessed by this process's
        // progress engine alone, atomically.
        let atomics = unsafe { Atomics::new(memory.lease()?) }?;
        let address = self.inner().attach(atomics)?;
        self.attached.push((address, memory));
        Ok(address)
    }

    /// Takes memory back that was attached (`MPI_Win_detach`): from now on nothing of others touches it. `None`: nothing is
    /// attached at this address.
    pub fn detach(&mut self, address: u64) -> Option<SharedBuf> {
        let at = self.attached.iter().position(|(start, _)| *start == address)?;
        // Whatever the progress engine does with it is done, or refused.
        self.inner().detach(address);
        Some(self.attached.swap_remove(at).1)
    }

    /// Copies out of the memory that is attached at an address, which this rank has.
    ///
    /// # Errors
    /// Nothing is attached there; bytes outside it.
    pub fn read_attached(&self, address: u64, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let found = self.attached.iter().find(|(start, _)| *start == address);
        let (_, memory) = found.ok_or(WindowError::NotOpen { call: "read_attached" })?;
        // SAFETY: as in `attach`; bytes are copied by atomic accesses.
        let atomics = unsafe { Atomics::new(memory.lease()?) }?;
        Ok(atomics.load(offset, into)?)
    }
}
