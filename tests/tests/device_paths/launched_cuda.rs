//! Kernels of CUDA as tasks that are launched.

use gapless::xtq::{CudaLauncher, Launcher};
use gapless::xtq::{Kernel, Launch, Put, QueueOptions, Rank, Refusal, XtqError};
use gapless::{CudaModule as Module, World};
use gapless_mem::Lease;
use gapless_mem::{Device, DeviceError, Region};
use gapless_mem_cuda::CudaDriver;
use gapless_mem_cuda::CudaError;
use std::fmt;
use std::io::Write;
use std::sync::Arc;

/// `turn` adds the payload's words, times a factor, to the buffer's, in each group those of its last item to that of its
/// first, by way of shared memory; items are counted over three dimensions, group after group. A launch with too little
/// shared memory does nothing. `narrow` has a parameter that no task has.
const PTX: &str = r"
.version 7.8
.target sm_80
.address_size 64
.extern .shared .align 8 .b8 room[];

.visible .entry turn(.param .u64 buffer, .param .u64 payload, .param .u64 bytes, .param .u64 factor)
{
    .reg .pred %p1, %p2;
    .reg .b32 %x, %y, %z, %item, %items, %group, %from, %size, %need;
    .reg .b64 %buffer, %payload, %bytes, %factor, %at, %end, %value, %old;
    ld.param.u64 %buffer, [buffer];
    ld.param.u64 %payload, [payload];
    ld.param.u64 %bytes, [bytes];
    ld.param.u64 %factor, [factor];
    mov.u32 %x, %ntid.x;
    mov.u32 %y, %ntid.y;
    mov.u32 %z, %tid.z;
    mov.u32 %item, %tid.y;
    mad.lo.u32 %item, %z, %y, %item;
    mov.u32 %z, %tid.x;
    mad.lo.u32 %item, %item, %x, %z;
    mul.lo.u32 %items, %x, %y;
    mov.u32 %z, %ntid.z;
    mul.lo.u32 %items, %items, %z;
    mov.u32 %x, %nctaid.x;
    mov.u32 %y, %nctaid.y;
    mov.u32 %z, %ctaid.z;
    mov.u32 %group, %ctaid.y;
    mad.lo.u32 %group, %z, %y, %group;
    mov.u32 %z, %ctaid.x;
    mad.lo.u32 %group, %group, %x, %z;
    mov.u32 %size, %dynamic_smem_size;
    shl.b32 %need, %items, 3;
    setp.gt.u32 %p1, %need, %size;
    @%p1 bra DONE;
    mad.lo.u32 %group, %group, %items, %item;
    mul.wide.u32 %at, %group, 8;
    add.u64 %end, %at, 8;
    mov.u64 %value, 0;
    setp.gt.u64 %p2, %end, %bytes;
    @%p2 bra STORE;
    add.u64 %payload, %payload, %at;
    ld.global.u64 %value, [%payload];
STORE:
    mov.u32 %x, room;
    shl.b32 %y, %item, 3;
    add.u32 %y, %x, %y;
    st.shared.u64 [%y], %value;
    bar.sync 0;
    sub.u32 %from, %items, %item;
    sub.u32 %from, %from, 1;
    shl.b32 %from, %from, 3;
    add.u32 %from, %x, %from;
    ld.shared.u64 %value, [%from];
    mul.lo.u64 %value, %value, %factor;
    add.u64 %buffer, %buffer, %at;
    ld.global.u64 %old, [%buffer];
    add.u64 %old, %old, %value;
    st.global.u64 [%buffer], %old;
DONE:
    ret;
}

.visible .entry narrow(.param .u64 buffer, .param .u64 payload, .param .u64 bytes, .param .u32 factor)
{
    ret;
}
";

const PAYLOAD: u32 = 8 * 96;
/// `CUDA_ERROR_JIT_COMPILER_NOT_FOUND`.
const NO_COMPILER: u32 = 221;

