//! A peer that breaks the rules is given up; nothing here panics, hangs or runs what it should not.

use super::*;
use crate::packet::{Command, Flags, Packet, TaskWork};
use crate::wire::{Head, Verdict};
use gapless_bml::{AmTag, PeerState, Token};
use zerocopy::IntoBytes;

/// Rank 1, which has a function and a queue at index 0, and rank 0, which sends what it likes.
fn victim() -> Job {
    let job = Job::with(2, None, Some(0));
    let nothing = Function::new(1 << 20, |_| Ok(()));
    job.xtq(1).register_function(0, nothing).unwrap();
    job.xtq(1).register_queue(0, QueueOptions::default()).unwrap();
    job.xtq(1).post(vec![0; 4096]);
    job
}

fn say(job: &mut Job, bytes: &[u8]) {
    let bml = &mut job.ends[0].bml;
    let mut slot = bml.reserve(Rank(1), bytes.len()).unwrap();
    slot.write(0, bytes).unwrap();
    bml.send(slot, AmTag(32), Token::NONE);
    (0..4).for_each(|_| _ = job.step());
}

fn is_given_up(job: &Job) -> bool {
    matches!(job.ends[1].bml.state(Rank(0)), PeerState::Lost(_))
}

fn put(payload_bytes: u32, body: usize, change: impl FnOnce(&mut Command)) -> Vec<u8> {
    let work = TaskWork::Function { arguments: [0; 4] };
    let flags = Flags::empty();
    let mut command =
        Command { index: 0, queue: 0, flags, object: 0, signal: 0, payload_bytes, work };
    change(&mut command);
    let head = Head::Put { put: 0, number: None }.write(0);
    let packet = Packet::new(&command).unwrap();
    [&head[..], packet.as_bytes(), &vec![0; body]].concat()
}

#[test]
fn whoever_breaks_the_rules_is_given_up() {
    let fine = put(8, 8, |_| {});
    let mut job = victim();
    say(&mut job, &fine);
    assert!(!is_given_up(&job));
    let mut torn = fine.clone();
    torn[24 + 16] ^= 1;
    let strays: Vec<Vec<u8>> = vec![
        vec![],
        vec![1; 23],
        fine[..40].to_vec(),
        torn,
        put(8, 7, |_| {}),
        put(0, 1, |_| {}),
        put(0, 0, |command| command.object = 1),
        put(0, 0, |command| command.flags = Flags::REGISTERED_SIGNAL),
        Head::Data { transfer: 0, offset: 0 }.write(0).to_vec(),
        Head::Verdict { put: 0, verdict: Verdict::Accepted }.write(0).to_vec(),
        Head::Verdict { put: 0, verdict: Verdict::Granted { transfer: 3 } }.write(0).to_vec(),
        Head::Ended { put: 0, failed: false }.write(0).to_vec(),
        [&Head::Ended { put: 0, failed: true }.write(0)[..], &[b'x'; 201]].concat(),
    ];
    for stray in strays {
        let mut job = victim();
        say(&mut job, &stray);
        assert!(is_given_up(&job), "{stray:?}");
    }
}

#[test]
fn out_of_turn_is_no_answer_to_a_put_without_a_sequence() {
    let turn = Verdict::Refused(Refusal::OutOfTurn);
    for (retry, given_up) in [(Retry::InAnyOrder, true), (Retry::InOrder, false)] {
        let mut job = victim();
        job.xtq(1).put(Put::function(Rank(0), 0, 0, [0, 0]).retry(retry)).unwrap();
        job.step();
        say(&mut job, &Head::Verdict { put: 0, verdict: turn }.write(0));
        assert_eq!(is_given_up(&job), given_up, "{retry:?}");
    }
}

#[test]
fn whoever_sends_and_does_not_receive_is_given_up() {
    let mut job = victim();
    let fine = put(0, 0, |_| {});
    for serial in 0..8000 {
        if is_given_up(&job) {
            return;
        }
        let mut message = fine.clone();
        message[..24].copy_from_slice(&Head::Put { put: 0, number: None }.write(serial));
        let mut slot = job.ends[0].bml.reserve(Rank(1), message.len()).unwrap();
        slot.write(0, &message).unwrap();
        job.ends[0].bml.send(slot, AmTag(32), Token::NONE);
        job.step_one(1);
    }
    panic!("nothing stops it");
}

#[test]
fn two_puts_of_one_number_are_one_task() {
    let mut job = victim();
    let runs: Arc<AtomicU32> = Arc::default();
    let count = Arc::clone(&runs);
    let function = Function::new(100, move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    job.xtq(1).register_function(0, function).unwrap();
    job.xtq(1).post(vec![0; 4096]);
    let mut serial = 0;
    let mut send = |job: &mut Job, head: Head, body: &[u8]| {
        say(job, &[&head.write(serial)[..], body].concat());
        serial += 1;
    };
    let packet = put(100, 0, |_| {}).split_off(24);
    for put in 0..2 {
        send(&mut job, Head::Put { put, number: Some(0) }, &packet);
    }
    for transfer in 0..2 {
        send(&mut job, Head::Data { transfer, offset: 0 }, &[7; 100]);
    }
    job.until(|job| job.xtq(1).has_settled().then_some(()));
    assert!(!is_given_up(&job));
    assert_eq!((runs.load(Ordering::Relaxed), job.xtq(1).take_posted().len()), (1, 2));
}

#[test]
fn a_body_that_does_not_come_as_announced_is_refused() {
    let data = |offset: u64, serial: u32, len: usize| {
        let head = Head::Data { transfer: 0, offset }.write(serial);
        [&head[..], &vec![7; len]].concat()
    };
    for wrong in [data(1, 1, 8), data(0, 1, 0), data(0, 1, 101)] {
        let mut job = victim();
        say(&mut job, &put(100, 0, |_| {}));
        assert!(!is_given_up(&job));
        say(&mut job, &wrong);
        assert!(is_given_up(&job), "{wrong:?}");
        job.step();
        assert_eq!(job.xtq(1).take_posted().len(), 1, "the receive buffer is free again");
    }
    // An honest one, after a message that came twice.
    let mut job = victim();
    say(&mut job, &put(100, 0, |_| {}));
    say(&mut job, &put(100, 0, |_| {}));
    say(&mut job, &data(0, 1, 60));
    say(&mut job, &data(60, 2, 40));
    assert!(!is_given_up(&job));
    job.until(|job| job.xtq(1).has_settled().then_some(()));
}

#[test]
fn any_bytes_leave_a_process_that_works() {
    let mut seed = 0x51u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 40).unwrap()
    };
    let fine = put(8, 8, |_| {});
    for round in 0..200 {
        let mut job = victim();
        let mut message = fine.clone();
        for _ in 0..1 + random() % 3 {
            let at = random() % message.len();
            message[at] ^= 1 << (random() % 8);
        }
        message.truncate(1 + random() % (2 * message.len()));
        say(&mut job, &message);
        let own = job.xtq(1).put(Put::function(Rank(1), 0, 0, [0, 0]).acknowledged()).unwrap();
        assert_eq!(job.outcome(&own), Ok(()), "round {round}: {message:?}");
    }
}
