//! The device, its programs and a way to run launches.

use gapless_kernels::launch::Launch;
use gapless_kernels::{Kernel, opencl_source};
use gapless_mem::{Completion, Device, Region};
use gapless_mem_opencl::{Argument, Grid, OpenClDevice, OpenClError, Program};
use std::collections::HashMap;
use std::sync::Arc;

/// The device, its programs and a way to run launches.
pub(crate) struct Bench {
    device: OpenClDevice,
    programs: HashMap<usize, Arc<Program>>,
}

impl Bench {
    pub(crate) fn open() -> Option<Bench> {
        match OpenClDevice::open(0) {
            Ok(device) => Some(Bench { device, programs: HashMap::new() }),
            Err(
                error @ (OpenClError::NoLibrary { .. }
                | OpenClError::NoPlatform
                | OpenClError::NoDevice { .. }),
            ) => {
                assert!(std::env::var_os("CI").is_none(), "in CI, PoCL must run: {error}");
                gapless_testkit::skip("running the kernels through OpenCL", &error.to_string());
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Runs a kernel that writes numbers.
    pub(crate) fn numbers(&mut self, source: &str, kernel: &str, count: usize) -> Vec<u64> {
        let program = self.device.program(source, "").unwrap();
        let buffer = self.upload(&vec![0u8; count * 8]);
        let arguments = [Argument::Buffer(buffer)];
        // SAFETY: the kernel takes one buffer and writes `count` numbers.
        let done =
            unsafe { self.device.launch(&program, kernel, Grid::line(1, 1), &arguments, &[]) };
        done.unwrap().wait().unwrap();
        let bytes = self.take(buffer);
        bytes.chunks_exact(8).map(|eight| u64::from_ne_bytes(eight.try_into().unwrap())).collect()
    }

    /// A buffer with these bytes.
    pub(crate) fn upload(&mut self, bytes: &[u8]) -> Region {
        let region = self.device.allocate(bytes.len() as u64).unwrap();
        // SAFETY: both live until the wait ends.
        unsafe { self.device.copy(region, Region::of(bytes), &[]) }.unwrap().wait().unwrap();
        region
    }

    /// Reads a buffer back and frees it.
    pub(crate) fn take(&mut self, region: Region) -> Vec<u8> {
        let mut bytes = vec![0u8; usize::try_from(region.len()).unwrap()];
        let to = Region::of_mut(&mut bytes);
        // SAFETY: both live until the wait ends.
        unsafe { self.device.copy(to, region, &[]) }.unwrap().wait().unwrap();
        // SAFETY: nothing is in flight.
        unsafe { self.device.free(region) }.unwrap();
        bytes
    }

    /// Runs launches one after the other, and says which kernels they were. Plans follow the two sides.
    pub(crate) fn run(&mut self, launches: &[Launch], pointers: &[Region]) -> Vec<Kernel> {
        let mut last = Completion::Ready;
        let mut used = Vec::new();
        for launch in launches {
            let kernel = launch.kernel;
            let table = kernel.family.tabled().then(|| self.upload(launch.args.as_bytes()));
            let device = &self.device;
            let program = self.programs.entry(kernel.program()).or_insert_with(|| {
                device.program(&opencl_source(kernel), "-cl-std=CL1.2").unwrap()
            });
            let count = 2 + kernel.family.plans();
            let mut arguments: Vec<Argument<'_>> =
                pointers[..count].iter().map(|&region| Argument::Buffer(region)).collect();
            arguments.push(table.map_or(Argument::Value(launch.args.as_bytes()), Argument::Buffer));
            // SAFETY: the kernel takes these pointers and this structure (`layouts` compares them); the
            // launch stays inside the buffers, which is what is tested: they have margins, and PoCL's
            // are the heap's.
            last = unsafe {
                device.launch(
                    program,
                    &kernel.to_string(),
                    Grid::line(launch.blocks, launch.threads),
                    &arguments,
                    &[last],
                )
            }
            .unwrap();
            if let Some(table) = table {
                last.wait().unwrap();
                self.take(table);
            }
            used.push(kernel);
        }
        last.wait().unwrap();
        used
    }
}
