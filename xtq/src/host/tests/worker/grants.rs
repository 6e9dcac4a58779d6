//! Rings that a program asks for, for accelerators: a lane of the processor's plays that.

use super::*;
use crate::device::{Lane, PutOutcome, RingShape};
use crate::host::FarRing;
use gapless_mem::{Space, Words};

impl Scene {
    /// Rank 0 asks, and rank 1 grants.
    fn granted(&mut self) -> Vec<u8> {
        let xtq = self.there().clone();
        let bml = &mut self.job.ends[1].bml;
        let granted = xtq.prepare_ring(bml, Rank(0), &[], None).unwrap();
        // SAFETY: the memory is the library's.
        unsafe { xtq.grant_ring(granted) }.unwrap()
    }

    fn open(&mut self, text: &[u8]) -> Result<FarRing, XtqError> {
        let xtq = self.job.xtq(0).clone();
        xtq.open_ring(&mut self.job.ends[0].bml, Rank(1), text, Space::Host)
    }
}

#[test]
fn a_granted_ring_takes_tasks_and_its_worker_comes_when_it_is_wanted() {
    for way in [TaskRunner::Rings, TaskRunner::Fleeting] {
        let mut scene = Scene::new(way, 2, None);
        scene.post(64);
        scene.there().watch_refusals(true);
        let text = scene.granted();
        let ring = scene.open(&text).unwrap();
        assert_eq!(ring.target(), Rank(1));
        let memory = ring.parts().whole.clone();
        // SAFETY: nobody else puts into it.
        let mut lane = unsafe { Lane::new(memory.clone(), RingShape::default()) }.unwrap();
        for number in 0..40 {
            let put = scene.task(number, if number == 20 { &[7; 65] } else { b"granted" });
            let (packet, body) = put.to_bytes().unwrap();
            let packet = crate::packet::Packet::read(&packet).unwrap();
            let (arguments, payload) = body.split_at(24);
            lane.put(&packet, [arguments, payload]).unwrap();
            lane.announce();
            let outcome = scene.job.until(|_| lane.next());
            let largest = Refusal::ReceiveBufferTooSmall { largest: 64 };
            let refused = RefusedTask { initiator: Rank(0), index: 7, queue: 2, refusal: largest };
            match number {
                20 => {
                    assert_eq!(outcome, (20, PutOutcome::Refused(largest)));
                    let told = scene.job.until(|job| {
                        Some(job.xtq(1).take_refusals()).filter(|told| !told.is_empty())
                    });
                    assert_eq!(told, [refused]);
                }
                _ => assert_eq!(outcome, (number, PutOutcome::Ended)),
            }
        }
        assert_eq!(scene.ran().len(), 39);
        // What waits at it is told so, by a word of its head.
        // SAFETY: the target has just granted it.
        unsafe { ring.give_up(true) }.unwrap();
        // SAFETY: a ring's memory is touched as words alone.
        let words = unsafe { Words::new(memory) }.unwrap();
        assert_eq!(words.all()[16].load(Ordering::Acquire), 1);
        // SAFETY: as above.
        unsafe { ring.give_up(false) }.unwrap();
        assert_eq!(words.all()[16].load(Ordering::Acquire), 0);
        // This process has no worker that could put on.
        // SAFETY: nobody puts into it any more.
        let refused = unsafe { scene.job.xtq(0).put_on_into(ring) };
        assert_eq!(refused, Err(XtqError::Worker { has: false }));
    }
}

#[test]
fn what_is_no_ring_is_not_opened() {
    let mut scene = Scene::new(TaskRunner::Rings, 2, None);
    let text = scene.granted();
    let is_none = |ring: Result<FarRing, XtqError>| {
        assert!(matches!(ring, Err(XtqError::NoRing { peer: Rank(1), .. })), "{ring:?}");
    };
    for len in 0..text.len() {
        is_none(scene.open(&text[..len]));
    }
    is_none(scene.open(&[&text[..], &[0]].concat()));
    let mut other = text.clone();
    *other.last_mut().unwrap() = 3;
    is_none(scene.open(&other));
    is_none(scene.open(&[81; 200]));
    let xtq = scene.there().clone();
    let ask = xtq.prepare_ring(&mut scene.job.ends[1].bml, Rank(0), &[1; 16], None);
    assert!(matches!(ask, Err(XtqError::NoRing { peer: Rank(0), .. })), "{ask:?}");
    scene.open(&text).unwrap();
}
