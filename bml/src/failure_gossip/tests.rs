//! Whole jobs that gossip, in which ranks die and leave at any time: all survivors learn of all that are gone, and of
//! nothing else.

use super::*;
use gapless_btl_testkit::Random;
use gapless_testkit::rounds;

/// What is said of a rank that has died, or left because of such a one.
fn died(rank: u32, culprit: u32, why: &str) -> Fact {
    Fact { rank: Rank(rank), culprit: Rank(culprit), departed: false, why: why.into() }
}

/// What ranks tell each other.
enum Word {
    Gone(Fact),
    Left,
}

/// A job: what each rank knows, and the links between them.
struct Job {
    gossips: Vec<FailureGossip>,
    alive: Vec<bool>,
    links: BTreeSet<(u32, u32)>,
    /// Words under way: from, to, word.
    posted: Vec<(Rank, Rank, Word)>,
    /// Links that end once what was posted over them has come: from a rank that has ended, to whom.
    ending: BTreeSet<(u32, u32)>,
    messages: usize,
    /// Whether links to ranks that have ended cannot be made, and nothing shows that those have ended.
    is_silent: bool,
}

impl Job {
    fn new(size: u32) -> Job {
        let mut job = Job {
            gossips: (0..size).map(|rank| FailureGossip::new(Rank(rank), size)).collect(),
            alive: vec![true; size as usize],
            links: BTreeSet::new(),
            posted: Vec::new(),
            ending: BTreeSet::new(),
            messages: 0,
            is_silent: false,
        };
        (0..size).for_each(|rank| job.keep_links(rank));
        job
    }

    fn keep_links(&mut self, rank: u32) {
        for peer in self.gossips[rank as usize].neighbours().to_vec() {
            self.reach(rank, peer.0);
        }
    }

    fn reach(&mut self, rank: u32, peer: u32) {
        if self.links.contains(&(rank.min(peer), rank.max(peer))) {
            return;
        }
        if self.alive[peer as usize] {
            self.links.insert((rank.min(peer), rank.max(peer)));
            self.spread(peer);
        } else {
            let cut_off = |gossip: &mut FailureGossip| gossip.cut_off(Rank(peer), "no answer");
            match self.is_silent {
                true => self.ended(rank, cut_off),
                false => self.lose(rank, peer),
            }
        }
    }

    fn lose(&mut self, rank: u32, peer: u32) {
        self.ended(rank, |gossip| gossip.lose(Rank(peer), "nobody listens"));
    }

    fn ended(&mut self, rank: u32, how: impl FnOnce(&mut FailureGossip) -> bool) {
        let news = how(&mut self.gossips[rank as usize]);
        for other in self.gossips[rank as usize].take_due() {
            self.reach(rank, other.0);
        }
        if news {
            self.keep_links(rank);
            self.spread(rank);
        }
    }

    /// Whom a rank has links to.
    fn linked(&self, rank: u32) -> Vec<u32> {
        let links = self.links.iter().filter(|&&(a, b)| a == rank || b == rank);
        links.map(|&(a, b)| if a == rank { b } else { a }).collect()
    }

    /// Posts what neighbours are owed, and if the rank leaves, all that it has links to.
    fn spread(&mut self, rank: u32) {
        let gossip = &self.gossips[rank as usize];
        let audience = match gossip.is_leaving() {
            true => self.linked(rank).into_iter().map(Rank).collect(),
            false => gossip.neighbours().to_vec(),
        };
        let gossip = &mut self.gossips[rank as usize];
        for peer in audience {
            while let Some(fact) = gossip.owed(peer).cloned() {
                gossip.tell(peer);
                if fact.rank != peer {
                    self.posted.push((Rank(rank), peer, Word::Gone(fact)));
                    self.messages += 1;
                }
            }
        }
    }

