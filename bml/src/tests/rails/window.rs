//! How far a sender may be ahead of a message that does not come.

use super::*;
use crate::window::WINDOW_MESSAGES;

/// A rail may hold one message back for long, while others carry what comes behind it and that is copied: the sender
/// stops before the receiver would take it for one that breaks the rules.
#[test]
fn who_waits_for_one_message_gets_no_others() {
    let mut job = Job::new(3);
    job.lines[2].cut();
    (0..2).for_each(|end| job.lines[2].notice(end, gone()));
    (0..2).for_each(|rank| job.poll(rank));
    let mut sent = 0u64;
    let send = |job: &mut Job| {
        let Ok(mut slot) = job.ranks[0].reserve(Rank(1), 1) else { return false };
        slot.write(0, &[7]).unwrap();
        job.ranks[0].send(slot, TAG, Token::NONE);
        true
    };
    while send(&mut job) {
        sent += 1;
        assert!(sent <= WINDOW_MESSAGES);
        job.lines[1].deliver(1);
        job.poll(1);
        job.lines[1].confirm(1);
    }
    assert_eq!((sent, job.lines[0].state().ways[1].flying.len()), (WINDOW_MESSAGES, 1));
    assert!(job.takers[1].got.is_empty() && job.takers[1].lost.is_empty());
    // The rail ends: so many may be sent again and anew.
    job.lines[0].cut();
    (0..2).for_each(|end| job.lines[0].notice(end, gone()));
    for _ in 0..4 {
        sent += u64::from(send(&mut job));
        job.lines[1].deliver(1);
        (0..2).for_each(|rank| job.poll(rank));
        job.lines[1].confirm(1);
    }
    assert!(sent > WINDOW_MESSAGES);
    assert_eq!(job.takers[1].got.len() as u64, sent);
    assert!(job.takers[1].lost.is_empty());
}
