//! How peers that several rails lead to leave and die, and which rail has one-sided operations.

use super::*;
use crate::{RailSlot, RdmaRail};
use gapless_btl::delegate;

#[test]
fn who_leaves_in_good_order_is_nobodys_fault() {
    let mut job = Job::new(2);
    job.rest(3);
    job.ranks[0].leave_well();
    assert!(job.ranks[0].has_told_all());
    assert!(job.lines.iter().all(|line| line.deliver(1)));
    job.poll(1);
    for line in [1, 0] {
        assert!(job.takers[1].lost.is_empty(), "it may say more over the other");
        job.lines[line].notice(1, gone());
        job.poll(1);
    }
    assert_eq!(job.takers[1].lost.len(), 1);
    assert_eq!(job.ranks[1].casualty(), None);
}

/// A rail that never stood, or is full for ever, does not hold up who leaves: another has taken the word.
#[test]
fn who_leaves_waits_for_no_rail_that_never_stood() {
    let mut job = Job::new(2);
    job.rest(3);
    for _ in 0..SLOTS {
        let (tag, message, done) = (TAG, vec![0; 9], Token::NONE);
        job.lines[0].state().ways[1].retained.push_back(Unacknowledged { tag, message, done });
    }
    job.ranks[0].leave_well();
    assert!(job.ranks[0].has_told_all());
    assert!(job.lines[1].deliver(1) && !job.lines[0].deliver(1));
}

/// A death is told in its turn, behind the messages before it, whichever rail has them.
#[test]
fn who_leaves_because_of_an_error_is_heard_to_the_end() {
    let mut job = Job::new(2);
    for _ in 0..5 {
        assert!(job.say(0));
    }
    job.ranks[0].leave_because(&gone());
    job.lines[1].cut();
    for line in [1, 0] {
        job.lines[line].deliver_all(1);
    }
    job.poll(1);
    assert!(job.takers[1].lost.is_empty(), "messages are missing");
    (0..2).for_each(|end| job.lines[1].notice(end, gone()));
    for _ in 0..20 {
        (0..2).for_each(|rank| job.poll(rank));
        job.lines[0].deliver_all(1);
        job.lines[0].confirm(1);
    }
    assert_eq!(job.takers[1].got, [0, 1, 2, 3, 4]);
    assert!(job.takers[1].lost[0].to_string().contains("left the job"));
}

/// Whoever leaves is heard to the end, wherever its last messages are, and whichever rail is cut when.
#[test]
fn who_leaves_in_good_order_is_heard_to_the_end() {
    for seed in 0..4 {
        let script = script(300 + seed, 2, STEPS);
        for at in (0..STEPS).step_by(2) {
            for (line, delays) in (0..2).flat_map(|line| DELAYS.map(|delays| (line, delays))) {
                let what = || format!("seed {seed}, line {line} cut at {at}, {delays:?}");
                let mut job = run(&script, 2, &[(at, line, delays)], Some(at));
                job.rest(0);
                (0..8).for_each(|_| job.turn(0));
                job.check(true, &what);
                assert!(job.ranks[0].has_told_all(), "{}", what());
                assert_eq!(job.ranks[1].casualty(), None);
                job.lines[1 - line].notice(1, gone());
                job.poll(1);
                assert_eq!(job.takers[1].lost.len(), 1, "{}", what());
                assert_eq!(job.ranks[1].casualty(), None, "it has said that it leaves: {}", what());
            }
        }
    }
}

/// Its last word waits for what it said before, also if the rail ends by which the word has come.
#[test]
fn the_last_word_overtakes_nothing() {
    let mut job = Job::new(2);
    assert!(job.say(0));
    let carrier = job.carrier();
    job.ranks[0].leave_well();
    for (line, got) in [(1 - carrier, &[][..]), (carrier, &[0])] {
        assert!(job.takers[1].lost.is_empty());
        job.lines[line].deliver_all(1);
        job.poll(1);
        assert_eq!(job.takers[1].got, got);
        job.lines[line].notice(1, gone());
        job.poll(1);
    }
    assert_eq!(job.takers[1].lost.len(), 1);
    assert_eq!(job.ranks[1].casualty(), None);
}

