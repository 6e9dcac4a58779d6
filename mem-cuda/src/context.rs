//! A device's primary context: made current while it is needed, marked when it is lost.
//!
//! The driver's calls work on whatever context is current on the calling thread. Callers of ours may
//! use other devices themselves, and the CUDA runtime finds the thread's device by its current
//! context; so what was current is current again after each call of ours. A thread that does much of
//! our work binds once (`CudaDevice::bind_thread`), which makes that free.

use crate::driver::{Current, Driver, Fault, RawContext, RawEvent, RawStream};
use crate::error::code;
use crate::{CudaError, event::EventPool, gate::Words};
use std::collections::HashMap;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Locks; a thread that panicked while it held the lock left nothing half done (every critical
/// section here is one operation on a collection).
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device's primary context in this process; shared by everything that works on the device.
pub(crate) struct Context {
    pub(crate) driver: &'static Driver,
    pub(crate) ordinal: u32,
    /// The driver's name for the device.
    pub(crate) device: c_int,
    /// `cuda:` and the ordinal.
    pub(crate) name: String,
    pub(crate) events: EventPool,
    pub(crate) words: Words,
    /// `None` only while it is being dropped.
    raw: Option<RawContext>,
    /// A stream that carries no work, only events from stream to stream.
    service: OnceLock<RawStream>,
    broken: OnceLock<CudaError>,
}

/// The context is current on this thread while this lives.
pub(crate) struct Bound<'a> {
    context: &'a Context,
    before: Option<Current>,
    /// What is current belongs to a thread.
    _thread: PhantomData<*mut ()>,
}

impl Context {
    /// The context of the device of this ordinal; all callers share one.
    pub(crate) fn open(driver: &'static Driver, ordinal: u32) -> Result<Arc<Context>, CudaError> {
        type Opened = HashMap<(usize, u32), Weak<Context>>;
        static OPENED: OnceLock<Mutex<Opened>> = OnceLock::new();
        let mut opened = lock(OPENED.get_or_init(Mutex::default));
        let key = (std::ptr::from_ref(driver).addr(), ordinal);
        if let Some(context) = opened.get(&key).and_then(Weak::upgrade) {
            return Ok(context);
        }
        let count = driver.device_count().map_err(|fault| driver.refusal(fault))?;
        if count == 0 {
            return Err(CudaError::NoDevice);
        }
        if ordinal >= count {
            return Err(CudaError::WrongOrdinal { ordinal, count });
        }
        let device = driver.device_get(ordinal).map_err(|fault| driver.refusal(fault))?;
        let raw = driver.primary_retain(device).map_err(|fault| driver.refusal(fault))?;
        let context = Arc::new(Context {
            driver,
            ordinal,
            device,
            name: format!("cuda:{ordinal}"),
            events: EventPool::default(),
            words: Words::default(),
            raw: Some(raw),
            service: OnceLock::new(),
            broken: OnceLock::new(),
        });
        opened.insert(key, Arc::downgrade(&context));
        Ok(context)
    }

    /// The driver's handle.
    pub(crate) fn raw(&self) -> &RawContext {
        self.raw.as_ref().expect("it is taken only when the context is dropped")
    }