    /// Ends a rank, and all that it has not sent.
    fn kill(&mut self, rank: u32) {
        self.posted.retain(|(from, _, _)| from.0 != rank);
        self.end(rank);
    }

    /// Ends a rank. What it has sent comes before its links end.
    fn end(&mut self, rank: u32) {
        self.alive[rank as usize] = false;
        self.posted.retain(|(_, to, _)| to.0 != rank);
        self.ending.retain(|(_, to)| *to != rank);
        let linked = self.linked(rank);
        for &peer in linked.iter().filter(|peer| self.alive[**peer as usize]) {
            self.ending.insert((rank, peer));
        }
        self.links.retain(|&(a, b)| a != rank && b != rank);
        for peer in linked {
            self.end_link(rank, peer);
        }
    }

    /// Ends the link to a rank that has ended, if nothing of it is under way any more.
    fn end_link(&mut self, from: u32, to: u32) {
        let under_way = |job: &Job| job.posted.iter().any(|(a, b, _)| (a.0, b.0) == (from, to));
        if self.ending.contains(&(from, to)) && !under_way(self) {
            self.ending.remove(&(from, to));
            self.lose(to, from);
        }
    }

    /// A rank leaves, because of a death that it knows of or for a reason of its own, and lives on.
    fn leave(&mut self, rank: u32) {
        self.gossips[rank as usize].leave("its launcher is gone");
        self.spread(rank);
    }

    /// A rank departs, and ends.
    fn depart(&mut self, rank: u32) {
        self.gossips[rank as usize].depart(None);
        self.spread(rank);
        self.end(rank);
    }

    /// A rank leaves in good order, and ends.
    fn leave_well(&mut self, rank: u32) {
        for peer in self.linked(rank) {
            self.posted.push((Rank(rank), Rank(peer), Word::Left));
        }
        self.end(rank);
    }

    /// Delivers some of what is on its way, or all.
    fn deliver_some(&mut self, random: &mut Random) {
        for _ in 0..random.below(4 * self.alive.len()) {
            if !self.posted.is_empty() {
                self.deliver(random);
            }
        }
    }

    /// Delivers one message, any one. Nothing comes from a peer that is lost.
    fn deliver(&mut self, random: &mut Random) {
        let at = random.below(self.posted.len());
        let (from, to, word) = self.posted.swap_remove(at);
        let gossip = &mut self.gossips[to.0 as usize];
        match word {
            _ if gossip.fact(from).is_some() => {}
            Word::Left => gossip.leaves_well(from),
            Word::Gone(fact) => match gossip.hear(from, fact.clone()) {
                Heard::Nonsense => panic!("nobody lies here"),
                Heard::Stale => {}
                Heard::Rumour => self.reach(to.0, fact.rank.0),
                Heard::Testimony => self.lose(to.0, from.0),
            },
        }
        self.end_link(from.0, to.0);
    }

    fn settle(&mut self, random: &mut Random) {
        while !self.posted.is_empty() {
            self.deliver(random);
        }
    }

    /// Each survivor knows of all that are gone, and of no others. Each blames the gone rank itself, or whom that rank
    /// left because of.
    fn check(&self, what: &str) {
        for (rank, gossip) in self.gossips.iter().enumerate().filter(|&(rank, _)| self.alive[rank])
        {
            for (peer, own) in (0..).map(Rank).zip(&self.gossips) {
                let (fact, alive) = (gossip.fact(peer), self.alive[peer.0 as usize]);
                assert_eq!(fact.is_none(), alive, "{what}: what {rank} knows of {peer}");
                let left = own.fact(peer).map(|fact| fact.culprit);
                if let Some(culprit) = fact.map(|fact| fact.culprit) {
                    let right = culprit == peer || Some(culprit) == left;
                    assert!(
                        right,
                        "{what}: {rank} blames {culprit} for {peer}, which says {left:?}"
                    );
                }
            }
        }
    }

