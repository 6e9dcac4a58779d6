//! The executor against what the operations mean: several ranks in one thread.
mod between;
mod failures;
mod hosts;
mod hyperq;
mod job;
mod late;
mod misfits;
mod results;
mod revoked;
mod shortage;
mod sm;
mod tasks;

use gapless_coll::schedule::Buffer;
use gapless_coll::testkit::{Arithmetic, Content, Held, Lie, Random, after};
use gapless_coll::{
    Algorithm, Call, CallBuffers, Combine, Executor, Level, Locality, Reduction, Schedule,
    Sequencer, build, build_apart,
};
use gapless_dtype::{Datatype, Primitive};

/// One collective of all ranks, with its buffers.
struct Collective {
    what: String,
    schedules: Vec<Schedule>,
    held: Vec<(Held, Held)>,
    sent: Vec<Vec<u8>>,
    expected: Vec<Vec<u8>>,
    how: Arithmetic,
}

/// Which ranks are near each other: two hosts, and NUMA nodes of two ranks, which follow each other.
fn near(n: usize) -> Locality {
    let cut =
        |groups: &[std::ops::Range<usize>]| groups.iter().map(|it| it.clone().collect()).collect();
    let half = n / 2;
    let pairs = |from: usize, to| (from..to).step_by(2).map(move |at| at..(at + 2).min(to));
    let nodes: Vec<_> = pairs(0, half).chain(pairs(half, n)).collect();
    let hosts = Locality::new(cut(&[0..half, half..n])).unwrap();
    hosts.with(Level::Numa, cut(&nodes)).unwrap()
}

impl Collective {
    /// Of ranks that share no memory. `lies`: how the buffers lie at each rank, by turns.
    fn new(
        calls: &[Call<'_>],
        algorithm: &Algorithm,
        (how, lies): (Arithmetic, &[Lie]),
        random: &mut Random,
    ) -> Collective {
        let locality = near(calls.len());
        let each = calls.iter().enumerate();
        let one = |(rank, call)| build_apart(rank, &locality, call, algorithm).unwrap();
        let schedules: Vec<Schedule> = each.map(one).collect();
        let what = format!("{:?} by {algorithm}, {} ranks, {lies:?}", calls[0], calls.len());
        let expected =
            |schedules: &[Schedule], before: &[Content]| after(calls, schedules, before, how);
        Collective::of(what, schedules, (how, lies), expected, random)
    }

    /// A collective by schedules; `expected` says what comes of which contents.
    fn of(
        what: String,
        schedules: Vec<Schedule>,
        (how, lies): (Arithmetic, &[Lie]),
        expected: impl Fn(&[Schedule], &[Content]) -> Vec<Vec<u8>>,
        random: &mut Random,
    ) -> Collective {
        let content = |schedule: &Schedule, random: &mut Random| Content {
            send: random.bytes(schedule.row(Buffer::Send).len()),
            recv: random.bytes(schedule.row(Buffer::Recv).len()),
        };
        let before: Vec<Content> = schedules.iter().map(|each| content(each, random)).collect();
        let expected = expected(&schedules, &before);
        let lie = |rank: usize| lies[rank % lies.len()];
        let held = schedules.iter().zip(&before).enumerate().map(|(rank, (schedule, before))| {
            let send = Held::new(&schedule.row(Buffer::Send), lie(rank), &before.send, random);
            let recv = Held::new(&schedule.row(Buffer::Recv), lie(rank + 1), &before.recv, random);
            (send, recv)
        });
        let held = held.collect();
        let sent = before.into_iter().map(|content| content.send).collect();
        Collective { what, schedules, held, sent, expected, how }
    }

    /// The executors of all ranks.
    fn start(&mut self, sequencers: &[Sequencer]) -> Vec<(u32, Executor)> {
        let tickets: Vec<_> = sequencers.iter().map(Sequencer::next).collect();
        self.with(tickets)
    }

    fn with(&mut self, tickets: Vec<gapless_coll::Ticket>) -> Vec<(u32, Executor)> {
        self.each(tickets, |_, make| make())
    }

    /// As `with`, each made within `around`.
    fn each(
        &mut self,
        tickets: Vec<gapless_coll::Ticket>,
        around: impl Fn(u32, Box<dyn FnOnce() -> Executor>) -> Executor,
    ) -> Vec<(u32, Executor)> {
        let mut executors = Vec::new();
        for (ticket, (send, recv)) in tickets.into_iter().zip(&mut self.held) {
            let (schedule, combine) = (self.schedules[executors.len()].clone(), self.how.how());
            let rank = u32::try_from(schedule.rank()).unwrap();
            let rows = CallBuffers { send: send.blocks(), recv: recv.blocks() };
            let make = move || {
                // SAFETY: tests keep the buffers until all has ended, or the endpoints are gone.
                unsafe { Executor::new(schedule, rows, Some(combine), ticket) }.unwrap()
            };
            executors.push((rank, around(rank, Box::new(make))));
        }
        executors
    }

    /// Whether everything is as it should be.
    fn check(&self) {
        for (rank, (send, recv)) in self.held.iter().enumerate() {
            let what = || format!("{}: rank {rank}", self.what);
            assert_eq!(recv.holds(&self.expected[rank]), Ok(()), "{}", what());
            assert_eq!(send.holds(&self.sent[rank]), Ok(()), "{}", what());
        }
    }
}

fn sum(how: Arithmetic) -> Reduction {
    how.reduction()
}