    /// Makes the context current on this thread.
    ///
    /// # Errors
    /// The device is lost, or the driver refuses.
    pub(crate) fn bind(&self) -> Result<Bound<'_>, CudaError> {
        if let Some(lost) = self.broken.get() {
            return Err(lost.clone());
        }
        self.bind_even_if_lost().map_err(|fault| self.fault(fault))
    }

    fn bind_even_if_lost(&self) -> Result<Bound<'_>, Fault> {
        let now = self.driver.current()?;
        let before = if now.is(self.raw()) {
            None
        } else {
            self.driver.set_current(self.raw())?;
            Some(now)
        };
        Ok(Bound { context: self, before, _thread: PhantomData })
    }

    /// Makes the context current on this thread for good.
    pub(crate) fn bind_for_good(&self) -> Result<(), CudaError> {
        if let Some(lost) = self.broken.get() {
            return Err(lost.clone());
        }
        self.driver.set_current(self.raw()).map_err(|fault| self.fault(fault))
    }

    /// What a refused call means. Sticky ones mark the device; later calls give the first of them.
    pub(crate) fn fault(&self, fault: Fault) -> CudaError {
        let reason = self.driver.describe(fault.code);
        if code::is_sticky(fault.code) {
            return self
                .broken
                .get_or_init(|| CudaError::Sticky {
                    device: self.name.clone(),
                    operation: fault.call,
                    reason,
                })
                .clone();
        }
        CudaError::Failed {
            device: self.name.clone(),
            operation: fault.call,
            code: fault.code,
            reason,
        }
    }

    /// The same for a call that asked for `len` bytes.
    pub(crate) fn fault_of(&self, len: u64, fault: Fault) -> CudaError {
        if fault.code != code::OUT_OF_MEMORY {
            return self.fault(fault);
        }
        CudaError::OutOfMemory {
            device: self.name.clone(),
            len,
            reason: self.driver.describe(fault.code),
        }
    }

    /// Why the device is lost, if it is.
    pub(crate) fn lost(&self) -> Option<&CudaError> {
        self.broken.get()
    }

    /// The service stream, made at first use. The context is bound.
    pub(crate) fn service(&self) -> Result<&RawStream, Fault> {
        if let Some(stream) = self.service.get() {
            return Ok(stream);
        }
        let made = self.driver.stream_create()?;
        if let Err(spare) = self.service.set(made) {
            // SAFETY: made two lines above, and nobody else has seen it.
            unsafe { self.driver.stream_destroy(spare) }?;
        }
        Ok(self.service.get().expect("set by this thread or by another"))
    }

    /// Ends events that nobody will use again.
    pub(crate) fn end_events(&self, events: impl IntoIterator<Item = RawEvent>) {
        for event in events {
            if let Err(fault) = self.driver.event_destroy(event) {
                self.grumble(fault);
            }
        }
    }

    /// For calls that tidy up: there is nobody to tell but the log. At the process's end the driver
    /// may be gone already, and a lost device refuses everything; neither is worth a word.
    pub(crate) fn grumble(&self, fault: Fault) {
        const DEINITIALIZED: u32 = 4;
        if fault.code != DEINITIALIZED && !code::is_sticky(fault.code) {
            let reason = self.driver.describe(fault.code);
            tracing::warn!(device = self.name, call = fault.call, reason, "tidying up failed");
        }
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        // SAFETY: it was current on this thread when this guard was made, and a context that is
        // current is not ended meanwhile by its owner, who is this thread's caller.
        if let Err(fault) = unsafe { self.context.driver.restore(before) } {
            self.context.grumble(fault);
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let service = self.service.take();
        if let Ok(bound) = self.bind_even_if_lost() {
            self.end_events(self.events.take_all());
            if let Some(stream) = service {
                // SAFETY: `service` made it with this driver; nothing borrows it any more.
                if let Err(fault) = unsafe { self.driver.stream_destroy(stream) } {
                    self.grumble(fault);
                }
            }
            drop(bound);
        }
        if let Some(raw) = self.raw.take()
            && let Err(fault) = self.driver.primary_release(raw)
        {
            self.grumble(fault);
        }
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::tests::fake::{self, State};

    fn context() -> Arc<Context> {
        Context::open(fake::driver(), 0).unwrap()
    }

    #[test]
    fn what_was_current_is_current_again() {
        fake::set(State { current: 0x999, ..State::default() });
        let context = context();
        let bound = context.bind().unwrap();
        assert_eq!(fake::with(|state| state.current), 0x1000);
        let inner = context.bind().unwrap();
        drop(inner);
        assert_eq!(fake::with(|state| state.current), 0x1000);
        drop(bound);
        assert_eq!(fake::with(|state| state.current), 0x999);
        context.bind_for_good().unwrap();
        drop(context.bind().unwrap());
        assert_eq!(fake::with(|state| state.current), 0x1000);
    }

    #[test]
    fn one_context_a_device() {
        fake::set(State::default());
        let driver = fake::driver();
        let first = Context::open(driver, 0).unwrap();
        assert!(Arc::ptr_eq(&first, &Context::open(driver, 0).unwrap()));
        let wrong = Context::open(driver, 1).unwrap_err();
        assert_eq!(wrong, CudaError::WrongOrdinal { ordinal: 1, count: 1 });
        fake::with(|state| state.devices = 0);
        assert_eq!(Context::open(driver, 2).unwrap_err(), CudaError::NoDevice);
    }

    #[test]
    fn the_first_sticky_error_is_what_all_later_calls_give() {
        fake::set(State::default());
        let context = context();
        assert!(context.lost().is_none());
        let passing = context.fault(Fault { call: "cuMemFree", code: 1 });
        assert!(matches!(passing, CudaError::Failed { code: 1, .. }));
        assert!(context.bind().is_ok());
        let first = context.fault(Fault { call: "cuEventQuery", code: 700 });
        assert!(matches!(first, CudaError::Sticky { operation: "cuEventQuery", .. }));
        let second = context.fault(Fault { call: "cuMemFree", code: 719 });
        assert_eq!(first, second);
        assert_eq!(context.bind().err().unwrap(), first);
        assert_eq!(context.bind_for_good().unwrap_err(), first);
    }
}
