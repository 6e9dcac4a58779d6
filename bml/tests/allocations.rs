//! Once warm, a message through bml allocates nothing: counted by the allocator.

use gapless_bml::{Bml, Handler, Rank, RankEvent};
use gapless_btl::loopback::{Config, Hub, Loopback};
use gapless_btl::{AmTag, Token};
use gapless_testkit::{Counting, allocations};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Default)]
struct Count {
    arrived: u64,
    ended: u64,
}

impl Handler for Count {
    fn handle(&mut self, _: &mut Bml, event: RankEvent) {
        match event {
            RankEvent::Arrived { .. } => self.arrived += 1,
            RankEvent::Sent { .. } => self.ended += 1,
            other => panic!("{other:?}"),
        }
    }
}

fn rounds(ranks: &mut [Bml; 2], count: &mut Count, rounds: u64) {
    for round in 0..rounds {
        let [a, b] = &mut *ranks;
        for bml in [&mut *a, &mut *b] {
            for to in [0, 1] {
                let mut slot = bml.reserve(Rank(to), 64).expect("room");
                slot.write(0, &round.to_le_bytes()).expect("it fits");
                bml.send(slot, AmTag(1), Token(round));
            }
        }
        a.poll(count);
        b.poll(count);
        a.poll(count);
    }
}

#[test]
fn the_steady_state_allocates_nothing() {
    let hub = Hub::new();
    let mut ranks = [0, 1].map(|me| {
        let mut bml = Bml::new(Rank(me), 2);
        let config = Config { name: "rail", ..Config::default() };
        bml.add(Box::new(Loopback::with(&hub, config)));
        bml
    });
    let addresses = ranks.each_ref().map(Bml::addresses);
    ranks[0].connect(Rank(1), &addresses[1]).expect("both are on the hub");
    ranks[1].connect(Rank(0), &addresses[0]).expect("both are on the hub");
    let mut count = Count::default();
    rounds(&mut ranks, &mut count, 1000);
    let before = allocations();
    rounds(&mut ranks, &mut count, 10_000);
    let made = allocations() - before;
    assert_eq!((count.arrived, count.ended), (44_000, 44_000));
    // The test harness itself may allocate meanwhile, a message may not.
    assert!(made < 100, "{made} allocations for 40000 messages");
}
