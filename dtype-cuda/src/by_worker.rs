//! Which work the copy worker takes, and how it is told.

use crate::form::Form;
use crate::shared::{Shared, Task, closed};
use gapless_engine::Typed;
use gapless_kernels::Direction;
use gapless_kernels::copy_worker;
use gapless_kernels::launch::{TransferSide, transfer};
use gapless_kernels::persistent::Command;
use gapless_mem::Space;

/// The longest copy that a copy worker takes, in bytes: its one block is quicker than a launch up to there, also out of
/// another device's memory.
pub const WORKER_COPY_MAX: u64 = 32 << 10;

impl Shared {
    /// What the copy worker is told to do a task, if there is one and it can: a short copy between forms that need no
    /// plan. Memory that is managed is left to launches: some systems forbid the host to touch any while a kernel runs.
    pub(crate) fn worker_command(&self, task: &Task<'_>) -> Option<Command> {
        let suits = task.len() <= WORKER_COPY_MAX && !task.is_paged();
        if !suits || !self.accelerator.has_copy_worker() {
            return None;
        }
        let shape = |typed: &Typed| closed(Form::of(typed.layout(), typed.count()));
        let (range, from, to) = match task {
            &Task::Packed { ref job, typed, direct: Some(packed), .. } => {
                let typed_side = (shape(job.typed)?, typed);
                // The stream begins before the packed side if the range does not begin with it.
                let mut packed = packed;
                packed.place.offset = packed.place.offset.wrapping_sub_unsigned(job.start);
                let packed_side = (TransferSide::Contiguous(0), packed);
                match job.direction {
                    Direction::Pack => (job.range(), typed_side, packed_side),
                    Direction::Unpack => (job.range(), packed_side, typed_side),
                }
            }
            Task::Packed { direct: None, .. } => return None,
            Task::Transfer { from, to, range, .. } => {
                (range.clone(), (shape(from.0)?, from.1), (shape(to.0)?, to.1))
            }
        };
        if [from.1, to.1].iter().any(|spot| spot.base.space() == Space::Managed) {
            return None;
        }
        let places = (from.1.place, to.1.place);
        let launches = transfer(&range, (&from.0, places.0), (&to.0, places.1), None).ok()?;
        let [launch] = &launches[..] else { return None };
        let [source, target] = [from.1.base.start(), to.1.base.start()];
        copy_worker::command(launch, [source, target, source, target])
    }
}
