//! Memory of a GPU at addresses of the processor, by Vulkan: it imports what `cuMemExportToShareableHandle` gave, as memory
//! that is local to the device and visible to the host (`VK_KHR_external_memory_fd`).
//!
//! Nothing is drawn or computed. Vulkan's loader is not needed: a driver's library can be asked by itself
//! (`vk_icdGetInstanceProcAddr`, of the interface between loaders and drivers), and in containers it is often there alone.

use crate::mapping_thread::Maps;
use ash::vk;
use libloading::Library;
use std::ffi::{CStr, c_char, c_long};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// Where Vulkan is looked for, in this order: its loader, and NVIDIA's drivers, of which the first needs no window system.
const LIBRARIES: [&str; 3] = ["libvulkan.so.1", "libEGL_nvidia.so.0", "libGLX_nvidia.so.0"];
/// The newest interface between loaders and drivers that this knows: 2 has both functions that are used.
const INTERFACE: u32 = 5;
/// What is called, but for what `get_instance_proc_addr` gives without an instance.
const CALLED: [&CStr; 9] = [
    c"vkDestroyInstance",
    c"vkEnumeratePhysicalDevices",
    c"vkGetPhysicalDeviceProperties2",
    c"vkGetPhysicalDeviceMemoryProperties",
    c"vkCreateDevice",
    c"vkGetDeviceProcAddr",
    c"vkAllocateMemory",
    c"vkMapMemory",
    c"vkFreeMemory",
];

type Negotiate = unsafe extern "system" fn(*mut u32) -> vk::Result;

/// One GPU, as Vulkan sees it.
pub(crate) struct Gpu {
    instance: ash::Instance,
    device: ash::Device,
    memory_type: u32,
    /// By which library.
    name: &'static str,
}

/// Opens a library that may be Vulkan's.
fn open(name: &'static str) -> Result<vk::PFN_vkGetInstanceProcAddr, String> {
    // SAFETY: opening runs the library's initialisers, as a program that is linked to it would.
    let library = unsafe { Library::new(name) }.map_err(|error| error.to_string())?;
    // It stays: its threads may run until the process ends.
    let library = Box::leak(Box::new(library));
    let missing = |error: libloading::Error| error.to_string();
    if name == LIBRARIES[0] {
        // SAFETY: the loader's function of this name has this type.
        let get = unsafe { library.get::<vk::PFN_vkGetInstanceProcAddr>(c"vkGetInstanceProcAddr") };
        return get.map(|get| *get).map_err(missing);
    }
    // SAFETY: a driver's function of this name has this type.
    let negotiate =
        unsafe { library.get::<Negotiate>(c"vk_icdNegotiateLoaderICDInterfaceVersion") };
    let mut version = INTERFACE;
    // SAFETY: it writes the version.
    let agreed = unsafe { negotiate.map_err(missing)?(&raw mut version) };
    agreed.result().map_err(|error| error.to_string())?;
    // SAFETY: likewise.
    let get = unsafe { library.get::<vk::PFN_vkGetInstanceProcAddr>(c"vk_icdGetInstanceProcAddr") };
    get.map(|get| *get).map_err(missing)
}

impl Gpu {
    /// The GPU of this number (`VkPhysicalDeviceIDProperties::deviceUUID`, which is CUDA's), by the first library that has
    /// it. Takes some tenths of a second.
    pub(crate) fn open(uuid: [u8; 16]) -> Result<Gpu, String> {
        if !cfg!(target_arch = "x86_64") {
            // `settle_stores` knows no other processor's instruction.
            return Err("stores into such memory are ordered on x86-64 alone".to_owned());
        }
        let mut why = Vec::new();
        for name in LIBRARIES {
            match open(name).and_then(|get| Gpu::by(get, uuid, name)) {
                Ok(gpu) => return Ok(gpu),
                Err(error) => why.push(format!("{name}: {error}")),
            }
        }
        Err(why.join("; "))
    }

    fn by(
        get: vk::PFN_vkGetInstanceProcAddr,
        uuid: [u8; 16],
        name: &'static str,
    ) -> Result<Gpu, String> {
        let has = |instance, function: &CStr| {
            let pointer: *const c_char = function.as_ptr();
            // SAFETY: the name ends in NUL, and the instance is null or lives.
            unsafe { get(instance, pointer) }.is_some()
        };
        if !has(vk::Instance::null(), c"vkCreateInstance") {
            return Err("no vkCreateInstance".to_owned());
        }
        // SAFETY: the library is open for good.
        let entry =
            unsafe { ash::Entry::from_static_fn(ash::StaticFn { get_instance_proc_addr: get }) };
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_1);
        let wanted = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: what it points to lives.
        let instance = unsafe { entry.create_instance(&wanted, None) };
        let instance = instance.map_err(|error| format!("vkCreateInstance: {error}"))?;
        if let Some(missing) = CALLED.iter().find(|function| !has(instance.handle(), function)) {
            // An instance that cannot even be destroyed stays.
            return Err(format!("no {}", missing.to_string_lossy()));
        }
        match Gpu::device(&instance, uuid) {
            Ok((device, memory_type)) => Ok(Gpu { instance, device, memory_type, name }),
            Err(error) => {
                // SAFETY: nothing of it is used any more.
                unsafe { instance.destroy_instance(None) };
                Err(error)
            }
        }
    }

    /// The device of this number, and its type of memory that the processor maps.
    fn device(instance: &ash::Instance, uuid: [u8; 16]) -> Result<(ash::Device, u32), String> {
        // SAFETY: the instance lives.
        let all = unsafe { instance.enumerate_physical_devices() };
        let all = all.map_err(|error| format!("vkEnumeratePhysicalDevices: {error}"))?;
        let count = all.len();
        let found = all.into_iter().find(|&device| {
            let mut id = vk::PhysicalDeviceIDProperties::default();
            let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut id);
            // SAFETY: the device is one of the instance's.
            unsafe { instance.get_physical_device_properties2(device, &mut properties) };
            id.device_uuid == uuid
        });
        let found = found.ok_or_else(|| format!("none of its {count} devices is this GPU"))?;
        // SAFETY: likewise.
        let memory = unsafe { instance.get_physical_device_memory_properties(found) };
        let wanted = vk::MemoryPropertyFlags::DEVICE_LOCAL
            | vk::MemoryPropertyFlags::HOST_VISIBLE
            | vk::MemoryPropertyFlags::HOST_COHERENT;
        let types = memory.memory_types_as_slice();
        let place = types.iter().position(|one| one.property_flags.contains(wanted));
        let place = place.and_then(|place| u32::try_from(place).ok());
        let place = place.ok_or("its memory is not visible to the processor")?;
        // A device must have a queue, whatever is done with it.
        let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
        let extensions = [ash::khr::external_memory_fd::NAME.as_ptr()];
        let wanted = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&extensions);
        // SAFETY: what it points to lives.
        let device = unsafe { instance.create_device(found, &wanted, None) };
        Ok((device.map_err(|error| format!("vkCreateDevice: {error}"))?, place))
    }
}

