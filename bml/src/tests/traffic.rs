//! Many messages: under faults, between threads that sleep, and to oneself.

use super::{Log, named, poll, say};
use crate::{Bml, Handler, Patience, Rank, RankEvent, Waiter};
use gapless_btl::loopback::{Config, Hub, Loopback};
use gapless_btl::{AmTag, ReserveError, Token};
use gapless_btl_testkit::fault::{Fault, Plan};
use std::time::Duration;

/// Checks that what comes from each rank comes in order, and counts.
struct Counter {
    next: Vec<u64>,
    ended: u64,
}

impl Handler for Counter {
    fn handle(&mut self, _: &mut Bml, event: RankEvent) {
        match event {
            RankEvent::Arrived { from, fragment, .. } => {
                let mut number = [0; 8];
                fragment.read(0, &mut number).unwrap();
                let next = &mut self.next[from.0 as usize];
                assert_eq!(u64::from_le_bytes(number), *next, "from {from}");
                *next += 1;
            }
            RankEvent::Sent { result, .. } => {
                result.unwrap();
                self.ended += 1;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Four ranks in one thread, all to all, oneself included, on two rails that misbehave.
#[test]
fn everything_arrives_in_order_under_faults() {
    const RANKS: u32 = 4;
    const MESSAGES: u64 = 60;
    for seed in 0..40 {
        let (x, y) = (Hub::new(), Hub::new());
        let mut ranks: Vec<Bml> = (0..RANKS).map(|me| Bml::new(Rank(me), RANKS)).collect();
        for bml in &mut ranks {
            for (hub, name, latency) in [(&x, "x", 500), (&y, "y", 50)] {
                let plan = Plan {
                    seed: seed * 100 + u64::from(bml.me().0),
                    full_per_mille: 100,
                    full_calls_max: 9,
                    delay_polls_max: 7,
                    ..Plan::default()
                };
                let config = Config { slots: 3, ..named(name, latency) };
                bml.add(Box::new(Fault::new(Loopback::with(hub, config), plan)));
            }
        }
        let addresses: Vec<_> = ranks.iter().map(Bml::addresses).collect();
        for bml in &mut ranks {
            for (peer, addresses) in (0..).zip(&addresses) {
                bml.connect(Rank(peer), addresses).unwrap();
            }
        }
        let counter = || Counter { next: vec![0; RANKS as usize], ended: 0 };
        let mut counters: Vec<Counter> = (0..RANKS).map(|_| counter()).collect();
        let mut sent = vec![vec![0u64; RANKS as usize]; RANKS as usize];
        let done = |counter: &Counter| {
            counter.next.iter().all(|&n| n == MESSAGES)
                && counter.ended == MESSAGES * u64::from(RANKS)
        };
        let mut rounds = 0;
        while !counters.iter().all(done) {
            for ((bml, counter), sent) in ranks.iter_mut().zip(&mut counters).zip(&mut sent) {
                for (to, number) in (0..RANKS).zip(sent.iter_mut()) {
                    if *number == MESSAGES {
                        continue;
                    }
                    match bml.reserve(Rank(to), 8) {
                        Ok(mut slot) => {
                            slot.write(0, &number.to_le_bytes()).unwrap();
                            bml.send(slot, AmTag(0), Token(*number));
                            *number += 1;
                        }
                        Err(ReserveError::Full) => {}
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                }
                bml.poll(counter);
            }
            rounds += 1;
            assert!(rounds < 1_000_000, "seed {seed}: no progress");
        }
    }
}

/// Two threads that sleep whenever nothing has come play ball.
#[test]
fn sleepers_wake_each_other() {
    const ROUNDS: u64 = 300;
    let hub = Hub::new();
    let (a, b) = super::pair(&[(&hub, named("x", 100))]);
    std::thread::scope(|scope| {
        let ends = [(a, true), (b, false)].map(|(mut bml, first)| {
            scope.spawn(move || {
                let patience =
                    Patience { spin: Duration::ZERO, yields: 1, block_ms: 50, clock_ms: 1 };
                let mut waiter = Waiter::with(patience);
                let to = 1 - bml.me().0;
                let mut counter = Counter { next: vec![0; 2], ended: 0 };
                for round in 0..ROUNDS {
                    if first {
                        say(&mut bml, to, 0, &round.to_le_bytes(), Token::NONE);
                    }
                    while counter.next[to as usize] <= round {
                        bml.wait(&mut waiter, &mut counter);
                    }
                    if !first {
                        say(&mut bml, to, 0, &round.to_le_bytes(), Token::NONE);
                    }
                }
                bml
            })
        });
        // Both ends live until both are done.
        let ended = ends.map(|end| end.join().unwrap());
        assert_eq!(ended.map(|bml| bml.me()), [Rank(0), Rank(1)]);
    });
}

#[test]
fn waiting_sleeps_by_the_clock_if_a_rail_must_be_polled() {
    let hub = Hub::new();
    let mut bml = Bml::new(Rank(0), 1);
    // With delays no descriptor can tell.
    let plan = Plan { delay_polls_max: 3, ..Plan::default() };
    bml.add(Box::new(Fault::new(Loopback::with(&hub, named("x", 9)), plan)));
    let patience = Patience { spin: Duration::ZERO, yields: 0, block_ms: u16::MAX, clock_ms: 1 };
    let mut waiter = Waiter::with(patience);
    for _ in 0..5 {
        // A minute each if it were not so.
        assert_eq!(bml.wait(&mut waiter, &mut Log::default()), 0);
    }
    say(&mut bml, 0, 1, b"me", Token(1));
    assert_eq!(bml.wait(&mut waiter, &mut Log::default()), 2);
}

/// A handler that answers from within, and waits, which does nothing there.
struct Echo(u32);

impl Handler for Echo {
    fn handle(&mut self, bml: &mut Bml, event: RankEvent) {
        let RankEvent::Arrived { from, tag, fragment } = event else { panic!("{event:?}") };
        let mut waiter = Waiter::with(Patience::new(2, 1));
        assert_eq!(bml.wait(&mut waiter, &mut Log::default()), 0);
        if self.0 > 0 {
            self.0 -= 1;
            let bytes = fragment.to_vec().unwrap();
            say(bml, from.0, tag.0, &bytes, Token::NONE);
        }
    }
}

#[test]
fn handlers_may_send_and_each_poll_is_bounded() {
    let mut bml = Bml::new(Rank(0), 1);
    bml.register(3..=3, Box::new(Echo(100))).unwrap();
    say(&mut bml, 0, 3, b"again", Token::NONE);
    // Each echo is for the next poll.
    for _ in 0..101 {
        assert_eq!(bml.poll(&mut Log::default()), 1);
    }
    assert!(poll(&mut bml).is_empty());
}
