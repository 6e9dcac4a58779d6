//! Choices about accelerators.

use super::Builder;
use gapless_mem::Device;
use std::sync::Arc;

#[cfg(feature = "cuda")]
use gapless_dtype_cuda::Workers;

impl Builder {
    /// Adds the engine of a GPU, which is asked before those made on demand, and makes its device
    /// known to the transports.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    #[must_use]
    pub fn gpu(self, engine: gapless_dtype_cuda::GpuEngine) -> Builder {
        let device = engine.device();
        self.engine(Arc::new(engine)).device(device)
    }

    /// Makes a device known to the transports: its engine (given with [`engine`](Builder::engine)) can then pack
    /// straight into their memory. If a device refuses that memory, its messages are staged. One of a kind that Gapless
    /// does not know ([`Space::Device`](crate::Space::Device)) is asked about pointers as well, as long as it lives, by
    /// all of the process ([`detect_space`](crate::detect_space)).
    #[must_use]
    pub fn device(mut self, device: Arc<dyn Device>) -> Builder {
        self.devices.push(device);
        self
    }

    /// Whether to open the devices of messages, and make engines for them, if none of the given engines serves them.
    /// This is the default; without it, messages in such memory are refused.
    #[must_use]
    pub fn open_devices(mut self, yes: bool) -> Builder {
        self.no_detection = !yes;
        self
    }

    /// Of how many OpenCL contexts what messages need is kept: queues, buffers, programs and a reference to the
    /// context. 8 by default, at least 1 (the cache of Aji et al. 2012). If more are in use, the one that was used
    /// least recently is given up, and made again when a message next needs it. See
    /// [`World::release_context`](crate::World::release_context).
    #[must_use]
    pub fn opencl_contexts(mut self, count: usize) -> Builder {
        self.contexts = Some(count);
        self
    }

    /// Whether a copy worker stays on each CUDA device that messages open, and runs copies of up to 32 KiB without a
    /// launch: short messages of devices take about two thirds of the time. By default none does, because what waits
    /// for all of a device (`cudaDeviceSynchronize`, `cudaFree`, loading a module) waits until the worker has left:
    /// with `Idle(time)` no longer than that time, or 5 ms while copies come. All ranks should say the same.
    /// `docs/gpu.md`, "Short copies without a launch", has more.
    ///
    /// The cost model counts with what this says. Engines that are [given](Builder::gpu) need it in their own settings,
    /// too (`gapless_dtype_cuda::Config::workers`).
    ///
    /// ```
    /// use gapless::Workers;
    /// use std::time::Duration;
    /// let builder = gapless::World::builder().workers(Workers::Idle(Duration::from_micros(100)));
    /// # builder.init()?;
    /// # Ok::<(), gapless::Error>(())
    /// ```
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn workers(mut self, workers: Workers) -> Builder {
        self.workers = workers;
        self
    }
}
