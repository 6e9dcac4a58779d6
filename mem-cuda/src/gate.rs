//! Gates: a stream waits for the host, and no thread of the host waits.
//!
//! A gate is a word in page-locked memory that the device itself looks at (`cuStreamWaitValue32`).
//! Words come from a pool of the context's. A word only ever grows, and a stream passes when it has
//! reached the gate's number or is past it; so a word can serve the next gate as soon as the former
//! one is open, whether or not the stream has looked yet.
//!
//! ```text
//!  word   0 number of the last gate that was opened:4 | unused to the end of the line of 64 bytes
//! ```
//!
//! The memory is never given back while the context lives: a stream of the user's may look at it
//! long after its gate is gone. It ends with the context.

use crate::context::{Context, lock};
use crate::driver::WaitValue;
use crate::{CudaDevice, CudaError, Stream};
use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
use gapless_mem::DeviceError;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes that are page-locked at a time.
const PAGE: u64 = 4096;

/// Bytes from one word to the next: no two in one line of the CPU's cache.
const SPACING: u64 = 64;

/// A word that nobody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    /// Where the host finds it.
    host: u64,
    /// Where streams find it.
    device: u64,
    /// What it holds: the number of its last gate.
    number: u32,
}

/// Words for gates.
#[derive(Debug, Default)]
pub(crate) struct Words(Mutex<Vec<Word>>);

impl Words {
    /// A word that nobody uses. The context is bound.
    fn take(&self, context: &Context) -> Result<Word, CudaError> {
        let mut free = lock(&self.0);
        if let Some(word) = free.pop() {
            return Ok(word);
        }
        let fault = |fault| context.fault_of(PAGE, fault);
        let host = context.driver.host_alloc(PAGE).map_err(fault)?;
        let device = match context.driver.host_device_pointer(host) {
            Ok(device) => device,
            Err(found) => {
                // SAFETY: it was allocated above and nobody else knows it.
                if let Err(fault) = unsafe { context.driver.host_free(host) } {
                    context.grumble(fault);
                }
                return Err(fault(found));
            }
        };
        let words = (0..PAGE / SPACING).map(|index| {
            let at = index * SPACING;
            let word = Word { host: host + at, device: device + at, number: 0 };
            word.write(0);
            word
        });
        let mut words = words.collect::<Vec<_>>().into_iter();
        let first = words.next();
        free.extend(words);
        Ok(first.expect("a page holds words"))
    }
}

impl Word {
    fn shared(&self) -> &AtomicU32 {
        let at = usize::try_from(self.host).unwrap_or(0);
        let at = std::ptr::with_exposed_provenance_mut(at);
        // SAFETY: four aligned bytes of a page that `Words::take` allocated and that lives as long as
        // the context does, which whoever has the word holds; the host only ever uses them so.
        unsafe { AtomicU32::from_ptr(at) }
    }

    /// All that this thread wrote before is there for whoever sees the number.
    fn write(&self, number: u32) {
        self.shared().store(number, Ordering::Release);
    }
}

/// A closed gate on a stream: work that was enqueued on the stream after the gate starts when the gate
/// is opened. Dropping it opens it, so that no stream is left waiting; whoever must not let later
/// work run (because what it was to work on never came) has to say so to that work.
///
/// Until it is open, whatever waits for the whole device or for that stream waits for whoever opens
/// it: freeing device or page-locked memory, closing imported memory, loading a kernel for the
/// first time. The thread that is to open it must do none of that before. Other streams go on, although they
/// share a few queues of the hardware (64 streams were tried on an H200; see `tests/hardware/gate.rs`).
#[must_use = "a gate that is dropped is open"]
pub struct StreamGate {
    context: Arc<Context>,
    word: Word,
}

impl StreamGate {
    /// Lets the stream go on. All that this thread wrote before is there for the stream's later work.
    pub fn open(&self) {
        self.word.write(self.word.number);
    }

    /// Whether it was opened.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.word.shared().load(Ordering::Acquire) == self.word.number
    }
}

impl Drop for StreamGate {
    fn drop(&mut self) {
        self.open();
        lock(&self.context.words.0).push(self.word);
    }
}

impl std::fmt::Debug for StreamGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = if self.is_open() { "open" } else { "closed" };
        write!(f, "StreamGate on {}, {state}", self.context.name)
    }
}

impl CudaDevice {
    /// Whether streams of this device can wait at a [`StreamGate`]: the driver has the call and says that
    /// the device's streams can work on memory, and `CUDA_DEVICE_MAX_CONNECTIONS` leaves this process at least
    /// four hardware queues, or is not set.
    #[must_use]
    pub fn has_gates(&self) -> bool {
        can(self.context()).is_ok()
    }
}

/// The variable that sets how many hardware queues a process has for each device; 8 if it is not set. Streams share
/// them: what is behind a closed gate in its queue waits, too, and that may be what moves the message that is to open
/// the gate. Beside one gate on an H200, of 40 other streams none goes on with one queue, 32 with two, all with four
/// or more.
const QUEUES: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// With fewer queues there are no gates.
const QUEUES_MIN: u32 = 4;

/// Whether the variable sets fewer queues than gates need.
fn too_few(queues: Option<&str>) -> bool {
    let number = queues.and_then(|queues| queues.trim().parse().ok());
    number.is_some_and(|queues: u32| queues < QUEUES_MIN)
}