    /// Survivors say of one rank alone that `peer` is gone because of it.
    fn check_culprit(&self, peer: u32, culprit: u32, what: &str) {
        for (rank, gossip) in self.gossips.iter().enumerate().filter(|&(rank, _)| self.alive[rank])
        {
            let fact = gossip.fact(Rank(peer)).map(|fact| fact.culprit);
            assert_eq!(fact, Some(Rank(culprit)), "{what}: whom {rank} blames for {peer}");
        }
    }
}

#[test]
fn everybody_learns_of_one_death_and_of_two() {
    for size in 2..=70 {
        for first in 0..size {
            let mut random = Random::new(u64::from(size * 71 + first + 1));
            let mut job = Job::new(size);
            job.kill(first);
            job.settle(&mut random);
            job.check(&format!("{size} ranks without {first}"));
            // A neighbour of the dead, or any other.
            let second = (first + 1 + u32::try_from(random.below(size as usize)).unwrap()) % size;
            if job.alive[second as usize] {
                job.kill(second);
                job.settle(&mut random);
                job.check(&format!("{size} ranks without {first} and {second}"));
            }
        }
    }
}

#[test]
fn everybody_learns_of_all_deaths_whenever_they_happen() {
    for seed in 1..=rounds(2000) {
        let mut random = Random::new(seed);
        let size = 2 + random.below(69);
        let deaths = random.below(size);
        let mut job = Job::new(u32::try_from(size).unwrap());
        for _ in 0..deaths {
            // Some at once, some in the middle of gossip, some after it.
            job.deliver_some(&mut random);
            job.kill(u32::try_from(random.below(size)).unwrap());
        }
        job.settle(&mut random);
        job.check(&format!("seed {seed}: {size} ranks"));
    }
}

#[test]
fn everybody_blames_the_death_that_others_left_because_of() {
    for size in 3..=70 {
        let mut random = Random::new(u64::from(size) * 77 + 1);
        let mut job = Job::new(size);
        let mut other = |not: &[u32]| loop {
            let rank = u32::try_from(random.below(size as usize)).unwrap();
            if !not.contains(&rank) {
                return rank;
            }
        };
        let dead = other(&[]);
        let left = other(&[dead]);
        job.kill(dead);
        job.settle(&mut random);
        job.leave(left);
        if size % 2 == 0 {
            job.settle(&mut random);
        }
        job.end(left);
        job.settle(&mut random);
        let what = format!("{size} ranks without {dead}, and without {left}, which left");
        job.check(&what);
        job.check_culprit(left, dead, &what);
    }
}

#[test]
fn everybody_learns_of_all_that_leave_while_others_die() {
    for seed in 1..=rounds(600) {
        let mut random = Random::new(seed);
        let size = 2 + random.below(69);
        let mut job = Job::new(u32::try_from(size).unwrap());
        for _ in 0..random.below(size) {
            job.deliver_some(&mut random);
            let rank = u32::try_from(random.below(size)).unwrap();
            match (job.alive[rank as usize], job.gossips[rank as usize].is_leaving()) {
                (false, _) => {}
                (true, true) => job.end(rank),
                (true, false) if random.below(2) == 0 => job.leave(rank),
                (true, false) => job.kill(rank),
            }
        }
        for rank in (0..).take(size) {
            if job.gossips[rank as usize].is_leaving() && job.alive[rank as usize] {
                job.end(rank);
            }
        }
        job.settle(&mut random);
        job.check(&format!("seed {seed}: {size} ranks"));
    }
}

/// Whether its address says that nobody is there any more, or nothing at all.
#[test]
fn everybody_learns_of_a_departure() {
    for is_silent in [false, true] {
        for size in 2..=70 {
            let mut random = Random::new(u64::from(size) * 79 + 1);
            let mut job = Job::new(size);
            job.is_silent = is_silent;
            let departed = u32::try_from(random.below(size as usize)).unwrap();
            job.depart(departed);
            job.settle(&mut random);
            let what = format!("{size} ranks without {departed}, silent: {is_silent}");
            job.check(&what);
            job.check_culprit(departed, departed, &what);
            let survivors = job.gossips.iter().zip(&job.alive).filter(|(_, alive)| **alive);
            for (gossip, _) in survivors {
                assert!(gossip.has_departed(Rank(departed)), "{what}");
            }
        }
    }
}

