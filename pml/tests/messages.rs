//! Whole messages between endpoints: order, wildcards, truncation, mismatch, probe, cancel, self.

mod common;

use common::{Buffer, Job, bytes, link, strided};
use gapless_btl::loopback;
use gapless_dtype::{Datatype, Primitive};
use gapless_pml::{Config, PmlError, Protocol, Source, TagSel};

const WAYS: [Protocol; 4] =
    [Protocol::Eager, Protocol::Pipeline, Protocol::Mapped, Protocol::SingleCopy];

fn forced(force: Protocol) -> Config {
    Config { force: Some(force), ..Config::default() }
}

#[test]
fn a_message_arrives_whichever_side_is_first() {
    for size in [0u64, 1, 8, 1000, 8000, 9000, 100_000, 1_000_000] {
        for way in WAYS {
            let mut job = Job::with(2, forced(way), link());
            let layout = bytes(size);
            for early in [true, false] {
                let (from, to) = (Buffer::source(&layout, 1, size), Buffer::target(&layout, 1));
                let (send, recv);
                if early {
                    recv = job.irecv(1, &to, Source::Rank(0), TagSel::Is(5));
                    send = job.isend(0, &from, 1, 5);
                } else {
                    send = job.isend(0, &from, 1, 5);
                    job.settle();
                    recv = job.irecv(1, &to, Source::Rank(0), TagSel::Is(5));
                }
                let status = job.finish(1, recv).unwrap();
                assert_eq!((status.source, status.tag, status.bytes), (0, 5, size));
                assert_eq!(job.finish(0, send).unwrap().bytes, size);
                to.assert_received(&from.packed(), &format!("{size} bytes, {way}, {early}"));
            }
        }
    }
}

#[test]
fn both_send_64_mib_before_either_waits() {
    for (rdma, mapped) in [(false, false), (true, true)] {
        let link = loopback::Config { rdma, mapped, ..link() };
        let mut job = Job::with(2, Config::default(), link);
        let layout = bytes(64 << 20);
        let from = [Buffer::source(&layout, 1, 1), Buffer::source(&layout, 1, 2)];
        let to = [Buffer::target(&layout, 1), Buffer::target(&layout, 1)];
        let sends = [job.isend(0, &from[0], 1, 0), job.isend(1, &from[1], 0, 0)];
        let any = (Source::Any, TagSel::Any);
        let recvs = [job.irecv(0, &to[0], any.0, any.1), job.irecv(1, &to[1], any.0, any.1)];
        for rank in [0, 1] {
            job.finish(rank, sends[rank as usize]).unwrap();
            job.finish(rank, recvs[rank as usize]).unwrap();
        }
        to[0].assert_received(&from[1].packed(), "at 0");
        to[1].assert_received(&from[0].packed(), "at 1");
    }
}
