//! A rank's own memory: alone with it, and what is attached to a dynamic window.

use crate::WindowError;
use crate::core::Seat;
use crate::window::{Flavor, Window};
use gapless_mem::Atomics;
use std::sync::atomic::{Ordering, fence};

impl Window {
    /// Whether nobody else accesses this rank's memory until the epoch ends: it is locked by this rank alone, it is not
    /// posted, and the last fence, if there was one, was a last one. Messages of those who do not keep to that wait
    /// while `work` runs.
    ///
    /// # Errors
    /// Others may access it; it is a shared or a dynamic window.
    pub fn alone<T>(&mut self, work: impl FnOnce(&Atomics) -> T) -> Result<T, WindowError> {
        let call = "to have the memory alone";
        if self.flavor != Flavor::Plain {
            return Err(WindowError::Flavor { call, flavor: self.flavor.name() });
        }
        if !self.epochs.has_alone(self.rank) {
            return Err(WindowError::Mixed { call, open: "it is not locked by this rank alone" });
        }
        let alone = Alone::new(&self.seat);
        fence(Ordering::SeqCst);
        let result = work(&self.own.memory);
        fence(Ordering::SeqCst);
        drop(alone);
        Ok(result)
    }

    /// Attaches memory to a dynamic window (`MPI_Win_attach`, MPI 4.1 §12.2.4); gives its address, which is its
    /// displacement for others.
    ///
    /// # Errors
    /// The window is not dynamic.
    pub fn attach(&self, memory: Atomics) -> Result<u64, WindowError> {
        let mut core = self.osc().core();
        let hosted = core.windows.get_mut(&self.seat.id);
        let attached = hosted.and_then(|hosted| hosted.attach(memory));
        let flavor = self.flavor.name();
        attached.ok_or(WindowError::Flavor { call: "attach", flavor })
    }

    /// Takes memory back that was attached (`MPI_Win_detach`): from now on nothing of others touches it. Gives whether it
    /// was attached.
    pub fn detach(&self, address: u64) -> bool {
        let mut core = self.osc().core();
        let hosted = core.windows.get_mut(&self.seat.id);
        hosted.and_then(|hosted| hosted.detach(address)).is_some()
    }
}

/// While it lives, messages that access the window wait.
struct Alone<'s>(&'s Seat);

impl Alone<'_> {
    fn new(seat: &Seat) -> Alone<'_> {
        if let Some(hosted) = seat.osc.core().windows.get_mut(&seat.id) {
            hosted.sliced = true;
        }
        Alone(seat)
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        if let Some(hosted) = self.0.osc.core().windows.get_mut(&self.0.id) {
            hosted.sliced = false;
        }
    }
}
