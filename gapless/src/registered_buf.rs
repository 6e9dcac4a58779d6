//! Memory of a user's own from [`World::register`](crate::World::register): page-locked once, for any number of
//! messages.

use crate::error::Error;
use crate::owned::{OwnedBuffer, OwnedBufferMut, Park, RawList, Refused};
use crate::page_locked::{PageLocked, devices_for};
use crate::shared::Shared;
use gapless_dtype::{AnyBits, ElementType, Equivalence};
use gapless_mem::Region;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Elements that the devices of this process read and write where they lie. Dropping it undoes that, and frees the
/// memory. It owns the memory, because drivers know registered memory by its addresses; one that is forgotten leaks it.
///
/// A request can own it, so a [`Persistent`](crate::Persistent) one keeps it registered for all its messages.
pub struct RegisteredBuf<T: Equivalence>(PageLocked<RawList<T>>);

impl<T: Equivalence> RegisteredBuf<T> {
    /// Registers memory with all devices of the world whose kernels reach memory of the host.
    #[expect(
        clippy::result_large_err,
        reason = "the memory comes back, as from other calls that own it"
    )]
    pub(crate) fn register(
        shared: &Shared,
        memory: Vec<T>,
    ) -> Result<RegisteredBuf<T>, Refused<Vec<T>>> {
        let list = RawList::of(memory);
        let region = Park::<Vec<T>>::region(&list);
        // SAFETY: a list of raw parts keeps its elements where they are.
        let mut made = RegisteredBuf(unsafe { PageLocked::new(list, region) });
        let devices = shared.with(|state| devices_for(state, region.len()));
        let registered = devices.and_then(|devices| Ok(made.0.register(devices)?));
        match registered {
            Ok(()) => Ok(made),
            Err(error) => {
                let buffer = made.unregister().unwrap_or_else(|kept| {
                    tracing::warn!(error = %kept, "memory stays page-locked, and is not freed");
                    Vec::new()
                });
                Err(Refused { error, buffer })
            }
        }
    }

    /// Whether a device reaches it. If not, it is like any other memory: no device was open that does, or it is shorter
    /// than 64 KiB.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.0.is_registered()
    }

    /// The bytes, as a region.
    #[must_use]
    pub fn region(&self) -> Region {
        self.0.region()
    }

    /// Undoes the registration, and gives the memory back.
    ///
    /// # Errors
    /// A driver fails. Then the memory stays registered, and is never freed.
    pub fn unregister(self) -> Result<Vec<T>, Error> {
        Ok(self.0.into_owner()?.into_list())
    }
}

impl<T: Equivalence> Deref for RegisteredBuf<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: a message that writes the memory borrows this value mutably, or owns it, until it has ended.
        unsafe { Park::<Vec<T>>::items(self.0.owner()) }
    }
}

impl<T: Equivalence> DerefMut for RegisteredBuf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and the borrow is exclusive: no message uses the memory.
        unsafe { Park::<Vec<T>>::items_mut(self.0.owner_mut()) }
    }
}

impl<T: Equivalence> fmt::Debug for RegisteredBuf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (elements, devices) = (self.len(), self.0.devices());
        write!(f, "RegisteredBuf of {elements} elements, with {devices} devices")
    }
}

impl<T: Equivalence> OwnedBuffer for RegisteredBuf<T> {
    type Item = T;
    type Parked = RegisteredBuf<T>;

    fn element() -> ElementType {
        ElementType::of::<T>()
    }

    fn elements(&self) -> usize {
        self.len()
    }
}

impl<T: AnyBits> OwnedBufferMut for RegisteredBuf<T> {}

// It holds no reference to its elements: it is parked as it is.
impl<T: Equivalence> Park<RegisteredBuf<T>> for RegisteredBuf<T> {
    fn park(buffer: RegisteredBuf<T>) -> RegisteredBuf<T> {
        buffer
    }

    fn unpark(self) -> RegisteredBuf<T> {
        self
    }

    fn region(&self) -> Region {
        RegisteredBuf::region(self)
    }

    unsafe fn items(&self) -> &[T] {
        self
    }

    unsafe fn items_mut(&mut self) -> &mut [T] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::World;
    use gapless_engine::testkit::FakeEngine;
    use gapless_mem::DeviceError;
    use gapless_mem::fake::FakeDevice;
    use gapless_mem::testkit::{Call, Wrapped};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    const ELEMENTS: usize = 20_000;

    fn numbers() -> Vec<f64> {
        (0..20_000).map(f64::from).collect()
    }

    fn world_of(device: &Arc<FakeDevice>) -> World {
        let engine = Arc::new(FakeEngine::new(device, 2));
        let builder = World::builder().open_devices(false).engine(engine);
        builder.device(Arc::clone(device) as _).init().unwrap()
    }

    /// A world of two devices, of which the second does what it is told before each call.
    fn two(
        told: impl Fn(Call) -> Result<(), DeviceError> + Send + Sync + 'static,
    ) -> (World, [Arc<FakeDevice>; 2]) {
        let devices = [0, 1].map(|number| Arc::new(FakeDevice::new(number)));
        let second = Wrapped::new(Arc::clone(&devices[1]) as _, told);
        let builder = World::builder().open_devices(false).device(Arc::clone(&devices[0]) as _);
        (builder.device(Arc::new(second)).init().unwrap(), devices)
    }

