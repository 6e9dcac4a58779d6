//! Ways to carry out collectives that are not of `gapless-coll`: a module for barriers by messages of its own, and one that
//! takes a call and then leaves it to the next.
#![allow(unsafe_code, reason = "modules promise what they do with buffers")]

use gapless::{ReduceOp, World};
use gapless_coll::runtime::{Armed, Begun, CollOp, Component, Cx, Form, MODULE_TAGS, Module};
use gapless_coll::{CollError, Operation, Outcome};
use gapless_engine::Typed;
use gapless_mem::{Region, Space};
use gapless_pml::{Comm, RequestId, Source, TagSel};
use gapless_tests::job_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

/// All ranks send to rank 0, which answers when it has heard of all.
#[derive(Debug)]
struct Star {
    comm: Comm,
    ends: Vec<RequestId>,
    has_answered: bool,
    done: Arc<AtomicUsize>,
}

fn nothing() -> Typed {
    Typed::contiguous(Region::new(Space::Host, 4096, 0, 0))
}

impl Star {
    fn send(&mut self, to: u32, cx: &mut Cx<'_>) -> Result<(), CollError> {
        // SAFETY: no byte is read.
        let sent = unsafe { cx.pml.isend(&self.comm, &nothing(), to, MODULE_TAGS.start) };
        self.ends.push(sent.map_err(|_| CollError::Abandoned)?);
        Ok(())
    }

    fn receive(&mut self, from: u32, cx: &mut Cx<'_>) -> Result<(), CollError> {
        let (from, tag) = (Source::Rank(from), TagSel::Is(MODULE_TAGS.start));
        // SAFETY: no byte is written.
        let received = unsafe { cx.pml.irecv(&self.comm, &nothing(), from, tag) };
        self.ends.push(received.map_err(|_| CollError::Abandoned)?);
        Ok(())
    }
}

// SAFETY: it touches no buffers.
unsafe impl Module for Star {
    fn name(&self) -> &'static str {
        "star"
    }

    fn takes(&self, op: &CollOp) -> bool {
        op.operation() == Operation::Barrier && op.form() != Form::Persistent
    }

    fn begin(&mut self, _: &mut CollOp, cx: &mut Cx<'_>) -> Result<Begun, CollError> {
        self.has_answered = self.comm.rank() > 0;
        if self.has_answered {
            self.send(0, cx)?;
            self.receive(0, cx)?;
        } else {
            (1..self.comm.size()).try_for_each(|rank| self.receive(rank, cx))?;
        }
        Ok(Begun::InOrder)
    }

    fn advance(&mut self, _: &mut CollOp, cx: &mut Cx<'_>) -> Poll<Result<Outcome, CollError>> {
        self.ends.retain(|end| matches!(cx.pml.collect(*end), Ok(None)));
        if !self.ends.is_empty() {
            return Poll::Pending;
        }
        if !std::mem::replace(&mut self.has_answered, true) {
            (1..self.comm.size()).try_for_each(|rank| self.send(rank, cx))?;
            // What was sent ends with the next progress.
            return Poll::Pending;
        }
        self.done.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Ok(Outcome::Done))
    }

    fn look(&mut self) -> bool {
        false
    }

    fn arm(&mut self, _: &mut Cx<'_>) -> Armed {
        Armed::Messages
    }

    fn abandon(&mut self) {
        self.ends.clear();
    }

    fn skip(&mut self, _: u64, _: &mut Cx<'_>) {}
}

/// Takes all-reduces, and leaves them to the next module.
#[derive(Debug)]
struct Shy(Arc<AtomicUsize>);

// SAFETY: it touches no buffers.
unsafe impl Module for Shy {
    fn name(&self) -> &'static str {
        "shy"
    }

    fn takes(&self, op: &CollOp) -> bool {
        op.operation() == Operation::Allreduce
    }

    fn begin(&mut self, op: &mut CollOp, _: &mut Cx<'_>) -> Result<Begun, CollError> {
        // At all ranks alike.
        Ok(if op.number().is_multiple_of(2) { Begun::InOrder } else { Begun::Declined })
    }

    fn advance(&mut self, _: &mut CollOp, _: &mut Cx<'_>) -> Poll<Result<Outcome, CollError>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Ok(Outcome::Elsewhere))
    }

    fn abandon(&mut self) {}

    fn skip(&mut self, _: u64, _: &mut Cx<'_>) {}
}

#[derive(Debug, Default)]
struct Both {
    barriers: Arc<AtomicUsize>,
    left: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Stars(Arc<AtomicUsize>);

#[derive(Debug)]
struct Shies(Arc<AtomicUsize>);

impl Component for Stars {
    fn module(&self, comm: &Comm) -> Option<Box<dyn Module>> {
        let (comm, done) = (comm.collective(), Arc::clone(&self.0));
        Some(Box::new(Star { comm, ends: Vec::new(), has_answered: false, done }))
    }
}

impl Component for Shies {
    fn module(&self, _: &Comm) -> Option<Box<dyn Module>> {
        Some(Box::new(Shy(Arc::clone(&self.0))))
    }
}

/// Blocking, non-blocking and persistent ones go by the first module that takes them, in the order of calls; results are
/// right whatever module has left them to the next.
#[test]
fn modules_from_outside_are_asked_first() {
    const RANKS: u32 = 3;
    let all = Both::default();
    let builder = |_| {
        World::builder()
            .collective_component(Arc::new(Stars(Arc::clone(&all.barriers))))
            .collective_component(Arc::new(Shies(Arc::clone(&all.left))))
    };
    job_of(RANKS, builder, |world| {
        let comm = world.comm();
        for round in 0..10 {
            comm.barrier().unwrap();
            let (mine, mut sum) = (comm.rank() + round, 0);
            comm.allreduce(&mine, &mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, 3 + 3 * round);
            let mut word = [round * comm.rank()];
            comm.scope(|s| {
                let _ = s.ibarrier()?;
                let _ = s.ibcast(&mut word, 1)?;
                let _ = s.ibarrier()?;
                Ok(())
            })
            .unwrap();
            assert_eq!(word, [round]);
        }
        let mut most = comm
            .collective_init(vec![comm.rank()], vec![0u32], |send, recv| {
                gapless::Collective::allreduce(send, recv, ReduceOp::Max)
            })
            .unwrap();
        for _ in 0..3 {
            most.start().unwrap();
            most.wait().unwrap();
            assert_eq!(most.buffers().unwrap().1, [RANKS - 1]);
        }
    });
    assert_eq!(all.barriers.load(Ordering::Relaxed), 30 * RANKS as usize, "each barrier once");
    assert!(all.left.load(Ordering::Relaxed) > 0, "all-reduces were left to the next module");
}
