//! An application captures its stream into a graph while this crate is used, on its thread and on another:
//! no call of ours may end the capture, become part of it, or fail because of it; and a captured stream
//! that is given to us is refused by name.

use crate::gpu::{Memory, Turn, device, finish, function, kernels, read, space_at, wait, write};
use cudarc::driver::sys::{self, CUgraph, CUstreamCaptureMode_enum as Mode};
use gapless_mem::{Device, DeviceError, Region};
use gapless_mem_cuda::{Argument, CudaDevice, CudaError, Function, Grid, Module, Stream};
use std::sync::Arc;

/// A stream of the application, and a kernel of its.
struct Application<'a> {
    device: &'a Turn,
    stream: Stream,
    add: Function,
    numbers: Memory,
}

fn check(what: &str, answer: sys::CUresult) {
    assert_eq!(answer as u32, 0, "{what}");
}

impl Application<'_> {
    /// Captures one launch, and has `meanwhile` done before the capture ends; the graph must hold that launch,
    /// nothing else, and run.
    fn captures(&mut self, what: &str, mode: Mode, meanwhile: impl FnOnce(&Stream)) {
        write(self.device, self.numbers.region(), &[0; 1024]);
        let handle = self.stream.handle().cast();
        // SAFETY: a stream that lives, and that nothing is on.
        check(what, unsafe { sys::cuStreamBeginCapture_v2(handle, mode) });
        let at = self.numbers.region().start();
        let arguments = [Argument::of(&at), Argument::of(&256u32), Argument::of(&7u32)];
        // SAFETY: the kernel changes `numbers` when the graph runs, below.
        unsafe { self.add.launch(&self.stream, Grid::line(2, 128), &arguments) }.unwrap();
        meanwhile(&self.stream);
        let mut graph: CUgraph = std::ptr::null_mut();
        // SAFETY: the capture was started above.
        let ended = unsafe { sys::cuStreamEndCapture(handle, &raw mut graph) };
        check(&format!("{what}, {mode:?}: the capture was ended by it"), ended);
        let mut nodes = 0;
        // SAFETY: the graph was made above; only its number of nodes is asked for.
        let asked = unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &raw mut nodes) };
        check(what, asked);
        assert_eq!(nodes, 1, "{what}, {mode:?}: what else was captured?");
        let mut runs = std::ptr::null_mut();
        // SAFETY: the graph lives, and so does what its kernel works on.
        check(what, unsafe { sys::cuGraphInstantiateWithFlags(&raw mut runs, graph, 0) });
        // SAFETY: as above.
        check(what, unsafe { sys::cuGraphLaunch(runs, handle) });
        finish(&self.stream);
        let sum = 7u32.to_ne_bytes();
        assert!(read(self.device, self.numbers.region()).chunks(4).all(|number| number == sum));
        // SAFETY: it has run, and is not used again.
        check(what, unsafe { sys::cuGraphExecDestroy(runs) });
        // SAFETY: as above.
        check(what, unsafe { sys::cuGraphDestroy(graph) });
    }
}