/// Whether the driver has the call and the device is fit for it, with queues enough. The attribute is that of the
/// call's 64-bit sister, for which alone there is one; whoever has that has both. The error says what there is not.
fn can(context: &Context) -> Result<WaitValue, &'static str> {
    let asked = Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS as u32;
    let answer = context.driver.device_attribute(context.device, asked);
    let function = context.driver.wait_value_function();
    let function = function.filter(|_| answer.is_ok_and(|value| value != 0));
    let function = function.ok_or("a stream that waits for a word in memory")?;
    if too_few(std::env::var(QUEUES).ok().as_deref()) {
        return Err("a stream that waits while CUDA_DEVICE_MAX_CONNECTIONS is less than 4");
    }
    Ok(function)
}

impl Stream {
    /// Closes the stream: what is enqueued later waits until the gate is opened or dropped.
    ///
    /// A process has few hardware queues for a device (`CUDA_DEVICE_MAX_CONNECTIONS`: 8 if not set), which its streams
    /// share. So if many gates are closed at once, or one waits for what is behind another, set the variable to 32
    /// before the process starts.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where [`CudaDevice::has_gates`] says no, and of a
    /// stream that is being captured; the driver's refusal (no page-locked memory left, say). The stream is
    /// then as it was.
    pub fn gate(&self) -> Result<StreamGate, CudaError> {
        let context = self.context();
        let function = can(context).map_err(|what| DeviceError::Unsupported { what })?;
        self.runs()?;
        let _bound = context.bind()?;
        let mut word = context.words.take(context)?;
        let before = word;
        word.number = word.number.wrapping_add(1);
        // SAFETY: the word lies in page-locked memory that lives as long as the context.
        let waits = unsafe {
            context.driver.stream_wait_value(function, self.raw(), word.device, word.number)
        };
        match waits {
            Ok(()) => Ok(StreamGate { context: Arc::clone(context), word }),
            Err(fault) => {
                lock(&context.words.0).push(before);
                Err(context.fault(fault))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::tests::fake::{self, State};

    fn stream() -> Stream {
        let context = Context::open(fake::driver(), 0).unwrap();
        Stream::create(&context).unwrap()
    }

    fn waits() -> Vec<(u64, u32)> {
        fake::with(|state| state.values.clone().unwrap())
    }

    /// What the device would see.
    fn seen((at, value): (u64, u32)) -> bool {
        let word = Word { host: at, device: at, number: value };
        i32::from_ne_bytes(word.shared().load(Ordering::Acquire).wrapping_sub(value).to_ne_bytes())
            >= 0
    }

    #[test]
    fn few_queues_are_too_few() {
        let cases = [(None, false), (Some("8"), false), (Some("4"), false), (Some("x"), false)];
        for (queues, few) in cases.into_iter().chain([(Some("3"), true), (Some(" 1"), true)]) {
            assert_eq!(too_few(queues), few, "{queues:?}");
        }
    }

    #[test]
    fn a_gate_is_passed_when_it_is_opened_or_dropped() {
        fake::set(State { values: Some(Vec::new()), ..State::default() });
        let stream = stream();
        let (first, second) = (stream.gate().unwrap(), stream.gate().unwrap());
        assert!(!seen(waits()[0]) && !seen(waits()[1]));
        assert!(!first.is_open() && !second.is_open());
        first.open();
        assert!(first.is_open() && seen(waits()[0]) && !seen(waits()[1]));
        drop(second);
        assert!(seen(waits()[1]));
    }

    #[test]
    fn a_word_serves_one_gate_after_the_other_and_former_gates_stay_open() {
        fake::set(State { values: Some(Vec::new()), ..State::default() });
        let stream = stream();
        for round in 0..1000usize {
            let gate = stream.gate().unwrap();
            let all = waits();
            assert_eq!(all.len(), round + 1);
            assert!(all[..round].iter().all(|&wait| seen(wait)) && !seen(all[round]));
            drop(gate);
        }
        let words: std::collections::HashSet<u64> = waits().iter().map(|wait| wait.0).collect();
        assert_eq!(words.len(), 1, "one at a time needs one word");
        // More than a page of them at once.
        let many: Vec<StreamGate> = (0..200).map(|_| stream.gate().unwrap()).collect();
        let words: std::collections::HashSet<u64> = waits()[1000..].iter().map(|w| w.0).collect();
        assert_eq!(words.len(), 200);
        assert!(many.iter().all(|gate| !gate.is_open()));
    }

    #[test]
    fn numbers_wrap() {
        fake::set(State { values: Some(Vec::new()), ..State::default() });
        let stream = stream();
        drop(stream.gate().unwrap());
        let words = &stream.context().words;
        for word in lock(&words.0).iter_mut() {
            word.number = u32::MAX - 1;
            word.write(word.number);
        }
        for _ in 0..4 {
            let gate = stream.gate().unwrap();
            let wait = *waits().last().unwrap();
            assert!(!seen(wait));
            gate.open();
            assert!(seen(wait));
        }
    }

    #[test]
    fn who_has_no_such_call_says_so_and_a_refusal_costs_no_word() {
        fake::set(State::default());
        let error = stream().gate().unwrap_err();
        assert!(matches!(error, CudaError::Refused(DeviceError::Unsupported { .. })), "{error}");
        fake::set(State { values: Some(Vec::new()), value: 900, ..State::default() });
        let stream = stream();
        for _ in 0..100 {
            let error = stream.gate().unwrap_err();
            assert!(matches!(error, CudaError::Failed { code: 900, .. }), "{error}");
        }
        fake::with(|state| state.value = 0);
        let gate = stream.gate().unwrap();
        assert!(waits().iter().all(|wait| *wait == waits()[0]), "always the same word and number");
        assert!(!gate.is_open());
    }
}
