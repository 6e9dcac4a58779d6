//! Of several rails, messages out of a device's memory prefer the one that is near to it; while messages queue there, the
//! others carry some, too.

use super::{Job, NAMES, TAG};
use crate::{Nearness, Rank};
use gapless_btl::Token;
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Device, Space};
use std::sync::Arc;

/// The rail that a message out of this memory leaves by; it is not delivered.
fn carrier(job: &mut Job, space: Space) -> usize {
    let before: Vec<usize> = flying(job);
    let mut slot = job.ranks[0].reserve_for(Rank(1), 100, space).unwrap();
    slot.write(0, &[job.said[0]]).unwrap();
    job.ranks[0].send(slot, TAG, Token::NONE);
    job.said[0] += 1;
    let after = flying(job);
    before.iter().zip(&after).position(|(one, other)| one != other).unwrap()
}

fn flying(job: &Job) -> Vec<usize> {
    job.lines.iter().map(|line| line.state().ways[1].flying.len()).collect()
}

/// Everything arrives and is confirmed.
fn settle(job: &mut Job) {
    for line in 0..job.lines.len() {
        job.lines[line].deliver_all(1);
        job.poll(1);
        job.lines[line].confirm(1);
    }
}

#[test]
fn messages_of_a_device_prefer_the_rail_that_is_near_to_it() {
    let devices = [0, 1].map(|number| Arc::new(FakeDevice::new(number)) as Arc<dyn Device>);
    let mut job = Job::new(3);
    let judge = |rail: &str, device: &dyn Device| {
        let at = NAMES.iter().position(|name| *name == rail)?;
        let near =
            if device.space() == (Space::Device { kind: "fake", device: 0 }) { 1 } else { 2 };
        Some(if at == near { Nearness::Switch } else { Nearness::Far })
    };
    job.ranks[0].judge_nearness_by(Box::new(judge));
    for device in &devices {
        job.ranks[0].attach(device).unwrap();
    }
    for _ in 0..3 {
        for (device, near) in devices.iter().zip([1, 2]) {
            assert_eq!(carrier(&mut job, device.space()), near);
            settle(&mut job);
        }
        assert_eq!(carrier(&mut job, Space::Host), 0, "the first of equals");
        settle(&mut job);
    }
    // The others are not left idle.
    let mut used: Vec<usize> = (0..3).map(|_| carrier(&mut job, devices[0].space())).collect();
    assert_eq!(used[0], 1);
    used.sort_unstable();
    assert_eq!(used, [0, 1, 2]);
    settle(&mut job);
    let got = &job.takers[1].got;
    assert!((0..job.said[0]).eq(got.iter().copied()), "{got:?}");
}
