//! The executor against what the operations mean: several ranks in one thread.
mod failures;
mod job;
mod late;
mod model;
mod results;
mod rows;

use gapless_coll::schedule::Buffer;
use gapless_coll::{
    Algorithm, Call, Combine, Executor, Locality, Reduction, Rows, Schedule, Sequencer, build,
};
use gapless_dtype::{Datatype, Primitive};
use model::{Arithmetic, Content};
use rows::{Held, Lie, Random};

/// One collective of all ranks, with its buffers.
struct Collective {
    what: String,
    schedules: Vec<Schedule>,
    held: Vec<(Held, Held)>,
    sent: Vec<Vec<u8>>,
    expected: Vec<Vec<u8>>,
    how: Arithmetic,
}

impl Collective {
    /// `lies`: how the buffers lie at each rank, by turns.
    fn new(
        calls: &[Call<'_>],
        algorithm: &Algorithm,
        (how, lies): (Arithmetic, &[Lie]),
        random: &mut Random,
    ) -> Collective {
        let locality = Locality::flat(calls.len());
        let each = calls.iter().enumerate();
        let schedules: Vec<Schedule> =
            each.map(|(rank, call)| build(rank, &locality, call, algorithm).unwrap()).collect();
        let content = |schedule: &Schedule, random: &mut Random| Content {
            send: random.bytes(schedule.row(Buffer::Send).len()),
            recv: random.bytes(schedule.row(Buffer::Recv).len()),
        };
        let before: Vec<Content> = schedules.iter().map(|each| content(each, random)).collect();
        let expected = model::after(calls, &schedules, &before, how);
        let lie = |rank: usize| lies[rank % lies.len()];
        let held = schedules.iter().zip(&before).enumerate().map(|(rank, (schedule, before))| {
            let send = Held::new(&schedule.row(Buffer::Send), lie(rank), &before.send, random);
            let recv = Held::new(&schedule.row(Buffer::Recv), lie(rank + 1), &before.recv, random);
            (send, recv)
        });
        let held = held.collect();
        let what = format!("{:?} by {algorithm}, {} ranks, {lies:?}", calls[0], calls.len());
        let sent = before.into_iter().map(|content| content.send).collect();
        Collective { what, schedules, held, sent, expected, how }
    }

    /// The executors of all ranks.
    fn start(&mut self, sequencers: &[Sequencer]) -> Vec<(u32, Executor)> {
        let tickets: Vec<_> = sequencers.iter().map(Sequencer::next).collect();
        self.with(tickets)
    }

    fn with(&mut self, tickets: Vec<gapless_coll::Ticket>) -> Vec<(u32, Executor)> {
        let int = Datatype::from(Primitive::Int32).commit().unwrap();
        let combine = Combine::new(&self.how.op(), &int);
        let combine = combine.or_else(|_| {
            let pair = Datatype::contiguous(2, &Primitive::Int32.into()).unwrap();
            Combine::new(&self.how.op(), &pair.commit().unwrap())
        });
        let combine = combine.unwrap();
        let mut executors = Vec::new();
        for (ticket, (send, recv)) in tickets.into_iter().zip(&mut self.held) {
            let schedule = self.schedules[executors.len()].clone();
            let rank = u32::try_from(schedule.rank()).unwrap();
            let rows = Rows { send: send.blocks(), recv: recv.blocks() };
            // SAFETY: tests keep the buffers until all has ended, or the endpoints are gone.
            let executor = unsafe { Executor::new(schedule, rows, Some(combine.clone()), ticket) };
            executors.push((rank, executor.unwrap()));
        }
        executors
    }

    /// Whether everything is as it should be.
    fn check(&self) {
        for (rank, (send, recv)) in self.held.iter().enumerate() {
            let what = || format!("{}: rank {rank}", self.what);
            recv.assert_holds(&self.expected[rank], &what);
            send.assert_holds(&self.sent[rank], &what);
        }
    }
}

fn sum(how: Arithmetic) -> Reduction {
    Reduction { unit: how.unit(), commutative: how == Arithmetic::Sum }
}
