//! Words about who is gone: a process that leaves says why; what others say of a third is checked.

use super::*;
use gapless_btl::{Btl, PeerId};
use std::time::{Duration, Instant};

fn gone(reason: &str) -> LinkError {
    LinkError::PeerGone { reason: reason.to_owned() }
}

/// Three ranks, each connected to the others.
fn trio(hub: &Hub) -> [Bml; 3] {
    let mut all = [0, 1, 2].map(|me| rank(&[(hub, named("x", 100))], me, 3));
    let addresses = all.each_ref().map(Bml::addresses);
    for (me, bml) in all.iter_mut().enumerate() {
        for (peer, addresses) in (0u32..).zip(&addresses) {
            if peer as usize != me {
                bml.introduce(Rank(peer), addresses).unwrap();
            }
        }
        bml.watch();
    }
    all
}

fn losses(events: &[RankEvent]) -> Vec<u32> {
    let lost = events.iter().filter_map(|event| match event {
        RankEvent::Lost { peer, .. } => Some(peer.0),
        _ => None,
    });
    lost.collect()
}

/// The next losses. A peer over whose link no message has gone is lost some time after that has ended.
fn next_losses(bml: &mut Bml) -> Vec<u32> {
    let started = Instant::now();
    loop {
        let lost = losses(&poll(bml));
        if !lost.is_empty() {
            return lost;
        }
        assert!(started.elapsed() < Duration::from_secs(10), "nobody is lost");
    }
}

#[test]
fn a_peer_that_leaves_because_of_a_death_is_not_blamed() {
    let [mut a, b, mut c] = trio(&Hub::new());
    drop(b);
    assert_eq!(next_losses(&mut c), [1]);
    c.leave_because(&gone("rank 1 is lost"));
    assert!(c.has_told_all());
    let mut lost = losses(&poll(&mut a));
    lost.sort_unstable();
    assert_eq!(lost, [1, 2], "at once, although the link to one of them is up");
    assert_eq!(a.blame(Rank(2)).unwrap().0, Rank(1));
    assert_eq!(a.casualty().unwrap().0, Rank(1));
    drop(c);
    assert_eq!(losses(&poll(&mut a)), [], "once");
}

#[test]
fn a_peer_that_leaves_for_a_reason_of_its_own_says_so() {
    let [mut a, mut b, mut c] = trio(&Hub::new());
    c.leave_because(&gone("its launcher has died"));
    for end in [&mut a, &mut b] {
        assert_eq!(losses(&poll(end)), [2]);
        let (culprit, error) = end.blame(Rank(2)).unwrap();
        assert_eq!(culprit, Rank(2));
        assert!(error.to_string().contains("its launcher has died"), "{error}");
    }
    assert!(matches!(a.state(Rank(1)), PeerState::Up), "which is no reason to lose another");
    assert_eq!(a.blame(Rank(1)), None);
}

/// It may live on. Who leaves because it needed that one names it as well; who does not leave names nobody.
#[test]
fn a_peer_that_departs_is_blamed_and_no_casualty() {
    let [mut a, mut b, mut c] = trio(&Hub::new());
    assert_eq!(c.depart(None), Rank(2));
    assert!(c.has_told_all());
    for end in [&mut a, &mut b] {
        assert_eq!(losses(&poll(end)), [2]);
        assert_eq!(end.blame(Rank(2)), Some((Rank(2), LinkError::Departed)));
        assert!(!end.is_gone(Rank(2)));
    }
    assert_eq!(b.depart(Some(Rank(2))), Rank(2), "because of it");
    assert_eq!(losses(&poll(&mut a)), [1]);
    assert_eq!(a.blame(Rank(1)), Some((Rank(2), LinkError::Departed)));
    assert_eq!(a.deserter(), Some((Rank(2), LinkError::Departed)));
    assert_eq!(a.casualty(), None);
    assert_eq!(a.depart(None), Rank(0), "it has not missed them");
}

#[test]
fn those_that_are_left_know_of_each_other() {
    let [mut a, mut b, mut c] = trio(&Hub::new());
    a.leave_together(0);
    c.leave_together(0);
    [&mut a, &mut b, &mut c].into_iter().for_each(|end| drop(poll(end)));
    assert_eq!(a.is_together(0), None);
    b.depart(None);
    for _ in 0..2 {
        [&mut a, &mut c].into_iter().for_each(|end| drop(poll(end)));
    }
    assert_eq!((a.is_together(0), c.is_together(0)), (Some(false), Some(false)));
    assert_eq!(a.is_together(1), None);
    let [mut a, mut b, mut c] = trio(&Hub::new());
    for step in 0..2 {
        [&mut a, &mut b, &mut c].into_iter().for_each(|end| end.leave_together(step));
        for _ in 0..2 {
            [&mut a, &mut b, &mut c].into_iter().for_each(|end| drop(poll(end)));
        }
        assert_eq!(b.is_together(step), Some(true));
    }
}

