//! Kernels of OpenCL as tasks that are launched.

use gapless::World;
use gapless::xtq::OpenClLauncher;
use gapless::xtq::{Kernel, Launch, Put, QueueOptions, Rank, Refusal, XtqError};
use gapless_mem::Lease;
use gapless_mem::{Device, Region};
use gapless_mem_opencl::OpenClDevice;
use std::sync::Arc;

/// Adds the payload's words, times a factor, to the buffer's 320.
const ADD: &str = "
    kernel void add(
        global uchar *buffer, global const uchar *payload, ulong bytes, ulong factor
    ) {
        global ulong *sum = (global ulong *)buffer;
        global const ulong *more = (global const ulong *)payload;
        size_t at = get_global_id(0);
        if (at >= 320 || 8 * at + 8 > bytes) return;
        sum[at] += factor * more[at] + 1000 * (get_local_size(0) == 64);
    }";

/// Adds the payload's words to the buffer's 96, in each group those of its last item to that of its first, by way of local
/// memory. Items are counted over three dimensions, group after group.
const TURN: &str = "
    kernel void turn(
        global uchar *buffer, global const uchar *payload, ulong bytes, ulong factor, local uchar *room
    ) {
        local ulong *words = (local ulong *)room;
        size_t items = get_local_size(0) * get_local_size(1) * get_local_size(2);
        size_t item = (get_local_id(2) * get_local_size(1) + get_local_id(1)) * get_local_size(0) + get_local_id(0);
        size_t group = (get_group_id(2) * get_num_groups(1) + get_group_id(1)) * get_num_groups(0) + get_group_id(0);
        size_t at = group * items + item;
        if (at < 96 && 8 * at + 8 <= bytes) words[item] = ((global const ulong *)payload)[at];
        barrier(CLK_LOCAL_MEM_FENCE);
        if (at < 96) ((global ulong *)buffer)[at] += factor * words[items - 1 - item];
    }";

/// The device, with zeroed memory of so many words; or the test is skipped.
fn device(words: usize) -> Option<(Arc<OpenClDevice>, Lease)> {
    let device = match OpenClDevice::open(0) {
        Ok(device) => Arc::new(device),
        Err(error) => {
            let line = format!("SKIPPED: kernels of OpenCL as tasks: {error}\n");
            use std::io::Write;
            let _ = std::io::stderr().write_all(line.as_bytes());
            return None;
        }
    };
    let zeros = vec![0u8; 8 * words];
    let region = device.allocate(zeros.len() as u64).unwrap();
    // SAFETY: both live until the copy has ended, and nothing else touches them.
    unsafe { device.copy(region, Region::of(&zeros), &[]) }.unwrap().wait().unwrap();
    // SAFETY: it is freed last.
    Some((device, unsafe { Lease::kept_by_caller(region) }))
}

fn down(device: &OpenClDevice, region: Region) -> Vec<u64> {
    let mut back = vec![0u8; usize::try_from(region.len()).unwrap()];
    // SAFETY: both live until the copy has ended; the tasks are over.
    unsafe { device.copy(Region::of_mut(&mut back), region, &[]) }.unwrap().wait().unwrap();
    back.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

fn put(launch: Launch, words: u64) -> Put {
    let arguments = [0, 0, 3].map(u64::to_le_bytes).concat();
    let words: Vec<u8> = (0..words).flat_map(u64::to_le_bytes).collect();
    Put::kernel(Rank(0), 1, 1, launch, arguments).payload(words)
}

#[test]
fn kernels_run_as_tasks_over_the_packets_grid() {
    const ITEMS: u16 = 64;
    const GROUPS: u32 = 5;
    let count = GROUPS * u32::from(ITEMS);
    let Some((device, lease)) = device(count as usize) else { return };
    let region = lease.region();
    let world = World::init().unwrap();
    let tasks = world.xtq();
    let launcher = OpenClLauncher::new(Arc::clone(&device));
    let object = launcher.kernel(ADD, "", "add").unwrap();
    let done = tasks.signal_from(2, &[]);
    let kernel = Kernel::new(launcher, object, 24, 8 * count).buffer(lease).signal(&done);
    // SAFETY: it checks both ends, and terminates.
    unsafe { tasks.register_kernel(1, kernel) }.unwrap();
    tasks.register_queue(1, QueueOptions::default()).unwrap();
    tasks.post(vec![0; 8 * count as usize]);
    for _ in 0..2 {
        let put = put(Launch::linear(GROUPS, ITEMS, 0), count.into());
        let put = tasks.put(put.acknowledged()).unwrap();
        tasks.wait_for(&put).unwrap();
    }
    tasks.wait(&done).unwrap();
    let expected: Vec<u64> = (0..u64::from(count)).map(|at| 6 * at + 2000).collect();
    assert_eq!(down(&device, region), expected);
    let local_bytes = u32::from(u16::MAX) * 16;
    let local = Launch { local_bytes, ..Launch::linear(GROUPS, ITEMS, 0) };
    if device.info().local_bytes < local_bytes.into() {
        let refused = tasks.put(put(local, 0)).unwrap();
        let Err(gapless::Error::Task(XtqError::Refused { refusal, .. })) = tasks.wait_for(&refused)
        else {
            panic!("{refused:?}")
        };
        assert!(matches!(refusal, Refusal::Group { .. }));
    }
    world.finalize().unwrap();
    // SAFETY: the tasks are over, and the world is left.
    unsafe { device.free(region) }.unwrap();
}

#[test]
fn grids_have_three_dimensions_and_groups_local_memory() {
    let Some((device, lease)) = device(96) else { return };
    let region = lease.region();
    let world = World::init().unwrap();
    let tasks = world.xtq();
    let launcher = OpenClLauncher::new(Arc::clone(&device));
    let object = launcher.kernel(TURN, "", "turn").unwrap();
    let kernel = Kernel::new(launcher, object, 24, 768).buffer(lease).grid_max([4, 6, 4]);
    // SAFETY: it looks at 96 items at most, in local memory for a group each, and terminates.
    unsafe { tasks.register_kernel(1, kernel) }.unwrap();
    tasks.register_queue(1, QueueOptions::default()).unwrap();
    tasks.post(vec![0; 768]);
    let launch = |local_bytes| Launch {
        grid: [4, 6, 4],
        group: [2, 3, 2],
        local_bytes,
        ..Launch::linear(1, 1, 0)
    };
    for _ in 0..2 {
        let put = tasks.put(put(launch(96), 96).acknowledged()).unwrap();
        tasks.wait_for(&put).unwrap();
    }
    let turned = |at: u64| 6 * (at / 12 * 12 + 11 - at % 12);
    assert_eq!(down(&device, region), (0..96).map(turned).collect::<Vec<_>>());
    // Without the memory that it has a parameter for, it is not launched.
    let put = tasks.put(put(launch(0), 96).acknowledged()).unwrap();
    let failed = tasks.wait_for(&put);
    assert!(matches!(failed, Err(gapless::Error::Task(XtqError::Failed { .. }))), "{failed:?}");
    world.finalize().unwrap();
    // SAFETY: the tasks are over, and the world is left.
    unsafe { device.free(region) }.unwrap();
}