/// Who leaves although messages have not arrived does not leave in good order.
#[test]
fn a_last_word_behind_a_message_that_never_comes_is_none() {
    let mut job = Job::new(2);
    assert!(job.say(0));
    let carrier = job.carrier();
    job.ranks[0].leave_well();
    job.lines[carrier].cut();
    job.lines[1 - carrier].deliver_all(1);
    job.poll(1);
    job.lines.iter().for_each(|line| line.notice(1, gone()));
    job.poll(1);
    assert_eq!(job.takers[1].lost.len(), 1);
    assert_eq!(job.ranks[1].casualty().map(|(rank, _)| rank), Some(Rank(0)));
}

/// A process dies while one of its rails is silent: others close, this one only falls silent for good.
#[test]
fn a_death_is_one_although_a_silent_rail_ends_last() {
    let silent = || LinkError::Unreachable { reason: "no answer".to_owned() };
    for errors in [[gone(), silent()], [silent(), gone()]] {
        let mut job = Job::new(2);
        job.rest(3);
        for (line, error) in errors.into_iter().enumerate() {
            job.lines[line].cut();
            job.lines[line].notice(1, error);
            job.poll(1);
        }
        assert_eq!(job.takers[1].lost, [gone()]);
        assert!(job.ranks[1].is_gone(Rank(0)), "a fact, which others are told");
    }
}

/// A death that a peer has told of is heard, although messages before that are lost with the peer.
#[test]
fn a_word_about_a_death_is_heard_although_messages_are_missing() {
    let mut job = Job::new(2);
    assert!(job.say(0));
    let carrier = job.carrier();
    job.ranks[0].leave_because(&LinkError::PeerGone { reason: "out of paper".to_owned() });
    assert!(job.lines[1 - carrier].flies(1), "it takes the other rail");
    job.lines[carrier].cut();
    job.lines[1 - carrier].deliver_all(1);
    job.poll(1);
    assert!(job.takers[1].lost.is_empty());
    for line in [carrier, 1 - carrier] {
        job.lines[line].notice(1, gone());
        job.poll(1);
    }
    let lost = &job.takers[1].lost;
    assert!(matches!(&lost[..], [one] if one.to_string().contains("out of paper")), "{lost:?}");
}

/// A loopback that says it retains, which it need not where nothing is cut.
struct Keeping {
    inner: Loopback,
}

impl Btl for Keeping {
    delegate!(self => self.inner; limits address connect reserve send poll rdma);

    fn retains(&self) -> bool {
        true
    }
}

/// Keys are of one rail, so both ends must have chosen the same, whatever each calls it.
#[test]
fn both_ends_have_operations_over_the_same_rail() {
    let hubs = [Hub::new(), Hub::new()];
    // What each calls the rail over the first hub, and that over the second.
    let names = [["one", "two"], ["two", "one"]];
    let mut ranks = [0u32, 1].map(|me| {
        let mut bml = Bml::new(Rank(me), 2);
        for (hub, name) in hubs.iter().zip(names[me as usize]) {
            bml.add(Box::new(Keeping { inner: Loopback::with(hub, named(name, 100)) }));
        }
        bml
    });
    let addresses = ranks.each_ref().map(Bml::addresses);
    for me in 0..2 {
        // The other's addresses, by the names that their rails have here.
        let theirs = addresses[1 - me].iter().zip(names[me]);
        let theirs: Vec<_> = theirs.map(|((_, it), name)| (name.to_owned(), it.clone())).collect();
        ranks[me].connect(Rank(u32::try_from(1 - me).unwrap()), &theirs).unwrap();
    }
    let [one, other] = [0, 1].map(|me: usize| {
        let rail = ranks[me].rdma_rail(Rank(u32::try_from(1 - me).unwrap())).unwrap();
        // Rail 0 is the way to oneself, the others lead over the hubs.
        rail.0 - 1
    });
    assert_eq!(one, other, "over the same hub");
}

/// A rail's transport has another link to the same process, by which numbers are changed. Its end ends no rail.
#[test]
fn the_end_of_a_link_for_changes_ends_no_rail() {
    let mut job = Job::new(2);
    let carrier = job.say_over_both();
    let address = Address::new(b"elsewhere").unwrap();
    assert!(job.ranks[0].meet_for_changes(RdmaRail(1 + carrier), Rank(1), &address));
    job.lines[carrier].state().other = Some(gone());
    job.poll(0);
    assert_eq!(job.ranks[0].rails_to(Rank(1)).len(), 2);
    assert!(job.takers[0].lost.is_empty());
    job.rest(20);
    job.check(true, &String::new);
}