    fn refuse(call: Call) -> Result<(), DeviceError> {
        match call {
            Call::Register(_) => Err(DeviceError::Failed {
                device: "the second".to_owned(),
                operation: "register",
                reason: "its limit is reached".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    #[test]
    fn memory_is_registered_until_it_is_dropped_or_given_back() {
        let device = Arc::new(FakeDevice::new(0));
        let world = world_of(&device);
        let mut kept = world.register(numbers()).unwrap();
        assert!(kept.is_registered());
        assert_eq!(device.registered(), [(kept.region().start(), 8 * ELEMENTS as u64)]);
        kept[ELEMENTS - 1] = -1.0;
        let boxed = world.register(numbers().into_boxed_slice()).unwrap();
        assert_eq!(device.registered().len(), 2);
        drop(boxed);
        let start = kept.region().start();
        let back = kept.unregister().unwrap();
        assert_eq!((back.as_ptr().addr() as u64, back.len()), (start, ELEMENTS), "nothing moves");
        assert_eq!((back[1], back[ELEMENTS - 1]), (1.0, -1.0));
        assert!(device.registered().is_empty());
    }

    #[test]
    fn a_forgotten_value_leaks_its_memory_too() {
        let device = Arc::new(FakeDevice::new(0));
        let world = world_of(&device);
        let kept = world.register(numbers()).unwrap();
        let region = kept.region();
        std::mem::forget(kept);
        // Were it freed, so long a vector would likely lie there again.
        let other = numbers();
        assert_ne!(other.as_ptr().addr() as u64, region.start());
        assert_eq!(device.registered(), [(region.start(), region.len())]);
    }

    #[test]
    fn without_a_device_and_if_short_it_is_ordinary_memory() {
        let world = World::builder().open_devices(false).init().unwrap();
        let mut plain = world.register(numbers()).unwrap();
        assert!(!plain.is_registered());
        let comm = world.comm();
        let sent = comm.isend_owned(vec![7.0; ELEMENTS], 0, 0).unwrap();
        comm.recv(&mut plain[..], 0, 0).unwrap();
        sent.wait().1.unwrap();
        assert_eq!(plain.unregister().unwrap(), [7.0; ELEMENTS]);
        let device = Arc::new(FakeDevice::new(0));
        let short = world_of(&device).register(vec![1u8; 1000]).unwrap();
        assert!(!short.is_registered() && device.registered().is_empty());
    }

    /// The first device takes the memory, the second refuses: nothing stays registered, and the memory comes back.
    #[test]
    fn an_error_names_the_device_and_gives_the_memory_back() {
        let (world, [first, _]) = two(refuse);
        let refused = world.register(numbers()).unwrap_err();
        assert_eq!(refused.buffer, numbers());
        assert_eq!(refused.to_string(), "the second: register failed: its limit is reached");
        assert!(first.registered().is_empty());
    }

    #[test]
    fn a_device_that_registers_none_is_passed_over() {
        let (world, devices) = two(|call| match call {
            Call::Register(_) => Err(DeviceError::Unsupported { what: "registering host memory" }),
            _ => Ok(()),
        });
        let memory = world.register(numbers()).unwrap();
        assert!(memory.is_registered() && devices[0].registered().len() == 1);
        assert_eq!(memory.unregister().unwrap(), numbers());
        assert!(devices[0].registered().is_empty());
    }

    #[test]
    fn memory_is_not_freed_if_a_device_panics() {
        for registers in [true, false] {
            let (world, devices) = two(move |call| match call {
                Call::Register(_) if registers => panic!("while it registers"),
                Call::Unregister(_) if !registers => panic!("while it unregisters"),
                _ => Ok(()),
            });
            let used = || drop(world.register(numbers()));
            assert!(catch_unwind(AssertUnwindSafe(used)).is_err());
            let known = devices.map(|device| device.registered()).concat();
            assert_eq!(known.len(), 1);
            // Were it freed, so long a vector would likely lie there again.
            let other = numbers();
            assert_ne!(other.as_ptr().addr() as u64, known[0].0);
        }
    }

    /// The second device refuses the memory, and the first one keeps it.
    #[test]
    fn memory_that_is_refused_and_kept_does_not_come_back() {
        let first = Arc::new(FakeDevice::new(0));
        let keeping = Wrapped::new(Arc::clone(&first) as _, |call| match call {
            Call::Unregister(_) => Err(DeviceError::Unsupported { what: "letting go" }),
            _ => Ok(()),
        });
        let refusing = Wrapped::new(Arc::new(FakeDevice::new(1)), refuse);
        let builder = World::builder().open_devices(false).device(Arc::new(keeping));
        let world = builder.device(Arc::new(refusing)).init().unwrap();
        let refused = world.register(numbers()).unwrap_err();
        assert_eq!(refused.to_string(), "the second: register failed: its limit is reached");
        assert!(refused.buffer.is_empty());
        let other = numbers();
        assert_ne!(other.as_ptr().addr() as u64, first.registered()[0].0);
    }

    #[test]
    fn memory_that_a_device_keeps_is_not_freed() {
        let (device, keeps) = (Arc::new(FakeDevice::new(0)), Arc::new(AtomicBool::new(true)));
        let kept = Arc::clone(&keeps);
        let keeping = Wrapped::new(Arc::clone(&device) as _, move |call| match call {
            Call::Unregister(_) if kept.load(Ordering::Relaxed) => {
                Err(DeviceError::Unsupported { what: "letting go" })
            }
            _ => Ok(()),
        });
        let builder = World::builder().open_devices(false);
        let world = builder.device(Arc::new(keeping)).init().unwrap();
        let memory = world.register(numbers()).unwrap();
        let region = memory.region();
        assert!(matches!(memory.unregister(), Err(Error::Memory(_))));
        let dropped = world.register(numbers()).unwrap();
        assert_ne!(dropped.region().start(), region.start(), "that memory is in use");
        drop(dropped);
        assert_eq!(device.registered().len(), 2);
    }
}
