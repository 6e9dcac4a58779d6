//! Whole jobs of floods, in which ranks die at any time: all survivors learn of all deaths, and of nothing else.

use super::*;

/// A generator of numbers that nobody needs to guess.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

/// A job: what each rank knows, and the links between them.
struct Job {
    floods: Vec<Flood>,
    alive: Vec<bool>,
    links: BTreeSet<(u32, u32)>,
    /// Facts under way: from, to, fact.
    posted: Vec<(Rank, Rank, Fact)>,
    messages: usize,
}

impl Job {
    fn new(size: u32) -> Job {
        let mut job = Job {
            floods: (0..size).map(|rank| Flood::new(Rank(rank), size)).collect(),
            alive: vec![true; size as usize],
            links: BTreeSet::new(),
            posted: Vec::new(),
            messages: 0,
        };
        (0..size).for_each(|rank| job.keep_links(rank));
        job
    }

    fn keep_links(&mut self, rank: u32) {
        for peer in self.floods[rank as usize].neighbours().to_vec() {
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
            self.lose(rank, peer);
        }
    }

    fn lose(&mut self, rank: u32, peer: u32) {
        if self.floods[rank as usize].lose(Rank(peer), "nobody listens") {
            self.keep_links(rank);
            self.spread(rank);
        }
    }

    /// Posts what neighbours are owed.
    fn spread(&mut self, rank: u32) {
        let flood = &mut self.floods[rank as usize];
        for peer in flood.neighbours().to_vec() {
            while let Some(fact) = flood.owed(peer).cloned() {
                flood.tell(peer);
                self.posted.push((Rank(rank), peer, fact));
                self.messages += 1;
            }
        }
    }

    /// Ends a rank, and all that it has not sent.
    fn kill(&mut self, rank: u32) {
        self.alive[rank as usize] = false;
        self.posted.retain(|(from, to, _)| from.0 != rank && to.0 != rank);
        let ended: Vec<_> =
            self.links.iter().copied().filter(|&(a, b)| a == rank || b == rank).collect();
        for (a, b) in ended {
            self.links.remove(&(a, b));
            let survivor = if a == rank { b } else { a };
            if self.alive[survivor as usize] {
                self.lose(survivor, rank);
            }
        }
    }

    /// Delivers one message, any one.
    fn deliver(&mut self, random: &mut Random) {
        let at = random.below(self.posted.len());
        let (from, to, fact) = self.posted.swap_remove(at);
        let heard = self.floods[to.0 as usize].hear(from, fact.rank, fact.culprit, &fact.why);
        assert_ne!(heard, Heard::Testimony, "nobody leaves here");
        if heard == Heard::Rumour {
            self.reach(to.0, fact.rank.0);
        }
    }

    fn settle(&mut self, random: &mut Random) {
        while !self.posted.is_empty() {
            self.deliver(random);
        }
    }

    fn check(&self, what: &str) {
        for (rank, flood) in self.floods.iter().enumerate() {
            if self.alive[rank] {
                for peer in 0..self.alive.len() {
                    let known = flood.fact(Rank(u32::try_from(peer).unwrap())).is_some();
                    assert_eq!(known, !self.alive[peer], "{what}: what {rank} knows of {peer}");
                }
            }
        }
    }
}

#[test]
fn everybody_learns_of_one_death_and_of_two() {
    for size in 2..=70 {
        for first in 0..size {
            let mut random = Random(u64::from(size * 71 + first + 1));
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
    for seed in 1..2000u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let size = 2 + random.below(69);
        let deaths = random.below(size);
        let mut job = Job::new(u32::try_from(size).unwrap());
        for _ in 0..deaths {
            // Some at once, some in the middle of a flood, some after it.
            for _ in 0..random.below(4 * size) {
                if !job.posted.is_empty() {
                    job.deliver(&mut random);
                }
            }
            job.kill(u32::try_from(random.below(size)).unwrap());
        }
        job.settle(&mut random);
        job.check(&format!("seed {seed}: {size} ranks"));
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
        job.settle(&mut Random(7));
        job.check(&format!("{row} of {size}"));
    }
}

#[test]
fn a_death_costs_few_messages_and_links() {
    let mut job = Job::new(512);
    assert_eq!(job.floods[0].neighbours().len(), 17, "± 2^k, and one of them is both");
    job.kill(100);
    job.settle(&mut Random(5));
    job.check("one of 512");
    assert!(job.messages <= 512 * 18, "{} messages", job.messages);
}

#[test]
fn rumours_are_no_facts_and_name_the_culprit() {
    let mut flood = Flood::new(Rank(3), 8);
    assert_eq!(flood.hear(Rank(1), Rank(5), Rank(6), "it died"), Heard::Rumour);
    assert_eq!(flood.fact(Rank(5)), None);
    assert_eq!(flood.hear(Rank(2), Rank(5), Rank(7), "a liar says"), Heard::Rumour);
    assert!(flood.lose(Rank(5), "nobody listens") && !flood.lose(Rank(5), "again"));
    let fact = flood.fact(Rank(5)).unwrap();
    assert_eq!((fact.culprit, &*fact.why), (Rank(6), "it died"));
    assert_eq!(flood.hear(Rank(1), Rank(5), Rank(5), "late"), Heard::Stale);
    for (rank, culprit) in [(3, 3), (8, 1), (1, 8), (u32::MAX, 0)] {
        assert_eq!(flood.hear(Rank(1), Rank(rank), Rank(culprit), "nonsense"), Heard::Stale);
    }
    assert_eq!(flood.hear(Rank(1), Rank(1), Rank(5), "it died"), Heard::Testimony);
    assert!(flood.lose(Rank(1), "it left"));
    assert_eq!(flood.fact(Rank(1)).unwrap().culprit, Rank(5));
}

#[test]
fn who_leaves_in_good_order_is_no_fact() {
    let mut flood = Flood::new(Rank(0), 4);
    flood.leaves_well(Rank(1));
    assert!(!flood.lose(Rank(1), "its end") && flood.has_left(Rank(1)));
    assert_eq!(flood.owed(Rank(2)), None);
    let mut alone = Flood::new(Rank(0), 4);
    alone.leave("the launcher is gone");
    assert!(alone.is_leaving());
    assert_eq!(alone.owed(Rank(3)).map(|fact| (fact.rank, fact.culprit)), Some((Rank(0), Rank(0))));
    assert!(flood.lose(Rank(2), "it died"));
    flood.leave("rank 2 is lost");
    flood.leave("a second reason");
    flood.tell(Rank(3));
    let fact = flood.owed(Rank(3)).unwrap();
    assert_eq!((fact.rank, fact.culprit, &*fact.why), (Rank(0), Rank(2), "it died"));
    flood.tell(Rank(3));
    assert_eq!(flood.owed(Rank(3)), None);
}
