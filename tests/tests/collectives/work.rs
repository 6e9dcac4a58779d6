//! All-reduces in all forms, by processes, again and again: what is killed and stopped in the midst of them.

use gapless::{Collective, Communicator, Error, PersistentCollective, ReduceOp, SharedBuf, World};

/// The forms.
pub(crate) const FORMS: [&str; 9] = [
    "short",
    "blocking",
    "allocated",
    "nonblocking",
    "many",
    "short many",
    "allocated many",
    "persistent",
    "short persistent",
];

/// Numbers of a long vector.
const LONG: usize = 5000;

/// What a rank adds up, and what with.
pub(crate) enum Work {
    /// Blocking, in ordinary memory.
    Blocking(Vec<u32>, Vec<u32>),
    /// Blocking, in memory that peers read where it lies.
    Allocated(SharedBuf, SharedBuf),
    /// So many at once.
    NonBlocking(Vec<u32>, Vec<Vec<u32>>),
    /// The same in memory that peers read where it lies.
    AllocatedMany(SharedBuf, Vec<SharedBuf>),
    Persistent(PersistentCollective<Vec<u32>, Vec<u32>>),
}

fn sum<'c>(ours: &'c [u32], sums: &'c mut [u32]) -> Collective<'c> {
    Collective::allreduce(ours, sums, ReduceOp::Sum)
}

impl Work {
    /// Every rank's work of a form; collective, if it is persistent.
    pub(crate) fn new(world: &World, comm: &Communicator, form: &str) -> Result<Work, Error> {
        let ours = vec![comm.rank(); if form.starts_with("short") { 3 } else { LONG }];
        let none = vec![0; ours.len()];
        Ok(match form {
            "short" | "blocking" => Work::Blocking(ours, none),
            "allocated" | "allocated many" => {
                let mut memory = world.alloc(4 * LONG)?;
                for (bytes, number) in memory.chunks_exact_mut(4).zip(ours) {
                    bytes.copy_from_slice(&number.to_ne_bytes());
                }
                if form == "allocated" {
                    return Ok(Work::Allocated(memory, world.alloc(4 * LONG)?));
                }
                let sums = (0..4).map(|_| world.alloc(4 * LONG));
                Work::AllocatedMany(memory, sums.collect::<Result<_, _>>()?)
            }
            "persistent" | "short persistent" => {
                let both = comm.collective_init(ours, none, |send, recv| {
                    Collective::allreduce(send, recv, ReduceOp::Sum)
                });
                Work::Persistent(both.map_err(|refused| refused.error)?)
            }
            _ => Work::NonBlocking(ours, vec![none; if form.ends_with("many") { 20 } else { 1 }]),
        })
    }

    /// Adds up.
    ///
    /// # Panics
    /// The sum is not that of all ranks.
    pub(crate) fn round(&mut self, comm: &Communicator) -> Result<(), Error> {
        let due = comm.size() * (comm.size() - 1) / 2;
        match self {
            Work::Blocking(ours, sums) => {
                comm.perform(sum(ours, sums))?;
                assert!(sums.iter().all(|sum| *sum == due), "{due}");
            }
            Work::Allocated(ours, sums) => {
                let numbers = gapless::Datatype::from(gapless::Primitive::Uint32).commit()?;
                let out = gapless::View::typed(ours, 0, &numbers, LONG as u64)?;
                let into = gapless::ViewMut::typed(sums, 0, &numbers, LONG as u64)?;
                comm.allreduce(out, into, ReduceOp::Sum)?;
                assert!(sums.chunks_exact(4).all(|sum| sum == due.to_ne_bytes()), "{due}");
            }
            Work::AllocatedMany(ours, all) => {
                let numbers = gapless::Datatype::from(gapless::Primitive::Uint32).commit()?;
                let out = gapless::View::typed(ours, 0, &numbers, LONG as u64)?;
                comm.scope(|s| {
                    for sums in all.iter_mut() {
                        let into = gapless::ViewMut::typed(sums, 0, &numbers, LONG as u64)?;
                        let _ = s.iallreduce(out.clone(), into, ReduceOp::Sum)?;
                    }
                    Ok(())
                })?;
                let mut sums = all.iter().flat_map(|sums| sums.chunks_exact(4));
                assert!(sums.all(|sum| sum == due.to_ne_bytes()), "{due}");
            }
            Work::NonBlocking(ours, all) => {
                comm.scope(|s| {
                    for sums in all.iter_mut() {
                        let _ = s.begin(sum(ours, sums))?;
                    }
                    Ok(())
                })?;
                assert!(all.iter().flatten().all(|sum| *sum == due), "{due}");
            }
            Work::Persistent(both) => {
                both.start()?;
                both.wait()?;
                assert!(both.buffers()?.1.iter().all(|sum| *sum == due), "{due}");
            }
        }
        Ok(())
    }
}
