//! Notices of windows in memory of devices, pretended or CUDA's: behind what devices write, and seen by kernels.

use super::on_device::{PATHS, Path, copy, ranks};
use gapless::{
    CudaDriver, CudaModule, Datatype, Place, Primitive, Region, Space, View, Window, WindowBuilder,
    WindowMemory, World,
};
use gapless_btl_testkit::conformance::skip;
use gapless_mem_cuda::{Argument, Grid};

/// Pages go round, each from memory of the device to other places there: each is there when its notice is.
fn notify<M: WindowMemory>(world: &World, space: Space, mut window: Window<u32, M>) {
    const PAGE: usize = 1000;
    let (me, all) = (world.rank(), world.size());
    let comb = Datatype::vector(PAGE as u64, 1, 2, &Primitive::Uint32.into()).unwrap();
    let comb = comb.commit().unwrap();
    let given = world.alloc_device(space, 4 * PAGE as u64).unwrap();
    let layout = Datatype::from(Primitive::Uint32).commit().unwrap();
    window.lock_all().unwrap();
    for round in 1..=10u32 {
        let page: Vec<u8> = [1000 * round + me; PAGE].map(u32::to_ne_bytes).concat();
        // SAFETY: the buffer is this function's own, and nobody reads it now.
        unsafe { copy(&*given.device(), given.region(), Region::of(&page)) };
        // SAFETY: nothing writes it before the next round.
        let view = unsafe { View::of_region(given.region(), 0, &layout, PAGE as u64) }.unwrap();
        let at = Place::typed(u64::from(round) * 2 * PAGE as u64, &comb, 1);
        window.put_notify(view, (me + 1) % all, at, 1).unwrap();
        let left = (me + all - 1) % all;
        window.wait_notices(1, u64::from(round), &[left]).unwrap();
        let mut found = [0u32; 2 * PAGE];
        window.read(&mut found, 2 * PAGE * round as usize).unwrap();
        assert!(found.chunks(2).all(|pair| pair == [1000 * round + left, 0]));
    }
    window.unlock_all().unwrap();
    window.free().unwrap();
}

#[test]
fn notices_come_behind_what_devices_write() {
    for path in PATHS {
        ranks(path, 3, |world, space, _| {
            let (comm, all) = (world.comm(), 22_000);
            let builder = path.builder(comm).notices(2);
            if path == Path::Hosts && !comm.rank().is_multiple_of(2) {
                return notify(world, space, builder.allocate(all).unwrap());
            }
            notify(world, space, builder.allocate_on(space, all).unwrap());
        });
    }
}

/// Kernels reach the counters as long as there is the window.
#[test]
fn counters_are_registered_with_devices_until_the_window_is_freed() {
    for frees in [true, false] {
        ranks(Path::Messages, 2, |world, space, device| {
            let comm = world.comm();
            let builder = comm.window().notices(5);
            let mut window = builder.allocate_on::<u32>(space, 1).unwrap();
            assert!(device.registered().is_empty());
            let counters = window.register_notices().unwrap().unwrap();
            assert_eq!((counters.len(), window.register_notices().unwrap()), (40, Some(counters)));
            let [(start, len)] = device.registered()[..] else { panic!("it is registered once") };
            assert!(start < counters.start() && counters.start() + 40 <= start + len);
            window.fence().unwrap();
            window.put_notify(&[7u32], 1 - comm.rank(), 0, 4).unwrap();
            window.fence_last().unwrap();
            let mut found = [0u64; 5].map(u64::to_ne_bytes);
            let into = Region::of_mut(found.as_flattened_mut());
            // SAFETY: the counters are there, and nobody changes them now.
            unsafe { copy(device, into, counters) };
            assert_eq!(found.map(u64::from_ne_bytes), [0, 0, 0, 0, 1]);
            if frees {
                window.free().unwrap();
            } else {
                comm.barrier().unwrap();
                drop(window);
            }
            assert!(device.registered().is_empty());
            let mut none = comm.window_allocate::<u32>(1).unwrap();
            assert_eq!(none.register_notices().unwrap(), None);
        });
    }
}

/// Waits for a notice, or some time, and then reads a number of the window: all bits are set if none has come.
const KERNEL: &str = r"
.version 7.8
.target sm_80
.address_size 64

.visible .entry await_notice(.param .u64 counter, .param .u64 data, .param .u64 found)
{
    .reg .pred %p1, %p2;
    .reg .b64 %counter, %data, %found, %value, %looks;
    ld.param.u64 %counter, [counter];
    ld.param.u64 %data, [data];
    ld.param.u64 %found, [found];
    mov.u64 %looks, 0;
LOOK:
    ld.acquire.sys.u64 %value, [%counter];
    setp.ne.u64 %p1, %value, 0;
    @%p1 bra THERE;
    add.u64 %looks, %looks, 1;
    setp.lt.u64 %p2, %looks, 20000000;
    @%p2 bra LOOK;
    mov.u64 %value, -1;
    bra END;
THERE:
    ld.relaxed.sys.u64 %value, [%data];
END:
    st.global.u64 [%found], %value;
    ret;
}
";

/// A kernel polls the counter of this rank's window, and sees what the other rank has put before the notice.
pub(super) fn by_kernel(world: &World, ordinal: u32, builder: WindowBuilder<'_>) {
    const ALL: usize = 4000;
    let (me, space) = (world.rank(), Space::Cuda { device: ordinal });
    let device = CudaDriver::load().unwrap().device(ordinal).unwrap();
    // SAFETY: the driver compiles it.
    let module = match unsafe { CudaModule::load(&device, KERNEL.as_bytes()) } {
        Ok(module) => module,
        Err(why) => return skip("a kernel that waits for a notice", &why.to_string()),
    };
    let (kernel, stream) = (module.function(c"await_notice").unwrap(), device.stream().unwrap());
    let mut window = builder.notices(3).allocate_on::<u64>(space, ALL).unwrap();
    let counter = window.register_notices().unwrap().unwrap().sub(16, 8).unwrap();
    let last = window.base().sub(8 * (ALL as u64 - 1), 8).unwrap();
    let found = world.alloc_device(space, 8).unwrap();
    let addresses = [counter, last, found.region()].map(|it| device.device_address(it).unwrap());
    let arguments = addresses.each_ref().map(Argument::of);
    // SAFETY: the kernel has three parameters, addresses of memory that lives until it has ended, below; it is made for
    // a window and a counter that others write meanwhile, and nobody else touches what it writes.
    unsafe { kernel.launch(&stream, Grid::line(1, 1), &arguments) }.unwrap();
    let ended = stream.record().unwrap();
    window.lock_all().unwrap();
    window.put_notify(&[70 + u64::from(me); ALL], 1 - me, 0, 2).unwrap();
    while !ended.poll().unwrap() {
        // Where the put comes by messages.
        window.sync();
    }
    let mut seen = [0u8; 8];
    // SAFETY: both live, and the kernel has ended.
    unsafe { copy(&device, Region::of_mut(&mut seen), found.region()) };
    assert_eq!(u64::from_ne_bytes(seen), 70 + u64::from(1 - me));
    window.unlock_all().unwrap();
    window.free().unwrap();
}