#[test]
fn a_peer_that_leaves_in_good_order_is_no_casualty() {
    let [mut a, b, mut c] = trio(&Hub::new());
    c.leave_well();
    assert!(c.has_told_all());
    assert_eq!(losses(&poll(&mut a)), []);
    drop(c);
    assert_eq!(losses(&poll(&mut a)), [2]);
    assert_eq!(a.casualty(), None);
    drop(b);
    assert_eq!(next_losses(&mut a), [1]);
    assert_eq!(a.casualty().unwrap().0, Rank(1));
}

/// A link ends before any message has gone over it: the peer could not say that it left because of another. Another peer
/// says so.
#[test]
fn a_peer_that_left_before_it_was_met_is_not_blamed() {
    let [mut a, b, mut c] = trio(&Hub::new());
    a.set_explanation_time(Duration::from_secs(3600));
    drop(b);
    let is_full = |a: &mut Bml| matches!(a.reserve(Rank(1), 1), Err(ReserveError::Full));
    assert!(is_full(&mut a), "before it is known that the link has ended");
    for _ in 0..3 {
        assert_eq!(losses(&poll(&mut a)), [], "another peer may know more");
        assert!(is_full(&mut a) && a.casualty().is_none());
    }
    let (rail, to_a) = c.path_for_tests(Rank(0), 0);
    say_control(c.btl_for_tests(rail), to_a, &gone_because(1, 2));
    assert_eq!(next_losses(&mut a), [1]);
    assert_eq!(a.blame(Rank(1)).unwrap().0, Rank(2));
    assert_eq!(losses(&poll(&mut a)), [], "once");
}

/// The control message that says that `rank` is gone.
fn gone_because(rank: u32, culprit: u32) -> Vec<u8> {
    [&[2], &rank.to_le_bytes()[..], &culprit.to_le_bytes()[..], b"dead"].concat()
}

fn say_control(btl: &mut dyn Btl, to: PeerId, message: &[u8]) {
    let mut slot = btl.reserve(to, message.len()).unwrap();
    slot.write(0, message).unwrap();
    btl.send(slot, Bml::CONTROL_TAG, Token::NONE);
}

#[test]
fn whoever_says_nonsense_of_others_is_given_up() {
    let whole = gone_because(1, 1);
    let mut cases = vec![vec![], vec![0], vec![4, 0], vec![255; 9], vec![1, 0], [2; 200].to_vec()];
    cases.extend([1, 5, 8].map(|len| whole[..len].to_vec()));
    cases.extend([(3, 1), (1, 3), (u32::MAX, u32::MAX)].map(|(a, b)| gone_because(a, b)));
    for message in cases {
        let [mut a, mut b, mut c] = trio(&Hub::new());
        let (rail, to_a) = c.path_for_tests(Rank(0), 0);
        say_control(c.btl_for_tests(rail), to_a, &message);
        let lost = [losses(&poll(&mut a)), losses(&poll(&mut a))].concat();
        assert_eq!(lost, [2], "{message:?}");
        let corrupt = matches!(a.state(Rank(2)), PeerState::Lost(LinkError::Corrupt { .. }));
        assert!(corrupt, "{message:?}: {:?}", a.state(Rank(2)));
        assert_eq!(losses(&poll(&mut c)), [0], "it is told");
        say(&mut b, 0, 3, b"alive", Token::NONE);
        assert!(matches!(&poll(&mut a)[..], [RankEvent::Arrived { from: Rank(1), .. }]));
    }
}

#[test]
fn nobody_is_lost_on_anothers_word() {
    let [mut a, mut b, mut c] = trio(&Hub::new());
    let (rail, to_a) = c.path_for_tests(Rank(0), 0);
    for (rank, culprit) in [(1, 1), (1, 2), (0, 0)] {
        say_control(c.btl_for_tests(rail), to_a, &gone_because(rank, culprit));
        assert_eq!(losses(&poll(&mut a)), []);
    }
    assert!([1, 2].iter().all(|&peer| matches!(a.state(Rank(peer)), PeerState::Up)));
    say(&mut b, 0, 3, b"alive", Token::NONE);
    assert!(matches!(&poll(&mut a)[..], [RankEvent::Arrived { from: Rank(1), .. }]));
    assert_eq!(a.casualty(), None);
}
