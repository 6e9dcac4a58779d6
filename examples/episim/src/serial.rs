//! The whole epidemic by one process, as plainly as it can be said: what ranks and kernels must come to, bit for bit.

use crate::health::{Day, State};
use crate::population::{CLOSENESS, HOME, Population, SLOTS};

/// A visit of somebody who may infect or be infected.
struct Visit {
    person: u32,
    kind: u32,
    slots: std::ops::Range<usize>,
    infectivity: u64,
    susceptibility: u64,
}

/// The numbers of every day.
#[must_use]
pub fn serial(population: &Population) -> Vec<Day> {
    let synthetic = population.synthetic;
    let mut states = vec![State::Susceptible; synthetic.persons as usize];
    for person in population.first() {
        states[person as usize] = population.latent(person);
    }
    let mut locations: Vec<Vec<Visit>> = Vec::new();
    locations.resize_with(synthetic.locations as usize, Vec::new);
    let mut days = Vec::new();
    for day in 0..synthetic.days {
        locations.iter_mut().for_each(Vec::clear);
        for (person, state) in (0..).zip(&states) {
            let status = population.status(person, *state);
            for activity in population.day(person) {
                if !status.stays || activity.kind == HOME {
                    locations[activity.location as usize].push(Visit {
                        person,
                        kind: activity.kind,
                        slots: activity.start as usize..activity.end as usize,
                        infectivity: status.infectivity.into(),
                        susceptibility: status.susceptibility.into(),
                    });
                }
            }
        }
        let mut doses = vec![0u64; states.len()];
        for visits in &locations {
            if visits.iter().all(|visit| visit.infectivity == 0) {
                continue;
            }
            let (mut present, mut infectivity) = ([0; SLOTS as usize], [0; SLOTS as usize]);
            for visit in visits {
                for slot in visit.slots.clone() {
                    present[slot] += 1;
                    infectivity[slot] += visit.infectivity;
                }
            }
            for visit in visits {
                let close = 256 * CLOSENESS[visit.kind as usize];
                let slots = visit.slots.clone();
                let sum: u64 = slots.map(|slot| infectivity[slot] * close / present[slot]).sum();
                doses[visit.person as usize] += (sum * visit.susceptibility) >> 8;
            }
        }
        days.push(population.end_day(day, 0..synthetic.persons, &mut states, &doses));
    }
    days
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::population::Synthetic;

    #[test]
    fn an_epidemic_comes_and_goes() {
        let synthetic = Synthetic {
            persons: 3_000,
            locations: 2_500,
            visits: 18_000,
            days: 70,
            ..Synthetic::DELAWARE
        };
        let days = serial(&Population { synthetic, seed: 1 });
        let peak = days.iter().map(|day| day.infectious).max().unwrap();
        let last = days.last().unwrap();
        assert!(peak > 100 && last.recovered > 1_000 && last.infectious < peak / 4, "{days:?}");
        for day in &days {
            assert_eq!(day.susceptible + day.latent + day.infectious + day.recovered, 3_000);
        }
    }
}
