//! Messages that are long enough to be copied to rails on trial, with and without cuts.

use super::*;

/// A little more than is copied.
const LEN: usize = 65_600;

impl Job {
    /// Numbers that more than one rail retains.
    fn doubles(&self) -> usize {
        let numbers = |to: usize, line: &Line| -> Vec<Vec<u8>> {
            let last = |kept: &Unacknowledged| kept.message[kept.message.len() - 8..].to_vec();
            line.state().ways[to].retained.iter().map(last).collect()
        };
        (0..2)
            .map(|to| {
                let (one, two) = (numbers(to, &self.lines[0]), numbers(to, &self.lines[1]));
                one.iter().filter(|number| two.contains(number)).count()
            })
            .sum()
    }
}

/// How many messages are on their way to rank 1 over each rail.
fn flying(job: &Job) -> Vec<usize> {
    job.lines.iter().map(|line| line.state().ways[1].flying.len()).collect()
}

#[test]
fn rails_on_trial_carry_copies_which_the_receiver_drops() {
    let mut job = Job::of(3, LEN);
    assert!(job.say(0));
    assert_eq!(flying(&job), [1, 1, 1], "nothing is known of any");
    job.rest(40);
    job.check(true, &String::new);
}

#[test]
fn short_messages_are_not_copied() {
    let mut job = Job::of(2, 3000);
    assert!(job.say(0));
    assert_eq!(flying(&job), [1, 0]);
}

/// One that confirms nothing holds up nothing that others can carry, from the first message on.
#[test]
fn a_rail_on_trial_that_stands_still_is_not_waited_for() {
    for still in 0..2 {
        let mut job = Job::of(2, LEN);
        let quick = 1 - still;
        for _ in 0..400 {
            while job.said[0] < 60 && job.say(0) {}
            job.lines[quick].deliver_all(1);
            (0..2).for_each(|rank| job.poll(rank));
            job.lines[quick].confirm(1);
        }
        assert_eq!(job.takers[1].got, (0..60).collect::<Vec<u8>>(), "rail {still} stands still");
        job.rest(60);
        job.check(true, &|| format!("rail {still} stood still"));
    }
}

/// The clock is the real one: a rail may become known meanwhile. Nothing that is asserted depends on that.
#[test]
fn a_rail_with_copies_may_be_cut_at_any_step() {
    let mut doubles = 0;
    for seed in 300..303 {
        let script = script(seed, 2, STEPS);
        for at in (0..STEPS).step_by(3) {
            for (line, delays) in (0..2).flat_map(|line| DELAYS.map(|delays| (line, delays))) {
                let mut job = run_job(Job::of(2, LEN), &script, &[(at, line, delays)], None);
                doubles += job.doubles();
                job.rest(20);
                job.check(true, &|| format!("seed {seed}, line {line} cut at {at}, {delays:?}"));
            }
        }
    }
    assert!(doubles > 0, "no copy was under way");
}