/// In the middle of gossip, too: whoever was told does not take it for a death.
#[test]
fn who_leaves_in_good_order_is_not_gone() {
    for seed in 1..200u64 {
        let mut random = Random::new(seed);
        let size = 2 + random.below(69);
        let mut job = Job::new(u32::try_from(size).unwrap());
        for _ in 0..random.below(size) {
            job.deliver_some(&mut random);
            let rank = u32::try_from(random.below(size)).unwrap();
            match (job.alive[rank as usize], random.below(2)) {
                (false, _) => {}
                (true, 0) => job.leave_well(rank),
                (true, _) => job.kill(rank),
            }
        }
        job.settle(&mut random);
        for (rank, gossip) in job.gossips.iter().enumerate().filter(|&(rank, _)| job.alive[rank]) {
            for peer in (0..).take(size).map(Rank) {
                let wrong = gossip.fact(peer).is_some()
                    && (job.alive[peer.0 as usize] || gossip.has_left(peer));
                assert!(!wrong, "seed {seed}: {rank} takes {peer} for dead");
            }
        }
    }
}

/// A whole row of the ring dies at once, so that nobody who had a link to those inside is left.
#[test]
fn a_row_of_deaths_is_found_from_its_ends() {
    for (size, row) in [(70, 68), (64, 40), (33, 20), (5, 3)] {
        let mut job = Job::new(size);
        for rank in 1..=row {
            job.alive[rank as usize] = false;
        }
        for rank in 1..=row {
            job.kill(rank);
        }
        job.settle(&mut Random::new(7));
        job.check(&format!("{row} of {size}"));
    }
}

#[test]
fn a_death_costs_few_messages_and_links() {
    let mut job = Job::new(512);
    assert_eq!(job.gossips[0].neighbours().len(), 17, "± 2^k, and one of them is both");
    job.kill(100);
    job.settle(&mut Random::new(5));
    job.check("one of 512");
    assert!(job.messages <= 512 * 18, "{} messages", job.messages);
}

#[test]
fn rumours_are_no_facts_and_name_the_culprit() {
    let mut gossip = FailureGossip::new(Rank(3), 8);
    assert_eq!(gossip.hear(Rank(1), died(5, 6, "it died")), Heard::Rumour);
    assert_eq!(gossip.fact(Rank(5)), None);
    assert_eq!(gossip.hear(Rank(2), died(5, 7, "a liar says")), Heard::Stale);
    // Whoever came too late knows no culprit, whether it speaks first or last.
    assert_eq!(gossip.hear(Rank(2), died(5, 5, "nobody listens")), Heard::Stale);
    assert_eq!(gossip.hear(Rank(2), died(6, 6, "nobody listens")), Heard::Rumour);
    assert_eq!(gossip.hear(Rank(1), died(6, 7, "it died")), Heard::Stale);
    assert!(gossip.lose(Rank(6), "nobody listens"));
    assert_eq!(gossip.fact(Rank(6)).unwrap().culprit, Rank(7));
    assert!(gossip.lose(Rank(5), "nobody listens") && !gossip.lose(Rank(5), "again"));
    let fact = gossip.fact(Rank(5)).unwrap();
    assert_eq!((fact.culprit, &*fact.why), (Rank(6), "it died"));
    assert_eq!(gossip.hear(Rank(1), died(5, 5, "late")), Heard::Stale);
    for (rank, culprit) in [(8, 1), (1, 8), (u32::MAX, 0)] {
        assert_eq!(gossip.hear(Rank(1), died(rank, culprit, "nonsense")), Heard::Nonsense);
    }
    assert_eq!(gossip.hear(Rank(1), died(3, 3, "we live")), Heard::Stale);
    assert_eq!(gossip.hear(Rank(1), died(1, 5, "it died")), Heard::Testimony);
    assert!(gossip.lose(Rank(1), "it left"));
    assert_eq!(gossip.fact(Rank(1)).unwrap().culprit, Rank(5));
}

