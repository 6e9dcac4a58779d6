//! Every kernel against the byte-by-byte reference, as in `tests/opencl`, on CUDA: small enough for
//! `compute-sanitizer`.

#[path = "../../tests/opencl/cases.rs"]
mod cases;
#[path = "../../tests/opencl/machine.rs"]
mod machine;
#[path = "../../tests/opencl/shapes.rs"]
mod shapes;

use crate::{Bench, Outcome};
use gapless_kernels::Kernel;
use gapless_kernels::launch::Launch;
use gapless_mem::{Device, Region};
use machine::Machine;

impl Machine for Bench {
    fn upload(&mut self, bytes: &[u8]) -> Region {
        let region = self.device.allocate(bytes.len() as u64).unwrap();
        // SAFETY: both live until the wait ends.
        unsafe { self.device.copy(region, Region::of(bytes), &[]) }.unwrap().wait().unwrap();
        region
    }

    fn take(&mut self, region: Region) -> Vec<u8> {
        let mut bytes = vec![0u8; usize::try_from(region.len()).unwrap()];
        let to = Region::of_mut(&mut bytes);
        // SAFETY: both live until the wait ends.
        unsafe { self.device.copy(to, region, &[]) }.unwrap().wait().unwrap();
        // SAFETY: nothing is in flight.
        unsafe { self.device.free(region) }.unwrap();
        bytes
    }

    fn run(&mut self, launches: &[Launch], pointers: &[Region]) -> Vec<Kernel> {
        let pointers: Vec<u64> = pointers.iter().map(Region::start).collect();
        for launch in launches {
            Bench::launch(self, launch, &pointers).unwrap();
        }
        self.stream.record().unwrap().wait().unwrap();
        launches.iter().map(|launch| launch.kernel).collect()
    }
}

/// Panics at the first byte that is not what it should be.
pub(crate) fn check(bench: &mut Bench) -> Outcome<()> {
    machine::every_kernel_moves_every_byte_to_its_place(bench);
    machine::layouts_move_into_layouts(bench);
    machine::rows_move_into_columns(bench);
    machine::equal_layouts_move_into_each_other(bench);
    machine::many_requests_move_at_once(bench);
    machine::twins_move_as_if_they_were_alone(bench);
    machine::a_range_may_lie_inside_a_word(bench);
    println!("every kernel moved every byte to its place");
    Ok(())
}