impl Maps for Gpu {
    type Held = vk::DeviceMemory;

    fn name(&self) -> &'static str {
        self.name
    }

    fn map(&mut self, file: OwnedFd, size: u64) -> Result<(u64, vk::DeviceMemory), String> {
        // The driver gets one of its own.
        let given = file.try_clone().map_err(|error| format!("dup: {error}"))?.into_raw_fd();
        let mut import = vk::ImportMemoryFdInfoKHR::default()
            .handle_type(vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD)
            .fd(given);
        let wanted = vk::MemoryAllocateInfo::default()
            .allocation_size(size)
            .memory_type_index(self.memory_type)
            .push_next(&mut import);
        // SAFETY: the device lives; an import that succeeds owns the descriptor.
        let memory = match unsafe { self.device.allocate_memory(&wanted, None) } {
            Ok(memory) => memory,
            Err(error) => {
                close_if_same(given, &file);
                return Err(format!("vkAllocateMemory: {error}"));
            }
        };
        let all = vk::MemoryMapFlags::empty();
        // SAFETY: the memory was just allocated, and is not mapped.
        match unsafe { self.device.map_memory(memory, 0, size, all) } {
            Ok(start) => Ok((start.expose_provenance() as u64, memory)),
            Err(error) => {
                // SAFETY: nobody has learnt of it.
                unsafe { self.device.free_memory(memory, None) };
                Err(format!("vkMapMemory: {error}"))
            }
        }
    }

    unsafe fn unmap(&mut self, held: vk::DeviceMemory) {
        // SAFETY: `map` gave it, to one owner; freeing unmaps it. The caller vouches for the rest.
        unsafe { self.device.free_memory(held, None) };
    }
}

/// Closes the duplicate that a failed import was given, if it is still there. An import that fails does not own it; but
/// NVIDIA's driver has closed it sometimes, and then its number may be another file's by now.
fn close_if_same(given: RawFd, file: &OwnedFd) {
    const KCMP_FILE: c_long = 0;
    let me = c_long::from(std::process::id());
    let [one, other] = [given, file.as_raw_fd()].map(c_long::from);
    // SAFETY: it compares two numbers of this process's, and touches no memory.
    let compared = unsafe { libc::syscall(libc::SYS_kcmp, me, me, KCMP_FILE, one, other) };
    if compared == 0 {
        // SAFETY: it is an open file, and the same as `file`: the duplicate, which nobody else knows.
        drop(unsafe { OwnedFd::from_raw_fd(given) });
    }
    // Else it is closed, or nobody may compare: then it stays open, rather than that another one's is closed.
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: what was mapped was unmapped, and nothing was ever submitted to it.
        unsafe { self.device.destroy_device(None) };
        // SAFETY: its only device is gone.
        unsafe { self.instance.destroy_instance(None) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// How many descriptors of this process's are of the same path.
    fn numbers(file: &File) -> usize {
        let of = |entry: std::fs::DirEntry| std::fs::read_link(entry.path()).ok();
        let mine = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        all.filter_map(of).filter(|link| *link == mine).count()
    }

    #[test]
    fn what_an_import_has_left_is_closed_and_nothing_else() {
        let path = std::env::temp_dir().join(format!("gapless-vulkan-{}", std::process::id()));
        let [file, other] = [(); 2].map(|()| File::create(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        let owned: OwnedFd = file.try_clone().unwrap().into();
        assert_eq!(numbers(&file), 3);
        let given = owned.try_clone().unwrap().into_raw_fd();
        assert_eq!(numbers(&file), 4);
        close_if_same(given, &owned);
        let left = numbers(&file);
        if left == 4 {
            // Some sandboxes forbid to compare.
            println!("SKIPPED: descriptors cannot be compared here");
        } else {
            assert_eq!(left, 3);
        }
        // Another file's number, though of the same path; and one that nobody has.
        close_if_same(other.as_raw_fd(), &owned);
        close_if_same(RawFd::MAX, &owned);
        assert_eq!(numbers(&file), left);
    }
}