#[test]
fn few_links_are_tried_at_a_time_on_one_peers_word() {
    let (liar, honest) = (Rank(1), Rank(2));
    let mut gossip = FailureGossip::new(Rank(0), 100);
    let hear = |gossip: &mut FailureGossip, from, rank| gossip.hear(from, died(rank, rank, "dead"));
    let most = u32::try_from(CHECKS).unwrap();
    for rank in 10..10 + most {
        assert_eq!(hear(&mut gossip, liar, rank), Heard::Rumour);
    }
    for rank in 10..90 {
        assert_eq!(hear(&mut gossip, liar, rank), Heard::Stale, "{rank} is checked, or waits");
    }
    assert_eq!(gossip.take_due(), []);
    // What another says is checked at once.
    assert_eq!(hear(&mut gossip, honest, 10), Heard::Stale, "it is being checked");
    assert_eq!(hear(&mut gossip, honest, 50), Heard::Rumour);
    assert!(gossip.lose(Rank(50), "nobody listens"));
    assert_eq!(gossip.take_due(), [], "none of the liar's was shown to be right");
    // Each that ends, however it does, lets the next one be checked.
    assert!(gossip.lose(Rank(10), "nobody listens"));
    assert!(!gossip.cut_off(Rank(11), "no answer"));
    assert_eq!(gossip.take_due(), [10 + most, 11 + most].map(Rank));
    for rank in 12..90 {
        gossip.lose(Rank(rank), "nobody listens");
    }
    assert_eq!(gossip.take_due().len(), 80 - CHECKS - 3, "none twice, nor 50");
    assert_eq!(hear(&mut gossip, liar, 91), Heard::Rumour);
}

#[test]
fn another_neighbour_is_looked_for_in_the_place_of_one_that_was_given_up() {
    let mut gossip = FailureGossip::new(Rank(0), 8);
    assert_eq!(gossip.neighbours(), [1, 2, 4, 6, 7].map(Rank));
    assert!(!gossip.cut_off(Rank(1), "no answer"));
    assert!(!gossip.cut_off(Rank(4), "no answer"));
    assert_eq!(gossip.neighbours(), [2, 3, 5, 6, 7].map(Rank));
    assert_eq!(gossip.fact(Rank(1)), None, "it may live");
}

#[test]
fn who_leaves_in_good_order_is_no_fact() {
    let mut gossip = FailureGossip::new(Rank(0), 4);
    gossip.leaves_well(Rank(1));
    assert!(!gossip.lose(Rank(1), "its end") && gossip.has_left(Rank(1)));
    assert_eq!(gossip.owed(Rank(2)), None);
    let mut alone = FailureGossip::new(Rank(0), 4);
    alone.leave("the launcher is gone");
    assert!(alone.is_leaving());
    assert_eq!(alone.owed(Rank(3)).map(|fact| (fact.rank, fact.culprit)), Some((Rank(0), Rank(0))));
    assert!(gossip.lose(Rank(2), "it died"));
    gossip.leave("rank 2 is lost");
    gossip.leave("a second reason");
    gossip.tell(Rank(3));
    let fact = gossip.owed(Rank(3)).unwrap();
    assert_eq!((fact.rank, fact.culprit, &*fact.why), (Rank(0), Rank(2), "it died"));
    gossip.tell(Rank(3));
    assert_eq!(gossip.owed(Rank(3)), None);
}