type Step = (&'static str, fn(&Arc<CudaDevice>));

/// Everything that is done with a device while messages are in flight.
const STEPS: &[Step] = &[
    ("allocating and freeing", |device| {
        drop(Memory::on(device, 8 << 20));
        drop(Memory::Own(Arc::clone(device), device.allocate_shareable(4096).unwrap()));
        drop(Memory::Own(Arc::clone(device), device.allocate_managed(4096).unwrap()));
    }),
    ("page-locking", |device| {
        // Longer than anything that is kept.
        drop(device.pinned(3 << 20).unwrap());
        let mut bytes = vec![0u8; 1 << 20];
        let host = Region::of_mut(&mut bytes);
        // SAFETY: the bytes live until they are unregistered.
        unsafe { device.register(host) }.unwrap();
        // SAFETY: no work uses them.
        unsafe { device.unregister(host) }.unwrap();
    }),
    ("copies", |device| {
        for mut memory in Memory::of_every_kind(device, 100_000) {
            let bytes: Vec<u8> = (0..100_000u32).map(|at| at.to_le_bytes()[1]).collect();
            write(device, memory.region(), &bytes);
            assert!(read(device, memory.region()) == bytes);
        }
        let (mut to, mut from) = (Memory::on(device, 4096), Memory::on(device, 4096));
        // SAFETY: both live until the copy is waited for.
        let rows =
            unsafe { device.copy_2d(to.region(), 64, from.region(), 128, 32, 32, &[]) }.unwrap();
        wait(&rows);
    }),
    ("streams, events and marks", |device| {
        let (one, two) = (device.stream().unwrap(), device.stream().unwrap());
        let before = one.mark().unwrap();
        two.wait_for(&[one.record().unwrap()]).unwrap();
        wait(&two.record().unwrap());
        let after = one.mark().unwrap();
        finish(&one);
        assert!(before.until(&after).unwrap().is_some());
        assert!(one.is_idle().unwrap() && !one.is_captured().unwrap());
    }),
    ("kernels", |device| {
        // SAFETY: written by hand, and checked by the driver's compiler.
        let module = unsafe { Module::load(device, crate::gpu::PTX.as_bytes()) }.unwrap();
        let add = function(&module, c"add");
        let mut memory = Memory::on(device, 1024);
        let stream = device.stream().unwrap();
        let at = memory.region().start();
        let arguments = [Argument::of(&at), Argument::of(&256u32), Argument::of(&1u32)];
        // SAFETY: the memory lives until the kernel is waited for.
        unsafe { add.launch(&stream, Grid::line(2, 128), &arguments) }.unwrap();
        finish(&stream);
    }),
    ("questions", |device| {
        let mut memory = Memory::on(device, 4096);
        let region = memory.region();
        assert_eq!(space_at(device, region.start()), Some(region.space()));
        assert_eq!(device.buffer_id(region), device.buffer_id(region));
        assert!(device.allocation(region).is_some());
        assert!(device.memory_now().unwrap().1 > 0);
        let _ = device.mps();
    }),
    ("keys", |device| {
        let mut memory = Memory::on(device, 4096);
        let back = device.import(device.export(memory.region()).unwrap()).unwrap();
        // SAFETY: nothing uses it.
        unsafe { device.release(back) }.unwrap();
        let stream = device.stream().unwrap();
        let gapless_mem::Completion::Pending(work) = stream.record().unwrap() else { return };
        assert!(!work.export().unwrap().is_empty());
    }),
    ("gates", |device| {
        let stream = device.stream().unwrap();
        match stream.gate() {
            Ok(gate) => gate.open(),
            Err(error) => assert!(!device.has_gates(), "{error}"),
        }
        finish(&stream);
    }),
];

#[test]
fn what_an_application_captures_is_left_alone() {
    const TEST: &str = "beside a capture";
    let Some(device) = device(TEST) else { return };
    let Some(module) = kernels(TEST, &device) else { return };
    device.bind_thread().unwrap();
    let owner = device.stream().unwrap();
    // SAFETY: `owner` outlives it.
    let stream = unsafe { device.adopt_stream(owner.handle()) };
    let add = function(&module, c"add");
    let numbers = Memory::on(&device, 1024);
    let mut application = Application { device: &device, stream, add, numbers };
    let modes = [
        Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
    ];
    let mut wrong = Vec::new();
    for mode in modes {
        application.captures("nothing", mode, |_| {});
        for (what, step) in STEPS {
            for other_thread in [false, true] {
                let place = if other_thread { "another thread" } else { "its thread" };
                let what = format!("{what} on {place}");
                let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    application.captures(&what, mode, |_| {
                        // A thread starts with the usual mode, and has it back when it is done.
                        std::thread::scope(|threads| {
                            if other_thread {
                                threads.spawn(|| step(&device)).join().unwrap();
                            } else {
                                step(&device);
                            }
                        });
                    });
                }));
                if caught.is_err() {
                    wrong.push(format!("{what}, {mode:?}"));
                    // What is left of the capture.
                    let mut graph: CUgraph = std::ptr::null_mut();
                    // SAFETY: at worst there is no capture to be ended.
                    let _ =
                        unsafe { sys::cuStreamEndCapture(owner.handle().cast(), &raw mut graph) };
                }
            }
        }
        application.captures("a captured stream", mode, |stream| {
            assert!(stream.is_captured().unwrap());
            let work = owner_work(&device);
            for error in [
                stream.record().unwrap_err(),
                stream.mark().unwrap_err(),
                stream.wait_for(&[work]).err().unwrap_or_else(refused),
                stream.gate().unwrap_err(),
            ] {
                let by_name = matches!(error, CudaError::Refused(DeviceError::Unsupported { .. }));
                assert!(by_name, "{error}");
            }
        });
    }
    assert!(wrong.is_empty(), "calls that harmed a capture, or were harmed by one: {wrong:#?}");
}

/// What a wait for work that had ended already would have been refused with.
fn refused() -> CudaError {
    DeviceError::Unsupported { what: "" }.into()
}

/// Work that nobody has asked about yet.
fn owner_work(device: &CudaDevice) -> gapless_mem::Completion {
    device.stream().unwrap().record().unwrap()
}