/// The last message of the last rail comes in the same poll as its end: what waited for it is delivered nevertheless.
#[test]
fn messages_that_wait_for_the_last_one_are_delivered_before_the_loss() {
    for leaves in [false, true] {
        let mut job = Job::new(2);
        let carrier = job.say_over_both();
        let other = 1 - carrier;
        if leaves {
            job.ranks[0].leave_well();
        }
        job.lines[other].deliver_all(1);
        job.poll(1);
        job.lines[other].notice(1, gone());
        job.poll(1);
        assert!(job.takers[1].got.len() < usize::from(job.said[0]));
        job.lines[carrier].deliver_all(1);
        job.lines[carrier].notice(1, gone());
        job.poll(1);
        let all: Vec<u8> = (0..job.said[0]).collect();
        assert_eq!((&job.takers[1].got, job.takers[1].lost.len()), (&all, 1));
        assert_eq!(job.ranks[1].casualty().is_none(), leaves);
    }
}

/// Keeps a slot until a message of rank 0 comes that waited for an earlier one, and sends it then.
#[derive(Default)]
struct Late {
    slot: Option<RailSlot>,
    got: Vec<u8>,
    sent: Vec<(u64, bool)>,
    lost: usize,
}

impl Handler for Late {
    fn handle(&mut self, bml: &mut Bml, event: RankEvent) {
        match event {
            RankEvent::Arrived { fragment, .. } => {
                self.got.push(fragment.to_vec().unwrap()[0]);
                if let Some(slot) = self.slot.take() {
                    bml.send(slot, TAG, Token(50));
                }
            }
            RankEvent::Sent { token, result } => self.sent.push((token.0, result.is_ok())),
            RankEvent::Lost { .. } => self.lost += 1,
            other => panic!("{other:?}"),
        }
    }

    fn fragment(&mut self, _: Rank, _: AmTag, fragment: &Fragment) -> bool {
        self.got.push(fragment.to_vec().unwrap()[0]);
        true
    }
}

/// What waited for the last message of a rail is answered over that rail, which has ended: the answer takes another.
#[test]
fn what_is_sent_at_the_end_of_a_rail_is_sent_again() {
    let mut job = Job::new(2);
    let carrier = job.say_over_both();
    let other = 1 - carrier;
    let mut slot = job.ranks[1].reserve(Rank(0), 1).unwrap();
    slot.write(0, &[7]).unwrap();
    let mut late = Late { slot: Some(slot), ..Late::default() };
    job.lines[other].deliver_all(1);
    job.ranks[1].poll(&mut late);
    assert!(late.got.is_empty());
    job.lines[carrier].deliver_all(1);
    job.lines[carrier].cut();
    (0..2).for_each(|end| job.lines[carrier].notice(end, gone()));
    job.ranks[1].poll(&mut late);
    assert!(late.slot.is_none() && late.got.len() == usize::from(job.said[0]));
    assert!(job.lines[carrier].state().ways[0].retained.is_empty(), "the bundle has it");
    for _ in 0..4 {
        job.lines[other].deliver_all(0);
        job.poll(0);
        job.lines[other].confirm(0);
        job.ranks[1].poll(&mut late);
    }
    assert_eq!(
        (&job.takers[0].got[..], &late.sent[..], late.lost),
        (&[7][..], &[(50, true)][..], 0)
    );
}

/// A word that a peer leaves waited for the last message of a rail: what is under way over that rail ends nevertheless.
#[test]
fn what_is_under_way_to_who_leaves_at_the_end_of_a_rail_ends() {
    let mut job = Job::new(2);
    assert!(job.say(0) && job.say(1));
    let carrier = job.carrier();
    let other = 1 - carrier;
    assert!(job.lines[carrier].flies(0));
    job.ranks[0].leave_because(&gone());
    assert!(job.lines[other].flies(1), "it takes the other rail");
    let mut late = Late::default();
    job.lines[other].deliver_all(1);
    job.ranks[1].poll(&mut late);
    job.lines[carrier].deliver_all(1);
    job.lines[carrier].cut();
    job.lines[carrier].notice(1, gone());
    (0..3).for_each(|_| {
        job.ranks[1].poll(&mut late);
    });
    assert_eq!((&late.got[..], &late.sent[..], late.lost), (&[0][..], &[(0, false)][..], 1));
}
