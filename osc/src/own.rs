//! What is attached to a dynamic window.

use crate::error::WindowError;
use crate::window::Window;
use gapless_mem::Atomics;

impl Window {
    /// Attaches memory to a dynamic window (`MPI_Win_attach`, MPI 4.1 §12.2.4); gives its address, which is its
    /// displacement for others.
    ///
    /// # Errors
    /// The window is not dynamic.
    pub fn attach(&self, memory: Atomics) -> Result<u64, WindowError> {
        let mut core = self.osc().core();
        let hosted = core.windows.get_mut(&self.handle.id);
        let attached = hosted.and_then(|hosted| hosted.attach(memory));
        let flavor = self.flavor.name();
        attached.ok_or(WindowError::Flavor { call: "attach", flavor })
    }

    /// Takes memory back that was attached (`MPI_Win_detach`): from now on nothing of others touches it. Gives whether it
    /// was attached.
    pub fn detach(&self, address: u64) -> bool {
        let mut core = self.osc().core();
        let hosted = core.windows.get_mut(&self.handle.id);
        hosted.and_then(|hosted| hosted.detach(address)).is_some()
    }
}
