//! Which OpenCL devices this machine has.

use crate::OpenClError;
use crate::sys::{Named, setting_up};
use opencl3::device::{self, CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_CPU, CL_DEVICE_TYPE_GPU};
use opencl3::error_codes::{DLOPEN_RUNTIME_LOAD_FAILED, error_text};
use opencl3::platform::platform;
use opencl3::types::cl_device_id;

/// What the loader answers when it finds no driver (`CL_PLATFORM_NOT_FOUND_KHR`).
const PLATFORM_NOT_FOUND: i32 = -1001;

/// A device that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The number to open it with.
    pub ordinal: usize,
    /// The vendor's name for it.
    pub name: String,
    /// The platform's name.
    pub platform: String,
    /// Whether it is a GPU.
    pub gpu: bool,
    /// Whether it is the host's own processor (PoCL).
    pub cpu: bool,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// Its last-level cache in bytes; 0 if unknown.
    pub cache_bytes: u64,
    /// Compute units.
    pub compute_units: u32,
    /// Work-items of a group, at most.
    pub threads_max: u32,
    /// Local memory of a group in bytes, at most.
    pub local_bytes: u64,
    /// Whether kernels compute with binary64 (`cl_khr_fp64`).
    pub doubles: bool,
    pub(crate) id: usize,
}

impl DeviceInfo {
    pub(crate) fn raw(&self) -> cl_device_id {
        std::ptr::with_exposed_provenance_mut(self.id)
    }

    /// What `raw` says of itself.
    pub(crate) fn of(
        ordinal: usize,
        platform: String,
        raw: cl_device_id,
    ) -> Result<DeviceInfo, OpenClError> {
        let info = |what| device::get_device_info(raw, what).named("clGetDeviceInfo");
        let kind = u64::from(info(device::CL_DEVICE_TYPE)?);
        let threads = usize::from(info(device::CL_DEVICE_MAX_WORK_GROUP_SIZE)?);
        Ok(DeviceInfo {
            ordinal,
            name: String::from(info(device::CL_DEVICE_NAME)?),
            platform,
            gpu: kind & CL_DEVICE_TYPE_GPU != 0,
            cpu: kind & CL_DEVICE_TYPE_CPU != 0,
            memory_bytes: u64::from(info(device::CL_DEVICE_GLOBAL_MEM_SIZE)?),
            cache_bytes: u64::from(info(device::CL_DEVICE_GLOBAL_MEM_CACHE_SIZE)?),
            compute_units: u32::from(info(device::CL_DEVICE_MAX_COMPUTE_UNITS)?),
            threads_max: u32::try_from(threads).unwrap_or(u32::MAX),
            local_bytes: u64::from(info(device::CL_DEVICE_LOCAL_MEM_SIZE)?),
            doubles: String::from(info(device::CL_DEVICE_EXTENSIONS)?).contains("cl_khr_fp64"),
            id: raw.expose_provenance(),
        })
    }
}

/// Every device of every platform, in the loader's order; but the host's own processor comes last, so that device 0 is
/// a GPU where there is one.
///
/// # Errors
/// [`OpenClError::NoLibrary`], [`NoPlatform`](OpenClError::NoPlatform),
/// [`NoDevice`](OpenClError::NoDevice), or what a driver answers.
pub fn detect() -> Result<Vec<DeviceInfo>, OpenClError> {
    let _alone = setting_up();
    let platforms = match platform::get_platform_ids() {
        Err(DLOPEN_RUNTIME_LOAD_FAILED) => {
            let reason = error_text(DLOPEN_RUNTIME_LOAD_FAILED).to_owned();
            return Err(OpenClError::NoLibrary { reason });
        }
        Err(PLATFORM_NOT_FOUND) => return Err(OpenClError::NoPlatform),
        other => other.named("clGetPlatformIDs")?,
    };
    if platforms.is_empty() {
        return Err(OpenClError::NoPlatform);
    }
    let mut found = Vec::new();
    for &one in &platforms {
        let name = platform::get_platform_info(one, platform::CL_PLATFORM_NAME);
        let name = name.map(String::from).named("clGetPlatformInfo")?;
        // A platform without devices answers with an error.
        for raw in device::get_device_ids(one, CL_DEVICE_TYPE_ALL).unwrap_or_default() {
            found.push(DeviceInfo::of(found.len(), name.clone(), raw)?);
        }
    }
    if found.is_empty() {
        return Err(OpenClError::NoDevice { platforms: platforms.len() });
    }
    found.sort_by_key(|device| device.cpu);
    for (ordinal, device) in found.iter_mut().enumerate() {
        device.ordinal = ordinal;
    }
    Ok(found)
}
