//! Different short collectives in turn, as programs call them, beside the same ones each repeated.

use super::{CollectiveWork, ELEMENT, call};
use gapless::{Communicator, Error, ReduceOp, World};
use gapless_coll::Operation;
use std::time::Instant;

/// Whose a call is, which one, and how long: the bytes of the vector, or of a block. `peers.c` has the same.
const CALLS: [(usize, Operation, u64); 16] = [
    (0, Operation::Allreduce, 8),
    (1, Operation::Barrier, 0),
    (2, Operation::Bcast, 64),
    (0, Operation::Allgather, 8),
    (1, Operation::Allreduce, 64),
    (2, Operation::Reduce, 8),
    (0, Operation::Barrier, 0),
    (1, Operation::Alltoall, 8),
    (2, Operation::Allreduce, 256),
    (0, Operation::Bcast, 8),
    (1, Operation::Gather, 8),
    (2, Operation::Scatter, 64),
    (0, Operation::Scan, 8),
    (1, Operation::ReduceScatterBlock, 8),
    (2, Operation::Barrier, 0),
    (0, Operation::Reduce, 64),
];
const _: () = {
    let mut at = 0;
    while at < CALLS.len() {
        assert!(CALLS[at].2.is_multiple_of(ELEMENT), "a call of whole elements");
        at += 1;
    }
};

/// Sixteen different short collectives on three communicators.
#[derive(Debug)]
pub struct Mixture {
    comms: [Communicator; 3],
    calls: Vec<MixtureCall>,
}

/// One of its calls, with the buffers of this rank.
#[derive(Debug)]
struct MixtureCall {
    comm: usize,
    work: CollectiveWork,
    send: Vec<f64>,
    recv: Vec<f64>,
}

impl Mixture {
    /// What a mixture is, in words.
    pub const WHAT: &str = "16 calls on 3 communicators";

    /// How many are timed at once.
    pub const TIMES: u32 = 500;

    /// All ranks call this.
    ///
    /// # Errors
    /// A peer is lost.
    pub fn new(world: &World) -> Result<Self, Error> {
        let dup = || world.comm().dup();
        let comms = [dup()?, dup()?, dup()?];
        let (rank, n) = (world.rank() as usize, world.size() as usize);
        let calls = CALLS.iter().map(|&(comm, operation, bytes)| {
            let work = CollectiveWork::new(operation, bytes).expect("a call of whole elements");
            let (send, recv) = work.lens(rank, n);
            MixtureCall { comm, work, send: vec![0.0; send], recv: vec![0.0; recv] }
        });
        Ok(Self { comms, calls: calls.collect() })
    }

    /// Whether every rank receives what it should, of all calls.
    ///
    /// # Errors
    /// A peer is lost.
    pub fn check(&mut self) -> Result<bool, Error> {
        let (rank, n) = (self.comms[0].rank() as usize, self.comms[0].size() as usize);
        let write = |one: &mut MixtureCall| one.work.write(rank, &mut one.send, &mut one.recv);
        self.calls.iter_mut().for_each(write);
        // Some are known the second time.
        (0..2).try_for_each(|_| self.mixed())?;
        let right = self.calls.iter().all(|one| one.work.is_right(rank, n, &one.recv));
        Ok(self.most([f64::from(u8::from(!right))])? == [0.0])
    }

    /// Seconds of one mixture, to the last rank's end.
    ///
    /// # Errors
    /// A peer is lost.
    pub fn mixture(&mut self, times: u32) -> Result<f64, Error> {
        let took = self.timed(times, Self::mixed)?;
        Ok(self.most([took])?[0])
    }

    /// Seconds of its calls, each repeated, all together; to the last rank's end.
    ///
    /// # Errors
    /// A peer is lost.
    pub fn repeated(&mut self, times: u32) -> Result<f64, Error> {
        let mut took = 0.0;
        for at in 0..self.calls.len() {
            took += self.timed(times, |all| all.one(at))?;
        }
        Ok(self.most([took])?[0])
    }

    fn timed(
        &mut self,
        times: u32,
        mut turn: impl FnMut(&mut Self) -> Result<(), Error>,
    ) -> Result<f64, Error> {
        self.comms[0].barrier()?;
        let begin = Instant::now();
        (0..times).try_for_each(|_| turn(self))?;
        Ok(begin.elapsed().as_secs_f64() / f64::from(times))
    }

    fn mixed(&mut self) -> Result<(), Error> {
        (0..self.calls.len()).try_for_each(|at| self.one(at))
    }

    fn one(&mut self, at: usize) -> Result<(), Error> {
        let MixtureCall { comm, work, send, recv } = &mut self.calls[at];
        let comm = &self.comms[*comm];
        comm.perform(call(work, comm.size() as usize, &send[..], &mut recv[..]))
    }

    /// Of each number, the largest of all ranks.
    fn most<const N: usize>(&self, mine: [f64; N]) -> Result<[f64; N], Error> {
        let mut all = mine;
        self.comms[0].allreduce(&mine, &mut all, ReduceOp::Max)?;
        Ok(all)
    }
}