fn skip(why: &dyn fmt::Display) {
    let line = format!("SKIPPED: kernels of CUDA as tasks: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn put(launch: Launch) -> Put {
    let arguments = [0, 0, 3].map(u64::to_le_bytes).concat();
    let words: Vec<u8> = (0..96u64).flat_map(u64::to_le_bytes).collect();
    Put::kernel(Rank(0), 1, 1, launch, arguments).payload(words)
}

#[test]
fn kernels_run_as_tasks_over_the_packets_grid() {
    let device = match CudaDriver::load().and_then(|driver| driver.device(0)) {
        Ok(device) => Arc::new(device),
        Err(error) => return skip(&error),
    };
    // SAFETY: the driver compiles it.
    let module = match unsafe { Module::load(&device, PTX.as_bytes()) } {
        Ok(module) => module,
        Err(error @ CudaError::Failed { code: NO_COMPILER, .. }) => return skip(&error),
        Err(error) => panic!("{error}"),
    };
    let region = device.allocate(PAYLOAD.into()).unwrap();
    let zeros = vec![0u8; PAYLOAD as usize];
    // SAFETY: both live until the copy has ended, and nothing else touches them.
    unsafe { device.copy(region, Region::of(&zeros), &[]) }.unwrap().wait().unwrap();
    // SAFETY: it is freed last.
    let lease = unsafe { Lease::kept_by_caller(region) };
    let launcher = CudaLauncher::new(Arc::clone(&device)).unwrap();
    let error = launcher.kernel(&module, c"narrow").unwrap_err();
    assert!(matches!(error, CudaError::Refused(DeviceError::Unsupported { .. })), "{error}");
    let object = launcher.kernel(&module, c"turn").unwrap();
    let limits = launcher.limits_of(object);
    let world = World::init().unwrap();
    let tasks = world.xtq();
    for (index, argument_bytes) in [(1, 24), (2, 32)] {
        let launcher = Arc::clone(&launcher) as Arc<dyn Launcher>;
        let kernel = Kernel::new(launcher, object, argument_bytes, PAYLOAD);
        let kernel = kernel.buffer(lease.clone()).grid_max([4, 6, 4]);
        // SAFETY: the grid has as many items as the buffer has words; it terminates.
        unsafe { tasks.register_kernel(index, kernel) }.unwrap();
    }
    tasks.register_queue(1, QueueOptions { width: 2, ..QueueOptions::default() }).unwrap();
    (0..2).for_each(|_| tasks.post(vec![0; PAYLOAD as usize]));
    let launch = |local_bytes| Launch {
        grid: [4, 6, 4],
        group: [2, 3, 2],
        local_bytes,
        ..Launch::linear(1, 1, 0)
    };
    // The last has too little shared memory for its group, and does nothing. The largest is more than 48 KiB.
    let most = limits.local_bytes_max / 16 * 16;
    assert!(most > 48 << 10, "{limits:?}");
    for local_bytes in [96, 48 << 10, most, 16] {
        let put = tasks.put(put(launch(local_bytes)).acknowledged()).unwrap();
        tasks.wait_for(&put).unwrap();
    }
    let refused = tasks.put(put(launch(most + 16)).acknowledged()).unwrap();
    let refused = tasks.wait_for(&refused);
    let Err(gapless::Error::Task(XtqError::Refused { refusal: Refusal::Group { .. }, .. })) =
        refused
    else {
        panic!("{refused:?}")
    };
    // Other words than the kernel has parameters.
    let arguments = [0, 0, 3, 4].map(u64::to_le_bytes).concat();
    let wrong = Put::kernel(Rank(0), 2, 1, launch(96), arguments).acknowledged();
    let wrong = tasks.put(wrong).unwrap();
    let failed = tasks.wait_for(&wrong);
    assert!(matches!(failed, Err(gapless::Error::Task(XtqError::Failed { .. }))), "{failed:?}");
    world.finalize().unwrap();
    let mut back = vec![0u8; PAYLOAD as usize];
    // SAFETY: as above; the tasks are over.
    unsafe { device.copy(Region::of_mut(&mut back), region, &[]) }.unwrap().wait().unwrap();
    let found: Vec<u64> =
        back.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let turned = |at: u64| 9 * (at / 12 * 12 + 11 - at % 12);
    assert_eq!(found, (0..96).map(turned).collect::<Vec<_>>());
    // SAFETY: as above, and the world is left.
    unsafe { device.free(region) }.unwrap();
}
